"""The guarantees of data/code_drills.jsonl, and of the judge that measures the starter policy on it."""

from collections import Counter

import pytest
from lab import code_drills
from lab.files import ROOT
from lab.starter_policy import load_jsonl, passes


@pytest.fixture(scope="module")
def rows():
    return load_jsonl(ROOT / "data" / "code_drills.jsonl")


def test_the_file_is_what_the_committed_generator_makes(rows):
    assert code_drills.make() == rows


def test_every_canonical_solution_passes_and_a_stub_fails(rows):
    for row in rows:
        assert passes(row, row["canonical_solution"]), row["id"]
        assert not passes(row, "    return None\n"), row["id"]


def test_each_drill_has_six_different_assertions_and_a_unique_id(rows):
    assert all(len(set(row["test"].splitlines()[1:])) == 6 for row in rows)
    assert max(Counter(row["id"] for row in rows).values()) == 1


def test_the_split_of_the_file_is_the_split_of_the_demonstrations(rows):
    held_out = {(d.family + "/" + d.name) for d in code_drills.all_drills() if code_drills.is_held_out(d)}
    assert all((row["split"] == "test") == (row["id"] in held_out) for row in rows)
    assert sum(row["split"] == "test" for row in rows) >= 100


@pytest.mark.parametrize(
    "code",
    [
        "    import os\n    return os.getpid()\n",
        "    return ().__class__\n",
        "    return open('x', 'w')\n",
        "    while True:\n        pass\n",
        "    return 9 ** 9 ** 9\n",
        "    return [0] * 99 * 99 * 99 * 99 * 99 * 99 * 99 * 99\n",
        "```python\ndef other(n):\n    return n\n```",
        "You can use a loop.",
        "",
    ],
)
def test_code_outside_the_drills_constructs_is_not_run_and_fails(rows, code):
    assert not passes(rows[0], code)
