"""The merge, its proof, and that a broken merge fails it: each way of breaking one is done here on purpose."""

import json
import shutil
import types

import pytest
import torch
from safetensors.torch import load_file, save_file

from lab.export import merge, merge_proof, model_folder, predictions, serving_prompt, weight_checks
from lab.files import STARTER_POLICY
from lab.model import prompts, sampling
from lab.model.policy import checksum

QUESTIONS = [
    "Zoe has 15 cards. Ivo has three times as many. How many cards do they have together?",
    "What is 3 * 4?",
    "Ada has 2 cats.",
]
SYSTEM = {"role": "system", "content": "Think step by step between <think> and </think>."}
SERVED = serving_prompt.ServedPrompt(preamble=[SYSTEM], max_new_tokens=24)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An adapter that was trained (its weights are random), the model as trained, and both merges of it, finished."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from unsloth import FastLanguageModel

    folder = tmp_path_factory.mktemp("export")
    model, _ = FastLanguageModel.from_pretrained(str(STARTER_POLICY), max_seq_length=256, load_in_4bit=True)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = FastLanguageModel.get_peft_model(model, r=8, lora_alpha=16, target_modules=targets, random_state=1)
    start = {
        "learns": {n: list(checksum(p)) for n, p in model.named_parameters() if p.requires_grad},
        "frozen": {n: list(checksum(p)) for n, p in model.named_parameters() if not p.requires_grad},
    }
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.04 * torch.randn_like(parameter)
    model.save_pretrained(folder / "adapter")
    tokenizer = AutoTokenizer.from_pretrained(STARTER_POLICY)
    tokenizer.save_pretrained(folder / "adapter")
    trained, _ = FastLanguageModel.from_pretrained(str(folder / "adapter"), max_seq_length=256, load_in_4bit=True)
    plain, _ = FastLanguageModel.from_pretrained(str(folder / "adapter"), max_seq_length=256, load_in_4bit=False)
    plain.save_pretrained_merged(str(folder / "original base"), tokenizer, save_method="merged_16bit")
    again, _ = FastLanguageModel.from_pretrained(str(folder / "adapter"), max_seq_length=256, load_in_4bit=True)
    merge.merge_into_dequantised(again, folder / "adapter", tokenizer, folder / "dequantised base")
    base = AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype=trained.dtype).eval()
    for name in ("original base", "dequantised base"):
        serving_prompt.save_served_prompt(folder / name, base, tokenizer, SERVED)
    chats = [[SYSTEM, {"role": "user", "content": question}] for question in QUESTIONS]
    trained.eval()
    replies = [
        answer.text for (answer,) in sampling.sample(trained, tokenizer, chats, temperature=0, max_new_tokens=24)
    ]
    return types.SimpleNamespace(
        folder=folder, trained=trained, base=base, tokenizer=tokenizer, chats=chats, replies=replies, start=start
    )


def proof_of(made, folder, kind="dequantised base", **changes):
    sample, quantising = predictions.proof_sample(made.tokenizer, made.chats, made.replies), None
    if kind == "original base":
        with made.trained.disable_adapter():
            quantising = predictions.prediction_distance(made.trained, made.base, sample)
    given = dict(
        base=weight_checks.base_weights(made.trained if kind == "dequantised base" else made.base),
        adapter=made.folder / "adapter",
        chats=made.chats,
        replies=made.replies,
        served=SERVED,
        start=made.start,
        quantising=quantising,
    )
    return merge_proof.prove_merge(folder, made.trained, made.tokenizer, **{**given, **changes})


@pytest.fixture
def quick(monkeypatch):
    """No fresh process: for the breaks that it is not needed to see."""

    def answer(folder, questions, max_new_tokens):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids = [
            tokenizer.apply_chat_template(q, add_generation_prompt=True, return_dict=True)["input_ids"]
            for q in questions
        ]
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
        how = {
            "do_sample": False,
            "temperature": None,
            "top_k": None,
            "top_p": None,
            "max_new_tokens": max_new_tokens,
            "tokenizer": tokenizer,
        }
        texts = [
            tokenizer.decode(model.generate(torch.tensor([one]), **how)[0, len(one) :], skip_special_tokens=True)
            for one in ids
        ]
        return {"answers": texts, "prompt_ids": ids}

    monkeypatch.setattr(predictions, "answer_in_fresh_process", answer)


def copied(made, tmp_path, name="dequantised base"):
    return shutil.copytree(made.folder / name, tmp_path / "merged")


def failed(proof):
    return {line["check"] for line in merge_proof.proof_checks(proof) if not line["ok"]}


def rewrite(folder, change):
    weights = load_file(folder / "model.safetensors")
    weights = change(weights) or weights
    save_file(
        {name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_both_merges_pass_with_a_real_fresh_process_and_the_dequantised_one_is_nearer(made):
    proofs = {kind: proof_of(made, made.folder / kind, kind) for kind in ("original base", "dequantised base")}
    for proof in proofs.values():
        assert not failed(proof), failed(proof)
        merge_proof.refuse_unproved(proof)
        assert proof["fresh_process"]["same_prompts"] == 1
        assert proof["adapter"] == {
            "tensors": 56,
            "all_zero": 0,
            "not_finite": 0,
            "compared_with_start": 56,
            "moved_since_start": 56,
            "at_start": 56,
        }
        assert proof["base"]["compared_with_start"] > 20 and proof["base"]["changed"] == 0
        assert proof["weights"]["with_update"] == 28 and proof["weights"]["update_kept"] > 0.99
        assert {"config.json", "model.safetensors", "chat_template.jinja"} <= {file["file"] for file in proof["files"]}
        assert json.loads(json.dumps(proof)) == proof
    near, far = (proofs[kind]["trained_against_merged"]["kl"] for kind in ("dequantised base", "original base"))
    assert near < 0.1 * far
    chosen, why = predictions.choose_merge({kind: proof["trained_against_merged"] for kind, proof in proofs.items()})
    assert chosen == "dequantised base" and "those of the merge into the original base" in why


def test_the_weights_of_the_proof_agree_with_a_merge_by_peft(made):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    after = PeftModel.from_pretrained(base, str(made.folder / "adapter")).merge_and_unload().state_dict()
    for name, update in weight_checks.lora_updates(made.folder / "adapter").items():
        assert torch.allclose(after[name] - before[name], update(), atol=1e-5), name


def test_the_distance_of_a_model_from_itself_is_0_and_kl_is_that_of_the_definition(made):
    sample = predictions.proof_sample(made.tokenizer, made.chats, made.replies)
    same = predictions.prediction_distance(made.base, made.base, sample)
    assert (same["kl"], same["logit_max"], same["same_top"]) == (0, 0, 1)
    found, kl = predictions.prediction_distance(made.trained, made.base, sample), []
    for prompt, reply in sample:
        with torch.inference_mode():
            one, two = (
                m(input_ids=torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 :].float()
                for m in (made.trained, made.base)
            )
        kl.append(
            torch.nn.functional.kl_div(two.log_softmax(-1), one.log_softmax(-1), log_target=True, reduction="none").sum(
                -1
            )
        )
    assert found["kl"] == pytest.approx(float(torch.cat(kl).mean()), rel=1e-4) and found["positions"] == len(
        torch.cat(kl)
    )


def test_a_dropped_adapter_fails(made, tmp_path, quick):
    folder = copied(made, tmp_path)
    base = weight_checks.base_weights(made.trained)
    rewrite(folder, lambda weights: {name: base[name].to(tensor.dtype) for name, tensor in weights.items()})
    proof = proof_of(made, folder)
    assert {
        "weight tensors that differ from the base",
        "merged update / our own merge of it",
        "mean KL from the trained model, nats a token",
    } <= failed(proof)
    with pytest.raises(
        model_folder.ExportError, match="equals the base: the adapter was dropped(.|\n)*not put in place"
    ):
        merge_proof.refuse_unproved(proof)


@pytest.mark.parametrize("alpha", [8, 15, 32])
def test_a_wrong_alpha_fails(made, tmp_path, quick, alpha):
    from unsloth import FastLanguageModel

    adapter, folder = shutil.copytree(made.folder / "adapter", tmp_path / "adapter"), tmp_path / "merged"
    edit(adapter / "adapter_config.json", lora_alpha=alpha)
    again, _ = FastLanguageModel.from_pretrained(str(adapter), max_seq_length=256, load_in_4bit=True)
    merge.merge_into_dequantised(again, adapter, made.tokenizer, folder)
    serving_prompt.save_served_prompt(folder, made.base, made.tokenizer, SERVED)
    proof = proof_of(made, folder)
    assert "merged update / our own merge of it" in failed(proof)
    assert proof["weights"]["merge_ratio"] == pytest.approx(alpha / 16, abs=0.01)


def test_the_scale_of_rslora_is_alpha_over_the_root_of_the_rank(made, tmp_path):
    folder = shutil.copytree(made.folder / "adapter", tmp_path / "adapter")
    plain = weight_checks.lora_updates(folder)
    edit(folder / "adapter_config.json", use_rslora=True)
    name = next(iter(plain))
    assert torch.allclose(weight_checks.lora_updates(folder)[name](), plain[name]() * 8**0.5)


def test_one_layer_left_out_fails(made, tmp_path, quick):
    folder, name = copied(made, tmp_path), "model.layers.2.mlp.down_proj.weight"
    base = weight_checks.base_weights(made.trained)
    rewrite(folder, lambda weights: weights.update({name: base[name].to(torch.bfloat16)}))
    assert "largest error, in roundings to 16 bits" in failed(proof_of(made, folder))


def test_another_base_fails(made, tmp_path, quick):
    """The merge into the original base is not that into the dequantised one, though both answer well."""
    assert "largest error, in roundings to 16 bits" in failed(
        proof_of(made, made.folder / "original base", "dequantised base")
    )


def test_a_weight_that_was_not_trained_and_changed_fails(made, tmp_path, quick):
    folder = copied(made, tmp_path)
    rewrite(folder, lambda weights: weights["model.norm.weight"].mul_(1.02) is None)
    assert "weights without an update that changed" in failed(proof_of(made, folder))


@pytest.mark.parametrize("head", ["random", "none", "equal"])
def test_untied_embeddings_fail(made, tmp_path, quick, head):
    folder = copied(made, tmp_path)
    edit(folder / "config.json", tie_word_embeddings=False)
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    if head != "none":
        new = embedding.clone() if head == "equal" else torch.randn_like(embedding)
        rewrite(folder, lambda weights: weights.update({"lm_head.weight": new}))
    assert "output layer tied to the embedding" in failed(proof_of(made, folder))


def test_a_swapped_tokenizer_fails(made, tmp_path, quick):
    folder = copied(made, tmp_path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    one, other = (name for name, place in vocab.items() if place in (20, 21))
    vocab[one], vocab[other] = vocab[other], vocab[one]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "fresh process: prompts tokenized as in training" in failed(proof_of(made, folder))


def test_a_swapped_chat_template_fails(made, tmp_path, quick):
    folder = copied(made, tmp_path)
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message['content'] }}\n{% endfor %}")
    proof = proof_of(made, folder)
    assert "fresh process: prompts tokenized as in training" in failed(proof)
    with pytest.raises(model_folder.ExportError, match="tokenizer or chat template are not those of the training"):
        merge_proof.refuse_unproved(proof)


def test_stray_adapter_weights_and_missing_weights_fail(made, tmp_path, quick):
    folder = copied(made, tmp_path)
    stray = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(2, 2)}
    rewrite(folder, lambda weights: weights.update(stray))
    assert "weights missing or stray" in failed(proof_of(made, folder))
    base = weight_checks.base_weights(made.trained)
    found = weight_checks.compare_weights(
        {name: t for name, t in base.items() if "layers.1." not in name},
        base,
        weight_checks.lora_updates(made.folder / "adapter"),
    )
    assert any("layers.1." in name for name in found["missing"])


def test_an_adapter_that_was_never_trained_or_broke_fails(made, tmp_path):
    folder = shutil.copytree(made.folder / "adapter", tmp_path / "adapter")
    weights = load_file(folder / "adapter_model.safetensors")
    (first, second), third = (
        [name for name in weights if "lora_B" in name][:2],
        next(name for name in weights if "lora_A" in name),
    )
    weights[first], weights[second] = torch.zeros_like(weights[first]), torch.full_like(weights[second], float("nan"))
    save_file(weights, folder / "adapter_model.safetensors")
    frozen = {"learns": {third.replace(".weight", ".default.weight"): list(checksum(weights[third]))}}
    found = weight_checks.check_adapter(folder, frozen)
    assert (found["all_zero"], found["not_finite"]) == (1, 1)
    assert (found["compared_with_start"], found["moved_since_start"]) == (1, 0)


def test_a_base_that_is_another_one_than_at_the_start_fails(made, quick):
    name = next(name for name in made.start["frozen"] if "q_proj" in name)
    other = {**made.start, "frozen": {**made.start["frozen"], name: [1, 2]}}
    assert "base tensors changed or missing since the start" in failed(
        proof_of(made, made.folder / "dequantised base", start=other)
    )


def test_the_reference_adapter_of_a_run_with_a_kl_term_is_no_part_of_the_base(made, quick):
    reference = {**made.start["frozen"], "base_model.model.model.layers.0.self_attn.q_proj.lora_A.ref.weight": [1, 2]}
    proof = proof_of(made, made.folder / "dequantised base", start={**made.start, "frozen": reference})
    assert not failed(proof) and proof["base"]["at_start"] == len(made.start["frozen"])


def test_checksums_of_other_names_fail_and_none_at_all_is_a_warning(made, quick):
    other = {"learns": {"x": [1, 2]}, "frozen": {"y": [3, 4]}}
    found = failed(proof_of(made, made.folder / "dequantised base", start=other))
    assert {"base tensors changed or missing since the start", "adapter tensors that moved since the start"} <= found
    assert any(
        "kept no start.json" in text
        for text in merge_proof.proof_warnings(proof_of(made, made.folder / "dequantised base", start={}))
    )


@pytest.mark.parametrize(
    "change", [{"eos_token_id": 3}, {"min_new_tokens": 20}, {"repetition_penalty": 1.5}, {"do_sample": False}]
)
def test_a_folder_that_decodes_otherwise_fails(made, tmp_path, quick, change):
    folder = copied(made, tmp_path)
    edit(folder / "generation_config.json", **change)
    proof = proof_of(made, folder)
    assert "settings of decoding that are not the training's" in failed(proof) and proof["decoding"] == list(change)
    if "eos_token_id" in change or "min_new_tokens" in change:
        assert "fresh process: same greedy answers" in failed(proof)


def test_noise_beside_the_update_fails():
    torch.manual_seed(0)
    base = {"w": torch.randn(64, 64).to(torch.bfloat16)}
    delta = 0.01 * torch.randn(64, 4) @ torch.randn(4, 64)
    update, exact = {"w": lambda: delta}, base["w"].float() + delta
    good = weight_checks.compare_weights({"w": exact.to(torch.bfloat16)}, base, update)
    noisy = weight_checks.compare_weights(
        {"w": (exact * (1 + 0.007 * torch.randn(64, 64))).to(torch.bfloat16)}, base, update
    )
    assert good["aside"] == 0 and noisy["aside"] > merge_proof.ASIDE + 1.5 * noisy["aside_by_rounding"]


def test_where_all_weights_were_trained_the_folder_is_compared_with_the_trained_model():
    torch.manual_seed(0)
    trained = torch.nn.Linear(64, 64, dtype=torch.bfloat16)
    merged = {name: tensor.detach().clone() for name, tensor in trained.named_parameters()}
    base = {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in merged.items()}
    updates = weight_checks.trained_updates(trained, base)
    good = weight_checks.compare_weights(merged, base, updates)
    assert good["changed"] == good["with_update"] == 2 and good["worst_rounding"] <= 1
    assert good["merge_ratio"] == pytest.approx(1) and good["aside"] < 1e-3
    assert weight_checks.compare_weights({**merged, "bias": base["bias"]}, base, updates)["worst_rounding"] > 1


def test_a_candidate_with_nan_is_not_chosen():
    assert predictions.choose_merge({"a": {"kl": float("nan")}, "b": {"kl": 0.1}})[0] == "b"


def test_a_truncated_adapter_names_the_notebook_that_makes_it(made, tmp_path):
    folder = shutil.copytree(made.folder / "adapter", tmp_path / "adapter")
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    for read in (weight_checks.lora_updates, lambda folder: weight_checks.check_adapter(folder, {})):
        with pytest.raises(model_folder.ExportError, match="run notebook 03_train_grpo again"):
            read(folder)


def test_missing_files_fail(made, tmp_path, quick):
    folder = copied(made, tmp_path)
    for name in ("generation_config.json", "chat_template.jinja"):
        (folder / name).unlink()
    assert model_folder.missing_files(folder) == ["generation_config.json", "chat_template.jinja"]
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00001-of-00002.safetensors" in model_folder.missing_files(folder)
    with pytest.raises(model_folder.ExportError, match="cannot be read"):
        weight_checks.read_weights(folder)


def test_a_truncated_weights_file_says_so(made, tmp_path):
    folder = copied(made, tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(model_folder.ExportError, match="cannot be read"):
        weight_checks.read_weights(folder)
    with pytest.raises(model_folder.ExportError, match="could not be loaded with plain transformers"):
        predictions.answer_in_fresh_process(folder, [[{"role": "user", "content": "hi"}]], 4)


def test_rounding_that_swallows_a_small_update_is_a_warning():
    torch.manual_seed(0)
    base = {"w": torch.randn(64, 64).to(torch.bfloat16)}
    delta = 1e-4 * torch.randn(64, 4) @ torch.randn(4, 64)
    update, merged = {"w": lambda: delta}, {"w": (base["w"].float() + delta).to(torch.bfloat16)}
    found = weight_checks.compare_weights(merged, base, update)
    assert (
        found["merge_ratio"] == pytest.approx(1)
        and found["worst_rounding"] <= 1
        and found["update_kept"] != pytest.approx(1, abs=0.005)
    )
    half = {"w": (base["w"].float() + 0.5 * delta).to(torch.bfloat16)}
    assert abs(weight_checks.compare_weights(half, base, update)["merge_ratio"] - 1) > 0.03, (
        "and a wrong scale is still seen"
    )
    said = merge_proof.proof_warnings({"weights": {"update_kept": 0.4}, "greedy_as_trained": 1.0, "adapter": None})
    assert "kept 40 % of the update" in said[0]


@pytest.mark.parametrize("more", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}, {"rank_pattern": {"q": 4}}])
def test_an_adapter_that_is_more_than_lora_is_told(made, tmp_path, more):
    folder = shutil.copytree(made.folder / "adapter", tmp_path / "adapter")
    edit(folder / "adapter_config.json", **more)
    with pytest.raises(model_folder.ExportError, match=next(iter(more))):
        weight_checks.lora_updates(folder)


def test_a_candidate_chosen_by_hand_must_be_there():
    with pytest.raises(model_folder.ExportError, match="there are: 'original base', and \"auto\""):
        predictions.choose_merge({"original base": {"kl": 0.1}}, "original")
    assert predictions.choose_merge({"original base": {"kl": 0.1}}, "original base")[0] == "original base"


def test_nothing_to_compare_on_is_told(made):
    with pytest.raises(model_folder.ExportError, match="at least one held-out problem"):
        predictions.proof_sample(made.tokenizer, [], [])


def test_another_adapter_is_another_identity(made, tmp_path):
    folder = shutil.copytree(made.folder / "adapter", tmp_path / "adapter")
    assert model_folder.model_identity(folder) == model_folder.model_identity(made.folder / "adapter")
    edit(folder / "adapter_config.json", lora_alpha=3)
    assert (
        model_folder.model_identity(folder)
        != model_folder.model_identity(made.folder / "adapter")
        != model_folder.model_identity(made.folder / "original base")
    )


def test_prefill_stop_and_system_prompt_are_in_the_folder(made, tmp_path):
    served = serving_prompt.ServedPrompt(preamble=[SYSTEM], prefill="<think>\n", stop=("</think>",), max_new_tokens=24)
    folder = copied(made, tmp_path)
    serving_prompt.save_served_prompt(folder, made.base, made.tokenizer, served)
    chats = [prompts.begin_answer(chat, served.prefill) for chat in made.chats]
    how = {"temperature": 0, "max_new_tokens": 24, "stop": served.stop}
    replies = [answer.text for (answer,) in sampling.sample(made.trained, made.tokenizer, chats, **how)]
    proof = proof_of(made, folder, chats=chats, replies=replies, served=served)
    assert not failed(proof), failed(proof)
    assert proof["fresh_process"]["first_answer"].startswith("<think>\n")


@pytest.mark.parametrize("all_weights", [False, True])
def test_a_model_that_training_did_not_move_is_named_as_such_and_not_as_a_dropped_adapter(tmp_path, all_weights):
    name, base = "base_model.model.w.lora_{}.weight", {"w.weight": torch.randn(8, 8)}
    tensors = {name.format("A"): torch.randn(2, 8), name.format("B"): torch.zeros(8, 2)}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 4}))
    start = {"learns": {key: list(checksum(tensor)) for key, tensor in tensors.items()}}
    updates = {"w.weight": lambda: torch.zeros(8, 8)} if all_weights else weight_checks.lora_updates(tmp_path)
    adapter = None if all_weights else weight_checks.check_adapter(tmp_path, start)
    proof = {"adapter": adapter, "weights": weight_checks.compare_weights(base, base, updates)}
    with pytest.raises(model_folder.ExportError) as raised:
        merge_proof.refuse_unproved(proof, "Nothing was learned: all rewards were equal.")
    assert str(raised.value).startswith(
        "There is nothing to merge: the training moved no weight of the model.\nNothing was"
    )
    if adapter:
        said = merge_proof.proof_warnings({**proof, "greedy_as_trained": 1.0})
        assert said == ["The training moved no weight of the adapter: there is nothing to merge."]
    with pytest.raises(model_folder.ExportError, match="No gradient reached it: look at grad_norm"):
        merge_proof.refuse_unproved(proof)
    dropped = weight_checks.compare_weights(base, base, {"w.weight": lambda: torch.ones(8, 8)})
    assert not merge_proof.nothing_moved({"adapter": None, "weights": dropped}), "this one was trained, and not merged"
