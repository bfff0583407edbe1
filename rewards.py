"""Reward functions for GRPO: read them, change them, write your own.

Write the score of ONE completion, put `@reward` on it, and it is a TRL reward function:

>>> @reward
... def brevity_reward(completion: str) -> float:
...     '''Whether the completion is short. Returns 0 or 1.'''
...     return 1.0 if len(completion) < 40 else 0.0
>>> brevity_reward.score("short")
1.0
>>> brevity_reward(prompts=["p", "p"], completions=["short", "l" + "o" * 50 + "ng"])
[1.0, 0.0]

The contract (`scoring/README.md` says more):
- The parameter `completion` gets the text, `prompt` the prompt, any other the data-set column of that name.
  A function with a parameter `completions` gets a whole group and returns a list.
- Scores lie in [0, 1] unless the decorator declares another range. NaN, inf and what is no number raise an error.
- `None` means that the prompt or the gold answer cannot be scored, never that the completion is bad.
- A failure (`RewardFailure`, a timeout, a lost connection) is counted, logged and neutral: the completion gets the mean
  of its group. Any other exception is a bug and stops the run.

`python rewards.py` prints the table of all rewards. Nothing here imports torch or notebook code. math-verify, sacrebleu,
rouge-score, jsonschema and openai are imported by the rewards that need them, at the first call.
"""

import ast
import asyncio
import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from scoring import answers, formats, mathematics, structured
from scoring import code as code_search
from scoring.answers import (
    extract_answer,
    extract_gsm8k_answer,
    extract_reasoning,
    final_text,
    gold_text,
    same_answer,
    split_completion,
)
from scoring.batch import Batch, assistant_prefix, completion_text, count_tokens, message_text, question_text
from scoring.code import DOUBLE, extract_code, function_prompt
from scoring.combine import AdoptedFunction, CombinedReward, adopt, cached, gate, prepare_rewards, rename, rescale
from scoring.contract import (
    REGISTRY,
    MissingColumnError,
    RewardError,
    RewardFailure,
    RewardFunction,
    is_failure,
    register,
    reward,
)
from scoring.formats import FORMAT, SYSTEM_PROMPT, BoxedFormat, Format, HashFormat, MarkedFormat, TagFormat
from scoring.judge import DEFAULT_JUDGE, Judge
from scoring.numbers import extract_number, read_number, same_number, units_differ
from scoring.structured import arithmetic, best_schedule
from scoring.text import bleu_scorer, count_steps, ngrams, reference_and_text, rouge_f_measure

__all__ = ["format_reward", "soft_format_reward", "correctness_reward", "math_reward", "numeric_closeness_reward"]
__all__ += ["multiple_choice_reward", "bleu_reward", "rouge_reward", "json_reward", "countdown_reward"]
__all__ += ["schedule_reward", "code_reward", "syntax_reward", "length_reward", "cosine_length_reward"]
__all__ += ["soft_overlong_reward", "repetition_reward", "reasoning_steps_reward", "style_reward", "diversity_reward"]
__all__ += ["judge_reward", "debug_reward"]
# what rewards are made with
__all__ += ["reward", "adopt", "gate", "rescale", "rename", "cached", "prepare_rewards", "register", "REGISTRY"]
__all__ += ["registry_table", "RewardFunction", "AdoptedFunction", "CombinedReward", "Batch", "Judge"]
__all__ += ["RewardError", "RewardFailure", "MissingColumnError", "is_failure"]
# what completions are read with
__all__ += ["FORMAT", "SYSTEM_PROMPT", "Format", "TagFormat", "MarkedFormat", "BoxedFormat", "HashFormat"]
__all__ += ["split_completion", "extract_reasoning", "extract_answer", "final_text", "extract_number", "extract_code"]
__all__ += ["extract_gsm8k_answer", "gold_text", "same_answer", "count_tokens", "completion_text", "message_text"]
__all__ += ["question_text", "assistant_prefix", "function_prompt", "arithmetic", "best_schedule"]


@reward
def format_reward(completion: str) -> float:
    """Whether the completion has exactly the asked-for format. Returns 0 or 1.

    >>> format_reward.score("<think>2 + 2 = 4</think><answer>4</answer>")
    1.0
    >>> format_reward.score("<think></think><answer>4</answer>")
    0.0
    """
    return 1.0 if split_completion(completion) else 0.0


@reward
def soft_format_reward(completion: str) -> float:
    """How much of the asked-for format is there: what GRPO can climb while nobody has the strict one yet.

    Returns 0, 0.2, … 0.8, or 1 for the strict format: a fifth for each mark in its place (once, in order, with content
    beside it, nothing after the last), a fifth for the whole.

    >>> soft_format_reward.score("It is <answer>4</answer>")
    0.4
    >>> soft_format_reward.score("<think>2 + 2 = 4</think><answer>4</answer> Bye!")
    0.6
    """
    return 1.0 if split_completion(completion) else sum(formats.FORMAT.in_place(completion)) / 5


@reward
def correctness_reward(completion: str, answer: Any) -> float | None:
    """Whether the final answer is the gold answer, numbers compared exactly and texts as texts.

    Returns 0 or 1; None for a missing gold. What stands in the reasoning does not count, and neither do two answers, a
    hedge, or an answer that is taken back after it.

    >>> correctness_reward.score("<think>3 * 400</think><answer>$1,200</answer>", answer="1200")
    1.0
    >>> correctness_reward.score("<think>1200</think><answer>about 1200</answer>", answer="1200")
    0.0
    """
    gold = gold_text(answer)
    if gold is None:
        return None
    given = extract_answer(completion)
    return 1.0 if given is not None and (given == gold or same_answer(given, gold)) else 0.0


@reward
def math_reward(completion: str, answer: Any, *, time_limit: float = 1.0) -> float | None:
    """Whether the final answer is mathematically equal to the gold: numbers exactly, expressions symbolically.

    Returns 0 or 1; None for a missing gold. An expression goes to math-verify (Hugging Face) in a process of its own,
    which gives up after `time_limit` seconds of work. 1.414 for √2 and `3 * 4` for 12 count as wrong.

    >>> math_reward.score(r"<answer>\\frac{1}{2}</answer>", answer="0.5")
    1.0
    >>> math_reward.score("<answer>0.33</answer>", answer="1/3")
    0.0
    """
    gold = gold_text(answer)
    if gold is None:
        return None
    given = extract_answer(completion)
    if given is None or given == gold:
        return float(given is not None)
    wanted, found = read_number(gold), read_number(given)
    if wanted and found:
        return 1.0 if same_number(found, wanted) else 0.0
    too_long = max(len(given), len(gold)) > mathematics.LONGEST_EXPRESSION
    if too_long or wanted is None and not mathematics.is_mathematics(gold):
        return 1.0 if wanted is None and answers.same_text(given, gold) else 0.0
    given, gold = mathematics.unwrap_formula(given), mathematics.unwrap_formula(gold)
    if "".join(given.split()) == "".join(gold.split()):
        return 1.0
    equal = mathematics.is_expression(given, gold) and mathematics.symbolically_equal(gold, given, time_limit)
    return 1.0 if equal else 0.0


@reward
def numeric_closeness_reward(completion: str, answer: Any, *, within: float = 0.5) -> float | None:
    """How near a numeric answer is to the gold: 1 for exactly right, at most 0.5 for near.

    Returns 1 for the exact value, else 0.5 falling linearly to 0 at a relative error of `within` (relative to the gold,
    or to 1 where the gold is smaller); None for a gold that is no number.

    >>> numeric_closeness_reward.score("<answer>90</answer>", answer="100")
    0.4
    """
    wanted, found = read_number(gold_text(answer) or ""), read_number(extract_answer(completion) or "")
    if wanted is None:
        return None
    if found is None or units_differ(found[1], wanted[1]):
        return 0.0
    if same_number(found, wanted):
        return 1.0
    error = abs(found[0] - wanted[0]) / max(abs(wanted[0]), 1) / Fraction(within)
    return 0.5 * float(1 - error) if error < 1 else 0.0


@reward(claims_correctness=True, example={"choices": ["Lima", "Paris", "Rome"], "answer": "B", "right": "B"})
def multiple_choice_reward(completion: str, answer: Any, choices: Any = None) -> float | None:
    """Whether the final answer names the right choice, by its letter, by its text, or by both in agreement.

    Returns 0 or 1; None for a gold that is missing or not among the choices. The gold is a letter, a
    choice's text, or its index (an int, from 0); `choices` is a list of texts.

    >>> multiple_choice_reward.score("<answer>(B) Paris</answer>", answer="B", choices=["Lima", "Paris"])
    1.0
    >>> multiple_choice_reward.score("<answer>A or B</answer>", answer="B", choices=["Lima", "Paris"])
    0.0
    """
    texts = [answers.plain_text(str(choice)) for choice in (() if choices is None else choices)]
    wanted = structured.choice_index(answer, texts)
    if wanted is None:
        return None
    return 1.0 if structured.chosen_index(extract_answer(completion) or "", texts) == wanted else 0.0


@reward(claims_correctness=False)  # a likeness, not a verdict
def bleu_reward(completion: str, answer: Any) -> float | None:
    """How much the final text shares with a reference text, in n-gram precision (sentence BLEU, sacrebleu).

    Returns 0 to 1 (BLEU / 100, effective order; Papineni et al. 2002); None for a missing reference.

    >>> bleu_reward.score("<answer>the cat sat on the mat</answer>", answer="the cat sat on the mat")
    1.0
    """
    pair = reference_and_text(completion, answer)
    return None if pair is None else min(1.0, round(bleu_scorer().sentence_score(pair[1], [pair[0]]).score, 9) / 100)


@reward(claims_correctness=False)
def rouge_reward(completion: str, answer: Any, *, kind: str = "rougeL") -> float | None:
    """How much of a reference text the final text covers, as an F-measure (ROUGE, rouge-score).

    Returns 0 to 1 (Lin 2004); None for a missing reference. `kind` is rouge1, rouge2 or rougeL. Of a long text,
    ROUGE-L being quadratic, the first 1,000 words are compared.

    >>> rouge_reward.score("<answer>the cat sat</answer>", answer="the cat sat")
    1.0
    """
    pair = reference_and_text(completion, answer)
    return None if pair is None else rouge_f_measure(*pair, kind)


@reward(claims_correctness=True, example={"schema": structured.PERSON, "right": '{"name": "Ann", "age": 31}'})
def json_reward(completion: str, schema: Any) -> float | None:
    """Whether the final text is JSON, and how much of a JSON Schema it holds.

    Returns 0 for what does not parse (also NaN, doubled keys, text around it), 0.2 for any JSON, up to 1 with the
    share of the schema held: each required or present property and each other keyword counts once. None for a
    missing or invalid schema. Give it as JSON text: a data set's nested columns get all their keys filled with None.

    >>> json_reward.score('{"age": "old"}', schema={"type": "object", "properties": {"age": {"type": "integer"}}})
    0.6
    """
    validator = structured.json_validator(schema if isinstance(schema, str) else json.dumps(schema, default=str))
    if validator is None:
        return None
    text = final_text(completion)
    fenced = structured.JSON_FENCE.fullmatch(text)
    try:
        value = structured.strict_json(fenced[1] if fenced else text)
        return round(0.2 + 0.8 * structured.schema_share(validator, value), 9)
    except (ValueError, ArithmeticError, RecursionError):
        return 0.0


@reward(claims_correctness=True, example={"numbers": [3, 4, 5], "target": 17, "right": "3 * 4 + 5"})
def countdown_reward(completion: str, numbers: Sequence[int], target: Any) -> float | None:
    """Whether the final answer is an expression that reaches the target with every number exactly once.

    Returns 0 or 1; None for missing numbers or target. Only whole numbers, + − × ÷ and parentheses;
    "= target" may follow. Exact fractions, a syntax tree instead of `eval`.

    >>> countdown_reward.score("<answer>(5 - 3) * 4 = 8</answer>", numbers=[3, 4, 5], target=8)
    1.0
    >>> countdown_reward.score("<answer>2.5 * 4</answer>", numbers=[2, 5, 4], target=10)
    0.0
    """
    wanted, given_numbers = extract_number(str(target)), structured.whole_numbers(numbers)
    if wanted is None or not given_numbers:
        return None
    expression, equals, result = mathematics.unwrap_formula(extract_answer(completion) or "").partition("=")
    if equals and extract_number(result) != wanted:
        return 0.0
    value, used = arithmetic(expression) or (None, [])
    return 1.0 if value == wanted and sorted(used) == sorted(given_numbers) else 0.0


@reward(claims_correctness=True, example=structured.MORNING)
def schedule_reward(completion: str, events: Any) -> float | None:
    """How good a schedule without overlaps is: the weight of its events, as a share of the best possible.

    Returns 0 to 1; 0 for an overlap, a repeated or unknown event, or a changed time; None for events that cannot be
    used. The final answer has one line an event, `09:15-10:00 Review`; `events` is a list (or its JSON) of name, start,
    end (HH:MM) and weight (default 1). The best: weighted interval scheduling (Kleinberg and Tardos 2005, section 6.1).

    >>> events = [{"name": "A", "start": "9:00", "end": "10:00"}, {"name": "B", "start": "10:00", "end": "11:00"}]
    >>> schedule_reward.score("<answer>09:00-10:00 A</answer>", events=events)
    0.5
    """
    known = structured.read_events(events)
    if not known:
        return None
    chosen = structured.read_schedule(extract_answer(completion) or "")
    if chosen is None or len(set(chosen)) < len(chosen) or any(event not in known for event in chosen):
        return 0.0
    if any(after[0] < before[1] for before, after in itertools.pairwise(chosen)):
        return 0.0
    return min(1.0, sum(known[event] for event in chosen) / best_schedule(known))


@reward(claims_correctness=True, example=DOUBLE)
async def code_reward(
    completion: str, prompt: Any, test: Any, entry_point: str, code_prompt: Any = None, *, sandbox: Any = None
) -> float | None:
    """The share of a test's assertions that the completion's function holds, run in a sandbox.

    Returns 0 to 1, and 1 only where all hold; 0 for an answer without code; None for a problem without a test, or with
    one that the sandbox cannot split (see `sandbox.Verdict`). `prompt`, `test` and `entry_point` are HumanEval's. Where
    the chat says more than the function's head, the column `code_prompt` has the head. A lost worker or a broken test
    is neutral within the group, and counted. A batch is judged in parallel, equal completions once.

    >>> code_reward.score("def f(n):\\n    return 4", test="assert f(2) == 4\\nassert f(3) == 6", entry_point="f")
    0.5
    """
    if isinstance(test, (list, tuple)) and all(isinstance(line, str) for line in test):
        test = "\n".join(test)  # MBPP's
    if not isinstance(test, str) or not test.strip() or not entry_point:
        return None
    code = extract_code(completion, entry_point)
    if code is None:
        return 0.0
    runner = sandbox or code_search.default_sandbox()
    head = function_prompt(prompt, entry_point, code_prompt)
    verdict = await asyncio.wrap_future(runner.submit(head, code, test, entry_point))
    if verdict.status == "error":
        raise RewardFailure(verdict.why)
    return None if verdict.status == "unsupported" else verdict.score


@reward(claims_correctness=False, example=DOUBLE)
def syntax_reward(completion: str, prompt: Any, entry_point: str, code_prompt: Any = None) -> float:
    """Whether the answer is Python that defines the function that was asked for; nothing is run.

    Returns 0 without code that parses, 0.5 for code that parses, 1 where it defines the entry point (or is its body)
    and returns something. A slope for a policy that does not write code yet; it says nothing about being right.

    >>> syntax_reward.score("def f(n):\\n    return n", entry_point="f"), syntax_reward.score("def g(): ...", entry_point="f")
    (1.0, 0.5)
    """
    from sandbox import bodies

    code = extract_code(completion, entry_point)
    if code is None or len(code) > code_search.LONGEST_CODE:
        return 0.0
    head = function_prompt(prompt, entry_point, code_prompt)
    trees = filter(None, map(code_search.parse_python, [code, *bodies(head, code)]))  # a module by itself, or a body
    tree = next((tree for tree in trees if not any(isinstance(node, ast.Return) for node in tree.body)), None)
    if tree is None:
        return 0.0
    return 1.0 if any(code_search.returns_a_value(node, entry_point) for node in tree.body) else 0.5


@reward
def length_reward(
    completion: str, completion_ids: Sequence[int] | None = None, *, shortest: int = 20, longest: int = 200
) -> float:
    """Whether the completion's length lies in a band, in tokens.

    Returns 1 from `shortest` to `longest`, falling linearly to 0 at no tokens and at twice `longest`.
    Gate it by correctness: length alone is easily farmed.

    >>> length_reward.score("x" * 40), length_reward.score("x" * 1200)
    (0.5, 0.5)
    """
    n = count_tokens(completion, completion_ids)
    return n / shortest if n < shortest else min(1.0, max(0.0, 2 - n / longest))


@reward
def cosine_length_reward(
    completion: str,
    answer: Any,
    completion_ids: Sequence[int] | None = None,
    *,
    max_tokens: int = 512,
    right_short: float = 1.0,
    right_long: float = 0.5,
    wrong_short: float = 0.0,
    wrong_long: float = 0.0,
) -> float | None:
    """Whether the answer is right, worth more when short, on a cosine over the length (clamped beyond it).

    Returns `right_short` to `right_long` for a right answer, `wrong_short` to `wrong_long` for a wrong one, reached at
    `max_tokens`; None for a missing gold. The shape is that of Yeo et al. 2025 (Demystifying Long Chain-of-Thought,
    section 4). Their wrong answers gain with length, which pays for padding: here it must be asked for.

    >>> halfway = "<think>" + "hm " * 336 + "</think><answer>4</answer>"
    >>> round(cosine_length_reward.score(halfway, answer="4"), 2), cosine_length_reward.score(halfway, answer="5")
    (0.74, 0.0)
    """
    verdict = correctness_reward.function(completion, answer)
    if verdict is None:
        return None
    short, long = (right_short, right_long) if verdict else (wrong_short, wrong_long)
    progress = min(1.0, count_tokens(completion, completion_ids) / max_tokens)
    return long + (short - long) * (1 + math.cos(math.pi * progress)) / 2


@reward
def soft_overlong_reward(
    completion: str, completion_ids: Sequence[int] | None = None, *, max_tokens: int = 512, buffer_tokens: int = 128
) -> float:
    """Whether the completion stays clear of the length limit: DAPO's soft punishment, moved up by 1.

    Returns 1 up to `max_tokens - buffer_tokens`, falling linearly to 0 at `max_tokens`, and 0 beyond
    (Yu et al. 2025, equation 13, gives 0 to −1; a constant does not change an advantage).

    >>> soft_overlong_reward.score("x" * 4 * 448)
    0.5
    """
    over = count_tokens(completion, completion_ids) - (max_tokens - buffer_tokens)
    return min(1.0, max(0.0, 1 - over / buffer_tokens))


@reward
def repetition_reward(completion: str, *, n: int = 3) -> float:
    """How little the completion repeats itself: the share of its n-grams that are different.

    Returns 0 to 1: near 0 for a loop; a completion of fewer than n words gets 1, an empty one 0.

    >>> repetition_reward.score("one two three four"), round(repetition_reward.score("go on " * 100), 2)
    (1.0, 0.01)
    """
    found = ngrams(completion, n)
    return len(set(found)) / len(found) if found else float(formats.has_words(completion))


@reward
def reasoning_steps_reward(completion: str, *, steps: int = 3) -> float:
    """Whether the reasoning has several different steps: lines or sentences of at least three words.

    Returns 0 to 1, reached at `steps`. A repeated step counts once, and "First, First, First" is none:
    only the words behind such a mark count. It cannot see whether a step is true: gate it.

    >>> reasoning_steps_reward.score("<think>3 * 4 = 12\\nThen add 5: 17\\n3 * 4 = 12</think>") == 2 / 3
    True
    """
    return count_steps(extract_reasoning(completion) or "", most=steps) / steps


UNWANTED = (r"\bas an ai\b", r"\bi(?:'m| am) (?:sorry|just an?)\b", r"\bi hope this helps\b", r"\blet me know if\b")
UNWANTED += (r"^\s*(?:sure|certainly|of course|absolutely)\b", r"\bgreat question\b")
UNWANTED += (r"!{2,}", r"\b(?:delve|tapestry)\b")


@reward
def style_reward(completion: str, *, unwanted: Sequence[str] = UNWANTED) -> float:
    """How free the text outside the reasoning is of unwanted patterns (regular expressions, any case).

    Returns 1 for none, 0.25 less for each different pattern that occurs, not below 0; 0 for an empty
    text. Write patterns that are linear: no nested repeats.

    >>> style_reward.score("<think>Sure?</think><answer>12</answer>"), style_reward.score("Sure! I hope this helps!!")
    (1.0, 0.25)
    """
    text = formats.FORMAT.outside(completion)
    hits = sum(re.search(pattern, text, re.IGNORECASE) is not None for pattern in unwanted)
    return max(0.0, 1 - hits / 4) if formats.is_visible(text) else 0.0


@reward
def diversity_reward(completions: Sequence[str], *, n: int = 2) -> list[float]:
    """How different a completion is from the others of its group, against mode collapse.

    Returns for each 0 (all others have the same n-grams of words) to 1 (they share none): the mean
    Jaccard distance to the others; 1 in a group of one. Noise is different too: gate it by correctness.

    >>> diversity_reward(prompts=["p"] * 3, completions=["a b c", "a b c", "x y z"])
    [0.5, 0.5, 1.0]
    """
    sets = [set(ngrams(text, n)) or {(text.strip(),)} for text in completions]
    if len(sets) < 2:
        return [1.0] * len(sets)
    return [sum(1 - len(one & other) / len(one | other) for other in sets) / (len(sets) - 1) for one in sets]


@reward
async def judge_reward(completion: str, prompt: Any, answer: Any = None, *, judge: Judge = DEFAULT_JUDGE) -> float:
    """What a language model behind an OpenAI-compatible endpoint thinks of the final text, by a rubric.

    Returns 0 to 1. Only the text outside the reasoning is shown to the judge; an empty one gets 0 without a call. A
    judge that cannot be reached, has no budget left, or replies anything but a grade is neutral within the group.
    Set it up with `judge_reward.with_options(judge=Judge(model="…", base_url="…", cache="judge.sqlite"))`.

    >>> judge_reward.score("<think>hm</think>", prompt="Say hello.")
    0.0
    """
    text = final_text(completion)
    return await judge.grade(question_text(prompt), text, gold_text(answer)) if formats.is_visible(text) else 0.0


@reward(high=0.0)
def debug_reward(
    completions: Sequence[str], log_extra: Callable, trainer_state: Any, answer: Any = None, *, every: int = 10
) -> list[float]:
    """Always 0: prints a completion of the group now and then, and logs what extraction finds in each.

    Returns 0 for every completion, so that it changes nothing at any weight. It prints at every `every`-th step, and
    adds the columns `extracted_answer` and `strict_format` to the run's table.
    """
    found, step = [extract_answer(text) for text in completions], getattr(trainer_state, "global_step", 0)
    log_extra("extracted_answer", found)
    log_extra("strict_format", [split_completion(text) is not None for text in completions])
    if step % every == 0:
        print(f"--- step {step}, gold {answer!r}, extracted {found[0]!r}:\n{completions[0][:1000]}")
    return [0.0] * len(completions)


REGISTRY |= {value.__name__: value for value in list(globals().values()) if isinstance(value, RewardFunction)}


def registry_table() -> str:
    """The registry as a Markdown table: name, range, needed columns, purpose."""
    lines = ["| reward | range | columns | purpose |", "|---|---|---|---|"]
    for name, function in REGISTRY.items():
        columns = ", ".join(f"`{column}`" for column in function.columns) or "–"
        lines.append(f"| `{name}` | {function.low:g} to {function.high:g} | {columns} | {function.purpose} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(registry_table())
