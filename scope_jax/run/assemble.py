"""Builds the parts of a run from its card: mesh, engine, search, judges, exams; for training, also data and learner."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from scope_jax.config import Config
from scope_jax.games import game_of
from scope_jax.grading.judge_client import JudgeClient
from scope_jax.grading.math_answers import MathAnswers
from scope_jax.learner.fitting import Room
from scope_jax.learner.learner import Learner
from scope_jax.learner.state import TrainState
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.transformer import Params
from scope_jax.models.files import weights
from scope_jax.multihost import payloads
from scope_jax.play import exams
from scope_jax.play.game import Game, Memory
from scope_jax.play.searching import search_tool
from scope_jax.play.tool_execution import Execution
from scope_jax.run import host_memory, kernels
from scope_jax.run.adapters import DTYPES, adapter_of, first_factors
from scope_jax.run.checkpoint import Saved, checkpoints_in
from scope_jax.run.engines import engine_for, rollouts_of, shares_base, threads_of
from scope_jax.run.folder import RunFolder
from scope_jax.run.indexing import Part, lookup_of, search_of
from scope_jax.run.meshes import card_mesh, divided_devices, own_mesh
from scope_jax.run.opened import OpenedCard
from scope_jax.run.processes import teller
from scope_jax.run.programs import programs
from scope_jax.run.recording import Recording
from scope_jax.run.rules import ALL, enforce
from scope_jax.run.sampler import (
    ACCELERATOR,
    HOST,
    Sampler,
    States,
    in_memory,
    moved,
    with_one_reference,
    with_shared_reference,
)
from scope_jax.run.scoring import Scoring
from scope_jax.run.sizes import fitted
from scope_jax.run.world import Tell, World
from scope_jax.sharding.chips import chip_of
from scope_jax.sharding.program import device_bytes
from scope_jax.sharding.rules import TRAIN

LEARNING = {"cpu": 0.5}  # share of memory that an update may need, elsewhere OWN: a CPU's is others', too
OWN = 0.9


@dataclass(frozen=True)
class Trainer:
    """A World with a learner."""

    world: World
    learner: Learner

    @property
    def keeps_reference(self) -> bool:
        """True if states have a reference."""
        return keeps_reference(self.world.cfg, self.world.game)

    @property
    def saves_reference(self) -> bool:
        """True if checkpoints have it, too; the base of adapters is read from its folder."""
        return self.keeps_reference and self.learner.adapter is None

    @property
    def idle_memory(self) -> str:
        """The memory that holds a policy while it is not trained."""
        return HOST if self.world.cfg.train.offload else ACCELERATOR

    def targets(self) -> dict[str, TrainState]:
        """Shapes, dtypes and shardings of every policy's saved state, for loading a checkpoint."""
        abstract = in_memory(self.learner.abstract_state(self.saves_reference), self.idle_memory)
        return with_one_reference(dict.fromkeys(self.world.game.policies(self.world.cfg), abstract))

    def saved(self, states: States) -> States:
        """The states as a checkpoint holds them, with the reference once or not at all."""
        if self.saves_reference:
            return with_one_reference(states)
        return {name: state.replace(ref_params=None) for name, state in states.items()}

    def start(self, saved: Saved | None) -> tuple[States, Memory, int]:
        """(states by policy, memory, steps done): from a checkpoint, or the initial ones of a run.

        memory: {"game": what the game carries, "baselines": moving baselines by "policy/role"}.
        All states share one set of reference buffers.
        """
        if saved is not None:
            states = with_shared_reference(saved.states) if self.saves_reference else self.referring(saved.states)
            return states, saved.memory, saved.step
        cfg, game = self.world.cfg, self.world.game
        with self.world.activity(f"reading {cfg.model.checkpoint}"):
            base = self._weights(cfg.model.checkpoint)
        states = {
            name: moved(self.learner.init_state(self._first(name, base), reference=False), self.idle_memory)
            for name in game.policies(cfg)
        }
        memory = game.start(cfg)
        return self.with_new_reference(self.referring(states, base), memory), {"game": memory, "baselines": {}}, 0

    def with_new_reference(self, states: States, memory: Memory) -> States:
        """The states with a copy of a policy's weights as their shared reference, if the game wants one before its next
        step (`Game.new_reference`)."""
        policy = self.world.game.new_reference(self.world.cfg, memory)
        if policy is None or not self.saves_reference:
            return states
        dtype = self.learner.layout.reference_dtype
        params = moved(states[policy].params, ACCELERATOR)
        reference = jax.tree.map(lambda weight: jnp.array(weight, dtype, copy=True), params)
        reference = moved(reference, self.idle_memory)
        return {name: state.replace(ref_params=reference) for name, state in states.items()}

    def referring(self, states: States, base: Params | None = None) -> States:
        """The states with the base model as their shared reference, if an update or a judge needs it.

        base: the base model's weights, if already loaded. The base of adapters that engine and learner share goes to
        the sampler, too.
        """
        if not self.keeps_reference:
            return dict(states)
        if base is None:
            with self.world.activity(f"reading {self.world.cfg.model.checkpoint}"):
                base = self._weights(self.world.cfg.model.checkpoint)
        if self.learner.layout.unstacked:
            reference = self.world.sampler.share(base)
        else:
            dtype = self.learner.layout.reference_dtype
            reference = moved(jax.tree.map(lambda weight: weight.astype(dtype), base), self.idle_memory)
        return {name: state.replace(ref_params=reference) for name, state in states.items()}

    def _first(self, policy: str, base: Params) -> Params:
        """What the policy trains, before training."""
        if self.learner.adapter is not None:
            return first_factors(self.world.cfg, self.learner, policy)
        folder = self.world.cfg.model.policies.get(policy)
        return base if folder is None else self._weights(folder)

    def _weights(self, folder: str) -> Params:
        learner = self.learner
        dtype = learner.layout.param_dtype if learner.adapter is None else learner.layout.reference_dtype
        return weights.load(folder, learner.mesh, TRAIN, dtype)[1]


def assemble(
    cfg: Config, run: Path, part: Part | None = None, tell: Tell | None = None, *, services: bool = True
) -> Trainer:
    """Builds the Trainer of a card that follows the rules; without `retrieval.index`, the index is built in the run
    folder.

    part(name, done, total) reports the progress of building the index; tell(sentence) gets what games tell the user,
    and is called every few seconds while a judge or search server is down. services: False: nothing outside is asked,
    as a record answers. A run that has a checkpoint is not asked for what only its beginning needs.

    Raises UserError, FileNotFoundError or ConnectionError subclasses with one sentence for the first rule that the card
    breaks, and for devices that do not suit it.
    """
    opened = OpenedCard(cfg, judges=None if services else {})
    here = ALL.difference(("origin",) if services else ("origin", "services"))
    if checkpoints_in(run / "checkpoints"):  # the run goes on: what it began with was there
        here = here.difference(("beginning",))
    with or_closed(opened):
        enforce(opened, here, tell)
        world = assemble_world(opened, run, part, tell)
        learning = kernels.for_learning(world.cfg, world.model, tell)
        return Trainer(replace(world, rows=opened.rows), assemble_learner(learning, world.model))


@contextmanager
def or_closed(services: OpenedCard | World | RunFolder) -> Iterator[None]:
    """Closes services, or a run's folder, if what is built over them fails."""
    try:
        yield
    except BaseException:
        services.close()
        raise


def assemble_world(
    opened: OpenedCard,
    run: Path,
    part: Part | None = None,
    tell: Tell | None = None,
    chosen: Collection[str] = (),
) -> World:
    """Builds the World of a card, of which the rules hold; arguments as for `assemble`. chosen: what follows
    the memory (`sizes.fitted`). Raises UserError if engine and cache do not fit."""
    cfg, game, tokenizer, joiner = opened.cfg, opened.game, opened.tokenizer, opened.joiner
    mesh = own_mesh(cfg)
    payloads.exchange_through(divided_devices(cfg, jax.devices())[1])  # while the others learn
    cfg, model = kernels.for_sampling(cfg, opened.model, tell)
    cfg = fitted(cfg, model, mesh, chosen)
    engine = engine_for(cfg, model, mesh)
    programs().need("sampling", engine.most_programs())
    lookup = lookup_of(cfg, run, mesh, part, teller(tell), corpus=opened.corpus_if_read) if opened.searches else None
    search = search_of(cfg, tokenizer, lookup)
    local = rollouts_of(cfg, engine, tokenizer, lookup)
    sampler = Sampler(local, cfg.model.adapter is not None)
    pure = cfg.retrieval is None or cfg.retrieval.url is None  # what a server answers is recorded
    tools = [*([] if search is None else [search_tool(search, joiner.dialect, pure)]), *opened.tools]
    return World(
        cfg=cfg,
        game=game,
        mesh=mesh,
        model=model,
        tokenizer=tokenizer,
        sampler=sampler,
        joiner=joiner,
        search=search,
        judges={name: JudgeClient(card, teller(tell)) for name, card in opened.judges.items()},
        tell=tell,
        rows=(),
        exams={one.name: opened.exam_rows(one) for one in cfg.evaluate.sets},
        lookup=lookup,
        local=local,
        recording=Recording(tell or (lambda sentence: None)),
        execution=Execution(tokenizer.encode, tokenizer.decode, tell or (lambda sentence: None), threads_of(cfg)),
        math=MathAnswers(),
        scoring=Scoring(cfg, model, mesh, tokenizer, sampler, local, teller(tell)),
        toolbox={tool.name: tool for tool in tools},
    )


def keeps_reference(cfg: Config, game: Game) -> bool:
    """True if a loss needs a reference, the game or an exam samples from the base model, or policies are adapters."""
    if cfg.model.adapter is not None:
        return True  # adapters are over it
    samples = game.uses_base(cfg) or exams.uses_base(cfg, game.exam_of(cfg))
    return samples or any(update.card.needs_reference for update in game.updates(cfg))


def assemble_learner(cfg: Config, model: ModelConfig, mesh: Mesh | None = None) -> Learner:
    """The card's learner for a model, on `mesh` or on the card's mesh over all devices."""
    mesh = card_mesh(cfg) if mesh is None else mesh
    shared = shares_base(cfg, model, mesh)
    return Learner(
        model,
        mesh,
        cfg.optimizer,
        cfg.learner,
        param_dtype=DTYPES[cfg.model.param_dtype],
        compute_dtype=DTYPES[cfg.model.compute_dtype],
        adapter=adapter_of(cfg.model.adapter),
        unstacked=shared,
        room=room_of(cfg, model, mesh, shared),
    )


def room_of(cfg: Config, model: ModelConfig, mesh: Mesh, shared: bool) -> Room | None:
    """What a device has for an update, by its kind or, on a CPU, by the machine. shared: learner and engine have one
    base. None where the kind is not known, or where a search index of unknown size is there, too."""
    device, game = mesh.devices.flat[0], game_of(cfg)
    if device.platform == "cpu":
        total = host_memory.limit() / mesh.size
    else:
        chip = chip_of(device.device_kind)
        total = 0.0 if chip is None else chip.hbm
    apart = cfg.rollout.devices is not None
    indexed = cfg.retrieval is not None and cfg.retrieval.url is None and not apart
    if not total or indexed:
        return None
    others = 0.0
    if cfg.model.adapter is not None and not shared and not apart:
        others = device_bytes(engine_for(cfg, model, mesh).abstract_weights())
    policies = 1 if cfg.train.offload else len(game.policies(cfg))
    return Room(LEARNING.get(device.platform, OWN) * total, policies, keeps_reference(cfg, game), others)
