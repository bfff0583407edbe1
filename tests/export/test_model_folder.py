"""A model's folder is published whole or not at all, whatever happens on the way."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from lab.export import model_folder
from lab.files import ROOT


def old_model(tmp_path):
    place = tmp_path / "merged"
    place.mkdir()
    (place / "model.safetensors").write_text("old")
    return place


def test_an_earlier_model_is_kept_under_its_date_or_replaced_when_asked(tmp_path):
    place = old_model(tmp_path)
    for replace, text in ((False, "new"), (True, "newest")):
        build = model_folder.StagingFolder(place, replace)
        (build.new_folder("a") / "model.safetensors").write_text(text)
        kept = build.publish("a")
        assert (place / "model.safetensors").read_text() == text and bool(kept) is not replace
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert [(path / "model.safetensors").read_text() for path in tmp_path.glob("merged-*")] == ["old"]


def test_an_error_before_the_end_leaves_the_old_model(tmp_path):
    place = old_model(tmp_path)
    build = model_folder.StagingFolder(place)
    (build.new_folder("a") / "model.safetensors").write_text("half")
    assert (place / "model.safetensors").read_text() == "old"
    assert model_folder.StagingFolder(place).folder.exists() and build.names == [], "the next build begins empty"


def test_a_rename_that_fails_puts_the_old_model_back(tmp_path, monkeypatch):
    place = old_model(tmp_path)
    build = model_folder.StagingFolder(place)
    build.new_folder("a")
    rename = type(place).rename

    def broken(self, target):
        if self == build.ready:
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(type(place), "rename", broken)
    with pytest.raises(OSError, match="No space left"):
        build.publish("a")
    assert (place / "model.safetensors").read_text() == "old" and not list(tmp_path.glob("merged-*"))


def test_a_kill_between_the_two_renames_is_mended_by_the_next_build(tmp_path, monkeypatch):
    place = old_model(tmp_path)
    build = model_folder.StagingFolder(place)
    (build.new_folder("a") / "model.safetensors").write_text("new")
    (build.folder / "a").rename(build.ready)
    place.rename(tmp_path / "merged-20260101-000000")
    model_folder.StagingFolder(place).close()
    assert (place / "model.safetensors").read_text() == "new" and (tmp_path / "merged-20260101-000000").exists()


def test_another_process_that_is_building_is_not_disturbed(tmp_path):
    import psutil

    place = old_model(tmp_path)
    build = model_folder.StagingFolder(place)
    (build.new_folder("a") / "model.safetensors").write_text("theirs")
    parent = psutil.Process().parent()
    owner = {
        **json.loads((build.folder / model_folder.OWNER).read_text()),
        "pid": parent.pid,
        "began": parent.create_time(),
    }
    (build.folder / model_folder.OWNER).write_text(json.dumps(owner))
    with pytest.raises(model_folder.ExportError, match=f"Process {parent.pid} is exporting"):
        model_folder.StagingFolder(place)
    assert (build.folder / "a/model.safetensors").read_text() == "theirs"
    (build.folder / model_folder.OWNER).write_text(json.dumps({**owner, "began": 1.0}))
    assert model_folder.StagingFolder(place).names == [], "a number that another process has now is no owner"


def test_the_same_weights_again_are_not_kept_twice(tmp_path):
    place = old_model(tmp_path)
    build = model_folder.StagingFolder(place)
    (build.new_folder("a") / "model.safetensors").write_text("old")
    assert build.publish("a") is None and [path.name for path in tmp_path.iterdir()] == ["merged"]


def test_another_folder_without_safetensors_is_kept_too(tmp_path):
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf/a.gguf").write_text("old")
    build = model_folder.StagingFolder(tmp_path / "gguf")
    (build.new_folder("a") / "a.gguf").write_text("new")
    assert (build.publish("a") / "a.gguf").read_text() == "old"


def test_too_little_disk_is_told_before_anything_is_written(tmp_path):
    place = old_model(tmp_path)
    with pytest.raises(model_folder.ExportError, match=r"takes about [\d.]+ GB .* Nothing has been changed"):
        model_folder.StagingFolder(place, needed=10**18)
    assert (place / "model.safetensors").read_text() == "old" and [path.name for path in tmp_path.iterdir()] == [
        "merged"
    ]


def test_files_can_be_read_by_others(tmp_path):
    build = model_folder.StagingFolder(tmp_path / "merged")
    path = build.new_folder("a") / "model.safetensors"
    path.write_text("x")
    path.chmod(0o600)
    build.publish("a")
    assert (tmp_path / "merged/model.safetensors").stat().st_mode & 0o777 == 0o644


def test_a_kill_in_the_middle_leaves_the_old_model_and_the_next_build_clears_up(tmp_path):
    place = old_model(tmp_path)
    script = textwrap.dedent(f"""
        import os, signal, sys
        from pathlib import Path
        from lab.export.model_folder import StagingFolder
        build = StagingFolder(Path({str(place)!r}))
        (build.new_folder("a") / "model.safetensors").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    path = os.pathsep.join([str(ROOT), str(ROOT / "notebooks")])
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == -signal.SIGKILL
    assert (place / "model.safetensors").read_text() == "old" and (tmp_path / ".merged.building").exists()
    model_folder.StagingFolder(place).close()
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]
