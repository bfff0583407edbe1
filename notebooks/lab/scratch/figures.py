"""The figures of notebook 00: where a group's spread comes from, what the loss does to a token, and how a run goes.

They draw what the notebook computes, and compute nothing of the algorithm, so that no number stands here alone.
"""

from __future__ import annotations

import html
import math
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.show.figure_style import (
    COLOURS,
    DASHES,
    GREY,
    POINTS,
    SMALL,
    cap,
    caption,
    curve,
    cut,
    finite,
    smooth,
    styled,
    thin,
    window_for,
)

WIDTH = 11  # inches, as wide as a notebook shows a figure
BLUE, RED = COLOURS[:2]
HATCH = "///"  # what is downward, or without spread, in grey print too
PLATE = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}  # behind a text that lies on a line


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign, and with the minus that is as wide as the plus; 0 has none."""
    return "0" if value == 0 else f"{value:+#.{digits}g}".replace("-", "−")


def unsigned(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def axis_number(value: float, _: int) -> str:
    """A tick's number: no 1e-5 in the corner, where the title is."""
    return f"{value:.6g}".replace("-", "−")


def room(axes: Axes, share: float) -> None:
    """Raises the panel's upper limit, so that `share` of its height is free above what is drawn."""
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, bottom + (top - bottom) / (1 - share))


def note(axes: Axes, text: str, share: float = 0.12) -> None:
    """A small text at the panel's top left, in a room of its own."""
    if text:
        room(axes, share * (1 + text.count("\n")))
        axes.text(0.02, 0.98, text, transform=axes.transAxes, ha="left", va="top", fontsize=SMALL, color=GREY)


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]], apart: float = 0.1) -> None:
    """Names lines to the right of the panel, at the height where each ends, but never on each other.

    Args:
        ends: (value at the line's end, name, colour).
        apart: the least distance of two names, as a share of the panel's height.
    """
    bottom, top = axes.get_ylim()
    ends = sorted(ends)
    wanted = np.clip([(value - bottom) / (top - bottom) for value, *_ in ends], 0, 1)
    steps = apart * np.arange(len(ends))
    places = (
        np.maximum.accumulate(wanted - steps) + steps if ends else wanted
    )  # each at least `apart` over the one below
    places += np.mean(wanted - places) if ends else 0  # all of them down again, by as much as they were pushed up
    places += max(0, -places.min(initial=0)) - max(0, places.max(initial=1) - 1)
    for place, (_, name, colour) in zip(places, ends):
        axes.text(
            1.015,
            place,
            name,
            transform=axes.transAxes,
            ha="left",
            va="center",
            fontsize=9,
            fontweight="bold",
            color=colour,
        )


def signal_figure(chances: dict[int, np.ndarray], rates: np.ndarray, shares: np.ndarray) -> Figure:
    """The chance that a group has right and wrong completions, by the prompt's pass rate, over where the prompts lie.

    Args:
        chances: group size -> chance (0..1) at each of `rates`, shape (rates,).
        rates: pass rates, 0..1, rising, shape (rates,).
        shares: measured pass rate of each prompt, 0..1, shape (prompts,).
    """
    with styled():
        figure, (upper, lower) = plt.subplots(
            2, 1, figsize=(WIDTH, 5.4), sharex=True, height_ratios=(2, 1), layout="constrained"
        )
        draw_chances(
            upper, {size: 100 * np.asarray(chance, float) for size, chance in chances.items()}, np.asarray(rates, float)
        )
        draw_shares(lower, np.asarray(shares, float))
        lower.set_xlim(-0.07, 1.07)
        lower.set_xticks(np.arange(9) / 8, ["0", "1/8", "1/4", "3/8", "1/2", "5/8", "3/4", "7/8", "1"])
        for axes in (upper, lower):
            axes.tick_params(labelsize=SMALL)
    return figure


def draw_chances(axes: Axes, percents: dict[int, np.ndarray], rates: np.ndarray) -> None:
    """A line a group size with its number on it, where it is farthest from the other lines."""
    for nth, (size, line) in enumerate(sorted(percents.items())):
        colour = COLOURS[nth % len(COLOURS)]
        axes.plot(rates, line, DASHES[nth % len(DASHES)], color=colour, linewidth=2)
        at = loneliest(rates, line, [other for key, other in percents.items() if key != size])
        text = str(size) if nth else f"groups of {size}"
        axes.text(
            rates[at],
            line[at],
            text,
            fontsize=10,
            fontweight="bold",
            ha="center",
            va="center",
            bbox={**PLATE, "alpha": 1},
            zorder=3,
        )
    axes.set(title="With a right-or-wrong reward a group teaches only if it has both", ylim=(-3, 106))
    axes.set_ylabel("chance of both in a group, percent")
    axes.set_yticks(range(0, 101, 25))


def loneliest(rates: np.ndarray, line: np.ndarray, others: Sequence[np.ndarray]) -> int:
    """The place on a line (percent over rates) that is farthest, as the panel shows it, from all other lines."""
    few = np.unique(np.linspace(0, len(rates) - 1, min(len(rates), 101)).astype(int))
    wide, high = 9.5 * rates[few], 3 / 109 * line[few]  # inches, nearly
    if not others:
        return int(few[np.argmax(high)])
    far = [np.hypot(wide[:, None] - wide, high[:, None] - 3 / 109 * other[few]).min(axis=1) for other in others]
    return int(few[np.argmax(np.min(far, axis=0).round(6))])


def draw_shares(axes: Axes, shares: np.ndarray) -> None:
    """How many prompts have which measured pass rate; those of 0 and 1, which showed no spread, hatched and counted."""
    shares = shares[np.isfinite(shares)].round(6)
    places, counts = np.unique(shares, return_counts=True)
    width = 0.8 * min([1 / 8, *np.diff(places)])
    for place, count in zip(places, counts):
        flat = place in (0, 1)
        axes.bar(
            place,
            count,
            width,
            facecolor="white" if flat else BLUE,
            edgecolor=RED if flat else BLUE,
            hatch=HATCH if flat else None,
            linewidth=1,
        )
    axes.set_axisbelow(True)
    axes.set_ylim(0, max([1, *counts]) / 0.66)  # the words stand above the highest bar
    axes.yaxis.get_major_locator().set_params(integer=True, nbins=4)
    for end, side, said in ((0, "left", "no sample right"), (1, "right", "all samples right")):
        if count := int((shares == end).sum()):
            text = f"{count} of {len(shares)} prompts: {said}"
            axes.text(
                end + (end - 0.5) * width,
                0.97,
                text,
                transform=axes.get_xaxis_transform(),
                ha=side,
                va="top",
                fontsize=9,
            )
    axes.set_title(
        "Where this policy's prompts lie" if len(shares) else "Where this policy's prompts lie: none was measured"
    )
    axes.set(xlabel="pass rate of a prompt: share of its completions that are right", ylabel="prompts")


SURPRISED = 0.01  # at this probability and below, a token has the full colour
UNDERLINED = 0.1  # below this one it is underlined too: not by colour alone
STRONG = (0xE6, 0x9F, 0x00)  # COLOURS[4]; dark text on it is read well
VISIBLE = {" ": "·", "\n": "↵", "\t": "⇥"}
STRIP = """<style>
.token-strip p { margin: 10px 0 3px; font: bold 13px sans-serif; color: #111 }
.token-strip div { font: 13px/1.75 monospace; overflow-wrap: anywhere }
.token-strip span { color: #111; padding: 1px 2px; margin-right: 1px; border: 1px solid #ccc; border-radius: 2px }
.token-strip small { font: 12px sans-serif; color: #111 }
.token-strip u { text-decoration-thickness: 2px; text-underline-offset: 3px }
</style>"""


def token_strip(
    completions: Sequence[Sequence[str]], probabilities: Sequence[Sequence[float]], heads: Sequence[str]
) -> Any:
    """Each completion's tokens, the more strongly coloured the less probable the policy found them, as an HTML for a notebook.

    A token's text is a model's: it is escaped, and what would not be seen or would turn the text around is named.

    Args:
        completions: tokens of each completion, as text.
        probabilities: the policy's probability (0..1) of each of those tokens.
        heads: a line of text over each completion.

    Raises ValueError where the three do not go together.
    """
    from IPython.display import HTML

    rows = []
    for head, tokens, chances in zip(heads, completions, probabilities, strict=True):
        spans = "<wbr>".join(token_span(token, float(chance)) for token, chance in zip(tokens, chances, strict=True))
        rows.append(f'<p dir="ltr">{html.escape(visible(head, blanks=False))}</p>')
        rows.append(f'<div dir="ltr">{spans or "<small>no token</small>"}</div>')
    box = "background:#fff;color:#111;padding:6px 10px;text-align:left"  # explicit: a dark theme's text would be white
    return HTML(f'{STRIP}<div class="token-strip" style="{box}">{strip_key()}{"".join(rows)}</div>')


def token_span(token: str, chance: float) -> str:
    """One token: coloured, underlined if improbable, its numbers in the tooltip."""
    text = html.escape(visible(token)) or "∅"  # a token may be empty: half of a character
    text = f"<u>{text}</u>" if chance < UNDERLINED else text
    return f'<span dir="ltr" style="background:{surprise_colour(chance)}" title="{in_words(chance)}">{text}</span>'


def in_words(chance: float) -> str:
    """A probability with its natural logarithm."""
    if not math.isfinite(chance):
        return "probability unknown"
    return f"probability {unsigned(chance)}, log-probability {unsigned(math.log(chance)) if chance > 0 else '−∞'}"


def surprise_colour(chance: float) -> str:
    """From white (certain) to the strong colour, by the logarithm of the probability; grey where it is not known."""
    if not math.isfinite(chance):
        return "#dddddd"
    share = math.log(min(max(chance, SURPRISED), 1.0)) / math.log(SURPRISED)
    return "#" + "".join(f"{round(255 + share * (strong - 255)):02x}" for strong in STRONG)


def visible(text: str, blanks: bool = True) -> str:
    """The text with line breaks and blanks (if `blanks`) as signs, and control, format and unknown characters named.

    These could turn the order of the text around, hide in it, or (NUL, halves of surrogate pairs) break the page.
    """
    shown = []
    for place, character in enumerate(text):
        kind = unicodedata.category(character)
        if character in VISIBLE:
            shown.append(VISIBLE[character] if blanks or character != " " else " ")
        elif kind[0] == "C" or kind[0] == "Z":
            shown.append(f"[U+{ord(character):04X}]")
        else:  # a mark that begins a token would sit on the token before it
            shown.append("◌" + character if kind[0] == "M" and not place else character)
    return "".join(shown)


def strip_key() -> str:
    """How to read the colours, in one line."""
    steps = ((1.0, "100 %"), (0.5, "50 %"), (0.1, "10 %"), (0.05, "<u>5 %</u>"), (SURPRISED, "<u>1 % or less</u>"))
    boxes = "".join(f'<span style="background:{surprise_colour(chance)}">{said}</span>' for chance, said in steps)
    signs = "↵ line break, · blank; a token's numbers show under the pointer"
    return f"<small>How probable the policy found a token: {boxes} (underlined: less than 10 %); {signs}.</small>"


def pull_figure(pulls: dict[str, np.ndarray], tokens: Sequence[int], names: Sequence[str]) -> Figure:
    """How hard each loss type pulls on one token of each completion, a panel a loss type, on one scale.

    Args:
        pulls: loss type -> pull, up (the token is made likelier) or down, of each completion, shape (completions,).
        tokens: the length of each completion.
        names: what each completion is called.
    """
    with styled():
        figure, axes = plt.subplots(
            1, len(pulls), figsize=(WIDTH, 3.6), sharey=True, layout="constrained", squeeze=False
        )
        reach = [0.0, *np.concatenate([np.asarray(pull, float) for pull in pulls.values()])]
        low, high = np.nanmin(reach), np.nanmax(reach)
        pad = 0.2 * (high - low) or 0.05  # for the numbers at the bars, and the two words
        axes[0, 0].set_ylim(low - pad, high + pad)
        for one, (name, pull) in zip(axes[0], pulls.items()):
            draw_pulls(one, np.asarray(pull, float), bar_labels(names, tokens))
            one.set_title(name)
        for at, edge, said, colour in (
            (0.985, "top", "▲ made likelier", BLUE),
            (0.015, "bottom", "▼ made less likely", RED),
        ):
            axes[0, 0].text(0.02, at, said, transform=axes[0, 0].transAxes, va=edge, color=colour, fontsize=9)
        axes[0, 0].set_ylabel("pull on one token:\n−∂loss / ∂ its log-probability", fontsize=9)
        axes[0, 0].yaxis.set_major_formatter(axis_number)
        figure.suptitle("How hard each loss type pulls on one token of a completion", x=0.01, ha="left", fontsize=12)
    return figure


def bar_labels(names: Sequence[str], tokens: Sequence[int]) -> list[str]:
    """Name and length of each completion, in lines that are no wider than a bar's place."""
    between = "\n" if max(tokens, default=0) > 99 else " "
    return [
        f"{textwrap.fill(cut(name, 18), 9)}\n{count}{between}{'token' if count == 1 else 'tokens'}"
        for name, count in zip(names, tokens, strict=True)
    ]


def draw_pulls(axes: Axes, pull: np.ndarray, labels: Sequence[str]) -> None:
    """A bar a completion with its number: up blue and full, down red and hatched."""
    for place, value in enumerate(pull):
        down = value < 0
        look = (
            {"facecolor": "white", "edgecolor": RED, "hatch": HATCH} if down else {"facecolor": BLUE, "edgecolor": BLUE}
        )
        axes.bar(place, value, 0.7, **look)
        said = signed(value) if np.isfinite(value) else "–"
        axes.annotate(
            said,
            (place, value if np.isfinite(value) else 0),
            (0, -2 if down else 2),
            textcoords="offset points",
            ha="center",
            va="top" if down else "bottom",
            fontsize=SMALL,
        )
    axes.axhline(0, color="black", linewidth=1)
    axes.set_axisbelow(True)
    axes.set_xticks(range(len(labels)), labels, fontsize=SMALL)
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.tick_params(axis="y", labelsize=SMALL)
    axes.grid(False, axis="x")


CLIPPED = {1: "likely enough:\nno more push up", -1: "unlikely enough:\nno more push down"}
TITLES = {1: "Advantage +1: the token is to become likelier", -1: "Advantage −1: the token is to become less likely"}


def clip_figure(
    ratios: np.ndarray,
    objectives: dict[int, np.ndarray],
    slopes: dict[int, np.ndarray],
    epsilon: float,
    epsilon_high: float,
) -> Figure:
    """The clipped objective of one token over its ratio, for a good and a bad completion, and where it has no gradient.

    Args:
        ratios: new probability / old probability of the token, rising, shape (ratios,).
        objectives: advantage (+1, -1) -> objective, which is the negative loss, shape (ratios,).
        slopes: the same -> the objective's slope over the ratio, shape (ratios,); 0 where the clip holds.
        epsilon: how far below 1 the ratio counts.
        epsilon_high: how far above 1.
    """
    ratios = np.asarray(ratios, float)
    with styled():
        figure, axes = plt.subplots(1, len(objectives), figsize=(WIDTH, 4.2), layout="constrained", squeeze=False)
        for one, advantage in zip(axes[0], objectives):
            wide = draw_zones(one, ratios, np.asarray(slopes[advantage]) == 0, advantage)
            draw_objective(one, ratios, np.asarray(objectives[advantage], float), advantage, named=wide)
            draw_edges(one, ratios, epsilon, epsilon_high)
            one.set_title(TITLES[advantage], pad=20)  # above the names of the edges
            one.set_xlabel("ratio: the token's probability now / when it was sampled")
            one.tick_params(labelsize=SMALL)
            for axis in (one.xaxis, one.yaxis):
                axis.set_major_formatter(axis_number)
        axes[0, 0].set_ylabel("objective (the negative loss) of one token")
    return figure


def flat_stretches(flat: np.ndarray) -> list[tuple[int, int]]:
    """The first and last places of each stretch of two or more True."""
    ends = np.flatnonzero(np.diff([0, *flat.astype(int), 0]))
    return [(int(first), int(after) - 1) for first, after in zip(ends[::2], ends[1::2]) if after - first > 1]


def draw_zones(axes: Axes, ratios: np.ndarray, flat: np.ndarray, advantage: int) -> bool:
    """Grey where the objective is flat, with what that means. Returns whether there is a zone wide enough for its text."""
    wide = False
    for first, last in flat_stretches(flat):
        left, right = ratios[first], ratios[last]
        axes.axvspan(left, right, color="#000000", alpha=0.1, linewidth=0)
        wide = right - left > 0.25 * (ratios[-1] - ratios[0])
        text, place = f"no gradient\n{CLIPPED[advantage]}", ((left + right) / 2, 0.17)
        aside = (-12, "right") if advantage > 0 else (12, "left")  # beside a narrow zone, towards ratio 1
        look = {"textcoords": "offset points", "va": "center", "fontsize": SMALL, "linespacing": 1.3}
        if wide:
            axes.annotate(text, place, (0, 0), xycoords=axes.get_xaxis_transform(), ha="center", **look)
        else:
            edge = left if advantage > 0 else right
            axes.annotate(
                text + "\n(dashed: not clipped)",
                (edge, 0.17),
                (aside[0], 0),
                xycoords=axes.get_xaxis_transform(),
                ha=aside[1],
                arrowprops={"arrowstyle": "-|>", "color": GREY},
                bbox=PLATE,
                **look,
            )
    return wide


def draw_objective(axes: Axes, ratios: np.ndarray, objective: np.ndarray, advantage: int, named: bool) -> None:
    """The objective, what it would be without the clip (both `named` at their ends), and the dot of every first update."""
    colour, free, up = BLUE if advantage > 0 else RED, ratios * advantage, advantage > 0
    axes.plot(ratios, free, "--", color="black", linewidth=1)
    axes.plot(ratios, objective, color=colour, linewidth=2.5)
    axes.plot(1, advantage, "o", color="black", markersize=7, zorder=4)
    axes.annotate(
        "ratio 1: here every\nfirst update stands",
        (1, advantage),
        (0.03 if up else 0.97, 0.86),
        textcoords="axes fraction",
        ha="left" if up else "right",
        va="top",
        fontsize=9,
        bbox=PLATE,
        arrowprops={"arrowstyle": "-", "color": GREY, "shrinkB": 5},
    )
    end, inward = -1 if up else 0, -advantage  # the zone's end; and the way from there into the panel
    look = {"textcoords": "offset points", "ha": "right" if up else "left", "fontsize": 9}
    if named:
        axes.annotate(
            "clipped",
            (ratios[end], objective[end]),
            (4 * inward, 4 * advantage),
            va="bottom" if up else "top",
            fontweight="bold",
            color=colour,
            **look,
        )
        axes.annotate("not clipped", (ratios[end], free[end]), (22 * inward, 0), va="center", **look)


def draw_edges(axes: Axes, ratios: np.ndarray, epsilon: float, epsilon_high: float) -> None:
    """Lines at ratio 1 and at the edges of the clip, which are named above the panel, each on the side away from 1."""
    low, high = ratios[0], ratios[-1]
    axes.set_xlim(low, high)
    axes.axvline(1, color=GREY, linewidth=0.8, zorder=0.5)
    edges = ((1 - epsilon, "1 − epsilon", "right"), (1 + epsilon_high, "1 + epsilon_high", "left"))
    for at, said, side in edges:
        if not low <= at <= high:
            continue
        axes.axvline(at, color=GREY, linewidth=1, linestyle=":", zorder=0.5)
        share = (at - low) / (high - low)
        side = "left" if share < 0.22 else "right" if share > 0.7 else side  # within its panel, by how long it is
        axes.annotate(
            f"{said} = {unsigned(at)}",
            (at, 1),
            (-4 if side == "right" else 4, 4),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            ha=side,
            va="bottom",
            fontsize=SMALL,
            color=GREY,
        )


FORMULAS = {"k1": "k1 = −x", "k2": "k2 = x²/2", "k3": "k3 = eˣ − x − 1"}
ESTIMATOR = {"k1": (RED, "--", "s"), "k2": (COLOURS[2], "-.", "^"), "k3": (BLUE, "-", "o")}  # colour, dash, marker


def kl_figure(
    log_ratios: np.ndarray,
    estimators: dict[str, np.ndarray],
    spread: dict[str, tuple[float, float]] | None = None,
    exact: float | None = None,
) -> Figure:
    """What each estimator of the KL says of one token, by its log-ratio; with `spread`, its mean and deviation beside that.

    Args:
        log_ratios: log-probability under the reference minus that under the policy, nats, rising, shape (ratios,).
        estimators: k1, k2, k3 -> the estimate at each log-ratio, nats, shape (ratios,).
        spread: the same -> (mean, standard deviation) over samples of the policy, nats.
        exact: the KL itself, nats.
    """
    with styled():
        figure, axes = plt.subplots(
            1,
            1 + bool(spread),
            figsize=(WIDTH, 4.2),
            layout="constrained",
            squeeze=False,
            width_ratios=(1.35, 1) if spread else None,
        )
        draw_estimators(axes[0, 0], np.asarray(log_ratios, float), estimators)
        if spread:
            draw_spread(axes[0, 1], spread, exact)
        axes[0, 0].xaxis.set_major_formatter(axis_number)
        for one in axes[0]:
            one.tick_params(axis="y", labelsize=SMALL)
            one.yaxis.set_major_formatter(axis_number)
    return figure


def draw_estimators(axes: Axes, log_ratios: np.ndarray, estimators: dict[str, np.ndarray]) -> None:
    values = {name: np.asarray(line, float) for name, line in estimators.items()}
    every = np.concatenate([*values.values(), [0.0]])
    top = min(every.max(), 6) or 1.0  # else k3 would flatten the others
    bottom = min(max(every.min(), -3), -0.2 * top)
    pad = 0.05 * (top - bottom)
    axes.set(xlim=log_ratios[[0, -1]], ylim=(bottom - pad, top + pad), title="One token: what each estimator says")
    axes.axhspan(bottom - pad, 0, color="#000000", alpha=0.08, linewidth=0)
    axes.axhline(0, color="black", linewidth=1)
    axes.text(0.03, 0.05, "negative: impossible for a KL", transform=axes.transAxes, fontsize=9, color=GREY)
    ends = []
    for name, line in values.items():
        colour, dash, _ = ESTIMATOR.get(name, (COLOURS[6], ":", "D"))
        axes.plot(
            log_ratios, line, dash, color=colour, linewidth=3 if name == "k3" else 1.8, zorder=3 if name == "k3" else 2
        )
        if line[-1] <= top:
            ends.append((line[-1], FORMULAS.get(name, name), colour))
        else:  # named where it leaves the panel
            out = log_ratios[np.flatnonzero(line <= top)[-1]] if (line <= top).any() else log_ratios[0]
            axes.annotate(
                FORMULAS.get(name, name),
                (out, top),
                (-8, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=9,
                color=colour,
                fontweight="bold",
            )
    label_ends(axes, ends, apart=0.08)
    axes.set(xlabel="x = log-ratio of the token, reference − policy, nats", ylabel="estimate of the KL, nats")
    axes.tick_params(axis="x", labelsize=SMALL)


def draw_spread(axes: Axes, spread: dict[str, tuple[float, float]], exact: float | None) -> None:
    """Mean and standard deviation of each estimator, in numbers too, and the exact KL as a line."""
    axes.axhline(0, color="black", linewidth=1)
    for place, (name, (mean, deviation)) in enumerate(spread.items()):
        colour, _, marker = ESTIMATOR.get(name, (COLOURS[6], ":", "D"))
        axes.errorbar(place, mean, yerr=deviation, fmt=marker, color=colour, markersize=7, capsize=5, linewidth=2)
        said = f"{unsigned(mean)}\n± {unsigned(deviation)}"
        axes.annotate(
            said, (place, mean + deviation), (0, 5), textcoords="offset points", ha="center", va="bottom", fontsize=9
        )
    if exact is not None:
        axes.axhline(exact, color="black", linestyle="--", linewidth=1.2, zorder=1)
    axes.margins(y=0.1)
    if not any(value for pair in spread.values() for value in pair) and not exact:
        axes.set_ylim(-0.1, 1)  # all 0: no axis of 1e-17
    room(axes, 0.16)
    if exact is not None:
        label_ends(axes, [(exact, f"exact KL\n{unsigned(exact)}", "black")])
    axes.set_xticks(range(len(spread)), spread, fontsize=10)
    axes.set(xlim=(-0.6, len(spread) - 0.4), title="Over samples: mean ± standard deviation", ylabel="KL, nats")
    axes.grid(False, axis="x")


def training_figure(log: pd.DataFrame, title: str = "") -> Figure:
    """Six panels of a run: reward, right and in format, the loss and its parts, groups without spread, length, gradient.

    Args:
        log: a row a step, indexed by step, of which there may be few or none yet: reward, correct and format (shares,
            0..1), policy_loss, kl_loss (beta times KL), loss, no_spread (share of groups), tokens (mean length), grad_norm.
            A column that is missing or has no finite number is said to be so.
    """
    log = log.astype(float)
    with styled():
        figure, axes = plt.subplots(2, 3, figsize=(WIDTH, 5.6), layout="constrained")
        for place, (name, draw) in zip(axes.flat, PANELS.items()):
            step_panel(place, log, name)
            draw(place, log)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        caption(figure, [how_drawn(log)])
    return figure


def how_drawn(log: pd.DataFrame) -> str:
    window, hidden = window_for(len(log)), -(-len(log) // POINTS)
    points = f"Points: single steps{f', one of {hidden} shown' if hidden > 1 else ''}"
    lines = f"; lines: centred mean of {window} of them, median in the panels of loss and gradient"
    return f"{points}{lines if window > 1 else ''}."


def step_panel(axes: Axes, log: pd.DataFrame, title: str) -> None:
    """Title, and the steps from left to right, whole ones."""
    axes.set_title(title)
    axes.set_xlabel("training step")
    axes.tick_params(labelsize=SMALL)
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.yaxis.set_major_formatter(axis_number)
    low, high = (log.index.min(), log.index.max()) if len(log) else (0, 1)
    axes.set_xlim(low - 0.02 * (high - low) - 0.5, high + 0.02 * (high - low) + 0.5)


def absent(axes: Axes, log: pd.DataFrame, *columns: str) -> bool:
    """Whether none of the columns has a value to draw; then the panel says so."""
    if any(column in log and np.isfinite(log[column]).any() for column in columns):
        return False
    said = f"{' and '.join(columns)}:\nno finite number yet"
    axes.text(0.5, 0.5, said, transform=axes.transAxes, ha="center", va="center", color=GREY, fontsize=9)
    axes.set_yticks([])
    axes.grid(False)
    return True


Ends = list[tuple[float, str, str]]


def draw_lines(axes: Axes, log: pd.DataFrame, looks: dict[str, tuple[str, str, str]], points: bool = True) -> Ends:
    """A smoothed line a column: the mean over its points, or without `points` the median. Returns what `label_ends` needs.

    Args:
        looks: column -> (name, colour, dash); a column without a finite number is left out.
    """
    ends = []
    for column, (name, colour, dash) in looks.items():
        values = finite(log[column]) if column in log else []
        if not len(values):
            continue
        look = {"color": colour, "linestyle": dash, "linewidth": 2, "marker": "o" if len(values) == 1 else ""}
        line = curve(axes, values, **look) if points else smooth(values, how="median")
        if not points:
            axes.plot(thin(line).index, thin(line), **look)
        ends.append((line.dropna().iloc[-1], name, colour))
    return ends


def draw_reward(axes: Axes, log: pd.DataFrame) -> None:
    axes.set_ylabel("mean of completions")
    if not absent(axes, log, "reward"):
        curve(axes, log["reward"], color=COLOURS[6])
        bottom, top = axes.get_ylim()
        axes.set_ylim(min(-0.05, bottom), max(2.05, top))  # of the 2 points that can be had


def draw_right(axes: Axes, log: pd.DataFrame) -> None:
    axes.set_ylabel("percent of completions")
    if not absent(axes, log, "correct", "format"):
        ends = draw_lines(axes, 100 * log, {"correct": ("correct", BLUE, "-"), "format": ("in format", RED, "--")})
        percent(axes)
        label_ends(axes, ends)


def percent(axes: Axes) -> None:
    axes.set_ylim(-3, 103)
    axes.set_yticks(range(0, 101, 25))


def draw_loss(axes: Axes, log: pd.DataFrame) -> None:
    """The points of the loss, the smoothed lines of its two parts, and 0, around which the policy term lies."""
    axes.set_ylabel("loss")
    if absent(axes, log, "loss", "policy_loss", "kl_loss"):
        return
    looks = {"policy_loss": ("policy\nterm", BLUE, "-"), "kl_loss": ("beta · KL", RED, "--")}
    ends, wild = draw_lines(axes, log, looks, points=False), ""
    lines = pd.Series([value for line in axes.lines for value in line.get_ydata()] + [0.0]).dropna()
    axes.axhline(0, color="black", linewidth=1.5, zorder=1)
    if "loss" in log and len(loss := thin(finite(log["loss"]))):
        size = 8 if len(loss) <= 60 else 5
        axes.plot(loss.index, loss, ".", color=COLOURS[6], alpha=0.5, markersize=size, markeredgewidth=0, zorder=4)
        wild = cap(axes, log["loss"], lines, COLOURS[6], from_zero=False)
    note(axes, "points: loss = policy term + beta · KL" + (f"\n{wild}" if wild else ""))
    label_ends(axes, ends, apart=0.16)


def draw_no_spread(axes: Axes, log: pd.DataFrame) -> None:
    axes.set_ylabel("percent of groups")
    if not absent(axes, log, "no_spread"):
        curve(axes, 100 * log["no_spread"], color=COLOURS[1])
        percent(axes)


def draw_tokens(axes: Axes, log: pd.DataFrame) -> None:
    axes.set_ylabel("tokens, mean")
    if not absent(axes, log, "tokens"):
        curve(axes, log["tokens"], color=COLOURS[2])
        axes.set_ylim(0, 1.1 * finite(log["tokens"]).max() or 1)


def draw_gradient(axes: Axes, log: pd.DataFrame) -> None:
    axes.set_ylabel("norm")
    if not absent(axes, log, "grad_norm"):
        line = curve(axes, log["grad_norm"], how="median", color=COLOURS[3])
        axes.set_ylim(0, 1.1 * finite(log["grad_norm"]).max() or 1)
        note(axes, cap(axes, log["grad_norm"], line, COLOURS[3]))


PANELS = {
    "Reward": draw_reward,
    "Share of completions": draw_right,
    "Loss and its two parts": draw_loss,
    "Groups without spread": draw_no_spread,
    "Completion length": draw_tokens,
    "Gradient": draw_gradient,
}
