"""What an evaluation shows, in sentences and in one table."""

from collections.abc import Iterator

import pandas as pd

from lab.files import Row
from lab.measure.estimates import problems_needed
from lab.measure.evaluate import GREEDY, SAMPLED

BETTER, WORSE, NO_GAIN = "better", "worse", "no gain shown"
HEADLINES = {BETTER: "A gain was shown", WORSE: "A loss was shown", NO_GAIN: "No gain was shown"}
SIGNIFICANT = 0.05  # a p-value below it counts
CUT_FROM = 0.9  # share of answers that end by themselves; below it a sentence says how many were cut
ROUGH = 100  # problems; with fewer an interval is rough
SHARES = ("format", "correct", "right_anyhow", "finished", "pass@", "maj@")  # measures between 0 and 1


def is_share(measure: str) -> bool:
    """Whether a measure lies between 0 and 1; its difference then lies between -1 and 1."""
    return measure.startswith(SHARES)


def verdict_of(change: Row) -> str:
    """Better or worse where the interval excludes 0 and, where there is an exact p-value, it agrees."""
    if change["low"] <= 0 <= change["high"] or change.get("p", 0) >= SIGNIFICANT:
        return NO_GAIN
    return BETTER if change["estimate"] > 0 else WORSE


def comparison_sentences(record: Row) -> Iterator[str]:
    """What a person should know of the comparison, the verdicts first."""
    change, settings, n = record["difference"][record["other"]], record["settings"], record["n"]
    measures = {"correct": (GREEDY, "correct, greedy")}
    measures["pass@1"] = (SAMPLED, f"pass@1 at temperature {settings['temperature']:g}")
    for name, verdict in record["verdict"].items():
        decoding, label = measures[name]
        one = change[decoding][name]
        test = "McNemar's test" if "gained" in one else "sign flips"
        p = f", p {p_text(one['p'])} by {test}" if "p" in one else ""
        points, interval = signed_points(one["estimate"]), interval_text(one)
        yield f"{HEADLINES[verdict]} ({label}): {points} points, 95 % interval {interval}, n = {n}{p}."
        if verdict == NO_GAIN and one.get("gained", 0) > one.get("lost", 0):
            needed = problems_needed(one["gained"], one["lost"], n)
            if needed > n:
                yield f"About {needed:,} problems would be needed to show a gain of this size."
    k = settings["n_samples"]
    most = change[SAMPLED].get(f"pass@{k}")
    if k > 1 and BETTER in record["verdict"].values() and verdict_of(most) == WORSE:
        yield (
            f"But pass@{k} fell by {-100 * most['estimate']:.1f} points (95 % interval {interval_text(most)}): of {k} "
            "attempts fewer problems are solved at all. That is known of RL (Yue et al. 2025): answers get surer, and "
            "less varied."
        )
    for decoding in (GREEDY, SAMPLED):
        models = [model for model in (record["baseline"], record["other"]) if record[decoding][model]]
        finished = {model: record[decoding][model]["finished"]["estimate"] for model in models}
        if finished and min(finished.values()) < CUT_FROM:
            cut = " and ".join(f"{100 * (1 - share):.0f} % of {model}'s" for model, share in finished.items())
            yield f"{cut} {decoding} answers were cut at {settings['max_new_tokens']} tokens."
    if n < ROUGH:
        yield f"With {n} problems an interval is rough: evaluate {ROUGH} or more before you rely on it."
    if lost := record["left_out"]:
        yield f"Left out: {lost} of {n + lost} problems, of which {record['correct_by']} cannot say what is right."


def signed_points(value: float, factor: float = 100) -> str:
    """A difference as it is read, in points.

    >>> signed_points(0.0042), signed_points(-0.012), signed_points(-1e-9)
    ('+0.4', '−1.2', '+0.0')
    """
    return f"{round(factor * value, 1) + 0.0:+.1f}".replace("-", "−")


def interval_text(change: Row, factor: float = 100) -> str:
    """An interval as it is read, in points."""
    return f"{signed_points(change['low'], factor)} to {signed_points(change['high'], factor)}"


def p_text(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"= {p:.2g}"


def summary_table(record: Row) -> pd.DataFrame:
    """The evaluation as a person reads it: a line a measure, a column a model, and the difference that the verdict is on."""
    first, last, k = record["baseline"], record["other"], record["settings"]["n_samples"]
    at = f", temperature {record['settings']['temperature']:g}"
    measures = [(GREEDY, "format", "strict format, greedy"), (GREEDY, "correct", "correct, greedy")]
    measures += [(GREEDY, "right_anyhow", "right in any style, greedy"), (SAMPLED, "pass@1", f"pass@1{at}")]
    measures += [(SAMPLED, f"{name}@{k}", f"{name}@{k}{at}") for name in ("pass", "maj") if k > 1]
    for name, label in (("finished", "not cut"), ("tokens", "mean tokens"), ("tokens_per_second", "tokens a second")):
        measures += [(GREEDY, name, f"{label}, greedy"), (SAMPLED, name, f"{label}{at}")]
    lines = {}
    for decoding, name, label in measures:
        if name not in record[decoding].get(first, {}):
            continue
        cells = {}
        for model in (first, *(m for m in record["models"] if m not in (first, last)), last):
            value = record[decoding][model][name]
            value = value["estimate"] if isinstance(value, dict) else value
            number = f"{value:,.0f}" if name == "tokens_per_second" else f"{value:.1f}"
            cells[model] = f"{100 * value:.1f} %" if is_share(name) else number
        cells |= {"difference": "", "95 % interval": "", "p": "", "n": record["n"]}
        if change := record["difference"][last][decoding].get(name):
            factor, unit = (100, " points") if is_share(name) else (1, "")
            cells["difference"] = f"{signed_points(change['estimate'], factor)}{unit}"
            cells["95 % interval"] = interval_text(change, factor)
            cells["p"] = p_text(change["p"]).removeprefix("= ") if "p" in change else ""
            cells["n"] = change["n"]
        lines[label] = cells
    return pd.DataFrame(lines).T
