"""What a run's completions are read as, what is found suspect in them, and which are selected. Small synthetic runs."""

import json
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lab.page import run_page
from lab.read import completions, run_record
from lab.read.completions import Completions
from lab.read.selection import choose_groups, spread
from tests.read.small_runs import distinct, group, healthy, make_run, one, tagged, with_evaluations, wrong_at


def found_in(record, **more):
    """(rule, step, group, place) of all suspects of a run."""
    with Completions(record, **more) as table:
        return set(table.suspects()[["rule", "step", "group", "place"]].itertuples(index=False, name=None))


def test_the_table_has_place_total_and_verdict_of_every_completion(tmp_path):
    rows = group([one("a", 1.0), one("b", 0.0)], 0) + group([one("c", 0.0, 0.0), one("d", 1.0, 0.0)], 1)
    with Completions(make_run(tmp_path, {3: rows})) as table:
        found = table.sql(
            'SELECT step, "group", place, completion, total, "right" FROM completions ORDER BY "group", place'
        )
    assert found.values.tolist() == [
        [3, 0, 1, "a", 1.5, True],
        [3, 0, 2, "b", 0.5, False],
        [3, 1, 1, "c", 0.0, False],
        [3, 1, 2, "d", 1.0, True],
    ]


def test_a_total_has_the_weights_of_its_step(tmp_path):
    log = {1: {"weight/correctness_reward": 1.0}, 2: {"weight/correctness_reward": 3.0}}
    record = make_run(tmp_path, {step: [one("a", 1.0)] for step in (1, 2, 4)}, log)
    with Completions(record) as table:
        assert table.sql("SELECT total FROM completions ORDER BY step")["total"].tolist() == [1.5, 3.5, 3.5]


def test_a_step_without_a_row_in_the_log_has_the_weights_of_its_neighbour(tmp_path):
    record = make_run(tmp_path, {1: [one("a", 1.0)], 2: [one("b", 1.0)]}, {1: {"weight/correctness_reward": 4.0}})
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    (tmp_path / "log.jsonl").write_text(lines[0] + "\n")  # killed between the completions and the row
    record = run_record.read_run(tmp_path)
    with Completions(record) as table:
        assert table.sql("SELECT total FROM completions ORDER BY step")["total"].tolist() == [4.5, 4.5]


def test_a_missing_score_counts_zero_and_where_all_are_missing_there_is_no_total(tmp_path):
    rows = [one("a", None, 1.0), one("b", float("nan"), None), one("c", float("inf"), 1.0)]
    with Completions(make_run(tmp_path, {1: rows})) as table:
        found = table.sql('SELECT total, "right" FROM completions ORDER BY place')
    assert found["total"].fillna(-1).tolist() == [0.5, -1, 0.5] and found["right"].isna().all()


def test_an_edited_reward_is_a_column_of_its_own_with_the_weight_of_its_family(tmp_path):
    later = pd.DataFrame([one("b", 0.0, 1.0)]).rename(columns={"format_reward": "format_reward_v2"})
    with Completions(make_run(tmp_path, {1: [one("a")], 2: later.to_dict("records")})) as table:
        assert [reward.name for reward in table.rewards] == ["correctness_reward", "format_reward", "format_reward_v2"]
        found = table.sql("SELECT format_reward, format_reward_v2, total FROM completions ORDER BY step").fillna(-1)
    assert found.values.tolist() == [[1, -1, 0.5], [-1, 1, 0.5]]


def test_versions_of_the_deciding_reward_all_decide(tmp_path):
    later = pd.DataFrame([one("b", 1.0)]).rename(columns={"correctness_reward": "correctness_reward_v2"})
    with Completions(make_run(tmp_path, {1: [one("a", 1.0)], 2: later.to_dict("records")})) as table:
        assert table.sql('SELECT "right" FROM completions')["right"].tolist() == [True, True]


def test_a_column_may_have_another_type_in_every_file(tmp_path):
    values = [[None], [1.5], ["text"], [[1, 2]], [{"a": None}], [b"\xff"], [True], [2**63]]
    types = [pa.null(), None, None, None, None, None, None, pa.uint64()]
    steps = {
        step: pa.Table.from_pandas(pd.DataFrame([one("a")])).append_column("note", pa.array(value, kind))
        for step, (value, kind) in enumerate(zip(values, types), start=1)
    }
    with Completions(make_run(tmp_path, steps)) as table:
        notes = table.sql("SELECT note FROM completions ORDER BY step")["note"].tolist()
        assert table.notes == [] and table.extra_columns == ["note"]
    assert [None if pd.isna(note) else note for note in notes] == [
        None,
        "1.5",
        "text",
        "[1,2]",
        '{"a":null}',
        "\\xFF",
        "true",
        "9223372036854775808",
    ]


def test_conversations_become_json(tmp_path):
    turns = {"prompt": [{"role": "user", "content": "Hi?"}], "completion": [{"role": "assistant", "content": None}]}
    with Completions(make_run(tmp_path, {1: [{**one("", 1.0), **turns}], 2: [one("plain", 1.0)]})) as table:
        found = table.sql("SELECT prompt, completion FROM completions ORDER BY step").values.tolist()
    assert json.loads(found[0][0])[0]["content"] == "Hi?" and found[1] == ["p0", "plain"]
    assert json.loads(found[0][1]) == [{"content": None, "role": "assistant"}]


def test_a_plain_trl_folder_has_the_distinct_prompts_of_a_step_as_groups(tmp_path):
    rows = [{"prompt": p, "completion": f"{p}{i}", "my_reward": float(i)} for i in range(2) for p in ("b", "a")]
    (tmp_path / "completions").mkdir()
    pd.DataFrame(rows).assign(step=5).to_parquet(tmp_path / "completions/completions_00005.parquet")
    history = [{"step": 5, "reward": 0.5, "rewards/my_reward/mean": 0.5}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    with Completions(run_record.read_run(tmp_path, weights={"my_reward": 2.0})) as table:
        found = table.sql(
            'SELECT completion, "group", place, total, tokens, advantage FROM completions ORDER BY "group", place'
        )
    assert found[["completion", "group", "place", "total"]].values.tolist() == [
        ["b0", 0, 1, 0.0],
        ["b1", 0, 2, 2.0],
        ["a0", 1, 1, 0.0],
        ["a1", 1, 2, 2.0],
    ]
    assert found[["tokens", "advantage"]].isna().all(axis=None)


def test_names_of_columns_can_do_no_harm(tmp_path):
    names = [
        '"; DROP TABLE facts; --',
        "a.b",
        "x" * 5000,
        "Tokens",
        "tokens ",
        "key",
        "s0",
        "c0",
        "place",
        "total",
        "filename",
        "file_row_number",
        "it's",
        "données",
        "{{PAYLOAD}}",
        "data/answer",
        "__proto__",
    ]
    record = make_run(tmp_path, {1: [one("a", 1.0, **{name: i for i, name in enumerate(names)})]})
    with Completions(record) as table:
        assert [*table.extra_columns, *table.data_columns] == [*(n for n in names if n != "data/answer"), "data/answer"]
        shown = table.sql("SELECT * FROM completions")
    assert shown["total"].item() == 1.5 and shown["place"].item() == 1 and shown["place_2"].item() == 8
    assert run_page.run_payload(record)["completions"]["extras"] == {
        n: [i] for i, n in enumerate(names) if n != "data/answer"
    }


def test_what_cannot_be_read_is_left_out_and_said(tmp_path):
    make_run(tmp_path, {step: distinct(8) for step in range(1, 7)})
    files = sorted((tmp_path / "completions").glob("*.parquet"))
    files[1].write_bytes(b"PAR1 half")
    pd.DataFrame({"other": [1]}).to_parquet(files[2])
    pd.DataFrame([one("a")]).head(0).to_parquet(files[3])
    record = run_record.read_run(tmp_path)
    files[4].write_bytes(files[4].read_bytes()[:-20])
    with Completions(record) as table:
        assert table.sql("SELECT DISTINCT step FROM completions ORDER BY step")["step"].tolist() == [1, 6]
        assert table.notes == ["4 files of completions left out: damaged, empty, or of another kind"]
    assert run_page.run_payload(record)["run"]["notes"] == [*record.notes, *table.notes]


def test_a_run_without_readable_completions_says_so_and_leaves_nothing_behind(tmp_path, monkeypatch):
    make_run(tmp_path / "run", {1: distinct(8)})
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "run/completions/completions_00001.parquet").unlink()
    with pytest.raises(ValueError, match="has no readable completions"):
        Completions(run_record.read_run(tmp_path / "run"))
    assert not any((tmp_path / "temporary").iterdir())


def test_the_temporary_folder_goes_with_the_object(tmp_path):
    with Completions(make_run(tmp_path, {1: distinct(8)})) as table:
        folder = Path(table.folder.name)
        assert folder.is_dir()
    assert not folder.exists()


def test_texts_that_do_not_fit_into_memory_are_read_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(completions, "MEMORY", "96MB")
    rng = np.random.default_rng(0)
    texts = ["".join(map(chr, rng.integers(97, 123, 50_000))) for _ in range(40)]
    steps = {step: [one(text[step * 7 :] * 2, tokens=None) for text in texts] for step in range(1, 31)}
    record = make_run(tmp_path, steps)  # 120 MB of texts
    with Completions(record) as table:
        assert table.sql("SELECT current_setting('memory_limit') AS m")["m"].item() == "91.5 MiB"
        found = table.sql(
            "SELECT count(*) AS n, sum(length(completion)) AS m FROM completions WHERE completion LIKE '%a%'"
        )
        kept = table.select(limit=10_000, characters=1_000_000)
    assert found["n"].item() == 1200 and found["m"].item() > 110e6
    assert len(kept.texts) == 40 and max(map(len, kept.texts)) == completions.LONGEST_TEXT


def test_a_wrong_query_says_what_is_wrong_and_the_next_one_works(tmp_path):
    with Completions(make_run(tmp_path, {1: distinct(8)})) as table:
        with pytest.raises(duckdb.Error, match="nonsense"):
            table.sql("SELECT nonsense FROM completions")
        table.db.execute("SELECT * FROM completions").fetchone()  # a result that nobody read to its end
        assert table.sql("SELECT count(*) AS n FROM completions")["n"].item() == 8


def test_right_is_the_upper_half_of_the_deciding_rewards_range_and_the_mean_of_several(tmp_path):
    rows = [one("a", 0.5), one("b", 0.49), one("c", 1.0, math_reward=0.0), one("d", 0.9, math_reward=0.0)]
    with Completions(make_run(tmp_path, {1: rows})) as table:
        assert [reward.name for reward in table.rewards if reward.decides] == ["correctness_reward", "math_reward"]
        assert table.sql('SELECT "right" FROM completions ORDER BY place')["right"].tolist() == [
            True,
            False,
            True,
            False,
        ]


def test_a_reward_of_ones_own_decides_where_it_is_named(tmp_path):
    rows = pd.DataFrame([one("a", 1.0), one("b", 0.0)]).rename(columns={"correctness_reward": "my_reward"})
    make_run(tmp_path, {1: rows.to_dict("records")})
    for given, expected in (([], [None, None]), (["my_reward"], [True, False])):
        with Completions(run_record.read_run(tmp_path, correctness=given)) as table:
            right = table.sql('SELECT "right" FROM completions ORDER BY place')["right"]
        assert [None if pd.isna(value) else value for value in right] == expected


@pytest.mark.parametrize(
    "name, recorded, scores, expected",
    [
        ("own_reward", [-1.0, 2.0], [0.0, 1.0], (-1.0, 2.0)),
        ("own_reward", [0.0, 1.0], [0.0, 3.0], (0.0, 3.0)),
        ("own_reward", [float("-inf"), float("inf")], [0.5, 3.0], (0.0, 3.0)),
        ("own_reward", None, [-2.0, -1.0], (-2.0, 0.0)),
        ("own_reward", None, [0.0, 0.0], (0.0, 1.0)),
        ("json_reward", None, [0.2, 0.4], (0.0, 1.0)),
        ("json_reward[a=1]", None, [0.2, 0.4], (0.0, 1.0)),
    ],
)
def test_a_range_comes_from_the_record_from_rewards_py_or_from_the_scores(tmp_path, name, recorded, scores, expected):
    entry = {"name": name, "weight": 1.0, **({"range": recorded} if recorded else {})}
    rows = [{"prompt": "p", "completion": str(score), name: score} for score in scores]
    with Completions(make_run(tmp_path, {1: rows}, about={"rewards": {"rewards": [entry]}})) as table:
        assert [(reward.low, reward.high) for reward in table.rewards] == [expected]


def test_an_edited_reward_has_the_range_of_its_edit(tmp_path):
    make_run(tmp_path, {1: [{**one("a"), "format_reward_v2": 1.0}]})
    event = {
        "step": 1,
        "kind": "reward_changed",
        "reward": "format_reward",
        "name": "format_reward_v2",
        "range": [-5.0, 5.0],
    }
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    with Completions(run_record.read_run(tmp_path)) as table:
        assert {reward.name: reward.low for reward in table.rewards} == {
            "correctness_reward": 0.0,
            "format_reward": 0.0,
            "format_reward_v2": -5.0,
        }


def test_a_healthy_run_has_no_suspects(tmp_path):
    record = make_run(tmp_path, healthy(), about={"effective": {"max_completion_length": 64}})
    with Completions(record) as table:
        assert set(table.suspect_counts().values()) == {0}
        assert table.select().suspects == {}


def test_a_solved_run_that_always_says_the_same_has_no_suspects(tmp_path):
    rows = [row for number in range(8) for row in group([one(tagged(4), 1.0)] * 8, number)]
    with Completions(make_run(tmp_path, {1: rows, 2: rows})) as table:
        assert set(table.suspect_counts().values()) == {0} and table.select().suspects == {}


@pytest.mark.parametrize(
    "total, rights, suspect",
    [
        (1.2, (1.5, 1.2), True),
        (1.19, (1.5, 1.2), False),
        (1.2, (), True),
        (1.19, (), False),
    ],
)
def test_wrong_but_high_is_a_wrong_one_at_the_total_of_a_right_one_or_near_the_runs_highest(
    tmp_path, total, rights, suspect
):
    record = make_run(tmp_path, {1: wrong_at(0.0), 2: wrong_at(total, rights=rights)})
    assert ({("wrong_but_high", 2, 0, len(rights) + 1)} <= found_in(record)) == suspect
    assert all(step == 2 for rule, step, *_ in found_in(record) if rule == "wrong_but_high")


@pytest.mark.parametrize(
    "scores, right, suspect",
    [
        ([1.0, 0.2, 0.2, 0.2], [0, 0, 0, 0], True),
        ([1.0, 0.3, 0.3, 0.3], [0, 0, 0, 0], False),  # 0.35 above the second best, of a range of 1.5
        ([1.0, 0.2, 0.2], [0, 0, 0], False),  # a group of three
        ([1.0, 0.2, 0.2, 0.2], [1, 0, 0, 0], False),  # the only right one
        ([1.0, 0.2, 0.2, 0.2], [1, 1, 1, 1], True),  # all are right: what sets it apart is something else
    ],
)
def test_alone_at_the_top_is_far_above_its_group_and_not_because_it_is_right(tmp_path, scores, right, suspect):
    rows = [
        {**row, "format_reward": s, "correctness_reward": float(r)} for row, s, r in zip(distinct(4), scores, right)
    ]
    steps = {1: distinct(2, right=1.0, style=1.0) + distinct(2, number=1), 2: rows}
    found = {each for each in found_in(make_run(tmp_path, steps)) if each[0] == "alone_at_the_top"}
    assert found == ({("alone_at_the_top", 2, 0, 1)} if suspect else set())


def test_alone_at_the_top_wants_three_standard_deviations_of_the_rest(tmp_path):
    scores = {1: [1.0, 0.4, 0.0, 0.4, 0.0, 0.4], 2: [1.0, 0.45, 0.0, 0.45, 0.0, 0.45]}  # deviations of 0.196 and 0.220
    steps = {step: [{**row, "format_reward": s} for row, s in zip(distinct(6), each)] for step, each in scores.items()}
    found = found_in(make_run(tmp_path, steps))
    assert {each for each in found if each[0] == "alone_at_the_top"} == {("alone_at_the_top", 1, 0, 1)}


@pytest.mark.parametrize(
    "same, right, of, suspect",
    [
        (4, 0.0, 8, True),
        (3, 0.0, 8, False),
        (8, 1.0, 8, False),
        (3, 0.0, 3, False),
        (2, 0.0, 4, True),
    ],
)
def test_near_duplicates_are_half_of_a_group_that_is_not_right(tmp_path, same, right, of, suspect):
    texts = ["The Same  text\nagain", "the same text again"]
    rows = distinct(of, style=1.0)
    for i in range(same):
        rows[i] |= {"completion": texts[i % 2], "correctness_reward": right}
    found = {place for rule, _, _, place in found_in(make_run(tmp_path, {1: rows})) if rule == "near_duplicates"}
    assert found == (set(range(1, same + 1)) if suspect else set())


@pytest.mark.parametrize("edits, suspect", [(1, True), (6, False)])
def test_nearly_the_same_texts_of_a_group_are_found_in_the_selection(tmp_path, edits, suspect):
    base = "a policy that says one thing over and over and never learns another"
    rows = distinct(8)
    for i in range(4):
        rows[i]["completion"] = "".join(chr(65 + i) if j % 9 == 0 and j < 9 * edits else c for j, c in enumerate(base))
    with Completions(make_run(tmp_path, {1: rows})) as table:
        kept = table.select()
        assert table.suspect_counts()["near_duplicates"] == 0
    assert sorted(kept.suspects) == ([0, 1, 2, 3] if suspect else [])
    assert kept.found_here["near_duplicates"] == (4 if suspect else 0)


@pytest.mark.parametrize(
    "prompts, text, right, suspect",
    [
        (3, "one text for every prompt", 0.0, True),
        (2, "one text for every prompt", 0.0, False),
        (3, "one text for every prompt", 1.0, False),
        (3, "short", 0.0, False),
    ],
)
def test_near_duplicates_are_also_one_text_for_three_prompts_of_a_step(tmp_path, prompts, text, right, suspect):
    rows = []
    for number in range(3):
        texts = distinct(8, number=number)
        if number < prompts:
            texts[2] |= {"completion": text, "correctness_reward": right}
        rows += group(texts, number)
    found = {(g, place) for rule, _, g, place in found_in(make_run(tmp_path, {1: rows})) if rule == "near_duplicates"}
    assert found == ({(number, 3) for number in range(3)} if suspect else set())


def test_where_nothing_decides_what_is_right_the_upper_half_of_the_totals_may_repeat_itself(tmp_path):
    rows = pd.DataFrame(group([one("the same", style=1.0)] * 4, 0) + group([one("not so good", style=0.0)] * 4, 1))
    found = found_in(make_run(tmp_path, {1: rows.drop(columns="correctness_reward").to_dict("records")}))
    assert {(rule, g) for rule, _, g, _ in found} == {("near_duplicates", 1)}


@pytest.mark.parametrize(
    "tokens, length, limit, suspect",
    [
        (96, 9, 96, True),
        (95, 9, 96, True),
        (95, 9, 1000, True),
        (90, 9, 1000, False),
        (63, 9, None, False),
        (None, 400, None, True),
        (None, 360, None, False),
        (None, 400, 60, True),
    ],
)
def test_very_long_is_cut_at_the_limit_or_three_times_the_median(tmp_path, tokens, length, limit, suspect):
    rows = distinct(9, tokens=None if tokens is None else (31 if tokens > 90 else 30 if tokens == 90 else 10))
    for i, row in enumerate(rows):
        row["completion"] = (str(i) * 120)[:120]
    rows[4] |= {"tokens": tokens, "completion": "ab" * (length // 2)}
    found = found_in(make_run(tmp_path, {1: rows}, about={"effective": {"max_completion_length": limit}}))
    assert found == ({("very_long", 1, 0, 5)} if suspect else set())


def test_right_without_a_text_is_suspect(tmp_path):
    rows = distinct(6, right=1.0)
    rows[1]["completion"] = " \n"
    rows[2] |= {"completion": "", "correctness_reward": 0.0}
    assert found_in(make_run(tmp_path, {1: rows})) == {("right_without_answer", 1, 0, 2)}


def test_every_suspect_has_its_reason_with_its_numbers(tmp_path):
    rows = wrong_at(1.2)
    rows[7] |= {"tokens": 200}
    with Completions(make_run(tmp_path, {1: rows}, about={"requested": {"max_completion_length": 200}})) as table:
        assert table.suspects().set_index("rule")["why"].to_dict() == {
            "wrong_but_high": "total 1.2, judged wrong; a right one of this step has 1.2",
            "very_long": "200 tokens: at the limit of 200",
        }
        assert "200 tokens" in table.rules()["very_long"] and "correctness_reward" in table.rules()["wrong_but_high"]


def test_a_completion_may_fall_under_several_rules_and_have_several_reasons(tmp_path):
    rows = [row for number in range(3) for row in group([one("one text for every prompt")] * 4, number)]
    rows[0]["tokens"] = 900
    with Completions(make_run(tmp_path, {1: rows})) as table:
        why = table.select().suspects[0]
    assert list(why) == ["near_duplicates", "very_long", "wrong_but_high"] and why["near_duplicates"].count("; ") == 1


def groups_of(steps, a_step, size=8, length=100):
    number = [(step, grp) for step in range(1, steps + 1) for grp in range(a_step)]
    table = pd.DataFrame(number, columns=["step", "grp"])
    return table.assign(n=size, characters=size * length)


def test_everything_is_shown_where_it_fits(tmp_path):
    with Completions(make_run(tmp_path, healthy())) as table:
        kept = table.select()
    assert (
        len(kept.texts) == 640
        and kept.left_out == ""
        and kept.summary == "All 640 completions of 80 prompts in 10 steps."
    )


@pytest.mark.parametrize("limit, characters", [(640, 10**9), (10**9, 64_000), (641, 64_799), (1000, 10**9), (9, 10**9)])
def test_a_selection_stays_within_its_limits_in_whole_groups(limit, characters):
    table = groups_of(50, 8)
    chosen = table.loc[choose_groups(table, range(0, 400, 7), limit, characters)]
    assert (
        len(chosen) == len(set(chosen.index))
        and 0 < chosen["n"].sum() <= limit
        and chosen["characters"].sum() <= characters
    )
    assert chosen["n"].sum() > limit - 8 or chosen["characters"].sum() > characters - 800


def test_a_selection_has_the_latest_step_suspects_and_groups_spread_evenly():
    table = groups_of(100, 10)
    suspects = [10 * step + 3 for step in range(40, 60)]
    chosen = choose_groups(table, suspects, 8 * 200, 10**9)
    kept = table.loc[chosen]
    assert sum(kept["step"] == 100) == 10 and set(suspects) <= set(chosen) and sum(kept["n"]) == 1600
    assert max(np.diff(kept["step"].unique())) <= 2 and kept["step"].min() == 1


def test_suspects_take_at_most_a_third():
    table = groups_of(100, 10)
    assert 100 <= sum(row < 500 for row in choose_groups(table, range(500), 8 * 300, 10**9)) <= 220


def test_a_latest_step_that_does_not_fit_is_shown_in_part():
    table = groups_of(3, 100)
    chosen = choose_groups(table, [], 8 * 10, 10**9)
    assert len(chosen) == 10 and {table.loc[i, "step"] for i in chosen} == {3}


def test_a_limit_below_one_group_shows_one_group():
    assert len(choose_groups(groups_of(3, 4), [], 1, 1)) == 1


@pytest.mark.parametrize("n", [0, 1, 2, 5, 8, 100])
def test_spread_has_each_item_once(n):
    assert sorted(spread(range(n))) == list(range(n))


def test_a_selection_says_what_it_is_and_what_it_lacks(tmp_path):
    steps = healthy()
    steps[5][0]["completion"] = "😀" * 20_001
    with Completions(make_run(tmp_path, steps)) as table:
        part, whole = table.select(limit=200), table.select()
    assert part.summary.startswith("200 of 640 completions, whole groups only: of the latest step, with suspects")
    assert part.left_out.startswith("Not in this page: 440 completions; ")
    assert whole.left_out == "1 completion cut after 20,000 characters." and whole.rows["cut"].sum() == 1
    assert max(whole.texts, key=len) == "😀" * 20_000


def test_suspects_of_each_rule_have_their_turn(tmp_path):
    long = {step: distinct(8) for step in range(1, 20)}
    for rows in long.values():
        rows[3]["tokens"] = 500
    steps = {**long, 20: distinct(8) + distinct(8, number=1), 7: wrong_at(1.5)}
    with Completions(make_run(tmp_path, steps)) as table:
        kept = table.select(limit=48)
    assert "wrong_but_high" in {rule for why in kept.suspects.values() for rule in why}


def test_of_many_held_out_answers_the_first_prompts_are_kept_with_all_of_theirs(tmp_path):
    record = with_evaluations(make_run(tmp_path, {1: distinct(4)}))
    with Completions(record) as table:
        kept = run_page.held_out_answers(record, table.rewards, most=2)
    assert kept["prompt"].tolist() == ["h0", "h0"] and kept["step"].tolist() == [0, 2]


def test_a_folders_name_is_no_pattern_and_no_column(tmp_path):
    one_run, other = {1: distinct(4)}, {1: distinct(4, 1.0)}
    make_run(tmp_path / "ab", other)
    for name in ("a[b]", "a*", "correctness_reward=1", "step=7"):
        with Completions(make_run(tmp_path / name, one_run)) as table:
            found = table.sql(
                "SELECT count(*) AS n, max(correctness_reward) AS best, max(step) AS step FROM completions"
            )
        assert found.iloc[0].tolist() == [4, 0.0, 1], name
