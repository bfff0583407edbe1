"""Private members of TRL and Unsloth that we touch, all of them, so that an upgrade is one diff."""

from __future__ import annotations

from typing import Any


def generates_next(trainer: Any) -> bool:
    """Whether the next batch is sampled anew, and not a second pass over the last one."""
    return trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations) == 0


def trainer_metrics(trainer: Any, name: str, value: float) -> None:
    """Adds a value to TRL's metrics of this step: it reaches the log, our record and every tracker."""
    trainer._metrics["train"][name].append(float(value))


def set_temperature(trainer: Any, temperature: float) -> None:
    """Everywhere that TRL keeps it: log-probabilities, `generate`, its overriding keywords, vLLM."""
    trainer.temperature = trainer.args.temperature = temperature
    for holder in (getattr(trainer, "generation_config", None), getattr(trainer, "vllm_generation", None)):
        if holder is not None:
            holder.temperature = temperature
    if hasattr(trainer, "generation_kwargs"):
        trainer.generation_kwargs["temperature"] = temperature


def continue_prefilled(trainer: Any) -> None:
    """Lets the policy go on inside an assistant turn that the prompt has begun.

    TRL 1.14 renders every prompt with `add_generation_prompt=True`: it would close the turn and open
    a second one. Prompts that end with another role are left to it. The rewards put the beginning
    back before they score (`rewards.assistant_prefix`).
    """
    plain = trainer._tokenize_prompts

    def tokenize(prompts: list) -> tuple:
        begun = [isinstance(prompt, list) and prompt[-1]["role"] == "assistant" for prompt in prompts]
        if not any(begun):
            return plain(prompts)
        if not all(begun):
            raise ValueError("Some prompts end with an assistant's turn and some do not: prefill all of them or none.")
        made = trainer.processing_class.apply_chat_template(
            conversation=prompts,
            continue_final_message=True,
            add_generation_prompt=False,
            tokenize=True,
            return_dict=True,
            **trainer.chat_template_kwargs,
        )
        return made["input_ids"], None, {}

    trainer._tokenize_prompts = tokenize
