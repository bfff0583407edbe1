"""The training log as the health rules want it: arrays with a value a step, whatever names they were logged under."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from lab.read import moving_statistics as moving
from lab.read.moving_statistics import SAME, WINDOW
from lab.read.reward_names import join_versions, matching_rewards

SOLVED = 0.95  # as in the preflight: two of three groups of 8 are then all right, so a lack of spread is success
NEARLY_SOLVED = 0.90  # at least this, where SOLVED is only reached within two standard errors
SAME_TEMPERATURE = 0.1  # of a temperature: one that falls by less, step by step, leaves levels comparable
NEVER_NAN = ["loss", "grad_norm", "reward", "kl"]
# A row without any of these is an evaluation's or the summary at the end, and no training step.
STEP_COLUMNS = ["reward", "loss", "grad_norm", "learning_rate", "step_time", "completions/mean_length"]
WHY_NOT_LOGGED = {"kl": ": with BETA = 0 TRL measures none", "entropy": ": Unsloth's trainer on a GPU logs none"}


@dataclass
class RunLog:
    """The training steps of a log: a row a step, finite numbers, NaN where there is none."""

    steps: np.ndarray
    series: dict[str, np.ndarray]
    not_finite: dict[str, np.ndarray]  # for each of NEVER_NAN that was logged, where it was no finite number
    correct: np.ndarray | None  # mean over the rewards that decide what is right; None if none was logged
    others: pd.DataFrame  # the other rewards, by name without version
    changed: dict[str, int]  # the row of the last edit of a "reward", and of the last change of "temperature"

    def __getitem__(self, name: str) -> np.ndarray:
        return self.series[name]

    def __len__(self) -> int:
        return len(self.steps)

    def since_change(self, what: str) -> RunLog:
        """The rows since the last change of "reward" or "temperature", so that levels before and after are not compared."""
        row = self.changed.get(what, 0)
        if not row:
            return self
        series, bad = ({name: values[row:] for name, values in each.items()} for each in (self.series, self.not_finite))
        correct = None if self.correct is None else self.correct[row:]
        return RunLog(self.steps[row:], series, bad, correct, self.others.iloc[row:], {})

    def missing(self, name: str) -> str:
        """Why `name` cannot be judged; empty if it can."""
        if name in ("correctness", "correctness column"):
            if self.correct is None:
                return "no reward that decides what is right was logged: name it in `correctness`"
            return "" if name != "correctness" or np.isfinite(self.correct).any() else "correctness was never scored"
        if name == "others":
            return "there is no reward beside correctness" if self.others.empty else ""
        known = name in self.series and np.isfinite(self[name]).any()
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
    texts = log[log.columns[log.dtypes.ne("float64")]].apply(pd.to_numeric, errors="coerce")
    raw = log.assign(**texts)
    values = raw.to_numpy(float)
    values = values[~np.isnan(values[:, raw.columns.isin(STEP_COLUMNS)]).all(axis=1)]
    not_finite = {name: ~np.isfinite(values[:, raw.columns.get_loc(name)]) for name in NEVER_NAN if name in raw}
    if "kl" in raw and np.isnan(values[:, raw.columns.get_loc("kl")]).all():
        not_finite.pop("kl")  # a column of nothing: no KL was asked for
    series = pd.DataFrame(np.where(np.isfinite(values), values, np.nan), columns=raw.columns)
    rewards, edited = join_versions(series)
    deciding = matching_rewards(rewards, correctness)
    correct = rewards[deciding].mean(axis=1).to_numpy() if deciding else None
    steps = series["step"].to_numpy() if "step" in series else np.arange(1.0, len(series) + 1)
    changed = {"reward": edited, "temperature": last_change(series.get("temperature"))}
    columns = dict(zip(series.columns, series.to_numpy().T))
    return RunLog(steps, columns, not_finite, correct, rewards.drop(columns=deciding), changed)


def last_change(values: pd.Series | None) -> int:
    """The row from which on a setting is about what it is at the end; 0 if it always was."""
    known = pd.Series(dtype=float) if values is None else values.dropna()
    other = np.flatnonzero((known - known[-1:].sum()).abs() > SAME_TEMPERATURE * known[-1:].abs().sum())
    return int(known.index[other[-1] + 1]) if other.size else 0
