"""An estimate of a training's peak memory, from the model's config and the settings."""

from typing import Any

import pandas as pd
import psutil
import torch

from lab.files import Row
from lab.train.settings_check import RunSettings

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FULL_ENOUGH = 0.90  # of the free memory; the rest goes to fragments and to what no formula counts


def memory_estimate(
    model_config: Any, settings: Row, max_prompt_tokens: int, load_in_4bit: bool, lora_rank: int, full_finetuning: bool
) -> pd.DataFrame:
    """What a run on one card needs, by parts: columns `bytes`, `size`, `when`, `formula`.

    `.attrs`: `total_bytes` (the peak: what is always there plus the larger of generating and training, which take
    turns), `free_bytes` now on the card or in this machine's memory, and `warning`, empty where it fits.

    Base, adapter and KV cache are exact for dense models. Activations and logits are estimates for plain TRL, and an
    upper bound for Unsloth, which calculates logits in chunks. vLLM's own share of the card is not counted.
    """
    from transformers import AutoModelForCausalLM

    run, text = RunSettings(settings), model_config.get_text_config()
    width = 2 if run["bf16"] or run["fp16"] else 4  # on a CPU with native bfloat16 Unsloth loads 2 bytes a weight
    held = 4 if full_finetuning else width  # all weights learn: they are kept in 32 bits
    with torch.device("meta"):  # shapes only: a fraction of a second, whatever the model's size
        model = AutoModelForCausalLM.from_config(text)
    base, size = base_bytes(model, load_in_4bit and not full_finetuning, held)
    targets = [one for name, one in linear_layers(model).items() if name.rpartition(".")[2] in TARGETS]
    # rank × (inputs + outputs) of each target (Hu et al. 2021, "LoRA", section 4.1)
    adapter = 0 if full_finetuning else sum(lora_rank * (one.in_features + one.out_features) for one in targets)
    trained, each = (base, held) if full_finetuning else (adapter, 4)  # PEFT and Unsloth keep adapters in 32 bits
    # AdamW keeps two values; in 8 bits two bytes, and two float32 for each 256 values (Dettmers et al. 2021)
    state = 2 * (1 + 4 / 256) if "8bit" in run["optim"] else 2 * each
    batch, answer = run["per_device_train_batch_size"], run["max_completion_length"] or 0
    length, sequences = max_prompt_tokens + answer, batch * run.steps_per_generation
    checkpointing = run["gradient_checkpointing"]
    packed = "4.127 bits in linear layers, else " if size < base * held else ""
    states = f"{trained:,} × ({each} + {state:g}) bytes"
    cache = f"2 × layers × {kv_width(text)} × {width} bytes × {length} tokens × {sequences} sequences"
    kept = f"{batch} × {length} tokens, {'layer inputs' if checkpointing else 'all layers'}, {width} bytes"
    logits = f"values and gradients: 2 × {width} bytes × {batch} × {answer} tokens × {text.vocab_size:,}"
    fixed = 1.0 if torch.cuda.is_available() else 0.3  # a round figure
    rows = [
        ("base weights", size, "always", f"{base:,} parameters, {packed}{held} bytes"),
        ("adapter", 4 * adapter, "always", f"{adapter:,} parameters × 4 bytes"),
        ("reference model", size, "always", f"{base:,} parameters once more, because beta is not 0"),
        ("gradients and optimiser states", round(trained * (each + state)), "always", states),
        ("KV cache while generating", kv_cache_bytes(text, sequences, length, width), "generating", cache),
        ("activations", activation_bytes(text, batch * length, width, checkpointing), "training", kept),
        ("logits", 2 * width * batch * answer * text.vocab_size, "training", logits),
        ("overhead", round(fixed * 1e9), "always", f"assumed {fixed:g} GB for libraries, workspaces and fragments"),
    ]
    frame = pd.DataFrame(rows, columns=["part", "bytes", "when", "formula"]).set_index("part")
    if not (full_finetuning and run["beta"]):  # for the KL term an adapter is switched off: there is no second model
        frame = frame.drop("reference model")
    by_time = frame.groupby("when")["bytes"].sum()
    total = int(by_time["always"] + max(by_time["generating"], by_time["training"]))
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else psutil.virtual_memory().available
    frame.insert(1, "size", frame["bytes"].map(as_size))
    warning = f"about {as_size(total)} are needed and {as_size(free)} are free: "
    warning += "lower per_device_train_batch_size or max_completion_length, or take a smaller model."
    frame.attrs = {"total_bytes": total, "free_bytes": free, "warning": warning if total > FULL_ENOUGH * free else ""}
    return frame


def linear_layers(model: Any) -> dict[str, Any]:
    """By name, all linear layers but the output layer, which neither 4 bits nor the adapter touch."""
    head = model.get_output_embeddings()
    return {name: one for name, one in model.named_modules() if isinstance(one, torch.nn.Linear) and one is not head}


def base_bytes(model: Any, load_in_4bit: bool, width: int) -> tuple[int, int]:
    """Parameters of the base model and their bytes; `width`: bytes of an unquantized weight.

    NF4 with double quantization (Dettmers et al. 2023, "QLoRA", section 3): 4 bits a weight, one byte of scale
    for 64 weights and one float32 for 256 scales, together 4.127 bits. Embeddings, norms and the output layer stay.
    """
    parameters = sum(one.numel() for one in model.parameters())
    packed = sum(one.weight.numel() for one in linear_layers(model).values()) if load_in_4bit else 0
    return parameters, (parameters - packed) * width + packed // 2 + -(-packed // 64) + 4 * -(-packed // (64 * 256))


def kv_cache_bytes(text: Any, sequences: int, tokens: int, width: int) -> int:
    """Bytes of keys and values at the end of a generation (Kwon et al. 2023, "PagedAttention", section 3).

    A layer with a sliding window keeps window − 1 tokens, as transformers' DynamicCache does; a linear-attention or
    recurrent layer keeps no tokens.
    """
    window = getattr(text, "sliding_window", None)
    usual = "sliding_attention" if window else "full_attention"
    kinds = getattr(text, "layer_types", None) or [usual] * text.num_hidden_layers
    kinds = [kind for kind in kinds if kind.endswith("attention") and kind != "linear_attention"]
    kept = [min(tokens, window - 1) if kind == "sliding_attention" else tokens for kind in kinds]
    return 2 * sum(kept) * kv_width(text) * width * sequences


def head_size(text: Any) -> int:
    return getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads


def kv_width(text: Any) -> int:
    """Values that a layer keeps of one token's keys."""
    return (getattr(text, "num_key_value_heads", None) or text.num_attention_heads) * head_size(text)


def activation_bytes(text: Any, tokens: int, width: int, checkpointing: bool) -> int:
    """Bytes kept for the backward pass of `tokens` tokens: an estimate, good to a factor of two.

    Counted as in Korthikanti et al. 2022 ("Reducing Activation Recomputation", section 4.1), for RMS norms, rotated
    queries and keys, attention that keeps no score matrix and a gated MLP. With checkpointing, each layer keeps its
    input, and one layer at a time all of it.
    """
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    inner = max(inner) if isinstance(inner, (list, tuple)) else inner
    layer = 6 * (text.hidden_size + text.num_attention_heads * head_size(text)) + 4 * (kv_width(text) + inner)
    layers = text.num_hidden_layers
    return tokens * width * (layers * text.hidden_size + layer if checkpointing else layers * layer)


def as_size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
