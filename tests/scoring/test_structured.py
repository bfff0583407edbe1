"""Sums, schedules and JSON Schemas."""

import ast
import re
from fractions import Fraction

import pytest

from rewards import (
    countdown_reward,
    json_reward,
)
from scoring.structured import arithmetic, best_schedule


@pytest.mark.parametrize(
    "sum_",
    [
        "9**9**9",
        "1e3",
        "0x10",
        "1_000",
        "(1",
        "1 2",
        "+1",
        "-1",
        "a",
        "1.5",
        "[1]",
        "1 if 1 else 2",
        "1//1",
        "(" * 290,
        "1,2",
    ],
)
def test_a_sum_is_whole_numbers_and_four_operations_only(sum_):
    assert arithmetic(sum_) is None


def test_arithmetic_agrees_with_python_on_random_sums():
    import random

    rng = random.Random(0)
    for _ in range(300):
        text = str(rng.randint(1, 9))
        for _ in range(rng.randint(1, 5)):
            text = rng.choice(["({0}) {1} {2}", "{2} {1} ({0})", "{0} {1} {2}"]).format(
                text, rng.choice("+-*/"), rng.randint(1, 9)
            )
        exact = re.sub(r"\d+", lambda match: f"Fraction({match[0]})", text)
        try:
            expected = eval(exact, {"Fraction": Fraction})
        except ZeroDivisionError:
            assert arithmetic(text) is None
        else:
            assert arithmetic(text)[0] == expected, text
            assert isinstance(ast.parse(text, mode="eval"), ast.Expression)


def test_the_best_schedule_is_that_of_trying_all():
    import itertools
    import random

    rng = random.Random(1)
    for _ in range(50):
        events = {}
        for i in range(6):
            start = rng.randint(0, 20)
            events[start, start + rng.randint(1, 8), str(i)] = float(rng.randint(1, 5))
        best = 0.0
        for n in range(7):
            for chosen in itertools.combinations(sorted(events), n):
                if all(a[1] <= b[0] for a, b in itertools.pairwise(chosen)):
                    best = max(best, sum(events[e] for e in chosen))
        assert best_schedule(events) == best


def test_a_schema_with_references_and_nesting_is_held_in_parts():
    schema = {
        "$defs": {
            "p": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                "required": ["x", "y"],
            }
        },
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/p"}, "tag": {"enum": ["a", "b"]}},
        "required": ["at", "tag"],
    }
    scores = [
        json_reward.score(f"<answer>{text}</answer>", schema=schema)
        for text in ("[]", "{}", '{"tag": "a"}', '{"tag": "a", "at": {"x": 1}}', '{"tag": "a", "at": {"x": 1, "y": 2}}')
    ]
    assert scores == sorted(scores) and scores[0] < scores[2] < scores[-1] == 1.0
    assert json_reward.score('<answer>{"a": 1}</answer>', schema="") is None


@pytest.mark.parametrize(
    "schema", [None, "null", "12", float("nan"), {"$ref": "http://x/y"}, {"$ref": "#/$defs/no"}, {"type": "?"}, {}]
)
def test_a_schema_that_cannot_be_used_is_none(schema):
    assert json_reward.score("<answer>1</answer>", schema=schema) is None


def test_schema_keywords_that_need_each_other_are_judged_together():
    for schema, right in (
        ({"properties": {"a": {"type": "integer"}}, "unevaluatedProperties": False}, '{"a": 1}'),
        ({"prefixItems": [{"type": "integer"}], "items": False}, "[1]"),
        ({"type": "array", "uniqueItems": True}, "[1, true, 2]"),
    ):
        assert json_reward.score(f"<answer>{right}</answer>", schema=schema) == 1.0, schema
    assert json_reward.score("<answer>[1, 1.0]</answer>", schema={"type": "array", "uniqueItems": True}) < 1.0


def test_a_countdown_of_numpy_numbers_counts_and_one_of_fractions_is_unusable():
    import numpy as np

    countdown = countdown_reward
    assert countdown.score("<answer>3x4+5</answer>", numbers=np.array([3, 4, 5]), target=np.int64(17)) == 1.0
    assert countdown.score("<answer>3*4+5</answer>", numbers=[3.9, 4.2, 5.5], target=17) is None
    assert countdown.score("<answer>3*4+5</answer>", numbers=[None], target=17) is None
