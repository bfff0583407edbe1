"""A small GRPO run with everything that notebook 03 attaches, for a process that may be killed at any moment."""

import json
import sys
from pathlib import Path

import torch
import unsloth  # noqa: F401  (before trl and transformers)
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import GRPOConfig, GRPOTrainer

from lab.files import STARTER_POLICY
from lab.show import live_view
from lab.train import callbacks, chosen_rewards, live_rewards, recorder
from rewards import FORMAT

WEIGHTS = {"correctness_reward": 1.0, "format_reward": 0.5, "own_reward": 0.5}
OWN = '''from rewards import reward


@reward
def own_reward(completion: str) -> float:
    """The share of digits. Returns 0 to 1."""
    return sum(char.isdigit() for char in completion) / (1 + len(completion))
'''


def rows(n, start=0):
    system = {"role": "system", "content": FORMAT.system_prompt}
    return [
        {
            "prompt": [
                system,
                {"role": "user", "content": f"Tom has {i + 2} pens and buys {i + 3}. How many has he now?"},
            ],
            "answer": str(2 * i + 5),
        }
        for i in range(start, start + n)
    ]


def prepare(folder):
    """An outputs folder with a choice of rewards in it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "my_rewards.py").write_text(OWN)
    chosen_rewards.save_choice(folder, WEIGHTS)
    return folder


def settings(folder, **changes):
    return {
        "output_dir": str(folder / "run"),
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "num_generations": 4,
        "max_completion_length": 24,
        "max_steps": 9,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 1,
        "beta": 0.02,
        "temperature": 1.2,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_steps": 2,
        "save_total_limit": 2,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 3,
        "bf16": False,
        "logging_nan_inf_filter": False,
        "reward_weights": list(WEIGHTS.values()),
        **changes,
    }


def train(folder, parts=lambda run: [], functions=None, held_out=4, **changes):
    """Trains, or goes on; returns the finished Run. `parts`: more to attach; `functions`: other rewards;
    `held_out`: steps between evaluations, or 0."""
    torch.set_num_threads(1)
    folder, asked = Path(folder), settings(Path(folder), **changes)
    data = Dataset.from_list(rows(8))  # four steps an epoch: a run crosses two of its ends
    chosen, _, record = chosen_rewards.load_choice(folder)
    set_seed(3)
    model = AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    tokenizer = AutoTokenizer.from_pretrained(STARTER_POLICY)
    about = {
        "requested": asked,
        "model": {"name": "starter"},
        "data": {"fingerprint": "pens"},
        "rewards": record,
        "steering": {},
    }
    run = recorder.RunRecorder(folder / "run", about)
    if run.checkpoint and functions is None:
        chosen, _, about["rewards"] = chosen_rewards.load_choice(folder, live_rewards.kept_sources(run.folder))
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=functions or chosen,
        args=GRPOConfig(**asked),
        train_dataset=data,
    )
    monitor = callbacks.HealthMonitor(run, ["correctness_reward"])
    run.attach(
        trainer,
        live_rewards.LiveRewards(folder, run.folder, run.add_event) if functions is None else None,
        callbacks.TemperatureAnnealing(1.2, 0.8),
        callbacks.RewardWeights(WEIGHTS, adaptive=True),
        callbacks.AdapterCheck(run),
        callbacks.HeldOut(run, rows(4, start=100), tokenizer, held_out, 24) if held_out else None,
        monitor,
        live_view.LiveView(run, monitor),
        *parts(run),
    )
    with run.recording():
        trainer.train(resume_from_checkpoint=run.checkpoint)
    return run


if __name__ == "__main__":
    train(sys.argv[1], **json.loads(sys.argv[2]))
