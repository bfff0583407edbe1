"""Reading a run: its log, its held-out evaluations, what happened in it and its completions, in one form for every reader.

Two kinds of folder are read: a run of notebook 03 (`lab.train.run_folder` lists its files), and the output directory of any
TRL trainer, of which `trainer_state.json` and `completions/` are used. A run may still be training, or may have died in
the middle of a write: what is half-written is left out, and `Record.notes` says so.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet

from lab.files import MissingInputError, Row, relative
from lab.read import run_log
from lab.train.run_folder import MADE_BY, how_it_stands, step_of

TOTAL_ERROR = 2e-3  # of a total, from means that were rounded in the log
BY_GROUP = "frac_reward_zero_std"
STATE = "trainer_state.json"  # where transformers' Trainer keeps its log
LOGGED = {  # by TRL, transformers and this project; what else stands in a log, a reward has put there with log_metric
    "step",
    "epoch",
    "loss",
    "grad_norm",
    "learning_rate",
    "reward",
    "reward_std",
    "frac_reward_zero_std",
    "entropy",
    "kl",
    "num_tokens",
    "step_time",
    "temperature",
    "time/generating",
    "time/scoring",
    "time/step",
    "completions/clipped_ratio",
    "completions/duplicate_share",
    "aux_loss",
    "policy_loss",
    "entropy_coef",
    "cispo_clip_ratio",
    "clip_ratio",
    "completion_length",
    "num_input_tokens_seen",
    "train_tokens_per_second",
    "total_flos",
    *(f"completions/{which}{kind}_length" for which in ("mean", "min", "max") for kind in ("", "_terminated")),
}
NAMESPACES = ("clip_ratio/", "sampling/", "tools/", "vespo/", "profiling/", "weight/", "train_")
OUR_EVALUATION = ("tokens", "seconds")  # of an evaluation's columns, those that are neither its size nor a reward


@dataclass(frozen=True)
class Record:
    """A run as it was read.

    Args:
        name: what legends call it.
        source: "ours" or "trl".
        about: `run.json`, with the status "killed" where the process is gone; {} without one.
        log: a row a training step, indexed by step; floats, NaN where nothing (or no number) was logged.
        evaluations: a row an evaluation: step, n (problems, NaN if unknown), a column a reward and what else was measured.
        events: `events.jsonl`: step, kind, and more by kind.
        printed: what the rewards printed: step, text.
        notes: what was left out and why, in words.
        completions: the readable Parquet files of training completions, in the order of their steps.
        held_out: those of the evaluations' answers.
        given_weights: weights by reward for a run whose record does not have them.
        given_correctness: the rewards that decide what is right, where the reader said so.
    """

    folder: Path
    name: str
    source: str
    about: Row
    log: pd.DataFrame
    evaluations: pd.DataFrame
    events: list[Row]
    printed: list[Row]
    notes: list[str]
    completions: list[Path]
    held_out: list[Path] = field(default_factory=list)
    given_weights: Mapping[str, float] = field(default_factory=dict)
    given_correctness: tuple[str, ...] = ()

    def reward_names(self) -> list[str]:
        """The rewards' metric names, an edited reward's versions apart: format_reward, format_reward_v2."""
        return [column[len("rewards/") : -len("/mean")] for column in self.log.columns if run_log.is_mean(column)]

    def correctness(self) -> tuple[str, ...]:
        """The rewards that decide what is right: as given to `read`, else as `run.json` says, else `health.CORRECTNESS`."""
        recorded = tuple(entry["name"] for entry in recorded_rewards(self.about) if entry.get("decides"))
        return self.given_correctness or recorded or run_log.CORRECTNESS

    def weights(self) -> pd.DataFrame:
        """The weight of each reward at each step, NaN where that version of it was not in use.

        From the log where it says, else from `run.json`, else as given to `read`, else 1.
        """
        known = {**recorded_weights(self.about), **self.given_weights}
        table = {}
        for name in self.reward_names():
            if f"weight/{name}" in self.log:
                table[name] = self.log[f"weight/{name}"]
            else:
                weight = known.get(name, known.get(run_log.family(name)[0], 1.0))
                table[name] = self._in_use(name).map({True: float(weight), False: np.nan})
        return pd.DataFrame(table, index=self.log.index, dtype=float)

    def _in_use(self, name: str) -> pd.Series:
        """Whether a version was the one that scored, by step: from its first score to the next version's."""
        first = {other: self.log[f"rewards/{other}/mean"].first_valid_index() for other in self.reward_names()}
        begins, (own, version) = first[name], run_log.family(name)
        if begins is None:
            return pd.Series(False, index=self.log.index)
        later = [
            at for other, at in first.items() if at is not None and at > begins and run_log.family(other)[0] == own
        ]
        used = pd.Series(self.log.index < min(later, default=np.inf), index=self.log.index)
        return used & (self.log.index >= (begins if version > 1 else 0))

    def own_metrics(self) -> list[str]:
        """What the rewards logged with `log_metric`: the columns that neither TRL nor this project writes."""
        ours = [
            name for name in self.log.columns if name not in LOGGED and not name.startswith(("rewards/", *NAMESPACES))
        ]
        return [name for name in ours if self.log[name].notna().any()]


def recorded_weights(about: Row) -> dict[str, float]:
    """The weights that a run began with, by reward, from its `run.json`."""
    found = {entry["name"]: as_number(entry.get("weight")) for entry in recorded_rewards(about)}
    return {name: weight for name, weight in found.items() if math.isfinite(weight)}


def recorded_rewards(about: Row) -> list[Row]:
    """The rewards that a run began with: name, weight, range, columns, and whether it decides what is right."""
    found = about.get("rewards")
    entries = found.get("rewards") if isinstance(found, dict) else None
    return [entry for entry in entries or () if isinstance(entry, dict) and isinstance(entry.get("name"), str)]


def read_run(
    folder: Path | str,
    name: str | None = None,
    weights: Mapping[str, float] | None = None,
    correctness: Sequence[str] = (),
    need_steps: bool = True,
) -> Record:
    """The run in a folder, of this project or of any TRL trainer, as far as it has come.

    Args:
        name: what legends call it; the folder's name if None.
        weights: by reward, for a folder that does not keep them (a plain TRL one); without, those that the log's totals
            follow from, or 1.
        correctness: the rewards that decide what is right, where the run does not say and `health.CORRECTNESS` has none.
        need_steps: refuse a run without a training step; otherwise its log is empty.

    Raises MissingInputError for a folder that is no run, and ValueError where no step is there yet.
    """
    folder, notes = Path(folder).expanduser(), []
    ours = (folder / "log.jsonl").exists() or (folder / "run.json").exists()
    if ours:
        about, rows = read_about(folder, notes), read_rows(folder / "log.jsonl", notes)
    else:
        about, rows = {}, read_history(folder, notes)
    if rows is None:
        raise MissingInputError(not_a_run(folder))
    log, evaluations = split(rows, notes, about)
    if log.empty and need_steps:
        raise ValueError(no_steps(folder, ours, about))
    record = Record(
        folder,
        name or folder.resolve().name,
        "ours" if ours else "trl",
        about,
        log,
        evaluations,
        read_rows(folder / "events.jsonl", notes),
        read_rows(folder / "printed.jsonl", notes),
        notes,
        readable(folder, "completions", notes),
        readable(folder, "held_out", notes),
        dict(weights or {}),
        tuple(correctness),
    )
    if unknown := [
        one for one in (*record.given_weights, *correctness) if len(log) and one not in record.reward_names()
    ]:
        raise ValueError(
            f"There is no reward {unknown[0]!r} in {folder}: its rewards are {', '.join(record.reward_names())}."
        )
    if ours or weights or log.empty:
        return record
    return dataclasses.replace(record, given_weights=weights_behind(record, notes))


def weights_behind(record: Record, notes: list[str]) -> dict[str, float]:
    """The weights that the logged totals follow from, for a run that does not keep them; {} where they cannot be told."""
    names = record.reward_names()
    table = (
        record.log[[*(f"rewards/{name}/mean" for name in names), "reward"]].replace([np.inf, -np.inf], np.nan).dropna()
    )
    means, totals = table.to_numpy()[:, :-1], table.to_numpy()[:, -1:]
    if not names or not len(table) or np.allclose(means.sum(axis=1, keepdims=True), totals, atol=TOTAL_ERROR):
        return {}
    solved, _, rank, _ = np.linalg.lstsq(means, totals, rcond=1e-6)
    if rank == len(names) < len(table) and np.allclose(means @ solved, totals, atol=TOTAL_ERROR):
        found = {name: float(f"{weight:.3g}") for name, weight in zip(names, solved[:, 0])}
        notes.append(
            f"weights as the log's totals tell them: {', '.join(f'{name} {w:g}' for name, w in found.items())}"
        )
        return found
    notes.append(
        "the totals are not the plain sums of the rewards, and their weights are not known: all count as 1 (give `weights`)"
    )
    return {}


def from_rows(rows: Iterable[Row], events: Iterable[Row] = (), about: Row | None = None, name: str = "run") -> Record:
    """A record of rows as they are in `log.jsonl`, without a folder."""
    notes: list[str] = []
    log, evaluations = split(rows, notes, about or {})
    return Record(Path(), name, "ours", about or {}, log, evaluations, list(events), [], notes, [])


def not_a_run(folder: Path) -> str:
    if not folder.exists():
        return f"{folder} is not there: run notebook {MADE_BY} first, which makes outputs/run, or name the folder of another run."
    inside = [path.parent for path in sorted(folder.glob("*/log.jsonl"))]
    hint = f"There is a run in {inside[0]}." if inside else f"Notebook {MADE_BY} makes a run, in outputs/run."
    return (
        f"{folder} is no run: it has neither log.jsonl, nor {STATE}, nor checkpoint-N/{STATE}, nor completions/. {hint}"
    )


def no_steps(folder: Path, ours: bool, about: Row) -> str:
    if not ours:
        return (
            f"{folder} has no readable {STATE} with a training step, in it or in a checkpoint: the trainer writes one with each "
            "checkpoint (save_steps) and by trainer.save_state(). Wait for the first, or give a folder that has one."
        )
    stands = ": ".join(str(about[key]) for key in ("status", "reason") if about.get(key))
    return f"{folder / 'log.jsonl'} has no training step yet{f' ({stands})' * bool(stands)}: let {MADE_BY} run for a few steps."


def read_about(folder: Path, notes: list[str]) -> Row:
    try:
        found = how_it_stands(folder)
        odd = [
            name
            for name in ("model", "requested", "effective", "rewards", "steering")
            if not isinstance(found.get(name, {}), dict)
        ]
        if odd:
            notes.append(f"run.json is damaged at {', '.join(odd)}: what stands there is left out")
        return {name: value for name, value in found.items() if name not in odd}
    except FileNotFoundError:
        notes.append("run.json is missing: settings, weights and status are not known")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        notes.append("run.json is damaged: settings, weights and status are not known")
    return {}


def read_rows(path: Path, notes: list[str]) -> list[Row]:
    """The rows of a JSONL file, none for a missing one; notes how many lines could not be read."""
    rows, lost = [], 0
    try:
        with path.open("rb") as lines:  # bytes: a line may be cut within a character
            for line in filter(bytes.strip, lines):
                row = row_in(line)
                rows += [row] if row is not None else []
                lost += row is None
    except FileNotFoundError:
        return []
    if lost:
        notes.append(f"{lost} half-written line{'s' * (lost > 1)} of {path.name} left out")
    return rows


def row_in(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def read_history(folder: Path, notes: list[str]) -> list[Row] | None:
    """TRL's log: of the folder or of the newest checkpoint, whichever went further; None where there is none."""
    checkpoints = sorted((p for p in folder.glob("checkpoint-*") if step_of(p) >= 0), key=step_of, reverse=True)
    found: list[list[Row]] = []
    for place in (folder, *checkpoints):
        try:
            history = json.loads((place / STATE).read_text(encoding="utf-8"))["log_history"]
            found.append([row for row in history if isinstance(row, dict)])
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError):
            notes.append(f"{relative(place / STATE)} is damaged and left out")
            continue
        if place != folder:
            break
    if not found and not notes and not any(folder.glob("completions/completions_*.parquet")):
        return None
    return max(found, key=lambda rows: max((step_in(row) or 0 for row in rows), default=0), default=[])


def readable(folder: Path, kind: str, notes: list[str]) -> list[Path]:
    """The Parquet files of `completions` or `held_out` whose footer can be read, in the order of their steps."""
    files = sorted((p for p in folder.glob(f"{kind}/{kind}_*.parquet") if step_of(p) >= 0), key=step_of)
    whole = [path for path in files if has_footer(path)]
    if lost := [path.name for path in files if path not in whole]:
        notes.append(
            f"{len(lost)} half-written file{'s' * (len(lost) > 1)} of {kind} left out: {lost[0]}{' …' * (len(lost) > 1)}"
        )
    return whole


def has_footer(path: Path) -> bool:
    try:
        pyarrow.parquet.read_metadata(path)
    except (OSError, pyarrow.ArrowException):
        return False
    return True


def split(rows: Iterable[Row], notes: list[str], about: Row) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The training steps and the evaluations of a log, of a step that is there twice the last."""
    steps: dict[int, Row] = {}
    evaluated: dict[int, Row] = {}
    again = lost = second = 0
    for row in rows:
        step = step_in(row)
        training = "reward" in row
        second += not training and "loss" in row
        evaluation = {name[len("eval_") :]: value for name, value in row.items() if name.startswith("eval_")}
        if step is None:
            lost += training or bool(evaluation)
        elif training:  # asked first: a reward may log a metric called eval_…
            again += step in steps
            steps[step] = row
        elif evaluation:
            evaluated.setdefault(step, {}).update(evaluation)
    if second:
        notes.append(
            f"{second} step{'s' * (second > 1)} that went over a batch once more have no reward and are left out"
        )
    if lost:
        notes.append(f"{lost} row{'s' * (lost > 1)} of the log without a step left out")
    if again:
        notes.append(f"{again} step{'s' * (again > 1)} logged twice: the last row counts")
    log = as_log(steps)
    if about.get("requested", {}).get("scale_rewards") == "batch" and BY_GROUP in log:
        notes.append(
            f"{BY_GROUP} left out: with scale_rewards = batch TRL counts whole steps without spread, and not groups"
        )
        log = log.drop(columns=BY_GROUP)
    return log, as_evaluations(evaluated)


def step_in(row: Row) -> int | None:
    value = as_number(row.get("step"))
    return int(value) if 0 <= value < 2**53 else None


def as_number(value: Any) -> float:
    """The value as a float; NaN for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def numeric(table: pd.DataFrame) -> pd.DataFrame:
    """The table with every column as floats, NaN for what is no number."""
    columns = {name: values if values.dtype.kind in "fiub" else values.map(as_number) for name, values in table.items()}
    return pd.DataFrame(columns, index=table.index, dtype=float)


def as_log(steps: Mapping[int, Row]) -> pd.DataFrame:
    order = sorted(steps)
    index = pd.Index(order, dtype=int, name="step")
    table = numeric(pd.DataFrame([steps[step] for step in order], index=index))
    return table.assign(step=np.array(order, dtype=int))


def as_evaluations(evaluated: Mapping[int, Row]) -> pd.DataFrame:
    order = sorted(evaluated)
    table = numeric(pd.DataFrame([evaluated[step] for step in order], index=range(len(order))))
    names = {name: name[len("rewards/") : -len("/mean")] for name in table if run_log.is_mean(name)}
    table = table.drop(columns=[name for name in table if name == "step" or name in names.values()]).rename(
        columns=names
    )
    table = table.drop(columns=["step", "n"], errors="ignore") if {"step", "n"} & set(names.values()) else table
    table = table.assign(n=table["n"] if "n" in table else np.nan)
    table.insert(0, "step", order)
    return table
