"""The completions page of an evaluation: the same held-out prompts, answered by several models.

A model stands where the page of a run has a training step. The payload has more: `models` (names, by step), `places`
(names of the answers: greedy, sampled 0, …), `change` (what became of the prompts) and `hints` (what columns mean).
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import rewards
from lab.files import Row
from lab.page import page_file
from lab.page.answer_marks import with_spans
from lab.page.page_file import json_column, json_value
from lab.read import completions, suspects
from lab.read.run_record import count_of
from lab.read.selection import Selection, take_groups

NEEDED = ("row", "decoding", "sample", "prompt", "completion", "correct")
MEASURES = ("format", "right_anyhow")  # shown beside the rewards, from 0 to 1
HANDLED = {*NEEDED, *MEASURES, *"question gold overlap tokens finished seconds correct_by extracted asked".split()}
HANDLED |= {*"model text answer right cut place prompt_row total".split()}  # made here
GREEDY = "greedy"
CHANGES = {  # what became of a problem: greedy with the first model and with the last -> name, words
    (1.0, 0.0): ("regression", "Greedy answer right with {0}, wrong with {1}"),
    (0.0, 1.0): ("gain", "Wrong with {0}, right with {1}"),
    (0.0, 0.0): ("still wrong", "Wrong with {0} and with {1}"),
    (1.0, 1.0): ("still right", "Right with {0} and with {1}"),
}
ALIKE = f"Half of a prompt's answers are {suspects.ALIKE}% alike, or {suspects.ALIKE_PROMPTS} prompts got one text."
LONG = f"Cut at the limit of tokens, or longer than {suspects.LONG_TIMES:g} times the model's median and {suspects.LONG_TOKENS} tokens."
NO_ANSWER = "Judged right without a text; or without an extracted answer, where most right ones have one."
RULES = {  # title and words
    "right_anyhow": ("Judged wrong, though format and number are right", "Its last number is the gold answer."),
    "right_without_answer": (suspects.RULE_TITLES["right_without_answer"], NO_ANSWER),
    "near_duplicates": (suspects.RULE_TITLES["near_duplicates"], ALIKE),
    "very_long": ("Cut at the limit, or very long", LONG),
}
Answers = Mapping[str, Path | pd.DataFrame]


def write_evaluation_page(answers: Answers, path: Path, **settings: Any) -> Path:
    """Writes `evaluation_payload` as a page, whole or not at all, and says where, how big, and what it lacks."""
    return page_file.write_page_file(evaluation_payload(answers, **settings), path)


def evaluation_payload(
    answers: Answers,
    *,
    name: str = "Evaluation",
    weights: Mapping[str, float] | None = None,
    limit: int = completions.MOST_COMPLETIONS,
    characters: int = completions.MOST_CHARACTERS,
) -> Row:
    """All that the page shows, as JSON values: whole prompts, regressions first, as many as the limits allow.

    Args:
        answers: by model, the first before and the last after training, a Parquet file or a table. A row an answer, with the
            columns of NEEDED: correct is 0, 1 or NaN. Known ones get their own place, all others stand beside the answers.
        weights: of the rewards in the total; None: no total is shown.
        limit, characters: of the answers in the page.
    """
    models, (table, notes) = list(map(str, answers)), read_answers(answers)
    table, places = with_places(table)
    problems = sorted_problems(table, len(models))
    table["prompt_row"] = table["row"].map({row: i for i, row in enumerate(problems["row"])})
    table = table.sort_values(["prompt_row", "model", "place"], kind="stable", ignore_index=True)
    table["total"] = weighted_totals(table, weights or {})
    table, kinds = table.drop(columns=["step", "group"], errors="ignore"), change_part(problems, models)
    by_prompt = table.assign(length=table["text"].str.len()).groupby("prompt_row")
    groups = pd.DataFrame({"n": by_prompt.size(), "characters": by_prompt["length"].sum()})
    groups["characters"] += by_prompt["prompt"].first().str.len()
    kept = take_groups(groups, [(groups.index, 1.0)], limit, characters)  # the first prompts that fit
    table = with_spans(table, rewards.FORMAT)
    all_suspects = suspect_answers(table, models)
    counts = Counter(rule for why in all_suspects.values() for rule in why)
    selection = selection_words(table, kept, models, kinds)
    is_kept, numbers = table["prompt_row"].isin(kept), {prompt: i for i, prompt in enumerate(kept)}
    suspicious = {i: all_suspects[old] for i, old in enumerate(table.index[is_kept]) if old in all_suspects}
    table, problems = table[is_kept].reset_index(drop=True), problems.loc[kept]
    table["prompt_row"] = table["prompt_row"].map(numbers)
    by_prompt = table.groupby("prompt_row")
    prompts = pd.DataFrame({"text": by_prompt["prompt"].first(), "seen": by_prompt["model"].unique().map(sorted)})
    prompts = prompts.assign(n=by_prompt.size(), tokens=None, best=None, mean=None)  # means over models say nothing
    rows = table.assign(prompt=table["prompt_row"], step=table["model"], group=table["prompt_row"], advantage=math.nan)
    deciders = table["correct_by"].dropna().unique() if "correct_by" in table else []
    deciders = list(dict.fromkeys(name for text in deciders for name in str(text).split(", ") if name))
    return page_file.build_payload(
        {"name": name, "model": " → ".join(models), "status": "", "steps": len(models), "notes": notes},
        rows,
        prompts,
        prompt_columns(by_prompt.first(), problems),
        score_columns(table, deciders),
        extra_columns(table),
        suspicious,
        {rule: (*words, counts[rule]) for rule, words in RULES.items()},
        rewards.FORMAT,
        models=models,
        places=places,
        change=kinds,
        hints=column_hints(models, deciders),
        selection=selection,
    )


def read_answers(answers: Answers) -> tuple[pd.DataFrame, list[str]]:
    """(all answers, with `model` as its number, `text`, `right` and `cut`; what was odd in them, in words)."""
    sources = enumerate(answers.values())
    tables = [(one if isinstance(one, pd.DataFrame) else pd.read_parquet(one)).assign(model=i) for i, one in sources]
    table = pd.concat(tables, ignore_index=True)
    partly = int((table.groupby("row")["model"].nunique() < len(answers)).sum())
    notes = [f"{count_of(partly, 'prompt')} without an answer of every model"] if partly else []
    numeric = ("tokens", "seconds", "correct", *MEASURES)
    numeric = [name for name in table if name in numeric or str(name).startswith("reward/")]
    table, most = table.astype(dict.fromkeys(numeric, float)), completions.LONGEST_TEXT
    # texts stay of dtype object: pandas' own text refuses half surrogates
    return table.assign(
        text=pd.Series([text[:most] for text in table["completion"]], table.index, dtype=object),
        cut=[max(0, len(text) - most) for text in table["completion"]],
        right=table["correct"],
        prompt=pd.Series([shortened(text, most) for text in table["prompt"]], table.index, dtype=object),
        tokens=table.get("tokens", math.nan),
    ), notes


def shortened(value: Any, most: int = completions.LONGEST_EXTRA) -> Any:
    """The value, or the beginning of a longer text and how much is left out."""
    if not isinstance(value, str) or len(value) <= most:
        return value
    return f"{value[:most]}\n[… {len(value) - most} characters left out]"


def page_values(values: pd.Series) -> list:
    return [shortened(json_value(value)) for value in values]


def with_places(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """(the table with `place`, names of the places): greedy first, then each sample, of all models the same one."""
    mine = list(zip(table["decoding"], table["sample"]))
    places = sorted(set(mine), key=lambda place: (place[0] != GREEDY, *place))
    names = [kind if kind == GREEDY else f"{kind} {sample}" for kind, sample in places]  # there is one greedy answer
    number = {place: i for i, place in enumerate(places, 1)}
    return table.assign(place=[number[place] for place in mine]), names


def sorted_problems(table: pd.DataFrame, models: int) -> pd.DataFrame:
    """A row a problem, regressions first: row, before, after (shares of sampled answers right), change (None: not known).

    Without greedy answers, and among equals, those come first that lost most of their right samples.
    """
    rows = pd.DataFrame({"row": sorted(table["row"].unique())})
    for when, model in (("before", 0), ("after", models - 1)):
        mine = table[table["model"] == model]
        greedy = mine["decoding"] == GREEDY
        rows[f"{when}_greedy"] = rows["row"].map(mine[greedy].drop_duplicates("row").set_index("row")["right"])
        rows[when] = rows["row"].map(mine[~greedy].groupby("row")["right"].mean()).astype(float)
    pairs = list(zip(rows["before_greedy"], rows["after_greedy"]))
    rows["change"] = pd.Series(
        [CHANGES[pair][0] if pair in CHANGES else None for pair in pairs], rows.index, dtype=object
    )
    rows["rank"] = [list(CHANGES).index(pair) if pair in CHANGES else len(CHANGES) for pair in pairs]
    rows["gained"] = rows["after"] - rows["before"]
    return rows.sort_values(["rank", "gained", "row"], ignore_index=True)


def weighted_totals(table: pd.DataFrame, weights: Mapping[str, float]) -> pd.Series:
    """The weighted sum of each answer's rewards, NaN without any."""
    used = {f"reward/{name}": float(weight) for name, weight in weights.items() if f"reward/{name}" in table}
    scores = table[list(used)]
    return (scores.fillna(0.0) * pd.Series(used, dtype=float)).sum(axis=1).where(scores.notna().any(axis=1))


def change_part(problems: pd.DataFrame, models: Sequence[str]) -> Row:
    """The column that says what became of a prompt, and its values in words, with how many there are."""
    n = Counter(problems["change"])
    kinds = [{"name": k, "said": said.format(models[0], models[-1]), "n": n[k]} for k, said in CHANGES.values() if n[k]]
    return {"column": "change", "kinds": kinds}


def selection_words(table: pd.DataFrame, kept: Sequence[int], models: Sequence[str], change: Row) -> Row:
    """What is in the page and what is not, in words."""
    page, prompts = table[table["prompt_row"].isin(kept)], table["prompt_row"].nunique()
    said = f"{count_of(len(table), 'answer')} of {count_of(len(models), 'model')} to {count_of(prompts, 'prompt')}"
    left_out = []
    if gone := len(table) - len(page):
        said = f"{len(page):,} of {said}, whole prompts only"
        lost = f"{count_of(prompts - len(kept), 'prompt')} with {count_of(gone, 'answer')}"
        left_out.append(f"Not in this page: {lost}; the tables of answers have all.")
    if kinds := ", ".join(f"{kind['name']} {kind['n']:,}" for kind in change["kinds"]):
        said += f"; by greedy answer: {kinds}"
    if cut := int((page["cut"] > 0).sum()):
        left_out.append(f"{count_of(cut, 'answer')} cut after {completions.LONGEST_TEXT:,} characters.")
    return {"kept": len(page), "of": len(table), "said": f"{said}.", "left_out": " ".join(left_out)}


def score_columns(table: pd.DataFrame, deciders: Sequence[str]) -> dict[completions.ScoreColumn, pd.Series]:
    """The measures that no reward has as well, and the rewards, with their ranges."""
    rewarded = {name.removeprefix("reward/"): table[name] for name in table if str(name).startswith("reward/")}
    measured = {name: table[name] for name in MEASURES if name in table and table[name].notna().any()}
    measured = {n: values for n, values in measured.items() if not any(values.equals(own) for own in rewarded.values())}
    found = {}
    for name, values in (measured | rewarded).items():
        measure = [(0.0, 1.0)] if name in MEASURES else ()
        ends = completions.score_range(name, *values.dropna().agg(["min", "max"]), measure)
        found[completions.ScoreColumn(name, *ends, name in deciders)] = values
    return found


def prompt_columns(first: pd.DataFrame, problems: pd.DataFrame) -> dict[str, list]:
    """Columns of the prompts by the name that the page shows, what became of them first."""
    before, after = json_column(problems["before"]), json_column(problems["after"])
    columns = {"change": problems["change"].tolist(), "sampled before": before, "sampled after": after}
    columns["row"] = page_values(problems["row"])
    if "overlap" in first:
        columns["overlap"] = [value or None for value in page_values(first["overlap"])]
    columns |= {name: page_values(first[name]) for name in ("gold", "question") if name in first}
    for source in (name for name in first if str(name).startswith("data/")):
        name, values = source.removeprefix("data/"), page_values(first[source])
        if values != columns.get("gold"):  # the gold answers' own column
            columns[f"{name} of the data" if name in columns else name] = values
    return columns


def extra_columns(table: pd.DataFrame) -> dict[str, list]:
    """Columns of the answers: how they were decoded, whether they came to an end, and whatever else the tables have."""
    others = [name for name in table if name not in HANDLED and not str(name).startswith(("data/", "reward/"))]
    if "finished" in table and table["finished"].eq(False).any():
        others.insert(0, "finished")
    if "seconds" in table and table["seconds"].notna().any():
        others.append("seconds")
    return {str(name): page_values(table[name]) for name in ("decoding", "sample", *others)}


def column_hints(models: Sequence[str], deciders: Sequence[str]) -> dict[str, str]:
    """What the page's own columns mean, by name."""
    share = "Share of the sampled answers of {} that are right"
    return {
        "change": f"Greedy answer of {models[0]} against that of {models[-1]}",
        "sampled before": share.format(models[0]),
        "sampled after": share.format(models[-1]),
        "row": "Number of the problem in the held-out data",
        "overlap": "What the problem shares with the training data",
        "finished": "false: cut at the limit of tokens",
        "right": f"Judged by {' and '.join(deciders) or 'the evaluation'}",
    }


def suspect_answers(table: pd.DataFrame, models: Sequence[str]) -> dict[int, dict[str, str]]:
    """The answers that a rule names: row of the table -> rule -> why."""
    rows = table.rename(columns={"model": "step", "prompt_row": "grp"})
    found = Selection(rows, table["text"].tolist(), {}, pd.DataFrame(), {}, {}, Counter())
    strict = (table.get("right_anyhow", 0) == 1) & (table.get("format", 0) == 1) & (table["right"] == 0)
    found.add("right_anyhow", ((i, "judged wrong; its last number is the gold answer") for i in np.flatnonzero(strict)))
    empty = (table["right"] == 1) & (table["text"].str.strip() == "")
    found.add("right_without_answer", ((i, suspects.REASONS["empty"]) for i in np.flatnonzero(empty)))
    answered = table["extracted"] if "extracted" in table else table["answer"]
    found.add("right_without_answer", suspects.right_without_answer(found, answered.notna()))
    found.add("near_duplicates", suspects.alike_in_group(found, math.inf))
    found.add("near_duplicates", same_for_many(table, models))
    found.add("very_long", very_long(table, models))
    return {int(i): why for i, why in found.suspects.items()}


def same_for_many(table: pd.DataFrame, models: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(row, why) of answers, not right ones, that one model gave to several prompts."""
    bare = pd.Series(["".join(text.lower().split()) for text in table["text"]], table.index, dtype=object)
    prompts = table.groupby([table["model"], bare.map(hash)])["prompt_row"].transform("nunique")
    often = (prompts >= suspects.ALIKE_PROMPTS) & (bare.str.len() >= suspects.ALIKE_LETTERS) & (table["right"] != 1)
    for i in np.flatnonzero(often):
        yield i, f"{prompts[i]} prompts got this text from {models[table['model'][i]]}, case and white space aside"


def very_long(table: pd.DataFrame, models: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(row, why) of answers that were cut at the limit, or exceed their model's median by far."""
    size = table["tokens"].fillna((table["text"].str.len() + table["cut"]) / suspects.CHARACTERS_A_TOKEN)
    median = size.groupby(table["model"]).transform("median")
    cut = table["finished"].eq(False) if "finished" in table else pd.Series(False, table.index)
    far = (size > suspects.LONG_TIMES * median) & (size >= suspects.LONG_TOKENS)
    for i in np.flatnonzero(cut | far):
        of = f"the median of {models[table['model'][i]]} is {median[i]:.5g}"
        yield i, f"{size[i]:.0f} tokens{': cut at the limit' if cut[i] else ''}; {of}"
