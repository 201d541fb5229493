"""Evaluation of a model behind an OpenAI-compatible endpoint: single-turn chat completions, no searches."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scope_jax.config import JudgeSection
from scope_jax.config.suites import SuiteCard
from scope_jax.errors import UserError
from scope_jax.evaluation.evaluate import Keep, evaluate_sets, judges_of
from scope_jax.evaluation.suites import plain_card, suite_sets
from scope_jax.learner.types import Datum, Reply
from scope_jax.models.tokenizer import Tokenizer
from scope_jax.play import exams
from scope_jax.play.judge_client import JudgeClient, JudgeError
from scope_jax.play.math_answers import SECONDS, Comparison, MathAnswers, Verdict
from scope_jax.play.rollouts import Agent, Interaction, Rollout
from scope_jax.play.tools import BASE
from scope_jax.retrieval.rows import Row
from scope_jax.rollouts import types
from scope_jax.rollouts.types import Completion, Turn
from scope_jax.run.world import Tell
from scope_jax.text import parsing
from scope_jax.text.messages import Messages

BYTES_PER_TOKEN = 4  # the estimate without a tokenizer
NO_IDS = np.zeros(0, np.int32)
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
        lambda name: EndpointTools(client, judges, tokenizer, cfg.seed, f"evaluate {name}", math),
        keep,
    )
    return {"target": f"{endpoint.model} at {endpoint.url}", "step": None, "base": None, "metrics": metrics}


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
        if agent.tools or agent.max_turns != 1:
            raise UserError("a model behind an endpoint answers without searches; use an exam's own prompt.")
        given = agent.sampling
        fields: dict[str, Any] = {name: getattr(given, name) for name in ("temperature", "max_tokens", "top_p")}
        if given.top_k:
            fields["top_k"] = given.top_k
        if agent.stop:
            fields["stop"] = list(agent.stop)
        requests = [
            {"messages": rollout.messages.conversation(), **fields, "seed": self._seed_of(role, rollout.name, sample)}
            for rollout in rollouts
            for sample in range(samples)
        ]
        flat = [completion_of(reply) for reply in self.policy.send(requests)]
        return [flat[first : first + samples] for first in range(0, len(flat), samples)]

    def interact(
        self, role: str, rollouts: Sequence[Rollout], agents: Mapping[str, Agent], samples: int = 1
    ) -> list[list[Interaction]]:
        raise UserError("a model behind an endpoint answers single prompts; its exam cannot play interactions.")

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
        raise ValueError(f"an exam of an endpoint has nothing to tell: {sentence}")


def completion_of(reply: Reply) -> Completion:
    """A reply as an episode of one turn, without token ids; a rejected request has no turn.

    A reply that was cut ends as one of the engine that reached its limit. An endpoint does not say whether its prompt
    opened a thought, so without a closing mark such a reply may be one, and counts as one.
    """
    rows = (types.Row(NO_IDS, NO_IDS, np.zeros(0, bool), np.zeros(0, np.float32)),)
    if reply.refused:
        return Completion(rows, (), "overflow", "")
    finish, opened = ("length", True) if reply.cut else ("eos", False)
    none = np.zeros(0, np.float32)
    turn = Turn("sampled", NO_IDS, none, reply.text, finish, opened=opened, thought=parsing.THOUGHT)
    return Completion(rows, (turn,), finish, reply.text)
