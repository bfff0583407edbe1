"""Completions graded: each reward called as TRL calls it, what is right by them, and a lenient second measure."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lab.files import Row
from lab.model.sampling import Sampled
from rewards import assistant_prefix, correctness_reward, extract_answer, format_reward, same_answer
from scoring.batch import call_as_trl
from scoring.right import right_or_wrong

NUMBER_IN_TEXT = re.compile(r"-?[$€£]?\d[\d,]*(?:\.\d+)?")


def score_groups(functions: Sequence[Any], rows: Sequence[Row], groups: Sequence[Sequence[Sampled]]) -> pd.DataFrame:
    """Scores of sampled groups: one line a completion, with group, sample, completion, tokens, and a column a reward."""
    lines = [(g, s, one.text, one.tokens) for g, group in enumerate(groups) for s, one in enumerate(group)]
    table = pd.DataFrame(lines, columns=["group", "sample", "completion", "tokens"])
    of_each = [row for row, group in zip(rows, groups, strict=True) for _ in group]
    return table.assign(**score_completions(functions, of_each, table))


def group_to_show(scores: pd.DataFrame, names: Sequence[str]) -> tuple[int, str]:
    """The group in which most of the named rewards differ, and by most; and a sentence that says what is shown."""
    counted = scores[list(names)].astype(float).fillna(0.0)  # None counts as 0 in TRL's sum
    spread = counted.groupby(scores["group"]).std(ddof=0).where(lambda found: found > 1e-9, 0.0)
    differing, widest = (spread > 0).sum(axis=1), (spread / spread.max().replace(0.0, 1.0)).sum(axis=1)
    group = int((differing + widest / (len(names) + 1)).idxmax())
    differ = ", ".join(name for name in names if spread.loc[group, name])
    if not differ:
        told = f"In each of the {len(spread)} groups all completions get the same {' and '.join(names)}"
        return group, f"{told}: GRPO learns nothing from that. This is the first group."
    return group, f"This is group {group + 1} of {len(spread)}, shown because its completions differ in {differ}."


def score_completions(functions: Sequence[Any], rows: Sequence[Row], table: pd.DataFrame) -> dict[str, list]:
    """Each reward's scores of completions (`table`), as TRL asks for them. Equal prompts in `rows` are a group."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    lengths = [list(range(n)) for n in table["tokens"]]  # only their lengths are true: sampling keeps no ids
    texts = list(table["completion"])
    return {f.__name__: call_as_trl(f, columns["prompt"], texts, columns, completion_ids=lengths) for f in functions}


def grade_answers(
    table: pd.DataFrame, rows: Sequence[Row], functions: Sequence[Any], decides: Sequence[Any] = ()
) -> pd.DataFrame:
    """A model's answers (`evaluate.collect_answers`) with their grades. All sampled answers to a row are a group.

    The rewards `decides` say what is right (`scoring.right.deciding_rewards`); without any, `correctness_reward` does.
    Returns the table and the columns format (0 or 1), correct (0 or 1; NaN where no deciding reward can say),
    correct_by (their names), right_anyhow (0 or 1, in any style), extracted (the answer in the completion, or None) and
    reward/<name>. Raises ValueError for a deciding reward without a range.
    """
    decides = list(decides) or [correctness_reward]
    functions = list({f.__name__: f for f in (*functions, *decides)}.values())
    table = table.reset_index(drop=True)
    table["correct_by"] = ", ".join(f.__name__ for f in decides)
    scores = pd.DataFrame(index=table.index, columns=[f.__name__ for f in functions], dtype=float)
    for _, part in table.groupby("decoding"):
        of_part = [rows[r] for r in part["row"]]
        for name, values in score_completions(functions, of_part, part).items():
            scores.loc[part.index, name] = np.array(values, dtype=float)
        (strict,) = score_completions([format_reward], of_part, part).values()
        table.loc[part.index, "format"] = np.array(strict, dtype=float)
    table["correct"] = right_or_wrong(scores, {f.__name__: (f.low, f.high) for f in decides})
    pairs = zip(table["completion"], table["gold"])
    table["right_anyhow"] = [float(right_in_any_style(text, gold)) for text, gold in pairs]
    begun = (assistant_prefix(rows[r]["prompt"]) for r in table["row"])
    answers = [extract_answer(prefix + text) for prefix, text in zip(begun, table["completion"])]
    table["extracted"] = pd.Series(answers, dtype=object)
    kept = [name for name in table if not name.startswith("reward/")]  # answers that were graded before have them
    return pd.concat([table[kept], scores.add_prefix("reward/")], axis=1)


def right_in_any_style(text: str, gold: Any) -> bool:
    """Whether the last number of the text, or all of it, is the gold answer, in whatever style it is given.

    Too easily cheated to be a reward. It tells a policy that cannot solve the task from one that only does not answer
    in the asked-for format.

    >>> right_in_any_style("3 * 4 = 12, so the answer is $12.", "12"), right_in_any_style("<answer>13</answer>", "12")
    (True, False)
    """
    numbers = NUMBER_IN_TEXT.findall(text)
    return same_answer(numbers[-1].rstrip(",") if numbers else text, str(gold))
