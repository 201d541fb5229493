"""Text from tokens as they arrive: whole characters only, and nothing from a stop string on."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from scope_jax.rollouts.types import TextCodec


class TextStream:
    """The text of one turn. stop_ids: end tokens, which are no text. stops: strings before which the text ends."""

    def __init__(self, tokenizer: TextCodec, stop_ids: Sequence[int], stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = frozenset(stop_ids)
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # the beginning of a stop string, perhaps
        self._over = False

    def feed(self, ids: Iterable[int]) -> str:
        """What these tokens add to the text."""
        return self._cut("".join(self._decoder.decode(self._tokenizer.token_bytes(id)) for id in self.kept(ids)))

    def kept(self, ids: Iterable[int]) -> list[int]:
        """The ids without end tokens."""
        return [id for id in ids if id not in self._stop_ids]

    def finish(self) -> str:
        """What is left when no more tokens come."""
        text = self._cut(self._decoder.decode(b"", final=True))
        if not self._over:
            text, self._held = text + self._held, ""
        return text

    def _cut(self, text: str) -> str:
        if self._over:
            return ""
        text = self._held + text
        found = [place for place in map(text.find, self._stops) if place >= 0]
        if found:
            self._over = True
            return text[: min(found)]
        count = max((n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        self._held = text[len(text) - count :]
        return text[: len(text) - count]
