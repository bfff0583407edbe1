"""All completions of a run as one table: SQL over its Parquet files, what is suspect in them, and a selection to read.

>>> from lab import runs
>>> from lab.completions import Completions
>>> with Completions(runs.read("outputs/run")) as completions:                                # doctest: +SKIP
...     completions.sql("select step, avg(total), max(tokens) from completions group by step order by step")
...     completions.sql("select prompt, completion from completions where step = 80 and not \\"right\\"")
...     completions.suspects()

The table `completions` has a row a completion: `step`, `group`, `place` (1 is the first of its group), `prompt`,
`completion`, a column a reward, `total` (the weighted sum, with the weights of that step), `right` (as the deciding
reward judged it), `advantage`, `tokens`, `prompt_tokens`, and whatever else the files have: `data/answer`, what a
reward logged with `log_extra`. Names with a slash or a bracket, and `group` and `right`, want double quotes.

The files stay where they are. What is small of each row (numbers, hashes of the texts) goes into a DuckDB file in a
temporary folder, which goes with the object; texts are read again where a query wants them. So a run of a million
completions needs no more memory than one of a hundred thousand.
"""

from __future__ import annotations

import functools
import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import rewards
from rapidfuzz import fuzz, process

from lab import health
from lab.files import relative
from lab.run_folder import step_of
from lab.runs import Record, recorded_rewards, recorded_weights

MEMORY = "1GB"  # for DuckDB, which goes on in the temporary folder beyond it
THREADS = 2  # each holds a part of a file in memory
LONGEST_TEXT = 20_000  # characters of a text in a selection: a page of longer ones does not open
LONGEST_EXTRA = 2_000  # of a text in another column
ROWS_OF_A_FILE = 1 << 32  # a row's key is the number of its file times this, plus its number in the file

# --------------------------------------------------------------------------- what is suspect

HIGH_ANYWAY = 0.8  # of the run's highest total, where a step has no right completion to compare with: `health.HIGH`
ALONE_GAP = 0.25  # of the run's range of totals: less is what one of several rewards moves
ALONE_SPREAD = 3.0  # standard deviations of the rest: one in a thousand of normal noise
SMALLEST_GROUP = 4  # in smaller ones half of the group, or its spread, says nothing
ALIKE_SHARE = 0.5  # of the group: the other half is still compared with it
ALIKE = 95  # rapidfuzz's ratio: one character of twenty differs
ALIKE_PROMPTS = 3  # prompts of one step that got the same text: two can ask the same in other words
ALIKE_LETTERS = 20  # shorter texts, such as "yes" or "B", answer many prompts
COMPARED = 4_000  # characters of each text that the ratio looks at: its time grows with their square
LONG_TIMES = 3.0  # times the step's median
LONG_TOKENS = 64  # where the median is a word, three of them are no rambling
CHARACTERS_A_TOKEN = 4  # of English, where tokens were not counted
ROUNDING = 1e-9

TITLES = {  # in the order in which a person wants to read them
    "wrong_but_high": "Judged wrong, paid like a right one",
    "alone_at_the_top": "Far above its group",
    "right_without_answer": "Judged right without an answer",
    "near_duplicates": "Nearly the same text again and again",
    "very_long": "Very long",
}


def rule_words(limit: int | None, decides: Sequence[str]) -> dict[str, str]:
    """Each rule as a sentence or two with its numbers.

    Args:
        limit: the longest completion that the run allowed, in tokens, if known.
        decides: names of the rewards that decide what is right.
    """
    judge, unknown = " and ".join(decides), "No reward that decides what is right was found, so this rule finds nothing."
    wrong = (
        f"Below half of the range of {judge}, yet its total is at least the lowest of a right completion of its step; "
        f"in a step without right ones, at least {HIGH_ANYWAY:.0%} of the run's highest."
    )
    alone = (
        f"Its total exceeds the second best of its group (of {SMALLEST_GROUP} or more) by {ALONE_GAP:.0%} of the run's "
        f"range of totals and by {ALONE_SPREAD:g} standard deviations of the rest. Not the only right one: being right "
        "explains it."
    )
    empty = (
        f"Judged right by {judge}, and the text is empty; or, looked for in this page only, no answer can be extracted, "
        "although most right ones have one."
    )
    same = (
        f"{ALIKE_SHARE:.0%} of its group (of {SMALLEST_GROUP} or more), or {ALIKE_PROMPTS} or more prompts of a step "
        f"(from {ALIKE_LETTERS} letters on), got the same text but for case and white space; or, looked for in this page "
        f"only, {ALIKE_SHARE:.0%} of its group are {ALIKE}% alike. Not right ones"
        + ("." if decides else ", which are here those in the upper half of the totals.")
    )
    cut = f"At the limit of {limit} tokens, where it is cut off, or longer" if limit else "Longer"
    long = f"{cut} than {LONG_TIMES:g} times the median of its step and at least {LONG_TOKENS} tokens" + (
        f" ({CHARACTERS_A_TOKEN} characters for one where tokens were not recorded)."
    )
    return {
        "wrong_but_high": wrong if decides else unknown, "alone_at_the_top": alone,
        "right_without_answer": empty if decides else unknown, "near_duplicates": same, "very_long": long,
    }  # fmt: skip


def number(value: float) -> str:
    return f"{value:.5g}"


def above_right(total: float, lowest: float, _: float) -> str:
    return f"total {number(total)}, judged wrong; a right one of this step has {number(lowest)}"


def high_anyway(total: float, highest: float, _: float) -> str:
    return f"total {number(total)}, judged wrong in a step without right ones; the run's highest is {number(highest)}"


def alone(total: float, second: float, spread: float) -> str:
    return f"total {number(total)}; the second best has {number(second)}, the rest spread by {number(spread)}"


WHY: dict[str, Callable[[float, float, float], str]] = {  # by kind, from the suspect's numbers
    "above_right": above_right,
    "high_anyway": high_anyway,
    "alone": alone,
    "in_group": lambda same, of, _: f"{same:.0f} of {of:.0f} in its group have this text, case and white space aside",
    "in_step": lambda prompts, *_: f"{prompts:.0f} prompts of this step got this text, case and white space aside",
    "alike": lambda same, of, _: f"{same:.0f} of {of:.0f} in its group are at least {ALIKE}% alike",
    "cut": lambda tokens, limit, _: f"{tokens:.0f} tokens: at the limit of {limit:.0f}",
    "long": lambda tokens, median, _: f"{tokens:.0f} tokens; the median of its step is {number(median)}",
    "empty": lambda *_: "judged right, and there is no text",
    "no_answer": lambda *_: "judged right, and no answer can be extracted",
}


# --------------------------------------------------------------------------- files of any columns


class Reward(NamedTuple):
    """A column of scores: its range, and whether it decides what is right."""

    name: str
    low: float
    high: float
    decides: bool


class File(NamedTuple):
    """A Parquet file of completions, and its columns with their kinds."""

    path: Path
    columns: tuple[tuple[str, str], ...]
    layout: str  # equal for files that can be read together


class Column(NamedTuple):
    """A column beside the fixed ones: its name in the files, and the SQL type that holds all that the files have."""

    name: str
    type: str


FIXED = ("step", "group", "prompt", "completion", "advantage", "tokens", "prompt_tokens")
NUMBERS = {"bool", "int", "float"}
ABSENT = ("NULL", "null")  # SQL and kind of a column that a file does not have


def kind_of(type_: pa.DataType) -> str:
    """null, bool, int, float, text, messages (a conversation), or nested for all other."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_list(type_) and pa.types.is_struct(type_.value_type):
        fields = {field.name: field.type for field in type_.value_type}
        texts = all(name in fields and pa.types.is_string(fields[name]) for name in ("role", "content"))
        return "messages" if texts else "nested"
    tests = {
        "null": pa.types.is_null, "bool": pa.types.is_boolean, "int": pa.types.is_integer,
        "float": lambda t: pa.types.is_floating(t) or pa.types.is_decimal(t), "nested": pa.types.is_nested,
    }  # fmt: skip
    return next((name for name, test in tests.items() if test(type_)), "text")


def look(path: Path) -> File | str:
    """The file's columns, or why it is left out."""
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (OSError, pa.ArrowException) as error:
        return f"it cannot be read ({type(error).__name__})"
    if not {"prompt", "completion"} <= set(schema.names):
        return "it has no columns prompt and completion"
    if not rows:
        return "it has no rows"
    return File(path, tuple((field.name, kind_of(field.type)) for field in schema), str(schema.remove_metadata()))


def kinds_by_name(files: Iterable[File]) -> dict[str, set[str]]:
    """Each column's kinds in the files, in the order in which the columns first appear."""
    kinds: dict[str, set[str]] = {}
    for layout in {file.layout: file for file in files}.values():
        for name, kind in layout.columns:
            kinds.setdefault(name, set()).add(kind)
    return kinds


def other_columns(files: Sequence[File], scores: Sequence[str]) -> list[Column]:
    """What the files have beside the fixed columns, the scores and pandas' index."""
    kinds, known = kinds_by_name(files), {*FIXED, *scores}
    names = [name for name in kinds if name not in known and not name.startswith("__index_level_")]
    return [Column(name, joint_type(kinds[name])) for name in names]


def joint_type(kinds: set[str]) -> str:
    """The SQL type for a column that has these kinds in the files: numbers and texts together are texts."""
    kinds = kinds - {"null"}
    if kinds == {"bool"}:
        return "BOOLEAN"
    if kinds == {"int"}:
        return "HUGEINT"  # an unsigned 64-bit number does not fit BIGINT
    return "DOUBLE" if kinds and kinds <= {"int", "float"} else "VARCHAR"


# --------------------------------------------------------------------------- SQL for a column


def quoted(name: str) -> str:
    return '"' + name.replace("\0", "␀").replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def bare(column: str) -> str:
    """SQL for a text without white space: a chain of `replace` takes a quarter of a regular expression's time."""
    return functools.reduce(lambda found, space: f"replace({found}, chr({ord(space)}), '')", " \t\n\r\u00a0", column)


def text_of(column: str, kind: str, roles: bool = True) -> str:
    """SQL for a column as text: the turns of a conversation, with their roles or without; JSON for what is nested."""
    if kind == "null":
        return "CAST(NULL AS VARCHAR)"
    json = f"CAST(to_json({column}) AS VARCHAR)"
    if kind == "messages":
        turn = "m.role || chr(10) || m.content" if roles else "m.content"
        whole = f"len(list_filter({column}, lambda m: {turn} IS NULL)) = 0"
        return f"CASE WHEN {whole} THEN array_to_string(list_transform({column}, lambda m: {turn}), chr(10)) ELSE {json} END"
    return json if kind == "nested" else f"CAST({column} AS VARCHAR)"


def number_of(column: str, kind: str, type_: str = "DOUBLE") -> str:
    """SQL for a column as numbers; what is none, NaN and infinity are null."""
    value = f"TRY_CAST({column if kind in NUMBERS else text_of(column, kind)} AS {type_})"
    return f"CASE WHEN isfinite({value}) THEN {value} END" if type_ == "DOUBLE" else value


def value_of(column: str, kind: str, type_: str) -> str:
    return text_of(column, kind) if type_ == "VARCHAR" else f"TRY_CAST({column} AS {type_})"


def by_file(values: Sequence[int]) -> str:
    """SQL for a number that each of the files read together has."""
    return f"({list(values)}::BIGINT[])[CAST(file_index AS BIGINT) + 1]"


class Files:
    """The files as one SQL relation: key, step, given (the group), prompt, completion, s0… (scores), advantage, tokens,
    prompt_tokens, x0… (others).

    Files of one layout are read together, and their columns get numbers for names, so that neither a column's name
    nor another file's type for it can do harm.
    """

    def __init__(self, files: Sequence[File], scores: Sequence[str], others: Sequence[Column]) -> None:
        self.files, self.scores, self.others = list(files), list(scores), list(others)

    def by_layout(self, places: Iterable[int] | None = None) -> list[list[int]]:
        """The files of these numbers (None: all) that can be read together; DuckDB reads one such list after the other in
        less memory than their union."""
        found: dict[str, list[int]] = {}
        for place in range(len(self.files)) if places is None else places:
            found.setdefault(self.files[place].layout, []).append(place)
        return list(found.values())

    def relation(self, places: list[int], others: bool = True) -> str:
        """SQL over files of one layout, with the other columns or without."""
        files = [self.files[place] for place in places]
        columns: dict[str, tuple[str, str]] = {}
        for i, (name, kind) in enumerate(files[0].columns):
            columns.setdefault(name, (f"c{i}", kind))  # of two columns of a name the first
        step, group, prompt, completion, advantage, tokens, prompt_tokens = (columns.get(name, ABSENT) for name in FIXED)
        parts = [
            f"{by_file(places)} * {ROWS_OF_A_FILE} + file_row_number AS key",
            f"coalesce({number_of(*step, 'BIGINT')}, {by_file([step_of(file.path) for file in files])}) AS step",
            f"{number_of(*group, 'BIGINT')} AS given",
            f"coalesce({text_of(*prompt)}, '') AS prompt",
            f"coalesce({text_of(*completion, roles=False)}, '') AS completion",
            *(f"{number_of(*columns.get(name, ABSENT))} AS s{i}" for i, name in enumerate(self.scores)),
            f"{number_of(*advantage)} AS advantage",
            f"{number_of(*tokens, 'BIGINT')} AS tokens",
            f"{number_of(*prompt_tokens, 'BIGINT')} AS prompt_tokens",
        ]
        if others:
            parts += [f"{value_of(*columns.get(one.name, ABSENT), one.type)} AS x{i}" for i, one in enumerate(self.others)]
        return f"SELECT {', '.join(parts)} FROM {parquet(files)}"


def parquet(files: Sequence[File]) -> str:
    """SQL for files of one layout, with columns c0, c1… A folder's name is neither a pattern nor a column's value."""
    paths = ", ".join(literal(re.sub(r"([\[*?])", r"[\1]", str(file.path))) for file in files)
    return f"read_parquet([{paths}], hive_partitioning=false) AS t({', '.join(f'c{i}' for i in range(len(files[0].columns)))})"


# --------------------------------------------------------------------------- rewards


def score_names(record: Record, files: Sequence[File]) -> list[str]:
    """The columns that are rewards: what the log and `run.json` call so, else number columns that sound like one."""
    kinds = kinds_by_name(files)
    logged = [*record.reward_names(), *(entry["name"] for entry in recorded_rewards(record.about))]
    families = {health.family(name)[0] for name in logged}
    edited = [name for name in kinds if health.family(name)[0] in families]  # the log may not have come so far yet
    known = [name for name in dict.fromkeys([*logged, *edited]) if name in kinds and name not in FIXED]
    numeric = [name for name in kinds if name not in FIXED and kinds[name] & NUMBERS and not name.startswith("data/")]
    return known or [name for name in numeric if "reward" in name.lower()]


def deciding(record: Record, names: Sequence[str], given: Sequence[str] | None) -> set[str]:
    """Those of the rewards that decide what is right: the given ones, else those that the run knows as such."""
    asked = record.correctness() if given is None else given
    return {name for name in names if health.is_one_of(health.family(name)[0], asked)}


def declared_range(record: Record, name: str) -> tuple[float, float]:
    """A reward's range from its edit, from `run.json`, else from rewards.py; NaN where none has a finite one."""
    edits = [event for event in record.events if event.get("kind") == "reward_changed"]
    own = health.family(name)[0]
    for entry in (*edits, *recorded_rewards(record.about)):
        if entry.get("name") in (name, *([] if entry in edits else [own])):
            low, high = (*(entry.get("range") or ()), math.nan, math.nan)[:2]
            if all(isinstance(end, (int, float)) and math.isfinite(end) for end in (low, high)):
                return float(low), float(high)
    function = rewards.REGISTRY.get(own) or rewards.REGISTRY.get(own.split("[")[0])
    found = (function.low, function.high) if function else (math.nan, math.nan)
    return found if all(map(math.isfinite, found)) else (math.nan, math.nan)


def widened(declared: tuple[float, float], lowest: float | None, highest: float | None) -> tuple[float, float]:
    """A declared range, widened to what was scored; without a declared one from 0 or the lowest to the highest score."""
    scored = [value for value in (lowest, highest) if value is not None]
    low, high = declared if not math.isnan(declared[0]) else (0.0, 0.0)
    low, high = min([low, *scored]), max([high, *scored])
    return low, high if high > low else low + 1.0


def longest_allowed(record: Record) -> int | None:
    """The run's limit on a completion, in tokens; None where it is not known."""
    for settings in (record.about.get("effective"), record.about.get("requested")):
        limit = settings.get("max_completion_length") if isinstance(settings, dict) else None
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            return limit
    return None


# --------------------------------------------------------------------------- the table


class Completions:
    """The completions of a run; a context manager, for it holds a temporary folder.

    Args:
        decides: names of the rewards that decide what is right; None: those that the run knows as such.
        memory: DuckDB's own limit.

    Attributes:
        rewards: the score columns, versions apart, in the log's order.
        data_columns, extra_columns: names of the other columns, those of the data set and the rest.
        notes: files that were left out, and why.
        count: completions in all.

    Raises ValueError where the run has no readable completions.
    """

    def __init__(self, record: Record, decides: Sequence[str] | None = None, memory: str = MEMORY) -> None:
        self.record, self.limit = record, longest_allowed(record)
        self.notes: list[str] = []
        files = self._readable(record.completions)
        self.folder = tempfile.TemporaryDirectory(prefix="completions-")
        try:
            self.db = opened(Path(self.folder.name), memory)
            self._read(files, decides)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Completions:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the database and removes its folder."""
        if hasattr(self, "db"):
            self.db.close()
        self.folder.cleanup()

    def sql(self, query: str) -> pd.DataFrame:
        """The answer to a query over the table `completions` (the module's text says what is in it)."""
        return self.db.execute(query).df()

    @property
    def decides(self) -> list[str]:
        return [reward.name for reward in self.rewards if reward.decides]

    def _rows(self, query: str) -> list[tuple]:
        return self.db.execute(query).fetchall()

    @contextmanager
    def _beside(self, name: str, table: pd.DataFrame) -> Iterator[None]:
        """The table under this name in queries meanwhile."""
        self.db.register(name, table)
        try:
            yield
        finally:
            self.db.unregister(name)

    # ---- reading

    def _readable(self, paths: Sequence[Path]) -> list[File]:
        found = [(path, look(path)) for path in paths]
        self._note([(path, why) for path, why in found if isinstance(why, str)])
        files = [file for _, file in found if isinstance(file, File)]
        if not files:
            raise ValueError(self._nothing())
        return files

    def _nothing(self) -> str:
        why = f" ({'; '.join(self.notes)})" if self.notes else ""
        return (
            f"{relative(self.record.folder)} has no readable completions{why}. Notebook 03 writes them at every step; a "
            "plain TRL trainer with log_completions=True."
        )

    def _note(self, left_out: Sequence[tuple[Path, str]]) -> None:
        for why in dict.fromkeys(why for _, why in left_out):
            names = [path.name for path, other in left_out if other == why]
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            self.notes.append(f"{names[0]}{more} left out: {why}")

    def _read(self, files: list[File], decides: Sequence[str] | None) -> None:
        """Makes the tables; a file whose pages turn out to be damaged is left out, and said."""
        try:
            self._make_tables(files, decides)
        except duckdb.Error:
            damaged = [file for file in files if not self._is_sound(file)]
            if not damaged:
                raise
            self._note([(file.path, "it is damaged") for file in damaged])
            sound = [file for file in files if file not in damaged]
            if not sound:
                raise ValueError(self._nothing()) from None
            self._make_tables(sound, decides)

    def _is_sound(self, file: File) -> bool:
        try:
            self._rows(f"SELECT {', '.join(f'max(hash(c{i}))' for i in range(len(file.columns)))} FROM {parquet([file])}")
        except duckdb.Error:
            return False
        return True

    def _make_tables(self, files: list[File], decides: Sequence[str] | None) -> None:
        names = score_names(self.record, files)
        self.files = Files(files, names, other_columns(files, names))
        self.data_columns = [one.name for one in self.files.others if one.name.startswith("data/")]
        self.extra_columns = [one.name for one in self.files.others if not one.name.startswith("data/")]
        layouts = self.files.by_layout()
        self.db.execute(f"CREATE OR REPLACE VIEW raw AS {' UNION ALL '.join(self.files.relation(each) for each in layouts)}")
        for i, places in enumerate(layouts):
            into = "INSERT INTO slim" if i else "CREATE OR REPLACE TABLE slim AS"
            self.db.execute(f"{into} {self._slim(places)}")
            self._touch([self.files.files[place] for place in places])
        self.count = self._rows("SELECT count(*) FROM slim")[0][0]
        self.rewards = self._judges(names, deciding(self.record, names, decides))
        self._add_weights(names)
        self.db.execute(f"CREATE OR REPLACE TABLE facts AS {self._facts()}")
        self.db.execute("DROP TABLE slim")
        self.db.execute(f"CREATE OR REPLACE VIEW completions AS {self._view()}")
        lowest, highest = self._rows("SELECT coalesce(min(total), 0), coalesce(max(total), 0) FROM facts")[0]
        self.totals = (lowest, highest)

    def _touch(self, files: list[File]) -> None:
        """Reads the other columns of files of one layout, so that a damaged page is found now."""
        others = [i for i, (name, _) in enumerate(files[0].columns) if name not in (*FIXED, *self.files.scores)]
        if others:
            self._rows(f"SELECT {', '.join(f'count(c{i})' for i in others)} FROM {parquet(files)}")

    def _slim(self, places: list[int]) -> str:
        """SQL for what is small of each row, its texts as hashes (64 bits: a million texts collide once in 10^7 runs)."""
        scores = "".join(f"s{i}, " for i in range(len(self.files.scores)))
        return f"""
            SELECT key, step, given, hash(prompt) AS prompt, length(prompt) AS prompt_length, length(completion) AS length,
                   hash(bare) AS bare, length(bare) AS letters, {scores}advantage, tokens, prompt_tokens
            FROM (SELECT *, {bare("lower(completion)")} AS bare FROM ({self.files.relation(places, others=False)}))"""

    def _judges(self, names: Sequence[str], decides: set[str]) -> list[Reward]:
        ends = [self._rows(f"SELECT min(s{i}), max(s{i}) FROM slim")[0] for i in range(len(names))]
        ranges = [widened(declared_range(self.record, name), *found) for name, found in zip(names, ends)]
        return [Reward(name, low, high, name in decides) for name, (low, high) in zip(names, ranges)]

    def _add_weights(self, names: Sequence[str]) -> None:
        """A table of each reward's weight at each step; a step without a row in the log has its neighbour's."""
        steps = [step for (step,) in self._rows("SELECT DISTINCT step FROM slim ORDER BY step")]
        logged = self.record.weights()
        every = logged.reindex(sorted({*logged.index, *steps})).ffill().bfill().loc[steps]
        known = {**recorded_weights(self.record.about), **self.record.given_weights}
        table = pd.DataFrame({"step": steps})
        for i, name in enumerate(names):
            usual = float(known.get(name, known.get(health.family(name)[0], 1.0)))
            table[f"w{i}"] = every[name].fillna(usual).to_numpy() if name in every else usual
        with self._beside("given_weights", table):
            self.db.execute("CREATE OR REPLACE TABLE weights AS SELECT * FROM given_weights")

    def _facts(self) -> str:
        """SQL for a row a completion without its texts: group, place, total, right, and the columns of `slim`."""
        scores = [f"s{i}" for i in range(len(self.rewards))]
        total = " + ".join(f"coalesce({score}, 0) * w{i}" for i, score in enumerate(scores)) or "NULL"
        judged = [f"({s} - {r.low!r}) / {r.high - r.low!r}" for s, r in zip(scores, self.rewards) if r.decides]
        share = f"list_avg([{', '.join(judged)}])" if judged else "NULL"
        return f"""
            SELECT f.* EXCLUDE (given, first), row_number() OVER (PARTITION BY step, grp ORDER BY key) AS place,
                   CAST(CASE WHEN coalesce({", ".join([*scores, "NULL"])}) IS NOT NULL THEN {total} END AS DOUBLE) AS total,
                   CAST({share} >= 0.5 AS BOOLEAN) AS "right"
            FROM ({self._groups()}) AS f JOIN weights USING (step) ORDER BY step, grp, key"""

    def _groups(self) -> str:
        """SQL for `slim` with the group in its step: as recorded, else the distinct prompts in their order."""
        if self._rows("SELECT count(given) = count(*) FROM slim")[0][0]:
            return "SELECT *, given AS grp, NULL AS first FROM slim"
        return """
            SELECT *, CASE WHEN bool_and(given IS NOT NULL) OVER (PARTITION BY step) THEN given
                           ELSE dense_rank() OVER (PARTITION BY step ORDER BY first) - 1 END AS grp
            FROM (SELECT *, min(key) OVER (PARTITION BY step, prompt) AS first FROM slim)"""

    def _view(self) -> str:
        """SQL for what a person queries; a column called like another one, case aside, gets a number behind it."""
        columns = [
            ("f.step", "step"), ("f.grp", "group"), ("f.place", "place"), ("r.prompt", "prompt"), ("r.completion", "completion"),
            *((f"f.s{i}", reward.name) for i, reward in enumerate(self.rewards)), ("f.total", "total"), ('f."right"', "right"),
            *((f"f.{name}", name) for name in ("advantage", "tokens", "prompt_tokens")),
            *((f"r.x{i}", one.name) for i, one in enumerate(self.files.others)),
        ]  # fmt: skip
        taken = {name for name in ("total", "right", "place")}  # a reward of such a name gets the number, not the total
        parts = []
        for source, name in columns:
            ours = source.startswith("f.") and name in ("total", "right", "place")
            others = (f"{name}_{i}" for i in range(2, len(columns) + 2))
            name = name if ours else next(one for one in (name, *others) if one.casefold() not in taken)
            taken.add(name.casefold())
            parts.append(f"{source} AS {quoted(name)}")
        return f"SELECT {', '.join(parts)} FROM raw AS r JOIN facts AS f USING (key)"

    def _fetch(self, keys: np.ndarray, columns: dict[str, str]) -> pa.Table:
        """Columns of the raw rows with these keys, in their order; only the files that have them are opened."""
        files = sorted(set((keys // ROWS_OF_A_FILE).tolist()))
        parts = ", ".join(f"{source} AS {name}" for name, source in columns.items())
        with self._beside("wanted", pd.DataFrame({"key": keys, "nth": np.arange(len(keys))})):
            relations = [self.files.relation(places, others=len(columns) > 1) for places in self.files.by_layout(files)]
            queries = [f"SELECT nth, {parts} FROM ({relation}) JOIN wanted USING (key)" for relation in relations]
            table = pa.concat_tables([self.db.sql(query).to_arrow_table() for query in queries])
        return table.take(np.argsort(table["nth"].to_numpy()))

    def _texts(self, keys: np.ndarray, column: str) -> list[str]:
        """The texts of these rows, in the order of the keys; of very long ones the beginning, which says so."""
        return self._fetch(keys, {"text": shortened(column, LONGEST_TEXT)})["text"].to_pylist()

    # ---- prompts

    def prompts(self) -> pd.DataFrame:
        """A row a prompt, as the run saw them: prompt, tokens, steps (how many saw it), first, last, n, best, mean.

        `n`, `best` and `mean` are of the completions: how many, the highest total and the mean one.
        """
        table = self._prompt_rows().drop(columns=["prompt", "seen"])
        table.insert(0, "prompt", self._texts(table.pop("key").to_numpy(), "prompt"))
        return table

    def _prompt_rows(self, where: str = "") -> pd.DataFrame:
        """Statistics of the prompts over the whole run, each with the key of a row that has its text."""
        return self.db.execute(f"""
            SELECT prompt, min(key) AS key, max(prompt_tokens) AS tokens, count(DISTINCT step) AS steps, min(step) AS first,
                   max(step) AS last, count(*) AS n, max(total) AS best, avg(total) AS mean,
                   list_sort(list(DISTINCT step)) AS seen
            FROM facts {where} GROUP BY prompt ORDER BY first, min(grp), key""").df()

    # ---- suspects

    def suspects(self, most: int = 1_000) -> pd.DataFrame:
        """What the rules find in the whole run, the latest first: rule, step, group, place, total, why.

        Args:
            most: rows a rule; `suspect_counts` counts all.
        """
        self._find_suspects()
        found = self.db.execute(f"""
            SELECT rule, step, grp AS "group", place, total, kind, a, b, c FROM facts JOIN suspects USING (key)
            QUALIFY row_number() OVER (PARTITION BY rule ORDER BY step DESC, grp, place, kind) <= {int(most)}
            ORDER BY rule, step DESC, grp, place, kind""").df()
        found["why"] = [WHY[kind](a, b, c) for kind, a, b, c in found[["kind", "a", "b", "c"]].itertuples(index=False)]
        return found.drop(columns=["kind", "a", "b", "c"])

    def suspect_counts(self) -> dict[str, int]:
        """By rule, how many completions of the whole run are suspect."""
        self._find_suspects()
        found = dict(self._rows("SELECT rule, count(DISTINCT key) FROM suspects GROUP BY rule"))
        return {rule: found.get(rule, 0) for rule in TITLES}

    def rules(self) -> dict[str, str]:
        """Each rule in words, with its numbers for this run."""
        return rule_words(self.limit, self.decides)

    def _find_suspects(self) -> None:
        """Makes the table `suspects`: key, rule, kind of reason, and its numbers."""
        if self._rows("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'suspects'")[0][0]:
            return
        self.db.execute(f"CREATE TEMP VIEW steps AS {STEPS}")
        self.db.execute(f"CREATE TEMP VIEW judged AS {judged(sum(self.totals) / 2)}")
        queries = " UNION ALL ".join(f"({query})" for query in suspect_queries(*self.totals, self.limit or 0))
        self.db.execute(f"CREATE TABLE suspects AS SELECT * FROM ({queries}) AS t(key, rule, kind, a, b, c)")

    # ---- selection

    def select(self, limit: int = 20_000, characters: int = 40_000_000) -> Selection:
        """What a page shows: everything, or whole groups up to these numbers of completions and of characters.

        All of the latest step, then groups with suspects (up to a third), the first step, and steps spread evenly.
        Raises ValueError for a limit below 1.
        """
        if limit < 1 or characters < 1:
            raise ValueError(f"limit={limit}, characters={characters}: a selection needs numbers above 0.")
        self._find_suspects()
        groups = self.db.execute(f"""
            SELECT step, grp, count(*) AS n,
                   sum(least(length, {LONGEST_TEXT})) + max(least(prompt_length, {LONGEST_TEXT})) AS characters
            FROM facts GROUP BY step, grp ORDER BY step, grp""").df()
        chosen = choose(groups, self._suspect_groups(groups), limit, characters)
        with self._beside("chosen", groups.loc[chosen.groups, ["step", "grp"]]):
            rows = self.db.execute("SELECT f.* FROM facts AS f JOIN chosen AS c ON f.step = c.step AND f.grp = c.grp").df()
        found = self._with_texts(rows)
        self._add_suspects(found)
        return found._replace(said=self._said(found, chosen), left_out=self._what_is_missing(found, groups))

    def _suspect_groups(self, groups: pd.DataFrame) -> list[int]:
        """Rows of `groups` that have suspects: of each rule in turn one, the latest first."""
        found = self.db.execute("SELECT DISTINCT rule, step, grp FROM facts JOIN suspects USING (key)").df()
        found = found.merge(groups.reset_index(names="nth")[["step", "grp", "nth"]], on=["step", "grp"])
        found = found.sort_values(["step", "grp"], ascending=[False, True])
        found["turn"] = found.groupby("rule").cumcount()
        found["order"] = found["rule"].map({rule: i for i, rule in enumerate(TITLES)})
        return found.sort_values(["turn", "order"])["nth"].drop_duplicates().tolist()

    def _with_texts(self, rows: pd.DataFrame) -> Selection:
        """The selection of these rows of `facts`."""
        with self._beside("shown", rows[["prompt"]].drop_duplicates()):
            prompts = self._prompt_rows("SEMI JOIN shown USING (prompt)")
        rows["prompt"] = rows["prompt"].map({value: i for i, value in enumerate(prompts.pop("prompt"))})
        rows = rows.sort_values(["step", "prompt", "grp", "place"], ignore_index=True)
        rows["cut"] = (rows["length"] - LONGEST_TEXT).clip(lower=0)
        long = [one.type == "VARCHAR" for one in self.files.others]
        others = {f"x{i}": shortened(f"x{i}", LONGEST_EXTRA) if is_text else f"x{i}" for i, is_text in enumerate(long)}
        table = self._fetch(rows["key"].to_numpy(), {"text": f"left(completion, {LONGEST_TEXT})", **others})
        columns = {one.name: table[f"x{i}"].to_pylist() for i, one in enumerate(self.files.others)}
        prompts["text"] = self._texts(prompts.pop("key").to_numpy(), "prompt")
        first = rows.reset_index().drop_duplicates("prompt").sort_values("prompt")["index"]  # a row of each prompt
        data = {name: [columns[name][i] for i in first] for name in self.data_columns}
        extras = {name: columns[name] for name in self.extra_columns}
        return Selection(rows, table["text"].to_pylist(), extras, prompts, data, {}, Counter(), "", "")

    def _add_suspects(self, found: Selection) -> None:
        """Puts in why each row is suspect: by the rules over the whole run, and by the one over the selection's texts."""
        nth = {key: i for i, key in enumerate(found.rows["key"])}
        with self._beside("shown", found.rows[["key"]]):
            reasons = self._rows("SELECT s.* FROM suspects AS s SEMI JOIN shown USING (key) ORDER BY key, rule, kind")
        for key, rule, kind, *numbers in reasons:
            why = found.suspects.setdefault(nth[key], {})
            why[rule] = "; ".join(filter(None, [why.get(rule), WHY[kind](*numbers)]))
        found.add("near_duplicates", alike(found, sum(self.totals) / 2))

    def _said(self, found: Selection, chosen: Choice) -> str:
        kept = len(found.rows)
        if kept == self.count:
            return f"All {count(kept, 'completion')} of {count(len(found.prompts), 'prompt')} in {count(chosen.steps, 'step')}."
        return (
            f"{kept:,} of {self.count:,} completions, whole groups only: {chosen.said}. At most {chosen.limit:,} completions "
            f"and {chosen.characters:,} characters."
        )

    def _what_is_missing(self, found: Selection, groups: pd.DataFrame) -> str:
        parts, gone = [], self.count - len(found.rows)
        if gone:
            steps = groups["step"].nunique() - found.rows["step"].nunique()
            with self._beside("shown", found.rows[["key"]]):
                suspects = self._rows("SELECT count(DISTINCT key) FROM suspects ANTI JOIN shown USING (key)")[0][0]
            parts.append(
                f"Not in this page: {count(gone, 'completion')}, {count(suspects, 'suspect')} and {count(steps, 'whole step')} "
                "among them; lab.completions reads all."
            )
        cut = int((found.rows["cut"] > 0).sum())
        if cut:
            parts.append(f"{count(cut, 'completion')} cut after {LONGEST_TEXT:,} characters.")
        return " ".join(parts)


def opened(folder: Path, memory: str) -> duckdb.DuckDBPyConnection:
    """A database in the folder that stays within this memory, fetches nothing, and prints nothing."""
    database = duckdb.connect(str(folder / "completions.duckdb"))
    settings = {
        "memory_limit": literal(memory), "threads": THREADS, "temp_directory": literal(str(folder)),
        "preserve_insertion_order": "false", "enable_progress_bar": "false", "autoinstall_known_extensions": "false",
        "python_enable_replacements": "false",
        # a join keeps its right side in memory: ours has the numbers there, where DuckDB might prefer the texts
        "disabled_optimizers": literal("join_order,build_side_probe_side"),
    }  # fmt: skip
    for setting, value in settings.items():
        database.execute(f"SET {setting} = {value}")
    return database


def shortened(column: str, most: int) -> str:
    """SQL for a text, of a longer one the beginning and how much is left out."""
    cut = f"left({column}, {most}) || printf(chr(10) || '[… %d characters left out]', length({column}) - {most})"
    return f"CASE WHEN length({column}) > {most} THEN {cut} ELSE {column} END"


class Selection(NamedTuple):
    """The completions to show, in the order of step, prompt and place, and what is known of their prompts.

    Attributes:
        rows: a row a completion: key, step, grp, place, prompt (row of `prompts`), s0…, total, right, advantage, tokens,
            cut (characters left out).
        texts: of the completions, without what was cut.
        extras: the other columns, by name.
        prompts: a row a prompt: text, tokens, seen (steps), n, best, mean, all over the whole run.
        data: the data set's columns of the prompts, by name.
        suspects: row -> rule -> why.
        found_here: by rule, suspects that only these texts show: `Completions.suspect_counts` does not count them.
        said, left_out: the selection in words, and what it lacks ("" for nothing).
    """

    rows: pd.DataFrame
    texts: list[str]
    extras: dict[str, list]
    prompts: pd.DataFrame
    data: dict[str, list]
    suspects: dict[int, dict[str, str]]
    found_here: Counter[str]
    said: str
    left_out: str

    def add(self, rule: str, found: Iterable[tuple[int, str]]) -> None:
        """Adds suspects of a rule over texts: (row, why), where the row is not known for that rule yet."""
        for i, why in found:
            if rule not in self.suspects.setdefault(i, {}):
                self.suspects[i][rule] = why
                self.found_here[rule] += 1


def count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + "s" * int(n != 1)


# --------------------------------------------------------------------------- choosing groups

SUSPECTS_SHARE = 1 / 3  # of a selection: the rest shows what is usual


class Choice(NamedTuple):
    groups: list[int]  # rows of the table of groups
    steps: int  # of the whole run
    said: str
    limit: int
    characters: int


class Budget:
    """Groups taken so far, and what is left of the two limits."""

    def __init__(self, groups: pd.DataFrame, limit: int, characters: int) -> None:
        self.sizes, self.lengths = groups["n"].tolist(), groups["characters"].tolist()
        self.rows, self.characters, self.taken = limit, characters, dict[int, None]()

    def take(self, groups: Iterable[int]) -> int:
        """Takes those of the groups that fit and are not there yet; returns how many completions that were."""
        before = self.rows
        for group in groups:
            fits = self.sizes[group] <= self.rows and self.lengths[group] <= self.characters
            if group not in self.taken and (fits or not self.taken):  # a limit below one group still shows that group
                self.taken[group] = None
                self.rows -= self.sizes[group]
                self.characters -= self.lengths[group]
            if self.rows < 1 or self.characters < 1:
                break
        return before - self.rows

    def fits(self, groups: Sequence[int]) -> bool:
        new = [group for group in groups if group not in self.taken]
        return sum(self.sizes[g] for g in new) <= self.rows and sum(self.lengths[g] for g in new) <= self.characters


def choose(groups: pd.DataFrame, suspects: Sequence[int], limit: int, characters: int) -> Choice:
    """Which groups to show, and the rule in words with its counts.

    Args:
        groups: step, n, characters of each group.
        suspects: rows of `groups` with suspects, the most wanted first.
    """
    steps = {int(step): rows.tolist() for step, rows in groups.groupby("step").indices.items()}
    order, budget = sorted(steps), Budget(groups, limit, characters)
    if budget.fits(range(len(groups))):
        return Choice(list(range(len(groups))), len(order), "all", limit, characters)
    last, first = order[-1], order[0]
    latest = budget.take(spread(steps[last]))
    whole = latest == sum(budget.sizes[group] for group in steps[last])
    said = [f"{'all of' if whole else 'what fits of'} the latest step, {last} ({latest:,})"]
    said += take_suspects(budget, suspects, limit, characters)
    if first != last and (taken := budget.take(spread(steps[first]))):
        said.append(f"the first step, {first} ({taken:,})")
    said += take_between(budget, steps, order[1:-1])
    return Choice(list(budget.taken), len(order), "; ".join(said), limit, characters)


def take_suspects(budget: Budget, suspects: Sequence[int], limit: int, characters: int) -> list[str]:
    """Takes groups with suspects, up to a third of the limits."""
    rows, letters = budget.rows, budget.characters
    budget.rows, budget.characters = min(rows, int(limit * SUSPECTS_SHARE)), min(letters, int(characters * SUSPECTS_SHARE))
    kept_rows, kept_letters = rows - budget.rows, letters - budget.characters
    taken = budget.take(suspects)
    budget.rows, budget.characters = budget.rows + kept_rows, budget.characters + kept_letters
    return [f"groups with suspects ({taken:,})"] if taken else []


def take_between(budget: Budget, steps: dict[int, list[int]], order: Sequence[int]) -> list[str]:
    """Takes whole steps, ever finer between the first and the last, and at the end what still fits of one more."""
    whole = taken = part = 0
    for step in spread(order):
        if not budget.fits(steps[step]):
            part = budget.take(spread(steps[step]))
            break
        taken, whole = taken + budget.take(steps[step]), whole + 1
    more = " and a part of one more" if part else ""
    return [f"{count(whole, 'step')}{more} spread evenly between them ({taken + part:,})"] if taken + part else []


def spread(items: Sequence[Any]) -> list[Any]:
    """The items in an order of which every beginning is spread evenly: middle, quarters, eighths (van der Corput 1935).

    >>> spread([1, 2, 3, 4, 5, 6, 7])
    [4, 2, 6, 1, 5, 3, 7]
    """
    bits = max(1, len(items).bit_length())
    places = (int(f"{i:0{bits}b}"[::-1], 2) for i in range(1, 1 << bits))
    return [items[place - 1] for place in places if place <= len(items)]


# --------------------------------------------------------------------------- rules over texts


def alike(found: Selection, middle: float) -> Iterator[tuple[int, str]]:
    """(row, why) of the completions that half of their group nearly repeats, of those that being right does not explain.

    Args:
        middle: of the totals; where nothing decides what is right, those above it count as right.
    """
    rows = found.rows
    fine = rows["right"].astype("boolean").fillna(rows["total"] > middle).to_numpy(bool)
    for places in rows.groupby(["step", "grp"], sort=False).indices.values():
        bad = [i for i in places.tolist() if not fine[i]]
        if len(places) < SMALLEST_GROUP or len(bad) < ALIKE_SHARE * len(places):
            continue
        texts = [" ".join(found.texts[i][:COMPARED].lower().split()) for i in bad]
        same = (process.cdist(texts, texts, scorer=fuzz.ratio, score_cutoff=ALIKE, dtype=np.uint8) > 0).sum(axis=1)
        for i, n in zip(bad, same.tolist()):
            if n >= ALIKE_SHARE * len(places):
                yield i, WHY["alike"](n, len(places), 0)


def without_answer(found: Selection, answered: Sequence[bool]) -> Iterator[tuple[int, str]]:
    """(row, why) of the right completions in which no answer was found, in a selection where most right ones have one.

    Args:
        answered: for each row, whether an answer was extracted from its text.
    """
    right = found.rows["right"].astype("boolean").fillna(False).to_numpy(bool) & (found.rows["cut"] == 0).to_numpy()
    there = np.array(answered, dtype=bool)
    if there[right].sum() * 2 > right.sum():  # code has no answer block, and is right without
        yield from ((i, WHY["no_answer"](0, 0, 0)) for i in np.flatnonzero(right & ~there).tolist())


# --------------------------------------------------------------------------- rules in SQL, over the whole run

SIZE = f"coalesce(tokens, length / {CHARACTERS_A_TOKEN})"  # in tokens
STEPS = f'SELECT step, min(total) FILTER ("right") AS lowest_right, median({SIZE}) AS median FROM facts GROUP BY step'
EMPTY = "SELECT key, 'right_without_answer', 'empty', 0.0, 0.0, 0.0 FROM facts WHERE \"right\" AND letters = 0"


def judged(middle: float) -> str:
    """SQL for `facts` with the size of the group, and whether being right (or paid well) explains a completion."""
    fine = f'coalesce("right", total > {middle!r}, false)'
    return f"SELECT *, count(*) OVER (PARTITION BY step, grp) AS n, {fine} AS fine FROM facts"


def suspect_queries(lowest: float, highest: float, limit: int) -> list[str]:
    """SQL for the suspects of a whole run: key, rule, kind, and the three numbers that its words want.

    Args:
        lowest, highest: total of the run.
        limit: the longest completion allowed, in tokens; 0 if not known.
    """
    return [wrong_but_high(highest), alone_at_the_top(highest - lowest), same_in_group(), same_in_step(), very_long(limit), EMPTY]


def wrong_but_high(highest: float) -> str:
    enough = HIGH_ANYWAY * highest if highest > 0 else 1e300  # of a highest total below 0 there is no share
    return f"""
        SELECT key, 'wrong_but_high', CASE WHEN lowest_right IS NULL THEN 'high_anyway' ELSE 'above_right' END, total,
               coalesce(lowest_right, {highest!r}), 0.0
        FROM facts JOIN steps USING (step)
        WHERE NOT "right" AND total >= coalesce(lowest_right, {enough!r}) - {ROUNDING}"""


def alone_at_the_top(totals: float) -> str:
    return f"""
        SELECT f.key, 'alone_at_the_top', 'alone', best, second, rest FROM facts AS f JOIN (
            SELECT step, grp, totals[1] AS best, totals[2] AS second, list_stddev_pop(totals[2:]) AS rest, rights FROM (
                SELECT step, grp, list_reverse_sort(list(total)) AS totals, count(*) FILTER ("right") AS rights
                FROM facts WHERE total IS NOT NULL GROUP BY step, grp HAVING count(*) >= {SMALLEST_GROUP})
            WHERE best - second >= greatest({ALONE_GAP * totals - ROUNDING!r}, {ALONE_SPREAD} * rest, {ROUNDING})) AS g
        ON f.step = g.step AND f.grp = g.grp AND f.total = g.best
        WHERE NOT (coalesce("right", false) AND rights = 1)"""


def same_in_group() -> str:
    return f"""
        SELECT key, 'near_duplicates', 'in_group', same, n, 0.0
        FROM (SELECT *, count(*) OVER (PARTITION BY step, grp, bare) AS same FROM judged WHERE n >= {SMALLEST_GROUP})
        WHERE same >= {ALIKE_SHARE} * n AND NOT fine"""


def same_in_step() -> str:
    return f"""
        SELECT key, 'near_duplicates', 'in_step', prompts, 0.0, 0.0 FROM judged JOIN (
            SELECT step, bare, count(DISTINCT prompt) AS prompts FROM facts WHERE letters >= {ALIKE_LETTERS}
            GROUP BY step, bare HAVING prompts >= {ALIKE_PROMPTS}) USING (step, bare) WHERE NOT fine"""


def very_long(limit: int) -> str:
    cut = f"coalesce({limit} > 0 AND tokens >= {limit}, false)"
    return f"""
        SELECT key, 'very_long', CASE WHEN cut THEN 'cut' ELSE 'long' END, size, CASE WHEN cut THEN {limit} ELSE median END, 0.0
        FROM (SELECT key, step, {SIZE} AS size, {cut} AS cut FROM facts)
        JOIN steps USING (step) WHERE cut OR (size > {LONG_TIMES} * median AND size >= {LONG_TOKENS})"""
