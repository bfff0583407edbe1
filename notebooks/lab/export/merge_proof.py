"""A trained model as a folder that others can load, and the proof that it is the trained one.

`Build` puts a new folder together beside the old one and moves it into place when it is whole. `prove` compares what
was trained with what was written: weights, predictions, answers from a fresh process, files. `check` stops where they differ.
"""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lab.export import serving_prompt
from lab.export.merge import ASIDE, MERGE_RATIO, NEEDED, ExportError, read_json_file, sha256
from lab.export.serving_prompt import ServedPrompt
from lab.files import relative
from lab.model.prompts import Messages, render
from lab.model.sampling import end_tokens, plain_decoding

KL_FLOOR = 0.002  # nats a token: rounding to 16 bits alone moved the starter policy by 5e-6, a dropped adapter by 0.05
KL_OF_BASE = 0.05  # of the distance between base and trained model: nearer than that is the trained one
KL_OF_QUANTISING = (
    4.0  # times the distance that quantizing the base makes, where the merge undoes it (1 to 3 were seen)
)
SAME_TOP = 0.95  # share of positions where both put the same token first
SAME_ANSWERS = 0.9  # share of greedy answers that the fresh process must give word for word
UPDATE_KEPT = 0.9  # below that, rounding to 16 bits has swallowed much of a small update: a warning
FRESH = """
import json, sys
for name in ("unsloth", "unsloth_zoo", "peft", "lab", "rewards"):
    sys.modules[name] = None  # importing it fails: this process has nothing but transformers
from transformers import pipeline
asked = json.load(sys.stdin)
generate = pipeline("text-generation", model=asked["folder"], dtype="auto")
tokenizer = generate.tokenizer
ids = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"] for chat in asked["questions"]]
how = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None, "tokenizer": tokenizer}
texts = [generate(chat, max_new_tokens=asked["max_new_tokens"], **how)[0]["generated_text"][-1]["content"] for chat in asked["questions"]]
print("ANSWERS" + json.dumps({"answers": texts, "prompt_ids": ids, "modules": [m for m in ("unsloth", "peft") if sys.modules.get(m)]}))
"""


def read_weights(folder: Path) -> dict[str, Any]:
    """The tensors of a folder's safetensors files, by name. Raises ExportError where a shard is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    try:
        if not index.exists():
            return load_file(folder / "model.safetensors")
        where = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        found = {
            name: tensor for shard in sorted(set(where.values())) for name, tensor in load_file(folder / shard).items()
        }
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ExportError(
            f"The weights in {relative(folder)} cannot be read ({error}): export the model again."
        ) from error
    if found.keys() != where.keys():
        raise ExportError(
            f"The weights in {relative(folder)} are not those of their index: {sorted(found.keys() ^ where.keys())[:3]}."
        )
    return found


def adapter_tensors(adapter: Path) -> dict[str, Any]:
    """The tensors of an adapter by name. Raises ExportError for a missing or damaged file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(adapter / "adapter_model.safetensors")
    except (OSError, SafetensorError) as error:
        raise ExportError(
            f"The adapter in {relative(adapter)} cannot be read ({error}): run notebook 03_train_grpo again, it goes on from the "
            "last checkpoint and writes the adapter anew."
        ) from error


def updates(adapter: Path) -> dict[str, tuple[Any, Any, float]]:
    """{weight's name in the model: (B, A, scale)} of a LoRA adapter: the weight's update is scale · B · A.

    scale is alpha / r, or alpha / √r with rsLoRA (Hu et al. 2021; Kalajdzievski 2023). Raises ExportError for
    adapters that are more than that (DoRA, whole modules, per-layer ranks).
    """
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    if more := [
        name
        for name in ("use_dora", "modules_to_save", "alpha_pattern", "rank_pattern", "fan_in_fan_out")
        if config.get(name)
    ]:
        raise ExportError(f"This adapter has {more[0]}, whose merge is not checked here: compare its answers by hand.")
    tensors = adapter_tensors(adapter)
    rank, alpha = config["r"], config["lora_alpha"]
    scale = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
    found = {}
    for name, a in tensors.items():
        if name.endswith(".lora_A.weight"):
            key = name.removesuffix(".lora_A.weight")
            found[key.removeprefix("base_model.model.") + ".weight"] = (tensors[key + ".lora_B.weight"], a, scale)
    return found


def adapter_proof(adapter: Path, start: Mapping[str, Any] | None) -> dict[str, Any]:
    """Whether the adapter says anything: tensors that are all zero, not finite, or as they were at the run's start.

    Args:
        start: `run/start.json`, or None where the run kept none.
    """
    from lab.model.policy import checksum

    tensors = adapter_tensors(adapter)
    sums = {name: list(checksum(tensor)) for name, tensor in tensors.items()}
    then = {name.replace(".default.", "."): total for name, total in (start or {}).get("learns", {}).items()}
    known = [name for name in sums if name in then]
    return {
        "tensors": len(tensors),
        "all_zero": sum(not tensor.any() for tensor in tensors.values()),
        "not_finite": sum(not tensor.isfinite().all() for tensor in tensors.values()),
        "compared_with_start": len(known),
        "moved_since_start": sum(sums[name] != then[name] for name in known),
        "at_start": len(then),
    }


def base_proof(trained: Any, start: Mapping[str, Any] | None) -> dict[str, int]:
    """Whether the frozen base, loaded again, is what it was when the training began, tensor by tensor."""
    from lab.model.policy import checksum

    frozen = (start or {}).get("frozen", {})
    then = {
        name: total for name, total in frozen.items() if ".lora_" not in name
    }  # TRL's reference adapter is frozen too
    now = {name: list(checksum(tensor)) for name, tensor in trained.named_parameters() if name in then}
    return {
        "at_start": len(then),
        "compared_with_start": len(now),
        "changed": sum(now[name] != then[name] for name in now),
    }


def base_weights(model: Any) -> dict[str, Any]:
    """A base's weights by name, on the CPU; those in 4 bits dequantized as the forward pass does, without an adapter."""
    from bitsandbytes.functional import dequantize_4bit

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    found = {}
    for name, parameter in base.named_parameters(remove_duplicate=False):
        if ".lora_" in name:
            continue
        plain = (
            dequantize_4bit(parameter.data, parameter.quant_state)
            if hasattr(parameter, "quant_state")
            else parameter.data
        )
        found[name.replace(".base_layer.", ".")] = plain.detach().cpu()
    return found


Update = Mapping[str, tuple[Any, Any, float]]


def weights_proof(merged: Mapping[str, Any], base: Mapping[str, Any], update: Update) -> dict[str, Any]:
    """Every tensor of the merged folder against base + scale · B · A, formed here in 32 bits.

    Returns:
        tensors, changed: how many there are, and how many differ from the base.
        stray, missing: names that only one side has (a tied output layer may be left out).
        untouched_changed: tensors without an update that are not the base's, bit by bit.
        worst_rounding: largest |merged - expected| as a multiple of what two roundings to 16 bits explain; at most 1.
        merge_ratio: the merged update projected on our own merge rounded to 16 bits; 1 for the same, 0 for a dropped adapter.
        aside: norm of what the merged update has beside ours, as a share of ours; aside_by_rounding: what rounding leaves.
        update_kept: the same as merge_ratio against the unrounded update: what rounding to 16 bits left of it.
    """
    import torch

    ends = ("lm_head.weight",)
    missing = [name for name in base if name not in merged and name not in ends]
    stray = [name for name in merged if name not in base and name not in ends]
    missing += [name for name in update if name not in merged]
    changed, untouched, worst, dots = 0, 0, 0.0, torch.zeros(6, dtype=torch.float64)
    for name, weight in merged.items():
        if name not in base:
            continue
        old = base[name].to(weight.dtype)
        changed += not torch.equal(weight, old)
        if name not in update:
            untouched += not torch.equal(weight, old)
            continue
        b, a, scale = update[name]
        delta = scale * (b.float() @ a.float())
        plain = base[name].float()
        allowed = torch.finfo(weight.dtype).eps * (plain.abs() + delta.abs() + (plain + delta).abs()) + 1e-30
        worst = max(worst, float(((weight.float() - plain - delta).abs() / allowed).max()))
        ours, theirs = (plain + delta).to(weight.dtype).float() - plain, weight.float() - plain
        products = (
            (theirs, ours),
            (ours, ours),
            (theirs, delta),
            (delta, delta),
            (theirs - ours, theirs - ours),
            (ours - delta, ours - delta),
        )
        dots += torch.stack([(x.double() * y.double()).sum() for x, y in products])
    ratio, kept = ((float(dots[i] / dots[i + 1]) if dots[i + 1] else 0.0) for i in (0, 2))
    aside, rounded = (float((dots[i] / dots[1]).sqrt()) if dots[1] else 0.0 for i in (4, 5))
    return {
        "tensors": len(merged),
        "changed": changed,
        "stray": stray,
        "missing": sorted(set(missing)),
        "untouched_changed": untouched,
        "with_update": len(update),
        "worst_rounding": worst,
        "merge_ratio": ratio,
        "update_kept": kept,
        "aside": aside,
        "aside_by_rounding": rounded,
    }


def trained_weights_proof(merged: Mapping[str, Any], trained: Any, base: Mapping[str, Any]) -> dict[str, Any]:
    """The same where all weights were trained: the folder's against those of the trained model, rounded alike."""
    import torch

    ours = base_weights(trained)
    same = {name: torch.equal(weight, ours[name].to(weight.dtype)) for name, weight in merged.items() if name in ours}
    return {
        "tensors": len(merged),
        "changed": sum(not torch.equal(w, base[n].to(w.dtype)) for n, w in merged.items() if n in base),
        "stray": [name for name in merged if name not in ours and name != "lm_head.weight"],
        "missing": [name for name in ours if name not in merged and name != "lm_head.weight"],
        "untouched_changed": 0,
        "with_update": len(same),
        "worst_rounding": 0.0 if all(same.values()) else math.inf,
        "merge_ratio": sum(same.values()) / max(1, len(same)),
        "update_kept": 1.0,
        "aside": 0.0,
        "aside_by_rounding": 0.0,
    }


@dataclass(frozen=True)
class Sample:
    """What the models are compared on: prompts as token ids, and the trained model's greedy replies to them."""

    prompts: list[list[int]]
    replies: list[list[int]]


def sample_of(tokenizer: Any, chats: Sequence[Messages], replies: Sequence[str]) -> Sample:
    """Raises ExportError for no chats: without positions there is nothing to compare."""
    if not chats:
        raise ExportError("A merge is proved on at least one held-out problem: raise N_EVALUATE and N_PROOF.")

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    return Sample([ids(render(tokenizer, chat)) for chat in chats], [ids(reply) for reply in replies])


def distance(model: Any, other: Any, sample: Sample) -> dict[str, float]:
    """How far `other` predicts from `model` over the replies, position by position.

    Returns:
        logit_max, logit_mean: largest and mean difference of a token's logit.
        kl, kl_max: KL(model ‖ other) of the next token in nats, mean and largest.
        same_top: share of positions where both put the same token first.
        positions: how many there were.
    """
    import torch

    totals = dict.fromkeys(("logit_mean", "kl", "same_top"), 0.0)
    logit_max, kl_max, positions = 0.0, 0.0, 0
    for prompt, reply in zip(sample.prompts, sample.replies, strict=True):
        one, two = (_logits(each, prompt, reply) for each in (model, other))
        apart, p, q = (one - two).abs(), one.log_softmax(-1), two.log_softmax(-1)
        kl = (p.exp() * (p - q)).sum(-1).clamp(min=0)
        totals["logit_mean"] += float(apart.mean(-1).sum())
        totals["kl"] += float(kl.sum())
        totals["same_top"] += int((one.argmax(-1) == two.argmax(-1)).sum())
        logit_max, kl_max = max(logit_max, float(apart.max())), max(kl_max, float(kl.max()))
        positions += len(one)
        del one, two
    torch.cuda.empty_cache() if torch.cuda.is_available() else None
    means = {name: value / positions for name, value in totals.items()}
    return {"logit_max": logit_max, "kl_max": kl_max, "positions": positions, **means}


def _logits(model: Any, prompt: list[int], reply: list[int]) -> Any:
    """Logits at the places that predict the reply's tokens and its end, in 32 bits on the CPU: (len(reply) + 1, vocabulary)."""
    import torch

    with torch.inference_mode():
        found = model(input_ids=torch.tensor([[*prompt, *reply]], device=model.device), use_cache=False).logits
    return found[0, len(prompt) - 1 :].float().cpu()


def without_adapter(model: Any) -> Any:
    """A context in which the trained model predicts as its base."""
    import contextlib

    return model.disable_adapter() if hasattr(model, "disable_adapter") else contextlib.nullcontext()


class AsBase:
    """The trained model as its base: for `distance`."""

    def __init__(self, model: Any) -> None:
        self.model, self.device = model, model.device

    def __call__(self, **inputs: Any) -> Any:
        with without_adapter(self.model):
            return self.model(**inputs)


def distance_table(found: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Distances from the trained model as a person reads them, a line a model."""
    columns = {
        "kl": "mean KL, nats",
        "kl_max": "largest KL",
        "logit_mean": "mean logit difference",
        "logit_max": "largest",
    }
    table = pd.DataFrame(
        {name: {label: f"{one[key]:.2g}" for key, label in columns.items()} for name, one in found.items()}
    ).T
    table["same token first"] = [f"{100 * one['same_top']:.1f} %" for one in found.values()]
    table["positions"] = [f"{one['positions']:,}" for one in found.values()]
    return table.rename_axis("from the trained model to")


def choose(distances: Mapping[str, Mapping[str, float]]) -> tuple[str, str]:
    """The candidate whose predictions lie nearest to the trained model's, and why in a sentence."""
    ranked = sorted(distances, key=lambda name: (math.isnan(distances[name]["kl"]), distances[name]["kl"]))
    best, *rest = ranked
    if not rest:
        return best, f"merged into the {best}: there was no other candidate."
    a, b = (distances[name]["kl"] for name in (best, rest[0]))
    times = f", {b / a:.3g} times as far" if a > 0 else ""
    return best, (
        f"merged into the {best}: its predictions lie {a:.2g} nats a token from the trained model's (mean KL), "
        f"those of the merge into the {rest[0]} {b:.2g}{times}."
    )


def by_hand(name: str, distances: Mapping[str, Any]) -> tuple[str, str]:
    """A candidate that a person chose. Raises ExportError for one that was not made."""
    if name not in distances:
        raise ExportError(f'MERGE_INTO is {name!r}; there are: {", ".join(map(repr, distances))}, and "auto".')
    return (
        name,
        f"merged into the {name}: chosen by hand (mean KL from the trained model {distances[name]['kl']:.2g} nats a token).",
    )


def start_of(run: Path) -> dict[str, Any] | None:
    """The checksums from before a run's first step; None for a run that kept none."""
    return read_json_file(run / "start.json") or None


def identity(model: Path | str) -> str:
    """What tells a model's weights from any others: a hash of its files, or the commit of a model on the Hub."""
    from transformers import AutoConfig

    folder = Path(model)
    if folder.is_dir():
        files = [
            path
            for path in sorted(folder.iterdir())
            if path.suffix == ".safetensors" or path.name.endswith("config.json")
        ]
        return hashlib.sha256("".join(path.name + sha256(path) for path in files).encode()).hexdigest()
    return f"{model}@{getattr(AutoConfig.from_pretrained(str(model)), '_commit_hash', None)}"


def answer_in_fresh_process(folder: Path, questions: Sequence[Messages], max_new_tokens: int) -> dict[str, Any]:
    """Greedy answers of a plain `transformers.pipeline` in a Python that cannot import Unsloth, PEFT or our code.

    Returns `answers`, and `prompt_ids` as the folder's own chat template makes them. Raises ExportError.
    """
    asked = {"folder": str(Path(folder).resolve()), "questions": list(questions), "max_new_tokens": max_new_tokens}
    command = [sys.executable, "-P", "-c", FRESH]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, cwd=folder)
    line = next((line for line in done.stdout.splitlines() if line.startswith("ANSWERS")), None)
    if done.returncode or line is None:
        raise ExportError(f"{relative(folder)} could not be loaded with plain transformers:\n{done.stderr[-2000:]}")
    return json.loads(line.removeprefix("ANSWERS"))


def files_of(folder: Path) -> list[dict[str, Any]]:
    """Each file with its size in bytes and its SHA-256."""
    return [
        {"file": str(path.relative_to(folder)), "bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


def missing_files(folder: Path) -> list[str]:
    """What a loader, a server or a converter will look for in the folder and not find."""
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    if not list(folder.glob("model*.safetensors")):
        missing.append("model.safetensors")
    index = folder / "model.safetensors.index.json"
    if index.exists():
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        missing += sorted(shard for shard in shards if not (folder / shard).is_file())
    if not (folder / "chat_template.jinja").is_file() and "chat_template" not in read_json_file(
        folder / "tokenizer_config.json"
    ):
        missing.append("chat_template.jinja")
    return missing


def tying(folder_or_config: Any) -> bool | None:
    """Whether a model's output layer is its embedding: by its configuration."""
    config = (
        folder_or_config
        if isinstance(folder_or_config, dict)
        else read_json_file(Path(folder_or_config) / "config.json")
    )
    return config.get("tie_word_embeddings", (config.get("text_config") or {}).get("tie_word_embeddings"))


def untied(weights: Mapping[str, Any], tied: bool | None) -> bool:
    """Whether the files contradict the tying: an output layer of its own beside a tied embedding, or none beside an untied one."""
    import torch

    head = weights.get("lm_head.weight")
    embedding = next((tensor for name, tensor in weights.items() if name.endswith("embed_tokens.weight")), None)
    if not tied:
        return head is None and embedding is not None
    return head is not None and embedding is not None and not torch.equal(head, embedding)


def prove(
    folder: Path,
    trained: Any,
    tokenizer: Any,
    base: Mapping[str, Any],
    base_config: Mapping[str, Any],
    adapter: Path | None,
    *,
    chats: Sequence[Messages],
    replies: Sequence[str],
    manner: ServedPrompt,
    start: Mapping[str, Any] | None = None,
    quantising: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Everything that is compared between a merged folder and the model that was trained; `check` judges it.

    Args:
        trained: the model as it was trained (a 4-bit base with its adapter, or all weights).
        base: the weights that the adapter was merged into, by name; without an adapter, those before training.
        base_config: the base's configuration.
        adapter: its folder; None where all weights were trained.
        chats: held-out prompts as in training; the fresh process is asked them as a user of the folder would.
        replies: the trained model's greedy answers to them.
        start: `run/start.json`.
        quantising: `distance` of the 4-bit base from its 16-bit original, where the merge went into the latter.
    """
    import torch
    from transformers import AutoModelForCausalLM

    weights, sample = read_weights(folder), sample_of(tokenizer, chats, replies)
    place = {"dtype": "auto", "device_map": {"": trained.device}}
    merged = AutoModelForCausalLM.from_pretrained(folder, **place).eval()
    ours = greedy(merged, tokenizer, sample.prompts, manner, end_tokens(trained, tokenizer))
    fresh = answer_in_fresh_process(folder, [manner.question(chat) for chat in chats], manner.max_new_tokens)
    tied, begun = tying(dict(base_config)), serving_prompt.begun(tokenizer, manner.prefill)
    with torch.inference_mode():
        from_base = distance(trained, AsBase(trained), sample) if adapter else None
        apart = distance(trained, merged, sample)
    return {
        "adapter": adapter_proof(adapter, start) if adapter else None,
        "base": base_proof(trained, start) if adapter else None,
        "weights": weights_proof(weights, base, updates(adapter))
        if adapter
        else trained_weights_proof(weights, trained, base),
        "tied": {"base": tied, "merged": tying(folder), "contradicted": untied(weights, tied)},
        "decoding": other_decoding(folder, serving_prompt.generation_config(trained, tokenizer, manner)),
        "trained_against_merged": apart,
        "trained_against_base": from_base,
        "quantising": dict(quantising) if quantising else None,
        "greedy_as_trained": _share(ours, replies),
        "fresh_process": {
            "n": len(chats),
            "same_answers": _share(fresh["answers"], [begun + text for text in ours]),
            "had": fresh["modules"],
            "same_prompts": _share(fresh["prompt_ids"], sample.prompts),
            "first_answer": fresh["answers"][0],
        },
        "missing_files": missing_files(folder),
        "files": files_of(folder),
    }


def other_decoding(folder: Path, wanted: Mapping[str, Any]) -> list[str]:
    """Fields of the folder's generation config that decode otherwise than in training and evaluation."""
    found = {
        name: value
        for name, value in read_json_file(folder / "generation_config.json").items()
        if not name.startswith(("_", "transformers"))
    }
    idle = (None, False, "dynamic", "1.0")  # what says nothing: unset, off
    names = (
        name for name in {**found, **wanted} if name not in ("use_cache", "output_attentions", "output_hidden_states")
    )
    return sorted(
        name
        for name in names
        if found.get(name) != wanted.get(name) and not (found.get(name) in idle and wanted.get(name) in idle)
    )


def _share(found: Sequence, wanted: Sequence) -> float:
    return sum(one == other for one, other in zip(found, wanted, strict=True)) / len(wanted)


def greedy(model: Any, tokenizer: Any, prompts: Sequence[list[int]], manner: ServedPrompt, ends: set[int]) -> list[str]:
    """Greedy answers to token ids, one prompt at a time as a pipeline does, decoded as in training and evaluation.

    Whatever the model's own generation config says: that is what its folder is compared with.
    """
    import torch

    found, stop = [], {"stop_strings": list(manner.stop), "tokenizer": tokenizer} if manner.stop else {}
    for ids in prompts:
        inputs = torch.tensor([ids], device=model.device)
        how = {
            "input_ids": inputs,
            "attention_mask": torch.ones_like(inputs),
            "max_new_tokens": manner.max_new_tokens,
            **stop,
        }
        with torch.inference_mode(), plain_decoding(model, sorted(ends), tokenizer):
            made = model.generate(**how, do_sample=False)
        found.append(tokenizer.decode(made[0, len(ids) :], skip_special_tokens=True))
    return found


def greedy_answers(model: Any, tokenizer: Any, chats: Sequence[Messages], manner: ServedPrompt) -> list[str]:
    """What a merged model must answer to held-out prompts, the begun part included, one at a time as a server does.

    Args:
        tokenizer: with the chat template of the training.
    """
    prompts = [tokenizer(render(tokenizer, chat), add_special_tokens=False)["input_ids"] for chat in chats]
    begun, ends = serving_prompt.begun(tokenizer, manner.prefill), end_tokens(model, tokenizer)
    return [begun + text for text in greedy(model, tokenizer, prompts, manner, ends)]


def kl_limit(proof: Mapping[str, Any]) -> float:
    """The largest mean KL at which the merged model still counts as the trained one, in nats a token.

    A floor for rounding, a twentieth of the way between base and trained model, and where the merge went into the
    16-bit original of a 4-bit base four times what the quantizing itself moves.
    """
    from_base = (proof["trained_against_base"] or {}).get("kl", 0.0)
    quantising = (proof["quantising"] or {}).get("kl", 0.0)
    return max(KL_FLOOR, KL_OF_BASE * from_base, KL_OF_QUANTISING * quantising)


def verdicts(proof: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One line a check: `check`, what was `found`, the `limit`, whether it is `ok`, and `wrong`: what a failure means."""
    weights, apart, fresh, tied = (
        proof["weights"],
        proof["trained_against_merged"],
        proof["fresh_process"],
        proof["tied"],
    )
    lines: list[tuple[str, str, str, bool, str]] = []
    if adapter := proof["adapter"]:
        dead, known = adapter["all_zero"] + adapter["not_finite"], adapter["compared_with_start"]
        lines.append(
            (
                "adapter tensors that are zero or not finite",
                f"{dead} of {adapter['tensors']}",
                "0",
                dead == 0,
                "the adapter was not trained, or broke: look at the run's curves",
            )
        )
        if adapter["at_start"]:
            moved = adapter["moved_since_start"]
            # half of them: A has no gradient until B is no longer zero, so that the first step moves B alone
            lines.append(
                (
                    "adapter tensors that moved since the start",
                    f"{moved} of {adapter['at_start']}",
                    f"at least {adapter['at_start'] // 2}",
                    known == adapter["at_start"] == adapter["tensors"] and 2 * moved >= known,
                    "part of the adapter was not trained: no gradient reached it",
                )
            )
    if (base := proof["base"]) and base["at_start"]:
        lost = base["at_start"] - base["compared_with_start"]
        lines.append(
            (
                "base tensors changed or missing since the start",
                f"{base['changed'] + lost} of {base['at_start']}",
                "0",
                base["changed"] + lost == 0,
                "this is not the base that the adapter was trained on",
            )
        )
    lines += [
        (
            "weight tensors that differ from the base",
            f"{weights['changed']} of {weights['tensors']}",
            "at least 1",
            weights["changed"] > 0,
            "the merged model equals the base: the adapter was dropped",
        ),
        (
            "weights without an update that changed",
            str(weights["untouched_changed"]),
            "0",
            weights["untouched_changed"] == 0,
            "the merge changed weights that were not trained",
        ),
        (
            "weights missing or stray",
            str(len(weights["missing"]) + len(weights["stray"])),
            "0",
            not weights["missing"] and not weights["stray"],
            f"the folder lacks weights or has others: {[*weights['missing'], *weights['stray']][:2]}",
        ),
        (
            "largest error, in roundings to 16 bits",
            f"{weights['worst_rounding']:.2g}",
            "1",
            weights["worst_rounding"] <= 1,
            "the merged weights are not base + scale · B · A: another base or another scale",
        ),
        (
            "merged update / our own merge of it",
            f"{weights['merge_ratio']:.3f}",
            f"1 ± {MERGE_RATIO:g}",
            abs(weights["merge_ratio"] - 1) <= MERGE_RATIO,
            "the adapter was merged with another scale (alpha), or not at all",
        ),
        (
            "merged update beside ours, share of its norm",
            f"{weights['aside']:.2g}",
            f"{ASIDE + 1.5 * weights['aside_by_rounding']:.2g}",
            weights["aside"] <= ASIDE + 1.5 * weights["aside_by_rounding"],
            "the merged weights have something beside base and update",
        ),
        (
            "output layer tied to the embedding",
            _tie_words(tied),
            _tie_words({"merged": tied["base"], "contradicted": False}),
            tied["merged"] == tied["base"] and not tied["contradicted"],
            "tied embeddings were untied, or the other way round",
        ),
        (
            "mean KL from the trained model, nats a token",
            f"{apart['kl']:.2g}",
            f"{kl_limit(proof):.2g}",
            apart["kl"] <= kl_limit(proof),
            "the merged model does not predict as the trained one",
        ),
        (
            "same token first",
            f"{100 * apart['same_top']:.1f} %",
            f"{100 * SAME_TOP:.0f} %",
            apart["same_top"] >= SAME_TOP,
            "the merged model does not answer as the trained one",
        ),
        (
            "fresh process: prompts tokenized as in training",
            f"{100 * fresh['same_prompts']:.0f} %",
            "100 %",
            fresh["same_prompts"] == 1,
            "tokenizer or chat template are not those of the training: what is served is not what was evaluated",
        ),
        (
            "fresh process: same greedy answers",
            f"{100 * fresh['same_answers']:.0f} %",
            f"{100 * SAME_ANSWERS:.0f} %",
            fresh["same_answers"] >= SAME_ANSWERS,
            "loaded without Unsloth and PEFT the folder answers otherwise",
        ),
        (
            "settings of decoding that are not the training's",
            str(len(proof["decoding"])),
            "0",
            not proof["decoding"],
            f"the folder's generation config decodes otherwise: {proof['decoding']}",
        ),
        (
            "files missing",
            str(len(proof["missing_files"])),
            "0",
            not proof["missing_files"],
            f"not there: {proof['missing_files']}",
        ),
    ]
    return [dict(zip(("check", "found", "limit", "ok", "wrong"), line)) for line in lines]


def _tie_words(tied: Mapping[str, Any]) -> str:
    return "contradicted" if tied["contradicted"] else "yes" if tied["merged"] else "no"


def proof_table(proof: Mapping[str, Any]) -> pd.DataFrame:
    """The verdicts as a person reads them."""
    rows = [{**line, "ok": "yes" if line["ok"] else "NO"} for line in verdicts(proof)]
    return pd.DataFrame(rows)[["check", "found", "limit", "ok"]]


def warnings(proof: Mapping[str, Any]) -> list[str]:
    """What does not make the merge wrong, and is worth knowing."""
    kept, agree = proof["weights"]["update_kept"], proof["greedy_as_trained"]
    found = []
    if proof["adapter"] and not proof["adapter"]["at_start"]:
        found.append(
            "The run kept no start.json: whether adapter and base are those of the training's start was not checked."
        )
    if proof["adapter"] and (proof["trained_against_base"] or {}).get("kl", math.inf) <= kl_limit(proof):
        found.append(
            "The trained model predicts nearly as its base, so that predictions cannot tell them apart: the weights do."
        )
    if kept < UPDATE_KEPT:
        found.append(
            f"Rounding to 16 bits kept {100 * kept:.0f} % of the update: it is small beside the weights. Ship the adapter too."
        )
    if agree < 1:
        found.append(
            f"{100 * agree:.0f} % of the trained model's greedy answers come out word for word: a close call can fall the other way."
        )
    return found


def prove_or_refuse(proof: Mapping[str, Any]) -> None:
    """Raises ExportError where the proof shows a folder that is not the trained model, with every reason."""
    failed = [line for line in verdicts(proof) if not line["ok"]]
    if failed:
        reasons = "\n".join(
            f"- {line['check']}: {line['found']} (limit {line['limit']}): {line['wrong']}" for line in failed
        )
        raise ExportError(
            f"The merged folder is not the trained model:\n{reasons}\nIt was not put in place; an earlier model is as it was."
        )
