"""The private members of TRL that we use: an upgrade that moves one is noticed here."""

import trl

from lab.train import trl_internals


def test_what_we_use_is_in_trls_trainer_and_its_absence_is_named():
    assert trl_internals.missing_members(trl.GRPOTrainer) == []  # for Unsloth's, `make gpu-check` says so

    class GRPOTrainer(trl.GRPOTrainer):
        def _generate(self, prompts, images):
            """With a parameter more."""

    assert trl_internals.missing_members(GRPOTrainer) == ["_generate"]
