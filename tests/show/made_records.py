"""Run records for the tests of the figures: plain, with events, and damaged ones."""

import numpy as np

from lab.read import run_record

REWARDS = ("correctness_reward", "format_reward", "soft_format_reward")
LIMIT = {"requested": {"beta": 0.02, "max_completion_length": 96, "loss_type": "dapo"}}


def log_rows(n=40, evaluate=10, rewards=REWARDS, seed=0, **more):
    """Rows as a run logs them; `more` replaces columns, by a value or by a function of the step."""
    rng, rows = np.random.default_rng(seed), []
    for step in range(n + 1):
        done = step / max(1, n)
        scores = {name: round(0.2 + 0.1 * i + 0.6 * done + rng.normal(0, 0.02), 4) for i, name in enumerate(rewards)}
        if evaluate and step % evaluate == 0:
            rows.append({"step": step, "eval_n": 64, **{f"eval_{name}": score for name, score in scores.items()}})
        if step:
            row = {
                "step": step,
                "loss": rng.normal(0, 0.05),
                "reward": sum(scores.values()),
                "reward_std": 0.5 - 0.3 * done,
                "frac_reward_zero_std": done,
                "kl": 0.01 * step / n,
                "entropy": 0.5 - 0.3 * done,
                "learning_rate": 1e-5,
                "temperature": 1.0,
                "step_time": 3.0,
                "time/generating": 1.5,
                "time/scoring": 0.5,
                "completions/mean_length": 30 + step / n,
                "completions/min_length": 5.0,
                "completions/max_length": 60.0,
                "completions/clipped_ratio": 0.0,
                **{f"rewards/{name}/mean": score for name, score in scores.items()},
                **{f"weight/{name}": 0.5 for name in rewards},
            }
            row |= {name: value(step) if callable(value) else value for name, value in more.items()}
            rows.append({name: value for name, value in row.items() if value is not None})
    return rows


def record(*args, events=(), about=LIMIT, **more):
    return run_record.record_from_rows(log_rows(*args, **more), events, about)


def without(rows, *columns):
    return [{name: value for name, value in row.items() if not name.startswith(columns)} for row in rows]


def edited(rows, step=21, name="format_reward"):
    """The rows of a run in which a reward goes on as its second version from a step on."""
    for row in rows:
        for column in [column for column in row if name in column.split("/") and row["step"] >= step]:
            row[column.replace(f"/{name}", f"/{name}_v2")] = row.pop(column)
    return rows


CHANGED = {
    "step": 21,
    "kind": "reward_changed",
    "reward": "format_reward",
    "was": "format_reward",
    "name": "format_reward_v2",
}
RESUMED = {"step": 10, "kind": "resumed", "after_step": 10}


def eventful():
    """A run with an edit, a stage of weights, a step of the temperature, two resumptions, and a stop."""
    stage = {f"weight/{name}": (lambda step: 0.5 if step < 31 else 1.0) for name in ("soft_format_reward",)}
    rows = edited(
        log_rows(temperature=lambda step: 1.0 if step < 26 else 0.7, **stage, **{"completions/clipped_ratio": 0.3})
    )
    return run_record.record_from_rows(rows, [RESUMED, RESUMED, CHANGED], {**LIMIT, "status": "stopped"})
