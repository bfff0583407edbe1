"""REPORT_TO: what is not installed is said before anything is loaded, and what is writes where it should."""

import os
from types import SimpleNamespace

import pytest

from lab.train import settings_check, trackers


@pytest.fixture
def installed(monkeypatch):
    """Trackers that can be found, by name; and an environment to write into."""
    for variable in ("TENSORBOARD_LOGGING_DIR", "WANDB_DIR", "WANDB_PROJECT", "WANDB_MODE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(trackers, "SET_HERE", {})
    names = set()
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: name if name in names else None)
    yield names
    for variable in trackers.SET_HERE:
        os.environ.pop(variable, None)


@pytest.mark.parametrize("asked", ["trackio", ["tensorboard", "trackio"]])
def test_a_tracker_that_is_not_installed_is_refused_by_name_with_the_way_out(installed, asked):
    installed.add("tensorboard")
    with pytest.raises(
        settings_check.SettingsError, match="trackio, which is not installed: pip install trackio"
    ) as error:
        settings_check.check_settings({"report_to": asked})
    assert "tensorboard, which" not in str(error.value)


@pytest.mark.parametrize("asked", ["wandbb", "tensorboard trackio", ["wandb", ""]])
def test_a_name_that_nobody_knows_is_refused_before_anything_is_loaded(installed, asked):
    installed.add("wandb")
    with pytest.raises(
        settings_check.SettingsError,
        match="which transformers does not know: give one or a list of tensorboard, trackio, wandb",
    ):
        settings_check.check_settings({"report_to": asked})


@pytest.mark.parametrize(
    ("asked", "found"),
    [("none", []), (None, []), ([], []), ("all", ["wandb"]), ("wandb", ["wandb"]), ("mlflow", ["mlflow"])],
)
def test_the_trackers_asked_for(installed, asked, found):
    installed.add("wandb")
    assert trackers.tracker_names(asked) == found and not list(trackers.tracker_problems(asked))


def arguments(*report_to):
    return SimpleNamespace(
        report_to=list(report_to), run_name=None, project="huggingface", trackio_static_space_id=None
    )


def test_each_run_has_its_own_name_and_place_and_stays_on_this_machine(installed, tmp_path):
    given = arguments("tensorboard", "wandb")
    shown = trackers.prepare_trackers(given, tmp_path / "trackers", "grpo-1")
    assert os.environ["TENSORBOARD_LOGGING_DIR"] == str(tmp_path / "trackers/tensorboard/grpo-1")
    assert os.environ["WANDB_MODE"] == "offline" and (tmp_path / "trackers/wandb").is_dir()
    assert given.run_name == "grpo-1" and given.project == "grpo" and given.trackio_static_space_id is False
    assert [line.split()[0] for line in shown] == ["tensorboard", "wandb"]
    trackers.prepare_trackers(given, tmp_path / "trackers", "grpo-2")
    assert os.environ["TENSORBOARD_LOGGING_DIR"].endswith("grpo-2"), "a second run in the same kernel"


def test_what_the_reader_has_set_stays(installed, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "mine")
    trackers.prepare_trackers(arguments("tensorboard", "wandb"), tmp_path, "grpo-1")
    assert os.environ["WANDB_MODE"] == "online" and os.environ["TENSORBOARD_LOGGING_DIR"] == "mine"


def test_without_a_tracker_nothing_changes(installed, tmp_path):
    given, before = arguments(), dict(os.environ)
    assert trackers.prepare_trackers(given, tmp_path, "grpo-1") == [] and given.run_name is None
    assert dict(os.environ) == before and not list(tmp_path.iterdir())
