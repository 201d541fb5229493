"""Reads an answer: what kind of object it is, and its parts as SymPy expressions. All of it is parsed, or nothing.

A grammar of our own, because the published ones accept more than they read: latex2sympy2 reads 2(3) as 5, 12_5 as 12
and x' as x, and stops without a word at what it does not know; what is ignored in a reward is exploited.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import sympy

from scope_jax.grading.mathematics import expressions
from scope_jax.grading.mathematics.expressions import Unreadable
from scope_jax.grading.mathematics.notation import FUNCTIONS, MONEY, closing, plain

RELATIONS = {"<": "<", ">": ">", "=": "=", r"\le": "<=", r"\ge": ">=", r"\ne": "!=", r"\approx": "=", r"\equiv": "="}
_RELATION = re.compile(r"<=|>=|!=|[<>=]|\\(?:le|ge|ne|approx|equiv)(?![A-Za-z])")
_TEXT_UNIT = re.compile(r"\\text\s*\{([^{}]*)\}")
_DECIMAL = re.compile(r"[-+]?\s*(\d+\.\d*|\.\d+)(?:\s*\\times\s*10\s*\^\s*\{?\s*[-+]?\d+\s*\}?)?")
_BASED = re.compile(r"(\d+)\s*_\s*(?:\{\s*(\d+|\\text\s*\{[a-z]+\})\s*\}|(\d))")
_OPEN, _CLOSE = ("(", "[", r"\{"), (")", "]", r"\}")
# words that change the value of the number before them, and therefore are no unit
_NO_UNIT = re.compile(
    r"\b(?:and|or|to|over|plus|minus|times|divided|multiplied|by|squared|cubed|half|halves|thirds?|quarters?|fourths?|fifths?"
    r"|sixths?|sevenths?|eighths?|ninths?|tenths?|dozen|score|factorial|point|power|mod|modulo|base|less|more|fewer|greater"
    r"|negative|positive|not|no|if|unless|when|where|for|from|through|than|except|between|is|are|was|pi|of|nor|but|with|without"
    r"|at|least|most|about|roughly|otherwise|root|remainder|choose|thousandths?|hundredths?|million|billion)\b",
    re.IGNORECASE,
)
_UNITS = {  # by the name that is compared
    MONEY: "dollar usd", "deg": "degree", "second": "s sec", "minute": "min", "hour": "h hr", "year": "yr",
    "inch": "in inche", "foot": "ft feet", "meter": "m metre", "pound": "lb",
    "centimeter": "cm centimetre", "millimeter": "mm millimetre", "square": "sq",
    "kilometer": "km kilometre", "kilogram": "kg", "gram": "g", "liter": "l litre", "joule": "J", "newton": "N",
    "watt": "W", "volt": "V", "kelvin": "K", "pascal": "Pa", "hertz": "Hz", "mile / hour": "mph",
}  # fmt: skip
_ALIASES = {other: name for name, others in _UNITS.items() for other in others.split()}
_SHORT = (
    "cm mm km m kg mg g s h l ml ft lb lbs oz hr hrs min sec mph deg rad K J N W V Pa Hz kW erg eV day men cup egg per"
)
_SHORT_UNITS = frozenset(_SHORT.split())


@dataclass(frozen=True)
class Scalar:
    """A number or formula."""

    value: sympy.Expr
    unit: str = ""
    """normalised; "" if none is written"""
    percent: bool = False
    digits: str | None = None
    """the digits of a number in decimal notation, None for everything else"""
    name: str | None = None
    """what it is said to be the value of: x in "x = 3"""


@dataclass(frozen=True)
class MathGroup:
    """Several objects: a pair or interval by its brackets, a set with braces, a plain enumeration without any."""

    opening: str
    closing: str
    items: tuple[Answer, ...]
    name: str | None = None


@dataclass(frozen=True)
class Union:
    """A union of sets and intervals."""

    parts: tuple[Answer, ...]
    name: str | None = None


@dataclass(frozen=True)
class Relation:
    """An equation or inequality, or a chain of them."""

    sides: tuple[sympy.Expr, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True)
class Matrix:
    """Rows of numbers or formulas."""

    rows: tuple[tuple[sympy.Expr, ...], ...]
    name: str | None = None


@dataclass(frozen=True)
class Based:
    """Digits in a base other than ten, as 132_5."""

    digits: str
    base: str


@dataclass(frozen=True)
class Words:
    """An answer in words, compared letter by letter."""

    text: str


Answer = Scalar | MathGroup | Union | Relation | Matrix | Based | Words


def read(text: str) -> Answer:
    """The answer in `text`. Raises Unreadable unless all of it is understood."""
    return _answer(plain(text))


def _answer(text: str) -> Answer:
    if not text:
        raise Unreadable("empty")
    if re.fullmatch(r"\][^\[\]]*[\[\]]|\[[^\[\]]*\[", text):  # ]1, 2[ is (1, 2)
        text = f"{text[0].replace(']', '(')}{text[1:-1]}{text[-1].replace('[', ')')}"
    parts = _split(text)
    if len(parts) == 1 and re.search(r"\\(?:pm|mp)(?![A-Za-z])", text):
        parts = [_signed(text, "+", "-"), _signed(text, "-", "+")]
    if len(parts) > 1:
        return _enumeration(parts)
    relations = list(_outside(text, _RELATION))
    if relations:
        return _relation(text, relations)
    return _single(text)


def _signed(text: str, upper: str, lower: str) -> str:
    r"""`text` with one sign for \pm and the other for \mp."""
    return re.sub(r"\\mp(?![A-Za-z])", lower, re.sub(r"\\pm(?![A-Za-z])", upper, text))


# ------------------------------------------------------------------------------------------------------- enumerations
_SEPARATOR = re.compile(
    r"\s*[,;]\s*(?:\\text\s*\{\s*)?(?:(?:and|or)\b(?:\s*\})?)?\s*|\s*\\text\s*\{\s*,?\s*(?:and|or)\s*\}\s*|\s+(?:and|or)\s+"
)


def _split(text: str) -> list[str]:
    """The elements of an enumeration, separated outside of all brackets."""
    parts, start = [], 0
    for found in _outside(text, _SEPARATOR):
        parts.append(text[start : found.start()])
        start = found.end()
    return [*parts, text[start:]]


def _outside(text: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """The matches of `pattern` that are not inside of brackets or braces. Raises Unreadable if these do not pair."""
    found, depth, place = [], 0, 0
    while place < len(text):
        here = text[place : place + 2] if text[place] == "\\" else text[place]
        if depth == 0 and (match := pattern.match(text, place)) and match.end() > place:
            found.append(match)
            place = match.end()
            continue
        if here in ("(", "[", "{", r"\{") or text.startswith(r"\begin", place):
            depth += 1
        elif here in (")", "]", "}", r"\}") or text.startswith(r"\end", place):
            depth -= 1
        if depth < 0:
            raise Unreadable("brackets")
        if text.startswith((r"\begin", r"\end"), place):
            place = text.find("}", place) + 1 or len(text)
            continue
        place += len(here)
    return found


def _enumeration(parts: list[str]) -> Answer:
    """x = 1, 2 and x = 1, x = 2 are one enumeration of the values of x."""
    items = _items(parts)
    names = {_name(item) for item in items}
    values = [item for item in items if not isinstance(item, Relation)]
    if len(values) == len(items) and len(names) == 2 and None in names and _name(items[0]) is not None:
        (name,) = names - {None}
        return MathGroup("", "", tuple(_named(item, None) for item in items), name)
    if len(values) == len(items) and len(names) == 1 and None not in names:
        return MathGroup("", "", tuple(_named(item, None) for item in items), names.pop())
    return MathGroup("", "", tuple(items))


def _items(parts: list[str]) -> list[Answer]:
    """The elements; both values of one with a sign for plus and minus."""
    items: list[Answer] = []
    for answer in (_answer(part.strip()) for part in parts):
        items += answer.items if isinstance(answer, MathGroup) and not answer.opening and not answer.name else [answer]
    return items


def _name(answer: Answer) -> str | None:
    return answer.name if isinstance(answer, Scalar | MathGroup | Union | Matrix) else None


def _named(answer: Answer, name: str | None) -> Answer:
    return replace(answer, name=name) if isinstance(answer, Scalar | MathGroup | Union | Matrix) else answer


# ---------------------------------------------------------------------------------------------------------- relations
_VARIABLE = re.compile(
    r"\\?[A-Za-z]+(?:_(?:\w|\{[^{}]*\}))?'*(?:\s*\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])*\s*\))?|\\text\s*\{[^{}]*\}"
)


def _relation(text: str, found: list[re.Match[str]]) -> Answer:
    bounds = [0, *(place for match in found for place in match.span()), len(text)]
    sides = [text[start:end].strip() for start, end in zip(bounds[::2], bounds[1::2], strict=True)]
    signs = tuple(RELATIONS.get(match[0], match[0]) for match in found)
    if not all(sides):
        raise Unreadable("a side is missing")
    if set(signs) == {"="} and _VARIABLE.fullmatch(sides[0]):
        if len(sides) > 2 and _VARIABLE.fullmatch(sides[1]):
            return Relation(tuple(map(expressions.parse, sides)), signs)
        *_, value = [_single(side) for side in sides[1:]]
        if isinstance(value, Scalar | MathGroup | Union | Matrix):
            return replace(value, name="".join(sides[0].split()))
        raise Unreadable("an equation with words")
    last = _single(sides[-1])
    if not isinstance(last, Scalar) or last.percent:
        raise Unreadable("a relation between objects that are no formulas")
    return Relation((*map(expressions.parse, sides[:-1]), last.value), signs)


# ------------------------------------------------------------------------------------------------------------ objects
def _single(text: str) -> Answer:
    """An answer that is neither an enumeration nor a relation."""
    text = text.strip()
    member = re.match(rf"({_VARIABLE.pattern})\s*\\in(?![A-Za-z])\s*", text)
    if member:
        return _named(_single(text[member.end() :]), "".join(member[1].split()))
    parts = _cut(text, re.compile(r"\\cup(?![A-Za-z])"))
    if len(parts) > 1:
        return Union(tuple(_set(part) for part in parts))
    if text.startswith(r"\begin"):
        return _matrix(text)
    if text in (r"\emptyset", r"\{\}", r"\{ \}"):
        return MathGroup(r"\{", r"\}", ())
    if group := _group(text):
        return group
    if based := _BASED.fullmatch(text):
        return Based(
            based[1].lstrip("0") or "0", "".join(re.findall(r"\w+", (based[2] or based[3]).replace(r"\text", "")))
        )
    if words := _words(text):
        return words
    return _scalar(text)


def _cut(text: str, pattern: re.Pattern[str]) -> list[str]:
    bounds = [0, *(place for match in _outside(text, pattern) for place in match.span()), len(text)]
    return [text[start:end].strip() for start, end in zip(bounds[::2], bounds[1::2], strict=True)]


def _set(text: str) -> Answer:
    found = _group(text)
    if found is None:
        raise Unreadable("a union of objects that are no sets")
    return found


def _group(text: str) -> MathGroup | None:
    """A pair, an interval or a set; None for anything else, also for one formula in brackets."""
    opening = next((sign for sign in _OPEN if text.startswith(sign)), None)
    ending = next((sign for sign in _CLOSE if text.endswith(sign)), None)
    if opening is None or ending is None or len(text) < len(opening) + len(ending):
        return None
    inner = text[len(opening) : -len(ending)].strip()
    if (opening == r"\{") != (ending == r"\}") or not _balanced(inner):
        return None
    parts = [part.strip() for part in _split(inner)]
    if opening == r"\{":
        return MathGroup(opening, ending, tuple(_items(parts)))
    if len(parts) == 1:
        return None
    return MathGroup(opening, ending, tuple(_answer(part) for part in parts))


def _balanced(text: str) -> bool:
    depth = 0
    for sign in re.findall(r"\\[{}]|[(){}\[\]]", text):
        depth += 1 if sign in ("(", "[", "{", r"\{") else -1
        if depth < 0:
            return False
    return depth == 0


def _matrix(text: str) -> Matrix:
    found = re.fullmatch(
        r"\\begin\s*\{([pbvBV]?matrix|array|smallmatrix)\}\s*(?:\{[lcr|\s]*\})?(.*)\\end\s*\{\1\}", text, re.DOTALL
    )
    if found is None or found[1] in ("vmatrix", "Vmatrix") or r"\begin" in found[2]:
        raise Unreadable("a matrix")
    rows = [row for row in re.split(r"\\\\(?:\s*\[[^\]]*\])?", found[2]) if row.strip()]
    cells = tuple(tuple(expressions.parse(cell) for cell in row.split("&")) for row in rows)
    if not cells or len({len(row) for row in cells}) != 1:
        raise Unreadable("rows of different lengths")
    return Matrix(cells)


def _words(text: str) -> Words | None:
    """Text without any number or operator: a name, a letter, a phrase."""
    bare = _TEXT_UNIT.sub(r" \1 ", text)
    if re.fullmatch(r"[\s(]*[A-Za-z][\s).]*", bare):
        return None  # one letter is a variable, or an option
    if (
        bare != text
        and re.fullmatch(r"[\s(\[]*\w[\w\s,.'()\-:/]*", bare)
        and not _TEXT_UNIT.sub("", text).strip(" ().")
    ):
        return Words(" ".join(re.findall(r"\w+", bare.lower())))
    letters = text.strip("() ")
    if re.fullmatch(r"[^\W\d_]{2,}(?:[\s\-]+[^\W\d_]+)*", letters):
        return Words(" ".join(re.findall(r"\w+", letters.lower())))
    return None


def _scalar(text: str) -> Scalar:
    text, unit = _unit(text)
    if letter := re.fullmatch(r"[\s(]*\\text\s*\{[\s(]*([A-Za-z])[\s).]*\}[\s).]*", text):
        text = letter[1]
    percent = text.endswith("%")
    text = text.removesuffix("%").strip()
    return Scalar(
        value=expressions.parse(text),
        unit=unit,
        percent=percent,
        digits=text if _DECIMAL.fullmatch(text) else None,
    )


def _unit(text: str) -> tuple[str, str]:
    """(text without the unit behind it or the currency before it, the unit)."""
    if MONEY in text:
        bare = re.sub(rf"^([-+]?)\s*{MONEY}\s*", r"\1", text)
        bare = re.sub(rf"\s*{MONEY}$", "", bare) if bare == text else bare
        inner, unit = _unit(bare) if MONEY not in bare else (bare, "")
        return (inner, MONEY) if unit in ("", MONEY) else (text, "")
    power = r"(?:\s*\^\s*(?:\{\s*-?\d\s*\}|-?\d))?"
    word = rf"(?:\\text\s*\{{[^{{}}]*\}}|[A-Za-z]+\.?){power}"
    degrees = re.fullmatch(
        r"(.*?)\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)\s*([CFK]|\\text\s*\{\s*[CFK]\s*\})?", text, re.DOTALL
    )
    if degrees and degrees[1].strip() and not re.search(rf"\\(?:circ|{FUNCTIONS})", degrees[1]):
        return degrees[1].strip(), "deg" + "".join(re.findall("[CFK]", degrees[2] or ""))
    found = re.fullmatch(rf"(.*?[\d)}}\]!.%])(\s*)({word}(?:\s*[\s/]\s*{word}){{0,4}})", text, re.DOTALL)
    if found is None:
        return text, ""
    value, space, unit = found[1], found[2], found[3]
    marked = r"\text" in unit
    bare = " ".join(_TEXT_UNIT.sub(r" \1 ", unit).split())
    if _NO_UNIT.search(bare) or (r"\text" in value and not marked) or not _closed(value):
        return text, ""
    names = re.findall(r"[A-Za-z]+", bare)
    known = all(name in _SHORT_UNITS or len(name) > 3 for name in names)
    if not names or not (marked or (known and all(name in _SHORT_UNITS for name in names)) or (space and known)):
        return text, ""
    return value.strip(), _normal(bare)


def _closed(text: str) -> bool:
    try:
        _outside(text, re.compile(r"(?!)"))
    except Unreadable:
        return False
    return text.count("{") == text.count("}") and (
        not text.rstrip().endswith("}") or closing(text, text.index("{")) is not None
    )


def _normal(unit: str) -> str:
    names = []
    for name in re.findall(r"[A-Za-z]+|\^\s*\{?\s*-?\d|/", unit.replace(" per ", "/")):
        single = name if name in _SHORT_UNITS else name.lower()
        single = single[:-1] if single.endswith("s") and len(single) > 2 and not single.endswith("ss") else single
        names.append(_ALIASES.get(single, single.lower()) if single[0].isalpha() else re.sub(r"[\s{}]", "", single))
    return " ".join(names)
