"""`make gpu-check`, as far as it can be seen without a card: its rehearsal, its record and table, and what fails in it.

The settings part is more than a rehearsal: Unsloth's own GRPOConfig and GRPOTrainer for a card are generated and asked.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lab.files import ROOT
from lab.make import gpu_check, gpu_check_parts
from lab.make.gpu_check import Part, choose_parts, gpu_report, run_check, run_part
from lab.make.gpu_check_parts import measure_run
from tests.warm_processes import warm_python

SCRIPT = ROOT / "notebooks/lab/make/gpu_check.py"
RUN = {
    "steps": 20,
    "steps_timed": 18,
    "seconds_a_step": 2.0,
    "timed": True,
    "generated_tokens_a_second": 1500.0,
    "trained_tokens_a_second": 9000.0,
    "generating_share": 0.6,
    "peak": {"bytes": 4_000_000_000, "of": "card", "reserved": 5_000_000_000},
    "reward": [0.1, 0.2],
}
PLAIN = {**RUN, "seconds_a_step": 5.0, "peak": {"bytes": 10_000_000_000, "of": "card"}}


def empty_record():
    return {"rehearsal": True, "date": "2026-11-30", "machine": {}, "parts": {}}


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """One rehearsal of what needs a training, and the settings; the folder, the record, what was printed."""
    if torch.cuda.is_available():
        pytest.skip("there is a card: `make gpu-check` itself does all of this")
    folder = tmp_path_factory.mktemp("gpu-check")
    command = [str(SCRIPT), "--folder", str(folder), "--keep", "--parts"]
    # the settings are those of a pretended card, which has to be there before the imports
    cold = subprocess.run([sys.executable, *command, "settings"], capture_output=True, text=True, timeout=500)
    assert cold.returncode == 0, cold.stdout + cold.stderr
    warm = [warm_python(), *command, "environment", "Unsloth, fp32, killed and resumed"]
    done = subprocess.run(warm, capture_output=True, text=True, timeout=500)
    return folder, json.loads((folder / "check.json").read_text()), done


def test_every_part_of_the_rehearsal_does_well(rehearsal):
    folder, record, done = rehearsal
    outcomes = {name: (one["status"], one["why"]) for name, one in record["parts"].items()}
    wanted = ["environment", "model", "Unsloth, fp32, killed and resumed", "settings"]  # with what they need
    assert outcomes == dict.fromkeys(wanted, ("ok", "")), done.stdout + done.stderr
    assert done.returncode == 0 and "rehearsal" in done.stdout and record["rehearsal"] is True


def test_a_rehearsal_leaves_no_figures_where_those_of_cards_are_kept(rehearsal):
    folder, record, done = rehearsal
    assert "check.json" in done.stdout and "gpu.json" not in done.stdout  # although --keep was given
    assert "a rehearsal, no figure of a GPU" in (folder / "check.md").read_text()


def test_unsloths_own_config_leaves_every_setting_of_every_preset_as_it_was_asked_for(rehearsal):
    found = rehearsal[1]["parts"]["settings"]["found"]
    assert found["trainer"] == "UnslothGRPOTrainer" and found["requested"] > 120
    assert [row for row in found["rows"] if row["requested"] != "–"] == []
    # nor does it set anything that changes how is learned, where nothing was asked for; the seed is notebook 03's SEED
    assert {row["setting"] for row in found["rows"]} == {
        "torch_empty_cache_steps",
        "seed",
        "router_aux_loss_coef",
        "generation_kwargs",
        "vllm_importance_sampling_correction",
    }


def test_unsloths_defaults_are_other_ones_and_are_named(rehearsal):
    defaults = rehearsal[1]["parts"]["settings"]["found"]["defaults"]
    there = {row["setting"]: (row["TRL"], row["Unsloth"]) for row in defaults}
    assert there["learning_rate"] == ("1e-06", "5e-05") and there["weight_decay"] == ("0.0", "0.001")
    assert there["unsloth_num_chunks"] == ("no such field", "-1")


def test_the_killed_run_went_on_from_its_checkpoint(rehearsal):
    run = rehearsal[1]["parts"]["Unsloth, fp32, killed and resumed"]["found"]
    assert run["killed_after"] >= 3 and run["resumed_after"] and 0 < run["resumed_after"][0] <= run["killed_after"]
    assert run["steps"] == 4 and run["status"] == "finished" and run["peak"]["bytes"] > 1e8 and not run["timed"]
    assert run["generated_tokens_a_second"] > 0 and 0 < run["generating_share"] < 1


def test_offline_is_asked_for_and_nothing_is_installed(tmp_path):
    environment = gpu_check.part_environment(tmp_path, "model", 60)
    names = ("HF_HUB_OFFLINE", "GRPO_NO_INSTALL", "UNSLOTH_DISABLE_STATISTICS")
    assert [environment[name] for name in names] == ["1"] * 3


# Parts that fail


def is_gone(pid):
    """Whether a process ends within five seconds."""
    state = Path(f"/proc/{pid}/stat")
    for _ in range(50):
        if not state.exists() or ") Z " in state.read_text():
            return True
        time.sleep(0.1)
    return False


def script(tmp_path, monkeypatch, text):
    """run_part with this program in place of the parts."""
    path = tmp_path / "program.py"
    path.write_text(text)
    monkeypatch.setattr(gpu_check, "__file__", str(path))


def test_a_part_that_fails_says_why_in_its_own_words(tmp_path, monkeypatch):
    script(tmp_path, monkeypatch, "print('loading')\nraise RuntimeError('CUDA error: no kernel image')")
    outcome = run_part(Part("model", None, 60), tmp_path, 60)
    assert outcome["status"] == "failed" and outcome["why"] == "exit code 1: RuntimeError: CUDA error: no kernel image"
    assert "loading" in (tmp_path / "model.log").read_text()


def test_a_part_that_hangs_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    own = "subprocess.Popen(['sleep', '77'], start_new_session=True)"  # as a notebook's kernel has
    script(tmp_path, monkeypatch, f"import subprocess, time\nprint('started', {own}.pid, flush=True)\ntime.sleep(77)")
    began = time.monotonic()
    outcome = run_part(Part("model", None, 60), tmp_path, 2)
    assert "ended after 2 s" in outcome["why"] and time.monotonic() - began < 20
    assert is_gone(int((tmp_path / "model.log").read_text().split()[-1])), "what it had started runs on"


def test_a_part_that_leaves_nothing_or_a_stale_result_did_not_do_well(tmp_path, monkeypatch):
    script(tmp_path, monkeypatch, "pass")
    (tmp_path / "model.json").write_text('{"parameters": 1}')  # of an earlier check
    assert run_part(Part("model", None, 60), tmp_path, 60)["why"] == "it left no result"


@pytest.fixture
def outcomes(monkeypatch):
    """A function that sets what parts end with, by their names."""

    def set_outcomes(**by_name):
        def ended(part, folder, seconds):
            found = dict(by_name[part.name])
            why = found.pop("why", "")
            return {"status": "failed" if why else "ok", "took": 1.0, "why": why, "log": "x.log", "found": found}

        monkeypatch.setattr(gpu_check, "run_part", ended)

    return set_outcomes


def test_one_failure_hides_nothing_and_what_needs_it_is_not_run(outcomes, tmp_path):
    outcomes(model={"why": "the disk is full"}, settings={"fine": 1})
    parts = [Part("model", None, 9), Part("train", None, 9, ("model",)), Part("settings", None, 9)]
    record = run_check(parts, tmp_path, 10, empty_record())
    states = {name: one["status"] for name, one in record["parts"].items()}
    assert states == {"model": "failed", "train": "not run", "settings": "ok"}
    assert record["parts"]["train"]["why"] == "it needs model"
    assert json.loads((tmp_path / "check.json").read_text())["parts"]["model"]["why"] == "the disk is full"


def test_a_stop_ends_what_runs_and_keeps_what_was_done(tmp_path):
    text = (
        "import sys, subprocess\nsys.path[:0] = {path!r}\nfrom lab.make import gpu_check\nfrom lab.make.gpu_check import Part\n"
        "gpu_check.all_parts = lambda: [Part('environment', lambda f: {{'fine': 1}}, 99), Part('model', hang, 90)]\n"
        "def hang(folder):\n    print('started', subprocess.Popen(['sleep', '77']).pid, flush=True)\n    subprocess.run(['sleep', '77'])\n"
        "gpu_check.__file__ = __file__\ngpu_check.main()\n"
    )
    program = tmp_path / "program.py"
    program.write_text(text.format(path=[str(ROOT), str(ROOT / "notebooks")]))
    command = [sys.executable, str(program), "--folder", str(tmp_path / "check")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    log = tmp_path / "check/model.log"
    for _ in range(600):
        if log.exists() and "started" in log.read_text():
            break
        time.sleep(0.1)
    process.terminate()
    printed, _ = process.communicate(timeout=30)
    assert "Stopped. What was done:" in printed and "| environment | ok |" in printed and "kept in" in printed
    assert is_gone(int(log.read_text().split()[-1])), "what it had started runs on"


def test_a_full_disk_where_the_record_goes_is_said_and_stops_nothing(monkeypatch, outcomes, tmp_path, capsys):
    def full(*args):
        raise OSError(28, "No space left on device")

    outcomes(model={"fine": 1}, settings={"fine": 1})
    monkeypatch.setattr(gpu_check, "write_json", full)
    record = run_check([Part("model", None, 9), Part("settings", None, 9)], tmp_path, 10, empty_record())
    printed = capsys.readouterr().out
    assert list(record["parts"]) == ["model", "settings"] and "could not be written: [Errno 28]" in printed


def test_a_part_that_is_run_again_is_added_to_the_record_and_takes_the_place_of_its_run(
    monkeypatch, outcomes, tmp_path
):
    ok = {"status": "ok", "why": "", "took": 1}
    done = {"model": {**ok, "found": {}}, "TRL, bf16": {**ok, "found": PLAIN}, "Unsloth, bf16": {**ok, "found": RUN}}
    (tmp_path / "check.json").write_text(json.dumps({**empty_record(), "parts": done}))
    monkeypatch.setattr(gpu_check, "card", dict)
    record = gpu_check.earlier_record(tmp_path / "check.json")
    parts = [Part("model", None, 9), Part("TRL, bf16", None, 9, ("model",))]
    assert choose_parts(parts, ["TRL, bf16"], ["model"]) == parts[1:] and choose_parts(parts, ["TRL, bf16"]) == parts
    outcomes(**{"TRL, bf16": {**PLAIN, "seconds_a_step": 7.0}})
    run_check(parts[1:], tmp_path, 10, record)
    seconds = {name: one["found"].get("seconds_a_step") for name, one in record["parts"].items()}
    assert seconds == {"model": None, "TRL, bf16": 7.0, "Unsloth, bf16": 2.0}
    monkeypatch.setattr(gpu_check, "card", lambda: {"gpu": "NVIDIA T4"})
    assert gpu_check.earlier_record(tmp_path / "check.json") is None  # of another machine


@pytest.mark.parametrize("left, stops", [(gpu_check_parts.SPARE - 1, True), (gpu_check_parts.SPARE + 60, False)])
def test_a_training_that_would_be_cut_off_is_asked_to_stop_and_its_figures_are_kept(monkeypatch, tmp_path, left, stops):
    run = a_run(tmp_path / "trl-bf16/run", [row(i, 2.0, 100 * i) for i in range(1, 6)], [{"from_step": 0}])
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"])
    monkeypatch.setattr(gpu_check_parts, "start_training", lambda *args: process)
    monkeypatch.setenv(gpu_check_parts.UNTIL, str(time.time() + left))
    assert gpu_check_parts.time_training(tmp_path, "trl", "bf16", 20)["steps"] == 5 and (run / "stop").exists() is stops


def test_a_record_of_a_card_is_never_called_a_rehearsal_and_the_other_way_round():
    texts = {rehearsal: gpu_report({**empty_record(), "rehearsal": rehearsal}) for rehearsal in (True, False)}
    assert "rehearsal" in texts[True] and "rehearsal" not in texts[False]


def test_what_has_not_begun_when_the_time_is_up_is_said_to_be_missing(outcomes, tmp_path):
    record = run_check([Part("model", None, 9)], tmp_path, 0, empty_record())
    assert record["parts"]["model"]["why"] == "the time was up: --minutes gives more"


def test_the_record_is_on_disk_after_every_part(monkeypatch, tmp_path):
    kept, seen = tmp_path / "check.json", []

    def ended(part, *rest):
        seen.append(list(json.loads(kept.read_text())["parts"]) if kept.exists() else [])
        return {"status": "ok", "took": 1.0, "why": "", "log": "", "found": {"fine": 1}}

    monkeypatch.setattr(gpu_check, "run_part", ended)
    run_check([Part(name, None, 9) for name in ("first", "second", "third")], tmp_path, 10, empty_record())
    assert seen == [[], ["first"], ["first", "second"]]


def test_an_unknown_part_is_refused_with_those_there_are():
    with pytest.raises(SystemExit, match="no part 'bf17' on this machine: there are environment; model"):
        choose_parts(gpu_check.all_parts(), ["bf17"])


@pytest.mark.parametrize("capability, main, other", [("9.0", "bf16", "fp16"), ("7.5", "fp16", "fp16")])
def test_on_a_card_there_are_both_backends_in_its_precision_and_the_notebooks(monkeypatch, capability, main, other):
    for module in (gpu_check, gpu_check_parts):
        monkeypatch.setattr(module, "card", lambda: {"capability": capability})
    parts = gpu_check.all_parts()
    trained = [f"Unsloth, {main}", f"TRL, {main}"]
    rest = ["merge", "notebooks", f"Unsloth, {other}, killed and resumed", "settings"]
    assert [part.name for part in parts] == ["environment", "model", *trained, *rest]
    assert [part.name for part in parts if getattr(part.work, "func", None) is gpu_check_parts.time_training] == trained
    assert next(part for part in parts if part.name == "merge").needs == (trained[0],)


def test_both_backends_get_the_same_settings(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_check_parts, "card", lambda: {"capability": "9.0"})
    names = ("unsloth", "trl")
    ours, plain = (gpu_check_parts.training_parameters(tmp_path / name, name, "bf16", 20) for name in names)
    assert {name for name in ours if ours[name] != plain[name]} == {"BACKEND", "OUTPUTS"}
    assert ours["MORE_SETTINGS"]["load_in_4bit"] and ours["MORE_SETTINGS"]["bf16"] and not ours["MORE_SETTINGS"]["fp16"]


# Figures and table


def a_run(folder, rows, attempts):
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    process = {"peak_memory": {"of": "card", "bytes": 7}}
    record = {"attempts": attempts, "process": process, "status": "finished", "requested": {}}
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def measured(run, kind, code=0):
    ended = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
    return measure_run(run, kind, ended)


def test_a_training_that_failed_has_no_figures(tmp_path):
    with pytest.raises(RuntimeError, match="ended with exit code 3"):
        measured(a_run(tmp_path / "run", [row(1, 2.0, 100)], [{"from_step": 0}]), "bf16", code=3)


def row(step, seconds, tokens, **more):
    times = {"time/step": seconds, "time/generating": 1.0, "time/scoring": 0.5}
    logged = {"reward": 0.5, "num_tokens": tokens, "completions/mean_length": 10.0, "loss": 0.1, "grad_norm": 1.0}
    return {"step": step, **times, **logged, **more}


def test_figures_are_those_worked_out_by_hand_without_the_first_steps_of_each_process(tmp_path):
    # the rehearsal's batch has 8 completions; steps 1, 2, 5 and 6 begin a process
    seconds, tokens = (99, 99, 2.5, 3.5, 99, 99, 4.5), (100, 200, 500, 800, 900, 1000, 1600)
    rows = [row(i + 1, *both) for i, both in enumerate(zip(seconds, tokens))]
    found = measured(a_run(tmp_path / "run", rows, [{"from_step": 0}, {"from_step": 4}]), "bf16")
    assert found["steps"] == 7 and found["steps_timed"] == 3 and found["seconds_a_step"] == 3.5 == 10.5 / 3
    assert found["generating_share"] == pytest.approx(3 / 10.5)
    assert found["generated_tokens_a_second"] == pytest.approx(3 * 80 / 3)
    assert found["trained_tokens_a_second"] == pytest.approx((300 + 300 + 600) / (10.5 - 3 - 1.5))
    assert found["peak"]["bytes"] == 7 and "failed" not in found


@pytest.mark.parametrize(
    "kind, step, fails", [("bf16", 1, True), ("bf16", 4, True), ("fp16", 3, False), ("fp16", 4, True)]
)
def test_a_loss_that_is_not_finite_fails_except_while_fp16_looks_for_its_scale(tmp_path, kind, step, fails):
    rows = [row(i, 1.9, 100 * i, **({"grad_norm": float("nan")} if i == step else {})) for i in range(1, 5)]
    found = measured(a_run(tmp_path / "run", rows, [{"from_step": 0}]), kind)
    assert (found.get("failed") == "grad_norm not finite in some step") is fails


def test_the_table_says_the_machine_the_versions_and_what_failed():
    failed = {"status": "failed", "took": 3.0, "why": "out of | memory", "log": "x", "found": {}}
    machine = {"gpu": "NVIDIA T4", "versions": {"torch": "2.13.0"}}
    record = {**empty_record(), "rehearsal": False, "machine": machine}
    ok = {"status": "ok", "took": 1.0, "why": "", "log": "x"}
    runs = {"Unsloth, bf16": {**ok, "found": RUN}, "TRL, bf16": {**ok, "found": {**PLAIN, "timed": False}}}
    text = gpu_report({**record, "parts": {"TRL, fp16": failed, **runs}})
    assert text.startswith("# GPU check: NVIDIA T4\n") and "2026-11-30" in text and "torch 2.13.0" in text
    assert "| TRL, fp16 | failed | 3 s | out of \\| memory |" in text
    memory = "4.00 GB of tensors, 5.00 reserved"
    assert f"| Unsloth, bf16 | 2.00 | 1,500 | 9,000 | 60% | {memory} | 20 (18 timed) | 0.100 → 0.200 |" in text
    assert "| TRL, bf16 | – | – | – | – | 10.00 GB of tensors | 20 |" in text
    assert len({line.count("|") - line.count("\\|") for line in text.splitlines() if line.startswith("|")} - {5}) == 1


def test_make_takes_another_python_as_it_is_and_sets_up_its_own_otherwise():
    def planned(*more):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        command = ["make", "-n", "-B", "gpu-check", *more]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment).stdout

    assert "lab/setup.py" in planned() and "lab/setup.py" not in planned("PY=python3")
    assert "python3 notebooks/lab/make/gpu_check.py --parts model" in planned("PY=python3", "ARGS=--parts model")
