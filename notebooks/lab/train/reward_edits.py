"""What an edit of a reward file means: which rewards it changes, and whether their new versions can be trained with.

`check_in_process` starts a process that runs `check_edit`, so this module imports nothing slow.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lab.files import read_json, write_json
from lab.train.chosen_rewards import IMPORTED, LIBRARY_FILE, OWN_FILE, load_sources
from rewards import RewardError, RewardFunction
from scoring.trl_call import call_as_trl

CHECK = "import sys; from lab.train.reward_edits import run_check; run_check(sys.argv[1])"


def check_in_process(job: dict[str, Any], time_limit: float) -> dict[str, Any]:
    """What `check_edit` says of a job, run in a process of its own: an endless loop or a crash there stops nothing here.

    The process, and all that the edited file has started, ends after `time_limit` seconds at the latest.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="rewards-check-") as name:
            folder = Path(name)
            (folder / "rewards.py").write_bytes(IMPORTED.encode("utf-8"))  # for the checker: the file may be broken
            (folder / "job.pickle").write_bytes(pickle.dumps(job))
            ended = _run_and_wait(folder, time_limit)
            if (folder / "result.json").exists():
                return read_json(folder / "result.json", "the check")
            stage, errors = folder / "stage", (folder / "errors").read_text(encoding="utf-8", errors="replace")
            reward = stage.read_text(encoding="utf-8") if stage.exists() else None
    except OSError as error:
        return {"error": f"the check cannot be run: {error}", "rewards": {}}
    last = errors.strip().rpartition("\n")[2][:300]
    what = f"checking {reward} on the last completions" if reward else "loading the files"
    text = f"{what}: {ended}" + (f" ({last})" if last else "")
    return {"error": None, "rewards": {reward: {"error": text}}} if reward else {"error": text, "rewards": {}}


def _run_and_wait(folder: Path, time_limit: float) -> str:
    """Runs the check in a folder, and ends it with all that it started; returns how it ended."""
    # the edited file imports what it could import here
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *map(str, sys.path)])}
    with (folder / "errors").open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-c", CHECK, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=sink,
            start_new_session=True,
            env=environment,
        )
    try:
        return f"the process that checks it ended with exit code {process.wait(time_limit)}"
    except subprocess.TimeoutExpired:
        return f"not done after {time_limit:g} s, perhaps an endless loop"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()


def run_check(folder: str) -> None:
    """What the process does: it writes `result.json` for the job in the folder. `stage` names the reward it is at.

    It ends hard: threads or exit handlers of the edited file cannot keep it alive.
    """
    job = pickle.loads((Path(folder) / "job.pickle").read_bytes())
    result = check_edit(job, lambda name: (Path(folder) / "stage").write_text(name, encoding="utf-8"))
    write_json(Path(folder) / "result.json", result)
    os._exit(0)


def check_edit(job: dict[str, Any], report_stage: Callable[[str], Any]) -> dict[str, Any]:
    """Whether the new texts keep the reward contract, for each chosen reward that they change.

    Args:
        job: `sources` and `before` (texts by file name), `rewards` (the place of each by metric name), `folder` (of
            `my_rewards.py`), `columns` (names, or None) and `batch` (arguments of `check_reward`, or None).
        report_stage: called with the name of the reward that is next.

    Returns:
        `error`: why the files cannot be loaded, or None. `rewards`: for each chosen reward None where it is unchanged,
        else its `error` (or None), `mean` on the batch and number of `failed` completions.
    """
    try:
        after = load_sources(Path(job["folder"]), job["sources"])
    except BaseException as error:  # sys.exit too
        return {"error": describe_error(error), "rewards": {}}
    results: dict[str, Any] = {}
    for name, place in job["rewards"].items():
        report_stage(name)
        try:
            function = after.find(name, place)
            same = fingerprint(job["before"], place) == fingerprint(after.sources, after.place(function))
            results[name] = None if same else {"error": None, **check_reward(function, job["columns"], job["batch"])}
        except BaseException as error:
            results[name] = {"error": describe_error(error), "mean": None, "failed": 0}
    return {"error": None, "rewards": results}


def check_reward(function: RewardFunction, columns: list[str] | None, batch: dict[str, Any] | None) -> dict[str, Any]:
    """Calls a reward on the last batch as TRL called its predecessor. Raises whatever is wrong with it.

    Returns its `mean`, and the number of completions it `failed` on. Columns of the batch are pickled one by one; one
    of a class that only the notebook knows is left out.
    """
    if columns is not None:
        function.check_columns(columns)
    if batch is None:
        return {"mean": None, "failed": 0}
    known_columns = {}
    for name, pickled in batch["columns"].items():
        with contextlib.suppress(AttributeError, ImportError):
            known_columns[name] = pickle.loads(pickled)
    call = {**batch, "columns": known_columns, "trainer_state": SimpleNamespace(**batch["trainer_state"])}
    scores = call_as_trl(function, **call)
    n, low, high = len(batch["completions"]), function.low, function.high
    if len(scores) != n:
        raise ValueError(f"{function.__name__} returned {len(scores)} scores for {n} completions")
    known = [score for score in scores if score is not None]
    wrong = [score for score in known if not (math.isfinite(score) and low <= score <= high)]
    if wrong:
        raise ValueError(f"{function.__name__} returned {wrong[0]!r}: not a finite number in [{low:g}, {high:g}]")
    return {"mean": sum(known) / len(known) if known else None, "failed": function.failures}


def describe_error(error: BaseException) -> str:
    """An error in one line, with the line of the edited file that it came from."""
    frames = traceback.extract_tb(
        (error.__cause__ or error).__traceback__
    )  # a RewardError has the author's as its cause
    lines = {Path(frame.filename).name: frame.lineno for frame in frames}
    place = next((f" ({file}, line {lines[file]})" for file in (OWN_FILE, LIBRARY_FILE) if file in lines), "")
    is_ours = isinstance(error, RewardError) or (isinstance(error, ValueError) and not place)
    text = str(error) if is_ours else f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(text.split())[:1000] + place


def fingerprint(sources: dict[str, str], place: tuple[str, str] | None) -> str:
    """A hash of all code that a reward is made of: its definition, and whatever of both files that refers to.

    Comments, docstrings and layout do not count, nor does code that the reward does not reach. Other modules and data
    files that a reward reads are not seen. A reward without a place is made of everything.
    """
    files = {file: definitions(text) for file, text in sources.items()}
    library = [(LIBRARY_FILE, name) for name in files[LIBRARY_FILE].binds]
    todo, reached = [place] if place else [(file, name) for file in files for name in files[file].binds], set()
    while todo:
        file, name = todo.pop()
        here = files.get(file)
        for number in here.binds.get(name, ()) if here else ():
            if (file, number) in reached:
                continue
            reached.add((file, number))
            for used in here.uses[number]:
                todo.append((file, used))
                if used in here.modules:  # `import rewards`: it may use all of it
                    todo += library
                elif used in here.imported or "*" in here.imported:
                    todo.append((LIBRARY_FILE, here.imported.get(used, used)))
    code = (f"{file}: {files[file].code[number]}" for file, number in sorted(reached))
    return hashlib.sha256("\n".join(code).encode("utf-8", "surrogatepass")).hexdigest()


@functools.lru_cache(maxsize=8)
def definitions(text: str) -> Definitions:
    return Definitions(text)


class Definitions:
    """The top-level statements of a file: their `code`, the names each `uses`, and the statements that `binds` a name.

    What comes from the library is in `imported` (name here -> name there) and `modules` (names of the library itself).
    """

    def __init__(self, text: str) -> None:
        tree = ast.parse(text)
        for node in ast.walk(tree):  # docstrings away
            if isinstance(getattr(node, "body", None), list):
                node.body = [line for line in node.body if not _is_text(line)]
        statements = list(_one_by_one(tree.body))
        self.code = [ast.dump(statement) for statement in statements]
        self.uses = [{n.id for n in ast.walk(one) if isinstance(n, ast.Name)} for one in statements]
        self.binds: dict[str, list[int]] = {}
        for number, statement in enumerate(statements):
            for name in _names_bound(statement):
                self.binds.setdefault(name, []).append(number)
        self.imported: dict[str, str] = {}
        self.modules: set[str] = set()
        for node in ast.walk(tree):  # inside functions too
            if isinstance(node, ast.ImportFrom) and node.module == "rewards":
                self.imported |= {alias.asname or alias.name: alias.name for alias in node.names}
            elif isinstance(node, ast.Import):
                self.modules |= {alias.asname or alias.name for alias in node.names if alias.name == "rewards"}


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def _one_by_one(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, each imported name by itself: importing one more name changes no reward."""
    for line in body:
        if isinstance(line, ast.ImportFrom):
            yield from (ast.ImportFrom(line.module, [alias], line.level) for alias in line.names)
        elif isinstance(line, ast.Import):
            yield from (ast.Import([alias]) for alias in line.names)
        elif not (isinstance(line, ast.If) and "__main__" in ast.dump(line.test)):  # which an import does not run
            yield line


def _names_bound(statement: ast.stmt) -> set[str]:
    """The top-level names that a statement binds or may change: of `T[i] = 1` T, and of `T.update(a)` T and a."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", statement)]
    if isinstance(statement, ast.For):
        targets = [statement]
    nodes = [node for target in targets for node in ast.walk(target)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
