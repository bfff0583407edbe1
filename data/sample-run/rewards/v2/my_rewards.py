"""Rewards of your own, trained with by notebook 03. Written by the reward cell of notebook 02."""

import re

from rewards import extract_reasoning, reward

EQUATION = re.compile(r"[^\n=]{1,80}=\s*-?\d[\d.,]*")


@reward
def worked_steps_reward(completion: str, log_extra, log_metric, n_steps: int = 2) -> float:
    """How many of the problem's steps are worked as equations in the reasoning. Returns 0 to 1."""
    equations = set(EQUATION.findall(extract_reasoning(completion) or ""))
    log_extra("equations", len(equations))
    log_metric("equations_in_reasoning", len(equations))
    return min(1.0, len(equations) / n_steps)
