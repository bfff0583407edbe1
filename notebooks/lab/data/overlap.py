"""Are the held-out questions new? Which of them are among the training questions too."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lab.data.dataset import load_split, normalise
from lab.files import Row
from lab.model.prompts import question_of

IDENTICAL, NUMBERS, NONE = "identical", "same but for numbers", "none"
WORDS = 13  # in a row that two questions share (Brown et al. 2020, appendix C: how GPT-3's test sets were checked)
EXAMPLES = 3  # pairs of each kind that are kept


@dataclass(frozen=True)
class Overlap:
    """Which held-out questions were in training.

    Attributes:
        kinds: of each held-out question, in their order, the strongest that holds: "identical" (but for case,
            punctuation and spacing), "same but for numbers", "shares 13 words" (in a row), "none".
        counts: how many of each kind.
        examples: of each kind but "none", up to three (training question, held-out question).
        sentence: the counts in words.
    """

    kinds: list[str]
    counts: dict[str, int]
    examples: dict[str, list[tuple[str, str]]]
    sentence: str


def measure_overlap(train_questions: Sequence[str], test_questions: Sequence[str], words: int = WORDS) -> Overlap:
    """Compares every held-out question with all training questions: 10,000 of 40 words with 100,000 in ten seconds.

    Raises ValueError for fewer than one word.
    """
    if words < 1:
        raise ValueError(f"a shared run has at least one word, not {words}")
    kinds = (IDENTICAL, NUMBERS, f"shares {words} words")
    places: dict[tuple[str, str], list[int]] = defaultdict(list)  # (kind, key) -> held-out questions that have it
    for place, question in enumerate(test_questions):
        for key in overlap_keys(question, kinds, words):
            places[key].append(place)
    partner: dict[str, dict[int, str]] = {kind: {} for kind in kinds}  # held-out question -> first training question
    for question in train_questions:
        for key in overlap_keys(question, kinds, words):
            for place in places.pop(key, ()):  # each is found once
                partner[key[0]].setdefault(place, question)
    strongest = [next((kind for kind in kinds if i in partner[kind]), NONE) for i in range(len(test_questions))]
    counts = {kind: strongest.count(kind) for kind in (*kinds, NONE)}
    examples = {
        kind: [(partner[kind][i], test_questions[i]) for i, its in enumerate(strongest) if its == kind][:EXAMPLES]
        for kind in kinds
    }
    return Overlap(strongest, counts, examples, overlap_sentence(counts, len(train_questions)))


def overlap_keys(question: str, kinds: Sequence[str], words: int) -> list[tuple[str, str]]:
    """(kind, key): two questions overlap where they have a key in common.

    >>> overlap_keys("Sam has 4.50 dollars.", ("identical", "same but for numbers", "shares 3 words"), 3)[1:3]
    [('same but for numbers', 'sam has 0 dollars'), ('shares 3 words', 'sam has 4.50')]
    """
    text = normalise(question)
    parts = text.split()
    runs = [" ".join(parts[i : i + words]) for i in range(len(parts) - words + 1)]
    masked = re.sub(r"\d+(?:\.\d+)?", "0", text)
    return [(kinds[0], text), (kinds[1], masked), *((kinds[2], run) for run in runs)]


def overlap_sentence(counts: dict[str, int], n_train: int) -> str:
    """The counts in words.

    >>> overlap_sentence({"identical": 0, "same but for numbers": 2, "none": 8}, 50)
    'Of 10 held-out questions 2 have a twin among the 50 training questions: 2 same but for numbers.'
    """
    n, twins = sum(counts.values()), {kind: count for kind, count in counts.items() if count and kind != NONE}
    if not twins:
        return f"Of {n:,} held-out questions none has a twin among the {n_train:,} training questions."
    which = ", ".join(f"{count:,} {kind}" for kind, count in twins.items())
    return f"Of {n:,} held-out questions {sum(twins.values()):,} have a twin among the {n_train:,} training questions: {which}."


def questions_of(rows: Sequence[Row]) -> list[str]:
    """The questions of a data set's rows."""
    return [str(row.get("question") or question_of(row["prompt"])) for row in rows]


def trained_questions(folder: Path, about: Row) -> tuple[list[str], str, bool]:
    """The questions that a run may have been trained on, where they come from, and whether the data set has changed.

    They are the training split, if it is still the one of the run. Otherwise they come from the run's completions,
    because a new data set may hold out other rows.

    Args:
        about: the run's `run.json`.
    """
    train = load_split(folder, "train")
    if train._fingerprint == about["data"]["fingerprint"]:
        return questions_of(list(train)), f"all {len(train):,} training questions", False
    tables = [pd.read_parquet(path) for path in sorted((folder / "run" / "completions").glob("*.parquet"))]
    columns = [table["data/question" if "data/question" in table else "prompt"] for table in tables]
    seen = list(dict.fromkeys(str(question) for column in columns for question in column))
    where = f"the {len(seen):,} questions in the run's completions" if seen else "nothing: the run kept no completions"
    return seen, f"{where} (the data set was made again after the training, and is another one)", True
