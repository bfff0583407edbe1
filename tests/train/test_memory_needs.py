"""The memory that a run needs, computed before the model is loaded, beside what the real models take."""

from types import SimpleNamespace

import pytest
import torch

from lab.train import memory_needs
from lab.train.memory_needs import memory_estimate


def tiny(kind):
    from transformers import Gemma3TextConfig, LlamaConfig, Qwen2Config

    size = dict(
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=300,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    if kind == "gemma3":
        return Gemma3TextConfig(
            **size, head_dim=48, sliding_window=16, layer_types=["sliding_attention", "full_attention"]
        )
    return {"llama": LlamaConfig, "qwen2": Qwen2Config}[kind](**size, tie_word_embeddings=kind == "qwen2")


KINDS = ["llama", "qwen2", "gemma3"]


@pytest.fixture(params=KINDS)
def real(request):
    from transformers import AutoModelForCausalLM

    config = tiny(request.param)
    return config, AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def estimate(config, **changes):
    how = dict(max_prompt_tokens=20, load_in_4bit=False, lora_rank=8, full_finetuning=False) | {
        key: changes.pop(key) for key in list(changes) if key in ("load_in_4bit", "lora_rank", "full_finetuning")
    }
    settings = dict(
        per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4, max_completion_length=30
    )
    return memory_estimate(config, settings={**settings, "bf16": False, "optim": "adamw_torch", **changes}, **how)


def test_base_weights_are_those_of_the_real_model(real):
    config, model = real
    assert estimate(config).loc["base weights", "bytes"] == sum(
        p.numel() * p.element_size() for p in model.parameters()
    )
    assert estimate(config, bf16=True).loc["base weights", "bytes"] == sum(2 * p.numel() for p in model.parameters())


def test_the_adapter_is_that_of_the_real_peft_model(real):
    from peft import LoraConfig, get_peft_model

    config, model = real
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules=list(memory_needs.TARGETS), task_type="CAUSAL_LM"))
    trained = [p for p in adapted.parameters() if p.requires_grad]
    table = estimate(config)
    assert table.loc["adapter", "bytes"] == sum(p.numel() * p.element_size() for p in trained)
    optimiser = torch.optim.AdamW(trained)
    for p in trained:
        p.grad = torch.ones_like(p)
    optimiser.step()
    states = [x for state in optimiser.state.values() for name, x in state.items() if name != "step"]
    by_hand = sum(x.numel() * x.element_size() for x in [*states, *(p.grad for p in trained)])
    assert table.loc["gradients and optimiser states", "bytes"] == by_hand


def test_the_kv_cache_is_that_of_the_real_model(real):
    config, model = real
    for tokens in (10, 50):  # below and above the sliding window
        with torch.no_grad():
            cache = model(torch.ones(8, tokens, dtype=torch.long), use_cache=True).past_key_values
        by_hand = sum(x.numel() * x.element_size() for layer in cache.layers for x in (layer.keys, layer.values))
        assert memory_needs.kv_cache_bytes(config, 8, tokens, 4) == by_hand
    table = estimate(config)  # 4 × 2 sequences are generated at once, of 20 + 30 tokens
    assert table.loc["KV cache while generating", "bytes"] == by_hand


def test_4_bits_are_what_bitsandbytes_packs():
    import bitsandbytes.functional as packed

    weight = torch.randn(320, 128)
    data, state = packed.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    by_hand = sum(x.numel() * x.element_size() for x in (data, state.absmax, state.state2.absmax))
    model = torch.nn.Module()
    model.layer, model.get_output_embeddings = torch.nn.Linear(128, 320, bias=False), lambda: None
    assert memory_needs.base_bytes(model, True, 2) == (320 * 128, by_hand)
    assert by_hand * 8 / weight.numel() == pytest.approx(4.127, abs=0.003)


def test_4_bits_leave_embeddings_norms_and_the_output_layer_alone(real):
    config, model = real
    linear = sum(p.numel() for name, p in model.named_parameters() if "_proj" in name and name.endswith("weight"))
    rest = sum(p.numel() for p in model.parameters()) - linear
    found = estimate(config, load_in_4bit=True, bf16=True).loc["base weights", "bytes"]
    assert found == pytest.approx(2 * rest + linear * 4.127 / 8, rel=1e-3)


def test_logits_and_activations_grow_with_the_batch_and_checkpointing_saves():
    one, two = (estimate(tiny("llama"), per_device_train_batch_size=size) for size in (4, 8))
    assert two.loc["logits", "bytes"] == 2 * one.loc["logits", "bytes"] == 2 * (2 * 4 * 4 * 30 * 300)
    assert two.loc["activations", "bytes"] == 2 * one.loc["activations", "bytes"]
    kept = estimate(tiny("llama"), gradient_checkpointing=False).loc["activations", "bytes"]
    layer = 6 * 128 + 6 * 128 + 4 * 64 + 4 * 320
    assert kept == 4 * 50 * 4 * 2 * layer and one.loc["activations", "bytes"] == 4 * 50 * 4 * (2 * 128 + layer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_right_to_a_factor_of_two(real, dtype):
    config, model = real
    model.to(dtype)
    kept = {}

    def keep(tensor):
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor  # the graph holds it, so that no address is used twice

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        graph = model.base_model(torch.ones(4, 50, dtype=torch.long), use_cache=False)
    estimated, saved = (
        memory_needs.activation_bytes(config, 4 * 50, dtype.itemsize, checkpointing=False),
        sum(kept.values()),
    )
    del graph
    assert 0.5 < estimated / saved < 2, (estimated, saved)


def test_an_8_bit_optimiser_takes_a_quarter():
    full, small = (
        estimate(tiny("llama"), optim=optim).loc["gradients and optimiser states"]
        for optim in ("adamw_torch", "adamw_8bit")
    )
    parameters = full["bytes"] // 12
    assert small["bytes"] == round(parameters * (4 + 2 * (1 + 4 / 256)))


def test_full_fine_tuning_trains_every_weight_and_keeps_a_reference_for_the_kl_term():
    adapter, full = (estimate(tiny("llama"), full_finetuning=flag, beta=0.02) for flag in (False, True))
    assert (
        "reference model" not in adapter.index
        and "reference model" not in estimate(tiny("llama"), full_finetuning=True, beta=0.0).index
    )
    assert (
        full.loc["reference model", "bytes"] == full.loc["base weights", "bytes"] and full.loc["adapter", "bytes"] == 0
    )
    assert full.loc["gradients and optimiser states", "bytes"] == 3 * full.loc["base weights", "bytes"]


def test_the_total_is_the_higher_of_the_two_peaks_and_each_part_says_how():
    table = estimate(tiny("llama"))
    by_time = table.groupby("when")["bytes"].sum()
    assert table.attrs["total_bytes"] == by_time["always"] + max(by_time["generating"], by_time["training"])
    assert all(table["formula"].str.len() > 10) and table.loc["logits", "size"] == "0.3 MB"


def test_more_than_nine_tenths_of_the_free_memory_is_warned_of(monkeypatch):
    total = estimate(tiny("llama")).attrs["total_bytes"]
    free = lambda share: lambda: SimpleNamespace(available=int(total / share))
    monkeypatch.setattr(memory_needs.psutil, "virtual_memory", free(0.89))
    assert estimate(tiny("llama")).attrs["warning"] == ""
    monkeypatch.setattr(memory_needs.psutil, "virtual_memory", free(0.91))
    assert (
        "are needed" in estimate(tiny("llama")).attrs["warning"]
        and "are free" in estimate(tiny("llama")).attrs["warning"]
    )


def test_a_model_of_seven_billion_is_estimated_without_loading_it():
    from transformers import Qwen2Config

    seven = Qwen2Config(
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
        tie_word_embeddings=False,
    )
    table = estimate(seven, load_in_4bit=True, bf16=True)
    assert table.loc["base weights", "formula"].startswith("7,615,616,512 parameters")  # as its model card says: 7.61 B
    assert 5e9 < table.loc["base weights", "bytes"] < 6e9
