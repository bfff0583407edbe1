"""The curves of one training run: ten panels, on one sheet, alone, or live while it trains."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.files import Row
from lab.read import health_rules, run_record
from lab.read.reward_names import split_version
from lab.read.run_record import RunRecord
from lab.show import figure_style as style
from lab.show.event_marks import differs, marked_panel, marks_in_words, regimes

MARKERS = "os^vPX*p"  # one for each reward, so that lines can be told apart in grey print too
DIAMONDS = 16  # held-out evaluations that are drawn: more would hide the lines
FEW_CUT = 5  # percent of completions cut at the limit, above which they get an axis of their own
TIMES = {"generating": style.BLUE, "scoring": style.BLACK, "learning": style.ORANGE}


def live_figure(record: RunRecord) -> Figure:
    """What a person watches while training: total reward, each reward, and the scores of held-out answers."""
    return panels_in_a_row(record, ("total_reward", "each_reward"), (9, 3.6))


def training_figure(record: RunRecord, title: str = "") -> Figure:
    """All panels of a run on one sheet."""
    rows = len(PANELS) // 2
    first = 2.9 + 0.15 * max(0, len(record.reward_names()) - 3)  # a long legend needs room
    heights = [first, *[2.3] * (rows - 2), 1.5]
    with style.styled():
        size = (9, sum(heights) + 0.7)
        figure, axes = plt.subplots(rows, 2, figsize=size, height_ratios=heights, layout="constrained")
        for name, place in zip(PANELS, axes.flat, strict=True):
            draw_panel(place, record, name)
        for place in axes[:-1].flat:
            place.set_xlabel("")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        drawn = [style.how_drawn(record.log, "mean (KL, time: median)"), *(f"{note}." for note in record.notes)]
        style.caption(figure, [marks_in_words(record), " ".join(drawn)])
        return style.fit_legends(figure)


def one_panel(name: str, record: RunRecord) -> Figure:
    """One of `PANELS` as a figure of its own."""
    how = PANELS[name].smoothed
    return panels_in_a_row(record, [name], (6.5, 4), style.how_drawn(record.log, how) if how else "")


def panels_in_a_row(record: RunRecord, names: Sequence[str], size: tuple[float, float], below: str = "") -> Figure:
    with style.styled():
        figure, axes = plt.subplots(1, len(names), figsize=size, layout="constrained", squeeze=False)
        for name, place in zip(names, axes.flat):
            draw_panel(place, record, name)
        style.caption(figure, [marks_in_words(record), below])
        return style.fit_legends(figure)


def draw_panel(axes: Axes, record: RunRecord, name: str) -> None:
    """Draws one of `PANELS`, or says in it why there is nothing to draw."""
    title, unit, column, draw, _ = PANELS[name]
    marked_panel(axes, record, title, unit)
    unmeasured = column == "kl" and "kl" not in record.log and not record.about.get("requested", {}).get("beta")
    why = "not measured, because beta is 0" if unmeasured else ""
    if not (column and style.lacks_data(axes, record.log, column, why)):
        draw(axes, record)


def draw_total(axes: Axes, record: RunRecord) -> None:
    """Total reward, with a band of one standard deviation over the step's completions, which is TRL's reward_std."""
    cuts = list(regimes(record))
    line = style.curve(axes, record.log["reward"], color=style.BLACK, cuts=cuts)
    if "reward_std" in record.log:
        spread = style.smooth(style.finite(record.log["reward_std"]), cuts=cuts).reindex(line.index)
        label = "± reward_std, over the step's completions"
        axes.fill_between(line.index, line - spread, line + spread, color=style.BLACK, alpha=0.13, lw=0, label=label)
    style.add_legend(axes, gaps(record.log["reward"]))


def gaps(values: pd.Series) -> str:
    """Says how many steps have no finite number, if any."""
    lost = int((~np.isfinite(values)).sum())
    return f"no finite number in {lost} of {len(values)} steps" if lost else ""


def draw_each(axes: Axes, record: RunRecord) -> None:
    """Each reward's mean score and its weight. An edited reward keeps its colour and gets another dash."""
    means = {name: style.finite(record.log[f"rewards/{name}/mean"]) for name in record.reward_names()}
    looks = reward_looks([name for name, values in means.items() if len(values)])
    if not looks:
        style.lacks_data(axes, record.log, "rewards/…/mean", "no reward was ever scored" if means else "")
        return
    weights = record.weights()
    for nth, (name, look) in enumerate(looks.items()):
        apart = max(1, len(style.thin(means[name])) // 7)
        places = (nth * apart // 3 % apart, apart)  # lines on each other show both their markers
        marker = {"markevery": places, "markersize": 4.5, "markeredgecolor": "white", "markeredgewidth": 0.5}
        label = f"{style.shorten(name, 36)} × {weight_text(weights[name])}"
        style.curve(axes, means[name], label, **look, **marker, linewidth=1.8)
    draw_held_out(axes, record, looks)
    bottom, top = axes.get_ylim()
    axes.set_ylim(min(-0.03, bottom), max(1.03, top))
    silent = [name for name in means if name not in looks]
    style.add_legend(axes, f"never scored: {', '.join(silent)}" if silent else "")


def reward_looks(names: Sequence[str]) -> dict[str, Row]:
    """A colour and a marker for each reward, a dash for each version of it. Versions stand beside each other."""
    bases, looks = list(dict.fromkeys(split_version(name)[0] for name in names)), {}
    for place, version, name in sorted(
        (bases.index(split_version(name)[0]), split_version(name)[1], name) for name in names
    ):
        look = {"color": style.COLOURS[place % len(style.COLOURS)], "marker": MARKERS[place % len(MARKERS)]}
        looks[name] = {**look, "linestyle": style.DASHES[(version - 1) % len(style.DASHES)]}
    return looks


def weight_text(weights: pd.Series) -> str:
    """A weight for the legend: 0.5, or 0.5→1 where it changed while the reward was in use."""
    known = weights.dropna()
    if known.empty:
        return "?"
    first, last = known.iloc[[0, -1]]
    return f"{first:.2g}→{last:.2g}" if differs(first, last) else f"{first:.3g}"


def draw_held_out(axes: Axes, record: RunRecord, looks: dict[str, Row]) -> None:
    """Held-out scores as diamonds, in the colour of the reward that gave them."""
    table = record.evaluations
    measured = [name for name in looks if name in table and table[name].notna().any()]
    drawn = table.iloc[np.unique(np.linspace(0, len(table) - 1, min(len(table), DIAMONDS)).astype(int))]
    edge = {"marker": "D", "linestyle": "", "markeredgecolor": "black", "markeredgewidth": 0.6, "zorder": 5}
    for nth, name in enumerate(measured):
        size = 4 + 2 * min(3, len(measured) - 1 - nth)  # smaller and smaller: equal scores lie within each other
        axes.plot(drawn["step"], drawn[name], color=looks[name]["color"], markersize=size, **edge)
    if measured:
        sizes = table["n"].dropna().unique()
        how = "greedy" if record.source == "ours" else "sampled"
        how += f", n = {sizes[0]:.0f}" if len(sizes) == 1 else ""
        how += f" ({len(drawn)} of {len(table)} shown)" if len(drawn) < len(table) else ""
        axes.plot([], [], color="white", markersize=5, label=f"held out, {how}", **edge)


def draw_signal(axes: Axes, record: RunRecord) -> None:
    """The spread of a step's totals (left), which different prompts keep up, and the share of groups without (right)."""
    style.curve(axes, record.log["reward_std"], "reward_std (left)")
    axes.set_ylim(bottom=0)
    if "frac_reward_zero_std" in record.log:
        right = style.percent_axis(axes, "% of groups without spread")
        shares, label = 100 * record.log["frac_reward_zero_std"], "% of groups without spread (right)"
        style.curve(right, shares, label, color=style.VERMILION, linestyle="--")
        style.add_legend(right)
    else:
        style.add_legend(axes, "frac_reward_zero_std was not logged")


def draw_kl(axes: Axes, record: RunRecord) -> None:
    line = style.curve(axes, record.log["kl"], how="median", color=style.PINK)
    outliers = style.cap_outliers(axes, record.log["kl"], line, style.PINK)
    bottom, top = axes.get_ylim()
    limit, near = f"the health monitor warns from {health_rules.KL_WARN:g}", top > 0.4 * health_rules.KL_WARN
    if near:
        axes.axhline(health_rules.KL_WARN, color=style.VERMILION, linestyle="--", linewidth=1, label=limit)
    axes.set_ylim(min(0.0, bottom), max(top, 1.1 * health_rules.KL_WARN) if near else top)
    style.add_legend(axes, "; ".join(filter(None, ("" if near else limit, outliers, gaps(record.log["kl"])))))


def draw_entropy(axes: Axes, record: RunRecord) -> None:
    style.curve(axes, record.log["entropy"], color=style.ORANGE)
    axes.set_ylim(bottom=0)
    style.add_legend(axes, gaps(record.log["entropy"]))


def draw_length(axes: Axes, record: RunRecord) -> None:
    """Mean length, a band from the shortest to the longest completion, and the share that was cut at the limit."""
    log, colour = record.log, style.GREEN
    style.curve(axes, log["completions/mean_length"], "mean", color=colour)
    if {"completions/min_length", "completions/max_length"} <= {*log}:
        low, high = log["completions/min_length"], log["completions/max_length"]
        axes.fill_between(log.index, low, high, color=colour, alpha=0.15, linewidth=0, label="shortest–longest")
    top, limit = axes.get_ylim()[1], record.about.get("requested", {}).get("max_completion_length")
    near = limit and top > 0.75 * limit
    if near:
        axes.axhline(limit, color=style.GREY, linewidth=1, linestyle="-.", label=f"limit: {limit} tokens")
    axes.set_ylim(0, max(top, 1.03 * limit) if near else top)
    cut = 100 * log.get("completions/clipped_ratio", pd.Series(np.nan, log.index))
    if cut.max() > FEW_CUT:
        right = style.percent_axis(axes, "% cut at the limit")
        style.curve(right, cut, "% cut (right)", color=style.VERMILION, linestyle="--")
        style.add_legend(right)
    else:
        most = f"cut at the limit: at most {cut.max():.2g} % of a step's completions" if cut.notna().any() else ""
        style.add_legend(axes, "none was cut at the limit" if cut.max() == 0 else most)


def draw_step_time(axes: Axes, record: RunRecord) -> None:
    """Where a step's seconds go: generating, scoring, and the rest, which is learning."""
    whole = style.finite(record.log["step_time"])
    line = style.curve(axes, whole, "whole step", how="median", color=style.BLACK, linewidth=1)
    measured = [name for name in TIMES if f"time/{name}" in record.log]
    parts = {name: style.smooth(record.log[f"time/{name}"].reindex(whole.index), "median") for name in measured}
    if parts:
        parts["learning"] = (line - sum(parts.values())).clip(lower=0)
        labels = [f"{name}, {values.median():.2g} s" for name, values in parts.items()]
        colours = [TIMES[name] for name in parts]
        axes.stackplot(line.index, *parts.values(), labels=labels, colors=colours, alpha=0.6, linewidth=0)
    outliers = style.cap_outliers(axes, whole, line, style.BLACK)
    axes.set_ylim(bottom=0)
    handles, _ = axes.get_legend_handles_labels()
    note = "; ".join(filter(None, ("" if parts else "its parts were not logged", outliers)))
    style.add_legend(axes, note, [*reversed(handles[1:]), handles[0]])


def draw_loss(axes: Axes, record: RunRecord) -> None:
    loss = record.log["loss"]
    line = style.curve(axes, loss, color=style.SKY)
    outliers = style.cap_outliers(axes, loss, line, style.SKY, from_zero=False)
    axes.axhline(0, color=style.GREY, linewidth=0.8)
    # the loss is -mean(advantage · tokens) / mean(tokens), plus beta · KL; with grpo each completion counts the same
    why = "No measure of progress: a group's advantages sum to 0"
    if record.about.get("requested", {}).get("loss_type") != "grpo":
        why += "; below 0, the better completions are the longer ones"
    why += "; beta × KL is added." if "kl" in record.log else "."
    style.add_legend(axes, "\n".join(filter(None, (why, outliers, gaps(loss)))))


def draw_setting(axes: Axes, record: RunRecord, column: str) -> None:
    """A setting over the steps. It has no noise, so it is not smoothed."""
    values = style.finite(record.log[column])
    look = ".-" if len(values) < 2 else "-"
    axes.plot(style.thin(values), look, drawstyle="steps-mid", color=style.BLACK, linewidth=1.8)
    axes.set_ylim(bottom=0)
    if not differs(values.min(), values.max()):
        style.add_legend(axes, f"constant, {values.iloc[0]:.3g}")


class Panel(NamedTuple):
    title: str
    unit: str
    column: str  # of the log; without a value there, the panel says so. "": `draw` decides
    draw: Callable[[Axes, RunRecord], None]
    smoothed: str = "mean"  # "median" where a single step may be wild; "" for a setting


DRAW_RATE, DRAW_TEMPERATURE = (partial(draw_setting, column=column) for column in ("learning_rate", "temperature"))
PANELS = {
    "total_reward": Panel("Total reward", "weighted sum", "reward", draw_total),
    "each_reward": Panel("Each reward", "mean score", "", draw_each),
    "signal": Panel("Signal", "reward_std, whole step", "reward_std", draw_signal),
    "kl": Panel("Distance from the base policy", "KL, nats a token", "kl", draw_kl, "median"),
    "length": Panel("Completion length", "tokens", "completions/mean_length", draw_length),
    "entropy": Panel("Entropy of the policy", "nats a token", "entropy", draw_entropy),
    "step_time": Panel("Time a step takes", "seconds", "step_time", draw_step_time, "median"),
    "loss": Panel("Loss", "loss", "loss", draw_loss),
    "learning_rate": Panel("Learning rate", "learning rate", "learning_rate", DRAW_RATE, ""),
    "temperature": Panel("Sampling temperature", "temperature", "temperature", DRAW_TEMPERATURE, ""),
}


def halfway_steps(record: RunRecord) -> pd.DataFrame:
    """Where each reward's smoothed curve began and ended, and at which step it was halfway, or why that is not said."""
    lines = {}
    for name, values in run_record.mean_scores(record).items():
        line = style.smooth(style.finite(values)).dropna()
        begin, end = (line.iloc[:5].mean(), line.iloc[-5:].mean()) if len(line) >= 15 else (np.nan, np.nan)
        passed = line.index[line - begin >= (end - begin) / 2] if end > begin else []
        why = "it did not rise" if len(line) >= 15 else f"scored in {len(line)} steps, 15 are needed"
        lines[name] = {"begin": begin, "end": end, "halfway at step": str(passed[0]) if len(passed) else why}
    table = pd.DataFrame.from_dict(lines, orient="index", columns=["begin", "end", "halfway at step"])
    return table.rename_axis("reward")
