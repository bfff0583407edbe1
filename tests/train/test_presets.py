"""The presets: the right settings for a card and a model, and what follows from one's own."""

import ast
import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch

from lab.files import ROOT
from lab.train import presets, settings_check
from lab.train.presets import NOT_CONFIG_FIELDS, NOTEBOOK_FIELDS, PRESETS, choose_preset, plan_training
from lab.train.settings_check import SettingsError, field_problems

NO_CARD, TURING, AMPERE = ({"bf16": b, "fp16": f} for b, f in ((False, False), (False, True), (True, False)))


@pytest.fixture
def machine(monkeypatch):
    """Makes this machine look like one with cards of so many bytes."""

    def make(card, *memory, vllm=False):
        monkeypatch.setattr(presets, "precision", lambda: dict(card))
        monkeypatch.setattr(presets.importlib.util, "find_spec", lambda name: object() if vllm else None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(memory))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(memory))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(total_memory=memory[i]))

    return make


def fields():
    from trl import GRPOConfig

    return {field.name for field in dataclasses.fields(GRPOConfig)}


def test_the_starter_policy_on_a_cpu_has_the_settings_it_was_tuned_with(machine):
    machine(NO_CARD)
    starter = plan_training("auto", starter=True)
    as_ever = dict(
        per_device_train_batch_size=64,
        gradient_accumulation_steps=1,
        num_generations=8,
        max_completion_length=96,
        max_steps=80,
        learning_rate=1e-3,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=5,
        optim="adamw_torch",
        beta=0.02,
        temperature=1.0,
        gradient_checkpointing=False,
        logging_steps=1,
        save_steps=50,
        bf16=False,
        fp16=False,
    )
    assert starter.preset == "cpu" and starter.settings.items() >= as_ever.items()
    assert starter.loading == {"lora_rank": 16, "load_in_4bit": True, "full_finetuning": False}
    assert starter["prompts_per_step"] == 8 and not starter["fast_inference"]


def test_what_the_starter_policy_gets_besides_are_trl_s_own_defaults(machine):
    from lab.train.settings_check import trl_defaults

    machine(NO_CARD)
    besides = {
        "max_grad_norm",
        "num_iterations",
        "loss_type",
        "scale_rewards",
        "mask_truncated_completions",
        "epsilon_high",
    }
    settings, defaults = (
        plan_training("cpu", starter=True).settings,
        trl_defaults() | {"epsilon_high": trl_defaults()["epsilon"]},
    )
    assert {name: settings[name] for name in besides} == {name: defaults[name] for name in besides}


@pytest.mark.parametrize("name", PRESETS)
def test_the_starter_policy_learns_the_same_way_on_any_machine(machine, name):
    machine(AMPERE, 85e9, vllm=True)
    settings = plan_training(name, starter=True).settings
    assert settings["max_steps"] == 80 and settings["learning_rate"] == 1e-3 and not settings["gradient_checkpointing"]
    assert settings["per_device_train_batch_size"] == 64 and "use_vllm" not in settings


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_reason_for_each_value_and_fields_that_trl_has(machine, name):
    for card in (NO_CARD, TURING, AMPERE):
        for starter in (True, False):
            machine(card, *[16e9] * any(card.values()), vllm=card["bf16"])
            found = plan_training(name, starter=starter)
            assert (
                not found.settings.keys() - fields()
                and found.settings.keys() | set(NOT_CONFIG_FIELDS) >= found.rows.keys()
            )
            assert all(len(row.why) > 10 for row in found.rows.values())


@pytest.mark.parametrize("name", PRESETS)
def test_what_a_preset_plans_passes_the_guard_without_a_warning(machine, monkeypatch, name):
    for card in (NO_CARD, TURING, AMPERE):
        machine(card, *[16e9] * any(card.values()))
        monkeypatch.setattr(settings_check, "precision", lambda card=card: card)
        for how in ({"starter": True}, {"starter": False}, {"starter": False, "full_finetuning": True}):
            found = plan_training(name, **how)
            about = {"starter": how["starter"], **found.loading}
            assert settings_check.check_settings(found.settings, **about) == []
            assert not list(field_problems({name: row.value for name, row in found.rows.items()}, NOT_CONFIG_FIELDS))


@pytest.mark.parametrize("name", PRESETS)
def test_trl_accepts_what_a_preset_plans(machine, name, tmp_path):
    from trl import GRPOConfig

    machine(NO_CARD)
    config = GRPOConfig(output_dir=str(tmp_path), **plan_training(name, starter=False).settings)
    assert config.generation_batch_size == 64 and config.num_generations == 8


def test_a_real_model_takes_few_groups_at_once_and_accumulates(machine):
    machine(TURING, 15.6e9)
    t4 = plan_training("auto", starter=False)
    assert t4.preset == "t4-16gb" and t4.settings["fp16"] and not t4.settings["bf16"]
    assert (t4.settings["per_device_train_batch_size"], t4.settings["gradient_accumulation_steps"]) == (8, 8)
    assert (t4.settings["max_steps"], t4.settings["learning_rate"], t4.settings["max_completion_length"]) == (
        250,
        1e-5,
        512,
    )
    assert t4.settings["optim"] == "adamw_8bit" and t4["load_in_4bit"] and t4.settings["gradient_checkpointing"]
    machine(AMPERE, 85e9)
    h100 = plan_training("auto", starter=False)
    assert h100.preset == "80gb" and h100.settings["bf16"] and not h100["load_in_4bit"]
    assert (h100.settings["per_device_train_batch_size"], h100.settings["gradient_accumulation_steps"]) == (32, 2)


@pytest.mark.parametrize(
    "card, memory, expected",
    [
        (NO_CARD, [], "cpu"),
        (TURING, [15.6e9], "t4-16gb"),
        (TURING, [34e9], "t4-16gb"),  # a V100 of 32 GB has no bfloat16
        (AMPERE, [8.4e9], "t4-16gb"),  # there is no smaller preset for a card
        (AMPERE, [16.9e9], "t4-16gb"),
        (AMPERE, [23.7e9], "24gb"),  # L4
        (AMPERE, [25.3e9], "24gb"),
        (AMPERE, [42.3e9], "24gb"),
        (AMPERE, [85e9], "80gb"),
        (AMPERE, [150e9], "80gb"),
        (AMPERE, [85e9, 25.3e9], "24gb"),
    ],
)
def test_auto_takes_the_next_smaller_preset_for_the_smallest_card(machine, card, memory, expected):
    machine(card, *memory)
    assert choose_preset("auto") == expected


def test_an_unknown_preset_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="no preset 't4': the presets are cpu, t4-16gb, 24gb, 80gb, or auto"):
        choose_preset("t4")
    with pytest.raises(ValueError, match=r"no preset '80 gb': did you mean 80gb\?"):
        plan_training("80 gb", starter=True)
    assert choose_preset("24gb") == "24gb"


def test_batches_follow_the_group_size_and_the_prompts(machine):
    machine(TURING, 15.6e9)
    four = plan_training("auto", starter=False, num_generations=4)
    assert (four.settings["per_device_train_batch_size"], four.settings["gradient_accumulation_steps"]) == (4, 8)
    six = plan_training("80gb", starter=False, prompts_per_step=6)  # four groups at once would not divide six
    assert (six.settings["per_device_train_batch_size"], six.settings["gradient_accumulation_steps"]) == (24, 2)
    starter = plan_training("auto", starter=True, num_generations=4, prompts_per_step=3)
    assert (starter.settings["per_device_train_batch_size"], starter.settings["gradient_accumulation_steps"]) == (12, 1)


def test_what_is_left_open_follows_from_your_own_batches(machine):
    machine(NO_CARD)
    larger = plan_training("cpu", starter=False, per_device_train_batch_size=32)
    assert larger.settings["gradient_accumulation_steps"] == 2 and larger["prompts_per_step"] == 8
    longer = plan_training("cpu", starter=False, gradient_accumulation_steps=4)
    assert longer.settings["per_device_train_batch_size"] == 16
    both = plan_training("cpu", starter=True, per_device_train_batch_size=16, gradient_accumulation_steps=1)
    assert both["prompts_per_step"] == 2
    with pytest.raises(ValueError, match=r"= 8 with groups of 8 is 64 completions, but your batches hold 16 × 1 = 16"):
        plan_training(
            "cpu", starter=True, per_device_train_batch_size=16, gradient_accumulation_steps=1, prompts_per_step=8
        )


@pytest.mark.parametrize("steps, warmup", [(80, 5), (30, 3), (6, 0), (-1, 5)])
def test_warm_up_is_a_tenth_of_the_steps_and_five_at_most(machine, steps, warmup):
    machine(NO_CARD)
    assert plan_training("cpu", starter=True, max_steps=steps).settings["warmup_steps"] == warmup
    assert plan_training("cpu", starter=True, max_steps=steps, warmup_steps=7).settings["warmup_steps"] == 7


def test_precision_and_optimiser_go_by_the_card_and_not_by_the_preset(machine):
    machine(NO_CARD)
    cpu = plan_training("80gb", starter=False)
    assert cpu.settings["bf16"] is cpu.settings["fp16"] is False
    assert cpu.settings["optim"] == "adamw_torch" and "no CUDA card" in cpu.rows["bf16"].why
    machine(TURING, 15.6e9)
    assert (
        plan_training("24gb", starter=False).settings["fp16"]
        and not plan_training("24gb", starter=False).settings["bf16"]
    )
    machine(AMPERE, 16e9)
    small = plan_training("t4-16gb", starter=False)
    assert small.settings["bf16"] and not small.settings["fp16"] and small.settings["optim"] == "adamw_8bit"
    asked = plan_training("24gb", starter=False, fp16=True)
    assert asked.settings["fp16"] and not asked.settings["bf16"]


def test_full_fine_tuning_has_no_4_bits_and_a_tenth_of_the_rate(machine):
    machine(AMPERE, 25e9, vllm=True)
    real, starter = (plan_training("24gb", starter=starter, full_finetuning=True) for starter in (False, True))
    assert real.settings["learning_rate"] == pytest.approx(1e-6) and starter.settings["learning_rate"] == pytest.approx(
        1e-4
    )
    assert not real["load_in_4bit"] and real["full_finetuning"] and real["lora_rank"] == 0
    assert not real["fast_inference"] and "use_vllm" not in real.settings


def test_vllm_is_used_only_where_it_is_there_and_not_by_default_on_a_t4(machine):
    machine(AMPERE, 25e9, vllm=True)
    on = plan_training("24gb", starter=False)
    assert on["fast_inference"] and on.settings["use_vllm"] and on["gpu_memory_utilization"] == 0.5
    t4 = plan_training("t4-16gb", starter=False)
    assert not t4["fast_inference"] and "use_vllm" not in t4.settings and "16 GB" in t4.rows["fast_inference"].why
    assert plan_training("t4-16gb", starter=False, use_vllm=True)["fast_inference"]
    assert "use_vllm" not in plan_training("24gb", starter=False, fast_inference=False).settings
    assert plan_training("24gb", starter=False, backend="trl").settings["vllm_gpu_memory_utilization"] == 0.5
    machine(AMPERE, 25e9, vllm=False)
    off = plan_training("24gb", starter=False)
    assert not off["fast_inference"] and "not installed" in off.rows["fast_inference"].why
    with pytest.raises(ValueError, match="fast_inference=True needs a CUDA card and `pip install vllm`"):
        plan_training("24gb", starter=False, fast_inference=True)


def test_vllm_without_a_card_is_not_available(machine):
    machine(NO_CARD, vllm=True)
    assert not plan_training("24gb", starter=False)["fast_inference"]


def test_plain_trl_on_a_cpu_is_told_so(machine):
    machine(NO_CARD)
    bare = plan_training("cpu", starter=True, backend="trl")
    assert bare.settings["use_cpu"] and bare["load_in_4bit"]
    assert "use_cpu" not in plan_training("cpu", starter=True).settings
    with pytest.raises(ValueError, match="no backend 'peft'"):
        plan_training("cpu", starter=True, backend="peft")


def test_a_loss_brings_what_it_needs_and_your_own_value_stays(machine):
    machine(NO_CARD)
    assert plan_training("cpu", starter=True, loss_type="dr_grpo").settings["scale_rewards"] == "none"
    assert (
        plan_training("cpu", starter=True, loss_type="dr_grpo", scale_rewards="batch").settings["scale_rewards"]
        == "batch"
    )
    assert plan_training("cpu", starter=True, loss_type="cispo").settings["epsilon_high"] == 5.0
    assert plan_training("cpu", starter=True, loss_type="luspo").settings["importance_sampling_level"] == "sequence"
    assert plan_training("cpu", starter=True, epsilon=0.1).settings["epsilon_high"] == 0.1


def test_none_means_by_the_preset_and_other_fields_of_trl_pass(machine):
    machine(NO_CARD)
    open_ = plan_training("cpu", starter=True, max_steps=None, learning_rate=None, save_total_limit=1)
    assert open_.settings["max_steps"] == 80 and open_.settings["save_total_limit"] == 1
    assert open_.rows["save_total_limit"].source == "yours" and open_.rows["max_steps"].source == "model"


@pytest.mark.parametrize(
    "name, near", [("num_generation", "num_generations"), ("lora_ranks", "lora_rank"), ("save_step", "save_steps")]
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(name, near):
    with pytest.raises(ValueError, match=rf"{name} is no GRPOConfig field in .*: did you mean {near}\?"):
        plan_training("cpu", starter=True, **{name: 4})


@pytest.mark.parametrize(
    "name, value, why",
    [
        ("num_generations", "8", ", a str: give a value of type int"),
        ("prompts_per_step", 0, ": it must be 1 or above"),
        ("gradient_accumulation_steps", 1.5, ", a float: give a value of type int"),
        ("max_steps", 0.5, ", a float: give a value of type int"),
        ("lora_rank", "16", ", a str: give a value of type int"),
    ],
)
def test_values_of_the_wrong_type_or_range_are_refused_together(name, value, why):
    with pytest.raises(SettingsError, match=f"(?s)2 problems.*{name} is {value!r}{why}.*beta is -1"):
        plan_training("cpu", starter=True, more={"beta": -1}, **{name: value})


def test_the_table_has_one_row_a_value_with_its_reason_and_who_set_it(machine):
    machine(NO_CARD)
    found = plan_training("cpu", starter=True, beta=0.001)
    table = found.table()
    assert table.columns.tolist() == ["value", "why", "from"] and set(table["from"]) == {"preset", "model", "yours"}
    assert set(table.index) == found.rows.keys() > found.settings.keys()
    assert table.loc["beta"].tolist() == ["0.001", "set by you", "yours"]
    assert table.loc["learning_rate", ["value", "from"]].tolist() == ["0.001", "model"]
    assert table.loc["per_device_train_batch_size", "why"] == "completions at once: 8 × 8 of a group"


def test_processes_share_the_prompts_of_a_step():
    one, two = (plan_training("cpu", starter=True, world_size=n) for n in (1, 2))
    assert (one.settings["per_device_train_batch_size"], two.settings["per_device_train_batch_size"]) == (64, 32)
    assert "in each of 2 processes" in two.rows["gradient_accumulation_steps"].why
    with pytest.raises(ValueError, match="prompts_per_step = 8 cannot be shared by 3 processes"):
        plan_training("cpu", starter=True, world_size=3)


def test_a_field_with_a_parameter_of_its_own_is_not_set_twice():
    assert plan_training("cpu", starter=True, more={"loss_type": "grpo"}, max_steps=3)["loss_type"] == "grpo"
    for own in (
        3,
        None,
    ):  # None would mean "by the preset", and the parameter would say something else than the run does
        with pytest.raises(ValueError, match="MORE_SETTINGS has 'max_steps', which is set already"):
            plan_training("cpu", starter=True, more={"max_steps": 1}, max_steps=own)


def test_a_field_of_an_older_trl_is_refused_with_what_to_do_instead():
    with pytest.raises(ValueError, match="max_prompt_length is no .*: set MAX_PROMPT_TOKENS in notebook 01"):
        plan_training("cpu", starter=True, more={"max_prompt_length": 64})


@pytest.mark.parametrize("name", PRESETS)
def test_what_notebook_03_shows_and_the_other_settings_are_all_settings_once(machine, name):
    """GRPOConfig(…) in notebook 03 names the fields of NOTEBOOK_FIELDS, and gets the others as a dictionary behind them."""
    cells = json.loads((ROOT / "notebooks/03_train_grpo.ipynb").read_text(encoding="utf-8"))["cells"]
    (source,) = [text for cell in cells if "arguments = GRPOConfig(" in (text := "".join(cell["source"]))]
    (call,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "GRPOConfig"
    ]
    assert sorted(word.arg for word in call.keywords if word.arg) == sorted(NOTEBOOK_FIELDS)
    machine(AMPERE, 25e9, vllm=True)
    run = {"output_dir": "run", "seed": 1, "report_to": "none", "reward_weights": [1.0]}
    found = plan_training(name, starter=False, more={"top_p": 0.9}, **run)
    assert set(NOTEBOOK_FIELDS) <= found.settings.keys() and not found.other_settings.keys() & set(NOTEBOOK_FIELDS)
    assert {key: found[key] for key in NOTEBOOK_FIELDS} | found.other_settings == found.settings
