"""Notebook 03 as a script in several processes: what is exported, and how it is started."""

import ast

import pytest
import yaml

from lab.train import launch
from lab.train.launch import CONFIGS, export_script, launch_command, launch_environment

NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def test_the_script_is_the_notebook_with_the_given_parameters_after_its_own(tmp_path):
    text = export_script(tmp_path / "train.py", {"MAX_STEPS": 7, "PREFILL": "<think>\n"}).read_text()
    values = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            values[node.targets[0].id] = ast.literal_eval(node.value)
    assert values["MAX_STEPS"] == 7 and values["PREFILL"] == "<think>\n" and values["OUTPUTS"] == "outputs"
    for call in ("GRPOTrainer(", "FastLanguageModel.from_pretrained(", "run.recording()", "save_model("):
        assert call in text


def test_a_parameter_that_the_notebook_does_not_have_is_refused_with_those_it_has(tmp_path):
    with pytest.raises(ValueError, match="no parameter 'MAXSTEPS'; it has: MODEL, .*MAX_STEPS"):
        export_script(tmp_path / "train.py", {"MAXSTEPS": 7})
    assert not (tmp_path / "train.py").exists()


def test_on_a_cpu_torchrun_starts_the_processes_and_they_share_the_cores(monkeypatch):
    monkeypatch.setattr(launch.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(launch.os, "cpu_count", lambda: 6)
    assert "torch.distributed.run" in launch_command(CONFIGS, 2, "ddp") and "--nproc_per_node" in launch_command(
        CONFIGS, 2, "ddp"
    )
    for asked, share in (("", "3"), ("1", "1"), ("16", "3"), ("many", "3")):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        found = launch_environment(2)
        assert found["ACCELERATE_USE_CPU"] == "true" and found["OMP_NUM_THREADS"] == share


def test_packages_that_lie_in_a_folder_of_their_own_stay_within_reach(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/wheels/site")
    assert launch_environment(1)["PYTHONPATH"].split(":")[-1] == "/wheels/site"


def test_on_gpus_accelerate_gets_the_config_of_that_name(monkeypatch):
    monkeypatch.setattr(launch.torch.cuda, "is_available", lambda: True)
    line = launch_command(CONFIGS / "train.py", 8, "zero3")
    assert str(CONFIGS / "zero3.yaml") in line and line[line.index("--num_processes") + 1] == "8"
    assert "ACCELERATE_USE_CPU" not in launch_environment(8)


def test_an_unknown_config_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["launch", "--config", "zero2", "--set", f"OUTPUTS={tmp_path / 'out'}"])
    with pytest.raises(SystemExit):
        launch.main()
    said = capsys.readouterr().err
    assert all(word in said for word in ("zero2", "ddp", "fsdp", "zero3"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text, value",
    [
        ("A=3", 3),
        ("A=1e-5", 1e-5),
        ("A=trl", "trl"),
        ("A={'b': [1]}", {"b": [1]}),
        ("A=<think>", "<think>"),
        ("A=None", None),
    ],
)
def test_values_are_python_or_else_text(text, value):
    assert launch.parse_assignment(text) == ("A", value)


@pytest.mark.parametrize("name", NAMES)
def test_every_config_says_when_to_take_it(name):
    assert (CONFIGS / f"{name}.yaml").read_text().startswith("# When: ")


@pytest.mark.parametrize("name, kind", [("ddp", "MULTI_GPU"), ("fsdp", "FSDP"), ("zero3", "DEEPSPEED")])
def test_accelerate_reads_the_config_without_an_unknown_key(name, kind):
    from accelerate.commands.config.config_args import ClusterConfig

    found = ClusterConfig.from_yaml_file(yaml_file=str(CONFIGS / f"{name}.yaml"))  # raises for keys it does not know
    assert found.distributed_type.value == kind


def test_vllm_serve_knows_every_key_of_its_config():
    from trl.scripts.vllm_serve import ScriptArguments

    given = yaml.safe_load((CONFIGS / "vllm_serve.yaml").read_text())
    assert set(given) <= set(ScriptArguments.__dataclass_fields__) and given["host"] == "127.0.0.1"


@pytest.mark.parametrize("config", ["fsdp", "zero3"])
def test_what_a_sharded_launch_needs_is_added_to_your_own_settings(monkeypatch, tmp_path, config):
    seen = {}
    monkeypatch.setattr(launch, "export_script", lambda path, parameters: seen.update(parameters) or path)
    monkeypatch.setattr(launch.subprocess, "Popen", lambda *args, **kwargs: None)
    monkeypatch.setattr(launch, "wait_for_end", lambda process, stop: 0)
    launch.launch_training(2, config, {"OUTPUTS": str(tmp_path), "MORE_SETTINGS": {"loss_type": "grpo"}})
    assert seen["BACKEND"] == "trl" and seen["MORE_SETTINGS"] == {"load_in_4bit": False, "loss_type": "grpo"}


def test_the_first_ctrl_c_asks_for_an_end_after_the_step_and_the_second_ends_it(tmp_path):
    class Process:
        replies, ended = [KeyboardInterrupt, KeyboardInterrupt, 7], 0

        def wait(self):
            reply = self.replies.pop(0)
            if reply is KeyboardInterrupt:
                raise reply
            return reply

        def terminate(self):
            self.ended += 1

    process, stop = Process(), tmp_path / "run/stop"
    stop.parent.mkdir()
    assert launch.wait_for_end(process, stop) == 7 and stop.exists() and process.ended == 1
