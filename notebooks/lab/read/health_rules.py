"""The rules that call a GRPO run unhealthy: thresholds with their reasons, what each measures, what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lab.read.run_log import SAME, SOLVED, WINDOW, RunLog, mean, sums

HIGH = 0.80  # four of five right: short, sure and alike completions are then what training was for
FLAT = 0.03  # a rise of correctness below it is one standard error of a difference of two windows of 64 completions
SPREAD_WARN = 0.80  # four of five groups teach nothing: a step costs five times its worth
COLLAPSED = 0.10  # of the first steps' reward_std; runs of ours keep half up to 0.9 correct, a third when solved
ALIKE = 1e-4  # reward_std below it: all completions of all groups score the same
KL_WARN = 0.5  # nats a token; healthy runs of ours end at 0.03 to 0.3
KL_SURE = 1.0  # nats a token: double the level is believed after half the steps
KL_CRITICAL = 5.0  # nats a token: to the base its tokens are e⁵ = 150 times less likely; it is another policy
KL_JUMP = 5.0  # times the window before, three steps in a row; single steps of healthy runs reached 14 times
KL_JUMP_FLOOR = 0.3  # nats a token; below it a jump from next to nothing is the normal start of learning
IN_A_ROW = 3  # steps; one wild token makes a step's kl or grad_norm jump, but not three in a row
BAD_WINDOW = 20  # steps for which a loss, reward or KL that was no number is present trouble
SKIP_WINDOW = 5  # steps; in fp16 the scaler skips one step with an overflow now and then, not two of five
ENTROPY_LEFT = 0.10  # of the first steps' entropy; healthy runs of ours fall to 0.09, but only with correctness at 0.9
ENTROPY_FLOOR = 0.05  # nats a token; above it a group of 8 still differs somewhere in some fifty tokens
ENTROPY_RISE = 3.0  # times the first steps' entropy, and
ENTROPY_RISE_FLOOR = 1.0  # nats a token more than at first: that many choices a token is drifting into noise
CLIPPED_WARN = 0.30  # as in the preflight: a cut completion has no answer, so length is rewarded instead of being right
CLIPPED_CRITICAL = 0.80  # hardly an answer is complete: the rewards measure the limit and not the policy
LONGER = 1.5  # times the first steps' length: half as much again to pay for at every step
LONGER_FLOOR = 10.0  # tokens; below it the growth is a phrase
STYLE_RISE = 0.20  # a fifth of a reward's range: well beyond what noise of two windows gives
TREND_STEPS = 30  # steps before a reward without effect on correctness is called one: style is always learned first
FALL_WARN = 0.10  # of correctness from its best window, while the total rose
FALL_CRITICAL = 0.30  # thirty right answers of a hundred are gone: stop, an earlier checkpoint is the better model
FALL_ERRORS = 4.0  # standard errors: the best of many windows lies two or three above the mean by chance alone
DROP_WARN = 0.25  # of the reward's best level; the best window of a healthy run exceeds the next by a few per cent
DROP_CRITICAL = 0.50  # half of the best level lost, and below where it began
DROP_ERRORS = 5.0  # as FALL_ERRORS, and stricter, since totals with several rewards have heavier tails
DUPLICATES = 0.50  # half of the samples repeat another, and more than are right: a group of 8 then compares four
SPIKE = 10.0  # times the median before; healthy runs have single steps of 15 times, which clipping makes harmless
SPIKE_FLOOR = 1.0  # the trainer's default max_grad_norm: below it nothing is clipped
MOVED = 2.0  # standard errors: chance alone reaches it upwards in one flat run of forty
MOVEMENT_STEPS = 60  # a trend is expected after 40 to 50 steps, and ten more measure it
TREND_NOTE = "Expect 40 to 50 steps before a clear trend."


class Reading(NamedTuple):
    """What a rule measured, an element a step; arrays may lack early steps, but all end with the last one."""

    value: np.ndarray
    warn: np.ndarray
    critical: np.ndarray | None
    said: str  # the message, if it is trouble
    note: str = ""  # the message, if it is not


class Rule(NamedTuple):
    name: str
    measures: str
    sense: str  # how the value stands to the threshold when it is trouble: ≥, <, …
    threshold: float
    severity: str  # the worst it can say: "warn", or "stop" for a critical finding
    steps: int  # that it needs before it can speak
    needs: tuple[str, ...]  # columns; "correctness" and "others" stand for the scores of such rewards
    check: Callable[[RunLog], Reading]
    advice: str
    why: str  # where the threshold comes from
    restarts: str = ""  # comparisons begin anew when this was changed: "reward" or "temperature"


def windows(values: np.ndarray, width: int) -> np.ndarray:
    """Shape (rows, width): the last `width` values at each row, NaN before the first."""
    padded = np.concatenate([np.full(width - 1, np.nan), values])
    return np.lib.stride_tricks.sliding_window_view(padded, width)


def median(values: np.ndarray, width: int) -> np.ndarray:
    """As `mean`, but the median: a single wild step does not move it."""
    table = np.sort(windows(values, width), axis=1)  # NaN is sorted to the end
    if np.isnan(values).any():
        count, rows = (~np.isnan(table)).sum(axis=1), np.arange(len(table))
        low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, width - 1)
        result = (table[rows, low] + table[rows, high]) / 2
        result[count < width / 2] = np.nan
    else:
        result = (table[:, (width - 1) // 2] + table[:, width // 2]) / 2
    result[: width - 1] = np.nan
    return result


def lowest(values: np.ndarray, width: int) -> np.ndarray:
    """The smallest value of the window at each row; NaN where one is not known."""
    return windows(values, width).min(axis=1)


def earlier(values: np.ndarray, rows: int) -> np.ndarray:
    """The same values, `rows` rows later."""
    return np.concatenate([np.full(min(rows, len(values)), np.nan), values[: max(len(values) - rows, 0)]])


def start(values: np.ndarray) -> float:
    """Mean of the first steps: what later ones are compared with."""
    first = values[np.isfinite(values)][:WINDOW]
    return float(first.mean()) if first.size else np.nan


def error(values: np.ndarray) -> float:
    """Standard error of the difference of two windows' means.

    From the median step-to-step difference, which a trend or a single wild step hardly changes
    (1.4826 times the median deviation is the standard deviation of normal noise; a difference has √2 of it).
    """
    known = values[np.isfinite(values)][-200:]
    if known.size < 3:
        return np.inf
    noise = 1.4826 * float(np.median(np.abs(np.diff(known)))) / np.sqrt(2)
    return noise * np.sqrt(2 / WINDOW)


def best_so_far(level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The highest level up to each row, and the row that it was reached at."""
    best = np.fmax.accumulate(level)
    return best, np.maximum.accumulate(np.where(level == best, np.arange(len(level)), 0))


def not_a_number(run: RunLog) -> Reading:
    count = np.zeros(len(run))
    warn, critical, said = np.zeros(len(run), bool), np.zeros(len(run), bool), []
    for name, bad in run.bad.items():
        if not bad.any():
            continue
        recent = sums(bad.astype(float), SKIP_WINDOW if name == "grad_norm" else BAD_WINDOW)
        count += recent
        warn |= recent >= 1
        critical |= recent >= (2 if name == "grad_norm" else 1)
        said.append(f"{name} was NaN or infinite at {steps_text(run.steps[bad])}")
    note = f"{'; '.join(said)}; finite since" if said else ""
    return Reading(count, warn, critical, "; ".join(said), note)


def nothing_scored(run: RunLog) -> Reading:
    share = mean(np.isnan(run.correct).astype(float), WINDOW)
    said = f"the reward that decides what is right gave no score in {percent(share)} of the last {WINDOW} steps"
    return Reading(share, share >= 0.5, share >= 1 - SAME, said)


def kl_high(run: RunLog) -> Reading:
    # A step's kl has half its size in noise, so a level near the threshold needs 20 steps; an explosion needs three.
    level, sooner, now = median(run["kl"], 2 * WINDOW), median(run["kl"], WINDOW), lowest(run["kl"], IN_A_ROW)
    critical = now > KL_CRITICAL
    value = np.where(critical, now, np.where((sooner > KL_SURE) | np.isnan(level), sooner, level))
    value = np.where(np.isnan(value), now, value)
    said = f"the policy is {last(value):.2g} nats a token away from the base"
    return Reading(value, (level > KL_WARN) | (sooner > KL_SURE) | critical, critical, said)


def kl_jump(run: RunLog) -> Reading:
    now = lowest(run["kl"], IN_A_ROW)
    before = earlier(median(run["kl"], WINDOW), IN_A_ROW)
    times = now / np.maximum(before, 1e-3)
    said = f"kl went from {last(before):.2g} to {last(now):.2g} nats a token or more, {IN_A_ROW} steps in a row"
    return Reading(times, (times >= KL_JUMP) & (now >= KL_JUMP_FLOOR), None, said)


def grad_norm_spike(run: RunLog) -> Reading:
    now = lowest(run["grad_norm"], IN_A_ROW)
    before = earlier(median(run["grad_norm"], 2 * WINDOW), IN_A_ROW)
    times = now / np.maximum(before, 1e-6)
    said = f"grad_norm went from {last(before):.2g} to {last(now):.2g} or more, {IN_A_ROW} steps in a row"
    return Reading(times, (times >= SPIKE) & (now > SPIKE_FLOOR), None, said)


def excused(run: RunLog, warn: np.ndarray, critical: np.ndarray) -> tuple[np.ndarray, np.ndarray, str, str]:
    """Success is no failure: where the task is solved neither holds, and unless that is known nothing is critical."""
    note = "solved: correctness is at its top, and the groups have nothing left to teach"
    note = note if len(run) and (warn & run.solved)[-1] else ""
    hint = unknown(run)
    return warn & ~run.solved, critical & ~run.solved & (not hint), note, hint


def unknown(run: RunLog) -> str:
    return " (or the task is solved: no correctness reward tells)" if run.missing("correctness") else ""


def groups_without_spread(run: RunLog) -> Reading:
    level = mean(run["frac_reward_zero_std"], WINDOW)
    warn, critical, note, hint = excused(run, level >= SPREAD_WARN - SAME, level >= 1 - SAME)
    right = last(run.level)
    if right < 1 - SOLVED:
        hint += ", and hardly any is right: too hard"
    elif right > HIGH:
        hint += ", and most are right"
    said = f"in {percent(level)} of the groups of the last {WINDOW} steps all completions have one total reward{hint}"
    return Reading(level, warn, critical, said, note)


def reward_collapse(run: RunLog) -> Reading:
    level, first = mean(run["reward_std"], WINDOW), start(run["reward_std"])
    left = level / max(first, 10 * ALIKE)
    warn, critical, note, hint = excused(run, left < COLLAPSED, level < ALIKE)
    said = f"reward_std went from {first:.2g} at first to {last(level):.2g}: all completions score alike{hint}"
    return Reading(left, warn, critical, said, note)


def duplicates(run: RunLog) -> Reading:
    share = mean(run["completions/duplicate_share"], WINDOW)
    said = f"{percent(share)} of the completions repeat another of their group word for word{unknown(run)}"
    note = "alike because they are right" if len(share) and share[-1] > DUPLICATES else ""
    right = (run.level >= HIGH) | (share <= run.level)  # a repeated right answer is what training was for
    return Reading(share, (share > DUPLICATES) & ~right, None, said, note)


def entropy_collapse(run: RunLog) -> Reading:
    now, first = median(run["entropy"], 5), start(run["entropy"])
    left = now / max(first, SAME)
    low = (left < ENTROPY_LEFT) & (now < ENTROPY_FLOOR)
    said = f"entropy fell from {first:.2g} to {last(now):.2g} nats a token: no more exploration{unknown(run)}"
    note = "sure because it is right" if len(low) and low[-1] else ""
    return Reading(left, low & ~(run.level >= HIGH), None, said, note)


def entropy_rise(run: RunLog) -> Reading:
    now, first = median(run["entropy"], 5), start(run["entropy"])
    times = now / max(first, SAME)
    said = f"entropy rose from {first:.2g} to {last(now):.2g} nats a token: the completions drift into noise"
    return Reading(times, (times >= ENTROPY_RISE) & (now >= first + ENTROPY_RISE_FLOOR), None, said)


def no_movement(run: RunLog) -> Reading:
    """Welch's statistic of the last quarter against the first steps, at every row."""
    moved = rise_in_errors(run["reward"])
    late = np.arange(1, len(run) + 1) >= MOVEMENT_STEPS
    how = "fell" if last(moved) <= -MOVED else "did not rise beyond its noise"
    said = f"the reward {how} in {len(run)} steps: {last(moved):+.1f} standard errors"
    note = "solved: there is no way up" if len(run) and run.solved[-1] and last(moved) < MOVED else ""
    return Reading(moved, late & (moved < MOVED) & ~run.solved, None, said, note)


def rise_in_errors(values: np.ndarray) -> np.ndarray:
    """How many standard errors the mean of the last quarter lies above that of the first steps, at each row."""
    known = np.isfinite(values)
    centred = np.where(known, values - start(values), 0.0)  # centred, so that squares lose no digits
    upto = [np.concatenate([[0.0], np.cumsum(x)]) for x in (known.astype(float), centred, centred**2)]
    end = np.arange(1, len(values) + 1)
    begin = end - np.maximum(end // 4, 1)
    count, total, squares = (s[end] - s[begin] for s in upto)
    head = np.minimum(WINDOW, end)
    count_0, total_0, squares_0 = (s[head] for s in upto)
    with np.errstate(divide="ignore", invalid="ignore"):
        late, early = total / count, total_0 / count_0
        variance = (squares / count - late**2) / (count - 1) + (squares_0 / count_0 - early**2) / (count_0 - 1)
        rise = (late - early) / np.sqrt(np.maximum(variance, 0.0))
    return np.where(np.abs(late - early) < SAME, 0.0, rise)  # a constant has no noise and no rise


def clipped(run: RunLog) -> Reading:
    share = mean(run["completions/clipped_ratio"], WINDOW)
    said = f"{percent(share)} of the completions of the last {WINDOW} steps are cut at MAX_COMPLETION_TOKENS"
    return Reading(share, share > CLIPPED_WARN, share > CLIPPED_CRITICAL, said)


def length_growth(run: RunLog) -> Reading:
    length = run["completions/mean_length"]
    level, first = mean(length, WINDOW), start(length)
    longer = (level >= LONGER * first) & (level >= first + LONGER_FLOOR)
    flat = run.level - start(run.correct) < FLAT
    said = f"completions grew from {first:.0f} to {last(level):.0f} tokens, and correctness did not rise"
    return Reading(level / max(first, SAME), longer & flat & late(run), None, said)


def format_without_correctness(run: RunLog) -> Reading:
    rises = {name: mean(values, WINDOW) - start(values) for name, values in run.others.items()}
    table = np.stack([np.where(np.isnan(rise), -np.inf, rise) for rise in rises.values()])
    most, gain = table.max(axis=0), run.level - start(run.correct)
    name = list(rises)[int(table[:, -1].argmax())]
    said = f"{name} rose by {last(most):.2f} and correctness by {last(gain):+.2f}: style is learned, not the task"
    warn = (most >= STYLE_RISE) & (gain < FLAT) & (run.level < HIGH) & late(run)
    return Reading(np.where(np.isinf(most), np.nan, most), warn, None, said)


def reward_up_correctness_down(run: RunLog) -> Reading:
    best, at = best_so_far(run.level)
    fall, rise = best - run.level, run.reward_level - run.reward_level[at]
    up = rise > max(2 * error(run["reward"]), SAME)
    warn = up & (fall >= max(FALL_WARN, FALL_ERRORS * error(run.correct))) & late(run)
    said = f"correctness fell by {last(fall):.2f} from its best, while the total reward rose by {last(rise):.2f}"
    return Reading(fall, warn, warn & (fall >= FALL_CRITICAL), said)


def reward_dropped(run: RunLog) -> Reading:
    level, first = run.reward_level, start(run["reward"])
    best, _ = best_so_far(level)
    drop = best - level
    # of the best level, or of what was gained where totals are negative
    share = drop / np.maximum(np.maximum(np.abs(best), best - first), SAME)
    warn = (share >= DROP_WARN) & (drop >= DROP_ERRORS * error(run["reward"]))
    said = f"the reward fell from its best, {last(best):.2f}, to {last(level):.2f}; it began at {first:.2f}"
    return Reading(share, warn, warn & (share >= DROP_CRITICAL) & (level < first), said)


def late(run: RunLog) -> np.ndarray:
    return np.arange(1, len(run) + 1) >= TREND_STEPS


def last(values: np.ndarray) -> float:
    return float(values[-1]) if len(values) else np.nan


def percent(shares: np.ndarray) -> str:
    return f"{100 * last(shares):.0f} %"


def steps_text(steps: np.ndarray) -> str:
    shown = ", ".join(f"{step:.0f}" for step in steps[:3])
    more = f" and {len(steps) - 3} more" if len(steps) > 3 else ""
    return f"step{'s' if len(steps) > 1 else ''} {shown}{more}"


SLOWER = "Lower LEARNING_RATE (to a half or a third) and go on from the last checkpoint before this step"
SPREAD_ADVICE = (
    "None right: easier data, or a softer reward that tells near misses apart. Most right: harder data. "
    "Otherwise raise NUM_GENERATIONS or TEMPERATURE, and see that no reward gives every completion the same score."
)
HACK_ADVICE = "Lower its WEIGHTS, or pay it only where the answer is right"
RULES: tuple[Rule, ...] = (
    Rule(
        "not_a_number",
        "values of loss, reward, kl or grad_norm that were no finite number",
        "≥",
        1,
        "stop",
        1,
        (),
        not_a_number,
        "Stop. Look at the rewards of that step for inf or NaN; lower LEARNING_RATE; use bf16 where the GPU has it. "
        "Go on from the last checkpoint before it, for weights that are NaN do not recover. One NaN grad_norm in "
        "fp16 is only a skipped step.",
        "NaN in the loss reaches the weights; torch's fp16 GradScaler skips single overflows by design",
    ),
    Rule(
        "nothing_scored",
        "share of the last 10 steps without any score of the correctness reward",
        "≥",
        0.5,
        "stop",
        WINDOW,
        ("correctness column",),
        nothing_scored,
        "It returned None for every completion, or is no longer called: check its columns and gold answers in the "
        "data.",
        "TRL counts None as 0, so the run goes on with style alone; half of the steps is no accident of a few rows",
    ),
    Rule(
        "kl_high",
        "kl in nats a token, median of 20 steps",
        ">",
        KL_WARN,
        "stop",
        IN_A_ROW,
        ("kl",),
        kl_high,
        f"Read some completions. {SLOWER}, or raise BETA (to 0.04, then 0.1).",
        "healthy runs of ours end at 0.03 to 0.3; the median, because one token can bring a step's kl near 1",
    ),
    Rule(
        "kl_jump",
        "kl, lowest of 3 steps, as times the 10 before",
        "≥",
        KL_JUMP,
        "warn",
        WINDOW + IN_A_ROW,
        ("kl",),
        kl_jump,
        f"{SLOWER}, or raise BETA.",
        "single steps of healthy runs jump up to 14 times, but never three in a row",
    ),
    Rule(
        "grad_norm_spike",
        "grad_norm, lowest of 3 steps, as times the 20 before",
        "≥",
        SPIKE,
        "warn",
        2 * WINDOW + IN_A_ROW,
        ("grad_norm",),
        grad_norm_spike,
        f"{SLOWER}; more completions a step (PROMPTS_PER_STEP) make the gradient calmer.",
        "single spikes are cut by max_grad_norm; three steps in a row above it are not noise",
    ),
    Rule(
        "groups_without_spread",
        "share of groups without spread (frac_reward_zero_std), mean of 10 steps",
        "≥",
        SPREAD_WARN,
        "stop",
        WINDOW,
        ("frac_reward_zero_std",),
        groups_without_spread,
        SPREAD_ADVICE,
        "the advantage is the reward minus its group's mean: no spread, no gradient",
    ),
    Rule(
        "reward_collapse",
        "reward_std, mean of 10 steps, as share of the first 10",
        "<",
        COLLAPSED,
        "stop",
        WINDOW,
        ("reward_std",),
        reward_collapse,
        SPREAD_ADVICE,
        "TRL's reward_std is over the whole batch: near 0 not even different prompts score differently",
        "reward",
    ),
    Rule(
        "duplicates",
        "share of completions that repeat another of their group, mean of 10 steps",
        ">",
        DUPLICATES,
        "warn",
        WINDOW,
        ("completions/duplicate_share",),
        duplicates,
        "Raise TEMPERATURE (to 1.0 or 1.2), or lower LEARNING_RATE if it grew while training; a larger group only "
        "repeats more.",
        "equal texts have equal rewards, so the group is in truth smaller than NUM_GENERATIONS",
    ),
    Rule(
        "entropy_collapse",
        "entropy, median of 5 steps, as share of the first 10",
        "<",
        ENTROPY_LEFT,
        "warn",
        WINDOW + 5,
        ("entropy",),
        entropy_collapse,
        "Raise TEMPERATURE or BETA, lower LEARNING_RATE, and go on from a checkpoint before the fall: what is not "
        "sampled cannot be learned.",
        "healthy runs of ours fall to 9 %, with correctness at 0.9; without success that is premature",
        "temperature",
    ),
    Rule(
        "entropy_rise",
        "entropy, median of 5 steps, as times the first 10",
        "≥",
        ENTROPY_RISE,
        "warn",
        WINDOW + 5,
        ("entropy",),
        entropy_rise,
        "Lower TEMPERATURE (not above 1.0) and LEARNING_RATE, raise BETA, and go on from the last good checkpoint.",
        "entropy falls or stays in runs that learn; one nat more a token is nearly three times the choices",
        "temperature",
    ),
    Rule(
        "clipped",
        "share of completions cut at the limit, mean of 10 steps",
        ">",
        CLIPPED_WARN,
        "stop",
        WINDOW,
        ("completions/clipped_ratio",),
        clipped,
        "Raise MAX_COMPLETION_TOKENS, unless the completions only ramble: then ask for brevity in the prompt or give "
        "length_reward some of the WEIGHTS.",
        "as in the preflight: what is cut before its answer cannot be right",
    ),
    Rule(
        "length_growth",
        "mean length of 10 steps, as times the first 10",
        "≥",
        LONGER,
        "warn",
        TREND_STEPS,
        ("completions/mean_length", "correctness"),
        length_growth,
        "Read the longest completions. Give length_reward some of the WEIGHTS, or use loss_type 'dr_grpo', which does "
        "not favour long wrong answers.",
        "longer is dearer; it is worth it only if more answers are right (Liu et al. 2025, arXiv 2503.20783)",
        "reward",
    ),
    Rule(
        "format_without_correctness",
        "largest rise of another reward since the first 10 steps",
        "≥",
        STYLE_RISE,
        "warn",
        TREND_STEPS,
        ("others", "correctness"),
        format_without_correctness,
        f"{HACK_ADVICE}; read what it pays for. If no answer is ever right, take easier data.",
        "style is learned first, but from 30 steps on correctness should follow",
        "reward",
    ),
    Rule(
        "reward_up_correctness_down",
        "fall of correctness from its best 10 steps while the total rose",
        "≥",
        FALL_WARN,
        "stop",
        TREND_STEPS,
        ("reward", "correctness"),
        reward_up_correctness_down,
        f"The policy is gaming a reward: find the one that rises in the completions. {HACK_ADVICE}; go on from the "
        "checkpoint with the best correctness.",
        "more than four standard errors, so that the best of many windows is not chance",
        "reward",
    ),
    Rule(
        "reward_dropped",
        "share of its best 10-step level that the reward has lost",
        "≥",
        DROP_WARN,
        "stop",
        2 * WINDOW,
        ("reward",),
        reward_dropped,
        f"{SLOWER}, or raise BETA; see that the data did not become harder and that no reward fails.",
        "at least five standard errors; what falls below its start was made worse by training",
        "reward",
    ),
    Rule(
        "no_movement",
        "rise of the reward, last quarter against the first 10 steps, in standard errors",
        "<",
        MOVED,
        "warn",
        MOVEMENT_STEPS,
        ("reward",),
        no_movement,
        "Check the preflight: is there spread in the groups? Then raise LEARNING_RATE (two to five times), "
        "NUM_GENERATIONS or PROMPTS_PER_STEP, or lower BETA.",
        "a clear trend is expected after 40 to 50 steps; two standard errors tell it from noise",
        "reward",
    ),
)
