"""Small synthetic runs with completions, for the tests of `lab.read` and `lab.page`."""

import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lab.read import run_record

WEIGHTS = {"correctness_reward": 1.0, "format_reward": 0.5}


def one(text, right=0.0, style=1.0, **more):
    """A row of completions, as notebook 03 writes it."""
    return {
        "prompt": "p0",
        "group": 0,
        "completion": text,
        "correctness_reward": right,
        "format_reward": style,
        "advantage": 0.0,
        "tokens": 10,
        **more,
    }


def tagged(answer, reasoning="because of this and that"):
    return f"<think>{reasoning}</think><answer>{answer}</answer>"


def group(rows, number=0, prompt=None):
    return [{**row, "group": number, "prompt": prompt or f"p{number}"} for row in rows]


def distinct(n, right=0.0, style=0.0, number=0, **more):
    """A group of texts that no rule finds alike."""
    words = [
        "".join(chr(97 + (i * 7 + j * j * (number + 3)) % 26) * 3 for j in range(12)) + str(i * 977) for i in range(n)
    ]
    return group([one(tagged(i, word), right, style, **more) for i, word in enumerate(words)], number)


def make_run(folder, steps, log=None, about=None):
    """A run's folder: {step: rows or a table}, and its log where the means of the rewards are not enough."""
    (folder / "completions").mkdir(parents=True, exist_ok=True)
    lines = []
    for step, rows in steps.items():
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pandas(pd.DataFrame(rows), preserve_index=False)
        if "step" not in table.column_names:
            table = table.add_column(0, "step", pa.array([step] * len(table), pa.int64()))
        pq.write_table(table, folder / "completions" / f"completions_{step:05d}.parquet")
        named = [name for name in table.column_names if name.endswith("_reward") or "_reward_v" in name]
        means = {f"rewards/{name}/mean": 0.5 for name in named}
        lines.append({"step": step, "reward": 1.0, **means, **(log or {}).get(step, {})})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    entries = [{"name": name, "weight": weight, "range": [0.0, 1.0], "columns": []} for name, weight in WEIGHTS.items()]
    record = {"status": "finished", "seconds": 1.0, "rewards": {"rewards": entries}, **(about or {})}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return run_record.read_run(folder)


def healthy():
    """A run that learns: eight groups of eight, mixed at first and all right at the end, no two texts alike."""
    steps = {}
    for step in range(1, 11):
        rows = []
        for number in range(8):
            texts = distinct(8, number=number + 8 * step)
            rows += group(
                [
                    {
                        **row,
                        "correctness_reward": float(i < step),
                        "format_reward": float(i < step or i % 2),
                        "tokens": 20 + i,
                    }
                    for i, row in enumerate(texts)
                ],
                number,
                f"p{step}-{number}",
            )
        steps[step] = rows
    return steps


def wrong_at(total, *, rights=(1.5, 1.2)):
    """A group with right totals, and one judged wrong at this total; the best of another step is 1.5."""
    given = [(1.0, right - 1.0) for right in rights] + [(0.0, total), *[(0.0, 0.0)] * 5]
    return [{**row, "correctness_reward": r, "format_reward": 2 * s} for row, (r, s) in zip(distinct(8), given)]


def with_evaluations(record, **more):
    """The run with two evaluations of the same two questions; the second gets the first of them right."""
    for step, right in ((0, 0.0), (2, 1.0)):
        table = pd.DataFrame(
            {
                "step": step,
                "prompt": ["h0", "h1"],
                "data/answer": ["7", "8"],
                "completion": [tagged(7), tagged(9)],
                "tokens": 5,
                "correctness_reward": [right, 0.0],
                "format_reward": 1.0,
                **more,
            }
        )
        path = record.folder / f"held_out/held_out_{step:05d}.parquet"
        path.parent.mkdir(exist_ok=True)
        table.to_parquet(path)
    return run_record.read_run(record.folder)
