"""The small modules that the notebooks call: files, chosen rewards, evaluation, the run's record."""

import doctest
import importlib
import json
import os

import numpy as np
import pandas as pd
import pytest
from lab import chosen_rewards, evaluate, export, files
from lab.policy import Sampled, fold_system
from lab.tables import readable

from rewards import FORMAT, correctness_reward, format_reward

# --------------------------------------------------------------------------- files


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = files.write_json(tmp_path / "a.json", {"a": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1} and list(tmp_path.iterdir()) == [path]


def test_a_damaged_json_file_names_the_notebook_that_makes_it(tmp_path):
    (tmp_path / "a.json").write_text('{"a": ')
    with pytest.raises(ValueError, match="damaged.*02_design_rewards"):
        files.read_json(tmp_path / "a.json", "02_design_rewards")


# --------------------------------------------------------------------------- chosen rewards

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
    with pytest.raises(ValueError, match="'nice_reward'; the rewards are: format_reward"):
        chosen_rewards.save_choice(tmp_path, {"nice_reward": 1})
    with pytest.raises(ValueError, match="Every weight is 0"):
        chosen_rewards.save_choice(tmp_path, {"format_reward": 0})
    with pytest.raises(FileNotFoundError, match="02_design_rewards"):
        chosen_rewards.load_choice(tmp_path)


def own(tmp_path, text):
    (tmp_path / "my_rewards.py").write_text(text)
    return chosen_rewards.known_rewards(tmp_path)


def test_variants_combinations_and_functions_in_trls_signature_can_be_chosen(tmp_path):
    known = own(
        tmp_path,
        "from rewards import correctness_reward, gate, length_reward\n"
        "short = length_reward.with_options(shortest=1, longest=9)\nshort_if_right = gate(short, by=correctness_reward)\n"
        "def theirs(prompts, completions, answer, **kwargs):\n    return [0.5 for _ in completions]\n"
        "def helper(text):\n    return text\n",
    )
    assert {"theirs", "length_reward[shortest=1,longest=9]", "length_reward[shortest=1,longest=9]_if_correctness_reward"} <= known.keys()
    assert "helper" not in known and known["theirs"].columns == ("answer",)


def test_a_forgotten_decorator_and_a_name_used_twice_are_told(tmp_path):
    with pytest.raises(ValueError, match="nice_reward is not a reward yet: put @reward"):
        own(tmp_path, "def nice_reward(completion):\n    return 1.0\n")
    known = own(tmp_path, "from rewards import adopt\ndef f(completions, **kwargs):\n    return [1.0 for _ in completions]\ng = adopt(f, low=0, high=2)\n")
    assert known["f"].high == 2, "the plain function is not taken a second time"
    with pytest.raises(ValueError, match="two rewards are called length_reward.*rename"):
        own(tmp_path, "from rewards import length_reward, rename\na = rename(length_reward.with_options(longest=9), 'length_reward')\n")


# --------------------------------------------------------------------------- evaluation


def graded(correct):
    return pd.DataFrame({"question": [str(i) for i in range(len(correct))], "format": correct, "correct": correct, "tokens": 5})


def test_grade_says_format_and_correct_for_each_row():
    row = {"prompt": [{"role": "user", "content": "3 * 4?"}], "answer": "12"}
    texts = [FORMAT.write("3 * 4", "12"), "<answer>12</answer>", FORMAT.write("3 * 4", "13")]
    table = evaluate.grade([row] * 3, [Sampled(text, 9, True) for text in texts])
    assert table["format"].tolist() == [1, 0, 1] and table["correct"].tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    "text, gold, right",
    [("so the answer is $1,200.", "1200", True), ("#### -4", "-4", True), ("**7.5**", "7.5", True), ("12 then 13", "12", False),
     ("no number", "12", False), ("Paris", "Paris", True), ("", "12", False), ("85%", "85%", True)],
)  # fmt: skip
def test_right_in_any_style_takes_the_last_number(text, gold, right):
    assert evaluate.right_anyhow(text, gold) is right


def test_no_gain_is_shown_as_an_interval_that_holds_zero():
    rng = np.random.default_rng(1)
    before, after = rng.random(400) < 0.5, rng.random(400) < 0.5
    found = evaluate.paired_difference(before, after)
    assert found["low"] < 0 < found["high"]
    assert found["estimate"] == pytest.approx(after.mean() - before.mean())


def test_the_interval_of_a_paired_difference_covers_as_the_normal_one_does():
    rng = np.random.default_rng(2)
    before = rng.random(500) < 0.3
    after = before | (rng.random(500) < 0.4)
    found, difference = evaluate.paired_difference(before, after), after.astype(float) - before
    half = 1.96 * difference.std(ddof=1) / np.sqrt(500)
    assert found["low"] == pytest.approx(difference.mean() - half, abs=0.01)
    assert found["high"] == pytest.approx(difference.mean() + half, abs=0.01)


def test_evaluation_has_the_promised_shape_and_refuses_other_questions():
    found = evaluate.compare(graded([0, 0, 1, 0]), graded([1, 1, 1, 0]), {"train": 1.234})
    assert found["n"] == 4 and found["base"]["correct"] == 0.25 and found["merged"]["format"] == 0.75
    assert set(found["difference"]["correct"]) == {"estimate", "low", "high"} and found["seconds"] == {"train": 1.2}
    with pytest.raises(ValueError, match="same questions"):
        evaluate.compare(graded([0, 1]), graded([0, 1, 1]), {})


def test_an_empty_comparison_is_refused():
    with pytest.raises(ValueError, match="at least one pair"):
        evaluate.paired_difference([], [])


def test_pass_at_k_agrees_with_drawing_by_hand():
    from itertools import combinations

    marks = [1, 1, 0, 0, 0, 0]
    by_hand = np.mean([any(marks[i] for i in drawn) for drawn in combinations(range(6), 3)])
    assert evaluate.pass_at_k(6, 2, 3) == pytest.approx(by_hand)
    with pytest.raises(ValueError):
        evaluate.pass_at_k(4, 5, 1)


def test_group_scores_are_in_the_order_of_the_samples_with_each_rows_columns():
    rows = [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}]
    groups = [[Sampled(f"<answer>{i}</answer>", 3, True) for i in (1, 2)] for _ in rows]
    table = evaluate.score_groups([correctness_reward, format_reward], rows, groups)
    assert table["correctness_reward"].tolist() == [1, 0, 0, 1] and table["group"].tolist() == [0, 0, 1, 1]
    assert evaluate.total_reward(table, {"correctness_reward": 2.0, "format_reward": 1.0}).tolist() == [2, 0, 0, 2]


# --------------------------------------------------------------------------- run folder and chat


def test_earlier_runs_are_kept_beside_the_new_one(tmp_path):
    for text in ("first", "second"):
        run = files.fresh_folder(tmp_path / "run")
        assert not any(run.iterdir())
        (run / "log.jsonl").write_text(text)
    files.fresh_folder(run)
    assert sorted(p.read_text() for p in tmp_path.glob("run-*/log.jsonl")) == ["first", "second"]


def test_a_system_message_is_folded_into_the_first_user_message_only():
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]
    assert fold_system(chat) == [{"role": "user", "content": "S\n\nU"}, {"role": "assistant", "content": "A"}]
    assert fold_system(chat[1:]) == chat[1:]


# --------------------------------------------------------------------------- export


def proof(changed=28, same_top=0.999, apart=0.03, from_base=0.7):
    return {
        "weights": {"changed": changed, "tensors": 50},
        "adapter_against_merged": {"same_top": same_top, "max_probability": apart},
        "base_against_merged": {"same_top": 0.977, "max_probability": from_base},
    }


def test_a_merge_that_changed_nothing_or_disagrees_with_the_adapter_is_refused():
    export.check(proof())
    with pytest.raises(export.ExportError, match="equals the base"):
        export.check(proof(changed=0))
    with pytest.raises(export.ExportError, match="at 40 %"):
        export.check(proof(same_top=0.4))
    with pytest.raises(export.ExportError, match="0.75 apart"):
        export.check(proof(changed=1, same_top=0.977, apart=0.746, from_base=0.0))


def test_a_merged_folder_that_does_not_load_says_so(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(export.ExportError, match="could not be loaded with plain transformers"):
        export.answer_in_fresh_process(tmp_path, [[{"role": "user", "content": "hi"}]], 4)


def test_a_table_shows_cells_and_names_of_columns_as_they_are():
    shown = readable(pd.DataFrame({"<b>name": ["<script>x</script>"]})).to_html()
    assert "<script>" not in shown and "<b>" not in shown and "&lt;b&gt;name" in shown and "&lt;script&gt;x" in shown


@pytest.mark.parametrize("name", sorted(path.stem for path in (files.ROOT / "notebooks/lab").glob("*.py") if ">>> " in path.read_text()))
def test_the_examples_in_docstrings_are_true(name):
    found = doctest.testmod(importlib.import_module(f"lab.{name}"))
    assert found.attempted and not found.failed
