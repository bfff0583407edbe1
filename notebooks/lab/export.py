"""Proof that a merged folder is the trained model: weights, logits, and answers from a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab.policy import Messages, render

FRESH = """
import json, sys
from transformers import pipeline
folder, max_new_tokens = sys.argv[1], int(sys.argv[2])
generate = pipeline("text-generation", model=folder, dtype="auto")
chats = json.load(sys.stdin)
answers = [generate(chat, max_new_tokens=max_new_tokens, do_sample=False, return_full_text=False) for chat in chats]
print("ANSWERS" + json.dumps([answer[0]["generated_text"] for answer in answers]))
"""


class ExportError(RuntimeError):
    """The merged folder does not do what it must; the message says what failed."""


def answer_in_fresh_process(folder: Path, chats: list[Messages], max_new_tokens: int) -> list[str]:
    """Greedy answers of a plain `transformers.pipeline` in a Python that has seen neither Unsloth nor our code."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", FRESH, str(folder), str(max_new_tokens)],
        input=json.dumps(chats), capture_output=True, text=True, cwd=folder,
    )  # fmt: skip
    line = next((line for line in done.stdout.splitlines() if line.startswith("ANSWERS")), None)
    if done.returncode or line is None:
        raise ExportError(f"{folder} could not be loaded with plain transformers:\n{done.stderr[-2000:]}")
    return json.loads(line.removeprefix("ANSWERS"))


def changed_weights(base: Any, merged: Any) -> dict[str, int]:
    """How many weight tensors differ between two models of one architecture, and how many there are."""
    import torch

    ours, theirs = dict(base.named_parameters()), dict(merged.named_parameters())
    if ours.keys() != theirs.keys():
        raise ExportError(f"base and merged have different weights: {sorted(ours.keys() ^ theirs.keys())[:3]}")
    changed = sum(not torch.equal(ours[name].cpu(), theirs[name].cpu()) for name in ours)
    return {"changed": changed, "tensors": len(ours)}


def logits_apart(one: Any, other: Any, tokenizer: Any, chats: list[Messages], replies: list[str]) -> dict[str, float]:
    """How far two models' next-token predictions lie apart over whole conversations.

    Returns:
        same_top: share of reply positions where both put the same token first.
        max_probability: largest difference of a token's probability anywhere in the replies.
    """
    import torch

    same, positions, apart = 0, 0, 0.0
    for chat, reply in zip(chats, replies, strict=True):
        prompt = tokenizer(render(tokenizer, chat), add_special_tokens=False)["input_ids"]
        ids = prompt + tokenizer(reply, add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            first, second = (
                model(input_ids=torch.tensor([ids], device=model.device)).logits[0, len(prompt) - 1 :].float().softmax(-1).cpu()
                for model in (one, other)
            )
        same += int((first.argmax(-1) == second.argmax(-1)).sum())
        positions += len(first)
        apart = max(apart, float((first - second).abs().max()))
    return {"same_top": same / positions, "max_probability": apart, "positions": positions}


def check(proof: dict[str, Any], least_agreement: float = 0.95) -> None:
    """Raises ExportError where a merge proof shows a merged model that is not the trained one."""
    if not proof["weights"]["changed"]:
        raise ExportError("The merged model equals the base in every weight: the adapter was not merged, or never trained.")
    agreement = proof["adapter_against_merged"]["same_top"]
    apart, from_base = (proof[pair]["max_probability"] for pair in ("adapter_against_merged", "base_against_merged"))
    if agreement < least_agreement or apart > max(0.05, from_base / 2):
        raise ExportError(
            f"The merged model and the adapter put the same token first at {100 * agreement:.0f} % of the positions, "
            f"and their probabilities lie up to {apart:.2f} apart (base and merged: {from_base:.2f}): the merge lost or mixed up weights. Delete the merged folder and merge again from the adapter's folder."
        )


def how_trained(model: dict[str, Any]) -> str:
    if model["full_finetuning"]:
        return "all weights trained"
    bits = "4-bit" if model["load_in_4bit"] else "16-bit"
    return f"trained as a LoRA adapter of rank {model['lora_rank']} on the {bits} base, merged into 16 bits"


def model_card(about: dict[str, Any], evaluation: dict[str, Any], proof: dict[str, Any]) -> str:
    """A README for the merged folder: what it was made from, how, and what was measured."""
    rewards = ", ".join(f"{entry['name']} × {entry['weight']:g}" for entry in about["rewards"]["rewards"])
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "---",
        "# A model trained with GRPO",
        "",
        f"- base: `{about['model']['shown']}`, {how_trained(about['model'])}",
        f"- {about['steps']} GRPO steps, learning rate {about['requested']['learning_rate']:g}, beta {about['requested']['beta']:g}",
        f"- rewards: {rewards}",
        f"- merge: {proof['weights']['changed']} of {proof['weights']['tensors']} tensors differ from the base; "
        f"largest difference of a next-token probability: "
        f"{proof['adapter_against_merged']['max_probability']:.3f} between adapter and merged model, "
        f"{proof['base_against_merged']['max_probability']:.3f} between base and merged model",
        "",
        f"Held-out problems, greedy, n = {evaluation['n']}:",
        "",
        "| | base | merged | difference, 95 % interval |",
        "|---|---|---|---|",
    ]
    for name, label in (("format", "strict format"), ("correct", "correct")):
        found = evaluation["difference"][name]
        lines.append(
            f"| {label} | {100 * evaluation['base'][name]:.1f} % | {100 * evaluation['merged'][name]:.1f} % | "
            f"{100 * found['estimate']:+.1f} ({100 * found['low']:+.1f} to {100 * found['high']:+.1f}) points |"
        )
    return "\n".join([*lines, "", "Measured on this task only; nothing is known about others.", ""])
