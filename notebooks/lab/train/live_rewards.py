"""Rewards that are edited while they train: the files are watched, checked, and swapped in at the next batch."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.files import read_json, write_text
from lab.train.chosen_rewards import (
    IMPORTED,
    LIBRARY,
    LIBRARY_FILE,
    OWN_FILE,
    Loaded,
    load_sources,
    read_source,
    text_hash,
)
from lab.train.reward_edits import edits_in_words
from lab.train.steering import RunPart
from lab.train.trl_internals import generates_next

CHECK = (
    "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); "
    "from lab.train.reward_edits import run_check; run_check(Path(sys.argv[1]))"
)
SETTLED = 2_000_000_000  # ns: a younger time stamp may stay the same through one more write (coarse file systems)
NOT_COLUMNS = ("prompt", "completion", "completion_ids")  # of TRL's rows: it hands these over under their plurals


def kept_sources(run: Path, state: dict[str, Any] | None = None) -> dict[str, str]:
    """The texts that a run has kept, by file name: those of a `state()`, else those that it began with.

    `load_choice(folder, kept_sources(run))` gives a run that is resumed the rewards it began with, even where the
    files are broken by now; `restore` then puts in the version of the checkpoint.

    Raises ValueError where a kept file is not there any more or was changed.
    """
    first = {file: {"path": f"rewards/v1/{file}", "sha256": None} for file in (LIBRARY_FILE, OWN_FILE)}
    first = {file: kept for file, kept in first.items() if (run / kept["path"]).exists()}
    found = {}
    for file, kept in (state["sources"] if state else first).items():
        path = run / kept["path"]
        found[file] = read_source(path) if path.exists() else ""
        if kept["sha256"] not in (None, text_hash({file: found[file]})):
            raise ValueError(f"{path} is not what this run kept: without it the checkpoint's rewards are not known.")
    return found


class LiveRewards(RunPart):
    """Lets `my_rewards.py` and the library `rewards.py` be edited while GRPO trains with them.

    Before a batch is generated the files are looked at. What was saved since is read as a whole; for each chosen
    reward, a hash of its definition and all that this refers to in the two files says whether it is another one. The
    new version of each that is must hold the contract on the last batch's completions, in a process of its own with
    a time limit. Then all of them go on under new metric names (`x_reward_v2`, with the same weight); the others keep
    their names and stay the very objects they were. Or the edit is refused as a whole with its error, the rewards in
    use go on, and the next save is looked at anew. What is accepted is kept in `run/rewards/v2/…`.

    An `import rewards` inside a function body gets the library as the kernel imported it; a reward of your own gets
    the edited one by an import at the top. Other modules and data files that a reward reads are not watched.

    To resume: `load_choice(folder, kept_sources(run))`, make the trainer, `attach`, `restore(state)` with the `state()`
    that was saved with the checkpoint. The checkpoint's versions then go on under their names, loaded from what the
    run kept. Files that say the same now change nothing; others are an edit like any, looked at before the first
    batch: accepted as the next version, or refused, and the checkpoint's version goes on.

    Where several processes train, the first looks, checks on its part of the batch, and tells the others.

    Args:
        folder: where `my_rewards.py` is.
        run: the run's folder.
        on_event: called with a dict that JSON can hold, for each reward that is changed or refused (see `_event`).
        library: the library's file.
        time_limit: seconds that the check of an edit may take.
        say: told in one line what was accepted or refused.
    """

    def __init__(
        self,
        folder: Path,
        run: Path,
        on_event: Callable[[dict], None] = lambda event: None,
        *,
        library: Path = LIBRARY,
        time_limit: float = 60.0,
        say: Callable[[str], None] = print,
    ) -> None:
        self.folder, self.run, self.on_event = Path(folder), Path(run), on_event
        self.files = {LIBRARY_FILE: Path(library), OWN_FILE: self.folder / OWN_FILE}
        self.time_limit, self.say = time_limit, say
        self.version, self.kept = 0, {}  # of the kept sources; where each file's text lies
        self.stamps = self.tried = self.ready = self.last = None

    def attach(self, trainer: Any) -> LiveRewards:
        """Watches over this trainer's rewards: those that `load_choice` gave.

        Raises ValueError where there is none.
        """
        functions = dict(zip(trainer.reward_func_names, trainer.reward_funcs))
        functions = {name: function for name, function in functions.items() if hasattr(function, "loaded")}
        if not functions:
            raise ValueError("this trainer has no reward from chosen_rewards.load_choice: there is nothing to watch")
        # A library reward is one object, however often it was loaded; one of the reader's own tells which load it was.
        loads, all_of_them = [function.loaded for function in functions.values()], functions.values()
        self.loaded: Loaded = max(loads, key=lambda loaded: sum(loaded.place(f) is not None for f in all_of_them))
        self.tried = text_hash(self.loaded.sources)
        self.index = {name: trainer.reward_func_names.index(name) for name in functions}
        self.places = {name: self.loaded.place(function) for name, function in functions.items()}
        self.versions = dict.fromkeys(functions, 1)
        trainer.reward_funcs = list(trainer.reward_funcs)  # TRL keeps the caller's list: that one stays as it is
        self._calculate = trainer._calculate_rewards
        trainer._calculate_rewards = self._calculate_and_keep
        return super().attach(trainer)

    def _calculate_and_keep(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        """TRL's own, which also leaves here what it was called with; evaluation is not what an edit is checked on."""
        scores = self._calculate(inputs, prompts, completions, completion_ids_list)
        if self.trainer.model.training:
            self.last = {
                "inputs": inputs,
                "prompts": prompts,
                "completions": completions,
                "completion_ids": completion_ids_list,
                "scores": scores,
            }
        return scores

    # ------------------------------------------------------------- looking

    @property
    def _first(self) -> bool:
        return self.trainer.accelerator.process_index == 0

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        if self._first and not self.version:
            self._keep(self.loaded.sources)

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        if not generates_next(self.trainer):
            return  # this step goes on with completions that were scored before
        decision = self._look() if self._first else None
        if self.trainer.accelerator.num_processes > 1:
            from accelerate.utils import broadcast_object_list

            (decision,) = broadcast_object_list([decision], from_process=0)
        if decision:
            self._swap(decision)

    def _look(self) -> dict[str, Any] | None:
        """What to change now: `sources` and, by reward, what the check found. None for nothing."""
        stamps = [stamp(path) for path in self.files.values()]
        if stamps == self.stamps:
            return None
        self.stamps = stamps if all(time.time_ns() - (at or (0,))[0] > SETTLED for at in stamps) else None
        sources, unreadable = {}, None
        try:
            sources = {file: read_source(path) for file, path in self.files.items() if path.exists()}
        except (OSError, UnicodeDecodeError) as error:
            unreadable = f"a file cannot be read: {type(error).__name__}: {error}"
        if self.tried == (unreadable or text_hash(sources)):
            return None
        self.tried = unreadable or text_hash(sources)
        return self._refuse({None: unreadable}) if unreadable else self._try(sources)

    def _try(self, sources: dict[str, str]) -> dict[str, Any] | None:
        """Checks the texts and loads them; refuses them, or says what to change."""
        for file in self.loaded.sources:
            if not sources.get(file, "").strip():  # an editor may just be writing it
                return self._refuse({None: f"{file} is {'empty' if file in sources else 'not there any more'}"})
        result = self._check(sources)
        changed = {name: found for name, found in result["rewards"].items() if found}
        errors = {name: found["error"] for name, found in changed.items() if found["error"]}
        if result["error"] or errors:
            return self._refuse(errors or {None: result["error"]})
        if not changed:
            return None
        try:  # it went well in the other process; and the run is worth more than an edit
            self.ready = load_sources(self.folder, sources, self.files[LIBRARY_FILE])
            return {"sources": sources, "rewards": changed, "kept": self._keep(sources)}
        except (Exception, SystemExit) as error:
            return self._refuse({None: edits_in_words(error, {file: str(path) for file, path in self.files.items()})})

    def _refuse(self, errors: dict[str | None, str]) -> None:
        for name, error in errors.items():
            self.on_event(self._event("reward_refused", name, error=error))
        reasons = [error if (name or "") in error else f"{name}: {error}" for name, error in errors.items()]
        self.say(f"step {self._step}: the edited rewards are refused, those in use go on. {'; '.join(reasons)}")

    # ------------------------------------------------------------- checking

    def _check(self, sources: dict[str, str]) -> dict[str, Any]:
        """What `check_edit` finds, in a process of its own: an endless loop or a crash there stops nothing here."""
        try:
            with tempfile.TemporaryDirectory(prefix="rewards-check-") as name:
                return self._checked_in(Path(name), sources)
        except OSError as error:
            return {"error": f"the check cannot be run: {error}", "rewards": {}}

    def _checked_in(self, folder: Path, sources: dict[str, str]) -> dict[str, Any]:
        (folder / "rewards.py").write_bytes(IMPORTED.encode("utf-8"))  # the checker's own: the file may be broken
        (folder / "job.pickle").write_bytes(pickle.dumps(self._job(sources)))
        ended = run_and_wait([sys.executable, "-c", CHECK, str(folder)], folder / "errors", self.time_limit)
        if (folder / "result.json").exists():
            return read_json(folder / "result.json", "the check")
        reward = (folder / "stage").read_text(encoding="utf-8") if (folder / "stage").exists() else None
        last = (folder / "errors").read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        what = f"checking {reward} on the last completions" if reward else "loading the files"
        error = f"{what}: {ended}" + (f" ({last[:300]})" if last else "")
        return {"error": None, "rewards": {reward: {"error": error}}} if reward else {"error": error, "rewards": {}}

    def _job(self, sources: dict[str, str]) -> dict[str, Any]:
        names = getattr(self.trainer.train_dataset, "column_names", None)
        seen = list(self.last["inputs"][0]) if self.last else []  # a rollout function may have added some
        return {
            "sources": sources,
            "before": self.loaded.sources,
            "rewards": self.places,
            "folder": str(self.folder),
            "library": str(self.files[LIBRARY_FILE]),
            "columns": [*names, *seen] if names else seen or None,
            "batch": self._batch() if self.last else None,
        }

    def _batch(self) -> dict[str, bytes]:
        """The arguments of the last call, as TRL makes them of its rows, each pickled; what cannot be is left out."""
        rows = self.last["inputs"]
        call = {key: [row[key] for row in rows] for key in rows[0] if key not in NOT_COLUMNS}
        call |= {key: self.last[key] for key in ("prompts", "completions", "completion_ids")}
        call["trainer_state"] = {key: value for key, value in vars(self.trainer.state).items() if is_plain(value)}
        found = {}
        for key, value in call.items():
            with contextlib.suppress(pickle.PicklingError, TypeError, AttributeError):
                found[key] = pickle.dumps(value)
        return found

    def _mean(self, name: str) -> float | None:
        """The mean of a reward's scores on this process's last completions."""
        if not self.last:
            return None
        n, process = len(self.last["prompts"]), self.trainer.accelerator.process_index
        column = self.last["scores"][process * n : (process + 1) * n, self.index[name]].tolist()
        known = [score for score in column if score == score]  # TRL writes a None as NaN
        return sum(known) / len(known) if known else None

    # ------------------------------------------------------------- changing

    def _swap(self, decision: dict[str, Any]) -> None:
        loaded = self.ready or load_sources(self.folder, decision["sources"], self.files[LIBRARY_FILE])
        self.loaded, self.ready = loaded, None
        events = [self._put_in(name, found) for name, found in decision["rewards"].items()]
        self.trainer._logs["extra"].clear()  # the new version may log other columns
        if not self._first:
            return
        for event in events:
            self.on_event({**event, "sources": decision["kept"]})
            means = (event["mean_before"], event["mean_after"])
            before, after = ("–" if mean is None else f"{mean:.3f}" for mean in means)
            self.say(
                f"step {event['step']}: {event['name']} from now on, for {event['was']}; "
                f"mean on the last completions {before} → {after}"
            )

    def _put_in(self, name: str, found: dict[str, Any]) -> dict[str, Any]:
        """Puts the loaded version of one reward into the trainer; returns the event."""
        function = self.loaded.find(name, self.places[name])
        self.versions[name] += 1
        while f"{function.__name__}_v{self.versions[name]}" in self.trainer.reward_func_names:
            self.versions[name] += 1  # a reward that is called so by its author
        new = f"{function.__name__}_v{self.versions[name]}"
        more = {"range": [function.low, function.high], "failed": found["failed"]}
        event = self._event("reward_changed", name, name=new, mean_after=found["mean"], **more)
        self.places[name] = self.loaded.place(function)
        self._install(name, function, new)
        return event

    def _install(self, name: str, function: Any, new: str) -> None:
        i, names = self.index[name], self.trainer.reward_func_names
        self.trainer._logs["rewards"].pop(names[i], None)  # TRL and the recorder would go on writing the old column
        same = function.__name__ == new
        self.trainer.reward_funcs[i] = function if same else self.loaded.library.rename(function, new)
        names[i] = new

    @property
    def digest(self) -> str | None:
        """The hash of the texts that were tried last; None where they could not be read."""
        return self.tried if len(self.tried) == 64 else None

    @property
    def _step(self) -> int:
        return self.trainer.state.global_step + 1  # as the log counts: the step that is about to begin

    def _event(self, kind: str, reward: str | None, **more: Any) -> dict[str, Any]:
        """What happened to a reward, before the step of that number was generated.

        `kind`: `reward_changed` or `reward_refused`; `reward`: its name in rewards.json, None where the files cannot
        be loaded; `was`, `name`: its metric name before and now; `error`: why it was refused; `mean_before`,
        `mean_after`: of the old and the new version on the same last completions, of which there are `completions`;
        `source_sha256`: of the edited files. For a change also `range`, `failed` (completions it could not score)
        and `sources` (the folder in the run where the texts are kept).
        """
        was = self.trainer.reward_func_names[self.index[reward]] if reward else None
        return {
            "step": self._step,
            "kind": kind,
            "reward": reward,
            "was": was,
            "name": was,
            "error": None,
            "mean_before": self._mean(reward) if reward else None,
            "mean_after": None,
            "completions": len(self.last["prompts"]) if self.last else 0,
            "source_sha256": self.digest,
            **more,
        }

    # ------------------------------------------------------------- keeping

    def _keep(self, sources: dict[str, str]) -> str:
        """Writes what is new of these texts under the next number; returns the folder's name inside the run."""
        taken = [int(path.name[1:]) for path in self.run.glob("rewards/v*") if path.name[1:].isdigit()]
        self.version = max(taken, default=0) + 1  # not over what a run wrote that went on from here before
        for file, text in sources.items():
            digest, path = text_hash({file: text}), f"rewards/v{self.version}/{file}"
            if self.kept.get(file, {}).get("sha256") != digest:
                write_text(self.run / path, text)
                self.kept[file] = {"path": path, "sha256": digest}
        return f"rewards/v{self.version}"

    def state(self) -> dict[str, Any]:
        """What to save with a checkpoint, as JSON: the version, name and place of each reward, and the kept texts."""
        names = self.trainer.reward_func_names
        rewards = {
            name: {"version": self.versions[name], "name": names[i], "place": list(self.places[name] or ())}
            for name, i in self.index.items()
        }
        return {"version": self.version, "rewards": rewards, "sources": json.loads(json.dumps(self.kept))}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on with the versions of a `state()`: after `attach`, before training. An empty one changes nothing.

        Raises ValueError where the trainer has other rewards than the checkpoint, or a kept text is gone.
        """
        if not state:
            return
        if state["rewards"].keys() != self.index.keys():
            there, here = ", ".join(state["rewards"]), ", ".join(self.index)
            raise ValueError(f"the checkpoint was trained with {there}, this trainer has {here}: choose the same")
        sources = kept_sources(self.run, state)
        same = sources == self.loaded.sources
        self.loaded = self.loaded if same else load_sources(self.folder, sources, self.files[LIBRARY_FILE])
        for name, kept in state["rewards"].items():
            self.versions[name], self.places[name] = kept["version"], tuple(kept["place"]) or None
            if not same or kept["name"] != self.trainer.reward_func_names[self.index[name]]:
                self._install(name, self.loaded.find(name, self.places[name]), kept["name"])
        self.version, self.kept = state["version"], json.loads(json.dumps(state["sources"]))
        self.tried, self.stamps = text_hash(sources), None


def stamp(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is written, at the price of one system call; None for no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def is_plain(value: Any) -> bool:
    """Whether a value is made of numbers, texts, lists and dicts only."""
    try:
        return json.dumps(value) is not None
    except (TypeError, ValueError):
        return False


def run_and_wait(command: list[str], errors: Path, time_limit: float) -> str:
    """Runs a command and ends it with all it started; returns how it ended."""
    path = os.pathsep.join(map(str, sys.path))  # the edited file imports what it could import here
    with errors.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=sink,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
    try:
        return f"the process that checks it ended with exit code {process.wait(time_limit)}"
    except subprocess.TimeoutExpired:
        return f"not done after {time_limit:g} s, perhaps an endless loop"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):  # all that the edited file has started
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()
