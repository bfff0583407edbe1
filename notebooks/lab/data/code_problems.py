"""Problems in HumanEval's form: loading and checking them."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from lab.data import dataset, loading
from lab.files import Row
from lab.model.prompts import CODE_SYSTEM_PROMPT, build_prompt, prompt_ids, supports_system_role
from sandbox import Sandbox, Verdict, prepare

COLUMNS = ("prompt", "test", "entry_point")  # of HumanEval; canonical_solution is used where it is there
EVALUATION_SETS = ("humaneval", "livecodebench", "bigcodebench", "evalplus")  # in a data set's name


def load_problems(source: str, tokenizer: Any, to_train: bool, seed: int = 0) -> tuple[list[Row], list[Row]]:
    """(train, test) problems of a bundled set, a JSONL/Parquet file or a Hub data set, ready for GRPO.

    Each row has `prompt` (a chat), `code_prompt` (HumanEval's `prompt`), `test`, `entry_point`, and what else
    the source has. Without a `split` column, a random fifth is held out.

    Raises DataError for a missing column, and for an evaluation set that is to be trained on.
    """
    if to_train and any(name in source.casefold() for name in EVALUATION_SETS):
        raise loading.DataError(
            f"{source} is an evaluation set: trained on, it measures nothing any more. Give it as TEST, and train on "
            "something else: code_problems, or problems of your own with prompt, test and entry_point."
        )
    rows = loading.load_rows(source).rows
    dataset.check_columns(rows, COLUMNS, {})
    for row in rows:
        if not all(isinstance(row.get(name), str) and row[name].strip() for name in COLUMNS):
            where = f"Row {row['_row']} of {source}"
            raise loading.DataError(f"{where} has no text in one of {', '.join(COLUMNS)}: mend or remove it.")
    has_system = supports_system_role(tokenizer)
    train, test = dataset.split_rows(rows, 0.2, seed)
    return [as_chat_row(row, has_system) for row in train], [as_chat_row(row, has_system) for row in test]


def as_chat_row(row: Row, has_system: bool) -> Row:
    kept = {name: value for name, value in row.items() if not name.startswith("_") and name != "split"}
    chat = build_prompt(row["prompt"], (), CODE_SYSTEM_PROMPT, has_system)
    return {**kept, "code_prompt": row["prompt"], "prompt": chat}


def drop_long_prompts(rows: Sequence[Row], tokenizer: Any, max_tokens: int) -> list[Row]:
    """The rows whose prompt has at most that many tokens: a longer one would leave no room for an answer.

    Raises DataError where none is left.
    """
    lengths = [len(prompt_ids(tokenizer, row["prompt"])) for row in rows]
    kept = [row for row, length in zip(rows, lengths) if length <= max_tokens]
    if rows and not kept:
        all_of_them = f"All {len(rows)} prompts have more than {max_tokens} tokens (the shortest {min(lengths)})"
        raise loading.DataError(f"{all_of_them}: raise MAX_SEQ_LENGTH.")
    return kept


def sandbox_job(row: Row, code: str) -> dict[str, str]:
    """What `Sandbox.run_tests` takes to judge some code as a row's answer."""
    return {"prompt": row["code_prompt"], "completion": code, "test": row["test"], "entry_point": row["entry_point"]}


def keep_solvable(rows: Sequence[Row], sandbox: Sandbox) -> tuple[list[Row], pd.DataFrame]:
    """The problems that a policy can be judged on, and a table of the others: entry_point, status, why.

    A problem is left out if its own solution does not pass or, without one, if a stub shows that its test is broken.

    Raises DataError where nothing is left.
    """
    stub = "    return None\n"
    jobs = [sandbox_job(row, row.get("canonical_solution") or stub) for row in rows]
    kept, others = [], []
    for row, verdict in zip(rows, sandbox.run_many(jobs, progress="own solutions")):
        if verdict.status == "pass" or verdict.status == "fail" and not row.get("canonical_solution"):
            kept.append(row)
        else:
            others.append((row["entry_point"], verdict.status, verdict.why))
    if not kept:
        first = others[0] if others else "there were none to begin with"
        raise loading.DataError(f"None of {len(rows)} problems is left: {first}. Give more rows, or mend them.")
    return kept, pd.DataFrame(others, columns=["entry_point", "status", "why"])


def without_held_out(train: Sequence[Row], test: Sequence[Row]) -> list[Row]:
    """The training problems that are not held out too: the same head of a function, however it is spaced."""
    held_out = {dataset.normalise(row["code_prompt"]) for row in test}
    return [row for row in train if dataset.normalise(row["code_prompt"]) not in held_out]


def assertion_table(row: Row, verdict: Verdict) -> pd.DataFrame:
    """One line an assertion of the test: its source, and whether it held."""
    plan = prepare(row["code_prompt"], row["test"], row["entry_point"])
    return pd.DataFrame({"assertion": plan.shown, "holds": verdict.held})
