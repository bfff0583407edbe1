"""Greedy answers to held-out prompts in the completions page: the same questions, asked again as training went on.

They are completions of groups of one, without an advantage; a column of the prompts says which are held out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from lab.files import Row
from lab.read.completions import LONGEST_TEXT
from lab.read.run_record import Record
from lab.train.run_folder import step_of

MOST = 4_000  # answers in the page; of more, the first prompts are kept, each with all of its answers
SET, TRAINING, HELD_OUT = "set", "training", "held out"


def answers(record: Record, most: int = MOST) -> pd.DataFrame:
    """The held-out answers of all evaluations, a row each, with `step`; without those of a run that kept no prompts."""
    tables = [table for path in record.held_out if (table := answers_in(path)) is not None]
    if not tables:
        return pd.DataFrame()
    table = pd.concat(tables, ignore_index=True).drop_duplicates(["step", "prompt"])
    kept = list(table["prompt"].drop_duplicates())[: max(1, most // len(tables))]
    return table[table["prompt"].isin(kept)].reset_index(drop=True)


def answers_in(path: Path) -> pd.DataFrame | None:
    """The answers of one evaluation; None where the file is damaged or has no prompts."""
    try:
        table = pd.read_parquet(path).assign(step=step_of(path))
    except (OSError, pa.ArrowException):
        return None
    return table if {"prompt", "completion"} <= set(table) else None


def held_out_prompts(found: Row) -> list[bool]:
    """Whether each prompt of a payload is a held-out one."""
    columns = (values for name, values in found["prompts"]["data"].items() if name.startswith(SET))
    mark = next((values for values in columns if values and set(values) <= {TRAINING, HELD_OUT}), None)
    return [False] * len(found["prompts"]["text"]) if mark is None else [value == HELD_OUT for value in mark]


def totals(record: Record, table: pd.DataFrame, names: Sequence[str]) -> list[float | None]:
    """The weighted sum of each answer's scores with the weights of its step; None where none was scored."""
    weights = record.weights().reindex(sorted({*record.log.index, *table["step"]})).ffill().bfill()
    found = []
    for step, scores in zip(table["step"], table.reindex(columns=names).astype(float).to_dict("records")):
        scored = {name: score for name, score in scores.items() if score == score}
        found.append(sum(score * usable(weights, step, name) for name, score in scored.items()) if scored else None)
    return found


def usable(weights: pd.DataFrame, step: int, name: str) -> float:
    value = float(weights.at[step, name]) if name in weights else 1.0
    return 0.0 if value != value else value


def verdicts(table: pd.DataFrame, rewards: Sequence[Row]) -> list[bool | None]:
    """Whether each answer is right: the deciding rewards' mean place in their ranges is at least half."""
    judges = [r for r in rewards if r["decides"] and r["name"] in table]
    places = [(table[r["name"]].astype(float) - r["low"]) / (r["high"] - r["low"]) for r in judges]
    if not places:
        return [None] * len(table)
    mean = pd.concat(places, axis=1).mean(axis=1)
    return [None if value != value else bool(value >= 0.5) for value in mean]


def added(found: Row, record: Record, span: Callable[[str], list[int] | None], plain: Callable[[Any], Any]) -> Row:
    """The page's payload with the held-out answers below the others, where there are any.

    Args:
        span: where the extracted answer of a text stands.
        plain: a value as the payload may hold it.
    """
    table = answers(record)
    if lost := len(record.held_out) - table.get("step", pd.Series(dtype=int)).nunique():
        note = (
            f"held-out answers of {lost} evaluation{'s' * (lost > 1)} left out: damaged, or kept without their prompts"
        )
        found = {**found, "run": {**found["run"], "notes": [*found["run"]["notes"], note]}}
    if table.empty:
        return found
    before, prompts = len(found["prompts"]["text"]), list(table["prompt"].drop_duplicates())
    names, first = [r["name"] for r in found["rewards"]], max(found["completions"]["group"], default=-1) + 1
    place = {prompt: i for i, prompt in enumerate(prompts)}
    whole = table["completion"].astype(str)
    table = table.assign(completion=whole.str[:LONGEST_TEXT])
    n, nth, total = len(table), [place[prompt] for prompt in table["prompt"]], totals(record, table, names)
    rows = {
        "prompt": [before + i for i in nth],
        "step": table["step"].tolist(),
        "group": [first + i for i in nth],
        "place": [1] * n,
        "cut": (whole.str.len() - LONGEST_TEXT).clip(lower=0).tolist(),
        "total": [plain(value) for value in total],
        "advantage": [None] * n,
        "tokens": [plain(value) for value in column(table, "tokens")],
        "text": table["completion"].tolist(),
        "answer": [span(text) for text in table["completion"]],
        "right": verdicts(table, found["rewards"]),
        "scores": {name: [plain(value) for value in column(table, name)] for name in names},
        "extras": {name: [None] * n for name in found["completions"]["extras"]},
        "suspect": [0] * n,
    }
    mark = SET if SET not in found["data_columns"] else f"{SET} of prompts"
    asked = table.assign(total=total).groupby("prompt", sort=False)
    data = {name: [plain(value) for value in column(asked.first(), f"data/{name}")] for name in found["data_columns"]}
    shown = {
        "text": prompts,
        "tokens": [None] * len(prompts),
        "data": {mark: [HELD_OUT] * len(prompts), **data},
        "seen": asked["step"].agg(sorted).tolist(),
        "n": asked.size().tolist(),
        "best": [plain(value) for value in asked["total"].max()],
        "mean": [plain(value) for value in asked["total"].mean()],
    }
    old = {**found["prompts"], "data": {mark: [TRAINING] * before, **found["prompts"]["data"]}}
    evaluations = table["step"].nunique()
    more = f"Beside them {n:,} greedy answers to {len(prompts):,} held-out prompts in {evaluations} evaluations."
    said = f"{found['selection']['said']} {more}"
    return {
        **found,
        "data_columns": [mark, *found["data_columns"]],
        "prompts": both(old, shown),
        "completions": both(found["completions"], rows),
        "selection": {**found["selection"], "said": said},
    }


def column(table: pd.DataFrame, name: str) -> list:
    return table[name].tolist() if name in table else [None] * len(table)


def both(one: Row, other: Row) -> Row:
    """Two tables that are kept column by column, one below the other."""
    return {
        name: both(values, other[name]) if isinstance(values, dict) else [*values, *other[name]]
        for name, values in one.items()
    }
