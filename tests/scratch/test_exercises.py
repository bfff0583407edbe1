"""The exercises of notebook 00: solutions are right, a known mistake is named, any other is shown with its call."""

import doctest
import itertools

import numpy as np
import pytest
import torch

from lab.scratch import exercises
from lab.scratch.exercises import ADVANTAGES, ALL, CLIP, KL, MASK, MEAN

NAMES = ("advantages", "mask", "kl", "clip", "mean")
WITH_GRADIENT = [KL, CLIP, MEAN]
MISTAKES = [(exercise, sentence) for exercise in ALL for sentence in exercise.mistakes]


def by_name(value):
    """The ids of parameters: the name of the exercise, the beginning of a sentence; pytest names the rest."""
    return (
        NAMES[ALL.index(value)]
        if isinstance(value, exercises.Exercise)
        else value[:40]
        if isinstance(value, str)
        else None
    )


def unwrapped(text):
    return " ".join(text.split())


# --------------------------------------------------------------------------- what is right passes


@pytest.mark.parametrize("exercise", ALL, ids=by_name)
def test_the_solution_is_right_and_says_what_it_teaches(exercise):
    assert unwrapped(exercise.feedback(exercise.solution)) == f"Right: {exercise.lesson}"


def advantages_in_numpy(rewards, group_size):
    made = []
    for start in range(0, len(rewards), group_size):
        group = rewards.numpy()[start : start + group_size]
        made.extend((group - group.mean()) / (group.std(ddof=1) + 1e-4))
    return torch.from_numpy(np.array(made, dtype=np.float32))


def mask_of_bools(ids, prompt_length, end, pad):
    is_end = (ids == end) & (torch.arange(ids.shape[1]) >= prompt_length)
    ended_before = is_end.cumsum(1) - is_end.long() > 0
    return ~ended_before & (torch.arange(ids.shape[1]) >= prompt_length)


def mask_in_loops(ids, prompt_length, end, pad):
    rows = []
    for row in ids:
        kept, going = [0] * prompt_length, 1
        for token in row[prompt_length:]:
            kept.append(going)
            going = going and int(token != end)
        rows.append(torch.tensor(kept))
    return torch.stack(rows)


def clip_in_loops(logps, old_logps, advantages, epsilon, epsilon_high):
    rows = []
    for new, old, advantage in zip(logps, old_logps, advantages):
        ratios = [torch.exp(a - b) for a, b in zip(new, old)]
        inside = [torch.clamp(ratio, 1 - epsilon, 1 + epsilon_high) for ratio in ratios]
        rows.append(torch.stack([-min(r * advantage, c * advantage) for r, c in zip(ratios, inside)]))
    return torch.stack(rows)


def clip_by_cases(logps, old_logps, advantages, epsilon, epsilon_high):
    """As the paper's figure has it; old_logps is detached, which changes nothing."""
    ratio, advantage = (logps - old_logps.detach()).exp(), advantages[:, None].expand_as(logps)
    best = torch.where(advantage > 0, ratio.clamp(max=1 + epsilon_high), ratio.clamp(min=1 - epsilon))
    return -best * advantage


def mean_in_place(per_token, mask):
    per_token *= mask
    return per_token.sum() / mask.sum()


OTHER_WAYS = [
    (ADVANTAGES, advantages_in_numpy),
    (MASK, mask_of_bools),
    (MASK, mask_in_loops),
    (KL, lambda logps, ref_logps: torch.expm1(ref_logps - logps) + logps - ref_logps),
    (KL, lambda logps, ref_logps: KL.solution(logps.double(), ref_logps.double())),
    (CLIP, clip_in_loops),
    (CLIP, clip_by_cases),
    (MEAN, mean_in_place),
    (MEAN, lambda per_token, mask: per_token[mask.bool()].mean()),
]


@pytest.mark.parametrize("exercise, attempt", OTHER_WAYS, ids=by_name)
def test_another_way_to_write_it_is_right_too(exercise, attempt):
    assert exercise.feedback(attempt).startswith("Right: ")


# --------------------------------------------------------------------------- a known mistake is named


def test_there_are_ten_mistakes_and_their_sentences_are_plain():
    assert len(MISTAKES) == 10
    for _, sentence in MISTAKES:
        assert sentence[0].islower() and sentence.endswith(".") and "!" not in sentence and "  " not in sentence


@pytest.mark.parametrize("exercise, sentence", MISTAKES, ids=by_name)
def test_a_mistake_gets_its_own_sentence(exercise, sentence):
    assert unwrapped(exercise.feedback(exercise.mistakes[sentence])) == f"Not yet: {sentence}"


@pytest.mark.parametrize("exercise", ALL, ids=by_name)
def test_the_calls_tell_every_mistake_from_the_solution_and_from_every_other(exercise):
    made = {"right": exercise.solution, **exercise.mistakes}
    numbers = {name: [exercise.run(one, call)[0] for call in exercise.calls] for name, one in made.items()}
    pairs = itertools.combinations(numbers, 2)
    assert not [(a, b) for a, b in pairs if all(map(exercises.close, numbers[a], numbers[b]))]


def mask_without_the_end(ids, prompt_length, end, pad):
    mask = torch.zeros(ids.shape)
    mask[:, prompt_length:] = (ids[:, prompt_length:] == end).cumsum(1) == 0
    return mask


def advantages_by_numpys_std(rewards, group_size):
    groups = rewards.numpy().reshape(-1, group_size)
    return torch.tensor((groups - groups.mean(1, keepdims=True)) / (groups.std(1, keepdims=True) + 1e-4)).reshape(-1)


def mean_of_means(per_token, mask):
    return torch.stack([row[marks.bool()].mean() for row, marks in zip(per_token, mask)]).mean()


REDISCOVERED = [
    (ADVANTAGES, advantages_by_numpys_std, "the standard deviation was divided by n."),
    (MASK, mask_without_the_end, "the end token itself is missing"),
    (KL, lambda logps, ref_logps: (logps - ref_logps).detach(), "this is k1"),
    (MEAN, mean_of_means, "the mean of each completion was taken first"),
]


@pytest.mark.parametrize("exercise, attempt, sentence", REDISCOVERED, ids=by_name)
def test_a_mistake_is_known_however_it_is_written(exercise, attempt, sentence):
    assert unwrapped(exercise.feedback(attempt)).startswith(f"Not yet: {sentence}")


# --------------------------------------------------------------------------- another mistake is shown


def test_an_unknown_mistake_shows_the_first_call_that_differs():
    def attempt(rewards, group_size):
        return ADVANTAGES.solution(rewards, group_size) + (group_size == 4)

    text = ADVANTAGES.feedback(attempt)
    assert unwrapped(text).startswith(f"Not yet: the numbers differ. The task: {ADVANTAGES.task}")
    assert text.splitlines()[-4:] == [
        "  rewards        [0.  , 1.  , 0.5 , 0.  , 2.  , 3.  , 2.  , 2.25]",
        "  group_size     4",
        "  came           [0.21681, 2.30531, 1.26106, 0.21681, 0.3398 , 2.45244, 0.3398 , 0.86796]",
        "  expected       [-0.78319,  1.30531,  0.26106, -0.78319, -0.6602 ,  1.45244, -0.6602 , -0.13204]",
    ]


def test_a_matrix_is_shown_row_under_row():
    lines = MASK.feedback(lambda ids, *rest: torch.zeros_like(ids)).splitlines()
    assert lines[-3:] == [
        "  expected       [[0, 0, 0, 0, 1, 1, 1, 0, 0],",
        "                  [0, 0, 0, 0, 1, 1, 0, 0, 0],",
        "                  [0, 0, 0, 0, 1, 1, 1, 1, 1]]",
    ]


def test_a_small_difference_can_be_seen():
    """1e-8 beside a standard deviation near 1 changes the fourth digit."""
    text = ADVANTAGES.feedback(lambda r, n: torch.cat([(g - g.mean()) / (g.std() + 1e-8) for g in r.split(n)]))
    *_, came, expected = (line.split(maxsplit=1)[1] for line in text.splitlines())
    assert text.startswith("Not yet: the numbers differ.") and came != expected


def test_nan_differs():
    assert CLIP.feedback(lambda *inputs: CLIP.solution(*inputs) * float("nan")).startswith(
        "Not yet: the numbers differ."
    )


def endless(*inputs):
    return endless(*inputs)


FAULTS = {
    "None": (lambda *inputs: None, "TypeError: the function returns NoneType, and not a torch tensor."),
    "list": (lambda *inputs: inputs[0].tolist(), "TypeError: the function returns list, and not a torch tensor."),
    "shape": (lambda *inputs: torch.zeros(7, 7), "ValueError: the result's shape is (7, 7), and ("),
    "error": (lambda *inputs: {}["x"], "KeyError: 'x'"),
    "recursion": (endless, "RecursionError: maximum recursion depth exceeded"),
    "arguments": (lambda: None, "TypeError: "),
    "no function": (3, "TypeError: 'int' object is not callable"),
}


@pytest.mark.parametrize("exercise", ALL, ids=by_name)
@pytest.mark.parametrize("kind", FAULTS)
def test_whatever_an_attempt_does_becomes_a_text_with_the_call(exercise, kind):
    attempt, text = FAULTS[kind]
    feedback = exercise.feedback(attempt)
    assert feedback.startswith(f"Not yet: {text}") and all(f"\n  {name} " in feedback for name in exercise.names)


def test_an_attempt_cannot_change_the_calls():
    before = str(MASK.calls)
    MASK.feedback(lambda ids, *rest: ids.zero_())
    assert str(MASK.calls) == before and MASK.feedback(MASK.solution).startswith("Right: ")


# --------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("exercise", WITH_GRADIENT, ids=by_name)
@pytest.mark.parametrize("change", [torch.Tensor.detach, lambda x: x + (x - x.detach()).sum()], ids=["none", "other"])
def test_right_numbers_with_a_wrong_gradient_are_not_yet_right(exercise, change):
    text = unwrapped(exercise.feedback(lambda *inputs: change(exercise.solution(*inputs))))
    assert text.startswith(
        f"Not yet: the numbers are right, but not the gradient that flows back to {exercise.names[0]}."
    )


def test_the_mode_of_the_cell_around_it_changes_nothing():
    with torch.no_grad():
        assert KL.feedback(KL.solution).startswith("Right: ") and not torch.is_grad_enabled()


def test_the_example_in_the_docstring_is_true():
    assert doctest.testmod(exercises) == (0, 1)  # failed, attempted
