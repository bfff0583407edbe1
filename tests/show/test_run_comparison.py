"""The figure of several runs: how they are grouped and what is said of their differences."""

import matplotlib.pyplot as plt
import pytest

from lab.read import run_record
from lab.show import run_comparison
from tests.show.made_records import REWARDS, edited, log_rows, without

pytestmark = [
    pytest.mark.filterwarnings(f"error::{kind}Warning") for kind in ("User", "Runtime", "Future", "Deprecation")
]


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def made(n=40, seed=1, model="small", weights=(1.0, 0.5, 0.5), beta=0.02, rewards=REWARDS, rows=None, **more):
    known = [{"name": name, "weight": weight} for name, weight in zip(rewards, weights)]
    about = {
        "requested": {"seed": seed, "beta": beta, "learning_rate": 1e-5, **more},
        "model": {"shown": model},
        "rewards": {"rewards": known},
    }
    rows = rows or without(log_rows(n, seed=seed, rewards=rewards), "weight/")
    return run_record.record_from_rows(rows if beta else without(rows, "kl"), about=about)


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def below(figure):
    return figure.get_supxlabel().replace("\n", " ")


def test_two_sizes_of_the_base_are_two_lines():
    figure = run_comparison.compare_figure([made(), made(60, model="large")])
    assert titles(figure) == ["Total reward", "Correctness", "Distance from the base policy", "Completion length"]
    assert legend(figure) == ["A: model small", "B: model large"]
    assert [line.get_xdata()[-1] for line in figure.axes[0].lines if len(line.get_xdata())] == [40, 60]
    assert below(figure) == "Lines are smoothed."


def test_seeds_are_a_mean_with_a_band_from_the_lowest_to_the_highest_up_to_the_shortest():
    several = [
        made(n, seed, rows=[{**row, "reward": float(seed)} for row in log_rows(n)])
        for n, seed in ((40, 1), (40, 2), (30, 6))
    ]
    figure = run_comparison.compare_figure([*several, made(model="large")])
    assert legend(figure) == ["A: model small (n = 3)", "B: model large"]
    axes = figure.axes[0]
    line = axes.lines[0]
    assert line.get_ydata() == pytest.approx(3) and line.get_xdata()[-1] == 30
    assert axes.collections[0].get_datalim(axes.transData).intervaly.tolist() == [1, 6]
    assert "bands: lowest to highest" in below(figure) and "up to where the shortest ends" in below(figure)


def test_runs_that_log_at_other_steps_are_joined_by_interpolation():
    often, seldom = log_rows(evaluate=0), [row for row in log_rows(evaluate=0) if row["step"] % 10 == 0]
    figure = run_comparison.compare_figure(
        [made(rows=[{**row, "reward": float(row["step"])} for row in rows]) for rows in (often, seldom)]
    )
    line = figure.axes[0].lines[0]
    assert line.get_xdata()[[0, -1]].tolist() == [10, 40] and line.get_ydata()[10:20] == pytest.approx(
        line.get_xdata()[10:20], abs=2
    )


def test_only_shared_rewards_are_compared_and_the_rest_is_said():
    other = ("own_reward", "format_reward")
    figure = run_comparison.compare_figure([made(), made(rewards=other, weights=(1.0, 0.5), beta=0.0)])
    assert titles(figure)[1:3] == ["format_reward", "Distance from the base policy"]
    assert "in their totals only: correctness_reward (A), soft_format_reward (A), own_reward (B)." in below(figure)
    assert "KL was not measured, because beta is 0: B." in below(figure)
    assert "not on one scale" in below(figure)


def test_other_weights_are_warned_about_and_the_same_ones_are_not():
    assert "scale" not in below(run_comparison.compare_figure([made(), made(learning_rate=1.0)]))
    said = below(run_comparison.compare_figure([made(), made(weights=(2.0, 0.5, 0.5))]))
    assert "not on one scale, for the weights differ; at the end: correctness_reward × 1 + format_reward × 0.5" in said


def test_an_edited_reward_is_one_series_with_a_cross_where_it_changed():
    figure = run_comparison.compare_figure(
        [made(), made(learning_rate=1.0, rows=edited(without(log_rows(), "weight/")))]
    )
    crosses = [line for line in figure.axes[1].lines if line.get_marker() == "X" and len(line.get_xdata())]
    assert [line.get_xdata().tolist() for line in crosses] == [[21]]
    assert "✕: from here on the total is another sum: format_reward_v2 from step 21 (B)." in below(figure)
    assert "in their totals only" not in below(figure)


def test_what_decides_may_be_called_otherwise_and_that_is_said():
    said = below(run_comparison.compare_figure([made(), made(rewards=("math_reward",), weights=(1.0,))]))
    assert "Correctness is what different rewards say: correctness_reward (A), math_reward (B)." in said
