"""What is right: the rewards called as TRL calls them, and each completion graded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from lab.files import Row
from lab.model.prompts import question_of
from lab.model.sampling import Sampled
from rewards import assistant_prefix, correctness_reward, extract_answer, format_reward, same_answer


def deciding(functions: Sequence[Any], weights: Sequence[float]) -> list[Any]:
    """The rewards that say whether an answer is right: those that claim it and pay for it."""
    return [
        function
        for function, weight in zip(functions, weights, strict=True)
        if function.claims_correctness and weight > 0
    ]


def graded(
    table: pd.DataFrame,
    rows: Sequence[Row],
    functions: Sequence[Any],
    decides: Sequence[Any] = (),
    threshold: float = 0.5,
) -> pd.DataFrame:
    """The answers with what is said of each: format, correct, right_anyhow (0 or 1), and each reward's score.

    Args:
        functions: rewards, called as TRL calls them; a sampled answer's group is all sampled ones to its row, a greedy
            answer is a group of its own.
        decides: those that say what is right (see `deciding`); none for `correctness_reward`.
        threshold: right from this mean place in their ranges on, 0 to 1; a half, as in the completions page.

    Returns:
        The table and the columns format, correct (NaN where no deciding reward can say), correct_by (their names),
        right_anyhow, extracted (the answer that stands in the completion, or None) and reward/<name>.

    Raises:
        ValueError: for a deciding reward without a range.
    """
    decides = list(decides) or [correctness_reward]
    for function in decides:
        if not np.isfinite([function.low, function.high]).all() or function.low >= function.high:
            raise ValueError(
                f"{function.__name__} decides what is right, but has no range: give it one, adopt(f, low=…, high=…)"
            )
    every = {function.__name__: function for function in (*functions, *decides)}
    table, rows, texts = table.reset_index(drop=True), list(rows), []
    table["correct_by"] = ", ".join(function.__name__ for function in decides)
    for _, part in table.groupby("decoding"):  # apart: a greedy answer belongs to no group
        pairs = [
            (rows[r], Sampled(text, n, bool(done))) for r, text, n, done in zip(*(part[c] for c in ("row", *KEPT[3:6])))
        ]
        called = call_as_trl(pairs)
        for name, function in every.items():
            table.loc[part.index, f"reward/{name}"] = np.array(function(**called), dtype=float)
        table.loc[part.index, "format"] = np.array(format_reward(**called), dtype=float)
    for r, text in zip(table["row"], table["completion"]):
        texts.append(assistant_prefix(rows[r]["prompt"]) + text)
    places = [(table[f"reward/{f.__name__}"] - f.low) / (f.high - f.low) for f in decides]
    mean = pd.concat(places, axis=1).mean(axis=1)
    table["correct"] = (mean >= threshold).astype(float).where(mean.notna())
    table["right_anyhow"] = [
        float(right_in_any_style(text, gold)) for text, gold in zip(table["completion"], table["gold"])
    ]
    table["extracted"] = pd.Series([extract_answer(text) for text in texts], dtype=object)
    return table[[name for name in table if name not in every_reward(table)] + every_reward(table)]


def every_reward(table: pd.DataFrame) -> list[str]:
    return [name for name in table if name.startswith("reward/")]


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
            "right_anyhow": [float(right_in_any_style(text, answer)) for text, answer in zip(texts, gold)],
        }
    )


NUMBER_IN_TEXT = re.compile(r"-?[$€£]?\d[\d,]*(?:\.\d+)?")


def right_in_any_style(text: str, gold: Any) -> bool:
    """Whether the last number of the text, or all of it, is the gold answer, in whatever style it is given.

    Too easily cheated to be a reward. It tells a policy that cannot solve the task from one that
    only does not answer in the asked-for format.

    >>> right_anyhow("3 * 4 = 12, so the answer is $12.", "12"), right_anyhow("<answer>13</answer>", "12")
    (True, False)
    """
    numbers = NUMBER_IN_TEXT.findall(text)
    return same_answer(numbers[-1].rstrip(",") if numbers else text, str(gold))


def score_groups(
    functions: Sequence[Any], rows: Sequence[dict[str, Any]], groups: Sequence[Sequence[Sampled]]
) -> pd.DataFrame:
    """Scores of sampled groups, called as TRL calls them: one line a completion, one column a reward.

    Columns: group, sample, completion, tokens, then each function's name.
    """
    pairs = [(row, sampled) for row, group in zip(rows, groups, strict=True) for sampled in group]
    called = call_as_trl(pairs)
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


def call_as_trl(pairs: Sequence[tuple[dict[str, Any], Sampled]]) -> dict[str, Any]:
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
        raise ValueError(
            f"WEIGHTS names {missing[0]!r}, but no reward of that name was scored: correct the name, or remove it."
        )
    return sum(
        (table[name].astype(float).fillna(0.0) * weight for name, weight in weights.items()), 0.0 * table["group"]
    )


KEPT = ["row", "decoding", "sample", "completion", "tokens", "finished", "seconds"]  # what only the model can say
