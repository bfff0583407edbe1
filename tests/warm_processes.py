"""Processes that start warm: `import unsloth` takes nine seconds of a processor, and the tests start many.

A server imports the libraries once and forks a child whenever one is asked for. Nothing of this project is imported
there, and a notebook that does not import unsloth gets a cold kernel, as a user's do.
"""

import multiprocessing
import os
import sys
from pathlib import Path

from jupyter_client.provisioning import local_provisioner

from lab.files import ROOT
from lab.make import run

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["unsloth", "trl", "trl.trainer.grpo_trainer", "peft", "datasets", "ipykernel.kernelapp"])
PROJECT = ("lab", "rewards", "scoring", "sandbox", "tests")
cold_kernel = local_provisioner.launch_kernel


class Kernel:
    """A forked process with what jupyter_client expects of a Popen."""

    stdin = stdout = stderr = None

    def __init__(self, command, cwd=None, env=None, **_):
        arguments = command[command.index("ipykernel_launcher") :]
        ready, told = SERVER.Pipe(duplex=False)
        process = SERVER.Process(
            target=serve_kernel, args=(told, arguments, cwd or os.getcwd(), dict(env)), daemon=True
        )
        process.start()
        ready.recv()  # it leads a process group of its own: a signal to that group must not reach the tests
        self.pid, self.wait, self.kill, self.terminate = process.pid, process.join, process.kill, process.terminate
        self.sentinel = process.sentinel
        self.poll = lambda: process.exitcode
        self.send_signal = lambda number: os.kill(process.pid, number)


def serve_kernel(told, arguments, cwd, environment):
    os.setsid()
    told.send("ready")
    told.close()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment, JPY_PARENT_PID=str(os.getppid()))  # with that process it ends
    sys.argv = arguments
    for name in [name for name in sys.modules if name.partition(".")[0] in PROJECT]:
        del sys.modules[name]  # this module brought them: the notebook imports its own
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() not in (ROOT, ROOT / "notebooks")]
    from ipykernel import kernelapp

    kernelapp.launch_new_instance()


def run_notebooks(names, folder, parameters=None):
    """`lab.make.run.run_notebooks` with warm kernels."""

    def execute(name, *arguments):
        text = (ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
        local_provisioner.launch_kernel = Kernel if "from unsloth import" in text else cold_kernel
        return execute_notebook(name, *arguments)

    execute_notebook, run.execute_notebook = run.execute_notebook, execute
    try:
        return run.run_notebooks(names, folder, parameters)
    finally:
        run.execute_notebook, local_provisioner.launch_kernel = execute_notebook, cold_kernel
