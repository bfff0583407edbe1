"""The one place where a prompt is made: system prompt, worked examples, question, a begun answer, and the chat template."""

from collections.abc import Sequence
from typing import Any

from rewards import FORMAT, SYSTEM_PROMPT

CODE_SYSTEM_PROMPT = "Complete the Python function. Reply with the code only."

Messages = list[dict[str, str]]
Shot = tuple[str, str, str]  # question, reasoning, answer


def build_prompt(
    question: str, shots: Sequence[Shot] = (), system_prompt: str = SYSTEM_PROMPT, system_role: bool = True
) -> Messages:
    """Chat messages: the system prompt, the worked examples as turns, the question.

    Without a system role (`supports_system_role`) the system prompt stands in front of the first user message.
    """
    messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
    for example, reasoning, answer in shots:
        messages.append({"role": "user", "content": example})
        messages.append({"role": "assistant", "content": FORMAT.write(reasoning, answer)})
    messages.append({"role": "user", "content": question})
    return messages if system_role else fold_system(messages)


def fold_system(messages: Messages) -> Messages:
    """The same chat with its system message put in front of the first user message."""
    if not messages or messages[0]["role"] != "system":
        return messages
    system, first, *rest = messages
    return [{"role": first["role"], "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def supports_system_role(tokenizer: Any) -> bool:
    """Whether the chat template shows a system message to the model (Gemma's raises or drops it)."""
    chat = [{"role": "system", "content": "ZQX"}, {"role": "user", "content": "hello"}]
    try:
        return "ZQX" in render(tokenizer, chat)
    except Exception:  # jinja2's TemplateError from raise_exception, or a template that indexes roles
        return False


def begin_answer(messages: Messages, text: str) -> Messages:
    """The prompt with the assistant's turn begun by this text; as it was where the text is empty."""
    return [*messages, {"role": "assistant", "content": text}] if text else list(messages)


def is_begun(messages: Messages | str) -> bool:
    """Whether the prompt ends inside an assistant's turn."""
    return not isinstance(messages, str) and messages[-1]["role"] == "assistant"


def question_of(prompt: Messages) -> str:
    """What the user said last; a begun answer after it is no question."""
    return [message["content"] for message in prompt if message["role"] != "assistant"][-1]


def render(tokenizer: Any, messages: Messages, **options: Any) -> str:
    """The chat as the model sees it; `options`: for the chat template, such as Qwen3's `enable_thinking`."""
    how = {"add_generation_prompt": not is_begun(messages), "continue_final_message": is_begun(messages), **options}
    return tokenizer.apply_chat_template(messages, tokenize=False, **how)


def prompt_ids(tokenizer: Any, messages: Messages, **options: Any) -> list[int]:
    """The rendered chat as token ids."""
    return tokenizer(render(tokenizer, messages, **options), add_special_tokens=False)["input_ids"]


def logged_prompt(tokenizer: Any, messages: Messages) -> str:
    """The rendered chat without its special tokens, as TRL's tables of completions have it."""
    return tokenizer.decode(prompt_ids(tokenizer, messages), skip_special_tokens=True)
