"""All completions of a run as one table: SQL over its Parquet files, what is suspect in them, and a selection to read.

>>> from lab.read.completions import Completions
>>> from lab.read.run_record import read_run
>>> with Completions(read_run("outputs/run")) as completions:                                # doctest: +SKIP
...     completions.sql("select step, avg(total), max(tokens) from completions group by step order by step")
...     completions.sql("select prompt, completion from completions where step = 80 and not \\"right\\"")
...     completions.suspects()

The table `completions` has a row a completion: `step`, `group`, `place` (1 is the first of its group), `prompt`,
`completion`, a column a reward, `total` (the weighted sum, with the weights of that step), `right` (as the deciding
reward judged it), `advantage`, `tokens`, `prompt_tokens`, and whatever else the files have: `data/answer`, what a
reward logged with `log_extra`. Names with a slash or a bracket, and `group` and `right`, want double quotes.

The files stay where they are. Numbers and hashes of the texts go into a DuckDB file in a temporary folder, and texts are
read again where a query wants them. So the memory does not grow with the run.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa

import rewards
from lab.files import relative
from lab.read import parquet_files as parquet
from lab.read.reward_names import matching_rewards, split_version
from lab.read.run_record import RunRecord, count_of
from lab.read.selection import Selection, choose_groups
from lab.read.suspects import REASONS, RULE_TITLES, alike_in_group, describe_rules, suspect_sql
from scoring.errors import InputError
from scoring.right import RIGHT_FROM

MEMORY = "1GB"  # for DuckDB, which goes on in the temporary folder beyond it
THREADS = 2  # each holds a part of a file in memory
LONGEST_TEXT = 20_000  # characters of a text in a selection: a page of longer ones does not open
LONGEST_EXTRA = 2_000  # of a text in another column
MOST_COMPLETIONS, MOST_CHARACTERS = 20_000, 10_000_000  # of a page: some 4 MB, which a notebook still holds


class ScoreColumn(NamedTuple):
    """A reward's column: its range, and whether the reward decides what is right."""

    name: str
    low: float
    high: float
    decides: bool


class Completions(contextlib.AbstractContextManager):
    """The completions of a run; a context manager, for it holds a temporary folder.

    Attributes are `rewards` (the score columns, versions apart), `data_columns` and `extra_columns` (names of the others),
    `notes` (files that were left out, and why) and `count`. Raises InputError where no completions can be read.
    """

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        settings = {**record.about.get("requested", {}), **record.about.get("effective", {})}
        self.limit: int | None = settings.get("max_completion_length")  # tokens; None where it is not known
        self.notes: list[str] = []
        files = self._readable_files()
        self.folder = tempfile.TemporaryDirectory(prefix="completions-")
        self.db = open_database(Path(self.folder.name))
        self._make_tables(files)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the database and removes its folder."""
        self.db.close()
        self.folder.cleanup()

    def sql(self, query: str) -> pd.DataFrame:
        """The answer to a query over the table `completions` (the module's text says what is in it)."""
        return self.db.execute(query).df()

    def _rows(self, query: str) -> list[tuple]:
        return self.db.execute(query).fetchall()

    def _readable_files(self) -> list[parquet.ParquetFile]:
        opened = (parquet.open_parquet(number, path) for number, path in enumerate(self.record.completions))
        files = [file for file in opened if file]
        if lost := len(self.record.completions) - len(files):
            self.notes.append(f"{count_of(lost, 'file')} of completions left out: damaged, empty, or of another kind")
        if not files:
            how = "Notebook 03 writes them at every step; a plain TRL trainer with log_completions=True."
            raise InputError(f"{relative(self.record.folder)} has no readable completions. {how}")
        return files

    def _make_tables(self, files: list[parquet.ParquetFile]) -> None:
        """Makes `raw` (a view of the files), `facts` (what is small of each row), `completions` (both), and `suspects`."""
        names = score_names(self.record, files)
        self.files, self.score_names, self.others = files, names, parquet.other_columns(files, names)
        self.data_columns = [name for name in self.others if name.startswith("data/")]
        self.extra_columns = [name for name in self.others if not name.startswith("data/")]
        relations = parquet.relations(files, names, self.others)
        self.db.execute(f"CREATE VIEW raw AS {' UNION ALL '.join(relations)}")
        scores = "".join(f"s{i}, " for i in range(len(names)))
        for i, relation in enumerate(relations):  # one by one: that takes less memory than all at once
            # texts become hashes of 64 bits: a million texts collide once in 10^7 runs
            self.db.execute(f"""{"INSERT INTO slim" if i else "CREATE TABLE slim AS"}
                SELECT key, step, given, hash(prompt) AS prompt, length(prompt) AS prompt_length,
                       length(completion) AS length, hash(bare) AS bare, length(bare) AS letters, {scores}advantage,
                       tokens, prompt_tokens
                FROM (SELECT *, {parquet.without_space("lower(completion)")} AS bare
                      FROM ({relation}))""")
        ends = [self._rows(f"SELECT min(s{i}), max(s{i}) FROM slim")[0] for i in range(len(names))]
        ranges = [score_range(name, *scored, recorded_ranges(self.record, name)) for name, scored in zip(names, ends)]
        deciding = matching_rewards(names, self.record.deciders())
        self.rewards = [ScoreColumn(name, *range_, name in deciding) for name, range_ in zip(names, ranges)]
        steps = [step for (step,) in self._rows("SELECT DISTINCT step FROM slim ORDER BY step")]
        weights = self.record.weights_at(steps).reindex(columns=names)
        weights = weights.astype(float).fillna({name: self.record.usual_weight(name) for name in names})
        weights = weights.set_axis([f"w{i}" for i in range(len(names))], axis=1).reset_index(names="step")
        self.db.register("weights", weights)
        self.db.execute(f"CREATE TABLE facts AS {self._facts()}")
        self.db.execute(f"CREATE VIEW completions AS {self._view()}")
        measures = "count(*), coalesce(min(total), 0), coalesce(max(total), 0)"
        self.count, *self.totals = self._rows(f"SELECT {measures} FROM facts")[0]
        self.db.execute(f"CREATE TABLE suspects AS {suspect_sql(*self.totals, self.limit or 0)}")

    def _facts(self) -> str:
        """SQL for a row a completion without its texts: group, place, total, right, and the columns of `slim`."""
        scores = [f"s{i}" for i in range(len(self.rewards))]
        total = " + ".join(f"coalesce({score}, 0) * w{i}" for i, score in enumerate(scores)) or "NULL"
        parts = [f"({s} - {r.low!r}) / {r.high - r.low!r}" for s, r in zip(scores, self.rewards) if r.decides]
        share = f"list_avg([{', '.join(parts)}])" if parts else "NULL"
        # the group in its step: as recorded, else the distinct prompts in their order
        groups = "SELECT *, given AS grp, NULL AS first FROM slim"
        if not self._rows("SELECT count(given) = count(*) FROM slim")[0][0]:
            groups = """
                SELECT *, CASE WHEN bool_and(given IS NOT NULL) OVER (PARTITION BY step) THEN given
                               ELSE dense_rank() OVER (PARTITION BY step ORDER BY first) - 1 END AS grp
                FROM (SELECT *, min(key) OVER (PARTITION BY step, prompt) AS first FROM slim)"""
        return f"""
            SELECT f.* EXCLUDE (given, first), row_number() OVER (PARTITION BY step, grp ORDER BY key) AS place,
                   CAST(CASE WHEN coalesce({", ".join([*scores, "NULL"])}) IS NOT NULL THEN {total} END AS DOUBLE) AS total,
                   CAST({share} >= {RIGHT_FROM} AS BOOLEAN) AS "right"
            FROM ({groups}) AS f JOIN weights USING (step) ORDER BY step, grp, key"""

    def _view(self) -> str:
        """SQL for what a person queries; a column called like one before it, case aside, gets _2 behind its name."""
        columns = [("f.step", "step"), ("f.grp", "group"), ("f.place", "place"), ("r.prompt", "prompt")]
        columns += [("r.completion", "completion"), ("f.total", "total"), ('f."right"', "right")]
        columns += [(f"f.{name}", name) for name in ("advantage", "tokens", "prompt_tokens")]
        columns += [(f"f.s{i}", one.name) for i, one in enumerate(self.rewards)]
        columns += [(f"r.x{i}", name) for i, name in enumerate(self.others)]
        taken, parts = set[str](), []
        for source, name in columns:
            while name.casefold() in taken:
                name += "_2"
            taken.add(name.casefold())
            parts.append(f"{source} AS {parquet.quoted(name)}")
        return f"SELECT {', '.join(parts)} FROM raw AS r JOIN facts AS f USING (key)"

    def _fetch(self, keys: np.ndarray, columns: dict[str, str]) -> pa.Table:
        """Columns of the raw rows with these keys, in their order; only the files that have them are opened."""
        wanted = set((keys // parquet.ROWS_OF_A_FILE).tolist())
        files = [file for file in self.files if file.number in wanted]
        parts = ", ".join(f"{source} AS {name}" for name, source in columns.items())
        self.db.register("wanted", pd.DataFrame({"key": keys, "nth": np.arange(len(keys))}))
        relations = parquet.relations(files, self.score_names, self.others)
        queries = [f"SELECT nth, {parts} FROM ({relation}) JOIN wanted USING (key)" for relation in relations]
        table = pa.concat_tables([self.db.sql(query).to_arrow_table() for query in queries])
        return table.take(np.argsort(table["nth"].to_numpy()))

    def suspects(self) -> pd.DataFrame:
        """What the rules find in the whole run, the latest first: rule, step, group, place, total, why."""
        table = self.sql("""
            SELECT rule, step, grp AS "group", place, total, kind, a, b, c FROM facts JOIN suspects USING (key)
            ORDER BY rule, step DESC, grp, place, kind""")
        why = [REASONS[kind].format(*numbers) for kind, *numbers in table[["kind", "a", "b", "c"]].values.tolist()]
        return table.drop(columns=["kind", "a", "b", "c"]).assign(why=why)

    def suspect_counts(self) -> dict[str, int]:
        """By rule, how many completions of the whole run are suspect."""
        counts = dict(self._rows("SELECT rule, count(DISTINCT key) FROM suspects GROUP BY rule"))
        return {rule: counts.get(rule, 0) for rule in RULE_TITLES}

    def rules(self) -> dict[str, str]:
        """Each rule in words, with its numbers for this run."""
        return describe_rules(self.limit, [reward.name for reward in self.rewards if reward.decides])

    def select(self, limit: int = MOST_COMPLETIONS, characters: int = MOST_CHARACTERS) -> Selection:
        """What a page shows: everything, or whole groups up to these numbers of completions and of characters."""
        groups = self.sql(f"""
            SELECT step, grp, count(*) AS n,
                   sum(least(length, {LONGEST_TEXT})) + max(least(prompt_length, {LONGEST_TEXT})) AS characters
            FROM facts GROUP BY step, grp ORDER BY step, grp""")
        chosen = choose_groups(groups, self._suspect_groups(groups), limit, characters)
        self.db.register("chosen", groups.loc[chosen, ["step", "grp"]])
        rows = self.sql("SELECT f.* FROM facts AS f JOIN chosen AS c ON f.step = c.step AND f.grp = c.grp")
        selection, steps = self._with_texts(rows), groups["step"].nunique()
        self._add_suspects(selection)
        prompts, left_out = count_of(len(selection.prompts), "prompt"), []
        summary = f"All {count_of(self.count, 'completion')} of {prompts} in {count_of(steps, 'step')}."
        if gone := self.count - len(rows):
            summary = (
                f"{len(rows):,} of {self.count:,} completions, whole groups only: of the latest step, with suspects, "
            )
            summary += f"and spread evenly over the run. At most {limit:,} completions and {characters:,} characters."
            left_out.append(f"Not in this page: {count_of(gone, 'completion')}; lab.read.completions reads all.")
        if cut := int((selection.rows["cut"] > 0).sum()):
            left_out.append(f"{count_of(cut, 'completion')} cut after {LONGEST_TEXT:,} characters.")
        return selection._replace(summary=summary, left_out=" ".join(left_out))

    def _suspect_groups(self, groups: pd.DataFrame) -> list[int]:
        """Rows of `groups` that have suspects: of each rule in turn one, the latest first."""
        wanted = self.sql(f"""
            SELECT step, grp FROM (SELECT DISTINCT rule, step, grp FROM facts JOIN suspects USING (key))
            ORDER BY row_number() OVER (PARTITION BY rule ORDER BY step DESC, grp),
                     list_position({list(RULE_TITLES)}, rule)""")
        places = groups.reset_index(names="place")[["step", "grp", "place"]]
        return wanted.merge(places, on=["step", "grp"])["place"].drop_duplicates().tolist()

    def _with_texts(self, rows: pd.DataFrame) -> Selection:
        """The selection of these rows of `facts`."""
        self.db.register("shown", rows[["prompt"]].drop_duplicates())
        prompts = self.sql("""
            SELECT prompt, min(key) AS key, max(prompt_tokens) AS tokens, count(*) AS n, max(total) AS best,
                   avg(total) AS mean, list_sort(list(DISTINCT step)) AS seen
            FROM facts SEMI JOIN shown USING (prompt) GROUP BY prompt ORDER BY min(step), min(grp), key""")
        rows["prompt"] = rows["prompt"].map({value: i for i, value in enumerate(prompts.pop("prompt"))})
        rows = rows.sort_values(["step", "prompt", "grp", "place"], ignore_index=True)
        rows["cut"] = (rows["length"] - LONGEST_TEXT).clip(lower=0)
        columns = {"text": f"left(completion, {LONGEST_TEXT})"}
        for i, type_ in enumerate(self.others.values()):
            columns[f"x{i}"] = shortened_sql(f"x{i}", LONGEST_EXTRA) if type_ == "VARCHAR" else f"x{i}"
        table = self._fetch(rows["key"].to_numpy(), columns)
        others = {name: table[f"x{i}"].to_pylist() for i, name in enumerate(self.others)}
        prompt = {"text": shortened_sql("prompt", LONGEST_TEXT)}
        prompts["text"] = self._fetch(prompts.pop("key").to_numpy(), prompt)["text"].to_pylist()
        first = rows.reset_index().drop_duplicates("prompt").sort_values("prompt")["index"]  # a row of each prompt
        data = {name: [others[name][i] for i in first] for name in self.data_columns}
        extras = {name: others[name] for name in self.extra_columns}
        return Selection(rows, table["text"].to_pylist(), extras, prompts, data, {}, Counter())

    def _add_suspects(self, selection: Selection) -> None:
        """Puts in why each row is suspect: by the rules over the whole run, and by the one over the selection's texts."""
        nth = {key: i for i, key in enumerate(selection.rows["key"])}
        self.db.register("shown", selection.rows[["key"]])
        reasons = self._rows("SELECT s.* FROM suspects AS s SEMI JOIN shown USING (key) ORDER BY key, rule, kind")
        for key, rule, kind, *numbers in reasons:
            why = selection.suspects.setdefault(nth[key], {})
            why[rule] = "; ".join(filter(None, [why.get(rule), REASONS[kind].format(*numbers)]))
        selection.add("near_duplicates", alike_in_group(selection, sum(self.totals) / 2))


def score_names(record: RunRecord, files: Sequence[parquet.ParquetFile]) -> list[str]:
    """The columns that are rewards: what the log and `run.json` call so, else number columns that sound like one."""
    kinds = {name: kind for name, kind in parquet.kinds_by_name(files).items() if name not in parquet.FIXED}
    logged = [*record.reward_names(), *(entry["name"] for entry in record.recorded_rewards())]
    bases = {split_version(name)[0] for name in logged}
    edited = [name for name in kinds if split_version(name)[0] in bases]  # the log may not have come so far yet
    known = [name for name in dict.fromkeys([*logged, *edited]) if name in kinds]
    numeric = [name for name in kinds if kinds[name] & parquet.NUMBERS and not name.startswith("data/")]
    return known or [name for name in numeric if "reward" in name.lower()]


def recorded_ranges(record: RunRecord, name: str) -> list[Sequence[float | None]]:
    """A reward's ranges as its edit and `run.json` have them."""
    edits = [event for event in record.events if event.get("kind") == "reward_changed" and event.get("name") == name]
    recorded = [entry for entry in record.recorded_rewards() if entry["name"] in (name, split_version(name)[0])]
    return [entry["range"] for entry in (*edits, *recorded) if entry.get("range")]


def score_range(name: str, lowest: float | None, highest: float | None, recorded: Sequence = ()) -> tuple[float, float]:
    """A recorded range, else the one declared in rewards.py, widened to what was scored; else from 0 on."""
    own = split_version(name)[0]
    function = rewards.REGISTRY.get(own) or rewards.REGISTRY.get(own.split("[")[0])
    given = [*recorded, (function.low, function.high)] if function else recorded
    finite = (ends for ends in given if all(end is not None and math.isfinite(end) for end in ends))
    ends = [*next(finite, (0.0, 0.0)), *(value for value in (lowest, highest) if value is not None)]
    low, high = float(min(ends)), float(max(ends))
    return low, high if high > low else low + 1.0


def open_database(folder: Path) -> duckdb.DuckDBPyConnection:
    """A database in the folder that stays within MEMORY, fetches nothing, and prints nothing."""
    settings = {
        "memory_limit": MEMORY,
        "threads": THREADS,
        "temp_directory": str(folder),
        "preserve_insertion_order": "false",
        "autoinstall_known_extensions": "false",
        "python_enable_replacements": "false",
        # a join keeps its right side in memory: ours has the numbers there, where DuckDB might prefer the texts
        "disabled_optimizers": "join_order,build_side_probe_side",
    }
    database = duckdb.connect(str(folder / "completions.duckdb"), config=settings)
    return database.execute("SET enable_progress_bar = false")


def shortened_sql(column: str, most: int) -> str:
    """SQL for a text, of a longer one the beginning and how much is left out."""
    cut = f"left({column}, {most}) || printf(chr(10) || '[… %d characters left out]', length({column}) - {most})"
    return f"CASE WHEN length({column}) > {most} THEN {cut} ELSE {column} END"
