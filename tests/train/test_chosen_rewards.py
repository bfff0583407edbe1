"""The choice of rewards: from notebook 02 to notebook 03 without copying."""

import pickle

import pytest

from lab.train import chosen_rewards
from rewards import correctness_reward, gate, length_reward

OWN = """from rewards import reward


@reward
def short_reward(completion: str) -> float:
    return float(len(completion) < {limit})
"""


def test_a_tweaked_reward_reaches_training_without_copying(tmp_path):
    (tmp_path / "my_rewards.py").write_text(OWN.format(limit=5))
    first = chosen_rewards.save_choice(tmp_path, {"short_reward": 0.5, "correctness_reward": 1, "format_reward": 0})
    assert [entry["decides"] for entry in first["rewards"]] == [False, True]
    functions, weights, _ = chosen_rewards.load_choice(tmp_path)
    assert ([f.__name__ for f in functions], weights) == (["short_reward", "correctness_reward"], [0.5, 1.0])
    assert functions[0].score("123456") == 0
    (tmp_path / "my_rewards.py").write_text(OWN.format(limit=9))
    functions, _, record = chosen_rewards.load_choice(tmp_path)
    assert functions[0].score("123456") == 1
    assert record["source_sha256"] != first["source_sha256"]


def test_choosing_what_does_not_exist_or_nothing_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match="'nice_reward', but there is no such reward.*\nThe rewards are: format_reward, "
    ):
        chosen_rewards.save_choice(tmp_path, {"nice_reward": 1})
    with pytest.raises(ValueError, match="Every weight in WEIGHTS is 0"):
        chosen_rewards.save_choice(tmp_path, {"format_reward": 0})
    with pytest.raises(FileNotFoundError, match="02_design_rewards"):
        chosen_rewards.load_choice(tmp_path)


def own(tmp_path, text):
    (tmp_path / "my_rewards.py").write_text(text)
    return chosen_rewards.load_current(tmp_path).known


def test_variants_combinations_and_functions_in_trls_signature_can_be_chosen(tmp_path):
    known = own(
        tmp_path,
        "from rewards import correctness_reward, gate, length_reward\n"
        "short = length_reward.with_options(shortest=1, longest=9)\nshort_if_right = gate(short, by=correctness_reward)\n"
        "def theirs(prompts, completions, answer, **kwargs):\n    return [0.5 for _ in completions]\n"
        "def helper(text):\n    return text\n",
    )
    assert {
        "theirs",
        "length_reward[shortest=1,longest=9]",
        "short_if_right",
    } <= known.keys()
    assert "helper" not in known and known["theirs"].columns == ("answer",)


def test_a_forgotten_decorator_and_a_name_used_twice_are_told(tmp_path):
    with pytest.raises(ValueError, match="nice_reward is not a reward yet: put @reward"):
        own(tmp_path, "def nice_reward(completion):\n    return 1.0\n")
    known = own(
        tmp_path,
        "from rewards import adopt\ndef f(completions, **kwargs):\n    return [1.0 for _ in completions]\ng = adopt(f, low=0, high=2)\n",
    )
    assert known["f"].high == 2, "the plain function is not taken a second time"
    with pytest.raises(ValueError, match="two rewards are called length_reward.*rename"):
        own(
            tmp_path,
            "from rewards import length_reward, rename\na = rename(length_reward.with_options(longest=9), 'length_reward')\n",
        )


def test_a_combination_is_called_as_its_variable_also_when_pickled_and_rename_has_the_last_word(tmp_path):
    known = own(
        tmp_path,
        "from rewards import cached, correctness_reward, gate, length_reward, rename, rescale\n"
        "my_gated = gate(length_reward, by=correctness_reward)\nkept = cached(my_gated)\n"
        "wide = rescale(length_reward, 0, 2)\nz = rename(gate(length_reward, by=correctness_reward), 'short')\n",
    )
    assert {"my_gated", "kept", "wide", "short"} <= known.keys() and "z" not in known
    assert all(name == one.__name__ == pickle.loads(pickle.dumps(one)).__name__ for name, one in known.items())
    assert known["wide"].high == 2 and known["my_gated"].score("<answer>4</answer>", answer="5") == 0
    assert gate(length_reward, by=correctness_reward).__name__ == "length_reward_if_correctness_reward", "elsewhere"
