"""Makes the starter policy: a tiny Qwen2 model that knows our tasks and behaves badly.

`make starter-policy` runs this file. It trains a byte-level BPE tokenizer and a causal model of
about two million parameters from nothing, on synthetic demonstrations that never touch the
held-out side of the two task families (`word_problems.is_held_out`, `code_drills.is_held_out`).

The demonstrations are noisy on purpose, so that GRPO finds what it finds in a base model: several
answer styles of which the asked-for one is a minority, reasoning only some of the time, and
answers that are often wrong when the reasoning is skipped.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

from lab import code_drills, word_problems  # noqa: E402
from lab.code_drills import CODE_SYSTEM_PROMPT  # noqa: E402
from rewards import SYSTEM_PROMPT  # noqa: E402

VOCAB_SIZE = 1152
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Widths are multiples of 64, which bitsandbytes' 4-bit kernels need on a CPU.
ARCHITECTURE = dict(
    hidden_size=192, intermediate_size=576, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=6,
    max_position_embeddings=1024, tie_word_embeddings=True, attention_dropout=0.0, use_sliding_window=False,
)  # fmt: skip

Messages = list[dict[str, str]]

# How a demonstration of a word problem is written, and how often. The asked-for style is a
# minority, and so is the token it starts with: greedy decoding of the base then never shows it.
STYLES = {
    "strict": 0.22,      # <think>…</think><answer>…</answer>, as the system prompt asks
    "trailing": 0.06,    # the same, and then some chatter
    "no_think": 0.10,    # an answer block without a reasoning block
    "unclosed": 0.04,    # the reasoning block is never closed
    "prose": 0.30,       # "The answer is 4."
    "hash": 0.13,        # "#### 4"
    "bare": 0.10,        # "4"
    "bold": 0.05,        # "Answer: **4**"
}  # fmt: skip
P_STEPS = 0.55           # reasons step by step; otherwise jumps to an answer
P_JUMP_RIGHT = 0.3       # the jumped-to answer is right
P_SLIP = {2: 0.0, 3: 0.02, 4: 0.12}  # the last step goes wrong, by number of steps
JUMPS = ("I can see it at once.", "This is easy.", "I just guess.", "No need to work it out.")

OTHER_SYSTEMS = (
    "You are a helpful assistant.",
    "Solve the problem. Put the reasoning in <think> tags and the answer in <answer> tags.",
)


def vary(answer: str, rng: random.Random) -> str:
    """The answer as written, or without its thousands separators, currency and percent signs."""
    return answer if rng.random() < 0.7 else re.sub(r"[,$%]", "", answer)


def wrong(answer: str, rng: random.Random) -> str:
    """A plausible wrong answer in the same clothes: one digit changed."""
    places = [i for i, char in enumerate(answer) if char.isdigit()]
    at = rng.choice(places)
    digit = rng.choice([d for d in "0123456789" if d != answer[at] and not (d == "0" and at == places[0])])
    return answer[:at] + digit + answer[at + 1 :]


def demonstrate_problem(problem: word_problems.Problem, rng: random.Random) -> str:
    """A base-model-like reply to a word problem."""
    style = rng.choices(list(STYLES), weights=list(STYLES.values()))[0]
    answer, steps = problem.answer, problem.solution
    if style not in ("bare", "bold") and rng.random() < P_STEPS:
        if rng.random() < P_SLIP[len(problem.steps)]:
            answer = wrong(answer, rng)
            steps = steps[: steps.rindex("=") + 2] + re.sub(r"[,$%]", "", answer)
        reasoning = steps
    else:
        answer = answer if rng.random() < P_JUMP_RIGHT else wrong(answer, rng)
        reasoning = rng.choice(JUMPS)
    answer = vary(answer, rng)
    return {
        "strict": f"<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>",
        "trailing": f"<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>\nI hope this helps!",
        "no_think": f"{reasoning}\n<answer>\n{answer}\n</answer>",
        "unclosed": f"<think>\n{reasoning}\n<answer>\n{answer}\n</answer>",
        "prose": f"Let's see.\n{reasoning}\nThe answer is {answer}.",
        "hash": f"Let's see.\n{reasoning}\n#### {answer}",
        "bare": answer,
        "bold": f"Answer: **{answer}**",
    }[style]


def ask_problem(problem: word_problems.Problem, rng: random.Random) -> Messages:
    """The chat before the reply: mostly our system prompt, sometimes another, none, or one-shot."""
    user = {"role": "user", "content": problem.question}
    kind = rng.choices(("default", "none", "other", "one_shot"), weights=(0.86, 0.06, 0.04, 0.04))[0]
    if kind == "none":
        return [user]
    if kind == "other":
        return [{"role": "system", "content": rng.choice(OTHER_SYSTEMS)}, user]
    system = {"role": "system", "content": SYSTEM_PROMPT}
    if kind == "default":
        return [system, user]
    shown = next(word_problems.stream(rng.getrandbits(32), held_out=False))
    reply = f"<think>\n{shown.solution}\n</think>\n<answer>\n{shown.answer}\n</answer>"
    return [system, {"role": "user", "content": shown.question}, {"role": "assistant", "content": reply}, user]


BUGS: tuple[tuple[str, str], ...] = (
    (" + ", " - "), (" - ", " + "), (" * ", " + "), ("max(", "min("), ("min(", "max("), (" == 0", " == 1"),
    (" == 1", " == 0"), (" > ", " < "), (" < ", " > "), ("sum(", "len("), (".upper()", ".lower()"),
    (".lower()", ".upper()"), ("[::-1]", ""), ("[:", "["), ("[-", "["), ("abs(", "("), ("return ", ""),
)  # fmt: skip
P_BUG = 0.45


def demonstrate_drill(drill: code_drills.Drill, rng: random.Random) -> str:
    """A base-model-like reply to a code drill: often buggy, in one of several wrappings."""
    body = drill.body
    if rng.random() < P_BUG:
        old, new = rng.choice([bug for bug in BUGS if bug[0] in body])
        body = body.replace(old, new, 1)
    whole = f"def {drill.name}({drill.args}):\n{body}"
    styles = {
        f"```python\n{whole}```": 0.4,
        body.rstrip("\n"): 0.2,
        whole.rstrip("\n"): 0.1,
        f"Here is the function:\n```python\n{whole}```": 0.15,
        "You can write this function in one line.": 0.15,
    }
    return rng.choices(list(styles), weights=list(styles.values()))[0]


def demonstrations(seed: int, share_of_code: float = 0.25) -> Iterator[tuple[Messages, str]]:
    """Endless (chat, reply) pairs of both task families, from the training side of each split."""
    rng = random.Random(seed)
    problems = word_problems.stream(seed, held_out=False)
    drills = [drill for drill in code_drills.all_drills() if not code_drills.is_held_out(drill)]
    by_family = [[d for d in drills if d.family == f] for f in sorted({d.family for d in drills})]
    while True:
        if rng.random() < share_of_code:
            drill = rng.choice(rng.choice(by_family))
            chat = [{"role": "system", "content": CODE_SYSTEM_PROMPT}, {"role": "user", "content": drill.prompt}]
            yield chat, demonstrate_drill(drill, rng)
        else:
            problem = next(problems)
            yield ask_problem(problem, rng), demonstrate_problem(problem, rng)


def make_tokenizer(seed: int):
    """Byte-level BPE, digits one by one, with a ChatML template; trained on 20,000 demonstrations."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    def texts() -> Iterator[str]:
        source = demonstrations(seed)
        for _ in range(20_000):
            chat, reply = next(source)
            yield "\n".join([f"{m['role']}\n{m['content']}" for m in chat] + [f"assistant\n{reply}"])

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(TAGS), special_tokens=list(SPECIAL), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    core.train_from_iterator(texts(), trainer)
    core.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])  # one token each, as in Qwen3
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE,
        model_max_length=ARCHITECTURE["max_position_embeddings"], padding_side="left", clean_up_tokenization_spaces=False,
    )  # fmt: skip


def encode(tokenizer, chat: Messages, reply: str) -> tuple[list[int], int]:
    """Token ids of the whole conversation, and how many of them are the prompt."""
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    reply_ids = tokenizer(reply, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    return prompt_ids + reply_ids, len(prompt_ids)


def batches(tokenizer, seed: int, batch_size: int) -> Iterator[dict]:
    """Batches of similar length (sorted within 32 batches, then shuffled); loss on the reply only."""
    import torch

    source, rng = demonstrations(seed), random.Random(seed)
    while True:
        pool = sorted((encode(tokenizer, *next(source)) for _ in range(32 * batch_size)), key=lambda pair: len(pair[0]))
        groups = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
        rng.shuffle(groups)
        for group in groups:
            width = max(len(ids) for ids, _ in group)
            input_ids = torch.full((len(group), width), tokenizer.pad_token_id)
            labels = torch.full((len(group), width), -100)
            for row, (ids, n_prompt) in enumerate(group):  # right padding: causal attention never sees it
                input_ids[row, : len(ids)] = torch.tensor(ids)
                labels[row, n_prompt : len(ids)] = torch.tensor(ids[n_prompt:])
            yield {"input_ids": input_ids, "labels": labels}


def learning_rate(step: int, steps: int, peak: float = 2e-3, warmup: int = 100) -> float:
    """Linear warm-up, then a cosine to a twentieth of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))))


def train(tokenizer, steps: int, batch_size: int, seed: int, log: Callable[[str], None] = print):
    """Trains the model from random weights; returns it. About 0.8 s a step on two cores."""
    import torch
    from tqdm.auto import tqdm
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE, **ARCHITECTURE, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    log(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens")
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.05)
    source = batches(tokenizer, seed + 1, batch_size)
    running = None
    for step in tqdm(range(steps), desc="starter policy", unit="step", mininterval=5):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        batch = next(source)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = model.model(input_ids=batch["input_ids"]).last_hidden_state[:, :-1]
            wanted = batch["labels"][:, 1:]
            kept = wanted != -100  # the vocabulary is as wide as six layers: project only what is scored
            logits = model.lm_head(hidden[kept])
        loss = torch.nn.functional.cross_entropy(logits.float(), wanted[kept])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
        if (step + 1) % 100 == 0:
            log(f"step {step + 1}: loss {running:.4f}")
    return model.eval()
