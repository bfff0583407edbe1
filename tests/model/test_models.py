"""The road is not one model's: a tiny random Qwen3 and Gemma 3 through the same notebooks."""

import copy
import json

import pandas as pd
import pytest

from lab.export import merge_proof
from lab.train import chosen_rewards
from tests.warm_processes import run_notebooks

TINY = dict(
    vocab_size=1152,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=1024,
    head_dim=64,
    bos_token_id=None,
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}<|im_start|>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)


def make(kind, tokenizer, folder):
    """A tiny random model of the kind, saved with a tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    config, model = {
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    }[kind]
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model(config(**TINY, **ends)).to(torch.bfloat16).save_pretrained(folder)
    tokenizer = copy.deepcopy(tokenizer)
    if kind == "gemma3":
        tokenizer.chat_template = NO_SYSTEM
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", ["qwen3", "gemma3"])
def test_two_steps_and_a_merge(kind, tokenizer, tmp_path):
    model = make(kind, tokenizer, tmp_path / kind)
    folder = tmp_path / "outputs"
    run_notebooks(("01_prepare_data",), folder, {"01_prepare_data": {"MODEL": model}})
    report = json.loads((folder / "dataset/report.json").read_text())
    assert report["system_role"] is (kind != "gemma3")

    # a random model earns nothing: a reward that any text has in some measure gives the groups their spread
    (folder / "my_rewards.py").write_text(
        "from rewards import reward\n\n\n@reward\ndef letters_reward(completion: str) -> float:\n"
        '    return sum(char in "aeiou" for char in completion) / (1 + len(completion))\n'
    )
    # and a group-wise reward, a variant under its own metric name, and one that adds columns to the run's table
    (folder / "my_rewards.py").open("a").write(
        "\n\nfrom rewards import length_reward\n\nshort = length_reward.with_options(longest=9)\n"
    )
    short = "length_reward[longest=9]"
    chosen_rewards.save_choice(
        folder,
        {"letters_reward": 1.0, "correctness_reward": 1.0, "diversity_reward": 0.1, short: 0.1, "debug_reward": 1.0},
    )
    smoke = {
        "MODEL": model,
        "MAX_STEPS": 2,
        "PROMPTS_PER_STEP": 2,
        "NUM_GENERATIONS": 4,
        "MAX_COMPLETION_TOKENS": 16,
        "LEARNING_RATE": 1e-2,
        "N_EVAL": 4,
    }
    few = {"N_EVALUATE": 4, "N_SAMPLES": 2, "N_PROOF": 4, "FORMATS": [], "TRY_SERVER": False}
    last = ("03_train_grpo", "05_merge_and_export")
    run_notebooks(last, folder, {last[0]: smoke, last[1]: few})

    table = pd.read_parquet(folder / "run/completions/completions_00002.parquet")
    assert len(table) == 8 and {short, "diversity_reward", "extracted_answer", "strict_format"} <= set(table.columns)
    log = [row for line in (folder / "run/log.jsonl").read_text().splitlines() if "reward" in (row := json.loads(line))]
    assert f"rewards/{short}/mean" in log[0] and log[0]["rewards/debug_reward/mean"] == 0
    proof = json.loads((folder / "merge_proof.json").read_text())
    assert proof["weights"]["changed"] > 0
    assert all(line["ok"] for line in merge_proof.proof_checks(proof)), merge_proof.proof_table(proof).to_string()
    assert proof["fresh_process"]["same_prompts"] == 1, (
        "the system prompt travels, folded where the model has no such role"
    )
    assert json.loads((folder / "evaluation.json").read_text())["n"] == 4
