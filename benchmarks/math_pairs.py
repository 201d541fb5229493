"""Does the comparison of mathematical answers accept right forms and reject near misses? Figures of docs/evaluation.md.

    PYTHONPATH=. python -m benchmarks.math_pairs DATA               DATA: a folder with math500.jsonl, gsm8k.jsonl, …
    ... --against math-verify                                       the same pairs for Math-Verify itself

Pairs (an answer, the accepted one) are made from the accepted answers of every row and from numbers in scientific
notation, as Minerva's rows have them: forms that mean the same, and near misses by sign, exponent, digit, cut or order.
A near miss that means the same after all is left out: numbers are checked in exact arithmetic, and what is cut has to
leave a smaller formula. One JSON object per kind, then the misses.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scope_jax.grading.math_answers import Comparison, MathAnswers

SETS = ("math500", "gsm8k", "aime", "amc23")
SCIENTIFIC = 400  # numbers in scientific notation
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class Pair(NamedTuple):
    """An answer said for an accepted one, of a kind, and whether it is right."""

    kind: str
    said: str
    gold: str
    right: bool


def golds(folder: Path) -> list[str]:
    """The accepted answers of all sets, and numbers such as 4.1e-17."""
    found = []
    for name in SETS:
        for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            found += json.loads(line)["answers"]
    rng = random.Random(0)
    numbers = [f"{rng.randint(10, 99) / 10}e{rng.choice((-34, -19, -11, -6, 3, 8, 20, 33))}" for _ in range(SCIENTIFIC)]
    return list(dict.fromkeys(found)) + list(dict.fromkeys(numbers))


def exact(text: str) -> Fraction | None:
    """The value of a plain number, None for anything else."""
    return Fraction(text) if re.fullmatch(r"-?(?:\d+(?:\.\d+)?|\.\d+)(?:e-?\d+)?", text) else None


# --------------------------------------------------------------------------------------------------------- right forms
def forms(gold: str) -> Iterator[tuple[str, str]]:
    """(kind, the answer written otherwise)."""
    yield "as it is", gold
    yield "boxed", rf"\boxed{{{gold}}}"
    yield "fboxed", rf"\fbox{{{gold}}}"
    yield "in dollars", f"${gold}$" if "$" not in gold else gold
    yield "in a sentence", rf"The answer is \({gold}\)."
    yield "spaces", f"  {gold}  "
    yield "display fractions", gold.replace(r"\frac", r"\dfrac")
    yield (
        "sized brackets",
        re.sub(r"(?<![\\{a-z])\(", r"\\left(", gold).replace(")", r"\right)").replace(r"\right\right", r"\right"),
    )
    value = exact(gold)
    if value is not None:
        yield from number_forms(gold, value)
    else:
        yield "plain fraction", re.sub(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}", r"((\1)/(\2))", gold)
        yield "plain root", re.sub(r"\\sqrt\{([^{}]+)\}", r" sqrt(\1)", gold)
        if (found := re.fullmatch(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", gold)) and int(found[1]) > int(found[2]):
            whole, rest = divmod(int(found[1]), int(found[2]))
            yield "mixed number", rf"{whole}\frac{{{rest}}}{{{found[2]}}}"
            yield "mixed number, plain", f"{whole} {rest}/{found[2]}"
        yield "Unicode", gold.replace(r"\pi", "π").replace(r"\infty", "∞").replace(r"\cup", "∪").replace("^2", "²")


def number_forms(gold: str, value: Fraction) -> Iterator[tuple[str, str]]:
    mantissa, _, exponent = gold.partition("e")
    if exponent:
        yield "power of ten", rf"{mantissa}\times 10^{{{exponent}}}"
        yield "power of ten, plain", f"{mantissa}*10^{exponent}"
        yield "exact fraction", rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
        return
    yield "decimals", f"{gold}{'' if '.' in gold else '.'}00"
    yield "a unit", f"{gold} dollars"
    yield "a unit as text", rf"{gold} \text{{ apples}}"
    yield "assignment", f"x = {gold}"
    yield "a sum", f"{gold} + 0"
    if value.denominator == 1:
        yield "thousands", f"{int(value):,}"
        yield "a fraction", rf"\frac{{{2 * value}}}{{2}}"


# --------------------------------------------------------------------------------------------------------- near misses
def misses(gold: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """(kind, an answer that is nearly this one)."""
    value = exact(gold)
    if value != 0 and not re.search(r"pm|^\\text|,|=|\\in|cup|_", gold):
        yield "sign", gold[1:] if gold.startswith("-") and "+" not in gold[1:] and "-" not in gold[1:] else f"-({gold})"
    digits = [place for place, character in enumerate(gold) if character.isdigit()]
    for place in rng.sample(digits, min(6, len(digits))):
        other = str((int(gold[place]) + rng.randint(1, 9)) % 10)
        yield "digit", gold[:place] + other + gold[place + 1 :]
    if value is not None and "e" not in gold:
        yield "off by one", str(value + 1) if value.denominator == 1 else gold + "1"
        yield "tenfold", str(value * 10)
    for place in [match.start() for match in re.finditer(r"(?<=[\w)}])\s*[-+]", gold)]:
        yield "inner sign", gold[:place] + gold[place:].translate(str.maketrans("+-", "-+"))
    powers = list(re.finditer(r"(?<=\^)\d|(?<=\^\{)\d+|(?<=e)-?\d+$", gold))
    for power in powers[:2]:
        yield "exponent", f"{gold[: power.start()]}{int(power[0]) + rng.choice((-1, 1, 2))}{gold[power.end() :]}"
    if value is not None and "e" not in gold:
        yield "exponent", f"{gold}e{rng.choice((-2, -1, 1, 2))}"
    for place in sorted(
        {match.start() for match in re.finditer(r"(?<=[\w)}])\s*(?:[-+]|\\cdot|\\sqrt|\\pi|\\frac|,)", gold)}
    ):
        if balanced(gold[:place]):
            yield "cut", gold[:place]
    if value is not None and len(gold.lstrip("-")) > 1 and "e" not in gold:
        yield "cut", gold[:-1].rstrip(".")
    ordered = re.fullmatch(r"(?:\\left)?([(\[])(.+?)(?:\\right)?([)\]])", gold)
    if ordered and len(parts := ordered[2].split(",")) > 1 and "cup" not in gold:
        yield "order", f"{ordered[1]}{','.join(reversed(parts))}{ordered[3]}"
        brackets = {"(": r"\{", "[": "("}[ordered[1]], {")": r"\}", "]": ")"}[ordered[3]]
        yield "brackets", brackets[0] + ordered[2] + brackets[1]
    fraction = re.fullmatch(r"(-?)\\[dt]?frac\{(\w+)\}\{(\w+)\}", gold)
    if fraction:
        yield "order", rf"{fraction[1]}\frac{{{fraction[3]}}}{{{fraction[2]}}}"


def balanced(text: str) -> bool:
    return all(text.count(one) == text.count(other) for one, other in ("()", "[]", "{}"))


def differs(said: str, gold: str) -> bool:
    """False if a near miss is the same number, the same text but for white space, or the same enumeration."""
    if "".join(said.split()) == "".join(gold.split()):
        return False
    one, other = exact(said), exact(gold)
    if one is not None and other is not None:
        return one != other
    halves = [re.fullmatch(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}", text) for text in (said, gold)]
    if halves[0] and halves[1]:
        ratios = [Fraction(int(f[2]), int(f[3] or 1)) * (-1 if f[1] else 1) if int(f[3]) else None for f in halves if f]
        return ratios[0] != ratios[1]
    return bool(said.strip())


def pairs(folder: Path) -> list[Pair]:
    """All pairs, without repetitions; about 12,000."""
    rng, found = random.Random(1), []
    for gold in golds(folder):
        found += [Pair(kind, said, gold, True) for kind, said in forms(gold)]
        found += [Pair(kind, said, gold, False) for kind, said in misses(gold, rng) if differs(said, gold)]
    return list(dict.fromkeys(found))


# ------------------------------------------------------------------------------------------------------------- verdicts
Judge = Callable[[Sequence[Comparison]], list[bool]]


def ours(comparisons: Sequence[Comparison]) -> list[bool]:
    answers = MathAnswers()
    verdicts = answers.verdicts(comparisons)
    answers.close()
    return [verdict == "equal" for verdict in verdicts]


def math_verify(comparisons: Sequence[Comparison]) -> list[bool]:
    from math_verify import parse, verify  # type: ignore[import-untyped]

    def equal(one: Comparison) -> bool:
        return bool(verify(parse(f"${one.golds[0]}$"), parse(f"${one.prediction}$")))

    return list(map(equal, comparisons))


def table(found: Sequence[Pair], judge: Judge) -> tuple[list[dict[str, Any]], list[Pair]]:
    """(a line per kind: how many pairs, how many accepted; the pairs with the wrong verdict)."""
    accepted = judge([Comparison(pair.said, (pair.gold,)) for pair in found])
    lines: dict[tuple[bool, str], dict[str, Any]] = {}
    for pair, verdict in zip(found, accepted, strict=True):
        line = lines.setdefault(
            (pair.right, pair.kind), {"kind": pair.kind, "right": pair.right, "pairs": 0, "accepted": 0}
        )
        line["pairs"] += 1
        line["accepted"] += verdict
    wrong = [pair for pair, verdict in zip(found, accepted, strict=True) if verdict != pair.right]
    return sorted(lines.values(), key=lambda line: not line["right"]), wrong


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data", type=Path)
    options.add_argument("--against", choices=("ours", "math-verify"), default="ours")
    given = options.parse_args()
    lines, wrong = table(pairs(given.data), {"ours": ours, "math-verify": math_verify}[given.against])
    for line in lines:
        print(json.dumps(line))
    for right in (True, False):
        chosen = [line for line in lines if line["right"] == right]
        total = {name: sum(line[name] for line in chosen) for name in ("pairs", "accepted")}
        print(json.dumps({"kind": "all", "right": right} | total))
    for pair in wrong:
        print(
            json.dumps(
                {"wrong": pair.kind, "said": pair.said, "gold": pair.gold, "right": pair.right}, ensure_ascii=False
            )
        )


if __name__ == "__main__":
    main()
