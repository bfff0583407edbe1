"""The trained model in the forms that others load: adapter, 4-bit, GGUF with an Ollama Modelfile, the Hub.

Each is built beside its place and moved there when whole, and each says what was tried: a format that could not be made
on this machine is a line with its reason, not a hole.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lab.export import merge, merge_proof, ollama
from lab.export.serving_prompt import ServedPrompt, ServingError
from lab.files import relative
from lab.model import policy
from lab.train.run_folder import is_whole, step_of

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
NO_HASH = "BPE pre-tokenizer was not recognized"  # what llama.cpp's converter says of a tokenizer that it does not know


class NotMadeError(RuntimeError):
    """A format cannot be made here; the message says what it lacks."""


@dataclass(frozen=True)
class Made:
    """One exported format: where it is, how large, and what was tried with it."""

    name: str
    folder: Path | None
    size: int
    tried: str


KINDS = ("adapter", "merged 4 bit", "gguf")
MERGES = ("original base", "dequantised base")


def check(asked: Sequence[str], merge_into: str = "auto", n_evaluate: int | None = None, push_to: str = "") -> None:
    """Refuses parameters of notebook 05 that would fail after minutes of work.

    Raises ValueError for a format or a kind of merge that there is not, and for too few problems; NotMadeError where a
    model is to be uploaded without a token.
    """
    unknown = [name for name in asked if name not in KINDS]
    if unknown:
        raise ValueError(
            f"FORMATS names {unknown[0]!r}; there are: {', '.join(map(repr, KINDS))} (the merged 16-bit model is always made)."
        )
    if merge_into not in ("auto", *MERGES):
        raise ValueError(f"MERGE_INTO is {merge_into!r}; there are: 'auto', {', '.join(map(repr, MERGES))}.")
    if n_evaluate is not None and n_evaluate < 1:
        raise ValueError(f"N_EVALUATE is {n_evaluate}: evaluate at least one problem, or None for all.")
    if push_to:
        access_token()


def table(made: Sequence[Made]) -> pd.DataFrame:
    """The formats as a person reads them."""
    return pd.DataFrame(
        [
            {
                "format": one.name,
                "where": relative(one.folder) if one.folder else "not made",
                "MB": round(one.size / 1e6, 1) if one.folder else None,
                "tried here": one.tried,
            }
            for one in made
        ]
    )


def attempt(name: str, make: Callable[[], Made]) -> Made:
    """The made format, or a line that says why it was not made. Only a full disk and a stop by hand end the notebook."""
    try:
        return make()
    except (NotMadeError, merge.ExportError) as error:
        return Made(name, None, 0, str(error))
    except Exception as error:  # a converter or a loader of another project: its own words say most
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            raise
        return Made(name, None, 0, f"failed: {type(error).__name__}: {str(error)[:300]}")


@contextmanager
def building(place: Path, replace: bool, needed: int) -> Iterator[merge.Build]:
    """A build that leaves nothing behind when it fails."""
    build = merge.Build(place, replace, needed)
    try:
        yield build
    finally:
        build.discard()


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def adapter_only(adapter: Path, merged: Path, place: Path, replace: bool) -> Made:
    """The adapter with the tokenizer, chat template and generation config of the merged folder beside it."""
    files = [path for path in adapter.iterdir() if path.name.startswith("adapter_")]
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
    files += [merged / name for name in names if (merged / name).exists()]
    with building(place, replace, needed=2 * size_of(adapter)) as build:
        part = build.part("adapter")
        for path in files:
            shutil.copyfile(path, part / path.name)
        build.publish("adapter")
    base = json.loads((place / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    local = f"; it names its base by a folder of this machine, {relative(base)}" if Path(base).is_dir() else ""
    return Made("adapter", place, size_of(place), f"loaded by PEFT below; vLLM not tried here{local}")


def checkpoints(run: Path, most: int = 1) -> dict[str, Path]:
    """A run's latest whole checkpoints before its last step that hold an adapter, by name: earlier states of it."""
    found = [path for path in run.glob("checkpoint-*") if is_whole(path) and (path / "adapter_config.json").exists()]
    earlier = sorted(found, key=step_of)[:-1]
    return {f"step {step_of(path)}": path for path in earlier[-most:]}


def merged_4bit(merged: Path, folder: Path, replace: bool, sample: merge_proof.Sample) -> Made:
    """The merged model in 4 bits (NF4, double quantization) by bitsandbytes, loaded again and compared."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    plain = AutoModelForCausalLM.from_pretrained(merged, dtype="auto", device_map="auto").eval()
    place = {"dtype": "auto", "device_map": {"": plain.device}}
    small = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=plain.dtype
    )
    with building(folder, replace, needed=merge.size_in_16_bits(plain) // 2) as build:
        part = build.part("model")
        AutoModelForCausalLM.from_pretrained(merged, quantization_config=small, **place).save_pretrained(part)
        AutoTokenizer.from_pretrained(merged).save_pretrained(part)
        again = policy.as_packed(AutoModelForCausalLM.from_pretrained(part, **place)).eval()
        with torch.inference_mode():
            apart = merge_proof.distance(plain, again, sample)
        build.publish("model")
    return Made(
        "merged 4 bit",
        folder,
        size_of(folder),
        f"loaded again: mean KL {apart['kl']:.2g} nats from the 16-bit model, same token first {100 * apart['same_top']:.1f} %",
    )


def llama_cpp() -> Path:
    """A working llama.cpp where Unsloth looks for one. Raises NotMadeError where there is none.

    Left alone, Unsloth would fetch or build it in the middle of a cell, and install what that needs.
    """
    from unsloth_zoo import llama_cpp as theirs

    folder = theirs.LLAMA_CPP_DEFAULT_DIR
    try:
        theirs.check_llama_cpp(folder)
    except RuntimeError:
        raise NotMadeError(
            "llama.cpp is not at hand: set UNSLOTH_LLAMA_CPP_PATH, before the notebook starts, to a checkout of it with the "
            f"built llama-quantize in its top folder (looked in {folder})"
        ) from None
    if importlib.util.find_spec("sentencepiece") is None:
        raise NotMadeError(
            "llama.cpp's converter imports sentencepiece, which is not installed: `pip install sentencepiece`"
        )
    return Path(folder)


def gguf(
    merged: Path, tokenizer: Any, manner: ServedPrompt, place: Path, replace: bool, method: str, max_seq_length: int
) -> Made:
    """GGUF by Unsloth's exporter, with an Ollama Modelfile from the model's own chat template beside it."""
    os.environ.setdefault(
        "UNSLOTH_LLAMA_CPP_SCRIPTS_DIR", str(llama_cpp())
    )  # its own converter, not the latest one from GitHub
    os.environ["UNSLOTH_AUTO_INSTALL"] = "0"  # it is there: nothing is to be fetched, built or repaired
    from unsloth import FastLanguageModel

    model, served = FastLanguageModel.from_pretrained(str(merged), max_seq_length=max_seq_length, load_in_4bit=False)
    with building(place, replace, needed=4 * merge.size_in_16_bits(model)) as build:
        part = build.part("gguf")
        _convert(model, served, part, method)
        for path in part.iterdir():
            if path.is_dir():
                shutil.rmtree(path)  # the 16- or 32-bit weights that it was converted from
        file = next(iter(sorted(part.rglob("*.gguf"))), None)
        if file is None or not _is_gguf(file):
            raise NotMadeError("Unsloth's exporter left no GGUF file")
        said = _with_modelfile(part, file, tokenizer, manner)
        build.publish("gguf")
    return Made(f"GGUF {method}", place, size_of(place), f"the file was written and begins as a GGUF; not run. {said}")


def _convert(model: Any, tokenizer: Any, folder: Path, method: str) -> None:
    try:
        model.save_pretrained_gguf(str(folder), tokenizer, quantization_method=method)
    except RuntimeError as error:
        if NO_HASH not in str(error):
            raise
        raise NotMadeError(
            "llama.cpp's converter knows a tokenizer by a hash of what it makes of a sample text, and it does not know this one: "
            "the starter policy's is this project's own. Models of known families convert."
        ) from None


def _with_modelfile(folder: Path, file: Path, tokenizer: Any, manner: ServedPrompt) -> str:
    """Puts our Modelfile beside the file; says what is to be known of it. Unsloth's own lacks how the model was asked."""
    (folder / "Modelfile").unlink(missing_ok=True)
    try:
        ollama.write_modelfile(folder, file, tokenizer, manner)
    except ServingError as error:
        return f"No Modelfile for Ollama: {error}"
    return "Modelfile not tried in Ollama"


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as source:
        return source.read(4) == b"GGUF"


def access_token() -> str:
    """The Hub's access token: HF_TOKEN, a secret of Colab, or an earlier `hf auth login`. Raises NotMadeError without one."""
    from huggingface_hub import get_token

    token = get_token()
    if token is None:
        raise NotMadeError("There is no access token for the Hub: set the environment variable HF_TOKEN, not a cell.")
    return token


def push(folder: Path, name: str, private: bool = True) -> str:
    """Uploads a folder to the Hugging Face Hub; returns its address. The token comes from the environment and is never shown.

    Raises NotMadeError without a token, for a name that the Hub would not take, where a private upload would land
    in a repository that is public, and for what the Hub refuses.
    """
    from huggingface_hub import HfApi

    token = access_token()
    try:
        return without_secret(_upload(HfApi(token=token), folder, name, private), token)
    except NotMadeError:
        raise
    except Exception as error:  # of huggingface_hub, of its HTTP client, of the disk: any of them may quote the request
        said = f"The Hub did not take {name}: {type(error).__name__}: {without_secret(str(error), token)}"
    raise NotMadeError(said)  # out here, so that the error with the request in it is not in this one's chain


def _upload(api: Any, folder: Path, name: str, private: bool) -> str:
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(name)
    address = api.create_repo(name, private=private, exist_ok=True)
    if private and not api.repo_info(name).private:
        raise NotMadeError(
            f"{name} exists and is public: nothing was uploaded. Choose another name, or PUSH_PRIVATE = False."
        )
    api.upload_folder(repo_id=name, folder_path=folder, commit_message="Model trained with GRPO")
    return str(address)


def without_secret(text: str, token: str) -> str:
    """The text without the token, and without anything else that looks like one."""
    return re.sub(r"hf_[A-Za-z0-9]{8,}", "hf_…", text.replace(token, "hf_…"))
