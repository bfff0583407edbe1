"""What changes during a run: temperature, weights, a prefilled turn. On a real trainer where TRL's own doings matter."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from lab.model.prompts import begin_answer
from lab.train import trl_internals
from lab.train.callbacks import RewardWeights, TemperatureAnnealing
from rewards import assistant_prefix, correctness_reward, format_reward, soft_format_reward

WEIGHTS = {"correctness_reward": 1.0, "format_reward": 0.5}


class FakeTrainer:
    """As much of GRPOTrainer as the steering touches."""

    def __init__(self, steps_per_generation=1, num_iterations=1):
        self.args = SimpleNamespace(steps_per_generation=steps_per_generation, temperature=1.0)
        self.num_iterations, self._step, self.temperature = num_iterations, 0, 1.0
        self.generation_config, self.generation_kwargs = SimpleNamespace(temperature=1.0), {"temperature": 1.0}
        self.reward_func_names, self.reward_funcs = list(WEIGHTS), [correctness_reward, format_reward]
        self.reward_weights = torch.tensor(list(WEIGHTS.values()))
        self._metrics = {"train": defaultdict(list)}

    def add_callback(self, part):
        self.part = part

    def step(self, number, last=10, logs=None):
        state = SimpleNamespace(global_step=number, max_steps=last)
        self.part.on_step_begin(self.args, state, None)
        used = self.temperature, self.reward_weights.tolist()
        self._step += 1
        self.part.on_log(self.args, state, None, logs=logs)
        return used


def test_annealing_goes_in_a_straight_line_from_the_first_to_the_last_step():
    trainer = FakeTrainer()
    TemperatureAnnealing(1.2, 0.6).attach(trainer)
    used = [trainer.step(k, last=4)[0] for k in range(4)]
    assert used == pytest.approx([1.2, 1.0, 0.8, 0.6]) and trainer._metrics["train"]["temperature"] == pytest.approx(
        used
    )


def test_annealing_of_a_run_of_one_step_works():
    assert TemperatureAnnealing(1.0, 0.5).at(0, 1) == 1.0


def test_a_second_pass_over_a_batch_keeps_the_temperature_it_was_sampled_at():
    trainer = FakeTrainer(num_iterations=2)
    TemperatureAnnealing(1.0, 0.4).attach(trainer)
    assert [trainer.step(k, last=4)[0] for k in range(4)] == pytest.approx([1.0, 1.0, 0.6, 0.6])


def test_a_batch_that_begins_between_two_optimizer_steps_gets_its_own_temperature():
    trainer = FakeTrainer()
    part = TemperatureAnnealing(1.0, 0.5).attach(trainer)
    part.on_substep_end(trainer.args, SimpleNamespace(global_step=5, max_steps=6), None)
    assert trainer.temperature == 0.5


@pytest.mark.parametrize("start, end", [(0, None), (1.0, 0.0), (-1, 1)])
def test_a_greedy_temperature_is_refused(start, end):
    with pytest.raises(ValueError, match="above 0"):
        TemperatureAnnealing(start, end)


def test_constant_weights_stay_and_are_in_the_log():
    trainer = FakeTrainer()
    RewardWeights(WEIGHTS).attach(trainer)
    assert [trainer.step(k, logs={"rewards/format_reward/mean": 1.0})[1] for k in range(3)] == [[1.0, 0.5]] * 3
    assert trainer._metrics["train"]["weight/format_reward"] == [0.5] * 3


def test_stages_change_the_weights_at_their_step_and_leave_out_who_is_not_named():
    trainer = FakeTrainer()
    RewardWeights(WEIGHTS, stages=[(4, WEIGHTS), (0, {"format_reward": 1.0})]).attach(trainer)
    assert [trainer.step(k)[1] for k in range(6)] == [[0.0, 1.0]] * 4 + [[1.0, 0.5]] * 2


def test_a_reward_with_little_success_gains_weight_and_one_with_much_loses_it_within_bounds():
    trainer = FakeTrainer()
    RewardWeights(WEIGHTS, adaptive=True).attach(trainer)
    logs = {"rewards/correctness_reward/mean": 0.0, "rewards/format_reward/mean": 1.0}
    used = [trainer.step(k, logs=logs)[1] for k in range(3)]
    assert used == [[1.0, 0.5], [2.0, 0.25], [2.0, 0.25]]


def test_success_is_the_place_in_the_range_remembered_over_about_ten_steps():
    trainer = FakeTrainer()
    trainer.reward_funcs = [SimpleNamespace(low=-2.0, high=2.0), format_reward]
    part = RewardWeights(WEIGHTS, adaptive=True).attach(trainer)
    trainer.step(0, logs={"rewards/correctness_reward/mean": 0.0})
    assert part.success[0] == 0.5
    trainer.step(1, logs={"rewards/correctness_reward/mean": 2.0})
    assert part.success[0] == pytest.approx(0.55) and part.success[1] is None


def test_a_penalty_an_evaluation_and_a_batch_without_scores_change_nothing():
    trainer = FakeTrainer()
    part = RewardWeights({"correctness_reward": 1.0, "format_reward": -0.5}, adaptive=True).attach(trainer)
    trainer.step(0, logs={"eval_format_reward": 0.1, "rewards/correctness_reward/mean": None})
    trainer.step(1, logs={"rewards/correctness_reward/mean": float("nan"), "rewards/format_reward/mean": 0.0})
    assert part.at(2) == [1.0, -0.5]


def test_a_reward_under_a_versioned_name_keeps_its_weight():
    trainer = FakeTrainer()
    RewardWeights(WEIGHTS, adaptive=True).attach(trainer)
    trainer.reward_func_names = ["correctness_reward", "format_reward_v2"]
    trainer.step(0, logs={"rewards/format_reward_v2/mean": 1.0})
    assert trainer.step(1)[1] == [1.0, 0.25] and "weight/format_reward_v2" in trainer._metrics["train"]


def test_what_adaptive_weights_know_survives_a_checkpoint():
    trainer, other = FakeTrainer(), FakeTrainer()
    part = RewardWeights(WEIGHTS, adaptive=True).attach(trainer)
    trainer.step(0, logs={"rewards/format_reward/mean": 0.2})
    again = RewardWeights(WEIGHTS, adaptive=True).attach(other)
    again.restore(part.state())
    assert again.at(1) == part.at(1) != [1.0, 0.5]


@pytest.mark.parametrize(
    "stages, why",
    [
        ([(3, {"formt_reward": 1.0})], "names 'formt_reward'; the rewards are"),
        ([(3, {"format_reward": 0})], "nothing would be learned"),
    ],
)
def test_an_impossible_stage_is_refused_before_training(stages, why):
    with pytest.raises(ValueError, match=why):
        RewardWeights(WEIGHTS, stages=stages)


@pytest.fixture(scope="module")
def make_trainer(tokenizer, tmp_path_factory):
    """A function that makes a small GRPOTrainer of the starter policy on given prompts."""
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    from lab.files import STARTER_POLICY

    def make(prefill="", **changes):
        prompt = [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "Tom has 3 pens and buys 4. How many?"},
        ]
        rows = [{"prompt": begin_answer(prompt, prefill), "answer": "7"}] * 8
        settings = dict(
            output_dir=str(tmp_path_factory.mktemp("run")),
            per_device_train_batch_size=4,
            num_generations=4,
            max_steps=3,
            gradient_accumulation_steps=1,
            max_completion_length=24,
            learning_rate=1e-3,
            logging_steps=1,
            beta=0.0,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        )
        model = AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype=torch.float32)
        return GRPOTrainer(
            model=get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")),
            processing_class=tokenizer,
            reward_funcs=[soft_format_reward, correctness_reward],
            args=GRPOConfig(**{**settings, **changes}),
            train_dataset=Dataset.from_list(rows),
        )

    return make


def test_the_annealed_temperature_is_the_one_that_samples_and_the_one_of_the_log_probabilities(
    make_trainer, monkeypatch
):
    """Seen from outside: what `generate` was given, and what the log-probabilities of the loss are."""
    trainer = make_trainer(num_iterations=1)
    TemperatureAnnealing(1.5, 0.5).attach(trainer)
    sampled, scored = [], []
    generate = type(trainer.model.base_model.model).generate

    def watched(self, *args, generation_config=None, **kwargs):
        sampled.append((generation_config.temperature, self.generation_config.temperature))
        return generate(self, *args, generation_config=generation_config, **kwargs)

    monkeypatch.setattr(type(trainer.model.base_model.model), "generate", watched)
    logps = trainer._get_per_token_logps_and_entropies

    def compared(model, input_ids, attention_mask, logits_to_keep, *args, **kwargs):
        found = logps(model, input_ids, attention_mask, logits_to_keep, *args, **kwargs)
        with torch.no_grad():
            logits = (
                model(input_ids=input_ids, attention_mask=attention_mask).logits[:, -logits_to_keep - 1 : -1].float()
            )
        tokens = input_ids[:, -logits_to_keep:].unsqueeze(-1)
        mask = attention_mask[:, -logits_to_keep:].bool()
        fit = {
            t: (torch.log_softmax(logits / t, -1).gather(-1, tokens).squeeze(-1) - found[0])[mask].abs().max().item()
            for t in (1.5, 1.0, 0.5)
        }
        scored.append(min(fit, key=fit.get))
        assert min(fit.values()) < 1e-3, fit
        return found

    trainer._get_per_token_logps_and_entropies = compared
    trainer.train()
    assert [one for one, _ in sampled] == [1.5, 1.0, 0.5] and scored == [1.5, 1.0, 0.5]
    assert [row["temperature"] for row in trainer.state.log_history if "temperature" in row] == [1.5, 1.0, 0.5]


def test_a_prefilled_turn_is_gone_on_with_and_the_rewards_see_the_whole(make_trainer, tokenizer):
    trainer = make_trainer(prefill="<think>\n")
    trl_internals.continue_prefilled(trainer)
    prompts = [row["prompt"] for row in trainer.train_dataset]
    (ids, *_), _, _ = trainer._tokenize_prompts(prompts[:2])
    assert tokenizer.decode(ids).endswith("<|im_start|>assistant\n<think>\n")
    assert assistant_prefix(prompts[0]) == "<think>\n"
    trainer.train()
    assert all(text.rstrip().endswith("<think>") for text in trainer._logs["prompt"])
    rest = "7 pens.\n</think>\n<answer>\n7\n</answer>"
    call = {"prompts": prompts[:1], "completions": [[{"role": "assistant", "content": rest}]], "answer": ["7"]}
    assert format_reward(**call) == [1.0] and correctness_reward(**call) == [1.0]


def test_without_the_repair_trl_would_close_the_prefilled_turn(make_trainer, tokenizer):
    """Why `continue_prefilled` exists; when TRL learns it, this fails and the repair can go."""
    trainer = make_trainer(prefill="<think>\n")
    (ids, *_), *_ = trainer._tokenize_prompts([row["prompt"] for row in trainer.train_dataset][:1])
    assert tokenizer.decode(ids).count("<|im_start|>assistant") == 2


def test_prompts_that_are_not_prefilled_are_left_to_trl_and_a_mixture_is_refused(make_trainer):
    trainer = make_trainer()
    chat = [row["prompt"] for row in trainer.train_dataset][:1]
    before = trainer._tokenize_prompts(chat)[0]
    trl_internals.continue_prefilled(trainer)
    assert trainer._tokenize_prompts(chat)[0] == before
    with pytest.raises(ValueError, match="prefill all of them or none"):
        trainer._tokenize_prompts([*chat, begin_answer(chat[0], "<think>")])


def test_weights_reach_the_advantages(make_trainer):
    trainer = make_trainer()
    names = trainer.reward_func_names
    RewardWeights(dict(zip(names, (1.0, 1.0))), stages=[(0, {names[0]: 3.0})]).attach(trainer)
    trainer.train()
    row = [row for row in trainer.state.log_history if "reward" in row][-1]
    assert (
        row["reward"] == pytest.approx(3 * row[f"rewards/{names[0]}/mean"], abs=1e-5) and row[f"weight/{names[1]}"] == 0
    )
