"""A model's folder: built beside its place and moved there when complete, its files and their hashes."""

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

from lab.files import Row, relative, unused, write_json
from lab.train.process import is_running, this_process
from scoring.errors import UserError

OWNER = "owner.json"  # in a staging folder: the process that is building


class ExportError(UserError, RuntimeError):
    """A model could not be exported or served as it was trained; the message says what failed and what to do."""


class StagingFolder:
    """Holds the folders that an export builds, one of which is published to `place`.

    Until `publish` an error, a kill or a full disk leaves the earlier export as it was. The next export removes what
    an interrupted one left, and finishes a `publish` that was killed between its two renames.
    With `replace` the earlier folder is deleted once the new one is in place; otherwise it is kept under its date.
    Raises ExportError where the disk has less than `needed` bytes free, or another process is exporting to this place.
    """

    def __init__(self, place: Path, replace: bool = False, needed: int = 0) -> None:
        self.place, self.replace = place, replace
        self.folder = place.with_name(f".{place.name}.building")
        self.ready = place.with_name(f".{place.name}.ready")
        place.parent.mkdir(parents=True, exist_ok=True)
        owner = read_json_or_empty(self.folder / OWNER)
        if owner.get("pid") != os.getpid() and is_running(owner):
            what = f"Process {owner['pid']} is exporting to {relative(place)} now"
            raise ExportError(f"{what}: wait for it, stop it, or set another OUTPUTS.")
        if self.ready.exists():
            self._move_ready_into_place()
        self.close()
        free = shutil.disk_usage(place.parent).free
        if free < needed:
            what = f"The export takes about {needed / 1e9:.1f} GB in {relative(place.parent)}, and {free / 1e9:.1f} GB are free"
            raise ExportError(f"{what}. Free some, or set OUTPUTS to a larger disk. Nothing has been changed.")
        self.folder.mkdir()
        write_json(self.folder / OWNER, this_process())

    @property
    def names(self) -> list[str]:
        """The names of the folders built so far."""
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir())

    def new_folder(self, name: str) -> Path:
        """An empty folder to build in."""
        self.remove(name)
        (self.folder / name).mkdir()
        return self.folder / name

    def remove(self, name: str) -> None:
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def close(self) -> None:
        """Deletes what was not published."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def publish(self, name: str) -> Path | None:
        """Moves one folder into place and deletes the others; returns where the earlier export is kept, if it is."""
        for path in (self.folder / name).rglob("*"):
            if path.is_file():
                path.chmod(0o644)  # safetensors writes files that only their owner can read
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        (self.folder / name).rename(self.ready)
        kept = self._move_ready_into_place()
        self.close()
        return kept

    def _move_ready_into_place(self) -> Path | None:
        if not self.place.exists():
            self.ready.rename(self.place)
            return None
        weights = [[*folder.glob("*.safetensors"), *folder.glob("*.gguf")] for folder in (self.place, self.ready)]
        before, now = (sorted((path.name, sha256(path)) for path in paths) for paths in weights)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(self.place.stat().st_mtime))
        kept = self.place.rename(unused(self.place.with_name(f"{self.place.name}-{stamp}")))
        try:
            self.ready.rename(self.place)
        except OSError:
            kept.rename(self.place)  # as it was
            raise
        if self.replace or before == now != []:  # a notebook run again would fill the disk with copies
            shutil.rmtree(kept)
            return None
        return kept


def sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def read_json_or_empty(path: Path) -> Row:
    """A JSON file's object; an empty one for a missing or half-written file."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError:
        return {}


def list_files(folder: Path) -> list[Row]:
    """Each file with its size in bytes and its SHA-256."""
    files = filter(Path.is_file, sorted(folder.rglob("*")))
    return [{"file": str(p.relative_to(folder)), "bytes": p.stat().st_size, "sha256": sha256(p)} for p in files]


def missing_files(folder: Path) -> list[str]:
    """The files that a loader, a server or a converter will look for and not find."""
    wanted = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    wanted += ["model.safetensors"] * (not any(folder.glob("model*.safetensors")))
    wanted += sorted({*read_json_or_empty(folder / "model.safetensors.index.json").get("weight_map", {}).values()})
    wanted += ["chat_template.jinja"] * ("chat_template" not in read_json_or_empty(folder / "tokenizer_config.json"))
    return [name for name in wanted if not (folder / name).is_file()]


def model_identity(model: Path | str) -> str:
    """Tells a model's weights from any others: a hash of its files, or the commit of a model on the Hub."""
    from transformers import AutoConfig

    if Path(model).is_dir():
        files = sorted(path for path in Path(model).iterdir() if path.name.endswith((".safetensors", "config.json")))
        return hashlib.sha256("".join(path.name + sha256(path) for path in files).encode()).hexdigest()
    return f"{model}@{getattr(AutoConfig.from_pretrained(str(model)), '_commit_hash', None)}"
