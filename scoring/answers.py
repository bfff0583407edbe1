"""What the final answer is, and whether two answers are the same."""

import math
import re
import unicodedata
from typing import Any

from scoring import formats
from scoring.formats import is_visible
from scoring.numbers import DRESSING, extract_number, read_number, same_number


def split_completion(completion: str) -> tuple[str, str] | None:
    """(reasoning, answer) of a strictly formatted completion, None for anything else.

    >>> split_completion("<think>2 + 2 = 4</think> <answer>4</answer>")
    ('2 + 2 = 4', '4')
    >>> split_completion("<think>2 + 2 = 4</think> <answer>4</answer> Bye!") is None
    True
    """
    return formats.FORMAT.split(completion)


def extract_reasoning(completion: str) -> str | None:
    """The reasoning, or None where there is none, several, or it is never closed.

    >>> extract_reasoning("<think> 2 + 2 = 4 </think><answer>4</answer>")
    '2 + 2 = 4'
    """
    return formats.FORMAT.reasoning(completion)


def extract_answer(completion: str, format: formats.Format | None = None) -> str | None:
    """The one answer that stands outside the reasoning, or None.

    None as well for several answers, for one inside a reasoning block that is never closed, and for one that the text
    around it contradicts or takes back. `format` says how the answer is marked; None: the format in use.

    >>> extract_answer("<think>is it <answer>5</answer>?</think><answer> 4 </answer> I hope this helps!")
    '4'
    >>> extract_answer("<answer>4</answer><answer>5</answer>"), extract_answer("<answer>4</answer> No, it is 5.")
    (None, None)
    """
    before, answer, after = (format or formats.FORMAT).find_answer(completion) or ("", None, "")
    if after and not after.isspace() and taken_back(answer, after):
        return None
    announced = ANSWER_IN_TEXT.findall(before[-LONGEST_TAIL:]) if before else []
    return None if names_another(answer, announced) else answer


NUMBER_IN_TEXT = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
RETRACTION = re.compile(
    r"\b(?:wait|actually|correction|rather|instead|mistake|mistaken|wrong|incorrect|oops|sorry|ignore|forget"
    r"|scratch that|take (?:it|that) back|i meant|not(?! hesitate)|no|or maybe|perhaps|maybe|alternatively|unsure"
    r"|half|dozen|(?:hundred|thousand|[mbtr]+illion)s?|zero|two|three|four|five|six|seven|eight|nine|ten|eleven"
    r"|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty)\b|n't\b",
    re.IGNORECASE,
)
ANSWER_IN_TEXT = re.compile(r"\banswer\s?(?:is|:|=)\s{0,3}[*$]{0,3}(-?\d[\d,]*(?:\.\d+)?)", re.IGNORECASE)
SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹]+")  # compatibility forms would make 122 of 12²
LONGEST_TAIL = 2_000  # characters around an answer that are searched; an answer before a longer text is none


def taken_back(answer: str, after: str) -> bool:
    """Whether the text after an answer has another number, words that take the answer back, or goes on for pages."""
    if len(after) > LONGEST_TAIL or names_another(answer, NUMBER_IN_TEXT.findall(after)):
        return True
    return bool(RETRACTION.search(after)) or any(unicodedata.category(char) == "No" for char in after)


def names_another(answer: str, numbers: list[str]) -> bool:
    """Whether one of these numbers is not the answer."""
    value = extract_number(answer) if numbers else None
    return any(extract_number(number.rstrip(",")) != value for number in numbers)


def final_text(completion: str) -> str:
    """What a reader takes away: the answer ("" if it is taken back), else the text outside the reasoning.

    >>> final_text("<think>short?</think>A short summary.")
    'A short summary.'
    """
    if formats.FORMAT.find_answer(completion) is None:
        return formats.FORMAT.outside(completion).strip()
    return extract_answer(completion) or ""


def extract_gsm8k_answer(solution: str) -> str | None:
    """The final answer of a GSM8K solution: what stands after its last `####`.

    >>> extract_gsm8k_answer("48 / 2 = 24, and 48 + 24 = 72.\\n#### 72")
    '72'
    """
    _, found, answer = solution.rpartition("####")
    return answer.strip() or None if found else None


def same_answer(given: str, gold: str) -> bool:
    """Whether both state the same value: numbers compared exactly (two known units differ), anything else as text.

    >>> same_answer("1200.0", "$1,200"), same_answer("paris.", "Paris"), same_answer("18 million", "18")
    (True, True, False)
    >>> same_answer("3 hours", "3 minutes"), same_answer("3 h", "3 hours"), same_answer("3 hours", "3")
    (False, True, True)
    """
    if (wanted := read_number(gold)) is None:
        return same_text(given, gold)
    found = read_number(given)
    return found is not None and same_number(found, wanted)


def same_text(given: str, gold: str) -> bool:
    # no dressing is longer than that; and normalising hostile text takes quadratic time
    return len(given) <= 4 * len(gold) + 100 and plain_text(given) == plain_text(gold) != ""


def with_plain_powers(text: str) -> str:
    return SUPERSCRIPTS.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match[0])}}}", text)


def plain_text(text: str) -> str:
    """A text answer without case, dressing, final stop and repeated white space."""
    text = unicodedata.normalize("NFKC", with_plain_powers(text)).casefold().strip(DRESSING + "$").removesuffix(".")
    return " ".join(text.strip(DRESSING + "$").split())


def gold_text(gold: Any) -> str | None:
    """The gold answer as text, a GSM8K solution's after its `####`; None where there is none to compare with.

    >>> gold_text("48 + 24 = 72\\n#### 72"), gold_text(7.0), gold_text(" "), gold_text(float("nan")), gold_text([7])
    ('72', '7.0', None, None, None)
    """
    missing = gold is None or type(gold).__name__ in ("NAType", "NaTType")  # pandas' own
    missing = missing or isinstance(gold, (list, tuple, dict, set, bytes))
    if missing or isinstance(gold, float) and not math.isfinite(gold):
        return None
    try:
        text = str(gold)
    except ValueError:  # an int of more digits than Python turns into text
        return None
    if "####" in text:
        text = extract_gsm8k_answer(text) or ""
    return text if is_visible(text.strip(DRESSING)) else None
