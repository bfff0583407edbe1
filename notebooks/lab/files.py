"""Where things are, and how the notebooks hand them to each other under `outputs/`."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

Row = dict[str, Any]  # a row of a data set, a log or a table
ROOT = Path(__file__).resolve().parents[2]
STOP = "stop"  # a file of this name in a run's folder ends the training after the step
QUIET = "GRPO_QUIET"  # set in the environment where nobody watches: `make run`, tests
STARTER_POLICY = ROOT / "data" / "starter-policy"
WORD_PROBLEMS = ROOT / "data" / "word_problems.jsonl"
SAMPLE_RUN = ROOT / "data" / "sample-run"


class MissingInputError(FileNotFoundError):
    """A notebook's input is not there; the message says which notebook makes it."""


def output_folder(name: str | Path) -> Path:
    """The folder where a notebook writes; a relative name lies inside the repository."""
    folder = ROOT / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fresh_folder(folder: Path) -> Path:
    """An empty folder; what stood there before is kept beside it under its date, never mixed with the new."""
    if folder.exists() and any(folder.iterdir()):
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(folder.stat().st_mtime))
        folder.rename(unused(folder.with_name(f"{folder.name}-{stamp}")))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def unused(path: Path) -> Path:
    """The path itself, or with a number behind it where it is taken."""
    names = itertools.chain([path], (path.with_name(f"{path.name}-{i}") for i in itertools.count(2)))
    return next(name for name in names if not name.exists())


def need(path: Path, made_by: str) -> Path:
    """`path` where it exists; otherwise MissingInputError naming the notebook that makes it."""
    if not path.exists():
        raise MissingInputError(f"{path} is not there: run notebook {made_by} first, it makes it.")
    return path


def write_text(path: Path, text: str) -> Path:
    """Writes a whole file or nothing: a full disk or a kill leaves the old version in place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass") as sink:
            sink.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def write_json(path: Path, value: Any) -> Path:
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def read_json(path: Path, made_by: str) -> Any:
    """The content of a JSON file that notebook `made_by` writes."""
    try:
        return json.loads(need(path, made_by).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}): run notebook {made_by} again.") from error


def relative(path: Path | str) -> str:
    """A path as a reader of the repository would write it; a model's Hub name stays as it is."""
    path = Path(path)
    return str(path.relative_to(ROOT)) if path.is_absolute() and path.is_relative_to(ROOT) else str(path)
