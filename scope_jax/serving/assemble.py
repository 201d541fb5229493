"""What is served: the weights of a run, a checkpoint or a model folder, in an engine that requests may join."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from models import peft, weights
from models.config import ModelConfig
from models.tokenizer import Tokenizer
from retrieval.search import SearchTool
from rollouts.engine import Engine
from rollouts.online import OnlineRollouts
from rollouts.paged import PagedEngine
from scope_jax.config import Config, ServedModel, load_card, load_served
from scope_jax.errors import UserError
from scope_jax.play.turns import Joiner
from scope_jax.run.adapters import base_of, policies_of, section_of
from scope_jax.run.checkpoint import load, locate, run_of, step_of
from scope_jax.run.engines import ahead_of, decode_layout, engine_for, threads_of
from scope_jax.run.examined import Examined, factors_of, index_folder, read_dtype
from scope_jax.run.meshes import own_mesh
from scope_jax.run.searches import lookup_of, search_of
from scope_jax.systems import game_of
from scope_jax.text import dialects

Card = Config | ServedModel
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Served:
    """A model that generates. name: as requests name it. search, joiner: None unless it searches. adapter: the policy
    that samples, if it is an adapter."""

    name: str
    cfg: Card
    tokenizer: Tokenizer
    rollouts: OnlineRollouts
    search: SearchTool | None = None
    joiner: Joiner | None = None
    adapter: str | None = None


def card_of(target: Path, card: Path | None, overrides: Sequence[str]) -> Card:
    """The given card; without one the target's run's; for a model folder elsewhere the defaults, within what its
    config.json allows. Overrides apply to all. Raises UserError if the target is none of these."""
    run = run_of(target)
    if card is not None or run is not None:
        return load_card(card or (run or target) / "config.toml", overrides)
    if peft.is_adapter(target):
        stated = [one.partition("=")[2].strip(" \"'") for one in overrides if one.startswith("model.checkpoint=")]
        base = Path(stated[-1] if stated else base_of(target))
        return load_served(base, weights.load_config(base).max_positions, overrides)
    if not weights.is_model(target):
        raise UserError(
            f"{target} is neither a run or one of its checkpoints (no config.toml) nor a model folder (no config.json)."
        )
    return load_served(target, weights.load_config(target).max_positions, overrides)


def _with_adapter(cfg: Card, target: Path, folder: Path, of: str | None) -> Card:
    """The card with the [model.adapter] of what is served: the adapter's folder's, the run's, or none."""
    if peft.is_adapter(folder):
        section = section_of(folder, weights.load_config(cfg.model.checkpoint), cfg.model.adapter)
    else:
        run = run_of(target)
        own = run is not None and of is not None
        section = load_card(run / "config.toml").model.adapter if own and run is not None else None
    return cfg.model_copy(update={"model": cfg.model.model_copy(update={"adapter": section})})


def _source(target: Path, cfg: Card, policy: str | None) -> tuple[Path, str | None]:
    """(folder of the weights, policy: None for a folder of a model or an adapter). Raises UserError if there is no such
    policy."""
    if weights.is_model(target) or peft.is_adapter(target):
        if policy is not None:
            raise UserError(f"{target} is one model, without policies; remove --policy.")
        return target, None
    assert isinstance(cfg, Config)
    names = game_of(cfg).policies(cfg)
    if policy is not None and policy not in names:
        raise UserError(f"{target} has no policy {policy!r}; give one of {', '.join(names)}.")
    name = policy or game_of(cfg).exam(cfg).policy
    if weights.is_model(target / name) or peft.is_adapter(target / name):
        return target / name, None
    return locate(target), name


def _adapted(cfg: Card, engine: Engine | PagedEngine, mesh: Mesh, folder: Path, policy: str | None) -> tuple[Any, str]:
    """(the engine's weights with the adapter, its name there)."""
    layout = decode_layout(cfg, engine.model, mesh)
    base = engine.take_params(weights.load(cfg.model.checkpoint, *layout, read_dtype(cfg))[1])
    name = policies_of(cfg)[0] if policy is None else policy
    examined = Examined(folder, name, None if policy is None else step_of(folder))
    return engine.load_adapter(base, name, factors_of(cfg, engine.model, *layout, examined)), name


def _params(cfg: Card, model: ModelConfig, mesh: Mesh, folder: Path, policy: str | None) -> Any:
    """The weights in a narrow dtype: that of the engine, or that of training if it is narrower."""
    dtype, layout = read_dtype(cfg), decode_layout(cfg, model, mesh)
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
    cfg = _with_adapter(cfg, target, folder, of)
    home = folder if of is None and not peft.is_adapter(folder) else Path(cfg.model.checkpoint)
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
    adapter = None
    if cfg.model.adapter is None:
        params = engine.take_params(_params(cfg, model, mesh, folder, of))
    else:
        params, adapter = _adapted(cfg, engine, mesh, folder, of)
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
                adapter=adapter,
            )
        finally:
            rollouts.close(grace)
