"""Builds the parts of a run from its card: mesh, engine, search, judges, exams; for training, also data and learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from scope_jax.config import Config, JudgeSection, ServedModel
from scope_jax.config.model import ModelSection
from scope_jax.data import sources
from scope_jax.data.sources import Source
from scope_jax.errors import UserError
from scope_jax.games import game_of
from scope_jax.learner.learner import Learner
from scope_jax.learner.state import TrainState
from scope_jax.models import weights
from scope_jax.models.config import ModelConfig, differences
from scope_jax.models.tokenizer import Tokenizer
from scope_jax.models.transformer import Params
from scope_jax.play import exams
from scope_jax.play.game import Game, Memory, services_of
from scope_jax.play.judge_client import JudgeClient
from scope_jax.play.math_answers import MathAnswers
from scope_jax.play.searching import search_tool
from scope_jax.play.tool_calls import SEARCH, Tool
from scope_jax.play.tool_execution import Execution
from scope_jax.play.tools import BASE
from scope_jax.play.turns import Joiner
from scope_jax.retrieval.search import SearchTool
from scope_jax.run import kernels
from scope_jax.run.adapters import DTYPES, adapter_of, check_folder, first_factors
from scope_jax.run.checkpoint import Saved
from scope_jax.run.engines import engine_for, paged, rollouts_of, shares_base, threads_of
from scope_jax.run.indexing import Part, lookup_of, search_of
from scope_jax.run.meshes import card_mesh, divided_devices, own_mesh
from scope_jax.run.processes import DividedRollouts, teller
from scope_jax.run.programs import programs
from scope_jax.run.recording import Recording
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
from scope_jax.run.world import Tell, World
from scope_jax.sharding import distributed
from scope_jax.sharding.rules import TRAIN
from scope_jax.text import dialects
from scope_jax.text.dialects import Dialect


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
    """Builds the Trainer of a card; without `retrieval.index`, the index is built in the run folder.

    part(name, done, total) reports the progress of building the index; tell(sentence) gets what games tell the user,
    and is called every few seconds while a judge or search server is down. services: False: nothing outside is asked,
    as a record answers.

    Raises ValueError, FileNotFoundError or ConnectionError subclasses with one sentence for anything that the card
    refers to and that is missing or invalid.
    """
    game = game_of(cfg)
    check_policies(cfg, game)
    for name, folder in cfg.model.policies.items():
        check_beginning(cfg, name, folder)
    check_ahead(cfg, game)
    check_replay(cfg, game)
    check_reference(cfg, game)
    game.check_prompts(cfg)
    source = game.rows(cfg)
    rows = () if source is None else sources.load(source)
    judges = {**game.judges(cfg), **exams.judges(cfg, game.exam_of(cfg))} if services else {}
    world = assemble_world(cfg, run, cfg.model.checkpoint, judges, part, tell, services=services)
    world.scoring.check(game.policies(cfg))
    learning = kernels.for_learning(world.cfg, world.model, tell)
    return Trainer(replace(world, rows=rows), assemble_learner(learning, world.model))


def check_policies(cfg: Config, game: Game) -> None:
    """Raises ValueError if `model.policies` names an unknown policy."""
    trained = game.policies(cfg)
    for name in cfg.model.policies:
        if name not in trained:
            raise UserError(f"model.policies names {name!r}, but the card trains {', '.join(trained)}; correct it.")


def check_ahead(cfg: Config, game: Game) -> None:
    """Raises UserError if the card asks for steps played ahead, but its losses do not allow them."""
    if not cfg.train.one_step_off_policy:
        return
    for update in game.updates(cfg):
        card = update.card
        if card.objective == "policy" and not card.rollout_cap and card.old_logprobs == "learner":
            raise UserError(
                f"with train.one_step_off_policy the episodes of {update.name} come from older weights, but its loss "
                "does not correct for that; set rollout_cap there, for example to 2.0."
            )


def check_replay(cfg: Config, game: Game) -> None:
    """Raises UserError if the card asks for a replay of picked experts, but trains nothing that it has sampled."""
    if cfg.learner.router_replay and all(update.card.objective != "policy" for update in game.updates(cfg)):
        raise UserError(
            f"learner.router_replay is about experts that the engine picked, but {cfg.system} trains on given texts; "
            "turn it off."
        )


def check_beginning(cfg: Config, name: str, folder: str) -> None:
    """Raises ValueError if the policy `name` starts from a model that differs from the base."""
    if cfg.model.adapter is not None:
        check_folder(folder, cfg.model.adapter, name)
        return
    if differing := differences(weights.load_config(cfg.model.checkpoint), weights.load_config(folder)):
        raise UserError(
            f"the model in {folder}, from which {name} starts, differs from the base in {cfg.model.checkpoint} in "
            f"{', '.join(differing)}; all policies must have the base's architecture."
        )


def check_vocabulary(tokenizer: Tokenizer, model: ModelConfig, checkpoint: str) -> None:
    """Raises ValueError if the model in `checkpoint` lacks embeddings of the tokenizer's tokens."""
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} tokens but the model in {checkpoint} has only "
            f"{model.vocab_size} embeddings; use the model's own tokenizer."
        )


def tokenizer_of(cfg: Config | ServedModel, model: ModelConfig, checkpoint: str, tell: Tell | None) -> Tokenizer:
    """The card's tokenizer for the model in `checkpoint`; `tell` gets a doubt about the ends of replies. Raises
    ValueError if it does not fit the model."""
    tokenizer = Tokenizer.load(cfg.model.tokenizer or checkpoint, cfg.model.chat_template, model=checkpoint)
    check_vocabulary(tokenizer, model, checkpoint)
    if tell is not None and isinstance(found := ends_of(cfg.model, tokenizer), Doubt):
        tell(found)
    return tokenizer


def check_template(cfg: Config | ServedModel, tokenizer: Tokenizer) -> None:
    """Raises ValueError if the chat template, with the card's options, renders no question, or without its text."""
    options: dict[str, Any] = dict(cfg.model.chat_template_kwargs)
    one, other = (tokenizer.encode_chat([{"role": "user", "content": text}], **options) for text in ("?", "? ?"))
    if one == other:
        raise UserError(
            "the chat template does not show what the user says, so that all prompts would be alike; correct it, or "
            "set model.chat_template to the model's own."
        )


def assemble_world(
    cfg: Config,
    run: Path,
    checkpoint: str,
    judges: Mapping[str, JudgeSection],
    part: Part | None = None,
    tell: Tell | None = None,
    searches: bool = True,
    services: bool = True,
) -> World:
    """Builds the World of a card; cheap checks for missing or invalid parts come first.

    checkpoint: model folder with the architecture and tokenizer of the policies. judges: external models in use.
    searches: False if nothing will be searched, so that no index is needed. services: False: those of tools are not
    started. Otherwise as `assemble`.
    """
    game = game_of(cfg)
    exam = game.exam_of(cfg)
    held_out = {one.name: sources.load(Source(one.path, exams.kind_of(exam, one), one)) for one in cfg.evaluate.sets}
    exams.check_prompts(cfg, exam, held_out)
    model = weights.checked_config(checkpoint)
    tokenizer = tokenizer_of(cfg, model, checkpoint, tell)
    check_template(cfg, tokenizer)
    own = game.tools(cfg)
    joiner = joiner_of(cfg, game, tokenizer, own)
    clients = {name: JudgeClient(card, teller(tell)) for name, card in judges.items()}
    for name, card in judges.items():
        if card.required:
            clients[name].probe()
    mesh = own_mesh(cfg)
    distributed.exchange_through(divided_devices(cfg, jax.devices())[1])  # while the others learn
    cfg, model = kernels.for_sampling(cfg, model, paged(cfg, mesh), tell)
    engine = engine_for(cfg, model, mesh)
    programs().need("sampling", engine.most_programs())
    lookup = lookup_of(cfg, run, mesh, part, teller(tell)) if searches else None
    search = search_of(cfg, tokenizer, lookup)
    toolbox = toolbox_of(game, search, joiner.dialect, own)
    for service in services_of(toolbox.values()) if services else ():
        service.start()
    local = rollouts_of(cfg, engine, tokenizer, lookup)
    sampler = Sampler(local if distributed.count() == 1 else DividedRollouts(local), cfg.model.adapter is not None)
    return World(
        cfg=cfg,
        game=game,
        mesh=mesh,
        model=model,
        tokenizer=tokenizer,
        sampler=sampler,
        joiner=joiner,
        search=search,
        judges=clients,
        tell=tell,
        rows=(),
        exams=held_out,
        lookup=lookup,
        local=local,
        recording=Recording(tell or (lambda sentence: None)),
        execution=Execution(tokenizer.encode, tokenizer.decode, tell or (lambda sentence: None), threads_of(cfg)),
        math=MathAnswers(),
        scoring=Scoring(cfg, model, mesh, tokenizer, sampler, local, teller(tell)),
        toolbox=toolbox,
    )


def check_reference(cfg: Config, game: Game) -> None:
    """Raises UserError if the base is sampled or grades in a run in which the reference takes its place."""
    sampled = game.uses_base(cfg) or exams.uses_base(cfg, game.exam_of(cfg))
    if sampled and game.new_reference(cfg, game.start(cfg)) is not None:
        raise UserError(
            f"the base grades exams of this card, but {game.title} replaces it as reference; give [evaluate.grader] an "
            "endpoint, or keep the base as reference."
        )


def toolbox_of(game: Game, search: SearchTool | None, dialect: Dialect, own: Sequence[Tool]) -> dict[str, Tool]:
    """The game's own tools by name, with the search of a game that searches. Raises UserError for a name that is there
    twice."""
    tools = [*([] if search is None else [search_tool(search, dialect)]), *own]
    check_tool_names(game, [tool.name for tool in tools])
    return {tool.name: tool for tool in tools}


def check_tool_names(game: Game, names: Sequence[str]) -> None:
    """Raises UserError for a name that is there twice."""
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"the game {game.name} has two tools of the name {min(twice)}; give each its own.")


def sampled(cfg: Config, game: Game) -> tuple[str, ...]:
    """The models that a step samples with, by name."""
    return (*game.policies(cfg), *((BASE,) if game.uses_base(cfg) else ()))


def keeps_reference(cfg: Config, game: Game) -> bool:
    """True if a loss needs a reference, the game or an exam samples from the base model, or policies are adapters."""
    if cfg.model.adapter is not None:
        return True  # adapters are over it
    samples = game.uses_base(cfg) or exams.uses_base(cfg, game.exam_of(cfg))
    return samples or any(update.card.needs_reference for update in game.updates(cfg))


def assemble_learner(cfg: Config, model: ModelConfig, mesh: Mesh | None = None) -> Learner:
    """The card's learner for a model, on `mesh` or on the card's mesh over all devices."""
    mesh = card_mesh(cfg) if mesh is None else mesh
    return Learner(
        model,
        mesh,
        cfg.optimizer,
        cfg.learner,
        param_dtype=DTYPES[cfg.model.param_dtype],
        compute_dtype=DTYPES[cfg.model.compute_dtype],
        adapter=adapter_of(cfg.model.adapter),
        unstacked=shares_base(cfg, model, mesh),
    )


def joiner_of(cfg: Config, game: Game, tokenizer: Tokenizer, own: Sequence[Tool]) -> Joiner:
    """How the card joins turns. own: the game's own tools. Raises ValueError if the template does not fit its dialect,
    turns, prompts or tools."""
    options: dict[str, Any] = dict(cfg.model.chat_template_kwargs)
    schemas = tuple(tool.schema for tool in own)
    tools = (SEARCH, *schemas) if game.searches(cfg) or not own else schemas
    joiner = Joiner(cfg.model.turns, tokenizer, dialects.load(cfg.model.dialect), options, tools)
    for file in game.system_messages(cfg):
        joiner.check_system(file)
    return joiner


# ------------------------------------------------------------------------------------------------------ ends of replies
class Doubt(str):
    """What was found, of which something may be wrong."""


def ends_of(card: ModelSection, tokenizer: Tokenizer) -> str:
    """The tokens and strings that end a reply, with who names them; a `Doubt` if the chat template ends a message with
    none of them."""
    named = ", ".join(f"{end.name} ({', '.join(end.sources)})" for end in tokenizer.ends)
    if card.stop:
        return f"{named}, {', '.join(map(repr, card.stop))} (model.stop)"
    end = tokenizer.template_end
    if not tokenizer.has_template or (end is not None and end.id is not None):
        return named
    writes = "does not show how it ends a reply" if end is None else f"ends a reply with the text {end.text[:40]!r}"
    return Doubt(
        f"the chat template {writes}, not with a token of the tokenizer; replies end with {named}, and run to their "
        "limit if the model does not write it; set model.stop to what the model writes after a reply."
    )
