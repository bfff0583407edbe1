"""The sandbox against the attacks of attacks.py, with all layers and without those that some kernels lack.

Each property is checked from outside: by the folder, the listeners, the signals and the processes, not by
what the completion says. `test_check_sees_a_harm` and its kin run a part of the same attacks with no sandbox at
all, to show that the checks would see them.
"""

import dataclasses
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest

from sandbox import Sandbox
from tests.sandbox.attacks import DONE, DOUBLE_TEST, FORGERIES, HARMS, OWN_ARGUMENT_TEST, Attack

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is Linux's")

SETUPS = {"all_layers": (), "no_namespaces_no_landlock": ("namespaces", "landlock")}
# Seconds of work, by kind or name, else 1; what sleeps is stopped after three times that.
LIMITS = {"resource": 0.5, "sockets": 0.5}
SLACK = 4.0  # seconds that a busy machine may add to a job's limit
UNLOADABLE = {"unparsable_parentheses", "unparsable_depth", "unparsable_bytes", "go_on_as_the_worker"}
HONEST = '    """{secret}"""\n    kept = "{secret}"\n    return 2 * n\n'  # its payload is what a later job may look for
HARM_TEST = """
def check(candidate):
    try:
        got = str(candidate(7))
    except Exception:
        got = ""
    assert "{secret}" not in got and "{done}" not in got
"""


class World:
    """What an attack could reach, and what it did there."""

    def __init__(self):
        self.home = Path(tempfile.mkdtemp(prefix="attacks-"))
        self.home.chmod(0o755)  # pytest's own folders are closed to other users: a refusal would prove nothing
        self.secret = f"kept-private-{secrets.token_hex(8)}"
        (self.home / "secret.txt").write_text(self.secret)
        os.environ["SANDBOX_ATTACKS_KEY"] = self.secret
        self.folder, self.path = self.home / "folder", self.home / "listener"
        self.tcp = listener(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        port = self.tcp.getsockname()[1]
        self.listeners = {
            "TCP": self.tcp,
            "UDP": listener(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", port)),
            "Unix socket": listener(socket.AF_UNIX, socket.SOCK_STREAM, str(self.path)),
            "abstract socket": listener(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.path}"),
        }
        self.path.chmod(0o777)
        self.places = {
            "SECRET_FILE": self.home / "secret.txt",
            "FOLDER": self.folder,
            "PORT": port,
            "UNIX": self.path,
            "CALLER": os.getpid(),
        }
        self.signals, self.mark = [], new_mark()
        self.handler = signal.signal(signal.SIGUSR1, lambda number, frame: self.signals.append(number))
        self.renew()

    def renew(self):
        """The folder as it was."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.folder.chmod(0o777)  # whatever the umask: only the sandbox forbids to write here
        (self.folder / "canary.txt").write_text("the canary sings")
        (self.folder / "canary.txt").chmod(0o666)
        (self.folder / "planted.py").write_text("")
        self.before = snapshot(self.folder)

    def arm(self, attack: Attack) -> str:
        self.mark = new_mark()
        return attack.armed({**self.places, "MARK": self.mark})

    def harms(self, came_back: str) -> list[str]:
        """What went wrong since the last look: nothing, where the sandbox holds."""
        found = [
            f"it returned {what}"
            for what, text in (("the secret", self.secret), ("that " + DONE, DONE))
            if text in came_back
        ]
        after = snapshot(self.folder)
        if after != self.before:
            found.append(f"the folder changed: {sorted(set(self.before.items()) ^ set(after.items()))}")
            self.renew()
        for name, one in self.listeners.items():
            while select.select([one], [], [], 0)[0]:
                one.recv(100) if name == "UDP" else one.accept()[0].close()
                found.append(f"something arrived at the {name}")
        found += [f"signal {number} arrived" for number in self.signals]
        self.signals.clear()
        return found + [f"process {pid} runs: {words}" for pid, (_, words) in processes().items() if self.mark in words]

    def close(self):
        signal.signal(signal.SIGUSR1, self.handler)
        os.environ.pop("SANDBOX_ATTACKS_KEY", None)
        for one in self.listeners.values():
            one.close()
        shutil.rmtree(self.home, ignore_errors=True)


def new_mark():
    return f"mark{secrets.token_hex(5)}"  # 14 characters: the kernel keeps 15 of a process's name


def listener(family, kind, place):
    one = socket.socket(family, kind)
    one.bind(place)
    if kind == socket.SOCK_STREAM:
        one.listen(64)
    return one


def snapshot(folder):
    """Every entry of a folder with what can be changed about it."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        about = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        names = tuple(os.listxattr(path, follow_symlinks=False))
        found[str(path)] = (
            about.st_mode,
            about.st_uid,
            about.st_gid,
            about.st_nlink,
            about.st_mtime_ns,
            names,
            content,
        )
    return found


def processes():
    """Of each process its parent and the words that name it."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text(errors="replace").rpartition(")")
                words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").replace("\0", " ")
            except OSError:
                continue  # it has just ended
            found[int(entry.name)] = (int(rest.split()[1]), f"{name.partition('(')[2]} {words}")
    return found


def family():
    """The caller's descendants, and whoever has the command line of one of them: a fork that lost its parent."""
    everyone = processes()
    mine, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, (parent, _) in everyone.items() if parent in mine} - mine
        mine, grown = mine | more, bool(more)
    lines = {everyone[pid][1] for pid in mine - {os.getpid()} if pid in everyone and "--worker" in everyone[pid][1]}
    return mine | {pid for pid, (_, words) in everyone.items() if words in lines}


@dataclasses.dataclass
class Setup:
    """A sandbox and the processes that it has where nothing is left behind."""

    sandbox: Sandbox
    world: World
    family: set

    def assert_unharmed(self, came_back: str = ""):
        assert self.world.harms(came_back) == []
        verdict = self.honest()
        assert (verdict.status, verdict.passed) == ("pass", 3), f"an honest job afterwards: {verdict}"
        assert family() == self.family, "a process was left behind, or a worker was lost"

    def honest(self):
        prompt = f"def double(n):\n    # {self.world.secret}\n"
        return self.sandbox.run_tests(prompt, HONEST.format(secret=self.world.secret), DOUBLE_TEST, "double")


@pytest.fixture(scope="module")
def world():
    one = World()
    yield one
    one.close()


@pytest.fixture(scope="module", params=SETUPS.values(), ids=SETUPS.keys())
def setup(request, world):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the layers that are left out on purpose
        with Sandbox(workers=1, timeout=2.0, memory_mb=256, without=request.param) as sandbox:
            one = Setup(sandbox, world, set())
            assert one.honest().status == "pass"
            one.family = family()
            yield one


@pytest.mark.parametrize("attack", HARMS, ids=lambda one: f"{one.kind}-{one.name}")
def test_harm_leaves_no_trace(attack, setup):
    limit = LIMITS.get(attack.name, LIMITS.get(attack.kind, 1.0))
    test = HARM_TEST.format(secret=setup.world.secret, done=DONE)
    started = time.monotonic()
    verdict = setup.sandbox.run_tests("", setup.world.arm(attack), test, "probe", timeout=limit)
    took = time.monotonic() - started
    setup.assert_unharmed(verdict.why)  # which quotes the assertion with the secret, where that does not hold
    assert verdict.status in ("pass", "fail"), verdict
    refused = any(words in verdict.why for words in ("ModuleNotFoundError", "ctypes is out of reach"))
    tried = "does not load" not in verdict.why or attack.name in UNLOADABLE or refused
    assert tried, f"it never came to its harm: {verdict.why}"
    assert took < 3 * limit + SLACK, f"{took:.1f} s: {verdict}"


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda one: one.name)
def test_forgery_is_a_fail(forgery, setup):
    for test in [forgery.test] if forgery.test else [DOUBLE_TEST, OWN_ARGUMENT_TEST]:
        verdict = setup.sandbox.run_tests("", forgery.code, test, "double", timeout=0.5)
        assert verdict.status == "fail", verdict
        assert verdict.passed < verdict.total, verdict
        if "def sockets()" in forgery.code:  # these write into the protocol, and must have
            assert "it returned None" not in verdict.why, f"it tried nothing: {verdict}"
    setup.assert_unharmed()


# --------------------------------------------------------------------------- that the checks can fail

SEEN = """
    open_for_writing delete chmod rename symlink utime mmap_a_file sqlite3 libc_fopen
    read_a_file environment collector modules earlier_jobs_in_memory environment_in_proc linecache
    stat_a_file stat_as_if_by_descriptor
    tcp udp unix_socket abstract_unix_socket http_client connect_by_system_call
    subprocess fork daemon os_system posix_spawn posixsubprocess clone thread libc_thread
    kill_the_caller kill_by_system_call pidfd_send_signal kill_the_parent clock_of_others
    thread_bomb descriptor_bomb sleep loop hang_at_import slow_generator
    memfd dumpable machine_code machine_code_later import_a_module import_by_path shared_memory
""".split()  # what does no harm without a sandbox


def unguarded(code, folder, limit):
    """What a completion prints in a plain interpreter; None where it does not end."""
    script = folder / "script.py"
    script.write_text(code)
    try:
        with (folder / "output").open("w+") as output:  # a file: a pipe would stay open in what the completion starts
            subprocess.run([sys.executable, "-S", script], stdout=output, stderr=subprocess.DEVNULL, timeout=limit)
            output.seek(0)
            return output.read()
    except subprocess.TimeoutExpired:
        return None


@pytest.mark.parametrize("name", SEEN)
def test_check_sees_a_harm_where_there_is_no_sandbox(name, world, tmp_path):
    attack = next(one for one in HARMS if one.name == name)
    # The judge of a sandbox reads iterators to their end; here this does.
    ending = "\ngot = probe(7)\nprint(list(got) if hasattr(got, '__next__') else got, flush=True)\n"
    limit = 1.0 if attack.kind == "resource" else 10.0
    came_back = unguarded(world.arm(attack) + ending, tmp_path, 3.0 if "bomb" in name else limit)
    if came_back is None:
        assert attack.kind == "resource", "only such a one may run for ever"
    else:
        assert world.harms(came_back) != [], came_back


def test_check_sees_what_a_completion_returns(setup):
    for what in (setup.world.secret, f"{DONE}: fork"):
        test = HARM_TEST.format(secret=setup.world.secret, done=DONE)
        verdict = setup.sandbox.run_tests("", f"def probe(n):\n    return 'see: {what}'\n", test, "probe")
        assert setup.world.harms(verdict.why) != [], verdict
    setup.assert_unharmed()


def test_check_sees_a_process_that_is_left_behind(setup):
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as left:
        with pytest.raises(AssertionError, match="left behind"):
            setup.assert_unharmed()
        left.communicate(b"\n")
    setup.assert_unharmed()


FOOLS = """
    int_that_equals_all list_that_equals_all object_that_equals_all class_that_equals_all
    sys_exit_at_import os_exit_at_import os_exit_in_the_call raise_SystemExit verdict_and_exit
    setprofile thread signal_handler
""".split()


@pytest.mark.parametrize("name", FOOLS)
def test_forgery_fools_a_judge_that_shares_its_interpreter(name, tmp_path):
    code = next(one for one in FORGERIES if one.name == name).code
    script = tmp_path / "script.py"
    script.write_text(f"{code}\n{DOUBLE_TEST}\ncheck(double)\n")
    ended = subprocess.run([sys.executable, "-S", script], capture_output=True, timeout=10)
    assert ended.returncode == 0, ended.stderr


def test_forgery_fools_a_judge_that_hands_over_its_own_list(tmp_path):
    code = next(one for one in FORGERIES if one.name == "changes_its_argument").code
    ended = subprocess.run([sys.executable, "-S", "-c", f"{code}\n{OWN_ARGUMENT_TEST}\ncheck(double)"], timeout=10)
    assert ended.returncode == 0


def test_the_readme_counts_the_attacks_as_they_are():
    readme = " ".join((Path(__file__).parents[2] / "scoring/README.md").read_text(encoding="utf-8").split())
    assert f"{len(HARMS)} completions that try to do harm" in readme
    assert f"and {len(FORGERIES)} that try to be judged right" in readme
    assert f"they see {len(SEEN)} of those harms" in readme and f"and {len(FOOLS) + 1} of the forgeries" in readme
