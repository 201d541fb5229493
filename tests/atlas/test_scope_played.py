"""A whole iteration of SCOPE on Atlas, with every role played by the scripts of the demonstrations.

Each scripted role asserts that its prompt equals the prompt of the demonstration, character by character.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from scope_jax.config import Config
from scope_jax.games import load_card, scope
from scope_jax.play.game import play_step
from tests.games.harness import TurnContext
from tests.games.scope_world import World
from tools.atlas import scope_scripts, tasks
from tools.atlas.facts import ASSETS
from tools.atlas.rows import Script
from tools.atlas.scope_roles import SCOPEDemonstrations
from tools.atlas.tasks import TOLD, Entity

SAMPLED = ("challenger.sampling", "solver.sampling", "estimate", "creation", "gates", "rubric_writer", "grader")


class Players:
    """All roles play well, except that every second attempt at a task gives only one sentence per entity."""

    def __init__(self, demos: SCOPEDemonstrations) -> None:
        self.demos = demos

    def __call__(self, ctx: TurnContext) -> str:
        script = self._script(ctx)
        assert script.message == ctx.prompt
        return [text for text, sampled in script.parts if sampled][ctx.turn]

    def _script(self, ctx: TurnContext) -> Script:
        prompt = ctx.prompt
        if ctx.role == "challenger":
            return self._challenger(prompt, ctx.sample)
        if ctx.role == "grader":
            answer, criterion = prompt.removesuffix(" here?").removeprefix("Grade.\nAnswer: ").split("\nCriterion: ")
            return scope_scripts.grader("", answer, criterion)
        text = prompt.rsplit("Task: ", 1)[1]
        kind, asked = self._read(text)
        names = [entity.name for entity in asked]
        if ctx.role == "solver":
            told = TOLD if ctx.sample % 2 == 0 else 1
            return scope_scripts.solver(kind, asked, len(asked), told, 1, self.demos.show)
        if ctx.role == "gates":
            if prompt.startswith("Is a thing named?"):
                return scope_scripts.entity_gate(text, names)
            return scope_scripts.relevance_gate(self._source(prompt), text, names)
        assert ctx.role == "rubric_writer"
        results = re.findall(r"Doc 1 .*\n.*", prompt)
        return scope_scripts.rubric_writer(self._source(prompt), text, asked, results)

    def _challenger(self, prompt: str, sample: int) -> Script:
        source = self._source(prompt)
        searches = int(re.findall(r"Searches: (\d)", prompt)[0])
        kind = re.findall(r"Type: (.+)", prompt)[0].replace(" ", "_")
        looked_up = source.neighbours[:searches]
        taken = [source.name, *(name for name in looked_up if name in self.demos.entities)][: 1 + sample]
        return scope_scripts.challenger(source, kind, searches, looked_up, taken, self.demos.show)

    def _source(self, prompt: str) -> Entity:
        return self.demos.entities[re.findall(r"\(Title: The \w+ (\w+)\)", prompt)[0]]

    def _read(self, text: str) -> tuple[str, list[Entity]]:
        names = [part.split()[-1] for part in text.rstrip(".").split(" and ")]
        (kind,) = [kind for kind in tasks.KINDS if tasks.task(kind, names) == text]
        return kind, [self.demos.entities[name] for name in names]


@pytest.fixture
def cfg() -> Config:
    """The card with small batches; lengths are in characters."""
    changes = {
        "scope.prompts": tasks.PROMPTS,
        "scope.iterations": 1,
        "scope.steps_per_iteration": 1,
        "scope.challenger_batch": 4,
        "scope.challenger.samples": 2,
        "scope.n_train": 2,
        "scope.n_filter": 2,
        "scope.generation_batch": 6,
        "scope.target_tasks": 4,
        "scope.solver_batch": 4,
        "scope.solver.samples": 2,
        "scope.document_tokens": 10_000,
        **{f"scope.{who}.max_tokens": 10_000 for who in SAMPLED},
        "scope.solver_reward.soft_limit": 10_000,
        "scope.solver_reward.hard_limit": 20_000,
    }
    return load_card(scope_scripts.CARD, [f"{key}={value}" for key, value in changes.items()])


def test_one_iteration_uses_the_prompts_of_the_demonstrations(demos: SCOPEDemonstrations, cfg: Config) -> None:
    lines = (ASSETS / "documents.jsonl").read_text(encoding="utf-8").splitlines()
    rows: list[dict[str, Any]] = [row for row in map(json.loads, lines) if row["title"].split()[-1] in demos.entities]
    names = {row["title"].split()[-1] for row in rows[:40]}
    names |= {name for known in names for name in demos.entities[known].neighbours}
    results = {name: demos.show(name) for name in names}
    memory = scope.GAME.start(cfg)
    stages = []
    for step in range(3):
        stages.append(memory["stage"])
        tools = World(Players(demos), results, data=rows)
        episodes, memory, metrics = play_step(scope.GAME, cfg, tools, memory, step)
        assert all(value == 0 for name, value in metrics.items() if name.endswith(("malformed", "retried")))
        prefix = {"challenger": "", "tasks": "creation/"}.get(stages[-1])
        if prefix is not None:
            for name in ("challenger/format", "challenger/valid", "challenger/rubrics_parsed", "gates/passed"):
                assert metrics[prefix + name] == 1.0, (stages[-1], name)
        solvers = [episode for episode in episodes if episode.role == "solver"]
        assert all(episode.parts["format"] == 1.0 for episode in solvers)
        assert {episode.parts["rubric"] == 1.0 for episode in solvers} == {True, False}
        assert any(episode.trained for episode in episodes) == (stages[-1] != "tasks")
    assert stages == ["challenger", "tasks", "solver"]
    assert scope.GAME.finished(cfg, memory)
