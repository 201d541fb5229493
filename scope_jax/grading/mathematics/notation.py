"""Brings the many ways to write an answer (LaTeX, plain text, Unicode) into one notation, which `reading` parses.

Only what cannot change the value is removed or replaced: delimiters of formulas, boxes, spacing, font sizes, a lead-in
such as "The answer is". Whatever is left has to be parsed to its last character.
"""

from __future__ import annotations

import re
import unicodedata

FUNCTIONS = (
    "arcsin|arccos|arctan|arccot|arcsec|arccsc|arsinh|arcosh|artanh|sinh|cosh|tanh|coth|sin|cos|tan|cot|sec|csc"
    "|ln|log|lg|exp|max|min|gcd|lcm"
)
GREEK = (  # without xi, which more often is x times i
    "alpha|beta|gamma|delta|varepsilon|epsilon|zeta|eta|vartheta|theta|kappa|lambda|mu|nu|rho|sigma|tau|varphi|phi|chi"
    "|psi|omega|pi|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega"
)
MONEY = "\N{CURRENCY SIGN}"
_SIGNS = {
    **dict.fromkeys("−–‐‑", "-"), **dict.fromkeys("×✕", r"\times "), **dict.fromkeys("·⋅∙", r"\cdot "),
    **dict.fromkeys("÷⁄∕", "/"), **dict.fromkeys("≤⩽", r"\le "), **dict.fromkeys("≥⩾", r"\ge "), "′": "'", "’": "'",
    "∗": "*", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∓": r"\mp ", "√": r"\sqrt ", "∛": r"\sqrt[3]",
    "∞": r"\infty ", "°": r"^\circ ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "∠": r"\angle ",
    "∣": "|", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ",
}  # fmt: skip
_GREEK_LETTERS = "αalpha βbeta γgamma δdelta εepsilon ζzeta ηeta θtheta κkappa λlambda μmu νnu ξxi πpi ρrho σsigma τtau"
_GREEK_LETTERS += " φphi ϕphi χchi ψpsi ωomega ΓGamma ΔDelta ΘTheta ΛLambda ΞXi ΠPi ΣSigma ΦPhi ΨPsi ΩOmega"
_SIGNS |= {letter[0]: f"\\{letter[1:]} " for letter in _GREEK_LETTERS.split()}
_FRACTIONS = re.compile("(?<=\\d)([¼-¾⅐-⅞])")
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱˣ", "0123456789+-nix")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SPACING = re.compile(
    r"(?<!\\)\\(?:[,;:> ]|(?:quad|qquad|thinspace|enspace|displaystyle|textstyle|limits)\b"
    r"|(?:hspace\*?|phantom)\s*\{[^{}]*\})|~|[\u200b\u200c\u200d\u2060\ufeff]"
)
_SIZE = re.compile(r"\\(?:left|right|middle|(?:big|Big|bigg|Bigg)[lr]?)(?![A-Za-z])\s*\.?")
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]")
_NAMES = {  # of commands, by the name under which `expressions` knows them
    "frac": "dfrac tfrac cfrac", "binom": "dbinom tbinom", "le": "leq leqslant",
    "ge": "geq geqslant", "ne": "neq", "cdot": "cdotp", "emptyset": "varnothing", "pi": "upi uppi", "infty": "infin",
    "cup": "union", "ldots": "dots cdots",
    "text": "textbf textit textrm textsf textnormal mbox hbox mathrm operatorname",
    "|": "lvert rvert vert mid", "bm": "mathbf boldsymbol mathit mathsf mathnormal",
    "": "rm bf it", "<": "lt", ">": "gt", "*": "ast", "/": "div",
    r"\{": "lbrace", r"\}": "rbrace", "[": "lbrack", "]": "rbrack", "(": "lparen", ")": "rparen", ":": "colon",
    "^\\circ ": "textdegree degree", "'": "prime", "e": "exponentialE", "i": "imaginaryI imath", "%": "percent",
    r"\text{ and }": "land", r"\text{ or }": "lor",
}  # fmt: skip
_RENAMED = {other: name for name, others in _NAMES.items() for other in others.split()}
_COMMAND = re.compile(r"\\([A-Za-z]+)\*?")
_SO = r"(?:so|thus|hence|therefore|finally)\b[,:]?\s*"
_LEAD_IN = re.compile(
    rf"\s*(?:{_SO})?(?:(?:the|our|my|its)\s+)?(?:(?:final|correct|exact|required|desired)\s+)?"
    r"(?:answer|result|value|solutions?|total|it|this|that)\s*(?:\b(?:is|are|equals|be)\b|:|=)\s*:?\s*(?=[^\s=<>])"
    rf"|\s*{_SO}(?=[^\s=<>])",
    re.IGNORECASE,
)
_SCALE = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_NAMED = re.compile(rf"(?<![\\A-Za-z])({FUNCTIONS}|{GREEK}|sqrt|infinity|infty)(?![A-Za-z])")
_INSIDE = re.compile(rf"\\text\s*\{{\s*({FUNCTIONS}|{GREEK}|e|i)\s*\}}")
_PERCENT = re.compile(r"\bper ?cent\b|\bpct\b|\\text\s*\{\s*(?:per ?cent|pct)\s*\}|\\%")
_POWER = re.compile(r"(?<![\w.\\])(\d+(?:\.\d*)?|\.\d+)[eE]([-+]?\d{1,4})(?![\w.])")
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*(?=\{)")


def plain(text: str) -> str:
    """`text` in the notation that `reading` parses; the value it denotes is the same."""
    text = _unboxed(_commands(_undollared(_ascii(text.strip()))))
    text = _LEAD_IN.sub("", text, count=1) if _LEAD_IN.match(text) else text
    return _numbers(_unbraced(text.strip().rstrip(".;,").strip()))


def _ascii(text: str) -> str:
    """Mathematical signs of Unicode as commands, composed and full-width letters in their plain form."""
    text = _FRACTIONS.sub(r" \1", text)
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿˣⁱ]+", lambda raised: f"^{{{raised[0].translate(_RAISED)}}}", text)
    text = re.sub("[₀₁₂₃₄₅₆₇₈₉]+", lambda lowered: f"_{{{lowered[0].translate(_LOWERED)}}}", text)
    return "".join(_SIGNS.get(character, character) for character in unicodedata.normalize("NFKC", text))


def _undollared(text: str) -> str:
    """Without the delimiters of formulas; a dollar sign that stands for money becomes MONEY."""
    text = re.sub(r"\\(?:\$|text(?:dollar|cent)s?\b)", MONEY, text)
    money = text.count("$") % 2 == 1  # delimiters come in pairs
    return _DELIMITERS.sub(" ", text.replace("$$", " ").replace("$", MONEY if money else " "))


def _commands(text: str) -> str:
    """LaTeX commands under one name each, without those that only change how a formula looks."""
    text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text) if r"\begin" not in text else text  # doubled by an escape
    text = _SIZE.sub("", _SPACING.sub(" ", re.sub(r"\s*\\!\s*", "", text)))
    text = _COMMAND.sub(_renamed, text)
    text = _INSIDE.sub(lambda name: f" {name[1]} " if len(name[1]) == 1 else f"\\{name[1]} ", text)
    text = _NAMED.sub(lambda name: f"\\{'infty' if name[1] == 'infinity' else name[1]} ", text)
    text = _PERCENT.sub("%", text)
    return text.replace("**", "^")


def _renamed(command: re.Match[str]) -> str:
    name = _RENAMED.get(command[1], command[1])
    return f"\\{name}" if name[:1].isalpha() else name


def _unboxed(text: str) -> str:
    """Without the boxes around the answer or around parts of it."""
    while box := _BOX.search(text):
        end = closing(text, box.end())
        if end is None:
            return text
        text = f"{text[: box.start()]} {text[box.end() + 1 : end]} {text[end + 1 :]}"
    return text


def _unbraced(text: str) -> str:
    """Without braces around everything."""
    while text.startswith("{") and closing(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def closing(text: str, place: int) -> int | None:
    """The index of the brace that closes the one at `place`; None if there is none."""
    depth = 0
    for index in range(place, len(text)):
        if text[index] in "{}" and text[index - 1 : index] != "\\":
            depth += 1 if text[index] == "{" else -1
            if depth == 0:
                return index
    return None


def _numbers(text: str) -> str:
    """Numbers without separators of thousands; powers of ten and scale words as factors."""
    text = re.sub(r"\{,\}", ",", text)
    thousands = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)")
    text = thousands.sub(lambda n: n[0] if _grouped(text[: n.start()]) else n[0].replace(",", ""), text)
    text = re.sub(r"(?<![\d.])[1-9]\d{0,2}(?: \d{3})+(?![\d])", lambda number: number[0].replace(" ", ""), text)
    text = re.sub(r"(?<=[\d.])\s*[xX]\s*(?=10\s*\^)", r"\\times ", text)
    text = _POWER.sub(lambda number: f"{number[1]}\\times 10^{{{number[2]}}}", text)
    scale = rf"(?<=\d)\s*(?:\\text\s*\{{\s*)?({'|'.join(_SCALE)})\b\s*\}}?"
    return re.sub(scale, lambda word: f"\\times 10^{{{_SCALE[word[1]]}}} ", text)


def _grouped(before: str) -> bool:
    """True if what follows `before` is an element of a pair, an interval or a set, where a comma separates."""
    return sum(before.count(sign) for sign in ("(", "[", r"\{")) > sum(before.count(sign) for sign in (")", "]", r"\}"))
