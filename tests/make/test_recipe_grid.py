"""The grid of recipes: valid settings, processes that go on where they were, and a record of all runs."""

import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from lab.files import MissingInputError, write_json
from lab.make import recipe_grid
from lab.make.recipe_grid import train_grid
from lab.measure import recipes
from lab.measure.recipes import RECIPES, STEERED, UNTRAINED, compare_recipes


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


# Light: it imports nothing of ours. What a run is asked for stands in a file beside it.
STUB = """
import json, os, signal, sys, time
from pathlib import Path

recipe, seed, steps, out = sys.argv[2:]
out, name = Path(out), recipe + ":" + seed
asked = json.loads(Path(__file__).with_name("asked.json").read_text())
with (out / "taken.txt").open("a") as sink:
    sink.write(f"{os.getpid()} {name} {os.environ['OMP_NUM_THREADS']}\\n")
if name == os.environ.get("FAIL"):
    raise ZeroDivisionError(f"{name} cannot be trained")
if name == os.environ.get("KILL"):
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
if name == os.environ.get("HANG"):
    time.sleep(60)
part = out / f"{os.getpid()}.part"
part.write_text(json.dumps(asked[name + " " + steps]))
part.rename(out / (name.replace(":", "-seed") + ".json"))
"""
NAMES, NUMBERS = ("baseline", "sparse", "adaptive"), (1, 2)
ALL = ["baseline:1", "sparse:1", "adaptive:1", "baseline:2", "sparse:2", "adaptive:2"]


@pytest.fixture
def stubbed(tmp_path, monkeypatch):
    """(start the grid, the runs that were trained since the last call, the folder)"""
    script, out = tmp_path / "stub.py", tmp_path / "out"
    script.write_text(STUB)
    monkeypatch.setattr(recipe_grid, "COMMAND", (sys.executable, str(script)))
    runs = [(name, seed, steps) for name in NAMES for seed in NUMBERS for steps in (3, 4)]
    asked = {f"{name}:{seed} {steps}": recipe_grid.run_identity(name, seed, steps) for name, seed, steps in runs}
    write_json(tmp_path / "asked.json", asked)

    def start(steps=3):
        found, failed = train_grid(NAMES, NUMBERS, steps, out)
        return [f"{run['recipe']}:{run['seed']}" for run in found], failed

    def taken():
        path = out / "taken.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line.split() for line in lines]

    return start, taken, out


def test_the_grid_trains_every_run_once_with_one_thread_and_a_second_call_none(stubbed):
    start, taken, _ = stubbed
    assert start() == (ALL, {})
    lines = taken()
    assert sorted(name for _, name, _ in lines) == sorted(ALL) and {threads for *_, threads in lines} == {"1"}
    assert start() == (ALL, {}) and taken() == []


def test_only_what_is_missing_half_written_or_of_other_settings_is_trained_again(stubbed):
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


@pytest.mark.parametrize(
    "fault, how, end",
    [
        ("FAIL", "failed (1)", "ZeroDivisionError: sparse:1 cannot be trained"),
        ("KILL", "was killed by signal 9", "last words"),
    ],
)
def test_a_failed_or_killed_run_is_reported_and_only_that_one_is_trained_again(
    stubbed, monkeypatch, capfd, fault, how, end
):
    start, taken, _ = stubbed
    monkeypatch.setenv(fault, "sparse:1")
    found, failed = start()
    assert found == [name for name in ALL if name != "sparse:1"] and list(failed) == ["sparse, seed 1"]
    assert end in failed["sparse, seed 1"]
    printed = "".join(capfd.readouterr())
    assert f"sparse, seed 1 {how}; the end of" in printed and end in printed
    monkeypatch.delenv(fault)
    taken()
    assert start() == (ALL, {}) and [name for _, name, _ in taken()] == ["sparse:1"]


def test_an_interrupt_ends_the_processes(stubbed, monkeypatch):
    start, _, _ = stubbed
    monkeypatch.setenv("HANG", "baseline:1")
    started, popen = [], subprocess.Popen

    def keep(*given, **more):
        if len(started) == 2:
            raise KeyboardInterrupt
        started.append(popen(*given, **more))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", keep)
    with pytest.raises(KeyboardInterrupt):
        start()
    assert len(started) == 2 and all(process.returncode is not None for process in started)


def test_an_unknown_recipe_is_refused_with_the_names_there_are(tmp_path):
    with pytest.raises(ValueError, match="no recipe 'group_3'; the recipes are: baseline, format_first"):
        train_grid(["group_3"], [1], 2, tmp_path)


def full(recipe, seed, steps=40):
    rng = np.random.default_rng([seed, len(recipe)])
    curves = {
        name: [None if name == "kl" and s == 0 else float(v) for s, v in enumerate(rng.random(steps))]
        for name in recipe_grid.CURVES
    }
    held_out = {"n": 128, **{name: float(rng.random()) for name in ("correct", "format", "tokens")}}
    versions = {name: "1" for name in ("python", "torch", "transformers", "trl", "unsloth")}
    return {
        **recipe_grid.run_identity(recipe, seed, steps),
        "held_out": held_out,
        "curves": curves,
        "seconds": 50,
        "versions": versions,
        "rewards_sha256": "00",
        "adapter": "torch.float32",
        "made": "2026-11-21",
    }


@pytest.fixture(scope="module")
def whole():
    return [full(recipe, seed) for seed in recipe_grid.SEEDS for recipe in RECIPES]


def test_the_record_of_the_whole_grid_is_small_and_says_the_same_as_the_runs(whole, tmp_path):
    path = recipe_grid.write_record(tmp_path / "recipes.jsonl", whole, full(UNTRAINED, 0, 0))
    assert path.stat().st_size < 200_000
    header, runs = recipes.read_record(path)
    pd.testing.assert_frame_equal(
        compare_recipes(runs).select_dtypes("number"), compare_recipes(whole).select_dtypes("number"), atol=2e-4
    )
    assert (
        header["seeds"] == list(recipe_grid.SEEDS)
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
    with pytest.raises(ValueError, match="is damaged"):
        recipes.read_record(path)
    path.write_text(text.splitlines()[0])
    with pytest.raises(ValueError, match="has no runs under a header"):
        recipes.read_record(path)


def test_a_missing_record_says_what_makes_it(tmp_path):
    with pytest.raises(MissingInputError, match="make recipes.*name recipes to train in RECIPES"):
        recipes.read_record(tmp_path / "recipes.jsonl")


def test_runs_that_were_not_made_alike_are_not_recorded_together(whole, tmp_path):
    with pytest.raises(ValueError, match="differ in 'rewards_sha256'"):
        recipe_grid.write_record(tmp_path / "recipes.jsonl", [whole[0], {**whole[1], "rewards_sha256": "11"}])


def test_two_real_steps_make_a_whole_record(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe_grid, "HELD_OUT", 8)
    record = recipe_grid.train_recipe("adaptive", 1, 2, tmp_path)
    assert recipe_grid.finished_run(tmp_path, ("adaptive", 1), 2) == json.loads(json.dumps(record))
    assert record["held_out"]["n"] == 8 and record["adapter"] == "torch.float32"
    for name, curve in record["curves"].items():
        assert len(curve) == 2 and None not in curve, name
    assert recipe_grid.finished_run(tmp_path, ("adaptive", 1), 3) is None
