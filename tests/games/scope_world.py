"""SCOPE for golden transcripts: four documents, policies that follow a plan, a judge that compares words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scope_jax.config import Config
from scope_jax.games import parse_config
from scope_jax.learner.types import Reply
from scope_jax.play import searching
from scope_jax.play.tools import Agent, Rollout
from scope_jax.play.turns import Mode
from scope_jax.rollouts.types import Completion
from scope_jax.text import dialects
from tests.games.harness import LONG, ScriptedTools, TurnContext, result

DOCUMENTS: list[dict[str, Any]] = [
    {"id": "aare", "title": "Aare", "text": "The Aare is a river in Switzerland."},
    {"id": "bern", "title": "Bern", "text": "Bern lies on the Aare."},
    {"id": "cusco", "title": "Cusco", "text": "Cusco is a city in Peru."},
    {"id": "delhi", "title": "Delhi", "text": "Delhi lies on the Yamuna."},
]
RESULTS = {
    "Aare": result(("Aare", "The Aare ends in the Rhine.")),
    "Rhine": result(("Rhine", "The Rhine ends in the North Sea.")),
}
CRITERIA = (
    ("critical", "Names alpha."),
    ("important", "Names beta."),
    ("important", "Names gamma."),
    ("bonus", "Names delta."),
)


def criterion(text: str, weight: float = 1.0) -> dict[str, Any]:
    """A criterion of a task row."""
    return {"criterion": text, "weight": weight, "priority": ""}


RUBRIC = "".join(f'<rubric priority="{priority}">{text}</rubric>\n' for priority, text in CRITERIA)
GOOD_RUBRICS = f"<think>easy</think>\n<rubrics>\n{RUBRIC}</rubrics>"


# Dialect and turn mode of the paper's three models (Table 11, App. E), and of Search-R1.
PROTOCOLS: dict[str, tuple[str, Mode]] = {
    "raw": ("xml", "raw"),
    "qwen2.5": ("xml", "chat"),
    "qwen3": ("hermes", "chat-trimmed"),
    "olmo3": ("function", "chat"),
}


def searching_turn(query: str, protocol: str = "raw") -> str:
    return f"<think>look</think> {searching.written_search(query, dialects.load(PROTOCOLS[protocol][0]))}"


def task(text: str) -> str:
    return f"<think>done</think> <task>{text}</task>"


def answer(text: str) -> str:
    return f"<think>done</think> <answer>{text}</answer>"


def by_words(ctx: TurnContext) -> str:
    """The base as judge: gates reject VAGUE and ALIEN tasks; a criterion is met if its last word is in the answer."""
    if ctx.role == "rubric_writer":
        return "I cannot." if "UNGRADABLE" in ctx.prompt.split("Documents:")[0] else GOOD_RUBRICS
    if ctx.role == "gates":
        case = ctx.prompt.split("Now decide about this one")[1]
        return f"<think>so</think>\n<score>{int(('ALIEN' if 'Document:' in case else 'VAGUE') not in case)}</score>"
    assert ctx.role == "grader"
    said = ctx.prompt.split("Answer:")[1].split("Criterion:")[0]
    wanted = re.findall(r"Names (\w+)\.", ctx.prompt.split("Criterion:")[1])[0]
    return f"<score>{int(wanted in said)}</score>"


@dataclass
class Plan:
    """Scripted texts, one for each turn. Drafts by (title, sample), attempts by (word in the task, sample)."""

    drafts: Mapping[tuple[str, int], Sequence[str]] = field(default_factory=dict)
    attempts: Mapping[tuple[str, int], Sequence[str]] = field(default_factory=dict)
    judge: Callable[[TurnContext], str] = by_words
    replies: Mapping[str, str] = field(default_factory=dict)  # to another policy's searches, by a word of the task

    def __call__(self, ctx: TurnContext) -> str:
        if ctx.role == "challenger":
            title = re.findall(r"\(Title: (\w+)\)", ctx.prompt)[0]
            turns = self.drafts.get((title, ctx.sample), (searching_turn("Aare"), task(f"Tell of {title}.")))
        elif ctx.role in ("solver", "eval"):
            about = ctx.prompt.rsplit("Task:", 1)[1]
            known = [turns for (word, n), turns in self.attempts.items() if word in about and n == ctx.sample]
            turns = known[0] if known else (searching_turn("Rhine"), answer("alpha beta"))
        elif ctx.role == "replay":
            return next(reply for word, reply in self.replies.items() if word in ctx.prompt)
        else:
            return self.judge(ctx)
        return turns[ctx.turn]


@dataclass
class World(ScriptedTools):
    """ScriptedTools that record which policies were sampled and the requests to each endpoint."""

    policies: dict[str, str] = field(default_factory=dict)
    endpoints: list[tuple[str, str, float | None, int | None]] = field(default_factory=list)

    def play(self, role: str, rollouts: Sequence[Rollout], agent: Agent, samples: int = 1) -> list[list[Completion]]:
        assert self.policies.setdefault(role, agent.policy) == agent.policy
        return super().play(role, rollouts, replace(agent, policy="actor"), samples)

    def judge(
        self,
        messages: Sequence[str],
        *,
        by: str = "judge",
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> list[Reply]:
        self.endpoints += [(by, message, temperature, max_tokens) for message in messages]
        return [Reply(self.judge_reply(message)) for message in messages]


def world(plan: Plan | None = None, protocol: str = "raw", **changes: Any) -> World:
    dialect, turns = PROTOCOLS[protocol]
    return World(plan or Plan(), RESULTS, dialect=dialect, turns=turns, **changes)


def card(*, seed: int = 0, protocol: str = "raw", **scope: Any) -> Config:
    """A small card: four documents in a step, two drafts of each, two attempts, no dynamic turns."""
    small = {
        "steps_per_iteration": 1,
        "iterations": 2,
        "challenger_batch": 4,
        "solver_batch": 2,
        "generation_batch": 4,
        "target_tasks": 3,
        "n_train": 2,
        "n_filter": 2,
        "dynamic_turns": False,
        "challenger": {"samples": 2, **LONG},
        "solver": {"samples": 2, **LONG},
    }
    for role in ("challenger", "solver"):
        small[role] = {**small[role], **scope.pop(role, {})}  # type: ignore[dict-item]
    table = {
        "system": "scope",
        "seed": seed,
        "model": {"checkpoint": "none", "dialect": PROTOCOLS[protocol][0], "turns": PROTOCOLS[protocol][1]},
        "retrieval": {"corpus": "none"},
        "data": {"prompts": "none"},
        "train": {},
        "scope": small | scope,
    }
    return parse_config(table, "the test's card")
