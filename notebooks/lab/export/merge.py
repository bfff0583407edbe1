"""The LoRA adapter merged into its dequantized 4-bit base, and models loaded to compare merges with."""

import gc
from pathlib import Path
from typing import Any

import psutil
import torch


def merge_into_dequantised(quantised: Any, adapter: Path, tokenizer: Any, folder: Path) -> None:
    """Writes the adapter merged into the dequantized 4-bit base: the base that it was trained on.

    The sum is formed in 32 bits where the memory allows, and rounded to 16 bits once. `quantised`, which is base and
    adapter as trained, is taken apart.
    """
    from peft import PeftModel

    base = quantised.unload().dequantize()
    dtype, on_gpu, weights = base.dtype, base.device.type == "cuda", sum(weight.numel() for weight in base.parameters())
    free = torch.cuda.mem_get_info(base.device)[0] if on_gpu else psutil.virtual_memory().available
    if 2 * 4 * weights < free:  # twice four bytes
        base = base.float()
    merged = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload().to(dtype)
    merged.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def bytes_in_16_bits(model: Any) -> int:
    """Bytes of a model's weights once they are written in 16 bits; one byte of a 4-bit tensor holds two weights."""
    return sum(2 * tensor.numel() * (2 if hasattr(tensor, "quant_state") else 1) for tensor in model.parameters())


def load_like(name: str | Path, like: Any) -> Any:
    """A model in the precision of another one and on its device, ready to answer."""
    from transformers import AutoModelForCausalLM

    gc.collect()  # a wrapped model refers to itself: its memory is only free after this
    torch.cuda.empty_cache()
    return AutoModelForCausalLM.from_pretrained(str(name), dtype=like.dtype, device_map={"": like.device}).eval()
