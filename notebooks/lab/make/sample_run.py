"""`make sample-run`: records `data/sample-run/`, so that notebook 04 has something to show to a reader who has not trained.

It is a run of notebook 03 on the starter policy in which something happens: 160 problems, so that each is seen every
20 steps; a reward of the reader's own that pays for padding and is edited around step 30; a stage that drops a reward
at step 50; a temperature that falls. What is kept is the run's folder without weights and checkpoints, its Parquet
files put into one.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import pandas as pd

from lab.files import ROOT, SAMPLE_RUN, WORD_PROBLEMS, fresh_folder, output_folder, relative, write_text
from lab.make import run
from lab.train import chosen_rewards
from lab.files import write_parquet
from lab.files import read_jsonl

PROBLEMS = 160  # training problems; 8 a step, so that each comes back every 20 steps
EDIT_AFTER = 29  # steps
WEIGHTS = {"correctness_reward": 1.0, "format_reward": 0.5, "soft_format_reward": 0.5, "worked_steps_reward": 0.25}
PARAMETERS = {
    "MAX_STEPS": 80,
    "FINAL_TEMPERATURE": 0.7,
    "WEIGHT_STAGES": [[50, {name: weight for name, weight in WEIGHTS.items() if name != "soft_format_reward"}]],
}


LINES = '''"""Rewards of your own, trained with by notebook 03. Written by the reward cell of notebook 02."""

from rewards import extract_reasoning, reward


@reward
def worked_steps_reward(completion: str, log_extra, log_metric) -> float:
    """How many lines the reasoning has, four are enough. Returns 0 to 1."""
    lines = [line for line in (extract_reasoning(completion) or "").splitlines() if line.strip()]
    log_extra("lines", len(lines))
    log_metric("lines_of_reasoning", len(lines))
    if len(lines) > 3:
        print(f"{len(lines)} lines of reasoning: {lines[0][:60]!r} …")
    return min(1.0, len(lines) / 4)
'''


EQUATIONS = '''"""Rewards of your own, trained with by notebook 03. Written by the reward cell of notebook 02."""

import re

from rewards import extract_reasoning, reward

EQUATION = re.compile(r"[^\\n=]{1,80}=\\s*-?\\d[\\d.,]*")


@reward
def worked_steps_reward(completion: str, log_extra, log_metric, n_steps: int = 2) -> float:
    """How many of the problem's steps are worked as equations in the reasoning. Returns 0 to 1."""
    equations = set(EQUATION.findall(extract_reasoning(completion) or ""))
    log_extra("equations", len(equations))
    log_metric("equations_in_reasoning", len(equations))
    return min(1.0, len(equations) / n_steps)
'''


def some_problems(path: Path) -> Path:
    """The first training problems of the bundled set, and all that are held out."""
    rows = read_jsonl(WORD_PROBLEMS)
    kept = [row for row in rows if row["split"] != "train"] + [row for row in rows if row["split"] == "train"][
        :PROBLEMS
    ]
    return write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept))


def edit_later(folder: Path) -> threading.Thread:
    """Saves the better reward when the run has come far enough, as a person would in notebook 02."""

    def wait_and_edit() -> None:
        while sum("reward" in row for row in read_jsonl(folder / "run/log.jsonl")) < EDIT_AFTER:
            time.sleep(0.2)
        write_text(folder / "my_rewards.py", EQUATIONS)

    thread = threading.Thread(target=wait_and_edit, daemon=True)
    thread.start()
    return thread


def pack(made: Path, place: Path) -> None:
    """Copies what a reader of a run needs."""
    completions = pd.concat(
        [pd.read_parquet(path) for path in sorted(made.glob("completions/*.parquet"))], ignore_index=True
    )
    (made / "packed").mkdir(exist_ok=True)
    fresh = fresh_folder(made / "packed" / place.name)
    write_parquet(completions, fresh / "completions" / f"completions_{completions['step'].max():05d}.parquet")
    for name in ("held_out", "rewards"):
        shutil.copytree(
            made / name, fresh / name, ignore=shutil.ignore_patterns("rewards.py")
        )  # that one is in the repository
    for name in filter(lambda name: (made / name).exists(), ("run.json", "log.jsonl", "events.jsonl", "printed.jsonl")):
        text = (made / name).read_text(encoding="utf-8").replace(f"{ROOT}/", "")
        write_text(fresh / name, text)
    record = json.loads((fresh / "run.json").read_text(encoding="utf-8"))
    record.pop("process")  # whose machine it was says nothing
    write_text(fresh / "run.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    shutil.rmtree(place, ignore_errors=True)
    shutil.move(fresh, place)


def main() -> None:
    folder = output_folder("outputs/sample-run")
    data = some_problems(folder / "problems.jsonl")
    run.execute_notebook("01_prepare_data", folder, {"DATASET": str(data)})
    write_text(folder / "my_rewards.py", LINES)
    chosen_rewards.save_choice(folder, WEIGHTS)
    fresh_folder(folder / "run")
    edit_later(folder)
    run.execute_notebook("03_train_grpo", folder, PARAMETERS)
    pack(folder / "run", SAMPLE_RUN)
    print(
        f"written: {relative(SAMPLE_RUN)}, {sum(p.stat().st_size for p in SAMPLE_RUN.rglob('*') if p.is_file()) / 1e3:.0f} kB"
    )


if __name__ == "__main__":
    main()
