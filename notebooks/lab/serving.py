"""What makes a served model behave as the evaluated one, and the ways to serve it.

A model is trained and evaluated behind a system prompt, worked examples, a begun answer, a sampling and a stop. All of
that goes into the folder: the first three into its chat template, the others into its generation config. So a question
alone, asked of any server, gives the very token ids that the policy saw in training.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.files import relative, write_text
from lab.policy import Messages, end_tokens, fold_system, generated, render, supports_system_role

SYSTEM, USER, ASSISTANT = "\u2062system\u2062", "\u2062user\u2062", "\u2062assistant\u2062"  # invisible, in no real template
PATIENCE = 180  # seconds until a server must answer: it imports torch and loads the model


class ServingError(RuntimeError):
    """A model cannot be served as it was evaluated; the message says what to do."""


# --------------------------------------------------------------------------- what travels


@dataclass(frozen=True)
class Manner:
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


def manner_of(
    about: Mapping[str, Any], report: Mapping[str, Any], stop: Sequence[str] | str | None = None
) -> Manner:
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
    return Manner(
        preamble, about["model"].get("prefill", ""), tuple(text for text in stop if text), asked["temperature"],
        asked["max_completion_length"],
    )  # fmt: skip


def stops_of(requested: Mapping[str, Any]) -> list[str]:
    """The stop texts that a run's GRPOConfig asked for: `generation_kwargs` of transformers or of vLLM."""
    more = requested.get("generation_kwargs") or {}
    found = more.get("stop_strings") or more.get("stop") or []
    return [found] if isinstance(found, str) else list(found)


def template_for(tokenizer: Any, manner: Manner) -> str:
    """The tokenizer's chat template with the preamble before chats that have no system message, and the begun answer at the end.

    Raises ServingError where the model's template does not let an answer be begun behind the generation prompt.
    """
    plain = re.sub(r"(\r\n|\r|\n)\Z", "", tokenizer.get_chat_template())  # Jinja drops it at the end of a template, not within
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


# What is put before ends in a newline, which Jinja, as transformers sets it up, drops behind a block: so the model's own
# template begins at the start of a line, as it did. What is put behind is an expression: a block would drop spaces before it.


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


def response_template(tokenizer: Any, manner: Manner) -> dict[str, Any]:
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


def generation_config(model: Any, tokenizer: Any, manner: Manner) -> dict[str, Any]:
    """The generation config of the served model: plain sampling as in training and evaluation.

    A base's own config may say otherwise (Qwen2.5-1.5B-Instruct: temperature 0.7, top_p 0.8, a repetition penalty of
    1.1), and is what a server falls back on. `transformers serve` ignores a request's temperature where
    `do_sample` is false, so that is true here; a request with temperature 0 is answered greedily.
    """
    ends = sorted(end_tokens(model, tokenizer))
    sampling = {"do_sample": True, "temperature": float(manner.temperature), "top_p": 1.0, "top_k": 0}
    found = {
        **(sampling if manner.temperature else {"do_sample": False}),
        "repetition_penalty": 1.0, "max_new_tokens": manner.max_new_tokens,
        "eos_token_id": ends if len(ends) > 1 else next(iter(ends), None), "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    return {**found, **({"stop_strings": list(manner.stop)} if manner.stop else {})}


# --------------------------------------------------------------------------- an OpenAI-compatible server


def serve_command(folder: Path, port: int) -> list[str]:
    """`transformers serve` with this environment's Python: a model folder behind OpenAI's protocol."""
    command = "from transformers.cli.transformers import main; main()"
    return [sys.executable, "-c", command, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port)]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def server(folder: Path, patience: float = PATIENCE) -> Iterator[str]:
    """The folder served by `transformers serve` on a free port of this machine, until the block ends: its base URL.

    Raises ServingError with the server's last words where it does not come up.
    """
    import tempfile

    port = free_port()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            serve_command(folder, port), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            _wait(process, port, patience, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen, port: int, patience: float, log: Any) -> None:
    import urllib.error
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = time.monotonic() + patience
    while time.monotonic() < until and process.poll() is None:
        try:
            with opener.open(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    log.seek(0)
    why = "ended" if process.poll() is not None else f"did not answer in {patience:g} s"
    raise ServingError(f"transformers serve {why}. Its last words:\n{log.read()[-1500:]}")


def ask(url: str, model: str, question: Messages, *, max_tokens: int, temperature: float = 0.0, stop: Sequence[str] = ()) -> str:
    """One answer from an OpenAI-compatible server on this machine, through the `openai` client. Raises ServingError."""
    from openai import DefaultHttpxClient, OpenAI, OpenAIError

    past_a_proxy = DefaultHttpxClient(trust_env=False)
    client = OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120, http_client=past_a_proxy)
    more = {"stop": list(stop)} if stop else {}
    try:
        made = client.chat.completions.create(
            model=model, messages=question, temperature=temperature, max_tokens=max_tokens, **more
        )
    except OpenAIError as error:
        raise ServingError(f"The server did not answer: {type(error).__name__}: {error}") from error
    return made.choices[0].message.content or ""


class Adapters:
    """Several adapters on one base, swapped by request, also within one batch (PEFT's mixed batches).

    Args:
        base: a model in 16 bits; it is wrapped here.
        adapters: folders by the name that a request gives. The name "base" answers without an adapter.
    """

    def __init__(self, base: Any, tokenizer: Any, adapters: Mapping[str, Path]) -> None:
        from peft import PeftModel

        if not adapters or "base" in adapters:
            raise ServingError('Adapters needs at least one adapter, and none called "base": that name answers without one.')
        (first, folder), *rest = adapters.items()
        self.tokenizer, self.names = tokenizer, {"base": "__base__", **{name: f"adapter_{i}" for i, name in enumerate(adapters)}}
        self.model = PeftModel.from_pretrained(base, str(folder), adapter_name=self.names[first])
        for name, folder in rest:
            self.model.load_adapter(str(folder), adapter_name=self.names[name])
        self.model.eval()

    def answer(self, requests: Sequence[tuple[str, Messages]], *, max_new_tokens: int, stop: Sequence[str] = ()) -> list[str]:
        """Greedy answers to (adapter, chat), all in one batch. Raises ServingError for an adapter that is not loaded."""
        unknown = [name for name, _ in requests if name not in self.names]
        if unknown:
            raise ServingError(f"There is no adapter {unknown[0]!r}; there are: {', '.join(self.names)}.")
        texts = [render(self.tokenizer, chat) for _, chat in requests]
        how = {"do_sample": False, "max_new_tokens": max_new_tokens, "adapter_names": [self.names[name] for name, _ in requests]}
        return [made.text for made in generated(self.model, self.tokenizer, texts, (0, 0), stop, how)]


def vllm_command(base: str, adapters: Mapping[str, Path], rank: int) -> str:
    """The command that serves one base with several adapters by vLLM, each under a model name of its own.

    Chat template and sampling come from the first adapter's folder: vLLM would take the base's.
    """
    sizes = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM knows
    most = next((size for size in sizes if size >= rank), rank)
    folder = relative(next(iter(adapters.values())))
    modules = [f"{name}={relative(place)}" for name, place in adapters.items()]
    return shlex.join(
        ["vllm", "serve", base, "--enable-lora", "--max-lora-rank", str(most), "--lora-modules", *modules,
         "--chat-template", f"{folder}/chat_template.jinja", "--generation-config", folder]
    )  # fmt: skip


# --------------------------------------------------------------------------- Ollama


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
        begin, fold = _act("if .System") + before + _act(".System") + after + _act("else") + _go(parts.begin) + _act("end"), ""
    else:
        begin = _act("$first := true") + _go(parts.begin)
        system = _act("if $.System") + _act("$.System") + _go(parts.fold) + _act("end")
        fold = _act("if $first") + system + _act("$first = false") + _act("end")
    return (
        begin + _act("range .Messages")
        + _act('if eq .Role "user"') + _go(parts.user[0]) + fold + _act(".Content") + _go(parts.user[1])
        + _act('else if eq .Role "assistant"') + _go(parts.assistant[0]) + _act(".Content") + _go(parts.assistant[1])
        + _act("end") + _act("end") + _go(parts.generation)
    )  # fmt: skip


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
    return Parts(begin, system, fold, (before_user, after_user), (between.removeprefix(after_user), after_assistant), generation)


def _without_own_bos(parts: Parts, tokenizer: Any) -> Parts:
    """Without the token that begins every text where the tokenizer sets it by itself: the GGUF does too, it would stand twice."""
    bos = tokenizer.bos_token
    if not bos or tokenizer("")["input_ids"][:1] != [tokenizer.bos_token_id]:
        return parts
    return replace(parts, begin=parts.begin.removeprefix(bos), system=(parts.system[0].removeprefix(bos), parts.system[1]))


def _by_hand(what: str) -> ServingError:
    return ServingError(f"This chat template {what}: write the Modelfile's TEMPLATE by hand.")


def _act(action: str) -> str:
    return "{{ " + action + " }}"


def _go(text: str) -> str:
    """A text as a Go template writes it: its own double braces, and one that would meet those of what follows, are quoted."""
    return re.sub(r"\{{2,}|\{\Z", lambda braces: _act(f'"{braces[0]}"'), text)


def modelfile(gguf: str, tokenizer: Any, manner: Manner) -> str:
    """An Ollama Modelfile: the template from the model's own, the manner of asking as it was evaluated.

    Args:
        gguf: the model's file, as the Modelfile will name it.
        tokenizer: with the chat template that the policy was trained behind, not the one that has the preamble in it.

    Raises ServingError for what cannot be said in a Modelfile.
    """
    lines = [f"FROM ./{gguf}", f"TEMPLATE {_quoted(ollama_template(tokenizer) + _go(begun(tokenizer, manner.prefill)))}"]
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
        raise ServingError(f"A Modelfile cannot say {lost or chr(34) * 3!r}, which stands in {text[:60]!r}: write it by hand.")
    return f'"""{text}"""'


def write_modelfile(folder: Path, gguf: Path, tokenizer: Any, manner: Manner) -> Path:
    return write_text(folder / "Modelfile", modelfile(gguf.name, tokenizer, manner))
