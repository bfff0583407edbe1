"""Answers with a structure: multiple choice, countdown sums, schedules, JSON against a JSON Schema."""

import ast
import bisect
import functools
import json
import math
import numbers
import operator
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from scoring.answers import gold_text, plain_text
from scoring.mathematics import unwrap_formula

ANNOUNCED = r"(?:(?:the )?(?:correct )?(?:answer|option|choice)(?: is)?:? )?"
CHOICE = re.compile(ANNOUNCED + r"\(?([a-z])\)?(?:[.):]|\s|$)\s*(.*)", re.DOTALL)
LONGEST_CHOICE = 200  # characters around the text of a choice


def choice_index(answer: Any, texts: list[str]) -> int | None:
    """Which of the choices, as `plain_text`, the gold means, from 0: a text, an index, or a letter; None for none."""
    if isinstance(answer, numbers.Integral) and not isinstance(answer, bool):
        return int(answer) if 0 <= answer < (len(texts) or 26) else None
    gold = plain_text(gold_text(answer) or "")
    if gold in texts:
        return texts.index(gold)
    match = CHOICE.fullmatch(gold)
    return index if match and (index := ord(match[1]) - ord("a")) < (len(texts) or 26) else None


def chosen_index(given: str, texts: list[str]) -> int | None:
    """Which choice an answer names, from 0: by its text, its letter, or both in agreement; None for none."""
    if len(given) > LONGEST_CHOICE + max(map(len, texts), default=0):
        return None
    given = plain_text(unwrap_formula(given)).strip("[]")
    if texts.count(given) == 1:  # the text first: a choice may be called "b" and not be the second
        return texts.index(given)
    if match := CHOICE.fullmatch(given):
        index = ord(match[1]) - ord("a")
        return index if not match[2] or plain_text(match[2]) in texts[index : index + 1] else None
    return None


def whole_numbers(values: Any) -> list[int]:
    """The values as ints; empty where one of them is not a whole number."""
    try:
        whole = [int(value) for value in values]
        return whole if whole == list(values) else []
    except (TypeError, ValueError, OverflowError):
        return []


LONGEST_SUM = 300  # characters
SUM = re.compile(r"[\d\s()+\-*/]+", re.ASCII)
SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
LATEX_SIGNS = ((re.compile(r"\\times|\\cdot|(?<=[\d) ])x(?=[\d( ])"), "*"), (re.compile(r"\\div"), "/"))


def arithmetic(expression: str) -> tuple[Fraction, list[int]] | None:
    """(value, whole numbers used) of a sum with + − × ÷ and parentheses, or None for anything else.

    >>> arithmetic("(5 - 3) × 4"), arithmetic("9**9**9"), arithmetic("1 / 0")
    ((Fraction(8, 1), [5, 3, 4]), None, None)
    """
    if len(expression) > LONGEST_SUM:
        return None
    text = expression.translate(SIGNS).strip()
    for pattern, sign in LATEX_SIGNS if "0x" not in text else ():
        text = pattern.sub(sign, text)
    if not SUM.fullmatch(text) or "**" in text or "//" in text:
        return None
    used: list[int] = []

    def value(node: ast.AST) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            used.append(node.value)
            return Fraction(node.value)
        if not isinstance(node, ast.BinOp):
            raise ValueError("a sign in front of a number, or two numbers side by side")
        return OPERATIONS[type(node.op)](value(node.left), value(node.right))

    try:
        return value(ast.parse(text, mode="eval").body), used
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


CLOCK = re.compile(r"[-*•\s]{0,8}(\d{1,2}):(\d{2})\s{0,3}(?:-|–|to)\s{0,3}(\d{1,2}):(\d{2})[\s:,]{1,5}(\S.*)")
LONGEST_LINE = 300  # characters of one entry of a schedule
MORNING = {  # a small problem, for the audit and the cases; the best choice weighs 3
    "events": """[{"name": "Standup", "start": "09:00", "end": "09:30", "weight": 1},
{"name": "Review", "start": "09:15", "end": "10:00", "weight": 2}, {"name": "Lunch", "start": "12:00", "end": "13:00"}]""",
    "right": "09:15-10:00 Review\n12:00-13:00 Lunch",
}


def read_events(events: Any) -> dict[tuple[int, int, str], float]:
    """{(start, end, name): weight}, times in minutes; empty where the events cannot be used."""
    try:
        found = {}
        for row in json.loads(events) if isinstance(events, str) else events:
            start, end = (60 * int(h) + int(m) for h, m in (str(row[key]).split(":") for key in ("start", "end")))
            weight = 1.0 if row.get("weight") is None else float(row["weight"])
            if end <= start or not 0 < weight < math.inf:
                return {}
            found[start, end, plain_text(str(row["name"]))] = weight
        return found
    except (TypeError, ValueError, KeyError, AttributeError):
        return {}


def best_schedule(events: dict[tuple[int, int, str], float]) -> float:
    """The largest total weight of events that do not overlap (they may touch)."""
    ordered = sorted(events, key=lambda event: event[1])
    ends, best = [event[1] for event in ordered], [0.0]
    for i, event in enumerate(ordered):
        before = bisect.bisect_right(ends, event[0], 0, i)
        best.append(max(best[i], best[before] + events[event]))
    return best[-1]


def read_schedule(text: str) -> list[tuple[int, int, str]] | None:
    """(start, end, name) of each line such as `09:15-10:00 Review`, in order of time; None where a line is none."""
    chosen = []
    for line in filter(str.strip, text.splitlines()):
        match = CLOCK.fullmatch(line.strip()) if len(line) <= LONGEST_LINE else None
        if not match:
            return None
        h1, m1, h2, m2 = map(int, match.groups()[:4])
        chosen.append((60 * h1 + m1, 60 * h2 + m2, plain_text(match[5])))
    return sorted(chosen)


PERSON = """{"type": "object", "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer"}},
"required": ["name", "age"], "additionalProperties": false}"""
JSON_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*)\n?```", re.DOTALL)


@functools.lru_cache(maxsize=1_000)
def json_validator(schema: str) -> Any:
    """A validator for the schema, or None where there is no usable schema in it. References lead nowhere else."""
    import jsonschema
    import referencing.jsonschema

    try:
        parsed = json.loads(schema)
        if not isinstance(parsed, dict) or not parsed:
            return None
        kind = jsonschema.validators.validator_for(parsed, jsonschema.Draft202012Validator)
        kind.check_schema(parsed)
        resource = referencing.jsonschema.DRAFT202012.create_resource(parsed)
        resolver = referencing.Registry().with_resource("", resource).resolver()
        for reference in re.findall(r'"\$ref": ("(?:[^"\\]|\\.)*")', json.dumps(parsed)):
            resolver.lookup(json.loads(reference))
        return jsonschema.validators.extend(kind, {"uniqueItems": unique_items})(parsed)
    except (ValueError, RecursionError, jsonschema.SchemaError, referencing.exceptions.Unresolvable):
        return None


def unique_items(validator: Any, wanted: bool, value: Any, schema: Any) -> Iterable[Any]:
    """The keyword without jsonschema's comparison of all pairs, which takes minutes for a long list."""
    from jsonschema import ValidationError

    if wanted and isinstance(value, list) and len({json.dumps(item, sort_keys=True) for item in value}) < len(value):
        yield ValidationError("the items are not all different")


def strict_json(text: str) -> Any:
    """The value of a JSON text, with 1.0 as 1. Raises ValueError also for NaN, a number too large, a key given twice."""

    def number(digits: str) -> float | int:
        if not math.isfinite(value := float(digits)):
            raise ValueError(f"{digits} is no finite number")
        return int(value) if value.is_integer() else value

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) != len(pairs):
            raise ValueError("a key is given twice")
        return found

    return json.loads(text, parse_constant=number, parse_float=number, object_pairs_hook=unique)


NOT_DEMANDS = {"properties", "required", "then", "else"}  # keywords that are judged with others, or demand nothing
NOT_DEMANDS.update("$schema $id $defs definitions title description default examples $comment".split())
TOGETHER = {"items": ("prefixItems",), "if": ("then", "else"), "contains": ("minContains", "maxContains")}
TOGETHER["additionalProperties"] = ("patternProperties",)  # keywords that say nothing without these


def schema_share(validator: Any, value: Any) -> float:
    """The share of a schema's demands that the value holds; a nested property counts by its own share."""
    schema = validator.schema
    if not isinstance(schema, dict):
        return float(validator.is_valid(value))
    properties, required = schema.get("properties", {}), schema.get("required", [])
    held = []
    for keyword in schema.keys() - NOT_DEMANDS:
        together = schema if keyword.startswith("unevaluated") else (keyword, *TOGETHER.get(keyword, ()))
        demand = {name: schema[name] for name in together if name in schema}
        if keyword == "additionalProperties":
            demand["properties"] = dict.fromkeys(properties, True)  # judged below, one by one
        held.append(float(validator.evolve(schema=demand).is_valid(value)))
    for name in dict.fromkeys([*required, *properties]):
        if isinstance(value, dict) and name in value:
            held.append(schema_share(validator.evolve(schema=properties.get(name, True)), value[name]))
        elif name in required:
            held.append(0.0)
    return sum(held) / len(held) if held else 1.0
