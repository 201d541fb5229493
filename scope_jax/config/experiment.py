"""`Config`, one experiment, and what its tables must have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, JsonValue, model_validator

from scope_jax.config.base import CardPath, Section, Seed
from scope_jax.config.clusters import ClustersSection
from scope_jax.config.exams import EvalSection
from scope_jax.config.launch import LaunchSection
from scope_jax.config.learner import LearnerSection, OptimizerSection
from scope_jax.config.log import LogSection
from scope_jax.config.model import ModelSection
from scope_jax.config.scope import ScopeSection
from scope_jax.config.score import ScoreSection
from scope_jax.config.serving import ServeSection
from scope_jax.config.spell import SpellSection
from scope_jax.config.spice import SpiceSection
from scope_jax.config.ssp import SSPSection
from scope_jax.config.tables import DataSection, JudgeSection, MeshSection, RetrievalSection, RolloutSection
from scope_jax.config.training import TrainSection

GAMES = ("ssp", "scope", "spice", "spell", "score")
READ = {  # by game, the keys of [data] that it reads, apart from those of every source
    "ssp": ("answers", "min_searches", "max_searches"),
    "scope": ("documents", "prompts"),
    "spice": ("documents",),
    "spell": ("clusters", "questions"),
    "score": ("queries",),
}


def _a_game(name: str) -> str:
    if name not in GAMES and not name.endswith(".py"):
        raise ValueError(
            f"unknown game {name!r}; give one of {', '.join(map(repr, GAMES))}, or the path of a Python file (.py)"
        )
    return name


GameName = Annotated[CardPath, AfterValidator(_a_game)]  # docs/configuration.md


class Config(Section):
    """One experiment."""

    system: GameName
    seed: Seed = 0
    model: ModelSection
    mesh: MeshSection = MeshSection()
    retrieval: RetrievalSection | None = None  # required if the game searches, an error otherwise
    rollout: RolloutSection = RolloutSection()
    learner: LearnerSection = LearnerSection()
    optimizer: OptimizerSection = OptimizerSection()
    data: DataSection
    evaluate: EvalSection = EvalSection()
    clusters: ClustersSection = ClustersSection()
    train: TrainSection
    log: LogSection = LogSection()
    judge: JudgeSection | None = None
    launch: LaunchSection = LaunchSection()
    serve: ServeSection = ServeSection()
    ssp: SSPSection = SSPSection()
    scope: ScopeSection = ScopeSection()
    spice: SpiceSection = SpiceSection()
    spell: SpellSection = SpellSection()
    score: ScoreSection = ScoreSection()
    game: dict[str, JsonValue] = {}  # the options of a game defined in a file

    @property
    def exam_length(self) -> int:
        """Most tokens of an exam's episode, prompt and observations included."""
        return self.evaluate.max_length or self.rollout.max_length

    @property
    def engine_length(self) -> int:
        """Most tokens of an episode that the engine has room for, of training or, if the card has any, of exams."""
        return max(self.rollout.max_length, self.exam_length) if self.evaluate.sets else self.rollout.max_length

    @model_validator(mode="after")
    def _slots_spread_over_the_mesh(self) -> Config:
        """Checked here if no axis is -1; such an axis is resolved only when the devices are known."""
        mesh, name = (self.mesh, "mesh") if self.rollout.mesh is None else (self.rollout.mesh, "rollout.mesh")
        if self.rollout.devices is not None and self.rollout.mesh is None:
            return self  # groups of mesh.tensor, see run.meshes; the engine checks them
        rows, axes = mesh.data * mesh.fsdp * mesh.context, f"{name}.data x {name}.fsdp"
        if mesh.context != 1:
            axes += f" x {name}.context"
        if rows > 0 and self.rollout.slots % rows:
            raise ValueError(
                f"rollout.slots is {self.rollout.slots}, which is not divisible by {axes} = {rows}; "
                f"choose a multiple of {rows}"
            )
        return self

    @model_validator(mode="after")
    def _a_step_is_played_ahead_on_devices_of_its_own(self) -> Config:
        if self.train.one_step_off_policy and self.rollout.devices is None:
            raise ValueError(
                "train.one_step_off_policy plays a step while the last one is learned, which needs devices of its own; "
                "set rollout.devices to their number"
            )
        return self

    @model_validator(mode="after")
    def _a_stop_ends_before_the_launcher_kills(self) -> Config:
        if self.launch.grace is not None and self.train.stop_grace >= self.launch.grace[1]:
            key, seconds = self.launch.grace
            raise ValueError(
                f"train.stop_grace is {self.train.stop_grace:g}, but {key} = {seconds} seconds after "
                f"SIGTERM the processes are killed; lower the first or raise the second"
            )
        return self

    @model_validator(mode="after")
    def _states_of_adapters_stay(self) -> Config:
        if self.model.adapter is not None and self.train.offload:
            raise ValueError(
                "train.offload moves whole weights to the host, but the states of [model.adapter] are small and stay; "
                "set train.offload = false"
            )
        return self

    @model_validator(mode="after")
    def _rows_are_divided_over_the_context(self) -> Config:
        pieces = 2 * self.mesh.context  # two for each device, so that all have the same work under a causal mask
        odd = [bucket for bucket in self.learner.buckets if pieces > 2 and bucket % pieces]
        if odd:
            raise ValueError(
                f"learner.buckets has {odd[0]}, which is not divisible by 2 x mesh.context = {pieces}; choose multiples"
                f" of {pieces}"
            )
        return self

    @model_validator(mode="after")
    def _an_episode_fits_into_a_row(self) -> Config:
        if self.rollout.max_length > self.learner.buckets[-1]:
            raise ValueError(
                f"rollout.max_length is {self.rollout.max_length} but the largest of learner.buckets is "
                f"{self.learner.buckets[-1]}; an episode must fit into a row: add a larger bucket or lower it"
            )
        return self

    @model_validator(mode="after")
    def _options_have_a_game(self) -> Config:
        if self.game and self.system in GAMES:
            raise ValueError(
                f"[game] is for games defined in a file; put the options of {self.system} into [{self.system}]"
            )
        return self

    @model_validator(mode="after")
    def _what_is_set_is_read(self) -> Config:
        if self.system not in GAMES:  # a game in a file may read any table
            return self
        if others := self.changed(*(name for name in GAMES if name != self.system)):
            raise ValueError(
                f"[{others[0]}] has values of its own, but system is {self.system!r}, which does not read that table; "
                "remove it, or correct one of the two"
            )
        names = [name for keys in READ.values() for name in keys if name not in READ[self.system]]
        if unread := self.data.changed(*names):
            raise ValueError(f"data.{unread[0]} is set, but {self.system.upper()} does not read it; remove it")
        return self

    @model_validator(mode="after")
    def _ssp_is_complete(self) -> Config:
        if self.system != "ssp":
            return self
        if self.data.answers is None:
            raise ValueError("data.answers is missing; SSP needs a file of ground-truth answers")
        if self.data.max_searches >= self.ssp.proposer.max_turns:
            raise ValueError(
                f"data.max_searches is {self.data.max_searches}, which with the question takes "
                f"{self.data.max_searches + 1} turns; lower it or raise ssp.proposer.max_turns"
            )
        if self.ssp.verify == "policy" and self.ssp.verify_max_tokens >= self.rollout.max_length:
            raise ValueError(
                f"ssp.verify_max_tokens is {self.ssp.verify_max_tokens}, which leaves nothing of rollout.max_length = "
                f"{self.rollout.max_length} for the question and its documents; lower it"
            )
        if self.judge is None and ("judge" in self.ssp.grader or self.ssp.verify == "judge"):
            raise ValueError(
                "the card uses a judge (ssp.grader or ssp.verify) but has no [judge] table: "
                'add one, or set ssp.grader = "exact-match" and ssp.verify = "policy"'
            )
        return self

    @model_validator(mode="after")
    def _scope_is_complete(self) -> Config:
        if self.system != "scope":
            return self
        if self.judge is not None:
            raise ValueError(
                "SCOPE does not use [judge]; set an endpoint for each job of its judge: "
                "[scope.gates.endpoint], [scope.rubric_writer.endpoint], [scope.grader.endpoint]"
            )
        if len(self.scope.search_turns) >= self.scope.challenger.max_turns:
            raise ValueError(
                f"scope.search_turns allows up to {len(self.scope.search_turns)} searches, which with the task take "
                f"{len(self.scope.search_turns) + 1} turns; shorten it or raise scope.challenger.max_turns"
            )
        if self.scope.mode == "curated" and self.data.prompts is None:
            raise ValueError('data.prompts is missing; scope.mode = "curated" needs a file of prompts with rubrics')
        if self.scope.mode == "self-play" and self.data.documents is None:
            if self.retrieval is None or self.retrieval.corpus is None:
                raise ValueError("data.documents is missing; without retrieval.corpus SCOPE needs a file of documents")
            if self.data.columns or self.data.split or self.data.hub_config:
                raise ValueError(
                    "data.columns, data.split and data.hub_config apply to data.documents, which is missing; "
                    "set those of the corpus in [retrieval]"
                )
        return self

    @model_validator(mode="after")
    def _the_run_has_a_length(self) -> Config:
        if self.system not in GAMES or self.system == "scope":  # its iterations end it; a game in a file says itself
            return self
        game = self.system.upper()
        if self.train.steps is None:
            raise ValueError(f"train.steps is missing; {game} needs the number of steps")
        if self.train.keep_iterations:
            raise ValueError(f"train.keep_iterations is set, but {game} has no iterations; use train.keep instead")
        return self

    @model_validator(mode="after")
    def _the_batch_size_is_used(self) -> Config:
        used = {"scope": "scope.challenger_batch and scope.solver_batch", "spell": "spell.groups"}.get(self.system)
        if used is not None and self.train.batch_size != TrainSection.model_fields["batch_size"].default:
            raise ValueError(
                f"train.batch_size is {self.train.batch_size}, but {self.system.upper()} does not use it; set {used}"
            )
        return self

    @model_validator(mode="after")
    def _spice_is_complete(self) -> Config:
        if self.system != "spice":
            return self
        if self.spice.corpus and self.data.documents is None:
            raise ValueError(
                "data.documents is missing; SPICE needs a file of documents, or spice.corpus = false to do without"
            )
        return self

    @model_validator(mode="after")
    def _spell_is_complete(self) -> Config:
        if self.system != "spell":
            return self
        rlvr = self.spell.mode == "rlvr"
        if not rlvr and self.data.clusters is None:
            raise ValueError("data.clusters is missing; SPELL needs a file of clusters of documents (docs/data.md)")
        if rlvr and self.data.questions is None:
            raise ValueError(
                'data.questions is missing; spell.mode = "rlvr" needs a file of questions with answers and context '
                "(docs/data.md)"
            )
        if self.judge is None and self.spell.rule == "judge":
            raise ValueError(
                'spell.rule = "judge" needs an external model, but the card has no [judge] table; add one, or set '
                'spell.rule = "match"'
            )
        return self

    @model_validator(mode="after")
    def _score_is_complete(self) -> Config:
        if self.system != "score":
            return self
        if self.data.queries is None:
            raise ValueError("data.queries is missing; SCORE needs a file of questions to report on")
        if self.judge is not None:
            raise ValueError("SCORE does not use [judge]; set the model of its harness in [score.harness.endpoint]")
        return self
