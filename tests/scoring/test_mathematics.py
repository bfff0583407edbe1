"""The process that math-verify runs in, and its verdicts."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from lab.files import ROOT
from rewards import (
    FORMAT,
    math_reward,
)
from scoring import mathematics
from scoring.mathematics import is_expression


def test_the_time_limit_of_math_reward_holds_outside_the_main_thread():
    endless, found = r"(x+y+z)^{300}", []
    assert math_reward.score("<answer>(x-4)(x+4)</answer>", answer="x^2-16") == 1.0
    before = mathematics._MATH_WORKER.process.pid

    def in_a_thread():
        found.append(mathematics._MATH_WORKER.ask("x^2", endless, 0.5))  # None says that it gave up
        found.append(
            getattr(mathematics._MATH_WORKER.process, "pid", "killed") == before
        )  # and it stopped itself: nobody had to kill it
        found.append(math_reward.with_options(time_limit=0.5).score(FORMAT.write("a", endless), answer="x^2"))

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join(90)
    assert found == [None, True, 0.0] and is_expression(endless, "x^2")
    assert math_reward.score(FORMAT.write("a", r"3\sqrt{3}"), answer=r"\sqrt{27}") == 1.0, (
        "it works on after a time-out"
    )


def test_a_mathematics_process_that_answers_no_more_is_killed_and_started_anew():
    assert math_reward.score("<answer>(x-7)(x+7)</answer>", answer="x^2-49") == 1.0
    stuck = mathematics._MATH_WORKER.process
    os.kill(stuck.pid, signal.SIGSTOP)
    assert mathematics._MATH_WORKER.ask("x", "y", 0.1) is None
    assert stuck.poll() is not None
    assert math_reward.score("<answer>(x-8)(x+8)</answer>", answer="x^2-64") == 1.0


def test_math_reward_survives_the_death_of_its_process():
    worker = mathematics._MATH_WORKER
    assert math_reward.score("<answer>(x-2)(x+2)</answer>", answer="x^2-4") == 1.0
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    assert math_reward.score("<answer>(x-3)(x+3)</answer>", answer="x^2-9") == 1.0


def test_the_mathematics_process_ends_with_a_caller_that_is_killed():
    code = (
        "import rewards, time; from scoring import mathematics; rewards.math_reward.score('<answer>x+1</answer>', answer='1+x')\n"
        "print(mathematics._MATH_WORKER.process.pid, flush=True); time.sleep(600)"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    pid = int(caller.stdout.readline())
    caller.kill()
    caller.wait()
    for _ in range(100):
        if not os.path.exists(f"/proc/{pid}") or "Z" in open(f"/proc/{pid}/stat").read().split(")")[1][:3]:
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"process {pid} outlived its caller")


def test_verdicts_on_plain_numbers_are_those_of_math_verify():
    from math_verify import parse, verify

    pairs = [
        (g, a)
        for g in ("12", "-3", "0.5", "1200", "7/2")
        for a in ("12", "-3", "1/2", "0.50", "1,200", "3.5", "12.0", "13", "1200.5", "+12")
    ]
    for gold, given in pairs:
        theirs = verify(parse(f"${gold}$"), parse(f"${given}$"))
        assert math_reward.score(f"<answer>{given}</answer>", answer=gold) == float(theirs), (gold, given)


def test_a_forked_child_can_do_mathematics_of_its_own():
    pid = os.fork()
    if pid == 0:
        os._exit(0 if math_reward.score("<answer>(x-5)(x+5)</answer>", answer="x^2-25") == 1.0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert math_reward.score("<answer>(x-6)(x+6)</answer>", answer="x^2-36") == 1.0
