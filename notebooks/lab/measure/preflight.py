"""Before any training: do samples of the base policy carry a signal that GRPO can learn from?

GRPO compares the completions of one prompt with each other. A group in which all have the same total reward teaches
nothing. `preflight` measures that on sampled groups, and gives the worst of all findings: no-go, weak, or go if there
is none. With fewer than 32 completions only a failing reward is a no-go; any other no-go becomes weak: sample more.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.data import dataset
from lab.files import Row, read_json
from lab.measure.estimates import pass_at_k, sample_sizes, share_interval
from lab.measure.grading import score_groups
from lab.model.sampling import Sampled
from lab.train import chosen_rewards
from scoring.combine import chosen_weights
from scoring.errors import InputError
from scoring.right import deciding_rewards, right_or_wrong

NO_SIGNAL = 0.10  # below it nine of ten groups are sampled and scored for nothing
LITTLE_SIGNAL = 0.40  # below it most of the sampling is wasted: training works, at more than twice the cost
SOLVED = 0.95  # above it two of three groups of 8 are all right: sampling, and no signal
RARE = 0.20  # pass@k below it: four of five groups never see a right completion to amplify
ENOUGH = 32  # completions; zero right of 32 bounds the success rate at about 10 % (rule of three), of 8 only at 37 %
CUT = 0.30  # share cut at the limit: a cut completion has no answer, so length is rewarded instead of being right
NONE_SHARE = 0.10  # None counts as 0 in TRL's sum; a few unusable gold answers are normal, a tenth is a data error
PULL = -0.30  # correlation: on ENOUGH completions chance alone reaches it about one time in twenty
SAME = 1e-9  # differences below it are rounding
# Many base models say them before any training (Liu et al. 2025, "Understanding R1-Zero-Like Training").
AHA = {
    "wait": r"wait",
    "hmm": r"hmm+",
    "actually": r"actually",
    "let me check": r"let(?: me|'s) (?:double[- ])?check",
    "let me re-…": r"let(?: me|'s) re-?(?:calculate|check|compute|consider|count|do|evaluate|examine|read|think|verify)",
    "on second thought": r"on second thoughts?",
}
LONGER = "Raise MAX_COMPLETION_TOKENS, unless the completions only ramble."
HARDER = "Take harder data: problems that the base often gets wrong."
FAILING = ("Take easier data, or mix some in.", "Run SFT on worked examples first.")
FAILING += ("Add a softer reward that tells a near miss from a complete one.", "Try another base model.")
Groups = Sequence[Sequence[Sampled]]  # the completions of each prompt
Finding = tuple[str, ...]  # verdict (no-go, weak or go), reason, advice …


def preflight(
    functions: Sequence[Any], weights: Mapping[str, float], rows: Sequence[Row], groups: Groups, *, seconds: float = 0
) -> Row:
    """The JSON-able record of all measurements, with `verdict`, `reasons` (worst first) and `advice`.

    A reward without a range gets the lowest and highest score seen as its range; one with weight 0 or none is measured,
    but not part of the total. There is one row a group, and the groups are of one size. `seconds` is what the sampling
    took. Raises InputError, with the way out, for input that is no set of groups or no choice of rewards.
    """
    weights = check_input(functions, weights, rows, groups)
    score_groups([], rows, groups)  # rows that do not fit together are no reward's fault: let them raise here
    shape, scores, rewards = (len(groups), len(groups[0])), {}, {}
    for function in functions:
        name, before, error = function.__name__, getattr(function, "failures", 0), None
        try:
            found = score_groups([function], rows, groups)[name].astype(float).to_numpy()
            if np.isinf(found).any():
                raise ValueError("it returned inf, which makes the advantages of the whole group NaN")
            scores[name] = found.reshape(shape)  # NaN for None
        except Exception as raised:  # the reader's code: it may raise anything
            error = f"{type(raised).__name__}: {raised}"[:400]
        failed = getattr(function, "failures", 0) - before  # scores that a service did not give
        line = reward_record(function, weights.get(name, 0.0), scores.get(name))
        rewards[name] = line | {"failed": failed, "error": error}
    parts = (np.nan_to_num(scores[name]) * weight for name, weight in weights.items() if name in scores)
    total = sum(parts, np.zeros(shape))
    sampled = [one for group in groups for one in group]
    record = {"groups": shape[0], "group_size": shape[1], "completions": len(sampled), "rewards": rewards}
    record |= {
        "total": {"weight": None, **spread(total)},
        "pass": pass_record(functions, rewards, scores, total),
        "clipped_share": float(np.mean([not one.finished for one in sampled])),
        "mean_tokens": float(np.mean([one.tokens for one in sampled])),
        "completions_per_second": len(sampled) / seconds if seconds else None,
        "correlation": correlation(scores),
        "aha": count_aha_words([one.text for one in sampled]),
        "totals": total.round(6).tolist(),
    }
    return {**judge_signal(record), **record}


def check_input(functions: Sequence[Any], weights: Mapping[str, float], rows: Sequence, groups: Sequence) -> dict:
    """The weights other than 0; raises InputError, saying what to change, where there is nothing to compare."""
    names, sizes = [function.__name__ for function in functions], sorted({len(group) for group in groups})
    if not groups or len(groups) != len(rows):
        raise InputError(f"{len(groups)} groups for {len(rows)} rows: sample one group of completions for each row.")
    if len(sizes) > 1 or sizes[0] < 2:
        raise InputError(f"The groups have {sizes} completions: make groups of one size, at least 2 (NUM_GENERATIONS).")
    if len(set(names)) < len(names):
        raise InputError(f"Two rewards have the same name among {names}: rename one, TRL would merge their metrics.")
    return chosen_weights(weights, names)


def spread(scores: np.ndarray) -> Row:
    """Mean, sample standard deviation within the groups, and where there is none; scores: (groups, completions)."""
    valid = scores[~np.isnan(scores)]
    within = pd.DataFrame(scores).std(axis=1).fillna(0.0)
    found = {"mean": float(valid.mean()) if valid.size else None, "spread_within_groups": float(within.mean())}
    shares = {"groups_without_spread": float((within < SAME).mean()), "none_share": float(np.isnan(scores).mean())}
    return {**found, **shares, "constant": bool(valid.size and np.ptp(valid) < SAME)}


def reward_record(function: Any, weight: float, scores: np.ndarray | None) -> Row:
    """One reward's line of the record; `low` and `high` are those seen where the function declares none."""
    if scores is None:
        return {"weight": float(weight), **dict.fromkeys(spread(np.zeros((1, 2)))), "low": None, "high": None}
    valid = scores[~np.isnan(scores)]
    low, high = getattr(function, "low", np.nan), getattr(function, "high", np.nan)
    if not np.isfinite([low, high]).all():
        low, high = (valid.min(), valid.max()) if valid.size and np.ptp(valid) > SAME else (0.0, 1.0)  # all 0 is no top
    return {"weight": float(weight), **spread(scores), "low": float(low), "high": float(high)}


def pass_record(functions: Sequence[Any], rewards: Row, scores: dict[str, np.ndarray], total: np.ndarray) -> Row:
    """Which rewards decide that a completion is right (`scoring.right`), and pass@k with intervals.

    Where no weighted reward claims correctness, the highest total that the weights allow is right. A prompt of which
    the deciding rewards say only None is left out.
    """
    used = [f for f in functions if rewards[f.__name__]["weight"] and not rewards[f.__name__]["error"]]
    deciding = deciding_rewards(used, [rewards[f.__name__]["weight"] for f in used])
    if deciding:
        ranges = {f.__name__: (rewards[f.__name__]["low"], rewards[f.__name__]["high"]) for f in deciding}
        flat = pd.DataFrame({name: scores[name].ravel() for name in ranges})
        right = right_or_wrong(flat, ranges).to_numpy().reshape(total.shape)
    else:
        lines = [rewards[f.__name__] for f in used]
        top = sum(line["weight"] * line["high" if line["weight"] > 0 else "low"] for line in lines)
        right = (total >= top - SAME).astype(float)
    judged = np.nan_to_num(right[~np.isnan(right).all(axis=1)]).sum(axis=1)  # right completions of each prompt
    size, by = total.shape[1], ", ".join(f.__name__ for f in deciding) or "total"
    at = {k: [pass_at_k(size, int(c), k) for c in judged] for k in sample_sizes(size) if len(judged)}
    found = {"decided_by": by, "claims_correctness": bool(deciding), "prompts": len(judged), "right": int(judged.sum())}
    return {**found, "at": {str(k): share_interval(values, 0, 1) for k, values in at.items()}}


def correlation(scores: dict[str, np.ndarray]) -> dict[str, dict[str, float | None]]:
    """Pearson correlation of the rewards within the groups, as GRPO sees them; None where one does not vary."""
    frames = (pd.DataFrame(values) for values in scores.values())  # rounded below: noise must not correlate
    centred = [frame.sub(frame.mean(axis=1), axis=0).to_numpy().ravel().round(9) for frame in frames]
    table = pd.DataFrame(dict(zip(scores, centred))).corr()
    return {a: {b: None if np.isnan(r) else float(r) for b, r in table[a].items()} for a in table}


def count_aha_words(texts: Sequence[str]) -> Row:
    """Share of completions with any word of reconsidering, and how many have each: nothing to credit training with."""
    plain = pd.Series(texts).str.replace("’", "'")
    hits = pd.DataFrame({word: plain.str.contains(rf"\b(?:{one})\b", case=False) for word, one in AHA.items()})
    return {"share": float(hits.any(axis=1).mean()), "words": hits.sum().to_dict()}


def judge_signal(record: Row) -> Row:
    """Verdict, reasons and advice: the worst of all findings, all of them listed."""
    findings = []
    for name, line in record["rewards"].items():  # those that raised, or returned what is no score
        if line["error"]:
            verdict = "no-go" if line["weight"] else "weak"  # training does not call one of weight 0
            reason = f"{name} failed{'' if line['weight'] else ', but has weight 0'}: {line['error']}"
            findings.append((verdict, reason, f"Repair {name}, and call it on one completion by hand."))
    if weighted(record):
        found = [*about_right(record), *about_signal(record), *about_rewards(record)]
        if record["clipped_share"] > CUT:
            cut = f"{percent(record['clipped_share'])} of the completions are cut at the token limit"
            found.append(("weak", f"{cut}, before their answer", LONGER))
        if record["completions"] < ENOUGH and any(verdict == "no-go" for verdict, *_ in found):
            more = f"Sample at least {ENOUGH} completions: {record['completions']} are too few to say no-go."
            found = [("weak", reason, more, *advice) for _, reason, *advice in found]
        findings += found
    findings = findings or [("go", headroom(record))]
    findings.sort(key=lambda one: ("no-go", "weak", "go").index(one[0]))
    advice = dict.fromkeys(line for _, _, *lines in findings for line in lines)
    return {"verdict": findings[0][0], "reasons": [reason for _, reason, *_ in findings], "advice": [*advice]}


def headroom(record: Row) -> str:
    n, size, by, at = record["groups"], record["group_size"], record["pass"]["decided_by"], record["pass"]["at"]
    differ = n - round(n * record["total"]["groups_without_spread"])
    found = f"pass@1 is {percent(at['1']['estimate'])}, pass@{size} {percent(at[str(size)]['estimate'])}"
    where = f"in {differ} of {n} groups ({percent(differ / n)}) the completions differ in total reward"
    return f"{where}, and by {by} {found}: that headroom is what GRPO can turn into pass@1"


def about_right(record: Row) -> Iterator[Finding]:
    """Whether what decides says right always, never, hardly ever, or nothing at all."""
    passed, size, rewards = record["pass"], record["group_size"], record["rewards"]
    by, at, judged = passed["decided_by"], passed["at"], passed["prompts"] * size
    deciding = by.split(", ") if passed["claims_correctness"] else []
    others = [name for name in weighted(record) if name not in deciding and signal_share(rewards[name]) >= NO_SIGNAL]
    style = ", ".join(others)
    if not at:
        advice = f"Compare the column that {by} reads with what it expects, and look at one gold answer."
        yield "no-go", f"{by} is None on all {record['completions']} completions: nothing can be judged", advice
    elif at["1"]["estimate"] >= SOLVED - SAME:
        share = percent(passed["right"] / judged)
        seen = f"{passed['right']} of {judged} completions are right by {by} (pass@1 {share})"
        if deciding and others:
            advice = "Take harder data, or train on if the style is all that you want."
            yield "weak", f"{seen}: only the style ({style}) remains to be learned", advice
        else:
            yield "no-go", f"{seen}: nothing to learn", HARDER
    elif not deciding:
        return  # a graded total can be climbed without anybody ever at its top
    elif not passed["right"]:
        bound = f"pass@{size} at most {percent(at[str(size)]['high'])}, 95 % interval"
        reason = f"none of {passed['prompts']} × {size} completions is right by {by} ({bound})"
        if max(signal_share(rewards[name]) for name in deciding) >= NO_SIGNAL:
            yield "weak", f"{reason}: only its partial scores can be climbed", *FAILING
        else:
            left = f"only {style} could be learned, not the task" if others else "nothing to amplify"
            check = f"First see that {by} gives a perfect completion its top score."
            longer = [LONGER] * (record["clipped_share"] > CUT)  # what is cut before its answer cannot be right
            yield "no-go", f"{reason}: {left}", check, *longer, *FAILING
    elif at[str(size)]["estimate"] < RARE:
        share = percent(at[str(size)]["estimate"])
        reason = f"pass@{size} is {share} by {by}: few groups hold a right completion to amplify"
        yield "weak", reason, "Take a larger group (NUM_GENERATIONS), or easier data first."


def about_signal(record: Row) -> Iterator[Finding]:
    """Groups without spread in the total, with advice that depends on whether they succeed, fail or agree."""
    n, share = record["groups"], signal_share(record["total"])
    if share >= LITTLE_SIGNAL:
        return
    same = n - round(n * share)
    reason = f"in {same} of {n} groups all completions have the same total reward: GRPO learns nothing from those"
    larger = "Take a larger group (NUM_GENERATIONS) or a higher temperature."
    advice = (larger, "Drop prompts that are always solved or never.")
    if record["pass"]["at"]:
        first = record["pass"]["at"]["1"]["estimate"]
        advice = (HARDER,) if first >= SOLVED - SAME else FAILING if first <= 1 - SOLVED else advice
    yield "no-go" if share < NO_SIGNAL else "weak", reason, *advice


def about_rewards(record: Row) -> Iterator[Finding]:
    """What single weighted rewards do wrong: constant, often None, or against correctness."""
    n, passed = record["completions"], record["pass"]
    deciding = passed["decided_by"].split(", ")
    for name in weighted(record):
        line = record["rewards"][name]
        if line["constant"] and name not in deciding:  # of a deciding one `about_right` has said it
            where = f"{name} gave {line['mean']:g} to all {n - round(n * line['none_share'])} completions"
            if line["mean"] >= line["high"] - SAME:
                yield "weak", f"{where}: it adds nothing", f"Set the weight of {name} to 0."
            else:
                reason = f"{where}: too strict, or a bug such as a regex without DOTALL"
                yield "weak", reason, f"Try {name} on a perfect completion; soften it if that scores well."
        if line["failed"] > NONE_SHARE * n:
            reason = f"{name} could not score {line['failed']} of {n} completions: what it depends on did not answer"
            yield "weak", reason, f"See the warning that {name} logged, and make its service answer."
        elif line["none_share"] > NONE_SHARE and (name not in deciding or passed["at"]):
            reason = f"{name} is None on {percent(line['none_share'])} of the completions, which counts as 0 there"
            yield "weak", reason, f"Drop rows whose gold answer {name} cannot score, or correct their column."
        for by in deciding:
            against = record["correlation"].get(by, {}).get(name)
            if name not in deciding and against is not None and against * np.sign(line["weight"]) < PULL:
                reason = f"{name}, as weighted, and {by} pull apart: correlation {against:+.2f} within the groups"
                yield "weak", reason, f"Lower the weight of {name}, or pay for it only where the answer is right."


def weighted(record: Row) -> list[str]:
    return [name for name, line in record["rewards"].items() if line["weight"] and not line["error"]]


def signal_share(line: Row) -> float:
    return round(1.0 - line["groups_without_spread"], 9)  # 1 - 0.9 is to be 0.1, which is not below 10 %


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def signal_table(record: Row) -> pd.DataFrame:
    """One line a reward, and the total: how it spreads within the groups. Empty cells where it failed."""
    columns = {"weight": "weight", "mean": "mean", "spread_within_groups": "spread within groups"}
    columns |= {"groups_without_spread": "share of groups without spread", "none_share": "share of None"}
    table = pd.DataFrame({**record["rewards"], "total": record["total"]}).T
    return table[list(columns)].astype(float).rename(columns=columns)


def facts_table(record: Row) -> pd.DataFrame:
    """What the base policy can do and how it writes, with 95 % intervals where they are known."""
    passed, aha = record["pass"], record["aha"]
    name = f", by {passed['decided_by']}"
    lines = {
        f"pass@{k}{name}": (percent(one["estimate"]), f"{percent(one['low'])} to {percent(one['high'])}")
        for k, one in passed["at"].items()
    }
    lines["cut at the token limit"] = (percent(record["clipped_share"]), "")
    lines["mean tokens"] = (f"{record['mean_tokens']:.0f}", "")
    if record["completions_per_second"]:
        lines["completions per second"] = (f"{record['completions_per_second']:.1f}", "")
    words = ", ".join(f"{word} {count}" for word, count in aha["words"].items() if count)
    lines["with words of reconsidering"] = (percent(aha["share"]) + (f" ({words})" if words else ""), "")
    return pd.DataFrame(lines, index=["value", "95 % interval"]).T


def verdict_text(record: Row) -> str:
    """The verdict with its reasons, and what to change, a line each."""
    first, *rest = record["reasons"]
    lines = [f"{record['verdict']}: {first}", *(f"  also: {reason}" for reason in rest)]
    lines += ["What to change:"] * bool(record["advice"]) + [f"  - {line}" for line in record["advice"]]
    return "\n".join(lines)


def made_for(folder: Path) -> Row:
    """What tells the rewards and the data that a preflight is made for from any others."""
    source = chosen_rewards.source_hash(chosen_rewards.current_sources(folder))
    return {"source_sha256": source, "data": dataset.load_split(folder, "train")._fingerprint}


def preflight_notes(folder: Path, chosen: Row, data: str) -> Iterator[str]:
    """What a person should know of notebook 02 before training with the rewards of this record on this data.

    A failed audit, a no-go, and whether the preflight was made for these rewards, weights and data, or not at all.
    """
    place = folder / "preflight.json"
    record = read_json(place, chosen_rewards.MADE_BY) if place.exists() else {}
    if (audit := chosen.get("audit") or {}).get("status", "passed") != "passed":
        yield f"notebook 02 says of these rewards: {audit['said']}"
    if not record:
        yield "notebook 02 made no preflight: nobody knows yet whether the base policy can learn from these rewards."
        return
    weights = {name: line["weight"] for name, line in record["rewards"].items() if line["weight"]}
    pairs = {"weights": (weights, {entry["name"]: entry["weight"] for entry in chosen["rewards"]})}
    pairs["rewards"] = (record.get("source_sha256"), chosen["source_sha256"])
    pairs["data"] = (record.get("data"), data)
    if others := [what for what, (before, now) in pairs.items() if before is not None and before != now]:
        said = f"the preflight, which said {record['verdict']}, was made for other {' and '.join(others)}"
        yield f"{said}: run notebook 02 again."
    elif record["verdict"] == "no-go":
        yield f"the preflight of notebook 02 says {verdict_text(record)}"
