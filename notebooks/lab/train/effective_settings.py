"""What the trainer made of the settings that were asked for."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import pandas as pd

from lab.train.settings_check import default_of, plain, pristine

# TRL and transformers fill these in from other fields or from the machine: no news where nobody asked for them.
FILLED_IN = (
    "output_dir",
    "steps_per_generation",
    "generation_batch_size",
    "accelerator_config",
    "disable_tqdm",
    "dataloader_pin_memory",
    "do_eval",
    "eval_steps",
    "metric_for_best_model",
    "greater_is_better",
    "hub_token",
    "run_name",
    "project",
    "trackio_static_space_id",  # for the trackers
    "gradient_checkpointing_kwargs",
    "bf16_full_eval",
    "fp16_full_eval",  # follow what was asked for, by Unsloth
    "per_device_eval_batch_size",
    "eval_accumulation_steps",  # nothing is evaluated by the trainer here
)
CHANGED = "changed by the trainer or Unsloth"
ABSENT = "(dropped)"


def same(name: str, one: Any, other: Any) -> bool:
    """Whether two values of a field mean the same; the aliases are those of GRPOConfig and TrainingArguments."""
    if name in ("report_to", "debug"):  # "none" and [], "wandb" and ["wandb"]
        nothing = (None, "none", ["none"], "")
        one, other = ([] if x in nothing else x.split() if type(x) is str else x for x in (one, other))
    if name == "scale_rewards":
        one, other = ({True: "group", False: "none"}.get(x, x) for x in (one, other))
    if name == "include_num_input_tokens_seen":
        one, other = ({True: "all", False: "no"}.get(x, x) for x in (one, other))
    if name.endswith("_dir") and one and other:
        one, other = (os.path.expanduser(os.fspath(x)) for x in (one, other))
    return plain(one) == plain(other)


def effective_settings(requested: Mapping[str, Any], args: Any) -> pd.DataFrame:
    """What was asked for beside what the trainer has, after it was made; call it with `trainer.args`.

    One row for each requested field, then one for each that nobody requested and that is not TRL's own default.
    Columns: requested, effective, TRL's default, and `changed`, which is empty where the two mean the same.
    """
    # From the class's own dataclass fields, not from an instance: making a second config after the trainer
    # would reset the Accelerator's shared state under it.
    defaults = {field.name: default_of(field) for field in dataclasses.fields(pristine(type(args)))}
    defaults["bf16"] = not getattr(args, "fp16", False)  # TRL's own None means that
    asked = {name: value for name, value in requested.items() if value is not None}
    rows = {}
    for name, value in asked.items():
        has = getattr(args, name, ABSENT)
        changed = "" if same(name, value, has) else CHANGED
        rows[name] = (*(("(hidden)",) * 2 if name == "hub_token" else (value, has)), defaults.get(name, "–"), changed)
    for name, default in defaults.items():
        has = getattr(args, name, default)
        if name not in asked and name not in FILLED_IN and not same(name, default, has):
            rows[name] = ("–", has, default, CHANGED)
    columns = ["requested", "effective", "TRL's default", "changed"]
    frame = pd.DataFrame.from_dict({name: map(str, map(plain, row)) for name, row in rows.items()}, orient="index")
    return frame.set_axis(columns, axis=1).rename_axis("setting") if rows else pd.DataFrame(columns=columns)
