"""Single fields: names that GRPOConfig does not have, values of the wrong type or range."""

import dataclasses
import inspect
import re
import typing
from pathlib import Path

import pytest

from lab.train.settings_check import CHOICES, RANGES, REMOVED, field_problems, pristine, trl_defaults, value_problem


def refused(settings):
    return "\n".join(field_problems(settings))


def test_an_unknown_field_is_refused_with_the_nearest_name():
    text = refused({"learnign_rate": 1e-5})
    assert text == "learnign_rate is no GRPOConfig field in trl 1.14.0: did you mean learning_rate?"
    assert refused({"xyzzy": 1}).endswith("leave it out.")


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_field_is_absent_and_its_replacement_there(name):
    from trl import GRPOConfig

    fields = {field.name for field in dataclasses.fields(GRPOConfig)}
    replacement = re.match(r"set ([a-z]+_[a-z_]+|beta|epsilon)", REMOVED[name])
    assert name not in fields and (replacement is None or replacement[1] in fields)
    assert refused({name: 1}) == f"{name} is no GRPOConfig field in trl 1.14.0: {REMOVED[name]}."


@pytest.mark.parametrize(
    "old, field",
    [
        ("use_liger_loss", "use_liger_kernel"),
        ("evaluation_strategy", "eval_strategy"),
        ("per_gpu_train_batch_size", "per_device_train_batch_size"),
        ("max_completion_tokens", "max_completion_length"),
        ("num_epochs", "num_train_epochs"),
        ("vllm_max_model_len", "vllm_max_model_length"),
    ],
)
def test_other_old_names_are_found_by_likeness(old, field):
    assert refused({old: 1}).endswith(f": did you mean {field}?")


def test_a_field_that_only_unsloth_s_class_has_is_right_where_that_class_stands(monkeypatch, unsloth_config):
    import trl

    assert "unsloth_num_chunks is no GRPOConfig field" in refused({"unsloth_num_chunks": 4})
    monkeypatch.setattr(trl, "GRPOConfig", unsloth_config)
    assert refused({"unsloth_num_chunks": 4}) == ""


@pytest.mark.parametrize(
    "name, value, way_out",
    [
        ("learning_rate", "1e-5", "learning_rate is '1e-5', a str: give a value of type float."),
        ("num_generations", 8.0, "num_generations is 8.0, a float: give a value of type int."),
        ("max_steps", 7.5, "a float: give a value of type int."),
        ("max_steps", True, "max_steps is True, a bool: give a value of type int."),
        ("gradient_checkpointing", "False", "a str: give a value of type bool."),
        ("reward_weights", ["1"], "reward_weights is ['1'], a list: give a value of type list."),
        ("optim", "adamw_8bits", "did you mean adamw_8bit?"),
        ("lr_scheduler_type", "cosin", "did you mean cosine?"),
        ("loss_type", "dr-grpo", "loss_type is 'dr-grpo': did you mean dr_grpo?"),
        ("scale_rewards", "std", "give one of group, batch, none."),
        ("learning_rate", float("nan"), "learning_rate is nan: give a finite number."),
        ("learning_rate", 0, "learning_rate is 0: it must be above 0."),
        ("temperature", 0.0, "temperature is 0.0: it must be above 0 and below 10."),
        ("temperature", 10.0, "it must be above 0 and below 10."),
        ("beta", -0.1, "beta is -0.1: it must be 0 or above."),
        ("num_generations", 1, "it must be 2 or above: GRPO compares"),
        ("max_steps", 0, "it must be 1 or above, or -1"),
        ("top_p", 1.5, "it must be above 0 and at most 1."),
        ("min_p", -1.0, "it must be between 0 and 1."),
        ("gradient_accumulation_steps", 0, "it must be 1 or above."),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused_with_the_way_out(name, value, way_out):
    text = refused({name: value})
    assert way_out in text and "\n" not in text


def test_settings_that_are_no_fields_of_trl_have_types_and_ranges_too():
    more = {"prompts_per_step": int, "load_in_4bit": bool}
    given = {"prompts_per_step": 0, "load_in_4bit": "yes", "promts_per_step": 8, "beta": -1}
    assert list(field_problems(given, more)) == [
        "prompts_per_step is 0: it must be 1 or above.",
        "load_in_4bit is 'yes', a str: give a value of type bool.",
        "promts_per_step is no GRPOConfig field in trl 1.14.0: did you mean prompts_per_step?",
        "beta is -1: it must be 0 or above.",
    ]


BOUNDED = (
    "learning_rate logging_steps save_steps num_train_epochs repetition_penalty beta epsilon epsilon_high weight_decay "
    "warmup_steps max_grad_norm top_k per_device_train_batch_size per_device_eval_batch_size min_p max_steps top_p "
    "gradient_accumulation_steps steps_per_generation generation_batch_size num_iterations max_completion_length "
    "vllm_gpu_memory_utilization temperature num_generations"
).split()


@pytest.mark.parametrize("name", BOUNDED)
def test_every_range_refuses_minus_seven(name):
    assert refused({name: -7}) == f"{name} is -7: it must be {RANGES[name][0]}."


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_refuses_another_word(name):
    assert f"{name} is 'xyzzy': give one of " in refused({name: "xyzzy"})


@pytest.mark.parametrize(
    "good",
    [
        {"learning_rate": 1, "max_steps": -1},
        {"warmup_steps": 0.1},
        {"output_dir": Path("run")},
        {"scale_rewards": False},
        {"report_to": ["mlflow"]},
        {"reward_weights": [1, 0.5]},
        {"reward_weights": (1.0,)},
        {"top_k": 0},
        {"top_p": None},
        {"model_init_kwargs": {"a": 1}},
        {"save_steps": 0.5},
        {"debug": ""},
        {"trackio_static_space_id": False},
    ],
)
def test_values_that_trl_takes_are_not_refused(good):
    assert refused(good) == ""


def test_every_default_of_trl_and_every_member_of_its_enums_fits_its_own_type():
    from transformers.training_args import OptimizerNames
    from trl import GRPOConfig

    hints = typing.get_type_hints(GRPOConfig)
    for name, default in trl_defaults().items():
        assert default is None or value_problem(name, default, hints[name]) is None, name
    for member in OptimizerNames:
        assert (
            value_problem("optim", member, hints["optim"])
            is None
            is value_problem("optim", member.value, hints["optim"])
        )


def test_the_choices_are_those_in_trl_s_source():
    from trl import GRPOConfig, GRPOTrainer

    source = inspect.getsource(GRPOTrainer) + inspect.getsource(pristine(GRPOConfig))
    for values in CHOICES.values():
        assert all(f'"{value}"' in source for value in values if isinstance(value, str)), values
