"""Several runs beside each other, grouped by what differs in their settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.files import Row
from lab.read import run_labels, run_record
from lab.read.run_record import RunRecord
from lab.show.event_marks import regimes
from lab.show.figure_style import (
    COLOURS,
    DASHES,
    GREY,
    caption,
    extremes,
    finite,
    panel,
    shorten,
    smooth,
    styled,
    thin,
)

SCORE, TOTAL = "mean score", "weighted sum"


def compare_figure(
    records: Sequence[RunRecord], by: Callable[[RunRecord], str] | None = None, title: str = ""
) -> Figure:
    """Runs beside each other: total reward, correctness (or each shared reward), KL and length.

    Runs of one label are drawn as their mean, with a band from the lowest to the highest, up to where the shortest ends.

    Args:
        by: a record's label; by default runs are labelled by the settings in which they differ, their seed apart.

    Raises ValueError without a run.
    """
    if not records:
        raise ValueError("There is no run to compare: give what lab.read.run_record.read_run returns for each.")
    groups, panels = group_runs(records, by), compared_panels(records)
    rows = -(-len(panels) // 2)
    with styled():
        figure, axes = plt.subplots(rows, 2, figsize=(9, 2.7 * rows + 0.9), layout="constrained", squeeze=False)
        for place, one in zip(axes.flat, panels):
            draw_compared(place, groups, one)
        for place in axes.flat[len(panels) :]:
            place.set_visible(False)
        handles = [plt.Line2D([], [], linewidth=2, label=group.entry, **group.look) for group in groups]
        columns = max(1, min(3, len(handles), 120 // (max(len(group.entry) for group in groups) + 8)))
        look = {"handlelength": 3, "title": title or None, "title_fontsize": 12, "alignment": "left"}
        figure.legend(handles=handles, loc="outside upper left", ncols=columns, **look)
        several = any(len(group.records) > 1 for group in groups)
        bands = "; bands: lowest to highest of the runs of a label" if several else ""
        caption(figure, [f"Lines are smoothed{bands}.", *what_differs(groups)])
    return figure


class Group(NamedTuple):
    """Runs that differ by their seed alone, drawn as one line."""

    letter: str  # stands for the label, which may be long, in the caption
    label: str
    records: list[RunRecord]
    look: Row

    @property
    def entry(self) -> str:
        """For the legend."""
        many = f" (n = {len(self.records)})" if len(self.records) > 1 else ""
        return f"{self.letter}: {shorten(self.label, 90)}{many}"


def group_runs(records: Sequence[RunRecord], by: Callable[[RunRecord], str] | None) -> list[Group]:
    """The runs by their label, each group with a colour and a dash."""
    found: dict[str, list[RunRecord]] = {}
    for record, label in zip(records, [by(record) for record in records] if by else run_labels.label_runs(records)):
        found.setdefault(label, []).append(record)
    groups = []
    for nth, (label, ones) in enumerate(found.items()):
        look = {"color": COLOURS[nth % len(COLOURS)], "linestyle": DASHES[nth % len(DASHES)]}
        groups.append(Group(chr(ord("A") + nth) if nth < 26 else f"#{nth + 1}", label, ones, look))
    return groups


class Compared(NamedTuple):
    title: str
    unit: str
    pick: Callable[[RunRecord], pd.Series]  # what is drawn of a record, by step
    how: str = "mean"  # how it is smoothed


def compared_panels(records: Sequence[RunRecord]) -> list[Compared]:
    """Total reward, correctness (or what rewards all runs share), KL and length."""

    def column(name: str) -> Callable[[RunRecord], pd.Series]:
        return lambda record: record.log.get(name, pd.Series(dtype=float))

    middle = [Compared("Correctness", SCORE, run_record.mean_correctness)]
    if not all(run_record.mean_correctness(record).notna().any() for record in records):
        shared = shared_rewards(records)[:4]
        middle = [
            Compared(name, SCORE, lambda record, name=name: run_record.mean_scores(record)[name]) for name in shared
        ]
    return [
        Compared("Total reward", TOTAL, column("reward")),
        *middle,
        Compared("Distance from the base policy", "KL, nats a token", column("kl"), "median"),
        Compared("Completion length", "tokens", column("completions/mean_length")),
    ]


def shared_rewards(records: Sequence[RunRecord]) -> list[str]:
    """The rewards that all runs have, without version."""
    every = [list(run_record.mean_scores(record)) for record in records]
    return [name for name in every[0] if all(name in names for names in every)]


def draw_compared(axes: Axes, groups: Sequence[Group], what: Compared) -> None:
    """One panel: of each group a run's smoothed line, or the mean over its seeds with a band from lowest to highest."""
    last = max(min(record.log.index[-1] for record in group.records) for group in groups)
    panel(axes, what.title, what.unit, 0, last)
    for group in groups:
        picked = [(record, finite(what.pick(record))) for record in group.records]
        lines = [smooth(values, what.how, list(regimes(record))) for record, values in picked if len(values)]
        if not lines:
            continue
        table, colour = at_shared_steps(lines), group.look["color"]
        if len(lines) > 1:
            low, high = extremes(table.min(axis=1), table.max(axis=1))
            axes.fill_between(low.index, low, high, color=colour, alpha=0.15, linewidth=0)
        mean = table.mean(axis=1)
        axes.plot(thin(mean), linewidth=2, marker="o" if len(mean) == 1 else "", **group.look)
        for record, _ in picked:
            crosses = mean[[step for step in regimes(record) if step in mean.index]]
            axes.plot(crosses, "X", color=colour, markeredgecolor="black", markersize=7, zorder=4)
    if not axes.lines:
        axes.text(0.5, 0.5, "not measured in any run", transform=axes.transAxes, ha="center", color=GREY, fontsize=9)
        axes.set_yticks([])
    low, high = axes.get_ylim()
    axes.set_ylim({SCORE: (min(-0.03, low), max(1.03, high)), TOTAL: (low, high)}.get(what.unit, (0, high)))


def at_shared_steps(lines: Sequence[pd.Series]) -> pd.DataFrame:
    """The lines at the steps that all have reached, a column each, interpolated between logged steps."""
    steps = np.unique(np.concatenate([line.index for line in lines]))
    steps = steps[(steps >= max(line.index[0] for line in lines)) & (steps <= min(line.index[-1] for line in lines))]
    return pd.DataFrame({i: np.interp(steps, line.index, line) for i, line in enumerate(lines)}, index=steps)


def what_differs(groups: Sequence[Group]) -> list[str]:
    """What keeps the runs from being compared in all that is drawn, in sentences."""
    every = [(group.letter, record) for group in groups for record in group.records]
    shared = shared_rewards([record for _, record in every])

    def if_several(text_of: Callable[[RunRecord], str]) -> list[str]:
        """Each text with the letters of its runs, where the runs do not all have the same one."""
        letters: dict[str, list[str]] = {}
        for letter, record in every:
            letters.setdefault(text_of(record), []).append(letter)
        letters.pop("", None)
        texts = [f"{text} ({', '.join(dict.fromkeys(ones))})" for text, ones in letters.items()]
        return texts if len(texts) > 1 else []

    def weights(record: RunRecord) -> str:
        return " + ".join(f"{name} × {weight:g}" for name, weight in sorted(run_record.last_weights(record).items()))

    lacking = [
        (name, letter) for letter, record in every for name in run_record.mean_scores(record) if name not in shared
    ]
    changed = [(text, letter) for letter, record in every for text in regimes(record).values()]
    said = {
        "The totals are not on one scale, for the weights differ; at the end: ": if_several(weights),
        "Correctness is what different rewards say: ": if_several(
            lambda record: " and ".join(run_record.deciding_names(record))
        ),
        "Not in all runs, so in their totals only: ": [f"{name} ({letter})" for name, letter in lacking],
        "✕: from here on the total is another sum: ": [f"{text} ({letter})" for text, letter in changed],
        "The rewards' sources differ: scores of one name may measure different things: ": if_several(
            lambda record: record.about.get("rewards", {}).get("source_sha256", "")[:8]
        ),
        "KL was not measured, because beta is 0: ": [letter for letter, record in every if "kl" not in record.log],
        "Drawn up to where the shortest of its runs ends: ": [
            group.letter for group in groups if len({record.log.index[-1] for record in group.records}) > 1
        ],
    }
    return [f"{what}{', '.join(dict.fromkeys(parts))}." for what, parts in said.items() if parts]
