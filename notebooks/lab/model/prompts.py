"""A chat becomes a prompt here and nowhere else: system prompt, worked examples, question, an answer that is begun."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rewards import FORMAT, SYSTEM_PROMPT


def build_prompt(question: str, shots: list[tuple[str, str, str]], system_prompt: str = SYSTEM_PROMPT) -> Messages:
    """Chat messages: the system prompt, the few-shot turns (question, reasoning, answer), the question."""
    messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
    for shown, reasoning, answer in shots:
        messages.append({"role": "user", "content": shown})
        messages.append({"role": "assistant", "content": FORMAT.write(reasoning, answer)})
    return [*messages, {"role": "user", "content": question}]


def question_of(prompt: Sequence[dict[str, str]]) -> str:
    """What the user said last; an assistant's turn that was begun after it is no question."""
    return [message["content"] for message in prompt if message["role"] != "assistant"][-1]


Messages = list[dict[str, str]]


def supports_system_role(tokenizer: Any) -> bool:
    """Whether the chat template shows a system message to the model (Gemma's raises or drops it)."""
    chat = [{"role": "system", "content": "ZQX"}, {"role": "user", "content": "hello"}]
    try:
        return "ZQX" in tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    except Exception:  # jinja2's TemplateError from raise_exception, or a template that indexes roles
        return False


def fold_system(messages: Messages) -> Messages:
    """The same chat with its system message put in front of the first user message."""
    if not messages or messages[0]["role"] != "system":
        return messages
    system, first, *rest = messages
    return [{"role": first["role"], "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def render(tokenizer: Any, messages: Messages) -> str:
    """The chat as the model sees it: ready for a new assistant turn, or inside one already begun."""
    begun = messages[-1]["role"] == "assistant"
    return tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=not begun, continue_final_message=begun
    )


def prefilled(messages: Messages, text: str) -> Messages:
    """The prompt with the assistant's turn already begun; without text, as it was."""
    return [*messages, {"role": "assistant", "content": text}] if text else list(messages)
