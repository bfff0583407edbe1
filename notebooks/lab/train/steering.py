"""What changes while a run goes on: the sampling temperature and the reward weights."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lab.train.recorder import StatefulCallback
from lab.train.trl_internals import add_metric, generates_next, set_temperature

MEMORY = 0.9  # of the running mean of a reward's success: it looks back about ten steps
BOUND = 2.0  # the largest factor of an adaptive weight
Stage = tuple[int, Mapping[str, float]]  # a step, and the weights from there on


class TemperatureAnnealing(StatefulCallback):
    """Linear from `start` at the first step to `end` at the last one.

    High at first, to explore; low at last, to settle. The log-probabilities are taken at the temperature of the
    samples, so it only changes where a new batch is sampled, not at a second pass (`num_iterations` > 1). Raises
    ValueError for 0 or less.
    """

    def __init__(self, start: float, end: float | None = None) -> None:
        self.start, self.end = start, start if end is None else end
        if min(self.start, self.end) <= 0:
            raise ValueError("A temperature must be above 0: greedy completions of a group are all the same.")

    def at(self, step: int, last: int) -> float:
        """The temperature of the step that comes after `step` finished ones."""
        share = min(1.0, step / max(1, last - 1))
        return self.start + (self.end - self.start) * share

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self.on_substep_end(args, state, control)
        add_metric(self.trainer, "temperature", self.trainer.temperature)

    def on_substep_end(self, args, state, control, **kwargs) -> None:
        if generates_next(self.trainer):  # a batch may also begin between two optimizer steps
            set_temperature(self.trainer, self.at(state.global_step, state.max_steps))


class RewardWeights(StatefulCallback):
    """The weights of the total reward, step by step: constant, in stages, adaptive, or both.

    Args:
        stages: `[(step, {reward: weight}), …]`: from that step on these weights hold; a reward that a stage does not
            name has weight 0 in it, and is still scored and logged.
        adaptive: whether a reward with little success gains weight and one with much loses it, by the factor
            `BOUND ** (1 - 2 * success)`. Success is the running mean of the score's place in the reward's range.
            Negative weights (penalties) stay as they are.

    Raises ValueError for a stage that names an unknown reward, or whose weights are all 0.
    """

    def __init__(self, weights: Mapping[str, float], stages: Sequence[Stage] | None = None, adaptive: bool = False):
        self.names, self.adaptive = list(weights), adaptive
        self.stages = sorted([(0, weights), *(stages or [])], key=lambda stage: stage[0])
        self.success: list[float | None] = [None] * len(self.names)
        for step, given in self.stages:
            if unknown := [name for name in given if name not in self.names]:
                there = ", ".join(self.names)
                raise ValueError(f"The stage at step {step} names {unknown[0]!r}; the rewards are: {there}.")
            if not any(given.values()):
                raise ValueError(f"The stage at step {step} gives every reward the weight 0: nothing would be learned.")

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
        if generates_next(self.trainer):
            weights = self.trainer.reward_weights = weights.new_tensor(self.at(state.global_step))
        for name, weight in zip(self.trainer.reward_func_names, weights.tolist()):
            add_metric(self.trainer, f"weight/{name}", weight)

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
