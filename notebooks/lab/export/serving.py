"""What makes a served model behave as the evaluated one, and the ways to serve it.

A model is trained and evaluated behind a system prompt, worked examples, a begun answer, a sampling and a stop. All of
that goes into the folder: the first three into its chat template, the others into its generation config. So a question
alone, asked of any server, gives the very token ids that the policy saw in training.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.export.serving_prompt import ServingError
from lab.files import relative
from lab.model.prompts import Messages, render
from lab.model.sampling import generated

PATIENCE = 180  # seconds until a server must answer: it imports torch and loads the model


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
            serve_command(folder, port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
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


def ask(
    url: str, model: str, question: Messages, *, max_tokens: int, temperature: float = 0.0, stop: Sequence[str] = ()
) -> str:
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
            raise ServingError(
                'Adapters needs at least one adapter, and none called "base": that name answers without one.'
            )
        (first, folder), *rest = adapters.items()
        self.tokenizer, self.names = (
            tokenizer,
            {"base": "__base__", **{name: f"adapter_{i}" for i, name in enumerate(adapters)}},
        )
        self.model = PeftModel.from_pretrained(base, str(folder), adapter_name=self.names[first])
        for name, folder in rest:
            self.model.load_adapter(str(folder), adapter_name=self.names[name])
        self.model.eval()

    def answer(
        self, requests: Sequence[tuple[str, Messages]], *, max_new_tokens: int, stop: Sequence[str] = ()
    ) -> list[str]:
        """Greedy answers to (adapter, chat), all in one batch. Raises ServingError for an adapter that is not loaded."""
        unknown = [name for name, _ in requests if name not in self.names]
        if unknown:
            raise ServingError(f"There is no adapter {unknown[0]!r}; there are: {', '.join(self.names)}.")
        texts = [render(self.tokenizer, chat) for _, chat in requests]
        how = {
            "do_sample": False,
            "max_new_tokens": max_new_tokens,
            "adapter_names": [self.names[name] for name, _ in requests],
        }
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
        [
            "vllm",
            "serve",
            base,
            "--enable-lora",
            "--max-lora-rank",
            str(most),
            "--lora-modules",
            *modules,
            "--chat-template",
            f"{folder}/chat_template.jinja",
            "--generation-config",
            folder,
        ]
    )
