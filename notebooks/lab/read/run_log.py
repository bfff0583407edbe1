"""A run's log as arrays: one value a step for each metric, whatever versions and names it was logged under."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pandas as pd

# What decides that an answer is right, in `rewards.py` and `trl.rewards`; another reward has to be named to `diagnose`.
CORRECTNESS = (
    "correctness_reward",
    "math_reward",
    "multiple_choice_reward",
    "code_reward",
    "json_reward",
    "countdown_reward",
    "schedule_reward",
    "accuracy_reward",
    "reasoning_accuracy_reward",  # the last two are TRL's
)


class RunLog:
    """The training rows of a log as arrays of finite numbers, NaN where there is none.

    Args:
        steps: shape (rows,).
        series: columns by name, each of shape (rows,).
        bad: for each of BAD_COLUMNS that was logged, where it was no finite number.
        correct: mean over the rewards that decide what is right; None if none was logged.
        others: the other rewards, by name without version.
        changed: the row of the last edit of a reward, and of the last change of temperature.
    """

    def __init__(self, steps, series, bad, correct, others, changed) -> None:
        self.steps, self.series, self.bad = steps, series, bad
        self.correct, self.others, self.changed = correct, others, changed
        self.cuts: dict[int, RunLog] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        return self.series[name]

    def __len__(self) -> int:
        return len(self.steps)

    def after(self, what: str) -> RunLog:
        """The rows since the last change of `what`, so that levels before and after are not compared."""
        row = self.changed.get(what, 0)
        if row and row not in self.cuts:
            cut = {kind: {k: v[row:] for k, v in getattr(self, kind).items()} for kind in ("series", "bad", "others")}
            correct = None if self.correct is None else self.correct[row:]
            self.cuts[row] = RunLog(self.steps[row:], cut["series"], cut["bad"], correct, cut["others"], {})
        return self.cuts[row] if row else self

    def missing(self, name: str) -> str:
        """Why `name` cannot be judged; empty if it can."""
        if name in ("correctness", "correctness column"):
            if self.correct is None:
                return "no reward that decides what is right was logged: name it in `correctness`"
            return "" if name != "correctness" or np.isfinite(self.correct).any() else "correctness was never scored"
        if name == "others":
            return "" if self.others else "there is no reward beside correctness"
        if name in self.series and np.isfinite(self.series[name]).any():
            return ""
        why = {"kl": ": with BETA = 0 TRL measures none", "entropy": ": Unsloth's trainer on a GPU logs none"}.get(
            name, ""
        )
        return f"{name} was not logged{why}"

    @cached_property
    def level(self) -> np.ndarray:
        """Correctness, mean of the window; NaN where it is not known."""
        return np.full(len(self), np.nan) if self.correct is None else mean(self.correct, WINDOW)

    @cached_property
    def reward_level(self) -> np.ndarray:
        """Total reward, mean of the window."""
        return mean(self["reward"], WINDOW)

    @cached_property
    def solved(self) -> np.ndarray:
        """Whether correctness is at the top of its range, within two standard errors."""
        if self.correct is None:
            return np.zeros(len(self), bool)
        spread = np.sqrt(np.maximum(mean(self.correct**2, WINDOW) - self.level**2, 0.0))
        return (self.level >= NEARLY) & (self.level + 2 * spread / np.sqrt(WINDOW) >= SOLVED - SAME)


BAD_COLUMNS = ("loss", "grad_norm", "reward", "kl")
# A row without any of these is an evaluation's or the summary at the end, and no training step.
STEP_COLUMNS = ("reward", "loss", "grad_norm", "learning_rate", "step_time", "completions/mean_length")
COLUMNS = {
    "step",
    "temperature",
    *BAD_COLUMNS,
    *STEP_COLUMNS,
    "reward_std",
    "frac_reward_zero_std",
    "entropy",
    "completions/clipped_ratio",
    "completions/duplicate_share",
}
VERSION = re.compile(r"(?P<name>.+?)(?:_v(?P<version>\d+))?")


def read_log(log: pd.DataFrame, correctness: Sequence[str], format_names: Sequence[str] | None) -> RunLog:
    """The log as arrays, with the versions of a reward joined."""
    raw = {name: numbers(log[name]) for name in log.columns if name in COLUMNS or is_mean(name)}
    kept = np.zeros(len(log), bool)
    for name in STEP_COLUMNS:
        kept |= ~np.isnan(raw[name]) if name in raw else False
    raw = {name: values[kept] for name, values in raw.items()}
    series = {name: np.where(np.isfinite(values), values, np.nan) for name, values in raw.items()}
    bad = {name: ~np.isfinite(raw[name]) for name in BAD_COLUMNS if name in raw}
    if "kl" in bad and np.isnan(raw["kl"]).all():
        del bad["kl"]  # a column of nothing: no KL was asked for
    rewards, edited = join_versions(series)
    right = [rewards[name] for name in rewards if is_one_of(name, correctness)]
    others = {
        name: values
        for name, values in rewards.items()
        if (is_one_of(name, format_names) if format_names is not None else not is_one_of(name, correctness))
    }
    steps = series.get("step", np.arange(1.0, kept.sum() + 1))
    changed = {"reward": edited, "temperature": settled(series.get("temperature"))}
    return RunLog(steps, series, bad, average(right), others, changed)


def is_mean(column: str) -> bool:
    return column.startswith("rewards/") and column.endswith("/mean")


def numbers(column: pd.Series) -> np.ndarray:
    if column.dtype == float:
        return column.to_numpy()  # the usual case, and ten times as fast
    try:
        return column.to_numpy(dtype=float, na_value=np.nan)
    except (TypeError, ValueError):  # a text among the numbers
        return pd.to_numeric(column, errors="coerce").to_numpy(dtype=float)


def family(name: str) -> tuple[str, int]:
    """A reward's name without its version, and the version: format_reward_v2 is (format_reward, 2)."""
    parts = VERSION.fullmatch(name)
    return (parts["name"], int(parts["version"] or 1)) if parts else (name, 1)


def is_one_of(name: str, names: Sequence[str]) -> bool:
    """Whether a reward (without version) is named; code_reward[timeout=2] is code_reward."""
    asked = {family(one)[0] for one in names}
    return name in asked or name.split("[")[0] in asked


def join_versions(series: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], int]:
    """Each reward's mean as one series, the latest version where several have a score; the row of the last edit."""
    found: dict[str, list[tuple[int, np.ndarray]]] = {}
    for column, values in series.items():
        if is_mean(column):
            name, version = family(column[len("rewards/") : -len("/mean")])
            found.setdefault(name, []).append((version, values))
    joined, edited = {}, 0
    for name, versions in found.items():
        versions.sort(key=lambda one: one[0])
        joined[name] = versions[0][1]
        for _, values in versions[1:]:
            scored = np.isfinite(values)
            joined[name] = np.where(scored, values, joined[name])
            edited = max(edited, int(scored.argmax()) if scored.any() else 0)
    return joined, edited


def settled(values: np.ndarray | None) -> int:
    """The row from which on a setting is about what it is at the end; 0 if it always was."""
    if values is None or not np.isfinite(values).any():
        return 0
    known = np.flatnonzero(np.isfinite(values))
    last = values[known[-1]]
    other = np.flatnonzero(np.abs(values[known] - last) > ABOUT * abs(last))
    return int(known[other[-1] + 1]) if other.size else 0


WINDOW = 10  # steps; the mean of ten has a third of one step's noise, and ten steps are minutes, not a night
SOLVED = 0.95  # as in the preflight: two of three groups of 8 are then all right, so a lack of spread is success
NEARLY = 0.90  # at least this, where SOLVED is only reached within two standard errors
ABOUT = 0.1  # of a temperature: one that falls by less, step by step, leaves levels comparable
SAME = 1e-9  # differences below it are rounding


def average(columns: list[np.ndarray]) -> np.ndarray | None:
    """Mean over several series, of those that have a value in a row."""
    if len(columns) < 2:
        return columns[0] if columns else None
    table = np.stack(columns)
    known = np.isfinite(table)
    with np.errstate(invalid="ignore"):
        return np.where(known, table, 0.0).sum(axis=0) / np.where(known.any(axis=0), known.sum(axis=0), np.nan)


def mean(values: np.ndarray, width: int) -> np.ndarray:
    """Mean of the window at each row; NaN before the first whole one, and where under half of it is known."""
    known = ~np.isnan(values)
    total = sums(values if known.all() else np.where(known, values, 0.0), width)
    count = width if known.all() else sums(known.astype(float), width)
    result = np.where(count < width / 2, np.nan, total / np.maximum(count, 1))
    result[: width - 1] = np.nan
    return result


def sums(values: np.ndarray, width: int) -> np.ndarray:
    """Sum over the window at each row, of those that are there before the first whole one."""
    total = np.cumsum(values)
    total[width:] -= total[:-width].copy()
    return total
