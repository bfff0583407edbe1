"""The completions page in a real Chromium: what a person sees, and what the text of a model can never do to it."""

import base64
import contextlib
import csv
import gzip
import html
import io
import os
import re
import shutil
import urllib.parse
from pathlib import Path

import pytest

from lab.page import page_file
from tests.page.browser_payload import REWARDS, demo, large, payload

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OFFLINE = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-domain-reliability",
    "--disable-features=OptimizationHints,MediaRouter,Translate",
    "--no-pings",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
NOTE_VIOLATIONS = "window.violations = []; addEventListener('securitypolicyviolation', e => window.violations.push(e.violatedDirective))"


def needed(reason: str) -> None:
    """Skips, but fails in CI, which should have a browser."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def started_chromium(reachable=""):
    """A browser that reaches nothing but files, and the address `reachable`."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        needed(
            "no Chromium here: `apt install chromium`, or put the path of one into the environment variable CHROMIUM"
        )
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        needed("no Playwright here: `pip install playwright`")
    arguments = [*OFFLINE[:-1], OFFLINE[-1] + (f", EXCLUDE {reachable}" if reachable else "")]
    with sync_playwright() as playwright:
        browser_process = playwright.chromium.launch(executable_path=found, args=arguments)
        yield browser_process
        browser_process.close()


@pytest.fixture(scope="module")
def chromium():
    with started_chromium() as browser_process:
        yield browser_process


@pytest.fixture(scope="module")
def tab(chromium):
    """One page for all tests, with what it asked for and what it complained about: a new one each time takes twice as long."""
    context = chromium.new_context(accept_downloads=True)
    context.add_init_script(NOTE_VIOLATIONS)
    page, requests, problems = context.new_page(), [], []

    def refuse(route, request):
        if request.is_navigation_request() and request.frame == page.main_frame:
            return route.continue_()
        requests.append(request.url)
        return route.abort()

    context.route("**/*", refuse)
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page, requests, problems
    context.close()


@pytest.fixture
def opened(tab, tmp_path):
    """Opens a payload (or a page's text) from disk; whatever a test does, the page asks for nothing and reports nothing."""
    page, requests, problems = tab
    requests.clear()
    problems.clear()

    def open_page(what, address="", width=900, theme="light", motion="no-preference"):
        file = tmp_path / "page.html"
        file.write_text(what if isinstance(what, str) else page_file.page_html(what), encoding="utf-8")
        page.set_viewport_size({"width": width, "height": 700})
        page.emulate_media(color_scheme=theme, reduced_motion=motion)
        page.goto(file.as_uri() + address)
        page.wait_for_selector("html[data-ready], html[data-failed]", state="attached")
        return page

    yield open_page
    violations = page.evaluate("window.violations")
    page.evaluate("localStorage.clear()")
    assert not requests, f"the page asked for {requests}"
    assert not problems and not violations, f"console: {problems}; policy: {violations}"


# --------------------------------------------------------------------------- looking at the page


def count(page) -> int:
    """How many rows the filter of the visible table leaves."""
    return int(page.evaluate("document.documentElement.dataset.rows"))


def texts(page, view: str, column: str, limit: int = 100) -> list[str]:
    """The cells of a column on the page that is shown."""
    return page.evaluate(
        """([view, column, limit]) => {
            const table = document.querySelector(`#${view} table`), heads = [...table.tHead.rows[0].cells];
            const at = heads.findIndex(cell => cell.dataset.column === column);
            return [...table.tBodies[0].querySelectorAll("tr[data-row]")].slice(0, limit).map(row => row.cells[at].textContent);
        }""",
        [view, column, limit],
    )


def ids(page, view: str) -> list[int]:
    return page.eval_on_selector_all(f"#{view} tr[data-row]", "rows => rows.map(row => Number(row.dataset.id))")


def sort(page, view: str, column: str) -> str:
    """Presses the head of a column; how it is sorted then."""
    head = page.locator(f"#{view} th[data-column='{column}']")
    head.locator("button").click()
    return head.get_attribute("aria-sort")


def search(page, view: str, text: str) -> int:
    page.fill(f"#{view} .search", text)
    return count(page)


def limit_to(page, view: str, column: str, low="", high="") -> int:
    page.select_option(f"#{view} .ranges select", column)
    page.locator(f"#{view} .ranges .bound").nth(0).fill(str(low))
    page.locator(f"#{view} .ranges .bound").nth(1).fill(str(high))
    return count(page)


def titles(page) -> tuple[str, str]:
    return page.inner_text("#left h2"), page.inner_text("#right h2")


def only(page, side: str) -> list[str]:
    """The words that are marked as standing on this side only."""
    return page.eval_on_selector_all(
        f"#{side} .text .{'removed' if side == 'left' else 'added'}", "all => all.map(e => e.textContent)"
    )


def address(page) -> dict[str, str]:
    page.wait_for_timeout(200)  # small changes are written into the address together
    return dict(urllib.parse.parse_qsl(page.evaluate("location.hash").removeprefix("#")))


def saved(page, press) -> tuple[str, list[list[str]]]:
    """The name of the CSV file that `press` saves, and its rows."""
    with page.expect_download() as download:
        press()
    raw = Path(download.value.path()).read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf")
    return download.value.suggested_filename, list(csv.reader(io.StringIO(raw.decode("utf-8-sig"), newline="")))


def width_is_kept(page) -> bool:
    return page.evaluate(
        "document.documentElement.scrollWidth <= innerWidth && document.body.scrollWidth <= innerWidth"
    )


# --------------------------------------------------------------------------- small runs

QUESTIONS = [
    {"text": "How many apples?", "tokens": 10, "data": {"answer": 42, "level": "easy"}},
    {"text": "How many PEARS?", "tokens": 30, "data": {"answer": 4, "level": "hard"}},
    {"text": "Which fruit has answer 7?", "tokens": None, "data": {"answer": None, "level": "item 10"}},
    {"text": "Never kept", "tokens": 20, "data": {"answer": 12, "level": "item 9"}},
]


def one(prompt, step, place, text, total, **more):
    scores = {"correctness_reward": more.pop("correct", None), "format_reward": more.pop("format", None)}
    return {"prompt": prompt, "step": step, "place": place, "text": text, "total": total, "scores": scores, **more}


def small() -> dict:
    rows = [
        one(
            0,
            1,
            1,
            "I think the answer is 41 apples",
            0.5,
            correct=0.0,
            right=False,
            tokens=9,
            advantage=-1.0,
            extras={"parsed": "41"},
        ),
        one(
            0,
            1,
            2,
            "I believe the answer is 42 apples",
            1.5,
            correct=1.0,
            right=True,
            tokens=8,
            advantage=1.0,
            extras={"parsed": "42"},
        ),
        one(1, 1, 1, "no idea", None, right=None, suspect=["very_long"], why={"very_long": "212 tokens"}),
        one(
            0,
            5,
            1,
            "<think>\nsix times seven\n</think>\n<answer>42</answer>",
            2.0,
            correct=1.0,
            format=1.0,
            right=True,
            answer=[41, 43],
        ),
        one(
            0,
            5,
            2,
            "<answer>42</answer>",
            2.0,
            correct=1.0,
            format=0.25,
            right=True,
            answer=[8, 10],
            suspect=["very_long", "near_duplicate"],
        ),
        one(0, 5, 3, "<think>\nsix times", -0.25, correct=0.0, format=0.0, right=False, suspect=["near_duplicate"]),
        one(1, 9, 1, "four", 0.75, correct=0.5, right=True),
        one(2, 9, 1, "seven", 1.0, correct=1.0, right=True),
    ]
    found = payload(QUESTIONS, rows)
    found["prompts"]["n"][3] = 16
    found["prompts"]["seen"][3] = [2, 4]
    found["selection"] |= {"of": 24, "left_out": "prompt 3 was left out"}
    found["metrics"] = {
        "step": [1, 5, 9],
        "own": ["typos"],
        "columns": {
            "reward": [1.0, 1.25, 0.875],
            "kl": [None, 0.00012, 0.002],
            "typos": [3, None, 0],
            "rewards/format_reward/mean": [0, 0.4, None],
        },
    }
    found["printed"] = [
        {"step": 5, "text": "scored\n"},
        {"step": 5, "text": "parsed=None"},
        {"step": 7, "text": "between"},
    ]
    found["events"] = [
        {"step": 5, "kind": "health", "said": "kl is high"},
        {"step": 12, "kind": "failed", "said": "out of memory"},
    ]
    return found


@pytest.fixture(scope="module")
def small_page():
    return page_file.page_html(small())


# --------------------------------------------------------------------------- opening


def test_the_page_opens_from_disk_and_says_which_run_it_shows(opened):
    page = opened(demo())
    assert page.inner_text("h1") == "word-problems-qwen2" and "word-problems-qwen2" in page.title()
    assert page.inner_text("#run-about").endswith("40 steps · 24 prompts · 640 completions")
    assert "Left out: 1,280 completions in the middle" in page.inner_text("#selection")
    page.click("#selection button")
    assert "1 half-written line of log.jsonl was left out" in page.inner_text("#help")
    assert count(page) == 24 and page.is_visible("#prompts table")


def test_no_text_of_the_run_stands_in_the_file_as_it_is():
    found = small()
    found["completions"]["text"][0] = "<script>steal()</script>"
    assert "steal" not in page_file.page_html(found) and "apples" not in page_file.page_html(found)


@pytest.mark.parametrize("broken", ["cut short", "no base64", "no json", "other version"])
def test_a_damaged_file_says_so_instead_of_an_empty_page(opened, small_page, broken):
    data = re.search(r'id="payload">([^<]*)<', small_page)[1]

    def pack(text):
        return base64.b64encode(gzip.compress(text.encode())).decode()

    other = {
        "cut short": data[: len(data) // 2 // 4 * 4],
        "no base64": "!" + data,
        "no json": pack("{"),
        "other version": pack('{"version": 99}'),
    }
    page = opened(small_page.replace(data, other[broken]))
    assert "could not be shown" in page.inner_text("[role=alert]") and not page.is_visible("#app")
    if broken == "other version":
        assert "another version" in page.inner_text("[role=alert]")


def test_without_javascript_the_page_says_that_it_needs_it(chromium, tmp_path, small_page):
    (tmp_path / "page.html").write_text(small_page, encoding="utf-8")
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert "needs JavaScript" in page.inner_text("body")
    context.close()


def test_an_old_browser_without_decompression_is_told_what_is_needed(chromium, small_page, tmp_path):
    (tmp_path / "old.html").write_text(small_page, encoding="utf-8")
    context = chromium.new_context()
    context.add_init_script("delete window.DecompressionStream")
    page = context.new_page()
    page.goto((tmp_path / "old.html").as_uri())
    page.wait_for_selector("html[data-failed]", state="attached")
    assert "Firefox 113" in page.inner_text("[role=alert]")
    context.close()


# --------------------------------------------------------------------------- prompts


def test_prompts_are_found_by_text_and_data_in_any_case(opened, small_page):
    page = opened(small_page)
    assert search(page, "prompts", "pears") == 1 and ids(page, "prompts") == [1]
    assert search(page, "prompts", "42") == 1 and search(page, "prompts", "ITEM") == 2
    assert search(page, "prompts", "nothing has this") == 0
    assert "No prompt matches" in page.inner_text("#prompts .nothing")
    assert search(page, "prompts", "") == 4


def test_a_search_in_a_named_column_leaves_the_others_out(opened, small_page):
    page = opened(small_page)
    assert search(page, "prompts", "answer") == 1  # the text of prompt 2
    assert search(page, "prompts", "answer:4") == 1 and ids(page, "prompts") == [1]  # a number is meant whole: not 42
    assert search(page, "prompts", "level:item") == 2 and search(page, "prompts", "TEXT:fruit") == 1
    assert search(page, "prompts", "level:apples") == 0


def test_a_match_deep_in_a_text_is_shown_and_marked(opened):
    page = opened(payload([{"text": "a " * 900 + "Needle here"}, {"text": "b"}], [one(0, 1, 1, "x", 1.0)]))
    search(page, "prompts", "needle")
    assert (
        page.inner_text("#prompts mark") == "Needle" and texts(page, "prompts", "text")[0] == "…a a a a a a Needle here"
    )


SORTED = [
    ("best", [1, 2, 0, 3], [0, 2, 1, 3]),  # numbers; prompt 3 has none
    ("tokens", [0, 3, 1, 2], [1, 3, 0, 2]),
    ("data/answer", [1, 3, 0, 2], [0, 3, 1, 2]),
    ("data/level", [0, 1, 3, 2], [2, 3, 1, 0]),  # text: item 9 before item 10
    ("text", [0, 1, 3, 2], [2, 3, 1, 0]),
]


def test_every_kind_of_column_sorts_both_ways_with_nulls_last(opened, small_page):
    page = opened(small_page)
    for column, up, down in SORTED:
        assert (column, sort(page, "prompts", column), ids(page, "prompts")) == (column, "ascending", up)
        assert (column, sort(page, "prompts", column), ids(page, "prompts")) == (column, "descending", down)
        assert (column, sort(page, "prompts", column), ids(page, "prompts")) == (column, "none", [0, 1, 2, 3])


def test_sorting_is_stable(opened):
    page = opened(payload([{"text": str(i), "data": {"group": i % 2}} for i in range(60)], [one(0, 1, 1, "x", 1.0)]))
    sort(page, "prompts", "data/group")
    assert ids(page, "prompts") == [*range(0, 60, 2), *range(1, 60, 2)]
    sort(page, "prompts", "data/group")
    assert ids(page, "prompts") == [*range(1, 60, 2), *range(0, 60, 2)]


def test_ranges_of_several_columns_hold_together_and_are_taken_off_one_by_one(opened, small_page):
    page = opened(small_page)
    assert limit_to(page, "prompts", "best", low=0.8) == 2 and ids(page, "prompts") == [0, 2]  # no best is in no range
    assert limit_to(page, "prompts", "data/answer", high=42) == 1
    assert page.locator("#prompts .chip").all_inner_texts() == ["0.8 ≤ best ×", "answer ≤ 42 ×"]
    page.locator("#prompts .chip").first.click()
    assert count(page) == 3
    page.locator("#prompts .chip").first.click()
    assert count(page) == 4


def test_steps_and_completions_of_a_prompt_are_those_of_the_whole_run(opened, small_page):
    page = opened(small_page)
    assert texts(page, "prompts", "seen") == ["2", "2", "1", "2"] and texts(page, "prompts", "n") == [
        "5",
        "2",
        "1",
        "16",
    ]


def test_what_all_prompts_begin_with_does_not_hide_what_they_ask(opened):
    page = opened(demo(prompts=3, steps=3))
    assert all(text.startswith("… ") and " has " in text[:20] for text in texts(page, "prompts", "text"))
    page.click("#prompts tr[data-row='0']")
    assert page.inner_text("#compare .question .text").startswith("system\nThink step by step")


# --------------------------------------------------------------------------- compare


def test_the_right_is_the_best_of_the_latest_step_and_of_equals_the_shortest(opened, small_page):
    page = opened(small_page)
    page.click("#prompts tr[data-row='0']")
    assert titles(page) == ("Step 1, place 2", "Step 5, place 2")
    assert "best of the latest step" in page.inner_text("#right .where")
    assert address(page) == {"view": "compare", "prompt": "0"}


def test_a_prompt_with_one_step_is_compared_with_its_own_worst(opened):
    page = opened(
        payload(
            QUESTIONS[:1], [one(0, 3, place, f"text {place}", total) for place, total in ((1, 1.0), (2, 0.0), (3, 2.0))]
        ),
        "#view=compare",
    )
    assert titles(page) == ("Step 3, place 2", "Step 3, place 3")


def test_the_slider_moves_over_steps_and_arrows_within_one(opened, small_page):
    page = opened(small_page, "#view=compare&prompt=0")
    page.fill("#step", "1")
    assert titles(page)[0] == "Step 5, place 2"  # the best of the step
    page.click("[data-act=next]")
    assert titles(page)[0] == "Step 5, place 3" and page.is_disabled("[data-act=next]")
    assert "3 of 3" in page.inner_text("#left .where")
    page.click("h1")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert titles(page)[0] == "Step 5, place 1" and page.is_disabled("[data-act=before]")
    page.keyboard.press("Shift+ArrowLeft")
    assert titles(page)[0] == "Step 1, place 1"
    page.keyboard.press("]")
    assert titles(page)[0] == "Step 5, place 1"
    page.click("[data-act=worst]")
    page.keyboard.press("[")
    assert titles(page)[0] == "Step 1, place 1" and titles(page)[1] == "Step 5, place 2"


def test_a_pinned_completion_stays_on_the_right_until_it_is_reset(opened, small_page):
    page = opened(small_page, "#view=compare&prompt=0&step=1&place=1")
    page.click("[data-act=pin]")
    page.keyboard.press("ArrowRight")
    assert titles(page) == ("Step 1, place 2", "Step 1, place 1") and address(page)["right"] == "1.1"
    assert "pinned" in page.inner_text("#right .where")
    page.click("[data-act=reset]")
    assert titles(page)[1] == "Step 5, place 2" and "right" not in address(page)


def test_differences_are_marked_word_by_word(opened, small_page):
    page = opened(small_page, "#view=compare&prompt=0&step=1&place=1&right=1.2")
    assert only(page, "left") == ["think", "41"] and only(page, "right") == ["believe", "42"]
    assert "2 words only here" in page.inner_text("#left .status")
    page.keyboard.press("d")
    assert only(page, "left") == [] and address(page)["diff"] == "off"
    assert page.inner_text("#left .text") == "I think the answer is 41 apples"


def test_removed_and_added_words_are_no_islands_around_single_spaces(opened):
    rows = [one(0, 1, 1, "start one two three end", 0.0), one(0, 2, 1, "start vier fünf sechs end", 1.0)]
    page = opened(payload(QUESTIONS[:1], rows), "#view=compare")
    assert only(page, "left") == ["one two three"] and only(page, "right") == ["vier fünf sechs"]


def test_tags_and_numbers_differ_as_a_whole(opened):
    rows = [one(0, 1, 1, "answer 1.5 <b> 10 é", 0.0), one(0, 2, 1, "<answer> 2.5 </b> 20 é", 1.0)]
    page = opened(payload(QUESTIONS[:1], rows), "#view=compare")
    assert only(page, "left") == ["answer 1.5 <b> 10"] and "".join(only(page, "right")) == "<answer> 2.5 </b> 20"


def reference(a: list[str], b: list[str]) -> int:
    """Length of the longest common subsequence, by the textbook's table."""
    row = [0] * (len(b) + 1)
    for left in a:
        above = row[:]
        for j, right in enumerate(b):
            row[j + 1] = above[j] + 1 if left == right else max(above[j + 1], row[j])
    return row[-1]


def test_as_few_words_as_possible_are_marked_and_the_rest_is_the_same_on_both_sides(opened):
    import random

    draw = random.Random(3)
    pairs = [[[draw.choice("abcd") for _ in range(draw.randint(0, 14))] for _ in range(2)] for _ in range(40)]
    rows = [one(p, step, 1, ".".join(pair[step - 1]), 0.0) for p, pair in enumerate(pairs) for step in (1, 2)]
    page = opened(payload([{"text": f"prompt {p}"} for p in range(len(pairs))], rows), "#view=compare")
    kept = """side => [...document.querySelector(`#${side} .text`).childNodes]
        .filter(node => !node.className).map(node => node.textContent).join("")"""
    for number, (a, b) in enumerate(pairs):
        left, right = (re.findall(r"\w|\.", ".".join(words)) for words in (a, b))
        if left and right:
            same = [page.evaluate(kept, side) for side in ("left", "right")]
            assert same[0] == same[1] or left == right, (number, a, b)
            assert len(same[0]) == reference(left, right), (number, a, b)
        page.keyboard.press("n")


def test_equal_texts_are_said_to_be_identical(opened):
    rows = [one(0, 1, 1, "same", 0.0), one(0, 2, 1, "same", 1.0), one(1, 1, 1, "alone", 0.0)]
    page = opened(payload(QUESTIONS[:2], rows), "#view=compare&prompt=0")
    assert "identical" in page.inner_text("#left .status") and only(page, "left") == []
    page.keyboard.press("n")
    assert "The same completion on both sides" in page.inner_text("#left .status")


def test_texts_too_different_to_compare_are_said_to_be_so(opened):
    rows = [one(0, step, 1, " ".join(f"{word}{i}" for i in range(2000)), 0.0) for step, word in ((1, "a"), (2, "b"))]
    page = opened(payload(QUESTIONS[:1], rows), "#view=compare")
    assert "too long or too different" in page.inner_text("#left .status") and only(page, "left") == []


def test_tags_reasoning_and_answer_are_marked_and_what_is_not_closed_is_said(opened, small_page):
    page = opened(small_page, "#view=compare&prompt=0&step=5&place=1&diff=off")
    assert page.locator("#left .text .tag").all_inner_texts() == ["<think>", "</think>", "<answer>", "</answer>"]
    assert page.inner_text("#left .text .reasoning").strip() == "six times seven"
    assert page.locator("#left .text mark.found.answer").all_inner_texts() == ["42"]
    assert page.locator("#left .status .problem").count() == 0
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "<think> is never closed" in page.inner_text("#left .status")
    assert "suspect: Near duplicate" in page.inner_text("#left .status")


def test_reasoning_that_the_prompt_has_opened_is_marked_as_such(opened):
    rows = [one(0, 1, 1, "carry one</think><answer>4</answer>", 1.0), one(1, 1, 1, "</think>", 0.0)]
    page = opened(payload([{"text": "2 + 2?\nassistant\n<think>\n"}, {"text": "no tag"}], rows), "#view=compare")
    assert page.inner_text("#left .text .reasoning") == "carry one" and page.locator("#left .problem").count() == 0
    page.keyboard.press("n")
    assert "</think> closes nothing" in page.inner_text("#left .status")


def test_marks_differences_the_answer_and_invisible_characters_compose(opened):
    texts_ = ["😀<answer>a\u202eb 4</answer>", "😀<answer>a\u202eb 5</answer>"]
    rows = [one(0, step, 1, text, 0.0, answer=[10, 15]) for step, text in enumerate(texts_, 1)]
    page = opened(payload(QUESTIONS[:1], rows), "#view=compare")
    pieces = page.eval_on_selector_all(
        "#left .text > *", "all => all.map(e => [e.tagName, e.className, e.textContent])"
    )
    assert pieces == [
        ["SPAN", "tag", "<answer>"],
        ["MARK", "answer found", "a"],
        ["MARK", "answer found unseen", "U+202E"],
        ["MARK", "answer found", "b "],
        ["DEL", "answer found removed", "4"],
        ["SPAN", "tag", "</answer>"],
    ]
    assert page.inner_text("#left .facts").count("‹U+202E›") == 1


def test_scores_are_shown_with_their_range_and_their_difference(opened, small_page):
    page = opened(small_page, "#view=compare&prompt=0&step=1&place=1")
    scores = page.locator("#right .scores [data-reward=correctness_reward]")
    assert scores.locator(".value").inner_text() == "1" and scores.locator(".delta").inner_text() == "+1"
    assert scores.locator("i").evaluate("bar => bar.style.width") == "100%"
    assert page.locator("#right [data-reward=format_reward] i").evaluate("bar => bar.style.width") == "25%"
    assert page.locator("#right [data-reward=brevity_reward] .value").inner_text() == "–"
    assert "✗ wrong" in page.inner_text("#left header") and "✓ right" in page.inner_text("#right header")
    assert page.locator("#left .facts div", has_text="parsed").locator("dd").inner_text() == "41"


def test_next_and_previous_prompt_follow_the_table_of_prompts(opened, small_page):
    page = opened(small_page)
    sort(page, "prompts", "data/answer")  # 1, 3, 0, 2
    page.locator("#prompts tr[data-row='0']").click()
    assert page.input_value("#compare-prompt") == "1"
    page.keyboard.press("n")
    assert page.input_value("#compare-prompt") == "3"
    assert (
        "No completion of prompt 3 is in this page (16 completions in the run). prompt 3 was left out"
        in page.inner_text("#compare")
    )
    page.keyboard.press("n")
    assert page.input_value("#compare-prompt") == "0" and page.is_visible("#left")
    page.keyboard.press("p")
    assert page.input_value("#compare-prompt") == "3" and "2 of 4 in the list" in page.inner_text("#compare .bar")


def test_two_groups_of_a_prompt_in_one_step_are_kept_apart(opened):
    rows = [
        one(0, 1, place, f"group {group} place {place}", group + place / 10, group=group)
        for group in (0, 1)
        for place in (1, 2)
    ]
    page = opened(payload(QUESTIONS[:1], rows), "#view=completions")
    assert texts(page, "completions", "group") == ["0", "0", "1", "1"]
    page.click("#completions tr[data-row='3']")
    assert titles(page)[0] == "Step 1, place 2, group 1" and address(page)["group"] == "1"
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert titles(page)[0] == "Step 1, place 2, group 1"


def test_a_dot_of_the_strip_chooses_its_completion(opened, small_page):
    page = opened(small_page, "#view=compare&prompt=0")
    box = page.locator(".strip").bounding_box()
    page.mouse.click(box["x"] + box["width"] - 1, box["y"] + box["height"] - 2)
    assert titles(page)[0] == "Step 5, place 3"


# --------------------------------------------------------------------------- completions, suspects, log


def test_all_completions_of_a_prompt_or_of_all_stand_in_one_table(opened, small_page):
    page = opened(small_page, "#view=completions")
    assert count(page) == 8 and texts(page, "completions", "prompt") == ["0", "0", "1", "0", "0", "0", "1", "2"]
    page.fill("#scope", "0")
    assert (
        count(page) == 5
        and address(page)["prompt"] == "0"
        and "How many apples?" in page.inner_text("#completions .prompt-line")
    )
    assert page.locator("#completions th[data-column=prompt]").count() == 0
    page.fill("#scope", "3")
    assert "No completion of prompt 3 is in this page" in page.inner_text("#completions .nothing")
    page.fill("#scope", "")
    assert count(page) == 8
    page.click("#completions tr[data-row='5']")
    assert titles(page)[0] == "Step 5, place 3"


def test_completions_are_filtered_by_step_judgement_and_search(opened, small_page):
    page = opened(small_page, "#view=completions")
    assert limit_to(page, "completions", "step", low=5, high=5) == 3
    page.select_option("#judged", "wrong")
    assert count(page) == 1 and texts(page, "completions", "right") == ["✗ wrong"]
    page.select_option("#judged", "unknown")
    assert count(page) == 0
    page.locator("#completions .chip").click()
    assert count(page) == 1 and ids(page, "completions") == [2]
    page.select_option("#judged", "")
    assert search(page, "completions", "SIX times") == 2 and search(page, "completions", "parsed:41") == 1
    assert search(page, "completions", "question:pears") == 2 and search(page, "completions", "answer:42") == 5
    assert search(page, "completions", "format_reward:0.25") == 1


def test_completions_sort_by_each_score_with_nulls_last(opened, small_page):
    page = opened(small_page, "#view=completions")
    sort(page, "completions", "score/correctness_reward")
    assert texts(page, "completions", "score/correctness_reward") == [
        "0.0",
        "0.0",
        "0.5",
        "1.0",
        "1.0",
        "1.0",
        "1.0",
        "–",
    ]
    assert ids(page, "completions") == [0, 5, 6, 1, 3, 4, 7, 2]
    sort(page, "completions", "score/correctness_reward")
    assert ids(page, "completions") == [1, 3, 4, 7, 6, 0, 5, 2]
    sort(page, "completions", "right")
    assert texts(page, "completions", "right")[-1] == "–"
    assert page.inner_text("#completions th[data-column='score/correctness_reward']") == "correctness"


def test_suspects_are_listed_by_rule_with_counts_and_reasons(opened, small_page):
    page = opened(small_page, "#view=suspects")
    assert page.locator("#suspects .rules button").all_inner_texts() == [
        "All3",
        "Wrong, but scored high0",
        "Right, but scored low0",
        "Near duplicate2",
        "Very long2",
    ]
    assert count(page) == 3
    page.click("[data-rule=very_long]")
    assert count(page) == 2 and address(page)["rule"] == "very_long"
    assert "99th percentile" in page.inner_text("#rule-said")
    assert texts(page, "suspects", "why") == ["212 tokens", "Very long"]
    page.click("[data-rule=wrong_but_high]")
    assert "named by this rule" in page.inner_text("#suspects .nothing")
    page.click("[data-rule=near_duplicate]")
    page.click("#suspects tr[data-row='1']")
    assert titles(page)[0] == "Step 5, place 3"


def test_counts_of_suspects_say_how_many_the_whole_run_has(opened):
    found = small()
    found["suspects"]["rules"][3]["n"] = 9
    page = opened(found, "#view=suspects&rule=very_long")
    assert "2 of 9" in page.inner_text("[data-rule=very_long]") and "9 completions in the whole run" in page.inner_text(
        "#rule-said"
    )


def test_the_reward_log_has_a_row_for_every_step_of_which_anything_is_known(opened, small_page):
    page = opened(small_page, "#view=log")
    assert texts(page, "log", "step") == ["1", "5", "7", "9", "12"]
    assert texts(page, "log", "metric/typos") == ["3", "–", "–", "0", "–"]
    heads = page.eval_on_selector_all("#log th", "all => all.map(one => one.innerText.trim())")
    assert heads == ["step", "printed", "events", "typos", "reward", "format mean", "kl"]  # own ones first
    assert (
        texts(page, "log", "printed")[1] == "scored↵ parsed=None"
        and texts(page, "log", "events")[4] == "failed: out of memory"
    )
    assert page.locator("#log th[data-column='metric/reward'] svg path").count() == 1
    assert search(page, "log", "parsed=") == 1
    search(page, "log", "")
    assert limit_to(page, "log", "metric/reward", low=1) == 2


def test_a_step_of_the_log_opens_to_what_was_printed_and_leads_to_its_completions(opened, small_page):
    page = opened(small_page, "#view=log")
    page.click("#log tr[data-row='1']")
    detail = page.locator("#log tr.detail")
    assert detail.locator("pre").inner_text() == "scored\nparsed=None" and "kl is high" in detail.inner_text()
    detail.get_by_role("button", name="Completions of step 5, with parsed").click()
    assert page.is_visible("#completions") and count(page) == 3
    assert address(page) == {"view": "completions", "range": "5..5:step"}
    page.go_back()
    page.wait_for_selector("#log tr.detail")
    page.click("#log tr[data-row='1'] td")
    assert page.locator("#log tr.detail").count() == 0


# --------------------------------------------------------------------------- address


def test_a_link_shows_what_it_names(opened, small_page):
    page = opened(small_page, "#view=compare&prompt=0&step=5&place=3&right=1.1&diff=off")
    assert titles(page) == ("Step 5, place 3", "Step 1, place 1") and not page.is_checked("#diff")
    page.evaluate("location.hash = '#view=completions&prompt=0&judged=right&sort=-tokens&q=answer&range=..1.5:total'")
    page.wait_for_selector("#completions table")
    assert ids(page, "completions") == [1] and page.input_value("#completions .search") == "answer"
    assert page.locator("#completions th[data-column=tokens]").get_attribute("aria-sort") == "descending"


def test_what_is_seen_comes_back_with_its_address(opened, small_page):
    page = opened(small_page, "#view=completions")
    search(page, "completions", "a")
    sort(page, "completions", "total")
    limit_to(page, "completions", "step", high=5)
    page.select_option("#judged", "right")
    before = ids(page, "completions")
    assert before and address(page) == {
        "view": "completions",
        "judged": "right",
        "q": "a",
        "sort": "total",
        "range": "..5:step",
    }
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert ids(page, "completions") == before


def test_the_back_button_goes_from_view_to_view(opened, small_page):
    page = opened(small_page)
    search(page, "prompts", "many")
    page.click("#prompts tr[data-row='1']")
    assert address(page) == {"view": "compare", "prompt": "1"}
    page.keyboard.press("3")
    assert address(page) == {"view": "completions", "prompt": "1"} and count(page) == 2
    page.go_back()
    page.wait_for_selector("#left")
    assert page.input_value("#compare-prompt") == "1"
    page.go_back()
    page.wait_for_selector("#prompts table")
    assert page.input_value("#prompts .search") == "many" and count(page) == 2
    assert page.evaluate("document.activeElement.dataset.row") == "1"  # the row that was left
    page.go_forward()
    page.wait_for_selector("#left")


@pytest.mark.parametrize(
    "hash_, said, shows",
    [
        ("prompt=99", "Prompt 99 is not in this page; the nearest is shown: 3.", None),
        ("prompt=0&step=4", "Step 4 of prompt 0 is not in this page; the nearest is shown: step 5.", "Step 5, place 2"),
        (
            "prompt=0&step=5&place=8",
            "Place 8 of step 5 is not in this page; the nearest is shown: place 3.",
            "Step 5, place 3",
        ),
        ("prompt=0&right=7.7", "“7.7” on the right is not in this page", "Step 1, place 2"),
        ("prompt=x", "asks for prompt “x”, which is no number", "Step 1, place 2"),
    ],
)
def test_a_link_to_what_is_not_there_says_so_and_shows_the_nearest(opened, small_page, hash_, said, shows):
    page = opened(small_page, f"#view=compare&{hash_}")
    assert said in page.inner_text("#notice")
    assert shows is None or titles(page)[0] == shows
    page.keyboard.press("1")
    assert not page.is_visible("#notice")


NONSENSE = [
    "#",
    "#%",
    "#%E0%A4%A",
    "#&&==",
    "#view=%00&prompt=-1",
    "#view=__proto__",
    "#view=completions&sort=constructor&range=a..b:total",
    "#view=completions&page=999999999&range=1..2:__proto__&prompt=1e9",
    "#view=suspects&rule=<img src=x onerror=alert(1)>",
    "#view=compare&prompt=0&right=1.2.3.4.5&place=worst&group=7",
    "#view=compare&step=9&place=1",
    "#" + "x" * 20_000,
    "#view=log&q=" + "%F0%9F%98" * 50 + "&sort=-metric/reward",
]


def test_nonsense_in_the_address_breaks_nothing(opened, small_page):
    page = opened(small_page, "#view=<script>&prompt=-1&q=%")
    for at, hash_ in enumerate(NONSENSE):
        page.evaluate("hash => { location.hash = hash }", hash_)
        if at % 3 == 0:  # the page opens with it
            page.reload()
            page.wait_for_selector("html[data-ready]", state="attached")
        assert not page.is_visible("#message") and page.locator("main section:visible").count() == 1, hash_
        assert width_is_kept(page), hash_


# --------------------------------------------------------------------------- keys, themes, reading aloud


def test_the_keyboard_alone_goes_everywhere(opened, small_page):
    page = opened(small_page)
    for key, view in zip("12345", ("prompts", "compare", "completions", "suspects", "log")):
        page.keyboard.press(key)
        assert page.is_visible(f"#{view}") and page.get_attribute(f"[data-view={view}]", "aria-current") == "page"
        assert page.get_attribute(f"[data-view={view}]", "title").endswith(f"(key {key})")
        assert not any(letter.isdigit() for letter in page.inner_text(f"[data-view={view}]")), "a key reads as a count"
    page.keyboard.press("1")
    page.keyboard.press("/")
    page.keyboard.type("many 12/")  # no key of ours acts while one types
    assert page.input_value("#prompts .search") == "many 12/" and page.is_visible("#prompts")
    page.fill("#prompts .search", "many")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.id") == "1"
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    assert page.is_visible("#compare") and page.input_value("#compare-prompt") == "0"
    page.keyboard.press("?")
    assert page.is_visible("#help") and "next and previous row" in page.inner_text("#help")
    page.keyboard.press("Escape")
    assert not page.is_visible("#help") and page.is_visible("#compare")


def test_moving_over_the_end_of_a_page_turns_it(opened):
    page = opened(payload([{"text": f"prompt {i}"} for i in range(150)], [one(0, 1, 1, "x", 1.0)]))
    assert page.locator("#prompts tr[data-row]").count() == 100 and "1–100 of 150" in page.inner_text("#prompts .pager")
    page.focus("#prompts tr[data-row='99']")
    page.keyboard.press("j")
    assert (
        page.evaluate("document.activeElement.dataset.id") == "100"
        and page.locator("#prompts tr[data-row]").count() == 50
    )
    page.keyboard.press("k")
    assert page.evaluate("document.activeElement.dataset.id") == "99"
    page.locator("#prompts").get_by_title("Last page").click()
    assert ids(page, "prompts")[0] == 100 and address(page)["page"] == "2"


UNNAMED = """() => [...document.querySelectorAll("button, input, select, a, [role=region]")].filter(one => one.offsetParent &&
    !(one.textContent.trim() || one.ariaLabel || one.title || one.labels?.length)).map(one => one.outerHTML)"""


def test_everything_can_be_reached_with_tab_and_has_a_name(opened, small_page):
    page = opened(small_page, "#view=completions")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('tr[data-row]')"):
            break
    else:
        pytest.fail("no row was reached by Tab")
    for view in ("prompts", "compare", "completions", "suspects", "log"):
        page.evaluate(f"location.hash = 'view={view}'")
        page.wait_for_selector(f"#{view}", state="visible")
        assert page.evaluate(UNNAMED) == [], view


def test_counts_are_told_to_a_screen_reader(opened, small_page):
    page = opened(small_page)
    search(page, "prompts", "pears")
    page.wait_for_selector("#live >> text='1 of 4 prompts'", state="attached")
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    page.wait_for_selector("#live >> text=/Step 1, place 2, .*; Step 5, place 2, ✓ right/", state="attached")


def test_a_press_on_a_head_keeps_the_focus_there(opened, small_page):
    page = opened(small_page)
    page.focus("#prompts th[data-column=best] button")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.get_attribute("#prompts th[data-column=best]", "aria-sort") == "descending"


def test_the_theme_follows_the_system_until_one_is_chosen_and_is_kept(opened, small_page):
    page = opened(small_page, theme="dark")

    def ground():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    dark = ground()
    page.emulate_media(color_scheme="light")
    page.wait_for_selector("html[data-theme=light]")
    assert ground() == "rgb(255, 255, 255)" != dark
    page.keyboard.press("t")
    page.keyboard.press("t")
    assert "Dark" in page.inner_text("#theme") and ground() == dark
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert ground() == dark


CONTRAST = """() => {
    const part = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
    const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    const colour = (text) => text.match(/[\\d.]+/g).map(Number);
    const ground = (one) => {
        for (; one; one = one.parentElement) {
            const found = colour(getComputedStyle(one).backgroundColor);
            if (found.length < 4 || found[3] === 1) return found;
        }
        return [255, 255, 255];
    };
    const apart = ".unseen[aria-live], :disabled, script, style, option", bad = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const one = node.parentElement;
        if (!node.textContent.trim() || !one.checkVisibility() || one.closest(apart)) continue;
        const [a, b] = [light(colour(getComputedStyle(one).color)), light(ground(one))].sort((x, y) => y - x);
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < 4.5) bad.add(`${one.tagName}.${one.className} ${node.textContent.slice(0, 30)} ${contrast.toFixed(2)}`);
    }
    return [...bad];
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_enough_contrast_in_both_themes(opened, theme):
    page = opened(demo(prompts=4, steps=12), theme=theme, motion="reduce")
    for address_ in (
        "view=prompts&q=has",
        "view=compare&prompt=1",
        "view=compare&prompt=1&place=worst",
        "view=completions",
        "view=suspects",
        "view=log",
    ):
        page.evaluate("address => { location.hash = address }", address_)
        page.wait_for_timeout(50)
        assert page.evaluate(CONTRAST) == [], address_
    page.keyboard.press("?")
    assert page.evaluate(CONTRAST) == []


OUTSIDE = """() => [...document.querySelectorAll(".tools button, .bar > *, .choose > *, h2")].filter(one => {
    const { left, right } = one.getBoundingClientRect();
    return one.offsetParent && !one.closest("dialog") && (right > innerWidth + 1 || left < -1);
}).map(one => one.outerHTML)"""


@pytest.mark.parametrize("width", [320, 420, 900, 1600])
def test_no_view_is_wider_than_the_screen(opened, width):
    page = opened(demo(prompts=4, steps=12), width=width)
    for view in ("prompts", "compare", "completions", "suspects", "log"):
        page.evaluate(f"location.hash = 'view={view}'")
        page.wait_for_selector(f"#{view}", state="visible")
        assert width_is_kept(page), view
        assert page.evaluate(OUTSIDE) == [], view
    if width >= 900:
        assert page.locator("#log .table").evaluate("box => box.clientHeight") > 400


# --------------------------------------------------------------------------- CSV


def test_the_csv_holds_all_rows_that_the_filter_leaves_and_whole_texts(opened):
    found = payload(
        [{"text": f"prompt {i}\n" + "long " * 200, "data": {"answer": i}} for i in range(250)], [one(0, 1, 1, "x", 1.0)]
    )
    found["run"]["name"] = "My run / 1"
    page = opened(found)
    limit_to(page, "prompts", "data/answer", low=10)
    sort(page, "prompts", "data/answer")
    sort(page, "prompts", "data/answer")
    name, rows = saved(page, lambda: page.click("#export"))
    assert name == "My-run-1-prompts.csv" and len(rows) == 241
    assert rows[0] == ["prompt", "text", "tokens", "steps", "completions", "best", "mean", "data/answer"]
    assert rows[1][:3] == ["249", "prompt 249\n" + "long " * 200, ""] and rows[1][-1] == "249"


def test_a_cell_that_a_spreadsheet_would_run_is_made_text_and_numbers_stay_numbers(opened):
    hostile = ["=1+1", "+1", "-cmd", "@x", "\tx", "\rx", 'say "hi", he said', "plain", "two\r\nlines", "'=1"]
    rows = [one(0, 1, place, text, -float(place), extras={"=note": text}) for place, text in enumerate(hostile, 1)]
    page = opened(payload(QUESTIONS[:1], rows), "#view=completions")
    name, table = saved(page, lambda: page.keyboard.press("e"))
    cells = dict(zip(table[0], zip(*table[1:])))
    assert name == "run-completions.csv"
    assert list(cells["text"]) == ["'=1+1", "'+1", "'-cmd", "'@x", "'\tx", "'\rx", *hostile[6:]]
    assert cells["extra/=note"] == cells["text"] and cells["total"][:2] == ("-1", "-2")
    assert cells["question"][0] == QUESTIONS[0]["text"] and cells["data/answer"][0] == "42"


def test_each_view_saves_its_own_csv(opened, small_page):
    page = opened(small_page, "#view=compare&prompt=0")
    assert len(saved(page, lambda: page.keyboard.press("e"))[1]) == 6  # the completions of this prompt
    page.keyboard.press("4")
    name, rows = saved(page, lambda: page.keyboard.press("e"))
    assert name == "run-suspects.csv" and len(rows) == 4 and "212 tokens" in rows[1]
    page.keyboard.press("5")
    name, rows = saved(page, lambda: page.keyboard.press("e"))
    assert rows[0] == [
        "step",
        "printed",
        "events",
        "metric/typos",
        "metric/reward",
        "metric/rewards/format_reward/mean",
        "metric/kl",
    ]
    assert rows[2] == ["5", "scored\nparsed=None", "health: kl is high", "", "1.25", "0.4", "0.00012"]


# --------------------------------------------------------------------------- hostile text

HOSTILE = [
    "<script>window.pwned=1</script>",
    "<img src=x onerror='window.pwned=1'>",
    "</script><script>window.pwned=1</script>",
    '"><svg onload=window.pwned=1>',
    "<iframe srcdoc='<script>parent.pwned=1</script>'>",
    "[x](javascript:window.pwned=1)",
    "javascript:window.pwned=1",
    "<a href='javascript:window.pwned=1'>x</a>",
    "<!--",
    "<think><b><i><table>",
    "\u202eevil\u2066\u200b\ufeff\u061c",
    "\0null\0",
    "\ud83d lone \udc00",
    "w" * 100_000,
    "${{ 7 * 7 }}",
    "{{PAYLOAD}} {{SCRIPT}} {{CSP}}",
    "&quot;&lt;&#x3C;",
    "\\u003cscript>",
    "\u2028\u2029",
    "\x1b[31mred\x07\x08\x7f\x85",
    "Z\u0351\u036b\u0343" * 60,
    "<answer>" * 3000,
    "\0\x01" * 3000,
    "a\0b" * 3000,
    "a\n" * 5000,
    "",
    "__proto__",
    "constructor",
    "مرحبا بالعالم",
    "👩‍👩‍👧 é 日本語",
]


def hostile() -> dict:
    """Hostile text in every place that a run can write to."""
    rewards = [
        *REWARDS[:1],
        *(
            {"name": name[:300], "low": 0.0, "high": 1.0, "decides": False}
            for name in (HOSTILE[1], HOSTILE[2], "__proto__")
        ),
    ]
    prompts = [
        {"text": text, "tokens": 1, "data": {HOSTILE[1]: text[:2000], "__proto__": text[:500], "</script>": i}}
        for i, text in enumerate(HOSTILE)
    ]
    rows = []
    for step in (1, 2):
        for i, text in enumerate(HOSTILE):
            wide = text + (" changed" if step == 2 else "")
            rows.append(
                {
                    "prompt": i,
                    "step": step,
                    "text": wide,
                    "total": float(step),
                    "advantage": 0.0,
                    "tokens": 3,
                    "right": True,
                    "scores": {reward["name"]: 0.5 for reward in rewards},
                    "extras": {HOSTILE[2]: text[:2000], "constructor": text[:50]},
                    "answer": [0, min(3, len(wide.encode("utf-16-le", "surrogatepass")) // 2)],
                    "cut": 5 * (i % 2),
                    "suspect": ["very_long"],
                    "why": {"very_long": text[:2000]},
                }
            )
    found = payload(prompts, rows, rewards=rewards)
    found["run"] |= {
        "name": HOSTILE[0] + "w" * 60 + HOSTILE[10] + HOSTILE[15],
        "model": HOSTILE[1],
        "status": HOSTILE[2],
        "notes": HOSTILE[:13],
    }
    found["selection"] |= {"said": HOSTILE[2] + HOSTILE[10], "left_out": "w" * 5000}
    found["suspects"]["rules"][3] |= {"title": HOSTILE[1], "said": HOSTILE[2] * 20}
    found["marks"] += [{"open": "<", "close": "", "kind": "answer"}, {"open": "", "close": "", "kind": "x"}]
    names = [text[:200] for text in HOSTILE if text]
    found["metrics"] = {"step": [1, 2], "columns": {name: [0.5, None] for name in names}, "own": names[:3]}
    found["printed"] = [{"step": 1, "text": text} for text in HOSTILE]
    found["events"] = [{"step": 1, "kind": text[:100], "said": text[:3000]} for text in HOSTILE]
    return found


def unharmed(page) -> bool:
    return page.evaluate(
        "window.pwned === undefined && !document.querySelector('#app script, #app img, #app iframe, #app svg[onload], #app b i')"
    )


def test_hostile_text_never_runs_and_never_breaks_the_layout(opened):
    page = opened(hostile())
    for view in ("prompts", "compare", "completions", "suspects", "log"):
        page.evaluate(f"location.hash = 'view={view}'")
        page.wait_for_selector(f"#{view}", state="visible")
        assert unharmed(page) and width_is_kept(page), view
    page.click("#log tr[data-row='0']")
    assert unharmed(page) and width_is_kept(page)
    assert "<img src=x onerror='window.pwned=1'>" in page.inner_text("#log tr.detail")
    page.keyboard.press("?")
    assert unharmed(page) and "<script>window.pwned=1</script>" in page.inner_text("h1")
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    for _ in HOSTILE:
        assert unharmed(page) and width_is_kept(page)
        hidden = page.eval_on_selector_all(".pane .text", "all => all.map(box => box.scrollWidth - box.clientWidth)")
        assert hidden == [0, 0], "text stands outside of its box"
        page.keyboard.press("n")
    page.set_viewport_size({"width": 420, "height": 700})
    assert width_is_kept(page)


def test_hostile_names_of_columns_sort_search_and_export(opened):
    page = opened(hostile(), "#view=completions")
    for name in (HOSTILE[1], "__proto__"):
        page.locator(f'#completions th[data-column="score/{name}"] button').click()
        assert count(page) == 2 * len(HOSTILE) and "–" not in texts(page, "completions", f"score/{name}")
    assert search(page, "completions", "</script>:3") == 2 and search(page, "completions", "data/__proto__:null") == 2
    assert len(saved(page, lambda: page.click("#export"))[1]) == 3
    page.keyboard.press("1")
    limit_to(page, "prompts", "data/</script>", low=3, high=4)
    assert count(page) == 2 and unharmed(page)


BADGES = [
    ("a\0b", "aNULb"),
    ("a\0\0\0b", "aNUL×3b"),
    ("\u202eevil", "U+202Eevil"),
    ("zero\u200bwidth", "zeroU+200Bwidth"),
    ("\ud83d!", "U+D83D!"),
    ("\ufeffx", "U+FEFFx"),
    ("\x1b[31m", "ESC[31m"),
    ("x\r\ny", "xCR\ny"),
    ("\U000e0041", "U+E0041"),
    ("tab\tstays", "tab\tstays"),
    ("😀", "😀"),
]


def test_what_cannot_be_seen_is_shown_as_a_badge(opened):
    page = opened(
        payload(
            [{"text": text} for text, _ in BADGES], [one(i, 1, 1, text, 1.0) for i, (text, _) in enumerate(BADGES)]
        ),
        "#view=compare",
    )
    for text, shown in BADGES:
        assert page.locator("#left .text").evaluate("box => [box.textContent, getComputedStyle(box).unicodeBidi]") == [
            shown,
            "isolate",
        ]
        badges = page.locator("#left .text .unseen")
        assert badges.count() == (0 if text == shown else 1), ascii(text)
        assert text == shown or badges.first.get_attribute("title").startswith("U+")
        page.keyboard.press("n")


def test_a_very_long_text_is_cut_until_one_asks_for_all_of_it(opened):
    long, emoji = "word " * 30_000, "x" * 19_999 + "😀" + "y" * 10
    page = opened(payload(QUESTIONS[:2], [one(0, 1, 1, long, 1.0, cut=70), one(1, 1, 1, emoji, 1.0)]), "#view=compare")
    assert "130,000 more characters" in page.inner_text(
        "#left .text"
    ) and "70 more characters were not kept" in page.inner_text("#left .text")
    page.locator("#left").get_by_role("button", name="Show all").click()
    assert (
        len(page.inner_text("#left .text")) > 149_000
        and page.locator("#right").get_by_role("button", name="Show all").count() == 1
    )
    page.keyboard.press("n")
    assert page.locator("#left .unseen").count() == 0  # not cut through the emoji


def test_the_page_works_in_a_sandboxed_frame_made_from_text(opened, small_page):
    frame = f'<iframe srcdoc="{html.escape(small_page)}" sandbox="allow-scripts allow-downloads" width="800" height="700"></iframe>'
    page = opened(f"<!doctype html><html data-ready><p>notebook</p>{frame}")
    frame = page.frames[1]
    frame.wait_for_selector("html[data-ready]", state="attached")
    frame.click("#prompts tr[data-row='0']")
    assert frame.inner_text("#left h2") == "Step 1, place 2"
    frame.fill("#step", "1")
    frame.click("[data-act=pin]")
    frame.click("#theme")
    frame.click("[data-view=completions]")
    frame.fill("#completions .search", "six")
    assert frame.evaluate("document.documentElement.dataset.rows") == "2"
    page.wait_for_timeout(250)
    frame.evaluate("location.hash = '#view=compare&prompt=0&step=5&place=3'")
    frame.wait_for_selector("#left h2 >> text=Step 5, place 3")
    frame.evaluate("document.querySelector('#compare-prompt').blur()")
    assert len(saved(page, lambda: frame.click("#export"))[1]) == 6
    assert page.url.endswith(".html") and frame.evaluate("location.href").startswith("about:srcdoc")


# --------------------------------------------------------------------------- sizes


def test_a_run_without_completions_says_so_in_every_view(opened):
    page = opened(payload([], [], rewards=[]))
    for view, said in {
        "prompts": "no prompts yet",
        "compare": "no prompts yet",
        "completions": "no completions yet",
        "suspects": "named by this rule",
        "log": "Nothing was logged",
    }.items():
        page.evaluate(f"location.hash = 'view={view}'")
        page.wait_for_selector(f"#{view}", state="visible")
        assert said in page.inner_text(f"#{view}") and count(page) == 0
        for key in ("j", "Enter", "n", "p", "ArrowLeft", "]", "d", "e"):
            page.keyboard.press(key)


def test_one_completion_is_enough(opened):
    page = opened(payload([{"text": "only"}], [one(0, 0, 1, "one", 1.0)]))
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    for key in ("ArrowLeft", "ArrowRight", "[", "]", "n", "p", "d"):
        page.keyboard.press(key)
    assert titles(page) == ("Step 0, place 1", "Step 0, place 1")


def test_a_run_in_which_every_value_is_missing_is_shown_with_dashes(opened):
    rows = [{"prompt": 0, "step": step, "place": place, "text": ""} for step in (1, 2) for place in (1, 2)]
    page = opened(payload([{"text": "", "data": {"answer": None}}], rows), "#view=completions")
    for column in ("total", "advantage", "right"):
        if page.locator(f"#completions th[data-column={column}]").count():
            sort(page, "completions", column)
    assert count(page) == 4 and set(texts(page, "completions", "right")) == {"–"}
    page.keyboard.press("2")
    assert titles(page) == ("Step 1, place 1", "Step 2, place 1") and "identical" in page.inner_text("#left .status")
    assert "(empty)" in page.inner_text("#left .text") and "not judged" in page.inner_text("#left header")


def test_a_column_without_any_value_is_not_shown(opened):
    page = opened(payload([{"text": "a"}, {"text": "b"}], [one(0, 1, 1, "x", 1.0)]))
    assert (
        page.locator("#prompts th[data-column=tokens]").count() == 0
        and page.locator("#prompts th[data-column=best]").count() == 1
    )


def test_twenty_thousand_completions_open_filter_and_sort_with_right_counts(opened):
    page = opened(large(), "#view=completions")
    assert count(page) == 20_000 and page.locator("#completions tr[data-row]").count() == 100
    assert search(page, "completions", "ZEBRA") == 200 and search(page, "completions", "number 19999") == 1
    assert search(page, "completions", "prompt:7") == 40
    search(page, "completions", "")
    assert limit_to(page, "completions", "step", low=11, high=20) == 800
    sort(page, "completions", "total")
    shown = [float(value) for value in texts(page, "completions", "total")]
    assert shown == sorted(shown)
    assert len(saved(page, lambda: page.click("#export"))[1]) == 801
    page.keyboard.press("1")
    assert count(page) == 500


def test_the_script_and_the_style_have_nothing_that_the_template_would_take_for_its_own():
    assets = {
        name: (page_file.PAGE_FOLDER / name).read_text(encoding="utf-8")
        for name in ("page.html", "page.css", "page.js")
    }
    assert [
        assets["page.html"].count(f"{{{{{name}}}}}") for name in ("CSP", "TITLE", "STYLE", "SCRIPT", "PAYLOAD")
    ] == [1] * 5
    for name in ("page.css", "page.js"):
        assert not re.search(r"\{\{[A-Z]+\}\}|</s(cript|tyle)|<!--", assets[name]), name
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|fetch\(|XMLHttp",
        assets["page.js"],
    )


def test_totals_of_steps_with_other_weights_are_said_to_be_different_sums(opened):
    rows = [one(0, step, 1, f"text {step}", 1.0) for step in (0, 2, 5)]
    metrics = {
        "step": [1, 2, 3, 4, 5],
        "columns": {"weight/format_reward": [1, 1, 1, 0.5, 0.5], "reward": [1, 2, 3, 4, 5]},
        "own": [],
    }
    page = opened(payload(QUESTIONS[:1], rows, metrics=metrics), "#view=compare&prompt=0")
    assert "different sums" in page.inner_text("#right .status") and "different sums" not in page.inner_text(
        "#left .status"
    )
    page.goto("about:blank")  # the same address would be no new page
    page = opened(payload(QUESTIONS[:1], rows[:2], metrics=metrics), "#view=compare&prompt=0")
    assert "different sums" not in page.inner_text("#right .status"), "before the first step it is the first step's"


def test_a_search_in_a_column_that_is_not_there_says_so(opened):
    page = opened(payload(QUESTIONS, [one(0, 1, 1, "x", 1.0)]), "#view=prompts")
    page.fill("#prompts input[type=search]", "tmeplate:easy")
    page.wait_for_timeout(300)
    assert "There is no column “tmeplate” here." in page.inner_text("#prompts .nothing")
    page.fill("#prompts input[type=search]", "level:nothing")
    page.wait_for_timeout(300)
    assert page.inner_text("#prompts .nothing").endswith("matches the search and the filters.")


def test_the_table_of_completions_says_which_are_held_out_and_the_one_of_suspects_which_rule_it_was(opened):
    questions = [{"text": "a", "data": {"set": "training"}}, {"text": "b", "data": {"set": "held out"}}]
    rows = [one(0, 1, 1, "x", 1.0, suspect=["very_long"]), one(1, 1, 1, "y", 1.0)]
    page = opened(payload(questions, rows), "#view=completions")
    heads = page.locator("#completions thead th").all_inner_texts()
    assert any("set" == head.strip().split("\n")[0] for head in heads), heads
    page.keyboard.press("4")
    assert any("rule" in head for head in page.locator("#suspects thead th").all_inner_texts())
