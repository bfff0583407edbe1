"""All completions of a run as one table: SQL over its Parquet files, what is suspect in them, and a selection to read.

>>> from lab import runs
>>> from lab.read.completions import Completions
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

import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa

import rewards
from lab.files import relative
from lab.read import run_log
from lab.read.parquet_files import (
    FIXED,
    NUMBERS,
    ROWS_OF_A_FILE,
    File,
    Files,
    bare,
    kinds_by_name,
    literal,
    look,
    other_columns,
    parquet,
    quoted,
)
from lab.read.run_record import Record, recorded_rewards, recorded_weights
from lab.read.selection import STEPS, Choice, Selection, choose, count
from lab.read.suspects import TITLES, WHY, alike, judged, rule_words, suspect_queries

MEMORY = "1GB"  # for DuckDB, which goes on in the temporary folder beyond it
THREADS = 2  # each holds a part of a file in memory
LONGEST_TEXT = 20_000  # characters of a text in a selection: a page of longer ones does not open
LONGEST_EXTRA = 2_000  # of a text in another column


class Reward(NamedTuple):
    """A column of scores: its range, and whether it decides what is right."""

    name: str
    low: float
    high: float
    decides: bool


def score_names(record: Record, files: Sequence[File]) -> list[str]:
    """The columns that are rewards: what the log and `run.json` call so, else number columns that sound like one."""
    kinds = kinds_by_name(files)
    logged = [*record.reward_names(), *(entry["name"] for entry in recorded_rewards(record.about))]
    families = {run_log.family(name)[0] for name in logged}
    edited = [name for name in kinds if run_log.family(name)[0] in families]  # the log may not have come so far yet
    known = [name for name in dict.fromkeys([*logged, *edited]) if name in kinds and name not in FIXED]
    numeric = [name for name in kinds if name not in FIXED and kinds[name] & NUMBERS and not name.startswith("data/")]
    return known or [name for name in numeric if "reward" in name.lower()]


def deciding(record: Record, names: Sequence[str], given: Sequence[str] | None) -> set[str]:
    """Those of the rewards that decide what is right: the given ones, else those that the run knows as such."""
    asked = record.correctness() if given is None else given
    return {name for name in names if run_log.is_one_of(run_log.family(name)[0], asked)}


def declared_range(record: Record, name: str) -> tuple[float, float]:
    """A reward's range from its edit, from `run.json`, else from rewards.py; NaN where none has a finite one."""
    edits = [event for event in record.events if event.get("kind") == "reward_changed"]
    own = run_log.family(name)[0]
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
            self._rows(
                f"SELECT {', '.join(f'max(hash(c{i}))' for i in range(len(file.columns)))} FROM {parquet([file])}"
            )
        except duckdb.Error:
            return False
        return True

    def _make_tables(self, files: list[File], decides: Sequence[str] | None) -> None:
        names = score_names(self.record, files)
        self.files = Files(files, names, other_columns(files, names))
        self.data_columns = [one.name for one in self.files.others if one.name.startswith("data/")]
        self.extra_columns = [one.name for one in self.files.others if not one.name.startswith("data/")]
        layouts = self.files.by_layout()
        self.db.execute(
            f"CREATE OR REPLACE VIEW raw AS {' UNION ALL '.join(self.files.relation(each) for each in layouts)}"
        )
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
            usual = float(known.get(name, known.get(run_log.family(name)[0], 1.0)))
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
            ("f.step", "step"),
            ("f.grp", "group"),
            ("f.place", "place"),
            ("r.prompt", "prompt"),
            ("r.completion", "completion"),
            *((f"f.s{i}", reward.name) for i, reward in enumerate(self.rewards)),
            ("f.total", "total"),
            ('f."right"', "right"),
            *((f"f.{name}", name) for name in ("advantage", "tokens", "prompt_tokens")),
            *((f"r.x{i}", one.name) for i, one in enumerate(self.files.others)),
        ]
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
            rows = self.db.execute(
                "SELECT f.* FROM facts AS f JOIN chosen AS c ON f.step = c.step AND f.grp = c.grp"
            ).df()
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
                "among them; lab.read.completions reads all."
            )
        cut = int((found.rows["cut"] > 0).sum())
        if cut:
            parts.append(f"{count(cut, 'completion')} cut after {LONGEST_TEXT:,} characters.")
        return " ".join(parts)


def opened(folder: Path, memory: str) -> duckdb.DuckDBPyConnection:
    """A database in the folder that stays within this memory, fetches nothing, and prints nothing."""
    database = duckdb.connect(str(folder / "completions.duckdb"))
    settings = {
        "memory_limit": literal(memory),
        "threads": THREADS,
        "temp_directory": literal(str(folder)),
        "preserve_insertion_order": "false",
        "enable_progress_bar": "false",
        "autoinstall_known_extensions": "false",
        "python_enable_replacements": "false",
        # a join keeps its right side in memory: ours has the numbers there, where DuckDB might prefer the texts
        "disabled_optimizers": literal("join_order,build_side_probe_side"),
    }
    for setting, value in settings.items():
        database.execute(f"SET {setting} = {value}")
    return database


def shortened(column: str, most: int) -> str:
    """SQL for a text, of a longer one the beginning and how much is left out."""
    cut = f"left({column}, {most}) || printf(chr(10) || '[… %d characters left out]', length({column}) - {most})"
    return f"CASE WHEN length({column}) > {most} THEN {cut} ELSE {column} END"
