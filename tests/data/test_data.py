"""From rows to the data set: loading, types, rejection with reasons, few-shot, limits, the split."""

import json

import pandas as pd
import pytest

from lab.data import dataset, loading
from lab.data.dataset import load_split, prepare_dataset, save_dataset
from lab.data.loading import DataError, LoadedRows, load_rows
from lab.files import ROOT
from rewards import FORMAT, format_reward


def loaded(*rows):
    return LoadedRows([{"_row": number, **row} for number, row in enumerate(rows)])


def simple(n, **more):
    return [{"question": f"What is {i} + {i}?", "answer": str(2 * i), **more} for i in range(n)]


def reasons(prepared):
    return {row["row"]: row["reason"] for row in prepared.rejected}


# --------------------------------------------------------------------------- loading


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_users_file_of_each_kind_is_read(tmp_path, kind):
    frame, path = pd.DataFrame(simple(5, topic="sums")), tmp_path / f"mine.{kind}"
    {
        "csv": lambda: frame.to_csv(path, index=False),
        "jsonl": lambda: frame.to_json(path, orient="records", lines=True),
        "parquet": lambda: frame.to_parquet(path),
    }[kind]()
    rows = load_rows(str(path)).rows
    assert [row["question"] for row in rows] == list(frame["question"]) and rows[0]["topic"] == "sums"


def test_a_broken_jsonl_line_is_kept_with_its_reason(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "a", "answer": "1"}\n{"question": "b", "ans\n\n[1]\n', encoding="utf-8")
    found = load_rows(str(path))
    assert len(found.rows) == 1
    assert [row["row"] for row in found.unreadable] == [1, 3]
    assert all("not JSON" in row["reason"] for row in found.unreadable)


def test_a_csv_line_with_too_many_or_too_few_values_is_kept_with_its_reason(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("\ufeffquestion,answer\na,1\nb,2,3\nc\n", encoding="utf-8")
    found = load_rows(str(path))
    assert [row["question"] for row in found.rows] == ["a"]
    more = "more values than columns: a text that has the separator in it needs quotes"
    assert [row["reason"] for row in found.unreadable] == [more, "fewer values than columns"]


@pytest.mark.parametrize(
    "content",
    [
        b'question;answer\n"Pens, and; more?";2\nq;3\n',
        "question\tanswer\nPens, and; more?\t2\nq\t3\n".encode("utf-16"),  # Excel's "Unicode text"
        b'sep=;\r\nquestion;answer\r\n"Pens, and; more?";2\r\nq;3\r\n',
        b'\xef\xbb\xbfquestion,answer,\r"Pens, and; more?",2,\rq,3,\r,,\r',  # CR alone, empty columns and lines
        b'\n question , answer\n"Pens, and; more?",2\n\nq,3\n',
    ],
    ids=["semicolons", "tabs in UTF-16", "sep=", "CR and empty columns", "spaces and empty lines"],
)
def test_a_csv_is_read_whatever_separates_its_values_and_however_excel_wrote_it(tmp_path, content):
    (tmp_path / "mine.csv").write_bytes(content)
    found = load_rows(str(tmp_path / "mine.csv"))
    values = [{"question": "Pens, and; more?", "answer": "2"}, {"question": "q", "answer": "3"}]
    assert found.rows == [{**row, "_row": number} for number, row in enumerate(values)] and not found.unreadable


def test_commas_separate_where_the_first_line_does_not_tell(tmp_path):
    for name, head, names in (("a", 'question,"a;b;c"', ["question", "a;b;c"]), ("b", "q;u,answer", ["q;u", "answer"])):
        (tmp_path / f"{name}.csv").write_text(f"{head}\n1,2\n")
        assert list(load_rows(str(tmp_path / f"{name}.csv")).rows[0])[:2] == names
    with pytest.raises(DataError, match="Is one of ; | and tab the separator"):
        dataset.check_columns([{"q;u": "1", "answer": "2"}], ["question"], {})


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("a.csv", b"", "the file is empty, or has a header only"),
        ("a.csv", b"question,answer\n", "the file is empty, or has a header only"),
        ("a.csv", b"question,answer\nWhat, or 1?,2\n", "needs quotes"),
        ("a.csv", b"question,answer,answer\na,1,2\n", "two columns named 'answer': rename one"),
        ("a.csv", b"PK\x03\x04" + bytes(60), "an Excel workbook"),
        ("a.jsonl", b'[{"question": "a"}]\n', "not JSON: a list, not an object"),
    ],
    ids=["empty", "header only", "no quotes", "a name twice", "workbook", "JSON array"],
)
def test_a_file_without_a_usable_row_says_why(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        load_rows(str(tmp_path / name))


@pytest.mark.parametrize(
    "source, words",
    [("no/such/file.csv", "no file"), ("what is this", "neither"), ("mine.xlsx", "neither")],
)
def test_a_source_that_is_not_there_says_so(source, words):
    with pytest.raises(DataError, match=words):
        load_rows(source)


def test_a_relative_path_is_looked_for_beside_the_notebook_too_and_the_error_names_the_folders(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/rows.csv").write_text("question,answer\na,1\n")
    monkeypatch.chdir(tmp_path)
    assert len(load_rows("mine/rows.csv").rows) == 1
    assert len(load_rows("data/word_problems.jsonl").rows) == 4500
    with pytest.raises(DataError) as error:
        load_rows("mine/other.csv")
    assert f"no file other.csv in {ROOT}/mine or {tmp_path}/mine or {ROOT}/notebooks/mine: give" in str(error.value)
    with pytest.raises(DataError, match=f"no file other.csv in {tmp_path}: give"):
        load_rows(f"{tmp_path}/other.csv")


def test_empty_and_half_written_files_say_so(tmp_path):
    for name, content in (("a.csv", b""), ("b.jsonl", b"\n\n"), ("c.parquet", b"PAR1half")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError):
            load_rows(str(tmp_path / name))


def test_a_hub_id_goes_to_load_dataset_with_its_splits(monkeypatch):
    import datasets

    def fake(name, config):
        assert (name, config) == ("openai/gsm8k", "main")
        row = {"question": "Natalia?", "answer": "48 / 2 = 24\n#### 24"}
        return {"train": [row], "test": [row | {"question": "Weng?"}]}

    monkeypatch.setattr(datasets, "load_dataset", fake)
    rows = load_rows("openai/gsm8k", "main").rows
    assert [row["split"] for row in rows] == ["train", "test"]


def test_a_hub_that_cannot_be_reached_says_what_to_do(monkeypatch):
    import datasets

    def fail(name, config):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match="no route\n.*JSONL"):
        load_rows("openai/gsm8k", "main")


# --------------------------------------------------------------------------- types


def test_the_schema_makes_types_of_a_csvs_texts_and_nothing_else_does(tmp_path, tokenizer):
    path = tmp_path / "mine.csv"
    rows = [f'q {i}?,007,{i},0.5,yes,"[1, 2]",{i}' for i in range(10)]
    path.write_text("question,answer,n,share,ok,tags,left\n" + "\n".join(rows), encoding="utf-8")
    schema = {"n": "int", "share": "float", "ok": "bool", "tags": "list"}
    row = prepare_dataset(load_rows(str(path)), tokenizer, schema=schema).train[0]
    assert row["answer"] == "007" and isinstance(row["left"], str)
    assert (type(row["n"]), row["share"], row["ok"], row["tags"]) == (int, 0.5, True, [1, 2])


def test_a_value_of_another_type_rejects_its_row_with_the_column_and_the_value(tokenizer):
    rows = simple(10, level="1")
    rows[3]["level"] = "three"
    found = prepare_dataset(loaded(*rows), tokenizer, schema={"level": "int"})
    assert reasons(found)[3].startswith("column 'level': 'three' is not of type int")


@pytest.mark.parametrize(
    "options, words",
    [
        ({"question_column": "problem"}, "no column 'problem'; the columns are: answer, question"),
        ({"schema": {"answer": "integer"}}, "the type 'integer'"),
        ({"n_shots": 2}, "'solution'"),
        ({"max_prompt_tokens": 1}, "0 rows are left.*10 × prompt of .* tokens"),
        ({"question_column": "Qestion"}, "Did you mean 'question'"),
        ({"test_share": 0}, "TEST_SHARE is 0: both sides need rows"),
        ({"test_share": 1.0}, "TEST_SHARE is 1: both sides need rows"),
    ],
)
def test_an_option_that_does_not_fit_the_data_is_refused_with_the_way_out(tokenizer, options, words):
    with pytest.raises(DataError, match=words):
        prepare_dataset(loaded(*simple(10)), tokenizer, **options)


# --------------------------------------------------------------------------- rejection and the split


def test_each_unusable_row_is_rejected_with_its_own_reason(tokenizer):
    rows = simple(20)
    rows[1]["answer"] = ""
    rows[2]["answer"] = None
    rows[3]["question"] = "  "
    rows[4]["question"] = 17
    rows[5]["answer"] = "5 + 5 ####"
    rows[6]["question"] = rows[7]["question"].upper() + "!!"
    rows[8]["question"] = "half \ud800 a pair"
    rows[9]["answer"] = "N/A"
    rows[10]["question"] = "K\ufffdse?"
    found = prepare_dataset(loaded(*rows), tokenizer)
    why = reasons(found)
    assert why[1] == why[2] == why[5] == "the answer is missing or empty"
    assert why[3] == why[4] == "the question is missing or empty"
    assert "surrogate" in why[8] and "no answer" in why[9] and "UTF-8" in why[10]
    assert len(why) == 9 and len(found.train) + len(found.test) == 11
    assert found.report["rows"] == {"read": 20, "train": len(found.train), "test": len(found.test), "rejected": 9}


def test_a_leak_stays_on_the_test_side_only(tokenizer):
    rows = [r | {"split": "train"} for r in simple(6)] + [{"question": "what is 2 + 2", "answer": "4", "split": "test"}]
    found = prepare_dataset(loaded(*rows), tokenizer)
    assert [row["question"] for row in found.test] == ["what is 2 + 2"]
    assert reasons(found) == {2: "leak: the question is also in the test set"}


def test_numbers_and_signs_keep_questions_apart():
    for one, other in (("1 - 2?", "1 + 2?"), ("is it -3?", "is it 3?"), ("1.5 or", "15 or")):
        assert dataset.normalise(one) != dataset.normalise(other)
    assert len({dataset.normalise(f"What is 5 {sign} 3?") for sign in "-+×÷·*/^"}) == 8
    assert dataset.normalise("Costs $1,200!") == dataset.normalise("costs  $1200")


def test_the_split_is_seeded_and_of_the_asked_for_share(tokenizer):
    one, again, other = (prepare_dataset(loaded(*simple(100)), tokenizer, test_share=0.2, seed=s) for s in (1, 1, 2))
    assert one.test == again.test != other.test
    assert (len(one.train), len(one.test)) == (80, 20)


def test_one_row_alone_is_told_that_both_sides_need_rows(tokenizer):
    with pytest.raises(DataError, match="0 rows are left to train on and 1 to test on.*no row was rejected.*add some"):
        prepare_dataset(loaded(*simple(1)), tokenizer)
    found = prepare_dataset(loaded(*simple(2)), tokenizer)
    assert (len(found.train), len(found.test)) == (1, 1)


def test_a_gsm8k_solution_gives_its_final_answer(tokenizer):
    rows = [{"question": f"q {i}", "answer": f"{i} + 1 = <<{i}+1={i + 1}>>{i + 1}\n#### {i + 1}"} for i in range(10)]
    found = prepare_dataset(loaded(*rows), tokenizer)
    for row in found.train:
        number = int(row["question"].split()[1])
        assert row["answer"] == str(number + 1)
        assert row["solution"] == f"{number} + 1 = <<{number}+1={number + 1}>>{number + 1}"


def test_prompts_end_on_the_question_after_the_system_prompt(tokenizer):
    row = prepare_dataset(loaded(*simple(10)), tokenizer).train[0]
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["prompt"][0]["content"] == FORMAT.system_prompt and row["prompt"][1]["content"] == row["question"]


def test_few_shot_turns_have_the_strict_format_and_leave_the_training_side(tokenizer):
    found = prepare_dataset(loaded(*simple(20, solution="a: 1 + 1 = 2")), tokenizer, n_shots=2)
    prompt = found.train[0]["prompt"]
    assert [message["role"] for message in prompt] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert all(format_reward.score(message["content"]) == 1 for message in prompt if message["role"] == "assistant")
    shown = {message["content"] for message in prompt[1:-1:2]}
    assert not shown & {row["question"] for row in (*found.train, *found.test)}


def test_a_template_without_system_role_gets_it_in_front_of_the_question(tokenizer):
    import copy

    gemma = copy.deepcopy(tokenizer)
    gemma.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + gemma.chat_template
    )
    row = prepare_dataset(loaded(*simple(10)), gemma).train[0]
    assert [message["role"] for message in row["prompt"]] == ["user"]
    assert row["prompt"][0]["content"] == f"{FORMAT.system_prompt}\n\n{row['question']}"


def test_one_huge_prompt_does_not_set_the_limit_for_all(tokenizer):
    rows = simple(200)
    rows[0]["question"] = "word " * 20_000
    found = prepare_dataset(loaded(*rows), tokenizer)
    assert found.report["max_prompt_tokens"] < 100
    assert "the limit is" in reasons(found)[0]


def test_columns_under_trls_own_names_are_renamed(tokenizer):
    row = prepare_dataset(loaded(*simple(10, completion="x", prompt="y", trainer_state="z")), tokenizer).train[0]
    assert (row["completion_"], row["prompt_"], row["trainer_state_"]) == ("x", "y", "z")
    assert "completion" not in row and isinstance(row["prompt"], list)


# --------------------------------------------------------------------------- saving


def test_what_is_saved_is_read_back_with_its_types(tmp_path, tokenizer):
    found = prepare_dataset(loaded(*simple(10, level=3, tags=["a"], answer_note=None)), tokenizer)
    found.rejected.append({"row": 99, "reason": "text with \ud800", "raw": None})
    save_dataset(found, tmp_path / "dataset")
    assert list(load_split(tmp_path, "train")) == found.train
    assert json.loads((tmp_path / "dataset/report.json").read_text())["rows"]["train"] == len(found.train)
    assert (tmp_path / "dataset/rejected.jsonl").read_bytes().count(b"\n") == 1


def test_a_column_of_mixed_types_names_the_way_out_and_leaves_the_old_data_set(tmp_path, tokenizer):
    good = prepare_dataset(loaded(*simple(10)), tokenizer)
    save_dataset(good, tmp_path / "dataset")
    rows = simple(10, level=1)
    rows[4]["level"] = "hard"
    with pytest.raises(DataError, match="declare its type in SCHEMA"):
        save_dataset(prepare_dataset(loaded(*rows), tokenizer), tmp_path / "dataset")
    assert list(load_split(tmp_path, "train")) == good.train
    save_dataset(prepare_dataset(loaded(*rows), tokenizer, schema={"level": "str"}), tmp_path / "dataset")
    assert set(load_split(tmp_path, "train")["level"]) <= {"1", "hard"}


def test_a_data_set_that_was_not_made_names_its_notebook(tmp_path):
    with pytest.raises(FileNotFoundError, match="01_prepare_data"):
        load_split(tmp_path, "train")


def test_prompts_that_ask_for_another_format_than_the_rewards_expect_are_refused(tmp_path):
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset/report.json").write_text('{"format": "BoxedFormat()"}')
    with pytest.raises(loading.DataError, match="ask for BoxedFormat.*run notebook 01_prepare_data again"):
        dataset.load_split(tmp_path, "train")
