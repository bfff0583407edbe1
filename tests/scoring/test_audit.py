"""The audit: the whole registry holds, and every known way for a reward to fail is found and named."""

import json
import random
import re
import time

import pandas as pd
import pytest

from lab.files import WORD_PROBLEMS
from lab.model.prompts import build_prompt
from rewards import (
    FORMAT,
    REGISTRY,
    BoxedFormat,
    HashFormat,
    TagFormat,
    adopt,
    correctness_reward,
    extract_answer,
    extract_number,
    format_reward,
    gate,
    length_reward,
    register,
    reward,
    same_answer,
    soft_format_reward,
    style_reward,
)
from scoring import contract, contract_checks
from scoring.audit import FAILURE_COLUMNS, Audit, audit
from scoring.probes import make_probes, make_trials, near_miss


def word_problems(n):
    rows = [json.loads(line) for line in WORD_PROBLEMS.read_text(encoding="utf-8").splitlines()[:n]]
    return [{**row, "prompt": build_prompt(row["question"], [])} for row in rows]


ROWS = [{**row, "ground_truth": row["answer"]} for row in word_problems(4)]


@pytest.fixture(autouse=True)
def fewer_hostile_texts(request, monkeypatch):
    """Measuring the speed takes most of an audit's time: all of it only where the speed is the subject."""
    if "registry" not in request.node.name:
        monkeypatch.setattr(contract_checks, "HOSTILE", ["x", "1,111"])


def failures(function, rows=ROWS):
    """What the audit says against one function: {what: score of the offending completion}."""
    found = audit([function], rows)
    return {line["what fails"]: line["score"] for line in found.failures.to_dict("records")}


@pytest.mark.parametrize("name", REGISTRY)
def test_every_reward_of_the_registry_holds(name):
    found = audit([REGISTRY[name]], ROWS[:2] if name == "judge_reward" else ROWS)  # a request for each completion
    assert found.passed, found.failures.to_string()
    line = found.summary.loc[name]
    held, checked = line["contract"].split("/")
    assert held == checked and int(checked) >= 9
    if REGISTRY[name].claims_correctness:
        stopped, cheats = line["cheats stopped"].split("/")
        assert stopped == cheats and int(cheats) >= 40
        good, dressed = line["right dressed otherwise"].split("/") if "/" in line["right dressed otherwise"] else (0, 0)
        assert good == dressed, "it misses right answers in other clothes"


def test_a_reward_added_to_the_registry_is_audited_with_no_further_work(monkeypatch):
    monkeypatch.setattr("scoring.contract.REGISTRY", {"format_reward": format_reward})

    @register
    @reward
    def anywhere_reward(completion: str, answer: str) -> float:
        return float(answer in completion)

    assert audit(contract.REGISTRY.values(), ROWS[:1]).summary["verdict"].to_dict() == {
        "format_reward": "holds",
        "anywhere_reward": "fails",
    }


@pytest.mark.parametrize("other", [TagFormat("reasoning", "answer"), BoxedFormat(), HashFormat()], ids=repr)
def test_correctness_holds_in_every_format(other, monkeypatch):
    monkeypatch.setattr("scoring.formats.FORMAT", other)
    found = audit([correctness_reward, format_reward, soft_format_reward], ROWS[:2])
    assert found.passed, found.failures.to_string()


def test_the_default_set_of_notebook_02_holds():
    weights = {"correctness_reward": 1.0, "format_reward": 0.5, "soft_format_reward": 0.5}
    found = audit([REGISTRY[name] for name in weights], ROWS, weights)
    assert found.passed and found.summary.loc["weighted set", "verdict"] == "holds", found.failures.to_string()


def test_the_corpus_has_at_least_forty_kinds_of_cheating_and_near_misses():
    for right, wrong in (("12", "19"), ("Paris", "Lima"), ("$10.50", "17.5"), ("-4", "3")):
        probes = make_probes(right, wrong, ["7", "8"], "How many?")
        kinds = {probe.what for probe in probes if probe.kind in ("wrong", "silent", "cheating")}
        assert len(kinds) >= 40 and len({probe.completion for probe in probes}) >= 0.95 * len(probes)
        assert sum(probe.kind == "right" for probe in probes) == 1


def test_the_corpus_is_built_from_the_readers_own_rows():
    trials = make_trials(correctness_reward, ROWS)
    texts = " ".join(probe.completion for trial in trials for probe in trial.probes)
    assert all(row["question"] in texts and row["answer"] in texts for row in ROWS)


@pytest.mark.parametrize(
    "text, other", [("Paris", "aaris"), ("A", "b"), ("z9", "a9"), ("9", "0"), ("!", "!x"), ('{"a": 1}', '{"b": 1}')]
)
def test_a_near_miss_differs_in_one_place(text, other):
    assert near_miss(text) == other


@reward
def gold_anywhere(completion: str, answer: str) -> float:
    return float(answer in completion)


@reward
def gold_in_answer(completion: str, answer: str) -> float:
    return float(answer in (extract_answer(completion) or ""))


@reward
def last_number(completion: str, answer: str) -> float:
    numbers = re.findall(r"-?\d+\.?\d*", completion)
    return float(bool(numbers) and numbers[-1] == answer.replace(",", "").replace("$", ""))


@reward
def after_split(completion: str, answer: str) -> float:
    return float(completion.split("<answer>")[-1].split("</answer>")[0].strip() == answer)


@reward
def by_float(completion: str, answer: str) -> float:
    try:
        given = float((extract_answer(completion) or "nan").replace("$", "").replace(",", ""))
    except ValueError:
        return 0.0
    return float(abs(given - float(extract_number(answer))) < 1e-6 * abs(given))


@reward
def part_of_gold(completion: str, answer: str) -> float:
    given = extract_answer(completion)
    return float(given is not None and given in answer)


@reward
def last_line(completion: str, answer: str) -> float:
    return float(completion.replace(FORMAT.marks[-1], "").strip().splitlines()[-1:] == [answer])


def kwargs_gold(completions, **kwargs):
    return [float(a in c[0]["content"]) for c, a in zip(completions, kwargs["answer"])]


def other_name(completions, ground_truth, **kwargs):
    return [float(a in c[0]["content"]) for c, a in zip(completions, ground_truth)]


@reward(low=-1.5, high=3.0)
def silence_pays(completion: str, answer: str) -> float:
    given = extract_number(extract_answer(completion) or "")
    return 0.0 if given is None else 3.0 if given == extract_number(answer) else -1.5


@reward(high=1.6)
def sloppy_first(completion: str, answer: str) -> float:
    """The final newline that a published regex demands: a perfect answer without it scores below prose with the number."""
    return 0.2 if re.search(r"</answer>$", completion) else float(f"is {answer}." in completion)


@pytest.mark.parametrize(
    "function, fault",
    [
        (gold_anywhere, "cheating: right in the reasoning, wrong in the answer"),
        (gold_anywhere, "cheating: hedged: all candidates"),
        (gold_in_answer, "cheating: hedged: GOLD or OTHER"),
        (gold_in_answer, "wrong: a digit glued on"),
        (last_number, "cheating: hedged: OTHER or GOLD"),
        (after_split, "cheating: wrong, then right"),
        (by_float, "wrong: one more"),
        (part_of_gold, "wrong: the beginning of the gold"),
        (last_line, "cheating: hedged: OTHER\nGOLD"),
        (adopt(kwargs_gold), "cheating: hedged: all candidates"),
        (adopt(other_name), "cheating: hedged: all candidates"),
        (silence_pays, "not answering pays: refusal, against -1.5 for a wrong answer"),
        (sloppy_first, "scores above the plainly right one: prose instead of the format"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_known_fault_is_found_and_named(function, fault):
    assert fault in failures(function), failures(function)


def test_too_strict_is_shown_too():
    exact = reward(lambda completion, answer: float(extract_answer(completion) == answer))
    good, all_of_them = audit([exact], ROWS).summary["right dressed otherwise"].iloc[0].split("/")
    assert int(good) < int(all_of_them)


@reward
def moody(completion: str) -> float:
    return random.random()


@reward
def grudging(completion: str, seen=[]) -> float:  # noqa: B006
    seen.append(completion)
    return 1.0 / len(seen)


def over_the_batch(prompts, completions, **kwargs):
    lengths = [len(str(c)) for c in completions]
    return [length / max(1, *lengths) for length in lengths]


def chat_only(prompts, completions, answer, **kwargs):
    return [1.0 if c[0]["content"].endswith(f"{a}\n</answer>") else 0.0 for c, a in zip(completions, answer)]


def never_met(completions, **kwargs):
    pattern = r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>\n$"
    return [0.5 * bool(re.match(pattern, c if isinstance(c, str) else c[0]["content"])) for c in completions]


@reward
def picky(completion: str) -> float | None:
    return None if "<answer>" not in completion else 1.0


@reward
def quadratic(completion: str) -> float:
    return float(
        bool(re.search(r"(?:x+x+)+y$|<think>.*<think>.*<answer>.*</answer>.*!$", completion[:40_000], re.DOTALL))
    )


@reward
def slow(completion: str) -> float:
    end = time.process_time() + len(completion) / 400_000
    while time.process_time() < end:
        pass
    return 1.0


@reward
def brittle(completion: str) -> float:
    return float(len(completion.encode()) > 3)


@reward
def excited(completion: str) -> float:
    return 1.0 + completion.count("!")


@reward
def generous(completion: str, answer: str | None) -> float:
    return 1.0 if answer is None else float(extract_answer(completion) == answer)


@reward
def trusting(completion: str, answer: str) -> float:
    return float(extract_answer(completion) == answer.strip())


@pytest.mark.parametrize(
    "function, check",
    [
        (moody, "same scores the second time"),
        (grudging, "same scores the second time"),
        (adopt(over_the_batch), "same score alone as in the batch"),
        (adopt(never_met), "pays for something"),
        (picky, "None only by the row"),
        (slow, "1 MB of hostile text"),
        (brittle, "odd and empty texts"),
        (excited, "can be called at all"),
        (trusting, "pays nothing where the gold is missing"),
        (generous, "pays nothing where the gold is missing"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_breach_of_the_contract_is_found_and_named(function, check):
    found = failures(function)
    assert any(what.startswith(check) for what in found), found


PREFILLED = [{**row, "prompt": [*row["prompt"], {"role": "assistant", "content": "<think>"}]} for row in ROWS]


def test_rows_with_a_begun_assistant_turn_are_audited_and_the_way_to_put_it_back_is_told():
    assert audit([format_reward, correctness_reward], PREFILLED).passed
    unfilled = adopt(
        lambda completions, **kwargs: [float(c[0]["content"].startswith("<think>")) for c in completions],
        name="unfilled",
    )
    line = audit([unfilled], PREFILLED).failures.iloc[0]
    assert line["what fails"] == "pays for something" and "adopt(f, prefill=True)" in line["completion or what came"]


def test_sound_functions_in_trls_signature_hold_and_need_take_only_what_the_rows_are():
    from trl.rewards import get_soft_overlong_punishment, think_format_reward

    def exact(completions, answer, **kwargs):
        return [
            None if a is None else float(correctness_reward.score(c[0]["content"], answer=a))
            for c, a in zip(completions, answer)
        ]

    sound = [adopt(exact), adopt(think_format_reward), adopt(get_soft_overlong_punishment(512, 128)), by_extraction]
    found = audit(sound, ROWS)
    assert found.passed, found.failures.to_string()


@reward
def by_extraction(completion: str, answer: str) -> float | None:
    given = extract_answer(completion)
    return None if answer is None else float(given is not None and same_answer(given, answer))


@pytest.mark.parametrize(
    "rows",
    [
        [{"prompt": "?", "answer": "yes"}],
        [{"prompt": "?", "answer": "5 apples"}],
        [{"prompt": "?", "answer": "85%"}],
        [{"prompt": "?", "answer": "5 million"}],
        [{"prompt": "?", "answer": "0"}],
        [{"prompt": "?", "answer": "B"}],
        [{"prompt": "?", "answer": "x"}],
        [{"prompt": "?", "answer": r"\frac{1}{2}"}],
        [{"prompt": "?", "answer": "two\nlines"}],
        [{"prompt": [], "answer": "7"}],
        [{"answer": 7}],
        [{"prompt": "?", "answer": "I do not know"}],
        [{"prompt": "?", "answer": "1e40/7"}],
        [{"prompt": "?", "answer": "-0.125"}],
        [{"prompt": "?", "answer": "a long answer of many words " * 200}],
    ],
    ids=lambda rows: str(rows[0]["answer"])[:20],
)
def test_the_library_holds_on_rows_of_every_kind(rows):
    found = audit([correctness_reward, REGISTRY["math_reward"]], rows)
    assert found.passed, found.failures.to_string()


def test_rows_without_a_gold_will_do_for_style_and_choices_by_index_for_choices():
    assert audit([format_reward, style_reward], [{"prompt": "?"}]).passed
    found = audit(
        [REGISTRY["multiple_choice_reward"]], [{"prompt": "?", "choices": ["Lima", "Paris", "Rome"], "answer": 1}]
    )
    assert found.passed, found.failures.to_string()
    with pytest.raises(ValueError, match="at least one"):
        audit([format_reward], [])


def test_a_missing_column_is_named_in_the_table_and_the_others_are_audited():
    needy = reward(lambda completion, colour: 1.0)
    found = audit([needy, format_reward], ROWS)
    assert found.summary["verdict"].tolist() == ["broken", "holds"]
    assert "'colour'" in found.failures.iloc[0]["completion or what came"]


def test_a_set_in_which_style_outweighs_correctness_fails_with_the_completion_that_shows_it():
    steps = REGISTRY["reasoning_steps_reward"]
    weights = {"correctness_reward": 0.2, "reasoning_steps_reward": 1.0}
    found = audit([correctness_reward, steps], ROWS, weights)
    assert found.summary.loc["weighted set", "verdict"] == "fails"
    assert "cheating: different words and wrong" in set(found.failures["what fails"])
    gated = gate(steps, by=correctness_reward)
    weights = {"correctness_reward": 0.2, gated.__name__: 1.0}
    assert audit([correctness_reward, gated], ROWS, weights).passed, "the gate mends it"


@pytest.mark.parametrize("name", ["length_reward", "diversity_reward", "reasoning_steps_reward"])
def test_style_gated_by_correctness_holds_by_itself(name):
    found = audit([gate(REGISTRY[name], by=correctness_reward)], ROWS[:2])
    assert found.passed, found.failures.to_string()


def test_a_set_without_correctness_is_told_so():
    found = audit([format_reward, style_reward], ROWS, {"format_reward": 1.0, "style_reward": 1.0})
    assert "no reward in the set claims correctness" in found.failures.iloc[-1]["completion or what came"]


def test_weights_for_a_function_that_is_not_there_are_refused():
    with pytest.raises(ValueError, match="'lenght_reward', but there is no such reward. Did you mean 'length_reward'?"):
        audit([length_reward], ROWS, {"lenght_reward": 1.0})


def test_a_failure_shows_its_completion_and_both_scores():
    line = audit([gold_anywhere], ROWS[:1]).failures.dropna(subset="score").iloc[0]
    assert line["score"] >= line["score of the right one"] == 1.0 and len(line["completion or what came"]) > 5
    assert FORMAT.marks[0] in " ".join(audit([gold_anywhere], ROWS[:1]).failures["completion or what came"])


def test_every_kind_of_failure_has_its_advice():
    kinds = [
        "pays for right answers",
        "can be called at all",
        "wrong: x",
        "cheating: hedged: x",
        "cheating: x",
        "silent: x",
    ]
    kinds += ["not answering pays: x", "scores above the plainly right one: x"]
    kinds += [
        what for what, _ in contract_checks.check_contract(correctness_reward, make_trials(correctness_reward, ROWS))
    ]
    failures = pd.DataFrame([("a", what, "came", 1.0, 1.0) for what in kinds], columns=FAILURE_COLUMNS)
    table = Audit(pd.DataFrame(), failures).findings().set_index("what fails")
    assert len(table) == len(kinds) and (table["times"] == 1).all()
    assert "by itself" in table.loc["same scores in another order", "what to do"]
    assert "includes" not in table.loc["same scores for chat messages and plain text", "what to do"]
    cheated = Audit(pd.DataFrame(), failures.assign(reward="weighted set")).findings().set_index("what fails")
    assert (
        "gate(style" in cheated.loc["cheating", "what to do"] and "top score" not in cheated.loc["wrong", "what to do"]
    )
