"""What an edit of a reward file means: which rewards it changes, and whether their new versions can be trained with.

`check_in_process` starts a process that runs `check_edit`, so this module imports nothing slow.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from lab.files import read_json, write_json
from lab.train.chosen_rewards import IMPORTED, LIBRARY_FILE, OWN_FILE, load_sources
from rewards import RewardError, RewardFunction
from scoring.batch import call_as_trl

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
            errors = (folder / "errors").read_text(encoding="utf-8", errors="replace").strip()
            reward = (folder / "stage").read_text(encoding="utf-8") if (folder / "stage").exists() else None
    except OSError as error:
        return {"error": f"the check cannot be run: {error}", "rewards": {}}
    what = f"checking {reward} on the last completions" if reward else "loading the files"
    text = f"{what}: {ended}" + (f" ({errors.splitlines()[-1][:300]})" if errors else "")
    return {"error": None, "rewards": {reward: {"error": text}}} if reward else {"error": text, "rewards": {}}


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
        job: `sources` and `before` (texts by file name), `rewards` (the variable of each by metric name), `folder` (of
            `my_rewards.py`), `columns` (of the data set, or None) and `batch` (see `check_reward`).
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
    for name, variable in job["rewards"].items():
        report_stage(name)
        try:
            function = after.find(name, variable)
            same = fingerprint(job["before"], variable) == fingerprint(after.sources, after.variable(function))
            results[name] = None if same else {"error": None, **check_reward(function, job["columns"], job["batch"])}
        except BaseException as error:
            results[name] = {"error": describe_error(error)}
    return {"error": None, "rewards": results}


def check_reward(function: RewardFunction, columns: list[str] | None, batch: dict[str, Any] | None) -> dict[str, Any]:
    """Calls a reward on the last batch as TRL called its predecessor. Raises whatever is wrong with it.

    Args:
        columns: names of the data set's columns, to check before there is a batch.
        batch: arguments of `call_as_trl`, each column pickled. One of a class that only the notebook knows is left out.

    Returns:
        `mean`, None where it gave no score, and `failed`, the number of completions that it could not score.
    """
    if batch is None:
        function.check_columns(columns or function.columns)
        return {"mean": None, "failed": 0}
    known_columns = {}
    for name, pickled in batch["columns"].items():
        with contextlib.suppress(AttributeError, ImportError):
            known_columns[name] = pickle.loads(pickled)
    state = SimpleNamespace(**batch["trainer_state"])
    scores = call_as_trl(function, **{**batch, "columns": known_columns, "trainer_state": state})
    known = [score for score in scores if score is not None]
    return {"mean": sum(known) / len(known) if known else None, "failed": function.failures}


def describe_error(error: BaseException) -> str:
    """An error in one line, with the line of the edited file that it came from."""
    cause = error.__cause__ or error  # of a RewardError: what its author's code raised
    lines = {Path(frame.filename).name: frame.lineno for frame in traceback.extract_tb(cause.__traceback__)}
    place = next((f" ({file}, line {lines[file]})" for file in (OWN_FILE, LIBRARY_FILE) if file in lines), "")
    is_ours = isinstance(error, RewardError) or (isinstance(error, ValueError) and not place)
    text = str(error) if is_ours else f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(text.split())[:1000] + place


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
    def is_docstring(line: ast.stmt) -> bool:
        return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)

    tree, statements = ast.parse(text), []
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):
            node.body = [line for line in node.body if not is_docstring(line)]
    for line in tree.body:
        if isinstance(line, ast.If) and "__main__" in ast.dump(line.test):
            continue  # an import does not run it
        if isinstance(line, (ast.Import, ast.ImportFrom)):  # name by name: importing one more changes no reward
            module = getattr(line, "module", None)
            for alias in line.names:
                code = "" if module == "rewards" else f"{module} {ast.dump(alias)}"
                statements.append(Statement(_names(alias), _names(alias), code))
            continue
        if isinstance(line, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            binds = {line.name}
        elif isinstance(line, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            binds = set().union(*map(_names, getattr(line, "targets", None) or [line.target]))
        else:
            binds = _names(line)
        statements.append(Statement(binds, _names(line), ast.dump(line)))
    return statements


def _names(tree: ast.AST) -> set[str]:
    """Every name in a piece of code: variables, attributes, definitions, and both names of `import a as b`."""
    keys = ("id", "attr", "name", "asname")
    return {name for node in ast.walk(tree) for key in keys if isinstance(name := getattr(node, key, None), str)}
