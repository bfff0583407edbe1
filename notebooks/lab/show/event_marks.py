"""What happened in a run (an edited reward, new weights, a stop), as lettered lines over its curves."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lab.read import reward_names, run_record
from lab.read.run_record import RunRecord
from lab.show.figure_style import GREY, SMALL, panel

LETTERED = 8  # marks with a letter and a line in the key; the others are faint lines, and counted
AT_MOST = 5  # changes of a setting that are marked; one that changes more often is a curve of its own


class Mark(NamedTuple):
    at: float  # between two steps
    rank: int  # the lower, the sooner it gets a letter
    text: str


def marked_panel(axes: Axes, record: RunRecord, title: str, unit: str) -> None:
    """An empty panel of a run's figure: its steps from left to right, with the marks."""
    steps = [*record.log.index[[0, -1]], *record.evaluations["step"]]
    panel(axes, title, unit, min(steps), max(steps))
    found = marks(record)
    lettered = letter_marks(record)
    strong = {mark.at for group in lettered for mark in group}
    for mark in found:
        look = {"color": GREY, "alpha": 1 if mark.at in strong else 0.35, "linestyle": (0, (2, 2))}
        axes.axvline(mark.at, linewidth=0.8, zorder=0.5, **look)
    for letter, group in zip("abcdefgh", lettered):
        place = float(np.mean([mark.at for mark in group])), 1.01
        look = {"ha": "center", "va": "bottom", "fontsize": SMALL, "fontweight": "bold", "color": GREY}
        axes.text(*place, letter, transform=axes.get_xaxis_transform(), **look)
    if found:
        axes.set_title(title, pad=13)  # room for the letters


def marks_in_words(record: RunRecord) -> str:
    """The key to the letters, in one line."""
    lettered, more = letter_marks(record), len(marks(record)) - LETTERED
    key = [f"{letter}:\xa0{', '.join(mark.text for mark in group)}" for letter, group in zip("abcdefgh", lettered)]
    return "; ".join([*key, *([f"{more} more without a letter"] if more > 0 else [])])


def letter_marks(record: RunRecord) -> list[list[Mark]]:
    """The weightiest marks, in the order of the steps. Marks that nearly touch share a letter."""
    weightiest = sorted(sorted(marks(record), key=lambda mark: mark.rank)[:LETTERED])
    near, groups = 0.03 * np.ptp(record.log.index), []
    for mark in weightiest:
        if groups and mark.at - groups[-1][0].at < near:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    return groups


def marks(record: RunRecord) -> list[Mark]:
    """What happened in a run, in the order of the steps. Several events at one place are one mark."""
    found = [*event_marks(record), *weight_marks(record), *temperature_marks(record)]
    if (status := record.about.get("status")) in ("stopped", "killed") and len(record.log):
        found.append(Mark(record.log.index[-1] + 0.5, 1, f"{status} after step {record.log.index[-1]}"))
    merged = []
    for at, same in itertools.groupby(sorted(found, key=lambda mark: mark.at), key=lambda mark: mark.at):
        ranks, texts = zip(*((mark.rank, mark.text) for mark in same))
        counted = [f"{text} ({n} times)" if n > 1 else text for text, n in Counter(texts).items()]
        merged.append(Mark(at, min(ranks), ", ".join(counted)))
    return merged


def event_marks(record: RunRecord) -> Iterator[Mark]:
    for event in record.events:
        step, kind = run_record.step_number(event), event.get("kind")
        if step is not None and kind == "reward_changed":
            yield Mark(step - 0.5, 0, f"{event.get('name')} from step {step}")
        elif step is not None and kind in ("resumed", "failed", "interrupted"):
            yield Mark(step + 0.5, 3 if kind == "resumed" else 1, f"{kind} after step {step}")


def weight_marks(record: RunRecord) -> Iterator[Mark]:
    """Where weights changed. Where they adapt at every step, only the stages are marked."""
    weights = record.weights()
    versions = [reward_names.split_version(name)[0] for name in weights]
    joined = weights.T.groupby(versions).first().T if versions else weights
    steps = changes(joined)
    if len(steps) > AT_MOST:
        for start, *_ in record.about.get("steering", {}).get("stages") or []:
            if start:
                yield Mark(start + 0.5, 2, f"next stage of weights from step {start + 1}")
        return
    for before, step in steps:
        pairs = zip(joined, joined.loc[before], joined.loc[step])
        changed = [f"{name} {old:.3g}→{new:.3g}" for name, old, new in pairs if differs(old, new)]
        yield Mark(step - 0.5, 2, f"weights from step {step}: {', '.join(changed)}")


def temperature_marks(record: RunRecord) -> Iterator[Mark]:
    table = record.log.filter(["temperature"])
    steps = changes(table)
    for before, step in steps if len(steps) <= AT_MOST else ():
        old, new = table["temperature"][[before, step]]
        yield Mark(step - 0.5, 2, f"temperature from step {step}: {old:.3g}→{new:.3g}")


def regimes(record: RunRecord) -> dict[int, str]:
    """The steps from which the total is another sum, because a reward was edited or weights changed: step -> what."""
    edits = {step: f"{name} from step {step}" for step, name in run_record.edited_rewards(record).items()}
    return dict(sorted((edits | {int(mark.at + 0.5): mark.text for mark in weight_marks(record)}).items()))


def differs(old: float, new: float) -> bool:
    """Whether a setting differs by more than float32 rounding. An unknown (NaN) one differs from none."""
    return bool(abs(old - new) > 1e-5 * max(abs(old), abs(new)))


def changes(table: pd.DataFrame) -> list[tuple[int, int]]:
    """The pairs of neighbouring steps between which a setting changed."""
    known = table.ffill()
    moved = (known.diff().abs() > 1e-5 * known.abs().clip(lower=known.shift().abs())).any(axis=1).to_numpy()
    return [(table.index[i - 1], table.index[i]) for i in np.flatnonzero(moved)]
