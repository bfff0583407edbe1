"""Trains the recipes of `lab.measure.recipes` on the starter policy, each with the same seeds, and records the results.

`make recipes` trains the whole grid and writes `data/recipes.jsonl`, which notebook 07 shows. Each training is a process
of its own with one thread. A training that is finished is kept, so that an interrupted grid goes on where it was.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import rewards
from lab.data import dataset, loading
from lab.files import ROOT, STARTER_POLICY, Row, read_json, relative, write_json, write_text
from lab.measure import grading, recipes
from lab.measure.recipes import BASELINE, RECIPES, UNTRAINED, recipe_settings
from lab.model import policy, sampling

SEEDS = (1, 2, 3)
HELD_OUT = 128  # test problems that are answered greedily at the end
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA = {"r": 16, "lora_alpha": 32, "target_modules": LINEAR}
# TRL's, stated because Unsloth's config on a GPU has others
DEFAULTS = {"epsilon_high": 0.2, "mask_truncated_completions": False}
DEFAULTS |= {"weight_decay": 0.0, "gradient_checkpointing": False}
REPORTS = {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
CURVES = {  # what is kept of every step: our name -> TRL's
    "correctness": "rewards/correctness_reward/mean",
    "format": "rewards/format_reward/mean",
    "no_spread": "frac_reward_zero_std",
    "tokens": "completions/mean_length",
    "kl": "kl",
}
COMMAND = (sys.executable, "-m", "lab.make.recipe_grid")
GRADES = {"correct": "correctness_reward", "format": "format_reward", "tokens": "tokens"}
Run = tuple[str, int]  # recipe, seed


def grpo_settings(recipe: str, seed: int, steps: int, folder: str | Path) -> Row:
    """The keywords of GRPOConfig for one run."""
    chosen = recipe_settings(recipe)
    own = {name: value for name, value in chosen.items() if name not in recipes.STEERED}
    own |= {"reward_weights": list(chosen["weights"].values()), "max_steps": steps, "seed": seed}
    return {"output_dir": str(folder), **DEFAULTS, **own, **REPORTS, **policy.precision()}


def train_recipe(recipe: str, seed: int, steps: int, out: Path) -> Row:
    """Trains a recipe in this process and answers the held-out problems; writes and returns the run's record.

    The seed is that of the adapter's first weights, of the order of the prompts and of the sampling.
    """
    import torch
    import unsloth  # noqa: F401  (before trl and transformers, which it patches)
    from transformers import AutoTokenizer
    from unsloth import FastLanguageModel

    from lab.train.process import package_versions

    problems = loading.load_rows("word_problems")
    prepared = dataset.prepare_dataset(problems, AutoTokenizer.from_pretrained(STARTER_POLICY), seed=3407)
    test = prepared.test[:HELD_OUT]
    torch.manual_seed(seed)
    room = 256  # tokens: the longest prompt has 79
    model, tokenizer = FastLanguageModel.from_pretrained(str(STARTER_POLICY), max_seq_length=room, load_in_4bit=True)
    log: list[Row] = []
    began = time.process_time()
    if recipe != UNTRAINED:
        model = FastLanguageModel.get_peft_model(model, **LORA, random_state=seed)
        log = train_steps(recipe, seed, steps, model, tokenizer, prepared.train)
    how = {"temperature": 0, "max_new_tokens": BASELINE["max_completion_length"]}
    answers = sampling.sample(model, tokenizer, [row["prompt"] for row in test], **how)
    grades = grading.score_groups([rewards.correctness_reward, rewards.format_reward], test, answers)
    sources = [ROOT / "rewards.py", *sorted((ROOT / "scoring").glob("*.py"))]
    record = {
        **run_identity(recipe, seed, steps),
        "held_out": {"n": len(test), **{name: float(grades[column].mean()) for name, column in GRADES.items()}},
        "curves": {name: [row.get(logged) for row in log] for name, logged in CURVES.items()},
        "seconds": round(time.process_time() - began),  # of one core
        "adapter": next((str(p.dtype) for p in model.parameters() if p.requires_grad), None),  # see notebook 07
        "versions": package_versions(),
        "rewards_sha256": hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest(),
        "made": time.strftime("%Y-%m-%d"),
    }
    write_json(run_file(out, (recipe, seed)), record)
    return record


def train_steps(recipe: str, seed: int, steps: int, model: Any, tokenizer: Any, train: list[Row]) -> list[Row]:
    """Trains, and returns what TRL logged, a row a step."""
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from lab.train.callbacks import RewardWeights, TemperatureAnnealing

    chosen = recipe_settings(recipe)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=[rewards.REGISTRY[name] for name in chosen["weights"]],
            args=GRPOConfig(**grpo_settings(recipe, seed, steps, folder)),
            train_dataset=Dataset.from_list(train),
        )
        trainer.remove_callback(PrinterCallback)
        policy.adapter_in_32_bits(trainer.model)
        if chosen["stages"] or chosen["adaptive"]:
            RewardWeights(chosen["weights"], chosen["stages"], adaptive=chosen["adaptive"]).attach(trainer)
        if chosen["last_temperature"] is not None:
            TemperatureAnnealing(chosen["temperature"], chosen["last_temperature"]).attach(trainer)
        trainer.train()
        return [row for row in trainer.state.log_history if "reward" in row]


def run_identity(recipe: str, seed: int, steps: int) -> Row:
    """What makes a run this run and no other; as JSON gives it back."""
    settings = recipe_settings(recipe)
    return json.loads(json.dumps({"recipe": recipe, "seed": seed, "steps": steps, "settings": settings}))


def run_file(out: Path, run: Run) -> Path:
    return out / f"{run[0]}-seed{run[1]}.json"


def finished_run(out: Path, run: Run, steps: int) -> Row | None:
    """The record of a run if it is there, whole, and of these very settings."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        record = read_json(run_file(out, run), "07_training_recipes")
        return record if record | run_identity(*run, steps) == record else None


def train_grid(
    names: Iterable[str], seeds: Iterable[int], steps: int, out: Path, workers: int = 2
) -> tuple[list[Row], dict[str, str]]:
    """Trains every recipe with every seed, some processes at once, with a progress bar.

    A run that is finished already is kept as it is. One that fails or is killed is reported, and the others go on; the
    next call trains it again. Returns the records, and the failed runs with the end of their logs.

    Raises:
        ValueError: for a name that is no recipe.
    """
    from tqdm.auto import tqdm

    names, failed = list(dict.fromkeys(names)), {}
    if unknown := [name for name in names if name not in (*RECIPES, UNTRAINED)]:
        raise ValueError(f"There is no recipe {unknown[0]!r}; the recipes are: {', '.join(RECIPES)}.")
    runs = [(name, seed) for seed in seeds for name in names]  # a grid that is cut short has every recipe
    queue = [run for run in runs if not finished_run(out, run, steps)]
    active: dict[Run, subprocess.Popen] = {}
    with tqdm(total=len(runs), initial=len(runs) - len(queue), desc="recipes", unit="run") as bar:
        try:
            while queue or active:
                while queue and len(active) < workers:
                    active[run] = start_run(run := queue.pop(0), steps, out)
                time.sleep(0.1)
                for run in [run for run, process in active.items() if process.poll() is not None]:
                    status, name = active.pop(run).returncode, f"{run[0]}, seed {run[1]}"
                    if not finished_run(out, run, steps):
                        log = run_file(out, run).with_suffix(".log")
                        failed[name] = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
                        how = f"was killed by signal {-status}" if status < 0 else f"failed ({status})"
                        bar.write(f"{name} {how}; the end of {relative(log)}:\n{failed[name]}")
                    bar.update()
        finally:
            for process in active.values():
                process.kill()
                process.wait()
    return [record for run in runs if (record := finished_run(out, run, steps))], failed


def start_run(run: Run, steps: int, out: Path) -> subprocess.Popen:
    """A process that trains one run, with one thread and on the CPU: on a GPU Unsloth replaces TRL's trainer."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT), str(ROOT / "notebooks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(paths)}
    environment |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [*COMMAND, "--run", *map(str, (*run, steps, out))]
    with run_file(out, run).with_suffix(".log").open("wb") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        return subprocess.Popen(command, env=os.environ | environment, cwd=ROOT, **streams)


def recorded_run(run: Row) -> Row:
    """A run as the record keeps it: five digits of each figure."""
    kept = {name: run[name] for name in ("recipe", "seed", "steps", "seconds", "held_out", "curves")}
    return json.loads(json.dumps(kept), parse_float=lambda text: round(float(text), 5))


def write_record(path: Path, runs: Sequence[Row], untrained: Row | None = None) -> Path:
    """One line that says how the runs were made, then a line a run.

    Raises:
        ValueError: for runs that were not made alike: of another length, by other rewards or other packages.
    """
    for name in ("steps", "versions", "rewards_sha256"):
        if len({json.dumps(run[name], sort_keys=True) for run in runs}) != 1:
            raise ValueError(f"The runs differ in {name!r}: remove the older ones, and run the grid again.")
    header = {
        "about": "GRPO recipes on data/starter-policy, made by `make recipes`",
        "date": max(run["made"] for run in runs),
        "seeds": sorted({run["seed"] for run in runs}),
        "held_out": runs[0]["held_out"]["n"],
        "untrained": untrained and recorded_run(untrained)["held_out"],
        "baseline": BASELINE,
        "lora": LORA,
        "changes": {name: RECIPES[name] for name in dict.fromkeys(run["recipe"] for run in runs)},
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "threads_a_run": 1},
        **{name: runs[0][name] for name in ("steps", "adapter", "versions", "rewards_sha256")},
    }
    lines = [header, *(recorded_run(run) for run in runs)]
    return write_text(path, "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    found = info.exists() and re.search(r"^model name\s*: (.+)$", info.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def describe_record(header: Row, runs: Sequence[Row]) -> str:
    """In words: what the recorded grid is, and how it was made."""
    n_recipes, hours = len({run["recipe"] for run in runs}), sum(run["seconds"] for run in runs) / 3600
    packages = ", ".join(f"{name} {header['versions'][name]}" for name in ("torch", "transformers", "trl", "unsloth"))
    text = f"""A record, not made just now: {len(runs)} runs of {n_recipes} recipes, {header["date"]}, {hours:.1f} hours of one core in all.
{header["machine"]["cpu"]}, one thread a run; {packages}.
Each run: {header["steps"]} steps of {header["baseline"]["per_device_train_batch_size"]} completions on the starter policy, then greedy answers to {header["held_out"]} held-out problems."""
    if start := header.get("untrained"):
        right, strict = 100 * start["correct"], 100 * start["format"]
        text += f"\nBefore training the policy answers {right:.1f} % of these right, {strict:.1f} % in the format."
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains the recipes of notebook 07, and records the results.")
    parser.add_argument("--workers", type=int, default=2, help="processes at once, of one thread each")
    parser.add_argument(
        "--run", nargs=4, metavar=("RECIPE", "SEED", "STEPS", "FOLDER"), help="train just this one here"
    )
    given = parser.parse_args()
    if given.run:
        import torch

        torch.set_num_threads(1)
        recipe, seed, steps, out = given.run
        print(train_recipe(recipe, int(seed), int(steps), Path(out))["held_out"])
        return
    out = ROOT / "outputs/recipes"
    runs, failed = train_grid(RECIPES, SEEDS, recipes.STEPS, out, given.workers)
    start, failed_too = train_grid([UNTRAINED], [0], recipes.STEPS, out)
    if failed | failed_too:
        raise SystemExit(f"\n{len(failed | failed_too)} runs failed; the same command trains them again.")
    print(f"written: {relative(write_record(recipes.RECORD, runs, start[0]))}")
    table = recipes.compare_recipes(runs)
    print(recipes.recipe_table(table).to_string(), recipes.chance_sentence(table), sep="\n\n")


if __name__ == "__main__":
    main()
