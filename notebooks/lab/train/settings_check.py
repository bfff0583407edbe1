"""Checked before the GPU is spent: would these settings run, and would they run as they are written?

`check` refuses what TRL would refuse only after ten minutes of loading, and what nobody would refuse at all:
on a GPU, Unsloth replaces GRPOConfig by a class that drops unknown fields with a printed line and changes a
batch that does not fit. `memory_estimate` says before loading whether it fits, and `effective` says after
the trainer was made what became of each setting.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.metadata
import inspect
import math
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lab.model.policy import precision
from lab.train import trackers
from lab.train.presets import has_tf32, nearest

LOADER = "it belongs to FastLanguageModel.from_pretrained"
ADAPTER = "it belongs to FastLanguageModel.get_peft_model"
# Names that GRPOConfig does not have (any more): the field to use now, or None, and what to do.
REMOVED: dict[str, tuple[str | None, str]] = {
    "max_prompt_length": (None, "set MAX_PROMPT_TOKENS in notebook 01, which leaves longer prompts out of the data"),
    "use_liger_loss": ("use_liger_kernel", "set use_liger_kernel"),
    "warmup_ratio": ("warmup_steps", "set warmup_steps, in steps; a value below 1 is a share of the run"),
    "overwrite_output_dir": (None, "leave it out: notebook 03 moves an older run aside"),
    "logging_dir": (None, "set the environment variable TENSORBOARD_LOGGING_DIR"),
    "evaluation_strategy": ("eval_strategy", "set eval_strategy"),
    "per_gpu_train_batch_size": ("per_device_train_batch_size", "set per_device_train_batch_size"),
    "per_gpu_eval_batch_size": ("per_device_eval_batch_size", "set per_device_eval_batch_size"),
    "batch_size": ("per_device_train_batch_size", "set per_device_train_batch_size, in completions"),
    "mini_batch_size": ("per_device_train_batch_size", "set per_device_train_batch_size, in completions"),
    "rollout_batch_size": ("generation_batch_size", "set generation_batch_size, in completions"),
    "max_new_tokens": ("max_completion_length", "set max_completion_length"),
    "max_completion_tokens": ("max_completion_length", "set max_completion_length"),
    "max_tokens": ("max_completion_length", "set max_completion_length"),
    "max_length": ("max_completion_length", "set max_completion_length; the prompt does not count in it"),
    "response_length": ("max_completion_length", "set max_completion_length"),
    "num_samples": ("num_generations", "set num_generations"),
    "num_return_sequences": ("num_generations", "set num_generations"),
    "group_size": ("num_generations", "set num_generations"),
    "kl_coef": ("beta", "set beta"),
    "kl_coeff": ("beta", "set beta"),
    "init_kl_coef": ("beta", "set beta"),
    "kl_beta": ("beta", "set beta"),
    "cliprange": ("epsilon", "set epsilon"),
    "clip_range": ("epsilon", "set epsilon"),
    "clip_eps": ("epsilon", "set epsilon"),
    "ppo_epochs": ("num_iterations", "set num_iterations"),
    "num_ppo_epochs": ("num_iterations", "set num_iterations"),
    "lr": ("learning_rate", "set learning_rate"),
    "optimizer": ("optim", "set optim"),
    "lr_scheduler": ("lr_scheduler_type", "set lr_scheduler_type"),
    "num_epochs": ("num_train_epochs", "set num_train_epochs"),
    "no_cuda": ("use_cpu", "set use_cpu=True"),
    "group_by_length": ("train_sampling_strategy", 'set train_sampling_strategy="group_by_length"'),
    "adafactor": ("optim", 'set optim="adafactor"'),
    "fp16_backend": (None, "leave it out: torch.amp is the only one"),
    "half_precision_backend": (None, "leave it out: torch.amp is the only one"),
    "save_safetensors": (None, "leave it out: checkpoints are always safetensors"),
    "include_tokens_per_second": ("include_num_input_tokens_seen", 'set include_num_input_tokens_seen="all"'),
    "push_to_hub_token": ("hub_token", "set hub_token, or log in with `hf auth login`"),
    "push_to_hub_model_id": ("hub_model_id", "set hub_model_id"),
    "vllm_guided_decoding_regex": ("vllm_structured_outputs_regex", "set vllm_structured_outputs_regex"),
    "vllm_max_model_len": ("vllm_max_model_length", "set vllm_max_model_length"),
    "vllm_device": ("vllm_mode", 'leave it out: vllm_mode="colocate" uses the training\'s own card'),
    "vllm_dtype": (None, "leave it out: vLLM takes the model's"),
    "wandb_log_unique_prompts": ("log_unique_prompts", "set log_unique_prompts"),
    "max_seq_length": (None, LOADER),
    "load_in_4bit": (None, LOADER),
    "fast_inference": (None, f"{LOADER}; the trainer's side of it is use_vllm"),
    "gpu_memory_utilization": (None, f"{LOADER}; plain TRL's is vllm_gpu_memory_utilization"),
    "full_finetuning": (None, LOADER),
    "lora_rank": (None, f"{ADAPTER}, as r"),
    "lora_alpha": (None, ADAPTER),
    "target_modules": (None, ADAPTER),
    "peft_config": (None, "it belongs to GRPOTrainer"),
    "reward_funcs": (None, "it belongs to GRPOTrainer"),
}
# Values that TRL compares with strings only at the first loss; the tests look them up in its source.
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
RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("learning_rate", "logging_steps", "save_steps", "num_train_epochs"), ABOVE_0),
    "repetition_penalty": ABOVE_0,
    **dict.fromkeys(("beta", "epsilon", "epsilon_high", "weight_decay", "warmup_steps", "max_grad_norm"), FROM_0),
    "top_k": FROM_0,
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size", "num_iterations"), FROM_1),
    **dict.fromkeys(("steps_per_generation", "generation_batch_size", "gradient_accumulation_steps"), FROM_1),
    "max_completion_length": FROM_1,
    **dict.fromkeys(("top_p", "vllm_gpu_memory_utilization"), SHARE),
    "temperature": ("above 0 and below 10", lambda x: 0 < x < 10),  # Unsloth raises outside of it
    "num_generations": ("2 or above: GRPO compares the completions of a group", lambda x: x >= 2),
    "max_steps": ("1 or above, or -1 to go by num_train_epochs", lambda x: x >= 1 or x == -1),
    "min_p": ("between 0 and 1", lambda x: 0 <= x <= 1),
}
LORA_FAST, FULL_FAST = 1e-4, 1e-5  # above them GRPO on real models has been seen to collapse; ten times the usual rates
SHORT = 50  # steps; a real model shows a trend only after 40 to 50


class SettingsError(ValueError):
    """Settings that would not run, or not as they are written; `problems` is the list, each with its way out."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        count = "one problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n".join([f"The settings have {count}:", *(f"  - {problem}" for problem in self.problems)]))


def pristine(config_class: type) -> type:
    """TRL's own GRPOConfig, also where Unsloth has put a class of its own in its place (on a GPU).

    Unsloth's is a subclass that writes its defaults into `__init__` alone and takes over the name and module of
    TRL's, so neither of those can tell them apart. What can: only TRL's class declares `num_generations`.
    """
    return [c for c in config_class.__mro__ if "num_generations" in inspect.get_annotations(c)][-1]


def default_of(field: dataclasses.Field) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def trl_defaults() -> dict[str, Any]:
    """Each field's default as TRL declares it, whatever Unsloth makes of it."""
    from trl import GRPOConfig

    return {field.name: default_of(field) for field in dataclasses.fields(pristine(GRPOConfig))}


def live_defaults() -> dict[str, Any]:
    """What a field gets here when it is left out: TRL's default, or the one that Unsloth writes into `__init__`."""
    from trl import GRPOConfig

    written = {name: one.default for name, one in inspect.signature(GRPOConfig.__init__).parameters.items()}
    written = {name: value for name, value in written.items() if isinstance(value, (bool, int, float, str))}
    return {**trl_defaults(), **written}


@dataclasses.dataclass
class Case:
    """All that the rules look at; `bad` are the fields that have no usable value."""

    settings: Mapping[str, Any]
    report: Mapping[str, Any] | None = None
    model_config: Any = None
    rewards: Sequence[Any] = ()
    columns: Iterable[str] | None = None
    starter: bool = False
    full_finetuning: bool = False
    load_in_4bit: bool = False
    lora_rank: int | None = None
    max_seq_length: int | None = None
    world_size: int = 1
    defaults: dict[str, Any] = dataclasses.field(default_factory=live_defaults)
    bad: set[str] = dataclasses.field(default_factory=set)

    def __getitem__(self, name: str) -> Any:
        """The field's value, or its default where it was not set."""
        value = self.settings.get(name)
        return self.defaults.get(name) if value is None else value

    @property
    def per_forward(self) -> int:
        """Completions in one forward pass of all processes."""
        return self["per_device_train_batch_size"] * self.world_size

    @property
    def steps_per_generation(self) -> int:
        """Forward passes that share one generation of completions, as TRL derives it."""
        if self["generation_batch_size"]:
            return max(1, self["generation_batch_size"] // self.per_forward)
        return self["steps_per_generation"] or self["gradient_accumulation_steps"]


Rule = Callable[[Case], Iterator[str]]
PROBLEMS: list[tuple[Rule, tuple[str, ...]]] = []
WARNINGS: list[tuple[Rule, tuple[str, ...]]] = []
BATCH = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "generation_batch_size",
    "steps_per_generation",
)


def rule(kind: list[tuple[Rule, tuple[str, ...]]], *reads: str) -> Callable[[Rule], Rule]:
    """Registers a rule; it is skipped where a field that it reads is bad: that is said already, and warnings come only
    after all is good."""
    return lambda function: kind.append((function, reads)) or function


def found(kind: list[tuple[Rule, tuple[str, ...]]], case: Case) -> list[str]:
    return [text for function, reads in kind if not case.bad.intersection(reads) for text in function(case)]


def check_settings(settings: Mapping[str, Any], **about: Any) -> list[str]:
    """Warnings (suspicious, but allowed), one sentence each; raises SettingsError with all that is wrong.

    Args:
        settings: what goes to GRPOConfig.
        about: any of the following; what is left out is not checked.
            report: the data set's report.json; model_config: the model's configuration;
            rewards: the reward functions or their names; columns: the data set's columns;
            starter: the starter policy is trained; full_finetuning, load_in_4bit, lora_rank, max_seq_length:
            what the loader gets; world_size: processes, 1 unless run by torchrun.
    """
    case = Case(settings, **about)
    problems = [*field_problems(case), *found(PROBLEMS, case)]
    if problems:
        raise SettingsError(problems)
    return found(WARNINGS, case)


def field_problems(case: Case) -> Iterator[str]:
    """Each field for itself: its name, its type, its range. Those with a problem are kept out of the other rules."""
    from trl import GRPOConfig

    # Unsloth's class on a GPU has fields of its own, and there they are right.
    known = {field.name for field in dataclasses.fields(GRPOConfig)}
    hints = typing.get_type_hints(pristine(GRPOConfig))
    for name, value in case.settings.items():
        problem = name_problem(name, known) or (value is not None and value_problem(name, value, hints.get(name, Any)))
        if problem:
            case.bad.add(name)
            yield problem


def name_problem(name: str, known: set[str]) -> str | None:
    if name in known:
        return None
    trl = f"trl {importlib.metadata.version('trl')}"
    if name in REMOVED:
        return f"{name} is no GRPOConfig field in {trl}: {REMOVED[name][1]}."
    return f"{name} is no GRPOConfig field in {trl}: {nearest(name, known, 'leave it out.')}"


def value_problem(name: str, value: Any, hint: Any) -> str | None:
    """What is wrong with this value of this field, with the way out; `hint` is the field's declared type."""
    if name in CHOICES:
        among = CHOICES[name]
        return None if value in among else f"{name} is {value!r}: {one_of(value, [x for x in among if type(x) is str])}"
    if not fits(value, hint):
        return f"{name} is {value!r}, a {type(value).__name__}: {rewritten(value, hint)}"
    if isinstance(value, numbers.Real) and not math.isfinite(value):
        return f"{name} is {value!r}: give a finite number."
    if name in RANGES and isinstance(value, numbers.Real) and not RANGES[name][1](value):
        return f"{name} is {value!r}: it must be {RANGES[name][0]}."
    return None


def one_of(value: Any, among: Sequence[str]) -> str:
    return nearest(str(value), among, f"give one of {', '.join(among)}.")


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the type alone."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a field's declared type; an int is a float, a bool is no number, a path is a string."""
    options = alternatives(hint)
    enums = [option for option in options if isinstance(option, type) and issubclass(option, enum.Enum)]
    if enums and isinstance(value, str):
        return any(value in {member.value for member in one} for one in enums)
    return any(fits_one(value, option) for option in options)


def fits_one(value: Any, option: Any) -> bool:
    kind = typing.get_origin(option) or option
    if kind is Any or kind is typing.Literal:
        return kind is Any or value in typing.get_args(option)
    if kind is str:
        return isinstance(value, (str, os.PathLike))
    if kind in (int, float):
        return isinstance(value, numbers.Integral if kind is int else numbers.Real) and not isinstance(value, bool)
    if kind is list and isinstance(value, (list, tuple)):
        return all(fits(one, hint) for hint in typing.get_args(option) for one in value)
    return isinstance(value, kind)


def rewritten(value: Any, hint: Any) -> str:
    """How to write the value so that it fits, where that can be said."""
    options = alternatives(hint)
    enums = [option for option in options if isinstance(option, type) and issubclass(option, enum.Enum)]
    if enums and isinstance(value, str):
        return one_of(value, [member.value for member in enums[0]])
    if isinstance(value, str) and {int, float}.intersection(options):
        return "write the number without quotes."
    if isinstance(value, str) and bool in options:
        return "write True or False without quotes."
    if isinstance(value, float) and int in options and value.is_integer():
        return f"write {int(value)}."
    names = [getattr(option, "__name__", str(option)) for option in options if option is not type(None)]
    return f"give a value of type {' or '.join(names)}."


def around(value: float, step: int) -> str:
    """The multiples of `step` next to a value, as text: "8 or 16"."""
    below = int(value // step) * step
    return f"{below} or {below + step}" if below else str(step)


@rule(PROBLEMS, "report_to")
def trackers_are_installed(case: Case) -> Iterator[str]:
    """Otherwise the trainer raises after the model was loaded."""
    yield from trackers.not_installed(case.settings.get("report_to"))


@rule(PROBLEMS, "num_generations", *BATCH)
def whole_groups(case: Case) -> Iterator[str]:
    """TRL's own rule, from GRPOConfig.__post_init__; Unsloth on a GPU would change the batch instead of raising."""
    if case["generation_batch_size"]:
        yield from whole_generation_batch(case)
        return
    group, steps = case["num_generations"], case.steps_per_generation
    total = case.per_forward * steps
    if total % group:
        name = "steps_per_generation" if case["steps_per_generation"] else "gradient_accumulation_steps"
        processes = f" × {case.world_size} processes" if case.world_size > 1 else ""
        sizes = around(case["per_device_train_batch_size"], group // math.gcd(group, case.world_size * steps))
        groups = divisors_around(total, group)
        yield (
            f"per_device_train_batch_size × {name}{processes} = {total} completions are no whole groups of {group}: "
            f"set per_device_train_batch_size to {sizes}" + (f", or num_generations to {groups}." if groups else ".")
        )


def whole_generation_batch(case: Case) -> Iterator[str]:
    total, step = case["generation_batch_size"], math.lcm(case["num_generations"], case.per_forward)
    if case["steps_per_generation"]:
        yield "generation_batch_size and steps_per_generation are both set: leave one out, it follows from the other."
    elif total % step:
        yield (
            f"generation_batch_size = {total} does not hold whole groups of {case['num_generations']} and whole "
            f"batches of {case.per_forward} completions: set it to {around(total, step)}."
        )


def divisors_around(total: int, near: int) -> str:
    """The divisors of `total`, from 2 up, next to a number, as text; empty where there is none."""
    fitting = [n for n in range(2, total + 1) if total % n == 0]
    below, above = [n for n in fitting if n < near][-1:], [n for n in fitting if n > near][:1]
    return " or ".join(map(str, below + above))


@rule(PROBLEMS, "num_generations", "num_generations_eval", "per_device_eval_batch_size", "eval_strategy")
def whole_groups_in_evaluation(case: Case) -> Iterator[str]:
    if plain(case["eval_strategy"]) == "no":
        return
    group, size = case["num_generations_eval"] or case["num_generations"], case["per_device_eval_batch_size"]
    if size * case.world_size % group:
        step = group // math.gcd(group, case.world_size)
        yield (
            f"per_device_eval_batch_size = {size} on {case.world_size} process(es) holds no whole groups of {group}: "
            f"set it to {around(size, step)}, or num_generations_eval to a divisor of {size * case.world_size}."
        )


@rule(PROBLEMS, "bf16", "fp16", "tf32")
def precision_of_the_card(case: Case) -> Iterator[str]:
    card, bf16, fp16 = precision(), case["bf16"], case["fp16"]
    if bf16 and fp16:
        yield f"bf16 and fp16 are both True: keep {'bf16' if card['bf16'] else 'fp16'} and set the other to False."
    elif not any(card.values()) and (bf16 or fp16):
        yield f"{'bf16' if bf16 else 'fp16'} is True, and there is no CUDA card: set bf16=False and fp16=False."
    elif card["fp16"] and (bf16 or (bf16 is None and not fp16)):  # for TRL None means bf16
        yield "this card has no bfloat16 (a T4 or V100 only emulates it): set fp16=True and bf16=False."
    if case["tf32"] and not has_tf32():
        yield "tf32 is True, and there is no card with TF32 (NVIDIA from Ampere on): leave tf32 out."


@rule(PROBLEMS, "max_completion_length")
def lengths(case: Case) -> Iterator[str]:
    """TRL checks no prompt length any more: beyond the model's positions it writes nonsense, or crashes in CUDA."""
    prompt, answer = (case.report or {}).get("max_prompt_tokens"), case["max_completion_length"]
    if not prompt or not answer:
        return
    text = case.model_config.get_text_config() if case.model_config is not None else None
    limits = {
        "the model's max_position_embeddings": getattr(text, "max_position_embeddings", None),
        "max_seq_length": case.max_seq_length,
    }
    for what, limit in limits.items():
        if not limit or prompt + answer <= limit:
            continue
        shorter = f"set max_completion_length to {limit - prompt} or less, or " if limit > prompt else ""
        larger = f", or raise max_seq_length to {prompt + answer}" if what == "max_seq_length" else ""
        yield (
            f"prompts of up to {prompt} tokens and completions of up to {answer} need {prompt + answer}, and {what} "
            f"is {limit}: {shorter}set a smaller MAX_PROMPT_TOKENS in notebook 01{larger}."
        )


@rule(PROBLEMS, "reward_weights")
def weights_and_columns(case: Case) -> Iterator[str]:
    weights, count = case["reward_weights"], len(case.rewards)
    if weights is not None and count and len(weights) != count:
        yield f"reward_weights has {len(weights)} values for {count} rewards: give one weight for each, in their order."
    if case.columns is None:
        return
    columns = list(case.columns)
    if "prompt" not in columns:
        there = ", ".join(columns) or "none"
        yield f"the data set has no column prompt (there are: {there}): make it with notebook 01_prepare_data."
    for reward in case.rewards:
        try:
            getattr(reward, "check_columns", lambda _: None)(columns)
        except Exception as error:  # a reward of anybody's making; ours names the column and the way out
            yield str(error)


@rule(PROBLEMS)
def what_is_trained(case: Case) -> Iterator[str]:
    if case.full_finetuning and case.load_in_4bit:
        yield "full_finetuning with load_in_4bit: 4-bit weights cannot be trained, set load_in_4bit=False."
    rank = case.lora_rank
    if not case.full_finetuning and rank is not None and (not isinstance(rank, int) or rank < 1):
        yield f"lora_rank is {rank!r}: give a whole number from 1 up (16 is usual), or set full_finetuning=True."
    text = case.model_config.get_text_config() if case.model_config is not None else None
    widths = {getattr(text, name, None) for name in ("hidden_size", "intermediate_size")}
    odd = sorted(width for width in widths if isinstance(width, int) and width % 64)
    if case.load_in_4bit and odd and not any(precision().values()):
        yield f"the model's width {odd[0]} is no multiple of 64, which 4-bit on a CPU needs: set load_in_4bit=False."


@rule(PROBLEMS, "save_steps", "save_strategy", "max_steps", "num_iterations", *BATCH)
def saves_between_generations(case: Case) -> Iterator[str]:
    """A resume generates anew; in the middle of a block it would skip what was left of the old completions."""
    save, steps = case["save_steps"], case["max_steps"]
    if plain(case["save_strategy"]) != "steps" or (save < 1 and steps < 1):
        return
    save = math.ceil(save * steps) if save < 1 else save  # as transformers does with a share
    block = case.steps_per_generation * case["num_iterations"]
    step = block // math.gcd(block, case["gradient_accumulation_steps"])
    if save % step:
        yield (
            f"save_steps = {save} lies inside a block of completions that is used for {step} updates, so a resumed run "
            f"would not go on as the first: set save_steps to {around(save, step)}."
        )


@rule(WARNINGS)
def fast(case: Case) -> Iterator[str]:
    limit, usual = (FULL_FAST, 1e-6) if case.full_finetuning else (LORA_FAST, 1e-5)
    if not case.starter and case["learning_rate"] > limit:
        what = "full fine-tuning" if case.full_finetuning else "an adapter of a real model"
        yield (
            f"learning_rate = {case['learning_rate']:g} is high for {what}: above {limit:g} GRPO often collapses, "
            f"{usual:g} is usual."
        )


@rule(WARNINGS)
def no_kl(case: Case) -> Iterator[str]:
    if case["beta"] == 0:
        yield "beta = 0 measures no KL: the distance from the base is not in the log; 0.001 is enough to see it."


@rule(WARNINGS)
def sparse_log(case: Case) -> Iterator[str]:
    if plain(case["logging_strategy"]) != "steps" or case["logging_steps"] != 1:
        yield "not every step is recorded: set logging_steps=1, or curves and completions have gaps."


@rule(WARNINGS)
def short_run(case: Case) -> Iterator[str]:
    if not case.starter and 0 < case["max_steps"] < SHORT:
        yield f"max_steps = {case['max_steps']} is short for a real model: a trend is clear only after 40 to 50 steps."


@rule(WARNINGS)
def unusual_temperature(case: Case) -> Iterator[str]:
    if not 0.7 <= case["temperature"] <= 1.3:
        effect = "groups become alike, without signal" if case["temperature"] < 1 else "completions fall apart"
        yield f"temperature = {case['temperature']:g} is far from 1: {effect}."


def plain(value: Any) -> Any:
    """A value without its guise: an enum's value, a path's text, a tuple as a list."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, Mapping) else value
