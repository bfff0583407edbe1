"""Whether a merged folder is the model that was trained: `prove_merge` measures, `proof_checks` judges the measures."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lab.export import predictions, serving_prompt, weight_checks
from lab.export.model_folder import ExportError, list_files, missing_files, read_json_or_empty
from lab.export.serving_prompt import ServedPrompt
from lab.files import Row
from lab.model.prompts import Messages
from lab.model.sampling import end_tokens

MERGE_RATIO = 0.03  # how far merge_ratio may be from 1: an alpha that is off by more than 3 % is seen
ASIDE = 0.1  # norm of the merged update beside ours, as a share of ours, beyond 1.5 times what rounding explains
KL_FLOOR = 0.002  # nats a token: rounding to 16 bits alone moved the starter policy by 5e-6, a dropped adapter by 0.05
KL_OF_BASE = 0.05  # of the distance between base and trained model
KL_OF_QUANTISING = 4.0  # times the distance between the 4-bit base and its original (1 to 3 times were seen)
SAME_TOP = 0.95  # share of positions where both put the same token first
SAME_ANSWERS = 0.9  # share of greedy answers that the fresh process must give word for word
UPDATE_KEPT = 0.9  # below this, rounding to 16 bits has swallowed much of a small update: a warning
MEANS = {  # each check, and what its failure means
    "adapter tensors that are zero or not finite": "the adapter was not trained, or broke: look at the run's curves",
    "adapter tensors that moved since the start": "part of the adapter was not trained: no gradient reached it",
    "base tensors changed or missing since the start": "this is not the base that the adapter was trained on",
    "weight tensors that differ from the base": "the merged model equals the base: the adapter was dropped",
    "weights without an update that changed": "the merge changed weights that were not trained",
    "weights missing or stray": "the folder lacks weights, or has others",
    "largest error, in roundings to 16 bits": "the weights are not base + scale · B · A: another base or another scale",
    "merged update / our own merge of it": "the adapter was merged with another scale (alpha), or not at all",
    "merged update beside ours, share of its norm": "the merged weights have something beside base and update",
    "output layer tied to the embedding": "tied embeddings were untied, or the other way round",
    "mean KL from the trained model, nats a token": "the merged model does not predict as the trained one",
    "same token first": "the merged model does not answer as the trained one",
    "fresh process: prompts tokenized as in training": "tokenizer or chat template are not those of the training",
    "fresh process: same greedy answers": "without Unsloth and PEFT, the folder gives other answers",
    "settings of decoding that are not the training's": "the folder's generation config decodes otherwise",
    "files missing": "a loader or a server will not find them",
}


def prove_merge(
    folder: Path,
    trained: Any,
    tokenizer: Any,
    base: Mapping[str, Any],
    adapter: Path | None,
    chats: Sequence[Messages],
    replies: Sequence[str],
    served: ServedPrompt,
    start: Row,
    quantising: Row | None = None,
) -> Row:
    """Measures a merged folder against the model that was trained; `proof_checks` judges the measures.

    Args:
        base: the weights, by name, that the adapter was merged into; without an adapter, those before training.
        adapter: its folder; None where all weights were trained.
        chats, replies: held-out prompts as in training, and the trained model's greedy answers to them.
        start: `run/start.json`, the checksums from before the first step; empty where the run kept none.
        quantising: `prediction_distance` of the 4-bit base from its original, where the merge went into the original.
    """
    from transformers import AutoModelForCausalLM, GenerationConfig

    def share_of_equal(found: Sequence, wanted: Sequence) -> float:
        return sum(one == other for one, other in zip(found, wanted, strict=True)) / len(wanted)

    def its_base(**inputs: Any) -> Any:
        with trained.disable_adapter():
            return trained(**inputs)

    compare = predictions.prediction_distance
    weights, sample = weight_checks.read_weights(folder), predictions.proof_sample(tokenizer, chats, replies)
    updates = weight_checks.lora_updates(adapter) if adapter else weight_checks.trained_updates(trained, base)
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", device_map={"": trained.device}).eval()
    ours = predictions.greedy_answers(merged, tokenizer, chats, served, ends=end_tokens(trained, tokenizer))
    questions = [served.question(chat) for chat in chats]
    fresh = predictions.answer_in_fresh_process(folder, questions, served.max_new_tokens)
    same = {"same_answers": share_of_equal(fresh["answers"], ours)}
    same["same_prompts"] = share_of_equal(fresh["prompt_ids"], [prompt for prompt, _ in sample])
    prefill = serving_prompt.rendered_prefill(tokenizer, served.prefill)
    wanted = serving_prompt.generation_config(trained, tokenizer, served)
    records = (read_json_or_empty(folder / "generation_config.json"), wanted)
    here, wanted = ({**GenerationConfig(**record).to_diff_dict(), "transformers_version": ""} for record in records)
    return {
        "adapter": weight_checks.check_adapter(adapter, start) if adapter else None,
        "base": weight_checks.check_frozen_base(trained, start) if adapter else None,
        "weights": weight_checks.compare_weights(weights, base, updates),
        "tied": weight_checks.compare_tying(weights, folder, trained.config.to_dict()),
        "decoding": sorted(name for name in here.keys() | wanted.keys() if here.get(name) != wanted.get(name)),
        "trained_against_merged": compare(trained, merged, sample),
        "trained_against_base": compare(trained, its_base, sample) if adapter else None,
        "quantising": dict(quantising) if quantising else None,
        "greedy_as_trained": share_of_equal(ours, [prefill + reply for reply in replies]),
        "fresh_process": {"n": len(chats), "first_answer": fresh["answers"][0], **same},
        "missing_files": missing_files(folder),
        "files": list_files(folder),
    }


def kl_limit(proof: Row) -> float:
    """The largest mean KL, in nats a token, at which the merged model still counts as the trained one."""
    from_base, quantising = ((proof[name] or {"kl": 0.0})["kl"] for name in ("trained_against_base", "quantising"))
    return max(KL_FLOOR, KL_OF_BASE * from_base, KL_OF_QUANTISING * quantising)


def proof_checks(proof: Row) -> list[Row]:
    """One entry a check: `check`, the value `found`, the `limit`, whether it is `ok`, and `means`: what a failure means."""
    checks: list[Row] = []
    adapter, frozen, weights, tied = (proof[name] for name in ("adapter", "base", "weights", "tied"))
    apart, fresh = proof["trained_against_merged"], proof["fresh_process"]

    def check(name: str, found: Any, limit: Any, ok: bool) -> None:
        checks.append({"check": name, "found": str(found), "limit": str(limit), "ok": ok, "means": MEANS[name]})

    def check_none(name: str, count: int, of: str = "") -> None:
        check(name, f"{count}{of}", 0, count == 0)

    def check_share(name: str, share: float, limit: float, digits: int = 0) -> None:
        check(name, f"{100 * share:.{digits}f} %", f"{100 * limit:.0f} %", share >= limit)

    if adapter:
        n, known, moved = (adapter[name] for name in ("at_start", "compared_with_start", "moved_since_start"))
        dead = adapter["all_zero"] + adapter["not_finite"]
        check_none("adapter tensors that are zero or not finite", dead, f" of {adapter['tensors']}")
        if n:  # at least half: A has no gradient until B is no longer zero, so the first step moves B alone
            ok = known == n == adapter["tensors"] and 2 * moved >= known
            check("adapter tensors that moved since the start", f"{moved} of {n}", f"at least {n // 2}", ok)
    if frozen and (n := frozen["at_start"]):
        changed = frozen["changed"] + n - frozen["compared_with_start"]
        check_none("base tensors changed or missing since the start", changed, f" of {n}")
    changed, ratio, worst = weights["changed"], weights["merge_ratio"], weights["worst_rounding"]
    found = f"{changed} of {weights['tensors']}"
    check("weight tensors that differ from the base", found, "at least 1", changed > 0)
    check_none("weights without an update that changed", weights["untouched_changed"])
    check_none("weights missing or stray", len(weights["missing"]) + len(weights["stray"]))
    check("largest error, in roundings to 16 bits", f"{worst:.2g}", 1, worst <= 1)
    near = abs(ratio - 1) <= MERGE_RATIO
    check("merged update / our own merge of it", f"{ratio:.3f}", f"1 ± {MERGE_RATIO:g}", near)
    aside, limit = weights["aside"], ASIDE + 1.5 * weights["aside_by_rounding"]
    check("merged update beside ours, share of its norm", f"{aside:.2g}", f"{limit:.2g}", aside <= limit)
    found = "contradicted" if tied["contradicted"] else "yes" if tied["merged"] else "no"
    ok = tied["merged"] == tied["base"] and not tied["contradicted"]
    check("output layer tied to the embedding", found, "yes" if tied["base"] else "no", ok)
    kl, limit = apart["kl"], kl_limit(proof)
    check("mean KL from the trained model, nats a token", f"{kl:.2g}", f"{limit:.2g}", kl <= limit)
    check_share("same token first", apart["same_top"], SAME_TOP, digits=1)
    check_share("fresh process: prompts tokenized as in training", fresh["same_prompts"], 1)
    check_share("fresh process: same greedy answers", fresh["same_answers"], SAME_ANSWERS)
    check_none("settings of decoding that are not the training's", len(proof["decoding"]))
    check_none("files missing", len(proof["missing_files"]))
    return checks


def proof_table(proof: Row) -> pd.DataFrame:
    """The checks for reading."""
    table = pd.DataFrame(proof_checks(proof))
    return table.assign(ok=table["ok"].map({True: "yes", False: "NO"}))[["check", "found", "limit", "ok"]]


def proof_warnings(proof: Row) -> list[str]:
    """What is worth knowing, though it does not make the merge wrong."""
    kept, agree, adapter, warnings = proof["weights"]["update_kept"], proof["greedy_as_trained"], proof["adapter"], []
    if adapter and nothing_moved(proof):
        return ["The training moved no weight of the adapter: there is nothing to merge."]
    if adapter and not adapter["at_start"]:
        warnings.append("The run kept no start.json: that adapter and base are the run's own was not checked.")
    if adapter and (proof["trained_against_base"] or {}).get("kl", math.inf) <= kl_limit(proof):
        warnings.append("The trained model predicts nearly as its base: only the weights can tell them apart.")
    if kept < UPDATE_KEPT:
        warnings.append(f"Rounding to 16 bits kept {100 * kept:.0f} % of the update: ship the adapter too.")
    if agree < 1:
        warnings.append(f"{100 * agree:.0f} % of greedy answers are the trained model's: rounding decides close calls.")
    return warnings


def nothing_moved(proof: Row) -> bool:
    """Whether the trained model is its base: every update of the adapter is zero, as half of its tensors are at first."""
    adapter, weights = proof["adapter"], proof["weights"]
    if adapter:
        return 2 * adapter["all_zero"] >= adapter["tensors"]
    return not weights["changed"] and not weights["aside"]  # with an update that was dropped, that would be 1


def refuse_unproved(proof: Row, nothing_learned: str = "") -> None:
    """Raises ExportError with every reason where a check fails; `nothing_learned`: the run's own, if it had none to learn."""
    if nothing_moved(proof):
        why = nothing_learned or "No gradient reached it: look at grad_norm and learning_rate in notebook 04."
        end = "Nothing was put in place. An earlier export is as it was."
        raise ExportError(f"There is nothing to merge: the training moved no weight of the model.\n{why}\n{end}")
    if failed := [check for check in proof_checks(proof) if not check["ok"]]:
        lines = [f"- {one['check']}: {one['found']} (limit {one['limit']}): {one['means']}" for one in failed]
        names = [*proof["weights"]["missing"], *proof["weights"]["stray"], *proof["decoding"], *proof["missing_files"]]
        lines += [f"  named: {', '.join(names[:5])}"] * bool(names)
        end = "It was not put in place. An earlier export is as it was."
        raise ExportError("\n".join(["The merged folder is not the trained model:", *lines, end]))
