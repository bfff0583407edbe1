"""Cases for every reward: what is right, what is wrong, what cheats. The tests run this list, and
notebook 02 shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rewards import REGISTRY, TAGS


@dataclass(frozen=True)
class Case:
    """A completion, what it is, and the score that the reward must give."""

    reward: str
    kind: str  # right, wrong or cheating
    what: str
    completion: str
    expected: float | None
    columns: dict[str, Any] = field(default_factory=dict)

    @property
    def score(self) -> float | None:
        return REGISTRY[self.reward].score(self.completion, **self.columns)


GOOD = TAGS.write("3 * 4 = 12", "12")
FORMAT = [  # what, completion, format_reward, soft_format_reward
    ("right", "the asked-for format", GOOD, 1, 1),
    ("right", "on one line", "<think>3 * 4 = 12</think><answer>12</answer>", 1, 1),
    ("right", "several lines of reasoning", TAGS.write("3 * 4 = 12\n\n12 is it.\n", "12"), 1, 1),
    ("right", "white space around the blocks", f"\n  {GOOD}\n\n", 1, 1),
    ("wrong", "no tags", "3 * 4 = 12, so 12", 0, 0),
    ("wrong", "nothing", "", 0, 0),
    ("wrong", "no reasoning block", "<answer>12</answer>", 0, 0.4),
    ("wrong", "no answer block", "<think>3 * 4 = 12</think> 12", 0, 0.4),
    ("wrong", "reasoning never closed", "<think>3 * 4 = 12 <answer>12</answer>", 0, 0.6),
    ("wrong", "answer never closed", "<think>3 * 4 = 12</think><answer>12", 0, 0.6),
    ("wrong", "words before the blocks", f"Sure! {GOOD}", 0, 0.6),
    ("wrong", "words between the blocks", "<think>3 * 4 = 12</think> so <answer>12</answer>", 0, 0.8),
    ("wrong", "chatter after the blocks", f"{GOOD}\nI hope this helps!", 0, 0.6),
    ("cheating", "empty blocks", "<think></think><answer></answer>", 0, 0.4),
    ("cheating", "blocks of white space", "<think> \n </think><answer> </answer>", 0, 0.4),
    ("cheating", "tags in another order", "<answer>12</answer><think>3 * 4 = 12</think>", 0, 0.2),
    ("cheating", "closing tags first", "</answer></think><answer><think>", 0, 0),
    ("cheating", "a second answer", f"{GOOD}<answer>13</answer>", 0, 0.4),
    ("cheating", "the blocks twice", GOOD + GOOD, 0, 0),
    ("cheating", "nested reasoning", f"<think>{GOOD}</think><answer>12</answer>", 0, 0),
    ("cheating", "tags stuffed", "<think>" * 50 + "</answer>" * 50, 0, 0),
    ("cheating", "other capitals", "<THINK>3 * 4 = 12</THINK><ANSWER>12</ANSWER>", 0, 0),
]

ANSWERS = [  # kind, what, gold, answer block, score
    ("right", "the value itself", "1,200", "1200", 1),
    ("right", "thousands separators", "1200", "1,200", 1),
    ("right", "currency and cents", "1,200", "$1,200.00", 1),
    ("right", "bold", "12", "**12**", 1),
    ("right", "a full stop", "12", "12.", 1),
    ("right", "a unit word", "12", "12 apples", 1),
    ("right", "percent", "85%", "85 %", 1),
    ("right", "percent left out", "85%", "85", 1),
    ("right", "the unicode minus", "-4", "−4", 1),
    ("right", "a negative amount", "-$24", "-24", 1),
    ("right", "a fraction of the same value", "0.75", "3/4", 1),
    ("right", "a text in other clothes", "Paris", '"paris".', 1),
    ("wrong", "another number", "12", "13", 0),
    ("wrong", "off by one far out", "100000000000000000001", "100000000000000000002", 0),
    ("wrong", "the sign lost", "-4", "4", 0),
    ("wrong", "another magnitude", "18", "18 million", 0),
    ("wrong", "millions in one letter", "18", "18 M", 0),
    ("wrong", "a square", "122", "12²", 0),
    ("wrong", "digits glued on", "12", "120", 0),
    ("wrong", "separators misplaced", "1,200", "1,20,0", 0),
    ("wrong", "a word", "12", "twelve-ish", 0),
    ("wrong", "nothing", "12", "", 0),
    ("cheating", "a hedge", "12", "about 12", 0),
    ("cheating", "a hedge behind the number", "12", "12 i think", 0),
    ("cheating", "a choice", "12", "12 or 13", 0),
    ("cheating", "a range", "12", "11-13", 0),
    ("cheating", "every candidate", "12", " ".join(map(str, range(30))), 0),
    ("cheating", "the work in the answer", "12", "3 * 4 = 12", 0),
    ("cheating", "a bound", "12", "more than 12", 0),
    ("cheating", "a huge exponent", "12", "12e999999999", 0),
    ("cheating", "the gold in a longer text", "Paris", "Paris, or London", 0),
]

PLACES = [  # kind, what, completion, score for the gold 12
    ("right", "answer block alone", "<answer>12</answer>", 1),
    ("wrong", "no answer block", "12", 0),
    ("cheating", "only in the reasoning", "<think><answer>12</answer></think>", 0),
    ("cheating", "in a reasoning block that stays open", "<think>well, <answer>12</answer>", 0),
    ("cheating", "two answer blocks", "<answer>12</answer><answer>13</answer>", 0),
    ("cheating", "another answer before the reasoning", "<answer>13</answer><think>a</think><answer>12</answer>", 0),
    ("cheating", "the same answer twice", "<answer>12</answer><answer>12</answer>", 0),
    ("cheating", "right in the reasoning, wrong in the answer", TAGS.write("12", "13"), 0),
    ("cheating", "answer tags in another order", "</answer>12<answer>", 0),
]

CASES = [
    *(Case("format_reward", kind, what, text, strict) for kind, what, text, strict, _ in FORMAT),
    *(Case("soft_format_reward", kind, what, text, soft) for kind, what, text, _, soft in FORMAT),
    *(
        Case("correctness_reward", kind, what, TAGS.write("Let me see.", given), score, {"answer": gold})
        for kind, what, gold, given, score in ANSWERS
    ),
    *(Case("correctness_reward", kind, what, text, score, {"answer": "12"}) for kind, what, text, score in PLACES),
    Case("correctness_reward", "right", "a gold that cannot be used", GOOD, None, {"answer": " "}),
    Case("correctness_reward", "right", "a gold that is a number, not a text", GOOD, 1, {"answer": 12}),
]
