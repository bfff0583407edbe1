"""Settings that suit the machine and the model, each with its reason.

The machine decides the batch's shape, the precision, the optimiser and how completions are generated. The model decides
how long and how boldly to train. Your own values come on top of both, and the rest is calculated from them.

    plan_training("auto", starter=False, num_generations=4).table()
"""

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import torch

from lab.model.policy import precision
from lab.train.settings_check import SettingsError, field_problems, right_name
from scoring.errors import InputError

# What the model's loader gets, and all settings that are no fields of GRPOConfig, with their types.
LOADER = {"load_in_4bit": bool, "lora_rank": int, "full_finetuning": bool}
NOT_CONFIG_FIELDS = LOADER | {"prompts_per_step": int, "groups_per_batch": int}
NOT_CONFIG_FIELDS |= {"fast_inference": bool, "gpu_memory_utilization": float}
BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
# The fields that notebook 03 shows one by one where it makes its GRPOConfig; `other_settings` are all others.
NOTEBOOK_FIELDS = """output_dir seed report_to reward_weights learning_rate lr_scheduler_type warmup_steps optim max_steps
save_steps num_generations max_completion_length temperature beta loss_type scale_rewards num_iterations
mask_truncated_completions per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing bf16
fp16""".split()


class Setting(NamedTuple):
    """A value, the reason for it, and who set it: the preset, the model or you."""

    value: Any
    why: str
    source: str = "preset"


EVERYWHERE = {
    "num_generations": Setting(8, "the group that is compared; fewer than 4 often agree, and teach nothing"),
    "prompts_per_step": Setting(8, "groups in one update: enough that one odd prompt is averaged out"),
    "full_finetuning": Setting(False, "only an adapter is trained"),
    "lora_rank": Setting(16, "width of the adapter; rewards carry few bits, a wider one learns no more from them"),
    "lr_scheduler_type": Setting("constant_with_warmup", "a run can be stopped early or made longer"),
    "beta": Setting(0.02, "a light pull towards the base, and it makes the KL curve; 0 measures no KL"),
    "temperature": Setting(1.0, "samples the policy as it is, which is what the loss assumes"),
    "max_grad_norm": Setting(1.0, "cuts the rare huge step"),
    "num_iterations": Setting(1, "each completion is learned from once: always on-policy"),
    "loss_type": Setting("dapo", "TRL's default: every token counts the same, long answers are not diluted"),
    "scale_rewards": Setting("group", "advantages in units of the group's own spread"),
    # TRL's defaults, stated because Unsloth's config on a GPU has others (for an explicit `dapo` 0.28 and True).
    "weight_decay": Setting(0.0, "the KL term holds the policy; the adapter is not pulled towards zero as well"),
    "epsilon_high": Setting(0.2, "clips upwards as far as downwards"),
    "mask_truncated_completions": Setting(False, "a completion cut at the limit is wrong, and that is to be learned"),
    "logging_steps": Setting(1, "every step is in the log and in the saved completions"),
    "logging_nan_inf_filter": Setting(False, "a NaN loss is logged as it is, not as the average of those before it"),
    "save_steps": Setting(50, "a crash costs at most 50 steps"),
    "save_total_limit": Setting(2, "a kill while the last checkpoint is being written leaves the one before"),
    "gradient_checkpointing": Setting(True, "recomputes activations: a fifth slower, and several times less memory"),
    "disable_tqdm": Setting(True, "notebook 03 has its own live view"),
    "ddp_find_unused_parameters": Setting(False, "every weight of an adapter is used; for several processes only"),
}
CPU = {
    "groups_per_batch": Setting(1, "one group at a time, the others accumulate: the least memory"),
    "optim": Setting("adamw_torch", "8-bit optimisers have no CPU kernels, and an adapter's states are small"),
    "load_in_4bit": Setting(True, "the same road as on a GPU: NF4 runs on a CPU too"),
    "fast_inference": Setting(False, "vLLM needs a CUDA card"),
}
T4 = CPU | {
    "optim": Setting("adamw_8bit", "a quarter of AdamW's memory, and the same curve for adapters"),
    "load_in_4bit": Setting(True, "the base takes a quarter of its 16-bit size"),
    "fast_inference": Setting(False, "vLLM's own memory and the training's do not both fit well into 16 GB"),
    "gpu_memory_utilization": Setting(0.4, "if you turn vLLM on: leaves most of the card to training"),
}
AMPERE = T4 | {
    "groups_per_batch": Setting(2, "two groups at a time fit, and keep the card busy"),
    "fast_inference": Setting(True, "vLLM is there: it samples several times faster than plain generation"),
    "gpu_memory_utilization": Setting(0.5, "half of the card for vLLM with the weights, half for training"),
}
LARGE = AMPERE | {
    "groups_per_batch": Setting(4, "four groups at a time fit, and keep the card busy"),
    "load_in_4bit": Setting(False, "16-bit weights fit, are faster, and merging is exact"),
}
PRESETS = {"cpu": CPU, "t4-16gb": T4, "24gb": AMPERE, "80gb": LARGE}
ENOUGH = (("80gb", 75), ("24gb", 22), ("t4-16gb", 0))  # GB; a card reports a little less than its name says
# Why a number type is on or off: the card that is there decides, whatever the preset's name.
PRECISION = {
    ("bf16", True): "the card has bfloat16: the range of 32 bits, no loss scaling",
    ("bf16", False): "there is no CUDA card, or one that only emulates bfloat16 (T4, V100)",
    ("fp16", True): "the 16-bit format that a T4 has",
    ("fp16", False): "bf16 is there, or no CUDA card",
}
STARTER = {
    "max_steps": Setting(80, "the starter policy has learned what it can by then"),
    "learning_rate": Setting(1e-3, "2 million parameters move slowly: a real model would break at this rate"),
    "max_completion_length": Setting(96, "its answers have about 25 tokens"),
    "gradient_checkpointing": Setting(False, "its activations are small: keeping them is faster"),
    "fast_inference": Setting(False, "it is so small that plain generation is done before vLLM has started"),
}
# The rate belongs to what is trained, not to the card: an 80 GB card gets no lower one.
REAL = {
    "max_steps": Setting(250, "a trend is clear after 40 to 50 steps, most of the gain is there by 250"),
    "learning_rate": Setting(1e-5, "GRPO's usual rate for an adapter on any card; 1e-4 and above tends to collapse"),
    "max_completion_length": Setting(512, "room for reasoning; look at the share of cut completions before raising it"),
}
# What some losses need besides their name; see `loss_type` in GRPOConfig's documentation.
NEEDED_BY_LOSS = {
    "dr_grpo": ("scale_rewards", "none", "Dr. GRPO (Liu et al. 2025) takes out the division by the spread"),
    "cispo": ("epsilon_high", 5.0, "CISPO caps the weight itself: 5 in the ScaleRL paper, 0.2 would cap all"),
    "luspo": ("importance_sampling_level", "sequence", "LUSPO is a loss of whole sequences"),
}
FULL = {
    "load_in_4bit": Setting(False, "4-bit weights cannot be trained"),
    "fast_inference": Setting(False, "Unsloth refuses vLLM together with full fine-tuning"),
    "lora_rank": Setting(0, "no adapter: all weights are trained"),
}


@dataclass(frozen=True)
class TrainingPlan:
    """All settings of a run with their reasons; `plan["beta"]` is the value of one."""

    preset: str
    rows: dict[str, Setting]

    def __getitem__(self, name: str) -> Any:
        return self.rows[name].value

    @property
    def settings(self) -> dict[str, Any]:
        """What goes to GRPOConfig."""
        return {name: row.value for name, row in self.rows.items() if name not in NOT_CONFIG_FIELDS}

    @property
    def other_settings(self) -> dict[str, Any]:
        """The fields of GRPOConfig that notebook 03 does not show one by one."""
        return {name: value for name, value in self.settings.items() if name not in NOTEBOOK_FIELDS}

    @property
    def loading(self) -> dict[str, Any]:
        """How the model is loaded: load_in_4bit, lora_rank, full_finetuning."""
        return {name: self[name] for name in LOADER}

    def table(self) -> pd.DataFrame:
        """One row a setting: `value` (as text), `why`, and `from`: preset, model or yours."""
        text = lambda value: f"{value:g}" if isinstance(value, float) else str(value)
        lines = [(name, text(row.value), row.why, row.source) for name, row in self.rows.items()]
        return pd.DataFrame(lines, columns=["setting", "value", "why", "from"]).set_index("setting")


def plan_training(
    preset: str = "auto",
    *,
    starter: bool,
    full_finetuning: bool = False,
    backend: str = "unsloth",
    world_size: int = 1,
    more: Mapping[str, Any] | None = None,
    **yours: Any,
) -> TrainingPlan:
    """The settings of a run by the preset, the model and what you set.

    Args:
        starter: the bundled starter policy is trained, not a real model.
        backend: `unsloth`, or `trl` for plain TRL and PEFT.
        world_size: processes that share a step; each takes its share of the prompts.
        more, yours: any setting of the preset or field of GRPOConfig; None means "by the preset".

    Raises ValueError for an unknown preset, backend or setting, one that is both in `more` and in `yours`, values of
    the wrong type or range, and figures that make no batch.
    """
    if backend not in ("unsloth", "trl"):
        raise InputError(f"There is no backend {backend!r}: the backends are unsloth and trl.")
    for name in yours.keys() & (more or {}).keys():  # one of the two would be dropped
        raise InputError(f"MORE_SETTINGS has {name!r}, which is set already: change it where it is set.")
    yours = {name: value for name, value in {**yours, **(more or {})}.items() if value is not None}
    if problems := list(field_problems(yours, NOT_CONFIG_FIELDS)):
        raise SettingsError(problems)
    name, model = choose_preset(preset), {**REAL, **(STARTER if starter else {}), **(FULL if full_finetuning else {})}
    if full_finetuning:
        yours["full_finetuning"] = True
        rate = model["learning_rate"].value / 10
        model["learning_rate"] = Setting(rate, "every weight moves: about a tenth of an adapter's rate")
    rows = EVERYWHERE | PRESETS[name] | {key: row._replace(source="model") for key, row in model.items()}
    rows |= {key: Setting(value, "set by you", "yours") for key, value in yours.items()}
    if starter:
        why = "all groups as one batch: a model of 2 million parameters has room for it"
        put(rows, "groups_per_batch", rows["prompts_per_step"].value, why, "model")
    follow_the_card(rows, backend)
    if is_yours(rows, "epsilon"):
        put(rows, "epsilon_high", rows["epsilon"].value, "follows epsilon")
    if rows["loss_type"].value in NEEDED_BY_LOSS:
        put(rows, *NEEDED_BY_LOSS[rows["loss_type"].value])
    decide_on_vllm(rows, backend)
    steps = rows["max_steps"].value
    why = "a tenth of the steps, five at most: the optimiser finds its scale"
    put(rows, "warmup_steps", min(5, steps // 10) if steps > 0 else 5, why, "model")
    split_into_batches(rows, world_size)
    return TrainingPlan(name, rows)


def choose_preset(name: str = "auto") -> str:
    """The preset's name; `auto` goes by the smallest visible card, and by whether it has bfloat16."""
    if name not in (*PRESETS, "auto"):
        there = f"the presets are {', '.join(PRESETS)}, or auto"
        raise InputError(f"There is no preset {name!r}: {right_name(name, [*PRESETS, 'auto'], there)}")
    if name != "auto":
        return name
    if not torch.cuda.is_available():
        return "cpu"
    if not precision()["bf16"]:
        return "t4-16gb"  # whatever its size: it is the preset for fp16
    cards = range(torch.cuda.device_count())
    memory = min(torch.cuda.get_device_properties(i).total_memory for i in cards) / 1e9
    return next(preset for preset, least in ENOUGH if memory >= least)


def put(rows: dict[str, Setting], name: str, value: Any, why: str, source: str = "preset") -> None:
    """Sets what was calculated, unless the person has set it."""
    if not is_yours(rows, name):
        rows[name] = Setting(value, why, source)


def is_yours(rows: dict[str, Setting], name: str) -> bool:
    return name in rows and rows[name].source == "yours"


def follow_the_card(rows: dict[str, Setting], backend: str) -> None:
    """Precision and optimiser by the card that is there, not by the preset's name."""
    card = precision()
    wanted = next((name for name in card if is_yours(rows, name) and rows[name].value), None)
    for name, has in card.items():
        put(rows, name, has and not wanted, f"{wanted} was asked for" if wanted else PRECISION[name, has])
    if not any(card.values()):
        put(rows, "optim", *CPU["optim"])
        if backend == "trl":
            put(rows, "use_cpu", True, "plain TRL takes a CPU only when told to")


def decide_on_vllm(rows: dict[str, Setting], backend: str) -> None:
    """vLLM where it is wanted and there; raises ValueError where you asked for it and it is not there."""
    asked = next((name for name in ("fast_inference", "use_vllm") if is_yours(rows, name)), None)
    wanted = rows[asked or "fast_inference"].value
    if asked:
        put(rows, "fast_inference", wanted, f"follows {asked}")
    if wanted and not (torch.cuda.is_available() and importlib.util.find_spec("vllm")):
        if asked:
            raise InputError(f"{asked}=True needs a CUDA card and `pip install vllm`: leave it out.")
        put(rows, "fast_inference", False, "vllm is not installed: plain generation")
    share = rows.pop("gpu_memory_utilization", Setting(0.4, "vLLM's share of the card"))
    if rows["fast_inference"].value:
        rows["gpu_memory_utilization"] = share
        put(rows, "use_vllm", True, "tells the trainer to sample through vLLM")
        why = "vLLM's probabilities differ a little from the trainer's own"  # TRL's default, and not Unsloth's
        put(rows, "vllm_importance_sampling_correction", True, why)
        if backend == "trl":
            put(rows, "vllm_gpu_memory_utilization", share.value, share.why)


def split_into_batches(rows: dict[str, Setting], world_size: int) -> None:
    """The two batch fields of one process from prompts and group size, or what is left of them after your own."""
    group, prompts = rows["num_generations"].value, rows["prompts_per_step"].value
    if prompts % world_size:
        shared = f"cannot be shared by {world_size} processes: take a multiple of {world_size}"
        raise InputError(f"prompts_per_step = {prompts} {shared}.")
    prompts //= world_size
    total = group * prompts
    most = rows.pop("groups_per_batch").value  # from here on the two batch fields say it
    at_once = max(n for n in range(1, prompts + 1) if prompts % n == 0 and n <= most)
    size, steps = (rows[name].value if name in rows else None for name in BATCH)
    size = size or (math.ceil(total / steps) if steps else group * at_once)
    steps = steps or math.ceil(total / size)
    shared = f", in each of {world_size} processes" if world_size > 1 else ""
    put(rows, BATCH[0], size, f"completions at once: {size / group:g} × {group} of a group")
    put(rows, BATCH[1], steps, f"such batches in one update: {size * steps} completions{shared}")
    if size * steps != total and is_yours(rows, "prompts_per_step"):
        asked = f"prompts_per_step = {prompts}{shared} with groups of {group} is {total} completions"
        held = f"{size} × {steps} = {size * steps}"
        raise InputError(f"{asked}, but your batches hold {held}: leave one of the three out.")
    if size * steps != total:  # your batches decide, then, how many prompts there are
        put(rows, "prompts_per_step", size * steps * world_size / group, "what your batches hold")
