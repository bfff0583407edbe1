"""The figures of notebook 00: what they draw and say, with usual and odd numbers, and that nothing lies on anything."""

import html.parser
import itertools
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from lab.scratch import figures
from lab.show import figure_style

pytestmark = [
    pytest.mark.filterwarnings(f"error::{kind}Warning") for kind in ("User", "Runtime", "Future", "Deprecation")
]
RATES = np.linspace(0, 1, 101)
SHARES = np.repeat(np.arange(9) / 8, (9, 4, 6, 5, 8, 4, 6, 7, 15))
PULLS = {
    "grpo": [0.0773, 0.0221, -0.0552, -0.0031],
    "bnpo": [0.0203, 0.0203, -0.021, -0.0205],
    "dapo": [0.0183, 0.0183, -0.021, -0.0205],
    "dr_grpo": [0.0031, 0.0031, -0.0035, -0.0034],
}
NEAR_1 = np.linspace(0.5, 1.6, 221)
X = np.linspace(-3, 3, 121)
SPREAD = {"k1": (0.0932, 0.421), "k2": (0.101, 0.15), "k3": (0.0921, 0.12)}


def signal(shares=SHARES, sizes=(2, 4, 8, 16)):
    chances = {size: 1 - RATES**size - (1 - RATES) ** size for size in sizes}
    return figures.signal_figure(chances, RATES, np.array(shares))


def pulled(pulls=PULLS, tokens=(4, 14, 6, 43), names="ABCD"):
    return figures.pull_figure({name: np.array(pull) for name, pull in pulls.items()}, tokens, names)


def clipped(epsilon=0.2, epsilon_high=0.28, ratios=NEAR_1):
    objectives, slopes = {}, {}
    for sign in (1, -1):
        objectives[sign] = np.minimum(sign * ratios, sign * np.clip(ratios, 1 - epsilon, 1 + epsilon_high))
        slopes[sign] = np.where(ratios > 1 + epsilon_high if sign > 0 else ratios < 1 - epsilon, 0, sign)
    return figures.clip_figure(ratios, objectives, slopes, epsilon, epsilon_high)


def estimated(spread=SPREAD, exact=0.0929):
    return figures.kl_figure(X, {"k1": -X, "k2": X**2 / 2, "k3": np.exp(X) - X - 1}, spread, exact)


def run_log(n=40, **more):
    """A run's log as the notebook keeps it; `more` replaces columns."""
    rng, steps = np.random.default_rng(0), np.arange(1, n + 1)
    done = steps / max(n, 20)
    correct, form = np.clip(
        [0.2 + 0.5 * done + rng.normal(0, 0.05, n), 0.4 + 0.7 * done + rng.normal(0, 0.04, n)], 0, 1
    )
    policy, kl = rng.normal(0, 0.004, n), 0.004 * done**1.5
    columns = {
        "reward": correct + form,
        "correct": correct,
        "format": form,
        "policy_loss": policy,
        "kl_loss": kl,
        "loss": policy + kl,
        "no_spread": 0.3 + 0.3 * done,
        "tokens": 60 - 20 * done,
        "grad_norm": np.exp(rng.normal(-1, 0.3, n)),
        **more,
    }
    return pd.DataFrame(columns, index=steps)


def spoiled():
    """A log with what goes wrong: gaps, an empty column, infinities, a wild step."""
    log = run_log(tokens=np.nan)
    log.loc[5:9, "reward"] = np.nan
    log.loc[40, ["loss", "reward"]] = np.inf
    log.loc[12, ["kl_loss", "loss", "grad_norm"]] = 3.0, 3.0, 900.0
    return log


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def said(axes):
    """What is written in a panel: texts, legend and its heading."""
    legend = axes.get_legend()
    words = [legend.get_title(), *legend.get_texts()] if legend else []
    return [text.get_text() for text in (*axes.texts, *words) if text.get_text()]


def panels(figure):
    return {axes.get_title(loc="left"): axes for axes in figure.axes}


def lines_of(axes):
    return [line for line in axes.lines if len(line.get_xdata()) > 2]


FIGURES = {
    "signal": signal,
    "signal, all 0": lambda: signal(np.zeros(64), (2, 4, 8, 16, 32)),
    "signal, one prompt": lambda: signal([0.125]),
    "signal, many": lambda: signal([0] * 1000 + [1] * 1200 + [0.5] * 30, (3, 5)),
    "pull": pulled,
    "pull, all 0": lambda: pulled({name: np.zeros(4) for name in PULLS}),
    "pull, equal": lambda: pulled({name: np.full(4, 0.05) for name in PULLS}),
    "pull, only down": lambda: pulled({"grpo": [-0.05, -0.0312, 0, -1e-4]}),
    "clip": clipped,
    "clip, one epsilon": lambda: clipped(0.2, 0.2),
    "clip, narrow": lambda: clipped(0.05, 0.05),
    "clip, wide": lambda: clipped(0.4, 0.5),
    "clip, never": lambda: clipped(3, 3),
    "kl": estimated,
    "kl, all 0": lambda: estimated({name: (0.0, 0.0) for name in SPREAD}, 0.0),
    "training": lambda: figures.training_figure(run_log(), "A run"),
    **{f"training, {n} steps": (lambda n=n: figures.training_figure(run_log(n))) for n in (1, 2, 3, 500)},
    "training, spoiled": lambda: figures.training_figure(spoiled(), "Spoiled"),
    "training, equal": lambda: figures.training_figure(run_log(9, **dict.fromkeys(run_log(1), 0.0))),
}


def written(figure):
    """The texts that are drawn, with their boxes in pixels."""
    figure.draw_without_rendering()
    hidden = set()
    for axis in [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]:
        low, high = sorted(axis.get_view_interval())
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
            if not low <= tick.get_loc() <= high:
                hidden |= {tick.label1, tick.label2}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [(text, text.get_window_extent()) for text in texts if text not in hidden]


@pytest.mark.parametrize("name", FIGURES)
def test_no_text_lies_on_another_beyond_the_edge_or_is_too_small(name):
    figure = FIGURES[name]()
    texts, whole = written(figure), figure.bbox.padded(1)
    for text, box in texts:
        assert text.get_fontsize() >= 8, text.get_text()
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1, text.get_text()
    for (one, box), (other, place) in itertools.combinations(texts, 2):
        assert not box.padded(-0.5).overlaps(place), f"{one.get_text()!r} lies on {other.get_text()!r}"


@pytest.mark.parametrize("name", ["signal", "pull", "clip", "kl", "training"])
def test_each_figure_is_as_wide_as_the_notebook_and_can_be_saved(name, tmp_path):
    figure = FIGURES[name]()
    image = plt.imread(figure_style.save(figure, tmp_path / "a.png"))
    assert figure.get_figwidth() == 11 and image.shape[1] == 11 * 150 and image.std() > 0
    assert figure.axes[0].get_title(loc="left") and figure.axes[0].get_ylabel()


def test_the_module_does_not_need_torch():
    code = "import sys; from lab.scratch import figures; sys.exit('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, timeout=60)
    assert found.returncode == 0


def test_each_group_size_is_a_line_in_percent_with_its_number_on_it():
    upper, lower = signal().axes
    tops = [100 * (1 - 2 * 0.5**size) for size in (2, 4, 8, 16)]
    assert [line.get_ydata().max() for line in upper.lines] == pytest.approx(tops)
    assert len({line.get_linestyle() for line in upper.lines}) == 4 and said(upper) == ["groups of 2", "4", "8", "16"]
    for line, text in zip(upper.lines, upper.texts):
        x, y = text.get_position()
        assert y == pytest.approx(line.get_ydata()[line.get_xdata() == x][0]), "not on its line"
    assert upper.get_xlim() == lower.get_xlim()


def test_prompts_without_spread_have_another_colour_and_are_counted():
    _, lower = signal().axes
    bars = {round(bar.get_x() + bar.get_width() / 2, 3): bar for bar in lower.patches}
    counts = dict(zip(np.arange(9) / 8, (9, 4, 6, 5, 8, 4, 6, 7, 15)))
    assert {place: bar.get_height() for place, bar in bars.items()} == counts
    colours = {place: bar.get_facecolor() for place, bar in bars.items()}
    assert colours[0] == colours[1] != colours[0.5] and len({*colours.values()}) == 2
    assert said(lower) == ["9 of 64 prompts: no sample right", "15 of 64 prompts: all samples right"]


@pytest.mark.parametrize("name", ["signal", "signal, many", "signal, all 0"])
def test_the_counts_stand_above_the_bars(name):
    figure = FIGURES[name]()
    texts, lower = written(figure), figure.axes[1]
    tops = [bar.get_window_extent() for bar in lower.patches]
    assert not [t.get_text() for t, box in texts if t in lower.texts for top in tops if box.overlaps(top)]


def test_only_what_was_seen_is_counted():
    assert said(signal([0.125]).axes[1]) == []
    assert said(signal(np.zeros(64)).axes[1]) == ["64 of 64 prompts: no sample right"]
    assert len(signal([0.3, 0.1 + 0.2]).axes[1].patches) == 1, "equal but for rounding"


class Strip(html.parser.HTMLParser):
    """What a browser would make of the strip: its tags, its attributes, the tokens, and all of its text."""

    def __init__(self, *args):
        super().__init__()
        self.tags, self.attributes, self.tokens, self.text, self.inside = set(), set(), [], "", False
        self.feed(figures.token_strip(*args).data)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag == "span" and "title" in dict(attributes):
            self.tokens.append({**dict(attributes), "text": "", "underlined": False})
            self.inside = True
        elif tag == "u" and self.inside:
            self.tokens[-1]["underlined"] = True

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "span"

    def handle_data(self, text):
        self.text += text
        if self.inside:
            self.tokens[-1]["text"] += text


HOSTILE = {
    "<script>alert(1)</script>": "<script>alert(1)</script>",
    "<think>": "<think>",
    "\"'&amp;": "\"'&amp;",
    "</span>": "</span>",
    "\u202etxet\u202c": "[U+202E]txet[U+202C]",
    "\u2067": "[U+2067]",
    "\0": "[U+0000]",
    "\ud83d": "[U+D83D]",
    "": "∅",
    "a b": "a·b",
    "\n\n": "↵↵",
    "\t": "⇥",
    "\r": "[U+000D]",
    "\u200b": "[U+200B]",
    "\xa0": "[U+00A0]",
    "e\u0301": "e\u0301",
    "\x1b[31m": "[U+001B][31m",
    "漢字": "漢字",
    "\u2028": "[U+2028]",
}


@pytest.mark.parametrize("token, shown", HOSTILE.items())
def test_a_tokens_text_is_shown_and_never_obeyed(token, shown):
    strip = Strip([[token]], [[0.5]], [token])
    assert [one["text"] for one in strip.tokens] == [shown]
    assert strip.tags == {"style", "div", "small", "span", "u", "p"} and strip.attributes == {
        "class",
        "style",
        "dir",
        "title",
    }
    assert figures.token_strip([[token]], [[0.5]], ["head"]).data.encode(), "has halves of characters"


def test_the_strip_loads_nothing_and_has_its_own_text_colour():
    text = figures.token_strip([["a"]], [[0.5]], ["head"]).data
    assert not any(word in text.lower() for word in ("http", "url(", "@import", "<script", "src=", "onload"))
    assert ".token-strip { background: #fff; color: #111" in text and ".token-strip span { color: #111" in text


def test_a_token_is_the_darker_the_less_probable_and_says_so_in_numbers():
    strip = Strip([list("abcdefg")], [[1.0, 0.5, 0.1, 0.05, 0.01, 0.0001, 0.0]], ["reward 2.0, advantage +1.2"])
    colours = [one["style"].removeprefix("background:") for one in strip.tokens]
    light = [sum(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for colour in colours]
    assert colours[0] == "#ffffff" and light == sorted(light, reverse=True) and len(set(colours)) == 5
    assert colours[4:] == [figure_style.ORANGE.lower()] * 3
    assert [one["underlined"] for one in strip.tokens] == [False] * 3 + [True] * 4
    assert strip.tokens[1]["title"] == "probability 0.5, log-probability -0.693"
    assert strip.tokens[-1]["title"] == "probability 0, log-probability -inf" and strip.tokens[0]["title"].endswith(
        "probability 0"
    )
    assert "reward 2.0, advantage +1.2" in strip.text and "1 % or less" in strip.text


def test_a_probability_just_above_1_is_certain():
    (above,) = Strip([["a"]], [[1.0000001]], ["x"]).tokens
    assert above["style"] == "background:#ffffff"


def test_what_does_not_go_together_is_refused():
    for wrong in ([[["a"]], [[0.5, 0.5]], ["x"]], [[["a"]], [[0.5]], []]):
        with pytest.raises(ValueError, match="zip"):
            figures.token_strip(*wrong)


def test_each_loss_type_has_a_panel_with_a_numbered_bar_for_each_completion():
    figure = pulled()
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["grpo", "bnpo", "dapo", "dr_grpo"]
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    for axes, pull in zip(figure.axes, PULLS.values()):
        assert [bar.get_height() for bar in axes.patches] == pull
    assert said(figure.axes[3]) == ["+0.0031", "+0.0031", "−0.0035", "−0.0034"]
    up, _, down, _ = figure.axes[0].patches
    assert up.get_facecolor() != down.get_facecolor() and "made likelier" in figure.get_suptitle()
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["A\n4 tokens", "B\n14 tokens", "C\n6 tokens", "D\n43 tokens"]


def test_the_clip_has_the_objective_its_free_line_and_a_grey_zone_without_gradient():
    for axes, sign, zone in zip(clipped().axes, (1, -1), ((1.28, 1.6), (0.5, 0.8))):
        objective, free = lines_of(axes)
        assert free.get_ydata() == pytest.approx(sign * free.get_xdata()) and free.get_linestyle() == "--"
        assert objective.get_linestyle() == "-" and (objective.get_ydata() <= free.get_ydata() + 1e-9).all()
        (grey,) = axes.collections
        assert grey.get_paths()[0].get_extents().intervalx == pytest.approx(zone, abs=0.01)
        assert any(
            "no gradient" in text and f"no more push {'up' if sign > 0 else 'down'}" in text for text in said(axes)
        )
        (dot,) = [line for line in axes.lines if line.get_marker() == "o"]
        assert (*dot.get_xdata(), *dot.get_ydata()) == (1, sign) and "ratio 1: here every first update stands" in said(
            axes
        )


def test_the_edges_are_lines_with_names_where_the_ratios_reach_them():
    for axes in clipped().axes:
        assert [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 2] == pytest.approx([0.8, 1.28])
        assert said(axes)[:2] == ["1 − epsilon = 0.8", "1 + epsilon_high = 1.28"]
    assert not [line for axes in clipped(3, 3).axes for line in axes.lines if len(line.get_xdata()) == 2]


@pytest.mark.parametrize("name", ["clip", "clip, one epsilon", "clip, narrow", "clip, wide"])
def test_the_legend_of_the_clip_lies_on_no_objective(name):
    figure = FIGURES[name]()
    figure.draw_without_rendering()
    for axes in figure.axes:
        box, (objective, _) = axes.get_legend().get_window_extent(), lines_of(axes)
        assert not any(box.contains(*point) for point in axes.transData.transform(objective.get_xydata()))


def test_the_estimators_are_lines_with_their_formulas_and_k3_is_the_thickest():
    axes, _ = estimated().axes
    k1, k2, k3 = lines_of(axes)
    assert k1.get_ydata() == pytest.approx(-X) and k3.get_ydata()[0] == pytest.approx(np.exp(-3) + 2)
    assert k3.get_linewidth() > max(k1.get_linewidth(), k2.get_linewidth())
    assert len({line.get_linestyle() for line in (k1, k2, k3)}) == 3
    assert {*said(axes)} == {"negative: impossible for a KL", "k1 = −x", "k2 = x²/2", "k3 = eˣ − x − 1"}
    assert axes.patches[0].get_y() + axes.patches[0].get_height() == 0 and axes.get_xlim() == (-3, 3)


def test_beside_them_are_means_and_deviations_and_the_exact_kl():
    _, axes = estimated().axes
    bars = [np.array(collection.get_segments()[0])[:, 1] for collection in axes.collections]
    assert [(bar.mean(), np.ptp(bar) / 2) for bar in bars] == [pytest.approx(pair) for pair in SPREAD.values()]
    assert len({container.lines[0].get_marker() for container in axes.containers}) == 3
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["k1\n0.0932 ± 0.421", "k2\n0.101 ± 0.15", "k3\n0.0921 ± 0.12"]
    assert said(axes) == ["exact KL: 0.0929"]
    assert any(line.get_linestyle() == "--" and set(line.get_ydata()) == {0.0929} for line in axes.lines)


def test_the_six_panels_draw_the_columns():
    log, figure = run_log(), figures.training_figure(run_log(), "A run")
    found = panels(figure)
    columns = {
        "Reward": "reward",
        "Loss and its two parts": "loss",
        "Completion length": "tokens",
        "Gradient": "grad_norm",
    }
    points = {name: [line for line in lines_of(axes) if line.get_marker() == "."] for name, axes in found.items()}
    for name, column in columns.items():
        assert points[name][0].get_ydata() == pytest.approx(log[column]), name
    assert points["Groups without spread"][0].get_ydata() == pytest.approx(100 * log["no_spread"])
    assert len(found) == 6 and found["Reward"].get_ylim()[1] > 2 and figure.get_suptitle() == "A run"
    assert all(axes.get_xlabel() == "training step" and axes.get_ylabel() for axes in found.values())


def test_shares_are_in_percent_and_the_loss_has_its_two_parts_and_a_bold_0():
    found = panels(figures.training_figure(run_log()))
    right, form = (line for line in lines_of(found["Share of completions"]) if line.get_linestyle() != "None")
    assert right.get_ydata() == pytest.approx(figure_style.smooth(100 * run_log()["correct"]))
    assert form.get_ydata().max() > 90 and right.get_linestyle() != form.get_linestyle()
    assert said(found["Share of completions"]) == ["correct", "in format"]
    loss = found["Loss and its two parts"]
    assert next(line for line in loss.lines if set(line.get_ydata()) == {0}).get_linewidth() == 1.5
    assert len([line for line in lines_of(loss) if line.get_linestyle() in ("-", "--")]) == 2
    assert said(loss) == ["policy term", "beta · KL", "loss, their sum"]


def test_what_is_not_there_is_said_and_gaps_are_no_error():
    found = panels(figures.training_figure(spoiled()))
    (text,) = said(found["Completion length"])
    assert text == "tokens was not logged as a finite number"
    assert len(lines_of(found["Reward"])[0].get_xdata()) == 39


def test_a_wild_step_flattens_neither_the_loss_nor_the_gradient():
    found = panels(figures.training_figure(spoiled()))
    for name, most, text in (("Loss and its two parts", 0.1, "up to 3"), ("Gradient", 3, "up to 900")):
        assert found[name].get_ylim()[1] < most and any(text in one for one in said(found[name])), name


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_first_steps_are_seen(n):
    for name, axes in panels(figures.training_figure(run_log(n))).items():
        drawn = [line for line in axes.lines if len(line.get_xdata()) == n and line.get_linestyle() != "None"]
        assert drawn and (n > 1 or all(line.get_marker() == "o" for line in drawn if line.get_xdata()[0] == 1)), name
        low, high = axes.get_ylim()
        assert all(low < value < high for line in drawn for value in line.get_ydata()), name


def test_the_caption_says_what_points_and_lines_are():
    assert figures.training_figure(run_log(1)).get_supxlabel() == "Points: single steps."
    assert (
        "centred mean (loss, gradient: median) of 20 of them" in figures.training_figure(run_log(500)).get_supxlabel()
    )
