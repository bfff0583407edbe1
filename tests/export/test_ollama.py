"""The Modelfile: Ollama makes the prompt of the training of a question, for models with ChatML."""

import copy
import json
import re

import pytest

from lab.export import formats
from lab.export.model_folder import ExportError
from lab.export.serving_prompt import ServedPrompt
from lab.model import prompts
from tests.export.test_serving_prompt import (
    LLAMA,
    MISTRAL,
    PREAMBLES,
    QUESTION,
    QWEN,
    SHOTS,
    SYSTEM,
    trained_on,
    with_template,
)
from tests.model.test_models import NO_SYSTEM

SMOL = QWEN.replace("You are Qwen.", "You are SmolLM, {{ helpful }}")


@pytest.fixture(params={"starter": None, "qwen": QWEN, "smol": SMOL}.values(), ids=["starter", "qwen", "smol"])
def chatml(request, tokenizer):
    """A tokenizer whose chat template is ChatML, with and without a system prompt of its own."""
    return with_template(tokenizer, request.param)


def go(template, messages):
    """A Go template as Ollama renders it: as far as ours goes, one `if .System`, one `range` with a test, strings."""
    system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    form = r"\{\{ if .System \}\}(.*?)\{\{ else \}\}(.*?)\{\{ end \}\}\{\{ range .Messages \}\}"
    form += r'\{\{ if ne .Role "system" \}\}(.*?)\{\{ end \}\}\{\{ end \}\}(.*)'
    with_system, without, turn, end = re.fullmatch(form, template, re.DOTALL).groups()

    def filled(text, values):
        return re.sub(
            r"\{\{ (.*?) \}\}", lambda action: values.get(action[1]) or json.loads(action[1]), text, flags=re.DOTALL
        )

    turns = [
        filled(turn, {".Role": one["role"], ".Content": one["content"]}) for one in messages if one["role"] != "system"
    ]
    return filled(with_system if system else without, {".System": system}) + "".join(turns) + filled(end, {})


def parsed(text):
    """A Modelfile's commands as Ollama's parser reads them: three quotes around a text, and no escapes."""
    found = re.findall(r'^([A-Z]+) (?:((?:[a-z_]+ )?)"""(.*?)"""|(.*?))$', text, re.DOTALL | re.MULTILINE)
    return [(command, name.strip(), quoted or plain) for command, name, quoted, plain in found]


def asked_of_ollama(text, chat):
    """The prompt that Ollama makes of a chat: the Modelfile's messages first, its system text unless the chat has one."""
    commands = parsed(text)
    [template] = [value for command, _, value in commands if command == "TEMPLATE"]
    system = [{"role": "system", "content": value} for command, _, value in commands if command == "SYSTEM"]
    shots = [{"role": role, "content": value} for command, role, value in commands if command == "MESSAGE"]
    return go(template, [*(system if chat[0]["role"] != "system" else []), *shots, *chat])


@pytest.mark.parametrize("preamble", ["nothing", "system", "shots", "both"])
@pytest.mark.parametrize("prefill", ["", "<think>\n{"])
def test_ollama_makes_the_training_prompt_of_a_question(chatml, preamble, prefill):
    served = ServedPrompt(PREAMBLES[preamble], prefill)
    text = formats.modelfile("m.gguf", chatml, served)
    for turns in ([QUESTION], [QUESTION, SHOTS[1], QUESTION]):
        expected = prompts.render(chatml, trained_on(chatml, served.preamble, *turns, prefill=prefill))
        assert asked_of_ollama(text, turns) == expected


def test_in_ollama_a_chat_s_own_system_message_takes_the_place_of_ours(chatml):
    chat = [{"role": "system", "content": "Answer in French."}, QUESTION]
    text = formats.modelfile("m.gguf", chatml, ServedPrompt([SYSTEM]))
    assert asked_of_ollama(text, chat) == prompts.render(chatml, trained_on(chatml, chat[:1]))


@pytest.mark.parametrize(
    "other",
    [
        LLAMA,
        MISTRAL,
        NO_SYSTEM,
        "{% for m in messages %}{{ m['content'] }}{% if loop.last %}!{% endif %}{% endfor %}",
        QWEN.replace("message.content", "message.content | upper"),
        QWEN.replace("message.content", "message.content.split('</think>')[-1]"),
        "{{ messages[-1]['content'] }}",
        "",
    ],
)
def test_a_template_that_is_not_chatml_is_refused_in_a_plain_sentence(tokenizer, other):
    strange = with_template(tokenizer, other or "{{ '' }}")
    with pytest.raises(ExportError, match="chat template is not ChatML: write TEMPLATE by hand"):
        formats.modelfile("m.gguf", strange, ServedPrompt([SYSTEM, *SHOTS]))


@pytest.mark.parametrize("text", ['say """ ok', "joined \u200d emoji", "no\u00a0break", "bell \x07"])
def test_what_a_modelfile_cannot_say_is_refused(tokenizer, text):
    """Ollama's parser ends a text at three quotes, and drops characters that do not print."""
    for served in (
        ServedPrompt([{"role": "system", "content": text}]),
        ServedPrompt([], text),
        ServedPrompt([], stop=(text,)),
    ):
        with pytest.raises(ExportError, match="A Modelfile cannot hold"):
            formats.modelfile("m.gguf", tokenizer, served)


def test_settings_stops_and_examples_are_in_the_modelfile(tokenizer):
    served = ServedPrompt(
        [SYSTEM, *SHOTS], stop=("</answer>", 'a "quote" \\ and\na line'), temperature=0.7, max_new_tokens=1_500_000
    )
    commands = parsed(formats.modelfile("m.gguf", tokenizer, served))
    assert commands[0] == ("FROM", "", "./m.gguf")
    assert ("SYSTEM", "", SYSTEM["content"]) in commands
    assert [c for c in commands if c[0] == "MESSAGE"] == [("MESSAGE", shot["role"], shot["content"]) for shot in SHOTS]
    assert [c[2] for c in commands if c[1] == "stop"] == ["<|im_end|>", "</answer>", 'a "quote" \\ and\na line']
    plain = [c[2] for c in commands if c[0] == "PARAMETER" and not c[1]]
    assert plain == ["temperature 0.7", "top_p 1.0", "top_k 0", "repeat_penalty 1.0", "num_predict 1500000"]


def test_a_tokenizer_without_an_end_token_gives_no_stop(tokenizer):
    plain = copy.deepcopy(tokenizer)
    plain.eos_token = None
    assert "PARAMETER stop" not in formats.modelfile("m.gguf", plain, ServedPrompt([]))
