"""The record of a run: what it is, its log and completions, its checkpoints, how it ended and how it goes on."""

import contextlib
import functools
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from transformers import PrinterCallback, TrainerCallback

from lab.data.columns import as_one_type, data_columns
from lab.files import STOP, Row, append_jsonl, read_json, read_jsonl, relative, write_json, write_parquet
from lab.train import process, run_folder, trl_internals
from scoring.errors import UserError

RESERVE = 256 * 1024  # bytes held back for the last words of a run whose disk is full
MOST_PRINTED = 20_000  # characters of what rewards print in a step that are kept
LITTLE_DISK = 20_000_000  # bytes: below it a failed write is blamed on the disk


class TrainingError(UserError, RuntimeError):
    """Training ended early; the message says why, what is kept, and how to go on."""

    def _render_traceback_(self) -> list[str]:
        unforeseen = self.__cause__ is not None and not isinstance(self.__cause__, UserError)
        return traceback.format_exception(self) if unforeseen else super()._render_traceback_()


class AdapterError(TrainingError):
    """What was to learn did not change, or what was to stay did: the steps taken are worth nothing."""


class StatefulCallback(TrainerCallback):
    """A TrainerCallback that knows its trainer, and whose state is saved with every checkpoint."""

    trainer: Any = None

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes: one of all."""
        return self.trainer is None or self.trainer.accelerator.process_index == 0

    def attach(self, trainer: Any) -> Self:
        """Adds itself to the trainer's callbacks."""
        self.trainer = trainer
        trainer.add_callback(self)
        return self

    def state(self) -> Row:
        """What a resumed run needs to go on as if it had never stopped; JSON-able."""
        return {}

    def restore(self, state: Row) -> None:
        """Takes back what `state` returned when the checkpoint was saved."""


class RunRecorder(StatefulCallback):
    """Records one run in its folder (see `lab.train.run_folder`), and resumes an unfinished one.

    It attaches itself before the other callbacks: a step's completions and row are on disk before one looks at them.

    Args:
        about: what the run is: its `model`, `data`, `requested` settings, `rewards` and `steering`.
        resume: whether an unfinished run with the same settings goes on; "force" even where another process seems to
            be training it.

    Raises RunningError where another process trains in this folder, TrainingError where the disk is full.
    """

    def __init__(self, folder: Path, about: Row, resume: bool | str = True) -> None:
        self.folder, self.about = folder, about
        self.callbacks: list[StatefulCallback] = []
        self.reason: str | None = None
        self.in_optimizer, self.between_batches = False, True
        self.printed, self.prompt_tokens = [], []
        self.show_message: Callable[[str], Any] = functools.partial(print, flush=True)  # the live view has a better one
        self._check_disk(LITTLE_DISK)
        with process.one_process_first() as first:
            self.path = run_folder.open_folder(folder, about, resume) if first else run_folder.last_checkpoint(folder)
        self.checkpoint = str(self.path) if self.path else None  # for `trainer.train`
        self.start_step = run_folder.step_of(self.path) if self.path else 0
        with contextlib.suppress(OSError):  # a disk that has filled since is reported by `attach`
            (folder / ".reserve").write_bytes(b"\0" * RESERVE)
        self.record = read_json(folder / "run.json", run_folder.MADE_BY) if self.path else {}
        self.name = self.record.get("name") or time.strftime("grpo-%Y%m%d-%H%M%S")
        self.attempts = self.record.get("attempts", [])
        for attempt in self.attempts:
            attempt["status"] = attempt["status"].replace("training", "killed")
        self.started = time.time()

    def attach(self, trainer: Any, *callbacks: StatefulCallback | None) -> Self:
        """Adds itself and the other callbacks to the trainer. Raises TrainingError where the disk is too small."""
        super().attach(trainer)
        trainer.remove_callback(PrinterCallback)  # which prints every step
        self.callbacks = [callback.attach(trainer) for callback in callbacks if callback]
        trl_internals.wrap_generation(trainer, self._time_generation)
        trl_internals.wrap_scoring(trainer, self._time_scoring)
        if self.path:
            epoch = read_json(self.path / "trainer_state.json", run_folder.MADE_BY)["epoch"]
            trl_internals.continue_epoch_order(trainer, int(epoch))
        trained = sum(p.numel() * p.element_size() for p in trainer.model.parameters() if p.requires_grad)
        checkpoints = (trainer.args.save_total_limit or 10) + 1  # each with the weights and two moments of Adam
        self._check_disk(3 * trained * checkpoints + LITTLE_DISK)
        return self

    @contextlib.contextmanager
    def recording(self) -> Iterator[Self]:
        """Around `trainer.train(…)`: however training ends, `run.json` says how, and the run can go on.

        Ctrl-C (and SIGTERM) ends the training after the step; a second one at once. An error or an interrupt in the
        middle of a step saves the state before that step, so that nothing is lost. An error raises TrainingError.
        """
        # Python refuses signal handlers outside of the main thread
        numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield self
        except KeyboardInterrupt:
            self._record_failure("interrupted", "interrupted in the middle of a step")
            raise
        except AdapterError as error:
            self._record_failure("failed", str(error), keep=False)
            raise
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            if shutil.disk_usage(self.folder).free < LITTLE_DISK:
                reason = f"the disk of {relative(self.folder)} is full ({reason})"
            self._record_failure("failed", reason)
            raise TrainingError(f"{reason}\n{self._how_to_go_on()}") from error
        finally:
            for number, old in before.items():
                signal.signal(number, old if old is not None else signal.SIG_DFL)
        done = self.trainer.state.global_step >= self.trainer.state.max_steps
        (self.folder / ".reserve").unlink(missing_ok=True)
        self.reason = None if done else self.reason
        self.write_record("finished" if done else "stopped")
        if not done:
            self.tell(f"Stopped after step {self.trainer.state.global_step}: {self.reason}.\n{self._how_to_go_on()}")

    def tell(self, text: str) -> None:
        """Says something to the person who watches."""
        self.show_message(text)

    def stop(self, reason: str) -> None:
        """Ends the training after this step, with a checkpoint."""
        self.reason = self.reason or reason

    def apply_stop(self, control: Any) -> None:
        """Passes a `stop` on to the trainer, but not between two passes over a batch: a resumed run samples a new one."""
        if self.reason and self.between_batches:
            control.should_training_stop = control.should_save = True

    def add_event(self, event: Row) -> None:
        """Adds what happened at this step to `events.jsonl`."""
        if self.is_main_process:
            append_jsonl(self.folder / "events.jsonl", {"step": self.trainer.state.global_step, **event})

    def events(self) -> list[Row]:
        return read_jsonl(self.folder / "events.jsonl")

    def completions(self) -> pd.DataFrame:
        """The completions of the last batch: `step`, `group`, `prompt`, `completion`, one column a reward, `advantage`,
        the lengths `tokens` and `prompt_tokens`, the data set's columns as `data/…`, and what went to `log_extra`.
        """
        batch, n = trl_internals.last_batch(self.trainer), self.trainer.num_generations
        size = len(batch["prompt"])
        table = {"step": self.trainer.state.global_step, "group": np.arange(size) // n}
        table |= {name: list(batch[name]) for name in ("prompt", "completion")}
        table |= {name: list(batch["rewards"][name]) for name in self.trainer.reward_func_names}
        table |= {"advantage": list(batch["advantages"])}
        for name, values in batch["extra"].items():
            if name not in table and len(values) == size:  # a reward's column does not replace one of ours
                table[name] = as_one_type(values)
        return pd.DataFrame(table)

    def write_record(self, status: str) -> None:
        """Writes `run.json` as things stand."""
        if not self.is_main_process:
            return
        step, ended = self.trainer.state.global_step, {"status": status, "reason": self.reason}
        seconds = round(time.time() - self.started, 1)
        attempts = [*self.attempts, {"from_step": self.start_step, "to_step": step, "seconds": seconds, **ended}]
        seconds = round(sum(attempt["seconds"] for attempt in attempts), 1)
        # without the tokens of hubs and trackers; max_tokens and its like stay
        arguments = {k: v for k, v in self.trainer.args.to_dict().items() if "token" not in k or "tokens" in k}
        processes = {"processes": self.trainer.accelerator.num_processes, "peak_memory": process.peak_memory()}
        self.record = {**ended, "steps": step, "seconds": seconds, "name": self.name, **self.about}
        self.record |= {"effective": arguments, "versions": process.package_versions()}
        self.record |= {"process": process.this_process() | processes, "attempts": attempts}
        write_json(self.folder / "run.json", self.record)

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.started = time.time()
        if self.path:
            trl_internals.load_adapter(self.trainer, self.path)
            states = read_json(self.path / run_folder.COMPLETE, run_folder.MADE_BY)["state"]
            for callback in self.callbacks:
                callback.restore(states.get(type(callback).__name__, {}))
            self.add_event({"kind": "resumed", "after_step": state.global_step})
        self._remember_state(state)
        (self.folder / STOP).unlink(missing_ok=True)
        self.write_record("training")

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self.generated = trl_internals.generates_next(self.trainer)
        self._remember_state(state)
        self.step_began = time.perf_counter()

    def on_pre_optimizer_step(self, args, state, control, **kwargs) -> None:
        self.in_optimizer = True

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.in_optimizer = False
        # TRL's `step_time` ends before the optimizer, and on a card while the last backward pass still runs
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        trl_internals.add_metric(self.trainer, "time/step", time.perf_counter() - self.step_began)
        if self.generated:
            repeats = self.completions().duplicated(["group", "completion"])  # word for word
            trl_internals.add_metric(self.trainer, "completions/duplicate_share", repeats.mean())
        if self.is_main_process and (self.folder / STOP).exists():
            self.stop(f"asked to end by the file {STOP}")
        if self.trainer.accelerator.num_processes > 1:  # a signal may reach the processes in different steps
            from accelerate.utils import gather_object

            self.reason = next(filter(None, gather_object([self.reason])), None)
        self.between_batches = trl_internals.generates_next(self.trainer)
        self._remember_state(state)  # what follows still belongs to this step
        self.apply_stop(control)

    def on_log(self, args, state, control, logs, **kwargs) -> None:
        if not getattr(args, "beta", 1):
            logs.pop("kl", None)  # Unsloth's trainer on a GPU logs a 0 where no KL is measured
        if not self.is_main_process:
            return
        if "reward" in logs:
            write_parquet(self.completions(), self.folder / f"completions/completions_{state.global_step:05d}.parquet")
            self._write_printed(state.global_step)
        append_jsonl(self.folder / "log.jsonl", {"step": state.global_step, **logs})

    def on_save(self, args, state, control, **kwargs) -> None:
        self.trainer.accelerator.wait_for_everyone()  # the other processes' random states belong to it
        if self.is_main_process:
            states = {type(callback).__name__: callback.state() for callback in self.callbacks}
            run_folder.seal(self.folder / f"checkpoint-{state.global_step}", states)
            self.write_record("training")  # a resumed run needs the seconds that these steps took

    def _remember_state(self, state: Any) -> None:
        self.before_step = (process.random_states(), state.num_input_tokens_seen)

    def _write_printed(self, step: int) -> None:
        text = "".join(self.printed)
        self.printed.clear()
        if len(text) > MOST_PRINTED:
            text = f"{text[:MOST_PRINTED]}\n… and {len(text) - MOST_PRINTED:,} characters more"
        if text and self.is_main_process:
            append_jsonl(self.folder / "printed.jsonl", {"step": step, "text": text})

    def _time_generation(self, generate: Callable, prompts: list) -> Any:
        generated = self._timed("time/generating", generate, prompts)
        self.prompt_tokens = list(map(len, generated[0]))
        return generated

    def _time_scoring(self, score: Callable, rows: Any, *call: Any) -> Any:
        out, write = sys.stdout, sys.stdout.write
        out.write = lambda text: self.printed.append(text) or write(text)  # what a reward prints is kept, and shown
        try:
            scores = self._timed("time/scoring", score, rows, *call)
        finally:
            out.write = write
        lengths = {"tokens": list(map(len, call[-1])), "prompt_tokens": self.prompt_tokens}
        trl_internals.add_columns(self.trainer, {**lengths, **data_columns(rows)})
        return scores

    def _timed(self, metric: str, function: Callable, *arguments: Any) -> Any:
        began = time.perf_counter()
        result = function(*arguments)
        if self.trainer.model.training:
            trl_internals.add_metric(self.trainer, metric, time.perf_counter() - began)
        return result

    def _check_disk(self, needed: int) -> None:
        place = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        if (free := shutil.disk_usage(place).free) < needed:
            there = f"{free / 1e6:.0f} MB of disk left for {relative(self.folder)}, about {needed / 1e6:.0f} MB needed"
            raise TrainingError(f"{there}: free some, or set OUTPUTS to another disk. Nothing was changed.")

    def _record_failure(self, status: str, reason: str, keep: bool = True) -> None:
        self.reason = reason
        with contextlib.suppress(Exception):  # the first error is the one to report
            if keep:
                self._save_last_step()
        with contextlib.suppress(Exception):
            (self.folder / ".reserve").unlink(missing_ok=True)  # room for the last words on a full disk
            self.write_record(status)
            self._write_printed(self.trainer.state.global_step + 1)  # of the step that failed
            if not self.is_main_process:  # the one that writes may hang in a collective, and be killed without a word
                index = self.trainer.accelerator.process_index
                append_jsonl(self.folder / f"failed-{index}.json", {"reason": reason, "process": index})
            self.add_event({"kind": status, "reason": reason})

    def _save_last_step(self) -> None:
        """A checkpoint of the last finished step, made in the middle of the next one."""
        trainer, step = self.trainer, self.trainer.state.global_step
        no_room = shutil.disk_usage(self.folder).free < LITTLE_DISK
        several = trainer.accelerator.num_processes > 1  # the others may be anywhere
        sealed = run_folder.is_whole(self.folder / f"checkpoint-{step}")
        logged = [row["step"] for row in read_jsonl(self.folder / "log.jsonl") if "reward" in row]
        unfit = self.in_optimizer or not self.between_batches or no_room or several
        if unfit or sealed or step == self.start_step or step not in logged:
            return  # a step that is not recorded must be taken again
        states, trainer.state.num_input_tokens_seen = self.before_step
        process.set_random_states(states)
        trl_internals.save_checkpoint(trainer)
        self.on_save(trainer.args, trainer.state, trainer.control)

    def _how_to_go_on(self) -> str:
        last, folder = run_folder.last_checkpoint(self.folder), relative(self.folder)
        if last is None:
            return f"There is no checkpoint yet; the record is in {folder}. Run the notebook again to start anew."
        return f"All is kept in {folder}. Run the notebook again: it goes on after step {run_folder.step_of(last)}."

    def _on_signal(self, number: int, frame: Any) -> None:
        if self.reason:
            raise KeyboardInterrupt
        self.stop("by hand (Ctrl-C)" if number == signal.SIGINT else "asked to end (SIGTERM)")
        with contextlib.suppress(RuntimeError, OSError):  # a handler may not print while something else does
            self.tell("Stopping after this step. Once more: stop at once.")
