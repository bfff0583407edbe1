"""The exercises of the notebook 00_grpo_from_scratch: five short functions of GRPO, and a check that names what is wrong.

A cell of the notebook holds a function with a classic mistake in it. The reader prints the check's verdict and mends the
function until the verdict is "Right":

>>> def my_advantages(rewards, group_size):
...     return (rewards - rewards.mean()) / (rewards.std() + 1e-4)
>>> print(ADVANTAGES.check(my_advantages))  # doctest: +ELLIPSIS
Not yet: the advantages were not taken within the group: ...

An exercise knows its right answer and the mistakes that people make, each as a function: a verdict compares what the
reader's function makes of a few small cases with what those make of them. A mistake that is not listed, or two at once,
gets the first case that differs, with what came and what is expected.

Shapes: B completions, L places of prompt and completion together, T places of a completion.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CLOSE = {
    "rtol": 1e-5,
    "atol": 1e-5,
    "equal_nan": True,
}  # nan equals nan: a mistake that makes nan has to be known again
LONGEST = 300  # characters of an error's message: torch prints whole stacks of C++ into some
NOTHING = "it returns nothing: write the function's return."
WIDTH = 100  # characters of a line of prose
DIGITS = range(3, 9)  # three digits read well; more only where the difference is smaller than that
FLOATS = (torch.float32, torch.float64)  # half precision is coarser than what is compared
Case = Mapping[str, Any]  # the arguments of one call by name, in their order


@dataclass(frozen=True)
class Result:
    """What a function made of one case: numbers, or the fault that kept them from being compared."""

    values: Tensor | None = None
    gradient: Tensor | str | None = None  # a text says why there is none
    fault: str = ""
    raised: bool = False


@dataclass(frozen=True, eq=False)
class Exercise:
    """One function to write, and all that is needed to judge an attempt.

    Args:
        name: what the function computes.
        wanted: the task, in a sentence or two.
        why: shown after "Right: ".
        cases: the arguments of the calls, by name and in their order.
        right: the reference.
        mistakes: for every sentence, a function that makes exactly the mistake that it names.
        gradient_of: the argument whose gradient is compared too; "" where none flows.
        detached: the sentence for right numbers without that gradient.
        zero_one: whether the result is a mask, so that bools and whole numbers will do.
    """

    name: str
    wanted: str
    why: str
    cases: Sequence[Case]
    right: Callable[..., Tensor]
    mistakes: Mapping[str, Callable[..., Tensor]]
    gradient_of: str = ""
    detached: str = ""
    zero_one: bool = False

    def check(self, f: Callable[..., Tensor]) -> str:
        """What is to be said about an attempt: "Right: …" or "Not yet: …".

        Whatever `f` does becomes a text; only KeyboardInterrupt passes through. `f` gets copies, gradients are on and
        torch's random numbers begin with the same seed, so the verdict is the same every time; torch's random state
        and gradient mode are afterwards what they were.
        """
        return wrapped(self.verdict(f))

    def verdict(self, f: Callable[..., Tensor]) -> str:
        """`check` before its lines are broken."""
        if not callable(f):
            return f"Not yet: {type(f).__name__} is no function. Hand over the function itself, without calling it."
        wanted = [self.call(self.right, case) for case in self.cases]
        got = self.results(f, wanted)
        if all(map(same_values, got, wanted)):
            return self.about_gradients(got, wanted) or f"Right: {self.why}"
        for sentence, wrong in self.mistakes.items():
            if all(map(same_values, got, self.results(wrong, wanted))):
                return f"Not yet: {sentence}"
        return self.about_values(got, wanted)

    def results(self, f: Callable[..., Tensor], wanted: Sequence[Result]) -> list[Result]:
        return [self.call(f, case, right.values.shape) for case, right in zip(self.cases, wanted)]

    def call(self, f: Callable[..., Tensor], case: Case, shape: Sequence[int] | None = None) -> Result:
        """What `f` makes of a copy of the case; a result of another shape than `shape` is a fault."""
        with undisturbed():
            given = {name: copied(value) for name, value in case.items()}
            leaf = None
            if (
                self.gradient_of
            ):  # `f` gets a copy of the leaf: torch forbids changes of the leaf, and we want to see them
                leaf = given[self.gradient_of].requires_grad_()
                given[self.gradient_of] = leaf.clone()
            trouble = "it raises"
            try:
                returned = f(*given.values())
                trouble = "its result cannot be read:"
                changed = [name for name, value in case.items() if not unchanged(given[name], value)]
                fault = self.fault(returned, changed, shape)
                return Result(fault=fault) if fault else Result(numbers(returned), gradient(returned, leaf))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also SystemExit: an attempt must not end the notebook's kernel
                return Result(fault=f"{trouble} {said(error)}", raised=trouble == "it raises")

    def fault(self, returned: Any, changed: Sequence[str], shape: Sequence[int] | None) -> str:
        """What keeps a result from being compared number by number; "" where nothing does."""
        if returned is None or returned is Ellipsis:
            return NOTHING
        if changed:
            return (
                f"it changes its input {' and '.join(changed)} in place, and whatever uses that tensor later in the step "
                "gets other numbers: compute a new tensor instead."
            )
        if not isinstance(returned, Tensor):
            lost = f", so that no gradient can reach {self.gradient_of}" if self.gradient_of else ""
            return f"it returns something of type {type(returned).__name__} and not a torch tensor{lost}."
        if shape is not None and returned.shape != shape:
            return f"the result's shape is {tuple(returned.shape)}; {tuple(shape)} is expected."
        if returned.is_complex() or not (self.zero_one or returned.dtype in FLOATS):
            return f"the result's numbers are of type {returned.dtype}; float32, as the inputs have, is expected."
        return ""

    def about_values(self, got: Sequence[Result], wanted: Sequence[Result]) -> str:
        """The first fault or, where there is none, the first case whose numbers differ."""
        for case, one in zip(self.cases, got):
            if one.fault:
                return f"Not yet: {one.fault}" + ("" if one.fault == NOTHING else f"\n{table(case)}")
        case, came, expected = next(
            (case, one.values, right.values)
            for case, one, right in zip(self.cases, got, wanted)
            if not same_values(one, right)
        )
        what = "the numbers differ." if came.isfinite().all() else "the result holds nan or inf."
        what += f" Asked for: {self.wanted}"
        return f"Not yet: {what}\n{table(case, came, expected)}"

    def about_gradients(self, got: Sequence[Result], wanted: Sequence[Result]) -> str:
        """What is wrong with the gradient of right numbers; "" where nothing is."""
        if not self.gradient_of:
            return ""
        broken = next((one.gradient for one in got if isinstance(one.gradient, str)), "")
        if broken:
            return f"Not yet: the numbers are right, but their gradient cannot be computed: {broken}"
        if not any(one.gradient.any() for one in got):
            return f"Not yet: the numbers are right, but no gradient flows: {self.detached}"
        for case, one, right in zip(self.cases, got, wanted):
            if not torch.allclose(one.gradient, right.gradient, **CLOSE):
                what = (
                    f"the numbers are right, but the gradient of their sum with respect to {self.gradient_of} differs."
                )
                return f"Not yet: {what}\n{table(case, one.gradient, right.gradient)}"
        return ""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Gradients on and the same random numbers, whatever the cell around it has set; afterwards all is as before."""
    state = torch.get_rng_state()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            torch.default_generator.manual_seed(0)  # torch.manual_seed would seed the GPUs too
            yield
    finally:
        torch.set_rng_state(state)


def copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def unchanged(given: Any, original: Any) -> bool:
    """Whether a copy still is what it was; numbers cannot be changed in place."""
    if not isinstance(original, Tensor):
        return True
    return given.dtype == original.dtype and torch.equal(given.detach(), original)


def numbers(returned: Tensor) -> Tensor:
    """A result as numbers to compare: on the CPU, dense, without what a subclass of Tensor may add."""
    return returned.detach().to_dense().to("cpu", torch.float64).as_subclass(Tensor)


def gradient(returned: Tensor, leaf: Tensor | None) -> Tensor | str | None:
    """The gradient of the result's sum: zeros where none flows, a text where torch cannot compute it."""
    if leaf is None:
        return None
    if not returned.requires_grad:
        return torch.zeros_like(leaf, dtype=torch.float64)
    try:
        return numbers(torch.autograd.grad(returned.sum(), leaf, materialize_grads=True)[0])
    except Exception as error:
        return said(error)


def said(error: BaseException) -> str:
    """An error's type and message; the message is the attempt's own, and may itself fail."""
    try:
        message = str(error).strip()
    except Exception:
        message = ""
    message = message if len(message) <= LONGEST else message[:LONGEST] + " …"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def same_values(one: Result, other: Result) -> bool:
    """Whether two functions made the same of a case; both may have raised."""
    if one.values is None or other.values is None:
        return one.raised and other.raised
    return one.values.shape == other.values.shape and torch.allclose(one.values, other.values, **CLOSE)


def wrapped(verdict: str) -> str:
    """With its first line, the sentence, broken to be read; the table behind it stays as it is."""
    sentence, *rest = verdict.split("\n")
    return "\n".join([textwrap.fill(sentence, WIDTH), *rest])


def table(case: Case, came: Tensor | None = None, expected: Tensor | None = None) -> str:
    """A case and, where given, what came of it and what is expected: a name and its numbers to a line."""
    lines = {name: shown(value, DIGITS[0]) for name, value in case.items()}
    if came is not None:
        digits = next((d for d in DIGITS if shown(came, d) != shown(expected, d)), DIGITS[-1])
        lines |= {"came": shown(came, digits), "expected": shown(expected, digits)}
    width = max(map(len, lines)) + 2
    return "\n".join(f"  {name:{width}}" + text.replace("\n", "\n" + " " * (width + 2)) for name, text in lines.items())


def shown(value: Any, digits: int) -> str:
    """Numbers to read: rounded, the rows of a matrix under each other."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return number(float(value), digits)
    rows = value.tolist() if value.dim() == 2 else [value.tolist()]
    cells = [[number(float(x), digits) for x in row] for row in rows]
    width = max(len(cell) for row in cells for cell in row) if len(rows) > 1 else 0
    return "\n".join("[" + ", ".join(cell.rjust(width) for cell in row) + "]" for row in cells)


def number(x: float, digits: int) -> str:
    return repr(round(x, digits) + 0.0).removesuffix(".0")  # + 0.0: no "-0"


def floats(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def whole(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.long)


def right_advantages(rewards: Tensor, group_size: int) -> Tensor:
    made = []
    for group in rewards.split(group_size):
        made.append((group - group.mean()) / (group.std() + 1e-4))
    return torch.cat(made)


def of_groups(compute: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int], Tensor]:
    """The function of (rewards, group_size) that computes on groups, one a row."""
    return lambda rewards, group_size: compute(rewards.view(-1, group_size)).flatten()


def standardized(groups: Tensor, dim: int) -> Tensor:
    return (groups - groups.mean(dim, keepdim=True)) / (groups.std(dim, keepdim=True) + 1e-4)


def centred(groups: Tensor) -> Tensor:
    return groups - groups.mean(1, keepdim=True)


def spread(groups: Tensor, **how: Any) -> Tensor:
    return groups.std(1, keepdim=True, **how) + 1e-4


ADVANTAGES = Exercise(
    name="advantages",
    wanted=(
        "For every completion, its reward minus the mean of its group, divided by the standard deviation of its group (the "
        "form with n - 1) plus 1e-4. The group_size completions of one prompt stand side by side."
    ),
    why=(
        "a completion is compared only with the others of its own prompt, so an easy prompt is no head start, and a group "
        "whose rewards are all equal teaches nothing."
    ),
    cases=(
        {"rewards": floats(1, 0, 3, 5, 2, 2), "group_size": 2},
        {"rewards": floats(0, 1, 0.5, 0, 2, 3, 2, 2.25), "group_size": 4},
        {"rewards": floats(1, 1, 1, 0, 0, 0), "group_size": 3},  # the prompts differ, the completions of each do not
    ),
    right=right_advantages,
    mistakes={
        "the advantages were not taken within the group: mean and standard deviation are those of the whole batch, so all "
        "completions of an easy prompt look good and all of a hard one bad. Give every prompt's completions a row of "
        "their own.": (lambda rewards, group_size: (rewards - rewards.mean()) / (rewards.std() + 1e-4)),
        'the mean is that of the group, but the standard deviation that of the whole batch (that is scale_rewards="batch"): '
        "take both over the same completions.": (of_groups(lambda g: centred(g) / (g.std() + 1e-4))),
        "the standard deviation is that of the group, but the mean that of the whole batch: take both over the same "
        "completions.": (of_groups(lambda g: (g - g.mean()) / spread(g))),
        "the standard deviation was divided by n: the form with n - 1 is asked for, which is what torch's std gives "
        "unless told otherwise.": (of_groups(lambda g: centred(g) / spread(g, correction=0))),
        "the rewards were divided by the variance: the standard deviation is its square root.": (
            of_groups(lambda g: centred(g) / (g.var(1, keepdim=True) + 1e-4))
        ),
        'nothing was divided by the standard deviation (that is scale_rewards="none"), so a group whose rewards lie far '
        "apart moves the policy more than one whose rewards lie close.": (of_groups(centred)),
        "the rewards were not centred: as long as the group's mean is not taken off, a positive reward reinforces even "
        "the worst completion of its group.": (of_groups(lambda g: g / spread(g))),
        "the sign is turned round: a reward above its group's mean has to give a positive advantage.": (
            of_groups(lambda g: -centred(g) / spread(g))
        ),
        "the groups run across the prompts: each was gathered from places that lie apart, while the completions of one "
        "prompt stand side by side. Which of the two dimensions has to hold group_size?": (
            lambda rewards, group_size: standardized(rewards.view(group_size, -1), 0).flatten()
        ),
        "mean and standard deviation were taken down the columns, over completions of different prompts: a group is a "
        "row.": (of_groups(lambda g: standardized(g, 0))),
        "the groups have the wrong size: there are group_size rows, where every row has to hold group_size completions.": (
            lambda rewards, group_size: standardized(rewards.view(group_size, -1), 1).flatten()
        ),
        "nothing was added to the standard deviation: a group whose rewards are all equal divides 0 by 0, which is nan.": (
            of_groups(lambda g: centred(g) / g.std(1, keepdim=True))
        ),
    },
)


def right_mask(ids: Tensor, prompt_length: int, end: int, pad: int) -> Tensor:
    mask = torch.zeros_like(ids)
    for row, kept in zip(ids.tolist(), mask):
        completion = row[prompt_length:]
        length = completion.index(end) + 1 if end in completion else len(completion)
        kept[prompt_length : prompt_length + length] = 1
    return mask


def ends(ids: Tensor, prompt_length: int, end: int, missing: int | None = None) -> Tensor:
    """(B, 1): the place after each completion's first end token; without one, the row's length or `missing`."""
    is_end = ids[:, prompt_length:] == end
    first = prompt_length + is_end.int().argmax(1) + 1
    return torch.where(is_end.any(1), first, ids.shape[1] if missing is None else missing).unsqueeze(1)


def between(ids: Tensor, start: int | Tensor, stop: int | Tensor) -> Tensor:
    """1 from place `start` up to before place `stop`."""
    places = torch.arange(ids.shape[1]).expand_as(ids)
    return ((places >= start) & (places < stop)).long()


def last_end(ids: Tensor, prompt_length: int, end: int) -> Tensor:
    """(B, 1): as `ends`, with each completion's last end token."""
    found = [
        [place for place, token in enumerate(row) if token == end and place >= prompt_length] for row in ids.tolist()
    ]
    return whole(*([places[-1] + 1 if places else ids.shape[1]] for places in found))


MASK = Exercise(
    name="completion mask",
    wanted=(
        "In the shape of ids, 1 on the completion's tokens up to and including its first end token, 0 on the prompt and on "
        "the padding. A row is a left-padded prompt of prompt_length places and a right-padded completion; a completion "
        "without end token was cut at the limit, and is all 1."
    ),
    why="only what the policy itself wrote enters the loss, and its decision to stop is part of it.",
    cases=(
        {
            "ids": whole([0, 0, 5, 2, 7, 8, 2, 0, 0], [0, 6, 2, 5, 7, 2, 0, 0, 0], [5, 2, 6, 2, 7, 8, 7, 8, 6]),
            "prompt_length": 4,
            "end": 2,
            "pad": 0,
        },
        {
            "ids": whole([2, 5, 6, 7, 8, 2, 2, 2], [6, 2, 5, 2, 2, 2, 2, 2], [2, 2, 6, 8, 7, 5, 6, 7]),
            "prompt_length": 3,
            "end": 2,
            "pad": 2,
        },
        {"ids": whole([1, 4, 3, 4, 9], [4, 4, 5, 6, 9], [1, 4, 9, 1, 1]), "prompt_length": 2, "end": 9, "pad": 1},
    ),
    right=right_mask,
    mistakes={
        "the mask also covers the prompt, its padding included: those tokens were given to the policy, it did not choose "
        "them.": (lambda ids, p, end, pad: between(ids, 0, ends(ids, p, end))),
        "the mask also covers the prompt's tokens: they were given to the policy, it did not choose them.": (
            lambda ids, p, end, pad: between(ids, p, ends(ids, p, end)) | between(ids, 0, p) & (ids != pad)
        ),
        "this is the mask of the attention, everything but padding: it covers the prompt, and where pad is end it loses "
        "the end token.": (lambda ids, p, end, pad: ids != pad),
        "the mask also covers the padding after the end token: it is 1 on every place of the completion.": (
            lambda ids, p, end, pad: between(ids, p, ids.shape[1])
        ),
        "the end token itself is missing from the mask: the policy then never learns to stop.": (
            lambda ids, p, end, pad: between(
                ids, p, ends(ids, p, end) - (ids[:, p:] == end).any(1, keepdim=True).long()
            )
        ),
        "the mask goes up to the last end token: where pad is end, that is the last padding. Stop at the first.": (
            lambda ids, p, end, pad: between(ids, p, last_end(ids, p, end))
        ),
        "tokens that equal pad are masked out: many models pad with their end token, and then the end of every completion "
        "is lost. Look for the first end token instead.": (
            lambda ids, p, end, pad: between(ids, p, ids.shape[1]) & (ids != pad)
        ),
        "the mask begins and ends one place too early: the completion's first token stands at place prompt_length.": (
            lambda ids, p, end, pad: between(ids, p - 1, ends(ids, p, end) - 1)
        ),
        "the mask begins and ends one place too late: the completion's first token stands at place prompt_length.": (
            lambda ids, p, end, pad: between(ids, p + 1, ends(ids, p, end) + 1)
        ),
        "an end token of the prompt was taken for the completion's end: chat templates close every turn with one, so look "
        "for it only after the prompt.": (lambda ids, p, end, pad: between(ids, p, ends(ids, 0, end))),
        "of a completion without end token only the first token is left: argmax gives 0 where there is nothing to find.": (
            lambda ids, p, end, pad: between(ids, p, ends(ids, p, end, missing=p + 1))
        ),
        "a completion without end token was left out (that is mask_truncated_completions=True): here it counts in full.": (
            lambda ids, p, end, pad: between(ids, p, ends(ids, p, end, missing=0))
        ),
        "the mask is inverted: 1 has to stand for a token that counts.": (
            lambda ids, p, end, pad: 1 - between(ids, p, ends(ids, p, end))
        ),
    },
    zero_one=True,
)


def right_kl(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """The estimator k3 of http://joschu.net/blog/kl-approx.html, for samples of the policy."""
    return torch.exp(ref_logps - logps) - (ref_logps - logps) - 1


KL = Exercise(
    name="KL divergence",
    wanted=(
        "For every token, the estimate k3 of the policy's KL divergence from the reference: with d = ref_logps - logps, "
        "exp(d) - d - 1."
    ),
    why=(
        "the estimate is 0 where policy and reference agree and above 0 everywhere else, and over the policy's own samples "
        "its mean is the KL divergence."
    ),
    cases=(
        {"logps": floats([-1, -0.5, -2], [-0.3, -1.2, -0.8]), "ref_logps": floats([-1, -1.5, -0.6], [-0.8, -1, -2])},
        {"logps": floats([-0.1, -3, -1.5, -0.7]), "ref_logps": floats([-0.2, -1, -2.5, -0.4])},
    ),
    right=right_kl,
    mistakes={
        "this is k1, logps - ref_logps: its mean is right, but at a single token it can be negative.": (
            lambda logps, ref: logps - ref
        ),
        "this is k1 with its sign turned round, ref_logps - logps: its mean is minus the KL divergence.": (
            lambda logps, ref: ref - logps
        ),
        "this is the absolute value of k1: it is never negative, but its mean is not the KL divergence.": (
            lambda logps, ref: (logps - ref).abs()
        ),
        "this is k2, half the squared difference: close to k3 while the two models are close, but its mean is not the KL "
        "divergence.": (lambda logps, ref: 0.5 * (logps - ref) ** 2),
        "the direction is turned round: policy and reference have changed places, and the samples are the policy's.": (
            lambda logps, ref: torch.exp(logps - ref) - (logps - ref) - 1
        ),
        "the two differences run in opposite directions: the one in the exponential and the one that is subtracted are "
        "the same.": (lambda logps, ref: torch.exp(ref - logps) - (logps - ref) - 1),
        "the - 1 is missing: where policy and reference agree the result has to be 0.": (
            lambda logps, ref: torch.exp(ref - logps) - (ref - logps)
        ),
        "this is the ratio minus 1: the logarithm of the ratio, which k3 subtracts too, is missing.": (
            lambda logps, ref: torch.exp(ref - logps) - 1
        ),
        "the sign is turned round: the result has to be 0 or more, or the loss would drive the policy away from the "
        "reference.": (lambda logps, ref: 1 + (ref - logps) - torch.exp(ref - logps)),
    },
    gradient_of="logps",
    detached="the penalty can only hold the policy near the reference if logps stays part of the graph.",
)


def right_clip(logps: Tensor, old_logps: Tensor, advantages: Tensor, epsilon: float, epsilon_high: float) -> Tensor:
    ratio = torch.exp(logps - old_logps)
    clipped = torch.clamp(ratio, 1 - epsilon, 1 + epsilon_high)
    of_completion = advantages.unsqueeze(1)
    return -torch.min(ratio * of_completion, clipped * of_completion)


def lower(ratio: Tensor, a: Tensor, low: float, high: float) -> Tensor:
    """The smaller product of a clipped and an unclipped ratio with advantages of shape (B, 1)."""
    return torch.min(ratio * a, ratio.clamp(1 - low, 1 + high) * a)


CLIP = Exercise(
    name="clipped loss",
    wanted=(
        "For every token, minus the smaller of ratio * advantage and clipped ratio * advantage. The ratio is "
        "exp(logps - old_logps), clipped to the interval from 1 - epsilon to 1 + epsilon_high; a completion's advantage "
        "holds for all of its tokens."
    ),
    why=(
        "a token whose ratio has already left the interval in the direction that its advantage asks for gets no more "
        "gradient, so one batch cannot push the policy far."
    ),
    cases=(
        {
            "logps": floats([-0.6, -1.5, -0.95], [-1.2, -0.9, -1.5]),
            "old_logps": floats([-1, -1, -1], [-2, -0.5, -1.5]),
            "advantages": floats(1, -0.5),
            "epsilon": 0.2,
            "epsilon_high": 0.28,
        },
        {
            "logps": floats([-0.78, -1.1, -2], [-0.7, -1.4, -0.2], [-1.3, -0.5, -1]),
            "old_logps": floats([-1, -1, -1.2], [-1.1, -1, -0.5], [-1, -0.9, -1.04]),
            "advantages": floats(1.5, -1, 0.25),
            "epsilon": 0.1,
            "epsilon_high": 0.3,
        },
        {
            "logps": floats([-0.4, -1.6], [-0.9, -2]),
            "old_logps": floats([-0.8, -1.3], [-1.3, -1.2]),
            "advantages": floats(-0.7, 0.7),
            "epsilon": 0.2,
            "epsilon_high": 0.2,
        },
    ),
    right=right_clip,
    mistakes={
        "only the clipped product is there, the min is missing: a token that went the wrong way beyond the interval then "
        "gets no gradient to bring it back.": (
            lambda new, old, a, low, high: -(new - old).exp().clamp(1 - low, 1 + high) * a[:, None]
        ),
        "the smaller ratio was taken before the product: where the advantage is negative, the smaller product belongs to the "
        "larger ratio. Multiply both by the advantage first.": (
            lambda logps, old_logps, advantages, epsilon, epsilon_high: (
                -torch.min((logps - old_logps).exp(), (logps - old_logps).exp().clamp(1 - epsilon, 1 + epsilon_high))
                * advantages[:, None]
            )
        ),
        "the larger product was taken: the smaller one is the cautious estimate of the gain.": (
            lambda new, old, a, low, high: lower((new - old).exp(), -a[:, None], low, high)
        ),
        "the minus is missing: the optimizer minimises, so what is to grow has to enter with a minus.": (
            lambda new, old, a, low, high: lower((new - old).exp(), a[:, None], low, high)
        ),
        "epsilon_high is not used: the interval goes up to 1 + epsilon_high, not to 1 + epsilon.": (
            lambda new, old, a, low, high: -lower((new - old).exp(), a[:, None], low, low)
        ),
        "epsilon is not used: the interval begins at 1 - epsilon, not at 1 - epsilon_high.": (
            lambda new, old, a, low, high: -lower((new - old).exp(), a[:, None], high, high)
        ),
        "epsilon and epsilon_high have changed places: the interval goes from 1 - epsilon to 1 + epsilon_high.": (
            lambda new, old, a, low, high: -lower((new - old).exp(), a[:, None], high, low)
        ),
        "nothing is clipped: one batch can push the ratio as far as it likes.": (
            lambda new, old, a, low, high: -(new - old).exp() * a[:, None]
        ),
        "the ratio is upside down: the policy's probability belongs above, the one it sampled with below.": (
            lambda new, old, a, low, high: -lower((old - new).exp(), a[:, None], low, high)
        ),
        "the difference of the log-probabilities was used as the ratio: the ratio is its exponential, and 1 where nothing "
        "has changed.": (lambda new, old, a, low, high: -lower(new - old, a[:, None], low, high)),
        "the ratio is 1 everywhere: it has to compare logps with old_logps, not with itself.": (
            lambda new, old, a, low, high: -lower((new - new.detach()).exp(), a[:, None], low, high)
        ),
        "the advantages lie along the tokens instead of the completions, which torch allows without a word where B equals "
        "T: each row has to get one advantage.": (
            lambda new, old, a, low, high: -lower((new - old).exp(), a[None, :], low, high)
        ),
    },
    gradient_of="logps",
    detached="the ratio was detached from logps, so that the policy learns nothing. Only old_logps is a constant.",
)


def right_mean(per_token: Tensor, mask: Tensor) -> Tensor:
    return (per_token * mask).sum() / mask.sum()


MEAN = Exercise(
    name="mean over the tokens",
    wanted="One number: the mean of per_token over all completion tokens of the step, those where mask is 1.",
    why=(
        "every completion token of the step weighs the same, whether its completion is short or long (that is "
        'loss_type="dapo").'
    ),
    cases=(
        {"per_token": floats([1, 2, 9, 9], [-1, 0.5, 3, 2]), "mask": whole([1, 1, 0, 0], [1, 1, 1, 1])},
        {
            "per_token": floats([0.5, 4, -3], [2, -1, 0.25], [-0.5, 1.5, 7]),
            "mask": whole([1, 0, 0], [1, 1, 1], [1, 1, 0]),
        },
    ),
    right=right_mean,
    mistakes={
        "padding is counted: its values are masked, but the divisor is the number of all places. Divide by the number of "
        "tokens.": (lambda x, mask: (x * mask).mean()),
        "the mask is not applied: what stands on the padding is no token of a completion.": (lambda x, mask: x.mean()),
        'the mean of each completion was taken first, then the mean over the completions (that is loss_type="grpo"): a '
        "token of a short completion then counts more than one of a long completion.": (
            lambda x, mask: ((x * mask).sum(1) / mask.sum(1)).mean()
        ),
        "the mean over the completions was taken at each place first, then the mean over the places: a token at a late "
        "place, where few completions still go on, then counts more.": (
            lambda x, mask: ((x * mask).sum(0) / mask.sum(0)).mean()
        ),
        "this is only the sum: the loss then grows with the number of tokens in the step.": (
            lambda x, mask: (x * mask).sum()
        ),
        "the sum was divided by the number of completions: divide by the number of their tokens.": (
            lambda x, mask: (x * mask).sum() / len(x)
        ),
        "the mask is applied in the divisor only: what stands on the padding is still in the sum.": (
            lambda x, mask: x.sum() / mask.sum()
        ),
        "the mask was used as an index: its whole numbers 0 and 1 pick the rows 0 and 1. Only a mask of bools picks "
        "tokens.": (lambda x, mask: x[mask].mean()),
    },
    gradient_of="per_token",
    detached="the loss has to stay part of the graph of per_token, or there is nothing to learn from.",
)
ALL = (ADVANTAGES, MASK, KL, CLIP, MEAN)
