"""Estimates with intervals: paired bootstrap, exact tests, pass@k and majority vote."""

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from rewards import same_answer

DRAWS = 3_000  # of a bootstrap: other seeds move the ends of an interval by about 1 % of its width
FEWEST_CHANGES = 6  # all in one direction, that an exact test can tell from chance: 2 / 2^6 < 0.05


def bootstrap_mean(values: Sequence[float], seed: int = 0) -> dict[str, float]:
    """Mean of independent values with its 95 % percentile interval by bootstrap (Efron and Tibshirani 1993)."""
    values = np.asarray(values, dtype=float)
    low = high = mean = float(values.mean())
    if np.ptp(values) > 0:
        drawn = stats.bootstrap((values,), np.mean, n_resamples=DRAWS, batch=100, method="percentile", rng=seed)
        low, high = map(float, drawn.confidence_interval)
    return {"estimate": mean, "low": low, "high": high}


def paired_difference(before: Sequence[float], after: Sequence[float], seed: int = 0) -> dict[str, float]:
    """Mean of `after - before` over the same examples, with a 95 % interval: examples are drawn with both scores.

    Raises ValueError without a pair, and for a missing score.
    """
    difference = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    if len(difference) == 0 or np.isnan(difference).any():
        raise ValueError("paired_difference needs at least one pair, and a score for both sides of each")
    return bootstrap_mean(difference, seed)


def share_interval(values: Sequence[float], low: float, high: float, seed: int = 0) -> dict[str, float]:
    """Mean over problems of values between `low` and `high`, with its 95 % interval.

    Where all n values are the same, a bootstrap would claim certainty. Unseen problems may differ, up to the upper end
    of the exact interval for 0 of n (Clopper and Pearson 1934), about 3.7 / n.

    >>> {name: round(value, 3) for name, value in share_interval([1.0] * 500, 0, 1).items()}
    {'estimate': 1.0, 'low': 0.993, 'high': 1.0}
    """
    values = np.asarray(values, dtype=float)
    if np.ptp(values) > 1e-12:
        return bootstrap_mean(values, seed)
    mean, unseen = float(values.mean()), float(stats.binomtest(0, len(values)).proportion_ci().high)
    return {"estimate": mean, "low": max(float(low), mean - unseen), "high": min(float(high), mean + unseen)}


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact p-value that as many would be gained as lost (McNemar 1947, the binomial form)."""
    return float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def sign_flips(change: Sequence[float], seed: int = 0) -> float:
    """Two-sided p-value that a mean of paired differences is this far from 0 by chance (Fisher's randomisation test).

    If both models are alike, each difference could as well have the other sign. All sign changes are tried for up to
    13 differences that are not 0, and 10,000 random ones for more.
    """
    change = np.asarray(change, dtype=float)
    change = change[change != 0]
    if len(change) < 2:
        return 1.0
    how = {"permutation_type": "samples", "alternative": "greater", "n_resamples": 10_000, "batch": 1000, "rng": seed}
    return float(stats.permutation_test((change,), lambda x, axis: np.abs(x.sum(axis)), vectorized=True, **how).pvalue)


def problems_needed(gained: int, lost: int, n: int) -> int:
    """About how many problems show a gain as large as this one, at 5 % two-sided with a power of 80 % (Connor 1987).

    At least so many that `FEWEST_CHANGES` verdicts change: with fewer no exact test can show anything.

    >>> problems_needed(30, 24, 500), problems_needed(3, 0, 3)
    (5885, 6)
    """
    apart, gain = (gained + lost) / n, (gained - lost) / n
    power = math.ceil(((1.96 * math.sqrt(apart) + 0.8416 * math.sqrt(apart - gain**2)) / gain) ** 2)
    return max(power, math.ceil(FEWEST_CHANGES / apart))


def sample_sizes(n: int) -> list[int]:
    """The k of pass@k and maj@k for n samples: the powers of two, and all.

    >>> sample_sizes(6), sample_sizes(0)
    ([1, 2, 4, 6], [])
    """
    return [2**i for i in range(n.bit_length()) if 2**i < n] + [n] * bool(n)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that at least one of k samples is right, from c right of n (Chen et al. 2021, eq. 1).

    >>> pass_at_k(8, 2, 1), pass_at_k(8, 0, 8), pass_at_k(8, 1, 8)
    (0.25, 0.0, 1.0)
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}")
    return 1.0 if n - c < k else 1.0 - float(np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def votes(answers: Sequence[str | None], right: Sequence[float]) -> tuple[tuple[tuple[int, float], ...], int]:
    """((samples, share of them right) of each different answer, how many samples gave none).

    >>> votes(["12", "13", "12.0", None], [1, 0, 1, 0])
    (((2, 1.0), (1, 0.0)), 1)
    """
    different: dict[str, list[float]] = {}  # the first of equal answers -> marks
    for text, is_right in zip(answers, right):
        if isinstance(text, str):
            alike = (one for one in different if one == text or same_answer(text, one) or same_answer(one, text))
            different.setdefault(next(alike, text), []).append(is_right)
    counted = tuple((len(marks), sum(marks) / len(marks)) for marks in different.values())
    return counted, len(answers) - sum(count for count, _ in counted)


@functools.lru_cache(maxsize=65_536)
def majority_at_k(different: tuple[tuple[int, float], ...], silent: int, k: int) -> float:
    """Expected share right of the commonest answer among k samples drawn without replacement (Wang et al. 2022, maj@k).

    `different` and `silent` are what `votes` returns. Equally common answers share the credit. One without an answer
    does not vote; k without any are wrong. The count is exact: for each number w of votes that can win, answers are
    added one by one to the ways to draw k samples with w as the most, by samples drawn and by answers that have w.

    >>> majority_at_k(((3, 1.0), (1, 0.0)), 0, 4), majority_at_k(((2, 1.0), (2, 0.0)), 0, 4)
    (1.0, 0.5)
    """
    total = 0.0
    for w in range(1, min(k, max((count for count, _ in different), default=0)) + 1):
        ways = np.zeros((k + 1, k // w + 1))  # [samples drawn, answers with w votes]
        credit, ways[0, 0] = np.zeros_like(ways), 1.0
        for count, right in different:
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
    return total / math.comb(sum(count for count, _ in different) + silent, k)
