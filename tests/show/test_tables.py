"""Tables for reading."""

import pandas as pd

from lab.show.tables import readable


def test_a_table_shows_cells_and_names_of_columns_as_they_are():
    shown = readable(pd.DataFrame({"<b>name": ["<script>x</script>"]})).to_html()
    assert "<script>" not in shown and "<b>" not in shown and "&lt;b&gt;name" in shown and "&lt;script&gt;x" in shown
