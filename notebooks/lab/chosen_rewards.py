"""Hands the rewards chosen in notebook 02 to notebook 03: names and weights in `rewards.json`,
the reader's own functions in `my_rewards.py` beside it.

While a run goes on, `lab.live_rewards` asks here what an edit of these files means: which rewards it changes
(`fingerprint`), and whether their new versions can be trained with (`check_edit`, in a process of its own, so that
this module imports nothing that is slow to import).
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import math
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import rewards
from rewards import RewardFunction

from lab.files import need, read_json, write_json

MADE_BY = "02_design_rewards"
LIBRARY = Path(rewards.__file__)
LIBRARY_FILE, OWN_FILE = "rewards.py", "my_rewards.py"


def read_source(path: Path) -> str:
    return path.read_bytes().decode("utf-8")  # not read_text, which changes line ends and so the hash


IMPORTED = read_source(LIBRARY)  # the library as this process runs it, whatever its file says later


# --------------------------------------------------------------------------- loading


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
            raise ValueError(f"two rewards are called {value.__name__}: give one another name with rename(reward, 'name').")
        found[value.__name__] = value
    return found


# --------------------------------------------------------------------------- choosing


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


# --------------------------------------------------------------------------- what an edit changes


def fingerprint(sources: dict[str, str], place: tuple[str, str] | None) -> str:
    """A hash of all code that a reward is made of: its definition, and whatever of both files that refers to.

    Comments, docstrings and layout do not count, nor does code that the reward does not reach. Other modules
    and data files that a reward reads are not seen. A reward without a place is made of everything.
    """
    files = {file: definitions(text) for file, text in sources.items()}
    everything = [(file, name) for file, here in files.items() for name in here.binds]
    todo, found = [place] if place else everything, set()
    while todo:
        file, name = todo.pop()
        here = files.get(file)
        for number in here.binds.get(name, ()) if here else ():
            if (file, number) in found:
                continue
            found.add((file, number))
            for used, attribute in here.uses(number):
                todo.append((file, used))
                todo += here.in_library(used, attribute, files[LIBRARY_FILE]) if file == OWN_FILE else ()
    told = (f"{file}: {files[file].says(number)}" for file, number in sorted(found))
    return hashlib.sha256("\n".join(told).encode("utf-8", "surrogatepass")).hexdigest()


@functools.lru_cache(maxsize=8)
def definitions(text: str) -> Definitions:
    return Definitions(text)


class Definitions:
    """The top-level statements of a file, by the names that each binds or changes."""

    def __init__(self, text: str) -> None:
        tree = without_docstrings(ast.parse(text))
        self.statements = list(one_by_one(tree.body))
        self.uses = functools.cache(lambda number: set(names_used(self.statements[number])))
        self.says = functools.cache(lambda number: ast.dump(self.statements[number]))
        self.binds: dict[str, list[int]] = {}
        for number, statement in enumerate(self.statements):
            for name in names_bound(statement):
                self.binds.setdefault(name, []).append(number)
        self.imported: dict[str, str] = {}  # name here -> name in the library
        self.aliases: set[str] = set()  # names of the library itself
        for node in ast.walk(tree):  # inside functions too: a late import is a reference as well
            if isinstance(node, ast.ImportFrom) and node.module == "rewards":
                self.imported |= {alias.asname or alias.name: alias.name for alias in node.names}
            elif isinstance(node, ast.Import):
                self.aliases |= {alias.asname or alias.name for alias in node.names if alias.name == "rewards"}

    def in_library(self, name: str, attribute: str | None, library: Definitions) -> list[tuple[str, str]]:
        """What a name of the reader's file means in the library, if anything."""
        if name in self.imported:
            return [(LIBRARY_FILE, self.imported[name])]
        if name in self.aliases:  # rewards.x is x; the bare module may be asked for anything
            return [(LIBRARY_FILE, attribute)] if attribute else [(LIBRARY_FILE, other) for other in library.binds]
        return [(LIBRARY_FILE, name)] if "*" in self.imported and name not in self.binds else []


def without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):
            node.body = [line for line in node.body if not is_text(line)]
    return tree


def is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def one_by_one(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, each imported name by itself: importing one more name changes no reward."""
    for line in body:
        if isinstance(line, ast.ImportFrom):
            yield from (ast.ImportFrom(line.module, [alias], line.level) for alias in line.names)
        elif isinstance(line, ast.Import):
            yield from (ast.Import([alias]) for alias in line.names)
        elif not (isinstance(line, ast.If) and "__main__" in ast.dump(line.test)):  # which an import does not run
            yield line


def names_bound(node: ast.AST) -> set[str]:
    """The top-level names that a statement binds, or changes by `name[…] = …`, `name.x = …` or `name.method(…)`."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.alias):
        return {node.asname or node.name.partition(".")[0]}
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Store) else set()
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return {root_name(node.value.func)} - {None}
    found = set().union(*map(names_bound, ast.iter_child_nodes(node))) if not isinstance(node, ast.Lambda) else set()
    if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store):
        found |= {root_name(node)} - {None}
    return found


def root_name(node: ast.AST) -> str | None:
    """`a` of `a.b[c].d`; None for a bare name, which a call does not change, and for what is no such chain."""
    inside = node
    while isinstance(inside, (ast.Attribute, ast.Subscript)):
        inside = inside.value
    return inside.id if isinstance(inside, ast.Name) and inside is not node else None


def names_used(node: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Every (name, attribute) that a statement refers to; the attribute is None for a bare name."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield node.value.id, node.attr
    elif isinstance(node, ast.Name):
        yield node.id, None
    else:
        for child in ast.iter_child_nodes(node):
            yield from names_used(child)


# --------------------------------------------------------------------------- whether an edit can be trained with


def run_check(folder: Path) -> None:
    """What the checking process does: the job in `folder` is answered by `result.json`; `stage` says how far it is.

    It ends hard: threads or exit handlers of the edited file cannot keep it alive.
    """
    job = pickle.loads((folder / "job.pickle").read_bytes())
    result = check_edit(job, lambda name: (folder / "stage").write_text(name, encoding="utf-8"))
    write_json(folder / "result.json", result)
    os._exit(0)


def check_edit(job: dict[str, Any], stage: Callable[[str], Any]) -> dict[str, Any]:
    """Whether the new texts hold the contract, for each chosen reward that they change.

    Args:
        job: `sources` and `before` (texts by file name), `rewards` (the place of each by metric name), `folder`,
            `library` (paths), `columns` (of the data set, or None) and `batch` (see `unpickled`, or None).
        stage: told the name of the reward that is next.

    Returns:
        `error`: why the files cannot be loaded, or None; `rewards`: for each chosen reward None where it is
        unchanged, else its `error` (or None), `mean` on the batch and number of `failed` completions.
    """
    paths = {OWN_FILE: str(Path(job["folder"]) / OWN_FILE), LIBRARY_FILE: str(job["library"])}
    try:
        after = load_sources(Path(job["folder"]), job["sources"], Path(job["library"]))
    except BaseException as error:  # sys.exit too
        return {"error": told(error, paths), "rewards": {}}
    found: dict[str, Any] = {}
    for name, place in job["rewards"].items():
        stage(name)
        try:
            function = after.find(name, place)
            same = fingerprint(job["before"], place) == fingerprint(after.sources, after.place(function))
            found[name] = None if same else {"error": None, **check_reward(function, job["columns"], job["batch"])}
        except BaseException as error:
            found[name] = {"error": told(error, paths), "mean": None, "failed": 0}
    return {"error": None, "rewards": found}


def check_reward(function: RewardFunction, columns: list[str] | None, batch: dict[str, bytes] | None) -> dict[str, Any]:
    """Calls a reward as TRL called its predecessor. Raises whatever is wrong with it; returns its mean."""
    if columns is not None:
        function.check_columns(columns)
    if batch is None:
        return {"mean": None, "failed": 0}
    call = unpickled(batch)
    state = SimpleNamespace(**call.pop("trainer_state"))
    scores = function(trainer_state=state, log_extra=lambda *_: None, log_metric=lambda *_: None, **call)
    n = len(call["completions"])
    if len(scores) != n:
        raise ValueError(f"{function.__name__} returned {len(scores)} scores for {n} completions")
    known = [score for score in scores if score is not None]
    low, high = function.low, function.high  # it checks this itself, unless that is what was edited
    wrong = [score for score in known if not (math.isfinite(score) and low <= score <= high)]
    if wrong:
        raise ValueError(f"{function.__name__} returned {wrong[0]!r}: not a finite number in [{low:g}, {high:g}]")
    return {"mean": sum(known) / len(known) if known else None, "failed": function.failures}


def unpickled(batch: dict[str, bytes]) -> dict[str, Any]:
    """The arguments of a call. A column of a class that only the notebook knows is left out."""
    found = {}
    for name, kept in batch.items():
        with contextlib.suppress(AttributeError, ImportError):
            found[name] = pickle.loads(kept)
    return found


def told(error: BaseException, paths: dict[str, str]) -> str:
    """An error in one line, with the line of the edited file that it came from."""
    ours = type(error).__module__ == "rewards"  # a RewardError: its cause is what the reader wrote
    cause = error.__cause__ or error
    frames = traceback.extract_tb(cause.__traceback__) if cause is not error or not ours else []
    frames = [(file, frame) for file, path in paths.items() for frame in reversed(frames) if frame.filename == path]
    lines = [f" ({file}, line {frame.lineno})" for file, frame in frames]
    plain = ours or isinstance(error, ValueError) and not lines  # this module's own words
    text = str(error) if plain else f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(text.split())[:1000] + (lines[0] if lines else "")
