"""What every reward must hold, whatever it rewards: tried on your rows, with calls as TRL makes them."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scoring import formats
from scoring.batch import assistant_prefix, question_text
from scoring.combine import AdoptedFunction
from scoring.contract import RewardError, RewardFunction
from scoring.probes import WORKING, Trial

HOSTILE = ["<think>", "</think><answer>", "<answer>1</answer>", "1,111", "9", " ", "x", "a b. ", "{", "((", "\\boxed{"]
HOSTILE += ["#### ", "\u0301\u0316", "\u200b", "字"]
ODD_TEXTS = ["", "\x00", "\ud800", "\u202e12\u202c", "𝟏𝟐", "🙂\r\n" * 9, "<think>\ud83d</think><answer>\udc00</answer>"]
MOST_SECONDS = 1.0  # for a completion of 1 MB
STEEPEST = 20.0  # times the time of 100 kB: 10 is linear


def check_contract(function: RewardFunction, trials: Sequence[Trial]) -> Iterator[tuple[str, str]]:
    """Yields what is checked, with "" where it holds, and else with what came instead.

    Raises RewardError for a reward that cannot be called at all, or that gives no finite scores in its range.
    """
    trial = trials[0]
    texts = [probe.completion for probe in trial.probes]
    base = trial.call(function)
    yield "scores a right answer", "None for the gold answer of your rows" if base[0] is None else ""
    yield "pays for something", pays_for_nothing(function, trials)

    def mixed() -> bool:
        return any(len({score is None for score in trial.call(function)}) > 1 for trial in trials)

    checks: dict[str, Callable[[], str]] = {
        "same scores the second time": lambda: difference(base, trial.call(function), texts),
        "same scores in another order": lambda: difference(base, trial.call(function, texts[::-1])[::-1], texts),
        "odd and empty texts get a score": lambda: trial.call(function, ODD_TEXTS) and "",
        "None only by the row, never by the completion": lambda: "some have a score, others None" if mixed() else "",
        "1 MB of hostile text in under a second, in linear time": lambda: slow_text(function, trial),
    }
    if not function.groupwise:
        alone = (trial.call(function, [text])[0] for text in texts)
        checks["same score alone as in the batch"] = lambda: difference(base, list(alone), texts)
    if not isinstance(function, AdoptedFunction):  # which need only take what your rows are: chat or text, begun or not

        def compare(one: Any, other: Any, texts: Sequence[str]) -> str:
            ids = [[0] * 40] * len(texts)  # TRL counts the tokens of the completion alone, which the forms change
            trials = [Trial({**trial.row, "prompt": prompt}, []) for prompt in (one, other)]
            return difference(*(trial.call(function, texts, completion_ids=ids) for trial in trials), texts)

        question = question_text(trial.row["prompt"])
        chat = [{"role": "user", "content": question}]
        begun = [*chat, {"role": "assistant", "content": formats.FORMAT.opening}]
        checks["same scores for chat messages and plain text"] = lambda: compare(question, chat, texts)
        checks["what the prompt has begun is put back"] = lambda: compare(chat, begun, texts[:1])
    if "answer" in function.columns:
        checks["pays nothing where the gold is missing"] = lambda: paid_without_gold(function, trial)
    for what, check in checks.items():
        try:
            yield what, check()
        except RewardError as error:
            yield what, str(error).splitlines()[0][:200]


def pays_for_nothing(function: RewardFunction, trials: Sequence[Trial]) -> str:
    """A reward that gives its lowest score to everything, also to the right answer in the asked-for format."""
    trial = trials[0]
    worked = trial.probes[0].completion.replace(WORKING, "3 * 4 = 12\n12 + 5 = 17\nSo that is all there is to do.")
    scores = trial.call(function, ["word " * 5_000, worked])
    different = {*scores, *(score for one in trials for score in one.call(function))} - {None}
    if len(different) != 1 or function.low >= function.high or different == {function.high}:
        return ""
    found = f"{different.pop():g} for every completion, also for right ones in the asked-for format"
    if "right" not in trial.row:
        found += " (if `answer` does not hold the right answer, give your rows a key `right` that does)"
    if any(assistant_prefix(one.row["prompt"]) for one in trials):
        found += ". If it has to see what the prompt has begun, adopt(f, prefill=True) puts it back"
    return found


def paid_without_gold(function: RewardFunction, trial: Trial) -> str:
    scores = Trial({**trial.row, "answer": None}, trial.probes).call(function)
    best = max((score for score in scores if score is not None), default=function.low)
    return f"{best:g} where answer is None: return None there" if best > max(function.low, 0.0) else ""


def difference(expected: Sequence, found: Sequence, texts: Sequence[str]) -> str:
    for one, other, text in zip(expected, found, texts, strict=True):
        if one != other and (one is None or other is None or abs(one - other) >= 1e-9):
            return f"{one} and {other} for {text[-80:]!r}"
    return ""


def slow_text(function: RewardFunction, trial: Trial) -> str:
    """The first hostile text that takes too long; sizes grow, so that a quadratic reward does not hang the audit."""

    def seconds(text: str) -> float:
        started = time.process_time()
        trial.call(function, [text])
        return time.process_time() - started

    write = formats.FORMAT.write
    for unit in HOSTILE:
        for wrap in (str, lambda text: write(WORKING, text), lambda text: write(text, "12")):
            tenth = math.inf
            for size in (10_000, 100_000, 1_000_000):
                text = wrap(unit * (size // len(unit)))
                took, limit = seconds(text), min(MOST_SECONDS, max(0.2, STEEPEST * tenth))
                if took > limit:  # a garbage collection falls on one call, and hardly on two
                    took = min(took, seconds(text))
                if took > limit:
                    steep = f", {took / tenth:.0f} times that of a tenth" if tenth < math.inf else ""
                    return f"{took:.1f} s for {size // 1000} kB of {unit!r}{steep}"
                tenth = took
    return ""
