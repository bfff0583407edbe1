"""`make gpu-check`: does everything work on this CUDA card, and what does it cost there? Ten minutes, offline.

Each part runs in a process of its own with its own log, and reports on its own: one failure hides nothing. What does not fit
into the minutes is ended or left out, and said to be; `--parts` adds it to the record later.

`environment`    driver, torch, Triton (a kernel is compiled), bitsandbytes (NF4 there and back), Unsloth, the pins.
`settings`       what Unsloth's own GRPOConfig makes of every preset: the config guard's table.
`model`          a model of Qwen2.5-1.5B's shape with random weights and the starter policy's tokenizer, made here.
`Unsloth, bf16`  20 steps of notebook 03 on it, 4-bit LoRA: seconds, tokens, memory. `TRL, bf16`: the same settings with
                 TRL, PEFT and bitsandbytes alone. Nothing else runs meanwhile.
`Unsloth, fp16, killed and resumed`   six steps, with SIGKILL in the middle. `TRL, fp16`: six steps. Not timed.
`merge`          notebook 05 on what `Unsloth, bf16` trained: the merge and its proof.
`notebooks`      01 to 05 on the starter policy, in 4 bit, with the evidence that `make run` ends with.

Where there is no CUDA card this is a rehearsal: the same parts on the CPU with a model of two layers, in 32 bits, except
for `notebooks`, which is `make run` there. Its figures say nothing about a GPU, and are not kept beside those of one.

    make gpu-check                                           with the project's environment
    make gpu-check PY=python3                                with a Python as it is, where packages came as wheels
    python3 notebooks/lab/make/gpu_check.py                    the same, without make
    make gpu-check ARGS="--parts merge notebooks --keep"     these again, into the same record, and that beside the other benchmarks'
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks")]
from lab.files import STARTER_POLICY, STOP, read_json, relative, write_json, write_text  # noqa: E402
from lab.train import trl_internals  # noqa: E402

RESULTS = ROOT / "tests/benchmarks/results"
MADE_BY = "make gpu-check"
CARD = "GRPO_GPU_CHECK_CARD"  # in the parts' environment: the card, as JSON, so that nobody has to ask it
UNTIL = "GRPO_GPU_CHECK_UNTIL"  # and when the part will be ended, in seconds since 1970
SPARE = 40  # seconds before that in which a training is asked to stop, so that its figures are not lost
GB_OF_DISK = 15  # for models, checkpoints and merged models on a card
Row = dict[str, Any]
QWEN_1_5B = {
    "vocab_size": 151936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
TWO_LAYERS = {
    **QWEN_1_5B,
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}
SPREAD = 0.12  # of the embeddings that have a token: logits spread enough that nearly all samples are readable text
# A random net of 28 layers amplifies the last bits: two ways of attention gave 0.009 nats of KL between the same weights, more
# than the merge's proof allows. With what layers add from the fourth on made this much smaller it is 0.001.
DAMPED = (3, 0.05)


# A random model solves nothing. This reward has a spread from the first step on, and something to learn.
OWN = '''"""The reward of `make gpu-check`."""

from rewards import reward


@reward
def vowels_reward(completion: str) -> float:
    """The share of vowels among the characters. Returns 0 to 1."""
    return sum(char in "aeiou" for char in completion) / (1 + len(completion))
'''
WEIGHTS = {"vowels_reward": 1.0, "correctness_reward": 1.0}
WARM_UP = 2  # steps of each process that are left out of the figures: kernels are compiled and tuned in them


@dataclass(frozen=True)
class Size:
    """How large the check is: on a card, or in rehearsal."""

    shape: Row
    steps: int
    short: int  # steps of the runs that are not timed
    save_steps: int
    parameters: Row  # of notebook 03, for all trainings
    more: Row  # its MORE_SETTINGS


ON_A_CARD = Size(
    QWEN_1_5B,
    20,
    6,
    2,
    {"PROMPTS_PER_STEP": 8, "NUM_GENERATIONS": 8, "MAX_COMPLETION_TOKENS": 128, "LEARNING_RATE": 3e-4},
    {"load_in_4bit": True, "per_device_train_batch_size": 16, "fast_inference": False, "gradient_checkpointing": True},
)
REHEARSAL = Size(
    TWO_LAYERS,
    4,
    4,
    1,
    {"PROMPTS_PER_STEP": 2, "NUM_GENERATIONS": 4, "MAX_COMPLETION_TOKENS": 16, "LEARNING_RATE": 1e-3},
    {"load_in_4bit": True, "per_device_train_batch_size": 4},
)


@functools.cache
def card() -> Row:
    """The card's name, memory and abilities; empty where there is none. Asked in a process of its own: whoever asks torch
    holds some of the card's memory from then on."""
    if CARD in os.environ:
        return json.loads(os.environ[CARD])
    asked = (
        "import json, torch\n"
        "if torch.cuda.is_available():\n"
        "    card = torch.cuda.get_device_properties(0)\n"
        "    print(json.dumps({'gpu': card.name, 'gpu_memory_bytes': card.total_memory, 'capability': f'{card.major}.{card.minor}',\n"
        "                      'gpus': torch.cuda.device_count(), 'cuda': torch.version.cuda}))"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"torch cannot be asked for a card: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout or "{}")


def on_card() -> bool:
    return bool(card())


def size() -> Size:
    return ON_A_CARD if on_card() else REHEARSAL


def has_bf16() -> bool:
    return int(card()["capability"].split(".")[0]) >= 8


def environment(folder: Path) -> Row:
    """Each line for itself: what works, and what does not with its error."""
    checks = {
        "driver": driver,
        "torch": torch_works,
        "Triton": triton_works,
        "bitsandbytes": bitsandbytes_works,
        "Unsloth": unsloth_works,
    }
    found: Row = {"machine": machine(), "pins": pins(), "checks": {}}
    for name, check in checks.items():
        try:
            found["checks"][name] = {"state": "ok", **check()}
        except Exception as error:
            traceback.print_exc()
            found["checks"][name] = {"state": "failed", "said": f"{type(error).__name__}: {error}"[:300]}
    bad = [name for name, check in found["checks"].items() if check["state"] == "failed"]
    return {**found, **({"failed": "these do not work: " + ", ".join(bad)} if bad else {})}


def machine() -> Row:
    """The card's name and size, the processor, the versions that matter."""
    from lab.make.recipe_grid import cpu_name
    from lab.train.process import package_versions

    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "versions": package_versions(),
        **card(),
    }


def pins() -> list[str]:
    """The requirements that are here in another version, or not at all."""
    from lab.setup import missing, version_of

    wanted = [pin.split("==") for pins in missing(strict=True) for pin in pins]
    return [f"{name} {version_of(name) or 'not installed'}, pinned {pin}" for name, pin in wanted]


def driver() -> Row:
    if not on_card():
        return {"state": "not here", "said": "no CUDA card that torch can see"}
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return {"said": subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30).stdout.strip()}


def torch_works() -> Row:
    """A product against one in 64 bits, and on a card what it reaches: the figures that times are computed from."""
    import torch

    place, kind = ("cuda", torch.bfloat16 if has_bf16() else torch.float16) if on_card() else ("cpu", torch.float32)
    a, b = (torch.randn(512, 512, device=place, dtype=kind) for _ in range(2))
    error = float(((a @ b).double() - a.double() @ b.double()).abs().max())
    if error > 1.0:
        raise ValueError(f"a matrix product is off by {error:.3g}")
    found: Row = {"said": f"torch {torch.__version__}, a product off by {error:.1g}"}
    return found | (speeds(kind) if on_card() else {})


def speeds(kind: Any) -> Row:
    """TFLOP/s of a product of 8192 × 8192 matrices, and GB/s of a copy of 1 GB, read and written."""
    import torch

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=kind) for _ in range(2))
    product = timed(lambda: a @ b)
    one, other = (torch.zeros(10**9, device="cuda", dtype=torch.uint8) for _ in range(2))
    return {
        "tflops": 2 * 8192**3 / product / 1e12,
        "copy_gb_per_second": 2 * one.numel() / timed(lambda: one.copy_(other)) / 1e9,
    }


def timed(work: Any, times: int = 20) -> float:
    """Mean seconds by the card's own clock, after three that warm up."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for number in range(times + 3):
        begin.record() if number == 3 else None
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000 / times


KERNEL = """
import torch, triton, triton.language as tl

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)

x = torch.randn(10_000, device="cuda")
out = torch.empty_like(x)
add[(triton.cdiv(10_000, 256),)](x, x, out, 10_000, BLOCK=256)
assert torch.equal(out, x + x), "the kernel's sums are wrong"
print(triton.__version__)
"""


def triton_works() -> Row:
    """A kernel is compiled, which needs a C compiler, and compared with torch."""
    if not on_card():
        return {"state": "not here", "said": "it compiles for a card"}
    place = Path(os.environ["GRPO_CHECK_FOLDER"]) / "kernel.py"  # Triton reads a kernel's source from its file
    write_text(place, KERNEL)
    done = subprocess.run([sys.executable, str(place)], capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        )
    return {"said": f"triton {done.stdout.strip()}, a kernel compiled and right"}


def bitsandbytes_works() -> Row:
    """NF4 there and back, and a 4-bit layer against the product with its dequantised weight."""
    import bitsandbytes
    import torch
    from bitsandbytes.functional import dequantize_4bit

    place = "cuda" if on_card() else "cpu"
    kind = torch.float16 if on_card() else torch.float32
    layer = bitsandbytes.nn.Linear4bit(256, 256, bias=False, quant_type="nf4", compute_dtype=kind)
    weight = layer.weight.data.clone()
    layer = layer.to(place)
    layer.support_avx512bf16_for_cpu = False
    back = dequantize_4bit(layer.weight.data, layer.weight.quant_state).to(place, kind).view(256, 256)
    rounding = float((back.float().cpu() - weight.float()).pow(2).mean().sqrt() / weight.float().pow(2).mean().sqrt())
    x = torch.randn(8, 256, device=place, dtype=kind)
    apart = float((layer(x).float() - (x @ back.T).float()).abs().max())
    if not 0.02 < rounding < 0.2 or apart > 0.05:
        raise ValueError(f"NF4 rounds weights by {rounding:.1%} and its layer is off by {apart:.2g}")
    return {
        "said": f"bitsandbytes {bitsandbytes.__version__}, NF4 rounds by {rounding:.1%}, its layer is off by {apart:.1g}"
    }


def unsloth_works() -> Row:
    """Which road `import unsloth` takes: on a card its own trainer stands in TRL's place."""
    import trl
    import unsloth

    replaced = trl.GRPOTrainer.__name__ != "GRPOTrainer"
    if replaced != on_card():
        raise RuntimeError(
            f"the trainer is {trl.GRPOTrainer.__name__}, which is the road for {'a CPU' if on_card() else 'a card'}"
        )
    return {"said": f"unsloth {unsloth.__version__}, trainer: {trl.GRPOTrainer.__name__}"}


def settings(folder: Path) -> Row:
    """The guard's table for each preset and model under the class that Unsloth puts in GRPOConfig's place on a card.

    Without a card the class is generated all the same, by the switch that Unsloth has for its own tests
    (UNSLOTH_ALLOW_CPU), and torch says that there is a card while the settings are checked.
    """
    config = unsloths_config(folder)
    from lab.train import effective_settings, presets

    rows, requested = [], 0
    for preset in presets.PRESETS:
        for starter in (True, False):
            if preset == "cpu":
                continue
            with pretended(bf16=preset != "t4-16gb"):
                asked = presets.plan(preset, starter=starter).settings
                made = effective_settings.effective_settings(
                    asked, config(output_dir=str(folder / "unused"), report_to="none", **asked)
                )
            requested += len(asked)
            about = {"preset": preset, "model": "starter policy" if starter else "real"}
            rows += [{**about, "setting": name, **line} for name, line in made[made["changed"] != ""].iterrows()]
    import trl

    lost = [f"{row['setting']} ({row['preset']}) was changed" for row in rows if row["requested"] != "–"]
    lost += [f"{name} of the trainer is gone or has other parameters" for name in trl_internals.missing_members(trl.GRPOTrainer)]
    return {
        "trainer": f"{trl.GRPOTrainer.__module__}.{trl.GRPOTrainer.__qualname__}",
        "requested": requested,
        "rows": rows,
        "defaults": other_defaults(),
        **({"failed": "; ".join(lost)} if lost else {}),
    }


def unsloths_config(folder: Path) -> type:
    """GRPOConfig as it is on a card."""
    if not on_card():
        os.environ["UNSLOTH_ALLOW_CPU"] = "1"
    import trl
    import unsloth  # noqa: F401

    if not on_card():
        trl_internals.use_unsloths_trainer()
    if trl.GRPOTrainer.__name__ != "UnslothGRPOTrainer":
        raise RuntimeError(f"Unsloth has not replaced the trainer: it is {trl.GRPOTrainer}")
    return trl.GRPOConfig


@contextlib.contextmanager
def pretended(bf16: bool) -> Iterator[None]:
    """torch says that there is a card with bfloat16, or without; also on a machine whose card is another one."""
    from unittest import mock

    import torch

    has = {
        "is_available": True,
        "is_bf16_supported": bf16,
        "get_device_capability": (9, 0) if bf16 else (7, 5),
        "device_count": 1,
    }
    with contextlib.ExitStack() as stack:
        for name, value in has.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, lambda *args, value=value, **more: value))
        # transformers asks the card itself, and remembers; accelerate would claim it
        stack.enter_context(mock.patch("transformers.training_args.is_torch_bf16_gpu_available", lambda: bf16))
        stack.enter_context(mock.patch("transformers.training_args.TrainingArguments.device", property(no_device)))
        yield


def no_device(arguments: Any) -> Any:
    """In place of TrainingArguments.device, which would claim the card."""
    import torch
    from accelerate import PartialState

    arguments.distributed_state, arguments._n_gpu = PartialState(cpu=True), 1
    return torch.device("cpu")


def other_defaults() -> list[Row]:
    """Fields that get another value from Unsloth's class than from TRL's when they are left out."""
    from lab.train import effective_settings, settings_check

    own, live = settings_check.trl_defaults(), settings_check.live_defaults()
    return [
        {"setting": name, "TRL": str(own.get(name, "no such field")), "Unsloth": str(value)}
        for name, value in live.items()
        if not effective_settings.same(name, own.get(name), value)
    ]


def make_model(folder: Path) -> Row:
    """The shape of Qwen2.5-1.5B-Instruct, random weights, the starter policy's tokenizer; and data and rewards for it.

    Embeddings without a token are zero and the others spread, so that samples are text: only then is there a reward.
    """
    import torch
    from datasets import disable_progress_bars
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from lab.data import dataset, loading
    from lab.train import chosen_rewards

    disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(STARTER_POLICY)
    ends = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    torch.manual_seed(3407)
    with torch.device("cuda" if on_card() else "cpu"):
        model = Qwen2ForCausalLM(Qwen2Config(**size().shape, **ends)).to(torch.bfloat16)
    with torch.no_grad():
        rows = model.get_input_embeddings().weight
        rows[: len(tokenizer)].normal_(std=SPREAD)
        rows[len(tokenizer) :] = 0
        for layer in model.model.layers[DAMPED[0] :]:
            layer.self_attn.o_proj.weight.mul_(DAMPED[1])
            layer.mlp.down_proj.weight.mul_(DAMPED[1])
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    write_text(folder / "inputs/my_rewards.py", OWN)
    chosen_rewards.save_choice(folder / "inputs", WEIGHTS)
    prepared = dataset.prepare_dataset(loading.load_rows("word_problems"), tokenizer, seed=3407)
    dataset.save_dataset(prepared, folder / "inputs/dataset")
    return {"parameters": sum(p.numel() for p in model.parameters()), "shape": size().shape}


def parameters(folder: Path, backend: str, kind: str, steps: int) -> Row:
    """What notebook 03 gets: the same for both backends."""
    which = {"bf16": kind == "bf16", "fp16": kind == "fp16"}
    saves = (
        size().save_steps if steps == size().short else steps
    )  # the long runs are timed: no checkpoint falls into them
    return {
        "MODEL": str(folder / "base"),
        "BACKEND": backend,
        "MAX_STEPS": steps,
        "OUTPUTS": str(folder / f"{backend}-{kind}"),
        **size().parameters,
        "EVAL_EVERY": 0,
        "SHOW_EVERY": 0,
        "WATCH_REWARDS": False,
        "STOP_WHEN_CRITICAL": False,
        "MORE_SETTINGS": {**size().more, **which, "save_steps": saves, "logging_steps": 1},
    }


def start(folder: Path, backend: str, kind: str, steps: int) -> tuple[subprocess.Popen, Path]:
    """Notebook 03 as a script, on its way; and the folder of its run."""
    from lab.train.launch import environment as launched
    from lab.train.launch import export_script

    outputs = folder / f"{backend}-{kind}"
    if not outputs.exists():
        shutil.copytree(folder / "inputs", outputs)
    script = export_script(outputs / "train.py", parameters(folder, backend, kind, steps))
    return subprocess.Popen([sys.executable, str(script)], cwd=ROOT / "notebooks", env=launched(1)), outputs / "run"


def train(folder: Path, backend: str, kind: str, steps: int) -> Row:
    """A training; one that would not end in time is stopped after a step, and its figures are of the steps until then."""
    process, run = start(folder, backend, kind, steps)
    while process.poll() is None:
        if time.time() > float(os.environ.get(UNTIL, "inf")) - SPARE and steps_of(run):
            (run / STOP).touch()
        time.sleep(0.2)
    finish(process)
    return measured(run, backend, kind)


def train_killed(folder: Path, backend: str, kind: str, steps: int) -> Row:
    """The same, killed when half of the steps are logged and run again; what is wrong with how it went on is `failed`."""
    process, run = start(folder, backend, kind, steps)
    while process.poll() is None and len(steps_of(run)) < steps // 2 + 1:
        time.sleep(0.1)
    process.kill()
    if process.wait() != -signal.SIGKILL:
        raise RuntimeError("it ended before it could be killed")
    before = len(steps_of(run))
    finish(start(folder, backend, kind, steps)[0])
    logged = [row["step"] for row in steps_of(run)]
    resumed = [row["after_step"] for row in lines(run / "events.jsonl") if row["kind"] == "resumed"]
    wrong = None if logged == list(range(1, steps + 1)) and resumed else f"steps {logged}, resumed after {resumed}"
    found = measured(run, backend, kind)
    found |= {"name": f"{found['name']}, killed and resumed", "killed_after": before, "resumed_after": resumed}
    return {**found, **({"failed": f"it did not go on as one run: {wrong}"} if wrong else {})}


def finish(process: subprocess.Popen) -> None:
    if process.wait():
        raise RuntimeError(f"notebook 03 ended with exit code {process.returncode}")


def lines(path: Path) -> list[Row]:
    """The rows of a JSONL file; one that is being written counts as not there yet."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def steps_of(run: Path) -> list[Row]:
    return [row for row in lines(run / "log.jsonl") if "reward" in row]


def measured(run: Path, backend: str, kind: str) -> Row:
    """The figures of a run, from its own log; the first steps of each process are left out.

    All are means over the same steps. Seconds are those of whole steps (`time/step` of `lab.train.recorder.RunRecorder`), the optimiser
    among them. Trained tokens are those of prompts and completions, in the seconds that neither generate nor score.
    """
    record, rows = read_json(run / "run.json", MADE_BY), steps_of(run)
    warm = [
        row
        for row in rows
        if all(not 0 < row["step"] - begin <= WARM_UP for begin in (a["from_step"] for a in record["attempts"]))
    ]
    warm, before = warm or rows[-1:], {row["step"]: row["num_tokens"] for row in rows}
    seconds = sum(row["time/step"] for row in warm)
    generating, scoring = (sum(row[f"time/{name}"] for row in warm) for name in ("generating", "scoring"))
    completions = size().parameters["PROMPTS_PER_STEP"] * size().parameters["NUM_GENERATIONS"]
    made = sum(row["completions/mean_length"] * completions for row in warm)
    read = sum(row["num_tokens"] - before.get(row["step"] - 1, 0) for row in warm)
    peak = record["process"]["peak_memory"]
    found = {
        "name": f"{'Unsloth' if backend == 'unsloth' else 'TRL'}, {kind}",
        "backend": backend,
        "precision": kind,
        "steps": len(rows),
        "steps_timed": len(warm),
        "steps_asked": record["requested"].get("max_steps"),
        "seconds_a_step": seconds / len(warm),
        "tokens_at_most": record["requested"].get("max_completion_length"),
        "generated_tokens_a_second": made / generating,
        "trained_tokens_a_second": read / (seconds - generating - scoring),
        "generating_share": generating / seconds,
        "peak_bytes": peak["bytes"],
        "peak_of": peak["of"],
        "peak_reserved_bytes": peak.get("reserved"),
        "reward": [rows[0]["reward"], rows[-1]["reward"]],
        "grad_norm": rows[-1].get("grad_norm"),
        "loss": rows[-1].get("loss"),
        "status": record["status"],
        "requested": record["requested"],
    }
    settled = (
        rows[-1:] if kind == "fp16" else rows
    )  # its scaler halves until it finds its scale, and leaves those steps out
    bad = [name for name in ("loss", "grad_norm") if any(not finite(row.get(name)) for row in settled)]
    return {**found, **({"failed": f"{' and '.join(bad)} not finite in some step"} if bad else {})}


def finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < float("inf")


def merge(folder: Path) -> Row:
    """Notebook 05 on the run of `Unsloth, bf16` (`fp32` in rehearsal): it stops where the merged model is not the trained one."""
    from lab.make.run import execute_notebook

    outputs = folder / f"unsloth-{main_kind()}"
    small = {"N_EVALUATE": 8, "N_SAMPLES": 1, "N_PROOF": 8, "FORMATS": [], "TRY_SERVER": False, "BATCH_SIZE": 32}
    seconds = execute_notebook("05_merge_and_export", outputs, small)
    proof = read_json(outputs / "merge_proof.json", MADE_BY)
    return {
        "seconds": seconds,
        "merged_into": proof["merged_into"],
        "distances": proof["distances"],
        "from_base": proof["from_base"],
    }


def notebooks(folder: Path) -> Row:
    """01 to 05 on the starter policy, in 4 bit, as `make run` does; and its evidence."""
    from lab.make.run import ROAD, evidence, run_notebooks
    from lab.measure.verdicts import summary_table

    # two thirds of the steps and fewer held-out answers than `make run` takes: it must fit into the minutes
    starter, outputs = {"MODEL": "starter"}, folder / "road"
    given: dict[str, Row] = {name: starter for name in ROAD[:2]}
    # an 80 GB card would get 16 bits
    given["03_train_grpo"] = {**starter, "MAX_STEPS": 54, "MORE_SETTINGS": {"load_in_4bit": True}}
    given["05_merge_and_export"] = {"FORMATS": ["adapter", "merged 4 bit"], "N_EVALUATE": 200, "N_SAMPLES": 1}
    seconds = run_notebooks(ROAD, outputs, given)
    evaluation = read_json(outputs / "evaluation.json", MADE_BY)
    print(evidence(outputs, seconds))
    lines = summary_table(evaluation)[["base", "merged", "difference", "95 % interval"]].astype(str)
    gained = evaluation["difference"]["merged"]["greedy"]["correct"]
    proved = read_json(outputs / "merge_proof.json", MADE_BY)
    return {
        "seconds": seconds,
        "evidence": lines.reset_index(names="measure").to_dict("records"),
        "said": evaluation["said"],
        "n": evaluation["n"],
        "merge": {"into": proved["merged_into"], "distances": proved["distances"]},
        **({} if gained["low"] > 0 else {"failed": f"no gain was shown: {evaluation['said']}"}),
    }


def main_kind() -> str:
    return "fp32" if not on_card() else "bf16" if has_bf16() else "fp16"


@dataclass(frozen=True)
class Part:
    """`alone`: nothing else may run meanwhile, since it is timed, or since others need it. `makes`: folders of an earlier
    check that are in its way."""

    name: str
    work: Any
    limit: int  # seconds
    needs: tuple[str, ...] = ()
    alone: bool = True
    makes: tuple[str, ...] = ()


def all_parts() -> list[Part]:
    """Those of this machine, in order: what the others need, what is timed, and then the rest side by side."""
    kind, steps, short = main_kind(), size().steps, size().short
    both = [(f"{name}, {kind}", name.lower()) for name in ("Unsloth", "TRL")]
    other = "fp16" if kind == "bf16" else kind  # where there is one precision only, its resumption is still to be seen
    found = [Part("environment", environment, 180), Part("model", make_model, 180, makes=("base", "inputs"))]
    found += [
        Part(name, lambda f, b=backend: train(f, b, kind, steps), 300, ("model",), makes=(f"{backend}-{kind}",))
        for name, backend in both
    ]
    # the longest first
    found += [Part("notebooks", notebooks, 480, (), False, ("road",))] if on_card() else []
    killed = f"Unsloth, {other}, killed and resumed"
    found.append(
        Part(killed, lambda f: train_killed(again(f), "unsloth", other, short), 300, ("model",), False, ("killed",))
    )
    if kind == "bf16":
        found.append(Part("TRL, fp16", lambda f: train(f, "trl", "fp16", short), 300, ("model",), False, ("trl-fp16",)))
    return [*found, Part("merge", merge, 300, (both[0][0],), False), Part("settings", settings, 180, (), False)]


def again(folder: Path) -> Path:
    """A place beside for a second run with the same backend and precision."""
    place = folder / "killed"
    place.mkdir(exist_ok=True)
    for name in ("base", "inputs"):
        if not (place / name).exists():
            (place / name).symlink_to(folder / name)
    return place


def child(name: str, folder: Path) -> None:
    """One part, in its process: its result to a file."""
    part = next(part for part in all_parts() if part.name == name)
    write_json(folder / f"{slug(name)}.json", part.work(folder))


def slug(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def surroundings(folder: Path, name: str, seconds: float) -> dict[str, str]:
    """Offline, nothing installed, nothing sent, and compiled code where it can be deleted."""
    paths = [str(ROOT), str(ROOT / "notebooks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "GRPO_NOTEBOOKS": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "GRPO_NO_INSTALL": "1",
        "UNSLOTH_DISABLE_STATISTICS": "1",
        "UNSLOTH_COMPILE_LOCATION": str(folder / "compiled" / name),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        CARD: json.dumps(card()),
        UNTIL: str(time.time() + seconds),
        "GRPO_CHECK_FOLDER": str(folder),
        "GRPO_QUIET": "1",
    }


RUNNING: set[int] = set()  # the parts' processes, each at the head of a group


def end(pid: int) -> None:
    """Ends a part's process with all that it started: kernels, servers and checks have sessions of their own."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def run_part(part: Part, folder: Path, seconds: float) -> Row:
    """Starts the part's process and waits; its result, or why there is none."""
    log, result = folder / f"{slug(part.name)}.log", folder / f"{slug(part.name)}.json"
    result.unlink(missing_ok=True)
    began = time.monotonic()
    command = [sys.executable, str(Path(__file__).resolve()), "--child", part.name, "--folder", str(folder)]
    with log.open("wb") as sink:
        around = surroundings(folder, slug(part.name), seconds)
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True, env=around)
        RUNNING.add(process.pid)
        try:
            code = process.wait(seconds)
            why = f"exit code {code}: {last_words(log)}" if code else ""
        except subprocess.TimeoutExpired:
            why = f"it was ended after {seconds:.0f} s: {last_words(log)}"
        finally:
            end(process.pid)
            process.wait()
            RUNNING.discard(process.pid)
    found = read_json(result, MADE_BY) if result.exists() and not why else {}
    why = why or found.pop("failed", "") or ("" if found else "it left no result")
    return {
        "status": "failed" if why else "ok",
        "took": round(time.monotonic() - began, 1),
        "why": why,
        "log": relative(log),
        "found": found,
    }


def last_words(log: Path) -> str:
    """The last line of a log that says something about an error, else the last one."""
    said = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in said if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    return (errors or said or ["it said nothing"])[-1][:300]


class Check:
    """Runs the parts and keeps what is known after each of them, so that a stop loses nothing."""

    def __init__(self, folder: Path, out: Path, minutes: float, before: Row | None = None) -> None:
        self.folder, self.out, self.lock = folder, out, threading.Lock()
        self.ends = time.monotonic() + 60 * minutes
        empty = {"rehearsal": not on_card(), "machine": card(), "parts": {}, "runs": []}
        self.record: Row = {**empty, **(before or {}), "date": time.strftime("%Y-%m-%d")}

    def run(self, parts: list[Part], together: int) -> Row:
        """Those that are timed one after the other, the others `together` at once."""
        with concurrent.futures.ThreadPoolExecutor(together) as pool:
            try:
                for part in (part for part in parts if part.alone):
                    self.one(part)
                list(pool.map(self.one, (part for part in parts if not part.alone)))
            except BaseException:
                self.ends = (
                    0.0  # those that wait are not begun, and those that run are ended: they do not hear a Ctrl-C
                )
                for pid in list(RUNNING):
                    end(pid)
                raise
        return self.record

    def one(self, part: Part) -> None:
        left = self.ends - time.monotonic()
        missing = [name for name in part.needs if self.record["parts"].get(name, {}).get("status") != "ok"]
        if missing or left < 5:
            why = f"it needs {missing[0]}" if missing else "the time was up: --minutes gives more"
            outcome = {"status": "not run", "took": 0.0, "why": why, "log": "", "found": {}}
        else:
            print(f"  {part.name} …", flush=True)
            for name in part.makes:
                shutil.rmtree(self.folder / name, ignore_errors=True)  # of an earlier check
            outcome = run_part(part, self.folder, min(part.limit, left))
        self.keep(part, outcome)

    def keep(self, part: Part, outcome: Row) -> None:
        name, found = part.name, outcome.pop("found")
        a_run = "seconds_a_step" in found
        with self.lock:  # several parts may end at once
            self.record["parts"][name] = {**outcome, **({} if a_run else {"found": found})}
            self.record["runs"] = [run for run in self.record["runs"] if run["name"] != name] + (
                [{**found, "timed": part.alone}] if a_run else []
            )
            self.record["machine"] = {**self.record["machine"], **found.get("machine", {})}
            try:
                write_json(self.out.with_suffix(".json"), self.record)
                write_text(self.out.with_suffix(".md"), report(self.record))
            except OSError as error:  # the table is printed at the end all the same
                print(f"  the record could not be written: {error}", flush=True)
        print(
            f"  {name}: {outcome['status']}, {outcome['took']:.0f} s"
            + (f": {outcome['why']}" if outcome["why"] else ""),
            flush=True,
        )


def report(record: Row) -> str:
    """The record as Markdown: what worked, what it cost, what Unsloth changed."""
    about, versions = record["machine"], record["machine"].get("versions", {})
    where = about.get("gpu", "an unnamed card")
    if record["rehearsal"]:
        where = f"{about.get('cpu', 'this machine')}, no CUDA card: **a rehearsal, no figure of a GPU**"
    text = [
        f"# GPU check: {where}",
        "",
        f"{record['date']}, made by `make gpu-check`. " + ", ".join(f"{a} {b}" for a, b in versions.items()),
        "",
    ]
    parts = [
        (name, one["status"], f"{one['took']:.0f} s", one["why"].replace("|", "\\|"))
        for name, one in record["parts"].items()
    ]
    text += table(("part", "", "took", "why"), parts)
    if record["runs"]:
        text += [
            "",
            "## Training",
            "",
            *table(
                ("", *COLUMNS), [(run["name"], *(show(run) for show in COLUMNS.values())) for run in record["runs"]]
            ),
        ]
        text += ["", *compared(record["runs"], record["rehearsal"])]
    for name, one in record["parts"].items():
        text += section(name, one.get("found") or {})
    return "\n".join(text) + "\n"


def timing(name: str, form: str) -> Any:
    """A column for what is a figure only where nothing else ran meanwhile."""
    return lambda run: format(run[name], form) if run["timed"] else "–"


COLUMNS = {
    "seconds a step": timing("seconds_a_step", ".2f"),
    "generated tokens a second": timing("generated_tokens_a_second", ",.0f"),
    "trained tokens a second": timing("trained_tokens_a_second", ",.0f"),
    "share of generating": timing("generating_share", ".0%"),
    "peak memory": lambda run: memory(run),
    "steps": lambda run: f"{run['steps']} ({run['steps_timed']} timed)" if run["timed"] else run["steps"],
    "reward, first and last step": lambda run: " → ".join(f"{value:.3f}" for value in run["reward"]),
}


def memory(run: Row) -> str:
    if not run["peak_bytes"]:
        return "not known"
    said = (
        f"{run['peak_bytes'] / 1e9:.2f} GB of tensors"
        if run["peak_of"] == "card"
        else f"{run['peak_bytes'] / 1e9:.2f} GB, the process"
    )
    return said + (f", {run['peak_reserved_bytes'] / 1e9:.2f} reserved" if run.get("peak_reserved_bytes") else "")


def compared(runs: list[Row], rehearsal: bool) -> list[str]:
    """Unsloth beside plain TRL in each precision, and its own claim."""
    text = []
    first = {(run["backend"], run["precision"]): run for run in reversed(runs)}
    for precision in dict.fromkeys(run["precision"] for run in runs):
        ours, plain = (first.get((backend, precision)) for backend in ("unsloth", "trl"))
        if ours and plain:
            names = ("seconds_a_step", "peak_bytes") if ours["timed"] and plain["timed"] else ("peak_bytes",)
            ratio = {name: plain[name] / ours[name] for name in names if plain[name] and ours[name]}
            text.append(
                f"{plain['name']} against {ours['name']}: "
                + ", ".join(f"{name.replace('_', ' ')} × {value:.2f}" for name, value in ratio.items())
                + "."
            )
    claim = "Unsloth says of itself that it trains about twice as fast with far less memory. "
    return (
        [
            *text,
            "",
            claim
            + (
                "A CPU cannot say: there it is TRL itself." if rehearsal else "The ratios above are what was seen here."
            ),
        ]
        if text
        else []
    )


def section(name: str, found: Row) -> list[str]:
    """What a part found beyond figures of a training."""
    text: list[str] = []
    if "checks" in found:
        text += table(
            ("", "", "said"), [(key, one["state"], one.get("said", "")) for key, one in found["checks"].items()]
        )
        text += ["", "Other versions than pinned: " + ("; ".join(found["pins"]) or "none") + "."]
        speed = found["checks"].get("torch", {})
        if "tflops" in speed:
            text += [
                "",
                f"A product of 8192 × 8192 matrices: {speed['tflops']:.0f} TFLOP/s; a copy: {speed['copy_gb_per_second']:.0f} GB/s.",
            ]
    if "defaults" in found:
        text += [
            f"{found['requested']} settings were asked for in six plans, of which Unsloth's `GRPOConfig` changed {changed(found)}:",
            "",
        ]
        text += table(("setting", "requested", "effective", "TRL's default", "in"), together_in(found["rows"]))
        text += ["", "Fields that get another value where they are left out:", ""]
        text += table(
            ("setting", "TRL", "Unsloth"), [(row["setting"], row["TRL"], row["Unsloth"]) for row in found["defaults"]]
        )
    if "evidence" in found:
        text += table(tuple(found["evidence"][0]), [tuple(row.values()) for row in found["evidence"]])
        text += [
            "",
            f"n = {found['n']}. {found['said']} Seconds: "
            + ", ".join(f"{key} {value:.0f}" for key, value in found["seconds"].items())
            + ".",
        ]
    if "merged_into" in found:
        apart = ", ".join(f"{key} {value['kl']:.2g}" for key, value in found["distances"].items())
        text += [
            f"Merged into the {found['merged_into']} and proved. Mean KL from the trained model, nats a token: {apart}; "
            f"the untrained base {(found['from_base'] or {}).get('kl', float('nan')):.2g}."
        ]
    return ["", f"## {name[0].upper()}{name[1:]}", "", *text] if text else []


def changed(found: Row) -> str:
    return str(sum(row["requested"] != "–" for row in found["rows"]) or "none; it set what nobody asked for")


def together_in(rows: list[Row]) -> list[tuple]:
    """The same change in several plans as one line."""
    plans: dict[tuple, list[str]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("setting", "requested", "effective", "TRL's default"))
        plans.setdefault(key, []).append(f"{row['preset']} ({row['model']})")
    most = max(map(len, plans.values()), default=0)
    return [(*key, "every plan" if len(where) == most == 6 else ", ".join(where)) for key, where in plans.items()]


def table(head: tuple, rows: list[tuple]) -> list[str]:
    cells = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(str(cell).replace("\n", " ") for cell in row) + " |" for row in cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--parts",
        nargs="+",
        metavar="PART",
        help="these only, with what they need and is not there yet; added to the record",
    )
    parser.add_argument(
        "--minutes", type=float, default=10, help="then it ends, whatever still runs or waits (default: 10)"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "outputs/gpu-check", help="for models, logs, runs and the record"
    )
    parser.add_argument(
        "--keep", action="store_true", help="the record into tests/benchmarks/results/ too, as gpu.json and gpu.md"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.child:
        return child(arguments.child, folder)
    raise SystemExit(whole(arguments, folder))


def whole(arguments: argparse.Namespace, folder: Path) -> int:
    """All parts, or those asked for; the exit status is 1 where one of them did not do well."""
    out = folder / "check"
    before = earlier(out.with_suffix(".json")) if arguments.parts else None
    parts = chosen(
        all_parts(),
        arguments.parts,
        [name for name, one in (before or {"parts": {}})["parts"].items() if one["status"] == "ok"],
    )
    if not on_card():
        print(
            "No CUDA card: a rehearsal on the CPU with a model of two layers. Its figures say nothing about a GPU.",
            flush=True,
        )
    elif shutil.disk_usage(folder).free < GB_OF_DISK * 1e9:
        raise SystemExit(
            f"It needs {GB_OF_DISK} GB of disk at {folder}: free some, or name another place with --folder."
        )
    check = Check(folder, out, arguments.minutes, before)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the parts' processes are not left behind
    try:
        check.run(parts, together())
    except KeyboardInterrupt:
        print("\nStopped. What was done:")
    print(
        "\n"
        + report(check.record)
        + f"\nkept in {relative(out.with_suffix('.json'))} and {relative(out.with_suffix('.md'))}"
    )
    if arguments.keep and on_card():  # a rehearsal's figures have no place there
        write_json(RESULTS / "gpu.json", check.record)
        write_text(RESULTS / "gpu.md", report(check.record))
        print(f"and as gpu.json and gpu.md in {relative(RESULTS)}; `make scale` puts them into SCALE.md")
    return int(any(one["status"] != "ok" for one in check.record["parts"].values()))


def earlier(path: Path) -> Row | None:
    """The record of an earlier check on this machine's card, to add to; None where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return (
            found if found["rehearsal"] is not on_card() and found["machine"].get("gpu") == card().get("gpu") else None
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def chosen(parts: list[Part], names: list[str] | None, there: Sequence[str] = ()) -> list[Part]:
    """The parts of these names with what they need and is not there. Raises SystemExit for a name that there is not."""
    known = {part.name: part for part in parts}
    for name in names or []:
        if name not in known:
            raise SystemExit(f"There is no part {name!r} on this machine: there are {'; '.join(known)}.")
    wanted = set(names or known)
    for part in reversed(parts):
        wanted |= set(part.needs).difference(there) if part.name in wanted else set()
    return [part for part in parts if part.name in wanted]


def together() -> int:
    """How many untimed parts fit beside each other: each takes up to 12 GB."""
    return max(1, min(4, int(card().get("gpu_memory_bytes", 0) / 12e9)))


if __name__ == "__main__":
    main()
