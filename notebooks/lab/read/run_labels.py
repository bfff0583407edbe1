"""Several runs in one table: by which settings they differ, and how each is called."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.files import Row
from lab.read import health, health_rules, run_log
from lab.read.run_record import Record, as_number, recorded_weights
from lab.train.run_folder import FREE_AT_RESUME

LAST = 10  # steps: what a run has come to is the mean of its last ten, as the health monitor's windows
NOT_SETTINGS = (  # in which two runs of one experiment may differ; the rewards' weights are told by name
    *FREE_AT_RESUME,
    "seed",
    "data_seed",
    "reward_weights",
    "logging_nan_inf_filter",
    "name",
    "backend",
)
FIRST = (
    "model",
    "rewards",
    "learning_rate",
    "beta",
    "temperature",
    "num_generations",
    "loss_type",
)  # of what a label names, and
AT_MOST = 3  # differences in all


def scores(record: Record) -> pd.DataFrame:
    """Each reward's mean score by step, the versions of an edited one joined."""
    means = {name: record.log[name].to_numpy() for name in record.log.columns if run_log.is_mean(name)}
    return pd.DataFrame(run_log.join_versions(means)[0], index=record.log.index, dtype=float)


def deciding(record: Record) -> list[str]:
    """Those of the logged rewards that decide what is right, without version."""
    return [name for name in scores(record) if run_log.is_one_of(name, record.correctness())]


def correct(record: Record) -> pd.Series:
    """The score of the reward that decides what is right, by step; the mean of several; NaN where there is none."""
    return scores(record)[deciding(record)].mean(axis=1)


def edits(record: Record) -> dict[int, str]:
    """Where a later version of a reward began to score: step -> its name."""
    later = [name for name in record.reward_names() if run_log.family(name)[1] > 1]
    first = {name: record.log[f"rewards/{name}/mean"].first_valid_index() for name in later}
    return {step: name for name, step in first.items() if step is not None}


def last_weights(record: Record) -> dict[str, float]:
    """The weight of each reward at its last step in use, by name without version, rounded."""
    table = record.weights()
    found = {
        run_log.family(name)[0]: table[name].dropna()
        for name in sorted(table, key=lambda name: run_log.family(name)[1])
    }
    return {name: float(f"{values.iloc[-1]:.3g}") for name, values in found.items() if len(values)}


def settings(record: Record) -> Row:
    """What a run was made with, as far as it makes another run of it: settings, model, weights, steering, reward sources."""
    about = record.about
    model = dict(about.get("model", {}))
    found = {
        "model": model.pop("shown", model.get("name")),
        **model,
        **about.get("requested", {}),
        **about.get("steering", {}),
    }
    if weights := recorded_weights(about):
        found["rewards"] = weights
    if source := about.get("rewards", {}).get("source_sha256"):
        found["reward sources"] = source[:8]
    order = [*FIRST, *(name for name in found if name not in FIRST)]
    return {name: found[name] for name in order if name in found and name not in NOT_SETTINGS}


def labels(records: Sequence[Record]) -> list[str]:
    """A label a record: what its settings have that others have not, the same for runs that differ by their seed alone.

    A name that was given to `read` goes before; a run without `run.json` goes by its name.
    """
    all_of_them = [settings(record) for record in records]
    known = [found for found in all_of_them if found]
    names = dict.fromkeys(name for found in known for name in found)
    texts = [{name: in_words(name, found[name], known) for name in found} for found in all_of_them]
    # an older version of the notebook may not have had a setting: that is no difference
    apart = [name for name in names if len({text[name] for text in texts if name in text}) > 1]
    groups = [tuple(text.get(name, "") for name in apart) if text else i for i, text in enumerate(texts)]
    given = given_names(records, groups)
    return [given[group] or differing(group, record) for group, record in zip(groups, records)]


def differing(group: Any, record: Record) -> str:
    """The settings that set a group of runs apart, in words; the model where nothing does."""
    if isinstance(group, int):
        return called(record)
    said = [text for text in group if text]
    more = len(said) - AT_MOST
    return (
        ", ".join(said[:AT_MOST]) + (f" and {more} more" if more > 0 else "")
        or settings(record)["model"]
        or called(record)
    )


def in_words(name: str, value: Any, known: Sequence[Row]) -> str:
    """A setting as a label says it; a long list goes by a number of its own."""
    if name == "rewards":
        return rewards_in_words(value, [found.get(name, {}) for found in known])
    if isinstance(value, list | dict):
        text = json.dumps(value, default=str)
        return f"{name} {text if len(text) <= 24 else f'#{zlib.crc32(text.encode()):08x}'}" if value else f"no {name}"
    return "" if value is None else f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def rewards_in_words(weights: Mapping[str, float], others: Sequence[Mapping[str, float]]) -> str:
    """The rewards and weights that are not the same in all runs."""
    own = [
        f"{name} × {weight:g}" for name, weight in weights.items() if any(other.get(name) != weight for other in others)
    ]
    lacking = dict.fromkeys(f"no {name}" for other in others for name in other if name not in weights)
    return " + ".join(own or lacking)


def given_names(records: Sequence[Record], groups: Sequence[Any]) -> dict[Any, str]:
    """The name that was given to all runs of a group and to no other; "" where there is none."""
    found: dict[Any, set[str]] = {}
    for record, group in zip(records, groups):
        found.setdefault(group, set()).add(record.name if is_named(record) else "")
    names = [name for ones in found.values() for name in ones]
    single = {group: next(iter(ones)) if len(ones) == 1 else "" for group, ones in found.items()}
    return {group: name if names.count(name) == 1 else "" for group, name in single.items()}


def is_named(record: Record) -> bool:
    """Whether a person gave the run its name; otherwise it is its folder's."""
    return record.name not in ("run", record.folder.resolve().name)


def called(record: Record) -> str:
    """A run's name; with the folder above it where it is only its folder's, since many are called run."""
    given = is_named(record) or record.folder == Path()
    return record.name if given else f"{record.folder.resolve().parent.name}/{record.name}"


def summary(records: Sequence[Record], by: Callable[[Record], str] | None = None) -> pd.DataFrame:
    """A row a run: its group, steps, seconds, and what it has come to: the mean of the last 10 steps, of KL the median.

    Args:
        by: a record's group; those of `labels` if None.
    """
    lines = []
    for record, label in zip(records, [by(record) for record in records] if by else labels(records)):
        log, last = record.log, record.log.iloc[-LAST:]
        measured = [
            name for name in record.evaluations if run_log.is_one_of(run_log.family(name)[0], record.correctness())
        ]
        held_out = record.evaluations[measured].mean(axis=1).dropna()
        lines.append(
            {
                "run": called(record),
                "group": label,
                "steps": int(log.index[-1]) if len(log) else 0,
                "seconds": as_number(record.about.get("seconds", log.get("step_time", pd.Series(dtype=float)).sum())),
                "reward": mean_of(last, "reward"),
                "correctness": correct(record).iloc[-LAST:].mean(),
                "held-out correctness": held_out.iloc[-1] if len(held_out) else np.nan,
                "kl": median_of(last, "kl"),
                "tokens": mean_of(last, "completions/mean_length"),
            }
        )
    return pd.DataFrame(lines).set_index("run")


def median_of(table: pd.DataFrame, column: str) -> float:
    """As `mean_of`, for what has single wild steps."""
    return float(table[column].replace([np.inf, -np.inf], np.nan).median()) if column in table else np.nan


def mean_of(table: pd.DataFrame, column: str) -> float:
    """The mean of a column's finite values; NaN without any."""
    return float(table[column].replace([np.inf, -np.inf], np.nan).mean()) if column in table else np.nan


def diagnosis(record: Record) -> Row:
    """What `lab.read.health` finds in a run, ready for JSON: the findings worst first, the trend, and every threshold used."""
    rules = {rule.name: {"measures": rule.measures, "sense": rule.sense} for rule in health_rules.RULES}
    found = health.diagnose(record.log, correctness=record.correctness())
    found.sort(key=lambda finding: health.ORDER.index(finding.verdict))
    return finite_only(
        {
            "run": record.name,
            "status": record.about.get("status"),
            "steps": int(record.log.index[-1]) if len(record.log) else 0,
            "decided_by": deciding(record),
            "notes": record.notes,
            "findings": [{**finding._asdict(), **rules[finding.rule]} for finding in found],
            "convergence": health.convergence(record.log)._asdict(),
            "thresholds": {
                name: value for name, value in vars(health).items() if name.isupper() and isinstance(value, int | float)
            },
        }
    )


def finite_only(value: Any) -> Any:
    """The value with None for every number that JSON cannot hold."""
    if isinstance(value, dict):
        return {name: finite_only(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite_only(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
