"""Arithmetic word problems with worked solutions, made from templates by a seeded generator.

Each problem takes two to four steps of arithmetic, each step small enough for a model of two million parameters. The
answers are written as people write them (-4, 7.5, 1,200, $13.50, 85%), so that the data exercises answer extraction.

The side of the train/held-out split is a property of the problem: a hash of its template and its numbers
(`is_held_out`). Two problems that differ only in names or wording are always on the same side. Whatever draws from this
generator later, such as the starter policy's demonstrations, can stay off the held-out side without reading a file.
"""

from __future__ import annotations

import hashlib
import operator
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from lab.files import WORD_PROBLEMS, Row, relative, write_jsonl

HELD_OUT_SHARE = 10  # one problem in ten belongs to the held-out side
NAMES = "Ada Amir Bea Chen Dana Eli Farah Gus Hana Ivo Jana Kofi Lena Milo Nora Omar Priya Quinn Rosa Sam".split()
NAMES += "Tess Uma Viktor Wren Yusuf Zoe".split()
ITEMS = "pens cups books plates stickers ribbons candles badges maps bulbs".split()
SMALL = "beads shells marbles cards coins buttons stamps acorns".split()
TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times", 6: "six times"}
Number = int | Decimal
# The numbers in the question's order, the question, the work (`label: left op right; …`, where a later step may take an
# earlier one's label), and how its last value is written.
Drawn = tuple[tuple[Number, ...], str, str, Callable[[Number], str]]


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
    rng = Templates(seed)
    while True:
        problem = draw_problem(rng)
        if is_held_out(problem) == held_out:
            yield problem


def is_held_out(problem: Problem) -> bool:
    """Whether the problem's template and numbers hash to the held-out side of the split."""
    key = f"{problem.template}:{','.join(problem.numbers)}"
    return hashlib.sha256(key.encode()).digest()[0] % HELD_OUT_SHARE == 0


def draw_problem(rng: Templates) -> Problem:
    """A problem of any template: its steps are worked here, so that text and arithmetic cannot disagree."""
    template = rng.choice(TEMPLATES)
    numbers, question, work, written = getattr(rng, template)()
    steps, values = [], {}
    for line in work.split("; "):
        label, *terms, op = re.fullmatch(r"(.+): (.+) ([-+*/]) (.+)", line).group(1, 2, 4, 3)
        left, right = (values[term] if term in values else Decimal(term) for term in terms)
        exact = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[op](left, right)
        values[label] = int(exact) if exact == int(exact) else exact
        steps.append(Step(label, plain(left), op, plain(right), plain(values[label])))
    return Problem(template, tuple(map(plain, numbers)), question, tuple(steps), written(values[label]))


def plain(value: Number) -> str:
    """A number as digits: 7.50 becomes 7.5, 1200 stays 1200."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def money(value: Number) -> str:
    """Dollars as written on a receipt: $4, $13.50, $1,200."""
    return f"{'-' if value < 0 else ''}${abs(value):,.2f}".removesuffix(".00")


class Templates(random.Random):
    """A generator of random numbers that draws word problems: one method a template, chosen in this order."""

    def give_and_find(self) -> Drawn:
        a, b, c = self.randint(8, 25), self.randint(2, 7), self.randint(2, 9)
        (name, friend), item = self.sample(NAMES, 2), self.choice(SMALL)
        question = f"{name} has {a} {item}, gives {b} of them to {friend} and then finds {c} more. How many {item} does {name} have now?"
        return (a, b, c), question, f"left: {a} - {b}; now: left + {c}", plain

    def boxes_and_broken(self) -> Drawn:
        a, b, c, item = self.randint(3, 9), self.randint(4, 9), self.randint(2, 9), self.choice(ITEMS)
        question = f"A shop gets {a} boxes with {b} {item} in each box. {c} of the {item} are broken. How many good {item} are there?"
        return (a, b, c), question, f"all: {a} * {b}; good: all - {c}", plain

    def two_kinds(self) -> Drawn:
        a, p, b, q = (self.randint(2, 6) for _ in range(4))
        name, (first, second) = self.choice(NAMES), self.sample(ITEMS, 2)
        question = (
            f"{name} buys {a} {first} at ${p} each and {b} {second} at ${q} each. How many dollars does {name} spend?"
        )
        return (a, p, b, q), question, f"{first}: {a} * {p}; {second}: {b} * {q}; total: {first} + {second}", money

    def temperature(self) -> Drawn:
        a, b, c = self.randint(-5, 9), self.randint(4, 12), self.randint(2, 9)
        turn, sign = ("rises", "+") if self.random() < 0.5 else ("falls", "-")
        question = f"In the evening it is {a} degrees. By night the temperature falls by {b} degrees, and by morning it {turn} by {c} degrees. What is the temperature in the morning?"
        return (a, b, c if turn == "rises" else -c), question, f"night: {a} - {b}; morning: night {sign} {c}", plain

    def account(self) -> Drawn:
        a, b, c, name = self.randint(5, 20), self.randint(15, 30), self.randint(2, 12), self.choice(NAMES)
        question = f"{name} has ${a} in an account that may go below zero. {name} pays a bill of ${b} and then puts in ${c}. What is the balance in dollars?"
        return (a, b, c), question, f"after the bill: {a} - {b}; balance: after the bill + {c}", money

    def times_as_many(self) -> Drawn:
        a, k = self.randint(3, 15), self.randint(2, 6)
        (name, friend), item = self.sample(NAMES, 2), self.choice(SMALL)
        question = f"{name} has {a} {item}. {friend} has {TIMES[k]} as many. How many {item} do they have together?"
        return (a, k), question, f"{friend}: {a} * {k}; both: {a} + {friend}", plain

    def three_friends(self) -> Drawn:
        a, k, c = self.randint(2, 9), self.randint(2, 4), self.randint(2, 9)
        (x, y, z), item = self.sample(NAMES, 3), self.choice(SMALL)
        question = f"{x} has {a} {item}. {y} has {TIMES[k]} as many as {x}, and {z} has {c} more than {y}. How many {item} do the three have in all?"
        work = f"{y}: {a} * {k}; {z}: {y} + {c}; two of them: {a} + {y}; all three: two of them + {z}"
        return (a, k, c), question, work, plain

    def share_and_eat(self) -> Drawn:
        b, each = self.randint(2, 9), self.randint(4, 12)
        c, total = self.randint(1, each - 1), b * each
        question = f"{b} children share {total} nuts equally. Each child eats {c} of them at once. How many nuts does each child have left?"
        return (b, total, c), question, f"each: {total} / {b}; left: each - {c}", plain

    def sale_price(self) -> Drawn:
        percent, price, post = self.choice((10, 20, 25, 50)), 20 * self.randint(1, 10), self.randint(2, 9)
        item = self.choice(("coat", "lamp", "chair", "radio", "tent", "bag"))
        question = f"A {item} costs ${price}. It is sold with {percent} percent off, and delivery costs ${post}. How many dollars does the {item} cost with delivery?"
        work = f"off: {price} * {Decimal(percent) / 100}; sale price: {price} - off; total: sale price + {post}"
        return (price, percent, post), question, work, money

    def percent_right(self) -> Drawn:
        n = self.choice((10, 20, 25, 50))
        wrong = self.randint(1, n - 1)
        name, thing = self.choice(NAMES), self.choice(("questions in a quiz", "throws in a game", "words in a test"))
        question = f"{name} has {n} {thing} and gets {wrong} of them wrong. What percent does {name} get right?"
        return (n, wrong), question, f"right: {n} - {wrong}; percent: right * {100 // n}", "{}%".format

    def two_part_trip(self) -> Drawn:
        a, h, b, g = 10 * self.randint(3, 9), self.randint(2, 4), 10 * self.randint(3, 9), self.randint(2, 4)
        question = f"A bus drives for {h} hours at {a} km an hour and then for {g} hours at {b} km an hour. How many km does it drive?"
        work = f"first part: {a} * {h}; second part: {b} * {g}; total: first part + second part"
        return (a, h, b, g), question, work, "{:,}".format

    def cafe_bill(self) -> Drawn:
        a, p, q = self.randint(2, 5), Decimal(self.randint(3, 9)) / 2, Decimal(self.randint(3, 12)) / 2
        name = self.choice(NAMES)
        drink, cake = self.choice(("coffees", "teas", "juices")), self.choice(("cake", "salad", "sandwich"))
        question = (
            f"{name} orders {a} {drink} at {money(p)} each and one {cake} for {money(q)}. How many dollars is the bill?"
        )
        return (a, p, q), question, f"{drink}: {a} * {p}; bill: {drink} + {q}", money

    def change_back(self) -> Drawn:
        a, p, note = self.randint(2, 5), Decimal(self.randint(1, 7)) / 4, self.choice((10, 20, 50))
        item, name = self.choice(ITEMS), self.choice(NAMES)
        question = f"{name} buys {a} {item} at {money(p)} each and pays with a ${note} note. How many dollars of change does {name} get?"
        return (a, p, note), question, f"cost: {a} * {p}; change: {note} - cost", money

    def factory(self) -> Drawn:
        a, h, bad, item = 100 * self.randint(1, 9), self.randint(2, 9), 10 * self.randint(1, 9), self.choice(ITEMS)
        question = f"A factory makes {a} {item} an hour and works for {h} hours. {bad} of the {item} fail the test. How many {item} pass the test?"
        return (a, h, bad), question, f"made: {a} * {h}; good: made - {bad}", "{:,}".format

    def theatre(self) -> Drawn:
        rows, seats, p = 10 * self.randint(2, 6), self.randint(5, 9), self.randint(2, 5)
        question = f"A theatre has {rows} rows with {seats} seats in each row. All seats are sold at ${p} each. How many dollars does the theatre take in?"
        return (rows, seats, p), question, f"seats: {rows} * {seats}; income: seats * {p}", money

    def average_of_three(self) -> Drawn:
        a, b = self.randint(2, 12), self.randint(2, 12)
        c, name = self.choice([c for c in range(2, 13) if (a + b + c) % 3 == 0]), self.choice(NAMES)
        question = f"{name} scores {a}, {b} and {c} points in three games. What is {name}'s average score?"
        work = f"two games: {a} + {b}; three games: two games + {c}; average: three games / 3"
        return (a, b, c), question, work, plain

    def cut_the_rope(self) -> Drawn:
        k, piece, rest = self.randint(2, 5), Decimal(self.randint(3, 11)) / 2, Decimal(self.randint(1, 9)) / 2
        rope, thing = k * piece + rest, self.choice(("rope", "ribbon", "cable", "pipe"))
        question = f"A {thing} is {plain(rope)} metres long. {k} pieces of {plain(piece)} metres are cut from it. How many metres are left?"
        return (rope, k, piece), question, f"used: {k} * {piece}; left: {rope} - used", plain

    def fence(self) -> Drawn:
        a, b, p = self.randint(3, 10), self.randint(3, 10), self.randint(2, 5)
        question = f"A garden is {a} metres long and {b} metres wide. A fence around it costs ${p} for each metre. How many dollars does the fence cost?"
        return (a, b, p), question, f"half way: {a} + {b}; around: half way * 2; cost: around * {p}", money

    def wages(self) -> Drawn:
        h, p, days, rent = self.randint(2, 8), self.randint(8, 12), self.randint(2, 3), 10 * self.randint(1, 3)
        name = self.choice(NAMES)
        question = f"{name} works {h} hours a day for {days} days at ${p} an hour and then pays ${rent} for tools. How many dollars does {name} have left?"
        return (h, p, days, rent), question, f"a day: {h} * {p}; pay: a day * {days}; left: pay - {rent}", money

    def pages_to_read(self) -> Drawn:
        a, d, rest, per_day = self.randint(5, 10), self.randint(2, 4), self.randint(2, 5), self.randint(4, 12)
        pages, name = a * d + rest * per_day, self.choice(NAMES)
        question = f"A book has {pages} pages. {name} reads {a} pages a day for {d} days and wants to read the rest in {rest} days. How many pages a day is that?"
        return (pages, a, d, rest), question, f"read: {a} * {d}; left: {pages} - read; days: left / {rest}", plain

    def lift_floors(self) -> Drawn:
        a, b, c, d = self.randint(1, 9), self.randint(4, 12), self.randint(2, 8), self.randint(2, 9)
        question = f"A lift starts on floor {a}, goes down {b} floors, up {c} floors and down {d} floors. Floors below zero are in the basement. On which floor does it stop?"
        return (a, b, c, d), question, f"down: {a} - {b}; up: down + {c}; down: up - {d}", plain

    def school_trip(self) -> Drawn:
        ranges = ((2, 4), (4, 9), (4, 9), (2, 4), (3, 9))
        a, p, c, q, off = (self.randint(*ends) for ends in ranges)
        question = f"Tickets for the zoo cost ${p} for an adult and ${q} for a child. A group of {a} adults and {c} children has a voucher of ${off}. How many dollars does the group pay?"
        work = f"adults: {a} * {p}; children: {c} * {q}; all: adults + children; to pay: all - {off}"
        return (p, q, a, c, off), question, work, money

    def egg_farm(self) -> Drawn:
        hens, days, per_box = self.randint(4, 9), self.randint(2, 5), self.choice((2, 3, 4))
        eggs = hens * days
        broken = self.choice([b for b in range(1, 9) if eggs - b >= per_box and (eggs - b) % per_box == 0])
        p = self.randint(2, 6)
        question = f"{hens} hens lay one egg a day each for {days} days. {broken} of the eggs break, and the others are sold in boxes of {per_box} at ${p} a box. How many dollars come in?"
        work = f"eggs: {hens} * {days}; whole: eggs - {broken}; boxes: whole / {per_box}; income: boxes * {p}"
        return (hens, days, broken, per_box, p), question, work, money

    def savings_goal(self) -> Drawn:
        goal = self.choice((100, 120, 150, 200))
        a, w, gift = self.randint(3, 9), self.randint(3, 6), 5 * self.randint(1, 4)
        name, thing = self.choice(NAMES), self.choice(("bike", "phone", "guitar", "camera"))
        question = f"A {thing} costs ${goal}. {name} saves ${a} a week for {w} weeks and gets ${gift} as a gift. How many more dollars does {name} need?"
        work = f"saved: {a} * {w}; with the gift: saved + {gift}; missing: {goal} - with the gift"
        return (goal, a, w, gift), question, work, money


TEMPLATES = [name for name in vars(Templates) if not name.startswith("_")]


def main() -> None:
    write_jsonl(WORD_PROBLEMS, rows := make_rows())
    print(f"{relative(WORD_PROBLEMS)}: {len(rows)} problems from {len(TEMPLATES)} templates")


if __name__ == "__main__":
    main()
