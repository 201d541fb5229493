"""The weights to evaluate and the base model that judges: shared by `eval` and `replay`.

Three kinds of models take part. The evaluated weights come from a checkpoint of a run or from a model folder. If the
base model judges, it is the folder given by --base, or else the card's `model.checkpoint`. External judges are those of
the card.

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
from scope_jax.models import peft, weights
from scope_jax.models.adapter import declare_factors
from scope_jax.models.config import ModelConfig
from scope_jax.models.tokenizer import Tokenizer
from scope_jax.models.transformer import Params
from scope_jax.play import exams
from scope_jax.play.tools import BASE
from scope_jax.run.adapters import DTYPES, adapter_of, saved_factors, section_of
from scope_jax.run.assemble import assemble_world
from scope_jax.run.checkpoint import load, locate, run_of, step_of
from scope_jax.run.engines import decode_layout
from scope_jax.run.fetching import fetched
from scope_jax.run.meshes import all_generate
from scope_jax.run.world import Tell, World
from scope_jax.sharding.rules import Rules
from scope_jax.sharding.spec import param_shardings

Card = TypeVar("Card", bound=Config | ServedModel)
SAMPLE = "Which of the two?\n\n<answer> é, 3.5 or 日本 </answer>"  # text for comparing tokenizers and templates


@dataclass(frozen=True)
class Examined:
    """The weights of `policy`: from a model folder, an adapter's, or a run's checkpoint at `step`."""

    folder: Path
    policy: str
    step: int | None = None  # None: a model folder or an adapter's

    @property
    def is_adapter(self) -> bool:
        """True for a folder with an adapter alone."""
        return self.step is None and peft.is_adapter(self.folder)


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


def exam_card(target: Path, card: Path | None, overrides: Sequence[str]) -> Config:
    """The given card, or that of the run that `target` is or belongs to; what is on object storage is copied.

    Raises UserError if there is none.
    """
    run = run_of(target)
    if card is None and run is None:
        raise UserError(f"{target} is not a run folder (it has no config.toml); give a card with --card.")
    return fetched(load_card(card or (run or target) / "config.toml", overrides))


def find(target: Path, cfg: Config) -> Examined:
    """The weights of `target`: a folder of a model or an adapter, an export with one folder per policy, a checkpoint,
    or a run (its newest checkpoint). Raises UserError for anything else.
    """
    policy = game_of(cfg).exam(cfg).policy
    for folder in (target, target / policy):
        if weights.is_model(folder) or peft.is_adapter(folder):
            return Examined(folder, policy)
    if run_of(target) is None:
        raise UserError(
            f"{target} is neither a run or one of its checkpoints (no config.toml) nor a model folder (no config.json)."
        )
    checkpoint = locate(target)
    return Examined(checkpoint, policy, step_of(checkpoint))


def fitted(cfg: Card, examined: Examined) -> Card:
    """The card with the [model.adapter] that these weights have: a run's own, an adapter's folder's, or none."""
    section = cfg.model.adapter
    if examined.is_adapter:
        section = section_of(examined.folder, weights.load_config(cfg.model.checkpoint), section)
    elif examined.step is None:
        section = None
    elif (run := run_of(examined.folder)) is not None:
        section = load_data(run / "config.toml").model.adapter
    return cfg.model_copy(update={"model": cfg.model.model_copy(update={"adapter": section})})


def find_base(cfg: Config, base: Path | None) -> Examined | None:
    """The base model that judges, None if the card's exam does not use it. Raises UserError if it is missing, or if
    `base` is given but not used."""
    return base_folder(cfg, base, exams.uses_base(cfg, game_of(cfg).exam(cfg)))


def base_folder(cfg: Config, base: Path | None, used: bool) -> Examined | None:
    """`find_base` for an exam that uses it or not."""
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
    return Examined(folder, BASE)


def assemble_exam(
    cfg: Config, examined: Examined, others: Sequence[Examined], run: Path, tell: Tell | None = None
) -> World:
    """A World for evaluation, without weights. others: further weights used in it. tell: as for `assemble`.

    All weights share one engine and one tokenizer: those of `examined`, or of the card if it is a checkpoint. Raises
    UserError if others have another architecture, tokenizer or chat template, and for a card without evaluation sets.
    """
    if not cfg.evaluate.sets:
        raise UserError("the card has no evaluation set; add an [[evaluate.sets]] table with name and path.")
    folder = model_folder(cfg, examined)
    for other in others:
        check_alike(cfg, folder, model_folder(cfg, other))
    return assemble_world(all_generate(cfg), run, str(folder), exams.judges(cfg, game_of(cfg).exam(cfg)), tell=tell)


def model_folder(cfg: Config | ServedModel, examined: Examined) -> Path:
    """The folder with its architecture and tokenizer."""
    whole = examined.step is None and not examined.is_adapter
    return examined.folder if whole else Path(cfg.model.checkpoint)


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


def targets(cfg: Config | ServedModel, model: ModelConfig, mesh: Mesh) -> Params:
    """Shapes, dtype and shardings in which `weights_of` loads: those of the engine."""
    return weights.abstract(model, *decode_layout(cfg, model, mesh), read_dtype(cfg))


def load_into(world: World, models: Sequence[Examined]) -> None:
    """Makes these weights available to the world's sampler, instead of earlier ones: whole weights of each, or adapters
    over the card's base, which is then the base model, too. Raises UserError if the adapters' judge is another model.
    """
    world.sampler.load({})
    if world.cfg.model.adapter is None:
        world.sampler.load({one.policy: take(world, one) for one in models})
        return
    home = Path(world.cfg.model.checkpoint)
    if other := [one.folder for one in models if one.policy == BASE and one.folder.resolve() != home.resolve()]:
        raise UserError(f"adapters over {home} cannot share an engine with the judge in {other[0]}; remove --base.")
    layout = decode_layout(world.cfg, world.model, world.mesh)
    base = take(world, Examined(home, BASE))
    own = [one for one in models if one.policy != BASE]
    world.sampler.load_adapters(base, {one.policy: factors_of(world.cfg, world.model, *layout, one) for one in own})


def factors_of(cfg: Config | ServedModel, model: ModelConfig, mesh: Mesh, rules: Rules, examined: Examined) -> Any:
    """A policy's factors, sharded for the engine. Raises UserError if they are not those of an adapter."""
    if examined.step is not None:
        return saved_factors(cfg, model, mesh, rules, examined.folder, examined.policy)
    if not examined.is_adapter:
        raise UserError(f"{examined.folder} holds whole weights, which cannot share an engine with adapters.")
    adapter = adapter_of(cfg.model.adapter)
    assert adapter is not None
    declared = declare_factors(model, adapter)
    return peft.load(examined.folder, model, adapter, param_shardings(declared, mesh, rules))


def take(world: World, examined: Examined) -> Any:
    """The weights in the engine's format, for `Sampler.load`."""
    return world.sampler.rollouts.take_params(weights_of(world.cfg, world.model, world.mesh, examined))


def weights_of(cfg: Config | ServedModel, model: ModelConfig, mesh: Mesh, examined: Examined) -> Params:
    """Whole weights of a folder or checkpoint, as `targets` describes them."""
    if examined.step is None:
        return weights.load(examined.folder, *decode_layout(cfg, model, mesh), read_dtype(cfg))[1]
    saved = load(examined.folder, {examined.policy: {"params": targets(cfg, model, mesh)}})
    params = saved.states[examined.policy]["params"]
    weights.check_finite(params, f"the checkpoint {examined.folder} cannot be used: ")
    return params
