"""The reader of runs: ours and plain TRL ones, whole, half-written and still going; and what tells several apart."""

import dataclasses
import json
import math

import pandas as pd
import pytest

from lab.files import ROOT, SAMPLE_RUN, MissingInputError, write_json
from lab.read import health, health_rules, run_record, run_summary
from lab.train.process import this_process

REWARDS = ("correctness_reward", "format_reward")


def row(step, **more):
    return {
        "step": step,
        "loss": 0.1,
        "reward": 0.5,
        "rewards/correctness_reward/mean": 0.4,
        "rewards/format_reward/mean": 0.6,
        **more,
    }


def about(weights=(1.0, 0.5), model="small", source="abc", seed=1, **settings):
    """A run.json, as far as readers look at it."""
    rewards = [{"name": name, "weight": weight} for name, weight in zip(REWARDS, weights)]
    return {
        "status": "finished",
        "reason": None,
        "steps": 3,
        "seconds": 12.5,
        "model": {"shown": model, "name": f"hub/{model}"},
        "rewards": {"rewards": rewards, "source_sha256": source},
        "requested": {"seed": seed, "max_steps": 3, "learning_rate": 1e-5, "beta": 0.02, **settings},
    }


def write_rows(path, rows, tail=b""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode() + tail)


@pytest.fixture
def folder(tmp_path):
    """A finished run of three steps, with what else a run leaves."""
    place = tmp_path / "run"
    write_rows(
        place / "log.jsonl",
        [
            {"step": 0, "eval_correctness_reward": 0.1, "eval_tokens": 40.0, "eval_n": 64},
            row(1),
            row(2),
            {"step": 2, "eval_correctness_reward": 0.3, "eval_tokens": 41.0, "eval_n": 64},
            row(3),
        ],
    )
    write_rows(place / "events.jsonl", [{"step": 2, "kind": "resumed", "after_step": 2}])
    write_rows(place / "printed.jsonl", [{"step": 3, "text": "hello\n"}])
    write_json(place / "run.json", about())
    return place


def completions(folder, step, cut=None):
    path = folder / "completions" / f"completions_{step:05d}.parquet"
    path.parent.mkdir(exist_ok=True)
    pd.DataFrame({"step": [step], "completion": ["a"]}).to_parquet(path)
    if cut is not None:
        path.write_bytes(path.read_bytes()[:cut])
    return path


# --------------------------------------------------------------------------- our runs


def test_a_whole_run_is_read_with_evaluations_apart_from_steps(folder):
    record = run_record.read_run(folder)
    assert (record.name, record.source, record.about["status"], record.notes) == ("run", "ours", "finished", [])
    assert record.log.index.tolist() == record.log["step"].tolist() == [1, 2, 3] and record.reward_names() == list(
        REWARDS
    )
    assert record.evaluations[["step", "n", "correctness_reward"]].to_numpy().tolist() == [[0, 64, 0.1], [2, 64, 0.3]]
    assert record.events[0]["kind"] == "resumed" and record.printed == [{"step": 3, "text": "hello\n"}]


@pytest.mark.parametrize(
    "tail", [b'{"step": 4, "rew', '{"step": 4, "what": "é'.encode()[:-1], b"null\n", b"[" * 100_000]
)
def test_a_half_written_last_line_is_left_out_and_noted(folder, tail):
    with (folder / "log.jsonl").open("ab") as log:
        log.write(tail)
    record = run_record.read_run(folder)
    assert record.log.index.tolist() == [1, 2, 3] and record.notes == ["1 half-written line of log.jsonl left out"]


def test_a_line_separator_within_a_text_ends_no_line(folder):
    write_rows(folder / "printed.jsonl", [{"step": 1, "text": "a\u2028b\x85c"}])
    assert run_record.read_run(folder).printed == [{"step": 1, "text": "a\u2028b\x85c"}]


def test_of_a_step_that_is_there_twice_the_last_row_counts():
    record = run_record.record_from_rows([row(2, reward=0.1), row(1), row(2, reward=0.9)])
    assert record.log["reward"].tolist() == [0.5, 0.9] and record.log.index.tolist() == [1, 2]
    assert record.notes == ["1 step logged twice: the last row counts"]


@pytest.mark.parametrize("value", [None, "n/a", [1], {}, math.nan])
def test_what_is_no_number_is_nan(value):
    record = run_record.record_from_rows([row(1), row(2, kl=value, reward=value)])
    assert record.log.dtypes.drop("step").eq(float).all() and record.log.loc[2, ["kl", "reward"]].isna().all()


@pytest.mark.parametrize("value, number", [("0.25", 0.25), (math.inf, math.inf), (True, 1.0), (2, 2.0)])
def test_numbers_in_any_form_are_numbers(value, number):
    assert run_record.record_from_rows([row(1, kl=value)]).log.loc[1, "kl"] == number


def test_a_number_beyond_all_floats_is_nan():
    assert math.isnan(run_record.record_from_rows([row(1, kl=10**400)]).log.loc[1, "kl"])


@pytest.mark.parametrize("step", [None, "x", math.nan, -1])
def test_a_row_without_a_step_is_left_out(step):
    record = run_record.record_from_rows([row(1), row(step)])
    assert len(record.log) == 1


def test_a_second_pass_over_a_batch_has_no_reward_and_is_no_row_of_its_own():
    record = run_record.record_from_rows(
        [row(1), {"step": 2, "loss": 0.1, "kl": 0.2}, row(3), {"step": 3, "train_runtime": 9.0}]
    )
    assert record.log.index.tolist() == [1, 3]
    assert not health.problems(health.diagnose(record.log)), "a missing reward would be taken for NaN"


@pytest.mark.parametrize("text", [None, '{"status": "fin', "[]", "{}"])
def test_a_missing_or_damaged_run_json_costs_only_what_stands_in_it(folder, text):
    (folder / "run.json").unlink() if text is None else (folder / "run.json").write_text(text)
    record = run_record.read_run(folder)
    assert record.about == {} and len(record.log) == 3 and record.source == "ours"
    assert len(record.notes) == 1 and "missing or damaged" in record.notes[0]


def test_a_run_whose_process_is_gone_is_told_as_killed(folder):
    write_json(folder / "run.json", {**about(), "status": "training", "process": {**this_process(), "began": 1.0}})
    assert run_record.read_run(folder).about["status"] == "killed"


def test_without_a_step_the_error_says_how_it_stands(folder):
    write_rows(folder / "log.jsonl", [{"step": 0, "eval_correctness_reward": 0.1, "eval_n": 64}])
    write_json(folder / "run.json", {**about(), "status": "failed", "reason": "no room"})
    with pytest.raises(ValueError, match=r"no training step yet \(failed: no room\): let 03_train_grpo run"):
        run_record.read_run(folder)
    (folder / "log.jsonl").unlink()
    with pytest.raises(ValueError, match=r"no training step yet \(failed: no room\)"):
        run_record.read_run(folder)


def test_what_is_no_run_is_refused_with_where_to_look(folder, tmp_path):
    for place in (tmp_path / "nothing", folder.parent):
        with pytest.raises(
            MissingInputError, match="neither log.jsonl, nor trainer_state.json.*notebook 03_train_grpo"
        ):
            run_record.read_run(place)


def test_completions_are_in_the_order_of_steps(folder):
    kept = [completions(folder, step) for step in (9, 100_000, 99_999)]
    (folder / "completions" / "completions_00003.tmp").write_bytes(b"")
    (folder / "completions" / "completions_old.parquet").write_bytes(b"")
    record = run_record.read_run(folder)
    assert record.completions == [kept[0], kept[2], kept[1]]


def test_a_run_that_goes_on_is_read_as_far_as_it_has_come(folder):
    before = run_record.read_run(folder)
    with (folder / "log.jsonl").open("a") as log:
        log.write(json.dumps(row(4, **{"rewards/format_reward_v2/mean": 0.2})) + "\n")
    after = run_record.read_run(folder)
    assert len(before.log) == 3 and len(after.log) == 4 and after.reward_names() == [*REWARDS, "format_reward_v2"]


# --------------------------------------------------------------------------- plain TRL directories


def state(folder, steps, text=None):
    rows = [
        *(row(step) for step in steps),
        {"step": 2, "eval_reward": 0.7, "eval_rewards/format_reward/mean": 0.8, "eval_loss": 0.0},
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(
        text or json.dumps({"log_history": [*rows, {"step": len(rows) - 1, "train_loss": 0.1}]})
    )


def test_a_trl_directory_is_read_from_its_newest_checkpoint_by_number(tmp_path):
    for last in (2, 10):
        state(tmp_path / f"checkpoint-{last}", range(1, last + 1))
    state(tmp_path / "checkpoint-1", [], "damaged, and not looked at")
    completions(tmp_path, 5)
    record = run_record.read_run(tmp_path)
    assert (record.source, record.about, len(record.log)) == ("trl", {}, 10) and len(record.completions) == 1
    assert len(record.notes) == 1 and "weights are not known" in record.notes[0], (
        "and nothing of the damaged checkpoint"
    )
    assert record.evaluations.loc[0, ["step", "reward", "format_reward"]].tolist() == [2, 0.7, 0.8]
    assert record.evaluations["n"].isna().all()


def test_of_the_folder_and_its_checkpoints_what_went_further_is_read(tmp_path):
    state(tmp_path, range(1, 4))
    assert len(run_record.read_run(tmp_path).log) == 3
    state(tmp_path / "checkpoint-5", range(1, 6))
    assert len(run_record.read_run(tmp_path).log) == 5


@pytest.mark.parametrize("text", ['{"log_history": [{"st', "[]", '{"log_history": 3}', "{}"])
def test_a_half_written_checkpoint_falls_back_to_the_one_before(tmp_path, text):
    state(tmp_path / "checkpoint-2", [1, 2])
    state(tmp_path / "checkpoint-4", [], text)
    record = run_record.read_run(tmp_path)
    assert len(record.log) == 2 and "checkpoint-4" in record.notes[0] and "damaged" in record.notes[0]


def test_a_trl_run_before_its_first_checkpoint_says_so(tmp_path):
    completions(tmp_path, 5)
    with pytest.raises(ValueError, match="save_steps"):
        run_record.read_run(tmp_path)


# --------------------------------------------------------------------------- weights and metrics


def test_weights_come_from_the_log_else_from_run_json_else_as_given_else_1(folder, tmp_path):
    assert run_record.read_run(folder).weights().loc[3].tolist() == [1.0, 0.5]
    state(tmp_path / "trl", [1])
    assert run_record.read_run(tmp_path / "trl").weights().loc[1].tolist() == [1.0, 1.0]
    assert run_record.read_run(tmp_path / "trl", weights={"format_reward": 0.2}).weights().loc[1].tolist() == [1.0, 0.2]
    logged = run_record.record_from_rows([row(1, **{"weight/format_reward": 0.3})], about=about())
    assert logged.weights().loc[1].tolist() == [1.0, 0.3]


def test_a_weight_that_is_given_for_no_reward_is_refused(tmp_path):
    state(tmp_path, [1])
    with pytest.raises(ValueError, match="'fromat_reward'.*correctness_reward, format_reward"):
        run_record.read_run(tmp_path, weights={"fromat_reward": 0.2})


def edited(**more):
    """Four steps; format_reward goes on as its second version from step 3."""
    rows = [row(step, **more) for step in (1, 2, 3, 4)]
    for one in rows[2:]:
        one["rewards/format_reward_v2/mean"] = one.pop("rewards/format_reward/mean") / 2
    return rows


def test_a_version_has_its_rewards_weight_while_it_is_in_use_and_none_else():
    weights = run_record.record_from_rows(edited(), about=about()).weights()
    assert weights["format_reward"].isna().tolist() == [False, False, True, True]
    assert weights["format_reward_v2"].dropna().to_dict() == {3: 0.5, 4: 0.5}


def test_a_version_without_a_score_in_between_stays_in_use():
    rows = edited()
    rows[1]["rewards/format_reward/mean"] = rows[3]["rewards/format_reward_v2/mean"] = None
    assert run_record.record_from_rows(rows).weights()[
        ["format_reward", "format_reward_v2"]
    ].notna().to_numpy().tolist() == [
        [1, 0],
        [1, 0],
        [0, 1],
        [0, 1],
    ]


def test_own_metrics_are_what_neither_trl_nor_we_log():
    ours = {"weight/format_reward": 1, "time/scoring": 0.1, "completions/duplicate_share": 0, "temperature": 1}
    theirs = {
        "completions/mean_length": 9,
        "clip_ratio/region_mean": 0,
        "sampling/x": 1,
        "epoch": 0.1,
        "rewards/format_reward/std": 0,
    }
    record = run_record.record_from_rows(
        [row(1, **ours, **theirs, parsed_share=0.5, **{"completions/with_code": 0.2}, remark="no number")]
    )
    assert record.own_metrics() == ["parsed_share", "completions/with_code"]


def test_no_column_of_a_real_trainer_is_taken_for_a_rewards_own(folder):
    import inspect
    import re

    from trl import GRPOTrainer

    names = re.findall(r'_metrics\[mode\]\["([^"{}]+)"\]', inspect.getsource(GRPOTrainer))
    assert len(names) > 15 and run_record.record_from_rows([row(1, **dict.fromkeys(names, 1.0))]).own_metrics() == []


# --------------------------------------------------------------------------- several runs


def made(name="run", rows=None, **how):
    record = run_record.record_from_rows(rows or [row(1), row(2)], about=about(**how))
    return dataclasses.replace(record, name=name)


def test_runs_that_differ_by_their_seed_and_length_alone_have_one_label():
    assert len(set(run_summary.label_runs([made(seed=1), made(seed=2), made(seed=3, max_steps=90)]))) == 1
    assert run_summary.label_runs([made(seed=1), made(seed=2)]) == ["small", "small"]


@pytest.mark.parametrize(
    "how, labels",
    [
        ({"learning_rate": 1e-6}, ["learning_rate 1e-05", "learning_rate 1e-06"]),
        ({"model": "large"}, ["model small", "model large"]),
        (
            {"weights": (1.0, 0.2)},
            ["correctness_reward × 1 + format_reward × 0.5", "correctness_reward × 1 + format_reward × 0.2"],
        ),
        ({"weights": (1.0,)}, ["correctness_reward × 1 + format_reward × 0.5", "correctness_reward × 1"]),
        ({"stages": [[50, {"format_reward": 1.0}]]}, ["no stages", "stages #66113809"]),
        ({"source": "f" * 64}, ["reward sources abc", "reward sources ffffffff"]),
        ({"model": "large", "beta": 0.0, "a": 1, "b": 2}, ["model small, beta 0.02", "model large, beta 0"]),
    ],
)
def test_a_label_says_what_differs(how, labels):
    assert run_summary.label_runs([made(stages=[]), made(**{"stages": [], **how})]) == labels


def test_a_label_names_three_differences_and_counts_the_rest():
    assert (
        run_summary.label_runs([made(a=1, b=1, c=1, d=1, e=1), made(a=2, b=2, c=2, d=2, e=2)])[1]
        == "a 2, b 2, c 2 and 2 more"
    )


def test_runs_without_a_record_go_by_their_folders_and_are_never_seeds_of_one(tmp_path):
    for name in ("first", "second"):
        state(tmp_path / name / "out", [1])
    assert run_summary.label_runs([run_record.read_run(tmp_path / name / "out") for name in ("first", "second")]) == [
        "first/out",
        "second/out",
    ]


def test_the_summary_takes_the_last_ten_steps_and_the_last_evaluation():
    rows = [row(step, reward=step / 20, kl=math.inf if step == 20 else 0.1) for step in range(1, 21)]
    rows += [
        {"step": 0, "eval_correctness_reward": 0.1, "eval_n": 9},
        {"step": 20, "eval_correctness_reward_v2": 0.9, "eval_n": 9},
    ]
    line = run_summary.summarize_runs([made("A", rows)]).loc["A"]
    assert (line["group"], line["steps"], line["seconds"]) == ("small", 20, 12.5)
    assert (
        line["reward"] == pytest.approx(0.775)
        and line["correctness"] == pytest.approx(0.4)
        and line["kl"] == pytest.approx(0.1)
    )
    assert line["held-out correctness"] == 0.9 and math.isnan(line["tokens"])


def test_versions_of_a_reward_are_one_series_for_comparison():
    record = run_record.record_from_rows(edited())
    assert run_record.mean_scores(record)["format_reward"].tolist() == [
        0.6,
        0.6,
        0.3,
        0.3,
    ] and run_record.edited_rewards(record) == {3: "format_reward_v2"}
    assert run_record.mean_correctness(record).tolist() == [0.4] * 4


# --------------------------------------------------------------------------- the verdict


def test_a_diagnosis_can_be_written_as_json_with_its_thresholds():
    rows = [row(step, loss=math.nan if step == 14 else 0.1, kl=math.inf) for step in range(1, 15)]
    record = run_record.record_from_rows(rows, about=about())
    made = json.loads(json.dumps(run_summary.diagnosis_report(record), allow_nan=False))
    assert len(made["findings"]) == len(health_rules.RULES) and made["findings"][0]["rule"] == "not_a_number"
    assert {"value", "threshold", "verdict", "advice", "measures", "sense"} <= made["findings"][0].keys()
    assert made["thresholds"]["KL_WARN"] == health_rules.KL_WARN and made["convergence"]["sentence"].endswith(
        health.TREND_NOTE
    )
    assert (made["status"], made["steps"], made["decided_by"]) == ("finished", 14, ["correctness_reward"])


def test_a_run_says_itself_which_rewards_decide_what_is_right_and_an_older_one_goes_by_their_names():
    rows = [row(step, **{"rewards/own/mean": 0.25, "rewards/correctness_reward/mean": 1.0}) for step in (1, 2)]
    entries = [
        {"name": "own", "weight": 1, "decides": True},
        {"name": "correctness_reward", "weight": 1, "decides": False},
    ]
    record = run_record.record_from_rows(rows, about={"rewards": {"rewards": entries}})
    assert record.deciders() == ("own",) and run_record.mean_correctness(record).tolist() == [0.25] * 2
    assert run_summary.diagnosis_report(record)["decided_by"] == ["own"]
    older = run_record.record_from_rows(rows, about={"rewards": {"rewards": [{"name": "own", "weight": 1}]}})
    assert run_record.mean_correctness(older).tolist() == [1.0] * 2 and older.weights()["own"].tolist() == [1.0] * 2


def test_the_recorded_run_has_what_notebook_04_shows_and_nothing_of_the_machine_it_ran_on():
    record = run_record.read_run(SAMPLE_RUN)
    assert (
        record.notes == []
        and record.about["status"] == "finished"
        and len(record.log) == 80
        and len(record.held_out) == 5
    )
    assert list(run_record.edited_rewards(record).values()) == ["worked_steps_reward_v2"] and record.printed
    assert record.weights()["soft_format_reward"].iloc[[0, -1]].tolist() == [0.5, 0.0]
    assert record.own_metrics() == ["lines_of_reasoning", "equations_in_reasoning"]
    assert record.log["temperature"].iloc[-1] == pytest.approx(0.7)
    assert record.log["rewards/correctness_reward/mean"].iloc[-10:].mean() > 0.9, "a run that learned"
    written = "".join(path.read_text() for path in SAMPLE_RUN.glob("*.json*"))
    assert '"host"' not in written and str(ROOT) not in written and '"/' not in written


def test_weights_that_a_run_does_not_keep_are_told_from_its_totals_or_said_to_be_unknown(tmp_path):
    def rows(total):
        a, b = "rewards/a/mean", "rewards/b/mean"
        scored = [{"step": step, a: 0.1 * step, b: 1.0 / step} for step in range(1, 9)]
        return [{**one, "reward": total(one[a], one[b], one["step"])} for one in scored]

    def read(name, total):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "trainer_state.json", {"log_history": rows(total)})
        return run_record.read_run(tmp_path / name)

    told, plain, odd = (
        read("told", lambda a, b, _: a + 0.2 * b),
        read("plain", lambda a, b, _: a + b),
        read("odd", lambda a, b, step: step % 3),
    )
    assert (
        told.weights().iloc[0].to_dict() == {"a": 1.0, "b": 0.2}
        and "fitted from the logged totals: a 1, b 0.2" in told.notes[0]
    )
    assert plain.notes == [] and plain.weights().iloc[0].to_dict() == {"a": 1.0, "b": 1.0}
    assert "weights are not known" in odd.notes[0]
    assert run_record.read_run(tmp_path / "odd", weights={"a": 3.0}).notes == []
    assert run_record.mean_correctness(run_record.read_run(tmp_path / "odd", correctness=["a"])).iloc[
        0
    ] == pytest.approx(0.1)
    with pytest.raises(ValueError, match="no reward 'c' in .*: its rewards are a, b"):
        run_record.read_run(tmp_path / "odd", correctness=["c"])


def test_a_metric_of_a_reward_that_is_called_like_an_evaluation_hides_no_step():
    record = run_record.record_from_rows([row(step, eval_len=3.0) for step in range(1, 20)])
    assert len(record.log) == 19 and record.evaluations.empty


def test_columns_of_an_evaluation_that_collide_are_one():
    rows = [
        row(1, **{"rewards/reward/mean": 0.5}),
        {"step": 1, "eval_reward": 9.0, "eval_rewards/reward/mean": 0.5, "eval_step": 7},
    ]
    evaluations = run_record.record_from_rows(rows).evaluations
    assert (
        evaluations.columns.is_unique
        and evaluations["reward"].tolist() == [0.5]
        and evaluations["step"].tolist() == [1]
    )


@pytest.mark.parametrize("damage", [{"model": "x"}, {"requested": None}, {"rewards": ["a"]}, {"steering": 3}])
def test_a_record_with_damaged_parts_is_left_out(tmp_path, damage):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "log.jsonl").write_text("".join(json.dumps(row(step)) + "\n" for step in [1, 2, 1e300]))
    write_json(folder / "run.json", {"status": "finished", "requested": {}, "model": {}, **damage})
    record = run_record.read_run(folder)
    assert record.about == {} and "damaged" in record.notes[0] and len(record.log) == 2
    assert run_summary.summarize_runs([record])["steps"].tolist() == [2] and run_summary.label_runs([record])


def test_a_share_of_groups_that_was_not_counted_by_group_is_left_out():
    rows = [row(1, frac_reward_zero_std=0.5)]
    batch = run_record.record_from_rows(rows, about={"requested": {"scale_rewards": "batch"}})
    assert "frac_reward_zero_std" not in batch.log and "steps without spread" in batch.notes[0]
    assert (
        "frac_reward_zero_std" in run_record.record_from_rows(rows, about={"requested": {"scale_rewards": "group"}}).log
    )


# --------------------------------------------------------------------------- which run, and which rewards


def test_a_run_is_found_by_its_path_or_by_its_name_in_outputs_and_an_unknown_name_gets_those_there_are(tmp_path):
    for name in ("run", "run-20261122-180000"):
        write_json(tmp_path / name / "run.json", {})
    (tmp_path / "figures").mkdir()
    assert run_record.find_run("run-20261122-180000", tmp_path) == tmp_path / "run-20261122-180000"
    assert run_record.find_run(str(tmp_path / "run"), tmp_path / "nowhere") == tmp_path / "run"
    assert run_record.find_run("data/sample-run", tmp_path) == SAMPLE_RUN
    there = f"There are: {tmp_path}/run, {tmp_path}/run-20261122-180000, data/sample-run."
    with pytest.raises(MissingInputError) as raised:
        run_record.find_run("run-1", tmp_path)
    assert str(raised.value) == f"There is no run 'run-1'. {there}"


def test_the_rewards_that_a_run_ended_with_are_those_of_its_last_edit_and_not_of_one_that_was_refused():
    edits = [{"step": 2, "kind": "reward_changed", "source_sha256": "b"}, {"step": 3, "kind": "reward_refused"}]
    began = run_record.record_from_rows([row(1)], [], about(source="a"))
    assert run_record.last_source(began) == "a"
    assert run_record.last_source(dataclasses.replace(began, events=edits)) == "b"
