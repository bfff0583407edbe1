"""Tries to cheat a reward before a policy does: its contract, its speed, and a corpus of wrong and cheating completions.

The corpus is built from your own rows. The verdict on a reward that claims correctness, and on a
weighted set with one in it: **no wrong or cheating completion scores as high as a plainly right one.**
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scoring import formats
from scoring.adopt import AdoptedFunction, prepare_rewards
from scoring.answers import gold_text, same_answer
from scoring.contract import (
    MissingColumnError,
    RewardError,
    RewardFunction,
    assistant_prefix,
    count_tokens,
    message_text,
)
from scoring.numbers import extract_number
from scoring.probes import ANOTHER, FALSE, WORKING, Probe, changed, corpus, plain_number

Row = dict[str, Any]


@dataclass
class Trial:
    """One row with its probes; all completions of a trial share its prompt."""

    row: Row
    probes: list[Probe]

    def call(self, function: RewardFunction, completions: Sequence[Any] | None = None) -> list[float | None]:
        """Scores as training would get them: chat messages where the prompt is a chat."""
        completions = [probe.completion for probe in self.probes] if completions is None else completions
        begun = assistant_prefix(self.row["prompt"])  # a completion goes on from there
        completions = [text.removeprefix(begun) for text in completions]
        columns = {name: [value] * len(completions) for name, value in self.row.items() if name != "prompt"}
        columns.setdefault("completion_ids", [range(count_tokens(text, None)) for text in completions])
        if not isinstance(self.row["prompt"], str):
            completions = as_chat(completions)
        with contextlib.redirect_stdout(io.StringIO()):
            return function(prompts=[self.row["prompt"]] * len(completions), completions=completions, **columns)


GOLD_COLUMNS = ("answer", "solution", "gold", "ground_truth", "target", "label", "reference")
FAR_OUT = "100000000000000000001"  # where floating-point numbers no longer know one more from one less


def trials(function: RewardFunction, rows: Sequence[Row], most: int = 4) -> list[Trial]:
    """The rows that this reward can be tried on: yours where they have its columns, else its own example."""
    wanted = set(function.columns) | function.example.keys() - {"right"}
    usable = [dict(row) for row in rows if wanted <= row.keys() and (gold_of(row) or not function.claims_correctness)]
    if not usable and function.example:
        usable = [{"answer": function.example.get("right"), **function.example}]
    if not usable:
        function.check_columns({name for row in rows for name in row})
        raise MissingColumnError(
            f"{function.__name__}: no row has a gold answer ({', '.join(GOLD_COLUMNS)}) to build completions from"
        )
    usable = usable[:most]
    if extract_number(str(usable[0].get("answer"))) is not None and not function.example:
        gold = usable[0]["answer"]
        usable.append({name: FAR_OUT if value == gold else value for name, value in usable[0].items()})
    golds = [gold_of(row) or "12" for row in usable]  # a reward of style alone needs no gold
    return [Trial({"prompt": "?", **row}, probes_for(gold, golds, row)) for gold, row in zip(golds, usable)]


def gold_of(row: Row) -> str | None:
    """The answer that deserves the best score: `right`, the letter of a choice, or the first gold column."""
    if "right" in row:
        return str(row["right"])
    index = row.get("answer")
    if isinstance(index, int) and not isinstance(index, bool) and row.get("choices") is not None:
        return chr(ord("A") + index)
    golds = (gold_text(row.get(name)) for name in GOLD_COLUMNS)
    return next(
        (gold for gold in golds if gold and not any(mark in gold for mark in formats.FORMAT.marks if len(mark) > 1)),
        None,
    )


def probes_for(gold: str, golds: Sequence[str], row: Row) -> list[Probe]:
    value = extract_number(gold)
    wrong = changed(gold) if value is None else plain_number(value + 7)
    others = [other for other in golds if not same_answer(other, gold) and other != gold]
    return corpus(gold, wrong, others, question_of(row.get("prompt") or "?"))


def question_of(prompt: Any) -> str:
    """The text of a prompt: its own, or that of its last user message."""
    if isinstance(prompt, str):
        return prompt
    asked = [message for message in prompt if message.get("role") == "user"]
    return message_text(asked[-1].get("content")) if asked else "?"


HOSTILE = (
    "<think>",
    "</think><answer>",
    "<answer>1</answer>",
    "1,111",
    "9",
    " ",
    "x",
    "a b. ",
    "{",
    "((",
    "\\boxed{",
    "#### ",
    "\u0301\u0316",
    "\u200b",
    "字",
)
MOST_SECONDS = 1.0  # for a completion of 1 MB
STEEPEST = 20.0  # times the time of 100 kB: 10 is linear
ODD_TEXTS = (
    "\x00",
    "\ud800",
    "\u202e12\u202c",
    "𝟏𝟐",
    "🙂" * 50,
    "\r\n",
    "<think>\ud83d</think><answer>\udc00</answer>",
)


def checks(function: RewardFunction, tried: Sequence[Trial]) -> Iterator[tuple[str, str]]:
    """(what was checked, "" where it holds or what came instead) of the contract."""
    trial = tried[0]
    texts = [probe.completion for probe in trial.probes]
    base = trial.call(function)  # raises for what is no list of finite scores in the range: "can be called at all"
    yield "scores a right answer", "None for the gold answer of your rows" if base[0] is None else ""
    yield "pays for something", nothing_paid(function, tried)
    held: dict[str, Callable[[], str]] = {
        "same scores the second time": lambda: difference(base, trial.call(function), texts),
        "same scores in another order": lambda: difference(base, trial.call(function, texts[::-1])[::-1], texts),
        "what the prompt has begun is put back": lambda: prefill_difference(function, trial),
        "odd and empty texts get a score": lambda: trial.call(function, ["", *ODD_TEXTS]) and "",
        "None only by the row, never by the completion": lambda: mixed_none(function, tried),
        "1 MB of hostile text in under a second, in linear time": lambda: slowest(function, trial),
    }
    if isinstance(function, AdoptedFunction):  # need only take what your rows are: chat or text, begun or not
        del held["what the prompt has begun is put back"]
    else:
        held["same scores for chat messages and plain text"] = lambda: difference(
            base, other_form(trial).call(function, texts), texts
        )
    if not function.groupwise:
        held["same score alone as in the batch"] = lambda: difference(
            base, [trial.call(function, [text])[0] for text in texts], texts
        )
    if "answer" in function.columns:
        held["pays nothing where the gold is missing"] = lambda: paid_without_gold(function, trial)
    for what, check in held.items():
        try:
            yield what, check()
        except RewardError as error:
            yield what, str(error).splitlines()[0][:200]


def nothing_paid(function: RewardFunction, tried: Sequence[Trial]) -> str:
    """A reward that gives its lowest score to everything, also to the asked-for format with the right answer."""
    worked = tried[0].probes[0].completion.replace(WORKING, "3 * 4 = 12\n12 + 5 = 17\nSo that is all there is to do.")
    long = Trial(tried[0].row, []).call(function, ["word " * 5_000, worked])
    found = {
        score for scores in (long, *(trial.call(function) for trial in tried)) for score in scores if score is not None
    }
    constant = len(found) == 1 and function.low < function.high and found != {function.high}
    if not constant:
        return ""
    told = f"{found.pop():g} for every completion, also for right ones in the asked-for format"
    if "right" not in tried[0].row:
        told += " (where the right answer is not in `answer`, give your rows a key `right` with it)"
    begun = any(assistant_prefix(trial.row["prompt"]) for trial in tried)
    return told + (": does it know what the prompt has begun? adopt(f, prefill=True) puts it back" if begun else "")


def paid_without_gold(function: RewardFunction, trial: Trial) -> str:
    scores = Trial({**trial.row, "answer": None}, trial.probes).call(function)
    best = max((score for score in scores if score is not None), default=function.low)
    return f"{best:g} where answer is None: return None there" if best > max(function.low, 0.0) else ""


def as_chat(texts: Iterable[Any]) -> list[list[dict[str, str]]]:
    return [[{"role": "assistant", "content": text}] for text in texts]


def other_form(trial: Trial) -> Trial:
    """The same trial with a plain prompt where it was a chat, or a chat where it was plain."""
    prompt = trial.row["prompt"]
    other = chat_of(prompt) if isinstance(prompt, str) else question_of(prompt) + assistant_prefix(prompt)
    return Trial({**trial.row, "prompt": other}, trial.probes)


def chat_of(prompt: Any) -> list[dict[str, Any]]:
    """The prompt as a chat whose last turn is the user's."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt.removesuffix(assistant_prefix(prompt))}]
    return list(prompt[:-1]) if assistant_prefix(prompt) else list(prompt)


def mixed_none(function: RewardFunction, tried: Sequence[Trial]) -> str:
    mixed = any(len({score is None for score in trial.call(function)}) > 1 for trial in tried)
    return "some completions of a group have a score and others None" if mixed else ""


def difference(expected: Sequence, found: Sequence, texts: Sequence[str]) -> str:
    for one, other, text in zip(expected, found, texts, strict=True):
        if one != other and not (one is not None and other is not None and abs(one - other) < 1e-9):
            return f"{one} and {other} for {text[-80:]!r}"
    return ""


def prefill_difference(function: RewardFunction, trial: Trial) -> str:
    whole, opening = formats.FORMAT.write(WORKING, "12"), formats.FORMAT.opening
    if not opening:
        return ""
    chat = chat_of(trial.row["prompt"])
    row = {**trial.row, "completion_ids": range(40)}  # TRL's ids are those of the completion alone
    begun = Trial({**row, "prompt": [*chat, {"role": "assistant", "content": opening}]}, [])
    plain = Trial({**row, "prompt": chat}, [])
    return difference(
        plain.call(function, [whole]), begun.call(function, [whole]), [whole]
    )  # a trial leaves out what is begun


def slowest(function: RewardFunction, trial: Trial) -> str:
    """What took too long on 1 MB of hostile text; sizes grow, so that a quadratic reward does not hang the audit."""
    for unit in HOSTILE:
        for wrap in (
            str,
            lambda text: formats.FORMAT.write(WORKING, text),
            lambda text: formats.FORMAT.write(text, "12"),
        ):
            before = None
            for size in (10_000, 100_000, 1_000_000):
                text = wrap(unit * (size // len(unit)))
                took = processor_seconds(function, trial, text)
                if too_long(took, before):  # a garbage collection falls on one call, and hardly on two
                    took = min(took, processor_seconds(function, trial, text))
                if too_long(took, before):
                    return f"{took:.1f} s for {size // 1000} kB of {unit!r}" + (
                        f", {took / before:.0f} times that of a tenth" if before else ""
                    )
                before = took
    return ""


def processor_seconds(function: RewardFunction, trial: Trial, text: str) -> float:
    started = time.process_time()
    trial.call(function, [text])
    return time.process_time() - started


def too_long(took: float, before: float | None) -> bool:
    """Whether a text takes too long in itself, or too many times as long as one of a tenth of its size."""
    return took > MOST_SECONDS or (before is not None and took > 0.2 and took > STEEPEST * before)


@dataclass
class Audit:
    """What the audit found.

    Attributes:
        summary: one line a reward (and `weighted set`): verdict, checks held, cheats stopped, speed.
        failures: one line for everything that does not hold, with the completion and both scores.
        scores: every probe with its score by every reward.
    """

    summary: pd.DataFrame
    failures: pd.DataFrame
    scores: pd.DataFrame

    @property
    def passed(self) -> bool:
        return self.failures.empty


FAILURE_COLUMNS = ["reward", "what fails", "completion or what came", "score", "score of the right one"]


def audit(functions: Iterable[Callable], rows: Sequence[Row], weights: dict[str, float] | None = None) -> Audit:
    """Audits each function, and the weighted set where weights are given.

    Args:
        functions: rewards, also functions in TRL's own signature.
        rows: some rows of your data set, with `prompt` and the columns that the rewards need.
        weights: {name: weight} of the set that goes to training; names that are not among the functions are an error.
    """
    functions, rows = prepare_rewards(functions), list(rows)
    if not rows:
        raise ValueError("the audit builds its completions from rows of your data set: give it at least one")
    lines, failures, tables = [], [], []
    for function in functions:
        line, failed, table = audit_one(function, rows)
        lines.append(line)
        failures += failed
        tables.append(table)
    if weights:
        line, failed, table = audit_set(functions, rows, weights)
        lines.append(line)
        failures += failed
        tables.append(table)
    summary = pd.DataFrame(lines).set_index("reward")
    return Audit(summary, pd.DataFrame(failures, columns=FAILURE_COLUMNS), pd.concat(tables, ignore_index=True))


def audit_one(function: RewardFunction, rows: Sequence[Row]) -> tuple[Row, list[tuple], pd.DataFrame]:
    name = function.__name__
    try:
        tried = trials(function, rows)
        held = list(checks(function, tried))
        failures = [(name, what, came, None, None) for what, came in held if came]
        table, seconds = scored(function, tried)
    except (RewardError, MissingColumnError, ValueError, TypeError) as error:
        failed = (name, "can be called at all", str(error)[:300], None, None)
        return {"reward": name, "verdict": "broken"}, [failed], pd.DataFrame()
    judged = table.dropna(subset="score")
    claims = function.claims_correctness or (function.claims_by_guess and follows_gold(judged))
    if claims:
        failures += outranked(name, judged, function.claims_correctness)
    cheats = judged[judged["kind"].isin(FALSE)]
    line = {
        "reward": name,
        "verdict": "holds" if not failures else "fails",
        "contract": f"{sum(not came for _, came in held)}/{len(held)}",
        "cheats stopped": f"{stopped(judged)}/{len(cheats)}" if claims else "–",
        "right dressed otherwise": dressed(judged) if claims else "–",
        "µs a completion": round(1e6 * seconds / max(1, len(table)), 1),
    }
    return line, failures, table


def scored(function: RewardFunction, tried: Sequence[Trial]) -> tuple[pd.DataFrame, float]:
    """(one line a probe: reward, trial, kind, what, completion, score; the seconds of scoring)."""
    lines, seconds = [], 0.0
    for number, trial in enumerate(tried):
        started = time.perf_counter()
        scores = trial.call(function)
        seconds += time.perf_counter() - started
        lines += [
            {
                "reward": function.__name__,
                "trial": number,
                "kind": p.kind,
                "what": p.what,
                "completion": p.completion,
                "score": score,
            }
            for p, score in zip(trial.probes, scores)
        ]
    table = pd.DataFrame(lines)
    return table.assign(score=table["score"].astype(float)), seconds


def follows_gold(table: pd.DataFrame) -> bool:
    """Whether a wrong answer in the right form scores clearly below the gold: then the reward says what is right."""
    best = table[table["kind"] == "right"].groupby("trial")["score"].min()
    wrong = table[table["what"] == ANOTHER].groupby("trial")["score"].max()
    return bool(len(best)) and bool((best - wrong > 0.05).all())


def outranked(name: str, table: pd.DataFrame, decides: bool = True) -> list[tuple]:
    """The wrong and cheating completions that score no less than the plainly right one of their trial.

    A right answer in bad form may score a little more (it is shorter), not clearly more where the reward
    `decides` what is right (a gated reward of style does not); and who says nothing must not score
    above who says something wrong.
    """
    found, clearly = [], 0.05 if decides else math.inf
    for _, trial in table.groupby("trial"):
        right = trial.loc[trial["kind"] == "right", "score"].min()
        wrong = trial.loc[trial["what"] == ANOTHER, "score"].max()
        for probe in trial[(trial["kind"] == "silent") & (trial["score"] > wrong + 1e-9)].itertuples():
            found.append(
                (
                    name,
                    f"not answering pays: {probe.what}, against {wrong:g} for a wrong answer",
                    shown(probe.completion),
                    probe.score,
                    right,
                )
            )
        for probe in trial[trial["kind"].isin(FALSE) & (trial["score"] >= right - 1e-9)].itertuples():
            found.append((name, f"{probe.kind}: {probe.what}", shown(probe.completion), probe.score, right))
        for probe in trial[~trial["kind"].isin(FALSE) & (trial["score"] > right + clearly)].itertuples():
            found.append(
                (name, f"scores above the plainly right one: {probe.what}", shown(probe.completion), probe.score, right)
            )
    return found


def stopped(table: pd.DataFrame) -> int:
    """How many wrong, silent and cheating completions score below the plainly right one of their trial."""
    right = table["trial"].map(table[table["kind"] == "right"].groupby("trial")["score"].min())
    return int((table["kind"].isin(FALSE) & (table["score"] < right - 1e-9)).sum())


def dressed(table: pd.DataFrame) -> str:
    """How many right answers in other clothes score like the plain one: too strict is a fault too."""
    best = table[table["kind"] == "right"].groupby("trial")["score"].min()
    clothes = table[table["kind"] == "dressed"]
    if clothes.empty:
        return "–"
    return f"{(clothes['score'] >= clothes['trial'].map(best) - 0.05).sum()}/{len(clothes)}"


def audit_set(
    functions: Sequence[RewardFunction], rows: Sequence[Row], weights: dict[str, float]
) -> tuple[Row, list[tuple], pd.DataFrame]:
    """The weighted sum, as TRL forms it, on completions for your rows."""
    by_name = {function.__name__: function for function in functions}
    unknown = [name for name in weights if name not in by_name]
    if unknown:
        raise ValueError(f"the weights name {unknown[0]!r}; the functions are: {', '.join(by_name)}")
    chosen = [by_name[name] for name, weight in weights.items() if weight]
    leader = next((f for f in chosen if f.claims_correctness and weights[f.__name__] > 0), None)
    name, line = "weighted set", {"reward": "weighted set"}
    if leader is None:
        told = (
            name,
            "pays for right answers",
            "no reward in the set claims correctness, so the policy learns style alone; if one decides what is right, write @reward(claims_correctness=True)",
            None,
            None,
        )
        return line | {"verdict": "fails"}, [told], pd.DataFrame()
    try:
        tried = trials(leader, rows)
        tables = [scored(function, tried)[0] for function in chosen]
    except (RewardError, MissingColumnError, ValueError) as error:
        return (
            line | {"verdict": "broken"},
            [(name, "can be called at all", str(error)[:300], None, None)],
            pd.DataFrame(),
        )
    total = sum(table["score"].fillna(0.0) * weights[function.__name__] for table, function in zip(tables, chosen))
    table = tables[0].assign(reward=name, score=total)
    failures = outranked(name, table)
    cheats = table[table["kind"].isin(FALSE)]
    line |= {"verdict": "fails" if failures else "holds", "cheats stopped": f"{stopped(table)}/{len(cheats)}"}
    return line, failures, table


def shown(completion: str, longest: int = 120) -> str:
    text = re.sub(r"\s+", " ", completion.encode("utf-8", "backslashreplace").decode()).strip()
    return text if len(text) <= longest else f"{text[: longest // 2]} … {text[-longest // 2 :]}"
