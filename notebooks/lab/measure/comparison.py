"""Two or three models on the same held-out prompts: shares, paired differences, by column, and what changed."""

import math
import numbers
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from lab.data.overlap import Overlap
from lab.files import Row
from lab.measure import estimates
from lab.measure.evaluate import GREEDY, PLACE, SAMPLED, AnswerSettings
from lab.measure.verdicts import comparison_sentences, interval_text, is_share, signed_points, verdict_of
from scoring.errors import InputError

BASE, MERGED = "base", "merged"  # the models that the verdict compares
USUAL_COLUMNS = ("template", "level", "category", "subject")  # compared by where BY is None
QUARTILES_FROM = 9  # different numbers; fewer are lines of their own
MOST_VALUES, COMMONEST = 24, 20  # different texts that have lines of their own; of more, only the commonest
Tables = dict[str, pd.DataFrame]  # by model, as `grade_answers` makes them, of the same rows: "base", "merged" …
Measures = dict[str, dict[str, np.ndarray]]  # by decoding and measure: a value a problem


def compare_models(
    tables: Tables, settings: AnswerSettings, *, seed: int = 0, overlap: Overlap | None = None, by: Sequence[str] = ()
) -> Row:
    """The content of `evaluation.json`: each model, the paired differences, and what they show of merged against base.

    A problem of which a deciding reward cannot say whether an answer is right is left out, for all models, and counted.
    Greedy answers are compared by the values of the columns `by`, and by their `overlap` with the training questions.
    Raises InputError for other questions or another order, a missing model, or nothing that can be compared.
    """
    check_comparable(tables)
    tables = {name: table.sort_values(PLACE) for name, table in tables.items()}
    unknown = set().union(*(table.loc[table["correct"].isna(), "row"] for table in tables.values()))
    tables = {name: table[~table["row"].isin(unknown)] for name, table in tables.items()}
    first = tables[BASE][tables[BASE]["decoding"] == GREEDY]
    if first.empty:
        raise InputError("no answer could be scored: the deciding rewards say None to each; look at the gold answers")
    measures = {name: measures_by_problem(table) for name, table in tables.items()}
    rest = [name for name in tables if name not in (BASE, MERGED)]
    pairs = [(MERGED, BASE), *((name, BASE) for name in rest), *((MERGED, name) for name in rest)]
    record: Row = {"n": len(first), "left_out": len(unknown), "models": list(tables), "baseline": BASE, "other": MERGED}
    record["settings"] = asdict(settings) | {"stop": list(settings.stop)}
    record["correct_by"] = str(first["correct_by"].iloc[0])
    for kind in (GREEDY, SAMPLED):
        record[kind] = {m: model_record(measures[m], tables[m], kind, seed) for m in tables}
    record["difference"] = {}
    for model, against in pairs:
        name = model if against == BASE else f"{model} against {against}"
        record["difference"][name] = paired_differences(measures[against], measures[model], seed)
    change = record["difference"][MERGED]
    headline = {"correct": change[GREEDY]["correct"], "pass@1": change[SAMPLED].get("pass@1")}
    record["verdict"] = {name: verdict_of(one) for name, one in headline.items() if one}
    record["said"] = "\n".join(comparison_sentences(record))
    before, after = (measures[m][GREEDY]["correct"] for m in (BASE, MERGED))
    record["by"] = {column: compare_by_value(first[column], before, after, seed) for column in by}
    record["overlap"] = None
    if overlap is not None:
        kinds = [overlap.kinds[row] for row in first["row"]]
        record["by"]["overlap"] = compare_by_value(kinds, before, after, seed)
        record["overlap"] = {"counts": overlap.counts, "said": overlap.sentence}
        if same := overlap.counts.get("identical", 0):
            words = "of the problems are in the training set word for word: see the lines by overlap."
            record["said"] += f"\n{same} {words}"
    record["seconds"] = {f"answer_{m}": round(float(table["seconds"].sum()), 1) for m, table in tables.items()}
    return record


def check_comparable(tables: Tables) -> None:
    """Raises InputError unless these models have answers to the same questions, graded alike."""
    if missing := [name for name in (BASE, MERGED) if name not in tables]:
        there = ", ".join(tables) or "no model"
        raise InputError(f"there are no answers of {missing[0]!r}, only of {there}: let that model answer too")
    first = tables[BASE].sort_values(PLACE)
    if first.empty:
        raise InputError("there are no answers to compare: evaluate at least one held-out problem")
    for name, table in tables.items():
        table = table.sort_values(PLACE)
        for column in (*PLACE, "prompt", "question", "gold"):
            if list(table[column]) != list(first[column]):
                differs = f"{column} of {name!r} is not that of {BASE!r}"
                raise InputError(f"{differs}: let both answer again, the same questions in the same order")
        if set(table["correct_by"]) != set(first["correct_by"]):
            raise InputError(f"{name!r} and {BASE!r} were judged by different rewards: grade both with the same ones")


def measures_by_problem(table: pd.DataFrame) -> Measures:
    """Each measure's mean over the answers to a problem (NaN where a reward says None to all), pass@k and maj@k."""
    measures: Measures = {GREEDY: {}, SAMPLED: {}}
    names = ["format", "correct", "right_anyhow", "finished", "tokens"]
    names += [name for name in table if name.startswith("reward/")]
    for decoding, part in table.groupby("decoding"):
        groups, means = [group for _, group in part.groupby("row")], part.groupby("row")[names].mean()
        values = {name: means[name].to_numpy(dtype=float) for name in names}
        if decoding == SAMPLED:
            del values["correct"]  # it is pass@1
            n, right = len(groups[0]), [int(group["correct"].sum()) for group in groups]
            voted = [estimates.votes(list(group["extracted"]), list(group["correct"])) for group in groups]
            at_k = {f"pass@{k}": [estimates.pass_at_k(n, c, k) for c in right] for k in estimates.sample_sizes(n)}
            for k in estimates.sample_sizes(n)[2:]:  # a majority needs three or more
                at_k[f"maj@{k}"] = [estimates.majority_at_k(*one, k) for one in voted]
            values = {name: np.array(shares) for name, shares in at_k.items()} | values
        measures[decoding] = values
    return measures


def estimate(name: str, values: np.ndarray, seed: int, lowest: float = 0.0) -> dict[str, float] | None:
    """The mean over problems with its interval; problems of which a reward says nothing are left out."""
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    if is_share(name):
        return estimates.share_interval(values, lowest, 1, seed)
    found = estimates.bootstrap_mean(values, seed)
    return found if len(values) > 1 else found | {"low": math.nan, "high": math.nan}  # one value has no spread


def model_record(measures: Measures, table: pd.DataFrame, decoding: str, seed: int) -> Row:
    """One model's measures with their intervals, and how fast it was; empty where it was not asked so."""
    part = table[table["decoding"] == decoding]
    if part.empty:
        return {}
    found = {name: estimate(name, values, seed) for name, values in measures[decoding].items()}
    seconds, tokens = float(part["seconds"].sum()), int(part["tokens"].sum())
    speed = round(tokens / max(seconds, 1e-9), 1)
    return {**found, "completions": len(part), "seconds": round(seconds, 2), "tokens_per_second": speed}


def paired_differences(before: Measures, after: Measures, seed: int) -> dict[str, Row]:
    """By decoding and measure: the paired difference with its interval, and for shares a p-value (McNemar, sign flips)."""
    differences: dict[str, Row] = {GREEDY: {}, SAMPLED: {}}
    for decoding, record in differences.items():
        for name in before[decoding]:
            change = after[decoding][name] - before[decoding][name]
            one = estimate(name, change, seed, lowest=-1.0)
            if one is None:
                continue
            record[name] = {**one, "n": int((~np.isnan(change)).sum())}
            if decoding == GREEDY and is_share(name):
                gained, lost = int((change > 0).sum()), int((change < 0).sum())
                record[name] |= {"gained": gained, "lost": lost, "p": estimates.mcnemar(gained, lost)}
            elif is_share(name):
                record[name]["p"] = estimates.sign_flips(change[~np.isnan(change)], seed)
    return differences


def columns_to_compare(asked: Sequence[str] | None, columns: Sequence[str]) -> list[str]:
    """The columns to compare by, as the answers call them: those asked for, or the usual ones. Raises InputError.

    >>> columns_to_compare(None, ["answer", "template"]), columns_to_compare([], ["template"])
    (['data/template'], [])
    """
    missing = [name for name in asked or () if name not in columns]
    if missing:
        raise InputError(f"BY names {missing[0]!r}; the data set's columns are: {', '.join(columns)}.")
    return [f"data/{name}" for name in (USUAL_COLUMNS if asked is None else asked) if name in columns]


def compare_by_value(values: Sequence[Any], before: np.ndarray, after: np.ndarray, seed: int) -> list[Row]:
    """A line for each value of a column: its problems, both models' share right, the difference; the worst first."""
    lines, labels = [], np.array(value_labels(values), dtype=object)
    for label in dict.fromkeys(labels):
        old, new = before[labels == label], after[labels == label]
        line = {"value": label, "n": len(old), "base": float(old.mean()), "merged": float(new.mean())}
        line |= estimates.share_interval(new - old, -1, 1, seed)
        lines.append(line | {"gained": int((new > old).sum()), "lost": int((new < old).sum())})
    return sorted(lines, key=lambda line: (line["estimate"], -line["n"], line["value"]))


def value_labels(values: Sequence[Any]) -> list[str]:
    """A text for each value: many numbers as quartiles, seldom texts among many as "others".

    >>> value_labels([3, 1.5, None, True]), value_labels(range(12))[::3]
    (['3', '1.5', 'none', 'True'], ['0 to 2', '3 to 5', '6 to 8', '9 to 11'])
    """
    series = pd.Series(list(values), dtype=object)
    there = series[series.notna()]
    numeric = all(isinstance(value, numbers.Real) and not isinstance(value, bool) for value in there)
    if numeric and there.nunique() >= QUARTILES_FROM:
        figures = there.astype(float)
        part = np.searchsorted(np.quantile(figures, [0.25, 0.5, 0.75]), figures, side="left")
        lows, highs = (figures.groupby(part).transform(end) for end in ("min", "max"))
        series[there.index] = [label(a) + (f" to {label(b)}" if a < b else "") for a, b in zip(lows, highs)]
    texts = pd.Series(["none" if missing else label(value) for value, missing in zip(series, series.isna())])
    counts = texts.value_counts()
    kept = counts.index if len(counts) <= MOST_VALUES else counts.index[:COMMONEST]
    return texts.where(texts.isin(kept), "others").tolist()


def label(value: Any) -> str:
    """A value as a label: a whole number without a point, another one with six digits."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def by_value_table(record: Row, column: str) -> pd.DataFrame:
    """The lines by a column's values as a person reads them. Raises InputError for a column that was not asked for."""
    if column not in record["by"]:
        raise InputError(f"there are no lines by {column!r}; there are: {', '.join(record['by']) or 'none'}")
    table = pd.DataFrame(record["by"][column])
    table[["base", "merged"]] = table[["base", "merged"]].map(lambda share: f"{100 * share:.1f} %")
    table["difference"] = [f"{signed_points(one)} points" for one in table["estimate"]]
    table["95 % interval"] = [interval_text(one) for one in record["by"][column]]
    shown = table[["value", "n", "base", "merged", "difference", "95 % interval", "gained", "lost"]]
    return shown.rename(columns={"value": column.removeprefix("data/")})


def changed_answers(tables: Tables) -> Tables:
    """The problems whose greedy answer is right with one model only ("regressions", "gains"), or with neither.

    Each has question, gold, before, after (completions) and the shares of sampled answers that are right (NaN without
    samples). Those that the samples confirm most come first.
    """
    check_comparable(tables)
    sides = {"before": tables[BASE].set_index("row"), "after": tables[MERGED].set_index("row")}
    greedy = {side: one[one["decoding"] == GREEDY].sort_index() for side, one in sides.items()}
    sampled = [one[one["decoding"] == SAMPLED].groupby("row")["correct"].mean() for one in sides.values()]
    table = greedy["before"][["question", "gold"]].assign(**{side: one["completion"] for side, one in greedy.items()})
    table["sampled right before"], table["sampled right after"] = sampled
    now, change = table["sampled right after"], table["sampled right after"] - table["sampled right before"]
    before, after = (one["correct"] for one in greedy.values())
    kinds = {
        "regressions": change[(before == 1) & (after == 0)],
        "gains": -change[(before == 0) & (after == 1)],
        "unchanged failures": now[(before == 0) & (after == 0)],
    }
    places = {kind: order.sort_values(kind="stable").index for kind, order in kinds.items()}
    return {kind: table.loc[index].reset_index(drop=True) for kind, index in places.items()}
