"""What a person watches while a run trains: one line, the curves, what is wrong, and a few completions."""

import html
import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lab.files import QUIET, read_jsonl
from lab.read import health, run_record
from lab.show import training_curves
from lab.show.tables import NO_MATH, readable
from lab.train.callbacks import HealthMonitor
from lab.train.recorder import RunRecorder, StatefulCallback

DRAWING_SHARE = 0.02  # of the time: drawing waits until it costs less than that
EVERY = 30  # seconds between two lines in a log file
LINE = {  # how the line shows a metric
    "reward": "reward {:.2f}",
    "completions/mean_length": "tokens {:.0f}",
    "kl": "KL {:.3f}",
    "temperature": "temperature {:.2f}",
}


class LiveView(StatefulCallback):
    """In Jupyter and Colab a line, a figure, a table of findings and samples, each updated in its place.

    A terminal has one line that rewrites itself, a log file a line now and then. Where `GRPO_QUIET` is set it shows the
    end only. Sample completions come every `show_every` steps, none for 0.
    """

    def __init__(self, run: RunRecorder, monitor: HealthMonitor, show_every: int = 20) -> None:
        self.run, self.monitor, self.show_every = run, monitor, show_every
        self.rows: list[dict[str, Any]] = []
        self.displays: dict[str, Any] = {}
        self.samples, self.messages = "", []
        self.drawn_at = self.drawing_time = self.printed_at = 0.0

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.rows = read_jsonl(self.run.folder / "log.jsonl")  # a resumed run shows all of its curve
        self.began, self.first, self.last = time.monotonic(), state.global_step, state.max_steps
        self.notebook, self.quiet = in_notebook(), bool(os.environ.get(QUIET))
        if self.quiet:
            return
        self._show_line("the first step is on its way")
        if self.notebook:
            self._display("messages", "")  # its place is above the figure
            self.run.show_message = self.show_message
        if state.global_step and self.run.is_main_process:
            self.run.tell(f"This run goes on after step {state.global_step}.")

    def show_message(self, text: str) -> None:
        """Shows what the run says under the line, where it is in sight: what is printed stands below all samples."""
        self.messages.append(f'<p class="{NO_MATH}" style="white-space: pre-wrap; margin: 0">{html.escape(text)}</p>')
        self._display("messages", "".join(self.messages))

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if not self.run.is_main_process:
            return
        self.rows.append({"step": state.global_step, **(logs or {})})
        if "reward" not in (logs or {}) or self.quiet:
            return
        self._show_line(self.line(state.global_step, logs))
        if self.show_every and state.global_step % self.show_every == 0:
            self._show_samples(state.global_step)
        if self.notebook and time.monotonic() - self.drawn_at > self.drawing_time / DRAWING_SHARE:
            self._draw()

    def on_train_end(self, args, state, control, **kwargs) -> None:
        if self.run.is_main_process and self.notebook:
            if self.show_every:
                self._show_samples(state.global_step)
            self._draw()

    def line(self, step: int, logs: dict[str, Any]) -> str:
        """Where the run is, how long it will take, and the numbers that matter most."""
        each = (time.monotonic() - self.began) / max(1, step - self.first)
        left = each * (self.last - step)
        parts = [f"step {step} of {self.last}", f"{each:.1f} s a step", f"{timedelta(seconds=round(left))} left"]
        parts += [text.format(float(logs[name])) for name, text in LINE.items() if logs.get(name) is not None]
        if warnings := len(self.monitor.problems()):
            parts.append(run_record.count_of(warnings, "warning"))
        return " · ".join(parts)

    def _show_line(self, text: str) -> None:
        done = self.rows[-1]["step"] if self.rows else self.first
        if self.notebook:
            bar = f'<progress value="{done}" max="{self.last}" style="width: 16em; vertical-align: middle"></progress> '
            self._display("line", bar + html.escape(text))
        elif sys.stdout.isatty():
            print("\r" + text.ljust(110), end="\n" if done >= self.last else "", flush=True)
        elif not self.rows or done >= self.last or time.monotonic() - self.printed_at > EVERY:
            print(text, flush=True)
            self.printed_at = time.monotonic()

    def _display(self, name: str, what: Any) -> None:
        from IPython.display import HTML, display

        what = HTML(what) if isinstance(what, str) else what
        if name in self.displays:
            self.displays[name].update(what)
        else:
            self.displays[name] = display(what, display_id=True)

    def _draw(self) -> None:
        began = time.monotonic()
        record = run_record.record_from_rows(self.rows, read_jsonl(self.run.folder / "events.jsonl"), self.run.record)
        if record.log.empty:
            return
        figure = training_curves.live_figure(record)
        self._display("figure", figure)
        plt.close(figure)
        self._display("findings", findings_html(self.monitor.problems()) + self.samples)
        self.drawn_at, self.drawing_time = time.monotonic(), time.monotonic() - began

    def _show_samples(self, step: int) -> None:
        """The best and the worst completion of the group in which they differ most."""
        table = self.run.completions()
        if not len(table):
            return
        group = table[table["group"] == table.groupby("group")["advantage"].agg(np.ptp).idxmax()]
        picked = group.sort_values("advantage", ascending=False).iloc[[0, -1]].assign(sample=["best", "worst"])
        if self.notebook:
            self.samples = samples_html(step, picked, self.trainer.reward_func_names)
            return
        for row in picked.to_dict("records"):
            head = f"--- step {step}, {row['sample']} of a group (advantage {row['advantage']:+.2f})"
            print(f"\n{head}\n{row['completion']}", flush=True)


def in_notebook() -> bool:
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def findings_html(findings: Sequence[health.Finding]) -> str:
    """The rules that warn, as a table. A healthy run gets a line that says so."""
    return readable(health.findings_table(findings)).to_html() if findings else "<p>Health: no warnings.</p>"


def samples_html(step: int, samples: pd.DataFrame, rewards: Sequence[str]) -> str:
    """A prompt's completions under each other, with their scores. What a model writes is escaped."""
    asked = samples["data/question" if "data/question" in samples else "prompt"].iloc[0]
    table = readable(samples[["sample", "completion", "advantage", *rewards]])
    head = (
        f'<p class="{NO_MATH}" style="white-space: pre-wrap">Step {step}: <i>{html.escape(str(asked)[-1000:])}</i></p>'
    )
    return head + table.to_html()
