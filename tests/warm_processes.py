"""Processes that start warm: `import unsloth` takes nine seconds of a processor, and the tests start many.

One server for all test processes imports the libraries once. A command `warm_python()` stands for the interpreter:
it asks the server for a fork of itself, which runs the script or module with the command's files, folder,
environment and arguments. Signals and the exit code pass through. Nothing of this project is imported beforehand.
"""

import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PRELOAD = ("unsloth", "trl", "trl.trainer.grpo_trainer", "peft", "datasets", "ipykernel.kernelapp")
RELAYED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def warm_python():
    """The command, as a path; the first caller of a test session starts its server."""
    name = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    folder = Path(tempfile.gettempdir()) / f"warm-{name[:16]}"
    folder.mkdir(exist_ok=True)
    command = folder / "python"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not command.exists():
            address = str(folder / "socket")
            serve = [sys.executable, __file__, "serve", address, str(owner)]
            with (folder / "log").open("w") as log:
                subprocess.run(serve, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
            command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{__file__}" run "{address}" "$0" "$@"\n')
            command.chmod(0o755)
    return str(command)


def run_notebooks(names, folder, parameters=None, cold=()):
    """`lab.make.run.run_notebooks` with warm kernels, except for the notebooks named in `cold`."""
    from jupyter_client.provisioning import local_provisioner

    from lab.make import run

    def execute(name, *arguments):
        local_provisioner.launch_kernel = start_cold if name in cold else start_warm
        return execute_notebook(name, *arguments)

    def start_warm(command, **more):
        return start_cold([warm_python(), *command[1:]], **more)

    start_cold, execute_notebook, run.execute_notebook = local_provisioner.launch_kernel, run.execute_notebook, execute
    try:
        return run.run_notebooks(names, folder, parameters)
    finally:
        run.execute_notebook, local_provisioner.launch_kernel = execute_notebook, start_cold


# The server


def serve(address, owner):
    """Forks a child for each request, tells its exit code, and ends with the process `owner`."""
    if os.fork():
        os._exit(0)  # no child of the tests, some of which count their own
    os.setsid()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address + ".new")
    for module in PRELOAD:
        __import__(module)
    listening.listen(16)
    os.rename(address + ".new", address)
    children = {}  # connection: (process, its pid file)
    while Path(f"/proc/{owner}").exists():
        waited = [listening, *children, *(ended for _, ended in children.values())]
        for ready in select.select(waited, [], [], 1)[0]:
            if ready is listening:
                connection = listening.accept()[0]
                if (pid := fork_child(listening, connection, children)) is not None:
                    children[connection] = pid, os.pidfd_open(pid)
                    connection.send(str(pid).encode())
            elif ready in children:  # a signal to relay, or the end of who asked
                number = ready.recv(1)
                signal_child(children[ready][0], number[0] if number else signal.SIGKILL)
                if not number:
                    close_child(children, ready)
            elif connection := next((one for one, (_, ended) in children.items() if ended == ready), None):
                code = os.waitstatus_to_exitcode(os.waitpid(children[connection][0], 0)[1])
                connection.send(str(code).encode())
                close_child(children, connection, waited=True)
    shutil.rmtree(Path(address).parent)


def signal_child(pid, number):
    try:
        os.killpg(pid, number)  # the child leads a session of its own
    except ProcessLookupError:
        pass


def close_child(children, connection, waited=False):
    pid, ended = children.pop(connection)
    if not waited:
        os.waitpid(pid, 0)
    os.close(ended)
    connection.close()


def fork_child(listening, connection, children):
    try:
        text, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        request = json.loads(text)
    except (OSError, ValueError):  # who asked is gone again
        return connection.close()
    if pid := os.fork():
        for file in files:
            os.close(file)
        return pid
    try:
        os.setsid()
        listening.close()
        for other, (_, ended) in children.items():
            other.close()
            os.close(ended)
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        run_child(**request)
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
        if isinstance(stopped.code, str):
            print(stopped.code, file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    finish(code)


def finish(code):
    """As the interpreter's end: threads, exit handlers, buffers."""
    import atexit
    import threading

    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)


def run_child(arguments, folder, environment, executable):
    import random
    import runpy

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if "JPY_PARENT_PID" in environment:  # a kernel ends with its parent
        os.environ["JPY_PARENT_PID"] = str(os.getppid())
    sys.executable = executable  # what it starts is warm too
    random.seed()
    sys.path[:1] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, folder)
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


# Who asks


class Child:
    """A fork of the server that runs a script or a module, with the given files as its input, output and errors."""

    def __init__(self, arguments, address=None, executable=sys.executable, files=(0, 1, 2)):
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        address, self.exitcode = address or str(Path(warm_python()).with_name("socket")), None
        for _ in range(1200):  # it may still be importing
            try:
                self.server.connect(address)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.1)
        request = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
        socket.send_fds(self.server, [json.dumps({**request, "executable": executable}).encode()], files)
        self.pid = int(self.server.recv(16))

    def signal(self, number):
        self.server.send(bytes([number]))

    def join(self, timeout=None):
        if self.exitcode is None and select.select([self.server], [], [], timeout)[0]:
            self.exitcode = int(self.server.recv(16) or 1)

    def is_alive(self):
        self.join(0)
        return self.exitcode is None


def run(address, executable, arguments):
    """Runs a script or a module in a fork of the server; anything else in a cold interpreter."""
    wanted = [one for one in arguments if one not in ("-u", "-Xfrozen_modules=off")]
    if not wanted or wanted[0].startswith("-") and wanted[0] != "-m":
        os.execv(sys.executable, [sys.executable, *arguments])
    signal.pthread_sigmask(signal.SIG_BLOCK, RELAYED)
    child = Child(wanted, address, executable)
    for number in RELAYED:
        signal.signal(number, lambda number, _: child.signal(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, RELAYED)
    child.join()
    if child.exitcode < 0:
        if child.exitcode != -signal.SIGKILL:
            signal.signal(-child.exitcode, signal.SIG_DFL)
        os.kill(os.getpid(), -child.exitcode)
    sys.exit(child.exitcode)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        run(sys.argv[2], sys.argv[3], sys.argv[4:])
