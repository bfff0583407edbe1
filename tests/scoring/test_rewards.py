"""The reward module: its cases, the decorator's contract, formats, extraction, combinators, and time on hostile text."""

import ast
import asyncio
import doctest
import functools
import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from fractions import Fraction

import pytest
from scoring.cases import CASES, GROUPS

import rewards
from lab.files import ROOT
from rewards import (
    FORMAT,
    REGISTRY,
    BoxedFormat,
    HashFormat,
    MissingColumnError,
    RewardError,
    RewardFailure,
    TagFormat,
    adopt,
    arithmetic,
    best_schedule,
    cached,
    correctness_reward,
    cosine_length_reward,
    debug_reward,
    diversity_reward,
    extract_answer,
    extract_code,
    extract_gsm8k_answer,
    extract_number,
    extract_reasoning,
    format_reward,
    gate,
    json_reward,
    length_reward,
    math_reward,
    prepare_rewards,
    register,
    rename,
    rescale,
    reward,
    same_answer,
    soft_format_reward,
    split_completion,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.reward}-{case.kind}-{case.what}")
def test_case(case):
    assert case.holds, f"{case.completion[:300]!r} scored {case.score}, expected {case.expected}"


@pytest.mark.parametrize(
    "kind, what, completions, expected", GROUPS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_group_case(kind, what, completions, expected):
    assert diversity_reward(prompts=["p"] * len(completions), completions=completions) == pytest.approx(expected)


def test_every_reward_has_right_wrong_and_cheating_cases():
    for name in REGISTRY.keys() - {"diversity_reward", "debug_reward"}:  # these have groups, and no opinion
        assert {case.kind for case in CASES if case.reward == name} == {"right", "wrong", "cheating"}, name
    assert {kind for kind, *_ in GROUPS} == {"right", "wrong", "cheating"}


def test_no_wrong_or_cheating_case_scores_above_a_right_one():
    for name in REGISTRY.keys() - {"debug_reward", "judge_reward"}:
        scored = [(case.kind, case.score) for case in CASES if case.reward == name and case.score is not None]
        lowest_right = min(score for kind, score in scored if kind == "right")
        assert all(score < lowest_right for kind, score in scored if kind != "right"), name


def test_docstring_examples():
    found = doctest.testmod(rewards)
    assert found.attempted >= 50 and found.failed == 0


def test_every_reward_says_range_purpose_and_example_in_its_docstring():
    for name, function in REGISTRY.items():
        assert function.purpose.endswith((".", ":")) and len(function.purpose) < 130, name
        assert "Returns" in function.__doc__, name
        assert ">>> " in function.__doc__ or name == "debug_reward", name


def test_the_readme_shows_the_registry_as_it_is():
    assert rewards.registry_table() in (ROOT / "README.md").read_text(encoding="utf-8"), (
        "paste the output of `python rewards.py`"
    )


def test_the_module_alone_imports_neither_torch_nor_what_single_rewards_need():
    code = "import rewards, sys; print([m for m in ('torch', 'sympy', 'nltk', 'openai', 'jsonschema', 'lab') if m in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


# --------------------------------------------------------------------------- the decorator


@reward
def length_of(completion: str, prompt: str = "", bonus: float = 0.0) -> float:
    return min(1.0, len(completion) / 10 + bonus)


def test_strings_and_chat_messages_score_alike():
    prompt, text = [{"role": "user", "content": "?"}], FORMAT.write("a", "12")
    chat = [[{"role": "assistant", "content": text}]]
    parts = [[{"role": "assistant", "content": [{"type": "text", "text": text}]}]]
    for function in (format_reward, soft_format_reward, correctness_reward, diversity_reward):
        assert function(prompts=[prompt], completions=chat, answer=["12"]) == [1.0]
        assert function(prompts=["?"], completions=[text], answer=["12"]) == [1.0]
        assert function(prompts=[prompt], completions=parts, answer=["12"]) == [1.0]


def test_a_tool_call_without_text_is_an_empty_completion():
    assert format_reward(prompts=["?"], completions=[[{"role": "assistant", "content": None}]]) == [0.0]


def test_a_prefill_is_put_back_before_scoring():
    rest = "3 * 4 = 12</think><answer>12</answer>"
    prompt = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "<think>"}]
    chat = [[{"role": "assistant", "content": rest}]]
    assert format_reward(prompts=[prompt], completions=chat) == [1.0]
    assert format_reward(prompts=["3 * 4? <think>\n"], completions=[rest]) == [1.0]
    assert format_reward(prompts=["3 * 4?"], completions=[rest]) == [0.0]


def test_a_system_prompt_that_names_the_tags_is_not_a_prefill():
    assert format_reward(prompts=[FORMAT.system_prompt], completions=[FORMAT.write("a", "b")]) == [1.0]


def test_columns_are_filled_by_name_row_by_row():
    scores = correctness_reward(
        prompts=["", ""], completions=["<answer>1</answer>"] * 2, answer=["1", "2"], other=[0, 0]
    )
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


def test_a_score_a_rounding_error_outside_the_range_is_the_bound():
    assert reward(lambda completion: 1.0000000001).score("x") == 1.0
    assert reward(lambda completion: -1e-12).score("x") == 0.0


def test_scores_of_numpy_torch_and_bool_are_numbers():
    import numpy as np
    import torch

    for value in (np.float32(0.5), torch.tensor(0.5), np.array(0.5), Fraction(1, 2)):
        assert reward(lambda completion, value=value: value).score("x") == 0.5
    assert reward(lambda completion: True).score("x") == 1.0


def test_a_function_without_the_decorators_parameters_is_told_which():
    with pytest.raises(TypeError, match="has: text, answer"):
        reward(lambda text, answer: 1.0)


def test_a_column_that_is_nearly_there_is_suggested():
    with pytest.raises(MissingColumnError, match="Did you mean 'answers'"):
        correctness_reward.check_columns(["prompt", "answers"])


def test_what_trl_gives_is_filled_by_name():
    class State:
        global_step = 7

    columns, metrics = {}, {}

    @reward(high=100)
    def nosy_reward(completion: str, completion_ids, trainer_state, log_extra, log_metric) -> float:
        log_extra("length", len(completion))
        log_metric("seen", 1.0)
        return len(completion_ids) + trainer_state.global_step

    scores = nosy_reward(
        prompts=["", ""],
        completions=["ab", "c"],
        completion_ids=[[1, 2, 3], [4]],
        trainer_state=State(),
        log_extra=lambda column, values: columns.update({column: values}),
        log_metric=metrics.__setitem__,
    )
    assert scores == [10, 8] and columns == {"length": [2, 1]} and metrics == {"seen": 1.0}
    assert nosy_reward.columns == ()


# --------------------------------------------------------------------------- groups


@reward
def rank_reward(completions: list[str], bonus: float = 0.0) -> list[float]:
    """The longest of its group gets 1."""
    return [float(len(text) == max(map(len, completions))) for text in completions]


def test_a_group_is_what_shares_a_prompt_in_any_order():
    prompts, completions = ["a", "b", "a", "b"], ["x", "xxx", "xx", "x"]
    assert rank_reward(prompts=prompts, completions=completions) == [0, 1, 1, 0]
    assert rank_reward(prompts=prompts[::-1], completions=completions[::-1]) == [0, 1, 1, 0]


def test_a_group_reward_gets_one_value_of_a_column_and_splits_groups_by_it():
    @reward
    def gold_reward(completions: list[str], answer: str) -> list[float]:
        return [float(text == answer) for text in completions]

    assert gold_reward(prompts=["p"] * 3, completions=["1", "2", "2"], answer=["1", "1", "2"]) == [1, 0, 1]


@pytest.mark.parametrize("value", [[1.0], 1.0, "ab", [1.0, math.nan]])
def test_a_group_reward_that_returns_no_score_for_each_is_refused(value):
    @reward
    def broken_reward(completions: list[str]) -> list[float]:
        return value

    with pytest.raises(RewardError, match="broken_reward"):
        broken_reward(prompts=["p", "p"], completions=["a", "b"])


# --------------------------------------------------------------------------- failures and None


@reward
def shaky_reward(completion: str) -> float:
    if "lost" in completion:
        raise ConnectionError("the line is dead")
    if "down" in completion:
        raise RewardFailure("no service")
    return float(completion)


def test_a_failure_gets_the_mean_of_its_own_group_and_is_counted_and_logged(caplog):
    metrics = {}
    before = shaky_reward.failures
    with caplog.at_level(logging.WARNING, logger="rewards"):
        scores = shaky_reward(
            prompts=["a", "a", "a", "b", "b"],
            completions=["1", "0.5", "lost", "down", "0"],
            log_metric=metrics.__setitem__,
        )
    assert scores == [1, 0.5, 0.75, 0, 0]
    assert shaky_reward.failures - before == 2 and metrics == {"shaky_reward/failed": 2}
    assert "could not score 2 of 5" in caplog.text and "the line is dead" in caplog.text


def test_a_group_in_which_all_failed_is_none_so_that_nobody_gains():
    assert shaky_reward(prompts=["a", "a"], completions=["lost", "down"]) == [None, None]


def test_a_failure_of_one_score_is_raised_as_what_it_is():
    with pytest.raises(ConnectionError, match="the line is dead"):
        shaky_reward.score("lost")


def test_a_bug_is_not_a_failure():
    with pytest.raises(RewardError, match="ValueError.*\n.*'words'"):
        shaky_reward(prompts=["a", "a"], completions=["1", "words"])


def test_an_async_reward_runs_a_batch_at_once_and_keeps_the_contract():
    most, now = 0, 0

    @reward
    async def waiting_reward(completion: str, prompt: str) -> float:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        if completion == "bug":
            raise KeyError("bug")
        if completion == "slow":
            raise TimeoutError
        return 1.0

    assert waiting_reward(prompts=["p"] * 5, completions=["a"] * 4 + ["slow"]) == [1.0] * 5 and most == 5
    with pytest.raises(RewardError, match="KeyError.*\n.*'bug'"):
        waiting_reward(prompts=["p"], completions=["bug"])


# --------------------------------------------------------------------------- variants, names, combinators


def test_one_function_with_two_settings_has_two_metric_names():
    short, long = length_reward.with_options(longest=50), length_reward.with_options(longest=500)
    assert short.__name__ == "length_reward[longest=50]" != long.__name__
    assert short.score("x" * 600) == 0 < long.score("x" * 600)
    assert short.with_options(shortest=5).__name__ == "length_reward[longest=50,shortest=5]"
    odd = rewards.style_reward.with_options(unwanted=("a/b c",))
    assert re.fullmatch(r"style_reward\[[0-9a-f]{8}\]", odd.__name__) and odd.score("A/b c") == 0.75


def test_an_option_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(TypeError, match="no option 'max_length'; it has: completion_ids|shortest, longest"):
        length_reward.with_options(max_length=3)


def test_a_fixed_option_is_not_overruled_by_a_column_of_its_name():
    assert length_reward.with_options(longest=50)(prompts=[""], completions=["x" * 600], longest=[500]) == [0.0]


def test_a_gate_lets_style_pay_only_for_right_answers():
    short = gate(length_reward.with_options(shortest=1, longest=30), by=correctness_reward)
    good, bad = FORMAT.write("a", "12"), FORMAT.write("a", "13")
    assert short(prompts=["", ""], completions=[good, bad], answer=["12", "12"]) == [1.0, 0.0]
    assert (
        short.columns == ("answer",) and short.__name__ == "length_reward[shortest=1,longest=30]_if_correctness_reward"
    )
    assert short.score(good, answer=None) is None


def test_rescale_maps_the_declared_range_and_keeps_none_and_failures():
    signed = rescale(reward(low=-1, high=3)(lambda completion: {"low": -1, "high": 3, "none": None}.get(completion, 1)))
    assert [signed.score(text) for text in ("low", "high", "mid", "none")] == [0, 1, 0.5, None]
    assert rescale(shaky_reward, -1, 1)(prompts=["a"] * 3, completions=["1", "lost", "0"]) == [1, 0, -1]
    with pytest.raises(ValueError, match="no finite range"):
        rescale(adopt(lambda completions: [0.0 for _ in completions]))


def test_a_cached_reward_scores_each_completion_once_by_prompt_and_columns():
    calls = []

    @reward
    def counting_reward(completion: str, answer: str) -> float:
        calls.append(completion)
        return float(completion == answer)

    once = cached(counting_reward, size=3)
    for _ in range(2):
        assert once(prompts=["p"] * 4, completions=["1", "1", "2", "1"], answer=["1", "1", "1", "2"]) == [1, 1, 0, 0]
    assert len(calls) == 3
    assert rename(once, "kept")(prompts=["p"], completions=["1"], answer=["1"]) == [1] and len(calls) == 3
    with pytest.raises(TypeError, match="whole groups"):
        cached(rank_reward)


def test_a_registered_name_cannot_be_taken_twice():
    with pytest.raises(ValueError, match="'format_reward' already"):
        register(rename(format_reward.with_options(name="x"), "format_reward"))
    assert REGISTRY["format_reward"] is format_reward


# --------------------------------------------------------------------------- functions from elsewhere


def their_strict_format_reward(completions, **kwargs) -> list[float]:
    """As published in many notebooks: no DOTALL, and a newline demanded at the end."""
    responses = [completion[0]["content"] for completion in completions]
    return [0.5 if re.match(r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>\n$", r) else 0.0 for r in responses]


def their_correctness_reward(prompts, completions, answer, **kwargs) -> list[float]:
    extracted = [c[0]["content"].split("<answer>")[-1].split("</answer>")[0].strip() for c in completions]
    return [2.0 if e == a else 0.0 for e, a in zip(extracted, answer)]


def test_a_notebooks_function_goes_through_unchanged_and_gets_names_checks_and_score():
    function = adopt(their_correctness_reward)
    assert function.columns == ("answer",) and function.__name__ == "their_correctness_reward"
    chat = [[{"role": "assistant", "content": "<answer>12</answer>"}]]
    assert function(prompts=[[]], completions=chat, answer=["12"]) == [2.0]
    assert function.score("<answer>12</answer>", answer="12") == 2.0
    with pytest.raises(MissingColumnError, match="'answer'"):
        function.check_columns(["gold"])
    with pytest.raises(RewardError, match="not a finite number in .0, 1."):
        adopt(their_correctness_reward, low=0, high=1).score("<answer>12</answer>", answer="12")
    with pytest.raises(RewardError, match="TypeError: string indices"):  # the known pain, with its completion
        function(prompts=["p"], completions=["plain"], answer=["12"])


def test_trls_own_rewards_go_through_unchanged():
    from trl.rewards import accuracy_reward, get_soft_overlong_punishment, think_format_reward

    assert adopt(think_format_reward).score("<think>\na\n</think>\n12") == 1.0
    overlong = adopt(get_soft_overlong_punishment(max_completion_len=10, soft_punish_cache=4))
    assert overlong(prompts=["p"] * 2, completions=["a", "b"], completion_ids=[[0] * 8, [0] * 12]) == [-0.5, -1.0]
    assert adopt(accuracy_reward).score(r"\boxed{12}", solution="$12$") == 1.0


def test_partials_get_their_settings_into_their_names_and_twins_a_number():
    def scaled(completions, by=1.0, **kwargs):
        return [by for _ in completions]

    half, full = functools.partial(scaled, by=0.5), functools.partial(scaled, by=1.0)
    names = [f.__name__ for f in prepare_rewards([half, full, scaled, scaled, format_reward, format_reward])]
    assert names == ["scaled[by=0.5]", "scaled[by=1.0]", "scaled", "scaled_2", "format_reward", "format_reward_2"]


@pytest.mark.parametrize(
    "returned, told",
    [
        ([1.0], "returned 1 scores for 2"),
        ([math.nan, 0], "returned nan"),
        (["a", 0], "returned 'a'"),
        ([math.inf, 0], "inf"),
    ],
)
def test_a_foreign_function_that_returns_nonsense_is_refused_by_name(returned, told):
    def theirs(completions, **kwargs):
        return returned

    with pytest.raises(RewardError, match=f"theirs.*{told}"):
        adopt(theirs)(prompts=["p"] * 2, completions=["a", "b"])


def test_the_completion_that_broke_a_foreign_function_is_shown():
    def theirs(completions, **kwargs):
        return [float(c) for c in completions]

    with pytest.raises(RewardError, match="ValueError.*\n.*'the culprit'"):
        adopt(theirs)(prompts=["p"] * 3, completions=["1", "the culprit", "2"])


def test_combinations_of_adopted_functions_score_one_text_as_the_functions_do():
    theirs = adopt(their_correctness_reward, low=0, high=2)
    for made in (
        rescale(theirs),
        cached(rescale(theirs)),
        gate(format_reward, by=theirs),
        gate(theirs, by=correctness_reward),
    ):
        assert made.score(FORMAT.write("a", "12"), answer="12") > 0, made
    with pytest.raises(ValueError, match="use .score"):
        format_reward("some text", "some text")


def test_an_async_and_a_callable_object_are_adopted():
    async def theirs(completions, **kwargs):
        await asyncio.sleep(0)
        return [1.0 for _ in completions]

    class Scorer:
        def __call__(self, completions, **kwargs):
            return [0.5 for _ in completions]

    assert adopt(theirs).score("x") == 1.0 and adopt(Scorer()).score("x") == 0.5
    assert adopt(Scorer()).__name__ == "Scorer"


def test_a_function_in_no_known_signature_is_refused():
    with pytest.raises(TypeError, match="TRL's signature"):
        adopt(lambda text: 1.0)


def test_missing_columns_of_a_whole_set_are_named_at_start():
    with pytest.raises(MissingColumnError, match="their_correctness_reward needs.*'answer'"):
        prepare_rewards([format_reward, their_correctness_reward], columns=["prompt", "gold"])


# --------------------------------------------------------------------------- formats

OTHERS = [TagFormat("reasoning", "answer"), BoxedFormat(), HashFormat()]


@pytest.mark.parametrize("other", OTHERS, ids=repr)
def test_everything_follows_the_format_from_one_place(other, monkeypatch):
    old = FORMAT.write("3 * 4 = 12", "12")
    monkeypatch.setattr(rewards, "FORMAT", other)
    good = other.write("3 * 4 = 12", "12")
    assert split_completion(good) == ("3 * 4 = 12", "12")
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
    monkeypatch.setattr(rewards, "FORMAT", BoxedFormat())
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
    monkeypatch.setattr(rewards, "FORMAT", HashFormat())
    assert extract_answer(completion) == answer


# --------------------------------------------------------------------------- single rewards, deeper


def test_the_time_limit_of_math_reward_holds_outside_the_main_thread():
    endless, found = r"(x+y+z)^{300}", []
    assert math_reward.score("<answer>(x-4)(x+4)</answer>", answer="x^2-16") == 1.0
    before = rewards._MATH_WORKER.process.pid

    def in_a_thread():
        found.append(rewards._MATH_WORKER.ask("x^2", endless, 0.5))  # None says that it gave up
        found.append(
            getattr(rewards._MATH_WORKER.process, "pid", "killed") == before
        )  # and it stopped itself: nobody had to kill it
        found.append(math_reward.with_options(time_limit=0.5).score(FORMAT.write("a", endless), answer="x^2"))

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join(90)
    assert found == [None, True, 0.0] and rewards.is_expression(endless, "x^2")
    assert math_reward.score(FORMAT.write("a", r"3\sqrt{3}"), answer=r"\sqrt{27}") == 1.0, (
        "it works on after a time-out"
    )


def test_a_mathematics_process_that_answers_no_more_is_killed_and_started_anew():
    assert math_reward.score("<answer>(x-7)(x+7)</answer>", answer="x^2-49") == 1.0
    stuck = rewards._MATH_WORKER.process
    os.kill(stuck.pid, signal.SIGSTOP)
    assert rewards._MATH_WORKER.ask("x", "y", 0.1) is None
    assert stuck.poll() is not None
    assert math_reward.score("<answer>(x-8)(x+8)</answer>", answer="x^2-64") == 1.0


def test_math_reward_survives_the_death_of_its_process():
    worker = rewards._MATH_WORKER
    assert math_reward.score("<answer>(x-2)(x+2)</answer>", answer="x^2-4") == 1.0
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    assert math_reward.score("<answer>(x-3)(x+3)</answer>", answer="x^2-9") == 1.0


def test_the_mathematics_process_ends_with_a_caller_that_is_killed():
    code = (
        "import rewards, time; rewards.math_reward.score('<answer>x+1</answer>', answer='1+x')\n"
        "print(rewards._MATH_WORKER.process.pid, flush=True); time.sleep(600)"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    pid = int(caller.stdout.readline())
    caller.kill()
    caller.wait()
    for _ in range(100):
        if not os.path.exists(f"/proc/{pid}") or "Z" in open(f"/proc/{pid}/stat").read().split(")")[1][:3]:
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"process {pid} outlived its caller")


def test_verdicts_on_plain_numbers_are_those_of_math_verify():
    from math_verify import parse, verify

    pairs = [
        (g, a)
        for g in ("12", "-3", "0.5", "1200", "7/2")
        for a in ("12", "-3", "1/2", "0.50", "1,200", "3.5", "12.0", "13", "1200.5", "+12")
    ]
    for gold, given in pairs:
        theirs = verify(parse(f"${gold}$"), parse(f"${given}$"))
        assert math_reward.score(f"<answer>{given}</answer>", answer=gold) == float(theirs), (gold, given)


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


def test_the_cosine_is_the_papers_and_stays_clamped():
    ids = lambda n: {"completion_ids": list(range(n)), "answer": "12"}  # noqa: E731
    text = FORMAT.write("a", "12")
    assert cosine_length_reward.score(text, **ids(256)) == pytest.approx(0.5 + 0.25 * (1 + math.cos(math.pi / 2)))
    assert cosine_length_reward.score(text, **ids(512)) == cosine_length_reward.score(text, **ids(1024)) == 0.5


def test_the_soft_overlong_reward_is_trls_moved_up_by_one():
    from trl.rewards import get_soft_overlong_punishment

    theirs = get_soft_overlong_punishment(max_completion_len=512, soft_punish_cache=128)
    ids = [[0] * n for n in (1, 384, 385, 448, 511, 512, 513, 9999)]
    ours = rewards.soft_overlong_reward(prompts=[""] * 8, completions=["x"] * 8, completion_ids=ids)
    assert ours == pytest.approx([1 + value for value in theirs(completion_ids=ids)])


def test_debug_reward_changes_nothing_and_shows_what_is_extracted(capsys):
    columns = {}
    good = FORMAT.write("a", "12")
    scores = debug_reward(prompts=["p"] * 2, completions=[good, "12"], answer=["12"] * 2, log_extra=columns.__setitem__)
    assert scores == [0.0, 0.0]
    assert columns == {"extracted_answer": ["12", None], "strict_format": [True, False]}
    assert "gold '12', extracted '12'" in capsys.readouterr().out


def test_an_async_reward_that_waits_for_another_is_told_instead_of_hanging():
    @reward
    async def inner(completion: str) -> float:
        return 1.0

    @reward
    async def outer(completion: str) -> float:
        return inner.score(completion)

    with pytest.raises(RewardError, match="await its `function`"):
        outer.score("x")
    assert inner.score("x") == 1.0


def test_a_setting_is_never_overruled_by_a_column_of_its_name():
    columns = {
        "steps": [1],
        "n": ["17"],
        "kind": ["algebra"],
        "judge": ["human"],
        "every": ["day"],
        "max_tokens": [None],
        "answer": ["12"],
    }
    text = FORMAT.write("3 * 4 = 12\n12 + 5 = 17\nSo it is 17.", "12")
    callable_here = [f for name, f in REGISTRY.items() if name != "judge_reward" and set(f.columns) <= columns.keys()]
    assert len(callable_here) > 12
    for function in callable_here:
        function(prompts=["p"], completions=[text], **columns)
    assert REGISTRY["reasoning_steps_reward"](prompts=["p"], completions=[text], **columns) == [1.0]


@pytest.mark.parametrize("name", ["ReadTimeout", "ConnectionError", "APITimeoutError", "URLError", "TimeoutExpired"])
def test_lost_connections_of_the_usual_clients_are_failures_and_http_errors_are_not(name):
    kinds = {"ReadTimeout": "Timeout", "APITimeoutError": "APIConnectionError"}
    lost = type(name, (type(kinds.get(name, name), (OSError,), {}),), {})
    assert (
        rewards.is_failure(lost())
        and not rewards.is_failure(type("HTTPError", (lost,), {})())
        and not rewards.is_failure(KeyError())
    )


def test_what_a_tool_said_is_not_the_policys_answer():
    chat = [
        {"role": "assistant", "content": "call"},
        {"role": "tool", "content": "<answer>12</answer>"},
        {"role": "assistant", "content": "hm"},
    ]
    assert correctness_reward(prompts=["?"], completions=[chat], answer=["12"]) == [0.0]


def test_token_ids_that_are_not_given_are_estimated_even_where_they_are_required():
    @reward(high=100)
    def counted_reward(completion: str, completion_ids) -> float:
        return len(completion_ids)

    assert counted_reward.score("x" * 40) == 10


@pytest.mark.parametrize("parameters", ["prompts, completion", "completion, /"])
def test_parameters_that_could_not_be_filled_are_refused_at_once(parameters):
    with pytest.raises(TypeError, match="filled by name"):
        reward(eval(f"lambda {parameters}: 1.0"))
    with pytest.raises(TypeError, match="cannot be async"):

        @reward
        async def group_reward(completions: list[str]) -> list[float]:
            return [1.0]


def test_a_cached_reward_can_be_called_by_many_threads():
    once = cached(reward(lambda completion: len(completion) / 100), size=5)
    found = []

    def work(k):
        for i in range(50):
            found.append(once(prompts=["p"] * 3, completions=["x" * ((i + k + j) % 20) for j in range(3)]))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 400 and all(abs(b - a) < 1 for a, b, _ in found)


def test_a_forked_child_can_do_mathematics_of_its_own():
    pid = os.fork()
    if pid == 0:
        os._exit(0 if math_reward.score("<answer>(x-5)(x+5)</answer>", answer="x^2-25") == 1.0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert math_reward.score("<answer>(x-6)(x+6)</answer>", answer="x^2-36") == 1.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: correctness_reward.score(FORMAT.write("a", "a" + "\u0301\u0316" * 400_000), answer="Paris"),
        lambda: rewards.rouge_reward.score(FORMAT.write("a", "one two " * 20_000), answer="two one " * 1_200),
        lambda: json_reward.score(
            FORMAT.write("a", json.dumps([{"a": i} for i in range(3000)])), schema={"uniqueItems": True}
        ),
        lambda: math_reward.score(FORMAT.write("a", "(" * 90 + "x + 1" + ")" * 90), answer="x^2"),
    ],
    ids=["combining marks", "a long reference", "many items", "deep brackets"],
)
def test_what_took_quadratic_time_once_does_not(call):
    started = time.process_time()
    call()
    assert time.process_time() - started < 10  # it was minutes


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
    assert rewards.multiple_choice_reward.score(f"<answer>{given}</answer>", answer=answer, choices=choices) == score


def test_a_countdown_of_numpy_numbers_counts_and_one_of_fractions_is_unusable():
    import numpy as np

    countdown = rewards.countdown_reward
    assert countdown.score("<answer>3x4+5</answer>", numbers=np.array([3, 4, 5]), target=np.int64(17)) == 1.0
    assert countdown.score("<answer>3*4+5</answer>", numbers=[3.9, 4.2, 5.5], target=17) is None
    assert countdown.score("<answer>3*4+5</answer>", numbers=[None], target=17) is None


@pytest.mark.parametrize(
    "gold", [None, float("nan"), float("inf"), "", " ", "\u200b", [12], {"a": 12}, b"12", "text without\n####"]
)
def test_a_gold_that_is_missing_or_unusable_is_none_and_never_a_zero(gold):
    for function in (
        correctness_reward,
        math_reward,
        cosine_length_reward,
        rewards.numeric_closeness_reward,
        rewards.bleu_reward,
    ):
        assert function.score(FORMAT.write("a", "12"), answer=gold) is None, function


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


# --------------------------------------------------------------------------- extraction


@pytest.mark.parametrize(
    "text, value",
    [
        ("7", 7),
        ("-7", -7),
        ("+7", 7),
        ("−7", -7),
        ("- 7", -7),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("1,200", 1200),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("$13.50", Fraction(27, 2)),
        ("-$4", -4),
        ("$-4", -4),
        ("€5", 5),
        ("5 €", 5),
        ("85%", 85),
        ("85 percent", 85),
        ("12 km", 12),
        ("20 km/h", 20),
        ("30 °c", 30),
        ("3/4", Fraction(3, 4)),
        ("-1/3", Fraction(-1, 3)),
        ("1e3", 1000),
        ("2.5E-1", Fraction(1, 4)),
        ("７", 7),
        ("**42**", 42),
        ("`42`", 42),
        ('"42"', 42),
        ("42.", 42),
        ("$42$", 42),
        (" 42\n", 42),
        ("007", 7),
        ("5 m", 5),
        ("", None),
        ("abc", None),
        ("1,20", None),
        ("12,00", None),
        ("1.2.3", None),
        ("4 or 5", None),
        ("about 5", None),
        ("5 millions", 5_000_000),
        ("5 million", 5_000_000),
        ("2.5 billion dollars", 2_500_000_000),
        ("½", Fraction(1, 2)),
        ("1½", Fraction(3, 2)),
        ("2 1/2", Fraction(5, 2)),
        ("US$12", 12),
        ("₹12", 12),
        ("12 cm^2", 12),
        ("\\$12", 12),
        ("12\\%", 12),
        ("\\(12\\)", 12),
        ("\\boxed{12}", 12),
        ("1{,}200", 1200),
        ("10mins", 10),
        ("$18 per day", 18),
        ("$18/day", 18),
        ("72 clips in total", 72),
        ("12 \\text{ apples}", 12),
        ("12\napples", 12),
        ("12 nope", None),
        ("12 max", None),
        ("12\n13", None),
        ("\\frac{3}{4}", Fraction(3, 4)),
        ("1.2 × 10^3", 1200),
        ("x = 12", 12),
        ("12 apples left", None),
        ("twelve", None),
        ("~12", None),
        ("12?", None),
        ("12+", None),
        ("12 (or so)", None),
        ("1 200", None),
        ("1\u200b2", None),
        ("3/4/5", None),
        ("12²", None),
        ("1²", None),
        ("①②", None),
        ("5 m²", 5),
        ("5 squared", None),
        ("5 thirds", None),
        ("5 thirteen", None),
        ("5 i think", None),
        ("5 feet six inches", None),
        ("5 approx", None),
        ("5 square metres", 5),
        ("5 km an hour", 5),
        ("5m", None),
        ("5k", None),
        ("5-6", None),
        ("= 5", None),
        ("5 = 5", None),
        ("5!", None),
        ("1/0", None),
        ("1e999999999", None),
        ("--5", None),
        ("-$-5", None),
        ("1 2", None),
        ("5 and 6", None),
        ("9" * 1000, None),
        ("nan", None),
        ("inf", None),
        ("\ud800", None),
    ],
)
def test_extract_number(text, value):
    assert extract_number(text) == value


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
        ("<think><answer>4</answer>", None),
        ("<think>a</think><think><answer>4</answer></think>", None),
    ],
)
def test_extract_answer(text, answer):
    assert extract_answer(text) == answer


def test_extract_reasoning_takes_one_closed_block_of_several_lines():
    assert extract_reasoning("<think>\na\nb\n</think>") == "a\nb"
    assert extract_reasoning("<think>a") is extract_reasoning("</think>a<think>") is extract_reasoning("a") is None


def test_extract_gsm8k_answer():
    assert extract_gsm8k_answer("a #### b\n#### 1,200 ") == "1,200"
    assert extract_gsm8k_answer("no marker") is extract_gsm8k_answer("empty ####  ") is None


@pytest.mark.parametrize(
    "text, code",
    [
        ("```python\na = 1\n```\nbetter:\n```python\nb = 2\n```", "b = 2\n"),
        ("```\na = 1\n```\n```\nb = 2\n```", "b = 2\n"),
        ("```bash\nls\n```\nThen:\n```python\nx = 1\n```", "x = 1\n"),
        ("```python\na = 1\n```\nprints:\n```\n12\n```", "a = 1\n"),
        ("```python3\na = 1\n```\nprose\n```python3\nb = 2\n```", "b = 2\n"),
        ('```python title="a"\na = 1\n```', "a = 1\n"),
        ("```python\r\na = 1\r\n```", "a = 1\n"),
        ("```python\nb = 2", "b = 2\n"),
        ("    return 1", "    return 1"),
        ("\nclass A:\n    pass", "\nclass A:\n    pass"),
        ("Sure, I can help.", None),
        ("import the module and go", None),
        ("", None),
    ],
)
def test_extract_code_takes_the_last_python_block_or_bare_code(text, code):
    assert extract_code(text) == code


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
