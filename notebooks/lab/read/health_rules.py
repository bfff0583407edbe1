"""The rules that call a GRPO run unhealthy: for each its thresholds with their reasons, what it measures, and what to do."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lab.read import moving_statistics as moving
from lab.read.moving_statistics import SAME, WINDOW
from lab.read.run_log import SOLVED, RunLog


class Reading(NamedTuple):
    """What a rule measured, an element a step."""

    value: np.ndarray
    warn: np.ndarray
    critical: np.ndarray | None  # None: the rule never asks to stop a run
    problem: str  # the message where there is trouble
    remark: str = ""  # the message where there is none


Measure = Callable[[RunLog], Reading]


class Rule(NamedTuple):
    name: str
    measures: str
    limit: tuple[str, float]  # trouble: how the value stands to which threshold
    columns: str  # that it needs; "correctness" and "others" stand for the scores of such rewards
    steps: int  # that it needs before it can speak
    unchanged: str  # "reward" or "temperature": comparisons begin anew when this was changed
    advice: str
    measure: Measure


RULES: list[Rule] = []  # in the order in which they stand below


def rule(columns: str, sense: str, threshold: float, *, steps: int = WINDOW, unchanged: str = "") -> Callable:
    """Adds the function below it to RULES: its name, its docstring (what it measures and why), and its advice."""

    def add(measure: Measure) -> Measure:
        about = (measure.__name__, measure.__doc__, (sense, threshold), columns, steps, unchanged, measure.advice)
        RULES.append(Rule(*about, measure))
        return measure

    return add


def advise(advice: str) -> Callable:
    """Says what to do where the rule below it finds trouble."""
    return lambda measure: setattr(measure, "advice", advice) or measure


# Thresholds, in the order of the rules that use them, those of several rules first.
HIGH = 0.80  # four of five right: short, sure and alike completions are then what training was for
FLAT = 0.03  # a rise of correctness below it is one standard error of a difference of two windows of 64 completions
IN_A_ROW = 3  # steps; one wild token makes a step's kl or grad_norm jump, but not three in a row
TREND_STEPS = 30  # steps before a reward without effect on correctness is called one: style is always learned first
BAD_WINDOW = 20  # steps for which a loss, reward or KL that was no number is present trouble
SKIP_WINDOW = 5  # steps; in fp16 the scaler skips one step with an overflow now and then, not two of five
KL_WARN = 0.5  # nats a token; healthy runs of ours end at 0.03 to 0.3
KL_SURE = 1.0  # nats a token: double the level is believed after half the steps
KL_CRITICAL = 5.0  # nats a token: to the base its tokens are e⁵ = 150 times less likely; it is another policy
KL_JUMP = 5.0  # times the window before, three steps in a row; single steps of healthy runs reached 14 times
KL_JUMP_FLOOR = 0.3  # nats a token; below it a jump from next to nothing is the normal start of learning
SPIKE = 10.0  # times the median before; healthy runs have single steps of 15 times, which clipping makes harmless
SPIKE_FLOOR = 1.0  # the trainer's default max_grad_norm: below it nothing is clipped
SPREAD_WARN = 0.80  # four of five groups teach nothing: a step costs five times its worth
COLLAPSED = 0.10  # of the first steps' reward_std; runs of ours keep half up to 0.9 correct, a third when solved
ALIKE = 1e-4  # reward_std below it: all completions of all groups score the same
DUPLICATES = 0.50  # half of the samples repeat another, and more than are right: a group of 8 then compares four
ENTROPY_LEFT = 0.10  # of the first steps' entropy; healthy runs of ours fall to 0.09, but only with correctness at 0.9
ENTROPY_FLOOR = 0.05  # nats a token; above it a group of 8 still differs somewhere in some fifty tokens
ENTROPY_RISE = 3.0  # times the first steps' entropy, and
ENTROPY_RISE_FLOOR = 1.0  # nats a token more than at first: that many choices a token is drifting into noise
CLIPPED_WARN = 0.30  # as in the preflight: a cut completion has no answer, so length is rewarded instead of being right
CLIPPED_CRITICAL = 0.80  # hardly an answer is complete: the rewards measure the limit and not the policy
LONGER = 1.5  # times the first steps' length: half as much again to pay for at every step
LONGER_FLOOR = 10.0  # tokens; below it the growth is a phrase
STYLE_RISE = 0.20  # a fifth of a reward's range: well beyond what noise of two windows gives
FALL_WARN = 0.10  # of correctness from its best window, while the total rose
FALL_CRITICAL = 0.30  # thirty right answers of a hundred are gone: stop, an earlier checkpoint is the better model
FALL_ERRORS = 4.0  # standard errors: the best of many windows lies two or three above the mean by chance alone
DROP_WARN = 0.25  # of the reward's best level; the best window of a healthy run exceeds the next by a few per cent
DROP_CRITICAL = 0.50  # half of the best level lost, and below where it began
DROP_ERRORS = 5.0  # as FALL_ERRORS, and stricter, since totals with several rewards have heavier tails
MOVED = 2.0  # standard errors: chance alone reaches it upwards in one flat run of forty
MOVEMENT_STEPS = 60  # a trend is expected after 40 to 50 steps, and ten more measure it
SLOWER = "Lower LEARNING_RATE (to a half or a third) and go on from the last checkpoint before this step"
SPREAD_ADVICE = (
    "None right: easier data, or a softer reward that tells near misses apart. Most right: harder data. "
    "Otherwise raise NUM_GENERATIONS or TEMPERATURE, and see that no reward gives every completion the same score."
)
HACK_ADVICE = "Lower its WEIGHTS, or pay it only where the answer is right"


def percent(shares: np.ndarray) -> str:
    return f"{100 * shares[-1]:.0f} %"


def unknown(run: RunLog) -> str:
    return " (or the task is solved: no correctness reward tells)" if run.missing("correctness") else ""


@rule("", "≥", 1, steps=1)
@advise(
    "Stop. Look at the rewards of that step for inf or NaN; lower LEARNING_RATE; use bf16 where the GPU has it. Go on "
    "from the last checkpoint before it: NaN weights do not recover. One NaN grad_norm in fp16 is only a skipped step."
)
def not_a_number(run: RunLog) -> Reading:
    """Values of loss, reward, kl or grad_norm that were no finite number; fp16 skips single overflows by design."""
    count, critical, places = np.zeros(len(run)), np.zeros(len(run), bool), []
    for name, bad in run.not_finite.items():
        window, many = (SKIP_WINDOW, 2) if name == "grad_norm" else (BAD_WINDOW, 1)
        recent = moving.rolling(bad, window, 1).sum().to_numpy()
        count, critical = count + recent, critical | (recent >= many)
        if steps := [f"{step:.0f}" for step in run.steps[bad]]:
            more = f" and {len(steps) - 3} more" if len(steps) > 3 else ""
            places.append(f"{name} was NaN or infinite at step{'s' * (len(steps) > 1)} {', '.join(steps[:3])}{more}")
    said = "; ".join(places)
    return Reading(count, count >= 1, critical, said, f"{said}; finite since" if said else "")


@rule("correctness column", "≥", 0.5)
@advise("It gave None for every completion, or is no longer called: check its columns and gold answers in the data.")
def nothing_scored(run: RunLog) -> Reading:
    """Share of the last 10 steps without any score of the correctness reward; TRL counts None as 0, and goes on."""
    share = moving.mean(np.isnan(run.correct).astype(float))
    problem = f"the reward that decides what is right gave no score in {percent(share)} of the last {WINDOW} steps"
    return Reading(share, share >= 0.5, share >= 1 - SAME, problem)


@rule("kl", ">", KL_WARN, steps=IN_A_ROW)
@advise(f"Read some completions. {SLOWER}, or raise BETA (to 0.04, then 0.1).")
def kl_high(run: RunLog) -> Reading:
    """KL in nats a token, median of 20 steps: a step's kl has half its size in noise; an explosion needs three."""
    kl = run["kl"]
    level, sooner, now = moving.median(kl, 2 * WINDOW), moving.median(kl), moving.minimum(kl, IN_A_ROW)
    critical = now > KL_CRITICAL
    value = np.where(critical, now, np.where((sooner > KL_SURE) | np.isnan(level), sooner, level))
    value = np.where(np.isnan(value), now, value)
    problem = f"the policy is {value[-1]:.2g} nats a token away from the base"
    return Reading(value, (level > KL_WARN) | (sooner > KL_SURE) | critical, critical, problem)


@rule("kl", "≥", KL_JUMP, steps=WINDOW + IN_A_ROW)
@advise(f"{SLOWER}, or raise BETA.")
def kl_jump(run: RunLog) -> Reading:
    """KL, lowest of 3 steps, as times the 10 before: single steps of healthy runs jump, but never three in a row."""
    now, before = moving.minimum(run["kl"], IN_A_ROW), moving.delayed(moving.median(run["kl"]), IN_A_ROW)
    times = now / np.maximum(before, 1e-3)
    problem = f"kl went from {before[-1]:.2g} to {now[-1]:.2g} nats a token or more, {IN_A_ROW} steps in a row"
    return Reading(times, (times >= KL_JUMP) & (now >= KL_JUMP_FLOOR), None, problem)


@rule("grad_norm", "≥", SPIKE, steps=2 * WINDOW + IN_A_ROW)
@advise(f"{SLOWER}; more completions a step (PROMPTS_PER_STEP) make the gradient calmer.")
def grad_norm_spike(run: RunLog) -> Reading:
    """grad_norm, lowest of 3 steps, as times the 20 before: single spikes are cut by max_grad_norm."""
    norm = run["grad_norm"]
    now, before = moving.minimum(norm, IN_A_ROW), moving.delayed(moving.median(norm, 2 * WINDOW), IN_A_ROW)
    times = now / np.maximum(before, 1e-6)
    problem = f"grad_norm went from {before[-1]:.2g} to {now[-1]:.2g} or more, {IN_A_ROW} steps in a row"
    return Reading(times, (times >= SPIKE) & (now > SPIKE_FLOOR), None, problem)


def lack_of_spread(run: RunLog, value: np.ndarray, warn: np.ndarray, critical: np.ndarray, problem: str) -> Reading:
    """No trouble where the task is solved; and unless it is known whether it is, nothing is critical."""
    solved = bool((warn & run.solved)[-1])
    remark = "solved: correctness is at its top, and the groups have nothing left to teach" * solved
    return Reading(value, warn & ~run.solved, critical & ~run.solved & (not unknown(run)), problem, remark)


@rule("frac_reward_zero_std", "≥", SPREAD_WARN)
@advise(SPREAD_ADVICE)
def groups_without_spread(run: RunLog) -> Reading:
    """Share of groups without spread (frac_reward_zero_std), mean of 10 steps: no spread, no gradient."""
    share, right = moving.mean(run["frac_reward_zero_std"]), run.correct_level[-1]
    hint = ", and hardly any is right: too hard" if right < 1 - SOLVED else ", and most are right" * bool(right > HIGH)
    problem = f"in {percent(share)} of the groups of the last {WINDOW} steps all completions have one total reward"
    return lack_of_spread(run, share, share >= SPREAD_WARN - SAME, share >= 1 - SAME, problem + unknown(run) + hint)


@rule("reward_std", "<", COLLAPSED, unchanged="reward")
@advise(SPREAD_ADVICE)
def reward_collapse(run: RunLog) -> Reading:
    """reward_std of the whole batch, mean of 10 steps, as share of the first 10: near 0 all prompts score alike."""
    level, first = moving.mean(run["reward_std"]), moving.first_mean(run["reward_std"])
    left = level / max(first, 10 * ALIKE)
    problem = f"reward_std went from {first:.2g} at first to {level[-1]:.2g}: all completions score alike{unknown(run)}"
    return lack_of_spread(run, left, left < COLLAPSED, level < ALIKE, problem)


@rule("completions/duplicate_share", ">", DUPLICATES)
@advise("Raise TEMPERATURE (to 1.0 or 1.2), or lower LEARNING_RATE if it grew. A larger group only repeats more.")
def duplicates(run: RunLog) -> Reading:
    """Share of completions that repeat another of their group, mean of 10 steps: the group is in truth smaller."""
    share = moving.mean(run["completions/duplicate_share"])
    right = (run.correct_level >= HIGH) | (share <= run.correct_level)  # a repeated right answer is the goal
    problem = f"{percent(share)} of the completions repeat another of their group word for word{unknown(run)}"
    remark = "alike because they are right" if share[-1] > DUPLICATES else ""
    return Reading(share, (share > DUPLICATES) & ~right, None, problem, remark)


@rule("entropy", "<", ENTROPY_LEFT, steps=WINDOW + 5, unchanged="temperature")
@advise("Raise TEMPERATURE or BETA, lower LEARNING_RATE, and go on from a checkpoint before the fall.")
def entropy_collapse(run: RunLog) -> Reading:
    """entropy, median of 5 steps, as share of the first 10; without success a fall is premature."""
    now, first = moving.median(run["entropy"], 5), moving.first_mean(run["entropy"])
    left = now / max(first, SAME)
    low = (left < ENTROPY_LEFT) & (now < ENTROPY_FLOOR)
    problem = f"entropy fell from {first:.2g} to {now[-1]:.2g} nats a token: no more exploration{unknown(run)}"
    return Reading(left, low & ~(run.correct_level >= HIGH), None, problem, "sure because it is right" * bool(low[-1]))


@rule("entropy", "≥", ENTROPY_RISE, steps=WINDOW + 5, unchanged="temperature")
@advise("Lower TEMPERATURE (not above 1.0) and LEARNING_RATE, raise BETA; go on from the last good checkpoint.")
def entropy_rise(run: RunLog) -> Reading:
    """entropy, median of 5 steps, as times the first 10: it falls or stays in runs that learn."""
    now, first = moving.median(run["entropy"], 5), moving.first_mean(run["entropy"])
    times = now / max(first, SAME)
    problem = f"entropy rose from {first:.2g} to {now[-1]:.2g} nats a token: the completions drift into noise"
    return Reading(times, (times >= ENTROPY_RISE) & (now >= first + ENTROPY_RISE_FLOOR), None, problem)


@rule("completions/clipped_ratio", ">", CLIPPED_WARN)
@advise(
    "Raise MAX_COMPLETION_TOKENS, unless the completions only ramble: then ask for brevity in the prompt or give "
    "length_reward some of the WEIGHTS."
)
def clipped(run: RunLog) -> Reading:
    """Share of completions cut at the limit, mean of 10 steps: what is cut before its answer cannot be right."""
    share = moving.mean(run["completions/clipped_ratio"])
    problem = f"{percent(share)} of the completions of the last {WINDOW} steps are cut at MAX_COMPLETION_TOKENS"
    return Reading(share, share > CLIPPED_WARN, share > CLIPPED_CRITICAL, problem)


@rule("completions/mean_length, correctness", "≥", LONGER, steps=TREND_STEPS, unchanged="reward")
@advise(
    "Read the longest completions. Give length_reward some of the WEIGHTS, or use loss_type 'dr_grpo', which does "
    "not favour long wrong answers."
)
def length_growth(run: RunLog) -> Reading:
    """Mean length of 10 steps, as times the first 10; worth it if more is right (Liu et al. 2025, arXiv 2503.20783)."""
    level, first = moving.mean(run["completions/mean_length"]), moving.first_mean(run["completions/mean_length"])
    longer = (level >= LONGER * first) & (level >= first + LONGER_FLOOR)
    flat = run.correct_level - moving.first_mean(run.correct) < FLAT
    problem = f"completions grew from {first:.0f} to {level[-1]:.0f} tokens, and correctness did not rise"
    remark = "longer, and more is right" * bool(longer[-1])
    return Reading(level / max(first, SAME), longer & flat, None, problem, remark)


@rule("others, correctness", "≥", STYLE_RISE, steps=TREND_STEPS, unchanged="reward")
@advise(f"{HACK_ADVICE}; read what it pays for. If no answer is ever right, take easier data.")
def format_without_correctness(run: RunLog) -> Reading:
    """Largest rise of another reward since the first 10 steps: from 30 steps on correctness should follow."""
    rises = [moving.mean(each) - moving.first_mean(each) for each in run.others.to_numpy().T]
    table = np.where(np.isnan(rises), -np.inf, rises)
    most, gain = table.max(axis=0), run.correct_level - moving.first_mean(run.correct)
    name = run.others.columns[table[:, -1].argmax()]
    problem = f"{name} rose by {most[-1]:.2f} and correctness by {gain[-1]:+.2f}: style is learned, not the task"
    warn = (most >= STYLE_RISE) & (gain < FLAT) & (run.correct_level < HIGH)
    remark = "correctness rose too, or is high" * bool(most[-1] >= STYLE_RISE)
    return Reading(np.where(np.isinf(most), np.nan, most), warn, None, problem, remark)


@rule("reward, correctness", "≥", FALL_WARN, steps=TREND_STEPS, unchanged="reward")
@advise(
    f"The policy is gaming a reward: find the one that rises in the completions. {HACK_ADVICE}; go on from the "
    "checkpoint with the best correctness."
)
def reward_up_correctness_down(run: RunLog) -> Reading:
    """Fall of correctness from its best 10 steps while the total rose, beyond four standard errors."""
    best, at = moving.best_so_far(run.correct_level)
    fall, rise = best - run.correct_level, run.reward_level - run.reward_level[at]
    up = rise > max(2 * moving.standard_error(run["reward"]), SAME)
    warn = up & (fall >= max(FALL_WARN, FALL_ERRORS * moving.standard_error(run.correct)))
    problem = f"correctness fell by {fall[-1]:.2f} from its best, while the total reward rose by {rise[-1]:.2f}"
    return Reading(fall, warn, warn & (fall >= FALL_CRITICAL), problem)


@rule("reward", "≥", DROP_WARN, steps=2 * WINDOW, unchanged="reward")
@advise(f"{SLOWER}, or raise BETA; see that the data did not become harder and that no reward fails.")
def reward_dropped(run: RunLog) -> Reading:
    """Share of its best 10-step level that the reward has lost, beyond five standard errors."""
    level, first = run.reward_level, moving.first_mean(run["reward"])
    best, _ = moving.best_so_far(level)
    drop = best - level
    gained = np.maximum(np.abs(best), best - first)  # the second where totals are negative
    share = drop / np.maximum(gained, SAME)
    warn = (share >= DROP_WARN) & (drop >= DROP_ERRORS * moving.standard_error(run["reward"]))
    problem = f"the reward fell from its best, {best[-1]:.2f}, to {level[-1]:.2f}; it began at {first:.2f}"
    return Reading(share, warn, warn & (share >= DROP_CRITICAL) & (level < first), problem)


@rule("reward", "<", MOVED, steps=MOVEMENT_STEPS, unchanged="reward")
@advise(
    "Is there spread in the groups (preflight)? Then raise LEARNING_RATE (two to five times), NUM_GENERATIONS or "
    "PROMPTS_PER_STEP, or lower BETA."
)
def no_movement(run: RunLog) -> Reading:
    """Rise of the reward, last quarter against the first 10 steps, in standard errors; two tell it from noise."""
    moved = moving.rise_in_errors(run["reward"])
    how = "fell" if moved[-1] <= -MOVED else "did not rise beyond its noise"
    problem = f"the reward {how} in {len(run)} steps: {moved[-1]:+.1f} standard errors"
    remark = "solved: there is no way up" if run.solved[-1] and moved[-1] < MOVED else ""
    return Reading(moved, (moved < MOVED) & ~run.solved, None, problem, remark)
