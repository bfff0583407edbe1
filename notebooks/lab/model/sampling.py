"""Completions of a model, in batches, with a seed."""

from __future__ import annotations

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
    return {
        token for token in (*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id) if token is not None
    }


@contextlib.contextmanager
def plain_decoding(model: Any, ends: list[int], tokenizer: Any) -> Iterator[None]:
    """The model without the decoding habits of its `generation_config.json`, which it gets back afterwards.

    transformers fills whatever a call leaves open from there: Qwen2.5's has a repetition penalty of 1.1, with which
    even greedy answers are other ones. TRL samples plainly while training; so is every model sampled here.
    """
    from transformers import GenerationConfig

    plain = GenerationConfig(
        eos_token_id=ends or None, pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id
    )
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
