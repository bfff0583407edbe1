"""An estimate of a training's peak memory, from the model's config and the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lab.train.settings_check import Case, plain

TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FULL_ENOUGH = 0.90  # of the free memory; the rest goes to fragments and to what no formula counts
ALWAYS, GENERATING, TRAINING = "always", "generating", "training"


def skeleton(model_config: Any) -> Any:
    """The model without its weights: shapes only, whatever its size, in a fraction of a second."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(model_config.get_text_config())


def linear_layers(model: Any) -> dict[str, Any]:
    """By name, all linear layers but the output layer, which neither 4 bits nor the adapter touch."""
    import torch

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


def lora_parameters(model: Any, rank: int, targets: Sequence[str] = TARGET_MODULES) -> int:
    """Parameters of a LoRA adapter: rank × (inputs + outputs) for each target (Hu et al. 2021, section 4.1)."""
    layers = (one for name, one in linear_layers(model).items() if name.rpartition(".")[2] in targets)
    return sum(rank * (one.in_features + one.out_features) for one in layers)


def kv_cache_bytes(model_config: Any, sequences: int, tokens: int, width: int) -> int:
    """Bytes of keys and values at the end of a generation.

    2 × layers × kv_heads × head_dim × width × tokens × sequences (Kwon et al. 2023, "PagedAttention", section 3). A
    layer with a sliding window keeps window − 1 tokens, as transformers' DynamicCache does; a linear-attention or
    recurrent layer keeps no tokens.
    """
    text = model_config.get_text_config()
    window = getattr(text, "sliding_window", None)
    usual = "sliding_attention" if window else "full_attention"
    kinds = getattr(text, "layer_types", None) or [usual] * text.num_hidden_layers
    kinds = [kind for kind in kinds if kind.endswith("attention") and kind != "linear_attention"]
    kept = [min(tokens, window - 1) if kind == "sliding_attention" else tokens for kind in kinds]
    return 2 * sum(kept) * kv_width(text) * width * sequences


def kv_width(text: Any) -> int:
    return (getattr(text, "num_key_value_heads", None) or text.num_attention_heads) * head_size(text)


def head_size(text: Any) -> int:
    return getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads


def activation_bytes(model_config: Any, tokens: int, width: int, checkpointing: bool) -> int:
    """Bytes kept for the backward pass of `tokens` tokens: an estimate, good to a factor of two.

    Counted as in Korthikanti et al. 2022 ("Reducing Activation Recomputation", section 4.1), for RMS norms, rotated
    queries and keys, attention that keeps no score matrix and a gated MLP: in a layer, a token keeps
    6·hidden + 6·queries + 4·kv + 4·intermediate values. (Compared with what torch saves in tiny Llama, Qwen2 and
    Gemma 3 models: 0.9 of it in 32 bits, 0.5 for Gemma's extra norms in 16 bits.) With checkpointing, each layer
    keeps its input, and one layer at a time all of it.
    """
    text = model_config.get_text_config()
    queries = text.num_attention_heads * head_size(text)
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    inner = max(inner) if isinstance(inner, (list, tuple)) else inner
    layer = 6 * (text.hidden_size + queries) + 4 * (kv_width(text) + inner)
    layers = text.num_hidden_layers
    return tokens * width * (layers * text.hidden_size + layer if checkpointing else layers * layer)


def state_bytes(optim: str, width: int) -> float:
    """An optimiser's bytes for one trained parameter of `width` bytes: AdamW keeps two values, in 8 bits two bytes.

    (Dettmers et al. 2021, "8-bit Optimizers via Block-wise Quantization": and two float32 for 256 values.)
    """
    if "8bit" in optim:
        return (1 if "lion" in optim else 2) * (1 + 4 / 256)
    return 0 if optim in ("sgd", "adafactor") else width if "lion" in optim else 2 * width


def memory_estimate(
    model_config: Any,
    *,
    settings: Mapping[str, Any],
    max_prompt_tokens: int,
    load_in_4bit: bool = True,
    lora_rank: int = 16,
    full_finetuning: bool = False,
    target_modules: Sequence[str] = TARGET_MODULES,
) -> pd.DataFrame:
    """What a run on one card needs, by parts: columns `bytes`, `size`, `when`, `formula`.

    The peak is what is always there plus the larger of generating and training, which take turns.
    `.attrs`: `total_bytes` (that peak), `free_bytes` of this machine, and `warning`, empty where it fits. Base,
    adapter and KV cache are exact for dense models; activations and logits are estimates for plain TRL, an upper
    bound for Unsloth, which calculates logits in chunks. vLLM takes its own share at the start and is not counted.
    Without bf16 and fp16 a weight counts 4 bytes; on a CPU with native bfloat16 Unsloth loads it in 2.
    """
    case = Case(settings)
    width = 2 if case["bf16"] or case["fp16"] else 4
    held = 4 if full_finetuning else width  # all weights learn: they are kept in 32 bits
    model = skeleton(model_config)
    base, size = base_bytes(model, load_in_4bit and not full_finetuning, held)
    adapter = 0 if full_finetuning else lora_parameters(model, lora_rank, target_modules)
    trained, each = (base, held) if full_finetuning else (adapter, 4)  # PEFT and Unsloth keep adapters in 32 bits
    state = state_bytes(str(plain(case["optim"])), each)
    packed = "4.127 bits in linear layers, else " if size < base * held else ""
    learning = f"{trained:,} × ({each} + {state:g}) bytes"
    rows = [
        ("base weights", size, ALWAYS, f"{base:,} parameters, {packed}{held} bytes"),
        ("adapter", 4 * adapter, ALWAYS, f"{adapter:,} parameters × 4 bytes"),
        *reference_row(case, full_finetuning, base, size),
        ("gradients and optimiser states", round(trained * (each + state)), ALWAYS, learning),
        *passing_rows(case, model_config, max_prompt_tokens, width),
        overhead_row(),
    ]
    return with_total(pd.DataFrame(rows, columns=["part", "bytes", "when", "formula"]).set_index("part"))


def reference_row(case: Case, full_finetuning: bool, base: int, size: int) -> list[tuple]:
    """The KL term's second model; an adapter needs none, it is switched off for the reference."""
    if not full_finetuning or not case["beta"]:
        return []
    return [("reference model", size, ALWAYS, f"{base:,} parameters once more, because beta is not 0")]


def passing_rows(case: Case, model_config: Any, max_prompt_tokens: int, width: int) -> list[tuple]:
    """KV cache, activations and logits: what comes and goes with each step."""
    batch, answer = case["per_device_train_batch_size"], case["max_completion_length"] or 0
    length, sequences = max_prompt_tokens + answer, batch * case.steps_per_generation
    cache = kv_cache_bytes(model_config, sequences, length, width)
    checkpointing, text = bool(case["gradient_checkpointing"]), model_config.get_text_config()
    kept = activation_bytes(model_config, batch * length, width, checkpointing)
    return [
        (
            "KV cache while generating",
            cache,
            GENERATING,
            f"2 × layers × {kv_width(text)} × {width} bytes × {length} tokens × {sequences} sequences",
        ),
        (
            "activations",
            kept,
            TRAINING,
            f"{batch} × {length} tokens, {'layer inputs' if checkpointing else 'all layers'}, {width} bytes",
        ),
        (
            "logits",
            2 * width * batch * answer * text.vocab_size,
            TRAINING,
            f"values and gradients: 2 × {width} bytes × {batch} × {answer} tokens × {text.vocab_size:,}",
        ),
    ]


def overhead_row() -> tuple:
    """A round figure: CUDA's context, cuBLAS workspaces and fragments, or torch's buffers on a CPU."""
    import torch

    size = 1.0 if torch.cuda.is_available() else 0.3
    return ("overhead", round(size * 1e9), ALWAYS, f"assumed {size:g} GB for libraries, workspaces and fragments")


def with_total(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with sizes to read, the total, and the comparison with what is free."""
    by_time = frame.groupby("when")["bytes"].sum()
    total = int(by_time[ALWAYS] + max(by_time[GENERATING], by_time[TRAINING]))
    free = free_bytes()
    frame.insert(1, "size", frame["bytes"].map(as_size))
    warning = (
        f"about {as_size(total)} are needed and {as_size(free)} are free: lower per_device_train_batch_size or "
        "max_completion_length, or take a smaller model."
    )
    frame.attrs = {"total_bytes": total, "free_bytes": free, "warning": warning if total > FULL_ENOUGH * free else ""}
    return frame


def as_size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def free_bytes() -> int:
    """Bytes free now on the CUDA card, or of this machine's memory."""
    import psutil
    import torch

    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else psutil.virtual_memory().available
