"""Figures from before training: prompt lengths, the spread of scores within groups, the preflight."""

import textwrap

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.files import Row
from lab.show.evaluation_figures import draw_over_k
from lab.show.figure_style import COLOURS, styled


def token_histogram(prompts_by_tokens: dict[int, int], limit: int) -> Figure:
    """How many prompts have each length in tokens, with the limit that follows from them."""
    with styled():
        figure, axes = plt.subplots(figsize=(6.5, 3), layout="constrained")
        bins = min(40, len(prompts_by_tokens))
        axes.hist(list(prompts_by_tokens), bins=bins, weights=list(prompts_by_tokens.values()))
        axes.axvline(limit, color=COLOURS[1], linestyle="--", label=f"limit: {limit} tokens")
        axes.set(title="Prompt lengths", xlabel="tokens, chat template included", ylabel="prompts")
        axes.legend()
    return figure


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


def draw_groups(axes: Axes, scores: np.ndarray) -> int:
    """A column a group, a dot a completion, a bar for the mean; crosses in groups without spread, which it counts.

    `scores` has shape (groups, completions).
    """
    flat = np.ptp(scores, axis=1) < 1e-9
    places = np.arange(len(scores))[:, None] + np.linspace(-0.25, 0.25, scores.shape[1])
    size = float(np.clip(60 / len(scores), 2.5, 5))
    for which, marker, colour, label in ((~flat, "o", COLOURS[0], "completion"), (flat, "x", COLOURS[1], "no spread")):
        if which.any():
            look = {"color": colour, "alpha": 0.7, "markersize": size, "label": label}
            axes.plot(places[which].ravel(), scores[which].ravel(), marker, **look)
    middle, mean = np.arange(len(scores))[~flat], scores[~flat].mean(axis=1)  # without spread the crosses are the mean
    axes.hlines(mean, middle - 0.35, middle + 0.35, color="black", linewidth=1.5, label="mean")
    axes.set(xlabel="group (one prompt each)", ylabel="total reward")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return int(flat.sum())


def preflight_figure(record: Row) -> Figure:
    """A preflight's record in three panels: totals by group, share of groups with signal, pass@k."""
    with styled():
        widths = {"width_ratios": (1.3, 1, 1), "layout": "constrained"}
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3.5), **widths)
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


def short_name(reward: str) -> str:
    """A reward's name as a label: length_reward[longest=40] is length[longest=40]."""
    return reward.replace("_reward", "")


def draw_shares(axes: Axes, record: Row) -> None:
    """Share of groups with spread, a bar a reward and one for the total; grey where the weight is 0."""
    names, shares, labels, colours = [], [], [], []
    for name, line in {**record["rewards"], "total": record["total"]}.items():
        failed = line["groups_without_spread"] is None
        shares.append(0.0 if failed else 100 * (1 - line["groups_without_spread"]))
        labels.append("failed" if failed else f"{shares[-1]:.0f} %")
        names.append("\n".join(textwrap.wrap(short_name(name), 16)) + "\n(weight 0)" * (line["weight"] == 0))
        colours.append("#BBBBBB" if line["weight"] == 0 else COLOURS[5] if line["weight"] else COLOURS[0])
    axes.bar_label(axes.barh(range(len(names)), shares, 0.6, color=colours), labels, padding=3, fontsize=9)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set(title=f"Signal in {shares[-1]:.0f} % of groups", xlabel="percent of groups with spread", xlim=(0, 125))
    axes.set_xticks(range(0, 101, 25))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def draw_pass(axes: Axes, passed: Row) -> None:
    """pass@k over k with its 95 % interval."""
    axes.set(xlabel="k completions of a prompt", ylabel="pass@k, percent", ylim=(-3, 103))
    if not passed["at"]:
        axes.set_title("No completion could be judged")
        return
    middle = draw_over_k(axes, passed["at"], "o-", COLOURS[2], "with 95 % interval")
    axes.set_title(f"pass@k: {middle[0]:.0f} % to {middle[-1]:.0f} %")
    place = "lower right" if middle[-1] > 50 else "upper right"
    axes.legend(loc=place, title=f"judged by\n{short_name(passed['decided_by'])}", title_fontsize=9)
