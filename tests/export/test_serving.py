"""`transformers serve` on an exported folder gives the answers that were evaluated."""

import importlib.util
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from lab.export import predictions, serving, serving_prompt
from lab.export.model_folder import ExportError
from lab.export.serving_prompt import ServedPrompt
from lab.files import ROOT, STARTER_POLICY
from lab.model import prompts


def needed(reason):
    """Skips, but fails in CI, which should have it."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype="auto").eval()


@pytest.fixture(scope="module")
def served():
    return ServedPrompt(prompts.build_prompt("", [])[:-1], prefill="<think>\n", max_new_tokens=48)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model, tokenizer, served):
    place = tmp_path_factory.mktemp("served") / "model"
    shutil.copytree(STARTER_POLICY, place)
    serving_prompt.save_served_prompt(place, model, tokenizer, served)
    return place


@pytest.fixture(scope="module")
def chats(served):
    rows = [json.loads(line) for line in (ROOT / "data/word_problems.jsonl").read_text().splitlines()[:3]]
    begun = {"role": "assistant", "content": served.prefill}
    return [[*served.preamble, {"role": "user", "content": row["question"]}, begun] for row in rows]


def can_serve():
    missing = [name for name in ("fastapi", "uvicorn", "openai") if importlib.util.find_spec(name) is None]
    if missing:
        needed(f"`transformers serve` needs {', '.join(missing)}: `pip install transformers[serving]`")


@pytest.fixture(scope="module")
def url(folder):
    can_serve()
    with serving.server(folder) as address:
        yield address


def alive(folder):
    """Processes of ours that serve this folder."""
    return [child for child in psutil.Process().children(recursive=True) if str(folder) in child.cmdline()]


def asked(url, folder, served, chat, **how):
    return serving.ask_server(url, str(folder), served.question(chat), max_tokens=served.max_new_tokens, **how)


def test_served_answers_are_those_that_were_evaluated(url, folder, model, tokenizer, served, chats):
    expected = predictions.greedy_answers(model, tokenizer, chats, served)
    assert [asked(url, folder, served, chat) for chat in chats] == expected
    assert all(answer.startswith("<think>\n") for answer in expected)


def test_streamed_answers_are_the_same(url, folder, model, tokenizer, served, chats):
    from openai import DefaultHttpxClient, OpenAI

    client = OpenAI(base_url=url, api_key="none", http_client=DefaultHttpxClient(trust_env=False))
    for chat, expected in zip(chats, predictions.greedy_answers(model, tokenizer, chats, served)):
        parts = client.chat.completions.create(
            model=str(folder),
            messages=served.question(chat),
            temperature=0,
            max_tokens=served.max_new_tokens,
            stream=True,
        )
        deltas = [choice.delta.content for part in parts for choice in part.choices]
        assert "".join(filter(None, deltas)) == expected and len([*filter(None, deltas)]) > 3


def test_temperature_one_differs_between_calls_and_zero_does_not(url, folder, served, chats):
    assert len({asked(url, folder, served, chats[0]) for _ in range(4)}) == 1
    assert len({asked(url, folder, served, chats[0], temperature=1.0) for _ in range(12)}) > 1


def test_a_stop_ends_the_answer(url, folder, model, tokenizer, served, chats):
    whole = predictions.greedy_answers(model, tokenizer, chats[:1], served)[0]
    word = re.findall(r"\w+", whole.removeprefix("<think>\n"))[2]
    found = asked(url, folder, served, chats[0], stop=[word])
    assert whole.startswith(found) and found.endswith(word) and len(found) < len(whole)


def test_two_requests_at_once_get_their_own_answers(url, folder, model, tokenizer, served, chats):
    expected = predictions.greedy_answers(model, tokenizer, chats, served)
    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(lambda chat: asked(url, folder, served, chat), chats)] == expected


def test_a_proxy_of_the_environment_does_not_stand_between(url, folder, served, chats, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert asked(url, folder, served, chats[0]).startswith("<think>")


def test_a_folder_without_weights_says_so_and_leaves_no_process(folder, tmp_path):
    can_serve()
    shutil.copytree(folder, tmp_path / "empty", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(ExportError, match=r"ended. Its last words:[\s\S]*no file named model.safetensors"):
        with serving.server(tmp_path / "empty"):
            pytest.fail("it must not come up")
    assert not alive(tmp_path / "empty")


def test_a_server_that_is_too_slow_is_ended(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "slow")
    with pytest.raises(ExportError, match="did not answer in 0.5 s"):
        with serving.server(tmp_path / "slow", patience=0.5):
            pytest.fail("it must not come up")
    assert not alive(tmp_path / "slow")


def test_the_process_ends_with_the_block_even_when_the_block_fails(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "_is_healthy", lambda port: True)  # the block begins while it still loads
    shutil.copytree(folder, tmp_path / "short")
    with pytest.raises(ZeroDivisionError), serving.server(tmp_path / "short"):
        assert alive(tmp_path / "short")
        _ = 1 / 0
    assert not alive(tmp_path / "short")


def test_a_plain_pipeline_finds_begun_answer_and_stop_in_the_folder(model, tokenizer, tmp_path, chats):
    shutil.copytree(STARTER_POLICY, tmp_path / "m")
    served = ServedPrompt(prompts.build_prompt("", [])[:-1], prefill="<think>\n", stop=("</think>",), max_new_tokens=48)
    serving_prompt.save_served_prompt(tmp_path / "m", model, tokenizer, served)
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype="auto").eval()
    expected = predictions.greedy_answers(loaded, tokenizer, chats, served)
    found = predictions.answer_in_fresh_process(tmp_path / "m", [served.question(chat) for chat in chats], 48)
    assert found["answers"] == expected and any(text.endswith("</think>") for text in expected)
