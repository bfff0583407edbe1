"""The guarantees of data/code_drills.jsonl."""

from collections import Counter

import pytest

from lab.files import ROOT, read_jsonl
from lab.make import code_drills
from sandbox import Sandbox


@pytest.fixture(scope="module")
def rows():
    return read_jsonl(ROOT / "data" / "code_drills.jsonl")


def test_the_file_is_what_the_committed_generator_makes(rows):
    assert code_drills.make() == rows


def test_every_canonical_solution_passes_and_a_stub_fails(rows):
    columns = ("prompt", "test", "entry_point")
    with Sandbox(workers=2) as sandbox:
        for completion, status in ((None, "pass"), ("    return None\n", "fail")):
            jobs = [
                {**{name: row[name] for name in columns}, "completion": completion or row["canonical_solution"]}
                for row in rows
            ]
            wrong = [
                job["entry_point"] for job, verdict in zip(jobs, sandbox.run_many(jobs)) if verdict.status != status
            ]
            assert not wrong


def test_each_drill_has_six_different_assertions_and_a_unique_id(rows):
    assert all(len(set(row["test"].splitlines()[1:])) == 6 for row in rows)
    assert max(Counter(row["id"] for row in rows).values()) == 1


def test_the_split_of_the_file_is_the_split_of_the_demonstrations(rows):
    held_out = {(d.family + "/" + d.name) for d in code_drills.all_drills() if code_drills.is_held_out(d)}
    assert all((row["split"] == "test") == (row["id"] in held_out) for row in rows)
    assert sum(row["split"] == "test" for row in rows) >= 100
