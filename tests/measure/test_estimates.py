"""Estimates: intervals hold the truth as often as they say, tests reject as often as they should."""

import itertools
import math
import random

import numpy as np
import pytest

from lab.measure import estimates, verdicts


def test_no_gain_is_shown_as_an_interval_that_holds_zero():
    rng = np.random.default_rng(1)
    before, after = rng.random(400) < 0.5, rng.random(400) < 0.5
    found = estimates.paired_difference(before, after)
    assert found["low"] < 0 < found["high"]
    assert found["estimate"] == pytest.approx(after.mean() - before.mean())


def test_the_interval_of_a_paired_difference_covers_as_the_normal_one_does():
    rng = np.random.default_rng(2)
    before = rng.random(500) < 0.3
    after = before | (rng.random(500) < 0.4)
    found, difference = estimates.paired_difference(before, after), after.astype(float) - before
    half = 1.96 * difference.std(ddof=1) / np.sqrt(500)
    assert found["low"] == pytest.approx(difference.mean() - half, abs=0.01)
    assert found["high"] == pytest.approx(difference.mean() + half, abs=0.01)


def test_an_empty_comparison_is_refused():
    with pytest.raises(ValueError, match="at least one pair"):
        estimates.paired_difference([], [])


def test_the_interval_is_that_of_drawing_by_hand():
    rng = np.random.default_rng(3)
    values = rng.random(350)
    by_hand = np.quantile([rng.choice(values, 350).mean() for _ in range(4000)], [0.025, 0.975])
    found = estimates.bootstrap_mean(values)
    assert [found["low"], found["high"]] == pytest.approx(list(by_hand), abs=0.004)


def test_an_interval_of_the_mean_holds_the_truth_in_95_of_100():
    rng = np.random.default_rng(4)
    for true, n in ((0.5, 100), (0.9, 300)):
        found = [estimates.share_interval(rng.random(n) < true, 0, 1, seed=i) for i in range(400)]
        assert 0.92 <= np.mean([one["low"] <= true <= one["high"] for one in found]) <= 0.98


def test_where_all_problems_are_alike_the_interval_does_not_claim_certainty():
    assert estimates.share_interval([0.0] * 20, 0, 1)["high"] == pytest.approx(
        1 - 0.025 ** (1 / 20)
    )  # Clopper and Pearson for 0 of 20
    all_gained = estimates.share_interval([1.0] * 4, -1, 1)
    assert all_gained == {"estimate": 1.0, "low": pytest.approx(0.025 ** (1 / 4)), "high": 1.0}
    assert (
        estimates.share_interval([0.0] * 20, -1, 1)["low"]
        == -estimates.share_interval([0.0] * 20, -1, 1)["high"]
        < -0.1
    )


def test_mcnemars_p_is_the_exact_binomial_one():
    assert estimates.mcnemar(10, 2) == estimates.mcnemar(2, 10) == pytest.approx(2 * (1 + 12 + 66) / 2**12)
    assert estimates.mcnemar(0, 0) == estimates.mcnemar(5, 5) == 1 and estimates.mcnemar(1, 0) == 1
    assert estimates.mcnemar(2600, 2400) == pytest.approx(
        math.erfc(199 / math.sqrt(5000) / math.sqrt(2)), rel=0.02
    )  # normal, with its correction
    assert 0 <= estimates.mcnemar(5000, 0) < 1e-300


def test_so_many_problems_show_the_gain_in_four_of_five_evaluations():
    gained, lost, n = 60, 40, 500
    needed = estimates.problems_needed(gained, lost, n)
    rng = np.random.default_rng(5)
    drawn = rng.multinomial(needed, [gained / n, lost / n, 1 - (gained + lost) / n], size=1000)
    assert 0.75 <= np.mean([estimates.mcnemar(b, c) < 0.05 and b > c for b, c, _ in drawn]) <= 0.85


def test_pass_at_k_agrees_with_drawing_by_hand():
    marks = [1, 1, 0, 0, 0, 0]
    by_hand = np.mean([any(marks[i] for i in drawn) for drawn in itertools.combinations(range(6), 3)])
    assert estimates.pass_at_k(6, 2, 3) == pytest.approx(by_hand)
    with pytest.raises(ValueError):
        estimates.pass_at_k(4, 5, 1)


def majority_by_hand(answers, right, k):
    found = []
    for drawn in itertools.combinations(range(len(answers)), k):
        said = [answers[i] for i in drawn if answers[i] is not None]
        most = [one for one in set(said) if said.count(one) == max(map(said.count, said))]
        found.append(np.mean([right[answers.index(one)] for one in most]) if most else 0.0)
    return np.mean(found)


def test_majority_at_k_agrees_with_all_subsets():
    draw = random.Random(6)
    for _ in range(150):
        answers = [draw.choice(["a", "b", "c", "d", None]) for _ in range(draw.choice([3, 5, 8]))]
        right = [float(one == "a") for one in answers]
        for k in {3, len(answers) // 2, len(answers)} - {0, 1}:
            if k <= len(answers):
                assert estimates.majority_at_k(*estimates.votes(answers, right), k) == pytest.approx(
                    majority_by_hand(answers, right, k)
                ), (answers, k)


def test_equal_answers_in_other_clothes_vote_together_and_those_without_answer_do_not_vote():
    assert estimates.votes(["1,200", "$1200", None, "7", "1200.0"], [1, 1, 0, 0, 1]) == (((3, 1.0), (1, 0.0)), 1)
    assert estimates.majority_at_k(*estimates.votes(["5", None, None, None], [1, 0, 0, 0]), 4) == 1, (
        "three who are silent do not outvote one"
    )
    assert estimates.majority_at_k(*estimates.votes([None] * 4, [0] * 4), 4) == 0


def test_one_or_a_few_problems_show_nothing():
    for n in (1, 3, 5):
        assert (
            verdicts.verdict_of({"estimate": 1.0, "low": 0.4, "high": 1.0, "p": estimates.sign_flips([1.0] * n)})
            == verdicts.NO_GAIN
        )
    assert estimates.sign_flips([1.0] * 6) < 0.05


def test_equal_models_are_called_different_about_one_time_in_twenty_also_with_few_problems():
    rng, wrong = np.random.default_rng(5), 0
    for _ in range(300):
        change = (rng.binomial(4, 0.5, size=8) - rng.binomial(4, 0.5, size=8)) / 4
        wrong += (
            verdicts.verdict_of({**estimates.share_interval(change, -1, 1), "p": estimates.sign_flips(change)})
            != verdicts.NO_GAIN
        )
    assert wrong / 300 < 0.08


def test_sign_flips_by_drawing_agree_with_trying_all():
    change = np.random.default_rng(6).normal(0.3, 1, size=13)
    every = [abs(np.dot(signs, change)) >= abs(change.sum()) for signs in itertools.product((1, -1), repeat=13)]
    assert estimates.sign_flips(change) == pytest.approx(np.mean(every), abs=0.02)
