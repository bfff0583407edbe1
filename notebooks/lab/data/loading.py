"""Rows from a CSV, JSONL or Parquet file or from the Hub, as published; each that cannot be read is kept with its reason."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.files import ROOT, Row

FILES = (".csv", ".jsonl", ".parquet")


class DataError(ValueError):
    """A data set cannot be used as asked; the message says what is there and what to do."""


@dataclass
class Loaded:
    """Rows as found, and those that could not even be read: {"row": position, "reason", "raw"}."""

    rows: list[Row]
    unreadable: list[Row] = field(default_factory=list)


def load_rows(source: str, config: str | None = None) -> Loaded:
    """Rows of a bundled set (by its name in `data/`, such as `word_problems`), of a CSV/JSONL/Parquet file, or of a Hub data set.

    A Hub data set's splits become a column `split`. Raises DataError with the way out where the
    source is not there or not of a known kind.
    """
    bundled = ROOT / "data" / f"{source}.jsonl"
    path = bundled if re.fullmatch(r"\w+", source) and bundled.is_file() else ROOT / Path(source).expanduser()
    if path.suffix.lower() in FILES:
        if not path.is_file():
            raise DataError(f"There is no file {path}: give a path that exists, or a Hub id such as openai/gsm8k.")
        read = {".csv": read_csv, ".jsonl": read_jsonl, ".parquet": read_parquet}[path.suffix.lower()]
        loaded = read(path)
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        loaded = read_hub(source, config)
    else:
        raise DataError(
            f"{source!r} is neither a set in data/ ({', '.join(sorted(p.stem for p in (ROOT / 'data').glob('*.jsonl')))}), nor a file ending in {', '.join(FILES)}, nor a Hub id."
        )
    if not loaded.rows:
        raise DataError(f"{source} has no readable row ({len(loaded.unreadable)} unreadable).")
    return loaded


def read_csv(path: Path) -> Loaded:
    """Every value as the string it is: types come from the declared schema, never from guessing."""
    loaded = Loaded([])
    csv.field_size_limit(2**30)
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as source:
        for number, row in enumerate(csv_rows(source, path)):
            if None in row or None in row.values():
                reason = "more values than columns" if None in row else "fewer values than columns"
                loaded.unreadable.append({"row": number, "reason": reason, "raw": str(list(row.values()))[:500]})
            else:
                loaded.rows.append({**row, "_row": number})
    return loaded


def csv_rows(source: Iterable[str], path: Path) -> Iterable[Row]:
    try:
        yield from csv.DictReader(source)
    except csv.Error as error:
        raise DataError(f"{path} is not a readable CSV file ({error}): save it again as CSV in UTF-8.") from error


def read_jsonl(path: Path) -> Loaded:
    loaded = Loaded([])
    with path.open(encoding="utf-8-sig", errors="replace") as source:
        for number, line in enumerate(source):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"a {type(row).__name__}, not an object")
                loaded.rows.append({**row, "_row": number})
            except (ValueError, RecursionError) as error:
                loaded.unreadable.append({"row": number, "reason": f"not JSON: {error}", "raw": line[:500]})
    return loaded


def read_parquet(path: Path) -> Loaded:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise DataError(
            f"{path} is not a readable Parquet file ({error}): it may be half-written, make it again."
        ) from error
    return Loaded([{**row, "_row": number} for number, row in enumerate(rows)])


def read_hub(name: str, config: str | None) -> Loaded:
    from datasets import load_dataset

    try:
        splits = load_dataset(name, config or None)
    except Exception as error:  # the Hub's client raises a dozen kinds; each one's text names the cause
        raise DataError(
            f"The Hub data set {name} (config {config or 'none'}) could not be loaded: {error}\n"
            "Check the name, the config and the network, or download it as JSONL and give its path."
        ) from error
    rows = [{**row, "split": split} for split, part in splits.items() for row in part]
    return Loaded([{**row, "_row": number} for number, row in enumerate(rows)])


def to_bool(text: str) -> bool:
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.strip().casefold() not in known:
        raise ValueError("not true/false, yes/no or 1/0")
    return known[text.strip().casefold()]


def to_list(text: str) -> list:
    value = json.loads(text)
    if not isinstance(value, list):
        raise ValueError("not a JSON list")
    return value


CASTS: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float, "bool": to_bool, "list": to_list}


def cast(row: Row, schema: dict[str, str]) -> Row:
    """The row with the schema's columns as their declared types; values that are not strings stay.

    Raises ValueError naming the column, its value and the wanted type.
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
