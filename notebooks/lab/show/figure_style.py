"""The figures: one visual language, colour-blind safe (Okabe and Ito 2008), smoothed lines over raw points."""

from __future__ import annotations

import contextlib
import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.read.run_record import Record

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
STYLE = {
    "axes.prop_cycle": plt.cycler(color=COLOURS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.dpi": 100,
    "text.parse_math": False,  # a reward's name may have a $
    "svg.fonttype": "none",  # text stays text: it can be searched, and the file is small
    "svg.hashsalt": "grpo",  # the same figure gives the same file
}


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """The style for a figure's making, and matplotlib as it was afterwards."""
    # loads the backend now: Jupyter's turns interactive mode on while it loads, and leaving the context would undo that
    plt.draw_if_interactive()
    with plt.rc_context(STYLE):
        yield


def save(figure: Figure, path: Path) -> Path:
    """Writes the figure as a PNG, sharp enough for print, and as an SVG beside it, each whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for kind, more in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 150})):
        temporary = path.with_suffix(f".{kind}.tmp")
        try:
            with plt.rc_context(STYLE):
                figure.savefig(temporary, format=kind, **more)
            os.replace(temporary, path.with_suffix(f".{kind}"))
        finally:
            temporary.unlink(missing_ok=True)
    return path.with_suffix(".png")


POINTS = 500  # of a curve; more would only blacken the panel and swell the SVG
GREY = "#595959"
SMALL = 8  # points; smaller is not read in print
CHARACTER = 0.56  # of the font's size: how wide one is, on average


def window_for(rows: int) -> int:
    """How many rows the smoothed line takes together: 9 in a short run, a 25th of a long one."""
    return max(1, min(max(9, rows // 25), rows // 3))


def smooth(values: pd.Series, window: int | None = None, how: str = "mean", cuts: Sequence[int] = ()) -> pd.Series:
    """Centred moving mean (or median): it shows the trend and, unlike a trailing one, does not lag behind the points.

    Args:
        cuts: steps at which something else begins: what lies before and after is not mixed.
    """
    width = window or window_for(len(values))
    parts = values.groupby(np.searchsorted(sorted(cuts), values.index, side="right"))
    rolled = [part.rolling(width, center=True, min_periods=1) for _, part in parts]
    return pd.concat([rolling.median() if how == "median" else rolling.mean() for rolling in rolled] or [values])


def finite(values: pd.Series) -> pd.Series:
    """From the first to the last finite value, NaN for those between that are not."""
    values = values.where(np.isfinite(values))
    return (
        values.loc[values.first_valid_index() : values.last_valid_index()] if values.notna().any() else values.iloc[:0]
    )


def thin(values: pd.Series) -> pd.Series:
    return values.iloc[:: max(1, -(-len(values) // POINTS))]


def curve(
    axes: Axes, values: pd.Series, label: str | None = None, how: str = "mean", cuts: Sequence[int] = (), **look: Any
) -> pd.Series:
    """Raw points and the smoothed line, which is returned. `values` has the steps as its index."""
    values = finite(values)
    line = smooth(values, how=how, cuts=cuts)
    look = {"color": COLOURS[0], "linewidth": 2, "marker": "o" if len(values) == 1 else "", **look}
    axes.plot(thin(line).index, thin(line), label=label, **look)
    axes.plot(
        thin(values).index,
        thin(values),
        ".",
        color=look["color"],
        alpha=0.4,
        markersize=4.5,
        markeredgewidth=0,
        zorder=1,
    )
    return line


def span(record: Record) -> tuple[float, float]:
    """The first step that anything is drawn at, and the last."""
    steps = [*record.log.index[[0, -1]], *record.evaluations["step"]]
    return min(steps), max(steps)


def absent(axes: Axes, record: Record, column: str, why: str = "") -> bool:
    """Whether a metric has no value to draw; then the panel says why."""
    if column in record.log and np.isfinite(record.log[column]).any():
        return False
    said = why or f"{column} was not logged" + (" as a finite number" if column in record.log else "")
    axes.text(
        0.5, 0.5, textwrap.fill(said, 44), transform=axes.transAxes, ha="center", va="center", color=GREY, fontsize=9
    )
    axes.set_yticks([])
    axes.grid(False)
    return True


def key(axes: Axes, note: str = "", handles: Sequence[Any] | None = None) -> None:
    """The legend of a panel with a note above it, at the top left; `fit` then makes room for it."""
    found = (
        list(handles) if handles is not None else [h for one in twins(axes) for h in one.get_legend_handles_labels()[0]]
    )
    if found or note:
        _legend(axes, found, [handle.get_label() for handle in found], note)


def _legend(axes: Axes, handles: Sequence[Any], labels: Sequence[str], note: str, columns: int = 1) -> Any:
    legend = axes.legend(
        handles,
        labels,
        title=note or None,
        ncols=columns,
        loc="upper left",
        alignment="left",
        fontsize=SMALL,
        title_fontsize=SMALL,
        borderaxespad=0.1,
        borderpad=0.2,
        labelspacing=0.25,
        handlelength=2.2,
        handletextpad=0.5,
        columnspacing=1.2,
        frameon=True,
        facecolor="white",
        edgecolor="none",
        framealpha=0.9,
    )
    legend.get_title().set_color(GREY)
    legend.set_in_layout(False)  # it lies in its panel, and must not press it together before `fit` has cut it
    return legend


def twins(axes: Axes) -> list[Axes]:
    """The axes and those that lie on it with another unit."""
    return [axes, *(one for one in axes.get_shared_x_axes().get_siblings(axes) if one is not axes)]


def fit(figure: Figure) -> Figure:
    """Gives every legend the columns and line breaks that fit its panel, and room above all lines."""
    figure.draw_without_rendering()
    for axes in [axes for axes in figure.axes if axes.get_legend()]:
        old = axes.get_legend()
        width = axes.get_window_extent().width / figure.dpi * 72 / (SMALL * CHARACTER)  # in characters
        labels = [cut(text.get_text(), int(width) - 7) for text in old.get_texts()]
        columns = max(1, min(len(labels), int(width // (max(map(len, labels), default=1) + 7))))
        note = "\n".join(textwrap.fill(line, int(width) - 3) for line in old.get_title().get_text().splitlines())
        legend = _legend(axes, old.legend_handles, labels, note, columns)
        legend.set_zorder(10)
        lift(axes, legend)
    return figure


def cut(text: str, length: int) -> str:
    """A long name without its middle: its end often tells it from another."""
    return text if len(text) <= length else f"{text[: length - length // 2 - 1]}…{text[-(length // 2) :]}"


def lift(axes: Axes, legend: Any) -> None:
    """Raises the panel's upper limit by the legend's height; no tick goes up there."""
    box, whole = legend.get_window_extent(), axes.get_window_extent()
    share = min(0.7, (whole.y1 - box.y0) / whole.height + 0.02)
    for one in twins(axes):
        bottom, top = one.get_ylim()
        one.set_yticks([tick for tick in one.get_yticks() if bottom <= tick <= top + 1e-9 * (top - bottom)])
        one.set_ylim(bottom, bottom + (top - bottom) / (1 - share))


def caption(figure: Figure, lines: Sequence[str]) -> None:
    """What is to be known to read the figure, below it, in lines that fit its width."""
    width = int(figure.get_figwidth() * 72 / (SMALL * CHARACTER)) - 4
    text = "\n".join(textwrap.fill(line, width) for line in lines if line)
    if text:
        figure.supxlabel(text, x=0.01, ha="left", fontsize=SMALL, color=GREY)


def how_drawn(record: Record, how: str = "mean") -> str:
    """What points and lines are, for the caption."""
    window = window_for(len(record.log))
    apart = int(np.diff(record.log.index).min()) if len(record.log) > 1 else 1
    single = "single steps" if apart == 1 else f"means of {apart} steps, as logged"
    single += f", one of {hidden} shown" if (hidden := -(-len(record.log) // POINTS)) > 1 else ""
    lines = f"; lines: centred {how} of {window} of them" if window > 1 else ""
    return f"Points: {single}{lines}."


DASHES = ("-", "--", ":", "-.")  # a version's own


def cap(axes: Axes, values: pd.Series, line: pd.Series, colour: str, from_zero: bool = True) -> str:
    """Keeps wild values from flattening the rest: they become triangles at the edge. Returns what to say of them.

    Wild is what lies beyond four times the middle half of the values, where it would more than double the axis.
    """
    values = values[np.isfinite(values)]
    low, high = np.quantile(values, [0.25, 0.75])
    far = 4 * (high - low)
    bottom = min(0.0, values.min()) if from_zero else max(values.min(), min(low - far, line.min()))
    top = min(values.max(), max(high + far, line.max()))
    if len(values) < 10 or top <= bottom or max(values.max(), top) - min(values.min(), bottom) < 2 * (top - bottom):
        return ""
    edge = 0.05 * (top - bottom)
    axes.set_ylim(bottom - edge, top + edge)
    above, below = values[values > top], values[values < bottom]
    for marker, at, which in (("^", top, above), ("v", bottom, below)):
        axes.plot(which.index, np.full(len(which), at), marker, color=colour, markersize=5)
    reach = [f"{which.iloc[which.abs().argmax()]:.3g}" for which in (below, above) if len(which)]
    return f"{len(above) + len(below)} beyond the edge, up to {' and '.join(reach)}"
