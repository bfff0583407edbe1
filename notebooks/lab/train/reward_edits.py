"""What an edit of the reward files means: which rewards it changes, and whether their new versions can be trained with.

`lab.train.live_rewards` asks while a run goes on: `fingerprint` in the training's process, `check_edit` in one of its own, so
that this module imports nothing that is slow to import.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import math
import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lab.files import write_json
from lab.train.chosen_rewards import LIBRARY_FILE, OWN_FILE, load_sources
from rewards import RewardFunction


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
        return {"error": edits_in_words(error, paths), "rewards": {}}
    found: dict[str, Any] = {}
    for name, place in job["rewards"].items():
        stage(name)
        try:
            function = after.find(name, place)
            same = fingerprint(job["before"], place) == fingerprint(after.sources, after.place(function))
            found[name] = None if same else {"error": None, **check_reward(function, job["columns"], job["batch"])}
        except BaseException as error:
            found[name] = {"error": edits_in_words(error, paths), "mean": None, "failed": 0}
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


def edits_in_words(error: BaseException, paths: dict[str, str]) -> str:
    """An error in one line, with the line of the edited file that it came from."""
    ours = type(error).__module__ == "rewards"  # a RewardError: its cause is what the reader wrote
    cause = error.__cause__ or error
    frames = traceback.extract_tb(cause.__traceback__) if cause is not error or not ours else []
    frames = [(file, frame) for file, path in paths.items() for frame in reversed(frames) if frame.filename == path]
    lines = [f" ({file}, line {frame.lineno})" for file, frame in frames]
    plain = ours or isinstance(error, ValueError) and not lines  # this module's own words
    text = str(error) if plain else f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(text.split())[:1000] + (lines[0] if lines else "")
