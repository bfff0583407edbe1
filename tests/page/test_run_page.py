"""The completions page of a run: its payload, its file, and how it is shown in a notebook. Small synthetic runs."""

import base64
import dataclasses
import hashlib
import html
import json
import re

import numpy as np
import pandas as pd
import pytest

import rewards
from lab.page import answer_marks, page_file, run_page
from lab.read import run_record
from tests.page.browser_payload import unpack_payload
from tests.read.small_runs import distinct, group, healthy, make_run, one, tagged, with_evaluations

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "\0 NUL \x1b[31m",
    "\u202eRTL\u2066",
    "😀" * 3,
    "​zero​width",
    "\u2028\u2029",
    "x" * 30_000,
    "]]>",
    "{{PAYLOAD}}",
    "=1+1",
    "a\r\nb\rc",
    "\ufffe\uffff",
    "",
]


TAGS, BOXED, HASHED = rewards.TagFormat(), rewards.BoxedFormat(), rewards.HashFormat()


def columns_of(table):
    """Every list of a table that is kept column by column."""
    for values in table.values():
        yield from columns_of(values) if isinstance(values, dict) else [values]


@pytest.mark.parametrize("with_answers, suspect", [(3, {3}), (1, set())])
def test_right_without_an_answer_is_suspect_where_most_right_ones_have_one(tmp_path, with_answers, suspect):
    rows = distinct(4, right=1.0)
    for row in rows[with_answers:]:
        row["completion"] = row["completion"].replace("answer", "reply")
    found = run_page.run_payload(make_run(tmp_path, {1: rows}))
    assert {int(i) for i in found["suspects"]["more"]} == suspect
    counts = {rule["id"]: rule["n"] for rule in found["suspects"]["rules"]}
    assert counts["right_without_answer"] == len(suspect)


def test_a_selection_is_in_the_order_of_step_prompt_and_place(tmp_path):
    steps = {1: distinct(2, number=0) + distinct(2, number=1), 2: distinct(2, number=1) + distinct(2, number=0)}
    found = run_page.run_payload(make_run(tmp_path, steps))
    rows = found["completions"]
    order = list(zip(rows["step"], rows["prompt"], rows["place"]))
    assert order == [(1, 0, 1), (1, 0, 2), (1, 1, 1), (1, 1, 2), (2, 0, 1), (2, 0, 2), (2, 1, 1), (2, 1, 2)]
    assert found["prompts"]["text"] == ["p0", "p1"] and found["prompts"]["seen"] == [[1, 2], [1, 2]]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "run"
    extras = {
        "big": 2**62,
        "raw": b"\xff\x00",
        "many": [1, None],
        "deep": {"a": [1.5]},
        "odd": float("inf"),
        "none": None,
        "flag": True,
        "long": "y" * 3000,
        "data/answer": "42",
        "data/template": "plain",
        "prompt_tokens": 7,
    }
    rows = [one(text, float(i % 2), **extras, prompt=text or "empty", group=i) for i, text in enumerate(HOSTILE)]
    make_run(
        folder, {1: rows, 2: group([one(tagged(4), 1.0, **extras)] * 2, 0)}, {2: {"kl": 0.123456789, "own/metric": 3.0}}
    )
    printed = [{"step": 1, "text": "\ud800 half"}, {"text": "no step"}, {"step": 2, "text": "</script>"}]
    (folder / "printed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in printed))
    (folder / "events.jsonl").write_text(json.dumps({"step": 2, "kind": "resumed", "after_step": 1}) + "\n{half")
    return dataclasses.replace(run_record.read_run(folder), name="\udfff <b>&")


def test_the_payload_is_whole(hostile):
    found = run_page.run_payload(hostile)
    texts = found["completions"]["text"]
    assert list(found) == [
        "version",
        "run",
        "selection",
        "rewards",
        "data_columns",
        "extra_columns",
        "marks",
        "prompts",
        "completions",
        "suspects",
        "metrics",
        "printed",
        "events",
    ]
    assert (
        {len(values) for values in columns_of(found["completions"])}
        == {len(HOSTILE) + 2}
        == {found["selection"]["kept"]}
    )
    assert {len(values) for values in columns_of(found["prompts"])} == {len(HOSTILE) + 1}
    assert texts == [text[:20_000] for text in HOSTILE] + [tagged(4)] * 2
    assert found["completions"]["cut"][HOSTILE.index("x" * 30_000)] == 10_000
    assert [found["prompts"]["text"][i][:50] for i in found["completions"]["prompt"]][:2] == [
        text[:50] for text in HOSTILE[:2]
    ]
    assert found["prompts"]["seen"][-1] == [2] and found["prompts"]["tokens"] == [7] * (len(HOSTILE) + 1)
    assert found["prompts"]["data"] == {"answer": ["42"] * 15, "template": ["plain"] * 15}
    assert found["rewards"][0] == {"name": "correctness_reward", "low": 0, "high": 1, "decides": True}
    sets = found["suspects"]["sets"]
    assert sets[0] == [] and all(0 <= i < len(sets) for i in found["completions"]["suspect"])


def test_values_of_other_columns_become_numbers_texts_or_nothing(hostile):
    extras = {name: values[0] for name, values in run_page.run_payload(hostile)["completions"]["extras"].items()}
    long = extras.pop("long")
    assert extras == {
        "big": str(2**62),
        "raw": "\\xFF\\x00",
        "many": "[1,null]" if "1.0" not in extras["many"] else "[1.0,null]",
        "deep": '{"a":[1.5]}',
        "odd": None,
        "none": None,
        "flag": True,
    }
    assert long == "y" * 2000 + "\n[… 1000 characters left out]"


@pytest.mark.parametrize(
    "value, expected",
    [
        (1 / 3, 0.333333),
        (1234567.8, 1234570.0),
        (2.0, 2),
        (-0.0, 0),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (float("nan"), None),
        (float("-inf"), None),
        (None, None),
        (pd.NA, None),
        (2**60, str(2**60)),
        (10**400, str(10**400)),
        (1e300, 1e300),
        ([1], "[1]"),
        ({"a": 1}, "{'a': 1}"),
        ("text", "text"),
    ],
)
def test_a_scalar_is_what_json_has(value, expected):
    found = page_file.json_value(value)
    assert found == expected and type(found) is type(expected)


def test_the_log_events_and_prints_are_in_the_payload(hostile):
    found = run_page.run_payload(hostile)
    assert found["metrics"]["step"] == [1, 2] and found["metrics"]["columns"]["kl"] == [None, 0.123457]
    assert found["metrics"]["own"] == ["own/metric"] and "step" not in found["metrics"]["columns"]
    assert found["printed"] == [{"step": 1, "text": "\ud800 half"}, {"step": 2, "text": "</script>"}]
    assert found["events"] == [{"step": 2, "kind": "resumed", "said": "the run went on after step 1"}]


@pytest.mark.parametrize(
    "event, said",
    [
        ({"kind": "health", "rule": "clipped", "verdict": "warn", "message": "cut"}, "warn, clipped: cut"),
        (
            {"kind": "adapter_check", "moved": 1, "of": 2, "base_changed": 0, "base_tensors": 3},
            "1 of 2 trained tensors moved; of 3 frozen ones 0 changed",
        ),
        (
            {"kind": "reward_changed", "name": "a_v2", "was": "a", "mean_before": None, "mean_after": 0.5},
            "a_v2 from now on, for a; mean on the last completions – → 0.500",
        ),
        ({"kind": "reward_refused", "reward": "a", "error": "bad"}, "the edit of a was refused: bad"),
        ({"kind": "failed", "reason": "no"}, "the run failed: no"),
        ({"kind": "interrupted"}, "the run was interrupted: –"),
        ({"kind": "something new", "x": 1}, "x: 1"),
    ],
)
def test_events_are_told_in_words(event, said):
    assert run_page.event_line({"step": 3, **event}) == {"step": 3, "kind": event["kind"], "said": said}


def test_equal_runs_give_equal_pages_but_for_the_time(hostile):
    first, second = (run_page.run_payload(hostile) for _ in range(2))
    first["run"].pop("made"), second["run"].pop("made")
    assert page_file.pack_payload(first) == page_file.pack_payload(second)
    assert base64.b64decode(page_file.pack_payload(first))[4:8] == b"\0\0\0\0"  # gzip's own time


@pytest.mark.parametrize(
    "format, text, answer",
    [
        (TAGS, "<think>2</think><answer> 4 </answer>", "4"),
        (TAGS, "<think>😀 <answer>5</answer>?</think>\n<answer>\n4\n</answer>", "4"),
        (TAGS, "prefilled</think><answer>4</answer>", "4"),
        (TAGS, "<answer>4</answer><think>4</think>", "4"),
        (TAGS, "<think><answer>4</answer></think><answer>4</answer>", "4"),
        (TAGS, "<answer>4</answer><think>so <answer>4</answer></think>", "4"),
        (TAGS, "<answer>4</answer>" + "\n" * 3000, "4"),
        (TAGS, "<answer>4</answer> No, it is 5.", None),
        (TAGS, "<answer>4</answer><answer>5</answer>", None),
        (TAGS, "nothing", None),
        (rewards.TagFormat("r", "a"), "<r>x</r><a>😀</a>", "😀"),
        (BOXED, "so \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        (BOXED, "so \\boxed{1", None),
        (HASHED, "😀 so\n#### 42\n", "42"),
        (HASHED, "so #### 42", None),
    ],
)
def test_the_span_of_an_answer_is_in_utf16_and_outside_the_reasoning(format, text, answer):
    span = answer_marks.answer_span(text, format)
    units = text.encode("utf-16-le")
    assert (None if span is None else units[2 * span[0] : 2 * span[1]].decode("utf-16-le")) == answer
    if answer and "</think>" in text:
        end = len(text[: text.rindex("</think>")].encode("utf-16-le")) // 2
        assert span == [8, 9] if text.startswith("<answer>") else span[0] > end


def test_a_cut_text_has_no_answer(tmp_path):
    rows = [one("<answer>4</answer>" + " " * 30_000, 1.0), one("<answer>4</answer>", 1.0)]
    assert run_page.run_payload(make_run(tmp_path, {1: rows}))["completions"]["answer"] == [None, [8, 9]]


@pytest.mark.parametrize(
    "format, kinds",
    [
        (TAGS, [("<think>", "</think>", "reasoning"), ("<answer>", "</answer>", "answer")]),
        (BOXED, [("\\boxed{", "}", "answer")]),
        (HASHED, [("####", "\n", "answer")]),
    ],
)
def test_marks_are_pairs_of_reasoning_and_answer(format, kinds):
    assert [(mark["open"], mark["close"], mark["kind"]) for mark in answer_marks.format_marks(format)] == kinds


@pytest.mark.parametrize("format", [TAGS, BOXED, HASHED])
def test_the_format_is_the_one_that_the_prompts_ask_for(tmp_path, format):
    row = one(format.write("so", "4"), 1.0, prompt=f"{format.system_prompt}\nWhat is 2 + 2?")
    found = run_page.run_payload(make_run(tmp_path, {1: [row]}))
    assert found["marks"] == answer_marks.format_marks(format)
    (start, end), text = found["completions"]["answer"][0], found["completions"]["text"][0]
    assert text[start:end] == "4"


def test_prompts_that_ask_for_no_format_get_the_one_in_use():
    assert answer_marks.asked_format(["How many?"]) == answer_marks.asked_format([]) == rewards.FORMAT


@pytest.fixture
def template(tmp_path, monkeypatch):
    """A page as small as can be, in the place of the real one."""
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "page.html").write_text(
        '<meta content="{{CSP}}"><title>{{TITLE}}</title><style>{{STYLE}}</style>'
        '<script type="application/octet-stream" id="payload">{{PAYLOAD}}</script><script>{{SCRIPT}}</script>'
    )
    (folder / "page.css").write_text("p { color: red }")
    (folder / "page.js").write_text("// {{TITLE}} é")
    monkeypatch.setattr(page_file, "PAGE_FOLDER", folder)


def test_the_page_has_its_payload_and_no_text_of_a_model(template, hostile):
    found = run_page.run_payload(hostile)
    text = page_file.page_html(found)
    assert unpack_payload(text) == found
    assert "alert(1)" not in text and "// {{TITLE}} é</script>" in text
    assert "<title>Completions of ? &lt;b&gt;&amp;</title>" in text


def test_the_policy_allows_the_pages_own_style_and_script_alone(hostile):
    text = page_file.page_html(run_page.run_payload(hostile))
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])
    style, script = (
        re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1],
        re.findall(r"<script>(.*?)</script>", text, re.DOTALL),
    )
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (style, *script)]
    assert policy.startswith("default-src 'none'") and len(script) == 1 and "unsafe" not in policy
    assert re.findall(r"sha256-([^']+)'", policy) == [hashes[1], hashes[0]]


def test_writing_a_page_says_where_how_big_and_what_it_lacks(template, tmp_path, capsys):
    make_run(tmp_path / "outputs/run", healthy())
    (tmp_path / "outputs/run/completions/completions_00003.parquet").write_bytes(b"PAR1 half")
    record = run_record.read_run(tmp_path / "outputs/run")
    path = run_page.write_run_page(record, tmp_path / "outputs/completions.html", limit=100)
    said = capsys.readouterr().out
    assert path == tmp_path / "outputs/completions.html" and unpack_payload(path.read_text())["selection"]["kept"] == 96
    assert f"{path} (" in said and " kB): 96 of 576 completions" in said and "Not in this page: 480 completions" in said
    assert "1 file of completions left out: damaged" in said


def test_a_page_goes_where_it_is_told(template, tmp_path):
    record = make_run(tmp_path / "run", {1: distinct(8)})
    assert run_page.write_run_page(record, tmp_path / "here" / "page.html").is_file()


def test_a_page_is_shown_in_a_frame_that_reaches_nothing_outside(template, tmp_path):
    path = run_page.write_run_page(make_run(tmp_path / "run", {1: distinct(8)}), tmp_path / "page.html")
    shown = page_file.show_page(path).data
    inside = html.unescape(re.search(r'srcdoc="([^"]*)"', shown)[1])
    assert inside == path.read_text() and 'sandbox="allow-scripts allow-downloads"' in shown


def test_held_out_answers_stand_beside_the_others_in_the_order_of_their_steps(tmp_path):
    steps = {1: distinct(4, **{"data/answer": "1"}), 2: distinct(4, 1.0, number=1, **{"data/answer": "2"})}
    page = run_page.run_payload(with_evaluations(make_run(tmp_path, steps)))
    rows, prompts = page["completions"], page["prompts"]
    assert rows["step"] == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2] == sorted(rows["step"])
    assert page["data_columns"] == ["set", "answer"] and prompts["data"]["set"] == ["training"] * 2 + ["held out"] * 2
    assert (
        prompts["text"][2:] == ["h0", "h1"]
        and prompts["seen"][2] == [0, 2]
        and prompts["data"]["answer"] == ["1", "2", "7", "8"]
    )
    first = [i for i, prompt in enumerate(rows["prompt"]) if prompt == 2]
    assert [rows["right"][i] for i in first] == [False, True] and [rows["total"][i] for i in first] == [0.5, 1.5]
    assert [rows["advantage"][i] for i in first] == [None] * 2 and prompts["best"][2] == 1.5 and prompts["mean"][2] == 1
    at, end = rows["answer"][first[0]]
    assert (
        rows["text"][first[0]][at:end] == "7"
        and len({len(values) for values in (*rows["scores"].values(), rows["suspect"], rows["cut"])}) == 1
    )
    assert "Beside them 4 greedy answers to 2 held-out prompts in 2 evaluations" in page["selection"]["said"]
    assert page["selection"]["of"] == 8, "a count of what was trained on"


def test_a_suspect_stays_the_same_completion_when_held_out_answers_stand_between(tmp_path):
    rows = group(
        [one(tagged(i, f"as {i} is {i * i}"), float(i == 3), 1.0, tokens=500 if i == 2 else 20) for i in range(4)]
    )
    page = run_page.run_payload(with_evaluations(make_run(tmp_path, {1: rows, 3: distinct(4, 1.0)})))
    (which,) = [int(i) for i, why in page["suspects"]["more"].items() if "very_long" in why]
    assert page["completions"]["tokens"][which] == 500 and page["suspects"]["sets"][
        page["completions"]["suspect"][which]
    ] == ["very_long"]


def test_evaluations_without_their_prompts_are_left_out_and_a_column_called_set_stays(tmp_path):
    record = make_run(tmp_path, {1: distinct(4, **{"data/set": "mine"})})
    page = run_page.run_payload(with_evaluations(record))
    assert page["data_columns"] == ["set of prompts", "set"] and page["prompts"]["data"]["set"] == ["mine", None, None]
    for path in (tmp_path / "held_out").iterdir():
        pd.read_parquet(path).drop(columns=["prompt"]).to_parquet(path)
    assert run_page.run_payload(run_record.read_run(tmp_path))["data_columns"] == ["set"]


def test_a_data_column_that_the_prompts_have_word_for_word_is_not_shown_twice(tmp_path):
    question = "How many pens has Tom after he buys three?"
    rows = [
        {**row, "prompt": f"system user {question}", "data/question": question, "data/name": "Tom"}
        for row in distinct(4)
    ]
    page = run_page.run_payload(make_run(tmp_path, {1: rows}))
    assert page["data_columns"] == ["name"] == list(page["prompts"]["data"])


def test_damaged_and_very_long_held_out_answers_do_no_harm(tmp_path):
    record = with_evaluations(make_run(tmp_path, {1: distinct(4)}), completion="x" * 30_000)
    path = record.held_out[0]
    path.write_bytes(path.read_bytes()[:4] + b"\0" * 60 + path.read_bytes()[64:])
    page = run_page.run_payload(record)
    held = [i for i, cut in enumerate(page["completions"]["cut"]) if cut]
    assert page["run"]["notes"] == ["held-out answers of 1 evaluation left out: damaged, or without their prompts"]
    assert len(held) == 2 and all(page["completions"]["cut"][i] == 10_000 for i in held), (
        "one evaluation of two is left"
    )
    assert max(map(len, page["completions"]["text"])) == 20_000
