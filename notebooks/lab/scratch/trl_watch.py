"""Watching a GRPOTrainer while it trains: the tokens, scores, weights, losses and gradients of each of its steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainerCallback

from lab.train import trl_internals

Weights = dict[str, torch.Tensor]  # by name


@dataclass
class Step:
    """One optimizer step of a trainer.

    A micro-batch is what the trainer computed from: `prompt_ids` (B, P), `completion_ids` (B, T), `completion_mask`
    (B, T), `advantages` (B,), …; and `place` (B,): where each completion stood when it was scored, the completions of
    one prompt side by side.
    """

    weights: Weights  # what was trained, as it stood before the step, by name
    batches: list[Weights] = field(default_factory=list)  # one a micro-batch
    losses: list[float] = field(default_factory=list)  # of each micro-batch; they add up to that of the step
    gradients: Weights = field(default_factory=dict)  # what the optimizer was given, by name


class Watch(TrainerCallback):
    """Records every step of a trainer from `watch.attach(trainer)` on."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.rewards = torch.empty(0)  # (B,) scores of the last generation, the completions of a prompt side by side

    def attach(self, trainer: Any) -> Any:
        """Watches a trainer with one reward function, and returns it."""
        plain = trainer.compute_loss

        def score(calculate: Callable, *call: Any) -> torch.Tensor:
            scores = calculate(*call)
            self.rewards = scores[:, 0]
            return scores

        def compute_loss(model: Any, inputs: dict[str, Any], *more: Any, **named: Any) -> torch.Tensor:
            loss, step = plain(model, inputs, *more, **named), self.steps[-1]
            step.batches.append({name: one.detach().clone() for name, one in inputs.items() if torch.is_tensor(one)})
            step.losses.append(loss.item())
            return loss

        trl_internals.wrap_scoring(trainer, score)
        trl_internals.number_completions(trainer)
        trainer.compute_loss = compute_loss
        trainer.add_callback(self)
        return trainer

    def on_step_begin(self, *_: Any, model: Any, **__: Any) -> None:
        self.steps.append(Step({name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}))

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        reached = ((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)
        self.steps[-1].gradients = {name: gradient.clone() for name, gradient in reached}
