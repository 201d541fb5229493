"""Whether a text contains an answer, as whole words: the one rule of all games (cover exact match, leaks)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

ARTICLES = ("a", "an", "the")
_APOSTROPHES = str.maketrans(dict.fromkeys("’‘ʼ´`′＇", "'"))
_SIGNS = re.compile("[™℠®©\ufe00-\ufe0f]")  # not read: marks of brands, selectors of an emoji's look
_RAISED = re.compile("(?<=[^\\W_])(?=[⁰¹²³⁴-⁹])(?<![⁰¹²³⁴-⁹])")  # 10² is not 102
_MIXED = re.compile(r"(?<=\d)(?=[¼½¾⅐-⅞])")  # 1½ is not 11/2
_THIN = re.compile(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))")  # spaces between thousands

_MARKS = "".join(map(chr, filter(lambda code: unicodedata.category(chr(code))[0] == "M", range(0xD800))))
_HAN, _KANA = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff", "\u3041-\u3096\u30a1-\u30fa\u30fc"
_LETTER = rf"(?:(?![{_HAN}{_KANA}])[^\W_]|[{_MARKS}])"
_MONEY = "$€£¥₹₩₽¢"
_ATOM = re.compile(
    rf"""
    (?P<sign>(?<![^\W_])(?<![)\]%])[-−–](?=[{_MONEY}]?\.?\d)|\b(?:minus|negative)\ (?=[{_MONEY}]?\.?\d))?+
    (?:(?P<money>[{_MONEY}])(?P<inner>[-−]?))?
    (?P<number>(?:\d{{1,3}}\ )?\d{{1,3}}[/⁄]\d{{1,3}}(?![\d/⁄])
        |(?:\d{{1,3}}(?:,\d{{2,3}})*,\d{{3}}(?!\d)|\d{{1,3}}(?:'\d{{3}})++(?!\d)|\d++|(?<![^\W_])\.\d++)
         (?:[.:]\d++)*+(?:\^\{{?-?\d++\}}?)?+)
    (?P<tail>{_LETTER}*+)
    (?:\ ?(?:(?P<after>\\?%|[{_MONEY}])|(?P<spelled>per\ ?cent\b)))?
    |(?P<han>[{_HAN}])|(?P<hiragana>[\u3041-\u3096]++)|(?P<katakana>[\u30a1-\u30fa\u30fc]++)
    |(?P<word>{_LETTER}++(?:'{_LETTER}++)*+(?:(?<!{_LETTER}{_LETTER})[+\#]++(?!{_LETTER}))?)
    """,
    re.VERBOSE,
)
# Where two parts of a word meet: AC/DC is ACDC, U.S. is US.
_JOINTS = frozenset(".-‐'&/_^(·")
_PREFIXES = frozenset(("non", "anti", "un", "ex", "pre", "post", "neo", "pseudo", "quasi"))  # they make other words
# They date a number: post-1945 contains 1945, while COVID-19 is a name without a number.
DATING = frozenset(("pre", "post", "mid", "early", "late", "circa", "ca", "since", "until", "before", "after", "inter"))


@dataclass(frozen=True)
class _Atom:
    """A word or a number. gap: the characters before it. spelled: its unit is a word. suffix: a possessive's s."""

    text: str
    gap: str
    begin: int
    end: int
    unit: str = ""
    spelled: bool = False
    number: bool = False
    suffix: bool = False


@dataclass
class _Words:
    """Atoms joined to one string. joins: where an atom begins, True if it may be one word with the one before it;
    starts, ends: where an answer may begin and end; units: of the numbers, by where they begin; spans: of each end and
    start, its place in the text."""

    text: str = ""
    joins: dict[int, bool] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    units: dict[int, tuple[str, bool]] = field(default_factory=dict)


def contains(text: str, answer: str) -> bool:
    """True if the words of `answer` occur one after the other in `text`.

    Letter case, articles, punctuation and the way Unicode writes a character do not count. Words end at punctuation of
    any script (“Paris”, Paris—the, Kraków/Poland, 1914–1918); parts that a hyphen, full stop, slash or apostrophe
    joins may also be written as one (U.S., O’Brien), and a possessive contains its noun. Each Chinese character is a
    word (as in MLQA's metric). A number is its digits with its sign and decimals, however thousands are divided: 3 is
    in none of 13, 3.5, -3 and 3/4. Its currency or per cent sign may be missing, but not be another one. An answer of
    articles alone, such as the letter A, or of punctuation alone has to be the whole text.
    """
    return next(spans(text, answer), None) is not None


def spans(text: str, answer: str) -> Iterator[tuple[int, int]]:
    """Where `answer` occurs in `text`, as `contains` finds it: begin and end in `plain(text)`."""
    wanted, given = list(_atoms(answer)), list(_atoms(text))
    if all(atom.text in ARTICLES for atom in wanted):
        whole, bare = plain(text), plain(answer).strip()
        if bare and all(unicodedata.category(c) in ("So", "Sk") for c in bare):
            yield from ((at.start(), at.end()) for at in re.finditer(re.escape(bare), whole))
        elif [a.text for a in wanted] == [a.text for a in given] if wanted else bare == whole.strip() != "":
            yield 0, len(whole)
        return
    first = set()
    for span in _occurrences(_joined(wanted), _joined(given)):
        first.add(span)
        yield span
    for span in _occurrences(_joined(_without_articles(wanted)), _joined(_without_articles(given))):
        if span not in first:
            yield span


def plain(text: str, fold: bool = True) -> str:
    """`text` as it is compared: NFKC, without letter case and characters that are not seen; one kind of apostrophe.

    fold: False keeps the letter case.
    """
    seen = "".join(c for c in text if unicodedata.category(c) != "Cf")
    for pattern, by in ((_SIGNS, " "), (_THIN, ""), (_RAISED, "^"), (_MIXED, " ")):
        seen = pattern.sub(by, seen)
    shown = unicodedata.normalize("NFKC", seen.translate(_APOSTROPHES))
    return unicodedata.normalize("NFKC", shown.casefold() if fold else shown)


def numbers(text: str) -> int:
    """How many numbers `text` has, as `contains` reads them."""
    return sum(atom.number for atom in _atoms(text))


def _atoms(text: str) -> Iterator[_Atom]:
    text, end = plain(text), 0
    for match in _ATOM.finditer(text):
        gap, begin, end = text[end : match.start()], match.start(), match.end()
        if number := match["number"]:
            minus = "-" if match["sign"] or match["inner"] else ""
            digits = number.replace(",", "").replace("'", "").replace("⁄", "/").strip("{}").replace("^{", "^")
            unit = "%" if match["spelled"] else (match["after"] or match["money"] or "").strip("\\")
            digits = f"0{digits}" if digits.startswith(".") else digits
            whole = minus + digits + match["tail"]
            yield _Atom(whole, gap, begin, end, unit, bool(match["spelled"]), number=not match["tail"])
            continue
        word, owner = match[0], match[0].removesuffix("'s")
        yield _Atom(owner.replace("'", ""), gap, begin, begin + len(owner))
        if owner != word:
            yield _Atom("s", "'", begin + len(owner), end, suffix=True)


def _without_articles(atoms: list[_Atom]) -> list[_Atom]:
    """Drops articles before another word: not the A of Vitamin A and A. Berg."""
    gaps = chain((atom.gap for atom in atoms[1:]), [""])
    return [a for a, after in zip(atoms, gaps, strict=False) if not (a.text in ARTICLES and after[:1].isspace())]


def _joined(atoms: list[_Atom]) -> _Words:
    words = _Words("".join(atom.text for atom in atoms))
    before, place = None, 0
    for atom in atoms:
        joins = atom.suffix or (before is not None and _may_join(before, atom))
        words.joins[place] = joins
        bound = atom.suffix or (
            before is not None
            and atom.gap in ("-", "‐", "^")
            and not (before.text in DATING and atom.text[0].isdigit())
            and (before.text in _PREFIXES or (before.text[-1].isalpha() and atom.text[0].isdigit()))
        )
        if not bound:  # COVID-19 has no number 19, non-fiction is no fiction
            words.starts[place] = atom.begin
        if atom.unit:
            words.units[place] = (atom.unit, atom.spelled)
        place += len(atom.text)
        words.ends[place] = atom.end
        before = atom
    return words


def _may_join(before: _Atom, atom: _Atom) -> bool:
    if before.text[-1].isdigit() and atom.text[0].isdigit():
        return atom.gap == " " and len(atom.text) == 3 and before.text.isdigit()  # 1 000
    initials = len(before.text) == len(atom.text) == 1 and atom.gap == ". "  # J. R. is J.R.
    return atom.gap in _JOINTS or initials


def _occurrences(answer: _Words, text: _Words) -> Iterator[tuple[int, int]]:
    place = text.text.find(answer.text)
    while place >= 0:
        end = place + len(answer.text)
        if place in text.starts and end in text.ends and _alike(answer, text, place):
            yield text.starts[place], text.ends[end]
        place = text.text.find(answer.text, place + 1)


def _alike(answer: _Words, text: _Words, place: int) -> bool:
    """True if the two are divided in the same places, except where parts may join, and no unit is another one."""
    for at in range(1, len(answer.text)):
        one, other = answer.joins.get(at), text.joins.get(place + at)
        if (one is None and other is False) or (other is None and one is False):
            return False
    for at, (unit, spelled) in answer.units.items():
        there = text.units.get(place + at, ("", False))[0]
        if there != unit and (there or spelled):
            return False
    return True
