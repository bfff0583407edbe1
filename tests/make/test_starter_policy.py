"""The starter policy: its size, tokenizer and template, and the behaviour that GRPO is to mend."""

import json
import math

import pytest

from lab.files import STARTER_POLICY, WORD_PROBLEMS, read_json, read_jsonl
from lab.make import starter_policy
from lab.model.sampling import sample


def test_size_architecture_and_weights_are_as_promised():
    from safetensors import safe_open

    config = json.loads((STARTER_POLICY / "config.json").read_text())
    assert config["model_type"] == "qwen2"
    with safe_open(STARTER_POLICY / "model.safetensors", "pt") as weights:
        tensors = [weights.get_slice(name) for name in weights.keys()]
    assert {tensor.get_dtype() for tensor in tensors} == {"BF16"}
    sizes = sum(math.prod(tensor.get_shape()) for tensor in tensors)
    assert 1.5e6 <= sizes <= 4e6
    assert sum(path.stat().st_size for path in STARTER_POLICY.iterdir()) <= 9e6


def test_tokenizer_takes_digits_one_by_one_and_any_text(tokenizer):
    assert len(tokenizer) <= 1500
    assert tokenizer.tokenize("1,234.5%") == ["1", ",", "2", "3", "4", ".", "5", "%"]
    for text in ("naïve 中文 🙂 \t\n", "<think>a</think>\n<answer>$1,200</answer>"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_template_has_a_system_role_and_continues_a_begun_turn(tokenizer):
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    start = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == start
    begun = [*chat, {"role": "assistant", "content": "<think>"}]
    assert tokenizer.apply_chat_template(begun, tokenize=False, continue_final_message=True) == start + "<think>"


def test_the_cards_figures_are_those_that_were_measured_and_lie_where_they_should():
    found = read_json(STARTER_POLICY / "measured.json", "make starter-policy")
    assert found["problems"] == 500
    for name in ("format_sampled", "correct_sampled", "drills_pass_at_1"):
        assert 0.15 <= found[name] <= 0.50, name
    assert found["pass_at_8"] >= 0.75
    assert found["format_greedy"] <= 0.5 and found["correct_greedy"] <= 0.5
    card = (STARTER_POLICY / "README.md").read_text()
    for name in ("format_sampled", "correct_sampled", "pass_at_8", "correct_greedy", "drills_pass_at_1"):
        assert f"{100 * found[name]:.1f} %" in card


def test_the_card_says_what_the_script_does_and_is_left_as_it_is_by_the_same_figures():
    card = (STARTER_POLICY / "README.md").read_text()
    assert starter_policy.update_card(card, read_json(STARTER_POLICY / "measured.json", "make starter-policy")) == card
    shape, (first, last) = starter_policy.ARCHITECTURE, starter_policy.CYCLES
    for said in (
        f"Qwen2, {shape['num_hidden_layers']} layers, width {shape['hidden_size']}, 2,142,144 parameters",
        f"{starter_policy.VOCAB_SIZE} tokens, digits one by one",
        f"{first.steps + last.steps:,} steps of {starter_policy.BATCH_SIZE} demonstrations, seed {starter_policy.SEED}",
        f"for word problems, {100 * starter_policy.STYLES['strict'][0]:.0f} % have the asked-for format",
        f"At the end of training {100 * last.p_steps:.0f} % of\nthe replies that could reason do ({100 * first.p_steps:.0f} %",
        f"is right {100 * starter_policy.P_JUMP_RIGHT:.0f} % of the time",
        f"Of the code replies {100 * starter_policy.P_BUG:.0f} % carry a bug",
        f"Before those come {first.basics * first.steps:,.0f} steps on basics",
    ):
        assert said in card


@pytest.fixture(scope="module")
def small_sample():
    """Measured again here, on a small sample and in 4 bits, with its own seed."""
    return starter_policy.measure(STARTER_POLICY, n_problems=40, n_drills=20, seed=7)


def test_quality_floor_on_a_small_sample(small_sample):
    assert small_sample["pass_at_8"] >= 0.65
    for name in ("format_sampled", "correct_sampled", "drills_pass_at_1"):
        assert 0.10 <= small_sample[name] <= 0.60, name
    assert small_sample["format_greedy"] <= 0.5 and small_sample["correct_greedy"] <= 0.5


def test_it_knows_the_task_when_it_is_made_to_reason(tokenizer):
    """What GRPO can find must be there: with the reasoning begun for it, it is mostly right."""
    from transformers import AutoModelForCausalLM

    from rewards import SYSTEM_PROMPT, correctness_reward

    rows = [row for row in read_jsonl(WORD_PROBLEMS) if row["split"] == "test"][:60]
    model = AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype="float32").eval()
    system = {"role": "system", "content": SYSTEM_PROMPT}
    prompts = []
    for row in rows:
        begun = f"<think>\n{row['solution'].split(':')[0]}:"
        prompts.append([system, {"role": "user", "content": row["question"]}, {"role": "assistant", "content": begun}])
    answers = sample(model, tokenizer, prompts, temperature=0, max_new_tokens=112)
    scores = correctness_reward(
        prompts=prompts, completions=[one.text for (one,) in answers], answer=[r["answer"] for r in rows]
    )
    assert sum(scores) / len(scores) >= 0.7
