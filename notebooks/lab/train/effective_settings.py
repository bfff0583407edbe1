"""What the trainer made of the settings that were asked for."""

import enum
import os
from collections.abc import Mapping
from typing import Any

import pandas as pd

from lab.train.config_fields import trl_defaults

# TRL, transformers and Unsloth fill these in from other fields or from the machine.
# They are no news where nobody asked for them.
FILLED_IN = """output_dir run_name project trackio_static_space_id hub_token disable_tqdm accelerator_config
steps_per_generation generation_batch_size dataloader_pin_memory gradient_checkpointing_kwargs do_eval eval_steps
metric_for_best_model greater_is_better bf16_full_eval fp16_full_eval per_device_eval_batch_size
eval_accumulation_steps""".split()
CHANGED = "changed by the trainer or Unsloth"
ABSENT = "(dropped)"
ALIASES = {"scale_rewards": {True: "group", False: "none"}, "include_num_input_tokens_seen": {True: "all", False: "no"}}


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
    """An enum's value, a path's text, a tuple as a list; also inside of a list or a dictionary."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, Mapping) else value
