"""A fair before and after: the same held-out prompts, template and decoding for every model, and how sure the difference is.

`answer` asks each model and keeps what it said, `graded` scores that, `compare` makes `evaluation.json` of it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lab.files import Row, relative
from lab.measure.grading import KEPT
from lab.model.prompts import question_of, render
from lab.model.sampling import Sampled, batches, sample_batches
from lab.train.run_folder import write_table

GREEDY, SAMPLED = "greedy", "sampled"
ASKED = "asked"  # column: what model, prompts and settings the answers belong to


@dataclass(frozen=True)
class Settings:
    """How every model is asked.

    Raises ValueError for settings that cannot be.
    """

    max_new_tokens: int
    temperature: float = 1.0  # of the sampled answers
    n_samples: int = 4  # sampled answers to each problem, beside the greedy one; 0 for none
    batch_size: int = 64  # completions generated at once
    seed: int = 3407
    stop: tuple[str, ...] = ()  # texts that end an answer

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        if (
            self.max_new_tokens < 1
            or self.batch_size < 1
            or self.n_samples < 0
            or self.temperature <= 0
            or "" in self.stop
        ):
            raise ValueError(
                "max_new_tokens and batch_size must be at least 1, n_samples at least 0, the temperature above 0 "
                f"(greedy answers are given anyway), and no stop text empty: {self}"
            )

    @property
    def decodings(self) -> list[tuple[str, int, float]]:
        """(name, answers to each problem, temperature) of the ways in which every model is asked."""
        return [(GREEDY, 1, 0.0)] + [(SAMPLED, self.n_samples, self.temperature)] * bool(self.n_samples)


def answer(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    settings: Settings,
    path: Path,
    identity: str,
    *,
    name: str,
    say: Callable[[str], None] = print,
) -> pd.DataFrame:
    """One model's answers to the held-out rows, greedy and sampled, kept as Parquet at `path`.

    After each batch a part is written beside it: a killed evaluation goes on where it was, and gives the same
    answers as one that was not. Answers that are there already are read instead.

    Args:
        model: a model, or a function that loads one, called only where an answer is missing.
        rows: with `prompt` (chat messages), `answer` and whatever other columns.
        identity: what tells the model's weights from any others, such as a hash of its files.
        name: of the model, for the progress bars.

    Returns:
        A line an answer: row, decoding ("greedy" or "sampled"), sample (from 0), prompt, question, gold, data/<column>,
        completion, tokens, finished (not cut), seconds (its part of the batch's), asked (a hash).

    Raises:
        ValueError: without rows.
        OSError: where nothing can be written; all earlier batches stay.
    """
    rows = list(rows)
    if not rows:
        raise ValueError("there are no held-out rows to answer: run notebook 01_prepare_data, or evaluate more of them")
    path = Path(path)
    texts = [render(tokenizer, row["prompt"]) for row in rows]
    asked = fingerprint(identity, texts, settings)
    kept = read_answers(path, expected(range(len(rows)), settings.decodings), asked)
    if kept is not None:
        say(
            f"{name}: these answers are in {relative(path)} already, and none is given again (to force it, delete the file)."
        )
        return with_rows(kept, rows, tokenizer, texts)
    parts = path.parent / f".{path.stem}.parts"
    kept = pd.concat(asking(model, tokenizer, rows, texts, settings, parts / asked, name), ignore_index=True)
    kept = kept.sort_values(["decoding", "row", "sample"], ignore_index=True).assign(**{ASKED: asked})
    table = with_rows(kept, rows, tokenizer, texts)
    write_table(table, path)
    shutil.rmtree(parts, ignore_errors=True)
    return table


def fingerprint(identity: str, texts: Sequence[str], settings: Settings) -> str:
    whole = json.dumps([identity, list(texts), asdict(settings)])
    return hashlib.sha256(whole.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]


def asking(
    model: Any, tokenizer: Any, rows: Sequence[Row], texts: Sequence[str], settings: Settings, parts: Path, name: str
) -> Iterator[pd.DataFrame]:
    """The batches' answers: those of earlier attempts, then the missing ones, each kept as soon as it is there."""
    from tqdm.auto import tqdm

    for decoding, n, temperature in settings.decodings:
        plan = batches(texts, n, settings.batch_size)
        files = [parts / f"{decoding}-{number:05d}.parquet" for number in range(len(plan))]
        found = [read_answers(file, expected(batch, [(decoding, n, temperature)])) for file, batch in zip(files, plan)]
        yield from (table for table in found if table is not None)
        done = {number for number, table in enumerate(found) if table is not None}
        if len(done) == len(plan):
            continue
        model = model if hasattr(model, "generate") else model()
        how = {"max_new_tokens": settings.max_new_tokens, "batch_size": settings.batch_size, "seed": settings.seed}
        how |= {"n": n, "temperature": temperature, "stop": settings.stop, "skip": done}
        made = sample_batches(model, tokenizer, [row["prompt"] for row in rows], **how)
        label = f"{name}, {GREEDY if decoding == GREEDY else f'temperature {temperature:g}'}"
        with tqdm(total=len(rows), initial=sum(len(plan[k]) for k in done), desc=label, unit="prompt") as bar:
            for file, (places, groups, seconds) in zip([file for k, file in enumerate(files) if k not in done], made):
                table = lines(decoding, places, groups, seconds)
                write_table(table, file)
                bar.update(len(places))
                yield table


def lines(decoding: str, places: Sequence[int], groups: Sequence[Sequence[Sampled]], seconds: float) -> pd.DataFrame:
    """A batch's answers, a line each; its seconds are shared equally."""
    each = seconds / max(1, sum(map(len, groups)))
    answers = [(row, k, one) for row, group in zip(places, groups) for k, one in enumerate(group)]
    found = [(row, decoding, k, one.text, one.tokens, one.finished, each) for row, k, one in answers]
    return pd.DataFrame(found, columns=KEPT)


def expected(places: Collection[int], decodings: Sequence[tuple[str, int, float]]) -> set[tuple[int, str, int]]:
    """(row, decoding, sample) of the answers that must be there."""
    return {(row, decoding, k) for decoding, n, _ in decodings for row in places for k in range(n)}


def read_answers(path: Path, wanted: set[tuple[int, str, int]], asked: str | None = None) -> pd.DataFrame | None:
    """The kept answers; None where the file is missing or damaged, or has other answers than those wanted."""
    import pyarrow as pa

    columns = KEPT + [ASKED] * (asked is not None)
    try:
        table = pd.read_parquet(path, columns=columns)
    except (OSError, ValueError, KeyError, pa.ArrowException):
        return None
    there = set(zip(table["row"], table["decoding"], table["sample"]))
    if len(table) != len(wanted) or there != wanted or table.isna().any(axis=None):
        return None
    return None if asked is not None and set(table[ASKED]) != {asked} else table


def with_rows(kept: pd.DataFrame, rows: Sequence[Row], tokenizer: Any, texts: Sequence[str]) -> pd.DataFrame:
    """Answers with their prompts, questions, golds and data columns, as these are now."""
    from lab.data.dataset import data_columns  # which loads transformers

    ids = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    about = pd.DataFrame(
        {
            "prompt": tokenizer.batch_decode(ids, skip_special_tokens=True),
            "question": [str(row.get("question") or question_of(row["prompt"])) for row in rows],
            "gold": [str(row["answer"]) for row in rows],
            **data_columns([{name: row[name] for name in row if name not in ("question", "answer")} for row in rows]),
        }
    )
    about = about.iloc[kept["row"]].reset_index(drop=True)
    kept = kept.reset_index(drop=True)
    return pd.concat([kept[KEPT[:3]], about, kept[[name for name in kept if name not in KEPT[:3]]]], axis=1)
