"""The training process itself: package versions, memory, random states, what rewards print."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.files import Row

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "bitsandbytes",
    "datasets",
    "accelerate",
    "unsloth",
    "unsloth_zoo",
    "vllm",
)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def effective_arguments(config: Any) -> Row:
    """The configuration as the trainer has it now, which is not always what was asked for."""
    return {name: value for name, value in config.to_dict().items() if "token" not in name or "tokens" in name}


def peak_memory() -> Row:
    """The most memory this process held at once, in `bytes`, and what of: the `card` (torch's tensors on it, and what torch
    has `reserved` for them), or the `process` where there is none. Where the system does not say, bytes is None."""
    import torch

    if torch.cuda.is_available():
        return {"of": "card", "bytes": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    try:
        import resource  # Windows has none
    except ImportError:
        return {"of": "process", "bytes": None}
    unit = 1 if sys.platform == "darwin" else 1024
    return {"of": "process", "bytes": unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def processes() -> int:
    """How many processes train together: more than one under torchrun or accelerate launch."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def random_states() -> Row:
    """The state of every random generator that training draws from, as the trainer saves it."""
    import torch

    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    return {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_states(states: Row) -> None:
    import torch

    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["cpu"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state_all(states["cuda"])


@contextlib.contextmanager
def one_process_first() -> Iterator[bool]:
    """Yields whether this process is the one that writes; the others enter when it is done."""
    if processes() == 1:
        yield True
        return
    from accelerate import PartialState

    state = PartialState()
    with state.main_process_first():
        yield state.is_main_process


class Printed:
    """Standard output that keeps the beginning of what is printed, and is otherwise what it was."""

    def __init__(self) -> None:
        self.kept, self.left_out, self.out = "", 0, sys.stdout

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        self.out = self.out if sys.stdout is self else sys.stdout  # a notebook's own, another one in every cell
        with contextlib.redirect_stdout(self):
            yield

    def __getattr__(self, name: str) -> Any:
        return getattr(self.out, name)

    def write(self, text: str) -> int:
        room = PRINTED - len(self.kept)
        self.kept, self.left_out = self.kept + text[:room], self.left_out + len(text[room:])
        return self.out.write(text)

    def taken(self) -> str:
        """What was kept since the last call."""
        text = self.kept + (f"\n… and {self.left_out:,} characters more" if self.left_out else "")
        self.kept, self.left_out = "", 0
        return text


PRINTED = 20_000  # characters of what rewards print in a step are kept
