"""The cases that notebook 02 shows: right, wrong and cheating completions, with the score that each must get.

The tests run them, and more (tests/scoring/test_cases.py). A case finds its reward by name in the registry, which is
filled when `rewards` is imported.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from scoring.contract import REGISTRY
from scoring.formats import TagFormat
from scoring.structured import MORNING, PERSON


@dataclass(frozen=True)
class Case:
    """A completion, what it is, and the score that the reward must give."""

    reward: str
    kind: str  # right, wrong or cheating
    what: str
    completion: str
    expected: float | tuple[float, float] | None  # a score, or the lowest and highest that will do
    columns: dict[str, Any] = field(default_factory=dict)

    @property
    def score(self) -> float | None:
        """The score that the reward gives now. Raises KeyError where `rewards` was never imported."""
        return REGISTRY[self.reward].score(self.completion, **self.columns)

    @property
    def holds(self) -> bool:
        """Whether the score is what it must be."""
        score, expected = self.score, self.expected
        if score is None or expected is None:
            return score is expected
        low, high = expected if isinstance(expected, tuple) else (expected, expected)
        return low - 1e-9 <= score <= high + 1e-9

    @property
    def excerpt(self) -> str:
        """What is worth reading: the answer where the rest is form, else the completion's end."""
        parts = FORMAT.split(self.completion)
        text = parts[1] if parts and parts[0] == REASONING else self.completion
        text = " ".join(text.split())
        return text if len(text) < 70 else f"… {text[-60:]}"


FORMAT = TagFormat()  # the format that the project starts with
write, REASONING = FORMAT.write, "Let me see."
GOOD = write("3 * 4 = 12", "12")
FORMATS = [  # kind, what, completion, format_reward, soft_format_reward
    ("right", "the asked-for format", GOOD, 1, 1),
    ("right", "white space around the blocks", f"\n  {GOOD}\n\n", 1, 1),
    ("wrong", "no tags", "3 * 4 = 12, so 12", 0, 0),
    ("wrong", "nothing", "", 0, 0),
    ("wrong", "no answer block", "<think>3 * 4 = 12</think> 12", 0, 0.4),
    ("wrong", "reasoning never closed", "<think>3 * 4 = 12 <answer>12</answer>", 0, 0.6),
    ("wrong", "answer never closed", "<think>3 * 4 = 12</think><answer>12", 0, 0.6),
    ("wrong", "words between the blocks", "<think>3 * 4 = 12</think> so <answer>12</answer>", 0, 0.8),
    ("wrong", "chatter after the blocks", f"{GOOD}\nI hope this helps!", 0, 0.6),
    ("cheating", "empty blocks", "<think></think><answer></answer>", 0, 0),
    ("cheating", "tags in another order", "<answer>12</answer><think>3 * 4 = 12</think>", 0, 0.2),
    ("cheating", "a second answer", f"{GOOD}<answer>13</answer>", 0, 0.4),
    ("cheating", "other capitals", "<THINK>3 * 4 = 12</THINK><ANSWER>12</ANSWER>", 0, 0),
]
ANSWERS = [  # kind, what, gold, answer block, score
    ("right", "thousands separators", "1200", "1,200", 1),
    ("right", "currency and cents", "1,200", "$1,200.00", 1),
    ("right", "a unit word", "12", "12 apples", 1),
    ("right", "the same unit, spelt otherwise", "3 hours", "3 h", 1),
    ("right", "percent left out", "85%", "85", 1),
    ("right", "the unicode minus", "-4", "−4", 1),
    ("right", "a fraction of the same value", "0.75", "3/4", 1),
    ("right", "a LaTeX formula", "12", r"\(\boxed{12}\)", 1),
    ("right", "the magnitude in a word", "5,000,000", "5 million", 1),
    ("right", "announced", "12", "The answer is 12.", 1),
    ("right", "a text in other clothes", "Paris", '"paris".', 1),
    ("wrong", "another number", "12", "13", 0),
    ("wrong", "off by one far out", "100000000000000000001", "100000000000000000002", 0),
    ("wrong", "the sign lost", "-4", "4", 0),
    ("wrong", "another unit", "3 hours", "3 minutes", 0),
    ("wrong", "a percentage for its number", "0.5", "0.5%", 0),
    ("wrong", "a square", "122", "12²", 0),
    ("wrong", "digits glued on", "12", "120", 0),
    ("cheating", "a hedge", "12", "about 12", 0),
    ("cheating", "a choice", "12", "12 or 13", 0),
    ("cheating", "a range", "12", "11-13", 0),
    ("cheating", "every candidate", "12", " ".join(map(str, range(30))), 0),
    ("cheating", "the work in the answer", "12", "3 * 4 = 12", 0),
    ("cheating", "a huge exponent", "12", "12e999999999", 0),
    ("cheating", "the gold in a longer text", "Paris", "Paris, or London", 0),
]
PLACES = [  # kind, what, completion, score for the gold 12
    ("wrong", "no answer block", "12", 0),
    ("cheating", "only in the reasoning", "<think><answer>12</answer></think>", 0),
    ("cheating", "two answer blocks", "<answer>12</answer><answer>13</answer>", 0),
    ("cheating", "taken back after the block", "<answer>12</answer> Wait, that is a mistake.", 0),
    ("cheating", "right in the reasoning, wrong in the answer", write("12", "13"), 0),
]
EXPRESSIONS = [  # kind, what, gold, answer block, score of math_reward
    ("right", "a fraction", "0.5", r"\frac{1}{2}", 1),
    ("right", "a factored polynomial", "x^2-1", "(x-1)(x+1)", 1),
    ("right", "an equal root", r"\sqrt{12}", r"2\sqrt{3}", 1),
    ("right", "a set in another order", r"\{1, 2\}", r"\{2, 1\}", 1),
    ("wrong", "a pair in another order", "(1, 2)", "(2, 1)", 0),
    ("wrong", "a rounded root", r"\sqrt{2}", "1.414214", 0),
    ("cheating", "a choice", "x+1", "x+1 or x-1", 0),
    ("cheating", "several candidates", "x", "x, y, z", 0),
    ("cheating", "the sum left undone", "12", "3 * 4", 0),
    ("cheating", "a tower of powers", "x", "9^{9^{9^{9}}}", 0),
]
CLOSE = [  # kind, what, gold, answer block, score of numeric_closeness_reward
    ("right", "exact", "100", "$100.00", 1),
    ("wrong", "10 % away", "100", "110", 0.4),
    ("wrong", "off by one far out", "1" + "0" * 30, "1" + "0" * 29 + "1", 0.5),
    ("wrong", "no number", "100", "many", 0),
    ("cheating", "a range around it", "100", "90-110", 0),
    ("cheating", "every candidate", "100", "99 100 101", 0),
]
REFERENCE = "the quick brown fox jumps over the lazy dog"
TEXTS = [  # kind, what, completion, bounds of bleu_reward, bounds of rouge_reward for REFERENCE
    ("right", "the reference", write("a fox", REFERENCE), (1, 1), (1, 1)),
    ("wrong", "half of it", write("a fox", "the quick brown fox"), (0.2, 0.4), (0.5, 0.7)),
    ("cheating", "only in the reasoning", write(REFERENCE, "see above"), (0, 0.01), (0, 0.01)),
]
TASKS = {  # reward: its columns, and rows of kind, what, answer block, score
    "multiple_choice_reward": (
        {"answer": "B", "choices": ["Lima", "Paris", "Rome"]},
        ("right", "the letter", "B", 1),
        ("right", "both", "B) Paris", 1),
        ("wrong", "another letter", "C", 0),
        ("cheating", "letter and text disagree", "B) Rome", 0),
    ),
    "json_reward": (
        {"schema": PERSON},  # five demands: type, nothing more, name, age, both
        ("right", "all of it", '{"name": "Ann", "age": 31}', 1),
        ("wrong", "a property missing", '{"name": "Ann"}', 0.2 + 0.8 * 0.75),
        ("cheating", "an empty object", "{}", 0.2 + 0.8 * 0.5),
        ("cheating", "a key twice", '{"name": "Ann", "age": 30, "age": 31}', 0),
    ),
    "countdown_reward": (
        {"numbers": [3, 4, 5], "target": 17},
        ("right", "an expression", "3 * 4 + 5", 1),
        ("wrong", "another result", "3 + 4 + 5", 0),
        ("cheating", "the target itself", "17", 0),
        ("cheating", "a tower of powers", "9**9**9", 0),
        ("cheating", "digits glued by a point", "3.4 * 5", 0),
    ),
    "schedule_reward": (
        {"events": MORNING["events"]},  # the best: Review and Lunch, weight 3
        ("right", "the best", "09:15-10:00 Review\n12:00-13:00 Lunch", 1),
        ("wrong", "a lighter choice", "09:00-09:30 Standup\n12:00-13:00 Lunch", 2 / 3),
        ("cheating", "everything, overlapping", "09:00-09:30 Standup\n09:15-10:00 Review\n12:00-13:00 Lunch", 0),
    ),
}
SHORT, LONG = write("3 * 4 = 12", "12"), write("3 * 4 = 12. " * 400, "12")
STEPS = "3 * 4 = 12\n12 + 5 = 17\nSo it is 17."
SHAPES = [  # reward, kind, what, completion, lowest and highest score, columns
    ("length_reward", "right", "in the band", "x" * 400, (1, 1), {}),
    ("length_reward", "wrong", "too long", "x" * 1200, (0.5, 0.5), {}),
    ("length_reward", "cheating", "nothing", "", (0, 0), {}),
    ("cosine_length_reward", "right", "right and short", SHORT, (0.98, 1), {"answer": "12"}),
    ("cosine_length_reward", "wrong", "wrong and short", SHORT, (0, 0), {"answer": "13"}),
    ("cosine_length_reward", "cheating", "wrong and padded", LONG, (0, 0), {"answer": "13"}),
    ("soft_overlong_reward", "right", "far from the limit", SHORT, (1, 1), {}),
    ("soft_overlong_reward", "wrong", "halfway into the buffer", "x" * 4 * 448, (0.5, 0.5), {}),
    ("soft_overlong_reward", "cheating", "twice the limit", "x" * 4096, (0, 0), {}),
    ("repetition_reward", "right", "no phrase twice", "Three times four is twelve, so twelve it must be.", (1, 1), {}),
    ("repetition_reward", "wrong", "a phrase twice", "so it is twelve and so it is twelve", (0.5, 0.9), {}),
    ("repetition_reward", "cheating", "a loop", "go on " * 500, (0, 0.01), {}),
    ("reasoning_steps_reward", "right", "three steps", write(STEPS, "17"), (1, 1), {}),
    ("reasoning_steps_reward", "wrong", "one step", write("3 * 4 = 12", "12"), (0.3, 0.4), {}),
    ("reasoning_steps_reward", "cheating", "first, first, first", write("First, First, First,", "12"), (0, 0), {}),
    ("style_reward", "right", "plain", GOOD, (1, 1), {}),
    ("style_reward", "wrong", "flattery", f"Great question! {GOOD}", (0.75, 0.75), {}),
    ("style_reward", "cheating", "nothing outside the reasoning", "<think>hm</think>", (0, 0), {}),
]


def of_answers(reward: str, table: Iterable[tuple], columns: dict[str, Any] | None = None) -> list[Case]:
    """The cases of a table of answers: with these columns, or with the gold of each row."""
    rows = [(kind, what, write(REASONING, text), score, gold) for kind, what, *gold, text, score in table]
    return [Case(reward, *row, columns or {"answer": gold[0]}) for *row, gold in rows]


CASES = [
    *(Case("format_reward", kind, what, text, strict) for kind, what, text, strict, _ in FORMATS),
    *(Case("soft_format_reward", kind, what, text, soft) for kind, what, text, _, soft in FORMATS),
    *of_answers("correctness_reward", ANSWERS),
    *(Case("correctness_reward", kind, what, text, score, {"answer": "12"}) for kind, what, text, score in PLACES),
    *of_answers("math_reward", EXPRESSIONS),
    *of_answers("numeric_closeness_reward", CLOSE),
    Case("numeric_closeness_reward", "right", "a gold that is no number", GOOD, None, {"answer": "Paris"}),
    *(Case("bleu_reward", kind, what, text, bounds, {"answer": REFERENCE}) for kind, what, text, bounds, _ in TEXTS),
    *(Case("rouge_reward", kind, what, text, bounds, {"answer": REFERENCE}) for kind, what, text, _, bounds in TEXTS),
    *(case for reward, (columns, *table) in TASKS.items() for case in of_answers(reward, table, columns)),
    *(Case(*case) for case in SHAPES),
]
