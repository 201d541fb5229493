"""Adapters of a run: from its card, their first factors, and the base that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from scope_jax.config import AdapterSection, Config, ServedModel
from scope_jax.errors import UserError
from scope_jax.games import game_of
from scope_jax.models.decoder.adapter import Adapter, adapted, declare_factors
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.files import peft, weights
from scope_jax.models.files.seal import digest
from scope_jax.rollouts.keys import key_data
from scope_jax.run.checkpoint import check_base, load
from scope_jax.sharding.spec import param_shardings

if TYPE_CHECKING:
    from scope_jax.learner.learner import Learner  # export does not need it, and it imports for a second

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}  # that a card may name
SERVED = "served"  # the only policy of a model that is served without a game


def adapter_of(section: AdapterSection | None) -> Adapter | None:
    """The adapter of a card's [model.adapter] table; None without one."""
    if section is None:
        return None
    return Adapter(
        section.rank,
        section.alpha,
        section.targets,
        section.rslora,
        section.init,
        DTYPES[section.dtype],
        DTYPES[section.base_dtype],
    )


def policies_of(cfg: Config | ServedModel) -> tuple[str, ...]:
    """The names of a card's policies; of a model that is served without a game, SERVED."""
    return tuple(game_of(cfg).policies(cfg)) if isinstance(cfg, Config) else (SERVED,)


def kind_of(cfg: Config | ServedModel) -> Any:
    """What adapters must have in common to be in one engine; None for whole weights."""
    section = cfg.model.adapter
    if section is None:
        return None
    matrices = adapted(weights.load_config(cfg.model.checkpoint), section.targets)
    return section.rank, section.alpha, section.rslora, matrices


def base_digest(cfg: Config | ServedModel) -> str | None:
    """A checksum of the base's weights, to which adapters belong; None if the card has whole weights."""
    return None if cfg.model.adapter is None else digest(Path(cfg.model.checkpoint))


def first_factors(cfg: Config, learner: Learner, policy: str) -> Any:
    """A policy's factors before training: of its folder in model.policies, or random by seed and name."""
    assert learner.adapter is not None
    if (folder := cfg.model.policies.get(policy)) is not None:
        return peft.load(folder, learner.model, learner.adapter, learner.layout.param_shardings)
    return learner.layout.init_factors(jax.random.wrap_key_data(jnp.asarray(key_data(cfg.seed, "adapter", policy))))


def section_of(folder: Path, model: ModelConfig, section: AdapterSection | None) -> AdapterSection:
    """The [model.adapter] table of an adapter's folder, with the dtypes of the card's if it has one.

    Raises FileNotFoundError or WeightsError with one sentence if the folder is damaged or not supported.
    """
    found = peft.adapter_of(folder, model)
    own: dict[str, Any] = {name: getattr(found, name) for name in ("rank", "alpha", "targets", "rslora")}
    own |= {} if section is None else {"dtype": section.dtype, "base_dtype": section.base_dtype}
    return AdapterSection(**own)


def base_of(folder: Path, overrides: Sequence[str]) -> str:
    """The base of an adapter's folder: model.checkpoint among the overrides, or what the folder names. Raises UserError
    if that is no folder here."""
    given = {key: value.strip(" \"'") for key, _, value in (one.partition("=") for one in overrides)}
    base = given.get("model.checkpoint") or peft.load_config(folder).get("base_model_name_or_path")
    if not isinstance(base, str) or not weights.is_model(base):
        raise UserError(
            f"the adapter in {folder} is for the base {base!r}, which is not a model folder here; give it with "
            "--set model.checkpoint=FOLDER."
        )
    return base


def saved_factors(
    cfg: Config | ServedModel, model: ModelConfig, mesh: Any, rules: Any, checkpoint: Path, policy: str
) -> Any:
    """A policy's factors from a checkpoint of a run, in the dtype in which they were trained."""
    adapter = adapter_of(cfg.model.adapter)
    assert adapter is not None
    declared = declare_factors(model, adapter)
    target = jax.tree.map(
        lambda param, sharding: jax.ShapeDtypeStruct(param.shape, adapter.dtype, sharding=sharding),
        declared,
        param_shardings(declared, mesh, rules),
    )
    saved = load(checkpoint, {policy: {"params": target}})
    check_base(saved, base_digest(cfg), cfg.model.checkpoint)
    factors = saved.states[policy]["params"]
    weights.check_finite(factors, f"the checkpoint {checkpoint} cannot be used: ")
    return factors
