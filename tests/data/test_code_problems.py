"""The guarantees of data/code_problems.jsonl, problems of your own, and how sampled groups are judged and compared."""

import ast
import json
from collections import Counter

import pandas as pd
import pytest

from lab.data import code_problems, loading
from lab.files import ROOT
from lab.measure import code_scores
from lab.model.sampling import Sampled
from sandbox import Sandbox
from scoring.code import DOUBLE

PROBLEM = {name: value for name, value in DOUBLE.items() if name != "right"}
BOTH = DOUBLE["right"] + "\n"


@pytest.fixture(scope="module")
def box():
    with Sandbox(workers=2, timeout=1.0) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def problems():
    return [
        json.loads(line) for line in (ROOT / "data" / "code_problems.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def jobs(rows, *completions):
    return [
        {"prompt": r["prompt"], "completion": c, "test": r["test"], "entry_point": r["entry_point"]}
        for r, c in zip(rows, *completions)
    ]


def test_every_canonical_solution_passes(problems, box):
    found = box.run_many(jobs(problems, [row["canonical_solution"] for row in problems]))
    assert [(row["id"], verdict) for row, verdict in zip(problems, found) if verdict.status != "pass"] == []


@pytest.mark.parametrize("which", [0, 1])
def test_every_wrong_solution_fails_and_is_no_nonsense(problems, box, which):
    found = box.run_many(jobs(problems, [row["wrong_solutions"][which] for row in problems]))
    assert [(row["id"], v) for row, v in zip(problems, found) if v.status != "fail" or v.passed == 0] == []


def test_a_stub_earns_next_to_nothing(problems, box):
    for stub in ("    return None\n", "    pass\n", "    return []\n", "    return 0\n"):
        found = box.run_many(jobs(problems, [stub] * len(problems)))
        assert all(v.status == "fail" for v in found) and sum(v.score for v in found) / len(found) < 0.15


def test_there_are_enough_of_them_and_each_is_complete(problems):
    assert len(problems) >= 60 and Counter(row["split"] for row in problems) == {"train": 54, "test": 18}
    assert max(Counter(row["entry_point"] for row in problems).values()) == 1
    for row in problems:
        tree = ast.parse(row["test"])
        asserts = [
            node for node in ast.walk(tree) if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant)
        ]
        assert len(asserts) >= 6 and len(row["wrong_solutions"]) == 2, row["id"]
        assert (
            len({row["canonical_solution"], *row["wrong_solutions"]}) == 3
            and '"""' in row["prompt"]
            and ">>>" in row["prompt"]
        )


def test_their_wrong_solutions_show_the_grade_between_nothing_and_right(problems, box):
    scores = [v.score for v in box.run_many(jobs(problems, [row["wrong_solutions"][0] for row in problems]))]
    assert len({round(score, 2) for score in scores}) > 10 and all(0 < score < 1 for score in scores)


def test_an_evaluation_set_is_refused_for_training_and_taken_for_measuring(tokenizer, monkeypatch):
    with pytest.raises(loading.DataError, match="is an evaluation set: trained on, it measures nothing"):
        code_problems.load_problems("openai/openai_humaneval", tokenizer, to_train=True)
    rows = [
        {
            "prompt": "def f(n):\n    '''x'''\n",
            "test": "assert f(1) == 1",
            "entry_point": "f",
            "split": "test",
            "_row": 0,
        }
    ]
    monkeypatch.setattr(loading, "load_rows", lambda source: loading.LoadedRows([dict(row) for row in rows]))
    train, test = code_problems.load_problems("openai/openai_humaneval", tokenizer, to_train=False)
    assert (
        train == []
        and test[0]["code_prompt"] == rows[0]["prompt"]
        and test[0]["prompt"][-1]["content"] == rows[0]["prompt"]
    )


def test_a_missing_column_and_an_empty_test_are_named(tokenizer, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "def f(): pass", "entry_point": "f"}\n')
    with pytest.raises(loading.DataError, match="no column 'test'"):
        code_problems.load_problems(str(path), tokenizer, to_train=True)
    path.write_text('{"prompt": "def f(): pass", "entry_point": "f", "test": " "}\n')
    with pytest.raises(loading.DataError, match="Row 0 .* has no text in one of prompt, test, entry_point"):
        code_problems.load_problems(str(path), tokenizer, to_train=True)


def test_own_problems_are_split_and_the_unsolvable_ones_named(tokenizer, tmp_path, box):
    path = tmp_path / "mine.jsonl"
    rows = [
        {
            "prompt": f"def f{i}(n):\n    '''x'''\n",
            "entry_point": f"f{i}",
            "test": f"assert f{i}({i}) == {i}",
            "canonical_solution": "    return n\n" if i else "    return -1\n",
        }
        for i in range(10)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train, test = code_problems.load_problems(str(path), tokenizer, to_train=True)
    assert (len(train), len(test)) == (8, 2)
    kept, found = code_problems.keep_solvable(train + test, box)
    assert found["entry_point"].tolist() == ["f0"] and "returned -1" in found["why"][0] and len(kept) == 9
    assert code_problems.without_held_out(train, [dict(train[0])]) == train[1:]
    unknown = [
        {k: v for k, v in train[1].items() if k != "canonical_solution"}
        | {"test": "assert f(len) == 1", "entry_point": "f"}
    ]
    with pytest.raises(loading.DataError, match="None of 1 problems is left.*unsupported"):
        code_problems.keep_solvable(unknown, box)


def test_problems_with_too_long_a_prompt_are_left_out(tokenizer):
    rows = [
        code_problems.as_chat_row({**PROBLEM, "prompt": f"def f(n):\n    'It {'x ' * n}'\n"}, True) for n in (1, 300)
    ]
    assert (
        code_problems.drop_long_prompts(rows, tokenizer, 200) == rows[:1]
        and code_problems.drop_long_prompts([], tokenizer, 5) == []
    )
    with pytest.raises(loading.DataError, match="more than 5 tokens .* raise MAX_SEQ_LENGTH"):
        code_problems.drop_long_prompts(rows, tokenizer, 5)


def test_groups_are_judged_and_compared(tokenizer, box):
    row = code_problems.as_chat_row({**PROBLEM, "prompt": PROBLEM["code_prompt"]}, True)
    before = [
        [Sampled(text, 1, True) for text in (BOTH, "prose", "    return 4", BOTH)],
        [Sampled("prose", 1, True)] * 4,
    ]
    table = code_scores.judge_groups([row, row], before, box)
    assert table["status"].tolist() == ["pass", "no code", "fail", "pass", *["no code"] * 4]
    assert code_scores.score_matrix(table, "passed").tolist() == [[1, 0, 0, 1], [0, 0, 0, 0]]
    after = code_scores.judge_groups([row, row], [[Sampled(BOTH, 1, True)] * 4] * 2, box)
    record = code_scores.compare_pass_at_k(table, after)
    assert record["n"] == 2 and list(record["pass"]) == ["1", "2", "4"]
    assert record["pass"]["1"]["before"]["estimate"] == 0.25 and record["pass"]["4"]["before"]["estimate"] == 0.5
    assert record["pass"]["1"]["difference"] == {"estimate": 0.75, "low": 0.5, "high": 1.0}
    assert code_scores.pass_at_k_table(record).loc["pass@1", "difference"] == "+75.0 points"


def test_a_completion_that_could_not_be_judged_stops_the_measurement(box):
    row = code_problems.as_chat_row({**PROBLEM, "prompt": PROBLEM["code_prompt"], "test": "assert undefined"}, True)
    with pytest.raises(RuntimeError, match="could not be judged"):
        code_scores.judge_groups([row], [[Sampled(BOTH, 1, True)]], box)


def test_the_assertion_table_shows_what_held(box):
    row = code_problems.as_chat_row({**PROBLEM, "prompt": PROBLEM["code_prompt"]}, True)
    table = code_problems.assertion_table(row, box.run_tests(**code_problems.sandbox_job(row, "    return 4\n")))
    assert (
        isinstance(table, pd.DataFrame)
        and table["holds"].tolist() == [True, False, False]
        and "candidate(2) == 4" in table["assertion"][0]
    )
