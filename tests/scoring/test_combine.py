"""Rewards made of other rewards."""

import threading

import pytest

from rewards import (
    FORMAT,
    adopt,
    cached,
    correctness_reward,
    diversity_reward,
    format_reward,
    gate,
    length_reward,
    rename,
    rescale,
    reward,
)


@reward
def shaky_reward(completion: str) -> float:
    if "lost" in completion:
        raise ConnectionError("the line is dead")
    return float(completion)


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
        cached(diversity_reward)


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


def test_combinations_of_adopted_functions_score_one_text_as_the_functions_do():
    def their_correctness_reward(prompts, completions, answer, **kwargs):
        return [2.0 * (c[0]["content"].endswith(f"{a}\n</answer>")) for c, a in zip(completions, answer)]

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
