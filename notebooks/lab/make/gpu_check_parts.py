"""What each part of `make gpu-check` does. Each runs in a process of its own; what it returns goes into the record.

A part that finds something wrong says so under `failed`, or raises. What a reader should see stands under `page`, in
lines of Markdown.
"""

import contextlib
import functools
import itertools
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.files import ROOT, STARTER_POLICY, STOP, Row, read_json, read_jsonl, write_text
from lab.show.tables import markdown_table

MADE_BY = "make gpu-check"
CARD = "GRPO_GPU_CHECK_CARD"  # in the parts' environment: the card, as JSON
UNTIL = "GRPO_GPU_CHECK_UNTIL"  # and when the part will be ended, in seconds since 1970
SPARE = 40  # seconds before that in which a training is asked to stop, so that its figures are not lost
WARM_UP = 2  # steps of each process that are left out of the figures: kernels are compiled and tuned in them
SHAPE = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size".split()
QWEN_1_5B, TWO_LAYERS = (1536, 8960, 28, 12, 2, 151936), (128, 256, 2, 4, 2, 2048)
SPREAD = 0.12  # of the embeddings that have a token: logits spread enough that nearly all samples are readable text
# A random net of 28 layers amplifies the last bits: the same weights gave 0.009 nats of KL between two ways of attention,
# more than the merge's proof allows. With smaller outputs of the layers from the fourth on it is 0.001.
DAMPED_FROM, DAMPED_TO = 3, 0.05
# A random model solves nothing. This reward has a spread from the first step on, and something to learn.
OWN_REWARD = '''"""The reward of `make gpu-check`."""

from rewards import reward


@reward
def vowels_reward(completion: str) -> float:
    """The share of vowels among the characters. Returns 0 to 1."""
    return sum(char in "aeiou" for char in completion) / (1 + len(completion))
'''
WEIGHTS = {"vowels_reward": 1.0, "correctness_reward": 1.0}
NAMES = {"unsloth": "Unsloth", "trl": "TRL"}  # backend -> as it is shown


@dataclass(frozen=True)
class Size:
    """How large the check is: on a card, or in rehearsal."""

    shape: tuple[int, ...]  # SHAPE
    steps: int
    short: int  # steps of the run that is killed; a third of them makes a checkpoint
    batch: int  # completions in one forward pass
    parameters: Row  # of notebook 03, for all trainings


BATCH = {"PROMPTS_PER_STEP": 8, "NUM_GENERATIONS": 8, "MAX_COMPLETION_TOKENS": 128, "LEARNING_RATE": 3e-4}
SMALL = {"PROMPTS_PER_STEP": 2, "NUM_GENERATIONS": 4, "MAX_COMPLETION_TOKENS": 16, "LEARNING_RATE": 1e-3}
MORE = {"load_in_4bit": True, "fast_inference": False, "gradient_checkpointing": True, "logging_steps": 1}
ON_A_CARD, REHEARSAL = Size(QWEN_1_5B, 20, 6, 16, BATCH), Size(TWO_LAYERS, 4, 4, 4, SMALL)
ASK = """import json, torch
if torch.cuda.is_available():
    card = torch.cuda.get_device_properties(0)
    print(json.dumps({"gpu": card.name, "gpu_memory_bytes": card.total_memory, "capability": f"{card.major}.{card.minor}",
                      "gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}))"""


@functools.cache
def card() -> Row:
    """The card's name, memory and abilities; empty where there is none.

    It is asked in a process of its own: whoever asks torch holds some of the card's memory from then on.
    """
    if CARD in os.environ:
        return json.loads(os.environ[CARD])
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"torch cannot be asked for a card: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout or "{}")


def size() -> Size:
    return ON_A_CARD if card() else REHEARSAL


def main_precision() -> str:
    """The precision of the timed trainings: bf16 where the card has it."""
    return "fp32" if not card() else "bf16" if int(card()["capability"].split(".")[0]) >= 8 else "fp16"


def check_environment(folder: Path) -> Row:
    """The machine, and for each thing that trainings need what works, or its error."""
    from lab.make.recipe_grid import cpu_name
    from lab.setup import missing, version_of
    from lab.train.process import package_versions

    about = {"cpu": cpu_name(), "cores": os.cpu_count(), "platform": platform.platform(), **card()}
    wanted = [pin.split("==") for pins in missing(strict=True) for pin in pins]
    pins = [f"{name} {version_of(name) or 'not installed'}, pinned {pin}" for name, pin in wanted]
    checks, bad = {}, []
    for name, check in {"driver": ask_driver, "bitsandbytes": check_bitsandbytes, "unsloth": check_unsloth}.items():
        try:
            checks[name] = check()
        except Exception as error:
            traceback.print_exc()
            checks[name] = f"failed: {type(error).__name__}: {error}"[:300]
            bad.append(name)
    page = [
        *markdown_table(("", "result"), checks.items()),
        "",
        f"Other versions than pinned: {'; '.join(pins) or 'none'}.",
    ]
    found = {"machine": {**about, "versions": package_versions()}, "page": page}
    return found | ({"failed": f"these do not work: {', '.join(bad)}"} if bad else {})


def ask_driver() -> str:
    if not card():
        return "no CUDA card that torch can see"
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def check_bitsandbytes() -> str:
    """A 4-bit layer against the product with its dequantised weight."""
    import bitsandbytes
    import torch
    from bitsandbytes.functional import dequantize_4bit

    where = {"device": "cuda", "dtype": torch.float16} if card() else {"device": "cpu", "dtype": torch.float32}
    layer = bitsandbytes.nn.Linear4bit(256, 256, bias=False, quant_type="nf4", compute_dtype=where["dtype"])
    weight = layer.weight.data.to(**where)
    layer = layer.to(where["device"])
    layer.support_avx512bf16_for_cpu = False
    back = dequantize_4bit(layer.weight.data, layer.weight.quant_state).to(**where).view(256, 256)
    rounding = float((back.float() - weight.float()).norm() / weight.float().norm())
    x = torch.randn(8, 256, **where)
    error = float((layer(x).float() - (x @ back.T).float()).abs().max())
    result = f"NF4 rounds weights by {rounding:.1%}, its layer is off by {error:.1g}"
    if not 0.02 < rounding < 0.2 or error > 0.05:
        raise ValueError(result)
    return f"bitsandbytes {bitsandbytes.__version__}, {result}"


def check_unsloth() -> str:
    """Whether `import unsloth` puts its own trainer in the place of TRL's, which it does on a card only."""
    import unsloth
    from trl import GRPOTrainer as trainer

    if (trainer.__name__ != "GRPOTrainer") != bool(card()):
        raise RuntimeError(f"the trainer is {trainer.__name__}, the one for {'a CPU' if card() else 'a card'}")
    return f"unsloth {unsloth.__version__}, trainer: {trainer.__name__}"


def check_unsloth_settings(folder: Path) -> Row:
    """What the class that Unsloth puts in GRPOConfig's place on a card makes of each preset's settings.

    Without a card it is generated all the same, by the switch that Unsloth has for its own tests.
    """
    if not card():
        os.environ["UNSLOTH_ALLOW_CPU"] = "1"
    import pandas as pd
    import unsloth  # noqa: F401  (before trl, which the other imports want)

    from lab.train import presets, settings_check, trl_internals

    if not card():
        trl_internals.use_unsloths_trainer()
    from trl import GRPOConfig, GRPOTrainer

    if GRPOTrainer.__name__ != "UnslothGRPOTrainer":
        raise RuntimeError(f"Unsloth has not replaced the trainer: it is {GRPOTrainer}")
    tables, requested = [], 0
    for preset, starter in itertools.product(("t4-16gb", "24gb", "80gb"), (True, False)):
        with pretended_card(bf16=preset != "t4-16gb"):
            settings = presets.plan_training(preset, starter=starter).settings
            config = GRPOConfig(output_dir=str(folder / "unused"), report_to="none", **settings)
            table = settings_check.effective_settings(settings, config)
        requested += len(settings)
        changed = table[table["changed"] != ""].drop(columns="changed").reset_index()
        tables.append(changed.assign(plan=f"{preset} ({'starter policy' if starter else 'real'})"))
    names, table = list(tables[0])[:-1], pd.concat(tables)
    in_words = lambda plans: "every plan" if len(plans) == len(tables) else ", ".join(plans)
    changes, rows = table.groupby(names, sort=False)["plan"].agg(in_words).reset_index(), table.to_dict("records")
    own, live = settings_check.trl_defaults(), settings_check.live_defaults()
    defaults = [
        {"setting": name, "TRL": str(own.get(name, "no such field")), "Unsloth": str(value)}
        for name, value in live.items()
        if not settings_check.mean_the_same(name, own.get(name), value)
    ]
    lost = [f"{row['setting']} was changed in {row['plan']}" for row in rows if row["requested"] != "–"]
    page = [f"{len(tables)} plans ask for {requested} settings, and Unsloth's `GRPOConfig` changed {len(lost)}."]
    page += ["These are set although nobody asked for them:", "", *markdown_table(changes, changes.values)]
    page += ["", "Fields that get another value where they are left out:", ""]
    page += markdown_table(("setting", "TRL", "Unsloth"), [row.values() for row in defaults])
    lost += [f"the trainer has no such {name}" for name in trl_internals.missing_members(GRPOTrainer)]
    found = {"trainer": GRPOTrainer.__name__, "requested": requested, "rows": rows, "defaults": defaults, "page": page}
    return found | ({"failed": "; ".join(lost)} if lost else {})


@contextlib.contextmanager
def pretended_card(bf16: bool) -> Iterator[None]:
    """torch says that there is a card with bfloat16, or without; also on a machine whose card is another one."""
    from unittest import mock

    import torch
    from accelerate import PartialState

    def no_device(arguments: Any) -> Any:  # in place of TrainingArguments.device, which would claim the card
        arguments.distributed_state, arguments._n_gpu = PartialState(cpu=True), 1
        return torch.device("cpu")

    capability = (9, 0) if bf16 else (7, 5)
    answers = {"is_available": True, "is_bf16_supported": bf16, "get_device_capability": capability, "device_count": 1}
    said = {name: mock.Mock(return_value=value) for name, value in answers.items()}
    theirs = "transformers.training_args"  # it asks the card itself, and remembers
    with mock.patch.multiple(torch.cuda, **said), mock.patch(f"{theirs}.TrainingArguments.device", property(no_device)):
        with mock.patch(f"{theirs}.is_torch_bf16_gpu_available", lambda: bf16):
            yield


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
    shape = dict(zip(SHAPE, size().shape))
    torch.manual_seed(3407)
    with torch.device("cuda" if card() else "cpu"):
        config = Qwen2Config(**shape, max_position_embeddings=32768, rope_theta=1e6, tie_word_embeddings=True, **ends)
        model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        rows = model.get_input_embeddings().weight
        rows[: len(tokenizer)].normal_(std=SPREAD)
        rows[len(tokenizer) :] = 0
        for layer in model.model.layers[DAMPED_FROM:]:
            layer.self_attn.o_proj.weight.mul_(DAMPED_TO)
            layer.mlp.down_proj.weight.mul_(DAMPED_TO)
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    write_text(folder / "inputs/my_rewards.py", OWN_REWARD)
    chosen_rewards.save_choice(folder / "inputs", WEIGHTS)
    prepared = dataset.prepare_dataset(loading.load_rows("word_problems"), tokenizer, seed=3407)
    dataset.save_dataset(prepared, folder / "inputs/dataset")
    return {"parameters": sum(p.numel() for p in model.parameters()), "shape": shape}


def training_parameters(outputs: Path, backend: str, kind: str, steps: int) -> Row:
    """What notebook 03 gets: the same for both backends."""
    # the long runs are timed: no checkpoint falls into them
    more = {**MORE, "per_device_train_batch_size": size().batch, "bf16": kind == "bf16", "fp16": kind == "fp16"}
    return {
        "MODEL": str(outputs.with_name("base")),
        "BACKEND": backend,
        "MAX_STEPS": steps,
        "OUTPUTS": str(outputs),
        **size().parameters,
        **dict.fromkeys(("EVAL_EVERY", "SHOW_EVERY", "WATCH_REWARDS", "STOP_WHEN_CRITICAL"), 0),
        "MORE_SETTINGS": {**more, "save_steps": steps // 3 if steps == size().short else steps},
    }


def start_training(outputs: Path, backend: str, kind: str, steps: int) -> subprocess.Popen:
    """Notebook 03 as a script, started; the model and the inputs lie beside its folder."""
    from lab.train.launch import export_script, launch_environment

    if not outputs.exists():
        shutil.copytree(outputs.with_name("inputs"), outputs)
    script = export_script(outputs / "train.py", training_parameters(outputs, backend, kind, steps))
    return subprocess.Popen([sys.executable, str(script)], cwd=ROOT / "notebooks", env=launch_environment(1))


def time_training(folder: Path, backend: str, kind: str, steps: int) -> Row:
    """A training. One that would not end in time is stopped after a step, and its figures are those of its steps."""
    outputs = folder / f"{backend}-{kind}"
    process, run = start_training(outputs, backend, kind, steps), outputs / "run"
    while process.poll() is None:
        if time.time() > float(os.environ.get(UNTIL, "inf")) - SPARE and logged_steps(run):
            (run / STOP).touch()
        time.sleep(0.2)
    return measure_run(run, kind, process) | {"timed": True}


def train_killed_and_resumed(folder: Path, backend: str, kind: str, steps: int) -> Row:
    """A training that is killed when half of the steps are logged, and run again."""
    outputs, run = folder / "killed", folder / "killed/run"
    process = start_training(outputs, backend, kind, steps)
    while process.poll() is None and len(logged_steps(run)) < steps // 2 + 1:
        time.sleep(0.1)
    process.kill()
    if process.wait() != -signal.SIGKILL:
        raise RuntimeError("it ended before it could be killed")
    before = len(logged_steps(run))
    found = measure_run(run, kind, start_training(outputs, backend, kind, steps))
    logged = [row["step"] for row in logged_steps(run)]
    resumed = [row["after_step"] for row in read_jsonl(run / "events.jsonl") if row["kind"] == "resumed"]
    if logged != list(range(1, steps + 1)) or not resumed:
        found["failed"] = f"it did not go on as one run: steps {logged}, resumed after {resumed}"
    return found | {"killed_after": before, "resumed_after": resumed}


def logged_steps(run: Path) -> list[Row]:
    return [row for row in read_jsonl(run / "log.jsonl") if "reward" in row]


def measure_run(run: Path, kind: str, process: subprocess.Popen) -> Row:
    """The figures of a run when its process has ended, from its own log without the first steps of each process.

    Seconds are those of whole steps, the optimiser among them. Trained tokens are those of prompts and completions, in
    the seconds that neither generate nor score.
    """
    if process.wait():
        raise RuntimeError(f"notebook 03 ended with exit code {process.returncode}")
    record, rows = read_json(run / "run.json", MADE_BY), logged_steps(run)
    cold = {attempt["from_step"] + i for attempt in record["attempts"] for i in range(1, WARM_UP + 1)}
    warm = [row for row in rows if row["step"] not in cold] or rows[-1:]
    before = {row["step"]: row["num_tokens"] for row in rows}
    names = ("time/step", "time/generating", "time/scoring", "completions/mean_length")
    seconds, generating, scoring, length = (sum(row[name] for row in warm) for name in names)
    made = length * size().parameters["PROMPTS_PER_STEP"] * size().parameters["NUM_GENERATIONS"]
    trained = sum(row["num_tokens"] - before.get(row["step"] - 1, 0) for row in warm)
    # fp16's scaler halves until it finds its scale, and leaves those steps out
    settled = rows[-1:] if kind == "fp16" else rows
    finite = lambda value: isinstance(value, int | float) and math.isfinite(value)
    bad = [name for name in ("loss", "grad_norm") if any(not finite(row.get(name)) for row in settled)]
    return {
        "timed": False,
        "steps": len(rows),
        "steps_timed": len(warm),
        "seconds_a_step": seconds / len(warm),
        "generated_tokens_a_second": made / generating,
        "trained_tokens_a_second": trained / (seconds - generating - scoring),
        "generating_share": generating / seconds,
        "peak": record["process"]["peak_memory"],
        "reward": [rows[0]["reward"], rows[-1]["reward"]],
        "status": record["status"],
        "requested": record["requested"],
        **({"failed": f"{' and '.join(bad)} not finite in some step"} if bad else {}),
    }


def merge_and_prove(folder: Path) -> Row:
    """Notebook 05 on the timed run of Unsloth: it stops where the merged model is not the trained one."""
    from lab.make.run import execute_notebook

    outputs = folder / f"unsloth-{main_precision()}"
    small = {"N_EVALUATE": 8, "N_SAMPLES": 1, "N_PROOF": 8, "FORMATS": [], "TRY_SERVER": False, "BATCH_SIZE": 32}
    seconds = execute_notebook("05_merge_and_export", outputs, small)
    proof = read_json(outputs / "merge_proof.json", MADE_BY)
    distances = proof["distances"] | {"the untrained base": proof["from_base"] or {}}
    nats = ", ".join(f"{name} {value.get('kl', math.nan):.2g}" for name, value in distances.items())
    said = f"Merged into the {proof['merged_into']} and proved. Mean KL from the trained model, nats a token: {nats}."
    return {"seconds": seconds, "distances": distances, "page": [said]}


def run_starter_road(folder: Path) -> Row:
    """Notebooks 01 to 05 on the starter policy, in 4 bit, as `make run` does; and its evidence."""
    from lab.make.run import ROAD, evidence, run_notebooks
    from lab.measure.verdicts import summary_table

    starter, outputs = {"MODEL": "starter"}, folder / "road"
    # two thirds of the steps and fewer answers than `make run` takes; an 80 GB card would get 16 bits
    training = {**starter, "MAX_STEPS": 54, "MORE_SETTINGS": {"load_in_4bit": True}}
    merging = {"FORMATS": ["adapter", "merged 4 bit"], "N_EVALUATE": 200, "N_SAMPLES": 1}
    given = {**dict.fromkeys(ROAD[:2], starter), "03_train_grpo": training, "05_merge_and_export": merging}
    seconds = run_notebooks(ROAD, outputs, given)
    evaluation = read_json(outputs / "evaluation.json", MADE_BY)
    print(evidence(outputs, seconds))
    table = summary_table(evaluation)[["base", "merged", "difference", "95 % interval"]].reset_index(names="measure")
    times = ", ".join(f"{name} {value:.0f}" for name, value in seconds.items())
    page = [*markdown_table(table, table.values), "", f"n = {evaluation['n']}. {evaluation['said']} Seconds: {times}."]
    found = {"seconds": seconds, "page": page}
    gained = evaluation["difference"]["merged"]["greedy"]["correct"]["low"] > 0
    return found if gained else found | {"failed": f"no gain was shown: {evaluation['said']}"}
