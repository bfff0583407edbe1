"""Tables for reading."""

import io
import re
from pathlib import Path

import pandas as pd

from lab.files import ROOT
from lab.show.tables import readable


def test_a_table_shows_cells_and_names_of_columns_as_they_are():
    shown = readable(pd.DataFrame({"<b>name": ["<script>x</script>"]})).to_html()
    assert "<script>" not in shown and "<b>" not in shown and "&lt;b&gt;name" in shown and "&lt;script&gt;x" in shown


def test_dollars_are_not_typeset_as_mathematics_in_jupyter_nor_in_colab():
    shown = readable(pd.DataFrame({"question": ["Pens cost $1.75 each, paid with a $50 note."]})).to_html()
    (classes,) = re.findall(r'<table id="\w+" class="([^"]*)"', shown)
    assert {"mathjax_ignore", "tex2jax_ignore"} <= set(classes.split())


def test_lists_mappings_and_paths_are_shown_as_a_person_writes_them():
    cells = [("answer", "n_steps"), (), {"row": 3, "why": "<b>"}, Path(ROOT / "outputs/run")]
    table = readable(pd.DataFrame({"value": pd.Series(cells, dtype=object)}))
    (shown,) = pd.read_html(io.StringIO(table.to_html()))
    assert shown["value"].tolist() == ["answer, n_steps", "–", "row: 3 why: <b>", "outputs/run"]


def test_an_index_without_a_name_gets_an_empty_head():
    table = pd.DataFrame({"n": [1]}, index=["test"])
    assert list(readable(table, index=True).columns) == ["", "n"]
    assert list(readable(table.rename_axis("split"), index=True).columns) == ["split", "n"]
