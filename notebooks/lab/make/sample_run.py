"""Records `data/sample-run/` (`make sample-run`), which notebook 04 shows where nobody has trained yet.

It is a run of notebook 03 on the starter policy in which something happens. There are 160 problems, so that each is
seen every 20 steps. A reward of one's own pays for padding (the record's `rewards/v1`) and is edited around step 30
(`rewards/v2`). A stage drops a reward at step 50, and the temperature falls. What is kept is the run's folder without
weights and checkpoints.
"""

import shutil
import threading
import time
from pathlib import Path

import pandas as pd

from lab import files
from lab.files import ROOT, SAMPLE_RUN
from lab.make import run
from lab.train import chosen_rewards

PROBLEMS = 160  # training problems; 8 a step, so that each comes back every 20 steps
EDIT_AFTER = 29  # steps
WEIGHTS = {"correctness_reward": 1.0, "format_reward": 0.5, "soft_format_reward": 0.5, "worked_steps_reward": 0.25}
STAGE = {name: weight for name, weight in WEIGHTS.items() if name != "soft_format_reward"}
PARAMETERS = {"MAX_STEPS": 80, "FINAL_TEMPERATURE": 0.7, "WEIGHT_STAGES": [[50, STAGE]]}


def some_problems(path: Path) -> Path:
    """The first training problems of the bundled set, and all that are held out."""
    rows = files.read_jsonl(files.WORD_PROBLEMS)
    held_out, train = ([row for row in rows if (row["split"] == "train") is is_train] for is_train in (False, True))
    return files.write_jsonl(path, held_out + train[:PROBLEMS])


def edit_later(folder: Path, better: str) -> None:
    """Saves the better reward when the run has come far enough, as a person would in notebook 02."""

    def wait_and_edit() -> None:
        while sum("reward" in row for row in files.read_jsonl(folder / "run/log.jsonl")) < EDIT_AFTER:
            time.sleep(0.2)
        files.write_text(folder / "my_rewards.py", better)

    threading.Thread(target=wait_and_edit, daemon=True).start()


def pack(made: Path, place: Path) -> None:
    """Copies what a reader of a run needs; the steps' completions go into one file."""
    tables = [pd.read_parquet(path) for path in sorted(made.glob("completions/*.parquet"))]
    shutil.rmtree(place, ignore_errors=True)
    name = f"completions_{tables[-1]['step'].max():05d}.parquet"
    files.write_parquet(pd.concat(tables, ignore_index=True), place / "completions" / name)
    for name in ("held_out", "rewards"):  # the library's text is in the repository
        shutil.copytree(made / name, place / name, ignore=shutil.ignore_patterns("rewards.py"))
    for name in ("run.json", "log.jsonl", "events.jsonl", "printed.jsonl"):
        if (made / name).exists():
            files.write_text(place / name, (made / name).read_text(encoding="utf-8").replace(f"{ROOT}/", ""))
    record = files.read_json(place / "run.json", "make sample-run")
    record.pop("process")  # whose machine it was says nothing
    files.write_json(place / "run.json", record)


def main() -> None:
    folder = files.output_folder("outputs/sample-run")
    padded, better = ((SAMPLE_RUN / f"rewards/{v}/my_rewards.py").read_text(encoding="utf-8") for v in ("v1", "v2"))
    run.execute_notebook("01_prepare_data", folder, {"DATASET": str(some_problems(folder / "problems.jsonl"))})
    files.write_text(folder / "my_rewards.py", padded)
    chosen_rewards.save_choice(folder, WEIGHTS)
    files.fresh_folder(folder / "run")
    edit_later(folder, better)
    run.execute_notebook("03_train_grpo", folder, PARAMETERS)
    pack(folder / "run", SAMPLE_RUN)
    size = sum(path.stat().st_size for path in SAMPLE_RUN.rglob("*") if path.is_file())
    print(f"written: {files.relative(SAMPLE_RUN)}, {size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
