"""`Config`, one experiment, and what its tables must have in common."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from pydantic import model_validator

from scope_jax.config.base import CardPath, Section, Seed
from scope_jax.config.clusters import ClustersSection
from scope_jax.config.exams import EvalSection
from scope_jax.config.launch import LaunchSection
from scope_jax.config.learner import LearnerSection, OptimizerSection
from scope_jax.config.log import LogSection
from scope_jax.config.model import ModelSection
from scope_jax.config.sandbox import SandboxSection
from scope_jax.config.serving import ServeSection
from scope_jax.config.tables import DataSection, JudgeSection, MeshSection, RetrievalSection, RolloutSection
from scope_jax.config.teachers import TeacherSection
from scope_jax.config.training import TrainSection

Options = TypeVar("Options", bound=Section)


class Config(Section):
    """One experiment. The table of its game is in the subclass that `games` builds for each game."""

    game_table: ClassVar[str] = ""  # the field with the game's options

    system: CardPath
    """The game: `rlvr`, `ssp`, `scope`, `spice`, `spell`, `score`, `r_zero`, `dr_zero`, `absolute_zero`, `spiral`, or
    the path of a Python file with a game of your own, which defines `GAME` (docs/tutorial.md); `sft` or `dpo` to train
    on given answers (docs/distillation.md). The options of a game are in the table of its name."""
    seed: Seed = 0
    """The seed of all random numbers of the run."""
    model: ModelSection
    """The base model, and how it is prompted."""
    mesh: MeshSection = MeshSection()
    """The devices."""
    retrieval: RetrievalSection | None = None
    """For games that search, and only for those."""
    rollout: RolloutSection = RolloutSection()
    """The engine that generates."""
    learner: LearnerSection = LearnerSection()
    """How updates are computed."""
    optimizer: OptimizerSection = OptimizerSection()
    """The optimiser."""
    data: DataSection = DataSection()
    """The rows that a game reads (docs/data.md)."""
    evaluate: EvalSection = EvalSection()
    """Evaluation sets, and how their answers are sampled."""
    clusters: ClustersSection = ClustersSection()
    """Settings of `scope-jax index CARD --clusters`."""
    train: TrainSection
    """The training loop."""
    log: LogSection = LogSection()
    """What a run records."""
    teachers: dict[str, TeacherSection] = {}
    """Models that rate the tokens of a policy, by name: `[teachers.big]` (docs/distillation.md)."""
    judge: JudgeSection | None = None
    """A chat model behind an OpenAI-compatible endpoint, for games that use one."""
    sandbox: SandboxSection = SandboxSection()
    """Where the `python` tool runs code that a policy has written."""
    launch: LaunchSection = LaunchSection()
    """Where `launch/run.py` starts the card."""
    serve: ServeSection = ServeSection()
    """Limits of `scope-jax serve` and `chat`."""

    def options(self, section: type[Options]) -> Options:
        """The table of the card's game, which is a `section`."""
        table = getattr(self, self.game_table)
        assert isinstance(table, section)
        return table

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
