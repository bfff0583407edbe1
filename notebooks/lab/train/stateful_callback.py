"""The base class of our callbacks."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback


class StatefulCallback(TrainerCallback):
    """A TrainerCallback that knows its trainer, and whose state is saved with every checkpoint."""

    trainer: Any = None

    def attach(self, trainer: Any) -> Any:
        """Adds itself to the trainer's callbacks; returns itself."""
        self.trainer = trainer
        trainer.add_callback(self)
        return self

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to go on as if it had never stopped; JSON-able."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back what `state` returned when the checkpoint was saved."""
