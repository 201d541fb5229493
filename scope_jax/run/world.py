"""What a game plays in: a `World`, and `StepTools`, the tools that the game gets of it in one step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

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
from scope_jax.play.chains import ChainDriver
from scope_jax.play.conversations import given_rows
from scope_jax.play.driver import EpisodeContext, InteractionDriver, is_whole
from scope_jax.play.failures import check_failures
from scope_jax.play.game import Game, Memory, services_of
from scope_jax.play.rollouts import Agent, Groups, Interaction, Leg, Rollout, RolloutRequest, sample_name
from scope_jax.play.tool_calls import Tool
from scope_jax.play.tool_execution import Execution, RolloutCalls, tools_of
from scope_jax.play.tool_responder import check_answered
from scope_jax.play.turns import Joiner, Mode
from scope_jax.retrieval.search import SearchTool
from scope_jax.rollouts.flight import FlightRollouts
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.tools import BatchedTool
from scope_jax.rollouts.types import Completion, NonFiniteError, Request, RolloutError
from scope_jax.run.activity import Activity
from scope_jax.run.playing import PlayCall, Playing, PlayPart
from scope_jax.run.processes import check_caller, divided
from scope_jax.run.recording import Recording
from scope_jax.run.requests import AgentRequests
from scope_jax.run.sampler import Sampler
from scope_jax.run.scoring import Scoring
from scope_jax.text.messages import Messages

Tell = Callable[[str], None]
ONLY = "agent"  # the name of the agent of `play`
NO_SEARCH = "the game searches but the card has no [retrieval] table; add one with corpus or url."


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
        return self.game.over(self.cfg, memory, step)

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

    @cached_property
    def _execution(self) -> Execution:
        """That of the calls of tools in this step."""
        return self.world.execution.another()

    def rows(self, first: int, count: int) -> list[sources.Row]:
        return sources.items(self.world.rows, first, count, self.world.cfg.seed)

    def prompt_tokens(self, messages: Messages) -> int:
        return len(self.world.joiner.prompt(messages))

    def play(self, role: str, rollouts: Sequence[Rollout], agent: Agent, samples: int = 1) -> list[list[Completion]]:
        check_alone(role, rollouts)
        groups = self.interact(role, rollouts, {ONLY: agent}, samples)
        return [[each.completions[ONLY] for each in group] for group in groups]

    def interact(
        self, role: str, rollouts: Sequence[Rollout], agents: Mapping[str, Agent], samples: int = 1
    ) -> list[list[Interaction]]:
        check_caller()
        check_rollouts(role, rollouts, agents, samples, self.world.joiner.mode)
        if not rollouts:
            return []
        speakers = {name: self._speaker(name, agent) for name, agent in agents.items()}
        prompts = next(iter(speakers.values())).prompts(rollouts)
        call = PlayCall(
            step=f"{self._place}, role {role!r}",
            rollouts=rollouts,
            samples=samples,
            prompts=prompts,
            tokens=sum(agent.max_turns * agent.sampling.max_tokens for agent in agents.values()),
            driver=partial(self._driver, role, agents, speakers, prompts),
        )
        policies = " and ".join(dict.fromkeys(agent.policy for agent in agents.values()))
        doing = "sampling" if len(prompts) == len(rollouts) else "playing"
        with self._naming(role, policies), self.world.activity(f"{doing} {role}"):
            groups = call.played(self._playing(agents))
        check_failures(role, groups)
        self.world.sampler.count([said for group in groups for each in group for said in each.completions.values()])
        return groups

    def chains(self, agents: Mapping[str, Agent], legs: Sequence[Callable[[], Leg]]) -> list[list[Groups]]:
        check_caller()
        roles, policies = ", ".join(agents), dict.fromkeys(agent.policy for agent in agents.values())
        mode = self.world.joiner.mode

        def drivers(wanted: RolloutRequest) -> list[list[InteractionDriver]]:
            only = {ONLY: wanted.agent}
            check_alone(wanted.role, wanted.rollouts)
            check_rollouts(wanted.role, wanted.rollouts, only, wanted.samples, mode)
            if wanted.agent.policy not in policies:
                raise RolloutError(f"an item asks {wanted.role!r}, but only {roles} were named (Step.map).")
            speakers = {ONLY: self._speaker(ONLY, wanted.agent)}
            driver = partial(self._driver, wanted.role, only, speakers, speakers[ONLY].prompts(wanted.rollouts))
            return [
                [driver(each, number, f"{wanted.role} {each.name}") for number in range(wanted.samples)]
                for each in wanted.rollouts
            ]

        parts = [PlayPart(1.0, 1, lambda leg=leg: [ChainDriver(leg(), drivers)]) for leg in legs]
        what = f"{self._place}, {len(legs)} items of {roles}"
        with self._naming(roles, " and ".join(policies)), self.world.activity(f"playing {roles}"):
            results: list[list[Groups]] = [one for (one,) in self._playing(agents).results(what, parts)]
        self.world.sampler.count([each for given in results for groups in given for group in groups for each in group])
        return results

    def _playing(self, agents: Mapping[str, Agent]) -> Playing:
        """Where rollouts of these agents are played: steps that overlap have an engine of their own."""
        weights: dict[str, str] = {}
        for agent in agents.values():
            weights.setdefault(self.world.sampler.weights(agent.policy), agent.policy)
        local = self.world.local
        if self._number is None or not isinstance(local, FlightRollouts):
            return Playing(weights, local, self.world.sampler.use)
        return Playing(weights, local.seat(self._number), lambda policy: None)

    def _speaker(self, name: str, agent: Agent) -> AgentRequests:
        world = self.world
        return AgentRequests(
            name,
            agent,
            tools_of(agent.tools, world.toolbox),
            cfg=world.cfg,
            joiner=world.joiner,
            eos_ids=world.tokenizer.eos_ids,
            sampler=world.sampler,
            exam=self.exam,
        )

    def _driver(
        self,
        role: str,
        agents: Mapping[str, Agent],
        speakers: Mapping[str, AgentRequests],
        prompts: Mapping[str, tuple[int, ...]],
        rollout: Rollout,
        sample: int,
        group: str,
    ) -> InteractionDriver:
        """That of a sample of a rollout. group: the name of the first of those with an equal prompt."""
        place = (role, rollout.name, sample)
        where = (self.world.cfg.seed, self.step, *place)
        calls = self._calls(place)
        context = EpisodeContext(rollout.name, sample, partial(rng, "rollout", *where), calls, self.world.toolbox)
        known = prompts.get(rollout.name)

        def request(name: str, messages: Messages, number: int) -> Request:
            named = () if len(agents) == 1 and number == 0 else (name,)
            key = (*where, *named, *([number] if number else []))
            ids = speakers[name].prompt(messages) if known is None else known
            whose = sample_name(name, number)
            shared = None if known is None else group
            request = speakers[name].request(rollout, messages, ids, key, calls, whose, shared)
            return replace(request, name=(*place, whose))

        return InteractionDriver(rollout, agents, context, self.world.joiner, request)

    def _calls(self, place: tuple[str, str, int]) -> RolloutCalls:
        """The calls of tools in one sample of a rollout. place: role, rollout and sample."""
        where = (self.world.cfg.seed, self.step, *place)
        role, rollout, sample = place
        name = role if self._number is not None else f"{self.step}: {role}"  # several exams follow one step
        record = self.world.recording.calls(self._number, name, rollout, sample)
        return RolloutCalls(self._execution, lambda tool: rng("tool", *where, tool), record)

    @contextmanager
    def _naming(self, role: str, policy: str) -> Iterator[None]:
        """Adds step, role and policy to the sentence about a model that computes NaN or infinity."""
        try:
            yield
        except NonFiniteError as error:
            raise NonFiniteError(f"{self._place}, role {role!r}, policy {policy!r}: {error}") from error

    @property
    def _place(self) -> str:
        return self.step if isinstance(self.step, str) else f"step {self.step + 1}"

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

    def search(self, queries: Sequence[str]) -> list[str]:
        search, card = self.world.search, self.world.cfg.retrieval
        if search is None:
            raise UserError(NO_SEARCH)
        with self.world.activity(f"searching for {len(queries)} queries"):
            if card is not None and card.url is not None:
                return self.world.recording.answers(self._number, "search", queries, search)
            return divided(search, queries, [1.0] * len(queries), f"{self._place}, searches")

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
        check_judge(name, self.world.judges)
        return self.world.judges[name]


def check_judge(name: str, judges: Collection[str]) -> None:
    """Raises JudgeError unless there is an external model of this name."""
    if name not in judges:
        raise JudgeError(f"the game asks {name!r} but the card has no table with its endpoint; add one.")


def check_alone(role: str, rollouts: Sequence[Rollout]) -> None:
    """Raises UserError for a rollout with a generator."""
    if asking := [rollout.name for rollout in rollouts if rollout.play is not None]:
        raise UserError(f"the rollout {asking[0]!r} of role {role!r} has a generator; play it by step.interact.")


def check_rollouts(
    role: str, rollouts: Sequence[Rollout], agents: Mapping[str, Agent], samples: int, mode: Mode
) -> None:
    """Raises UserError for rollouts that cannot be played."""
    for name, agent in agents.items():
        check_answered(role if name == ONLY else name, agent, mode)
    if len({rollout.name for rollout in rollouts}) != len(rollouts):
        raise UserError(f"two rollouts of role {role!r} have the same name; give each its own.")
    if not is_whole(samples) or samples < 1:
        raise UserError(f"role {role!r} is asked for samples={samples!r}; give a whole number from 1 on.")
    if not agents:
        raise UserError(f"the rollouts of role {role!r} have no agent; name at least one role.")
    if len(agents) > 1 and (silent := [rollout.name for rollout in rollouts if rollout.play is None]):
        raise UserError(
            f"the rollout {silent[0]!r} of role {role!r} has no generator, which says whom of {', '.join(agents)} it "
            "asks; give it one (Rollout.play)."
        )
