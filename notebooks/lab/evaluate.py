"""A fair before and after: the same held-out prompts, template and decoding for every model, and how sure the difference is.

`answer` asks each model and keeps what it said, `graded` scores that, `compare` makes `evaluation.json` of it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import numbers
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from rewards import assistant_prefix, correctness_reward, extract_answer, format_reward, same_answer

from lab.files import relative
from lab.policy import Sampled, batches, render, sample_batches
from lab.run_folder import write_table

Row = dict[str, Any]
GREEDY, SAMPLED = "greedy", "sampled"

# --------------------------------------------------------------------------- asking the models

KEPT = ["row", "decoding", "sample", "completion", "tokens", "finished", "seconds"]  # what only the model can say
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
        if self.max_new_tokens < 1 or self.batch_size < 1 or self.n_samples < 0 or self.temperature <= 0 or "" in self.stop:
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
        say(f"{name}: these answers are in {relative(path)} already, and none is given again (to force it, delete the file).")
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
    from lab.training import data_columns  # which loads transformers

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


# --------------------------------------------------------------------------- scoring the answers


def deciding(functions: Sequence[Any], weights: Sequence[float]) -> list[Any]:
    """The rewards that say whether an answer is right: those that claim it and pay for it."""
    return [function for function, weight in zip(functions, weights, strict=True) if function.claims_correctness and weight > 0]


def graded(
    table: pd.DataFrame, rows: Sequence[Row], functions: Sequence[Any], decides: Sequence[Any] = (), threshold: float = 0.5
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
            raise ValueError(f"{function.__name__} decides what is right, but has no range: give it one, adopt(f, low=…, high=…)")
    every = {function.__name__: function for function in (*functions, *decides)}
    table, rows, texts = table.reset_index(drop=True), list(rows), []
    table["correct_by"] = ", ".join(function.__name__ for function in decides)
    for _, part in table.groupby("decoding"):  # apart: a greedy answer belongs to no group
        pairs = [(rows[r], Sampled(text, n, bool(done))) for r, text, n, done in zip(*(part[c] for c in ("row", *KEPT[3:6])))]
        called = trl_call(pairs)
        for name, function in every.items():
            table.loc[part.index, f"reward/{name}"] = np.array(function(**called), dtype=float)
        table.loc[part.index, "format"] = np.array(format_reward(**called), dtype=float)
    for r, text in zip(table["row"], table["completion"]):
        texts.append(assistant_prefix(rows[r]["prompt"]) + text)
    places = [(table[f"reward/{f.__name__}"] - f.low) / (f.high - f.low) for f in decides]
    mean = pd.concat(places, axis=1).mean(axis=1)
    table["correct"] = (mean >= threshold).astype(float).where(mean.notna())
    table["right_anyhow"] = [float(right_anyhow(text, gold)) for text, gold in zip(table["completion"], table["gold"])]
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


# --------------------------------------------------------------------------- statistics of one measure


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


LEVELS = 64  # different values up to which drawing how often each comes is faster than drawing the examples
BLOCK = 2_000_000  # numbers drawn at once


def bootstrap_mean(values: Sequence[float], seed: int = 0, draws: int = 10_000) -> dict[str, float]:
    """Mean of independent values with its 95 % percentile interval over draws with replacement.

    10,000 values take a second, and a millisecond where they are few different ones.
    """
    values = np.asarray(values, dtype=float)
    n, rng = len(values), np.random.default_rng(seed)
    levels, counts = np.unique(values, return_counts=True)
    if len(levels) <= LEVELS:
        means = rng.multinomial(n, counts / n, size=draws) @ levels / n
    else:
        sizes = [min(max(1, BLOCK // n), draws - start) for start in range(0, draws, max(1, BLOCK // n))]
        means = np.concatenate([values[rng.integers(n, size=(size, n), dtype=np.int32)].mean(axis=1) for size in sizes])
    low, high = np.quantile(means, [0.025, 0.975])
    return {"estimate": float(values.mean()), "low": float(low), "high": float(high)}


def interval(values: Sequence[float], low: float, high: float, seed: int = 0) -> dict[str, float]:
    """Mean over problems of values between `low` and `high`, with its 95 % interval.

    Where all n values are the same (mostly all 0 or all 1) a bootstrap would claim certainty. Then a share of up to
    s = 1 - 0.025^(1/n) of the problems may be unlike those seen (Clopper and Pearson 1934 for 0 of n; about 3.7 / n),
    and the bounds are the mean with that share off by 1: in a difference, one of the two models answers otherwise.

    >>> {name: round(value, 3) for name, value in interval([1.0] * 500, 0, 1).items()}
    {'estimate': 1.0, 'low': 0.993, 'high': 1.0}
    """
    values = np.asarray(values, dtype=float)
    value, unseen = float(values.mean()), 1 - 0.025 ** (1 / len(values))
    if np.ptp(values) < 1e-12:
        return {"estimate": value, "low": max(float(low), value - unseen), "high": min(float(high), value + unseen)}
    return bootstrap_mean(values, seed)


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact p-value that as many would be gained as lost (McNemar 1947, the binomial form).

    >>> round(mcnemar(10, 2), 4), mcnemar(0, 0)
    (0.0386, 1.0)
    """
    n, term, tail = int(gained) + int(lost), 1, 0
    for i in range(int(min(gained, lost)) + 1):  # Python's whole numbers: exact for thousands of pairs too
        tail += term
        term = term * (n - i) // (i + 1)
    return min(1.0, 2 * tail / 2**n)


FEWEST_CHANGES = 6  # that can be told from chance, all in one direction: 2 / 2^6 < 0.05


def sign_flips(change: Sequence[float], seed: int = 0, draws: int = 10_000) -> float:
    """Two-sided p-value that a mean of paired differences is this far from 0 by chance (Fisher's randomisation test).

    If both models are alike, each difference could as well have the other sign: all 2^n are tried for up to 12
    differences that are not 0, and `draws` random ones for more.

    >>> sign_flips([1, 1, 1]), sign_flips([0, 0])
    (0.25, 1.0)
    """
    change = np.asarray(change, dtype=float)
    change = change[change != 0]
    if not len(change):
        return 1.0
    if len(change) <= 12:
        signs = 1 - 2 * (np.arange(2 ** len(change))[:, None] >> np.arange(len(change)) & 1)
        return float((np.abs(signs @ change) >= abs(change.sum()) - 1e-9).mean())
    rng, far = np.random.default_rng(seed), 0
    for _ in range(10):
        signs = 1 - 2 * rng.integers(0, 2, size=(draws // 10, len(change)), dtype=np.int8)
        far += int((np.abs(signs @ change) >= abs(change.sum()) - 1e-9).sum())
    return (1 + far) / (1 + draws)


def problems_needed(gained: int, lost: int, n: int) -> int:
    """About how many problems show a gain as large as this one, at 5 % two-sided with a power of 80 % (Connor 1987).

    At least as many as have `FEWEST_CHANGES` changed verdicts: with fewer no exact test can show anything.

    >>> problems_needed(30, 24, 500), problems_needed(3, 0, 3)
    (5885, 6)
    """
    apart, gain = (gained + lost) / n, (gained - lost) / n
    power = math.ceil(((1.96 * math.sqrt(apart) + 0.8416 * math.sqrt(apart - gain**2)) / gain) ** 2)
    return max(power, math.ceil(FEWEST_CHANGES / apart))


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


def votes(answers: Sequence[str | None], right: Sequence[float]) -> tuple[tuple[tuple[int, float], ...], int]:
    """((samples, share of them right) of each different answer, how many samples gave none).

    >>> votes(["12", "13", "12.0", None], [1, 0, 1, 0])
    (((2, 1.0), (1, 0.0)), 1)
    """
    said: list[tuple[str, list[float]]] = []
    for text, is_right in zip(answers, right):
        if isinstance(text, str):
            alike = (marks for one, marks in said if one == text or same_answer(text, one) or same_answer(one, text))
            marks = next(alike, None)
            said.append((text, [is_right])) if marks is None else marks.append(is_right)
    counted = tuple((len(marks), sum(marks) / len(marks)) for _, marks in said)
    return counted, len(answers) - sum(count for count, _ in counted)


@functools.lru_cache(maxsize=65_536)
def majority_at_k(said: tuple[tuple[int, float], ...], silent: int, k: int) -> float:
    """Expected share right of the commonest answer among k samples drawn without replacement (Wang et al. 2022, maj@k).

    Answers that are equally common share the credit. A sample without an answer does not vote; k without any are wrong.
    Exact: for every number w of votes that can win, the ways to draw k with w as the most are counted by how many
    answers have w (one axis) and how many samples are drawn (the other), and beside them the credit of those.

    >>> majority_at_k(((3, 1.0), (1, 0.0)), 0, 4), majority_at_k(((2, 1.0), (2, 0.0)), 0, 4)
    (1.0, 0.5)
    """
    total = 0.0
    for w in range(1, min(k, max((count for count, _ in said), default=0)) + 1):
        ways = np.zeros((k + 1, k // w + 1))  # [samples drawn, answers with w votes]
        credit, ways[0, 0] = np.zeros_like(ways), 1.0
        for count, right in said:
            drawn, earned = np.zeros_like(ways), np.zeros_like(ways)
            for u in range(min(count, w - 1) + 1):
                drawn[u:] += math.comb(count, u) * ways[: k + 1 - u]
                earned[u:] += math.comb(count, u) * credit[: k + 1 - u]
            if count >= w:
                drawn[w:, 1:] += math.comb(count, w) * ways[: k + 1 - w, :-1]
                earned[w:, 1:] += math.comb(count, w) * (credit + right * ways)[: k + 1 - w, :-1]
            ways, credit = drawn, earned
        rest = np.array([math.comb(silent, k - s) for s in range(k + 1)], dtype=float)
        total += float((rest[:, None] * credit)[:, 1:].sum(axis=0) @ (1 / np.arange(1, k // w + 1)))
    return total / math.comb(sum(count for count, _ in said) + silent, k)


# --------------------------------------------------------------------------- base, adapter and merged model compared

SHARES = ("format", "correct", "right_anyhow", "finished", "pass@", "maj@")  # measures between 0 and 1
USUAL_COLUMNS = ("template", "level", "category", "subject")  # by which a person would compare unasked
PASSED = 0.05  # a p-value below it counts


def compare(
    tables: dict[str, pd.DataFrame],
    settings: Settings,
    *,
    seed: int = 0,
    baseline: str = "base",
    other: str = "merged",
    overlap: Any = None,
    by: Sequence[str] = (),
) -> dict[str, Any]:
    """The content of `evaluation.json`: each model, the paired differences, and what they show.

    A problem of which a deciding reward cannot say whether an answer is right is left out, for all models, and counted.

    Args:
        tables: by model, as `graded` makes them, of the same rows.
        other: the model that the verdict is on, against the baseline.
        overlap: what `lab.overlap.check` found of the rows' questions; then there are lines by its kinds too.
        by: columns by whose values the greedy answers are compared, such as "data/template".

    Raises:
        ValueError: for other questions or another order, a missing model or column, or nothing that can be compared.
    """
    check(tables, baseline, other)
    tables = {name: table.sort_values(["decoding", "row", "sample"]) for name, table in tables.items()}
    unknown = set().union(*(table.loc[table["correct"].isna(), "row"] for table in tables.values()))
    tables = {name: table[~table["row"].isin(unknown)] for name, table in tables.items()}
    n = tables[baseline]["row"].nunique()
    if not n:
        raise ValueError("no answer could be scored: the deciding rewards say None to each, so look at the gold answers")
    first = tables[baseline][tables[baseline]["decoding"] == GREEDY]
    found = {name: per_problem(table) for name, table in tables.items()}
    record = {
        "n": n, "left_out": len(unknown), "models": list(tables), "baseline": baseline, "other": other,
        "settings": {**asdict(settings), "stop": list(settings.stop)}, "correct_by": str(first["correct_by"].iloc[0]),
        **{kind: {m: measured(found[m], tables[m], kind, seed) for m in tables} for kind in (GREEDY, SAMPLED)},
        "difference": {
            m if against == baseline else f"{m} against {against}": differences(found[against], found[m], seed)
            for m, against in pairs(tables, baseline, other)
        },
    }  # fmt: skip
    record["verdict"] = verdicts(record)
    record["said"] = " ".join(sentences(record))
    sides = [found[m][GREEDY]["correct"] for m in (baseline, other)]
    record["by"] = {column: lines_by(values, *sides, seed) for column, values in asked_for(first, by, overlap).items()}
    record["overlap"] = None if overlap is None else {"counts": overlap.counts, "said": overlap.said}
    if seen := 0 if overlap is None else overlap.counts.get("identical", 0):
        record["said"] += f" {seen} of the problems stand in the training set word for word: look at the figures by overlap."
    record["seconds"] = {f"answer_{m}": round(float(table["seconds"].sum()), 1) for m, table in tables.items()}
    return record


def check(tables: dict[str, pd.DataFrame], baseline: str, other: str) -> None:
    """Raises ValueError unless these models can be compared."""
    missing = [name for name in (baseline, other) if name not in tables]
    if missing:
        there = ", ".join(tables) or "no model"
        raise ValueError(f"there are no answers of {missing[0]!r}, only of {there}: let that model answer too")
    first = tables[baseline].sort_values(["decoding", "row", "sample"])
    if first.empty:
        raise ValueError("there are no answers to compare: evaluate at least one held-out problem")
    for name, table in tables.items():
        table = table.sort_values(["decoding", "row", "sample"])
        for column in ("decoding", "row", "sample", "prompt", "question", "gold"):
            if list(table[column]) != list(first[column]):
                raise ValueError(
                    f"all models must answer the same questions in the same order, and {column} of {name!r} is not that of "
                    f"{baseline!r}: let both answer again, with the same rows and settings"
                )
        if set(table["correct_by"]) != set(first["correct_by"]):
            raise ValueError(f"{name!r} and {baseline!r} were judged by different rewards: grade all models with the same ones")


def pairs(tables: dict[str, Any], baseline: str, other: str) -> list[tuple[str, str]]:
    """(model, the one that it is compared with): all with the baseline, and `other` with the rest."""
    rest = [name for name in tables if name not in (baseline, other)]
    return [(other, baseline), *((name, baseline) for name in rest), *((other, name) for name in rest)]


def asked_for(first: pd.DataFrame, by: Sequence[str], overlap: Any) -> dict[str, list]:
    """The columns to compare by, with a value a problem."""
    missing = [name for name in by if name not in first]
    if missing:
        there = [name for name in first if name.startswith("data/")]
        raise ValueError(f"the answers have no column {missing[0]!r}; there are: {', '.join(there) or 'none'}")
    kinds = {} if overlap is None else {"overlap": [overlap.kinds[row] for row in first["row"]]}
    return {**{name: list(first[name]) for name in by}, **kinds}


def columns_by(asked: Sequence[str] | None, columns: Sequence[str]) -> list[str]:
    """The data set's columns to compare by, as the answers call them: those asked for, or the usual ones that are there.

    >>> columns_by(None, ["answer", "template"]), columns_by([], ["template"])
    (['data/template'], [])

    Raises ValueError for a column that the data set does not have.
    """
    missing = [name for name in asked or () if name not in columns]
    if missing:
        raise ValueError(f"BY names {missing[0]!r}; the data set's columns are: {', '.join(columns)}.")
    return [f"data/{name}" for name in (USUAL_COLUMNS if asked is None else asked) if name in columns]


def sizes(n: int) -> list[int]:
    """How many samples pass@k and maj@k are told for: the powers of two, and all.

    >>> sizes(6), sizes(0)
    ([1, 2, 4, 6], [])
    """
    return [2**i for i in range(n.bit_length()) if 2**i < n] + [n] * bool(n)


def per_problem(table: pd.DataFrame) -> dict[str, dict[str, np.ndarray]]:
    """By decoding and measure: a value a problem, the mean of its answers; NaN where a reward says None to all."""
    found: dict[str, dict[str, np.ndarray]] = {GREEDY: {}, SAMPLED: {}}
    names = ["format", "correct", "right_anyhow", "finished", "tokens", *every_reward(table)]
    for decoding, part in table.groupby("decoding"):
        means = part.groupby("row")[names].mean()
        found[decoding] = {name: means[name].to_numpy(dtype=float) for name in names}
        if decoding == SAMPLED:
            found[decoding] = {**of_groups(part), **{name: found[decoding][name] for name in names if name != "correct"}}
    return found


def of_groups(part: pd.DataFrame) -> dict[str, np.ndarray]:
    """pass@k and maj@k of each problem, from its sampled answers."""
    groups = [group for _, group in part.groupby("row")]
    n = len(groups[0])
    right = [int(group["correct"].sum()) for group in groups]
    said = [votes(list(group["extracted"]), list(group["correct"])) for group in groups]
    passed = {f"pass@{k}": np.array([pass_at_k(n, c, k) for c in right]) for k in sizes(n)}
    agreed = {f"maj@{k}": np.array([majority_at_k(*one, k) for one in said]) for k in sizes(n) if k >= 3}
    return {**passed, **agreed}


def bounds(name: str, difference: bool = False) -> tuple[float, float] | None:
    """The ends of a measure's range; None where it has none that is known."""
    return (-1.0 if difference else 0.0, 1.0) if name.startswith(SHARES) else None


def estimated(name: str, values: np.ndarray, seed: int, difference: bool = False) -> dict[str, float] | None:
    """The mean over problems with its interval; problems that a reward says nothing of are left out."""
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    ends = bounds(name, difference)
    if not ends and len(values) < 2:
        return {"estimate": float(values.mean()), "low": math.nan, "high": math.nan}  # one value has no spread
    return interval(values, *ends, seed) if ends else bootstrap_mean(values, seed)


def measured(found: dict[str, dict[str, np.ndarray]], table: pd.DataFrame, decoding: str, seed: int) -> dict[str, Any]:
    """One model's measures with their intervals, and how fast it was; empty where it was not asked so."""
    part = table[table["decoding"] == decoding]
    if part.empty:
        return {}
    seconds, tokens = float(part["seconds"].sum()), int(part["tokens"].sum())
    fast = {"completions": len(part), "seconds": round(seconds, 2), "tokens_per_second": round(tokens / max(seconds, 1e-9), 1)}
    return {**{name: estimated(name, values, seed) for name, values in found[decoding].items()}, **fast}


def differences(before: dict[str, dict], after: dict[str, dict], seed: int) -> dict[str, dict[str, Any]]:
    """By decoding and measure: the paired difference, and for greedy shares who was gained and lost, with McNemar's p."""
    result: dict[str, dict[str, Any]] = {GREEDY: {}, SAMPLED: {}}
    for decoding, names in result.items():
        for name in before[decoding]:
            change = after[decoding][name] - before[decoding][name]
            one = estimated(name, change, seed, difference=True)
            if one is None:
                continue
            names[name] = {**one, "n": int((~np.isnan(change)).sum())}
            if decoding == GREEDY and name.startswith(SHARES):
                gained, lost = int((change > 0).sum()), int((change < 0).sum())
                names[name] |= {"gained": gained, "lost": lost, "p": mcnemar(gained, lost)}
            elif name.startswith(SHARES):
                names[name]["p"] = sign_flips(change[~np.isnan(change)], seed)
    return result


# --------------------------------------------------------------------------- what is said of it

BETTER, WORSE, NO_GAIN = "better", "worse", "no gain shown"
CUT_FROM = 0.9  # share of answers that end by themselves; below it what was cut is told
ROUGH = 100  # problems; with fewer an interval is rough


def verdict_of(found: dict[str, Any]) -> str:
    """Better or worse where the interval leaves 0 out and, where there is an exact p-value, it agrees."""
    if found["low"] <= 0 <= found["high"] or found.get("p", 0) >= PASSED:
        return NO_GAIN
    return BETTER if found["estimate"] > 0 else WORSE


def verdicts(record: dict[str, Any]) -> dict[str, str]:
    """Of the model in question against the baseline: by greedy correct, and by pass@1 where samples were taken."""
    change = record["difference"][record["other"]]
    found = {"correct": change[GREEDY]["correct"], "pass@1": change[SAMPLED].get("pass@1")}
    return {name: verdict_of(one) for name, one in found.items() if one}


def sentences(record: dict[str, Any]) -> Iterator[str]:
    """What a person should know of the comparison, the verdicts first."""
    change, k = record["difference"][record["other"]], record["settings"]["n_samples"]
    yield from said_of(record, "correct", change[GREEDY]["correct"], "correct, greedy")
    if "pass@1" in change[SAMPLED]:
        label = f"pass@1 at temperature {record['settings']['temperature']:g}"
        yield from said_of(record, "pass@1", change[SAMPLED]["pass@1"], label)
    most = change[SAMPLED].get(f"pass@{k}")
    if k > 1 and BETTER in record["verdict"].values() and verdict_of(most) == WORSE:
        yield (
            f"But pass@{k} fell by {-100 * most['estimate']:.1f} points (95 % interval {span(most)}): of {k} attempts fewer "
            "problems are solved at all. That is known of RL (Yue et al. 2025): answers get surer, and less varied."
        )
    for kind, label in ((GREEDY, "greedy"), (SAMPLED, "sampled")):
        done = {m: record[kind][m]["finished"]["estimate"] for m in (record["baseline"], record["other"]) if record[kind][m]}
        if done and min(done.values()) < CUT_FROM:
            cut = " and ".join(f"{100 * (1 - share):.0f} % of {m}'s" for m, share in done.items())
            yield f"{cut} {label} answers were cut at {record['settings']['max_new_tokens']} tokens."
    if record["n"] < ROUGH:
        yield f"With {record['n']} problems an interval is rough: evaluate {ROUGH} or more before you rely on it."
    if record["left_out"]:
        lost, judge = record["left_out"], record["correct_by"]
        yield f"Left out: {lost} of {record['n'] + lost} problems, of which {judge} cannot say what is right."


def said_of(record: dict[str, Any], name: str, found: dict[str, Any], label: str) -> Iterator[str]:
    head = {BETTER: "A gain was shown", WORSE: "A loss was shown", NO_GAIN: "No gain was shown"}[record["verdict"][name]]
    test = "McNemar's test" if "gained" in found else "sign flips"
    p = f", p {p_text(found['p'])} by {test}" if "p" in found else ""
    yield f"{head} ({label}): {signed(found['estimate'])} points, 95 % interval {span(found)}, n = {record['n']}{p}."
    if record["verdict"][name] == NO_GAIN and found.get("gained", 0) > found.get("lost", 0):
        needed = problems_needed(found["gained"], found["lost"], record["n"])
        if needed > record["n"]:
            yield f"About {needed:,} problems would be needed to show a gain of this size."


def signed(value: float, factor: float = 100) -> str:
    """A difference as it is read, in points.

    >>> signed(0.0042), signed(-0.012), signed(-1e-9)
    ('+0.4', '−1.2', '+0.0')
    """
    return f"{round(factor * value, 1) + 0.0:+.1f}".replace("-", "−")


def span(found: dict[str, Any], factor: float = 100) -> str:
    """An interval as it is read, in points."""
    return f"{signed(found['low'], factor)} to {signed(found['high'], factor)}"


def p_text(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"= {p:.2g}"


# --------------------------------------------------------------------------- where it got better and worse

QUARTILES_FROM = 9  # different numbers; fewer are lines of their own
MOST_VALUES, COMMONEST = 24, 20  # different texts that have lines of their own; of more, only the commonest


def lines_by(values: Sequence[Any], before: np.ndarray, after: np.ndarray, seed: int) -> list[dict[str, Any]]:
    """A line for each value of a column: its problems, both models' share right, the difference; the worst first."""
    found, labels = [], np.array(labelled(values), dtype=object)
    for label in dict.fromkeys(labels):
        one, two = before[labels == label], after[labels == label]
        change = two - one
        found.append(
            {
                "value": label, "n": len(one), "base": float(one.mean()), "merged": float(two.mean()),
                **interval(change, -1, 1, seed), "gained": int((change > 0).sum()), "lost": int((change < 0).sum()),
            }
        )  # fmt: skip
    return sorted(found, key=lambda line: (line["estimate"], -line["n"], line["value"]))


def labelled(values: Sequence[Any]) -> list[str]:
    """A text for each value: many numbers as quartiles, seldom texts among many as "others".

    >>> labelled([3, 1.5, None, True]), labelled(range(12))[::3]
    (['3', '1.5', 'none', 'True'], ['0 to 2', '3 to 5', '6 to 8', '9 to 11'])
    """
    series = pd.Series(list(values), dtype=object)
    there = series[series.notna()]
    if there.nunique() >= QUARTILES_FROM and all(isinstance(v, numbers.Real) and not isinstance(v, bool) for v in there):
        series[there.index] = quartiles(there.astype(float))
    texts = ["none" if lacks else plain(value) for value, lacks in zip(series, series.isna())]
    counts = pd.Series(texts).value_counts()
    kept = set(counts.index if len(counts) <= MOST_VALUES else counts.index[:COMMONEST])
    return [text if text in kept else "others" for text in texts]


def quartiles(values: pd.Series) -> pd.Series:
    """For each number the smallest and largest of its quarter; fewer than four quarters where most are one number."""
    part = np.searchsorted(np.quantile(values, [0.25, 0.5, 0.75]), values, side="left")
    ends = values.groupby(part).agg(["min", "max"])
    names = {one: f"{plain(low)} to {plain(high)}" if low < high else plain(low) for one, low, high in ends.itertuples()}
    return pd.Series([names[one] for one in part], index=values.index, dtype=object)


def plain(value: Any) -> str:
    """A value as a label: a whole number without a point, another one with six digits."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def changes(tables: dict[str, pd.DataFrame], baseline: str = "base", other: str = "merged") -> dict[str, pd.DataFrame]:
    """The problems whose greedy answer is right with one model only, or with neither.

    Returns:
        "regressions" (right before, wrong now), "gains" and "unchanged failures", each with question, gold, before,
        after (completions) and the shares of sampled answers that are right (NaN without samples). Those that
        the samples confirm most come first.
    """
    check(tables, baseline, other)
    sides = {side: tables[name] for side, name in (("before", baseline), ("after", other))}
    greedy = {side: table[table["decoding"] == GREEDY].set_index("row").sort_index() for side, table in sides.items()}
    shown = greedy["before"][["question", "gold"]].copy()
    for side, table in sides.items():
        shown[side] = greedy[side]["completion"]
    for side, table in sides.items():
        sampled = table[table["decoding"] == SAMPLED]
        shown[f"sampled right {side}"] = sampled.groupby("row")["correct"].mean().reindex(shown.index)
    change = shown["sampled right after"] - shown["sampled right before"]
    was, now = (greedy[side]["correct"] for side in sides)
    kinds = {"regressions": (was == 1) & (now == 0), "gains": (was == 0) & (now == 1)}
    kinds["unchanged failures"] = (was == 0) & (now == 0)
    order = {"regressions": change, "gains": -change, "unchanged failures": shown["sampled right after"]}
    places = {kind: order[kind][these].sort_values(kind="stable").index for kind, these in kinds.items()}
    return {kind: shown.loc[index].reset_index(drop=True) for kind, index in places.items()}


# --------------------------------------------------------------------------- tables for a reader


def summary(evaluation: dict[str, Any]) -> pd.DataFrame:
    """What a person reads: a line a measure, a column a model, and the difference of the verdict's two with its interval."""
    k, at = evaluation["settings"]["n_samples"], f", temperature {evaluation['settings']['temperature']:g}"
    measures = [(GREEDY, "format", "strict format, greedy"), (GREEDY, "correct", "correct, greedy")]
    measures += [(GREEDY, "right_anyhow", "right in any style, greedy"), (SAMPLED, "pass@1", f"pass@1{at}")]
    measures += [(SAMPLED, f"{name}@{k}", f"{name}@{k}{at}") for name in ("pass", "maj") if k > 1]
    measures += [(GREEDY, "finished", "not cut, greedy"), (SAMPLED, "finished", f"not cut{at}")]
    measures += [(GREEDY, "tokens", "mean tokens, greedy"), (SAMPLED, "tokens", f"mean tokens{at}")]
    measures += [(GREEDY, "tokens_per_second", "tokens a second, greedy"), (SAMPLED, "tokens_per_second", f"tokens a second{at}")]
    first = evaluation["baseline"]
    there = [one for one in measures if one[1] in evaluation[one[0]].get(first, {})]
    return pd.DataFrame({label: line(evaluation, kind, name) for kind, name, label in there}).T


def line(evaluation: dict[str, Any], decoding: str, name: str) -> dict[str, Any]:
    """A measure's line of `summary`."""
    share = bounds(name) is not None
    first, last = evaluation["baseline"], evaluation["other"]
    found = {}
    for model in (first, *(m for m in evaluation["models"] if m not in (first, last)), last):
        value = evaluation[decoding][model][name]
        value = value["estimate"] if isinstance(value, dict) else value
        found[model] = f"{100 * value:.1f} %" if share else f"{value:,.0f}" if name == "tokens_per_second" else f"{value:.1f}"
    change = evaluation["difference"][evaluation["other"]][decoding].get(name)
    if change is None:
        return {**found, "difference": "", "95 % interval": "", "p": "", "n": evaluation["n"]}
    factor, unit = (100, " points") if share else (1, "")
    return {
        **found,
        "difference": f"{signed(change['estimate'], factor)}{unit}",
        "95 % interval": span(change, factor),
        "p": p_text(change["p"]).removeprefix("= ") if "p" in change else "",
        "n": change["n"],
    }


def by_table(evaluation: dict[str, Any], column: str) -> pd.DataFrame:
    """The lines by a column's values as a person reads them, the worst first.

    Raises ValueError for a column that was not asked for.
    """
    if column not in evaluation["by"]:
        raise ValueError(f"there are no lines by {column!r}; there are: {', '.join(evaluation['by']) or 'none'}")
    found = [
        {
            column.removeprefix("data/"): one["value"], "n": one["n"],
            **{name: f"{100 * one[name]:.1f} %" for name in ("base", "merged")},
            "difference": f"{signed(one['estimate'])} points",
            "95 % interval": span(one),
            "gained": one["gained"], "lost": one["lost"],
        }
        for one in evaluation["by"][column]
    ]  # fmt: skip
    return pd.DataFrame(found)
