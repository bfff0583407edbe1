"""The card of an exported model: how it was made, what was measured and proved, and what is not known."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.export import merge_proof
from lab.export.serving_prompt import ServedPrompt
from lab.files import ROOT, Row
from lab.measure import verdicts
from lab.show.tables import markdown_table

SETTINGS = (
    "max_steps learning_rate beta loss_type scale_rewards num_generations per_device_train_batch_size "
    "gradient_accumulation_steps num_iterations temperature max_completion_length lr_scheduler_type warmup_steps seed"
).split()
PACKAGES = ("torch", "transformers", "trl", "peft", "bitsandbytes", "unsloth")
EVALUATED = (
    "The same prompts, template, sampling and seeds for all. Right by {}. Intervals: paired bootstrap over problems, and "
    "Clopper-Pearson where all problems agree. p: McNemar's exact test for greedy answers, sign flips for sampled ones. "
    "Tokens a second are those of this evaluation: the adapter ran on its quantized base, the others in 16 bits."
)


def render_card(about: Row, report: Row, served: ServedPrompt, proof: Row, evaluation: Row | None = None) -> str:
    """The card as Markdown with the Hub's metadata in front, from the files of these names."""
    rewards, settings = about["rewards"], {**about["requested"], **(about.get("effective") or {})}
    paid = [f"- {_code(entry['name'])} × {entry['weight']:g}" for entry in rewards["rewards"]]
    used = ", ".join(f"`{name}={settings[name]}`" for name in SETTINGS if name in settings)
    versions = [f"{name} {version}" for name in PACKAGES if (version := about.get("versions", {}).get(name))]
    proofs, warnings = merge_proof.proof_table(proof), [f"- {text}" for text in merge_proof.proof_warnings(proof)]
    sections = {
        "# A model trained with GRPO": _origin(about, report, proof["why"]),
        "## Use": _use(served),
        "## Evaluation": _evaluation(evaluation),
        "## Rewards": [*paid, f"\nSHA-256 of their source: `{rewards['source_sha256']}`"],
        "## Settings": [used, f"\nVersions: {', '.join(versions)}."],
        "## Is it the trained model?": [*markdown_table(proofs, proofs.to_numpy()), "", *warnings],
        "## Limits": _limits(about, evaluation or {}),
    }
    body = "\n".join("\n".join([heading, "", *lines, ""]) for heading, lines in sections.items())
    return f"---\n{_metadata(about, evaluation)}\n---\n\n{body}"


def _metadata(about: Row, evaluation: Row | None) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    base, tags = str(about["model"]["shown"]), ["grpo", "trl", "unsloth"]
    hub = {"base_model": base} if is_hub_name(base) else {}
    data = ModelCardData(library_name="transformers", pipeline_tag="text-generation", tags=tags, **hub)
    if evaluation:
        greedy, labels = evaluation["greedy"][evaluation["other"]], {"correct": "correct", "format": "strict format"}
        common = {"task_type": "text-generation", "dataset_type": "held-out", "dataset_name": "held-out problems"}
        found = {f"{label}, greedy": round(greedy[name]["estimate"], 4) for name, label in labels.items()}
        scores = [{"metric_name": label, "metric_value": value} for label, value in found.items()]
        data.model_name = "GRPO"
        data.eval_results = [EvalResult(**common, metric_type="accuracy", **score) for score in scores]
    return data.to_yaml()


def is_hub_name(base: str) -> bool:
    """Whether a base is a name on the Hub; a name that is also a folder here is the folder, as transformers takes it."""
    form = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", base, re.ASCII)
    return bool(form) and not Path(base).exists() and not (ROOT / base).exists()


def _origin(about: Row, report: Row, why: str) -> Iterator[str]:
    model, data, rows = about["model"], about["data"], report["rows"]
    how = f"trained as a LoRA adapter of rank {model['lora_rank']} on the {'4' if model['load_in_4bit'] else '16'}-bit base"
    how = "all weights trained" if model["full_finetuning"] else how
    yield f"- **base:** {_code(model['shown'])}, {how} with {model['backend']}; {why}"
    counts = f"{rows['test']:,} held out, {rows['rejected']:,} rows rejected"
    yield f"- **data:** {data['rows']:,} training prompts (fingerprint `{data['fingerprint']}`), {counts}"
    steps = f"{about['steps']} GRPO steps in {about['seconds'] / 60:.1f} minutes"
    yield f"- **training:** {steps} (run {_code(about.get('name', 'unnamed'))}, {about['status']})"


def _use(served: ServedPrompt) -> Iterator[str]:
    tokenizer = ", tokenizer=generate.tokenizer" if served.stop else ""
    yield "The chat template brings the prompt of the training with it, so a question alone is enough:\n\n```python"
    yield 'from transformers import pipeline\n\ngenerate = pipeline("text-generation", model=".")'
    yield 'chat = [{"role": "user", "content": "…"}]'
    yield f'generate(chat, do_sample=False{tokenizer})[0]["generated_text"][-1]["content"]\n```\n'
    if served.preamble:
        system = [_code(message["content"]) for message in served.preamble if message["role"] == "system"]
        n = len(served.preamble) - len(system)
        before = " and ".join([*system, *[f"{n} messages of worked examples"] * bool(n)])
        yield f"- before the question, unless the chat has a system message of its own: {before}"
    if served.prefill:
        yield f"- the answer is begun with {_literal(served.prefill)}; transformers returns it with the answer, others do not"
    if served.stop:
        stops = " and ".join(map(_literal, served.stop))
        yield f"- an answer also ends at {stops} (transformers needs `tokenizer=` for that; others leave the text out)"
    yield f"- sampling as in training: temperature {served.temperature:g}, no top-p, no top-k; temperature 0 is greedy"
    cut = f"- answers were cut at {served.max_new_tokens:,} tokens"
    yield f"{cut}; `transformers serve` allows at least 1,024 where a request does not set `max_tokens`"


def _evaluation(evaluation: Row | None) -> Iterator[str]:
    if evaluation is None:
        yield "Not evaluated yet."
        return
    overlap = (evaluation.get("overlap") or {}).get("said")
    yield " ".join(filter(None, [evaluation["said"], overlap])) + "\n"
    table = verdicts.summary_table(dict(evaluation)).reset_index(names="")
    yield from markdown_table(table, table.to_numpy())
    yield "\n" + EVALUATED.format(_code(evaluation["correct_by"]))


def _limits(about: Row, evaluation: Row) -> Iterator[str]:
    yield "- Measured on held-out problems of this one task: nothing is known about others, other languages, or safety."
    if "starter-policy" in str(about["model"]["shown"]):
        yield "- The base is a rehearsal model of 2 million parameters that knows only its word problems: no language model."
    trained_with = about["rewards"]["source_sha256"]
    if (judged_by := evaluation.get("judged_by", trained_with)) != trained_with:
        yield f"- The rewards changed after the training: the answers were judged by those of SHA-256 `{judged_by}`."
    if evaluation.get("another_data_set"):
        yield "- The data set was made again after the training: held-out problems may have been trained on."
    if evaluation.get("n", verdicts.ROUGH) < verdicts.ROUGH:
        yield f"- {evaluation['n']} problems are few: the intervals are rough."
    yield "- The rewards say what was paid for, not what is good: an answer can be right and its reasoning wrong."


def _code(text: Any) -> str:
    """The text as inline code in one line; a backtick in it is shown as a quote."""
    return f"`{' '.join(str(text).split()).replace('`', chr(39)) or ' '}`"


def _literal(text: str) -> str:
    """The text as inline code, with its spaces and newlines visible."""
    return _code(json.dumps(text, ensure_ascii=False))
