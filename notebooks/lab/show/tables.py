"""Tables for reading, the same in every notebook."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from lab.files import relative

NO_MATH = "mathjax_ignore tex2jax_ignore"  # classes: Jupyter and Colab would typeset what stands between two dollars


def readable(table: pd.DataFrame, index: bool = False) -> Styler:
    """The table for a notebook, its index as the first column or left out: left-aligned, with line breaks.

    Its text is shown as it is. A plain Styler passes HTML through, so that `<think>` would vanish.
    """
    if index:
        table = (table.rename_axis("") if table.index.names == [None] else table).reset_index()
    shown = table.map(plain_value).style.format(precision=3, escape="html", na_rep="–").hide()
    shown.format_index(escape="html", axis=1)
    shown.set_table_attributes(f'class="{NO_MATH}"')
    shown.set_table_styles([{"selector": "th, td", "props": "text-align: left; vertical-align: top"}])
    return shown.set_properties(**{"white-space": "pre-wrap"})


def plain_value(value: Any) -> Any:
    """A cell as a person writes it: a list without brackets, a mapping as lines, a path within the repository.

    >>> plain_value(("answer", "n_steps")), plain_value(()), plain_value({"row": 1, "why": "empty"})
    ('answer, n_steps', '–', 'row: 1\\nwhy: empty')
    """
    if isinstance(value, dict):
        return "\n".join(f"{name}: {one}" for name, one in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value)) or "–"
    return relative(value) if isinstance(value, Path) else value


def markdown_table(head: Collection, rows: Iterable[Iterable]) -> list[str]:
    """The lines of a Markdown table; nothing in a cell can end the cell or the line.

    >>> markdown_table(["a"], [["x|y"]])
    ['| a |', '| --- |', '| x\\\\|y |']
    """
    text = lambda cell: " ".join(str(cell).split()).replace("|", "\\|")
    return ["| " + " | ".join(map(text, row)) + " |" for row in (head, ["---"] * len(head), *rows)]
