"""Figures of notebook 07: training recipes over several seeds."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.files import Row
from lab.show.figure_style import COLOURS, DASHES, styled
from scoring.errors import InputError


def recipes_figure(runs: list[Row], comparisons: Any, title: str = "") -> Figure:
    """A panel for each of `lab.measure.recipes.COMPARISONS` that has runs of `lab.make.recipe_grid`: share right by step.

    Raises InputError where there is no run of the baseline with another recipe.
    """
    there = {run["recipe"] for run in runs}
    drawn = [(comparison, [name for name in comparison.recipes if name in there]) for comparison in comparisons]
    drawn = [(comparison, names) for comparison, names in drawn if names]
    if "baseline" not in there or not drawn:
        names = ", ".join(sorted(there)) or "none"
        raise InputError(f"A figure needs runs of the baseline and of another recipe; there are: {names}.")
    columns = min(2, len(drawn))
    rows = -(-len(drawn) // columns)
    with styled():
        layout = {"sharex": True, "sharey": True, "squeeze": False, "layout": "constrained"}
        figure, axes = plt.subplots(rows, columns, figsize=(4.5 * columns, 2.7 * rows + 0.3), **layout)
        for place, (comparison, names) in zip(axes.flat, drawn):
            draw_recipes(place, runs, {"baseline": f"baseline: {comparison.baseline}", **dict(zip(names, names))})
            place.set(title=comparison.title, ylim=(-3, 108))
            place.xaxis.get_major_locator().set_params(integer=True)
        for place in axes.flat[len(drawn) :]:
            place.set_visible(False)
        figure.supylabel("correct, percent", fontsize=10)
        figure.supxlabel("training step", fontsize=10)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def draw_recipes(axes: Axes, runs: list[Row], labels: dict[str, str]) -> None:
    """Mean over seeds with a band from the lowest to the highest seed; the first recipe is the baseline, in black."""
    for place, (recipe, label) in enumerate(labels.items()):
        curves = 100 * over_seeds(runs, recipe)
        steps, colour = np.arange(1, curves.shape[1] + 1), COLOURS[place - 1]
        axes.fill_between(steps, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.12, linewidth=0)
        look = {"color": colour, "linewidth": 2, "zorder": 3, "label": f"{label} ({len(curves)})"}
        axes.plot(steps, curves.mean(axis=0), DASHES[place % 4], **look)  # lines that lie on each other are both seen
    axes.legend(loc="upper left", title="(seeds)", title_fontsize=8, fontsize=8, alignment="left")


def over_seeds(runs: list[Row], recipe: str) -> np.ndarray:
    """Share of right completions, shape (seeds, steps), each the mean of the last five steps."""
    curves = [pd.Series(run["curves"]["correctness"], dtype=float) for run in runs if run["recipe"] == recipe]
    return np.array([values.rolling(5, min_periods=1).mean() for values in curves])


def recipes_forest(table: pd.DataFrame, title: str = "") -> Figure:
    """What `lab.measure.recipes.compare_recipes` found, with 95 % intervals; full dots where 0 lies outside."""
    rows = table[table.index != "baseline"]
    sides = {"correct": "Held-out problems, greedy", "curve": "While training, mean of all steps"}
    with styled():
        figure, axes = plt.subplots(1, 2, figsize=(9, 0.28 * len(rows) + 1.4), sharey=True, layout="constrained")
        for place, (measure, name) in zip(axes, sides.items()):
            ends = 100 * rows[[f"{measure}_{end}" for end in ("difference", "low", "high")]].to_numpy(float)
            for y, (at, low, high) in enumerate(ends):
                clear = low > 0 or high < 0  # never without an interval, where both are NaN
                colour = COLOURS[1 if at < 0 else 0] if clear else "#777777"
                place.plot([low, high], [y, y], color=colour, linewidth=2)
                place.plot(at, y, "o", color=colour, markerfacecolor=colour if clear else "white", markersize=6)
            place.axvline(0, color="black", linewidth=1)
            place.set(title=name, xlabel="percentage points from the baseline")
            place.set_yticks(range(len(rows)), rows.index)
        axes[0].invert_yaxis()
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure
