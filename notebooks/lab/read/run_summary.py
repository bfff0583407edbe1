"""Runs side by side: what they have come to, by which settings they differ; and a diagnosis of one for a file."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.files import Row
from lab.read import health, health_rules
from lab.read.reward_names import matching_rewards
from lab.read.run_record import RunRecord, as_number, deciding_names, mean_correctness
from lab.train.run_folder import FREE_AT_RESUME

LAST = 10  # steps: what a run has come to is the mean of its last ten, as the health monitor's windows
# Two runs of one experiment may differ in these. The rewards' weights are compared by name, apart from this list.
NOT_SETTINGS = {*FREE_AT_RESUME, *"seed data_seed reward_weights logging_nan_inf_filter name backend".split()}
AT_MOST = 3  # differences in a label


def summarize_runs(records: Sequence[RunRecord]) -> pd.DataFrame:
    """A row a run: its label, steps, seconds, and what it has come to: the mean of the last 10 steps, of KL the median."""
    lines = []
    for record, label in zip(records, label_runs(records)):
        log = record.log.replace([np.inf, -np.inf], np.nan)
        last = log.reindex(columns=["reward", "kl", "completions/mean_length"]).iloc[-LAST:]
        measured = matching_rewards(record.evaluations, record.deciders())
        held_out = record.evaluations[measured].mean(axis=1).dropna()
        seconds = log["step_time"].sum() if "step_time" in log else 0.0
        lines.append(
            {
                "run": name_of_run(record),
                "group": label,
                "steps": last_step(record),
                "seconds": as_number(record.about.get("seconds", seconds)),
                "reward": last["reward"].mean(),
                "correctness": mean_correctness(record).iloc[-LAST:].mean(),
                "held-out correctness": held_out.iloc[-1] if len(held_out) else np.nan,
                "kl": last["kl"].median(),  # single steps of it are wild
                "tokens": last["completions/mean_length"].mean(),
            }
        )
    return pd.DataFrame(lines).set_index("run")


def label_runs(records: Sequence[RunRecord]) -> list[str]:
    """A label a record: the settings in which the runs differ. Runs that differ by their seed alone get the same label.

    A run with a name of its own that no other seed shares, or without `run.json`, goes by its name.
    """
    settings = [{name: words(name, value) for name, value in run_settings(record).items()} for record in records]
    # an older version of the notebook may not have had a setting: that is no difference
    names = dict.fromkeys(name for each in settings for name in each)
    apart = [name for name in names if len({each[name] for each in settings if name in each}) > 1]
    differences = [tuple(each[name] for name in apart if name in each) for each in settings]
    labels = []
    for record, own, parts in zip(records, settings, differences):
        alike = {name_of_run(other) for other, its_parts in zip(records, differences) if its_parts == parts}
        if not own or has_own_name(record) and len(alike) == 1:
            labels.append(name_of_run(record))
        else:
            more = f" and {len(parts) - AT_MOST} more" if len(parts) > AT_MOST else ""
            labels.append(", ".join(parts[:AT_MOST]) + more or own["model"].removeprefix("model "))
    return labels


def run_settings(record: RunRecord) -> Row:
    """What a run was made with, as far as it makes another run of it: settings, model, weights, steering, reward sources."""
    about, model = record.about, dict(record.about.get("model", {}))
    name = model.pop("shown", model.get("name"))
    found = {"model": name, "rewards": record.recorded_weights(), "learning_rate": None, "beta": None}
    found |= {**model, **about.get("requested", {}), **about.get("steering", {})}
    found["reward sources"] = about.get("rewards", {}).get("source_sha256", "")[:8]
    return {name: value for name, value in found.items() if name not in NOT_SETTINGS} if about else {}


def words(name: str, value: Any) -> str:
    """A setting as a label has it; a long list goes by a number of its own."""
    if name == "rewards":
        return " + ".join(f"{reward} × {weight:g}" for reward, weight in value.items())
    if isinstance(value, list | dict):
        text = json.dumps(value, default=str)
        return f"{name} {text if len(text) <= 24 else f'#{zlib.crc32(text.encode()):08x}'}" if value else f"no {name}"
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def has_own_name(record: RunRecord) -> bool:
    """Whether a person gave the run its name; otherwise it is its folder's."""
    return record.name not in ("run", record.folder.resolve().name)


def name_of_run(record: RunRecord) -> str:
    """A run's name; with the folder above it where it is only its folder's, since many are called run."""
    own = has_own_name(record) or record.folder == Path()
    return record.name if own else f"{record.folder.resolve().parent.name}/{record.name}"


def last_step(record: RunRecord) -> int:
    return int(record.log.index[-1]) if len(record.log) else 0


def diagnosis_report(record: RunRecord) -> Row:
    """What `lab.read.health` finds in a run, ready for JSON: the findings worst first, the trend, and every threshold used."""
    rules = {rule.name: {"measures": rule.measures, "sense": rule.limit[0]} for rule in health_rules.RULES}
    findings = health.worst_first(health.diagnose(record.log, correctness=record.deciders()))
    constants = {name: value for name, value in vars(health_rules).items() if name.isupper()}
    return without_nan(
        {
            "run": record.name,
            "status": record.about.get("status"),
            "steps": last_step(record),
            "decided_by": deciding_names(record),
            "notes": record.notes,
            "findings": [{**finding._asdict(), **rules[finding.rule]} for finding in findings],
            "convergence": health.convergence(record.log)._asdict(),
            "thresholds": {name: value for name, value in constants.items() if isinstance(value, int | float)},
        }
    )


def without_nan(value: Any) -> Any:
    """The value with None for every number that JSON cannot hold."""
    if isinstance(value, dict):
        return {name: without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
