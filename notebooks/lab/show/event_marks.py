"""What happened in a run (edits, weights, temperature), marked on its curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lab.read import run_labels, run_log, run_record
from lab.read.run_record import Record
from lab.show.figure_style import GREY, SMALL, span

LETTERED = 8  # marks with a letter and a line in the key; the rest are lines only, and counted
AT_MOST = 5  # changes of a setting that are marked; one that changes oftener is a curve
ENDS = ("stopped", "killed")  # statuses that no event tells of


class Mark(NamedTuple):
    at: float  # between two steps
    rank: int  # the lower, the sooner it gets a letter
    said: str


def marks(record: Record) -> list[Mark]:
    """What happened while the run went on, in the order of the steps, one mark at a place."""
    found = [*event_marks(record), *weight_marks(record), *temperature_marks(record)]
    if record.about.get("status") in ENDS and len(record.log):
        found.append(Mark(record.log.index[-1] + 0.5, 1, f"{record.about['status']} after step {record.log.index[-1]}"))
    together: dict[float, list[Mark]] = {}
    for mark in found:
        together.setdefault(mark.at, []).append(mark)
    return [merged(at, ones) for at, ones in sorted(together.items())]


def merged(at: float, ones: Sequence[Mark]) -> Mark:
    """Several marks at one place as one; what happened there again and again is counted."""
    said = list(dict.fromkeys(mark.said for mark in ones))
    times = {text: sum(mark.said == text for mark in ones) for text in said}
    text = ", ".join(f"{text} ({n} times)" if n > 1 else text for text, n in times.items())
    return Mark(at, min(mark.rank for mark in ones), text)


def event_marks(record: Record) -> Iterator[Mark]:
    for event in record.events:
        step = run_record.step_in(event)
        if step is None:
            continue
        kind = event.get("kind")
        if kind == "reward_changed":
            yield Mark(step - 0.5, 0, f"{event.get('name')} from step {step}")
        elif kind in ("resumed", "failed", "interrupted"):
            yield Mark(step + 0.5, 3 if kind == "resumed" else 1, f"{kind} after step {step}")


def weight_marks(record: Record) -> Iterator[Mark]:
    """Where weights changed, an edited reward's versions taken as one; stages only where they change at every step."""
    weights = record.weights()
    families = [run_log.family(name)[0] for name in weights]
    joined = weights.T.groupby(families).first().T if len(families) else weights
    steps = changes(joined)
    if len(steps) > AT_MOST:  # adaptive: the legend says from where to where
        stages = record.about.get("steering", {}).get("stages") or []
        yield from (
            Mark(start + 0.5, 2, f"next stage of weights from step {start + 1}") for start, *_ in stages if start
        )
        return
    for before, step in steps:
        told = [
            f"{name} {a:.3g}→{b:.3g}"
            for name, a, b in zip(joined, joined.loc[before], joined.loc[step])
            if differs(a, b)
        ]
        yield Mark(step - 0.5, 2, f"weights from step {step}: {', '.join(told)}")


def regimes(record: Record) -> dict[int, str]:
    """The steps from which on the total is another sum, with what changed: a reward was edited, or weights changed."""
    edits = {step: f"{name} from step {step}" for step, name in run_labels.edits(record).items()}
    return dict(sorted((edits | {int(mark.at + 0.5): mark.said for mark in weight_marks(record)}).items()))


def temperature_marks(record: Record) -> Iterator[Mark]:
    if "temperature" not in record.log:
        return
    table = record.log[["temperature"]]
    steps = changes(table)
    for before, step in steps if len(steps) <= AT_MOST else ():
        a, b = table["temperature"][before], table["temperature"][step]
        yield Mark(step - 0.5, 2, f"temperature from step {step}: {a:.3g}→{b:.3g}")


def differs(a: float, b: float) -> bool:
    """Whether two settings differ by more than float32 rounding; an unknown one differs from none."""
    return bool(abs(a - b) > 1e-5 * max(abs(a), abs(b)))


def changes(table: pd.DataFrame) -> list[tuple[int, int]]:
    """The pairs of neighbouring steps between which a setting changed."""
    known = table.ffill()
    moved = (known.diff().abs() > 1e-5 * known.abs().clip(lower=known.shift().abs())).any(axis=1).to_numpy()
    return [(table.index[i - 1], table.index[i]) for i in np.flatnonzero(moved)]


def lettered(found: Sequence[Mark], record: Record) -> list[tuple[str, list[Mark]]]:
    """The marks that get a letter: the weightiest, those that lie nearly on each other under one."""
    low, high = span(record)
    groups: list[list[Mark]] = []
    for mark in sorted(sorted(found, key=lambda mark: mark.rank)[:LETTERED]):
        if groups and mark.at - groups[-1][0].at < 0.03 * (high - low):
            groups[-1].append(mark)
        else:
            groups.append([mark])
    return list(zip("abcdefgh", groups))


def draw_marks(axes: Axes, record: Record) -> None:
    """A thin line for each mark, and letters over the panel."""
    found = marks(record)
    groups = lettered(found, record)
    named = {mark for _, ones in groups for mark in ones}
    for mark in found:
        axes.axvline(
            mark.at, color=GREY, alpha=1 if mark in named else 0.35, linewidth=0.8, linestyle=(0, (2, 2)), zorder=0.5
        )
    for letter, ones in groups:
        at = float(np.mean([mark.at for mark in ones]))
        axes.annotate(
            letter,
            (at, 1),
            (0, 1),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=SMALL,
            fontweight="bold",
            color=GREY,
        )
    if found:
        axes.set_title(axes.get_title(loc="left"), pad=13)  # room for the letters


def marks_in_words(record: Record) -> str:
    """The key to the letters, in one line."""
    found = marks(record)
    said = [f"{letter}:\xa0{', '.join(mark.said for mark in ones)}" for letter, ones in lettered(found, record)]
    more = len(found) - LETTERED
    return "; ".join([*said, *([f"{more} more without a letter"] if more > 0 else [])])


def panel(axes: Axes, record: Record, title: str, unit: str) -> Axes:
    """Titles, units, and what all panels of a run share: the steps from left to right, and the marks."""
    axes.set_title(title)
    axes.set_xlabel("training step")
    axes.set_ylabel(unit)
    axes.tick_params(labelsize=SMALL)
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.6g}")  # no 1e-5 in the corner, where the title is
    low, high = span(record)
    axes.set_xlim(low - 0.02 * (high - low) - 0.5, high + 0.02 * (high - low) + 0.5)
    draw_marks(axes, record)
    return axes
