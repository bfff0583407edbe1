"""The figures: one visual language, colour-blind safe (Okabe and Ito 2008), smoothed lines over raw points."""

from __future__ import annotations

import contextlib
import os
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab import health, runs
from lab.runs import Record

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
Row = dict[str, Any]


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


# --------------------------------------------------------------------------- lines, and room for what is said about them

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
    return values.loc[values.first_valid_index() : values.last_valid_index()] if values.notna().any() else values.iloc[:0]


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
    axes.plot(thin(values).index, thin(values), ".", color=look["color"], alpha=0.4, markersize=4.5, markeredgewidth=0, zorder=1)
    return line


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


def span(record: Record) -> tuple[float, float]:
    """The first step that anything is drawn at, and the last."""
    steps = [*record.log.index[[0, -1]], *record.evaluations["step"]]
    return min(steps), max(steps)


def absent(axes: Axes, record: Record, column: str, why: str = "") -> bool:
    """Whether a metric has no value to draw; then the panel says why."""
    if column in record.log and np.isfinite(record.log[column]).any():
        return False
    said = why or f"{column} was not logged" + (" as a finite number" if column in record.log else "")
    axes.text(0.5, 0.5, textwrap.fill(said, 44), transform=axes.transAxes, ha="center", va="center", color=GREY, fontsize=9)
    axes.set_yticks([])
    axes.grid(False)
    return True


def key(axes: Axes, note: str = "", handles: Sequence[Any] | None = None) -> None:
    """The legend of a panel with a note above it, at the top left; `fit` then makes room for it."""
    found = list(handles) if handles is not None else [h for one in twins(axes) for h in one.get_legend_handles_labels()[0]]
    if found or note:
        _legend(axes, found, [handle.get_label() for handle in found], note)


def _legend(axes: Axes, handles: Sequence[Any], labels: Sequence[str], note: str, columns: int = 1) -> Any:
    legend = axes.legend(
        handles, labels, title=note or None, ncols=columns, loc="upper left", alignment="left", fontsize=SMALL,
        title_fontsize=SMALL, borderaxespad=0.1, borderpad=0.2, labelspacing=0.25, handlelength=2.2, handletextpad=0.5,
        columnspacing=1.2, frameon=True, facecolor="white", edgecolor="none", framealpha=0.9,
    )  # fmt: skip
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


# --------------------------------------------------------------------------- marks: what changed, and when

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
        step = runs.step_in(event)
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
    families = [health.family(name)[0] for name in weights]
    joined = weights.T.groupby(families).first().T if len(families) else weights
    steps = changes(joined)
    if len(steps) > AT_MOST:  # adaptive: the legend says from where to where
        stages = record.about.get("steering", {}).get("stages") or []
        yield from (Mark(start + 0.5, 2, f"next stage of weights from step {start + 1}") for start, *_ in stages if start)
        return
    for before, step in steps:
        told = [f"{name} {a:.3g}→{b:.3g}" for name, a, b in zip(joined, joined.loc[before], joined.loc[step]) if differs(a, b)]
        yield Mark(step - 0.5, 2, f"weights from step {step}: {', '.join(told)}")


def regimes(record: Record) -> dict[int, str]:
    """The steps from which on the total is another sum, with what changed: a reward was edited, or weights changed."""
    edits = {step: f"{name} from step {step}" for step, name in runs.edits(record).items()}
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
        axes.axvline(mark.at, color=GREY, alpha=1 if mark in named else 0.35, linewidth=0.8, linestyle=(0, (2, 2)), zorder=0.5)
    for letter, ones in groups:
        at = float(np.mean([mark.at for mark in ones]))
        axes.annotate(letter, (at, 1), (0, 1), xycoords=axes.get_xaxis_transform(), textcoords="offset points",
                      ha="center", va="bottom", fontsize=SMALL, fontweight="bold", color=GREY)  # fmt: skip
    if found:
        axes.set_title(axes.get_title(loc="left"), pad=13)  # room for the letters


def told_marks(record: Record) -> str:
    """The key to the letters, in one line."""
    found = marks(record)
    said = [f"{letter}:\xa0{', '.join(mark.said for mark in ones)}" for letter, ones in lettered(found, record)]
    more = len(found) - LETTERED
    return "; ".join([*said, *([f"{more} more without a letter"] if more > 0 else [])])


# --------------------------------------------------------------------------- the panels of a run


def draw_total(axes: Axes, record: Record) -> None:
    """Total reward, with a band of one standard deviation over the step's completions, which is TRL's reward_std."""
    panel(axes, record, "Total reward", "weighted sum")
    if absent(axes, record, "reward"):
        return
    cuts = list(regimes(record))
    line = curve(axes, record.log["reward"], color=COLOURS[6], cuts=cuts)
    if "reward_std" in record.log:
        spread = smooth(finite(record.log["reward_std"]), cuts=cuts).reindex(line.index)
        low, high, said = thin(line - spread), thin(line + spread), "± reward_std, over the step's completions"
        axes.fill_between(low.index, low, high, color=COLOURS[6], alpha=0.13, linewidth=0, label=said)
    key(axes, gaps(record.log["reward"]))


def gaps(values: pd.Series) -> str:
    """Says how many steps have no finite number, if any."""
    lost = int((~np.isfinite(values)).sum())
    return f"no finite number in {lost} of {len(values)} steps" if lost else ""


MARKERS = "os^vPX*p"  # a reward's own: lines can be told apart in grey too
DIAMONDS = 16  # held-out evaluations that are shown: more would hide the lines
DASHES = ("-", "--", ":", "-.")  # a version's own


def sorted_names(record: Record) -> list[str]:
    """The rewards as the log has them, each followed by its later versions."""
    names = record.reward_names()
    families = list(dict.fromkeys(health.family(name)[0] for name in names))
    return sorted(names, key=lambda name: (families.index(health.family(name)[0]), health.family(name)[1]))


def looks(names: Sequence[str]) -> dict[str, Row]:
    """A colour and a marker for each reward, a dash for each of its versions."""
    families = list(dict.fromkeys(health.family(name)[0] for name in names))
    found = {}
    for name in names:
        family, version = health.family(name)
        place = families.index(family)
        look = {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}
        found[name] = {**look, "linestyle": DASHES[(version - 1) % len(DASHES)]}
    return found


def draw_each(axes: Axes, record: Record) -> None:
    """Each reward's mean score and weight; an edited one goes on in its colour with another dash, after an open circle."""
    panel(axes, record, "Each reward", "mean score")
    names = sorted_names(record)
    scored = [name for name in names if np.isfinite(record.log[f"rewards/{name}/mean"]).any()]
    if not scored:
        absent(axes, record, "rewards/…/mean", "no reward was ever scored" if names else "")
        return
    weights = record.weights()
    for i, (name, look) in enumerate(looks(scored).items()):
        values = finite(record.log[f"rewards/{name}/mean"])
        apart = max(1, len(thin(values)) // 7)
        marked = {"markersize": 4.5, "markeredgecolor": "white", "markeredgewidth": 0.5}
        marked["markevery"] = (i * apart // 3 % apart, apart)  # lines on each other show both their markers
        line = curve(axes, values, f"{cut(name, 36)} × {weight_text(weights[name])}", **look, **marked, linewidth=1.8)
        if health.family(name)[1] > 1:
            edge = {"markeredgecolor": look["color"], "markeredgewidth": 1.5}
            axes.plot(line.index[0], line.iloc[0], "o", color="white", zorder=4, **edge)
    draw_held_out(axes, record, looks(scored))
    bottom, top = axes.get_ylim()
    axes.set_ylim(min(-0.03, bottom), max(1.03, top))
    silent = [name for name in names if name not in scored]
    key(axes, f"never scored: {', '.join(silent)}" if silent else "")


def weight_text(weights: pd.Series) -> str:
    """A weight as the legend says it: 0.5, or 0.5→1 where it changed while the reward was in use."""
    known = weights.dropna()
    if known.empty:
        return "?"
    first, last = known.iloc[0], known.iloc[-1]
    return f"{first:.2g}→{last:.2g}" if differs(first, last) else f"{first:.3g}"


def draw_held_out(axes: Axes, record: Record, look: dict[str, Row]) -> None:
    """Held-out scores as diamonds, in the colour of the reward that gave them."""
    table = record.evaluations
    measured = [name for name in look if name in table and table[name].notna().any()]
    kept = np.unique(np.linspace(0, len(table) - 1, min(len(table), DIAMONDS)).astype(int))
    for i, name in enumerate(measured):
        points = table[["step", name]].iloc[kept].dropna()
        size = 4 + 2 * min(3, len(measured) - 1 - i)  # smaller and smaller: equal scores lie within each other
        edge = {"markeredgecolor": "black", "markeredgewidth": 0.6}
        axes.plot(points["step"], points[name], "D", color=look[name]["color"], markersize=size, zorder=5, **edge)
    if measured:
        sizes = table["n"].dropna().unique()
        many = f", n = {sizes[0]:.0f}" if len(sizes) == 1 else ""
        many += f" ({len(kept)} of {len(table)} shown)" if len(kept) < len(table) else ""
        how = "greedy" if record.source == "ours" else "sampled"
        axes.plot([], [], "D", color="white", markeredgecolor="black", markersize=5, label=f"held out, {how}{many}")


def draw_signal(axes: Axes, record: Record) -> None:
    """The spread of the totals (left) and the share of groups that have none (right).

    TRL's reward_std is taken over the whole step: different prompts that score differently keep it up, where within
    the groups nothing is left to learn from.
    """
    panel(axes, record, "Signal", "reward_std, whole step")
    missing = [name for name in ("reward_std", "frac_reward_zero_std") if name not in record.log]
    if len(missing) == 2:
        absent(axes, record, "", "neither reward_std nor frac_reward_zero_std was logged")
        return
    if "reward_std" in record.log:
        curve(axes, record.log["reward_std"], "reward_std (left)", color=COLOURS[0])
    axes.set_ylim(bottom=0)
    if "frac_reward_zero_std" in record.log:
        shares = percent_axis(axes, "% of groups without spread")
        said = "% of groups without spread (right)"
        curve(shares, 100 * record.log["frac_reward_zero_std"], said, color=COLOURS[1], linestyle="--")
    key(twins(axes)[-1], f"{missing[0]} was not logged" if missing else "")


def percent_axis(axes: Axes, label: str) -> Axes:
    """A second axis on the right, in percent, that dashed vermilion lines belong to."""
    right = axes.twinx()
    right.set_ylabel(label, color=COLOURS[1], fontsize=9)
    right.tick_params(labelsize=SMALL, colors=COLOURS[1])
    right.set_ylim(0, 103)
    right.set_yticks(range(0, 101, 25))
    right.grid(False)
    return right


def draw_kl(axes: Axes, record: Record) -> None:
    panel(axes, record, "Distance from the base policy", "KL, nats a token")
    beta = record.about.get("requested", {}).get("beta")
    why = "kl was not logged" if beta else "not measured, because beta is 0"
    if absent(axes, record, "kl", "" if "kl" in record.log else why):
        return
    line = curve(axes, record.log["kl"], how="median", color=COLOURS[3])
    above = cap(axes, record.log["kl"], line, COLOURS[3])
    bottom, top = axes.get_ylim()
    said, near = f"the health monitor warns from {health.KL_WARN:g}", top > 0.4 * health.KL_WARN
    if near:
        axes.axhline(health.KL_WARN, color=COLOURS[1], linestyle="--", linewidth=1, label=said)
    axes.set_ylim(min(0.0, bottom), max(top, 1.1 * health.KL_WARN) if near else top)
    key(axes, sentences("" if near else said, above, gaps(record.log["kl"])))


def sentences(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


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


def draw_entropy(axes: Axes, record: Record) -> None:
    panel(axes, record, "Entropy of the policy", "nats a token")
    if not absent(axes, record, "entropy"):
        curve(axes, record.log["entropy"], color=COLOURS[4])
        axes.set_ylim(bottom=0)
        key(axes, gaps(record.log["entropy"]))


FEW = 0.05  # the share of cut completions that gets an axis of its own


def draw_length(axes: Axes, record: Record) -> None:
    """Mean length, the band from the shortest to the longest completion, and the share that was cut at the limit."""
    panel(axes, record, "Completion length", "tokens")
    if absent(axes, record, "completions/mean_length"):
        return
    log, colour = record.log, COLOURS[2]
    curve(axes, log["completions/mean_length"], "mean", color=colour)
    if {"completions/min_length", "completions/max_length"} <= {*log}:
        low, high = ends(log["completions/min_length"], log["completions/max_length"])
        axes.fill_between(low.index, low, high, color=colour, alpha=0.15, linewidth=0, label="shortest–longest")
    top, limit = axes.get_ylim()[1], record.about.get("requested", {}).get("max_completion_length")
    near = limit and top > 0.75 * limit
    if near:
        axes.axhline(limit, color=GREY, linewidth=1, linestyle="-.", label=f"limit: {limit} tokens")
    axes.set_ylim(0, max(top, 1.03 * limit) if near else top)
    clipped = log.get("completions/clipped_ratio", pd.Series(dtype=float))
    if not (clipped > FEW).any():
        at_most = f"cut at the limit: at most {100 * clipped.max():.2g} % of a step's completions"
        key(axes, "none was cut at the limit" if clipped.max() == 0 else at_most if clipped.notna().any() else "")
        return
    curve(percent_axis(axes, "% cut at the limit"), 100 * clipped, "% cut (right)", color=COLOURS[1], linestyle="--")
    key(twins(axes)[-1])


def ends(low: pd.Series, high: pd.Series) -> tuple[pd.Series, pd.Series]:
    """The lowest and the highest of each stretch of steps, so that few points keep every extreme."""
    stretch = np.arange(len(low)) // max(1, -(-len(low) // POINTS))
    places = low.index[np.unique(stretch, return_index=True)[1]]
    return low.groupby(stretch).min().set_axis(places), high.groupby(stretch).max().set_axis(places)


TIMES = {"generating": COLOURS[0], "scoring": COLOURS[6], "learning": COLOURS[4]}


def draw_step_time(axes: Axes, record: Record) -> None:
    """Where a step's seconds go: generating, scoring, and the rest, which is learning."""
    panel(axes, record, "Time a step takes", "seconds")
    if absent(axes, record, "step_time"):
        return
    whole = finite(record.log["step_time"])
    line = curve(axes, whole, "whole step", how="median", color=COLOURS[6], linewidth=1)
    measured = [name for name in TIMES if f"time/{name}" in record.log]
    parts = {name: smooth(record.log[f"time/{name}"].reindex(whole.index), how="median") for name in measured}
    if parts:
        parts["learning"] = (line - sum(parts.values())).clip(lower=0)
        labels = [f"{name}, {values.median():.2g} s" for name, values in parts.items()]
        stack = [thin(values) for values in parts.values()]
        colours = [TIMES[name] for name in parts]
        axes.stackplot(stack[0].index, stack, colors=colours, alpha=0.6, linewidth=0, labels=labels)
    above = cap(axes, whole, line, COLOURS[6])
    axes.set_ylim(bottom=0)
    handles, _ = axes.get_legend_handles_labels()
    key(axes, sentences("" if parts else "its parts were not logged", above), [*reversed(handles[1:]), handles[0]])


def draw_loss(axes: Axes, record: Record) -> None:
    panel(axes, record, "Loss", "loss")
    if absent(axes, record, "loss"):
        return
    line = curve(axes, record.log["loss"], color=COLOURS[5])
    above = cap(axes, record.log["loss"], line, COLOURS[5], from_zero=False)
    axes.axhline(0, color=GREY, linewidth=0.8)
    key(axes, "\n".join(filter(None, (why_the_loss(record), sentences(above, gaps(record.log["loss"]))))))


def why_the_loss(record: Record) -> str:
    """What the level of the loss comes from: -mean(advantage · tokens) / mean(tokens), plus beta · KL."""
    said = "No measure of progress: a group's advantages sum to 0"
    if record.about.get("requested", {}).get("loss_type") != "grpo":  # there each completion counts the same
        said += "; below 0, the better completions are the longer ones"
    return said + ("; beta × KL is added." if "kl" in record.log else ".")


def draw_setting(axes: Axes, record: Record, column: str, title: str, unit: str) -> None:
    """A setting over the steps: no noise, so no smoothing."""
    panel(axes, record, title, unit)
    if absent(axes, record, column):
        return
    values = finite(record.log[column])
    look = ".-" if len(values) < 2 else "-"
    axes.plot(thin(values).index, thin(values), look, drawstyle="steps-mid", color=COLOURS[6], linewidth=1.8)
    axes.set_ylim(bottom=0)
    if not differs(values.min(), values.max()):
        key(axes, f"constant, {values.iloc[0]:.3g}")


def draw_temperature(axes: Axes, record: Record) -> None:
    draw_setting(axes, record, "temperature", "Sampling temperature", "temperature")


def draw_learning_rate(axes: Axes, record: Record) -> None:
    draw_setting(axes, record, "learning_rate", "Learning rate", "learning rate")


PANELS: dict[str, Callable[[Axes, Record], None]] = {
    "total_reward": draw_total, "each_reward": draw_each, "signal": draw_signal, "kl": draw_kl, "length": draw_length,
    "entropy": draw_entropy, "step_time": draw_step_time, "loss": draw_loss, "learning_rate": draw_learning_rate,
    "temperature": draw_temperature,
}  # fmt: skip
SETTINGS = ("learning_rate", "temperature")  # without noise, and drawn small
MEDIANS = ("kl", "step_time")  # where a single step may be wild


def live_figure(record: Record) -> Figure:
    """What a person watches while training: total reward, each reward, and how held-out answers do."""
    with styled():
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
        draw_total(axes[0], record)
        draw_each(axes[1], record)
        caption(figure, [told_marks(record)])
        return fit(figure)


def training_figure(record: Record, title: str = "") -> Figure:
    """All panels of a run on one sheet."""
    rows = len(PANELS) // 2
    heights = [2.9 + 0.15 * max(0, len(record.reward_names()) - 3), *[2.3] * (rows - 2), 1.5]  # settings last; long legends first
    with styled():
        figure, axes = plt.subplots(rows, 2, figsize=(9, sum(heights) + 0.7), height_ratios=heights, layout="constrained")
        for draw, place in zip(PANELS.values(), axes.flat, strict=True):
            draw(place, record)
        for place in axes[:-1].flat:
            place.set_xlabel("")
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        drawn = " ".join([how_drawn(record, "mean (KL, time: median)"), *(f"{note}." for note in record.notes)])
        caption(figure, [told_marks(record), drawn])
        return fit(figure)


def one_panel(name: str, record: Record) -> Figure:
    with styled():
        figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
        PANELS[name](axes, record)
        how = "median" if name in MEDIANS else "mean"
        caption(figure, [told_marks(record), "" if name in SETTINGS else how_drawn(record, how)])
        return fit(figure)


# --------------------------------------------------------------------------- several runs beside each other


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
        return f"{self.letter}: {cut(self.label, 90)}" + (f" (n = {len(self.records)})" if len(self.records) > 1 else "")


def grouped(records: Sequence[Record], by: Callable[[Record], str] | None) -> list[Group]:
    """The runs by their label, each group with its colour and dash."""
    found: dict[str, list[Record]] = {}
    for record, label in zip(records, [by(record) for record in records] if by else runs.labels(records)):
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

    if all(runs.correct(record).notna().any() for record in records):
        middle = [("Correctness", SCORE, runs.correct, "mean")]
    else:
        middle = [(name, SCORE, lambda record, name=name: runs.scores(record)[name], "mean") for name in shared(records)[:4]]
    return [
        ("Total reward", TOTAL, column("reward"), "mean"), *middle,
        ("Distance from the base policy", "KL, nats a token", column("kl"), "median"),
        ("Completion length", "tokens", column("completions/mean_length"), "mean"),
    ]  # fmt: skip


def shared(records: Sequence[Record]) -> list[str]:
    """The rewards that all runs have, without version."""
    return [name for name in runs.scores(records[0]) if all(name in runs.scores(record) for record in records)]


def what_differs(groups: Sequence[Group]) -> list[str]:
    """What keeps the runs from being compared in all that is drawn, in sentences."""
    every = [(group.letter, record) for group in groups for record in group.records]
    common = shared([record for _, record in every])
    weights = by_value(every, lambda one: " + ".join(f"{name} × {w:g}" for name, w in sorted(runs.last_weights(one).items())))
    right = by_value(every, lambda record: " and ".join(runs.deciding(record)))
    sources = by_value(every, lambda record: record.about.get("rewards", {}).get("source_sha256", "")[:8])
    said = {
        "The totals are not on one scale, for the weights differ; at the end: ": weights if len(weights) > 1 else [],
        "Correctness is what different rewards say: ": right if len(right) > 1 else [],
        "Not in all runs, so in their totals only: ":
            [f"{name} ({letter})" for letter, record in every for name in runs.scores(record) if name not in common],
        "✕: from here on the total is another sum: ":
            [f"{said} ({letter})" for letter, record in every for said in regimes(record).values()],
        "The rewards' sources differ: scores of one name may measure different things: ": sources if len(sources) > 1 else [],
        "KL was not measured, because beta is 0: ": [letter for letter, record in every if "kl" not in record.log],
        "Drawn up to where the shortest of its runs ends: ":
            [group.letter for group in groups if len({record.log.index[-1] for record in group.records}) > 1],
    }  # fmt: skip
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
        raise ValueError("There is no run to compare: give what lab.runs.read returns for each.")
    groups, panels = grouped(records, by), compared_panels(records)
    rows = -(-len(panels) // 2)
    with styled():
        figure, axes = plt.subplots(rows, 2, figsize=(9, 2.7 * rows + 0.9), layout="constrained", squeeze=False)
        for place, (name, unit, pick, how) in zip(axes.flat, panels):
            draw_compared(place, groups, pick, how)
            place.set(title=name, ylabel=unit)
            low, high = place.get_ylim()
            place.set_ylim((min(-0.03, low), max(1.03, high)) if unit == SCORE else (low, high) if unit == TOTAL else (0, high))
        for place in axes.flat[len(panels) :]:
            place.set_visible(False)
        entitle(figure, groups, title)
        several = "; bands: lowest to highest of the runs of a label" if any(len(group.records) > 1 for group in groups) else ""
        caption(figure, [f"Lines are smoothed{several}.", *what_differs(groups)])
    return figure


def entitle(figure: Figure, groups: Sequence[Group], title: str) -> None:
    """The title and one legend for all panels, above them."""
    handles = [plt.Line2D([], [], linewidth=2, label=group.entry, **group.look) for group in groups]
    columns = max(1, min(3, len(handles), 120 // (max(len(group.entry) for group in groups) + 8)))
    figure.legend(
        handles=handles, loc="outside upper left", ncols=columns, fontsize=9, handlelength=3,
        title=title or None, title_fontsize=12, alignment="left",
    )  # fmt: skip


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
    for name, values in runs.scores(record).items():
        line = smooth(finite(values)).dropna()
        known = len(line) >= 15
        begin, end = (line.iloc[:5].mean(), line.iloc[-5:].mean()) if known else (np.nan, np.nan)
        passed = line.index[(line - begin) >= (end - begin) / 2] if end > begin else []
        lines[name] = {"begin": begin, "end": end, "halfway at step": int(passed[0]) if len(passed) else None}
    table = pd.DataFrame.from_dict(lines, orient="index", columns=["begin", "end", "halfway at step"])
    return table.astype({"halfway at step": "Int64"}).rename_axis("reward")


def token_histogram(prompts_by_tokens: dict[int, int], limit: int) -> Figure:
    """How many prompts have each length in tokens, with the limit that follows from them."""
    lengths = np.repeat(list(prompts_by_tokens), list(prompts_by_tokens.values()))
    with styled():
        figure, axes = plt.subplots(figsize=(6.5, 3), layout="constrained")
        axes.hist(lengths, bins=min(40, len(prompts_by_tokens)))
        axes.axvline(limit, color=COLOURS[1], linestyle="--", label=f"limit: {limit} tokens")
        axes.set(title="Prompt lengths", xlabel="tokens, chat template included", ylabel="prompts")
        axes.legend()
    return figure


def draw_groups(axes: Axes, scores: np.ndarray) -> int:
    """A column a group, a dot a completion, a bar for the mean; crosses in a group without spread.

    Args:
        scores: shape (groups, completions).

    Returns how many groups have no spread.
    """
    flat = np.ptp(scores, axis=1) < 1e-9
    places = np.arange(len(scores))[:, None] + np.linspace(-0.25, 0.25, scores.shape[1])
    size = float(np.clip(60 / len(scores), 2.5, 5))
    for which, marker, colour, label in ((~flat, "o", COLOURS[0], "completion"), (flat, "x", COLOURS[1], "no spread")):
        if which.any():
            axes.plot(places[which].ravel(), scores[which].ravel(), marker, color=colour, alpha=0.7, markersize=size, label=label)
    middle, mean = np.arange(len(scores))[~flat], scores[~flat].mean(axis=1)  # without spread the crosses are the mean
    axes.hlines(mean, middle - 0.35, middle + 0.35, color="black", linewidth=1.5, label="mean")
    axes.set(xlabel="group (one prompt each)", ylabel="total reward")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return int(flat.sum())


def spread_figure(rewards: dict[str, np.ndarray]) -> Figure:
    """Scores of the same groups by several rewards, each of shape (groups, completions), one panel a reward."""
    with styled():
        size = (3.6 * len(rewards), 2.9)
        figure, panels = plt.subplots(1, len(rewards), figsize=size, sharey=True, layout="constrained", squeeze=False)
        for axes, (name, scores) in zip(panels[0], rewards.items()):
            flat = draw_groups(axes, scores)
            axes.set_title(f"{name}:\nspread in {len(scores) - flat} of {len(scores)} groups", fontsize=10)
            axes.set_ylabel("score" if axes is panels[0][0] else "")
    return figure


def short(name: str) -> str:
    """A reward's name as a label: length_reward[longest=40] is length[longest=40]."""
    return name.replace("_reward", "")


def draw_shares(axes: Axes, record: dict[str, Any]) -> None:
    """Share of groups with spread, a bar a reward and one for the total; grey where the weight is 0."""
    names, shares, labels, colours = [], [], [], []
    for name, line in {**record["rewards"], "total": record["total"]}.items():
        failed = line["groups_without_spread"] is None
        shares.append(0.0 if failed else 100 * (1 - line["groups_without_spread"]))
        labels.append("failed" if failed else f"{shares[-1]:.0f} %")
        names.append("\n".join([*textwrap.wrap(short(name), 16), *(["(weight 0)"] if line["weight"] == 0 else [])]))
        colours.append("#BBBBBB" if line["weight"] == 0 else COLOURS[5] if line["weight"] else COLOURS[0])
    axes.bar_label(axes.barh(range(len(names)), shares, 0.6, color=colours), labels, padding=3, fontsize=9)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set(title=f"Signal in {shares[-1]:.0f} % of groups", xlabel="percent of groups with spread", xlim=(0, 125))
    axes.set_xticks(range(0, 101, 25))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def draw_pass(axes: Axes, passed: dict[str, Any]) -> None:
    """pass@k over k with its 95 % interval."""
    axes.set(xlabel="k completions of a prompt", ylabel="pass@k, percent", ylim=(-3, 103))
    if not passed["at"]:
        axes.set_title("No completion could be judged")
        return
    sizes = [int(k) for k in passed["at"]]
    middle, low, high = (100 * np.array([at[key] for at in passed["at"].values()]) for key in ("estimate", "low", "high"))
    axes.fill_between(sizes, low, high, color=COLOURS[2], alpha=0.2, linewidth=0, label="95 % interval")
    axes.plot(sizes, middle, "o-", color=COLOURS[2], linewidth=2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(k) for k in sizes])
    axes.minorticks_off()
    axes.set_title(f"pass@k: {middle[0]:.0f} % to {middle[-1]:.0f} %")
    place = "lower right" if middle[-1] > 50 else "upper right"
    axes.legend(loc=place, title=f"judged by\n{short(passed['decided_by'])}", title_fontsize=9)


def preflight_figure(record: dict[str, Any]) -> Figure:
    """A preflight's record in three panels: totals by group, share of groups with signal, pass@k."""
    with styled():
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3.5), width_ratios=(1.3, 1, 1), layout="constrained")
        flat = draw_groups(left, np.array(record["totals"]))
        left.set_title(f"{flat} of {record['groups']} groups without spread")
        bottom, top = left.get_ylim()
        left.set_ylim(bottom, top + 0.18 * (top - bottom))  # room for the legend
        left.legend(loc="upper left", ncols=3, handletextpad=0.3, columnspacing=1)
        draw_shares(middle, record)
        draw_pass(right, record["pass"])
        for axes in figure.axes:
            axes.title.set_fontsize(10)
    return figure


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
            1, 2 + shown, figsize=(width, max(height, 2.2 + 0.2 * len(lines))), layout="constrained",
            width_ratios=(1.15, 0.95, 1.25) if shown else (1, 1),
        )  # fmt: skip
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
            axes.annotate(f"{value:.0f}", (place, top), (0, 1), textcoords="offset points", ha="center", va="bottom",
                          fontsize=SMALL)  # fmt: skip
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
        left.set(title=f"{record['n']} held-out problems", xlabel="k, samples allowed", ylabel="pass@k, percent", ylim=(0, 105))
        left.legend(loc="lower right")
        middle, low, high = (
            100 * np.array([record["pass"][k]["difference"][key] for k in ks]) for key in ("estimate", "low", "high")
        )
        right.errorbar(middle, range(len(ks)), xerr=[middle - low, high - middle], fmt="o", capsize=5, color=COLOURS[0])
        right.axvline(0, color="grey", linewidth=1)
        right.set_yticks(range(len(ks)), [f"pass@{k}" for k in ks])
        right.set(title="After minus before", xlabel="percentage points, 95 % interval", ylim=(-0.6, len(ks) - 0.4))
    return figure


# --------------------------------------------------------------------------- notebook 07: recipes side by side


def over_seeds(runs: list[Row], recipe: str, window: int = 5) -> np.ndarray:
    """Share of right completions, shape (seeds, steps), each the mean of the last `window` steps."""
    curves = [pd.Series(run["curves"]["correctness"], dtype=float) for run in runs if run["recipe"] == recipe]
    return np.array([values.rolling(window, min_periods=1).mean() for values in curves])


def draw_comparison(axes: Axes, runs: list[Row], names: dict[str, str]) -> None:
    """Mean over seeds with a band from the lowest to the highest seed; the first name is the baseline, in black.

    Args:
        names: recipe -> its label here.
    """
    for place, (recipe, label) in enumerate(names.items()):
        curves = 100 * over_seeds(runs, recipe)
        steps, colour = np.arange(1, curves.shape[1] + 1), COLOURS[-1] if place == 0 else COLOURS[place - 1]
        axes.fill_between(steps, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.12, linewidth=0)
        style = ("-", "--", ":", "-.")[place % 4]  # lines that lie on each other are both seen
        axes.plot(steps, curves.mean(axis=0), style, color=colour, linewidth=2, label=f"{label} ({len(curves)})", zorder=3)
    axes.legend(loc="upper left", title="(seeds)", title_fontsize=8, fontsize=8, alignment="left")


def recipes_figure(runs: list[Row], comparisons: Any, title: str = "") -> Figure:
    """A panel for each comparison that has runs: how much of the training batch was right, by step.

    Args:
        runs: records of `lab.recipes`: recipe, seed, curves.
        comparisons: `lab.recipes.COMPARISONS`.

    Raises ValueError where there is no run of the baseline with another recipe.
    """
    there = {run["recipe"] for run in runs}
    shown = [(c, [name for name in c.recipes if name in there]) for c in comparisons]
    shown = [(comparison, names) for comparison, names in shown if names]
    if "baseline" not in there or not shown:
        raise ValueError(
            f"A figure needs runs of the baseline and of another recipe; there are: {', '.join(sorted(there)) or 'none'}."
        )
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    with styled():
        figure, axes = plt.subplots(
            rows,
            columns,
            figsize=(4.5 * columns, 2.7 * rows + 0.3),
            sharex=True,
            sharey=True,
            layout="constrained",
            squeeze=False,
        )
        for place, (comparison, names) in zip(axes.flat, shown):
            draw_comparison(place, runs, {"baseline": f"baseline: {comparison.baseline}", **{name: name for name in names}})
            place.set(title=comparison.title, ylim=(-3, 108))
            place.xaxis.get_major_locator().set_params(integer=True)
        for place in axes.flat[len(shown) :]:
            place.set_visible(False)
        for place in axes[:, 0]:
            place.set_ylabel("correct, percent")
        for place in axes[-1]:
            place.set_xlabel("training step")
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def recipes_forest(table: pd.DataFrame, title: str = "") -> Figure:
    """Differences from the baseline with their 95 % intervals; full dots where the interval leaves 0 out.

    Args:
        table: what `lab.recipes.compare` returns.
    """
    rows = table[table.index != "baseline"]
    sides = {"correct": "Held-out problems, greedy", "curve": "While training, mean of all steps"}
    with styled():
        figure, axes = plt.subplots(1, 2, figsize=(9, 0.28 * len(rows) + 1.4), sharey=True, layout="constrained")
        for place, (measure, name) in zip(axes, sides.items()):
            middle, low, high = (100 * rows[f"{measure}_{end}"].to_numpy(float) for end in ("difference", "low", "high"))
            for y, (at, left, right) in enumerate(zip(middle, low, high)):
                clear = left > 0 or right < 0  # never without an interval, where both are NaN
                colour = COLOURS[1 if clear and at < 0 else 0] if clear else "#777777"
                place.plot([left, right], [y, y], color=colour, linewidth=2)
                place.plot(at, y, "o", color=colour, markerfacecolor=colour if clear else "white", markersize=6)
            place.axvline(0, color="black", linewidth=1)
            place.set(title=name, xlabel="percentage points from the baseline")
            place.set_yticks(range(len(rows)), rows.index)
        axes[0].invert_yaxis()
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure
