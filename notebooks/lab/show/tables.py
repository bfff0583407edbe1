"""Tables for reading, the same in every notebook."""

from collections.abc import Collection, Iterable

import pandas as pd
from pandas.io.formats.style import Styler


def readable(table: pd.DataFrame, index: bool = False) -> Styler:
    """The table for a notebook, its index as the first column or left out: left-aligned, with line breaks.

    Its text is escaped: a plain Styler passes HTML through, so that `<think>` would vanish.
    """
    shown = (table.reset_index() if index else table).style.format(precision=3, escape="html", na_rep="–").hide()
    shown.format_index(escape="html", axis=1)
    shown.set_table_styles([{"selector": "th, td", "props": "text-align: left; vertical-align: top"}])
    return shown.set_properties(**{"white-space": "pre-wrap"})


def markdown_table(head: Collection, rows: Iterable[Iterable]) -> list[str]:
    """The lines of a Markdown table; nothing in a cell can end the cell or the line.

    >>> markdown_table(["a"], [["x|y"]])
    ['| a |', '| --- |', '| x\\\\|y |']
    """
    text = lambda cell: " ".join(str(cell).split()).replace("|", "\\|")
    return ["| " + " | ".join(map(text, row)) + " |" for row in (head, ["---"] * len(head), *rows)]
