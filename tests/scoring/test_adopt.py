"""Functions in TRL's own signature, and a list of rewards made ready."""

import asyncio
import functools
import math
import re

import pytest

from rewards import (
    MissingColumnError,
    RewardError,
    adopt,
    format_reward,
    prepare_rewards,
)


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
