"""What the completions page costs: reading a run of a million completions, and opening the page of twenty thousand.

`python`    seconds and peak memory (of a process of its own) of opening a run, of the statistics of its prompts, the
            search for suspects, the selection, and writing the page; and the page's size.
`chromium`  milliseconds until the page of 20,000 completions is there, and until it has answered a search, in
            headless Chromium. Needs playwright and /usr/bin/chromium.

The run is synthetic: groups of 8, four fifths right at the end, texts of about 400 characters, of which 20 thousand
fill a page. What the operating system keeps of the files is warm: they were written just before.

    python tests/benchmarks/browser_bench.py --save       both, about three minutes and 1 GB of disk
    python tests/benchmarks/browser_bench.py --quick      2,000 completions, to see that it runs
"""

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lab.files import write_json

RESULTS = Path(__file__).with_name("results") / "browser.json"
CHROMIUM = "/usr/bin/chromium"
SIZES = {20_000: 64, 1_000_000: 1_024}  # completions in all -> a step
PAGE_SIZE = 20_000
GROUP = 8
PROMPTS = 4_000
REPEATS = 5  # of the search in the browser
PACKAGES = ("duckdb", "pandas", "pyarrow", "rapidfuzz")
WEIGHTS = {"correctness_reward": 1.0, "format_reward": 0.5}
Row = dict[str, Any]

# --------------------------------------------------------------------------- a synthetic run


def make_run(folder: Path, rows: int, a_step: int) -> None:
    """A run's folder with so many completions; the same for the same numbers."""
    import numpy as np

    rng = np.random.default_rng(3407)
    words = np.array([f"{a}{b}" for a in "bdfgklmnprstvz" for b in ("a", "em", "ilo", "on", "ur", "yst")])
    sentences = [" ".join(rng.choice(words, 24)) + "." for _ in range(20_000)]
    steps = -(-rows // a_step)
    (folder / "completions").mkdir(parents=True)
    with (folder / "log.jsonl").open("w", encoding="utf-8") as log:
        for step in range(1, steps + 1):
            table = one_step(rng, sentences, step, steps, min(a_step, rows - (step - 1) * a_step))
            table.to_parquet(folder / "completions" / f"completions_{step:05d}.parquet")
            means = {f"rewards/{name}/mean": float(table[name].mean()) for name in WEIGHTS}
            log.write(
                json.dumps({"step": step, "reward": sum(WEIGHTS[n] * table[n].mean() for n in WEIGHTS), **means}) + "\n"
            )
    entries = [{"name": name, "weight": weight, "range": [0.0, 1.0], "columns": []} for name, weight in WEIGHTS.items()]
    write_json(
        folder / "run.json",
        {
            "status": "finished",
            "steps": steps,
            "model": {"shown": "synthetic"},
            "seconds": 1.0,
            "rewards": {"rewards": entries},
            "effective": {"max_completion_length": 128},
        },
    )


def one_step(rng: Any, sentences: list[str], step: int, steps: int, n: int) -> Any:
    """The table of one step; right answers become more, from a fifth to four fifths."""
    import pandas as pd

    groups = -(-n // GROUP)
    prompts = rng.integers(0, PROMPTS, groups).repeat(GROUP)[:n]
    right = rng.random(n) < 0.2 + 0.6 * step / steps
    formatted = right | (rng.random(n) < 0.5)
    picked = rng.integers(0, len(sentences), (n, 3))
    answers = [f"{p}" if good else f"{p + 1}" for p, good in zip(prompts, right)]
    texts = [
        f"<think>\n{sentences[a]} {sentences[b]} {sentences[c]}\n</think>\n<answer>\n{answer}\n</answer>"
        for (a, b, c), answer in zip(picked, answers)
    ]
    return pd.DataFrame(
        {
            "step": step,
            "group": [i // GROUP for i in range(n)],
            "prompt": [f"system\nThink, then answer.\nuser\nProblem {p}: {sentences[p]}\nassistant\n" for p in prompts],
            "completion": texts,
            "correctness_reward": right.astype(float),
            "format_reward": formatted.astype(float),
            "advantage": rng.normal(size=n),
            "tokens": [len(text) // 4 for text in texts],
            "prompt_tokens": 48,
            "data/answer": [str(p) for p in prompts],
        }
    )


# --------------------------------------------------------------------------- Python's side


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_python(folder: str, page: str) -> Row:
    """In a process of its own: seconds of each part, and the peak memory so far."""
    from lab.page import run_page
    from lab.read import run_record
    from lab.read.completions import Completions

    found: Row = {"imports": {"seconds": 0.0, "peak_mb": peak_mb()}}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = call()
        found[name] = {"seconds": time.perf_counter() - began, "peak_mb": peak_mb()}
        return result

    record = timed("read", lambda: run_record.read_run(folder))
    table = timed("open", lambda: Completions(record))
    with table:
        timed("sql", lambda: table.sql("SELECT step, avg(total) FROM completions GROUP BY step"))
        prompts = timed("prompts", table.prompts)
        suspects = timed("suspects", table.suspect_counts)
        selection = timed("select", lambda: table.select(PAGE_SIZE))
        found |= {
            "completions": table.count,
            "prompts_found": len(prompts),
            "suspects_found": sum(suspects.values()),
            "selected": len(selection.texts),
        }
    del prompts, selection
    with contextlib.redirect_stdout(io.StringIO()):
        timed("write_page", lambda: run_page.write_run_page(record, page))
    return found | {"page_mb": Path(page).stat().st_size / 1e6}


def alone(function: Callable, *arguments: Any) -> Any:
    """The function's result from a fresh process, so that its peak memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


# --------------------------------------------------------------------------- the browser's side

SEARCH = """(text) => new Promise((done) => {
  const root = document.documentElement, box = document.activeElement, before = root.dataset.rows;
  const answer = () => done([performance.now() - began, Number(root.dataset.rows)]);
  const painted = () => requestAnimationFrame(() => setTimeout(answer));
  new MutationObserver((_, self) => { if (root.dataset.rows !== before) { self.disconnect(); painted(); } })
    .observe(root, { attributes: true, attributeFilter: ["data-rows"] });
  setTimeout(() => done([null, Number(root.dataset.rows)]), 20000);
  const began = performance.now();
  box.value = text;
  box.dispatchEvent(new Event("input", { bubbles: true }));
})"""


def measure_chromium(page: Path) -> Row:
    """Milliseconds until the page is ready, and until a search in all completions is answered and drawn."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = []
        for _ in range(REPEATS):
            tab = browser.new_page(viewport={"width": 1400, "height": 900})
            began = time.perf_counter()
            tab.goto(page.as_uri() + "#view=completions")
            tab.wait_for_selector("html[data-ready='true']", state="attached", timeout=120_000)
            opened.append(1000 * (time.perf_counter() - began))
        whole = int(tab.evaluate("document.documentElement.dataset.rows"))
        tab.keyboard.press("/")
        answers = []
        for i in range(REPEATS):
            answers.append(tab.evaluate(SEARCH, str(1111 + 321 * i)))  # an answer: rare
            tab.evaluate(SEARCH, "")
        heap = tab.evaluate("performance.memory ? performance.memory.usedJSHeapSize / 1e6 : null")
        if any(each is None for each, _ in answers):
            raise SystemExit(
                f"The page did not answer a search within 20 s; rows: {[rows for _, rows in answers]} of {whole}."
            )
        found = {
            "version": browser.version,
            "ready_ms": opened,
            "rows": whole,
            "heap_mb": heap,
            "search_ms": [each for each, _ in answers],
            "rows_found": [rows for _, rows in answers],
        }
        browser.close()
    return found


# --------------------------------------------------------------------------- the report

PARTS = ("imports", "read", "open", "sql", "prompts", "suspects", "select", "write_page")


def show_python(found: Row) -> None:
    print(
        f"\n{found['completions']:,} completions: {found['suspects_found']:,} suspects, {found['selected']:,} in the page"
    )
    print(f"  {'':<12}{'seconds':>9}{'peak MB':>9}")
    for name in PARTS:
        print(f"  {name:<12}{found[name]['seconds']:>9.2f}{found[name]['peak_mb']:>9.0f}")
    print(f"  the page has {found['page_mb']:.1f} MB")


def show_chromium(found: Row) -> None:
    print(
        f"\nChromium {found['version']}, {found['rows']:,} completions: ready after {statistics.median(found['ready_ms']):.0f} ms "
        f"(median of {len(found['ready_ms'])}, the first {found['ready_ms'][0]:.0f}); "
        f"a search answers in {statistics.median(found['search_ms']):.0f} ms (median of {len(found['search_ms'])}, "
        f"{found['rows_found']} rows found)"
    )


def about() -> Row:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": cores,
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), help="completions in all")
    parser.add_argument("--a-step", type=int, help="completions a step; else 64, and 1,024 from 100,000 completions on")
    parser.add_argument("--no-chromium", action="store_true", help="Python's side alone")
    parser.add_argument("--quick", action="store_true", help="2,000 completions, as a smoke test")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name} beside this script")
    return parser.parse_args()


def main() -> None:
    arguments, found = options(), {"about": about(), "python": [], "chromium": None}
    for rows in [2_000] if arguments.quick else arguments.sizes:
        with tempfile.TemporaryDirectory(prefix="browser-bench-") as name:
            folder, page = Path(name, "run"), Path(name, "completions.html")
            a_step = arguments.a_step or SIZES.get(rows, 64 if rows < 100_000 else 1_024)
            alone(make_run, folder, rows, a_step)
            found["python"].append({"a_step": a_step, **alone(measure_python, str(folder), str(page))})
            show_python(found["python"][-1])
            if rows <= PAGE_SIZE and not arguments.no_chromium:
                found["chromium"] = measure_chromium(page)
                show_chromium(found["chromium"])
    if arguments.save and not arguments.quick:
        write_json(RESULTS, found)


if __name__ == "__main__":
    main()
