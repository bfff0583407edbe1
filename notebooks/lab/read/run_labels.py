"""Labels for several runs: by which settings they differ, and how each is called."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.files import Row
from lab.read.run_record import RunRecord
from lab.train.run_folder import FREE_AT_RESUME

# Two runs of one experiment may differ in these. The rewards' weights are compared by name, apart from this list.
NOT_SETTINGS = {*FREE_AT_RESUME, *"seed data_seed reward_weights logging_nan_inf_filter name backend".split()}
FIRST = "model rewards learning_rate beta temperature num_generations loss_type".split()  # what a label names first
AT_MOST = 3  # differences in a label


def label_runs(records: Sequence[RunRecord]) -> list[str]:
    """A label a record: the settings that other runs do not share. Runs that differ by their seed alone get the same label.

    A name that was given to `read_run` goes before; a run without `run.json` goes by its name.
    """
    settings = [run_settings(record) for record in records]
    known = [each for each in settings if each]
    texts = [{name: setting_in_words(name, value, known) for name, value in each.items()} for each in settings]
    # an older version of the notebook may not have had a setting: that is no difference
    names = dict.fromkeys(name for each in known for name in each)
    apart = [name for name in names if len({text[name] for text in texts if name in text}) > 1]
    groups = [tuple(text.get(name, "") for name in apart) if text else i for i, text in enumerate(texts)]
    given = {group: {name_of_run(r) for r, its in zip(records, groups) if its == group} for group in groups}
    labels = []
    for record, group, its_settings in zip(records, groups, settings):
        shared = [other for other in given if given[other] & given[group]]
        if len(given[group]) == 1 and len(shared) == 1 and has_own_name(record):
            labels.append(record.name)
        elif isinstance(group, int):
            labels.append(name_of_run(record))
        else:
            parts = [text for text in group if text]
            more = f" and {len(parts) - AT_MOST} more" if len(parts) > AT_MOST else ""
            labels.append(", ".join(parts[:AT_MOST]) + more or its_settings["model"] or name_of_run(record))
    return labels


def run_settings(record: RunRecord) -> Row:
    """What a run was made with, as far as it makes another run of it: settings, model, weights, steering, reward sources."""
    about, model = record.about, dict(record.about.get("model", {}))
    name = model.pop("shown", model.get("name"))
    found = {"model": name, **model, **about.get("requested", {}), **about.get("steering", {})}
    if weights := record.recorded_weights():
        found["rewards"] = weights
    if source := about.get("rewards", {}).get("source_sha256"):
        found["reward sources"] = source[:8]
    order = [*FIRST, *(name for name in found if name not in FIRST)]
    return {name: found[name] for name in order if name in found and name not in NOT_SETTINGS}


def setting_in_words(name: str, value: Any, runs: Sequence[Row]) -> str:
    """A setting as a label has it; a long list goes by a number of its own."""
    if name == "rewards":
        return weights_in_words(value, [settings.get(name, {}) for settings in runs])
    if isinstance(value, list | dict):
        text = json.dumps(value, default=str)
        return f"{name} {text if len(text) <= 24 else f'#{zlib.crc32(text.encode()):08x}'}" if value else f"no {name}"
    return "" if value is None else f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def weights_in_words(weights: Mapping[str, float], others: Sequence[Mapping[str, float]]) -> str:
    """The rewards and weights that are not the same in all runs."""
    own = [f"{name} × {w:g}" for name, w in weights.items() if any(other.get(name) != w for other in others)]
    lacking = dict.fromkeys(f"no {name}" for other in others for name in other if name not in weights)
    return " + ".join(own or lacking)


def has_own_name(record: RunRecord) -> bool:
    """Whether a person gave the run its name; otherwise it is its folder's."""
    return record.name not in ("run", record.folder.resolve().name)


def name_of_run(record: RunRecord) -> str:
    """A run's name; with the folder above it where it is only its folder's, since many are called run."""
    own = has_own_name(record) or record.folder == Path()
    return record.name if own else f"{record.folder.resolve().parent.name}/{record.name}"
