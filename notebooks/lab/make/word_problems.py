"""Arithmetic word problems with worked solutions, made from templates by a seeded generator.

Each problem takes two to four steps of arithmetic, each step small enough for a model of two million parameters. The
answers are written as people write them (-4, 7.5, 1,200, $13.50, 85%), so that the data exercises answer extraction.

The side of the train/held-out split is a property of the problem: a hash of its template and its numbers
(`is_held_out`). Two problems that differ only in names or wording are always on the same side. Whatever draws from this
generator later, such as the starter policy's demonstrations, can stay off the held-out side without reading a file.
"""

from __future__ import annotations

import hashlib
import json
import operator
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from lab.files import WORD_PROBLEMS, Row, relative, write_text

HELD_OUT_SHARE = 10  # one problem in ten belongs to the held-out side
NAMES = (
    "Ada Amir Bea Chen Dana Eli Farah Gus Hana Ivo Jana Kofi Lena Milo Nora Omar Priya Quinn Rosa Sam "
    "Tess Uma Viktor Wren Yusuf Zoe"
).split()
ITEMS = "pens cups books plates stickers ribbons candles badges maps bulbs".split()
SMALL = "beads shells marbles cards coins buttons stamps acorns".split()
TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times", 6: "six times"}
Number = int | Decimal
Drawn = tuple[tuple[Number, ...], str, str]  # the numbers in the question's order, the question, the answer's text


@dataclass(frozen=True)
class Step:
    """One line of a worked solution: `label: left op right = value`."""

    label: str
    left: str
    op: str
    right: str
    value: str

    def __str__(self) -> str:
        return f"{self.label}: {self.left} {self.op} {self.right} = {self.value}"


@dataclass(frozen=True)
class Problem:
    """A word problem, its worked steps and its answer as a person would write it."""

    template: str
    numbers: tuple[str, ...]
    question: str
    steps: tuple[Step, ...]
    answer: str

    @property
    def solution(self) -> str:
        return "\n".join(map(str, self.steps))


def make_rows(n_train: int = 4000, n_test: int = 500, seed: int = 20261121) -> list[Row]:
    """The rows of `data/word_problems.jsonl`: no question twice, split by `is_held_out`."""
    rows: list[Row] = []
    for split, count in (("train", n_train), ("test", n_test)):
        problems, seen = stream_problems(seed, held_out=split == "test"), set()
        while len(seen) < count:
            problem = next(problems)
            key = " ".join(re.findall(r"[a-z0-9.]+", problem.question.casefold().replace(",", "")))
            if key in seen:
                continue
            seen.add(key)
            row = {"id": f"{split}-{len(seen):04d}", "split": split}
            row |= {"question": problem.question, "answer": problem.answer, "solution": problem.solution}
            rows.append({**row, "template": problem.template, "n_steps": len(problem.steps)})
    return rows


def stream_problems(seed: int, held_out: bool) -> Iterator[Problem]:
    """Endless problems of one side of the split. Repeats are possible; the caller removes them."""
    rng = random.Random(seed)
    while True:
        name, work = rng.choice(list(TEMPLATES)), Work()
        numbers, question, answer = TEMPLATES[name](rng, work)
        problem = Problem(name, tuple(map(plain, numbers)), question, tuple(work.steps), answer)
        if is_held_out(problem) == held_out:
            yield problem


def is_held_out(problem: Problem) -> bool:
    """Whether the problem's template and numbers hash to the held-out side of the split."""
    key = f"{problem.template}:{','.join(problem.numbers)}"
    return hashlib.sha256(key.encode()).digest()[0] % HELD_OUT_SHARE == 0


class Work:
    """Collects steps while a template computes, so that text and arithmetic cannot disagree."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def __call__(self, label: str, left: Number, op: str, right: Number) -> Number:
        if op == "/":
            exact = Decimal(left) / Decimal(right)
        else:
            exact = {"+": operator.add, "-": operator.sub, "*": operator.mul}[op](left, right)
        value = int(exact) if exact == int(exact) else Decimal(exact)
        self.steps.append(Step(label, plain(left), op, plain(right), plain(value)))
        return value


def plain(value: Number) -> str:
    """A number as digits: 7.50 becomes 7.5, 1200 stays 1200."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def money(value: Number) -> str:
    """Dollars as written on a receipt: $4, $13.50, $1,200."""
    return f"{'-' if value < 0 else ''}${abs(value):,.2f}".removesuffix(".00")


def give_and_find(rng: random.Random, work: Work) -> Drawn:
    a, b, c = rng.randint(8, 25), rng.randint(2, 7), rng.randint(2, 9)
    (name, friend), item = rng.sample(NAMES, 2), rng.choice(SMALL)
    left = work("left", a, "-", b)
    question = f"{name} has {a} {item}, gives {b} of them to {friend} and then finds {c} more. How many {item} does {name} have now?"
    return (a, b, c), question, plain(work("now", left, "+", c))


def boxes_and_broken(rng: random.Random, work: Work) -> Drawn:
    a, b, c = rng.randint(3, 9), rng.randint(4, 9), rng.randint(2, 9)
    item = rng.choice(ITEMS)
    total = work("all", a, "*", b)
    question = f"A shop gets {a} boxes with {b} {item} in each box. {c} of the {item} are broken. How many good {item} are there?"
    return (a, b, c), question, plain(work("good", total, "-", c))


def two_kinds(rng: random.Random, work: Work) -> Drawn:
    a, p, b, q = (rng.randint(2, 6) for _ in range(4))
    name, (first, second) = rng.choice(NAMES), rng.sample(ITEMS, 2)
    one = work(first, a, "*", p)
    other = work(second, b, "*", q)
    question = (
        f"{name} buys {a} {first} at ${p} each and {b} {second} at ${q} each. How many dollars does {name} spend?"
    )
    return (a, p, b, q), question, money(work("total", one, "+", other))


def temperature(rng: random.Random, work: Work) -> Drawn:
    a, b, c = rng.randint(-5, 9), rng.randint(4, 12), rng.randint(2, 9)
    night = work("night", a, "-", b)
    rises = rng.random() < 0.5
    turn = "rises" if rises else "falls"
    question = f"In the evening it is {a} degrees. By night the temperature falls by {b} degrees, and by morning it {turn} by {c} degrees. What is the temperature in the morning?"
    return (a, b, c if rises else -c), question, plain(work("morning", night, "+" if rises else "-", c))


def account(rng: random.Random, work: Work) -> Drawn:
    a, b, c = rng.randint(5, 20), rng.randint(15, 30), rng.randint(2, 12)
    name = rng.choice(NAMES)
    after = work("after the bill", a, "-", b)
    question = f"{name} has ${a} in an account that may go below zero. {name} pays a bill of ${b} and then puts in ${c}. What is the balance in dollars?"
    return (a, b, c), question, money(work("balance", after, "+", c))


def times_as_many(rng: random.Random, work: Work) -> Drawn:
    a, k = rng.randint(3, 15), rng.randint(2, 6)
    (name, friend), item = rng.sample(NAMES, 2), rng.choice(SMALL)
    other = work(friend, a, "*", k)
    question = f"{name} has {a} {item}. {friend} has {TIMES[k]} as many. How many {item} do they have together?"
    return (a, k), question, plain(work("both", a, "+", other))


def three_friends(rng: random.Random, work: Work) -> Drawn:
    a, k, c = rng.randint(2, 9), rng.randint(2, 4), rng.randint(2, 9)
    x, y, z = rng.sample(NAMES, 3)
    item = rng.choice(SMALL)
    second = work(y, a, "*", k)
    third = work(z, second, "+", c)
    pair = work("two of them", a, "+", second)
    question = f"{x} has {a} {item}. {y} has {TIMES[k]} as many as {x}, and {z} has {c} more than {y}. How many {item} do the three have in all?"
    return (a, k, c), question, plain(work("all three", pair, "+", third))


def share_and_eat(rng: random.Random, work: Work) -> Drawn:
    b, each = rng.randint(2, 9), rng.randint(4, 12)
    c = rng.randint(1, each - 1)
    total = b * each
    share = work("each", total, "/", b)
    question = f"{b} children share {total} nuts equally. Each child eats {c} of them at once. How many nuts does each child have left?"
    return (b, total, c), question, plain(work("left", share, "-", c))


def sale_price(rng: random.Random, work: Work) -> Drawn:
    percent, price, post = rng.choice((10, 20, 25, 50)), 20 * rng.randint(1, 10), rng.randint(2, 9)
    off = work("off", price, "*", Decimal(percent) / 100)
    sale = work("sale price", price, "-", off)
    item = rng.choice(("coat", "lamp", "chair", "radio", "tent", "bag"))
    question = f"A {item} costs ${price}. It is sold with {percent} percent off, and delivery costs ${post}. How many dollars does the {item} cost with delivery?"
    return (price, percent, post), question, money(work("total", sale, "+", post))


def percent_right(rng: random.Random, work: Work) -> Drawn:
    n = rng.choice((10, 20, 25, 50))
    wrong = rng.randint(1, n - 1)
    name = rng.choice(NAMES)
    right = work("right", n, "-", wrong)
    thing = rng.choice(("questions in a quiz", "throws in a game", "words in a test"))
    question = f"{name} has {n} {thing} and gets {wrong} of them wrong. What percent does {name} get right?"
    return (n, wrong), question, f"{work('percent', right, '*', 100 // n)}%"


def two_part_trip(rng: random.Random, work: Work) -> Drawn:
    a, h, b, g = 10 * rng.randint(3, 9), rng.randint(2, 4), 10 * rng.randint(3, 9), rng.randint(2, 4)
    first = work("first part", a, "*", h)
    second = work("second part", b, "*", g)
    question = f"A bus drives for {h} hours at {a} km an hour and then for {g} hours at {b} km an hour. How many km does it drive?"
    return (a, h, b, g), question, format(work("total", first, "+", second), ",")


def cafe_bill(rng: random.Random, work: Work) -> Drawn:
    a, p, q = rng.randint(2, 5), Decimal(rng.randint(3, 9)) / 2, Decimal(rng.randint(3, 12)) / 2
    name = rng.choice(NAMES)
    drink, cake = rng.choice(("coffees", "teas", "juices")), rng.choice(("cake", "salad", "sandwich"))
    drinks = work(drink, a, "*", p)
    question = (
        f"{name} orders {a} {drink} at {money(p)} each and one {cake} for {money(q)}. How many dollars is the bill?"
    )
    return (a, p, q), question, money(work("bill", drinks, "+", q))


def change_back(rng: random.Random, work: Work) -> Drawn:
    a, p, note = rng.randint(2, 5), Decimal(rng.randint(1, 7)) / 4, rng.choice((10, 20, 50))
    item, name = rng.choice(ITEMS), rng.choice(NAMES)
    cost = work("cost", a, "*", p)
    question = f"{name} buys {a} {item} at {money(p)} each and pays with a ${note} note. How many dollars of change does {name} get?"
    return (a, p, note), question, money(work("change", note, "-", cost))


def factory(rng: random.Random, work: Work) -> Drawn:
    a, h, bad = 100 * rng.randint(1, 9), rng.randint(2, 9), 10 * rng.randint(1, 9)
    made = work("made", a, "*", h)
    item = rng.choice(ITEMS)
    question = f"A factory makes {a} {item} an hour and works for {h} hours. {bad} of the {item} fail the test. How many {item} pass the test?"
    return (a, h, bad), question, format(work("good", made, "-", bad), ",")


def theatre(rng: random.Random, work: Work) -> Drawn:
    rows, seats, p = 10 * rng.randint(2, 6), rng.randint(5, 9), rng.randint(2, 5)
    all_seats = work("seats", rows, "*", seats)
    question = f"A theatre has {rows} rows with {seats} seats in each row. All seats are sold at ${p} each. How many dollars does the theatre take in?"
    return (rows, seats, p), question, money(work("income", all_seats, "*", p))


def average_of_three(rng: random.Random, work: Work) -> Drawn:
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    c = rng.choice([c for c in range(2, 13) if (a + b + c) % 3 == 0])
    name = rng.choice(NAMES)
    pair = work("two games", a, "+", b)
    total = work("three games", pair, "+", c)
    question = f"{name} scores {a}, {b} and {c} points in three games. What is {name}'s average score?"
    return (a, b, c), question, plain(work("average", total, "/", 3))


def cut_the_rope(rng: random.Random, work: Work) -> Drawn:
    k, piece = rng.randint(2, 5), Decimal(rng.randint(3, 11)) / 2
    rest = Decimal(rng.randint(1, 9)) / 2
    rope = k * piece + rest
    used = work("used", k, "*", piece)
    thing = rng.choice(("rope", "ribbon", "cable", "pipe"))
    question = f"A {thing} is {plain(rope)} metres long. {k} pieces of {plain(piece)} metres are cut from it. How many metres are left?"
    return (rope, k, piece), question, plain(work("left", rope, "-", used))


def fence(rng: random.Random, work: Work) -> Drawn:
    a, b, p = rng.randint(3, 10), rng.randint(3, 10), rng.randint(2, 5)
    half = work("half way", a, "+", b)
    around = work("around", half, "*", 2)
    question = f"A garden is {a} metres long and {b} metres wide. A fence around it costs ${p} for each metre. How many dollars does the fence cost?"
    return (a, b, p), question, money(work("cost", around, "*", p))


def wages(rng: random.Random, work: Work) -> Drawn:
    h, p, days, rent = rng.randint(2, 8), rng.randint(8, 12), rng.randint(2, 3), 10 * rng.randint(1, 3)
    name = rng.choice(NAMES)
    day = work("a day", h, "*", p)
    pay = work("pay", day, "*", days)
    question = f"{name} works {h} hours a day for {days} days at ${p} an hour and then pays ${rent} for tools. How many dollars does {name} have left?"
    return (h, p, days, rent), question, money(work("left", pay, "-", rent))


def pages_to_read(rng: random.Random, work: Work) -> Drawn:
    a, d, rest, per_day = rng.randint(5, 10), rng.randint(2, 4), rng.randint(2, 5), rng.randint(4, 12)
    pages = a * d + rest * per_day
    name = rng.choice(NAMES)
    read = work("read", a, "*", d)
    left = work("left", pages, "-", read)
    question = f"A book has {pages} pages. {name} reads {a} pages a day for {d} days and wants to read the rest in {rest} days. How many pages a day is that?"
    return (pages, a, d, rest), question, plain(work("days", left, "/", rest))


def lift_floors(rng: random.Random, work: Work) -> Drawn:
    a, b, c, d = rng.randint(1, 9), rng.randint(4, 12), rng.randint(2, 8), rng.randint(2, 9)
    one = work("down", a, "-", b)
    other = work("up", one, "+", c)
    question = f"A lift starts on floor {a}, goes down {b} floors, up {c} floors and down {d} floors. Floors below zero are in the basement. On which floor does it stop?"
    return (a, b, c, d), question, plain(work("down", other, "-", d))


def school_trip(rng: random.Random, work: Work) -> Drawn:
    a, p, c, q, off = rng.randint(2, 4), rng.randint(4, 9), rng.randint(4, 9), rng.randint(2, 4), rng.randint(3, 9)
    adults = work("adults", a, "*", p)
    children = work("children", c, "*", q)
    both = work("all", adults, "+", children)
    question = f"Tickets for the zoo cost ${p} for an adult and ${q} for a child. A group of {a} adults and {c} children has a voucher of ${off}. How many dollars does the group pay?"
    return (p, q, a, c, off), question, money(work("to pay", both, "-", off))


def egg_farm(rng: random.Random, work: Work) -> Drawn:
    hens, days, per_box = rng.randint(4, 9), rng.randint(2, 5), rng.choice((2, 3, 4))
    eggs = hens * days
    broken = rng.choice([b for b in range(1, 9) if eggs - b >= per_box and (eggs - b) % per_box == 0])
    p = rng.randint(2, 6)
    laid = work("eggs", hens, "*", days)
    good = work("whole", laid, "-", broken)
    boxes = work("boxes", good, "/", per_box)
    question = f"{hens} hens lay one egg a day each for {days} days. {broken} of the eggs break, and the others are sold in boxes of {per_box} at ${p} a box. How many dollars come in?"
    return (hens, days, broken, per_box, p), question, money(work("income", boxes, "*", p))


def savings_goal(rng: random.Random, work: Work) -> Drawn:
    goal, a, w, gift = rng.choice((100, 120, 150, 200)), rng.randint(3, 9), rng.randint(3, 6), 5 * rng.randint(1, 4)
    name, thing = rng.choice(NAMES), rng.choice(("bike", "phone", "guitar", "camera"))
    saved = work("saved", a, "*", w)
    have = work("with the gift", saved, "+", gift)
    question = f"A {thing} costs ${goal}. {name} saves ${a} a week for {w} weeks and gets ${gift} as a gift. How many more dollars does {name} need?"
    return (goal, a, w, gift), question, money(work("missing", goal, "-", have))


# A problem's template is drawn from this list, in this order.
ORDER = (
    "give_and_find boxes_and_broken two_kinds temperature account times_as_many three_friends share_and_eat "
    "sale_price percent_right two_part_trip cafe_bill change_back factory theatre average_of_three cut_the_rope "
    "fence wages pages_to_read lift_floors school_trip egg_farm savings_goal"
)
TEMPLATES: dict[str, Callable[[random.Random, Work], Drawn]] = {name: globals()[name] for name in ORDER.split()}


def main() -> None:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in make_rows()]
    write_text(WORD_PROBLEMS, "".join(lines))
    print(f"{relative(WORD_PROBLEMS)}: {len(lines)} problems from {len(TEMPLATES)} templates")


if __name__ == "__main__":
    main()
