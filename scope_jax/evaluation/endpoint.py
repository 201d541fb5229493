"""Evaluation of a model behind an OpenAI-compatible endpoint: chat completions, with native calls of tools."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from scope_jax.config import JudgeSection
from scope_jax.config.suites import SuiteCard
from scope_jax.data.keys import rng
from scope_jax.data.rows import Row
from scope_jax.errors import UserError
from scope_jax.evaluation import calling
from scope_jax.evaluation.calling import BYTES_PER_TOKEN, completion_of
from scope_jax.evaluation.evaluate import Keep, evaluate_sets, judges_of
from scope_jax.evaluation.suites import plain_card, suite_sets
from scope_jax.grading.judge_client import JudgeClient, JudgeError
from scope_jax.grading.math_answers import SECONDS, Comparison, MathAnswers, Verdict
from scope_jax.learner.types import Datum, Reply
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play import exams
from scope_jax.play.rollouts import Agent, Groups, Interaction, Leg, Rollout
from scope_jax.play.tool_calls import Tool
from scope_jax.play.tool_execution import RolloutCalls
from scope_jax.play.tools import BASE
from scope_jax.rollouts.types import Completion
from scope_jax.run.world import Tell
from scope_jax.text.messages import Messages
from scope_jax.web.exchange import shown

SEEDS = 2**31  # seeds of requests are below this


def evaluate_endpoint(
    endpoint: JudgeSection,
    suites: Sequence[SuiteCard],
    overrides: Sequence[str],
    keep: Keep,
    tell: Tell,
    given: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """The metrics of a model behind an endpoint on these suites, in the form of `evaluate_model`.

    It gets the suites' own prompts. `model.tokenizer` among the overrides is used to count tokens.
    """
    cfg = plain_card(endpoint.model, overrides)
    sets = suite_sets(cfg, suites, False, overrides, given, tell)
    if any(exams.uses_base(one.cfg, one.exam) for one in sets):
        raise UserError("an endpoint has no base model that could grade; give evaluate.grader an endpoint.")
    client = JudgeClient(endpoint, tell, "the model")
    client.probe()
    judges = {name: JudgeClient(table, tell) for name, table in judges_of(sets).items()}
    for judge in judges.values():
        judge.probe()
    tokenizer = Tokenizer.load(cfg.model.tokenizer) if cfg.model.tokenizer else None
    math = MathAnswers()
    metrics = evaluate_sets(
        sets,
        lambda name: EndpointTools(client, judges, tokenizer, cfg.seed, f"evaluate {name}", math, tell),
        keep,
    )
    return {"target": f"{endpoint.model} at {shown(endpoint.url)}", "step": None, "base": None, "metrics": metrics}


@dataclass(frozen=True)
class EndpointTools:
    """Implements `play.tools.Tools` for an exam whose policy is behind an endpoint."""

    policy: JudgeClient
    """The endpoint's client."""
    judges: Mapping[str, JudgeClient]
    """External models by name."""
    tokenizer: Tokenizer | None
    """Counts tokens; without one, four bytes are one."""
    seed: int
    """Enters the seed of every sample."""
    step: str
    """Names the exam; it enters them, too."""
    math: MathAnswers
    """Compares mathematical answers."""
    trouble: Tell = lambda sentence: None
    """Is told what a tool raises, and what a user is told."""

    def rows(self, first: int, count: int) -> list[Row]:
        raise ValueError("an endpoint is evaluated, not trained; there is no stream of rows.")

    def prompt_tokens(self, messages: Messages) -> int:
        return 0  # the endpoint's template is not known

    def play(self, role: str, rollouts: Sequence[Rollout], agent: Agent, samples: int = 1) -> list[list[Completion]]:
        """`samples` completions of each rollout; the endpoint gets a seed of its own for each.

        Raises ValueError for the base model and for turns, which need the weights here; JudgeError if the endpoint does
        not answer.
        """
        if agent.policy == BASE:
            raise UserError(
                "the base model cannot judge the answers of an endpoint; give the grader an endpoint, "
                "such as --set evaluate.grader.endpoint.url=…"
            )
        if agent.max_turns != 1 and not agent.tools:
            raise UserError("a model behind an endpoint answers without searches; use an exam's own prompt.")
        given = agent.sampling
        fields: dict[str, Any] = {name: getattr(given, name) for name in ("temperature", "max_tokens", "top_p")}
        if given.top_k:
            fields["top_k"] = given.top_k
        if agent.stop:
            fields["stop"] = list(agent.stop)
        if agent.tools:
            return self._with_tools(role, rollouts, agent, samples, fields)
        requests = [
            {"messages": rollout.messages.conversation(), **fields, "seed": self._seed_of(role, rollout.name, sample)}
            for rollout in rollouts
            for sample in range(samples)
        ]
        flat = [completion_of(reply) for reply in self.policy.send(requests)]
        return [flat[first : first + samples] for first in range(0, len(flat), samples)]

    def _with_tools(
        self, role: str, rollouts: Sequence[Rollout], agent: Agent, samples: int, fields: Mapping[str, Any]
    ) -> list[list[Completion]]:
        """The same for an agent with tools: one request a turn, and the calls between them are run here."""
        if named := [tool for tool in agent.tools if isinstance(tool, str)]:
            raise UserError(f"the tool {named[0]} belongs to a game, and an endpoint is evaluated without one.")
        tools = tuple(tool for tool in agent.tools if isinstance(tool, Tool))
        execution = calling.execution(self.tokenizer, self.trouble)
        talks = []
        for rollout in rollouts:
            for sample in range(samples):
                where = (self.seed, self.step, role, rollout.name, sample)
                calls = RolloutCalls(
                    execution, lambda tool, where=where: rng("tool", *where, tool), calling.Unrecorded()
                )
                place = f"{rollout.name}/{sample}"
                talks.append(calling.Talk(place, [*rollout.messages.conversation()], agent, tools, calls))
        given = dict(fields) | calling.offered(agent, tools)
        with calling.services(tools), ThreadPoolExecutor(calling.TOGETHER) as pool:
            try:
                for turn in range(agent.max_turns):
                    if not (active := [talk for talk in talks if talk.finish is None]):
                        break
                    requests = [
                        {"messages": talk.messages, **given, "seed": self._seed_of(role, talk.name, turn)}
                        for talk in active
                    ]
                    list(pool.map(calling.Talk.take, active, self.policy.send(requests)))
            finally:
                for talk in talks:
                    talk.calls.close()
        flat = [talk.completion() for talk in talks]
        return [flat[first : first + samples] for first in range(0, len(flat), samples)]

    def interact(
        self, role: str, rollouts: Sequence[Rollout], agents: Mapping[str, Agent], samples: int = 1
    ) -> list[list[Interaction]]:
        raise UserError("a model behind an endpoint answers single prompts; its exam cannot play interactions.")

    def chains(self, agents: Mapping[str, Agent], legs: Sequence[Callable[[], Leg]]) -> list[list[Groups]]:
        raise UserError("a model behind an endpoint answers single prompts; its exam cannot play chains.")

    def each(self, name: str, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return [work(item) for item in items]

    def once(self, name: str, work: Callable[[], Any]) -> Any:
        return work()

    def _seed_of(self, role: str, name: str, sample: int) -> int:
        return zlib.crc32(f"{self.seed}/{self.step}/{role}/{name}/{sample}".encode()) % SEEDS

    def tokens(self, text: str) -> int:
        if self.tokenizer is None:
            return -(-len(text.encode()) // BYTES_PER_TOKEN)
        return len(self.tokenizer.encode(text))

    def search(self, queries: Sequence[str]) -> list[str]:
        raise ValueError("a model behind an endpoint answers without searches.")

    def judge(
        self,
        messages: Sequence[str],
        *,
        by: str = "judge",
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> list[Reply]:
        if by not in self.judges:
            raise JudgeError(f"the exam asks {by!r} but there is no endpoint for it; add one.")
        return self.judges[by](messages, temperature=temperature, max_tokens=max_tokens)

    def compare_math(self, comparisons: Sequence[Comparison], seconds: float = SECONDS) -> list[Verdict]:
        return self.math.verdicts(comparisons, seconds)

    def encode(
        self, messages: Sequence[Mapping[str, Any]], first: int = 0, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[Datum, ...]:
        raise UserError("an endpoint is evaluated, not trained; its tokens are not known here.")

    def score(self, by: str, rows: Sequence[Datum], **options: Any) -> list[np.ndarray]:
        raise UserError(f"an exam of an endpoint has no tokens that {by} could rate; evaluate a run or a model folder.")

    def probe(self, by: str) -> str:
        self.judges[by].probe()
        return ""

    def tell(self, sentence: str) -> None:
        self.trouble(sentence)
