"""The weights of adapter, base and merged folder, compared tensor by tensor."""

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from lab.export.model_folder import ExportError, read_json_or_empty
from lab.files import relative
from lab.model.policy import checksum

HEAD = "lm_head.weight"  # left out of the files where it is the embedding
ADAPTER = ("adapter_model.safetensors", "03_train_grpo")  # an adapter's file, and the notebook that makes it
Updates = Mapping[str, Callable[[], Any]]  # {weight's name: forms its update in 32 bits}


def read_weights(folder: Path, name: str = "model.safetensors", made_by: str = "05_merge_and_export") -> dict[str, Any]:
    """The tensors of a folder's safetensors files, by name. Raises ExportError for a missing or damaged file."""
    index = folder / f"{name}.index.json"
    try:
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.exists() else {}
        files = sorted(set(shards.values())) or [name]
        return {name: tensor for file in files for name, tensor in load_file(folder / file).items()}
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        what = f"The weights in {relative(folder)} cannot be read ({error})"
        raise ExportError(f"{what}: run notebook {made_by} again.") from error


def lora_updates(adapter: Path) -> Updates:
    """The updates of a LoRA adapter by the weight's name in the model: scale · B · A.

    The scale is alpha / r, or alpha / √r with rsLoRA (Hu et al. 2021; Kalajdzievski 2023). Raises ExportError for
    adapters that are more than plain LoRA (DoRA, whole modules, ranks per layer).
    """
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    for name in ("use_dora", "modules_to_save", "alpha_pattern", "rank_pattern", "fan_in_fan_out"):
        if config.get(name):
            raise ExportError(f"This adapter has {name}, whose merge cannot be checked here: compare answers by hand.")
    tensors, rank = read_weights(adapter, *ADAPTER), config["r"]
    scale = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)

    def update(a: str) -> Any:
        return scale * (tensors[a.replace(".lora_A.", ".lora_B.")].float() @ tensors[a].float())

    names = {a.removeprefix("base_model.model.").replace(".lora_A.", "."): a for a in tensors if ".lora_A." in a}
    return {name: partial(update, a) for name, a in names.items()}


def trained_updates(trained: Any, base: Mapping[str, Any]) -> Updates:
    """The updates where all weights were trained: the trained model's minus those before."""
    now = base_weights(trained)
    return {name: lambda name=name: now[name].float() - base[name].float() for name in now if name in base}


def check_adapter(adapter: Path, start: Mapping[str, Any]) -> dict[str, int]:
    """Counts an adapter's tensors that are all zero, not finite, or moved since `run/start.json` was written."""
    tensors = read_weights(adapter, *ADAPTER)
    then = {name.replace(".default.", "."): sums for name, sums in start.get("learns", {}).items()}
    known = [name for name in tensors if name in then]
    found = {"tensors": len(tensors), "all_zero": sum(not tensor.any() for tensor in tensors.values())}
    found["not_finite"] = sum(not tensor.isfinite().all() for tensor in tensors.values())
    moved = sum(list(checksum(tensors[name])) != then[name] for name in known)
    return found | {"compared_with_start": len(known), "moved_since_start": moved, "at_start": len(then)}


def check_frozen_base(trained: Any, start: Mapping[str, Any]) -> dict[str, int]:
    """Counts the tensors of the frozen base, loaded again, that are not what they were when the training began."""
    # The adapter of TRL's reference model is frozen too, and no part of the base.
    then = {name: sums for name, sums in start.get("frozen", {}).items() if ".lora_" not in name}
    changed = [list(checksum(tensor)) != then[name] for name, tensor in trained.named_parameters() if name in then]
    return {"at_start": len(then), "compared_with_start": len(changed), "changed": sum(changed)}


def base_weights(model: Any) -> dict[str, Any]:
    """A base's weights by name, on the CPU, without an adapter; those in 4 bits dequantized as the forward pass does."""
    from bitsandbytes.functional import dequantize_4bit

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    weights = {}
    for name, tensor in base.named_parameters(remove_duplicate=False):
        if ".lora_" not in name:
            state = getattr(tensor, "quant_state", None)
            plain = tensor.data if state is None else dequantize_4bit(tensor.data, state)
            weights[name.replace(".base_layer.", ".")] = plain.detach().cpu()
    return weights


def compare_weights(merged: Mapping[str, Any], base: Mapping[str, Any], updates: Updates) -> dict[str, Any]:
    """Compares every tensor of the merged folder with base + update, formed here in 32 bits.

    Of what it returns:
        changed, untouched_changed: tensors that differ from the base; those of them that have no update.
        stray, missing: names that only one side has (a tied output layer may be left out).
        worst_rounding: largest |merged - expected| as a multiple of what two roundings to 16 bits explain; at most 1.
        merge_ratio: the merged update projected on our own merge rounded to 16 bits; 1 if equal, 0 if dropped.
        aside: norm of merged update minus ours, as a share of ours; aside_by_rounding: the share that rounding explains.
        update_kept: like merge_ratio against the unrounded update: what rounding to 16 bits left of it.
    """
    changed, untouched, worst, dots = 0, 0, 0.0, torch.zeros(6, dtype=torch.float64)
    for name in (name for name in merged if name in base):
        weight, plain = merged[name], base[name].float()
        differs = not torch.equal(weight, base[name].to(weight.dtype))
        changed += differs
        if name not in updates:
            untouched += differs
            continue
        exact = updates[name]()
        allowed = torch.finfo(weight.dtype).eps * (plain.abs() + exact.abs() + (plain + exact).abs()) + 1e-30
        worst = max(worst, float(((weight.float() - plain - exact).abs() / allowed).max()))
        ours, theirs = (plain + exact).to(weight.dtype).float() - plain, weight.float() - plain
        beside, rounded = theirs - ours, ours - exact
        pairs = [(theirs, ours), (ours, ours), (theirs, exact), (exact, exact), (beside, beside), (rounded, rounded)]
        dots += torch.stack([(x.double() * y.double()).sum() for x, y in pairs])

    def share(part: int, whole: int) -> float:
        return float(dots[part] / dots[whole]) if dots[whole] else 0.0

    counts = {"tensors": len(merged), "changed": changed, "untouched_changed": untouched, "with_update": len(updates)}
    names = {"stray": [name for name in merged if name not in base and name != HEAD]}
    names["missing"] = sorted({*base, *updates} - {*merged, HEAD})
    shares = {"merge_ratio": share(0, 1), "update_kept": share(2, 3), "aside": math.sqrt(share(4, 1))}
    return {**counts, **names, **shares, "worst_rounding": worst, "aside_by_rounding": math.sqrt(share(5, 1))}


def compare_tying(weights: Mapping[str, Any], folder: Path, base_config: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the output layer is the embedding: in the base, in the folder, and whether the weights contradict the base."""
    configs = (base_config, read_json_or_empty(folder / "config.json"))
    base, merged = ({**(one.get("text_config") or {}), **one}.get("tie_word_embeddings") for one in configs)
    head = weights.get(HEAD)
    embedding = next((tensor for name, tensor in weights.items() if name.endswith("embed_tokens.weight")), head)
    own_head = head is not None and not torch.equal(head, embedding)
    contradicted = own_head if base else head is None and embedding is not None
    return {"base": base, "merged": merged, "contradicted": contradicted}
