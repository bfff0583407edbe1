"""What runs beside GRPOTrainer: the run's record, the checks, the health monitor, held-out answers."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from transformers import PrinterCallback

from lab.data.dataset import data_columns, of_one_kind
from lab.files import STOP, Row, read_json, relative, write_json
from lab.train import run_folder
from lab.train.process import (
    Printed,
    effective_arguments,
    one_process_first,
    peak_memory,
    random_states,
    set_random_states,
    versions,
)
from lab.train.run_folder import COMPLETE, append, rows_of, write_table
from lab.train.steering import RunPart
from lab.train.trl_internals import generates_next, trainer_metrics


class TrainingError(RuntimeError):
    """Training ended early; the message says why, what is kept, and how to go on."""


class AdapterError(TrainingError):
    """What was to learn did not, or what was to stay did not: the steps taken are worth nothing."""


def duplicate_share(groups: Sequence[Sequence[str]]) -> float:
    """Share of completions that repeat another of their group word for word.

    >>> duplicate_share([["a", "a", "b", "c"], ["a", "b", "c", "d"]])
    0.125
    """
    return sum(len(group) - len(set(group)) for group in groups) / max(1, sum(map(len, groups)))


ANEW = "These steps are worth nothing and were not saved; other settings, or RESUME = False, begin a new run."
RESERVE = 256 * 1024  # bytes held back for the last words of a run whose disk is full
LITTLE_DISK = 20_000_000  # bytes: below it a failed write is blamed on the disk


class RunRecorder(RunPart):
    """One run in its folder: what it is, where it goes on, how it ended. See `lab.train.run_folder`.

    Attach it first, then the other parts: a step's completions and row are on disk before anything
    else looks at them.
    """

    def __init__(self, folder: Path, about: Row, resume: bool | str = True) -> None:
        self.folder, self.about = folder, about
        self.parts: list[RunPart] = []
        self.reason: str | None = None
        self.in_optimizer, self.between_batches = False, True
        self.printed, self.prompt_tokens = Printed(), []
        self._room(LITTLE_DISK)
        with one_process_first() as first:
            path = run_folder.open_folder(folder, about, resume) if first else run_folder.last_checkpoint(folder)
        self.path = path
        with contextlib.suppress(OSError):  # a disk that has filled since `_room` looked is told of in `attach`
            (folder / ".reserve").write_bytes(b"\0" * RESERVE)
        self.record = read_json(folder / "run.json", run_folder.MADE_BY) if path else {}
        self.name = self.record.get("name") or time.strftime("grpo-%Y%m%d-%H%M%S")
        self.attempts = [
            {**a, "status": "killed" if a["status"] == "training" else a["status"]}
            for a in self.record.get("attempts", [])
        ]
        self.started = time.time()

    @property
    def checkpoint(self) -> str | None:
        """For `trainer.train(resume_from_checkpoint=…)`: None for a new run."""
        return str(self.path) if self.path else None

    @property
    def start(self) -> int:
        """Finished steps that this attempt begins with."""
        return run_folder.step_of(self.path) if self.path else 0

    def attach(self, trainer: Any, *parts: RunPart | None) -> RunRecorder:
        """Joins the training, with the parts that are there; TRL's own printing of every step goes."""
        super().attach(trainer)
        trainer.remove_callback(PrinterCallback)
        for part in filter(None, parts):
            part.attach(trainer)
            self.parts.append(part)
        self._time_the_parts_of_a_step()
        self._go_on_in_the_epoch()
        self.enough_disk()
        return self

    @property
    def main(self) -> bool:
        """Whether this process writes: one of all."""
        return self.trainer is None or self.trainer.is_world_process_zero()

    # ---- writing

    def write(self, status: str) -> None:
        if not self.main:
            return
        now = {
            "from_step": self.start,
            "to_step": self.trainer.state.global_step,
            "seconds": round(time.time() - self.started, 1),
            "status": status,
            "reason": self.reason,
        }
        seconds = round(sum(attempt["seconds"] for attempt in self.attempts) + now["seconds"], 1)
        process = {
            **run_folder.this_process(),
            "processes": self.trainer.accelerator.num_processes,
            "peak_memory": peak_memory(),
        }
        self.record = {
            "status": status,
            "reason": self.reason,
            "steps": self.trainer.state.global_step,
            "seconds": seconds,
            "name": self.name,
            **self.about,
            "effective": effective_arguments(self.trainer.args),
            "versions": versions(),
            "process": process,
            "attempts": [*self.attempts, now],
        }
        write_json(self.folder / "run.json", self.record)

    def event(self, event: Row) -> None:
        """Adds to `events.jsonl`: at which step what happened."""
        if self.main:
            append(self.folder / "events.jsonl", {"step": self.trainer.state.global_step, **event})

    def events(self) -> list[Row]:
        return rows_of(self.folder / "events.jsonl")

    def stop(self, reason: str) -> None:
        """Ends the training after this step, with a checkpoint."""
        self.reason = self.reason or reason

    def halt(self, control: Any) -> None:
        """Tells the trainer to stop, where that was asked for. Not between two passes over one batch: a resumed run
        samples a new one."""
        if self.reason and self.between_batches:
            control.should_training_stop = control.should_save = True

    # ---- callbacks

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.started = time.time()
        if self.path:
            self._load_adapter()
            kept = read_json(self.path / COMPLETE, run_folder.MADE_BY)["state"]
            for part in self.parts:
                part.restore(kept.get(type(part).__name__, {}))
            self.event({"kind": "resumed", "after_step": state.global_step})
        self.before_step = (random_states(), state.num_input_tokens_seen)
        (self.folder / STOP).unlink(missing_ok=True)
        self.write("training")

    def _load_adapter(self) -> None:
        """The trained adapter from the checkpoint.

        TRL keeps a second adapter, `ref`, beside it for the KL term, and the Trainer of transformers 5.17,
        finding that folder in the checkpoint, loads `ref` alone: the run would go on from a fresh adapter
        with the old optimizer's state, and no message.
        """
        from peft import PeftModel, set_peft_model_state_dict
        from safetensors.torch import load_file

        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        weights = self.path / "adapter_model.safetensors"
        if isinstance(model, PeftModel) and weights.exists():
            set_peft_model_state_dict(model, load_file(weights), adapter_name=model.active_adapter)

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self.generated = generates_next(self.trainer)
        self.before_step = (random_states(), state.num_input_tokens_seen)
        self.step_began = time.perf_counter()

    def on_pre_optimizer_step(self, args, state, control, **kwargs) -> None:
        self.in_optimizer = True

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.in_optimizer = False
        trainer_metrics(self.trainer, "time/step", self._seconds_of_the_step())
        if self.generated:
            trainer_metrics(self.trainer, "completions/duplicate_share", duplicate_share(self._groups()))
        if self.main and (self.folder / STOP).exists():
            self.stop(f"asked to end by the file {STOP}")
        if self.trainer.accelerator.num_processes > 1:  # a signal may reach the processes in different steps
            from accelerate.utils import gather_object

            self.reason = next(filter(None, gather_object([self.reason])), None)
        self.between_batches = generates_next(self.trainer)
        self.before_step = (random_states(), state.num_input_tokens_seen)  # what follows belongs to this step still
        self.halt(control)

    def _seconds_of_the_step(self) -> float:
        """All of it, with the optimiser. TRL's `step_time` ends before that, and on a card while the last backward pass
        is still under way there."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - self.step_began

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if not getattr(args, "beta", 1):
            (logs or {}).pop("kl", None)  # Unsloth's trainer on a GPU logs a 0 where no KL is measured
        if not self.main:
            return
        if "reward" in (logs or {}):
            write_table(
                self.completions(), self.folder / "completions" / f"completions_{state.global_step:05d}.parquet"
            )
            self._keep_printed(state.global_step)
        append(self.folder / "log.jsonl", {"step": state.global_step, **(logs or {})})

    def on_save(self, args, state, control, **kwargs) -> None:
        self.trainer.accelerator.wait_for_everyone()  # the other processes' random states belong to it
        if self.main:
            kept = {type(part).__name__: part.state() for part in self.parts}
            run_folder.seal(self.folder / f"checkpoint-{state.global_step}", kept)
            self.write("training")  # how long the steps took that a resumed run will have

    def _keep_printed(self, step: int) -> None:
        text = self.printed.taken()
        if text and self.main:
            append(self.folder / "printed.jsonl", {"step": step, "text": text})

    # ---- the batch

    def _groups(self) -> list[list[str]]:
        texts, size = list(self.trainer._logs["completion"]), self.trainer.num_generations
        return [texts[i : i + size] for i in range(0, len(texts), size)]

    def completions(self) -> pd.DataFrame:
        """The step's completions in TRL's form (step, prompt, completion, a column a reward, advantage), their group,
        length in tokens, the data set's columns as `data/…`, and what rewards gave to `log_extra`."""
        kept = self.trainer._logs  # filled by TRL at every step, log_completions or not
        scores = {name: kept["rewards"][name] for name in self.trainer.reward_func_names}
        table = {"prompt": kept["prompt"], "completion": kept["completion"], **scores, "advantage": kept["advantages"]}
        size, step = self.trainer.num_generations, self.trainer.state.global_step
        ours = {"step": [step] * len(kept["prompt"]), "group": np.arange(len(kept["prompt"])) // size, **table}
        extras = {name: values for name, values in kept["extra"].items() if len(values) == len(kept["prompt"])}
        # a reward that logs a column called like one of ours does not replace it
        ours |= {name: of_one_kind(values) for name, values in extras.items() if name not in ours}
        return pd.DataFrame({name: list(values) for name, values in ours.items()})

    def _time_the_parts_of_a_step(self) -> None:
        """Seconds of generating and of scoring as metrics; lengths in tokens and the data set's columns beside each
        completion; and what rewards print is kept."""
        trainer = self.trainer
        if not (hasattr(trainer, "_generate") and hasattr(trainer, "_calculate_rewards")):
            return  # another version's trainer: the run is recorded without these
        generate, score = trainer._generate, trainer._calculate_rewards

        def timed_generate(prompts: list) -> Any:
            began = time.perf_counter()
            made = generate(prompts)
            self._metric("time/generating", time.perf_counter() - began)
            self.prompt_tokens = [len(ids) for ids in made[0]]
            return made

        def timed_score(inputs: Any, prompts: Any, completions: Any, completion_ids: Sequence) -> Any:
            began = time.perf_counter()
            with self.printed.listening():
                scores = score(inputs, prompts, completions, completion_ids)
            self._metric("time/scoring", time.perf_counter() - began)
            beside = {"tokens": [len(ids) for ids in completion_ids], "prompt_tokens": self.prompt_tokens}
            for name, values in {**beside, **data_columns(inputs)}.items():
                trainer._log_completion_extra(name, values)
            return scores

        trainer._generate, trainer._calculate_rewards = timed_generate, timed_score

    def _go_on_in_the_epoch(self) -> None:
        """A resumed run in its second epoch or later takes the prompts in that epoch's order.

        TRL's sampler draws each epoch's order from one generator, which no checkpoint keeps: it would begin with
        the first epoch's again.
        """
        if not self.path:
            return
        import torch

        finished = int(read_json(self.path / "trainer_state.json", run_folder.MADE_BY)["epoch"])
        make = self.trainer._get_train_sampler

        def sampler(*args: Any) -> Any:
            made = make(*args)
            for _ in range(finished if getattr(made, "shuffle", False) else 0):
                torch.randperm(made.num_samples, generator=made.generator)
            return made

        self.trainer._get_train_sampler = sampler

    def _metric(self, name: str, value: float) -> None:
        if self.trainer.model.training:
            trainer_metrics(self.trainer, name, value)

    # ---- the end

    def enough_disk(self) -> None:
        """Raises TrainingError where the checkpoints will not fit."""
        learned = sum(p.numel() * p.element_size() for p in self.trainer.model.parameters() if p.requires_grad)
        kept = (self.trainer.args.save_total_limit or 10) + 1
        self._room(int(3 * learned * kept) + LITTLE_DISK)  # weights and two moments of Adam in each

    def _room(self, needed: int) -> None:
        place = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        free = shutil.disk_usage(place).free
        if free < needed:
            raise TrainingError(
                f"There are {free / 1e6:.0f} MB of disk left for {relative(self.folder)}, and its record and checkpoints need about "
                f"{needed / 1e6:.0f} MB: free some, or set OUTPUTS to another disk. Nothing was changed."
            )

    @contextlib.contextmanager
    def recording(self) -> Iterator[RunRecorder]:
        """Around `trainer.train(…)`: however it ends, `run.json` says how, and the run can go on.

        Ctrl-C (and SIGTERM) ends the training after the step; a second one at once. An error or an
        interrupt in the middle of a step saves the state before that step, so that nothing is lost.
        Raises TrainingError from the error that ended the training.
        """
        try:
            with self._signals():
                yield self
        except KeyboardInterrupt:
            self._end("interrupted", "interrupted in the middle of a step")
            raise
        except AdapterError as error:
            self._end("failed", str(error), keep=False)
            raise
        except BaseException as error:
            self._end("failed", self._why(error))
            raise TrainingError(f"{self.reason}\n{self._way_on()}") from error
        done = self.trainer.state.global_step >= self.trainer.state.max_steps
        (self.folder / ".reserve").unlink(missing_ok=True)
        self.reason = None if done else self.reason
        self.write("finished" if done else "stopped")
        if not done:
            print(f"Stopped after step {self.trainer.state.global_step}: {self.reason}.\n{self._way_on()}")

    def _end(self, status: str, reason: str, keep: bool = True) -> None:
        self.reason = reason
        with contextlib.suppress(Exception):  # the first error is the one to tell of
            if keep:
                self._save_what_stands()
        with contextlib.suppress(Exception):
            (self.folder / ".reserve").unlink(missing_ok=True)  # room for the last words on a full disk
            self.write(status)
            self._keep_printed(self.trainer.state.global_step + 1)  # of the step that failed
            if not self.main:  # the process that writes may hang in a collective now, and be killed without a word
                last = {"reason": reason, "process": self.trainer.accelerator.process_index}
                append(self.folder / f"failed-{last['process']}.json", last)
            self.event({"kind": status, "reason": reason})

    def _save_what_stands(self) -> None:
        """A checkpoint of the last finished step, made in the middle of the next one."""
        trainer, step = self.trainer, self.trainer.state.global_step
        disk_full = shutil.disk_usage(self.folder).free < LITTLE_DISK
        alone = trainer.accelerator.num_processes == 1  # the others may be anywhere
        sealed = run_folder.is_whole(self.folder / f"checkpoint-{step}")
        if step == self.start or self.in_optimizer or not self.between_batches or disk_full or sealed or not alone:
            return
        if step != max((row["step"] for row in rows_of(self.folder / "log.jsonl") if "reward" in row), default=None):
            return  # the step itself is not recorded: it must be taken again
        states, trainer.state.num_input_tokens_seen = self.before_step
        set_random_states(states)
        trainer._save_checkpoint(trainer.model, trial=None)
        self.on_save(trainer.args, trainer.state, trainer.control)

    def _why(self, error: BaseException) -> str:
        if shutil.disk_usage(self.folder).free < LITTLE_DISK:
            return f"the disk of {relative(self.folder)} is full ({type(error).__name__}: {error})"
        return f"{type(error).__name__}: {error}"

    def _way_on(self) -> str:
        last = run_folder.last_checkpoint(self.folder)
        if last is None:
            return f"There is no checkpoint yet; what was recorded is in {relative(self.folder)}. Run the notebook again to start anew."
        return f"All is kept in {relative(self.folder)}. Run the notebook again: it goes on after step {run_folder.step_of(last)}."

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM stop after the step, a second one at once; elsewhere than in the main thread nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def asked(number: int, frame: Any) -> None:
            if self.reason:
                raise KeyboardInterrupt
            self.stop("by hand (Ctrl-C)" if number == signal.SIGINT else "asked to end (SIGTERM)")
            with contextlib.suppress(RuntimeError, OSError):  # a handler may not print while something else does
                print("Stopping after this step. Once more: stop at once.", flush=True)

        before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
