"""What changes from one T4 to several nodes of H100s, on paper: `python -m lab.scale` writes `notebooks/SCALE.md`.

Times follow from datasheets, from the shapes of the models and from what is listed in `ASSUMED`; scoring times are those
that `make bench` measured. Nothing here touches a GPU, and the page is the same on every machine. Seconds, bytes, FLOPs
and US dollars throughout; GB is 10⁹ bytes, as on datasheets.
"""

from __future__ import annotations

import heapq
import inspect
import json
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import rewards
from sandbox import Sandbox

from lab import guard
from lab.files import ROOT, write_text
from lab.presets import ENOUGH, PRESETS, REAL, Setting, batches

PAGE = ROOT / "notebooks" / "SCALE.md"
RESULTS = ROOT / "tests" / "benchmarks" / "results"
SEED, TRIALS = 3407, 8  # simulated steps: their mean moves by about 1 % with another seed
STEPS = 1000
OVERHEAD = 1e9  # bytes: what guard.overhead_row assumes on a GPU
PYTHON_REWARDS = ("correctness_reward", "format_reward", "soft_format_reward")
SCORING_SHARE = 0.05  # of a step: what scoring may take

Values = Mapping[str, float]


class Assumption(NamedTuple):
    """A figure that nobody measured here: the best guess, the ends of what is believable, and where it comes from."""

    value: float
    low: float
    high: float
    unit: str
    why: str


ASSUMED: dict[str, Assumption] = {
    "training, share of peak": Assumption(0.30, 0.20, 0.40, "of FLOP/s", "adapters on short sequences: many small matrices"),
    "sampling, share of peak": Assumption(0.40, 0.25, 0.60, "of FLOP/s", "prompts, and decoding of large batches"),
    "share of memory bandwidth": Assumption(0.60, 0.40, 0.80, "of GB/s", "reading weights and KV cache while decoding"),
    "plain generation": Assumption(0.60, 0.30, 1.20, "ms a layer", "each kernel is launched from Python, the adapter's too"),
    "vLLM": Assumption(5.0, 2.0, 10.0, "ms a token", "CUDA graphs launch the layers; scheduling and sampling stay"),
    "4-bit weight": Assumption(4.5, 0.6, 4.6, "bytes moved", "unpacked first (read ½, write 2, read 2), or by a fused kernel"),
    "all-reduce in a layer": Assumption(15, 8, 40, "µs", "only where a server splits a model over cards; two a layer"),
    "share of a link": Assumption(0.5, 0.3, 0.8, "of GB/s", "NVLink and InfiniBand in large transfers"),
    "weights into vLLM": Assumption(20, 5, 100, "GB/s", "merged and handed over tensor by tensor"),
    "rest of a step": Assumption(0.3, 0.1, 1.0, "s", "optimiser, padding, tokenizer, log"),
    "prompt": Assumption(160, 100, 300, "tokens", "system prompt and a word problem"),
    "median completion": Assumption(200, 120, 300, "tokens", "reasoning about a word problem"),
    "spread of completions": Assumption(0.6, 0.4, 0.8, "σ of the logarithm", "long-tailed: a lognormal, cut at the limit"),
    "text, times the benchmark's": Assumption(5, 2, 10, "times", "rewards take time by length, its texts are short"),
    "T4": Assumption(0.35, 0.0, 0.60, "$ an hour", "nothing in free Colab, otherwise rented"),
    "RTX 4090": Assumption(0.50, 0.30, 0.80, "$ an hour", "rented"),
    "H100": Assumption(3.0, 2.0, 5.0, "$ an hour", "rented, each card; the same in a node"),
    "runaway programs": Assumption(0.01, 0.0, 0.03, "of completions", "code that never ends, stopped at the sandbox's limit"),
    "judge": Assumption(1.5, 0.5, 4.0, "s a call", "a model behind an endpoint; the same however many ask"),
}  # fmt: skip


def values(**changed: float) -> dict[str, float]:
    """The best guesses by name, with these changed."""
    return {name: one.value for name, one in ASSUMED.items()} | changed


# --------------------------------------------------------------------------- cards, clusters, models


@dataclass(frozen=True)
class Card:
    """A GPU by its datasheet: memory in GB, dense 16-bit tensor FLOP/s (32-bit sums) in TFLOP/s, GB/s; price: `ASSUMED`."""

    name: str
    memory: float
    tflops: float
    bandwidth: float
    bf16: bool = True

    @property
    def preset(self) -> str:
        """By the rules of `presets.choose_preset`, for a card that is not here."""
        return next(name for name, least in ENOUGH if self.memory >= least) if self.bf16 else "t4-16gb"


T4 = Card("T4", 16, 65, 320, bf16=False)
RTX4090 = Card("RTX 4090", 24, 165, 1008)
H100 = Card("H100", 80, 989, 3350)
NVLINK, INFINIBAND = 450.0, 50.0  # GB/s a card each way: H100's NVLink; one 400 Gbit/s port for each card of a node
SOURCES = "NVIDIA's datasheets of T4, Ada (RTX 4090), H100 SXM, DGX H100"


@dataclass(frozen=True)
class Cluster:
    """Equal cards in equal nodes."""

    name: str
    card: Card
    per_node: int = 1
    nodes: int = 1

    @property
    def cards(self) -> int:
        return self.per_node * self.nodes

    @property
    def link(self) -> float:
        """GB/s a card each way, of the slowest link between two cards; a single card has none."""
        return INFINIBAND if self.nodes > 1 else NVLINK


LADDER = (
    Cluster("T4", T4), Cluster("RTX 4090", RTX4090), Cluster("H100", H100), Cluster("8 × H100", H100, 8),
    Cluster("2 nodes", H100, 8, 2), Cluster("4 nodes", H100, 8, 4),
)  # fmt: skip


@dataclass(frozen=True)
class Model:
    """The shape of a dense Qwen2.5 (its config.json); the vocabulary is padded to another size from 7B on."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int = 152064
    tied: bool = False

    @cached_property
    def config(self) -> Any:
        from transformers import Qwen2Config

        return Qwen2Config(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads, intermediate_size=self.inner, vocab_size=self.vocabulary,
            tie_word_embeddings=self.tied,
        )  # fmt: skip

    @cached_property
    def counts(self) -> tuple[int, int, int]:
        """Parameters of the linear layers, of the output layer, and of the preset's adapter."""
        skeleton = guard.skeleton(self.config)
        linear = sum(one.weight.numel() for one in guard.linear_layers(skeleton).values())
        return linear, self.hidden * self.vocabulary, guard.lora_parameters(skeleton, PRESETS["80gb"]["lora_rank"].value)

    @cache
    def weights(self, in_4bit: bool) -> int:
        """Bytes of the base model, by guard.base_bytes."""
        return guard.base_bytes(guard.skeleton(self.config), in_4bit, 2)[1]

    @cached_property
    def kv(self) -> int:
        """Bytes of a token's keys and values, by guard.kv_cache_bytes."""
        return guard.kv_cache_bytes(self.config, 1, 1, 2)


SMALL = Model("1.5B", 1536, 28, 12, 2, 8960, 151936, tied=True)
MODELS = (SMALL, Model("7B", 3584, 28, 28, 4, 18944), Model("32B", 5120, 64, 40, 8, 27648))


@dataclass(frozen=True)
class Work:
    """One step: prompts, completions for each, and the limit on their length in tokens; defaults by lab.presets."""

    prompts: int = PRESETS["80gb"]["prompts_per_step"].value
    group: int = PRESETS["80gb"]["num_generations"].value
    limit: int = REAL["max_completion_length"].value

    @property
    def completions(self) -> int:
        return self.prompts * self.group


# --------------------------------------------------------------------------- what fits


@dataclass(frozen=True)
class Setup:
    """A model on a cluster: how the project would run it. `peak` and `slots` are those of one card."""

    cluster: Cluster
    model: Model
    work: Work
    in_4bit: bool
    vllm: bool
    groups: int  # at once in a training pass
    servers: int = 0  # cards that only generate
    peak: float = 0.0  # bytes
    slots: int = 0  # completions that vLLM's KV cache holds at their full length
    sharded: bool = False
    changed: tuple[str, ...] = ()  # what the preset says otherwise

    @property
    def trainers(self) -> int:
        return self.cluster.cards - self.servers

    @property
    def by_trl(self) -> bool:
        """Several processes take plain TRL's road; one process takes Unsloth's, which shares its weights with vLLM."""
        return self.cluster.cards > 1

    @property
    def engines(self) -> int:
        """Samplers side by side: one a card, or one for each two cards of a server."""
        return self.servers // 2 if self.servers else self.trainers

    @property
    def micro_batches(self) -> int:
        """Training passes of a process in a step, as lab.presets shapes them; ValueError where prompts cannot be shared."""
        rows = {**PRESETS[self.cluster.card.preset], **REAL, "groups_per_batch": Setting(self.groups, "", "yours")}
        rows["prompts_per_step"] = Setting(self.work.prompts, "", "yours")
        batches(rows, self.trainers)
        return rows["gradient_accumulation_steps"].value


def memory(setup: Setup) -> tuple[float, int]:
    """Peak bytes of a training card and the KV cache's slots, from guard's formulas; (inf, 0) where vLLM has no room.

    As in guard.memory_estimate, with two differences: vLLM takes its whole share at the start (with the weights in it: the
    only copy on Unsloth's road, a second one on TRL's), and where weights are sharded a card holds its part and one layer.
    """
    model, work, card = setup.model, setup.work, setup.cluster.card
    length, at_once = round(ASSUMED["prompt"].high) + work.limit, setup.groups * work.group
    base, learned = model.weights(setup.in_4bit), model.counts[2]
    state = learned * (8 + guard.state_bytes(PRESETS[card.preset]["optim"].value, 4))
    training = guard.activation_bytes(model.config, at_once * length, 2, True) + 4 * at_once * work.limit * model.vocabulary
    sequences = work.completions // setup.engines
    if setup.servers:
        slots = int((0.9 * card.memory * 2e9 - base) // (model.kv * length))
        return base / setup.trainers + base / model.layers + state + training + OVERHEAD, slots
    if not setup.vllm:
        return base + state + max(model.kv * length * sequences, training) + OVERHEAD, sequences
    share = PRESETS[card.preset]["gpu_memory_utilization"].value * card.memory * 1e9
    slots = int((share - base) // (model.kv * length))
    second = base if setup.by_trl else 0
    return (share + second + state + training + OVERHEAD, slots) if slots >= work.group else (math.inf, 0)


def attempts(setup: Setup) -> Iterable[Setup]:
    """The preset as it is, then what a person would change, the least first; sharded weights last."""
    for in_4bit in (setup.in_4bit,) if setup.by_trl else sorted({setup.in_4bit, True}):  # TRL hands vLLM 16-bit weights
        for groups in (2**n for n in range(int(math.log2(setup.groups)), -1, -1)):
            changed = ("4-bit",) if in_4bit != setup.in_4bit else ()
            changed += (f"{groups} group{'s' * (groups > 1)} at once",) if groups != setup.groups else ()
            yield replace(setup, in_4bit=in_4bit, groups=groups, changed=changed)
    if setup.by_trl:
        yield replace(setup, servers=setup.cluster.cards // 2, sharded=True, changed=("sharded",))


def choose(cluster: Cluster, model: Model, work: Work | None = None) -> Setup:
    """The first attempt that fits into guard.FULL_ENOUGH of a card; `peak` is inf where none does.

    Without `work` the preset's prompts a step for each card.
    """
    preset = {name: row.value for name, row in PRESETS[cluster.card.preset].items()}
    work = work or Work(prompts=preset["prompts_per_step"] * cluster.cards)
    first = Setup(cluster, model, work, preset["load_in_4bit"], preset["fast_inference"], preset["groups_per_batch"])
    tried = (replace(one, peak=peak, slots=slots) for one in attempts(first) for peak, slots in [memory(one)])
    room = guard.FULL_ENOUGH * cluster.card.memory * 1e9
    return next((one for one in tried if one.peak <= room), replace(first, peak=math.inf))


# --------------------------------------------------------------------------- simulated waiting


@cache
def lengths(median: float, spread: float, limit: int, trials: int, engines: int, each: int) -> np.ndarray:
    """Completion lengths in tokens, (trials, engines, each): lognormal and cut at the limit. Always the same draw."""
    normal = np.random.default_rng(SEED).standard_normal((trials, engines, each))
    return np.clip(np.rint(median * np.exp(spread * normal)), 1, limit).astype(int)


def drawn(v: Values, work: Work, engines: int, each: int | None = None, trials: int = TRIALS) -> np.ndarray:
    each = each or work.completions // engines
    return lengths(v["median completion"], v["spread of completions"], work.limit, trials, engines, each)


def alive(tokens: np.ndarray) -> np.ndarray:
    """For each row of lengths, how many completions are still being written at decode step 0, 1, 2, …"""
    steps = np.arange(tokens.max())
    ordered = np.sort(tokens, axis=-1).reshape(-1, tokens.shape[-1])
    counts = [row.size - np.searchsorted(row, steps, side="right") for row in ordered]
    return np.array(counts).reshape(*tokens.shape[:-1], -1)


def refilled(tokens: Sequence[int], slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Continuous batching (Yu et al. 2022, "Orca"): a slot that is done takes the next completion.

    Returns for each decode step the completions under way and the tokens that they have written together.
    """
    ends: list[int] = []
    starts = []
    for length in tokens:
        start = heapq.heappop(ends) if len(ends) == slots else 0
        starts.append(start)
        heapq.heappush(ends, start + length)
    under_way, written = np.zeros(max(ends)), np.zeros(max(ends))
    for start, length in zip(starts, tokens):
        under_way[start : start + length] += 1
        written[start : start + length] += np.arange(length)
    return under_way, written


def padded(runs: Sequence[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    """Each part of the runs as one array, a run a row, with zeros behind the shorter ones."""
    longest = max(run[0].size for run in runs)
    return [np.stack([np.pad(part, (0, longest - part.size)) for part in parts]) for parts in zip(*runs)]


def makespan(seconds: Iterable[float], workers: int) -> float:
    """Until the last of these jobs is done, when each in turn goes to the worker that is free first."""
    free = [0.0] * workers
    for one in seconds:
        heapq.heappush(free, heapq.heappop(free) + one)
    return max(free)


# --------------------------------------------------------------------------- seconds


def decode_step(
    setup: Setup, v: Values, sequences: np.ndarray | float, tokens: np.ndarray | float, cards: int = 1
) -> dict[str, np.ndarray]:
    """Seconds of one decode step by part: one token for each sequence, `tokens` in the cache altogether.

    The weights are read once or multiplied with every sequence, whichever takes longer (the roofline of Williams et al.
    2009; Pope et al. 2022, "Efficiently Scaling Transformer Inference"), then the cache is read, and kernels are launched.
    """
    (linear, head, _), card = setup.model.counts, setup.cluster.card
    each = v["4-bit weight"] if setup.in_4bit else 2
    rate = card.bandwidth * 1e9 * v["share of memory bandwidth"] * cards
    reading = (linear * each + head * 2) / rate
    counting = 2 * (linear + head) * np.asarray(sequences) / (card.tflops * 1e12 * v["sampling, share of peak"] * cards)
    layers = setup.model.layers
    launching = v["vLLM"] / 1e3 if setup.vllm else v["plain generation"] * layers / 1e3
    launching += 2 * layers * v["all-reduce in a layer"] / 1e6 * (cards > 1)
    slow = counting > reading
    return {
        "reading weights": np.where(slow, 0, reading), "multiplying": np.where(slow, counting, 0),
        "reading the KV cache": setup.model.kv * np.asarray(tokens) / rate, "launching kernels": np.full(slow.shape, launching),
    }  # fmt: skip


def generating(setup: Setup, v: Values) -> tuple[dict[str, float], float]:
    """Seconds of generating by part, for the engine that ends last, and what an engine takes on average."""
    tokens, cards = drawn(v, setup.work, setup.engines), 2 if setup.servers else 1
    trials, engines, each = tokens.shape
    if setup.vllm and setup.slots < each:
        now, written = padded([refilled(row, setup.slots) for row in tokens.reshape(-1, each)])
    else:  # all begin at once: `generate` carries every row to the end of the longest, vLLM lets go of it
        now = alive(tokens).reshape(trials * engines, -1)
        now = now if setup.vllm else np.where(now > 0, each, 0)
        written = now * np.arange(now.shape[1])
    by_part = decode_step(setup, v, now, now * v["prompt"] + written, cards)
    parts = {name: np.where(now > 0, seconds, 0).sum(axis=1).reshape(trials, engines) for name, seconds in by_part.items()}
    total = sum(parts.values())
    last = total.argmax(axis=1)[:, None]  # the others wait for it
    mean = {name: float(np.take_along_axis(part, last, 1).mean()) for name, part in parts.items()}
    prompts = setup.work.prompts if setup.vllm else setup.work.completions  # vLLM reads a group's prompt once
    flops = 2 * setup.model.counts[0] * prompts / engines * v["prompt"]
    mean["reading prompts"] = flops / (setup.cluster.card.tflops * 1e12 * v["sampling, share of peak"] * cards)
    return mean, float(total.mean()) + mean["reading prompts"]


def training_flops(model: Model, prompt: float, completion: float, beta: bool = True, old: bool = False) -> float:
    """FLOPs to learn from one sequence with an adapter and gradient checkpointing.

    A layer's weight P costs 2P a token forward, 2P backward through the activations (its own gradient is not wanted) and 2P
    for the recomputation; an adapter's weight 8, as its gradient is wanted. The output layer is not recomputed, and sees the
    completion only. Attention: 4 × layers × queries × half the length (causal), thrice that and the recomputation to learn.
    2P more for the reference's log-probabilities where beta is not 0, and 2P for those before the step (`old`), which TRL
    1.14 always computes for vLLM. Compared with torch's own counter in the tests.
    """
    linear, head, adapter = model.counts
    length = prompt + completion
    attention = 2 * model.layers * model.heads * guard.head_size(model.config) * length
    passes = beta + old
    token = linear * (6 + 2 * passes) + adapter * (8 + 2 * old) + attention * (4 + passes)
    return token * length + head * (4 + 2 * passes) * completion


def training(setup: Setup, v: Values) -> dict[str, float]:
    """Seconds of a process that learns from its share; every sequence is padded to the longest of the process, as TRL does."""
    each = setup.work.completions // setup.trainers
    longest = drawn(v, setup.work, setup.trainers).max(axis=(1, 2)).mean()
    beta = bool(PRESETS[setup.cluster.card.preset]["beta"].value)
    flops = each * training_flops(setup.model, v["prompt"], longest, beta, old=setup.vllm)
    card, passes = setup.cluster.card, 3 + beta + setup.vllm
    parts = {"training": float(flops / (card.tflops * 1e12 * v["training, share of peak"]))}
    if setup.in_4bit:  # every pass unpacks every weight
        unpacked = setup.micro_batches * passes * setup.model.counts[0] * v["4-bit weight"]
        parts["training"] += unpacked / (card.bandwidth * 1e9 * v["share of memory bandwidth"])
    ranks, rate = setup.trainers, setup.cluster.link * 1e9 * v["share of a link"]
    if ranks > 1:  # a ring all-reduce of 32-bit gradients; bytes a card
        parts["network"] = 2 * (ranks - 1) / ranks * 4 * setup.model.counts[2] / rate
    if setup.sharded:  # every pass gathers all weights, while it computes
        gathering = setup.micro_batches * passes * setup.model.weights(False) * (ranks - 1) / ranks / rate
        parts["network"] += max(0.0, gathering - parts["training"])
    return parts


def handing_over(setup: Setup, v: Values) -> float:
    """Seconds to bring what was learned to vLLM: the merged weights on TRL's road, the adapter on Unsloth's."""
    size = setup.model.weights(False) if setup.by_trl else 4 * setup.model.counts[2]
    return size / 1e9 / v["weights into vLLM"] if setup.vllm else 0.0


@dataclass(frozen=True)
class Step:
    """One step: seconds by part, completion tokens, and tokens with prompts."""

    parts: dict[str, float] = field(repr=False)
    generated: float
    trained: float
    generating: float  # seconds
    waiting: float  # share of generating that an average engine waits for the last

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


def step(setup: Setup, v: Values) -> Step:
    """Generating, scoring and learning take turns: TRL's GRPO overlaps none of them."""
    parts, average = generating(setup, v)
    last = sum(parts.values())
    completions = setup.work.completions
    tokens = float(drawn(v, setup.work, setup.engines).mean()) * completions
    python, callbacks = measured()["python"], measured()["callbacks"]
    scoring = completions / setup.trainers * python * v["text, times the benchmark's"]
    parts |= training(setup, v) | {"weights to vLLM": handing_over(setup, v), "scoring": scoring}
    parts["rest"] = v["rest of a step"] + callbacks
    return Step(parts, tokens, tokens + completions * v["prompt"], last, 1 - average / last)


def cost(setup: Setup, v: Values, steps: int = STEPS) -> float:
    """Dollars for that many steps."""
    return step(setup, v).seconds * steps / 3600 * v[setup.cluster.card.name] * setup.cluster.cards


def ends(of: Any, name: str) -> tuple[float, float]:
    """`of(values)` with one assumption at its low and at its high end."""
    return of(values(**{name: ASSUMED[name].low})), of(values(**{name: ASSUMED[name].high}))


def around(of: Any) -> tuple[float, float, float]:
    """`of` at the best guesses, and its range: the assumptions moved one at a time, their effects added as if independent.

    That is, the squares of the changes of the logarithm are added, upwards and downwards apart. What can be nothing (a free
    card) goes down to 0.
    """
    best, down, up = of(values()), 0.0, 0.0
    for name in ASSUMED:
        changes = [math.log(end / best) if end > 0 else -math.inf for end in ends(of, name)]
        down, up = down + min(0, *changes) ** 2, up + max(0, *changes) ** 2
    return best, best * math.exp(-math.sqrt(down)), best * math.exp(math.sqrt(up))


# --------------------------------------------------------------------------- measured


@cache
def measured(folder: Path = RESULTS) -> dict[str, float]:
    """Seconds that were measured: `python` (the usual rewards, a completion), `sandbox` (a job of one worker), `callbacks`."""
    speeds = {row["what"]: row["per_second"] for row in entry(folder, "rewards.json", "make bench", "speeds")}
    ways = {row["way"]: row["per_second"] for row in entry(folder, "sandbox.json", "make bench", "speeds")}
    workers = entry(folder, "sandbox.json", "make bench", "about", "workers")
    python = sum(1 / wanted(speeds, name, "rewards.json", "make bench") for name in PYTHON_REWARDS)
    jobs = wanted(ways, "sandbox.py, all layers", "sandbox.json", "make bench")
    callbacks = entry(folder, "training.json", "make bench-training", "overhead", "in_our_parts", "seconds_a_step")
    return {"python": python, "sandbox": workers / jobs, "callbacks": callbacks}


def entry(folder: Path, file: str, command: str, *keys: str) -> Any:
    """An entry of a file of results; ValueError naming the command that makes it where it is missing."""
    if not (folder / file).is_file():
        raise ValueError(f"{folder / file} is not there: run `{command}`, it makes it.")
    found = json.loads((folder / file).read_text(encoding="utf-8"))
    for key in keys:
        found = wanted(found, key, file, command)
    return found


def wanted(found: Mapping[str, Any], key: str, file: str, command: str) -> Any:
    if key not in found:
        raise ValueError(f"{file} has no entry {key!r}: run `{command}`, it makes it.")
    return found[key]


def calibrated(path: Path = RESULTS / "gpu.json") -> str:
    """What `make gpu-check` measured, beside what is computed here for its work; a sentence where nothing can be read."""
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    if not path.is_file():
        return f"`{name}`, where `make gpu-check ARGS=--keep` puts its record, is not there: no assumption about a GPU was checked."
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        gpu, runs = str((found.get("machine") or {}).get("gpu", "an unnamed GPU")), [dict(run) for run in found["runs"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"`{name}` cannot be read ({type(error).__name__}: {error}): run `make gpu-check` again."
    runs = [run for run in runs if run.get("timed")]  # beside the others something else was running
    if not runs:
        return f"`{name}` has no timed run on {gpu}: run `make gpu-check` again."
    rows = [[run.get("name", "–"), *(two(run.get(key)) for key in MEASURED_FIELDS)] for run in runs]
    text = table(["run", "s a step", "generated tokens a s", "trained tokens a s", "peak bytes", "generating, share"], rows)
    limit = next((run["tokens_at_most"] for run in runs if run.get("tokens_at_most")), CHECKED.limit)
    work = f"1.5B in 4 bits, plain generation, {CHECKED.completions} completions of at most {limit} tokens"
    return f"Measured on {gpu} (`{name}`; {work}; {as_computed(gpu, limit)}):\n\n{text}"


CHECKED = Work(prompts=8, group=8, limit=128)  # a step of `make gpu-check`


def as_computed(gpu: str, limit: int) -> str:
    """Seconds a step of that work by the formulas of this page, on the rung that has this card."""
    cluster = next((one for one in LADDER if one.cards == 1 and one.card.name.removeprefix("RTX ") in gpu), None)
    if cluster is None:
        return "no rung below has this card"
    setup = Setup(cluster, SMALL, replace(CHECKED, limit=limit), in_4bit=True, vllm=False, groups=2)
    return f"computed for plain TRL: {ranged(around(lambda v: step(setup, v).seconds))} s a step"


MEASURED_FIELDS = ("seconds_a_step", "generated_tokens_a_second", "trained_tokens_a_second", "peak_bytes", "generating_share")


# --------------------------------------------------------------------------- rewards


@dataclass(frozen=True)
class Scoring:
    """What a reward takes on a cluster: seconds a step with the project's defaults, and the workers that it would need."""

    seconds: float
    workers: int | None  # a process, so that scoring stays below SCORING_SHARE; None: no number is enough


def sandbox_seconds(setup: Setup, workers: int, runaways: float) -> float:
    """Until the last process has its code judged, on average; a runaway costs the sandbox's limit of work."""
    shape = (TRIALS, setup.trainers, setup.work.completions // setup.trainers)
    limit = inspect.signature(Sandbox).parameters["timeout"].default
    jobs = np.where(np.random.default_rng(SEED).random(shape) < runaways, limit, measured()["sandbox"])
    return float(np.mean([max(makespan(row, workers) for row in trial) for trial in jobs]))


def scoring(setup: Setup, seconds: float, of: Any, workers: int) -> Scoring:
    """`of(workers)` seconds with the default, and the least number of workers that keeps it small beside `seconds`."""
    most, room = setup.work.completions // setup.trainers, SCORING_SHARE * seconds
    enough = next(n for n in range(1, most + 1) if of(n) < room) if of(most) < room else None
    return Scoring(of(workers), enough)


def rewards_on(setup: Setup, cores: int) -> dict[str, Any]:
    """Pure Python (seconds), and `Scoring` of the sandbox, of the sandbox with runaways and of a judge, in one step."""
    v, each = values(), setup.work.completions // setup.trainers
    now, workers = step(setup, v), min(4, cores)  # as sandbox.Sandbox counts them
    at_once = next(one.default for one in fields(rewards.Judge) if one.name == "concurrency")
    return {
        "step": now.seconds, "python": now.parts["scoring"],
        "sandbox": scoring(setup, now.seconds, lambda n: sandbox_seconds(setup, n, 0.0), workers),
        "runaways": scoring(setup, now.seconds, lambda n: sandbox_seconds(setup, n, v["runaway programs"]), workers),
        "judge": scoring(setup, now.seconds, lambda n: makespan([v["judge"]] * each, n), at_once),
    }  # fmt: skip


# --------------------------------------------------------------------------- the page


def two(number: Any) -> str:
    """Two digits that count; what is no number as it is, nothing as a dash."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return "–" if number is None else str(number)
    if not math.isfinite(number):
        return str(number)
    return f"{float(f'{number:.2g}'):,.10g}" if abs(number) < 100 else f"{float(f'{number:.3g}'):,.0f}"


def share(number: float) -> str:
    return f"{100 * max(number, 0):.0f} %" if number >= 0.01 or number < 5e-5 else f"{100 * number:.1g} %"


def ranged(found: tuple[float, float, float]) -> str:
    return f"{two(found[0])} ({two(found[1])}–{two(found[2])})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def folded(text: str) -> str:
    """Paragraphs and list items in lines of at most 130 letters; tables, headings and code as they are."""
    text = re.sub(r"(?<!`)`[^`\n]+`(?!`)", lambda code: code[0].replace(" ", "\1"), text)  # stays on one line
    blocks, code = [], False
    for block in text.strip().split("\n\n"):
        asis = code or block.startswith(("|", "#", "```"))
        code ^= block.count("```") == 1
        items = [block] if asis else [" ".join(item.split()) for item in block.replace("\n- ", "\0- ").split("\0")]
        fold = textwrap.TextWrapper(130, break_long_words=False, break_on_hyphens=False)
        fold.subsequent_indent = "  " * items[0].startswith("- ")
        blocks.append("\n".join(item if asis else fold.fill(item) for item in items))
    return "\n\n".join(blocks).replace("\1", " ") + "\n"


def ladder(found: Sequence[Setup]) -> str:
    rows = []
    for one in found:
        now, seconds = step(one, values()), around(lambda v: step(one, v).seconds)
        where = f"server, {one.servers} cards" if one.servers else "vLLM in the card" if one.vllm else "plain"
        rows.append([
            one.cluster.name, one.model.name, ", ".join([f"`{one.cluster.card.preset}`", *one.changed]),
            f"{two(one.peak / 1e9)} GB", where, ranged(seconds), share(now.generating / now.seconds),
            two(now.generated / now.seconds),
            f"{two(now.generated * STEPS / 1e6)} M, {two((now.trained - now.generated) * STEPS / 1e6)} M",
            two(seconds[0] * STEPS / 3600), ranged(around(lambda v: cost(one, v))),
        ])  # fmt: skip
    head = ["cluster", "model", "preset, and what differs", "peak of a card", "generating", "seconds a step", "of it generating"]
    return table([*head, "tokens written a s", "tokens written, read", "hours", "$"], rows)


def first_out(found: Mapping[tuple[str, str], Setup]) -> str:
    """By cluster: memory of the model that fills it most, and what takes most of a step of each model."""
    rows = []
    for cluster in LADDER:
        fits = {model.name: found.get((cluster.name, model.name)) for model in MODELS}
        fullest = max((one for one in fits.values() if one), key=lambda one: one.peak)
        full = f"{share(fullest.peak / (guard.FULL_ENOUGH * cluster.card.memory * 1e9))} ({fullest.model.name})"
        rows.append([cluster.name, full, *(most(one, 2) if one else "memory: does not fit" for one in fits.values())])
    return table(["cluster", "fullest memory", *(f"a step of {model.name}" for model in MODELS)], rows)


def most(setup: Setup, count: int) -> str:
    now = step(setup, values())
    parts = sorted(now.parts.items(), key=lambda part: -part[1])[:count]
    return ", ".join(f"{name} {share(part / now.seconds)}" for name, part in parts)


def more_cards() -> str:
    rows = []
    for cluster, prompts in [(2, 8), (2, 32), (2, 64), (3, 8), (3, 64), (4, 16), (4, 128), (5, 32), (5, 256)]:
        one = choose(LADDER[cluster], SMALL, Work(prompts))
        now, cards = step(one, values()), one.cluster.cards
        rows.append([
            str(cards), str(prompts), str(one.work.completions // cards), two(now.seconds), share(now.waiting),
            two(one.work.completions / now.seconds / cards * 3600), f"${two(cost(one, values(), 1) / now.generated * 1e6)}",
        ])  # fmt: skip
    head = ["H100s", "prompts a step", "completions a card", "seconds a step", "waiting for the slowest card"]
    return table([*head, "completions an hour and card", "a million tokens generated"], rows)


def reward_rows() -> tuple[str, dict[str, Any]]:
    rows, last = [], {}
    for cluster in (*LADDER[:4], LADDER[5]):
        one = choose(cluster, SMALL)
        on = rewards_on(one, 2 if cluster.card is T4 else 4)
        said = [f"{two(on[name].seconds)} s, {share(on[name].seconds / on['step'])}" for name in ("sandbox", "runaways", "judge")]
        enough = [str(on[name].workers or "none is enough") for name in ("sandbox", "runaways", "judge")]
        calls = two(one.work.completions / (on["step"] + on["judge"].seconds) * 60)
        python = f"{two(on['python'] * 1e3)} ms, {share(on['python'] / on['step'])}"
        rows.append([cluster.name, python, *(cell for pair in zip(said, enough) for cell in pair), calls])
        last[cluster.name] = on | {"calls": calls}
    head = ["cluster", "Python rewards", "sandbox", "workers for 5 %", "with runaways", "workers for 5 %", "judge"]
    return table([*head, "calls at once for 5 %", "calls a minute"], rows), last


def assumptions() -> str:
    run = choose(LADDER[2], SMALL)
    best = cost(run, values())
    rows = []
    for name, one in ASSUMED.items():
        moved = [end / best - 1 for end in ends(lambda v: cost(run, v), name)]
        effect = "–" if not any(moved) else " / ".join(f"{100 * change:+.0f} %".replace("-", "−") for change in moved)
        rows.append([name, f"{one.value:g} ({one.low:g}–{one.high:g}) {one.unit}", one.why, effect])
    return table(["assumed", "value (low–high)", "why", "cost of the H100 run, low / high"], rows)


def waiting() -> dict[str, str]:
    """Figures on waiting: what a batch wastes until its longest completion ends, and cards until the slowest one."""
    v, work = values(), Work()
    tokens = drawn(v, work, 1, trials=64)[:, 0]
    static = [sum(int(row[i : i + 16].max()) for i in range(0, row.size, 16)) for row in tokens]
    orca = [refilled(row, 16)[0].size for row in tokens]
    found = {
        "cut": share(float((tokens == work.limit).mean())), "mean": two(float(tokens.mean())),
        "wasted": share(float(1 - (tokens.mean(axis=1) / tokens.max(axis=1)).mean())),
        "static": two(float(np.mean(static))), "orca": two(float(np.mean(orca))),
        "longest": two(float(tokens.max(axis=1).mean())),
    }  # fmt: skip
    for name, each, limit in (("many", 8, work.limit), ("few", 1, work.limit), ("far", 8, 4096)):
        setups = [replace(choose(cluster, SMALL), work=Work(each * cluster.cards, limit=limit)) for cluster in LADDER[3:]]
        found[name] = ", ".join(share(step(setup, v).waiting) for setup in setups)
    return found


def refusal() -> str:
    """What lab.presets says to eight prompts on 16 cards."""
    try:
        return str(choose(LADDER[4], SMALL, Work(8)).micro_batches)
    except ValueError as error:
        return str(error)


def per_million(setup: Setup) -> float:
    """Dollars for a million generated tokens."""
    return cost(setup, values(), 1) / step(setup, values()).generated * 1e6


def prose(at: Mapping[tuple[str, str], Setup], on: Mapping[str, Any]) -> dict[str, str]:
    """The computed figures of the sentences, by their names in TEXT."""
    v, judge = values(), {one.name: one.default for one in fields(rewards.Judge)}
    eight, big, alone = at["8 × H100", "1.5B"], at["8 × H100", "32B"], at["H100", "32B"]
    whole, beside = big.model.weights(False), big.cluster.link * 1e9 * v["share of a link"]
    served = replace(eight, servers=2, work=Work(60))
    served = replace(served, slots=memory(served)[1])
    speeds = [one.work.completions / step(one, v).seconds for one in (eight, served)]
    crowded = choose(LADDER[2], SMALL, Work(64))
    strong = choose(LADDER[3], SMALL, Work(8))
    return {
        "served": share(1 - speeds[1] / speeds[0]), "trainers": str(big.trainers),
        "served_token": f"{two(step(big, v).generating / big.work.limit)} s", "refusal": refusal(),
        "t4_7b": f"{two(at['T4', '7B'].peak / 1e9)} GB, {two(step(at['T4', '7B'], v).seconds)} s a step",
        "gathered": f"{two(whole * (1 + 1 / big.trainers) / 1e9)} GB",
        "by_token": f"{two(whole * (1 - 1 / big.trainers) / beside)} s", "sharded_price": two(per_million(big)),
        "packed_price": two(per_million(alone)), "h100": two(step(at["H100", "1.5B"], v).seconds),
        "crowded": two(step(crowded, v).seconds), "crowded_price": two(per_million(crowded)),
        "usual_price": two(per_million(at["H100", "1.5B"])), "strong": two(step(strong, v).seconds),
        "strong_price": two(per_million(strong)), "calls": on["8 × H100"]["calls"], "at_once": str(judge["concurrency"]),
        "ranks_calls": str(8 * judge["concurrency"]), "budget": f"{judge['max_calls']:,}",
        "budget_steps": str(judge["max_calls"] // eight.work.completions),
        "judge_seconds": two(on["8 × H100"]["judge"].seconds), "judge_call": f"{v['judge']:g}",
        "step8": two(on["8 × H100"]["step"]), "gradients": two(4 * eight.model.counts[2] / 1e6),
        "limit": f"{inspect.signature(Sandbox).parameters['timeout'].default:g}",
        "hit": share(1 - (1 - v["runaway programs"]) ** 64), "hit8": share(1 - (1 - v["runaway programs"]) ** 512),
        "runaways8": two(on["8 × H100"]["runaways"].seconds), "job": two(measured()["sandbox"] * 1e3),
        "python": two(measured()["python"] * 1e6), "callbacks": two(measured()["callbacks"] * 1e3), "sources": SOURCES,
    }  # fmt: skip


def page() -> str:
    """The whole page as Markdown."""
    chosen = [choose(cluster, model) for cluster in LADDER for model in MODELS]
    found = {(one.cluster.name, one.model.name): one for one in chosen if one.peak < math.inf}
    scored, on = reward_rows()
    tables = {
        "ladder": ladder([one for at, one in found.items() if at != ("T4", "7B")]), "out": first_out(found),
        "cards": more_cards(), "rewards": scored, "assumed": assumptions(), "calibrated": calibrated(),
    }  # fmt: skip
    return folded(TEXT.format(**tables, **prose(found, on), **waiting()))


TEXT = r"""
# From one T4 to several nodes

What changes when the card gets larger, and when there are more of them. **Every GPU time from the ladder on is computed, none
is measured**: from datasheets, the shapes of the models and the assumptions at the end. Measured is CPU work (`make bench`,
`make bench-training`): three rewards in pure Python take {python} µs for a completion, the sandbox {job} ms, our callbacks
{callbacks} ms a step. `make gpu-check` on a CUDA machine measures plain generation, training and memory, of which much is
assumed here; not vLLM and not several cards. `make scale` makes this page. A range is what the assumptions allow: each moved alone, their effects added as if independent.

{calibrated}

## The ladder

Qwen2.5 with an adapter of rank 16, by the presets of notebook 03: groups of 8, 8 prompts a step *for each card*, completions of
at most 512 tokens, a KL term. Tokens, hours and dollars are those of 1,000 steps; the preset's 250 take a quarter.

{ladder}

Memory is by the formulas of the guard (`lab.guard`) and may fill 90 % of a card; vLLM takes its half at the start. Where a
preset does not fit, the first of these that does is taken: fewer groups at once (`MORE_SETTINGS = {{"groups_per_batch": 2}}`), 4
bits (one card: `{{"load_in_4bit": True}}`), sharded weights (several). 32B fits neither a T4 nor an RTX 4090; 7B would fit a T4
({t4_7b}).

- **One card** is notebook 03 as it is. A T4 samples by plain generation, in fp16. From 24 GB on vLLM samples in the same card
  and on the same copy of the weights (Unsloth), once it is installed (vLLM pins a torch of its own: in another environment); until then, generation is plain there
  too.
- **Several cards, a copy on each** (1.5B, 7B): with `BACKEND = "trl"`, as nobody here has seen Unsloth's vLLM in several
  processes. TRL's stands in each card beside the training, on a second copy of the weights that it gets anew at every step. Two
  of eight cards as a server instead make {served} fewer completions an hour: TRL generates and learns in turns, and who has no
  turn is idle.
- **Sharded** (32B): half of the cards train on shards, half serve, two cards to a copy. Generating on the shards themselves
  would gather all weights for each token: {by_token} a token on {trainers} cards, where a server takes {served_token}.
  `CONFIG=zero3` cannot do it: to merge an adapter TRL 1.14 gathers the whole model on each card, {gathered} with its shard. With
  `fsdp` it merges piece by piece, and its source asks "does this work with FSDP?". A copy in 4 bits on each card would be
  cheaper, if it ran in several processes as it should on one H100: ${packed_price} for a million written tokens against
  ${sharded_price}.

## How it is started

```
make train                                                             # one card
make train NPROC=8 SET="BACKEND=trl PROMPTS_PER_STEP=64"               # one node, a copy on each card (CONFIG=ddp)

# 32B on one node: four cards serve, four train
CUDA_VISIBLE_DEVICES=0,1,2,3 trl vllm-serve --config notebooks/lab/configs/vllm_serve.yaml \
  --model Qwen/Qwen2.5-32B-Instruct --tensor_parallel_size 2 --data_parallel_size 2
CUDA_VISIBLE_DEVICES=4,5,6,7 make train NPROC=4 CONFIG=fsdp SET="MODEL=Qwen/Qwen2.5-32B-Instruct PROMPTS_PER_STEP=64 \
  'MORE_SETTINGS={{\"use_vllm\": True, \"vllm_mode\": \"server\", \"vllm_server_base_url\": \"http://127.0.0.1:8000\"}}'"
```

`make train` knows one node only. For two, on each of them, with this folder on a disk that both see (RANK is 0 on the first and
1 on the second, FIRST the first one's address):

```
export GRPO_NOTEBOOKS=$PWD PYTHONPATH=$PWD:$PWD/notebooks
.venv/bin/python -c 'from pathlib import Path; from lab.launch import export_script as export
export(Path("outputs/train.py"), dict(BACKEND="trl", PROMPTS_PER_STEP=128))'
.venv/bin/accelerate launch --config_file notebooks/lab/configs/ddp.yaml --num_machines 2 --num_processes 16 \
  --machine_rank RANK --main_process_ip FIRST --main_process_port 29500 outputs/train.py
```

The tests train in two processes on a CPU, and give the last line to accelerate's parser. On GPUs none of these lines was ever
run. For a server that other nodes reach, `host` in `vllm_serve.yaml` must be opened: it has no password, so only inside a
network of your own.

## More cards: more prompts, or faster steps

Qwen2.5-1.5B. For each number of cards, first the fewest prompts that they can share (8 at least), last 8 for each card.

{cards}

More prompts pay, smaller shares do not. A decode step takes nearly as long for 8 completions as for 64: launches and reading the
weights stay. Eight cards bring 8 prompts from {h100} to {strong} s, and a million tokens from ${usual_price} to ${strong_price}.
One card takes {crowded} s for 64 prompts, at ${crowded_price}. So fill the card first, then add cards. GRPO wants it so: a
further prompt is a further group to learn from, a smaller share only ends sooner. But larger steps are another run, and how many
fewer of them are enough is not known here. Eight prompts on 16 cards are refused before anything is loaded: "{refusal}"

## Who waits for whom

Simulated with completions that are long-tailed (lognormal: most end early, a few go on), {mean} tokens on average, {cut} cut at
512.

- Plain generation carries all 64 to the end of the longest ({longest} tokens on average: nearly every batch has a cut one), so
  {wasted} of what is decoded is thrown away. TRL pads the training batch to that length too.
- Continuous batching helps where completions are more than slots: 64 take {orca} decode steps in 16 slots, and {static} in
  batches of 16. With 64 slots there are as many steps as in plain generation. There vLLM gains by CUDA graphs, not by its
  scheduler.
- 8, 16 and 32 cards with 64 completions each wait {many} of their generating time for the slowest; with 8 each {few}. The limit
  does that: were it 4,096 tokens, 64 each would wait {far}.

## Rewards

1.5B. Each process scores its own 64 completions while its card waits, with the defaults: a sandbox of 4 workers (2 on a T4's two
cores), a judge with {at_once} calls at once. "With runaways": 1 % of the programs never end, and run into the sandbox's limit of
{limit} s.

{rewards}

- **Never matter:** rewards in pure Python. The sandbox hardly does while programs end; eight processes want 32 cores for it.
- **Runaways:** {hit} of the steps of one process have one and {hit8} of those of eight, and all wait for it: {runaways8} s a
  step. No number of workers mends that, a shorter limit does: `code_reward.with_options(sandbox=Sandbox(timeout=1))`.
- **A judge is the bottleneck** from one H100 on: {judge_seconds} s beside a step of {step8} s. A single call ({judge_call} s) is
  more than 5 % of the step, so no number of calls hides it. Eight processes ask {ranks_calls} at once, {calls} a minute, and the
  default budget of {budget} calls ends after {budget_steps} steps.

## What runs out first

The largest parts of a step, without a judge; and the memory of the fullest card, as a share of the 90 %.

{out}

Small models wait for kernel launches while they generate, large ones and those in 4 bits for their weights to be read; the rest
is training. The network never comes first: an adapter's gradients are {gradients} MB for 1.5B, and sharded weights are gathered
while the cards compute.

## What is assumed, and what it changes

The last column moves one assumption at a time: the cost of 1,000 steps of 1.5B on one H100.

{assumed}

Facts: {sources}: dense 16-bit tensor TFLOP/s with 32-bit sums (65, 165, 989), GB/s of memory (320, 1,008, 3,350), NVLink 450 and
InfiniBand 50 GB/s a card each way. Formulas and their sources are in `lab/scale.py`: a token costs 2 FLOPs a weight to read or
write, 6 to learn with an adapter and gradient checkpointing, 2 more for the reference of the KL term, and 2 more for the old
log-probabilities that TRL computes with vLLM (the tests count them with torch's own counter on a small Qwen2).

Not counted: loading, saving, held-out answers, failed and idle machines, storage, traffic, a T4 that slows down when it is hot,
Colab's limit on a session. Prices change by the month.
"""


def main() -> None:
    write_text(PAGE, page())
    print(f"written: {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
