"""The completions page of a run: what its policy wrote, step by step, and the answers to held-out prompts on the way."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from lab.files import Row
from lab.page import page_file
from lab.page.answer_marks import asked_format, with_spans
from lab.page.page_file import HELD_OUT, SET, TRAINING, json_column, json_value
from lab.read.completions import LONGEST_TEXT, MOST_CHARACTERS, MOST_COMPLETIONS, Completions, ScoreColumn
from lab.read.run_record import RunRecord, count_of, step_number
from lab.read.suspects import RULE_TITLES, right_without_answer
from lab.train.run_folder import step_of
from scoring.right import right_or_wrong

MOST_HELD_OUT = 4_000  # answers that are read; of more, the first prompts are kept, each with all of its answers
EVENTS = {  # `events.jsonl` in words, by kind
    "adapter_check": "{moved} of {of} trained tensors moved; of {base_tensors} frozen ones {base_changed} changed",
    "health": "{verdict}, {rule}: {message}",
    "reward_changed": "{name} from now on, for {was}; mean on the last completions {mean_before} → {mean_after}",
    "reward_refused": "the edit of {reward} was refused: {error}",
    "resumed": "the run went on after step {after_step}",
    "failed": "the run failed: {reason}",
    "interrupted": "the run was interrupted: {reason}",
}


def write_run_page(record: RunRecord, path: Path, **limits: int) -> Path:
    """Writes `run_payload` of a run as its page, whole or not at all, and says where, how big, and what it lacks."""
    return page_file.write_page_file(run_payload(record, **limits), path)


def run_payload(record: RunRecord, *, limit: int = MOST_COMPLETIONS, characters: int = MOST_CHARACTERS) -> Row:
    """All that the page shows, as JSON values, with at most so many completions and characters of them.

    Raises ValueError where the run has no readable completions.
    """
    with Completions(record) as table:
        chosen, counts, words = table.select(limit, characters), table.suspect_counts(), table.rules()
    rows, prompts = chosen.rows.rename(columns={"grp": "group"}).assign(text=chosen.texts), chosen.prompts
    data = {name.removeprefix("data/"): [json_value(value) for value in values] for name, values in chosen.data.items()}
    summary, notes = chosen.summary, [*map(str, record.notes), *table.notes]
    format = asked_format(prompts["text"].tolist())
    answers = held_out_answers(record, table.rewards)
    evaluations = answers["step"].nunique()
    if lost := len(record.held_out) - evaluations:
        notes.append(f"held-out answers of {count_of(lost, 'evaluation')} left out: damaged, or without their prompts")
    if len(answers):
        rows, prompts, data = with_held_out(rows, prompts, data, answers, [one.name for one in table.rewards])
        asked = f"{len(prompts) - len(chosen.prompts):,} held-out prompts in {evaluations} evaluations"
        summary += f" Beside them {len(answers):,} greedy answers to {asked}."
    rows = with_spans(rows, format)
    chosen.add("right_without_answer", right_without_answer(chosen, rows["answer"].notna()[: len(chosen.rows)]))
    order = rows.sort_values(["step", "prompt", "group", "place"], kind="stable").index
    rows, new = rows.loc[order].reset_index(drop=True), {old: i for i, old in enumerate(order)}
    model, steps = record.about.get("model", {}), int(max(record.log.index[-1], chosen.rows["step"].max()))
    run = {"name": record.name, "model": str(model.get("shown") or model.get("name") or ""), "steps": steps}
    run |= {"status": str(record.about.get("status") or ""), "notes": notes}
    log = record.log.sort_index().select_dtypes("number").drop(columns="step").dropna(axis=1, how="all")
    return page_file.build_payload(
        run,
        rows,
        prompts,
        data,
        {one: rows[f"s{i}"] for i, one in enumerate(table.rewards)},
        {name: pd.Series(values, dtype=object).reindex(order) for name, values in chosen.extras.items()},
        {new[i]: why for i, why in chosen.suspects.items()},
        {rule: (title, words[rule], counts[rule] + chosen.found_here[rule]) for rule, title in RULE_TITLES.items()},
        format,
        selection={"kept": len(chosen.texts), "of": table.count, "said": summary, "left_out": chosen.left_out},
        metrics={
            "step": [int(step) for step in log.index],
            "columns": {str(name): json_column(log[name]) for name in log},
            "own": [name for name in record.own_metrics() if name in log],
        },
        printed=[{"step": r["step"], "text": r["text"][:LONGEST_TEXT]} for r in record.printed if "step" in r],
        events=[event for row in record.events if (event := event_line(row))],
    )


def held_out_answers(record: RunRecord, scores: Sequence[ScoreColumn], most: int = MOST_HELD_OUT) -> pd.DataFrame:
    """A row an answer of the evaluations that kept their prompts: step, prompt, …, scores, total, right (or NaN)."""
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


def with_held_out(
    rows: pd.DataFrame, prompts: pd.DataFrame, data: dict[str, list], answers: pd.DataFrame, scores: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, list]]:
    """The tables of the page with held-out answers below: completions of groups of one, without an advantage."""
    asked = answers.groupby("prompt", sort=False)
    nth, whole = asked.ngroup(), answers["completion"].astype(str)
    more_rows = {
        "prompt": len(prompts) + nth,
        "step": answers["step"],
        "group": rows["group"].max() + 1 + nth,
        "place": 1,
        "cut": (whole.str.len() - LONGEST_TEXT).clip(lower=0),
        "total": answers["total"],
        "tokens": answers.get("tokens"),
        "text": whole.str[:LONGEST_TEXT],
        "right": answers["right"],
        **{f"s{i}": answers[name] for i, name in enumerate(scores)},
    }
    totals = {"n": asked.size(), "best": asked["total"].max(), "mean": asked["total"].mean()}
    more_prompts = pd.DataFrame({"seen": asked["step"].agg(sorted), "tokens": None, **totals}).reset_index(names="text")
    known = asked.first().reindex(columns=[f"data/{name}" for name in data])
    mark = SET if SET not in data else f"{SET} of prompts"
    data = {name: [*data[name], *map(json_value, known[f"data/{name}"])] for name in data}
    data = {mark: [TRAINING] * len(prompts) + [HELD_OUT] * len(more_prompts), **data}
    rows = pd.concat([rows, pd.DataFrame(more_rows)], ignore_index=True)
    return rows, pd.concat([prompts, more_prompts], ignore_index=True), data


def event_line(row: Row) -> Row | None:
    """An event of `events.jsonl` in words; None for one without a step."""
    step, kind = step_number(row), str(row.get("kind", ""))
    if step is None:
        return None
    means = ("mean_before", "mean_after")
    row = {name: f"{value:.3f}" if name in means and value is not None else value for name, value in row.items()}
    others = ", ".join(f"{name}: {value}" for name, value in row.items() if name not in ("step", "kind"))
    known = defaultdict(lambda: "–", {name: value for name, value in row.items() if value is not None})
    words = EVENTS[kind].format_map(known) if kind in EVENTS else others
    return {"step": step, "kind": kind, "said": words[:LONGEST_TEXT]}
