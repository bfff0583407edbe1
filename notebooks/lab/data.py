"""From rows of anybody's making to the data set that GRPO trains on: load, check, chat, split."""

from __future__ import annotations

import csv
import json
import random
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rewards import FORMAT, SYSTEM_PROMPT, extract_gsm8k_answer

from lab.files import ROOT, read_json, relative, write_json, write_text
from lab.policy import Messages, fold_system, render, supports_system_role

Row = dict[str, Any]
RESERVED = ("prompt", "completion", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
FILES = (".csv", ".jsonl", ".parquet")


class DataError(ValueError):
    """A data set cannot be used as asked; the message says what is there and what to do."""


@dataclass
class Loaded:
    """Rows as found, and those that could not even be read: {"row": position, "reason", "raw"}."""

    rows: list[Row]
    unreadable: list[Row] = field(default_factory=list)


def load_rows(source: str, config: str | None = None) -> Loaded:
    """Rows of a bundled set (by its name in `data/`, such as `word_problems`), of a CSV/JSONL/Parquet file, or of a Hub data set.

    A Hub data set's splits become a column `split`. Raises DataError with the way out where the
    source is not there or not of a known kind.
    """
    bundled = ROOT / "data" / f"{source}.jsonl"
    path = bundled if re.fullmatch(r"\w+", source) and bundled.is_file() else ROOT / Path(source).expanduser()
    if path.suffix.lower() in FILES:
        if not path.is_file():
            raise DataError(f"There is no file {path}: give a path that exists, or a Hub id such as openai/gsm8k.")
        read = {".csv": read_csv, ".jsonl": read_jsonl, ".parquet": read_parquet}[path.suffix.lower()]
        loaded = read(path)
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        loaded = read_hub(source, config)
    else:
        raise DataError(f"{source!r} is neither a set in data/ ({', '.join(sorted(p.stem for p in (ROOT / 'data').glob('*.jsonl')))}), nor a file ending in {', '.join(FILES)}, nor a Hub id.")
    if not loaded.rows:
        raise DataError(f"{source} has no readable row ({len(loaded.unreadable)} unreadable).")
    return loaded


def read_csv(path: Path) -> Loaded:
    """Every value as the string it is: types come from the declared schema, never from guessing."""
    loaded = Loaded([])
    csv.field_size_limit(2**30)
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as source:
        for number, row in enumerate(csv_rows(source, path)):
            if None in row or None in row.values():
                reason = "more values than columns" if None in row else "fewer values than columns"
                loaded.unreadable.append({"row": number, "reason": reason, "raw": str(list(row.values()))[:500]})
            else:
                loaded.rows.append({**row, "_row": number})
    return loaded


def csv_rows(source: Iterable[str], path: Path) -> Iterable[Row]:
    try:
        yield from csv.DictReader(source)
    except csv.Error as error:
        raise DataError(f"{path} is not a readable CSV file ({error}): save it again as CSV in UTF-8.") from error


def read_jsonl(path: Path) -> Loaded:
    loaded = Loaded([])
    with path.open(encoding="utf-8-sig", errors="replace") as source:
        for number, line in enumerate(source):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"a {type(row).__name__}, not an object")
                loaded.rows.append({**row, "_row": number})
            except (ValueError, RecursionError) as error:
                loaded.unreadable.append({"row": number, "reason": f"not JSON: {error}", "raw": line[:500]})
    return loaded


def read_parquet(path: Path) -> Loaded:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is not a readable Parquet file ({error}): it may be half-written, make it again.") from error
    return Loaded([{**row, "_row": number} for number, row in enumerate(rows)])


def read_hub(name: str, config: str | None) -> Loaded:
    from datasets import load_dataset

    try:
        splits = load_dataset(name, config or None)
    except Exception as error:  # the Hub's client raises a dozen kinds; each one's text names the cause
        raise DataError(
            f"The Hub data set {name} (config {config or 'none'}) could not be loaded: {error}\n"
            "Check the name, the config and the network, or download it as JSONL and give its path."
        ) from error
    rows = [{**row, "split": split} for split, part in splits.items() for row in part]
    return Loaded([{**row, "_row": number} for number, row in enumerate(rows)])


# --------------------------------------------------------------------------- types


def to_bool(text: str) -> bool:
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.strip().casefold() not in known:
        raise ValueError("not true/false, yes/no or 1/0")
    return known[text.strip().casefold()]


def to_list(text: str) -> list:
    value = json.loads(text)
    if not isinstance(value, list):
        raise ValueError("not a JSON list")
    return value


CASTS: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float, "bool": to_bool, "list": to_list}


def cast(row: Row, schema: dict[str, str]) -> Row:
    """The row with the schema's columns as their declared types; values that are not strings stay.

    Raises ValueError naming the column, its value and the wanted type.
    """
    changed = dict(row)
    for column, kind in schema.items():
        value = row.get(column)
        if isinstance(value, str) or (kind == "str" and value is not None):
            try:
                changed[column] = CASTS[kind](value)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"column {column!r}: {value[:80]!r} is not of type {kind} ({error})") from None
    return changed


def check_columns(rows: list[Row], wanted: Iterable[str], schema: dict[str, str]) -> None:
    """Raises DataError for columns that no row has, and for types that do not exist."""
    there = {name for row in rows for name in row} - {"_row"}
    missing = [name for name in (*wanted, *schema) if name not in there]
    if missing:
        hint = " A CSV needs commas between its values." if any(mark in name for name in there for mark in ";\t") else ""
        raise DataError(f"There is no column {', '.join(map(repr, missing))}; the columns are: {', '.join(sorted(there))}.{hint}")
    unknown = [kind for kind in schema.values() if kind not in CASTS]
    if unknown:
        raise DataError(f"The schema names the type {unknown[0]!r}; the types are: {', '.join(CASTS)}.")


# --------------------------------------------------------------------------- prompts and answers


def normalise(text: str) -> str:
    """Text for finding duplicates: case, punctuation and spacing do not count, numbers and symbols do."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    return " ".join(re.findall(r"\d+(?:\.\d+)?|\w+|[^\w\s.,;:?!\"'()]", text))


def build_prompt(question: str, shots: list[tuple[str, str, str]], system_prompt: str = SYSTEM_PROMPT) -> Messages:
    """Chat messages: the system prompt, the few-shot turns (question, reasoning, answer), the question."""
    messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
    for shown, reasoning, answer in shots:
        messages.append({"role": "user", "content": shown})
        messages.append({"role": "assistant", "content": FORMAT.write(reasoning, answer)})
    return [*messages, {"role": "user", "content": question}]


def gold_answer(value: Any) -> str:
    """The final answer in a row's answer column: what follows `####` if it is a GSM8K solution."""
    text = "" if value is None else str(value).strip()
    return (extract_gsm8k_answer(text) or "") if "####" in text else text


# --------------------------------------------------------------------------- the whole way


@dataclass
class Prepared:
    """The finished rows of both splits, what was rejected and why, and figures about it."""

    train: list[Row]
    test: list[Row]
    rejected: list[Row]
    report: dict[str, Any]


def prepare(
    loaded: Loaded,
    tokenizer: Any,
    *,
    question_column: str = "question",
    answer_column: str = "answer",
    schema: dict[str, str] | None = None,
    system_prompt: str = SYSTEM_PROMPT,
    n_shots: int = 0,
    max_prompt_tokens: int = 0,
    test_share: float = 0.1,
    seed: int = 0,
) -> Prepared:
    """Checked, deduplicated rows as `prompt` (chat messages) and `answer`, split into train and test.

    A row is rejected, with its reason, where it cannot be cast, has no question or answer, repeats
    another, stands on both sides of the split (then the test side keeps it), or is too long.

    Args:
        schema: type of each column that is to be cast from text: str, int, float, bool or list.
        n_shots: examples shown in every prompt; taken from the training side and left out of it.
        max_prompt_tokens: 0 for what follows from the lengths (`length_limit`).
        test_share: share held out where the rows have no `split` column of their own.
    """
    schema = schema or {}
    check_columns(loaded.rows, (question_column, answer_column), schema)
    rejected = list(loaded.unreadable)

    def reject(row: Row, reason: str) -> None:
        rejected.append({"row": row["_row"], "reason": reason, "raw": {k: v for k, v in row.items() if not k.startswith("_")}})

    kept: list[Row] = []
    for row in loaded.rows:
        try:
            kept.append(checked(row, schema, question_column, answer_column))
        except ValueError as error:
            reject(row, str(error))

    train, test = split(kept, test_share, seed)
    train, test = deduplicate(train, test, reject)
    train, shots = take_shots(train, n_shots, seed)
    has_system = supports_system_role(tokenizer)
    for row in (*train, *test):
        messages = build_prompt(row["question"], shots, system_prompt)
        row["_prompt"] = messages if has_system else fold_system(messages)
        row["_tokens"] = len(tokenizer(render(tokenizer, row["_prompt"]), add_special_tokens=False)["input_ids"])
    lengths = [row["_tokens"] for row in (*train, *test)]
    limit = max_prompt_tokens or length_limit(lengths)
    for row in (*train, *test):
        if row["_tokens"] > limit:
            reject(row, f"prompt of {row['_tokens']} tokens, the limit is {limit}")
    train, test = ([row for row in part if row["_tokens"] <= limit] for part in (train, test))
    if not train or not test:
        raise DataError(
            f"{len(train)} rows are left to train on and {len(test)} to test on, of {len(loaded.rows)}: "
            f"the commonest reasons are {Counter(row['reason'][:60] for row in rejected).most_common(3)}."
        )
    report = {
        "rows": {"read": len(loaded.rows) + len(loaded.unreadable), "train": len(train), "test": len(test), "rejected": len(rejected)},
        "rejected": dict(Counter(re.sub(r"\d+", "N", row["reason"].split(":")[0]) for row in rejected).most_common()),
        "max_prompt_tokens": limit,
        "longest_prompt_tokens": max(row["_tokens"] for row in (*train, *test)),
        "prompts_by_tokens": dict(sorted(Counter(lengths).items())),
        "system_role": has_system,
        "format": repr(FORMAT),
        "shots": n_shots,
        "preamble": build_prompt("", shots, system_prompt)[:-1],  # what stands before every question, and is served with the model
        "seed": seed,
    }
    return Prepared([finished(row) for row in train], [finished(row) for row in test], rejected, report)


def checked(row: Row, schema: dict[str, str], question_column: str, answer_column: str) -> Row:
    """The row with its types, a `question`, an `answer`, and a GSM8K answer's working as `solution`.

    Raises ValueError with the reason.
    """
    row = cast(row, schema)
    question, answer = row.get(question_column), gold_answer(row.get(answer_column))
    if not isinstance(question, str) or not question.strip():
        raise ValueError("the question is missing or empty")
    if not answer:
        raise ValueError("the answer is missing or empty")
    if any("\ud800" <= char <= "\udfff" for value in row.values() if isinstance(value, str) for char in value):
        raise ValueError("a text has half a surrogate pair: it is not valid Unicode")
    if answer.casefold() in ("nan", "n/a", "none", "null"):
        raise ValueError(f"the answer is {answer!r}: that is no answer")
    if any("\ufffd" in value for value in row.values() if isinstance(value, str)):
        raise ValueError("a text is not valid UTF-8: save the file again in UTF-8")
    raw = str(row[answer_column])
    worked = {"solution": raw.rpartition("####")[0].strip()} if "####" in raw and "solution" not in row else {}
    return {**row, **worked, "question": question.strip(), "answer": answer}


def split(rows: list[Row], test_share: float, seed: int) -> tuple[list[Row], list[Row]]:
    """By the rows' own `split` column where it names a test side, else at random with the seed."""
    named = [str(row.get("split", "")).casefold() in ("test", "validation", "val", "eval") for row in rows]
    if not any(named):
        order = list(range(len(rows)))
        random.Random(seed).shuffle(order)
        held_out = set(order[: max(1, round(test_share * len(rows)))])
        named = [i in held_out for i in range(len(rows))]
    return [r for r, out in zip(rows, named) if not out], [r for r, out in zip(rows, named) if out]


def deduplicate(train: list[Row], test: list[Row], reject: Callable[[Row, str], None]) -> tuple[list[Row], list[Row]]:
    """Without repeated questions; one that is on both sides stays on the test side only."""
    seen: dict[str, str] = {}
    kept: dict[str, list[Row]] = {"test": [], "train": []}
    for side, part in (("test", test), ("train", train)):
        for row in part:
            key = normalise(row["question"])
            if key not in seen:
                seen[key] = side
                kept[side].append(row)
            else:
                reject(row, "duplicate question" if seen[key] == side else "leak: the question is also in the test set")
    return kept["train"], kept["test"]


def take_shots(train: list[Row], n_shots: int, seed: int) -> tuple[list[Row], list[tuple[str, str, str]]]:
    """Few-shot examples with a worked solution, and the training rows without them."""
    if not n_shots:
        return train, []
    worked = [row for row in train if isinstance(row.get("solution"), str) and row["solution"].strip()]
    if len(worked) < n_shots:
        raise DataError(
            f"{n_shots} few-shot examples need rows with a text column 'solution' (the worked reasoning); "
            f"there are {len(worked)}. Name yours 'solution', or set N_SHOTS to 0."
        )
    chosen = random.Random(seed).sample(worked, n_shots)
    taken = {id(row) for row in chosen}
    shots = [(row["question"], row["solution"], row["answer"]) for row in chosen]
    return [row for row in train if id(row) not in taken], shots


def length_limit(lengths: list[int], generous: int = 512) -> int:
    """The longest prompt where that is at most `generous` tokens, else what 99 % of the prompts need."""
    longest = max(lengths, default=0)
    if longest > generous:
        longest = sorted(lengths)[int(0.99 * (len(lengths) - 1))]
    return -(-longest // 16) * 16


def finished(row: Row) -> Row:
    """The row as it is saved: prompt, answer, and the other columns under names that TRL leaves alone."""
    own = {k: v for k, v in row.items() if not k.startswith("_") and k not in ("answer", "split")}
    renamed = {f"{k}_" if k in RESERVED else k: v for k, v in own.items()}
    return {"prompt": row["_prompt"], "answer": row["answer"], **renamed}


def save(prepared: Prepared, folder: Path) -> Path:
    """Writes `train/`, `test/`, `report.json` and `rejected.jsonl` into the folder, all or nothing.

    Raises DataError where a column holds values of different types.
    """
    import pyarrow
    from datasets import Dataset

    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    for name, rows in (("train", prepared.train), ("test", prepared.test)):
        try:
            Dataset.from_list(rows).save_to_disk(str(new / name))
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
            raise DataError(f"A column holds values of different types: declare its type in SCHEMA. ({error})") from error
    lines = [json.dumps(row, ensure_ascii=False, default=str) for row in prepared.rejected]
    write_text(new / "rejected.jsonl", "".join(line + "\n" for line in lines))
    write_json(new / "report.json", prepared.report)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    return folder


def load_split(folder: Path, name: str) -> Any:
    """The `train` or `test` data set that notebook 01 saved under `folder/dataset`.

    Raises DataError where its prompts ask for another format than rewards.py now expects.
    """
    from datasets import load_from_disk

    report = read_json(folder / "dataset" / "report.json", "01_prepare_data")
    if report["format"] != repr(FORMAT):
        raise DataError(
            f"The prompts in {relative(folder / 'dataset')} ask for {report['format']}, and rewards.py now expects {FORMAT}: "
            "run notebook 01_prepare_data again."
        )
    return load_from_disk(str(folder / "dataset" / name))
