"""GRPO recipes on the same budget and seeds: what each one changes, the grid that trains them, and what came of it.

`python -m lab.make.recipe_grid` in `notebooks/` (or with it on PYTHONPATH) trains the whole grid on the starter policy and
writes `data/recipes.jsonl`, which notebook 07 shows. A grid that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rewards
from lab.data import dataset, loading
from lab.files import ROOT, STARTER_POLICY, Row, read_json, relative, write_json, write_text
from lab.measure import grading
from lab.measure.recipes import (
    BASELINE,
    COMMAND,
    CURVES,
    HELD_OUT,
    LORA,
    RECIPES,
    RECORD,
    SEEDS,
    STEERED,
    STEPS,
    UNTRAINED,
    WINDOW,
    chance,
    compare_recipes,
    known,
    recipe_table,
    settings,
)
from lab.model import policy, sampling

Run = tuple[str, int]  # recipe, seed
MADE_BY = "07_training_recipes"


def config(recipe: str, seed: int, steps: int, folder: str | Path) -> Row:
    """The keywords of GRPOConfig for one run."""
    chosen = settings(recipe)
    return {
        "output_dir": str(folder),
        # TRL's defaults, stated because Unsloth's config on a GPU has others
        "epsilon_high": 0.2,
        "mask_truncated_completions": False,
        "weight_decay": 0.0,
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
    }


@functools.cache
def problems() -> tuple[Any, list[Row]]:
    """The bundled word problems as notebook 01 prepares them: the training set, and the held-out rows that are answered."""
    from datasets import Dataset
    from transformers import AutoTokenizer

    prepared = dataset.prepare(
        loading.load_rows("word_problems"), AutoTokenizer.from_pretrained(STARTER_POLICY), seed=3407
    )
    return Dataset.from_list(prepared.train), prepared.test[:HELD_OUT]


def asked(recipe: str, seed: int, steps: int) -> Row:
    """What makes a run this run and no other; as JSON gives it back."""
    return json.loads(json.dumps({"recipe": recipe, "seed": seed, "steps": steps, "settings": settings(recipe)}))


def train_one(recipe: str, seed: int, steps: int, out: Path) -> Row:
    """Trains a recipe in this process and answers the held-out problems; writes and returns the run's record.

    The seed is that of the adapter's first weights, of the order of the prompts and of the sampling.
    """
    import torch
    import unsloth  # noqa: F401  (before trl and transformers, which it patches)
    from unsloth import FastLanguageModel

    from lab.train.process import versions

    train, test = problems()
    torch.manual_seed(seed)
    room = 256  # tokens: the longest prompt has 79
    model, tokenizer = FastLanguageModel.from_pretrained(str(STARTER_POLICY), max_seq_length=room, load_in_4bit=True)
    rows: list[Row] = []
    began = time.process_time()
    with sampling.Timer() as training:
        if recipe != UNTRAINED:
            model = FastLanguageModel.get_peft_model(model, **LORA, random_state=seed)
            rows = steps_of(recipe, seed, steps, model, tokenizer, train)
    with sampling.Timer() as answering:
        answers = sampling.sample(
            model,
            tokenizer,
            [row["prompt"] for row in test],
            temperature=0,
            max_new_tokens=BASELINE["max_completion_length"],
        )
    graded = grading.grade(test, [group[0] for group in answers])
    record = {
        **asked(recipe, seed, steps),
        "held_out": {"n": len(test), **{name: float(graded[name].mean()) for name in ("correct", "format", "tokens")}},
        "curves": {name: [row.get(logged) for row in rows] for name, logged in CURVES.items()},
        "sampled_correct_last_steps": mean_of_last(rows),
        "seconds": {
            "training": round(training.seconds, 1),
            "answering": round(answering.seconds, 1),
            "cpu": round(time.process_time() - began, 1),
        },
        "adapter": next(
            (str(p.dtype) for p in model.parameters() if p.requires_grad), None
        ),  # TRL casts it: see notebook 07
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

    from lab.train.steering import RewardWeights, TemperatureAnnealing

    chosen = settings(recipe)
    functions = [rewards.REGISTRY[name] for name in chosen["weights"]]
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(**config(recipe, seed, steps, folder))
        trainer = GRPOTrainer(
            model=model, processing_class=tokenizer, reward_funcs=functions, args=arguments, train_dataset=train
        )
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
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=worker_environment(),
                cwd=ROOT,
            )

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

    def __init__(
        self, wanted: list[Run], steps: int, out: Path, workers: int, runs_a_worker: int, command: Sequence[str]
    ) -> None:
        self.steps, self.out, self.workers, self.runs_a_worker, self.command = (
            steps,
            out,
            workers,
            runs_a_worker,
            command,
        )
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


KEPT = ("correctness", "format", "no_spread", "tokens", "kl")  # curves that the figures and the table need


def thinned(run: Row) -> Row:
    """A run as the record keeps it."""
    curves = {name: [value if value is None else round(value, 4) for value in run["curves"][name]] for name in KEPT}
    held_out = {name: round(value, 5) for name, value in run["held_out"].items()}
    return {
        "recipe": run["recipe"],
        "seed": run["seed"],
        "steps": run["steps"],
        "held_out": held_out,
        "seconds": round(run["seconds"]["cpu"]),
        "curves": curves,
    }


def write_record(path: Path, runs: Sequence[Row], untrained: Row | None = None) -> Path:
    """One line that says how the runs were made, then a line a run.

    Raises ValueError for runs that were not made alike: of another length, by other rewards or other packages.
    """
    for name in ("steps", "versions", "rewards_sha256"):
        if len({json.dumps(run[name], sort_keys=True) for run in runs}) != 1:
            raise ValueError(f"The runs differ in {name!r}: remove the older ones, and run the grid again.")
    first = runs[0]
    header = {
        "about": "GRPO recipes on data/starter-policy, made by `python -m lab.make.recipe_grid`",
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Trains the recipes of notebook 07 on the starter policy, and records what came of it."
    )
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
        raise SystemExit(
            f"\n{len(failed | failed_too)} runs failed; the same command takes them again: {', '.join(failed | failed_too)}"
        )
    if given.record:
        print(f"written: {relative(write_record(ROOT / given.record, runs, start[0]))}")
    print(recipe_table(compare_recipes(runs)).to_string(), chance(compare_recipes(runs)), sep="\n\n")


if __name__ == "__main__":
    main()
