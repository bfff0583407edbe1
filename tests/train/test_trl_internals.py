"""Private members of TRL and Unsloth: used in one module only, and there in the installed versions."""

import json
import re

import pytest
import trl

from lab.files import ROOT
from lab.train import trl_internals

LAB = ROOT / "notebooks" / "lab"
FILES = [path for path in (*LAB.rglob("*.py"), *(ROOT / "notebooks").glob("*.ipynb")) if path.stem != "trl_internals"]
NAMES = [
    *trl_internals.METHODS,
    *trl_internals.TRL_METHODS,
    *(name for name in trl_internals.ATTRIBUTES if name.startswith("_")),
]
# A private member of anything that is called a trainer, its arguments or its model; or one of those by any holder but self.
PRIVATE = re.compile(rf"\b(?:trainer|args|model)\._[a-z]\w*|(?<!\bself)\.(?:{'|'.join(NAMES)})\b|\brl\._\w+")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(LAB.parent)))
def test_no_other_file_touches_a_private_member_of_a_trainer(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
    assert PRIVATE.findall(text) == []


def test_the_members_that_are_used_are_named_and_no_others():
    source = (LAB / "train" / "trl_internals.py").read_text(encoding="utf-8")
    assert set(re.findall(r"\btrainer\.(_[a-z]\w*)", source)) == set(NAMES)
    assert (
        PRIVATE.search("self.trainer._step")
        and PRIVATE.search("plain = it._generate")
        and PRIVATE.search("args._n_gpu")
    )


def test_all_of_them_are_in_trls_trainer_and_the_absence_of_one_is_named():
    assert trl_internals.missing_members(trl.GRPOTrainer) == []  # `make gpu-check` asks Unsloth's

    class GRPOTrainer(trl.GRPOTrainer):
        def _generate(self, prompts, images):
            """With a parameter more."""

    assert trl_internals.missing_members(GRPOTrainer) == ["_generate"]
