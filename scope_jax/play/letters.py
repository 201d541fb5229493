"""Which option of a multiple-choice question an answer chooses, read from its text alone."""

from __future__ import annotations

import re
import unicodedata

_TAG = re.compile(r"</?[a-zA-Z]\w*>")
_LATEX = re.compile(
    r"\\(?:f?box(?:ed)?|text\w*|math(?:rm|bf|sf|it))\s*+(?=\{)|\\[()\[\] ,;!]|[${}*]|(?<!\w)_+|_+(?!\w)"
)
_ALONE = re.compile(r"\W*+([A-Za-z])\W*+")
# "(B)", "(b)", "[B]", "B)"; "B." and "B:" only at the beginning of a part of the text
_LABEL = re.compile(
    r"(?<![\w'])[(\[]\s*([A-Za-z])\s*[)\]]|(?<![\w'(])([A-Za-z])\)"
    r"|(?:^|[\n,;/]|\b(?:and|or|und|oder|et|ou|y|o)\b)\W{0,4}([A-Z])[.:](?=\s)"
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
_TITLED = re.compile(r"^\W*+(?:([A-Z])(?:\.(?!\w\.)|\s*+[:)\]]|\s++[-–—]\s)|([a-z])[.)\]](?=\s|$))[\s\W]*+")
_NOT = re.compile(r"\b(?:not|no|never|neither|nor|cannot|except|wrong|false|incorrect|nicht|falsch|pas|faux)\b|n't\b")
# a capital that may stand for an option: no article before a word, no pronoun, no part of a word
_CAPITAL = re.compile(rf"(?<![\w'’.-])([B-HJ]|[AI](?!{_ARTICLE}))(?![\w'’-]|\.\w)")


def letter(text: str) -> str | None:
    r"""The option an answer chooses: "B", "(b)", "**B**.", "\text{B}", "B. Paris", "\boxed{B}", "the answer is (B)",
    "B is correct."; None if it names none or two, or says which one is wrong.

    Behind a label ("B. ", "(B) ") stands the option's text, whose words are no labels: "D. Both A and B" is D.
    """
    plain = _plain(text)
    if alone := _ALONE.fullmatch(plain):
        return alone[1].upper()
    labels = {_of(match) for match in _LABEL.finditer(plain)}
    titled = _TITLED.match(plain)
    named = [*_NAMED.finditer(plain)]
    if titled:
        chosen, rest = _of(titled), plain[titled.end() :]
        others = labels | {_of(match) for match in named} | _second(rest)
        return chosen if others <= {chosen} else None
    first = _RIGHT.match(plain) or _FIRST.match(plain) or (named[-1] if named else None)
    if first is None:
        return None
    chosen = _of(first)
    title = re.compile(r"[)\]:]").match(plain, first.end())  # behind it stands the option's text
    said = plain[: title.end()] if title else plain
    others = labels | {_of(match) for match in named} | {match[1] for match in _CAPITAL.finditer(said)}
    return chosen if others <= {chosen} and not _NOT.search(said.lower()) else None


def _plain(text: str) -> str:
    """Without tags, emphasis, LaTeX commands around text, and full-width characters."""
    return _LATEX.sub("", _TAG.sub(" ", unicodedata.normalize("NFKC", text))).replace("’", "'").strip()


def _of(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group).upper()


def _second(rest: str) -> set[str]:
    """A letter that follows an option's text as another choice: "Paris or C"; or is all of it."""
    found = re.search(r"(?:^|[a-z][^\w\s]*+\s++or\s++)([A-Z])\W*$", rest)
    return {found[1]} if found else set()
