"""What runs have come to, as a table for a person; and what the health rules say of a run, for a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lab.files import Row
from lab.read import health, health_rules
from lab.read.reward_names import matching_rewards
from lab.read.run_labels import label_runs, name_of_run
from lab.read.run_record import RunRecord, as_number, deciding_names, mean_correctness

LAST = 10  # steps: what a run has come to is the mean of its last ten, as the health monitor's windows


def summarize_runs(records: Sequence[RunRecord]) -> pd.DataFrame:
    """A row a run: its label, steps, seconds, and what it has come to: the mean of the last 10 steps, of KL the median."""
    lines = []
    for record, label in zip(records, label_runs(records)):
        log = record.log.replace([np.inf, -np.inf], np.nan)
        last = log.reindex(columns=["reward", "kl", "completions/mean_length"]).iloc[-LAST:]
        measured = matching_rewards(record.evaluations, record.deciders())
        held_out = record.evaluations[measured].mean(axis=1).dropna()
        lines.append(
            {
                "run": name_of_run(record),
                "group": label,
                "steps": last_step(record),
                "seconds": as_number(
                    record.about.get("seconds", log["step_time"].sum() if "step_time" in log else 0.0)
                ),
                "reward": last["reward"].mean(),
                "correctness": mean_correctness(record).iloc[-LAST:].mean(),
                "held-out correctness": held_out.iloc[-1] if len(held_out) else np.nan,
                "kl": last["kl"].median(),  # single steps of it are wild
                "tokens": last["completions/mean_length"].mean(),
            }
        )
    return pd.DataFrame(lines).set_index("run")


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
