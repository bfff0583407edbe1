"""What a person watches while a run trains: one line, the curves, what is wrong, and a few completions."""

from __future__ import annotations

import html
import os
import sys
import time
from typing import Any

import numpy as np
import pandas as pd

from lab.files import QUIET
from lab.read import health, run_record
from lab.show import training_curves
from lab.show.tables import readable
from lab.train.callbacks import HealthMonitor
from lab.train.recorder import RunRecorder
from lab.train.run_folder import rows_of
from lab.train.steering import RunPart

SHARE = 0.02  # of the time: drawing waits until it costs less than that


def in_notebook() -> bool:
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


def run_by_papermill() -> bool:
    """Whether the kernel was started by papermill or nbconvert, where a picture that changes is seen by nobody."""
    import psutil

    try:
        line = " ".join(psutil.Process().parent().cmdline())
    except (psutil.Error, AttributeError):
        return False
    return "papermill" in line or "nbconvert" in line


def shown_time(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}" if minutes >= 60 else f"{minutes}:{seconds:02d}"


class LiveView(RunPart):
    """In Jupyter and Colab a line, a figure, a table of findings and samples, each updated in its place.

    In a script a line now and then; where `GRPO_QUIET` is set only the end.

    Args:
        show_every: steps between sample completions; 0 shows none.
    """

    def __init__(self, run: RunRecorder, monitor: HealthMonitor | None = None, show_every: int = 20) -> None:
        self.run, self.monitor, self.show_every = run, monitor, show_every
        self.rows: list[dict[str, Any]] = []
        self.handles: dict[str, Any] = {}
        self.samples = ""
        self.drawn, self.cost = 0.0, 0.0

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.rows = rows_of(self.run.folder / "log.jsonl")  # a resumed run shows all of its curve
        self.began, self.first, self.last = time.monotonic(), state.global_step, state.max_steps
        self.notebook, self.quiet = in_notebook(), bool(os.environ.get(QUIET)) or run_by_papermill()
        self.told = 0.0
        if not self.quiet:
            self._say("the first step is on its way")

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if not self.run.main:
            return
        self.rows.append({"step": state.global_step, **(logs or {})})
        if "reward" not in (logs or {}) or self.quiet:
            return
        self._say(self.line(state.global_step, logs))
        if self.show_every and state.global_step % self.show_every == 0:
            self._sample(state.global_step)
        if self.notebook and time.monotonic() - self.drawn > self.cost / SHARE:
            self._draw()

    def on_train_end(self, args, state, control, **kwargs) -> None:
        if self.run.main and self.notebook:
            if self.show_every:
                self._sample(state.global_step)
            self._draw()

    # ---- the line

    def line(self, step: int, logs: dict[str, Any]) -> str:
        """Where the run is, how long it will take, and the numbers that matter most."""
        each = (time.monotonic() - self.began) / max(1, step - self.first)
        parts = [f"step {step} of {self.last}", f"{each:.1f} s a step", f"{shown_time(each * (self.last - step))} left"]
        for label, name, digits in (
            ("reward", "reward", 2),
            ("tokens", "completions/mean_length", 0),
            ("KL", "kl", 3),
            ("temperature", "temperature", 2),
        ):
            if logs.get(name) is not None:
                parts.append(f"{label} {float(logs[name]):.{digits}f}")
        sick = self.monitor.sick() if self.monitor else []
        return " · ".join([*parts, *([f"{len(sick)} warning{'s' * (len(sick) > 1)}"] if sick else [])])

    def _say(self, text: str) -> None:
        if self.notebook:
            done = self.rows[-1]["step"] if self.rows else self.first
            bar = f'<progress value="{done}" max="{self.last}" style="width: 16em; vertical-align: middle"></progress> '
            self._show("line", _html(bar + html.escape(text)))
        elif sys.stdout.isatty():
            print(
                "\r" + text.ljust(110), end="\n" if self.rows and self.rows[-1]["step"] >= self.last else "", flush=True
            )
        elif not self.rows or self.rows[-1]["step"] >= self.last or time.monotonic() - self.told > 30:
            print(text, flush=True)
            self.told = time.monotonic()

    # ---- pictures

    def _show(self, name: str, what: Any) -> None:
        from IPython.display import display

        if name in self.handles:
            self.handles[name].update(what)
        else:
            self.handles[name] = display(what, display_id=True)

    def _draw(self) -> None:
        from matplotlib import pyplot

        began = time.monotonic()
        record = run_record.from_rows(self.rows, rows_of(self.run.folder / "events.jsonl"), self.run.record)
        if record.log.empty:
            return
        figure = training_curves.live_figure(record)
        self._show("figure", figure)
        pyplot.close(figure)
        sick = self.monitor.sick() if self.monitor else []
        self._show("findings", _html(findings_html(sick) + self.samples))
        self.drawn, self.cost = time.monotonic(), time.monotonic() - began

    def _sample(self, step: int) -> None:
        """The best and the worst completion of the group in which they differ most."""
        table = self.run.completions()
        if not len(table):
            return
        table = table[table["group"] == table.groupby("group")["advantage"].agg(np.ptp).idxmax()]
        order = table.sort_values("advantage", ascending=False)
        picked = {"best": order.iloc[0], "worst": order.iloc[-1]}
        if self.notebook:
            self.samples = samples_html(step, table["prompt"].iloc[0], picked, self.trainer.reward_func_names)
            return
        for name, row in picked.items():
            print(
                f"\n--- step {step}, {name} of a group (advantage {row['advantage']:+.2f})\n{row['completion']}",
                flush=True,
            )


def _html(text: str) -> Any:
    from IPython.display import HTML

    return HTML(text)


def findings_html(findings: list[Any]) -> str:
    """The sick rules as a table; a healthy run says so in a line."""
    if not findings:
        return "<p>Health: no rule has anything to say.</p>"
    return readable(health.table(findings)).to_html()


def samples_html(step: int, prompt: str, picked: dict[str, Any], rewards: list[str]) -> str:
    """Two completions beside each other, their text escaped: what a model writes may look like HTML."""
    cells = ""
    for name, row in picked.items():
        scores = ", ".join(f"{reward} {row[reward]:.2f}" for reward in rewards if pd.notna(row[reward]))
        cells += (
            f'<td style="text-align: left; vertical-align: top; width: 50%"><b>{name}</b>, advantage {row["advantage"]:+.2f}'
            f'<br><small>{html.escape(scores)}</small><pre style="white-space: pre-wrap">{html.escape(row["completion"])}</pre></td>'
        )
    return f"<p>Step {step}: <i>{html.escape(prompt[-300:])}</i></p><table><tr>{cells}</tr></table>"
