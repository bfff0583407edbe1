"""The completions page of a run: one HTML file that needs no server and no network, and the same page inside a notebook.

`lab/page/` has the page itself; what is shown in it comes from `payload`, packed as gzip and base64 so that no text that
a model wrote stands in the HTML. The page may run its own script alone, which its Content-Security-Policy knows by hash.
"""

from __future__ import annotations

import ast
import base64
import datetime
import gzip
import hashlib
import html
import json
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import rewards
from lab.files import Row, need, relative, write_text
from lab.read import completions, held_out, run_record, selection, suspects
from lab.read.completions import Completions
from lab.read.run_record import Record
from lab.read.selection import Selection

PAGE = Path(__file__).with_name("page")
LIMIT, CHARACTERS = 20_000, 40_000_000  # completions and characters: what a browser opens and sorts without a wait
INLINE_MB = 4.0  # of HTML within a notebook, which is saved with it, and opened whole each time
DIGITS = 6  # significant ones of a number in the page
EXACT = 2**53  # from here on a browser's numbers skip some integers: larger ones are texts
TOLD = 20  # characters: a shorter value, such as a name, stands in a prompt by chance
TRIES = 8  # of a smaller page, each a third smaller
POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'"
)
PAYLOAD = re.compile(r'<script type="application/octet-stream" id="payload">([A-Za-z0-9+/=\s]*)</script>')


def write_page(run: Record | Path | str, path: Path | str | None = None, **limits: Any) -> Path:
    """Writes the completions page of a run, whole or not at all, and says where, how big, and what it lacks.

    Args:
        run: a record, or a run's folder.
        path: None: `completions.html` beside the run's folder, and within that of a plain TRL trainer.
        limits: as for `payload`.

    Raises what `lab.read.run_record.read_run` and `Completions` raise for a folder that has no completions.
    """
    record = run if isinstance(run, Record) else run_record.read_run(run, need_steps=False)
    path = Path(path or (record.folder.parent if record.source == "ours" else record.folder) / "completions.html")
    return write(payload(record, **limits), path)


def write(found: Row, path: Path) -> Path:
    """Writes the page of a payload, whole or not at all, and says where, how big, and what it lacks."""
    write_text(path, page(found))
    print(f"{relative(path)} ({size_in_words(path.stat().st_size)}): {found['selection']['said']}")
    for said in (found["selection"]["left_out"], *found["run"]["notes"]):
        if said:
            print(f"  {said}")
    return path


def page(found: Row) -> str:
    """The page of a payload: the template with its style, script and data."""
    style, script = (
        (need(PAGE / name, "the repository")).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    title = found["run"]["name"] if "models" in found else f"Completions of {found['run']['name']}"
    filled = {
        "CSP": POLICY.format(script=digest(script), style=digest(style)),
        "TITLE": html.escape(clean(title)),
        "STYLE": style,
        "SCRIPT": script,
        "PAYLOAD": packed(found),
    }
    template = need(PAGE / "page.html", "the repository").read_text(encoding="utf-8")
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda place: filled[place[1]], template)  # once: the inserted is not searched


def digest(text: str) -> str:
    """A source's hash as a Content-Security-Policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def packed(found: Row) -> str:
    """A payload as text for the page; equal payloads give equal texts."""
    text = json.dumps(found, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("ascii"), 6, mtime=0)).decode("ascii")


def unpacked(text: str) -> Row:
    """The payload in a page. Raises ValueError where there is none."""
    found = PAYLOAD.search(text)
    try:
        return json.loads(gzip.decompress(base64.b64decode(found[1])))
    except (TypeError, OSError, EOFError, ValueError) as error:
        raise ValueError("this is no completions page, or it is damaged: write it again with write_page") from error


def clean(text: str) -> str:
    """The text without what HTML cannot carry: NUL and halves of surrogate pairs."""
    return text.replace("\0", "␀").encode("utf-8", errors="replace").decode("utf-8")


def size_in_words(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.0f} kB"


def show(path: Path | str, height: int = 780, most_mb: float = INLINE_MB, made_by: str = "04_plot_training") -> Any:
    """The page inside a notebook (Jupyter, Colab, VS Code), in a frame that reaches nothing outside of it.

    A page of more than `most_mb` is shown with fewer completions, which is said under it, with the file that has all.
    Raises MissingInputError, which names the notebook `made_by`, where there is no page.
    """
    from IPython.display import HTML

    path = Path(path)
    text, note = need(path, made_by).read_text(encoding="utf-8"), ""
    if len(text) > most_mb * 1e6:
        text, kept, of = smaller_page(unpacked(text), most_mb)
        note = (
            f"<p>Shown here are {kept:,} of the page's {of:,} completions, because it is larger than {most_mb:g} MB. "
            f"Open <code>{html.escape(relative(path))}</code> in a browser for all of them.</p>"
        )
    frame = (
        f'<iframe title="Completions" srcdoc="{html.escape(text)}" sandbox="allow-scripts allow-downloads" width="100%" '
        f'height="{int(height)}" style="border: 1px solid #8888; border-radius: 6px"></iframe>'
    )
    return HTML(f"<div>{frame}{note}</div>")


def smaller_page(found: Row, most_mb: float) -> tuple[str, int, int]:
    """(page, completions in it, completions there were): whole groups, fewer and fewer until the page is small enough."""
    of = len(found["completions"]["step"])
    lengths = sum(map(len, found["completions"]["text"])) + sum(map(len, found["prompts"]["text"]))
    share = 0.8 * most_mb * 1e6 / len(packed(found))
    for _ in range(TRIES):
        part = shrunk(found, max(1, int(share * of)), max(1, int(share * lengths)))
        text = page(part)
        if len(text) <= most_mb * 1e6:
            break
        share *= 2 / 3
    return text, len(part["completions"]["step"]), of


def shrunk(found: Row, limit: int, characters: int) -> Row:
    """The payload with fewer completions, chosen as `Completions.select` does, and without held-out answers; of an
    evaluation the first prompts."""
    if "models" in found:
        return first_prompts(found, limit, characters)
    table, apart = found["completions"], held_out.held_out_prompts(found)
    rows = pd.DataFrame({name: table[name] for name in ("step", "group", "prompt", "suspect")})
    rows["length"] = [len(text) for text in table["text"]]
    trained = rows[[not apart[prompt] for prompt in rows["prompt"]]]
    asked = pd.Series([len(text) for text in found["prompts"]["text"]], dtype=int)
    groups = trained.groupby(["step", "group"], as_index=False).agg(
        n=("step", "size"), length=("length", "sum"), suspect=("suspect", "max"), prompt=("prompt", "first")
    )
    groups["characters"] = groups["length"] + groups["prompt"].map(asked)
    suspects = groups.index[groups["suspect"] > 0][::-1].tolist()
    chosen = selection.choose(groups, suspects, limit, characters)
    kept = groups.loc[chosen.groups, ["step", "group"]].assign(kept=True)
    there = rows.merge(kept, how="left")["kept"].notna()
    return with_rows(found, np.flatnonzero(there).tolist(), chosen.said)


def first_prompts(found: Row, limit: int, characters: int) -> Row:
    """The payload of an evaluation with whole prompts alone: in their order those that fit, and always one."""
    table, asked = found["completions"], found["prompts"]["text"]
    rows = pd.DataFrame({"prompt": table["prompt"], "characters": list(map(len, table["text"]))})
    prompts = rows.groupby("prompt", as_index=False).agg(n=("prompt", "size"), characters=("characters", "sum"))
    prompts["characters"] += prompts["prompt"].map(dict(enumerate(map(len, asked))))
    budget = selection.Budget(prompts, limit, characters)
    budget.take(range(len(prompts)))
    kept = rows["prompt"].isin(prompts["prompt"].iloc[list(budget.taken)])
    return with_rows(found, np.flatnonzero(kept).tolist(), f"whole prompts, the first {len(budget.taken):,} that fit")


def with_rows(found: Row, kept: list[int], said: str) -> Row:
    """The payload with these completions, and the prompts that they answer, alone."""
    table, new = found["completions"], {old: i for i, old in enumerate(kept)}
    shown = sorted({table["prompt"][i] for i in kept})
    at = {old: i for i, old in enumerate(shown)}
    rows = only(table, kept)
    rows["prompt"] = [at[prompt] for prompt in rows["prompt"]]
    more = {str(new[int(i)]): why for i, why in found["suspects"]["more"].items() if int(i) in new}
    words = f"{len(kept):,} of the {len(table['step']):,} completions of the whole page: {said}."
    also = "" if "models" in found else ", held-out answers among them"
    rest = f"{len(table['step']) - len(kept):,} completions of the page's file{also}."
    return {
        **found,
        "completions": rows,
        "prompts": only(found["prompts"], shown),
        "suspects": {**found["suspects"], "more": more},
        "selection": {**found["selection"], "kept": len(kept), "said": words, "left_out": rest},
    }


def without_told(found: Row) -> Row:
    """The payload without the data columns that every prompt has word for word, such as the question."""
    prompts = found["prompts"]
    told = {name for name, values in prompts["data"].items() if values and all(map(is_told, values, prompts["text"]))}
    data = {name: values for name, values in prompts["data"].items() if name not in told}
    return {
        **found,
        "data_columns": [name for name in found["data_columns"] if name not in told],
        "prompts": {**prompts, "data": data},
    }


def is_told(value: Any, text: str) -> bool:
    return isinstance(value, str) and len(value) > TOLD and value in text


def in_order(found: Row) -> Row:
    """The payload with its completions by step, prompt, group and place."""
    rows = found["completions"]
    keys = list(zip(rows["step"], rows["prompt"], rows["group"], rows["place"]))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    new = {old: i for i, old in enumerate(order)}
    more = {str(new[int(i)]): why for i, why in found["suspects"]["more"].items()}
    return {**found, "completions": only(rows, order), "suspects": {**found["suspects"], "more": more}}


def only(table: Row, places: Sequence[int]) -> Row:
    """These rows of a table that is kept column by column, with columns within columns."""
    return {
        name: only(values, places) if isinstance(values, dict) else [values[i] for i in places]
        for name, values in table.items()
    }


def payload(
    record: Record,
    *,
    limit: int = LIMIT,
    characters: int = CHARACTERS,
    format: rewards.Format | None = None,
    decides: Sequence[str] | None = None,
) -> Row:
    """All that the page shows, as JSON values: `lab/page/page.js` says what it reads.

    Args:
        limit, characters: of the completions in the page.
        format: how completions mark reasoning and answer; None: as the run's own copy of rewards.py says.
        decides: the rewards that decide what is right; None: those that the run knows as such.

    Raises ValueError where the run has no readable completions.
    """
    format = format or format_of(record)
    with Completions(record, decides=decides) as table:
        chosen = table.select(limit, characters)
        answers = spans(chosen, format)
        chosen.add("right_without_answer", suspects.without_answer(chosen, [answer is not None for answer in answers]))
        counts = {rule: n + chosen.found_here[rule] for rule, n in table.suspect_counts().items()}
        found = {
            "version": 1,
            "run": about_run(record, table, chosen),
            "selection": {
                "kept": len(chosen.texts),
                "of": table.count,
                "said": chosen.said,
                "left_out": chosen.left_out,
            },
            "rewards": [
                {"name": r.name, "low": rounded(r.low), "high": rounded(r.high), "decides": r.decides}
                for r in table.rewards
            ],
            "data_columns": [shown_name(name) for name in table.data_columns],
            "extra_columns": table.extra_columns,
            "marks": marks_of(format),
            "prompts": prompts_of(chosen),
            "completions": completions_of(chosen, table, answers),
            "suspects": suspects_of(chosen, table.rules(), counts),
            "metrics": metrics_of(record),
            "printed": [line for row in record.printed if (line := printed_line(row))],
            "events": [event for row in record.events if (event := event_line(row))],
        }
    return in_order(without_told(held_out.added(found, record, lambda text: answer_span(text, format), scalar)))


def about_run(record: Record, table: Completions, chosen: Selection) -> Row:
    model = record.about.get("model")
    model = model if isinstance(model, dict) else {"name": model}
    steps = [int(step) for step in record.log.index] + chosen.rows["step"].tolist()
    return {
        "name": str(record.name),
        "model": str(model.get("shown") or model.get("name") or ""),
        "status": str(record.about.get("status") or ""),
        "steps": max(steps, default=0),
        "made": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "notes": [*map(str, record.notes), *table.notes],
    }


def shown_name(column: str) -> str:
    """A data column without the `data/` that the files have before it."""
    return column.removeprefix("data/")


def prompts_of(chosen: Selection) -> Row:
    table = chosen.prompts
    return {
        "text": table["text"].tolist(),
        "tokens": column(table["tokens"]),
        "data": {shown_name(name): [scalar(value) for value in values] for name, values in chosen.data.items()},
        "seen": [[int(step) for step in steps] for steps in table["seen"]],
        "n": column(table["n"]),
        "best": column(table["best"]),
        "mean": column(table["mean"]),
    }


def completions_of(chosen: Selection, table: Completions, answers: Sequence[list[int] | None]) -> Row:
    rows = chosen.rows
    sets = {rules: i for i, rules in enumerate(suspect_sets(chosen))}
    plain = {
        "prompt": "prompt",
        "step": "step",
        "group": "grp",
        "place": "place",
        "cut": "cut",
        "total": "total",
        "advantage": "advantage",
        "tokens": "tokens",
    }
    return {
        **{name: column(rows[source]) for name, source in plain.items()},
        "text": chosen.texts,
        "answer": list(answers),
        "right": [None if pd.isna(value) else bool(value) for value in rows["right"]],
        "scores": {reward.name: column(rows[f"s{i}"]) for i, reward in enumerate(table.rewards)},
        "extras": {name: [scalar(value) for value in values] for name, values in chosen.extras.items()},
        "suspect": [sets[tuple(chosen.suspects.get(i, ()))] for i in range(len(rows))],
    }


def suspect_sets(chosen: Selection) -> list[tuple[str, ...]]:
    """The sets of rules that completions fall under, the empty one first."""
    return [(), *sorted({tuple(why) for why in chosen.suspects.values()} - {()})]


def suspects_of(
    chosen: Selection, words: Mapping[str, str], counts: Mapping[str, int], titles: Mapping[str, str] = suspects.TITLES
) -> Row:
    rules = [{"id": rule, "title": title, "said": words[rule], "n": counts[rule]} for rule, title in titles.items()]
    more = {str(i): why for i, why in sorted(chosen.suspects.items())}
    return {"rules": rules, "sets": [list(rules) for rules in suspect_sets(chosen)], "more": more}


def metrics_of(record: Record) -> Row:
    """The training log by step: each column that has a number."""
    log = record.log.sort_index()
    kept = [name for name in log.select_dtypes("number").columns if name != "step" and log[name].notna().any()]
    own = [name for name in record.own_metrics() if name in kept]
    return {
        "step": [int(step) for step in log.index],
        "columns": {str(name): column(log[name]) for name in kept},
        "own": own,
    }


def rounded(value: Any) -> int | float | None:
    """The number to DIGITS significant digits, whole ones as integers; None for NaN and infinity."""
    if value is None or value is pd.NA or not math.isfinite(value):
        return None
    if float(value).is_integer() and abs(value) < EXACT:
        return int(value)
    return float(f"{value:.{DIGITS}g}")


def column(values: pd.Series) -> list[int | float | None]:
    return [rounded(value) for value in values.tolist()]


def scalar(value: Any) -> str | int | float | bool | None:
    """A value of any column as JSON has it: what is neither number, text nor truth is written out."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (numbers.Integral, Decimal)):
        return int(value) if value == int(value) and abs(value) < EXACT else str(value)
    if isinstance(value, numbers.Real):
        return rounded(value)
    if value is None or value is pd.NA or isinstance(value, str):
        return None if value is pd.NA else value
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


FORMATS = {"TagFormat": rewards.TagFormat, "BoxedFormat": rewards.BoxedFormat, "HashFormat": rewards.HashFormat}


def format_of(record: Record) -> rewards.Format:
    """The format that the run was trained with, as the last rewards.py that it kept says; else the one in use here.

    The copy is read, not run: a page of somebody else's run executes nothing of theirs.
    """
    kept = sorted(record.folder.glob("rewards/v*/rewards.py"), key=lambda path: version_of(path.parent.name))
    try:
        return written_format(kept[-1].read_text(encoding="utf-8")) or rewards.FORMAT
    except (IndexError, OSError, ValueError, SyntaxError):
        return rewards.FORMAT


def version_of(name: str) -> int:
    return int(name[1:]) if name[1:].isdigit() else -1


def written_format(source: str) -> rewards.Format | None:
    """The format that `FORMAT = …` in a source names, if it is one of ours with plain arguments."""
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        call = getattr(node, "value", None)
        named = any(isinstance(target, ast.Name) and target.id == "FORMAT" for target in targets)
        if named and isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in FORMATS:
            positional = [ast.literal_eval(value) for value in call.args]
            named_ones = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
            try:
                return FORMATS[call.func.id](*positional, **named_ones)
            except TypeError:
                return None
    return None


def marks_of(format: rewards.Format) -> list[Row]:
    """The pairs of marks that set reasoning and answer apart; an answer that ends with its line closes with a line break."""
    marks = list(format.marks)
    if len(marks) == 1:
        marks.append("\n")
    kinds = ("reasoning", "answer")[-(len(marks) // 2) :]
    return [{"open": marks[2 * i], "close": marks[2 * i + 1], "kind": kind} for i, kind in enumerate(kinds)]


def spans(chosen: Selection, format: rewards.Format) -> list[list[int] | None]:
    """Where each completion's extracted answer stands, in UTF-16 code units; None without one, and in cut texts."""
    cut = (chosen.rows["cut"] > 0).tolist()
    return [None if gone else answer_span(text, format) for text, gone in zip(chosen.texts, cut)]


def answer_span(text: str, format: rewards.Format) -> list[int] | None:
    """[start, end) of the answer that `rewards.extract_answer` finds, in UTF-16 code units; None without one.

    >>> answer_span("<think>😀</think><answer> 4 </answer>", rewards.TagFormat())
    [26, 27]
    """
    found = format.find_answer(text)
    if found is None:
        return None
    before, answer, after = found
    if (after.strip() and rewards.taken_back(answer, after)) or rewards.other_answer(answer, before):
        return None  # as `extract_answer` has it, which knows one format alone
    start = place_of(answer, text, format)
    return None if start is None else [utf16(text[:start]), utf16(text[: start + len(answer)])]


def place_of(answer: str, text: str, format: rewards.Format) -> int | None:
    """Where the answer stands after its mark and outside the reasoning; of several such places the last."""
    *reasoning, mark = marks_of(format)
    thoughts = range(0)
    if reasoning and reasoning[0]["close"] in text:
        thoughts = range(max(0, text.find(reasoning[0]["open"])), text.rfind(reasoning[0]["close"]))
    openings = re.finditer(re.escape(mark["open"]) + r"\s*", text)
    places = [
        found.end() for found in openings if found.start() not in thoughts and text.startswith(answer, found.end())
    ]
    return places[-1] if places else None


def utf16(text: str) -> int:
    """Its length as a browser counts."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", errors="surrogatepass")) // 2


def step_in(row: Row) -> int | None:
    step = row.get("step")
    return int(step) if isinstance(step, (int, float)) and math.isfinite(step) else None


def printed_line(row: Row) -> Row | None:
    step = step_in(row)
    return None if step is None else {"step": step, "text": str(row.get("text", ""))[: completions.LONGEST_TEXT]}


def event_line(row: Row) -> Row | None:
    """An event of `events.jsonl` in words; None for one without a step."""
    step, kind = step_in(row), str(row.get("kind", ""))
    said = SAID.get(kind, said_of_others)(Dashes(row))
    return None if step is None else {"step": step, "kind": kind, "said": said[: completions.LONGEST_TEXT]}


class Dashes(dict):
    """A row whose missing entries are a dash."""

    def __missing__(self, name: str) -> str:
        return "–"


def mean_in_words(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) else "–"


SAID: dict[str, Callable[[Row], str]] = {
    "adapter_check": lambda e: (
        f"{e['moved']} of {e['of']} trained tensors moved; of {e['base_tensors']} frozen ones "
        f"{e['base_changed']} changed"
    ),
    "health": lambda e: f"{e['verdict']}, {e['rule']}: {e['message']}",
    "reward_changed": lambda e: (
        f"{e['name']} from now on, for {e['was']}; mean on the last completions "
        f"{mean_in_words(e['mean_before'])} → {mean_in_words(e['mean_after'])}"
    ),
    "reward_refused": lambda e: f"the edit of {e['reward']} was refused: {e['error']}",
    "resumed": lambda e: f"the run went on after step {e['after_step']}",
    "failed": lambda e: f"the run failed: {e['reason']}",
    "interrupted": lambda e: f"the run was interrupted: {e['reason']}",
}


def said_of_others(event: Row) -> str:
    return ", ".join(f"{name}: {value}" for name, value in event.items() if name not in ("step", "kind"))
