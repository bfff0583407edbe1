"""Small Python functions in HumanEval's form, for the starter policy and the code notebook.

A drill has HumanEval's columns: `prompt` (signature and docstring), `canonical_solution` (the body), `test`
(a `check(candidate)` with six assertions) and `entry_point`. A hash of the drill decides whether it is held out.
"""

import hashlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from lab.files import ROOT, relative, write_jsonl

HELD_OUT_SHARE = 5  # one drill in five belongs to the held-out side
N_ASSERTIONS = 6
# name part, words, expression with {x} for the value so far; a space in the result asks for brackets
SIGNS = (("plus", "+"), ("minus", "-"), ("times", "*"))
NUMBER_OPS = [(f"{word}_{k}", f"{word} {k}", f"{{x}} {op} {k}") for word, op in SIGNS for k in range(2, 10)]
NUMBER_OPS += [("squared", "squared", "{x} ** 2")]
PAIRS = [
    ("sum", "the sum of a and b", "a + b"),
    ("difference", "a minus b", "a - b"),
    ("product", "the product of a and b", "a * b"),
    ("larger", "the larger of a and b", "max(a, b)"),
    ("smaller", "the smaller of a and b", "min(a, b)"),
    ("distance", "the distance between a and b", "abs(a - b)"),
]
KINDS = {"even": "x % 2 == 0", "odd": "x % 2 == 1", "positive": "x > 0", "negative": "x < 0"}
FILTERS = [("", "all numbers in xs", "")]
FILTERS += [(kind, f"the {kind} numbers in xs", f" if {test}") for kind, test in KINDS.items()]
FILTERS += [(f"above_{k}", f"the numbers in xs greater than {k}", f" if x > {k}") for k in range(2, 7)]
MAPS = [("", "", "x"), ("doubled", "doubled", "x * 2"), ("squared", "squared", "x ** 2")]
MAPS += [(f"plus_{k}", f"plus {k}", f"x + {k}") for k in range(2, 6)]
FOLDS = [("total", "Return the sum of", "sum({g})"), ("count", "Return how many there are of", "len([{g}])")]
FOLDS += [("keep", "Return a list of", "[{g}]")]
TEXTS = [("reversed", "reversed", "{x}[::-1]"), ("upper", "in upper case", "{x}.upper()")]
TEXTS += [("lower", "in lower case", "{x}.lower()")]
TEXTS += [(f"first_{k}", f"cut to the first {k} letters", f"{{x}}[:{k}]") for k in range(2, 6)]
TEXTS += [(f"last_{k}", f"cut to the last {k} letters", f"{{x}}[-{k}:]") for k in range(2, 6)]
TEXTS += [(f"times_{k}", f"repeated {k} times", f"{{x}} * {k}") for k in range(2, 6)]


@dataclass(frozen=True)
class Drill:
    """One function to write: `def {name}({args})`, what it returns in words, and the expression."""

    family: str
    name: str
    args: str
    words: str
    expression: str

    @property
    def prompt(self) -> str:
        return f'def {self.name}({self.args}):\n    """{self.words}"""\n'

    @property
    def body(self) -> str:
        return f"    return {self.expression}\n"


def is_held_out(drill: Drill) -> bool:
    """True where the drill hashes to the held-out side of the split."""
    return hashlib.sha256(f"{drill.family}:{drill.name}".encode()).digest()[0] % HELD_OUT_SHARE == 0


def chained(ops: list[tuple[str, str, str]], start: str) -> Iterator[tuple[str, str, str]]:
    """Every ordered pair of different operations applied to `start`: name, words, expression."""
    for (name1, words1, form1), (name2, words2, form2) in itertools.permutations(ops, 2):
        inner = form1.format(x=start)
        needs_brackets = " " in inner and not form2.startswith(("{x} + ", "{x} - "))
        outer = form2.format(x=f"({inner})" if needs_brackets else inner)
        yield f"{name1}_{name2}", f"{words1} and then {words2}", outer


def all_drills() -> list[Drill]:
    """Every drill there is, in a fixed order."""
    drills = [Drill("number", n, "n", f"Return n {w}.", e) for n, w, e in chained(NUMBER_OPS, "n")]
    for (n1, w1, e1), (n2, w2, form) in itertools.product(PAIRS, NUMBER_OPS):
        inner = f"({e1})" if " " in e1 and "(" not in e1 and not form.startswith(("{x} + ", "{x} - ")) else e1
        drills.append(Drill("pair", f"{n1}_{n2}", "a, b", f"Return {w1}, {w2}.", form.format(x=inner)))
    for (n1, w1, fold), (n2, w2, test), (n3, w3, change) in itertools.product(FOLDS, FILTERS, MAPS):
        if n1 == "count" and n3:
            continue  # counting does not see what happens to each number
        name = "_".join(part for part in (n1, n2, n3) if part)
        words = f"{w1} {w2}{', each ' + w3 if w3 else ''}."
        drills.append(Drill("list", name, "xs", words, fold.format(g=f"{change} for x in xs{test}")))
    drills += [Drill("text", n, "s", f"Return s {w}.", e) for n, w, e in chained(TEXTS, "s")]
    return drills


def draw_inputs(drill: Drill, rng: random.Random) -> list[tuple]:
    """Arguments for the assertions: `N_ASSERTIONS` different tuples."""
    found: list[tuple] = []
    while len(found) < N_ASSERTIONS:
        if drill.family == "list":
            arguments = ([rng.randint(-9, 9) for _ in range(rng.randint(0, 7))],)
        elif drill.family == "text":
            arguments = ("".join(rng.choice("abcdeXYZ ") for _ in range(rng.randint(0, 9))),)
        else:
            arguments = tuple(rng.randint(-12, 12) for _ in drill.args.split(","))
        if arguments not in found:
            found.append(arguments)
    return found


def as_row(drill: Drill) -> dict[str, object]:
    """The drill with HumanEval's columns; what its solution returns comes from the expression in the tables above."""
    lines, names = [], drill.args.split(", ")
    for arguments in draw_inputs(drill, random.Random(drill.name)):
        expected = eval(drill.expression, {}, dict(zip(names, arguments)))  # noqa: S307
        lines.append(f"    assert candidate({', '.join(map(repr, arguments))}) == {expected!r}")
    return {
        "id": f"{drill.family}/{drill.name}",
        "split": "test" if is_held_out(drill) else "train",
        "prompt": drill.prompt,
        "canonical_solution": drill.body,
        "test": "def check(candidate):\n" + "\n".join(lines) + "\n",
        "entry_point": drill.name,
    }


def make(per_family: int = 150, seed: int = 20261121) -> list[dict[str, object]]:
    """The rows of `data/code_drills.jsonl`: up to `per_family` drills of each family, train first."""
    rng, rows = random.Random(seed), []
    for _, family in itertools.groupby(all_drills(), key=lambda drill: drill.family):
        drills = list(family)
        rows += [as_row(drill) for drill in rng.sample(drills, min(per_family, len(drills)))]
    return sorted(rows, key=lambda row: (row["split"] == "test", row["id"]))


def main() -> None:
    rows = make()
    path = write_jsonl(ROOT / "data/code_drills.jsonl", rows)
    print(f"{relative(path)}: {len(rows)} drills, {sum(row['split'] == 'test' for row in rows)} of them held out")


if __name__ == "__main__":
    main()
