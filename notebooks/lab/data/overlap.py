"""Are the held-out questions really new? What of them stands in the training questions too."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lab.data.dataset import load_split, normalise

IDENTICAL, NUMBERS, NONE = "identical", "same but for numbers", "none"
WORDS = 13  # in a run that two questions share (Brown et al. 2020, appendix C: how GPT-3's test sets were checked)
EXAMPLES = 3  # pairs shown of each kind
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Overlap:
    """What of the held-out questions was in training.

    Attributes:
        kinds: of each held-out question, in their order, the strongest that holds: "identical" (but for case,
            punctuation and spacing), "same but for numbers", "shares 13 words" (in a row), "none".
        counts: how many of each kind.
        examples: of each kind but "none", up to three (training question, held-out question).
        said: the same in one sentence.
    """

    kinds: list[str]
    counts: dict[str, int]
    examples: dict[str, list[tuple[str, str]]]
    said: str


def measure_overlap(train_questions: Sequence[str], test_questions: Sequence[str], words: int = WORDS) -> Overlap:
    """Compares every held-out question with all training questions, in a time that grows with their length only.

    100,000 questions of 40 words against 10,000 take about ten seconds.

    Raises ValueError for fewer than one word.
    """
    if words < 1:
        raise ValueError(f"a shared run has at least one word, not {words}")
    shares = f"shares {words} words"
    tests = [normalise(question) for question in test_questions]
    keys = {IDENTICAL: index([[text] for text in tests]), NUMBERS: index([[masked(text)] for text in tests])}
    keys[shares] = index([runs(text, words) for text in tests])
    partner: dict[str, dict[int, int]] = {kind: {} for kind in keys}  # held-out question -> the first training question
    for place, question in enumerate(train_questions):
        text = normalise(question)
        for kind, found in ((IDENTICAL, [text]), (NUMBERS, [masked(text)]), (shares, runs(text, words))):
            for one in found:
                for test in keys[kind].pop(one, ()):  # each is found once
                    partner[kind].setdefault(test, place)
    kinds = [next((kind for kind in keys if i in partner[kind]), NONE) for i in range(len(tests))]
    counts = {kind: Counter(kinds)[kind] for kind in (*keys, NONE)}
    examples = {
        kind: [(train_questions[partner[kind][i]], test_questions[i]) for i, its in enumerate(kinds) if its == kind][
            :EXAMPLES
        ]
        for kind in keys
    }
    return Overlap(kinds, counts, examples, sentence(counts, len(train_questions)))


def questions_of(rows: Sequence[dict]) -> list[str]:
    """The questions of a data set's rows."""
    from lab.model.prompts import question_of

    return [str(row.get("question") or question_of(row["prompt"])) for row in rows]


def trained_on(folder: Path, about: dict) -> tuple[list[str], str, bool]:
    """The questions that a run may have been trained on, where they come from, and whether the data set is another one now.

    The training split, where it is still the one of the run; otherwise what the run's completions kept, because a
    data set that was made again may have put other rows on the held-out side.
    """
    train = load_split(folder, "train")
    if train._fingerprint == about["data"]["fingerprint"]:
        return questions_of(list(train)), f"all {len(train):,} training questions", False
    tables = [pd.read_parquet(path) for path in sorted((folder / "run" / "completions").glob("*.parquet"))]
    columns = [table["data/question" if "data/question" in table else "prompt"] for table in tables]
    seen = list(dict.fromkeys(str(question) for column in columns for question in column))
    where = f"the {len(seen):,} questions in the run's completions" if seen else "nothing: the run kept no completions"
    return seen, f"{where} (the data set was made again after the training, and is another one)", True


def index(keys: Sequence[Iterator[str] | list[str]]) -> dict[str, list[int]]:
    """Which held-out questions have a key."""
    found: dict[str, list[int]] = {}
    for i, ones in enumerate(keys):
        for one in ones:
            found.setdefault(one, []).append(i)
    return found


def masked(text: str) -> str:
    """A normalised question with every number as 0.

    >>> masked("sam has 3 pens and 4.50 dollars")
    'sam has 0 pens and 0 dollars'
    """
    return NUMBER.sub("0", text)


def runs(text: str, words: int) -> Iterator[str]:
    """All runs of so many words of a normalised question.

    >>> list(runs("a b c d", 3))
    ['a b c', 'b c d']
    """
    parts = text.split()
    return (" ".join(parts[i : i + words]) for i in range(len(parts) - words + 1))


def sentence(counts: dict[str, int], n_train: int) -> str:
    """The counts as one sentence.

    >>> sentence({"identical": 0, "same but for numbers": 2, "shares 13 words": 0, "none": 8}, 50)
    'Of 10 held-out questions 2 have a twin among the 50 training questions: 2 same but for numbers.'
    """
    n, found = sum(counts.values()), {kind: count for kind, count in counts.items() if count and kind != NONE}
    if not found:
        return f"Of {n:,} held-out questions none has a twin among the {n_train:,} training questions."
    which = ", ".join(f"{count:,} {kind}" for kind, count in found.items())
    return f"Of {n:,} held-out questions {sum(found.values()):,} have a twin among the {n_train:,} training questions: {which}."
