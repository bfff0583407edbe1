"""What the notebooks do differently on a CUDA card, as far as it can be seen without one.

Each is a fact read in Unsloth's code for cards, or seen when it was run with a CPU in the card's place; what its own
config and trainer make of our settings is in test_gpu_check.py.
"""

import contextlib
import json
import re
from types import SimpleNamespace

import pytest
import torch

from lab.files import ROOT, STARTER_POLICY
from lab.model import policy
from lab.train import callbacks, process, recorder

BF16, FP16, NEITHER = ({"bf16": a, "fp16": b} for a, b in ((True, False), (False, True), (False, False)))


@pytest.mark.parametrize(
    "card, settings, full, expected",
    [
        (True, BF16, False, {"dtype": torch.bfloat16}),
        (True, FP16, False, {"dtype": torch.float16}),
        (True, NEITHER, False, {}),
        # Unsloth would train pure bfloat16 weights, in which an update of 1e-6 is lost
        (True, BF16, True, {"dtype": torch.bfloat16, "float32_mixed_precision": True}),
        (False, NEITHER, False, {}),
        (False, NEITHER, True, {"dtype": torch.float32}),
    ],
)
def test_the_loader_gets_the_type_that_the_settings_train_in(monkeypatch, card, settings, full, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: card)
    assert policy.weight_type(settings, full) == expected


@pytest.mark.parametrize(
    "settings, full, expected",
    [
        (BF16, False, torch.bfloat16),
        (FP16, False, torch.float16),
        (BF16, True, torch.float32),
        (NEITHER, False, torch.float32),
        (None, False, torch.float32),
    ],
)
def test_the_standard_road_loads_that_type_too_and_trains_all_weights_in_32_bits(settings, full, expected):
    model, _ = policy.load_plain(str(STARTER_POLICY), load_in_4bit=False, full_finetuning=full, settings=settings)
    assert {parameter.dtype for parameter in model.parameters()} == {expected}


def test_every_notebook_loads_the_model_of_that_name_and_no_other():
    """For a Hub name Unsloth takes another repository on a card, quantized before, and with vLLM a third one."""
    calls = 0
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        source = "\n".join(
            "".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"
        )
        for call in re.finditer(r"FastLanguageModel\.from_pretrained\((?:[^()]|\([^()]*\))*\)", source):
            calls += 1
            shared = re.search(r"loading = \{[^}]*use_exact_model_name", source) if "**loading" in call[0] else None
            assert "use_exact_model_name" in call[0].replace(" ", "") or shared, f"{path.name}: {call[0]}"
    assert calls >= 6


def test_the_starter_policy_can_be_asked_for_where_a_real_model_is_the_default(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert policy.choose_model("auto") == policy.GPU_MODEL and policy.choose_model("a/b") == "a/b"
    assert policy.choose_model("starter") == str(STARTER_POLICY)


@pytest.mark.parametrize("more, given", [(["--model", "starter"], {"MODEL": "starter"}), ([], None)])
def test_make_run_hands_a_model_to_the_three_notebooks_that_load_one(monkeypatch, more, given):
    from lab.make import run

    asked = []
    monkeypatch.setattr(run, "run_notebooks", lambda names, outputs, parameters: asked.append(parameters) or {})
    monkeypatch.setattr("sys.argv", ["lab.make.run", *more])
    run.main()
    assert asked == [dict.fromkeys(run.ROAD[:3], given) if given else None]


@pytest.mark.parametrize("beta, kept", [(0.0, False), (0.02, True)])
def test_a_kl_of_0_that_nobody_measured_is_not_logged(beta, kept):
    """Unsloth's trainer logs a kl at every step, which is 0 where beta is."""
    logs, run = {"reward": 0.5, "kl": 0.0}, SimpleNamespace(is_main_process=False)
    recorder.RunRecorder.on_log(run, SimpleNamespace(beta=beta), None, None, logs=logs)
    assert ("kl" in logs) is kept


class Model:
    """A model in training, as Unsloth makes it for a card: generating leaves it in a mode that `for_training` ends."""

    def __init__(self, training):
        self.training, self.calls = training, []

    def train(self, mode):
        self.training = mode

    def for_training(self, use_gradient_checkpointing):
        self.calls.append(use_gradient_checkpointing)


@pytest.mark.parametrize(
    "was_training, recorded, calls", [(True, "unsloth", ["unsloth"]), (True, None, [True]), (False, "unsloth", [])]
)
def test_held_out_answers_leave_unsloths_model_training_as_it_was(monkeypatch, was_training, recorded, calls):
    import trl.models

    model = Model(was_training)
    if recorded:
        model._unsloth_gradient_checkpointing = recorded
    trainer = SimpleNamespace(
        model=model, model_wrapped=model, accelerator=None, args=SimpleNamespace(gradient_checkpointing=True)
    )
    monkeypatch.setattr(trl.models, "unwrap_model_for_generation", lambda *args: contextlib.nullcontext(model))
    monkeypatch.setattr(callbacks, "sample", lambda *args, **more: model.train(False) or ["answers"])
    part = SimpleNamespace(trainer=trainer, tokenizer=None, rows=[], max_new_tokens=8)
    assert callbacks.HeldOut._answer(part) == ["answers"]
    assert model.training is was_training and model.calls == calls


def test_the_most_memory_is_of_the_card_where_there_is_one_and_of_the_process_elsewhere(monkeypatch):
    here = process.peak_memory()
    assert here["of"] == "process" and here["bytes"] > 1e8
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 123)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 456)
    assert process.peak_memory() == {"of": "card", "bytes": 123, "reserved": 456}


def test_where_nothing_may_be_installed_a_notebook_goes_on_with_what_is_there(monkeypatch, capsys):
    from lab import setup

    monkeypatch.setattr(setup, "missing", lambda strict: (["trl==9.9"], []))
    monkeypatch.setattr(setup, "install", lambda *args: pytest.fail("it was installed"))
    monkeypatch.setenv(setup.NO_INSTALL, "1")
    setup.ensure_environment()
    assert "nothing is installed, though these are wanted: trl==9.9" in capsys.readouterr().out
