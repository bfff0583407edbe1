"""`make gpu-check`: does everything work on this CUDA card, and what does it cost there? Ten minutes, offline.

Each part runs in a process of its own with its own log and time limit: one failure hides nothing. Parts that do not fit
into the minutes are ended or left out, and the record says so. `--parts` adds them later.

`environment`    driver, bitsandbytes (NF4 there and back), Unsloth, the pinned versions.
`model`          a model of Qwen2.5-1.5B's shape with random weights and the starter policy's tokenizer, made here.
`Unsloth, bf16`  20 steps of notebook 03 on it, 4-bit LoRA: seconds, tokens, memory. `TRL, bf16`: the same settings with
                 TRL, PEFT and bitsandbytes alone.
`merge`          notebook 05 on what `Unsloth, bf16` trained: the merge and its proof.
`notebooks`      01 to 05 on the starter policy, in 4 bit, with the evidence that `make run` ends with.
`Unsloth, fp16, killed and resumed`   six steps, with SIGKILL in the middle; not timed.
`settings`       what Unsloth's own GRPOConfig makes of every preset.

Without a CUDA card this is a rehearsal: the same parts on the CPU with a model of two layers, in 32 bits, except for
`notebooks`, which is `make run` there. Its figures say nothing about a GPU, and `--keep` does not keep them.

    make gpu-check PY=python3                                with a Python as it is, where packages came as wheels
    make gpu-check ARGS="--parts merge notebooks --keep"     these again, into the same record, kept with the benchmarks
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[3]), str(Path(__file__).resolve().parents[2])]

from lab.files import QUIET, ROOT, Row, read_json, relative, write_json, write_text
from lab.make import gpu_check_parts as work
from lab.make.gpu_check_parts import CARD, MADE_BY, UNTIL, card
from lab.setup import NO_INSTALL
from lab.show.tables import markdown_table

RESULTS = ROOT / "tests/benchmarks/results"
GB_OF_DISK = 15  # for models, checkpoints and merged models on a card
COLUMNS = ("", "seconds a step", "generated tokens a second", "trained tokens a second", "share of generating")
COLUMNS += ("peak memory", "steps", "reward, first and last step")


@dataclass(frozen=True)
class Part:
    """A part of the check; `work` is called with the folder. `makes`: folders of an earlier check that it replaces."""

    name: str
    work: Callable[[Path], Row] | None
    limit: int  # seconds
    needs: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()


def all_parts() -> list[Part]:
    """Those of this machine, in the order in which they run."""
    kind, steps, short = work.main_precision(), work.size().steps, work.size().short
    other = "fp16" if kind == "bf16" else kind  # with one precision only, a resumed run is still to be seen

    def timed(backend: str) -> Part:
        training = partial(work.time_training, backend=backend, kind=kind, steps=steps)
        return Part(f"{work.NAMES[backend]}, {kind}", training, 300, ("model",), (f"{backend}-{kind}",))

    killed = partial(work.train_killed_and_resumed, backend="unsloth", kind=other, steps=short)
    return [
        Part("environment", work.check_environment, 180),
        Part("model", work.make_model, 180, makes=("base", "inputs")),
        timed("unsloth"),
        timed("trl"),
        Part("merge", work.merge_and_prove, 300, (f"Unsloth, {kind}",)),
        *([Part("notebooks", work.run_starter_road, 480, makes=("road",))] if card() else []),
        Part(f"Unsloth, {other}, killed and resumed", killed, 300, ("model",), ("killed",)),
        Part("settings", work.check_unsloth_settings, 180),
    ]


def choose_parts(parts: list[Part], names: list[str] | None, done: Sequence[str] = ()) -> list[Part]:
    """The parts of these names with what they need and is not done. Raises SystemExit for a name that there is not."""
    known = [part.name for part in parts]
    wanted = set(names or known)
    if unknown := sorted(wanted.difference(known)):
        raise SystemExit(f"There is no part {unknown[0]!r} on this machine: there are {'; '.join(known)}.")
    for part in reversed(parts):
        wanted |= set(part.needs).difference(done) if part.name in wanted else set()
    return [part for part in parts if part.name in wanted]


def slug(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def part_environment(folder: Path, name: str, seconds: float) -> dict[str, str]:
    """Offline, nothing installed, nothing sent, and compiled code where it can be deleted."""
    paths = [str(ROOT), str(ROOT / "notebooks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    compiled, on = str(folder / "compiled" / name), ("HF_HUB_OFFLINE", NO_INSTALL, "UNSLOTH_DISABLE_STATISTICS", QUIET)
    own = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
    own |= {"UNSLOTH_COMPILE_LOCATION": compiled, CARD: json.dumps(card()), UNTIL: str(time.time() + seconds)}
    return {**os.environ, **dict.fromkeys(on, "1"), **own}


def run_part(part: Part, folder: Path, seconds: float) -> Row:
    """Starts the part's process and waits: its result, or why there is none."""
    for name in part.makes:
        shutil.rmtree(folder / name, ignore_errors=True)
    log, result = folder / f"{slug(part.name)}.log", folder / f"{slug(part.name)}.json"
    result.unlink(missing_ok=True)
    began = time.monotonic()
    command = [sys.executable, str(Path(__file__).resolve()), "--child", part.name, "--folder", str(folder)]
    environment = part_environment(folder, slug(part.name), seconds)
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, start_new_session=True, env=environment)
        try:
            code = process.wait(seconds)
            why = f"exit code {code}: {last_words(log)}" if code else ""
        except subprocess.TimeoutExpired:
            why = f"it was ended after {seconds:.0f} s: {last_words(log)}"
        finally:
            end_process(process.pid)
            process.wait()
    found = read_json(result, MADE_BY) if result.exists() and not why else {}
    why = why or found.pop("failed", "") or ("" if found else "it left no result")
    status, took = "failed" if why else "ok", round(time.monotonic() - began, 1)
    return {"status": status, "took": took, "why": why, "log": relative(log), "found": found}


def end_process(pid: int) -> None:
    """Ends a part's process with all that it started: kernels, servers and checks have sessions of their own."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def last_words(log: Path) -> str:
    """The last line of a log that names an error, else the last one."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    return (errors or lines or ["it printed nothing"])[-1][:300]


def run_check(parts: list[Part], folder: Path, minutes: float, record: Row) -> Row:
    """Runs the parts one after the other, and writes the record after each, so that a stop loses nothing."""
    ends = time.monotonic() + 60 * minutes
    for part in parts:
        left = ends - time.monotonic()
        why = "" if left >= 5 else "the time was up: --minutes gives more"
        why = next((f"it needs {name}" for name in part.needs if name not in done_parts(record)), why)
        print(f"  {part.name} …", flush=True)
        not_run = {"status": "not run", "took": 0.0, "why": why, "log": "", "found": {}}
        outcome = not_run if why else run_part(part, folder, min(part.limit, left))
        record["machine"] |= outcome["found"].get("machine", {})
        record["parts"][part.name] = outcome
        try:
            write_json(folder / "check.json", record)
            write_text(folder / "check.md", gpu_report(record))
        except OSError as error:  # the table is printed at the end all the same
            print(f"  the record could not be written: {error}", flush=True)
        why = f": {outcome['why']}" if outcome["why"] else ""
        print(f"  {part.name}: {outcome['status']}, {outcome['took']:.0f} s{why}", flush=True)
    return record


def done_parts(record: Row) -> list[str]:
    return [name for name, one in record["parts"].items() if one["status"] == "ok"]


def earlier_record(path: Path) -> Row | None:
    """The record of an earlier check on this machine's card, to add to; None where there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        record = read_json(path, MADE_BY)
        if record["rehearsal"] is (not card()) and record["machine"].get("gpu") == card().get("gpu"):
            return record
    return None


def gpu_report(record: Row) -> str:
    """The record as a page to read."""
    about, parts = record["machine"], record["parts"]
    where = about.get("gpu", "an unnamed card")
    if record["rehearsal"]:
        where = f"{about.get('cpu', 'this machine')}, no CUDA card: **a rehearsal, no figure of a GPU**"
    versions = ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items())
    text = [f"# GPU check: {where}", "", f"{record['date']}, made by `make gpu-check`. {versions}", ""]
    lines = [(name, one["status"], f"{one['took']:.0f} s", one["why"]) for name, one in parts.items()]
    text += markdown_table(("part", "", "took", "why"), lines)
    found = {name: one["found"] for name, one in parts.items()}
    if runs := [training_row(name, one) for name, one in found.items() if "seconds_a_step" in one]:
        text += ["", "## Training", "", *markdown_table(COLUMNS, runs)]
    for name, one in found.items():
        if "page" in one:
            text += ["", f"## {name[0].upper()}{name[1:]}", "", *one["page"]]
    return "\n".join(text) + "\n"


def training_row(name: str, run: Row) -> tuple:
    """Times are figures only of the runs that are timed: the others are short, and save checkpoints."""
    forms = {"seconds_a_step": ".2f", "generated_tokens_a_second": ",.0f", "trained_tokens_a_second": ",.0f"}
    forms["generating_share"] = ".0%"
    times = [format(run[figure], form) if run["timed"] else "–" for figure, form in forms.items()]
    peak = run["peak"]
    memory = f"{peak['bytes'] / 1e9:.2f} GB of {'tensors' if peak['of'] == 'card' else 'the process'}"
    memory += f", {peak['reserved'] / 1e9:.2f} reserved" if "reserved" in peak else ""
    steps = f"{run['steps']} ({run['steps_timed']} timed)" if run["timed"] else run["steps"]
    return (name, *times, memory, steps, " → ".join(f"{value:.3f}" for value in run["reward"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    only = "these only, with what they need and is not there yet; added to the record"
    kept, place = "the record into tests/benchmarks/results/ too, as gpu.json", ROOT / "outputs/gpu-check"
    parser.add_argument("--parts", nargs="+", metavar="PART", help=only)
    parser.add_argument("--minutes", type=float, default=10, help="then it ends, whatever still runs (default: 10)")
    parser.add_argument("--folder", type=Path, default=place, help="for models, logs and the record")
    parser.add_argument("--keep", action="store_true", help=kept)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.child:  # one part, in its process
        (part,) = [part for part in all_parts() if part.name == arguments.child]
        write_json(folder / f"{slug(part.name)}.json", part.work(folder))
        return
    empty = {"rehearsal": not card(), "machine": dict(card()), "parts": {}}
    record = (arguments.parts and earlier_record(folder / "check.json")) or empty
    record["date"] = time.strftime("%Y-%m-%d")
    parts = choose_parts(all_parts(), arguments.parts, done_parts(record))
    if not card():
        print("No CUDA card: a rehearsal on the CPU with a model of two layers. Its figures say nothing about a GPU.")
    elif shutil.disk_usage(folder).free < GB_OF_DISK * 1e9:
        raise SystemExit(f"It needs {GB_OF_DISK} GB of disk at {folder}: free some, or name another --folder.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the parts' processes are not left behind
    try:
        run_check(parts, folder, arguments.minutes, record)
    except KeyboardInterrupt:
        print("\nStopped. What was done:")
    print(f"\n{gpu_report(record)}\nkept in {relative(folder / 'check.json')} and {relative(folder / 'check.md')}")
    if arguments.keep and card():  # a rehearsal's figures have no place there
        write_json(RESULTS / "gpu.json", record)
        write_text(RESULTS / "gpu.md", gpu_report(record))
        print(f"and as gpu.json and gpu.md in {relative(RESULTS)}")
    raise SystemExit(len(done_parts(record)) < len(record["parts"]))


if __name__ == "__main__":
    main()
