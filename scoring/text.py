"""Words, n-grams, steps of reasoning, and likeness to a reference text."""

import functools
import itertools
import re
from typing import Any

from scoring.answers import final_text, gold_text

# a character of Chinese or Japanese, else (a part of) a word
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|\w{1,20}")
MOST_WORDS = 50_000  # more than any completion has: words beyond are not read, so that the time is bounded
STEP_MARK = re.compile(
    r"\s*(?:step\s*\d+|\d{1,3}(?=[.:)])|(?:first|second|third|final)(?:ly)?\b|next\b|then\b|[-*•])\s*[.:),]*\s*",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(r"\n|(?<=[.!?])\s")
LONGEST_TIMES_REFERENCE = 20  # a longer text has a precision under 1/20: not worth the time of measuring it
MOST_COMPARED = 1_000  # words


def first_words(text: str) -> list[str]:
    return [match[0] for match in itertools.islice(WORD.finditer(text.casefold()), MOST_WORDS)]


def ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    words = first_words(text)
    return list(zip(*(words[i:] for i in range(n))))


def count_steps(reasoning: str, most: int) -> int:
    """How many different lines or sentences have three different words, without a mark such as "Step 1:"."""
    found = set()
    for line in SENTENCE_END.split(reasoning):
        mark = STEP_MARK.match(line)
        words = first_words(line[mark.end() if mark else 0 :])
        if len(set(words)) >= 3:
            found.add(tuple(words))
        if len(found) == most:
            break
    return len(found)


def reference_and_text(completion: str, answer: Any) -> tuple[str, str] | None:
    """(reference, final text) to compare, the text "" where it is too long to be a match; None without a gold."""
    reference = gold_text(answer)
    if reference is None:
        return None
    text = final_text(completion)
    return reference, text if len(text) <= max(2_000, LONGEST_TIMES_REFERENCE * len(reference)) else ""


@functools.cache
def bleu_scorer() -> Any:
    from sacrebleu.metrics import BLEU

    return BLEU(effective_order=True)


@functools.cache
def rouge_scorer(kind: str) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([kind], use_stemmer=False)


def rouge_f_measure(reference: str, text: str, kind: str) -> float:
    """ROUGE of the first words of both, less in proportion where the text is longer than that."""
    wanted, found = WORD.findall(reference), WORD.findall(text)
    score = rouge_scorer(kind).score(" ".join(wanted[:MOST_COMPARED]), " ".join(found[:MOST_COMPARED]))[kind].fmeasure
    return score * min(1.0, len(wanted) / len(found)) if len(found) > MOST_COMPARED else score
