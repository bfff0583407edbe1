"""What the tests share. Everything runs on a CPU, offline."""

import http.server
import json
import os
import threading

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import matplotlib  # noqa: E402
import pytest  # noqa: E402
import unsloth  # noqa: F401, E402  (before trl and transformers, which it patches)

from lab.files import STARTER_POLICY  # noqa: E402

matplotlib.use("Agg")

# The files that take longest, longest first. `make test` hands them out in this order: one that begins last and
# takes minutes would run while the other processes have nothing left.
LONG = """
    test_notebooks test_first_hour test_health test_sandbox_attacks test_audit test_from_scratch test_training
    test_models test_gpu_check test_live_rewards test_browser test_merge_proof test_figures test_serving
    test_evaluation_page test_sandbox test_starter_policy test_training_curves test_evaluate test_judge
    test_completions test_preflight test_comparison
""".split()


def pytest_xdist_auto_num_workers():
    return min(4, (os.cpu_count() or 1) + 1)  # one more than cores, because many tests wait for a process of their own


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.fixture(scope="session")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(STARTER_POLICY)


class FakeJudge(http.server.ThreadingHTTPServer):
    """An OpenAI-compatible endpoint on this machine: 10 for the reference answer, 0 for any other.

    `script`: replies to give first, each a status code, a text to reply with, or a callable of the request.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.script, self.now, self.most_at_once = [], [], 0, 0
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def reply(self, asked):
        content = json.loads(asked["messages"][1]["content"])
        return json.dumps({"score": 10 if content[content["answer_key"]] == content.get("reference") else 0})


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.requests.append(asked)
            server.now += 1
            server.most_at_once = max(server.most_at_once, server.now)
            step = server.script.pop(0) if server.script else server.reply
        step = step(asked) if callable(step) else step
        status, text = (step, "") if isinstance(step, int) else (200, "" if isinstance(step, bytes) else step)
        reply = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "fake",
            "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100},
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        }
        body = json.dumps(
            reply if status == 200 else {"error": {"message": f"no: {self.headers['Authorization']}"}}
        ).encode()
        body = step if isinstance(step, bytes) else body
        with server.lock:
            server.now -= 1
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="session", autouse=True)
def standing_judge():
    """The registry's judge_reward, as a person would set it up: by the environment."""
    server = FakeJudge()
    os.environ["JUDGE_BASE_URL"], os.environ["JUDGE_MODEL"] = server.url, "fake"
    yield server
    server.shutdown()


@pytest.fixture
def fake_judge():
    server = FakeJudge()
    yield server
    server.shutdown()
