"""What a game plays in: a `World`, and `StepTools`, the tools that the game gets of it in one step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jax.sharding import Mesh

from scope_jax.config import Config
from scope_jax.data import sources
from scope_jax.errors import UserError
from scope_jax.learner.types import Reply
from scope_jax.models.config import ModelConfig
from scope_jax.models.tokenizer import Tokenizer
from scope_jax.play.game import Game
from scope_jax.play.judge_client import JudgeClient, JudgeError, Unreachable
from scope_jax.play.math_answers import SECONDS, Comparison, Verdict
from scope_jax.play.tools import Agent, Rollout
from scope_jax.play.turns import Joiner
from scope_jax.retrieval.search import SearchTool
from scope_jax.rollouts.keys import key_data
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.tools import BatchedTool
from scope_jax.rollouts.types import Completion, NonFiniteError, Request, SamplingParams
from scope_jax.run.processes import divided, together
from scope_jax.run.residence import Sampler
from scope_jax.run.verdicts import Verdicts
from scope_jax.text import parsing
from scope_jax.text.messages import Messages

Tell = Callable[[str], None]


@dataclass(frozen=True)
class World:
    """Everything a game needs to generate episodes, except weights: `sampler` selects those.

    mesh: the devices of this process, which generate and search. search: None if the game does not search. rows: the
    training data, empty if nothing is trained. exams: the rows of each of the card's evaluation sets, by name. lookup:
    what the search asks, with its counters. local: this process's engine. verdicts: of mathematical answers.
    """

    cfg: Config
    game: Game
    mesh: Mesh
    model: ModelConfig
    tokenizer: Tokenizer
    sampler: Sampler
    joiner: Joiner
    search: SearchTool | None
    judges: Mapping[str, JudgeClient]
    tell: Tell | None
    rows: Sequence[sources.Row]
    exams: Mapping[str, Sequence[sources.Row]]
    lookup: BatchedTool[Any] | None
    local: LocalRollouts
    verdicts: Verdicts

    def tools(self, step: int | str, *, exam: bool = False) -> StepTools:
        """The tools of a game in this step, or of an exam; `step` enters the key of every sample."""
        return StepTools(self, step, exam)


@dataclass(frozen=True)
class StepTools:
    """Implements `play.tools.Tools` for one step of a game, or for an exam, whose episodes may have another length."""

    world: World
    step: int | str
    exam: bool = False

    def rows(self, first: int, count: int) -> list[sources.Row]:
        return sources.items(self.world.rows, first, count, self.world.cfg.seed)

    def prompt_tokens(self, messages: Messages) -> int:
        return len(self.world.joiner.prompt(messages))

    def play(self, role: str, rollouts: Sequence[Rollout], agent: Agent, samples: int = 1) -> list[list[Completion]]:
        if not rollouts:
            return []
        if len({rollout.name for rollout in rollouts}) != len(rollouts):
            raise ValueError(f"two rollouts of role {role!r} have the same name; give each its own.")
        sampling = agent.sampling
        params = SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            stop=agent.stop,
            stop_ids=self.world.tokenizer.eos_ids,
            tempered_logprobs=agent.tempered,
            thought=parsing.THOUGHT,
            tags_in_thinking=self.world.cfg.model.tags_in_thinking,
            ends=self.world.cfg.model.stop,
        )
        distinct = {rollout.messages for rollout in rollouts if rollout.prompt_ids is None}  # long, and often equal
        encoded = {messages: tuple(self.world.joiner.prompt(messages)) for messages in distinct}
        alike: dict[tuple[int, ...], str] = {}  # by ids, the name of the first of the prompts that share a prefill
        requests = [
            Request(
                prompt_ids=ids,
                params=params,
                key=key_data(self.world.cfg.seed, self.step, role, rollout.name, sample),
                group=alike.setdefault(ids, rollout.name),
                max_turns=agent.max_turns,
                respond=None if responder is None else self.world.joiner.responder(responder, rollout.messages),
                max_prompt_tokens=self._shorter(agent.max_prompt_tokens, 1),
                max_response_tokens=self._shorter(sampling.max_response_tokens, len(ids)),
                policy=self.world.sampler.named(agent.policy),
            )
            for rollout in rollouts
            for ids in [rollout.prompt_ids or encoded[rollout.messages]]
            for responder in [rollout.respond or agent.respond]
            for sample in range(samples)
        ]
        try:
            flat = self.world.sampler.use(agent.policy).run(requests)
        except NonFiniteError as error:
            where = self.step if isinstance(self.step, str) else f"step {self.step + 1}"
            raise NonFiniteError(f"{where}, role {role!r}, policy {agent.policy!r}: {error}") from error
        self.world.sampler.count(flat)
        return [flat[first : first + samples] for first in range(0, len(flat), samples)]

    def _shorter(self, limit: int | None, used: int) -> int | None:
        """A limit on a prompt or what follows it, lowered to what `used` tokens leave of the longest episode here, if
        the engine has room for a longer one."""
        cfg = self.world.cfg
        longest = cfg.exam_length if self.exam else cfg.rollout.max_length
        if longest == cfg.engine_length:
            return limit
        return min(max(longest - used, 1), limit or longest)

    def search(self, queries: Sequence[str]) -> list[str]:
        if self.world.search is None:
            raise UserError("the game searches but the card has no [retrieval] table; add one with corpus or url.")
        if threading.current_thread() is threading.main_thread():  # the game's own search, which all processes make
            return divided(self.world.search, queries, [1.0] * len(queries))
        return self.world.search(queries)  # a responder's, in the process that generates its episode

    def tokens(self, text: str) -> int:
        return len(self.world.tokenizer.encode(text))

    def judge(
        self,
        messages: Sequence[str],
        *,
        by: str = "judge",
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> list[Reply]:
        ask = partial(self._judge(by), temperature=temperature, max_tokens=max_tokens)
        return divided(ask, messages, [len(message) for message in messages])

    def compare_math(self, comparisons: Sequence[Comparison], seconds: float = SECONDS) -> list[Verdict]:
        return self.world.verdicts.compare(comparisons, seconds)

    def probe(self, by: str) -> str:
        def problem() -> str:
            try:
                self._judge(by).probe()
            except Unreachable as error:
                return str(error)
            return ""

        return next(filter(None, together(problem)), "")

    def tell(self, sentence: str) -> None:
        if self.world.tell is not None:
            self.world.tell(sentence)

    def _judge(self, name: str) -> JudgeClient:
        if name not in self.world.judges:
            raise JudgeError(f"the game asks {name!r} but the card has no table with its endpoint; add one.")
        return self.world.judges[name]
