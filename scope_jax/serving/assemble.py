"""What is served: the weights of a run, a checkpoint or a model folder, in an engine that requests may join."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from models import weights
from models.config import ModelConfig
from models.tokenizer import Tokenizer
from retrieval.search import SearchTool
from rollouts.online import OnlineRollouts
from scope_jax.config import Config, ServedModel, load_card, load_served
from scope_jax.errors import UserError
from scope_jax.play.turns import Joiner
from scope_jax.run.assemble import own_mesh
from scope_jax.run.checkpoint import load, locate, run_of
from scope_jax.run.dtypes import DTYPES
from scope_jax.run.engines import ahead_of, decode_layout, engine_for, threads_of
from scope_jax.run.examined import index_folder
from scope_jax.run.searches import lookup_of, search_of
from scope_jax.systems import game_of
from scope_jax.text import dialects

Card = Config | ServedModel
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Served:
    """A model that generates. name: as requests name it. search, joiner: None unless it searches."""

    name: str
    cfg: Card
    tokenizer: Tokenizer
    rollouts: OnlineRollouts
    search: SearchTool | None = None
    joiner: Joiner | None = None


def card_of(target: Path, card: Path | None, overrides: Sequence[str]) -> Card:
    """The given card; without one the target's run's; for a model folder elsewhere the defaults, within what its
    config.json allows. Overrides apply to all. Raises UserError if the target is none of these."""
    run = run_of(target)
    if card is not None or run is not None:
        return load_card(card or (run or target) / "config.toml", overrides)
    if not weights.is_model(target):
        raise UserError(
            f"{target} is neither a run or one of its checkpoints (no config.toml) nor a model folder (no config.json)."
        )
    return load_served(target, weights.load_config(target).max_positions, overrides)


def _source(target: Path, cfg: Card, policy: str | None) -> tuple[Path, str | None]:
    """(folder of the weights, policy: None for a model folder). Raises UserError if there is no such policy."""
    if weights.is_model(target):
        if policy is not None:
            raise UserError(f"{target} is one model, without policies; remove --policy.")
        return target, None
    assert isinstance(cfg, Config)
    names = game_of(cfg).policies(cfg)
    if policy is not None and policy not in names:
        raise UserError(f"{target} has no policy {policy!r}; give one of {', '.join(names)}.")
    name = policy or game_of(cfg).exam(cfg).policy
    if weights.is_model(target / name):
        return target / name, None
    return locate(target), name


def _params(cfg: Card, model: ModelConfig, mesh: Mesh, folder: Path, policy: str | None) -> Any:
    """The weights in a narrow dtype: that of the engine, or that of training if it is narrower."""
    dtypes = (DTYPES[cfg.model.compute_dtype], DTYPES[cfg.model.param_dtype])
    dtype = min(dtypes, key=lambda dtype: jnp.dtype(dtype).itemsize)
    layout = decode_layout(cfg, model, mesh)
    if policy is None:
        return weights.load(folder, *layout, dtype)[1]
    saved = load(folder, {policy: {"params": weights.abstract(model, *layout, dtype)}})
    params = saved.states[policy]["params"]
    weights.check_finite(params, f"the checkpoint {folder} cannot be used: ")
    return params


@contextmanager
def served(
    target: Path,
    card: Path | None,
    overrides: Sequence[str],
    *,
    policy: str | None,
    search: bool,
    name: str | None,
    grace: float,
    tell: Tell,
) -> Iterator[Served]:
    """The model, loaded and ready; at the end, replies under way have `grace` seconds to finish.

    search: offer the card's search. name: of the model, None: the target's. Raises UserError and ValueError with one
    sentence for what is missing or does not fit.
    """
    cfg = card_of(target, card, overrides)
    folder, of = _source(target, cfg, policy)
    home = folder if of is None else Path(cfg.model.checkpoint)
    model = weights.load_config(home)
    tokenizer = Tokenizer.load(cfg.model.tokenizer or home, cfg.model.chat_template)
    if search and cfg.retrieval is None:
        raise UserError(
            "there is nothing to search: the card has no [retrieval] table; give a card with one (--card), or "
            "--set retrieval.corpus=FILE, or leave out --search."
        )
    mesh = own_mesh(cfg)
    engine = engine_for(cfg, model, mesh)
    tell(f"loading {folder}")
    params = engine.take_params(_params(cfg, model, mesh, folder, of))
    with index_folder(target, cfg) as place:
        lookup = lookup_of(cfg, place, mesh, None, tell) if search else None
        options: dict[str, Any] = dict(cfg.model.chat_template_kwargs)
        rollouts = OnlineRollouts(
            engine,
            params,
            tokenizer,
            waiting=cfg.serve.queue,
            threads=threads_of(cfg),
            ahead=ahead_of(cfg, engine),
            tool=lookup,
        )
        try:
            yield Served(
                name=name or target.resolve().name,
                cfg=cfg,
                tokenizer=tokenizer,
                rollouts=rollouts,
                search=search_of(cfg, tokenizer, lookup),
                joiner=Joiner(cfg.model.turns, tokenizer, dialects.load(cfg.model.dialect), options)
                if search
                else None,
            )
        finally:
            rollouts.close(grace)
