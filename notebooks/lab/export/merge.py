"""The adapter merged into a 16-bit base, built beside its place and moved there when whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.export import serving_prompt
from lab.export.serving_prompt import ServedPrompt
from lab.files import relative, unused, write_json
from lab.train.run_folder import this_process

OWNER = "owner.json"  # in a build: whose it is
NEEDED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
ASIDE = 0.1  # norm of what is in the merged update and not in ours, as a share of ours, beyond 1.5 times what rounding leaves
MERGE_RATIO = (
    0.03  # how far the merged update may be from our own merge of the same adapter: an alpha off by 3 % is seen
)


class ExportError(RuntimeError):
    """A model could not be written, or is not what it must be; the message says what failed and what to do."""


class Build:
    """A folder that is built beside its place and moved there when it is whole.

    Until `publish` the old folder is untouched; a kill, an error or a full disk leaves it as it was. What an
    interrupted build left behind goes when the next one begins; where the kill fell between the two renames of
    `publish`, when the finished folder is complete and the old one already under its date, the next build ends it.

    Args:
        place: where the finished folder will be.
        replace: what stands there is deleted when the new one is in place; otherwise it is kept under its date.
        needed: bytes that the build will take at its largest.

    Raises ExportError where the disk has less free, and where another process is building for this place.
    """

    def __init__(self, place: Path, replace: bool = False, needed: int = 0) -> None:
        self.place, self.replace = place, replace
        self.folder = place.with_name(f".{place.name}.building")
        self.ready = place.with_name(f".{place.name}.ready")
        place.parent.mkdir(parents=True, exist_ok=True)
        self._refuse_a_second_builder()
        if self.ready.exists():
            self._swap()
        self.discard()
        free = shutil.disk_usage(place.parent).free
        if free < needed:
            raise ExportError(
                f"Writing the model takes about {needed / 1e9:.1f} GB in {relative(place.parent)}, and {free / 1e9:.1f} GB are "
                "free there. Free some, or set OUTPUTS to a larger disk; nothing has been changed."
            )
        self.folder.mkdir()
        write_json(self.folder / OWNER, this_process())

    def _refuse_a_second_builder(self) -> None:
        owner = read_json_file(self.folder / OWNER)
        if owner and owner.get("pid") != os.getpid() and is_running(owner):
            raise ExportError(
                f"Process {owner['pid']} is exporting to {relative(self.place)} now: wait for it, stop it, or set another OUTPUTS."
            )

    @property
    def parts(self) -> list[str]:
        """The names of the parts that there are."""
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir())

    def part(self, name: str) -> Path:
        """An empty folder of the build."""
        self.drop(name)
        (self.folder / name).mkdir()
        return self.folder / name

    def drop(self, name: str) -> None:
        """Removes a part that could not be finished."""
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def publish(self, name: str) -> Path | None:
        """Moves a part into place and removes the rest; returns where the earlier folder is kept, if one was.

        One with the very same weights is replaced, not kept: a notebook that is run again would fill the disk with copies.
        """
        part = self.folder / name
        for path in part.rglob("*"):
            if path.is_file():
                path.chmod(0o644)  # safetensors writes files that only their owner can read
                _to_disk(path)
        part.rename(self.ready)
        kept = self._swap()
        self.discard()
        return kept

    def _swap(self) -> Path | None:
        """Puts the finished folder in place; returns where the one that stood there is kept."""
        kept = None
        same = self.place.exists() and _weight_hashes(self.place) == _weight_hashes(self.ready)
        if self.place.exists():
            stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(self.place.stat().st_mtime))
            kept = unused(self.place.with_name(f"{self.place.name}-{stamp}"))
            self.place.rename(kept)
        try:
            self.ready.rename(self.place)
        except OSError:
            if kept:
                kept.rename(self.place)  # as it was
            raise
        if kept and (self.replace or same):
            shutil.rmtree(kept)
            return None
        return kept

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _weight_hashes(folder: Path) -> list[str] | None:
    """The hashes of a folder's weights; None where there are none to compare."""
    return [sha256(path) for path in sorted(folder.glob("*.safetensors"))] or None


def is_running(process: Mapping[str, Any]) -> bool:
    """Whether a process of this machine, as `this_process` wrote it down, still runs."""
    import platform

    import psutil

    try:
        began = psutil.Process(int(process["pid"])).create_time()
        return process.get("host") == platform.node() and abs(began - process["began"]) < 2
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False


def _to_disk(path: Path) -> None:
    with path.open("rb") as source:
        os.fsync(source.fileno())


def size_in_16_bits(model: Any) -> int:
    """Bytes of a model's weights as they will be written; a byte of quantized ones holds two of them."""
    return sum(
        2 * parameter.numel() * (2 if hasattr(parameter, "quant_state") else 1) for parameter in model.parameters()
    )


def load_trained(name: str | Path, like: Any) -> Any:
    """A model in the precision of another and on its device, ready to answer; memory that nothing refers to is given back first."""
    import gc

    import torch
    from transformers import AutoModelForCausalLM

    gc.collect()  # a wrapped model refers to itself
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return AutoModelForCausalLM.from_pretrained(str(name), dtype=like.dtype, device_map={"": like.device}).eval()


def merge_into_dequantised(quantised: Any, adapter: Path, tokenizer: Any, folder: Path) -> None:
    """Writes the adapter merged into the dequantized 4-bit base, which is the base that it was really trained on.

    Args:
        quantised: base and adapter as trained, a model of its own: it is taken apart here.

    The sum is formed in 32 bits where the memory allows, and rounded to 16 once.
    """
    from peft import PeftModel

    base = quantised.unload().dequantize()
    dtype = base.dtype
    if _has_room(base):
        base = base.float()
    merged = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload().to(dtype)
    merged.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _has_room(model: Any) -> bool:
    """Whether the model fits once more in 32 bits, with as much again to spare."""
    import psutil
    import torch

    needed = 8 * sum(parameter.numel() for parameter in model.parameters())
    on_gpu = model.device.type == "cuda"
    return needed < (torch.cuda.mem_get_info(model.device)[0] if on_gpu else psutil.virtual_memory().available)


def finish(folder: Path, model: Any, tokenizer: Any, manner: ServedPrompt) -> None:
    """Puts how the model was asked into a merged folder: chat template, response template, generation config.

    Unsloth switches the cache off in `config.json` for training; a served model wants it on.
    """
    from transformers import AutoTokenizer, GenerationConfig

    ours = AutoTokenizer.from_pretrained(folder)
    ours.chat_template, ours.padding_side = serving_prompt.template_for(tokenizer, manner), "left"
    ours.response_template = serving_prompt.response_template(tokenizer, manner)
    ours.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_json(folder / "config.json", {**config, "use_cache": True})
    GenerationConfig(**serving_prompt.generation_config(model, tokenizer, manner)).save_pretrained(folder)


def sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def read_json_file(path: Path) -> dict[str, Any]:
    """A JSON file's content; nothing for a missing or a half-written one."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError:
        return {}
