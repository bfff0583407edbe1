"""The recipes: each changes what it says, and the table says no more than its runs."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from lab.measure import recipes
from lab.measure.recipes import BASELINE, COMPARISONS, RECIPES, compare_recipes
from lab.show import recipe_figures


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_change_repeats_the_baseline_and_none_has_an_unknown_name(recipe):
    assert all(name in BASELINE and BASELINE[name] != value for name, value in RECIPES[recipe].items())


def test_there_are_fifteen_recipes_and_only_the_annealed_one_changes_two_values():
    assert len(RECIPES) == 15 == 1 + sum(len(c.recipes) for c in COMPARISONS)
    assert {name for name, changes in RECIPES.items() if len(changes) != 1} == {"baseline", "annealed"}
    totals = {name: sum(recipes.recipe_settings(name)["weights"].values()) for name in RECIPES}
    assert set(totals.values()) == {2.0}, totals


def test_format_first_pays_nothing_for_correctness_until_step_15():
    from lab.train.callbacks import RewardWeights

    chosen = recipes.recipe_settings("format_first")
    weights = RewardWeights(chosen["weights"], chosen["stages"])
    assert [weights.at(step)[0] for step in (0, 14, 15, 39)] == [0, 0, 1, 1]


def run(recipe, seed, correct, curve=None, steps=10):
    curve = [correct] * steps if curve is None else curve
    curves = {name: curve for name in ("correctness", "no_spread")}
    return {
        "recipe": recipe,
        "seed": seed,
        "steps": len(curve),
        "seconds": 5,
        "curves": curves,
        "held_out": {"n": 128, "correct": correct, "format": 1.0, "tokens": 20.0},
    }


def grid(**by_recipe):
    """A run for every value that is not None, with seeds 1, 2, …"""
    return [
        run(name, seed, value)
        for name, values in by_recipe.items()
        for seed, value in enumerate(values, 1)
        if value is not None
    ]


def test_ten_points_in_every_seed_is_better_and_in_the_other_direction_worse():
    base = [0.50, 0.62, 0.41, 0.55, 0.58]
    table = compare_recipes(
        grid(
            baseline=base,
            sparse=[b + 0.1 for b in base],
            adaptive=[b - d for b, d in zip(base, (0.1, 0.11, 0.09, 0.1, 0.1))],
        )
    )
    for measure in ("correct", "curve"):
        assert table[f"{measure}_verdict"].to_dict() == {
            "baseline": "baseline",
            "adaptive": "worse",
            "sparse": "better",
        }
        assert table.loc["sparse", f"{measure}_difference"] == pytest.approx(0.1)
    assert table["pairs"].to_dict() == {"baseline": 0, "adaptive": 5, "sparse": 5}


def test_noise_is_no_difference_seen_and_the_very_same_numbers_are_identical():
    base = [0.50, 0.62, 0.41, 0.55, 0.58]
    table = compare_recipes(grid(baseline=base, sparse=[0.58, 0.55, 0.50, 0.49, 0.60], loss_bnpo=base))
    assert table["correct_verdict"].to_dict() == {
        "baseline": "baseline",
        "sparse": "no difference seen",
        "loss_bnpo": "identical",
    }
    assert "0 of 1 intervals" in recipes.chance_sentence(table), "what cannot differ is not counted"
    assert table.loc["sparse", "correct_low"] < 0 < table.loc["sparse", "correct_high"]
    assert table.loc["loss_bnpo", ["correct_low", "correct_high"]].tolist() == [0, 0]


def test_the_two_measures_are_decided_apart():
    runs = [run("baseline", s, 0.5, [0.1 * s / 5] * 10) for s in range(1, 6)]
    runs += [run("lr_3e-3", s, 0.5 + 0.01 * (-1) ** s, [0.1 * s / 5 + 0.2] * 10) for s in range(1, 6)]
    row = compare_recipes(runs).loc["lr_3e-3"]
    assert (row["correct_verdict"], row["curve_verdict"]) == ("no difference seen", "better")


def test_seeds_without_a_partner_are_counted_and_not_paired():
    table = compare_recipes(grid(baseline=[0.5, 0.5, None], sparse=[0.6, 0.6, 0.0]))
    assert table.loc["sparse", ["seeds", "pairs"]].tolist() == [3, 2]
    assert table.loc["sparse", "correct_difference"] == pytest.approx(0.1) and table.loc[
        "sparse", "correct"
    ] == pytest.approx(0.4)
    assert (
        compare_recipes(grid(baseline=[0.5, None], sparse=[None, 0.6])).loc["sparse", "correct_verdict"]
        == "no seed in common"
    )
    assert compare_recipes(grid(sparse=[0.6])).loc["sparse", "correct_verdict"] == "no seed in common"


def test_one_seed_has_a_difference_but_no_interval_and_says_so():
    table = compare_recipes(grid(baseline=[0.5], sparse=[0.9]))
    assert table.loc["sparse", "correct_verdict"] == "one seed: no interval" and np.isnan(
        table.loc["sparse", "correct_low"]
    )
    assert recipes.recipe_table(table).loc["sparse", ("held out, greedy", "difference")] == "+40.0"
    assert recipes.chance_sentence(table).startswith("0 of 0 intervals")


def test_runs_of_other_lengths_and_two_runs_of_one_seed_are_refused():
    with pytest.raises(ValueError, match="different lengths cannot be compared: 10 steps, 2 steps"):
        compare_recipes([run("baseline", 1, 0.5), run("sparse", 1, 0.5, steps=2)])
    with pytest.raises(ValueError, match="two runs of sparse with seed 1"):
        compare_recipes(grid(baseline=[0.5], sparse=[0.5]) + grid(sparse=[0.6]))


def test_half_right_is_reached_at_the_median_seeds_step_or_never():
    curves = [[0] * k + [1] * (20 - k) for k in (2, 4, 6)] + [[0] * 20] * 2
    runs = [run("baseline", seed, 0.5, curve) for seed, curve in enumerate(curves)]
    assert compare_recipes(runs).loc["baseline", "reached"] == 9  # six zeros, then three ones of five
    assert np.isnan(compare_recipes(runs[2:]).loc["baseline", "reached"])
    assert (
        recipes.recipe_table(compare_recipes(runs[2:])).xs("half right at step", axis=1, level=1).loc["baseline"].item()
        == "–"
    )


def test_the_interval_covers_the_truth_in_95_of_100_grids():
    rng = np.random.default_rng(0)
    held = [
        low <= 0.03 <= high for _, low, high in (recipes.t_interval(rng.normal(0.03, 0.05, 5)) for _ in range(4000))
    ]
    assert np.mean(held) == pytest.approx(0.95, abs=0.012)


def test_the_sentences_say_what_the_table_says():
    table = compare_recipes(grid(baseline=[0.5, 0.6, 0.5], group_2=[0.4, 0.5, 0.4], group_16=[0.5, 0.7, 0.4]))
    said = recipes.recipe_sentences(table)
    assert said[0] == "Group size (baseline: 8 of each prompt)" and len(said) == 3
    assert said[1].startswith("  group_2: held out worse, -10.0 (-10.0 to -10.0); while training worse")
    assert "group_16: held out no difference seen" in said[2] and said[2].endswith("3 pairs of seeds")
    assert recipes.chance_sentence(table).startswith(
        "1 of 2 intervals exclude 0 on held-out problems, 1 of 2 while training"
    )


@pytest.fixture(scope="module")
def whole():
    rng = np.random.default_rng(0)
    return [run(recipe, seed, 0.5, rng.random(40)) for seed in (1, 2, 3) for recipe in RECIPES]


def test_the_curves_show_every_recipe_that_has_runs_and_no_other(whole):
    figure = recipe_figures.recipes_figure(whole, COMPARISONS)
    labels = [text.get_text() for axes in figure.axes if axes.get_visible() for text in axes.get_legend().get_texts()]
    assert [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()] == [c.title for c in COMPARISONS]
    assert {label.split(" ")[0] for label in labels if not label.startswith("baseline")} == set(RECIPES) - {"baseline"}
    group = figure.axes[3]
    mean = 100 * recipe_figures.over_seeds(whole, "group_2").mean(axis=0)
    assert any(len(drawn.get_ydata()) == 40 and np.allclose(drawn.get_ydata(), mean) for drawn in group.lines)
    few = recipe_figures.recipes_figure(grid(baseline=[0.5], group_2=[0.6]), COMPARISONS)
    assert [axes.get_title(loc="left") for axes in few.axes] == ["Group size"]
    with pytest.raises(ValueError, match="needs runs of the baseline and of another recipe; there are: sparse"):
        recipe_figures.recipes_figure(grid(sparse=[0.5]), COMPARISONS)
    plt.close("all")


def test_the_forest_fills_the_dots_whose_interval_leaves_zero_out():
    table = compare_recipes(
        grid(baseline=[0.5, 0.6, 0.5], group_2=[0.4, 0.5, 0.4], sparse=[0.5, 0.7, 0.4], annealed=[0.9, None, None])
    )
    figure = recipe_figures.recipes_forest(table)
    left = figure.axes[0]
    assert [label.get_text() for label in left.get_yticklabels()] == ["sparse", "group_2", "annealed"]
    dots = {drawn.get_ydata()[0]: drawn for drawn in left.lines if drawn.get_marker() == "o"}
    assert [dots[y].get_xdata()[0] for y in range(3)] == pytest.approx(
        100 * table["correct_difference"].iloc[1:].to_numpy(float)
    )
    assert [dots[y].get_markerfacecolor() == "white" for y in range(3)] == [True, False, True]
    plt.close("all")
