"""Unsloth's road for CUDA cards on a machine that has none: the CPU plays the card, Triton's interpreter its kernels.

Slow (minutes a step), and no proof for a card: no memory, no speed, no 16-bit arithmetic, no 4-bit kernel. But it is
Unsloth's own code for cards, its patched model, generated config and trainer, that notebooks 03 and 05 run on here.

    .venv/bin/pip install --no-deps --target /tmp/triton triton==3.6.0       # beside the environment, not in it
    PYTHONPATH=/tmp/triton .venv/bin/python tests/benchmarks/played_card.py logits    # a minute
    PYTHONPATH=/tmp/triton .venv/bin/python tests/benchmarks/played_card.py train     # ten minutes: two steps, stopped and resumed
    PYTHONPATH=/tmp/triton .venv/bin/python tests/benchmarks/played_card.py merge     # notebook 05 on what `train` left

Three things make it run. UNSLOTH_ALLOW_CPU, the switch of Unsloth's own tests, answers "cuda" without a card; then its
trainer is not put in TRL's place by itself, so that is done here. Every tensor that is asked for on "cuda" is made on
the CPU. And torch.cuda says what an H100 would.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks")]
PROMPTS = ["<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n", "Anna has 3 apples and gets 5 more."]
SMALL = {
    "MAX_STEPS": 2,
    "N_EVAL": 1,
    "EVAL_EVERY": 2,
    "PROMPTS_PER_STEP": 1,
    "NUM_GENERATIONS": 2,
    "MAX_COMPLETION_TOKENS": 6,
    "FINAL_TEMPERATURE": 0.8,
}
# 32 bits: the interpreter calculates bfloat16 wrongly (NaN)
MORE = {"load_in_4bit": False, "bf16": False, "fp16": False, "save_steps": 1, "optim": "adamw_torch"}
SURROUNDINGS = {
    "UNSLOTH_ALLOW_CPU": "1",
    "UNSLOTH_DISABLE_STATISTICS": "1",
    "UNSLOTH_COMPILE_DISABLE": "1",
    "TRITON_INTERPRET": "1",
    "HF_HUB_OFFLINE": "1",
    "GRPO_NOTEBOOKS": str(ROOT),
    "GRPO_NO_INSTALL": "1",
}
AN_H100 = {
    "name": "a card played by the CPU",
    "major": 9,
    "minor": 0,
    "total_memory": 80 * 10**9,
    "multi_processor_count": 132,
    "warp_size": 32,
    "shared_memory_per_block_optin": 232448,
    "gcnArchName": "",
}


def play() -> Any:
    """Makes this process believe in a card; returns the mode that must be on while tensors are made."""
    import unsloth  # noqa: F401  (before torch.cuda says anything: bitsandbytes would look for its CUDA library)
    from unsloth.models import llama, rl

    rl.patch_trl_disable_gradient_checkpointing()
    rl._patch_trl_rl_trainers_impl("grpo_trainer")
    for module in [module for name, module in sys.modules.items() if name.startswith("unsloth")]:
        for name, value in {"SUPPORTS_BFLOAT16": True, "DEVICE_COUNT": 1}.items():
            if hasattr(module, name):
                setattr(module, name, value)
    one_device(llama.LlamaRotaryEmbedding)
    loads_here()
    answer_as_a_card()
    return on_the_cpu()


def answer_as_a_card() -> None:
    from types import SimpleNamespace

    import torch

    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None, wait_stream=lambda other: None)
    free, total = 70 * 10**9, AN_H100["total_memory"]
    said = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "is_initialized": True,
        "is_bf16_supported": True,
        "get_device_properties": SimpleNamespace(**AN_H100),
        "get_device_name": AN_H100["name"],
        "get_device_capability": (9, 0),
        "mem_get_info": (free, total),
        "current_stream": stream,
        "default_stream": stream,
        "get_rng_state_all": [],
        "memory_stats": {},
        "is_current_stream_capturing": False,
        **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), 0),
        **dict.fromkeys(
            (
                "synchronize",
                "empty_cache",
                "reset_peak_memory_stats",
                "manual_seed",
                "manual_seed_all",
                "_lazy_init",
                "set_device",
                "ipc_collect",
                "set_rng_state_all",
            ),
            None,
        ),
    }
    for name, value in said.items():
        setattr(torch.cuda, name, lambda *args, value=value, **more: value)
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    # a checkpoint keeps the card's random numbers: here they are the CPU's
    torch.cuda.random.get_rng_state = lambda *args, **more: torch.get_rng_state()
    torch.cuda.random.set_rng_state = lambda *args, **more: None
    for name, value in {
        "_cuda_getDevice": 0,
        "_cuda_getDeviceCount": 1,
        "_cuda_emptyCache": None,
        "_cuda_synchronize": None,
    }.items():
        if not hasattr(torch._C, name):
            setattr(torch._C, name, lambda *args, value=value: value)


def on_the_cpu() -> Any:
    """A mode in which "cuda" and card numbers mean the CPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    def here(place: Any) -> Any:
        card = (
            str(place).startswith("cuda")
            if isinstance(place, str | torch.device)
            else isinstance(place, int) and not isinstance(place, bool)
        )
        return torch.device("cpu") if card else place

    class OnTheCpu(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            name, kwargs = getattr(function, "__name__", ""), dict(kwargs or {})
            if name in ("cuda", "pin_memory"):
                return args[0]
            if function is torch.device and args and here(args[0]) is not args[0]:
                return torch.device("cpu")
            kwargs.pop("pin_memory", None)
            if "device" in kwargs:
                kwargs["device"] = here(kwargs["device"])
            if name == "to":
                args = (args[0], *(here(one) if isinstance(one, str | torch.device) else one for one in args[1:]))
            return function(*args, **kwargs)

    return OnTheCpu()


def one_device(rotary: type) -> None:
    """Unsloth keeps a table for each card, by number; the CPU's device has none."""

    class Tables(list):
        def __getitem__(self, place):
            return super().__getitem__(0 if place is None else place)

        def __setitem__(self, place, value):
            super().__setitem__(0 if place is None else place, value)

    usual = rotary.__setattr__
    rotary.__setattr__ = lambda self, name, value: usual(
        self, name, Tables(value) if name.startswith("multi_gpu") and type(value) is list else value
    )


def loads_here() -> None:
    """transformers puts weights where it is told; Unsloth loads them in 32 bits."""
    import torch
    import transformers
    from unsloth import FastLanguageModel

    transformers.modeling_utils.caching_allocator_warmup = lambda *args, **more: None
    plain, fast = transformers.AutoModelForCausalLM.from_pretrained.__func__, FastLanguageModel.from_pretrained
    transformers.AutoModelForCausalLM.from_pretrained = classmethod(
        lambda cls, *args, **more: plain(cls, *args, **{**more, "device_map": "cpu"})
    )
    FastLanguageModel.from_pretrained = staticmethod(
        lambda *args, **more: fast(*args, **{**more, "dtype": torch.float32})
    )


# --------------------------------------------------------------------------- what is run on it


def logits(folder: Path) -> None:
    """Unsloth's kernels beside plain transformers, in a process that never heard of Unsloth: every class is patched here."""
    import torch

    with play():
        from unsloth import FastLanguageModel

        from lab.files import STARTER_POLICY

        model, tokenizer = FastLanguageModel.from_pretrained(
            str(STARTER_POLICY), max_seq_length=200, load_in_4bit=False
        )
        batch = tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
        with torch.no_grad():
            ours = model(**batch).logits
    kept = folder / "logits.pt"
    torch.save({"ids": batch["input_ids"], "mask": batch["attention_mask"], "logits": ours.float()}, kept)
    plain = (
        "import sys, torch\nfrom transformers import AutoModelForCausalLM\n"
        "kept, policy = sys.argv[1:]\nkept = torch.load(kept)\nmodel = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)\n"
        "logits = model(input_ids=kept['ids'], attention_mask=kept['mask']).logits\n"
        "print(float(((logits - kept['logits']).abs() * kept['mask'][:, :, None]).max()), float(logits.abs().max()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", plain, str(kept), str(STARTER_POLICY)], capture_output=True, text=True, check=True
    )
    apart, largest = map(float, done.stdout.split())
    print(
        f"Unsloth's kernels for cards, interpreted, beside plain transformers: logits up to {largest:.1f}, largest difference {apart:.1e}"
    )
    if apart > 1e-3:
        raise SystemExit("They are other logits.")


def notebook(name: str, parameters: dict[str, Any]) -> None:
    """A notebook's cells, in this process."""
    cells = [
        cell
        for cell in json.loads((ROOT / f"notebooks/{name}.ipynb").read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    scope: dict[str, Any] = {"__name__": "__main__", "display": print}
    for number, cell in enumerate(cells, start=1):
        print(f"-- {name}, code cell {number} of {len(cells)}", flush=True)
        exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), scope)
        if "parameters" in cell["metadata"].get("tags", []):
            scope |= parameters


def train(folder: Path) -> None:
    """Notebook 03: one step, then run again for the second one."""
    from lab.files import STARTER_POLICY

    prepare(folder)
    parameters = {**SMALL, "MODEL": str(STARTER_POLICY), "MORE_SETTINGS": MORE, "OUTPUTS": str(folder)}
    with play():
        if not (folder / "run/log.jsonl").exists():
            stop_after_the_first_step(folder / "run")
        notebook("03_train_grpo", parameters)
    if not (folder / "run/checkpoint-2").exists():  # a process of its own goes on, as after a kill
        raise SystemExit(subprocess.run([sys.executable, __file__, "train", "--folder", str(folder)]).returncode)


def stop_after_the_first_step(run: Path) -> None:
    """By the file that any user may put there."""
    import threading
    import time

    def watch() -> None:
        while not (run / "log.jsonl").exists():
            time.sleep(0.2)
        (run / "stop").touch()

    threading.Thread(target=watch, daemon=True).start()


def prepare(folder: Path) -> None:
    """What notebooks 01 and 02 leave."""
    if (folder / "dataset").exists():
        return
    sys.path.insert(0, str(Path(__file__).parent))
    import training_bench

    training_bench.prepare(folder)


def merge(folder: Path) -> None:
    """Notebook 05, with Unsloth's way of merging on a card."""
    with play():
        small = {"N_EVALUATE": 2, "N_SAMPLES": 0, "N_PROOF": 2, "FORMATS": [], "TRY_SERVER": False, "BATCH_SIZE": 4}
        notebook("05_merge_and_export", {**small, "OUTPUTS": str(folder)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("logits", "train", "merge"))
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs/played-card")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    # before anything imports Triton, which looks once whether it is to interpret
    os.environ |= SURROUNDINGS
    os.environ["UNSLOTH_COMPILE_LOCATION"] = str(arguments.folder / "unsloth_compiled_cache")
    {"logits": logits, "train": train, "merge": merge}[arguments.what](arguments.folder.resolve())


if __name__ == "__main__":
    main()
