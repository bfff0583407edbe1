"""The exercises of notebook 00: five short functions of GRPO, with feedback that names the usual mistakes.

Each mistake is stored as a function that makes it. An attempt that returns the same numbers made the same mistake:

>>> print(MEAN.feedback(lambda per_token, mask: (per_token * mask).mean()))
Not yet: padding is counted. Its values are masked, but the divisor is the number of all places.
Divide by the number of tokens.

For any other mistake, the feedback shows the first call that differs, with what came and what was expected.
"""

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

WIDTH = 100  # characters of a line of feedback
close = partial(torch.allclose, rtol=1e-5, atol=1e-5)


@dataclass(frozen=True)
class Exercise:
    """One function to write."""

    task: str  # what the function computes
    lesson: str  # shown once the attempt is right
    calls: Sequence[tuple[Any, ...]]  # the arguments of the calls by which an attempt is judged
    solution: Callable[..., Tensor]  # a right function
    mistakes: Mapping[str, Callable[..., Tensor]]  # a sentence that helps -> a function that makes the mistake
    has_gradient: bool = True  # whether the first argument has to get a gradient

    def feedback(self, attempt: Callable[..., Tensor]) -> str:
        """What to tell the author of an attempt: "Right: …" or "Not yet: …". Errors of the attempt become text too."""
        expected = [self.run(self.solution, call) for call in self.calls]
        came = []
        for call, (numbers, _) in zip(self.calls, expected):
            try:
                came.append(self.run(attempt, call))
                if (shape := came[-1][0].shape) != numbers.shape:
                    raise ValueError(f"the result's shape is {tuple(shape)}, and {tuple(numbers.shape)} is expected.")
            except Exception as error:
                return self.not_yet(f"{type(error).__name__}: {str(error)[:300]}", call)
        right = [close(numbers, wanted) for (numbers, _), (wanted, _) in zip(came, expected)]
        if all(right):
            if all(close(slope, wanted) for (_, slope), (_, wanted) in zip(came, expected)):
                return textwrap.fill(f"Right: {self.lesson}", WIDTH)
            return self.not_yet(
                f"the numbers are right, but not the gradient that flows back to {self.names[0]}. Was a part of the "
                "computation detached, or turned into plain numbers?"
            )
        for sentence, mistaken in self.mistakes.items():
            if all(close(numbers, self.run(mistaken, call)[0]) for call, (numbers, _) in zip(self.calls, came)):
                return self.not_yet(sentence)
        call, numbers, wanted = (of_each[right.index(False)] for of_each in (self.calls, came, expected))
        return self.not_yet(f"the numbers differ. The task: {self.task}", call, came=numbers[0], expected=wanted[0])

    @property
    def names(self) -> list[str]:
        """The names of the arguments of a call."""
        return list(inspect.signature(self.solution).parameters)[: len(self.calls[0])]

    def run(self, function: Callable[..., Tensor], call: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """A function's numbers for a call, and the gradient of their sum: zeros where none flows."""
        first, *others = [value.clone() if isinstance(value, Tensor) else value for value in call]
        gradient = torch.zeros_like(first)
        with torch.enable_grad():
            leaf = first.requires_grad_(self.has_gradient)
            result = function(leaf.clone(), *others)  # a clone: torch lets nobody change a leaf in place
            if not isinstance(result, Tensor):
                raise TypeError(f"the function returns {type(result).__name__}, and not a torch tensor.")
            if self.has_gradient and result.requires_grad:
                (gradient,) = torch.autograd.grad(result.sum(), leaf, materialize_grads=True)
        return result.detach().double(), gradient.double()

    def not_yet(self, sentence: str, call: tuple[Any, ...] = (), **numbers: Tensor) -> str:
        """The sentence, and under it a line for each argument of a call, and for what came of it."""
        lines = [textwrap.fill(f"Not yet: {sentence}", WIDTH)]
        for name, value in {**dict(zip(self.names, call)), **numbers}.items():
            head = f"  {name:15}"
            if isinstance(value, Tensor):
                value = value.long() if torch.equal(value, value.round()) else value
                look = {"precision": 5, "suppress_small": True, "separator": ", ", "max_line_width": 120}
                value = np.array2string(value.numpy(), prefix=head, **look)
            lines.append(f"{head}{value}")
        return "\n".join(lines)


def floats(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def right_advantages(rewards: Tensor, group_size: int, correction: int = 1) -> Tensor:
    groups = rewards.view(-1, group_size)
    spread = groups.std(1, keepdim=True, correction=correction)
    return ((groups - groups.mean(1, keepdim=True)) / (spread + 1e-4)).flatten()


ADVANTAGES = Exercise(
    task="For every completion, its reward minus the mean of its group, divided by the standard deviation of its group "
    "(the form with n - 1) plus 1e-4. The group_size completions of one prompt stand side by side.",
    lesson="a completion is compared only with the others of its own prompt. An easy prompt is no head start, and a "
    "group whose rewards are all equal teaches nothing.",
    # in the last call the prompts differ, and the completions of each do not
    calls=((floats(1, 0, 3, 5, 2, 2), 2), (floats(0, 1, 0.5, 0, 2, 3, 2, 2.25), 4), (floats(1, 1, 1, 0, 0, 0), 3)),
    solution=right_advantages,
    mistakes={
        "the advantages were not taken within the group. Mean and standard deviation are those of the whole batch, so "
        "all completions of an easy prompt look good and all of a hard one bad. Give the completions of each prompt a "
        "row of their own.": lambda rewards, group_size: (rewards - rewards.mean()) / (rewards.std() + 1e-4),
        "the standard deviation was divided by n. The form with n - 1 is asked for, which torch's std gives by default "
        "and numpy's does not.": lambda rewards, group_size: right_advantages(rewards, group_size, correction=0),
    },
    has_gradient=False,
)


def right_mask(ids: Tensor, prompt_length: int, end: int, pad: int) -> Tensor:
    ends = (ids[:, prompt_length:] == end).long()
    completion = (ends.cumsum(1) - ends == 0).long()
    return torch.cat([torch.zeros_like(ids[:, :prompt_length]), completion], dim=1)


PADDED = torch.tensor([[0, 0, 5, 2, 7, 8, 2, 0, 0], [0, 6, 2, 5, 7, 2, 0, 0, 0], [5, 2, 6, 2, 7, 8, 7, 8, 6]])
PADDED_WITH_END = torch.tensor([[2, 5, 6, 7, 8, 2, 2], [6, 2, 5, 2, 2, 2, 2], [2, 2, 6, 8, 7, 5, 6]])
MASK = Exercise(
    task="In the shape of ids, 1 on the completion's tokens up to and including its first end token, 0 on the prompt and "
    "on the padding. A row is a left-padded prompt of prompt_length places and a right-padded completion. A completion "
    "without end token was cut at the limit, and is all 1.",
    lesson="only what the policy itself wrote enters the loss, and its decision to stop is part of it.",
    calls=((PADDED, 4, 2, 0), (PADDED_WITH_END, 3, 2, 2)),
    solution=right_mask,
    mistakes={
        "the mask also covers the prompt. Its tokens were given to the policy, it did not choose them.": (
            lambda ids, p, end, pad: right_mask(ids, p, end, pad) | (torch.arange(ids.shape[1]) < p)
        ),
        "the end token itself is missing from the mask. The policy then never learns to stop.": (
            lambda ids, p, end, pad: right_mask(ids, p, end, pad) * (ids != end)
        ),
        "tokens that equal pad are masked out. Many models pad with their end token, and then the end of every "
        "completion is lost. Look for the first end token instead.": (
            lambda ids, p, end, pad: (ids != pad) & (torch.arange(ids.shape[1]) >= p)
        ),
    },
    has_gradient=False,
)


def right_kl(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """The estimator k3 of http://joschu.net/blog/kl-approx.html, for samples of the policy."""
    gap = ref_logps - logps
    return gap.exp() - gap - 1


KL = Exercise(
    task="For every token, the estimate k3 of the policy's KL divergence from the reference: with d = ref_logps - logps, "
    "exp(d) - d - 1.",
    lesson="the estimate is 0 where policy and reference agree and above 0 everywhere else. Over the policy's own samples "
    "its mean is the KL divergence.",
    calls=(
        (floats([-1, -0.5, -2], [-0.3, -1.2, -0.8]), floats([-1, -1.5, -0.6], [-0.8, -1, -2])),
        (floats([-0.1, -3, -1.5, -0.7]), floats([-0.2, -1, -2.5, -0.4])),
    ),
    solution=right_kl,
    mistakes={
        "this is k1, logps - ref_logps. Its mean is right, but at a single token it can be negative.": torch.sub,
        "the direction is turned round. Policy and reference have changed places, and the samples are the policy's.": (
            lambda logps, ref_logps: right_kl(ref_logps, logps)
        ),
    },
)


def right_clip(logps: Tensor, old_logps: Tensor, advantages: Tensor, epsilon: float, epsilon_high: float) -> Tensor:
    ratio, advantages = (logps - old_logps).exp(), advantages[:, None]
    return -torch.min(ratio * advantages, ratio.clamp(1 - epsilon, 1 + epsilon_high) * advantages)


CLIP = Exercise(
    task="For every token, minus the smaller of ratio * advantage and clipped ratio * advantage. The ratio is "
    "exp(logps - old_logps), clipped to the interval from 1 - epsilon to 1 + epsilon_high. A completion's advantage holds "
    "for all of its tokens.",
    lesson="a token whose ratio has already left the interval in the direction of its advantage gets no more gradient, "
    "so one batch cannot push the policy far.",
    calls=(
        (*floats([[-0.6, -1.5, -1], [-1.2, -0.9, -1.5]], [[-1, -1, -1], [-2, -0.5, -1.5]]), floats(1, -0.5), 0.2, 0.28),
        (*floats([[-0.78, -1.1], [-0.7, -0.2]], [[-1, -1], [-1.1, -0.5]]), floats(1.5, -1), 0.1, 0.3),
    ),
    solution=right_clip,
    mistakes={
        "only the clipped product is there, the min is missing. A token that went the wrong way beyond the interval then "
        "gets no gradient to bring it back.": lambda new, old, advantages, epsilon, epsilon_high: (
            -(new - old).exp().clamp(1 - epsilon, 1 + epsilon_high) * advantages[:, None]
        ),
    },
)


MEAN = Exercise(
    task="One number: the mean of per_token over all completion tokens of the step, those where mask is 1.",
    lesson="every completion token of the step weighs the same, whether its completion is short or long (that is "
    'loss_type="dapo").',
    calls=(
        (floats([1, 2, 9, 9], [-1, 0.5, 3, 2]), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])),
        (floats([0.5, 4, -3], [2, -1, 0.25]), torch.tensor([[1, 0, 0], [1, 1, 1]])),
    ),
    solution=lambda per_token, mask: (per_token * mask).sum() / mask.sum(),
    mistakes={
        "padding is counted. Its values are masked, but the divisor is the number of all places. Divide by the number of "
        "tokens.": lambda per_token, mask: (per_token * mask).mean(),
        'the mean of each completion was taken first, then the mean over the completions (that is loss_type="grpo"). A '
        "token of a short completion then counts more than one of a long completion.": (
            lambda per_token, mask: ((per_token * mask).sum(1) / mask.sum(1)).mean()
        ),
    },
)
ALL = (ADVANTAGES, MASK, KL, CLIP, MEAN)
