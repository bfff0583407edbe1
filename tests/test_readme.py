"""The README's figures are those that the benchmarks kept: see `tests/benchmarks/results/`."""

import json
import re
import statistics

import pytest

from lab.files import ROOT

RESULTS = ROOT / "tests/benchmarks/results"
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def kept(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def a_second(what):
    return next(row["per_second"] for row in kept("rewards")["speeds"] if row["what"] == what)


def ours_beside(way):
    return next(row["ours_is_times_as_fast"] for row in kept("sandbox")["speeds"] if row["way"].startswith(way))


def read(size):
    return next(row["open"]["seconds"] for row in kept("browser")["python"] if row["completions"] == size)


def percent(value):
    return f"{100 * (value - 1):+.1f}".replace("-", "−")


def figures():
    """What the README says, and the same from the results."""
    training, pages = kept("training"), kept("browser")
    step, own = training["overhead"]["ratio"], training["overhead"]["in_our_parts"]
    large = max(pages["python"], key=lambda row: row["completions"])
    small = min(pages["python"], key=lambda row: row["completions"])
    yield f"**{kept('rewards')['math_reward_to_math_verify']:.0f} times** as fast"
    yield f"`trl.rewards.accuracy_reward` | {a_second('correctness_reward') / a_second('trl.rewards.accuracy_reward'):.0f} times as fast"
    yield f"{a_second('correctness_reward') / a_second('five naive regex rewards'):.2f} times as fast, and right"
    for name in (
        "format_reward",
        "correctness_reward",
        "math_reward",
        "json_reward",
        "bleu_reward",
        "diversity_reward",
    ):
        yield f"`{name}` {a_second(name):,.0f}"
    yield f"math-verify {a_second('math_verify on the answers alone'):,.0f}, `trl.rewards.accuracy_reward` {a_second('trl.rewards.accuracy_reward'):,.0f}"
    yield f"**{ours_beside('pytest'):.0f} times** as fast"
    yield f"bubblewrap and `python -I -c` each | {ours_beside('bubblewrap'):.1f} times as fast"
    yield f"`python -I -c` each, no protection | {ours_beside('python'):.1f} times as fast"
    yield f"The sandbox: {kept('sandbox')['speeds'][0]['per_second']:.0f} problems"
    yield f"{percent(step['median'])} % (95 % interval {percent(step['low'])} to {percent(step['high'])})"
    yield f"callbacks take {1000 * own['seconds_a_step']:.1f} ms of a step, {own['share']:.1%}".replace("%", " %")
    yield f"generating {training['overhead']['shares']['generating_share']:.0%}".replace("%", " %")
    yield f"{read(1_000_000) / read(20_000):.1f} times as long for 50 times as many"
    yield f"are {small['page_mb']:.1f} MB, open in {statistics.median(pages['chromium']['ready_ms']) / 1000:.1f} s"
    yield f"a million is read in {large['open']['seconds']:.1f} s, its suspects take {large['suspects']['seconds']:.1f} s and its page {large['write_page']['seconds']:.1f} s"
    yield f"peak of {large['write_page']['peak_mb']:.0f} MB"


@pytest.mark.parametrize("said", figures())
def test_the_readme_says_what_the_benchmarks_kept(said):
    assert said in README


def test_the_slowest_hostile_text_is_the_readmes():
    hostile = kept("rewards")["hostile"]
    assert round(max(row["seconds"] for row in hostile), 2) == 0.35 and "at most 10 times as long; 0.35 s" in README
    assert max(row["times_100kB"] for row in hostile) < 10.5


def test_how_long_it_takes_to_be_right_is_the_readmes():
    rows = kept("training")["reach"]["rows"]
    ours, others = ([row for row in rows if (row["settings"] == "ours") is mine] for mine in (True, False))
    assert all(row["reached"] for row in ours) and not any(row["reached"] for row in others)
    seconds = " and ".join(f"{row['seconds']:.0f}" for row in ours)
    assert f"until 0.85 correct: {seconds} s (seeds {' and '.join(str(row['seed']) for row in ours)})" in README
    ends = sorted(row["correct_last"] for row in others)
    assert f"in the same time they stay at {ends[0]:.2f} to {ends[-1]:.2f}" in README


def test_what_was_not_measured_on_a_card_is_said_as_long_as_there_is_no_result():
    measured = (RESULTS / "gpu.json").exists()
    assert ("**not measured: no card was at hand**" in README) is not measured
    assert ("No GPU was at hand so far." in README) is not measured


def test_every_command_of_the_readme_is_one_of_make():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"[`\n]make ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert {"run", "test", "bench", "gpu-check", "bench-browser"} <= named <= targets
