"""A parser of formulas in the notation of `notation.plain`: SymPy expressions, built without simplification."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import sympy
from sympy import Expr, Integer, Rational

from scope_jax.grading.mathematics.notation import GREEK


class Unreadable(Exception):
    """An answer, or a part of it, is not understood."""


@dataclass(frozen=True)
class Token:
    """kind: number, name (of a command), letter or sign."""

    kind: str
    text: str
    spaced: bool
    """true if white space precedes it"""


_TOKEN = re.compile(r"(\s*)(?:(\d+\.\d*|\.\d+|\d+)|\\([A-Za-z]+)|([A-Za-z]+)|(\\[{}|]|.))", re.DOTALL)
_FUNCTIONS = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc,
    "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "arccot": sympy.acot, "arcsec": sympy.asec,
    "arccsc": sympy.acsc, "sinh": sympy.sinh, "cosh": sympy.cosh, "tanh": sympy.tanh, "coth": sympy.coth,
    "arsinh": sympy.asinh, "arcosh": sympy.acosh, "artanh": sympy.atanh, "exp": sympy.exp, "ln": sympy.log,
    "log": sympy.log, "lg": sympy.log,
}  # fmt: skip
_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot", "sec": "arcsec", "csc": "arccsc",
            "sinh": "arsinh", "cosh": "arcosh", "tanh": "artanh"}  # fmt: skip
_SEVERAL = {"max": sympy.Max, "min": sympy.Min, "gcd": sympy.gcd, "lcm": sympy.lcm}
_PAIRS = {"(": ")", "[": "]", "{": "}", "|": "|", r"\{": r"\}"}
_ACCENTS = (
    "overline",
    "bar",
    "vec",
    "hat",
    "widehat",
    "tilde",
    "overrightarrow",
    "bm",
    "mathbb",
    "mathcal",
    "text",
    "underline",
    "dot",
)
_OPERATORS = (
    "times",
    "cdot",
    "le",
    "ge",
    "ne",
    "cup",
    "cap",
    "in",
    "pm",
    "mp",
    "approx",
    "to",
    "ldots",
    "circ",
    "equiv",
    "bmod",
    "pmod",
)
LONGEST_WORD = 3  # letters; longer ones are names, not products


def parse(text: str) -> Expr:
    """The formula in `text`. Raises Unreadable unless all of it is understood."""
    parser = Parser(text)
    value = parser.sum()
    if parser.here.kind != "end":
        raise Unreadable(f"at {parser.here.text!r}")
    return value


def symbol(name: str) -> Expr:
    """A real variable; e and i are the constants."""
    if name in ("e", "i"):
        return sympy.E if name == "e" else sympy.I
    return sympy.Symbol(name, real=True)


class Parser:
    """Recursive descent; every method consumes what it returns."""

    def __init__(self, text: str) -> None:
        self._tokens: list[Token] = []
        for space, number, name, letters, sign in _TOKEN.findall(text):
            if not (number or name or letters or sign):
                continue
            if letters and len(letters) <= LONGEST_WORD:
                self._tokens += [
                    Token("letter", letter, bool(space) and not place) for place, letter in enumerate(letters)
                ]
                continue
            kind = "number" if number else "name" if name else "letter" if letters else "sign"
            if sign and sign.isspace():
                continue
            self._tokens.append(Token(kind, number or name or letters or sign, bool(space)))
        self._tokens.append(Token("end", "", False))
        self._place = 0
        self._inside_bars = False

    @property
    def here(self) -> Token:
        return self._tokens[self._place]

    def take(self) -> Token:
        token = self.here
        if token.kind == "end":
            raise Unreadable("something is missing at the end")
        self._place += 1
        return token

    def at(self, *texts: str, kind: str = "sign") -> bool:
        return self.here.kind == kind and self.here.text in texts

    def expect(self, text: str) -> None:
        if not self.at(text):
            raise Unreadable(f"{text!r} is missing")
        self.take()

    # ------------------------------------------------------------------------------------------------- sums, products
    def sum(self) -> Expr:
        value = self.product()
        while self.at("+", "-"):
            sign = self.take().text
            value = sympy.Add(value, self.product() if sign == "+" else -self.product())
        return value

    def product(self) -> Expr:
        """Factors from left to right: 1/2x is x/2."""
        value = self.signed()
        while True:
            if self.at("*") or self.at("times", "cdot", kind="name"):
                self.take()
                value = value * self.signed()
            elif self.at("/"):
                self.take()
                value = divided(value, self.signed())
            elif self.begins_factor():
                value = value * self.power(previous=self._tokens[self._place - 1])
            else:
                return value

    def signed(self) -> Expr:
        if self.at("+", "-"):
            return self.signed() if self.take().text == "+" else -self.signed()
        return self.power()

    def begins_factor(self) -> bool:
        token = self.here
        if token.kind == "sign":
            return token.text in ("(", "[", "{") or (token.text == "|" and not self._inside_bars)
        return token.kind in ("number", "letter") or (
            token.kind == "name" and token.text not in _OPERATORS and token.text not in _CLOSING
        )

    def power(self, previous: Token | None = None) -> Expr:
        value = self.postfix(previous)
        if self.at("^"):
            self.take()
            return degrees(value) if self.degree() else sympy.Pow(value, self.exponent())
        return value

    def degree(self) -> bool:
        """True if an exponent is the sign for degrees, which is consumed."""
        braces = (
            self.at("{")
            and self._tokens[self._place + 1 : self._place + 3]
            and self._tokens[self._place + 1].text == "circ"
        )
        if not braces and not self.at("circ", kind="name"):
            return False
        for _ in range(3 if braces else 1):
            self.take()
        return True

    def exponent(self) -> Expr:
        if self.at("+", "-"):
            return self.exponent() if self.take().text == "+" else -self.exponent()
        value = self.postfix(None)
        return sympy.Pow(value, self.exponent()) if self.at("^") and self.take() else value

    def postfix(self, previous: Token | None) -> Expr:
        value = self.atom(previous)
        while self.at("!"):
            self.take()
            value = sympy.factorial(value)
        return value

    # ----------------------------------------------------------------------------------------------------------- atoms
    def atom(self, previous: Token | None) -> Expr:
        token = self.take()
        if token.kind == "number":
            return self.number(token, previous)
        if token.kind == "letter":
            return self.variable(token.text)
        if token.kind == "name":
            return self.command(token.text)
        if token.text in ("(", "[", "{", "|"):
            return self.enclosed(token.text)
        raise Unreadable(f"at {token.text!r}")

    def number(self, token: Token, previous: Token | None) -> Expr:
        if previous is not None and previous.kind == "number":
            raise Unreadable("two numbers in a row")
        if self.at("_"):
            raise Unreadable("a number in another base inside of a formula")
        value = Rational(token.text.rstrip("."))
        if self.at("overline", kind="name") and "." in token.text:
            return self.repeating(token.text)
        return self.mixed(value) if value.is_Integer else value

    def mixed(self, whole: Any) -> Expr:
        r"""3\frac{1}{2} and 3 1/2 are sums if the fraction is proper."""
        rest = self._tokens[self._place : self._place + 7]
        texts = [token.text for token in rest]
        kinds = [token.kind for token in rest]
        if (
            kinds[:3] == ["number", "sign", "number"]
            and texts[1] == "/"
            and rest[0].spaced
            and texts[0].isdigit()
            and texts[2].isdigit()
        ):
            part, length = (texts[0], texts[2]), 3
        elif (
            texts[:1] == ["frac"]
            and kinds[2:3] == ["number"]
            and texts[1:2] == ["{"]
            and texts[3:5] == ["}", "{"]
            and kinds[5:6] == ["number"]
            and texts[6:] == ["}"]
        ):
            part, length = (texts[2], texts[5]), 7
        else:
            if texts[:1] == ["frac"] and kinds[1:2] == ["number"] and len(texts[1]) == 2 and texts[1].isdigit():
                part, length = (texts[1][0], texts[1][1]), 2
            else:
                return whole
        if not (part[0].isdigit() and part[1].isdigit()) or not int(part[0]) < int(part[1]):
            return whole
        for _ in range(length):
            self.take()
        return whole + Rational(int(part[0]), int(part[1]))

    def repeating(self, text: str) -> Expr:
        r"""0.1\overline{6}"""
        self.take()
        self.expect("{")
        token = self.take()
        self.expect("}")
        if not token.text.isdigit():
            raise Unreadable("a repeating decimal")
        places = len(text.partition(".")[2])
        period = Rational(int(token.text), 10**places * (10 ** len(token.text) - 1))
        return Rational(text.rstrip(".") or "0") + period

    def variable(self, name: str) -> Expr:
        while self.at("_", "'"):
            if self.take().text == "'":
                name += "'"
                continue
            name += "_" + (self.raw() if self.at("{") else self.take().text)
        return symbol(name)

    def raw(self) -> str:
        """The characters of a group in braces."""
        self.expect("{")
        depth, text = 1, ""
        while depth:
            token = self.take()
            depth += {"{": 1, "}": -1}.get(token.text, 0)
            text += f"{' ' if token.spaced and text else ''}{token.text}" if depth else ""
        if not text:
            raise Unreadable("an empty group")
        return text

    def enclosed(self, opening: str) -> Expr:
        outer, self._inside_bars = self._inside_bars, opening == "|"
        value = self.sum()
        self._inside_bars = outer
        self.expect(_PAIRS[opening])
        return sympy.Abs(value) if opening == "|" else value

    def argument(self) -> Expr:
        """A group in braces, or a single digit, letter or command, as LaTeX reads arguments."""
        if self.at("{"):
            self.take()
            return self.enclosed("{")
        if self.here.kind == "number" and len(self.here.text) > 1 and self.here.text.isdigit():
            token = self.here
            self._tokens[self._place] = Token("number", token.text[1:], False)
            return Integer(int(token.text[0]))
        return self.atom(None)

    def command(self, name: str) -> Expr:
        if name == "frac":
            top = self.argument()
            return divided(top, self.argument())
        if name == "binom":
            top = self.argument()
            return sympy.binomial(top, self.argument())
        if name == "sqrt":
            return self.root()
        if name in ("infty", "pi"):
            return sympy.oo if name == "infty" else sympy.pi
        if name in _CLOSING_OF:
            return self.rounded(name)
        if name in _SEVERAL:
            return self.several(name)
        if name in _FUNCTIONS:
            return self.function(name)
        if name in _ACCENTS:
            inner = self.raw() if self.at("{") else self.take().text
            return self.variable(inner if name == "text" else f"{name} {inner}")
        if name in _OPERATORS or name in _CLOSING or name not in _LETTERS:
            raise Unreadable(f"\\{name}")
        return self.variable(name)

    def root(self) -> Expr:
        degree: Expr = Integer(2)
        if self.at("["):
            self.take()
            degree = self.enclosed("[")
        if self.at("("):
            self.take()
            inner = self.enclosed("(")
        elif self.here.kind == "number":
            inner = self.number_of_root()
        else:
            inner = self.argument()
        return sympy.root(inner, degree)

    def number_of_root(self) -> Expr:
        r"""\sqrt2 and \sqrt 12: a number written without braces is meant whole."""
        return Rational(self.take().text)

    def rounded(self, name: str) -> Expr:
        value = self.sum()
        if not self.at(_CLOSING_OF[name], kind="name"):
            raise Unreadable(f"\\{_CLOSING_OF[name]} is missing")
        self.take()
        return sympy.floor(value) if name == "lfloor" else sympy.ceiling(value)

    def several(self, name: str) -> Expr:
        opening = self.take().text
        if opening not in ("(", r"\{", "{"):
            raise Unreadable(f"arguments of \\{name}")
        values = [self.sum()]
        while self.at(","):
            self.take()
            values.append(self.sum())
        self.expect(_PAIRS[opening])
        return _SEVERAL[name](*values)

    def function(self, name: str) -> Expr:
        base = Integer(10) if name in ("log", "lg") else None
        power = None
        while self.at("_", "^"):
            if self.take().text == "_":
                if name != "log":
                    raise Unreadable(f"an index of \\{name}")
                base = self.argument_whole()
            else:
                power = self.argument_whole()
        if power == -1 and name in _INVERSE:
            name, power = _INVERSE[name], None
        value = self.function_argument()
        result = _FUNCTIONS[name](value)
        if base is not None:
            result = result / sympy.log(base)
        return result if power is None else sympy.Pow(result, power)

    def argument_whole(self) -> Expr:
        if self.at("-"):
            self.take()
            return -self.argument_whole()
        return Rational(self.take().text) if self.here.kind == "number" else self.argument()

    def function_argument(self) -> Expr:
        """Brackets, or the factors up to the next sum or function: sin 2x cos x is sin(2x) cos(x)."""
        if self.at("(", "{", "["):
            return self.enclosed(self.take().text)
        value = self.signed()
        while self.begins_factor() and not self.at(*_FUNCTIONS, *_SEVERAL, kind="name"):
            if self.at("(", "["):
                break
            value = value * self.power()
        return value


_CLOSING_OF = {"lfloor": "rfloor", "lceil": "rceil"}
_CLOSING = frozenset(_CLOSING_OF.values())
_LETTERS = frozenset(GREEK.split("|")) | frozenset(
    ("xi", "ell", "hbar", "angle", "triangle", "nabla", "partial", "aleph")
)


def divided(top: Expr, bottom: Expr) -> Expr:
    """A fraction; raises Unreadable for a division by zero."""
    if bottom.is_zero:
        raise Unreadable("division by zero")
    return top / bottom


def degrees(value: Expr) -> Expr:
    """An angle in degrees inside of a formula."""
    return value * sympy.pi / 180
