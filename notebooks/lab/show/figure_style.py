"""The look of all figures: colours, smoothed curves over raw points, legends that cover no line, captions, saving.

The colours are safe for colour-blind readers (Okabe and Ito 2008).
"""

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.files import whole_file

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK = COLOURS
GREY = "#595959"
DASHES = ("-", "--", ":", "-.")
POINTS = 500  # of a curve; more would only blacken the panel and swell the SVG
SMALL = 8  # points; smaller is not read in print
CHARACTER = 0.56  # of the font's size: how wide one is, on average
STYLE = {
    "axes.prop_cycle": plt.cycler(color=COLOURS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
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
TIGHT = {"borderaxespad": 0.1, "borderpad": 0.2, "labelspacing": 0.25, "handletextpad": 0.5, "columnspacing": 1.2}


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """The style while a figure is made; matplotlib's settings are restored afterwards."""
    # Jupyter's backend turns interactive mode on while it loads. Load it now, or leaving the context undoes that.
    plt.draw_if_interactive()
    with plt.rc_context(STYLE):
        yield


def save(figure: Figure, path: Path) -> Path:
    """Writes the figure as a PNG, sharp enough for print, and as an SVG beside it, each whole or not at all."""
    for kind, more in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 150})):
        with whole_file(path.with_suffix(f".{kind}")) as part, plt.rc_context(STYLE):
            figure.savefig(part, format=kind, **more)
    return path.with_suffix(".png")


def window_for(rows: int) -> int:
    """How many rows the smoothed line averages: 9 in a short run, a 25th of a long one."""
    return max(1, min(max(9, rows // 25), rows // 3))


def smooth(values: pd.Series, how: str = "mean", cuts: Sequence[int] = ()) -> pd.Series:
    """Centred moving mean (or median), indexed by step: unlike a trailing one, it does not lag behind the points.

    Values before and after a step of `cuts`, at which something else begins, are not mixed.
    """
    width = window_for(len(values))
    parts = values.groupby(np.searchsorted(sorted(cuts), values.index, side="right"))
    return parts.transform(lambda part: getattr(part.rolling(width, center=True, min_periods=1), how)())


def finite(values: pd.Series) -> pd.Series:
    """From the first to the last finite value, NaN for those between that are not."""
    values = values.where(np.isfinite(values))
    known = values.dropna().index
    return values.loc[known[0] : known[-1]] if len(known) else values.iloc[:0]


def thin(values: pd.Series) -> pd.Series:
    """At most `POINTS` of the values."""
    return values.iloc[:: max(1, -(-len(values) // POINTS))]


def panel(axes: Axes, title: str, unit: str, first: float, last: float) -> None:
    """Title, unit, and whole training steps from left to right."""
    side = 0.02 * (last - first) + 0.5
    axes.set(title=title, xlabel="training step", ylabel=unit, xlim=(first - side, last + side))
    axes.tick_params(labelsize=SMALL)
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    plain_numbers(axes)


def plain_numbers(axes: Axes) -> None:
    """Writes the ticks in full: matplotlib would put a factor such as 1e-5 where the title is."""
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.6g}".replace("-", "−"))


def lacks_data(axes: Axes, log: pd.DataFrame, column: str, why: str = "") -> bool:
    """Whether a metric has no finite value to draw. If so, the panel says why."""
    if column in log and np.isfinite(log[column]).any():
        return False
    text = why or f"{column} was not logged" + (" as a finite number" if column in log else "")
    place = {"transform": axes.transAxes, "ha": "center", "va": "center"}
    axes.text(0.5, 0.5, textwrap.fill(text, 44), color=GREY, fontsize=9, **place)
    axes.set_yticks([])
    axes.grid(False)
    return True


def curve(
    axes: Axes, values: pd.Series, label: str | None = None, how: str = "mean", cuts: Sequence[int] = (), **look: Any
) -> pd.Series:
    """Draws the raw points and the smoothed line, and returns the line. `values` is indexed by step."""
    values = finite(values)
    line = smooth(values, how, cuts)
    look = {"color": BLUE, "linewidth": 2, "marker": "o" if len(values) == 1 else "", **look}
    axes.plot(thin(line), label=label, **look)
    axes.plot(thin(values), ".", color=look["color"], alpha=0.4, markersize=4.5, markeredgewidth=0, zorder=1)
    return line


def cap_outliers(axes: Axes, values: pd.Series, line: pd.Series, colour: str, from_zero: bool = True) -> str:
    """Draws outliers as triangles at the edge, so that they do not flatten the rest. Returns a note that counts them.

    An outlier lies beyond four times the interquartile range, and would more than double the axis.
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
    for marker, at, outliers in (("^", top, above), ("v", bottom, below)):
        axes.plot(outliers.index, np.full(len(outliers), at), marker, color=colour, markersize=5)
    reach = [f"{outliers.iloc[outliers.abs().argmax()]:.3g}" for outliers in (below, above) if len(outliers)]
    return f"{len(above) + len(below)} beyond the edge, up to {' and '.join(reach)}"


def percent_axis(axes: Axes, label: str) -> Axes:
    """A second axis on the right, in percent, to which dashed vermilion lines belong."""
    right = axes.twinx()
    right.set_ylabel(label, color=VERMILION, fontsize=9)
    right.tick_params(labelsize=SMALL, colors=VERMILION)
    right.set(ylim=(0, 103), yticks=range(0, 101, 25))
    right.grid(False)
    return right


def twins(axes: Axes) -> list[Axes]:
    """The axes and those that lie on it with another unit."""
    return [axes, *(one for one in axes.get_shared_x_axes().get_siblings(axes) if one is not axes)]


def add_legend(
    axes: Axes, note: str = "", handles: Sequence[Any] = (), labels: Sequence[str] = (), columns: int = 1
) -> None:
    """A legend at the panel's top left with a note above it. `fit_legends` then makes room for it."""
    handles = handles or [one for twin in twins(axes) for one in twin.get_legend_handles_labels()[0]]
    if not (handles or note):
        return
    labels = labels or [one.get_label() for one in handles]
    look = {"loc": "upper left", "alignment": "left", "frameon": True, "framealpha": 0.9, "edgecolor": "none", **TIGHT}
    sizes = {"fontsize": SMALL, "title_fontsize": SMALL}
    legend = axes.legend(handles, labels, title=note or None, ncols=columns, **sizes, **look)
    legend.get_title().set_color(GREY)
    legend.set_zorder(10)
    legend.set_in_layout(False)  # a long label would press its panel together before `fit_legends` has cut it


def fit_legends(figure: Figure) -> Figure:
    """Gives every legend the columns and line breaks that fit its panel, and room above all lines."""
    figure.draw_without_rendering()
    for axes in [axes for axes in figure.axes if axes.get_legend()]:
        legend, whole = axes.get_legend(), axes.get_window_extent()
        width = whole.width / figure.dpi * 72 / (SMALL * CHARACTER)  # in characters
        labels = [shorten(text.get_text(), int(width) - 7) for text in legend.get_texts()]
        columns = max(1, min(len(labels), int(width // (max(map(len, labels), default=1) + 7))))
        note = "\n".join(textwrap.fill(line, int(width) - 3) for line in legend.get_title().get_text().splitlines())
        add_legend(axes, note, legend.legend_handles, labels, columns)
        share = min(0.7, (whole.y1 - axes.get_legend().get_window_extent().y0) / whole.height + 0.02)
        for one in twins(axes):
            bottom, top = one.get_ylim()
            one.set_yticks([tick for tick in one.get_yticks() if bottom <= tick <= top + 1e-9 * (top - bottom)])
            one.set_ylim(bottom, bottom + (top - bottom) / (1 - share))
    return figure


def shorten(text: str, length: int) -> str:
    """A long name without its middle: its end often tells it from another."""
    return text if len(text) <= length else f"{text[: length - length // 2 - 1]}…{text[-(length // 2) :]}"


def caption(figure: Figure, lines: Sequence[str]) -> None:
    """What a reader has to know, below the figure, in lines that fit its width."""
    width = int(figure.get_figwidth() * 72 / (SMALL * CHARACTER)) - 4
    text = "\n".join(textwrap.fill(line, width) for line in lines if line)
    if text:
        figure.supxlabel(text, x=0.01, ha="left", fontsize=SMALL, color=GREY)


def how_drawn(log: pd.DataFrame, how: str = "mean") -> str:
    """What points and lines are, for the caption."""
    window, hidden = window_for(len(log)), -(-len(log) // POINTS)
    apart = int(np.diff(log.index).min()) if len(log) > 1 else 1
    points = "single steps" if apart == 1 else f"means of {apart} steps, as logged"
    points += f", one of {hidden} shown" if hidden > 1 else ""
    return f"Points: {points}{f'; lines: centred {how} of {window} of them' if window > 1 else ''}."
