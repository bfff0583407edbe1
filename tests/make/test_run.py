"""`make run` says first how long it will take."""

import pytest

from lab.make import run


@pytest.fixture
def said(monkeypatch, capsys):
    """What `make run` prints before the notebooks, on a machine of this share of the reference's speed."""
    monkeypatch.setattr(run, "run_notebooks", lambda names, outputs, parameters: print("they run") or {})
    monkeypatch.setattr(run.shutil, "which", lambda name: None)

    def ask(share, *more):
        monkeypatch.setattr(run, "speed", lambda: share * run.SPEED)
        monkeypatch.setattr("sys.argv", ["lab.make.run", *more])
        run.main()
        first, rest = capsys.readouterr().out.split("\n", 1)
        assert rest == "they run\n"
        return first

    return ask


def test_it_says_before_the_notebooks_how_long_they_take_by_what_this_machine_does(said):
    assert said(1).endswith("under outputs/. This takes about 9 minutes on this machine.")
    assert said(0.5).endswith("about 18 minutes on this machine.")
    assert said(3).endswith("about 3 minutes on this machine.")


def test_it_counts_the_notebooks_that_are_run(said):
    assert said(1, "--upto", "01_prepare_data").startswith("Running 1 notebook; ")
    assert said(1, "--upto", "02_design_rewards").endswith("about 1 minute on this machine.")
    assert said(1, "--all").endswith("about 16 minutes on this machine.") and set(run.MINUTES) == set(run.EVERY)


def test_it_says_nothing_about_a_model_or_a_card_that_was_never_timed(said, monkeypatch):
    assert "minute" not in said(1, "--model", "unsloth/Qwen2.5-1.5B-Instruct")
    monkeypatch.setattr(run.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert "minute" not in said(1)


def test_the_speed_is_measured_in_the_time_that_is_given(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(run.time, "perf_counter", lambda: next(ticks) / 10)
    assert run.speed(seconds=1.0) == pytest.approx(9)  # nine rounds, a clock tick of a tenth for each
