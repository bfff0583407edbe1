"""Where reasoning and the final answer stand in a completion, for a browser to mark them."""

import re
from collections.abc import Sequence

import pandas as pd

import rewards
from lab.files import Row


def asked_format(prompts: Sequence[str]) -> rewards.Format:
    """The format whose marks the prompts ask for; the one in use here where they name none."""
    known = (rewards.FORMAT, rewards.TagFormat(), rewards.BoxedFormat(), rewards.HashFormat())
    asked = (format for format in known if prompts and all(mark in prompts[0] for mark in format.marks))
    return next(asked, rewards.FORMAT)


def format_marks(format: rewards.Format) -> list[Row]:
    """The pairs of marks that set reasoning and answer apart; an answer that ends with its line closes with a line break."""
    marks = [*format.marks, "\n"] if len(format.marks) == 1 else format.marks
    kinds = ("reasoning", "answer")[-(len(marks) // 2) :]
    return [{"open": marks[2 * i], "close": marks[2 * i + 1], "kind": kind} for i, kind in enumerate(kinds)]


def with_spans(rows: pd.DataFrame, format: rewards.Format) -> pd.DataFrame:
    """The table with `answer`: where each completion's extracted answer stands; None without one, and in cut texts."""
    spans = [None if cut else answer_span(text, format) for text, cut in zip(rows["text"], rows["cut"])]
    return rows.assign(answer=pd.Series(spans, rows.index, dtype=object))


def answer_span(text: str, format: rewards.Format) -> list[int] | None:
    """[start, end) of the answer that `rewards.extract_answer` finds, in UTF-16 code units; None without one.

    >>> answer_span("<think>😀</think><answer> 4 </answer>", rewards.TagFormat())
    [26, 27]
    """
    answer = rewards.extract_answer(text, format)
    if answer is None:
        return None
    *reasoning, mark = format_marks(format)
    thoughts = range(0)
    if reasoning and reasoning[0]["close"] in text:
        thoughts = range(max(0, text.find(reasoning[0]["open"])), text.rfind(reasoning[0]["close"]))
    openings = [found for found in re.finditer(re.escape(mark["open"]) + r"\s*", text) if found.start() not in thoughts]
    starts = [found.end() for found in openings if text.startswith(answer, found.end())]
    return [utf16_length(text[: starts[-1]]), utf16_length(text[: starts[-1] + len(answer)])] if starts else None


def utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le", errors="surrogatepass")) // 2
