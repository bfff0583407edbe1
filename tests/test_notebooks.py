"""The notebooks as files, and as they run: with smoke parameters, in order, asserting on what they wrote."""

import ast
import io
import json
import re
import shutil
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import nbformat
import pandas as pd
import pytest

from lab.data import dataset, loading
from lab.data.loading import DataError
from lab.files import ROOT
from lab.make import run
from lab.make.run import EVERY, ROAD, NotebookError
from lab.measure import comparison, evaluate
from lab.read import health_rules
from lab.show import tables, training_curves
from lab.train import launch
from tests.page.browser_payload import unpack_payload
from tests.warm_processes import run_notebooks, warm_python

NAMES = {"QUESTION_COLUMN": "question", "ANSWER_COLUMN": "answer"}
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SMOKE = {
    "00_grpo_from_scratch": {
        "STEPS": 2,
        "MAX_COMPLETION_TOKENS": 32,
        "N_HELD_OUT": 4,
        "N_SAMPLES": 2,
        "COMPARE": ["dapo"],
    },
    "02_design_rewards": {"N_PROMPTS": 3, "NUM_GENERATIONS": 4, "MAX_COMPLETION_TOKENS": 96},
    "03_train_grpo": {"MAX_STEPS": 3, "PROMPTS_PER_STEP": 2, "NUM_GENERATIONS": 4, "EVAL_EVERY": 2, "N_EVAL": 4},
    "05_merge_and_export": {"N_EVALUATE": 8, "N_SAMPLES": 2, "N_PROOF": 4},
    "06_code_rewards": {"MAX_STEPS": 2, "PROMPTS_PER_STEP": 2, "NUM_GENERATIONS": 4, "N_SAMPLES": 2},
}


def code_cells(path):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


# --------------------------------------------------------------------------- hygiene


def test_the_road_is_the_notebooks_that_there_are():
    assert {path.stem for path in NOTEBOOKS} == set(EVERY)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestHygiene:
    def test_is_valid_and_committed_without_outputs_counts_or_widgets(self, path):
        notebook = nbformat.read(path, 4)
        nbformat.validate(notebook)
        assert "widgets" not in notebook.metadata
        assert not any(cell.outputs or cell.execution_count for cell in code_cells(path))

    def test_has_one_parameters_cell_of_commented_capitals(self, path):
        (cell,) = [cell for cell in code_cells(path) if "parameters" in cell.metadata.get("tags", [])]
        values = [line for line in cell.source.splitlines() if re.match(r"[A-Z]", line)]
        assert values and all(re.match(r"[A-Z_]+ = .*  ?# ", line) for line in values), cell.source

    def test_begins_with_purpose_and_the_common_setup_cell(self, path):
        first = nbformat.read(path, 4).cells[0]
        assert first.cell_type == "markdown" and all(
            word in first.source for word in ("**Purpose:**", "needs", "reads", "writes")
        )
        assert code_cells(path)[0].source == code_cells(NOTEBOOKS[0])[0].source

    def test_imports_unsloth_before_the_libraries_that_it_patches(self, path):
        """The tests start these notebooks in processes that have imported unsloth, so a wrong order shows here only."""
        source = "\n".join(cell.source for cell in code_cells(path))
        imported = re.findall(r"^(?:from|import) (unsloth|trl|transformers|peft|lab\.(?!setup))", source, re.M)
        assert "unsloth" not in imported or imported[0] == "unsloth", imported

    def test_cells_are_short_and_stand_between_prose(self, path):
        cells = nbformat.read(path, 4).cells
        assert max(len(cell.source.splitlines()) for cell in code_cells(path)) <= 40
        kinds = "".join(cell.cell_type[0] for cell in cells)
        assert "ccc" not in kinds, "three code cells in a row without prose"

    def test_has_no_dead_code_and_no_link_that_leads_nowhere(self, path):
        for cell in nbformat.read(path, 4).cells:
            assert "if False" not in cell.source
            for target in re.findall(r"\]\((?!http)([^)]+)\)", cell.source if cell.cell_type == "markdown" else ""):
                assert (path.parent / target).exists(), target


def test_the_setup_cell_is_short_and_finds_the_repository_from_outside(tmp_path, monkeypatch):
    source = code_cells(NOTEBOOKS[0])[0].source
    assert len(source.splitlines()) <= 25
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "clone").symlink_to(ROOT)
    for start in (ROOT, ROOT / "notebooks", ROOT / "notebooks" / "lab" / "train", tmp_path / "beside"):
        monkeypatch.chdir(start)
        exec(source, scope := {})
        assert scope["root"] == ROOT


# --------------------------------------------------------------------------- a person's own data


def run_cell(name, cell_id, **parameters):
    """What a cell leaves behind when it is run with these parameters, without the cells before it; `_`: what it shows."""
    (cell,) = [cell for cell in nbformat.read(ROOT / f"notebooks/{name}.ipynb", 4).cells if cell.id == cell_id]
    *statements, last = ast.parse(cell.source).body
    exec(compile(ast.Module(statements, []), cell_id, "exec"), scope := parameters)
    shown = eval(compile(ast.Expression(last.value), cell_id, "eval"), scope) if isinstance(last, ast.Expr) else None
    return scope | {"_": shown}


def test_01_names_a_misspelt_column_in_the_cell_that_loads_the_rows(tmp_path):
    (tmp_path / "mine.csv").write_text("question;answr\nWhat is 1 + 1?;2\n")
    given = {"DATASET": str(tmp_path / "mine.csv"), "DATASET_CONFIG": "", "SCHEMA": {}}
    with pytest.raises(DataError, match="no column 'answer'; the columns are: answr, question. Did you mean 'answr'"):
        run_cell("01_prepare_data", "c05", **given, **NAMES)
    named = run_cell("01_prepare_data", "c05", **given, **NAMES | {"ANSWER_COLUMN": "answr"})
    assert len(named["loaded"].rows) == 1


def test_01_counts_the_shapes_of_answers_where_some_rows_have_none():
    rows = [{"answer": "$12"}, {"answer": "7"}, {}]
    given = {"loaded": SimpleNamespace(rows=rows), "dataset": dataset, "pd": pd, "readable": tables.readable}
    assert sorted(run_cell("01_prepare_data", "c09", **given, ANSWER_COLUMN="answer")["shapes"].index) == [
        "",
        "$9",
        "9",
    ]


def test_01_shows_the_whole_reason_of_a_rejected_row_and_no_raw_structure(capsys):
    reason = "column 'n_steps': 'three or four, it depends on how one counts' is not of type int (invalid literal)"
    report = {"rows": {"read": 9}, "rejected": {"column 'n_steps'": 1}}
    raw = {"question": "What is <b>1 + 1</b>?", "n_steps": "three"}
    prepared = SimpleNamespace(rejected=[{"row": 3, "reason": reason, "raw": raw}], report=report)
    shown = run_cell("01_prepare_data", "c13", prepared=prepared, pd=pd, readable=tables.readable)["_"].to_html()
    (row,) = pd.read_html(io.StringIO(shown))[0].to_dict("records")
    assert row == {"row": 3, "reason": reason, "raw": "question: What is <b>1 + 1</b>? n_steps: three"}
    assert capsys.readouterr().out == "1 rows rejected of 9\n1 × column 'n_steps'\n"


def test_01_says_after_saving_what_the_held_out_rows_can_show(tmp_path, tokenizer, capsys):
    rows = [{"question": f"What is {i} + {i}?", "answer": str(2 * i), "_row": i} for i in range(60)]
    prepared = dataset.prepare_dataset(loading.LoadedRows(rows), tokenizer)
    loading_cell = run_cell("01_prepare_data", "c05", DATASET="word_problems", DATASET_CONFIG="", SCHEMA={}, **NAMES)
    given = {"OUTPUTS": str(tmp_path), "prepared": prepared, "figure": Mock(), "figure_style": Mock()}
    run_cell("01_prepare_data", "c19", **loading_cell | given)
    assert "Held-out rows: 6. If 3 are answered right in notebook 05, the share lies between" in capsys.readouterr().out


def test_05_names_the_file_of_its_figure_in_words(tmp_path, capsys):
    figures, style = Mock(), SimpleNamespace(save=lambda figure, path: path)
    given = {"evaluation": {}, "folder": tmp_path, "relative": str}
    cell = run_cell("05_merge_and_export", "c21", evaluation_figures=figures, figure_style=style, **given)
    assert cell["_"] is None and capsys.readouterr().out.endswith("figures/before_after.png\n")


@pytest.mark.parametrize("n_prompts, sampled", [(32, 3), (2, 2)])
def test_02_takes_the_training_rows_that_there_are_and_says_so(
    tmp_path, tokenizer, monkeypatch, capsys, n_prompts, sampled
):
    rows = [{"question": f"What is {i} + {i}?", "answer": str(2 * i), "_row": i} for i in range(4)]
    dataset.save_dataset(dataset.prepare_dataset(loading.LoadedRows(rows), tokenizer), tmp_path / "dataset")
    loader = Mock(from_pretrained=Mock(return_value=(Mock(), Mock())))
    monkeypatch.setitem(sys.modules, "unsloth", SimpleNamespace(FastLanguageModel=loader))
    found = run_cell("02_design_rewards", "c05", OUTPUTS=str(tmp_path), N_PROMPTS=n_prompts, MODEL="starter")
    assert len(found["rows"]) == sampled
    assert ("there are only 3 training rows: all of them are sampled" in capsys.readouterr().out) == (n_prompts > 3)


# --------------------------------------------------------------------------- the whole road, small


@pytest.fixture(scope="module")
def road(tmp_path_factory):
    """All notebooks in order with smoke parameters; the folder that they wrote."""
    folder = tmp_path_factory.mktemp("a road with spaces")
    run_notebooks(EVERY, folder, SMOKE)
    return folder


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_notebook_left_an_executed_copy_without_errors(road):
    for name in EVERY:
        cells = code_cells(road / "executed" / f"{name}.ipynb")
        assert all(cell.execution_count for cell in cells if cell.source.strip())
        assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    assert not list((ROOT / "notebooks").glob("kernel-ipc*")), "sockets belong to a run, not into the repository"


def test_00_compared_its_loss_with_trl_trained_and_names_the_mistakes_of_its_exercises(road):
    compared = read(road / "from_scratch/equal_to_trl.json")
    assert len(compared) == 12 and {row["loss_type"] for row in compared} == {"dapo"}
    assert max(max(row["loss difference"], row["gradient difference"]) for row in compared) < 1e-5
    curves = pd.read_csv(road / "from_scratch/training.csv")
    assert curves["step"].tolist() == [1, 2] and curves[["reward", "loss", "grad_norm"]].notna().all(axis=None)
    assert curves["loss"].to_numpy() == pytest.approx((curves["policy_loss"] + curves["kl_loss"]).to_numpy(), abs=1e-7)
    evaluation = read(road / "from_scratch/evaluation.json")
    assert evaluation["problems"] == 4 and len(evaluation["rewards"]) == 3
    outputs = [o for cell in code_cells(road / "executed/00_grpo_from_scratch.ipynb") for o in cell.outputs]
    text = "".join("".join(output.get("text", "")) for output in outputs)
    assert text.count("Not yet: ") == 5 and "A: (2.0 - 0.75) / 0.957 = +1.305" in text
    tables = [output.get("data", {}).get("text/html", "") for output in outputs]
    (step,) = [pd.read_html(io.StringIO(html))[0] for html in tables if "times as likely" in html]
    assert (step["times as likely"] > 1).tolist() == [True, True, True, False], "as the text says, C too"
    assert "12 losses and gradients compared with TRL's" in run.scratch_evidence(road / "from_scratch")


def test_01_wrote_the_whole_data_set(road):
    from datasets import load_from_disk

    train, test = (load_from_disk(str(road / "dataset" / name)) for name in ("train", "test"))
    assert (
        (len(train), len(test))
        == (4000, 500)
        == tuple(read(road / "dataset/report.json")["rows"][k] for k in ("train", "test"))
    )
    assert {"prompt", "answer", "n_steps", "solution"} <= set(train.column_names)
    assert (road / "dataset/rejected.jsonl").read_text() == ""


def test_02_wrote_the_choice_of_its_parameters_and_the_readers_module(road):
    chosen = read(road / "rewards.json")["rewards"]
    weights = {"correctness_reward": 1.0, "format_reward": 0.5, "soft_format_reward": 0.5}
    assert {entry["name"]: entry["weight"] for entry in chosen} == weights
    assert "def worked_steps_reward" in (road / "my_rewards.py").read_text()


def test_02_audited_the_set_and_wrote_the_preflight(road):
    record = read(road / "preflight.json")
    assert record["verdict"] in ("go", "weak") and record["completions"] == 12
    assert (
        record["rewards"]["correctness_reward"]["weight"] == 1.0
        and record["rewards"]["worked_steps_reward"]["weight"] == 0.0
    )
    text = "".join(
        "".join(output.get("text", ""))
        for cell in code_cells(road / "executed/02_design_rewards.ipynb")
        for output in cell.outputs
    )
    assert "the audit holds" in text and "reasoning_steps_reward × 1: fails" in text
    probed = re.findall(r"(\d+) of (\d+) cases score as they must", text)
    assert len(probed) == 7 and all(held == of for held, of in probed), probed
    assert sum(int(of) for _, of in probed) > 100 and "[None, None] failures: 2" in text


@pytest.mark.parametrize("name", EVERY)
def test_every_cell_that_makes_a_figure_shows_it(road, name):
    for cell in code_cells(road / "executed" / f"{name}.ipynb"):
        if re.search(r"^figure = ", cell.source, re.M):
            assert any("image/png" in output.get("data", {}) for output in cell.outputs), cell.source


def test_03_kept_the_whole_run(road):
    from safetensors.torch import load_file

    log = [json.loads(line) for line in (road / "run/log.jsonl").read_text().splitlines()]
    steps = [row for row in log if "reward" in row]
    assert [row["step"] for row in steps] == [1, 2, 3] and all("kl" in row for row in steps)
    record = read(road / "run/run.json")
    assert record["status"] == "finished" and record["steps"] == 3
    assert record["requested"]["beta"] == record["effective"]["beta"] == 0.02
    assert record["versions"]["trl"] == "1.14.0"
    tables = [pd.read_parquet(path) for path in sorted((road / "run/completions").glob("*.parquet"))]
    assert [len(table) for table in tables] == [8, 8, 8]
    weights = load_file(road / "run/adapter/adapter_model.safetensors")
    assert any(value.abs().max() > 0 for name, value in weights.items() if "lora_B" in name)


def test_03_shows_its_settings_and_their_reasons_and_what_the_monitor_says(road):
    text = json.dumps([cell.outputs for cell in code_cells(road / "executed/03_train_grpo.ipynb")])
    for words in (
        "data/starter-policy on the preset cpu",
        "set by you",
        "peak memory, estimated",
        "groups_without_spread",
        "attached: LiveRewards, TemperatureAnnealing, RewardWeights, AdapterCheck, HeldOut, HealthMonitor, LiveView",
        "held out, greedy: correctness_reward",
        "56 of 56 trained tensors moved",
        "adamw_torch_fused",
    ):
        assert words in text, words
    held_out = [json.loads(line) for line in (road / "run/log.jsonl").read_text().splitlines() if "eval_n" in line]
    assert [row["step"] for row in held_out] == [0, 2, 3] and all(row["eval_n"] == 4 for row in held_out)
    assert (road / "run/rewards/v1/rewards.py").exists()


@pytest.mark.parametrize("name", ["03_train_grpo", "04_plot_training", "05_merge_and_export"])
def test_nothing_is_shown_as_python_writes_it(road, name):
    for cell in code_cells(road / "executed" / f"{name}.ipynb"):
        for output in cell.outputs:
            shown = "".join(output.get("text", "")) + "".join(output.get("data", {}).get("text/plain", ""))
            shown = shown.split("<pandas.io")[0]  # what stands for a table where HTML cannot be shown
            assert not re.search(r"Path\(|\('\w+',\)|\(\)|<reward |\{'", shown), (cell.source, shown)


def test_03_again_with_more_steps_goes_on_where_the_run_ended(road, tmp_path):
    """And by the other road: the standard loaders, a prefilled turn is another run, so a new one begins."""
    folder = copied(road, tmp_path)
    run_notebooks(("03_train_grpo",), folder, {"03_train_grpo": {**SMOKE["03_train_grpo"], "MAX_STEPS": 4}})
    log = [json.loads(line) for line in (folder / "run/log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in log if "reward" in row] == [1, 2, 3, 4]
    record = read(folder / "run/run.json")
    assert [attempt["from_step"] for attempt in record["attempts"]] == [0, 3] and record["steps"] == 4


def copied(road, tmp_path):
    folder = tmp_path / "outputs"
    shutil.copytree(road, folder, ignore=shutil.ignore_patterns("code", "executed", "figures", "merged*"))
    return folder


def test_the_standard_road_with_everything_switched_on_gives_the_same_files(road, tmp_path):
    folder = copied(road, tmp_path)
    more = {
        "BACKEND": "trl",
        "PREFILL": "<think>\n",
        "FINAL_TEMPERATURE": 0.7,
        "ADAPTIVE_WEIGHTS": True,
        "WEIGHT_STAGES": [[0, {"format_reward": 1.0}], [2, {"correctness_reward": 1.0, "format_reward": 0.5}]],
    }
    run_notebooks(
        ("03_train_grpo", "05_merge_and_export"),
        folder,
        {
            "03_train_grpo": {**SMOKE["03_train_grpo"], **more},
            "05_merge_and_export": {
                **SMOKE["05_merge_and_export"],
                "STOP": ["</answer>"],
                "MERGE_INTO": "original base",
                "FORMATS": [],
            },
        },
    )
    log = [row for line in (folder / "run/log.jsonl").read_text().splitlines() if "reward" in (row := json.loads(line))]
    assert [row["temperature"] for row in log] == pytest.approx([1.0, 0.85, 0.7])
    assert [row["weight/correctness_reward"] > 0 for row in log] == [False, False, True]
    table = pd.read_parquet(folder / "run/completions/completions_00001.parquet")
    assert table["prompt"].str.rstrip().str.endswith("<think>").all() and len(list(tmp_path.glob("outputs/run-*"))) == 1
    assert {path.name for path in (road / "run").iterdir()} == {path.name for path in (folder / "run").iterdir()}
    answers = pd.read_parquet(folder / "answers/merged.parquet")
    assert not answers["question"].str.contains("<think>").any() and read(folder / "evaluation.json")["n"] == 8
    proof = read(folder / "merge_proof.json")
    assert proof["merged_into"] == "original base" and proof["fresh_process"]["first_answer"].startswith("<think>\n")
    assert read(folder / "merged/generation_config.json")["stop_strings"] == ["</answer>"]
    text = "".join(
        "".join(o.get("text", "")) for c in code_cells(folder / "executed/05_merge_and_export.ipynb") for o in c.outputs
    )
    assert "4 of 4 answers as expected" in text, "served with prefill and stop as evaluated"


def test_all_weights_can_be_trained_instead_of_an_adapter(road, tmp_path):
    folder = copied(road, tmp_path)
    run_notebooks(
        ("03_train_grpo", "05_merge_and_export"),
        folder,
        {
            "03_train_grpo": {**SMOKE["03_train_grpo"], "FULL_FINETUNING": True},
            "05_merge_and_export": {**SMOKE["05_merge_and_export"], "TRY_SERVER": False, "FORMATS": []},
        },
    )
    proof = read(folder / "merge_proof.json")
    assert (
        proof["weights"]["changed"] > 20 and proof["trained_against_merged"]["kl"] < 1e-6 and proof["adapter"] is None
    )
    assert read(folder / "evaluation.json")["models"] == ["base", "merged"]
    assert "all weights trained" in (folder / "merged/README.md").read_text()


def test_two_processes_leave_the_same_files_and_metrics_as_one(road, tmp_path, monkeypatch):
    folder = copied(road, tmp_path)
    shutil.rmtree(folder / "run")
    monkeypatch.setattr(sys, "executable", warm_python())
    assert launch.launch_training(2, "ddp", {**SMOKE["03_train_grpo"], "OUTPUTS": str(folder)}) == 0
    record = read(folder / "run/run.json")
    assert record["status"] == "finished" and record["process"]["processes"] == 2
    one, two = ([json.loads(line) for line in (f / "run/log.jsonl").read_text().splitlines()] for f in (road, folder))
    assert [sorted(row) for row in one] == [sorted(row) for row in two], "one writer: no row twice"
    names = [{str(path.relative_to(f / "run")) for path in (f / "run").rglob("*")} for f in (road, folder)]
    assert names[0] ^ names[1] <= {f"checkpoint-3/rng_state{i}.pth" for i in ("", "_0", "_1")}
    table = pd.read_parquet(folder / "run/completions/completions_00001.parquet")
    assert len(table) == 8 and table["group"].tolist() == [0] * 4 + [1] * 4
    assert table.groupby("group")["prompt"].nunique().eq(1).all(), "a group is one prompt's, across processes"


def test_the_recorded_scores_advantages_and_log_agree(road):
    log = [row for line in (road / "run/log.jsonl").read_text().splitlines() if "reward" in (row := json.loads(line))]
    for step in (1, 2, 3):
        table = pd.read_parquet(road / f"run/completions/completions_{step:05d}.parquet")
        total = table["correctness_reward"] + 0.5 * table["format_reward"] + 0.5 * table["soft_format_reward"]
        assert log[step - 1]["reward"] == pytest.approx(total.mean(), abs=1e-5)
        groups = total.groupby(table["prompt"])
        by_hand = (total - groups.transform("mean")) / (groups.transform("std") + 1e-4)
        assert table["advantage"].to_numpy() == pytest.approx(by_hand.to_numpy(), abs=1e-3)


def test_04_drew_every_figure(road):
    from PIL import Image

    names = {path.stem for path in (road / "figures").glob("*.svg")}
    assert (
        {"training", "compared", *training_curves.PANELS}
        <= names
        == {path.stem for path in (road / "figures").glob("*.png")} & names
    )
    for path in (road / "figures").glob("*.png"):
        picture = Image.open(path)
        assert min(picture.size) > 300 and len(set(picture.convert("L").resize((64, 64)).getdata())) > 10, path


def test_04_wrote_the_verdict_of_every_rule_and_a_page_with_every_completion(road):
    diagnosis = read(road / "diagnosis.json")
    assert {finding["rule"] for finding in diagnosis["findings"]} == {rule.name for rule in health_rules.RULES}
    payload = unpack_payload((road / "completions.html").read_text(encoding="utf-8"))
    written = [
        text
        for path in sorted((road / "run/completions").glob("*.parquet"))
        for text in pd.read_parquet(path)["completion"]
    ]
    trained = [kind == "training" for kind in payload["prompts"]["data"]["set"]]
    rows = payload["completions"]
    assert sorted(text for text, prompt in zip(rows["text"], rows["prompt"]) if trained[prompt]) == sorted(written)
    assert {"answer", "template"} <= set(payload["data_columns"]) and trained.count(False) == 4
    shown = [
        output.get("data", {}).get("text/html", "")
        for cell in code_cells(road / "executed/04_plot_training.ipynb")
        for output in cell.outputs
    ]
    assert any("<iframe" in html for html in shown), "the page stands in the notebook too"


def test_04_shows_the_recorded_run_to_who_has_not_trained(tmp_path):
    run_notebooks(("04_plot_training",), tmp_path)
    text = (tmp_path / "executed/04_plot_training.ipynb").read_text()
    assert "You have not trained yet" in text and read(tmp_path / "diagnosis.json")["steps"] == 80
    assert (tmp_path / "figures/training.svg").exists() and (tmp_path / "completions.html").exists()


def test_05_merged_what_was_trained_into_a_plain_16_bit_model_and_proved_it(road):
    from safetensors.torch import load_file

    from lab.export import merge_proof, model_folder

    proof = read(road / "merge_proof.json")
    assert all(line["ok"] for line in merge_proof.proof_checks(proof)) and proof["merged_into"] == "dequantised base"
    assert proof["adapter"]["compared_with_start"] == proof["adapter"]["tensors"] == 56, "start.json is the training's"
    assert proof["base"]["changed"] == 0 and proof["base"]["compared_with_start"] > 20
    assert proof["distances"]["dequantised base"]["kl"] < proof["distances"]["original base"]["kl"]
    hashes = {file["file"]: file["sha256"] for file in proof["files"]}
    assert hashes["model.safetensors"] == model_folder.sha256(road / "merged/model.safetensors")
    weights = load_file(road / "merged/model.safetensors")
    assert {str(value.dtype) for value in weights.values()} == {"torch.bfloat16"}
    assert not any("lora" in name or "quant" in name for name in weights)
    assert not (road / "merged/adapter_config.json").exists() and not list(road.glob(".*.building"))


def test_05_evaluation_can_be_recomputed_from_the_answers_it_kept(road):
    found = read(road / "evaluation.json")
    tables = {name: pd.read_parquet(road / "answers" / f"{name}.parquet") for name in ("base", "adapter", "merged")}
    assert [len(table) for table in tables.values()] == [24, 24, 24] and found["n"] == 8
    again = comparison.compare_models(
        tables, evaluate.AnswerSettings(**found["settings"]), seed=3407, by=["data/template"]
    )
    again = json.loads(json.dumps(again))
    for part in ("greedy", "sampled", "difference", "verdict", "said"):
        assert found[part] == again[part], part
    assert found["by"]["data/template"] == again["by"]["data/template"] and set(ROAD) <= set(found["seconds"])
    assert sum(found["overlap"]["counts"].values()) == 8


def test_05_is_served_and_asked_and_its_answers_stand_in_a_page(road):
    cells = code_cells(road / "executed/05_merge_and_export.ipynb")
    text = "".join("".join(output.get("text", "")) for cell in cells for output in cell.outputs)
    assert "4 of 4 answers as expected" in text and "--enable-lora --max-lora-rank 16" in text
    payload = unpack_payload((road / "evaluation.html").read_text(encoding="utf-8"))
    assert payload["models"] == ["base", "adapter", "merged"] and len(payload["completions"]["text"]) == 72
    for name in ("adapter/adapter_model.safetensors", "adapter/chat_template.jinja", "merged-4bit/model.safetensors"):
        assert (road / name).exists(), name
    assert not (road / "gguf").exists() and "llama.cpp is not at hand" in json.dumps([cell.outputs for cell in cells])
    card = (road / "merged/README.md").read_text()
    assert (
        "correct, greedy" in card
        and "`correctness_reward` × 1" in card
        and read(road / "merged/merge_proof.json") == read(road / "merge_proof.json")
    )


def test_05_again_answers_nothing_twice_and_keeps_no_second_copy_of_the_same_model(road, tmp_path):
    folder = tmp_path / "outputs"
    shutil.copytree(road, folder, ignore=shutil.ignore_patterns("code", "executed", "figures"))
    smoke = {**SMOKE["05_merge_and_export"], "TRY_SERVER": False, "FORMATS": []}
    run_notebooks(("05_merge_and_export",), folder, {"05_merge_and_export": smoke})
    text = "".join(
        "".join(o.get("text", "")) for c in code_cells(folder / "executed/05_merge_and_export.ipynb") for o in c.outputs
    )
    assert text.count("are used again") == 3 and not list(folder.glob("merged-2*"))


def test_06_trained_on_code_and_kept_what_its_evidence_says(road):
    from lab.measure import code_scores

    found = read(road / "code/evaluation.json")
    tables = [pd.read_parquet(road / "code/answers" / f"{name}.parquet") for name in ("before", "after")]
    again = json.loads(json.dumps(code_scores.compare_pass_at_k(*tables, seed=3407)))
    assert found["pass"] == again["pass"] and found["n"] == 130 and found["samples"] == 2
    assert set(tables[0]["status"]) <= {"pass", "fail", "no code"} and 0.2 < tables[0]["passed"].mean() < 0.7
    run_record = read(road / "code/run/run.json")
    assert run_record["status"] == "finished" and run_record["steps"] == 2
    scored = pd.concat(pd.read_parquet(path) for path in (road / "code/run/completions").glob("*.parquet"))
    assert len(scored) == 16 and scored["code_reward"].between(0, 1).all() and scored["code_reward"].nunique() > 1
    assert (
        not any("lora" in path.name for path in (road / "code/merged").iterdir())
        and (road / "code/merged/model.safetensors").exists()
    )
    text = "".join(
        "".join(o.get("text", "")) for cell in code_cells(road / "executed/06_code_rewards.ipynb") for o in cell.outputs
    )
    assert (
        re.search(r"\b0 of \d{2,} forgeries are judged right", text)
        and "0 left out; 470 to learn from, 130 held out" in text
    )


def test_the_evidence_of_all_notebooks_has_pass_at_1(road):
    text = run.evidence(road, {name: 61 for name in EVERY})
    assert "pass@1" in text and "code_drills" in text and "06_code_rewards" in text


def test_the_evidence_names_everything_a_person_wants_to_know(road):
    text = run.evidence(road, {name: 61 for name in ROAD})
    for word in (
        "strict format",
        "correct",
        "n = 8",
        "95 % interval",
        "03_train_grpo           1:01",
        "merged model",
        "figures",
        "completions.html",
        "evaluation.html",
        "merge_proof.json",
        "pass@1",
    ):
        assert word in text, text


# --------------------------------------------------------------------------- when something is missing or wrong


@pytest.mark.parametrize(
    "name, made_by",
    [
        ("02_design_rewards", "01_prepare_data"),
        ("03_train_grpo", "01_prepare_data"),
        ("05_merge_and_export", "03_train_grpo"),
    ],
)
def test_a_notebook_without_its_input_names_the_one_that_makes_it(tmp_path, name, made_by):
    with pytest.raises(NotebookError, match=rf"{name} stopped in cell \d+ with \w+: .*run notebook {made_by} first"):
        run_notebooks((name,), tmp_path, cold=("02_design_rewards",))
    assert (tmp_path / "executed" / f"{name}.ipynb").exists()
