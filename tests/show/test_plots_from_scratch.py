"""The figures of notebook 00: what they draw and say, with usual and odd numbers, and that nothing lies on anything."""

import functools
import html.parser
import itertools
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from lab.scratch import figures as plots

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
X = np.linspace(-3, 3, 121)
SPREAD = {"k1": (0.0932, 0.421), "k2": (0.101, 0.15), "k3": (0.0921, 0.12)}


def chances(*sizes):
    return {size: 1 - RATES**size - (1 - RATES) ** size for size in sizes}


def pulled(pulls=PULLS, tokens=(4, 14, 6, 43), names="ABCD"):
    return plots.pull_figure({name: np.array(pull) for name, pull in pulls.items()}, tokens, names)


def clipped(epsilon=0.2, epsilon_high=0.28, ratios=np.linspace(0, 2, 201)):
    objectives, slopes = {}, {}
    for sign in (1, -1):
        objectives[sign] = np.minimum(sign * ratios, sign * np.clip(ratios, 1 - epsilon, 1 + epsilon_high))
        slopes[sign] = np.where(ratios > 1 + epsilon_high if sign > 0 else ratios < 1 - epsilon, 0, sign)
    return plots.clip_figure(ratios, objectives, slopes, epsilon, epsilon_high)


def estimated(x=X, *more):
    return plots.kl_figure(x, {"k1": -x, "k2": x**2 / 2, "k3": np.exp(x) - x - 1}, *more)


def run_log(n=40, **more):
    """A run's log as the notebook keeps it; `more` replaces columns, None removes one."""
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
    return pd.DataFrame({name: values for name, values in columns.items() if values is not None}, index=steps)


def spoiled():
    """A log with what goes wrong: gaps, an empty column, infinities, a wild step, a column that is missing."""
    log = run_log(tokens=np.nan, format=None)
    log.loc[5:9, "reward"] = np.nan
    log.loc[40, ["loss", "reward"]] = np.inf
    log.loc[12, ["kl_loss", "loss", "grad_norm"]] = 3.0, 3.0, 900.0
    return log


@pytest.fixture(autouse=True)
def closed():
    yield
    plots.plt.close("all")


def said(axes):
    return [text.get_text() for text in axes.texts]


def panels(figure):
    return {axes.get_title(loc="left"): axes for axes in figure.axes}


def lines_of(axes):
    return [line for line in axes.lines if len(line.get_xdata()) > 2]


# --------------------------------------------------------------------------- all figures, with usual and odd numbers


USUAL = {
    "signal": lambda: plots.signal_figure(chances(2, 4, 8, 16), RATES, SHARES),
    "pull": pulled,
    "clip": clipped,
    "kl": estimated,
    "kl spread": lambda: estimated(X, SPREAD, 0.0929),
    "training": lambda: plots.training_figure(run_log(), "A run"),
}
ODD = {
    "signal, all 0": lambda: plots.signal_figure(chances(2, 4, 8, 16, 32), RATES, np.zeros(64)),
    "signal, one prompt": lambda: plots.signal_figure(chances(8), RATES, [0.125]),
    "signal, no prompt": lambda: plots.signal_figure(chances(8), RATES, []),
    "signal, many": lambda: plots.signal_figure(chances(3, 5), RATES, [0] * 1000 + [1] * 1200 + [0.5] * 30),
    "pull, all 0": lambda: pulled({name: np.zeros(4) for name in PULLS}, [1, 1, 1, 1]),
    "pull, equal": lambda: pulled({name: np.full(4, 0.05) for name in PULLS}, [4, 14, 6, 120]),
    "pull, only down": lambda: pulled({"grpo": [-0.05, -0.0312, 0, np.nan]}),
    "pull, long names": lambda: pulled(names=["right, short", "right and very, very long", "$x$ wrong", "nonsense"]),
    "clip, one epsilon": lambda: clipped(0.2, 0.2),
    "clip, epsilon 0": lambda: clipped(0, 0),
    "clip, far": lambda: clipped(0.9, 0.8),
    "clip, never": lambda: clipped(3, 3),
    "clip, near 1": lambda: clipped(ratios=np.linspace(0.5, 1.6, 221)),
    "clip, low and high": lambda: clipped(0.6, 0.42),
    "clip, few ratios": lambda: clipped(ratios=np.linspace(0.5, 1.5, 51)),
    "kl, near 0": lambda: estimated(X / 20),
    "kl, all 0": lambda: estimated(X, {"k1": (0, 0), "k3": (0, 0)}, 0),
    **{f"training, {n} steps": (lambda n=n: plots.training_figure(run_log(n))) for n in (1, 2, 3, 500)},
    "training, none": lambda: plots.training_figure(pd.DataFrame()),
    "training, spoiled": lambda: plots.training_figure(spoiled(), "Spoiled"),
    "training, equal": lambda: plots.training_figure(run_log(9, **dict.fromkeys(run_log(1), 0.0))),
}


@functools.cache
def made(name):
    """A figure that several tests look at, made once; none of them changes it."""
    return {**USUAL, **ODD}[name]()


def written(figure):
    """The texts that are drawn, with their boxes in pixels, without the arrows of annotations."""
    figure.draw_without_rendering()
    hidden = set()
    for axis in [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]:
        low, high = sorted(axis.get_view_interval())
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
            if not low <= tick.get_loc() <= high:
                hidden |= {tick.label1, tick.label2}
    texts = [
        text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip() and text not in hidden
    ]
    return [(text, Text.get_window_extent(text)) for text in texts]


@pytest.mark.parametrize("name", [*USUAL, *ODD])
def test_no_text_lies_on_another_beyond_the_edge_or_is_too_small(name):
    figure = made(name)
    texts, whole = written(figure), figure.bbox.padded(1)
    for text, box in texts:
        assert text.get_fontsize() >= 8, text.get_text()
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1, text.get_text()
    for (one, box), (other, place) in itertools.combinations(texts, 2):
        assert not box.padded(-0.5).overlaps(place), f"{one.get_text()!r} lies on {other.get_text()!r}"


@pytest.mark.parametrize("name", USUAL)
def test_each_figure_is_as_wide_as_the_notebook_and_can_be_saved(name, tmp_path):
    figure = made(name)
    image = plots.plt.imread(plots.save(figure, tmp_path / "a.png"))
    assert figure.get_figwidth() == 11 and image.shape[1] == 11 * 150 and image.std() > 0
    assert all(axes.get_title(loc="left") and axes.get_ylabel() for axes in figure.axes[:1])


def test_the_module_does_not_need_torch():
    code = "import sys; from lab import plots_from_scratch; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, timeout=60).returncode == 0
    )


def test_names_at_line_ends_keep_apart_and_within_the_panel():
    _, axes = plots.plt.subplots()
    axes.set_ylim(0, 1)
    plots.label_ends(axes, [(0.5, "a", "k"), (0.52, "b", "k"), (9, "c", "k"), (0.99, "d", "k")], apart=0.1)
    places = {text.get_text(): text.get_position()[1] for text in axes.texts}
    assert [*places] == ["a", "b", "d", "c"] and max(places.values()) == pytest.approx(1)
    assert min(np.diff([*places.values()])) >= 0.0999 and places["a"] == pytest.approx(0.41)
    plots.label_ends(axes, [(0.5, "e", "k"), (0.5, "f", "k")], apart=0.1)
    assert [text.get_position()[1] for text in axes.texts[-2:]] == pytest.approx([0.45, 0.55]), (
        "neither is pushed alone"
    )


# --------------------------------------------------------------------------- 1. signal


def test_each_group_size_is_a_line_in_percent_with_its_number_on_it():
    upper, lower = made("signal").axes
    assert [line.get_ydata().max() for line in upper.lines] == pytest.approx(
        [100 * (1 - 2 * 0.5**g) for g in (2, 4, 8, 16)]
    )
    assert len({line.get_linestyle() for line in upper.lines}) == 4 and said(upper) == ["groups of 2", "4", "8", "16"]
    for line, text in zip(upper.lines, upper.texts):
        x, y = text.get_position()
        assert y == pytest.approx(line.get_ydata()[line.get_xdata() == x][0]), "not on its line"
    assert (
        upper.get_xlim() == lower.get_xlim() and "percent" in upper.get_ylabel() and "pass rate" in lower.get_xlabel()
    )


def test_prompts_without_spread_are_hatched_and_counted():
    _, lower = made("signal").axes
    bars = {round(bar.get_x() + bar.get_width() / 2, 3): bar for bar in lower.patches}
    assert {place: bar.get_height() for place, bar in bars.items()} == dict(
        zip(np.arange(9) / 8, (9, 4, 6, 5, 8, 4, 6, 7, 15))
    )
    assert [place for place, bar in bars.items() if bar.get_hatch()] == [0, 1] and not bars[0.5].get_hatch()
    assert said(lower) == ["9 of 64 prompts: no sample right", "15 of 64 prompts: all samples right"]


@pytest.mark.parametrize("name", ["signal", "signal, many", "signal, all 0"])
def test_the_counts_stand_above_the_bars(name):
    figure = made(name)
    texts, lower = written(figure), figure.axes[1]
    tops = [bar.get_window_extent() for bar in lower.patches]
    assert not [t.get_text() for t, box in texts if t in lower.texts for top in tops if box.overlaps(top)]


def test_only_what_was_seen_is_counted():
    assert said(made("signal, one prompt").axes[1]) == [] and len(made("signal, one prompt").axes[1].patches) == 1
    assert said(made("signal, all 0").axes[1]) == ["64 of 64 prompts: no sample right"]
    assert len(plots.signal_figure(chances(8), RATES, [0.3, 0.1 + 0.2]).axes[1].patches) == 1, "equal but for rounding"
    assert "none was measured" in made("signal, no prompt").axes[1].get_title(loc="left")


# --------------------------------------------------------------------------- 2. tokens


class Strip(html.parser.HTMLParser):
    """What a browser would make of the strip: its tags, its attributes, the tokens, and all of its text."""

    def __init__(self, *args):
        super().__init__()
        self.tags, self.attributes, self.tokens, self.text, self.inside = set(), set(), [], "", False
        self.feed(plots.token_strip(*args).data)

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
    "\u0301": "◌\u0301",
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
    assert plots.token_strip([[token]], [[0.5]], [token]).data.encode(), "has halves of characters"


def test_the_strip_loads_nothing_and_has_its_own_text_colour():
    text = plots.token_strip([["a"]], [[0.5]], ["head"]).data
    assert not any(word in text.lower() for word in ("http", "url(", "@import", "<script", "src=", "onload"))
    assert 'style="background:#fff;color:#111' in text and ".token-strip span { color: #111" in text


def test_a_token_is_the_darker_the_less_probable_and_says_so_in_numbers():
    strip = Strip([list("abcdefg")], [[1.0, 0.5, 0.1, 0.05, 0.01, 0.0001, 0.0]], ["reward 2.0, advantage +1.2"])
    colours = [one["style"].removeprefix("background:") for one in strip.tokens]
    light = [sum(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for colour in colours]
    assert colours[0] == "#ffffff" and light == sorted(light, reverse=True) and len(set(colours)) == 5
    assert colours[4:] == [plots.COLOURS[4].lower()] * 3
    assert [one["underlined"] for one in strip.tokens] == [False] * 3 + [True] * 4
    assert strip.tokens[1]["title"] == "probability 0.5, log-probability −0.693"
    assert strip.tokens[-1]["title"] == "probability 0, log-probability −∞" and strip.tokens[0]["title"].endswith(
        "probability 0"
    )
    assert "reward 2.0, advantage +1.2" in strip.text and "1 % or less" in strip.text


def test_a_probability_that_is_none_is_grey_and_one_just_above_1_is_certain():
    unknown, above = Strip([["a", "b"]], [[np.nan, 1.0000001]], ["x"]).tokens
    assert unknown["title"] == "probability unknown" and unknown["style"] == "background:#dddddd"
    assert above["style"] == "background:#ffffff"


def test_a_completion_without_tokens_says_so_and_what_does_not_go_together_is_refused():
    assert "no token" in Strip([[]], [[]], ["empty"]).text
    for wrong in ([[["a"]], [[0.5, 0.5]], ["x"]], [[["a"]], [[0.5]], []]):
        with pytest.raises(ValueError, match="zip"):
            plots.token_strip(*wrong)


# --------------------------------------------------------------------------- 3. pull


def test_each_loss_type_has_a_panel_with_a_numbered_bar_for_each_completion():
    figure = made("pull")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["grpo", "bnpo", "dapo", "dr_grpo"]
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    for axes, pull in zip(figure.axes, PULLS.values()):
        assert [bar.get_height() for bar in axes.patches] == pull
    assert said(figure.axes[3]) == ["+0.0031", "+0.0031", "−0.0035", "−0.0034"]
    assert said(figure.axes[0]) == ["+0.077", "+0.022", "−0.055", "−0.0031", "▲ made likelier", "▼ made less likely"]
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["A\n4 tokens", "B\n14 tokens", "C\n6 tokens", "D\n43 tokens"]


def test_up_and_down_differ_in_colour_and_hatch():
    up, _, down, _ = made("pull").axes[0].patches
    assert up.get_edgecolor() != down.get_edgecolor() and not up.get_hatch() and down.get_hatch()


def test_odd_pulls_and_lengths_are_said():
    assert said(made("pull, all 0").axes[0])[:4] == ["0"] * 4
    assert said(pulled({"grpo": [-0.0, np.nan, 1, 1]}).axes[0])[:2] == ["0", "–"]
    with pytest.raises(ValueError, match="zip"):
        pulled(tokens=[4, 14])
    labels = [label.get_text() for label in pulled(tokens=[1, 2, 3, 120]).axes[0].get_xticklabels()]
    assert labels[0] == "A\n1\ntoken" and labels[3] == "D\n120\ntokens"


# --------------------------------------------------------------------------- 4. clip


def test_the_clip_has_the_objective_its_free_line_and_a_grey_zone_without_gradient():
    for axes, sign, zone in zip(made("clip").axes, (1, -1), ((1.29, 2), (0, 0.79))):
        free, objective = lines_of(axes)
        assert free.get_ydata() == pytest.approx(sign * free.get_xdata()) and free.get_linestyle() == "--"
        assert objective.get_linestyle() == "-" and (objective.get_ydata() <= free.get_ydata() + 1e-9).all()
        (grey,) = axes.patches
        assert (grey.get_x(), grey.get_x() + grey.get_width()) == pytest.approx(zone)
        assert any(
            "no gradient" in text and f"no more push {'up' if sign > 0 else 'down'}" in text for text in said(axes)
        )
        (dot,) = [line for line in axes.lines if line.get_marker() == "o"]
        assert (*dot.get_xdata(), *dot.get_ydata()) == (1, sign) and "ratio 1: here every\nfirst update stands" in said(
            axes
        )


def edges(axes):
    return [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 2]


def test_the_edges_are_lines_with_names():
    for axes in made("clip").axes:
        assert edges(axes) == pytest.approx([1, 0.8, 1.28])
        assert said(axes)[-2:] == ["1 − epsilon = 0.8", "1 + epsilon_high = 1.28"]
    assert edges(made("clip, never").axes[0]) == [1], "edges beyond the ratios shown"
    assert edges(made("clip, epsilon 0").axes[0]) == [1, 1, 1]


@pytest.mark.parametrize("name", ["clip", "clip, near 1", "clip, low and high", "clip, far", "clip, epsilon 0"])
def test_the_names_of_the_edges_stay_over_their_panel(name):
    boxes = [(text.axes.bbox, box) for text, box in written(made(name)) if "epsilon" in text.get_text()]
    assert len(boxes) == 4 and all(panel.x0 <= box.x0 and box.x1 <= panel.x1 for panel, box in boxes)


def test_a_zone_is_a_stretch_of_ratios_and_no_single_one():
    assert plots.flat_stretches(np.array([1, 1, 0, 1, 0, 0, 1, 1, 1], bool)) == [(0, 1), (6, 8)]
    assert plots.flat_stretches(np.zeros(3, bool)) == []


def test_without_a_zone_nothing_is_grey_and_a_narrow_one_has_its_text_beside_it():
    assert not any("no gradient" in text for axes in made("clip, never").axes for text in said(axes))
    assert not any(axes.patches for axes in made("clip, never").axes)
    figure = made("clip, far")
    boxes = {text: box for text, box in written(figure) if "no gradient" in text.get_text()}
    assert all("dashed: not clipped" in text.get_text() for text in boxes) and len(boxes) == 2
    assert not any(box.overlaps(text.axes.patches[0].get_window_extent()) for text, box in boxes.items())


# --------------------------------------------------------------------------- 5. KL


def test_the_estimators_are_lines_with_their_formulas_and_k3_is_the_thickest():
    (axes,) = made("kl").axes
    k1, k2, k3 = lines_of(axes)
    assert k1.get_ydata() == pytest.approx(-X) and k3.get_ydata()[0] == pytest.approx(np.exp(-3) + 2)
    assert k3.get_linewidth() > max(k1.get_linewidth(), k2.get_linewidth())
    assert len({line.get_linestyle() for line in (k1, k2, k3)}) == 3
    assert {*said(axes)} == {"negative: impossible for a KL", "k1 = −x", "k2 = x²/2", "k3 = eˣ − x − 1"}
    assert axes.get_ylim() == pytest.approx((-3, 6), abs=0.5) and axes.get_xlim() == (-3, 3)
    shade = axes.patches[0]
    assert shade.get_y() + shade.get_height() == 0 and any(set(line.get_ydata()) == {0} for line in axes.lines)


def test_a_line_is_named_where_it_ends_or_leaves_the_panel():
    (axes,) = made("kl").axes
    places = {text.get_text()[:2]: text for text in axes.texts}
    assert places["k3"].xy == pytest.approx((2.2, 6), abs=0.15)
    bottom, top = axes.get_ylim()
    assert places["k2"].get_position()[1] == pytest.approx((4.5 - bottom) / (top - bottom))


def test_with_samples_there_is_a_panel_of_means_and_deviations_and_the_exact_kl():
    _, axes = made("kl spread").axes
    bars = [np.array(collection.get_segments()[0])[:, 1] for collection in axes.collections]
    assert [(bar.mean(), np.ptp(bar) / 2) for bar in bars] == [pytest.approx(pair) for pair in SPREAD.values()]
    markers = [container.lines[0].get_marker() for container in axes.containers]
    assert len({*markers}) == 3 and [label.get_text() for label in axes.get_xticklabels()] == ["k1", "k2", "k3"]
    assert said(axes) == ["0.0932\n± 0.421", "0.101\n± 0.15", "0.0921\n± 0.12", "exact KL\n0.0929"]
    assert any(line.get_linestyle() == "--" and set(line.get_ydata()) == {0.0929} for line in axes.lines)
    assert [text.xy[1] for text in axes.texts[:3]] == pytest.approx(
        [mean + deviation for mean, deviation in SPREAD.values()]
    )
    assert len(estimated(X, SPREAD).axes[1].texts) == 3 and len(estimated().axes) == 1


# --------------------------------------------------------------------------- 6. training


def test_the_six_panels_draw_the_columns():
    log, found = run_log(), panels(made("training"))
    assert [*found] == [
        "Reward",
        "Share of completions",
        "Loss and its two parts",
        "Groups without spread",
        "Completion length",
        "Gradient",
    ]
    points = {name: [line for line in lines_of(axes) if line.get_marker() == "."] for name, axes in found.items()}
    assert points["Reward"][0].get_ydata() == pytest.approx(log["reward"]) and found["Reward"].get_ylim()[1] > 2
    assert points["Loss and its two parts"][0].get_ydata() == pytest.approx(log["loss"])
    assert points["Groups without spread"][0].get_ydata() == pytest.approx(100 * log["no_spread"])
    assert points["Completion length"][0].get_ydata() == pytest.approx(log["tokens"])
    assert points["Gradient"][0].get_ydata() == pytest.approx(log["grad_norm"])
    assert all(axes.get_xlabel() == "training step" and axes.get_ylabel() for axes in found.values())


def test_shares_are_in_percent_and_named_at_their_ends():
    axes = panels(made("training"))["Share of completions"]
    right, form = (line for line in lines_of(axes) if line.get_linestyle() != "None")
    assert right.get_ydata() == pytest.approx(plots.smooth(100 * run_log()["correct"])) and form.get_ydata().max() > 90
    assert right.get_linestyle() != form.get_linestyle() and {*said(axes)} == {"correct", "in format"}


def test_the_loss_has_its_two_parts_a_bold_0_and_says_how_they_add_up():
    axes = panels(made("training"))["Loss and its two parts"]
    zero = next(line for line in axes.lines if set(line.get_ydata()) == {0})
    assert (
        zero.get_linewidth() == 1.5
        and len([line for line in lines_of(axes) if line.get_linestyle() in ("-", "--")]) == 2
    )
    assert {*said(axes)} == {"points: loss = policy term + beta · KL", "policy\nterm", "beta · KL"}


def test_what_is_not_there_is_said_and_gaps_are_no_error():
    found = panels(made("training, spoiled"))
    assert said(found["Completion length"]) == ["tokens:\nno finite number yet"]
    assert said(found["Share of completions"]) == ["correct"]
    assert len(lines_of(found["Reward"])[0].get_xdata()) == 39
    empty = made("training, none")
    assert all(said(axes)[0].endswith("no finite number yet") for axes in empty.axes) and len(empty.axes) == 6


def test_a_wild_step_flattens_neither_the_loss_nor_the_gradient():
    found = panels(made("training, spoiled"))
    for name, most, told in (("Loss and its two parts", 0.1, "up to 3"), ("Gradient", 3, "up to 900")):
        assert found[name].get_ylim()[1] < most and any(told in text for text in said(found[name])), name


@pytest.mark.parametrize("name", ["training", "training, 3 steps", "training, 500 steps", "training, spoiled"])
def test_the_note_over_the_loss_lies_on_no_point(name):
    axes = panels(made(name))["Loss and its two parts"]
    (box,) = [box for text, box in written(made(name)) if text.get_text().startswith("points: loss")]
    drawn = [axes.transData.transform(line.get_xydata()) for line in axes.lines if len(line.get_xdata()) != 2]
    inside = [box.contains(*point) for points in drawn for point in points]
    assert inside and not any(inside)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_first_steps_are_seen(n):
    found = panels(made(f"training, {n} steps"))
    for name, axes in found.items():
        drawn = [line for line in axes.lines if len(line.get_xdata()) == n and line.get_linestyle() != "None"]
        assert drawn and (n > 1 or all(line.get_marker() == "o" for line in drawn if line.get_xdata()[0] == 1)), name
        low, high = axes.get_ylim()
        assert all(low < value < high for line in drawn for value in line.get_ydata()), name


def test_the_caption_says_what_points_and_lines_are():
    assert made("training, 1 steps").get_supxlabel() == "Points: single steps."
    assert "centred mean of 20 of them" in made("training, 500 steps").get_supxlabel()
    assert made("training").get_suptitle() == "A run"
