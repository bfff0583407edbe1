"""Figures of an evaluation: before and after, differences with intervals, pass@k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.files import Row
from lab.show.figure_style import COLOURS, SMALL, caption, cut, fit, key, styled

MEASURES = {"format": "strict\nformat", "correct": "correct,\nanswer block", "right_anyhow": "right,\nany style"}
BASE_GREY = "#888888"
FOREST = 12  # values of a column that have a line


def before_after_figure(evaluation: Row) -> Figure:
    """An evaluation's record: greedy measures of all models, pass@k and maj@k over k, and the paired differences.

    Without samples there are two panels, the first and the last.
    """
    column, lines, left_out = forest_lines(evaluation)
    shown = bool(evaluation["sampled"].get(evaluation["other"]))
    width, height = (13, 3.9) if shown else (9.5, 3.9)
    with styled():
        figure, axes = plt.subplots(
            1,
            2 + shown,
            figsize=(width, max(height, 2.2 + 0.2 * len(lines))),
            layout="constrained",
            width_ratios=(1.15, 0.95, 1.25) if shown else (1, 1),
        )
        draw_greedy(axes[0], evaluation)
        if shown:
            draw_samples(axes[1], evaluation)
        draw_forest(axes[-1], lines, f"{evaluation['other']} minus {evaluation['baseline']}")
        figure.suptitle(verdict_title(evaluation), x=0.01, ha="left", fontsize=11, fontweight="bold")
        few = " With so few problems the intervals are rough." if evaluation["n"] < 100 else ""
        judged = f"{evaluation['n']:,} held-out problems, the same prompts for all; {evaluation['correct_by']} decides."
        drawn = "Whiskers and bands: 95 % intervals over problems (bootstrap; differences are paired)."
        by = f"By {column.removeprefix('data/')}: correct, greedy{left_out}. By chance one such interval in twenty is wrong."
        caption(figure, [judged + few, drawn, by * bool(column)])
        return fit(figure)


def verdict_title(evaluation: Row) -> str:
    """The verdicts in a line each, with their intervals."""
    change, found = evaluation["difference"][evaluation["other"]], []
    at = f" at temperature {evaluation['settings']['temperature']:g}"
    for name, verdict in evaluation["verdict"].items():
        one = change["greedy" if name == "correct" else "sampled"][name]
        label = "Correct, greedy" if name == "correct" else f"{name}{at}"
        middle, low, high = (in_points(one[key]) for key in ("estimate", "low", "high"))
        found.append(f"{label}: {verdict} ({middle} points, {low} to {high})")
    return "\n".join(found)


def in_points(share: float) -> str:
    return f"{round(100 * share, 1) + 0.0:+.1f}".replace("-", "−")


def models_drawn(evaluation: Row) -> dict[str, str]:
    """The models from left to right, with their colours: the baseline grey, the one in question blue."""
    first, last = evaluation["baseline"], evaluation["other"]
    rest = [name for name in evaluation["models"] if name not in (first, last)]
    return {first: BASE_GREY, **dict(zip(rest, COLOURS[4:])), last: COLOURS[0]}


def whiskers(found: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Estimates in percent, and how far the interval reaches down and up, shape (2, n)."""
    middle, low, high = (100 * np.array([one[key] for one in found]) for key in ("estimate", "low", "high"))
    return middle, np.array([middle - low, high - middle]).clip(0)


def draw_greedy(axes: Axes, evaluation: Row) -> None:
    models = models_drawn(evaluation)
    width = 0.8 / len(models)
    for nth, (model, colour) in enumerate(models.items()):
        middle, reach = whiskers([evaluation["greedy"][model][name] for name in MEASURES])
        places = np.arange(len(MEASURES)) + (nth - (len(models) - 1) / 2) * width
        axes.bar(places, middle, 0.94 * width, color=colour, label=model)
        axes.errorbar(places, middle, yerr=reach, fmt="none", ecolor="black", elinewidth=1, capsize=2)
        for place, value, top in zip(places, middle, middle + reach[1]):
            axes.annotate(
                f"{value:.0f}",
                (place, top),
                (0, 1),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=SMALL,
            )
    axes.set(title="Greedy", ylabel="percent of problems", ylim=(0, 108))
    axes.set_yticks(range(0, 101, 20))
    axes.set_xticks(range(len(MEASURES)), MEASURES.values(), fontsize=9)
    axes.grid(False, axis="x")
    key(axes)


def draw_samples(axes: Axes, evaluation: Row) -> None:
    """pass@k and maj@k of the two models that the verdict is on, with bands."""
    colours, shown = models_drawn(evaluation), (evaluation["baseline"], evaluation["other"])
    found = {model: {kind: at_k(evaluation["sampled"][model], kind) for kind in ("pass", "maj")} for model in shown}
    for model, kind, look in ((model, *one) for model in shown for one in (("pass", "o-"), ("maj", "s--"))):
        if not (ks := list(found[model][kind])):
            continue
        middle, reach = whiskers(list(found[model][kind].values()))
        ks = np.array(ks) * (0.97 if model == shown[0] else 1.03)  # beside each other: they may be alike
        axes.plot(ks, middle, look, color=colours[model], label=f"{model}, {kind}@k")
        axes.errorbar(ks, middle, yerr=reach, fmt="none", ecolor=colours[model], capsize=3)
        axes.fill_between(ks, middle - reach[0], middle + reach[1], color=colours[model], alpha=0.12, linewidth=0)
    sizes = list(found[shown[0]]["pass"])
    axes.set_xscale("log", base=2)
    axes.set_xlim(sizes[0] / 1.3, sizes[-1] * 1.3)
    axes.set_xticks(sizes, [str(k) for k in sizes])
    axes.minorticks_off()
    axes.set_title(f"Samples at temperature {evaluation['settings']['temperature']:g}")
    axes.set(xlabel="k, samples allowed", ylabel="percent of problems", ylim=(0, 104))
    axes.set_yticks(range(0, 101, 20))
    key(axes)


def at_k(measures: Row, kind: str) -> dict[int, Row]:
    """The measures called pass@k, or maj@k, by k."""
    return {int(name.partition("@")[2]): found for name, found in measures.items() if name.startswith(f"{kind}@")}


def forest_lines(evaluation: Row) -> tuple[str, list[tuple[str, Row, str]], str]:
    """(column, lines, what is left out); a line is a label, a difference, a colour. First the whole, then by value."""
    change = evaluation["difference"][evaluation["other"]]
    lines = [("correct, greedy", change["greedy"]["correct"], "black")]
    if "pass@1" in change["sampled"]:
        lines.append(("pass@1", change["sampled"]["pass@1"], "black"))
    column = next((name for name, found in evaluation["by"].items() if len(found) > 1), "")
    every = evaluation["by"].get(column, [])
    most = sorted(sorted(every, key=lambda one: -one["n"])[:FOREST], key=lambda one: one["estimate"])
    lines += [(f"{cut(one['value'], 26)} ({one['n']})", one, COLOURS[0]) for one in most]
    return column, lines, f", the {FOREST} commonest of {len(every)} values" if len(every) > FOREST else ""


def draw_forest(axes: Axes, lines: Sequence[tuple[str, Row, str]], title: str) -> None:
    whole = sum(colour == "black" for *_, colour in lines)
    places = [i + 0.5 * (i >= whole) for i in range(len(lines))]  # the whole stands apart
    for place, (_, found, colour) in zip(places, lines):
        middle, reach = whiskers([found])
        axes.errorbar(middle, [place], xerr=reach, fmt="o", color=colour, capsize=3, markersize=5)
    axes.axvline(0, color="black", linewidth=1, zorder=0)
    axes.set_yticks(places, [label for label, *_ in lines], fontsize=9 if len(lines) <= 6 else SMALL)
    axes.set_ylim(places[-1] + 0.7, -0.7)  # the first on top
    axes.set(title=title, xlabel="percentage points")
    axes.grid(False, axis="y")


def pass_at_k_figure(record: dict[str, Any]) -> Figure:
    """pass@k before and after on held-out problems, and the paired differences, with 95 % intervals."""
    ks = list(record["pass"])
    with styled():
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
        for name, colour, marker in (("before", "#888888", "s"), ("after", COLOURS[0], "o")):
            middle, low, high = (
                100 * np.array([record["pass"][k][name][key] for k in ks]) for key in ("estimate", "low", "high")
            )
            left.fill_between(range(len(ks)), low, high, color=colour, alpha=0.2, linewidth=0)
            left.plot(range(len(ks)), middle, marker=marker, color=colour, label=name)
        left.set_xticks(range(len(ks)), ks)
        left.set(
            title=f"{record['n']} held-out problems",
            xlabel="k, samples allowed",
            ylabel="pass@k, percent",
            ylim=(0, 105),
        )
        left.legend(loc="lower right")
        middle, low, high = (
            100 * np.array([record["pass"][k]["difference"][key] for k in ks]) for key in ("estimate", "low", "high")
        )
        right.errorbar(middle, range(len(ks)), xerr=[middle - low, high - middle], fmt="o", capsize=5, color=COLOURS[0])
        right.axvline(0, color="grey", linewidth=1)
        right.set_yticks(range(len(ks)), [f"pass@{k}" for k in ks])
        right.set(title="After minus before", xlabel="percentage points, 95 % interval", ylim=(-0.6, len(ks) - 0.4))
    return figure
