"""The sandbox beside what it replaces, in one run: `make bench`, or this script with `--help`.

Speed: the same completions and tests with two jobs at a time, in turns, as (a) ours, (b) a pytest subprocess
each, (c) `python -I -c` each, without any protection, (d) the same inside bubblewrap where that is installed.
Ratios are what to quote: machines differ, and are shared.

`--humaneval FILE` adds real HumanEval: every canonical solution must pass, and mutants of them must get the
verdict of an unprotected run. `--soak N` judges N jobs, hostile ones among them, and watches memory and
descriptors.
"""

import argparse
import ast
import copy
import gzip
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm.auto import tqdm

from lab.files import ROOT, write_json
from sandbox import Sandbox

RESULTS = Path(__file__).with_name("results") / "sandbox.json"
PROBLEMS = ROOT / "data" / "code_problems.jsonl"
WORKERS = 2
Job = dict[str, str]


def read_problems(path: Path) -> list[dict]:
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
    with opened as source:
        return [json.loads(line) for line in source if line.strip()]


def job(row: dict, completion: str | None = None) -> Job:
    completion = row["canonical_solution"] if completion is None else completion
    return {"prompt": row["prompt"], "completion": completion, "test": row["test"], "entry_point": row["entry_point"]}


def script(job: Job) -> str:
    """One file that runs the completion and its test, as a copied notebook would."""
    return f"{job['prompt']}{job['completion']}\n\n{job['test']}\n\ncheck({job['entry_point']})\n"


# --------------------------------------------------------------------------- the other ways


def by_python(job: Job) -> bool:
    done = subprocess.run([sys.executable, "-I", "-c", script(job)], capture_output=True, timeout=60)
    return done.returncode == 0


def by_pytest(job: Job) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        code = (
            f"{job['prompt']}{job['completion']}\n\n{job['test']}\n\ndef test_it():\n    check({job['entry_point']})\n"
        )
        path = Path(folder, "test_it.py")
        path.write_text(code, encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            folder,
            "-c",
            "/dev/null",
            str(path),
        ]
        return subprocess.run(command, capture_output=True, cwd=folder, timeout=120).returncode == 0


def by_bubblewrap(job: Job) -> bool:
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--tmpfs", "/tmp"]
    return (
        subprocess.run([*command, sys.executable, "-I", "-c", script(job)], capture_output=True, timeout=60).returncode
        == 0
    )


def speeds(jobs: list[Job], rounds: int, few: int) -> list[dict]:
    """Completions a second of each way, `WORKERS` at a time; medians over rounds in which the ways take turns."""
    ways: dict[str, Callable[[Job], bool]] = {
        "python -I -c each, unprotected": by_python,
        "pytest each, unprotected": by_pytest,
    }
    if shutil.which("bwrap"):
        ways["bubblewrap and python each"] = by_bubblewrap
    found: dict[str, list[float]] = {}
    with Sandbox(workers=WORKERS) as sandbox, ThreadPoolExecutor(WORKERS) as pool:
        sandbox.run_many(jobs[:8])
        for _ in tqdm(range(rounds), desc="speed", unit="round"):
            started = time.perf_counter()
            passed = [verdict.status == "pass" for verdict in sandbox.run_many(jobs)]
            found.setdefault("sandbox.py, all layers", []).append(len(jobs) / (time.perf_counter() - started))
            for name, way in ways.items():
                some = jobs[:few] if "pytest" in name else jobs
                started = time.perf_counter()
                same = list(pool.map(way, some))
                found.setdefault(name, []).append(len(some) / (time.perf_counter() - started))
                if same != passed[: len(some)]:
                    raise SystemExit(
                        f"{name} disagrees with the sandbox: {[j['entry_point'] for j, a, b in zip(some, same, passed) if a != b]}"
                    )
    return [
        {"way": name, "per_second": statistics.median(values), "rounds": [round(v, 1) for v in values]}
        for name, values in found.items()
    ]


# --------------------------------------------------------------------------- the same verdicts as without protection

SWAPS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def mutants(row: dict, most: int, rng: random.Random) -> Iterator[str]:
    """The canonical solution with one operator, constant or return changed, as a whole module.

    Only in the function itself: of a changed helper of the prompt, which the test uses too, our judge has the original.
    """
    tree = ast.parse(row["prompt"] + row["canonical_solution"])
    function = next(node for node in tree.body if getattr(node, "name", None) == row["entry_point"])
    inside = {id(node) for node in ast.walk(function)}
    places = [i for i, node in enumerate(ast.walk(tree)) if id(node) in inside and changed(node) is not None]
    for i in rng.sample(places, min(most, len(places))):
        other = copy.deepcopy(tree)
        node = next(node for k, node in enumerate(ast.walk(other)) if k == i)
        for name, value in changed(node).items():
            setattr(node, name, value)
        yield ast.unparse(ast.fix_missing_locations(other)) + "\n"


def changed(node: ast.AST) -> dict | None:
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPS:
        return {"op": SWAPS[type(node.op)]()}
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        return {"ops": [SWAPS[type(node.ops[0])](), *node.ops[1:]]}
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return {"value": node.value + 1}
    if isinstance(node, ast.Return) and node.value is not None:
        return {"value": ast.Constant(None)}
    return None


def unprotected(job: Job) -> str:
    code = f"{job['prompt']}    pass\n\n{job['completion']}\n\n{job['test']}\n\ncheck({job['entry_point']})\n"
    try:
        done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, timeout=20)
        return "pass" if done.returncode == 0 else "fail"
    except subprocess.TimeoutExpired:
        return "fail"


def agreement(rows: list[dict], each: int) -> dict:
    """How many canonical solutions pass, and how many mutants get the verdict of an unprotected run."""
    rng = random.Random(3407)
    jobs = [job(row, mutant) for row in rows for mutant in mutants(row, each, rng)]
    with Sandbox(workers=WORKERS) as sandbox, ThreadPoolExecutor(WORKERS) as pool:
        right = sandbox.run_many([job(row) for row in rows])
        ours = sandbox.run_many(jobs, progress="mutants, sandbox")
        theirs = list(tqdm(pool.map(unprotected, jobs), total=len(jobs), desc="mutants, unprotected"))
    apart = [
        {
            "entry_point": one["entry_point"],
            "ours": verdict.status,
            "why": verdict.why,
            "unprotected": other,
            "completion": one["completion"],
        }
        for one, verdict, other in zip(jobs, ours, theirs)
        if verdict.status != other
    ]
    return {
        "canonical": len(rows),
        "pass": sum(verdict.status == "pass" for verdict in right),
        "not_pass": [row["entry_point"] for row, verdict in zip(rows, right) if verdict.status != "pass"],
        "mutants": len(jobs),
        "mutants_alive": theirs.count("pass"),
        "agree": len(jobs) - len(apart),
        "apart": apart,
    }


# --------------------------------------------------------------------------- the soak

HOSTILE = (
    "def {name}(*a):\n    while True: pass\n",
    "def {name}(*a):\n    return [0] * 10**10\n",
    "def {name}(*a):\n    return {name}(*a)\n",
    "import os\ndef {name}(*a):\n    os._exit(0)\n",
    "import os\ndef {name}(*a):\n    os.kill(os.getppid(), 9)\n",
    'import os\nfor fd in range(300):\n    try:\n        os.write(fd, b\'V {{"status": "pass"}}\\n\')\n    except OSError:\n        pass\ndef {name}(*a):\n    return 1\n',
    "import os\ndef {name}(*a):\n    for _ in range(99):\n        os.fork()\n",
    "def {name}(*a):\n    return 'x' * 10**7\n",
    "import os\nos.closerange(0, 300)\ndef {name}(*a):\n    return 1\n",
    "def {name}(*a):\n    raise SystemExit\n",
    "import sys\nsys.setrecursionlimit(10**9)\ndef {name}(*a):\n    return {name}(*a)\n",
    "def {name}(*a):\n    print('x' * 10**6)\n    return a\n",
)


def resident(pids: list[int]) -> float:
    """MiB that these processes have in memory."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
        total += int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    return total / 2**20


def below(pid: int) -> list[int]:
    """The descendants of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *below(int(child))]
    return found


def soak(rows: list[dict], n: int, hostile_share: float = 0.1) -> dict:
    """Judges n jobs, one in ten hostile; memory and descriptors at the start, midway and at the end."""
    rng, statuses, watched = random.Random(3407), Counter(), []
    with Sandbox(workers=WORKERS, timeout=0.3) as sandbox:
        workers = sorted(below(os.getpid()))
        started = time.monotonic()
        for batch in tqdm(range(n // 200), desc="soak", unit="200 jobs"):
            jobs = []
            for i in range(200):
                row = rng.choice(rows)
                hostile = rng.random() < hostile_share
                text = (
                    rng.choice(HOSTILE).format(name=row["entry_point"])
                    if hostile
                    else row["canonical_solution"] + f"    # {batch} {i}\n"
                )
                jobs.append((hostile, job(row, text)))
            for (hostile, _), verdict in zip(jobs, sandbox.run_many([one for _, one in jobs])):
                statuses[f"{'hostile' if hostile else 'honest'}: {verdict.status}"] += 1
            if batch % max(1, n // 2000) == 0 or batch == n // 200 - 1:
                watched.append(
                    {
                        "jobs": (batch + 1) * 200,
                        "workers_MiB": round(resident(workers), 1),
                        "caller_MiB": round(resident([os.getpid()]), 1),
                        "caller_descriptors": len(os.listdir("/proc/self/fd")),
                        "worker_descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in workers),
                    }
                )
        same = sorted(below(os.getpid())) == workers
        seconds = time.monotonic() - started
    return {
        "jobs": n,
        "seconds": round(seconds, 1),
        "statuses": dict(statuses),
        "same_workers_at_the_end": same,
        "watched": watched,
    }


# --------------------------------------------------------------------------- the report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=PROBLEMS, help="problems in HumanEval's form for the speeds, JSONL or JSONL.gz"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--few", type=int, default=16, help="completions a round for pytest, which takes a second each")
    parser.add_argument("--humaneval", type=Path, help="HumanEval.jsonl.gz: check canonical solutions and mutants")
    parser.add_argument("--mutants", type=int, default=6, help="of each HumanEval problem")
    parser.add_argument("--soak", type=int, default=0, help="jobs of the soak (20000 take some minutes)")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name} beside this script")
    arguments = parser.parse_args()
    rows = read_problems(arguments.data)

    with Sandbox(workers=1) as sandbox:
        layers = sandbox.active_layers()
    lines = speeds([job(row) for row in rows], arguments.rounds, arguments.few)
    report: dict = {
        "about": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "kernel": platform.release().split("-")[0],
            "date": time.strftime("%Y-%m-%d"),
            "workers": WORKERS,
            "problems": len(rows),
            "layers": layers,
        },
        "speeds": lines,
    }
    print(
        f"\n{len(rows)} completions of {arguments.data.name}, {WORKERS} at a time, median of {arguments.rounds} rounds in turns\n"
    )
    for line in lines:
        line["ours_is_times_as_fast"] = lines[0]["per_second"] / line["per_second"]
        print(
            f"  {line['way']:<34}{line['per_second']:>8.1f} a second   ours is {line['ours_is_times_as_fast']:.1f} times as fast"
        )
    if arguments.humaneval:
        report["humaneval"] = found = agreement(read_problems(arguments.humaneval), arguments.mutants)
        print(
            f"\nHumanEval: {found['pass']} of {found['canonical']} canonical solutions pass {found['not_pass'] or ''}; "
            f"{found['agree']} of {found['mutants']} mutants ({found['mutants_alive']} of them alive) judged as by an unprotected run"
        )
        for one in found["apart"]:
            print(f"  {one['entry_point']}: {one['ours']} ({one['why']}), unprotected {one['unprotected']}")
    if arguments.soak:
        report["soak"] = soak(rows, arguments.soak)
        print("\nSoak: " + json.dumps({name: value for name, value in report["soak"].items() if name != "watched"}))
        for line in (report["soak"]["watched"][0], report["soak"]["watched"][-1]):
            print("  ", line)
    if arguments.save:
        write_json(RESULTS, report)


if __name__ == "__main__":
    main()
