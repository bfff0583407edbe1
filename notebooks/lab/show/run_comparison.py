"""Several runs beside each other, grouped by what differs in their settings."""

import itertools
import string
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.files import Row
from lab.read import run_record, run_summary
from lab.read.run_record import RunRecord
from lab.show import figure_style as style
from lab.show.event_marks import regimes

SCORE, TOTAL = "mean score", "weighted sum"


class Group(NamedTuple):
    """Runs that differ by their seed alone, drawn as one line."""

    letter: str  # stands for the label, which may be long, in the caption
    label: str
    records: list[RunRecord]
    look: Row


def compare_figure(records: Sequence[RunRecord]) -> Figure:
    """Runs beside each other: total reward, correctness (or each shared reward), KL and length.

    Runs of one label are drawn as their mean, with a band from the lowest to the highest, up to where the shortest ends.
    """
    groups, panels = group_runs(records), compared_panels(records)
    rows = -(-len(panels) // 2)
    with style.styled():
        figure, axes = plt.subplots(rows, 2, figsize=(9, 2.7 * rows + 0.9), layout="constrained", squeeze=False)
        for place, one in zip(axes.flat, panels):
            draw_compared(place, groups, *one)
        for place in axes.flat[len(panels) :]:
            place.set_visible(False)
        labels = [f"{group.letter}: {style.shorten(group.label, 90)}" for group in groups]
        labels = [label + f" (n = {n})" * (n > 1) for label, n in zip(labels, (len(one.records) for one in groups))]
        handles = [plt.Line2D([], [], linewidth=2, **group.look) for group in groups]
        columns = max(1, min(3, len(labels), 120 // (max(map(len, labels)) + 8)))
        figure.legend(handles, labels, loc="outside upper left", ncols=columns, handlelength=3, alignment="left")
        several = any(len(group.records) > 1 for group in groups)
        bands = "; bands: lowest to highest of the runs of a label, up to where the shortest ends" if several else ""
        style.caption(figure, [f"Lines are smoothed{bands}.", *what_differs(groups)])
    return figure


def group_runs(records: Sequence[RunRecord]) -> list[Group]:
    """The runs by their label, each group with a colour and a dash."""
    labelled: dict[str, list[RunRecord]] = {}
    for record, label in zip(records, run_summary.label_runs(records)):
        labelled.setdefault(label, []).append(record)
    looks = ({"color": style.COLOURS[nth % 7], "linestyle": style.DASHES[nth % 4]} for nth in itertools.count())
    letters = string.ascii_uppercase + string.ascii_lowercase
    if left_out := list(labelled)[len(letters) :]:
        print(f"Left out of the figure, which has {len(letters)} letters: {', '.join(left_out)}. Compare fewer runs.")
    return [Group(*about) for about in zip(letters, labelled, labelled.values(), looks)]


def compared_panels(records: Sequence[RunRecord]) -> list[tuple[str, str, str, str]]:
    """Title, unit, column, how it is smoothed: total reward, correctness (or what rewards all runs share), KL, length."""
    judged = all("correctness" in curves_of(record) for record in records)
    middle = {"correctness": "Correctness"} if judged else {name: name for name in shared_rewards(records)[:4]}
    return [
        ("Total reward", TOTAL, "reward", "mean"),
        *((title, SCORE, name, "mean") for name, title in middle.items()),
        ("Distance from the base policy", "KL, nats a token", "kl", "median"),
        ("Completion length", "tokens", "completions/mean_length", "mean"),
    ]


def curves_of(record: RunRecord) -> dict[str, pd.Series]:
    """What can be drawn of a run, by step: its log, each reward's score, and correctness."""
    curves = {**record.log, **run_record.mean_scores(record), "correctness": run_record.mean_correctness(record)}
    return {name: style.finite(values) for name, values in curves.items() if np.isfinite(values).any()}


def shared_rewards(records: Sequence[RunRecord]) -> list[str]:
    """The rewards that all runs have, without version."""
    every = [list(run_record.mean_scores(record)) for record in records]
    return [name for name in every[0] if all(name in names for names in every)]


def draw_compared(axes: Axes, groups: Sequence[Group], title: str, unit: str, column: str, how: str) -> None:
    """One panel: of each group a run's smoothed line, or the mean over its seeds with a band from lowest to highest."""
    last = max(min(record.log.index[-1] for record in group.records) for group in groups)
    style.panel(axes, title, unit, 0, last)
    for group in groups:
        drawn = {i: curves_of(record).get(column) for i, record in enumerate(group.records)}
        cuts = [list(regimes(record)) for record in group.records]
        lines = [style.smooth(values, how, cuts[i]) for i, values in drawn.items() if values is not None]
        if not lines:
            continue
        table, colour = at_shared_steps(lines), group.look["color"]
        mean = table.mean(axis=1)
        axes.plot(style.thin(mean), linewidth=2, marker="o" if len(mean) == 1 else "", **group.look)
        if len(lines) > 1:
            axes.fill_between(table.index, table.min(axis=1), table.max(axis=1), color=colour, alpha=0.15, linewidth=0)
        for record in group.records:
            crosses = mean[mean.index.intersection(list(regimes(record)))]
            axes.plot(crosses, "X", color=colour, markeredgecolor="black", markersize=7, zorder=4)
    if not axes.lines:
        axes.text(0.5, 0.5, "not measured in any run", transform=axes.transAxes, ha="center", color=style.GREY)
        axes.set_yticks([])
    low, high = axes.get_ylim()
    axes.set_ylim({SCORE: (min(-0.03, low), max(1.03, high)), TOTAL: (low, high)}.get(unit, (0, high)))


def at_shared_steps(lines: Sequence[pd.Series]) -> pd.DataFrame:
    """The lines at the steps that all have reached, a column each, interpolated between logged steps."""
    steps = np.unique(np.concatenate([line.index for line in lines]))
    steps = steps[(steps >= max(line.index[0] for line in lines)) & (steps <= min(line.index[-1] for line in lines))]
    return pd.DataFrame({i: np.interp(steps, line.index, line) for i, line in enumerate(lines)}, index=steps)


def what_differs(groups: Sequence[Group]) -> list[str]:
    """What keeps the runs from being compared in all that is drawn, in sentences."""
    every = [(group.letter, record) for group in groups for record in group.records]
    shared = shared_rewards([record for _, record in every])
    # what is true -> letters of the groups
    weights, deciding, unshared, changes = (defaultdict(dict) for _ in range(4))
    for letter, record in every:
        last = sorted(run_record.last_weights(record).items())
        weights[" + ".join(f"{name} × {weight:g}" for name, weight in last)][letter] = None
        deciding[" and ".join(run_record.deciding_names(record))][letter] = None
        for name in run_record.mean_scores(record).columns.difference(shared, sort=False):
            unshared[name][letter] = None
        for text in regimes(record).values():
            changes[text][letter] = None
    weights.pop("", None), deciding.pop("", None)
    facts = {
        "The totals are not on one scale, for the weights differ; at the end: ": weights if len(weights) > 1 else {},
        "Correctness is what different rewards say: ": deciding if len(deciding) > 1 else {},
        "Not in all runs, so in their totals only: ": unshared,
        "✕: from here on the total is another sum: ": changes,
    }
    texts = {what: [f"{text} ({', '.join(ones)})" for text, ones in fact.items()] for what, fact in facts.items()}
    texts["KL was not measured, because beta is 0: "] = [one for one, record in every if "kl" not in record.log]
    return [f"{what}{', '.join(dict.fromkeys(parts))}." for what, parts in texts.items() if parts]
