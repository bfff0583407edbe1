"""The training log as the health rules want it: arrays with a value a step, whatever names they were logged under."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from lab.read import moving_statistics as moving
from lab.read.moving_statistics import SAME, WINDOW
from lab.read.reward_names import join_versions, logged_rewards, matching_rewards

SOLVED = 0.95  # as in the preflight: two of three groups of 8 are then all right, so a lack of spread is success
NEARLY_SOLVED = 0.90  # at least this, where SOLVED is only reached within two standard errors
SAME_TEMPERATURE = 0.1  # of a temperature: one that falls by less, step by step, leaves levels comparable
NEVER_NAN = ("loss", "grad_norm", "reward", "kl")
# A row without any of these is an evaluation's or the summary at the end, and no training step.
STEP_COLUMNS = ("reward", "loss", "grad_norm", "learning_rate", "step_time", "completions/mean_length")
READ = {*NEVER_NAN, *STEP_COLUMNS, "step", "temperature", "reward_std", "frac_reward_zero_std", "entropy"} | {
    "completions/clipped_ratio",
    "completions/duplicate_share",
}
WHY_NOT_LOGGED = {"kl": ": with BETA = 0 TRL measures none", "entropy": ": Unsloth's trainer on a GPU logs none"}


@dataclass
class RunLog:
    """The training steps of a log as arrays of finite numbers, shape (rows,), NaN where there is none.

    Args:
        not_finite: for each of NEVER_NAN that was logged, where it was no finite number.
        correct: mean over the rewards that decide what is right; None if none was logged.
        others: the other rewards, by name without version.
        changed: the row of the last edit of a reward, and of the last change of temperature.
    """

    steps: np.ndarray
    series: dict[str, np.ndarray]
    not_finite: dict[str, np.ndarray]
    correct: np.ndarray | None
    others: dict[str, np.ndarray]
    changed: dict[str, int]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.series[name]

    def __len__(self) -> int:
        return len(self.steps)

    def since_change(self, what: str) -> RunLog:
        """The rows since the last change of "reward" or "temperature", so that levels before and after are not compared."""
        row = self.changed.get(what, 0)
        columns = (self.series, self.not_finite, self.others)
        series, bad, others = ({name: values[row:] for name, values in each.items()} for each in columns)
        correct = None if self.correct is None else self.correct[row:]
        return RunLog(self.steps[row:], series, bad, correct, others, {}) if row else self

    def missing(self, name: str) -> str:
        """Why `name` cannot be judged; empty if it can."""
        if name in ("correctness", "correctness column"):
            if self.correct is None:
                return "no reward that decides what is right was logged: name it in `correctness`"
            return "" if name != "correctness" or np.isfinite(self.correct).any() else "correctness was never scored"
        if name == "others":
            return "" if self.others else "there is no reward beside correctness"
        known = name in self.series and np.isfinite(self.series[name]).any()
        return "" if known else f"{name} was not logged{WHY_NOT_LOGGED.get(name, '')}"

    @cached_property
    def correct_level(self) -> np.ndarray:
        """Correctness, mean of the window; NaN where it is not known."""
        return np.full(len(self), np.nan) if self.correct is None else moving.mean(self.correct)

    @cached_property
    def reward_level(self) -> np.ndarray:
        """Total reward, mean of the window."""
        return moving.mean(self["reward"])

    @cached_property
    def solved(self) -> np.ndarray:
        """Whether correctness is at the top of its range, within two standard errors."""
        if self.correct is None:
            return np.zeros(len(self), bool)
        level = self.correct_level
        spread = np.sqrt(np.maximum(moving.mean(self.correct**2) - level**2, 0.0))
        return (level >= NEARLY_SOLVED) & (level + 2 * spread / np.sqrt(WINDOW) >= SOLVED - SAME)


def read_log(log: pd.DataFrame, correctness: Sequence[str]) -> RunLog:
    """The log as arrays, with the versions of a reward joined. The arguments are those of `health.diagnose`."""
    means = logged_rewards(log.columns)
    raw = {name: numbers(log[name]) for name in log.columns if name in READ or name in means.values()}
    is_step = np.any(
        [np.zeros(len(log), bool), *(~np.isnan(raw[name]) for name in STEP_COLUMNS if name in raw)], axis=0
    )
    raw = {name: values[is_step] for name, values in raw.items()}
    series = {name: np.where(np.isfinite(values), values, np.nan) for name, values in raw.items()}
    not_finite = {name: ~np.isfinite(raw[name]) for name in NEVER_NAN if name in raw}
    if "kl" in raw and np.isnan(raw["kl"]).all():
        del not_finite["kl"]  # a column of nothing: no KL was asked for
    rewards, edited = join_versions({name: series[column] for name, column in means.items()})
    deciding = matching_rewards(rewards, correctness)
    correct = pd.DataFrame(rewards)[deciding].mean(axis=1).to_numpy() if deciding else None
    others = {name: values for name, values in rewards.items() if name not in deciding}
    steps = series.get("step", np.arange(1.0, is_step.sum() + 1))
    changed = {"reward": edited, "temperature": last_change(series.get("temperature"))}
    return RunLog(steps, series, not_finite, correct, others, changed)


def numbers(column: pd.Series) -> np.ndarray:
    if column.dtype == float:
        return column.to_numpy()  # the usual case, and ten times as fast
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=float, na_value=np.nan)


def last_change(values: np.ndarray | None) -> int:
    """The row from which on a setting is about what it is at the end; 0 if it always was."""
    if values is None or not np.isfinite(values).any():
        return 0
    known = np.flatnonzero(np.isfinite(values))
    last = values[known[-1]]
    other = np.flatnonzero(np.abs(values[known] - last) > SAME_TEMPERATURE * abs(last))
    return int(known[other[-1] + 1]) if other.size else 0
