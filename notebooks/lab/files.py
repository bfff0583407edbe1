"""Where files are, and how they are read and written: JSON, JSONL, Parquet, all or nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoring.errors import InputError, UserError

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]  # a row of a data set, a log or a table
ROOT = Path(__file__).resolve().parents[2]
STOP = "stop"  # a file of this name in a run's folder ends the training after the step
QUIET = "GRPO_QUIET"  # set in the environment where nobody watches: `make run`, tests
STARTER_POLICY = ROOT / "data" / "starter-policy"
WORD_PROBLEMS = ROOT / "data" / "word_problems.jsonl"
SAMPLE_RUN = ROOT / "data" / "sample-run"


class MissingInputError(UserError, FileNotFoundError):
    """A notebook's input is not there; the message says which notebook makes it."""


def output_folder(name: str | Path) -> Path:
    """The folder where a notebook writes; a relative name lies inside the repository."""
    folder = ROOT / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fresh_folder(folder: Path) -> Path:
    """An empty folder; what stood there before is renamed to its date."""
    if folder.exists() and any(folder.iterdir()):
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(folder.stat().st_mtime))
        folder.rename(unused(folder.with_name(f"{folder.name}-{stamp}")))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def unused(path: Path) -> Path:
    """The path itself, or with a number behind it where the path exists."""
    names = itertools.chain([path], (path.with_name(f"{path.name}-{i}") for i in itertools.count(2)))
    return next(name for name in names if not name.exists())


def need(path: Path, made_by: str) -> Path:
    """`path` where it exists; otherwise MissingInputError naming the notebook that makes it."""
    if not path.exists():
        raise MissingInputError(f"{path} is not there: run notebook {made_by} first, it makes it.")
    return path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to, which becomes `path` at the end; after an error or a kill the old version is still there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> Path:
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8", errors="surrogatepass")
    return path


def write_json(path: Path, value: Any) -> Path:
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def write_jsonl(path: Path, rows: Iterable[Row]) -> Path:
    return write_text(path, "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows))


def write_parquet(table: pd.DataFrame, path: Path) -> Path:
    with whole_file(path) as part:
        table.to_parquet(part)
    return path


def read_json(path: Path, made_by: str) -> Any:
    """The content of a JSON file that notebook `made_by` writes."""
    try:
        return json.loads(need(path, made_by).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is damaged ({error}): run notebook {made_by} again.") from error


def read_jsonl(path: Path) -> list[Row]:
    """The objects in a JSONL file; none where it is missing. Lines that are none, as a kill leaves one, are skipped."""
    return [row for _, _, row in jsonl_lines(path) if isinstance(row, dict)]


def jsonl_lines(path: Path) -> Iterator[tuple[int, str, Row | Exception]]:
    """The number of each line with a text (from 0), the text, and its object or why it is none."""
    if not path.exists():
        return
    with path.open(encoding="utf-8-sig", errors="replace") as source:
        for number, line in enumerate(source):  # str.splitlines would cut at U+2028 too
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                row = row if isinstance(row, dict) else ValueError(f"not JSON: a {type(row).__name__}, not an object")
            except (ValueError, RecursionError) as error:
                row = ValueError(f"not JSON: {error}")
            yield number, line.rstrip("\n"), row


def append_jsonl(path: Path, row: Row) -> None:
    """One line more, in one write; a line that a kill had cut in two is ended first."""
    line = json.dumps(row, ensure_ascii=False, default=str) + "\n"
    with path.open("ab+") as sink:
        if sink.tell() and (sink.seek(-1, os.SEEK_END), sink.read(1))[1] != b"\n":
            line = "\n" + line
        sink.write(line.encode("utf-8", errors="replace"))


def relative(path: Path | str) -> str:
    """A path as a reader of the repository would write it; a model's Hub name stays as it is."""
    path = Path(path)
    return str(path.relative_to(ROOT)) if path.is_absolute() and path.is_relative_to(ROOT) else str(path)
