"""REPORT_TO: TensorBoard, Trackio and W&B write beside our own files, and need no network.

Trackio keeps its own place, which TRACKIO_DIR names: it reads that when it is imported, and TRL imports it.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.files import relative

TRACKERS = ("tensorboard", "trackio", "wandb")
PROJECT = "grpo"
SHOW = {
    "tensorboard": "tensorboard --logdir {folder}",
    "trackio": f"trackio show --project {PROJECT}",
    "wandb": "wandb sync {folder}/wandb/offline-run-*",
}
SET: dict[str, str] = {}  # variables that were set here


def asked_for(report_to: str | Sequence[str] | None) -> list[str]:
    """The trackers that `report_to` names; "all" is all that are installed."""
    names = [report_to] if isinstance(report_to, str) else list(report_to or [])
    if "all" in names:
        return [name for name in TRACKERS if importlib.util.find_spec(name)]
    return [name for name in names if name != "none"]


def not_installed(report_to: str | Sequence[str] | None) -> Iterator[str]:
    """What is wrong with `report_to`, in a sentence each."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for name in asked_for(report_to):
        if name not in INTEGRATION_TO_CALLBACK:
            yield f"report_to asks for {name!r}, which transformers does not know: give one or a list of {', '.join(TRACKERS)}."
        if name in TRACKERS and not importlib.util.find_spec(name):
            yield f'report_to asks for {name}, which is not installed: pip install {name}, or REPORT_TO = "none".'


def prepare(arguments: Any, folder: Path, run_name: str) -> list[str]:
    """Names the run for the trackers that `arguments` asks for, and has TensorBoard and W&B write under `folder`.

    To be called before the trainer is made, whose callbacks read the environment; a variable that the reader has
    set stays. W&B is offline unless WANDB_MODE says otherwise. Returns for each tracker the command that shows it.
    """
    names = asked_for(arguments.report_to)
    if names:
        arguments.run_name, arguments.project = run_name, PROJECT
        arguments.trackio_static_space_id = False  # it would publish a copy with a model that is pushed to the Hub
    for name in names:
        for variable, value in environment(name, folder, run_name).items():
            if os.environ.get(variable) == SET.get(variable):  # not set, or by an earlier run in this kernel
                os.environ[variable] = SET[variable] = value
        if name == "wandb":
            (folder / name).mkdir(parents=True, exist_ok=True)  # it would write elsewhere
    return [SHOW[name].format(folder=relative(folder / name)) for name in names if name in SHOW]


def environment(name: str, folder: Path, run_name: str) -> dict[str, str]:
    """The variables by which a tracker learns where to write."""
    return {
        "tensorboard": {"TENSORBOARD_LOGGING_DIR": str(folder / name / run_name)},
        "wandb": {"WANDB_DIR": str(folder / name), "WANDB_PROJECT": PROJECT, "WANDB_MODE": "offline"},
    }.get(name, {})
