"""A data set's columns as a Parquet table keeps them beside each completion."""

import json
from collections.abc import Sequence
from typing import Any

from lab.files import Row

MAX_CHARACTERS = 1000  # longer texts are cut


def data_columns(rows: Sequence[Row]) -> dict[str, list]:
    """The columns of some rows as `data/<name>`, without the prompt: numbers, or short texts (JSON for anything else)."""
    names = [name for name in rows[0] if name != "prompt"] if rows else []
    return {f"data/{name}": as_one_type([as_short_value(row.get(name)) for row in rows]) for name in names}


def as_short_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def as_one_type(values: Sequence) -> list:
    """Values as one Parquet column can hold them: all truths, all numbers, or all texts.

    >>> as_one_type([True, 2, None]), as_one_type([1, "x"])
    ([1.0, 2.0, None], ['1', 'x'])
    """
    values = [value.item() if getattr(value, "ndim", None) == 0 else value for value in values]  # of numpy or torch
    values = [as_short_value(value) if not isinstance(value, str) else value for value in values]
    kinds = {type(value) for value in values if value is not None}
    too_large = any(abs(value) >= 2**63 for value in values if type(value) is int)
    if kinds <= {bool} or kinds <= {str} or kinds <= {int, float} and not too_large:
        return values
    convert = float if kinds <= {bool, int, float} else str
    return [None if value is None else convert(value) for value in values]
