"""Rewards in TRL's own signature, under the same checks; and a list of rewards made ready for the trainer."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

from scoring.background import run_in_background
from scoring.batch import Batch
from scoring.contract import RewardError, RewardFunction, callable_name, is_failure, name_with


class AdoptedFunction(RewardFunction):
    """A function in TRL's own signature, called unchanged and checked like every reward here."""

    for_chats = True

    def __init__(
        self, function: Callable, low: float = -math.inf, high: float = math.inf, *, prefill: bool = False, **more: Any
    ) -> None:
        self.prefill = prefill
        super().__init__(function, low, high, **more)

    def _parameters(self) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.function).parameters
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if "completions" not in parameters and not self.takes_all:
            raise TypeError(f"{self.__name__} is not in TRL's signature: it needs a parameter 'completions'")
        self.groupwise, self._names = False, ()
        bound = set(self.function.keywords) if isinstance(self.function, functools.partial) else set()
        stars = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return {n: p for n, p in parameters.items() if p.kind not in stars and n not in bound}

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"prefill": self.prefill}

    def values(self, batch: Batch) -> list:
        given = {"prompts": batch.prompts, "completions": batch.completions, **batch.columns, **batch.from_trl}
        given = {"completion_ids": [[] for _ in batch.texts], **given, **self.options}
        if self.prefill:
            given["completions"] = [
                text if isinstance(c, str) else [{"role": "assistant", "content": text}]
                for text, c in zip(batch.texts, batch.completions)
            ]
        if not self.takes_all:
            parameters = inspect.signature(self.function).parameters
            given = {name: value for name, value in given.items() if name in parameters}
        try:
            found = self.function(**given)
            found = list(run_in_background(found) if inspect.isawaitable(found) else found)
        except Exception as error:
            if not is_failure(error):
                raise self._broken(error, self._culprit(batch)) from error
            return [error] * len(batch.texts)
        if len(found) != len(batch.texts):
            raise RewardError(f"{self.__name__} returned {len(found)} scores for {len(batch.texts)} completions")
        return found

    def _culprit(self, batch: Batch) -> str:
        """The first completion on which the function fails alone; the first of all where none does."""
        for i, text in enumerate(batch.texts if len(batch.texts) > 1 else ()):
            try:
                self.values(batch.part([i]))
            except Exception:
                return text
        return batch.texts[0] if batch.texts else ""


def adopt(
    function: Callable,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    name: str | None = None,
    prefill: bool = False,
    claims_correctness: bool | None = None,
) -> RewardFunction:
    """A reward function from elsewhere, in TRL's signature, under the checks of this module.

    The function is called as TRL would call it, unchanged. A partial gets its settings into its name.

    Args:
        function: `f(prompts, completions, **columns) -> list[float | None]`, sync or async.
        low, high: its range, where you know it.
        prefill: put back what the prompt had already begun. Leave it off for functions that do so themselves.

    Raises:
        TypeError: for a function that is not in TRL's signature.

    >>> adopt(lambda completions, **kwargs: [float("12" in c[0]["content"]) for c in completions], name="has_12").score("12!")
    1.0
    """
    if isinstance(function, RewardFunction):
        return function
    keywords = function.keywords if isinstance(function, functools.partial) else {}
    name = name or (name_with(callable_name(function), keywords) if keywords else None)
    return AdoptedFunction(function, low, high, name=name, prefill=prefill, claims_correctness=claims_correctness)


def prepare_rewards(functions: Iterable[Callable], columns: Iterable[str] | None = None) -> list[RewardFunction]:
    """What goes to the trainer: every function adopted, its columns there, and no two under one metric name.

    Args:
        columns: names of the data set's columns; None leaves them unchecked.

    Raises:
        MissingColumnError, TypeError: naming the function.
    """
    found: dict[str, RewardFunction] = {}
    columns = None if columns is None else list(columns)
    for function in map(adopt, functions):
        if columns is not None:
            function.check_columns(columns)
        names = itertools.chain([function.__name__], (f"{function.__name__}_{i}" for i in itertools.count(2)))
        name = next(name for name in names if name not in found)
        found[name] = function if name == function.__name__ else function.renamed(name)
    return list(found.values())
