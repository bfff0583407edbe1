"""The completions page: one HTML file that needs no server and no network, and the same page inside a notebook.

The pages of a run and of an evaluation share it. A payload holds all that a page shows as JSON values (`page.js` says
what it reads), packed as gzip and base64, so that no text that a model wrote stands in the HTML. The page may run its
own script alone, which its Content-Security-Policy knows by hash.
"""

import base64
import datetime
import gzip
import hashlib
import html
import json
import math
import numbers
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import rewards
from lab.files import Row, relative, write_text
from lab.page.answer_marks import format_marks
from lab.read.completions import ScoreColumn

PAGE_FOLDER = Path(__file__).parent
DIGITS = 6  # significant ones of a number in the page
EXACT = 2**53  # from here on a browser's numbers skip some integers: larger ones are texts
REPEATED = 20  # characters: a shorter value, such as a name, stands in a prompt by chance
SET, TRAINING, HELD_OUT = "set", "training", "held out"  # a column of the prompts, where there are held-out ones
POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'"
)


def write_page_file(payload: Row, path: Path) -> Path:
    """Writes the page of a payload, whole or not at all, and says where, how big, and what it lacks."""
    write_text(path, page_html(payload))
    size = path.stat().st_size
    words = f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.0f} kB"
    notes = filter(None, [payload["selection"]["left_out"], *payload["run"]["notes"]])
    print("\n  ".join([f"{relative(path)} ({words}): {payload['selection']['said']}", *notes]))
    return path


def show_page(path: Path) -> Any:
    """The page inside a notebook (Jupyter, Colab, VS Code), in a frame that reaches nothing outside of it."""
    from IPython.display import HTML

    text = html.escape(path.read_text(encoding="utf-8"))
    return HTML(
        f'<div><iframe title="Completions" srcdoc="{text}" sandbox="allow-scripts allow-downloads" width="100%" '
        'height="780" style="border: 1px solid #8888; border-radius: 6px"></iframe></div>'
    )


def page_html(payload: Row) -> str:
    """The page of a payload: the template with its style, script and data."""
    names = ("page.html", "page.css", "page.js")
    template, style, script = ((PAGE_FOLDER / name).read_text(encoding="utf-8") for name in names)
    title = payload["run"]["name"] if "models" in payload else f"Completions of {payload['run']['name']}"
    title = title.replace("\0", "␀").encode("utf-8", errors="replace").decode("utf-8")  # HTML carries no half surrogate
    policy = POLICY.format(script=csp_hash(script), style=csp_hash(style))
    filled = {"CSP": policy, "TITLE": html.escape(title), "STYLE": style, "SCRIPT": script}
    filled["PAYLOAD"] = pack_payload(payload)
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda place: filled[place[1]], template)  # once: the inserted is not searched


def csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def pack_payload(payload: Row) -> str:
    """A payload as text for the page; equal payloads give equal texts."""
    text = json.dumps(payload, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("ascii"), 6, mtime=0)).decode("ascii")


def build_payload(
    run: Row,
    rows: pd.DataFrame,
    prompts: pd.DataFrame,
    data: Mapping[str, list],
    scores: Mapping[ScoreColumn, pd.Series],
    extras: Mapping[str, Sequence[Any]],
    suspects: Mapping[int, Mapping[str, str]],
    rules: Mapping[str, tuple[str, str, int]],
    format: rewards.Format,
    **more: Any,
) -> Row:
    """The payload of tables.

    Args:
        run: name, model, status, steps and notes.
        rows: a row a completion, the columns below; prompt is a row of `prompts`, answer its place in the text.
        prompts: text, tokens, seen (steps), n, best and mean of each prompt.
        data: the data set's columns of the prompts. Those that every prompt has word for word are left out.
        scores, extras: the other columns of the completions.
        suspects: row -> rule -> why.
        rules: title, words and number of suspects, by rule.
        more: other parts of the payload.
    """

    def repeated(value: Any, prompt: str) -> bool:
        return isinstance(value, str) and len(value) > REPEATED and value in prompt

    texts, now = prompts["text"].tolist(), datetime.datetime.now().astimezone()
    data = {name: values for name, values in data.items() if not values or not all(map(repeated, values, texts))}
    sets = [(), *sorted({tuple(why) for why in suspects.values()} - {()})]
    numbers = ("prompt", "step", "group", "place", "cut", "total", "advantage", "tokens")
    return {
        "version": 1,
        "run": {**run, "made": now.isoformat(timespec="seconds")},
        "selection": {},
        "rewards": [one._asdict() | {"low": rounded(one.low), "high": rounded(one.high)} for one in scores],
        "data_columns": list(data),
        "extra_columns": list(extras),
        "marks": format_marks(format),
        "prompts": {
            "text": texts,
            "tokens": json_column(prompts["tokens"]),
            "data": data,
            "seen": [[int(step) for step in steps] for steps in prompts["seen"]],
            **{name: json_column(prompts[name]) for name in ("n", "best", "mean")},
        },
        "completions": {
            **{name: json_column(rows[name]) for name in numbers},
            "text": rows["text"].tolist(),
            "answer": rows["answer"].tolist(),
            "right": [None if pd.isna(value) else bool(value) for value in rows["right"]],
            "scores": {one.name: json_column(values) for one, values in scores.items()},
            "extras": {name: [json_value(value) for value in values] for name, values in extras.items()},
            "suspect": [sets.index(tuple(suspects.get(i, ()))) for i in range(len(rows))],
        },
        "suspects": {
            "rules": [{"id": rule, "title": title, "said": said, "n": n} for rule, (title, said, n) in rules.items()],
            "sets": [list(rules) for rules in sets],
            "more": {str(i): why for i, why in sorted(suspects.items())},
        },
        "metrics": {"step": [], "columns": {}, "own": []},
        "printed": [],
        "events": [],
        **more,
    }


def rounded(value: Any) -> int | float | None:
    """The number to DIGITS significant digits, whole ones as integers; None for NaN and infinity."""
    if value is None or value is pd.NA or not math.isfinite(value):
        return None
    if float(value).is_integer() and abs(value) < EXACT:
        return int(value)
    return float(f"{value:.{DIGITS}g}")


def json_column(values: pd.Series) -> list[int | float | None]:
    return [rounded(value) for value in values.tolist()]


def json_value(value: Any) -> str | int | float | bool | None:
    """A value of any column as JSON has it: what is neither number, text nor truth is written out."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value) if abs(value) < EXACT else str(value)
    if value is None or value is pd.NA or isinstance(value, numbers.Real):
        return rounded(value)
    return value if isinstance(value, str) else str(value)
