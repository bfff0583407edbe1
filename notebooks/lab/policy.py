"""Which model to load, how a chat becomes its prompt, and sampling from it in batches."""

from __future__ import annotations

import bisect
import contextlib
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.files import STARTER_POLICY

GPU_MODEL = "unsloth/Qwen2.5-1.5B-Instruct"
GPU_CODER = "unsloth/Qwen2.5-Coder-1.5B-Instruct"
Messages = list[dict[str, str]]


def choose_model(name: str = "auto", on_gpu: str = GPU_MODEL) -> str:
    """The model to load: `auto` is a real instruct model on a CUDA GPU, the starter policy elsewhere; `starter` is that
    policy on any machine."""
    import torch

    if name not in ("auto", "starter"):
        return name
    return on_gpu if name == "auto" and torch.cuda.is_available() else str(STARTER_POLICY)


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


def weight_type(settings: Mapping[str, Any], full_finetuning: bool = False) -> dict[str, Any]:
    """The keywords that Unsloth's loader needs for weights of the type that these settings train in.

    On a card it is said what `bf16` and `fp16` say: Unsloth loads bfloat16 where the card has it, and its trainer
    raises for the other one only after loading. Where every weight is trained they are kept in 32 bits, for which the two
    backends have different words: a bfloat16 weight has 8 bits, and Unsloth trains in it unless told otherwise, so that
    an update below 0.4 % of a weight, nearly every one at full fine-tuning's rates, is rounded away.
    """
    import torch

    if not torch.cuda.is_available():
        return {"dtype": torch.float32} if full_finetuning else {}
    half = {"dtype": half_type(settings)} if half_type(settings) else {}
    return {**half, "float32_mixed_precision": True} if full_finetuning else half


def half_type(settings: Mapping[str, Any]) -> Any:
    """torch's type for `bf16` or `fp16`; None where neither is on."""
    import torch

    return torch.bfloat16 if settings.get("bf16") else torch.float16 if settings.get("fp16") else None


def sharded() -> bool:
    """Whether accelerate launch has announced that the weights will be split over the cards (FSDP, DeepSpeed)."""
    return any(os.environ.get(f"ACCELERATE_USE_{kind}", "").lower() == "true" for kind in ("FSDP", "DEEPSPEED"))


def load_plain(
    name: str, load_in_4bit: bool = True, full_finetuning: bool = False, settings: Mapping[str, Any] | None = None
) -> tuple[Any, Any]:
    """Model and tokenizer by transformers, in 4 bits (NF4, double quantization) by bitsandbytes.

    The weights are of the type that `settings` train in (`bf16`, `fp16`), or that the card has. Each process takes its
    own card. Where the weights will be sharded they are not placed at all, and GRPOConfig must have been made before:
    DeepSpeed splits them while they load.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    # what is trained as a whole stays in 32 bits: see `weight_type`, and the fp16 scaler wants it so
    dtype = None if full_finetuning else half_type(precision() if settings is None else settings)
    dtype = dtype or torch.float32
    small = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    card = int(os.environ.get("LOCAL_RANK", "0")) if torch.cuda.is_available() else "cpu"
    place = None if sharded() else {"": card}
    model = AutoModelForCausalLM.from_pretrained(
        name, dtype=dtype, device_map=place, quantization_config=small if load_in_4bit else None
    )
    as_packed(model)
    tokenizer = AutoTokenizer.from_pretrained(name)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def as_packed(model: Any) -> Any:
    """The 4-bit model with its weights left as they are packed.

    bitsandbytes 0.50 would repack them in place at the first forward pass without gradients on a CPU with
    AVX512-BF16, and the backward pass after that would be wrong.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


def load_plain_adapter(folder: Any, load_in_4bit: bool = True) -> tuple[Any, Any]:
    """A trained adapter on its base, by transformers and PEFT alone, and the tokenizer that was saved with it."""
    from peft import PeftConfig, PeftModel
    from transformers import AutoTokenizer

    base, _ = load_plain(PeftConfig.from_pretrained(str(folder)).base_model_name_or_path, load_in_4bit)
    return PeftModel.from_pretrained(base, str(folder)), AutoTokenizer.from_pretrained(str(folder))


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
    stop: Sequence[str] = (),
    progress: str | None = None,
) -> list[list[Sampled]]:
    """n completions for each prompt, in the prompts' order.

    Args:
        temperature: 0 is greedy decoding (then n must be 1).
        batch_size: completions generated at once.
        stop: texts that end a completion, which keeps the one that it ended at.
        progress: text of a progress bar, or None for none.

    Raises:
        ValueError: for n > 1 with greedy decoding, which would give n equal texts.
    """
    from tqdm.auto import tqdm

    how = {"n": n, "temperature": temperature, "max_new_tokens": max_new_tokens, "batch_size": batch_size}
    how |= {"seed": seed, "stop": stop}
    found: list[list[Sampled]] = [[] for _ in prompts]
    with tqdm(total=len(prompts), desc=progress, unit="prompt", disable=not progress) as bar:
        for rows, groups, _ in sample_batches(model, tokenizer, prompts, **how):
            for i, group in zip(rows, groups):
                found[i] = group
            bar.update(len(rows))
    return found


def sample_batches(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Messages],
    *,
    n: int = 1,
    temperature: float = 1.0,
    max_new_tokens: int = 128,
    batch_size: int = 128,
    seed: int = 0,
    stop: Sequence[str] = (),
    skip: Collection[int] = (),
) -> Iterator[tuple[list[int], list[list[Sampled]], float]]:
    """Batch by batch: the places of its prompts, their groups of n completions, the seconds it took.

    A batch's random numbers follow from the seed and its number alone, so that one gives the same texts whether
    or not those before it were sampled.

    Args:
        skip: numbers of batches (see `batches`) to leave out.
    """
    if n > 1 and not temperature:
        raise ValueError("greedy decoding (temperature=0) gives one completion a prompt: use n=1 or a temperature")
    texts = [render(tokenizer, messages) for messages in prompts]
    how = {"do_sample": True, "temperature": float(temperature), "top_k": 0} if temperature else {"do_sample": False}
    how |= {"num_return_sequences": n, "max_new_tokens": max_new_tokens}
    for number, rows in enumerate(batches(texts, n, batch_size)):
        if number in skip:
            continue
        with Timer() as timer:
            made = generated(model, tokenizer, [texts[i] for i in rows], (seed, number), stop, how)
        yield rows, [made[k : k + n] for k in range(0, len(made), n)], timer.seconds


def batches(texts: Sequence[str], n: int, batch_size: int) -> list[list[int]]:
    """The places of the prompts that are answered at once, n times each; similar lengths together: less padding."""
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    step = max(1, batch_size // n)
    return [order[start : start + step] for start in range(0, len(order), step)]


def generated(
    model: Any, tokenizer: Any, texts: Sequence[str], seed: tuple[int, int], stop: Sequence[str], how: dict[str, Any]
) -> list[Sampled]:
    """The completions of one batch; those of a prompt stand together."""
    import torch

    side, tokenizer.padding_side = tokenizer.padding_side, "left"
    try:
        batch = tokenizer(list(texts), return_tensors="pt", padding=True, add_special_tokens=False)
    finally:
        tokenizer.padding_side = side
    batch = {name: values.to(model.device) for name, values in batch.items() if name != "token_type_ids"}
    ends = end_tokens(model, tokenizer)
    more = {"stop_strings": list(stop), "tokenizer": tokenizer} if stop else {}
    model.eval()
    torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]))
    with torch.no_grad(), plain_decoding(model, sorted(ends), tokenizer):
        made = model.generate(**batch, **how, **more, pad_token_id=tokenizer.pad_token_id)
    new = made[:, batch["input_ids"].shape[1] :].tolist()
    return [cut(ids, tokenizer, ends, stop, how["max_new_tokens"] if stop else 0) for ids in new]


def end_tokens(model: Any, tokenizer: Any) -> set[int]:
    """The tokens that end a turn: those of the model and the tokenizer's own."""
    ends = model.generation_config.eos_token_id
    return {token for token in (*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id) if token is not None}


@contextlib.contextmanager
def plain_decoding(model: Any, ends: list[int], tokenizer: Any) -> Iterator[None]:
    """The model without the decoding habits of its `generation_config.json`, which it gets back afterwards.

    transformers fills whatever a call leaves open from there: Qwen2.5's has a repetition penalty of 1.1, with which
    even greedy answers are other ones. TRL samples plainly while training; so is every model sampled here.
    """
    from transformers import GenerationConfig

    plain = GenerationConfig(eos_token_id=ends or None, pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id)
    owners = {id(one): one for one in (model, model.get_base_model() if hasattr(model, "get_base_model") else model)}
    kept = [(one, one.generation_config) for one in owners.values()]  # PEFT writes the adapter's over the base's
    for one, _ in kept:
        one.generation_config = plain
    try:
        yield
    finally:
        for one, config in kept:
            one.generation_config = config


def cut(ids: list[int], tokenizer: Any, ends: Collection[int], stop: Sequence[str] = (), room: int = 0) -> Sampled:
    """A generated row without what follows its end: an end-of-turn token, or a text that stops it.

    Args:
        room: how many tokens it could have, where texts stop it.
    """
    at = next((i for i, token in enumerate(ids) if token in ends), None)
    kept = ids if at is None else ids[:at]
    while stop and at is None and kept and kept[-1] == tokenizer.pad_token_id:
        kept = kept[:-1]
    stopped = tokens_up_to(kept, tokenizer, stop) if stop else None
    if stopped is not None:
        text = tokenizer.decode(kept[:stopped], skip_special_tokens=True)
        behind = [place + len(one) for one in stop if (place := text.find(one)) >= 0]
        return Sampled(text[: min(behind, default=None)], stopped, True)
    # one that is shorter than it could be was stopped by a text that began in the prompt
    ended = at is not None or len(kept) < room
    return Sampled(tokenizer.decode(kept, skip_special_tokens=True), len(kept) + (at is not None), ended)


def tokens_up_to(ids: list[int], tokenizer: Any, stop: Sequence[str]) -> int | None:
    """How many tokens it takes until one of the texts is there; None where none is."""

    def there(length: int) -> bool:
        text = tokenizer.decode(ids[:length])
        return any(one in text for one in stop)

    if not there(len(ids)):
        return None
    return bisect.bisect_left(range(len(ids) + 1), True, key=there)


class Timer:
    """`with Timer() as t: …` and then `t.seconds`."""

    def __enter__(self) -> Timer:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds = time.perf_counter() - self._start
