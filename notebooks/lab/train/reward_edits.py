"""What an edit of a reward file means: which rewards it changes, and whether their new versions can be trained with.

`check_in_process` starts a process that runs `run_check`, so this module imports nothing slow.
"""

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
from pathlib import Path
from typing import Any, NamedTuple

from lab.files import Row, read_json, write_json
from lab.train.chosen_rewards import IMPORTED, LIBRARY_FILE, OWN_FILE, load_sources
from rewards import RewardError, RewardFunction
from scoring.batch import call_as_trl

CHECK = "import sys; from lab.train.reward_edits import run_check; run_check(sys.argv[1])"
FILES = ""  # in place of a reward's name: of the files themselves


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
        return {"mean": None, "failed": 0}
    scores = [score for score in call_as_trl(function, **batch) if score is not None]
    return {"mean": sum(scores) / len(scores) if scores else None, "failed": function.failures}


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
