"""The recipes: each changes what it says, the grid goes on where it was, and the table says no more than its runs."""

import json
import re
import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from lab.files import ROOT, MissingInputError, write_json
from lab.make import recipe_grid
from lab.make.recipe_grid import train_grid
from lab.measure import recipes
from lab.measure.recipes import BASELINE, COMPARISONS, RECIPES, STEERED, UNTRAINED, compare_recipes
from lab.show import recipe_figures

# --------------------------------------------------------------------------- the recipes


def made(recipe, folder):
    from trl import GRPOConfig

    return GRPOConfig(**recipe_grid.grpo_settings(recipe, 1, 40, folder)).to_dict()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_a_valid_config_that_differs_from_the_baseline_in_what_it_says(recipe, tmp_path):
    base, own, changes = made("baseline", tmp_path), made(recipe, tmp_path), RECIPES[recipe]
    assert (
        own["per_device_train_batch_size"] * own["gradient_accumulation_steps"] == 32
        and 32 % own["num_generations"] == 0
    )
    differ = {name for name in base if base[name] != own[name]} - {"logging_dir", "run_name"}
    assert differ == set(changes) - set(STEERED) | ({"reward_weights"} if "weights" in changes else set())
    assert all(own[name] == value for name, value in changes.items() if name not in STEERED)


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_change_repeats_the_baseline_and_none_has_an_unknown_name(recipe):
    assert all(name in BASELINE and BASELINE[name] != value for name, value in RECIPES[recipe].items())


def test_there_are_fifteen_recipes_and_only_the_annealed_one_changes_two_values():
    assert len(RECIPES) == 15 == 1 + sum(len(c.recipes) for c in COMPARISONS)
    assert {name for name, changes in RECIPES.items() if len(changes) != 1} == {"baseline", "annealed"}
    totals = {name: sum(recipes.recipe_settings(name)["weights"].values()) for name in RECIPES}
    assert set(totals.values()) == {2.0}, totals


def test_format_first_pays_nothing_for_correctness_until_step_15():
    from lab.train.steering import RewardWeights

    chosen = recipes.recipe_settings("format_first")
    weights = RewardWeights(chosen["weights"], chosen["stages"])
    assert [weights.at(step)[0] for step in (0, 14, 15, 39)] == [0, 0, 1, 1]


def test_an_unknown_recipe_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match="no recipe 'group_3'; the recipes are: baseline, format_first"):
        train_grid(["group_3"], [1], 2, ROOT / "outputs")


# --------------------------------------------------------------------------- what came of it


def run(recipe, seed, correct, curve=None, steps=10):
    curve = [correct] * steps if curve is None else curve
    curves = {name: curve for name in recipe_grid.KEPT}
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


def test_the_t_quantiles_hold_95_percent():
    from math import gamma, pi, sqrt

    for df, quantile in enumerate(recipes.T_QUANTILES, 1):
        x = np.linspace(-quantile, quantile, 200_001)
        density = gamma((df + 1) / 2) / (sqrt(df * pi) * gamma(df / 2)) * (1 + x**2 / df) ** (-(df + 1) / 2)
        assert np.trapezoid(density, x) == pytest.approx(0.95, abs=1e-4), df


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


# --------------------------------------------------------------------------- the grid, with a stub for a worker

# Light: it imports nothing of ours. What a run is asked for stands in a file beside it.
STUB = """
import json, os, signal, sys, time
from pathlib import Path

arguments = dict(zip(sys.argv[1::2], sys.argv[2:6:2]))
out = Path(arguments["--out"])
asked = json.loads(Path(__file__).with_name("asked.json").read_text())
for name in sys.argv[sys.argv.index("--runs") + 1 :]:
    with (out / "taken.txt").open("a") as sink:
        sink.write(f"{os.getpid()} {name} {os.environ['OMP_NUM_THREADS']}\\n")
    if name == os.environ.get("FAIL"):
        raise ZeroDivisionError(f"{name} cannot be trained")
    if name == os.environ.get("KILL") and not (out / "killed").exists():
        (out / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    part = out / f"{os.getpid()}.part"
    part.write_text(json.dumps(asked[name + " " + arguments["--steps"]]))
    part.rename(out / (name.replace(":", "-seed") + ".json"))
"""
NAMES, NUMBERS = ("baseline", "sparse", "adaptive"), (1, 2)


@pytest.fixture
def stubbed(tmp_path):
    script = tmp_path / "stub.py"
    script.write_text(STUB)
    runs = [(name, seed, steps) for name in NAMES for seed in NUMBERS for steps in (3, 4)]
    write_json(
        tmp_path / "asked.json",
        {f"{name}:{seed} {steps}": recipe_grid.run_identity(name, seed, steps) for name, seed, steps in runs},
    )
    out = tmp_path / "out"

    def start(steps=3, **more):
        found, failed = train_grid(NAMES, NUMBERS, steps, out, command=(sys.executable, str(script)), poll=0.02, **more)
        return [f"{run['recipe']}:{run['seed']}" for run in found], failed

    def taken():
        path = out / "taken.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line.split() for line in lines]

    return start, taken, out


ALL = ["baseline:1", "sparse:1", "adaptive:1", "baseline:2", "sparse:2", "adaptive:2"]


def test_the_grid_takes_every_run_once_and_a_second_call_takes_none(stubbed):
    start, taken, out = stubbed
    assert start(workers=1, runs_a_worker=3) == (ALL, {})
    lines = taken()
    assert sorted(name for _, name, _ in lines) == sorted(ALL) and {threads for *_, threads in lines} == {"1"}
    assert len({pid for pid, *_ in lines}) == 2, "a worker takes three runs"
    assert start() == (ALL, {}) and taken() == []


def test_only_what_is_missing_half_written_or_of_other_settings_is_taken_again(stubbed):
    start, taken, out = stubbed
    start()
    taken()
    (out / "sparse-seed1.json").unlink()
    (out / "adaptive-seed2.json").write_text('{"recipe": "adaptive", "se')
    old = json.loads((out / "baseline-seed2.json").read_text())
    write_json(out / "baseline-seed2.json", {**old, "settings": {**old["settings"], "beta": 0.5}})
    assert start() == (ALL, {})
    assert sorted(name for _, name, _ in taken()) == ["adaptive:2", "baseline:2", "sparse:1"]
    start(steps=4)
    assert len(taken()) == 6, "runs of another length are other runs"


def test_a_killed_workers_run_is_taken_again(stubbed, monkeypatch):
    start, taken, out = stubbed
    monkeypatch.setenv("KILL", "adaptive:1")
    assert start(runs_a_worker=3) == (ALL, {})
    assert [name for _, name, _ in taken()].count("adaptive:1") == 2


def test_a_failing_run_is_reported_with_the_end_of_its_log_and_the_others_go_on(stubbed, monkeypatch, capfd):
    start, taken, out = stubbed
    monkeypatch.setenv("FAIL", "sparse:1")
    found, failed = start(workers=1)
    assert found == [name for name in ALL if name != "sparse:1"] and list(failed) == ["sparse, seed 1"]
    assert "ZeroDivisionError: sparse:1 cannot be trained" in failed["sparse, seed 1"]
    printed = "".join(capfd.readouterr())
    assert "sparse, seed 1 failed (1); the end of" in printed and "ZeroDivisionError" in printed
    monkeypatch.delenv("FAIL")
    taken()
    assert start() == (ALL, {}) and [name for _, name, _ in taken()] == ["sparse:1"]


def test_an_interrupt_ends_the_workers(stubbed, monkeypatch):
    start, taken, out = stubbed
    started = []
    make = recipe_grid.Worker.__init__
    monkeypatch.setattr(
        recipe_grid.Worker, "__init__", lambda self, *given: (make(self, *given), started.append(self))[0]
    )
    monkeypatch.setattr(recipe_grid.Grid, "collect", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        start()
    assert started and all(worker.process.poll() is not None for worker in started)


# --------------------------------------------------------------------------- the record


def full(recipe, seed, steps=40):
    rng = np.random.default_rng([seed, len(recipe)])
    curves = {
        name: [None if name == "kl" and s == 0 else float(v) for s, v in enumerate(rng.random(steps))]
        for name in recipes.CURVES
    }
    held_out = {"n": 128, **{name: float(rng.random()) for name in ("correct", "format", "tokens")}}
    versions = {name: "1" for name in ("python", "torch", "transformers", "trl", "unsloth")}
    return {
        **recipe_grid.run_identity(recipe, seed, steps),
        "held_out": held_out,
        "curves": curves,
        "seconds": {"training": 60.0, "cpu": 50.0},
        "versions": versions,
        "rewards_sha256": "00",
        "adapter": "torch.float32",
        "made": "2026-11-21",
    }


@pytest.fixture(scope="module")
def whole():
    return [full(recipe, seed) for seed in recipes.SEEDS for recipe in RECIPES]


def test_the_record_of_the_whole_grid_is_small_and_says_the_same_as_the_runs(whole, tmp_path):
    path = recipe_grid.write_record(tmp_path / "recipes.jsonl", whole, full(UNTRAINED, 0, 0))
    assert path.stat().st_size < 200_000
    header, runs = recipes.read_record(path)
    pd.testing.assert_frame_equal(
        compare_recipes(runs).select_dtypes("number"), compare_recipes(whole).select_dtypes("number"), atol=2e-4
    )
    assert (
        header["seeds"] == list(recipes.SEEDS)
        and header["changes"]["group_2"] == {"num_generations": 2}
        and header["date"] == "2026-11-21"
    )
    assert re.match(
        r"A record, not made just now: 45 runs of 15 recipes, 2026-11-21, 0\.6 hours",
        recipe_grid.describe_record(header, runs),
    )


def test_a_half_written_last_line_is_left_out_and_a_damaged_one_is_named(whole, tmp_path):
    path = recipe_grid.write_record(tmp_path / "recipes.jsonl", whole[:4])
    text = path.read_text()
    path.write_text(text[:-40])
    assert len(recipes.read_record(path)[1]) == 3
    path.write_text(text.replace('"seed":1', '"seed":', 1))
    with pytest.raises(ValueError, match=r"Line 2 of .* is damaged"):
        recipes.read_record(path)
    path.write_text(text.splitlines()[0])
    with pytest.raises(ValueError, match="has no runs under a header"):
        recipes.read_record(path)


def test_a_missing_record_says_what_makes_it(tmp_path):
    with pytest.raises(MissingInputError, match="python -m lab.make.recipe_grid.*name recipes to train in RECIPES"):
        recipes.read_record(tmp_path / "recipes.jsonl")


def test_runs_that_were_not_made_alike_are_not_recorded_together(whole, tmp_path):
    with pytest.raises(ValueError, match="differ in 'rewards_sha256'"):
        recipe_grid.write_record(tmp_path / "recipes.jsonl", [whole[0], {**whole[1], "rewards_sha256": "11"}])


# --------------------------------------------------------------------------- figures


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


# --------------------------------------------------------------------------- one real run


def test_two_real_steps_make_a_whole_record(tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "HELD_OUT", 8)
    recipe_grid.prepared_problems.cache_clear()
    record = recipe_grid.train_one("adaptive", 1, 2, tmp_path)
    recipe_grid.prepared_problems.cache_clear()
    assert recipe_grid.finished_run(tmp_path, ("adaptive", 1), 2) == json.loads(json.dumps(record))
    assert record["held_out"]["n"] == 8 and record["adapter"] == "torch.float32"
    for name, curve in record["curves"].items():
        assert len(curve) == 2 and None not in curve, name
    assert recipe_grid.finished_run(tmp_path, ("adaptive", 1), 3) is None
