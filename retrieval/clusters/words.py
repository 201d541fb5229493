"""Word-level properties of a text: its words, whether it is prose, and phrases it shares with held-out texts."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORD = re.compile(r"\w+")
_LETTER = re.compile(r"[^\W\d_]")
STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))


def words(text: str) -> list[str]:
    """Lower-case runs of letters and digits."""
    return _WORD.findall(text.lower())


def is_prose(text: str) -> bool:
    """Gopher's quality rules for English documents (Rae et al. 2021, App. A.1.1).

    50 to 100,000 words between blanks, 3 to 10 characters long on average, four fifths of them with a letter; at most
    one "#" and one "…" per ten words; at most 90 % of the lines start with a bullet and 30 % end with an ellipsis; at
    least two different words of `STOP_WORDS`.
    """
    parts = text.split()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not 50 <= len(parts) <= 100_000 or not 3 <= sum(map(len, parts)) / len(parts) <= 10:
        return False
    ellipses = text.count("...") + text.count("…")
    return (
        max(text.count("#"), ellipses) <= len(parts) / 10
        and sum(line.startswith(("•", "-", "*")) for line in lines) <= 0.9 * len(lines)
        and sum(line.endswith(("...", "…")) for line in lines) <= 0.3 * len(lines)
        and sum(bool(_LETTER.search(part)) for part in parts) >= 0.8 * len(parts)
        and len(STOP_WORDS.intersection(words(text))) >= 2
    )


class HeldOutPhrases:
    """Finds n-grams of evaluation questions and answers in a text (as in Brown et al. 2020, App. C).

    A held-out text of at least `length` words adds all its n-grams of that many words; a shorter one is one phrase if
    it has at least `shortest` words, and is otherwise too common to be searched for (`skipped` counts these).
    """

    def __init__(self, length: int, shortest: int) -> None:
        if not 1 <= shortest <= length:
            raise ValueError(f"shortest_phrase is {shortest}; it must be 1 to {length} words.")
        self.length, self.shortest = length, shortest
        self.skipped = 0
        self._rests: dict[tuple[str, ...], set[tuple[str, ...]]] = {}  # first `shortest` words → the words after them

    def add(self, texts: Iterable[str]) -> None:
        for text in texts:
            found = words(text)
            if len(found) < self.shortest:
                self.skipped += 1
                continue
            for start in range(max(1, len(found) - self.length + 1)):
                phrase = tuple(found[start : start + self.length])
                self._rests.setdefault(phrase[: self.shortest], set()).add(phrase[self.shortest :])

    def find(self, text: str) -> str | None:
        """The first phrase that occurs in the text, in lower-case words; None if there is none."""
        if not self._rests:
            return None
        found = words(text)
        for start in range(len(found) - self.shortest + 1):
            end = start + self.shortest
            for rest in sorted(self._rests.get(tuple(found[start:end]), ())):
                if tuple(found[end : end + len(rest)]) == rest:
                    return " ".join(found[start : end + len(rest)])
        return None
