"""The page on scale is what the module makes now, and its formulas hold where they can be checked without a GPU."""

import json
import re
import math
import shlex
import shutil

import numpy as np
import pytest
import torch
from lab import guard, launch, scale
from lab.scale import H100, LADDER, MODELS, SMALL, T4, Model, Work, choose, decode_step, values

TINY = Model("tiny", 256, 4, 4, 2, 768, 1000, tied=True)
ONE = choose(LADDER[2], SMALL)  # an H100 with 1.5B
COMMITTED = scale.PAGE.read_text(encoding="utf-8") if scale.PAGE.is_file() else ""


def test_the_committed_page_is_what_the_module_makes_now():
    assert scale.page() == COMMITTED, "run `make scale`, and read what has changed"


# --------------------------------------------------------------------------- formulas


@pytest.fixture(scope="module")
def counted():
    """FLOPs by torch's own counter for one sequence of 24 + 40 tokens of a tiny Qwen2 with an adapter: a pass each."""
    from peft import LoraConfig, get_peft_model
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_config(TINY.config, attn_implementation="eager")
    model = get_peft_model(base, LoraConfig(r=16, target_modules=list(guard.TARGET_MODULES)))
    ids = torch.arange(64)[None]

    def flops(learn=False):
        with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(learn):
            logits = model(ids, use_cache=False, logits_to_keep=40).logits
            if learn:
                logits.sum().backward()
        return counter.get_total_flops()

    old = flops()
    with model.disable_adapter():
        reference = flops()
    model.enable_input_require_grads()  # as the trainer does
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return {"old": old, "reference": reference, "learning": flops(learn=True)}


def formula(beta, old):
    """The formula, and the masked half of attention that an eager kernel computes and a fused one leaves out."""
    half = 2 * TINY.layers * TINY.hidden * 64 * 64
    return scale.training_flops(TINY, 24, 40, beta, old) + half * (4 + beta + old)


def test_learning_with_an_adapter_and_checkpointing_costs_what_torch_counts(counted):
    assert formula(beta=False, old=False) == pytest.approx(counted["learning"], rel=0.005)


@pytest.mark.parametrize("name, beta, old", [("reference", True, False), ("old", False, True)])
def test_log_probabilities_cost_a_forward_pass_as_torch_counts_it(counted, name, beta, old):
    assert formula(beta, old) - formula(False, False) == pytest.approx(counted[name], rel=0.005)


def test_the_shapes_have_the_parameters_of_the_real_models():
    found = [guard.base_bytes(guard.skeleton(one.config), False, 2)[0] / 1e9 for one in MODELS]
    assert [round(one, 2) for one in found] == [1.54, 7.62, 32.76]  # Qwen2.5's model cards


def test_a_tokens_keys_and_values_are_those_of_the_guard():
    for model in MODELS:
        assert model.kv * 700 == guard.kv_cache_bytes(model.config, 1, 700, 2)


def test_the_peak_of_plain_generation_is_the_guards_estimate():
    one = choose(LADDER[0], SMALL)
    settings = dict(
        fp16=True, optim="adamw_8bit", per_device_train_batch_size=8, gradient_accumulation_steps=8, num_generations=8,
        max_completion_length=512, gradient_checkpointing=True, beta=0.02,
    )  # fmt: skip
    frame = guard.memory_estimate(SMALL.config, settings=settings, max_prompt_tokens=300)
    assert one.peak == pytest.approx(frame.attrs["total_bytes"] - frame.loc["overhead", "bytes"] + scale.OVERHEAD, rel=1e-6)


def test_a_decode_step_of_one_sequence_is_the_time_of_reading_the_weights_and_launching():
    v = values()
    parts = {name: float(seconds) for name, seconds in decode_step(ONE, v, 1, 0).items()}
    reading = SMALL.weights(False) / (H100.bandwidth * 1e9 * v["share of memory bandwidth"])
    assert parts["multiplying"] == 0 and parts["reading weights"] == pytest.approx(reading, rel=0.01)
    assert sum(parts.values()) == pytest.approx(reading + v["vLLM"] / 1e3, rel=0.01)


def test_a_decode_step_of_very_many_sequences_is_bound_by_multiplying():
    parts = decode_step(ONE, values(), 4096, 0)
    assert parts["reading weights"] == 0 and parts["multiplying"] > decode_step(ONE, values(), 1, 0)["reading weights"]


# --------------------------------------------------------------------------- simulations


@pytest.mark.parametrize("workers, seconds", [(1, 8), (2, 5), (3, 3), (9, 3)])
def test_the_makespan_is_that_of_a_case_worked_by_hand(workers, seconds):
    assert scale.makespan([3, 1, 2, 2], workers) == seconds  # two workers: 3 and 2; 1 and 2


def test_continuous_batching_never_takes_more_steps_than_static_and_writes_the_same():
    random = np.random.default_rng(0)
    for slots in (1, 2, 7, 16, 40):
        tokens = random.integers(1, 60, 40)
        static = sum(tokens[i : i + slots].max() for i in range(0, 40, slots))
        under_way, written = scale.refilled(tokens, slots)
        assert under_way.size <= static and under_way.max() <= slots, (slots, under_way.size, static)
        assert under_way.sum() == tokens.sum() and written.sum() == (tokens * (tokens - 1) // 2).sum()


def test_with_a_slot_for_each_completion_the_two_ways_of_counting_agree():
    tokens = np.array([3, 1, 5])
    assert scale.alive(tokens[None]).tolist() == [[3, 2, 2, 1, 1]] == [scale.refilled(tokens, 3)[0].tolist()]


def test_more_cards_wait_longer_and_shares_of_a_step_wait_longest():
    def waits(cards, prompts):
        return scale.step(choose(next(one for one in LADDER[2:] if one.cards == cards), SMALL, Work(prompts)), values()).waiting

    assert 0 == waits(1, 8) < waits(8, 64) < waits(32, 256) < waits(8, 8)


# --------------------------------------------------------------------------- assumptions

FASTER = (
    "training, share of peak", "sampling, share of peak", "share of memory bandwidth", "share of a link", "weights into vLLM",
)  # fmt: skip
SLOWER = ("vLLM", "rest of a step", "prompt", "median completion", "text, times the benchmark's", "H100")


@pytest.mark.parametrize("name", [*FASTER, *SLOWER])
def test_each_assumption_moves_the_cost_in_its_own_direction(name):
    setup = choose(LADDER[3], SMALL)
    low, high = scale.ends(lambda v: scale.cost(setup, v), name)
    assert (low > high) if name in FASTER else (low < high), (name, low, high)


def test_best_guesses_lie_between_their_ends_and_ranges_around_their_values():
    for name, one in scale.ASSUMED.items():
        assert one.low < one.value < one.high, name
    best, low, high = scale.around(lambda v: scale.step(ONE, v).seconds)
    assert low < best < high
    assert scale.around(lambda v: scale.cost(choose(LADDER[0], SMALL), v))[1] == 0  # free Colab


# --------------------------------------------------------------------------- what fits, and how it is started


def test_presets_follow_the_rules_of_lab_presets():
    assert [cluster.card.preset for cluster in LADDER] == ["t4-16gb", "24gb", "80gb", "80gb", "80gb", "80gb"]


def test_what_fits_nowhere_is_said_and_what_fits_stays_under_the_guards_share():
    found = {(c.name, m.name): choose(c, m) for c in LADDER for m in MODELS}
    assert {at for at, one in found.items() if one.peak == math.inf} == {("T4", "32B"), ("RTX 4090", "32B")}
    for at, one in found.items():
        assert one.peak == math.inf or one.peak <= guard.FULL_ENOUGH * one.cluster.card.memory * 1e9, at


def test_a_machine_with_a_gpu_chooses_the_same(monkeypatch):
    before = choose(LADDER[0], SMALL)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose(LADDER[0], SMALL) == before


def commands():
    blocks = COMMITTED.replace("\\\n", " ").split("```")[1::2]
    return [line for block in blocks for line in block.splitlines() if line.strip() and not line.startswith("#")]


def test_every_parameter_of_the_pages_make_commands_is_one_of_the_notebook(tmp_path):
    lines = [line.split("#")[0] for line in commands() if "make train" in line]
    assert len(lines) == 3
    for line in lines:
        given = dict(word.split("=", 1) for word in shlex.split(line) if "=" in word)
        assert (launch.CONFIGS / f"{given.get('CONFIG', 'ddp')}.yaml").is_file()
        parameters = dict(map(launch.assignment, shlex.split(given.get("SET", ""))))
        assert isinstance(parameters.get("MORE_SETTINGS", {}), dict)
        launch.export_script(tmp_path / "train.py", parameters)  # raises for a parameter that there is not


def test_accelerate_takes_the_pages_command_for_several_nodes():
    from accelerate.commands.launch import launch_command_parser

    line = next(line for line in commands() if "accelerate launch" in line).replace("RANK", "1")
    given = launch_command_parser().parse_args(shlex.split(line)[2:])
    assert (given.num_machines, given.machine_rank, given.num_processes) == (2, 1, 16)
    assert (scale.ROOT / given.config_file).is_file() and given.training_script == "outputs/train.py"


# --------------------------------------------------------------------------- what was measured


def test_without_a_measurement_the_page_says_so_and_names_the_command(tmp_path):
    said = scale.calibrated(tmp_path / "gpu.json")
    assert "is not there" in said and "make gpu-check" in said


def test_a_measurement_without_a_timed_run_is_said(tmp_path):
    (tmp_path / "gpu.json").write_text('{"machine": {"gpu": "NVIDIA T4"}, "runs": [{"seconds_a_step": 41.0, "timed": false}]}')
    assert "no timed run on NVIDIA T4" in scale.calibrated(tmp_path / "gpu.json")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"runs": 3}', '{"runs": [3]}', '{"machine": 1, "runs": []}', "null"])
def test_a_damaged_measurement_is_said_and_not_raised(tmp_path, text):
    (tmp_path / "gpu.json").write_text(text)
    assert "cannot be read" in scale.calibrated(tmp_path / "gpu.json")


def test_a_measurement_stands_beside_the_computed_figure_of_its_card_whatever_it_lacks(tmp_path):
    runs = [
        {"name": "Unsloth, bf16", "timed": True, "seconds_a_step": 7.25, "peak_bytes": 51_000_000_000, "tokens_at_most": 128},
        {"name": "TRL, fp16", "timed": False, "seconds_a_step": 41.0}, {"timed": True, "generating_share": None},
    ]  # fmt: skip
    (tmp_path / "gpu.json").write_text(json.dumps({"machine": {"gpu": "NVIDIA H100 80GB HBM3"}, "runs": runs}))
    said = scale.calibrated(tmp_path / "gpu.json")
    assert "NVIDIA H100 80GB HBM3" in said and "64 completions of at most 128 tokens" in said and "not there" not in said
    assert "| Unsloth, bf16 | 7.2 | – | – | 51,000,000,000 | – |" in said and "| – | – | – | – | – | – |" in said
    assert "fp16" not in said, "a run beside which something else ran has no times"
    seconds = [float(re.search(r"computed for plain TRL: ([\d.]+) \(", scale.as_computed(gpu, limit) + " (")[1])
               for gpu, limit in (("Tesla T4", 128), ("NVIDIA H100", 128), ("NVIDIA H100", 512))]  # fmt: skip
    assert seconds[0] > seconds[1] < seconds[2]
    (tmp_path / "gpu.json").write_text(json.dumps({"machine": {"gpu": "NVIDIA A100"}, "runs": runs[:1]}))
    assert "no rung below has this card" in scale.calibrated(tmp_path / "gpu.json")


@pytest.mark.parametrize("file, entry, command", [
    ("rewards.json", "correctness_reward", "make bench"), ("sandbox.json", "sandbox.py, all layers", "make bench"),
    ("sandbox.json", "workers", "make bench"), ("training.json", "in_our_parts", "make bench-training"),
])  # fmt: skip
def test_a_missing_result_names_the_command_that_makes_it(tmp_path, file, entry, command):
    for name in ("rewards.json", "sandbox.json", "training.json"):
        shutil.copy(scale.RESULTS / name, tmp_path / name)
    scale.measured(tmp_path)  # whole, it is read
    (tmp_path / file).write_text((tmp_path / file).read_text().replace(f'"{entry}"', '"something else"'))
    with pytest.raises(ValueError, match=f"'{entry}': run `{command}`"):
        scale.measured.__wrapped__(tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(ValueError, match=f"{file} is not there: run `{command}`"):
        scale.measured.__wrapped__(tmp_path)


def test_no_number_of_calls_hides_a_judge_whose_single_call_is_too_long():
    seconds = scale.step(ONE, values()).seconds
    on = scale.rewards_on(ONE, 4)
    assert on["judge"].workers is None and values()["judge"] > scale.SCORING_SHARE * seconds
    enough = on["sandbox"].workers
    assert scale.sandbox_seconds(ONE, enough, 0) < scale.SCORING_SHARE * seconds <= scale.sandbox_seconds(ONE, enough - 1, 0)


def test_the_t4_has_no_bf16_and_samples_plainly():
    one = choose(LADDER[0], SMALL)
    assert not T4.bf16 and not one.vllm and one.in_4bit and one.micro_batches == 8
