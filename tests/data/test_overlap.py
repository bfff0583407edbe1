"""Overlap of training and held-out questions."""

import random
import time

import pandas as pd

from lab.data import dataset, loading, overlap

LONG = "Anna walks along the old river road to the market and buys some bread"  # 14 words


def test_the_strongest_kind_of_overlap_wins():
    train = ["How many is 3 + 4?", LONG + " for her sister.", "Tom has 3.50 dollars and 12 pens."]
    test = [
        "how many is 3 + 4",
        "How many is 5 + 14?",
        "Yesterday " + LONG + ", says Bob.",
        "Tom has 3 dollars and 1,200 pens!",
        "Something else.",
        "",
    ]
    found = overlap.measure_overlap(train, test)
    assert found.kinds == [
        "identical",
        "same but for numbers",
        "shares 13 words",
        "same but for numbers",
        "none",
        "none",
    ]
    assert found.counts == {"identical": 1, "same but for numbers": 2, "shares 13 words": 1, "none": 2}
    assert found.examples["shares 13 words"] == [(train[1], test[2])] and found.examples["identical"] == [
        (train[0], test[0])
    ]
    assert "Of 6 held-out questions 4 have a twin among the 3 training questions" in found.sentence


def test_twelve_words_in_a_row_are_no_overlap():
    twelve = " ".join(LONG.split()[:12])
    train, test = [f"{twelve} milk"], [f"{twelve} honey"]
    assert overlap.measure_overlap(train, test).kinds == ["none"]
    thirteen = " ".join(LONG.split()[:13])
    assert (
        overlap.measure_overlap([f"One {thirteen}"], [f"Two {thirteen}"]).kinds
        == overlap.measure_overlap([f"{thirteen} a"], [f"{thirteen} b"]).kinds
        == ["shares 13 words"]
    )


def test_every_held_out_twin_is_found_and_without_questions_there_is_none():
    assert (
        overlap.measure_overlap([LONG], [LONG, LONG.upper(), "Now " + LONG, "So " + LONG]).kinds
        == ["identical"] * 2 + ["shares 13 words"] * 2
    )
    assert (
        overlap.measure_overlap([], ["a"]).kinds == ["none"] and overlap.measure_overlap(["a"], []).counts["none"] == 0
    )
    assert "none has a twin" in overlap.measure_overlap([], ["a"]).sentence


def test_many_questions_take_seconds():
    draw = random.Random(1)
    words = [f"w{i}" for i in range(2000)]
    train, test = ([" ".join(draw.choices(words, k=40)) for _ in range(n)] for n in (20_000, 2_000))
    began = time.process_time()
    overlap.measure_overlap(train, test)
    assert time.process_time() - began < 10


def test_what_a_run_was_trained_on_comes_from_its_completions_where_the_data_set_is_another_one(tmp_path, tokenizer):
    rows = [{"question": f"What is {i} + 1?", "answer": str(i + 1), "_row": i} for i in range(20)]
    dataset.save_dataset(dataset.prepare_dataset(loading.LoadedRows(rows), tokenizer), tmp_path / "dataset")
    train = dataset.load_split(tmp_path, "train")
    questions, said, another = overlap.trained_questions(tmp_path, {"data": {"fingerprint": train._fingerprint}})
    assert questions == train["question"][:] and "all 18" in said and not another
    (tmp_path / "run/completions").mkdir(parents=True)
    pd.DataFrame({"prompt": ["p", "p"], "data/question": ["Old?", "Old?"]}).to_parquet(
        tmp_path / "run/completions/completions_00001.parquet"
    )
    questions, said, another = overlap.trained_questions(tmp_path, {"data": {"fingerprint": "another"}})
    assert questions == ["Old?"] and "made again after the training" in said and another
