"""An exported model behind `transformers serve` on this machine, asked through the `openai` client."""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.export.model_folder import ExportError
from lab.model.prompts import Messages

PATIENCE = 180  # seconds until a server must answer: it imports torch and loads the model


@contextmanager
def server(folder: Path, patience: float = PATIENCE) -> Iterator[str]:
    """The base URL of `transformers serve` for the folder, until the block ends. Raises ExportError if it does not start."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    program = "from transformers.cli.transformers import main; main()"  # with this environment's Python
    command = [sys.executable, "-c", program, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    how = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "start_new_session": True}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(command, stdout=log, env={**os.environ, "HF_HUB_OFFLINE": "1"}, **how)
        try:
            until = time.monotonic() + patience
            while not _is_healthy(port):
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    why = "ended" if process.poll() is not None else f"did not answer in {patience:g} s"
                    raise ExportError(f"transformers serve {why}. Its last words:\n{log.read()[-1500:]}")
                time.sleep(0.3)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()
            process.wait()


def _is_healthy(port: int) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # past a proxy of the environment
    try:
        with opener.open(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except OSError:
        return False


def ask_server(url: str, model: str, question: Messages, **options: Any) -> str:
    """One answer of an OpenAI-compatible server; options of the request: max_tokens, temperature … Raises ExportError."""
    from openai import DefaultHttpxClient, OpenAI, OpenAIError

    past_a_proxy = DefaultHttpxClient(trust_env=False)
    client = OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120, http_client=past_a_proxy)
    try:
        made = client.chat.completions.create(model=model, messages=question, **{"temperature": 0.0, **options})
    except OpenAIError as error:
        raise ExportError(f"The server did not answer: {type(error).__name__}: {error}") from error
    return made.choices[0].message.content or ""
