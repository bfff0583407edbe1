"""What travels with an exported model, so that a server asks it as training did.

System prompt, worked examples and prefill go into the folder's chat template, sampling and stops into its generation
config. Then the question alone, asked of any server, gives the very token ids of the training.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.export.model_folder import ExportError
from lab.files import write_json
from lab.model.prompts import Messages, fold_system, is_begun, render, supports_system_role
from lab.model.sampling import end_tokens


@dataclass(frozen=True)
class ServedPrompt:
    """What the policy was given beside the question, and how it was sampled."""

    preamble: Messages  # before every question: the system prompt, worked examples
    prefill: str = ""  # the beginning of the answer that the policy was given
    stop: Sequence[str] = ()  # texts that end an answer, beside the end of turn
    temperature: float = 1.0  # of sampling; a request may set it to 0 for greedy answers
    max_new_tokens: int = 128  # the longest answer

    def question(self, chat: Messages) -> Messages:
        """A training chat without preamble and prefill. Raises ExportError where it does not begin with the preamble."""
        turns = chat[:-1] if self.prefill and chat and is_begun(chat) else chat
        *before, last = fold_system([*self.preamble, {"role": "user", "content": ""}])
        for messages, head in ((self.preamble, ""), (before, last["content"])):  # with a system role, and without
            rest = turns[len(messages) :]
            if turns[: len(messages)] == messages and rest and rest[0]["content"].startswith(head):
                return [{**rest[0], "content": rest[0]["content"].removeprefix(head)}, *rest[1:]]
        what = "The held-out prompts do not begin with the run's system prompt and examples, which the template brings"
        raise ExportError(f"{what}: run notebook 01_prepare_data again as before the training.")


def served_prompt(about: Mapping[str, Any], stop: Sequence[str] | str | None = None) -> ServedPrompt:
    """The prompt and sampling of the run in `run/run.json`; `stop` replaces the training's texts that end an answer."""
    requested, preamble, prefill = about["requested"], about["data"]["preamble"], about["model"].get("prefill", "")
    if stop is None:  # as transformers or as vLLM names it
        options = requested.get("generation_kwargs") or {}
        stop = options.get("stop_strings") or options.get("stop") or ()
    stops = tuple(text for text in ([stop] if isinstance(stop, str) else stop) if text)
    return ServedPrompt(preamble, prefill, stops, requested["temperature"], requested["max_completion_length"])


def save_served_prompt(folder: Path, model: Any, tokenizer: Any, served: ServedPrompt) -> None:
    """Writes chat template, response template and generation config into a model's folder."""
    from transformers import AutoTokenizer, GenerationConfig

    ours = AutoTokenizer.from_pretrained(folder)
    ours.chat_template, ours.padding_side = chat_template(tokenizer, served), "left"
    ours.response_template = response_template(tokenizer, served)
    ours.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_json(folder / "config.json", {**config, "use_cache": True})  # Unsloth switches it off for training
    GenerationConfig(**generation_config(model, tokenizer, served)).save_pretrained(folder)


def chat_template(tokenizer: Any, served: ServedPrompt) -> str:
    """The tokenizer's template, with the preamble before chats without a system message, and the prefill at the end."""
    plain = re.sub(r"(\r\n|\r|\n)\Z", "", tokenizer.get_chat_template())  # Jinja drops it at the end, but not inside
    text = rendered_prefill(tokenizer, served.prefill)
    plain += f"{{{{ {_literal(text)} if add_generation_prompt else '' }}}}" if text else ""
    if not served.preamble:
        return plain
    *before, last = fold_system([*served.preamble, {"role": "user", "content": ""}])
    before = served.preamble if supports_system_role(tokenizer) else before
    return (_put_before(before) if before else _put_into_first(last["content"])) + plain


def rendered_prefill(tokenizer: Any, prefill: str) -> str:
    """A prefill as the chat template writes it (some trim it). Raises ExportError where it begins an answer otherwise."""
    if not prefill:
        return ""
    chat = [{"role": "user", "content": "question"}]
    before, whole = render(tokenizer, chat), render(tokenizer, [*chat, {"role": "assistant", "content": prefill}])
    if not whole.startswith(before):
        what = "This chat template begins a prefilled answer otherwise than a new one, so it cannot travel with it"
        raise ExportError(f"{what}: train without a prefill, or put it into every request.")
    return whole.removeprefix(before)


def _put_before(messages: Messages) -> str:
    """Jinja that puts messages before a chat, unless it has a system message or these messages already."""
    ours = _literal(messages)
    test = f"messages and messages[0]['role'] != 'system' and messages[:{len(messages)}] != {ours}"
    return f"{{%- if {test} -%}}{{%- set messages = {ours} + messages -%}}{{%- endif %}}\n"


def _put_into_first(head: str) -> str:
    """Jinja that puts a text before the first message's, which may be a list of texts: for models without a system role."""
    return (
        "{%- if messages and messages[0]['role'] != 'system' -%}{%- set text = messages[0]['content'] -%}"
        "{%- set text = text if text is string else (text or []) | map(attribute='text') | join -%}"
        f"{{%- if not text.startswith({_literal(head)}) -%}}"
        f"{{%- set messages = [{{'role': messages[0]['role'], 'content': {_literal(head)} + text}}] + messages[1:] -%}}"
        "{%- endif -%}{%- endif %}\n"
    )


def _literal(value: Any) -> str:
    """A value as a Jinja literal."""
    return json.dumps(value, ensure_ascii=False)  # Jinja would make two characters of an escaped emoji


def response_template(tokenizer: Any, served: ServedPrompt) -> dict[str, Any]:
    """Tells transformers to return the whole answer as content, with the prefill and without special tokens.

    Without it `transformers serve` moves the text between <think> and </think> of Qwen models into `reasoning_content`,
    and the served content is not the text that was evaluated.
    """
    prefill = re.escape(rendered_prefill(tokenizer, served.prefill))
    # An answer begins with the prefill at the prompt's end, or else right after the prompt.
    start = rf"(?={prefill}\Z)|(?<!{prefill})\Z" if prefill else r"\Z"
    added = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    special = sorted({*tokenizer.all_special_tokens, *added}, key=lambda token: (-len(token), token))
    content = {"close_pattern": f"(?:{'|'.join(map(re.escape, special))})", "content": "text"}
    content |= {"content_args": {"strip": False}, "repeats": True, "join": ""}  # joins the texts between special tokens
    defaults = {"role": "assistant", "content": ""}
    return {"defaults": defaults, "start_anchor_pattern": start, "fields": {"content": content}}


def generation_config(model: Any, tokenizer: Any, served: ServedPrompt) -> dict[str, Any]:
    """The generation config of the served model: plain sampling as in training and evaluation.

    A base's own may differ (Qwen2.5-1.5B-Instruct: top_p 0.8, a repetition penalty of 1.1). `do_sample` is true because
    `transformers serve` ignores a request's temperature where it is false; temperature 0 is still greedy.
    """
    ends = sorted(end_tokens(model, tokenizer))
    config = {"do_sample": True, "temperature": served.temperature, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
    config |= {"max_new_tokens": served.max_new_tokens, "pad_token_id": tokenizer.pad_token_id}
    config["eos_token_id"] = ends if len(ends) > 1 else next(iter(ends), None)
    return config | ({"stop_strings": list(served.stop)} if served.stop else {})
