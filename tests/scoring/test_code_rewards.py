"""code_reward and syntax_reward beyond their cases, the search for code, and the guarantees of data/code_problems.jsonl."""

import ast
import json
import logging
import os
import time
from collections import Counter

import pandas as pd
import pytest

import rewards
import sandbox as module
from lab.data import code_problems, loading
from lab.files import ROOT
from lab.measure import code_scores
from lab.model.sampling import Sampled
from rewards import RewardError, code_reward, extract_code, function_prompt, syntax_reward
from sandbox import Sandbox
from scoring.cases import BOTH, PROBLEM
from scoring.code import default_sandbox


def batch(function, texts, **changed):
    columns = {
        name: value if callable(value) else [value] * len(texts) for name, value in {**PROBLEM, **changed}.items()
    }
    return function(prompts=["?"] * len(texts), completions=texts, **columns)


@pytest.fixture(scope="module")
def box():
    with Sandbox(workers=2, timeout=1.0) as sandbox:
        yield sandbox


# --------------------------------------------------------------------------- the rewards


def test_a_batch_is_judged_in_parallel_and_equal_completions_once(box, monkeypatch):
    judge, run = module.Worker.judge, []
    monkeypatch.setattr(module.Worker, "judge", lambda self, *a: run.append(self) or judge(self, *a))
    texts = [BOTH, "    return 4", "no code", f"```python\n{BOTH}```", BOTH] * 8
    scores = batch(code_reward.with_options(sandbox=box), texts)
    assert scores == [1.0, pytest.approx(1 / 3), 0.0, 1.0, 1.0] * 8
    assert 2 <= len(run) <= 6 and len(set(run)) == 2, "two kinds of code, on two workers"


def test_an_error_is_never_a_zero_and_is_counted(box, caplog):
    reward = code_reward.with_options(name="own", sandbox=box)
    logged = {}
    with caplog.at_level(logging.WARNING, "rewards"):
        scores = batch(
            reward,
            [BOTH, "    return 4"],
            test="def check(candidate):\n    assert undefined == 1\n",
            log_metric=logged.__setitem__,
        )
    assert (
        scores == [None, None] and reward.failures == 2 and logged == {"own/failed": 2} and "NameError" in caplog.text
    )


def test_a_lost_worker_is_neutral_within_the_group(box, monkeypatch):
    judge = module.Worker.judge

    def sometimes(self, plan, prompt, completion, *rest):
        if "lost" in completion:
            raise module.WorkerDied("gone")
        return judge(self, plan, prompt, completion, *rest)

    monkeypatch.setattr(module.Worker, "judge", sometimes)
    with Sandbox(workers=1) as own:
        scores = batch(code_reward.with_options(sandbox=own), [BOTH, "    return None", "    return 'lost'"])
    assert scores == [1.0, 0.0, 0.5]


def test_a_sandbox_that_cannot_start_stops_the_run_with_its_reason(monkeypatch):
    monkeypatch.setattr(rewards, "default_sandbox", default_sandbox.__wrapped__)  # the one of this process is open
    monkeypatch.setattr(module.sys, "platform", "darwin")
    with pytest.raises(RewardError, match="SandboxUnavailable: The sandbox needs Linux"):
        batch(code_reward, [BOTH])


def test_a_forked_child_opens_a_sandbox_of_its_own():
    assert batch(code_reward, [BOTH]) == [1.0]
    pid = os.fork()
    if pid == 0:
        os._exit(0 if batch(code_reward, [BOTH]) == [1.0] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert batch(code_reward, [BOTH]) == [1.0]


def test_the_function_is_found_in_a_prompt_that_says_more():
    head = PROBLEM["code_prompt"]
    for text in (head, f"Complete this:\n```python\n{head}```\nReply with code.", f"Complete this function.\n\n{head}"):
        chat = [{"role": "system", "content": "x"}, {"role": "user", "content": text}]
        assert function_prompt(chat, "double").strip() == head.strip()
        assert code_reward.score("    return 2 * n", prompt=chat, test=PROBLEM["test"], entry_point="double") == 1.0
    assert function_prompt("other", "double", head) == head


def test_a_function_whose_inner_function_alone_returns_gives_nothing_back():
    inner = "def double(n):\n    def g():\n        return 1\n"
    assert syntax_reward.score(inner, entry_point="double") == 0.5
    assert syntax_reward.score(inner + "    return g()\n", entry_point="double") == 1.0


@pytest.mark.parametrize(
    "unit", ["```\nimport x\n```\n", "```python\ndef f(n):\n", "```\ndef double(n): pass\n```\n", "   ```\n   a\n"]
)
def test_a_megabyte_of_blocks_takes_no_time(unit):
    started = time.process_time()
    extract_code(unit * (1_000_000 // len(unit)) + "\n```python\ndef double(n): pass\n```", "double")
    assert time.process_time() - started < 5, "a guard against quadratic time, not a measure"


def test_a_test_in_lines_as_mbpp_has_it_is_one_test():
    assert code_reward.score(BOTH, test=["assert double(2) == 4", "assert double(3) == 7"], entry_point="double") == 0.5


def test_code_that_only_parses_is_worth_less_than_a_wrong_function_and_neither_is_run(tmp_path):
    mark = tmp_path / "run"
    text = f"open({str(mark)!r}, 'w')\ndef double(n):\n    return n\n"
    assert syntax_reward.score(f"```python\n{text}```", entry_point="double") == 1.0 and not mark.exists()


@pytest.mark.parametrize(
    "text",
    [
        "(" * 90_000,
        "-" * 90_000 + "1",
        "x" + ".a" * 40_000,
        "[" * 5_000 + "]" * 5_000,
        "lambda: " * 20_000 + "1",
        "1" * 99_000,
        "a = b" * 20_000,
        "\x00",
        "\ud800",
    ],
    ids=lambda text: repr(text[:8]),
)
def test_hostile_source_is_parsed_without_harm(text):
    for completion in (text, f"```python\n{text}\n```", f"def double(n):\n    return {text}"):
        assert syntax_reward.score(completion, entry_point="double", code_prompt=PROBLEM["code_prompt"]) in (
            0.0,
            0.5,
            1.0,
        )


# --------------------------------------------------------------------------- finding the code


@pytest.mark.parametrize(
    "text, code",
    [
        ("```python\ndef f(): return 1\n```\nUse it:\n```python\nf()\n```", "def f(): return 1\n"),
        ("```python\ndef f(): return 1\n```\nbetter:\n```python\ndef f(): return 2\n```", "def f(): return 2\n"),
        ("```\ndef f(): return 1\n```\n```python\nprint(1)\n```", "def f(): return 1\n"),
        ("def g(): return 1\n\nSo:\n\ndef f():\n    return g()\nThat is it.", "def f():\n    return g()\n"),
        ("<think>```python\ndef f(): return 0\n```</think>def f():\n    return 1", "def f():\n    return 1"),
        ("<answer>def f():\n    return 1</answer>", "def f():\n    return 1"),
        ("<answer>Here:\ndef f():\n    return 1</answer>", None),
        ("<answer>def f(): return 1</answer><answer>def f(): return 2</answer>", None),
        ("<answer>def f(): return 1", None),
        ("f = lambda: 1", "f = lambda: 1"),
        ("1. So:\n   ```python\n   def f():\n       return 1\n   ```", "def f():\n    return 1\n"),
        (
            "```python\nimport math\n```\nand\n```python\ndef f(): return math.pi\n```",
            "import math\ndef f(): return math.pi\n",
        ),
        ("```python\nx = f()\n```\n```python\ndef f(): return 1\n```", "def f(): return 1\n"),
        ("\ufeffdef f():\n    return 1", "def f():\n    return 1"),
        ("```python\ndef f(): return 'a\x0cb'\n```", "def f(): return 'a\x0cb'\n"),
        ("from the top we import everything", None),
    ],
)
def test_extract_code_prefers_what_defines_the_entry_point(text, code):
    assert extract_code(text, "f") == code


# --------------------------------------------------------------------------- the problems


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


# --------------------------------------------------------------------------- lab/data/code_problems.py


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


def test_advantages_are_those_of_grpo():
    assert code_problems.advantages([0, 0, 0]).tolist() == [0, 0, 0]
    assert code_problems.advantages([1, 0, 0, 0]) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-3)


def test_the_assertion_table_shows_what_held(box):
    row = code_problems.as_chat_row({**PROBLEM, "prompt": PROBLEM["code_prompt"]}, True)
    table = code_problems.assertion_table(row, box.run_tests(**code_problems.sandbox_job(row, "    return 4\n")))
    assert (
        isinstance(table, pd.DataFrame)
        and table["holds"].tolist() == [True, False, False]
        and "candidate(2) == 4" in table["assertion"][0]
    )


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
