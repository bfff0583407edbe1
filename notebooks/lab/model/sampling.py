"""Completions of a model, in batches, with a seed."""

import bisect
import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.model.prompts import Messages, render


@dataclass(frozen=True)
class Sampled:
    """One completion: its text, its length in tokens, whether it ended by itself."""

    text: str
    tokens: int
    finished: bool


def sample(
    model: Any, tokenizer: Any, prompts: Sequence[Messages], *, progress: str | None = None, **decoding: Any
) -> list[list[Sampled]]:
    """n completions for each prompt, in their order; `decoding`: see `sample_batches`; `progress`: text of a bar."""
    from tqdm.auto import tqdm

    groups: list[list[Sampled]] = [[] for _ in prompts]
    with tqdm(total=len(prompts), desc=progress, unit="prompt", disable=not progress) as bar:
        for places, completions, _ in sample_batches(model, tokenizer, prompts, **decoding):
            for place, group in zip(places, completions):
                groups[place] = group
            bar.update(len(places))
    return groups


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

    The random numbers of a batch depend on the seed and its number only, not on the batches before it.

    Args:
        temperature: 0 is greedy decoding (then n must be 1, else ValueError).
        batch_size: completions generated at once.
        stop: texts that end a completion; the completion keeps the one that it ended at.
        skip: numbers of batches (see `batches`) to leave out.
    """
    if n > 1 and not temperature:
        raise ValueError("greedy decoding (temperature=0) gives one completion a prompt: use n=1 or a temperature")
    texts = [render(tokenizer, messages) for messages in prompts]
    options = {"do_sample": bool(temperature), "num_return_sequences": n, "max_new_tokens": max_new_tokens}
    options |= {"temperature": float(temperature), "top_k": 0} if temperature else {}
    for number, places in enumerate(batches(texts, n, batch_size)):
        if number not in skip:
            began = time.perf_counter()
            made = generate_batch(model, tokenizer, [texts[i] for i in places], (seed, number), stop, options)
            seconds = time.perf_counter() - began
            yield places, [made[k : k + n] for k in range(0, len(made), n)], seconds


def batches(texts: Sequence[str], n: int, batch_size: int) -> list[list[int]]:
    """The places of the prompts that are answered at once, n times each; similar lengths together: less padding."""
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    step = max(1, batch_size // n)
    return [order[start : start + step] for start in range(0, len(order), step)]


def generate_batch(
    model: Any, tokenizer: Any, texts: list[str], seed: tuple[int, int], stop: Sequence[str], options: dict[str, Any]
) -> list[Sampled]:
    """The completions of one batch of rendered prompts; those of a prompt stand together. `options`: of `generate`."""
    import torch

    side, tokenizer.padding_side = tokenizer.padding_side, "left"
    try:
        batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    finally:
        tokenizer.padding_side = side
    batch = {name: values.to(model.device) for name, values in batch.items() if name != "token_type_ids"}
    ends = end_tokens(model, tokenizer)
    if stop:
        options = {**options, "stop_strings": list(stop), "tokenizer": tokenizer}
    model.eval()
    torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]))
    with torch.no_grad(), plain_decoding(model, sorted(ends), tokenizer):
        made = model.generate(**batch, **options, pad_token_id=tokenizer.pad_token_id)
    new = made[:, batch["input_ids"].shape[1] :].tolist()
    return [cut_completion(ids, tokenizer, ends, stop, options["max_new_tokens"]) for ids in new]


def end_tokens(model: Any, tokenizer: Any) -> set[int]:
    """The tokens that end a turn: those of the model and the tokenizer's own."""
    ends = model.generation_config.eos_token_id
    return {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None}


@contextlib.contextmanager
def plain_decoding(model: Any, ends: list[int], tokenizer: Any) -> Iterator[None]:
    """The model without the decoding defaults of its `generation_config.json`, which it gets back afterwards.

    transformers takes from there whatever a call leaves open. Qwen2.5's file has a repetition penalty of 1.1, which
    changes even greedy answers. TRL samples without such defaults while training, so we do the same everywhere.
    """
    from transformers import GenerationConfig

    marks = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.bos_token_id}
    plain = GenerationConfig(eos_token_id=ends or None, **marks)
    owners = [model, model.get_base_model() if hasattr(model, "get_base_model") else model]
    kept = {one: one.generation_config for one in owners}  # PEFT writes the adapter's over the base's
    for one in kept:
        one.generation_config = plain
    try:
        yield
    finally:
        for one, config in kept.items():
            one.generation_config = config


def cut_completion(
    ids: list[int], tokenizer: Any, ends: Collection[int], stop: Sequence[str] = (), max_new_tokens: int = 0
) -> Sampled:
    """A generated row without what follows its end: an end-of-turn token, or a text in `stop`."""
    end = next((i for i, token in enumerate(ids) if token in ends), None)
    kept = ids if end is None else ids[:end]
    while stop and end is None and kept and kept[-1] == tokenizer.pad_token_id:
        kept = kept[:-1]

    def stops(length: int) -> bool:
        text = tokenizer.decode(kept[:length])
        return any(one in text for one in stop)

    if stop and stops(len(kept)):
        length = bisect.bisect_left(range(len(kept) + 1), True, key=stops)
        text = tokenizer.decode(kept[:length], skip_special_tokens=True)
        places = [place + len(one) for one in stop if (place := text.find(one)) >= 0]
        return Sampled(text[: min(places, default=None)], length, True)
    # a row shorter than it could be was stopped by a text that began in the prompt
    finished = end is not None or bool(stop) and len(kept) < max_new_tokens
    return Sampled(tokenizer.decode(kept, skip_special_tokens=True), len(kept) + (end is not None), finished)
