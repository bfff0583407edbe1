"""Are the held-out questions new? Which of them are among the training questions too."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lab.data.dataset import load_split, normalise
from lab.files import Row
from lab.model.prompts import question_of

WORDS = 13  # in a row that two questions share (Brown et al. 2020, appendix C: how GPT-3's test sets were checked)
KINDS, NONE = ("identical", "same but for numbers", f"shares {WORDS} words"), "none"  # the strongest first
EXAMPLES = 3  # pairs of each kind that are kept


@dataclass(frozen=True)
class Overlap:
    """Which held-out questions were in training.

    Attributes:
        kinds: of each held-out question the strongest that holds: "identical" (but for case, punctuation and spacing),
            "same but for numbers", "shares 13 words" (in a row), "none".
        counts: how many of each kind.
        examples: of each kind but "none", up to three (training question, held-out question).
        sentence: the counts in words.
    """

    kinds: list[str]
    counts: dict[str, int]
    examples: dict[str, list[tuple[str, str]]]
    sentence: str


def measure_overlap(train_questions: Sequence[str], test_questions: Sequence[str]) -> Overlap:
    """Compares every held-out question with all training questions: 10,000 of 40 words with 100,000 in ten seconds."""
    places: dict[tuple[str, str], list[int]] = defaultdict(list)  # (kind, key) -> held-out questions that have it
    for place, question in enumerate(test_questions):
        for key in overlap_keys(question):
            places[key].append(place)
    partner: dict[str, dict[int, str]] = {kind: {} for kind in KINDS}  # held-out question -> first training question
    for question in train_questions:
        for key in overlap_keys(question):
            for place in places.pop(key, ()):  # each is found once
                partner[key[0]].setdefault(place, question)
    strongest = [next((kind for kind in KINDS if i in partner[kind]), NONE) for i in range(len(test_questions))]
    counts = {kind: strongest.count(kind) for kind in (*KINDS, NONE)}
    examples = {
        kind: [(partner[kind][i], test_questions[i]) for i, its in enumerate(strongest) if its == kind][:EXAMPLES]
        for kind in KINDS
    }
    return Overlap(strongest, counts, examples, overlap_sentence(counts, len(train_questions)))


def overlap_keys(question: str) -> list[tuple[str, str]]:
    """(kind, key): two questions overlap where they have a key in common.

    >>> overlap_keys("Sam has 4.50 dollars.")
    [('identical', 'sam has 4.50 dollars'), ('same but for numbers', 'sam has 0 dollars')]
    """
    text = normalise(question)
    parts = text.split()
    runs = [" ".join(parts[i : i + WORDS]) for i in range(len(parts) - WORDS + 1)]
    masked = re.sub(r"\d+(?:\.\d+)?", "0", text)
    return [(KINDS[0], text), (KINDS[1], masked), *((KINDS[2], run) for run in runs)]


def overlap_sentence(counts: dict[str, int], n_train: int) -> str:
    """The counts in words.

    >>> overlap_sentence({"identical": 0, "same but for numbers": 2, "none": 8}, 50)
    'Of 10 held-out questions 2 have a twin among the 50 training questions: 2 same but for numbers.'
    """
    twins = {kind: count for kind, count in counts.items() if count and kind != NONE}
    how_many = f"{sum(twins.values()):,} have" if twins else "none has"
    which = "".join(f"{', ' if i else ': '}{count:,} {kind}" for i, (kind, count) in enumerate(twins.items()))
    return f"Of {sum(counts.values()):,} held-out questions {how_many} a twin among the {n_train:,} training questions{which}."


def questions_of(rows: Sequence[Row]) -> list[str]:
    """The questions of a data set's rows."""
    return [str(row.get("question") or question_of(row["prompt"])) for row in rows]


def trained_questions(folder: Path, about: Row) -> tuple[list[str], str, bool]:
    """The questions that a run may have been trained on, where they come from, and whether the data set has changed.

    They are the training split, if it is still the one in `about`, the run's `run.json`. Otherwise they come from the
    run's completions, because a new data set may hold out other rows.
    """
    train = load_split(folder, "train")
    if train._fingerprint == about["data"]["fingerprint"]:
        return questions_of(list(train)), f"all {len(train):,} training questions", False
    tables = [pd.read_parquet(path) for path in sorted((folder / "run" / "completions").glob("*.parquet"))]
    columns = [table["data/question" if "data/question" in table else "prompt"] for table in tables]
    seen = list(dict.fromkeys(str(question) for column in columns for question in column))
    where = f"the {len(seen):,} questions in the run's completions" if seen else "nothing: the run kept no completions"
    return seen, f"{where} (the data set was made again after the training, and is another one)", True
