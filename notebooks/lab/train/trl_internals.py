"""What we use of TRL, transformers and Unsloth that is not public: here and nowhere else, so that an upgrade is one diff.

Written for TRL 1.14, transformers 5.17 and Unsloth 2026.10. `missing_members` says what another version lacks.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from scoring.errors import InputError

# Members of the trainer that this module uses: methods with their parameters, and attributes.
METHODS = {
    "_generate": ["prompts"],
    "_calculate_rewards": ["inputs", "prompts", "completions", "completion_ids_list"],
    "_get_train_sampler": ["dataset"],
    "_log_completion_extra": ["column", "values"],
    "_tokenize_prompts": ["prompts"],
    "_save_checkpoint": ["model", "trial"],
}
TRL_METHODS = {"_generate_and_score_completions": ["inputs"]}  # for notebook 00, which has TRL's own trainer
ATTRIBUTES = "_logs _metrics _step temperature num_generations reward_weights reward_funcs reward_func_names".split()


def missing_members(trainer: type) -> list[str]:
    """Those of `METHODS`, `TRL_METHODS` and `ATTRIBUTES` that this trainer class, TRL's or Unsloth's, does not have."""
    used = METHODS | ({} if "Unsloth" in trainer.__name__ else TRL_METHODS)
    methods = {name: getattr(trainer, name, None) for name in used}
    parameters = {name: list(inspect.signature(method).parameters)[1:] for name, method in methods.items() if method}
    source = "".join(inspect.getsource(one) for one in trainer.__mro__ if "GRPOTrainer" in one.__name__)
    missing = [name for name, wanted in used.items() if parameters.get(name) != wanted]
    return missing + [name for name in ATTRIBUTES if f"self.{name} =" not in source]


def use_unsloths_trainer() -> None:
    """Puts the trainer that Unsloth writes for a card in TRL's place, also where there is no card."""
    from unsloth.models import rl

    rl._patch_trl_rl_trainers_impl("grpo_trainer")


def generates_next(trainer: Any) -> bool:
    """Whether the next batch is sampled anew, and not a second pass over the last one."""
    return trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations) == 0


def add_metric(trainer: Any, name: str, value: float) -> None:
    """Adds a value to TRL's metrics of this step: it reaches the log, our record and every tracker."""
    trainer._metrics["train"][name].append(float(value))


def last_batch(trainer: Any) -> Mapping[str, Any]:
    """What TRL keeps of every batch: `prompt`, `completion`, `rewards` (by name), `advantages`, and `extra` columns."""
    return trainer._logs


def forget_columns(trainer: Any, reward: str) -> None:
    """Drops a reward's scores and all extra columns from what TRL keeps: the next step fills them anew."""
    trainer._logs["rewards"].pop(reward, None)
    trainer._logs["extra"].clear()


def wrap_generation(trainer: Any, wrapper: Callable) -> None:
    """From now on `wrapper(generate, prompts)` stands in for TRL's `generate(prompts)`; its first result is prompt ids."""
    generate = trainer._generate
    trainer._generate = lambda prompts: wrapper(generate, prompts)


def wrap_scoring(trainer: Any, wrapper: Callable) -> None:
    """From now on `wrapper(score, rows, prompts, completions, completion_ids)` stands in for TRL's `score(rows, …)`."""
    # it returns a tensor: a row for each completion of all processes, a column for each reward
    score = trainer._calculate_rewards
    trainer._calculate_rewards = lambda *call: wrapper(score, *call)


def number_completions(trainer: Any) -> None:
    """TRL shuffles the completions of a batch: from now on `place` in it says where each stood when it was scored."""
    make, number = trainer._generate_and_score_completions, lambda batch: torch.arange(len(batch["completion_ids"]))
    trainer._generate_and_score_completions = lambda rows: (batch := make(rows)) | {"place": number(batch)}


def add_columns(trainer: Any, columns: Mapping[str, Sequence]) -> None:
    """Adds columns beside the completions of this step, as a reward does with `log_extra`."""
    for name, values in columns.items():
        trainer._log_completion_extra(name, values)


def continue_epoch_order(trainer: Any, finished_epochs: int) -> None:
    """Lets a run that is resumed in a later epoch take the prompts in that epoch's order, not in the first one's.

    TRL's sampler draws the order of each epoch from one generator, which no checkpoint keeps.
    """
    make_sampler = trainer._get_train_sampler

    def sampler(*args: Any) -> Any:
        made = make_sampler(*args)
        for _ in range(finished_epochs if getattr(made, "shuffle", False) else 0):
            torch.randperm(made.num_samples, generator=made.generator)
        return made

    trainer._get_train_sampler = sampler


def save_checkpoint(trainer: Any) -> None:
    """A checkpoint of the last finished step, made outside of the training loop. No callback is told."""
    trainer._save_checkpoint(trainer.model, trial=None)


def load_adapter(trainer: Any, checkpoint: Path) -> None:
    """Loads the trained adapter of a checkpoint.

    TRL keeps a second adapter, `ref`, for the KL term. The Trainer of transformers 5.17 finds its folder in the
    checkpoint and loads `ref` alone: the run would go on from a fresh adapter, without a message.
    """
    from peft import PeftModel, set_peft_model_state_dict
    from safetensors.torch import load_file

    model = trainer.accelerator.unwrap_model(trainer.model)
    weights = checkpoint / "adapter_model.safetensors"
    if isinstance(model, PeftModel) and weights.exists():
        set_peft_model_state_dict(model, load_file(weights), adapter_name=model.active_adapter)


def set_training_mode(trainer: Any, training: bool) -> None:
    """Puts the model back into the mode it had before it generated. Unsloth has a mode of its own on a GPU."""
    model = trainer.model
    model.train(training)
    if training and hasattr(model, "for_training"):
        checkpointing = getattr(model, "_unsloth_gradient_checkpointing", trainer.args.gradient_checkpointing)
        model.for_training(use_gradient_checkpointing=checkpointing)


def set_temperature(trainer: Any, temperature: float) -> None:
    """Everywhere that TRL keeps it: log-probabilities, `generate`, its overriding keywords, vLLM."""
    trainer.temperature = trainer.args.temperature = temperature
    for name in ("generation_config", "vllm_generation"):
        if (holder := getattr(trainer, name, None)) is not None:
            holder.temperature = temperature
    if hasattr(trainer, "generation_kwargs"):
        trainer.generation_kwargs["temperature"] = temperature


def continue_prefilled(trainer: Any) -> None:
    """Lets the policy continue an assistant turn that the prompt has begun.

    TRL 1.14 renders every prompt with `add_generation_prompt=True`, which would close the turn and open a second one.
    Prompts that end with another role are left to TRL; a mixture raises ValueError. The rewards put the beginning back
    before they score (`rewards.assistant_prefix`).
    """
    plain = trainer._tokenize_prompts

    def tokenize(prompts: list) -> tuple:
        begun = [isinstance(prompt, list) and prompt[-1]["role"] == "assistant" for prompt in prompts]
        if not any(begun):
            return plain(prompts)
        if not all(begun):
            raise InputError("Some prompts end with an assistant's turn and some do not: prefill all of them or none.")
        how = {"continue_final_message": True, "add_generation_prompt": False, "tokenize": True, "return_dict": True}
        how |= {"conversation": prompts, **trainer.chat_template_kwargs}
        return trainer.processing_class.apply_chat_template(**how)["input_ids"], None, {}

    trainer._tokenize_prompts = tokenize
