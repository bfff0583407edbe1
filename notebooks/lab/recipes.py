"""GRPO recipes on the same budget and seeds: what each one changes, the grid that trains them, and what came of it.

`python -m lab.recipes` in `notebooks/` (or with it on PYTHONPATH) trains the whole grid on the starter policy and
writes `data/recipes.jsonl`, which notebook 07 shows. A grid that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import rewards

from lab import data, evaluate, policy
from lab.files import ROOT, STARTER_POLICY, MissingInputError, read_json, relative, write_json, write_text

Row = dict[str, Any]
Run = tuple[str, int]  # recipe, seed

MADE_BY = "07_training_recipes"
RECORD = ROOT / "data" / "recipes.jsonl"
COMMAND = (sys.executable, "-m", "lab.recipes")
SEEDS = (1, 2, 3)
STEPS = 30
HELD_OUT = 128  # test problems that are answered greedily at the end
UNTRAINED = "untrained"  # a run of no steps: the starter policy itself
WINDOW = 5  # steps over which a training curve is averaged

# --------------------------------------------------------------------------- the recipes

WEIGHTS = {"correctness_reward": 1.0, "format_reward": 0.5, "soft_format_reward": 0.5}
LORA = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}
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
STEERED = ("weights", "stages", "adaptive", "last_temperature")  # by lab.steering; the others are GRPOConfig's


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One question, and the recipes that answer it beside the baseline: name -> what it changes."""

    title: str
    question: str
    baseline: str  # what the baseline is called here
    recipes: Mapping[str, Row]


COMPARISONS = (
    Comparison(
        "Stages", "Does it help to teach the format first, and pay for right answers only from step 15?", "all at once",
        {"format_first": {"stages": [[0, {"format_reward": 0.5, "soft_format_reward": 0.5}], [15, WEIGHTS]]}},
    ),
    Comparison(
        "Reward weights", "Does it help to give a reward more weight while it is rarely earned?", "fixed",
        {"adaptive": {"adaptive": True}},
    ),
    Comparison(
        "Soft or sparse", "What is partial credit for the format worth?", "soft",
        {"sparse": {"weights": {"correctness_reward": 1.0, "format_reward": 1.0, "soft_format_reward": 0.0}}},
    ),
    Comparison(
        "Group size", "32 completions a step: few prompts with many, or many prompts with few?", "8 of each prompt",
        {f"group_{n}": {"num_generations": n} for n in (2, 4, 16)},
    ),
    Comparison(
        "Temperature", "Does it help to explore first (1.3) and settle later (0.7)?", "constant 1.0",
        {"annealed": {"temperature": 1.3, "last_temperature": 0.7}},
    ),
    Comparison(
        "Loss", "Over what is the loss averaged: the tokens of the batch, of each completion, or a constant?", "dapo",
        {f"loss_{name}": {"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo")},
    ),
    Comparison(
        "Advantage scale", "Is the advantage divided by the spread of its group, of the batch, or by nothing?", "group",
        {f"scale_{name}": {"scale_rewards": name} for name in ("batch", "none")},
    ),
    Comparison(
        "Learning rate", "How much does the usual first knob matter beside the others?", "1e-3",
        {"lr_3e-4": {"learning_rate": 3e-4}, "lr_3e-3": {"learning_rate": 3e-3}},
    ),
)  # fmt: skip
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


def config(recipe: str, seed: int, steps: int, folder: str | Path) -> Row:
    """The keywords of GRPOConfig for one run."""
    chosen = settings(recipe)
    return {
        "output_dir": str(folder),
        # TRL's defaults, stated because Unsloth's config on a GPU has others
        "epsilon_high": 0.2, "mask_truncated_completions": False, "weight_decay": 0.0,
        **{name: value for name, value in chosen.items() if name not in STEERED},
        "reward_weights": list(chosen["weights"].values()),
        "max_steps": steps,
        "seed": seed,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **policy.precision(),
    }  # fmt: skip


# --------------------------------------------------------------------------- one run

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


@functools.cache
def problems() -> tuple[Any, list[Row]]:
    """The bundled word problems as notebook 01 prepares them: the training set, and the held-out rows that are answered."""
    from datasets import Dataset
    from transformers import AutoTokenizer

    prepared = data.prepare(data.load_rows("word_problems"), AutoTokenizer.from_pretrained(STARTER_POLICY), seed=3407)
    return Dataset.from_list(prepared.train), prepared.test[:HELD_OUT]


def asked(recipe: str, seed: int, steps: int) -> Row:
    """What makes a run this run and no other; as JSON gives it back."""
    return json.loads(json.dumps({"recipe": recipe, "seed": seed, "steps": steps, "settings": settings(recipe)}))


def train_one(recipe: str, seed: int, steps: int, out: Path) -> Row:
    """Trains a recipe in this process and answers the held-out problems; writes and returns the run's record.

    The seed is that of the adapter's first weights, of the order of the prompts and of the sampling.
    """
    import unsloth  # noqa: F401  (before trl and transformers, which it patches)
    import torch
    from unsloth import FastLanguageModel

    from lab.training import versions

    train, test = problems()
    torch.manual_seed(seed)
    room = 256  # tokens: the longest prompt has 79
    model, tokenizer = FastLanguageModel.from_pretrained(str(STARTER_POLICY), max_seq_length=room, load_in_4bit=True)
    rows: list[Row] = []
    began = time.process_time()
    with policy.Timer() as training:
        if recipe != UNTRAINED:
            model = FastLanguageModel.get_peft_model(model, **LORA, random_state=seed)
            rows = steps_of(recipe, seed, steps, model, tokenizer, train)
    with policy.Timer() as answering:
        answers = policy.sample(model, tokenizer, [row["prompt"] for row in test], temperature=0, max_new_tokens=BASELINE["max_completion_length"])
    graded = evaluate.grade(test, [group[0] for group in answers])
    record = {
        **asked(recipe, seed, steps),
        "held_out": {"n": len(test), **{name: float(graded[name].mean()) for name in ("correct", "format", "tokens")}},
        "curves": {name: [row.get(logged) for row in rows] for name, logged in CURVES.items()},
        "sampled_correct_last_steps": mean_of_last(rows),
        "seconds": {"training": round(training.seconds, 1), "answering": round(answering.seconds, 1),
                    "cpu": round(time.process_time() - began, 1)},  # fmt: skip
        "adapter": next((str(p.dtype) for p in model.parameters() if p.requires_grad), None),  # TRL casts it: see notebook 07
        "versions": versions(),
        "rewards_sha256": hashlib.sha256(Path(rewards.__file__).read_bytes()).hexdigest(),
        "made": time.strftime("%Y-%m-%d"),
    }
    write_json(path_of(out, (recipe, seed)), record)
    return record


def steps_of(recipe: str, seed: int, steps: int, model: Any, tokenizer: Any, train: Any) -> list[Row]:
    """Trains, and returns what TRL logged, a row a step."""
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from lab.steering import RewardWeights, TemperatureAnnealing

    chosen = settings(recipe)
    functions = [rewards.REGISTRY[name] for name in chosen["weights"]]
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(**config(recipe, seed, steps, folder))
        trainer = GRPOTrainer(model=model, processing_class=tokenizer, reward_funcs=functions, args=arguments, train_dataset=train)
        trainer.remove_callback(PrinterCallback)
        policy.adapter_in_32_bits(trainer.model)
        if chosen["stages"] or chosen["adaptive"]:
            RewardWeights(chosen["weights"], chosen["stages"], adaptive=chosen["adaptive"]).attach(trainer)
        if chosen["last_temperature"] is not None:
            TemperatureAnnealing(chosen["temperature"], chosen["last_temperature"]).attach(trainer)
        trainer.train()
        return [row for row in trainer.state.log_history if "reward" in row]


def mean_of_last(rows: Sequence[Row], name: str = CURVES["correctness"]) -> float | None:
    return float(np.mean([row[name] for row in rows[-WINDOW:]])) if rows else None


# --------------------------------------------------------------------------- the grid


def path_of(out: Path, run: Run) -> Path:
    return out / f"{run[0]}-seed{run[1]}.json"


def finished(out: Path, run: Run, steps: int) -> Row | None:
    """The record of a run if it is there, whole, and of these very settings."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        record = read_json(path_of(out, run), MADE_BY)
        if {**record, **asked(*run, steps)} == record:
            return record
    return None


class Worker:
    """A process that takes some runs one after the other; its output goes to a log."""

    def __init__(self, command: Sequence[str], runs: list[Run], steps: int, out: Path) -> None:
        self.runs, self.steps, self.out = runs, steps, out
        self.log = out / "logs" / f"{runs[0][0]}-seed{runs[0][1]}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        jobs = [f"{recipe}:{seed}" for recipe, seed in runs]
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                [*command, "--steps", str(steps), "--out", str(out), "--runs", *jobs],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=worker_environment(), cwd=ROOT,
            )  # fmt: skip

    def harvest(self) -> list[Row]:
        """The records that are new since the last time; their runs leave the list."""
        found = []
        while self.runs and (record := finished(self.out, self.runs[0], self.steps)):
            found.append(record)
            self.runs.pop(0)
        return found

    def tail(self, lines: int = 12) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def worker_environment() -> dict[str, str]:
    """One thread a worker, and the CPU also where there is a GPU: there Unsloth puts its own trainer in place of TRL's."""
    one = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    paths = [str(ROOT), str(ROOT / "notebooks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **one, **quiet, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)}


class Grid:
    """Runs that are done, waiting, or with a worker."""

    def __init__(self, wanted: list[Run], steps: int, out: Path, workers: int, runs_a_worker: int, command: Sequence[str]) -> None:
        self.steps, self.out, self.workers, self.runs_a_worker, self.command = steps, out, workers, runs_a_worker, command
        self.records = {run: record for run in wanted if (record := finished(out, run, steps))}
        self.queue = [run for run in wanted if run not in self.records]
        self.active: list[Worker] = []
        self.killed: set[Run] = set()
        self.failed: dict[str, str] = {}

    def start_workers(self) -> None:
        while self.queue and len(self.active) < self.workers:
            share = min(self.runs_a_worker, -(-len(self.queue) // (self.workers - len(self.active))))
            runs, self.queue = self.queue[:share], self.queue[share:]
            self.active.append(Worker(self.command, runs, self.steps, self.out))

    def collect(self) -> list[str]:
        """Takes what the workers have finished; returns what there is to say of those that failed."""
        said = []
        for worker in list(self.active):
            status = worker.process.poll()  # before the harvest: what it wrote last is there by then
            for record in worker.harvest():
                self.records[record["recipe"], record["seed"]] = record
            if status is not None:
                self.active.remove(worker)
                said += self._settle(worker, status)
        return said

    def _settle(self, worker: Worker, status: int) -> list[str]:
        """A worker has ended: the run that it left is taken once more if it was killed, else it has failed."""
        left, said = worker.runs, []
        if left and (status >= 0 or left[0] in self.killed):
            recipe, seed = left.pop(0)
            self.failed[f"{recipe}, seed {seed}"] = worker.tail()
            said = [f"{recipe}, seed {seed} failed ({status}); the end of {relative(worker.log)}:\n{worker.tail()}"]
        elif left:
            self.killed.add(left[0])
        self.queue = left + self.queue
        return said


def run_grid(
    names: Iterable[str],
    seeds: Iterable[int],
    steps: int,
    out: Path,
    workers: int = 2,
    *,
    runs_a_worker: int = 5,
    command: Sequence[str] = COMMAND,
    poll: float = 0.5,
) -> tuple[list[Row], dict[str, str]]:
    """Trains every recipe with every seed in worker processes, with a progress bar.

    A run that is finished already is kept as it is. One whose worker was killed is taken once more; one that
    fails is reported with the end of its log, and the others go on.

    Args:
        runs_a_worker: runs that a process takes one after the other; its start costs about ten seconds.
        command: what starts a worker; it gets `--steps N --out FOLDER --runs recipe:seed …`.

    Returns the records, and the failed runs with the end of their logs.
    """
    from tqdm.auto import tqdm

    names = known(names)
    wanted = [(name, seed) for seed in seeds for name in names]  # a grid that is cut short has every recipe
    grid = Grid(wanted, steps, out, workers, runs_a_worker, command)
    with tqdm(total=len(wanted), initial=len(grid.records), desc="recipes", unit="run") as bar:
        try:
            while grid.queue or grid.active:
                grid.start_workers()
                now = ", ".join("{} seed {}".format(*worker.runs[0]) for worker in grid.active if worker.runs)
                if now != bar.postfix:
                    bar.set_postfix_str(now)
                time.sleep(poll)
                for text in grid.collect():
                    bar.write(text)
                bar.update(len(grid.records) - bar.n)
        finally:
            for worker in grid.active:
                worker.end()
    return [grid.records[run] for run in wanted if run in grid.records], grid.failed


def work(runs: Iterable[str], steps: int, out: Path) -> None:
    """What a worker does: its runs, one after the other, until its parent is gone."""
    import torch

    torch.set_num_threads(1)
    parent = os.getppid()
    for run in runs:
        recipe, _, seed = run.rpartition(":")
        known([recipe])
        record = train_one(recipe, int(seed), steps, out)
        print(f"{run}: {record['seconds']}, held out {record['held_out']}", flush=True)
        if os.getppid() != parent:
            return


# --------------------------------------------------------------------------- the record

KEPT = ("correctness", "format", "no_spread", "tokens", "kl")  # curves that the figures and the table need


def thinned(run: Row) -> Row:
    """A run as the record keeps it."""
    curves = {name: [value if value is None else round(value, 4) for value in run["curves"][name]] for name in KEPT}
    held_out = {name: round(value, 5) for name, value in run["held_out"].items()}
    return {"recipe": run["recipe"], "seed": run["seed"], "steps": run["steps"], "held_out": held_out,
            "seconds": round(run["seconds"]["cpu"]), "curves": curves}  # fmt: skip


def write_record(path: Path, runs: Sequence[Row], untrained: Row | None = None) -> Path:
    """One line that says how the runs were made, then a line a run.

    Raises ValueError for runs that were not made alike: of another length, by other rewards or other packages.
    """
    for name in ("steps", "versions", "rewards_sha256"):
        if len({json.dumps(run[name], sort_keys=True) for run in runs}) != 1:
            raise ValueError(f"The runs differ in {name!r}: remove the older ones, and run the grid again.")
    first = runs[0]
    header = {
        "about": "GRPO recipes on data/starter-policy, made by `python -m lab.recipes`",
        "date": max(run["made"] for run in runs),
        "steps": first["steps"],
        "seeds": sorted({run["seed"] for run in runs}),
        "held_out": first["held_out"]["n"],
        "untrained": untrained and thinned(untrained)["held_out"],
        "baseline": BASELINE,
        "lora": LORA,
        "changes": {name: RECIPES[name] for name in dict.fromkeys(run["recipe"] for run in runs)},
        "adapter": first["adapter"],
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "threads_a_run": 1},
        "versions": first["versions"],
        "rewards_sha256": first["rewards_sha256"],
    }
    lines = [header, *(thinned(run) for run in runs)]
    return write_text(path, "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read_record(path: Path = RECORD) -> tuple[Row, list[Row]]:
    """The header and the runs; a half-written last line is left out.

    Raises MissingInputError with the command that makes it, ValueError where it holds no run.
    """
    way = "make it with `PYTHONPATH=.:notebooks .venv/bin/python -m lab.recipes` in the repository (one to two hours on two cores)"
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


def about(header: Row, runs: Sequence[Row]) -> str:
    """In words: what the recorded grid is, and how it was made."""
    recipes, machine = len({run["recipe"] for run in runs}), header["machine"]
    packages = ", ".join(f"{name} {header['versions'][name]}" for name in ("torch", "transformers", "trl", "unsloth"))
    hours = sum(run["seconds"] for run in runs) / 3600
    lines = [
        f"A record, not made just now: {len(runs)} runs of {recipes} recipes, {header['date']}, {hours:.1f} hours of one core in all.",
        f"{machine['cpu']}, {machine['threads_a_run']} thread a run; {packages}.",
        f"Each run: {header['steps']} steps of {header['baseline']['per_device_train_batch_size']} completions on the starter policy, "
        f"then greedy answers to {header['held_out']} held-out problems.",
    ]
    if header.get("untrained"):
        start = header["untrained"]
        right, form = 100 * start["correct"], 100 * start["format"]
        lines.append(f"Before training the policy answers {right:.1f} % of these right, {form:.1f} % in the format.")
    return "\n".join(lines)


# --------------------------------------------------------------------------- what came of it

# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2)
T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
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


def compare(runs: Sequence[Row]) -> pd.DataFrame:
    """A line a recipe: its means over seeds, and its differences from the baseline, paired by seed.

    For both measures (`correct`, on held-out problems, and `curve`, while training) there are the mean, the
    `_difference`, `_low` and `_high` of its 95 % t-interval over seeds, and the `_verdict`. `reached` is the
    median over seeds of the step at which half of the training completions were right, NaN where the median
    run never got there.

    Raises ValueError for runs of different lengths, and for two runs of one recipe and seed.
    """
    runs = [run for run in runs if run["recipe"] != UNTRAINED]
    if len({run["steps"] for run in runs}) > 1:
        raise ValueError("Runs of different lengths cannot be compared: " + ", ".join(sorted({f"{run['steps']} steps" for run in runs})))
    values = pd.DataFrame(
        {
            "recipe": run["recipe"], "seed": run["seed"], "correct": run["held_out"]["correct"], "format": run["held_out"]["format"],
            "curve": np.mean(run["curves"]["correctness"]), "reached": first_reached(run["curves"]["correctness"]),
            "no_spread": np.mean(run["curves"]["no_spread"]),
        }
        for run in runs
    ).set_index(["recipe", "seed"])  # fmt: skip
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
    found: Row = {"seeds": len(own), "pairs": 0 if is_baseline else len(seeds), "format": own["format"].mean(),
                  "reached": reached if np.isfinite(reached) else np.nan, "no_spread": own["no_spread"].mean()}  # fmt: skip
    for measure in MEASURES:
        difference = [] if is_baseline else (own.loc[seeds, measure] - base.loc[seeds, measure])
        middle, low, high = t_interval(difference)
        said = "baseline" if is_baseline else verdict(low, high, len(seeds))
        found |= {measure: own[measure].mean(), f"{measure}_difference": middle, f"{measure}_low": low,
                  f"{measure}_high": high, f"{measure}_verdict": said}  # fmt: skip
    return found


def points(table_row: Mapping[str, Any], measure: str) -> str:
    """A difference in percentage points with its interval."""
    middle, low, high = (100 * table_row[f"{measure}_{name}"] for name in ("difference", "low", "high"))
    if np.isnan(middle):
        return "–"
    return f"{middle:+.1f}" + ("" if np.isnan(low) else f" ({low:+.1f} to {high:+.1f})")


def readable(table: pd.DataFrame) -> pd.DataFrame:
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
            parts = [f"{label} {row[f'{m}_verdict']}, {points(row, m)}" for m, label in (("correct", "held out"), ("curve", "while training"))]
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


# --------------------------------------------------------------------------- the command


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Trains the recipes of notebook 07 on the starter policy, and records what came of it.")
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), metavar="NAME", help="default: all of them")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--workers", type=int, default=2, help="processes at once, of one thread each")
    parser.add_argument("--out", default="outputs/recipes", help="a file a run, and the workers' logs")
    parser.add_argument("--record", default=str(RECORD), help="one small file with all runs; '' for none")
    parser.add_argument("--runs", nargs="+", metavar="RECIPE:SEED", help="train just these, in this process")
    given = parser.parse_args(arguments)
    out = ROOT / given.out
    if given.runs:
        return work(given.runs, given.steps, out)
    runs, failed = run_grid(given.recipes, given.seeds, given.steps, out, given.workers)
    start, failed_too = run_grid([UNTRAINED], [0], given.steps, out, 1)
    if failed or failed_too:
        raise SystemExit(f"\n{len(failed | failed_too)} runs failed; the same command takes them again: {', '.join(failed | failed_too)}")
    if given.record:
        print(f"written: {relative(write_record(ROOT / given.record, runs, start[0]))}")
    print(readable(compare(runs)).to_string(), chance(compare(runs)), sep="\n\n")


if __name__ == "__main__":
    main()
