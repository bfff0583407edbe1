"""`make train NPROC=2`: notebook 03 as a script, started in several processes by torchrun or accelerate.

    python -m lab.train.launch --nproc 2 --set MAX_STEPS=20          # gloo on a CPU, DDP on GPUs
    python -m lab.train.launch --nproc 8 --config zero3              # sharded weights; lab/train/configs/ says when

The script has the notebook's cells as they are; `--set` goes where papermill would put its parameters.
"""

import argparse
import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from lab.files import ROOT, STOP, output_folder, relative, write_text

CONFIGS = Path(__file__).with_name("configs")
# Of several processes the first one prints; errors come from all.
HEAD = '''"""Notebook {notebook} as a script. Made by lab.train.launch; change the notebook, not this file."""

import os
import sys

if int(os.environ.get("RANK", "0")):
    sys.stdout = open(os.devnull, "w")'''


def launch_training(nproc: int, config: str, parameters: dict[str, Any]) -> int:
    """Exports notebook 03 and runs it; returns the exit status."""
    if config != "ddp":  # Unsloth's loader and 4-bit weights are not sharded here
        more = {"load_in_4bit": False, **parameters.get("MORE_SETTINGS", {})}
        parameters = {**parameters, "BACKEND": "trl", "MORE_SETTINGS": more}
    script = export_script(output_folder(parameters.get("OUTPUTS", "outputs")) / "train.py", parameters)
    how = config if torch.cuda.is_available() else "gloo on the CPU"
    print(f"{relative(script)}: {nproc} process{'es' * (nproc > 1)}, {how}", flush=True)
    # in a session of its own: torchrun would end its processes at a Ctrl-C, within a step
    where = {"env": launch_environment(nproc), "cwd": ROOT / "notebooks", "start_new_session": True}
    process = subprocess.Popen(launch_command(script, nproc, config), **where)
    return wait_for_end(process, script.parent / "run" / STOP)


def export_script(path: Path, parameters: dict[str, Any], notebook: str = "03_train_grpo") -> Path:
    """Writes the notebook's code cells as a script, with these values after its parameters cell, which must have them."""
    import nbformat

    parts = [HEAD.format(notebook=notebook)]
    for cell in nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", 4).cells:
        if cell.cell_type == "code":
            parts.append(cell.source)
        if "parameters" in cell.metadata.get("tags", []):
            known = [node.targets[0].id for node in ast.parse(cell.source).body if isinstance(node, ast.Assign)]
            if unknown := [name for name in parameters if name not in known]:
                raise ValueError(f"{notebook} has no parameter {unknown[0]!r}; it has: {', '.join(known)}.")
            values = [f"{name} = {value!r}" for name, value in parameters.items()]
            parts.append("\n".join(["# set for this launch", *values]))
    return write_text(path, "\n\n\n".join(parts) + "\n")


def launch_command(script: Path, nproc: int, config: str) -> list[str]:
    if torch.cuda.is_available():
        how = ["accelerate.commands.launch", "--config_file", f"{CONFIGS / config}.yaml", "--num_processes", str(nproc)]
    else:  # `accelerate launch --cpu --num_processes 2` silently runs one process
        how = ["torch.distributed.run", "--standalone", "--nproc_per_node", str(nproc)]
    return [sys.executable, "-m", *how, str(script)]


def launch_environment(nproc: int) -> dict[str, str]:
    """What the processes find in their environment. On a CPU they share its cores instead of fighting for them."""
    # PYTHONPATH stays: there are machines whose packages lie in a folder of their own
    paths = [str(ROOT), str(ROOT / "notebooks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if not torch.cuda.is_available():
        share, asked = max(1, (os.cpu_count() or 1) // nproc), os.environ.get("OMP_NUM_THREADS", "")
        threads = min(share, int(asked)) if asked.isdigit() and int(asked) else share
        found |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": str(threads)}
    return found


def wait_for_end(process: subprocess.Popen, stop: Path) -> int:
    """Until it ends. The first Ctrl-C asks for an end after the step by a file; the second one ends it at once."""
    asked = False
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            if asked or not stop.parent.is_dir():
                process.terminate()
            else:
                print("Stopping after this step. Once more: stop at once.", flush=True)
                stop.touch()
            asked = True


def parse_assignment(text: str) -> tuple[str, Any]:
    """`NAME=value` with a Python value; anything else is a string."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=value")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=int, default=1, help="processes: one a GPU, or shares of the CPU")
    configs = ["ddp", "fsdp", "zero3"]
    parser.add_argument("--config", default="ddp", choices=configs, help="on a CPU it is always gloo")
    parser.add_argument("--set", nargs="*", default=[], type=parse_assignment, metavar="NAME=value", help="parameters")
    arguments = parser.parse_args()
    try:
        sys.exit(launch_training(arguments.nproc, arguments.config, dict(arguments.set)))
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
