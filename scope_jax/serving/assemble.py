"""What is served: the weights of a run, a checkpoint or a model folder, in an engine that requests may join."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from scope_jax.config import Config, ServedModel, load_served
from scope_jax.config.training import TrainSection
from scope_jax.errors import UserError
from scope_jax.evaluation.weights import (
    StoredWeights,
    card_of,
    factors_of,
    find_weights,
    index_folder,
    model_folder,
    no_weights,
    weights_of,
    with_adapter,
)
from scope_jax.models.files import peft, weights
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.tools import BASE
from scope_jax.play.turns import Joiner
from scope_jax.retrieval.search import SearchTool
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.online import OnlineRollouts
from scope_jax.run import card_rules, kernels
from scope_jax.run.adapters import base_of
from scope_jax.run.engines import ahead_of, decode_layout, engine_for, threads_of
from scope_jax.run.indexing import announce, lookup_of, probe, search_of
from scope_jax.run.meshes import all_generate, own_mesh
from scope_jax.run.opened import Doubt, OpenedModel
from scope_jax.run.programs import keep_programs, programs
from scope_jax.run.sizes import fitted, free_sizes, told
from scope_jax.sharding.mesh import row_shards
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


def served_card(target: Path, card: Path | None, overrides: Sequence[str]) -> Card:
    """The given card; without one the target's run's; for a model folder elsewhere the defaults, within what its
    config.json allows. Overrides apply to all. Raises UserError if the target is none of these."""
    if (cfg := card_of(target, card, overrides)) is not None:
        return cfg
    if peft.is_adapter(target):
        base = Path(base_of(target, overrides))
        return load_served(base, weights.load_config(base).max_positions, overrides)
    if not weights.is_model(target):
        raise UserError(no_weights(target))
    return load_served(target, weights.load_config(target).max_positions, overrides)


def _loaded(cfg: Card, engine: Engine, mesh: Mesh, stored: StoredWeights) -> Any:
    """The engine's weights; of an adapter, those of its base and its factors."""
    if cfg.model.adapter is None:
        return engine.take_params(weights_of(cfg, engine.model, mesh, stored))
    base = weights_of(cfg, engine.model, mesh, StoredWeights(Path(cfg.model.checkpoint), BASE))
    factors = factors_of(cfg, engine.model, *decode_layout(cfg, engine.model, mesh), stored)
    return engine.load_adapter(engine.take_params(base), stored.policy, factors)


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
    chats: bool = False,
) -> Iterator[Served]:
    """The model, loaded and ready; at the end, replies under way have `grace` seconds to finish.

    search: offer the card's search. name: of the model, None: the target's. chats: a chat template is needed; otherwise
    a model without one answers plain completions. Raises UserError and ValueError with one sentence for what is missing
    or does not fit, before weights are loaded.
    """
    cfg = all_generate(served_card(target, card, overrides))
    keep_programs((cfg.train if isinstance(cfg, Config) else TrainSection()).compilation_cache)
    source = find_weights(target, cfg, policy)
    cfg = with_adapter(cfg, source)
    home = model_folder(cfg, source)
    opened = OpenedModel(cfg, str(home))
    model, tokenizer = opened.model, opened.tokenizer
    card_rules.vocabulary(opened)
    if isinstance(found := card_rules.ends(opened), Doubt):
        tell(f"ends of replies: {found}")
    if chats or tokenizer.has_template:
        card_rules.template(opened)
    if search and cfg.retrieval is None:
        raise UserError(
            "there is nothing to search: the card has no [retrieval] table; give a card with one (--card), or "
            "--set retrieval.corpus=FILE, or leave out --search."
        )
    if search and cfg.retrieval is not None:
        if cfg.retrieval.url is not None:
            probe(cfg.retrieval.url, cfg.retrieval.timeout)
        else:
            announce(cfg.retrieval.encoder, tell)
    options: dict[str, Any] = dict(cfg.model.chat_template_kwargs)
    joiner = Joiner(cfg.model.turns, tokenizer, dialects.load(cfg.model.dialect), options) if search else None
    mesh = own_mesh(cfg)
    cfg, model = kernels.for_sampling(cfg, model, tell)
    chosen = free_sizes(overrides, card=isinstance(cfg, Config))
    if chats and "slots" in chosen:  # one conversation
        cfg = cfg.model_copy(
            update={"rollout": cfg.rollout.model_copy(update={"slots": row_shards(decode_layout(cfg, model, mesh)[0])})}
        )
    cfg = fitted(cfg, model, mesh, chosen)
    engine = engine_for(cfg, model, mesh)
    tell(told(engine))
    programs().need("replies", engine.most_programs())
    tell(f"loading {source.folder}")
    params = _loaded(cfg, engine, mesh, source)
    with index_folder(target, cfg) as place:
        lookup = lookup_of(cfg, place, mesh, None, tell, compiled=True) if search else None
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
                joiner=joiner,
                adapter=None if cfg.model.adapter is None else source.policy,
            )
        finally:
            rollouts.close(grace)
