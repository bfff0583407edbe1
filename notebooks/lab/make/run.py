"""`make run`: the notebooks in order through papermill, then the evidence in one table."""

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from lab.files import QUIET, ROOT, Row, output_folder, read_json, relative, write_json

ROAD = ("01_prepare_data", "02_design_rewards", "03_train_grpo", "04_plot_training", "05_merge_and_export")
EVERY = ("00_grpo_from_scratch", *ROAD, "06_code_rewards", "07_training_recipes")  # `make run-all`
# Minutes of each on the starter policy, on two cores of an AMD EPYC that nobody else used, and that machine's `speed`.
MINUTES = dict(zip(EVERY, (2, 0.2, 0.8, 4.2, 0.3, 3.5, 5, 0.5)))
SPEED = 740.0
RUNS = {"03_train_grpo": "run", "06_code_rewards": "code/run"}  # the folder that a notebook trains in
REWARD_KEY = '"reward": '  # one in every training row of a run's log


class NotebookError(RuntimeError):
    """A notebook stopped; the message names it, the cell and the error."""


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def speed(seconds: float = 1.0) -> float:
    """Rounds a second, on one core, of work like a small policy's: matrix products and softmaxes for 64 completions."""
    import torch

    torch.set_num_threads(1)
    rows, weights = torch.ones(64, 256), torch.ones(256, 256) / 256
    rounds, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        for _ in range(12):
            rows = torch.softmax(rows @ weights, -1)
        rounds += 1
    return rounds / spent


def expected_time(names: Sequence[str], model: str | None) -> str:
    """How long these notebooks will take here, by a second of measuring; nothing where that says nothing about it."""
    if model not in (None, "starter") or shutil.which("nvidia-smi"):
        return ""
    minutes = max(1, round(sum(MINUTES[name] for name in names) * SPEED / speed()))
    return f" This takes about {minutes} minute{'s' * (minutes > 1)} on this machine."


@contextlib.contextmanager
def progress_line(name: str, folder: Path) -> Iterator[Callable[[], float]]:
    """Says on the terminal how long a notebook has been running, and how far its training is; yields its seconds."""
    log, began = folder / RUNS.get(name, "") / "log.jsonl", time.time()
    stop, live = threading.Event(), sys.stdout.isatty()
    seconds = lambda: time.time() - began

    def tick() -> None:
        while not stop.wait(1 if live else 30):
            line = f"  {name}  {clock(seconds())}"
            if name in RUNS and log.exists() and log.stat().st_mtime > began:
                total = read_json(log.with_name("run.json"), name)["requested"]["max_steps"]
                line += f"  training step {log.read_text(encoding='utf-8').count(REWARD_KEY)} of {total}"
            print("\r" * live + line, end="" if live else "\n", flush=True)

    thread, how = threading.Thread(target=tick, daemon=True), "  stopped"
    thread.start()
    try:
        yield seconds
        how = ""
    finally:
        stop.set()
        thread.join()
        print(("\r" + " " * 60 + "\r") * live + f"  {name}  {clock(seconds())}{how}", flush=True)


def execute_notebook(name: str, folder: Path, parameters: Row) -> float:
    """Runs one notebook into `executed/` under the output folder; returns its seconds.

    Raises NotebookError; the copy up to the failing cell, and whatever was written, stay.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")  # this environment's kernel, not one in the home folder
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    os.environ.setdefault(QUIET, "1")  # nobody watches these notebooks: the live view draws its last state only
    copy = folder / "executed" / f"{name}.ipynb"
    copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        with progress_line(name, folder) as seconds, tempfile.TemporaryDirectory(prefix="grpo-") as sockets:
            papermill.execute_notebook(
                ROOT / "notebooks" / f"{name}.ipynb",
                copy,
                parameters={"OUTPUTS": str(folder), **parameters},
                cwd=ROOT / "notebooks",
                kernel_name="python3",
                progress_bar=False,
                # sockets of its own: nobody else can join in, and two runs at once do not meet
                config=Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}}),
            )
    except PapermillExecutionError as error:
        raise NotebookError(
            f"{name} stopped in cell {error.cell_index + 1} with {error.ename}: {error.evalue}\n\n"
            f"{error.source.strip()}\n\nThe executed copy up to there: {relative(copy)}\n"
            f"What was made before stays in {relative(folder)}."
        ) from error
    return seconds()


def run_notebooks(
    names: Sequence[str], outputs: str | Path, parameters: Mapping[str, Row] | None = None
) -> dict[str, float]:
    """Runs the notebooks in order; returns the seconds of each. Parameters: by notebook name."""
    folder = output_folder(outputs)
    seconds = {name: execute_notebook(name, folder, (parameters or {}).get(name, {})) for name in names}
    if ROAD[-1] in names:
        record = read_json(folder / "evaluation.json", ROAD[-1])
        record["seconds"] |= {name: round(value, 1) for name, value in seconds.items()}
        write_json(folder / "evaluation.json", record)
    return seconds


def evidence(folder: Path, seconds: dict[str, float]) -> str:
    """The table at the end: base against merged, times, and where things lie."""
    from lab.measure.verdicts import summary_table

    evaluation = read_json(folder / "evaluation.json", ROAD[-1])
    about = read_json(folder / "run" / "run.json", "03_train_grpo")
    table = summary_table(evaluation)[["base", "merged", "difference", "95 % interval"]].to_string()
    all_seconds, place = {**seconds, "all": sum(seconds.values())}, relative(folder)
    times = "\n".join(f"  {name:<22}{clock(value):>6}" for name, value in all_seconds.items())
    text = f"""
Held-out problems, same prompts for both (n = {evaluation["n"]}); model: {about["model"]["shown"]}

{table}

{evaluation["said"]}

{times}

  merged model   {place}/merged, with its card; proved in {place}/merge_proof.json
  figures        {place}/figures
  completions    {place}/completions.html, to open in a browser
  answers        {place}/evaluation.html, before and after, to open in a browser
  evaluation     {place}/evaluation.json
  notebooks run  {place}/executed"""
    if "06_code_rewards" in seconds:
        text += f"\n\n{code_evidence(folder)}"
    if "00_grpo_from_scratch" in seconds:
        text += f"\n\n{scratch_evidence(folder / 'from_scratch')}"
    return text


def code_evidence(folder: Path) -> str:
    """pass@k of notebook 06, before and after."""
    from lab.measure.code_scores import pass_at_k_table

    record = read_json(folder / "code" / "evaluation.json", "06_code_rewards")
    asked = f"Held-out problems of {record['source']}, {record['samples']} samples each (n = {record['n']})"
    return f"{asked}; model: {record['model']}\n\n{pass_at_k_table(record).drop(columns='n').to_string()}"


def scratch_evidence(folder: Path) -> str:
    """Notebook 00: how near its loss is to TRL's, and what its loop taught."""
    made_by = "00_grpo_from_scratch"
    compared, record = (read_json(folder / name, made_by) for name in ("equal_to_trl.json", "evaluation.json"))
    loss, gradient = (max(one[f"{what} difference"] for one in compared) for what in ("loss", "gradient"))
    right = record["rewards"]["correctness_reward"]
    asked = f"{record['samples']} samples each (n = {record['problems']})"
    differences = f"largest differences {loss:.0e} and {gradient:.0e}"
    return f"""GRPO from scratch: {len(compared)} losses and gradients compared with TRL's, {differences}
  held-out problems right, {asked}: {right["before"]:.1%} before, {right["after"]:.1%} after its loop"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outputs", default="outputs", help="folder for everything written")
    parser.add_argument("--all", action="store_true", help="the notebooks beside the road too")
    model = "MODEL of notebooks 01 to 03: starter, a Hub name or an absolute path (default: auto)"
    parser.add_argument("--model", help=model)
    parser.add_argument("--upto", choices=ROAD, help="the last notebook to run")
    arguments = parser.parse_args()
    names = EVERY if arguments.all else ROAD
    if arguments.upto:
        names = ROAD[: ROAD.index(arguments.upto) + 1]
    where = f"Running {len(names)} notebook{'s' * (len(names) > 1)}; everything is written under {arguments.outputs}/."
    print(where + expected_time(names, arguments.model), flush=True)
    parameters = {name: {"MODEL": arguments.model} for name in ROAD[:3]} if arguments.model else None
    try:
        seconds = run_notebooks(names, arguments.outputs, parameters)
    except NotebookError as error:
        raise SystemExit(f"\n{error}") from None
    if ROAD[-1] in seconds:
        print(evidence(output_folder(arguments.outputs), seconds))


if __name__ == "__main__":
    main()
