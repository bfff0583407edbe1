"""Single cells of notebooks on made-up runs: what a person reads in them."""

import ast
import json
import shutil
import types

import pandas as pd
import pytest

from lab.files import ROOT, SAMPLE_RUN, MissingInputError, append_jsonl, read_json, write_json
from lab.read import health, run_record
from lab.show.tables import readable
from lab.train import chosen_rewards, live_rewards
from rewards import FORMAT
from tests.read.small_runs import distinct, make_run
from tests.show.made_records import CHANGED, edited, log_rows

ADAPTER = {"kind": "adapter_check", "moved": 56, "of": 56, "base_changed": 0, "base_tensors": 106}


def run_cell(notebook, cell_id, scope):
    """Runs a code cell in this scope; returns what its last line shows."""
    cells = json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    (source,) = ["".join(cell["source"]) for cell in cells if cell["id"] == cell_id]
    lines = ast.parse(source).body
    shown = lines.pop() if isinstance(lines[-1], ast.Expr) else None
    exec(compile(ast.Module(lines, []), cell_id, "exec"), scope)
    return eval(compile(ast.Expression(shown.value), cell_id, "eval"), scope) if shown else None


@pytest.fixture
def outputs(tmp_path):
    """What notebooks 01 and 02 leave: a small data set, a reward of one's own, a choice of rewards."""
    from datasets import Dataset

    chat = lambda question: [{"role": "system", "content": "Think."}, {"role": "user", "content": question}]
    rows = [{"prompt": chat(f"What is {i} + 2?"), "answer": str(i + 2)} for i in range(40)]
    for name in ("train", "test"):
        Dataset.from_list(rows).save_to_disk(tmp_path / "dataset" / name)
    write_json(tmp_path / "dataset/report.json", {"format": repr(FORMAT), "max_prompt_tokens": 60})
    own = "from rewards import reward\n\n\n@reward\ndef x_reward(completion: str) -> float:\n    return 1 / len(completion)\n"
    (tmp_path / "my_rewards.py").write_text(own)
    chosen_rewards.save_choice(tmp_path, {"correctness_reward": 1.0, "x_reward": 0.5})
    return tmp_path


def preflight(folder, **more):
    line = {"correctness_reward": {"weight": 1.0}, "x_reward": {"weight": 0.5}}
    record = {"verdict": "no-go", "reasons": ["nothing to learn"], "advice": ["Take harder data."], "rewards": line}
    write_json(folder / "preflight.json", {**record, **more})


def test_03_names_its_rewards_plainly_and_repeats_a_no_go_before_it_loads_the_model(outputs, capsys):
    preflight(outputs)
    scope = {}
    run_cell("03_train_grpo", "c03", scope)
    scope["OUTPUTS"] = str(outputs)
    for cell in ("c05", "c07", "c09"):
        run_cell("03_train_grpo", cell, scope)
    said = capsys.readouterr().out
    assert "correctness_reward × 1: 0 to 1, from the column answer\nx_reward × 0.5: 0 to 1\n" in said
    assert (
        "note: the preflight of notebook 02 says no-go: nothing to learn\nWhat to change:\n  - Take harder data."
        in said
    )


def test_03_does_not_begin_with_rewards_that_fail_on_the_last_completions_of_the_run_before(outputs, capsys):
    texts = {"prompt": "system\nThink.\nuser\nWhat is 3 + 2?\nassistant\n", "completion": "", "tokens": 1}
    (outputs / "run/completions").mkdir(parents=True)
    pd.DataFrame([{**texts, "group": 0}]).to_parquet(outputs / "run/completions/completions_00003.parquet")
    write_json(outputs / "run/run.json", {"status": "finished"})
    scope = {}
    run_cell("03_train_grpo", "c03", scope)
    scope["OUTPUTS"] = str(outputs)
    with pytest.raises(ValueError, match="(?s)ZeroDivisionError.*Correct .*my_rewards.py"):
        run_cell("03_train_grpo", "c05", scope)


def table_of_03(rows):
    record = run_record.record_from_rows(rows)
    shown = run_cell("03_train_grpo", "c31", {"record": record, "health": health, "readable": readable})
    return shown.data.set_index("mean")


def test_03_shows_the_only_held_out_measurement_of_an_edited_reward_once_and_with_its_step():
    rows = edited(log_rows(), step=35)
    for row in rows:
        if row["step"] == 40 and "eval_n" in row:
            row["eval_format_reward_v2"] = row.pop("eval_format_reward")
    table = table_of_03(rows)
    name = "held out, greedy: format_reward"
    first, last = table.loc[f"{name}_v2, step 40"]
    assert pd.isna(first) and last > 0.8
    assert table.loc[f"{name}, steps 0 and 30"].notna().all()
    assert table.loc["held out, greedy: correctness_reward, steps 0 and 40"].notna().all()


def test_03_without_held_out_answers_has_the_table_all_the_same():
    assert list(table_of_03(log_rows(evaluate=0)).columns) == ["first tenth", "last tenth"]


def last_cell_of_03(folder, events, prompt="system\nThink.\nuser\nWhat is 3 + 2?\nassistant\n"):
    rows = [{**row, "prompt": prompt} for number in range(5) for row in distinct(4, 1.0, 0.5, number)]
    record = make_run(folder, {1: rows})
    train = [{"prompt": [{"role": "user", "content": text}]} for text in ("2?", "What is 3 + 2?")]
    scope = {"record": record, "train": train, "pd": pd, "live_rewards": live_rewards, "readable": readable}
    scope["run"] = types.SimpleNamespace(events=lambda: events)
    scope["trainer"] = types.SimpleNamespace(reward_func_names=["correctness_reward", "format_reward"])
    return run_cell("03_train_grpo", "c33", scope).data


def test_03_ends_with_completions_beside_their_question_scores_and_total(tmp_path):
    table = last_cell_of_03(tmp_path / "run", [])
    assert list(table.columns) == ["question", "completion", "correctness_reward", "format_reward", "total"]
    assert len(table) == 3 and set(table["question"]) == {"What is 3 + 2?"}
    assert table["total"].tolist() == [1.25] * 3, "1 × 1.0 + 0.5 × 0.5"
    other = last_cell_of_03(tmp_path / "other", [], prompt="another text")
    assert set(other["question"]) == {"another text"}, "a prompt that no row is found for stands as it was recorded"


def test_03_says_each_event_in_a_readable_sentence(tmp_path, capsys):
    change = {**CHANGED, "mean_before": 0.25, "mean_after": 0.5, "completions": 64, "source_sha256": "ab" * 32}
    refused = {**change, "kind": "reward_refused", "error": "format_reward returned 7.0", "mean_after": None}
    events = [
        {"step": 4, **ADAPTER},
        {"step": 12, "kind": "health", "rule": "clipped", "verdict": "warn", "message": "40 % are cut"},
        change,
        {**change, "mean_before": None, "mean_after": None},
        {**refused, "step": 22},
        {"step": 30, "kind": "resumed", "after_step": 30},
        {"step": 31, "kind": "failed", "reason": "RuntimeError: no memory"},
        {"step": 32, "kind": "interrupted", "reason": "interrupted in the middle of a step"},
        {"step": 33, "kind": "another", "x": {"y": 1}},
    ]
    last_cell_of_03(tmp_path / "run", events)
    assert capsys.readouterr().out.splitlines() == [
        "step 4: 56 of 56 trained tensors moved; of the 106 frozen ones 0 changed",
        "step 12: warn, clipped: 40 % are cut",
        "step 21: format_reward_v2 replaces format_reward; its mean on the last 64 completions: 0.250 → 0.500",
        "step 21: format_reward_v2 replaces format_reward",
        "step 22: an edit of the rewards was refused: format_reward returned 7.0",
        "step 30: the run was resumed after this step",
        "step 31: the run failed: RuntimeError: no memory",
        "step 32: the run was interrupted in the middle of a step",
        "step 33: another",
    ]


def test_04_finds_a_run_that_was_set_aside_by_its_name_and_lists_the_runs_for_a_name_that_is_none(tmp_path, capsys):
    for name in ("run", "run-20261122-180000"):
        make_run(tmp_path / name, {1: distinct(4), 2: distinct(4)})
    scope = {"display": print}
    run_cell("04_plot_training", "c03", scope)
    scope |= {"OUTPUTS": str(tmp_path), "RUN": "run"}
    run_cell("04_plot_training", "c04", scope)
    scope |= {"COMPARE": ["run", "run-20261122-180000", "run-1"], "figures": tmp_path / "figures"}
    capsys.readouterr()
    table = run_cell("04_plot_training", "c15", scope).data
    assert table["run"].tolist() == [f"{tmp_path.name}/run", f"{tmp_path.name}/run-20261122-180000"]
    there = f"There are: {tmp_path}/run, {tmp_path}/run-20261122-180000, data/sample-run."
    assert f"left out: There is no run 'run-1'. {there}\n" in capsys.readouterr().out
    with pytest.raises(MissingInputError, match="There is no run 'run-2'. There are: "):
        run_cell("04_plot_training", "c04", {**scope, "RUN": "run-2"})


def test_05_compares_the_rewards_with_the_version_that_the_run_ended_with(outputs):
    shutil.copytree(SAMPLE_RUN, outputs / "run")
    (outputs / "run/adapter").mkdir()
    (outputs / "run/adapter/adapter_model.safetensors").touch()
    about = read_json(outputs / "run/run.json", "03")
    write_json(outputs / "run/run.json", {**about, "data": {**about["data"], "preamble": None}})
    swapped = chosen_rewards.load_choice(outputs)[2]["source_sha256"]
    append_jsonl(outputs / "run/events.jsonl", {**CHANGED, "step": 40, "source_sha256": swapped})
    scope = {}
    run_cell("05_merge_and_export", "c03", scope)
    scope["OUTPUTS"] = str(outputs)
    run_cell("05_merge_and_export", "c04", scope)
    assert scope["about"]["rewards"]["source_sha256"] == swapped
