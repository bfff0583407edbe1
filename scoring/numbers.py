"""Numbers as people and models write them: signs, thousands, fractions, currencies, units."""

from __future__ import annotations

import functools
import re
import unicodedata
from fractions import Fraction

CURRENCY = r"(?:(?:us|ca|au|nz|hk|c|a|s)?\$|[€£¥₹₩₽₺₫฿₪₱]|usd|eur|gbp|inr|jpy|chf|cny|rs\.)"
NUMBER = re.compile(
    rf"""(?:[a-z]\s?=\s?)?                                           # x = 12
        (?P<sign>[-+]?)\s?(?P<currency>{CURRENCY}?)\s?(?P<inner>[-+]?)
        (?:(?P<mixed>\d{{1,6}})\s(?=\d{{1,6}}\s?/))?                    # the 1 of 1 1/2
        (?P<whole>\d{{1,3}}(?:,\d{{3}})+|\d{{1,2}}(?:,\d{{2}})+,\d{{3}}|\d+)?(?P<decimals>\.\d+)?
        (?:e(?P<exponent>[-+]?\d{{1,3}})|\s?[x×*·]\s?10\^\{{?(?P<power>[-+]?\d{{1,3}})\}}?)?
        (?:\s?/\s?(?P<denominator>\d{{1,3}}(?:,\d{{3}})+|\d+))?
        (?:[\s-]?(?P<size>hundred|thousand|million|billion|trillion)s?)?
        (?P<unit>\s?[%¢°]|\s?{CURRENCY}|\s?°?[a-zµ]+(?:\^?[23])?|\s?[a-zµ]+/[a-zµ]+(?:\^?[23])?|\s(?:square|cubic)\s[a-z]+
        |\s[a-z]+\s(?:per|an|a|of)\s[a-z]+|\sper\s[a-z]+|\s?/\s?[a-z]+|\s(?:us\sdollars|degrees\s(?:celsius|fahrenheit)))?
        (?:\sin\stotal|\sin\sall|\saltogether|\sold)?""",
    re.VERBOSE,
)
PLAIN_INTEGER = re.compile(r"-?\d{1,300}", re.ASCII)
SIZES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
# Words after a number that are no unit: they change its size, doubt it, or make it one of several.
NOT_UNITS = frozenset(
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety tens hundred thousand million billion "
    "trillion quadrillion dozen lakh crore k kk mn mio mil b bn bil bln t tn half halve third quarter tenth hundredth "
    "thousandth squared cubed factorial doubled tripled halved twice times inverse negative minus plus e i x pi "
    "about around approx approximately circa ish roughly nearly almost maybe perhaps possibly probably presumably "
    "supposedly apparently seemingly likely unlikely hopefully somewhat something estimate estimated average odd "
    "unsure uncertain guess think hmm wrong incorrect correct right ok okay yes unknown none no not never n/a false true "
    "either or and nor but to until till than then through versus vs with otherwise also else another again wait "
    "fifth sixth seventh eighth ninth eleventh twelfth twentieth grand mln milliard lac score remainder modulo mod "
    "actually sorry instead rather between more less fewer few most least minimum maximum max some any etc nope nah "
    "above below over under up down short lower higher too if is was are be".split()
)
# Spellings of units that a task may well confuse. Two known units that differ make two answers differ.
UNITS = {
    spelling: unit
    for unit, spellings in {
        "dollar": "$ us$ ca$ au$ usd dollar dollars buck bucks",
        "cent": "¢ cent cents",
        "euro": "€ eur euro euros",
        "pound sterling": "£ gbp",
        "yen": "¥ jpy yen",
        "rupee": "₹ inr rs rs. rupee rupees",
        "percent": "% percent pct",
        "degree": "° degree degrees",
        "second": "s sec secs second seconds",
        "minute": "min mins minute minutes",
        "hour": "h hr hrs hour hours",
        "day": "day days",
        "week": "week weeks wk wks",
        "month": "month months",
        "year": "year years yr yrs",
        "millimetre": "mm millimetre millimetres millimeter millimeters",
        "centimetre": "cm centimetre centimetres centimeter centimeters",
        "metre": "m metre metres meter meters",
        "kilometre": "km kms kilometre kilometres kilometer kilometers",
        "inch": "inch inches",
        "foot": "ft foot feet",
        "yard": "yd yard yards",
        "mile": "mi mile miles",
        "milligram": "mg milligram milligrams",
        "gram": "g gram grams",
        "kilogram": "kg kgs kilo kilos kilogram kilograms",
        "ounce": "oz ounce ounces",
        "millilitre": "ml millilitre millilitres milliliter milliliters",
        "litre": "l litre litres liter liters",
        "gallon": "gal gallon gallons",
        "pound": "lb lbs",
        "franc": "chf franc francs",
        "yuan": "cny yuan",
        "won": "₩ won",
        "rouble": "₽",
        "lira": "₺",
        "baht": "฿",
        "peso": "₱",
        "byte": "byte bytes",
        "kilobyte": "kb kilobyte kilobytes",
        "megabyte": "mb megabyte megabytes",
        "gigabyte": "gb gigabyte gigabytes",
        "terabyte": "tb terabyte terabytes",
        "mile per hour": "mph",
        "degree celsius": "°c",
        "degree fahrenheit": "°f",
    }.items()
    for spelling in spellings.split()
}


UNITS |= {"per cent": "percent", "degrees celsius": "degree celsius", "degrees fahrenheit": "degree fahrenheit"}


KNOWN_UNITS = frozenset(UNITS.values())
PER = re.compile(r"\s?/\s?|\s?\b(?:per|an|a)\s")
POWERS = {"square": "^2", "cubic": "^3"}


def canonical_unit(unit: str) -> tuple[str, ...]:
    """The parts of a unit that stand above and below its "per", each in one spelling with its power.

    >>> canonical_unit("km/h"), canonical_unit("square meters"), canonical_unit("mph")
    (('kilometre', 'hour'), ('metre^2',), ('mile', 'hour'))
    """
    unit = UNITS.get(unit, unit)
    if unit in KNOWN_UNITS and " per " not in unit:
        return (unit,)
    return tuple(canonical_part(part) for part in PER.split(unit))


def canonical_part(part: str) -> str:
    word, _, rest = part.strip().partition(" ")
    power = POWERS.get(word, "")
    base = rest if power else part.strip()
    if not power and (match := re.fullmatch(r"(.*?)\^?([23])", base)):
        base, power = match[1], f"^{match[2]}"
    return UNITS.get(base, base) + power


def units_differ(one: str, other: str) -> bool:
    """Whether both name a unit, at least one of them is known, and they are not the same (or one only adds its "per")."""
    if not one or not other or one == other:
        return False
    first, second = sorted((canonical_unit(one), canonical_unit(other)), key=len)
    known = any(part.split("^")[0] in KNOWN_UNITS for part in (*first, *second))
    return known and first != second[: len(first)]


DRESSING = "*_`\"'“”‘’ \t\r\n"  # bold, code and quotes around an answer
LONGEST_NUMBER = 400  # characters; a longer "answer" is not one
LATEX = [  # how models dress a number in LaTeX, and the plain form of it
    (re.compile(r"\\(?:boxed|text|mathrm|mathbf|textbf)\s?\{([^{}]{0,400})\}"), r" \1 "),
    (re.compile(r"\\[dt]?frac\s?\{\s?(-?\d{1,100})\s?\}\s?\{\s?(\d{1,100})\s?\}"), r" \1/\2 "),
    (re.compile(r"\\[dt]?frac\s?(\d)\s?(\d)"), r" \1/\2 "),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"\\[,!;: ]|\\left|\\right"), ""),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\^\{?\\circ\}?"), "°"),
    (re.compile(r"\\times|\\cdot"), "×"),
    (re.compile(r"^\\[(\[]|\\[)\]]$"), ""),
]
THIN_SPACES = re.compile(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))")  # 1 200 with a space that does not break
ANNOUNCED = re.compile(r"(?:(?:so|thus|therefore|hence),? )?(?:the )?(?:final |correct )?answer(?: is|:) ")


def extract_number(text: str) -> Fraction | None:
    """The number that a short text states, exactly; None unless the text is one number.

    Understood: signs (also the unicode minus), decimals, thousands separators, currency, percent
    (85% is 85), a unit, fractions, scientific notation, "5 million", LaTeX, and bold, quotes or a
    full stop around it. A hedge ("about 5") or a choice ("4 or 5") is not one number.

    >>> extract_number("**$1,200.50**"), extract_number("−3 degrees"), extract_number("1 1/2")
    (Fraction(2401, 2), Fraction(-3, 1), Fraction(3, 2))
    >>> extract_number("4 or 5"), extract_number("at least 5"), extract_number("1,20")
    (None, None, None)
    """
    found = number_and_unit(text) if len(text) <= LONGEST_NUMBER else None
    return found[0] if found else None


@functools.lru_cache(maxsize=65_536)
def number_and_unit(text: str) -> tuple[Fraction, str] | None:
    """(the exact value, the unit as a key of UNITS or as it stands) of a text that is one number, or None."""
    if PLAIN_INTEGER.fullmatch(text):
        return Fraction(int(text)), ""
    undressed = undress_number(text)
    match = NUMBER.fullmatch(undressed) if undressed else None
    if not match or not (match["whole"] or match["decimals"]) or (match["sign"] and match["inner"]):
        return None
    unit = (match["unit"] or "").strip()
    words = re.findall(r"[a-z]+", unit)
    if any(word in NOT_UNITS or word.removesuffix("s") in NOT_UNITS or "illion" in word for word in words):
        return None
    if words and len(unit) < 4 and unit not in UNITS and (len(unit) == 1 or not match["unit"][0].isspace()):
        return None  # 12n or 3ab is algebra, or a size in letters
    if re.search(r"\dm$", undressed):
        return None  # "5m" may be metres or millions; "5 m" is metres
    value = value_of(match)
    if value is None:
        return None
    if match["currency"]:
        unit = f"{match['currency']} {unit}" if PER.match(unit) else match["currency"]
    return (-value if "-" in (match["sign"], match["inner"]) else value), UNITS.get(unit, unit)


def undress_number(text: str) -> str | None:
    """The text in lower case without LaTeX, bold, quotes and final stop; None where it holds digits that are no digits."""
    text = text.strip(DRESSING).replace("**", "")
    while len(text) > 2 and text[0] == text[-1] == "$":  # a LaTeX formula; one dollar alone is currency
        text = text[1:-1].strip()
    if "\\" in text or "{" in text:
        for pattern, plain in LATEX:
            text = pattern.sub(plain, text).strip()
    text = re.sub(r"(?<=[a-zA-Z])²", "^2", text)  # m² is a unit, 12² is not 122
    text = re.sub(r"(?<=[a-zA-Z])³", "^3", text)
    text = THIN_SPACES.sub("", "".join(vulgar_fraction(char) for char in text))
    if any(unicodedata.category(char) == "No" for char in text) or re.search(r"\d\s?M\b", text):
        return None  # superscripts and circled digits, which NFKC would glue to the digits beside them; millions
    text = unicodedata.normalize("NFKC", text).casefold()
    text = text.replace("−", "-").replace("–", "-").strip(DRESSING).removesuffix(".").strip(DRESSING)
    return ANNOUNCED.sub("", " ".join(text.split()), count=1) if text.replace("\n", " ").isprintable() else None


def vulgar_fraction(char: str) -> str:
    """½ as " 1/2"; any other character as it is."""
    parts = unicodedata.decomposition(char).split() if char > "~" else ()
    return (
        " " + "".join(chr(int(p, 16)) for p in parts[1:]).replace("⁄", "/")
        if parts and parts[0] == "<fraction>"
        else char
    )


def value_of(match: re.Match) -> Fraction | None:
    """The unsigned value of a match of NUMBER, in exact arithmetic; None for a division by zero."""
    value = Fraction((match["whole"] or "0").replace(",", "") + (match["decimals"] or ""))
    value *= Fraction(10) ** int(match["exponent"] or match["power"] or 0)
    if match["denominator"]:
        denominator = int(match["denominator"].replace(",", ""))
        if not denominator or (match["mixed"] and not value < denominator):
            return None
        value /= denominator
    return (value + int(match["mixed"] or 0)) * SIZES.get(match["size"], 1)
