"""The first hour of a new user in JupyterLab and a real browser: run 01 to 03, change rewards, break them, stop, go on.

The tests follow one another, as the hour does. Each looks at what stands on the screen.
"""

import importlib.util
import json
import re

import pytest

from tests import jupyter_walk
from tests.page.test_browser import needed, started_chromium

SMALL = [("N_PROMPTS = 32", "N_PROMPTS = 8"), ("NUM_GENERATIONS = 8", "NUM_GENERATIONS = 4")]
SHORT = [
    ("MAX_STEPS = None", "MAX_STEPS = 90"),
    ("NUM_GENERATIONS = None", "NUM_GENERATIONS = 4"),
    ("PROMPTS_PER_STEP = None", "PROMPTS_PER_STEP = 2"),
    ("EVAL_EVERY = 20", "EVAL_EVERY = 0"),
    ("SHOW_EVERY = 20", "SHOW_EVERY = 2"),
]
PARAMETERS, REWARD, SCORED, AUDIT, PREFLIGHT, SAVE = "c03", "c44", "c45", "c47", "c51", "c58"  # cells of notebook 02
TRAIN, LAST = "c25", "c33"  # cells of notebook 03
LESSON = ("c10", "c12")  # one group by hand
GOOD = "return min(1.0, len(equations) / n_steps)"


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    if not importlib.util.find_spec("jupyterlab"):
        needed("no JupyterLab here: `pip install jupyterlab`")
    folder = tmp_path_factory.mktemp("walk")
    repository = jupyter_walk.copy_repository(folder / "repository")
    with (
        started_chromium(reachable="127.0.0.1") as browser_process,
        jupyter_walk.jupyter_server(repository, folder / "jupyter") as address,
    ):
        page = browser_process.new_page(viewport={"width": 1280, "height": 900})
        walk = jupyter_walk.Walk(page, address, folder / "screens")
        walk.outputs = repository / "outputs"
        yield walk
        page.close()


@pytest.fixture(scope="module")
def prepared(walk):
    """After Run All of notebook 01."""
    walk.open("01_prepare_data.ipynb")
    walk.run_all()
    return walk


@pytest.fixture(scope="module")
def designed(prepared):
    """After Run All of notebook 02, on a few prompts."""
    prepared.open("02_design_rewards.ipynb")
    prepared.edit(PARAMETERS, *SMALL)
    prepared.run_all()
    return prepared


@pytest.fixture
def second(designed):
    """Notebook 02; after a test the texts of its parameters and its reward are what they were."""
    designed.open("02_design_rewards.ipynb")
    before = {cell: designed.source(cell) for cell in (PARAMETERS, REWARD)}
    yield designed
    for cell, text in before.items():
        if (now := designed.source(cell)) != text:
            designed.edit(cell, (now, text))
            if cell == PARAMETERS:
                designed.run(PARAMETERS)


def ran_through(walk):
    failed = walk.failed()
    assert failed is None, f"cell {failed} says: {walk.said(failed)[:2000]}"
    assert not walk.not_run()


def complaint(walk, *words, name):
    """What the cell that failed says. All `words` are in its first lines, and it is no page of traceback."""
    cell = walk.failed()
    walk.look(cell, name)
    assert cell, f"nothing failed; the cell that scores says: {walk.said(SCORED)[:500]}"
    said = walk.said(cell)
    lines = [line for line in said.splitlines() if line.strip()]
    first = " ".join(lines[:6])
    for word in words:
        assert re.search(word, first, re.IGNORECASE), f"{word!r} is not in the first lines: {first}"
    assert "Traceback" not in first and len(lines) <= 20, said
    return cell, said


# --------------------------------------------------------------------------- top to bottom


def test_the_file_browser_reaches_the_whole_repository(walk):
    names = walk.page.evaluate(
        "async () => (await jupyterapp.serviceManager.contents.get('')).content.map(c => c.name)"
    )
    assert {"notebooks", "rewards.py", "README.md"} <= set(names)
    walk.page.locator(".jp-DirListing-item", has_text="01_prepare_data.ipynb").wait_for()  # it opens in notebooks/


def test_01_runs_from_top_to_bottom_and_its_tables_read_as_tables(prepared):
    prepared.look("c15", "01")
    ran_through(prepared)
    assert prepared.typeset() == [] and "..." not in prepared.said("c15"), "reasons are whole"


def test_02_runs_from_top_to_bottom_and_its_tables_read_as_tables(designed):
    designed.look("c26", "02")
    ran_through(designed)
    assert "the audit holds" in designed.said(AUDIT).lower() and "written: outputs/rewards.json" in designed.said(SAVE)
    assert designed.typeset() == []
    shown = [designed.said(cell) for cell in ("c08", SCORED, AUDIT, SAVE)]
    assert not re.search(r"\('answer',\)|\(\)|PosixPath|^index\b", "\n".join(shown), re.MULTILINE)


def test_the_group_that_02_shows_has_completions_that_score_differently(designed):
    designed.look("c08", "02-group")
    scores = designed.page.evaluate(
        "() => [...walk.cell('c08').node.querySelectorAll('tbody tr')].map(row => [...row.cells].slice(2).map(c => c.innerText))"
    )
    assert len(scores) == 4 and len({tuple(row) for row in scores}) > 1, scores


# --------------------------------------------------------------------------- changing rewards


def test_a_changed_reward_is_scored_without_loading_the_model_again(second):
    second.edit(REWARD, ("len(equations) / n_steps", "0.5 + len(equations) / n_steps"))
    before = second.said(SCORED)
    second.run(REWARD, SCORED)
    second.look(SCORED, "02-changed")
    ran_through(second)
    assert "worked_steps_reward" in second.said(SCORED) != before and "0.500" in second.said(SCORED)


def test_a_renamed_reward_whose_old_name_has_weight_0_goes_through(second):
    second.edit(REWARD, ("def worked_steps_reward", "def my_steps_reward"))
    second.run(REWARD, SCORED, AUDIT, PREFLIGHT, SAVE)
    second.look(SCORED, "02-renamed")
    ran_through(second)
    assert "my_steps_reward" in second.said(SCORED) and "my_steps_reward" in second.said(AUDIT)


def test_a_renamed_reward_whose_old_name_has_a_weight_is_missed_by_name_where_it_is_missing(second):
    second.edit(PARAMETERS, ('"worked_steps_reward": 0.0', '"worked_steps_reward": 0.3'))
    second.edit(REWARD, ("def worked_steps_reward", "def my_steps_reward"))
    second.run(PARAMETERS, REWARD, SCORED, AUDIT, PREFLIGHT)
    cell, said = complaint(second, "worked_steps_reward", "WEIGHTS", name="02-missing")
    assert cell in (REWARD, SCORED) and "my_steps_reward" in said, "and what there is instead"


@pytest.mark.parametrize(
    "change",
    [('    "correctness_reward": 1.0,\n', ""), ('"correctness_reward": 1.0', '"correctness_reward": 0')],
    ids=["without correctness", "correctness at 0"],
)
def test_the_lesson_of_one_group_stands_whatever_weights_says(second, change):
    before = second.said(LESSON[-1])
    second.edit(PARAMETERS, change)
    second.run(PARAMETERS, *LESSON)
    second.look(LESSON[0], "02-weights")
    assert second.failed() is None
    assert second.said(LESSON[-1]) == before, "the numbers of the text beside them"


BROKEN = {
    "a syntax error": (
        GOOD,
        GOOD.removesuffix(")"),
        [r"my_rewards\.py|reward cell", r"line \d+", "never closed|syntax"],
    ),
    "an exception": (GOOD, "return 1 / 0", ["worked_steps_reward", "division by zero", r"line \d+"]),
    "a forgotten return": (GOOD, GOOD.removeprefix("return "), ["worked_steps_reward", "return"]),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_reward_is_named_first_with_what_to_do(second, what):
    old, new, words = BROKEN[what]
    second.edit(REWARD, (old, new))
    second.run(REWARD, SCORED)
    cell, _ = complaint(second, *words, name=f"02-{what}")
    assert cell in (REWARD, SCORED)


def test_a_failed_audit_says_what_to_do_and_saving_says_that_it_failed(second):
    second.edit(PARAMETERS, ('"correctness_reward": 1.0', '"correctness_reward": 0.2'))
    second.edit(PARAMETERS, ('"worked_steps_reward": 0.0', '"worked_steps_reward": 2.0'))
    second.run(PARAMETERS, REWARD, SCORED, AUDIT, SAVE)
    second.look(AUDIT, "02-audit-failed")
    said = second.said(AUDIT)
    assert re.search(r"gate|lower|raise|smaller|larger|WEIGHTS", said), said[:800]
    assert said.count("equations about nothing") == 1, "equal failures stand there once"
    assert "audit" in second.said(SAVE), second.said(SAVE)


# --------------------------------------------------------------------------- training, stopped in the middle


@pytest.fixture(scope="module")
def training(designed):
    """Notebook 03 in the middle of a run whose rewards include the person's own."""
    walk = designed
    walk.open("02_design_rewards.ipynb")
    walk.edit(PARAMETERS, ('"worked_steps_reward": 0.0', '"worked_steps_reward": 0.2'))
    walk.run(PARAMETERS, REWARD, SCORED, PREFLIGHT, SAVE)
    ran_through(walk)
    walk.open("03_train_grpo.ipynb")
    walk.edit("c03", *SHORT)
    walk.start("notebook:run-all-cells")
    walk.wait_for_text(TRAIN, r"step [2-9] of")
    return walk


def test_a_run_is_watched_edited_stopped_and_resumed_without_training_with_a_bad_reward(training):
    walk = training
    walk.look(TRAIN, "03-live")
    assert walk.typeset(where="") == [], "amounts in the live view's samples are no formulas"

    # a bad edit while it trains is refused, and training goes on
    walk.open("02_design_rewards.ipynb")
    walk.edit(REWARD, (GOOD, "return 1 / 0"))
    walk.run(REWARD)
    walk.open("03_train_grpo.ipynb")
    walk.wait_for_text(TRAIN, "refused")
    walk.look(TRAIN, "03-refused")
    assert re.search(r"refused.*(worked_steps_reward|my_rewards\.py).*division by zero", walk.said(TRAIN), re.DOTALL)

    # the stop button ends it after the step, and the cells below run
    walk.stop()
    walk.wait()
    walk.look(TRAIN, "03-stopped")
    ran_through(walk)
    said = walk.said(TRAIN)
    assert re.search(r"Stopped after step \d+", said) and re.search(r"goes on after step \d+", said)
    stopped = json.loads((walk.outputs / "run/run.json").read_text())
    assert stopped["status"] == "stopped"

    # a second start with the same bad reward does not train with it: it names the file
    walk.edit("c03", ("MAX_STEPS = 90", f"MAX_STEPS = {stopped['steps'] + 3}"))
    walk.restart_and_run_all()
    walk.wait()
    walk.look(walk.failed() or TRAIN, "03-again")
    text = walk.said(walk.failed()) if walk.failed() else "\n".join(map(walk.said, ("c05", "c09", "c17", TRAIN)))
    assert "my_rewards.py" in text and "division by zero" in text, text[:1500]
    assert "Traceback" not in text and len(text.splitlines()) <= 40, text[:1500]
    record = json.loads((walk.outputs / "run/run.json").read_text())
    assert record["status"] != "failed", "the run did not die of it"

    # corrected, it goes on to its end
    walk.open("02_design_rewards.ipynb")
    walk.edit(REWARD, ("return 1 / 0", GOOD))
    walk.run(REWARD)
    walk.open("03_train_grpo.ipynb")
    if record["status"] != "finished":
        walk.restart_and_run_all()
        walk.wait()
    walk.look(TRAIN, "03-finished")
    ran_through(walk)
    record = json.loads((walk.outputs / "run/run.json").read_text())
    assert record["status"] == "finished" and record["steps"] == stopped["steps"] + 3
    assert "question" in walk.said(LAST) and "sha256" not in walk.said(LAST)
