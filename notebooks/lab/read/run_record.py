"""A run as every reader sees it: `read_run` reads its folder into a `RunRecord`.

Two kinds of folder are read: a run of notebook 03 (`lab.train.run_folder` lists its files), and the output directory of any
TRL trainer, of which `trainer_state.json` and `completions/` are used. A run may still be training, or may have died in
the middle of a write. Half-written lines are left out, and `RunRecord.notes` says so.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.files import ROOT, SAMPLE_RUN, MissingInputError, Row, jsonl_lines, relative
from lab.read.reward_names import join_versions, logged_rewards, matching_rewards, split_version
from lab.train.run_folder import MADE_BY, current_record, step_of
from scoring.errors import InputError
from scoring.right import USUAL_DECIDERS

TOTAL_ERROR = 2e-3  # of a total, from means that were rounded in the log
BY_GROUP = "frac_reward_zero_std"
STATE = "trainer_state.json"  # where transformers' Trainer keeps its log
# Columns of TRL, transformers and this project. Any other column of a log is what a reward logged with log_metric.
LOGGED = {
    *"step epoch loss grad_norm learning_rate reward reward_std entropy kl num_tokens step_time temperature".split(),
    *"time/generating time/scoring time/step completions/clipped_ratio completions/duplicate_share total_flos".split(),
    *"aux_loss policy_loss entropy_coef cispo_clip_ratio clip_ratio completion_length num_input_tokens_seen".split(),
    *(f"completions/{which}{kind}_length" for which in ("mean", "min", "max") for kind in ("", "_terminated")),
    *("train_tokens_per_second", BY_GROUP),
}
NAMESPACES = ("rewards/", "clip_ratio/", "sampling/", "tools/", "vespo/", "profiling/", "weight/", "train_")


@dataclass(frozen=True)
class RunRecord:
    """A run as it was read."""

    folder: Path
    name: str
    source: str  # "ours" or "trl"
    about: Row  # `run.json`, with the status "killed" where the process is gone; {} without one
    log: pd.DataFrame  # a row a training step, indexed by step; floats, NaN where nothing (or no number) was logged
    evaluations: pd.DataFrame  # a row an evaluation: step, n (problems), a column a reward and what else was measured
    events: list[Row]  # of `events.jsonl`: step, kind, …
    printed: list[Row]  # what the rewards printed: step, text
    notes: list[str]  # what was left out and why, in words
    completions: list[Path]  # Parquet files, in the order of their steps
    held_out: list[Path] = field(default_factory=list)
    given_weights: Mapping[str, float] = field(default_factory=dict)  # for a run that does not record them
    given_deciders: tuple[str, ...] = ()

    def reward_names(self) -> list[str]:
        """The logged rewards, an edited reward's versions apart: format_reward, format_reward_v2."""
        return list(logged_rewards(self.log.columns))

    def recorded_rewards(self) -> list[Row]:
        """The rewards that the run began with: name, weight, range, columns, and whether it decides what is right."""
        return list(self.about.get("rewards", {}).get("rewards", ()))

    def recorded_weights(self) -> dict[str, float]:
        return {entry["name"]: float(entry["weight"]) for entry in self.recorded_rewards() if "weight" in entry}

    def deciders(self) -> tuple[str, ...]:
        """The rewards that decide what is right: as given to `read_run`, else as `run.json` says, else the usual ones."""
        recorded = tuple(entry["name"] for entry in self.recorded_rewards() if entry.get("decides"))
        return self.given_deciders or recorded or USUAL_DECIDERS

    def usual_weight(self, name: str) -> float:
        """A reward's weight where the log has none: as given to `read_run`, else as `run.json` says, else 1."""
        known = {**self.recorded_weights(), **self.given_weights}
        return float(known.get(name, known.get(split_version(name)[0], 1.0)))

    def weights(self) -> pd.DataFrame:
        """The weight of each reward at each step, NaN where that version of it was not in use."""
        table = {name: self.log.get(f"weight/{name}", self._in_use(name)) for name in self.reward_names()}
        return pd.DataFrame(table, index=self.log.index, dtype=float)

    def weights_at(self, steps: Sequence[int]) -> pd.DataFrame:
        """The weights at these steps; a step without a row in the log has its neighbour's."""
        table = self.weights()
        return table.reindex(sorted({*table.index, *steps})).ffill().bfill().loc[list(steps)]

    def _in_use(self, name: str) -> pd.Series:
        """The usual weight from a version's first score to the next version's, NaN elsewhere."""
        (own, version), steps = split_version(name), self.log.index
        first = {split_version(other): step for step, other in edited_rewards(self).items()}
        begins = 0 if version == 1 else first.get((own, version), np.inf)
        ends = min((step for (base, n), step in first.items() if base == own and n > version), default=np.inf)
        return pd.Series(self.usual_weight(name), steps).where((steps >= begins) & (steps < ends))

    def own_metrics(self) -> list[str]:
        """What the rewards logged with `log_metric`: the columns that neither TRL nor this project writes."""
        others = [name for name in self.log.columns if name not in LOGGED and not name.startswith(NAMESPACES)]
        return [name for name in others if self.log[name].notna().any()]


def mean_scores(record: RunRecord) -> pd.DataFrame:
    """Each reward's mean score by step, the versions of an edited one joined."""
    return join_versions(record.log)[0]


def deciding_names(record: RunRecord) -> list[str]:
    """Those of the logged rewards that decide what is right, without version."""
    return matching_rewards(mean_scores(record), record.deciders())


def mean_correctness(record: RunRecord) -> pd.Series:
    """The score of the reward that decides what is right, by step; the mean of several; NaN where there is none."""
    return mean_scores(record)[deciding_names(record)].mean(axis=1)


def edited_rewards(record: RunRecord) -> dict[int, str]:
    """Where a later version of a reward began to score: step -> its name."""
    later = [name for name in record.reward_names() if split_version(name)[1] > 1]
    first = {name: record.log[f"rewards/{name}/mean"].first_valid_index() for name in later}
    return {step: name for name, step in first.items() if step is not None}


def last_weights(record: RunRecord) -> dict[str, float]:
    """The weight of each reward at its last step in use, by name without version, rounded."""
    table = record.weights()
    used = {split_version(n)[0]: table[n].dropna() for n in sorted(table, key=lambda name: split_version(name)[1])}
    return {name: float(f"{values.iloc[-1]:.3g}") for name, values in used.items() if len(values)}


def last_source(record: RunRecord) -> str | None:
    """The hash of the source of the rewards that a run ended with: that of the last edit, where there was one."""
    edits = [event for event in record.events if event.get("kind") == "reward_changed"]
    return (edits or [record.about.get("rewards", {})])[-1].get("source_sha256")


def find_run(name: str, outputs: Path) -> Path:
    """A run's folder by its path, absolute or in the repository, or by its name in `outputs`.

    Raises MissingInputError with the runs that there are.
    """
    places = [ROOT / Path(name).expanduser(), outputs / name]
    if found := next((place for place in places if place.is_dir()), None):
        return found
    there = sorted(path.parent for path in outputs.glob("*/run.json"))
    raise MissingInputError(f"There is no run {name!r}. There are: {', '.join(map(relative, [*there, SAMPLE_RUN]))}.")


def read_run(
    folder: Path | str, weights: Mapping[str, float] | None = None, correctness: Sequence[str] = ()
) -> RunRecord:
    """The run in a folder, of this project or of any TRL trainer, as far as it has come.

    Args:
        weights: by reward, for a folder that does not keep them (a plain TRL one). Without, they are fitted from the
            logged totals where that is possible, and are 1 otherwise.
        correctness: the rewards that decide what is right, where neither the run nor `scoring.right` knows them.

    Raises MissingInputError for a folder that is no run, and ValueError where no step is there yet.
    """
    folder, notes = Path(folder).expanduser(), []
    ours = (folder / "log.jsonl").exists() or (folder / "run.json").exists()
    about = read_about(folder, notes) if ours else {}
    rows = read_rows(folder / "log.jsonl", notes) if ours else read_history(folder, notes)
    if not ours and not rows and not notes and not step_files(folder, "completions"):
        raise MissingInputError(
            f"{folder} is no run: neither log.jsonl, nor {STATE} (here or in a checkpoint), nor completions/. "
            f"Run notebook {MADE_BY} first, which makes outputs/run, or name another run's folder."
        )
    log, evaluations = split_log(rows, notes, about)
    if log.empty:
        raise InputError(without_steps(folder, about))
    events, printed = (read_rows(folder / f"{name}.jsonl", notes) for name in ("events", "printed"))
    read = (folder, folder.resolve().name, "ours" if ours else "trl", about, log, evaluations, events, printed, notes)
    files = [step_files(folder, kind) for kind in ("completions", "held_out")]
    record = RunRecord(*read, *files, dict(weights or {}), tuple(correctness))
    known = record.reward_names()
    if unknown := [one for one in (*record.given_weights, *correctness) if one not in known]:
        raise InputError(f"There is no reward {unknown[0]!r} in {folder}: its rewards are {', '.join(known)}.")
    return record if ours or weights else dataclasses.replace(record, given_weights=fit_weights(record))


def record_from_rows(rows: Iterable[Row], events: Iterable[Row] = (), about: Row | None = None) -> RunRecord:
    """A record of rows as they are in `log.jsonl`, without a folder."""
    notes: list[str] = []
    log, evaluations = split_log(rows, notes, about or {})
    return RunRecord(Path(), "run", "ours", about or {}, log, evaluations, list(events), [], notes, [])


def fit_weights(record: RunRecord) -> dict[str, float]:
    """The weights that explain the logged totals, for a run that does not record them; {} where there are none."""
    names = record.reward_names()
    columns = [*(f"rewards/{name}/mean" for name in names), "reward"]
    table = record.log[columns].replace([np.inf, -np.inf], np.nan).dropna().to_numpy()
    means, totals = table[:, :-1], table[:, -1]
    if not table.size or np.allclose(means.sum(axis=1), totals, atol=TOTAL_ERROR):
        return {}
    solved, _, rank, _ = np.linalg.lstsq(means, totals, rcond=1e-6)
    if not (rank == len(names) < len(table) and np.allclose(means @ solved, totals, atol=TOTAL_ERROR)):
        record.notes.append(
            "the weights are not known, and the totals are no plain sums: all count as 1 (give `weights`)"
        )
        return {}
    weights = {name: float(f"{weight:.3g}") for name, weight in zip(names, solved)}
    words = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
    record.notes.append(f"the run did not record its weights, so they are fitted from the logged totals: {words}")
    return weights


def without_steps(folder: Path, about: Row) -> str:
    status = ": ".join(str(about[key]) for key in ("status", "reason") if about.get(key)) or "no status"
    how = f"A plain TRL trainer writes {STATE} with each checkpoint (save_steps) and by trainer.save_state()."
    return f"{folder} has no training step yet ({status}): let {MADE_BY} run for a few steps. {how}"


def read_about(folder: Path, notes: list[str]) -> Row:
    try:
        about = current_record(folder)
        parts = ("model", "requested", "effective", "rewards", "steering")
        if isinstance(about, dict) and all(isinstance(about.get(name, {}), dict) for name in parts):
            return about
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    notes.append("run.json is missing or damaged: settings, weights and status are not known")
    return {}


def read_rows(path: Path, notes: list[str]) -> list[Row]:
    """The rows of a JSONL file, none for a missing one; notes how many lines could not be read."""
    rows = [row for _, _, row in jsonl_lines(path)]
    if lost := sum(not isinstance(row, dict) for row in rows):
        notes.append(f"{count_of(lost, 'half-written line')} of {path.name} left out")
    return [row for row in rows if isinstance(row, dict)]


def read_history(folder: Path, notes: list[str]) -> list[Row]:
    """TRL's log: of the folder or of the newest checkpoint that can be read, whichever went further."""
    checkpoints = sorted((p for p in folder.glob("checkpoint-*") if step_of(p) >= 0), key=step_of, reverse=True)
    histories: list[list[Row]] = []
    for place in (place for place in (folder, *checkpoints) if (place / STATE).exists()):
        try:
            history = json.loads((place / STATE).read_text(encoding="utf-8"))["log_history"]
            histories.append([row for row in history if isinstance(row, dict)])
            if place != folder:
                break
        except (OSError, ValueError, KeyError, TypeError):
            notes.append(f"{relative(place / STATE)} is damaged and left out")
    return max(histories, key=len, default=[])


def step_files(folder: Path, kind: str) -> list[Path]:
    """The Parquet files of `completions` or `held_out`, in the order of their steps."""
    return sorted((path for path in folder.glob(f"{kind}/{kind}_*.parquet") if step_of(path) >= 0), key=step_of)


def split_log(rows: Iterable[Row], notes: list[str], about: Row) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The training steps and the evaluations of a log. Of a step that was logged twice the last row counts."""
    steps, evaluations, again = dict[int, Row](), dict[int, Row](), 0
    for row in rows:
        if (step := step_number(row)) is None:
            continue
        if "reward" in row:  # asked first: a reward may log a metric called eval_…
            again += step in steps
            steps[step] = row
        elif found := {name.removeprefix("eval_"): value for name, value in row.items() if name.startswith("eval_")}:
            evaluations.setdefault(step, {}).update(found)
    if again:
        notes.append(f"{count_of(again, 'step')} logged twice: the last row counts")
    log = as_log(steps)
    if about.get("requested", {}).get("scale_rewards") == "batch" and BY_GROUP in log:
        notes.append(f"{BY_GROUP} left out: with scale_rewards = batch TRL counts steps without spread, not groups")
        log = log.drop(columns=BY_GROUP)
    return log, as_evaluations(evaluations)


def count_of(n: int, noun: str) -> str:
    """A number with its noun: 1 step, 2 steps."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def step_number(row: Row) -> int | None:
    value = as_number(row.get("step"))
    return int(value) if 0 <= value < 2**53 else None


def as_number(value: Any) -> float:
    """The value as a float; NaN for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def as_log(rows: Mapping[int, Row]) -> pd.DataFrame:
    """The rows in the order of their steps as a table of floats, NaN for what is no number."""
    index = pd.Index(sorted(rows), dtype=int, name="step")
    table = pd.DataFrame([rows[step] for step in index], index=index)
    return table.map(as_number).astype(float).assign(step=index.to_numpy())


def as_evaluations(evaluations: Mapping[int, Row]) -> pd.DataFrame:
    """Columns step, n, each reward by its name, and what else was measured; a reward goes before a measure of its name."""
    table = as_log(evaluations)
    names = {column: name for name, column in logged_rewards(table).items()}
    table = table.drop(columns=[name for name in ("step", *names.values()) if name in table]).rename(columns=names)
    return table.assign(n=table.get("n", np.nan)).reset_index()
