"""What a game plays in: a `World`, `StepTools`, the tools that the game gets of it in one step, and the `Verdicts` on
mathematical answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from scope_jax.config import Config
from scope_jax.data import sources
from scope_jax.errors import UserError
from scope_jax.learner.types import Datum, Reply
from scope_jax.models.config import ModelConfig
from scope_jax.models.tokenizer import Tokenizer
from scope_jax.play.conversations import trained_rows
from scope_jax.play.game import Game, Memory
from scope_jax.play.judge_client import JudgeClient, JudgeError, Unreachable
from scope_jax.play.math_answers import SECONDS, Comparison, MathAnswers, Verdict
from scope_jax.play.tools import Agent, Rollout
from scope_jax.play.turns import Joiner, Respond
from scope_jax.retrieval.search import SearchTool
from scope_jax.rollouts.keys import key_data
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.tools import BatchedTool
from scope_jax.rollouts.types import Completion, NonFiniteError, Request, Responder, SamplingParams, Turn
from scope_jax.rollouts.types import Reply as Answer
from scope_jax.run import records
from scope_jax.run.processes import by_one, divided, together, writes
from scope_jax.run.sampler import Sampler
from scope_jax.run.scoring import Scoring
from scope_jax.text import parsing
from scope_jax.text.messages import Messages

Tell = Callable[[str], None]
_IN_RESPONDER = ContextVar("in a responder", default=False)  # set while one runs, see `StepTools.search`


@dataclass(frozen=True)
class World:
    """Everything a game needs to generate episodes, except weights: `sampler` selects those.

    mesh: the devices of this process, which generate and search. search: None if the game does not search. rows: the
    training data, empty if nothing is trained. exams: the rows of each of the card's evaluation sets, by name. lookup:
    what the search asks, with its counters. local: this process's engine. verdicts: of mathematical answers. scoring:
    of given tokens.
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
    scoring: Scoring

    def finished(self, memory: Memory, step: int) -> bool:
        """True if the card or the game ends the run after `step` steps."""
        limit = self.cfg.train.steps
        return (limit is not None and step >= limit) or self.game.finished(self.cfg, memory, step)

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
                respond=None if responder is None else self._responder(responder, rollout.messages),
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
        if _IN_RESPONDER.get():  # of the process that generates its episode; the others know nothing of it
            return self.world.search(queries)
        return divided(self.world.search, queries, [1.0] * len(queries))  # the game's own, which all processes make

    def _responder(self, respond: Respond, messages: Messages) -> Responder:
        joined = self.world.joiner.responder(respond, messages)

        def responder(turns: tuple[Turn, ...]) -> Answer:
            before = _IN_RESPONDER.set(True)
            try:
                return joined(turns)
            finally:
                _IN_RESPONDER.reset(before)

        return responder

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

    def encode(
        self, messages: Sequence[Mapping[str, Any]], first: int = 0, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[Datum, ...]:
        options = self.world.cfg.model.chat_template_kwargs
        return trained_rows(self.world.tokenizer, messages, first, tools, options)

    def score(
        self,
        by: str,
        rows: Sequence[Datum],
        *,
        after: Sequence[Messages | Sequence[int]] | None = None,
        temperature: float = 1.0,
    ) -> list[np.ndarray]:
        if after is not None:
            encode = self.world.joiner.prompt
            prompts = [encode(each) if isinstance(each, Messages) else each for each in after]
            rows = [row.after(prompt) for row, prompt in zip(rows, prompts, strict=True)]
        return self.world.scoring.score(by, rows, temperature)

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


# ------------------------------------------------------------------------------------------------------------- verdicts
# <run>/verdicts.jsonl.gz (see `records` for the format) has one line per comparison of mathematical answers, written
# before the game sees the verdict:
#
#     {"step": 3, "prediction": "0.5", "golds": ["\\frac{1}{2}"], "verdict": "equal"}
#
# Whether a comparison times out can depend on the machine, so each is decided once: by one process for all of them, and
# by the first process of a run for those that resume it.
VERDICTS = "verdicts.jsonl.gz"


class Verdicts:
    """Compares mathematical answers for all processes of a run, and records the verdicts of a run that trains."""

    def __init__(self, answers: MathAnswers) -> None:
        self._answers = answers
        self._path: Path | None = None
        self._step = 0
        self._decided: dict[Comparison, Verdict] = {}  # of this step
        self._later: dict[int, dict[Comparison, Verdict]] = {}  # of steps that an earlier process did not complete

    def record(self, run: Path, done: int) -> None:
        """From now on verdicts are recorded in `run`, a run with `done` steps, and those recorded after them stand."""
        self._path = run / VERDICTS
        self._later = by_one(lambda: _after(run / VERDICTS, done))
        self.begin(done)

    def begin(self, step: int) -> None:
        """The following comparisons are those of this step; 0: of the initial evaluation."""
        self._step, self._decided = step, self._later.pop(step, {})

    def compare(self, comparisons: Sequence[Comparison], seconds: float) -> list[Verdict]:
        """The verdict of each comparison, in order; all processes call this alike."""
        new = [each for each in dict.fromkeys(comparisons) if each not in self._decided]
        found = divided(lambda part: self._answers.verdicts(part, seconds), new, [1.0] * len(new))
        if self._path is not None and writes():
            records.append_step(self._path, map(self._line, new, found))
        self._decided |= zip(new, found, strict=True)
        return [self._decided[comparison] for comparison in comparisons]

    def _line(self, comparison: Comparison, verdict: Verdict) -> dict[str, object]:
        return {"step": self._step, **comparison._asdict(), "verdict": verdict}


def _after(path: Path, done: int) -> dict[int, dict[Comparison, Verdict]]:
    """The recorded verdicts of the steps after `done`, by step. An incomplete end, as after a kill, is removed."""
    if path.is_file():
        records.mend(path)
    found: dict[int, dict[Comparison, Verdict]] = {}
    for line in records.read_steps(path):
        if line["step"] >= done:
            comparison = Comparison(line["prediction"], tuple(line["golds"]))
            found.setdefault(line["step"], {})[comparison] = line["verdict"]
    return found
