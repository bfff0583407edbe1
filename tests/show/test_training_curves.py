"""The figures of a run: what they draw, what they say instead of drawing, and that nothing lies on anything."""

import dataclasses
import json
import os
import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from lab.read import health_rules, run_record
from lab.show import event_marks, figure_style, run_comparison, training_curves
from tests.show.made_records import CHANGED, LIMIT, RESUMED, REWARDS, edited, eventful, log_rows, record, without

pytestmark = [
    pytest.mark.filterwarnings(f"error::{kind}Warning") for kind in ("User", "Runtime", "Future", "Deprecation")
]


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def draw(name, what):
    """One panel, as every figure draws it: its axes, first the left ones."""
    with figure_style.styled():
        figure, axes = plt.subplots()
        training_curves.draw_panel(axes, what, name)
    return figure.axes


def said(axes):
    """All that is written in some axes: notes, legend and its heading."""
    legend = axes.get_legend()
    words = [text.get_text() for text in axes.texts]
    return " ".join(
        [
            *words,
            *([legend.get_title().get_text(), *(text.get_text() for text in legend.get_texts())] if legend else []),
        ]
    )


def curves(axes):
    """The drawn lines that have a value at more than two steps."""
    return [line for line in axes.lines if len(line.get_xdata()) > 2]


# --------------------------------------------------------------------------- each panel


@pytest.mark.parametrize("name", training_curves.PANELS)
def test_each_panel_draws_the_points_of_the_log_with_title_and_units(name):
    left, *_ = draw(name, record())
    assert left.get_title(loc="left") and left.get_xlabel() == "training step" and left.get_ylabel()
    assert any(len(line.get_xdata()) == 40 for line in left.lines)


@pytest.mark.parametrize(
    "name, columns, text",
    [
        ("total_reward", ["reward"], "as a finite number"),
        ("each_reward", ["rewards/"], "was not logged"),
        ("signal", ["reward_std"], "reward_std was not logged"),
        ("kl", ["kl"], "kl was not logged"),
        ("length", ["completions/"], "completions/mean_length was not logged"),
        ("entropy", ["entropy"], "entropy was not logged"),
        ("step_time", ["step_time"], "step_time was not logged"),
        ("loss", ["loss"], "loss was not logged"),
        ("learning_rate", ["learning_rate"], "learning_rate was not logged"),
        ("temperature", ["temperature"], "temperature was not logged"),
    ],
)
def test_a_metric_that_was_not_logged_is_said_and_not_drawn(name, columns, text):
    rows = log_rows(evaluate=0)
    rows = [{**row, "reward": None} for row in rows] if columns == ["reward"] else without(rows, *columns)
    (axes,) = draw(name, run_record.record_from_rows(rows, about=LIMIT))
    assert text in said(axes).replace("\n", " ") and not curves(axes)


def test_a_run_with_beta_0_says_that_kl_was_not_measured():
    for about in ({"requested": {"beta": 0.0}}, {}):
        (axes,) = draw("kl", run_record.record_from_rows(without(log_rows(), "kl"), about=about))
        assert said(axes) == "not measured, because beta is 0"


def test_the_total_has_a_band_of_one_standard_deviation():
    (axes,) = draw("total_reward", record(reward=1.0, reward_std=0.25))
    assert axes.collections[0].get_datalim(axes.transData).intervaly == pytest.approx(
        [0.75, 1.25]
    ) and "± reward_std" in said(axes)


def test_values_that_are_no_number_are_left_out_and_counted():
    (axes,) = draw("total_reward", record(reward=lambda step: [1.0, np.nan, np.inf][step % 3 if step < 9 else 0]))
    assert "no finite number in 6 of 40 steps" in said(axes)
    assert (
        all(np.isfinite(line.get_ydata()[np.isfinite(line.get_ydata())]).all() for line in axes.lines)
        and axes.get_ylim()[1] < 3
    )


def test_each_reward_has_its_weight_in_the_legend_and_a_look_of_its_own():
    (axes,) = draw("each_reward", record(**{"weight/format_reward": lambda step: 0.5 + step / 80}))
    assert "correctness_reward × 0.5" in said(axes) and "format_reward × 0.51→1" in said(axes)
    lines = [line for line in axes.lines if "×" in line.get_label()]
    assert len({line.get_color() for line in lines}) == len({line.get_marker() for line in lines}) == 3, (
        "told apart in grey too"
    )


def test_versions_of_a_reward_share_its_colour_and_differ_in_their_dashes():
    (axes,) = draw("each_reward", run_record.record_from_rows(edited(log_rows()), [CHANGED]))
    first, second = (
        next(line for line in axes.lines if line.get_label().startswith(f"format_reward{v} ×")) for v in ("", "_v2")
    )
    assert first.get_color() == second.get_color() and first.get_linestyle() != second.get_linestyle()
    assert first.get_xdata()[-1] == 20 and second.get_xdata()[0] == 21
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [label.split(" ×")[0] for label in labels[1:3]] == ["format_reward", "format_reward_v2"], (
        "not beside each other"
    )


def diamonds(axes):
    return [line for line in axes.lines if line.get_marker() == "D" and len(line.get_xdata())]


def test_held_out_scores_are_diamonds_in_their_rewards_colours():
    (axes,) = draw("each_reward", record())
    colours = {line.get_color() for line in axes.lines if "×" in line.get_label()}
    assert {line.get_color() for line in diamonds(axes)} == colours and diamonds(axes)[0].get_xdata().tolist() == [
        0,
        10,
        20,
        30,
        40,
    ]
    assert "held out, greedy, n = 64" in said(axes)


def test_many_evaluations_are_thinned_and_counted_and_those_of_trl_are_called_sampled(tmp_path):
    (axes,) = draw("each_reward", record(100, evaluate=2))
    assert len(diamonds(axes)[0].get_xdata()) == 16 and diamonds(axes)[0].get_xdata()[[0, -1]].tolist() == [0, 100]
    assert "(16 of 51 shown)" in said(axes)
    state = [row for row in log_rows(4, evaluate=0)] + [{"step": 4, "eval_rewards/format_reward/mean": 0.9}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": state}))
    (axes,) = draw("each_reward", run_record.read_run(tmp_path))
    assert "held out, sampled" in said(axes) and len(diamonds(axes)) == 1


def test_a_reward_that_never_scored_is_named():
    (axes,) = draw("each_reward", record(**{"rewards/format_reward/mean": float("nan")}))
    assert "never scored: format_reward" in said(axes)


def test_the_signal_has_an_axis_a_unit_and_says_over_what():
    left, right = draw("signal", record())
    assert left.get_ylabel() == "reward_std, whole step" and right.get_ylabel() == "% of groups without spread"
    assert (
        max(line.get_ydata().max() for line in curves(right)) == 100 and left.get_ylim()[0] == right.get_ylim()[0] == 0
    )
    assert curves(left)[0].get_linestyle() != curves(right)[0].get_linestyle()
    (alone,) = draw("signal", run_record.record_from_rows(without(log_rows(), "frac")))
    assert "frac_reward_zero_std was not logged" in said(alone)


@pytest.mark.parametrize("top, drawn", [(0.01, False), (0.3, True)])
def test_the_kl_warning_is_a_line_where_it_is_near_and_a_sentence_where_not(top, drawn):
    (axes,) = draw("kl", record(kl=lambda step: top * step / 40))
    at_warn = [line for line in axes.lines if set(line.get_ydata()) == {health_rules.KL_WARN}]
    assert bool(at_warn) == drawn == (axes.get_ylim()[1] > health_rules.KL_WARN) and "warns from 0.5" in said(axes)


def test_a_wild_value_is_a_triangle_at_the_edge_and_flattens_nothing():
    (axes,) = draw("kl", record(kl=lambda step: 40.0 if step == 17 else 0.001 * step))
    (triangle,) = [line for line in axes.lines if line.get_marker() == "^"]
    assert (
        triangle.get_xdata().tolist() == [17]
        and axes.get_ylim()[1] < 0.2
        and "1 beyond the edge, up to 40" in said(axes)
    )
    (axes,) = draw("loss", record(loss=lambda step: {5: 90.0, 6: -70.0}.get(step, (step % 7) / 100)))
    assert {line.get_marker() for line in axes.lines} >= {"^", "v"} and "up to -70 and 90" in said(axes)


def test_lengths_have_a_band_the_limit_and_the_share_that_was_cut():
    (axes,) = draw("length", record())
    band = next(c for c in axes.collections if c.get_label() == "shortest–longest").get_datalim(axes.transData)
    assert (
        band.intervaly.tolist() == [5, 60]
        and "none was cut" in said(axes)
        and "limit" not in said(axes).replace("the limit", "")
    )
    left, right = draw("length", record(**{"completions/clipped_ratio": 0.3, "completions/max_length": 80.0}))
    assert (
        curves(right)[0].get_ydata() == pytest.approx(30)
        and "limit: 96 tokens" in said(right)
        and left.get_ylim()[1] > 96
    )
    (axes,) = draw("length", record(**{"completions/clipped_ratio": 0.02}))
    assert "at most 2 % of a step's completions" in said(axes).replace("\n", " ")


def test_the_parts_of_a_step_add_up_to_it_and_their_seconds_are_said():
    (axes,) = draw("step_time", record())
    tops = [c.get_datalim(axes.transData).y1 for c in axes.collections]
    assert tops == pytest.approx([1.5, 2.0, 3.0])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "learning, 1 s",
        "scoring, 0.5 s",
        "generating, 1.5 s",
        "whole step",
    ]
    (axes,) = draw("step_time", run_record.record_from_rows(without(log_rows(), "time/")))
    assert not axes.collections and "its parts were not logged" in said(axes)
    (axes,) = draw("step_time", run_record.record_from_rows(without(log_rows(), "time/scoring")))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "learning, 1.5 s",
        "generating, 1.5 s",
        "whole step",
    ]


def test_a_slow_first_step_does_not_press_the_others_down():
    (axes,) = draw("step_time", record(step_time=lambda step: 300.0 if step == 1 else 3.0 + step % 3 / 10))
    assert axes.get_ylim()[1] < 10 and "up to 300" in said(axes)
    (axes,) = draw("step_time", record(step_time=lambda step: 60.0 + step if step % 9 == 0 else 3.0 + step % 3 / 10))
    assert axes.get_ylim()[1] < 10 and "4 beyond the edge, up to 96" in said(axes), "a busy machine: every ninth step"
    (axes,) = draw("step_time", record(step_time=lambda step: 3.6 if step == 9 else 3.0))
    assert "edge" not in said(axes) and axes.get_ylim()[1] > 3.6, "slower, but nothing is flattened by it"


def test_the_loss_says_why_its_level_means_nothing():
    others = {
        "grpo": record(about={"requested": {"loss_type": "grpo"}}),
        "beta 0": run_record.record_from_rows(without(log_rows(), "kl")),
    }
    words = {name: said(draw("loss", what)[0]) for name, what in {"dapo": record(), **others}.items()}
    assert (
        "advantages sum to 0; below 0, the better completions are the longer ones; beta × KL is added." in words["dapo"]
    )
    assert "longer" not in words["grpo"] and "KL" not in words["beta 0"]


def test_a_constant_setting_is_said_to_be_constant():
    assert "constant, 1e-05" in said(draw("learning_rate", record())[0])
    assert "constant" not in said(draw("temperature", record(temperature=lambda step: 1 - step / 100))[0])


def test_the_total_before_and_after_a_change_of_weights_is_not_mixed():
    late = {
        "reward": lambda step: 2.0 if step <= 20 else 1.0,
        "weight/format_reward": lambda step: 1.0 if step <= 20 else 0.0,
    }
    axes = training_curves.one_panel("total_reward", record(**late)).axes[0]
    lines = [line.get_ydata() for line in axes.lines if len(line.get_ydata()) == 40 and line.get_linestyle() == "-"]
    assert len(lines) == 1 and set(np.round(lines[0], 9)) == {2.0, 1.0}


# --------------------------------------------------------------------------- marks


def test_each_event_is_marked_between_the_steps_where_it_happened():
    assert event_marks.marks(eventful()) == [
        (10.5, "resumed after step 10 (2 times)"),
        (20.5, "format_reward_v2 from step 21"),
        (25.5, "temperature from step 26: 1→0.7"),
        (30.5, "weights from step 31: soft_format_reward 0.5→1"),
        (40.5, "stopped after step 40"),
    ]


def test_all_panels_have_the_same_marks_with_their_key_below():
    figure = training_curves.training_figure(eventful())
    for axes in [axes for axes in figure.axes if axes.get_title(loc="left")]:
        lines = [
            line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 2 and len(set(line.get_xdata())) == 1
        ]
        assert lines[:5] == [10.5, 20.5, 25.5, 30.5, 40.5], axes.get_title(loc="left")
        assert [text.get_text() for text in axes.texts][:5] == list("abcde")
    caption = figure.get_supxlabel().replace("\xa0", " ").replace("\n", " ")
    assert "b: format_reward_v2 from step 21; c: temperature" in caption and "Points: single steps" in caption


def test_what_happens_together_is_one_mark_and_what_is_damaged_is_none():
    events = [
        CHANGED,
        {**CHANGED, "name": "correctness_reward_v2"},
        {"kind": "resumed"},
        {"step": "x", "kind": "failed"},
        {"step": 3},
    ]
    ((_, text),) = event_marks.marks(record(events=events))
    assert text == "format_reward_v2 from step 21, correctness_reward_v2 from step 21"


def test_settings_that_change_at_every_step_are_curves_and_no_marks():
    adaptive = {f"weight/{name}": (lambda step: 0.5 + step / 100) for name in REWARDS}
    what = record(temperature=lambda step: 1 - step / 100, **adaptive)
    assert event_marks.marks(what) == []
    staged = run_record.record_from_rows(
        log_rows(**adaptive), about={"steering": {"stages": [[0, {}], [20, {"format_reward": 1}]]}}
    )
    assert [at for at, _ in event_marks.marks(staged)] == [20.5]


def test_a_weight_that_changes_with_an_edit_is_marked_under_the_rewards_name():
    rows = edited(log_rows(**{"weight/format_reward": lambda step: 0.5 if step < 21 else 0.2}))
    assert [text for _, text in event_marks.marks(run_record.record_from_rows(rows))] == [
        "weights from step 21: format_reward 0.5→0.2"
    ]


def test_float32_rounding_of_a_weight_is_no_change():
    what = record(**{"weight/format_reward": lambda step: 0.1 if step < 20 else 0.10000000149011612})
    assert event_marks.marks(what) == [] and "format_reward × 0.1;" in said(draw("each_reward", what)[0]).replace(
        " soft", ";"
    )


def test_many_marks_share_letters_where_they_nearly_touch_and_all_are_said():
    events = [{**RESUMED, "step": step} for step in range(1, 31)] + [{**CHANGED, "step": 25, "name": "r_v25"}]
    figure = training_curves.one_panel("entropy", record(events=events))
    said = figure.get_supxlabel().replace("\n", " ").replace("\xa0", " ")
    assert said.startswith("a: resumed after step 1, resumed after step 2; b: ") and "r_v25 from step 25" in said
    assert said.count("resumed") == 30 and len(figure.axes[0].texts) == 15


# --------------------------------------------------------------------------- the whole figure


LONG = "a long " + "long " * 30


def two_runs():
    return [("first", record()), ("second", eventful())]


FIGURES = {
    "plain": lambda: training_curves.training_figure(record(), "A run"),
    "eventful": lambda: training_curves.training_figure(eventful(), "A run"),
    "crowded": lambda: training_curves.training_figure(
        record(
            rewards=[f"reward_{i}_with_quite_a_long_name[option={i}]_if_correctness_reward" for i in range(7)],
            events=[{**CHANGED, "step": step, "name": f"r_v{step}"} for step in (3, 4, 5, 20, 21, 22, 38, 39)],
        )
    ),
    "bare": lambda: training_curves.training_figure(
        run_record.record_from_rows([{"step": step, "reward": step} for step in (1, 2)])
    ),
    "live": lambda: training_curves.live_figure(eventful()),
    "compared": lambda: run_comparison.compare_figure(
        [dataclasses.replace(one, about={**one.about, "model": {"name": LONG + name}}) for name, one in two_runs()]
    ),
    **{name: lambda name=name: training_curves.one_panel(name, eventful()) for name in training_curves.PANELS},
}


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_written_over_a_line_beyond_the_edge_or_too_small(name):
    figure = FIGURES[name]()
    figure.draw_without_rendering()
    whole = figure.bbox.padded(2)
    boxes = {}
    for axes in figure.axes:
        legend = axes.get_legend()
        letters = [text for text in axes.texts if len(text.get_text()) == 1]
        boxes |= {(axes, text.get_text()): text.get_window_extent() for text in letters}
        for line in [line for one in figure_style.twins(axes) for line in curves(one)] if legend else ():
            points = line.get_transform().transform(np.c_[line.get_xdata(), line.get_ydata()].astype(float))
            assert np.nanmax(points[:, 1]) <= legend.get_window_extent().y0 + 1, (
                f"{line.get_label()} runs under the legend"
            )
        assert not legend or legend.get_window_extent().x1 <= axes.get_window_extent().x1 + 2, (
            "a legend wider than its panel"
        )
    for text in figure.findobj(plt.Text):
        if text.get_visible() and text.get_text().strip():
            assert text.get_fontsize() >= 8, text.get_text()
    assert (
        figure.get_tightbbox().width * figure.dpi <= whole.width
        and figure.get_tightbbox().height * figure.dpi <= whole.height
    )
    for (axes, letter), box in boxes.items():
        others = [other for (a, b), other in boxes.items() if a is axes and b != letter]
        assert not any(box.overlaps(other) for other in others), f"letter {letter} lies on another"


@pytest.mark.parametrize("n", [1, 2])
def test_a_log_of_a_few_steps_can_be_drawn_and_its_points_seen(n):
    what = record(n, evaluate=0)
    training_curves.training_figure(what).draw_without_rendering()
    (axes,) = draw("entropy", what)
    assert axes.lines[0].get_marker() == ("o" if n == 1 else "")


def test_a_long_log_is_thinned_and_says_so():
    figure = training_curves.training_figure(record(4000, evaluate=0))
    assert max(len(line.get_xdata()) for axes in figure.axes for line in axes.lines) <= figure_style.POINTS
    assert "one of 8 shown; lines: centred mean" in figure.get_supxlabel().replace("\n", " ")


def test_the_extremes_of_the_band_survive_the_thinning():
    (axes,) = draw(
        "length", record(4000, evaluate=0, **{"completions/max_length": lambda step: 95.0 if step == 1234 else 60.0})
    )
    assert axes.collections[0].get_datalim(axes.transData).y1 == 95


def test_the_smoothed_line_does_not_lag_and_a_longer_run_is_smoothed_more():
    line = pd.Series(np.arange(50.0))
    assert figure_style.smooth(line).iloc[10:40].tolist() == line.iloc[10:40].tolist()
    assert (figure_style.window_for(2), figure_style.window_for(80), figure_style.window_for(1000)) == (1, 9, 40)


def test_logs_of_several_steps_a_row_are_said_to_be_means():
    rows = [row for row in log_rows(evaluate=0) if row["step"] % 10 == 0]
    assert "means of 10 steps" in training_curves.training_figure(run_record.record_from_rows(rows)).get_supxlabel()


def test_a_dollar_in_a_name_is_no_formula(tmp_path):
    what = record(rewards=("pays_$1_or_$2", "format_reward"))
    figure_style.save(training_curves.live_figure(what), tmp_path / "a.png")
    assert "pays_$1_or_$2" in (tmp_path / "a.svg").read_text()


# --------------------------------------------------------------------------- files


def test_a_figure_is_saved_sharp_and_as_searchable_svg_and_always_the_same(tmp_path):
    what = eventful()
    paths = [figure_style.save(training_curves.live_figure(what), tmp_path / name / "figure.png") for name in "ab"]
    assert plt.imread(paths[0]).shape[1] == 9 * 150
    svgs = [path.with_suffix(".svg").read_text() for path in paths]
    assert svgs[0] == svgs[1] and paths[0].read_bytes() == paths[1].read_bytes()
    assert "Total reward</text>" in svgs[0] and not re.search(r"<dc:date>", svgs[0])


@pytest.mark.parametrize("broken", ["savefig", "replace"])
def test_a_full_disk_leaves_the_old_figure_and_no_half_one(tmp_path, monkeypatch, broken):
    path = figure_style.save(training_curves.one_panel("loss", record()), tmp_path / "a.png")
    before = path.read_bytes()

    def full(self, place, **_):
        if broken == "savefig":
            place.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    if broken == "savefig":
        monkeypatch.setattr(Figure, "savefig", full)
    else:
        monkeypatch.setattr(os, "replace", lambda *_: full(None, None))
    with pytest.raises(OSError, match="No space left"):
        figure_style.save(training_curves.one_panel("kl", record()), path)
    assert path.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "a.svg"]


def test_the_table_of_halfway_points_says_why_a_reward_has_none():
    table = training_curves.halfway_steps(record(40, evaluate=0))
    assert table["halfway at step"].str.isdigit().all()
    short = training_curves.halfway_steps(record(12, evaluate=0))
    assert set(short["halfway at step"]) == {"scored in 12 steps, 15 are needed"}
    falling = {"rewards/format_reward/mean": lambda step: 1 - step / 100}
    table = training_curves.halfway_steps(record(40, evaluate=0, **falling))
    assert table.loc["format_reward", "halfway at step"] == "it did not rise"
