"""The schema of an experiment card: the only place where defaults are defined.

A card is a TOML file; `load_card` reads it, applies `--set a.b=c` overrides and returns a frozen `Config`.
Every field is used somewhere in the code; an unknown key is an error that names the file and the key.
A card with `extends = "other.toml"` (a path relative to the card) inherits that card and overrides the keys it sets.
A relative path is looked for in the current directory, then in the card's folder and those above it, then in the
checkout; `${NAME}` in a path is replaced by that environment variable.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, JsonValue, ValidationError, model_validator
from pydantic_core import ErrorDetails

from scope_jax.config.base import CardError, CardPath, Section, Seed, merge_tables, one_of
from scope_jax.config.clusters import ClustersSection
from scope_jax.config.exams import BY_RUBRIC, EvalSection, EvalSet, Measure
from scope_jax.config.launch import LaunchSection
from scope_jax.config.log import LogSection
from scope_jax.config.model import AdapterSection, ModelSection
from scope_jax.config.scope import ChallengerRewardSection, MissingAnswer, ScopeSection, SolverRewardSection
from scope_jax.config.score import ConclusionRule, Idf, ScoreHarnessSection, ScoreRole, ScoreSection
from scope_jax.config.serving import ServedModel, ServeSection
from scope_jax.config.spell import QuestionerReward, RuleText, SpellRoleSection, SpellSection, SpellTask, Vote
from scope_jax.config.spice import AnswerType, ChallengerReward, SpiceSection
from scope_jax.config.ssp import FormatRule, Grader, NoiseUnit, SSPSection
from scope_jax.config.tables import (
    AdvantageCard,
    AskSection,
    DataSection,
    EncoderSection,
    EndpointSection,
    GenerationSection,
    JudgeSection,
    LearnerSection,
    LossCard,
    MeshSection,
    OptimizerSection,
    RetrievalSection,
    RoleSection,
    RolloutSection,
    RowsSection,
    SamplingSection,
    Ungraded,
)
from scope_jax.config.training import TrainSection, WatchRule

__all__ = [
    "BY_RUBRIC",
    "AdapterSection",
    "AdvantageCard",
    "AnswerType",
    "AskSection",
    "CardError",
    "ChallengerReward",
    "ChallengerRewardSection",
    "ConclusionRule",
    "Config",
    "EncoderSection",
    "EndpointSection",
    "EvalSet",
    "FormatRule",
    "GenerationSection",
    "Grader",
    "Idf",
    "JudgeSection",
    "LaunchSection",
    "LearnerSection",
    "LossCard",
    "Measure",
    "MissingAnswer",
    "NoiseUnit",
    "OptimizerSection",
    "QuestionerReward",
    "RetrievalSection",
    "RoleSection",
    "RowsSection",
    "RuleText",
    "SSPSection",
    "SamplingSection",
    "ScopeSection",
    "ScoreHarnessSection",
    "ScoreRole",
    "ScoreSection",
    "Section",
    "ServeSection",
    "ServedModel",
    "SolverRewardSection",
    "SpellRoleSection",
    "SpellSection",
    "SpellTask",
    "SpiceSection",
    "Ungraded",
    "Vote",
    "WatchRule",
    "load_card",
    "load_served",
    "one_of",
    "overridden",
    "parse_config",
    "parse_section",
]


GAMES = ("ssp", "scope", "spice", "spell", "score")


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


# ---------------------------------------------------------------------------------------------------------- loading
Parsed = TypeVar("Parsed", bound=Section)


def _set(table: dict[str, Any], override: str, where: str) -> None:
    shown = where + ": --set " + re.sub(r"//[^/@]*@", "//…@", ascii(override))  # a password is not repeated
    key, sep, text = override.partition("=")
    if not sep or not key.strip():
        raise CardError(f"{shown} is not of the form a.b=value.")
    if not override.isprintable():
        raise CardError(f"{shown} has unprintable characters; write a line break as \\n, in quotes.")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):  # not a TOML value: text without quotes
        value = text.strip()
    *parents, leaf = key.strip().split(".")
    for name in parents:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise CardError(f"{shown}: {name!r} is a value, not a table; set it as a whole.")
    table[leaf] = value


_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text in quotes",
    "tuple_type": "an array [...]",
    "dict_type": "a table",
    "model_type": "a table",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}


def _complaint(error: ErrorDetails) -> str:
    """One error as a clause: the key and what it must be. Text values are not shown: one may be a secret."""
    key = ".".join(str(part) for part in error["loc"]) or "the card"
    given, kind, bounds = error["input"], error["type"], error.get("ctx", {})
    value = f" is {json.dumps(given)} but" if isinstance(given, (bool, float)) or _short(given) else ""
    if kind == "extra_forbidden":
        return f"unknown key `{key}`; remove it or correct its name"
    if kind == "missing":
        return f"key `{key}` is missing; add it"
    if kind in _TYPES:
        return f"`{key}`{value} must be {_TYPES[kind]}"
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return f"`{key}`{value} must be {words} {bounds[name]:.12g}"
    if kind == "literal_error":
        return f"`{key}`{value} must be {bounds['expected']}"
    return f"`{key}`: {error['msg'].removeprefix('Value error, ')}"


def _short(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 10**20


def _sentence(where: str, error: ValidationError) -> str:
    return f"{where}: " + "; ".join(map(_complaint, error.errors())) + "."


def parse_section(section: type[Parsed], table: dict[str, Any], where: str, folder: Path | None = None) -> Parsed:
    """A section from plain data; raises a `CardError` that names `where` and every offending key.

    folder: of the card, where its relative paths are looked for if the current folder does not have them.
    """
    try:
        return section.model_validate(table, context={"folder": folder})
    except ValidationError as error:
        raise CardError(_sentence(where, error)) from None


def parse_config(table: dict[str, Any], where: str, folder: Path | None = None) -> Config:
    """A `Config` from plain data; arguments and errors as in `parse_section`."""
    return parse_section(Config, table, where, folder)


def _table(path: Path, extended_by: tuple[Path, ...]) -> dict[str, Any]:
    """The plain data of a card, merged with that of the card it extends."""
    if not path.is_file():
        raise CardError(
            f"{extended_by[-1]}: extends {path}, which does not exist; give a path relative to the card's folder."
            if extended_by
            else f"{path}: no such card; give the path of a TOML file, for example configs/ssp/atlas.toml."
        )
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (
        ValueError,
        RecursionError,
    ) as error:  # not TOML, not UTF-8, a number with too many digits, nested too deeply
        raise CardError(f"{path}: not valid TOML: {error}.") from None
    parent = table.pop("extends", None)
    if parent is None:
        return table
    if not isinstance(parent, str):
        raise CardError(f"{path}: `extends` must be the path of one card, not {parent!r}.")
    chain = (*extended_by, path.resolve())
    above = (path.parent / parent).resolve()
    if above in chain:
        raise CardError(f"{path}: extends {parent}, which extends it in turn; remove one of the two.")
    return merge_tables(_table(above, chain), table)


def load_card(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The config of a card file with `a.b=value` overrides applied (values in TOML syntax, bare text allowed)."""
    return overridden(_table(Path(path), ()), overrides, str(Path(path)), Path(path).parent)


def overridden(table: dict[str, Any], overrides: Sequence[str], where: str, folder: Path | None = None) -> Config:
    """The config of a card's plain data with `a.b=value` overrides applied; where: the source, for messages; folder: as
    in `parse_section`."""
    for override in overrides:
        _set(table, override, where)
    keys = " and ".join(override.partition("=")[0].strip() for override in overrides)
    return parse_config(table, f"{where} with --set {keys}" if overrides else where, folder)


def load_served(folder: Path, positions: int, overrides: Sequence[str]) -> ServedModel:
    """The card of a model folder that is served by itself; its episodes are no longer than its `positions`."""
    card = RolloutSection()
    longest = min(card.max_length, positions)
    buckets = [length for length in card.prefill_buckets if length <= longest] or [longest]
    table: dict[str, Any] = {
        "model": {"checkpoint": str(folder)},
        "rollout": {"max_length": longest, "prefill_buckets": buckets},
    }
    for override in overrides:
        _set(table, override, str(folder))
    return parse_section(ServedModel, table, str(folder))
