"""Settings for the machine and the model: what to give GRPOConfig, and why each value is what it is.

Two layers, the second on top of the first. The *hardware* decides the batch's shape, the precision, the
optimiser and how completions are generated; the *model* decides how long and how boldly to train. What a
person sets lies on top of both, and what is calculated from it (batches, warm-up) follows.

    plan(choose_preset(), starter=False, num_generations=4).table()
"""

from __future__ import annotations

import difflib
import importlib.util
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from lab.model.policy import precision

BACKENDS = ("unsloth", "trl")  # who loads the model and patches the trainer; `trl` is plain TRL and PEFT
# Names of a plan that are not fields of GRPOConfig: they go to the loader, or shape the batches.
REST = (
    "load_in_4bit",
    "lora_rank",
    "full_finetuning",
    "prompts_per_step",
    "groups_per_batch",
    "fast_inference",
    "gpu_memory_utilization",
)
BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
# Fields of GRPOConfig that a run sets itself, and from what.
FOR_THE_RUN = {
    "output_dir": "OUTPUTS",
    "reward_weights": "WEIGHTS in notebook 02",
    "report_to": "REPORT_TO",
    "seed": "SEED",
}


class Setting(NamedTuple):
    """A value, the reason for it, and who set it: the preset, the model or you."""

    value: Any
    why: str
    source: str = "preset"


EVERYWHERE = {
    "num_generations": Setting(8, "the group that is compared; fewer than 4 often agree, and teach nothing"),
    "prompts_per_step": Setting(8, "groups in one update: enough that one odd prompt is averaged out"),
    "lora_rank": Setting(16, "width of the adapter; rewards carry few bits, a wider one learns no more from them"),
    "lr_scheduler_type": Setting("constant_with_warmup", "a run can be stopped early or made longer"),
    "beta": Setting(0.02, "a light pull towards the base, and it makes the KL curve; 0 measures no KL"),
    "temperature": Setting(1.0, "samples the policy as it is, which is what the loss assumes"),
    "max_grad_norm": Setting(1.0, "cuts the rare huge step"),
    "num_iterations": Setting(1, "each completion is learned from once: always on-policy"),
    "loss_type": Setting("dapo", "TRL's default: every token counts the same, long answers are not diluted"),
    "scale_rewards": Setting("group", "advantages in units of the group's own spread"),
    # Stated although they are TRL's defaults: Unsloth's config on a GPU has others, for an explicit `dapo` 0.28 and True
    # (tests/test_gpu_check.py looks at all of them).
    "weight_decay": Setting(0.0, "the KL term holds the policy; the adapter is not pulled towards zero as well"),
    "epsilon_high": Setting(0.2, "clips upwards as far as downwards"),
    "mask_truncated_completions": Setting(False, "a completion cut at the limit is wrong, and that is to be learned"),
    "logging_steps": Setting(1, "every step is in the log and in the saved completions"),
    "save_steps": Setting(50, "a crash costs at most 50 steps"),
    "gradient_checkpointing": Setting(True, "recomputes activations: a fifth slower, and several times less memory"),
}
GPU = {
    "optim": Setting("adamw_8bit", "a quarter of AdamW's memory, and the same curve for adapters"),
    "load_in_4bit": Setting(True, "the base takes a quarter of its 16-bit size"),
}
AMPERE = {
    "bf16": Setting(True, "the card has bfloat16: the range of 32 bits, no loss scaling"),
    "fp16": Setting(False, "bf16 is there"),
    "fast_inference": Setting(True, "vLLM is there: it samples several times faster than plain generation"),
}
PRESETS: dict[str, dict[str, Setting]] = {
    "cpu": {
        **EVERYWHERE,
        "groups_per_batch": Setting(1, "one group at a time, the others accumulate: the least memory"),
        "bf16": Setting(False, "most CPUs only emulate bfloat16"),
        "fp16": Setting(False, "a CPU calculates in 32 bits"),
        "optim": Setting("adamw_torch", "8-bit optimisers have no CPU kernels, and an adapter's states are small"),
        "load_in_4bit": Setting(True, "the same road as on a GPU: NF4 runs on a CPU too"),
        "fast_inference": Setting(False, "vLLM needs a CUDA card"),
    },
    "t4-16gb": {
        **EVERYWHERE,
        **GPU,
        "groups_per_batch": Setting(1, "one group at a time, the others accumulate: the least memory"),
        "bf16": Setting(False, "a T4 or V100 only emulates bfloat16"),
        "fp16": Setting(True, "the 16-bit format that a T4 has"),
        "fast_inference": Setting(False, "vLLM's own memory and the training's do not both fit well into 16 GB"),
        "gpu_memory_utilization": Setting(0.4, "if you turn vLLM on: leaves most of the card to training"),
    },
    "24gb": {
        **EVERYWHERE,
        **GPU,
        **AMPERE,
        "groups_per_batch": Setting(2, "two groups at a time fit, and keep the card busy"),
        "gpu_memory_utilization": Setting(0.5, "half of the card for vLLM with the weights, half for training"),
    },
    "80gb": {
        **EVERYWHERE,
        **GPU,
        **AMPERE,
        "groups_per_batch": Setting(4, "four groups at a time fit, and keep the card busy"),
        "load_in_4bit": Setting(False, "16-bit weights fit, are faster, and merging is exact"),
        "gpu_memory_utilization": Setting(0.5, "half of the card for vLLM with the weights, half for training"),
    },
}
ENOUGH = (("80gb", 75), ("24gb", 22), ("t4-16gb", 0))  # GB; a card reports a little less than its name says
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
ALL_GROUPS = "all groups as one batch: a model of 2 million parameters has room for it"


def full_layer(rate: float) -> dict[str, Setting]:
    """What full fine-tuning changes; `rate` is the learning rate that an adapter would get."""
    return {
        "learning_rate": Setting(rate / 10, "every weight moves: about a tenth of an adapter's rate"),
        "load_in_4bit": Setting(False, "4-bit weights cannot be trained"),
        "fast_inference": Setting(False, "Unsloth refuses vLLM together with full fine-tuning"),
        "lora_rank": Setting(0, "no adapter: all weights are trained"),
    }


def vllm_available() -> bool:
    """Whether vLLM can be imported (it is not imported for that) and there is a CUDA card to run it."""
    import torch

    return torch.cuda.is_available() and importlib.util.find_spec("vllm") is not None


def has_tf32() -> bool:
    """NVIDIA cards from Ampere on; transformers raises for tf32=True on any other."""
    import torch

    return bool(torch.cuda.is_available() and torch.version.cuda and torch.cuda.get_device_capability()[0] >= 8)


def nearest(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """ "did you mean X?" for the known name that looks most like this one, or the text for none."""
    found = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {found[0]}?" if found else otherwise


def choose_preset(name: str = "auto") -> str:
    """The preset's name; `auto` goes by the smallest visible card, and by whether it has bfloat16.

    A card between two sizes gets the smaller preset. Raises ValueError for a name that there is not.
    """
    import torch

    if name != "auto":
        if name not in PRESETS:
            there = f"the presets are {', '.join(PRESETS)}, or auto"
            raise ValueError(f"There is no preset {name!r}: {nearest(name, [*PRESETS, 'auto'], there)}")
        return name
    if not torch.cuda.is_available():
        return "cpu"
    if not precision()["bf16"]:
        return "t4-16gb"  # whatever its size: it is the preset for fp16
    cards = range(torch.cuda.device_count())
    memory = min(torch.cuda.get_device_properties(i).total_memory for i in cards) / 1e9
    return next(preset for preset, least in ENOUGH if memory >= least)


@dataclass(frozen=True)
class Plan:
    """All settings of a run with their reasons."""

    preset: str
    rows: dict[str, Setting]

    @property
    def settings(self) -> dict[str, Any]:
        """What goes to GRPOConfig."""
        return {name: row.value for name, row in self.rows.items() if name not in REST}

    @property
    def rest(self) -> dict[str, Any]:
        """What goes to the loader, or only shapes the batches (`REST`)."""
        return {name: row.value for name, row in self.rows.items() if name in REST}

    def table(self) -> pd.DataFrame:
        """One row a setting: `value` (as text), `why`, and `from`: preset, model or yours."""
        lines = {name: (shown(row.value), row.why, row.source) for name, row in self.rows.items()}
        frame = pd.DataFrame.from_dict(lines, orient="index", columns=["value", "why", "from"])
        return frame.rename_axis("setting")


def shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def plan(
    preset: str = "auto",
    *,
    starter: bool,
    full_finetuning: bool = False,
    backend: str = "unsloth",
    world_size: int = 1,
    **overrides: Any,
) -> Plan:
    """The settings of a run by the preset, the model and what you set.

    Args:
        starter: the bundled starter policy is trained, not a real model.
        full_finetuning: train all weights, not an adapter.
        backend: `unsloth`, or `trl` for plain TRL and PEFT.
        world_size: processes that share a step; each takes its share of the prompts.
        overrides: any setting of the preset or field of GRPOConfig; None means "by the preset".

    Raises ValueError for an unknown preset, backend or setting, and for figures that make no batch.
    """
    if backend not in BACKENDS:
        raise ValueError(f"There is no backend {backend!r}: the backends are {' and '.join(BACKENDS)}.")
    name = choose_preset(preset)
    model = {**REAL, **(STARTER if starter else {})}
    model |= full_layer(model["learning_rate"].value) if full_finetuning else {}
    yours = {key: Setting(value, "set by you", "yours") for key, value in overrides.items() if value is not None}
    check_overrides(yours)
    rows = PRESETS[name] | {key: row._replace(source="model") for key, row in model.items()}
    how = ("all weights are trained", "yours") if full_finetuning else ("only an adapter is trained", "preset")
    rows["full_finetuning"] = Setting(full_finetuning, *how)
    rows |= yours
    if starter:
        put(rows, "groups_per_batch", rows["prompts_per_step"].value, ALL_GROUPS, "model")
    for derive in (by_card, by_loss, by_vllm, warmup):
        derive(rows, backend)
    batches(rows, world_size)
    return Plan(name, rows)


def asked_for(more: dict[str, Any], **own: Any) -> dict[str, Any]:
    """What a notebook's parameters ask for, and `more` fields of GRPOConfig.

    Raises ValueError for a field in `more` that has a parameter of its own: one of the two would be dropped.
    """
    for name in more:
        if name in own or name in FOR_THE_RUN:
            parameter = FOR_THE_RUN.get(name, "its own parameter")
            raise ValueError(f"MORE_SETTINGS has {name!r}: it is set by {parameter}, once.")
    return {**own, **more}


def check_overrides(yours: dict[str, Setting]) -> None:
    """Raises ValueError for names that nobody reads, and for counts that are none."""
    known = {*REST, *(key for preset in PRESETS.values() for key in preset), *REAL}
    if not known.issuperset(yours):
        from trl import GRPOConfig  # only now: its fields are many, and unsloth must be imported before it

        known |= set(GRPOConfig.__dataclass_fields__)
    for name in yours.keys() - known:
        names = "look at plan(…).table() for the names."
        raise ValueError(f"There is no setting {name!r}: {nearest(name, known, names)}")
    counts = ("num_generations", "prompts_per_step", "groups_per_batch", *BATCH)
    for name, row in yours.items():
        if name in counts and (not isinstance(row.value, int) or isinstance(row.value, bool) or row.value < 1):
            raise ValueError(f"{name} is {row.value!r}: give a whole number from 1 up.")
        if name == "max_steps" and not isinstance(row.value, int):
            raise ValueError(f"max_steps is {row.value!r}: give a whole number, or -1 to go by num_train_epochs.")


def put(rows: dict[str, Setting], name: str, value: Any, why: str, source: str = "preset") -> None:
    """Sets what was calculated, unless the person has set it."""
    if name not in rows or rows[name].source != "yours":
        rows[name] = Setting(value, why, source)


def by_card(rows: dict[str, Setting], backend: str) -> None:
    """Precision and optimiser by the card that is there, not by the preset's name."""
    card = precision()
    asked = [name for name in ("bf16", "fp16") if rows[name].source == "yours" and rows[name].value]
    for name, has in card.items():
        if asked and name not in asked:
            put(rows, name, False, f"{asked[0]} was asked for")
        elif has != rows[name].value:
            put(rows, name, has, "by the card that is here" if any(card.values()) else "there is no CUDA card here")
    if not any(card.values()):
        cpu = PRESETS["cpu"]["optim"]
        put(rows, "optim", cpu.value, cpu.why)
        if backend == "trl":
            put(rows, "use_cpu", True, "plain TRL takes a CPU only when told to")


def by_loss(rows: dict[str, Setting], backend: str) -> None:
    """What some losses need besides their name; see `loss_type` in GRPOConfig's documentation."""
    if rows.get("epsilon", Setting(0, "")).source == "yours":
        put(rows, "epsilon_high", rows["epsilon"].value, "follows epsilon")
    if rows["loss_type"].value == "dr_grpo":
        put(rows, "scale_rewards", "none", "Dr. GRPO (Liu et al. 2025) takes out the division by the spread")
    if rows["loss_type"].value == "cispo":
        put(rows, "epsilon_high", 5.0, "CISPO caps the weight itself: 5 in the ScaleRL paper, 0.2 would cap all")
    if rows["loss_type"].value == "luspo":
        put(rows, "importance_sampling_level", "sequence", "LUSPO is a loss of whole sequences")


def by_vllm(rows: dict[str, Setting], backend: str) -> None:
    """vLLM where it is wanted and there; raises ValueError where it was asked for and is not."""
    asked = [name for name in ("fast_inference", "use_vllm") if rows.get(name, Setting(0, "")).source == "yours"]
    wanted = rows[asked[0]].value if asked else rows["fast_inference"].value
    if wanted and not vllm_available():
        if asked:
            raise ValueError(f"{asked[0]}=True needs a CUDA card and `pip install vllm`: leave it out.")
        put(rows, "fast_inference", False, "vllm is not installed: plain generation")
    elif asked:
        put(rows, "fast_inference", wanted, f"follows {asked[0]}")
    share = rows.get("gpu_memory_utilization", Setting(0.4, "vLLM's share of the card"))
    if not rows["fast_inference"].value:
        rows.pop("gpu_memory_utilization", None)
        return
    put(rows, "use_vllm", True, "tells the trainer to sample through vLLM")
    # TRL's default, and not Unsloth's
    put(
        rows, "vllm_importance_sampling_correction", True, "vLLM's probabilities differ a little from the trainer's own"
    )
    if backend == "trl":
        put(rows, "vllm_gpu_memory_utilization", share.value, share.why)


def batches(rows: dict[str, Setting], world_size: int) -> None:
    """The two batch fields of one process from prompts and group size, or what is left of them after your own."""
    group, prompts = rows["num_generations"].value, rows["prompts_per_step"].value
    if prompts % world_size:
        raise ValueError(
            f"prompts_per_step = {prompts} cannot be shared by {world_size} processes: take a multiple of {world_size}."
        )
    prompts //= world_size
    total = group * prompts
    at_once = max(n for n in range(1, prompts + 1) if prompts % n == 0 and n <= rows["groups_per_batch"].value)
    given = rows.get("per_device_train_batch_size"), rows.get("gradient_accumulation_steps")
    size = given[0].value if given[0] else math.ceil(total / given[1].value) if given[1] else group * at_once
    steps = given[1].value if given[1] else math.ceil(total / size)
    put(rows, "per_device_train_batch_size", size, f"completions at once: {size / group:g} × {group} of a group")
    shared = f", in each of {world_size} processes" if world_size > 1 else ""
    put(rows, "gradient_accumulation_steps", steps, f"such batches in one update: {size * steps} completions{shared}")
    if size * steps != total and rows["prompts_per_step"].source == "yours":
        raise ValueError(
            f"prompts_per_step = {prompts}{shared} with groups of {group} is {total} completions, but your batches hold "
            f"{size} × {steps} = {size * steps}: leave one of the three out."
        )
    if size * steps != total:  # your batches decide, then, how many prompts there are
        put(rows, "prompts_per_step", size * steps * world_size / group, "what your batches hold")
    if rows["groups_per_batch"].source != "yours":
        at_once = size / group if size % group else size // group
        rows["groups_per_batch"] = rows["groups_per_batch"]._replace(value=at_once)


def warmup(rows: dict[str, Setting], backend: str) -> None:
    steps = rows["max_steps"].value
    value = min(5, steps // 10) if steps > 0 else 5
    put(rows, "warmup_steps", value, "a tenth of the steps, five at most: the optimiser finds its scale", "model")
