"""Dr. Zero for golden transcripts: six passages, a proposer and a solver that follow a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scope_jax.config import Config
from scope_jax.games import parse_config
from tests.games.harness import ScriptedTools, TurnContext, result

NAMES = ("Aare", "Bern", "Cusco", "Delhi", "Elbe", "Fuji")
PASSAGES: list[dict[str, Any]] = [
    {"id": name.lower(), "title": name, "text": f"{name} is red. It lies by {name}ville."} for name in NAMES
]
RESULTS = {f"{name}ville": result((f"{name}ville", f"{name}ville is blue.")) for name in NAMES}
LONG = {"max_prompt_tokens": 20_000}  # prompts are in characters


def searching_turn(query: str) -> str:
    return f"<think>look</think> <search>{query}</search>"


def pair(question: str, answer: str, thought: str = "<think>done</think> ") -> str:
    return f"{thought}<question>{question}</question> <answer>{answer}</answer>"


@dataclass
class Plan:
    """Turns of the proposer by (title, sample), of the solver by (word of the question, sample); by default a proposer
    asks for the colour in its passage, and the solver knows it in even samples."""

    proposals: Mapping[tuple[str, int], Sequence[str]] = field(default_factory=dict)
    attempts: Mapping[tuple[str, int], Sequence[str]] = field(default_factory=dict)

    def __call__(self, ctx: TurnContext) -> str:
        if ctx.role == "proposer":
            title = re.findall(r"\(Title: (\w+)\)", ctx.prompt)[0]
            return self.proposals.get((title, ctx.sample), (pair(f"Which colour has {title}?", "red"),))[ctx.turn]
        asked = ctx.prompt.rsplit("Question:", 1)[1]
        known = [turns for (word, n), turns in self.attempts.items() if word in asked and n == ctx.sample]
        return (known[0] if known else (f"<answer>{'green' if ctx.sample % 2 else 'red'}</answer>",))[ctx.turn]


def world(plan: Any = None, **changes: Any) -> ScriptedTools:
    return ScriptedTools(plan or Plan(), RESULTS, known_policies=("proposer", "solver"), data=PASSAGES, **changes)


def card(*, batch: int = 4, seed: int = 0, **own: Any) -> Config:
    """A small card; own: values of [dr_zero]."""
    roles = {role: LONG | own.pop(role, {}) for role in ("proposer", "solver")}
    own = {"iterations": 1, "steps": 1, "partition": 6, "samples": 2, "attempts": 4, **own}
    table = {
        "system": "dr_zero",
        "seed": seed,
        "model": {"checkpoint": "none"},
        "retrieval": {"corpus": "none"},
        "data": {"documents": "none"},
        "train": {"batch_size": batch},
        "dr_zero": {**own, **roles},
    }
    return parse_config(table, "the test's card")
