"""What is trained of given answers, before a run begins: lengths, and a row as the model sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from scope_jax.config import Config
from scope_jax.data import sources
from scope_jax.data.rows import Row
from scope_jax.errors import UserError
from scope_jax.learner.types import Datum
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.conversations import given_rows
from scope_jax.play.turns import Joiner

KINDS = ("conversations", "preferences")
ROWS = 512  # are encoded
EXAMPLE_CHARS = 4000  # of a row that is shown


def given_answers(cfg: Config, path: str, rows: Sequence[Row], tokenizer: Tokenizer, joiner: Joiner) -> tuple[str, str]:
    """(what the first ROWS of the stream of `rows` are as rows of the learner, one of them with its sampled tokens in
    brackets). path: where they are from.

    Raises UserError for a row that the chat template does not show as a whole, or if no row fits.
    """
    places = sorted(sources.places(len(rows), 0, min(ROWS, len(rows)), cfg.seed))
    longest = max(cfg.learner.buckets)
    fitting: list[Datum] = []
    too_long = 0
    for place in places:
        try:
            datums = [*_encoded(rows[place], tokenizer, joiner)]
        except UserError as error:
            raise UserError(f"row {place + 1} of {path}: {error}") from None
        if any(len(datum.ids_T) > longest for datum in datums):
            too_long += 1
        else:
            fitting += datums
    left_out = f"{too_long} of {len(places)} rows are longer than the largest of learner.buckets, {longest} tokens"
    if not fitting:
        raise UserError(f"{left_out}, so that nothing would be trained; add a larger bucket.")
    tokens = sum(len(datum.ids_T) for datum in fitting)
    trained = sum(int(datum.sampled_T.sum()) for datum in fitting)
    text = f"{len(places)} rows, {tokens / len(fitting):.0f} tokens on average, {trained / tokens:.0%} of them trained"
    text += f"; {left_out}, and left out" if too_long else ""
    return f"{text}; the first one, with the sampled tokens in ⟦ ⟧", marked_text(tokenizer, fitting[0])


def _encoded(row: Row, tokenizer: Tokenizer, joiner: Joiner) -> Iterator[Datum]:
    for one in (row["chosen"], row["rejected"]) if "chosen" in row else (row,):
        yield from given_rows(joiner, tokenizer, one["messages"], one["first"], one["tools"])


def marked_text(tokenizer: Tokenizer, row: Datum) -> str:
    """A row as text, its sampled stretches in brackets; of a long one the beginning and the end."""
    edges = np.flatnonzero(np.diff(row.sampled_T.astype(int))) + 1
    pieces = []
    for ids, sampled in zip(np.split(row.ids_T, edges), np.split(row.sampled_T, edges), strict=True):
        text = tokenizer.decode(ids.tolist())
        pieces.append(f"⟦{text}⟧" if sampled[0] else text)
    text = "".join(char if char == "\n" or char.isprintable() else "\ufffd" for char in "".join(pieces))
    half = EXAMPLE_CHARS // 2
    return text if len(text) <= EXAMPLE_CHARS else f"{text[:half]}\n[…]\n{text[-half:]}"
