"""Prompt format, answer extraction and reward functions for GRPO.

Write the score of ONE completion, put `@reward` on it, and it is a TRL reward function:

>>> @reward
... def brevity_reward(completion: str) -> float:
...     return 1.0 if len(completion) < 40 else 0.0
>>> brevity_reward.score("short")
1.0
>>> brevity_reward(prompts=["p", "p"], completions=["short", "l" + "o" * 50 + "ng"])
[1.0, 0.0]

A parameter named `completion` gets the text, `prompt` the prompt, and any other parameter the
data-set column of that name. Scores lie in [0, 1] unless the decorator declares another range;
weights live in the training configuration. `None` means that the prompt or the gold answer cannot
be scored, never that the completion is bad.

This module imports no torch and no notebook code.
"""

from __future__ import annotations

import inspect
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

# --------------------------------------------------------------------------- the tag format


@dataclass(frozen=True)
class TagFormat:
    """The tags that a completion is asked to use: one reasoning block, then one answer block."""

    reasoning: str = "think"
    answer: str = "answer"

    @property
    def tags(self) -> tuple[str, str, str, str]:
        """The four tags in the order in which they must occur."""
        return f"<{self.reasoning}>", f"</{self.reasoning}>", f"<{self.answer}>", f"</{self.answer}>"

    @property
    def system_prompt(self) -> str:
        open_reasoning, close_reasoning, open_answer, close_answer = self.tags
        return (
            f"Think step by step between {open_reasoning} and {close_reasoning}, "
            f"then give only the final answer between {open_answer} and {close_answer}."
        )

    def write(self, reasoning: str, answer: str) -> str:
        """A completion in the asked-for format, for few-shot examples and tests."""
        open_reasoning, close_reasoning, open_answer, close_answer = self.tags
        return f"{open_reasoning}\n{reasoning}\n{close_reasoning}\n{open_answer}\n{answer}\n{close_answer}"


TAGS = TagFormat()  # change the tags here; the system prompt, extraction and format rewards follow
SYSTEM_PROMPT = TAGS.system_prompt

# --------------------------------------------------------------------------- the decorator

Score = float | int | bool | None


class RewardError(RuntimeError):
    """A reward function is broken: it raised, or returned something that is not a score."""


class MissingColumnError(ValueError):
    """A reward function needs a data-set column that is not there."""


def completion_text(completion: str | Sequence[dict[str, Any]]) -> str:
    """The text of a completion, given as a string or as a list of chat messages."""
    if isinstance(completion, str):
        return completion
    return "".join(str(message.get("content") or "") for message in completion)


def assistant_prefix(prompt: str | Sequence[dict[str, Any]]) -> str:
    """What the prompt already put into the assistant's mouth, which the completion then lacks.

    >>> assistant_prefix([{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "<think>"}])
    '<think>'
    >>> assistant_prefix("Question: 2 + 2? <think>\\n")
    '<think>\\n'
    """
    if isinstance(prompt, str):
        opening = TAGS.tags[0]
        return prompt[prompt.rindex(opening) :] if prompt.rstrip().endswith(opening) else ""
    last = prompt[-1] if prompt else {}
    return str(last.get("content") or "") if last.get("role") == "assistant" else ""


class RewardFunction:
    """A reward in TRL's signature, made by `@reward` from the score of one completion.

    Attributes:
        columns: names of the data-set columns it cannot do without.
        low, high: the range of its scores.
    """

    def __init__(self, function: Callable[..., Score], low: float, high: float) -> None:
        self.function, self.low, self.high = function, low, high
        self.__name__, self.__doc__, self.__wrapped__ = function.__name__, function.__doc__, function
        self.__module__, self.__qualname__ = function.__module__, function.__qualname__
        parameters = inspect.signature(function).parameters
        if any(parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) for parameter in parameters.values()):
            raise TypeError(f"{function.__name__}: name the columns it needs as parameters instead of * or **")
        if "completion" not in parameters:
            raise TypeError(f"{self.__name__} needs a parameter named 'completion': the text to score")
        self._names = tuple(parameters)
        self.columns = tuple(
            name
            for name, parameter in parameters.items()
            if name not in ("completion", "prompt") and parameter.default is parameter.empty
        )

    def __repr__(self) -> str:
        return f"<reward {self.__name__} in [{self.low:g}, {self.high:g}], columns: {', '.join(self.columns) or 'none'}>"

    def score(self, completion: str | Sequence[dict[str, Any]], prompt: Any = "", **columns: Any) -> float | None:
        """The score of one completion. Raises RewardError where the function fails or misbehaves."""
        self.check_columns(columns)
        completion = completion_text(completion)
        given = {**columns, "prompt": prompt, "completion": completion}
        try:
            value = self.function(**{name: given[name] for name in self._names if name in given})
        except Exception as error:
            raise RewardError(
                f"{self.__name__} raised {type(error).__name__}: {error}\non the completion {completion[:300]!r}"
            ) from error
        return self._checked(value, completion)

    def _checked(self, value: Any, completion: str) -> float | None:
        if value is None:
            return None
        try:
            number = float(value) if not isinstance(value, str) else math.nan
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number) or not self.low <= number <= self.high:
            raise RewardError(
                f"{self.__name__} returned {value!r}, which is not a finite number in "
                f"[{self.low:g}, {self.high:g}], for the completion {completion[:300]!r}"
            )
        return number

    def check_columns(self, available: Iterable[str]) -> None:
        """Raises MissingColumnError, naming what is missing, unless every needed column is there."""
        available = set(available) - {"completion", "prompt"}
        missing = [name for name in self.columns if name not in available]
        if missing:
            raise MissingColumnError(
                f"{self.__name__} needs the data-set column {', '.join(map(repr, missing))}; "
                f"there are: {', '.join(sorted(available)) or 'none'}. "
                "Rename the column in 01_prepare_data, or give the parameter a default."
            )

    def __call__(self, prompts: Sequence, completions: Sequence, **columns: Any) -> list[float | None]:
        """TRL's call: one prompt, completion and column value a row; one score a row comes back."""
        rows = {name: columns[name] for name in self._names if name in columns}
        self.check_columns(columns)
        for name, values in rows.items():
            if isinstance(values, str) or len(values) != len(completions):
                raise ValueError(f"{self.__name__}: the column {name!r} needs one value for each of {len(completions)} completions")
        scores = []
        for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            text = assistant_prefix(prompt) + completion_text(completion)
            scores.append(self.score(text, prompt, **{name: values[index] for name, values in rows.items()}))
        return scores


def reward(function: Callable[..., Score] | None = None, *, low: float = 0.0, high: float = 1.0) -> Any:
    """Decorator: makes a TRL reward function of the score of one completion.

    Args:
        function: takes `completion` (str), and by name `prompt` and any data-set column.
        low, high: the range of its scores; a score outside raises RewardError.
    """
    if function is None:
        return lambda f: RewardFunction(f, low, high)
    return RewardFunction(function, low, high)


# --------------------------------------------------------------------------- extraction


def split_completion(completion: str) -> tuple[str, str] | None:
    """(reasoning, answer) of a strictly formatted completion, None for anything else.

    Strict means: one reasoning block, then one answer block, both non-empty, each tag exactly once,
    and nothing but white space before, between and after. Counting instead of one regular
    expression keeps this linear: lazy groups in a row are quadratic on repeated tags.

    >>> split_completion("<think>2 + 2 = 4</think> <answer>4</answer>")
    ('2 + 2 = 4', '4')
    >>> split_completion("<think>2 + 2 = 4</think> <answer>4</answer> Bye!") is None
    True
    """
    rest, parts = completion, []
    if any(completion.count(tag) != 1 for tag in TAGS.tags):
        return None
    for tag in TAGS.tags:
        before, found, rest = rest.partition(tag)
        if not found:
            return None  # the tags are there, but in another order
        parts.append(before.strip())
    lead, reasoning, between, answer = parts
    if lead or between or rest.strip() or not reasoning or not answer:
        return None
    return reasoning, answer


def extract_reasoning(completion: str) -> str | None:
    """The text of the one reasoning block, or None where there is none, several, or it is open.

    >>> extract_reasoning("<think> 2 + 2 = 4 </think><answer>4</answer>")
    '2 + 2 = 4'
    """
    opening, closing = TAGS.tags[:2]
    if completion.count(opening) != 1 or completion.count(closing) != 1:
        return None
    _, _, rest = completion.partition(opening)
    reasoning, found, _ = rest.partition(closing)
    return reasoning.strip() if found else None


def extract_answer(completion: str) -> str | None:
    """The text of the one answer block that stands outside the reasoning, or None.

    None as well for several answer blocks, or one inside a reasoning block that is never closed:
    a completion that offers two answers has not answered.

    >>> extract_answer("<think>is it <answer>5</answer>?</think><answer> 4 </answer>")
    '4'
    >>> extract_answer("<answer>4</answer><answer>5</answer>") is None
    True
    """
    open_reasoning, close_reasoning, opening, closing = TAGS.tags
    if completion.count(open_reasoning) > 1 or completion.count(close_reasoning) > 1:
        return None
    if open_reasoning in completion or close_reasoning in completion:
        before, closed, after = completion.partition(close_reasoning)
        if not closed or open_reasoning in after:
            return None
        completion = (before.partition(open_reasoning)[0] if open_reasoning in before else "") + after
    if completion.count(opening) != 1 or completion.count(closing) != 1:
        return None
    _, _, rest = completion.partition(opening)
    answer, found, _ = rest.partition(closing)
    return answer.strip() or None if found else None


def extract_gsm8k_answer(solution: str) -> str | None:
    """The final answer of a GSM8K solution: what stands after its last `####`.

    >>> extract_gsm8k_answer("48 / 2 = 24, and 48 + 24 = 72.\\n#### 72")
    '72'
    """
    _, found, answer = solution.rpartition("####")
    return answer.strip() or None if found else None


NUMBER = re.compile(
    r"""(?P<sign>[-+]?)\s?(?P<currency>[$€£¥]?)\s?(?P<inner>[-+]?)
        (?P<whole>\d{1,3}(?:,\d{3})+|\d+)?(?P<decimals>\.\d+)?
        (?:e(?P<exponent>[-+]?\d{1,3}))?
        (?:\s?/\s?(?P<denominator>\d+))?
        (?P<unit>\s?[%°€£¥]|\s?°?[a-z]+|\s[a-z]+/[a-z]+|\s(?:square|cubic)\s[a-z]+|\s[a-z]+\s(?:per|an|a)\s[a-z]+
        |\s(?:us\sdollars|per\scent|degrees\s(?:celsius|fahrenheit)))?""",
    re.VERBOSE,
)
# Words after a number that are no unit: they change its size, doubt it, or make it one of several.
NOT_UNITS = frozenset(
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety tens hundred thousand million billion "
    "trillion quadrillion dozen lakh crore k kk mn mio mil b bn bil bln t tn half halve third quarter tenth hundredth "
    "thousandth squared cubed factorial doubled tripled halved twice times inverse negative minus plus e i x pi "
    "about around approx approximately circa ish roughly nearly almost maybe perhaps possibly probably presumably "
    "unsure uncertain guess think hmm wrong incorrect unknown none no not never n/a false either or and nor but to "
    "than then through versus vs with otherwise also else more less fewer few most least minimum maximum max min "
    "above below over under up down short lower higher too if is".split()
)
DRESSING = "*_`\"'“”‘’ \t\r\n$"  # bold, code, quotes and LaTeX dollars around an answer
LONGEST_NUMBER = 400  # characters; a longer "answer" is not one


def extract_number(text: str) -> Fraction | None:
    """The number that a short text states, exactly; None unless the text is one number.

    Understood: signs (also the unicode minus), decimals, thousands separators, currency, percent
    (85% is 85), a unit word, fractions, scientific notation, and bold, quotes or a full stop around
    it. A hedge ("about 5"), a choice ("4 or 5"), a size word ("5 million") is not one number.

    >>> extract_number("**$1,200.50**"), extract_number("−3 degrees"), extract_number("3/4")
    (Fraction(2401, 2), Fraction(-3, 1), Fraction(3, 4))
    >>> extract_number("4 or 5"), extract_number("5 million"), extract_number("1,20")
    (None, None, None)
    """
    text = re.sub(r"(?<=[a-zA-Z])[²³]", "", text.strip()[: LONGEST_NUMBER + 1])  # m² is a unit, 12² is not 122
    if len(text) > LONGEST_NUMBER or any(unicodedata.category(char) == "No" for char in text):
        return None  # No: superscripts, circled digits, ½, which NFKC would glue to the digits beside them
    if re.search(r"\d\s?M\b", text):
        return None  # millions
    text = unicodedata.normalize("NFKC", text).casefold()
    text = text.replace("−", "-").replace("–", "-").strip(DRESSING).removesuffix(".").strip(DRESSING)
    match = NUMBER.fullmatch(text)
    if not match or not (match["whole"] or match["decimals"]) or (match["sign"] and match["inner"]):
        return None
    words = re.findall(r"[a-z]+", match["unit"] or "")
    if any(word in NOT_UNITS or word.removesuffix("s") in NOT_UNITS for word in words) or re.search(r"\dm$", text):
        return None  # "5m" may be metres or millions; "5 m" is metres
    value = Fraction((match["whole"] or "0").replace(",", "") + (match["decimals"] or ""))
    value *= Fraction(10) ** int(match["exponent"] or 0)
    if match["denominator"]:
        if not int(match["denominator"]):
            return None
        value /= int(match["denominator"])
    return -value if "-" in (match["sign"], match["inner"]) else value


CODE_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def extract_code(completion: str) -> str | None:
    """The Python code of a chat answer: its last fenced block, else the text where it looks like code.

    >>> extract_code("Here it is:\\n```python\\ndef f():\\n    return 1\\n```")
    'def f():\\n    return 1\\n'
    >>> extract_code("You can use a loop.") is None
    True
    """
    blocks = CODE_BLOCK.findall(completion)
    if blocks:
        return blocks[-1]
    return completion if re.match(r"(?:def |import |from |@|[ \t]+\S)", completion) else None


# --------------------------------------------------------------------------- rewards


def same_answer(given: str, gold: str) -> bool:
    """True where both state the same value: numbers compared exactly, anything else as text.

    >>> same_answer("1200.0", "$1,200"), same_answer("paris.", "Paris"), same_answer("18 million", "18")
    (True, True, False)
    """
    value = extract_number(gold)
    if value is not None:
        return extract_number(given) == value
    return plain_text(given) == plain_text(gold) != ""


def plain_text(text: str) -> str:
    """A text answer without case, dressing, final stop and repeated white space."""
    text = unicodedata.normalize("NFKC", text).casefold().strip(DRESSING).removesuffix(".")
    return " ".join(text.strip(DRESSING).split())


@reward
def format_reward(completion: str) -> float:
    """Whether the completion has exactly the asked-for format. Returns 0 or 1.

    >>> format_reward.score("<think>2 + 2 = 4</think><answer>4</answer>")
    1.0
    >>> format_reward.score("<think></think><answer>4</answer>")
    0.0
    """
    return 1.0 if split_completion(completion) else 0.0


@reward
def soft_format_reward(completion: str) -> float:
    """How much of the asked-for format is there. Returns 0, 0.2, … 0.8, or 1 for the strict format.

    A fifth for each tag in its place (once, in order, the block it closes not empty, nothing after
    the last), a fifth for the whole. It is what GRPO can climb while nobody in the group has the
    strict format yet.

    >>> soft_format_reward.score("It is <answer>4</answer>")
    0.4
    >>> soft_format_reward.score("<think>2 + 2 = 4</think><answer>4</answer> Bye!")
    0.6
    """
    if split_completion(completion):
        return 1.0
    positions = [completion.find(tag) if completion.count(tag) == 1 else -1 for tag in TAGS.tags]
    open_reasoning, close_reasoning, open_answer, close_answer = positions
    first, second, third, _ = TAGS.tags
    in_place = [
        open_reasoning >= 0 and not completion[:open_reasoning].strip(),
        0 <= open_reasoning < close_reasoning
        and completion[open_reasoning + len(first) : close_reasoning].strip() != "",
        open_answer > close_reasoning and (close_reasoning < 0 or 0 <= open_reasoning < close_reasoning),
        0 <= open_answer < close_answer
        and completion[open_answer + len(third) : close_answer].strip() != ""
        and completion.rstrip().endswith(TAGS.tags[3]),
    ]
    return sum(in_place) / 5


@reward
def correctness_reward(completion: str, answer: Any) -> float | None:
    """Whether the answer block states the gold answer. Returns 0 or 1; None for an unusable gold.

    Numbers are compared as exact numbers, other answers as text; what stands in the reasoning does
    not count, and neither do two answers.

    >>> correctness_reward.score("<think>3 * 400</think><answer>$1,200</answer>", answer="1200")
    1.0
    >>> correctness_reward.score("<think>1200</think><answer>about 1200</answer>", answer="1200")
    0.0
    """
    gold = "" if answer is None else str(answer)
    if not plain_text(gold):
        return None
    given = extract_answer(completion)
    return 1.0 if given is not None and same_answer(given, gold) else 0.0


# Every reward here, by name: notebook 02 lists them, and rewards.json names them.
REGISTRY: dict[str, RewardFunction] = {
    function.__name__: function for function in (format_reward, soft_format_reward, correctness_reward)
}
