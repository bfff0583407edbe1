"""The fields that GRPOConfig has here: their names, defaults, types and ranges."""

import dataclasses
import difflib
import enum
import importlib.metadata
import inspect
import math
import numbers
import os
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# Names that GRPOConfig does not have (any more), and what to write instead. Other names are looked up by likeness.
REMOVED = {
    "max_prompt_length": "set MAX_PROMPT_TOKENS in notebook 01, which leaves longer prompts out of the data",
    "warmup_ratio": "set warmup_steps, in steps; a value below 1 is a share of the run",
    "overwrite_output_dir": "leave it out: notebook 03 moves an older run aside",
    "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR",
    "no_cuda": "set use_cpu=True",
    "lr": "set learning_rate",
    **dict.fromkeys(("batch_size", "mini_batch_size"), "set per_device_train_batch_size, in completions"),
    **dict.fromkeys(("max_new_tokens", "max_tokens", "max_length"), "set max_completion_length"),
    **dict.fromkeys(("num_return_sequences", "num_samples", "group_size"), "set num_generations"),
    **dict.fromkeys(("kl_coef", "kl_coeff", "init_kl_coef"), "set beta"),
    **dict.fromkeys(("cliprange", "clip_range", "clip_eps"), "set epsilon"),
    **dict.fromkeys(("ppo_epochs", "num_ppo_epochs"), "set num_iterations"),
    **dict.fromkeys(("fp16_backend", "half_precision_backend", "save_safetensors", "vllm_device"), "leave it out"),
    **dict.fromkeys(("load_in_4bit", "max_seq_length"), "it belongs to FastLanguageModel.from_pretrained"),
    **dict.fromkeys(("lora_rank", "lora_alpha", "target_modules"), "it belongs to FastLanguageModel.get_peft_model"),
    **dict.fromkeys(("peft_config", "reward_funcs"), "it belongs to GRPOTrainer"),
}
# Values that TRL compares with strings only at the first loss. A test looks them up in its source.
CHOICES = {
    "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"),
    "scale_rewards": ("group", "batch", "none", True, False),
    "importance_sampling_level": ("token", "sequence"),
    "vllm_mode": ("colocate", "server"),
}
ABOVE_0 = ("above 0", lambda x: x > 0)
FROM_0 = ("0 or above", lambda x: x >= 0)
FROM_1 = ("1 or above", lambda x: x >= 1)
SHARE = ("above 0 and at most 1", lambda x: 0 < x <= 1)
RANGES = {
    **dict.fromkeys("learning_rate logging_steps save_steps num_train_epochs repetition_penalty".split(), ABOVE_0),
    **dict.fromkeys("beta epsilon epsilon_high weight_decay warmup_steps max_grad_norm top_k".split(), FROM_0),
    **dict.fromkeys("per_device_train_batch_size per_device_eval_batch_size num_iterations".split(), FROM_1),
    **dict.fromkeys("gradient_accumulation_steps steps_per_generation generation_batch_size".split(), FROM_1),
    **dict.fromkeys(("prompts_per_step", "groups_per_batch", "max_completion_length"), FROM_1),
    **dict.fromkeys(("top_p", "vllm_gpu_memory_utilization", "gpu_memory_utilization"), SHARE),
    "temperature": ("above 0 and below 10", lambda x: 0 < x < 10),  # Unsloth raises outside of it
    "num_generations": ("2 or above: GRPO compares the completions of a group", lambda x: x >= 2),
    "max_steps": ("1 or above, or -1 to go by num_train_epochs", lambda x: x >= 1 or x == -1),
    "min_p": ("between 0 and 1", lambda x: 0 <= x <= 1),
}


def pristine(config_class: type) -> type:
    """TRL's own GRPOConfig, also where Unsloth has put a class of its own in its place (on a GPU).

    Unsloth's is a subclass that writes its defaults into `__init__` alone and takes the name and module of TRL's.
    What tells them apart: only TRL's class declares `num_generations`.
    """
    return [c for c in config_class.__mro__ if "num_generations" in inspect.get_annotations(c)][-1]


def trl_defaults() -> dict[str, Any]:
    """Each field's default as TRL declares it, whatever Unsloth makes of it.

    Read from the class: making another config after the trainer would reset the Accelerator's shared state.
    """
    from trl import GRPOConfig

    fields, none = dataclasses.fields(pristine(GRPOConfig)), dataclasses.MISSING
    return {one.name: one.default if one.default_factory is none else one.default_factory() for one in fields}


def live_defaults() -> dict[str, Any]:
    """What a field gets here when it is left out: TRL's default, or the one that Unsloth writes into `__init__`."""
    from trl import GRPOConfig

    written = {name: one.default for name, one in inspect.signature(GRPOConfig.__init__).parameters.items()}
    return trl_defaults() | {name: x for name, x in written.items() if isinstance(x, (bool, int, float, str))}


def field_problems(settings: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> Iterator[str]:
    """What is wrong with single fields: name, type or range. `more`: types of settings that GRPOConfig does not have."""
    from trl import GRPOConfig  # only now: unsloth must be imported before it

    hints = {**typing.get_type_hints(pristine(GRPOConfig)), **(more or {})}
    # with Unsloth's own, where its class stands
    known = {*(field.name for field in dataclasses.fields(GRPOConfig)), *(more or {})}
    for name, value in settings.items():
        if name not in known:
            version, way_out = importlib.metadata.version("trl"), right_name(name, known, "leave it out.")
            yield f"{name} is no GRPOConfig field in trl {version}: {way_out}"
        elif value is not None and (problem := value_problem(name, value, hints.get(name, Any))):
            yield f"{name} is {value!r}{problem}"


def right_name(name: str, known: Iterable[str], otherwise: str) -> str:
    """What to write in place of an unknown name: what to do, or the known name that looks most like it."""
    if name in REMOVED:
        return f"{REMOVED[name]}."
    similar = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {similar[0]}?" if similar else otherwise


def value_problem(name: str, value: Any, hint: Any) -> str | None:
    """What is wrong with this value of a field that was declared with the type `hint`; None where it is right."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    enums = [option for option in options if isinstance(option, type) and issubclass(option, enum.Enum)]
    if name in CHOICES or (enums and isinstance(value, str)):
        among = CHOICES.get(name) or [member.value for one in enums for member in one]
        words = [word for word in among if isinstance(word, str)]
        way_out = right_name(str(value), words, f"give one of {', '.join(words)}.")
        return None if value in among else f": {way_out}"
    if not any(has_type(value, option) for option in options):
        names = [getattr(option, "__name__", str(option)) for option in options if option is not type(None)]
        return f", a {type(value).__name__}: give a value of type {' or '.join(names)}."
    if isinstance(value, numbers.Real) and not math.isfinite(value):
        return ": give a finite number."
    if name in RANGES and isinstance(value, numbers.Real) and not RANGES[name][1](value):
        return f": it must be {RANGES[name][0]}."
    return None


def has_type(value: Any, hint: Any) -> bool:
    """Whether a value may stand in a field of this type: an int is a float, a bool is no number, a path is a string."""
    kind = typing.get_origin(hint) or hint
    if kind is Any or kind is typing.Literal:
        return kind is Any or value in typing.get_args(hint)
    if kind is str:
        return isinstance(value, (str, os.PathLike))
    if kind in (int, float):
        return isinstance(value, numbers.Integral if kind is int else numbers.Real) and not isinstance(value, bool)
    if kind is list and isinstance(value, (list, tuple)):
        return all(has_type(one, inner) for inner in typing.get_args(hint) for one in value)
    return isinstance(value, kind)
