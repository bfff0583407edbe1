"""What an evaluation shows, in sentences and in one table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from lab.measure.estimates import problems_needed
from lab.measure.evaluate import GREEDY, SAMPLED

BETTER, WORSE, NO_GAIN = "better", "worse", "no gain shown"
CUT_FROM = 0.9  # share of answers that end by themselves; below it what was cut is told
ROUGH = 100  # problems; with fewer an interval is rough


def verdict_of(found: dict[str, Any]) -> str:
    """Better or worse where the interval leaves 0 out and, where there is an exact p-value, it agrees."""
    if found["low"] <= 0 <= found["high"] or found.get("p", 0) >= PASSED:
        return NO_GAIN
    return BETTER if found["estimate"] > 0 else WORSE


def verdicts(record: dict[str, Any]) -> dict[str, str]:
    """Of the model in question against the baseline: by greedy correct, and by pass@1 where samples were taken."""
    change = record["difference"][record["other"]]
    found = {"correct": change[GREEDY]["correct"], "pass@1": change[SAMPLED].get("pass@1")}
    return {name: verdict_of(one) for name, one in found.items() if one}


def sentences(record: dict[str, Any]) -> Iterator[str]:
    """What a person should know of the comparison, the verdicts first."""
    change, k = record["difference"][record["other"]], record["settings"]["n_samples"]
    yield from measure_sentence(record, "correct", change[GREEDY]["correct"], "correct, greedy")
    if "pass@1" in change[SAMPLED]:
        label = f"pass@1 at temperature {record['settings']['temperature']:g}"
        yield from measure_sentence(record, "pass@1", change[SAMPLED]["pass@1"], label)
    most = change[SAMPLED].get(f"pass@{k}")
    if k > 1 and BETTER in record["verdict"].values() and verdict_of(most) == WORSE:
        yield (
            f"But pass@{k} fell by {-100 * most['estimate']:.1f} points (95 % interval {span(most)}): of {k} attempts fewer "
            "problems are solved at all. That is known of RL (Yue et al. 2025): answers get surer, and less varied."
        )
    for kind, label in ((GREEDY, "greedy"), (SAMPLED, "sampled")):
        done = {
            m: record[kind][m]["finished"]["estimate"] for m in (record["baseline"], record["other"]) if record[kind][m]
        }
        if done and min(done.values()) < CUT_FROM:
            cut = " and ".join(f"{100 * (1 - share):.0f} % of {m}'s" for m, share in done.items())
            yield f"{cut} {label} answers were cut at {record['settings']['max_new_tokens']} tokens."
    if record["n"] < ROUGH:
        yield f"With {record['n']} problems an interval is rough: evaluate {ROUGH} or more before you rely on it."
    if record["left_out"]:
        lost, judge = record["left_out"], record["correct_by"]
        yield f"Left out: {lost} of {record['n'] + lost} problems, of which {judge} cannot say what is right."


def measure_sentence(record: dict[str, Any], name: str, found: dict[str, Any], label: str) -> Iterator[str]:
    head = {BETTER: "A gain was shown", WORSE: "A loss was shown", NO_GAIN: "No gain was shown"}[
        record["verdict"][name]
    ]
    test = "McNemar's test" if "gained" in found else "sign flips"
    p = f", p {p_text(found['p'])} by {test}" if "p" in found else ""
    yield f"{head} ({label}): {signed(found['estimate'])} points, 95 % interval {span(found)}, n = {record['n']}{p}."
    if record["verdict"][name] == NO_GAIN and found.get("gained", 0) > found.get("lost", 0):
        needed = problems_needed(found["gained"], found["lost"], record["n"])
        if needed > record["n"]:
            yield f"About {needed:,} problems would be needed to show a gain of this size."


def signed(value: float, factor: float = 100) -> str:
    """A difference as it is read, in points.

    >>> signed(0.0042), signed(-0.012), signed(-1e-9)
    ('+0.4', '−1.2', '+0.0')
    """
    return f"{round(factor * value, 1) + 0.0:+.1f}".replace("-", "−")


def span(found: dict[str, Any], factor: float = 100) -> str:
    """An interval as it is read, in points."""
    return f"{signed(found['low'], factor)} to {signed(found['high'], factor)}"


def p_text(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"= {p:.2g}"


def summary(evaluation: dict[str, Any]) -> pd.DataFrame:
    """What a person reads: a line a measure, a column a model, and the difference of the verdict's two with its interval."""
    k, at = evaluation["settings"]["n_samples"], f", temperature {evaluation['settings']['temperature']:g}"
    measures = [(GREEDY, "format", "strict format, greedy"), (GREEDY, "correct", "correct, greedy")]
    measures += [(GREEDY, "right_anyhow", "right in any style, greedy"), (SAMPLED, "pass@1", f"pass@1{at}")]
    measures += [(SAMPLED, f"{name}@{k}", f"{name}@{k}{at}") for name in ("pass", "maj") if k > 1]
    measures += [(GREEDY, "finished", "not cut, greedy"), (SAMPLED, "finished", f"not cut{at}")]
    measures += [(GREEDY, "tokens", "mean tokens, greedy"), (SAMPLED, "tokens", f"mean tokens{at}")]
    measures += [
        (GREEDY, "tokens_per_second", "tokens a second, greedy"),
        (SAMPLED, "tokens_per_second", f"tokens a second{at}"),
    ]
    first = evaluation["baseline"]
    there = [one for one in measures if one[1] in evaluation[one[0]].get(first, {})]
    return pd.DataFrame({label: line(evaluation, kind, name) for kind, name, label in there}).T


def line(evaluation: dict[str, Any], decoding: str, name: str) -> dict[str, Any]:
    """A measure's line of `summary`."""
    share = bounds(name) is not None
    first, last = evaluation["baseline"], evaluation["other"]
    found = {}
    for model in (first, *(m for m in evaluation["models"] if m not in (first, last)), last):
        value = evaluation[decoding][model][name]
        value = value["estimate"] if isinstance(value, dict) else value
        found[model] = (
            f"{100 * value:.1f} %" if share else f"{value:,.0f}" if name == "tokens_per_second" else f"{value:.1f}"
        )
    change = evaluation["difference"][evaluation["other"]][decoding].get(name)
    if change is None:
        return {**found, "difference": "", "95 % interval": "", "p": "", "n": evaluation["n"]}
    factor, unit = (100, " points") if share else (1, "")
    return {
        **found,
        "difference": f"{signed(change['estimate'], factor)}{unit}",
        "95 % interval": span(change, factor),
        "p": p_text(change["p"]).removeprefix("= ") if "p" in change else "",
        "n": change["n"],
    }


PASSED = 0.05  # a p-value below it counts


def bounds(name: str, difference: bool = False) -> tuple[float, float] | None:
    """The ends of a measure's range; None where it has none that is known."""
    return (-1.0 if difference else 0.0, 1.0) if name.startswith(SHARES) else None


SHARES = ("format", "correct", "right_anyhow", "finished", "pass@", "maj@")  # measures between 0 and 1
