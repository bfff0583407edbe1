"""What a person sees while training: the line, the pictures in their place, and nothing that runs."""

import time
from types import SimpleNamespace

import pandas as pd
import pytest

from lab.files import QUIET, append_jsonl
from lab.read import health
from lab.show import live_view
from lab.show.live_view import LiveView, findings_html, samples_html

ILL = health.Finding("kl_high", 9.0, 0.5, "critical", 2, "the policy is 9 nats away", "lower LEARNING_RATE")
LOGS = {
    "reward": 1.234,
    "reward_std": 0.2,
    "completions/mean_length": 41.6,
    "kl": 0.0123,
    "temperature": 0.9,
    "rewards/format_reward/mean": 0.5,
}


@pytest.fixture
def view(tmp_path, monkeypatch):
    """A view in a pretended notebook; `.shown` is what was displayed, by name, newest last."""
    monkeypatch.delenv(QUIET, raising=False)
    monkeypatch.setattr(live_view, "in_notebook", lambda: True)
    table = pd.DataFrame(
        {
            "group": [0, 0],
            "prompt": "p",
            "completion": ["<script>alert(1)</script>", "b"],
            "format_reward": [1.0, None],
            "advantage": [1.0, -1.0],
        }
    )
    run = SimpleNamespace(
        folder=tmp_path, is_main_process=True, record={}, completions=lambda: table, show_message=print
    )
    run.tell = lambda text: run.show_message(text)
    view = LiveView(run, SimpleNamespace(problems=lambda: [ILL]), show_every=2)
    view.trainer, view.shown = SimpleNamespace(reward_func_names=["format_reward"]), []
    monkeypatch.setattr(view, "_display", lambda name, what: view.shown.append((name, getattr(what, "data", what))))
    return view


def begin(view, step=0, last=10):
    view.on_train_begin(None, SimpleNamespace(global_step=step, max_steps=last), None)


def log(view, step, **more):
    view.on_log(None, SimpleNamespace(global_step=step, max_steps=10), None, logs={**LOGS, **more})


def test_the_line_says_where_it_is_how_long_it_takes_and_what_matters(view):
    begin(view)
    view.began = time.monotonic() - 8.0
    text = view.line(4, LOGS)
    assert (
        text
        == "step 4 of 10 · 2.0 s a step · 0:00:12 left · reward 1.23 · tokens 42 · KL 0.012 · temperature 0.90 · 1 warning"
    )


def test_a_resumed_run_counts_its_own_steps_for_the_time_and_shows_the_whole_curve(view, tmp_path):
    for step in (1, 2, 3):
        append_jsonl(tmp_path / "log.jsonl", {"step": step, **LOGS})
    begin(view, step=3)
    assert len(view.rows) == 3
    view.began = time.monotonic() - 6.0
    assert "step 5 of 10 · 3.0 s a step · 0:00:15 left" in view.line(5, LOGS)


def test_what_the_run_says_stands_between_the_line_and_the_figure_and_keeps_what_was_said_before(view):
    begin(view, step=3)
    view.run.tell("Stopping: a < b costs $5.\nOnce more: stop at once.")
    log(view, 4)
    order = [*dict.fromkeys(name for name, _ in view.shown)]
    assert order == ["line", "messages", "figure", "findings"], "the place is taken before anything is said"
    said = [what for name, what in view.shown if name == "messages"][-1]
    assert "This run goes on after step 3." in said and "a &lt; b costs $5.\nOnce more" in said
    assert said.count("mathjax_ignore") == 2 and "pre-wrap" in said


def test_in_a_script_the_run_prints_what_it_says(view, monkeypatch, capsys):
    monkeypatch.setattr(live_view, "in_notebook", lambda: False)
    begin(view, step=3)
    assert "This run goes on after step 3." in capsys.readouterr().out


def test_a_metric_that_is_not_logged_is_left_out(view):
    begin(view)
    assert "KL" not in view.line(1, {**LOGS, "kl": None})


def test_each_thing_is_shown_in_its_one_place(view):
    begin(view)
    for step in (1, 2, 3, 4):
        view.drawn_at = 0.0
        log(view, step)
    assert {name for name, _ in view.shown} == {"line", "messages", "figure", "findings"}
    assert [name for name, _ in view.shown].count("line") == 5


def test_drawing_waits_until_it_costs_little(view):
    begin(view)
    for step in range(1, 8):
        log(view, step)
    assert [name for name, _ in view.shown].count("figure") == 1, (
        "the first drawing took longer than 2 % of the time since"
    )


def test_what_the_model_writes_is_text_and_never_html(view):
    begin(view)
    view.drawn_at = 0.0
    log(view, 2)
    pages = "".join(what for name, what in view.shown if name == "findings")
    assert "&lt;script&gt;" in pages and "<script>" not in pages and "kl_high" in pages
    assert "<i" not in findings_html([ILL._replace(message="<i>")])
    assert "<b>x" not in samples_html(1, view.run.completions().assign(prompt="<b>x", sample="best"), ["format_reward"])


def test_a_sample_shows_the_question_alone_and_no_dollar_is_typeset(view):
    table = view.run.completions().assign(sample="best", prompt="system\nThink.\nuser\nIt costs $5 or $6?\nassistant\n")
    shown = samples_html(1, table.assign(**{"data/question": "It costs $5 or $6?"}), ["format_reward"])
    assert "<i>It costs $5 or $6?</i>" in shown and "assistant" not in shown
    roles = samples_html(
        1, table, ["format_reward"]
    )  # another trainer's data has no question: roles on lines of their own
    assert 'white-space: pre-wrap">Step 1: <i>system\nThink.\nuser\n' in roles
    assert shown.count("mathjax_ignore tex2jax_ignore") == 2, "the question and the table"


def test_nothing_is_shown_where_nobody_watches_but_the_end(view, monkeypatch):
    monkeypatch.setenv(QUIET, "1")
    begin(view)
    log(view, 2)
    assert view.shown == []
    view.on_train_end(None, SimpleNamespace(global_step=2), None)
    assert {name for name, _ in view.shown} == {"figure", "findings"}


def test_in_a_script_there_are_lines_and_samples_instead(view, monkeypatch, capsys):
    monkeypatch.setattr(live_view, "in_notebook", lambda: False)
    begin(view)
    for step in range(1, 11):
        log(view, step)
    text = capsys.readouterr().out
    assert "step 10 of 10" in text and "best of a group (advantage +1.00)\n<script>" in text and view.shown == []
    assert text.count(" of 10 ·") < 10, "not a line a step"


def test_in_a_terminal_one_line_rewrites_itself(view, monkeypatch, capsys):
    monkeypatch.setattr(live_view, "in_notebook", lambda: False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    begin(view)
    for step in (1, 3, 9, 10):
        log(view, step)
    text = capsys.readouterr().out
    assert text.count("\r") == 5 and text.count(" of 10 ·") == 4, "a line a step, over the one before"
    assert "\n" not in text.partition("step 9")[0], "no line ends before the run does"


def test_an_evaluation_is_kept_for_the_figure_and_makes_no_line(view):
    begin(view)
    view.on_log(None, SimpleNamespace(global_step=2, max_steps=10), None, logs={"eval_format_reward": 0.5, "eval_n": 4})
    assert len(view.rows) == 1 and [name for name, _ in view.shown] == ["line", "messages"]


def test_an_empty_batch_and_a_healthy_run_are_said_not_broken(view):
    view.run.completions = lambda: pd.DataFrame({"group": [], "prompt": [], "completion": [], "advantage": []})
    begin(view)
    log(view, 2)
    assert "no warnings" in findings_html([])
