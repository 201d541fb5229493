"""Compares answers that were read: objects of the same kind, part by part; formulas exactly.

Two formulas are equal if their difference is zero: in exact arithmetic if it is rational, to DIGITS digits otherwise,
with variables at several random points (a product of two polynomials that vanishes there is zero everywhere but on a
set of measure zero). Nothing is rounded to a number of decimal places, so that small numbers differ as large ones do.
A number in decimal notation equals an irrational one, or a fraction that does not end, if it is that number rounded or
cut to its digits and has at least SIGNIFICANT of them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import sympy
from sympy import Expr, Rational

from scope_jax.grading.mathematics.expressions import parse
from scope_jax.grading.mathematics.reading import Answer, Based, MathGroup, Matrix, Relation, Scalar, Union, Words

DIGITS = 40  # of an evaluation
SIGNIFICANT = 6  # digits that a decimal needs to stand for a number that it can only approximate: 1e-5, relatively
POINTS = 8  # at which formulas with variables are compared
_TOWARDS = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_RANDOM = random.Random(0)
_VALUES = [Rational(_RANDOM.choice((1, -1)) * _RANDOM.randint(101, 997), 337) for _ in range(97)]


def equal(said: Answer, gold: Answer) -> bool:
    """True if the two answers are the same object."""
    said, gold = _as_list(said), _as_list(gold)
    if isinstance(said, Relation) or isinstance(gold, Relation) or not _same_name(said, gold):
        said, gold = _equation(said), _equation(gold)
    if isinstance(said, Relation) and not isinstance(gold, Relation):
        return _interval_or_side(said, gold)
    if isinstance(gold, Relation) and not isinstance(said, Relation):
        return _interval_or_side(gold, said)
    if not _same_name(said, gold):
        return False
    match said, gold:
        case Scalar(), Scalar():
            return _scalars(said, gold)
        case MathGroup(), MathGroup():
            return _groups(said, gold)
        case Union(), Union():
            return _unordered(said.parts, gold.parts)
        case Relation(), Relation():
            return _relations(said, gold)
        case Matrix(), Matrix():
            return _cells(said) == _cells(gold) or (
                [len(row) for row in said.rows] == [len(row) for row in gold.rows]
                and all(same(one, other) for one, other in zip(_cells(said), _cells(gold), strict=True))
            )
        case (Based(), Based()) | (Words(), Words()):
            return said == gold
    return False


def _cells(matrix: Matrix) -> list[Expr]:
    return [cell for row in matrix.rows for cell in row]


def _as_list(answer: Answer) -> Answer:
    """Signs of plus and minus as the enumeration they stand for; an enumeration of one as its element."""
    if isinstance(answer, MathGroup) and not answer.opening and len(answer.items) == 1:
        return answer.items[0]
    return answer


def _same_name(said: Answer, gold: Answer) -> bool:
    """x = 3 is 3, and not y = 3."""
    names = [
        answer.name
        for answer in (said, gold)
        if isinstance(answer, Scalar | MathGroup | Union | Matrix) and answer.name
    ]
    return len(set(names)) < 2


def _equation(answer: Answer) -> Answer:
    """y = 2x as the equation it is, which may also be written otherwise."""
    if not isinstance(answer, Scalar) or answer.name is None or answer.percent:
        return answer
    return Relation((parse(answer.name), answer.value), ("=",))


# ------------------------------------------------------------------------------------------------------------ formulas
def _scalars(said: Scalar, gold: Scalar) -> bool:
    if said.unit and gold.unit and said.unit != gold.unit:
        return False
    if said.percent != gold.percent:
        return _percent(said, gold) if said.percent else _percent(gold, said)
    return _approximates(said, gold) or _approximates(gold, said) or same(said.value, gold.value)


def _percent(percent: Scalar, other: Scalar) -> bool:
    """28 % is 0.28, and 28 where the sign is implied, as in the answer to "how many per cent"; 0.5 % is not 0.5."""
    if same(percent.value / 100, other.value):
        return True
    return bool(percent.value.is_number and abs(percent.value) >= 1 and same(percent.value, other.value))


def _approximates(decimal: Scalar, exact: Scalar) -> bool:
    """True if `decimal` is the other number rounded or cut to the digits that are written."""
    if decimal.digits is None or exact.digits is not None or not exact.value.is_number or not exact.value.is_real:
        return False
    if exact.value.is_Rational and not _endless(exact.value):
        return False
    mantissa, _, power = decimal.digits.replace(" ", "").partition("\\times")
    whole, _, places = mantissa.lstrip("+-").partition(".")
    if len((whole + places).lstrip("0")) < SIGNIFICANT:
        return False
    exponent = int("".join(sign for sign in power.removeprefix("10^").strip("{}"))) if power else 0
    last = Rational(10) ** (exponent - len(places))
    scaled = exact.value / last
    written = decimal.value / last
    lower = sympy.floor(scaled)
    cut = lower if scaled.is_nonnegative else sympy.ceiling(scaled)
    return bool(written in (cut, sympy.floor(scaled + Rational(1, 2)), sympy.ceiling(scaled - Rational(1, 2))))


def _endless(value: Any) -> bool:
    """True if the decimal notation of a fraction does not end."""
    rest = value.q
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest != 1


def same(one: Expr, other: Expr) -> bool:
    """True if two formulas are equal wherever both have a value."""
    if one == other:
        return True
    if one.is_Rational and other.is_Rational:
        return False
    variables = sorted((one.free_symbols | other.free_symbols), key=str)
    if not variables:
        return _finite(one) and _finite(other) and _zero(one - other, one, other)
    compared = 0
    for point in _points(variables):
        here, there = one.subs(point), other.subs(point)
        if not (_finite(here) and _finite(there)):
            continue
        if not _zero(here - there, here, there):
            return False
        compared += 1
    return compared >= 2


def _points(variables: Sequence[Any]) -> list[dict[Any, Any]]:
    values = itertools.cycle(_VALUES)
    return [{variable: next(values) for variable in variables} for _ in range(POINTS)]


def _finite(value: Expr) -> bool:
    number = sympy.N(value, 15)
    return bool(number.is_number and number.is_finite)


def _zero(difference: Expr, one: Expr, other: Expr) -> bool:
    """True if a difference without variables is zero, relative to its terms."""
    if difference.is_Rational:
        return difference == 0
    size = max(abs(sympy.N(one, DIGITS)), abs(sympy.N(other, DIGITS)))
    if one.is_zero or other.is_zero:
        return difference.equals(0) is True
    left = abs(sympy.N(difference, DIGITS, maxn=10 * DIGITS))
    return bool(left <= size * Rational(1, 10 ** (DIGITS - 10)))


# ------------------------------------------------------------------------------------------------- groups and relations
def _groups(said: MathGroup, gold: MathGroup) -> bool:
    """Pairs and intervals by place, with their brackets; sets and enumerations in any order."""
    unordered = [each.opening in ("", r"\{") for each in (said, gold)]
    if all(unordered):
        return _unordered(said.items, gold.items)
    if any(unordered) or (said.opening, said.closing) != (gold.opening, gold.closing):
        return False
    return len(said.items) == len(gold.items) and all(map(equal, said.items, gold.items))


def _unordered(said: Sequence[Answer], gold: Sequence[Answer]) -> bool:
    """True if every element has one of its own on the other side."""
    if len(said) != len(gold):
        return False
    left = list(gold)
    for each in said:
        place = next((place for place, other in enumerate(left) if equal(each, other)), None)
        if place is None:
            return False
        left.pop(place)
    return True


def _relations(said: Relation, gold: Relation) -> bool:
    """The same signs between sides that are equal, or one relation whose sides differ by a common factor."""
    for one in (said, _turned(said)):
        if one.signs == gold.signs and all(map(same, one.sides, gold.sides)):
            return True
        if len(one.signs) == 1 and one.signs == gold.signs:
            factor = _factor(one.sides[0] - one.sides[1], gold.sides[0] - gold.sides[1])
            if factor is not None and (one.signs[0] in ("=", "!=") or factor.is_positive):
                return True
    return False


def _turned(relation: Relation) -> Relation:
    """The relation read from right to left."""
    return Relation(relation.sides[::-1], tuple(_TOWARDS.get(sign, sign) for sign in relation.signs[::-1]))


def _factor(one: Expr, other: Expr) -> Expr | None:
    """The number by which `one` is `other` times it everywhere; None if there is none."""
    variables = sorted(one.free_symbols | other.free_symbols, key=str)
    for point in _points(variables):
        here, there = one.subs(point), other.subs(point)
        if (
            _finite(here)
            and _finite(there)
            and not _zero(there, there, sympy.Integer(1))
            and not _zero(here, here, sympy.Integer(1))
        ):
            factor = sympy.N(here / there, DIGITS) if not (here / there).is_Rational else here / there
            return factor if factor.is_real and _proportional(one, other, here, there, variables) else None
    return None


def _proportional(one: Expr, other: Expr, here: Expr, there: Expr, variables: Sequence[Any]) -> bool:
    return same(one * there, other * here) if variables else True


def _interval_or_side(relation: Relation, other: Answer) -> bool:
    """2 < x ≤ 5 is (2, 5]; a chain of equal numbers is its value."""
    if isinstance(other, Scalar):
        ends = set(relation.signs) == {"="} and all(same(side, relation.sides[-1]) for side in relation.sides)
        return ends and same(relation.sides[-1], other.value)
    interval = _interval(relation)
    if interval is None or not isinstance(other, MathGroup):
        return False
    return _groups(
        MathGroup(interval.opening, interval.closing, interval.items),
        MathGroup(other.opening, other.closing, other.items),
    ) and (other.name is None or other.name == interval.name)


def _interval(relation: Relation) -> MathGroup | None:
    if relation.signs[0] in (">", ">="):
        relation = _turned(relation)
    if not set(relation.signs) <= {"<", "<="}:
        return None
    sides, signs = list(relation.sides), list(relation.signs)
    if len(signs) == 1 and sides[0].is_Symbol:
        sides, signs = [-sympy.oo, *sides], ["<", *signs]
    elif len(signs) == 1 and sides[1].is_Symbol:
        sides, signs = [*sides, sympy.oo], [*signs, "<"]
    if len(signs) != 2 or not sides[1].is_Symbol or not (sides[0].is_number and sides[2].is_number):
        return None
    opening, closing = ("(" if signs[0] == "<" else "["), (")" if signs[1] == "<" else "]")
    return MathGroup(opening, closing, (Scalar(sides[0]), Scalar(sides[2])), str(sides[1]))
