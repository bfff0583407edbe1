"""A run's folder: what is in it, how a run ends, and how one that ended too early goes on.

| in `outputs/run/` | what |
|---|---|
| `run.json` | status and reason, settings as requested and as effective, versions, seeds, data, rewards, attempts |
| `log.jsonl` | a row a step as TRL logs it, and a row a held-out evaluation |
| `events.jsonl` | what changed or was noticed, and when: edited rewards, warnings, stops, resumptions |
| `completions/` | a Parquet file a step: every completion with its scores and advantage |
| `held_out/` | a Parquet file an evaluation |
| `printed.jsonl` | what rewards printed, a row a step |
| `rewards/` | the reward sources, version by version |
| `start.json` | checksums of the trained weights and of the frozen base before the first step |
| `checkpoint-N/` | the last two; only one with `complete.json`, which is written last, is trusted |
| `discarded/` | rows and completions of steps that a resumed run took again |

A step's completions are written before its row, and each file is written whole or not at all. So everything can be
read after a kill at any moment, and each row has its completions.
"""

import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from lab.files import Row, fresh_folder, read_json, read_jsonl, relative, unused, write_json, write_text
from lab.train.process import is_running
from scoring.errors import InputError, UserError

MADE_BY = "03_train_grpo"
COMPLETE = "complete.json"
QUIET_FOR = 1800  # seconds without a sign of life after which a run on another machine counts as dead
# settings that a resumed run may change
FREE_AT_RESUME = "max_steps save_steps save_total_limit logging_steps output_dir report_to disable_tqdm".split()


class RunningError(UserError, RuntimeError):
    """Another process is training in this folder."""


def open_folder(folder: Path, about: Row, resume: bool | str = True, say: Callable[[str], None] = print) -> Path | None:
    """Makes the run's folder ready; returns the checkpoint to go on from, or None for a new run.

    An unfinished run with the same settings goes on (`max_steps` may grow). Otherwise the old folder is kept beside the
    new one under its date. Raises RunningError where another process trains here, unless `resume` is "force", and
    InputError for a new run whose rewards were refused (`live_rewards.load_checked`).
    """
    try:
        record = current_record(folder)
    except (OSError, ValueError, KeyError):
        record = {}  # no run, or one whose record is damaged: it is kept beside the new one
    other = record.get("process", {})
    if resume != "force" and record.get("status") == "training" and other.get("pid") != os.getpid():
        who = f"Process {other.get('pid')} on {other.get('host')} is training in {relative(folder)}"
        way_out = 'stop it, or set another OUTPUTS. If it is gone, RESUME = "force" goes on with its run'
        raise RunningError(f"{who}. Wait for it, {way_out}.")
    unfinished = bool(resume and record)
    if unfinished and record["status"] == "finished":  # one that is over may grow
        unfinished = about["requested"]["max_steps"] > record["requested"]["max_steps"]
    changed = setting_differences(record, about) if unfinished else []
    checkpoint = last_checkpoint(folder) if unfinished and not changed else None
    if checkpoint is None and (refused := about.get("rewards", {}).get("refused")):
        raise InputError(refused)
    if changed:
        lines = "\n  ".join(changed[:8])
        say(f"The unfinished run had other settings, so a new one begins and it is kept beside:\n  {lines}")
    elif unfinished and checkpoint is None:
        say("The unfinished run had not reached its first checkpoint: a new one begins, and it is kept beside.")
    if checkpoint is None:
        fresh_folder(folder)
        (folder / "completions").mkdir()
    else:
        lost = rewind(folder, step_of(checkpoint))
        again = f"; {lost} steps after it are taken again (kept in {relative(folder / 'discarded')})" if lost else ""
        say(f"The run in {relative(folder)} goes on after step {step_of(checkpoint)}{again}.")
    return checkpoint


def current_record(folder: Path) -> Row:
    """`run.json`, with the status `killed` where the training process is gone and wrote no reason."""
    record = read_json(folder / "run.json", MADE_BY)
    process = record.get("process", {})
    if record["status"] != "training":
        return record
    if process.get("host") == platform.node():
        alive = is_running(process)
    else:  # a notebook service gives a new machine: judge by the last sign of life
        files = [path for path in (folder / "log.jsonl", folder / "run.json") if path.exists()]
        alive = time.time() - max(path.stat().st_mtime for path in files) < QUIET_FOR
    if not alive:  # only the first of several processes writes run.json; the others leave failed-N.json
        reasons = [row["reason"] for path in folder.glob("failed-*.json") for row in read_jsonl(path)]
        reasons += ["the process ended without a message (killed, out of memory, or the machine stopped)"]
        record |= {"status": "killed", "reason": reasons[0]}
    return record


def setting_differences(before: Row, now: Row) -> list[str]:
    """What keeps an unfinished run from going on, as readable lines: steps of two attempts belong to one curve."""
    compared = []
    for about in (before, json.loads(json.dumps(now, default=str))):
        settings = {name: value for name, value in about["requested"].items() if name not in FREE_AT_RESUME}
        weights = {entry["name"]: entry["weight"] for entry in about["rewards"]["rewards"]}
        inputs = {"data": about["data"]["fingerprint"], "rewards": weights, **about.get("steering", {})}
        compared.append({**settings, **about["model"], **inputs})
    old, new = compared
    if str(old.get("lr_scheduler_type", "")).startswith("constant") and new.get("final_temperature") is None:
        for side in compared:
            side.pop("warmup_steps", None)  # follows from max_steps
    else:  # the whole curve of the learning rate, or of the temperature, follows from the number of steps
        old["max_steps"], new["max_steps"] = (about["requested"].get("max_steps") for about in (before, now))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [f"{name}: {old.get(name)!r} before, {new.get(name)!r} now" for name in names]


def rewind(folder: Path, step: int) -> int:
    """Moves everything after `step` to `discarded/`; returns how many steps that were."""
    place = unused(folder / "discarded" / time.strftime("%Y%m%d-%H%M%S"))
    lost = {row["step"] for row in read_jsonl(folder / "log.jsonl") if "reward" in row and row["step"] > step}
    for path in [*folder.glob("completions/*"), *folder.glob("held_out/*")]:
        if path.suffix == ".tmp" or step_of(path) > step:
            (place / path.parent.name).mkdir(parents=True, exist_ok=True)
            path.rename(place / path.parent.name / path.name)
    for path in filter(Path.exists, (folder / name for name in ("log.jsonl", "events.jsonl", "printed.jsonl"))):
        kept, gone = [], []
        for row in read_jsonl(path):
            (gone if row.get("step", 0) > step else kept).append(json.dumps(row, ensure_ascii=False) + "\n")
        if gone:
            write_text(place / path.name, "".join(gone))
        write_text(path, "".join(kept))
    for path in folder.glob("failed-*.json"):
        path.unlink()
    for path in folder.glob("checkpoint-*"):
        if not is_whole(path):
            shutil.rmtree(path)  # half-written: there is nothing in it to keep
    return len(lost)


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint or a Parquet file; -1 for another name."""
    match = re.fullmatch(r"(?:checkpoint-|completions_|held_out_)(\d+)", path.stem)
    return int(match[1]) if match else -1


def seal(checkpoint: Path, state: Row) -> None:
    """Marks a checkpoint as whole, with the sizes of its files and the state of the callbacks."""
    files = filter(Path.is_file, sorted(checkpoint.rglob("*")))
    sizes = {str(path.relative_to(checkpoint)): path.stat().st_size for path in files}
    write_json(checkpoint / COMPLETE, {"sizes": sizes, "state": state})


def is_whole(checkpoint: Path) -> bool:
    """Whether all of the checkpoint is there, as its seal says."""
    try:
        sizes = json.loads((checkpoint / COMPLETE).read_text(encoding="utf-8"))["sizes"]
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError):
        return False


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint."""
    return max(filter(is_whole, folder.glob("checkpoint-*")), key=step_of, default=None)
