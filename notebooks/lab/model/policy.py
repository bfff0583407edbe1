"""Which model to load, in which number type, and loading it without Unsloth."""

import os
from collections.abc import Mapping
from typing import Any

import torch

from lab.files import STARTER_POLICY

GPU_MODEL = "unsloth/Qwen2.5-1.5B-Instruct"
GPU_CODER = "unsloth/Qwen2.5-Coder-1.5B-Instruct"


def choose_model(name: str = "auto", on_gpu: str = GPU_MODEL) -> str:
    """The model to load: `auto` is a real one on a CUDA GPU, else the starter policy (`starter`); other names stay."""
    if name not in ("auto", "starter"):
        return name
    return on_gpu if name == "auto" and torch.cuda.is_available() else str(STARTER_POLICY)


def precision() -> dict[str, bool]:
    """GRPOConfig's `bf16`/`fp16` for this machine: bf16 where the card has it, fp16 on a T4 or V100."""
    if not torch.cuda.is_available():
        return {"bf16": False, "fp16": False}
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return {"bf16": bf16, "fp16": not bf16}


def half_type(settings: Mapping[str, Any]) -> Any:
    """torch's type for `bf16` or `fp16`; None where neither is on."""
    return torch.bfloat16 if settings.get("bf16") else torch.float16 if settings.get("fp16") else None


def weight_type(settings: Mapping[str, Any], full_finetuning: bool = False) -> dict[str, Any]:
    """The keywords that make Unsloth's loader load weights of the type that these settings train in.

    Its trainer would raise for fp16 settings only after loading. Where every weight is trained, they are kept in 32
    bits: a bfloat16 weight has 8 bits, so that an update below 0.4 % of it, as nearly all are, is rounded away.
    """
    if not torch.cuda.is_available():
        return {"dtype": torch.float32} if full_finetuning else {}
    half = {"dtype": half_type(settings)} if half_type(settings) else {}
    return {**half, "float32_mixed_precision": True} if full_finetuning else half


def sharded() -> bool:
    """Whether accelerate launch has announced that the weights will be split over the cards (FSDP, DeepSpeed)."""
    return any(os.environ.get(f"ACCELERATE_USE_{kind}", "").lower() == "true" for kind in ("FSDP", "DEEPSPEED"))


def load_plain(
    name: str, load_in_4bit: bool = True, full_finetuning: bool = False, settings: Mapping[str, Any] | None = None
) -> tuple[Any, Any]:
    """Model and tokenizer by transformers, in 4 bits (NF4, double quantization) by bitsandbytes.

    The weights have the type that `settings` train in (`bf16`, `fp16`), or that the card has. Each process takes its
    own card. Weights that will be sharded are not placed; make GRPOConfig before, DeepSpeed splits them while they load.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    # weights that are all trained stay in 32 bits: see `weight_type`, and the scaler of fp16 needs it
    dtype = None if full_finetuning else half_type(precision() if settings is None else settings)
    dtype = dtype or torch.float32
    card = int(os.environ.get("LOCAL_RANK", "0")) if torch.cuda.is_available() else "cpu"
    how = {"dtype": dtype, "device_map": None if sharded() else {"": card}}
    if load_in_4bit:
        nf4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": dtype}
        how["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, **nf4)
    model = AutoModelForCausalLM.from_pretrained(name, **how)
    tokenizer = AutoTokenizer.from_pretrained(name)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return keep_packed(model), tokenizer


def load_plain_adapter(folder: Any, load_in_4bit: bool = True) -> tuple[Any, Any]:
    """A trained adapter on its base, by transformers and PEFT alone, and the tokenizer that was saved with it."""
    from peft import PeftConfig, PeftModel
    from transformers import AutoTokenizer

    base, _ = load_plain(PeftConfig.from_pretrained(str(folder)).base_model_name_or_path, load_in_4bit)
    return PeftModel.from_pretrained(base, str(folder)), AutoTokenizer.from_pretrained(str(folder))


def keep_packed(model: Any) -> Any:
    """The 4-bit model with its weights left as they are packed.

    On a CPU with AVX512-BF16, bitsandbytes 0.50 repacks them in place at the first forward pass without gradients. The
    backward pass after that is wrong.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


def adapter_in_32_bits(model: Any) -> None:
    """Puts what is trained back into float32; call it when the trainer is made.

    TRL 1.14 casts the adapter of a 4-bit base to bfloat16, which rounds nearly every update away (see `weight_type`).
    Sharded weights stay: their adapter must have the base's type.
    """
    for parameter in model.parameters() if not sharded() else ():
        if parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.float()


def checksum(tensor: Any) -> tuple[int, int]:
    """Two sums over a tensor's bytes, the second sensitive to their places."""
    plain, placed = 0, 0
    for part in tensor.detach().contiguous().view(-1).view(torch.uint8).split(1 << 22):  # 8 bytes for each at a time
        part = part.to(torch.int64)
        places = torch.arange(len(part), device=part.device) % 65_521  # a prime: no period of a weight's bytes fits it
        plain, placed = plain + int(part.sum()), placed + int((part * places).sum())
    return plain, placed
