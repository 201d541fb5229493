"""Weights on disk, of a run, a folder or an adapter, and their way into an engine: for `eval`, `replay` and `serve`.

Weights are loaded once, in the engine's dtype and sharding; there is no learner, optimiser or reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import jax.numpy as jnp
from jax.sharding import Mesh

from scope_jax.config import Config, ServedModel
from scope_jax.errors import UserError
from scope_jax.games import game_of, load_card, load_data
from scope_jax.models.decoder.adapter import declare_factors
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.transformer import Params
from scope_jax.models.files import peft, weights
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.tools import BASE
from scope_jax.run.adapters import DTYPES, adapter_of, policies_of, saved_factors, section_of
from scope_jax.run.checkpoint import load, locate, run_of, step_of
from scope_jax.run.engines import decode_layout
from scope_jax.run.fetching import fetched
from scope_jax.run.world import World
from scope_jax.sharding.rules import Rules
from scope_jax.sharding.spec import param_shardings

Card = TypeVar("Card", bound=Config | ServedModel)
SAMPLE = "Which of the two?\n\n<answer> é, 3.5 or 日本 </answer>"  # text for comparing tokenizers and templates


@dataclass(frozen=True)
class StoredWeights:
    """The weights of a policy on disk."""

    folder: Path
    """A folder of a model or an adapter, or a run's checkpoint."""
    policy: str
    """Whose weights they are."""
    step: int | None = None
    """The checkpoint's; None: a folder of a model or an adapter."""

    @property
    def is_adapter(self) -> bool:
        """True for a folder with an adapter alone."""
        return self.step is None and peft.is_adapter(self.folder)


def card_of(target: Path, card: Path | None, overrides: Sequence[str]) -> Config | None:
    """The given card, or that of the run that `target` is or belongs to; None without one. What it names on object
    storage is copied."""
    run = run_of(target)
    if card is None and run is None:
        return None
    return fetched(load_card(card or (run or target) / "config.toml", overrides))


def find_weights(target: Path, cfg: Config | ServedModel, policy: str | None = None) -> StoredWeights:
    """The weights of `policy`, None: of the one that answers exams, in `target`: a folder of a model or an adapter, an
    export with one folder per policy, a checkpoint, or a run (its newest checkpoint).

    Raises UserError for anything else, and if there is no such policy.
    """
    names = policies_of(cfg)
    if policy is not None and _is_model(target):
        raise UserError(f"{target} is one model, without policies; remove --policy.")
    if policy is not None and policy not in names:
        raise UserError(f"{target} has no policy {policy!r}; give one of {', '.join(names)}.")
    name = policy or (game_of(cfg).exam_of(cfg).role.agent.policy if isinstance(cfg, Config) else names[0])
    for folder in (target, target / name):
        if _is_model(folder):
            return StoredWeights(folder, name)
    if run_of(target) is None:
        raise UserError(no_weights(target))
    checkpoint = locate(target)
    return StoredWeights(checkpoint, name, step_of(checkpoint))


def no_weights(target: Path) -> str:
    """The sentence for a folder without weights."""
    return f"{target} is neither a run or one of its checkpoints (no config.toml) nor a model folder (no config.json)."


def _is_model(folder: Path) -> bool:
    return weights.is_model(folder) or peft.is_adapter(folder)


@contextmanager
def index_folder(target: Path, cfg: Config | ServedModel) -> Iterator[Path]:
    """The folder of an index for which the card has no folder: the target's run if its [retrieval] table is the same,
    otherwise a temporary folder."""
    run = run_of(target)
    if run is not None and fetched(load_data(run / "config.toml")).retrieval == cfg.retrieval:
        yield run
    else:
        with TemporaryDirectory() as scratch:
            yield Path(scratch)


def with_adapter(cfg: Card, stored: StoredWeights) -> Card:
    """The card with the [model.adapter] that these weights have: a run's own, an adapter's folder's, or none."""
    section = cfg.model.adapter
    if stored.is_adapter:
        section = section_of(stored.folder, weights.load_config(cfg.model.checkpoint), section)
    elif stored.step is None:
        section = None
    elif (run := run_of(stored.folder)) is not None:
        section = load_data(run / "config.toml").model.adapter
    return cfg.model_copy(update={"model": cfg.model.model_copy(update={"adapter": section})})


def base_folder(cfg: Config, base: Path | None, used: bool) -> StoredWeights | None:
    """The base model that grades answers: `base`, or the card's `model.checkpoint`; None if it is not used.

    Raises UserError if it is missing, or if `base` is given but not used.
    """
    if not used:
        if base is not None:
            raise UserError("no base model judges the answers of this card; remove --base.")
        return None
    folder = base or Path(cfg.model.checkpoint)
    if not weights.is_model(folder):
        raise UserError(
            f"the base model judges the answers, but {folder} is not a model folder (no config.json); give the base "
            "with --base, or give the grader an endpoint."
        )
    return StoredWeights(folder, BASE)


def model_folder(cfg: Config | ServedModel, stored: StoredWeights) -> Path:
    """The folder with its architecture and tokenizer."""
    whole = stored.step is None and not stored.is_adapter
    return stored.folder if whole else Path(cfg.model.checkpoint)


def check_alike(cfg: Config, one: Path, other: Path) -> None:
    """Raises UserError if one engine and one tokenizer cannot serve both models."""
    if one == other:
        return
    if weights.load_config(one) != weights.load_config(other):
        raise UserError(f"the models in {one} and {other} differ in their config.json; one engine cannot run both.")
    message = [{"role": "user", "content": SAMPLE}]
    options: dict[str, Any] = dict(cfg.model.chat_template_kwargs)
    prompts = [
        Tokenizer.load(cfg.model.tokenizer or folder, cfg.model.chat_template).encode_chat(message, **options)
        for folder in (one, other)
    ]
    if prompts[0] != prompts[1]:
        raise UserError(
            f"{one} and {other} differ in tokenizer or chat template, so one would get prompts made for the "
            "other; set model.tokenizer or model.chat_template to those both were trained with."
        )


def read_dtype(cfg: Config | ServedModel) -> Any:
    """The engine's dtype, or that of training if narrower, so that the weights equal those a run samples with."""
    adapter = cfg.model.adapter
    trained = cfg.model.param_dtype if adapter is None else adapter.base_dtype
    return min((DTYPES[cfg.model.compute_dtype], DTYPES[trained]), key=lambda t: jnp.dtype(t).itemsize)


def abstract_weights(cfg: Config | ServedModel, model: ModelConfig, mesh: Mesh) -> Params:
    """Shapes, dtype and shardings in which `weights_of` loads: those of the engine."""
    return weights.abstract(model, *decode_layout(cfg, model, mesh), read_dtype(cfg))


def load_into(world: World, models: Sequence[StoredWeights]) -> None:
    """Makes these weights available to the world's sampler, instead of earlier ones: whole weights of each, or adapters
    over the card's base, which is then the base model, too. Raises UserError if the adapters' judge is another model.
    """
    world.sampler.load({})
    if world.cfg.model.adapter is None:
        world.sampler.load({one.policy: engine_weights(world, one) for one in models})
        return
    home = Path(world.cfg.model.checkpoint)
    if other := [one.folder for one in models if one.policy == BASE and one.folder.resolve() != home.resolve()]:
        raise UserError(f"adapters over {home} cannot share an engine with the judge in {other[0]}; remove --base.")
    layout = decode_layout(world.cfg, world.model, world.mesh)
    base = engine_weights(world, StoredWeights(home, BASE))
    own = [one for one in models if one.policy != BASE]
    world.sampler.load_adapters(base, {one.policy: factors_of(world.cfg, world.model, *layout, one) for one in own})


def factors_of(cfg: Config | ServedModel, model: ModelConfig, mesh: Mesh, rules: Rules, stored: StoredWeights) -> Any:
    """A policy's factors, sharded for the engine. Raises UserError if they are not those of an adapter."""
    if stored.step is not None:
        return saved_factors(cfg, model, mesh, rules, stored.folder, stored.policy)
    if not stored.is_adapter:
        raise UserError(f"{stored.folder} holds whole weights, which cannot share an engine with adapters.")
    adapter = adapter_of(cfg.model.adapter)
    assert adapter is not None
    declared = declare_factors(model, adapter)
    return peft.load(stored.folder, model, adapter, param_shardings(declared, mesh, rules))


def engine_weights(world: World, stored: StoredWeights) -> Any:
    """The weights in the engine's format, for `Sampler.load`."""
    return world.sampler.rollouts.take_params(weights_of(world.cfg, world.model, world.mesh, stored))


def weights_of(cfg: Config | ServedModel, model: ModelConfig, mesh: Mesh, stored: StoredWeights) -> Params:
    """Whole weights of a folder or checkpoint, as `abstract_weights` describes them."""
    if stored.step is None:
        return weights.load(stored.folder, *decode_layout(cfg, model, mesh), read_dtype(cfg))[1]
    saved = load(stored.folder, {stored.policy: {"params": abstract_weights(cfg, model, mesh)}})
    params = saved.states[stored.policy]["params"]
    weights.check_finite(params, f"the checkpoint {stored.folder} cannot be used: ")
    return params
