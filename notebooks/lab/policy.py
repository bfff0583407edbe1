"""Which model to load, how a chat becomes its prompt, and sampling from it in batches."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab.files import STARTER_POLICY

GPU_MODEL = "unsloth/Qwen2.5-1.5B-Instruct"
GPU_CODER = "unsloth/Qwen2.5-Coder-1.5B-Instruct"
Messages = list[dict[str, str]]


def choose_model(name: str = "auto", on_gpu: str = GPU_MODEL) -> str:
    """The model to load: `auto` is a real instruct model on a CUDA GPU, the starter policy elsewhere."""
    import torch

    if name != "auto":
        return name
    return on_gpu if torch.cuda.is_available() else str(STARTER_POLICY)


def precision() -> dict[str, bool]:
    """GRPOConfig's `bf16`/`fp16` for this machine: bf16 where the card has it, fp16 on a T4 or V100."""
    import torch

    if not torch.cuda.is_available():
        return {"bf16": False, "fp16": False}
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return {"bf16": bf16, "fp16": not bf16}


def read_config(name: str) -> Any:
    """The model's configuration, without its weights."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(name)


def full_precision(full_finetuning: bool) -> dict[str, Any]:
    """What the loader needs so that small steps are not lost when every weight is trained on a CPU.

    A bfloat16 weight has 8 bits: an update below 0.4 % of it is rounded away.
    """
    import torch

    return {"dtype": torch.float32} if full_finetuning and not torch.cuda.is_available() else {}


def sharded() -> bool:
    """Whether accelerate launch has announced that the weights will be split over the cards (FSDP, DeepSpeed)."""
    return any(os.environ.get(f"ACCELERATE_USE_{kind}", "").lower() == "true" for kind in ("FSDP", "DEEPSPEED"))


def load_plain(name: str, load_in_4bit: bool = True, full_finetuning: bool = False) -> tuple[Any, Any]:
    """Model and tokenizer by transformers, in 4 bits (NF4, double quantization) by bitsandbytes.

    Each process takes its own card. Where the weights will be sharded they are not placed at all, and GRPOConfig
    must have been made before: DeepSpeed splits them while they load.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    has = precision()
    half = torch.float32 if full_finetuning else torch.float16  # the fp16 scaler wants 32-bit weights to train
    dtype = torch.bfloat16 if has["bf16"] else half if has["fp16"] else torch.float32
    small = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    card = int(os.environ.get("LOCAL_RANK", "0")) if torch.cuda.is_available() else "cpu"
    place = None if sharded() else {"": card}
    model = AutoModelForCausalLM.from_pretrained(
        name, dtype=dtype, device_map=place, quantization_config=small if load_in_4bit else None
    )
    for module in model.modules():
        # bitsandbytes 0.50 would repack the weights in place at the first forward pass without gradients on a
        # CPU with AVX512-BF16, and the backward pass after that would be wrong
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    tokenizer = AutoTokenizer.from_pretrained(name)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def adapter_in_32_bits(model: Any) -> None:
    """Keeps what is trained in float32; call it when the trainer is made.

    TRL 1.14 casts the adapter of a 4-bit base to bfloat16 there. It has 8 bits for a number: with the learning
    rates of real models nearly every update of a weight is smaller than that and rounded away. Where weights are
    sharded nothing is changed: there the adapter must have the base's type.
    """
    import torch

    for parameter in model.parameters() if not sharded() else ():
        if parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.float()


def supports_system_role(tokenizer: Any) -> bool:
    """Whether the chat template shows a system message to the model (Gemma's raises or drops it)."""
    chat = [{"role": "system", "content": "ZQX"}, {"role": "user", "content": "hello"}]
    try:
        return "ZQX" in tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    except Exception:  # jinja2's TemplateError from raise_exception, or a template that indexes roles
        return False


def fold_system(messages: Messages) -> Messages:
    """The same chat with its system message put in front of the first user message."""
    if not messages or messages[0]["role"] != "system":
        return messages
    system, first, *rest = messages
    return [{"role": first["role"], "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def render(tokenizer: Any, messages: Messages) -> str:
    """The chat as the model sees it: ready for a new assistant turn, or inside one already begun."""
    begun = messages[-1]["role"] == "assistant"
    return tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=not begun, continue_final_message=begun
    )


@dataclass(frozen=True)
class Sampled:
    """One completion: its text, its length in tokens, whether it ended by itself."""

    text: str
    tokens: int
    finished: bool


def sample(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Messages],
    *,
    n: int = 1,
    temperature: float = 1.0,
    max_new_tokens: int = 128,
    batch_size: int = 128,
    seed: int = 0,
    progress: str | None = None,
) -> list[list[Sampled]]:
    """n completions for each prompt, in the prompts' order.

    Args:
        temperature: 0 is greedy decoding (then n must be 1).
        batch_size: completions generated at once.
        progress: text of a progress bar, or None for none.

    Raises:
        ValueError: for n > 1 with greedy decoding, which would give n equal texts.
    """
    import torch
    from tqdm.auto import tqdm

    if n > 1 and not temperature:
        raise ValueError("greedy decoding (temperature=0) gives one completion a prompt: use n=1 or a temperature")
    texts = [render(tokenizer, messages) for messages in prompts]
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))  # similar lengths share a batch: less padding
    step = max(1, batch_size // n)
    found: list[list[Sampled]] = [[] for _ in texts]
    how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {"do_sample": False}
    torch.manual_seed(seed)
    side, tokenizer.padding_side = tokenizer.padding_side, "left"
    model.eval()
    with torch.no_grad(), tqdm(total=len(texts), desc=progress, unit="prompt", disable=not progress) as bar:
        for start in range(0, len(order), step):
            rows = order[start : start + step]
            batch = tokenizer([texts[i] for i in rows], return_tensors="pt", padding=True, add_special_tokens=False)
            batch = {name: values.to(model.device) for name, values in batch.items() if name != "token_type_ids"}
            made = model.generate(
                **batch, **how, num_return_sequences=n, max_new_tokens=max_new_tokens, pad_token_id=tokenizer.pad_token_id
            )
            new = made[:, batch["input_ids"].shape[1] :].tolist()
            for k, ids in enumerate(new):
                found[rows[k // n]].append(cut(ids, tokenizer, model))
            bar.update(len(rows))
    tokenizer.padding_side = side
    return found


def cut(ids: list[int], tokenizer: Any, model: Any) -> Sampled:
    """A generated row without what follows its end-of-turn token."""
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends]) | {tokenizer.eos_token_id}
    at = next((i for i, token in enumerate(ids) if token in ends), None)
    kept = ids if at is None else ids[:at]
    return Sampled(tokenizer.decode(kept, skip_special_tokens=True), len(kept) + (at is not None), at is not None)


class Timer:
    """`with Timer() as t: …` and then `t.seconds`."""

    def __enter__(self) -> Timer:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds = time.perf_counter() - self._start
