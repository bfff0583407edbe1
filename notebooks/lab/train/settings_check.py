"""Settings are checked before the model loads, and compared with what the trainer made of them.

Single fields are checked by name, type and range, then several together. TRL refuses some mistakes only after minutes of
loading. Others nobody refuses: on a GPU, Unsloth's GRPOConfig changes a batch that holds no whole groups.
"""

import dataclasses
import difflib
import enum
import importlib.metadata
import inspect
import json
import math
import numbers
import os
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from lab.model.policy import precision
from lab.train.trackers import tracker_problems
from scoring.errors import InputError

LORA_FAST, FULL_FAST = 1e-4, 1e-5  # ten times the usual rates; above them GRPO on real models has been seen to collapse
SHORT = 50  # steps; a real model shows a trend only after 40 to 50
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
FROM_1 = """per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps steps_per_generation
generation_batch_size num_iterations prompts_per_step groups_per_batch max_completion_length"""
RANGES = {
    name: (words, rule)
    for names, words, rule in (
        ("learning_rate logging_steps save_steps num_train_epochs repetition_penalty", "above 0", lambda x: x > 0),
        ("beta epsilon epsilon_high weight_decay warmup_steps max_grad_norm top_k", "0 or above", lambda x: x >= 0),
        (FROM_1, "1 or above", lambda x: x >= 1),
        ("top_p vllm_gpu_memory_utilization gpu_memory_utilization", "above 0 and at most 1", lambda x: 0 < x <= 1),
        ("temperature", "above 0 and below 10", lambda x: 0 < x < 10),  # Unsloth raises outside of it
        ("num_generations", "2 or above: GRPO compares the completions of a group", lambda x: x >= 2),
        ("max_steps", "1 or above, or -1 to go by num_train_epochs", lambda x: x >= 1 or x == -1),
        ("min_p", "between 0 and 1", lambda x: 0 <= x <= 1),
    )
    for name in names.split()
}
# TRL, transformers and Unsloth fill these in from other fields or from the machine.
# They are no news where nobody asked for them.
FILLED_IN = """output_dir run_name project trackio_static_space_id hub_token disable_tqdm accelerator_config
steps_per_generation generation_batch_size dataloader_pin_memory gradient_checkpointing_kwargs do_eval eval_steps
metric_for_best_model greater_is_better bf16_full_eval fp16_full_eval per_device_eval_batch_size
eval_accumulation_steps""".split()
CHANGED = "changed by the trainer or Unsloth"
ABSENT = "(dropped)"
ALIASES = {"scale_rewards": {True: "group", False: "none"}, "include_num_input_tokens_seen": {True: "all", False: "no"}}


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


class SettingsError(InputError):
    """Settings that would not run, or not as they are written. `problems`: one sentence each, with the way out."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        count = "one problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n".join([f"The settings have {count}:", *(f"  - {problem}" for problem in self.problems)]))


@dataclasses.dataclass
class RunSettings:
    """What the rules look at. `run["beta"]` is a field's value, or its default where it was not set."""

    settings: Mapping[str, Any]  # what goes to GRPOConfig
    report: Mapping[str, Any] | None = None  # the data set's report.json
    model_config: Any = None
    rewards: Sequence[Any] = ()  # the reward functions, or their names
    columns: Sequence[str] | None = None  # of the data set
    starter: bool = False  # the starter policy is trained, not a real model
    full_finetuning: bool = False
    load_in_4bit: bool = False
    lora_rank: int | None = None
    max_seq_length: int | None = None
    world_size: int = 1  # processes
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=live_defaults)

    def __getitem__(self, name: str) -> Any:
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

    def of_model(self, name: str) -> Any:
        """A field of the model's configuration; None where there is none."""
        return getattr(self.model_config.get_text_config(), name, None) if self.model_config is not None else None


def check_settings(settings: Mapping[str, Any], **about: Any) -> list[str]:
    """Warnings (suspicious, but allowed), one sentence each; raises SettingsError with all that is wrong.

    `about`: other fields of `RunSettings`; what is left out is not checked.
    """
    run = RunSettings(settings, **about)
    rules = (whole_groups, rows_fill_a_step, precision_of_the_card, lengths_fit, weights_and_columns_fit)
    rules += (what_is_trained, saves_fit)
    if problems := [*tracker_problems(run["report_to"]), *(problem for rule in rules for problem in rule(run))]:
        raise SettingsError(problems)
    return list(setting_warnings(run))


def multiples_around(value: float, step: int) -> str:
    """The multiples of `step` next to a value, as text: "8 or 16"."""
    below = int(value // step) * step
    return f"{below} or {below + step}" if below else str(step)


def whole_groups(run: RunSettings) -> Iterator[str]:
    """TRL's own rule, from GRPOConfig.__post_init__; Unsloth on a GPU would change the batch instead of raising."""
    group, total = run["num_generations"], run["generation_batch_size"]
    if total and run["steps_per_generation"]:
        yield "generation_batch_size and steps_per_generation are both set: leave one out, it follows from the other."
    elif total and total % (step := math.lcm(group, run.per_forward)):
        whole = f"whole groups of {group} and whole batches of {run.per_forward} completions"
        yield f"generation_batch_size = {total} does not hold {whole}: set it to {multiples_around(total, step)}."
    elif not total and (total := run.per_forward * run.steps_per_generation) % group:
        name = "steps_per_generation" if run["steps_per_generation"] else "gradient_accumulation_steps"
        batch = f"per_device_train_batch_size × {name}" + f" × {run.world_size} processes" * (run.world_size > 1)
        step = group // math.gcd(group, run.world_size * run.steps_per_generation)
        sizes = multiples_around(run["per_device_train_batch_size"], step)
        way_out = f"set per_device_train_batch_size to {sizes}, or num_generations to a divisor of {total}"
        yield f"{batch} = {total} completions are no whole groups of {group}: {way_out}."


def rows_fill_a_step(run: RunSettings) -> Iterator[str]:
    """TRL leaves an incomplete batch out: with fewer rows the training would end without a step."""
    rows = (run.report or {}).get("rows", {}).get("train")
    needed = (run["generation_batch_size"] or run.per_forward * run.steps_per_generation) // run["num_generations"]
    if rows and rows < needed:
        way_out = f"set PROMPTS_PER_STEP to {rows} or less, or give notebook 01 more rows"
        yield f"one step takes {needed} prompts, and the data set has {rows} training rows: {way_out}."


def precision_of_the_card(run: RunSettings) -> Iterator[str]:
    card, bf16, fp16 = precision(), run["bf16"], run["fp16"]
    if bf16 and fp16:
        yield f"bf16 and fp16 are both True: keep {'bf16' if card['bf16'] else 'fp16'} and set the other to False."
    elif not any(card.values()) and (bf16 or fp16):
        yield f"{'bf16' if bf16 else 'fp16'} is True, and there is no CUDA card: set bf16=False and fp16=False."
    elif card["fp16"] and (bf16 or (bf16 is None and not fp16)):  # for TRL None means bf16
        yield "this card has no bfloat16 (a T4 or V100 only emulates it): set fp16=True and bf16=False."


def lengths_fit(run: RunSettings) -> Iterator[str]:
    """TRL checks no prompt length any more: beyond the model's positions it writes nonsense, or crashes in CUDA."""
    prompt, answer = (run.report or {}).get("max_prompt_tokens"), run["max_completion_length"]
    positions = "the model's max_position_embeddings", run.of_model("max_position_embeddings")
    for what, limit in (positions, ("max_seq_length", run.max_seq_length)):
        if prompt and answer and limit and prompt + answer > limit:
            shorter = f"set max_completion_length to {limit - prompt} or less, or " if limit > prompt else ""
            larger = f", or raise max_seq_length to {prompt + answer}" if what == "max_seq_length" else ""
            need = f"prompts of up to {prompt} tokens and completions of up to {answer} need {prompt + answer}"
            way_out = f"{shorter}set a smaller MAX_PROMPT_TOKENS in notebook 01{larger}"
            yield f"{need}, and {what} is {limit}: {way_out}."


def weights_and_columns_fit(run: RunSettings) -> Iterator[str]:
    weights, count = run["reward_weights"], len(run.rewards)
    if weights is not None and count and len(weights) != count:
        yield f"reward_weights has {len(weights)} values for {count} rewards: give one weight for each, in their order."
    for reward in run.rewards if run.columns is not None else ():
        try:
            getattr(reward, "check_columns", lambda _: None)(run.columns)
        except Exception as error:  # a reward of anybody's making; ours names the column and the way out
            yield str(error)


def what_is_trained(run: RunSettings) -> Iterator[str]:
    if run.full_finetuning and run.load_in_4bit:
        yield "full_finetuning with load_in_4bit: 4-bit weights cannot be trained, set load_in_4bit=False."
    rank = run.lora_rank
    if not run.full_finetuning and rank is not None and rank < 1:
        yield f"lora_rank is {rank!r}: give a whole number from 1 up (16 is usual), or set full_finetuning=True."
    widths = [run.of_model(name) for name in ("hidden_size", "intermediate_size")]
    odd = [width for width in widths if isinstance(width, int) and width % 64]
    if run.load_in_4bit and odd and not any(precision().values()):
        yield f"the model's width {odd[0]} is no multiple of 64, which 4-bit on a CPU needs: set load_in_4bit=False."


def saves_fit(run: RunSettings) -> Iterator[str]:
    """A resumed run generates anew: in the middle of a block it would skip what was left of the old completions."""
    save, steps = run["save_steps"], run["max_steps"]
    if run["save_strategy"] != "steps" or (save < 1 and steps < 1):
        return
    save = math.ceil(save * steps) if save < 1 else save  # as transformers does with a share
    block = run.steps_per_generation * run["num_iterations"]
    step = block // math.gcd(block, run["gradient_accumulation_steps"])
    if save % step:
        inside = f"save_steps = {save} lies inside a block of completions that is used for {step} updates"
        yield f"{inside}, where a run cannot be resumed: set save_steps to {multiples_around(save, step)}."


def setting_warnings(run: RunSettings) -> Iterator[str]:
    """What is allowed, and looks like a mistake."""
    limit, usual = (FULL_FAST, 1e-6) if run.full_finetuning else (LORA_FAST, 1e-5)
    rate, steps, temperature = run["learning_rate"], run["max_steps"], run["temperature"]
    if not run.starter and rate > limit:
        what = "full fine-tuning" if run.full_finetuning else "an adapter of a real model"
        yield f"learning_rate = {rate:g} is high for {what}: above {limit:g} GRPO often collapses, {usual:g} is usual."
    if run["beta"] == 0:
        yield "beta = 0 measures no KL: the distance from the base is not in the log; 0.001 is enough to see it."
    if run["logging_strategy"] != "steps" or run["logging_steps"] != 1:
        yield "not every step is recorded: set logging_steps=1, or curves and completions have gaps."
    if not run.starter and 0 < steps < SHORT:
        yield f"max_steps = {steps} is short for a real model: a trend is clear only after 40 to 50 steps."
    if not 0.7 <= temperature <= 1.3:
        effect = "groups become alike, without signal" if temperature < 1 else "completions fall apart"
        yield f"temperature = {temperature:g} is far from 1: {effect}."


def effective_settings(requested: Mapping[str, Any], args: Any) -> pd.DataFrame:
    """What was asked for beside what the trainer has, after it was made; call it with `trainer.args`.

    One row for each requested field, then one for each that nobody requested and that is not TRL's own default.
    Columns: requested, effective, TRL's default, and `changed`, which is empty where the two mean the same.
    """
    defaults = {**trl_defaults(), "bf16": not getattr(args, "fp16", False)}  # TRL's own None means that
    requested = {name: value for name, value in requested.items() if value is not None}
    rows = []
    for name in {**requested, **defaults}:
        default = defaults.get(name, "–")
        effective = getattr(args, name, ABSENT if name in requested else default)
        changed = "" if mean_the_same(name, requested.get(name, default), effective) else CHANGED
        if name in requested or (changed and name not in FILLED_IN):
            shown = ("(hidden)",) * 2 if name == "hub_token" else (requested.get(name, "–"), effective)
            rows.append((name, *(str(plain(value)) for value in (*shown, default, changed))))
    columns = ["setting", "requested", "effective", "TRL's default", "changed"]
    return pd.DataFrame(rows, columns=columns).set_index("setting")


def mean_the_same(name: str, one: Any, other: Any) -> bool:
    """Whether two values of a field mean the same; the aliases are those of GRPOConfig and TrainingArguments."""
    if name in ("report_to", "debug"):  # "none" and [], "wandb" and ["wandb"]
        nothing = (None, "none", ["none"], "")
        one, other = ([] if x in nothing else x.split() if isinstance(x, str) else x for x in (one, other))
    if name in ALIASES:
        one, other = (ALIASES[name].get(x, x) for x in (one, other))
    if name.endswith("_dir") and one and other:
        one, other = (os.path.expanduser(os.fspath(x)) for x in (one, other))
    return plain(one) == plain(other)


def plain(value: Any) -> Any:
    """A value as JSON has it: an enum's value, a path's text, a tuple as a list."""
    return json.loads(json.dumps(value, default=str))
