"""The completions page of an evaluation: the same prompts, answered by several models."""

import random
import re

import numpy as np
import pandas as pd
import pytest

from lab.page import evaluation_page, page_file
from tests.page.browser_payload import unpack_payload
from tests.page.test_browser import (  # noqa: F401 (fixtures)
    CONTRAST,
    HOSTILE,
    OUTSIDE,
    address,
    chromium,
    count,
    ids,
    limit_to,
    opened,
    saved,
    search,
    sort,
    tab,
    texts,
    titles,
    unharmed,
    width_is_kept,
)

PROMPTS, SAMPLES = 40, 4
KINDS = ["regression", "gain", "gain", "still wrong", "still right"]  # of the prompts, in turn
GREEDY = {"regression": (1, 1, 0), "gain": (0, 1, 1), "still wrong": (0, 0, 0), "still right": (1, 1, 1)}
WEIGHTS = {"correctness_reward": 2.0, "format_reward": 1.0}
WORDS = "first we add what was there then take a third of all boxes which leaves so many for Mia and her friend".split()
HARM = "<script>window.pwned=1</script><img src=x onerror='window.pwned=1'>"


def answer(row: int, model: int, decoding: str, sample: int, right: int) -> dict:
    """One answer; a model before training does not think in tags."""
    gold, draw = 10 + row, random.Random(f"{row} {model} {decoding} {sample}")
    said = gold if right else gold + 1 + sample
    words = f"There are {row} and ten more. {' '.join(draw.choice(WORDS) for _ in range(25))}."
    text = (
        f"{words} <answer>{said}</answer>" if model == 0 else f"<think>\n{words}\n</think>\n<answer>\n{said}\n</answer>"
    )
    return {
        "row": row,
        "decoding": decoding,
        "sample": sample,
        "question": f"Question {row}: how many?",
        "prompt": f"system\nThink.\nuser\nQuestion {row}: how many?\nassistant\n",
        "gold": str(gold),
        "data/answer": str(gold),
        "data/level": row % 3,
        "overlap": "",
        "completion": text,
        "tokens": 30 + row,
        "finished": True,
        "seconds": 0.5,
        "format": float(model > 0),
        "correct": float(right),
        "right_anyhow": float(right),
        "reward/correctness_reward": float(right),
        "reward/format_reward": float(model > 0),
    }


def tables(
    prompts: int = PROMPTS, samples: int = SAMPLES, names=("base", "adapter", "merged")
) -> dict[str, pd.DataFrame]:
    """By model, greedy and sampled answers to all prompts; of the samples of a later model more are right."""
    found = {}
    for model, name in enumerate(names):
        rows = []
        for row in range(prompts):
            right = GREEDY[KINDS[row % len(KINDS)]][model]
            rows += [answer(row, model, "sampled", sample, int(sample < model + row % 2)) for sample in range(samples)]
            rows.append(answer(row, model, "greedy", 0, right))
        found[name] = pd.DataFrame(rows)
    return found


def payload(answers=None, **more) -> dict:
    return evaluation_page.evaluation_payload(tables() if answers is None else answers, **{"weights": WEIGHTS, **more})


def changed(answers: dict, model: str, row: int, decoding: str = "greedy", sample: int = 0, **values) -> dict:
    """The tables with other values in one answer."""
    table = answers[model].copy()
    at = table.index[(table["row"] == row) & (table["decoding"] == decoding) & (table["sample"] == sample)][0]
    for name, value in values.items():
        table[name] = table[name].astype(object)
        table.at[at, name] = value
    return {**answers, model: table}


def suspects(found: dict) -> dict[str, set[tuple[str, int, str]]]:
    """By rule, (model, row, place) of what it names."""
    table, rows = found["completions"], found["prompts"]["data"]["row"]
    named: dict[str, set] = {rule["id"]: set() for rule in found["suspects"]["rules"]}
    for i, why in found["suspects"]["more"].items():
        model, row, place = (table[name][int(i)] for name in ("step", "prompt", "place"))
        where = (found["models"][model], rows[row], found["places"][place - 1])
        for rule in why:
            named[rule].add(where)
    return named


# --------------------------------------------------------------------------- the payload


def test_regressions_come_first_then_gains_then_what_stayed():
    found = payload()
    data = found["prompts"]["data"]
    assert data["change"] == ["regression"] * 8 + ["gain"] * 16 + ["still wrong"] * 8 + ["still right"] * 8
    assert data["change"] == [KINDS[row % 5] for row in data["row"]]
    assert found["change"]["column"] == found["data_columns"][0] == "change"
    assert [(kind["name"], kind["n"]) for kind in found["change"]["kinds"]][:2] == [("regression", 8), ("gain", 16)]
    said = (
        "600 answers of 3 models to 40 prompts; by greedy answer: regression 8, gain 16, still wrong 8, still right 8."
    )
    assert found["selection"] == {"kept": 600, "of": 600, "said": said, "left_out": ""}


def test_shares_of_right_samples_stand_before_and_after():
    data = payload()["prompts"]["data"]
    assert all(before == (row % 2) / 4 for row, before in zip(data["row"], data["sampled before"]))
    assert all(after == (2 + row % 2) / 4 for row, after in zip(data["row"], data["sampled after"]))


def test_answers_stand_by_prompt_and_model_with_the_greedy_one_first():
    found = payload()
    table = found["completions"]
    assert found["models"] == ["base", "adapter", "merged"] and found["places"] == [
        "greedy",
        *(f"sampled {i}" for i in range(4)),
    ]
    assert table["prompt"][:15] == [0] * 15 and table["step"][:15] == [0] * 5 + [1] * 5 + [2] * 5
    assert table["place"][:15] == [1, 2, 3, 4, 5] * 3
    assert table["extras"]["decoding"][:5] == ["greedy"] + ["sampled"] * 4 and table["extras"]["sample"][:5] == [
        0,
        0,
        1,
        2,
        3,
    ]


def test_totals_are_weighted_and_missing_scores_count_as_nothing():
    answers = changed(tables(1), "merged", 0, **{"reward/correctness_reward": np.nan})
    answers = changed(answers, "adapter", 0, **{"reward/correctness_reward": np.nan, "reward/format_reward": np.nan})
    table = payload(answers)["completions"]
    assert [total for total, place in zip(table["total"], table["place"]) if place == 1] == [2, None, 1]
    assert set(payload(weights=None)["completions"]["total"]) == {None}


def test_what_the_prompt_says_and_the_gold_answer_twice_are_no_columns():
    assert payload()["data_columns"] == ["change", "sampled before", "sampled after", "row", "overlap", "gold", "level"]
    own = {name: table.assign(**{"data/change": "x"}) for name, table in tables().items()}
    assert payload(own)["data_columns"][-1] == "change of the data"


def test_a_measure_that_is_a_reward_as_well_stands_there_once():
    assert [reward["name"] for reward in payload()["rewards"]] == ["correctness_reward", "format_reward"]
    own = {name: table.assign(format=0.5, **{"reward/right_anyhow": 0.25}) for name, table in tables(1).items()}
    found = payload(own)
    assert [reward["name"] for reward in found["rewards"]][:3] == ["format", "correctness_reward", "format_reward"]
    assert {reward["decides"] for reward in found["rewards"]} == {False}


def test_the_rewards_that_decided_are_named_and_what_the_evaluation_keeps_for_itself_is_not_shown():
    judged = {
        name: table.assign(correct_by="correctness_reward", asked=name, extracted="7")
        for name, table in tables().items()
    }
    found = payload(judged)
    assert [reward["decides"] for reward in found["rewards"]] == [True, False]
    assert (
        found["hints"]["right"] == "Judged by correctness_reward"
        and payload()["hints"]["right"] == "Judged by the evaluation"
    )
    assert found["extra_columns"] == payload()["extra_columns"] == ["decoding", "sample", "seconds"]


def test_an_answer_that_the_evaluation_extracted_is_one():
    answers = {name: table.assign(extracted="7") for name, table in tables().items()}
    answers = changed(answers, "merged", 1, completion="It is 11.", correct=1.0)
    assert suspects(payload(answers))["right_without_answer"] == set()
    answers = changed(answers, "merged", 1, extracted=None)
    assert suspects(payload(answers))["right_without_answer"] == {("merged", 1, "greedy")}


def test_extracted_answers_are_found_where_there_are_any():
    table = payload()["completions"]
    found = [text[slice(*span)] for text, span in zip(table["text"], table["answer"])]
    assert len(found) == 600 and all(answer.isdigit() for answer in found)


def test_files_and_tables_give_the_same_page(tmp_path):
    answers = changed(tables(), "base", 0, **{"reward/format_reward": np.nan, "overlap": "same template"})
    for name, table in answers.items():
        table.to_parquet(tmp_path / f"{name}.parquet")
    one, other = payload(answers), payload({name: tmp_path / f"{name}.parquet" for name in answers})
    one["run"]["made"] = other["run"]["made"] = ""
    assert one == other and "same template" in one["prompts"]["data"]["overlap"]


def test_equal_tables_give_equal_pages_apart_from_the_time(tmp_path):
    one, other = payload(), payload()
    one["run"]["made"] = other["run"]["made"] = ""
    assert page_file.page_html(one) == page_file.page_html(other) and unpack_payload(page_file.page_html(one)) == one


# --------------------------------------------------------------------------- what is missing, damaged or odd


def test_without_samples_and_without_greedy_answers_the_rest_is_shown():
    greedy = payload({name: table[table["decoding"] == "greedy"] for name, table in tables().items()})
    assert greedy["places"] == ["greedy"] and set(greedy["prompts"]["data"]["sampled after"]) == {None}
    sampled = payload({name: table[table["decoding"] == "sampled"] for name, table in tables().items()})
    assert set(sampled["prompts"]["data"]["change"]) == {None} and sampled["change"]["kinds"] == []
    assert sampled["places"][0] == "sampled 0"


def test_without_greedy_answers_the_largest_losses_come_first():
    sampled = {name: table[table["decoding"] == "sampled"] for name, table in tables().items()}
    merged = sampled["merged"].assign(correct=lambda t: t["correct"] * (t["row"] != 7))
    found = payload({**sampled, "merged": merged})
    assert found["prompts"]["data"]["row"][0] == 7


def test_a_verdict_that_is_missing_is_neither_right_nor_wrong():
    found = payload(changed(tables(), "merged", 0, correct=np.nan))
    assert unpack_payload(page_file.page_html(found)) == found
    assert found["prompts"]["data"]["change"][found["prompts"]["data"]["row"].index(0)] is None
    assert found["completions"]["right"].count(None) == 1


def test_only_the_needed_columns_are_needed():
    bare = {name: table[list(evaluation_page.NEEDED)] for name, table in tables().items()}
    found = payload(bare, weights=None)
    assert found["rewards"] == [] and found["data_columns"] == ["change", "sampled before", "sampled after", "row"]


def test_tables_that_do_not_fit_together_are_said_to_be_so():
    answers = tables()
    answers["merged"] = answers["merged"].query("row != 3")
    answers = changed(answers, "base", 5, prompt="other words")
    found = payload(answers)
    assert found["run"]["notes"] == [
        "1 prompt without an answer of every model",
    ]
    assert found["prompts"]["seen"][found["prompts"]["data"]["row"].index(3)] == [0, 1]


def test_no_answers_at_all_make_an_empty_page():
    found = payload({name: table.head(0) for name, table in tables().items()})
    assert found["prompts"]["text"] == [] and found["selection"]["said"] == "0 answers of 3 models to 0 prompts."


# --------------------------------------------------------------------------- what to read first


def test_a_usual_evaluation_has_no_suspects():
    assert {rule: len(found) for rule, found in suspects(payload()).items()} == dict.fromkeys(evaluation_page.RULES, 0)


def test_each_rule_names_its_answer_and_no_other():
    answers = changed(tables(), "merged", 2, correct=0.0, right_anyhow=1.0)
    answers = changed(answers, "merged", 1, completion="It is 11.", correct=1.0)
    answers = changed(answers, "adapter", 4, finished=False, tokens=64)
    answers = changed(answers, "base", 6, tokens=5000)
    for row in (0, 3, 5):
        answers = changed(answers, "merged", row, completion="I cannot  answer this question.", correct=0.0)
    assert suspects(payload(answers)) == {
        "right_anyhow": {("merged", 2, "greedy")},
        "right_without_answer": {("merged", 1, "greedy")},
        "near_duplicates": {("merged", row, "greedy") for row in (0, 3, 5)},
        "very_long": {("adapter", 4, "greedy"), ("base", 6, "greedy")},
    }


def test_answers_of_a_model_that_are_nearly_the_same_and_wrong_are_named():
    answers = tables()
    said = "No idea at all, none, not the least idea of it"
    for sample in range(1, SAMPLES):
        answers = changed(answers, "base", 8, "sampled", sample, completion=said + "." * sample, correct=0.0)
    assert suspects(payload(answers))["near_duplicates"] == {("base", 8, f"sampled {i}") for i in range(1, SAMPLES)}


# --------------------------------------------------------------------------- limits


def test_a_page_that_is_too_large_keeps_whole_prompts_regressions_first():
    found = payload(limit=15 * 10 + 7)
    assert found["prompts"]["data"]["change"] == ["regression"] * 8 + ["gain"] * 2
    assert len(found["completions"]["text"]) == 150 and sorted(set(found["completions"]["prompt"])) == list(range(10))
    assert found["selection"]["said"].startswith("150 of 600 answers of 3 models to 40 prompts, whole prompts only")
    assert found["selection"]["left_out"] == (
        "Not in this page: 30 prompts with 450 answers; the tables of answers have all."
    )
    assert [kind["n"] for kind in found["change"]["kinds"]] == [8, 16, 8, 8]
    assert len(payload(limit=1)["prompts"]["text"]) == 1 and len(payload(characters=1)["prompts"]["text"]) == 1


def test_a_text_of_more_than_the_page_holds_is_cut_and_said_to_be():
    found = payload(changed(tables(), "merged", 0, completion="word " * 5000))
    assert (
        max(found["completions"]["cut"]) == 5000
        and found["selection"]["left_out"] == "1 answer cut after 20,000 characters."
    )


def test_writing_says_where_how_big_and_what_is_there(tmp_path, capsys):
    path = evaluation_page.write_evaluation_page(tables(), tmp_path / "page.html", weights=WEIGHTS)
    said = capsys.readouterr().out
    assert re.match(r".*page\.html \(0\.\d MB\): 600 answers of 3 models", said) and list(tmp_path.iterdir()) == [path]


# --------------------------------------------------------------------------- in a browser


@pytest.fixture
def evaluation(opened):  # noqa: F811
    """Opens the page of these answers (None: three models, 40 prompts)."""
    return lambda answers=None, address="", more={}, **how: opened(payload(answers, **more), address, **how)


def test_the_page_speaks_of_models_and_never_of_steps(evaluation):
    page = evaluation()
    assert page.inner_text("h1") == page.title() == "Evaluation"
    assert page.inner_text("#run-about") == "base → adapter → merged · 40 prompts · 600 completions"
    assert page.locator("#views button").all_inner_texts() == ["Prompts", "Compare", "Completions", "Suspects"]
    for view in ("prompts", "compare", "completions", "suspects"):
        page.evaluate(f"location.hash = 'view={view}'")
        page.wait_for_selector(f"#{view}", state="visible")
        titles_ = page.evaluate(
            "[...document.querySelectorAll('#app *')].map(e => `${e.title} ${e.ariaLabel}`).join(' ')"
        )
        assert not re.search(r"\b(steps?|run|advantage)\b", page.inner_text("#app") + titles_, re.I), view
    page.keyboard.press("5")
    assert page.is_visible("#suspects")
    page.keyboard.press("?")
    assert not re.search(r"\b(steps?|run|advantage)\b", page.inner_text("#help"), re.I)


def test_regressions_are_seen_first_and_found_by_their_name(evaluation):
    page = evaluation()
    assert texts(page, "prompts", "data/change")[:9] == ["regression"] * 8 + ["gain"] and count(page) == 40
    assert search(page, "prompts", "change:regression") == 8 and ids(page, "prompts") == list(range(8))
    assert page.get_attribute("[data-query='change:regression']", "aria-pressed") == "true"
    page.click("[data-query='change:still wrong']")
    assert count(page) == 8 and address(page)["q"] == "change:still wrong"
    page.click("[data-query='']")
    assert count(page) == 40
    sort(page, "prompts", "data/sampled after")
    assert texts(page, "prompts", "data/sampled after")[0] == "0.50"
    assert limit_to(page, "prompts", "data/sampled before", low=0.2) == 20


def test_compare_has_the_first_model_on_the_left_and_the_last_on_the_right(evaluation):
    page = evaluation()
    page.click("#prompts tr[data-row='0']")
    assert titles(page) == ("base, greedy", "merged, greedy")
    assert "✓ right" in page.inner_text("#left header") and "✗ wrong" in page.inner_text("#right header")
    page.fill("#step", "1")
    assert titles(page)[0] == "adapter, greedy" and address(page)["model"] == "adapter"
    assert page.get_attribute("#step", "aria-valuetext") == "adapter"
    page.select_option("[data-model=left]", label="base")
    page.select_option("[data-model=right]", label="adapter")
    assert titles(page) == ("base, greedy", "adapter, greedy") and address(page)["right"] == "adapter.1"
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert titles(page) == ("base, greedy", "adapter, greedy")
    page.click("[data-act=reset]")
    page.click("h1")
    page.keyboard.press("ArrowRight")
    assert titles(page) == ("base, sampled 0", "merged, greedy")
    page.keyboard.press("]")
    page.keyboard.press("]")
    assert titles(page) == ("merged, sampled 0", "merged, greedy")
    page.click("[data-act=usual]")
    assert titles(page)[0] == "merged, greedy" and "The same completion on both sides" in page.inner_text(
        "#left .status"
    )


def test_best_and_worst_go_by_being_right_where_there_is_no_total(evaluation):
    page = evaluation(address="#view=compare&prompt=0&model=merged&place=worst", more={"weights": None})
    assert "✗ wrong" in page.inner_text("#left header") and "total" not in page.inner_text("#left .facts")
    page.click("[data-act=best]")
    assert "✓ right" in page.inner_text("#left header") and address(page)["place"] == "best"


def test_next_prompt_follows_the_filtered_list(evaluation):
    page = evaluation(address="#view=prompts&q=change%3Again")
    assert count(page) == 16
    page.click("#prompts tr[data-row='0']")
    assert "1 of 16 in the list" in page.inner_text("#compare .bar") and "change gain" in page.inner_text(
        "#compare summary"
    )
    page.keyboard.press("n")
    assert page.input_value("#compare-prompt") == "9"


def test_the_table_of_completions_has_the_models_names_and_saves_them(evaluation):
    page = evaluation(address="#view=completions")
    assert texts(page, "completions", "step", 6) == ["base"] * 5 + ["adapter"]
    assert texts(page, "completions", "extra/decoding", 2) == ["greedy", "sampled"]
    page.select_option("#model", "merged")
    assert count(page) == 200 and search(page, "completions", "decoding:greedy") == 40
    page.select_option("#judged", "wrong")
    assert count(page) == 16 and address(page)["model"] == "merged"
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    name, rows = saved(page, lambda: page.click("#export"))
    assert name == "Evaluation-completions.csv" and len(rows) == 17
    cells = dict(zip(rows[0], zip(*rows[1:])))
    assert set(cells["model"]) == {"merged"} and set(cells["extra/decoding"]) == {"greedy"}
    assert set(cells["data/change"]) == {"regression", "still wrong"}
    page.select_option("#model", "")
    assert search(page, "completions", "model:base") == 164
    page.click("#completions tr[data-row='0']")
    assert titles(page)[0] == "base, sampled 0"  # of the wrong ones the first


def test_an_address_that_names_no_model_says_so(evaluation):
    page = evaluation(address="#view=compare&prompt=0&model=other&place=9&right=merged.77")
    said = page.inner_text("#notice")
    assert "a model “other”, which there is not" in said
    assert "merged.77” on the right is not in this page; the first answer of merged" in said
    assert titles(page) == ("base, sampled 3", "merged, greedy")


def test_greedy_answers_alone_are_enough(evaluation):
    page = evaluation(
        {name: table[table["decoding"] == "greedy"] for name, table in tables(4).items()}, "#view=compare"
    )
    assert titles(page) == ("base, greedy", "merged, greedy") and page.inner_text("#left .where") == "1 of 1"


def test_without_greedy_answers_samples_are_compared(evaluation):
    page = evaluation({name: table[table["decoding"] == "sampled"] for name, table in tables(4).items()})
    assert (
        page.locator("[data-query]").count() == 0
        and page.locator("#prompts th[data-column='data/change']").count() == 0
    )
    page.keyboard.press("2")
    assert (
        titles(page) == ("base, sampled 0", "merged, sampled 0") and page.inner_text("[data-act=usual]") == "sampled 0"
    )
    page.keyboard.press("3")
    assert page.locator("#completions th[data-column='data/change']").count() == 0


def test_an_evaluation_without_answers_says_so_in_every_view(evaluation):
    page = evaluation({name: table.head(0) for name, table in tables().items()})
    for view, said in {
        "prompts": "evaluation has no prompts",
        "compare": "no prompts",
        "completions": "no completions",
    }.items():
        page.evaluate(f"location.hash = 'view={view}'")
        page.wait_for_selector(f"#{view}", state="visible")
        assert said in page.inner_text(f"#{view}") and count(page) == 0


def hostile() -> dict[str, pd.DataFrame]:
    """Hostile text in every place that a model, a data set or a person can write to."""
    names = (HARM, "</script>.1", "__proto__")
    answers = tables(len(HOSTILE), 1, names)
    for name, table in answers.items():
        bad = pd.Series(
            [HOSTILE[row] for row in table["row"]], dtype=object
        )  # as text, pandas would refuse half a pair
        table = table.assign(completion=HARM + bad, prompt=HARM + bad, question=bad, gold=bad, overlap=bad.str[:500])
        answers[name] = table.assign(
            **{f"data/{HARM}": bad, "data/__proto__": bad, f"reward/{HARM}": 0.5, "data/constructor": 1}
        )
    return answers


@pytest.mark.parametrize("width", [420, 1400])
def test_hostile_text_never_runs_and_never_breaks_the_layout(evaluation, width):
    page = evaluation(hostile(), width=width, more={"name": HARM})
    for view in ("prompts", "compare", "completions", "suspects"):
        page.evaluate(f"location.hash = 'view={view}'")
        page.wait_for_selector(f"#{view}", state="visible")
        assert unharmed(page) and width_is_kept(page), view
    page.evaluate("location.hash = 'view=compare&prompt=0'")
    page.wait_for_selector("#compare", state="visible")
    for _ in HOSTILE:
        assert unharmed(page) and width_is_kept(page) and HARM in page.inner_text("#left .text")
        hidden = page.eval_on_selector_all(".pane .text", "all => all.map(box => box.scrollWidth - box.clientWidth)")
        assert hidden == [0, 0], "text stands outside of its box"
        page.keyboard.press("n")
    page.keyboard.press("]")
    assert titles(page)[0].startswith("</script>.1, ") and address(page)["model"] == "</script>.1"
    page.keyboard.press("?")
    assert unharmed(page) and HARM in page.inner_text("h1")


@pytest.mark.parametrize("width", [320, 420, 900, 1400])
def test_every_view_fits_a_narrow_and_a_wide_window(evaluation, width):
    long = {f"outputs/merged/Qwen2.5-1.5B-Instruct-{name}-16bit": table for name, table in tables(8).items()}
    page = evaluation(long, width=width)
    for view in ("prompts", "compare", "completions", "suspects"):
        page.evaluate(f"location.hash = 'view={view}'")
        page.wait_for_selector(f"#{view}", state="visible")
        assert width_is_kept(page) and page.evaluate(OUTSIDE) == [], view


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_enough_contrast_in_both_themes(evaluation, theme):
    page = evaluation(theme=theme, motion="reduce")
    for view in ("prompts", "prompts&q=change%3Aregression", "compare&prompt=0", "completions", "suspects"):
        page.evaluate(f"location.hash = 'view={view}'")
        page.wait_for_timeout(50)
        assert page.evaluate(CONTRAST) == [], view


def test_the_page_works_in_a_sandboxed_frame_of_a_notebook(opened, tmp_path):  # noqa: F811
    path = evaluation_page.write_evaluation_page(tables(), tmp_path / "evaluation.html", weights=WEIGHTS)
    page = opened(f"<!doctype html><html data-ready>{page_file.show_page(path).data}")
    frame = page.frames[1]
    frame.wait_for_selector("html[data-ready]", state="attached")
    frame.click("[data-query='change:regression']")
    assert frame.evaluate("document.documentElement.dataset.rows") == "8"
    frame.click("#prompts tr[data-row='1']")
    frame.select_option("[data-model=left]", label="adapter")
    assert (frame.inner_text("#left h2"), frame.inner_text("#right h2")) == ("adapter, greedy", "merged, greedy")
