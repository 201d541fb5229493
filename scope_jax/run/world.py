"""What a game plays in: a `World`, and `StepTools`, the tools that the game gets of it in one step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from jax.sharding import Mesh

from scope_jax.config import Config
from scope_jax.data import sources
from scope_jax.data.keys import rng
from scope_jax.errors import UserError
from scope_jax.grading.judge_client import JudgeClient, JudgeError, Unreachable
from scope_jax.grading.math_answers import SECONDS, Comparison, MathAnswers, Verdict
from scope_jax.learner.types import Datum, Reply
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.multihost import distributed
from scope_jax.play.conversations import given_rows
from scope_jax.play.driver import EpisodeContext, InteractionDriver
from scope_jax.play.failures import check_failures
from scope_jax.play.game import Game, Memory, services_of
from scope_jax.play.rollouts import Agent, Ask, Context, Interaction, Response, Rollout
from scope_jax.play.tool_calls import Tool
from scope_jax.play.tool_execution import Execution, RolloutCalls, tools_of
from scope_jax.play.tool_responder import stops_of, tool_responder
from scope_jax.play.tools import BASE
from scope_jax.play.turns import Joiner
from scope_jax.retrieval.search import SearchTool
from scope_jax.rollouts.interactions import ActiveInteraction
from scope_jax.rollouts.keys import key_data
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.tools import BatchedTool
from scope_jax.rollouts.types import Completion, NonFiniteError, Request, SamplingParams
from scope_jax.run.activity import Activity
from scope_jax.run.processes import HandedOut, divided, together
from scope_jax.run.recording import Recording
from scope_jax.run.sampler import Sampler
from scope_jax.run.scoring import Scoring
from scope_jax.text.messages import Messages

T = TypeVar("T")
Tell = Callable[[str], None]
ONLY = "agent"  # the name of the agent of an interaction with one question


@dataclass(frozen=True)
class World:
    """Everything a game needs to generate episodes, except weights: `sampler` selects those.

    mesh: the devices of this process, which generate and search. search: None if the game does not search. rows: the
    training data, empty if nothing is trained. exams: the rows of each of the card's evaluation sets, by name. lookup:
    what the search asks, with its counters. local: this process's engine. recording: of what tools and graders answer.
    execution: runs the calls of tools. scoring: of given tokens. toolbox: the game's tools by name. activity: what is
    going on.
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
    recording: Recording
    execution: Execution
    math: MathAnswers
    scoring: Scoring
    toolbox: Mapping[str, Tool]
    activity: Activity = field(default_factory=Activity)

    def status(self) -> str:
        """What is going on, in words; "" if nothing is. May be called in any thread."""
        return self.activity.text(lambda: (*self.local.counts, self.local.steps))

    def finished(self, memory: Memory, step: int) -> bool:
        """True if the card or the game ends the run after `step` steps."""
        limit = self.cfg.train.steps
        return (limit is not None and step >= limit) or self.game.finished(self.cfg, memory)

    def close(self) -> None:
        """Ends the services of the tools, and the record."""
        self.recording.close()
        for service in services_of(self.toolbox.values()):
            service.close()

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
        _check_names(role, rollouts)
        tools = tools_of(agent.tools, self.world.toolbox)
        if not all(tool.pure and tool.open is None for tool in tools):
            return self._with_tools(role, rollouts, agent, samples)
        schemas = [tool.schema for tool in tools]
        distinct = {rollout.messages for rollout in rollouts if rollout.prompt_ids is None}  # long, and often equal
        encoded = {messages: tuple(self.world.joiner.prompt(messages.declaring(schemas))) for messages in distinct}
        alike: dict[tuple[int, ...], str] = {}  # by ids, the name of the first of the prompts that share a prefill
        requests = [
            self._request(
                ONLY,
                agent,
                rollout,
                rollout.messages.declaring(schemas),
                ids,
                (role, rollout.name, sample),
                self._calls((role, rollout.name, sample)),
                alike.setdefault(ids, rollout.name),
            )
            for rollout in rollouts
            for ids in [rollout.prompt_ids or encoded[rollout.messages]]
            for sample in range(samples)
        ]
        with self._naming(role, agent.policy), self.world.activity(f"sampling {role}"):
            flat = self.world.sampler.use(agent.policy).run(requests)
        self.world.sampler.count(flat)
        return _in_groups(flat, samples)

    def _with_tools(self, role: str, rollouts: Sequence[Rollout], agent: Agent, samples: int) -> list[list[Completion]]:
        """`play` of an agent with tools that have a state, or are recorded: interactions with one question."""

        def asked(rollout: Rollout) -> Rollout:
            def play(context: Context) -> Generator[Ask, Response, None]:
                yield Ask(ONLY, rollout.messages)

            if rollout.prompt_ids is not None:
                raise ValueError(f"the rollout {rollout.name!r} has prompt_ids, its agent has tools with a state.")
            return replace(rollout, play=play)

        played = self.interact(role, [asked(rollout) for rollout in rollouts], {ONLY: agent}, samples)
        return [[each.completions[ONLY] for each in group] for group in played]

    def interact(
        self, role: str, rollouts: Sequence[Rollout], agents: Mapping[str, Agent], samples: int = 1
    ) -> list[list[Interaction]]:
        _check_names(role, rollouts)
        cost = samples * sum(agent.max_turns * agent.sampling.max_tokens for agent in agents.values())
        count, slots = len(rollouts), self.world.local.engine.config.slots
        handed = HandedOut([float(cost)] * count, [samples] * count, slots)
        drivers: dict[int, list[InteractionDriver]] = {}

        def begun(places: Iterable[int]) -> Iterator[list[InteractionDriver]]:
            for place in places:
                rollout = rollouts[place]
                drivers[place] = [self._driver(role, rollout, agents, sample) for sample in range(samples)]
                yield drivers[place]

        try:
            names = " and ".join(dict.fromkeys(agent.policy for agent in agents.values()))
            with self._naming(role, names), self.world.activity(f"playing {role}"):
                completions = self._interact(
                    [driver for group in begun(handed.first) for driver in group],
                    begun(handed.later),
                    [agent.policy for agent in agents.values()],
                )
        finally:
            for driver in (driver for group in drivers.values() for driver in group):
                driver.close()
        said = iter(completions)
        played = {place: [driver.interaction(next(said)) for driver in group] for place, group in drivers.items()}
        groups = handed.gathered(lambda: [*played.items()])
        check_failures(role, groups)
        self.world.sampler.count([said for group in groups for each in group for said in each.completions.values()])
        return groups

    def _interact(
        self,
        drivers: Sequence[InteractionDriver],
        later: Iterator[Sequence[InteractionDriver]],
        policies: Sequence[str],
    ) -> list[dict[str, Completion]]:
        """What the agents of each driver sample, also of those that are handed out later. Weights are loaded in turns,
        by all processes together: those of a policy are used until no rollout goes on with them."""
        local, weights = self.world.local, {self._weights(policy): policy for policy in reversed(policies)}
        active, wanted = [local.interaction(driver) for driver in drivers], {self._weights(policies[0])}

        def begun() -> Iterator[list[ActiveInteraction]]:
            for group in later:
                active.extend(new := [local.interaction(driver) for driver in group])
                yield new

        more = begun()
        while wanted:
            name = next(name for name in reversed(weights) if name in wanted)
            self.world.sampler.use(weights[name])
            if left := [each for each in active if not each.over] or next(more, []):
                local.interact(left, name, more)
            wanted = set().union(*together(lambda: sorted(set().union(*(each.wanted for each in active)))))
        return [each.completions() for each in active]

    def _weights(self, policy: str) -> str:
        """The name of the weights that a policy samples with: one for all policies that are adapters."""
        return "" if self.world.sampler.adapters else policy

    def _driver(self, role: str, rollout: Rollout, agents: Mapping[str, Agent], sample: int) -> InteractionDriver:
        place = (role, rollout.name, sample)
        calls = self._calls(place)
        generator = rng("rollout", self.world.cfg.seed, self.step, *place)
        context = EpisodeContext(rollout.name, sample, generator, calls, self.world.toolbox)

        def request(name: str, messages: Messages) -> Request:
            agent = agents[name]
            messages = messages.declaring([tool.schema for tool in tools_of(agent.tools, self.world.toolbox)])
            ids = tuple(self.world.joiner.prompt(messages))
            where = place if len(agents) == 1 else (*place, name)
            row = self._request(name, agent, rollout, messages, ids, where, calls, None)
            return replace(row, weights=self._weights(agent.policy))

        return InteractionDriver(rollout, agents, context, self.world.joiner, request)

    def _calls(self, place: tuple[str, str, int]) -> RolloutCalls:
        """The calls of tools in one sample of a rollout. place: role, rollout and sample."""
        where = (self.world.cfg.seed, self.step, *place)
        role, rollout, sample = place
        name = role if self._number is not None else f"{self.step}: {role}"  # several exams follow one step
        record = self.world.recording.calls(self._number, name, rollout, sample)
        return RolloutCalls(self.world.execution, lambda tool: rng("tool", *where, tool), record)

    def _request(
        self,
        name: str,
        agent: Agent,
        rollout: Rollout,
        messages: Messages,
        ids: tuple[int, ...],
        place: tuple[Any, ...],
        calls: RolloutCalls,
        group: str | None,
    ) -> Request:
        """The request of a row of the agent `name`, whose prompt has these ids. place: role, rollout, sample and
        perhaps the agent's name, for the key."""
        sampling, joiner, tools = agent.sampling, self.world.joiner, tools_of(agent.tools, self.world.toolbox)
        respond = tool_responder(name, agent, tools, calls.run, joiner, rollout.remark) if tools else None
        params = SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            stop=stops_of(agent, tools, joiner),
            stop_ids=self.world.tokenizer.eos_ids,
            tempered_logprobs=agent.tempered,
            thought=joiner.thought,
            tags_in_thinking=self.world.cfg.model.tags_in_thinking,
            ends=self.world.cfg.model.stop,
        )
        return Request(
            prompt_ids=ids,
            params=params,
            key=key_data(self.world.cfg.seed, self.step, *place),
            group=group,
            max_turns=agent.max_turns,
            respond=None if respond is None else joiner.responder(respond, messages),
            max_prompt_tokens=self._shorter(agent.max_prompt_tokens, 1),
            max_response_tokens=self._shorter(sampling.max_response_tokens, len(ids)),
            policy=self.world.sampler.named(agent.policy),
            picks=not self.exam and agent.policy != BASE,
            calls=lambda: calls.results.get(name, ()),
        )

    @contextmanager
    def _naming(self, role: str, policy: str) -> Iterator[None]:
        """Adds step, role and policy to the sentence about a model that computes NaN or infinity."""
        try:
            yield
        except NonFiniteError as error:
            where = self.step if isinstance(self.step, str) else f"step {self.step + 1}"
            raise NonFiniteError(f"{where}, role {role!r}, policy {policy!r}: {error}") from error

    @property
    def _number(self) -> int | None:
        """The step that records belong to; None: that of the recording, as in an exam."""
        return None if isinstance(self.step, str) else self.step + 1

    def each(self, name: str, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        def part(items: list[Any]) -> list[Any]:
            return [work(item) for item in items]

        with self.world.activity(f"{name} of {len(items)}"):
            return self.world.recording.answers(self._number, f"each {name}", items, part, again=True)

    def once(self, name: str, work: Callable[[], Any]) -> Any:
        return self.world.recording.answers(self._number, f"once {name}", [None], lambda _: [work()], again=True)[0]

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
        with self.world.activity(f"searching for {len(queries)} queries"):
            return divided(self.world.search, queries, [1.0] * len(queries))

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
        def replies(part: list[Any]) -> list[Any]:
            return [asdict(reply) for reply in self._judge(by)(part, temperature=temperature, max_tokens=max_tokens)]

        limits = f"judge {by} {temperature} {max_tokens}"
        with self.world.activity(f"asking {by} {len(messages)} questions"):
            answers = self.world.recording.answers(self._number, limits, messages, replies, len, again=True)
        return [Reply(**answer) for answer in answers]

    def compare_math(self, comparisons: Sequence[Comparison], seconds: float = SECONDS) -> list[Verdict]:
        def verdicts(part: list[Any]) -> list[Verdict]:
            return self.world.math.verdicts([Comparison(text, tuple(golds)) for text, golds in part], seconds)

        items = [[each.prediction, [*each.golds]] for each in comparisons]
        with self.world.activity(f"comparing {len(items)} mathematical answers"):
            return self.world.recording.answers(self._number, "math", items, verdicts)

    def encode(
        self, messages: Sequence[Mapping[str, Any]], first: int = 0, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[Datum, ...]:
        return given_rows(self.world.joiner, self.world.tokenizer, messages, first, tools)

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
        with self.world.activity(f"scoring {len(rows)} rows by {by}"):
            return self.world.scoring.score(by, rows, temperature)

    def probe(self, by: str) -> str:
        def problem() -> str:
            try:
                self._judge(by).probe()
            except Unreachable as error:
                return str(error)
            return ""

        items = list(range(distributed.count()))  # one for each process
        problems = self.world.recording.answers(
            self._number, f"probe {by}", items, lambda part: [problem() for _ in part], again=True
        )
        return next(filter(None, problems), "")

    def tell(self, sentence: str) -> None:
        if self.world.tell is not None:
            self.world.tell(sentence)

    def _judge(self, name: str) -> JudgeClient:
        if name not in self.world.judges:
            raise JudgeError(f"the game asks {name!r} but the card has no table with its endpoint; add one.")
        return self.world.judges[name]


def _check_names(role: str, rollouts: Sequence[Rollout]) -> None:
    if len({rollout.name for rollout in rollouts}) != len(rollouts):
        raise ValueError(f"two rollouts of role {role!r} have the same name; give each its own.")


def _in_groups(flat: Sequence[T], samples: int) -> list[list[T]]:
    return [list(flat[first : first + samples]) for first in range(0, len(flat), samples)]
