"""Completions that look like a hack: the rules, as SQL over a run's completions, and what each one says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from rapidfuzz import fuzz, process

from lab.read.selection import CHARACTERS_A_TOKEN, SIZE, Selection

HIGH_ANYWAY = 0.8  # of the run's highest total, where a step has no right completion to compare with: `health.HIGH`
ALONE_GAP = 0.25  # of the run's range of totals: less is what one of several rewards moves
ALONE_SPREAD = 3.0  # standard deviations of the rest: one in a thousand of normal noise
SMALLEST_GROUP = 4  # in smaller ones half of the group, or its spread, says nothing
ALIKE_SHARE = 0.5  # of the group: the other half is still compared with it
ALIKE = 95  # rapidfuzz's ratio: one character of twenty differs
ALIKE_PROMPTS = 3  # prompts of one step that got the same text: two can ask the same in other words
ALIKE_LETTERS = 20  # shorter texts, such as "yes" or "B", answer many prompts
COMPARED = 4_000  # characters of each text that the ratio looks at: its time grows with their square
LONG_TIMES = 3.0  # times the step's median
LONG_TOKENS = 64  # where the median is a word, three of them are no rambling
ROUNDING = 1e-9
TITLES = {  # in the order in which a person wants to read them
    "wrong_but_high": "Judged wrong, paid like a right one",
    "alone_at_the_top": "Far above its group",
    "right_without_answer": "Judged right without an answer",
    "near_duplicates": "Nearly the same text again and again",
    "very_long": "Very long",
}


def rule_words(limit: int | None, decides: Sequence[str]) -> dict[str, str]:
    """Each rule as a sentence or two with its numbers.

    Args:
        limit: the longest completion that the run allowed, in tokens, if known.
        decides: names of the rewards that decide what is right.
    """
    judge, unknown = (
        " and ".join(decides),
        "No reward that decides what is right was found, so this rule finds nothing.",
    )
    wrong = (
        f"Below half of the range of {judge}, yet its total is at least the lowest of a right completion of its step; "
        f"in a step without right ones, at least {HIGH_ANYWAY:.0%} of the run's highest."
    )
    alone = (
        f"Its total exceeds the second best of its group (of {SMALLEST_GROUP} or more) by {ALONE_GAP:.0%} of the run's "
        f"range of totals and by {ALONE_SPREAD:g} standard deviations of the rest. Not the only right one: being right "
        "explains it."
    )
    empty = (
        f"Judged right by {judge}, and the text is empty; or, looked for in this page only, no answer can be extracted, "
        "although most right ones have one."
    )
    same = (
        f"{ALIKE_SHARE:.0%} of its group (of {SMALLEST_GROUP} or more), or {ALIKE_PROMPTS} or more prompts of a step "
        f"(from {ALIKE_LETTERS} letters on), got the same text but for case and white space; or, looked for in this page "
        f"only, {ALIKE_SHARE:.0%} of its group are {ALIKE}% alike. Not right ones"
        + ("." if decides else ", which are here those in the upper half of the totals.")
    )
    cut = f"At the limit of {limit} tokens, where it is cut off, or longer" if limit else "Longer"
    long = f"{cut} than {LONG_TIMES:g} times the median of its step and at least {LONG_TOKENS} tokens" + (
        f" ({CHARACTERS_A_TOKEN} characters for one where tokens were not recorded)."
    )
    return {
        "wrong_but_high": wrong if decides else unknown,
        "alone_at_the_top": alone,
        "right_without_answer": empty if decides else unknown,
        "near_duplicates": same,
        "very_long": long,
    }


def number(value: float) -> str:
    return f"{value:.5g}"


def above_right(total: float, lowest: float, _: float) -> str:
    return f"total {number(total)}, judged wrong; a right one of this step has {number(lowest)}"


def high_anyway(total: float, highest: float, _: float) -> str:
    return f"total {number(total)}, judged wrong in a step without right ones; the run's highest is {number(highest)}"


def alone(total: float, second: float, spread: float) -> str:
    return f"total {number(total)}; the second best has {number(second)}, the rest spread by {number(spread)}"


WHY: dict[str, Callable[[float, float, float], str]] = {  # by kind, from the suspect's numbers
    "above_right": above_right,
    "high_anyway": high_anyway,
    "alone": alone,
    "in_group": lambda same, of, _: f"{same:.0f} of {of:.0f} in its group have this text, case and white space aside",
    "in_step": lambda prompts, *_: f"{prompts:.0f} prompts of this step got this text, case and white space aside",
    "alike": lambda same, of, _: f"{same:.0f} of {of:.0f} in its group are at least {ALIKE}% alike",
    "cut": lambda tokens, limit, _: f"{tokens:.0f} tokens: at the limit of {limit:.0f}",
    "long": lambda tokens, median, _: f"{tokens:.0f} tokens; the median of its step is {number(median)}",
    "empty": lambda *_: "judged right, and there is no text",
    "no_answer": lambda *_: "judged right, and no answer can be extracted",
}


def alike(found: Selection, middle: float) -> Iterator[tuple[int, str]]:
    """(row, why) of the completions that half of their group nearly repeats, of those that being right does not explain.

    Args:
        middle: of the totals; where nothing decides what is right, those above it count as right.
    """
    rows = found.rows
    fine = rows["right"].astype("boolean").fillna(rows["total"] > middle).to_numpy(bool)
    for places in rows.groupby(["step", "grp"], sort=False).indices.values():
        bad = [i for i in places.tolist() if not fine[i]]
        if len(places) < SMALLEST_GROUP or len(bad) < ALIKE_SHARE * len(places):
            continue
        texts = [" ".join(found.texts[i][:COMPARED].lower().split()) for i in bad]
        same = (process.cdist(texts, texts, scorer=fuzz.ratio, score_cutoff=ALIKE, dtype=np.uint8) > 0).sum(axis=1)
        for i, n in zip(bad, same.tolist()):
            if n >= ALIKE_SHARE * len(places):
                yield i, WHY["alike"](n, len(places), 0)


def without_answer(found: Selection, answered: Sequence[bool]) -> Iterator[tuple[int, str]]:
    """(row, why) of the right completions in which no answer was found, in a selection where most right ones have one.

    Args:
        answered: for each row, whether an answer was extracted from its text.
    """
    right = found.rows["right"].astype("boolean").fillna(False).to_numpy(bool) & (found.rows["cut"] == 0).to_numpy()
    there = np.array(answered, dtype=bool)
    if there[right].sum() * 2 > right.sum():  # code has no answer block, and is right without
        yield from ((i, WHY["no_answer"](0, 0, 0)) for i in np.flatnonzero(right & ~there).tolist())


EMPTY = "SELECT key, 'right_without_answer', 'empty', 0.0, 0.0, 0.0 FROM facts WHERE \"right\" AND letters = 0"


def judged(middle: float) -> str:
    """SQL for `facts` with the size of the group, and whether being right (or paid well) explains a completion."""
    fine = f'coalesce("right", total > {middle!r}, false)'
    return f"SELECT *, count(*) OVER (PARTITION BY step, grp) AS n, {fine} AS fine FROM facts"


def suspect_queries(lowest: float, highest: float, limit: int) -> list[str]:
    """SQL for the suspects of a whole run: key, rule, kind, and the three numbers that its words want.

    Args:
        lowest, highest: total of the run.
        limit: the longest completion allowed, in tokens; 0 if not known.
    """
    return [
        wrong_but_high(highest),
        alone_at_the_top(highest - lowest),
        same_in_group(),
        same_in_step(),
        very_long(limit),
        EMPTY,
    ]


def wrong_but_high(highest: float) -> str:
    enough = HIGH_ANYWAY * highest if highest > 0 else 1e300  # of a highest total below 0 there is no share
    return f"""
        SELECT key, 'wrong_but_high', CASE WHEN lowest_right IS NULL THEN 'high_anyway' ELSE 'above_right' END, total,
               coalesce(lowest_right, {highest!r}), 0.0
        FROM facts JOIN steps USING (step)
        WHERE NOT "right" AND total >= coalesce(lowest_right, {enough!r}) - {ROUNDING}"""


def alone_at_the_top(totals: float) -> str:
    return f"""
        SELECT f.key, 'alone_at_the_top', 'alone', best, second, rest FROM facts AS f JOIN (
            SELECT step, grp, totals[1] AS best, totals[2] AS second, list_stddev_pop(totals[2:]) AS rest, rights FROM (
                SELECT step, grp, list_reverse_sort(list(total)) AS totals, count(*) FILTER ("right") AS rights
                FROM facts WHERE total IS NOT NULL GROUP BY step, grp HAVING count(*) >= {SMALLEST_GROUP})
            WHERE best - second >= greatest({ALONE_GAP * totals - ROUNDING!r}, {ALONE_SPREAD} * rest, {ROUNDING})) AS g
        ON f.step = g.step AND f.grp = g.grp AND f.total = g.best
        WHERE NOT (coalesce("right", false) AND rights = 1)"""


def same_in_group() -> str:
    return f"""
        SELECT key, 'near_duplicates', 'in_group', same, n, 0.0
        FROM (SELECT *, count(*) OVER (PARTITION BY step, grp, bare) AS same FROM judged WHERE n >= {SMALLEST_GROUP})
        WHERE same >= {ALIKE_SHARE} * n AND NOT fine"""


def same_in_step() -> str:
    return f"""
        SELECT key, 'near_duplicates', 'in_step', prompts, 0.0, 0.0 FROM judged JOIN (
            SELECT step, bare, count(DISTINCT prompt) AS prompts FROM facts WHERE letters >= {ALIKE_LETTERS}
            GROUP BY step, bare HAVING prompts >= {ALIKE_PROMPTS}) USING (step, bare) WHERE NOT fine"""


def very_long(limit: int) -> str:
    cut = f"coalesce({limit} > 0 AND tokens >= {limit}, false)"
    return f"""
        SELECT key, 'very_long', CASE WHEN cut THEN 'cut' ELSE 'long' END, size, CASE WHEN cut THEN {limit} ELSE median END, 0.0
        FROM (SELECT key, step, {SIZE} AS size, {cut} AS cut FROM facts)
        JOIN steps USING (step) WHERE cut OR (size > {LONG_TIMES} * median AND size >= {LONG_TOKENS})"""
