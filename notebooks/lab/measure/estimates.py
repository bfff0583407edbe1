"""Estimates with intervals: paired bootstrap, exact tests, pass@k and majority vote."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from rewards import same_answer


def paired_difference(
    before: Sequence[float], after: Sequence[float], seed: int = 0, draws: int = 10_000
) -> dict[str, float]:
    """Mean of `after - before` over the same examples, with a 95 % interval by paired bootstrap.

    The examples are drawn with replacement, each with both of its scores (Efron and Tibshirani 1993,
    percentile interval).

    >>> paired_difference([0, 0, 0, 0], [1, 1, 1, 1])
    {'estimate': 1.0, 'low': 1.0, 'high': 1.0}
    """
    difference = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    if len(difference) == 0 or np.isnan(difference).any():
        raise ValueError("paired_difference needs at least one pair, and a score for both sides of each")
    return bootstrap_mean(difference, seed, draws)


LEVELS = 64  # different values up to which drawing how often each comes is faster than drawing the examples
BLOCK = 2_000_000  # numbers drawn at once


def bootstrap_mean(values: Sequence[float], seed: int = 0, draws: int = 10_000) -> dict[str, float]:
    """Mean of independent values with its 95 % percentile interval over draws with replacement.

    10,000 values take a second, and a millisecond where they are few different ones.
    """
    values = np.asarray(values, dtype=float)
    n, rng = len(values), np.random.default_rng(seed)
    levels, counts = np.unique(values, return_counts=True)
    if len(levels) <= LEVELS:
        means = rng.multinomial(n, counts / n, size=draws) @ levels / n
    else:
        sizes = [min(max(1, BLOCK // n), draws - start) for start in range(0, draws, max(1, BLOCK // n))]
        means = np.concatenate([values[rng.integers(n, size=(size, n), dtype=np.int32)].mean(axis=1) for size in sizes])
    low, high = np.quantile(means, [0.025, 0.975])
    return {"estimate": float(values.mean()), "low": float(low), "high": float(high)}


def share_interval(values: Sequence[float], low: float, high: float, seed: int = 0) -> dict[str, float]:
    """Mean over problems of values between `low` and `high`, with its 95 % interval.

    Where all n values are the same (mostly all 0 or all 1) a bootstrap would claim certainty. Then a share of up to
    s = 1 - 0.025^(1/n) of the problems may be unlike those seen (Clopper and Pearson 1934 for 0 of n; about 3.7 / n),
    and the bounds are the mean with that share off by 1: in a difference, one of the two models answers otherwise.

    >>> {name: round(value, 3) for name, value in interval([1.0] * 500, 0, 1).items()}
    {'estimate': 1.0, 'low': 0.993, 'high': 1.0}
    """
    values = np.asarray(values, dtype=float)
    value, unseen = float(values.mean()), 1 - 0.025 ** (1 / len(values))
    if np.ptp(values) < 1e-12:
        return {"estimate": value, "low": max(float(low), value - unseen), "high": min(float(high), value + unseen)}
    return bootstrap_mean(values, seed)


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact p-value that as many would be gained as lost (McNemar 1947, the binomial form).

    >>> round(mcnemar(10, 2), 4), mcnemar(0, 0)
    (0.0386, 1.0)
    """
    n, term, tail = int(gained) + int(lost), 1, 0
    for i in range(int(min(gained, lost)) + 1):  # Python's whole numbers: exact for thousands of pairs too
        tail += term
        term = term * (n - i) // (i + 1)
    return min(1.0, 2 * tail / 2**n)


FEWEST_CHANGES = 6  # that can be told from chance, all in one direction: 2 / 2^6 < 0.05


def sign_flips(change: Sequence[float], seed: int = 0, draws: int = 10_000) -> float:
    """Two-sided p-value that a mean of paired differences is this far from 0 by chance (Fisher's randomisation test).

    If both models are alike, each difference could as well have the other sign: all 2^n are tried for up to 12
    differences that are not 0, and `draws` random ones for more.

    >>> sign_flips([1, 1, 1]), sign_flips([0, 0])
    (0.25, 1.0)
    """
    change = np.asarray(change, dtype=float)
    change = change[change != 0]
    if not len(change):
        return 1.0
    if len(change) <= 12:
        signs = 1 - 2 * (np.arange(2 ** len(change))[:, None] >> np.arange(len(change)) & 1)
        return float((np.abs(signs @ change) >= abs(change.sum()) - 1e-9).mean())
    rng, far = np.random.default_rng(seed), 0
    for _ in range(10):
        signs = 1 - 2 * rng.integers(0, 2, size=(draws // 10, len(change)), dtype=np.int8)
        far += int((np.abs(signs @ change) >= abs(change.sum()) - 1e-9).sum())
    return (1 + far) / (1 + draws)


def problems_needed(gained: int, lost: int, n: int) -> int:
    """About how many problems show a gain as large as this one, at 5 % two-sided with a power of 80 % (Connor 1987).

    At least as many as have `FEWEST_CHANGES` changed verdicts: with fewer no exact test can show anything.

    >>> problems_needed(30, 24, 500), problems_needed(3, 0, 3)
    (5885, 6)
    """
    apart, gain = (gained + lost) / n, (gained - lost) / n
    power = math.ceil(((1.96 * math.sqrt(apart) + 0.8416 * math.sqrt(apart - gain**2)) / gain) ** 2)
    return max(power, math.ceil(FEWEST_CHANGES / apart))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that at least one of k samples is right, from c right of n (Chen et al. 2021, eq. 1).

    >>> pass_at_k(8, 2, 1), pass_at_k(8, 0, 8), pass_at_k(8, 1, 8)
    (0.25, 0.0, 1.0)
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}")
    if n - c < k:
        return 1.0
    return 1.0 - float(np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def votes(answers: Sequence[str | None], right: Sequence[float]) -> tuple[tuple[tuple[int, float], ...], int]:
    """((samples, share of them right) of each different answer, how many samples gave none).

    >>> votes(["12", "13", "12.0", None], [1, 0, 1, 0])
    (((2, 1.0), (1, 0.0)), 1)
    """
    said: list[tuple[str, list[float]]] = []
    for text, is_right in zip(answers, right):
        if isinstance(text, str):
            alike = (marks for one, marks in said if one == text or same_answer(text, one) or same_answer(one, text))
            marks = next(alike, None)
            said.append((text, [is_right])) if marks is None else marks.append(is_right)
    counted = tuple((len(marks), sum(marks) / len(marks)) for _, marks in said)
    return counted, len(answers) - sum(count for count, _ in counted)


@functools.lru_cache(maxsize=65_536)
def majority_at_k(said: tuple[tuple[int, float], ...], silent: int, k: int) -> float:
    """Expected share right of the commonest answer among k samples drawn without replacement (Wang et al. 2022, maj@k).

    Answers that are equally common share the credit. A sample without an answer does not vote; k without any are wrong.
    Exact: for every number w of votes that can win, the ways to draw k with w as the most are counted by how many
    answers have w (one axis) and how many samples are drawn (the other), and beside them the credit of those.

    >>> majority_at_k(((3, 1.0), (1, 0.0)), 0, 4), majority_at_k(((2, 1.0), (2, 0.0)), 0, 4)
    (1.0, 0.5)
    """
    total = 0.0
    for w in range(1, min(k, max((count for count, _ in said), default=0)) + 1):
        ways = np.zeros((k + 1, k // w + 1))  # [samples drawn, answers with w votes]
        credit, ways[0, 0] = np.zeros_like(ways), 1.0
        for count, right in said:
            drawn, earned = np.zeros_like(ways), np.zeros_like(ways)
            for u in range(min(count, w - 1) + 1):
                drawn[u:] += math.comb(count, u) * ways[: k + 1 - u]
                earned[u:] += math.comb(count, u) * credit[: k + 1 - u]
            if count >= w:
                drawn[w:, 1:] += math.comb(count, w) * ways[: k + 1 - w, :-1]
                earned[w:, 1:] += math.comb(count, w) * (credit + right * ways)[: k + 1 - w, :-1]
            ways, credit = drawn, earned
        rest = np.array([math.comb(silent, k - s) for s in range(k + 1)], dtype=float)
        total += float((rest[:, None] * credit)[:, 1:].sum(axis=0) @ (1 / np.arange(1, k // w + 1)))
    return total / math.comb(sum(count for count, _ in said) + silent, k)
