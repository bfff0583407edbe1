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
| `start.json` | checksums of what learns and of the frozen base before the first step |
| `checkpoint-N/` | the last two; only one with `complete.json`, which is written last, is trusted |
| `discarded/` | rows and completions of steps that a resumed run took again |

A step's completions are written before its row, each file whole or not at all, so that a kill at any
moment leaves everything readable, and what has a row has its completions.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from lab.files import Row, fresh_folder, read_json, relative, unused, write_json, write_text

MADE_BY = "03_train_grpo"
COMPLETE = "complete.json"
QUIET_FOR = 1800  # seconds without a word after which a run on another machine counts as dead; a step is shorter
FREE_AT_RESUME = (
    "max_steps",
    "save_steps",
    "save_total_limit",
    "logging_steps",
    "output_dir",
    "report_to",
    "disable_tqdm",
)


def rows_of(path: Path) -> list[Row]:
    """The rows of a JSONL file; none for a missing file, and without a half-written line."""
    return [row for _, row in _lines(path)] if path.exists() else []


def _lines(path: Path) -> Iterator[tuple[str, Row]]:
    for line in path.read_text(encoding="utf-8", errors="replace").split(
        "\n"
    ):  # not splitlines, which cuts at U+2028 too
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # the line that a killed run was writing
        if isinstance(row, dict):
            yield line, row


def append(path: Path, row: Row) -> None:
    """One line more, in one write; a line that a kill had cut in two is ended first."""
    line = json.dumps(row, ensure_ascii=False, default=str) + "\n"
    with path.open("ab+") as sink:
        if sink.tell() and (sink.seek(-1, os.SEEK_END), sink.read(1))[1] != b"\n":
            line = "\n" + line
        sink.write(line.encode("utf-8", errors="replace"))


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """A Parquet file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")  # readers look for *.parquet
    try:
        frame.to_parquet(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint or a Parquet file; -1 for another name."""
    found = re.fullmatch(r"(?:checkpoint-|completions_|held_out_)(\d+)", path.stem)
    return int(found[1]) if found else -1


def seal(checkpoint: Path, state: dict[str, Any]) -> None:
    """Marks a checkpoint as whole, with the sizes of its files and the state of what steers the run."""
    sizes = {
        str(path.relative_to(checkpoint)): path.stat().st_size
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file()
    }
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
    whole = [path for path in folder.glob("checkpoint-*") if is_whole(path)]
    return max(whole, key=step_of, default=None)


def differences(before: Row, now: Row) -> list[str]:
    """What keeps an unfinished run from going on, as readable lines; compared as JSON."""
    now = json.loads(json.dumps(now, default=str))
    old, new = _compared(before), _compared(now)
    if str(old.get("lr_scheduler_type", "")).startswith("constant") and new.get("final_temperature") is None:
        for side in (old, new):
            side.pop("warmup_steps", None)  # follows from max_steps
    else:  # the whole curve of the learning rate, or of the temperature, follows from the number of steps
        old["max_steps"], new["max_steps"] = before["requested"].get("max_steps"), now["requested"].get("max_steps")
    return [
        f"{name}: {old.get(name)!r} before, {new.get(name)!r} now"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]


def _compared(about: Row) -> Row:
    """All that must be the same for steps of two attempts to belong to one curve."""
    settings = {name: value for name, value in about["requested"].items() if name not in FREE_AT_RESUME}
    weights = {entry["name"]: entry["weight"] for entry in about["rewards"]["rewards"]}
    return {
        **settings,
        **about["model"],
        "data": about["data"]["fingerprint"],
        "rewards": weights,
        **about.get("steering", {}),
    }


def is_unfinished(record: Row) -> bool:
    return record.get("status") in ("training", "stopped", "interrupted", "failed")


def open_folder(folder: Path, about: Row, resume: bool | str = True, say: Any = print) -> Path | None:
    """Makes the run's folder ready; returns the checkpoint to go on from, or None for a new run.

    An unfinished run with the same settings goes on (`max_steps` may grow); whatever else stands in
    the folder is kept beside it under its date. Raises RunningError where another process trains here,
    unless `resume` is "force".
    """
    if resume != "force":
        refuse_a_second_writer(folder)
    checkpoint = _to_resume(folder, about, say) if resume else None
    if checkpoint is None:
        fresh_folder(folder)
        (folder / "completions").mkdir()
    else:
        lost = rewind(folder, step_of(checkpoint))
        again = f"; {lost} steps after it are taken again (kept in {relative(folder / 'discarded')})" if lost else ""
        say(f"The run in {relative(folder)} goes on after step {step_of(checkpoint)}{again}.")
    return checkpoint


class RunningError(RuntimeError):
    """Another process is training in this folder."""


def refuse_a_second_writer(folder: Path) -> None:
    try:
        record = how_it_stands(folder)
    except (OSError, ValueError, KeyError):
        return  # no run, or a damaged record of one
    process = record.get("process", {})
    if record["status"] == "training" and process.get("pid") != os.getpid():
        raise RunningError(
            f"Process {process.get('pid')} on {process.get('host')} is training in {relative(folder)}. Wait for it, stop it, or set "
            'another OUTPUTS. If it is gone for good, RESUME = "force" goes on with its run.'
        )


def _to_resume(folder: Path, about: Row, say: Any) -> Path | None:
    """The checkpoint of an unfinished run of the same settings; says why there is none."""
    try:
        record = read_json(folder / "run.json", MADE_BY)
    except (OSError, ValueError):
        return None  # no run, or one whose record is damaged: it is kept beside the new one
    longer = about["requested"]["max_steps"] > record["requested"]["max_steps"]
    if not (is_unfinished(record) or (record.get("status") == "finished" and longer)):
        return None
    changed, checkpoint = differences(record, about), last_checkpoint(folder)
    if changed:
        say(
            "The unfinished run had other settings, so a new one begins and it is kept beside:\n  "
            + "\n  ".join(changed[:8])
        )
    elif checkpoint is None:
        say("The unfinished run had not reached its first checkpoint: a new one begins, and it is kept beside.")
    return None if changed else checkpoint


def rewind(folder: Path, step: int) -> int:
    """Moves everything after `step` to `discarded/`; returns how many steps that were."""
    later = {row["step"] for row in rows_of(folder / "log.jsonl") if row.get("step", 0) > step and "reward" in row}
    place = unused(folder / "discarded" / time.strftime("%Y%m%d-%H%M%S"))
    for path in [*folder.glob("completions/*"), *folder.glob("held_out/*")]:
        if path.suffix == ".tmp" or step_of(path) > step:
            (place / path.parent.name).mkdir(parents=True, exist_ok=True)
            path.rename(place / path.parent.name / path.name)
    for path in (folder / "log.jsonl", folder / "events.jsonl", folder / "printed.jsonl"):
        kept, gone = [], []
        for line, row in _lines(path) if path.exists() else ():
            (kept if row.get("step", 0) <= step else gone).append(line)
        if gone:
            write_text(place / path.name, "\n".join(gone) + "\n")
        if path.exists():
            write_text(path, "".join(line + "\n" for line in kept))
    for path in folder.glob("failed-*.json"):
        path.unlink()
    for path in folder.glob("checkpoint-*"):
        if not is_whole(path):
            shutil.rmtree(path)  # half-written: there is nothing in it to keep
    return len(later)


def how_it_stands(folder: Path) -> Row:
    """`run.json`, with the status `killed` where the training process is gone without a word."""
    record = read_json(folder / "run.json", MADE_BY)
    if record["status"] == "training" and not _alive(record.get("process", {}), folder):
        last_words = [rows_of(path) for path in folder.glob("failed-*.json")]  # of processes that do not write run.json
        reason = "the process ended without a word (killed, out of memory, or the machine stopped)"
        record |= {"status": "killed", "reason": next((row["reason"] for rows in last_words for row in rows), reason)}
    return record


def this_process() -> Row:
    """What tells this process from another one with the same number, on this machine or after its restart."""
    import psutil

    return {"pid": os.getpid(), "host": platform.node(), "began": psutil.Process().create_time()}


def _alive(process: Row, folder: Path) -> bool:
    import psutil

    if process.get("host") != platform.node():  # a notebook service gives a new machine: go by the last sign of life
        files = [path for path in (folder / "log.jsonl", folder / "run.json") if path.exists()]
        return time.time() - max(path.stat().st_mtime for path in files) < QUIET_FOR
    try:
        return abs(psutil.Process(int(process["pid"])).create_time() - process["began"]) < 2
    except (psutil.NoSuchProcess, KeyError, TypeError, ValueError):
        return False
    except psutil.AccessDenied:
        return True
