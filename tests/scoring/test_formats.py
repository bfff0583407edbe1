"""Everything follows the format, which is chosen in one place."""

import pytest

from rewards import (
    FORMAT,
    BoxedFormat,
    HashFormat,
    TagFormat,
    correctness_reward,
    extract_answer,
    extract_reasoning,
    format_reward,
    soft_format_reward,
)
from scoring import formats

OTHERS = [TagFormat("reasoning", "answer"), BoxedFormat(), HashFormat()]


@pytest.mark.parametrize("other", OTHERS, ids=repr)
def test_everything_follows_the_format_from_one_place(other, monkeypatch):
    old = FORMAT.write("3 * 4 = 12", "12")
    monkeypatch.setattr(formats, "FORMAT", other)
    good = other.write("3 * 4 = 12", "12")
    assert other.split(good) == ("3 * 4 = 12", "12")
    assert (extract_reasoning(good), extract_answer(good)) == ("3 * 4 = 12", "12")
    assert (
        format_reward.score(good)
        == soft_format_reward.score(good)
        == correctness_reward.score(good, answer="12")
        == 1.0
    )
    assert format_reward.score(old) == 0.0 and soft_format_reward.score(old) <= 0.4
    assert all(mark.strip("{}") in other.system_prompt for mark in other.marks if mark.strip("{}"))
    for cheat in (
        other.write("", "12"),
        other.write("a", ""),
        good + good,
        good + "\nand 13",
        "12",
        "",
        "".join(other.marks) * 9,
    ):
        assert format_reward.score(cheat) == 0.0, cheat
    assert correctness_reward.score(good + good, answer="12") == 0.0
    assert correctness_reward.score(good + "\nno, 13", answer="12") == 0.0


@pytest.mark.parametrize(
    "completion, answer",
    [
        ("so \\boxed{12}", "12"),
        ("so $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
        ("\\boxed{1} or \\boxed{2}", None),
        ("\\boxed{12", None),
        ("\\boxed{ }", None),
        ("\\boxed 12", None),
        ("\\(\\boxed{12}\\)", "12"),
    ],
)
def test_boxed_answers(completion, answer, monkeypatch):
    monkeypatch.setattr(formats, "FORMAT", BoxedFormat())
    assert extract_answer(completion) == answer


@pytest.mark.parametrize(
    "completion, answer",
    [
        ("a\n#### 12", "12"),
        ("#### 12\n", "12"),
        ("a #### 12", None),
        ("#### 1\n#### 2", None),
        ("####", None),
        ("a\n####12 ", "12"),
    ],
)
def test_hash_answers(completion, answer, monkeypatch):
    monkeypatch.setattr(formats, "FORMAT", HashFormat())
    assert extract_answer(completion) == answer
