"""Other formats: whole or not made, with the reason; nothing installed, and no token ever shown."""

import errno
import importlib.util
import os
import shutil
import traceback
from pathlib import Path

import pandas as pd
import pytest

from lab.export import formats, predictions, serving_prompt
from lab.export.model_folder import ExportError
from lab.export.serving_prompt import ServedPrompt
from lab.files import STARTER_POLICY, write_json
from lab.model import policy, sampling

SERVED = ServedPrompt([{"role": "system", "content": "Think, then answer."}], prefill="<think>\n", max_new_tokens=24)
CHAT = [*SERVED.preamble, {"role": "user", "content": "What is 3 * 4?"}]
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz012345"


@pytest.fixture(scope="module")
def merged(tmp_path_factory, tokenizer):
    from transformers import AutoModelForCausalLM

    place = tmp_path_factory.mktemp("formats") / "merged"
    shutil.copytree(STARTER_POLICY, place)
    serving_prompt.save_served_prompt(place, AutoModelForCausalLM.from_pretrained(place), tokenizer, SERVED)
    return place


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """An adapter that changes answers, with what a trainer leaves beside it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype=torch.float32)
    made = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    torch.manual_seed(0)
    for name, weight in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=2)
    place = tmp_path_factory.mktemp("adapter")
    made.save_pretrained(place)
    (place / "optimizer.pt").write_bytes(b"large")
    return place


@pytest.fixture
def old(tmp_path):
    """A folder that an earlier export made."""
    place = tmp_path / "place"
    place.mkdir()
    (place / "old").write_text("as it was")
    return place


def untouched(place):
    """Only the old folder is there, as it was; nothing half-made beside it."""
    return [path.name for path in place.parent.iterdir()] == [place.name] and [p.name for p in place.iterdir()] == [
        "old"
    ]


def failing(error):
    def make():
        raise error

    return make


def test_what_cannot_be_made_is_a_line_with_its_reason(tmp_path):
    (tmp_path / "shards").mkdir()
    for name in ("index", "shards/one"):
        (tmp_path / name).write_bytes(b"x" * 1_250_000)
    made = [
        formats.attempt_export("a", formats.describe_format, "a", tmp_path, "loaded"),
        formats.attempt_export("b", failing(ExportError("no llama.cpp"))),
        formats.attempt_export("c", failing(ExportError("4 GB needed, 1 GB free"))),
        formats.attempt_export("d", failing(ValueError("x" * 999))),
        formats.attempt_export("e", failing(OSError("does not appear to have a file named config.json"))),
    ]
    table = pd.DataFrame(made)
    assert table["tried here"].tolist()[:3] == ["loaded", "no llama.cpp", "4 GB needed, 1 GB free"]
    assert table["where"].tolist() == [str(tmp_path), *["not made"] * 4]
    assert table["MB"][0] == 2.5 and table["MB"][1:].isna().all()
    assert made[3]["tried here"] == "failed: ValueError: " + "x" * 300 and "config.json" in made[4]["tried here"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt(), OSError(errno.EDQUOT, "Quota")]
)
def test_a_full_disk_and_a_stop_by_hand_end_the_notebook(error):
    with pytest.raises(type(error)):
        formats.attempt_export("a", failing(error))


def test_the_adapter_s_folder_is_all_that_a_server_needs(adapter, merged, tmp_path, tokenizer):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    place = tmp_path / "adapter"
    assert formats.export_adapter(adapter, merged, place, False)["where"] == str(place)
    assert sorted(path.name for path in place.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "chat_template.jinja",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    answers = [
        sampling.sample(
            PeftModel.from_pretrained(
                AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype=torch.float32), folder
            ),
            tokenizer,
            [CHAT],
            temperature=0,
            max_new_tokens=16,
        )
        for folder in (adapter, place)
    ]
    assert answers[0] == answers[1]
    ours = AutoTokenizer.from_pretrained(place)
    assert ours.chat_template == AutoTokenizer.from_pretrained(merged).chat_template != tokenizer.chat_template
    assert ours.response_template and GenerationConfig.from_pretrained(place).max_new_tokens == 24


def test_an_adapter_that_cannot_be_copied_leaves_the_old_one(adapter, merged, old, monkeypatch):
    monkeypatch.setattr(formats.shutil, "copyfile", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        formats.export_adapter(adapter, merged, old, True)
    assert untouched(old)


@pytest.mark.parametrize("replace", [True, False])
def test_an_earlier_adapter_is_replaced_or_kept(adapter, merged, old, replace):
    formats.export_adapter(adapter, merged, old, replace)
    kept = [path for path in old.parent.iterdir() if path != old]
    assert len(kept) == (not replace) and all((path / "old").exists() for path in kept) and not (old / "old").exists()


def checkpoint(run, step, whole=True, adapter=True):
    folder = run / f"checkpoint-{step}"
    folder.mkdir()
    if adapter:
        (folder / "adapter_config.json").write_text("{}")
    from lab.train.run_folder import COMPLETE

    write_json(folder / COMPLETE, {"sizes": {"adapter_config.json": 2 if whole else 99} if adapter else {}})


def test_earlier_states_of_a_run_are_its_whole_checkpoints_before_the_last(tmp_path):
    assert formats.earlier_checkpoints(tmp_path) == {}
    for step, how in ((5, {}), (10, {"whole": False}), (15, {}), (20, {"adapter": False}), (100, {})):
        checkpoint(tmp_path, step, **how)
    assert formats.earlier_checkpoints(tmp_path) == {"step 15": tmp_path / "checkpoint-15"}


@pytest.fixture(scope="module")
def sample(tokenizer):
    return predictions.proof_sample(tokenizer, [CHAT], ["<think>\n3 * 4 = 12\n</think>\n<answer>\n12\n</answer>"])


def weights_size(folder):
    return (folder / "model.safetensors").stat().st_size


def test_four_bits_load_again_and_stay_near(merged, sample, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    place = tmp_path / "small"
    made = formats.export_4bit(merged, place, False, sample)
    again = policy.keep_packed(AutoModelForCausalLM.from_pretrained(place)).eval()
    assert again.is_loaded_in_4bit and weights_size(place) < 0.8 * weights_size(merged)
    apart = predictions.prediction_distance(
        AutoModelForCausalLM.from_pretrained(merged, dtype="auto").eval(), again, sample
    )
    assert 0 < apart["kl"] < 0.1 and f"mean KL {apart['kl']:.2g} nats" in made["tried here"]
    ours, theirs = (AutoTokenizer.from_pretrained(folder) for folder in (place, merged))
    assert ours.chat_template == theirs.chat_template and ours.response_template == theirs.response_template
    small, large = (GenerationConfig.from_pretrained(folder).to_diff_dict() for folder in (place, merged))
    assert small == large and small["max_new_tokens"] == 24


@pytest.mark.parametrize("error", [RuntimeError("killed"), KeyboardInterrupt()])
def test_four_bits_that_fail_on_the_way_leave_the_old_folder(merged, sample, old, monkeypatch, error):
    monkeypatch.setattr(predictions, "prediction_distance", lambda *_: failing(error)())
    with pytest.raises(type(error)):
        formats.export_4bit(merged, old, True, sample)
    assert untouched(old)


@pytest.fixture
def llama(tmp_path, monkeypatch):
    """A folder that passes for a built llama.cpp."""
    from unsloth_zoo import llama_cpp

    folder = tmp_path / "llama.cpp"
    folder.mkdir()
    for name, text in (("llama-quantize", "#!/bin/sh\necho usage\n"), ("convert_hf_to_gguf.py", "")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setattr(llama_cpp, "LLAMA_CPP_DEFAULT_DIR", str(folder))
    return folder


def with_sentencepiece(monkeypatch, there):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: there or None)


def test_without_llama_cpp_it_is_said_how_to_get_one(tmp_path, monkeypatch, merged, tokenizer):
    from unsloth_zoo import llama_cpp

    monkeypatch.setattr(llama_cpp, "LLAMA_CPP_DEFAULT_DIR", str(tmp_path / "none"))
    made = formats.attempt_export(
        "GGUF", lambda: formats.export_gguf(merged, tokenizer, SERVED, tmp_path / "gguf", False, "q8_0", 128)
    )
    assert (
        made["where"] == "not made"
        and "set UNSLOTH_LLAMA_CPP_PATH" in made["tried here"]
        and str(tmp_path / "none") in made["tried here"]
    )
    assert [*tmp_path.iterdir()] == []


def test_without_sentencepiece_it_is_said_how_to_get_it(llama, monkeypatch):
    with_sentencepiece(monkeypatch, False)
    with pytest.raises(ExportError, match="pip install sentencepiece"):
        formats.find_llama_cpp()
    with_sentencepiece(monkeypatch, True)
    assert formats.find_llama_cpp() == llama


class Exporter:
    """Stands for a model loaded by Unsloth; its GGUF export does what a test says."""

    def __init__(self, does):
        self.does, self.environment = does, None

    def parameters(self):
        return []

    def save_pretrained_gguf(self, folder, tokenizer, quantization_method):
        self.environment = dict(os.environ)
        self.does(Path(folder))


@pytest.fixture
def exporting(llama, monkeypatch, merged, tokenizer):
    import unsloth

    with_sentencepiece(monkeypatch, True)
    for name in ("UNSLOTH_AUTO_INSTALL", "UNSLOTH_LLAMA_CPP_SCRIPTS_DIR"):
        monkeypatch.setenv(name, "1")  # so that it is taken back after the test
        monkeypatch.delenv(name)

    def run(place, does, served=SERVED):
        model = Exporter(does)
        monkeypatch.setattr(unsloth.FastLanguageModel, "from_pretrained", lambda *_, **__: (model, tokenizer))
        return model, formats.attempt_export(
            "GGUF", lambda: formats.export_gguf(merged, tokenizer, served, place, True, "q8_0", 128)
        )

    return run


def well(folder):
    (folder / "gguf.Q8_0.gguf").write_bytes(b"GGUF and more")
    (folder / "Modelfile").write_text("Unsloth's own")
    (folder / "merged").mkdir()
    (folder / "merged/model.safetensors").write_bytes(b"x" * 999)


def test_the_gguf_has_our_modelfile_beside_it_and_no_weights_twice(exporting, old):
    _, made = exporting(old, well)
    assert made["where"] == str(old) and made["format"] == "GGUF q8_0"
    assert sorted(path.name for path in old.iterdir()) == ["Modelfile", "gguf.Q8_0.gguf"]
    text = (old / "Modelfile").read_text()
    assert text.startswith("FROM ./gguf.Q8_0.gguf\n") and 'SYSTEM """Think, then answer."""' in text


def test_nothing_is_installed_or_fetched_on_the_way(exporting, old, llama):
    model, _ = exporting(old, well)
    assert model.environment["UNSLOTH_AUTO_INSTALL"] == "0"
    assert model.environment["UNSLOTH_LLAMA_CPP_SCRIPTS_DIR"] == str(llama)


def test_what_a_modelfile_cannot_say_does_not_cost_the_gguf(exporting, old):
    _, made = exporting(old, well, ServedPrompt([{"role": "system", "content": 'three """ quotes'}]))
    assert [path.name for path in old.iterdir()] == ["gguf.Q8_0.gguf"]
    assert "No Modelfile for Ollama: A Modelfile cannot hold" in made["tried here"]


def unknown_tokenizer(folder):
    words = "NotImplementedError: BPE pre-tokenizer was not recognized - update get_vocab_base_pre()"
    raise RuntimeError("Unsloth: GGUF conversion failed: " + "x" * 500 + words)


def broken(folder):
    well(folder)
    raise RuntimeError("Unsloth: GGUF conversion failed: tensor odd")


def damaged(folder):
    (folder / "a.gguf").write_bytes(b"<html>")


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (
            unknown_tokenizer,
            "knows tokenizers by a hash of how they split a sample text, and does not know this one",
        ),
        (broken, "GGUF conversion failed: tensor odd"),
        (damaged, "left no GGUF file"),
        (lambda folder: None, "left no GGUF file"),
    ],
)
def test_a_converter_that_fails_is_a_line_and_leaves_the_old_folder(exporting, old, does, said):
    _, made = exporting(old, does)
    assert made["where"] == "not made" and said in made["tried here"]
    shutil.rmtree(old.parent / "llama.cpp")
    assert untouched(old)


class FakeHub:
    """The Hub's client: remembers what it was asked for; `echo`: an error that quotes the token, as servers do."""

    def __init__(self, existing=None, error=None, fails_at="upload_folder"):
        self.repos, self.calls, self.error, self.fails_at = dict(existing or {}), [], error, fails_at

    def __call__(self, token):
        self.calls.append(("token", token))
        return self

    def _called(self, name, *what):
        self.calls.append((name, *what))
        if self.error and name == self.fails_at:
            raise self.error

    def create_repo(self, name, private, exist_ok):
        self._called("create_repo", name, private, exist_ok)
        self.repos.setdefault(name, private)
        return f"https://huggingface.co/{name}"

    def repo_info(self, name):
        self._called("repo_info", name)
        return type("Info", (), {"private": self.repos[name]})

    def upload_folder(self, repo_id, folder_path, commit_message):
        self._called("upload_folder", repo_id, sorted(path.name for path in Path(folder_path).iterdir()))

    @property
    def uploaded(self):
        return [call[1:] for call in self.calls if call[0] == "upload_folder"]


@pytest.fixture
def hub(monkeypatch):
    def use(token=TOKEN, **how):
        fake = FakeHub(**how)
        monkeypatch.setattr("huggingface_hub.HfApi", fake)
        monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
        return fake

    return use


def test_the_folder_goes_into_a_private_repository(hub, merged):
    fake = hub()
    assert formats.push_to_hub(merged, "me/model") == "https://huggingface.co/me/model"
    assert fake.repos == {"me/model": True}
    assert fake.uploaded == [("me/model", sorted(path.name for path in merged.iterdir()))]


def test_public_only_when_it_is_asked_for(hub, merged):
    fake = hub()
    formats.push_to_hub(merged, "me/model", private=False)
    assert fake.repos == {"me/model": False} and len(fake.uploaded) == 1


def test_a_private_upload_does_not_land_in_a_public_repository(hub, merged):
    fake = hub(existing={"me/model": False})
    with pytest.raises(ExportError, match="exists and is public: nothing was uploaded"):
        formats.push_to_hub(merged, "me/model")
    assert not fake.uploaded


def test_without_a_token_the_environment_variable_is_named(hub, merged):
    fake = hub(token=None)
    with pytest.raises(ExportError, match="HF_TOKEN"):
        formats.push_to_hub(merged, "me/model")
    assert not fake.calls


@pytest.mark.parametrize("name", ["a/b/c", "me/mo del", "-me/model", "me/model.git", "", "me/x--y"])
def test_a_name_that_the_hub_does_not_take_is_refused_before_it_is_asked(hub, merged, name):
    fake = hub()
    with pytest.raises(ExportError, match="The Hub did not take"):
        formats.push_to_hub(merged, name)
    assert [call[0] for call in fake.calls] in ([], ["token"])


def chain_of(error):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("fails_at", ["create_repo", "repo_info", "upload_folder"])
@pytest.mark.parametrize("kind", [RuntimeError, ConnectionError, ValueError, OSError])
def test_the_token_is_shown_nowhere_even_when_the_server_echoes_it(hub, merged, capfd, fails_at, kind):
    fake = hub(error=kind(f"403: Bearer {TOKEN} may not; nor may hf_AnotherSecret99"), fails_at=fails_at)
    with pytest.raises(ExportError) as caught:
        formats.push_to_hub(merged, "me/model")
    shown = [str(caught.value), *map(repr, chain_of(caught.value)), *capfd.readouterr()]
    frames = traceback.extract_tb(caught.value.__traceback__)
    shown += traceback.format_exception(caught.value) + [frame.line for frame in frames]
    assert not [text for text in shown if TOKEN in text or "AnotherSecret" in text]
    assert "403: Bearer hf_…" in str(caught.value) and fake.calls


def test_what_the_hub_s_own_errors_say_is_passed_on(hub, merged):
    import httpx
    from huggingface_hub.errors import HfHubHTTPError

    request = httpx.Request("POST", "https://huggingface.co/api", headers={"authorization": f"Bearer {TOKEN}"})
    error = HfHubHTTPError(f"403 Forbidden: {TOKEN}", response=httpx.Response(403, request=request))
    hub(error=error)
    with pytest.raises(ExportError, match="did not take me/model: HfHubHTTPError: 403 Forbidden: hf_…"):
        formats.push_to_hub(merged, "me/model")


def test_parameters_that_would_fail_after_minutes_are_refused_at_once(monkeypatch):
    import huggingface_hub

    formats.check_export_settings([]), formats.check_export_settings(["adapter", "gguf"], "original base", 1)
    for wrong, said in (
        ((["GGUF"],), "FORMATS: there is no 'GGUF'; there are: 'adapter'"),
        (([], "original"), "MERGE_INTO: there is no 'original'"),
        (([], "auto", 0), "N_EVALUATE is 0"),
        (([], "auto", -5), "N_EVALUATE is -5"),
    ):
        with pytest.raises(ValueError, match=said):
            formats.check_export_settings(*wrong)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(ExportError, match="HF_TOKEN"):
        formats.check_export_settings([], push_to="me/model")
