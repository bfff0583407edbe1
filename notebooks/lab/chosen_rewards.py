"""Hands the rewards chosen in notebook 02 to notebook 03: names and weights in `rewards.json`,
the reader's own functions in `my_rewards.py` beside it."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import rewards
from rewards import RewardFunction, adopt, prepare_rewards

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

    The reader's are what `@reward` made, combinations and variants of library rewards, and plain
    functions in TRL's own signature. One with a library name replaces it.

    Raises ValueError for two different rewards under one name, or where `@reward` was forgotten.
    """
    found = dict(rewards.REGISTRY)
    path = folder / "my_rewards.py"
    return found | (own_rewards(load_module(path)) if path.exists() else {})


def own_rewards(module: ModuleType) -> dict[str, RewardFunction]:
    """The rewards that a module of the reader's defines, by metric name."""
    found: dict[str, RewardFunction] = {}
    adopted = [value.function for value in vars(module).values() if isinstance(value, RewardFunction)]
    for name, value in vars(module).items():
        if any(value is function for function in adopted):
            continue  # it is there as a reward already
        if inspect.isfunction(value) and value.__module__ == module.__name__:
            parameters = inspect.signature(value).parameters
            if name.endswith("_reward") and "completion" in parameters:
                raise ValueError(f"{name} is not a reward yet: put @reward on the line above its def.")
            value = adopt(value) if "completions" in parameters else None
        if not isinstance(value, RewardFunction):
            continue
        if found.get(value.__name__, value) is not value:
            raise ValueError(f"two rewards are called {value.__name__}: give one another name with rename(reward, 'name').")
        found[value.__name__] = value
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
    functions = prepare_rewards(known[entry["name"]] for entry in record["rewards"])
    return functions, [entry["weight"] for entry in record["rewards"]], {**record, "source_sha256": source_hash(folder)}


def source_hash(folder: Path) -> str:
    """SHA-256 over rewards.py and my_rewards.py, so that a run says which text it was trained with."""
    paths = [Path(rewards.__file__), folder / "my_rewards.py"]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths if path.exists())).hexdigest()
