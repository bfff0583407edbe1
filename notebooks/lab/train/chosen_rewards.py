"""The reward files: which functions and weights notebook 02 chose, and what an edit of them means for a training.

The functions are those of `rewards.py` and of the person's own file, `my_rewards.py`. This module imports nothing slow:
`check_in_process` starts a process that runs `run_check`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import rewards
from lab.files import Row, read_json, write_json
from rewards import RewardFunction
from scoring.batch import call_as_trl
from scoring.combine import chosen_weights
from scoring.errors import InputError, UserError, error_place

if TYPE_CHECKING:
    from scoring.audit import Audit

MADE_BY = "02_design_rewards"
LIBRARY = Path(rewards.__file__)
LIBRARY_FILE, OWN_FILE = "rewards.py", "my_rewards.py"
FILES = ""  # in place of a reward's name: of the files themselves
CHECK = "import sys; from lab.train.chosen_rewards import run_check; run_check(sys.argv[1])"


def load_current(folder: Path) -> LoadedRewards:
    """The rewards there are to choose from: the library's, and those of `my_rewards.py` in this folder.

    A person's own rewards are what `@reward` made, combinations and variants of library rewards, and plain functions
    in TRL's own signature. One with a library name replaces it. A combination has the name of its variable. Raises
    InputError for a file that cannot be run, two different rewards under one name, or where `@reward` was forgotten.
    """
    return load_sources(folder, current_sources(folder))


def audit_record(found: Audit, loaded: LoadedRewards, weights: dict[str, float]) -> Row:
    """What an audit found, and of which rewards and weights, for `save_choice`."""
    about = {"weights": chosen_weights(weights, loaded.known), "source_sha256": source_hash(loaded.sources)}
    return {"kinds_of_failures": len(found.findings()), **about}


def save_choice(folder: Path, weights: dict[str, float], audited: Row | None = None) -> dict:
    """Writes `rewards.json`: the rewards with a weight other than 0, a hash of their source, and whether they were audited.

    `audit` has `status` (passed, failed or not run) and a sentence, `said`; `audited` is an `audit_record`. One of other
    sources or weights counts as not run. Raises InputError for weights that choose nothing.
    """
    loaded = load_current(folder)
    weights, digest, chosen = chosen_weights(weights, loaded.known), source_hash(loaded.sources), []
    for name, weight in weights.items():
        one = loaded.known[name]
        about = {"range": [one.low, one.high], "columns": one.columns, "decides": bool(one.claims_correctness)}
        chosen.append({"name": name, "weight": weight, **about})
    if not audited or (audited["weights"], audited["source_sha256"]) != (weights, digest):
        status, said = "not run", "The audit was not run for these rewards and weights: run its cell first."
    elif kinds := audited["kinds_of_failures"]:
        status, said = "failed", f"The audit found {kinds} kind{'s' * (kinds > 1)} of failure; saved all the same."
    else:
        status, said = "passed", "The audit holds for these rewards and weights."
    record = {"rewards": chosen, "source_sha256": digest, "audit": {"status": status, "said": said}}
    write_json(folder / "rewards.json", record)
    return record


def load_choice(folder: Path, sources: dict[str, str] | None = None) -> tuple[list[RewardFunction], list[float], dict]:
    """(functions, weights, record) of `rewards.json`; the functions are those of `current_sources`, or of `sources`.

    Each function remembers in `loaded` what it was loaded from: `LiveRewards` compares an edit with that.
    """
    record = read_json(folder / "rewards.json", MADE_BY)
    loaded = load_sources(folder, sources or current_sources(folder))
    if missing := [entry["name"] for entry in record["rewards"] if entry["name"] not in loaded.known]:
        raise InputError(f"rewards.json names {missing[0]!r}, which no file defines any more: run {MADE_BY} again.")
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
        raise InputError(f"{name} is no longer defined; {OWN_FILE} has: {own or 'no reward'}")


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
    """The rewards that a module defines or imports, by metric name; see `load_current`."""
    by_name: dict[str, RewardFunction] = {}
    for name, value in vars(module).items():
        if getattr(value, "unnamed", False):  # a combination
            value.__name__, value.unnamed = name, False
    adopted = [value.function for value in vars(module).values() if isinstance(value, RewardFunction)]
    for name, value in vars(module).items():
        is_own = inspect.isfunction(value) and value.__module__ == module.__name__
        if is_own and not any(value is function for function in adopted):  # else it is there as a reward already
            parameters = inspect.signature(value).parameters
            if name.endswith("_reward") and "completion" in parameters:
                raise InputError(f"{name} is not a reward yet: put @reward on the line above its def.")
            value = rewards.adopt(value) if "completions" in parameters else None
        if isinstance(value, RewardFunction) and by_name.setdefault(value.__name__, value) is not value:
            raise InputError(f"two rewards are called {value.__name__}: rename(reward, 'name') gives one another name.")
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
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except Exception as error:
        place = error_place(error, file=path)
        told = error.msg if isinstance(error, SyntaxError) else str(error)
        way = f"Correct that line{' in the reward cell of notebook 02' * (path.name == OWN_FILE)}, and run its cell again."
        raise InputError(f"{path.name} cannot be run. {type(error).__name__}: {told}\nin {place}\n{way}") from error
    return module


def check_in_process(job: dict[str, Any], time_limit: float) -> dict[str, Row]:
    """Whether edited texts keep the reward contract, for each chosen reward that they change.

    A process of its own finds out: an endless loop or a crash there stops nothing here. It ends, with all that the
    edited file has started, after `time_limit` seconds at the latest.

    Args:
        job: `sources` and `before` (texts by file name), `rewards` (the variable of each by metric name), `folder` (of
            `my_rewards.py`), `columns` (of the data set, or None) and `batch` (see `check_reward`).

    Returns:
        For each changed reward its `error` (or None), `mean` on the batch and number of `failed` completions. Where the
        files cannot be loaded, the `error` of `FILES`.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="rewards-check-") as name:
            folder = Path(name)
            (folder / "rewards.py").write_bytes(IMPORTED.encode("utf-8"))  # for the checker: the file may be broken
            (folder / "job.pickle").write_bytes(pickle.dumps(job))
            write_json(folder / "results.json", {FILES: {"doing": "loading the files"}})
            ended = _run_and_wait(folder, time_limit)
            results = read_json(folder / "results.json", "the check")
            errors = (folder / "errors").read_text(encoding="utf-8", errors="replace").strip()
    except Exception as error:  # a full disk, a column that cannot be pickled: the run is worth more than an edit
        return {FILES: {"error": f"the check cannot be run: {error}"}}
    for result in results.values():
        if doing := result.pop("doing", None):  # the process ended in the middle of it
            result["error"] = f"{doing}: {ended}" + (f" ({errors.splitlines()[-1][:300]})" if errors else "")
    return results


def _run_and_wait(folder: Path, time_limit: float) -> str:
    """Runs the check in a folder, and ends it with all that it started; returns how it ended."""
    path = os.pathsep.join([str(folder), *map(str, sys.path)])  # the edited file imports what it could import here
    where = {"env": {**os.environ, "PYTHONPATH": path}, "start_new_session": True}
    with (folder / "errors").open("wb") as errors:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": errors}
        process = subprocess.Popen([sys.executable, "-c", CHECK, str(folder)], **where, **streams)
    try:
        return f"the process that checks it ended with exit code {process.wait(time_limit)}"
    except subprocess.TimeoutExpired:
        return f"not done after {time_limit:g} s, perhaps an endless loop"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
        process.wait()


def run_check(folder: str) -> None:
    """What the process does: `results.json` says at any moment what is known, and as `doing` what it is at."""
    job = pickle.loads((Path(folder) / "job.pickle").read_bytes())
    results: dict[str, Row] = {}
    try:
        after = load_sources(Path(job["folder"]), job["sources"])
    except BaseException as error:  # sys.exit too
        after, results = None, {FILES: {"error": describe_error(error)}}
    for name, variable in job["rewards"].items() if after else ():
        doing = {name: {"doing": f"checking {name} on the last completions"}}
        write_json(Path(folder) / "results.json", results | doing)
        try:
            function = after.find(name, variable)
            if fingerprint(job["before"], variable) != fingerprint(after.sources, after.variable(function)):
                results[name] = {"error": None, **check_reward(function, job["columns"], job["batch"])}
        except BaseException as error:
            results[name] = {"error": describe_error(error)}
    write_json(Path(folder) / "results.json", results)
    os._exit(0)  # threads or exit handlers of the edited file cannot keep it alive


def check_reward(function: RewardFunction, columns: list[str] | None, batch: dict[str, Any] | None) -> Row:
    """Calls a reward on the last batch (arguments of `call_as_trl`) as TRL called its predecessor."""
    if batch is None:  # nothing is generated yet
        function.check_columns(columns or function.columns)
    scores = [score for score in call_as_trl(function, **batch) if score is not None] if batch else []
    return {"mean": sum(scores) / len(scores) if scores else None, "failed": function.failures}


def describe_error(error: BaseException) -> str:
    """An error in one line, with the line of the edited file that it came from."""
    cause = error.__cause__ or error  # of a RewardError: what its author's code raised
    lines = {Path(frame.filename).name: frame.lineno for frame in traceback.extract_tb(cause.__traceback__)}
    place = next((f" ({file}, line {lines[file]})" for file in (OWN_FILE, LIBRARY_FILE) if file in lines), "")
    is_ours = isinstance(error, UserError) or (isinstance(error, ValueError) and not place)
    place = "" if is_ours else place  # which its message has
    text = str(error) if is_ours else f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return "; ".join(" ".join(line.split()) for line in text.splitlines())[:1000] + place


def fingerprint(sources: dict[str, str], variable: str | None) -> str:
    """A hash of all code that a reward is made of: its definition, and whatever that refers to in the two files.

    Comments, docstrings and layout do not count, nor does code that the reward does not reach. Names are followed
    without regard to scope, so a reward may count as changed for a namesake. One without a variable is made of everything.
    """
    library, own = (read_statements(sources.get(file, "")) for file in (LIBRARY_FILE, OWN_FILE))
    statements = [*library, *own]
    names = [variable] if variable else [name for statement in statements for name in statement.binds]
    todo, reached = [(name, len(statements)) for name in names], set()
    while todo:
        name, end = todo.pop()
        for number, statement in enumerate(statements[:end]):
            if name in statement.binds and number not in reached:
                reached.add(number)  # what the library uses is never in one's own file
                todo += [(used, len(library if number < len(library) else statements)) for used in statement.uses]
    code = "\n".join(statements[number].code for number in sorted(reached) if statements[number].code)
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()


class Statement(NamedTuple):
    """A top-level statement of a file."""

    binds: set[str]  # names that it binds or may change: of `T[i] = 1` T, and of `T.update(a)` T and a
    uses: set[str]  # names, attributes and imported names in it
    code: str  # without comments, docstrings and layout; nothing for an import from the library


@functools.lru_cache(maxsize=8)
def read_statements(text: str) -> list[Statement]:
    tree, statements = ast.parse(text), []
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):  # without docstrings
            is_text = lambda line: isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
            node.body = [line for line in node.body if not is_text(line)]
    for line in tree.body:
        if isinstance(line, ast.If) and "__main__" in ast.dump(line.test):
            continue  # an import does not run it
        if isinstance(line, (ast.Import, ast.ImportFrom)):  # name by name: importing one more changes no reward
            module = getattr(line, "module", None)
            for alias in line.names:
                code = "" if module == "rewards" else f"{module} {ast.dump(alias)}"
                statements.append(Statement(_names(alias), _names(alias), code))
            continue
        binds = _names(line)
        if isinstance(line, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            binds = {line.name}
        elif isinstance(line, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            binds = set().union(*map(_names, getattr(line, "targets", None) or [line.target]))
        statements.append(Statement(binds, _names(line), ast.dump(line)))
    return statements


def _names(tree: ast.AST) -> set[str]:
    """Every name in a piece of code: variables, attributes, definitions, and both names of `import a as b`."""
    keys = ("id", "attr", "name", "asname")
    return {name for node in ast.walk(tree) for key in keys if isinstance(name := getattr(node, key, None), str)}


IMPORTED = read_sources(Path("."))[LIBRARY_FILE]
