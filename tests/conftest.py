"""What the tests share. Everything runs on a CPU, offline."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import unsloth  # noqa: F401, E402  (before trl and transformers, which it patches)
import matplotlib  # noqa: E402
import pytest  # noqa: E402
from lab.files import STARTER_POLICY  # noqa: E402

matplotlib.use("Agg")


@pytest.fixture(scope="session")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(STARTER_POLICY)
