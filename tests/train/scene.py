"""Scene: a solver with a slow search that tells the time, a notebook of the episode, and a second agent to talk to.

Each episode has a digest of the tokens that were sampled in it, and one of their log-probs as well.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from scope_jax.config import Config, LossCard, Section
from scope_jax.learner.types import Episode
from scope_jax.play.exams import Exam
from scope_jax.play.game import Game
from scope_jax.play.roles import Role, one_update_per_policy
from scope_jax.play.rollouts import Agent, Ask, Context, Rollout
from scope_jax.play.step import Played, Step
from scope_jax.play.tool_calls import SEARCH, Tool, tool
from scope_jax.play.tools import single_turn
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages


class Options(Section):
    """The card's [scene] table."""

    first: int = 0
    """The first scene that is played."""
    scenes: int = 32
    """How many."""
    delay: float = 0.0
    """Most seconds that a tool takes; how many differs from call to call and run to run."""
    loss: LossCard = LossCard(advantage="group-mean", kl="none")
    """The loss of both agents."""


@contextmanager
def notebook(rng: np.random.Generator) -> Iterator[list[str]]:
    yield [f"page {int(rng.integers(1000))}"]


def tools_of(cfg: Config) -> tuple[Tool, ...]:
    delay = cfg.options(Options).delay

    def search(query: str) -> str:
        time.sleep(random.uniform(0, delay))
        return f"{query[::-1][:40]} {time.time_ns()}"

    @tool(open=notebook)
    def note(pages: list[str], text: str) -> str:
        """Keeps a text."""
        time.sleep(random.uniform(0, delay))
        pages.append(text)
        return f"{pages[0]}: {len(pages)} notes, {sum(map(len, pages))} letters"

    return Tool("search", search, SEARCH), note


def scene(prompt: Messages) -> Any:
    def play(context: Context) -> Generator[Any, Any, dict[str, Any]]:
        said = yield Ask("solver", prompt)
        noted = context.call("note", text=said.text)
        heard = yield Ask("second", Messages(f"{noted} {context.call('search', query=said.content[-20:])}"))
        second = yield Ask("second", f" {len(heard.text)}")
        solver, second = yield (Ask("solver", f"{noted} {second.text[:8]}"), Ask("second", " and"))
        return {"noted": context.call("note", text=solver.text + second.text), "calls": len(said.calls)}

    return play


def roles(cfg: Config) -> tuple[Role, ...]:
    loss = cfg.options(Options).loss
    solver = single_turn(1.0, 24).model_copy(update={"max_response_tokens": 200})
    second = single_turn(1.0, 6).model_copy(update={"max_response_tokens": 64})
    searcher = Agent("actor", solver, max_turns=4, tools=("search",), finals=("answer",), calls="first")
    return Role("solver", searcher, loss=loss), Role("second", Agent("actor", second, max_turns=3), loss=loss)


def play(step: Step[Options]) -> Played:
    card = step.card
    rollouts = []
    for place, row in enumerate(step.rows(card.first, card.scenes), card.first):
        prompt = Messages(f"Search and answer.\nQuestion: {row['question']}", tools=())
        rollouts.append(Rollout(f"{place}", play=scene(prompt)))
    episodes: list[Episode] = []
    for rollout, group in zip(
        rollouts, step.interact(("solver", "second"), rollouts, samples=2, key="scene"), strict=True
    ):
        for each in group:
            for said in each.completions.values():
                text = {**each.value, "at": rollout.name, **digests(said)}
                episodes.append(said.episode(float(int(text["tokens"][:2], 16) % 2), text=text))
    calls = float(np.mean([episode.text["calls"] for episode in episodes]))
    return Played(episodes, metrics={"scene/calls": calls})


def digests(said: Completion) -> dict[str, str]:
    tokens, bits = hashlib.sha256(), hashlib.sha256()
    for row in said.rows:
        tokens.update(row.prompt_ids.tobytes() + row.ids_T.tobytes() + row.sampled_T.tobytes())
        bits.update(row.logprobs_T.tobytes())
    return {"tokens": tokens.hexdigest(), "bits": bits.hexdigest()}


def exam(cfg: Config) -> Exam:
    return Exam(
        Role("plain", Agent("actor", single_turn(1.0, 24))),
        lambda row, tokens: Messages(row["question"]),
        lambda said: said.content,
        ("exact-match",),
    )


GAME = Game(
    name="scene",
    options=Options,
    roles=roles,
    play=play,
    arrange=one_update_per_policy,
    exam=exam,
    data=("questions",),
    tools=tools_of,
)
