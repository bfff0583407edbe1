"""A reward called as TRL calls it; every call outside of training goes through here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from scoring.batch import count_tokens


def call_as_trl(
    function: Callable,
    prompts: Sequence[Any],
    completions: Sequence[str],
    columns: Mapping[str, Sequence[Any]],
    *,
    completion_ids: Sequence[Sequence[int]] | None = None,
    trainer_state: Any = None,
) -> list[float | None]:
    """The scores of some completions: one prompt, one completion and one value of each column a row.

    Args:
        function: a TRL reward function.
        completions: texts. A chat prompt gets its completion as messages, as in training.
        columns: the data set's; `prompt` is left out.
        completion_ids: token ids; without them the lengths are estimated from the texts.
        trainer_state: `global_step`, `max_steps` and `epoch`; by default those of step 0.
    """
    messages = [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, completions, strict=True)
    ]
    return function(
        prompts=list(prompts),
        completions=messages,
        completion_ids=completion_ids or [list(range(count_tokens(text, None))) for text in completions],
        trainer_state=trainer_state or SimpleNamespace(global_step=0, max_steps=1, epoch=0.0),
        log_extra=lambda *_: None,
        log_metric=lambda *_: None,
        **{name: list(values) for name, values in columns.items() if name != "prompt"},
    )
