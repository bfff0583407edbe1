"""Rewards by name: their columns in a log, the versions of an edited one, and picking those that a person names."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

MEAN = re.compile(r"rewards/(?P<name>.+)/mean", re.DOTALL)
VERSION = re.compile(r"(?P<name>.+?)(?:_v(?P<version>\d+))?", re.DOTALL)


def logged_rewards(columns: Iterable[str]) -> dict[str, str]:
    """The rewards whose mean score is logged: name -> column. The versions of an edited reward are apart.

    >>> logged_rewards(["step", "rewards/format_reward/mean", "rewards/format_reward_v2/mean"])
    {'format_reward': 'rewards/format_reward/mean', 'format_reward_v2': 'rewards/format_reward_v2/mean'}
    """
    return {found["name"]: column for column in columns if (found := MEAN.fullmatch(column))}


def split_version(name: str) -> tuple[str, int]:
    """A reward's name without its version, and the version.

    >>> split_version("format_reward_v2"), split_version("format_reward")
    (('format_reward', 2), ('format_reward', 1))
    """
    found = VERSION.fullmatch(name)
    return (found["name"], int(found["version"] or 1)) if found else (name, 1)


def matching_rewards(names: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """The names that stand for a wanted reward, whatever their version and settings.

    >>> matching_rewards(["code_reward[timeout=2]", "math_reward_v2", "format_reward"], ["code_reward", "math_reward"])
    ['code_reward[timeout=2]', 'math_reward_v2']
    """
    known = {split_version(name)[0] for name in wanted}
    return [name for name in names if known & {split_version(name)[0], split_version(name)[0].split("[")[0]}]


def join_versions(log: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Mean scores a step with the versions of a reward as one (the latest that scored), and the row of the last edit."""
    columns, joined, edited = logged_rewards(log.columns), {}, 0
    for name in sorted(columns, key=lambda name: split_version(name)[1]):
        (base, _), values = split_version(name), log[columns[name]].replace([np.inf, -np.inf], np.nan)
        if base in joined and values.notna().any():
            edited = max(edited, int(values.notna().argmax()))
        joined[base] = values.fillna(joined.get(base, np.nan))
    order = dict.fromkeys(split_version(name)[0] for name in columns)
    return pd.DataFrame(joined, columns=[*order], index=log.index, dtype=float), edited
