"""The decorator's contract: parameters and columns, groups, failures, options."""

import asyncio
import logging
import math
import re
from fractions import Fraction

import pytest

from rewards import (
    FORMAT,
    REGISTRY,
    MissingColumnError,
    RewardError,
    RewardFailure,
    correctness_reward,
    diversity_reward,
    format_reward,
    is_failure,
    length_reward,
    register,
    rename,
    reward,
    soft_format_reward,
    style_reward,
)


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


@pytest.mark.parametrize("name", ["ReadTimeout", "ConnectionError", "APITimeoutError", "URLError", "TimeoutExpired"])
def test_lost_connections_of_the_usual_clients_are_failures_and_http_errors_are_not(name):
    kinds = {"ReadTimeout": "Timeout", "APITimeoutError": "APIConnectionError"}
    lost = type(name, (type(kinds.get(name, name), (OSError,), {}),), {})
    assert is_failure(lost()) and not is_failure(type("HTTPError", (lost,), {})()) and not is_failure(KeyError())


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


def test_one_function_with_two_settings_has_two_metric_names():
    short, long = length_reward.with_options(longest=50), length_reward.with_options(longest=500)
    assert short.__name__ == "length_reward[longest=50]" != long.__name__
    assert short.score("x" * 600) == 0 < long.score("x" * 600)
    assert short.with_options(shortest=5).__name__ == "length_reward[longest=50,shortest=5]"
    odd = style_reward.with_options(unwanted=("a/b c",))
    assert re.fullmatch(r"style_reward\[[0-9a-f]{8}\]", odd.__name__) and odd.score("A/b c") == 0.75


def test_an_option_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(TypeError, match="no option 'max_length'; it has: completion_ids|shortest, longest"):
        length_reward.with_options(max_length=3)


def test_a_fixed_option_is_not_overruled_by_a_column_of_its_name():
    assert length_reward.with_options(longest=50)(prompts=[""], completions=["x" * 600], longest=[500]) == [0.0]


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


def test_a_registered_name_cannot_be_taken_twice():
    with pytest.raises(ValueError, match="'format_reward' already"):
        register(rename(format_reward.with_options(name="x"), "format_reward"))
    assert REGISTRY["format_reward"] is format_reward


def test_a_function_that_says_none_on_purpose_or_only_fails_has_not_forgotten_its_return():
    @reward
    def none_reward(completion: str) -> float | None:
        return None

    @reward
    def inner_reward(completion: str) -> float | None:
        def helper():
            return 1.0

        helper()

    assert none_reward.score("x") is None and reward(lambda completion: None).score("x") is None
    with pytest.raises(
        RewardError, match="inner_reward returned nothing for all 1 completions: its code has no `return`"
    ):
        inner_reward.score("x")
