"""What the final answer is, and when two answers are the same."""

import json
from fractions import Fraction

import pytest

from lab.files import ROOT
from rewards import (
    FORMAT,
    bleu_reward,
    correctness_reward,
    cosine_length_reward,
    extract_answer,
    extract_gsm8k_answer,
    extract_number,
    extract_reasoning,
    final_text,
    math_reward,
    multiple_choice_reward,
    numeric_closeness_reward,
    same_answer,
)


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("3 hours", "3 minutes", False),
        ("1 cent", "$1", False),
        ("€12", "$12", False),
        ("12%", "$12", False),
        ("12 km", "12 kilometers", True),
        ("12 apples", "12 oranges", True),
        ("$12", "12", True),
        ("12 usd", "$12", True),
        ("x²", "x2", False),
        ("Yes.", "yes", True),
        ("12", "12.0000000000000000001", False),
        ("1e2", "100", True),
        ("3:30", "3:30", True),
        ("3:30", "3:31", False),
    ],
)
def test_same_answer(one, other, same):
    assert same_answer(one, other) is same and same_answer(other, one) is same


@pytest.mark.parametrize(
    "text, answer",
    [
        ("<answer> 4 </answer>", "4"),
        ("<think>5</think>\n<answer>4</answer>", "4"),
        ("<answer></answer>", None),
        ("<answer>4", None),
        ("4</answer>", None),
        ("", None),
        ("<answer>4</answer> or <answer>5</answer>", None),
        ("<answer>4</answer></answer>", None),
        ("<think><answer>4</answer>", None),
        ("<think>a</think><think><answer>4</answer></think>", None),
    ],
)
def test_extract_answer(text, answer):
    assert extract_answer(text) == answer


def test_extract_reasoning_takes_one_closed_block_of_several_lines():
    assert extract_reasoning("<think>\na\nb\n</think>") == "a\nb"
    assert extract_reasoning("<think>a") is extract_reasoning("</think>a<think>") is extract_reasoning("a") is None


def test_the_final_text_begins_after_the_last_end_of_reasoning():
    assert final_text("<think>a</think> still thinking </think> 12") == "12"


def test_extract_gsm8k_answer():
    assert extract_gsm8k_answer("a #### b\n#### 1,200 ") == "1,200"
    assert extract_gsm8k_answer("no marker") is extract_gsm8k_answer("empty ####  ") is None


@pytest.mark.parametrize(
    "choices, answer, given, score",
    [
        (["b", "a"], "a", "b", 0),
        (["b", "a"], "a", "a", 1),
        (["x", "y"], "x", "x", 1),
        (["Lima", "Paris"], "B", r"\boxed{B}", 1),
        (["Lima", "Paris"], "B", "B Paris", 1),
        (["Lima", "Paris"], "B", "B maybe", 0),
        (["Lima", "Paris"], 0, "[A]", 1),
    ],
)
def test_choices_that_are_letters_themselves(choices, answer, given, score):
    assert multiple_choice_reward.score(f"<answer>{given}</answer>", answer=answer, choices=choices) == score


@pytest.mark.parametrize(
    "gold", [None, float("nan"), float("inf"), "", " ", "\u200b", [12], {"a": 12}, b"12", "text without\n####"]
)
def test_a_gold_that_is_missing_or_unusable_is_none_and_never_a_zero(gold):
    for function in (
        correctness_reward,
        math_reward,
        cosine_length_reward,
        numeric_closeness_reward,
        bleu_reward,
    ):
        assert function.score(FORMAT.write("a", "12"), answer=gold) is None, function


def perturbed(gold: str, value: Fraction) -> list[str]:
    """Answers near a gold that are all wrong."""
    wrong = [
        str(value + 1),
        str(value - 1),
        f"{value}1",
        f"{float(value) + 0.5:g}" if value < 10**5 else str(value + 2),
        f"about {gold}",
        f"{gold} or {value + 1}",
        f"{value - 1}-{value + 1}",
        f"{gold}, {value + 1}",
        f"{gold}?",
        f"at least {gold}",
        f"{gold}e999",
    ]
    return (
        wrong
        if value == 0
        else [*wrong, str(value * 10), str(-value), f"{gold} million", f"{value}²" if abs(value) != 1 else "2"]
    )


def test_every_gold_of_real_gsm8k_is_a_number_and_scores_one_and_every_perturbed_one_zero():
    path = ROOT.parent / "shared" / "data" / "gsm8k" / "train.jsonl"
    if not path.exists():
        pytest.skip("GSM8K is not part of the project, and it is not beside this checkout")
    solutions = [json.loads(line)["answer"] for line in path.open(encoding="utf-8")]
    assert len(solutions) == 7473
    for solution in solutions:
        gold = extract_gsm8k_answer(solution)
        value = extract_number(gold)
        assert value is not None, gold
        wrong = [text for text in perturbed(gold, value) if text != "0e999"]
        texts = [
            FORMAT.write("Let me see.", text) for text in (gold, f"${gold}", f"**{gold}**.", f"{gold} apples", *wrong)
        ]
        scores = correctness_reward(prompts=["?"] * len(texts), completions=texts, answer=[solution] * len(texts))
        assert scores == [1.0] * 4 + [0.0] * len(wrong), list(zip(texts, scores))
