"""Notebook 02's cells, as somebody runs them who changes the rewards: without the model, on eight groups made by hand."""

import contextlib
import io
import json
import re

import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell

from lab.data import dataset, loading
from lab.files import ROOT, WORD_PROBLEMS, output_folder, relative, write_json
from lab.measure import grading
from lab.model.prompts import build_prompt
from lab.model.sampling import Sampled
from lab.show import sample_figures
from lab.show.tables import readable
from lab.train import chosen_rewards
from rewards import FORMAT, REGISTRY, correctness_reward, format_reward, soft_format_reward
from scoring import contract_checks

CELLS = json.loads((ROOT / "notebooks/02_design_rewards.ipynb").read_text(encoding="utf-8"))["cells"]
SOURCE = {cell["id"]: "".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"}
LESSON, OWN = ("c10", "c12", "c14", "c16"), ("c44", "c45", "c47", "c51", "c58")


def sampled_groups(rows):
    """The completions of the first group are all alike; of the others some are right, and some have a step."""
    for number, row in enumerate(rows):
        right, wrong = FORMAT.write("3 * 4 = 12\n12 + 1 = 13", row["answer"]), FORMAT.write("Easy.", "-1")
        group = [wrong] * 4 if number == 0 else [right, wrong, "<answer>-1</answer>", "I do not know."]
        yield [Sampled(text, 20, True) for text in group]


class Notebook:
    """The cells of notebook 02 in a shell; what a cell showed is in `out`, what a person sees of its error in `error`."""

    def __init__(self, folder, **parameters):
        lines = [json.loads(line) for line in WORD_PROBLEMS.read_text(encoding="utf-8").splitlines()[:8]]
        rows = [{**line, "prompt": build_prompt(line["question"], [])} for line in lines]
        self.shell = InteractiveShell()
        self.shell.user_ns |= {"folder": output_folder(folder), "my_rewards": folder / "my_rewards.py", "rows": rows}
        self.shell.user_ns |= {"groups": list(sampled_groups(rows)), "seconds": 1.0, "REGISTRY": REGISTRY}
        names = (grading, chosen_rewards, sample_figures, correctness_reward, format_reward, soft_format_reward)
        self.shell.user_ns |= {name.__name__.split(".")[-1]: name for name in (*names, readable, relative, write_json)}
        self.run("c03", "from scoring.audit import audit")
        self.shell.user_ns |= {"pd": pd, "N_PROMPTS": 8, "NUM_GENERATIONS": 4, **parameters}

    def run(self, *cells, **edits):
        """Runs cells by id (or a text), the ones in `edits` with that text, until one fails."""
        self.out, self.error = "", None
        for cell in cells:
            printed, self.shown = io.StringIO(), []
            self.shell._showtraceback = lambda kind, value, lines: self.shown.extend(lines)
            with contextlib.redirect_stdout(printed):
                result = self.shell.run_cell(edits.get(cell) or SOURCE.get(cell, cell))
                if hasattr(result.result, "to_html"):
                    self.out += result.result.to_html()
            self.out += printed.getvalue()
            if not result.success:
                self.cell, self.error = cell, "\n".join(self.shown)
                return self
        return self


@pytest.fixture
def notebook(tmp_path, monkeypatch, tokenizer):
    monkeypatch.setattr(contract_checks, "HOSTILE", ["x"])
    rows = loading.LoadedRows([{"question": f"{i} + 1?", "answer": str(i + 1), "_row": i} for i in range(4)])
    dataset.save_dataset(
        dataset.prepare_dataset(rows, tokenizer), tmp_path / "dataset"
    )  # which a preflight is made for
    shells = []

    def make(**parameters):
        shells.append(Notebook(tmp_path, **parameters))
        return shells[-1]

    yield make


def unwrapped(text):
    return " ".join(text.split())


def own_cell(*lines, head="@reward\ndef my_reward(completion: str, answer: str) -> float:"):
    body = "\n".join(f"    {line}" for line in lines)
    return f'%%writefile "$my_rewards"\nfrom rewards import correctness_reward, gate, reward\n\n\n{head}\n{body}\n'


RENAMED = SOURCE["c44"].replace("worked_steps_reward", "my_reward")


# --------------------------------------------------------------------------- WEIGHTS


@pytest.mark.parametrize("weights", [{}, {"format_reward": 1.0}, {"correctness_reward": 0.0}, "nonsense"])
def test_the_lesson_about_advantages_is_the_same_whatever_weights_says(notebook, weights):
    hand = notebook(WEIGHTS=weights).run(*LESSON).shell.user_ns["hand"]
    assert hand["reward"].tolist() == pytest.approx([2.0, 1.0, 1.2, 0.0]) and hand["style outweighs"].iloc[1] > 0.5


def test_renaming_the_example_runs_on_to_the_end_while_its_old_name_has_weight_0(notebook):
    found = notebook().run(*OWN, c44=RENAMED)
    assert not found.error, (found.cell, found.error)
    assert found.shell.user_ns["record"]["rewards"]["my_reward"]["weight"] == 0


def test_a_weight_for_a_renamed_reward_stops_in_the_first_cell_that_misses_it(notebook):
    found = notebook(WEIGHTS={"correctness_reward": 1.0, "worked_steps_reward": 0.5})
    told = unwrapped(found.run(*OWN, c44=SOURCE["c44"].replace("worked_steps_reward", "worked_step_reward")).error)
    assert found.cell == "c45" and "WEIGHTS names 'worked_steps_reward', but there is no such reward" in told
    assert "Did you mean 'worked_step_reward'? Correct it in the parameters cell or in the reward cell" in told
    assert "The rewards are: worked_step_reward, format_reward, " in told, "one's own come first"


@pytest.mark.parametrize(
    "weights, told",
    [
        ({}, "Every weight in WEIGHTS is 0: give at least one reward a weight"),
        ({"correctness_reward": "1"}, "gives 'correctness_reward' the weight '1', which is no finite number"),
        ({"format_reward": float("nan")}, "gives 'format_reward' the weight nan, which is no finite number"),
        ({"format_reward": None}, "gives 'format_reward' the weight None"),
        (["correctness_reward"], 'WEIGHTS must be a dict such as {"correctness_reward": 1.0}'),
    ],
)
def test_weights_that_are_no_weights_are_told_before_anything_is_scored(notebook, weights, told):
    found = notebook(WEIGHTS=weights).run(*OWN)
    assert found.cell == "c45" and told in found.error and len(found.error.splitlines()) < 6


@pytest.mark.parametrize("weights", [{"worked_steps_reward": 1.0}, {"correctness_reward": -1.0, "format_reward": 1}])
def test_a_set_without_a_reward_that_pays_for_being_right_runs_to_the_end_and_is_told_so(notebook, weights):
    found = notebook(WEIGHTS=weights).run(*OWN)
    assert not found.error and "Give a reward that decides what is right a weight" in found.out
    assert ("correctness_reward has a negative weight, so wrong answers are paid" in found.out) == (len(weights) == 2)


def test_a_gate_keeps_the_name_of_its_variable_in_tables_file_and_weights(notebook, tmp_path):
    cell = own_cell("return float(len(completion) < 40)", head="@reward\ndef style(completion: str) -> float:")
    found = notebook(WEIGHTS={"correctness_reward": 1.0, "my_gated": 0.5})
    found.run(*OWN, c44=cell + "\n\nmy_gated = gate(style, by=correctness_reward)\n")
    assert not found.error and "my_gated: mean over the samples" in found.out
    assert [one["name"] for one in json.loads((tmp_path / "rewards.json").read_text())["rewards"]][1] == "my_gated"
    (_, gated), weights, _ = chosen_rewards.load_choice(tmp_path)
    assert (gated.__name__, weights[1], gated.loaded.variable(gated)) == ("my_gated", 0.5, "my_gated")


# --------------------------------------------------------------------------- the group that is shown


def test_the_groups_that_are_shown_have_spread_and_the_sentence_above_says_in_what(notebook):
    found = notebook().run("c08")
    assert (
        "This is group 2 of 8, shown because its completions differ in correctness_reward, format_reward" in found.out
    )
    found.run(*OWN)
    shown = re.findall(r"<td [^>]*row\d_col1[^>]*>([\d.]+)<", found.out)
    assert "because its completions differ in worked_steps_reward" in found.out and len(set(shown[:4])) > 1


def test_a_reward_without_spread_in_any_group_is_told_so(notebook):
    found = notebook().run("c44", "c45", c44=own_cell("return 0.5"))
    assert "In each of the 8 groups all completions get the same my_reward: GRPO learns nothing from that" in found.out


def test_none_beside_a_score_counts_as_a_difference_and_is_counted(notebook):
    found = notebook().run("c44", "c45", c44=own_cell("if answer in completion:", "    return 1.0"))
    assert "(25 of 32 scores are None)" in found.out and "differ in my_reward" in found.out


# --------------------------------------------------------------------------- errors come first

BROKEN = {
    "syntax": (
        own_cell("return float("),
        ["my_rewards.py cannot be run. SyntaxError: '(' was never closed", "in my_rewards.py, line 6: return float("],
    ),
    "colon": (own_cell("if completion", "    return 1.0"), ["expected ':'", "in my_rewards.py, line 6: if completion"]),
    "head": (own_cell("return 1.0", head="@reward\ndef f(:"), ["in my_rewards.py, line 5: def f(:"]),
    "import": (own_cell("return 1.0") + "\nimport no_such_module\n", ["line 8: import no_such_module", "reward cell"]),
    "parameter": (
        own_cell("return 1.0", head="@reward\ndef my_reward(text: str):"),
        ["needs a parameter named 'completion'", "my_rewards.py, line 4: @reward"],
    ),
    "column": (
        own_cell("return 1.0", head="@reward\ndef my_reward(completion: str, anser):"),
        ["my_reward needs the data-set column 'anser'", "Did you mean 'answer'?"],
    ),
    "raises": (
        own_cell("table = {}", "return table['steps']"),
        [
            "my_reward raised KeyError: 'steps'",
            "on the completion '<think>",
            "line 7: return table['steps']",
            "Correct",
        ],
    ),
    "no return": (
        own_cell("score = float(answer in completion)"),
        ["my_reward returned nothing for all 32 completions: its code has no `return`"],
    ),
    "no return in TRL's signature": (
        own_cell("[1.0 for _ in completions]", head="def my_reward(prompts, completions, **kwargs):"),
        ["my_reward returned None, not one score for each of the 32", "Is its `return` missing?"],
    ),
    "no return of a group": (
        own_cell("[1.0 for _ in completions]", head="@reward\ndef my_reward(completions):"),
        ["one score for each of the 4 completions of a group, not None. Is its `return` missing?"],
    ),
    "text": (
        own_cell("return 'good'"),
        ["my_reward returned 'good', which is not a finite number", "Return one finite"],
    ),
    "list": (own_cell("return [True, False]"), ["returned [True, False]", "called with one completion at a time"]),
    "range": (
        own_cell("return -5 / 2"),
        ["returned -2.5", "write @reward(low=-2.5, high=1) on the line above its def"],
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_reward_is_told_in_a_few_lines_with_its_place_and_the_way_out(notebook, what):
    cell, told = BROKEN[what]
    found = notebook().run(*OWN, c44=cell)
    assert found.cell == "c45" and all(words in unwrapped(found.error) for words in told), found.error
    assert "Traceback" not in found.error and len(found.error.splitlines()) <= 9


def test_the_whole_traceback_is_there_when_asked_for_and_a_bug_of_ours_keeps_its_own(notebook):
    found = notebook().run(*OWN, c44=BROKEN["raises"][0])
    assert "Run %tb in a new cell to see the whole traceback" in found.error
    printed = io.StringIO()
    found.shell._showtraceback = lambda kind, value, lines: print("\n".join(lines), file=printed)
    found.shell.run_cell("%tb")
    assert re.search(r"line 7, in my_reward\n.*table\['steps'\]", printed.getvalue()), printed.getvalue()
    bug = found.run("grading.score_groups([], rows, groups[:2])").error
    assert "zip() argument" in bug and "score_groups" in bug and len(bug.splitlines()) > 10


def test_a_reward_that_a_cell_defines_is_told_with_the_line_of_that_cell(notebook):
    cell = "from rewards import reward\n@reward\ndef x_reward(completion):\n    return 1 / len(completion)"
    told = notebook().run(cell, "x_reward.score('')").error
    assert "x_reward raised ZeroDivisionError" in told and "line 4: return 1 / len(completion)" in told
    assert "in the cell that defines it" in told


def test_a_missing_input_is_told_in_a_few_lines_too(notebook):
    told = notebook().run("chosen_rewards.load_choice(folder)").error
    assert len(told.splitlines()) < 6 and re.match(
        "MissingInputError: .*rewards.json is not there: run notebook 02_design_rewards ", unwrapped(told)
    )


def test_training_that_a_broken_reward_ended_is_told_shortly_and_one_that_a_bug_ended_is_not():
    from lab.train.recorder import TrainingError
    from rewards import RewardError

    def shown(cause):
        try:
            raise TrainingError("why") from cause
        except TrainingError as error:
            return "".join(error._render_traceback_())

    assert "Traceback" not in shown(RewardError("x")) and shown(None).startswith("TrainingError: why")
    assert "Traceback" in shown(ZeroDivisionError("x")) and "direct cause" in shown(ZeroDivisionError("x"))


# --------------------------------------------------------------------------- the audit

CHEATED = own_cell("return float(str(answer) in completion)")


def test_a_failed_audit_has_one_line_a_kind_with_count_example_and_what_to_do(notebook):
    found = notebook().run(*OWN, c44=CHEATED)
    table = found.shell.user_ns["found"].findings().set_index("what fails")
    failures = found.shell.user_ns["found"].failures
    assert table["times"].sum() == len(failures) > 100 and len(table) <= 6
    assert (
        table.loc["cheating: hedged", "times"] > 50
        and "more than one value" in table.loc["cheating: hedged", "what to do"]
    )
    assert table.loc["wrong", "for example"] and (table["what to do"].str.len() > 20).all()


def test_saving_says_whether_the_audit_holds_for_what_is_saved(notebook, tmp_path):
    found, kept = notebook(), lambda: json.loads((tmp_path / "rewards.json").read_text())["audit"]["status"]
    assert "The audit holds for these rewards and weights" in found.run(*OWN).out and kept() == "passed"
    found.run("c44", "c58", c44=CHEATED)
    assert "The audit was not run for these rewards and weights" in found.out and kept() == "not run", "the file is new"
    found.run("c45", "c47", "c58")
    assert "The audit found 4 kinds of failure; saved all the same." in found.out and kept() == "failed"
    found.shell.user_ns["WEIGHTS"] = {"correctness_reward": 1.0}
    assert not found.run("c58").error and kept() == "not run", "the weights are new"


def test_the_lesson_below_the_audit_is_about_its_own_reward_whatever_the_reader_wrote(notebook):
    found = notebook().run("c44", "c45", "c49", c44=CHEATED)
    assert "reasoning_steps_reward × 1: fails" in found.out and "different words and wrong" in found.out
    assert "my_reward" not in found.out.split("× 1: fails")[1]


def test_what_is_saved_is_shown_with_its_columns_in_words(notebook):
    found = notebook().run(*OWN)
    assert "(&#x27;answer" not in found.out and "()" not in found.out and ">answer</td>" in found.out
