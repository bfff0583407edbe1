"""Parquet files of completions that were written by different versions and settings, read as one table in DuckDB."""

import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lab.train.run_folder import step_of

FIXED = ("step", "group", "prompt", "completion", "advantage", "tokens", "prompt_tokens")
NUMBERS = {"bool", "int", "float"}
ABSENT = ("NULL", "null")  # SQL and kind of a column that a file does not have
ROWS_OF_A_FILE = 1 << 32  # a row's key is the number of its file times this, plus its number in the file


class ParquetFile(NamedTuple):
    path: Path
    columns: tuple[tuple[str, str], ...]  # name and kind
    layout: str  # equal for files that can be read together


def open_parquet(path: Path) -> ParquetFile | None:
    """The file's columns; None for one that cannot be read, or has no completions."""
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (OSError, pa.ArrowException):
        return None
    columns = tuple((field.name, kind_of(field.type)) for field in schema)
    layout = str(schema.remove_metadata())
    return ParquetFile(path, columns, layout) if rows and {"prompt", "completion"} <= set(schema.names) else None


def kind_of(type_: pa.DataType) -> str:
    """null, bool, int, float, nested, or text for all other."""
    types = pa.types
    tests = {"null": types.is_null, "bool": types.is_boolean, "int": types.is_integer, "float": types.is_floating}
    return next((name for name, test in tests.items() if test(type_)), "nested" if types.is_nested(type_) else "text")


def kinds_by_name(files: Iterable[ParquetFile]) -> dict[str, set[str]]:
    """Each column's kinds in the files, in the order in which the columns first appear."""
    kinds: dict[str, set[str]] = {}
    for layout in {file.layout: file for file in files}.values():
        for name, kind in layout.columns:
            kinds.setdefault(name, set()).add(kind)
    return kinds


def other_columns(files: Sequence[ParquetFile], scores: Sequence[str]) -> dict[str, str]:
    """What the files have beside the fixed columns, the scores and pandas' index: name -> SQL type."""
    # of several kinds of numbers a float; all else together is text
    types = {("bool",): "BOOLEAN", ("int",): "BIGINT", ("float",): "DOUBLE", ("float", "int"): "DOUBLE"}
    kinds = {name: tuple(sorted(kinds - {"null"})) for name, kinds in kinds_by_name(files).items()}
    names = [name for name in kinds if name not in (*FIXED, *scores) and not name.startswith("__index_level_")]
    return {name: types.get(kinds[name], "VARCHAR") for name in names}


def quoted(name: str) -> str:
    return '"' + name.replace("\0", "␀").replace('"', '""') + '"'


def without_space(column: str) -> str:
    """SQL for a text without white space: a chain of `replace` takes a quarter of a regular expression's time."""
    return functools.reduce(lambda sql, space: f"replace({sql}, chr({ord(space)}), '')", " \t\n\r\u00a0", column)


def text_of(column: str, kind: str) -> str:
    """SQL for a column as text; JSON for a conversation, a list, a dictionary."""
    return f"CAST({f'to_json({column})' if kind == 'nested' else column} AS VARCHAR)"


def number_of(column: str, kind: str, type_: str = "DOUBLE") -> str:
    """SQL for a column as numbers; null for NaN, infinity, and what is no number."""
    value = f"TRY_CAST({'NULL' if kind == 'nested' else column} AS {type_})"
    return f"CASE WHEN isfinite({value}) THEN {value} END" if type_ == "DOUBLE" else value


class CompletionFiles:
    """The files as one SQL relation: key, step, given (the group), prompt, completion, s0… (scores), advantage, tokens,
    prompt_tokens, x0… (others). Files of one layout are read together, and their columns get numbers for names, so that
    neither a column's name nor another file's type for it can do harm.
    """

    def __init__(self, files: Sequence[ParquetFile], scores: Sequence[str]) -> None:
        self.files, self.scores = list(files), list(scores)
        self.others = other_columns(files, scores)

    def by_layout(self, places: Iterable[int] | None = None) -> list[list[int]]:
        """The numbers of the files (None: all) that can be read together: lists take less memory than all at once."""
        layouts: dict[str, list[int]] = {}
        for place in range(len(self.files)) if places is None else places:
            layouts.setdefault(self.files[place].layout, []).append(place)
        return list(layouts.values())

    def relation(self, places: list[int], others: bool = True) -> str:
        """SQL over files of one layout, with the other columns or without."""
        files = [self.files[place] for place in places]
        columns: dict[str, tuple[str, str]] = {}
        for i, (name, kind) in enumerate(files[0].columns):
            columns.setdefault(name, (f"c{i}", kind))  # of two columns of a name the first
        step, group, prompt, completion, advantage, *tokens = (columns.get(name, ABSENT) for name in FIXED)
        parts = [
            f"{by_file(places)} * {ROWS_OF_A_FILE} + file_row_number AS key",
            f"coalesce({number_of(*step, 'BIGINT')}, {by_file([step_of(file.path) for file in files])}) AS step",
            f"{number_of(*group, 'BIGINT')} AS given",
            f"coalesce({text_of(*prompt)}, '') AS prompt",
            f"coalesce({text_of(*completion)}, '') AS completion",
            *(f"{number_of(*columns.get(name, ABSENT))} AS s{i}" for i, name in enumerate(self.scores)),
            f"{number_of(*advantage)} AS advantage",
            *(f"{number_of(*column, 'BIGINT')} AS {name}" for column, name in zip(tokens, FIXED[-2:])),
        ]
        for i, (name, type_) in enumerate(self.others.items() if others else ()):
            column, kind = columns.get(name, ABSENT)
            value = text_of(column, kind) if type_ == "VARCHAR" else f"TRY_CAST({column} AS {type_})"
            parts.append(f"{value} AS x{i}")
        return f"SELECT {', '.join(parts)} FROM {parquet_sql(files)}"


def by_file(values: Sequence[int]) -> str:
    """SQL for a number that each of the files read together has."""
    return f"({list(values)}::BIGINT[])[CAST(file_index AS BIGINT) + 1]"


def parquet_sql(files: Sequence[ParquetFile]) -> str:
    """SQL for files of one layout, with columns c0, c1… A folder's name is neither a pattern nor a column's value."""
    paths = "', '".join(re.sub(r"([\[*?])", r"[\1]", str(file.path)).replace("'", "''") for file in files)
    columns = ", ".join(f"c{i}" for i in range(len(files[0].columns)))
    return f"read_parquet(['{paths}'], hive_partitioning=false) AS t({columns})"
