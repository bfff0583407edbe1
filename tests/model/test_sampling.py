"""Sampling: plain decoding, batches that do not depend on each other, stop texts."""

import pytest

from lab.files import STARTER_POLICY, WORD_PROBLEMS, read_jsonl
from lab.model.prompts import build_prompt
from lab.model.sampling import Sampled, cut_completion, sample, sample_batches

QUESTIONS = [row["question"] for row in read_jsonl(WORD_PROBLEMS) if row["split"] == "test"]
PROMPTS = [build_prompt(question) for question in QUESTIONS[:5]]


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype="float32").eval()


def test_a_models_own_decoding_habits_are_ignored_and_given_back(model, tokenizer):
    how = {"n": 2, "max_new_tokens": 24, "batch_size": 4, "seed": 1}
    greedy = {"temperature": 0, "max_new_tokens": 24}
    plain = sample(model, tokenizer, PROMPTS, **how), sample(model, tokenizer, PROMPTS, **greedy)
    own, config = model.generation_config, model.generation_config.to_dict()
    habits = {
        "repetition_penalty": 1.6,
        "temperature": 0.1,
        "top_k": 2,
        "top_p": 0.5,
        "min_p": 0.5,
        "do_sample": True,
        "max_length": 9,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[20]],
        "suppress_tokens": [21, 22],
        "min_new_tokens": 20,
    }
    try:
        own.update(**habits)
        assert (sample(model, tokenizer, PROMPTS, **how), sample(model, tokenizer, PROMPTS, **greedy)) == plain
        assert model.generation_config is own and own.repetition_penalty == 1.6
    finally:
        model.generation_config = type(own).from_dict(config)


def test_the_decoding_habits_of_an_adapters_base_are_given_back_too(tokenizer):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype="float32").eval()
    plain = sample(base, tokenizer, PROMPTS, temperature=0, max_new_tokens=24)
    base.generation_config.repetition_penalty = 1.6
    adapted = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"]))
    assert sample(adapted, tokenizer, PROMPTS, temperature=0, max_new_tokens=24) == plain
    assert base.generation_config.repetition_penalty == adapted.generation_config.repetition_penalty == 1.6


def test_a_batch_is_the_same_whether_or_not_those_before_it_were_sampled(model, tokenizer):
    how = {"n": 2, "max_new_tokens": 16, "batch_size": 4, "seed": 7}
    whole = sample(model, tokenizer, PROMPTS, **how)
    ((places, groups, seconds),) = sample_batches(model, tokenizer, PROMPTS, **how, skip={0, 1})
    assert [whole[i] for i in places] == groups and seconds > 0
    assert sample(model, tokenizer, PROMPTS, **{**how, "seed": 8}) != whole
    twins = sample(model, tokenizer, PROMPTS[:1] * 4, **how)
    assert twins[:2] != twins[2:], "two batches of the same prompts must not have the same random numbers"


def test_a_completion_ends_at_a_stop_text_and_keeps_it(model, tokenizer):
    greedy = {"temperature": 0, "max_new_tokens": 40}
    whole, stopped = (sample(model, tokenizer, PROMPTS, **greedy, stop=stop) for stop in ((), (" = ", "zzz")))
    for (long,), (short,) in zip(whole, stopped):
        at = long.text.find(" = ")
        assert at >= 0, long
        assert short.finished and short.text == long.text[: at + 3] and short.tokens < long.tokens
        assert len(tokenizer(short.text, add_special_tokens=False)["input_ids"]) <= short.tokens + 1
    assert sample(model, tokenizer, PROMPTS, **greedy, stop=["zzz"]) == whole


def test_nothing_is_kept_behind_a_stop_text_inside_a_token(tokenizer):
    ids = tokenizer("first part", add_special_tokens=False)["input_ids"]
    one = tokenizer.decode(ids[:1])
    assert len(one) > 2
    assert cut_completion(ids, tokenizer, set(), [one[:2], "part"], 9) == Sampled(one[:2], 1, True)


def test_a_row_stopped_by_a_text_that_began_in_its_prompt_counts_as_finished(tokenizer):
    ids = tokenizer("teas: 2", add_special_tokens=False)["input_ids"]
    end, padded = tokenizer.convert_tokens_to_ids("<|im_end|>"), [*ids, *[tokenizer.pad_token_id] * 3]
    assert end != tokenizer.pad_token_id
    assert cut_completion(padded, tokenizer, {end}, ["x"], len(padded)) == Sampled("teas: 2", len(ids), True)
    assert cut_completion(ids, tokenizer, {end}, ["x"], len(ids)) == Sampled("teas: 2", len(ids), False)
    assert cut_completion([*ids, end, 9], tokenizer, {end}) == Sampled("teas: 2", len(ids) + 1, True)


def test_sampling_keeps_the_order_of_prompts_and_the_length_of_groups(tokenizer):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype="float32").eval()
    prompts = [
        [{"role": "user", "content": text}]
        for text in ("short", "a much longer prompt than the others " * 3, "mid size")
    ]
    together = sample(model, tokenizer, prompts, temperature=0, max_new_tokens=8, batch_size=2)
    alone = [sample(model, tokenizer, [prompt], temperature=0, max_new_tokens=8)[0] for prompt in prompts]
    assert [one.text for (one,) in together] == [one.text for (one,) in alone]
    assert [len(group) for group in sample(model, tokenizer, prompts, n=3, max_new_tokens=4)] == [3, 3, 3]
    with pytest.raises(ValueError, match="greedy"):
        sample(model, tokenizer, prompts, n=2, temperature=0)
