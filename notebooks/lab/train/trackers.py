"""REPORT_TO: TensorBoard, Trackio and W&B write beside our own files, and need no network."""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.files import relative

PROJECT = "grpo"
# For each tracker the command that shows its runs.
SHOW_COMMANDS = {
    "tensorboard": "tensorboard --logdir {folder}",
    "trackio": f"trackio show --project {PROJECT}",  # it keeps a place of its own, which TRACKIO_DIR names
    "wandb": "wandb sync {folder}/wandb/offline-run-*",
}
SET_HERE: dict[str, str] = {}  # variables that were set here


def tracker_names(report_to: str | Sequence[str] | None) -> list[str]:
    """The trackers that `report_to` names; "all" is all that are installed."""
    names = [report_to] if isinstance(report_to, str) else list(report_to or [])
    if "all" in names:
        return [name for name in SHOW_COMMANDS if importlib.util.find_spec(name)]
    return [name for name in names if name != "none"]


def tracker_problems(report_to: str | Sequence[str] | None) -> Iterator[str]:
    """What is wrong with `report_to`, in a sentence each."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for name in tracker_names(report_to):
        if name not in INTEGRATION_TO_CALLBACK:
            known = f"give one or a list of {', '.join(SHOW_COMMANDS)}"
            yield f"report_to asks for {name!r}, which transformers does not know: {known}."
        if name in SHOW_COMMANDS and not importlib.util.find_spec(name):
            yield f'report_to asks for {name}, which is not installed: pip install {name}, or REPORT_TO = "none".'


def prepare_trackers(arguments: Any, folder: Path, run_name: str) -> list[str]:
    """Names the run for the trackers that `arguments` asks for, and has TensorBoard and W&B write under `folder`.

    Call it before the trainer is made, whose callbacks read the environment. A variable that you have set stays. W&B is
    offline unless WANDB_MODE says otherwise. Returns for each tracker the command that shows it.
    """
    names = tracker_names(arguments.report_to)
    variables = {}
    if names:
        arguments.run_name, arguments.project = run_name, PROJECT
        arguments.trackio_static_space_id = False  # it would publish a copy with a model that is pushed to the Hub
    if "tensorboard" in names:
        variables["TENSORBOARD_LOGGING_DIR"] = str(folder / "tensorboard" / run_name)
    if "wandb" in names:
        (folder / "wandb").mkdir(parents=True, exist_ok=True)  # it would write elsewhere
        variables |= {"WANDB_DIR": str(folder / "wandb"), "WANDB_PROJECT": PROJECT, "WANDB_MODE": "offline"}
    for variable, value in variables.items():
        if os.environ.get(variable) == SET_HERE.get(variable):  # not set, or by an earlier run in this kernel
            os.environ[variable] = SET_HERE[variable] = value
    return [SHOW_COMMANDS[name].format(folder=relative(folder / name)) for name in names if name in SHOW_COMMANDS]
