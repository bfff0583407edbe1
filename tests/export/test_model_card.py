"""The model card: every number comes from the records, and no text of theirs breaks it."""

import copy
import re

import pytest

from lab.export import merge_proof, model_card
from lab.export.serving_prompt import ServedPrompt
from lab.files import ROOT
from lab.measure import verdicts

ABOUT = {
    "status": "finished",
    "steps": 80,
    "seconds": 390.6,
    "name": "grpo-1",
    "model": {
        "name": "unsloth/Qwen2.5-1.5B-Instruct",
        "shown": "unsloth/Qwen2.5-1.5B-Instruct",
        "backend": "unsloth",
        "load_in_4bit": True,
        "lora_rank": 16,
        "full_finetuning": False,
        "prefill": "",
    },
    "data": {"fingerprint": "dfb32c6b2d51cc9a", "rows": 4000, "max_prompt_tokens": 80},
    "requested": {
        "max_steps": 80,
        "learning_rate": 1e-5,
        "beta": 0.0,
        "num_generations": 8,
        "temperature": 1.0,
        "seed": 3407,
    },
    "effective": {"max_steps": 80, "learning_rate": 1e-6, "beta": 0.0, "num_generations": 8, "loss_type": "dapo"},
    "rewards": {
        "rewards": [
            {"name": "correctness_reward", "weight": 1.0},
            {"name": "length_reward[longest=9]", "weight": -0.25},
        ],
        "source_sha256": "7e56" * 16,
    },
    "versions": {
        "python": "3.11",
        "torch": "2.13.0",
        "transformers": "5.17.0",
        "trl": "1.14.0",
        "unsloth": "2026.10.9",
    },
}
REPORT = {"rows": {"read": 4510, "train": 4000, "test": 500, "rejected": 10}, "rejected": {"empty": 10}}
SERVED = ServedPrompt([{"role": "system", "content": "Think, then answer."}], max_new_tokens=96)
SHOTS = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
WHY = "merged into the dequantised base: its predictions lie nearest."


def share(estimate):
    return {"estimate": estimate, "low": estimate - 0.01, "high": estimate + 0.01}


def of_model(correct):
    greedy = {name: share(value) for name, value in (("format", 0.5), ("correct", correct), ("right_anyhow", 0.9))}
    greedy |= {"tokens": {"estimate": 48.324, "low": 47, "high": 49}, "tokens_per_second": 2288.2}
    return greedy, {
        "pass@1": share(correct - 0.1),
        "pass@4": share(correct),
        "maj@4": share(0.43),
        "tokens": share(26.2),
    }


EVALUATION = {
    "n": 500,
    "models": ["base", "adapter", "merged"],
    "baseline": "base",
    "other": "merged",
    "correct_by": "correctness_reward",
    "settings": {"temperature": 0.8, "n_samples": 4},
    "greedy": {name: of_model(value)[0] for name, value in (("base", 0.312), ("adapter", 0.974), ("merged", 0.972))},
    "sampled": {name: of_model(value)[1] for name, value in (("base", 0.312), ("adapter", 0.974), ("merged", 0.972))},
    "difference": {
        "merged": {
            "greedy": {"correct": {**share(0.66), "p": 1e-9, "n": 500}},
            "sampled": {"pass@1": {**share(0.66), "n": 499}},
        }
    },
    "said": "A gain was shown (correct, greedy): +66.0 points.",
    "overlap": {"said": "3 problems also stand in the training set."},
}
PROOF = {
    "adapter": {
        "tensors": 56,
        "all_zero": 0,
        "not_finite": 0,
        "compared_with_start": 56,
        "moved_since_start": 56,
        "at_start": 56,
    },
    "base": {"at_start": 28, "compared_with_start": 28, "changed": 0},
    "weights": {
        "tensors": 50,
        "changed": 28,
        "stray": [],
        "missing": [],
        "untouched_changed": 0,
        "with_update": 28,
        "worst_rounding": 0.25,
        "merge_ratio": 1.0,
        "update_kept": 0.75,
        "aside": 0.0,
        "aside_by_rounding": 0.02,
    },
    "decoding": [],
    "tied": {"base": True, "merged": True, "contradicted": False},
    "trained_against_merged": {"kl": 5e-6, "same_top": 1.0},
    "trained_against_base": {"kl": 0.05},
    "quantising": None,
    "fresh_process": {"n": 24, "same_answers": 1.0, "same_prompts": 1.0},
    "greedy_as_trained": 1.0,
    "missing_files": [],
    "why": WHY,
}
HOSTILE = "a | b ``` c `d` `` \n---\n# no heading\r\n| x | y |\n---\n<b>: - [x](y)\\"


def card(about=ABOUT, served=SERVED, evaluation=EVALUATION, proof=PROOF, report=REPORT):
    return model_card.render_card(about, report, served, proof, evaluation)


def changed(record, **values):
    """A deep copy with values replaced, by path: model__shown="x"."""
    made = copy.deepcopy(record)
    for path, value in values.items():
        *names, last = path.split("__")
        place = made
        for name in names:
            place = place[name]
        place[last] = value
    return made


def tables(text):
    """The Markdown tables as rows of cells; a bar behind a backslash is none."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows]


def body(text):
    return text.split("---\n", 2)[2]


def metadata(text):
    from huggingface_hub import ModelCard

    return ModelCard(text).data


def test_the_hub_reads_library_tags_and_results():
    data = metadata(card())
    assert data.library_name == "transformers" and data.pipeline_tag == "text-generation" and "grpo" in data.tags
    results = {one.metric_name: one.metric_value for one in data.eval_results}
    assert results == {"correct, greedy": 0.972, "strict format, greedy": 0.5}
    assert data.base_model == "unsloth/Qwen2.5-1.5B-Instruct"


@pytest.mark.parametrize(
    "base",
    [
        "data/starter-policy",
        "outputs/merged",
        "/work/models/llama",
        "./model",
        "../up/model",
        "~/models/llama",
        "C:\\models\\x",
        "models/deep/er",
        "a b/c",
        "gpt2",
        "me/x\n---",
    ],
)
def test_a_folder_is_no_base_model_on_the_hub(base, monkeypatch, tmp_path):
    monkeypatch.setattr(model_card, "ROOT", tmp_path)
    for name in ("data/starter-policy", "outputs/merged"):
        (tmp_path / name).mkdir(parents=True)
    assert metadata(card(changed(ABOUT, model__shown=base))).base_model is None


def test_the_starter_policy_is_no_base_model_on_the_hub():
    assert (ROOT / "data/starter-policy").is_dir() and not model_card.is_hub_name("data/starter-policy")


def test_every_number_of_the_evaluation_is_that_of_the_summary():
    expected = verdicts.summary_table(EVALUATION)
    rows = tables(card().split("## Evaluation")[1].split("## Rewards")[0])
    assert rows[0] == ["", *expected.columns] and set(rows[1]) == {"---"}
    assert rows[2:] == [[str(name), *map(str, row)] for name, row in zip(expected.index, expected.to_numpy())]
    assert len(rows) > 6 and "97.2 %" in rows[3] and "31.2 %" in rows[3]


def test_what_was_found_is_said_with_the_overlap():
    text = card()
    assert EVALUATION["said"] + " " + EVALUATION["overlap"]["said"] in text
    assert "Right by `correctness_reward`" in text
    assert "None" not in card(evaluation={**EVALUATION, "overlap": None})


def test_a_model_that_was_not_evaluated_says_so():
    text = card(evaluation=None)
    assert "Not evaluated yet." in text and metadata(text).eval_results is None
    assert "Not evaluated" not in card()


def test_rewards_stand_there_with_weights_and_the_hash_of_their_source():
    text = card()
    for words in ("`correctness_reward` × 1", "`length_reward[longest=9]` × -0.25", "`" + "7e56" * 16 + "`"):
        assert words in text


def test_settings_are_those_that_took_effect_and_versions_are_named():
    text = card()
    assert (
        "`learning_rate=1e-06`" in text and "`loss_type=dapo`" in text and "`seed=3407`" in text and "1e-05" not in text
    )
    assert "Versions: torch 2.13.0, transformers 5.17.0, trl 1.14.0, unsloth 2026.10.9." in text


def test_origin_and_data_stand_there():
    text = card()
    for words in (
        "trained as a LoRA adapter of rank 16 on the 4-bit base with unsloth",
        WHY,
        "4,000 training prompts",
        "500 held out",
        "10 rows rejected",
        "80 GRPO steps in 6.5 minutes",
    ):
        assert words in text
    assert "all weights trained" in card(changed(ABOUT, model__full_finetuning=True))
    assert "on the 16-bit base" in card(changed(ABOUT, model__load_in_4bit=False))


def test_the_proof_s_table_is_there_with_what_failed_and_the_warnings():
    rows = tables(card().split("## Is it the trained model?")[1])
    assert rows[2:] == merge_proof.proof_table(PROOF).to_numpy().tolist() and len(rows) == 18
    assert merge_proof.proof_warnings(PROOF)[0] in card()
    assert "| 2 | 0 | NO |" in card(proof=changed(PROOF, weights__untouched_changed=2))


def test_limits_are_said_as_far_as_they_hold():
    assert "2 million parameters" not in card() and "intervals are rough" not in card()
    assert "2 million parameters" in card(changed(ABOUT, model__shown="data/starter-policy"))
    assert "50 problems are few" in card(evaluation={**EVALUATION, "n": 50})
    assert "nothing is known about others" in card()


def test_how_it_was_asked_stands_there():
    text = card(served=ServedPrompt([*SERVED.preamble, *SHOTS], "<think>\n", ("</answer>",), 0.7, 96))
    for words in (
        "`Think, then answer.` and 2 messages of worked examples",
        '`"<think>\\n"`',
        '`"</answer>"`',
        "temperature 0.7",
        "tokenizer=generate.tokenizer",
        "cut at 96 tokens",
    ):
        assert words in text
    assert "before the question" not in card(served=ServedPrompt([])) and "is begun with" not in card()
    assert "unless the chat has a system message of its own: 2 messages of worked" in card(served=ServedPrompt(SHOTS))


@pytest.mark.parametrize("text", [HOSTILE, "```", "`", "", "\n", "a|b", "---"])
def test_no_text_breaks_the_card(text):
    rewards = {"rewards": [{"name": text, "weight": 1.0}], "source_sha256": "0"}
    about = changed(ABOUT, rewards=rewards, name=text, model__shown=text)
    served = ServedPrompt([{"role": "system", "content": text}], text, (text,))
    evaluation = changed(EVALUATION, correct_by=text)
    proof = changed(PROOF, weights__untouched_changed=text)
    made, plain = card(about, served, evaluation, proof), card(served=ServedPrompt(SERVED.preamble, "x", ("y",)))
    assert metadata(made).library_name == "transformers"
    headings = [line for line in body(plain).splitlines() if line.startswith("#")]
    assert [line for line in body(made).splitlines() if line.startswith("#")] == headings
    assert "---" not in body(made).splitlines() and body(made).count("\n```") == 2
    assert {len(row) for row in tables(body(made))} == {len(row) for row in tables(body(plain))}


@pytest.mark.parametrize("text", ["a `b` c", "``` x", "`", "", "plain"])
def test_inline_code_holds_no_backtick_and_is_never_empty(text):
    made = model_card._code(text)
    assert made[0] == made[-1] == "`" and made[1:-1] and "`" not in made[1:-1]


def test_what_makes_the_figures_doubtful_stands_among_the_limits():
    said = card(evaluation={**EVALUATION, "judged_by": "0" * 64, "another_data_set": True})
    assert "judged by those of SHA-256 `000" in said and "made again after the training" in said
    said = card(evaluation={**EVALUATION, "judged_by": ABOUT["rewards"]["source_sha256"], "another_data_set": False})
    assert "judged by those" not in said and "made again" not in said
