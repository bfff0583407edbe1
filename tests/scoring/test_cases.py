"""Cases beside those of scoring/cases.py: spellings and cheats that one rule each tells apart."""

import pytest

import rewards  # noqa: F401  (it fills the registry, in which the cases find their rewards)
from scoring.cases import ASKED, BOTH, CASES, CITIES, GOOD, PROBLEM, TWO, Case, of_answers, write
from scoring.structured import MORNING, PERSON

FORMATS = [  # kind, what, completion, format_reward, soft_format_reward
    ("right", "several lines of reasoning", write("3 * 4 = 12\n\n12 is it.\n", "12"), 1, 1),
    ("wrong", "no reasoning block", "<answer>12</answer>", 0, 0.4),
    ("cheating", "blocks of white space", "<think> \n </think><answer> </answer>", 0, 0),
    ("cheating", "dots for reasoning", "<think>...</think><answer>12</answer>", 0, 0.4),
    ("cheating", "closing tags first", "</answer></think><answer><think>", 0, 0),
    ("cheating", "tags stuffed", "<think>" * 50 + "</answer>" * 50, 0, 0),
    ("cheating", "blocks of zero-width characters", "<think>\u200b</think><answer>\u200b</answer>", 0, 0),
    ("cheating", "an answer block that is only opened", "<think>3 * 4 = 12</think><answer>", 0, 0.4),
    ("cheating", "nested reasoning", f"<think>{GOOD}</think><answer>12</answer>", 0, 0),
]
ANSWERS = [  # kind, what, gold, answer block, score
    ("right", "the value itself", "1,200", "1200", 1),
    ("right", "currency before its sign", "-$24", "-24", 1),
    ("right", "a square unit", "12", "12 cm²", 1),
    ("right", "percent", "85%", "85 %", 1),
    ("right", "a mixed fraction", "1.5", "1 1/2", 1),
    ("right", "an assignment", "12", "x = 12", 1),
    ("right", "bold inside", "12", "**12** apples", 1),
    ("right", "a price per something", "18", "$18 per day", 1),
    ("right", "a few words of what it counts", "12", "12 pieces of candy", 1),
    ("right", "spaces that do not break", "1200", "1\u00a0200", 1),
    ("right", "a speed, spelt otherwise", "60 mph", "60 miles per hour", 1),
    ("wrong", "millions in one letter", "18", "18 M", 0),
    ("wrong", "another speed", "60 km/h", "60 mph", 0),
    ("wrong", "another power of the unit", "10 cm", "10 cm^2", 0),
    ("wrong", "a rate for an amount", "12 hours", "12 per hour", 0),
    ("wrong", "a magnitude in slang", "18", "18 grand", 0),
    ("wrong", "a magnitude in another language", "18", "18 milliard", 0),
    ("wrong", "fifths", "12", "12 fifths", 0),
    ("wrong", "algebra", "3", "3ab", 0),
    ("wrong", "a word", "12", "twelve-ish", 0),
    ("cheating", "a doubt", "12", "12?", 0),
    ("cheating", "a bound", "12", "more than 12", 0),
    ("right", "quotes and a full stop", "12", '"12".', 1),
    ("right", "scientific notation", "1200", "1.2e3", 1),
    ("wrong", "another magnitude", "18", "18 million", 0),
    ("wrong", "separators misplaced", "1,200", "1,20,0", 0),
    ("cheating", "a hedge behind the number", "12", "12 i think", 0),
    ("cheating", "a second number in brackets", "12", "12 (or 13)", 0),
]
PLACES = [  # kind, what, completion, score for the gold 12
    ("cheating", "in a reasoning block that stays open", "<think>well, <answer>12</answer>", 0),
    ("cheating", "the same answer twice", "<answer>12</answer><answer>12</answer>", 0),
    ("cheating", "denied after the block", "<answer>12</answer> No, that's wrong.", 0),
    ("cheating", "another number in words after the block", "<answer>12</answer> thirteen", 0),
    ("cheating", "a magnitude after the block", "<answer>12</answer> million", 0),
    ("cheating", "answer tags in another order", "</answer>12<answer>", 0),
]
MATRIX = r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"
EXPRESSIONS = [  # kind, what, gold, answer block, score of math_reward
    ("wrong", "a rounded pi", r"\pi", "3.14159265", 0),
    ("cheating", "the sum left undone, boxed", "72", r"\boxed{48+24}", 0),
    ("cheating", "the sum left undone, behind a fraction", "72", r"\frac{48}{2}+48", 0),
    ("cheating", "several formulas, the right one last", "12", "$10$ $11$ $12$", 0),
    ("cheating", "two boxes", "12", r"\boxed{1}\boxed{2}", 0),
    ("cheating", "a digit behind a percent sign", "85%", "85%1", 0),
    ("cheating", "zero of something", "0", "0k", 0),
    ("wrong", "another letter", "r^2", "R^2", 0),
    ("wrong", "an assignment to something else", "x", "y = x", 0),
    ("wrong", "a set for a point", "(1,2)", r"\{1,2\}", 0),
    ("wrong", "ten times as small", "10^{-41}", "10^{-42}", 0),
    ("wrong", "another matrix", MATRIX, MATRIX.replace("4", "5"), 0),
    ("right", "a matrix with spaces", MATRIX, r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", 1),
    ("right", "a relation, spelt otherwise", r"x \le 3", r"x \leq 3", 1),
    ("right", "a displayed formula", r"\frac{\sqrt2}{2}", r"\[\frac{\sqrt2}{2}\]", 1),
    ("cheating", "both signs", "2", r"\pm 2", 0),
    ("wrong", "another base", "101_2", "101_3", 0),
]
CHOICES = [  # kind, what, answer block, score of multiple_choice_reward for B of Lima, Paris, Rome
    ("right", "the letter in brackets", "(b).", 1),
    ("right", "a short sentence", "The answer is B", 1),
    ("cheating", "all letters", "A B C", 0),
]
JSON = [  # kind, what, answer block, score of json_reward for PERSON (five demands: type, nothing more, name, age)
    ("wrong", "not an object", "[1]", 0.2 + 0.8 * 0.25),
    ("wrong", "not JSON", "name: Ann, age: 31", 0),
    ("cheating", "nested without end", "[" * 100_000, 0),
    ("cheating", "a number without end", '{"name": "Ann", "age": 1e999}', 0),
]
COUNTDOWN = [  # kind, what, answer block, score of countdown_reward for 17 from 3, 4, 5
    ("right", "in LaTeX", r"\boxed{3 \times 4 + 5}", 1),
    ("wrong", "not an expression", "seventeen", 0),
    ("wrong", "divided by zero", "3 / (5 - 5) + 4", 0),
    ("cheating", "a power", "3 ** 4 + 5", 0),
    ("cheating", "a hidden sign", "3 * 4 - -5", 0),
    ("wrong", "a number unused", "12 + 5", 0),
]
SCHEDULE = [  # kind, what, answer block, score of schedule_reward for MORNING (best: Review and Lunch, weight 3)
    ("right", "in another order, with bullets", "- 12:00 - 13:00 Lunch\n- 9:15 to 10:00 review", 1),
    ("wrong", "words", "I would skip the standup.", 0),
    ("cheating", "an event twice", "09:15-10:00 Review\n09:15-10:00 Review", 0),
]
HELPER = "def twice(n):\n    return n + n\n\ndef double(n):\n    return twice(n)\n"
CODE = [  # kind, what, completion, code_reward, syntax_reward
    ("right", "the body without its indentation", "return 2 * n", 1, 1),
    ("right", "in an answer tag and a fence", write("Twice n.", f"```python\n{BOTH}```"), 1, 1),
    ("right", "a lambda", "```python\ndouble = lambda n: 2 * n\n```", 1, 1),
    ("wrong", "right twice", "    return abs(2 * n)", TWO, 1),
    ("wrong", "an exception", "    return n / 0", 0, 1),
    ("wrong", "another name", "def twice(n):\n    return 2 * n\n", 0, 0.5),
    ("wrong", "nothing", "", 0, 0),
    ("cheating", "two answers", write("a", BOTH) + write("a", "def double(n):\n    return 3\n"), 0, 0),
    ("right", "reasoning, then a fence", f"<think>Return n.</think>\n```python\n{BOTH}```", 1, 1),
    ("right", "with its helper", f"```python\n{HELPER}```", 1, 1),
    ("wrong", "an import that is not there", f"import numpy\n{BOTH}", 0, 1),
]
SHAPES = [  # reward, kind, what, completion, lowest and highest score, columns
    ("length_reward", "right", "by its token ids", "x", (1, 1), {"completion_ids": list(range(100))}),
    ("soft_overlong_reward", "wrong", "at the limit", "x", (0, 0), {"completion_ids": [0] * 512}),
    ("repetition_reward", "right", "no phrase twice, in Chinese", "三乘以四等于十二", (1, 1), {}),
    ("repetition_reward", "cheating", "a loop without spaces", "ha" * 5000, (0, 0.01), {}),
    ("reasoning_steps_reward", "right", "numbered", write("1. a b c\n2. d e f\n3. g h i", "17"), (1, 1), {}),
    ("reasoning_steps_reward", "cheating", "the same step again", write("3 * 4 = 12\n" * 9, "12"), (0.3, 0.4), {}),
    ("style_reward", "right", "unwanted words in the reasoning only", write("Sure!! As an AI", "12"), (1, 1), {}),
    ("judge_reward", "wrong", "nothing to see", "<think>12</think>", (0, 0), ASKED),
]
MORE_CASES = [
    *(Case("format_reward", kind, what, text, strict) for kind, what, text, strict, _ in FORMATS),
    *(Case("soft_format_reward", kind, what, text, soft) for kind, what, text, _, soft in FORMATS),
    *of_answers("correctness_reward", ANSWERS),
    *(Case("correctness_reward", kind, what, text, score, {"answer": "12"}) for kind, what, text, score in PLACES),
    *of_answers("math_reward", [*ANSWERS, *EXPRESSIONS]),
    *(Case("math_reward", kind, what, text, score, {"answer": "12"}) for kind, what, text, score in PLACES),
    *of_answers("multiple_choice_reward", CHOICES, {"answer": "B", "choices": CITIES}),
    *of_answers("json_reward", JSON, {"schema": PERSON}),
    *of_answers("countdown_reward", COUNTDOWN, {"numbers": [3, 4, 5], "target": 17}),
    *of_answers("schedule_reward", SCHEDULE, {"events": MORNING["events"]}),
    *(Case("code_reward", kind, what, text, score, PROBLEM) for kind, what, text, score, _ in CODE),
    *(Case(*case) for case in SHAPES),
    *(Case("syntax_reward", "right" if s == 1 else kind, what, text, s, PROBLEM) for kind, what, text, _, s in CODE),
]


@pytest.mark.parametrize("case", MORE_CASES, ids=lambda case: f"{case.reward}-{case.kind}-{case.what}")
def test_case(case):
    assert case.holds, f"{case.completion[:300]!r} scored {case.score}, expected {case.expected}"


def test_no_wrong_or_cheating_case_scores_above_a_right_one():
    lowest = {}
    for case in CASES:
        if case.kind == "right" and case.score is not None:
            lowest[case.reward] = min(lowest.get(case.reward, 1), case.score)
    assert [case for case in MORE_CASES if case.kind != "right" and case.score >= lowest[case.reward]] == []
