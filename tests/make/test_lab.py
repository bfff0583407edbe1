"""`make lab`: what a person can reach in the browser."""

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from lab.files import ROOT

READY = ROOT / ".venv/.ready"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address with its token that `make lab` opens in the browser, and the address of its files."""
    if not READY.exists():
        pytest.skip("the tests do not run from the Makefile's environment here")
    home = tmp_path_factory.mktemp("home")
    own = dict.fromkeys(("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"), str(home))
    command = ["make", "-o", ".venv/.ready", "lab", "ARGS=--no-browser --ServerApp.port=0 --ServerApp.port_retries=0"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | own, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if address := re.search(r"(http://127\.0\.0\.1:\d+)(/\S+)\?token=(\w+)", line):
                break
        else:
            pytest.fail("".join(said))
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ask(server, path):
    request = urllib.request.Request(f"{server[1]}{path}", headers={"Authorization": f"token {server[3]}"})
    for _ in range(100):  # the address is said a moment before anybody listens there
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.read()
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
            time.sleep(0.1)
    raise TimeoutError(request.full_url)


def test_it_starts_for_root_too_and_opens_the_notebooks(server):
    assert server[2] == "/lab/tree/notebooks"


@pytest.mark.parametrize(
    "path", ["rewards.py", "data/word_problems.jsonl", "notebooks/01_prepare_data.ipynb", "scoring"]
)
def test_the_whole_folder_is_within_reach(server, path):
    assert json.loads(ask(server, f"/api/contents/{path}?content=0"))["path"] == path
