"""Callbacks of a training. They steer its temperature and weights, and watch adapter, health and held-out answers."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lab.data.columns import data_columns
from lab.files import Row, read_jsonl, write_json, write_parquet
from lab.measure.grading import score_groups
from lab.model.policy import checksum
from lab.model.prompts import logged_prompt
from lab.model.sampling import sample
from lab.read import health
from lab.read.run_record import BY_GROUP
from lab.train import trl_internals
from lab.train.process import random_states, set_random_states
from lab.train.recorder import AdapterError, RunRecorder, StatefulCallback
from scoring.errors import InputError

AFTER = 3  # steps that could teach
NOT_SAVED = "These steps are worth nothing and were not saved; other settings, or RESUME = False, begin a new run."
MEMORY = 0.9  # of the running mean of a reward's success: it looks back about ten steps
BOUND = 2.0  # the largest factor of an adaptive weight
Stage = tuple[int, Mapping[str, float]]  # a step, and the weights from there on


class AdapterCheck(StatefulCallback):
    """Checks once, after the first steps that could teach, that the trained weights changed and the frozen base did not.

    Checksums of all tensors before the first step go to `start.json`. Both faults have happened: an adapter that no
    gradient reached, and a 4-bit base that its own kernel repacked while training. Either raises AdapterError.
    """

    def __init__(self, run: RunRecorder) -> None:
        self.run, self.done, self.taught = run, False, 0

    def _checksums(self) -> dict[str, dict[str, tuple[int, int]]]:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        sums: dict[str, dict] = {"learns": {}, "frozen": {}}
        for name, p in model.named_parameters():
            if p.numel() and not hasattr(p, "placements"):  # those have the shards of a parameter, which move about
                sums["learns" if p.requires_grad else "frozen"][name] = checksum(p)
        return sums

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.start = self._checksums()
        if state.global_step == 0 and self.run.is_main_process:  # notebook 05 checks the merge against it
            write_json(self.run.folder / "start.json", self.start)

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if self.done or "reward" not in (logs or {}):
            return
        # The first step of a warm-up has learning rate 0, groups without spread have no gradient, and with fp16 the
        # scaler may leave a step out.
        spread = logs.get("frac_reward_zero_std") is None or logs["frac_reward_zero_std"] < 1
        taken = not self.trainer.accelerator.optimizer_step_was_skipped and np.isfinite(logs.get("grad_norm") or 0.0)
        self.taught += bool(logs.get("learning_rate", 0) > 0 and spread and taken)
        if self.taught >= AFTER or state.global_step >= state.max_steps:
            self._compare()

    def _compare(self) -> None:
        self.done, now, start = True, self._checksums(), self.start
        moved, base = ([n for n, total in start[part].items() if now[part][n] != total] for part in start)
        n_learning, n_frozen = len(start["learns"]), len(start["frozen"])
        counts = {"moved": len(moved), "of": n_learning, "base_changed": len(base), "base_tensors": n_frozen}
        self.run.add_event({"kind": "adapter_check", **counts})
        if base:
            fault = f"The frozen base changed at {base[0]} ({len(base)} tensors): the adapter does not fit it any more"
            raise AdapterError(f"{fault}. Load the model with Unsloth, or without 4 bit.\n{NOT_SAVED}")
        if self.taught and not moved:
            fault = f"None of {n_learning} trained tensors moved in {self.taught} steps: no gradient reaches them"
            raise AdapterError(f"{fault}. Check its target modules and gradient checkpointing.\n{NOT_SAVED}")


class HealthMonitor(StatefulCallback):
    """Runs the rules of `lab.read.health` after every step and writes new findings down.

    `correctness`: names of the rewards that decide what is right. With `stop`, the first critical finding ends the
    run, with a checkpoint.
    """

    def __init__(self, run: RunRecorder, correctness: Sequence[str], stop: bool = True) -> None:
        self.run, self.correctness, self.stop = run, tuple(correctness), stop
        self.findings: list[health.Finding] = []

    def problems(self) -> list[health.Finding]:
        """The findings that warn or are critical, after the last step."""
        return health.problems(self.findings)

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        rows = read_jsonl(self.run.folder / "log.jsonl")
        self.rows, self.reported = [row for row in rows if "reward" in row], {}

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if "reward" not in (logs or {}):
            return
        self.rows.append({"step": state.global_step, **logs})
        log = pd.DataFrame(self.rows)
        if args.scale_rewards == "batch":
            log = log.drop(columns=BY_GROUP, errors="ignore")  # TRL counts whole steps without spread then, not groups
        self.findings = health.diagnose(log, correctness=self.correctness)
        for finding in self.problems():
            if self.reported.get(finding.rule) == finding.verdict:
                continue
            about = {"rule": finding.rule, "verdict": finding.verdict, "message": finding.message}
            self.run.add_event({"kind": "health", **about})
            if self.stop and finding.verdict == "critical":
                way_out = "Other settings begin a new run; STOP_WHEN_CRITICAL = False goes on with this one"
                self.run.stop(f"{finding.rule}: {finding.message}. {finding.advice} {way_out}")
                self.run.apply_stop(control)
        self.reported = {finding.rule: finding.verdict for finding in self.findings}


class HeldOut(StatefulCallback):
    """Greedy answers to the same held-out prompts before the first step, every `every` steps and after the last.

    The random generators are put back afterwards, so that a run with evaluation takes the same steps as one without.
    Mean scores go to `log.jsonl` (and to every tracker) as `eval_<reward>`, the answers to `held_out/`.
    """

    def __init__(self, run: RunRecorder, rows: Sequence[Row], tokenizer: Any, every: int, max_new_tokens: int) -> None:
        self.run, self.rows, self.tokenizer, self.every = run, list(rows), tokenizer, every
        self.max_new_tokens = max_new_tokens
        self.prompts = [logged_prompt(tokenizer, row["prompt"]) for row in self.rows]  # as in training

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        evaluated = {row["step"] for row in read_jsonl(self.run.folder / "log.jsonl") if "eval_n" in row}
        if state.global_step == 0 or (self._is_due(state) and state.global_step not in evaluated):
            self._evaluate(args, state, control)  # the first one, or one that an error in it had prevented

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if "reward" in (logs or {}) and self._is_due(state):
            self._evaluate(args, state, control)

    def _is_due(self, state: Any) -> bool:
        return state.global_step % self.every == 0 or state.global_step >= state.max_steps

    def _evaluate(self, args: Any, state: Any, control: Any) -> None:
        began, step = time.time(), state.global_step
        table = score_groups(self.trainer.reward_funcs, self.rows, self._answer())
        logs = {f"eval_{f.__name__}": float(table[f.__name__].astype(float).mean()) for f in self.trainer.reward_funcs}
        logs |= {"eval_tokens": float(table["tokens"].mean()), "eval_n": len(table)}
        logs["eval_seconds"] = round(time.time() - began, 2)
        if self.run.is_main_process:
            asked = pd.DataFrame({"step": step, "prompt": self.prompts, **data_columns(self.rows)})
            table = pd.concat([asked, table.drop(columns=["group", "sample"])], axis=1)
            write_parquet(table, self.run.folder / "held_out" / f"held_out_{step:05d}.parquet")
        # not trainer.log: inside a log call it would take the training's metrics a second time
        state.log_history.append({"step": step, **logs})
        self.trainer.callback_handler.on_log(args, state, control, logs)

    def _answer(self) -> list:
        import torch
        from trl.models import unwrap_model_for_generation

        states, trainer = random_states(), self.trainer
        was_training, prompts = trainer.model.training, [row["prompt"] for row in self.rows]
        how = {"temperature": 0, "max_new_tokens": self.max_new_tokens, "batch_size": 64}
        try:
            with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model, torch.no_grad():
                return sample(model, self.tokenizer, prompts, **how)
        finally:
            trl_internals.set_training_mode(trainer, was_training)
            set_random_states(states)


class TemperatureAnnealing(StatefulCallback):
    """Linear from `start` at the first step to `end` at the last one.

    High at first, to explore; low at last, to settle. The log-probabilities are taken at the temperature of the
    samples, so it only changes where a new batch is sampled, not at a second pass (`num_iterations` > 1). Raises
    ValueError for 0 or less.
    """

    def __init__(self, start: float, end: float | None = None) -> None:
        self.start, self.end = start, start if end is None else end
        if min(self.start, self.end) <= 0:
            raise InputError("A temperature must be above 0: greedy completions of a group are all the same.")

    def at(self, step: int, last: int) -> float:
        """The temperature of the step that comes after `step` finished ones."""
        return self.start + (self.end - self.start) * min(1.0, step / max(1, last - 1))

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self.on_substep_end(args, state, control)
        trl_internals.add_metric(self.trainer, "temperature", self.trainer.temperature)

    def on_substep_end(self, args, state, control, **kwargs) -> None:
        if trl_internals.generates_next(self.trainer):  # a batch may also begin between two optimizer steps
            trl_internals.set_temperature(self.trainer, self.at(state.global_step, state.max_steps))


class RewardWeights(StatefulCallback):
    """The weights of the total reward, step by step: constant, in stages, adaptive, or both.

    Args:
        stages: `[(step, {reward: weight}), …]`: from that step on these weights hold; a reward that a stage does not
            name has weight 0 in it, and is still scored and logged.
        adaptive: whether a reward with little success gains weight and one with much loses it, by the factor
            `BOUND ** (1 - 2 * success)`. Success is the running mean of the score's place in the reward's range.
            Negative weights (penalties) stay as they are.

    Raises InputError for a stage that names an unknown reward, or whose weights are all 0.
    """

    def __init__(self, weights: Mapping[str, float], stages: Sequence[Stage] | None = None, adaptive: bool = False):
        self.names, self.adaptive = list(weights), adaptive
        self.stages = sorted([(0, weights), *(stages or [])], key=lambda stage: stage[0])
        self.success: list[float | None] = [None] * len(self.names)
        for step, given in self.stages:
            if unknown := [name for name in given if name not in self.names]:
                there = ", ".join(self.names)
                raise InputError(f"The stage at step {step} names {unknown[0]!r}; the rewards are: {there}.")
            if not any(given.values()):
                raise InputError(f"The stage at step {step} gives every reward the weight 0: nothing would be learned.")

    def at(self, step: int) -> list[float]:
        """The weights after `step` finished steps, in the order of the rewards."""
        given = [weights for start, weights in self.stages if start <= step][-1]
        weights = [given.get(name, 0.0) for name in self.names]
        if not self.adaptive:
            return weights
        factor = lambda weight, success: 1.0 if success is None or weight < 0 else BOUND ** (1 - 2 * success)
        return [weight * factor(weight, success) for weight, success in zip(weights, self.success)]

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        weights = self.trainer.reward_weights
        if trl_internals.generates_next(self.trainer):
            weights = self.trainer.reward_weights = weights.new_tensor(self.at(state.global_step))
        for name, weight in zip(self.trainer.reward_func_names, weights.tolist()):
            trl_internals.add_metric(self.trainer, f"weight/{name}", weight)

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        for i, (name, function) in enumerate(zip(self.trainer.reward_func_names, self.trainer.reward_funcs)):
            score = (logs or {}).get(f"rewards/{name}/mean")
            if score is None or np.isnan(score):
                continue  # an evaluation, or a batch that this reward could not score
            low, high = getattr(function, "low", 0.0), getattr(function, "high", 1.0)
            place = (score - low) / (high - low) if np.isfinite([low, high]).all() and high > low else score
            place, old = float(np.clip(place, 0, 1)), self.success[i]
            self.success[i] = place if old is None else MEMORY * old + (1 - MEMORY) * place

    def state(self) -> dict[str, Any]:
        return {"success": self.success}

    def restore(self, state: dict[str, Any]) -> None:
        self.success = list(state.get("success", self.success))
