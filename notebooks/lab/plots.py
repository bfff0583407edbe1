"""The figures: one visual language, colour-blind safe (Okabe and Ito 2008), smoothed lines over raw points."""

from __future__ import annotations

import contextlib
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.files import need

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
    """Writes the figure as a PNG, sharp enough for print."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def read_log(run: Path, made_by: str = "03_train_grpo") -> pd.DataFrame:
    """The training rows of a run's `log.jsonl`, one a step; a half-written last line is left out."""
    rows = []
    for line in need(run / "log.jsonl", made_by).read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # the line a killed run was writing
        if "reward" in row:
            rows.append(row)
    if not rows:
        raise ValueError(f"{run / 'log.jsonl'} has no training step yet: let {made_by} run for a few steps.")
    return pd.DataFrame(rows).drop_duplicates("step", keep="last").set_index("step", drop=False)


def reward_names(log: pd.DataFrame) -> list[str]:
    return [column.split("/")[1] for column in log.columns if column.startswith("rewards/") and column.endswith("/mean")]


def smooth(values: pd.Series, window: int = 9) -> pd.Series:
    """Centred moving average: it shows the trend and, unlike a trailing one, does not lag behind the points."""
    return values.rolling(min(window, max(1, len(values) // 3)), center=True, min_periods=1).mean()


def curve(axes: Axes, log: pd.DataFrame, column: str, label: str | None = None, colour: str | None = None) -> None:
    """Raw points and the smoothed line; a metric that the run did not log is said, not drawn."""
    if column not in log or log[column].isna().all():
        axes.text(0.5, 0.5, f"{column} was not logged", transform=axes.transAxes, ha="center", color="grey")
        return
    values = log[column].astype(float)
    (line,) = axes.plot(log["step"], smooth(values), label=label, color=colour, linewidth=2)
    axes.plot(log["step"], values, ".", color=line.get_color(), alpha=0.3, markersize=4)


def panel(axes: Axes, title: str, unit: str) -> Axes:
    axes.set_title(title)
    axes.set_xlabel("training step")
    axes.set_ylabel(unit)
    return axes


def draw_total(axes: Axes, log: pd.DataFrame) -> None:
    """Total reward, with a band of one standard deviation over the step's completions, which is TRL's reward_std."""
    panel(axes, "Total reward", "weighted sum")
    curve(axes, log, "reward")
    if "reward_std" in log:
        mean, spread = smooth(log["reward"].astype(float)), smooth(log["reward_std"].astype(float))
        axes.fill_between(log["step"], mean - spread, mean + spread, alpha=0.15, label="± spread over the step's completions")
        axes.legend(loc="lower right")


def draw_each(axes: Axes, log: pd.DataFrame) -> None:
    panel(axes, "Each reward", "mean score")
    for name in reward_names(log):
        curve(axes, log, f"rewards/{name}/mean", label=name)
    axes.set_ylim(-0.03, max(1.03, axes.get_ylim()[1]))
    axes.legend(loc="lower right")


def draw_signal(axes: Axes, log: pd.DataFrame) -> None:
    panel(axes, "Signal in the groups", "reward_std, share of groups")
    curve(axes, log, "reward_std", label="reward_std: spread over the step")
    curve(axes, log, "frac_reward_zero_std", label="share of groups without spread")
    axes.set_ylim(top=1.3 * axes.get_ylim()[1])
    axes.legend(loc="upper left")


def draw_kl(axes: Axes, log: pd.DataFrame) -> None:
    panel(axes, "Distance from the base policy", "KL, nats a token")
    curve(axes, log, "kl", colour=COLOURS[3])
    if "kl" not in log:
        axes.set_title("Distance from the base policy: not measured, because beta is 0")


def draw_length(axes: Axes, log: pd.DataFrame) -> None:
    panel(axes, "Completion length", "tokens")
    curve(axes, log, "completions/mean_length", colour=COLOURS[2])


def draw_entropy(axes: Axes, log: pd.DataFrame) -> None:
    panel(axes, "Entropy of the policy", "nats a token")
    curve(axes, log, "entropy", colour=COLOURS[4])


PANELS = {
    "total_reward": draw_total, "each_reward": draw_each, "signal": draw_signal,
    "kl": draw_kl, "length": draw_length, "entropy": draw_entropy,
}  # fmt: skip


def draw_held_out(axes: Axes, rows: list[Row]) -> None:
    """Greedy held-out answers as diamonds, in the colour of the reward that scored them."""
    lines = {line.get_label(): line.get_color() for line in axes.lines}
    measured = [name for name in lines if any(f"eval_{name}" in row for row in rows)]
    for i, name in enumerate(measured):
        points = [(row["step"], row[f"eval_{name}"]) for row in rows if f"eval_{name}" in row]
        size = 4 + 3 * (len(measured) - 1 - i)  # smaller and smaller: equal scores lie within each other
        axes.plot(*zip(*points), "D", color=lines[name], markeredgecolor="black", markeredgewidth=0.6, markersize=size)
    if rows:
        axes.plot([], [], "D", color="white", markeredgecolor="black", label="held out, greedy")
        axes.legend(loc="lower right")


def live_figure(log: pd.DataFrame, held_out: list[Row] | None = None) -> Figure:
    """What a person watches while training: total reward, each reward, and how held-out answers do."""
    with styled():
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
        draw_total(axes[0], log)
        draw_each(axes[1], log)
        draw_held_out(axes[1], held_out or [])
    return figure


def training_figure(log: pd.DataFrame, title: str = "") -> Figure:
    """All panels of a run on one sheet."""
    with styled():
        figure, axes = plt.subplots(3, 2, figsize=(9, 9.5), layout="constrained")
        for draw, place in zip(PANELS.values(), axes.flat, strict=True):
            draw(place, log)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def one_panel(name: str, log: pd.DataFrame) -> Figure:
    with styled():
        figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
        PANELS[name](axes, log)
    return figure


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


def before_after_figure(evaluation: dict[str, Any]) -> Figure:
    """Base and merged on held-out prompts, greedy and at temperature 1, and the paired greedy differences."""
    with styled():
        figure, (*bars, right) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
        for axes, kind in zip(bars, ("greedy", "temperature 1")):
            for offset, (model, colour) in zip((-0.2, 0.2), (("base", "#888888"), ("merged", COLOURS[0]))):
                values = [100 * evaluation["breakdown"][f"{kind}, {model}"][name] for name in MEASURES]
                drawn = axes.bar(np.arange(len(MEASURES)) + offset, values, 0.38, label=model, color=colour)
                axes.bar_label(drawn, fmt="%.0f", fontsize=9)
            axes.set(title=f"{kind}, {evaluation['n']} held-out problems", ylabel="percent", ylim=(0, 125))
            axes.set_xticks(range(len(MEASURES)), MEASURES.values())
            axes.legend(ncols=2, loc="upper left")
        for place, name in enumerate(("correct", "format")):
            found = evaluation["difference"][name]
            middle, low, high = (100 * found[key] for key in ("estimate", "low", "high"))
            right.errorbar(middle, place, xerr=[[middle - low], [high - middle]], fmt="o", capsize=5, color=COLOURS[0])
        right.axvline(0, color="grey", linewidth=1)
        right.set(title="Greedy, merged minus base", xlabel="percentage points, 95 % interval", ylim=(-0.6, 1.6))
        right.set_yticks((0, 1), ("correct", "strict\nformat"))
    return figure


def pass_at_k_figure(record: dict[str, Any]) -> Figure:
    """pass@k before and after on held-out problems, and the paired differences, with 95 % intervals."""
    ks = list(record["pass"])
    with styled():
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
        for name, colour, marker in (("before", "#888888", "s"), ("after", COLOURS[0], "o")):
            middle, low, high = (100 * np.array([record["pass"][k][name][key] for k in ks]) for key in ("estimate", "low", "high"))
            left.fill_between(range(len(ks)), low, high, color=colour, alpha=0.2, linewidth=0)
            left.plot(range(len(ks)), middle, marker=marker, color=colour, label=name)
        left.set_xticks(range(len(ks)), ks)
        left.set(title=f"{record['n']} held-out problems", xlabel="k, samples allowed", ylabel="pass@k, percent", ylim=(0, 105))
        left.legend(loc="lower right")
        middle, low, high = (100 * np.array([record["pass"][k]["difference"][key] for k in ks]) for key in ("estimate", "low", "high"))
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
        raise ValueError(f"A figure needs runs of the baseline and of another recipe; there are: {', '.join(sorted(there)) or 'none'}.")
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    with styled():
        figure, axes = plt.subplots(
            rows, columns, figsize=(4.5 * columns, 2.7 * rows + 0.3), sharex=True, sharey=True, layout="constrained", squeeze=False
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
