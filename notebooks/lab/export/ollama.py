"""A Modelfile for Ollama, made from the model's own chat template."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.export.serving_prompt import ASSISTANT, SYSTEM, USER, ServedPrompt, ServingError, begun
from lab.files import write_text
from lab.model.prompts import Messages, supports_system_role


def ollama_template(tokenizer: Any) -> str:
    """The chat template as Ollama's Go template, read off its own renderings of chats.

    Ollama gives it `.System`, the text of all system messages, and `.Messages`. Raises ServingError where the template
    cannot be written as a text before and after each role's message.
    """
    parts = _role_parts(tokenizer)
    for chat in _probes(tokenizer):
        if parts.render(chat) != tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True):
            raise _by_hand("does more than put a text before and after each message")
    parts = _without_own_bos(parts, tokenizer)
    if parts.fold is None:
        before, after = map(_go, parts.system)
        begin, fold = (
            _act("if .System") + before + _act(".System") + after + _act("else") + _go(parts.begin) + _act("end"),
            "",
        )
    else:
        begin = _act("$first := true") + _go(parts.begin)
        system = _act("if $.System") + _act("$.System") + _go(parts.fold) + _act("end")
        fold = _act("if $first") + system + _act("$first = false") + _act("end")
    return (
        begin
        + _act("range .Messages")
        + _act('if eq .Role "user"')
        + _go(parts.user[0])
        + fold
        + _act(".Content")
        + _go(parts.user[1])
        + _act('else if eq .Role "assistant"')
        + _go(parts.assistant[0])
        + _act(".Content")
        + _go(parts.assistant[1])
        + _act("end")
        + _act("end")
        + _go(parts.generation)
    )


@dataclass(frozen=True)
class Parts:
    """What a chat template writes around the messages.

    Attributes:
        begin: at the start of a chat without a system message.
        system: at the start of a chat with one, before and after its text.
        fold: where the system text goes into the first user message, what stands between them; else None.
        user, assistant: before and after a message's text.
        generation: before a new answer.
    """

    begin: str
    system: tuple[str, str]
    fold: str | None
    user: tuple[str, str]
    assistant: tuple[str, str]
    generation: str

    def render(self, chat: Messages) -> str:
        """What the Go template will write for a chat that asks for an answer."""
        has_system = chat[0]["role"] == "system"
        text = self.system[0] + chat[0]["content"] + self.system[1] if has_system else self.begin
        if has_system and self.fold is not None:
            first = {"role": "user", "content": chat[0]["content"] + self.fold + chat[1]["content"]}
            text, chat = self.begin, [chat[0], first, *chat[2:]]
        around = {"user": self.user, "assistant": self.assistant}
        for message in chat[has_system:]:
            before, after = around[message["role"]]
            text += before + message["content"] + after
        return text + self.generation


def _probes(tokenizer: Any) -> list[Messages]:
    """Chats on which the parts are tried; with a system message only where the model's template takes one."""
    turns = [{"role": role, "content": f"text of {role}"} for role in ("user", "assistant", "user")]
    told = [{"role": "system", "content": "the system"}, *turns]
    return [turns, turns[:1], *([told] if supports_system_role(tokenizer) else [])]


def _role_parts(tokenizer: Any) -> Parts:
    """Reads the parts off renderings of marked messages. Raises ServingError where they cannot be told apart."""
    from jinja2 import TemplateError

    user, assistant = {"role": "user", "content": USER}, {"role": "assistant", "content": ASSISTANT}

    def written(chat: Messages, more: bool = False) -> str:
        try:
            return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=more)
        except TemplateError as error:
            raise _by_hand(f"refuses a chat that it is read by ({error})") from error

    match = re.fullmatch(f"(.*?){USER}(.*?){ASSISTANT}(.*?){USER}(.*)", written([user, assistant, user]), re.DOTALL)
    if not match:
        raise _by_hand("does not show every message")
    first, between, again, after_user = match.groups()
    after_assistant = written([user, assistant]).rpartition(ASSISTANT)[2]
    before_user = again.removeprefix(after_assistant)
    asked = written([user])
    ends = between.startswith(after_user) and again.startswith(after_assistant)
    if not (ends and first.endswith(before_user) and written([user], True).startswith(asked)):
        raise _by_hand("writes a role's first and last message differently")
    begin, system, fold = first.removesuffix(before_user), ("", ""), "\n\n"  # of `fold_system`
    if supports_system_role(tokenizer):
        before, _, rest = written([{"role": "system", "content": SYSTEM}, user]).partition(SYSTEM)
        apart = rest.endswith(before_user + USER + after_user)
        system = (before, rest.removesuffix(before_user + USER + after_user))
        fold = None if apart else rest.removesuffix(USER + after_user)
    generation = written([user], True).removeprefix(asked)
    return Parts(
        begin, system, fold, (before_user, after_user), (between.removeprefix(after_user), after_assistant), generation
    )


def _without_own_bos(parts: Parts, tokenizer: Any) -> Parts:
    """Without the token that begins every text where the tokenizer sets it by itself: the GGUF does too, it would stand twice."""
    bos = tokenizer.bos_token
    if not bos or tokenizer("")["input_ids"][:1] != [tokenizer.bos_token_id]:
        return parts
    return replace(
        parts, begin=parts.begin.removeprefix(bos), system=(parts.system[0].removeprefix(bos), parts.system[1])
    )


def _by_hand(what: str) -> ServingError:
    return ServingError(f"This chat template {what}: write the Modelfile's TEMPLATE by hand.")


def _act(action: str) -> str:
    return "{{ " + action + " }}"


def _go(text: str) -> str:
    """A text as a Go template writes it: its own double braces, and one that would meet those of what follows, are quoted."""
    return re.sub(r"\{{2,}|\{\Z", lambda braces: _act(f'"{braces[0]}"'), text)


def modelfile(gguf: str, tokenizer: Any, manner: ServedPrompt) -> str:
    """An Ollama Modelfile: the template from the model's own, the manner of asking as it was evaluated.

    Args:
        gguf: the model's file, as the Modelfile will name it.
        tokenizer: with the chat template that the policy was trained behind, not the one that has the preamble in it.

    Raises ServingError for what cannot be said in a Modelfile.
    """
    lines = [
        f"FROM ./{gguf}",
        f"TEMPLATE {_quoted(ollama_template(tokenizer) + _go(begun(tokenizer, manner.prefill)))}",
    ]
    for message in manner.preamble:
        system = message["role"] == "system"
        lines.append(f"{'SYSTEM' if system else 'MESSAGE ' + message['role']} {_quoted(message['content'])}")
    settings = {"temperature": manner.temperature, "top_p": 1.0, "top_k": 0, "repeat_penalty": 1.0}
    settings["num_predict"] = manner.max_new_tokens
    lines += [f"PARAMETER {name} {value}" for name, value in settings.items()]
    lines += [f"PARAMETER stop {_quoted(text)}" for text in dict.fromkeys([tokenizer.eos_token, *manner.stop]) if text]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A text in a Modelfile, which knows no escapes and drops what does not print. Raises ServingError for what would be lost."""
    lost = next((char for char in text if not (char.isprintable() or char in "\n\r\t")), None)
    if '"""' in text or lost:
        raise ServingError(
            f"A Modelfile cannot say {lost or chr(34) * 3!r}, which stands in {text[:60]!r}: write it by hand."
        )
    return f'"""{text}"""'


def write_modelfile(folder: Path, gguf: Path, tokenizer: Any, manner: ServedPrompt) -> Path:
    return write_text(folder / "Modelfile", modelfile(gguf.name, tokenizer, manner))
