"""Which option of a multiple-choice question an answer chooses, read from its text alone."""

from __future__ import annotations

import re
import unicodedata

_TAG = re.compile(r"</?[a-zA-Z]\w*>")
_BREAK = re.compile(r"\\(?:q?quad|item|newline)(?![a-zA-Z])|\\n(?![a-z])|\\\\")
_LATEX = re.compile(
    r"\\(?:f?box(?:ed)?|text\w*|math(?:rm|bf|sf|it))\s*+(?=\{)|\\[()\[\] ,;!]|[${}*]|(?<!\w)_+|_+(?!\w)"
)
_ALONE = re.compile(r"\W*+([A-Za-z])\W*+")
# The label of an option: "(B)", "[b]", "B)", "B.", "B:", "B - ".
_LABEL = re.compile(
    r"""
    (?: (?P<open>[(\[])\s* | (?<![\w.°-]) (?<!\w') )
    (?P<letter>[A-Za-z]) ["'`”]?
    (?: \s*(?P<close>[)\]])
      | (?P<dot>\.) (?: (?=["'`”)\]:–—-]*\s+\S) | (?P<tight>(?=[^\s.](?!\.))) )
      | \s*(?P<colon>:) (?: (?=\s+\S) | (?P<tight_colon>(?=\S)) )
      | \s(?P<dash>[-–—])\s )
    """,
    re.VERBOSE,
)
_TIGHT = re.compile(r"[.:)\]]?[^\s.,;:)\]]")  # behind a letter: "A.foo", "(A)foo"
_GROUP = re.compile(r"[(\[]([^()\[\]]*)[)\]]")
# What has letters for names: the C of "vitamin C" labels nothing.
_LETTERED = re.compile(
    r"\b(?:vitamins?|hepatitis|influenza|types?|groups?|grades?|class(?:es)?|plans?|teams?|points?|parts?|phases?"
    r"|figures?|sections?|series|appendix|schedule|category|statements?|(?:mr|mrs|ms|dr|prof|sir)\.?)\s*[(\[]?$",
    re.IGNORECASE,
)
# Initials stand between capitals (John F. Kennedy, George H. W. Bush) or begin a name (T. S. Eliot, E. coli).
_NAME_BEFORE = re.compile(r"(?<![\w'])[A-Z][\w'-]*\.?\s$")
_NAME = re.compile(r"[A-Z]\.\s{1,3}(?:[A-Z]\.\s{0,3}){0,4}\w[\w'-]")
_SURNAME = re.compile(r"[A-Z]\.\s{1,3}[A-Z]")
# An option about earlier ones: "D. Both (A) and (B)".
_JOINT = re.compile(
    r"(?:(?:both|neither|either)\s+)?[(\[]?([A-Za-z])[)\]]?\s+(?:and|nor|or)\s+[(\[]?([A-Za-z])(?!\w)[)\]]?",
    re.IGNORECASE,
)
_ARTICLE = (
    r"[^\S\n]++(?!(?:is|was|and|or|nor|but|because|are|as|seems|looks)\b)[^\W\d_]"  # what follows A and I in sentences
)
_IS = r"(?:is|was|would\ be|must\ be|should\ be|ist|lautet|est|es|è|é)"
_WORD = r"(?i:answer|choice|option|antwort|lösung|respuesta|opción|réponse|risposta|opzione|resposta|opção|ответ)"
_VERB = r"(?i:(?:it|that)(?:\ is|'s|\ must\ be)|choose|pick|select|go\ with|answer)"
_NAMED = re.compile(
    rf"(?:\b{_WORD}(?:\s++(?i:{_IS}))?|\b{_VERB}|答案|正确选项|选项|選項|答え|正解|(?<=\w)(?=:\s*+\W*+[A-Z]\W*+$))"
    rf"\s*+(?:是|为|は)?[:\s\"'“‘`(\[]*+(?:([B-HJ-Z]|[AI](?!{_ARTICLE}))(?!\w|[-'’]\w)|([a-z])(?=\W*+$))"
)
_RIGHT = re.compile(
    r"^\W*+([A-Z])\s++(?:is|ist|est|es|è|é)\s++(?:(?:the|my|die|der|la|el|most|best|only)\s++)*+"
    r"(?i:correct|right|true|best|answer|choice|richtig|correcta|correcte|antwort|bonne|corretta)"
)
_FIRST = re.compile(r"^\W*+([A-Z])(?:\s*+(?:$|[,;])|[\"'`”’](?!\w)|\s++(?:because|since|as|weil|car|porque)\b)")
_TITLED = re.compile(r"^\W*+(?:([A-Z])(?:\.(?!\w\.)|\s*+[:)\]]|\s++[-–—]\s)|([a-z])[.)\]](?=\s|$))")
_TITLE = re.compile(r"[)\]:]|\.(?=\s+(?i:both|neither)\b)")  # behind it stands the option's text
_NOT = re.compile(r"\b(?:not|no|never|neither|nor|cannot|except|wrong|false|incorrect|nicht|falsch|pas|faux)\b|n't\b")
# A capital that may stand for an option: no article before a word, no pronoun, no part of a word.
_CAPITAL = re.compile(rf"(?<![\w.-])(?<!\w')([B-HJ]|[AI](?!{_ARTICLE}))(?![\w-]|'\w|\.\w)")
# A letter that follows an option's text as another choice ("Paris or C"), or is all of it.
_SECOND = re.compile(r"(?:^|[a-z0-9][^\w\s]*+\s++(?:or|and)\s++|[a-z],\s)([A-Z])\W*$")


def letter(text: str) -> str | None:
    r"""The option an answer chooses: "B", "(b)", "**B**.", "\text{B}", "B. Paris", "\boxed{B}", "the answer is (B)",
    "B is correct."; None if it names none or two, repeats the options, or says which one is wrong.

    Behind a label ("B. ", "(B) ") stands the option's text, whose words are no labels: "D. Both A and B" is D. A second
    label names another option: "A. Paris B. Rome" is none.
    """
    plain = _plain(text)
    if alone := _ALONE.fullmatch(plain):
        return alone[1].upper()
    named = [*_NAMED.finditer(plain)]
    others = {_of(match) for match in named}
    if titled := _TITLED.match(plain):
        chosen, rest = _of(titled), plain[titled.end() :]
        others |= _labels(rest, titled) | {match[1] for match in _SECOND.finditer(rest.strip())}
        return chosen if others <= {chosen} else None
    first = _RIGHT.match(plain) or _FIRST.match(plain) or (named[-1] if named else None)
    if first is None:
        return None
    chosen = _of(first)
    title = _TITLE.match(plain, first.end())
    end = title.end() if title else len(plain)
    said, rest = plain[:end], plain[end:]
    others |= _labels(said, first) | _labels(rest, first) | {match[1] for match in _CAPITAL.finditer(said)}
    return chosen if others <= {chosen} and not _NOT.search(said.lower()) else None


def _plain(text: str) -> str:
    """Without tags, emphasis, LaTeX commands around text, and full-width characters."""
    spaced = _BREAK.sub(" ", _TAG.sub(" ", unicodedata.normalize("NFKC", text)))
    return _LATEX.sub("", spaced).replace("’", "'").strip()


def _of(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group).upper()


def _labels(text: str, title: re.Match[str]) -> set[str]:
    """The letters that label options in `text`, which stands behind the label `title`."""
    chosen, text = _of(title), text.strip()
    joint = _JOINT.match(text)
    if joint and max(joint[1].upper(), joint[2].upper()) < chosen:
        text = text[joint.end() :]
    text = _GROUP.sub(_without_end, text)
    return {label["letter"].upper() for label in _LABEL.finditer(text) if _is_label(label, title)}


def _without_end(group: re.Match[str]) -> str:
    """Brackets around more than a letter, as in (x, y), with a comma for the one behind, which ends no label."""
    return group[0] if sum(map(str.isalnum, group[1])) == 1 else f"({group[1]},"


def _is_label(label: re.Match[str], title: re.Match[str]) -> bool:
    """False for a letter of a word, a name, a function or a formula."""
    text, start = label.string, label.start()
    tight = _TIGHT.match(title.string, title.end()) is not None
    if _LETTERED.search(text[max(start - 16, 0) : start]):
        return False
    if label["open"] and label["close"]:
        return tight or start == 0 or not re.match(r"[\w']", text[start - 1])
    if label["dash"]:
        return title[0].rstrip()[-1] in "-–—"
    if label["tight"] is not None or label["tight_colon"] is not None:
        return tight
    if label["close"]:
        return True
    if label["letter"].islower():
        return label["dot"] is not None and _of(title).lower() in title[0]
    return label["colon"] is not None or not _is_initial(label, _of(title))


def _is_initial(label: re.Match[str], chosen: str) -> bool:
    """True for a capital of a person's name, or of a species'. Amid a name, one beside `chosen` in the alphabet is the
    next option's label: "C. Oslo D. Bergen" chooses none."""
    start = label.start("letter")
    if start == 0:
        return bool(_NAME.match(label.string))
    beside = abs(ord(label["letter"]) - ord(chosen)) == 1
    before = label.string[max(start - 40, 0) : start]
    return not beside and bool(_NAME_BEFORE.search(before) and _SURNAME.match(label.string, start))
