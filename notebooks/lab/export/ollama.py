"""A Modelfile for Ollama, for models whose chat template is ChatML (Qwen, SmolLM2, the starter policy)."""

import re
from typing import Any

from lab.export.model_folder import ExportError
from lab.export.serving_prompt import ServedPrompt, rendered_prefill
from lab.model.prompts import Messages, render

# ChatML in Go's template language: Ollama fills in .System, the text of system messages, and .Messages.
GO_CHATML = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ else }}DEFAULT{{ end }}"
    '{{ range .Messages }}{{ if ne .Role "system" }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}{{ end }}'
    "<|im_start|>assistant\n"
)


def modelfile(gguf: str, tokenizer: Any, served: ServedPrompt) -> str:
    """An Ollama Modelfile for a GGUF file beside it, with the template, messages, sampling and stops of the training.

    Raises ExportError where the tokenizer's chat template is not ChatML, and for texts that a Modelfile cannot hold.
    """
    default, prefill = default_system(tokenizer, served.preamble), rendered_prefill(tokenizer, served.prefill)
    template = GO_CHATML.replace("DEFAULT", _in_go(default)) + _in_go(prefill)
    lines = [f"FROM ./{gguf}", f"TEMPLATE {_quoted(template)}"]
    for message in served.preamble:
        command = "SYSTEM" if message["role"] == "system" else f"MESSAGE {message['role']}"
        lines.append(f"{command} {_quoted(message['content'])}")
    sampling = {"temperature": served.temperature, "top_p": 1.0, "top_k": 0, "repeat_penalty": 1.0}
    sampling["num_predict"] = served.max_new_tokens
    lines += [f"PARAMETER {name} {value}" for name, value in sampling.items()]
    lines += [f"PARAMETER stop {_quoted(text)}" for text in dict.fromkeys([tokenizer.eos_token, *served.stop]) if text]
    return "\n".join(lines) + "\n"


def default_system(tokenizer: Any, preamble: Messages = ()) -> str:
    """What a ChatML template puts before a chat without a system message: nothing, or a system prompt (Qwen2.5).

    Raises ExportError unless the tokenizer renders the preamble and some probe chats as ChatML.
    """
    from jinja2 import TemplateError

    def chatml(chat: Messages) -> str:
        turns = (f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in chat)
        return "".join(turns) + "<|im_start|>assistant\n"

    system, *turns = [{"role": role, "content": f"text of {role}"} for role in "system user assistant user".split()]
    try:
        default = render(tokenizer, turns[:1]).removesuffix(chatml(turns[:1]))
        chats = (turns[:1], turns, [system, *turns], [*preamble, turns[0]])
        if all(render(tokenizer, c) == ("" if c[0]["role"] == "system" else default) + chatml(c) for c in chats):
            return default
    except TemplateError:  # such as Gemma's, which refuses a system message
        pass
    what = (
        "Ollama needs a template in Go's language, and this model's chat template is not ChatML: write TEMPLATE by hand"
    )
    raise ExportError(f"{what}, after the chat template in chat_template.jinja or tokenizer_config.json.")


def _in_go(text: str) -> str:
    """A text inside a Go template: double braces are quoted, and a last one that would meet the next action's."""
    return re.sub(r"\{{2,}|\{\Z", lambda braces: '{{ "' + braces[0] + '" }}', text)


def _quoted(text: str) -> str:
    """A text in a Modelfile, which knows no escapes and drops what does not print. Raises ExportError for such a text."""
    if '"""' in text or not all(char.isprintable() or char in "\n\r\t" for char in text):
        raise ExportError(f"A Modelfile cannot hold three quotes or unprintable characters: {text[:60]!r}")
    return f'"""{text}"""'
