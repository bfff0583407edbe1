"""Runs that are killed, interrupted, broken and full: each is readable afterwards, and goes on without a seam."""

import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from lab.data import columns
from lab.files import read_jsonl
from lab.model import policy
from lab.train import recorder, run_folder
from lab.train.recorder import TrainingError
from tests.train import training_child
from tests.warm_processes import Child

CLOCK = (
    "time/",
    "step_time",
    "eval_seconds",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "train_loss",
    "total_flos",
)


def start(folder, log, **changes):
    """A training in a process of its own, whose imports are done already."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with open(log, "a") as out:
        files = (0, out.fileno(), out.fileno())
        return Child(["-m", "tests.train.training_child", str(folder), json.dumps(changes)], files=files)


def curve(run):
    """The log without what depends on the clock."""
    return [
        {k: v for k, v in row.items() if not k.startswith(CLOCK)}
        for row in read_jsonl(run / "log.jsonl")
        if len(row) > 2 and "train_runtime" not in row
    ]


def texts(run):
    files = sorted((run / "completions").glob("*.parquet"))
    return [(path.name, pd.read_parquet(path).drop(columns=["tokens"]).to_dict("list")) for path in files]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing disturbed."""
    folder = training_child.prepare(tmp_path_factory.mktemp("whole"))
    child = start(folder, folder / "out.txt")
    child.join()
    assert child.exitcode == 0, (folder / "out.txt").read_text()[-3000:]
    return folder / "run"


def same_run(one, other):
    assert curve(one) == curve(other)
    assert texts(one) == texts(other)
    held = [
        {path.name: pd.read_parquet(path).to_dict("list") for path in (run / "held_out").iterdir()}
        for run in (one, other)
    ]
    assert held[0] == held[1] and len(held[0]) == 4
    last = [load_file(run / "checkpoint-9/adapter_model.safetensors") for run in (one, other)]
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0] | last[1])


# --------------------------------------------------------------------------- what a run leaves


def test_a_run_leaves_all_that_is_needed_to_know_what_happened(whole):
    record = json.loads((whole / "run.json").read_text())
    assert record["status"] == "finished" and record["steps"] == 9 and record["reason"] is None
    assert record["requested"]["learning_rate"] == record["effective"]["learning_rate"] == 1e-3
    assert (
        record["versions"]["trl"] == "1.14.0"
        and record["requested"]["seed"] == 3
        and record["rewards"]["source_sha256"]
    )
    assert [row["step"] for row in curve(whole) if "reward" in row] == list(range(1, 10))
    assert [row["step"] for row in curve(whole) if "eval_n" in row] == [0, 4, 8, 9]
    table = pd.read_parquet(whole / "completions/completions_00005.parquet")
    assert {
        "step",
        "group",
        "prompt",
        "completion",
        "correctness_reward",
        "format_reward",
        "own_reward",
        "advantage",
        "tokens",
    } <= set(table)
    assert (table.groupby("group")["data/answer"].nunique() == 1).all() and (table["prompt_tokens"] > 20).all()
    assert len(table) == 8 and table["group"].tolist() == [0] * 4 + [1] * 4 and table["tokens"].max() <= 24
    assert not (whole / ".reserve").exists() and {p.name for p in whole.glob("checkpoint-*")} == {
        "checkpoint-8",
        "checkpoint-9",
    }


def test_the_log_has_what_we_steer_and_measure(whole):
    rows = [row for row in read_jsonl(whole / "log.jsonl") if "reward" in row]
    assert [rows[0]["temperature"], rows[-1]["temperature"]] == pytest.approx([1.2, 0.8])
    assert rows[-1]["weight/own_reward"] > 0.5, "adaptive: few digits, more weight"
    for row in rows:
        assert 0 <= row["completions/duplicate_share"] < 1
        assert 0 < row["time/generating"] < row["step_time"] and 0 < row["time/scoring"] < row["step_time"]


def talkative(prompts, completions, completion_ids, log_extra, log_metric, **columns):
    print(f"scoring {len(completions)}\x00", "x" * 2 * recorder.MOST_PRINTED)
    log_extra("words", [str(completion[0]["content"].split()[:2]) for completion in completions])
    for taken in ("advantage", "step", "group"):
        log_extra(taken, ["not theirs"] * len(completions))
    log_extra("odd", [1, "x", None, 10**30, {}, True, 2.5, [1]])
    assert sys.stdout.encoding and sys.stdout.isatty() in (True, False)
    log_metric("longest", max(map(len, completion_ids)))
    return [float(len(ids)) for ids in completion_ids]


def test_what_a_reward_prints_and_logs_is_kept_by_step_and_still_shown(tmp_path, capsys):
    run = training_child.train(
        training_child.prepare(tmp_path), functions=[talkative], reward_weights=[1.0], max_steps=2, held_out=0
    )
    printed = read_jsonl(run.folder / "printed.jsonl")
    assert [row["step"] for row in printed] == [1, 2] and printed[0]["text"].startswith("scoring 8\x00 xxx")
    assert len(printed[0]["text"]) < recorder.MOST_PRINTED + 50 and printed[0]["text"].endswith("characters more")
    assert capsys.readouterr().out.count("scoring 8") == 2, "kept, and passed on"
    table = pd.read_parquet(run.folder / "completions/completions_00002.parquet")
    assert (
        table["words"].str.startswith("[").all()
        and table["advantage"].dtype == float
        and table["step"].tolist() == [2] * 8
    )
    assert table["odd"].tolist()[:2] == ["1", "x"] and table["odd"][3] == str(10**30)
    assert all(
        row["longest"] == row["completions/max_length"]
        for row in read_jsonl(run.folder / "log.jsonl")
        if "reward" in row
    )


def test_columns_of_the_data_set_are_kept_short_and_as_plain_values():
    rows = [
        {"prompt": "p", "answer": 3, "text": "y" * 5000, "tests": [{"in": 1}], "none": None},
        {"prompt": "p", "answer": 4},
    ]
    assert columns.as_one_type([True, 2, None]) == [1.0, 2.0, None] and columns.as_one_type([2**70, 1]) == [
        float(2**70),
        1.0,
    ]
    kept = columns.data_columns(rows)
    assert (
        kept["data/answer"] == [3, 4]
        and kept["data/tests"] == ['[{"in": 1}]', None]
        and kept["data/none"] == [None, None]
    )
    assert (
        len(kept["data/text"][0]) == columns.MAX_CHARACTERS
        and "data/prompt" not in kept
        and columns.data_columns([]) == {}
    )


def test_an_evaluation_leaves_the_training_completions_and_the_steps_after_it_alone(whole, tmp_path):
    """The same run without evaluations takes the same steps: the random numbers are put back."""
    folder = training_child.prepare(tmp_path)
    child = start(folder, folder / "out.txt", held_out=0)
    child.join()
    assert curve(folder / "run") == [row for row in curve(whole) if "reward" in row]
    trained, held = (
        pd.read_parquet(whole / p) for p in ("completions/completions_00004.parquet", "held_out/held_out_00004.parquet")
    )
    assert held["prompt"].str.startswith(trained["prompt"][0][:100]).all() and held["data/answer"].nunique() == 4, (
        "written alike"
    )
    assert len(trained) == 8 and len(held) == 4 and not set(trained["completion"]) & set(held["completion"])


# --------------------------------------------------------------------------- killed


def test_killed_at_random_moments_a_run_ends_up_the_same_to_the_last_bit(whole, tmp_path):
    """No step is counted twice, no completion is lost, and the curve has no seam."""
    seed = int(os.environ.get("KILL_SEED", random.randrange(10**6)))
    kills, dice, folder = int(os.environ.get("KILLS", 3)), random.Random(seed), training_child.prepare(tmp_path)
    run, log, died = folder / "run", folder / "out.txt", []
    while True:
        child = start(folder, log)
        while child.is_alive() and dice.random() < 0.999 and not is_training(run, child.pid):
            time.sleep(0.01)  # now and then it dies while it is still loading, or opening the folder
        more = steps_logged(run) + dice.randrange(4)  # by steps, not by the clock: machines differ
        while len(died) < kills and child.is_alive() and steps_logged(run) < more:
            time.sleep(0.005)
        if len(died) < kills:
            child.join(timeout=dice.uniform(0, 0.5))
        if len(died) < kills and child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            died.append(readable(run))
            continue
        child.join()
        break
    assert child.exitcode == 0, f"KILL_SEED={seed}: {log.read_text()[-3000:]}"
    assert len(died) >= kills // 2, "too few kills came before the end to say anything"
    print(f"KILL_SEED={seed}: killed after steps {died}")
    same_run(whole, run)


def steps_logged(run):
    return sum("reward" in row for row in read_jsonl(run / "log.jsonl"))


def is_training(run, pid):
    try:
        record = json.loads((run / "run.json").read_text())
    except (OSError, ValueError):
        return False
    return record["status"] == "training" and record["process"]["pid"] == pid


def readable(run):
    """What stands after a kill can be read, and each row has its completions; returns the steps that are there."""
    if not (run / "run.json").exists():
        return 0
    rows = [row["step"] for row in read_jsonl(run / "log.jsonl") if "reward" in row]
    there = {
        run_folder.step_of(path) for path in (run / "completions").glob("*.parquet") if len(pd.read_parquet(path)) == 8
    }
    assert set(rows) <= there and run_folder.current_record(run)["status"] == "killed"
    return len(rows)


# --------------------------------------------------------------------------- stopped


class After(recorder.StatefulCallback):
    """Does something when a step has ended, or in the middle of one."""

    def __init__(self, step, what, when="on_log"):
        self.step, self.what = step, what
        setattr(self, when, self._act)

    def _act(self, args, state, control, logs=None, **kwargs):
        if state.global_step == self.step and (logs is None or "reward" in logs):
            self.what(self)


def test_ctrl_c_ends_the_run_after_the_step_and_it_goes_on_without_a_seam(whole, tmp_path, capsys):
    folder = training_child.prepare(tmp_path)
    stopped = training_child.train(
        folder, lambda run: [After(3, lambda _: os.kill(os.getpid(), signal.SIGINT), "on_step_begin")]
    )
    assert (
        stopped.record["status"] == "stopped" and stopped.record["steps"] == 4 and "by hand" in stopped.record["reason"]
    )
    assert "it goes on after step 4" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    child = start(folder, folder / "out.txt")
    child.join()
    record = json.loads((folder / "run/run.json").read_text())
    assert [(a["from_step"], a["to_step"], a["status"]) for a in record["attempts"]] == [
        (0, 4, "stopped"),
        (4, 9, "finished"),
    ]
    assert record["name"] == stopped.record["name"], "the trackers go on with the run of that name"
    same_run(whole, folder / "run")


def test_an_error_after_a_step_belongs_to_that_step_and_the_next_one_has_its_own_random_numbers(whole, tmp_path):
    folder = training_child.prepare(tmp_path)

    def broken(part):
        raise RuntimeError("somebody's callback")

    with pytest.raises(TrainingError, match="(?s)somebody's callback.*goes on after step 3"):
        training_child.train(folder, lambda run: [After(3, broken)])
    child = start(folder, folder / "out.txt")
    child.join()
    same_run(whole, folder / "run")


def test_a_file_called_stop_ends_the_run_after_the_step(tmp_path):
    folder = training_child.prepare(tmp_path)
    run = training_child.train(folder, lambda run: [After(1, lambda _: (folder / "run/stop").touch())])
    assert run.record["status"] == "stopped" and run.record["steps"] == 2 and "by the file stop" in run.record["reason"]


def test_with_several_passes_over_a_batch_a_stop_waits_for_the_last_one(tmp_path):
    folder = training_child.prepare(tmp_path)
    run = training_child.train(
        folder, lambda run: [After(2, lambda _: run.stop("enough"), "on_step_begin")], num_iterations=2, save_steps=4
    )
    assert run.record["steps"] == 4 and run_folder.last_checkpoint(run.folder).name == "checkpoint-4"


def test_a_second_ctrl_c_ends_it_in_the_middle_of_the_step_and_nothing_is_lost(whole, tmp_path):
    folder = training_child.prepare(tmp_path)

    def twice(part):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        training_child.train(folder, lambda run: [After(3, twice, "on_pre_optimizer_step")])
    with pytest.raises(KeyboardInterrupt):
        training_child.train(folder, lambda run: [After(5, twice, "on_step_begin")])
    assert run_folder.current_record(folder / "run")["status"] == "interrupted"
    assert run_folder.last_checkpoint(folder / "run").name == "checkpoint-5", "the state before the step was saved"
    child = start(folder, folder / "out.txt")
    child.join()
    same_run(whole, folder / "run")


def test_a_reward_that_raises_ends_the_run_clearly_with_the_steps_before_it_saved(whole, tmp_path):
    folder = training_child.prepare(tmp_path)
    run = folder / "run"
    healthy = training_child.OWN.replace('"""The', '"""A').replace(
        "    return sum",
        "    import pathlib\n    if pathlib.Path(PLACE).exists():\n        print('last words')\n    assert not pathlib.Path(PLACE).exists(), 'own bug'\n    return sum",
    )
    (folder / "my_rewards.py").write_text(healthy.replace("@reward", f"PLACE = {str(tmp_path / 'now')!r}\n\n\n@reward"))
    with pytest.raises(TrainingError, match="(?s)own bug.*goes on after step 3"):
        training_child.train(folder, lambda run: [After(3, lambda _: (tmp_path / "now").write_text(""))])
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "failed" and "own_reward" in record["reason"] and record["steps"] == 3
    assert read_jsonl(run / "printed.jsonl") == [{"step": 4, "text": "last words\n"}], "of the step that failed too"
    (tmp_path / "now").unlink()
    child = start(folder, folder / "out.txt")
    child.join()
    same_run(whole, run)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="a small disk of its own needs root")
def test_a_full_disk_ends_the_run_clearly_and_it_goes_on_when_there_is_room(whole, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        folder = training_child.prepare(disk)

        def fill(part):
            with open(disk / "ballast", "wb") as sink:
                try:
                    while sink.write(b"x" * 4096):
                        sink.flush()
                except OSError:
                    pass

        with pytest.raises(TrainingError, match="(?s)disk of .* is full.*goes on after step 2"):
            training_child.train(folder, lambda run: [After(3, fill, "on_step_begin")])
        record = json.loads((folder / "run/run.json").read_text())
        assert record["status"] == "failed" and "is full" in record["reason"]
        with pytest.raises(TrainingError, match="(?s)MB of disk left.*Nothing was changed"):
            training_child.train(folder)
        (disk / "ballast").unlink()
        child = start(folder, tmp_path / "out.txt")
        child.join()
        same_run(whole, folder / "run")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_critical_finding_ends_the_run_with_a_checkpoint_unless_told_otherwise(tmp_path, monkeypatch):
    from lab.read import health

    ill = health.Finding("kl_high", 9.0, 0.5, "critical", 2, "the policy is 9 nats away", "lower LEARNING_RATE")
    monkeypatch.setattr(health, "diagnose", lambda log, **kwargs: [ill] if len(log) >= 3 else [])
    folder = training_child.prepare(tmp_path)
    run = training_child.train(folder, save_steps=100)
    assert (
        run.record["status"] == "stopped"
        and run.record["steps"] == 3
        and "kl_high: the policy is 9 nats away" in run.record["reason"]
    )
    assert run_folder.last_checkpoint(run.folder).name == "checkpoint-3"
    assert [e["rule"] for e in run.events() if e["kind"] == "health"] == ["kl_high"], "once, not at every step"


# --------------------------------------------------------------------------- adapter and base


def test_a_base_that_changes_is_noticed_after_the_first_steps(tmp_path):
    def change(part):
        with torch.no_grad():
            part.trainer.model.get_parameter("base_model.model.model.norm.weight").mul_(1.01)

    with pytest.raises(
        TrainingError, match="(?s)frozen base changed at .*norm.weight.*worth nothing and were not saved"
    ):
        training_child.train(training_child.prepare(tmp_path), lambda run: [After(2, change)])


def test_an_adapter_that_does_not_learn_is_noticed(tmp_path):
    def stuck(part):
        for group in part.trainer.optimizer.param_groups:
            group["lr"] = 0.0  # after the scheduler has written its own into the log

    parts = lambda run: [After(k, stuck, "on_pre_optimizer_step") for k in range(9)]  # noqa: E731
    with pytest.raises(TrainingError, match="None of 16 trained tensors moved"):
        training_child.train(training_child.prepare(tmp_path), parts)


def test_checksums_see_a_changed_value_and_a_swap():
    values = torch.arange(64, dtype=torch.float32)
    swapped = values.clone()
    swapped[[0, 7]] = swapped[[7, 0]]
    assert policy.checksum(values) == policy.checksum(values.clone()) != policy.checksum(swapped)
    assert policy.checksum(values + 1e-6) == policy.checksum(values + 1e-6) and policy.checksum(values.bfloat16())


def test_duplicates_are_counted_within_groups_only(tmp_path):
    class Trainer:
        num_generations, num_iterations, reward_func_names, _step = 4, 1, [], 1
        state, args = SimpleNamespace(global_step=1, num_input_tokens_seen=0), SimpleNamespace(steps_per_generation=1)
        accelerator = SimpleNamespace(num_processes=1, process_index=0)
        _metrics = {"train": collections.defaultdict(list)}
        _logs = {"prompt": ["p"] * 8, "completion": list("aaaaabcd"), "advantages": [0.0] * 8, "extra": {}}

    run = recorder.RunRecorder(tmp_path / "run", {})
    run.trainer, run.generated, run.step_began = Trainer(), True, 0.0
    run.on_step_end(None, Trainer.state, None)
    assert Trainer._metrics["train"]["completions/duplicate_share"] == [3 / 8]
