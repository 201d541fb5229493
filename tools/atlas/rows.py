"""Demonstrations as token rows: episodes in text, and worlds in which all names are permuted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from scope_jax.learner.types import Datum, Episode
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from tools.atlas.facts import World

Split = Literal["all", "train", "held_out"]  # names that demonstrations are about
Show = Callable[[str], str]  # query -> result text of the search tool
T = TypeVar("T")


@dataclass(frozen=True)
class Script:
    """One episode: role, user message, (text, sampled) parts in order; `ends`: the end token is sampled too."""

    role: str
    message: str
    parts: tuple[tuple[str, bool], ...]
    ends: bool = False


Makers = dict[str, Callable[[], Script]]  # a function that draws a demonstration, by kind


def pick(items: Sequence[T], rng: np.random.Generator) -> T:
    """One item at random."""
    return items[int(rng.integers(len(items)))]


def some(items: Sequence[T], count: int, rng: np.random.Generator) -> list[T]:
    """`count` of the items in random order; all of them if there are no more."""
    return [items[int(place)] for place in rng.permutation(len(items))[:count]]


def token_row(script: Script, tokenizer: Tokenizer) -> Datum:
    """The episode as the tokens the engine would see; only the policy's own tokens are marked as sampled."""
    ids = list(tokenizer.encode_chat([{"role": "user", "content": script.message}]))
    sampled = [False] * len(ids)
    for text, is_sampled in script.parts:
        piece = tokenizer.encode(text)
        ids += piece
        sampled += [is_sampled] * len(piece)
    if script.ends:
        ids.append(tokenizer.eos_id)
        sampled.append(True)
    return Datum(np.asarray(ids, np.int32), np.asarray(sampled, bool), np.zeros(len(ids), np.float32))


def name_ids(world: World, tokenizer: Tokenizer) -> np.ndarray:
    """Ids of all names as they occur in a sentence; raises ValueError if one is not a single token."""
    pieces = {name: tokenizer.encode(f" {name}") for name in world.names}
    if long := [name for name, piece in pieces.items() if len(piece) != 1]:
        raise ValueError(f"The tokenizer splits the name {long[0]!r}; train it with all names of the world.")
    return np.asarray(sorted(piece[0] for piece in pieces.values()), np.int32)


def exchanged(row: Datum, names_N: np.ndarray, vocab_size: int, rng: np.random.Generator) -> Datum:
    """The row with all names permuted, so that facts can only be read, not memorised."""
    table_V = np.arange(vocab_size, dtype=np.int32)
    table_V[names_N] = rng.permutation(names_N)
    return Datum(table_V[row.ids_T], row.sampled_T, row.logprobs_T)


def pool(make: Callable[[], Script], count: int, tokenizer: Tokenizer) -> list[Datum]:
    """`count` token rows of freshly drawn scripts."""
    return [token_row(make(), tokenizer) for _ in range(count)]


def supervised(rows: Iterable[Datum]) -> list[Episode]:
    """Rows as episodes for the learner's supervised loss."""
    return [
        Episode(role="demonstration", policy="actor", group=str(i), datums=(row,), reward=0.0)
        for i, row in enumerate(rows)
    ]
