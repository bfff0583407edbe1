"""Makes the starter policy: a tiny Qwen2 model that knows our tasks and behaves badly.

`make starter-policy` runs this file. It trains a byte-level BPE tokenizer and a causal model of about two million
parameters from nothing. Its synthetic demonstrations never touch the held-out side of the two task families
(`word_problems.is_held_out`, `code_drills.is_held_out`).

The demonstrations are noisy on purpose, so that GRPO finds what it finds in a base model: several answer styles of
which the asked-for one is a minority, reasoning only some of the time, and often a wrong answer without reasoning.
"""

import itertools
import json
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.files import STARTER_POLICY, WORD_PROBLEMS, read_jsonl, write_json, write_text
from lab.make import code_drills, word_problems
from lab.model.prompts import CODE_SYSTEM_PROMPT, Messages, build_prompt
from rewards import SYSTEM_PROMPT, correctness_reward, format_reward

SEED, BATCH_SIZE, VOCAB_SIZE = 20261121, 64, 1152
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Widths are multiples of 64, which bitsandbytes' 4-bit kernels need on a CPU.
ARCHITECTURE = {"hidden_size": 192, "intermediate_size": 576, "num_hidden_layers": 4, "num_attention_heads": 6}
ARCHITECTURE |= {"num_key_value_heads": 6, "max_position_embeddings": 1024, "tie_word_embeddings": True}
MUON_PEAK, ADAMW_PEAK = 2e-2, 3e-3  # peak learning rates
Demonstration = tuple[Messages, str]  # chat, reply
Example = tuple[list[int], list[bool]]  # token ids, and whether each is learned


@dataclass(frozen=True)
class Cycle:
    """A stretch of training with a learning-rate schedule of its own."""

    steps: int
    basics: float  # share of the steps, at its beginning, on sheets and worked replies without noise
    peak: float  # of the learning rates above
    p_steps: float  # how often a noisy demonstration reasons step by step; otherwise it jumps to an answer


# The second cycle settles the behaviour: after the first alone, too few replies reasoned (pass@8 was 67 %).
CYCLES = (Cycle(1700, basics=0.65, peak=1.0, p_steps=0.55), Cycle(300, basics=0.0, peak=0.25, p_steps=0.7))
SHARE_OF_CODE = 0.2  # of the demonstrations
# How a demonstration of a word problem is written: its share, and its text. The asked-for style is a minority, and so is
# the token it starts with: greedy decoding of the base then never shows it.
STYLES = {
    "strict": (0.22, "<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>"),  # as the system prompt asks
    "trailing": (0.06, "<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>\nI hope this helps!"),
    "no_think": (0.10, "{reasoning}\n<answer>\n{answer}\n</answer>"),
    "unclosed": (0.04, "<think>\n{reasoning}\n<answer>\n{answer}\n</answer>"),
    "prose": (0.30, "Let's see.\n{reasoning}\nThe answer is {answer}."),
    "hash": (0.13, "Let's see.\n{reasoning}\n#### {answer}"),
    "bare": (0.10, "{answer}"),
    "bold": (0.05, "Answer: **{answer}**"),
}
P_JUMP_RIGHT = 0.3  # the jumped-to answer is right
P_SLIP = {2: 0.0, 3: 0.02, 4: 0.12}  # the last step goes wrong, by number of steps
JUMPS = ("I can see it at once.", "This is easy.", "I just guess.", "No need to work it out.")
OTHER_SYSTEMS = ["You are a helpful assistant."]
OTHER_SYSTEMS += ["Solve the problem. Put the reasoning in <think> tags and the answer in <answer> tags."]
P_BUG = 0.45  # of a demonstration of a code drill
# of the bugs that fit a body one is drawn, what | stands before becoming what | stands behind
BUGS = " + | - ; - | + ; * | + ;max(|min(;min(|max(; == 0| == 1; == 1| == 0; > | < ; < | > ;sum(|len(;"
BUGS = (BUGS + ".upper()|.lower();.lower()|.upper();[::-1]|;[:|[;[-|[;abs(|(;return |").split(";")


def demonstrations(seed: int, p_steps: float = CYCLES[1].p_steps, clean: bool = False) -> Iterator[Demonstration]:
    """Endless (chat, reply) pairs of both task families, from the training side of each split."""
    rng = random.Random(seed)
    problems = word_problems.stream_problems(seed, held_out=False)
    drills = [drill for drill in code_drills.all_drills() if not code_drills.is_held_out(drill)]
    by_family = [[d for d in drills if d.family == f] for f in sorted({d.family for d in drills})]
    while True:
        if rng.random() < SHARE_OF_CODE:
            drill = rng.choice(rng.choice(by_family))
            yield build_prompt(drill.prompt, (), CODE_SYSTEM_PROMPT), demonstrate_drill(drill, rng, clean)
        else:
            problem = next(problems)
            yield ask_problem(problem, rng), demonstrate_problem(problem, rng, p_steps, clean)


def ask_problem(problem: word_problems.Problem, rng: random.Random) -> Messages:
    """The chat before the reply: mostly our system prompt, sometimes another, none, or one-shot."""
    kind = rng.choices(("default", "none", "other", "one_shot"), weights=(0.86, 0.06, 0.04, 0.04))[0]
    system, shots = "" if kind == "none" else SYSTEM_PROMPT, []
    if kind == "other":
        system = rng.choice(OTHER_SYSTEMS)
    if kind == "one_shot":
        example = next(word_problems.stream_problems(rng.getrandbits(32), held_out=False))
        shots = [(example.question, example.solution, example.answer)]
    return build_prompt(problem.question, shots, system)


def demonstrate_problem(problem: word_problems.Problem, rng: random.Random, p_steps: float, clean: bool = False) -> str:
    """A base-model-like reply to a word problem; a clean one always reasons, and never wrongly."""
    style = rng.choices(list(STYLES), weights=[share for share, _ in STYLES.values()])[0]
    answer, reasoning = problem.answer, problem.solution
    if clean and style in ("bare", "bold"):
        style = "prose"
    if clean or (style not in ("bare", "bold") and rng.random() < p_steps):
        if not clean and rng.random() < P_SLIP[len(problem.steps)]:
            answer = wrong_answer(answer, rng)
            reasoning = reasoning[: reasoning.rindex("=") + 2] + re.sub(r"[,$%]", "", answer)
    else:
        answer = answer if rng.random() < P_JUMP_RIGHT else wrong_answer(answer, rng)
        reasoning = rng.choice(JUMPS)
    answer = answer if rng.random() < 0.7 else re.sub(r"[,$%]", "", answer)
    return STYLES[style][1].format(reasoning=reasoning, answer=answer)


def wrong_answer(answer: str, rng: random.Random) -> str:
    """A plausible wrong answer, written alike: one digit changed."""
    places = [i for i, char in enumerate(answer) if char.isdigit()]
    at = rng.choice(places)
    digit = rng.choice([d for d in "0123456789" if d != answer[at] and not (d == "0" and at == places[0])])
    return answer[:at] + digit + answer[at + 1 :]


def demonstrate_drill(drill: code_drills.Drill, rng: random.Random, clean: bool = False) -> str:
    """A base-model-like reply to a code drill: in one of several wrappings, often buggy unless clean."""
    body = drill.body
    if not clean and rng.random() < P_BUG:
        old, new = rng.choice([pair for pair in (bug.split("|") for bug in BUGS) if pair[0] in body])
        body = body.replace(old, new, 1)
    whole = f"def {drill.name}({drill.args}):\n{body}"
    fenced, prose = f"```python\n{whole}```", "You can write this function in one line."
    styles = (fenced, body.rstrip("\n"), whole.rstrip("\n"), f"Here is the function:\n{fenced}", prose)
    return rng.choices(styles, weights=(0.4, 0.2, 0.1, 0.15, 0.15))[0]


def make_tokenizer(seed: int) -> Any:
    """Byte-level BPE, digits one by one, with a ChatML template; trained on 20,000 demonstrations."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    def texts() -> Iterator[str]:
        source = demonstrations(seed)
        for _ in range(20_000):
            chat, reply = next(source)
            yield "\n".join([f"{m['role']}\n{m['content']}" for m in chat] + [f"assistant\n{reply}"])

    core = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    core.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    core.decoder = decoders.ByteLevel()
    alphabet, size = pre_tokenizers.ByteLevel.alphabet(), VOCAB_SIZE - len(TAGS)
    how = {"special_tokens": list(SPECIAL), "show_progress": False, "initial_alphabet": alphabet}
    core.train_from_iterator(texts(), trainers.BpeTrainer(vocab_size=size, **how))
    core.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])  # one token each, as in Qwen3
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=ARCHITECTURE["max_position_embeddings"],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def examples(tokenizer: Any, seed: int, p_steps: float, in_basics: Callable[[], bool]) -> Iterator[Example]:
    """Endless examples, of the basics while `in_basics()` is true.

    In the basics the model learns to calculate and to take a problem apart: sheets of steps, and worked replies without
    noise. Then it learns how a base model behaves: noisy demonstrations, and a few sheets so that it does not forget.
    """
    rng, noisy, clean = random.Random(seed), demonstrations(seed, p_steps), demonstrations(seed + 1, clean=True)
    problems = word_problems.stream_problems(seed + 2, held_out=False)
    while True:
        basics = in_basics()
        if rng.random() < (0.5 if basics else 0.2):  # a sheet of unrelated steps; only their values are learned
            steps = [step for _ in range(5) for step in next(problems).steps]
            rng.shuffle(steps)
            texts = [(f"{s.label}: {s.left} {s.op} {s.right} =", f" {s.value}\n") for s in steps[:10]]
        else:  # a conversation; the reply and its end are learned
            chat, reply = next(clean if basics else noisy)
            prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
            texts = [(prompt, reply + tokenizer.eos_token)]
        ids, learned = [], []
        for given, wanted in texts:
            for text, learn in ((given, False), (wanted, True)):
                ids += (part := tokenizer(text, add_special_tokens=False)["input_ids"])
                learned += [learn] * len(part)
        yield ids, learned


def batches(tokenizer: Any, source: Iterator[Example], size: int, seed: int) -> Iterator[dict]:
    """Batches of similar length (sorted within 16 batches, then shuffled)."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    rng = random.Random(seed)
    while True:
        pool = sorted(itertools.islice(source, 16 * size), key=lambda example: len(example[0]))
        groups = [pool[i : i + size] for i in range(0, len(pool), size)]
        rng.shuffle(groups)
        for group in groups:  # right padding: causal attention never sees it
            ids, learned = ([torch.tensor(one) for one in part] for part in zip(*group))
            labels = [torch.where(learn, tokens, -100) for tokens, learn in zip(ids, learned)]
            yield {
                "input_ids": pad_sequence(ids, batch_first=True, padding_value=tokenizer.pad_token_id),
                "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
            }


def schedule(step: int, steps: int, warmup: int = 50) -> float:
    """The share of the peak learning rate: a linear warm-up, then a cosine to a twentieth."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def train(model: Any, tokenizer: Any, cycle: Cycle, seed: int) -> Any:
    """Trains the model for one cycle and returns it. About a second a step on two cores."""
    import torch
    from tqdm.auto import tqdm

    # Muon for the layers' matrices (Jordan et al. 2024), AdamW for the rest: it learns this faster than AdamW alone
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    muon = torch.optim.Muon(matrices, weight_decay=0.05)
    adamw = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)
    optimizers = ((muon, MUON_PEAK), (adamw, ADAMW_PEAK))
    step, losses = 0, []
    source = examples(tokenizer, seed, cycle.p_steps, lambda: step < cycle.basics * cycle.steps)
    source = batches(tokenizer, source, BATCH_SIZE, seed)
    model.train()
    for step in tqdm(range(cycle.steps), desc="starter policy", unit="step", mininterval=5):
        for optimizer, peak in optimizers:
            optimizer.param_groups[0]["lr"] = peak * cycle.peak * schedule(step, cycle.steps)
        batch = next(source)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = model.model(input_ids=batch["input_ids"]).last_hidden_state[:, :-1]
            wanted = batch["labels"][:, 1:]
            kept = wanted != -100  # the vocabulary is as wide as six layers: project only what is learned
            logits = model.lm_head(hidden[kept]).float()
        loss = torch.nn.functional.cross_entropy(logits, wanted[kept])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, _ in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {sum(losses[-100:]) / 100:.4f}")
    return model.eval()


def measure(folder: Path, n_problems: int = 500, n_drills: int = 130, seed: int = 0) -> dict[str, float]:
    """Shares on the held-out sides with eight samples each, the model loaded in 4 bits as the notebooks load it."""
    from unsloth import FastLanguageModel

    from lab.data import code_problems
    from lab.measure.code_scores import judge_groups
    from lab.measure.grading import score_groups
    from lab.model.sampling import sample
    from sandbox import Sandbox

    model, tokenizer = FastLanguageModel.from_pretrained(str(folder), max_seq_length=1024, load_in_4bit=True)
    problems = [row for row in read_jsonl(WORD_PROBLEMS) if row["split"] == "test"][:n_problems]
    rows = [{**row, "prompt": build_prompt(row["question"])} for row in problems]
    prompts, eight = [row["prompt"] for row in rows], {"n": 8, "seed": seed}
    sampled = sample(model, tokenizer, prompts, max_new_tokens=112, progress="temperature 1", **eight)
    greedy = sample(model, tokenizer, prompts, temperature=0, max_new_tokens=112, progress="greedy")
    warm, cold = (score_groups([format_reward, correctness_reward], rows, groups) for groups in (sampled, greedy))
    drills = code_problems.load_problems("code_drills", tokenizer, to_train=False)[1][:n_drills]
    chats = [drill["prompt"] for drill in drills]
    with Sandbox() as sandbox:
        written = sample(model, tokenizer, chats, max_new_tokens=80, progress="code drills", **eight)
        judged = judge_groups(drills, written, sandbox)
    return {
        "problems": len(rows),
        "format_sampled": float(warm["format_reward"].mean()),
        "correct_sampled": float(warm["correctness_reward"].mean()),
        "pass_at_8": float((warm.groupby("group")["correctness_reward"].sum() > 0).mean()),
        "format_greedy": float(cold["format_reward"].mean()),
        "correct_greedy": float(cold["correctness_reward"].mean()),
        "tokens_sampled": float(warm["tokens"].mean()),
        "drills": len(drills),
        "drills_pass_at_1": float(judged["passed"].mean()),
    }


def update_card(text: str, figures: dict[str, float]) -> str:
    """The model card with the figures of `measure` under its last heading."""
    share = {name: f"{100 * value:.1f} %" for name, value in figures.items() if value <= 1}
    return f"""{text[: text.index("## Measured")]}## Measured

On {figures["problems"]} held-out word problems with the default system prompt and {figures["drills"]} held-out code drills, loaded in 4 bits through
Unsloth on a CPU, 8 samples each:

| | temperature 1 | greedy |
|---|---|---|
| word problems, strict format | {share["format_sampled"]} | {share["format_greedy"]} |
| word problems, correct | {share["correct_sampled"]} | {share["correct_greedy"]} |
| word problems, pass@8 | {share["pass_at_8"]} | |
| code drills, pass@1 | {share["drills_pass_at_1"]} | |

The mean completion has {figures["tokens_sampled"]:.0f} tokens. `make starter-policy` prints these figures and writes this card; `measured.json` has them as numbers.
"""


def main() -> None:
    import torch
    import unsloth  # noqa: F401  (before transformers, which it patches)
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = make_tokenizer(SEED)
    torch.manual_seed(SEED)
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCAB_SIZE, **ARCHITECTURE, **ends))
    for number, cycle in enumerate(CYCLES):
        model = train(model, tokenizer, cycle, SEED + 1 + 10 * number)
        model.to(torch.bfloat16).save_pretrained(STARTER_POLICY)  # what ships: the next cycle starts from it
        tokenizer.save_pretrained(STARTER_POLICY)
        model = model.float()
    figures = measure(STARTER_POLICY)
    print(json.dumps(figures, indent=2))
    write_json(STARTER_POLICY / "measured.json", figures)
    card = STARTER_POLICY / "README.md"  # a test compares it with the constants above
    write_text(card, update_card(card.read_text(encoding="utf-8"), figures))


if __name__ == "__main__":
    main()
