"""Runs side by side: what they have come to, by which settings they differ; and a diagnosis of one for a file."""

import json
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
                "steps": int(record.log.index[-1]),
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
    """A label a record: the settings in which the runs differ, their seed apart; without `run.json` the run's name."""
    settings = [{name: words(name, value) for name, value in run_settings(record).items()} for record in records]
    # an older version of the notebook may not have had a setting: that is no difference
    names = dict.fromkeys(name for each in settings for name in each)
    apart = [name for name in names if len({each[name] for each in settings if name in each}) > 1]
    labels = []
    for record, own in zip(records, settings):
        parts = [own[name] for name in apart if name in own]
        more = f" and {len(parts) - AT_MOST} more" if len(parts) > AT_MOST else ""
        same = own["model"].removeprefix("model ") if own else name_of_run(record)
        labels.append(", ".join(parts[:AT_MOST]) + more or same)
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


def name_of_run(record: RunRecord) -> str:
    """The name of a run's folder with the folder above it, since many are called run."""
    return record.name if record.folder == Path() else f"{record.folder.resolve().parent.name}/{record.name}"


def diagnosis_report(record: RunRecord) -> Row:
    """What `lab.read.health` finds in a run, ready for JSON: the findings worst first, the trend, and every threshold used."""
    rules = {rule.name: {"measures": rule.measures, "sense": rule.limit[0]} for rule in health_rules.RULES}
    findings = health.worst_first(health.diagnose(record.log, correctness=record.deciders()))
    constants = {name: value for name, value in vars(health_rules).items() if name.isupper()}
    report = {
        "run": record.name,
        "status": record.about.get("status"),
        "steps": int(record.log.index[-1]),
        "decided_by": deciding_names(record),
        "notes": record.notes,
        "findings": [{**finding._asdict(), **rules[finding.rule]} for finding in findings],
        "convergence": health.convergence(record.log)._asdict(),
        "thresholds": {name: value for name, value in constants.items() if isinstance(value, int | float)},
    }
    return json.loads(json.dumps(report), parse_constant=lambda _: None)  # JSON has no NaN and no infinity
