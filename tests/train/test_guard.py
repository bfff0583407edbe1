"""The guard: settings that would not run, or not as written, are refused before anything is loaded."""

import dataclasses
import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lab.train import memory_needs, settings_check
from lab.train.effective_settings import effective_settings
from lab.train.memory_needs import memory_estimate
from lab.train.settings_check import REMOVED, SettingsError, check_settings

NO_CARD, TURING, AMPERE = ({"bf16": b, "fp16": f} for b, f in ((False, False), (False, True), (True, False)))
GOOD = dict(
    output_dir="run",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=8,
    num_generations=8,
    max_steps=250,
    max_completion_length=512,
    learning_rate=1e-5,
    beta=0.02,
    temperature=1.0,
    logging_steps=1,
    save_steps=50,
    lr_scheduler_type="constant_with_warmup",
    optim="adamw_torch",
    bf16=False,
    fp16=False,
    report_to="none",
)
LIMITED = SimpleNamespace(get_text_config=lambda: SimpleNamespace(max_position_embeddings=600, hidden_size=128))


@pytest.fixture(autouse=True)
def card(monkeypatch):
    """Makes this machine look like one with such a card; without one until a test asks."""

    def make(has):
        monkeypatch.setattr(settings_check, "precision", lambda: dict(has))
        monkeypatch.setattr(settings_check, "has_tf32", lambda: has["bf16"])

    make(NO_CARD)
    return make


def refused(settings=(), **about):
    """The problems of GOOD settings with these changes, as one text."""
    with pytest.raises(SettingsError) as error:
        check_settings({**GOOD, **dict(settings)}, **about)
    assert all(problem in str(error.value) for problem in error.value.problems)
    return "\n".join(error.value.problems)


def warned(settings=(), **about):
    return "\n".join(check_settings({**GOOD, **dict(settings)}, **about))


def test_good_settings_pass_without_a_warning():
    assert check_settings(GOOD) == []


def test_all_problems_are_collected_into_one_error():
    with pytest.raises(ValueError) as error:
        check_settings({**GOOD, "num_genrations": 8, "beta": -1, "num_generations": 6, "bf16": True})
    assert len(error.value.problems) == 4
    assert str(error.value).splitlines()[0] == "The settings have 4 problems:" and str(error.value).count("\n  - ") == 4


# --------------------------------------------------------------------------- names


def test_an_unknown_field_is_refused_with_the_nearest_name():
    text = refused({"learnign_rate": 1e-5})
    assert text == "learnign_rate is no GRPOConfig field in trl 1.14.0: did you mean learning_rate?"
    assert refused({"xyzzy": 1}).endswith("leave it out.")


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_field_is_absent_and_its_replacement_there(name):
    from trl import GRPOConfig

    there = {field.name for field in dataclasses.fields(GRPOConfig)}
    replacement, way_out = REMOVED[name]
    assert name not in there and (replacement is None or (replacement in there and replacement in way_out))
    assert refused({name: 1}) == f"{name} is no GRPOConfig field in trl 1.14.0: {way_out}."


def test_a_field_that_only_unsloth_s_class_has_is_right_where_that_class_stands(monkeypatch):
    import trl

    assert "unsloth_num_chunks is no GRPOConfig field" in refused({"unsloth_num_chunks": 4})
    monkeypatch.setattr(trl, "GRPOConfig", unsloth_like())
    assert check_settings({**GOOD, "unsloth_num_chunks": 4}) == []


# --------------------------------------------------------------------------- types and ranges


@pytest.mark.parametrize(
    "name, value, way_out",
    [
        ("learning_rate", "1e-5", "learning_rate is '1e-5', a str: write the number without quotes."),
        ("num_generations", 8.0, "num_generations is 8.0, a float: write 8."),
        ("max_steps", 7.5, "a float: give a value of type int."),
        ("max_steps", True, "max_steps is True, a bool: give a value of type int."),
        ("gradient_checkpointing", "False", "write True or False without quotes."),
        ("reward_weights", ["1"], "reward_weights is ['1'], a list: give a value of type list."),
        ("optim", "adamw_8bits", "did you mean adamw_8bit?"),
        ("lr_scheduler_type", "cosin", "did you mean cosine?"),
        ("loss_type", "dr-grpo", "loss_type is 'dr-grpo': did you mean dr_grpo?"),
        ("scale_rewards", "std", "give one of group, batch, none."),
        ("learning_rate", float("nan"), "learning_rate is nan: give a finite number."),
        ("learning_rate", 0, "learning_rate is 0: it must be above 0."),
        ("temperature", 0.0, "temperature is 0.0: it must be above 0 and below 10."),
        ("temperature", 10.0, "it must be above 0 and below 10."),
        ("beta", -0.1, "beta is -0.1: it must be 0 or above."),
        ("num_generations", 1, "it must be 2 or above: GRPO compares"),
        ("max_steps", 0, "it must be 1 or above, or -1"),
        ("top_p", 1.5, "it must be above 0 and at most 1."),
        ("min_p", -1.0, "it must be between 0 and 1."),
        ("gradient_accumulation_steps", 0, "it must be 1 or above."),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused_with_the_way_out(name, value, way_out):
    text = refused({name: value})
    assert way_out in text and "\n" not in text  # one problem: a bad value sets off no other rule


BOUNDED = (
    "learning_rate logging_steps save_steps num_train_epochs repetition_penalty beta epsilon epsilon_high weight_decay "
    "warmup_steps max_grad_norm top_k per_device_train_batch_size per_device_eval_batch_size min_p max_steps top_p "
    "gradient_accumulation_steps steps_per_generation generation_batch_size num_iterations max_completion_length "
    "vllm_gpu_memory_utilization temperature num_generations"
).split()


@pytest.mark.parametrize("name", BOUNDED)
def test_every_range_refuses_minus_seven(name):
    assert refused({name: -7}) == f"{name} is -7: it must be {settings_check.RANGES[name][0]}."


@pytest.mark.parametrize("name", ["loss_type", "scale_rewards", "importance_sampling_level", "vllm_mode"])
def test_every_choice_refuses_another_word(name):
    assert f"{name} is 'xyzzy': give one of " in refused({name: "xyzzy"})


@pytest.mark.parametrize("name", sorted({name for _, reads in settings_check.PROBLEMS for name in reads}))
def test_a_bad_value_is_reported_once_and_sets_off_no_other_rule(name):
    about = {"report": {"max_prompt_tokens": 50}, "model_config": LIMITED, "rewards": ["a"]}
    assert refused({"eval_strategy": "no", name: object()}, **about).count("\n") == 0
    assert refused({"eval_strategy": "epoch", name: object()}, **about).count("\n") == 0


@pytest.mark.parametrize(
    "good",
    [
        {"learning_rate": 1, "max_steps": -1},
        {"warmup_steps": 0.1},
        {"output_dir": Path("run")},
        {"scale_rewards": False},
        {"report_to": ["mlflow"]},
        {"reward_weights": [1, 0.5]},
        {"reward_weights": (1.0,)},
        {"top_k": 0},
        {"top_p": None},
        {"model_init_kwargs": {"a": 1}},
        {"save_steps": 0.5},
        {"debug": ""},
        {"trackio_static_space_id": False},
    ],
)
def test_values_that_trl_takes_are_not_refused(good):
    check_settings({**GOOD, **good}, starter=True)


def test_every_default_of_trl_and_every_member_of_its_enums_fits_its_own_type():
    import typing

    from transformers.training_args import OptimizerNames
    from trl import GRPOConfig

    hints = typing.get_type_hints(GRPOConfig)
    for name, default in settings_check.trl_defaults().items():
        assert default is None or settings_check.value_problem(name, default, hints[name]) is None, name
    for member in OptimizerNames:
        assert settings_check.fits(member, hints["optim"]) and settings_check.fits(member.value, hints["optim"])


def test_the_choices_are_those_in_trl_s_source():
    from trl import GRPOConfig, GRPOTrainer

    source = inspect.getsource(GRPOTrainer) + inspect.getsource(settings_check.pristine(GRPOConfig))
    for values in settings_check.CHOICES.values():
        assert all(f'"{value}"' in source for value in values if isinstance(value, str)), values


# --------------------------------------------------------------------------- batches


def test_a_batch_of_no_whole_groups_is_refused_with_the_nearest_valid_values():
    text = refused({"per_device_train_batch_size": 12, "gradient_accumulation_steps": 1})
    assert "= 12 completions are no whole groups of 8" in text
    assert "set per_device_train_batch_size to 8 or 16, or num_generations to 6 or 12." in text
    assert "to 8, or num_generations to 3." in refused(
        {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 1}
    )


def test_processes_and_accumulation_count_in_the_batch():
    settings = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}
    assert "× gradient_accumulation_steps × 2 processes = 12" in refused(settings, world_size=2)
    assert "set per_device_train_batch_size to 2 or 4" in refused(settings, world_size=2)
    assert check_settings({**GOOD, **settings}, world_size=4) == []


def test_steps_per_generation_takes_the_place_of_accumulation_in_the_batch():
    half = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 1}
    assert "per_device_train_batch_size × steps_per_generation = 4" in refused(half)
    assert check_settings({**GOOD, **half, "steps_per_generation": 2}) == []


def test_generation_batch_size_holds_whole_groups_and_whole_batches():
    assert "set it to 64 or 72" in refused({"generation_batch_size": 68})
    assert "set it to 24 or 48" in refused({"generation_batch_size": 32, "per_device_train_batch_size": 12})
    assert "are both set: leave one out" in refused({"generation_batch_size": 64, "steps_per_generation": 8})


def test_the_guard_refuses_the_batches_that_trl_refuses(tmp_path):
    from trl import GRPOConfig

    for size in (3, 4, 6, 8):
        for steps in (1, 2, 4):
            for more in ({}, {"steps_per_generation": 2}, {"generation_batch_size": 24}):
                shape = {
                    "per_device_train_batch_size": size,
                    "gradient_accumulation_steps": steps,
                    "save_strategy": "no",
                    **more,
                }
                outcomes = []
                for attempt in (check_settings, lambda settings: GRPOConfig(**settings)):
                    try:
                        attempt({**GOOD, **shape, "output_dir": str(tmp_path)})
                        outcomes.append("fine")
                    except ValueError:
                        outcomes.append("refused")
                assert outcomes[0] == outcomes[1], shape


def test_evaluation_needs_whole_groups_only_where_it_takes_place():
    odd = {"per_device_eval_batch_size": 12}
    assert check_settings({**GOOD, **odd}) == []
    assert "per_device_eval_batch_size = 12 on 1 process(es)" in refused({**odd, "eval_strategy": "steps"})
    assert "set it to 8 or 16" in refused({**odd, "eval_strategy": "steps"})
    assert check_settings({**GOOD, **odd, "eval_strategy": "steps", "num_generations_eval": 4}) == []
    assert check_settings({**GOOD, **odd, "eval_strategy": "steps"}, world_size=2) == []


# --------------------------------------------------------------------------- the card


def test_bf16_on_a_card_without_it_is_sent_to_fp16(card):
    card(TURING)
    assert (
        refused({"bf16": True})
        == "this card has no bfloat16 (a T4 or V100 only emulates it): set fp16=True and bf16=False."
    )
    assert "set fp16=True" in refused({"bf16": None})  # for TRL None means bf16
    assert check_settings({**GOOD, "fp16": True}) == []


def test_both_precisions_at_once_are_refused(card):
    card(AMPERE)
    assert "bf16 and fp16 are both True: keep bf16" in refused({"bf16": True, "fp16": True})
    card(TURING)
    assert "keep fp16" in refused({"bf16": True, "fp16": True})


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_half_precision_on_a_cpu_is_refused(name, card):
    assert refused({name: True}) == f"{name} is True, and there is no CUDA card: set bf16=False and fp16=False."
    card(AMPERE)
    assert check_settings({**GOOD, name: True}) == []


def test_tf32_is_refused_where_no_card_has_it(card):
    assert "tf32 is True" in refused({"tf32": True})
    card(AMPERE)
    assert check_settings({**GOOD, "tf32": True}) == []


# --------------------------------------------------------------------------- lengths, rewards, columns, what is trained


def test_prompt_and_completion_fit_into_the_model_s_positions():
    report = {"max_prompt_tokens": 100}
    text = refused(report=report, model_config=LIMITED)
    assert "need 612, and the model's max_position_embeddings is 600: set max_completion_length to 500 or less" in text
    assert check_settings({**GOOD, "max_completion_length": 500}, report=report, model_config=LIMITED) == []
    assert "set a smaller MAX_PROMPT_TOKENS" in refused(report={"max_prompt_tokens": 700}, model_config=LIMITED)


def test_prompt_and_completion_fit_into_the_loaded_length():
    text = refused(report={"max_prompt_tokens": 100}, max_seq_length=400)
    assert (
        "max_seq_length is 400: set max_completion_length to 300 or less" in text
        and "raise max_seq_length to 612" in text
    )
    assert check_settings(GOOD, report={"max_prompt_tokens": 100}, max_seq_length=612) == []


def test_each_reward_has_one_weight():
    assert "reward_weights has 1 values for 2 rewards" in refused({"reward_weights": [1.0]}, rewards=["a", "b"])
    assert check_settings({**GOOD, "reward_weights": [1.0, 0.5]}, rewards=["a", "b"]) == []


def test_a_column_that_is_missing_is_named():
    from rewards import correctness_reward

    assert "has no column prompt (there are: question)" in refused(columns=["question"])
    assert "correctness_reward needs the data-set column 'answer'" in refused(
        columns=["prompt"], rewards=[correctness_reward]
    )
    assert check_settings(GOOD, columns=["prompt", "answer"], rewards=[correctness_reward]) == []


def test_full_fine_tuning_in_4_bits_is_refused():
    assert "set load_in_4bit=False" in refused({"learning_rate": 1e-6}, full_finetuning=True, load_in_4bit=True)
    assert check_settings({**GOOD, "learning_rate": 1e-6}, full_finetuning=True, lora_rank=0) == []


def test_an_adapter_needs_a_rank():
    assert "lora_rank is 0" in refused(lora_rank=0) and "lora_rank is '16'" in refused(lora_rank="16")


def test_4_bits_on_a_cpu_need_widths_of_64(card):
    narrow = SimpleNamespace(get_text_config=lambda: SimpleNamespace(hidden_size=100, intermediate_size=256))
    assert "the model's width 100 is no multiple of 64" in refused(model_config=narrow, load_in_4bit=True)
    assert (
        check_settings(GOOD, model_config=narrow) == [] == check_settings(GOOD, model_config=LIMITED, load_in_4bit=True)
    )
    card(AMPERE)
    assert check_settings(GOOD, model_config=narrow, load_in_4bit=True) == []


# --------------------------------------------------------------------------- saves


def test_a_save_inside_a_block_of_reused_completions_is_refused_with_the_nearest():
    assert "used for 3 updates" in refused({"num_iterations": 3}) and "set save_steps to 48 or 51" in refused(
        {"num_iterations": 3}
    )
    assert check_settings({**GOOD, "num_iterations": 2}) == []
    assert check_settings({**GOOD, "num_iterations": 3, "save_strategy": "no"}) == []
    assert "save_steps = 25" in refused({"num_iterations": 2, "save_steps": 0.1})  # a share of the 250 steps


def test_a_save_inside_a_block_of_several_steps_a_generation_is_refused():
    more = {"gradient_accumulation_steps": 2, "steps_per_generation": 8}
    assert "used for 4 updates" in refused(more) and "set save_steps to 48 or 52" in refused(more)
    assert "used for 4 updates" in refused({"gradient_accumulation_steps": 2, "generation_batch_size": 64})
    assert check_settings({**GOOD, **more, "save_steps": 48}) == []


# --------------------------------------------------------------------------- warnings


def test_a_high_learning_rate_is_suspicious_for_a_real_model_only():
    assert "above 0.0001 GRPO often collapses" in warned({"learning_rate": 2e-4})
    assert warned({"learning_rate": 1e-3}, starter=True) == ""
    assert "high for full fine-tuning: above 1e-05" in warned({"learning_rate": 2e-5}, full_finetuning=True)
    assert warned({"learning_rate": 2e-5}) == ""


def test_beta_0_is_said_to_measure_no_kl():
    assert "beta = 0 measures no KL" in warned({"beta": 0.0}) and "no KL" in "\n".join(check_settings({}, starter=True))


def test_gaps_in_the_log_are_said():
    assert "not every step is recorded" in warned({"logging_steps": 10})
    assert "not every step is recorded" in warned({"logging_steps": 0.1})
    assert "not every step is recorded" in warned({"logging_strategy": "epoch"})


def test_a_short_run_is_suspicious_for_a_real_model_only():
    assert "max_steps = 20 is short" in warned({"max_steps": 20})
    assert warned({"max_steps": 20}, starter=True) == warned({"max_steps": -1}) == ""


def test_a_temperature_far_from_1_is_suspicious():
    assert "groups become alike" in warned({"temperature": 0.3}) and "fall apart" in warned({"temperature": 1.8})
    assert warned({"temperature": 0.9}) == ""


# --------------------------------------------------------------------------- requested and effective


def unsloth_like():
    """A config class as Unsloth puts in the place of TRL's on a GPU: other defaults in `__init__`, TRL's name."""
    from trl.trainer.grpo_config import GRPOConfig as Own

    @dataclasses.dataclass
    class GRPOConfig(Own):
        unsloth_num_chunks: int | None = -1

        def __init__(self, per_device_train_batch_size=4, gradient_accumulation_steps=2, seed=3407, **more):
            more.pop("learnign_rate", None)
            unsloth_num_chunks = more.pop("unsloth_num_chunks", -1)
            super().__init__(
                per_device_train_batch_size=per_device_train_batch_size,
                gradient_accumulation_steps=gradient_accumulation_steps,
                seed=seed,
                **more,
            )
            self.unsloth_num_chunks = unsloth_num_chunks

    GRPOConfig.__module__, GRPOConfig.__qualname__ = Own.__module__, Own.__qualname__
    return GRPOConfig


def made(config_class=None, **settings):
    from trl import GRPOConfig

    return (config_class or GRPOConfig)(**{"use_cpu": True, **settings})


def test_equal_values_in_another_guise_are_not_changed(tmp_path):
    asked = dict(
        output_dir=tmp_path,
        learning_rate=1,
        lr_scheduler_type="cosine",
        report_to="none",
        scale_rewards=False,
        bf16=False,
        reward_weights=(1, 0.5),
        logging_steps=1.0,
        debug="",
        use_cpu=True,
        eval_strategy="no",
        optim="adamw_torch_fused",
    )
    table = effective_settings(asked, made(**{**asked, "output_dir": str(tmp_path)}))
    assert set(asked) <= set(table.index) and set(table.loc[list(asked), "changed"]) == {""}
    assert table.loc["lr_scheduler_type"].tolist() == ["cosine", "cosine", "linear", ""]


def test_a_value_that_was_changed_is_marked(tmp_path):
    asked = dict(output_dir=str(tmp_path), bf16=False, learning_rate=1e-5, beta=0.02)
    args = made(**asked)
    args.beta = 0.0
    table = effective_settings(asked, args)
    assert (
        table.loc["beta"].tolist() == ["0.02", "0.0", "0.0", effective_settings.CHANGED]
        and table.loc["learning_rate", "changed"] == ""
    )


def test_a_value_that_nobody_asked_for_is_listed_where_it_is_not_trl_s_own(tmp_path):
    asked = dict(output_dir=str(tmp_path), bf16=False)
    quiet = effective_settings(asked, made(**asked))
    assert set(quiet.index) - set(asked) <= {
        "use_cpu",
        "gradient_checkpointing_kwargs",
    }  # Unsloth's CPU backend sets both
    args = made(**asked)
    args.weight_decay = 0.001
    assert effective_settings(asked, args).loc["weight_decay"].tolist() == [
        "–",
        "0.001",
        "0.0",
        effective_settings.CHANGED,
    ]


def test_defaults_are_trl_s_own_also_where_unsloth_replaced_the_class(tmp_path, monkeypatch):
    import trl

    replaced, own = unsloth_like(), trl.GRPOConfig
    asked = {"output_dir": str(tmp_path), "num_generations": 4, "learnign_rate": 1.0}
    table = effective_settings(asked, made(replaced, **asked))
    assert settings_check.pristine(replaced) is settings_check.pristine(own) is own
    assert table.loc["per_device_train_batch_size"].tolist() == ["–", "4", "8", effective_settings.CHANGED]
    assert table.loc["seed"].tolist() == ["–", "3407", "42", effective_settings.CHANGED]
    assert table.loc["learnign_rate"].tolist() == ["1.0", effective_settings.ABSENT, "–", effective_settings.CHANGED]
    monkeypatch.setattr(trl, "GRPOConfig", replaced)
    assert settings_check.trl_defaults()["per_device_train_batch_size"] == 8
    assert settings_check.live_defaults()["per_device_train_batch_size"] == 4  # what a batch left open would get there


def test_a_token_is_not_shown(tmp_path):
    asked = dict(output_dir=str(tmp_path), hub_token="secret")
    assert not effective_settings(asked, made(**asked)).isin(["secret"]).any().any()


# --------------------------------------------------------------------------- memory


def tiny(kind):
    from transformers import Gemma3TextConfig, LlamaConfig, Qwen2Config

    size = dict(
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=300,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    if kind == "gemma3":
        return Gemma3TextConfig(
            **size, head_dim=48, sliding_window=16, layer_types=["sliding_attention", "full_attention"]
        )
    return {"llama": LlamaConfig, "qwen2": Qwen2Config}[kind](**size, tie_word_embeddings=kind == "qwen2")


KINDS = ["llama", "qwen2", "gemma3"]


@pytest.fixture(params=KINDS)
def real(request):
    from transformers import AutoModelForCausalLM

    config = tiny(request.param)
    return config, AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def estimate(config, **changes):
    how = dict(max_prompt_tokens=20, load_in_4bit=False, lora_rank=8) | {
        key: changes.pop(key)
        for key in list(changes)
        if key in ("load_in_4bit", "lora_rank", "full_finetuning", "target_modules")
    }
    settings = dict(
        per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4, max_completion_length=30
    )
    return memory_estimate(config, settings={**settings, "bf16": False, "optim": "adamw_torch", **changes}, **how)


def test_base_weights_are_those_of_the_real_model(real):
    config, model = real
    assert estimate(config).loc["base weights", "bytes"] == sum(
        p.numel() * p.element_size() for p in model.parameters()
    )
    assert estimate(config, bf16=True).loc["base weights", "bytes"] == sum(2 * p.numel() for p in model.parameters())


@pytest.mark.parametrize("targets", [memory_needs.TARGET_MODULES, ("q_proj", "v_proj")])
def test_the_adapter_is_that_of_the_real_peft_model(real, targets):
    from peft import LoraConfig, get_peft_model

    config, model = real
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules=list(targets), task_type="CAUSAL_LM"))
    trained = [p for p in adapted.parameters() if p.requires_grad]
    table = estimate(config, target_modules=targets)
    assert table.loc["adapter", "bytes"] == sum(p.numel() * p.element_size() for p in trained)
    optimiser = torch.optim.AdamW(trained)
    for p in trained:
        p.grad = torch.ones_like(p)
    optimiser.step()
    states = [x for state in optimiser.state.values() for name, x in state.items() if name != "step"]
    by_hand = sum(x.numel() * x.element_size() for x in [*states, *(p.grad for p in trained)])
    assert table.loc["gradients and optimiser states", "bytes"] == by_hand


def test_the_kv_cache_is_that_of_the_real_model(real):
    config, model = real
    for tokens in (10, 50):  # below and above the sliding window
        with torch.no_grad():
            cache = model(torch.ones(8, tokens, dtype=torch.long), use_cache=True).past_key_values
        by_hand = sum(x.numel() * x.element_size() for layer in cache.layers for x in (layer.keys, layer.values))
        assert memory_needs.kv_cache_bytes(config, 8, tokens, 4) == by_hand
    table = estimate(config)  # 4 × 2 sequences are generated at once, of 20 + 30 tokens
    assert table.loc["KV cache while generating", "bytes"] == by_hand


def test_4_bits_are_what_bitsandbytes_packs():
    import bitsandbytes.functional as packed

    weight = torch.randn(320, 128)
    data, state = packed.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    by_hand = sum(x.numel() * x.element_size() for x in (data, state.absmax, state.state2.absmax))
    model = torch.nn.Module()
    model.layer, model.get_output_embeddings = torch.nn.Linear(128, 320, bias=False), lambda: None
    assert memory_needs.base_bytes(model, True, 2) == (320 * 128, by_hand)
    assert by_hand * 8 / weight.numel() == pytest.approx(4.127, abs=0.003)


def test_4_bits_leave_embeddings_norms_and_the_output_layer_alone(real):
    config, model = real
    linear = sum(p.numel() for name, p in model.named_parameters() if "_proj" in name and name.endswith("weight"))
    rest = sum(p.numel() for p in model.parameters()) - linear
    found = estimate(config, load_in_4bit=True, bf16=True).loc["base weights", "bytes"]
    assert found == pytest.approx(2 * rest + linear * 4.127 / 8, rel=1e-3)


def test_logits_and_activations_grow_with_the_batch_and_checkpointing_saves():
    one, two = (estimate(tiny("llama"), per_device_train_batch_size=size) for size in (4, 8))
    assert two.loc["logits", "bytes"] == 2 * one.loc["logits", "bytes"] == 2 * (2 * 4 * 4 * 30 * 300)
    assert two.loc["activations", "bytes"] == 2 * one.loc["activations", "bytes"]
    kept = estimate(tiny("llama"), gradient_checkpointing=False).loc["activations", "bytes"]
    layer = 6 * 128 + 6 * 128 + 4 * 64 + 4 * 320
    assert kept == 4 * 50 * 4 * 2 * layer and one.loc["activations", "bytes"] == 4 * 50 * 4 * (2 * 128 + layer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_right_to_a_factor_of_two(real, dtype):
    config, model = real
    model.to(dtype)
    kept = {}

    def keep(tensor):
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor  # the graph holds it, so that no address is used twice

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        graph = model.base_model(torch.ones(4, 50, dtype=torch.long), use_cache=False)
    estimated, saved = (
        memory_needs.activation_bytes(config, 4 * 50, dtype.itemsize, checkpointing=False),
        sum(kept.values()),
    )
    del graph
    assert 0.5 < estimated / saved < 2, (estimated, saved)


def test_an_8_bit_optimiser_takes_a_quarter():
    full, small = (
        estimate(tiny("llama"), optim=optim).loc["gradients and optimiser states"]
        for optim in ("adamw_torch", "adamw_8bit")
    )
    parameters = full["bytes"] // 12
    assert small["bytes"] == round(parameters * (4 + 2 * (1 + 4 / 256)))


def test_full_fine_tuning_trains_every_weight_and_keeps_a_reference_for_the_kl_term():
    adapter, full = (estimate(tiny("llama"), full_finetuning=flag, beta=0.02) for flag in (False, True))
    assert (
        "reference model" not in adapter.index
        and "reference model" not in estimate(tiny("llama"), full_finetuning=True, beta=0.0).index
    )
    assert (
        full.loc["reference model", "bytes"] == full.loc["base weights", "bytes"] and full.loc["adapter", "bytes"] == 0
    )
    assert full.loc["gradients and optimiser states", "bytes"] == 3 * full.loc["base weights", "bytes"]


def test_the_total_is_the_higher_of_the_two_peaks_and_each_part_says_how():
    table = estimate(tiny("llama"))
    by_time = table.groupby("when")["bytes"].sum()
    assert table.attrs["total_bytes"] == by_time["always"] + max(by_time["generating"], by_time["training"])
    assert all(table["formula"].str.len() > 10) and table.loc["logits", "size"] == "0.3 MB"


def test_more_than_nine_tenths_of_the_free_memory_is_warned_of(monkeypatch):
    total = estimate(tiny("llama")).attrs["total_bytes"]
    monkeypatch.setattr(memory_needs, "free_bytes", lambda: int(total / 0.89))
    assert estimate(tiny("llama")).attrs["warning"] == ""
    monkeypatch.setattr(memory_needs, "free_bytes", lambda: int(total / 0.91))
    assert (
        "are needed" in estimate(tiny("llama")).attrs["warning"]
        and "are free" in estimate(tiny("llama")).attrs["warning"]
    )


def test_a_model_of_seven_billion_is_estimated_without_loading_it():
    from transformers import Qwen2Config

    seven = Qwen2Config(
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
        tie_word_embeddings=False,
    )
    table = estimate(seven, load_in_4bit=True, bf16=True)
    assert table.loc["base weights", "formula"].startswith("7,615,616,512 parameters")  # as its model card says: 7.61 B
    assert 5e9 < table.loc["base weights", "bytes"] < 6e9
