"""Rewards go to a spawned process, as TRL's asynchronous workers need; one that cannot says why."""

import functools
import multiprocessing
import pickle
import sys
import types
from concurrent.futures import ProcessPoolExecutor

import pytest
from trl.rewards import think_format_reward

import rewards
from lab.train import chosen_rewards
from rewards import (
    FORMAT,
    REGISTRY,
    Judge,
    adopt,
    cached,
    correctness_reward,
    gate,
    judge_reward,
    length_reward,
    rename,
    rescale,
    reward,
)

OWN = """
from rewards import adopt, reward


@reward(low=-1, high=1)
def own_reward(completion: str, answer: str, *, least: float = -1.0) -> float:
    return 1.0 if answer in completion else least


def in_trls_signature(completions, by=1.0, **kwargs):
    return [by * len(completion[0]["content"]) for completion in completions]
"""
CALL = {"prompts": ["?"] * 2, "completions": [FORMAT.write("a", "12"), FORMAT.write("a", "13")], "answer": ["12"] * 2}


@pytest.fixture(scope="module")
def spawned():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def in_chat(call):
    chats = [[{"role": "assistant", "content": text}] for text in call["completions"]]
    return {**call, "prompts": [[]] * len(chats), "completions": chats}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The rewards of a reader's file, loaded as notebook 03 does."""
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    (tmp_path / "my_rewards.py").write_text(OWN, encoding="utf-8")
    return chosen_rewards.load_current(tmp_path).known


def test_every_reward_of_the_library_is_pickled_and_its_variants_too(spawned):
    assert all(repr(pickle.loads(pickle.dumps(function))) == repr(function) for function in REGISTRY.values())
    gated = gate(length_reward.with_options(shortest=1, longest=30), by=correctness_reward)
    for function in (correctness_reward, gated, rescale(gated, -1, 1), cached(rename(gated, "short"))):
        there = spawned.submit(function, **CALL).result(60)
        assert there == function(**CALL) and there[0] != there[1], function
    assert pickle.loads(pickle.dumps(gated)).__name__ == gated.__name__


def test_a_variant_keeps_its_settings_name_and_range():
    short = rename(length_reward.with_options(longest=50), "short")
    again = pickle.loads(pickle.dumps(short))
    assert (again.__name__, again.options, again.score("x" * 600)) == ("short", {"longest": 50}, 0.0)


def test_rewards_of_a_readers_file_go_too_also_those_in_trls_signature(spawned, own):
    assert spawned.submit(own["own_reward"].with_options(least=0.0), **CALL).result(60) == [1.0, 0.0]
    assert spawned.submit(own["in_trls_signature"], **in_chat(CALL)).result(60) == own["in_trls_signature"](
        **in_chat(CALL)
    )


def test_a_partial_of_a_module_s_function_goes_too(spawned):
    function = adopt(functools.partial(think_format_reward, hint="unused"))
    assert spawned.submit(function, **in_chat(CALL)).result(60) == function(**in_chat(CALL))


def test_a_judge_that_has_been_asked_is_pickled_without_its_connection():
    judged = judge_reward.with_options(judge=Judge(model="any", base_url="http://127.0.0.1:9/v1", max_retries=0))
    assert judged(**CALL) == [None, None]
    again = pickle.loads(pickle.dumps(judged))
    assert again.options["judge"].host == "127.0.0.1" and again(**CALL) == [None, None]


def test_the_rewards_that_a_training_loads_go_too(own, tmp_path, spawned):
    """`load_choice` puts on each what it was loaded from, and the library's are those of everybody."""
    chosen_rewards.save_choice(tmp_path, {"correctness_reward": 1.0, "own_reward": 0.5})
    functions, _, _ = chosen_rewards.load_choice(tmp_path)
    found = [spawned.submit(function, **CALL).result() for function in functions]
    assert found == [function(**CALL) for function in functions] and len(found) == 2


def test_a_reward_that_another_process_could_not_find_says_why():
    @reward
    def local_reward(completion: str) -> float:
        return 1.0

    for function in (local_reward, reward(lambda completion: 1.0), adopt(lambda completions: [1.0], name="theirs")):
        with pytest.raises(
            pickle.PicklingError, match=f"{function.__name__} cannot be pickled: its function is a lambda, is inside"
        ):
            pickle.dumps(gate(function, by=correctness_reward))


def test_a_reward_of_a_notebook_says_why(monkeypatch):
    notebook = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    exec("from rewards import reward\n@reward\ndef mine(completion: str) -> float:\n    return 1.0", vars(notebook))
    with pytest.raises(pickle.PicklingError, match="mine cannot be pickled: .* or a notebook, .* my_rewards.py"):
        pickle.dumps(notebook.mine)


def test_a_reward_whose_name_means_another_one_by_now_is_refused(own, monkeypatch):
    edited = types.ModuleType("my_rewards")
    exec("def own_reward(completion, answer):\n    return 0.0", vars(edited))
    monkeypatch.setitem(sys.modules, "my_rewards", edited)
    with pytest.raises(pickle.PicklingError, match="own_reward cannot be pickled: .* is not what its file now has"):
        pickle.dumps(own["own_reward"])


def test_the_copy_in_the_same_process_is_the_same_function():
    assert pickle.loads(pickle.dumps(correctness_reward)).function is rewards.correctness_reward.function
