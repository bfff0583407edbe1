"""Which completions of a large run are worth reading: a bounded choice over its steps, suspects first."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

SUSPECTS_SHARE = 1 / 3  # of a selection: the rest shows what is usual


class Selection(NamedTuple):
    """The completions to show, in the order of step, prompt and place, and what is known of their prompts."""

    rows: (
        pd.DataFrame
    )  # key, step, grp, place, prompt (row of `prompts`), s0…, total, right, …, cut (characters left out)
    texts: list[str]  # of the completions, without what was cut
    extras: dict[str, list]  # the other columns, by name
    prompts: pd.DataFrame  # text, tokens, seen (steps), n, best, mean, all over the whole run
    data: dict[str, list]  # the data set's columns of the prompts, by name
    suspects: dict[int, dict[str, str]]  # row -> rule -> why
    found_here: Counter[str]  # by rule, suspects that only these texts show: `Completions.suspect_counts` lacks them
    summary: str = ""  # the selection in words
    left_out: str = ""  # what it lacks

    def add(self, rule: str, reasons: Iterable[tuple[int, str]]) -> None:
        """Adds suspects of a rule over texts: (row, why), where the row is not known for that rule yet."""
        for i, why in reasons:
            if rule not in self.suspects.setdefault(i, {}):
                self.suspects[i][rule] = why
                self.found_here[rule] += 1


def choose_groups(groups: pd.DataFrame, suspects: Sequence[int], limit: float, characters: float) -> list[int]:
    """Rows of `groups` (step, n, characters): of the latest step, then suspects (up to a third), then spread evenly."""
    latest = groups.index[groups["step"] == groups["step"].max()]
    parts = [(spread(latest), 1.0), (suspects, SUSPECTS_SHARE), (spread(range(len(groups))), 1.0)]
    return take_groups(groups, parts, limit, characters)


def take_groups(
    groups: pd.DataFrame, parts: Iterable[tuple[Iterable[int], float]], limit: float, characters: float
) -> list[int]:
    """Rows of `groups` that fit, part by part: (rows in their order, the share of both limits that they may take)."""
    sizes, lengths = groups["n"].tolist(), groups["characters"].tolist()
    free, taken = np.array([limit, characters], dtype=float), dict[int, None]()
    for rows, share in parts:
        own = share * np.array([limit, characters])
        for row in rows:
            size = np.array([sizes[row], lengths[row]])
            fits = (size <= np.minimum(own, free)).all()
            if row not in taken and (fits or not taken):  # a limit below one group still shows that group
                taken[row], free, own = None, free - size, own - size
    return sorted(taken)


def spread(items: Sequence[Any]) -> list[Any]:
    """The items in an order of which every beginning is spread evenly: middle, quarters, eighths (van der Corput 1935).

    >>> spread([1, 2, 3, 4, 5, 6, 7])
    [4, 2, 6, 1, 5, 3, 7]
    """
    bits = max(1, len(items).bit_length())
    places = (int(f"{i:0{bits}b}"[::-1], 2) for i in range(1, 1 << bits))
    return [items[place - 1] for place in places if place <= len(items)]
