"""Rows from a CSV, JSONL or Parquet file or from the Hub, as published; each that cannot be read is kept with its reason."""

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.files import ROOT, Row, jsonl_lines
from scoring.errors import InputError

Line = tuple[int, str, Row | Exception]  # its number, its text, and the row or why there is none


class DataError(InputError):
    """A data set cannot be used as asked; the message says what is there and what to do."""


@dataclass
class LoadedRows:
    """Rows as they came, each with its position as `_row`, and those that could not be read: row, reason, raw."""

    rows: list[Row]
    unreadable: list[Row] = field(default_factory=list)


def load_rows(source: str, config: str | None = None) -> LoadedRows:
    """Rows of a bundled set (its name in `data/`, such as `word_problems`), a CSV/JSONL/Parquet file, or a Hub data set.

    A Hub data set's splits become a column `split`.

    Raises:
        DataError: with the way out, where the source is not there or not of a known kind.
    """
    bundled = {path.stem: path for path in sorted((ROOT / "data").glob("*.jsonl"))}
    path = bundled.get(source, ROOT / Path(source).expanduser())
    reader = {".csv": read_csv, ".jsonl": jsonl_lines, ".parquet": read_parquet}.get(path.suffix.lower())
    if reader and not path.is_file():
        raise DataError(f"There is no file {path}: give a path that exists, or a Hub id such as openai/gsm8k.")
    if not reader and not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        sets = f"a set in data/ ({', '.join(bundled)})"
        raise DataError(f"{source!r} is neither {sets}, nor a .csv, .jsonl or .parquet file, nor a Hub id.")
    loaded = LoadedRows([])
    for number, text, row in reader(path) if reader else read_hub(source, config):
        if isinstance(row, Exception):
            loaded.unreadable.append({"row": number, "reason": str(row), "raw": text[:500]})
        else:
            loaded.rows.append({**row, "_row": number})
    if not loaded.rows:
        raise DataError(f"{source} has no readable row ({len(loaded.unreadable)} unreadable).")
    return loaded


def read_csv(path: Path) -> Iterator[Line]:
    """Every value as the string it is: types come from the declared schema, never from guessing."""
    csv.field_size_limit(2**30)
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as source:
            for number, row in enumerate(csv.DictReader(source)):
                whole = None not in row and None not in row.values()
                wrong = ValueError(f"{'more' if None in row else 'fewer'} values than columns")
                yield number, str(list(row.values())), row if whole else wrong
    except csv.Error as error:
        raise DataError(f"{path} is not a readable CSV file ({error}): save it again as CSV in UTF-8.") from error


def read_parquet(path: Path) -> list[Line]:
    import pyarrow.parquet

    try:
        return [(number, "", row) for number, row in enumerate(pyarrow.parquet.read_table(path).to_pylist())]
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is not a readable Parquet file ({error}): make it again.") from error


def read_hub(name: str, config: str | None) -> list[Line]:
    from datasets import load_dataset

    try:
        splits = load_dataset(name, config or None)
    except Exception as error:  # the Hub's client raises a dozen kinds; each one's text names the cause
        raise DataError(
            f"The Hub data set {name} (config {config or 'none'}) could not be loaded: {error}\n"
            "Check the name, the config and the network, or download it as JSONL and give its path."
        ) from error
    rows = [{**row, "split": split} for split, part in splits.items() for row in part]
    return [(number, "", row) for number, row in enumerate(rows)]


def to_bool(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.strip().casefold() not in words:
        raise ValueError("not true/false, yes/no or 1/0")
    return words[text.strip().casefold()]


def to_list(text: str) -> list:
    if not isinstance(value := json.loads(text), list):
        raise ValueError("not a JSON list")
    return value


CASTS: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float, "bool": to_bool, "list": to_list}


def cast_row(row: Row, schema: dict[str, str]) -> Row:
    """The row with the schema's columns as their declared types; values that are not strings stay.

    Raises:
        ValueError: naming the column, its value and the wanted type.
    """
    changed = dict(row)
    for column, kind in schema.items():
        value = row.get(column)
        if isinstance(value, str) or (kind == "str" and value is not None):
            try:
                changed[column] = CASTS[kind](value)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"column {column!r}: {value[:80]!r} is not of type {kind} ({error})") from None
    return changed
