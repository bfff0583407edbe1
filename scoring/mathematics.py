"""Mathematical equality of two answers: math-verify, in a process of its own with a time limit."""

import atexit
import contextlib
import functools
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scoring.answers import with_plain_powers
from scoring.numbers import DRESSING, read_number

MATH_WORDS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp sqrt frac dfrac tfrac pi infty infinity cdot "
    "times div left right text mathrm mathbf begin end pmatrix bmatrix matrix cup cap in mathbb le ge leq geq lt gt "
    "ne neq pm alpha beta gamma delta theta lambda mu sigma phi omega circ degree binom sum prod int lim to emptyset".split()
)
# one spelling of each relation, whichever way it points, so that a gold and an answer can be compared sign by sign
SIGNS = {"[lg]eq?": "≤", "[lg]t": "<", "neq?": "≠", "approx|sim": "≈", "cup": "∪", "in": "∈", "pm": "±", "vee|lor": "∨"}
SPELLINGS = [(re.compile(rf"\\(?:{names})(?![a-zA-Z])"), f" {sign} ") for names, sign in SIGNS.items()]
JUDGEMENTS = re.compile(r"[=<≤≠≈~|;:?,∈∪±∨]")
UNDONE = re.compile(r"[\d\s.,(){}+\-−*×·/÷^]+", re.ASCII)
OPERATORS = re.compile(r"\\(?:cdot|times|div|left|right|[dt]?frac|[,;! ])")
STRUCTURE = re.compile(r"\\[a-zA-Z]+|\^|!|(?<![a-zA-Z])(?:sin|cos|tan|log|ln|exp|sqrt|pi)(?![a-zA-Z])")
SUBSCRIPT = re.compile(r"_\s?\{?\s?(\w+)")
LETTER = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])")
WRAPPERS = (("\\boxed{", "}"), ("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$"))
LONGEST_EXPRESSION = 200  # characters
DEEPEST = 12  # brackets within brackets; sympy's time grows fast with them


@functools.lru_cache(maxsize=10_000)
def symbolically_equal(gold: str, given: str, time_limit: float = 1.0) -> bool:
    """math-verify's exact verdict; False where it takes more than `time_limit` seconds of work.

    Running out of time is not neutral here: a policy could make it happen at will.
    """
    return bool(_MATH_WORKER.ask(gold, given, time_limit))


def is_mathematics(gold: str) -> bool:
    """Whether a gold that is no plain number is to be read as mathematics: a text of words is not."""
    words = re.findall(r"[^\W\d_]{2,}", gold)
    return all(word in MATH_WORDS or len(word) == 2 for word in words) and not re.fullmatch(r"\W*[A-Za-z]\W*", gold)


def is_expression(given: str, gold: str) -> bool:
    """Whether `given` is one mathematical expression: no words, no choices, relations or bounds that the gold has not.

    >>> is_expression("(x-1)(x+1)", "x^2-1"), is_expression("12 or 13", "12"), is_expression("3 * 4", "12")
    (True, False, False)
    """
    numeric = read_number(gold) is not None
    given = re.sub(r"^\s*[a-zA-Z]\s?=(?!=)", "", given) if numeric else given
    if not given.isprintable() or any(mark in given for mark in ("$", "\\boxed", "\\(", "\\[")):
        return False
    if max(bracket_depths(given, "([{", ")]}"), default=0) > DEEPEST:
        return False
    if any(word not in MATH_WORDS and word not in gold for word in set(re.findall(r"[^\W\d_]{2,}", given))):
        return False
    if numeric and (not STRUCTURE.search(given) or UNDONE.fullmatch(OPERATORS.sub("*", given))):
        return False  # the work is left to the reader, or it is a number with something glued to it
    if SUBSCRIPT.findall(given) != SUBSCRIPT.findall(gold):
        return False  # the base of a number, which math-verify drops
    letters, known = (set(LETTER.findall(text)) for text in (given, gold))
    if any(letter.swapcase() in known and letter not in known for letter in letters):
        return False  # R is not r, which math-verify takes for the same
    signs = relations(given)
    same_bracket = given.lstrip("\\ ")[:1] == gold.lstrip("\\ ")[:1]  # (1,2) is a point, {1,2} a set
    return signs == relations(gold) and ("," not in signs or same_bracket)


def relations(text: str) -> list[str]:
    """The relations, choices and separators in it, sorted; a thousands separator is none."""
    for pattern, sign in SPELLINGS:
        text = pattern.sub(sign, text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text.replace(">", "<").replace("≥", "≤"))
    return sorted(JUDGEMENTS.findall(text))


def unwrap_formula(text: str) -> str:
    """The text without bold, final stop, `$…$`, `\\(…\\)` and `\\boxed{…}` around all of it, superscripts as powers."""
    text = with_plain_powers(text).strip(DRESSING).removesuffix(".").strip(DRESSING)
    for _ in range(4):
        for opening, closing in WRAPPERS:
            inner = text[len(opening) : -len(closing)]
            if inner and text.startswith(opening) and text.endswith(closing):
                braces = bracket_depths(inner, "{", "}")
                if not braces or (min(braces) >= 0 and braces[-1] == 0):  # \boxed{1} + {2} is not in one box
                    text = inner.strip()
    return text


def bracket_depths(text: str, opening: str, closing: str) -> list[int]:
    """After each character, how many brackets are open."""
    return list(itertools.accumulate((char in opening) - (char in closing) for char in text))


class MathWorker:
    """math-verify in a process of its own (math_worker.py), so that a time limit holds in any thread.

    math-verify's own limits are signals, which work only in the main thread and do not interrupt a long multiplication.
    Here the signal stops the other process. Where that does not help, it is killed.
    """

    START_LIMIT = 60.0  # seconds to import sympy on a busy machine

    def __init__(self) -> None:
        self.forget()
        atexit.register(self.stop)

    def ask(self, gold: str, given: str, time_limit: float) -> bool | None:
        """The verdict; None where the time limit is passed or the process died of the expression."""
        with self.lock:
            if self.process is None or self.process.poll() is not None:
                self._start()
            reply = ""
            try:
                print(json.dumps([gold, given, time_limit]), file=self.process.stdin, flush=True)
                reply = self._line(3 * time_limit + 1.0)  # it stops itself, unless it is deep in C
            except (TimeoutError, OSError):
                pass
            finally:
                if not reply:
                    self.stop()
            return json.loads(reply) if reply else None  # null where it stopped itself

    def _start(self) -> None:
        self.stop()
        # -P keeps this folder out of its path, where numbers.py would stand for the standard library's
        command = [sys.executable, "-P", str(Path(__file__).with_name("math_worker.py"))]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.process = subprocess.Popen(command, encoding="utf-8", **pipes)
        with contextlib.suppress(TimeoutError):
            if self._line(self.START_LIMIT):
                return
        self.stop()
        raise ImportError("math_reward needs math-verify, which does not start: pip install math-verify==0.9.0")

    def _line(self, patience: float) -> str:
        """The next line of the process, "" where it has ended. Raises TimeoutError after `patience` seconds."""
        return self.reader.submit(self.process.stdout.readline).result(patience)

    def forget(self) -> None:
        """For a forked child: the process, the lock and the thread are its parent's."""
        self.lock, self.process, self.reader = threading.Lock(), None, ThreadPoolExecutor(1)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = None


_MATH_WORKER = MathWorker()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_MATH_WORKER.forget)
