"""Which completions of a large run are worth reading: a bounded choice over its steps, suspects first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from lab.read.run_record import count_of

SUSPECTS_SHARE = 1 / 3  # of a selection: the rest shows what is usual


class Selection(NamedTuple):
    """The completions to show, in the order of step, prompt and place, and what is known of their prompts.

    Attributes:
        rows: a row a completion: key, step, grp, place, prompt (row of `prompts`), s0…, total, right, advantage, tokens,
            cut (characters left out).
        texts: of the completions, without what was cut.
        extras: the other columns, by name.
        prompts: a row a prompt: text, tokens, seen (steps), n, best, mean, all over the whole run.
        data: the data set's columns of the prompts, by name.
        suspects: row -> rule -> why.
        found_here: by rule, suspects that only these texts show: `Completions.suspect_counts` does not count them.
        summary, left_out: the selection in words, and what it lacks ("" for nothing).
    """

    rows: pd.DataFrame
    texts: list[str]
    extras: dict[str, list]
    prompts: pd.DataFrame
    data: dict[str, list]
    suspects: dict[int, dict[str, str]]
    found_here: Counter[str]
    summary: str = ""
    left_out: str = ""

    def add(self, rule: str, reasons: Iterable[tuple[int, str]]) -> None:
        """Adds suspects of a rule over texts: (row, why), where the row is not known for that rule yet."""
        for i, why in reasons:
            if rule not in self.suspects.setdefault(i, {}):
                self.suspects[i][rule] = why
                self.found_here[rule] += 1


class Budget:
    """Groups taken so far, and what is left of the two limits."""

    def __init__(self, groups: pd.DataFrame, limit: int, characters: int) -> None:
        self.sizes, self.lengths = groups["n"].tolist(), groups["characters"].tolist()
        self.rows, self.characters, self.taken = limit, characters, dict[int, None]()

    def take(self, groups: Iterable[int], rows: float = math.inf, characters: float = math.inf) -> int:
        """Takes those of the groups that fit and are not there yet; returns how many completions that were.

        Args:
            rows, characters: limits of this call alone.
        """
        before = self.rows
        for group in groups:
            n, length = self.sizes[group], self.lengths[group]
            fits = n <= min(rows, self.rows) and length <= min(characters, self.characters)
            if group not in self.taken and (fits or not self.taken):  # a limit below one group still shows that group
                self.taken[group] = None
                self.rows, self.characters = self.rows - n, self.characters - length
                rows, characters = rows - n, characters - length
        return before - self.rows

    def fits(self, groups: Iterable[int]) -> bool:
        new = [group for group in groups if group not in self.taken]
        return sum(self.sizes[g] for g in new) <= self.rows and sum(self.lengths[g] for g in new) <= self.characters


def choose_groups(groups: pd.DataFrame, suspects: Sequence[int], limit: int, characters: int) -> tuple[list[int], str]:
    """(rows of `groups` to show, the rule in words with its counts).

    Args:
        groups: step, n, characters of each group.
        suspects: rows of `groups` with suspects, the most wanted first.
    """
    steps = {int(step): rows.tolist() for step, rows in groups.groupby("step").indices.items()}
    order, budget = sorted(steps), Budget(groups, limit, characters)
    if budget.fits(range(len(groups))):
        return list(range(len(groups))), "all"
    first, last = order[0], order[-1]
    taken = budget.take(spread(steps[last]))
    how = "all of" if taken == sum(budget.sizes[group] for group in steps[last]) else "what fits of"
    parts = [f"{how} the latest step, {last} ({taken:,})"]
    if taken := budget.take(suspects, int(limit * SUSPECTS_SHARE), int(characters * SUSPECTS_SHARE)):
        parts.append(f"groups with suspects ({taken:,})")
    if first != last and (taken := budget.take(spread(steps[first]))):
        parts.append(f"the first step, {first} ({taken:,})")
    whole, between, more = 0, 0, ""
    for step in spread(order[1:-1]):  # whole steps, ever finer between the first and the last
        fits = budget.fits(steps[step])
        between += (taken := budget.take(spread(steps[step])))
        if not fits:
            more = " and a part of one more" if taken else ""
            break
        whole += 1
    if between:
        parts.append(f"{count_of(whole, 'step')}{more} spread evenly between them ({between:,})")
    return list(budget.taken), "; ".join(parts)


def spread(items: Sequence[Any]) -> list[Any]:
    """The items in an order of which every beginning is spread evenly: middle, quarters, eighths (van der Corput 1935).

    >>> spread([1, 2, 3, 4, 5, 6, 7])
    [4, 2, 6, 1, 5, 3, 7]
    """
    bits = max(1, len(items).bit_length())
    places = (int(f"{i:0{bits}b}"[::-1], 2) for i in range(1, 1 << bits))
    return [items[place - 1] for place in places if place <= len(items)]
