"""The curves of one training run: ten panels, on one sheet, alone or live."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.files import Row
from lab.read import health_rules, run_log
from lab.read.run_record import Record
from lab.show.event_marks import differs, marks_in_words, panel, regimes
from lab.show.figure_style import (
    COLOURS,
    DASHES,
    GREY,
    POINTS,
    SMALL,
    absent,
    cap,
    caption,
    curve,
    cut,
    finite,
    fit,
    how_drawn,
    key,
    smooth,
    styled,
    thin,
    twins,
)


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


def sorted_names(record: Record) -> list[str]:
    """The rewards as the log has them, each followed by its later versions."""
    names = record.reward_names()
    families = list(dict.fromkeys(run_log.family(name)[0] for name in names))
    return sorted(names, key=lambda name: (families.index(run_log.family(name)[0]), run_log.family(name)[1]))


def looks(names: Sequence[str]) -> dict[str, Row]:
    """A colour and a marker for each reward, a dash for each of its versions."""
    families = list(dict.fromkeys(run_log.family(name)[0] for name in names))
    found = {}
    for name in names:
        family, version = run_log.family(name)
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
        if run_log.family(name)[1] > 1:
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
    said, near = f"the health monitor warns from {health_rules.KL_WARN:g}", top > 0.4 * health_rules.KL_WARN
    if near:
        axes.axhline(health_rules.KL_WARN, color=COLOURS[1], linestyle="--", linewidth=1, label=said)
    axes.set_ylim(min(0.0, bottom), max(top, 1.1 * health_rules.KL_WARN) if near else top)
    key(axes, sentences("" if near else said, above, gaps(record.log["kl"])))


def sentences(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


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
    "total_reward": draw_total,
    "each_reward": draw_each,
    "signal": draw_signal,
    "kl": draw_kl,
    "length": draw_length,
    "entropy": draw_entropy,
    "step_time": draw_step_time,
    "loss": draw_loss,
    "learning_rate": draw_learning_rate,
    "temperature": draw_temperature,
}
SETTINGS = ("learning_rate", "temperature")  # without noise, and drawn small
MEDIANS = ("kl", "step_time")  # where a single step may be wild


def live_figure(record: Record) -> Figure:
    """What a person watches while training: total reward, each reward, and how held-out answers do."""
    with styled():
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
        draw_total(axes[0], record)
        draw_each(axes[1], record)
        caption(figure, [marks_in_words(record)])
        return fit(figure)


def training_figure(record: Record, title: str = "") -> Figure:
    """All panels of a run on one sheet."""
    rows = len(PANELS) // 2
    heights = [
        2.9 + 0.15 * max(0, len(record.reward_names()) - 3),
        *[2.3] * (rows - 2),
        1.5,
    ]  # settings last; long legends first
    with styled():
        figure, axes = plt.subplots(
            rows, 2, figsize=(9, sum(heights) + 0.7), height_ratios=heights, layout="constrained"
        )
        for draw, place in zip(PANELS.values(), axes.flat, strict=True):
            draw(place, record)
        for place in axes[:-1].flat:
            place.set_xlabel("")
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        drawn = " ".join([how_drawn(record, "mean (KL, time: median)"), *(f"{note}." for note in record.notes)])
        caption(figure, [marks_in_words(record), drawn])
        return fit(figure)


def one_panel(name: str, record: Record) -> Figure:
    with styled():
        figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
        PANELS[name](axes, record)
        how = "median" if name in MEDIANS else "mean"
        caption(figure, [marks_in_words(record), "" if name in SETTINGS else how_drawn(record, how)])
        return fit(figure)
