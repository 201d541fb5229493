"""The schema of an experiment card: the only place where defaults are defined.

A card is a TOML file; `games.load_card` reads it, applies `--set a.b=c` overrides and returns a frozen `Config`.
Every field is used somewhere in the code; an unknown key is an error that names the file and the key.
A card with `extends = "other.toml"` (a path relative to the card) inherits that card and overrides the keys it sets.
A relative path is looked for in the current directory, then in the card's folder and those above it, then in the
checkout; `${NAME}` in a path is replaced by that environment variable.
"""

from __future__ import annotations

from scope_jax.config.base import CardError, Section, one_of
from scope_jax.config.exams import BY_RUBRIC, EvalSet, Measure
from scope_jax.config.experiment import Config
from scope_jax.config.launch import LaunchSection
from scope_jax.config.learner import AdvantageCard, LearnerSection, LossCard, OptimizerSection
from scope_jax.config.loading import load_served, parse_section
from scope_jax.config.model import AdapterSection
from scope_jax.config.sandbox import SandboxSection
from scope_jax.config.serving import ServedModel, ServeSection
from scope_jax.config.tables import (
    AskSection,
    EncoderSection,
    EndpointSection,
    FormatRule,
    GenerationSection,
    GradingRule,
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
    "AdapterSection",
    "AdvantageCard",
    "AskSection",
    "CardError",
    "Config",
    "EncoderSection",
    "EndpointSection",
    "EvalSet",
    "FormatRule",
    "GenerationSection",
    "GradingRule",
    "JudgeSection",
    "LaunchSection",
    "LearnerSection",
    "LossCard",
    "Measure",
    "OptimizerSection",
    "RetrievalSection",
    "RoleSection",
    "RowsSection",
    "SamplingSection",
    "SandboxSection",
    "Section",
    "ServeSection",
    "ServedModel",
    "Ungraded",
    "WatchRule",
    "load_served",
    "one_of",
    "parse_section",
]
