"""Rewards made of other functions: adopted from TRL's signature, made ready for it, gated, rescaled, renamed, cached."""

import difflib
import functools
import hashlib
import inspect
import itertools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scoring.batch import Batch, as_completion
from scoring.contract import (
    REGISTRY,
    RewardError,
    RewardFunction,
    callable_name,
    is_failure,
    name_with,
    run_in_background,
)
from scoring.errors import InputError


class AdoptedFunction(RewardFunction):
    """A function in TRL's own signature, called unchanged and checked like every reward here."""

    for_chats = True
    prefill = False  # whether it sees what the prompt has begun

    def _parameters(self) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.function).parameters
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if "completions" not in parameters and not self.takes_all:
            raise TypeError(f"{self.__name__} is not in TRL's signature: it needs a parameter 'completions'")
        self.groupwise, self._names = False, ()
        bound = set(self.function.keywords) if isinstance(self.function, functools.partial) else set()
        stars = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return {n: p for n, p in parameters.items() if p.kind not in stars and n not in bound}

    def values(self, batch: Batch) -> list:
        given = {"prompts": batch.prompts, "completions": batch.completions, **batch.columns, **batch.from_trl}
        given = {"completion_ids": [[] for _ in batch.texts], **given, **self.options}
        if self.prefill:
            given["completions"] = [as_completion(*pair) for pair in zip(batch.texts, batch.completions)]
        if not self.takes_all:
            given = {name: given[name] for name in inspect.signature(self.function).parameters if name in given}
        try:
            found = self.function(**given)
            found = run_in_background(found) if inspect.isawaitable(found) else found
            found = found if found is None else list(found)
        except Exception as error:
            if not is_failure(error):
                raise self._broken(error, self._culprit(batch)) from error
            return [error] * len(batch.texts)
        if found is None:
            wanted = f"one score for each of the {len(batch.texts)} completions"
            raise RewardError(f"{self.__name__} returned None, not {wanted}. Is its `return` missing?")
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
    name: str = "",
    prefill: bool = False,
    claims_correctness: bool | None = None,
) -> RewardFunction:
    """A function in TRL's signature under the checks of `@reward`. A partial gets its settings into its name.

    `function(prompts, completions, **columns) -> list[float | None]` may be async. `low` and `high` are its range, where
    you know it. `prefill=True` puts back what the prompt had begun; leave it off for functions that do so themselves.
    Raises TypeError for a function that is not in TRL's signature.

    >>> adopt(lambda completions, **kwargs: [float("12" in c[0]["content"]) for c in completions], name="has_12").score("12!")
    1.0
    """
    if isinstance(function, RewardFunction):
        return function
    if isinstance(function, functools.partial) and function.keywords:
        name = name or name_with(callable_name(function), function.keywords)
    adopted = AdoptedFunction(function, low, high, claims_correctness, name=name)
    adopted.prefill = prefill
    return adopted


def prepare_rewards(functions: Iterable[Callable], columns: Iterable[str] | None = None) -> list[RewardFunction]:
    """What goes to the trainer: every function adopted, its columns there, and no two under one metric name.

    `columns` are the data set's; None leaves them unchecked. Raises MissingColumnError or TypeError.
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


def chosen_weights(weights: Mapping[str, Any], names: Iterable[str]) -> dict[str, float]:
    """The weights other than 0 of the rewards of these names. A name of weight 0 need not be one of a reward.

    Raises InputError, saying what to change, for a name that is no reward's, a weight that is no number, and no weight.
    """
    names, found = list(names), {}
    if not isinstance(weights, Mapping):
        raise InputError(f'WEIGHTS must be a dict such as {{"correctness_reward": 1.0}}, not {weights!r}.')
    for name, weight in weights.items():
        if not isinstance(weight, numbers.Real) or not math.isfinite(weight):
            way = "Write a number such as 0.5; 0 leaves the reward out."
            raise InputError(f"WEIGHTS gives {name!r} the weight {weight!r}, which is no finite number. {way}")
        if weight and name not in names:
            near = "".join(f" Did you mean {one!r}?" for one in difflib.get_close_matches(str(name), names, 1))
            there = f"The rewards are: {', '.join(sorted(names, key=REGISTRY.__contains__))}."  # one's own first
            way = "Correct it in the parameters cell or in the reward cell, and run that cell again."
            raise InputError(f"WEIGHTS names {name!r}, but there is no such reward.{near} {way}\n{there}")
        if weight:
            found[name] = float(weight)
    if not found:
        raise InputError("Every weight in WEIGHTS is 0: give at least one reward a weight, such as 1.0.")
    return found


class CombinedReward(RewardFunction):
    """A reward computed from others: `combine` makes the scores of a batch from the parts' scores of it."""

    function = __wrapped__ = property(lambda self: self.parts[0].function)  # whose source stands for it

    def __init__(self, combine: Callable, *parts: RewardFunction, name: str = "", doc: str = "") -> None:
        first = parts[0]
        self.parts, self.combine, self.low, self.high, self.failures = parts, combine, first.low, first.high, 0
        self.__name__, self.__doc__ = name or first.__name__, doc or first.__doc__
        self.__module__, self.example = first.__module__, first.example
        self.claims_correctness, self.claims_by_guess = first.claims_correctness, first.claims_by_guess
        self.groupwise = any(part.groupwise for part in parts)
        self.for_chats = any(part.for_chats for part in parts)
        self.options, self.optional, self._names = {}, {}, ()
        self.columns = tuple(dict.fromkeys(name for part in parts for name in part.columns))
        self.unnamed = True  # until `renamed`, or until the variable in `my_rewards.py` gives it its name

    def renamed(self, name: str, **changed: Any) -> RewardFunction:
        return super().renamed(name, **{"unnamed": False, **changed})

    def with_options(self, name: str | None = None, **options: Any) -> RewardFunction:
        raise TypeError(f"{self.__name__} is a combination: set the options of its parts before combining them")

    def values(self, batch: Batch) -> list:
        return self.combine(self.parts, batch)


def gate(function: RewardFunction, by: RewardFunction, at_least: float = 1.0) -> RewardFunction:
    """`function`'s score where `by` reaches `at_least`, else the lowest: style pays only when the answer is right.

    >>> short_and_right = gate(length_reward.with_options(shortest=1, longest=20), by=correctness_reward)
    >>> short_and_right.score("<answer>4</answer>", answer="5")
    0.0
    """
    function, by = adopt(function), adopt(by)
    name, doc = f"{function.__name__}_if_{by.__name__}", f"{function.purpose} Only where {by.__name__} >= {at_least:g}."
    combine = functools.partial(_gated, at_least=at_least, lowest=0.0 if math.isinf(function.low) else function.low)
    return CombinedReward(combine, function, by, name=name, doc=doc)


def _gated(parts: Sequence[RewardFunction], batch: Batch, at_least: float, lowest: float) -> list:
    scores, keys = (part.checked_values(batch) for part in parts)
    return [k if not isinstance(k, float) else s if k >= at_least else lowest for s, k in zip(scores, keys)]


def rescale(function: RewardFunction, low: float = 0.0, high: float = 1.0) -> RewardFunction:
    """`function` with its declared range mapped linearly onto [low, high]; by default positive.

    Raises ValueError where the function declares no finite range.

    >>> rescale(format_reward, low=-1).score("12"), rescale(format_reward, low=-1).score(FORMAT.write("3 * 4", "12"))
    (-1.0, 1.0)
    """
    function = adopt(function)
    width = function.high - function.low
    if not math.isfinite(width) or not width:
        raise InputError(f"{function.__name__} has no finite range to rescale: give it one, adopt(f, low=…, high=…)")
    if not low < high:
        raise InputError(f"cannot rescale to [{low}, {high}]: the lower bound comes first")
    combined = CombinedReward(functools.partial(_rescaled, low=low, high=high), function)
    return combined.renamed(function.__name__, low=float(low), high=float(high), unnamed=True)


def _rescaled(parts: Sequence[RewardFunction], batch: Batch, low: float, high: float) -> list:
    (function,), width = parts, parts[0].high - parts[0].low
    scores = function.checked_values(batch)
    return [low + (s - function.low) / width * (high - low) if isinstance(s, float) else s for s in scores]


def rename(function: RewardFunction, name: str) -> RewardFunction:
    """The same reward under another metric name."""
    return adopt(function).renamed(name)


def cached(function: RewardFunction, size: int = 10_000) -> RewardFunction:
    """`function` that scores a completion it has seen, with the same prompt and columns, only once.

    For slow or paid rewards whose score depends on nothing else. Failures are not kept, `log_extra` columns are not
    written, another process has a cache of its own. Raises TypeError for a group-wise reward.
    """
    function = adopt(function)
    if function.groupwise:
        raise TypeError(f"{function.__name__} scores whole groups: its scores cannot be kept by completion")
    return CombinedReward(Cache(size), function)


@dataclass
class Cache:
    """The scores that a cached reward has seen, at most `size`; the oldest go first."""

    size: int
    scores: dict[str, float | None] = field(default_factory=dict)

    def __call__(self, parts: Sequence[RewardFunction], batch: Batch) -> list:
        keys = []
        for i, (text, prompt) in enumerate(zip(batch.texts, batch.prompts)):
            row = repr((text, prompt, {name: values[i] for name, values in batch.columns.items()}))
            keys.append(hashlib.sha256(row.encode("utf-8", "surrogatepass")).hexdigest())
        seen = self.scores  # never changed, only replaced: other threads may call too
        scores = {key: seen[key] for key in keys if key in seen}
        new = {key: i for i, key in enumerate(keys) if key not in scores}
        if new:
            part = batch.part(list(new.values()))
            part.from_trl.pop("log_extra", None)
            scores |= zip(new, parts[0].checked_values(part))
            found = {key: scores[key] for key in new if not isinstance(scores[key], Exception)}
            self.scores = dict([*(self.scores | found).items()][-self.size :])
        return [scores[key] for key in keys]
