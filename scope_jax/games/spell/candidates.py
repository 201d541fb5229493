"""The careful rule: whether a conclusion names an answer and no other candidate.

Precision (of the paid conclusions, how many are right) and recall (of the right ones, how many are paid) on
tests/games/spell_cases.py, three sets of conclusions that were labelled before the rule read them;
tests/games/test_spell_rules.py checks the sums:

    rule                    296 (151 right)   214 (103 right)   94 (45 right)   all 604
    plain                   .537, 1.000       .484, 1.000       .479, 1.000     .509, 1.000
    careful at first sight  .993, .974        .930, .903        .950, .844
    careful                 1.000, .993       1.000, .990       1.000, .933     1.000, .983

The cases were written to be hard. Refused though right are five, such as "Mark Twain (Samuel Clemens)" and "42
(forty-two)". Two names with nothing between them ("Paris London") look like one longer name and are paid by both rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scope_jax.games.spell import places
from scope_jax.grading import measures, words

_HERE = "\0"  # stands for the answer
_YES = ("yes", "true")
_NO = ("no", "false", "none")
# ----------------------------------------------------------------------------------------- left out before it is read
_TITLES = r"mr|mrs|ms|dr|prof|rev|sir|st|gen|col|capt|lt|maj|sgt|sen|gov|pres|hon|fr"
_ABBREVIATED = re.compile(rf"\b({_TITLES}|jr|sr|c|ca)\.(?=[\s,)]|$)", re.IGNORECASE)
_INITIALS = re.compile(rf"\b(?:[A-Z]\.\s?)+(?={_HERE})")
_SOURCE = re.compile(
    r"\[\d+\]|[(\s](?:(?:see|in|from|source:)\s)?(?:document|doc|passage|source|section|table|figure|page)s?\s\d+\)?",
    re.IGNORECASE,
)
_THAT_IS = re.compile(r"\b(?:i\.e\.|viz\.|namely),?\s?")
_PER = re.compile(rf"(?<={_HERE})\s?[A-Za-zµ]{{1,3}}/[A-Za-z]{{1,4}}\b")  # 42 km/h
_MONTH = r"(?:jan|feb|mar|apr|may|june?|july?|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY = re.compile(rf"\b\d{{1,2}}(?:st|nd|rd|th)?\s{_MONTH}|\b{_MONTH}\s\d{{1,2}}(?:st|nd|rd|th)?\b", re.IGNORECASE)
_DATED = re.compile(rf"\b(?:{'|'.join(sorted(words.DATING))})-(?={_HERE})", re.IGNORECASE)
_YEAR = re.compile(r"[12]\d{3}")
# ---------------------------------------------------------------------------------------------------- what refuses it
_NEGATIONS = re.compile(
    r"n't\b|\b(?:not|no(?!\.)|never|neither|nor|cannot|except|without|unlike|wrong|incorrect|false|untrue|mistaken"
    r"|excluded|ruled\sout|(?:rather|other|different)\sthan|instead)\b"
)
_OTHERS = re.compile(
    r"[/|&+•→]|\b(?:or|vs|versus|either|both|between|but|could|may\sbe|might|maybe|perhaps|possibly|unclear|unknown"
    r"|uncertain|unsure|also(?!\s(?:known|called))|alternatively|else|otherwise|too|plus|then|followed|respectively"
    r"|as\swell|(?:along|together)\swith"
    r"|with\s(?:his|her|its|their))\b"
)
_NUMBERED = re.compile(
    rf"\b(?:step|point|part|item|option|example|question|document|doc|passage|source|section|table|figure|page|line|no)"
    rf"\W+{_HERE}"
)
# ------------------------------------------------------------------------------------ what may stand beside an answer
_PART = re.compile(rf"[,;:()\[\]\n–—]|(?<={_HERE})-|-(?={_HERE})|\s-+\s|[.!?](?=\s)")
# how a remark about the answer begins, rather than another answer
_REMARK = re.compile(
    r"(?:the|a|an|which|who|whose|where|when|because|since|as|in|at|of|on|from|by|with|for|during|according|based"
    r"|it|this|that|he|she|they)\s"
)
_SUFFIX = re.compile(rf"(?:{_TITLES}|jr|sr|ii|iii|iv|ph\.?d|m\.?d|esq|inc|corp|co|ltd|llc|plc|gmbh|ag)\.?")
_INITIAL = re.compile(r"[A-Z](?:\.?\s?[A-Z])?\.?")
_SHORT = re.compile(r"[A-Z][A-Z0-9]{1,5}")  # in brackets: a party, a currency, a formula
_SYMBOL = re.compile(r"[A-Z][a-z]?")  # of a chemical element
_REGION = re.compile(r"[\w' -]+\s(?:prefecture|province|county|district|region|oblast|canton|state|territory)")
# the beginning of a list that goes on in the same way: "the Nile, the Amazon", "in Berlin, in Vienna"
_ARTICLE_AND_NAME = re.compile(r"(?i:the|an?)(?:\s[A-Z][\w'-]*)+")
_OPENED = re.compile(r"(?P<word>the|an?|in|at|of|on|from|by|with|for)\s(?P<rest>.*)", re.IGNORECASE)
_BETWEEN_NAMES = re.compile(rf"\b[Ff]rom\b.*\bto\b|{_HERE}\swith\s[A-Z]")
_ROLE = re.compile(
    r"(?:(?:vice|prime|former|deputy|chief)\s)?(?:president|king|queen|prince|princess|emperor|empress|pope|minister|chancellor"
    r"|governor|senator|mayor|ceo|cfo|cto|chair(?:man|woman)?|director|founder|professor|captain|capital|author|bishop|duke|duchess"
    r"|earl|lord|lady|secretary|ambassador|judge|general|heir)(?:\s(?:of|in|at|for|to)\s.*)?"
)
_DESCRIBED = re.compile(
    r"(?:[A-Z][\w'-]*\s){1,2}(?!(?:and|of|de|del|di|la|van|von|der|den|bin|al)\b)[a-z]{3}.*"
)  # Polish physicist, US president
_VERB = re.compile(r"\b(?:is|was|are|were|has|have|had|will|would|can|did|does|came|comes)\b")
_THEN_A_NAME = re.compile(
    r"(?!formerly|previously|once|née|nee|born|called|aka|alias|officially|near)[a-z]+(?:\s[A-Z][\w'-]*)+"
)


def names_only(conclusion: str, golds: Sequence[str]) -> bool:
    """True if the conclusion contains an accepted answer (`measures.cover_exact_match`) and no other candidate.

    Other candidates: an alternative ("Paris or London", "Paris/London"), someone beside it ("X and his wife"), a list
    ("Paris, London", "1. Paris 2. London"), a negation, for a number any other number but the day of a year's date, for
    yes and no any other word, the number of a step ("Step 2: London"). Beside it may stand a remark, an apposition
    ("Paris, the capital of France", "Barack Obama, 44th president"), the region of a place ("Paris, France"), titles,
    initials and articles. What is not clear is not accepted: the verifier also reads it.
    """
    said = measures.as_printed(conclusion)
    return any(_names(said, measures.as_printed(gold)) for gold in golds)


def _names(said: str, gold: str) -> bool:
    spans = list(words.spans(said, gold))
    if not spans:
        return False
    folded, rest = words.plain(said), words.plain(said, fold=False)
    rest = rest if len(rest) == len(folded) else folded  # the spans are those of the folded text
    for begin, end in sorted(spans, reverse=True):
        rest = rest[:begin] + _HERE * (end - begin) + rest[end:]
    rest = re.sub(f"{_HERE}+", _HERE, rest)
    rest = _THAT_IS.sub("that is ", _DATED.sub("", rest))
    if _YEAR.fullmatch(words.plain(gold).strip()):
        rest = _DAY.sub("", rest)
    rest = _INITIALS.sub("", _ABBREVIATED.sub(r"\1", _PER.sub("", _SOURCE.sub(" ", rest))))
    lower, answer = rest.lower(), words.plain(gold).strip()
    if _OTHERS.search(lower) or (answer not in _NO and _NEGATIONS.search(lower)):
        return False
    if words.numbers(gold) and (_NUMBERED.search(lower) or words.numbers(rest)):
        return False
    parts = [part.strip() for part in _PART.split(rest)]
    bracketed = {part.strip() for part in re.findall(r"[(\[]([^()\[\]]*)[)\]]", rest)}
    return all(
        _holds(part, answer) if _HERE in part else _remarks(part, gold, part in bracketed) for part in parts
    ) and (not _lists(parts, gold))


def _holds(part: str, answer: str) -> bool:
    """True if a part of the conclusion that holds the answer holds nothing that could be another one."""
    lower = part.lower()
    if answer in (*_YES, *_NO):
        return not any(map(str.isalnum, part))
    return not re.search(r"\band\b", lower) and not _BETWEEN_NAMES.search(part)


def _remarks(part: str, gold: str, bracketed: bool) -> bool:
    """True if a part of the conclusion without the answer is blank, a remark about it or an apposition to it."""
    lower = part.lower()
    if not any(map(str.isalnum, part)):
        return True
    if re.match(r"and\b", lower):
        return False
    if _REMARK.match(f"{lower} "):
        bare = re.sub(r"^the\s", "", part, flags=re.IGNORECASE)
        return not _ARTICLE_AND_NAME.fullmatch(part) or _is_apposition(bare, gold, bracketed)
    return words.plain(gold).strip() not in (*_YES, *_NO) and _is_apposition(part, gold, bracketed)


def _lists(parts: Sequence[str], gold: str) -> bool:
    """True if parts begin like the answer's and go on with no more than another name: "a cat, a dog"."""
    opened = [match for part in parts if (match := _OPENED.fullmatch(part))]
    same = {match["word"].lower() for match in opened if match["rest"] == _HERE}
    names = [match["rest"] for match in opened if match["word"].lower() in same and match["rest"] != _HERE]
    proper = any(map(str.isupper, gold))
    return any(all(word[0].isupper() for word in name.split()) if proper else " " not in name for name in names)


def _is_apposition(part: str, gold: str, bracketed: bool) -> bool:
    """True if `part` is the region, years, office, profession or abbreviation of `gold`, or describes it."""
    lower, proper = part.lower(), any(map(str.isupper, gold))
    if _SUFFIX.fullmatch(lower) or _ROLE.fullmatch(lower) or _REGION.fullmatch(lower) or _abbreviates(part, gold):
        return True
    if places.lies_in(gold, part) or (bracketed and _SHORT.fullmatch(part) and not gold.isupper()):
        return True
    if part[0].isdigit():
        return not words.numbers(gold)
    if not proper:
        return bracketed and _SYMBOL.fullmatch(part) is not None
    if part.split()[0].islower():
        single = len(part.split()) == 1 and len(gold.split()) == 1 and not bracketed  # as in a list: Gold, silver
        return not single and not _THEN_A_NAME.fullmatch(part)
    return bool(_INITIAL.fullmatch(part) or (_DESCRIBED.fullmatch(part) and not _VERB.search(part)))


def _abbreviates(one: str, other: str) -> bool:
    """True if one of the two is written with the first letters of the other: WHO, World Health Organization."""
    short, long = sorted((one, other), key=len)
    letters = short.replace(".", "")
    first = "".join(word[0] for word in re.findall(r"\w+", long) if word not in ("of", "the", "and", "for", "in"))
    return len(letters) > 1 and letters.isupper() and letters == first.upper()
