"""What TRL hands to a reward at one step, the texts in it, and a call like TRL's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from scoring import formats

BY_TRL = ("completion_ids", "trainer_state", "log_extra", "log_metric")  # what TRL gives besides the columns
Messages = Sequence[dict[str, Any]]


def message_text(content: Any) -> str:
    """The text of a message's content: a string, a list of content parts, or nothing (a tool call)."""
    if isinstance(content, (list, tuple)):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def completion_text(completion: str | Messages) -> str:
    """The text of a completion, given as a string or as chat messages. The messages of tools are left out."""
    if isinstance(completion, str):
        return completion
    own = (message for message in completion if message.get("role", "assistant") == "assistant")
    return "".join(message_text(message.get("content")) for message in own)


def as_completion(text: str, like: Any) -> str | Messages:
    """A text as the completion of a prompt, or in place of another completion: chat messages in a chat."""
    return text if isinstance(like, str) else [{"role": "assistant", "content": text}]


def question_text(prompt: str | Messages) -> str:
    """The prompt itself, or its last user message."""
    if isinstance(prompt, str):
        return prompt
    return message_text(next((m.get("content") for m in reversed(prompt) if m.get("role") == "user"), ""))


def assistant_prefix(prompt: str | Messages) -> str:
    """The beginning of the answer that the prompt already contains, and that the completion therefore lacks.

    >>> assistant_prefix([{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "<think>"}])
    '<think>'
    >>> assistant_prefix("Question: 2 + 2? <think>\\n")
    '<think>\\n'
    """
    if isinstance(prompt, str):
        opening = formats.FORMAT.opening
        return prompt[prompt.rindex(opening) :] if opening and prompt.rstrip().endswith(opening) else ""
    last = prompt[-1] if prompt else {}
    return message_text(last.get("content")) if last.get("role") == "assistant" else ""


def count_tokens(completion: str, completion_ids: Sequence[int] | None) -> int:
    """The completion's length in tokens: of its ids where they are given, else about one in four bytes."""
    if completion_ids is not None and (len(completion_ids) or not completion):
        return len(completion_ids)
    return -(-len(completion.encode("utf-8", "surrogatepass")) // 4)


@dataclass(slots=True)
class Batch:
    """What TRL hands to a reward at one step. All sequences have one entry a completion."""

    prompts: Sequence
    completions: Sequence
    texts: list[str]  # of the completions, with the beginning that the prompt contains
    columns: dict[str, Sequence]
    from_trl: dict[str, Any]  # trainer_state, log_extra, log_metric

    @classmethod
    def of(cls, prompts: Sequence, completions: Sequence, columns: dict[str, Any]) -> Batch:
        if isinstance(completions, str):
            raise ValueError("TRL calls a reward with lists. For one completion use .score(text, column=value)")
        if len(prompts) != len(completions):
            raise ValueError(f"there are {len(prompts)} prompts for {len(completions)} completions")
        texts = [assistant_prefix(p) + completion_text(c) for p, c in zip(prompts, completions)]
        from_trl = {name: columns[name] for name in BY_TRL[1:] if columns.get(name) is not None}
        return cls(prompts, completions, texts, {k: v for k, v in columns.items() if k not in from_trl}, from_trl)

    def part(self, rows: Sequence[int]) -> Batch:
        """The batch of some rows."""
        lists = [[values[i] for i in rows] for values in (self.prompts, self.completions, self.texts)]
        columns = {name: [values[i] for i in rows] for name, values in self.columns.items()}
        return Batch(*lists, columns, dict(self.from_trl))

    def groups(self, names: Iterable[str] = ()) -> list[list[int]]:
        """The rows of each group, wherever they stand: those with the same prompt and values of the named columns."""
        found: dict[str, list[int]] = {}
        columns = [self.columns[name] for name in names if name in self.columns and name not in BY_TRL]
        for i, prompt in enumerate(self.prompts):
            found.setdefault(repr((prompt, [values[i] for values in columns])), []).append(i)
        return list(found.values())


def call_as_trl(
    function: Callable,
    prompts: Sequence[Any],
    completions: Sequence[str],
    columns: Mapping[str, Sequence[Any]],
    *,
    completion_ids: Sequence[Sequence[int]] | None = None,
    trainer_state: Any = None,
) -> list[float | None]:
    """A reward called as TRL calls it; every call outside of training goes through here.

    `completions` are texts, one a prompt; a chat prompt gets its completion as messages. Without `completion_ids` the
    lengths are estimated. `trainer_state` has `global_step`, `max_steps` and `epoch`, by default those of step 0.
    """
    return function(
        prompts=list(prompts),
        completions=[as_completion(text, prompt) for prompt, text in zip(prompts, completions, strict=True)],
        completion_ids=completion_ids or [[0] * count_tokens(text, None) for text in completions],
        trainer_state=trainer_state or SimpleNamespace(global_step=0, max_steps=1, epoch=0.0),
        log_extra=lambda *_: None,
        log_metric=lambda *_: None,
        **{name: list(values) for name, values in columns.items() if name != "prompt"},
    )
