"""The preflight: which samples of a base policy are worth training on, and what it says about the others."""

import json
import warnings
from itertools import combinations

import numpy as np
import pytest

from lab.files import STARTER_POLICY, WORD_PROBLEMS, write_json
from lab.measure.estimates import share_interval
from lab.measure.preflight import (
    count_aha_words,
    facts_table,
    made_for,
    preflight,
    preflight_notes,
    signal_table,
    verdict_text,
)
from lab.model.prompts import build_prompt
from lab.model.sampling import Sampled, sample
from lab.show import figure_style, sample_figures
from rewards import FORMAT, SYSTEM_PROMPT, correctness_reward, format_reward, reward, soft_format_reward

MIXED = [1, 0, 1, 0, 0, 0, 1, 0]  # what a group of eight looks like that GRPO can use


class Given:
    """A reward that gives the scores it was made with, in the order of the completions."""

    def __init__(self, name, scores, claims=False, **declared):
        self.__name__, self.scores, self.claims_correctness = name, scores, claims
        vars(self).update(declared)

    def __call__(self, prompts, completions, **_):
        return np.array(self.scores, dtype=object).ravel().tolist()


def correct(scores, **declared):
    return Given("correct", scores, True, **{"low": 0.0, "high": 1.0, **declared})


def style(scores, name="style"):
    return Given(name, scores, low=0.0, high=1.0)


def run(*functions, weights=None, groups=12, size=8, finished=True, text="<answer>4</answer>", **more):
    rows = [{"prompt": [{"role": "user", "content": f"question {i}"}], "answer": "4"} for i in range(groups)]
    sampled = [[Sampled(text, 10, finished)] * size for _ in rows]
    weights = {function.__name__: 1.0 for function in functions} if weights is None else weights
    record = preflight(list(functions), weights, rows, sampled, **more)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    return record


def said(record):
    return " | ".join([*record["reasons"], *record["advice"]])


# --------------------------------------------------------------------------- verdicts


def test_groups_that_differ_are_a_go_with_signal_and_headroom():
    record = run(correct([MIXED] * 11 + [[0] * 8]))
    assert record["verdict"] == "go" and record["advice"] == []
    assert "11 of 12 groups (92 %)" in said(record) and "pass@1 is 34 %, pass@8 92 %" in said(record)
    assert verdict_text(record).startswith("go: in 11 of 12")


def test_a_base_that_is_never_right_is_a_no_go_even_if_its_style_varies():
    record = run(correct([[0] * 8] * 12), style([MIXED] * 12))
    assert record["verdict"] == "no-go"
    assert "none of 12 × 8 completions is right by correct" in record["reasons"][0]
    assert "only style could be learned, not the task" in record["reasons"][0]
    assert "pass@8 at most 26 %" in said(record) and "SFT" in said(record) and "easier data" in said(record)


def test_a_base_that_always_fails_alike_gets_other_advice_than_one_that_is_always_right():
    fails, solves = run(style([[0] * 8] * 12)), run(style([[1] * 8] * 12))
    assert fails["verdict"] == solves["verdict"] == "no-go"
    assert "in 12 of 12 groups" in said(fails) and "SFT" in said(fails) and "harder" not in said(fails)
    assert "nothing to learn" in said(solves) and "harder data" in said(solves) and "SFT" not in said(solves)


def test_groups_that_agree_but_not_on_success_ask_for_temperature():
    record = run(correct([[1] * 8] * 6 + [[0] * 8] * 6))
    assert record["verdict"] == "no-go" and "higher temperature" in said(record) and "SFT" not in said(record)


def test_solved_with_a_style_that_varies_is_weak_and_without_is_a_no_go():
    solved = [[1] * 8] * 12
    assert run(correct(solved), style([MIXED] * 12))["verdict"] == "weak"
    assert "only the style (style) remains" in said(run(correct(solved), style([MIXED] * 12)))
    assert run(correct(solved), style(solved))["verdict"] == "no-go"
    nearly = [[1] * 7 + [0]] * 4 + [[1] * 8] * 8  # 92 of 96: a third of the groups differ, by a slip each
    assert run(correct(nearly))["verdict"] == "no-go" and "92 of 96" in said(run(correct(nearly)))


def test_real_solutions_in_the_asked_for_format_leave_nothing_to_learn(problems):
    groups = [[Sampled(written(row), 30, True)] * 8 for row in problems]
    functions = [correctness_reward, format_reward, soft_format_reward]
    record = preflight(functions, {"correctness_reward": 1.0, "format_reward": 0.5}, problems, groups)
    assert record["verdict"] == "no-go" and "nothing to learn" in record["reasons"][0]
    assert record["pass"]["at"]["1"]["estimate"] == 1.0


@pytest.mark.parametrize("differ, verdict", [(1, "no-go"), (2, "weak"), (7, "weak"), (8, "go")])
def test_the_share_of_groups_with_signal_decides_at_10_and_40_percent(differ, verdict):
    solved = [[1] * 8] * 6  # of 20 groups: pass@8 stays above its threshold
    record = run(correct([MIXED] * differ + solved + [[0] * 8] * (14 - differ)), groups=20)
    assert record["verdict"] == verdict
    assert verdict == "go" or f"in {20 - differ} of 20 groups" in said(record)


def test_exactly_a_tenth_of_the_groups_is_not_below_a_tenth():
    assert run(correct([MIXED] + [[1] * 8] * 4 + [[0] * 8] * 5), groups=10)["verdict"] == "weak"


def test_a_rare_success_is_weak():
    record = run(correct([[1] + [0] * 7] * 2 + [[0] * 8] * 10), style([MIXED] * 12))
    assert record["verdict"] == "weak" and "pass@8 is 17 % by correct" in said(record)


def test_partial_scores_of_a_reward_that_nobody_tops_are_weak_not_a_no_go():
    record = run(correct([[0, 0.4] * 4] * 12))
    assert record["verdict"] == "weak" and "partial scores" in said(record)


def test_few_samples_are_too_few_to_say_no_go():
    few, enough = run(correct([[0] * 8] * 3), groups=3), run(correct([[0] * 8] * 4), groups=4)
    assert (few["verdict"], enough["verdict"]) == ("weak", "no-go") and "at least 32 completions" in said(few)


# --------------------------------------------------------------------------- rewards that do not work


def test_a_reward_that_raises_is_named_with_its_message_and_the_others_are_measured():
    @reward
    def broken_reward(completion: str) -> float:
        return 1 / completion.count("?")

    record = run(broken_reward, correct([MIXED] * 12))
    assert record["verdict"] == "no-go"
    assert "broken_reward" in record["reasons"][0] and "division by zero" in record["reasons"][0]
    assert record["rewards"]["correct"]["mean"] == 0.375 and record["total"]["groups_without_spread"] == 0
    assert signal_table(record)["mean"].isna().tolist() == [True, False, False]


def test_a_preflight_with_nothing_but_broken_rewards_still_says_why():
    def broken(prompts, completions, **_):
        raise KeyError("gold")

    record = run(broken)
    assert record["verdict"] == "no-go" and record["reasons"] == ["broken failed: KeyError: 'gold'"]


@pytest.mark.parametrize(
    "scores, why", [([[1] * 8] * 11, "Length"), ([[np.inf] * 8] * 12, "inf"), ([["a"] * 8] * 12, "'a'")]
)
def test_what_is_no_list_of_scores_is_a_failure(scores, why):
    record = run(Given("odd", scores), correct([MIXED] * 12))
    assert record["verdict"] == "no-go" and "odd failed" in record["reasons"][0] and why in record["reasons"][0]


def test_a_broken_reward_that_training_does_not_call_is_only_weak():
    assert run(style([MIXED] * 2), correct([MIXED] * 12), weights={"correct": 1.0, "style": 0})["verdict"] == "weak"


def test_a_format_regex_without_dotall_is_named_as_constant():
    import re

    @reward
    def multiline_reward(completion: str) -> float:
        return float(bool(re.search(r"<think>.+</think>", completion)))

    record = run(multiline_reward, correct([MIXED] * 12), text="<think>\n2 + 2\n</think>\n<answer>4</answer>")
    assert record["verdict"] == "weak" and record["rewards"]["multiline_reward"]["constant"]
    assert "multiline_reward gave 0 to all 96 completions" in said(record) and "DOTALL" in said(record)


def test_a_reward_that_everybody_gets_adds_nothing():
    record = run(correct([MIXED] * 12), style([[1] * 8] * 12))
    assert record["verdict"] == "weak" and "style gave 1 to all 96 completions: it adds nothing" in said(record)
    assert run(correct([MIXED] * 12), style([[1] * 8] * 12), weights={"correct": 1})["verdict"] == "go"


def test_rows_that_cannot_be_scored_are_left_out_of_pass_at_1_and_reported():
    record = run(correct([MIXED] * 9 + [[None] * 8] * 3))
    assert record["verdict"] == "weak" and "correct is None on 25 %" in said(record)
    assert record["pass"]["prompts"] == 9 and record["pass"]["at"]["1"]["estimate"] == pytest.approx(0.375)
    assert record["rewards"]["correct"]["none_share"] == 0.25


def test_none_on_every_row_is_a_no_go_that_points_at_the_column():
    record = run(correct([[None] * 8] * 12), style([MIXED] * 12))
    assert (
        record["verdict"] == "no-go"
        and "None on all 96 completions" in record["reasons"][0]
        and "column" in said(record)
    )
    assert record["pass"]["at"] == {} and record["rewards"]["correct"]["mean"] is None
    assert facts_table(record).index[0] == "cut at the token limit"


def test_a_service_that_does_not_answer_is_told_from_an_unusable_gold_answer():
    @reward
    def judge_reward(completion: str) -> float:
        raise TimeoutError("judge is down")

    record = run(judge_reward, correct([MIXED] * 12))
    assert "judge_reward could not score 96 of 96" in said(record) and "None on" not in said(record)


def test_completions_cut_at_the_limit_are_weak_and_ask_for_more_tokens():
    record = run(correct([MIXED] * 12), finished=False)
    assert record["verdict"] == "weak" and "100 %" in said(record) and "MAX_COMPLETION_TOKENS" in said(record)


def test_a_reward_that_pulls_against_correctness_is_named_with_it():
    against = style([[1 - x for x in MIXED]] * 12)
    record = run(correct([MIXED] * 12), against, weights={"correct": 1.0, "style": 0.5})
    assert record["verdict"] == "weak" and "style, as weighted, and correct pull apart: correlation -1.00" in said(
        record
    )
    assert "pull apart" not in said(run(correct([MIXED] * 12), against, weights={"correct": 1.0, "style": -0.5}))


def test_all_findings_are_listed_with_the_worst_first():
    unused = Given("unused", [])
    zeros = [[0] * 8] * 12
    record = run(unused, style(zeros), correct(zeros), weights={"style": 1, "correct": 1}, finished=False)
    assert [reason.split()[0] for reason in record["reasons"]] == ["none", "in", "unused", "style", "100"]
    assert len(record["advice"]) == len(set(record["advice"]))
    lines = verdict_text(record).splitlines()
    assert lines[0].startswith("no-go: none of") and "What to change:" in lines and lines[-1].startswith("  - ")


# --------------------------------------------------------------------------- measurements


def test_the_weighted_rewards_that_claim_correctness_decide_together_what_is_right():
    near = Given("near", [[0.8, 0.3] * 4] * 12, True, low=0.0, high=1.0)
    both = run(correct([MIXED] * 12), near, weights={"correct": 1.0, "near": 0.2})
    assert both["pass"]["decided_by"] == "correct, near" and both["verdict"] == "go"
    assert both["pass"]["right"] == 36
    alone = run(correct([MIXED] * 12), near, weights={"correct": 1.0})
    assert alone["pass"]["decided_by"] == "correct"
    never = run(correct([[0] * 8] * 12), near)
    assert never["verdict"] == "weak" and "right by correct, near" in never["reasons"][0]


def test_without_a_claim_of_correctness_the_highest_total_is_right():
    penalty = Given("penalty", [[0, -1] * 4] * 12, low=-1.0, high=0.0)
    record = run(style([MIXED] * 12), penalty, weights={"style": 2, "penalty": 1})
    assert record["pass"]["decided_by"] == "total" and not record["pass"]["claims_correctness"]
    assert record["pass"]["right"] == 36
    punished = run(style([MIXED] * 12), style([MIXED] * 12, "length"), weights={"style": 2, "length": -1})
    assert punished["pass"]["right"] == 0, "a penalty's best is its lowest score: nobody has both"


def test_a_graded_total_that_nobody_tops_is_no_reason_against_training():
    assert run(style([np.linspace(0, 0.4, 8)] * 12))["verdict"] == "go"


def test_without_a_declared_range_that_of_the_scores_seen_decides():
    record = run(Given("foreign", [[2, 0, 2, -1] * 2] * 12, True))
    assert record["pass"]["right"] == 48
    assert run(Given("foreign", [[0] * 8] * 12, True))["pass"]["right"] == 0  # the top seen, and yet no success


def test_an_unbounded_range_is_as_none_declared():
    record = run(Given("adopted", [MIXED] * 12, True, low=-np.inf, high=np.inf))
    assert record["rewards"]["adopted"]["high"] == 1 and record["verdict"] == "go"


def test_pass_at_k_is_the_mean_over_prompts_of_drawing_k_by_hand():
    marks = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]] * 4
    by_hand = np.mean([[any(pair) for pair in combinations(group, 2)] for group in marks])
    at = run(correct(marks), size=4)["pass"]["at"]
    assert list(at) == ["1", "2", "4"] and at["2"]["estimate"] == pytest.approx(by_hand)
    assert at["1"]["estimate"] == pytest.approx(0.25) and at["4"]["estimate"] == pytest.approx(2 / 3)


def test_pass_at_k_ends_with_the_size_of_the_group():
    assert list(run(correct([[1, 0, 0, 0, 0, 1]] * 12), size=6)["pass"]["at"]) == ["1", "2", "4", "6"]


def test_the_interval_covers_the_truth_when_prompts_differ_in_difficulty():
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        rates = rng.beta(0.8, 1.6, 40)  # mean 1/3; a bootstrap over completions would cover about 70 %
        found = share_interval(rng.binomial(8, rates) / 8, 0, 1)
        covered += found["low"] <= 1 / 3 <= found["high"]
    assert 0.88 <= covered / 200 <= 0.99


def test_zero_or_all_successes_get_a_bound_and_not_certainty():
    none, every = share_interval([0.0] * 12, 0, 1), share_interval([1.0] * 12, 0, 1)
    assert none == {"estimate": 0, "low": 0, "high": pytest.approx(0.265, abs=1e-3)}  # Clopper and Pearson, 0 of 12
    assert every == {"estimate": 1, "low": pytest.approx(0.735, abs=1e-3), "high": 1}
    assert share_interval([0.5], 0, 1)["low"] < 0.05 and share_interval([0.5], 0, 1)["high"] > 0.95


def test_correlation_is_taken_within_groups_and_has_no_value_for_a_constant():
    level = [[i / 12 + x for x in MIXED] for i in range(12)]  # rises from prompt to prompt, with correct inside each
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = run(
            correct([MIXED] * 12), Given("level", level), style([[0.1] * 8] * 12), Given("lost", [[None] * 8] * 12)
        )
    assert found["correlation"]["correct"]["level"] == pytest.approx(1.0)
    assert found["correlation"]["correct"]["style"] is None and found["correlation"]["style"]["style"] is None
    assert found["correlation"]["lost"]["correct"] is None
    noisy = run(correct([[1, 0, 0]] * 12), style([[i / 13] * 3 for i in range(12)]), size=3)  # (x + x + x) / 3 is not x
    assert noisy["correlation"]["style"]["style"] is None and noisy["correlation"]["correct"]["style"] is None


def test_correlation_skips_what_is_none():
    with_gaps = [[None if i == 2 else x for i, x in enumerate(MIXED)]] * 12
    assert run(correct([MIXED] * 12), style(with_gaps))["correlation"]["correct"]["style"] > 0.9


def test_words_of_reconsidering_are_counted_once_a_completion_and_only_as_words():
    texts = [
        "Wait, wait. WAIT!",
        "The waiter actually waited",
        "Hmmm… let’s double-check",
        "let me re-calculate",
        "let me return",
    ]
    found = count_aha_words(texts)
    assert found["words"] == {
        "wait": 1,
        "hmm": 1,
        "actually": 1,
        "let me check": 1,
        "let me re-…": 1,
        "on second thought": 0,
    }
    assert found["share"] == pytest.approx(4 / 5)


def test_speed_is_given_only_where_the_time_is_known():
    assert run(correct([MIXED] * 12), seconds=4.0)["completions_per_second"] == 24
    assert "completions per second" not in facts_table(run(correct([MIXED] * 12))).index


def test_tables_show_each_reward_and_the_total_and_the_facts_with_intervals():
    record = run(correct([MIXED] * 12), style([MIXED] * 12), weights={"correct": 2.0}, text="Wait: 4")
    table = signal_table(record)
    assert table.index.tolist() == ["correct", "style", "total"] and table["weight"].tolist()[:2] == [2.0, 0.0]
    assert table.loc["total", "mean"] == 0.75 and table.loc["total", "share of groups without spread"] == 0
    assert table.loc["total", "spread within groups"] == pytest.approx(2 * np.std(MIXED, ddof=1))
    facts = facts_table(record)
    assert facts.loc["pass@8, by correct"].tolist() == ["100 %", "74 % to 100 %"]
    assert facts.loc["with words of reconsidering", "value"] == "100 % (wait 96)"


# --------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "weights, groups, why",
    [
        ({"correct": 1}, [], "one group of completions for each row"),
        ({"correct": 1}, [2, 3], "groups of one size"),
        ({"correct": 1}, [0, 0], "at least 2"),
        ({"correct": 1}, [1, 1], "at least 2"),
        ({"right": 1}, [2, 2], "names 'right', but there is no such reward"),
        ({"correct": 0}, [2, 2], "Every weight in WEIGHTS is 0"),
        ({}, [2, 2], "Every weight in WEIGHTS is 0"),
    ],
)
def test_input_that_cannot_be_judged_is_refused_with_the_way_out(weights, groups, why):
    sampled = [[Sampled("4", 1, True)] * size for size in groups]
    with pytest.raises(ValueError, match=why):
        preflight([correct([0] * 4)], weights, [{"prompt": "p"}] * len(groups), sampled)


def test_two_rewards_of_one_name_and_missing_rows_are_refused():
    with pytest.raises(ValueError, match="same name"):
        run(correct([MIXED] * 12), correct([MIXED] * 12))
    with pytest.raises(ValueError, match="2 groups for 1 rows"):
        preflight([correct([0] * 4)], {"correct": 1}, [{"prompt": "p"}], [[Sampled("4", 1, True)] * 2] * 2)


# --------------------------------------------------------------------------- the figure


def test_the_figure_marks_groups_without_spread_and_labels_every_bar(tmp_path):
    broken = Given("broken_reward", [[1]])
    weights = {"correct": 1.0, "broken_reward": 1.0}
    record = run(correct([MIXED] * 9 + [[0] * 8] * 3), broken, style([MIXED] * 12), weights=weights)
    figure = sample_figures.preflight_figure(record)
    left, middle, right = figure.axes
    crosses = next(line for line in left.lines if line.get_label() == "no spread")
    assert sorted({round(x) for x in crosses.get_xdata()}) == [9, 10, 11] and crosses.get_marker() == "x"
    assert left.get_title(loc="left") == "3 of 12 groups without spread"
    assert [text.get_text() for text in middle.texts] == ["75 %", "failed", "100 %", "75 %"]
    assert [label.get_text() for label in middle.get_yticklabels()] == [
        "correct",
        "broken",
        "style\n(weight 0)",
        "total",
    ]
    assert right.lines[0].get_xdata().tolist() == [1, 2, 4, 8] and right.get_title(loc="left") == "pass@k: 28 % to 75 %"
    figure_style.save(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_the_name_of_a_reward_with_settings_is_wrapped_and_takes_no_panel_away():
    long = style([MIXED] * 12, "length_reward[shortest=10,longest=40]")
    _, middle, _ = sample_figures.preflight_figure(run(correct([MIXED] * 12), long)).axes
    assert max(len(line) for label in middle.get_yticklabels() for line in label.get_text().split("\n")) <= 16


def test_the_figure_can_be_drawn_where_nothing_could_be_judged_or_nothing_differs():
    unjudged = sample_figures.preflight_figure(run(correct([[None] * 8] * 12)))
    assert "No completion" in unjudged.axes[2].get_title(loc="left")
    assert len(sample_figures.preflight_figure(run(correct([[0] * 2] * 16), groups=16, size=2)).axes) == 3


# --------------------------------------------------------------------------- real policies


def written(row):
    from rewards import FORMAT

    return FORMAT.write(row["solution"], row["answer"])


@pytest.fixture(scope="module")
def problems():
    """Sixteen training rows as notebook 01 makes them."""
    lines = map(json.loads, WORD_PROBLEMS.read_text(encoding="utf-8").splitlines())
    train = [line for line in lines if line["split"] == "train"][:16]
    return [{"prompt": build_prompt(line["question"], [], SYSTEM_PROMPT), **line} for line in train]


def sampled_record(model, tokenizer, problems):
    groups = sample(model, tokenizer, [row["prompt"] for row in problems], n=8, max_new_tokens=96, seed=11)
    weights = {"correctness_reward": 1.0, "format_reward": 0.5, "soft_format_reward": 0.5}
    return preflight([correctness_reward, format_reward, soft_format_reward], weights, problems, groups, seconds=1.0)


def test_the_starter_policy_is_a_go_and_a_random_copy_of_it_a_no_go(tokenizer, problems):
    import torch
    from transformers import AutoModelForCausalLM

    starter = AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype="float32").eval()
    torch.manual_seed(0)
    blank = AutoModelForCausalLM.from_config(starter.config, dtype=torch.float32).eval()
    trained, untrained = (sampled_record(model, tokenizer, problems) for model in (starter, blank))
    assert trained["verdict"] == "go", verdict_text(trained)
    at = trained["pass"]["at"]
    assert at["8"]["estimate"] > 2 * at["1"]["estimate"] > 0 and trained["total"]["groups_without_spread"] <= 0.25
    assert untrained["verdict"] == "no-go" and untrained["pass"]["right"] == 0, verdict_text(untrained)


# --------------------------------------------------------------------------- before training


def noted(folder, record, weights=None, source="s", data="d", **chosen):
    if record is not None:
        write_json(folder / "preflight.json", {"source_sha256": "s", "data": "d", **record})
    entries = [{"name": name, "weight": weight} for name, weight in (weights or {"correct": 1.0}).items()]
    return list(preflight_notes(folder, {"rewards": entries, "source_sha256": source, **chosen}, data))


def test_a_no_go_is_repeated_before_training_with_its_reasons_and_advice(tmp_path):
    (note,) = noted(tmp_path, run(correct([[0] * 8] * 12)))
    assert note.startswith("the preflight of notebook 02 says no-go: none of 12 × 8 completions is right")
    assert "What to change:\n  - First see that correct gives a perfect completion" in note
    assert noted(tmp_path, run(correct([MIXED] * 11 + [[0] * 8]))) == []


def test_a_preflight_of_other_rewards_weights_or_data_or_none_at_all_is_told(tmp_path):
    record = run(correct([MIXED] * 12))
    (note,) = noted(tmp_path, None)
    assert note.startswith("notebook 02 made no preflight")
    for changes, what in (
        ({"weights": {"correct": 2.0}}, "weights"),
        ({"weights": {"correct": 1.0, "style": 0.5}, "data": "e"}, "weights and data"),
        ({"source": "t"}, "rewards"),
    ):
        (note,) = noted(tmp_path, record, **changes)
        assert note == f"the preflight, which said go, was made for other {what}: run notebook 02 again."
    older = {"source_sha256": None, "data": None}  # of a notebook that did not write them yet
    assert noted(tmp_path, {**record, **older}, source="t", data="e") == []


def test_a_failed_audit_and_one_that_was_not_run_are_repeated_before_training(tmp_path):
    record = run(correct([MIXED] * 12))
    for status, notes in (("failed", ["notebook 02 says of these rewards: So."]), ("passed", [])):
        assert noted(tmp_path, record, audit={"status": status, "said": "So."}) == notes
    assert len(noted(tmp_path, record, audit={"status": "not run", "said": "So."})) == 1


def test_a_preflight_knows_its_rewards_and_data(tmp_path):
    from datasets import Dataset

    for name in ("one", "two"):
        Dataset.from_dict({"answer": [name]}).save_to_disk(tmp_path / name / "dataset/train")
        write_json(tmp_path / name / "dataset/report.json", {"format": repr(FORMAT)})
    one, two = (made_for(tmp_path / name) for name in ("one", "two"))
    assert (
        one["data"] != two["data"]
        and one["source_sha256"] == two["source_sha256"]
        and one == made_for(tmp_path / "one")
    )
    (tmp_path / "one/my_rewards.py").write_text("LIMIT = 5")
    assert made_for(tmp_path / "one")["source_sha256"] != one["source_sha256"]
