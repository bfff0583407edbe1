"""The evaluation: what every model is asked and how, what is kept of it, what the figures say, and what they must not say."""

import itertools
import json
import math
import random
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from lab.data import overlap
from lab.files import STARTER_POLICY, WORD_PROBLEMS
from lab.measure import comparison, estimates, evaluate, grading, verdicts
from lab.model.sampling import Sampled, cut, sample, sample_batches
from lab.show import evaluation_figures
from rewards import FORMAT, SYSTEM_PROMPT, adopt, correctness_reward, diversity_reward, format_reward, reward

# --------------------------------------------------------------------------- decoding


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype="float32").eval()


def problems(n):
    lines = [json.loads(line) for line in WORD_PROBLEMS.read_text().splitlines()]
    test = [row for row in lines if row["split"] == "test"][:n]
    return [
        {"prompt": [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": row["question"]}], **row}
        for row in test
    ]


PROMPTS = [row["prompt"] for row in problems(5)]


def test_a_models_own_decoding_habits_are_ignored_and_given_back(model, tokenizer):
    how = {"n": 2, "max_new_tokens": 24, "batch_size": 4, "seed": 1}
    greedy = {"temperature": 0, "max_new_tokens": 24}
    plain = sample(model, tokenizer, PROMPTS, **how), sample(model, tokenizer, PROMPTS, **greedy)
    own, config = model.generation_config, model.generation_config.to_dict()
    habits = {
        "repetition_penalty": 1.6,
        "temperature": 0.1,
        "top_k": 2,
        "top_p": 0.5,
        "min_p": 0.5,
        "do_sample": True,
        "max_length": 9,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[20]],
        "suppress_tokens": [21, 22],
        "min_new_tokens": 20,
    }
    try:
        own.update(**habits)
        assert (sample(model, tokenizer, PROMPTS, **how), sample(model, tokenizer, PROMPTS, **greedy)) == plain
        assert model.generation_config is own and own.repetition_penalty == 1.6
    finally:
        model.generation_config = type(own).from_dict(config)


def test_the_decoding_habits_of_an_adapters_base_are_given_back_too(tokenizer):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype="float32").eval()
    plain = sample(base, tokenizer, PROMPTS, temperature=0, max_new_tokens=24)
    base.generation_config.repetition_penalty = 1.6
    adapted = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"]))
    assert sample(adapted, tokenizer, PROMPTS, temperature=0, max_new_tokens=24) == plain
    assert base.generation_config.repetition_penalty == adapted.generation_config.repetition_penalty == 1.6


def test_a_batch_is_the_same_whether_or_not_those_before_it_were_sampled(model, tokenizer):
    how = {"n": 2, "max_new_tokens": 16, "batch_size": 4, "seed": 7}
    whole = sample(model, tokenizer, PROMPTS, **how)
    ((places, groups, seconds),) = sample_batches(model, tokenizer, PROMPTS, **how, skip={0, 1})
    assert [whole[i] for i in places] == groups and seconds > 0
    assert sample(model, tokenizer, PROMPTS, **{**how, "seed": 8}) != whole
    twins = sample(model, tokenizer, PROMPTS[:1] * 4, **how)
    assert twins[:2] != twins[2:], "two batches of the same prompts must not have the same random numbers"


def test_a_completion_ends_at_a_stop_text_and_keeps_it(model, tokenizer):
    greedy = {"temperature": 0, "max_new_tokens": 40}
    whole, stopped = (sample(model, tokenizer, PROMPTS, **greedy, stop=stop) for stop in ((), (" = ", "zzz")))
    for (long,), (short,) in zip(whole, stopped):
        at = long.text.find(" = ")
        assert at >= 0, long
        assert short.finished and short.text == long.text[: at + 3] and short.tokens < long.tokens
        assert len(tokenizer(short.text, add_special_tokens=False)["input_ids"]) <= short.tokens + 1
    assert sample(model, tokenizer, PROMPTS, **greedy, stop=["zzz"]) == whole


def test_nothing_is_kept_behind_a_stop_text_inside_a_token(tokenizer):
    ids = tokenizer("first part", add_special_tokens=False)["input_ids"]
    one = tokenizer.decode(ids[:1])
    assert len(one) > 2
    assert cut(ids, tokenizer, set(), [one[:2], "part"], 9) == Sampled(one[:2], 1, True)


def test_a_row_stopped_by_a_text_that_began_in_its_prompt_counts_as_finished(tokenizer):
    ids = tokenizer("teas: 2", add_special_tokens=False)["input_ids"]
    end, padded = tokenizer.convert_tokens_to_ids("<|im_end|>"), [*ids, *[tokenizer.pad_token_id] * 3]
    assert end != tokenizer.pad_token_id
    assert cut(padded, tokenizer, {end}, ["x"], len(padded)) == Sampled("teas: 2", len(ids), True)
    assert cut(ids, tokenizer, {end}, ["x"], len(ids)) == Sampled("teas: 2", len(ids), False)
    assert cut([*ids, end, 9], tokenizer, {end}) == Sampled("teas: 2", len(ids) + 1, True)


# --------------------------------------------------------------------------- answers are kept

SETTINGS = evaluate.Settings(max_new_tokens=20, n_samples=2, batch_size=6)


def test_settings_that_cannot_be_are_refused():
    for wrong in ({"n_samples": -1}, {"temperature": 0}, {"batch_size": 0}, {"max_new_tokens": 0}, {"stop": ("",)}):
        with pytest.raises(ValueError, match="at least"):
            replace(SETTINGS, **wrong)
    assert replace(SETTINGS, stop="abc").stop == ("abc",)


def asked(model, tokenizer, path, rows, settings=SETTINGS, identity="a", said=None):
    return evaluate.answer(
        model, tokenizer, rows, settings, path, identity, name="base", say=(said if said is not None else []).append
    )


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


def test_answers_that_are_there_are_read_and_no_model_is_loaded(whole, tokenizer, tmp_path):
    path, rows, said = tmp_path / "base.parquet", problems(12), []
    grading.graded(whole, rows, [format_reward]).to_parquet(path)  # as the notebook leaves it
    table = asked(never, tokenizer, path, rows, said=said)
    pd.testing.assert_frame_equal(table, whole, check_dtype=False)
    assert len(said) == 1 and "already" in said[0] and "delete the file" in said[0]
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
    path, rows, written, write = tmp_path / "base.parquet", problems(12), [], evaluate.write_table

    def full(frame, where):
        if len(written) == 4:
            raise OSError(28, "No space left on device")
        written.append(where)
        write(frame, where)

    monkeypatch.setattr(evaluate, "write_table", full)
    with pytest.raises(OSError, match="No space"):
        asked(model, tokenizer, path, rows)
    monkeypatch.setattr(evaluate, "write_table", write)
    rest = Dying(model, 2)
    pd.testing.assert_frame_equal(without_time(asked(rest, tokenizer, path, rows)), without_time(whole))


def test_greedy_alone_is_an_evaluation_and_no_rows_are_none(model, tokenizer, tmp_path):
    table = asked(lambda: model, tokenizer, tmp_path / "base.parquet", problems(2), replace(SETTINGS, n_samples=0))
    assert list(table["decoding"]) == ["greedy"] * 2
    with pytest.raises(ValueError, match="no held-out rows"):
        asked(never, tokenizer, tmp_path / "none.parquet", [])


# --------------------------------------------------------------------------- grading


def test_grade_says_format_and_correct_for_each_row():
    row = {"prompt": [{"role": "user", "content": "3 * 4?"}], "answer": "12"}
    texts = [FORMAT.write("3 * 4", "12"), "<answer>12</answer>", FORMAT.write("3 * 4", "13")]
    table = grading.grade([row] * 3, [Sampled(text, 9, True) for text in texts])
    assert table["format"].tolist() == [1, 0, 1] and table["correct"].tolist() == [1, 1, 0]


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
    found = grading.graded(table, rows, [format_reward, sizes_reward, diversity_reward])
    assert seen == [(0, 1), (1, 1), (0, 2), (1, 2)]
    assert found["reward/sizes_reward"].tolist() == [1, 1, 0.5, 0.5, 0.5, 0.5]
    assert found["correct"].tolist() == [1, 0, 1, 1, 1, 0] and found["right_anyhow"].tolist() == [1, 0, 1, 1, 1, 0]
    assert found["extracted"].tolist() == ["12", "13", "12", "12", "12", "14"] and set(found["correct_by"]) == {
        "correctness_reward"
    }


def test_an_answer_that_was_begun_for_the_model_is_put_together_again():
    begun = ({"role": "user", "content": "3 * 4?"}, {"role": "assistant", "content": "<think>\n"})
    table, rows = raw(["3 * 4</think><answer>12</answer>", "12"], 0, begun)
    found = grading.graded(table, rows, [])
    assert (
        found["format"].tolist() == [1, 0]
        and found["correct"].tolist() == [1, 0]
        and found["extracted"].tolist() == ["12", None]
    )
    assert grading.grade(rows, [Sampled(text, 9, True) for text in table["completion"]])["format"].tolist() == [1, 0]
    begun[1]["content"] = "<think>\n3 * 4\n</think>\n<answer>"
    found = grading.graded(*raw(["12</answer>", "13</answer>"], 0, begun), [])
    assert found["extracted"].tolist() == ["12", "13"] and found["correct"].tolist() == [1, 0]


def test_what_is_right_is_decided_by_the_mean_place_in_the_deciding_rewards_ranges():
    @reward(low=-1, high=1, claims_correctness=True)
    def judge(completion: str) -> float:
        return {"a": -1.0, "b": -0.1, "c": 0.0, "d": 1.0}[completion]

    table, rows = raw("abcd", 0, answers=("1",) * 4)
    assert grading.graded(table, rows, [], [judge])["correct"].tolist() == [0, 0, 1, 1]
    assert grading.graded(table, rows, [], [judge], threshold=1.0)["correct"].tolist() == [0, 0, 0, 1]
    assert grading.graded(table, rows, [], [judge, correctness_reward])["correct_by"][0] == "judge, correctness_reward"
    assert grading.deciding([judge, format_reward, correctness_reward], [1.0, 1.0, 0.0]) == [judge]
    with pytest.raises(ValueError, match="no range"):
        grading.graded(table, rows, [], [adopt(lambda completions, **_: [1.0] * len(completions), name="theirs")])


def test_a_problem_of_which_nobody_can_say_what_is_right_is_left_out_and_counted():
    right, wrong = FORMAT.write("a", "12"), FORMAT.write("a", "13")
    tables = {}
    for name, texts in (("base", [wrong] * 3), ("merged", [right] * 3)):
        table, rows = raw(texts, 0, answers=("12", "", "12"))
        tables[name] = grading.graded(table, rows, [])
    assert tables["base"]["correct"].isna().tolist() == [False, True, False]
    found = comparison.compare(tables, evaluate.Settings(9, n_samples=0))
    assert (found["n"], found["left_out"]) == (2, 1) and "Left out: 1 of 3 problems" in found["said"]
    assert found["greedy"]["merged"]["correct"]["estimate"] == 1
    with pytest.raises(ValueError, match="no answer could be scored"):
        comparison.compare({name: table.assign(correct=np.nan) for name, table in tables.items()}, SETTINGS)


# --------------------------------------------------------------------------- statistics


def test_no_gain_is_shown_as_an_interval_that_holds_zero():
    rng = np.random.default_rng(1)
    before, after = rng.random(400) < 0.5, rng.random(400) < 0.5
    found = estimates.paired_difference(before, after)
    assert found["low"] < 0 < found["high"]
    assert found["estimate"] == pytest.approx(after.mean() - before.mean())


def test_the_interval_of_a_paired_difference_covers_as_the_normal_one_does():
    rng = np.random.default_rng(2)
    before = rng.random(500) < 0.3
    after = before | (rng.random(500) < 0.4)
    found, difference = estimates.paired_difference(before, after), after.astype(float) - before
    half = 1.96 * difference.std(ddof=1) / np.sqrt(500)
    assert found["low"] == pytest.approx(difference.mean() - half, abs=0.01)
    assert found["high"] == pytest.approx(difference.mean() + half, abs=0.01)


def test_an_empty_comparison_is_refused():
    with pytest.raises(ValueError, match="at least one pair"):
        estimates.paired_difference([], [])


@pytest.mark.parametrize("levels", [3, 300])
def test_both_ways_of_drawing_give_the_interval_of_drawing_by_hand(levels):
    rng = np.random.default_rng(3)
    values = rng.integers(levels, size=350) / levels
    by_hand = np.quantile([rng.choice(values, 350).mean() for _ in range(4000)], [0.025, 0.975])
    found = estimates.bootstrap_mean(values)
    assert [found["low"], found["high"]] == pytest.approx(list(by_hand), abs=0.004)


def test_an_interval_of_the_mean_holds_the_truth_in_95_of_100():
    rng = np.random.default_rng(4)
    for true, n in ((0.5, 100), (0.9, 300)):
        found = [estimates.share_interval(rng.random(n) < true, 0, 1, seed=i) for i in range(400)]
        assert 0.92 <= np.mean([one["low"] <= true <= one["high"] for one in found]) <= 0.98


def test_where_all_problems_are_alike_the_interval_does_not_claim_certainty():
    assert estimates.share_interval([0.0] * 20, 0, 1)["high"] == pytest.approx(
        1 - 0.025 ** (1 / 20)
    )  # Clopper and Pearson for 0 of 20
    all_gained = estimates.share_interval([1.0] * 4, -1, 1)
    assert all_gained == {"estimate": 1.0, "low": pytest.approx(0.025 ** (1 / 4)), "high": 1.0}
    assert (
        estimates.share_interval([0.0] * 20, -1, 1)["low"]
        == -estimates.share_interval([0.0] * 20, -1, 1)["high"]
        < -0.1
    )


def test_mcnemars_p_is_the_exact_binomial_one():
    assert estimates.mcnemar(10, 2) == estimates.mcnemar(2, 10) == pytest.approx(2 * (1 + 12 + 66) / 2**12)
    assert estimates.mcnemar(0, 0) == estimates.mcnemar(5, 5) == 1 and estimates.mcnemar(1, 0) == 1
    assert estimates.mcnemar(2600, 2400) == pytest.approx(
        math.erfc(199 / math.sqrt(5000) / math.sqrt(2)), rel=0.02
    )  # normal, with its correction
    assert 0 <= estimates.mcnemar(5000, 0) < 1e-300


def test_so_many_problems_show_the_gain_in_four_of_five_evaluations():
    gained, lost, n = 60, 40, 500
    needed = estimates.problems_needed(gained, lost, n)
    rng = np.random.default_rng(5)
    drawn = rng.multinomial(needed, [gained / n, lost / n, 1 - (gained + lost) / n], size=1000)
    assert 0.75 <= np.mean([estimates.mcnemar(b, c) < 0.05 and b > c for b, c, _ in drawn]) <= 0.85


def test_pass_at_k_agrees_with_drawing_by_hand():
    marks = [1, 1, 0, 0, 0, 0]
    by_hand = np.mean([any(marks[i] for i in drawn) for drawn in itertools.combinations(range(6), 3)])
    assert estimates.pass_at_k(6, 2, 3) == pytest.approx(by_hand)
    with pytest.raises(ValueError):
        estimates.pass_at_k(4, 5, 1)


def majority_by_hand(answers, right, k):
    found = []
    for drawn in itertools.combinations(range(len(answers)), k):
        said = [answers[i] for i in drawn if answers[i] is not None]
        most = [one for one in set(said) if said.count(one) == max(map(said.count, said))]
        found.append(np.mean([right[answers.index(one)] for one in most]) if most else 0.0)
    return np.mean(found)


def test_majority_at_k_agrees_with_all_subsets():
    draw = random.Random(6)
    for _ in range(150):
        answers = [draw.choice(["a", "b", "c", "d", None]) for _ in range(draw.choice([3, 5, 8]))]
        right = [float(one == "a") for one in answers]
        for k in {3, len(answers) // 2, len(answers)} - {0, 1}:
            if k <= len(answers):
                assert estimates.majority_at_k(*estimates.votes(answers, right), k) == pytest.approx(
                    majority_by_hand(answers, right, k)
                ), (answers, k)


def test_equal_answers_in_other_clothes_vote_together_and_those_without_answer_do_not_vote():
    assert estimates.votes(["1,200", "$1200", None, "7", "1200.0"], [1, 1, 0, 0, 1]) == (((3, 1.0), (1, 0.0)), 1)
    assert estimates.majority_at_k(*estimates.votes(["5", None, None, None], [1, 0, 0, 0]), 4) == 1, (
        "three who are silent do not outvote one"
    )
    assert estimates.majority_at_k(*estimates.votes([None] * 4, [0] * 4), 4) == 0


def test_group_scores_are_in_the_order_of_the_samples_with_each_rows_columns():
    rows = [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}]
    groups = [[Sampled(f"<answer>{i}</answer>", 3, True) for i in (1, 2)] for _ in rows]
    table = grading.score_groups([correctness_reward, format_reward], rows, groups)
    assert table["correctness_reward"].tolist() == [1, 0, 0, 1] and table["group"].tolist() == [0, 0, 1, 1]
    assert grading.total_reward(table, {"correctness_reward": 2.0, "format_reward": 1.0}).tolist() == [2, 0, 0, 2]


# --------------------------------------------------------------------------- comparing


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
                        "completion": f"c{int(one)}",
                        "tokens": int(rng.integers(20, 40)),
                        "finished": True,
                        "seconds": 0.5,
                        "format": float(one),
                        "correct": float(one),
                        "right_anyhow": float(one),
                        "extracted": "12" if one else str(rng.integers(9)),
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
    return comparison.compare(
        {"base": before, "merged": after}, evaluate.Settings(50, n_samples=n_samples), seed=1, **more
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
    found = comparison.compare(
        tables,
        evaluate.Settings(50, n_samples=8),
        seed=1,
        by=["data/kind"],
        overlap=FakeOverlap(["none", "identical"] * 100),
    )
    return tables, found


class FakeOverlap:
    def __init__(self, kinds):
        self.kinds, self.counts, self.said = kinds, {"none": 1}, "Of …"


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
    again = comparison.compare(
        mixed,
        evaluate.Settings(50, n_samples=8),
        seed=1,
        by=["data/kind"],
        overlap=FakeOverlap(["none", "identical"] * 100),
    )
    assert again == found


def test_a_gain_is_shown_and_said_with_its_interval_and_p(better):
    _, found = better
    assert found["verdict"] == {"correct": "better", "pass@1": "better"}
    assert found["said"].startswith("A gain was shown (correct, greedy): +") and "n = 200, p < 0.0001" in found["said"]
    assert "needed" not in found["said"] and "rough" not in found["said"] and "But pass@" not in found["said"]


def test_equal_models_are_said_to_differ_in_five_of_a_hundred_evaluations_at_most():
    rng, shown = np.random.default_rng(0), []
    for i in range(400):
        skill = rng.beta(2, 2, 150)
        sides = [
            {
                "greedy": {"correct": (rng.random(150) < skill).astype(float)},
                "sampled": {"pass@1": rng.binomial(4, skill) / 4},
            }
            for _ in "ab"
        ]
        found = comparison.differences(*sides, seed=i)
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
        found["said"].startswith("No gain was shown (correct, greedy): +2.5 points, 95 % interval −")
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
        "A loss was shown (correct, greedy): −15.0 points"
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


def test_a_gain_in_one_answer_that_costs_variety_is_said():
    sure = [[1] * 4] * 120 + [[0] * 4] * 80
    various = [[1, 0, 0, 0]] * 200
    found = compared(judged([0] * 200, various), judged([1] * 120 + [0] * 80, sure))
    assert found["verdict"] == {"correct": "better", "pass@1": "better"}
    assert "But pass@4 fell by 40.0 points" in found["said"]


def test_what_cannot_be_compared_is_refused_with_what_to_do():
    table, settings = judged([1, 0]), evaluate.Settings(9, n_samples=0)
    for tables, told in (
        ({"base": table}, "no answers of 'merged', only of base: let that model answer too"),
        ({}, "no answers of 'base', only of no model"),
        ({"base": table, "merged": judged([1, 0, 1])}, "same questions in the same order.*let both answer again"),
        ({"base": table, "merged": table.assign(question=["q1", "q0"])}, "question of 'merged' is not that of 'base'"),
        ({"base": table, "merged": table.assign(prompt="other template")}, "prompt of 'merged'"),
        ({"base": table.iloc[:0], "merged": table.iloc[:0]}, "at least one held-out problem"),
        ({"base": table, "merged": table.assign(correct_by="judge")}, "judged by different rewards"),
    ):
        with pytest.raises(ValueError, match=told):
            comparison.compare(tables, settings)
    with pytest.raises(ValueError, match="no column 'data/x'; there are: none"):
        comparison.compare({"base": table, "merged": table}, settings, by=["data/x"])


# --------------------------------------------------------------------------- where it got better and worse


def test_lines_by_value_have_the_worst_first_and_add_up(better):
    _, found = better
    lines = found["by"]["data/kind"]
    assert sum(one["n"] for one in lines) == 200 and [one["estimate"] for one in lines] == sorted(
        one["estimate"] for one in lines
    )
    assert sum(one["gained"] for one in lines) == found["difference"]["merged"]["greedy"]["correct"]["gained"]
    assert {one["value"] for one in found["by"]["overlap"]} == {"none", "identical"}
    turned = comparison.lines_by(["a", "b", "c"] * 4, np.array([0.0, 1, 0] * 4), np.array([1.0, 0, 0] * 4), 0)
    assert [(one["value"], one["estimate"], one["gained"], one["lost"]) for one in turned] == [
        ("b", -1, 0, 4),
        ("c", 0, 0, 0),
        ("a", 1, 4, 0),
    ]
    shown = comparison.by_table(found, "data/kind")
    assert (
        list(shown) == ["kind", "n", "base", "merged", "difference", "95 % interval", "gained", "lost"]
        and shown["base"].str.endswith(" %").all()
    )
    with pytest.raises(ValueError, match="there are: data/kind, overlap"):
        comparison.by_table(found, "data/other")


def test_numbers_are_cut_into_quartiles_and_seldom_texts_joined():
    labels = comparison.labelled([*range(100), None])
    assert [labels.count(one) for one in ("0 to 24", "25 to 49", "50 to 74", "75 to 99", "none")] == [25, 25, 25, 25, 1]
    assert set(comparison.labelled([1, 2.5, float("nan")] * 9)) == {"1", "2.5", "none"}
    assert set(comparison.labelled([0.0] * 90 + list(range(10)))) == {"0", "1 to 9"}, (
        "fewer parts where most are one number"
    )
    assert set(comparison.labelled([10**9 + i for i in range(8)] + [1.5])) == {
        "1.5 to 1000000001",
        *(f"100000000{i} to 100000000{i + 1}" for i in (2, 4, 6)),
    }
    texts = [f"t{i}" for i in range(30) for _ in range(30 - i)]
    labels = comparison.labelled(texts)
    assert len(set(labels)) == 21 and labels.count("others") == sum(30 - i for i in range(20, 30))
    assert set(comparison.labelled([True, False, "x"])) == {"True", "False", "x"}


def test_changes_are_the_problems_that_turned_the_clearest_first():
    before = judged([1, 1, 0, 0, 0], [[1, 1], [1, 0], [0, 0], [0, 0], [0, 0]])
    after = judged([0, 0, 1, 1, 0], [[0, 0], [1, 0], [1, 0], [1, 1], [0, 1]])
    found = comparison.changes({"base": before, "merged": after})
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
    alone = comparison.changes({"base": judged([1, 0]), "merged": judged([0, 0])})
    assert (
        list(alone["regressions"]["question"]) == ["q0"] and alone["regressions"]["sampled right before"].isna().all()
    )


# --------------------------------------------------------------------------- what a person sees


def test_the_summary_has_a_line_a_measure_and_a_column_a_model(better):
    _, found = better
    shown = verdicts.summary(found)
    assert list(shown) == ["base", "adapter", "merged", "difference", "95 % interval", "p", "n"]
    assert list(shown.index)[:6] == [
        "strict format, greedy",
        "correct, greedy",
        "right in any style, greedy",
        "pass@1, temperature 1",
        "pass@8, temperature 1",
        "maj@8, temperature 1",
    ]
    assert shown.loc["correct, greedy", "merged"] == f"{100 * found['greedy']['merged']['correct']['estimate']:.1f} %"
    assert shown.loc["correct, greedy", "p"] == "< 0.0001" and shown.loc["pass@1, temperature 1", "p"] != ""
    greedy = verdicts.summary(compared(judged([1, 0]), judged([1, 1]), n_samples=0))
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


# --------------------------------------------------------------------------- overlap of training and held-out questions

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
    assert "Of 6 held-out questions 4 have a twin among the 3 training questions" in found.said


def test_twelve_words_in_a_row_are_no_overlap_and_the_length_can_be_chosen():
    twelve = " ".join(LONG.split()[:12])
    train, test = [f"{twelve} milk"], [f"{twelve} honey"]
    assert overlap.measure_overlap(train, test).kinds == ["none"]
    assert overlap.measure_overlap(train, test, words=12).kinds == ["shares 12 words"]
    thirteen = " ".join(LONG.split()[:13])
    assert (
        overlap.measure_overlap([f"One {thirteen}"], [f"Two {thirteen}"]).kinds
        == overlap.measure_overlap([f"{thirteen} a"], [f"{thirteen} b"]).kinds
        == ["shares 13 words"]
    )
    with pytest.raises(ValueError, match="at least one word"):
        overlap.measure_overlap(train, test, words=0)


def test_every_held_out_twin_is_found_and_without_questions_there_is_none():
    assert (
        overlap.measure_overlap([LONG], [LONG, LONG.upper(), "Now " + LONG, "So " + LONG]).kinds
        == ["identical"] * 2 + ["shares 13 words"] * 2
    )
    assert (
        overlap.measure_overlap([], ["a"]).kinds == ["none"] and overlap.measure_overlap(["a"], []).counts["none"] == 0
    )
    assert "none has a twin" in overlap.measure_overlap([], ["a"]).said


def test_many_questions_take_seconds():
    import time

    draw = random.Random(1)
    words = [f"w{i}" for i in range(2000)]
    train, test = ([" ".join(draw.choices(words, k=40)) for _ in range(n)] for n in (20_000, 2_000))
    began = time.process_time()
    overlap.measure_overlap(train, test)
    assert time.process_time() - began < 10


def test_one_or_a_few_problems_show_nothing():
    for n in (1, 3, 5):
        assert (
            verdicts.verdict_of({"estimate": 1.0, "low": 0.4, "high": 1.0, "p": estimates.sign_flips([1.0] * n)})
            == verdicts.NO_GAIN
        )
    assert estimates.sign_flips([1.0] * 6) < 0.05


def test_equal_models_are_called_different_about_one_time_in_twenty_also_with_few_problems():
    rng, wrong = np.random.default_rng(5), 0
    for _ in range(300):
        change = (rng.binomial(4, 0.5, size=8) - rng.binomial(4, 0.5, size=8)) / 4
        wrong += (
            verdicts.verdict_of({**estimates.share_interval(change, -1, 1), "p": estimates.sign_flips(change)})
            != verdicts.NO_GAIN
        )
    assert wrong / 300 < 0.08


def test_sign_flips_by_drawing_agree_with_trying_all():
    from itertools import product

    change = np.random.default_rng(6).normal(0.3, 1, size=13)
    every = [abs(np.dot(signs, change)) >= abs(change.sum()) for signs in product((1, -1), repeat=13)]
    assert estimates.sign_flips(change) == pytest.approx(np.mean(every), abs=0.02)


def test_what_a_run_was_trained_on_comes_from_its_completions_where_the_data_set_is_another_one(tmp_path, tokenizer):
    from lab.data import dataset, loading, overlap

    rows = [{"question": f"What is {i} + 1?", "answer": str(i + 1), "_row": i} for i in range(20)]
    dataset.save(dataset.prepare(loading.Loaded(rows), tokenizer), tmp_path / "dataset")
    train = dataset.load_split(tmp_path, "train")
    questions, said, another = overlap.trained_on(tmp_path, {"data": {"fingerprint": train._fingerprint}})
    assert questions == train["question"][:] and "all 18" in said and not another
    (tmp_path / "run/completions").mkdir(parents=True)
    pd.DataFrame({"prompt": ["p", "p"], "data/question": ["Old?", "Old?"]}).to_parquet(
        tmp_path / "run/completions/completions_00001.parquet"
    )
    questions, said, another = overlap.trained_on(tmp_path, {"data": {"fingerprint": "another"}})
    assert questions == ["Old?"] and "made again after the training" in said and another


def test_a_column_to_compare_by_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="BY names 'levle'; the data set's columns are: level"):
        comparison.columns_by(["levle"], ["level"])
