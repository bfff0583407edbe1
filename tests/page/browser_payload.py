"""Payloads of the completions page as `lab.page.run_page` makes them, for tests of the page alone."""

import base64
import gzip
import json
import random
import re
import statistics


def unpack_payload(text: str) -> dict:
    """The payload in a page."""
    packed = re.search(r'id="payload">([A-Za-z0-9+/=\s]*)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))


REWARDS = [
    {"name": "correctness_reward", "low": 0.0, "high": 1.0, "decides": True},
    {"name": "format_reward", "low": 0.0, "high": 1.0, "decides": False},
    {"name": "brevity_reward", "low": -1.0, "high": 1.0, "decides": False},
]
MARKS = [
    {"open": "<think>", "close": "</think>", "kind": "reasoning"},
    {"open": "<answer>", "close": "</answer>", "kind": "answer"},
]
RULES = [
    {
        "id": "wrong_but_high",
        "title": "Wrong, but scored high",
        "said": "judged wrong by correctness_reward, and a total in the upper half of its step (at least 1.2)",
    },
    {
        "id": "right_but_low",
        "title": "Right, but scored low",
        "said": "judged right by correctness_reward, and an advantage below 0",
    },
    {
        "id": "near_duplicate",
        "title": "Near duplicate",
        "said": "at least 0.95 alike with another completion of its group",
    },
    {
        "id": "very_long",
        "title": "Very long",
        "said": "longer than the 99th percentile of all completions (212 tokens)",
    },
]
THINGS = ["apples", "pencils", "marbles", "tickets", "bottles", "stamps", "cards", "shells"]
NAMES = ["Mia", "Omar", "Lena", "Ravi", "Sofia", "Jonas", "Aiko", "Noah"]


def payload(prompts: list[dict], rows: list[dict], rewards: list[dict] = REWARDS, **over) -> dict:
    """The payload of these prompts and completions.

    Args:
        prompts: each {"text", "tokens"?, "data"?: {column: value}}
        rows: completions in the order of the page: {"prompt", "step", "text", "group"?, "place"?, "cut"?, "total"?,
            "advantage"?, "tokens"?, "answer"?, "right"?, "scores"?: {…}, "extras"?: {…}, "suspect"?: [rule id], "why"?: {…}}
        over: keys of the payload to replace
    """
    data_columns = list(dict.fromkeys(name for prompt in prompts for name in prompt.get("data", {})))
    extra_columns = list(dict.fromkeys(name for row in rows for name in row.get("extras", {})))
    sets: list[list[str]] = [[]]
    for row in rows:
        if row.get("suspect", []) not in sets:
            sets.append(row["suspect"])
    whole = {
        "version": 1,
        "run": {
            "name": "run",
            "model": "starter-policy",
            "status": "finished",
            "made": "2026-11-21T18:00:00+00:00",
            "steps": max((row["step"] for row in rows), default=0),
            "notes": [],
        },
        "selection": {"kept": len(rows), "of": len(rows), "said": "all completions", "left_out": ""},
        "rewards": rewards,
        "data_columns": data_columns,
        "extra_columns": extra_columns,
        "marks": MARKS,
        "prompts": _prompts(prompts, rows, data_columns),
        "completions": _completions(rows, rewards, extra_columns, sets),
        "suspects": {
            "rules": [rule | {"n": sum(rule["id"] in row.get("suspect", []) for row in rows)} for rule in RULES],
            "sets": sets,
            "more": {str(i): row["why"] for i, row in enumerate(rows) if row.get("why")},
        },
        "metrics": {"step": [], "columns": {}, "own": []},
        "printed": [],
        "events": [],
    }
    return whole | over


def _prompts(prompts: list[dict], rows: list[dict], data_columns: list[str]) -> dict:
    of = (
        [[row for row in rows if row["prompt"] == i] for i in range(len(prompts))]
        if len(rows) < 5000
        else _grouped(prompts, rows)
    )
    totals = [[row["total"] for row in mine if row.get("total") is not None] for mine in of]
    return {
        "text": [prompt["text"] for prompt in prompts],
        "tokens": [prompt.get("tokens") for prompt in prompts],
        "data": {name: [prompt.get("data", {}).get(name) for prompt in prompts] for name in data_columns},
        "seen": [sorted({row["step"] for row in mine}) for mine in of],
        "n": [len(mine) for mine in of],
        "best": [max(mine) if mine else None for mine in totals],
        "mean": [round(statistics.fmean(mine), 6) if mine else None for mine in totals],
    }


def _grouped(prompts: list[dict], rows: list[dict]) -> list[list[dict]]:
    of: list[list[dict]] = [[] for _ in prompts]
    for row in rows:
        of[row["prompt"]].append(row)
    return of


def _completions(rows: list[dict], rewards: list[dict], extra_columns: list[str], sets: list[list[str]]) -> dict:
    plain = {
        "prompt": 0,
        "step": 0,
        "group": 0,
        "place": 1,
        "text": "",
        "cut": 0,
        "total": None,
        "advantage": None,
        "tokens": None,
        "answer": None,
        "right": None,
    }
    columns = {name: [row.get(name, default) for row in rows] for name, default in plain.items()}
    columns["scores"] = {
        reward["name"]: [row.get("scores", {}).get(reward["name"]) for row in rows] for reward in rewards
    }
    columns["extras"] = {name: [row.get("extras", {}).get(name) for row in rows] for name in extra_columns}
    columns["suspect"] = [sets.index(row.get("suspect", [])) for row in rows]
    return columns


def demo(prompts: int = 24, steps: int = 40, seed: int = 0) -> dict:
    """A run as GRPO makes it: word problems, 8 completions a group, a policy that learns the format and then the sums."""
    draw = random.Random(seed)
    problems = [_problem(draw, i) for i in range(prompts)]
    rows = []
    for step in range(1, steps + 1):
        for group in range(2):
            which = (step * 2 + group) % prompts
            rows += _group(draw, problems[which], which, step, group, step / steps)
    rows.sort(key=lambda row: (row["step"], row["prompt"], row["group"], row["place"]))
    metrics = _metrics(rows, steps)
    printed = [
        {"step": step, "text": f"reading 8 completions\nunparsed: {max(0, 9 - step // 3)}\n"}
        for step in range(2, steps, 5)
    ]
    events = [
        {"step": 1, "kind": "adapter_check", "said": "the adapter changed 28 of 28 modules"},
        {
            "step": steps // 2,
            "kind": "reward_changed",
            "said": "brevity_reward edited: now version 2; mean before 0.41",
        },
        {
            "step": steps // 2 + 3,
            "kind": "health",
            "said": "frac_reward_zero_std is 0.5: half of the groups teach nothing",
        },
    ]
    selection = {
        "kept": len(rows),
        "of": len(rows) * 3,
        "said": f"{len(rows):,} of {len(rows) * 3:,} completions: every suspect, and each group at its best and worst",
        "left_out": f"{len(rows) * 2:,} completions in the middle of their groups",
    }
    made = payload(problems, rows, selection=selection, metrics=metrics, printed=printed, events=events)
    made["run"] |= {
        "name": "word-problems-qwen2",
        "model": "Qwen/Qwen2.5-1.5B-Instruct, 4-bit, LoRA r = 16",
        "notes": ["1 half-written line of log.jsonl was left out"],
    }
    return made


def _problem(draw: random.Random, i: int) -> dict:
    name, thing, a, b, c = (
        draw.choice(NAMES),
        draw.choice(THINGS),
        draw.randint(4, 60),
        draw.randint(2, 12),
        draw.randint(2, 30),
    )
    question = (
        f"{name} has {a} {thing}. A shop sells {thing} in boxes of {b}, and {name} buys {c} boxes, then gives a third "
        f"of everything to a friend, rounded down. How many {thing} are left?"
    )
    total = a + b * c
    text = (
        "system\nThink step by step between <think> and </think>, then give only the final answer between <answer> and "
        f"</answer>.\nuser\n{question}\nassistant\n"
    )
    return {
        "text": text,
        "tokens": len(text) // 4,
        "data": {"answer": str(total - total // 3), "template": f"boxes_{i % 3}"},
        "sums": (a, b, c, total, thing, name),
    }


def _group(draw: random.Random, problem: dict, which: int, step: int, group: int, skill: float) -> list[dict]:
    rows = []
    for place in range(1, 9):
        text, answer, right = _completion(draw, problem, skill)
        tidy = text.count("<think>") == text.count("</think>") == 1 and text.count("</answer>") == 1
        scores = {
            "correctness_reward": float(right),
            "format_reward": 1.0 if tidy else 0.5 if "<answer>" in text else 0.0,
            "brevity_reward": round(max(-1.0, 1 - len(text) / 300), 4),
        }
        total = round(2 * scores["correctness_reward"] + scores["format_reward"] + 0.2 * scores["brevity_reward"], 6)
        rows.append(
            {
                "prompt": which,
                "step": step,
                "group": group,
                "place": place,
                "text": text,
                "tokens": len(text) // 4,
                "answer": answer,
                "right": right if answer else (False if draw.random() < 0.8 else None),
                "scores": scores,
                "total": total,
                "extras": {"parsed": text[slice(*answer)] if answer else None, "sums": text.count("=")},
            }
        )
    mean = statistics.fmean(row["total"] for row in rows)
    spread = statistics.pstdev(row["total"] for row in rows) or 1.0
    for row in rows:
        row["advantage"] = round((row["total"] - mean) / spread, 6)
        row["suspect"], row["why"] = _suspect(row)
    return rows


def _completion(draw: random.Random, problem: dict, skill: float) -> tuple[str, list[int] | None, bool]:
    a, b, c, total, thing, name = problem["sums"]
    right = draw.random() < 0.15 + 0.8 * skill
    given = total // 3
    left = total - given if right else total - given + draw.choice([-10, -1, 1, 2, 10])
    opening = draw.choice(
        [
            "First the boxes.",
            "Let me work through this.",
            "We need the number of boxes first.",
            f"{name} starts with {a} {thing}.",
        ]
    )
    lines = [
        opening,
        f"{c} boxes of {b} are {c} * {b} = {b * c} {thing}.",
        f"Together with the first {a} that is {a} + {b * c} = {total}.",
    ]
    if draw.random() < 0.4:
        lines.append("Wait, the question says a third of everything, rounded down.")
    lines += [f"A third, rounded down, is {given}.", f"So {total} - {given} = {left} {thing} are left."]
    thought = "\n".join(lines)
    if draw.random() > 0.3 + 0.7 * skill:
        return draw.choice(
            [
                (f"{thought}\nThe answer is {left}.", None, False),
                (f"<think>\n{thought}\n<answer>\n{left}\n</answer>", None, False),
            ]
        )
    text = f"<think>\n{thought}\n</think>\n<answer>\n{left}\n</answer>"
    start = text.index("<answer>\n") + len("<answer>\n")
    return text, [start, start + len(str(left))], right


def _suspect(row: dict) -> tuple[list[str], dict]:
    found = {}
    if not row["right"] and row["total"] > 1.15:
        found["wrong_but_high"] = f"total {row['total']:.3g} although correctness_reward gave 0"
    if row["right"] and row["advantage"] < 0:
        found["right_but_low"] = f"advantage {row['advantage']:.3g} although correctness_reward gave 1"
    if len(row["text"]) > 385:
        found["very_long"] = f"{row['tokens']} tokens"
    return list(found), found


def _metrics(rows: list[dict], steps: int) -> dict:
    columns: dict[str, list] = {
        name: []
        for name in (
            "parse_failures",
            "reward",
            "reward_std",
            "frac_reward_zero_std",
            "rewards/correctness_reward/mean",
            "rewards/format_reward/mean",
            "rewards/brevity_reward/mean",
            "completions/mean_length",
            "kl",
            "entropy",
            "loss",
            "grad_norm",
            "learning_rate",
            "step_time",
        )
    }
    for step in range(1, steps + 1):
        mine = [row for row in rows if row["step"] == step]
        totals = [row["total"] for row in mine]
        values = {
            "parse_failures": sum(row["answer"] is None for row in mine),
            "reward": statistics.fmean(totals),
            "reward_std": statistics.pstdev(totals),
            "frac_reward_zero_std": 0.5 if step % 9 == 0 else 0.0,
            "completions/mean_length": statistics.fmean(row["tokens"] for row in mine),
            "kl": 0.0004 * step if step > 1 else None,
            "entropy": 1.2 / (1 + step / 20),
            "loss": 0.0003 * step,
            "grad_norm": 0.2 + (step * 7 % 5) / 20,
            "learning_rate": 5e-6 * (1 - step / steps),
            "step_time": 2.1 + (step % 4) / 10,
        }
        for name in ("correctness_reward", "format_reward", "brevity_reward"):
            values[f"rewards/{name}/mean"] = statistics.fmean(row["scores"][name] for row in mine)
        for name, column in columns.items():
            column.append(None if values[name] is None else float(f"{values[name]:.6g}"))
    return {"step": list(range(1, steps + 1)), "columns": columns, "own": ["parse_failures"]}


def large(completions: int = 20_000, prompts: int = 500, length: int = 600) -> dict:
    """A long run: completions of `length` characters, each with its own number in it, every hundredth with the word zebra."""
    draw = random.Random(1)
    words = (
        "first the boxes then we add what was there and take a third of everything which leaves us with so many".split()
    )
    filler = " ".join(draw.choice(words) for _ in range(20_000))
    asked = [{"text": f"Question {i}: how many are left?", "tokens": 12, "data": {"answer": i}} for i in range(prompts)]
    rows = []
    for i in range(completions):
        at = draw.randrange(len(filler) - length)
        text = f"number {i} {'Zebra ' if i % 100 == 0 else ''}{filler[at : at + length - 20]}"
        right = draw.random() < 0.5
        step = 1 + i // 80
        rows.append(
            {
                "prompt": (i // 8) % prompts,
                "step": step,
                "group": i // 8 % 10,
                "place": 1 + i % 8,
                "text": text,
                "total": float(right) + draw.random() / 2,
                "advantage": draw.uniform(-2, 2),
                "tokens": 150,
                "right": right,
                "scores": {"correctness_reward": float(right), "format_reward": draw.random(), "brevity_reward": 0.1},
            }
        )
    rows.sort(key=lambda row: (row["step"], row["prompt"], row["group"], row["place"]))
    return payload(asked, rows)
