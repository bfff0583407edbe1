"""What the sandbox promises to an honest caller. The attacks stand in test_sandbox_attacks.py."""

import ast
import errno
import functools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter, OrderedDict, defaultdict, namedtuple
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

import sandbox as module
from lab.files import ROOT
from sandbox import Sandbox, SandboxUnavailable, Verdict

PROMPT = 'def square(n):\n    """Return n squared; ValueError for a negative n."""\n'
RIGHT = "    if n < 0:\n        raise ValueError(n)\n    return n * n\n"
TEST = textwrap.dedent("""
    def check(candidate):
        assert candidate(2) == 4
        assert candidate(3) == 9, "three"
        try:
            candidate(-1)
            assert False, "no ValueError"
        except ValueError:
            pass
        for i in range(4):
            assert candidate(i) == i * i
""")
JOB = {"prompt": PROMPT, "completion": RIGHT, "test": TEST, "entry_point": "square"}


@pytest.fixture(scope="module")
def box():
    with Sandbox(workers=2, timeout=1.0) as sandbox:
        yield sandbox


def judged(box, completion=RIGHT, test=TEST, **other) -> Verdict:
    return box.run_tests(**{**JOB, "completion": completion, "test": test, **other})


def checking(*lines: str) -> str:
    return "def check(candidate):\n" + "".join(f"    {line}\n" for line in lines)


# --------------------------------------------------------------------------- verdicts


def test_a_right_body_and_a_right_function_pass(box):
    for completion in (RIGHT, PROMPT + RIGHT, "import math\n" + PROMPT + RIGHT, RIGHT.strip(), textwrap.dedent(RIGHT)):
        found = judged(box, completion)
        assert (found.status, found.passed, found.total, found.score) == ("pass", 4, 4, 1.0), (completion, found)


@pytest.mark.parametrize(
    "completion, held, why",
    [
        ("    return n * n\n", (1, 1, 0, 1), r"assert False, 'no ValueError': it returned 1"),
        ("    return n + n\n", (1, 0, 0, 0), r"assert candidate\(3\) == 9.*: it returned 6"),
        ("    if n < 0: raise TypeError('x')\n    return n * n\n", (1, 1, 0, 1), r"TypeError: x"),
        ("    return None\n", (0, 0, 0, 0), r"candidate\(2\) == 4: it returned None"),
        ("    return 1 / 0\n", (0, 0, 0, 0), r"candidate\(2\) == 4: ZeroDivisionError"),
        (
            "    if n == 3:\n        while True: pass\n    return n * n\n",
            (1, 0, 0, 0),
            r"stopped: more than 1 s of work",
        ),
        ("def other(n):\n    return n\n", (0, 0, 0, 0), r"NameError: square is not defined"),
        ("x = 3", (0, 0, 0, 0), r"NameError: square is not defined"),
        ("square = 4", (0, 0, 0, 0), r"TypeError"),
        ("def square(n:\n", (0, 0, 0, 0), r"does not load: SyntaxError"),
        ("raise KeyError('early')\ndef square(n): pass", (0, 0, 0, 0), r"does not load: KeyError"),
        ("import numpy\ndef square(n): pass", (0, 0, 0, 0), r"ModuleNotFoundError.*imports=\['numpy'\]"),
        ("", (0, 0, 0, 0), r"not defined"),
    ],
)
def test_a_wrong_completion_fails_with_the_share_that_held_and_the_reason(box, completion, held, why):
    found = judged(box, completion)
    assert found.status == "fail" and found.held == tuple(map(bool, held)), found
    assert found.passed == sum(held) and found.total == 4 and found.score < 1 and re.search(why, found.why), found


def test_a_check_that_raises_apart_from_its_assertions_never_scores_one(box):
    test = checking("assert candidate(2) == 4", "candidate('x')")
    found = judged(box, "    return n * n\n", test)
    assert found.status == "fail" and found.held == (True,) and found.score == 0.5


def test_the_lines_after_a_line_that_raises_are_still_judged(box):
    test = checking("x = candidate(-1)", "assert x == 1", "assert candidate(2) == 4")
    assert judged(box, RIGHT, test).held == (False, True)


def test_an_assertion_in_a_loop_holds_only_if_it_held_every_time(box):
    test = checking("for i in range(5):", "    assert candidate(i) == i * i", "assert candidate(7) == 49")
    assert judged(box, "    return n * n if n != 2 else 5\n", test).held == (False, True)
    assert judged(box, "    return n * n if n != 7 else 5\n", test).held == (True, False)
    late = judged(box, "    if n == 3:\n        while True: pass\n    return n * n\n", test)
    assert late.held == (False, False), "a loop that was stopped has not held every time"


def test_a_test_of_many_assertions_is_judged_to_its_end(box):
    test = checking(*(f"assert candidate({i}) == {i * i}" for i in range(1_000)))
    found = judged(box, RIGHT, test, timeout=10.0)
    assert (found.status, found.passed) == ("pass", 1_000)
    assert judged(box, "    return n * n if n % 2 else 1\n", test, timeout=10.0).passed == 500


@pytest.mark.parametrize(
    "lines",
    [
        ("try:", "    assert candidate(2) == 5", "except AssertionError:", "    assert candidate(2) == 4"),
        ("try:", "    assert candidate(2) == 5", "except:", "    pass", "assert candidate(3) == 9"),
        ("from contextlib import suppress", "with suppress(AssertionError):", "    assert candidate(2) == 5"),
        ("try:", "    candidate(2)", "    assert False", "except AssertionError:", "    assert candidate(3) == 9"),
    ],
)
def test_what_a_test_catches_itself_is_its_own_business(box, lines):
    assert judged(box, RIGHT, checking(*lines)).status == "pass"


def test_what_is_raised_within_a_try_of_the_test_and_not_caught_fails(box):
    test = checking("try:", "    assert candidate(2) == 5", "except KeyError:", "    pass", "assert candidate(3) == 9")
    found = judged(box, RIGHT, test)
    assert found.status == "fail" and found.held == (False, True)


@pytest.mark.parametrize(
    "body",
    [
        "raise SystemExit",
        "raise KeyboardInterrupt",
        "return object()",
        "return lambda: 1",
        "raise StopIteration",
        "raise ExceptionGroup('x', [ValueError()])",
    ],
)
@pytest.mark.parametrize("kind", ["TypeError", "RuntimeError", "Exception", "BaseException"])
def test_an_odd_end_satisfies_no_test_that_expects_an_error(box, body, kind):
    test = checking(
        "try:", "    candidate(-1)", "    assert False", f"except {kind}:", "    pass", "assert candidate(2) == 4"
    )
    found = judged(box, f"    if n < 0: {body}\n    return n * n\n", test)
    assert found.status == "fail" and found.held[1], "the other assertions are still judged"


def test_an_exception_arrives_as_what_it_extends(box):
    code = "class Own(KeyError): pass\ndef square(n):\n    if n: raise Own(n)\n    return b'\\xff'.decode()\n"
    test = checking(
        "try:",
        "    candidate(1)",
        "    assert False",
        "except KeyError:",
        "    pass",
        "try:",
        "    candidate(0)",
        "    assert False",
        "except UnicodeError:",
        "    pass",
    )
    assert judged(box, code, test).status == "pass"


def test_constant_assertions_earn_nothing(box):
    test = checking("assert True, 'for debugging'", "assert candidate(2) == 4", "assert 1", "assert candidate(3) == 9")
    assert (judged(box, "    return None\n", test).total, judged(box, "    return None\n", test).passed) == (2, 0)


def test_tests_with_helpers_module_level_assertions_and_calls_by_name_are_judged(box):
    helper = "def same(x, y):\n    assert square(x) == y\n\n" + checking("same(2, 4)", "same(3, 9)")
    assert judged(box, RIGHT, helper).status == "pass" and judged(box, "    return 4\n", helper).status == "fail"
    bare = "assert square(2) == 4\nassert square(3) == 9\n"
    assert judged(box, RIGHT, bare).status == "pass" and judged(box, "    return 4\n", bare).held == (True, False)
    called = "METADATA = {}\n" + checking("assert candidate(2) == TWO") + "\nTWO = 4\n\ncheck(square)\n"
    assert judged(box, RIGHT, called).status == "pass" and judged(box, "    return 5\n", called).held == (False,)
    words = {"prompt": "Write a function that squares.", "test": bare}
    assert judged(box, "def square(n):\n    return n * n\n", **words).status == "pass"
    method = checking(
        "assert [candidate(i) for i in (1, 2)] == [1, 4]", "assert sorted(map(candidate, (2, 1))) == [1, 4]"
    )
    assert judged(box, RIGHT, method).status == "pass"


def test_prompt_helpers_are_there_for_the_completion_and_for_the_test(box):
    prompt = "from typing import List\n\ndef half(n):\n    return n // 2\n\ndef quarter(n) -> List[int]:\n    '''A quarter.'''\n"
    test = checking("assert candidate(8) == half(half(8))")
    for completion in ("    return half(half(n))\n", "def quarter(n) -> List[int]:\n    return half(half(n))\n"):
        assert judged(box, completion, test, prompt=prompt, entry_point="quarter").status == "pass"
    patched = "def half(n):\n    return 0\ndef quarter(n):\n    return 0\n"
    assert judged(box, patched, test, prompt=prompt, entry_point="quarter").status == "fail", (
        "the test has its own half()"
    )


@pytest.mark.parametrize(
    "test, why",
    [
        (checking("assert candidate(lambda n: n) == 1"), "type function"),
        (checking("xs = [2]", "candidate(xs)", "assert xs == [4]"), "changed in place"),
        (checking("assert candidate.__name__ == 'square'"), "only calls cross"),
        (checking("assert candidate(object()) == 1"), "type object"),
    ],
)
def test_what_cannot_be_split_is_unsupported_whatever_the_completion(box, test, why):
    for completion in (RIGHT, "    return None\n", "raise KeyError", "no code"):
        found = judged(box, completion, test)
        assert found.status == "unsupported" and why in found.why, found


def test_a_call_whose_result_is_not_wanted_is_no_change_in_place(box):
    test = checking("n = 3", "candidate(n)", "assert candidate(n) == 9", "for i in range(2):", "    candidate(i)")
    assert judged(box, RIGHT, test).status == "pass"


def test_a_class_is_unsupported(box):
    found = judged(
        box,
        "    pass\n",
        checking("assert candidate().x == 1"),
        prompt='class Box:\n    """A box."""\n',
        entry_point="Box",
    )
    assert found.status == "unsupported"


@pytest.mark.parametrize(
    "test, why",
    [
        ("def check(candidate:\n", "cannot be compiled"),
        (checking("x = undefined", "assert candidate(2) == 4"), "NameError"),
        (checking("pass"), "never calls"),
        (checking("assert 1 == 2, 'its own mistake'", "assert candidate(2) == 4"), "its own mistake"),
        (checking("while True: pass"), "did not end before its first call"),
        ("import os\nos._exit(0)\n" + checking("assert candidate(2) == 4"), "ended its process before its first call"),
        ("def check():\n    pass\n", "takes no candidate"),
        ("", "never calls"),
    ],
)
def test_a_broken_test_is_an_error_and_no_fault_of_the_completion(box, test, why):
    for completion in (RIGHT, "    return None\n"):
        found = judged(box, completion, test)
        assert found.status == "error" and why in found.why, found


def test_a_timeout_is_counted_in_work_and_waiting_ends_too(box):
    started = time.monotonic()
    assert "of work" in judged(box, "    while True: pass\n", timeout=0.2).why
    assert "still waiting" in judged(box, "    import time\n    time.sleep(60)\n", timeout=0.2).why
    assert time.monotonic() - started < 20


def test_random_numbers_repeat_from_job_to_job(box):
    test = checking("assert candidate(0) == candidate(0) - 1")
    found = {judged(box, "    import random\n    return random.random()\n", test).why for _ in range(3)}
    assert len(found) == 1


def test_a_completion_of_more_than_a_megabyte_fails_without_being_run(box):
    found = judged(box, RIGHT + "#" * 1_000_001)
    assert found.status == "fail" and "not run" in found.why


def test_large_arguments_and_results_cross(box):
    test = checking(
        "xs = list(range(200_000))",
        "assert candidate(xs) == [x + 1 for x in xs]",
        "assert candidate(['é' * 10**6]) == 1",
    )
    found = judged(box, "def square(xs):\n    return [x + 1 for x in xs] if len(xs) > 1 else 1\n", test, timeout=10.0)
    assert found.status == "pass", found


# --------------------------------------------------------------------------- plain data

Point = namedtuple("Point", "x y")
PLAIN = [
    None,
    True,
    False,
    0,
    -1,
    2**62,
    -(2**200),
    1.5,
    float("inf"),
    "",
    "é\ud800\x00",
    b"\x00\xff",
    bytearray(b"a"),
    1 + 2j,
    range(1, 9, 2),
    [],
    [1, [2, (3,)]],
    (),
    (1,),
    {},
    {1: "a", (1, 2): [None], "k": {2}},
    set(),
    {1, (2,)},
    frozenset({1}),
    Fraction(1, 3),
    Decimal("1.10"),
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_data_crosses_with_its_type(value):
    back = module.decode(json.loads(json.dumps(module.encode(value))))
    assert back == value and type(back) is type(value)


def test_nan_crosses():
    assert str(module.decode(json.loads(json.dumps(module.encode(float("nan")))))) == "nan"


@pytest.mark.parametrize(
    "value, plain",
    [
        (Counter("aab"), {"a": 2, "b": 1}),
        (defaultdict(list, {1: [2]}), {1: [2]}),
        (OrderedDict([(2, 1)]), {2: 1}),
        (Point(1, 2), (1, 2)),
        (iter([1, 2]), [1, 2]),
        (map(str, (1, 2)), ["1", "2"]),
        ((i for i in range(3)), [0, 1, 2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_extends_plain_data_crosses_as_plain_data(value, plain):
    back = module.decode(json.loads(json.dumps(module.encode(value))))
    assert (list(back) if hasattr(back, "__next__") else back) == plain and type(back) in (dict, tuple, type(iter([])))


def test_a_value_that_lies_about_equality_crosses_as_what_it_is():
    class Liar(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    assert type(module.decode(module.encode(Liar(3)))) is int and module.decode(module.encode([Liar(3)])) != [4]


@pytest.mark.parametrize(
    "value",
    [
        object(),
        lambda: 1,
        type,
        [object()],
        print,
        functools.partial(int),
        functools.reduce(lambda x, _: [x], range(200), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_objects_do_not_cross(value):
    with pytest.raises(module.NotPlain):
        module.encode(value)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"a": 1},
        [],
        ["x", 1],
        ["i"],
        ["i", 5],
        ["b", "zz"],
        ["d", 1],
        [1, 2],
        ["c", "a", "b"],
        ["l", []],
        ["r"],
        ["q", 1, 0],
        ["s", ["l"]],
    ],
    ids=repr,
)
def test_a_forged_message_is_refused(message):
    with pytest.raises((ValueError, TypeError, ArithmeticError)):
        module.decode(message)


# --------------------------------------------------------------------------- many jobs


def test_run_many_keeps_the_order_and_judges_equal_jobs_once(box, monkeypatch):
    run = []
    judge = module.Worker.judge
    monkeypatch.setattr(module.Worker, "judge", lambda self, *a: run.append(a) or judge(self, *a))
    jobs = [{**JOB, "completion": f"    return {i % 3 * 2}\n"} for i in range(30)]
    found = box.run_many(jobs, progress="thirty")
    assert [verdict.held[0] for verdict in found] == [i % 3 == 2 for i in range(30)] and len(run) <= 6
    assert box.run_many([]) == [] and box.run_many(iter(jobs[:2]))[0].status == "fail"


def test_threads_share_a_sandbox(box):
    found = {}
    threads = [
        threading.Thread(
            target=lambda i=i: found.update(
                {i: judged(box, f"    return {i}\n", checking(f"assert candidate(0) == {i}"))}
            )
        )
        for i in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12 and all(verdict.status == "pass" for verdict in found.values())


def test_a_worker_survives_its_jobs_and_one_that_is_killed_is_replaced():
    with Sandbox(workers=1, timeout=0.5) as box:
        (worker,) = box._alive
        descriptors = len(os.listdir("/proc/self/fd"))
        for completion in (
            "    import os; os._exit(3)\n",
            "    while 1: pass\n",
            "    return [0] * 10**10\n",
            RIGHT,
        ) * 3:
            judged(box, completion)
        assert box._alive == {worker} and worker.usable() and len(os.listdir("/proc/self/fd")) == descriptors
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        assert judged(box).status == "pass" and box._alive != {worker}


def test_a_worker_that_is_killed_in_the_middle_of_a_job_costs_no_verdict():
    with Sandbox(workers=1, timeout=3.0) as box:
        (worker,) = box._alive
        future = box.submit(
            **{
                **JOB,
                "completion": "    import time\n    time.sleep(0.5)\n" + RIGHT,
                "test": checking("assert candidate(2) == 4"),
            }
        )
        time.sleep(0.2)
        os.kill(worker.process.pid, signal.SIGKILL)
        assert future.result().status == "pass"


def test_what_a_worker_started_dies_with_it():
    with Sandbox(workers=1, timeout=30.0) as box:
        (worker,) = box._alive
        box.submit(**{**JOB, "completion": "    while True: pass\n"})
        time.sleep(0.3)
        inner = family(worker.process.pid)
        assert len(running(inner)) == 3, "the inner process, a candidate, a judge"
        os.kill(worker.process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while running(inner) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not running(inner)


def test_a_candidate_that_cannot_be_locked_down_is_an_error_and_is_not_run(tmp_path):
    text = (ROOT / "sandbox.py").read_text(encoding="utf-8")
    entered = " " * 16 + "main(*keep)\n"
    assert text.count(entered) == 1
    broken = text.replace(entered, " " * 16 + "assert main is judge_main\n" + entered)
    (tmp_path / "sandbox.py").write_text(broken.replace("worker.prove(self.options)", "pass"), encoding="utf-8")
    code = f"from sandbox import Sandbox\nwith Sandbox(workers=1) as box: print(box.run_tests(**{JOB!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "status='error'" in done.stdout and "could not be started" in done.stdout, done


def test_a_candidate_cannot_use_up_the_time_of_the_test_and_have_it_blamed(box):
    slow = "import time\nstop = time.process_time() + 0.5\nwhile time.process_time() < stop: pass\n"
    spins = "while True: pass\n" + PROMPT + RIGHT
    for _ in range(5):  # on a busy machine the clock may stop it before it has had so much of a processor
        found = judged(box, spins, slow + TEST, timeout=0.7)
        assert found.status == "fail", found
        if "still waiting" not in found.why:
            break
    assert "more than 0.7 s of work" in found.why
    assert judged(box, RIGHT, slow + TEST, timeout=0.7).status == "pass"
    assert judged(box, RIGHT, slow + TEST, timeout=0.3).status == "error"


def test_a_closed_sandbox_says_so_and_its_workers_are_gone():
    box = Sandbox(workers=2)
    pids = [worker.process.pid for worker in box._alive]
    box.close()
    box.close()
    with pytest.raises(RuntimeError, match="closed"):
        judged(box)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_closing_ends_jobs_that_run():
    box = Sandbox(workers=1, timeout=30.0)
    future = box.submit(**{**JOB, "completion": "    while True: pass\n"})
    time.sleep(0.2)
    box.close()
    assert future.cancelled() or future.result().status == "error"


def test_a_forked_child_is_told_to_open_its_own_and_leaves_its_parents_alone(box):
    pid = os.fork()
    if pid == 0:
        try:
            judged(box)
        except RuntimeError as error:
            box.close()
            with Sandbox(workers=1) as own:
                os._exit(0 if "forked" in str(error) and judged(own).status == "pass" else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert judged(box).status == "pass"


@pytest.mark.parametrize("job", [{"prompt": None}, {"completion": 5}, {"test": b""}, {"timeout": -1}])
def test_a_job_of_wrong_types_is_refused_by_name(box, job):
    with pytest.raises((TypeError, ValueError), match=next(iter(job))):
        box.run_tests(**{**JOB, **job})


# --------------------------------------------------------------------------- nothing outlives the caller

CALLER = """
import os, sys, time
sys.path.insert(0, ROOT)
from sandbox import Sandbox
box = Sandbox(workers=2, timeout=60.0)
jobs = [box.submit("", f"def f(n):\\n    while {i}: pass\\n", "assert f(1) == 1", "f") for i in (1, 2)]
if os.fork() == 0:
    time.sleep(60)      # a data loader, say: holds every descriptor of the caller
    os._exit(0)
time.sleep(0.5)
print("ready", flush=True)
time.sleep(60)
"""


INTERRUPTED = """
import signal, sys, threading, time
sys.path.insert(0, ROOT)
from rewards import code_reward
from sandbox import Sandbox
box = Sandbox(workers=2, timeout=1.0)
texts = [f"def f(n):\\n    while {i}: pass\\n" for i in range(1, 200)]
threading.Timer(0.7, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
started = time.monotonic()
try:
    CALL
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    "call",
    [
        'box.run_many([{"prompt": "", "completion": text, "test": "assert f(1) == 1", "entry_point": "f"} for text in texts])',
        'code_reward.with_options(sandbox=box)(prompts=["?"] * 199, completions=texts, test=["assert f(1) == 1"] * 199, entry_point=["f"] * 199)',
    ],
)
def test_an_interrupted_batch_ends_soon_and_leaves_nothing(call):
    started = time.monotonic()
    code = INTERRUPTED.replace("ROOT", repr(str(ROOT))).replace("CALL", call)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\n" and time.monotonic() - started < 20, (
        done,
        "200 jobs of a second each would take 100 s",
    )


def family(pid):
    """The descendants of a process, by /proc."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *family(int(child))]
    return found


def running(pids):
    return [
        pid
        for pid in pids
        if Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[-50] != "Z"
    ]


def test_no_worker_outlives_a_caller_that_is_killed_while_its_child_holds_the_descriptors():
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER.replace("ROOT", repr(str(ROOT)))], stdout=subprocess.PIPE, text=True
    )
    try:
        assert caller.stdout.readline() == "ready\n"
        children = family(caller.pid)
        loader = [pid for pid in children if b"--worker" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
        workers = [pid for pid in children if pid not in loader]
        assert len(loader) == 1 and len(workers) == 8, (
            "two workers, each of an outer and an inner process, a candidate and a judge"
        )
        caller.kill()
        deadline = time.monotonic() + 20
        while running(workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not running(workers) and running(loader)
    finally:
        caller.kill()
        caller.wait()
        caller.stdout.close()
        for pid in loader:
            os.kill(pid, signal.SIGKILL)


# --------------------------------------------------------------------------- layers


def test_all_layers_are_there_on_this_machine_and_are_said(box):
    layers = box.active_layers()
    assert set(layers) >= {"process", "rlimits", "seccomp", "uid", "namespaces", "landlock"}
    for name in ("process", "rlimits", "seccomp", "uid"):
        assert not layers[name].startswith("missing")
    if os.geteuid() == 0:
        assert "65534" in layers["uid"]
    done = subprocess.run([sys.executable, ROOT / "sandbox.py"], capture_output=True, text=True)
    assert done.returncode == 0 and "seccomp" in done.stdout and "self-test   passed" in done.stdout


def test_a_job_runs_as_nobody_without_capabilities_in_an_empty_world(box):
    if os.geteuid() != 0:
        pytest.skip("only root has rights to give up")
    code = "import os, signal\ndef square(n):\n    return [os.getuid(), os.geteuid(), os.getgid(), dict(os.environ)]\n"
    seen = judged(box, code, checking("assert candidate(0) == None")).why
    assert "[65534, 65534, 65534, {" in seen and "HOME" not in seen and "PATH" not in seen, seen


@pytest.mark.parametrize("layer", ["seccomp", "rlimits"])
def test_a_layer_that_must_be_there_and_is_not_refuses_with_its_name_and_the_way_out(layer):
    with pytest.raises(SandboxUnavailable, match=rf"layer {layer} cannot be set up here.*virtual machine.*unsafe=True"):
        Sandbox(workers=1, without=[layer])


def test_a_kernel_that_denies_seccomp_is_refused(monkeypatch, tmp_path):
    copy = tmp_path / "sandbox.py"
    text = (ROOT / "sandbox.py").read_text(encoding="utf-8")
    assert text.count("self.prctl(PR_SET_SECCOMP, 2") == 1
    copy.write_text(text.replace("self.prctl(PR_SET_SECCOMP, 2", "self.prctl(PR_SET_SECCOMP, 77"), encoding="utf-8")
    done = subprocess.run([sys.executable, copy], capture_output=True, text=True)
    assert done.returncode == 1 and "layer seccomp" in done.stderr and os.strerror(errno.EINVAL) in done.stderr


def test_a_self_test_with_an_unexpected_result_refuses(monkeypatch):
    monkeypatch.setattr(module, "SELF_TESTS", [("def probe(n):\n    return 3\n", "assert probe(1) == 2\n", "pass", 1)])
    with pytest.raises(SandboxUnavailable, match="self-test failed"):
        Sandbox(workers=1)


def test_the_self_test_finds_an_open_door(monkeypatch):
    monkeypatch.setattr(module, "SELF_TEST", 'def probe(n):\n    return ["open"]\n')
    with pytest.raises(SandboxUnavailable, match=r"self-test failed.*\['open'\]"):
        Sandbox(workers=1)


def test_unsafe_is_explicit_and_loud():
    with pytest.warns(UserWarning, match="unsafe=True"):
        box = Sandbox(workers=1, without=["seccomp"], unsafe=True)
    with box:
        assert judged(box).status == "pass" and box.active_layers()["seccomp"].startswith("missing")


def test_a_missing_layer_that_may_miss_is_warned_of_once(monkeypatch):
    monkeypatch.setattr(module, "ANNOUNCED", set())
    with pytest.warns(UserWarning, match="namespaces is missing.*the others still hold"):
        Sandbox(workers=1, without=["namespaces", "landlock"]).close()
    with pytest.warns() as caught:
        Sandbox(workers=1, without=["namespaces", "landlock"]).close()
        import warnings

        warnings.warn("the only one", stacklevel=1)
    assert [str(one.message) for one in caught] == ["the only one"]


def test_elsewhere_than_on_linux_it_refuses_with_words(monkeypatch):
    for platform in ("darwin", "win32"):
        monkeypatch.setattr(sys, "platform", platform)
        with pytest.raises(SandboxUnavailable, match="needs Linux.*WSL 2.*container"):
            Sandbox(workers=1)


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"workers": 1.5},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"memory_mb": 1},
        {"without": ["x"]},
        {"imports": "numpy"},
    ],
)
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises((ValueError, TypeError)):
        Sandbox(**options)


def test_a_module_is_there_only_where_it_was_asked_for(box):
    test = checking("assert candidate(2) == [1, 2]")
    code = "    import numpy\n    return numpy.arange(1, n + 1)\n"
    assert "ModuleNotFoundError" in judged(box, code, test).why
    with Sandbox(workers=1, imports=["numpy"]) as own:
        assert judged(own, code, test).status == "pass"
        assert (
            judged(
                own,
                "    import numpy\n    return numpy.dot([1, 2], [3, n]).item()\n",
                checking("assert candidate(4) == 11"),
            ).status
            == "pass"
        )
    with pytest.raises(SandboxUnavailable, match="no_such_module"):
        Sandbox(workers=1, imports=["no_such_module"])


ORDINARY = {"user": 65534, "group": 65534, "extra_groups": [], "env": {}}


def runs_as_nobody(python: str) -> bool:
    try:
        return (
            subprocess.run(
                [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], cwd="/", **ORDINARY
            ).returncode
            == 0
        )
    except OSError:
        return False  # it lies in a home folder that is closed to others


def as_nobody(code: str, folder: Path) -> subprocess.CompletedProcess:
    """Runs code beside a copy of sandbox.py as an ordinary user, under an interpreter that this user can read."""
    shutil.copy(ROOT / "sandbox.py", folder)
    for path in (folder, *folder.parents):
        if path.owner() == "root" and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    can = [python for python in (sys.executable, "/usr/bin/python3") if os.geteuid() == 0 and runs_as_nobody(python)]
    if not can:
        pytest.skip("needs root, to become an ordinary user, and a Python that one can read")
    return subprocess.run([can[0], "-c", code], cwd=folder, capture_output=True, text=True, **ORDINARY)


@pytest.mark.parametrize("without", [[], ["namespaces", "landlock"]])
def test_it_works_for_an_ordinary_user(tmp_path_factory, without):
    code = f"""
import sys; sys.path.insert(0, ".")
from sandbox import Sandbox
job = {JOB!r}
with Sandbox(workers=1, timeout=1.0, without={without!r}) as box:
    print([box.run_tests(**{{**job, "completion": c}}).status for c in (job["completion"], "    return 0\\n", "    while True: pass\\n")])
    print(box.active_layers())
"""
    done = as_nobody(code, tmp_path_factory.mktemp("ordinary"))
    assert done.stdout.startswith("['pass', 'fail', 'fail']"), done.stderr
    assert ("user, pid, net" in done.stdout) == (not without)


# --------------------------------------------------------------------------- the seccomp program, on both architectures


def allowed(machine, number, arguments=(0,) * 6, architecture=None):
    """Runs the classic BPF program as the kernel does; returns its action."""
    architecture = module.ARCHITECTURES[machine][1] if architecture is None else architecture
    data = struct.pack("<iIQ6Q", number if number < 2**31 else number - 2**32, architecture, 0, *arguments)
    program, at, accumulator = module.seccomp_program(machine), 0, 0
    for _ in range(4_096):
        code, yes, no, k = program[at]
        at += 1
        if code == module.RETURN:
            return k
        if code == module.LOAD:
            accumulator = struct.unpack_from("<I", data, k)[0]
        else:
            test = {
                module.JUMP_EQUAL: accumulator == k,
                module.JUMP_AT_LEAST: accumulator >= k,
                module.JUMP_ANY_BIT: bool(accumulator & k),
            }[code]
            at += yes if test else no
    raise AssertionError("the program does not end")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
class TestSeccompProgram:
    def number(self, machine, name):
        return module.SYSCALLS[name][module.ARCHITECTURES[machine][0]]

    def test_allows_what_a_job_needs_and_no_other_number(self, machine):
        column = module.ARCHITECTURES[machine][0]
        listed = {numbers[column] for numbers in module.SYSCALLS.values()} - {None}
        for name in ("read", "write", "brk", "futex", "exit_group", "clock_gettime"):
            assert allowed(machine, self.number(machine, name)) == module.ALLOW
        for number in set(range(600)) - listed:
            assert allowed(machine, number) == module.refuse(errno.EPERM), number

    def test_kills_another_architecture(self, machine):
        for other in (0x40000003, 0xC000003E, 0xC00000B7, 0x40000028):
            if other != module.ARCHITECTURES[machine][1]:
                assert allowed(machine, self.number(machine, "read"), architecture=other) == module.KILL

    def test_newer_calls_seem_unknown_so_that_libc_falls_back(self, machine):
        for name in module.ABSENT:
            assert allowed(machine, self.number(machine, name)) == module.refuse(errno.ENOSYS)

    def test_looks_at_arguments(self, machine):
        executable, plain = (0, 4096, 5, 0, 0, 0), (0, 4096, 3, 0, 0, 0)
        for name in ("mmap", "mprotect"):
            assert allowed(machine, self.number(machine, name), plain) == module.ALLOW
            assert allowed(machine, self.number(machine, name), executable) == module.refuse(errno.EACCES)
        for name in ("clock_gettime", "clock_nanosleep"):
            clocks = [
                allowed(machine, self.number(machine, name), (clock % 2**32, 0, 0, 0, 0, 0))
                for clock in (0, 1, 2, 11, 12, ~7 << 3 | 2)
            ]
            assert clocks == [module.ALLOW] * 4 + [module.refuse(errno.EINVAL)] * 2
        fcntl = self.number(machine, "fcntl")
        assert [
            allowed(machine, fcntl, (0, command, 0, 0, 0, 0)) == module.ALLOW for command in (0, 1, 2, 3, 4, 1030)
        ] == [False, True, False, True, False, False]
        assert allowed(machine, self.number(machine, "ioctl")) == module.refuse(errno.ENOTTY)

    def test_numbers_are_those_of_the_kernels_headers(self, machine):
        header = Path(
            {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}[
                machine
            ]
        )
        if not header.exists():
            pytest.skip(f"{header} is not installed (linux-libc-dev)")
        known = {
            name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
        }
        wanted = {name: self.number(machine, name) for name in module.SYSCALLS} | module.NUMBERS[machine]
        assert {name: known.get(name) for name in wanted if wanted[name] is not None} == {
            n: v for n, v in wanted.items() if v is not None
        }


def test_x32_calls_are_killed():
    assert allowed("x86_64", 0x40000000) == allowed("x86_64", 0x40000001) == module.KILL


# --------------------------------------------------------------------------- HumanEval, where it lies beside the checkout


def test_every_canonical_solution_of_humaneval_passes_and_a_stub_fails(box):
    import gzip

    path = ROOT.parent / "shared" / "data" / "humaneval" / "HumanEval.jsonl.gz"
    if not path.exists():
        pytest.skip("HumanEval is not part of the project, and it is not beside this checkout")
    with gzip.open(path, "rt", encoding="utf-8") as source:
        rows = [json.loads(line) for line in source]
    jobs = [
        {
            "prompt": row["prompt"],
            "completion": row["canonical_solution"],
            "test": row["test"],
            "entry_point": row["entry_point"],
            "timeout": 10.0,
        }
        for row in rows
    ]
    assert len(jobs) == 164 and [v for v in box.run_many(jobs) if v.status != "pass"] == []
    assert {v.status for v in box.run_many([{**job, "completion": "    return None\n"} for job in jobs])} == {"fail"}


def test_the_module_needs_nothing_but_the_standard_library():
    tree = ast.parse((ROOT / "sandbox.py").read_text(encoding="utf-8"))
    names = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    names |= {node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names - set(sys.stdlib_module_names) == {"tqdm"}, "tqdm only where a progress bar is asked for"
