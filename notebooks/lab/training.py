"""What runs beside GRPOTrainer: the run's record on disk, and the curve that is drawn while it trains."""

from __future__ import annotations

import importlib.metadata
import json
import time
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PrinterCallback, TrainerCallback

from lab import plots
from lab.files import write_json

PACKAGES = ("torch", "transformers", "trl", "peft", "bitsandbytes", "datasets", "accelerate", "unsloth", "unsloth_zoo")


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def effective(config: Any) -> dict[str, Any]:
    """The configuration as the trainer has it now, which is not always what was asked for."""
    return {name: value for name, value in config.to_dict().items() if "token" not in name or "tokens" in name}


class RunRecorder(TrainerCallback):
    """Writes a run down while it happens: `run.json`, `log.jsonl` and `completions/*.parquet`.

    The Parquet files are in TRL's form (step, prompt, completion, a column a reward, advantage), one
    a training step. TRL's own `log_completions` would print a table a step, and lets an evaluation
    overwrite the training file of its step.
    """

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder, self.about, self.trainer = folder, about, None
        (folder / "completions").mkdir(exist_ok=True)
        self.started = time.time()

    def attach(self, trainer: Any) -> RunRecorder:
        self.trainer = trainer
        trainer.add_callback(self)
        return self

    def _write(self, status: str, **more: Any) -> None:
        record = {"status": status, "seconds": round(time.time() - self.started, 1), **self.about, **more}
        write_json(self.folder / "run.json", record)

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.started = time.time()
        self._write("training", effective=effective(args), versions=versions())

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as sink:
            sink.write(json.dumps({"step": state.global_step, **(logs or {})}) + "\n")
        if "reward" in (logs or {}):
            self._write_completions(state.global_step)

    def _write_completions(self, step: int) -> None:
        kept = self.trainer._logs  # filled by TRL at every step, log_completions or not
        table = {"prompt": kept["prompt"], "completion": kept["completion"], **kept["rewards"], "advantage": kept["advantages"]}
        table |= {name: values for name, values in kept["extra"].items() if len(values) == len(kept["prompt"])}  # from log_extra
        frame = pd.DataFrame({name: list(values) for name, values in table.items()})
        frame.insert(0, "step", step)
        frame.to_parquet(self.folder / "completions" / f"completions_{step:05d}.parquet")

    def finish(self) -> None:
        """Call after training: the record then says that the run is whole."""
        self._write("finished", effective=effective(self.trainer.args), versions=versions(), steps=self.trainer.state.global_step)


class LiveCurve(TrainerCallback):
    """A progress bar with the time that is left, and the reward's curve drawn anew as it grows."""

    def __init__(self, every: int = 5) -> None:
        self.every, self.rows, self.handle, self.bar = every, [], None, None

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        from tqdm.auto import tqdm

        self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc="GRPO", unit="step")

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if "reward" not in (logs or {}):
            return
        self.rows.append({"step": state.global_step, **logs})
        self.bar.set_postfix(reward=f"{float(logs['reward']):.2f}", length=f"{float(logs['completions/mean_length']):.0f}")
        self.bar.update(state.global_step - self.bar.n)
        if len(self.rows) > 1 and state.global_step % self.every == 0:
            self._draw()

    def on_train_end(self, args, state, control, **kwargs) -> None:
        self.bar.close()
        self._draw()

    def _draw(self) -> None:
        from IPython.display import display
        from matplotlib import pyplot

        if not self.rows:
            return
        figure = plots.live_figure(pd.DataFrame(self.rows))
        if self.handle is None:
            self.handle = display(figure, display_id=True)
        else:
            self.handle.update(figure)
        pyplot.close(figure)
