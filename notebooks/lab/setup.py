"""Sets up the Python environment: a virtual one for `make`, or the one a notebook already runs in.

Standard library only, and readable by Pythons that are too old, so that they can be told so.
"""

import sys

OLDEST_PYTHON = (3, 11)


def check_python(version=None):
    version = tuple(version or sys.version_info[:2])
    if version < OLDEST_PYTHON:
        way = "install Python 3.11 or newer and name it, for example `make run PYTHON=python3.12`."
        raise SystemExit(f"Python {version[0]}.{version[1]} is too old: {way}")


check_python()  # before the imports below, which old Pythons lack

import argparse
import contextlib
import importlib.metadata
import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# --no-deps: their metadata asks for an unpublished certifi, and for torchvision, xformers and triton, which a CPU does not need.
UNSLOTH = ["unsloth==2026.10.9", "unsloth_zoo==2026.10.9"]
TORCH_ACCEPTED = ((2, 4), (2, 15))  # Unsloth takes 2.4 to below 2.15: one that is there is kept
# Not needed; but where one before 0.16 is installed, as in Colab, peft raises when it makes an adapter.
TORCHAO = "torchao==0.17.0"
# What a running kernel is made of: it is never replaced.
KERNEL = "ipykernel ipython jupyter_client jupyter_core pyzmq tornado traitlets comm debugpy prompt_toolkit".split()
COLAB, KAGGLE = "COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"  # environment variables of machines that are lent
GIB = 2**30
SHOW_EVERY = 15  # seconds between two lines about an installation, where no line can be rewritten
NO_INSTALL = "GRPO_NO_INSTALL"  # set in the environment where packages came another way: what is there is used as it is
agreed = set()  # replacements that this kernel's user was told of


class SetupError(SystemExit):
    """One sentence that says what is wrong and what to do."""


def requirements():
    """[(name, version, heading)] of requirements.txt; its headings are `exact`, `any` and `make`."""
    found, heading = [], None
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        heading_match = re.match(r"# (exact|any|make):", line)
        pin = re.match(r"([A-Za-z0-9_.-]+)==([^\s;]+)", line)
        if heading_match:
            heading = heading_match.group(1)
        elif pin:
            found.append((pin.group(1), pin.group(2), heading))
    return found


def version_of(name):
    """The installed version of a package, or None."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)


def numbers(version):
    """'2.9.1+cu128' as (2, 9, 1), to compare; () for a package that is not there."""
    return tuple(map(int, re.findall(r"\d+", (version or "").split("+")[0])))


def torch_is_accepted(version):
    """Whether Unsloth accepts an installed torch, such as '2.9.1+cu128'."""
    return TORCH_ACCEPTED[0] <= numbers(version)[:2] < TORCH_ACCEPTED[1]


def missing(strict):
    """Requirements to install: (pinned with dependencies, Unsloth's without).

    strict: every pin exactly, as `make` wants. Otherwise only what the notebooks need, where an
    accepted torch stays, and so does any version of what stands under `# any`.
    """
    wanted = []
    for name, version, heading in requirements():
        have = version_of(name)
        right = have is not None and have.split("+")[0] == version
        if not strict:
            right = right or heading == "make" or (heading == "any" and have is not None)
            right = right or (name == "torch" and torch_is_accepted(have))
        if not right:
            wanted.append(f"{name}=={version}")
    beside = [pin for pin in UNSLOTH if version_of(pin.split("==")[0]) != pin.split("==")[1]]
    if () < numbers(version_of("torchao")) < (0, 16):
        beside.append(TORCHAO)
    return wanted, beside


def check_disk(folder, gib_needed):
    free = shutil.disk_usage(str(folder)).free
    if free < gib_needed * GIB:
        there = f"Only {free / GIB:.1f} GB are free on the disk of {folder}, and the packages need {gib_needed} GB"
        raise SetupError(f"{there}: free some space or move the project to a larger disk.")


def gib_needed():
    """Disk for the packages: on Linux PyPI's torch brings CUDA libraries, 6.2 GB with all the rest."""
    return 10 if shutil.which("nvidia-smi") else 7 if sys.platform == "linux" else 4


def explain(output):
    """One sentence for a failed pip run."""
    if "No module named pip" in output:
        return "This Python has no pip: run `make lab`, which sets up an environment with it."
    if "externally-managed-environment" in output:
        return "This Python is the operating system's: run `make run`, or start Jupyter from a virtual environment."
    if "No space left on device" in output:
        return f"The disk is full: free about {gib_needed()} GB and run this again; nothing is lost."
    if re.search("name resolution|NewConnectionError|Connection refused|unreachable|timed out|ProxyError", output):
        return "The package index cannot be reached: check the network (or PIP_INDEX_URL) and run this again."
    if "No matching distribution" in output:
        name = re.search(r"No matching distribution found for (\S+)|$", output)[1] or "such package"
        python = "that Python is 3.11 to 3.13 (this is {}.{})".format(*sys.version_info)
        return (
            f"The package index offers no {name} for this machine: check the network (or PIP_INDEX_URL), and {python}."
        )
    return "pip failed; its last lines are above."


def pip(python, arguments, log):
    """Runs pip into a log and shows how far it is; on failure shows the log's end and one sentence."""
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *arguments]
    # a terminal and a notebook rewrite one line; elsewhere, such as in CI, there is a new line now and then
    live = sys.stdout.isatty() or "ipykernel" in sys.modules
    start, shown, end = time.monotonic(), 0, ("\r", "") if live else ("", "\n")
    with open(str(log), "a", encoding="utf-8") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
        while process.poll() is None:
            time.sleep(0.5)
            seconds = time.monotonic() - start
            if seconds - shown >= (1 if live else SHOW_EVERY):
                shown = seconds
                print(f"{end[0]}  {seconds:.0f} s  {pip_step(log):<70.70}", end=end[1], flush=True)
        if shown and live:
            print("\r" + " " * 90 + "\r", end="", flush=True)
    if process.returncode:
        output = Path(str(log)).read_text(encoding="utf-8", errors="replace")
        lines = [line for line in output.splitlines() if not line.startswith("WARNING: Location")]
        print("\n".join(lines[-15:]), file=sys.stderr)
        raise SetupError(f"{explain(output)} (the whole log: {log})")


def pip_step(log):
    """What pip does now: its last line of that kind, such as 'Downloading torch-2.13.0….whl (526 MB)'."""
    output = Path(str(log)).read_text(encoding="utf-8", errors="replace")
    steps = re.findall(r"^ *((?:Collecting|Downloading|Building|Installing|Preparing) [^\n]*)", output, re.M)
    return steps[-1] if steps else "starting"


def install(python, wanted, beside, log, constraints=()):
    """Installs pinned packages, then Unsloth's without their dependencies."""
    print(f"Installing {len(wanted) + len(beside)} packages. This takes a few minutes.", flush=True)
    if wanted:
        listed = Path(str(log) + ".constraints")
        listed.write_text("\n".join(constraints) + "\n", encoding="utf-8")
        pip(python, [*wanted, "--constraint", str(listed)], log)
    if beside:
        pip(python, ["--no-deps", *beside], log)


def make_venv(folder):
    """Creates the virtual environment for `make` and installs every pin into it."""
    folder = Path(folder).resolve()
    check_disk(folder.parent, gib_needed())
    started, log = time.monotonic(), folder / "install.log"
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.exists():
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], capture_output=True, text=True)
        if made.returncode:
            print((made.stdout + made.stderr).strip(), file=sys.stderr)
            raise SetupError("Python's venv module is incomplete: install it (on Debian, `apt install python3-venv`).")
    log.write_text("", encoding="utf-8")
    # the new environment's own Python says what it lacks, so that a half-made one is completed
    if subprocess.run([str(python), __file__, "--complete", str(log)]).returncode:
        raise SystemExit(1)  # it has said why
    (folder / ".ready").write_text("", encoding="utf-8")
    print(f"Environment ready in {folder} ({time.monotonic() - started:.0f} s).")


def constraints():
    """For pip: the running kernel and an accepted torch stay, and nothing becomes newer than what was tested."""
    limits = {name: f"<={pin}" for name, pin, _ in requirements() if numbers(version_of(name)) <= numbers(pin)}
    if numbers(version_of("numpy"))[:1] == (1,):  # as Kaggle had it: a newer pyarrow cannot be imported beside it
        limits["pyarrow"] = "<=21.0.0"
    kept = [name for name in KERNEL if version_of(name)] + ["torch"] * torch_is_accepted(version_of("torch"))
    return [name + limit for name, limit in (limits | {name: f"=={version_of(name)}" for name in kept}).items()]


def loaded_versions():
    """The installed version of every package that this kernel has imported."""
    names = importlib.metadata.packages_distributions()
    imported = {dist for module in list(sys.modules) if "." not in module for dist in names.get(module, ())}
    return {name: version_of(name) for name in imported}


def say_what_is_replaced(pins):
    """In a person's own Jupyter nothing is replaced unasked: the first run of the cell says what, the second does it."""
    old = [f"{name} {version_of(name)} → {pin}" for name, pin in (p.split("==") for p in pins) if version_of(name)]
    if old and not agreed.issuperset(old) and not (os.environ.get(COLAB) or os.environ.get(KAGGLE)):
        agreed.update(old)
        way = "Run this cell again to replace them, or use `make lab`, which has an environment of its own"
        raise SetupError(f"The notebooks need other versions than this Python has: {', '.join(old)}. {way}.")


def use_one_card():
    """Several CUDA cards in one process: transformers would split each batch among them (DataParallel), which TRL and
    Unsloth do not support. So all but the first are hidden, before torch looks. A launcher gives each process its own."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if "WORLD_SIZE" in os.environ or (visible is None and not shutil.which("nvidia-smi")):
        return
    if visible is None:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
        visible = ",".join(str(card) for card in range(len(re.findall(r"^GPU ", listed, re.M))))
    first, *others = visible.split(",")
    if others:
        os.environ["CUDA_VISIBLE_DEVICES"] = first
        print(f"This notebook uses one of {len(others) + 1} cards. `make train NPROC={len(others) + 1}` trains on all.")


def ensure_environment():
    """For a notebook's first cell: installs what this kernel's Python lacks, and keeps what it has.

    A complete environment costs milliseconds. Raises SetupError with one sentence where it cannot, and where the kernel
    must be restarted.
    """
    # bitsandbytes warns at every import that an optional kernel could be had from the Hub
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    use_one_card()
    if os.environ.get(COLAB) and not os.environ.get(KAGGLE) and not str(ROOT).startswith("/content/drive"):
        print(
            "Colab deletes outputs/ with the session, and the next notebook runs on another machine. To keep outputs/,"
        )
        print(f"mount Drive, run `!mv {ROOT} /content/drive/MyDrive/` in a cell, and restart the session.")
    wanted, beside = missing(strict=False)
    if not wanted and not beside:
        return
    if os.environ.get(NO_INSTALL):
        print(f"{NO_INSTALL} is set: nothing is installed, though these are wanted: {', '.join(wanted + beside)}")
        return
    say_what_is_replaced(wanted + beside)
    check_disk(Path(sys.prefix), gib_needed())
    log, before = Path(tempfile.gettempdir()) / "grpo-notebooks-install.log", loaded_versions()
    log.write_text("", encoding="utf-8")
    install(sys.executable, wanted, beside, log, constraints())
    importlib.invalidate_caches()
    changed = [name for name, version in before.items() if version_of(name) != version]
    if changed:
        how = "restart the kernel (in Colab: Runtime > Restart session), then run this cell again"
        raise SetupError(f"Installed. This kernel still has the old version of {', '.join(sorted(changed))}: {how}.")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--venv", help="make this virtual environment")
    way.add_argument("--complete", metavar="LOG", help="install what this Python lacks, pip's words to LOG")
    arguments = parser.parse_args()
    if arguments.venv:
        make_venv(arguments.venv)
    elif any(missing(strict=True)):
        install(sys.executable, *missing(strict=True), arguments.complete)


if __name__ == "__main__":
    main()
