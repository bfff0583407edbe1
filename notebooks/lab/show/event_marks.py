"""What happened in a run (an edited reward, new weights, a stop), as lettered lines over its curves."""

import string
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lab.files import Row
from lab.read import reward_names, run_record
from lab.read.run_record import RunRecord
from lab.show.figure_style import GREY, SMALL, panel

AT_MOST = 5  # changes of a setting that are marked; one that changes more often is a curve of its own
EVENTS = {  # in words, by kind
    "adapter_check": "{moved} of {of} trained tensors moved; of the {base_tensors} frozen ones {base_changed} changed",
    "health": "{verdict}, {rule}: {message}",
    "resumed": "the run was resumed after this step",
    "failed": "the run failed: {reason}",
    "interrupted": "the run was {reason}",
    "reward_changed": "{name} replaces {was}",
    "reward_refused": "an edit of the rewards was refused: {error}",
}
Mark = tuple[float, str]  # a place between two steps, and what happened there


def marked_panel(axes: Axes, record: RunRecord, title: str, unit: str) -> None:
    """An empty panel of a run's figure: its steps from left to right, with the marks."""
    steps = [*record.log.index[[0, -1]], *record.evaluations["step"]]
    panel(axes, title, unit, min(steps), max(steps))
    for letter, group in lettered_marks(record).items():
        for at, _ in group:
            axes.axvline(at, color=GREY, linewidth=0.8, linestyle=(0, (2, 2)), zorder=0.5)
        middle, look = np.mean([at for at, _ in group]), {"fontsize": SMALL, "fontweight": "bold", "color": GREY}
        axes.text(middle, 1.01, letter, ha="center", va="bottom", transform=axes.get_xaxis_transform(), **look)
        axes.set_title(title, pad=13)  # room for the letters


def marks_in_words(record: RunRecord) -> str:
    """The key to the letters, in one line."""
    groups = lettered_marks(record).items()
    return "; ".join(f"{letter}:\xa0{', '.join(text for _, text in group)}" for letter, group in groups)


def lettered_marks(record: RunRecord) -> dict[str, list[Mark]]:
    """The marks by letter. Marks that nearly touch share one, so that letters do not lie on each other."""
    near, groups = 0.03 * np.ptp(record.log.index), []
    for at, text in marks(record):
        if not groups or at - groups[-1][0][0] >= near:
            groups.append([])
        groups[-1].append((at, text))
    return dict(zip(string.ascii_letters, groups))


def marks(record: RunRecord) -> list[Mark]:
    """What happened in a run, in the order of the steps. Several events at one place are one mark."""
    temperature, last = record.log.filter(["temperature"]).rename(columns={"temperature": ""}), record.log.index[-1]
    found = [*event_marks(record), *weight_marks(record), *setting_marks(temperature, "temperature")]
    if (status := record.about.get("status")) in ("stopped", "killed"):
        found.append((last + 0.5, f"{status} after step {last}"))
    texts: dict[float, list[str]] = {}
    for (at, text), n in sorted(Counter(found).items(), key=lambda one: one[0][0]):
        texts.setdefault(at, []).append(f"{text} ({n} times)" if n > 1 else text)
    return [(at, ", ".join(several)) for at, several in texts.items()]


def event_marks(record: RunRecord) -> Iterator[Mark]:
    for event in record.events:
        step, kind = run_record.step_number(event), event.get("kind")
        if step is not None and kind == "reward_changed":
            yield step - 0.5, f"{event.get('name')} from step {step}"
        elif step is not None and kind in ("resumed", "failed", "interrupted"):
            yield step + 0.5, f"{kind} after step {step}"


def event_sentences(events: Iterable[Row]) -> Iterator[str]:
    """What happened in a run, a readable line an event."""
    for event in events:
        event = defaultdict(lambda: "?", event)
        means = [event["mean_before"], event["mean_after"]]
        said = EVENTS.get(event["kind"], "{kind}").format_map(event)
        if event["kind"] == "reward_changed" and None not in means:
            said += f"; its mean on the last {event['completions']} completions: {means[0]:.3f} → {means[1]:.3f}"
        yield f"step {event['step']}: {said}"


def weight_marks(record: RunRecord) -> Iterator[Mark]:
    """Where weights changed. Where they adapt at every step, only the stages are marked."""
    weights = record.weights()
    versions = [reward_names.split_version(name)[0] for name in weights]
    joined = weights.T.groupby(versions).first().T if versions else weights
    if len(changes(joined)) > AT_MOST:
        starts = [start for start, *_ in record.about.get("steering", {}).get("stages") or [] if start]
        yield from ((start + 0.5, f"next stage of weights from step {start + 1}") for start in starts)
    yield from setting_marks(joined, "weights")


def setting_marks(table: pd.DataFrame, what: str) -> Iterator[Mark]:
    """Where the columns of a setting changed; none where that is so often that they are curves."""
    steps = changes(table)
    for before, step in steps if len(steps) <= AT_MOST else ():
        pairs = zip(table, table.loc[before], table.loc[step])
        changed = [f"{name} {old:.3g}→{new:.3g}".strip() for name, old, new in pairs if differs(old, new)]
        yield step - 0.5, f"{what} from step {step}: {', '.join(changed)}"


def regimes(record: RunRecord) -> dict[int, str]:
    """The steps from which the total is another sum, because a reward was edited or weights changed: step -> what."""
    edits = {step: f"{name} from step {step}" for step, name in run_record.edited_rewards(record).items()}
    return dict(sorted((edits | {int(at + 0.5): text for at, text in weight_marks(record)}).items()))


def differs(old: float, new: float) -> bool:
    """Whether a setting differs by more than float32 rounding. An unknown (NaN) one differs from none."""
    return bool(abs(old - new) > 1e-5 * max(abs(old), abs(new)))


def changes(table: pd.DataFrame) -> list[tuple[int, int]]:
    """The pairs of neighbouring steps between which a setting changed."""
    known = table.ffill()
    moved = (known.diff().abs() > 1e-5 * known.abs().clip(lower=known.shift().abs())).any(axis=1).to_numpy()
    return [(table.index[i - 1], table.index[i]) for i in np.flatnonzero(moved)]
