"""GRPO recipes on one budget and the same seeds: what each one changes, and what the recorded grid shows."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.files import ROOT, MissingInputError, Row, relative

RECORD = ROOT / "data" / "recipes.jsonl"
COMMAND = (sys.executable, "-m", "lab.make.recipe_grid")
SEEDS = (1, 2, 3)
STEPS = 30
HELD_OUT = 128  # test problems that are answered greedily at the end
UNTRAINED = "untrained"  # a run of no steps: the starter policy itself
WINDOW = 5  # steps over which a training curve is averaged
WEIGHTS = {"correctness_reward": 1.0, "format_reward": 0.5, "soft_format_reward": 0.5}
LORA = {
    "r": 16,
    "lora_alpha": 32,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
BASELINE: Row = {
    "num_generations": 8,
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 96,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 5,
    "optim": "adamw_torch",
    "beta": 0.02,
    "temperature": 1.0,
    "loss_type": "dapo",
    "scale_rewards": "group",
    "weights": WEIGHTS,
    "stages": [],
    "adaptive": False,
    "last_temperature": None,
}
STEERED = ("weights", "stages", "adaptive", "last_temperature")  # by lab.train.steering; the others are GRPOConfig's


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One question, and the recipes that answer it beside the baseline: name -> what it changes."""

    title: str
    question: str
    baseline: str  # what the baseline is called here
    recipes: Mapping[str, Row]


COMPARISONS = (
    Comparison(
        "Stages",
        "Does it help to teach the format first, and pay for right answers only from step 15?",
        "all at once",
        {"format_first": {"stages": [[0, {"format_reward": 0.5, "soft_format_reward": 0.5}], [15, WEIGHTS]]}},
    ),
    Comparison(
        "Reward weights",
        "Does it help to give a reward more weight while it is rarely earned?",
        "fixed",
        {"adaptive": {"adaptive": True}},
    ),
    Comparison(
        "Soft or sparse",
        "What is partial credit for the format worth?",
        "soft",
        {"sparse": {"weights": {"correctness_reward": 1.0, "format_reward": 1.0, "soft_format_reward": 0.0}}},
    ),
    Comparison(
        "Group size",
        "32 completions a step: few prompts with many, or many prompts with few?",
        "8 of each prompt",
        {f"group_{n}": {"num_generations": n} for n in (2, 4, 16)},
    ),
    Comparison(
        "Temperature",
        "Does it help to explore first (1.3) and settle later (0.7)?",
        "constant 1.0",
        {"annealed": {"temperature": 1.3, "last_temperature": 0.7}},
    ),
    Comparison(
        "Loss",
        "Over what is the loss averaged: the tokens of the batch, of each completion, or a constant?",
        "dapo",
        {f"loss_{name}": {"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo")},
    ),
    Comparison(
        "Advantage scale",
        "Is the advantage divided by the spread of its group, of the batch, or by nothing?",
        "group",
        {f"scale_{name}": {"scale_rewards": name} for name in ("batch", "none")},
    ),
    Comparison(
        "Learning rate",
        "How much does the usual first knob matter beside the others?",
        "1e-3",
        {"lr_3e-4": {"learning_rate": 3e-4}, "lr_3e-3": {"learning_rate": 3e-3}},
    ),
)
RECIPES: dict[str, Row] = {"baseline": {}} | {name: changes for c in COMPARISONS for name, changes in c.recipes.items()}


def known(names: Iterable[str]) -> list[str]:
    """The names, each once; raises ValueError for one that is no recipe."""
    names = list(dict.fromkeys(names))
    unknown = [name for name in names if name not in (*RECIPES, UNTRAINED)]
    if unknown:
        raise ValueError(f"There is no recipe {unknown[0]!r}; the recipes are: {', '.join(RECIPES)}.")
    return names


def settings(recipe: str) -> Row:
    """Everything that a recipe sets: the baseline's values, with its own changes."""
    return BASELINE | RECIPES.get(recipe, {})


# What a run keeps of every step: our name -> TRL's
CURVES = {
    "correctness": "rewards/correctness_reward/mean",
    "format": "rewards/format_reward/mean",
    "soft_format": "rewards/soft_format_reward/mean",
    "reward": "reward",
    "kl": "kl",
    "entropy": "entropy",
    "no_spread": "frac_reward_zero_std",
    "tokens": "completions/mean_length",
    "seconds": "step_time",
}


def read_record(path: Path = RECORD) -> tuple[Row, list[Row]]:
    """The header and the runs; a half-written last line is left out.

    Raises MissingInputError with the command that makes it, ValueError where it holds no run.
    """
    way = "make it with `PYTHONPATH=.:notebooks .venv/bin/python -m lab.make.recipe_grid` in the repository (one to two hours on two cores)"
    if not path.exists():
        raise MissingInputError(f"{relative(path)} is not there: {way}, or name recipes to train in RECIPES.")
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = []
    for number, line in enumerate(lines):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines) - 1:
                raise ValueError(f"Line {number + 1} of {relative(path)} is damaged ({error}): {way} again.") from error
    runs = [row for row in rows if "curves" in row]
    if not runs or "about" not in rows[0]:
        raise ValueError(f"{relative(path)} has no runs under a header: {way}.")
    return rows[0], runs


# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2)
T_QUANTILES = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
    2.080,
    2.074,
    2.069,
    2.064,
    2.060,
    2.056,
    2.052,
    2.048,
    2.045,
    2.042,
)
MEASURES = {"correct": "held out, greedy: correct", "curve": "correct while training, mean of all steps"}


def t_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean with its 95 % t-interval; one value has no interval, none has no mean (NaN).

    >>> [round(value, 3) for value in t_interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return (float(values[0]) if len(values) else np.nan), np.nan, np.nan
    half = T_QUANTILES[min(len(values) - 1, len(T_QUANTILES)) - 1] * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(values.mean() - half), float(values.mean() + half)


def verdict(low: float, high: float, pairs: int) -> str:
    """In words, from the interval of a paired difference alone."""
    if pairs < 2:
        return "one seed: no interval" if pairs else "no seed in common"
    if low == high == 0:
        return "identical"
    return "better" if low > 0 else "worse" if high < 0 else "no difference seen"


def first_reached(curve: Sequence[float], level: float = 0.5) -> float:
    """The step at which the mean of the last five first was at least `level`; infinite where it never was.

    >>> first_reached([0, 0, 0, 1, 1, 1, 1]), first_reached([0.4] * 9)
    (6.0, inf)
    """
    means = pd.Series(curve, dtype=float).rolling(WINDOW).mean().to_numpy()
    return float(np.argmax(means >= level) + 1) if (means >= level).any() else np.inf


def compare_recipes(runs: Sequence[Row]) -> pd.DataFrame:
    """A line a recipe: its means over seeds, and its differences from the baseline, paired by seed.

    For both measures (`correct`, on held-out problems, and `curve`, while training) there are the mean, the
    `_difference`, `_low` and `_high` of its 95 % t-interval over seeds, and the `_verdict`. `reached` is the
    median over seeds of the step at which half of the training completions were right, NaN where the median
    run never got there.

    Raises ValueError for runs of different lengths, and for two runs of one recipe and seed.
    """
    runs = [run for run in runs if run["recipe"] != UNTRAINED]
    if len({run["steps"] for run in runs}) > 1:
        raise ValueError(
            "Runs of different lengths cannot be compared: "
            + ", ".join(sorted({f"{run['steps']} steps" for run in runs}))
        )
    values = pd.DataFrame(
        {
            "recipe": run["recipe"],
            "seed": run["seed"],
            "correct": run["held_out"]["correct"],
            "format": run["held_out"]["format"],
            "curve": np.mean(run["curves"]["correctness"]),
            "reached": first_reached(run["curves"]["correctness"]),
            "no_spread": np.mean(run["curves"]["no_spread"]),
        }
        for run in runs
    ).set_index(["recipe", "seed"])
    if values.index.has_duplicates:
        recipe, seed = values.index[values.index.duplicated()][0]
        raise ValueError(f"There are two runs of {recipe} with seed {seed}.")
    there = values.index.get_level_values("recipe").unique()
    names = [name for name in RECIPES if name in there] + [name for name in there if name not in RECIPES]
    base = values.loc["baseline"] if "baseline" in names else values.iloc[:0].droplevel("recipe")
    lines = {name: line(values.loc[name], base, name == "baseline") for name in names}
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis("recipe")


def line(own: pd.DataFrame, base: pd.DataFrame, is_baseline: bool) -> Row:
    """One recipe's line of the table."""
    seeds = own.index.intersection(base.index)
    reached = own["reached"].median()
    found: Row = {
        "seeds": len(own),
        "pairs": 0 if is_baseline else len(seeds),
        "format": own["format"].mean(),
        "reached": reached if np.isfinite(reached) else np.nan,
        "no_spread": own["no_spread"].mean(),
    }
    for measure in MEASURES:
        difference = [] if is_baseline else (own.loc[seeds, measure] - base.loc[seeds, measure])
        middle, low, high = t_interval(difference)
        said = "baseline" if is_baseline else verdict(low, high, len(seeds))
        found |= {
            measure: own[measure].mean(),
            f"{measure}_difference": middle,
            f"{measure}_low": low,
            f"{measure}_high": high,
            f"{measure}_verdict": said,
        }
    return found


def points(table_row: Mapping[str, Any], measure: str) -> str:
    """A difference in percentage points with its interval."""
    middle, low, high = (100 * table_row[f"{measure}_{name}"] for name in ("difference", "low", "high"))
    if np.isnan(middle):
        return "–"
    return f"{middle:+.1f}" + ("" if np.isnan(low) else f" ({low:+.1f} to {high:+.1f})")


def recipe_table(table: pd.DataFrame) -> pd.DataFrame:
    """The table as a person reads it: percent, and differences in percentage points with their intervals."""
    lines = {}
    for name, row in table.iterrows():
        held, training, runs = "held out, greedy", "while training, mean of all steps", "runs"
        lines[name] = {
            (runs, "seeds"): row["seeds"],
            (held, "correct"): f"{100 * row['correct']:.1f} %",
            (held, "difference"): points(row, "correct"),
            (held, "verdict"): row["correct_verdict"],
            (held, "format"): f"{100 * row['format']:.1f} %",
            (training, "correct"): f"{100 * row['curve']:.1f} %",
            (training, "difference"): points(row, "curve"),
            (training, "verdict"): row["curve_verdict"],
            (training, "half right at step"): "–" if np.isnan(row["reached"]) else f"{row['reached']:g}",
            (training, "groups without spread"): f"{100 * row['no_spread']:.0f} %",
        }
    shown = pd.DataFrame(list(lines.values()), index=pd.Index(lines, name="recipe"))
    shown.columns = pd.MultiIndex.from_tuples(shown.columns)
    return shown


def sentences(table: pd.DataFrame) -> list[str]:
    """What the table says, comparison by comparison; nothing that its numbers do not say."""
    said = []
    for comparison in COMPARISONS:
        there = [name for name in comparison.recipes if name in table.index]
        if not there:
            continue
        said.append(f"{comparison.title} (baseline: {comparison.baseline})")
        for name in there:
            row = table.loc[name]
            parts = [
                f"{label} {row[f'{m}_verdict']}, {points(row, m)}"
                for m, label in (("correct", "held out"), ("curve", "while training"))
            ]
            said.append(f"  {name}: {'; '.join(parts)} points, {row['pairs']} pairs of seeds")
    return said


def chance(table: pd.DataFrame) -> str:
    """How many intervals there are, how many exclude 0, and how many would by chance alone."""
    verdicts = [table[f"{measure}_verdict"] for measure in MEASURES]
    clear = [int(v.isin(["better", "worse"]).sum()) for v in verdicts]
    of = [int(v.isin(["better", "worse", "no difference seen"]).sum()) for v in verdicts]
    return (
        f"{clear[0]} of {of[0]} intervals exclude 0 on held-out problems, {clear[1]} of {of[1]} while training. "
        f"If no recipe had any effect, about one in twenty would: {0.05 * sum(of):.1f} of {sum(of)}."
    )
