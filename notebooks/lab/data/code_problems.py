"""Problems in HumanEval's form: loading and checking them, judging sampled groups, pass@k with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lab.data import dataset, loading
from lab.files import Row
from lab.make.code_drills import CODE_SYSTEM_PROMPT
from lab.measure.estimates import bootstrap_mean, paired_difference, pass_at_k
from lab.model.prompts import fold_system, render, supports_system_role
from lab.model.sampling import Sampled
from rewards import extract_code
from sandbox import Sandbox, Verdict, prepare

COLUMNS = ("prompt", "test", "entry_point")  # of HumanEval; canonical_solution is used where it is there
EVALUATION_SETS = ("humaneval", "livecodebench", "bigcodebench", "evalplus")  # in a data set's name


def load(
    source: str, tokenizer: Any, to_train: bool, test_share: float = 0.2, seed: int = 0
) -> tuple[list[Row], list[Row]]:
    """(train, test) problems of a bundled set, a JSONL/Parquet file or a Hub data set, ready for GRPO.

    Each row has `prompt` (a chat), `code_prompt` (HumanEval's `prompt`), `test`, `entry_point`, and what else
    the source has. Without a `split` column, a random part is held out.

    Raises:
        data.DataError: for a missing column, and for an evaluation set that is to be trained on.
    """
    if to_train and any(name in source.casefold() for name in EVALUATION_SETS):
        raise loading.DataError(
            f"{source} is an evaluation set: trained on, it measures nothing any more. Train on something else "
            "(code_problems, or problems of your own with prompt, test and entry_point) and give this one as TEST."
        )
    rows = loading.load_rows(source).rows
    dataset.check_columns(rows, COLUMNS, {})
    bad = next(
        (row for row in rows if not all(isinstance(row.get(name), str) and row[name].strip() for name in COLUMNS)), None
    )
    if bad is not None:
        raise loading.DataError(
            f"Row {bad['_row']} of {source} has no text in one of {', '.join(COLUMNS)}: mend or remove it."
        )
    has_system = supports_system_role(tokenizer)
    train, test = dataset.split(rows, test_share, seed)
    return [as_chat(row, has_system) for row in train], [as_chat(row, has_system) for row in test]


def as_chat(row: Row, has_system: bool) -> Row:
    chat = [{"role": "system", "content": CODE_SYSTEM_PROMPT}, {"role": "user", "content": row["prompt"]}]
    kept = {name: value for name, value in row.items() if not name.startswith("_") and name != "split"}
    return {**kept, "code_prompt": row["prompt"], "prompt": chat if has_system else fold_system(chat)}


def fitting(rows: Sequence[Row], tokenizer: Any, most_tokens: int) -> list[Row]:
    """The rows whose prompt has at most that many tokens: a longer one would be cut, or leave no room for an answer.

    Raises:
        data.DataError: where none is left.
    """
    lengths = [len(tokenizer(render(tokenizer, row["prompt"]), add_special_tokens=False)["input_ids"]) for row in rows]
    kept = [row for row, length in zip(rows, lengths) if length <= most_tokens]
    if rows and not kept:
        raise loading.DataError(
            f"All {len(rows)} prompts have more than {most_tokens} tokens (the shortest {min(lengths)}): raise MAX_SEQ_LENGTH."
        )
    return kept


def job(row: Row, code: str) -> dict[str, str]:
    return {"prompt": row["code_prompt"], "completion": code, "test": row["test"], "entry_point": row["entry_point"]}


def solvable(rows: Sequence[Row], sandbox: Sandbox) -> tuple[list[Row], pd.DataFrame]:
    """The problems that a policy can be judged on, and a table of the others: entry_point, status, why.

    A problem is left out where its own solution does not pass; without one, where a stub shows that the
    test is broken or cannot be split.

    Raises:
        data.DataError: where nothing is left.
    """
    stub = "    return None\n"
    verdicts = sandbox.run_many(
        [job(row, row.get("canonical_solution") or stub) for row in rows], progress="own solutions"
    )
    good = [
        v.status == "pass" or not row.get("canonical_solution") and v.status == "fail" for row, v in zip(rows, verdicts)
    ]
    bad = [(row["entry_point"], v.status, v.why) for row, v, fine in zip(rows, verdicts, good) if not fine]
    if not any(good):
        raise loading.DataError(
            f"None of {len(rows)} problems is left: {bad[0] if bad else 'there were none to begin with'}. Give more rows, or mend them."
        )
    return [row for row, fine in zip(rows, good) if fine], pd.DataFrame(bad, columns=["entry_point", "status", "why"])


def without_held_out(train: Sequence[Row], test: Sequence[Row]) -> list[Row]:
    """The training problems that are not held out too: the same head of a function, however it is spaced."""
    held_out = {dataset.normalise(row["code_prompt"]) for row in test}
    return [row for row in train if dataset.normalise(row["code_prompt"]) not in held_out]


def assertion_table(row: Row, verdict: Verdict) -> pd.DataFrame:
    """One line an assertion of the test: its source, and whether it held."""
    plan = prepare(row["code_prompt"], row["test"], row["entry_point"])
    return pd.DataFrame({"assertion": plan.shown, "holds": verdict.held})


def judge(rows: Sequence[Row], groups: Sequence[Sequence[Sampled]], sandbox: Sandbox) -> pd.DataFrame:
    """The verdicts on sampled groups, one line a completion.

    Columns: problem (its position), sample, completion, tokens, status (`no code` where there is none to
    run), graded (share of assertions), passed (1.0 or 0.0), why.

    Raises:
        RuntimeError: where a completion could not be judged; a 0 in its place would be a lie.
    """
    lines, jobs = [], []
    for i, (row, group) in enumerate(zip(rows, groups, strict=True)):
        for k, sampled in enumerate(group):
            code = extract_code(sampled.text, row["entry_point"])
            lines.append({"problem": i, "sample": k, "completion": sampled.text, "tokens": sampled.tokens})
            jobs.append(None if code is None else job(row, code))
    verdicts = iter(sandbox.run_many([one for one in jobs if one is not None]))
    for line, one in zip(lines, jobs):
        verdict = Verdict("no code", 0, 1, "there is no code in it", 0.0) if one is None else next(verdicts)
        if verdict.status in ("error", "unsupported"):
            raise RuntimeError(
                f"a completion of {one['entry_point']} could not be judged ({verdict.status}: {verdict.why}). "
                "Leave the problem out (`solvable` finds such), or mend its test."
            )
        line |= {
            "status": verdict.status,
            "graded": verdict.score,
            "passed": float(verdict.status == "pass"),
            "why": verdict.why,
        }
    return pd.DataFrame(lines)


def as_groups(judged: pd.DataFrame, column: str) -> np.ndarray:
    """The scores as (problems, samples)."""
    return judged.pivot(index="problem", columns="sample", values=column).to_numpy()


def advantages(scores: Sequence[float]) -> np.ndarray:
    """What GRPO makes of a group's scores: (score - mean) / standard deviation, 0 for all where they are alike."""
    values = np.asarray(scores, dtype=float)
    return (values - values.mean()) / (values.std(ddof=1) + 1e-4)  # TRL's epsilon


def compare(before: pd.DataFrame, after: pd.DataFrame, seed: int = 0) -> dict[str, Any]:
    """pass@k before and after on the same problems, with 95 % intervals over problems, for k = 1, 2, 4 … samples."""
    right = {name: as_groups(table, "passed").sum(axis=1) for name, table in (("before", before), ("after", after))}
    samples = int(before["sample"].max()) + 1
    record: dict[str, Any] = {"n": len(right["before"]), "samples": samples, "pass": {}}
    for k in (2**i for i in range(samples.bit_length()) if 2**i <= samples):
        each = {name: [pass_at_k(samples, int(c), k) for c in counts] for name, counts in right.items()}
        record["pass"][str(k)] = {name: bootstrap_mean(values, seed) for name, values in each.items()}
        record["pass"][str(k)]["difference"] = paired_difference(each["before"], each["after"], seed)
    return record


def summary(record: dict[str, Any]) -> pd.DataFrame:
    """`compare`'s record as a person reads it."""
    lines = {}
    for k, found in record["pass"].items():
        lines[f"pass@{k}"] = {
            **{name: f"{100 * found[name]['estimate']:.1f} %" for name in ("before", "after")},
            "difference": f"{100 * found['difference']['estimate']:+.1f} points",
            "95 % interval": f"{100 * found['difference']['low']:+.1f} to {100 * found['difference']['high']:+.1f}",
            "n": record["n"],
        }
    return pd.DataFrame(lines).T
