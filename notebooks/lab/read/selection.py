"""Which completions of a large run are worth reading: a bounded choice over its steps, suspects first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd


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
        said, left_out: the selection in words, and what it lacks ("" for nothing).
    """

    rows: pd.DataFrame
    texts: list[str]
    extras: dict[str, list]
    prompts: pd.DataFrame
    data: dict[str, list]
    suspects: dict[int, dict[str, str]]
    found_here: Counter[str]
    said: str
    left_out: str

    def add(self, rule: str, found: Iterable[tuple[int, str]]) -> None:
        """Adds suspects of a rule over texts: (row, why), where the row is not known for that rule yet."""
        for i, why in found:
            if rule not in self.suspects.setdefault(i, {}):
                self.suspects[i][rule] = why
                self.found_here[rule] += 1


SUSPECTS_SHARE = 1 / 3  # of a selection: the rest shows what is usual


class Choice(NamedTuple):
    groups: list[int]  # rows of the table of groups
    steps: int  # of the whole run
    said: str
    limit: int
    characters: int


class Budget:
    """Groups taken so far, and what is left of the two limits."""

    def __init__(self, groups: pd.DataFrame, limit: int, characters: int) -> None:
        self.sizes, self.lengths = groups["n"].tolist(), groups["characters"].tolist()
        self.rows, self.characters, self.taken = limit, characters, dict[int, None]()

    def take(self, groups: Iterable[int]) -> int:
        """Takes those of the groups that fit and are not there yet; returns how many completions that were."""
        before = self.rows
        for group in groups:
            fits = self.sizes[group] <= self.rows and self.lengths[group] <= self.characters
            if group not in self.taken and (fits or not self.taken):  # a limit below one group still shows that group
                self.taken[group] = None
                self.rows -= self.sizes[group]
                self.characters -= self.lengths[group]
            if self.rows < 1 or self.characters < 1:
                break
        return before - self.rows

    def fits(self, groups: Sequence[int]) -> bool:
        new = [group for group in groups if group not in self.taken]
        return sum(self.sizes[g] for g in new) <= self.rows and sum(self.lengths[g] for g in new) <= self.characters


def choose(groups: pd.DataFrame, suspects: Sequence[int], limit: int, characters: int) -> Choice:
    """Which groups to show, and the rule in words with its counts.

    Args:
        groups: step, n, characters of each group.
        suspects: rows of `groups` with suspects, the most wanted first.
    """
    steps = {int(step): rows.tolist() for step, rows in groups.groupby("step").indices.items()}
    order, budget = sorted(steps), Budget(groups, limit, characters)
    if budget.fits(range(len(groups))):
        return Choice(list(range(len(groups))), len(order), "all", limit, characters)
    last, first = order[-1], order[0]
    latest = budget.take(spread(steps[last]))
    whole = latest == sum(budget.sizes[group] for group in steps[last])
    said = [f"{'all of' if whole else 'what fits of'} the latest step, {last} ({latest:,})"]
    said += take_suspects(budget, suspects, limit, characters)
    if first != last and (taken := budget.take(spread(steps[first]))):
        said.append(f"the first step, {first} ({taken:,})")
    said += take_between(budget, steps, order[1:-1])
    return Choice(list(budget.taken), len(order), "; ".join(said), limit, characters)


def take_suspects(budget: Budget, suspects: Sequence[int], limit: int, characters: int) -> list[str]:
    """Takes groups with suspects, up to a third of the limits."""
    rows, letters = budget.rows, budget.characters
    budget.rows, budget.characters = (
        min(rows, int(limit * SUSPECTS_SHARE)),
        min(letters, int(characters * SUSPECTS_SHARE)),
    )
    kept_rows, kept_letters = rows - budget.rows, letters - budget.characters
    taken = budget.take(suspects)
    budget.rows, budget.characters = budget.rows + kept_rows, budget.characters + kept_letters
    return [f"groups with suspects ({taken:,})"] if taken else []


def take_between(budget: Budget, steps: dict[int, list[int]], order: Sequence[int]) -> list[str]:
    """Takes whole steps, ever finer between the first and the last, and at the end what still fits of one more."""
    whole = taken = part = 0
    for step in spread(order):
        if not budget.fits(steps[step]):
            part = budget.take(spread(steps[step]))
            break
        taken, whole = taken + budget.take(steps[step]), whole + 1
    more = " and a part of one more" if part else ""
    return [f"{count(whole, 'step')}{more} spread evenly between them ({taken + part:,})"] if taken + part else []


def spread(items: Sequence[Any]) -> list[Any]:
    """The items in an order of which every beginning is spread evenly: middle, quarters, eighths (van der Corput 1935).

    >>> spread([1, 2, 3, 4, 5, 6, 7])
    [4, 2, 6, 1, 5, 3, 7]
    """
    bits = max(1, len(items).bit_length())
    places = (int(f"{i:0{bits}b}"[::-1], 2) for i in range(1, 1 << bits))
    return [items[place - 1] for place in places if place <= len(items)]


CHARACTERS_A_TOKEN = 4  # of English, where tokens were not counted
SIZE = f"coalesce(tokens, length / {CHARACTERS_A_TOKEN})"  # in tokens
STEPS = f'SELECT step, min(total) FILTER ("right") AS lowest_right, median({SIZE}) AS median FROM facts GROUP BY step'


def count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + "s" * int(n != 1)
