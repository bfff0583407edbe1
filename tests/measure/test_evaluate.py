"""What every model is asked, what is kept of its answers, and how a killed evaluation goes on."""

from dataclasses import replace

import pandas as pd
import pytest

from lab.files import STARTER_POLICY, WORD_PROBLEMS, read_jsonl, write_parquet
from lab.measure import evaluate, grading
from lab.model.prompts import build_prompt
from lab.model.sampling import sample
from rewards import format_reward


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype="float32").eval()


def problems(n):
    test = [row for row in read_jsonl(WORD_PROBLEMS) if row["split"] == "test"][:n]
    return [{"prompt": build_prompt(row["question"]), **row} for row in test]


SETTINGS = evaluate.AnswerSettings(max_new_tokens=20, n_samples=2, batch_size=6)


def test_settings_that_cannot_be_are_refused():
    for wrong in ({"n_samples": -1}, {"temperature": 0}, {"batch_size": 0}, {"max_new_tokens": 0}, {"stop": ("",)}):
        with pytest.raises(ValueError, match="at least"):
            replace(SETTINGS, **wrong)
    assert replace(SETTINGS, stop="abc").stop == ("abc",)


def asked(model, tokenizer, path, rows, settings=SETTINGS, identity="a"):
    return evaluate.collect_answers(model, tokenizer, rows, settings, path, identity, name="base")


def without_time(table):
    return table.drop(columns="seconds")


@pytest.fixture(scope="module")
def whole(model, tokenizer, tmp_path_factory):
    """Twelve rows answered in one go."""
    return asked(model, tokenizer, tmp_path_factory.mktemp("answers") / "base.parquet", problems(12))


def test_the_answers_have_a_line_each_with_what_is_known_of_the_row(whole, tokenizer, model):
    rows = problems(12)
    assert len(whole) == 12 * 3 and list(whole["decoding"]) == ["greedy"] * 12 + ["sampled"] * 24
    first = whole.iloc[3]
    assert (first["question"], first["gold"], first["data/template"]) == tuple(
        rows[3][c] for c in ("question", "answer", "template")
    )
    assert first["prompt"].startswith("system\nThink step by step") and first["prompt"].endswith("assistant\n")
    (expected,) = sample(model, tokenizer, [rows[3]["prompt"]], temperature=0, max_new_tokens=20)[0]
    assert (first["completion"], first["tokens"], first["finished"]) == (
        expected.text,
        expected.tokens,
        expected.finished,
    )
    assert not {"data/answer", "data/question", "data/prompt"} & set(whole) and whole["seconds"].gt(0).all()
    assert whole[whole["decoding"] == "sampled"].groupby("row")["completion"].nunique().max() == 2


class Killed(Exception):
    pass


class Dying:
    """The model, until so many batches were answered."""

    def __init__(self, model, batches):
        self.model, self.left = model, batches

    def __getattr__(self, name):
        return getattr(self.model, name)

    def generate(self, **how):
        self.left -= 1
        if self.left < 0:
            raise Killed
        return self.model.generate(**how)


@pytest.mark.parametrize("batches", [1, 2, 3, 5])
def test_a_killed_evaluation_goes_on_and_gives_the_same_answers(model, tokenizer, whole, tmp_path, batches):
    path = tmp_path / "base.parquet"
    with pytest.raises(Killed):
        asked(Dying(model, batches), tokenizer, path, problems(12))
    assert not path.exists() and len(list((tmp_path / ".base.parts").glob("*/*.parquet"))) == batches
    rest = Dying(model, 6 - batches)
    table = asked(rest, tokenizer, path, problems(12))
    assert rest.left == 0 and not (tmp_path / ".base.parts").exists()
    pd.testing.assert_frame_equal(without_time(table), without_time(whole))
    pd.testing.assert_frame_equal(pd.read_parquet(path), table, check_dtype=False)


def never():
    raise AssertionError("the model must not be loaded")


def test_answers_that_are_there_are_read_and_no_model_is_loaded(whole, tokenizer, tmp_path, capsys):
    path, rows = tmp_path / "base.parquet", problems(12)
    grading.grade_answers(whole, rows, [format_reward]).to_parquet(path)  # as the notebook leaves it
    table = asked(never, tokenizer, path, rows)
    pd.testing.assert_frame_equal(table, whole, check_dtype=False)
    (said,) = capsys.readouterr().out.splitlines()
    assert "are used again" in said and "Delete the file" in said
    rows[0] = {
        **rows[0],
        "answer": "mended",
        "template": "other",
    }  # the model was not told this: it need not answer again
    again = asked(never, tokenizer, path, rows)
    assert again["gold"][0] == "mended" and again["data/template"][0] == "other"


OTHERS = {
    "prompts": {"rows": problems(11)},
    "order": {"rows": problems(12)[::-1]},
    "model": {"identity": "b"},
    "settings": {"settings": replace(SETTINGS, seed=1)},
    "stop": {"settings": replace(SETTINGS, stop=("x",))},
    "length": {"settings": replace(SETTINGS, max_new_tokens=21)},
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_prompts_model_or_settings_are_answered_anew(whole, tokenizer, tmp_path, other):
    path = tmp_path / "base.parquet"
    whole.to_parquet(path)
    with pytest.raises(AssertionError, match="must not be loaded"):
        asked(never, tokenizer, path, **{"rows": problems(12), **OTHERS[other]})
    assert len(pd.read_parquet(path)) == len(whole), "the old answers stay until the new ones are there"


DAMAGE = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "empty": lambda path: path.write_bytes(b""),
    "not parquet": lambda path: path.write_text("{}"),
    "no such column": lambda path: pd.DataFrame({"a": [1]}).to_parquet(path),
    "a row less": lambda path: pd.read_parquet(path).iloc[1:].to_parquet(path),
    "a row twice": lambda path: (
        pd.read_parquet(path).iloc[[0, *range(len(pd.read_parquet(path)) - 1)]].to_parquet(path)
    ),
    "a text less": lambda path: (
        pd.read_parquet(path).assign(completion=lambda t: t["completion"].where(t.index > 0)).to_parquet(path)
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_part_or_file_is_answered_again(model, whole, tokenizer, tmp_path, damage):
    path, rows = tmp_path / "base.parquet", problems(12)
    with pytest.raises(Killed):
        asked(Dying(model, 2), tokenizer, path, rows)
    DAMAGE[damage](min((tmp_path / ".base.parts").glob("*/*.parquet")))
    whole.to_parquet(path)
    DAMAGE[damage](path)
    rest = Dying(model, 5)  # one whole part of six is left
    pd.testing.assert_frame_equal(without_time(asked(rest, tokenizer, path, rows)), without_time(whole))
    assert rest.left == 0


def test_a_full_disk_says_so_and_all_earlier_batches_stay(model, whole, tokenizer, tmp_path, monkeypatch):
    path, rows, written, write = tmp_path / "base.parquet", problems(12), [], write_parquet

    def full(frame, where):
        if len(written) == 4:
            raise OSError(28, "No space left on device")
        written.append(where)
        write(frame, where)

    monkeypatch.setattr(evaluate, "write_parquet", full)
    with pytest.raises(OSError, match="No space"):
        asked(model, tokenizer, path, rows)
    monkeypatch.setattr(evaluate, "write_parquet", write)
    rest = Dying(model, 2)
    pd.testing.assert_frame_equal(without_time(asked(rest, tokenizer, path, rows)), without_time(whole))


def test_greedy_alone_is_an_evaluation_and_no_rows_are_none(model, tokenizer, tmp_path):
    table = asked(lambda: model, tokenizer, tmp_path / "base.parquet", problems(2), replace(SETTINGS, n_samples=0))
    assert list(table["decoding"]) == ["greedy"] * 2
    with pytest.raises(ValueError, match="no held-out rows"):
        asked(never, tokenizer, tmp_path / "none.parquet", [])
