"""How SSP's policies search."""

from __future__ import annotations

from scope_jax.config import Config
from scope_jax.play import searching
from scope_jax.play.searching import Search
from scope_jax.play.turns import Respond
from scope_jax.text import dialects


def stops(cfg: Config, final: str) -> tuple[str, ...]:
    """Strings that end a turn of an episode with searches that ends in `<final>`."""
    return (dialects.load(cfg.model.dialect).close, f"</{final}>")


def responder(cfg: Config, search: Search, final: str) -> Respond:
    """What answers a turn of such an episode."""
    ends = cfg.model.turns == "raw"
    return searching.responder(search, dialects.load(cfg.model.dialect), (final,), end_token_ends=ends)
