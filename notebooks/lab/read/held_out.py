"""Greedy answers to held-out prompts: the same questions, asked again as training went on."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import pyarrow as pa

from lab.read.completions import ScoreColumn
from lab.read.run_record import RunRecord
from lab.train.run_folder import step_of
from scoring.right import right_or_wrong

MOST = 4_000  # answers that are read; of more, the first prompts are kept, each with all of its answers


def held_out_answers(record: RunRecord, scores: Sequence[ScoreColumn], most: int = MOST) -> pd.DataFrame:
    """The answers of all evaluations that kept their prompts, a row each.

    Columns: step, prompt, completion, tokens, data/…, each score by its name, total (with the weights of the step) and
    right (1, 0, or NaN where no reward decided).
    """
    tables = []
    for path in record.held_out:
        try:
            table = pd.read_parquet(path).assign(step=step_of(path))
        except (OSError, pa.ArrowException):
            continue
        if {"prompt", "completion"} <= set(table):
            tables.append(table)
    if not tables:
        return pd.DataFrame(columns=["step", "prompt"])
    table = pd.concat(tables, ignore_index=True).drop_duplicates(["step", "prompt"])
    kept = table["prompt"].drop_duplicates()[: max(1, most // len(tables))]
    table = table[table["prompt"].isin(kept)].reset_index(drop=True)
    given = table.reindex(columns=[score.name for score in scores]).astype(float)
    weights = record.weights_at(table["step"]).reindex(columns=given.columns, fill_value=1.0).fillna(0.0)
    total = (given.fillna(0.0) * weights.to_numpy()).sum(axis=1).where(given.notna().any(axis=1))
    deciding = {score.name: (score.low, score.high) for score in scores if score.decides and score.name in table}
    right = right_or_wrong(given, deciding) if deciding else float("nan")
    return table.assign(total=total, right=right, **given)
