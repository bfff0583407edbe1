"""Rewards made of other rewards: gated, rescaled, renamed, cached."""

from __future__ import annotations

import hashlib
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from scoring.adopt import AdoptedFunction, adopt
from scoring.contract import Batch, RewardFunction


class CombinedReward(RewardFunction):
    """A reward computed, batch by batch, from the scores of others."""

    def __init__(
        self,
        parts: Sequence[RewardFunction],
        combine: Callable[[Batch], list],
        *,
        low: float,
        high: float,
        name: str,
        doc: str,
    ) -> None:
        first = parts[0]
        self.parts, self.combine = list(parts), combine
        self.low, self.high, self.failures, self.__name__, self.__doc__ = low, high, 0, name, doc
        self.claims_correctness, self.example, self.options = first.claims_correctness, first.example, {}
        self.claims_by_guess = first.claims_by_guess
        self.function = self.__wrapped__ = first.function
        self.__module__, self.groupwise = first.__module__, any(part.groupwise for part in parts)
        self.settings, self._estimates = {}, any(part._estimates for part in parts)
        self.columns = tuple(dict.fromkeys(name for part in parts for name in part.columns))
        self.optional = {
            name: default for part in parts for name, default in part.optional.items() if name not in self.columns
        }
        self._names = tuple(dict.fromkeys(name for part in parts for name in part._names))

    def _copy(self, **changes: Any) -> RewardFunction:
        name = changes.get("name", self.__name__)
        return CombinedReward(self.parts, self.combine, low=self.low, high=self.high, name=name, doc=self.__doc__)

    def with_options(self, name: str | None = None, **options: Any) -> RewardFunction:
        raise TypeError(f"{self.__name__} is a combination: set the options of its parts before combining them")

    def score(self, completion: str | Sequence[dict[str, Any]], prompt: Any = None, **columns: Any) -> float | None:
        """As `RewardFunction.score`; as that of an adopted function where one is among the parts."""
        if any(isinstance(part, (AdoptedFunction, CombinedReward)) for part in self.parts):
            return AdoptedFunction.score(self, completion, prompt, **columns)
        return super().score(completion, "" if prompt is None else prompt, **columns)

    def values(self, batch: Batch) -> list:
        return self.combine(batch)


def gate(function: RewardFunction, by: RewardFunction, at_least: float = 1.0) -> RewardFunction:
    """`function`'s score where `by` reaches `at_least`, else the lowest: style pays only when the answer is right.

    >>> short_and_right = gate(length_reward.with_options(shortest=1, longest=20), by=correctness_reward)
    >>> short_and_right.score("<answer>4</answer>", answer="5")
    0.0
    """

    def one(score: Any, key: Any) -> Any:
        if key is None or isinstance(key, Exception):
            return key
        return score if key >= at_least else low

    def combine(batch: Batch) -> list:
        return list(map(one, function._checked_values(batch), by._checked_values(batch)))

    function, by = adopt(function), adopt(by)
    low = 0.0 if math.isinf(function.low) else function.low
    name, doc = (
        f"{function.__name__}_if_{by.__name__}",
        f"{function.purpose} Only where {by.__name__} is at least {at_least:g}.",
    )
    return CombinedReward([function, by], combine, low=function.low, high=function.high, name=name, doc=doc)


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

    def mapped(score: Any) -> Any:
        if score is None or isinstance(score, Exception):
            return score
        return low + (score - function.low) / width * (high - low)

    def combine(batch: Batch) -> list:
        return [mapped(score) for score in function._checked_values(batch)]

    return CombinedReward([function], combine, low=low, high=high, name=function.__name__, doc=function.__doc__ or "")


def cached(function: RewardFunction, size: int = 10_000) -> RewardFunction:
    """`function` that scores a completion it has seen, with the same prompt and columns, only once.

    For slow or paid rewards whose score depends on nothing else. Failures are not kept, and `log_extra`
    columns are not written. Raises TypeError for a group-wise reward.
    """
    function = adopt(function)
    if function.groupwise:
        raise TypeError(f"{function.__name__} scores whole groups: its scores cannot be kept by completion")
    kept: dict[str, float | None] = {}
    lock = threading.Lock()

    def key(batch: Batch, i: int) -> str:
        row = (batch.texts[i], batch.prompts[i], {name: values[i] for name, values in batch.columns.items()})
        return hashlib.sha256(repr(row).encode("utf-8", "surrogatepass")).hexdigest()

    def combine(batch: Batch) -> list:
        keys = [key(batch, i) for i in range(len(batch.texts))]
        with lock:
            scores = {k: kept[k] for k in keys if k in kept}
        new = {k: i for i, k in enumerate(keys) if k not in scores}
        rows, from_trl = list(new.values()), {name: v for name, v in batch.from_trl.items() if name != "log_extra"}
        part = Batch(
            [batch.prompts[i] for i in rows],
            [batch.completions[i] for i in rows],
            [batch.texts[i] for i in rows],
            {n: [v[i] for i in rows] for n, v in batch.columns.items()},
            from_trl,
        )
        scores |= dict(zip(new, function._checked_values(part))) if rows else {}
        with lock:
            kept.update({k: scores[k] for k in new if not isinstance(scores[k], Exception)})
            for old in list(itertools.islice(kept, max(0, len(kept) - size))):
                del kept[old]
        return [scores[k] for k in keys]

    name, doc = function.__name__, function.__doc__ or ""
    return CombinedReward([function], combine, low=function.low, high=function.high, name=name, doc=doc)
