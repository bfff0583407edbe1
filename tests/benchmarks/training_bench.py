"""What training with all that notebook 03 attaches costs, and what its settings gain, on the starter policy.

`overhead`  a step with every part attached beside a step of bare TRL with the same settings. Two processes take the
            very same steps in turns, one step each (A B, B A, …), and wait while it is not their turn: what else the
            machine does meets both alike, and every step has its twin.
`rewards`   the shares of a step that scoring and generating take.
`reach`     seconds of training until 85 % of the sampled answers are correct: our settings, TRL's defaults, and those
            of the public notebooks. The starter policy has 2 million parameters and likes a high learning rate: this
            says what a person gets who takes those settings to it, and nothing about real models.

    python tests/benchmarks/training_bench.py --save       all of it, about 25 minutes on two quiet cores
    python tests/benchmarks/training_bench.py --quick      a few steps of everything, to see that it runs
"""

import argparse
import functools
import json
import math
import multiprocessing
import os
import platform
import random
import statistics
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from lab.files import STARTER_POLICY, read_json, write_json

RESULTS = Path(__file__).with_name("results") / "training.json"
PARTS = ("overhead", "rewards", "reach")
PACKAGES = ("torch", "transformers", "trl", "peft", "bitsandbytes", "unsloth")
WEIGHTS = {"correctness_reward": 1.0, "format_reward": 0.5, "soft_format_reward": 0.5}  # notebook 02's defaults
CORRECT = "rewards/correctness_reward/mean"
TARGET = 0.85
WINDOW = 320  # completions that the mean is taken over, five of our steps: a small batch must not reach it by luck
Row = dict[str, Any]

# --------------------------------------------------------------------------- the settings

# The machine's and the task's, the same for all: who starts from other settings would still set these.
# Shorter completions and kept activations make the others' steps faster than their own defaults would.
COMMON: Row = {
    "max_completion_length": 96,
    "gradient_checkpointing": False,
    "optim": "adamw_torch",
    "bf16": False,
    "fp16": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}

# unslothai/notebooks, Llama3.1_(8B)-GRPO (read in the version of commit ce28ac2). There the batch
# is 1, which Unsloth raises to the group's 6, times 1, "increase to 4 for smoother training": taken as 4, so four
# prompts a step. warmup_ratio 0.1 of 250 steps. optim is paged_adamw_8bit there, which a CPU does not have. Their
# rewards for whole numbers and for counted tags have no twin here, the other three have their weights.
GUIDES: Row = {
    "learning_rate": 5e-6,
    "adam_beta1": 0.9,
    "adam_beta2": 0.99,
    "weight_decay": 0.1,
    "warmup_steps": 25,
    "lr_scheduler_type": "cosine",
    "max_steps": 250,
    "max_grad_norm": 0.1,
    "num_generations": 6,
    "per_device_train_batch_size": 6,
    "gradient_accumulation_steps": 4,
    "reward_weights": [{"correctness_reward": 2.0}.get(name, 0.5) for name in WEIGHTS],
}
SMALL: Row = {
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 24,
}


def ours(**more: Any) -> Row:
    """What notebook 03 gives GRPOConfig for the starter policy."""
    from lab.train.presets import plan_training

    return {**plan_training("cpu", starter=True).settings, **COMMON, "reward_weights": list(WEIGHTS.values()), **more}


def contestants() -> dict[str, Row]:
    """The settings to compare; TRL's defaults are GRPOConfig as it comes: every reward has weight 1 there."""
    return {"ours": ours(), "TRL's defaults": dict(COMMON), "the public notebooks'": {**COMMON, **GUIDES}}


def completions_a_step(settings: Row) -> int:
    return settings.get("per_device_train_batch_size", 8) * settings.get("gradient_accumulation_steps", 1)


def prepare(folder: Path) -> None:
    """What notebooks 01 and 02 leave in `outputs/`, with their defaults."""
    from datasets import disable_progress_bars
    from transformers import AutoTokenizer

    from lab.data import dataset, loading
    from lab.train import chosen_rewards

    disable_progress_bars()
    prepared = dataset.prepare_dataset(
        loading.load_rows("word_problems"), AutoTokenizer.from_pretrained(STARTER_POLICY), seed=3407
    )
    dataset.save_dataset(prepared, folder / "dataset")
    chosen_rewards.save_choice(folder, WEIGHTS)


# --------------------------------------------------------------------------- a training, in a process of its own


class Enough(Exception):
    """The parent has seen what it wanted."""


def train_in_turns(pipe: Any, folder: str, name: str, settings: Row, everything: bool) -> None:
    """The process: trains, and waits before each step until it is told to go on. What it prints goes to a file."""
    log = os.open(Path(folder, f"{name}.txt"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        spent: Counter[str] = Counter()
        trainer = build(Path(folder), name, settings, spent if everything else None)
        trainer.callback_handler.callbacks.insert(0, turns(pipe, spent))  # first, so that its clock runs for the others
        trainer.train()
    except Enough:
        pass
    except BaseException as error:
        traceback.print_exc()
        pipe.send({"error": f"{type(error).__name__}: {error}"})


def build(folder: Path, name: str, settings: Row, spent: Counter | None) -> Any:
    """GRPOTrainer on the starter policy in 4 bit with a LoRA adapter; where `spent` is given, with all our parts."""
    import unsloth  # noqa: F401  (before trl and transformers, which it patches)
    from trl import GRPOConfig, GRPOTrainer
    from unsloth import FastLanguageModel

    from lab.data import dataset
    from lab.model import policy
    from lab.train import chosen_rewards

    train = dataset.load_split(folder, "train")
    functions, _, record = chosen_rewards.load_choice(folder)
    longest = read_json(folder / "dataset/report.json", "01_prepare_data")["max_prompt_tokens"]
    model, tokenizer = FastLanguageModel.from_pretrained(
        str(STARTER_POLICY), max_seq_length=longest + settings["max_completion_length"], load_in_4bit=True
    )
    modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = FastLanguageModel.get_peft_model(
        model, r=16, lora_alpha=32, target_modules=modules, random_state=settings["seed"]
    )
    config = GRPOConfig(output_dir=str(folder / name), **settings)
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=functions, args=config, train_dataset=train
    )
    policy.adapter_in_32_bits(model)  # for all: TRL's own bfloat16 would swallow the small rates' updates
    if spent is not None:
        about = {
            "model": {"name": str(STARTER_POLICY), "backend": "unsloth"},
            "requested": settings,
            "rewards": record,
            "data": {"fingerprint": train._fingerprint},
        }
        attach_everything(trainer, folder, folder / name, about, spent)
    return trainer


def attach_everything(trainer: Any, choice: Path, folder: Path, about: Row, spent: Counter) -> None:
    """As notebook 03 does, without held-out evaluation: that is extra work which one asks for.

    Temperature and weights are constant, as by default, so that the steps stay those of bare TRL.
    """
    from lab.show.live_view import LiveView
    from lab.train import callbacks, recorder
    from lab.train.live_rewards import LiveRewards

    run = recorder.RunRecorder(folder, about, resume=False)
    monitor = callbacks.HealthMonitor(run, ["correctness_reward"], stop=False)
    weights = dict(zip(trainer.reward_func_names, about["requested"]["reward_weights"]))
    parts = [
        callbacks.TemperatureAnnealing(trainer.args.temperature),
        callbacks.RewardWeights(weights),
        callbacks.AdapterCheck(run),
        monitor,
        LiveView(run, monitor),
        LiveRewards(choice, folder, run.add_event),
    ]
    run.attach(trainer, *parts)
    watch([run, *parts], spent)


def watch(parts: Sequence[Any], spent: Counter) -> None:
    """Adds up in `spent` the seconds in each part's callbacks; one that calls another is counted once."""
    running: list[str] = []

    def timed(name: str, method: Callable) -> Callable:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            running.append(name)
            try:
                return method(*args, **kwargs)
            finally:
                running.pop()
                if not running:
                    spent[name] += time.perf_counter() - began

        return call

    for part in parts:
        for event in (event for event in dir(type(part)) if event.startswith("on_") and event != "on_event"):
            setattr(part, event, timed(type(part).__name__, getattr(part, event)))


def turns(pipe: Any, spent: Counter) -> Any:
    """The callback that sends a row after each step and waits for its turn; a step ends where the next one begins,
    so logging and saving belong to it."""
    from transformers import TrainerCallback

    class Turns(TrainerCallback):
        began: tuple[float, float] | None = None

        def on_step_begin(self, args, state, control, **kwargs) -> None:
            if self.began:
                self.tell(state, last=False)
            if not pipe.recv():
                raise Enough
            spent.clear()
            self.began = time.perf_counter(), time.process_time()

        def on_train_end(self, args, state, control, **kwargs) -> None:
            self.tell(state, last=True)

        def tell(self, state: Any, last: bool) -> None:
            seconds, cpu = time.perf_counter() - self.began[0], time.process_time() - self.began[1]
            logged = next(row for row in reversed(state.log_history) if "reward" in row)
            pipe.send({**logged, "seconds": seconds, "cpu_seconds": cpu, "parts": dict(spent), "last": last})

    return Turns()


class Training:
    """The parent's side: starts the process, lets it take a step, ends it."""

    def __init__(self, folder: Path, name: str, settings: Row, everything: bool) -> None:
        context = multiprocessing.get_context("spawn")  # nothing of one training is in the next
        self.pipe, theirs = context.Pipe()
        self.over, self.log = False, folder / f"{name}.txt"
        arguments = (theirs, str(folder), name, settings, everything)
        self.process = context.Process(target=train_in_turns, args=arguments, daemon=True)
        self.process.start()
        theirs.close()  # so that the death of the process ends our waiting

    def step(self) -> Row:
        """One step: its log row, with seconds by the clock and of the CPU, and those in our parts."""
        try:
            self.pipe.send(True)
            row = self.pipe.recv()
        except (EOFError, OSError):
            row = {"error": "the process is gone"}
        if "error" in row:
            told = self.log.read_text(encoding="utf-8", errors="replace")[-2000:] if self.log.exists() else ""
            raise SystemExit(f"{told}\nA training ended: {row['error']}")
        self.over = row["last"]
        return row

    def close(self) -> None:
        try:
            self.pipe.send(False)
        except OSError:
            pass  # it has ended by itself
        self.process.join(20)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


# --------------------------------------------------------------------------- a step of ours beside a step of bare TRL


def overhead(folder: Path, rounds: int, steps: int, small: Row, control: bool = False) -> dict:
    """Pairs of the same step, in `control` of bare TRL twice; the first of each training is left out: it warms up."""
    pairs: list[tuple[Row, Row]] = []
    with tqdm(total=rounds * steps * 2, desc="ours and bare TRL in turns", unit="step") as bar:
        for number in range(rounds):
            settings = ours(max_steps=steps + 1, seed=3407 + number, **small)
            whole = {f"overhead-{number}-ours": not control, f"overhead-{number}-bare": False}
            both = [Training(folder, name, settings, everything) for name, everything in whole.items()]
            with closing(both[0]), closing(both[1]):
                pairs += side_by_side(both, steps, number, bar)
    return compare(pairs)


def side_by_side(both: Sequence[Training], steps: int, number: int, bar: tqdm) -> Iterator[tuple[Row, Row]]:
    for step in range(steps):
        rows: list[Row] = [{}, {}]
        for i in ((0, 1), (1, 0))[(step + number) % 2]:
            rows[i] = both[i].step()
            bar.update()
        yield rows[0], rows[1]


def compare(pairs: list[tuple[Row, Row]]) -> dict:
    """Ratios of ours to bare TRL with intervals, our parts' own seconds, and whether the steps were the same ones."""
    same = [all(a.get(key) == b.get(key) for key in ("step", "reward", CORRECT, "num_tokens")) for a, b in pairs]
    warm = [pair for pair in pairs if pair[0]["step"] > 1]
    own = sum((Counter(a["parts"]) for a, _ in warm), Counter())
    seconds = sum(a["seconds"] for a, _ in warm)
    timed = [a for a, _ in warm if "time/scoring" in a]
    return {
        "steps": len(warm),
        "equal_steps": sum(same),
        "of": len(pairs),
        "rewards": [[a["reward"], b["reward"]] for a, b in pairs],
        "ours_seconds": statistics.median(a["seconds"] for a, _ in warm),
        "bare_seconds": statistics.median(b["seconds"] for _, b in warm),
        "ratio": ratio([a["seconds"] / b["seconds"] for a, b in warm]),
        "cpu_ratio": ratio([a["cpu_seconds"] / b["cpu_seconds"] for a, b in warm]),
        "in_our_parts": {
            "share": sum(own.values()) / seconds,
            "seconds_a_step": sum(own.values()) / len(warm),
            "by_part": {name: value / len(warm) for name, value in own.most_common()},
        },
        "shares": shares(timed) if timed else None,
    }


def ratio(ratios: Sequence[float], draws: int = 4000) -> dict[str, float]:
    """The median of the pairs' ratios, with a 95 % bootstrap interval over the pairs."""
    rng = random.Random(3407)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(draws))
    return {"median": statistics.median(ratios), "low": medians[draws // 40], "high": medians[-draws // 40]}


# --------------------------------------------------------------------------- scoring and generating


def shares(rows: Sequence[Row]) -> dict[str, float]:
    """Of TRL's `step_time`, and milliseconds; `time/…` are the metrics of `lab.train.recorder.RunRecorder`."""
    total, found = sum(row["step_time"] for row in rows), {}
    for name in ("scoring", "generating"):
        spent = sum(row[f"time/{name}"] for row in rows)
        found |= {f"{name}_share": spent / total, f"{name}_ms": 1000 * spent / len(rows)}
    return found | {"step_time": total / len(rows), "steps": len(rows)}


def reward_shares(folder: Path, steps: int, small: Row) -> dict[str, float]:
    settings = ours(max_steps=steps + 1, seed=3407, **small)
    with closing(Training(folder, "rewards", settings, everything=True)) as training:
        return shares([training.step() for _ in tqdm(range(steps), desc="shares of a step", unit="step")][1:])


# --------------------------------------------------------------------------- how long until it is correct


def reach(folder: Path, seeds: Sequence[int], cap: float | None, most: int | None, small: Row) -> list[Row]:
    """A row for each seed and settings. Others have as long as ours took with that seed, or `cap` seconds."""
    found = []
    for seed in seeds:
        given = cap or math.inf  # ours comes first, and ends by itself after its 80 steps
        for name, settings in contestants().items():
            settings = {**settings, **small, "seed": seed}
            with closing(Training(folder, f"reach-{len(found)}", settings, everything=name == "ours")) as training:
                row = until(training, f"seed {seed}, {name}", completions_a_step(settings), given, most)
            found.append({"settings": name, "seed": seed, **row})
            if name == "ours":
                given = cap or row["seconds"]
    return found


def until(training: Training, title: str, batch: int, cap: float, most: int | None) -> Row:
    """Trains until the window is correct enough, the seconds are over, or the training has ended."""
    rows: list[Row] = []
    window, seconds = math.ceil(WINDOW / batch), 0.0
    with tqdm(desc=title, unit="step") as bar:
        while not training.over and seconds < cap and len(rows) < (most or math.inf):
            rows.append(training.step())
            seconds += rows[-1]["seconds"]
            bar.set_postfix(correct=f"{correct(rows[-window:]):.2f}", seconds=f"{seconds:.0f}")
            bar.update()
            if len(rows) >= window and correct(rows[-window:]) >= TARGET:
                break
    steps, now = len(rows), correct(rows[-window:])
    found = {
        "reached": steps >= window and now >= TARGET,
        "seconds": seconds,
        "steps": steps,
        "completions": steps * batch,
        "correct_first": correct(rows[:window]),
        "correct_last": now,
    }
    parts = sum(sum(row["parts"].values()) for row in rows)  # grows with the log: here over a whole run
    return found | ({"in_our_parts_share": parts / seconds} if parts else {})


def correct(rows: Sequence[Row]) -> float:
    return statistics.fmean(row[CORRECT] for row in rows)


# --------------------------------------------------------------------------- the report


def show_overhead(found: dict) -> None:
    print("\nA step with everything that notebook 03 attaches, beside the same step of bare TRL")
    print(f"  {found['steps']} pairs; in both no held-out evaluation and no checkpoints")
    print(f"  ours {found['ours_seconds']:.3f} s, bare TRL {found['bare_seconds']:.3f} s (medians)")
    for what, key in (("by the clock", "ratio"), ("of the CPU", "cpu_ratio")):
        low, median, high = (100 * (found[key][name] - 1) for name in ("low", "median", "high"))
        print(f"  more seconds {what:<13} {median:+.1f} %  [{low:+.1f}, {high:+.1f}]   median of pairs, 95 % interval")
    own = found["in_our_parts"]
    print(
        f"  measured in our callbacks: {100 * own['share']:.2f} % of a step, {1000 * own['seconds_a_step']:.1f} ms: "
        + ", ".join(f"{name} {1000 * each:.1f}" for name, each in own["by_part"].items())
    )
    print(f"  {found['equal_steps']} of {found['of']} steps have equal rewards and tokens")


def show_shares(found: dict) -> None:
    print(f"\nShares of a step of {found['step_time']:.2f} s ({found['steps']} steps)")
    for name in ("scoring", "generating"):
        print(f"  {name:<11}{100 * found[f'{name}_share']:6.2f} %  {found[f'{name}_ms']:9.1f} ms")


def show_reach(rows: Sequence[Row]) -> None:
    print(f"\nUntil {TARGET:.0%} of the last {WINDOW} sampled answers are correct: seconds of training, no loading")
    print(f"  {'settings':<24}{'seed':>6}{'seconds':>10}{'steps':>7}{'completions':>13}   correct, first and last")
    for row in rows:
        end = "reached" if row["reached"] else "not reached"
        print(f"  {row['settings']:<24}{row['seed']:>6}{row['seconds']:>10.0f}{row['steps']:>7}", end="")
        print(f"{row['completions']:>13,}   {row['correct_first']:.2f} → {row['correct_last']:.2f}  {end}")
    for name in dict.fromkeys(row["settings"] for row in rows):
        mine = [row for row in rows if row["settings"] == name]
        took = [row["seconds"] for row in mine if row["reached"]]
        middle = f", median {statistics.median(took):.0f} s of those" if took else ""
        print(f"  {name}: reached by {len(took)} of {len(mine)}{middle}")


def about() -> Row:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": cores,
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def measure(arguments: argparse.Namespace, folder: Path) -> dict:
    """The parts that were asked for, each shown when it is done."""
    quick, found = arguments.quick, {}
    small = SMALL if quick else {}
    rounds, steps = (1, 3) if quick else (arguments.rounds, arguments.steps)
    if "overhead" in arguments.parts:
        found["overhead"] = overhead(folder, rounds, steps, small, arguments.control)
        show_overhead(found["overhead"])
    if "rewards" in arguments.parts:
        paired = found.get("overhead", {}).get("shares")  # its steps of ours are as good as others
        found["rewards"] = paired or reward_shares(folder, 3 if quick else 13, small)
        show_shares(found["rewards"])
    if "reach" in arguments.parts:
        seeds = arguments.seeds[:1] if quick else arguments.seeds
        found["reach"] = {
            "target": TARGET,
            "window": WINDOW,
            "cap_seconds": arguments.cap_seconds,
            "rows": reach(folder, seeds, arguments.cap_seconds, 3 if quick else None, small),
        }
        show_reach(found["reach"]["rows"])
    return found


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=2, help="overhead: pairs of fresh processes, each with its seed")
    parser.add_argument("--steps", type=int, default=25, help="overhead: steps of each training in a round")
    parser.add_argument("--control", action="store_true", help="overhead: bare TRL beside bare TRL, for the noise")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="reach")
    parser.add_argument("--cap-seconds", type=float, help="reach: of training, for each run; else what ours took")
    parser.add_argument("--quick", action="store_true", help="three small steps of everything, as a smoke test")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name} beside this script")
    return parser.parse_args()


def main() -> None:
    arguments, machine = options(), about()
    os.environ.pop("GRPO_QUIET", None)  # the live view in script mode, as someone sees it who watches
    with tempfile.TemporaryDirectory(prefix="training-bench-") as name:
        prepare(Path(name))
        found = measure(arguments, Path(name))
    if arguments.save and not arguments.quick and not arguments.control:
        before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        write_json(RESULTS, {**before, **{part: {"about": machine, **value} for part, value in found.items()}})
    steps = found.get("overhead", {})
    if steps and steps["equal_steps"] < steps["of"]:
        raise SystemExit("Ours and bare TRL did not take the same steps: the two times are of different work.")


if __name__ == "__main__":
    main()
