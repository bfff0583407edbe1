"""How a completion marks its reasoning and its final answer. `FORMAT`, on the last lines, is the format in use."""

import functools
import re
import unicodedata
from dataclasses import dataclass

FILLERS = "\u115f\u1160\u3164\uffa0\u2800"  # letters and symbols that are drawn as nothing
WORDS = re.compile(rf"[^\W_{FILLERS}]")
CLOSERS = " \t\r\n.$"  # what may close a sentence or a formula after a boxed answer


def has_words(text: str) -> bool:
    """Whether there is a letter or a digit: dots and zero-width characters are no reasoning."""
    return WORDS.search(text) is not None


def is_visible(text: str) -> bool:
    """Whether a reader would see anything: white space, control, combining and zero-width characters do not count."""
    return has_words(text) or any(unicodedata.category(char)[0] not in "ZCM" for char in set(text).difference(FILLERS))


class Format:
    """How a completion marks its reasoning and its final answer. A subclass defines:

    write(reasoning, answer): a completion in this format.
    split(completion): (reasoning, answer) of a strictly formatted completion, None for anything else.
    reasoning(completion): the reasoning, or None where there is none, several, or it is never closed.
    find_answer(completion): (text before it, the one answer outside the reasoning, text after it), or None.
    outside(completion): the text without its reasoning; where that never ends, only the text before it.
    in_place(completion): for each of four parts of the format, whether it stands where it should.
    """

    marks: tuple[str, ...]  # what the format asks to be written, in order
    opening = ""  # the beginning of a completion that a prompt may already contain
    system_prompt: str


@dataclass(frozen=True)
class TagFormat(Format):
    """One reasoning block, then one answer block: `<think>…</think><answer>…</answer>`."""

    thoughts: str = "think"
    final: str = "answer"

    @functools.cached_property
    def marks(self) -> tuple[str, str, str, str]:
        return f"<{self.thoughts}>", f"</{self.thoughts}>", f"<{self.final}>", f"</{self.final}>"

    @functools.cached_property
    def opening(self) -> str:
        return self.marks[0]

    @property
    def system_prompt(self) -> str:
        thoughts, final = " and ".join(self.marks[:2]), " and ".join(self.marks[2:])
        return f"Think step by step between {thoughts}, then give only the final answer between {final}."

    def write(self, reasoning: str, answer: str) -> str:
        return "{}\n{reasoning}\n{}\n{}\n{answer}\n{}".format(*self.marks, reasoning=reasoning, answer=answer)

    def split(self, completion: str) -> tuple[str, str] | None:
        # Counting instead of one regular expression: lazy groups in a row are quadratic on repeated tags.
        if any(completion.count(tag) != 1 for tag in self.marks) or not all(self.in_place(completion)):
            return None
        pairs = zip(self.marks, self.marks[1:])
        reasoning, between, answer = (completion.partition(one)[2].partition(two)[0].strip() for one, two in pairs)
        return None if between else (reasoning, answer)

    def reasoning(self, completion: str) -> str | None:
        opening, closing = self.marks[:2]
        if completion.count(opening) != 1 or completion.count(closing) != 1:
            return None
        reasoning, found, _ = completion.partition(opening)[2].partition(closing)
        return reasoning.strip() if found else None

    def find_answer(self, completion: str) -> tuple[str, str, str] | None:
        open_reasoning, close_reasoning, opening, closing = self.marks
        if completion.count(opening) != 1 or open_reasoning in completion or close_reasoning in completion:
            doubled_or_open = completion.count(open_reasoning) > 1 or completion.count(close_reasoning) != 1
            if doubled_or_open or open_reasoning in completion.partition(close_reasoning)[2]:
                return None
            completion = self.outside(completion)
            if completion.count(opening) != 1:
                return None
        before, found, rest = completion.partition(opening)
        answer, closed, after = rest.partition(closing)
        if not found or not closed or closing in before or closing in after:
            return None
        answer = answer.strip()
        return (before, answer, after) if is_visible(answer) else None

    def outside(self, completion: str) -> str:
        opening, closing = self.marks[:2]
        begin, end = completion.find(opening), completion.rfind(closing)
        if end < 0:
            return completion if begin < 0 else completion[:begin]
        return (completion[:begin] if 0 <= begin < end else "") + completion[end + len(closing) :]

    def in_place(self, completion: str) -> list[bool]:
        first, second, third, last = (completion.find(tag) if completion.count(tag) == 1 else -1 for tag in self.marks)
        reasoning = completion[first + len(self.marks[0]) : second if second >= 0 else max(third, 0) or None]
        answer = completion[third + len(self.marks[2]) : last if last >= 0 else None]
        reasons, answers = has_words(reasoning), is_visible(answer)
        return [
            first >= 0 and not completion[:first].strip() and reasons and (second < 0 or first < second),
            0 <= first < second and reasons,
            third > second and (second < 0 or 0 <= first < second) and answers and (last < 0 or third < last),
            0 <= third < last and answers and completion.rstrip().endswith(self.marks[3]),
        ]


class MarkedFormat(Format):
    """Free reasoning, then one marked answer at the end. Base of `BoxedFormat` and `HashFormat`, which define:

    find(completion): (where the marker begins, the answer, the text after it) of the only marker, or None.
    """

    def split(self, completion: str) -> tuple[str, str] | None:
        found = self.find(completion)
        return (completion[: found[0]].strip(), found[1]) if all(self.in_place(completion)) else None

    def reasoning(self, completion: str) -> str | None:
        found = self.find(completion)
        return completion[: found[0]].strip() if found else None

    def find_answer(self, completion: str) -> tuple[str, str, str] | None:
        found = self.find(completion)
        return ("", found[1], found[2]) if found and is_visible(found[1]) else None  # before it is all reasoning

    def outside(self, completion: str) -> str:
        found = self.find(completion)
        return completion[found[0] :] if found else completion

    def in_place(self, completion: str) -> list[bool]:
        found = self.find(completion)
        if not found:
            return [False] * 4
        return [True, has_words(completion[: found[0]]), is_visible(found[1]), not found[2].strip(CLOSERS)]


@dataclass(frozen=True)
class BoxedFormat(MarkedFormat):
    r"""Free reasoning, then the answer in one `\boxed{…}`, as mathematical models are trained to write it."""

    marks = ("\\boxed{", "}")
    system_prompt = "Think step by step, then give only the final answer in \\boxed{}."

    def write(self, reasoning: str, answer: str) -> str:
        return f"{reasoning}\n\\boxed{{{answer}}}"

    def find(self, completion: str) -> tuple[int, str, str] | None:
        if completion.count("\\boxed{") != 1:
            return None
        before, _, inside = completion.partition("\\boxed{")
        depth = 1
        for brace in re.finditer(r"[{}]", inside):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                rest = re.sub(r"^\s*\\[)\]]", "", inside[brace.end() :])  # closes an inline or display formula
                return len(before), inside[: brace.start()].strip(), rest
        return None


@dataclass(frozen=True)
class HashFormat(MarkedFormat):
    """Free reasoning, then one last line `#### answer`, as in GSM8K's solutions."""

    marks = ("####",)
    system_prompt = "Think step by step, then give only the final answer on a last line that begins with ####."

    def write(self, reasoning: str, answer: str) -> str:
        return f"{reasoning}\n#### {answer}"

    def find(self, completion: str) -> tuple[int, str, str] | None:
        start = completion.find("####")
        if start < 0 or completion.find("####", start + 4) >= 0 or completion[:start].rpartition("\n")[2].strip():
            return None
        answer, _, rest = completion[start + 4 :].partition("\n")
        return start, answer.strip(), rest


# Choose the format here: the system prompt, extraction and the format rewards follow. Others are BoxedFormat(),
# HashFormat() and TagFormat("reasoning", "answer"). Run notebook 01 again after a change.
FORMAT: Format = TagFormat()
SYSTEM_PROMPT = FORMAT.system_prompt
