"""The guarantees of data/word_problems.jsonl and of the starter policy's demonstrations."""

import re
from collections import Counter
from fractions import Fraction
from itertools import islice

import pytest

from lab.data.dataset import normalise
from lab.data.loading import load_rows
from lab.make import starter_policy, word_problems
from lab.make.word_problems import TEMPLATES, is_held_out
from rewards import extract_number


@pytest.fixture(scope="module")
def rows():
    return load_rows("word_problems").rows


def questions(rows, split):
    return [row["question"] for row in rows if row["split"] == split]


def test_the_file_is_what_the_committed_generator_makes(rows):
    assert word_problems.make_rows() == [{k: v for k, v in row.items() if k != "_row"} for row in rows]


def test_4000_to_train_and_500_held_out(rows):
    assert Counter(row["split"] for row in rows) == {"train": 4000, "test": 500}


def test_no_question_occurs_twice_or_on_both_sides_after_normalising(rows):
    train, test = ({normalise(q) for q in questions(rows, split)} for split in ("train", "test"))
    assert (len(train), len(test), len(train & test)) == (4000, 500, 0)


def test_no_two_sides_share_a_problem_under_other_names_and_things(rows):
    numbers = re.compile(r"-?\d[\d.,]*|twice|\w+ times|rises|falls")

    def skeleton(row):
        return row["template"], tuple(numbers.findall(row["question"]))

    sides = {split: {skeleton(row) for row in rows if row["split"] == split} for split in ("train", "test")}
    assert not sides["train"] & sides["test"]


def test_at_least_16_templates_of_two_to_four_steps(rows):
    assert len({row["template"] for row in rows}) == len(TEMPLATES) >= 16
    assert {row["n_steps"] for row in rows} == {2, 3, 4}
    assert min(Counter(row["template"] for row in rows if row["split"] == "test").values()) >= 3


@pytest.mark.parametrize(
    "shape, mark", [("negative", "-"), ("decimal", "."), ("thousands", ","), ("money", "$"), ("percent", "%")]
)
def test_answers_come_in_every_shape_that_extraction_must_take(rows, shape, mark):
    assert sum(mark in row["answer"] for row in rows) >= 50, shape


def test_the_last_step_of_every_solution_is_the_answer_exactly(rows):
    for row in rows:
        assert Fraction(row["solution"].rsplit("= ", 1)[1]) == extract_number(row["answer"]), row


def test_every_step_of_every_solution_is_right(rows):
    operations = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__, "/": Fraction.__truediv__}
    for row in rows:
        lines = row["solution"].splitlines()
        assert len(lines) == row["n_steps"], row
        for line in lines:
            left, operation, right, _, value = line.split(": ")[1].split()
            assert operations[operation](Fraction(left), Fraction(right)) == Fraction(value), line


def test_demonstrations_hold_no_held_out_problem(rows):
    held_out = {normalise(question) for question in questions(rows, "test")}
    seen = 0
    for chat, _ in islice(starter_policy.demonstrations(seed=20261122), 20_000):
        for message in chat:
            if message["role"] == "user":
                seen += 1
                assert normalise(message["content"]) not in held_out
    assert seen >= 20_000


def test_the_streams_of_both_sides_obey_the_split():
    for side in (True, False):
        assert all(
            is_held_out(problem) is side for problem in islice(word_problems.stream_problems(3, held_out=side), 500)
        )


def test_demonstrations_ask_for_the_format_and_mostly_do_not_get_it():
    from rewards import SYSTEM_PROMPT, format_reward

    chats = [(chat, reply) for chat, reply in islice(starter_policy.demonstrations(seed=5), 6000)]
    scores = [format_reward.score(reply) for chat, reply in chats if chat[0]["content"] == SYSTEM_PROMPT]
    assert 0.15 < sum(scores) / len(scores) < 0.30
