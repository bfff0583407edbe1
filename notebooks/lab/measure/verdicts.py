"""What an evaluation shows, in sentences and in one table."""

import math
from collections.abc import Iterator

import pandas as pd
from scipy.stats import binomtest

from lab.files import Row
from lab.measure.estimates import FEWEST_CHANGES, problems_needed
from lab.measure.evaluate import GREEDY, SAMPLED

BETTER, WORSE, NO_GAIN = "better", "worse", "no gain shown"
HEADLINES = {BETTER: "A gain was shown", WORSE: "A loss was shown", NO_GAIN: "No gain was shown"}
SIGNIFICANT = 0.05  # a p-value below it counts
CUT_FROM = 0.9  # share of answers that end by themselves; below it a sentence says how many were cut
ROUGH = 100  # problems; with fewer an interval is rough
CORRECT = "correct in the answer block, greedy"
MISSED = 0.05  # share of right answers that `right_anyhow` may miss; above it, it says nothing about this task
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
    measures = {"correct": (GREEDY, CORRECT)}
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
        if name == "correct":
            yield from any_style_sentences(record)
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


def any_style_sentences(record: Row) -> Iterator[str]:
    """The other half of the headline: how many problems each model solves in any style, and how much of a gain is form."""
    models, greedy = (record["baseline"], record["other"]), record[GREEDY]
    before, after = ({name: greedy[m][name]["estimate"] for name in ("correct", "right_anyhow")} for m in models)
    if before["right_anyhow"] == before["correct"] and after["right_anyhow"] == after["correct"]:
        return  # nobody is right in another style
    if after["right_anyhow"] < after["correct"] - MISSED:
        return  # such as a choice of letters
    changes = record["difference"][record["other"]][GREEDY]
    change, gain = changes["right_anyhow"], changes["correct"]["estimate"]
    shares = f"{100 * before['right_anyhow']:.1f} → {100 * after['right_anyhow']:.1f} %"
    shown = {BETTER: "a gain", WORSE: "a loss", NO_GAIN: "no gain shown"}[verdict_of(change)]
    points, interval = signed_points(change["estimate"]), interval_text(change)
    yield f"Right in any style, greedy: {shares} ({points} points, interval {interval}: {shown})."
    if change["estimate"] < gain / 2 and record["verdict"]["correct"] == BETTER:
        asked = f"{100 * before['correct']:.1f} % in the answer block"
        solved = f"Before training {100 * before['right_anyhow']:.1f} % were solved in some style, {asked}"
        yield f"{solved}: most of this gain is the format, not the skill."


def held_out_words(n: int, n_train: int) -> str:
    """What an evaluation on n held-out rows can show and, where that is little, what to do.

    >>> held_out_words(500, 4000)
    'Held-out rows: 500. If 250 are answered right in notebook 05, the share lies between 45.5 and 54.5 % (95 % interval).'
    """
    half, total = (n + 1) // 2, n + n_train
    low, high = (100 * end for end in binomtest(half, n).proportion_ci())
    said = f"Held-out rows: {n:,}. If {half} are answered right in notebook 05, the share lies between {low:.1f} and {high:.1f} %"
    said += " (95 % interval)."
    if n >= ROUGH:
        return said
    no_gain = f"No gain can be shown with fewer than {FEWEST_CHANGES} rows."
    said += f" {no_gain if n < FEWEST_CHANGES else 'Only a large gain can be shown.'}"
    if total < 2 * ROUGH:
        return f"{said} Add rows, until {ROUGH} can be held out. With TEST_SHARE = 0.5 there are {total // 2} now."
    share = math.ceil(100 * ROUGH / total) / 100
    return f"{said} To hold out {ROUGH}, set TEST_SHARE = {share:g}, or mark more rows as test in a column `split`."


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
    measures = [(GREEDY, "format", "strict format, greedy"), (GREEDY, "correct", CORRECT)]
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
