"""From anybody's rows to the data set that GRPO trains on: check, split, deduplicate, make prompts, save."""

import difflib
import random
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.data.loading import CASTS, DataError, LoadedRows, cast_row
from lab.files import Row, read_json, relative, write_json, write_jsonl
from lab.model.prompts import Shot, build_prompt, prompt_ids, supports_system_role
from rewards import FORMAT, extract_gsm8k_answer

TEST_SIDES = ("test", "validation", "val", "eval")  # in a column `split`
RESERVED = ("prompt", "completion", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


@dataclass
class PreparedDataset:
    """The finished rows of both splits, what was rejected and why, and figures about it."""

    train: list[Row]
    test: list[Row]
    rejected: list[Row]
    report: dict[str, Any]


def prepare_dataset(
    loaded: LoadedRows,
    tokenizer: Any,
    *,
    question_column: str = "question",
    answer_column: str = "answer",
    schema: dict[str, str] | None = None,
    n_shots: int = 0,
    max_prompt_tokens: int = 0,
    test_share: float = 0.1,
    seed: int = 0,
) -> PreparedDataset:
    """Checked, deduplicated rows as `prompt` (chat messages) and `answer`, split into train and test.

    A row is rejected, with its reason, if it cannot be cast, has no question or answer, repeats another (across the
    split, the test side keeps it), or is too long.

    Args:
        schema: type of each column that is to be cast from text: str, int, float, bool or list.
        n_shots: worked examples in every prompt; taken from the training side and left out of it.
        max_prompt_tokens: 0 for what follows from the lengths (`length_limit`).
        test_share: share held out where the rows have no `split` column of their own.

    Raises:
        DataError: for a missing column, an unknown type, too few worked examples, and where no row is left.
    """
    schema = schema or {}
    check_columns(loaded.rows, (question_column, answer_column), schema)
    rejected = list(loaded.unreadable)

    def reject(row: Row, reason: str) -> None:
        raw = {name: value for name, value in row.items() if not name.startswith("_")}
        rejected.append({"row": row["_row"], "reason": reason, "raw": raw})

    kept: list[Row] = []
    for row in loaded.rows:
        try:
            kept.append(check_row(row, schema, question_column, answer_column))
        except ValueError as error:
            reject(row, str(error))
    train, test = deduplicate(*split_rows(kept, test_share, seed), reject)
    train, shots = take_shots(train, n_shots, seed)
    has_system, both = supports_system_role(tokenizer), [*train, *test]
    for row in both:
        row["_prompt"] = build_prompt(row["question"], shots, system_role=has_system)
        row["_tokens"] = len(prompt_ids(tokenizer, row["_prompt"]))
    lengths = [row["_tokens"] for row in both]
    limit = max_prompt_tokens or length_limit(lengths)
    for row in both:
        if row["_tokens"] > limit:
            reject(row, f"prompt of {row['_tokens']} tokens, the limit is {limit}")
    train, test = ([row for row in part if row["_tokens"] <= limit] for part in (train, test))
    if not train or not test:
        reasons = Counter(row["reason"][:80] for row in rejected).most_common(3)
        left = f"{len(train)} rows are left to train on and {len(test)} to test on, of {len(loaded.rows)}"
        why = "; ".join(f"{n} × {reason}" for reason, n in reasons) or "no row was rejected"
        raise DataError(f"{left} ({why}). Both sides need rows: add some, mend them, or mend the column `split`.")
    counts = {"read": len(loaded.rows) + len(loaded.unreadable), "train": len(train), "test": len(test)}
    report = {
        "rows": {**counts, "rejected": len(rejected)},
        "rejected": dict(Counter(re.sub(r"\d+", "N", row["reason"].split(":")[0]) for row in rejected).most_common()),
        "max_prompt_tokens": limit,
        "prompts_by_tokens": dict(sorted(Counter(lengths).items())),
        "system_role": has_system,
        "format": repr(FORMAT),
        "shots": n_shots,
        "preamble": build_prompt("", shots)[:-1],  # before every question; the exported model has it too
        "seed": seed,
    }
    return PreparedDataset([output_row(row) for row in train], [output_row(row) for row in test], rejected, report)


def check_columns(rows: list[Row], columns: Iterable[str], schema: dict[str, str]) -> None:
    """Raises DataError for columns that no row has, and for types that do not exist."""
    there = {name for row in rows for name in row} - {"_row"}
    missing = [name for name in (*columns, *schema) if name not in there]
    if missing:
        folded = {name.casefold(): name for name in there}
        near = [folded[one] for name in missing for one in difflib.get_close_matches(name.casefold(), folded, n=1)]
        hint = f"Did you mean {' and '.join(map(repr, near))}? " if near else ""
        if any(set(name) & set(";\t|") for name in there):
            hint += "Is one of ; | and tab the separator? Save the file with commas. "
        hint += "Save the file again in UTF-8. " * ("\ufffd" in "".join(there))
        names = " and no ".join(map(repr, missing))
        columns = f"There is no column {names}; the columns are: {', '.join(sorted(there))}."
        raise DataError(f"{columns} {hint}Rename yours, or name it in the parameters cell.")
    unknown = [kind for kind in schema.values() if kind not in CASTS]
    if unknown:
        raise DataError(f"The schema names the type {unknown[0]!r}; the types are: {', '.join(CASTS)}.")


def check_row(row: Row, schema: dict[str, str], question_column: str, answer_column: str) -> Row:
    """The row with its types, a `question`, an `answer`, and a GSM8K answer's working as `solution`.

    Raises ValueError with the reason.
    """
    row = cast_row(row, schema)
    question, answer = row.get(question_column), gold_answer(row.get(answer_column))
    text = " ".join(value for value in row.values() if isinstance(value, str))
    reasons = {
        "the question is missing or empty": not isinstance(question, str) or not question.strip(),
        "the answer is missing or empty": not answer,
        "a text has half a surrogate pair: it is not valid Unicode": re.search("[\ud800-\udfff]", text),
        f"the answer is {answer!r}: that is no answer": answer.casefold() in ("nan", "n/a", "none", "null"),
        "a text is not valid UTF-8: save the file again in UTF-8 (Excel: CSV UTF-8)": "\ufffd" in text,
    }
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        raise ValueError(reason)
    working, marker, _ = str(row[answer_column]).rpartition("####")
    solution = {"solution": working.strip()} if marker and "solution" not in row else {}
    return {**row, **solution, "question": question.strip(), "answer": answer}


def gold_answer(value: Any) -> str:
    """The final answer in a row's answer column: what follows `####` if it is a GSM8K solution."""
    text = "" if value is None else str(value).strip()
    return (extract_gsm8k_answer(text) or "") if "####" in text else text


def split_rows(rows: list[Row], test_share: float, seed: int) -> tuple[list[Row], list[Row]]:
    """(train, test): by the rows' own `split` column where it names a test side, else at random with the seed."""
    held_out = {i for i, row in enumerate(rows) if str(row.get("split", "")).casefold() in TEST_SIDES}
    if not held_out:
        if not 0 < test_share < 1:
            raise DataError(f"TEST_SHARE is {test_share:g}: both sides need rows. Give a share between 0 and 1.")
        order = list(range(len(rows)))
        random.Random(seed).shuffle(order)
        held_out = set(order[: max(1, round(test_share * len(rows)))])
    return tuple([row for i, row in enumerate(rows) if (i in held_out) is is_test] for is_test in (False, True))


def deduplicate(train: list[Row], test: list[Row], reject: Callable[[Row, str], None]) -> tuple[list[Row], list[Row]]:
    """Without repeated questions; one that is on both sides stays on the test side only."""
    seen: dict[str, str] = {}
    kept: dict[str, list[Row]] = {"test": [], "train": []}
    for side, row in [("test", row) for row in test] + [("train", row) for row in train]:
        key = normalise(row["question"])
        if key in seen:
            reject(row, "duplicate question" if seen[key] == side else "leak: the question is also in the test set")
        else:
            seen[key] = side
            kept[side].append(row)
    return kept["train"], kept["test"]


def normalise(text: str) -> str:
    """Text for finding duplicates: case, punctuation and spacing do not count, numbers and symbols do."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    return " ".join(re.findall(r"\d+(?:\.\d+)?|\w+|[^\w\s.,;:?!\"'()]", text))


def take_shots(train: list[Row], n_shots: int, seed: int) -> tuple[list[Row], list[Shot]]:
    """The training rows without the worked examples, and those."""
    worked = [row for row in train if isinstance(row.get("solution"), str) and row["solution"].strip()]
    if len(worked) < n_shots:
        raise DataError(
            f"{n_shots} few-shot examples need rows with a text column 'solution' (the worked reasoning); "
            f"there are {len(worked)}. Name yours 'solution', or set N_SHOTS to 0."
        )
    chosen = random.Random(seed).sample(worked, n_shots)
    shots = [(row["question"], row["solution"], row["answer"]) for row in chosen]
    return [row for row in train if not any(row is one for one in chosen)], shots


def length_limit(lengths: list[int], generous: int = 512) -> int:
    """The longest prompt where that is at most `generous` tokens, else what 99 % of the prompts need."""
    longest = max(lengths, default=0)
    if longest > generous:
        longest = sorted(lengths)[int(0.99 * (len(lengths) - 1))]
    return -(-longest // 16) * 16


def output_row(row: Row) -> Row:
    """The row as it is saved: prompt, answer, and the other columns under names that TRL leaves alone."""
    own = [name for name in row if not name.startswith("_") and name not in ("answer", "split")]
    renamed = {f"{name}_" if name in RESERVED else name: row[name] for name in own}
    return {"prompt": row["_prompt"], "answer": row["answer"], **renamed}


def save_dataset(prepared: PreparedDataset, folder: Path) -> Path:
    """Writes `train/`, `test/`, `report.json` and `rejected.jsonl` into the folder, all or nothing.

    Raises:
        DataError: where a column holds values of different types.
    """
    import pyarrow
    from datasets import Dataset

    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    for name, rows in (("train", prepared.train), ("test", prepared.test)):
        try:
            Dataset.from_list(rows).save_to_disk(str(new / name))
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
            what = "A column holds values of different types: declare its type in SCHEMA."
            raise DataError(f"{what} ({error})") from error
    write_jsonl(new / "rejected.jsonl", prepared.rejected)
    write_json(new / "report.json", prepared.report)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    return folder


def load_split(folder: Path, name: str) -> Any:
    """The `train` or `test` data set that notebook 01 saved under `folder/dataset`.

    Raises:
        DataError: where its prompts ask for another format than rewards.py now expects.
    """
    from datasets import load_from_disk

    report = read_json(folder / "dataset" / "report.json", "01_prepare_data")
    if report["format"] != repr(FORMAT):
        asked = f"The prompts in {relative(folder / 'dataset')} ask for {report['format']}"
        raise DataError(f"{asked}, and rewards.py now expects {FORMAT}: run notebook 01_prepare_data again.")
    return load_from_disk(str(folder / "dataset" / name))
