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

BENCHMARKS = Path(__file__).with_name("benchmarks")
sys.path.insert(0, str(BENCHMARKS))
from lab.make import gpu_check
from lab.train import trl_internals
from lab.make.gpu_check import Check, Part, chosen, compared, measured, report, run_part  # noqa: E402

RUN = {
    "name": "Unsloth, bf16",
    "backend": "unsloth",
    "precision": "bf16",
    "steps": 20,
    "steps_timed": 18,
    "seconds_a_step": 2.0,
    "timed": True,
    "generated_tokens_a_second": 1500.0,
    "trained_tokens_a_second": 9000.0,
    "generating_share": 0.6,
    "peak_bytes": 4_000_000_000,
    "peak_of": "card",
    "peak_reserved_bytes": 5_000_000_000,
    "reward": [0.1, 0.2],
}
PLAIN = {**RUN, "name": "TRL, bf16", "backend": "trl", "seconds_a_step": 5.0, "peak_bytes": 10_000_000_000}


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """One rehearsal of what needs a training, and the settings; the folder, the record, what was printed."""
    if torch.cuda.is_available():
        pytest.skip("there is a card: `make gpu-check` itself does all of this")
    folder = tmp_path_factory.mktemp("gpu-check")
    command = [sys.executable, str(BENCHMARKS / "gpu_check.py"), "--folder", str(folder)]
    parts = ["--keep", "--parts", "environment", "settings", "Unsloth, fp32, killed and resumed"]
    done = subprocess.run(command + parts, capture_output=True, text=True, timeout=500)
    return folder, json.loads((folder / "check.json").read_text()), done


def test_every_part_of_the_rehearsal_does_well(rehearsal):
    folder, record, done = rehearsal
    said = {name: (one["status"], one["why"]) for name, one in record["parts"].items()}
    wanted = ["environment", "model", "Unsloth, fp32, killed and resumed", "settings"]  # with what they need
    assert said == dict.fromkeys(wanted, ("ok", "")), done.stdout + done.stderr
    assert done.returncode == 0 and "rehearsal" in done.stdout and record["rehearsal"] is True


def test_a_rehearsal_leaves_no_figures_where_those_of_cards_are_kept(rehearsal):
    folder, record, done = rehearsal
    assert "check.json" in done.stdout and "make scale" not in done.stdout  # although --keep was said
    assert "a rehearsal, no figure of a GPU" in (folder / "check.md").read_text()


def test_unsloths_own_config_leaves_every_setting_of_every_preset_as_it_was_asked_for(rehearsal):
    found = rehearsal[1]["parts"]["settings"]["found"]
    assert found["trainer"].endswith("UnslothGRPOTrainer") and found["requested"] > 120
    assert [row for row in found["rows"] if row["requested"] != "–"] == []
    # nor does it set anything that changes how is learned, where nothing was asked for; the seed is notebook 03's SEED
    assert {row["setting"] for row in found["rows"]} == {
        "torch_empty_cache_steps",
        "logging_nan_inf_filter",
        "seed",
        "router_aux_loss_coef",
        "generation_kwargs",
        "vllm_importance_sampling_correction",
    }


def test_what_the_training_room_takes_hold_of_is_in_trls_trainer_and_its_absence_is_named():
    import trl

    assert trl_internals.missing_members(trl.GRPOTrainer) == []  # for Unsloth's, the settings part of the rehearsal says so

    class GRPOTrainer(trl.GRPOTrainer):
        def _generate(self, prompts, images):
            """With a parameter more."""

    assert trl_internals.missing_members(GRPOTrainer) == ["_generate"]


def test_unsloths_defaults_are_other_ones_and_are_named(rehearsal):
    there = {
        row["setting"]: (row["TRL"], row["Unsloth"]) for row in rehearsal[1]["parts"]["settings"]["found"]["defaults"]
    }
    assert there["learning_rate"] == ("1e-06", "5e-05") and there["weight_decay"] == ("0.0", "0.001")
    assert there["unsloth_num_chunks"] == ("no such field", "-1")


def test_the_killed_run_went_on_from_its_checkpoint(rehearsal):
    (run,) = rehearsal[1]["runs"]
    assert run["killed_after"] >= 3 and run["resumed_after"] and 0 < run["resumed_after"][0] <= run["killed_after"]
    assert run["steps"] == 4 and run["status"] == "finished" and run["peak_bytes"] > 1e8 and not run["timed"]
    assert run["generated_tokens_a_second"] > 0 and 0 < run["generating_share"] < 1


def test_offline_is_asked_for_and_nothing_is_installed(tmp_path):
    around = gpu_check.surroundings(tmp_path, "model", 60)
    assert around["HF_HUB_OFFLINE"] == around["GRPO_NO_INSTALL"] == around["UNSLOTH_DISABLE_STATISTICS"] == "1"


# --------------------------------------------------------------------------- parts that fail


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
    return path


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


def outcomes(monkeypatch, tmp_path, **by_name):
    """A check whose parts end as they are told to; the record."""

    def told(part, folder, seconds):
        found = by_name[part.name]
        why = found.pop("why", "")
        return {"status": "failed" if why else "ok", "took": 1.0, "why": why, "log": "x.log", "found": found}

    monkeypatch.setattr(gpu_check, "run_part", told)
    return Check(tmp_path, tmp_path / "check", 10)


def test_one_failure_hides_nothing_and_what_needs_it_is_not_run(monkeypatch, tmp_path):
    check = outcomes(monkeypatch, tmp_path, model={"why": "the disk is full"}, settings={"fine": 1})
    record = check.run([Part("model", None, 9), Part("train", None, 9, ("model",)), Part("settings", None, 9)], 1)
    assert {name: one["status"] for name, one in record["parts"].items()} == {
        "model": "failed",
        "train": "not run",
        "settings": "ok",
    }
    assert record["parts"]["train"]["why"] == "it needs model"
    assert json.loads((tmp_path / "check.json").read_text())["parts"]["model"]["why"] == "the disk is full"


@pytest.mark.parametrize("alone", [True, False])
def test_a_stop_ends_what_runs_and_keeps_what_was_done(tmp_path, alone):
    text = (
        "import sys, subprocess\nsys.path[:0] = {path!r}\nimport gpu_check\nfrom gpu_check import Part\n"
        "gpu_check.all_parts = lambda: [Part('environment', lambda f: {{'fine': 1}}, 9), "
        "Part('model', hang, 90, alone={alone}), Part('later', hang, 90, alone=False)]\n"
        "def hang(folder):\n    print('started', subprocess.Popen(['sleep', '77']).pid, flush=True)\n    subprocess.run(['sleep', '77'])\n"
        "gpu_check.__file__ = __file__\ngpu_check.main()\n"
    )
    program = tmp_path / "program.py"
    program.write_text(text.format(path=[str(BENCHMARKS)], alone=alone))
    process = subprocess.Popen(
        [sys.executable, str(program), "--folder", str(tmp_path / "check")], stdout=subprocess.PIPE, text=True
    )
    log = tmp_path / "check/model.log"
    for _ in range(300):
        if log.exists() and "started" in log.read_text():
            break
        time.sleep(0.1)
    process.terminate()
    said, _ = process.communicate(timeout=30)
    assert "Stopped. What was done:" in said and "| environment | ok |" in said and "kept in" in said
    assert is_gone(int(log.read_text().split()[-1])), "what it had started runs on"


def test_a_full_disk_where_the_record_goes_is_said_and_stops_nothing(monkeypatch, tmp_path, capsys):
    def full(*args):
        raise OSError(28, "No space left on device")

    check = outcomes(monkeypatch, tmp_path, model={"fine": 1}, settings={"fine": 1})
    monkeypatch.setattr(gpu_check, "write_json", full)
    record = check.run([Part("model", None, 9), Part("settings", None, 9)], 1)
    assert (
        list(record["parts"]) == ["model", "settings"] and "could not be written: [Errno 28]" in capsys.readouterr().out
    )


def test_parts_that_end_at_once_are_all_kept(monkeypatch, tmp_path):
    names, inside, write = [f"part {i}" for i in range(16)], [], gpu_check.write_json
    check = outcomes(monkeypatch, tmp_path, **{name: {"fine": 1} for name in names})

    def slow(path, record):
        inside.append(path)
        time.sleep(0.02)
        assert len(inside) == 1, "two write the record at once"
        write(path, record)
        inside.pop()

    monkeypatch.setattr(gpu_check, "write_json", slow)
    check.run([Part(name, None, 9, alone=False) for name in names], 8)
    assert set(json.loads((tmp_path / "check.json").read_text())["parts"]) == set(names)


def test_a_part_that_is_run_again_is_added_to_the_record_and_takes_the_place_of_its_run(monkeypatch, tmp_path):
    before = {
        "rehearsal": True,
        "machine": {},
        "parts": {"model": {"status": "ok", "why": "", "took": 1}},
        "runs": [RUN, PLAIN],
    }
    (tmp_path / "check.json").write_text(json.dumps(before))
    monkeypatch.setattr(gpu_check, "card", dict)
    found = gpu_check.earlier(tmp_path / "check.json")
    parts = [Part("model", None, 9), Part("TRL, bf16", None, 9, ("model",))]
    assert chosen(parts, ["TRL, bf16"], ["model"]) == parts[1:] and chosen(parts, ["TRL, bf16"]) == parts
    told = outcomes(monkeypatch, tmp_path, **{"TRL, bf16": {**PLAIN, "seconds_a_step": 7.0}})
    record = Check(told.folder, told.out, 10, found).run(parts[1:], 1)
    assert list(record["parts"]) == ["model", "TRL, bf16"]
    assert {run["name"]: run["seconds_a_step"] for run in record["runs"]} == {"Unsloth, bf16": 2.0, "TRL, bf16": 7.0}
    monkeypatch.setattr(gpu_check, "card", lambda: {"gpu": "NVIDIA T4"})
    assert gpu_check.earlier(tmp_path / "check.json") is None  # of another machine


@pytest.mark.parametrize("left, stops", [(gpu_check.SPARE - 1, True), (gpu_check.SPARE + 60, False)])
def test_a_training_that_would_be_cut_off_is_asked_to_stop_and_its_figures_are_kept(monkeypatch, tmp_path, left, stops):
    run = a_run(tmp_path / "run", [row(i, 2.0, 100 * i) for i in range(1, 6)], [{"from_step": 0}])
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"])
    monkeypatch.setattr(gpu_check, "start", lambda *args: (process, run))
    monkeypatch.setenv(gpu_check.UNTIL, str(time.time() + left))
    assert gpu_check.train(tmp_path, "trl", "bf16", 20)["steps"] == 5 and (run / "stop").exists() is stops


def test_a_record_of_a_card_is_never_called_a_rehearsal_and_the_other_way_round():
    empty = {"date": "2026-11-30", "machine": {}, "parts": {}, "runs": []}
    assert "rehearsal" not in report({**empty, "rehearsal": False}) and "rehearsal" in report(
        {**empty, "rehearsal": True}
    )


def test_what_has_not_begun_when_the_time_is_up_is_said_to_be_missing(monkeypatch, tmp_path):
    check = outcomes(monkeypatch, tmp_path, model={"fine": 1})
    check.ends = time.monotonic()
    assert check.run([Part("model", None, 9)], 1)["parts"]["model"]["why"] == "the time was up: --minutes gives more"


def test_the_record_is_on_disk_after_every_part(monkeypatch, tmp_path):
    kept, seen = tmp_path / "check.json", []
    check = outcomes(monkeypatch, tmp_path)

    def told(part, *rest):
        seen.append(list(json.loads(kept.read_text())["parts"]) if kept.exists() else [])
        return {"status": "ok", "took": 1.0, "why": "", "log": "", "found": {"fine": 1}}

    monkeypatch.setattr(gpu_check, "run_part", told)
    for name in ("first", "second", "third"):
        check.one(Part(name, None, 9))
    assert seen == [[], ["first"], ["first", "second"]]


def test_untimed_parts_run_beside_each_other_and_timed_ones_alone(monkeypatch, tmp_path):
    running, most = [], {}

    def told(part, *rest):
        running.append(part.name)
        time.sleep(0.2)
        most[part.name] = len(running)
        time.sleep(0.2)
        running.remove(part.name)
        return {"status": "ok", "took": 1.0, "why": "", "log": "", "found": {"fine": 1}}

    check = outcomes(monkeypatch, tmp_path)
    monkeypatch.setattr(gpu_check, "run_part", told)
    check.run(
        [Part("a", None, 9), Part("x", None, 9, alone=False), Part("b", None, 9), Part("y", None, 9, alone=False)], 2
    )
    assert most["a"] == most["b"] == 1 and most["x"] == most["y"] == 2


def test_an_unknown_part_is_refused_with_those_there_are():
    with pytest.raises(SystemExit, match="no part 'bf17' on this machine: there are environment; model"):
        chosen(gpu_check.all_parts(), ["bf17"])


@pytest.mark.parametrize(
    "bf16, expected",
    [
        (
            True,
            [
                "Unsloth, bf16",
                "TRL, bf16",
                "notebooks",
                "Unsloth, fp16, killed and resumed",
                "TRL, fp16",
                "merge",
                "settings",
            ],
        ),
        (False, ["Unsloth, fp16", "TRL, fp16", "notebooks", "Unsloth, fp16, killed and resumed", "merge", "settings"]),
    ],
)
def test_on_a_card_there_are_both_backends_in_both_precisions_and_the_notebooks(monkeypatch, bf16, expected):
    monkeypatch.setattr(gpu_check, "on_card", lambda: True)
    monkeypatch.setattr(gpu_check, "has_bf16", lambda: bf16)
    parts = gpu_check.all_parts()
    assert [part.name for part in parts] == ["environment", "model", *expected]
    assert [part.name for part in parts if part.alone][2:] == expected[:2]  # only what nothing disturbs is timed
    assert next(part for part in parts if part.name == "merge").needs == (expected[0],)


def test_both_backends_get_the_same_settings(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_check, "on_card", lambda: True)
    ours, plain = (gpu_check.parameters(tmp_path, backend, "bf16", 20) for backend in ("unsloth", "trl"))
    assert {name for name in ours if ours[name] != plain[name]} == {"BACKEND", "OUTPUTS"}
    assert ours["MORE_SETTINGS"]["load_in_4bit"] and ours["MORE_SETTINGS"]["bf16"] and not ours["MORE_SETTINGS"]["fp16"]


# --------------------------------------------------------------------------- figures and table


def a_run(folder, rows, attempts):
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = {
        "attempts": attempts,
        "process": {"peak_memory": {"of": "card", "bytes": 7}},
        "status": "finished",
        "requested": {},
    }
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def row(step, seconds, tokens, **more):
    return {
        "step": step,
        "reward": 0.5,
        "time/step": seconds,
        "time/generating": 1.0,
        "time/scoring": 0.5,
        "num_tokens": tokens,
        "completions/mean_length": 10.0,
        "loss": 0.1,
        "grad_norm": 1.0,
        **more,
    }


def test_figures_are_those_worked_out_by_hand_without_the_first_steps_of_each_process(tmp_path):
    # the rehearsal's batch has 8 completions; steps 1, 2, 5 and 6 begin a process
    rows = [
        row(1, 99, 100),
        row(2, 99, 200),
        row(3, 2.5, 500),
        row(4, 3.5, 800),
        row(5, 99, 900),
        row(6, 99, 1000),
        row(7, 4.5, 1600),
    ]
    found = measured(a_run(tmp_path / "run", rows, [{"from_step": 0}, {"from_step": 4}]), "trl", "bf16")
    assert found["steps"] == 7 and found["steps_timed"] == 3 and found["seconds_a_step"] == 3.5 == 10.5 / 3
    assert found["generating_share"] == pytest.approx(3 / 10.5)
    assert found["generated_tokens_a_second"] == pytest.approx(3 * 80 / 3)
    assert found["trained_tokens_a_second"] == pytest.approx((300 + 300 + 600) / (10.5 - 3 - 1.5))
    assert found["peak_bytes"] == 7 and "failed" not in found


@pytest.mark.parametrize(
    "kind, step, fails", [("bf16", 1, True), ("bf16", 4, True), ("fp16", 3, False), ("fp16", 4, True)]
)
def test_a_loss_that_is_not_finite_fails_except_while_fp16_looks_for_its_scale(tmp_path, kind, step, fails):
    rows = [row(i, 1.9, 100 * i, **({"grad_norm": float("nan")} if i == step else {})) for i in range(1, 5)]
    found = measured(a_run(tmp_path / "run", rows, [{"from_step": 0}]), "unsloth", kind)
    assert (found.get("failed") == "grad_norm not finite in some step") is fails


def test_unsloth_is_set_beside_plain_trl_by_ratios(tmp_path):
    assert (
        compared([RUN, PLAIN], False)[0] == "TRL, bf16 against Unsloth, bf16: seconds a step × 2.50, peak bytes × 2.50."
    )
    untimed = [{**one, "timed": False} for one in (RUN, PLAIN)]
    assert "seconds" not in compared(untimed, False)[0] and compared([RUN], False) == []


def test_the_table_says_the_machine_the_versions_and_what_failed():
    text = report(
        {
            "rehearsal": False,
            "date": "2026-11-30",
            "machine": {"gpu": "NVIDIA T4", "versions": {"torch": "2.13.0"}},
            "parts": {"TRL, fp16": {"status": "failed", "took": 3.0, "why": "out of | memory", "log": "x"}},
            "runs": [RUN, {**PLAIN, "timed": False}],
        }
    )
    assert text.startswith("# GPU check: NVIDIA T4\n") and "2026-11-30" in text and "torch 2.13.0" in text
    assert "| TRL, fp16 | failed | 3 s | out of \\| memory |" in text
    assert (
        "| Unsloth, bf16 | 2.00 | 1,500 | 9,000 | 60% | 4.00 GB of tensors, 5.00 reserved | 20 (18 timed) | 0.100 → 0.200 |"
        in text
    )
    assert "| TRL, bf16 | – | – | – | – | 10.00 GB of tensors, 5.00 reserved | 20 |" in text
    assert len({line.count("|") - line.count("\\|") for line in text.splitlines() if line.startswith("|")} - {5}) == 1


def test_make_takes_another_python_as_it_is_and_sets_up_its_own_otherwise():
    def asked(*more):
        around = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        done = subprocess.run(
            ["make", "-n", "-B", "gpu-check", *more],
            cwd=BENCHMARKS.parents[1],
            capture_output=True,
            text=True,
            env=around,
        )
        return done.stdout

    assert "lab/setup.py" in asked() and "lab/setup.py" not in asked("PY=python3")
    assert "python3 notebooks/lab/make/gpu_check.py --parts model" in asked("PY=python3", "ARGS=--parts model")
