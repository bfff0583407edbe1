"""The rewards chosen in notebook 02, for notebook 03: names and weights in `rewards.json`, and their functions.

The functions are those of `rewards.py` and of the person's own file, `my_rewards.py`. This module imports nothing slow:
`lab.train.reward_edits` loads rewards in a process of its own.
"""

import functools
import hashlib
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import rewards
from lab.files import read_json, write_json
from rewards import RewardFunction

MADE_BY = "02_design_rewards"
LIBRARY = Path(rewards.__file__)
LIBRARY_FILE, OWN_FILE = "rewards.py", "my_rewards.py"


def known_rewards(folder: Path) -> dict[str, RewardFunction]:
    """Every reward there is to choose from, by metric name: the library's, and those of `my_rewards.py` in this folder.

    A person's own rewards are what `@reward` made, combinations and variants of library rewards, and plain functions
    in TRL's own signature. One with a library name replaces it. Raises ValueError for two different rewards under one
    name, or where `@reward` was forgotten.
    """
    return load_sources(folder, current_sources(folder)).known


def save_choice(folder: Path, weights: dict[str, float]) -> dict:
    """Writes `rewards.json`: the rewards with a weight other than 0 (ValueError: none), and a hash of their source."""
    sources = current_sources(folder)
    known = load_sources(folder, sources).known
    if unknown := [name for name in weights if name not in known]:
        raise ValueError(f"There is no reward {unknown[0]!r}; the rewards are: {', '.join(known)}.")
    if not any(weights.values()):
        raise ValueError("Every weight is 0: give at least one reward a weight.")
    chosen = []
    for name, weight in weights.items():
        if weight:
            about = {"range": [known[name].low, known[name].high], "columns": known[name].columns}
            decides = bool(known[name].claims_correctness)
            chosen.append({"name": name, "weight": float(weight), **about, "decides": decides})
    record = {"rewards": chosen, "source_sha256": source_hash(sources)}
    write_json(folder / "rewards.json", record)
    return record


def load_choice(folder: Path, sources: dict[str, str] | None = None) -> tuple[list[RewardFunction], list[float], dict]:
    """(functions, weights, record) of `rewards.json`; the functions are those of `current_sources`, or of `sources`.

    Each function remembers in `loaded` what it was loaded from: `LiveRewards` compares an edit with that.
    """
    record = read_json(folder / "rewards.json", MADE_BY)
    loaded = load_sources(folder, sources or current_sources(folder))
    if missing := [entry["name"] for entry in record["rewards"] if entry["name"] not in loaded.known]:
        raise ValueError(f"rewards.json names {missing[0]!r}, which no file defines any more: run {MADE_BY} again.")
    functions = rewards.prepare_rewards(loaded.known[entry["name"]] for entry in record["rewards"])
    for function in functions:
        function.loaded = loaded
    weights = [entry["weight"] for entry in record["rewards"]]
    return functions, weights, {**record, "source_sha256": source_hash(loaded.sources)}


def read_sources(folder: Path) -> dict[str, str]:
    """The texts of `rewards.py` and of `my_rewards.py` in this folder as they are now, by file name."""
    paths = {LIBRARY_FILE: LIBRARY, OWN_FILE: folder / OWN_FILE}
    # not read_text, which changes line ends and so the hash
    return {file: path.read_bytes().decode("utf-8") for file, path in paths.items() if path.exists()}


def current_sources(folder: Path) -> dict[str, str]:
    """The library as this process has imported it, whatever its file says now, and the person's own file as it is."""
    return {**read_sources(folder), LIBRARY_FILE: IMPORTED}


def source_hash(sources: dict[str, str]) -> str:
    """SHA-256 over these texts and over `scoring/`, so that a run says which code its scores came from."""
    scoring = [path.read_bytes() for path in sorted((LIBRARY.parent / "scoring").glob("*.py"))]
    return hashlib.sha256(b"\0".join([*scoring, *(text.encode("utf-8") for text in sources.values())])).hexdigest()


@dataclass
class LoadedRewards:
    """One version of the two files, and the rewards that they define."""

    sources: dict[str, str]  # file name -> text
    modules: list[ModuleType]  # what the files became, the library last
    known: dict[str, RewardFunction]  # by metric name

    def variable(self, function: RewardFunction) -> str | None:
        """The top-level name that a reward is bound to; None for one that has no name of its own."""
        names = {id(value): name for module in reversed(self.modules) for name, value in vars(module).items()}
        return names.get(id(function)) or names.get(id(function.function))  # a plain function that was adopted

    def find(self, name: str, variable: str | None) -> RewardFunction:
        """The reward of this metric name; else the one bound to this variable, whose options or name are new."""
        there = [vars(module).get(variable) for module in self.modules]
        if reward := self.known.get(name) or next((one for one in there if isinstance(one, RewardFunction)), None):
            return reward
        own = ", ".join(rewards_in(self.modules[0])) if len(self.modules) > 1 else ""
        raise ValueError(f"{name} is no longer defined; {OWN_FILE} has: {own or 'no reward'}")


def load_sources(folder: Path, sources: dict[str, str]) -> LoadedRewards:
    """Runs these texts of `rewards.py` and `my_rewards.py`, whatever the files hold now."""
    library = _load_library(sources[LIBRARY_FILE])
    known, modules = rewards_in(library), [library]
    if OWN_FILE in sources:
        sys.modules["rewards"] = library  # what was imported before stays what it is
        try:
            own = _run_text(sources[OWN_FILE], folder / OWN_FILE)
        finally:
            sys.modules["rewards"] = rewards
        known, modules = known | rewards_in(own), [own, library]
    return LoadedRewards(sources, modules, known)


def rewards_in(module: ModuleType) -> dict[str, RewardFunction]:
    """The rewards that a module defines or imports, by metric name; see `known_rewards`."""
    by_name: dict[str, RewardFunction] = {}
    adopted = [value.function for value in vars(module).values() if isinstance(value, RewardFunction)]
    for name, value in vars(module).items():
        is_own = inspect.isfunction(value) and value.__module__ == module.__name__
        if is_own and not any(value is function for function in adopted):  # else it is there as a reward already
            parameters = inspect.signature(value).parameters
            if name.endswith("_reward") and "completion" in parameters:
                raise ValueError(f"{name} is not a reward yet: put @reward on the line above its def.")
            value = rewards.adopt(value) if "completions" in parameters else None
        if isinstance(value, RewardFunction) and by_name.setdefault(value.__name__, value) is not value:
            raise ValueError(f"two rewards are called {value.__name__}: rename(reward, 'name') gives one another name.")
    return by_name


@functools.lru_cache(maxsize=4)
def _load_library(text: str) -> ModuleType:
    """`rewards.py` made of this text, beside the module that is in use and without a trace in its registry."""
    if text == IMPORTED:
        return rewards
    registered = dict(rewards.REGISTRY)
    rewards.REGISTRY.clear()
    try:
        return _run_text(text, LIBRARY)
    finally:
        rewards.REGISTRY.clear()
        rewards.REGISTRY.update(registered)


def _run_text(text: str, path: Path) -> ModuleType:
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


IMPORTED = read_sources(Path("."))[LIBRARY_FILE]
