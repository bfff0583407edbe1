"""The health monitor: each sickness is found by its rule, and a run that learns stays clean at every step."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import rewards
from lab.read import moving_statistics, run_log
from lab.read.health import convergence, diagnose, findings_table, nothing_learned, problems
from lab.read.health_rules import RULES
from scoring.right import USUAL_DECIDERS

BY_NAME = {rule.name: rule for rule in RULES}
MAY_STOP = {"not_a_number", "nothing_scored", "kl_high", "groups_without_spread", "reward_collapse", "clipped"} | {
    "reward_up_correctness_down",
    "reward_dropped",
}
CORRECT, FORMAT, SOFT = (f"rewards/{name}_reward/mean" for name in ("correctness", "format", "soft_format"))


def rise(steps, middle=22, width=5):
    """How far a run has come at each step, from 0 to 1."""
    return 1 / (1 + np.exp(-(np.arange(1, steps + 1) - middle) / width))


def scores(rng, share, groups=8, size=8):
    """Right answers, shape (groups, size): prompts differ in difficulty, so groups differ more than by chance."""
    odds = np.log(share / (1 - share)) + rng.normal(0, 1.2, (groups, 1))
    return rng.random((groups, size)) < 1 / (1 + np.exp(-odds))


def row(rng, step, done, right, form):
    """What TRL logs of one step of 64 completions; right and form are the shares that the policy can do by now."""
    correct = scores(rng, right)
    formed = correct | scores(rng, form)
    total = correct + 0.5 * formed + 0.5 * np.where(formed, 1.0, 0.3 * (rng.random(formed.shape) < 0.5))
    return {
        "step": step,
        "loss": rng.normal(0, 0.05),
        "grad_norm": 0.05 * rng.lognormal(0, 0.6) * (15 if rng.random() < 0.03 else 1),
        "learning_rate": 1e-3,
        "step_time": 2.0,
        "reward": total.mean(),
        "reward_std": total.std(ddof=1),
        "frac_reward_zero_std": float((np.ptp(total, axis=1) < 1e-9).mean()),
        CORRECT: correct.mean(),
        FORMAT: formed.mean(),
        SOFT: np.where(formed, 1.0, 0.15).mean(),
        "completions/mean_length": 30 + 15 * done + rng.normal(0, 3),
        "completions/clipped_ratio": float(rng.random() < 0.1) / 64,
        "completions/duplicate_share": float(np.clip(0.05 + 0.55 * done + rng.normal(0, 0.04), 0, 1)),
        "entropy": (0.6 - 0.45 * done) * rng.lognormal(0, 0.15),
        "kl": 0.3 * done * rng.lognormal(0, 0.5) * (10 if rng.random() < 0.02 else 1),
        "temperature": 1.0,
    }


def run(seed=0, steps=80, done=None, right=(0.17, 0.97), form=(0.35, 0.995)):
    """A healthy run; `done` is its progress from 0 to 1, right and form the shares at the start and at the end."""
    rng = np.random.default_rng(seed)
    done = rise(steps) if done is None else done
    levels = [[low + (high - low) * x for low, high in (right, form)] for x in done]
    return pd.DataFrame([row(rng, i + 1, x, *level) for i, (x, level) in enumerate(zip(done, levels))])


def flat(seed=0, steps=80, right=0.3, form=0.5):
    """A run whose rewards stay where they are, with the other metrics of its start."""
    return run(seed, steps, np.zeros(steps), (right, right), (form, form))


def still(log):
    """The same run with a policy that neither drifts nor becomes sure or wordy: for trouble of the rewards alone."""
    return log.assign(kl=0.02, entropy=0.6, **{"completions/duplicate_share": 0.1, "completions/mean_length": 30.0})


def findings(log, **how):
    return {finding.rule: finding for finding in diagnose(log, **how)}


def trouble(log, **how):
    return {finding.rule: finding.verdict for finding in problems(diagnose(log, **how))}


def first_seen(log, rule):
    """The first step at which a person who watches the run hears of it."""
    return next(n for n in range(1, len(log) + 1) if rule in trouble(log.iloc[:n]))


def assert_clean_at_every_step(log, **how):
    prefixes = ((n, problems(diagnose(log.iloc[:n], **how))) for n in range(1, len(log) + 1))
    seen = [(n, f.rule, f.value, f.message) for n, found in prefixes for f in found]
    assert not seen, f"{len(seen)} false alarms, the first: {seen[0]}"


# --------------------------------------------------------------------------- healthy runs


@pytest.mark.parametrize("seed", range(8))
def test_a_run_that_learns_stays_clean_at_every_step(seed):
    log = run(seed)
    assert_clean_at_every_step(log)
    verdicts = {finding.verdict for finding in diagnose(log)}
    assert verdicts == {"ok"}, findings_table(diagnose(log)).to_string()


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_starts_to_learn_after_40_steps_stays_clean(seed):
    assert_clean_at_every_step(run(seed, 100, rise(100, middle=52, width=4)))


@pytest.mark.parametrize("seed", range(4))
def test_a_long_run_that_has_reached_its_plateau_stays_clean(seed):
    assert_clean_at_every_step(run(seed, 160, rise(160, 15, 4), right=(0.2, 0.85)))


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_starts_solved_stays_clean(seed):
    log = run(seed, 80, np.zeros(80), (0.99, 0.99), (0.999, 0.999))
    log["completions/duplicate_share"], log["entropy"] = 0.8, np.linspace(0.05, 0.002, 80)
    assert_clean_at_every_step(log)
    assert "solved" in findings(log)["no_movement"].message


def test_a_run_without_kl_is_clean_and_says_that_beta_is_0():
    for log in (run().drop(columns="kl"), run().assign(kl=None)):
        assert_clean_at_every_step(log)
        for rule in ("kl_high", "kl_jump"):
            assert findings(log)[rule].verdict == "not measured" and "BETA = 0" in findings(log)[rule].message


def edited(log, step=40, column=FORMAT, version="v2"):
    """The log of a run in which a reward was edited: from `step` on it is logged by a versioned name."""
    new = column.replace("_reward/", f"_reward_{version}/")
    after = log["step"] >= step
    return log.assign(**{new: log[column].where(after), column: log[column].where(~after)})


@pytest.mark.parametrize("column", [FORMAT, CORRECT])
def test_a_reward_renamed_by_an_edit_stays_one_series(column):
    for seed in range(3):
        assert_clean_at_every_step(edited(run(seed), column=column))


def test_versions_are_joined_under_the_first_name():
    second, third = (FORMAT.replace("reward/", f"reward_{version}/") for version in ("v2", "v3"))
    log = edited(run(), 40)
    log[third] = log[second].where(log["step"] >= 60)
    log.loc[59:, second] = np.nan
    joined = run_log.read_log(log, USUAL_DECIDERS)
    assert list(joined.others) == ["format_reward", "soft_format_reward"] and joined.changed["reward"] == 59
    assert joined.others["format_reward"].tolist() == run()[FORMAT].tolist()


def test_a_stricter_edit_is_no_fall_of_the_reward():
    log = edited(run(1, 100), 60)
    log.loc[59:, "reward"] -= 1.2
    assert_clean_at_every_step(log)
    unedited = run(1, 100).assign(reward=log["reward"])
    assert "reward_dropped" in trouble(unedited)


# --------------------------------------------------------------------------- something is broken


@pytest.mark.parametrize("column", ["loss", "reward", "kl"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_reward_or_kl_that_is_no_number_is_critical_at_once(column, value):
    log = run()
    log.loc[49, column] = value
    finding = findings(log.iloc[:50])["not_a_number"]
    assert (finding.verdict, finding.since, finding.value) == ("critical", 50, 1)
    assert f"{column} was NaN" in finding.message
    assert trouble(log.iloc[:50]) == {"not_a_number": "critical"} and trouble(log.iloc[:49]) == {}


def test_nan_is_critical_at_the_first_step_too():
    assert trouble(run().iloc[:1].assign(loss=np.nan)) == {"not_a_number": "critical"}


def test_one_nan_grad_norm_is_a_warning_and_two_of_five_are_critical():
    log = run()
    log.loc[[19, 30, 33], "grad_norm"] = np.nan
    seen = {n: trouble(log.iloc[:n]).get("not_a_number") for n in (19, 20, 24, 25, 31, 33, 34, 38, 39)}
    assert seen == {
        19: None,
        20: "warn",
        24: "warn",
        25: None,
        31: "warn",
        33: "warn",
        34: "critical",
        38: "warn",
        39: None,
    }


def test_nan_of_long_ago_is_told_but_no_present_trouble():
    log = run()
    log.loc[20, "loss"] = np.nan
    finding = findings(log)["not_a_number"]
    assert finding.verdict == "ok" and "step 21; finite since" in finding.message


def test_a_correctness_reward_that_stops_scoring_is_named():
    log = run()
    log.loc[30:, CORRECT] = np.nan
    assert 34 <= first_seen(log, "nothing_scored") <= 36
    assert trouble(log)["nothing_scored"] == "critical"
    never = findings(run().assign(**{CORRECT: None}))
    assert never["nothing_scored"].verdict == "critical" and never["length_growth"].verdict == "not measured"


def test_a_policy_far_from_its_base_is_found():
    log = run()
    log.loc[40:, "kl"] += np.linspace(0, 1.5, 40)
    assert trouble(log) == {"kl_high": "warn"} and 45 < first_seen(log, "kl_high") < 70


def test_an_exploding_kl_is_critical_within_three_steps():
    log = run()
    log.loc[50:, "kl"] = 8.0
    assert first_seen(log, "kl_high") == 53 and trouble(log.iloc[:53]) == {"kl_high": "critical", "kl_jump": "warn"}
    assert findings(log)["kl_high"].since == 53


def test_a_jump_of_kl_is_found_below_the_level_that_is_high():
    log = run().assign(kl=0.02)
    log.loc[50:, "kl"] = 0.4
    assert trouble(log.iloc[:53]) == {"kl_jump": "warn"}
    assert findings(log.iloc[:53])["kl_jump"].value == pytest.approx(20)
    assert first_seen(log, "kl_jump") == 53


def test_one_wild_step_of_kl_or_grad_norm_is_no_trouble():
    log = run()
    log.loc[50, ["kl", "grad_norm"]] = [40.0, 300.0]
    assert_clean_at_every_step(log)


def test_gradients_that_stay_large_are_found():
    log = run()
    log.loc[40:, "grad_norm"] = 5.0
    assert first_seen(log, "grad_norm_spike") == 43 and trouble(log.iloc[:45]) == {"grad_norm_spike": "warn"}


def test_a_reward_that_falls_from_its_best_is_found():
    log, broken = still(run(steps=100)), run(5, 100, np.zeros(100), (0.05, 0.05), (0.1, 0.1))
    columns = ["reward", "reward_std", CORRECT, FORMAT, SOFT]
    log.loc[60:, columns] = broken.loc[60:, columns]
    seen = first_seen(log, "reward_dropped")
    assert 62 <= seen <= 66 and trouble(log.iloc[:seen]) == {"reward_dropped": "warn"}
    assert trouble(log) == {"reward_dropped": "critical", "no_movement": "warn"}


def test_a_fall_to_above_the_start_is_no_reason_to_stop():
    log = flat().assign(reward=np.r_[np.linspace(0.2, 2.0, 50), np.full(30, 0.8)])
    found = findings(log)["reward_dropped"]
    assert found.value == pytest.approx(0.6, abs=0.05) and found.verdict == "warn"


@pytest.mark.parametrize("seed", range(4))
def test_a_noisy_reward_near_zero_has_not_dropped(seed):
    log = flat(seed, 59).assign(reward=np.random.default_rng(seed).normal(0.2, 0.3, 59))
    assert_clean_at_every_step(log)
    shares = [findings(log.iloc[:n])["reward_dropped"].value for n in range(20, 60)]
    assert max(shares) > 0.25  # the share alone would have called it a fall


# --------------------------------------------------------------------------- nothing to learn from


def test_groups_without_spread_are_a_warning_and_all_of_them_critical():
    log = flat(right=0.5)
    log.loc[30:, "frac_reward_zero_std"] = 0.875
    assert trouble(log.iloc[:50]) == {"groups_without_spread": "warn"}
    assert 37 <= first_seen(log, "groups_without_spread") <= 40
    log.loc[50:, "frac_reward_zero_std"] = 1.0
    assert trouble(log.iloc[:59])["groups_without_spread"] == "warn"
    assert trouble(log.iloc[:60])["groups_without_spread"] == "critical"


def test_an_unlearnable_task_is_found_after_ten_steps_and_called_too_hard():
    log = run().assign(frac_reward_zero_std=1.0, reward=0.0, reward_std=0.0, **{CORRECT: 0.0, FORMAT: 0.0, SOFT: 0.0})
    assert trouble(log.iloc[:9]) == {}
    assert trouble(log.iloc[:10]) == {"groups_without_spread": "critical", "reward_collapse": "critical"}
    assert "too hard" in findings(log)["groups_without_spread"].message


def test_a_lack_of_spread_is_no_failure_where_the_task_is_solved():
    log = run()
    log.loc[60:, ["frac_reward_zero_std", "reward_std", CORRECT]] = [1.0, 0.0, 1.0]
    found = findings(log)
    for rule in ("groups_without_spread", "reward_collapse"):
        assert found[rule].verdict == "ok" and "solved" in found[rule].message
    failed = still(log).assign(**{CORRECT: 0.5, FORMAT: 0.5, SOFT: 0.5})
    assert trouble(failed) == {"groups_without_spread": "critical", "reward_collapse": "critical"}


def test_without_a_correctness_reward_a_lack_of_spread_may_be_success_and_is_not_critical():
    log = run().assign(frac_reward_zero_std=1.0)
    found = findings(log, correctness=("no_such_reward",))["groups_without_spread"]
    assert found.verdict == "warn" and "or the task is solved" in found.message


def test_reward_collapse_is_found_without_the_share_of_groups():
    log = flat().drop(columns="frac_reward_zero_std")
    log.loc[30:, "reward_std"] = 0.02
    assert trouble(log.iloc[:50]) == {"reward_collapse": "warn"}
    log.loc[30:, "reward_std"] = 0.0
    assert trouble(log.iloc[:50]) == {"reward_collapse": "critical"} and first_seen(log, "reward_collapse") == 40


def test_duplicates_are_found_unless_they_are_right():
    log = flat()
    log["completions/duplicate_share"] = 0.7
    assert trouble(log.iloc[:9]) == {} and trouble(log.iloc[:10]) == {"duplicates": "warn"}
    assert trouble(log.iloc[:40]) == {"duplicates": "warn"}
    assert findings(run())["duplicates"].message == "alike because they are right"


def test_entropy_that_collapses_without_success_is_found():
    log = flat()
    log.loc[30:, "entropy"] = 0.01
    assert trouble(log.iloc[:50]) == {"entropy_collapse": "warn"} and first_seen(log, "entropy_collapse") == 33
    sure = run()
    sure.loc[40:, "entropy"] = 0.01
    assert trouble(sure) == {} and findings(sure)["entropy_collapse"].message == "sure because it is right"


def test_low_entropy_from_the_start_is_no_collapse():
    assert "entropy_collapse" not in trouble(flat().assign(entropy=0.03))


def test_much_entropy_that_becomes_usual_entropy_is_no_collapse():
    assert trouble(flat(steps=50).assign(entropy=np.r_[np.full(20, 2.0), np.full(30, 0.15)])) == {}


def test_entropy_is_compared_anew_when_the_temperature_was_changed():
    log = flat()
    log.loc[30:, ["entropy", "temperature"]] = [0.02, 0.5]
    assert trouble(log.iloc[:50]) == {}
    assert "since the temperature was changed at step 31" in findings(log.iloc[:40])["entropy_collapse"].message


def test_a_temperature_that_falls_a_little_at_every_step_does_not_silence_the_rules_of_entropy():
    log = flat(steps=80)
    log["temperature"] = np.linspace(1.0, 0.7, 80)
    assert findings(log)["entropy_collapse"].verdict == "ok", "the last steps were sampled at about one temperature"
    log.loc[66:, "entropy"] = 0.001
    assert findings(log)["entropy_collapse"].verdict == "warn"


def test_entropy_that_rises_into_noise_is_found():
    log = flat()
    log.loc[30:, "entropy"] = 3.0
    assert trouble(log.iloc[:50]) == {"entropy_rise": "warn"} and first_seen(log, "entropy_rise") == 33


@pytest.mark.parametrize("seed", range(6))
def test_a_run_without_movement_is_found_after_60_steps(seed):
    log = flat(seed, 120)
    assert "no_movement" not in trouble(log.iloc[:59])
    seen = [set(trouble(log.iloc[:n])) for n in range(60, 121)]
    assert set.union(*seen) <= {"no_movement"} and sum(map(bool, seen)) > 30


def test_a_constant_reward_does_not_move():
    log = flat().assign(reward=1.0)
    assert findings(log)["no_movement"].value == 0 and trouble(log)["no_movement"] == "warn"


# --------------------------------------------------------------------------- learning the wrong thing


def test_completions_cut_at_the_limit_are_found():
    log = run()
    log.loc[20:, "completions/clipped_ratio"] = 0.5
    assert trouble(log.iloc[:40]) == {"clipped": "warn"} and 25 <= first_seen(log, "clipped") <= 28
    log.loc[40:, "completions/clipped_ratio"] = 0.9
    assert trouble(log) == {"clipped": "critical"}
    assert findings(log)["clipped"].since == first_seen(log, "clipped")


def test_completions_that_grow_without_more_right_answers_are_found():
    log = flat()
    log["completions/mean_length"] = np.linspace(30, 80, 80)
    assert trouble(log.iloc[:59]) == {"length_growth": "warn"}
    assert "length_growth" not in trouble(run().assign(**{"completions/mean_length": np.linspace(30, 80, 80)}))
    few = flat().assign(**{"completions/mean_length": np.linspace(6, 14, 80)})
    assert "length_growth" not in trouble(few)  # more than double, and yet only a phrase


@pytest.mark.parametrize("seed", range(4))
def test_style_that_rises_without_correctness_is_found(seed):
    log = still(run(seed, 80, rise(80, 15, 4), right=(0.05, 0.05), form=(0.2, 0.9)))
    found = findings(log)["format_without_correctness"]
    assert set(trouble(log)) == {"format_without_correctness"} and "style is learned" in found.message
    assert found.value > 0.4 and 30 <= first_seen(log, "format_without_correctness") <= 36


@pytest.mark.parametrize("seed", range(4))
def test_a_reward_that_is_gamed_while_correctness_falls_is_critical(seed):
    log = still(run(seed, 100, right=(0.2, 0.7), form=(0.3, 0.8)))
    fall = np.clip((np.arange(100) - 50) / 20, 0, 1)
    log[CORRECT] = log[CORRECT] * (1 - 0.8 * fall)
    log["reward"] += 0.6 * fall
    seen = set.union(*(set(trouble(log.iloc[:n])) for n in range(1, 101)))
    assert seen == {"reward_up_correctness_down", "format_without_correctness"}  # relatives: both name a hack
    assert trouble(log)["reward_up_correctness_down"] == "critical"
    assert 56 <= first_seen(log, "reward_up_correctness_down") <= 72


# --------------------------------------------------------------------------- each rule and its sickness


def from_step(log, step, **values):
    """The log with other values from a step on; keys are columns, those of completions without their first part."""
    for name, value in values.items():
        log.loc[step - 1 :, name if name in log else f"completions/{name}"] = value
    return log


def gamed():
    """The total rises while correctness falls."""
    log, fall = still(run(0, 100, right=(0.2, 0.7), form=(0.3, 0.8))), np.clip((np.arange(100) - 50) / 20, 0, 1)
    return log.assign(**{CORRECT: log[CORRECT] * (1 - 0.8 * fall), "reward": log["reward"] + 0.6 * fall})


SICK = {  # rule -> a run that has what it looks for
    "not_a_number": lambda: from_step(run(), 80, loss=np.nan),
    "nothing_scored": lambda: from_step(run(), 31, **{CORRECT: np.nan}),
    "kl_high": lambda: from_step(run(), 51, kl=8.0),
    "kl_jump": lambda: from_step(run(steps=53).assign(kl=0.02), 51, kl=0.4),
    "grad_norm_spike": lambda: from_step(run(steps=45), 41, grad_norm=5.0),
    "groups_without_spread": lambda: from_step(flat(), 31, frac_reward_zero_std=1.0),
    "reward_collapse": lambda: from_step(flat(), 31, reward_std=0.0),
    "duplicates": lambda: from_step(flat(), 1, duplicate_share=0.7),
    "entropy_collapse": lambda: from_step(flat(), 31, entropy=0.01),
    "entropy_rise": lambda: from_step(flat(), 31, entropy=3.0),
    "clipped": lambda: from_step(run(), 31, clipped_ratio=0.9),
    "length_growth": lambda: flat().assign(**{"completions/mean_length": np.linspace(30, 80, 80)}),
    "format_without_correctness": lambda: run(0, 80, rise(80, 15, 4), right=(0.05, 0.05), form=(0.2, 0.9)),
    "reward_up_correctness_down": gamed,
    "reward_dropped": lambda: flat().assign(reward=np.r_[np.linspace(0.2, 2.0, 50), np.full(30, 0.1)]),
    "no_movement": lambda: flat().assign(reward=1.0),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_each_rule_finds_its_sickness_and_its_line_says_value_threshold_verdict_and_advice(name):
    found = diagnose(SICK[name]())
    line = findings_table(found).set_index("rule").loc[name]
    rule = BY_NAME[name]
    assert line["verdict"] == ("critical" if name in MAY_STOP else "warn"), line.to_dict()
    assert line["threshold"] == "{} {:g}".format(*rule.limit) and np.isfinite(float(line["value"]))
    assert line["advice"].endswith(rule.advice) and int(line["since step"]) >= 1
    assert name not in trouble(run()), "a healthy run has it too"


# --------------------------------------------------------------------------- logs as they come


def test_an_empty_log_and_a_single_step_are_too_early_and_no_crash():
    for log in (pd.DataFrame(), run().iloc[:0]):
        assert {f.verdict for f in diagnose(log)} == {"too early"} and convergence(log).trend == "too early"
    one = findings(run().iloc[:1])
    assert one.pop("not_a_number").verdict == "ok" and {f.verdict for f in one.values()} == {"too early"}


@pytest.mark.parametrize("gone", [*run(steps=2).columns])
def test_any_metric_may_be_missing(gone):
    found = findings(run().drop(columns=gone))
    unexplained = {"duplicates"} if gone == CORRECT else set()  # the policy is sure, and nothing says of what
    assert {f.rule for f in problems(found.values())} <= unexplained
    for rule in RULES:
        assert (found[rule.name].verdict == "not measured") == any(
            name == gone or (name.startswith("correctness") and gone == CORRECT) for name in rule.columns.split(", ")
        )


def test_only_steps_and_rewards_are_enough():
    assert findings(run()[["step", "reward"]])["no_movement"].verdict == "ok"


def test_gaps_in_every_metric_are_no_trouble():
    log, rng = run(), np.random.default_rng(3)
    for column in log.columns.difference(["step", *run_log.NEVER_NAN]):
        log.loc[rng.random(80) < 0.1, column] = np.nan
    assert_clean_at_every_step(log)
    assert sum(f.verdict == "ok" for f in diagnose(log)) == len(RULES)


def test_a_metric_with_too_few_values_is_not_measured():
    log = run()
    log.loc[60:, "completions/clipped_ratio"] = np.nan
    assert findings(log)["clipped"].verdict == "not measured" and "too few" in findings(log)["clipped"].message


def test_rows_of_evaluations_and_the_summary_are_no_steps():
    log = run(steps=30)
    more = [{"step": 30, "eval_reward": 1.0, "epoch": 0.1}, {"step": 30, "train_loss": 0.1, "train_runtime": 9.0}]
    assert diagnose(pd.concat([log, pd.DataFrame(more)], ignore_index=True)) == diagnose(log)


def test_numbers_written_as_text_are_read():
    log = run()
    assert diagnose(log.astype({"entropy": object, "kl": str})) == diagnose(log)


def test_a_log_is_not_changed_and_its_index_does_not_matter():
    log = run()
    before = log.copy(deep=True)
    found = diagnose(log)
    pd.testing.assert_frame_equal(log, before)
    assert diagnose(log.set_index("step", drop=False)) == found
    still_there = flat(2, 120)
    assert diagnose(still_there.set_index("step", drop=False)) == diagnose(still_there)


def test_rewards_with_settings_and_several_that_decide_are_known():
    log = run().rename(columns={CORRECT: "rewards/math_reward[time_limit=2.0]/mean"})
    assert {f.verdict for f in diagnose(log)} == {"ok"}
    both = run_log.read_log(run().assign(**{"rewards/code_reward/mean": 1.0}), USUAL_DECIDERS)
    assert both.correct == pytest.approx((run()[CORRECT].to_numpy() + 1) / 2)


def test_the_known_correctness_rewards_claim_it():
    import trl.rewards

    for name in USUAL_DECIDERS:
        ours = getattr(rewards, name, None)
        assert ours.claims_correctness if ours else hasattr(trl.rewards, name), (
            f"{name} does not claim to decide what is right"
        )


def test_a_monitor_imports_nothing_heavy_and_nothing_of_the_training():
    code = "import sys, lab.read.health; print(*{name.split('.')[0] for name in sys.modules}, *sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "trl", "matplotlib", "duckdb", "lab.train", "lab.show"} & set(loaded)


# --------------------------------------------------------------------------- what a person reads


def test_there_is_one_finding_a_rule_with_advice_and_a_reason_for_its_threshold():
    assert [f.rule for f in diagnose(run())] == [rule.name for rule in RULES] == list(BY_NAME)
    for rule in RULES:
        assert rule.advice and rule.measures and rule.measure.__doc__, rule.name


def test_only_rules_that_may_stop_a_run_are_ever_critical():
    broken = run().assign(frac_reward_zero_std=1.0, reward_std=0.0, kl=9.0, loss=np.nan, **{CORRECT: 0.0})
    critical = {f.rule for f in diagnose(broken) if f.verdict == "critical"}
    assert len(critical) >= 4 and critical <= MAY_STOP


def test_the_table_is_sorted_worst_first_and_says_what_to_do():
    log = run().drop(columns="entropy")
    log.loc[30:, "completions/clipped_ratio"] = 0.5
    log.loc[79, "loss"] = np.nan
    shown = findings_table(diagnose(log))
    assert shown.columns.tolist() == ["rule", "value", "threshold", "verdict", "since step", "advice"]
    assert shown["rule"].tolist()[:2] == ["not_a_number", "clipped"] and shown["verdict"].iloc[-1] == "not measured"
    line = shown.set_index("rule").loc["clipped"]
    assert line[["value", "threshold", "verdict", "since step"]].tolist() == ["0.5", "> 0.3", "warn", "37"]
    assert "MAX_COMPLETION_TOKENS. Raise MAX_COMPLETION_TOKENS" in line["advice"]
    assert findings_table([]).empty


def test_sick_gives_critical_findings_first():
    log = run()
    log["completions/clipped_ratio"], log.loc[79, "kl"] = 0.5, np.nan
    assert [f.rule for f in problems(diagnose(log))] == ["not_a_number", "clipped"] and problems(diagnose(run())) == []


# --------------------------------------------------------------------------- the trend


def test_a_rising_reward_is_said_in_points_a_step():
    log = flat(steps=60).assign(reward=0.5 + 0.02 * np.arange(60))
    found = convergence(log)
    assert (found.trend, found.steps) == ("rising", 30) and found.slope == pytest.approx(0.02)
    assert found.sentence == "The reward rises by 0.02 points a step (± 0, last 30 logged steps)."
    falling = convergence(log.assign(reward=-log["reward"]))
    assert falling.trend == "falling" and "falls by 0.02 " in falling.sentence


def test_noise_is_no_trend_and_a_short_run_says_how_long_to_wait():
    found = [convergence(flat(seed, 40)) for seed in range(20)]
    assert sum(one.trend == "flat" for one in found) >= 16
    assert found[0].sentence.endswith("Expect 40 to 50 steps before a clear trend.")
    assert convergence(flat(steps=9)).trend == convergence(flat().drop(columns="reward")).trend == "too early"
    assert convergence(flat().assign(reward=1.0)).trend == "flat"


def test_the_trend_begins_anew_at_an_edit():
    log = edited(flat(steps=80).assign(reward=np.r_[np.full(60, 2.0), 1 + 0.01 * np.arange(20)]), 61)
    assert convergence(log).trend == "rising" and convergence(log).steps == 20


def test_a_moving_mean_needs_a_whole_window_of_which_half_is_known():
    values = np.arange(12.0)
    assert np.isnan(moving_statistics.mean(values, 4)[:3]).all() and moving_statistics.mean(values, 4)[3] == 1.5
    values[4:7] = np.nan
    assert np.isnan(moving_statistics.mean(values, 4)[5:8]).tolist() == [False, True, True]


def test_too_few_steps_for_a_trend_are_counted_from_the_edit_where_there_was_one():
    assert convergence(flat(steps=5)).sentence.startswith("5 steps are too few for a trend.")
    said = convergence(edited(flat(steps=12), 8)).sentence
    assert said.startswith("5 steps since the edit at step 8 are too few for a trend.")
    assert convergence(edited(flat(steps=8), 8)).sentence.startswith("1 step since the edit at step 8 is too few")


@pytest.mark.parametrize("steps", [5, 40])
def test_a_run_in_which_no_group_ever_had_spread_is_said_to_have_learned_nothing(steps):
    log = flat(steps=steps).assign(frac_reward_zero_std=1.0)
    count = f"the same total reward ({steps} steps). Change the rewards or the data"
    assert nothing_learned(log) == convergence(log).sentence and count in nothing_learned(log)
    assert nothing_learned(log.assign(frac_reward_zero_std=[0.9] + [1.0] * (steps - 1))) == ""
    by_batch = log.drop(columns="frac_reward_zero_std")  # of scale_rewards = batch: TRL counts steps there, not groups
    assert (
        nothing_learned(by_batch)
        == nothing_learned(by_batch.drop(columns="reward_std"))
        == nothing_learned(log[:0])
        == ""
    )
    assert nothing_learned(by_batch.assign(reward_std=0.0)) == nothing_learned(log)
