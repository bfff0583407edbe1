"""Hands the rewards chosen in notebook 02 to notebook 03: names and weights in `rewards.json`,
the reader's own functions in `my_rewards.py` beside it."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from types import ModuleType

import rewards
from rewards import RewardFunction

from lab.files import need, read_json, write_json

MADE_BY = "02_design_rewards"


def load_module(path: Path) -> ModuleType:
    """The reader's module, read afresh from its file."""
    spec = importlib.util.spec_from_file_location("my_rewards", need(path, MADE_BY))
    module = importlib.util.module_from_spec(spec)
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)  # no stale bytecode
    return module


def known_rewards(folder: Path) -> dict[str, RewardFunction]:
    """Every reward there is to choose from: the library's, and the reader's where there are any.

    A function of the reader's with a library name replaces it.
    """
    found = dict(rewards.REGISTRY)
    path = folder / "my_rewards.py"
    if path.exists():
        own = {name: value for name, value in vars(load_module(path)).items() if isinstance(value, RewardFunction)}
        found |= {value.__name__: value for value in own.values()}
    return found


def save_choice(folder: Path, weights: dict[str, float]) -> dict:
    """Writes `rewards.json`: the rewards with a weight other than 0, and a hash of their source.

    Raises ValueError for a name that no reward has, or where nothing is chosen.
    """
    known = known_rewards(folder)
    unknown = [name for name in weights if name not in known]
    if unknown:
        raise ValueError(f"There is no reward {unknown[0]!r}; the rewards are: {', '.join(known)}.")
    chosen = {name: float(weight) for name, weight in weights.items() if weight}
    if not chosen:
        raise ValueError("Every weight is 0: give at least one reward a weight.")
    record = {
        "rewards": [
            {"name": name, "weight": weight, "range": [known[name].low, known[name].high], "columns": known[name].columns}
            for name, weight in chosen.items()
        ],
        "source_sha256": source_hash(folder),
    }
    write_json(folder / "rewards.json", record)
    return record


def load_choice(folder: Path) -> tuple[list[RewardFunction], list[float], dict]:
    """(functions, weights, record) of `rewards.json`, the functions as their files are now."""
    record = read_json(folder / "rewards.json", MADE_BY)
    known = known_rewards(folder)
    missing = [entry["name"] for entry in record["rewards"] if entry["name"] not in known]
    if missing:
        raise ValueError(f"rewards.json names {missing[0]!r}, which no file defines any more: run {MADE_BY} again.")
    functions = [known[entry["name"]] for entry in record["rewards"]]
    return functions, [entry["weight"] for entry in record["rewards"]], {**record, "source_sha256": source_hash(folder)}


def source_hash(folder: Path) -> str:
    """SHA-256 over rewards.py and my_rewards.py, so that a run says which text it was trained with."""
    paths = [Path(rewards.__file__), folder / "my_rewards.py"]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths if path.exists())).hexdigest()
