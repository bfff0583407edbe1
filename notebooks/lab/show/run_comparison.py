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
from lab.read import run_labels
from lab.read.run_record import Record
from lab.show.event_marks import regimes
from lab.show.figure_style import COLOURS, DASHES, GREY, SMALL, caption, cut, finite, smooth, styled, thin
from lab.show.training_curves import ends

SCORE, TOTAL = "mean score", "weighted sum"


class Group(NamedTuple):
    """Runs that differ by their seed alone, as one line."""

    letter: str  # what the notes call it: labels may be long
    label: str
    records: list[Record]
    look: Row

    @property
    def entry(self) -> str:
        """For the legend."""
        return f"{self.letter}: {cut(self.label, 90)}" + (
            f" (n = {len(self.records)})" if len(self.records) > 1 else ""
        )


def grouped(records: Sequence[Record], by: Callable[[Record], str] | None) -> list[Group]:
    """The runs by their label, each group with its colour and dash."""
    found: dict[str, list[Record]] = {}
    for record, label in zip(records, [by(record) for record in records] if by else run_labels.labels(records)):
        found.setdefault(label, []).append(record)
    looks = [{"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i % len(DASHES)]} for i in range(len(found))]
    letters = [chr(ord("A") + i) if i < 26 else f"#{i + 1}" for i in range(len(found))]
    return [Group(letter, label, ones, look) for letter, (label, ones), look in zip(letters, found.items(), looks)]


def over_runs(lines: Sequence[pd.Series]) -> pd.DataFrame:
    """Lines of runs at the steps that all of them have reached, a column each; between logged steps by interpolation."""
    steps = np.unique(np.concatenate([line.index for line in lines]))
    steps = steps[(steps >= max(line.index[0] for line in lines)) & (steps <= min(line.index[-1] for line in lines))]
    return pd.DataFrame({i: np.interp(steps, line.index, line) for i, line in enumerate(lines)}, index=steps)


def draw_group(axes: Axes, group: Group, pick: Callable[[Record], pd.Series], how: str = "mean") -> None:
    """A run's smoothed line, or the mean over the seeds with a band from the lowest to the highest."""
    picked = [(record, finite(pick(record))) for record in group.records]
    there = [(record, smooth(values, how=how, cuts=list(regimes(record)))) for record, values in picked if len(values)]
    if not there:
        return
    table = over_runs([line for _, line in there])
    if len(there) > 1:
        low, high = ends(table.min(axis=1), table.max(axis=1))
        axes.fill_between(low.index, low, high, color=group.look["color"], alpha=0.15, linewidth=0)
    middle = thin(table.mean(axis=1))
    axes.plot(middle.index, middle, linewidth=2, **({"marker": "o"} if len(middle) == 1 else {}), **group.look)
    for record, _ in there:
        at = table.mean(axis=1)[[step for step in regimes(record) if step in table.index]]
        axes.plot(at.index, at, "X", color=group.look["color"], markeredgecolor="black", markersize=7, zorder=4)


def compared_panels(records: Sequence[Record]) -> list[tuple[str, str, Callable[[Record], pd.Series], str]]:
    """Title, unit, what to draw of a record, and how to smooth it: total, correctness or else what is shared, KL and length."""

    def column(name: str) -> Callable[[Record], pd.Series]:
        return lambda record: record.log[name] if name in record.log else pd.Series(dtype=float)

    if all(run_labels.correct(record).notna().any() for record in records):
        middle = [("Correctness", SCORE, run_labels.correct, "mean")]
    else:
        middle = [
            (name, SCORE, lambda record, name=name: run_labels.scores(record)[name], "mean")
            for name in shared(records)[:4]
        ]
    return [
        ("Total reward", TOTAL, column("reward"), "mean"),
        *middle,
        ("Distance from the base policy", "KL, nats a token", column("kl"), "median"),
        ("Completion length", "tokens", column("completions/mean_length"), "mean"),
    ]


def shared(records: Sequence[Record]) -> list[str]:
    """The rewards that all runs have, without version."""
    return [
        name for name in run_labels.scores(records[0]) if all(name in run_labels.scores(record) for record in records)
    ]


def what_differs(groups: Sequence[Group]) -> list[str]:
    """What keeps the runs from being compared in all that is drawn, in sentences."""
    every = [(group.letter, record) for group in groups for record in group.records]
    common = shared([record for _, record in every])
    weights = by_value(
        every, lambda one: " + ".join(f"{name} × {w:g}" for name, w in sorted(run_labels.last_weights(one).items()))
    )
    right = by_value(every, lambda record: " and ".join(run_labels.deciding(record)))
    sources = by_value(every, lambda record: record.about.get("rewards", {}).get("source_sha256", "")[:8])
    said = {
        "The totals are not on one scale, for the weights differ; at the end: ": weights if len(weights) > 1 else [],
        "Correctness is what different rewards say: ": right if len(right) > 1 else [],
        "Not in all runs, so in their totals only: ": [
            f"{name} ({letter})" for letter, record in every for name in run_labels.scores(record) if name not in common
        ],
        "✕: from here on the total is another sum: ": [
            f"{said} ({letter})" for letter, record in every for said in regimes(record).values()
        ],
        "The rewards' sources differ: scores of one name may measure different things: ": sources
        if len(sources) > 1
        else [],
        "KL was not measured, because beta is 0: ": [letter for letter, record in every if "kl" not in record.log],
        "Drawn up to where the shortest of its runs ends: ": [
            group.letter for group in groups if len({record.log.index[-1] for record in group.records}) > 1
        ],
    }
    return [f"{what}{', '.join(dict.fromkeys(parts))}." for what, parts in said.items() if parts]


def by_value(every: Sequence[tuple[str, Record]], value: Callable[[Record], str]) -> list[str]:
    """Each value (not an empty one) with the letters of the runs that have it."""
    found: dict[str, list[str]] = {}
    for letter, record in every:
        if text := value(record):
            found.setdefault(text, []).append(letter)
    return [f"{text} ({', '.join(dict.fromkeys(letters))})" for text, letters in found.items()]


def compare_figure(records: Sequence[Record], by: Callable[[Record], str] | None = None, title: str = "") -> Figure:
    """Runs beside each other: total reward, correctness (or each shared reward), KL and length.

    Runs of one label are drawn as their mean, up to where the shortest ends, and a band from the lowest to the highest.

    Args:
        by: a record's label; by default runs are labelled by the settings in which they differ, their seed apart.

    Raises ValueError without a run.
    """
    if not records:
        raise ValueError("There is no run to compare: give what lab.read.run_record.read_run returns for each.")
    groups, panels = grouped(records, by), compared_panels(records)
    rows = -(-len(panels) // 2)
    with styled():
        figure, axes = plt.subplots(rows, 2, figsize=(9, 2.7 * rows + 0.9), layout="constrained", squeeze=False)
        for place, (name, unit, pick, how) in zip(axes.flat, panels):
            draw_compared(place, groups, pick, how)
            place.set(title=name, ylabel=unit)
            low, high = place.get_ylim()
            place.set_ylim(
                (min(-0.03, low), max(1.03, high)) if unit == SCORE else (low, high) if unit == TOTAL else (0, high)
            )
        for place in axes.flat[len(panels) :]:
            place.set_visible(False)
        entitle(figure, groups, title)
        several = (
            "; bands: lowest to highest of the runs of a label"
            if any(len(group.records) > 1 for group in groups)
            else ""
        )
        caption(figure, [f"Lines are smoothed{several}.", *what_differs(groups)])
    return figure


def entitle(figure: Figure, groups: Sequence[Group], title: str) -> None:
    """The title and one legend for all panels, above them."""
    handles = [plt.Line2D([], [], linewidth=2, label=group.entry, **group.look) for group in groups]
    columns = max(1, min(3, len(handles), 120 // (max(len(group.entry) for group in groups) + 8)))
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=columns,
        fontsize=9,
        handlelength=3,
        title=title or None,
        title_fontsize=12,
        alignment="left",
    )


def draw_compared(axes: Axes, groups: Sequence[Group], pick: Callable[[Record], pd.Series], how: str) -> None:
    """One panel of `compare_figure`."""
    last = max(min(record.log.index[-1] for record in group.records) for group in groups)
    axes.set(xlabel="training step", xlim=(-0.02 * last, 1.02 * last + 0.5))
    axes.tick_params(labelsize=SMALL)
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    for group in groups:
        draw_group(axes, group, pick, how)
    if not axes.lines:
        axes.text(0.5, 0.5, "not measured in any run", transform=axes.transAxes, ha="center", color=GREY, fontsize=9)
        axes.set_yticks([])


def halfway(record: Record) -> pd.DataFrame:
    """For each reward where its smoothed curve began and ended, and the first step at which it had come half of the way.

    A reward with fewer than 15 logged steps has none of them: begin and end would be the same steps.
    """
    lines = {}
    for name, values in run_labels.scores(record).items():
        line = smooth(finite(values)).dropna()
        known = len(line) >= 15
        begin, end = (line.iloc[:5].mean(), line.iloc[-5:].mean()) if known else (np.nan, np.nan)
        passed = line.index[(line - begin) >= (end - begin) / 2] if end > begin else []
        lines[name] = {"begin": begin, "end": end, "halfway at step": int(passed[0]) if len(passed) else None}
    table = pd.DataFrame.from_dict(lines, orient="index", columns=["begin", "end", "halfway at step"])
    return table.astype({"halfway at step": "Int64"}).rename_axis("reward")
