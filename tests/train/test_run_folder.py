"""A run's folder: read after any kill, rewound, resumed or refused."""

import json
import os
import subprocess
import sys

import pandas as pd
import psutil
import pytest

from lab.files import append_jsonl, read_jsonl, write_json, write_parquet
from lab.train import process, run_folder
from lab.train.run_folder import last_checkpoint, open_folder, rewind, seal


def about(**changes):
    requested = {
        "max_steps": 10,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 1,
        **changes,
    }
    return {
        "requested": requested,
        "model": {"name": "m"},
        "data": {"fingerprint": "d", "rows": 4},
        "rewards": {"rewards": [{"name": "format_reward", "weight": 1.0}]},
        "steering": {"final_temperature": None},
    }


def checkpoint(folder, step):
    path = folder / f"checkpoint-{step}"
    (path / "ref").mkdir(parents=True)
    (path / "weights").write_bytes(b"x" * 100)
    (path / "ref/weights").write_bytes(b"x" * 10)
    seal(path, {"part": step})
    return path


def make_run(folder, steps=5, at=(2, 4), status="failed", **changes):
    """A run's folder as training leaves it when it ends after `steps` steps."""
    for step in range(1, steps + 1):
        write_parquet(pd.DataFrame({"step": [step]}), folder / f"completions/completions_{step:05d}.parquet")
        append_jsonl(folder / "log.jsonl", {"step": step, "reward": step / 10})
        append_jsonl(folder / "events.jsonl", {"step": step, "kind": "health"})
        append_jsonl(folder / "printed.jsonl", {"step": step, "text": "scoring"})
    write_parquet(pd.DataFrame({"step": [steps]}), folder / f"held_out/held_out_{steps:05d}.parquet")
    for step in at:
        checkpoint(folder, step)
    write_json(folder / "run.json", {"status": status, **about(**changes), "process": process.this_process()})
    return folder


def steps_in(folder):
    return [row["step"] for row in read_jsonl(folder / "log.jsonl")]


# --------------------------------------------------------------------------- files


def test_a_line_cut_in_two_is_skipped_and_the_next_one_stands_alone(tmp_path):
    path = tmp_path / "log.jsonl"
    append_jsonl(path, {"step": 1})
    with path.open("a") as sink:
        sink.write('{"step": 2, "rew')
    append_jsonl(path, {"step": 3, "text": "é\ud800"})
    assert [row["step"] for row in read_jsonl(path)] == [1, 3]


def test_a_table_is_there_whole_or_not_at_all(tmp_path):
    with pytest.raises(Exception, match=".*"):
        write_parquet(pd.DataFrame({"a": [1, "x", object()]}), tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_counts_only_when_every_file_of_its_seal_is_there_in_full(tmp_path):
    for step in (2, 4, 10):
        checkpoint(tmp_path, step)
    assert last_checkpoint(tmp_path).name == "checkpoint-10", "by number, not by name"
    (tmp_path / "checkpoint-10/ref/weights").write_bytes(b"x" * 9)
    assert last_checkpoint(tmp_path).name == "checkpoint-4"
    (tmp_path / "checkpoint-4/complete.json").write_text('{"sizes": {"wei')
    assert last_checkpoint(tmp_path).name == "checkpoint-2"
    (tmp_path / "checkpoint-2/weights").unlink()
    assert last_checkpoint(tmp_path) is None


# --------------------------------------------------------------------------- rewinding


def test_rewinding_keeps_what_counts_and_loses_nothing_of_the_rest(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "completions/completions_00006.tmp").write_bytes(b"half")
    (run / "checkpoint-6").mkdir()
    (run / "checkpoint-6/weights").write_bytes(b"half")
    assert rewind(run, 4) == 1
    assert (
        steps_in(run) == [1, 2, 3, 4] and len(list(run.glob("completions/*"))) == 4 and not list(run.glob("held_out/*"))
    )
    assert [[row["step"] for row in read_jsonl(run / name)] for name in ("events.jsonl", "printed.jsonl")] == [
        [1, 2, 3, 4]
    ] * 2
    (gone,) = (run / "discarded").iterdir()
    assert steps_in(gone) == [5] and {p.name for p in gone.glob("*/*")} == {
        "completions_00005.parquet",
        "completions_00006.tmp",
        "held_out_00005.parquet",
    }
    assert sorted(p.name for p in run.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    assert rewind(run, 4) == 0 and len(list((run / "discarded").iterdir())) == 1, "a second time changes nothing"


def test_a_half_written_line_goes_when_rewinding(tmp_path):
    run = make_run(tmp_path / "run")
    with (run / "log.jsonl").open("a") as sink:
        sink.write('{"step": 6, "re')
    rewind(run, 4)
    assert all(json.loads(line) for line in (run / "log.jsonl").read_text().splitlines())


# --------------------------------------------------------------------------- going on or not


def test_an_unfinished_run_of_the_same_settings_goes_on_from_its_last_whole_checkpoint(tmp_path):
    said = []
    found = open_folder(make_run(tmp_path / "run"), about(), say=said.append)
    assert found.name == "checkpoint-4" and "goes on after step 4; 1 steps after it are taken again" in said[0]


@pytest.mark.parametrize("status", ["training", "stopped", "interrupted"])
def test_every_unfinished_status_goes_on(tmp_path, status):
    assert open_folder(make_run(tmp_path / "run", status=status), about(), say=str)


def test_a_finished_run_begins_anew_unless_more_steps_are_asked_for(tmp_path):
    run = make_run(tmp_path / "run", status="finished")
    assert open_folder(run, about(max_steps=20, warmup_steps=2), say=str).name == "checkpoint-4"
    make_run(tmp_path / "other", status="finished")
    assert open_folder(tmp_path / "other", about(), say=str) is None
    assert len(list(tmp_path.glob("other-*/checkpoint-4"))) == 1, "the finished one is kept beside"


def test_with_a_schedule_over_the_whole_run_more_steps_are_another_run(tmp_path):
    run, said = make_run(tmp_path / "run", lr_scheduler_type="cosine"), []
    assert open_folder(run, about(max_steps=20, lr_scheduler_type="cosine"), say=said.append) is None
    assert "max_steps: 10 before, 20 now" in said[0]


def test_other_settings_begin_a_new_run_and_say_what_differs(tmp_path):
    run, said = make_run(tmp_path / "run"), []
    assert open_folder(run, about(learning_rate=1e-4), say=said.append) is None
    assert "learning_rate: 0.001 before, 0.0001 now" in said[0]
    assert len(list(tmp_path.glob("run-*/log.jsonl"))) == 1 and not (run / "log.jsonl").exists()


@pytest.mark.parametrize(
    "where, value",
    [
        ("model", {"name": "other"}),
        ("data", {"fingerprint": "e"}),
        ("steering", {"final_temperature": 0.5}),
        ("rewards", {"rewards": [{"name": "format_reward", "weight": 2.0}]}),
    ],
)
def test_another_model_data_set_weight_or_steering_is_another_run(tmp_path, where, value):
    assert open_folder(make_run(tmp_path / "run"), {**about(), where: value}, say=str) is None


def test_a_run_without_a_checkpoint_begins_anew_and_is_kept(tmp_path):
    said = []
    assert open_folder(make_run(tmp_path / "run", at=()), about(), say=said.append) is None
    assert "had not reached its first checkpoint" in said[0] and len(list(tmp_path.glob("run-*"))) == 1


def test_resume_false_begins_anew(tmp_path):
    assert open_folder(make_run(tmp_path / "run"), about(), resume=False, say=str) is None


def test_a_damaged_record_is_kept_beside_and_does_not_stop_a_new_run(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "run.json").write_text('{"status": "trai')
    assert open_folder(run, about(), say=str) is None and len(list(tmp_path.glob("run-*/run.json"))) == 1


def test_a_second_process_is_refused_while_the_first_one_trains(tmp_path):
    run = make_run(tmp_path / "run", status="training")
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = json.loads((run / "run.json").read_text())
    write_json(
        run / "run.json",
        {
            **record,
            "process": {
                **process.this_process(),
                "pid": other.pid,
                "began": psutil.Process(other.pid).create_time(),
            },
        },
    )
    try:
        with pytest.raises(run_folder.RunningError, match=f"Process {other.pid} on .* is training"):
            open_folder(run, about(), say=str)
        assert open_folder(run, about(), resume="force", say=str).name == "checkpoint-4"
    finally:
        other.kill()
        other.wait()
    assert run_folder.current_record(run)["status"] == "killed", "a process that is gone leaves a killed run"
    assert open_folder(run, about(), say=str).name == "checkpoint-4"


def test_another_process_with_the_same_number_is_not_taken_for_the_one_that_trained(tmp_path):
    run = make_run(tmp_path / "run", status="training")
    record = json.loads((run / "run.json").read_text())
    write_json(run / "run.json", {**record, "process": {**record["process"], "pid": os.getppid(), "began": 1.0}})
    assert run_folder.current_record(run)["status"] == "killed"


def test_a_run_of_a_machine_that_is_gone_goes_on_when_it_has_been_silent_for_long(tmp_path):
    run = make_run(tmp_path / "run", status="training")
    record = json.loads((run / "run.json").read_text())
    write_json(run / "run.json", {**record, "process": {"pid": 7, "host": "a-notebook-service", "began": 1.0}})
    with pytest.raises(run_folder.RunningError, match='RESUME = "force"'):
        open_folder(run, about(), say=str)
    for name in ("run.json", "log.jsonl"):
        os.utime(run / name, (0, 0))
    assert open_folder(run, about(), say=str).name == "checkpoint-4"


def test_the_last_words_of_another_process_are_the_reason(tmp_path):
    run = make_run(tmp_path / "run", status="training")
    record = json.loads((run / "run.json").read_text())
    write_json(run / "run.json", {**record, "process": {**record["process"], "began": 1.0}})
    append_jsonl(run / "failed-1.json", {"reason": "RewardError: bug", "process": 1})
    assert run_folder.current_record(run)["reason"] == "RewardError: bug"
    open_folder(run, about(), say=str)
    assert not list(run.glob("failed-*"))


def test_with_an_annealed_temperature_more_steps_are_another_run(tmp_path):
    annealed = {"steering": {"final_temperature": 0.7}}
    run = make_run(tmp_path / "run")
    record = json.loads((run / "run.json").read_text())
    write_json(run / "run.json", {**record, **annealed})
    assert open_folder(run, {**about(max_steps=20), **annealed}, say=str) is None


def test_a_line_separator_within_a_text_cuts_no_row(tmp_path):
    append_jsonl(tmp_path / "log.jsonl", {"step": 1, "text": "a\u2028b\x85c"})
    assert read_jsonl(tmp_path / "log.jsonl") == [{"step": 1, "text": "a\u2028b\x85c"}]


def test_a_new_run_with_refused_rewards_does_not_begin_and_the_old_one_stays_in_place(tmp_path):
    refused = {**about(learning_rate=1e-4), "rewards": {**about()["rewards"], "refused": "Correct my_rewards.py."}}
    folder = make_run(tmp_path / "run")
    with pytest.raises(ValueError, match="^Correct my_rewards.py.$"):
        open_folder(folder, refused, say=lambda text: None)
    assert [path.name for path in tmp_path.iterdir()] == ["run"] and steps_in(folder) == [1, 2, 3, 4, 5]
    same = {**refused, "requested": about()["requested"]}
    assert open_folder(folder, same, say=lambda text: None).name == "checkpoint-4", "an unfinished run goes on"
