"""The figures of notebook 00. They draw what the notebook computes, and compute nothing of the algorithm."""

import html
import math
import unicodedata
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import HTML
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.show import figure_style as style

WIDTH = 11  # inches, as wide as a notebook shows a figure
BLUE, RED = style.BLUE, style.VERMILION
Curves = dict[int, np.ndarray]


def signal_figure(chances: Curves, rates: np.ndarray, shares: np.ndarray) -> Figure:
    """The chance that a group has right and wrong completions, by the prompt's pass rate, over where the prompts lie.

    `chances`: group size -> chance (0..1) at each of `rates`, which are pass rates (0..1), rising. `shares`: measured
    pass rate (0..1) of each prompt.
    """
    with style.styled():
        layout = {"sharex": True, "height_ratios": (2, 1), "layout": "constrained"}
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(WIDTH, 5.4), **layout)
        for nth, (size, chance) in enumerate(chances.items()):
            upper.plot(rates, 100 * chance, style.DASHES[nth % len(style.DASHES)], linewidth=2)
            at = np.searchsorted(rates, 1 / size)  # there the lines lie apart
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            text = str(size) if nth else f"groups of {size}"
            upper.text(rates[at], 100 * chance[at], text, fontweight="bold", ha="center", va="center", bbox=box)
        upper.set(title="With a right-or-wrong reward a group teaches only if it has both", ylim=(-3, 106))
        upper.set(ylabel="chance of both in a group, percent", yticks=range(0, 101, 25))
        # Below: how many prompts have which pass rate. Those of 0 and 1, which showed no spread, are red and counted.
        places, counts = np.unique(np.asarray(shares, float).round(6), return_counts=True)
        width = 0.8 * min([1 / 8, *np.diff(places)])
        lower.bar(places, counts, width, color=[RED if place in (0, 1) else BLUE for place in places])
        lower.set_ylim(0, max(counts) / 0.7)  # the words stand above the highest bar
        lower.yaxis.get_major_locator().set_params(integer=True, nbins=4)
        for end, side, text in ((0, "left", "no sample right"), (1, "right", "all samples right")):
            if count := counts[places == end].sum():
                look = {"transform": lower.get_xaxis_transform(), "ha": side, "va": "top", "fontsize": 9}
                lower.text(end + (end - 0.5) * width, 0.97, f"{count} of {len(shares)} prompts: {text}", **look)
        lower.set(title="Where this policy's prompts lie", ylabel="prompts", xlim=(-0.07, 1.07))
        lower.set_xlabel("pass rate of a prompt: share of its completions that are right")
        lower.set_xticks(np.arange(9) / 8, ["0", "1/8", "1/4", "3/8", "1/2", "5/8", "3/4", "7/8", "1"])
    return figure


SURPRISING = 0.01  # at this probability and below, a token has the full colour
UNDERLINED = 0.1  # below this one it is underlined too: not by colour alone
STRONG = (0xE6, 0x9F, 0x00)  # style.ORANGE; dark text on it is read well
SIGNS = {" ": "·", "\n": "↵", "\t": "⇥"}
STRIP = """<style>
.token-strip { background: #fff; color: #111; padding: 6px 10px; text-align: left }
.token-strip p { margin: 10px 0 3px; font: bold 13px sans-serif; color: #111 }
.token-strip div { font: 13px/1.75 monospace; overflow-wrap: anywhere }
.token-strip span { color: #111; padding: 1px 2px; margin-right: 1px; border: 1px solid #ccc; border-radius: 2px }
.token-strip small { font: 12px sans-serif; color: #111 }
.token-strip u { text-decoration-thickness: 2px; text-underline-offset: 3px }
</style>"""


def token_strip(
    completions: Sequence[Sequence[str]], probabilities: Sequence[Sequence[float]], heads: Sequence[str]
) -> Any:
    """Each completion's tokens as HTML, the more strongly coloured the less probable the policy found them.

    A token's text comes from a model: it is escaped, and characters that cannot be seen or that turn the text around
    are named. `probabilities` (0..1) are the policy's; `heads` are a line of text over each completion.
    """
    steps = ((1.0, "100 %"), (0.5, "50 %"), (0.1, "10 %"), (0.05, "<u>5 %</u>"), (SURPRISING, "<u>1 % or less</u>"))
    boxes = "".join(f'<span style="background:{surprise_colour(chance)}">{text}</span>' for chance, text in steps)
    signs = "↵ line break, · blank; a token's numbers show under the pointer"
    rows = [f"<small>How probable the policy found a token: {boxes} (underlined: less than 10 %); {signs}.</small>"]
    for head, tokens, chances in zip(heads, completions, probabilities, strict=True):
        spans = "<wbr>".join(token_span(token, float(chance)) for token, chance in zip(tokens, chances, strict=True))
        rows.append(f'<p>{html.escape(head)}</p><div dir="ltr">{spans}</div>')
    return HTML(f'{STRIP}<div class="token-strip">{"".join(rows)}</div>')


def token_span(token: str, chance: float) -> str:
    """One token: coloured, underlined if improbable, its numbers in the tooltip."""
    # Line breaks and blanks are shown as signs; control, format and unknown characters by their number.
    named = {one: f"[U+{ord(one):04X}]" for one in token if unicodedata.category(one)[0] in "CZ"} | SIGNS
    text = "".join(named.get(character, character) for character in token)
    text = html.escape(text or "∅")  # a token may be empty: half of a character
    text = f"<u>{text}</u>" if chance < UNDERLINED else text
    numbers = f"probability {chance:.3g}, log-probability {math.log(chance) if chance > 0 else -math.inf:.3g}"
    return f'<span style="background:{surprise_colour(chance)}" title="{numbers}">{text}</span>'


def surprise_colour(chance: float) -> str:
    """From white (certain) to the strong colour, by the logarithm of the probability."""
    share = math.log(min(max(chance, SURPRISING), 1.0)) / math.log(SURPRISING)
    return "#" + "".join(f"{round(255 + share * (strong - 255)):02x}" for strong in STRONG)


def pull_figure(pulls: dict[str, np.ndarray], tokens: Sequence[int], names: Sequence[str]) -> Figure:
    """How hard each loss type pulls on one token of each completion, a panel a loss type, on one scale.

    `pulls`: loss type -> pull, up (the token is made likelier) or down, of each completion, shape (completions,).
    `tokens` and `names`: the length of each completion, and what it is called.
    """
    with style.styled():
        layout = {"sharey": True, "squeeze": False, "layout": "constrained"}
        figure, (panels,) = plt.subplots(1, len(pulls), figsize=(WIDTH, 3.6), **layout)
        labels = [f"{name}\n{count} tokens" for name, count in zip(names, tokens, strict=True)]
        for axes, (name, pull) in zip(panels, pulls.items()):
            bars = axes.bar(range(len(labels)), pull, 0.7, color=[RED if one < 0 else BLUE for one in pull])
            numbers = [f"{one:+#.2g}".replace("-", "−") for one in pull]
            axes.bar_label(bars, numbers, padding=2, fontsize=style.SMALL)
            axes.axhline(0, color="black", linewidth=1)
            axes.set_xticks(range(len(labels)), labels, fontsize=style.SMALL)
            axes.set(title=name, xlim=(-0.6, len(labels) - 0.4))
            axes.tick_params(axis="y", labelsize=style.SMALL)
            axes.grid(False, axis="x")
        panels[0].margins(y=0.15)
        panels[0].set_ylabel("pull on one token:\n−∂loss / ∂ its log-probability", fontsize=9)
        style.plain_numbers(panels[0])
        title = "How hard each loss type pulls on one token of a completion (up: it is made likelier)"
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


# What a good and a bad completion's token is to become, what the clip then says, and the free corner.
PUSHED_UP = (BLUE, "likelier", "likely enough,\nno more push up", "upper left")
PUSHED_DOWN = (RED, "less likely", "unlikely enough,\nno more push down", "upper right")


def clip_figure(ratios: np.ndarray, objectives: Curves, slopes: Curves, epsilon: float, epsilon_high: float) -> Figure:
    """The clipped objective of one token over its ratio, for a good and a bad completion, and where it has no gradient.

    `ratios`: new probability / old probability of the token, rising, shape (ratios,). For advantage +1 and -1 each,
    `objectives` are the negative loss, and `slopes` its slope over the ratio: 0 where the clip holds.
    """
    edges = ((1 - epsilon, "1 − epsilon", "right"), (1 + epsilon_high, "1 + epsilon_high", "left"))
    with style.styled():
        figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 4.2), layout="constrained")
        for axes, advantage in zip(panels, objectives):
            colour, wish, enough, corner = PUSHED_UP if advantage > 0 else PUSHED_DOWN
            axes.plot(ratios, objectives[advantage], color=colour, linewidth=2.5, label="objective, clipped")
            axes.plot(ratios, ratios * advantage, "--", color="black", linewidth=1, zorder=1.5, label="not clipped")
            axes.plot(1, advantage, "o", color="black", markersize=7, label="ratio 1: here every first update stands")
            over_panel = {"transform": axes.get_xaxis_transform()}
            grey = {"color": "black", "alpha": 0.1, "linewidth": 0, "label": f"no gradient: {enough}"}
            axes.fill_between(ratios, 0, 1, where=slopes[advantage] == 0, **over_panel, **grey)
            for at, name, side in edges:
                if ratios[0] <= at <= ratios[-1]:
                    axes.axvline(at, color=style.GREY, linewidth=1, linestyle=":", zorder=0.5)
                    share = (at - ratios[0]) / (ratios[-1] - ratios[0])
                    side = "left" if share < 0.22 else "right" if share > 0.7 else side  # within its panel
                    look = {"ha": side, "va": "bottom", "fontsize": style.SMALL, "color": style.GREY}
                    axes.text(at, 1.01, f"{name} = {at:.3g}", **over_panel, **look)
            axes.set_title(f"Advantage {advantage:+d}: the token is to become {wish}".replace("-", "−"), pad=20)
            axes.set(xlabel="ratio: the token's probability now / when it was sampled", xlim=ratios[[0, -1]])
            axes.legend(loc=corner, fontsize=style.SMALL, frameon=True)
        panels[0].set_ylabel("objective (the negative loss) of one token")
    return figure


FORMULAS = {"k1": "k1 = −x", "k2": "k2 = x²/2", "k3": "k3 = eˣ − x − 1"}
LOOKS = {"k1": (RED, "--", "s"), "k2": (style.GREEN, "-.", "^"), "k3": (BLUE, "-", "o")}  # colour, dash, marker


def kl_figure(
    log_ratios: np.ndarray, estimators: dict[str, np.ndarray], spread: dict[str, tuple[float, float]], exact: float
) -> Figure:
    """What each estimator of the KL says of one token, by its log-ratio, and its mean and deviation over samples.

    All in nats. `log_ratios`: reference minus policy, rising, shape (ratios,). For k1, k2, k3 each, `estimators` are
    the estimates at these, and `spread` (mean, standard deviation) over samples. `exact`: the KL itself.
    """
    with style.styled():
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 4.2), width_ratios=(1.35, 1), layout="constrained")
        for name, values in estimators.items():
            colour, dash, _ = LOOKS[name]
            left.plot(log_ratios, values, dash, color=colour, linewidth=3 if name == "k3" else 2, label=FORMULAS[name])
        left.set(title="One token: what each estimator says", xlim=log_ratios[[0, -1]], ylim=(-3.3, 6.3))
        left.set(xlabel="x = log-ratio of the token, reference − policy, nats", ylabel="estimate of the KL, nats")
        left.axhspan(-3.3, 0, color="black", alpha=0.08, linewidth=0)
        left.text(0.03, 0.05, "negative: impossible for a KL", transform=left.transAxes, fontsize=9, color=style.GREY)
        left.legend(loc="upper center")
        for place, (name, (mean, deviation)) in enumerate(spread.items()):
            colour, _, marker = LOOKS[name]
            right.errorbar(place, mean, deviation, fmt=marker, color=colour, markersize=7, capsize=5, linewidth=2)
        right.axhline(exact, color="black", linestyle="--", linewidth=1.2, zorder=1, label=f"exact KL: {exact:.3g}")
        labels = [f"{name}\n{mean:.3g} ± {deviation:.3g}" for name, (mean, deviation) in spread.items()]
        right.set_xticks(range(len(spread)), labels)
        right.set(title="Over samples: mean ± standard deviation", ylabel="KL, nats", xlim=(-0.6, len(spread) - 0.4))
        right.legend(loc="upper right")
        right.grid(False, axis="x")
        for axes in (left, right):
            axes.axhline(0, color="black", linewidth=1)
            style.plain_numbers(axes)
    return figure


PANELS = {  # column -> title, unit, colour, the least that the axis shows
    "reward": ("Reward", "mean of completions", style.BLACK, (-0.05, 2.05)),  # of the 2 points that can be had
    "correct": ("Share of completions", "percent of completions", BLUE, (-3, 103)),
    "loss": ("Loss and its two parts", "loss", style.BLACK, (0, 0)),
    "no_spread": ("Groups without spread", "percent of groups", RED, (-3, 103)),
    "tokens": ("Completion length", "tokens, mean", style.GREEN, (0, 0)),
    "grad_norm": ("Gradient", "norm", style.PINK, (0, 0)),
}


def training_figure(log: pd.DataFrame, title: str = "") -> Figure:
    """Six panels of a run: reward, right and in format, the loss and its parts, groups without spread, length, gradient.

    `log` has a row a step, indexed by step: reward, correct and format (shares, 0..1), policy_loss, kl_loss (beta times
    KL), loss, no_spread (share of groups), tokens (mean length), grad_norm. A panel without a finite number says so.
    """
    log = log.assign(**{name: 100 * log[name] for name in ("correct", "format", "no_spread")})
    with style.styled():
        figure, panels = plt.subplots(2, 3, figsize=(WIDTH, 5.6), layout="constrained")
        for axes, (column, (name, unit, colour, (low, high))) in zip(panels.flat, PANELS.items()):
            style.panel(axes, name, unit, log.index[0], log.index[-1])
            if style.lacks_data(axes, log, column):
                continue
            note = ""
            if column == "loss":
                note = draw_loss(axes, log)
            elif column == "correct":
                style.curve(axes, log["correct"], "correct", color=colour)
                style.curve(axes, log["format"], "in format", color=RED, linestyle="--")
            else:
                line = style.curve(axes, log[column], how="median" if column == "grad_norm" else "mean", color=colour)
                note = style.cap_outliers(axes, log[column], line, colour)
            bottom, top = axes.get_ylim()
            axes.set_ylim(min(bottom, low), max(top, high) if high else 1.08 * top)
            style.add_legend(axes, note)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        style.caption(figure, [style.how_drawn(log, "mean (loss, gradient: median)")])
        return style.fit_legends(figure)


def draw_loss(axes: Axes, log: pd.DataFrame) -> str:
    """The points of the loss, the smoothed lines of its two parts, and 0, around which the policy term lies."""
    lines = [style.smooth(style.finite(log[part]), "median") for part in ("policy_loss", "kl_loss")]
    for line, name, colour, dash in zip(lines, ("policy term", "beta · KL"), (BLUE, RED), ("-", "--")):
        axes.plot(style.thin(line), dash, color=colour, linewidth=2, label=name, marker="o" if len(line) == 1 else "")
    look = {"color": style.BLACK, "alpha": 0.5, "markersize": 8 if len(log) <= 60 else 5, "markeredgewidth": 0}
    axes.plot(style.thin(log["loss"]), ".", label="loss, their sum", **look)
    axes.axhline(0, color="black", linewidth=1.5, zorder=1)
    return style.cap_outliers(axes, log["loss"], pd.concat(lines), style.BLACK, from_zero=False)
