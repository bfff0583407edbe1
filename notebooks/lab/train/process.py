"""The training process itself: package versions, memory, identity and random states."""

import contextlib
import os
import platform
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import psutil

from lab.files import Row
from lab.setup import version_of

PACKAGES = "torch transformers trl peft bitsandbytes datasets accelerate unsloth unsloth_zoo vllm".split()


def package_versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version_of(name) or "not installed" for name in PACKAGES}


def peak_memory() -> Row:
    """The most `bytes` held at once, `of` the `card` (torch's tensors; `reserved`: what it claimed for them) or of the
    `process`; None where the system does not say (Windows).
    """
    import torch

    if torch.cuda.is_available():
        return {"of": "card", "bytes": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    try:
        import resource
    except ImportError:
        return {"of": "process", "bytes": None}
    unit = 1 if sys.platform == "darwin" else 1024
    return {"of": "process", "bytes": unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def this_process() -> Row:
    """What tells this process from another one with the same number, on this machine or after its restart."""
    return {"pid": os.getpid(), "host": platform.node(), "began": psutil.Process().create_time()}


def is_running(process: Mapping[str, Any]) -> bool:
    """Whether a process still runs on this machine; `process` is what `this_process` gave in it."""
    try:
        same_start = abs(psutil.Process(int(process["pid"])).create_time() - process["began"]) < 2
        return process["host"] == platform.node() and same_start
    except psutil.AccessDenied:
        return True
    except (psutil.NoSuchProcess, KeyError, TypeError, ValueError):
        return False


def world_size() -> int:
    """How many processes train together, under torchrun or accelerate launch."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextlib.contextmanager
def one_process_first() -> Iterator[bool]:
    """Yields whether this process is the one that writes; the others enter when it is done."""
    if world_size() == 1:
        yield True
        return
    from accelerate import PartialState

    state = PartialState()
    with state.main_process_first():
        yield state.is_main_process


def random_states() -> Row:
    """The state of every random generator that training draws from, as the trainer saves it."""
    import torch

    cpu, cuda = torch.get_rng_state(), torch.cuda.get_rng_state_all()  # without a card an empty list
    return {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": cpu, "cuda": cuda}


def set_random_states(states: Row) -> None:
    import torch

    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["cpu"])
    torch.cuda.set_rng_state_all(states["cuda"])
