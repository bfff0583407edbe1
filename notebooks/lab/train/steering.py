"""What changes while a run goes on: temperature, reward weights, and a prefilled assistant turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import TrainerCallback

from lab.train.trl_internals import generates_next, set_temperature, trainer_metrics

MEMORY = 0.9  # of the running mean of a reward's success: it looks back about ten steps


class RunPart(TrainerCallback):
    """A callback that knows its trainer, and whose state goes into every checkpoint."""

    trainer: Any = None

    def attach(self, trainer: Any) -> Any:
        """Joins the training; returns itself."""
        self.trainer = trainer
        trainer.add_callback(self)
        return self

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to go on as if nothing had happened; JSON-able."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back what `state` gave."""


class TemperatureAnnealing(RunPart):
    """Linear from `start` at the first step to `end` at step `steps`, then constant.

    High at first, to explore; low at last, to settle. The log-probabilities are taken at the same
    temperature as the samples, so it only changes where a new batch is sampled: a second pass over
    a batch (`num_iterations` > 1) still uses the temperature that it was sampled at.

    Raises ValueError for a temperature of 0 or less: greedy groups have no spread.
    """

    def __init__(self, start: float, end: float | None = None, steps: int | None = None) -> None:
        self.start, self.end, self.steps = start, start if end is None else end, steps
        if min(self.start, self.end) <= 0:
            raise ValueError(
                "A temperature must be above 0: without sampling the completions of a group are all the same."
            )

    def at(self, step: int, last: int) -> float:
        """The temperature of the step that comes after `step` finished ones."""
        share = min(1.0, step / max(1, (self.steps or last) - 1))
        return self.start + (self.end - self.start) * share

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self.on_substep_end(args, state, control)
        trainer_metrics(self.trainer, "temperature", self.trainer.temperature)

    def on_substep_end(self, args, state, control, **kwargs) -> None:
        if generates_next(self.trainer):  # a batch may also begin between two optimizer steps
            set_temperature(self.trainer, self.at(state.global_step, state.max_steps))


class RewardWeights(RunPart):
    """The weights of the total reward, step by step: constant, in stages, adaptive, or both.

    Args:
        stages: `[(step, {reward: weight}), …]`: from that step on these weights hold; a reward that a
            stage does not name has weight 0 in it, and is still scored and logged.
        adaptive: whether a reward with little success gains weight and one with much loses it. The
            factor is `bound ** (1 - 2 * success)`: `bound` where success is 0, 1 at one half and
            1 / bound where every completion has full score. Success is the running mean of the score's
            place in the reward's range. Negative weights (penalties) stay as they are.
        bound: the factor's largest value, at least 1.

    Raises ValueError for a stage that names an unknown reward, or whose weights are all 0.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        stages: Sequence[tuple[int, Mapping[str, float]]] | None = None,
        adaptive: bool = False,
        bound: float = 2.0,
    ) -> None:
        self.names, self.adaptive, self.bound = list(weights), adaptive, bound
        self.stages = sorted(
            [(0, dict(weights)), *((step, dict(given)) for step, given in stages or [])], key=lambda s: s[0]
        )
        self.success: list[float | None] = [None] * len(self.names)
        for step, given in self.stages:
            unknown = [name for name in given if name not in self.names]
            if unknown:
                raise ValueError(
                    f"The stage at step {step} names {unknown[0]!r}; the rewards are: {', '.join(self.names)}."
                )
            if not any(given.values()):
                raise ValueError(f"The stage at step {step} gives every reward the weight 0: nothing would be learned.")
        if bound < 1:
            raise ValueError(f"bound is the largest factor of a weight, at least 1, not {bound:g}.")

    def at(self, step: int) -> list[float]:
        """The weights after `step` finished steps, in the order of the rewards."""
        given = [weights for start, weights in self.stages if start <= step][-1]
        return [given.get(name, 0.0) * self.factor(i, given.get(name, 0.0)) for i, name in enumerate(self.names)]

    def factor(self, i: int, weight: float) -> float:
        success = self.success[i]
        return 1.0 if not self.adaptive or success is None or weight < 0 else self.bound ** (1 - 2 * success)

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        if generates_next(self.trainer):
            weights = self.at(state.global_step)
            self.trainer.reward_weights = self.trainer.reward_weights.new_tensor(weights)
        for name, weight in zip(self.trainer.reward_func_names, self.trainer.reward_weights.tolist()):
            trainer_metrics(self.trainer, f"weight/{name}", weight)

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
