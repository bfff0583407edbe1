"""Watching a GRPOTrainer while it trains: the tokens, scores, weights, losses and gradients of each of its steps."""

import functools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainerCallback

Weights = dict[str, torch.Tensor]  # by name
Places = dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]]  # prompt and completion, as token ids -> places


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
    """Records every step of a trainer: `reward_funcs=watch.scores(f)`, then `watch.attach(trainer)` before training."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.rewards = torch.empty(0)  # (B,) scores of the last generation, the completions of a prompt side by side
        self._prompts, self._completions = (), ()  # of the last generation; the completions as token ids
        self._free: Places = {}  # of the step, not yet given to a row

    def scores(self, function: Callable[..., list[float]]) -> Callable[..., list[float]]:
        """The reward function, which now also records its calls."""

        @functools.wraps(function)
        def watched(**columns: Any) -> list[float]:
            scores = function(**columns)
            self.rewards = torch.tensor(scores, dtype=torch.float32)
            self._prompts, self._completions = columns["prompts"], columns["completion_ids"]
            return scores

        return watched

    def attach(self, trainer: Any) -> Any:
        """Watches a trainer, and returns it."""
        plain, tokenizer = trainer.compute_loss, trainer.processing_class

        def compute_loss(model: Any, inputs: dict[str, Any], *more: Any, **named: Any) -> torch.Tensor:
            loss, step = plain(model, inputs, *more, **named), self.steps[-1]
            kept = {name: value.detach().clone() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
            if not step.batches:
                self._free = self._all_places(tokenizer)
            step.batches.append(kept | {"place": self._find_places(kept)})
            step.losses.append(loss.item())
            return loss

        trainer.compute_loss = compute_loss
        trainer.add_callback(self)
        return trainer

    def on_step_begin(self, *_: Any, model: Any, **__: Any) -> None:
        self.steps.append(Step({name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}))

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        reached = ((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)
        self.steps[-1].gradients = {name: gradient.clone() for name, gradient in reached}

    def _all_places(self, tokenizer: Any) -> Places:
        """Where each pair of prompt and completion, as token ids, stood when it was scored. Equal pairs have several."""
        chats = tokenizer.apply_chat_template(self._prompts, add_generation_prompt=True, return_dict=True)
        places: Places = defaultdict(list)
        for place, (prompt, completion) in enumerate(zip(chats["input_ids"], self._completions, strict=True)):
            places[tuple(prompt), tuple(completion)].append(place)
        return places

    def _find_places(self, batch: Weights) -> torch.Tensor:
        """The places (B,) of a micro-batch's rows, which TRL has shuffled. Raises KeyError if one was not scored."""
        columns = [batch[f"{part}_{kind}"] for part in ("prompt", "completion") for kind in ("ids", "mask")]
        keys = [(tuple(p[pm.bool()].tolist()), tuple(c[cm.bool()].tolist())) for p, pm, c, cm in zip(*columns)]
        return torch.tensor([self._free[key].pop(0) for key in keys])
