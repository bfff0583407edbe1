"""Sampled code in the sandbox: verdicts on groups, and pass@k before and after."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lab.data.code_problems import sandbox_job
from lab.files import Row
from lab.measure.estimates import bootstrap_mean, paired_difference, pass_at_k
from lab.measure.grading import score_groups
from lab.model.sampling import Sampled
from rewards import extract_code
from sandbox import Sandbox, Verdict


def judge_groups(rows: Sequence[Row], groups: Sequence[Sequence[Sampled]], sandbox: Sandbox) -> pd.DataFrame:
    """The verdicts on sampled groups, one line a completion: problem (its position), sample, completion, tokens, status
    (`no code` where there is none to run), graded (share of assertions), passed (1.0 or 0.0), why.

    Raises RuntimeError where a completion could not be judged; a 0 in its place would be a lie.
    """
    table = score_groups([], rows, groups).rename(columns={"group": "problem"})
    asked = [rows[i] for i in table["problem"]]
    codes = [extract_code(text, row["entry_point"]) for text, row in zip(table["completion"], asked)]
    verdicts = iter(sandbox.run_many([sandbox_job(row, code) for row, code in zip(asked, codes) if code is not None]))
    no_code, judged = Verdict("no code", 0, 1, "there is no code in it", 0.0), []
    for row, code in zip(asked, codes):
        verdict = no_code if code is None else next(verdicts)
        if verdict.status in ("error", "unsupported"):
            what = f"a completion of {row['entry_point']} could not be judged ({verdict.status}: {verdict.why})"
            raise RuntimeError(f"{what}. Leave the problem out (`keep_solvable` finds such), or mend its test.")
        judged.append((verdict.status, verdict.score, float(verdict.status == "pass"), verdict.why))
    return table.join(pd.DataFrame(judged, columns=["status", "graded", "passed", "why"]))


def score_matrix(judged: pd.DataFrame, column: str) -> np.ndarray:
    """A column of `judge_groups` as an array of shape (problems, samples)."""
    return judged.pivot(index="problem", columns="sample", values=column).to_numpy()


def compare_pass_at_k(before: pd.DataFrame, after: pd.DataFrame, seed: int = 0) -> dict[str, Any]:
    """pass@k before and after on the same problems, with 95 % intervals over problems, for k = 1, 2, 4 … samples."""
    right = {name: score_matrix(table, "passed").sum(axis=1) for name, table in (("before", before), ("after", after))}
    samples = int(before["sample"].max()) + 1
    record: dict[str, Any] = {"n": len(right["before"]), "samples": samples, "pass": {}}
    for k in (2**i for i in range(samples.bit_length())):
        each = {name: [pass_at_k(samples, int(c), k) for c in counts] for name, counts in right.items()}
        record["pass"][str(k)] = {name: bootstrap_mean(values, seed) for name, values in each.items()}
        record["pass"][str(k)]["difference"] = paired_difference(each["before"], each["after"], seed)
    return record


def pass_at_k_table(record: dict[str, Any]) -> pd.DataFrame:
    """`compare_pass_at_k`'s record as a person reads it."""
    lines = {}
    for k, measured in record["pass"].items():
        middle, low, high = (100 * measured["difference"][name] for name in ("estimate", "low", "high"))
        cells = {name: f"{100 * measured[name]['estimate']:.1f} %" for name in ("before", "after")}
        cells |= {"difference": f"{middle:+.1f} points", "95 % interval": f"{low:+.1f} to {high:+.1f}"}
        lines[f"pass@{k}"] = cells | {"n": record["n"]}
    return pd.DataFrame(lines).T
