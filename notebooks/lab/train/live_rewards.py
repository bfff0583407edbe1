"""Rewards that are edited while they train: the files are watched, checked, and swapped in at the next batch."""

import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pandas as pd

from lab.files import MissingInputError, Row, relative, write_text
from lab.train import chosen_rewards, run_folder, trl_internals
from lab.train.chosen_rewards import FILES, LIBRARY_FILE, OWN_FILE, LoadedRewards
from lab.train.recorder import StatefulCallback
from rewards import RewardFunction, completion_text, rename
from scoring.batch import question_text
from scoring.errors import InputError


def kept_sources(run: Path, version: int = 1) -> dict[str, str]:
    """The texts that a run kept of a version of its rewards, by file name; of the first, those that it began with.

    `load_choice(folder, kept_sources(run))` gives a resumed run rewards that can be loaded, even where the files are
    broken by now. `LiveRewards.restore` then puts in the version of the checkpoint.
    """
    files = sorted((run / "rewards" / f"v{version}").glob("*.py"), reverse=True)  # the library first
    return {path.name: path.read_bytes().decode("utf-8") for path in files}


def last_version(run: Path) -> int:
    """The number of the last version of its rewards that a run kept; 0 for none."""
    return max((int(path.name[1:]) for path in run.glob("rewards/v*") if path.name[1:].isdigit()), default=0)


def load_checked(
    folder: Path, run: Path, rows: Any, resume: bool | str = True, say: Callable[[str], Any] = print
) -> tuple[list[RewardFunction], list[float], Row]:
    """`load_choice`; what was edited since the run in this folder is first tried on the run's last completions.

    Where an edit fails, an unfinished run goes on with the rewards that it kept last. The record then says as `refused`
    what to correct, with which `open_folder` refuses a new run. Without such a run, InputError says it at once.
    """
    kept, sources = kept_sources(run, last_version(run)), "not readable"
    try:
        sources = chosen_rewards.read_sources(folder)
        functions, weights, record = chosen_rewards.load_choice(folder)
        loaded, results = functions[0].loaded, {}
        if loaded.sources != kept and (found := recorded_batch(run, rows)):
            job = {"sources": loaded.sources, "before": kept, "folder": str(folder), "batch": found[0]}
            job["rewards"] = {function.__name__: loaded.variable(function) for function in functions}
            results = chosen_rewards.check_in_process({**job, "columns": rows.column_names}, 60)
        errors = {name: result["error"] for name, result in results.items() if result["error"]}
        what = f"The edited rewards fail on the last completions of {relative(run)}"
    except MissingInputError:
        raise
    except (Exception, SystemExit) as error:
        errors, what = {FILES: chosen_rewards.describe_error(error)}, "The rewards cannot be loaded"
    if not errors:
        return functions, weights, record
    refused = f"{what}. {describe_refusal(errors, folder, kept, sources)}"
    with contextlib.suppress(OSError, ValueError, KeyError):
        if resume and kept and run_folder.current_record(run)["status"] != "finished":
            functions, weights, record = chosen_rewards.load_choice(folder, kept)
            say(f"note: {refused} An unfinished run goes on with the rewards that it had; a new one does not begin.")
            return functions, weights, {**record, "refused": refused}
    raise InputError(refused)


def describe_refusal(errors: dict[str, str], folder: Path, before: dict[str, str], now: dict[str, str] | str) -> str:
    """What is wrong with edited rewards, and which file to correct: the one that an error names, else what was edited."""
    reasons = [error if not name or name in error else f"{name}: {error}" for name, error in errors.items()]
    paths = {OWN_FILE: folder / OWN_FILE, LIBRARY_FILE: chosen_rewards.LIBRARY}
    named = [file for file in paths if re.search(rf"(?<!\w){file}, line", "; ".join(reasons))]
    edited = [file for file in paths if isinstance(now, str) or now.get(file) != before.get(file)]
    chosen = named or edited if before else [OWN_FILE]
    files = " or ".join(relative(paths[file]) for file in chosen)
    cell = " (the reward cell of notebook 02 writes it)" * (OWN_FILE in chosen)
    return f"{'; '.join(reasons).rstrip('.')}. Correct {files}{cell}."


def rows_of(prompts: Iterable[str], rows: Iterable[Row]) -> dict[str, Row]:
    """The row of each recorded prompt that one is found for: of the questions in its text, the one that ends last."""
    found: dict[str, tuple[tuple[int, int], Row]] = {}
    prompts = set(prompts)
    for row in rows:
        question = question_text(row["prompt"]).strip()
        for text in prompts:
            if question and (at := text.rfind(question)) >= 0:
                place = (at + len(question), len(question))
                found[text] = max(found.get(text, ((0, 0), row)), (place, row), key=lambda one: one[0])
    return {text: row for text, (_, row) in found.items()}


def recorded_batch(run: Path, rows: Iterable[Row]) -> tuple[Row, pd.DataFrame] | None:
    """The last completions of a run's record as arguments of `call_as_trl`, and their table; None where there are none.

    The record has prompts as texts and columns cut short, so both come from `rows`. Of the token ids only the number is
    known.
    """
    last = max(run.glob("completions/completions_*.parquet"), key=run_folder.step_of, default=None)
    if last is None:
        return None
    table = pd.read_parquet(last)
    found = rows_of(table["prompt"], rows)
    table = table[table["prompt"].isin(found)]
    asked = [found[text] for text in table["prompt"]]
    columns = {name: [row[name] for row in asked] for name in (asked[0] if asked else ()) if name != "prompt"}
    batch = {"prompts": [row["prompt"] for row in asked], "completions": table["completion"].tolist()}
    batch |= {"completion_ids": [list(range(n)) for n in table["tokens"]], "columns": columns}
    return (batch, table) if asked else None


@dataclass
class WatchedReward:
    """One chosen reward in the trainer."""

    index: int  # among the trainer's rewards
    name: str  # its metric's name now
    variable: str | None  # that it is bound to in its file
    version: int = 1


@dataclass(eq=False)
class LiveRewards(StatefulCallback):
    """Lets `my_rewards.py` and `rewards.py` be edited while GRPO trains with them.

    The files are read before each batch is generated. After an edit, a hash of its code says of each chosen reward
    whether it changed. New versions must keep the contract on the last batch, in a process of their own. Then they go
    on under new metric names (`x_reward_v2`, with the same weight). Or the whole edit is refused with its error, and
    the old rewards go on until the next save. Accepted texts are kept in `run/rewards/v2/`. Not watched: `scoring/`,
    other modules and data files that a reward reads.

    A resumed run goes on with the checkpoint's versions. If the files say something else by then, that is an edit like
    any other, tried on the last recorded completions. Of several processes the first one looks, checks on its part of
    the batch, and tells the others.
    """

    folder: Path  # where `my_rewards.py` is
    run: Path  # the run's folder
    on_event: Callable[[Row], Any]  # is told of each reward that is changed or refused (see `_event`)
    time_limit: float = 60  # seconds that the check of an edit may take
    say: Callable[[str], Any] = print  # gets one line for a person
    version: int = field(default=0, init=False)  # of the kept texts
    checked: LoadedRewards | None = field(default=None, init=False)  # an accepted edit, in the process that checked it
    batch: Row | None = field(default=None, init=False)  # the last one: arguments of `call_as_trl`

    def attach(self, trainer: Any) -> Self:
        """Watches this trainer's rewards that `load_choice` gave. Raises ValueError where there is none."""
        named = zip(trainer.reward_func_names, trainer.reward_funcs)
        functions = {name: function for name, function in named if hasattr(function, "loaded")}
        if not functions:
            raise ValueError("this trainer has no reward from chosen_rewards.load_choice: there is nothing to watch")
        # A library reward is one object, however often it was loaded. A person's own tells which load it was.
        loads = [function.loaded for function in functions.values()]
        self.loaded = max(loads, key=lambda load: sum(map(bool, map(load.variable, functions.values()))))
        self.tried: dict[str, str] | str = self.loaded.sources
        index, variable = trainer.reward_func_names.index, self.loaded.variable
        self.watched = {name: WatchedReward(index(name), name, variable(f)) for name, f in functions.items()}
        trainer.reward_funcs = list(trainer.reward_funcs)  # TRL keeps the caller's list: that one stays as it is
        trl_internals.wrap_scoring(trainer, self._score_and_keep)
        return super().attach(trainer)

    def _score_and_keep(self, score: Callable, rows: Any, prompts: Any, completions: Any, completion_ids: Any) -> Any:
        scores = score(rows, prompts, completions, completion_ids)
        if self.trainer.model.training:  # an edit is not checked on an evaluation
            names = rows[0].keys() - {"prompt", "completion", "completion_ids"}
            columns = {name: [row[name] for row in rows] for name in names}
            self.batch = {"prompts": prompts, "completion_ids": completion_ids, "columns": columns}
            self.batch["completions"] = [completion_text(one) for one in completions]
            self.scores = scores
        return scores

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        if self.is_main_process and not self.version:
            self._keep(self.loaded.sources)

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        if not trl_internals.generates_next(self.trainer):
            return  # this step goes on with completions that were scored before
        edit = self._look() if self.is_main_process else None
        if self.trainer.accelerator.num_processes > 1:
            from accelerate.utils import broadcast_object_list

            (edit,) = broadcast_object_list([edit], from_process=0)
        if edit:
            self._swap(**edit)

    def _look(self) -> Row | None:
        """An edit that is to be made now: its `sources`, and `results` of the check by reward. None for nothing."""
        try:
            sources = chosen_rewards.read_sources(self.folder)
        except (OSError, UnicodeDecodeError) as error:
            sources = f"a file cannot be read: {type(error).__name__}: {error}"
        if sources == self.tried:
            return None
        self.tried = sources
        if isinstance(sources, str):
            return self._refuse({FILES: sources})
        for file in self.loaded.sources:
            if not sources.get(file, "").strip():  # an editor may just be writing it
                return self._refuse({FILES: f"{file} is {'empty' if file in sources else 'not there any more'}"})
        if not self.batch and (found := recorded_batch(self.run, self.trainer.train_dataset)):
            self.batch, table = found
            self.scores = table.reindex(columns=self.trainer.reward_func_names).to_numpy(float)
        batch = self.batch and {**self.batch, "trainer_state": SimpleNamespace(**vars(self.trainer.state))}
        job = {"sources": sources, "before": self.loaded.sources, "folder": str(self.folder), "batch": batch}
        job["rewards"] = {name: watched.variable for name, watched in self.watched.items()}
        job["columns"] = getattr(self.trainer.train_dataset, "column_names", None)
        results = chosen_rewards.check_in_process(job, self.time_limit)
        if errors := {name: result["error"] for name, result in results.items() if result["error"]}:
            return self._refuse(errors)
        if not results:
            return None
        try:  # it went well in the other process; the run is worth more than an edit
            self.checked = chosen_rewards.load_sources(self.folder, sources)
            self._keep(sources)
        except (Exception, SystemExit) as error:
            return self._refuse({FILES: chosen_rewards.describe_error(error)})
        return {"sources": sources, "results": results}

    def _refuse(self, errors: dict[str, str]) -> None:
        for name, error in errors.items():
            self.on_event(self._event("reward_refused", name, error=error))
        step, about = self.trainer.state.global_step + 1, (self.folder, self.loaded.sources, self.tried)
        self.say(f"step {step}: the edited rewards are refused, those in use go on. {describe_refusal(errors, *about)}")

    def _swap(self, sources: dict[str, str], results: dict[str, Row]) -> None:
        """Puts the changed rewards into the trainer, under the names of their new versions."""
        self.loaded, self.checked = self.checked or chosen_rewards.load_sources(self.folder, sources), None
        for name, result in results.items():
            watched = self.watched[name]
            function = self.loaded.find(name, watched.variable)
            watched.version += 1
            while (new := f"{function.__name__}_v{watched.version}") in self.trainer.reward_func_names:
                watched.version += 1  # a reward that is called so by its author
            about = {"range": [function.low, function.high], "failed": result["failed"]}
            about |= {"sources": f"rewards/v{self.version}", "mean_after": result["mean"], "name": new}
            event = self._event("reward_changed", name, **about)
            watched.variable, watched.name = self.loaded.variable(function), new
            self._install(watched, function)
            if self.is_main_process:
                self.on_event(event)
                means = (event["mean_before"], event["mean_after"])
                change = " → ".join("–" if mean is None else f"{mean:.3f}" for mean in means)
                self.say(f"step {event['step']}: {new} replaces {event['was']}; mean on the last completions {change}")

    def _install(self, watched: WatchedReward, function: Any) -> None:
        i, name, names = watched.index, watched.name, self.trainer.reward_func_names
        trl_internals.forget_columns(self.trainer, names[i])  # TRL would go on writing the old column
        names[i] = name
        self.trainer.reward_funcs[i] = function if function.__name__ == name else rename(function, name)

    def _event(self, kind: str, reward: str, **more: Any) -> Row:
        """What happened to a reward, before the step of that number was generated.

        `kind`: `reward_changed` or `reward_refused`; `reward`: its name in rewards.json, None where the files cannot
        be loaded; `was`, `name`: its metric name before and now; `mean_before`, `mean_after`: of both versions on the
        last `completions`. For a change also `failed` (completions it could not score) and `sources` (a folder).
        """
        watched, mean, n = self.watched.get(reward), None, len(self.batch["prompts"]) if self.batch else 0
        was, first = watched and watched.name, self.trainer.accelerator.process_index * n
        if watched and n:
            scores = self.scores[first : first + n, watched.index].tolist()
            known = [score for score in scores if score == score]  # TRL writes a None as NaN
            mean = sum(known) / len(known) if known else None
        # the log counts so: the step that is about to begin
        about = {"step": self.trainer.state.global_step + 1, "kind": kind, "reward": reward or None}
        about |= {"was": was, "name": was, "error": None, "mean_before": mean, "mean_after": None, "completions": n}
        digest = None if isinstance(self.tried, str) else chosen_rewards.source_hash(self.tried)
        return {**about, "source_sha256": digest, **more}

    def _keep(self, sources: dict[str, str]) -> None:
        """Writes these texts under the next version number, not over what a lost stretch of the run kept."""
        self.version = last_version(self.run) + 1
        for file, text in sources.items():
            write_text(self.run / f"rewards/v{self.version}" / file, text)

    def state(self) -> Row:
        """What to save with a checkpoint: the kept version of the texts; version, name and place of each reward."""
        rewards = {name: asdict(one) for name, one in self.watched.items()}
        return {"version": self.version, "files": list(self.loaded.sources), "rewards": rewards}

    def restore(self, state: Row) -> None:
        """Goes on with the versions of a `state()`: after `attach`, before training. An empty one changes nothing."""
        if not state:
            return
        if state["rewards"].keys() != self.watched.keys():
            there, here = ", ".join(state["rewards"]), ", ".join(self.watched)
            raise InputError(f"the checkpoint was trained with {there}, this trainer has {here}: choose the same")
        self.version, self.tried = state["version"], kept_sources(self.run, state["version"])
        if list(self.tried) != state["files"]:
            folder = self.run / "rewards" / f"v{self.version}"
            raise InputError(f"{folder} has not all of {', '.join(state['files'])}, the checkpoint's rewards.")
        if self.tried != self.loaded.sources:
            self.loaded = chosen_rewards.load_sources(self.folder, self.tried)
        for name, kept in state["rewards"].items():
            watched = self.watched[name] = WatchedReward(**kept)
            self._install(watched, self.loaded.find(name, watched.variable))
