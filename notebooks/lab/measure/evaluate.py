"""Every model answers the same held-out prompts, with the same template and decoding. The answers are kept."""

import hashlib
import json
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from tqdm.auto import tqdm

from lab.data.columns import data_columns
from lab.files import Row, relative, write_parquet
from lab.model.prompts import logged_prompt, question_of, render
from lab.model.sampling import batches, sample_batches
from scoring.errors import InputError

GREEDY, SAMPLED = "greedy", "sampled"
PLACE = ["row", "decoding", "sample"]
FROM_MODEL = ["completion", "tokens", "finished", "seconds"]
ASKED = "asked"  # column: a hash of the model, prompts and settings that the answers belong to


@dataclass(frozen=True)
class AnswerSettings:
    """How every model is asked. Raises InputError for settings that cannot be."""

    max_new_tokens: int
    temperature: float = 1.0  # of the sampled answers
    n_samples: int = 4  # sampled answers to each problem, beside the greedy one; 0 for none
    batch_size: int = 64  # completions generated at once
    seed: int = 3407
    stop: tuple[str, ...] = ()  # texts that end an answer

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        least = min(self.max_new_tokens, self.batch_size, self.n_samples + 1)
        if least < 1 or self.temperature <= 0 or "" in self.stop:
            raise InputError(
                "max_new_tokens and batch_size must be at least 1, n_samples at least 0, the temperature above 0 "
                f"(greedy answers are given anyway), and no stop text empty: {self}"
            )

    @property
    def decodings(self) -> list[tuple[str, int, float]]:
        """(name, answers to each problem, temperature) of the ways in which every model is asked."""
        return [(GREEDY, 1, 0.0)] + [(SAMPLED, self.n_samples, self.temperature)] * bool(self.n_samples)


def collect_answers(
    model: Any, tokenizer: Any, rows: Sequence[Row], settings: AnswerSettings, path: Path, identity: str, *, name: str
) -> pd.DataFrame:
    """One model's answers to the held-out rows, greedy and sampled, kept as Parquet at `path`.

    Each batch is written beside it. A killed evaluation continues with the first missing batch, and gives the same
    answers as one that was not killed. Answers that are there already are read instead.

    Args:
        model: a model, or a function that loads one, called only where an answer is missing.
        identity: what tells the model's weights from any others, such as a hash of its files.

    Returns a line an answer: row, decoding ("greedy" or "sampled"), sample (from 0), prompt, question, gold,
    data/<column>, completion, tokens, finished (not cut), seconds (its part of the batch's), asked (a hash).
    Raises InputError without rows, and OSError where nothing can be written; all earlier batches stay.
    """
    rows, path = list(rows), Path(path)
    if not rows:
        raise InputError("there are no held-out rows to answer: run notebook 01_prepare_data, or evaluate more of them")
    texts = [render(tokenizer, row["prompt"]) for row in rows]
    asked = json.dumps([identity, texts, asdict(settings)]).encode("utf-8", errors="surrogatepass")
    asked = hashlib.sha256(asked).hexdigest()[:16]
    table = read_answers(path, expected_answers(range(len(rows)), settings.decodings), asked)
    if table is not None:
        print(f"{name}: the answers in {relative(path)} are used again. Delete the file to ask the model anew.")
        return with_rows(table, rows, tokenizer)
    parts = path.parent / f".{path.stem}.parts"
    table = pd.concat(answer_batches(model, tokenizer, rows, settings, parts / asked, name), ignore_index=True)
    table = with_rows(table.sort_values(["decoding", "row", "sample"]).assign(**{ASKED: asked}), rows, tokenizer)
    write_parquet(table, path)
    shutil.rmtree(parts, ignore_errors=True)
    return table


def answer_batches(
    model: Any, tokenizer: Any, rows: Sequence[Row], settings: AnswerSettings, parts: Path, name: str
) -> Iterator[pd.DataFrame]:
    """The batches' answers: those of earlier attempts, then the missing ones, each written as soon as it is there."""
    prompts = [row["prompt"] for row in rows]
    texts = [render(tokenizer, prompt) for prompt in prompts]
    for decoding, n, temperature in settings.decodings:
        plan = batches(texts, n, settings.batch_size)
        files = [parts / f"{decoding}-{number:05d}.parquet" for number in range(len(plan))]
        expected = (expected_answers(batch, [(decoding, n, temperature)]) for batch in plan)
        tables = enumerate(map(read_answers, files, expected))
        there = {number: table for number, table in tables if table is not None}
        yield from there.values()
        if len(there) == len(plan):
            continue
        model = model if hasattr(model, "generate") else model()
        how = asdict(settings) | {"n": n, "temperature": temperature, "skip": there}
        del how["n_samples"]
        label = f"{name}, {GREEDY if decoding == GREEDY else f'temperature {temperature:g}'}"
        missing = [file for number, file in enumerate(files) if number not in there]
        with tqdm(total=len(rows), initial=sum(len(plan[k]) for k in there), desc=label, unit="prompt") as bar:
            for file, (places, groups, seconds) in zip(missing, sample_batches(model, tokenizer, prompts, **how)):
                answers = [(row, k, one) for row, group in zip(places, groups) for k, one in enumerate(group)]
                each = seconds / len(answers)
                lines = [(row, decoding, k, one.text, one.tokens, one.finished, each) for row, k, one in answers]
                table = pd.DataFrame(lines, columns=PLACE + FROM_MODEL)
                write_parquet(table, file)
                bar.update(len(places))
                yield table


def expected_answers(places: Collection[int], decodings: Sequence[tuple[str, int, float]]) -> set[tuple[int, str, int]]:
    """(row, decoding, sample) of the answers that must be there."""
    return {(row, decoding, k) for decoding, n, _ in decodings for row in places for k in range(n)}


def read_answers(path: Path, expected: set[tuple[int, str, int]], asked: str | None = None) -> pd.DataFrame | None:
    """The kept answers; None where the file is missing or damaged, or has other answers than those expected."""
    try:
        table = pd.read_parquet(path, columns=PLACE + FROM_MODEL + [ASKED] * (asked is not None))
    except (OSError, ValueError, KeyError, pa.ArrowException):
        return None
    there = [*zip(table["row"], table["decoding"], table["sample"])]
    whole = len(there) == len(expected) and set(there) == expected and not table.isna().any(axis=None)
    return table if whole and (asked is None or set(table[ASKED]) == {asked}) else None


def with_rows(answers: pd.DataFrame, rows: Sequence[Row], tokenizer: Any) -> pd.DataFrame:
    """Answers with their prompts, questions, golds and data columns, as these are now."""
    columns = data_columns([{name: row[name] for name in row if name not in ("question", "answer")} for row in rows])
    about = {"prompt": [logged_prompt(tokenizer, row["prompt"]) for row in rows]}
    about["question"] = [str(row.get("question") or question_of(row["prompt"])) for row in rows]
    about["gold"] = [str(row["answer"]) for row in rows]
    about = pd.DataFrame({**about, **columns}).iloc[answers["row"]].reset_index(drop=True)
    answers = answers.reset_index(drop=True)
    return pd.concat([answers[PLACE], about, answers.drop(columns=PLACE)], axis=1)
