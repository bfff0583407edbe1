"""Two or three models on the same held-out prompts: shares, differences, by column, and what changed."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from lab.measure.estimates import bootstrap_mean, majority_at_k, mcnemar, pass_at_k, share_interval, sign_flips, votes
from lab.measure.evaluate import GREEDY, SAMPLED, Settings
from lab.measure.grading import every_reward
from lab.measure.verdicts import SHARES, bounds, sentences, signed, span, verdicts

USUAL_COLUMNS = ("template", "level", "category", "subject")  # by which a person would compare unasked


def compare(
    tables: dict[str, pd.DataFrame],
    settings: Settings,
    *,
    seed: int = 0,
    baseline: str = "base",
    other: str = "merged",
    overlap: Any = None,
    by: Sequence[str] = (),
) -> dict[str, Any]:
    """The content of `evaluation.json`: each model, the paired differences, and what they show.

    A problem of which a deciding reward cannot say whether an answer is right is left out, for all models, and counted.

    Args:
        tables: by model, as `graded` makes them, of the same rows.
        other: the model that the verdict is on, against the baseline.
        overlap: what `lab.data.overlap.measure_overlap` found of the rows' questions; then there are lines by its kinds too.
        by: columns by whose values the greedy answers are compared, such as "data/template".

    Raises:
        ValueError: for other questions or another order, a missing model or column, or nothing that can be compared.
    """
    check_answers(tables, baseline, other)
    tables = {name: table.sort_values(["decoding", "row", "sample"]) for name, table in tables.items()}
    unknown = set().union(*(table.loc[table["correct"].isna(), "row"] for table in tables.values()))
    tables = {name: table[~table["row"].isin(unknown)] for name, table in tables.items()}
    n = tables[baseline]["row"].nunique()
    if not n:
        raise ValueError(
            "no answer could be scored: the deciding rewards say None to each, so look at the gold answers"
        )
    first = tables[baseline][tables[baseline]["decoding"] == GREEDY]
    found = {name: per_problem(table) for name, table in tables.items()}
    record = {
        "n": n,
        "left_out": len(unknown),
        "models": list(tables),
        "baseline": baseline,
        "other": other,
        "settings": {**asdict(settings), "stop": list(settings.stop)},
        "correct_by": str(first["correct_by"].iloc[0]),
        **{kind: {m: measured(found[m], tables[m], kind, seed) for m in tables} for kind in (GREEDY, SAMPLED)},
        "difference": {
            m if against == baseline else f"{m} against {against}": differences(found[against], found[m], seed)
            for m, against in pairs(tables, baseline, other)
        },
    }
    record["verdict"] = verdicts(record)
    record["said"] = " ".join(sentences(record))
    sides = [found[m][GREEDY]["correct"] for m in (baseline, other)]
    record["by"] = {column: lines_by(values, *sides, seed) for column, values in asked_for(first, by, overlap).items()}
    record["overlap"] = None if overlap is None else {"counts": overlap.counts, "said": overlap.said}
    if seen := 0 if overlap is None else overlap.counts.get("identical", 0):
        record["said"] += (
            f" {seen} of the problems stand in the training set word for word: look at the figures by overlap."
        )
    record["seconds"] = {f"answer_{m}": round(float(table["seconds"].sum()), 1) for m, table in tables.items()}
    return record


def check_answers(tables: dict[str, pd.DataFrame], baseline: str, other: str) -> None:
    """Raises ValueError unless these models can be compared."""
    missing = [name for name in (baseline, other) if name not in tables]
    if missing:
        there = ", ".join(tables) or "no model"
        raise ValueError(f"there are no answers of {missing[0]!r}, only of {there}: let that model answer too")
    first = tables[baseline].sort_values(["decoding", "row", "sample"])
    if first.empty:
        raise ValueError("there are no answers to compare: evaluate at least one held-out problem")
    for name, table in tables.items():
        table = table.sort_values(["decoding", "row", "sample"])
        for column in ("decoding", "row", "sample", "prompt", "question", "gold"):
            if list(table[column]) != list(first[column]):
                raise ValueError(
                    f"all models must answer the same questions in the same order, and {column} of {name!r} is not that of "
                    f"{baseline!r}: let both answer again, with the same rows and settings"
                )
        if set(table["correct_by"]) != set(first["correct_by"]):
            raise ValueError(
                f"{name!r} and {baseline!r} were judged by different rewards: grade all models with the same ones"
            )


def pairs(tables: dict[str, Any], baseline: str, other: str) -> list[tuple[str, str]]:
    """(model, the one that it is compared with): all with the baseline, and `other` with the rest."""
    rest = [name for name in tables if name not in (baseline, other)]
    return [(other, baseline), *((name, baseline) for name in rest), *((other, name) for name in rest)]


def asked_for(first: pd.DataFrame, by: Sequence[str], overlap: Any) -> dict[str, list]:
    """The columns to compare by, with a value a problem."""
    missing = [name for name in by if name not in first]
    if missing:
        there = [name for name in first if name.startswith("data/")]
        raise ValueError(f"the answers have no column {missing[0]!r}; there are: {', '.join(there) or 'none'}")
    kinds = {} if overlap is None else {"overlap": [overlap.kinds[row] for row in first["row"]]}
    return {**{name: list(first[name]) for name in by}, **kinds}


def columns_by(asked: Sequence[str] | None, columns: Sequence[str]) -> list[str]:
    """The data set's columns to compare by, as the answers call them: those asked for, or the usual ones that are there.

    >>> columns_by(None, ["answer", "template"]), columns_by([], ["template"])
    (['data/template'], [])

    Raises ValueError for a column that the data set does not have.
    """
    missing = [name for name in asked or () if name not in columns]
    if missing:
        raise ValueError(f"BY names {missing[0]!r}; the data set's columns are: {', '.join(columns)}.")
    return [f"data/{name}" for name in (USUAL_COLUMNS if asked is None else asked) if name in columns]


def sizes(n: int) -> list[int]:
    """How many samples pass@k and maj@k are told for: the powers of two, and all.

    >>> sizes(6), sizes(0)
    ([1, 2, 4, 6], [])
    """
    return [2**i for i in range(n.bit_length()) if 2**i < n] + [n] * bool(n)


def per_problem(table: pd.DataFrame) -> dict[str, dict[str, np.ndarray]]:
    """By decoding and measure: a value a problem, the mean of its answers; NaN where a reward says None to all."""
    found: dict[str, dict[str, np.ndarray]] = {GREEDY: {}, SAMPLED: {}}
    names = ["format", "correct", "right_anyhow", "finished", "tokens", *every_reward(table)]
    for decoding, part in table.groupby("decoding"):
        means = part.groupby("row")[names].mean()
        found[decoding] = {name: means[name].to_numpy(dtype=float) for name in names}
        if decoding == SAMPLED:
            found[decoding] = {
                **of_groups(part),
                **{name: found[decoding][name] for name in names if name != "correct"},
            }
    return found


def of_groups(part: pd.DataFrame) -> dict[str, np.ndarray]:
    """pass@k and maj@k of each problem, from its sampled answers."""
    groups = [group for _, group in part.groupby("row")]
    n = len(groups[0])
    right = [int(group["correct"].sum()) for group in groups]
    said = [votes(list(group["extracted"]), list(group["correct"])) for group in groups]
    passed = {f"pass@{k}": np.array([pass_at_k(n, c, k) for c in right]) for k in sizes(n)}
    agreed = {f"maj@{k}": np.array([majority_at_k(*one, k) for one in said]) for k in sizes(n) if k >= 3}
    return {**passed, **agreed}


def estimated(name: str, values: np.ndarray, seed: int, difference: bool = False) -> dict[str, float] | None:
    """The mean over problems with its interval; problems that a reward says nothing of are left out."""
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    ends = bounds(name, difference)
    if not ends and len(values) < 2:
        return {"estimate": float(values.mean()), "low": math.nan, "high": math.nan}  # one value has no spread
    return share_interval(values, *ends, seed) if ends else bootstrap_mean(values, seed)


def measured(found: dict[str, dict[str, np.ndarray]], table: pd.DataFrame, decoding: str, seed: int) -> dict[str, Any]:
    """One model's measures with their intervals, and how fast it was; empty where it was not asked so."""
    part = table[table["decoding"] == decoding]
    if part.empty:
        return {}
    seconds, tokens = float(part["seconds"].sum()), int(part["tokens"].sum())
    fast = {
        "completions": len(part),
        "seconds": round(seconds, 2),
        "tokens_per_second": round(tokens / max(seconds, 1e-9), 1),
    }
    return {**{name: estimated(name, values, seed) for name, values in found[decoding].items()}, **fast}


def differences(before: dict[str, dict], after: dict[str, dict], seed: int) -> dict[str, dict[str, Any]]:
    """By decoding and measure: the paired difference, and for greedy shares who was gained and lost, with McNemar's p."""
    result: dict[str, dict[str, Any]] = {GREEDY: {}, SAMPLED: {}}
    for decoding, names in result.items():
        for name in before[decoding]:
            change = after[decoding][name] - before[decoding][name]
            one = estimated(name, change, seed, difference=True)
            if one is None:
                continue
            names[name] = {**one, "n": int((~np.isnan(change)).sum())}
            if decoding == GREEDY and name.startswith(SHARES):
                gained, lost = int((change > 0).sum()), int((change < 0).sum())
                names[name] |= {"gained": gained, "lost": lost, "p": mcnemar(gained, lost)}
            elif name.startswith(SHARES):
                names[name]["p"] = sign_flips(change[~np.isnan(change)], seed)
    return result


QUARTILES_FROM = 9  # different numbers; fewer are lines of their own
MOST_VALUES, COMMONEST = 24, 20  # different texts that have lines of their own; of more, only the commonest


def lines_by(values: Sequence[Any], before: np.ndarray, after: np.ndarray, seed: int) -> list[dict[str, Any]]:
    """A line for each value of a column: its problems, both models' share right, the difference; the worst first."""
    found, labels = [], np.array(labelled(values), dtype=object)
    for label in dict.fromkeys(labels):
        one, two = before[labels == label], after[labels == label]
        change = two - one
        found.append(
            {
                "value": label,
                "n": len(one),
                "base": float(one.mean()),
                "merged": float(two.mean()),
                **share_interval(change, -1, 1, seed),
                "gained": int((change > 0).sum()),
                "lost": int((change < 0).sum()),
            }
        )
    return sorted(found, key=lambda line: (line["estimate"], -line["n"], line["value"]))


def labelled(values: Sequence[Any]) -> list[str]:
    """A text for each value: many numbers as quartiles, seldom texts among many as "others".

    >>> labelled([3, 1.5, None, True]), labelled(range(12))[::3]
    (['3', '1.5', 'none', 'True'], ['0 to 2', '3 to 5', '6 to 8', '9 to 11'])
    """
    series = pd.Series(list(values), dtype=object)
    there = series[series.notna()]
    if there.nunique() >= QUARTILES_FROM and all(
        isinstance(v, numbers.Real) and not isinstance(v, bool) for v in there
    ):
        series[there.index] = quartiles(there.astype(float))
    texts = ["none" if lacks else plain(value) for value, lacks in zip(series, series.isna())]
    counts = pd.Series(texts).value_counts()
    kept = set(counts.index if len(counts) <= MOST_VALUES else counts.index[:COMMONEST])
    return [text if text in kept else "others" for text in texts]


def quartiles(values: pd.Series) -> pd.Series:
    """For each number the smallest and largest of its quarter; fewer than four quarters where most are one number."""
    part = np.searchsorted(np.quantile(values, [0.25, 0.5, 0.75]), values, side="left")
    ends = values.groupby(part).agg(["min", "max"])
    names = {
        one: f"{plain(low)} to {plain(high)}" if low < high else plain(low) for one, low, high in ends.itertuples()
    }
    return pd.Series([names[one] for one in part], index=values.index, dtype=object)


def plain(value: Any) -> str:
    """A value as a label: a whole number without a point, another one with six digits."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def changes(tables: dict[str, pd.DataFrame], baseline: str = "base", other: str = "merged") -> dict[str, pd.DataFrame]:
    """The problems whose greedy answer is right with one model only, or with neither.

    Returns:
        "regressions" (right before, wrong now), "gains" and "unchanged failures", each with question, gold, before,
        after (completions) and the shares of sampled answers that are right (NaN without samples). Those that
        the samples confirm most come first.
    """
    check_answers(tables, baseline, other)
    sides = {side: tables[name] for side, name in (("before", baseline), ("after", other))}
    greedy = {side: table[table["decoding"] == GREEDY].set_index("row").sort_index() for side, table in sides.items()}
    shown = greedy["before"][["question", "gold"]].copy()
    for side, table in sides.items():
        shown[side] = greedy[side]["completion"]
    for side, table in sides.items():
        sampled = table[table["decoding"] == SAMPLED]
        shown[f"sampled right {side}"] = sampled.groupby("row")["correct"].mean().reindex(shown.index)
    change = shown["sampled right after"] - shown["sampled right before"]
    was, now = (greedy[side]["correct"] for side in sides)
    kinds = {"regressions": (was == 1) & (now == 0), "gains": (was == 0) & (now == 1)}
    kinds["unchanged failures"] = (was == 0) & (now == 0)
    order = {"regressions": change, "gains": -change, "unchanged failures": shown["sampled right after"]}
    places = {kind: order[kind][these].sort_values(kind="stable").index for kind, these in kinds.items()}
    return {kind: shown.loc[index].reset_index(drop=True) for kind, index in places.items()}


def by_table(evaluation: dict[str, Any], column: str) -> pd.DataFrame:
    """The lines by a column's values as a person reads them, the worst first.

    Raises ValueError for a column that was not asked for.
    """
    if column not in evaluation["by"]:
        raise ValueError(f"there are no lines by {column!r}; there are: {', '.join(evaluation['by']) or 'none'}")
    found = [
        {
            column.removeprefix("data/"): one["value"],
            "n": one["n"],
            **{name: f"{100 * one[name]:.1f} %" for name in ("base", "merged")},
            "difference": f"{signed(one['estimate'])} points",
            "95 % interval": span(one),
            "gained": one["gained"],
            "lost": one["lost"],
        }
        for one in evaluation["by"][column]
    ]
    return pd.DataFrame(found)
