"""Settings are checked before the model loads: those that would crash later, and those that would be ignored.

TRL refuses some of them only after minutes of loading. Others nobody refuses: on a GPU, Unsloth replaces GRPOConfig by
a class that changes a batch that holds no whole groups. `lab.train.config_fields` looks at each field by itself.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lab.model.policy import precision
from lab.train.config_fields import live_defaults
from lab.train.trackers import tracker_problems

LORA_FAST, FULL_FAST = 1e-4, 1e-5  # ten times the usual rates; above them GRPO on real models has been seen to collapse
SHORT = 50  # steps; a real model shows a trend only after 40 to 50


class SettingsError(ValueError):
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
    problems = list(tracker_problems(run["report_to"]))  # otherwise the trainer raises after the model was loaded
    if problems := [*problems, *(problem for rule in RULES for problem in rule(run))]:
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


RULES = (whole_groups, precision_of_the_card, lengths_fit, weights_and_columns_fit, what_is_trained, saves_fit)


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
