"""The comparison of models: what the figures and sentences say, and what they must not say."""

import itertools
import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from lab.measure import comparison, estimates, verdicts
from lab.measure.evaluate import AnswerSettings
from lab.show import evaluation_figures


def judged(greedy, sampled=(), seed=0, **columns):
    """A graded table from marks: a greedy one a problem, and a row of sampled ones."""
    rng, lines = np.random.default_rng(seed), []
    for row, mark in enumerate(greedy):
        for decoding, marks in (("greedy", [mark]), ("sampled", sampled[row] if len(sampled) else [])):
            for k, one in enumerate(marks):
                lines.append(
                    {
                        "row": row,
                        "decoding": decoding,
                        "sample": k,
                        "prompt": f"p{row}",
                        "question": f"q{row}",
                        "gold": "12",
                        "completion": f"c{one:g}",
                        "tokens": int(rng.integers(20, 40)),
                        "finished": True,
                        "seconds": 0.5,
                        "format": float(one),
                        "correct": float(one),
                        "right_anyhow": float(one),
                        "extracted": "12" if one == 1 else str(rng.integers(9)),
                        "correct_by": "correctness_reward",
                        "reward/correctness_reward": float(one),
                        **{f"data/{name}": values[row] for name, values in columns.items()},
                    }
                )
    return pd.DataFrame(lines).sort_values(["decoding", "row", "sample"], ignore_index=True)


def drawn(skill, n_samples=4, seed=0, **columns):
    """A model that is right with each problem's own chance."""
    rng = np.random.default_rng(seed)
    return judged(
        rng.random(len(skill)) < skill, rng.random((len(skill), n_samples)) < np.array(skill)[:, None], seed, **columns
    )


def compared(before, after, n_samples=4, **more):
    return comparison.compare_models(
        {"base": before, "merged": after}, AnswerSettings(50, n_samples=n_samples), seed=1, **more
    )


@pytest.fixture(scope="module")
def better():
    skill = np.random.default_rng(0).beta(2, 2, 200)
    kinds = [f"kind {i % 3}" for i in range(200)]
    tables = {
        "base": drawn(skill / 2, 8, 1, kind=kinds),
        "adapter": drawn(skill, 8, 2, kind=kinds),
        "merged": drawn(skill, 8, 3, kind=kinds),
    }
    found = comparison.compare_models(
        tables,
        AnswerSettings(50, n_samples=8),
        seed=1,
        by=["data/kind"],
        overlap=FakeOverlap(["none", "identical"] * 100),
    )
    return tables, found


class FakeOverlap:
    def __init__(self, kinds):
        self.kinds, self.counts, self.sentence = kinds, {"none": 1}, "Of …"


def test_the_record_is_json_and_its_figures_are_those_of_the_tables(better):
    tables, found = better
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["n"], found["models"], found["correct_by"]) == (
        200,
        ["base", "adapter", "merged"],
        "correctness_reward",
    )
    for name, table in tables.items():
        greedy, sampled = (table[table["decoding"] == kind] for kind in ("greedy", "sampled"))
        assert found["greedy"][name]["correct"]["estimate"] == pytest.approx(greedy["correct"].mean())
        assert found["sampled"][name]["pass@1"]["estimate"] == pytest.approx(sampled["correct"].mean())
        assert found["sampled"][name]["pass@8"]["estimate"] == pytest.approx(
            sampled.groupby("row")["correct"].max().mean()
        )
        assert found["sampled"][name]["reward/correctness_reward"]["estimate"] == pytest.approx(
            sampled["correct"].mean()
        )
        assert found["sampled"][name]["tokens_per_second"] == pytest.approx(
            sampled["tokens"].sum() / sampled["seconds"].sum(), abs=0.1
        )
        assert found["sampled"][name]["completions"] == 1600 and found["seconds"][f"answer_{name}"] == 900
    assert [name for name in found["sampled"]["base"] if "@" in name] == [
        "pass@1",
        "pass@2",
        "pass@4",
        "pass@8",
        "maj@4",
        "maj@8",
    ]
    assert list(found["difference"]) == ["merged", "adapter", "merged against adapter"]
    one = found["difference"]["merged"]["greedy"]["correct"]
    before, after = (
        tables[name][tables[name]["decoding"] == "greedy"]["correct"].to_numpy() for name in ("base", "merged")
    )
    assert (one["gained"], one["lost"]) == (((before == 0) & (after == 1)).sum(), ((before == 1) & (after == 0)).sum())
    assert one["p"] == estimates.mcnemar(one["gained"], one["lost"]) and one["estimate"] == pytest.approx(
        (after - before).mean()
    )


def test_the_order_of_a_tables_lines_does_not_matter(better):
    tables, found = better
    mixed = {name: table.sample(frac=1, random_state=1) for name, table in tables.items()}
    again = comparison.compare_models(
        mixed,
        AnswerSettings(50, n_samples=8),
        seed=1,
        by=["data/kind"],
        overlap=FakeOverlap(["none", "identical"] * 100),
    )
    assert again == found


def test_a_gain_is_shown_and_said_with_its_interval_and_p(better):
    _, found = better
    assert found["verdict"] == {"correct": "better", "pass@1": "better"}
    assert (
        found["said"].startswith("A gain was shown (correct in the answer block, greedy): +")
        and "n = 200, p < 0.0001" in found["said"]
    )
    assert "needed" not in found["said"] and "rough" not in found["said"] and "But pass@" not in found["said"]


def in_any_style(table, marks):
    """The table with other verdicts of `right_anyhow` on the greedy answers."""
    greedy = table["decoding"] == "greedy"
    return table.assign(right_anyhow=table["right_anyhow"].where(~greedy, pd.Series(marks, table.index[greedy])))


def test_the_headline_says_what_the_base_could_solve_already_and_how_much_of_the_gain_is_the_format():
    base = in_any_style(judged([1] * 2 + [0] * 198), [1] * 180 + [0] * 20)
    merged = in_any_style(judged([1] * 190 + [0] * 10), [1] * 190 + [0] * 10)
    said = compared(base, merged, n_samples=0)["said"]
    assert "Right in any style, greedy: 90.0 → 95.0 % (+5.0 points, interval +2.0 to +8.0: a gain)." in said
    assert "Before training 90.0 % were solved in some style, 1.0 % in the answer block" in said
    starts = ["A gain was shown (correct in the answer block, greedy): +94.0", "Right in any style", "Before training"]
    assert [line[: len(start)] for line, start in zip(said.splitlines(), starts, strict=True)] == starts


@pytest.mark.parametrize(
    "before, after, words, is_format",
    [
        (20, 160, "10.0 → 80.0 % (+70.0 points, interval +63.5 to +76.5: a gain)", False),
        (150, 150, "75.0 → 75.0 % (+0.0 points, interval −1.8 to +1.8: no gain shown)", True),
        (200, 150, "100.0 → 75.0 % (−25.0 points, interval −31.5 to −19.0: a loss)", True),
    ],
)
def test_a_gain_of_skill_is_not_called_format_and_a_loss_in_any_style_is_said(before, after, words, is_format):
    strict, anyhow = (0, 150), (before, after)
    first = lambda n: [1] * n + [0] * (200 - n)
    sides = [in_any_style(judged(first(marks)), first(others)) for marks, others in zip(strict, anyhow)]
    said = compared(*sides, n_samples=0)["said"]
    assert words in said and ("not the skill" in said) == is_format, said


def test_the_last_number_is_no_second_half_where_right_answers_have_none():
    letters = [0] * 200
    found = compared(in_any_style(judged([0] * 200), letters), in_any_style(judged([1] * 200), letters), n_samples=0)
    assert "any style" not in found["said"]


def test_equal_models_are_said_to_differ_in_five_of_a_hundred_evaluations_at_most():
    rng, shown = np.random.default_rng(0), []
    for i in range(150):
        skill = rng.beta(2, 2, 150)
        sides = [
            {
                "greedy": {"correct": (rng.random(150) < skill).astype(float)},
                "sampled": {"pass@1": rng.binomial(4, skill) / 4},
            }
            for _ in "ab"
        ]
        found = comparison.paired_differences(*sides, seed=i)
        shown.append(
            [
                verdicts.verdict_of(one) != "no gain shown"
                for one in (found["greedy"]["correct"], found["sampled"]["pass@1"])
            ]
        )
    assert (np.mean(shown, axis=0) <= 0.08).all() and np.mean(shown) > 0.01, np.mean(shown, axis=0)


def test_no_gain_is_said_honestly_with_how_many_problems_it_would_take():
    before = [1] * 50 + [0] * 60 + [1] * 290
    after = [0] * 50 + [1] * 60 + [1] * 290
    found = compared(judged(before), judged(after), n_samples=0)
    assert found["verdict"] == {"correct": "no gain shown"} and "A gain" not in found["said"]
    assert (
        found["said"].startswith(
            "No gain was shown (correct in the answer block, greedy): +2.5 points, 95 % interval −"
        )
        and "n = 400, p = 0.39" in found["said"]
    )
    assert (
        f"About {estimates.problems_needed(60, 50, 400):,} problems would be needed to show a gain of this size."
        in found["said"]
    )
    assert "needed" not in compared(judged(after), judged(before), n_samples=0)["said"], (
        "a loss is no gain that needs more problems"
    )
    same = compared(judged(before), judged(before), n_samples=0)
    assert (
        same["verdict"] == {"correct": "no gain shown"} and same["difference"]["merged"]["greedy"]["correct"]["p"] == 1
    )


def test_a_loss_is_said_to_be_one():
    found = compared(judged([1] * 200), judged([0] * 30 + [1] * 170), n_samples=0)
    assert found["verdict"] == {"correct": "worse"} and found["said"].startswith(
        "A loss was shown (correct in the answer block, greedy): −15.0 points"
    )


def test_a_handful_of_gains_is_not_called_a_gain_and_few_problems_are_warned_of():
    four = compared(judged([0] * 4), judged([1] * 4), n_samples=0)
    assert four["verdict"] == {"correct": "no gain shown"} and "With 4 problems an interval is rough" in four["said"]
    found = compared(
        judged([0] * 200), judged([1] * 4 + [0] * 196), n_samples=0
    )  # the bootstrap's low end is above 0, McNemar's p is 0.125
    assert found["difference"]["merged"]["greedy"]["correct"]["low"] > 0 and found["verdict"] == {
        "correct": "no gain shown"
    }


def test_few_held_out_rows_are_said_to_show_little_with_what_to_do():
    some = verdicts.held_out_words(6, 54)
    assert "If 3 are answered right in notebook 05, the share lies between 11.8 and 88.2 %" in some
    assert (
        "Only a large gain can be shown. Add rows, until 100 can be held out" in some
        and "TEST_SHARE = 0.5 there are 30" in some
    )
    assert "No gain can be shown with fewer than 6 rows" in verdicts.held_out_words(5, 40)
    assert "set TEST_SHARE = 0.19, or mark more rows" in verdicts.held_out_words(50, 500)
    for n in (1, 2, 5):  # as it says: five gains of five are no gain shown
        all_gained = compared(judged([0] * n), judged([1] * n), n_samples=0)
        assert all_gained["verdict"] == {"correct": "no gain shown"} and "fewer than 6" in verdicts.held_out_words(n, n)
    assert "gain" not in verdicts.held_out_words(100, 900)


def test_a_gain_in_one_answer_that_costs_variety_is_said():
    sure = [[1] * 4] * 120 + [[0] * 4] * 80
    various = [[1, 0, 0, 0]] * 200
    found = compared(judged([0] * 200, various), judged([1] * 120 + [0] * 80, sure))
    assert found["verdict"] == {"correct": "better", "pass@1": "better"}
    assert "But pass@4 fell by 40.0 points" in found["said"]


def test_a_problem_of_which_nobody_can_say_what_is_right_is_left_out_and_counted():
    before, after = judged([0, np.nan, 0]), judged([1, np.nan, 1])
    found = compared(before, after, n_samples=0)
    assert (found["n"], found["left_out"]) == (2, 1) and "Left out: 1 of 3 problems" in found["said"]
    assert found["greedy"]["merged"]["correct"]["estimate"] == 1
    with pytest.raises(ValueError, match="no answer could be scored"):
        compared(before.assign(correct=np.nan), after)


def test_what_cannot_be_compared_is_refused_with_what_to_do():
    table, settings = judged([1, 0]), AnswerSettings(9, n_samples=0)
    for tables, told in (
        ({"base": table}, "no answers of 'merged', only of base: let that model answer too"),
        ({}, "no answers of 'base', only of no model"),
        ({"base": table, "merged": judged([1, 0, 1])}, "let both answer again, the same questions in the same order"),
        ({"base": table, "merged": table.assign(question=["q1", "q0"])}, "question of 'merged' is not that of 'base'"),
        ({"base": table, "merged": table.assign(prompt="other template")}, "prompt of 'merged'"),
        ({"base": table.iloc[:0], "merged": table.iloc[:0]}, "at least one held-out problem"),
        ({"base": table, "merged": table.assign(correct_by="judge")}, "judged by different rewards"),
    ):
        with pytest.raises(ValueError, match=told):
            comparison.compare_models(tables, settings)


def test_lines_by_value_have_the_worst_first_and_add_up(better):
    _, found = better
    lines = found["by"]["data/kind"]
    assert sum(one["n"] for one in lines) == 200 and [one["estimate"] for one in lines] == sorted(
        one["estimate"] for one in lines
    )
    assert sum(one["gained"] for one in lines) == found["difference"]["merged"]["greedy"]["correct"]["gained"]
    assert {one["value"] for one in found["by"]["overlap"]} == {"none", "identical"}
    turned = comparison.compare_by_value(["a", "b", "c"] * 4, np.array([0.0, 1, 0] * 4), np.array([1.0, 0, 0] * 4), 0)
    assert [(one["value"], one["estimate"], one["gained"], one["lost"]) for one in turned] == [
        ("b", -1, 0, 4),
        ("c", 0, 0, 0),
        ("a", 1, 4, 0),
    ]
    shown = comparison.by_value_table(found, "data/kind")
    assert (
        list(shown) == ["kind", "n", "base", "merged", "difference", "95 % interval", "gained", "lost"]
        and shown["base"].str.endswith(" %").all()
    )
    with pytest.raises(ValueError, match="there are: data/kind, overlap"):
        comparison.by_value_table(found, "data/other")


def test_numbers_are_cut_into_quartiles_and_seldom_texts_joined():
    labels = comparison.value_labels([*range(100), None])
    assert [labels.count(one) for one in ("0 to 24", "25 to 49", "50 to 74", "75 to 99", "none")] == [25, 25, 25, 25, 1]
    assert set(comparison.value_labels([1, 2.5, float("nan")] * 9)) == {"1", "2.5", "none"}
    assert set(comparison.value_labels([0.0] * 90 + list(range(10)))) == {"0", "1 to 9"}, (
        "fewer parts where most are one number"
    )
    assert set(comparison.value_labels([10**9 + i for i in range(8)] + [1.5])) == {
        "1.5 to 1000000001",
        *(f"100000000{i} to 100000000{i + 1}" for i in (2, 4, 6)),
    }
    texts = [f"t{i}" for i in range(30) for _ in range(30 - i)]
    labels = comparison.value_labels(texts)
    assert len(set(labels)) == 21 and labels.count("others") == sum(30 - i for i in range(20, 30))
    assert set(comparison.value_labels([True, False, "x"])) == {"True", "False", "x"}


def test_changes_are_the_problems_that_turned_the_clearest_first():
    before = judged([1, 1, 0, 0, 0], [[1, 1], [1, 0], [0, 0], [0, 0], [0, 0]])
    after = judged([0, 0, 1, 1, 0], [[0, 0], [1, 0], [1, 0], [1, 1], [0, 1]])
    found = comparison.changed_answers({"base": before, "merged": after})
    assert {kind: list(table["question"]) for kind, table in found.items()} == {
        "regressions": ["q0", "q1"],
        "gains": ["q3", "q2"],
        "unchanged failures": ["q4"],
    }
    first = found["regressions"].iloc[0]
    assert (first["before"], first["after"], first["sampled right before"], first["sampled right after"]) == (
        "c1",
        "c0",
        1,
        0,
    )
    alone = comparison.changed_answers({"base": judged([1, 0]), "merged": judged([0, 0])})
    assert (
        list(alone["regressions"]["question"]) == ["q0"] and alone["regressions"]["sampled right before"].isna().all()
    )


def test_the_summary_has_a_line_a_measure_and_a_column_a_model(better):
    _, found = better
    shown = verdicts.summary_table(found)
    assert list(shown) == ["base", "adapter", "merged", "difference", "95 % interval", "p", "n"]
    assert list(shown.index)[:6] == [
        "strict format, greedy",
        "correct in the answer block, greedy",
        "right in any style, greedy",
        "pass@1, temperature 1",
        "pass@8, temperature 1",
        "maj@8, temperature 1",
    ]
    assert (
        shown.loc["correct in the answer block, greedy", "merged"]
        == f"{100 * found['greedy']['merged']['correct']['estimate']:.1f} %"
    )
    assert (
        shown.loc["correct in the answer block, greedy", "p"] == "< 0.0001"
        and shown.loc["pass@1, temperature 1", "p"] != ""
    )
    greedy = verdicts.summary_table(compared(judged([1, 0]), judged([1, 1]), n_samples=0))
    assert not any("@" in name for name in greedy.index) and "mean tokens, greedy" in greedy.index


def texts_of(figure):
    return [text.get_text() for text in figure.findobj(plt.Text) if text.get_text()]


def test_the_figure_shows_every_model_k_and_value_and_says_the_verdict(better):
    _, found = better
    figure = evaluation_figures.before_after_figure(json.loads(json.dumps(found)))
    said = texts_of(figure)
    assert (
        len(figure.axes) == 3
        and any("Correct, greedy: better (+" in text for text in said)
        and any("pass@1 at temperature 1: better" in text for text in said)
    )
    for word in ("base", "adapter", "merged", "base, maj@k", "merged, pass@k", "kind 2 (66)", "8"):
        assert word in said, word
    plt.close(figure)


def test_the_figure_of_a_greedy_evaluation_without_a_gain_says_so_in_two_panels():
    found = compared(judged([1, 0] * 20), judged([0, 1] * 20), n_samples=0)
    figure = evaluation_figures.before_after_figure(found)
    said = " ".join(texts_of(figure))
    assert len(figure.axes) == 2 and "no gain shown" in said and "better" not in said and "rough" in said
    plt.close(figure)


def test_the_figure_shows_the_commonest_of_many_values_without_overlaps():
    many = [f"a long name of a kind of problems, number {i % 24}" for i in range(240)]
    found = compared(judged([1, 0] * 120, kind=many), judged([1, 1] * 120, kind=many), n_samples=0, by=["data/kind"])
    figure = evaluation_figures.before_after_figure(found)
    figure.canvas.draw()
    ticks = figure.axes[-1].get_yticklabels()
    boxes = [tick.get_window_extent() for tick in ticks]
    assert len(found["by"]["data/kind"]) == 24 and len(ticks) == 1 + 12
    assert any("the 12 commonest of 24 values" in text for text in texts_of(figure))
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    plt.close(figure)


def test_a_column_to_compare_by_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="BY names 'levle'; the data set's columns are: level"):
        comparison.columns_to_compare(["levle"], ["level"])
