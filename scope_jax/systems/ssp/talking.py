"""How SSP's policies search."""

from __future__ import annotations

from scope_jax.config import Config
from scope_jax.play import searching
from scope_jax.play.searching import Search
from scope_jax.play.turns import Respond
from scope_jax.text import dialects


def stops(cfg: Config, final: str) -> tuple[str, ...]:
    """Strings that end a turn: the closing tags of a search and of `<final>`, which ends the episode."""
    return (dialects.load(cfg.model.dialect).close, f"</{final}>")


def responder(cfg: Config, search: Search, final: str) -> Respond:
    """The responder of the turns of such an episode."""
    ends = cfg.model.turns == "raw"
    return searching.responder(search, dialects.load(cfg.model.dialect), (final,), end_token_ends=ends)
