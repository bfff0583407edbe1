"""Hands the rewards chosen in notebook 02 to notebook 03: names and weights in `rewards.json`,
the reader's own functions in `my_rewards.py` beside it.

Imports nothing that is slow to import: `lab.train.reward_edits` loads rewards in a process of its own.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import rewards
from lab.files import need, read_json, write_json
from rewards import RewardFunction

MADE_BY = "02_design_rewards"
LIBRARY = Path(rewards.__file__)
LIBRARY_FILE, OWN_FILE = "rewards.py", "my_rewards.py"


def read_source(path: Path) -> str:
    return path.read_bytes().decode("utf-8")  # not read_text, which changes line ends and so the hash


IMPORTED = read_source(LIBRARY)  # the library as this process runs it, whatever its file says later


@contextlib.contextmanager
def in_place_of_rewards(library: ModuleType) -> Iterator[None]:
    """`import rewards` gives this module meanwhile: what was imported before stays what it is."""
    usual, sys.modules["rewards"] = sys.modules["rewards"], library
    try:
        yield
    finally:
        sys.modules["rewards"] = usual


@functools.lru_cache(maxsize=4)
def load_library(text: str, path: Path = LIBRARY) -> ModuleType:
    """The library made of this text, beside the one that is in use: its classes are its own."""
    if text == IMPORTED:
        return rewards
    module = ModuleType("rewards")
    module.__file__ = str(path)
    with in_place_of_rewards(module):
        exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def load_module(path: Path, text: str | None = None, library: ModuleType = rewards) -> ModuleType:
    """The reader's module, read afresh from its file; or from `text`, as if that were in the file."""
    text = read_source(need(path, MADE_BY)) if text is None else text
    spec = importlib.util.spec_from_file_location("my_rewards", path)
    module = importlib.util.module_from_spec(spec)
    with in_place_of_rewards(library):
        exec(compile(text, str(path), "exec"), module.__dict__)  # no stale bytecode
    return module


@dataclass
class Loaded:
    """One version of the two files, and the rewards that came of running them."""

    sources: dict[str, str]  # file name -> text
    modules: dict[str, ModuleType]  # file name -> what it became, the library first
    known: dict[str, RewardFunction]  # by metric name

    @property
    def library(self) -> ModuleType:
        return self.modules[LIBRARY_FILE]

    def place(self, function: RewardFunction) -> tuple[str, str] | None:
        """(file, top-level name) that a reward is bound to; None for one that has no name of its own."""
        for wanted in (function, function.function):  # a plain function was adopted: its name is what there is
            for file, module in self.modules.items():
                for name, value in vars(module).items():
                    if value is wanted:
                        return file, name
        return None

    def find(self, name: str, place: tuple[str, str] | None) -> RewardFunction:
        """The reward of this metric name; else the one that stands at this place, whose options or name are new.

        Raises ValueError where there is neither.
        """
        file, variable = place or (LIBRARY_FILE, "")
        there = getattr(self.modules.get(file), variable, None)
        if name in self.known or isinstance(there, self.library.RewardFunction):
            return self.known.get(name, there)
        own = [other for other, function in self.known.items() if (self.place(function) or "?")[0] == OWN_FILE]
        raise ValueError(f"{name} is no longer defined; {OWN_FILE} defines: {', '.join(own) or 'no reward'}")


def load_sources(folder: Path, sources: dict[str, str], library: Path = LIBRARY) -> Loaded:
    """Runs these texts of `rewards.py` and `my_rewards.py`, whatever the files hold now."""
    modules = {LIBRARY_FILE: load_library(sources[LIBRARY_FILE], library)}
    known = dict(modules[LIBRARY_FILE].REGISTRY)
    if OWN_FILE in sources:
        modules[OWN_FILE] = load_module(folder / OWN_FILE, sources[OWN_FILE], modules[LIBRARY_FILE])
        known |= own_rewards(modules[OWN_FILE], modules[LIBRARY_FILE])
    return Loaded(sources, modules, known)


def sources_now(folder: Path) -> dict[str, str]:
    """The library as it was imported, and the reader's file as it is."""
    path = folder / OWN_FILE
    return {LIBRARY_FILE: IMPORTED} | ({OWN_FILE: read_source(path)} if path.exists() else {})


def known_rewards(folder: Path) -> dict[str, RewardFunction]:
    """Every reward there is to choose from: the library's, and the reader's where there are any.

    The reader's are what `@reward` made, combinations and variants of library rewards, and plain
    functions in TRL's own signature. One with a library name replaces it.

    Raises ValueError for two different rewards under one name, or where `@reward` was forgotten.
    """
    return load_sources(folder, sources_now(folder)).known


def own_rewards(module: ModuleType, library: ModuleType = rewards) -> dict[str, RewardFunction]:
    """The rewards that a module of the reader's defines, by metric name."""
    found: dict[str, RewardFunction] = {}
    adopted = [value.function for value in vars(module).values() if isinstance(value, library.RewardFunction)]
    for name, value in vars(module).items():
        if any(value is function for function in adopted):
            continue  # it is there as a reward already
        if inspect.isfunction(value) and value.__module__ == module.__name__:
            parameters = inspect.signature(value).parameters
            if name.endswith("_reward") and "completion" in parameters:
                raise ValueError(f"{name} is not a reward yet: put @reward on the line above its def.")
            value = library.adopt(value) if "completions" in parameters else None
        if not isinstance(value, library.RewardFunction):
            continue
        if found.get(value.__name__, value) is not value:
            raise ValueError(
                f"two rewards are called {value.__name__}: give one another name with rename(reward, 'name')."
            )
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
            {
                "name": name,
                "weight": weight,
                "range": [known[name].low, known[name].high],
                "columns": known[name].columns,
                "decides": bool(known[name].claims_correctness),
            }
            for name, weight in chosen.items()
        ],
        "source_sha256": source_hash(folder),
    }
    write_json(folder / "rewards.json", record)
    return record


def load_choice(folder: Path, sources: dict[str, str] | None = None) -> tuple[list[RewardFunction], list[float], dict]:
    """(functions, weights, record) of `rewards.json`, the functions as their files are now.

    Each function remembers in `loaded` what it was loaded from: that is what `LiveRewards` compares an edit with.

    Args:
        sources: texts to use instead of the files, by file name: those that a run has kept, to resume it.
    """
    record = read_json(folder / "rewards.json", MADE_BY)
    loaded = load_sources(folder, sources or sources_now(folder))
    missing = [entry["name"] for entry in record["rewards"] if entry["name"] not in loaded.known]
    if missing:
        raise ValueError(f"rewards.json names {missing[0]!r}, which no file defines any more: run {MADE_BY} again.")
    functions = loaded.library.prepare_rewards(loaded.known[entry["name"]] for entry in record["rewards"])
    for function in functions:
        function.loaded = loaded
    digest = text_hash(sources) if sources else source_hash(folder)
    return functions, [entry["weight"] for entry in record["rewards"]], {**record, "source_sha256": digest}


def source_hash(folder: Path) -> str:
    """SHA-256 over rewards.py and my_rewards.py, so that a run says which text it was trained with."""
    paths = [Path(rewards.__file__), folder / OWN_FILE]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths if path.exists())).hexdigest()


def text_hash(sources: dict[str, str]) -> str:
    """The same hash as `source_hash`, over texts by file name."""
    texts = [sources[file].encode("utf-8") for file in (LIBRARY_FILE, OWN_FILE) if file in sources]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()
