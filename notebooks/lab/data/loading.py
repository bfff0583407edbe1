"""Rows from a CSV, JSONL or Parquet file or from the Hub, as published; each that cannot be read is kept with its reason."""

import codecs
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

    A relative path is looked for in the repository and beside the notebook. A Hub data set's splits become a column
    `split`.

    Raises:
        DataError: with the way out, where the source is not there or not of a known kind.
    """
    bundled = {path.stem: path for path in sorted((ROOT / "data").glob("*.jsonl"))}
    places = dict.fromkeys(place / Path(source).expanduser() for place in (ROOT, Path.cwd(), ROOT / "notebooks"))
    path = bundled.get(source) or next((place for place in places if place.is_file()), ROOT / source)
    readers = {".csv": read_csv, ".tsv": read_csv, ".jsonl": jsonl_lines, ".parquet": read_parquet}
    reader = readers.get(path.suffix.lower())
    if reader and not path.is_file():
        folders = " or ".join(str(place.parent) for place in places)
        raise DataError(f"There is no file {path.name} in {folders}: give a path that exists, or a Hub id.")
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
        why = loaded.unreadable[0]["reason"] if loaded.unreadable else "the file is empty, or has a header only"
        raise DataError(f"{source} has no readable row ({len(loaded.unreadable)} unreadable): {why}.")
    return loaded


def read_csv(path: Path) -> Iterator[Line]:
    """Every value as the string it is: types come from the declared schema, never from guessing.

    Commas separate the values, or the one other separator in the first line. Excel's line `sep=;` names it.
    """
    csv.field_size_limit(2**30)
    with path.open("rb") as source:
        start = source.read(2)
    if start == b"PK":
        raise DataError(f"{path} is an Excel workbook or an archive, and no CSV: save it as CSV UTF-8.")
    encoding = "utf-16" if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    try:
        with path.open(newline="", encoding=encoding, errors="replace") as source:
            head = source.readline()
            named = re.fullmatch(r"sep=(.)\s*", head, re.I)
            found = set(re.sub(r'"[^"]*"', "", head)) & set(",;\t|")
            if not named:
                source.seek(0)
            reader = csv.reader(source, delimiter=named[1] if named else found.pop() if len(found) == 1 else ",")
            names = [name.strip() for name in next(filter(any, reader), [])]
            if twice := next((name for name in names if name and names.count(name) > 1), None):
                raise DataError(f"{path} has two columns named {twice!r}: rename one.")
            for number, values in enumerate(filter(any, reader)):
                row = {name: value for name, value in zip(names, values) if name}
                more = "more values than columns: a text that has the separator in it needs quotes"
                wrong = ValueError(more if len(values) > len(names) else "fewer values than columns")
                yield number, str(values), row if len(values) == len(names) else wrong
    except (csv.Error, UnicodeError) as error:
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
