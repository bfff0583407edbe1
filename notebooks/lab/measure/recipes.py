"""GRPO recipes on one budget and the same seeds: what each one changes, and what the recorded runs show."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from lab.files import ROOT, MissingInputError, Row, jsonl_lines, relative
from scoring.errors import InputError

RECORD = ROOT / "data" / "recipes.jsonl"
STEPS = 30  # training steps of a recorded run
UNTRAINED = "untrained"  # a run of no steps: the starter policy itself
WINDOW = 5  # steps over which a training curve is averaged
WEIGHTS = {"correctness_reward": 1.0, "format_reward": 0.5, "soft_format_reward": 0.5}
BASELINE: Row = {"num_generations": 8, "per_device_train_batch_size": 32, "gradient_accumulation_steps": 1}
BASELINE |= {"max_completion_length": 96, "learning_rate": 1e-3, "lr_scheduler_type": "constant_with_warmup"}
BASELINE |= {"warmup_steps": 5, "optim": "adamw_torch", "beta": 0.02, "temperature": 1.0}
BASELINE |= {"loss_type": "dapo", "scale_rewards": "group"}
BASELINE |= {"weights": WEIGHTS, "stages": [], "adaptive": False, "last_temperature": None}
STEERED = ("weights", "stages", "adaptive", "last_temperature")  # by lab.train.callbacks; the others are GRPOConfig's


class Comparison(NamedTuple):
    title: str
    question: str
    baseline: str  # what the baseline is called here
    recipes: Mapping[str, Row]  # that answer the question beside the baseline: name -> what it changes


FORMAT_ONLY = {"format_reward": 0.5, "soft_format_reward": 0.5}
SPARSE = {"correctness_reward": 1.0, "format_reward": 1.0, "soft_format_reward": 0.0}
QUESTIONS = {  # title -> question, and what the baseline is called there
    "Stages": ("Does it help to teach the format first, and pay for right answers only from step 15?", "all at once"),
    "Reward weights": ("Does it help to give a reward more weight while it is rarely earned?", "fixed"),
    "Soft or sparse": ("What is partial credit for the format worth?", "soft"),
    "Group size": ("32 completions a step: few prompts with many, or many prompts with few?", "8 of each prompt"),
    "Temperature": ("Does it help to explore first (1.3) and settle later (0.7)?", "constant 1.0"),
    "Loss": ("Over what is the loss averaged: the tokens of the batch, of each completion, or a constant?", "dapo"),
    "Advantage scale": ("Is the advantage divided by the spread of its group, of the batch, or by nothing?", "group"),
    "Learning rate": ("How much does the usual first knob matter beside the others?", "1e-3"),
}
CHANGES = {  # title -> the recipes that answer its question: name -> what it changes of the baseline
    "Stages": {"format_first": {"stages": [[0, FORMAT_ONLY], [15, WEIGHTS]]}},
    "Reward weights": {"adaptive": {"adaptive": True}},
    "Soft or sparse": {"sparse": {"weights": SPARSE}},
    "Group size": {f"group_{n}": {"num_generations": n} for n in (2, 4, 16)},
    "Temperature": {"annealed": {"temperature": 1.3, "last_temperature": 0.7}},
    "Loss": {f"loss_{name}": {"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo")},
    "Advantage scale": {f"scale_{name}": {"scale_rewards": name} for name in ("batch", "none")},
    "Learning rate": {"lr_3e-4": {"learning_rate": 3e-4}, "lr_3e-3": {"learning_rate": 3e-3}},
}
COMPARISONS = tuple(Comparison(title, *QUESTIONS[title], recipes) for title, recipes in CHANGES.items())
RECIPES: dict[str, Row] = {"baseline": {}} | {name: changes for c in COMPARISONS for name, changes in c.recipes.items()}
MEASURES = {"correct": "held out", "curve": "while training"}


def recipe_settings(recipe: str) -> Row:
    """Everything that a recipe sets: the baseline's values, with its own changes."""
    return BASELINE | RECIPES.get(recipe, {})


def read_record(path: Path = RECORD) -> tuple[Row, list[Row]]:
    """The header and the runs; a half-written last line is left out. Raises MissingInputError or ValueError."""
    way = "make it with `make recipes` (one to two hours on two cores)"
    if not path.exists():
        raise MissingInputError(f"{relative(path)} is not there: {way}, or name recipes to train in RECIPES.")
    rows = [row for _, _, row in jsonl_lines(path)]
    runs = [row for row in rows if isinstance(row, dict) and "curves" in row]
    if not runs or "about" not in rows[0] or any(isinstance(row, Exception) for row in rows[:-1]):
        raise InputError(f"{relative(path)} is damaged, or has no runs under a header: {way}.")
    return rows[0], runs


def compare_recipes(runs: Sequence[Row]) -> pd.DataFrame:
    """A line a recipe: its means over seeds, and its differences from the baseline, paired by seed.

    For both measures (`correct`, on held-out problems, and `curve`, while training) there are the mean, the
    `_difference`, `_low` and `_high` of its 95 % t-interval over seeds, and the `_verdict`. `reached` is the
    median over seeds of the step at which half of the training completions were right, NaN where the median
    run never got there. Raises InputError for runs of different lengths, and for two runs of one recipe and seed.
    """
    runs = [run for run in runs if run["recipe"] != UNTRAINED]
    lengths = sorted({f"{run['steps']} steps" for run in runs})
    if len(lengths) > 1:
        raise InputError(f"Runs of different lengths cannot be compared: {', '.join(lengths)}")
    rows = []
    for run in runs:
        right, spread = run["curves"]["correctness"], run["curves"]["no_spread"]
        curves = {"curve": np.mean(right), "reached": first_reached(right), "no_spread": np.mean(spread)}
        rows.append({"recipe": run["recipe"], "seed": run["seed"], **run["held_out"], **curves})
    values = pd.DataFrame(rows).set_index(["recipe", "seed"])
    if values.index.has_duplicates:
        recipe, seed = values.index[values.index.duplicated()][0]
        raise InputError(f"There are two runs of {recipe} with seed {seed}.")
    there = values.index.unique("recipe")
    names = [*(name for name in RECIPES if name in there), *there.difference(list(RECIPES))]
    base, lines = values.loc["baseline"] if "baseline" in names else values.iloc[:0].droplevel("recipe"), {}
    for name in names:
        own = values.loc[name]
        seeds = own.index.intersection(base.index if name != "baseline" else [])
        reached = own["reached"].median()
        line = {"seeds": len(own), "pairs": len(seeds), "format": own["format"].mean()}
        line |= {"reached": reached if np.isfinite(reached) else np.nan, "no_spread": own["no_spread"].mean()}
        for measure in MEASURES:
            mean, low, high = t_interval((own[measure] - base[measure]).loc[seeds])
            verdict = "better" if low > 0 else "worse" if high < 0 else "no difference seen"
            verdict = "identical" if low == high == 0 else verdict
            verdict = {0: "no seed in common", 1: "one seed: no interval"}.get(len(seeds), verdict)
            verdict = "baseline" if name == "baseline" else verdict
            found = {"_difference": mean, "_low": low, "_high": high, "_verdict": verdict}
            line |= {measure: own[measure].mean()} | {f"{measure}{part}": value for part, value in found.items()}
        lines[name] = line
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis("recipe")


def first_reached(curve: Sequence[float], level: float = 0.5) -> float:
    """The step at which the mean of the last five first was at least `level`; infinite where it never was.

    >>> first_reached([0, 0, 0, 1, 1, 1, 1]), first_reached([0.4] * 9)
    (6.0, inf)
    """
    means = pd.Series(curve, dtype=float).rolling(WINDOW).mean().to_numpy()
    return float(np.argmax(means >= level) + 1) if (means >= level).any() else np.inf


def t_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean with its 95 % t-interval; one value has no interval, none has no mean (NaN)."""
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return values.sum() if len(values) else np.nan, np.nan, np.nan
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return values.mean(), values.mean() - half, values.mean() + half


def points_text(line: Mapping[str, Any], measure: str) -> str:
    """A difference in percentage points with its interval."""
    middle, low, high = (100 * line[f"{measure}_{name}"] for name in ("difference", "low", "high"))
    interval = "" if np.isnan(low) else f" ({low:+.1f} to {high:+.1f})"
    return "–" if np.isnan(middle) else f"{middle:+.1f}{interval}"


def recipe_table(table: pd.DataFrame) -> pd.DataFrame:
    """The table as a person reads it: percent, and differences in percentage points with their intervals."""
    held_out, training, lines = "held out, greedy", "while training, mean of all steps", {}
    for name, line in table.iterrows():
        lines[name] = {
            ("runs", "seeds"): line["seeds"],
            (held_out, "correct"): f"{100 * line['correct']:.1f} %",
            (held_out, "difference"): points_text(line, "correct"),
            (held_out, "verdict"): line["correct_verdict"],
            (held_out, "format"): f"{100 * line['format']:.1f} %",
            (training, "correct"): f"{100 * line['curve']:.1f} %",
            (training, "difference"): points_text(line, "curve"),
            (training, "verdict"): line["curve_verdict"],
            (training, "half right at step"): "–" if np.isnan(line["reached"]) else f"{line['reached']:g}",
            (training, "groups without spread"): f"{100 * line['no_spread']:.0f} %",
        }
    return pd.DataFrame(lines).T.rename_axis("recipe")


def recipe_sentences(table: pd.DataFrame) -> list[str]:
    """What the table says, comparison by comparison; nothing that its numbers do not say."""
    lines = []
    for comparison in COMPARISONS:
        names = [name for name in comparison.recipes if name in table.index]
        lines += [f"{comparison.title} (baseline: {comparison.baseline})"] * bool(names)
        for name in names:
            row = table.loc[name]
            parts = [f"{label} {row[f'{m}_verdict']}, {points_text(row, m)}" for m, label in MEASURES.items()]
            lines.append(f"  {name}: {'; '.join(parts)} points, {row['pairs']} pairs of seeds")
    return lines


def chance_sentence(table: pd.DataFrame) -> str:
    """How many intervals there are, how many exclude 0, and how many would by chance alone."""
    verdicts = [table[f"{measure}_verdict"] for measure in MEASURES]
    clear = [v.isin(["better", "worse"]).sum() for v in verdicts]
    of = [v.isin(["better", "worse", "no difference seen"]).sum() for v in verdicts]
    return (
        f"{clear[0]} of {of[0]} intervals exclude 0 on held-out problems, {clear[1]} of {of[1]} while training. "
        f"If no recipe had any effect, about one in twenty would: {0.05 * sum(of):.1f} of {sum(of)}."
    )
