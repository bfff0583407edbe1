"""The card of an exported model: what it was made from and how, what was measured and proved, and what is not known."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.export import merge_proof
from lab.export.serving_prompt import ServedPrompt
from lab.files import ROOT
from lab.measure import verdicts

SETTINGS = (
    "max_steps",
    "learning_rate",
    "beta",
    "loss_type",
    "scale_rewards",
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_iterations",
    "temperature",
    "max_completion_length",
    "lr_scheduler_type",
    "warmup_steps",
    "seed",
)
PACKAGES = ("torch", "transformers", "trl", "peft", "bitsandbytes", "unsloth")


def how_trained(model: Mapping[str, Any]) -> str:
    if model["full_finetuning"]:
        return "all weights trained"
    bits = "4-bit" if model["load_in_4bit"] else "16-bit"
    return f"trained as a LoRA adapter of rank {model['lora_rank']} on the {bits} base"


def card(
    about: Mapping[str, Any],
    report: Mapping[str, Any],
    manner: ServedPrompt,
    proof: Mapping[str, Any] | None,
    merged_into: str,
    evaluation: Mapping[str, Any] | None = None,
) -> str:
    """The card as Markdown with the Hub's metadata in front.

    Args:
        about: `run/run.json`; report: `dataset/report.json`.
        merged_into: the sentence of `export.choose`.
        evaluation: `evaluation.json`; None before there is one, which the card then says.
    """
    parts = [
        _metadata(about, evaluation),
        "# A model trained with GRPO\n",
        _made_from(about, report, merged_into),
        _use(manner),
        "## Evaluation\n",
        _evaluation(evaluation, about),
        "## Rewards\n",
        _rewards(about),
        "## Settings\n",
        _settings(about),
        *(["## Is it the trained model?\n", _proof(proof)] if proof else []),
        "## Limits\n",
        _limits(about, evaluation),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _metadata(about: Mapping[str, Any], evaluation: Mapping[str, Any] | None) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = None
    if evaluation:
        found = evaluation["greedy"][evaluation["other"]]
        results = [
            EvalResult(
                task_type="text-generation",
                dataset_type="held-out",
                dataset_name="held-out problems",
                metric_type="accuracy",
                metric_name=label,
                metric_value=round(found[name]["estimate"], 4),
            )
            for name, label in (("correct", "correct, greedy"), ("format", "strict format, greedy"))
        ]
    base = str(about["model"]["shown"])
    hub = {"base_model": base} if is_hub_name(base) else {}
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["grpo", "trl", "unsloth"],
        model_name="GRPO",
        eval_results=results,
        **hub,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def is_hub_name(base: str) -> bool:
    """Whether a base is a name on the Hub; one that is also a folder here is the folder, as transformers takes it."""
    known = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", base, re.ASCII)
    return bool(known) and not Path(base).exists() and not (ROOT / base).exists()


def _made_from(about: Mapping[str, Any], report: Mapping[str, Any], merged_into: str) -> str:
    data, rows = about["data"], report["rows"]
    return (
        f"- **base:** {_code(str(about['model']['shown']))}, {how_trained(about['model'])} with {about['model']['backend']}; "
        f"{merged_into}\n"
        f"- **data:** {data['rows']:,} training prompts (fingerprint `{data['fingerprint']}`), {rows['test']:,} held out, "
        f"{rows['rejected']:,} rows rejected\n"
        f"- **training:** {about['steps']} GRPO steps in {about['seconds'] / 60:.1f} minutes "
        f"(run {_code(about.get('name', 'unnamed'))}, {about['status']})\n"
    )


def _use(manner: ServedPrompt) -> str:
    stops = " and ".join(_literal(text) for text in manner.stop)
    more = ", tokenizer=generate.tokenizer" if manner.stop else ""
    lines = [
        "The chat template brings with it what the model was trained behind, so a question alone is enough:\n",
        "```python",
        "from transformers import pipeline\n",
        'generate = pipeline("text-generation", model=".")',
        'chat = [{"role": "user", "content": "…"}]',
        f'generate(chat, do_sample=False{more})[0]["generated_text"][-1]["content"]',
        "```\n",
    ]
    if manner.preamble:
        lines.append(
            f"- before the question, unless the chat has a system message of its own: {_shown(manner.preamble)}"
        )
    if manner.prefill:
        said = "transformers gives it back with the answer, other servers do not"
        lines.append(f"- the answer is begun with {_literal(manner.prefill)}; {said}")
    if manner.stop:
        lines.append(
            f"- an answer also ends at {stops} (transformers needs `tokenizer=` for that; others leave the text out)"
        )
    lines.append(
        f"- sampling as in training: temperature {manner.temperature:g}, no top-p, no top-k; temperature 0 is greedy"
    )
    longest = f"- answers were cut at {manner.max_new_tokens:,} tokens"
    lines.append(f"{longest}; `transformers serve` allows at least 1,024 where a request does not set `max_tokens`")
    return "\n".join(lines) + "\n"


def _shown(preamble: Sequence[Mapping[str, str]]) -> str:
    system, shots = (preamble[0], preamble[1:]) if preamble[0]["role"] == "system" else (None, preamble)
    found = [_code(system["content"])] if system else []
    return " and ".join([*found, *([f"{len(shots)} messages of worked examples"] if shots else [])])


def _code(text: str) -> str:
    """The text as inline code in one line, whatever backticks are in it (CommonMark: a longer fence, spaces inside it)."""
    text = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    room = " " if "`" in text or not text else ""
    return f"{fence}{room}{text}{room}{fence}"


def _literal(text: str) -> str:
    """The text as inline code where its spaces and newlines matter."""
    return _code(json.dumps(text, ensure_ascii=False))


def _row(cells: Sequence[Any]) -> str:
    """A line of a Markdown table: what would end a cell or the line does not."""
    return "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells) + " |"


def _table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[str]:
    return [_row(head), f"|{'---|' * len(head)}", *map(_row, rows)]


def _evaluation(evaluation: Mapping[str, Any] | None, about: Mapping[str, Any]) -> str:
    if evaluation is None:
        return "Not evaluated yet.\n"
    table = verdicts.summary(dict(evaluation))
    lines = _table(["", *table.columns], [[name, *row] for name, row in zip(table.index, table.to_numpy())])
    words = [evaluation["said"], *([evaluation["overlap"]["said"]] if evaluation.get("overlap") else [])]
    how = (
        f"Same prompts, template, sampling and seeds for all. Right by {_code(str(evaluation['correct_by']))}. "
        "Intervals: paired bootstrap over problems, and Clopper-Pearson where all problems agree; p by McNemar's exact test for "
        "greedy answers, by sign flips for sampled ones. Tokens a second are those of this evaluation: the adapter ran on its "
        "quantized base, the others in 16 bits."
    )
    return "\n".join([" ".join(words), "", *lines, "", how, ""])


def _rewards(about: Mapping[str, Any]) -> str:
    lines = [f"- {_code(entry['name'])} × {entry['weight']:g}" for entry in about["rewards"]["rewards"]]
    return "\n".join([*lines, "", f"SHA-256 of their source: `{about['rewards']['source_sha256']}`", ""])


def _settings(about: Mapping[str, Any]) -> str:
    asked, made = about["requested"], about.get("effective") or {}
    named = {name: made.get(name, asked.get(name)) for name in SETTINGS if name in asked or name in made}
    versions = ", ".join(
        f"{name} {about['versions'][name]}" for name in PACKAGES if about.get("versions", {}).get(name)
    )
    return "\n".join(
        [", ".join(f"`{name}={value}`" for name, value in named.items()), "", f"Versions: {versions}.", ""]
    )


def _proof(proof: Mapping[str, Any]) -> str:
    found = merge_proof.verdicts(proof)
    rows = [[line["check"], line["found"] + ("" if line["ok"] else " (**fails**)"), line["limit"]] for line in found]
    lines = _table(["check", "found", "limit"], rows)
    return "\n".join([*lines, "", *(f"- {text}" for text in merge_proof.warnings(proof)), ""])


def _limits(about: Mapping[str, Any], evaluation: Mapping[str, Any] | None) -> str:
    lines = [
        "- Measured on held-out problems of this one task: nothing is known about others, other languages, or safety."
    ]
    if "starter-policy" in str(about["model"]["shown"]):
        lines.append(
            "- The base is a rehearsal model of 2 million parameters that knows nothing but its word problems: "
            "this is no language model."
        )
    if evaluation and evaluation.get("judged_by", trained_with := about["rewards"]["source_sha256"]) != trained_with:
        lines.append(
            f"- The rewards were changed after the training: the answers were judged by those of SHA-256 `{evaluation['judged_by']}`."
        )
    if evaluation and evaluation.get("another_data_set"):
        lines.append(
            "- The data set was made again after the training, so that held-out problems may have been trained on."
        )
    if evaluation and evaluation["n"] < verdicts.ROUGH:
        lines.append(f"- {evaluation['n']} problems are few: the intervals are rough.")
    lines.append(
        "- The rewards say what was paid for, not what is good: an answer can be right and its reasoning wrong."
    )
    return "\n".join(lines) + "\n"
