"""What the trained and a merged model predict and answer: which merge is nearest."""

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from lab.export.model_folder import ExportError
from lab.export.serving_prompt import ServedPrompt, rendered_prefill
from lab.files import relative
from lab.model.prompts import Messages, prompt_ids
from lab.model.sampling import end_tokens, plain_decoding

ProofSample = list[tuple[list[int], list[int]]]  # prompts and the trained model's greedy replies, as token ids
FRESH_PROCESS = """
import json, sys
for name in ("unsloth", "unsloth_zoo", "peft", "lab", "rewards", "scoring"):
    sys.modules[name] = None  # importing it fails: this process has nothing but transformers
from transformers import pipeline
given = json.load(sys.stdin)
generate = pipeline("text-generation", model=given["folder"], dtype="auto")
tokenizer = generate.tokenizer
render = {"add_generation_prompt": True, "return_dict": True}
ids = [tokenizer.apply_chat_template(chat, **render)["input_ids"] for chat in given["questions"]]
greedy = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None, "tokenizer": tokenizer}
greedy["max_new_tokens"] = given["max_new_tokens"]
texts = [generate(chat, **greedy)[0]["generated_text"][-1]["content"] for chat in given["questions"]]
print("ANSWERS" + json.dumps({"answers": texts, "prompt_ids": ids}))
"""


def proof_sample(tokenizer: Any, chats: Sequence[Messages], replies: Sequence[str]) -> ProofSample:
    """The token ids that models are compared on. Raises ExportError for no chats: there would be nothing to compare."""
    if not chats:
        raise ExportError("A merge is proved on at least one held-out problem: raise N_EVALUATE and N_PROOF.")
    replied = [tokenizer(reply, add_special_tokens=False)["input_ids"] for reply in replies]
    return list(zip([prompt_ids(tokenizer, chat) for chat in chats], replied, strict=True))


def prediction_distance(model: Any, other: Any, sample: ProofSample) -> dict[str, float]:
    """How far `other` predicts from `model` over the replies, position by position.

    Returns logit_max and logit_mean (differences of a token's logit), kl and kl_max (KL(model ‖ other) of a token in
    nats, mean and largest), same_top (share of positions where both put the same token first), and positions.
    """
    rows = []  # of each position: the mean and largest difference of logits, KL, same token first
    for prompt, reply in sample:
        ids, start = torch.tensor([[*prompt, *reply]], device=model.device), len(prompt) - 1
        with torch.inference_mode():  # logits that predict the reply's tokens and its end: (len(reply) + 1, vocabulary)
            one, two = (m(input_ids=ids, use_cache=False).logits[0, start:].float().cpu() for m in (model, other))
        apart, p, q = (one - two).abs(), one.log_softmax(-1), two.log_softmax(-1)
        kl, same = (p.exp() * (p - q)).sum(-1).clamp(min=0), one.argmax(-1) == two.argmax(-1)
        rows += zip(apart.mean(-1).tolist(), apart.amax(-1).tolist(), kl.tolist(), same.tolist())
    table = pd.DataFrame(rows, columns=["logit_mean", "logit_max", "kl", "same_top"])
    largest = {"logit_max": float(table["logit_max"].max()), "kl_max": float(table["kl"].max())}
    means = {name: float(table[name].mean(skipna=False)) for name in ("logit_mean", "kl", "same_top")}
    return {**largest, "positions": len(table), **means}


def distance_table(distances: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Distances from the trained model for reading, one line for each model."""
    labels = {"kl": "mean KL, nats", "kl_max": "largest KL", "logit_mean": "mean logit gap", "logit_max": "largest gap"}
    found = pd.DataFrame(distances).T.rename_axis("from the trained model to")
    table = found[[*labels]].map("{:.2g}".format).rename(columns=labels)
    table["same token first"] = (100 * found["same_top"]).map("{:.1f} %".format)
    return table.assign(positions=found["positions"].map("{:,.0f}".format))


def choose_merge(distances: Mapping[str, Mapping[str, float]], merge_into: str = "auto") -> tuple[str, str]:
    """The merge to export, and why: the nearest to the trained model, or the one chosen by name. Raises ExportError."""
    kl = {name: distance["kl"] for name, distance in distances.items()}
    if merge_into not in ("auto", *kl):
        raise ExportError(f'MERGE_INTO is {merge_into!r}; there are: {", ".join(map(repr, kl))}, and "auto".')
    best, how = merge_into, ", chosen by hand"
    if merge_into == "auto":
        best, how = min(kl, key=lambda name: (math.isnan(kl[name]), kl[name])), ""
    others = [f", those of the merge into the {name} {kl[name]:.2g}" for name in kl if name != best]
    distance = f"its predictions lie {kl[best]:.2g} nats a token from the trained model's (mean KL)"
    return best, f"merged into the {best}{how}: {distance}{''.join(others)}."


def greedy_answers(
    model: Any, tokenizer: Any, chats: Sequence[Messages], served: ServedPrompt, ends: set[int] | None = None
) -> list[str]:
    """What a server must answer, decoded as in training: prefill and greedy continuation. `ends`: of a turn."""
    ends, prefill = ends or end_tokens(model, tokenizer), rendered_prefill(tokenizer, served.prefill)
    options = {"do_sample": False, "max_new_tokens": served.max_new_tokens}
    options |= {"stop_strings": list(served.stop), "tokenizer": tokenizer} if served.stop else {}
    answers = []
    for chat in chats:
        inputs = torch.tensor([prompt_ids(tokenizer, chat)], device=model.device)
        with torch.inference_mode(), plain_decoding(model, sorted(ends), tokenizer):
            made = model.generate(input_ids=inputs, attention_mask=torch.ones_like(inputs), **options)
        answers.append(prefill + tokenizer.decode(made[0, inputs.shape[1] :], skip_special_tokens=True))
    return answers


def answer_in_fresh_process(folder: Path, questions: Sequence[Messages], max_new_tokens: int) -> dict[str, Any]:
    """Greedy answers of a plain `transformers.pipeline` in a Python that cannot import Unsloth, PEFT or our code.

    Returns `answers`, and `prompt_ids` as the folder's own chat template makes them. Raises ExportError.
    """
    given = {"folder": str(Path(folder).resolve()), "questions": list(questions), "max_new_tokens": max_new_tokens}
    command = [sys.executable, "-P", "-c", FRESH_PROCESS]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, cwd=folder)
    line = next((line for line in done.stdout.splitlines() if line.startswith("ANSWERS")), None)
    if done.returncode or line is None:
        raise ExportError(f"{relative(folder)} could not be loaded with plain transformers:\n{done.stderr[-2000:]}")
    return json.loads(line.removeprefix("ANSWERS"))
