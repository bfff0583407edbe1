"""The trained model in the forms that others load: adapter, 4 bits, GGUF with an Ollama Modelfile, the Hub."""

import errno
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from lab.export import merge, predictions
from lab.export.model_folder import ExportError, StagingFolder
from lab.export.serving_prompt import ServedPrompt, rendered_prefill
from lab.files import Row, relative, write_text
from lab.model import policy
from lab.model.prompts import Messages, render
from lab.train.run_folder import is_whole, step_of
from scoring.errors import InputError

FORMATS = ("adapter", "merged 4 bit", "gguf")
MERGES = ("auto", "original base", "dequantised base")
# ChatML in Go's template language: Ollama fills in .System, the text of system messages, and .Messages.
GO_CHATML = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ else }}DEFAULT{{ end }}"
    '{{ range .Messages }}{{ if ne .Role "system" }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}{{ end }}'
    "<|im_start|>assistant\n"
)


def check_export_settings(
    chosen: Sequence[str], merge_into: str = "auto", n_evaluate: int | None = None, push_to: str = ""
) -> None:
    """Raises InputError or ExportError for parameters of notebook 05 that would fail after minutes of work."""
    for name, values, known in (("FORMATS", chosen, FORMATS), ("MERGE_INTO", [merge_into], MERGES)):
        if unknown := [value for value in values if value not in known]:
            raise InputError(f"{name}: there is no {unknown[0]!r}; there are: {', '.join(map(repr, known))}.")
    if n_evaluate is not None and n_evaluate < 1:
        raise InputError(f"N_EVALUATE is {n_evaluate}: evaluate at least one problem, or None for all.")
    if push_to:
        access_token()


def describe_format(name: str, folder: Path | None, tried: str) -> Row:
    """A line of the table of formats: where it is (None: it was not made), its size, and what was tried with it."""
    if folder is None:
        return {"format": name, "where": "not made", "MB": None, "tried here": tried}
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"format": name, "where": relative(folder), "MB": round(size / 1e6, 1), "tried here": tried}


def attempt_export(name: str, export: Callable[..., Row], *args: Any) -> Row:
    """`export(*args)`, or a line that says why it failed. Only a full disk and a stop by hand end the notebook."""
    try:
        return export(*args)
    except Exception as error:  # a converter or a loader of another project: its own words say most
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        why = str(error) if isinstance(error, ExportError) else f"failed: {type(error).__name__}: {str(error)[:300]}"
        return describe_format(name, None, why)


def export_adapter(adapter: Path, merged: Path, place: Path, replace: bool) -> Row:
    """The adapter, with the tokenizer, chat template and generation config of the merged folder beside it."""
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
    files = [*adapter.glob("adapter_*"), *(merged / name for name in names if (merged / name).exists())]
    with closing(StagingFolder(place, replace)) as staging:
        folder = staging.new_folder("adapter")
        for path in files:
            shutil.copyfile(path, folder / path.name)
        staging.publish("adapter")
    base = json.loads((place / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    local = f"; it names its base by a folder of this machine, {relative(base)}" if Path(base).is_dir() else ""
    return describe_format("adapter", place, f"loaded by PEFT below; not tried in vLLM{local}")


def earlier_checkpoints(run: Path) -> dict[str, Path]:
    """A run's last whole checkpoint but one that holds an adapter, by name: an earlier state of it, if there is one."""
    whole = [path for path in run.glob("checkpoint-*") if is_whole(path) and (path / "adapter_config.json").exists()]
    return {f"step {step_of(path)}": path for path in sorted(whole, key=step_of)[-2:-1]}


def export_4bit(merged: Path, place: Path, replace: bool, sample: predictions.ProofSample) -> Row:
    """The merged model in 4 bits (NF4, double quantization) by bitsandbytes, loaded again and compared."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    load = AutoModelForCausalLM.from_pretrained
    plain = load(merged, dtype="auto", device_map="auto").eval()
    same = {"dtype": "auto", "device_map": {"": plain.device}}
    nf4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    small = BitsAndBytesConfig(**nf4, bnb_4bit_compute_dtype=plain.dtype)
    with closing(StagingFolder(place, replace, needed=merge.bytes_in_16_bits(plain) // 2)) as staging:
        folder = staging.new_folder("model")
        load(merged, quantization_config=small, **same).save_pretrained(folder)
        AutoTokenizer.from_pretrained(merged).save_pretrained(folder)
        again = policy.keep_packed(load(folder, **same)).eval()
        apart = predictions.prediction_distance(plain, again, sample)
        staging.publish("model")
    distance = f"mean KL {apart['kl']:.2g} nats from the 16-bit model, same token first {100 * apart['same_top']:.1f} %"
    return describe_format("merged 4 bit", place, f"loaded again: {distance}")


def find_llama_cpp() -> Path:
    """A working llama.cpp where Unsloth looks for it, which otherwise would download one. Raises ExportError if none."""
    from unsloth_zoo import llama_cpp

    folder = llama_cpp.LLAMA_CPP_DEFAULT_DIR
    try:
        llama_cpp.check_llama_cpp(folder)
    except RuntimeError:
        what = f"llama.cpp is not at hand (looked in {folder}): before the notebook starts, set UNSLOTH_LLAMA_CPP_PATH"
        raise ExportError(f"{what} to a checkout of it with the built llama-quantize in its top folder") from None
    if importlib.util.find_spec("sentencepiece") is None:
        raise ExportError("llama.cpp's converter needs sentencepiece: `pip install sentencepiece`")
    return Path(folder)


def export_gguf(
    merged: Path, tokenizer: Any, served: ServedPrompt, place: Path, replace: bool, method: str, max_seq_length: int
) -> Row:
    """GGUF by Unsloth's exporter in one of llama.cpp's quantizations, with an Ollama Modelfile beside it."""
    # llama.cpp's own converter, not the latest one from GitHub; and nothing is downloaded, built or repaired.
    os.environ.setdefault("UNSLOTH_LLAMA_CPP_SCRIPTS_DIR", str(find_llama_cpp()))
    os.environ["UNSLOTH_AUTO_INSTALL"] = "0"
    from unsloth import FastLanguageModel

    model, exported = FastLanguageModel.from_pretrained(str(merged), max_seq_length=max_seq_length, load_in_4bit=False)
    with closing(StagingFolder(place, replace, needed=4 * merge.bytes_in_16_bits(model))) as staging:
        folder = staging.new_folder("gguf")
        try:
            model.save_pretrained_gguf(str(folder), exported, quantization_method=method)
        except RuntimeError as error:
            if "BPE pre-tokenizer was not recognized" not in str(error):
                raise
            raise ExportError(
                "llama.cpp's converter knows tokenizers by a hash of how they split a sample text, and does not know this one "
                "(the starter policy's is this project's own). Models of known families convert."
            ) from None
        for path in filter(Path.is_dir, folder.iterdir()):
            shutil.rmtree(path)  # the 16- or 32-bit weights that it was converted from
        file = min(folder.glob("*.gguf"), default=None)
        if file is None or file.open("rb").read(4) != b"GGUF":
            raise ExportError("Unsloth's exporter left no GGUF file")
        (folder / "Modelfile").unlink(missing_ok=True)  # Unsloth's own lacks the preamble and the prefill
        try:
            write_text(folder / "Modelfile", modelfile(file.name, tokenizer, served))
            tried = "Modelfile not tried in Ollama"
        except ExportError as error:
            tried = f"No Modelfile for Ollama: {error}"
        staging.publish("gguf")
    return describe_format(f"GGUF {method}", place, f"begins as a GGUF file does; not run. {tried}")


def modelfile(gguf: str, tokenizer: Any, served: ServedPrompt) -> str:
    """An Ollama Modelfile for a GGUF file beside it, with the template, messages, sampling and stops of the training.

    Raises ExportError where the tokenizer's chat template is not ChatML, and for texts that a Modelfile cannot hold.
    """
    default, prefill = default_system(tokenizer, served.preamble), rendered_prefill(tokenizer, served.prefill)
    template = GO_CHATML.replace("DEFAULT", _in_go(default)) + _in_go(prefill)
    lines = [f"FROM ./{gguf}", f"TEMPLATE {_quoted(template)}"]
    commands = {"system": "SYSTEM", "user": "MESSAGE user", "assistant": "MESSAGE assistant"}
    lines += [f"{commands[message['role']]} {_quoted(message['content'])}" for message in served.preamble]
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


def access_token() -> str:
    """The Hub's access token: HF_TOKEN, a secret of Colab, or an earlier `hf auth login`. Raises ExportError without one."""
    from huggingface_hub import get_token

    if (token := get_token()) is None:
        raise ExportError("There is no access token for the Hub: set the environment variable HF_TOKEN, not a cell.")
    return token


def push_to_hub(folder: Path, name: str, private: bool = True) -> str:
    """Uploads a folder to the Hugging Face Hub; returns its address. The token is never shown.

    Raises ExportError without a token, where the Hub refuses, and where a private upload would become public.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import validate_repo_id

    token = access_token()
    api, like_a_token = HfApi(token=token), re.compile(rf"{re.escape(token)}|hf_[A-Za-z0-9]{{8,}}")
    try:
        validate_repo_id(name)
        address = api.create_repo(name, private=private, exist_ok=True)
        if private and not api.repo_info(name).private:
            refusal = f"{name} exists and is public: nothing was uploaded. Choose another name, or PUSH_PRIVATE = False"
        else:
            api.upload_folder(repo_id=name, folder_path=folder, commit_message="Model trained with GRPO")
            return like_a_token.sub("hf_…", str(address))
    except Exception as error:  # of huggingface_hub, of its HTTP client, of the disk: any of them may quote the request
        refusal = f"The Hub did not take {name}: {type(error).__name__}: {like_a_token.sub('hf_…', str(error))}"
    raise ExportError(refusal)  # outside the except block, so that the error with the request is not in its chain
