"""What the tests of training share."""

import dataclasses

import pytest


@pytest.fixture
def unsloth_config():
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
