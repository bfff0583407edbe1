"""What watches a training beside its recorder: the adapter's checksums, the health monitor, held-out answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lab.data.dataset import data_columns
from lab.files import Row, write_json
from lab.model.policy import checksum
from lab.model.prompts import render
from lab.model.sampling import sample
from lab.read import health
from lab.read.run_record import BY_GROUP
from lab.train.process import random_states, set_random_states
from lab.train.recorder import ANEW, AdapterError, RunRecorder
from lab.train.run_folder import rows_of, write_table
from lab.train.steering import RunPart


class AdapterCheck(RunPart):
    """Once, after the first steps that could teach: what should learn has changed, and the base has not.

    Checksums of all tensors before the first step go to `start.json`.

    Raises AdapterError otherwise. Both have happened: an adapter that no gradient reached, and a 4-bit
    base that its own kernel repacked while training.
    """

    def __init__(self, run: RunRecorder, after: int = 3) -> None:
        self.run, self.after, self.done, self.taught = run, after, False, 0

    def _sums(self) -> dict[str, tuple[bool, tuple[int, int]]]:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        return {
            name: (p.requires_grad, checksum(p))
            for name, p in model.named_parameters()
            if p.numel() and not hasattr(p, "placements")
        }  # a sharded parameter has placements: its shards move between processes

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.sums = self._sums()
        if state.global_step == 0 and self.run.main:  # the merge is proved against it, after any number of resumptions
            parts = {"learns": True, "frozen": False}
            start = {
                part: {name: total for name, (learns, total) in self.sums.items() if learns is is_it}
                for part, is_it in parts.items()
            }
            write_json(self.run.folder / "start.json", start)

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if self.done or "reward" not in (logs or {}):
            return
        # the first step of a warm-up has learning rate 0, groups without spread have no gradient, and with fp16 the
        # scaler may leave a step out
        lively = (1.0 if logs.get("frac_reward_zero_std") is None else logs["frac_reward_zero_std"]) < 1
        taken = not self.trainer.accelerator.optimizer_step_was_skipped and np.isfinite(logs.get("grad_norm") or 0.0)
        self.taught += bool(logs.get("learning_rate", 0) > 0 and lively and taken)
        if self.taught >= self.after or state.global_step >= state.max_steps:
            self.done = True
            self._compare()

    def _compare(self) -> None:
        now = self._sums()
        moved = [name for name, (learns, total) in self.sums.items() if learns and now[name][1] != total]
        base = [name for name, (learns, total) in self.sums.items() if not learns and now[name][1] != total]
        learns = sum(learns for learns, _ in self.sums.values())
        self.run.event(
            {
                "kind": "adapter_check",
                "moved": len(moved),
                "of": learns,
                "base_changed": len(base),
                "base_tensors": len(self.sums) - learns,
            }
        )
        if base:
            raise AdapterError(
                f"The frozen base changed at {base[0]} ({len(base)} tensors): the adapter would be merged into another "
                f"base than the one it was trained on. Load the model with Unsloth, or without 4 bit.\n{ANEW}"
            )
        if self.taught and not moved:
            raise AdapterError(
                f"None of {learns} trained tensors moved in {self.taught} steps with a learning rate and a signal: "
                f"no gradient reaches the adapter. Check its target modules and gradient checkpointing.\n{ANEW}"
            )


class HealthMonitor(RunPart):
    """Runs the rules of `lab.read.health` after every step; writes down what is new, and can stop the run.

    Args:
        correctness: names of the rewards that decide what is right.
        stop: end the run, with a checkpoint, at the first critical finding.
    """

    def __init__(self, run: RunRecorder, correctness: Sequence[str], stop: bool = True) -> None:
        self.run, self.correctness, self.stop = run, tuple(correctness), stop
        self.findings: list[Any] = []
        self.columns: dict[str, list] = {}
        self.told: dict[str, str] = {}

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.columns, self.told = {}, {}
        for row in rows_of(self.run.folder / "log.jsonl"):
            self._add(row)

    def _add(self, row: Row) -> bool:
        if "reward" not in row:
            return False
        length = len(next(iter(self.columns.values()), []))
        for name in {**self.columns, **row}:
            if name == BY_GROUP and self.trainer.args.scale_rewards == "batch":
                continue  # TRL counts whole steps without spread then, and not groups
            self.columns.setdefault(name, [None] * length).append(row.get(name))
        return True

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if not self._add({"step": state.global_step, **(logs or {})}):
            return
        self.findings = health.diagnose(pd.DataFrame(self.columns), correctness=self.correctness)
        for finding in self.findings:
            if finding.verdict in ("warn", "critical") and self.told.get(finding.rule) != finding.verdict:
                self.run.event(
                    {"kind": "health", "rule": finding.rule, "verdict": finding.verdict, "message": finding.message}
                )
                if self.stop and finding.verdict == "critical":
                    self.run.stop(
                        f"{finding.rule}: {finding.message}. {finding.advice} Other settings begin a new run; "
                        "STOP_WHEN_CRITICAL = False goes on with this one"
                    )
                    self.run.halt(control)
            self.told[finding.rule] = finding.verdict

    def sick(self) -> list[Any]:
        return [finding for finding in self.findings if finding.verdict in ("warn", "critical")]


class HeldOut(RunPart):
    """Greedy answers to the same held-out prompts before the first step, every `every` steps and after the last.

    Sampling and its random numbers are the training's own business: the generators are put back, so that
    a run with evaluation takes the same steps as one without. Rows go to `log.jsonl` (and to every
    tracker) as `eval_<reward>`, the answers to `held_out/`; the training's completions are not touched.
    """

    def __init__(
        self,
        run: RunRecorder,
        rows: Sequence[Row],
        tokenizer: Any,
        every: int,
        max_new_tokens: int,
        batch_size: int = 64,
    ) -> None:
        self.run, self.rows, self.tokenizer, self.every = run, list(rows), tokenizer, every
        self.max_new_tokens, self.batch_size = max_new_tokens, batch_size
        # as TRL keeps those of training: special tokens left out
        ids = [tokenizer(render(tokenizer, row["prompt"]), add_special_tokens=False)["input_ids"] for row in self.rows]
        self.prompts = tokenizer.batch_decode(ids, skip_special_tokens=True)

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        there = {row["step"] for row in rows_of(self.run.folder / "log.jsonl") if "eval_n" in row}
        if state.global_step == 0 or (self._due(state) and state.global_step not in there):
            self._evaluate(args, state, control)  # the first one, or one that an error in it had prevented

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if "reward" in (logs or {}) and self._due(state):
            self._evaluate(args, state, control)

    def _due(self, state: Any) -> bool:
        return state.global_step % self.every == 0 or state.global_step >= state.max_steps

    def _evaluate(self, args: Any, state: Any, control: Any) -> None:
        from lab.measure.grading import score_groups

        began = time.time()
        groups = self._answers()
        table = score_groups(self.trainer.reward_funcs, self.rows, groups)
        row = {f"eval_{f.__name__}": float(table[f.__name__].astype(float).mean()) for f in self.trainer.reward_funcs}
        row |= {
            "eval_tokens": float(table["tokens"].mean()),
            "eval_n": len(table),
            "eval_seconds": round(time.time() - began, 2),
        }
        if self.run.main:
            asked = {"step": state.global_step, "prompt": self.prompts, **data_columns(self.rows)}
            table = pd.concat([pd.DataFrame(asked), table.drop(columns=["group", "sample"])], axis=1)
            write_table(table, self.run.folder / "held_out" / f"held_out_{state.global_step:05d}.parquet")
        # not trainer.log: inside a log call it would take the training's metrics a second time
        state.log_history.append({"step": state.global_step, **row})
        self.trainer.callback_handler.on_log(args, state, control, row)

    def _answers(self) -> list:
        import torch
        from trl.models import unwrap_model_for_generation

        states, trainer = random_states(), self.trainer
        training = trainer.model.training
        try:
            with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model, torch.no_grad():
                return sample(
                    model,
                    self.tokenizer,
                    [row["prompt"] for row in self.rows],
                    temperature=0,
                    max_new_tokens=self.max_new_tokens,
                    batch_size=self.batch_size,
                )
        finally:
            trainer.model.train(training)
            if training and hasattr(trainer.model, "for_training"):  # Unsloth on a GPU generates in a mode of its own
                kept = getattr(trainer.model, "_unsloth_gradient_checkpointing", trainer.args.gradient_checkpointing)
                trainer.model.for_training(use_gradient_checkpointing=kept)
            set_random_states(states)
