"""Answers with a structure: JSON against a JSON Schema, countdown sums, schedules."""

from __future__ import annotations

import ast
import bisect
import functools
import json
import math
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from scoring.answers import plain_text


def whole_numbers(values: Any) -> list[int]:
    """The values as ints; empty where one of them is not a whole number."""
    try:
        found = [(value, int(value)) for value in values]
    except (TypeError, ValueError, OverflowError):
        return []
    return [whole for _, whole in found] if all(value == whole for value, whole in found) else []


LONGEST_SUM = 300  # characters
SUM = re.compile(r"[\d\s()+\-*/]+", re.ASCII)
SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
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
        left, right = value(node.left), value(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        return left * right if isinstance(node.op, ast.Mult) else left / right

    try:
        return value(ast.parse(text, mode="eval").body), used
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


CLOCK = re.compile(r"[-*•\s]{0,8}(\d{1,2}):(\d{2})\s{0,3}(?:-|–|to)\s{0,3}(\d{1,2}):(\d{2})[\s:,]{1,5}(\S.*)")
LONGEST_LINE = 300  # characters of one entry of a schedule


def read_events(events: Any) -> dict[tuple[int, int, str], float]:
    """{(start, end, name): weight}, times in minutes; empty where the events cannot be used."""
    try:
        rows = json.loads(events) if isinstance(events, str) else events
        found = {}
        for row in rows:
            start, end = (60 * int(h) + int(m) for h, m in (str(row[key]).split(":") for key in ("start", "end")))
            weight = row.get("weight")
            found[start, end, plain_text(str(row["name"]))] = 1.0 if weight is None else float(weight)
            if end <= start or not 0 < found[start, end, plain_text(str(row["name"]))] < math.inf:
                return {}
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


FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*)\n?```", re.DOTALL)
PARSED = 0.2  # what JSON that parses is worth before any of the schema is held


@functools.lru_cache(maxsize=1_000)
def json_validator(schema: str) -> Any:
    """A validator for the schema, or None where there is no usable schema in it."""
    import jsonschema

    try:
        parsed = json.loads(schema)
        if (
            not isinstance(parsed, dict)
            or not parsed
            or not all(reference_exists(parsed, r) for r in references(parsed))
        ):
            return None
        kind = jsonschema.validators.validator_for(parsed, jsonschema.Draft202012Validator)
        kind.check_schema(parsed)
        return jsonschema.validators.extend(kind, {"uniqueItems": unique_items})(parsed)
    except (ValueError, RecursionError, jsonschema.SchemaError):
        return None


def references(schema: Any) -> Iterable[Any]:
    """Every `$ref` in a schema."""
    if isinstance(schema, dict):
        yield from ([schema["$ref"]] if "$ref" in schema else [])
        schema = list(schema.values())
    for part in schema if isinstance(schema, list) else ():
        yield from references(part)


def reference_exists(schema: Any, reference: Any) -> bool:
    """Whether a `$ref` points into the schema itself: nothing is fetched."""
    if not isinstance(reference, str) or not re.match(r"#(/|$)", reference):
        return False
    for name in reference.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if not isinstance(schema, dict) or name not in schema:
            return False
        schema = schema[name]
    return True


def unique_items(validator: Any, wanted: bool, value: Any, schema: Any) -> Iterable[Any]:
    """jsonschema's own compares every pair, which a long list of a policy's turns into minutes."""
    from jsonschema import ValidationError

    if wanted and isinstance(value, list) and len({canonical_json(item) for item in value}) < len(value):
        yield ValidationError("the items are not all different")


def canonical_json(value: Any) -> str:
    """Text that is equal for equal JSON values: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return f"[{','.join(map(canonical_json, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{canonical_json(value[key])}" for key in sorted(value)) + "}"
    return json.dumps(value)


def finite_float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no number that can be held")
    return value


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice")
    return found


NOT_DEMANDS = {
    "properties",
    "required",
    "then",
    "else",
    "$schema",
    "$id",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "$comment",
}
TOGETHER = {
    "items": ("prefixItems",),
    "if": ("then", "else"),
    "contains": ("minContains", "maxContains"),
    "additionalProperties": ("patternProperties",),
}


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
