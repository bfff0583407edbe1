"""Grading: every reward called as TRL calls it, and what is right."""

import pandas as pd
import pytest

from lab.measure import grading
from lab.model.sampling import Sampled
from rewards import FORMAT, adopt, correctness_reward, diversity_reward, format_reward, reward
from scoring.right import deciding_rewards


@pytest.mark.parametrize(
    "text, gold, right",
    [
        ("so the answer is $1,200.", "1200", True),
        ("#### -4", "-4", True),
        ("**7.5**", "7.5", True),
        ("12 then 13", "12", False),
        ("no number", "12", False),
        ("Paris", "Paris", True),
        ("", "12", False),
        ("85%", "85%", True),
    ],
)
def test_right_in_any_style_takes_the_last_number(text, gold, right):
    assert grading.right_in_any_style(text, gold) is right


def raw(texts, n_samples, prompt=({"role": "user", "content": "3 * 4?"},), answers=("12", "12")):
    """(table, rows) of answers as `answer` makes them: of each row a greedy one, then its samples."""
    rows = [{"prompt": [*prompt], "answer": gold, "id": i} for i, gold in enumerate(answers)]
    lines, texts = [], iter(texts)
    for decoding, n in (("greedy", 1), ("sampled", n_samples)):
        for row, about in enumerate(rows):
            for k in range(n):
                lines.append(
                    {
                        "row": row,
                        "decoding": decoding,
                        "sample": k,
                        "prompt": f"p{row}",
                        "question": f"q{row}",
                        "gold": about["answer"],
                        "completion": next(texts),
                        "tokens": 7,
                        "finished": True,
                        "seconds": 0.1,
                        "asked": "x",
                    }
                )
    return pd.DataFrame(lines), rows


def test_every_reward_is_called_as_trl_calls_it_with_the_samples_as_the_group():
    texts = [FORMAT.write("3 * 4", answer) for answer in ("12", "13", "12", "12", "12", "14")]
    seen = []

    @reward
    def sizes_reward(completions: list[str], id: int) -> list[float]:
        seen.append((id, len(completions)))
        return [1.0 / len(completions)] * len(completions)

    table, rows = raw(texts, 2)
    found = grading.grade_answers(table, rows, [format_reward, sizes_reward, diversity_reward])
    assert seen == [(0, 1), (1, 1), (0, 2), (1, 2)]
    assert found["reward/sizes_reward"].tolist() == [1, 1, 0.5, 0.5, 0.5, 0.5]
    assert found["correct"].tolist() == [1, 0, 1, 1, 1, 0] and found["right_anyhow"].tolist() == [1, 0, 1, 1, 1, 0]
    assert found["extracted"].tolist() == ["12", "13", "12", "12", "12", "14"] and set(found["correct_by"]) == {
        "correctness_reward"
    }


def test_an_answer_that_was_begun_for_the_model_is_put_together_again():
    begun = ({"role": "user", "content": "3 * 4?"}, {"role": "assistant", "content": "<think>\n"})
    table, rows = raw(["3 * 4</think><answer>12</answer>", "12"], 0, begun)
    found = grading.grade_answers(table, rows, [])
    assert (
        found["format"].tolist() == [1, 0]
        and found["correct"].tolist() == [1, 0]
        and found["extracted"].tolist() == ["12", None]
    )
    begun[1]["content"] = "<think>\n3 * 4\n</think>\n<answer>"
    found = grading.grade_answers(*raw(["12</answer>", "13</answer>"], 0, begun), [])
    assert found["extracted"].tolist() == ["12", "13"] and found["correct"].tolist() == [1, 0]


def test_what_is_right_is_decided_by_the_mean_place_in_the_deciding_rewards_ranges():
    @reward(low=-1, high=1, claims_correctness=True)
    def judge(completion: str) -> float:
        return {"a": -1.0, "b": -0.1, "c": 0.0, "d": 1.0}[completion]

    table, rows = raw("abcd", 0, answers=("1",) * 4)
    assert grading.grade_answers(table, rows, [], [judge])["correct"].tolist() == [0, 0, 1, 1]
    assert (
        grading.grade_answers(table, rows, [], [judge, correctness_reward])["correct_by"][0]
        == "judge, correctness_reward"
    )
    assert deciding_rewards([judge, format_reward, correctness_reward], [1.0, 1.0, 0.0]) == [judge]
    assert deciding_rewards([judge, correctness_reward], [-1.0, 1.0]) == [correctness_reward], "a punished one does not"
    with pytest.raises(ValueError, match="no range"):
        grading.grade_answers(
            table, rows, [], [adopt(lambda completions, **_: [1.0] * len(completions), name="theirs")]
        )


def test_group_scores_are_in_the_order_of_the_samples_with_each_rows_columns():
    rows = [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}]
    groups = [[Sampled(f"<answer>{i}</answer>", 3, True) for i in (1, 2)] for _ in rows]
    table = grading.score_groups([correctness_reward, format_reward], rows, groups)
    assert table["correctness_reward"].tolist() == [1, 0, 0, 1] and table["group"].tolist() == [0, 0, 1, 1]
