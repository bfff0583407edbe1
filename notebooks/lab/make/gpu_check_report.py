"""The record of `make gpu-check` as Markdown: what worked, what it cost, what Unsloth changed."""

import math
from collections.abc import Collection, Iterable

from lab.files import Row

PLANS = 6  # three presets for a card, each for the starter policy and a real model
COLUMNS = ("", "seconds a step", "generated tokens a second", "trained tokens a second", "share of generating")
COLUMNS += ("peak memory", "steps", "reward, first and last step")


def gpu_report(record: Row) -> str:
    """The record as a page to read."""
    about, parts = record["machine"], record["parts"]
    where = about.get("gpu", "an unnamed card")
    if record["rehearsal"]:
        where = f"{about.get('cpu', 'this machine')}, no CUDA card: **a rehearsal, no figure of a GPU**"
    versions = ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items())
    text = [f"# GPU check: {where}", "", f"{record['date']}, made by `make gpu-check`. {versions}", ""]
    lines = [(name, one["status"], f"{one['took']:.0f} s", one["why"]) for name, one in parts.items()]
    text += markdown_table(("part", "", "took", "why"), lines)
    found = {name: one["found"] for name, one in parts.items()}
    if runs := [training_row(name, one) for name, one in found.items() if "seconds_a_step" in one]:
        text += ["", "## Training", "", *markdown_table(COLUMNS, runs)]
    for name, one in found.items():
        if lines := part_details(one):
            text += ["", f"## {name[0].upper()}{name[1:]}", "", *lines]
    return "\n".join(text) + "\n"


def markdown_table(head: Collection, rows: Iterable[Iterable]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    text = lambda cell: str(cell).replace("\n", " ").replace("|", "\\|")
    return ["| " + " | ".join(map(text, row)) + " |" for row in cells]


def training_row(name: str, run: Row) -> tuple:
    """Times are figures only of the runs that are timed: the others are short, and save checkpoints."""
    forms = {"seconds_a_step": ".2f", "generated_tokens_a_second": ",.0f", "trained_tokens_a_second": ",.0f"}
    forms["generating_share"] = ".0%"
    times = [format(run[figure], form) if run["timed"] else "–" for figure, form in forms.items()]
    peak = run["peak"]
    memory = f"{peak['bytes'] / 1e9:.2f} GB of {'tensors' if peak['of'] == 'card' else 'the process'}"
    memory += f", {peak['reserved'] / 1e9:.2f} reserved" if "reserved" in peak else ""
    steps = f"{run['steps']} ({run['steps_timed']} timed)" if run["timed"] else run["steps"]
    return (name, *times, memory, steps, " → ".join(f"{value:.3f}" for value in run["reward"]))


def part_details(found: Row) -> list[str]:
    """What a part found beyond figures of a training."""
    text: list[str] = []
    if "checks" in found:
        text += markdown_table(("", "result"), found["checks"].items())
        text += ["", "Other versions than pinned: " + ("; ".join(found["pins"]) or "none") + "."]
    if "defaults" in found:
        names = ["setting", "requested", "effective", "TRL's default"]
        plans: dict[tuple, list[str]] = {}
        for row in found["rows"]:
            plans.setdefault(tuple(row[name] for name in names), []).append(row["in"])
        changes = [(*key, "every plan" if len(where) == PLANS else ", ".join(where)) for key, where in plans.items()]
        changed = sum(row["requested"] != "–" for row in found["rows"])
        text += [f"{PLANS} plans ask for {found['requested']} settings, and Unsloth's `GRPOConfig` changed {changed}."]
        text += ["These are set although nobody asked for them:", "", *markdown_table([*names, "in"], changes)]
        text += ["", "Fields that get another value where they are left out:", ""]
        text += markdown_table(("setting", "TRL", "Unsloth"), [row.values() for row in found["defaults"]])
    if "evidence" in found:
        seconds = ", ".join(f"{name} {value:.0f}" for name, value in found["seconds"].items())
        text += markdown_table(found["evidence"][0], [row.values() for row in found["evidence"]])
        text += ["", f"n = {found['n']}. {found['said']} Seconds: {seconds}."]
    if "merged_into" in found:
        distances = found["distances"] | {"the untrained base": found["from_base"] or {}}
        nats = ", ".join(f"{name} {value.get('kl', math.nan):.2g}" for name, value in distances.items())
        text += [
            f"Merged into the {found['merged_into']} and proved. Mean KL from the trained model, nats a token: {nats}."
        ]
    return text
