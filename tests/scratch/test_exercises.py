"""The exercises of 00_grpo_from_scratch: what is right passes, a mistake gets its own sentence, nothing makes a check raise."""

import doctest
import itertools
import math
import sys

import numpy as np
import pytest
import torch

from lab.scratch import exercises
from lab.scratch.exercises import ADVANTAGES, ALL, CLIP, KL, MASK, MEAN

WITH_GRADIENT = [CLIP, KL, MEAN]
MISTAKES = [(exercise, sentence) for exercise in ALL for sentence in exercise.mistakes]


def by_name(value):
    """The ids of parameters: the exercise's name, the beginning of a sentence."""
    return value.name if isinstance(value, exercises.Exercise) else value[:40] if isinstance(value, str) else None


def said(exercise, attempt):
    """The verdict on an attempt, its lines not yet broken; pytest shows it where a comparison with it fails."""
    verdict = exercise.verdict(attempt)
    assert verdict.startswith(("Right: ", "Not yet: ")), verdict
    return verdict


def test_a_check_is_the_verdict_with_its_sentence_broken_and_its_table_as_it_was():
    for attempt in (lambda rewards, group_size: rewards, MISTAKES[0][0].right, lambda *_: None):
        checked, plain = ADVANTAGES.check(attempt), ADVANTAGES.verdict(attempt)
        assert checked.split() == plain.split() and checked.endswith(plain.partition("\n")[2])
        assert max(len(line) for line in checked.splitlines()) <= exercises.WIDTH


def makes(exercise, change):
    """An attempt that does something with the right result."""
    return lambda *inputs: change(exercise.right(*inputs))


# --------------------------------------------------------------------------- what is right passes


@pytest.mark.parametrize("exercise", ALL, ids=by_name)
def test_the_reference_passes_its_own_check(exercise):
    assert said(exercise, exercise.right) == f"Right: {exercise.why}"


def advantages_in_numpy(rewards, group_size):
    made = []
    for start in range(0, len(rewards), group_size):
        group = rewards.numpy()[start : start + group_size]
        made.extend((group - group.mean()) / (group.std(ddof=1) + 1e-4))
    return torch.from_numpy(np.array(made, dtype=np.float32))


def advantages_in_double(rewards, group_size):
    mean = rewards.double().view(-1, group_size).mean(1).repeat_interleave(group_size)
    std = rewards.double().view(-1, group_size).std(1).repeat_interleave(group_size)
    return (rewards - mean) / (std + 1e-4)


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


def kl_in_loops(logps, ref_logps):
    rows = [[torch.exp(r - p) - 1 - (r - p) for p, r in zip(*pair)] for pair in zip(logps, ref_logps)]
    return torch.stack([torch.stack(row) for row in rows])


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


def mean_in_loops(per_token, mask):
    kept = [value for row, marks in zip(per_token, mask) for value, mark in zip(row, marks) if mark]
    return torch.stack(kept).mean()


OTHER_WAYS = [
    (ADVANTAGES, advantages_in_numpy),
    (ADVANTAGES, advantages_in_double),
    (MASK, mask_of_bools),
    (MASK, mask_in_loops),
    (KL, kl_in_loops),
    (KL, lambda logps, ref: torch.expm1(ref - logps) + logps - ref),
    (CLIP, clip_in_loops),
    (CLIP, clip_by_cases),
    (MEAN, mean_in_loops),
    (MEAN, lambda per_token, mask: per_token[mask.bool()].mean()),
]


@pytest.mark.parametrize("exercise, attempt", OTHER_WAYS, ids=by_name)
def test_another_way_to_write_it_is_right_too(exercise, attempt):
    assert said(exercise, attempt) == f"Right: {exercise.why}"


@pytest.mark.parametrize("exercise", ALL, ids=by_name)
def test_double_precision_is_right_too(exercise):
    assert said(exercise, makes(exercise, torch.Tensor.double)) == f"Right: {exercise.why}"


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.float16, torch.float32])
def test_a_mask_may_be_of_any_type_that_holds_0_and_1(dtype):
    assert said(MASK, makes(MASK, lambda mask: mask.to(dtype))) == f"Right: {MASK.why}"


# --------------------------------------------------------------------------- a mistake gets its own sentence


@pytest.mark.parametrize("exercise, sentence", MISTAKES, ids=by_name)
def test_a_mistake_gets_its_own_sentence(exercise, sentence):
    assert said(exercise, exercise.mistakes[sentence]) == f"Not yet: {sentence}"


@pytest.mark.parametrize("exercise", ALL, ids=by_name)
def test_the_cases_tell_every_mistake_from_the_right_answer_and_from_every_other(exercise):
    wanted = [exercise.call(exercise.right, case) for case in exercise.cases]
    made = {"right": wanted} | {
        sentence: exercise.results(wrong, wanted) for sentence, wrong in exercise.mistakes.items()
    }
    alike = [(a, b) for a, b in itertools.combinations(made, 2) if all(map(exercises.same_values, made[a], made[b]))]
    assert not alike, f"the cases do not tell apart: {alike}"


@pytest.mark.parametrize("exercise, sentence", MISTAKES, ids=by_name)
def test_only_a_wrong_layout_of_the_advantages_may_raise_on_a_case(exercise, sentence):
    """A mistake that raised on a case would be known there by any error."""
    wanted = [exercise.call(exercise.right, case) for case in exercise.cases]
    faults = [result.fault for result in exercise.results(exercise.mistakes[sentence], wanted) if result.fault]
    assert bool(faults) == ("along the tokens" in sentence), faults


@pytest.mark.parametrize("exercise", ALL, ids=by_name)
def test_the_texts_are_plain_sentences(exercise):
    for text in (*exercise.mistakes, exercise.why, exercise.wanted, *filter(None, [exercise.detached])):
        assert text.endswith((".", "?")) and "!" not in text and "  " not in text, text
    assert all(sentence[0].islower() for sentence in exercise.mistakes)


def mask_without_the_end(ids, prompt_length, end, pad):
    mask = torch.zeros(ids.shape)
    completion = ids[:, prompt_length:]
    mask[:, prompt_length:] = (completion == end).cumsum(1) == 0
    return mask


def advantages_by_numpys_std(rewards, group_size):
    groups = rewards.double().numpy().reshape(-1, group_size)
    return torch.tensor((groups - groups.mean(1, keepdims=True)) / (groups.std(1, keepdims=True) + 1e-4)).reshape(-1)


def clip_with_forgotten_unsqueeze(logps, old_logps, advantages, epsilon, epsilon_high):
    ratio = (logps - old_logps).exp()
    return torch.max(-ratio * advantages, -ratio.clip(1 - epsilon, 1 + epsilon_high) * advantages)


REDISCOVERED = [
    (ADVANTAGES, advantages_by_numpys_std, "divided by n:"),
    (
        ADVANTAGES,
        lambda rewards, size: torch.cat([(g - g.mean()) / g.std() for g in rewards.split(size)]),
        "which is nan",
    ),
    (MASK, mask_without_the_end, "the end token itself is missing"),
    (KL, lambda logps, ref: (logps / 1 - ref) ** 2 / 2, "this is k2"),
    (CLIP, clip_with_forgotten_unsqueeze, "the advantages lie along the tokens"),
    (
        MEAN,
        lambda x, mask: torch.stack([row[marks.bool()].mean() for row, marks in zip(x, mask)]).mean(),
        'loss_type="grpo"',
    ),
]


@pytest.mark.parametrize("exercise, attempt, part", REDISCOVERED, ids=by_name)
def test_a_mistake_is_known_however_it_is_written(exercise, attempt, part):
    verdict = said(exercise, attempt)
    assert part in verdict.splitlines()[0] and verdict.removeprefix("Not yet: ") in exercise.mistakes, verdict


# --------------------------------------------------------------------------- an unknown mistake is shown


def test_an_unknown_mistake_shows_the_first_case_that_differs():
    def attempt(rewards, group_size):
        return ADVANTAGES.right(rewards, group_size) + (group_size == 4)

    assert said(ADVANTAGES, attempt).splitlines() == [
        f"Not yet: the numbers differ. Asked for: {ADVANTAGES.wanted}",
        "  rewards     [0, 1, 0.5, 0, 2, 3, 2, 2.25]",
        "  group_size  4",
        "  came        [0.217, 2.305, 1.261, 0.217, 0.34, 2.452, 0.34, 0.868]",
        "  expected    [-0.783, 1.305, 0.261, -0.783, -0.66, 1.452, -0.66, -0.132]",
    ]


def test_two_mistakes_at_once_are_shown_and_not_named():
    verdict = said(KL, lambda logps, ref: -0.5 * (logps - ref) ** 2)
    assert verdict.startswith("Not yet: the numbers differ. Asked for: ") and "came" in verdict, verdict


def test_a_difference_below_three_digits_can_still_be_seen():
    """1e-8 beside a standard deviation near 1 changes the fourth digit."""
    verdict = said(ADVANTAGES, lambda r, size: torch.cat([(g - g.mean()) / (g.std() + 1e-8) for g in r.split(size)]))
    came, expected = [
        line.split(maxsplit=1)[1] for line in verdict.splitlines() if line.startswith(("  came", "  expected"))
    ]
    assert came != expected and verdict.startswith("Not yet: the numbers differ."), verdict


def test_nan_and_inf_are_said_before_the_case():
    for bad in (math.nan, math.inf):
        assert said(CLIP, makes(CLIP, lambda x: x * bad)).startswith(
            "Not yet: the result holds nan or inf. Asked for: "
        )


# --------------------------------------------------------------------------- whatever comes is a text


class Silent(Exception):
    """An error whose message fails."""

    def __str__(self):
        raise RuntimeError("no message")


class Odd(torch.Tensor):
    """A tensor that refuses every operation."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError("odd")


def raises(error):
    def attempt(*inputs):
        raise error

    return attempt


def endless(*inputs):
    return endless(*inputs)


HOSTILE = {
    "None": (lambda *a: None, "it returns nothing: write the function's return."),
    "Ellipsis": (lambda *a: ..., "it returns nothing: write the function's return."),
    "list": (lambda *a: a[0].tolist(), "it returns something of type list and not a torch tensor"),
    "numpy": (lambda *a: a[0].detach().numpy(), "it returns something of type ndarray and not a torch tensor"),
    "float": (lambda *a: 0.5, "it returns something of type float and not a torch tensor"),
    "generator": (lambda *a: (x for x in a), "it returns something of type generator and not a torch tensor"),
    "shape": (lambda *a: torch.zeros(7, 7), "the result's shape is (7, 7); ("),
    "vast shape": (lambda *a: torch.zeros(1).expand(10**12), "the result's shape is (1000000000000,); ("),
    "ValueError": (raises(ValueError("why not")), "it raises ValueError: why not"),
    "without message": (raises(KeyError()), "it raises KeyError\n"),
    "failing message": (raises(Silent()), "it raises Silent\n"),
    "long message": (raises(ValueError("x" * 9999)), f"it raises ValueError: {'x' * exercises.LONGEST} …\n"),
    "SystemExit": (lambda *a: sys.exit(3), "it raises SystemExit: 3"),
    "recursion": (endless, "it raises RecursionError: maximum recursion depth exceeded"),
    "signature": (lambda: None, "it raises TypeError: "),
}


@pytest.mark.parametrize("exercise", ALL, ids=by_name)
@pytest.mark.parametrize("kind", HOSTILE)
def test_whatever_an_attempt_does_becomes_a_text(exercise, kind):
    attempt, text = HOSTILE[kind]
    assert said(exercise, attempt).startswith(f"Not yet: {text}")


STRANGE = {
    "half": (torch.Tensor.half, "the result's numbers are of type torch.float16; float32"),
    "long": (torch.Tensor.long, "the result's numbers are of type torch.int64; float32"),
    "complex": (lambda x: x + 0j, "the result's numbers are of type torch.complex64; float32"),
    "meta": (lambda x: x.to("meta"), "its result cannot be read: NotImplementedError"),
    "subclass": (lambda x: x.detach().as_subclass(Odd), "its result cannot be read: NotImplementedError: odd"),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_strange_tensor_becomes_a_text(kind):
    change, text = STRANGE[kind]
    assert said(KL, makes(KL, change)).startswith(f"Not yet: {text}")


def test_a_sparse_result_is_compared_by_its_numbers():
    assert said(MASK, makes(MASK, torch.Tensor.to_sparse)) == f"Right: {MASK.why}"
    assert said(MASK, lambda ids, *rest: ids.to_sparse()).startswith("Not yet: the numbers differ.")


@pytest.mark.parametrize("thing", [None, 3, "text", torch.zeros(2)], ids=str)
def test_what_is_no_function_is_told_so(thing):
    assert said(ADVANTAGES, thing).startswith(f"Not yet: {type(thing).__name__} is no function.")


def test_an_error_is_shown_with_its_case_even_where_an_earlier_case_only_differs():
    def attempt(per_token, mask):
        return per_token.sum() if len(mask) == 2 else raises(IndexError("row 2"))()

    verdict = said(MEAN, attempt)
    assert verdict.startswith("Not yet: it raises IndexError: row 2\n") and "[-0.5,  1.5,    7]" in verdict, verdict


def test_keyboard_interrupt_passes_through_and_leaves_all_as_it_was():
    state = torch.get_rng_state()
    with torch.no_grad():
        with pytest.raises(KeyboardInterrupt):
            KL.check(raises(KeyboardInterrupt()))
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


# --------------------------------------------------------------------------- changes in place


@pytest.mark.parametrize("exercise", ALL, ids=by_name)
def test_a_change_of_an_input_is_told_even_where_the_numbers_are_right(exercise):
    def attempt(*inputs):
        made = exercise.right(*inputs)
        inputs[0].data.zero_()
        return made

    first = next(iter(exercise.cases[0]))
    assert said(exercise, attempt).startswith(f"Not yet: it changes its input {first} in place")


def test_a_change_of_the_argument_whose_gradient_is_compared_is_told_and_not_torchs_error():
    def attempt(per_token, mask):
        per_token *= mask
        return per_token.sum() / mask.sum()

    assert said(MEAN, attempt).startswith("Not yet: it changes its input per_token in place")


def test_an_attempt_cannot_change_the_cases():
    before = [{name: str(value) for name, value in case.items()} for case in MASK.cases]
    said(MASK, lambda ids, *rest: ids.zero_())
    said(MASK, lambda ids, *rest: ids.resize_(1))
    assert [{name: str(value) for name, value in case.items()} for case in MASK.cases] == before
    assert said(MASK, MASK.right).startswith("Right: ")


# --------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("exercise", WITH_GRADIENT, ids=by_name)
@pytest.mark.parametrize("change", [torch.Tensor.detach, lambda x: torch.tensor(x.tolist(), requires_grad=True)])
def test_right_numbers_without_a_gradient_are_told(exercise, change):
    verdict = said(exercise, makes(exercise, change))
    assert verdict == f"Not yet: the numbers are right, but no gradient flows: {exercise.detached}"


def test_a_detached_ratio_is_named():
    def attempt(logps, old_logps, *rest):
        return CLIP.right((logps - old_logps).detach(), torch.zeros_like(logps), *rest)

    verdict = said(CLIP, attempt)
    assert "no gradient flows: the ratio was detached" in verdict, verdict


@pytest.mark.parametrize("exercise", WITH_GRADIENT, ids=by_name)
def test_right_numbers_with_another_gradient_are_shown(exercise):
    verdict = said(exercise, lambda x, *rest: exercise.right(x, *rest) + (x - x.detach()).sum())
    assert verdict.startswith("Not yet: the numbers are right, but the gradient of their sum with respect to"), verdict
    assert "came" in verdict and "expected" in verdict, verdict


def test_a_gradient_that_torch_cannot_compute_becomes_a_text():
    def attempt(per_token, mask):
        loss = MEAN.right(per_token.clone().exp().log(), mask)
        loss.backward()  # frees the graph
        return loss

    assert said(MEAN, attempt).startswith(
        "Not yet: the numbers are right, but their gradient cannot be computed: RuntimeError"
    )


def test_a_wrong_number_is_named_also_where_no_gradient_flows():
    assert said(KL, lambda logps, ref: (logps - ref).detach()).startswith("Not yet: this is k1, logps - ref_logps")


@pytest.mark.parametrize("exercise", [ADVANTAGES, MASK], ids=by_name)
def test_where_no_gradient_is_asked_for_none_is_missed(exercise):
    assert said(exercise, torch.no_grad()(exercise.right)).startswith("Right: ")


# --------------------------------------------------------------------------- the same verdict every time, nothing left behind


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("exercise", ALL, ids=by_name)
def test_the_mode_of_the_cell_around_it_changes_no_verdict_and_stays(exercise, mode):
    with mode():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        assert said(exercise, exercise.right).startswith("Right: ")
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before


def test_an_attempt_that_turns_gradients_off_leaves_them_on():
    def attempt(*inputs):
        torch.set_grad_enabled(False)
        return CLIP.right(*inputs)

    try:
        verdict = said(CLIP, attempt)
        assert torch.is_grad_enabled() and "no gradient flows" in verdict, verdict
        assert said(CLIP, CLIP.right).startswith("Right: ")
    finally:
        torch.set_grad_enabled(True)


@pytest.mark.parametrize("exercise", ALL, ids=by_name)
def test_an_attempt_with_random_numbers_gets_the_same_verdict_and_leaves_the_random_state(exercise):
    def attempt(*inputs):
        return exercise.right(*inputs) + torch.rand(())

    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = said(exercise, attempt)
    assert torch.equal(torch.get_rng_state(), state), "the check has used up random numbers of the notebook"
    torch.manual_seed(2)
    assert said(exercise, attempt) == first


def test_the_example_in_the_docstring_is_true():
    assert doctest.testmod(exercises) == (0, 2)  # failed, attempted
