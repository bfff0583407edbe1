"""A fair before and after: the same held-out prompts for both models, and an interval on the difference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from rewards import correctness_reward, format_reward, same_answer

from lab.policy import Sampled


def grade(rows: Sequence[dict[str, Any]], answers: Sequence[Sampled]) -> pd.DataFrame:
    """One line a row: prompt, gold, the model's text, and whether format and answer are right (0 or 1)."""
    texts = [sampled.text for sampled in answers]
    prompts = [row["prompt"] for row in rows]
    gold = [row["answer"] for row in rows]
    return pd.DataFrame(
        {
            "question": [question_of(prompt) for prompt in prompts],
            "gold": gold,
            "completion": texts,
            "tokens": [sampled.tokens for sampled in answers],
            "format": format_reward(prompts=prompts, completions=texts),
            "correct": correctness_reward(prompts=prompts, completions=texts, answer=gold),
            "right_anyhow": [float(right_anyhow(text, answer)) for text, answer in zip(texts, gold)],
        }
    )


def question_of(prompt: Sequence[dict[str, str]]) -> str:
    """What the user said last; an assistant's turn that was begun after it is no question."""
    return [message["content"] for message in prompt if message["role"] != "assistant"][-1]


NUMBER_IN_TEXT = re.compile(r"-?[$€£]?\d[\d,]*(?:\.\d+)?")


def right_anyhow(text: str, gold: Any) -> bool:
    """Whether the last number of the text, or all of it, is the gold answer, in whatever style it is given.

    Too easily cheated to be a reward. It tells a policy that cannot solve the task from one that
    only does not answer in the asked-for format.

    >>> right_anyhow("3 * 4 = 12, so the answer is $12.", "12"), right_anyhow("<answer>13</answer>", "12")
    (True, False)
    """
    numbers = NUMBER_IN_TEXT.findall(text)
    return same_answer(numbers[-1].rstrip(",") if numbers else text, str(gold))


def paired_difference(before: Sequence[float], after: Sequence[float], seed: int = 0, draws: int = 10_000) -> dict[str, float]:
    """Mean of `after - before` over the same examples, with a 95 % interval by paired bootstrap.

    The examples are drawn with replacement, each with both of its scores (Efron and Tibshirani 1993,
    percentile interval).

    >>> paired_difference([0, 0, 0, 0], [1, 1, 1, 1])
    {'estimate': 1.0, 'low': 1.0, 'high': 1.0}
    """
    difference = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    if len(difference) == 0 or np.isnan(difference).any():
        raise ValueError("paired_difference needs at least one pair, and a score for both sides of each")
    return bootstrap_mean(difference, seed, draws)


def bootstrap_mean(values: Sequence[float], seed: int = 0, draws: int = 10_000) -> dict[str, float]:
    """Mean of independent values with its 95 % percentile interval over draws with replacement."""
    values = np.asarray(values, dtype=float)
    counts = np.random.default_rng(seed).multinomial(len(values), np.full(len(values), 1 / len(values)), size=draws)
    low, high = np.quantile(counts @ values / len(values), [0.025, 0.975])
    return {"estimate": float(values.mean()), "low": float(low), "high": float(high)}


def compare(base: pd.DataFrame, merged: pd.DataFrame, seconds: dict[str, float], seed: int = 0) -> dict[str, Any]:
    """The content of `evaluation.json`."""
    if list(base["question"]) != list(merged["question"]):
        raise ValueError("both models must answer the same questions in the same order")
    metrics = ("format", "correct")
    return {
        "n": len(base),
        "base": {name: float(base[name].mean()) for name in metrics},
        "merged": {name: float(merged[name].mean()) for name in metrics},
        "difference": {name: paired_difference(base[name], merged[name], seed) for name in metrics},
        "mean_tokens": {"base": float(base["tokens"].mean()), "merged": float(merged["tokens"].mean())},
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }


def breakdown(graded: dict[str, dict[str, pd.DataFrame]]) -> dict[str, dict[str, float]]:
    """Mean of each measure by kind of decoding and model: {"greedy, base": {"format": 0.1, …}, …}."""
    measures = ["format", "correct", "right_anyhow", "tokens"]
    return {
        f"{kind}, {name}": {measure: float(table[measure].mean()) for measure in measures}
        for kind, tables in graded.items()
        for name, table in tables.items()
    }


def summary(evaluation: dict[str, Any]) -> pd.DataFrame:
    """The table that a person reads: percent of both models and the difference with its interval."""
    lines = {}
    for name, label in (("format", "strict format"), ("correct", "correct")):
        found = evaluation["difference"][name]
        lines[label] = {
            "base": f"{100 * evaluation['base'][name]:.1f} %",
            "merged": f"{100 * evaluation['merged'][name]:.1f} %",
            "difference": f"{100 * found['estimate']:+.1f} points",
            "95 % interval": f"{100 * found['low']:+.1f} to {100 * found['high']:+.1f}",
            "n": evaluation["n"],
        }
    return pd.DataFrame(lines).T


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that at least one of k samples is right, from c right of n (Chen et al. 2021, eq. 1).

    >>> pass_at_k(8, 2, 1), pass_at_k(8, 0, 8), pass_at_k(8, 1, 8)
    (0.25, 0.0, 1.0)
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}")
    if n - c < k:
        return 1.0
    return 1.0 - float(np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def score_groups(functions: Sequence[Any], rows: Sequence[dict[str, Any]], groups: Sequence[Sequence[Sampled]]) -> pd.DataFrame:
    """Scores of sampled groups, called as TRL calls them: one line a completion, one column a reward.

    Columns: group, sample, completion, tokens, then each function's name.
    """
    pairs = [(row, sampled) for row, group in zip(rows, groups, strict=True) for sampled in group]
    called = trl_call(pairs)
    texts = [sampled.text for _, sampled in pairs]
    table = pd.DataFrame(
        {
            "group": [g for g, group in enumerate(groups) for _ in group],
            "sample": [s for group in groups for s in range(len(group))],
            "completion": texts,
            "tokens": [sampled.tokens for _, sampled in pairs],
        }
    )
    for function in functions:
        table[function.__name__] = list(function(**called))
    return table


def trl_call(pairs: Sequence[tuple[dict[str, Any], Sampled]]) -> dict[str, Any]:
    """The arguments with which TRL calls a reward function, at step 0: one value a completion.

    A chat prompt gets its completion as messages. Only the lengths of `completion_ids` are true:
    the ids themselves are not kept when sampling.
    """
    rows = [row for row, _ in pairs]
    return {
        **{name: [row[name] for row in rows] for name in rows[0] if name != "prompt"},
        "prompts": [row["prompt"] for row in rows],
        "completions": [
            sampled.text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": sampled.text}]
            for row, sampled in pairs
        ],
        "completion_ids": [list(range(sampled.tokens)) for _, sampled in pairs],
        "trainer_state": SimpleNamespace(global_step=0, max_steps=1, epoch=0.0),
        "log_extra": lambda *_: None,
        "log_metric": lambda *_: None,
    }


def total_reward(table: pd.DataFrame, weights: dict[str, float]) -> pd.Series:
    """The weighted sum that TRL forms; a None counts as 0 in it, as there."""
    missing = [name for name in weights if name not in table]
    if missing:
        raise ValueError(f"WEIGHTS names {missing[0]!r}, but no reward of that name was scored: correct the name, or remove it.")
    return sum((table[name].astype(float).fillna(0.0) * weight for name, weight in weights.items()), 0.0 * table["group"])
