"""The schema of an experiment card: the only place where a default lives.

A card is a TOML file; `load_card` reads it, applies `--set a.b=c` overrides and returns a frozen `Config`.
Every field has a reader somewhere in the code; an unknown key is an error that names the file and the key.
A card that begins with `extends = "other.toml"` (a path beside it) changes the keys it names of that card.
Relative paths are taken from the current directory, `${NAME}` in a path is replaced by that environment variable.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError, model_validator

from scope_jax.config.base import CardError, Section, laid_over
from scope_jax.config.scope import AskSection, ChallengerRewardSection, ScopeSection, SolverRewardSection
from scope_jax.config.ssp import SSPSection
from scope_jax.config.tables import (
    DataSection,
    EncoderSection,
    EndpointSection,
    EvalSection,
    EvalSet,
    JudgeSection,
    LaunchSection,
    LearnerSection,
    LossCard,
    MeshSection,
    ModelSection,
    OptimizerSection,
    RetrievalSection,
    RoleSection,
    RolloutSection,
    RowsSection,
    SamplingSection,
    TrainSection,
)

__all__ = [
    "AskSection",
    "CardError",
    "ChallengerRewardSection",
    "Config",
    "EncoderSection",
    "EndpointSection",
    "EvalSet",
    "JudgeSection",
    "LaunchSection",
    "LearnerSection",
    "LossCard",
    "OptimizerSection",
    "RetrievalSection",
    "RoleSection",
    "RowsSection",
    "SSPSection",
    "SamplingSection",
    "ScopeSection",
    "SolverRewardSection",
    "load_card",
    "parse_config",
]


class Config(Section):
    """One experiment."""

    system: Literal["ssp", "scope"]
    seed: int = 0
    model: ModelSection
    mesh: MeshSection = MeshSection()
    retrieval: RetrievalSection
    rollout: RolloutSection = RolloutSection()
    learner: LearnerSection = LearnerSection()
    optimizer: OptimizerSection = OptimizerSection()
    data: DataSection
    evaluate: EvalSection = EvalSection()
    train: TrainSection
    judge: JudgeSection | None = None
    launch: LaunchSection = LaunchSection()
    ssp: SSPSection = SSPSection()
    scope: ScopeSection = ScopeSection()

    @model_validator(mode="after")
    def _ssp_is_complete(self) -> Config:
        if self.system != "ssp":
            return self
        if self.data.answers is None:
            raise ValueError("data.answers is missing; SSP needs a file of ground-truth answers")
        if self.train.steps is None:
            raise ValueError("train.steps is missing; SSP goes on until the card ends it")
        if self.judge is None and ("judge" in self.ssp.grader or self.ssp.verify == "judge"):
            raise ValueError(
                "the card asks for a judge (ssp.grader or ssp.verify) but has no [judge] table: "
                'add one, or set ssp.grader = "exact-match" and ssp.verify = "policy"'
            )
        return self

    @model_validator(mode="after")
    def _scope_is_complete(self) -> Config:
        if self.system != "scope":
            return self
        if self.judge is not None:
            raise ValueError(
                "SCOPE does not read [judge]; give each job of its judge an endpoint of its own: "
                "[scope.gates.endpoint], [scope.rubric_writer.endpoint], [scope.grader.endpoint]"
            )
        if self.scope.mode == "curated" and self.data.prompts is None:
            raise ValueError(
                'data.prompts is missing; scope.mode = "curated" learns from a file of prompts with rubrics'
            )
        if self.scope.mode == "self-play" and self.data.documents is None and self.retrieval.corpus is None:
            raise ValueError(
                "data.documents is missing; with a search server SCOPE needs a file of documents of its own"
            )
        return self


# ---------------------------------------------------------------------------------------------------------- loading
def _set(table: dict[str, Any], override: str) -> None:
    key, sep, text = override.partition("=")
    if not sep or not key.strip():
        raise CardError(f"--set {override!r} is not of the form a.b=value")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *parents, leaf = key.strip().split(".")
    for name in parents:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise CardError(f"--set {override!r}: {name!r} is a value, not a table")
    table[leaf] = value


def _sentence(where: str, error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"]) or "the card"
        match item["type"]:
            case "extra_forbidden":
                lines.append(f"unknown key `{key}`; remove it or correct its name")
            case "missing":
                lines.append(f"key `{key}` is missing; add it")
            case _:
                lines.append(f"`{key}`: {item['msg'].removeprefix('Value error, ')}")
    return f"{where}: " + "; ".join(lines) + "."


def parse_config(table: dict[str, Any], where: str) -> Config:
    """A `Config` from plain data; raises `CardError` that names `where` and every offending key."""
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise CardError(_sentence(where, error)) from None


def _table(path: Path, extended_by: tuple[Path, ...]) -> dict[str, Any]:
    """The plain data of a card, laid over that of the card it extends."""
    if not path.is_file():
        raise CardError(
            f"{extended_by[-1]}: extends {path}, which is no card; correct it; it starts at the card's folder."
            if extended_by
            else f"{path}: no such card; give the path of a TOML file, for example configs/ssp/atlas.toml."
        )
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CardError(f"{path}: not valid TOML: {error}.") from None
    parent = table.pop("extends", None)
    if parent is None:
        return table
    if not isinstance(parent, str):
        raise CardError(f"{path}: `extends` must be the path of one card, not {parent!r}.")
    chain = (*extended_by, path.resolve())
    above = (path.parent / parent).resolve()
    if above in chain:
        raise CardError(f"{path}: extends {parent}, which extends it in turn; break the circle.")
    return laid_over(_table(above, chain), table)


def load_card(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The config of a card file with `a.b=value` overrides applied (values in TOML syntax, bare text allowed)."""
    path = Path(path)
    table = _table(path, ())
    for override in overrides:
        _set(table, override)
    return parse_config(table, str(path) if not overrides else f"{path} with --set {' '.join(overrides)}")
