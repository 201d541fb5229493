"""The keys that one changes first, as comments in a new card, with the values in force."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from scope_jax.config import LossCard, SamplingSection, Section

if TYPE_CHECKING:
    from scope_jax.config import Config
    from scope_jax.play.game import Game

REMARKS = {  # by the end of a key
    "batch_size": "items of a step; a step's time is nearly proportional",
    "learning_rate": "with an adapter ten times as much",
    "slots": "replies at a time; as many as the memory holds",
    "samples": "the group: replies to a prompt",
    "temperature": "keep it in training: low values make the replies of a group alike",
    "max_tokens": "of a turn; more if many replies are cut off",
}


def with_defaults(text: str, table: Mapping[str, Any], cfg: Config, game: Game) -> str:
    """A card's text with a commented line for each key that one changes first and that the card does not set: below the
    table that it belongs to, or with a commented header at the end. table: the card as plain data."""
    lines: dict[str, list[str]] = {}
    for key in _keys(cfg, game):
        above, _, name = key.rpartition(".")
        if not _has(table, key):
            remark = f"  # {REMARKS[name]}" if name in REMARKS else ""
            lines.setdefault(above, []).append(f"# {name} = {_value(cfg, key)!r}{remark}")
    parts = []
    for part in re.split(r"^(?=\[)", text, flags=re.MULTILINE):
        header = re.match(r"\[([^\[\]]+)\]\n", part)
        below = lines.pop(header[1], []) if header else []
        parts.append("\n".join([part.rstrip("\n"), *below]) + "\n")
    parts += ["\n".join([f"# [{above}]", *below]) + "\n" for above, below in lines.items()]
    return "\n".join(parts)


def _keys(cfg: Config, game: Game) -> Iterator[str]:
    """The keys, with dots, in the order of the tables of a card."""
    yield "rollout.slots"
    yield "optimizer.learning_rate"
    if game.batch:
        yield from game.batch
    elif cfg.system == game.name:  # a game in a file may have keys of its own for this
        yield "train.batch_size"
    yield from _of_roles(getattr(cfg, cfg.game_table), f"{cfg.game_table}.")


def _of_roles(section: Section, prefix: str) -> Iterator[str]:
    """Of a game's table and of those of its roles: how many are sampled, and how."""
    fields = type(section).model_fields
    if isinstance(section, SamplingSection):
        yield f"{prefix}temperature"
        yield f"{prefix}max_tokens"
    elif "samples" in fields:
        yield f"{prefix}samples"
    for name in fields:
        inner = getattr(section, name)
        if name == "sampling" or (isinstance(inner, Section) and not isinstance(inner, (SamplingSection, LossCard))):
            yield from _of_roles(inner, f"{prefix}{name}.")


def _value(cfg: Config, key: str) -> Any:
    value: Any = cfg
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _has(table: Mapping[str, Any], key: str) -> bool:
    value: Any = table
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return True
