"""How fast the rewards are, beside what they replace, in one run: `make bench`.

Every reward on the same 10,000 completions, written in the many styles of sampled ones; in the same
run math-verify alone, TRL's accuracy_reward, and the regular expressions of widely copied notebooks.
Then every reward on a megabyte of hostile text. Ratios are what to quote: machines differ.
"""

import argparse
import itertools
import json
import logging
import math
import platform
import random
import re
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pandas as pd
from tqdm.auto import tqdm

import rewards
from lab.files import WORD_PROBLEMS, write_json
from rewards import FORMAT, REGISTRY, RewardFunction, adopt, extract_number
from scoring import numbers
from scoring.contract_checks import HOSTILE
from scoring.probes import WORKING

RESULTS = Path(__file__).with_name("results") / "rewards.json"
SKIPPED = {"judge_reward": "waits for a service", "debug_reward": "prints"}
GROUP = 8

# --------------------------------------------------------------------------- the completions


def answer_styles(gold: str, rng: random.Random) -> str:
    """A plain number, right or wrong, in one of the clothes that models give it."""
    value = extract_number(gold)
    value = value if rng.random() < 0.6 else value + rng.randint(1, 9)
    plain = str(value) if value.denominator == 1 else f"{float(value):g}"
    grouped = f"{int(value):,}" if value.denominator == 1 else plain
    return rng.choice(
        [
            plain,
            plain,
            plain,
            grouped,
            f"${plain}",
            f"{plain}.",
            f"**{plain}**",
            f"{plain}.00" if "." not in plain else plain,
        ]
    )


def make_completions(n: int, rows: list[dict], seed: int = 3407) -> list[dict]:
    """n rows of completion, prompt and gold, in groups: most in the format, some bare, chatty or unfinished."""
    rng, made = random.Random(seed), []
    for row in itertools.cycle(rows):
        prompt = [{"role": "user", "content": row["question"]}]
        for _ in range(GROUP):
            given = answer_styles(row["answer"], rng)
            whole = FORMAT.write(row["solution"], given)
            text = rng.choice(
                [whole] * 7
                + [f"{row['solution']}\nThe answer is {given}.", f"Sure! {whole}", whole[: len(whole) * 2 // 3]]
            )
            chat = [{"role": "assistant", "content": text}]
            made.append({"prompt": prompt, "completion": chat, "text": text, "given": given, "gold": row["answer"]})
            if len(made) == n:
                return made


def load_rows(path: Path) -> list[dict]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if "solution" in rows[0]:  # percentages aside: whether 85.00 is 85 % is a convention, and math-verify has another
        return [row for row in rows if not row["answer"].endswith("%")]
    return [
        {
            "question": r["question"],
            "solution": r["answer"].rpartition("####")[0],
            "answer": rewards.extract_gsm8k_answer(r["answer"]),
        }
        for r in rows
    ]


def columns_for(function: RewardFunction, made: list[dict]) -> dict[str, list]:
    known = {"answer": [row["gold"] for row in made], "completion_ids": [[0] * (len(row["text"]) // 3) for row in made]}
    example = {name: [value] * len(made) for name, value in function.example.items() if name != "right"}
    return {**known, **example}


# --------------------------------------------------------------------------- what is beside them


def math_verify_alone(given: list[str], gold: list[str]) -> list[float]:
    """parse and verify as their README shows them; without bold and currency signs, which its LaTeX parser cannot take."""
    from math_verify import parse, verify

    bare = [[f"${text.replace('$', '').replace('**', '')}$" for text in texts] for texts in (given, gold)]
    return [float(verify(parse(b), parse(a))) for a, b in zip(*bare)]


def naive_regex_set(completions: list, answer: list, **_) -> list[float]:
    """The five functions of the widely copied GSM8K notebooks, in spirit: extraction, integer, strict, soft, tag counts."""
    scores = []
    for completion, gold in zip(completions, answer):
        text = completion[0]["content"]
        given = text.split("<answer>")[-1].split("</answer>")[0].strip()
        score = 2.0 * (given == gold) + 0.5 * given.isdigit()
        score += 0.5 * bool(re.match(r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>\n$", text))
        score += 0.5 * bool(re.match(r"<think>.*?</think>\s*<answer>.*?</answer>", text))
        scores.append(score + sum(0.125 for tag in FORMAT.marks if text.count(tag) == 1))
    return scores


def fastest(call: Callable[[], object], times: int = 3) -> float:
    """Seconds of the fastest of some calls; caches are emptied before each."""
    best = math.inf
    for _ in range(times):
        numbers.parse_number.cache_clear()
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
    return best


def speeds(made: list[dict], slow_sample: int) -> list[dict]:
    from trl.rewards import accuracy_reward

    prompts, completions = [row["prompt"] for row in made], [row["completion"] for row in made]
    lines = []
    for name, function in tqdm(REGISTRY.items(), desc="rewards"):
        if name not in SKIPPED:
            columns = columns_for(function, made)
            function(
                prompts=prompts[:1], completions=completions[:1], **{k: v[:1] for k, v in columns.items()}
            )  # imports
            seconds = fastest(partial(function, prompts=prompts, completions=completions, **columns))
            lines.append({"what": name, "completions": len(made), "seconds": seconds})
    few, gold = made[:slow_sample], [row["gold"] for row in made[:slow_sample]]
    answers = [row["given"] for row in few]
    theirs = adopt(accuracy_reward)
    beside = {
        "math_verify on the answers alone": lambda: math_verify_alone(answers, gold),
        "math_verify on whole completions": lambda: math_verify_alone([row["text"] for row in few], gold),
        "trl.rewards.accuracy_reward": lambda: theirs(
            prompts=prompts[:slow_sample], completions=completions[:slow_sample], solution=gold
        ),
    }
    math_verify_alone(answers[:5], gold[:5])
    for what, call in tqdm(beside.items(), desc="beside them"):
        lines.append({"what": what, "completions": len(few), "seconds": fastest(call, times=1)})
    seconds = fastest(lambda: naive_regex_set(completions, [row["gold"] for row in made]))
    lines.append({"what": "five naive regex rewards", "completions": len(made), "seconds": seconds})
    for line in lines:
        line["per_second"] = line["completions"] / line["seconds"]
    return lines


def verdicts(made: list[dict], n: int) -> dict:
    """How often math_reward and math-verify agree on the same answers, and where they do not."""
    few = made[:n]
    texts = [
        f"<answer>{row['given']}</answer>" if FORMAT.opening else FORMAT.write(WORKING, row["given"]) for row in few
    ]
    ours = REGISTRY["math_reward"](prompts=[""] * n, completions=texts, answer=[row["gold"] for row in few])
    theirs = math_verify_alone([row["given"] for row in few], [row["gold"] for row in few])
    apart = [(row["gold"], row["given"], a, b) for row, a, b in zip(few, ours, theirs) if a != b]
    return {
        "compared": n,
        "equal": n - len(apart),
        "right": int(sum(ours)),
        "apart": [list(item) for item in apart[:10]],
    }


# --------------------------------------------------------------------------- hostile text


def hostile() -> list[dict]:
    """For each reward the worst of all hostile texts: seconds for 1 MB, and times those for 100 kB."""
    wraps = (
        str,
        lambda text: FORMAT.write(WORKING, text),
        lambda text: FORMAT.write(text, "12"),
        lambda text: FORMAT.write("a", "12") + text,
    )
    worst: dict[str, dict] = {}
    for unit in tqdm(HOSTILE, desc="hostile text"):
        for wrap, (name, function) in itertools.product(wraps, REGISTRY.items()):
            if name in SKIPPED:
                continue
            columns = {"answer": "12", "target": 17, **function.example}
            took = []
            for size in (100_000, 1_000_000):
                text, best = wrap(unit * (size // len(unit))), math.inf
                for _ in range(2):
                    started = time.process_time()
                    function.score(text, **columns)
                    best = min(best, time.process_time() - started)
                took.append(best)
            line = {"what": name, "text": unit, "seconds": took[1], "times_100kB": took[1] / max(took[0], 1e-3)}
            worst[name] = max(worst.get(name, line), line, key=lambda found: found["seconds"])
    return list(worst.values())


# --------------------------------------------------------------------------- the report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=WORD_PROBLEMS, help="JSONL with question and answer, ours or GSM8K's"
    )
    parser.add_argument("--n", type=int, default=10_000, help="completions")
    parser.add_argument("--slow", type=int, default=1_000, help="completions for what takes a millisecond each")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name} beside this script")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)

    made = make_completions(arguments.n, load_rows(arguments.data))
    lines, same, worst = speeds(made, arguments.slow), verdicts(made, arguments.slow), hostile()
    table = pd.DataFrame(lines).set_index("what")
    ratio = table.loc["math_reward", "per_second"] / table.loc["math_verify on the answers alone", "per_second"]

    table["µs each"] = 1e6 / table["per_second"]
    table["per second"] = table["per_second"].map("{:,.0f}".format)
    print(
        f"\n{len(made):,} completions, mean length {sum(len(row['text']) for row in made) / len(made):.0f} characters\n"
    )
    print(table[["completions", "per second", "µs each"]].round(1).to_string())
    print(
        f"\nmath_reward is {ratio:.0f} times as fast as math-verify on the same numeric answers; "
        f"verdicts equal on {same['equal']:,} of {same['compared']:,} ({same['right']:,} right)"
    )
    for gold, given, ours, theirs in same["apart"]:
        print(f"  gold {gold!r}, given {given!r}: math_reward {ours:g}, math-verify {theirs:g}")
    print("\nThe slowest megabyte of hostile text for each reward\n")
    print(pd.DataFrame(worst).set_index("what").round(3).to_string())
    if arguments.save:
        about = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "date": time.strftime("%Y-%m-%d"),
            "data": arguments.data.name,
            **{name: version(name) for name in ("math-verify", "trl")},
        }
        write_json(
            RESULTS,
            {"about": about, "speeds": lines, "math_reward_to_math_verify": ratio, "verdicts": same, "hostile": worst},
        )


if __name__ == "__main__":
    main()
