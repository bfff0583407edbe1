"""The rewards: their cases, their docstrings, the registry, and time on hostile text."""

import doctest
import importlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

import rewards
from lab.files import ROOT
from rewards import (
    FORMAT,
    REGISTRY,
    correctness_reward,
    cosine_length_reward,
    debug_reward,
    json_reward,
    math_reward,
    registry_table,
    rouge_reward,
    soft_overlong_reward,
)

SCORING = ROOT / "scoring"


@pytest.mark.parametrize("name", ["rewards", *(f"scoring.{path.stem}" for path in sorted(SCORING.glob("[a-z]*.py")))])
def test_docstring_examples(name):
    if name != "scoring.math_worker":  # a script, run in a process of its own
        assert doctest.testmod(importlib.import_module(name), extraglobs=vars(rewards)).failed == 0


def test_docstrings_have_many_examples():
    assert sum(len(found.examples) for found in doctest.DocTestFinder().find(rewards)) >= 30


def test_the_registry_has_every_reward_of_the_module():
    assert list(REGISTRY) == [name for name in rewards.__all__ if name.endswith("_reward")]


def test_every_reward_says_range_purpose_and_example_in_its_docstring():
    for name, function in REGISTRY.items():
        assert function.purpose.endswith((".", ":")) and len(function.purpose) < 130, name
        assert "Returns" in function.__doc__, name
        assert ">>> " in function.__doc__ or name == "debug_reward", name


def test_the_readme_shows_the_registry_as_it_is():
    assert registry_table() in (SCORING / "README.md").read_text(encoding="utf-8"), "paste the output of rewards.py"


def test_the_readme_names_every_file_of_scoring():
    readme = (SCORING / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in SCORING.glob("[a-z]*.py") if f"`{path.name}`" not in readme] == []
    assert len(re.sub(r"^\|.*$", "", readme, flags=re.M).split()) <= 900


def test_the_module_alone_imports_nothing_that_only_single_rewards_need():
    code = "import rewards, sys; print([m for m in ('torch', 'sympy', 'nltk', 'openai', 'jsonschema', 'lab') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_in_another_project_three_copied_paths_are_all_that_the_rewards_need(tmp_path):
    shutil.copytree(SCORING, tmp_path / "scoring", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("rewards.py", "sandbox.py"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "elsewhere.py"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    scores = json.loads(run.stdout)
    assert scores.keys() == REGISTRY.keys() - {"judge_reward"}
    assert min(score for name, score in scores.items() if REGISTRY[name].claims_correctness) > 0.99, scores
    assert None not in scores.values() and scores["format_reward"] == 1.0


ELSEWHERE = """
import json
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "pandas", "lab", "trl", "transformers", "datasets"):
            raise ModuleNotFoundError(f"{name} is blocked")


sys.meta_path.insert(0, Blocked())
import rewards

scores = {}
for name, function in rewards.REGISTRY.items():
    row = {"answer": "12", **function.example}
    text = rewards.FORMAT.write("3 * 4 = 12", row.pop("right", "12"))
    if name != "judge_reward":
        given = {"trainer_state": 0, "log_extra": print} if name == "debug_reward" else {}
        with __import__("contextlib").redirect_stdout(sys.stderr):
            scores[name] = function.score(text, prompt="?", **row, **given)
print(json.dumps(scores))
"""


def test_the_cosine_is_the_papers_and_stays_clamped():
    ids = lambda n: {"completion_ids": list(range(n)), "answer": "12"}  # noqa: E731
    text = FORMAT.write("a", "12")
    assert cosine_length_reward.score(text, **ids(256)) == pytest.approx(0.5 + 0.25 * (1 + math.cos(math.pi / 2)))
    assert cosine_length_reward.score(text, **ids(512)) == cosine_length_reward.score(text, **ids(1024)) == 0.5


def test_the_soft_overlong_reward_is_trls_moved_up_by_one():
    from trl.rewards import get_soft_overlong_punishment

    theirs = get_soft_overlong_punishment(max_completion_len=512, soft_punish_cache=128)
    ids = [[0] * n for n in (1, 384, 385, 448, 511, 512, 513, 9999)]
    ours = soft_overlong_reward(prompts=[""] * 8, completions=["x"] * 8, completion_ids=ids)
    assert ours == pytest.approx([1 + value for value in theirs(completion_ids=ids)])


def test_debug_reward_changes_nothing_and_shows_what_is_extracted(capsys):
    columns = {}
    good = FORMAT.write("a", "12")
    scores = debug_reward(prompts=["p"] * 2, completions=[good, "12"], answer=["12"] * 2, log_extra=columns.__setitem__)
    assert scores == [0.0, 0.0]
    assert columns == {"extracted_answer": ["12", None], "strict_format": [True, False]}
    assert "gold '12', extracted '12'" in capsys.readouterr().out


@pytest.mark.parametrize(
    "call",
    [
        lambda: correctness_reward.score(FORMAT.write("a", "a" + "\u0301\u0316" * 400_000), answer="Paris"),
        lambda: rouge_reward.score(FORMAT.write("a", "one two " * 20_000), answer="two one " * 1_200),
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
