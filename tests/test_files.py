"""Files: written whole or not at all, read with a sentence on what is wrong, earlier runs kept."""

import json
import os

import pytest

from lab import files


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = files.write_json(tmp_path / "a.json", {"a": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1} and list(tmp_path.iterdir()) == [path]


def test_a_damaged_json_file_names_the_notebook_that_makes_it(tmp_path):
    (tmp_path / "a.json").write_text('{"a": ')
    with pytest.raises(ValueError, match="damaged.*02_design_rewards"):
        files.read_json(tmp_path / "a.json", "02_design_rewards")


def test_earlier_runs_are_kept_beside_the_new_one(tmp_path):
    for text in ("first", "second"):
        run = files.fresh_folder(tmp_path / "run")
        assert not any(run.iterdir())
        (run / "log.jsonl").write_text(text)
    files.fresh_folder(run)
    assert sorted(p.read_text() for p in tmp_path.glob("run-*/log.jsonl")) == ["first", "second"]
