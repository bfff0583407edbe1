"""Rewards go to a spawned process, as TRL's asynchronous workers need; one that cannot says why."""

import functools
import multiprocessing
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest

import rewards
from lab.train import chosen_rewards
from rewards import FORMAT, REGISTRY, adopt, cached, correctness_reward, gate, length_reward, rename, rescale, reward

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
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    (tmp_path / "my_rewards.py").write_text(OWN, encoding="utf-8")
    return chosen_rewards.load_module(tmp_path / "my_rewards.py")


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


def test_a_function_in_trls_signature_and_rewards_of_a_readers_file_go_too(spawned, own):
    partial = functools.partial(own.in_trls_signature, by=0.5)
    assert spawned.submit(own.own_reward.with_options(least=0.0), **CALL).result(60) == [1.0, 0.0]
    assert spawned.submit(adopt(own.in_trls_signature), **in_chat(CALL)).result(60) == [55, 55]
    assert adopt(partial)(**in_chat(CALL)) == [27.5, 27.5]


def test_a_reward_that_another_process_could_not_find_says_why():
    @reward
    def local_reward(completion: str) -> float:
        return 1.0

    for function in (local_reward, reward(lambda completion: 1.0), adopt(lambda completions: [1.0], name="theirs")):
        with pytest.raises(
            pickle.PicklingError, match=f"{function.__name__} cannot be pickled: its function is a lambda"
        ):
            pickle.dumps(gate(function, by=correctness_reward))


def test_a_reward_of_a_notebook_says_why(monkeypatch):
    notebook = type(sys)("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    exec("from rewards import reward\n@reward\ndef mine(completion: str) -> float:\n    return 1.0", vars(notebook))
    with pytest.raises(pickle.PicklingError, match="mine cannot be pickled: .* in a notebook. .* my_rewards.py"):
        pickle.dumps(notebook.mine)


def test_a_reward_whose_name_means_another_one_by_now_is_refused(own, monkeypatch):
    old = own.own_reward
    exec("def own_reward(completion, answer):\n    return 0.0", vars(own))
    monkeypatch.setitem(sys.modules, "my_rewards", own)
    with pytest.raises(pickle.PicklingError, match="not what my_rewards now calls own_reward"):
        pickle.dumps(old)


def test_the_copy_in_the_same_process_is_the_same_function():
    assert pickle.loads(pickle.dumps(correctness_reward)).function is rewards.correctness_reward.function
