"""The reward module: its cases, the decorator's contract, extraction, and time on hostile text."""

import doctest
import math
import time
from fractions import Fraction

import pytest
from cases import CASES

import rewards
from rewards import (
    REGISTRY,
    TAGS,
    MissingColumnError,
    RewardError,
    correctness_reward,
    extract_answer,
    extract_code,
    extract_gsm8k_answer,
    extract_number,
    extract_reasoning,
    format_reward,
    reward,
    soft_format_reward,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.reward}-{case.kind}-{case.what}")
def test_case(case):
    expected = None if case.expected is None else pytest.approx(case.expected)
    assert case.score == expected, f"{case.completion!r} scored {case.score}, expected {case.expected}"


def test_every_reward_has_right_wrong_and_cheating_cases():
    for name in REGISTRY:
        assert {case.kind for case in CASES if case.reward == name} == {"right", "wrong", "cheating"}, name


def test_no_wrong_or_cheating_case_scores_above_a_right_one():
    for name in REGISTRY:
        scored = [(case.kind, case.score) for case in CASES if case.reward == name and case.score is not None]
        lowest_right = min(score for kind, score in scored if kind == "right")
        assert all(score < lowest_right for kind, score in scored if kind != "right"), name


def test_docstring_examples():
    found = doctest.testmod(rewards)
    assert found.attempted >= 20 and found.failed == 0


# --------------------------------------------------------------------------- the decorator


@reward
def length_of(completion: str, prompt: str = "", bonus: float = 0.0) -> float:
    return min(1.0, len(completion) / 10 + bonus)


def test_strings_and_chat_messages_score_alike():
    prompt, text = [{"role": "user", "content": "?"}], TAGS.write("a", "12")
    chat = [[{"role": "assistant", "content": text}]]
    for function in REGISTRY.values():
        assert function(prompts=[prompt], completions=chat, answer=["12"]) == function(
            prompts=["?"], completions=[text], answer=["12"]
        )


def test_a_prefill_is_put_back_before_scoring():
    rest = "3 * 4 = 12</think><answer>12</answer>"
    prompt = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "<think>"}]
    chat = [[{"role": "assistant", "content": rest}]]
    assert format_reward(prompts=[prompt], completions=chat) == [1.0]
    assert format_reward(prompts=["3 * 4? <think>\n"], completions=[rest]) == [1.0]
    assert format_reward(prompts=["3 * 4?"], completions=[rest]) == [0.0]


def test_a_system_prompt_that_names_the_tags_is_not_a_prefill():
    assert format_reward(prompts=[TAGS.system_prompt], completions=[TAGS.write("a", "b")]) == [1.0]


def test_columns_are_filled_by_name_row_by_row():
    scores = correctness_reward(prompts=["", ""], completions=["<answer>1</answer>"] * 2, answer=["1", "2"], other=[0, 0])
    assert scores == [1.0, 0.0]
    assert length_of(prompts=["", ""], completions=["ab", "ab"], bonus=[0.0, 0.5]) == pytest.approx([0.2, 0.7])


def test_a_missing_column_is_named_with_those_that_are_there():
    with pytest.raises(MissingColumnError, match="'answer'.*there are: gold, question"):
        correctness_reward.check_columns(["prompt", "question", "gold"])
    with pytest.raises(MissingColumnError, match="'answer'"):
        correctness_reward(prompts=[""], completions=["x"])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.5, -0.1, "1", [1], object()])
def test_a_value_that_is_no_score_in_range_is_refused_by_name(value):
    @reward
    def broken_reward(completion: str) -> float:
        return value

    with pytest.raises(RewardError, match="broken_reward returned"):
        broken_reward(prompts=[""], completions=["some text"])


def test_a_bug_stops_with_the_completion_that_caused_it():
    @reward
    def buggy_reward(completion: str) -> float:
        return len(completion["content"])

    with pytest.raises(RewardError, match="buggy_reward raised TypeError.*\n.*the culprit"):
        buggy_reward(prompts=[""], completions=["the culprit"])


def test_a_declared_range_is_kept():
    @reward(low=-1.0, high=2.0)
    def wide_reward(completion: str) -> float:
        return -1.0 if completion else 2.0

    assert wide_reward(prompts=["", ""], completions=["", "x"]) == [2.0, -1.0]


def test_a_function_without_completion_is_refused():
    with pytest.raises(TypeError, match="'completion'"):
        reward(lambda text: 1.0)


def test_one_completion_can_be_scored_as_chat_messages_too():
    chat = [{"role": "assistant", "content": "<answer>12</answer>"}]
    assert correctness_reward.score(chat, answer="12") == 1.0


def test_a_column_of_another_length_is_refused_by_name():
    with pytest.raises(ValueError, match="'answer' needs one value for each of 2"):
        correctness_reward(prompts=["", ""], completions=["a", "b"], answer=["1"])


def test_a_function_that_takes_anything_is_asked_to_name_its_columns():
    def anything(completion, **kwargs):
        return 1.0

    with pytest.raises(TypeError, match="name the columns"):
        reward(anything)


def test_completions_and_prompts_of_different_lengths_are_refused():
    with pytest.raises(ValueError):
        format_reward(prompts=["a", "b"], completions=["x"])


# --------------------------------------------------------------------------- extraction


@pytest.mark.parametrize(
    "text, value",
    [
        ("7", 7), ("-7", -7), ("+7", 7), ("−7", -7), ("- 7", -7), ("0.5", Fraction(1, 2)), (".5", Fraction(1, 2)),
        ("1,200", 1200), ("1,234,567.5", Fraction(2469135, 2)), ("$13.50", Fraction(27, 2)), ("-$4", -4), ("$-4", -4),
        ("€5", 5), ("5 €", 5), ("85%", 85), ("85 percent", 85), ("12 km", 12), ("20 km/h", 20), ("30 °c", 30),
        ("3/4", Fraction(3, 4)), ("-1/3", Fraction(-1, 3)), ("1e3", 1000), ("2.5E-1", Fraction(1, 4)), ("７", 7),
        ("**42**", 42), ("`42`", 42), ('"42"', 42), ("42.", 42), ("$42$", 42), (" 42\n", 42), ("007", 7), ("5 m", 5),
        ("", None), ("abc", None), ("1,20", None), ("12,00", None), ("1.2.3", None), ("4 or 5", None), ("about 5", None),
        ("5 millions", None), ("12²", None), ("1²", None), ("①②", None), ("5 m²", 5), ("5 squared", None), ("5 thirds", None),
        ("5 thirteen", None), ("5 i think", None), ("5 feet six inches", None), ("5 approx", None), ("5 square metres", 5),
        ("5 km an hour", 5), ("5 million", None), ("5m", None), ("5k", None), ("5-6", None), ("= 5", None), ("5 = 5", None), ("5!", None),
        ("1/0", None), ("1e999999999", None), ("--5", None), ("-$-5", None), ("1 2", None), ("5 and 6", None),
        ("9" * 1000, None), ("nan", None), ("inf", None), ("\ud800", None),
    ],
)  # fmt: skip
def test_extract_number(text, value):
    assert extract_number(text) == value


@pytest.mark.parametrize(
    "text, answer",
    [
        ("<answer> 4 </answer>", "4"), ("<think>5</think>\n<answer>4</answer>", "4"), ("<answer></answer>", None),
        ("<answer>4", None), ("4</answer>", None), ("", None), ("<answer>4</answer> or <answer>5</answer>", None),
        ("<think><answer>4</answer>", None), ("<think>a</think><think><answer>4</answer></think>", None),
    ],
)  # fmt: skip
def test_extract_answer(text, answer):
    assert extract_answer(text) == answer


def test_extract_reasoning_takes_one_closed_block_of_several_lines():
    assert extract_reasoning("<think>\na\nb\n</think>") == "a\nb"
    assert extract_reasoning("<think>a") is extract_reasoning("</think>a<think>") is extract_reasoning("a") is None


def test_extract_gsm8k_answer():
    assert extract_gsm8k_answer("a #### b\n#### 1,200 ") == "1,200"
    assert extract_gsm8k_answer("no marker") is extract_gsm8k_answer("empty ####  ") is None


def test_extract_code_takes_the_last_block_or_bare_code():
    assert extract_code("```python\na = 1\n```\nbetter:\n```\nb = 2\n```") == "b = 2\n"
    assert extract_code("    return 1") == "    return 1"
    assert extract_code("Sure, I can help.") is None


def test_every_gold_of_real_gsm8k_is_a_number_and_scores_one():
    import json

    from lab.files import ROOT

    path = ROOT.parent / "shared" / "data" / "gsm8k" / "train.jsonl"
    if not path.exists():
        pytest.skip("GSM8K is not part of the project, and it is not beside this checkout")
    golds = [extract_gsm8k_answer(json.loads(line)["answer"]) for line in path.open(encoding="utf-8")]
    assert len(golds) == 7473
    for gold in golds:
        value = extract_number(gold)
        assert value is not None, gold
        assert correctness_reward.score(TAGS.write("Let me see.", gold), answer=gold) == 1.0
        assert correctness_reward.score(TAGS.write("Let me see.", str(value + 1)), answer=gold) == 0.0


@pytest.mark.parametrize(
    "unit",
    ["<think>", "</think><answer>", "<think></think>", "<answer>1</answer>", " ", "1,111", "9", "- ", "x", "# ", "`" * 3],
)
def test_a_megabyte_of_hostile_text_does_not_hang(unit):
    hostile = unit * (1_000_000 // len(unit))
    started = time.process_time()
    for text in (hostile, TAGS.write(hostile, "1"), TAGS.write("a", hostile)):
        for function in (format_reward, soft_format_reward):
            function.score(text)
        correctness_reward.score(text, answer="1")
        extract_reasoning(text), extract_code(text), extract_number(text)
    assert time.process_time() - started < 20  # quadratic time would be hours
