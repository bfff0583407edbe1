"""Statistics over the last steps, at every step: arrays in, arrays of the same length out."""

import numpy as np
import pandas as pd

WINDOW = 10  # steps; the mean of ten has a third of one step's noise, and ten steps are minutes, not a night
SAME = 1e-9  # differences below it are rounding


def rolling(values: np.ndarray, width: int, least: int) -> pd.api.typing.Rolling:
    """The last `width` values at each row, of which at least so many have to be known."""
    return pd.Series(values, dtype=float).rolling(width, min_periods=least)


def whole_window(values: np.ndarray, width: int, statistic: str) -> np.ndarray:
    moved = getattr(rolling(values, width, (width + 1) // 2), statistic)().to_numpy(copy=True)
    moved[: width - 1] = np.nan
    return moved


def mean(values: np.ndarray, width: int = WINDOW) -> np.ndarray:
    """NaN before the first whole window, and where less than half of the window is known."""
    return whole_window(values, width, "mean")


def median(values: np.ndarray, width: int = WINDOW) -> np.ndarray:
    """As `mean`, but a single wild step does not move it."""
    return whole_window(values, width, "median")


def minimum(values: np.ndarray, width: int) -> np.ndarray:
    """NaN where a value of the window is not known."""
    return rolling(values, width, width).min().to_numpy()


def delayed(values: np.ndarray, rows: int) -> np.ndarray:
    return pd.Series(values).shift(rows).to_numpy()


def first_mean(values: np.ndarray) -> float:
    """Mean of the first steps: what later steps are compared with."""
    first = values[np.isfinite(values)][:WINDOW]
    return float(first.mean()) if first.size else np.nan


def best_so_far(level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The highest level up to each row, and the row where it was reached."""
    best = np.fmax.accumulate(level)
    return best, np.maximum.accumulate(np.where(level == best, np.arange(len(level)), 0))


def standard_error(values: np.ndarray) -> float:
    """Standard error of the difference of two windows' means, from the median difference between neighbouring steps.

    1.4826 times the median deviation is the standard deviation of normal noise; a difference has √2 of it.
    """
    known = values[np.isfinite(values)][-200:]
    if known.size < 3:
        return np.inf
    noise = 1.4826 * float(np.median(np.abs(np.diff(known)))) / np.sqrt(2)
    return noise * np.sqrt(2 / WINDOW)


def rise_in_errors(values: np.ndarray) -> np.ndarray:
    """Welch's t at each row: the mean of the last quarter minus that of the first steps, in standard errors."""
    known = np.isfinite(values)
    centred = np.where(known, values - first_mean(values), 0.0)  # centred, so that squares lose no digits
    upto = [np.concatenate([[0.0], np.cumsum(x)]) for x in (known.astype(float), centred, centred**2)]
    end = np.arange(1, len(values) + 1)
    begin, head = end - np.maximum(end // 4, 1), np.minimum(WINDOW, end)
    (n, total, squares), (n_0, total_0, squares_0) = [s[end] - s[begin] for s in upto], [s[head] for s in upto]
    with np.errstate(divide="ignore", invalid="ignore"):
        late, early = total / n, total_0 / n_0
        variance = (squares / n - late**2) / (n - 1) + (squares_0 / n_0 - early**2) / (n_0 - 1)
        rise = (late - early) / np.sqrt(np.maximum(variance, 0.0))
    return np.where(np.abs(late - early) < SAME, 0.0, rise)  # a constant has no noise and no rise
