"""A step of SPELL on Atlas, with every role played by the scripts of the demonstrations.

Each scripted role asserts that its prompt equals the prompt of the demonstration, character by character.
"""

from __future__ import annotations

import json
import re

from scope_jax.games import load_card, spell
from scope_jax.games.spell.state import Entry
from scope_jax.play.game import play_step
from tests.games.harness import ScriptedTools, TurnContext
from tools.atlas import spell_scripts
from tools.atlas.clusters import Cluster, Document, Task, chains_in, facts_of
from tools.atlas.facts import ASSETS, Fact
from tools.atlas.questions import Chain, chain_question
from tools.atlas.rows import Script

SENTENCE = re.compile(r"The (\w+) of (\w+) is (\w+)\.")
EXAMPLE = re.compile(r"Question: (.+)\nAnswer: (\w+)")


class Players:
    """All roles play well, except that every second answer is wrong."""

    def __init__(self) -> None:
        self.chains: dict[str, Chain] = {}
        self.remembered = 0

    def __call__(self, ctx: TurnContext) -> str:
        task: Task = "math" if "a number" in ctx.prompt or "the number" in ctx.prompt else "qa"
        script = getattr(self, f"_{ctx.role}")(ctx, task)
        assert script.message == ctx.prompt
        return script.parts[0][0]

    def _cluster(self, prompt: str) -> Cluster:
        found = re.findall(r"Title: (The \w+ (\w+))\n(.*)", prompt)
        return Cluster(
            tuple(
                Document(title, name, title, tuple(Fact(*fact) for fact in SENTENCE.findall(text)))
                for title, name, text in found
            )
        )

    def _questioner(self, ctx: TurnContext, task: Task) -> Script:
        cluster = self._cluster(ctx.prompt)
        history = [Entry((), *example) for example in EXAMPLE.findall(ctx.prompt)]
        self.remembered += bool(history)
        context = spell_scripts.context(cluster, task, cluster.documents, history)
        chain = chains_in(facts_of(cluster.documents), 1, task)[-1 - len(history)]
        self.chains[chain_question(chain)] = chain
        return spell_scripts.questioner(context, chain)

    def _chain(self, prompt: str) -> Chain:
        return self.chains[re.findall(r"What is .+\?", prompt)[-1]]

    def _grounding(self, ctx: TurnContext, task: Task) -> Script:
        return spell_scripts.guesser(None, task, self._chain(ctx.prompt), "7" if task == "math" else "Nowhere")

    def _responder(self, ctx: TurnContext, task: Task) -> Script:
        cluster, chain = self._cluster(ctx.prompt), self._chain(ctx.prompt)
        if ctx.sample % 2:
            return spell_scripts.guesser(cluster, task, chain, chain[0].entity)
        return spell_scripts.responder(cluster, task, chain)

    def _verifier(self, ctx: TurnContext, task: Task) -> Script:
        answer = re.findall(r"\nAnswer: (\w+)\n", ctx.prompt)[0]
        return spell_scripts.verifier(self._chain(ctx.prompt), answer)


def test_two_steps_use_the_prompts_of_the_demonstrations() -> None:
    """Lengths are in characters; the second step uses the same clusters again."""
    roles = ("questioner", "responder", "verifier")
    long = [f"spell.{who}.{key}=10000" for who in roles for key in ("max_prompt_tokens", "sampling.max_tokens")]
    small = [
        "spell.groups=8",
        "spell.clusters_per_round=8",
        "spell.max_answer_tokens=100",
        f"spell.prompts={spell_scripts.PROMPTS}",
    ]
    cfg = load_card(spell_scripts.CARD, [*small, *long])
    lines = (ASSETS / "spell" / "clusters.jsonl").read_text(encoding="utf-8").splitlines()
    players = Players()
    tools = ScriptedTools(script=players, data=[json.loads(line) for line in lines[:8]])
    memory = spell.GAME.start(cfg)
    for step in range(2):
        episodes, memory, metrics = play_step(spell.GAME, cfg, tools, memory, step)
        assert metrics["groups/full"] == metrics["questioner/valid"] == metrics["responder/concluded"] == 1.0
        assert metrics["responder/rule"] == metrics["verifier/yes"] == 0.5
        assert metrics["verifier/disagreement"] == metrics["verifier/malformed"] == 0.0
        assert metrics["questioner/documents"] == (2 if step == 0 else 4)
        assert {episode.role for episode in episodes if episode.trained} == {"questioner", "responder"}
    assert players.remembered == 8
