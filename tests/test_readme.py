"""The pages that people read: their figures are those that were kept, their size, their links and commands."""

import json
import re
import statistics

import pytest

from lab.files import ROOT

RESULTS = ROOT / "tests/benchmarks/results"
README = (ROOT / "README.md").read_text(encoding="utf-8")
SPEED = " ".join((ROOT / "tests/benchmarks/README.md").read_text(encoding="utf-8").split())


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
    """What the benchmarks' page says, made from the results."""
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
def test_the_page_of_speed_says_what_the_benchmarks_kept(said):
    assert said in SPEED


def test_the_slowest_hostile_text_is_the_pages():
    hostile = kept("rewards")["hostile"]
    assert round(max(row["seconds"] for row in hostile), 2) == 0.35 and "at most 10 times as long: 0.35 s" in SPEED
    assert max(row["times_100kB"] for row in hostile) < 10.5


def test_how_long_it_takes_to_be_right_is_the_pages():
    rows = kept("training")["reach"]["rows"]
    ours, others = ([row for row in rows if (row["settings"] == "ours") is mine] for mine in (True, False))
    assert all(row["reached"] for row in ours) and not any(row["reached"] for row in others)
    seconds = " and ".join(f"{row['seconds']:.0f}" for row in ours)
    assert f"until 0.85 correct: {seconds} s (seeds {' and '.join(str(row['seed']) for row in ours)})" in SPEED
    ends = sorted(row["correct_last"] for row in others)
    assert f"in the same time they stay at {ends[0]:.2f} to {ends[-1]:.2f}" in SPEED


def test_what_was_not_measured_on_a_card_is_said_as_long_as_there_is_no_result():
    measured = (RESULTS / "gpu.json").exists()
    assert ("**not measured: no card was at hand**" in SPEED) is not measured
    assert ("No GPU was at hand so far" in README) is not measured


PAGES = [
    "README.md",
    "notebooks/README.md",
    "notebooks/SCALE.md",
    "scoring/README.md",
    "tests/benchmarks/README.md",
    "data/README.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_link_of_a_page_leads_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"[`\n]make ([a-z-]+)", text)) <= targets
    for link in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (ROOT / page).parent.joinpath(link).exists(), link
    for file in re.findall(r"`((?:notebooks|scoring|tests|data)/[\w./-]+)`", text):
        assert (ROOT / file).exists(), file


@pytest.mark.parametrize("page, most", [("README.md", 1200), ("notebooks/README.md", 900), ("scoring/README.md", 2000)])
def test_a_page_is_short_enough_to_be_read(page, most):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(text.split()) <= most
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    lines = [re.sub(r"^[-\d. ]*", "", line) for line in prose.split("\n") if "|" not in line and "![" not in line]
    sentences = re.split(r"(?<=[.!?:])\s+|\n\n", "\n".join(lines))
    longest = max(sentences, key=lambda sentence: len(sentence.split()))
    assert len(longest.split()) <= 35, longest


def test_the_readmes_table_is_that_of_the_figure_and_gallery():
    """The four rows of evidence stand in the executed notebook 05 too."""
    gallery = (ROOT / "notebooks/gallery/05_merge_and_export.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (?:strict|correct|right|pass@1).*?\| ([\d.]+ %) \| ([\d.]+ %) \| (\S+ points)", README, re.M
    )
    assert len(rows) == 4
    for row in rows:
        assert all(value in gallery for value in row), row
