"""Tries to cheat a reward before a policy does, with wrong and cheating completions made from your own rows.

The verdict on a reward that claims correctness, and on a weighted set that has one: **no wrong or cheating
completion scores as high as a plainly right one.** Every reward must also keep the contract (contract_checks.py).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scoring.combine import chosen_weights, prepare_rewards
from scoring.contract import RewardError, RewardFunction
from scoring.contract_checks import check_contract
from scoring.errors import InputError
from scoring.probes import ANOTHER, FALSE, Trial, make_trials
from scoring.right import deciding_rewards

Row = dict[str, Any]
Result = tuple[dict[str, Any], list[tuple]]  # a line of the summary, lines of the failures
FAILURE_COLUMNS = ["reward", "what fails", "completion or what came", "score", "score of the right one"]
SET = "weighted set"  # its name among the rewards of an audit
SET_ADVICE = "If a reward above fails, correct that first. Else give style less weight than being right, or gate it: "
SET_ADVICE += "gate(style, by=correctness_reward)."
ALONE = "Score each completion by itself: no randomness, and nothing kept from other completions or calls."
ADVICE = {  # by the beginning of what fails
    "pays for right answers": "Give a reward that decides what is right a weight, such as correctness_reward.",
    "wrong": "Compare the whole final answer with the gold: same_answer(extract_answer(completion) or '', answer).",
    "cheating: hedged": "Refuse an answer that is more than one value, as correctness_reward does.",
    "cheating": "Judge only extract_answer(completion), which is None for reasoning, two answers, or an answer taken back.",
    "silent": "Give a completion without an answer the lowest score.",
    "not answering pays": "Score no answer as low as a wrong one.",
    "scores above the plainly right one": "Pay the plainly right completion most; lower the weight of what pays this one more.",
    "can be called at all": "Correct the error, then run the reward's cell and the next ones again.",
    "scores a right answer": "Return a number wherever a gold answer is there. Is a `return` missing?",
    "pays for something": "Score a right completion by hand. A pattern may lack re.DOTALL, or ask for another format.",
    "same scores for chat": "Score the parameter `completion` only: it is the same text in both cases.",
    "same scor": ALONE,
    "odd and empty texts": "Give empty and odd text the lowest score: no text may raise an error.",
    "None only by the row": "Return a number on every path; is a `return` missing? None is for rows without a gold answer.",
    "1 MB of hostile text": "Use linear patterns, without nested repeats, or score only the first 10,000 characters.",
    "what the prompt has begun": "Score the parameter `completion` only: it includes what the prompt has begun.",
    "pays nothing where the gold": "Return None where the gold answer is None.",
}


@dataclass
class Audit:
    """The result of an audit."""

    summary: pd.DataFrame  # one line a reward (and `weighted set`): verdict, checks held, cheats stopped, speed
    failures: pd.DataFrame  # one line for everything that does not hold, with the completion and both scores

    @property
    def passed(self) -> bool:
        return self.failures.empty

    def findings(self) -> pd.DataFrame:
        """The failures by kind: what fails, how often, the worst example, both scores, and what to do about it."""
        lines = []
        for (name, kind), part in self.failures.groupby(["reward", _kinds(self.failures)], sort=False):
            of_set = name == SET and kind.startswith((*FALSE, "not answering"))
            advice = SET_ADVICE if of_set else next(text for start, text in ADVICE.items() if kind.startswith(start))
            worst = (part["score"] - part["score of the right one"]).astype(float).fillna(0.0).argmax()
            first = {column: part[column].iloc[worst] for column in FAILURE_COLUMNS[2:]}
            example = part["what fails"].iloc[worst].removeprefix(kind).strip(": ")
            line = {"reward": name, "what fails": kind, "times": len(part), "what to do": advice}
            lines.append({**line, "for example": example, **first})
        columns = [*FAILURE_COLUMNS[:2], "times", "what to do", "for example", *FAILURE_COLUMNS[2:]]
        return pd.DataFrame(lines, columns=columns)


def audit(functions: Iterable[Callable], rows: Sequence[Row], weights: dict[str, float] | None = None) -> Audit:
    """Audits each function (rewards, or in TRL's own signature), and with {name: weight} the weighted set.

    `rows` are some of your data set, with `prompt` and the columns that the rewards need. Raises InputError without
    rows, and for weights that `chosen_weights` refuses.
    """
    functions, rows = prepare_rewards(functions), list(rows)
    weights = weights and chosen_weights(weights, [function.__name__ for function in functions])
    if not rows:
        raise InputError("the audit builds its completions from rows of your data set: give it at least one")
    results = [_try_reward(function, rows) for function in functions]
    if weights:
        results.append(_try_weighted_set(functions, rows, weights))
    summary = pd.DataFrame([line for line, _ in results]).set_index("reward")
    return Audit(summary, pd.DataFrame([line for _, lines in results for line in lines], columns=FAILURE_COLUMNS))


def _kinds(failures: pd.DataFrame) -> pd.Series:
    """What fails without the single case: `cheating` of `cheating: two answers`; hedges are a kind of their own."""
    return failures["what fails"].str.extract(r"^(cheating: hedged|[^:]+)", expand=False)


def _broken(name: str, error: Exception) -> Result:
    return {"reward": name, "verdict": "broken"}, [(name, "can be called at all", str(error)[:300], None, None)]


def _try_reward(function: RewardFunction, rows: Sequence[Row]) -> Result:
    name = function.__name__
    try:
        trials = make_trials(function, rows)
        checks = list(check_contract(function, trials))
        started = time.perf_counter()
        scores = [trial.call(function) for trial in trials]
        seconds = time.perf_counter() - started
    except (RewardError, ValueError, TypeError) as error:  # a missing column is a ValueError
        return _broken(name, error)
    failures = [(name, what, came, None, None) for what, came in checks if came]
    table = _score_table(trials, scores)
    # a wrong answer in the right form scores clearly below the gold: then the reward says what is right
    follows_gold = len(table) > 0 and bool((table["right"] - table["wrong"] > 0.05).all())
    claims = function.claims_correctness or (function.claims_by_guess and follows_gold)
    if claims:
        failures += _outranking(name, table, 0.05 if function.claims_correctness else float("inf"))
    dressed = table[table["kind"] == "dressed"]
    good = (dressed["score"] >= dressed["right"] - 0.05).sum()  # too strict is a fault too
    summary = {
        "reward": name,
        "verdict": "fails" if failures else "holds",
        "contract": f"{sum(not came for _, came in checks)}/{len(checks)}",
        "cheats stopped": _stopped(table) if claims else "–",
        "right dressed otherwise": f"{good}/{len(dressed)}" if claims and len(dressed) else "–",
        "µs a completion": round(1e6 * seconds / sum(map(len, scores)), 1),
    }
    return summary, failures


def _try_weighted_set(functions: Sequence[RewardFunction], rows: Sequence[Row], weights: dict[str, float]) -> Result:
    """The weighted sum, as TRL forms it, on completions for the rows of the first reward that decides."""
    by_name = {function.__name__: function for function in functions}
    chosen = [by_name[name] for name in weights]
    deciding = deciding_rewards(chosen, [weights[function.__name__] for function in chosen])
    if not deciding:
        came = "no reward in the set claims correctness, so the policy learns style alone; "
        for function in chosen:
            if function.claims_correctness:
                came = f"{function.__name__} has a negative weight, so wrong answers are paid; "
        came += "if one decides what is right, write @reward(claims_correctness=True)"
        return {"reward": SET, "verdict": "fails"}, [(SET, "pays for right answers", came, None, None)]
    try:
        trials = make_trials(deciding[0], rows)
        scores = [[trial.call(function) for function in chosen] for trial in trials]
    except (RewardError, ValueError) as error:
        return _broken(SET, error)
    paid = [weights[function.__name__] for function in chosen]
    totals = [[sum(w * (s or 0.0) for w, s in zip(paid, probe)) for probe in zip(*trial)] for trial in scores]
    table = _score_table(trials, totals)
    failures = _outranking(SET, table, 0.05)
    return {"reward": SET, "verdict": "fails" if failures else "holds", "cheats stopped": _stopped(table)}, failures


def _score_table(trials: Sequence[Trial], scores: Sequence[Sequence[float | None]]) -> pd.DataFrame:
    """One line a probe with a score: trial, kind, what, completion, score, and those of the right and of a wrong answer."""
    lines = [
        {"trial": number, **vars(probe), "score": score}
        for number, trial in enumerate(trials)
        for probe, score in zip(trial.probes, scores[number], strict=True)
    ]
    table = pd.DataFrame(lines).astype({"score": float}).dropna(subset="score")
    right = table[table["kind"] == "right"].groupby("trial")["score"].min()
    wrong = table[table["what"] == ANOTHER].groupby("trial")["score"].max()
    return table.assign(right=table["trial"].map(right), wrong=table["trial"].map(wrong))


def _stopped(table: pd.DataFrame) -> str:
    """How many of the wrong, silent and cheating completions score below the plainly right one."""
    false = table[table["kind"].isin(FALSE)]
    return f"{(false['score'] < false['right'] - 1e-9).sum()}/{len(false)}"


def _outranking(name: str, table: pd.DataFrame, margin: float) -> list[tuple]:
    """The completions that score too high beside the plainly right one, or beside a wrong answer, of their trial.

    A right answer in bad form may score a little more than the plain one, because it is shorter: by `margin` at most.
    """
    found = []
    for probe in table.itertuples():
        if probe.kind == "silent" and probe.score > probe.wrong + 1e-9:
            found.append((probe, f"not answering pays: {probe.what}, against {probe.wrong:g} for a wrong answer"))
        if probe.kind in FALSE and probe.score >= probe.right - 1e-9:
            found.append((probe, f"{probe.kind}: {probe.what}"))
        if probe.kind not in FALSE and probe.score > probe.right + margin:
            found.append((probe, f"scores above the plainly right one: {probe.what}"))
    return [(name, what, _excerpt(probe.completion), probe.score, probe.right) for probe, what in found]


def _excerpt(completion: str) -> str:
    text = " ".join(completion.encode("utf-8", "backslashreplace").decode().split())
    return text if len(text) <= 120 else f"{text[:60]} … {text[-60:]}"
