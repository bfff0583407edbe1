"""Is this GRPO run healthy? Named rules over its log, with thresholds, their reasons and what to do.

`diagnose(log)` gives one finding a rule, for the last row of the log: called after every step it watches
a run, called once it judges a finished one.

| verdict      | meaning                                                                             |
|--------------|-------------------------------------------------------------------------------------|
| critical     | the run is wasted or broken from here: stop it and change something                 |
| warn         | look at it: what is measured is outside of what healthy runs show                   |
| ok           | measured, and nothing to do; a run that has solved its task is ok                   |
| too early    | fewer steps than the rule needs: nothing is said from noise                         |
| not measured | the log lacks what the rule looks at; the message says why                          |

Rewards are taken to lie in [0, 1], as those of `rewards.py` do. A reward that was edited while training goes on as
`name_v2`: it is the same series, but rules that compare totals with earlier ones begin anew at the edit.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from lab.read.health_rules import ALIKE, MOVED, RULES, TREND_STEPS, Rule
from lab.read.moving_statistics import SAME, WINDOW
from lab.read.run_log import RunLog, read_log
from scoring.right import USUAL_DECIDERS

TREND_NOTE = "Expect 40 to 50 steps before a clear trend."
NO_SIGNAL = "Change the rewards or the data in notebook 02 until its preflight says go, and train again."
VERDICTS = ("critical", "warn", "ok", "too early", "not measured")  # worst first


class Finding(NamedTuple):
    rule: str
    value: float | None
    threshold: float
    verdict: str
    since: int | None  # the step from which on the rule has held without a break
    message: str
    advice: str


def diagnose(log: pd.DataFrame, *, correctness: Sequence[str] = USUAL_DECIDERS) -> list[Finding]:
    """One finding for each of RULES, in their order, for the last row of the log (a row a step, as TRL logs it).

    `correctness` names the rewards that decide what is right, without version; with several, their mean counts.
    """
    run = read_log(log, correctness)
    with np.errstate(invalid="ignore", divide="ignore"):
        return [apply_rule(rule, run) for rule in RULES]


def apply_rule(rule: Rule, whole: RunLog) -> Finding:
    def finding(verdict: str, message: str, value: float | None = None, since: int | None = None) -> Finding:
        return Finding(rule.name, value, rule.limit[1], verdict, since, message, rule.advice)

    columns, run = list(filter(None, rule.columns.split(", "))), whole.since_change(rule.unchanged)
    missing = [reason for name in columns if (reason := whole.missing(name))]
    if missing and len(whole):
        return finding("not measured", missing[0])
    if len(run) < rule.steps:
        anew = f" since the {rule.unchanged} was changed at step {run.steps[0]:.0f}" if len(run) < len(whole) else ""
        return finding("too early", f"needs {rule.steps} steps{anew}, and has {len(run)}")
    reading = rule.measure(run)
    value = float(reading.value[-1])
    if np.isnan(value):
        return finding("not measured", f"too few of the last steps have {' and '.join(columns)}")
    if not reading.warn[-1]:
        return finding("ok", reading.remark or "fine", value)
    critical = reading.critical is not None and reading.critical[-1]
    fine = np.flatnonzero(~reading.warn)
    since = int(run.steps[max(fine[-1] + 1 if fine.size else 0, rule.steps - 1)])
    return finding("critical" if critical else "warn", reading.problem, value, since)


def problems(findings: Sequence[Finding]) -> list[Finding]:
    """What needs a person: critical findings first, then warnings."""
    return worst_first([finding for finding in findings if finding.verdict in ("critical", "warn")])


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: VERDICTS.index(finding.verdict))


def findings_table(findings: Sequence[Finding]) -> pd.DataFrame:
    """The findings for a person, worst first. The last column says what to do, or why there is nothing to do."""
    sense = {rule.name: rule.limit[0] for rule in RULES}
    lines = [
        {
            "rule": f.rule,
            "value": "" if f.value is None else f"{f.value:.3g}",
            "threshold": f"{sense[f.rule]} {f.threshold:g}",
            "verdict": f.verdict,
            "since step": "" if f.since is None else str(f.since),
            "advice": f"{f.message}. {f.advice}" if f.verdict in ("critical", "warn") else f.message,
        }
        for f in worst_first(findings)
    ]
    return pd.DataFrame(lines, columns=["rule", "value", "threshold", "verdict", "since step", "advice"])


def steps_in_words(n: int) -> str:
    return f"{n} step{'s' * (n != 1)}"


def nothing_learned(log: pd.DataFrame) -> str:
    """A sentence where no step of the run had anything to learn from; else empty."""
    series = read_log(log, ()).series
    share, std = series.get("frac_reward_zero_std"), series.get("reward_std", np.ones(1))
    same = std < ALIKE if share is None else share >= 1 - SAME
    if not len(same) or not same.all():
        return ""
    seen = f"the completions of a group always had the same total reward ({steps_in_words(len(same))})"
    return f"Nothing was learned: {seen}. {NO_SIGNAL}"


class Convergence(NamedTuple):
    trend: str  # rising, flat, falling or too early
    slope: float | None  # points of reward a step
    error: float | None  # standard error of the slope
    steps: int  # that it was measured on
    sentence: str


def convergence(log: pd.DataFrame) -> Convergence:
    """The slope of the total reward (least squares) over the last TREND_STEPS steps since the last edit of a reward."""
    whole = read_log(log, ())
    run = whole.since_change("reward")
    values = run.series.get("reward", np.full(len(run), np.nan))
    known = np.isfinite(values)
    steps, values = run.steps[known][-TREND_STEPS:], values[known][-TREND_STEPS:]
    note = f" {TREND_NOTE}" if len(whole) < 50 else ""
    nothing = nothing_learned(log)
    if len(values) < WINDOW:
        since = f" since the edit at step {run.steps[0]:.0f}" if len(run) < len(whole) else ""
        few = f"{steps_in_words(len(values))}{since} {'is' if len(values) == 1 else 'are'} too few for a trend.{note}"
        return Convergence("too early", None, None, len(values), nothing or few)
    x = steps - steps.mean()
    slope = float(x @ values / (x @ x))
    left = values - values.mean() - slope * x
    error = float(np.sqrt(left @ left / (len(values) - 2) / (x @ x)))
    trend = "flat" if abs(slope) <= max(MOVED * error, SAME) else "rising" if slope > 0 else "falling"
    how = {"rising": "rises by", "falling": "falls by", "flat": "shows no clear trend:"}[trend]
    size = f"{abs(slope):.2g}" if trend != "flat" else f"{slope:+.2g}"
    about = f"± {error if error > SAME else 0:.2g}, last {len(values)} logged steps"
    sentence = f"The reward {how} {size} points a step ({about}).{note if trend == 'flat' else ''}"
    return Convergence(trend, slope, error, len(values), nothing or sentence)
