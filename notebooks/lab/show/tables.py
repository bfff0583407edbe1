"""Tables for reading: everything shown as it is, tags and line breaks included."""

from __future__ import annotations

from typing import Any

import pandas as pd


def readable(table: pd.DataFrame, index: bool = False) -> Any:
    """The table for a notebook, left-aligned, with its text escaped: a Styler alone would let `<think>` vanish."""
    styled = (table.reset_index() if index else table).style.format(precision=3, escape="html", na_rep="–").hide()
    styled.format_index(escape="html", axis=1)
    styled.set_table_styles([{"selector": "th, td", "props": "text-align: left; vertical-align: top"}])
    return styled.set_properties(**{"white-space": "pre-wrap"})
