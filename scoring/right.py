"""What is right: decided here for the audit, the preflight, training, the pages and the evaluation.

The rewards that claim correctness and have a positive weight decide. A completion is right where their scores reach,
on average, half of their ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scoring.contract import RewardFunction

if TYPE_CHECKING:
    import pandas as pd

RIGHT_FROM = 0.5  # the mean place in the deciding rewards' ranges, 0 to 1, from which a completion is right
# Where a run did not record which rewards decide: those of `rewards.py` that do, and two of `trl.rewards`.
USUAL_DECIDERS = ("correctness_reward", "math_reward", "multiple_choice_reward", "code_reward", "json_reward")
USUAL_DECIDERS += ("countdown_reward", "schedule_reward", "accuracy_reward", "reasoning_accuracy_reward")


def deciding_rewards(functions: Sequence[RewardFunction], weights: Sequence[float]) -> list[RewardFunction]:
    """The rewards that say whether an answer is right: those that claim it and are paid for."""
    return [f for f, weight in zip(functions, weights, strict=True) if f.claims_correctness and weight > 0]


def right_or_wrong(scores: pd.DataFrame, ranges: Mapping[str, tuple[float, float]]) -> pd.Series:
    """1 for a right completion, 0 for a wrong one, NaN where no deciding reward can say.

    `scores` has a row a completion and a column a reward, NaN where a reward gave no score; `ranges` the lowest and the
    highest score of each deciding reward. Raises ValueError for a deciding reward without a finite range.
    """
    for name, (low, high) in ranges.items():
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"{name} decides what is right, but has no range: give it one, adopt(f, low=…, high=…)")
    lows = {name: low for name, (low, _) in ranges.items()}
    widths = {name: high - low for name, (low, high) in ranges.items()}
    mean = ((scores[list(ranges)].astype(float) - lows) / widths).mean(axis=1)
    return (mean >= RIGHT_FROM).astype(float).where(mean.notna())
