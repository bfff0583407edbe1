"""Figures of an evaluation: before and after, differences with intervals, pass@k."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.files import Row
from lab.measure.verdicts import interval_text, signed_points
from lab.show.figure_style import COLOURS, SMALL, add_legend, caption, fit_legends, shorten, styled

MEASURES = {"format": "strict\nformat", "correct": "correct,\nanswer block", "right_anyhow": "right,\nany style"}
BASE_GREY = "#888888"
VALUES = 12  # of a column, that have a line each


def before_after_figure(evaluation: Row) -> Figure:
    """An evaluation's record: greedy measures of all models, pass@k and maj@k over k, and the paired differences.

    Without samples there are two panels, the first and the last.
    """
    column, lines, left_out = difference_lines(evaluation)
    sampled = bool(evaluation["sampled"].get(evaluation["other"]))
    size = (13 if sampled else 9.5, max(3.9, 2.2 + 0.2 * len(lines)))
    widths = (1.15, 0.95, 1.25) if sampled else (1, 1)
    with styled():
        figure, axes = plt.subplots(1, len(widths), figsize=size, width_ratios=widths, layout="constrained")
        draw_greedy(axes[0], evaluation)
        if sampled:
            draw_samples(axes[1], evaluation)
        draw_differences(axes[-1], lines, f"{evaluation['other']} minus {evaluation['baseline']}")
        figure.suptitle(verdict_title(evaluation), x=0.01, ha="left", fontsize=11, fontweight="bold")
        few = " With so few problems the intervals are rough." if evaluation["n"] < 100 else ""
        judged = f"{evaluation['n']:,} held-out problems, the same prompts for all; {evaluation['correct_by']} decides."
        drawn = "Whiskers and bands: 95 % intervals over problems (bootstrap; differences are paired)."
        by = f"By {column.removeprefix('data/')}: correct, greedy{left_out}. By chance one such interval in twenty is wrong."
        caption(figure, [judged + few, drawn, by * bool(column)])
        return fit_legends(figure)


def verdict_title(evaluation: Row) -> str:
    """The verdicts in a line each, with their intervals in percentage points."""
    change, lines = evaluation["difference"][evaluation["other"]], []
    for name, verdict in evaluation["verdict"].items():
        greedy = name == "correct"
        found = change["greedy" if greedy else "sampled"][name]
        label = "Correct, greedy" if greedy else f"{name} at temperature {evaluation['settings']['temperature']:g}"
        lines.append(f"{label}: {verdict} ({signed_points(found['estimate'])} points, {interval_text(found)})")
    return "\n".join(lines)


def model_colours(evaluation: Row) -> dict[str, str]:
    """The models from left to right, with their colours: the baseline grey, the one in question blue."""
    first, last = evaluation["baseline"], evaluation["other"]
    rest = [name for name in evaluation["models"] if name not in (first, last)]
    return {first: BASE_GREY, **dict(zip(rest, COLOURS[4:])), last: COLOURS[0]}


def whiskers(found: Iterable[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Estimates in percent, and how far their intervals reach down and up, shape (2, n)."""
    middle, low, high = 100 * np.array([[one[key] for key in ("estimate", "low", "high")] for one in found]).T
    return middle, np.array([middle - low, high - middle]).clip(0)


def draw_greedy(axes: Axes, evaluation: Row) -> None:
    colours = model_colours(evaluation)
    width = 0.8 / len(colours)
    for nth, (model, colour) in enumerate(colours.items()):
        middle, reach = whiskers([evaluation["greedy"][model][name] for name in MEASURES])
        places = np.arange(len(MEASURES)) + (nth - (len(colours) - 1) / 2) * width
        error = {"elinewidth": 1, "capsize": 2}
        bars = axes.bar(places, middle, 0.94 * width, yerr=reach, error_kw=error, color=colour, label=model)
        axes.bar_label(bars, fmt="%.0f", padding=1, fontsize=SMALL)
    axes.set(title="Greedy", ylabel="percent of problems", ylim=(0, 108), yticks=range(0, 101, 20))
    axes.set_xticks(range(len(MEASURES)), MEASURES.values(), fontsize=9)
    axes.grid(False, axis="x")
    add_legend(axes)


def draw_over_k(axes: Axes, found: Mapping[str, Row], look: str, colour: str, label: str) -> np.ndarray:
    """Draws estimates by k (or pass@k) with their intervals as a band, and returns them, in percent."""
    ks, (middle, (down, up)) = [int(name.rpartition("@")[2]) for name in found], whiskers(found.values())
    axes.plot(ks, middle, look, color=colour, label=label)
    axes.fill_between(ks, middle - down, middle + up, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, ks)
    axes.minorticks_off()
    return middle


def draw_samples(axes: Axes, evaluation: Row) -> None:
    """pass@k and maj@k of the two models that the verdict is on."""
    models, colours = (evaluation["baseline"], evaluation["other"]), model_colours(evaluation)
    for model, (kind, look) in itertools.product(models, (("maj", "s--"), ("pass", "o-"))):
        at_k = {name: one for name, one in evaluation["sampled"][model].items() if name.startswith(f"{kind}@")}
        if at_k:
            draw_over_k(axes, at_k, look, colours[model], f"{model}, {kind}@k")
    axes.set(xlabel="k, samples allowed", ylabel="percent of problems", ylim=(0, 104), yticks=range(0, 101, 20))
    axes.set(title=f"Samples at temperature {evaluation['settings']['temperature']:g}")
    add_legend(axes)


def difference_lines(evaluation: Row) -> tuple[str, list[tuple[str, Row, str]], str]:
    """The column, the lines (label, difference, colour; first over all problems, then by value), and what is left out."""
    change = evaluation["difference"][evaluation["other"]]
    lines = [("correct, greedy", change["greedy"]["correct"], "black")]
    if "pass@1" in change["sampled"]:
        lines.append(("pass@1", change["sampled"]["pass@1"], "black"))
    column = next((name for name, found in evaluation["by"].items() if len(found) > 1), "")
    every = evaluation["by"].get(column, [])
    most = sorted(sorted(every, key=lambda one: -one["n"])[:VALUES], key=lambda one: one["estimate"])
    lines += [(f"{shorten(one['value'], 26)} ({one['n']})", one, COLOURS[0]) for one in most]
    return column, lines, f", the {VALUES} commonest of {len(every)} values" if len(every) > VALUES else ""


def draw_differences(axes: Axes, lines: Sequence[tuple[str, Row, str]], title: str) -> None:
    whole = sum(colour == "black" for *_, colour in lines)
    places = [i + 0.5 * (i >= whole) for i in range(len(lines))]  # the lines over all problems stand apart
    for place, (_, found, colour) in zip(places, lines):
        middle, reach = whiskers([found])
        axes.errorbar(middle, [place], xerr=reach, fmt="o", color=colour, capsize=3, markersize=5)
    axes.axvline(0, color="black", linewidth=1, zorder=0)
    axes.set_yticks(places, [label for label, *_ in lines], fontsize=9 if len(lines) <= 6 else SMALL)
    axes.set_ylim(places[-1] + 0.7, -0.7)  # the first on top
    axes.set(title=title, xlabel="percentage points, 95 % interval")
    axes.grid(False, axis="y")


def pass_at_k_figure(record: Row) -> Figure:
    """pass@k before and after on held-out problems, and the paired differences, with 95 % intervals."""
    with styled():
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
        for name, look, colour in (("before", "s-", BASE_GREY), ("after", "o-", COLOURS[0])):
            draw_over_k(left, {k: found[name] for k, found in record["pass"].items()}, look, colour, name)
        left.set(xlabel="k, samples allowed", ylabel="pass@k, percent", ylim=(0, 105))
        left.set_title(f"{record['n']} held-out problems")
        left.legend(loc="lower right")
        lines = [(f"pass@{k}", found["difference"], COLOURS[0]) for k, found in record["pass"].items()]
        draw_differences(right, lines, "After minus before")
    return figure
