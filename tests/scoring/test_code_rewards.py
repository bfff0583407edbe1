"""code_reward and syntax_reward beyond their cases, and the search for code."""

import logging
import os
import time

import pytest

import sandbox as module
from rewards import RewardError, code_reward, extract_code, function_prompt, syntax_reward
from sandbox import Sandbox
from scoring import code
from scoring.code import DOUBLE

PROBLEM = {name: value for name, value in DOUBLE.items() if name != "right"}
BOTH = DOUBLE["right"] + "\n"


def batch(function, texts, **changed):
    columns = {
        name: value if callable(value) else [value] * len(texts) for name, value in {**PROBLEM, **changed}.items()
    }
    return function(prompts=["?"] * len(texts), completions=texts, **columns)


@pytest.fixture(scope="module")
def box():
    with Sandbox(workers=2, timeout=1.0) as sandbox:
        yield sandbox


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
    monkeypatch.setattr(code, "default_sandbox", code.default_sandbox.__wrapped__)  # the one of this process is open
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
