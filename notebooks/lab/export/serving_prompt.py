"""What travels with an exported model: its prompt as a chat template, its stops, its decoding."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.model.prompts import Messages, fold_system, render, supports_system_role
from lab.model.sampling import end_tokens

SYSTEM, USER, ASSISTANT = (
    "\u2062system\u2062",
    "\u2062user\u2062",
    "\u2062assistant\u2062",
)  # invisible, in no real template


class ServingError(RuntimeError):
    """A model cannot be served as it was evaluated; the message says what to do."""


@dataclass(frozen=True)
class ServedPrompt:
    """How the policy was asked, beyond the question itself.

    Attributes:
        preamble: the messages before every question: the system prompt, worked examples.
        prefill: what its answer was begun with.
        stop: texts at which an answer ends, beside the end of turn.
        temperature: of sampling; a request may set it to 0 for greedy answers.
        max_new_tokens: the longest answer.
    """

    preamble: Messages
    prefill: str = ""
    stop: Sequence[str] = ()
    temperature: float = 1.0
    max_new_tokens: int = 128

    def question(self, chat: Messages) -> Messages:
        """What a user of the served model sends: the chat without what travels with the model.

        Raises ServingError where the chat does not begin with the preamble: then it does not travel.
        """
        asked = [*chat[:-1]] if self.prefill and chat and chat[-1]["role"] == "assistant" else [*chat]
        if asked[: len(self.preamble)] == self.preamble:
            return asked[len(self.preamble) :]
        folded = fold_system([*self.preamble, {"role": "user", "content": ""}])
        before, head = folded[:-1], folded[-1]["content"]
        rest = asked[len(before) :]
        if asked[: len(before)] != before or not rest or not rest[0]["content"].startswith(head):
            raise ServingError(
                "The prompts do not begin with the system prompt and examples that dataset/report.json names, so these cannot "
                "travel in the chat template. Run notebook 01_prepare_data again, or serve the model with the prompts in full."
            )
        return [{**rest[0], "content": rest[0]["content"][len(head) :]}, *rest[1:]]


def served_prompt(
    about: Mapping[str, Any], report: Mapping[str, Any], stop: Sequence[str] | str | None = None
) -> ServedPrompt:
    """How a run's policy was asked.

    Args:
        about: `run/run.json`; report: `dataset/report.json`, for runs that did not keep what stood before the questions.
        stop: texts that end an answer, instead of the training's.

    Raises ServingError for a report of an earlier version.
    """
    preamble = about["data"].get("preamble", report.get("preamble"))
    if preamble is None:
        raise ServingError(
            "dataset/report.json does not say what stands before every question (an earlier version wrote it): run notebook "
            "01_prepare_data again. With the same data it makes the same data set, and the training stays what it is."
        )
    asked = about["requested"]
    stop = stops_of(asked) if stop is None else [stop] if isinstance(stop, str) else stop
    return ServedPrompt(
        preamble,
        about["model"].get("prefill", ""),
        tuple(text for text in stop if text),
        asked["temperature"],
        asked["max_completion_length"],
    )


def stops_of(requested: Mapping[str, Any]) -> list[str]:
    """The stop texts that a run's GRPOConfig asked for: `generation_kwargs` of transformers or of vLLM."""
    more = requested.get("generation_kwargs") or {}
    found = more.get("stop_strings") or more.get("stop") or []
    return [found] if isinstance(found, str) else list(found)


def template_for(tokenizer: Any, manner: ServedPrompt) -> str:
    """The tokenizer's chat template with the preamble before chats that have no system message, and the begun answer at the end.

    Raises ServingError where the model's template does not let an answer be begun behind the generation prompt.
    """
    plain = re.sub(
        r"(\r\n|\r|\n)\Z", "", tokenizer.get_chat_template()
    )  # Jinja drops it at the end of a template, not within
    return _before(manner.preamble, supports_system_role(tokenizer)) + plain + _behind(begun(tokenizer, manner.prefill))


def begun(tokenizer: Any, prefill: str) -> str:
    """What the model's template makes of a begun answer: some trim it, some put a space between prompt and answer.

    Raises ServingError where it is not a text behind the generation prompt.
    """
    if not prefill:
        return ""
    chat = [{"role": "user", "content": "question"}]
    new = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    inside = render(tokenizer, [*chat, {"role": "assistant", "content": prefill}])
    if not inside.startswith(new):
        raise ServingError(
            "This chat template writes a begun answer differently from the beginning of a new one, so that the prefill cannot "
            "travel in it: train without a prefill, or serve the model with the begun answer in every request."
        )
    return inside[len(new) :]


def _before(preamble: Messages, has_system: bool) -> str:
    if not preamble:
        return ""
    if has_system:
        return _put_before(preamble)
    *before, last = fold_system([*preamble, {"role": "user", "content": ""}])
    return _put_before(before) if before else _put_into_first(last["content"])


def _put_before(messages: Messages) -> str:
    """For chats that have neither a system message nor these messages already."""
    ours = _literal(messages)
    return (
        f"{{%- if messages and messages[0]['role'] != 'system' and messages[:{len(messages)}] != {ours} -%}}"
        f"{{%- set messages = {ours} + messages -%}}{{%- endif %}}\n"
    )


def _put_into_first(head: str) -> str:
    """For a model without a system role: its text in front of the first user message, which may be a list of texts."""
    return (
        "{%- if messages and messages[0]['role'] != 'system' -%}{%- set said = messages[0]['content'] -%}"
        "{%- set said = said if said is string else (said or []) | map(attribute='text') | join -%}"
        f"{{%- if not said.startswith({_literal(head)}) -%}}"
        f"{{%- set messages = [{{'role': messages[0]['role'], 'content': {_literal(head)} + said}}] + messages[1:] -%}}"
        "{%- endif -%}{%- endif %}\n"
    )


def _behind(text: str) -> str:
    return f"{{{{ {_literal(text)} if add_generation_prompt else '' }}}}" if text else ""


def _literal(value: Any) -> str:
    """A value as a Jinja literal: its strings know Python's escapes, so all but ASCII can stand as it is.

    A lone surrogate cannot be written to a file and is escaped. (JSON's own escapes would make two of an emoji.)
    """
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


def response_template(tokenizer: Any, manner: ServedPrompt) -> dict[str, Any]:
    """Tells transformers to give an answer as it is, the begun part included, without special tokens.

    Without it `transformers serve` moves what stands between <think> and </think> out of the content of Qwen models
    (into `reasoning_content`), and what is served is not the text that was evaluated.
    """
    start = re.escape(begun(tokenizer, manner.prefill))
    added = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    special = {*tokenizer.all_special_tokens, *added}
    any_special = "|".join(re.escape(token) for token in sorted(special, key=lambda token: (-len(token), token)))
    content = {"close_pattern": f"(?:{any_special})", "content": "text", "content_args": {"strip": False}}
    content |= {"repeats": True, "join": ""}  # what stands between two special tokens is joined
    return {
        "defaults": {"role": "assistant", "content": ""},
        # An answer begins where the prompt ends in the begun part, or else at the prompt's end.
        "start_anchor_pattern": rf"(?={start}\Z)|(?<!{start})\Z" if start else r"\Z",
        "fields": {"content": content},
    }


def same_prompt(tokenizer: Any, template: str, chat: Messages, question: Messages) -> bool:
    """Whether the served template makes of the question alone what the policy saw in training."""
    served = tokenizer.apply_chat_template(question, chat_template=template, tokenize=False, add_generation_prompt=True)
    return served == render(tokenizer, chat)


def generation_config(model: Any, tokenizer: Any, manner: ServedPrompt) -> dict[str, Any]:
    """The generation config of the served model: plain sampling as in training and evaluation.

    A base's own config may say otherwise (Qwen2.5-1.5B-Instruct: temperature 0.7, top_p 0.8, a repetition penalty of
    1.1), and is what a server falls back on. `transformers serve` ignores a request's temperature where
    `do_sample` is false, so that is true here; a request with temperature 0 is answered greedily.
    """
    ends = sorted(end_tokens(model, tokenizer))
    sampling = {"do_sample": True, "temperature": float(manner.temperature), "top_p": 1.0, "top_k": 0}
    found = {
        **(sampling if manner.temperature else {"do_sample": False}),
        "repetition_penalty": 1.0,
        "max_new_tokens": manner.max_new_tokens,
        "eos_token_id": ends if len(ends) > 1 else next(iter(ends), None),
        "pad_token_id": tokenizer.pad_token_id,
    }
    return {**found, **({"stop_strings": list(manner.stop)} if manner.stop else {})}
