"""Multiple choice: which choice a gold means, and which one an answer names."""

from __future__ import annotations

import numbers
import re
from typing import Any

from scoring.answers import gold_text, plain_text
from scoring.mathematics import unwrap_formula

ANNOUNCED = r"(?:(?:the )?(?:correct )?(?:answer|option|choice)(?: is)?:? )?"
CHOICE = re.compile(ANNOUNCED + r"\(?([a-z])\)?(?:[.):]|\s|$)\s*(.*)", re.DOTALL)
LONGEST_CHOICE = 200  # characters around the text of a choice


def choice_index(answer: Any, texts: list[str]) -> int | None:
    """Which of the choices, as `plain_text`, the gold means, from 0: a text, an index, or a letter; None for none."""
    if isinstance(answer, numbers.Integral) and not isinstance(answer, bool):
        return int(answer) if 0 <= answer < (len(texts) or 26) else None
    gold = plain_text(gold_text(answer) or "")
    if gold in texts:
        return texts.index(gold)
    match = CHOICE.fullmatch(gold)
    index = ord(match[1]) - ord("a") if match else -1
    return index if 0 <= index < (len(texts) or 26) else None


def chosen_index(given: str, texts: list[str]) -> int | None:
    """Which choice an answer names, from 0: by its text, its letter, or both in agreement; None for none."""
    if len(given) > LONGEST_CHOICE + max(map(len, texts), default=0):
        return None
    given = plain_text(unwrap_formula(given)).strip("[]")
    if texts.count(given) == 1:  # the text first: a choice may be called "b" and not be the second
        return texts.index(given)
    match = CHOICE.fullmatch(given)
    index = ord(match[1]) - ord("a") if match else None
    agrees = match and (not match[2] or plain_text(match[2]) in texts[index : index + 1])
    return index if agrees else None
