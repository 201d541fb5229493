"""R-Zero for golden transcripts: a card, a challenger with a list of replies, a solver with a list of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scope_jax.config import Config
from scope_jax.games import parse_config
from scope_jax.games.r_zero.options import RZeroSection
from tests.games.harness import ScriptedTools, TurnContext

POLICIES = ("challenger", "solver")


def card(**r_zero: Any) -> Config:
    """Two prompts of two questions, a pool of four, four votes, one step of each phase; prompts are in characters."""
    extra = {name: r_zero.pop(name) for name in ("model", "evaluate", "train") if name in r_zero}
    roles = {
        name: {"samples": 2, "max_prompt_tokens": 20_000} | r_zero.pop(name, {}) for name in ("challenger", "solver")
    }
    sizes = {"challenger_batch": 2, "pool": 4, "votes": 4, "pool_votes": 4, "solver_batch": 2, "iterations": 1}
    steps = {"challenger_steps": 1, "solver_steps": 1}
    model = {"checkpoint": "none"} | extra.pop("model", {})
    table = {"system": "r_zero", "model": model, "train": {}, "r_zero": roles | sizes | steps | r_zero, **extra}
    return parse_config(table, "the test's card")


def options(**r_zero: Any) -> RZeroSection:
    return card(**r_zero).options(RZeroSection)


def asked(question: str) -> str:
    return f"Hm. <question> {question} </question> \\boxed{{0}}"


def said(*answers: Any) -> list[str]:
    """Answers of the solver; None: without a box."""
    return ["I cannot tell." if answer is None else f"It is \\boxed{{{answer}}}" for answer in answers]


@dataclass
class Plan:
    """The challenger's replies by the name of their prompt, in the order of samples; the solver's answers by question,
    of voters and of the solver's own step."""

    replies: Mapping[str, Sequence[str]]
    votes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    solutions: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __call__(self, ctx: TurnContext) -> str:
        if ctx.role == "challenger":
            return self.replies[ctx.name][ctx.sample]
        answers = self.votes if ctx.role == "voter" else self.solutions
        return answers[ctx.prompt.rpartition("\n\n")[2]][ctx.sample]


def world(plan: Any, **changes: Any) -> ScriptedTools:
    return ScriptedTools(plan, known_policies=POLICIES, **changes)
