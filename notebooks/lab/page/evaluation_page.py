"""The completions page of an evaluation: the same held-out prompts, answered by several models.

It is the page of `lab.page.run_page`, in which a model stands where a step stands in a training run. Its payload has, beside what
`browser.payload` has: `models` (names, by step), `places` (names of the answers: greedy, sampled 0, …), `change` (the prompts'
column that says what became of them, and its kinds) and `hints` (what columns mean). Prompts stand with regressions first.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

import rewards
from lab.files import Row, need, relative
from lab.page import answer_marks, page_file, run_page
from lab.read import completions, reward_names, suspects
from lab.read.completions import LONGEST_EXTRA, LONGEST_TEXT
from lab.read.selection import CHARACTERS_A_TOKEN, Selection, count

MADE_BY = "05_merge_and_export"
NEEDED = ("row", "decoding", "sample", "prompt", "completion", "correct")
MEASURES = ("format", "right_anyhow")  # shown beside the rewards, from 0 to 1
KNOWN = {
    *NEEDED,
    *MEASURES,
    "question",
    "gold",
    "overlap",
    "tokens",
    "finished",
    "seconds",
    "correct_by",
    "extracted",
    "asked",
}
GREEDY = "greedy"
# what became of a problem, in the order in which a person wants to read: greedy with the first model and with the last
CHANGES = {(1.0, 0.0): "regression", (0.0, 1.0): "gain", (0.0, 0.0): "still wrong", (1.0, 1.0): "still right"}
VERDICTS = {(0.0, 0.0): "wrong", (1.0, 1.0): "right"}  # with one model there is no change
TITLES = {
    "right_anyhow": "Judged wrong, though format and number are right",
    "right_without_answer": suspects.TITLES["right_without_answer"],
    "near_duplicates": suspects.TITLES["near_duplicates"],
    "very_long": "Cut at the limit, or very long",
}
Answers = Mapping[str, Path | str | pd.DataFrame]


def write_evaluation_page(
    answers: Answers,
    path: Path | str,
    *,
    name: str = "Evaluation",
    weights: Mapping[str, float] | None = None,
    **limits: Any,
) -> Path:
    """Writes the page of an evaluation, whole or not at all, and says where, how big, and what it lacks.

    Args:
        answers: by model, the first before and the last after training, a Parquet file or a table. A row an answer: row (number
            of the problem), decoding ("greedy" or another word), sample, prompt, completion, correct (0, 1 or NaN); and where
            they are there question, gold, overlap, tokens, finished, seconds, format, right_anyhow, correct_by, extracted,
            data/…, reward/…; whatever else there is stands beside the answers.
        path: of the HTML file.
        name: the page's title.
        weights: of the rewards in the total; None: no total is shown.
        limits: as for `payload`.

    Raises ValueError for no model, for a table that lacks a column, a damaged file, or a limit below 1; MissingInputError for
    a file that is not there.
    """
    return run_page.write(evaluation_payload(answers, name=name, weights=weights, **limits), Path(path))


def evaluation_payload(
    answers: Answers,
    *,
    name: str = "Evaluation",
    weights: Mapping[str, float] | None = None,
    limit: int = run_page.LIMIT,
    characters: int = run_page.CHARACTERS,
    format: rewards.Format | None = None,
) -> Row:
    """All that the page shows, as JSON values: whole prompts, regressions first, as many as the limits allow.

    Args:
        answers, name, weights: as for `write_page`.
        limit, characters: of the answers in the page.
        format: how completions mark reasoning and answer; None: as rewards.py says.
    """
    if limit < 1 or characters < 1:
        raise ValueError(f"limit={limit}, characters={characters}: a page needs numbers above 0.")
    models, (table, notes) = list(map(str, answers)), read(answers)
    table, places = with_places(table)
    problems = judged(table, len(models))
    table["nth"] = table["row"].map({row: i for i, row in enumerate(problems["row"])})
    table = table.sort_values(["nth", "model", "place"], kind="stable", ignore_index=True)
    table["total"], missing = totals(table, weights or {})
    whole = told(table, problems, models, places, format or rewards.FORMAT)
    whole |= {"run": about(name, models, [*notes, *missing]), "selection": {}}
    found = run_page.first_prompts(whole, limit, characters)
    return run_page.without_told({**found, "selection": selection(whole, found, limit, characters)})


def about(name: str, models: Sequence[str], notes: Sequence[str]) -> Row:
    made = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return {
        "name": name,
        "model": " → ".join(models),
        "status": "",
        "steps": len(models),
        "made": made,
        "notes": list(notes),
    }


def read(answers: Answers) -> tuple[pd.DataFrame, list[str]]:
    """(all answers, with `model` as its number, `right` and `cut`; what was odd in them, in words)."""
    if not answers or not all(map(str, answers)):
        raise ValueError("an evaluation needs at least one model, and a name for each")
    tables = [one_table(name, source).assign(model=i) for i, (name, source) in enumerate(answers.items())]
    table = pd.concat(tables, ignore_index=True)
    table = table.drop(columns=[name for name in table if str(name).startswith("__index_level_")])
    unique = table.drop_duplicates(["model", "row", "decoding", "sample"], ignore_index=True)
    notes = []
    if lost := len(table) - len(unique):
        notes.append(f"{count(lost, 'answer')} left out: a model has them twice; the first of each is shown")
    return prepared(unique), [*notes, *odd(unique, len(answers))]


def one_table(name: str, source: Path | str | pd.DataFrame) -> pd.DataFrame:
    """The answers of one model as they are stored."""
    if isinstance(source, pd.DataFrame):
        table = source
    else:
        try:
            table = pd.read_parquet(need(Path(source), MADE_BY))
        except pa.ArrowException as error:
            raise ValueError(f"{relative(source)} is damaged ({error}): run notebook {MADE_BY} again.") from error
    if missing := [column for column in NEEDED if column not in table]:
        raise ValueError(f"the answers of {name!r} lack {', '.join(missing)}: run notebook {MADE_BY} again.")
    return table


def prepared(table: pd.DataFrame) -> pd.DataFrame:
    """The table with texts that fit into a page, and numbers where numbers are meant."""
    texts, asked, decoding = (texts_of(table[name]) for name in ("completion", "prompt", "decoding"))
    numeric = [
        name for name in table if name in ("tokens", "seconds", "correct", *MEASURES) or str(name).startswith("reward/")
    ]
    table = table.assign(**{name: numbers(table[name]) for name in numeric})
    right = table["correct"].map(lambda value: math.nan if math.isnan(value) else float(value >= 0.5)).astype(float)
    return table.assign(
        completion=texts.str[:LONGEST_TEXT],
        cut=(texts.str.len() - LONGEST_TEXT).clip(lower=0),
        right=right,
        prompt=pd.Series([shortened(text, LONGEST_TEXT) for text in asked], table.index, dtype=object),
        decoding=decoding,
        tokens=table.get("tokens", pd.Series(math.nan, table.index)).astype(float),
    )


def texts_of(values: pd.Series) -> pd.Series:
    """The values as texts, "" for a missing one; of dtype object, for pandas' own text refuses halves of surrogate pairs."""
    return pd.Series(
        ["" if value is None or value != value else str(value) for value in values], values.index, dtype=object
    )


def numbers(values: pd.Series) -> pd.Series:
    return pd.to_numeric(values, errors="coerce").astype(float).replace([math.inf, -math.inf], math.nan)


def shortened(value: Any, most: int) -> Any:
    """The value, or the beginning of a longer text and how much is left out."""
    if not isinstance(value, str) or len(value) <= most:
        return value
    return f"{value[:most]}\n[… {len(value) - most} characters left out]"


def odd(table: pd.DataFrame, models: int) -> list[str]:
    """What a person should know of tables that do not fit together."""
    notes, by_row = [], table.groupby("row")
    if models > 1 and (partly := int((by_row["model"].nunique() < models).sum())):
        notes.append(f"{count(partly, 'prompt')} without an answer of every model")
    if other := int((by_row["prompt"].nunique() > 1).sum()):
        notes.append(f"{count(other, 'prompt')} not rendered alike for all models: the page shows the first model's")
    return notes


def with_places(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """(the table with `place`, names of the places): greedy first, then each sample, of all models the same one."""
    kinds = list(dict.fromkeys([GREEDY, *table["decoding"]]))
    keys = table[["decoding", "sample"]].drop_duplicates()
    keys = keys.assign(kind=keys["decoding"].map(kinds.index)).sort_values(["kind", "sample"], ignore_index=True)
    place = {key: i for i, key in enumerate(zip(keys["decoding"], keys["sample"]), 1)}
    alone = set(keys["decoding"].drop_duplicates(keep=False))  # greedy has one sample, whose number says nothing
    names = [kind if kind in alone and kind == GREEDY else f"{kind} {sample}" for kind, sample in place]
    return table.assign(place=[place[key] for key in zip(table["decoding"], table["sample"])]), names


def totals(table: pd.DataFrame, weights: Mapping[str, float]) -> tuple[pd.Series, list[str]]:
    """(weighted sum of each answer's rewards, NaN without any; weights without a reward, in words)."""
    there = {name: float(weight) for name, weight in weights.items() if f"reward/{name}" in table}
    scores = table[[f"reward/{name}" for name in there]]
    total = scores.fillna(0.0) @ np.array(list(there.values()), dtype=float)
    lost = [f"the weight of {name} is left out: no answer has a score of it" for name in weights if name not in there]
    return total.where(scores.notna().any(axis=1)).astype(float), lost


def judged(table: pd.DataFrame, models: int) -> pd.DataFrame:
    """A row a problem, regressions first: row, before, after (shares of sampled answers right), change (None: not known).

    Without greedy answers, and among equals, those come first that lost most of their right samples.
    """
    rows = pd.DataFrame({"row": sorted(table["row"].unique())})
    for when, model in (("before", 0), ("after", models - 1)):
        mine = table[table["model"] == model]
        greedy = mine["decoding"] == GREEDY
        rows[f"{when}_greedy"] = rows["row"].map(mine[greedy].drop_duplicates("row").set_index("row")["right"])
        rows[when] = rows["row"].map(mine[~greedy].groupby("row")["right"].mean()).astype(float)
    kinds = CHANGES if models > 1 else VERDICTS
    order = {kind: i for i, kind in enumerate(kinds.values())}
    changes = [kinds.get(pair) for pair in zip(rows["before_greedy"], rows["after_greedy"])]
    rows["change"] = pd.Series(changes, rows.index, dtype=object)
    rows["rank"] = [order.get(kind, len(order)) for kind in rows["change"]]
    rows["gained"] = rows["after"] - rows["before"] if models > 1 else rows["after"]
    return rows.sort_values(["rank", "gained", "row"], ignore_index=True)


def change_of(problems: pd.DataFrame, models: Sequence[str]) -> Row:
    """The column that says what became of a prompt, and its values in words, with how many there are."""
    first, last, n = models[0], models[-1], Counter(problems["change"])
    words = {
        "regression": f"Greedy answer right with {first}, wrong with {last}",
        "gain": f"Wrong with {first}, right with {last}",
        "still wrong": f"Wrong with {first} and with {last}",
        "still right": f"Right with {first} and with {last}",
        "wrong": "Greedy answer wrong",
        "right": "Greedy answer right",
    }
    kinds = (CHANGES if len(models) > 1 else VERDICTS).values()
    return {
        "column": "change" if len(models) > 1 else "greedy",
        "kinds": [{"name": kind, "said": words[kind], "n": n[kind]} for kind in kinds if n[kind]],
    }


def counted(kinds: Mapping[str, int]) -> str:
    """How many there are of each kind, those of which there are none left out.

    >>> counted({"still wrong": 4, "regression": 1, "gain": 10})
    '1 regression, 10 gains, 4 still wrong'
    """
    there = [kind for kind in (*CHANGES.values(), *VERDICTS.values()) if kinds.get(kind)]
    return ", ".join(
        count(kinds[kind], kind) if kind in ("regression", "gain") else f"{kinds[kind]:,} {kind}" for kind in there
    )


def selection(whole: Row, found: Row, limit: int, characters: int) -> Row:
    """What is in the page and what is not, in words."""
    answers, of = len(found["completions"]["text"]), len(whole["completions"]["text"])
    prompts, all_prompts = len(found["prompts"]["text"]), len(whole["prompts"]["text"])
    here, there = (Counter(one["prompts"]["data"][one["change"]["column"]]) for one in (found, whole))
    said, left = (
        f"{count(of, 'answer')} of {count(len(whole['models']), 'model')} to {count(all_prompts, 'prompt')}",
        "",
    )
    if answers < of:
        said = f"{answers:,} of {said}, whole prompts only, at most {limit:,} answers and {characters:,} characters"
        gone = counted({kind: there[kind] - here[kind] for kind in there if kind})
        left = f"Not in this page: {count(all_prompts - prompts, 'prompt')} with {count(of - answers, 'answer')}"
        left += f" ({gone}); the tables of answers have all." if gone else "; the tables of answers have all."
    if kinds := counted(here):
        said += f"; by greedy answer {kinds}"
    if cut := sum(value > 0 for value in found["completions"]["cut"]):
        left = f"{left} {count(cut, 'answer')} cut after {LONGEST_TEXT:,} characters.".strip()
    return {"kept": answers, "of": of, "said": f"{said}.", "left_out": left}


def told(
    table: pd.DataFrame, problems: pd.DataFrame, models: Sequence[str], places: Sequence[str], format: rewards.Format
) -> Row:
    """The payload of all answers, but for `run` and `selection`."""
    answers = [
        None if gone else answer_marks.answer_span(text, format)
        for text, gone in zip(table["completion"], table["cut"])
    ]
    suspects, scores = suspects_of(table, models, answers), scores_of(table)
    data, extras, judges = data_of(table, problems, models), extras_of(table), judges_of(table)
    counts = Counter(rule for why in suspects.suspects.values() for rule in why)
    return {
        "version": 1,
        "models": list(models),
        "places": list(places),
        "change": change_of(problems, models),
        "hints": hints(models, judges),
        "rewards": [range_of(name, table[source], judges) for name, source in scores.items()],
        "data_columns": list(data),
        "extra_columns": list(extras),
        "marks": answer_marks.format_marks(format),
        "prompts": prompts_of(table, data),
        "completions": completions_of(table, answers, scores, extras, suspects),
        "suspects": run_page.suspects_of(suspects, rule_words(), counts, TITLES),
        "metrics": {"step": [], "columns": {}, "own": []},
        "printed": [],
        "events": [],
    }


def scores_of(table: pd.DataFrame) -> dict[str, str]:
    """Column of each score, by the name that the page shows; a measure that is a reward as well stands there once."""
    sources = [name for name in table if str(name).startswith("reward/")]
    known = [name for name in MEASURES if name in table and table[name].notna().any()]
    found = {name: name for name in known if not any(table[name].equals(table[source]) for source in sources)}
    for source in sources:
        name = source.removeprefix("reward/")
        found[source if name in found else name] = source
    return found


def judges_of(table: pd.DataFrame) -> list[str]:
    """The rewards that decided what is right, where the tables name them."""
    names = table["correct_by"].dropna().unique() if "correct_by" in table else []
    return list(dict.fromkeys(name for text in names for name in str(text).split(", ") if name))


def range_of(name: str, values: pd.Series, judges: Sequence[str] = ()) -> Row:
    """A score with its range, as its reward declares it, widened to what was scored."""
    own = rewards.REGISTRY.get(reward_names.split_version(name)[0].split("[")[0])
    declared = (0.0, 1.0) if name in MEASURES else (own.low, own.high) if own else (math.nan, math.nan)
    known = values.dropna()
    ends = (known.min(), known.max()) if len(known) else (None, None)
    low, high = completions.widened(declared if all(map(math.isfinite, declared)) else (math.nan, math.nan), *ends)
    return {"name": name, "low": run_page.rounded(low), "high": run_page.rounded(high), "decides": name in judges}


def data_of(table: pd.DataFrame, problems: pd.DataFrame, models: Sequence[str]) -> dict[str, list]:
    """Columns of the prompts by the name that the page shows, what became of them first."""
    first = table.drop_duplicates("nth")
    found = {change_of(problems, models)["column"]: problems["change"].tolist()}
    if len(models) > 1:
        found |= {
            "sampled before": run_page.column(problems["before"]),
            "sampled after": run_page.column(problems["after"]),
        }
    else:
        found["sampled right"] = run_page.column(problems["after"])
    found["row"] = [plain(value) for value in problems["row"]]
    if "overlap" in first:
        found["overlap"] = [plain(value) or None for value in first["overlap"]]
    found |= {name: [plain(value) for value in first[name]] for name in ("gold", "question") if name in first}
    for source in (name for name in first if str(name).startswith("data/")):
        name, values = run_page.shown_name(source), [plain(value) for value in first[source]]
        if list(map(str, values)) != list(map(str, found.get("gold", []))):  # the gold answers' own column
            found[f"{name} of the data" if name in found else name] = values
    return found


def extras_of(table: pd.DataFrame) -> dict[str, list]:
    """Columns of the answers: how they were decoded, whether they came to an end, and whatever else the tables have."""
    made = {*KNOWN, "model", "right", "cut", "place", "nth", "total"}
    others = [name for name in table if name not in made and not str(name).startswith(("data/", "reward/"))]
    if "finished" in table and table["finished"].eq(False).any():
        others.insert(0, "finished")
    if "seconds" in table and table["seconds"].notna().any():
        others.append("seconds")
    return {str(name): [plain(value) for value in table[name]] for name in ("decoding", "sample", *others)}


def plain(value: Any) -> Any:
    """A value as the payload may hold it."""
    return shortened(page_file.json_value(value), LONGEST_EXTRA)


def hints(models: Sequence[str], judges: Sequence[str]) -> dict[str, str]:
    """What the page's own columns mean, by name."""
    share = "Share of the sampled answers of {} that are right"
    return {
        "change": f"Greedy answer of {models[0]} against that of {models[-1]}",
        "greedy": "The greedy answer",
        "sampled before": share.format(models[0]),
        "sampled after": share.format(models[-1]),
        "sampled right": share.format(models[0]),
        "row": "Number of the problem in the held-out data",
        "overlap": "What the problem shares with the training data",
        "gold": "The right answer",
        "decoding": "How the answer was decoded",
        "sample": "Number of the sample",
        "seconds": "Time that the answer took",
        "finished": "false: cut at the limit of tokens",
        "right": f"Judged by {' and '.join(judges) or 'the evaluation'}",
    }


def prompts_of(table: pd.DataFrame, data: dict[str, list]) -> Row:
    by_prompt = table.groupby("nth")
    nothing = [None] * len(by_prompt)
    return {
        "text": by_prompt["prompt"].first().tolist(),
        "tokens": nothing,
        "data": data,
        "seen": [sorted(set(models.tolist())) for _, models in by_prompt["model"]],
        "n": by_prompt.size().tolist(),
        "best": nothing,
        "mean": nothing,  # over several models they would say nothing
    }


def completions_of(
    table: pd.DataFrame,
    answers: Sequence[list[int] | None],
    scores: dict[str, str],
    extras: dict[str, list],
    suspects: Selection,
) -> Row:
    sets = {rules: i for i, rules in enumerate(run_page.suspect_sets(suspects))}
    return {
        "prompt": table["nth"].tolist(),
        "step": table["model"].tolist(),
        "group": table["nth"].tolist(),
        "place": table["place"].tolist(),
        "cut": table["cut"].tolist(),
        "total": run_page.column(table["total"]),
        "advantage": [None] * len(table),
        "tokens": run_page.column(table["tokens"]),
        "text": table["completion"].tolist(),
        "answer": list(answers),
        "right": [None if value != value else bool(value) for value in table["right"]],
        "scores": {name: run_page.column(table[source]) for name, source in scores.items()},
        "extras": extras,
        "suspect": [sets[tuple(suspects.suspects.get(i, ()))] for i in range(len(table))],
    }


def suspects_of(table: pd.DataFrame, models: Sequence[str], answers: Sequence[list[int] | None]) -> Selection:
    """The answers that a rule names, in `.suspects`: place in the table -> rule -> why."""
    rows = table.rename(columns={"model": "step", "nth": "grp"})
    found = Selection(rows, table["completion"].tolist(), {}, pd.DataFrame(), {}, {}, Counter(), "", "")
    found.add("right_anyhow", right_anyhow(table))
    found.add("right_without_answer", empty(table))
    answered = table["extracted"].notna() if "extracted" in table else [answer is not None for answer in answers]
    found.add("right_without_answer", suspects.without_answer(found, answered))
    found.add("near_duplicates", suspects.alike(found, math.inf))
    found.add("near_duplicates", same_for_many(table, models))
    found.add("very_long", long(table, models))
    return found._replace(suspects={i: why for i, why in found.suspects.items() if why})


def rule_words() -> dict[str, str]:
    """Each rule in words, with its numbers."""
    alike, share, group = suspects.ALIKE, suspects.ALIKE_SHARE, suspects.SMALLEST_GROUP
    prompts, letters, tokens = suspects.ALIKE_PROMPTS, suspects.ALIKE_LETTERS, suspects.LONG_TOKENS
    return {
        "right_anyhow": "In the asked-for format and with the gold answer as its last number, yet judged wrong: is it, or is the "
        "judge too strict?",
        "right_without_answer": "Judged right, and the text is empty; or no answer can be extracted, although most right ones "
        "have one.",
        "near_duplicates": f"{share:.0%} of what one model answered to one prompt ({group} answers or more) is {alike}% alike; "
        f"or the model gave {prompts} or more prompts the same text (from {letters} letters on), case and white space aside. Not "
        "right ones.",
        "very_long": f"Cut off at the limit of tokens; or longer than {suspects.LONG_TIMES:g} times the model's median and at "
        f"least {tokens} tokens ({CHARACTERS_A_TOKEN} characters for one where tokens were not recorded).",
    }


def right_anyhow(table: pd.DataFrame) -> Iterator[tuple[int, str]]:
    if {"right_anyhow", "format"} <= set(table):
        named = (table["right"] == 0) & (table["right_anyhow"] == 1) & (table["format"] == 1)
        yield from ((i, "judged wrong; its last number is the gold answer") for i in np.flatnonzero(named).tolist())


def empty(table: pd.DataFrame) -> Iterator[tuple[int, str]]:
    named = (table["right"] == 1) & (table["completion"].str.strip() == "")
    yield from ((i, suspects.WHY["empty"](0, 0, 0)) for i in np.flatnonzero(named).tolist())


def same_for_many(table: pd.DataFrame, models: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(place, why) of answers, not right ones, that one model gave to several prompts."""
    keys = [(model, "".join(text.lower().split())) for model, text in zip(table["model"], table["completion"])]
    prompts: dict[tuple[int, str], set[int]] = {}
    for key, nth in zip(keys, table["nth"]):
        prompts.setdefault(key, set()).add(nth)
    for i, ((model, bare), right) in enumerate(zip(keys, table["right"])):
        n = len(prompts[model, bare])
        if n >= suspects.ALIKE_PROMPTS and len(bare) >= suspects.ALIKE_LETTERS and right != 1:
            yield i, f"{n} prompts got this text from {models[model]}, case and white space aside"


def long(table: pd.DataFrame, models: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(place, why) of answers that were cut at the limit, or exceed their model's median by far."""
    letters = table["completion"].str.len() + table["cut"]
    size = table["tokens"].fillna(letters / CHARACTERS_A_TOKEN)
    median = size.groupby(table["model"]).transform("median")
    cut = table["finished"].eq(False) if "finished" in table else pd.Series(False, table.index)
    far = (size > suspects.LONG_TIMES * median) & (size >= suspects.LONG_TOKENS)
    for i in np.flatnonzero(cut | far).tolist():
        of = f"the median of {models[table['model'].iat[i]]} is {suspects.number(median.iat[i])}"
        yield i, f"{size.iat[i]:.0f} tokens{': cut at the limit' if cut.iat[i] else ''}; {of}"
