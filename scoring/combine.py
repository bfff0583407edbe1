"""Rewards made of other rewards: gated, rescaled, renamed, cached."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from scoring.adopt import adopt
from scoring.batch import Batch
from scoring.contract import RewardFunction


class CombinedReward(RewardFunction):
    """A reward computed from others: `combine` makes the scores of a batch from the parts' scores of it."""

    def __init__(
        self,
        parts: Sequence[RewardFunction],
        combine: Callable[[Sequence[RewardFunction], Batch], list],
        *,
        low: float,
        high: float,
        name: str,
        doc: str,
    ) -> None:
        first = parts[0]
        self.parts, self.combine = list(parts), combine
        self.low, self.high, self.failures, self.__name__, self.__doc__ = low, high, 0, name, doc
        self.claims_correctness, self.claims_by_guess = first.claims_correctness, first.claims_by_guess
        self.function = self.__wrapped__ = first.function
        self.__module__, self.groupwise = first.__module__, any(part.groupwise for part in parts)
        self.example, self.options, self.optional, self._names = first.example, {}, {}, ()
        self.for_chats = any(part.for_chats for part in parts)
        self.columns = tuple(dict.fromkeys(name for part in parts for name in part.columns))

    def renamed(self, name: str) -> RewardFunction:
        return CombinedReward(self.parts, self.combine, low=self.low, high=self.high, name=name, doc=self.__doc__)

    def with_options(self, name: str | None = None, **options: Any) -> RewardFunction:
        raise TypeError(f"{self.__name__} is a combination: set the options of its parts before combining them")

    def __reduce__(self) -> tuple:
        make = functools.partial(CombinedReward, low=self.low, high=self.high, name=self.__name__, doc=self.__doc__)
        return make, (self.parts, self.combine)

    def values(self, batch: Batch) -> list:
        return self.combine(self.parts, batch)


def gate(function: RewardFunction, by: RewardFunction, at_least: float = 1.0) -> RewardFunction:
    """`function`'s score where `by` reaches `at_least`, else the lowest: style pays only when the answer is right.

    >>> short_and_right = gate(length_reward.with_options(shortest=1, longest=20), by=correctness_reward)
    >>> short_and_right.score("<answer>4</answer>", answer="5")
    0.0
    """
    function, by = adopt(function), adopt(by)
    return CombinedReward(
        [function, by],
        functools.partial(_gated, at_least=at_least, lowest=0.0 if math.isinf(function.low) else function.low),
        low=function.low,
        high=function.high,
        name=f"{function.__name__}_if_{by.__name__}",
        doc=f"{function.purpose} Only where {by.__name__} is at least {at_least:g}.",
    )


def _gated(parts: Sequence[RewardFunction], batch: Batch, at_least: float, lowest: float) -> list:
    def one(score: Any, key: Any) -> Any:
        if key is None or isinstance(key, Exception):
            return key
        return score if key >= at_least else lowest

    return list(map(one, *(part.checked_values(batch) for part in parts)))


def rescale(function: RewardFunction, low: float = 0.0, high: float = 1.0) -> RewardFunction:
    """`function` with its declared range mapped linearly onto [low, high]; by default positive.

    Raises ValueError where the function declares no finite range.

    >>> @reward(low=-1, high=1)
    ... def signed(completion: str) -> float:
    ...     return -1.0 if "sorry" in completion else 1.0
    >>> rescale(signed).score("so sorry"), rescale(signed).score("fine")
    (0.0, 1.0)
    """
    function = adopt(function)
    width = function.high - function.low
    if not math.isfinite(width) or not width:
        raise ValueError(
            f"{function.__name__} declares no finite range to rescale: give it one, adopt(f, low=…, high=…)"
        )
    if not low < high:
        raise ValueError(f"cannot rescale to [{low}, {high}]: the lower bound comes first")
    combine = functools.partial(_rescaled, low=low, high=high)
    return CombinedReward([function], combine, low=low, high=high, name=function.__name__, doc=function.__doc__ or "")


def _rescaled(parts: Sequence[RewardFunction], batch: Batch, low: float, high: float) -> list:
    function = parts[0]
    width = function.high - function.low
    return [
        score if score is None or isinstance(score, Exception) else low + (score - function.low) / width * (high - low)
        for score in function.checked_values(batch)
    ]


def rename(function: RewardFunction, name: str) -> RewardFunction:
    """The same reward under another metric name.

    >>> rename(format_reward, "style").__name__
    'style'
    """
    return adopt(function).renamed(name)


def cached(function: RewardFunction, size: int = 10_000) -> RewardFunction:
    """`function` that scores a completion it has seen, with the same prompt and columns, only once.

    For slow or paid rewards whose score depends on nothing else. Failures are not kept, and `log_extra`
    columns are not written. Another process begins with an empty cache. Raises TypeError for a group-wise reward.
    """
    function = adopt(function)
    if function.groupwise:
        raise TypeError(f"{function.__name__} scores whole groups: its scores cannot be kept by completion")
    name, doc = function.__name__, function.__doc__ or ""
    return CombinedReward([function], Cache(size), low=function.low, high=function.high, name=name, doc=doc)


class Cache:
    """The scores that a cached reward has seen, at most `size`; the oldest go first."""

    def __init__(self, size: int) -> None:
        self.size, self.scores, self.lock = size, {}, threading.Lock()

    def __reduce__(self) -> tuple:
        return Cache, (self.size,)

    def __call__(self, parts: Sequence[RewardFunction], batch: Batch) -> list:
        keys = []
        for i, (text, prompt) in enumerate(zip(batch.texts, batch.prompts)):
            row = (text, prompt, {name: values[i] for name, values in batch.columns.items()})
            keys.append(hashlib.sha256(repr(row).encode("utf-8", "surrogatepass")).hexdigest())
        with self.lock:
            scores = {key: self.scores[key] for key in keys if key in self.scores}
        new = {key: i for i, key in enumerate(keys) if key not in scores}
        if new:
            part = batch.part(list(new.values()))
            part.from_trl.pop("log_extra", None)
            scores |= zip(new, parts[0].checked_values(part))
        with self.lock:
            self.scores |= {key: scores[key] for key in new if not isinstance(scores[key], Exception)}
            for old in list(itertools.islice(self.scores, max(0, len(self.scores) - self.size))):
                del self.scores[old]
        return [scores[key] for key in keys]
