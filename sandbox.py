"""Runs model-written Python against tests, so that it can neither do harm nor forge a pass.

>>> with Sandbox(workers=1) as sandbox:
...     verdict = sandbox.run_tests(
...         prompt='def double(n):\\n    \"\"\"Return n doubled.\"\"\"\\n',
...         completion="    return 2 * n\\n",
...         test="def check(candidate):\\n    assert candidate(2) == 4\\n    assert candidate(-3) == -6\\n",
...         entry_point="double",
...     )
>>> verdict.status, verdict.passed, verdict.total
('pass', 2, 2)

A job has HumanEval's columns. Its completion and its test never share an interpreter: a *candidate*
process sees the completion alone, a *judge* process the test alone. The judge runs `check(candidate)`
on a proxy; each call sends plain data to the candidate and reads plain data back. So there is nothing
in the candidate's reach that could be made to say "pass" but the right answers.

Covered: files, the environment and its keys, network, other processes, signals, memory, CPU and wall
time, output floods; patched builtins, early exits, frames, `__eq__` that always says yes, forged replies.

Not covered: a change of an argument in place does not cross. A test that wants one is `unsupported` where the call
stands alone on its line; elsewhere no completion passes it (check that your own solutions do), and a test that wants
its argument *un*changed always holds. Nor do objects that a function returns: that is a `fail`. Also not covered: a bug in the kernel, which the candidate shares (for a truly adversarial model use a
virtual machine, gVisor or a hosted sandbox); answers learned by heart; tests that check too little.
Not offered: threads, subprocesses, files, network, third-party imports unless named in `imports`.

Linux only, standard library only. `python sandbox.py` says what protects on this machine.
"""

from __future__ import annotations

import ast
import ctypes
import errno
import functools
import json
import marshal
import math
import os
import queue
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

LONGEST_COMPLETION = 1_000_000  # characters; a longer one fails without being run
LARGEST_MESSAGE = 8_000_000  # bytes of one reply of the candidate
DEEPEST = 100  # containers within containers that cross
MOST_ITEMS = 100_000  # of an iterator that a function returns
WALL = 3  # a job that does not work (sleeps, waits) is stopped after this many times its limit of work
IMPORTED = """
abc argparse array ast base64 binascii bisect builtins calendar cmath codecs collections collections.abc colorsys
contextlib copy copyreg csv dataclasses datetime decimal difflib dis doctest encodings.ascii encodings.cp1252 encodings.hex_codec
encodings.idna encodings.latin_1 encodings.punycode encodings.rot_13 encodings.unicode_escape encodings.utf_16
encodings.utf_16_be encodings.utf_16_le encodings.utf_32 encodings.utf_8 encodings.utf_8_sig enum fractions functools gc
genericpath graphlib hashlib heapq hmac html html.entities inspect io itertools json keyword linecache locale logging
marshal math numbers operator os os.path pathlib pickle posixpath pprint queue random re reprlib secrets shlex stat statistics
string stringprep struct sys textwrap threading time timeit token tokenize traceback types typing unicodedata unittest
urllib.parse uuid warnings weakref zlib
""".split()  # once, by each worker; a job can import these and no others


class SandboxUnavailable(RuntimeError):
    """A layer without which nothing is run is missing here; the message names it and the way out."""


class WorkerDied(RuntimeError):
    """A worker did not answer as it must; it is replaced."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one job.

    Attributes:
        status: `pass`; `fail`, the completion's fault; `unsupported`, where the *test* needs what cannot be
            split (callbacks, objects, a class, a change in place), whatever the completion; `error`, the
            sandbox's or the test's own fault: such a sample is dropped or neutral, never a 0.
        passed, total: assertions of the test that hold, and all. One in a loop is one, and holds if it held
            every time round. A test without assertions counts as one.
        why: one line for a person: the first assertion that does not hold, or what happened.
        seconds: of the clock, for the whole job.
        held: for each assertion, in the order of the test, whether it held.
    """

    status: str
    passed: int
    total: int
    why: str
    seconds: float
    held: tuple[bool, ...] = ()

    @property
    def score(self) -> float:
        """The share of assertions that hold; 1.0 only for a pass."""
        if self.status == "pass":
            return 1.0
        return min(self.passed / max(1, self.total), self.total / (self.total + 1))


# --------------------------------------------------------------------------- the test, made gradable


@dataclass(frozen=True, slots=True)
class Plan:
    """A prompt and its test, compiled once for all completions of the prompt."""

    prompt_code: bytes | None  # marshalled; None where the prompt is no code that defines the entry point
    test_code: bytes
    shown: tuple[str, ...]  # the source of each counted assertion
    kinds: str  # of each: "." runs once, "o" in a loop or helper, "!" must not be reached
    problem: tuple[str, str] | None = None  # (status, why) where nothing can be run


class Grader(ast.NodeTransformer):
    """Rewrites a test so that it goes on after an assertion that does not hold, and reports each one.

    `assert x` becomes `try: assert x; __held__(k)` / `except Exception: __failed__(k)`. Within a `try` or `with`
    of the test the exception is left to it. Constant assertions that hold are not counted.
    """

    def __init__(self) -> None:
        self.shown, self.kinds, self.tries, self.repeats = [], [], 0, 0

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        constant = isinstance(node.test, ast.Constant)
        if constant and node.test.value:
            return node
        number = len(self.shown)
        self.shown.append(ast.unparse(node)[:200])
        if constant:  # a trap: `assert False` where an exception should have been raised
            self.kinds.append("!")
            return [call("__reached__", number), node]
        self.kinds.append("o" if self.repeats else ".")
        judged = [node, call("__held__", number)]
        return judged if self.tries else caught(judged, call("__failed__", number))

    def repeated(self, node: ast.AST) -> ast.AST:
        self.repeats += 1
        self.generic_visit(node)
        self.repeats -= 1
        return node

    visit_For = visit_While = visit_AsyncFor = repeated

    def guarded(self, node: ast.AST) -> ast.AST:
        self.tries += 1
        self.generic_visit(node)
        self.tries -= 1
        return node

    visit_Try = visit_TryStar = visit_With = visit_AsyncWith = guarded

    def visit_function(self, node: ast.AST) -> ast.AST:
        inside, self.tries = self.tries, 0
        self.repeats += 1
        self.generic_visit(node)
        self.repeats -= 1
        self.tries = inside
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_function

    def lines(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The body of the check: a line that raises is reported, and the next one runs."""
        found = []
        for line in body:
            first = len(self.shown)
            graded = listed(self.visit(line))
            if isinstance(
                line,
                (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.For, ast.While, ast.With, ast.If, ast.Try),
            ):
                graded = [caught(graded, call("__broke__", first, len(self.shown)))]
            found += graded
        return found


def listed(node: Any) -> list:
    return node if isinstance(node, list) else [node]


def call(name: str, *numbers: int) -> ast.stmt:
    return ast.Expr(ast.Call(ast.Name(name, ast.Load()), [ast.Constant(number) for number in numbers], []))


def caught(lines: list[ast.stmt], then: ast.stmt) -> ast.stmt:
    return ast.Try(lines, [ast.ExceptHandler(ast.Name("__Exception__", ast.Load()), None, [then])], [], [])


@functools.lru_cache(maxsize=4_096)
def prepare(prompt: str, test: str, entry_point: str) -> Plan:
    """Compiles a prompt and its test; what is wrong with them is in `problem`."""
    try:
        return compiled(prompt, test, entry_point)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Plan(None, b"", (), "", ("error", f"the test cannot be compiled: {one_line(error)}"))


def compiled(prompt: str, test: str, entry_point: str) -> Plan:
    tree = ast.parse(test)
    check = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"), None)
    names = {entry_point} | ({check.args.args[0].arg} if check and check.args.args else set())
    problem = unsupported(tree, names)
    grader = Grader()
    if check:
        if not check.args.args:
            return Plan(None, b"", (), "", ("error", "the test's check() takes no candidate"))
        check.body = grader.lines(check.body) or [ast.Pass()]
        others = [node for node in tree.body if not calls_check(node)]  # some data sets add the call; we make it
        tree.body = [line for node in others for line in (listed(grader.visit(node)) if node is not check else [node])]
    else:
        tree.body = grader.lines(tree.body)
    code = marshal.dumps(compile(ast.fix_missing_locations(tree), "<test>", "exec", dont_inherit=True))
    prompt_code, is_class = compile_prompt(prompt, entry_point)
    if is_class:
        problem = ("unsupported", f"{entry_point} is a class, and objects do not cross")
    return Plan(prompt_code, code, tuple(grader.shown), "".join(grader.kinds), problem)


def calls_check(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "check"
    )


def unsupported(tree: ast.AST, names: set[str]) -> tuple[str, str] | None:
    """Why a test cannot be split, where that can be read off it."""
    tried = {id(line) for node in ast.walk(tree) if isinstance(node, (ast.Try, ast.With)) for line in ast.walk(node)}
    containers = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Call)
    mutable = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, containers)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            return "unsupported", f"the test uses {ast.unparse(node)}, and of the function only calls cross"
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in names:
            continue
        passed = {part.id for part in call.args if isinstance(part, ast.Name)}
        if id(node) not in tried and passed & mutable:
            return (
                "unsupported",
                f"line {node.lineno} of the test wants its argument changed in place, which does not cross",
            )
    return None


def compile_prompt(prompt: str, entry_point: str) -> tuple[bytes | None, bool]:
    """(marshalled code of a prompt with its helpers, whether the entry point is a class).

    (None, False) for a prompt in words, and for one that breaks off where nothing can follow.
    """
    for source in (prompt, f"{prompt.rstrip()}\n    pass\n"):
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        wanted = [node for node in tree.body if getattr(node, "name", None) == entry_point]
        if not wanted:
            return None, False
        return marshal.dumps(compile(source, "<prompt>", "exec", dont_inherit=True)), isinstance(
            wanted[-1], ast.ClassDef
        )
    return None, False


def one_line(error: BaseException | str, longest: int = 160) -> str:
    """An error as one short printable line."""
    try:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    if isinstance(error, ModuleNotFoundError) and error.name:
        text += f" in the sandbox; Sandbox(imports=[{str(error.name)[:40]!r}]) offers it"
    text = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * longest]).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


# --------------------------------------------------------------------------- the caller's side


REQUIRED = ("process", "rlimits", "seccomp", "uid")
LEFT_OUT = {"rlimits", "seccomp", "uid", "namespaces", "landlock"}  # what `without` takes


class Sandbox:
    """A pool of warm, locked-down workers, each of which judges one job at a time.

    Args:
        workers: how many; None for one a core that this process may use, four at most.
        timeout: seconds of work (CPU) for each of a job's two processes, the completion's and the test's; a job
            that waits instead of working is stopped after three times that by the clock.
        memory_mb: MiB of memory for each of the two, beyond what the interpreter has.
        imports: modules that a job may import besides the usual ones of the standard library ("numpy").
        without: layers to leave out, to measure what they cost. Leaving out one that must be there needs `unsafe`.
        unsafe: run even where a layer that must be there is missing.

    Raises:
        SandboxUnavailable: naming what is missing, and the way out.
    """

    def __init__(
        self,
        workers: int | None = None,
        timeout: float = 3.0,
        memory_mb: int = 512,
        *,
        imports: Sequence[str] = (),
        without: Sequence[str] = (),
        unsafe: bool = False,
    ) -> None:
        workers = min(4, available_cores()) if workers is None else workers
        if not isinstance(workers, int) or workers < 1:
            raise ValueError(f"workers must be a whole number from 1, not {workers!r}")
        if not 0 < timeout < 3_600 or not memory_mb >= 32:
            raise ValueError(
                f"timeout must lie between 0 and 3600 s and memory_mb be 32 or more, not {timeout!r} and {memory_mb!r}"
            )
        if isinstance(without, str) or isinstance(imports, str):
            raise TypeError("without and imports are lists of names")
        if unknown := set(without) - LEFT_OUT:
            raise ValueError(
                f"no layer {sorted(unknown)[0]!r} can be left out; there are: {', '.join(sorted(LEFT_OUT))}"
            )
        if not sys.platform.startswith("linux"):
            raise SandboxUnavailable(
                f"The sandbox needs Linux (seccomp, rlimits); this is {sys.platform}. Run the notebook in Colab, in WSL 2, "
                "in a Linux container or virtual machine, or send code to a hosted sandbox."
            )
        if unsafe:
            warnings.warn(
                "Sandbox(unsafe=True): model-written code may read your files and keys, and use your network.",
                stacklevel=2,
            )
        self.timeout, self.options = (
            float(timeout),
            {
                "memory": memory_mb,
                "imports": list(imports),
                "without": sorted(without),
                "unsafe": unsafe,
            },
        )
        self._owner, self._closed, self._lock = os.getpid(), False, threading.Lock()
        self._running: dict[tuple, Future] = {}
        self._idle: queue.SimpleQueue = queue.SimpleQueue()
        self._alive: set[Worker] = set()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="sandbox")
        self._finalizer = weakref.finalize(self, stop_all, self._alive, self._owner)
        try:
            for worker in list(self._pool.map(lambda _: self._started(), range(workers))):
                self._idle.put(worker)
        except BaseException:
            self.close()
            raise
        self._layers = worker.layers
        announce(worker.missing)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Sandbox {'closed' if self._closed else ', '.join(k for k, v in self._layers.items() if not v.startswith('missing'))}>"

    def active_layers(self) -> dict[str, str]:
        """What protects here: for each layer a few words, which begin with "missing" where it is not there."""
        return dict(self._layers)

    def run_tests(
        self, prompt: str, completion: str, test: str, entry_point: str, timeout: float | None = None
    ) -> Verdict:
        """Judges one completion, a whole function or the body that follows the prompt. Thread-safe.

        The completion is code: of a chat answer, `rewards.extract_code` finds it.

        Raises:
            RuntimeError: where the sandbox is closed, or belongs to the process that this one was forked from.
        """
        return self.submit(prompt, completion, test, entry_point, timeout).result()

    def run_many(self, jobs: Iterable[Mapping[str, Any]], progress: bool | str = False) -> list[Verdict]:
        """Judges many jobs (dicts of the names that `run_tests` takes) at once; verdicts in their order, equal jobs once.

        Args:
            progress: True, or the text of a progress bar (needs tqdm).
        """
        known = ("prompt", "completion", "test", "entry_point")
        jobs = [{**{name: job[name] for name in known}, "timeout": job.get("timeout")} for job in jobs]
        waiting = [self.submit(**job) for job in jobs]
        found: Iterable[Future] = waiting
        if progress:
            from tqdm.auto import tqdm

            found = tqdm(waiting, desc=progress if isinstance(progress, str) else "sandbox", unit="job")
        try:
            return [one.result() for one in found]
        except BaseException:  # Ctrl-C: what has not begun is not wanted any more
            for one in waiting:
                one.cancel()
            raise

    def submit(self, prompt: str, completion: str, test: str, entry_point: str, timeout: float | None = None) -> Future:
        """A future of the verdict; a job that is already waiting or running is not run twice."""
        for name, value in (
            ("prompt", prompt),
            ("completion", completion),
            ("test", test),
            ("entry_point", entry_point),
        ):
            if not isinstance(value, str):
                raise TypeError(f"{name} must be a string, not {type(value).__name__}")
        if timeout is not None and not 0 < timeout < 3_600:
            raise ValueError(f"timeout must lie between 0 and 3600 s, not {timeout!r}")
        if self._owner != os.getpid():
            raise RuntimeError("this sandbox belongs to the process that this one was forked from: open one here")
        key = (prompt, completion, test, entry_point, timeout or self.timeout)
        with self._lock:
            if self._closed:
                raise RuntimeError("the sandbox is closed")
            future = self._running.get(key)
            if future is None:
                future = self._running[key] = self._pool.submit(self._judge, key)
            else:
                return future
        future.add_done_callback(lambda _: self._running.pop(key, None))
        return future

    def close(self) -> None:
        """Ends the workers; jobs that still wait are cancelled. Safe to call twice."""
        with self._lock:
            self._closed = True
        stop_all(self._alive, self._owner)
        if self._owner == os.getpid():
            self._pool.shutdown(wait=True, cancel_futures=True)
            stop_all(self._alive, self._owner)  # one that was just being replaced

    def _started(self) -> Worker:
        worker = Worker(self.options, self._alive)
        try:
            worker.prove(self.options)
        except BaseException:
            worker.stop()
            raise
        return worker

    def _judge(self, key: tuple) -> Verdict:
        prompt, completion, test, entry_point, timeout = key
        plan = prepare(prompt, test, entry_point)
        total = max(1, len(plan.shown))
        if plan.problem:
            return Verdict(plan.problem[0], 0, total, plan.problem[1], 0.0)
        if len(completion) > LONGEST_COMPLETION:
            return Verdict("fail", 0, total, f"longer than {LONGEST_COMPLETION:,} characters: not run", 0.0)
        trouble: Exception | None = None
        for _ in range(2):  # a worker may have been killed from outside: once more on a new one
            worker = self._idle.get()
            try:
                if worker is None or not worker.usable():
                    worker = None if self._closed else self._started()
                if worker is None:
                    raise WorkerDied("the sandbox was closed")
                return worker.judge(plan, prompt, completion, entry_point, timeout)
            except (WorkerDied, SandboxUnavailable, OSError) as error:
                trouble = error
                if worker is not None:
                    worker.stop()
                worker = None
            finally:
                self._idle.put(worker)
        return Verdict("error", 0, total, one_line(f"the worker was lost: {trouble}"), 0.0)


def stop_all(workers: set[Worker], owner: int) -> None:
    if owner == os.getpid():  # a forked child leaves its parent's workers alone
        for worker in list(workers):
            worker.stop()


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


ANNOUNCED: set[str] = set()


def announce(missing: Mapping[str, str]) -> None:
    """Warns of each layer that is missing here, once a process."""
    for layer, why in missing.items():
        if layer not in ANNOUNCED:
            ANNOUNCED.add(layer)
            warnings.warn(f"sandbox: the layer {layer} is missing ({why}); the others still hold.", stacklevel=4)


SELF_TEST = '''
import os, signal, sys
def probe(n):
    """The names of what could be done and must not be."""
    tries = {
        "open": lambda: os.open("/", os.O_RDONLY),
        "socket": lambda: sys.modules["socket"].socket(),
        "fork": lambda: os.fork() or os._exit(0),
        "kill": lambda: os.kill(os.getpid(), 0),
        "pipe": lambda: os.pipe(),
    }
    done = [] if os.getuid() else ["root"]
    for name, attempt in tries.items():
        try:
            attempt()
            done.append(name)
        except OSError:
            pass
    return done if n else n
'''
SELF_TESTS = [  # completion, test, status, assertions that hold
    ("def probe(n):\n    return n + 1\n", "assert probe(1) == 2\nassert probe(2) == 3\n", "pass", 2),
    ("def probe(n):\n    return 2\n", "assert probe(1) == 2\nassert probe(2) == 3\n", "fail", 1),
]


class Worker:
    """One worker process as the caller sees it: started, proved, asked, stopped."""

    START_LIMIT = 60.0  # seconds until it is warm, on a busy machine

    def __init__(self, options: dict[str, Any], alive: set[Worker]) -> None:
        self.alive, self.lock = alive, threading.Lock()
        if not sys.executable:
            raise SandboxUnavailable(
                "The sandbox needs a Python to start (sys.executable is empty): run under an ordinary Python."
            )
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            watched = os.pidfd_open(os.getpid()) if hasattr(os, "pidfd_open") else -1
        except OSError:
            watched = -1  # an older kernel: the worker looks at its parent's number instead
        paths = [path for path in sys.path if path] if options["imports"] else []
        told = json.dumps(
            {**options, "paths": paths, "caller": os.getpid(), "watched": watched, "control": theirs.fileno()}
        )
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONHOME") if name in os.environ}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-S", "-B", "-X", "utf8", os.path.abspath(__file__), "--worker", told],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=[fd for fd in (theirs.fileno(), watched) if fd >= 0],
                start_new_session=True,
                env={
                    "PYTHONHASHSEED": "0",
                    "LC_ALL": "C.UTF-8",
                    "OPENBLAS_NUM_THREADS": "1",
                    "OMP_NUM_THREADS": "1",
                    **kept,
                },
            )
        except OSError as error:
            self.control.close()
            raise SandboxUnavailable(f"The sandbox cannot start {sys.executable}: {error}") from error
        finally:
            theirs.close()
            if watched >= 0:
                os.close(watched)
        alive.add(self)
        try:
            self.control.settimeout(self.START_LIMIT)
            hello = json.loads(self.control.recv(65_536) or b"{}")
        except (OSError, ValueError):
            hello = {}
        if "layers" not in hello and hello.get("broken", "").startswith("ModuleNotFoundError"):
            self.stop()
            raise SandboxUnavailable(
                f"The sandbox was asked for a module that is not installed here ({hello['broken']}): install it, or take it out of `imports`."
            )
        if "layers" not in hello:
            self.stop()
            raise SandboxUnavailable(
                f"The sandbox's worker did not start ({hello.get('broken', 'it ended without a word')}). "
                f"`{sys.executable} -s -P -S -B -c pass` must work; where the interpreter cannot be read, use another Python."
            )
        self.layers, self.missing = hello["layers"], hello["missing"]

    def usable(self) -> bool:
        return self.control.fileno() >= 0 and self.process.poll() is None

    def prove(self, options: dict[str, Any]) -> None:
        """Refuses to go on where a layer that must be there is not, or known answers are judged wrongly."""
        needed = {name: why for name, why in self.missing.items() if name in REQUIRED}
        if needed and not options["unsafe"]:
            name, why = next(iter(needed.items()))
            raise SandboxUnavailable(
                f"The sandbox's layer {name} cannot be set up here ({why}), and without it nothing is run. Use a kernel or "
                "container that allows it (Docker: its default seccomp profile does; do not run under one that forbids prctl), "
                "or a virtual machine. Sandbox(unsafe=True) runs without it: only where nothing can be lost."
            )
        tests = SELF_TESTS if needed else [*SELF_TESTS, (SELF_TEST, "assert probe(1) == []\n", "pass", 1)]
        for completion, test, status, holds in tests:
            verdict = self.judge(prepare("", test, "probe"), "", completion, "probe", 10.0)
            if (verdict.status, verdict.passed) != (status, holds):
                raise SandboxUnavailable(
                    f"The sandbox's self-test failed: a completion that must {status} got {verdict.status} ({verdict.why}). "
                    "Nothing is run here; please report this with the kernel's version (uname -a)."
                )

    def judge(self, plan: Plan, prompt: str, completion: str, entry_point: str, timeout: float) -> Verdict:
        """Raises WorkerDied where there is no verdict because of the worker, not because of the job."""
        nonce = secrets.token_hex(8)
        mine, judge_end = socket.socketpair()
        payload, candidate_end = socket.socketpair()
        try:
            with judge_end, candidate_end:
                self.control.settimeout(10.0)
                request = struct.pack("<d", timeout)
                socket.send_fds(self.control, [request], [judge_end.fileno(), candidate_end.fileno()])
            hand_over(
                mine,
                marshal.dumps((nonce, plan.prompt_code, plan.test_code, entry_point, plan.shown, plan.kinds)),
                timeout,
            )
            hand_over(payload, marshal.dumps((plan.prompt_code, prompt, completion, entry_point)), timeout)
            reply, told = self.listen(mine, WALL * timeout + 20.0)
        except (OSError, ValueError) as error:
            raise WorkerDied(one_line(error)) from error
        finally:
            mine.close()
            payload.close()
        return read_verdict(plan, nonce, told, json.loads(reply))

    def listen(self, verdicts: socket.socket, limit: float) -> tuple[bytes, bytes]:
        """(the worker's word that the job has ended, all that the judge wrote), read side by side: a socket holds little."""
        reply, told, open_ends = b"", [], {self.control, verdicts}
        deadline = time.monotonic() + limit
        while open_ends:
            poller = select.poll()
            for end in open_ends:
                poller.register(end, select.POLLIN)
            ready = {fd for fd, _ in poller.poll(max(0.0, 1_000 * (deadline - time.monotonic())))}
            if not ready:
                raise WorkerDied("it does not answer")
            if verdicts.fileno() in ready and verdicts in open_ends:
                told.append(verdicts.recv(65_536))
                if not told[-1]:
                    open_ends.discard(verdicts)
            if self.control.fileno() in ready and self.control in open_ends:
                reply = self.control.recv(4_096)
                if not reply:
                    raise WorkerDied("its process ended")
                open_ends.discard(self.control)
        return reply, b"".join(told)

    def stop(self) -> None:
        self.alive.discard(self)
        with self.lock:
            if self.process.poll() is None:
                self.process.kill()  # its children die with it: see `launch`
                self.process.wait()
            try:
                self.control.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for it
            except OSError:
                pass
            self.control.close()


def hand_over(sink: socket.socket, content: bytes, timeout: float) -> None:
    """Sends all of it and an end of file; a process that ended early, or does not read, is no error of the worker's."""
    try:
        sink.settimeout(WALL * timeout + 5.0)
        sink.sendall(content)
        sink.shutdown(socket.SHUT_WR)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN) and not isinstance(error, TimeoutError):
            raise


def read_verdict(plan: Plan, nonce: str, told: bytes, ended: dict[str, Any]) -> Verdict:
    """The verdict from what the judge wrote while it worked, and from how the two processes ended."""
    lines = told.decode("utf-8", "replace").split("\n")
    final, called, state = None, False, {}
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind == "C":
            called = True
        elif kind in ("H", "F") and rest.isdigit():
            state[int(rest)] = kind == "H" and state.get(int(rest), True)
        elif kind == "V":
            found = json.loads(rest)
            final = found if found.get("nonce") == nonce else None
    seconds = round(ended["seconds"], 6)
    complete = bool(final and final["complete"])
    held = tuple(
        kind == "!" and complete and k not in state or state.get(k, False) and (kind == "." or complete)
        for k, kind in enumerate(plan.kinds)
    )
    total = max(1, len(held))
    who, _, late = ended["late"].partition(": ")
    if final:
        status, why = final["status"], final["why"]
    elif called or who == "candidate":
        status, why = "fail", f"stopped: {late}" if late else "the judge could not take what the function returned"
    else:
        status, why = "error", f"the test {'did not end' if late else 'ended its process'} before its first call"
    if status == "pass":
        return Verdict(status, total, total, "all assertions hold", seconds, (True,) * len(held))
    return Verdict(status, sum(held), total, one_line(why, 300), seconds, held)


# --------------------------------------------------------------------------- plain data, the only thing that crosses


class NotPlain(Exception):
    """A value that is not plain data; the message names its type."""


class TooMuch(NotPlain):
    """Plain data, but too large or too deep."""


def encode(value: Any, depth: int = 0) -> Any:
    """Plain data as JSON that keeps the types apart: `[kind, …]` for all but None, bool, str, float and small int."""
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is float:
        return value
    if kind is int:
        return value if -(2**62) < value < 2**62 else ["i", hex(value)]
    if depth > DEEPEST:
        raise TooMuch(f"something nested deeper than {DEEPEST}")
    deeper = depth + 1
    if kind is list:
        return ["l", *[encode(item, deeper) for item in value]]
    if kind is tuple:
        return ["t", *[encode(item, deeper) for item in value]]
    if kind is dict:
        return ["d", *[encode(item, deeper) for pair in value.items() for item in pair]]
    if kind is set or kind is frozenset:
        return ["s" if kind is set else "f", *[encode(item, deeper) for item in value]]
    return encode_rare(value, kind, deeper)


def encode_rare(value: Any, kind: type, deeper: int) -> Any:
    if kind is bytes or kind is bytearray:
        return ["b" if kind is bytes else "B", value.hex()]
    if kind is complex:
        return ["c", value.real, value.imag]
    if kind is range:
        return ["r", *[encode(part, deeper) for part in (value.start, value.stop, value.step)]]
    if kind is Fraction:
        return ["q", encode(value.numerator, deeper), encode(value.denominator, deeper)]
    if kind is Decimal:
        return ["D", str(value)]
    for base in (
        str,
        int,
        float,
        bytes,
        list,
        tuple,
        dict,
        set,
        frozenset,
    ):  # Counter, namedtuple, IntEnum: as what they extend
        if isinstance(value, base):
            return encode(
                dict(dict.items(value))
                if base is dict
                else base.__new__(base, value)
                if base in (str, int, float, bytes)
                else base(base.__iter__(value)),
                deeper,
            )
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), deeper)
    if hasattr(kind, "__next__"):  # generators, map, zip: what they give, up to a number
        items = []
        for item in value:
            items.append(encode(item, deeper))
            if len(items) > MOST_ITEMS:
                raise TooMuch(f"an iterator of more than {MOST_ITEMS:,} items")
        return ["n", *items]
    raise NotPlain(f"an object of type {kind.__name__}")


def decode(value: Any, depth: int = 0) -> Any:
    """What `encode` wrote, in exact built-in types.

    Raises:
        ValueError: for anything that `encode` does not write.
    """
    if not isinstance(value, list):
        if isinstance(value, dict):
            raise ValueError("not a message of this protocol")
        return value
    if depth > DEEPEST + 1 or not value:
        raise ValueError("not a message of this protocol")
    kind, *items = value
    if kind in ("i", "b", "B", "D"):
        if len(items) != 1 or type(items[0]) is not str:
            raise ValueError("not a message of this protocol")
        text = items[0]
        return (
            int(text, 16)
            if kind == "i"
            else Decimal(text)
            if kind == "D"
            else (bytes if kind == "b" else bytearray).fromhex(text)
        )
    found = [decode(item, depth + 1) for item in items]
    if kind == "l":
        return found
    if kind == "d":
        if len(found) % 2:
            raise ValueError("not a message of this protocol")
        return dict(zip(found[::2], found[1::2]))
    makers = {
        "t": tuple,
        "s": set,
        "f": frozenset,
        "n": iter,
        "c": lambda p: complex(*p),
        "r": lambda p: range(*p),
        "q": lambda p: Fraction(*p),
    }
    if kind not in makers:
        raise ValueError("not a message of this protocol")
    return makers[kind](found)


def send_frame(fd: int, message: Any) -> None:
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > LARGEST_MESSAGE:
        raise TooMuch(f"something of more than {LARGEST_MESSAGE // 1_000_000} MB")
    body = len(body).to_bytes(4, "little") + body
    while body:
        body = body[os.write(fd, body) :]


def read_frame(fd: int) -> Any:
    """The next message; None at the end of file.

    Raises:
        ValueError: for what is no message, and for one that is too large.
    """
    head = read_exactly(fd, 4)
    if head is None:
        return None
    size = int.from_bytes(head, "little")
    if size > LARGEST_MESSAGE:
        raise ValueError("a reply that is too large")
    body = read_exactly(fd, size)
    return None if body is None else json.loads(body)


def read_exactly(fd: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_all(fd: int) -> bytes:
    return b"".join(iter(lambda: os.read(fd, 1 << 20), b""))


# --------------------------------------------------------------------------- the candidate: sees the completion


def candidate_main(payload: int, rpc: int) -> None:
    """Loads the completion and answers calls, each with the number that the call came with."""
    prompt_code, prompt, completion, entry_point = marshal.loads(read_all(payload))
    os.close(payload)
    send_frame(rpc, {"entered": True})  # before anything of the completion's has run: not to come so far is our fault
    try:
        function = load(prompt_code, prompt, completion, entry_point)
        send_frame(rpc, {"ready": True})
    except BaseException as error:  # SystemExit and KeyboardInterrupt of the completion too
        send_frame(rpc, {"ready": False, "why": one_line(error)})
        return
    del prompt_code, prompt, completion
    while (call := read_frame(rpc)) is not None:
        reply = {"n": call["n"]}
        if "args" in call:
            try:
                result = function(*decode(call["args"]), **decode(call["kwargs"]))
                reply["result"] = encode(result)
            except NotPlain as error:
                reply["odd"] = one_line(str(error))
            except BaseException as error:
                reply["raised"] = [
                    [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"],
                    one_line(str_of(error)),
                ]
        try:
            send_frame(rpc, reply)
        except (NotPlain, TypeError, ValueError, MemoryError, RecursionError) as error:
            send_frame(rpc, {"n": call["n"], "odd": one_line(str_of(error)) or "something that cannot be sent"})


def str_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return ""


def load(prompt_code: bytes | None, prompt: str, completion: str, entry_point: str) -> Any:
    """The completion's function: of a whole module, or of the prompt with the completion as its body.

    Raises:
        Whatever the completion raises; NameError where it does not define the entry point.
    """
    module = types.ModuleType("solution")  # no "__main__": what stands behind that guard is not asked for
    sys.modules["solution"] = module  # dataclasses look their module up
    code = whole(completion)
    if code is not None:
        if entry_point not in code.co_names:
            raise NameError(f"{entry_point} is not defined")
        if prompt_code is not None:
            exec(marshal.loads(prompt_code), module.__dict__)
            module.__dict__.pop(entry_point, None)
    else:
        code = body(prompt, completion)
    exec(code, module.__dict__)
    if entry_point not in module.__dict__:
        raise NameError(f"{entry_point} is not defined")
    return module.__dict__[entry_point]


def whole(completion: str) -> types.CodeType | None:
    """The completion compiled by itself; None for the body of a function, which is indented or returns."""
    try:
        return compile(completion, "<completion>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None


def body(prompt: str, completion: str) -> types.CodeType:
    """The prompt and the completion as one module."""
    trouble = None
    for source in bodies(prompt, completion):
        try:
            return compile(source + "\n", "<completion>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            trouble = trouble or error
    raise trouble


def bodies(head: str, body: str) -> list[str]:
    """Sources with `body` under `head`: as it is, and with the indentation that its first or all lines have lost."""
    head = head if head.endswith("\n") or not head else head + "\n"
    text = body.strip("\n")
    return [head + body, head + "    " + text.lstrip(), head + "\n".join("    " + line for line in text.split("\n"))]


# --------------------------------------------------------------------------- the judge: sees the test


class Odd(BaseException):
    """What no completion may do to a test: hand back what is no plain data, or raise what is no ordinary exception.

    No `except Exception` of the test catches it, so that a test that expects an error is not satisfied by it.
    """


NOTHING = object()  # no value came back from the last call


class Stop(BaseException):
    """Ends a check at once; no `except Exception` of the test catches it."""

    def __init__(self, status: str, why: str) -> None:
        self.status, self.why = status, why


class Judge:
    """Runs a graded test on a proxy of the candidate's function, and writes down what happens as it happens."""

    def __init__(self, verdicts: int, rpc: int, entry_point: str, shown: Sequence[str], kinds: str) -> None:
        self.verdicts, self.rpc, self.entry_point, self.shown, self.kinds = verdicts, rpc, entry_point, shown, kinds
        self.calls, self.ended, self.first_failure, self.returned = 0, None, None, NOTHING
        self.trap, self.spoilt, self.answered = "", False, False
        self.seen: dict[int, bool] = {}

    def note(self, line: str) -> None:
        os.write(self.verdicts, (line + "\n").encode())

    def stop(self, status: str, why: str) -> None:
        self.ended = self.ended or Stop(status, why)  # kept: a bare `except:` of the test may swallow it
        raise self.ended

    def read(
        self, number: str | None, at_end: tuple[str, str] = ("fail", "the process of the completion ended")
    ) -> dict:
        try:
            reply = read_frame(self.rpc)
        except (ValueError, RecursionError, MemoryError, OSError):
            self.stop("fail", "the process of the completion broke the protocol")
        if reply is None:
            self.stop(*at_end)
        if not isinstance(reply, dict) or number is not None and reply.get("n") != number:
            self.stop("fail", "the process of the completion broke the protocol")
        return reply

    def refuse(self, error: NotPlain) -> None:
        """What the test passes cannot cross: its own limit, unless it is an answer fed back that has grown too large."""
        if isinstance(error, TooMuch) and self.answered:
            self.stop("fail", f"the test passes {error}, made of what the function returned")
        self.stop("unsupported", f"the test passes {error}, which cannot cross")

    def ask(self, message: dict) -> dict:
        number = secrets.token_hex(8)  # so that no reply can be written before its call
        try:
            send_frame(self.rpc, {"n": number, **message})
        except NotPlain as error:
            self.refuse(error)
        except OSError:
            self.stop("fail", "the process of the completion ended")
        return self.read(number)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        if self.ended:
            raise self.ended
        try:
            message = {"args": encode(args), "kwargs": encode(kwargs)}
        except NotPlain as error:
            self.refuse(error)  # before the completion is looked at: it is the test's, whatever the completion
        if not self.calls:
            self.begin()
        self.calls += 1
        return self.answer(self.ask(message))

    def begin(self) -> None:
        """Waits until the completion is loaded."""
        self.calls, trouble = 1, "the process of the completion could not be started"
        if self.read(None, ("error", trouble)).get("entered") is not True:
            self.stop("error", trouble)
        self.note("C")
        ready = self.read(None)
        if ready.get("ready") is not True:
            self.stop("fail", f"it does not load: {one_line(str(ready.get('why', '')))}")

    def answer(self, reply: dict) -> Any:
        if "raised" in reply:
            raise self.rebuilt(reply["raised"])
        if "odd" in reply:
            self.odd(f"it returned {one_line(str(reply['odd']))}, which is not plain data")
        try:
            value = decode(reply["result"])
        except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError, MemoryError):
            self.stop("fail", "the process of the completion broke the protocol")
        self.returned, self.answered = value, True
        return value

    def rebuilt(self, raised: Any) -> Exception:
        """The candidate's exception as the nearest built-in one that can be made of its text."""
        import builtins

        try:
            names, text = [str(name) for name in raised[0]], one_line(str(raised[1]))
        except (TypeError, IndexError, KeyError):
            self.stop("fail", "the process of the completion broke the protocol")
        self.returned = NOTHING
        for name in names:
            kind = getattr(builtins, name, None)
            if not isinstance(kind, type) or not issubclass(kind, BaseException):
                continue
            if not issubclass(kind, Exception) or issubclass(kind, (StopIteration, StopAsyncIteration, ExceptionGroup)):
                break  # would end a loop of the test, or the judge
            try:
                return kind(text)
            except TypeError:  # UnicodeDecodeError wants five arguments: the next one up
                continue
        self.odd(f"it raised {one_line(names[0] if names else 'something')}")

    def odd(self, what: str) -> None:
        self.returned, self.spoilt = NOTHING, True
        raise Odd(what)

    def held(self, k: int) -> None:
        if k not in self.seen:
            self.seen[k] = True
            self.note(f"H {k}")

    def reached(self, k: int) -> None:
        """A trap of the test was reached: it does not hold, and what follows from that is the test's to say."""
        self.trap = self.shown[k]
        self.fell(k)

    def fell(self, k: int) -> None:
        if self.seen.get(k) is not False:
            self.seen[k] = False
            self.note(f"F {k}")

    def failed(self, k: int) -> None:
        if not self.calls:
            raise  # the test's own mistake, before it has called anything
        self.fell(k)
        self.explain(self.shown[k])

    def broke(self, first: int, last: int) -> None:
        """A line with the assertions first … last - 1 raised: what its traps would have caught did not come."""
        if not self.calls:
            raise
        for k in range(first, last):
            if self.kinds[k] == "!":
                self.fell(k)
        self.explain(self.trap if isinstance(sys.exc_info()[1], AssertionError) else "")

    def explain(self, where: str) -> None:
        if self.first_failure is not None:
            return
        error = sys.exc_info()[1]
        if isinstance(error, Odd):
            what = str_of(error)
        elif isinstance(error, AssertionError) and self.returned is not NOTHING:
            what = f"it returned {shown_value(self.returned)}"
        else:
            what = "" if error is None or isinstance(error, AssertionError) and not str_of(error) else one_line(error)
        self.first_failure = ": ".join(part for part in (where, what) if part) or "an assertion does not hold"

    def run(self, prompt_code: bytes | None, test_code: bytes) -> tuple[str, str, bool]:
        """(status, why, whether the check ran to its end)."""
        complete = False
        try:
            space: dict[str, Any] = {"__name__": "test", "__builtins__": __builtins__}
            if prompt_code is not None:
                exec(marshal.loads(prompt_code), space)  # tests use the prompt's helpers
            candidate = proxy(self, self.entry_point)
            space |= {
                self.entry_point: candidate,
                "__held__": self.held,
                "__failed__": self.failed,
                "__broke__": self.broke,
                "__reached__": self.reached,
                "__Exception__": (Exception, Odd),
            }
            exec(marshal.loads(test_code), space)
            if callable(space.get("check")):
                space["check"](candidate)
            complete = True
            if self.calls and not self.ended:
                self.ask({})  # alive, and on the protocol, to the end
        except Stop as stop:
            return stop.status, stop.why, False
        except BaseException as error:
            if not self.calls:
                return "error", f"the test fails before its first call: {one_line(error)}", False
            self.explain("")
        if self.ended:
            return self.ended.status, self.ended.why, False
        if not self.calls:
            return "error", "the test never calls the function", False
        if self.first_failure is not None or self.spoilt:
            return "fail", self.first_failure or "it returned or raised what no test can take", complete
        return "pass", "", complete


def proxy(judge: Judge, name: str) -> Any:
    def candidate(*args: Any, **kwargs: Any) -> Any:
        return judge.call(*args, **kwargs)

    candidate.__name__ = candidate.__qualname__ = name
    return candidate


def shown_value(value: Any) -> str:
    import reprlib

    if hasattr(value, "__next__"):
        return "an iterator"
    try:
        short = reprlib.Repr()
        short.maxstring = short.maxother = short.maxlong = 60
        return one_line(short.repr(value), 100)
    except Exception:
        return f"a {type(value).__name__}"


def judge_main(verdicts: int, rpc: int) -> None:
    nonce, prompt_code, test_code, entry_point, shown, kinds = marshal.loads(read_all(verdicts))
    judge = Judge(verdicts, rpc, entry_point, shown, kinds)
    sys.modules["random"].seed(
        test_code
    )  # it repeats, and the candidate, which does not know the test, cannot foretell it
    status, why, complete = judge.run(prompt_code, test_code)
    judge.note("V " + json.dumps({"nonce": nonce, "status": status, "why": why, "complete": complete}))


# --------------------------------------------------------------------------- what the kernel is asked for

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_REC, MS_PRIVATE, MNT_DETACH = (
    1,
    2,
    4,
    8,
    32,
    0x4000,
    0x40000,
    2,
)
NOBODY = 65_534
PROT_EXEC = 4

# name: (x86-64, aarch64); None where an architecture does not have it. From asm/unistd_64.h and asm-generic/unistd.h.
SYSCALLS: dict[str, tuple[int | None, int]] = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "futex": (202, 98),
    "sched_yield": (24, 124),
    "restart_syscall": (219, 128),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "getrandom": (318, 278),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "getrusage": (98, 165),
    "times": (100, 153),
    "rseq": (334, 293),
    "set_robust_list": (273, 99),
    "clone3": (435, 435),
    "openat2": (437, 437),
    "faccessat2": (439, 439),
    "statx": (332, 291),
}
ABSENT = (
    "clone3",
    "openat2",
    "faccessat2",
    "statx",
)  # must seem unknown, so that libc tries the older call, which is refused
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of SYSCALLS, AUDIT_ARCH
NUMBERS = {  # of the calls that are made without libc's help
    "x86_64": {"pivot_root": 155, "capset": 126},
    "aarch64": {"pivot_root": 41, "capset": 91},
}
LANDLOCK_CREATE, LANDLOCK_RESTRICT = 444, 446  # the same on both

# classic BPF: load a 32-bit word of seccomp_data, jump, return
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
AT_NUMBER, AT_ARCHITECTURE, AT_ARGUMENTS = 0, 4, 16
KILL, ALLOW = 0x80000000, 0x7FFF0000


def refuse(code: int) -> int:
    return 0x00050000 | code


def seccomp_program(machine: str) -> list[tuple[int, int, int, int]]:
    """The allowlist as classic BPF: (code, jump if true, jump if false, k) for each instruction."""
    column, architecture = ARCHITECTURES[machine]
    rules: list[tuple[int, int, int, int]] = [
        (LOAD, 0, 0, AT_ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, AT_NUMBER),
    ]
    if machine == "x86_64":  # the x32 calls share the architecture's mark
        rules += [(JUMP_AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, KILL)]

    def argument(index: int, tests: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
        return [(LOAD, 0, 0, AT_ARGUMENTS + 8 * index), *tests]

    special = {
        "ioctl": [(RETURN, 0, 0, refuse(errno.ENOTTY))],
        "fcntl": argument(
            1,
            [(JUMP_EQUAL, 1, 0, 1), (JUMP_EQUAL, 0, 1, 3), (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, refuse(errno.EPERM))],
        ),
        # no stat at all: with AT_EMPTY_PATH the kernel still takes a path. No clocks of other processes (negative numbers).
        **{
            name: argument(0, [(JUMP_AT_LEAST, 0, 1, 12), (RETURN, 0, 0, refuse(errno.EINVAL)), (RETURN, 0, 0, ALLOW)])
            for name in ("clock_gettime", "clock_getres", "clock_nanosleep")
        },
        **{
            name: argument(
                2, [(JUMP_ANY_BIT, 0, 1, PROT_EXEC), (RETURN, 0, 0, refuse(errno.EACCES)), (RETURN, 0, 0, ALLOW)]
            )
            for name in ("mmap", "mprotect")
        },
        **{name: [(RETURN, 0, 0, refuse(errno.ENOSYS))] for name in ABSENT},
    }
    for name, numbers in SYSCALLS.items():
        if numbers[column] is None:
            continue
        then = special.get(name, [(RETURN, 0, 0, ALLOW)])
        rules += [(JUMP_EQUAL, 0, len(then), numbers[column]), *then]
    return [*rules, (RETURN, 0, 0, refuse(errno.EPERM))]


class Kernel:
    """The calls that Python's standard library does not offer, by ctypes. Each raises OSError."""

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        # fork(2) without Python's hooks, which take as long as the call itself. This process has one thread, so
        # there is nothing for them to mend.
        self.fork = ctypes.PyDLL(None, use_errno=True).fork
        self.machine = os.uname().machine
        self.program: Any = None
        if self.machine in ARCHITECTURES:
            rules = seccomp_program(self.machine)
            self._rules = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *rule) for rule in rules))
            self.program = self.Program(len(rules), ctypes.cast(self._rules, ctypes.c_void_p).value)

    def checked(self, result: int, what: str) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"{what}: {os.strerror(code)}")
        return result

    def prctl(self, option: int, *arguments: Any) -> None:
        rest = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in (*arguments, 0, 0, 0, 0)[:4]]
        self.checked(self.libc.prctl(option, *rest), f"prctl({option})")

    def filter(self) -> None:
        """From here on only the allowlist; for ever, and for every child."""
        if self.program is None:
            raise OSError(errno.ENOSYS, f"no list of system calls for {self.machine}")
        self.prctl(PR_SET_SECCOMP, 2, ctypes.byref(self.program))

    def unshare(self, flags: int) -> None:
        self.checked(self.libc.unshare(flags), "unshare")

    def mount(
        self, source: bytes | None, target: bytes, kind: bytes | None, flags: int, data: bytes | None = None
    ) -> None:
        self.checked(self.libc.mount(source, target, kind, ctypes.c_ulong(flags), data), f"mount {target.decode()}")

    def enter_empty_root(self) -> None:
        """An empty, read-only file system as the root, and the old one detached."""
        self.mount(None, b"/", None, MS_REC | MS_PRIVATE)
        place = next(p for p in (b"/tmp", b"/mnt", b"/usr", b"/") if os.path.isdir(p))
        self.mount(b"tmpfs", place, b"tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, b"size=64k,mode=755")
        os.chdir(place)
        self.checked(self.libc.syscall(NUMBERS[self.machine]["pivot_root"], b".", b"."), "pivot_root")
        self.checked(self.libc.umount2(b".", MNT_DETACH), "umount")
        os.chdir("/")
        self.mount(None, b"/", None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)

    def drop_capabilities(self) -> None:
        for capability in range(64):
            try:
                self.prctl(PR_CAPBSET_DROP, capability)
            except OSError:
                break  # beyond the last, or not allowed: the sets below are what counts
        header, none = struct.pack("<Ii", 0x20080522, 0), bytes(24)
        self.checked(self.libc.syscall(NUMBERS[self.machine]["capset"], header, none), "capset")

    def landlock(self) -> str:
        """Forbids every access to files, TCP ports, abstract sockets and signals that this kernel can forbid."""
        version = self.checked(self.libc.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1), "landlock")
        files = (1 << (13 if version == 1 else 14 if version == 2 else 15 if version < 5 else 16)) - 1
        rules = struct.pack("<QQQ", files, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
        rules = rules[: 8 if version < 4 else 16 if version < 6 else 24]
        handle = self.checked(self.libc.syscall(LANDLOCK_CREATE, rules, ctypes.c_size_t(len(rules)), 0), "landlock")
        try:
            self.checked(self.libc.syscall(LANDLOCK_RESTRICT, handle, 0), "landlock")
        finally:
            os.close(handle)
        return (
            f"version {version}: no files"
            + (", no TCP" if version >= 4 else "")
            + (", no signals" if version >= 6 else "")
        )


# --------------------------------------------------------------------------- the worker: warm, locked down, forks for each job


def launch(told: dict[str, Any]) -> None:
    """A worker's outer process: sets up namespaces, starts the inner one, and dies with the caller or with it.

    The inner process forks a candidate and a judge for each job. Death goes downwards: the outer process
    watches the caller by a descriptor of the process (the control socket may be held open by a forked
    child of a caller that was killed), the inner one has SIGKILL as its parent's death signal and is
    process 1 of its namespace, and the children have the same signal.
    """
    kernel, layers, missing = Kernel(), {"process": "own interpreter, empty environment, stopped at the deadline"}, {}
    if "namespaces" in told["without"]:
        missing["namespaces"] = "left out"
    else:
        enter_namespaces(kernel, layers, missing)
    try:
        write_raw("/proc/self/oom_score_adj", "1000")  # where memory runs out, a job goes before the caller does
    except OSError:
        pass
    kernel.prctl(PR_SET_DUMPABLE, 0)  # not before: an ordinary user's /proc/self would belong to root
    keep = {told["control"], told["watched"]}
    close_all_but({0, 1, 2, *keep})
    life_end, life = os.pipe()  # the inner process sees the end of this one
    death, death_end = os.pipe()  # and this one the end of the inner process
    pid = os.fork()
    if pid == 0:
        try:
            close_all_but({0, 1, 2, told["control"], life_end, death_end})
            serve(kernel, socket.socket(fileno=told["control"]), life_end, told, layers, missing)
        except BaseException as error:
            try:
                socket.socket(fileno=told["control"]).send(json.dumps({"broken": one_line(error, 300)}).encode())
            except BaseException:
                pass
        finally:
            os._exit(0)
    os.close(told["control"])
    os.close(death_end)
    os.close(life_end)
    watcher = select.poll()
    for fd in (death, told["watched"]):
        if fd >= 0:
            watcher.register(fd, select.POLLIN | select.POLLHUP)
    while os.getppid() == told["caller"] and not watcher.poll(None if told["watched"] >= 0 else 500):
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def worker_main(told: dict[str, Any]) -> None:
    control = socket.socket(fileno=told["control"])
    try:
        launch(told)
    except BaseException as error:
        control.send(json.dumps({"broken": one_line(error, 300)}).encode())
        raise


def enter_namespaces(kernel: Kernel, layers: dict[str, str], missing: dict[str, str]) -> None:
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    user, group = os.geteuid(), os.getegid()
    trouble = None
    for extra in (0, CLONE_NEWUSER) if user == 0 else (CLONE_NEWUSER,):
        try:
            kernel.unshare(flags | extra)
            if extra:
                # The same number inside as outside: mapping another, or 0 as root, needs a capability.
                for name, text in (
                    ("setgroups", "deny"),
                    ("uid_map", f"{user} {user} 1"),
                    ("gid_map", f"{group} {group} 1"),
                ):
                    write_raw(f"/proc/self/{name}", text)
            layers["namespaces"] = ("user, " if extra else "") + "pid, net, ipc, uts"
            return
        except OSError as error:
            trouble = error
    missing["namespaces"] = one_line(trouble)


def write_raw(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())  # not by a file object, which reports such an error only on closing, or never
    finally:
        os.close(fd)


def close_all_but(keep: set[int], top: int = 65_536) -> None:
    low = 0
    for fd in sorted(keep):
        if low < fd:  # os.closerange(0, 0) of Python 3.11 closes everything: its end becomes -1
            os.closerange(low, fd)
        low = max(low, fd + 1)
    os.closerange(low, top)


def serve(
    kernel: Kernel,
    control: socket.socket,
    life: int,
    told: dict[str, Any],
    layers: dict[str, str],
    missing: dict[str, str],
) -> None:
    """The inner process: imports, locks itself down, says hello, and judges until an end of file."""
    warm(told)
    limits = Limits(kernel, told)
    lock_down(kernel, told, layers, missing)
    limits.prove(layers, missing)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    control.send(
        json.dumps(
            {"layers": layers | {name: f"missing: {why}" for name, why in missing.items()}, "missing": missing}
        ).encode()
    )
    freeze()
    waiter = select.poll()
    waiter.register(control, select.POLLIN | select.POLLHUP)
    waiter.register(life, select.POLLIN | select.POLLHUP)
    while all(fd != life for fd, _ in waiter.poll()):
        request, fds, _, _ = socket.recv_fds(control, 64, 2)
        if not request:
            return
        control.send(json.dumps(one_job(limits, fds, struct.unpack("<d", request)[0])).encode())


def warm(told: dict[str, Any]) -> None:
    """Imports what jobs may need: once locked down, nothing can be opened any more.

    Also before the user id changes: the interpreter may lie where only its owner can read.
    """
    import importlib

    for name in IMPORTED:
        importlib.import_module(name)
    before, sys.path[:] = list(sys.path), [*sys.path, *told["paths"]]
    for name in told["imports"]:
        importlib.import_module(name)
    sys.path[:] = before
    "".encode("idna")
    time.strptime("2000", "%Y")  # imports a module of its own
    sys.modules["random"].seed(0)  # the same in every worker, so that a verdict repeats


def address_space() -> int:
    """Bytes that this process has mapped."""
    try:
        with open("/proc/self/statm", encoding="ascii") as source:
            return int(source.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 256 << 20  # /proc is not there


def lock_down(kernel: Kernel, told: dict[str, Any], layers: dict[str, str], missing: dict[str, str]) -> None:
    """Everything that one process can give up once for all its jobs."""
    if "namespaces" in layers:
        try:
            kernel.enter_empty_root()
            layers["namespaces"] += ", mount (an empty read-only root)"
        except OSError as error:
            missing["mount"] = one_line(error)
    if os.geteuid() == 0 and "uid" not in told["without"]:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            layers["uid"] = f"{NOBODY}, no capabilities"
        except OSError as error:
            missing["uid"] = one_line(error)
    elif os.geteuid() == 0:
        missing["uid"] = "left out"
    else:
        layers["uid"] = f"{os.geteuid()} (the caller's), no capabilities"
    if "uid" not in missing:
        kernel.drop_capabilities()
    kernel.prctl(PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(PR_SET_DUMPABLE, 0)
    if "landlock" in told["without"]:
        missing["landlock"] = "left out"
    else:
        try:
            layers["landlock"] = kernel.landlock()
        except OSError as error:
            missing["landlock"] = one_line(error)
    kernel.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which would clear it


def freeze() -> None:
    """Moves all that was imported out of the collector's sight, so that children do not copy its pages."""
    import gc

    gc.collect()
    gc.freeze()


class Limits:
    """What each child gives up before it reads its job."""

    def __init__(self, kernel: Kernel, told: dict[str, Any]) -> None:
        import resource  # there is none on Windows, where this module can still be imported

        self.kernel, self.without, self.setrlimit = kernel, told["without"], resource.setrlimit
        memory = address_space() + told["memory"] * (1 << 20)
        self.fixed = [
            (getattr(resource, name), value)
            for name, value in (
                ("RLIMIT_AS", memory),
                ("RLIMIT_CORE", 0),
                ("RLIMIT_FSIZE", 0),
                ("RLIMIT_NOFILE", 0),
                ("RLIMIT_NPROC", 0),
                ("RLIMIT_MEMLOCK", 0),
                ("RLIMIT_MSGQUEUE", 0),
            )
        ]
        self.cpu = resource.RLIMIT_CPU

    def enter(self, timeout: float) -> None:
        self.kernel.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if "rlimits" not in self.without:
            for kind, value in self.fixed:
                self.setrlimit(kind, (value, value))
            seconds = math.ceil(timeout) + 1
            self.setrlimit(self.cpu, (seconds, seconds))
        if "seccomp" not in self.without:
            self.kernel.filter()

    def prove(self, layers: dict[str, str], missing: dict[str, str]) -> None:
        """Tries both layers in a child and writes down which of them this kernel has."""
        for layer, words in (
            ("rlimits", "memory, CPU, no files, no processes, no core"),
            ("seccomp", f"allowlist of {len(SYSCALLS) - len(ABSENT)} calls"),
        ):
            if layer in self.without:
                missing[layer] = "left out"
                continue
            pid = os.fork()
            if pid == 0:
                code = 255
                try:
                    self.without = [name for name in ("rlimits", "seccomp") if name != layer]
                    self.enter(5.0)
                    code = 0
                except OSError as error:
                    code = error.errno or 255
                except ValueError:
                    code = errno.EINVAL
                finally:
                    os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if code:
                missing[layer] = os.strerror(code) if code > 0 else f"signal {-code}"
            else:
                layers[layer] = words
        self.without = sorted({*self.without, *(missing.keys() & {"rlimits", "seccomp"})})


def one_job(limits: Limits, fds: Sequence[int], timeout: float) -> dict[str, Any]:
    """Forks a judge and a candidate, waits for both, and kills what is left."""
    started, leave = time.monotonic(), os._exit  # a candidate may have put another os._exit in its place
    judge_end, candidate_end = fds
    ours, theirs = socket.socketpair()
    rpc, far = ours.detach(), theirs.detach()
    children = {}
    for name, keep, main in (
        ("candidate", (candidate_end, far), candidate_main),
        ("judge", (judge_end, rpc), judge_main),
    ):
        pid = limits.kernel.checked(limits.kernel.fork(), "fork")
        if pid == 0:
            code = 1
            try:
                close_all_but({0, 1, 2, *keep}, top=256)  # the worker has few; older kernels close them one by one
                limits.enter(timeout)
                main(*keep)
                code = 0
            finally:
                leave(code)
        children[pid] = name
    for fd in (judge_end, candidate_end, rpc, far):
        os.close(fd)
    late = supervise(children, started, timeout)
    return {"late": late, "seconds": time.monotonic() - started}


def supervise(children: dict[int, str], started: float, timeout: float) -> str:
    """Waits until the judge has ended, or the time is up: then says whose, and why. All children are gone afterwards.

    Each of the two has the limit for its own work, so that a candidate cannot use up the judge's before the
    first call, and have the test blamed.
    """
    late = ""
    while "judge" in children.values() and not late:
        used = {name: cpu_seconds(pid) or 0.0 for pid, name in children.items()}
        worked = max(used, key=used.__getitem__)
        left = min(timeout - used[worked], WALL * timeout - (time.monotonic() - started))
        if left <= 0:
            late = (
                f"{worked}: more than {timeout:g} s of work"
                if used[worked] >= timeout
                else f"judge: still waiting after {WALL * timeout:g} s"
            )
            break
        signal.sigtimedwait({signal.SIGCHLD}, left)
        for pid in list(children):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del children[pid]
    for pid in reversed(children):  # the judge first: it would report the candidate's end as its own doing
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)
    return late


def cpu_seconds(pid: int) -> float | None:
    """Seconds that a process has worked so far; None where it has ended or the kernel does not say."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # CPUCLOCK_SCHED of that process, as clock_getcpuclockid(3) makes it
    except OSError:
        return None


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        return worker_main(json.loads(sys.argv[2]))
    try:
        with Sandbox(workers=1) as sandbox:
            for layer, words in sandbox.active_layers().items():
                print(f"{layer:<12}{words}")
            print("self-test   passed")
    except SandboxUnavailable as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
