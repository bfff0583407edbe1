"""Rewards of your own, trained with by notebook 03. Written by the reward cell of notebook 02."""

from rewards import extract_reasoning, reward


@reward
def worked_steps_reward(completion: str, log_extra, log_metric) -> float:
    """How many lines the reasoning has, four are enough. Returns 0 to 1."""
    lines = [line for line in (extract_reasoning(completion) or "").splitlines() if line.strip()]
    log_extra("lines", len(lines))
    log_metric("lines_of_reasoning", len(lines))
    if len(lines) > 3:
        print(f"{len(lines)} lines of reasoning: {lines[0][:60]!r} …")
    return min(1.0, len(lines) / 4)
