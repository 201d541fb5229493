"""The schema of an experiment card: the only place where defaults are defined.

A card is a TOML file; `load_card` reads it, applies `--set a.b=c` overrides and returns a frozen `Config`.
Every field is used somewhere in the code; an unknown key is an error that names the file and the key.
A card with `extends = "other.toml"` (a path relative to the card) inherits that card and overrides the keys it sets.
A relative path is looked for in the current directory, then in the card's folder and those above it, then in the
checkout; `${NAME}` in a path is replaced by that environment variable.
"""

from __future__ import annotations

from scope_jax.config.base import CardError, Section, one_of
from scope_jax.config.exams import BY_RUBRIC, EvalSet, Measure
from scope_jax.config.experiment import GAMES, Config
from scope_jax.config.launch import LaunchSection
from scope_jax.config.learner import AdvantageCard, LearnerSection, LossCard, OptimizerSection
from scope_jax.config.loading import load_card, load_served, overridden, parse_config, parse_section
from scope_jax.config.model import AdapterSection
from scope_jax.config.scope import ChallengerRewardSection, MissingAnswer, ScopeSection, SolverRewardSection
from scope_jax.config.score import ConclusionRule, Idf, ScoreHarnessSection, ScoreRole, ScoreSection
from scope_jax.config.serving import ServedModel, ServeSection
from scope_jax.config.spell import QuestionerReward, RuleText, SpellRoleSection, SpellSection, SpellTask, Vote
from scope_jax.config.spice import AnswerType, ChallengerReward, SpiceSection
from scope_jax.config.ssp import FormatRule, Grader, NoiseUnit, SSPSection
from scope_jax.config.tables import (
    AskSection,
    EncoderSection,
    EndpointSection,
    GenerationSection,
    JudgeSection,
    RetrievalSection,
    RoleSection,
    RowsSection,
    SamplingSection,
    Ungraded,
)
from scope_jax.config.training import WatchRule

__all__ = [
    "BY_RUBRIC",
    "GAMES",
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
