"""Settings that would not run, or not as they are written, are refused before anything is loaded."""

from types import SimpleNamespace

import pytest

from lab.train import settings_check
from lab.train.settings_check import SettingsError, check_settings

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
        check_settings({**GOOD, "report_to": "wandbb", "save_steps": 0.1, "num_generations": 6, "bf16": True})
    assert len(error.value.problems) == 3
    assert str(error.value).splitlines()[0] == "The settings have 3 problems:" and str(error.value).count("\n  - ") == 3


def test_a_batch_of_no_whole_groups_is_refused_with_the_nearest_valid_values():
    text = refused({"per_device_train_batch_size": 12, "gradient_accumulation_steps": 1})
    assert "= 12 completions are no whole groups of 8" in text
    assert "set per_device_train_batch_size to 8 or 16, or num_generations to a divisor of 12." in text
    assert "to 8, or num_generations to a divisor of 3." in refused(
        {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 1}
    )


def test_fewer_rows_than_a_step_takes_are_refused_with_how_many_would_do():
    text = refused(report={"rows": {"train": 7}})
    assert "one step takes 8 prompts, and the data set has 7 training rows: set PROMPTS_PER_STEP to 7 or less" in text
    assert warned(report={"rows": {"train": 8}}) == ""
    assert "takes 16 prompts" in refused({"generation_batch_size": 128}, report={"rows": {"train": 15}})


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

    assert "correctness_reward needs the data-set column 'answer'" in refused(
        columns=["prompt"], rewards=[correctness_reward]
    )
    assert check_settings(GOOD, columns=["prompt", "answer"], rewards=[correctness_reward]) == []


def test_full_fine_tuning_in_4_bits_is_refused():
    assert "set load_in_4bit=False" in refused({"learning_rate": 1e-6}, full_finetuning=True, load_in_4bit=True)
    assert check_settings({**GOOD, "learning_rate": 1e-6}, full_finetuning=True, lora_rank=0) == []


def test_an_adapter_needs_a_rank():
    assert "lora_rank is 0" in refused(lora_rank=0)


def test_4_bits_on_a_cpu_need_widths_of_64(card):
    narrow = SimpleNamespace(get_text_config=lambda: SimpleNamespace(hidden_size=100, intermediate_size=256))
    assert "the model's width 100 is no multiple of 64" in refused(model_config=narrow, load_in_4bit=True)
    assert (
        check_settings(GOOD, model_config=narrow) == [] == check_settings(GOOD, model_config=LIMITED, load_in_4bit=True)
    )
    card(AMPERE)
    assert check_settings(GOOD, model_config=narrow, load_in_4bit=True) == []


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
