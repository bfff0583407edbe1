"""Parquet files of completions that were written by different versions and settings, read as one table in DuckDB."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
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
    number: int  # of the file in its run
    path: Path
    columns: tuple[tuple[str, str], ...]  # name and kind
    layout: str  # equal for files that can be read together


def open_parquet(number: int, path: Path) -> ParquetFile | None:
    """The file's columns; None for one that cannot be read, or has no completions."""
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (OSError, pa.ArrowException):
        return None
    columns = tuple((field.name, kind_of(field.type)) for field in schema)
    if not rows or not {"prompt", "completion"} <= set(schema.names):
        return None
    return ParquetFile(number, path, columns, str(schema.remove_metadata()))


def kind_of(type_: pa.DataType) -> str:
    """null, bool, int, float, nested, or text for all other."""
    types = pa.types
    tests = {"null": types.is_null, "bool": types.is_boolean, "int": types.is_integer, "float": types.is_floating}
    return next((name for name, test in tests.items() if test(type_)), "nested" if types.is_nested(type_) else "text")


def kinds_by_name(files: Iterable[ParquetFile]) -> dict[str, set[str]]:
    """Each column's kinds in the files, in the order in which the columns first appear."""
    kinds: dict[str, set[str]] = {}
    for name, kind in dict.fromkeys(column for file in files for column in file.columns):
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


def relations(files: Iterable[ParquetFile], scores: Sequence[str], others: Mapping[str, str]) -> list[str]:
    """SQL over the files, a query for each layout: key, step, given (the group), prompt, completion, s0… (scores),
    advantage, tokens, prompt_tokens, x0… (the `other_columns`).

    Columns get numbers for names, so that neither a column's name nor another file's type for it can do harm.
    """
    layouts: dict[str, list[ParquetFile]] = {}
    for file in files:
        layouts.setdefault(file.layout, []).append(file)
    return [relation(together, scores, others) for together in layouts.values()]


def relation(files: Sequence[ParquetFile], scores: Sequence[str], others: Mapping[str, str]) -> str:
    """SQL over files of one layout."""
    columns: dict[str, tuple[str, str]] = {}
    for i, (name, kind) in enumerate(files[0].columns):
        columns.setdefault(name, (f"c{i}", kind))  # of two columns of a name the first
    step, group, prompt, completion, advantage, *tokens = (columns.get(name, ABSENT) for name in FIXED)
    parts = [
        f"{by_file([file.number for file in files])} * {ROWS_OF_A_FILE} + file_row_number AS key",
        f"coalesce({number_of(*step, 'BIGINT')}, {by_file([step_of(file.path) for file in files])}) AS step",
        f"{number_of(*group, 'BIGINT')} AS given",
        f"coalesce({text_of(*prompt)}, '') AS prompt",
        f"coalesce({text_of(*completion)}, '') AS completion",
        *(f"{number_of(*columns.get(name, ABSENT))} AS s{i}" for i, name in enumerate(scores)),
        f"{number_of(*advantage)} AS advantage",
        *(f"{number_of(*column, 'BIGINT')} AS {name}" for column, name in zip(tokens, FIXED[-2:])),
    ]
    for i, (name, type_) in enumerate(others.items()):
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
