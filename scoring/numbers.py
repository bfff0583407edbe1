"""Numbers as people and models write them: signs, thousands, fractions, currencies, units."""

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
# Units that a task may well confuse, each with its other spellings. Two different known units make two answers differ.
UNIT_SPELLINGS = """
    dollar $ us$ ca$ au$ usd dollars buck bucks | cent ¢ cents | euro € eur euros | yen ¥ jpy | rupee ₹ inr rs rs. rupees
    franc chf francs | yuan cny | won ₩ | rouble ₽ | lira ₺ | baht ฿ | peso ₱ | percent % pct | degree ° degrees
    second s sec secs seconds | minute min mins minutes | hour h hr hrs hours | day days | week weeks wk wks
    month months | year years yr yrs
    millimetre mm millimetres millimeter millimeters | centimetre cm centimetres centimeter centimeters
    metre m metres meter meters | kilometre km kms kilometres kilometer kilometers
    inch inches | foot ft feet | yard yd yards | mile mi miles
    milligram mg milligrams | gram g grams | kilogram kg kgs kilo kilos kilograms | ounce oz ounces | pound lb lbs
    millilitre ml millilitres milliliter milliliters | litre l litres liter liters | gallon gal gallons
    byte bytes | kilobyte kb kilobytes | megabyte mb megabytes | gigabyte gb gigabytes | terabyte tb terabytes
"""
UNITS = {spelling: unit.split()[0] for unit in re.split(r"[|\n]", UNIT_SPELLINGS.strip()) for spelling in unit.split()}
UNITS |= {"£": "pound sterling", "gbp": "pound sterling", "mph": "mile per hour", "per cent": "percent"}
UNITS |= {f"°{name[0]}": f"degree {name}" for name in ("celsius", "fahrenheit")}
UNITS |= {f"degrees {name}": f"degree {name}" for name in ("celsius", "fahrenheit")}
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
    if word in POWERS:
        return UNITS.get(rest, rest) + POWERS[word]
    base, power = re.fullmatch(r"(.*?)(?:\^?([23]))?", part.strip(), re.DOTALL).groups()
    return UNITS.get(base, base) + (f"^{power}" if power else "")


def units_differ(one: str, other: str) -> bool:
    """Whether both name a unit, at least one of them is known, and they are not the same (or one only adds its "per")."""
    if not one or not other or one == other:
        return False
    first, second = sorted((canonical_unit(one), canonical_unit(other)), key=len)
    known = any(part.split("^")[0] in KNOWN_UNITS for part in (*first, *second))
    return known and first != second[: len(first)]


def same_number(found: tuple[Fraction, str], wanted: tuple[Fraction, str]) -> bool:
    """Whether two numbers with their units are the same; 0.5% is not 0.5, though 50% may be called 50."""
    if found[0] != wanted[0] or units_differ(found[1], wanted[1]):
        return False
    return not (found[1] == "percent" and not wanted[1] and abs(wanted[0]) < 1 and wanted[0])


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
VULGAR_FRACTION = re.compile("[¼-¾⅐-⅟↉]")
ANNOUNCED = re.compile(r"(?:(?:so|thus|therefore|hence),? )?(?:the )?(?:final |correct )?answer(?: is|:) ")


def extract_number(text: str) -> Fraction | None:
    """The number that a short text states, exactly; None unless the text is one number.

    Understood: signs, decimals, thousands separators, currency, percent (85% is 85), a unit, fractions, scientific
    notation, "5 million", LaTeX, and bold, quotes or a full stop around it. "about 5" and "4 or 5" are not one number.

    >>> extract_number("**$1,200.50**"), extract_number("−3 degrees"), extract_number("1 1/2")
    (Fraction(2401, 2), Fraction(-3, 1), Fraction(3, 2))
    >>> extract_number("4 or 5"), extract_number("at least 5"), extract_number("1,20")
    (None, None, None)
    """
    found = read_number(text)
    return found[0] if found else None


def read_number(text: str) -> tuple[Fraction, str] | None:
    """(the exact value, the unit) of a text that is one number, or None. The unit is a name in UNITS, or as it stands."""
    return parse_number(text) if len(text) <= LONGEST_NUMBER else None


@functools.lru_cache(maxsize=65_536)  # which holds no long texts
def parse_number(text: str) -> tuple[Fraction, str] | None:
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
    value = value_of(match)
    if value is None or re.search(r"\dm$", undressed):  # "5m" may be metres or millions; "5 m" is metres
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
    text = re.sub(r"(?<=[a-zA-Z])[²³]", lambda match: "^2" if match[0] == "²" else "^3", text)  # m², but not 12²
    text = VULGAR_FRACTION.sub(lambda match: f" {unicodedata.normalize('NFKC', match[0])}".replace("⁄", "/"), text)
    text = THIN_SPACES.sub("", text)
    if any(unicodedata.category(char) == "No" for char in text) or re.search(r"\d\s?M\b", text):
        return None  # superscripts and circled digits, which NFKC would glue to the digits beside them; millions
    text = unicodedata.normalize("NFKC", text).casefold()
    text = text.replace("−", "-").replace("–", "-").strip(DRESSING).removesuffix(".").strip(DRESSING)
    return ANNOUNCED.sub("", " ".join(text.split()), count=1) if text.replace("\n", " ").isprintable() else None


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
