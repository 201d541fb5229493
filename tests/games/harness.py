"""Scripted tools and a small SSP game for golden transcripts; one character is one token."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scope_jax.config import Config, EvalSet, SamplingSection
from scope_jax.data.keys import rng
from scope_jax.data.rows import Row
from scope_jax.evaluation.measuring import ExamSet
from scope_jax.games import parse_config
from scope_jax.grading.math_answers import SECONDS, Comparison, Verdict
from scope_jax.grading.mathematics.worker import compare
from scope_jax.learner.types import Datum, Episode, Metrics, Reply
from scope_jax.play import searching
from scope_jax.play.driver import EpisodeContext, InteractionDriver
from scope_jax.play.game import Game
from scope_jax.play.game import play_step as game_step
from scope_jax.play.rollouts import Groups, Interaction, Leg, sample_name
from scope_jax.play.step import Memory
from scope_jax.play.tool_calls import SEARCH_NAME, Tool
from scope_jax.play.tool_execution import Execution, RolloutCalls, run_batches, tools_of
from scope_jax.play.tool_responder import stops_of, tool_responder
from scope_jax.play.tools import Agent, Rollout, Tools
from scope_jax.play.turns import Joiner, Mode
from scope_jax.retrieval.search import NOTHING_FOUND
from scope_jax.rollouts.scripted import ScriptedRollouts
from scope_jax.rollouts.types import Completion, Request, SamplingParams, Turn
from scope_jax.run.recording import Recording
from scope_jax.text import dialects, parsing
from scope_jax.text.messages import Messages

CALLS = 'Calls stand in <tool_call>, <function=, <function_calls> or "parameters".'
EOS = 3  # not a printable character
ROLES = {
    "user": 14,
    "assistant": 15,
    "tool": 16,
    "environment": 17,
    "system": 18,
    "tools": 19,
    "ipython": 20,
}  # nor are these


class Characters:
    """A tokenizer with one token per character."""

    eos_ids = (EOS,)

    def encode(self, text: str, forbid: Collection[str] = ()) -> list[int]:
        return [*map(ord, text)]

    def decode(self, ids: Any) -> str:
        return "".join(chr(int(token)) for token in ids)

    def token_bytes(self, id: int) -> bytes:
        return chr(id).encode()

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> list[int]:
        """Each message: a character for its role, the content, the end token. Tool declarations come first."""
        declared = {"role": "tools", "content": f"{json.dumps(tools)} {CALLS}"}
        messages = [*([declared] if tools else []), *messages]
        ids = [i for m in messages for i in (ROLES[m["role"]], *self.encode(m["content"]), EOS)]
        return [*ids, ROLES["assistant"]] if add_generation_prompt else ids

    def continuation(
        self,
        messages_before: Sequence[Mapping[str, Any]],
        observation: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> list[int]:
        """What encode_chat writes after the content of the last message."""
        return [EOS, *self.encode_chat(observation, **options)]


def sampled_turn(text: str, finish: str = "stop", opened: bool = False) -> Turn:
    """A turn sampled by a policy, one token per character."""
    ids = np.asarray(Characters().encode(text) + ([EOS] if finish == "eos" else []), np.int32)
    logprobs = np.zeros(len(ids), np.float32)
    return Turn("sampled", ids, logprobs, text, finish, opened=opened, thought=parsing.THOUGHT)


@dataclass(frozen=True)
class TurnContext:
    """What a scripted policy knows when it writes a turn."""

    role: str
    name: str
    sample: int
    prompt: str
    turns: tuple[Turn, ...]

    @property
    def turn(self) -> int:
        return sum(turn.kind == "sampled" for turn in self.turns)


Script = Callable[[TurnContext], str]


@dataclass
class ScriptedTools:
    """`Tools` with scripted policies, a table of search results and a scripted judge; records all requests."""

    script: Script
    results: Mapping[str, str] = field(default_factory=dict)
    judge_reply: Callable[[str], str] = lambda message: "Wrong"
    dialect: str = "xml"
    turns: Mode = "raw"
    tags_in_thinking: bool = False
    codec: Characters = field(default_factory=Characters)
    asked: list[tuple[str, str, int]] = field(default_factory=list)  # role, prompt name, samples
    prompts: dict[tuple[str, str], str] = field(default_factory=dict)
    searched: list[str] = field(default_factory=list)
    judged: list[str] = field(default_factory=list)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)  # the latest of each role
    known_policies: Sequence[str] = ("actor",)  # policies that may be sampled
    known_judges: Sequence[str] = ("judge",)  # external models that may be used
    data: Sequence[Mapping[str, Any]] = ()  # one epoch of the data stream; every epoch is in this order
    given: Sequence[Mapping[str, Any]] | None = None  # what every call of `rows` returns instead of the stream
    taken: list[tuple[int, int]] = field(default_factory=list)  # (first, count) of every call of `rows`
    told: list[str] = field(default_factory=list)
    compared: list[Comparison] = field(default_factory=list)
    record: Any = None  # of every rollout's calls; None: nothing is known or kept
    toolbox: Mapping[str, Tool] = field(default_factory=dict)  # the game's tools by name

    def rows(self, first: int, count: int) -> list[Row]:
        self.taken.append((first, count))
        if self.given is not None:
            return [dict(row) for row in self.given]
        return [dict(self.data[place % len(self.data)]) for place in range(first, first + count)]

    def prompt_tokens(self, messages: Messages) -> int:
        return len(self.encoded(messages))

    def encoded(self, messages: Messages) -> tuple[int, ...]:
        if self.turns == "raw":
            return tuple(map(ord, messages.text))
        return tuple(Joiner(self.turns, self.codec, dialects.load(self.dialect)).prompt(messages))

    def play(self, role: str, rollouts: Sequence[Rollout], agent: Agent, samples: int = 1) -> list[list[Completion]]:
        if not rollouts:
            return []
        assert len({rollout.name for rollout in rollouts}) == len(rollouts), "names must differ within a call"
        if any(tool != SEARCH_NAME for tool in agent.tools):
            groups = self.interact(role, rollouts, {"agent": agent}, samples)
            return [[each.completions["agent"] for each in group] for group in groups]
        encoded = {r.name: r.prompt_ids or self.encoded(r.messages) for r in rollouts}
        for name, ids in encoded.items():
            key = (role, name)
            assert key not in self.prompts, f"{key} was used twice in a step"
            self.asked.append((role, name, samples))
            self.prompts[key] = "".join(map(chr, ids))
        assert agent.policy in self.known_policies
        joiner = Joiner(self.turns, self.codec, dialects.load(self.dialect))
        known = tools_of(agent.tools, {SEARCH_NAME: searching.search_tool(self.search, joiner.dialect)})
        agent = replace(agent, stop=stops_of(agent, known, joiner))
        sampling = agent.sampling
        self.agents[role] = agent
        self.options[role] = {
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "stop": agent.stop,
        }
        return [
            [
                self._play(
                    self._request(agent, encoded[rollout.name], rollout.name, respond), role, rollout.name, sample
                )
                for sample in range(samples)
            ]
            for rollout in rollouts
            for respond in [self._responder(agent, known, joiner, rollout)]
        ]

    def _responder(self, agent: Agent, tools: Sequence[Tool], joiner: Joiner, rollout: Rollout) -> Any:
        """What answers the turns of an agent that may search."""
        if not tools:
            return None
        respond = tool_responder("agent", agent, tools, run_batches, joiner, rollout.remark)
        return joiner.responder(respond, rollout.messages)

    def _request(self, agent: Agent, ids: Any, group: str, respond: Any) -> Request:
        sampling = agent.sampling
        limits = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.max_tokens)
        params = SamplingParams(
            *(*limits, agent.stop, Characters.eos_ids, agent.tempered),
            thought=parsing.THOUGHT,
            tags_in_thinking=self.tags_in_thinking,
        )
        responses = agent.max_prompt_tokens, sampling.max_response_tokens
        return Request(ids, params, None, group, agent.max_turns, respond, *responses)

    def interact(
        self, role: str, rollouts: Sequence[Rollout], agents: Mapping[str, Agent], samples: int = 1
    ) -> list[list[Interaction]]:
        return [[self._interact(role, rollout, agents, sample) for sample in range(samples)] for rollout in rollouts]

    def chains(self, agents: Mapping[str, Agent], legs: Sequence[Callable[[], Leg]]) -> list[list[Groups]]:
        """In rounds: what all legs ask alike is one call of `play`."""
        under_way = dict(enumerate(leg() for leg in legs))
        wanted = {place: next(leg) for place, leg in under_way.items()}
        results: list[list[Groups]] = [[] for _ in legs]
        while wanted:
            first = next(iter(wanted.values()))
            same = {n: one for n, one in wanted.items() if (one.role, one.samples) == (first.role, first.samples)}
            rollouts = [rollout for one in same.values() for rollout in one.rollouts]
            groups = iter(self.play(first.role, rollouts, first.agent, first.samples))
            for place, one in same.items():
                results[place].append([next(groups) for _ in one.rollouts])
                try:
                    wanted[place] = under_way[place].send(results[place][-1])
                except StopIteration:
                    del wanted[place]
        return results

    def _interact(self, role: str, rollout: Rollout, agents: Mapping[str, Agent], sample: int) -> Interaction:
        joiner = Joiner(self.turns, self.codec, dialects.load(self.dialect))
        execution = Execution(self.codec.encode, self.codec.decode, self.told.append, 8)
        place = role, rollout.name, sample
        record = self.record or Recording().calls(0, *place)
        calls = RolloutCalls(execution, lambda tool: rng("tool", *place, tool), record)
        context = EpisodeContext(rollout.name, sample, lambda: rng("rollout", *place), calls, self.toolbox)

        def request(of: str, messages: Messages, number: int) -> Request:
            name = sample_name(of, number)
            agent, tools = agents[of], tools_of(agents[of].tools, self.toolbox)
            self.prompts[role, f"{rollout.name} {name}"] = messages.text
            respond = None
            if tools:
                agent = replace(agent, stop=stops_of(agent, tools, joiner))
                messages = replace(messages, tools=tuple(tool.schema for tool in tools))
                respond = tool_responder(name, agent, tools, calls.run, joiner, rollout.remark)
            answer = None if respond is None else joiner.responder(respond, messages)
            row = self._request(agent, self.encoded(messages), rollout.name, answer)
            return replace(row, calls=lambda: calls.results.get(name, ()))

        def speak(prompt: str, turns: tuple[Turn, ...]) -> str:
            return self.script(TurnContext(role, rollout.name, sample, prompt, turns))

        driver = InteractionDriver(rollout, agents, context, joiner, request)
        script = ScriptedRollouts(speak, self.codec, max_length=100_000)
        interaction = script.interaction(driver)
        script.interact([interaction])
        return driver.result(interaction.completions())

    def each(self, name: str, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return [work(item) for item in items]

    def once(self, name: str, work: Callable[[], Any]) -> Any:
        return work()

    def _play(self, request: Request, role: str, name: str, sample: int) -> Completion:
        """One scripted episode; sampled tokens have the log-prob −0.5."""

        def script(prompt: str, turns: tuple[Turn, ...]) -> str:
            return self.script(TurnContext(role, name, sample, prompt, turns))

        (completion,) = ScriptedRollouts(script, Characters(), max_length=100_000).run([request])
        rows = [replace(r, logprobs_T=np.where(r.sampled_T, -0.5, 0.0).astype(np.float32)) for r in completion.rows]
        return replace(completion, rows=tuple(rows))

    def search(self, queries: Sequence[str]) -> list[str]:
        self.searched += queries
        return [parsing.neutralise(self.results.get(query, NOTHING_FOUND)) for query in queries]

    def tokens(self, text: str) -> int:
        return len(text)

    def judge(
        self,
        messages: Sequence[str],
        *,
        by: str = "judge",
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> list[Reply]:
        assert by in self.known_judges
        self.judged += messages
        return [Reply(self.judge_reply(message)) for message in messages]

    def compare_math(self, comparisons: Sequence[Comparison], seconds: float = SECONDS) -> list[Verdict]:
        self.compared += comparisons
        return [compare(*comparison) for comparison in comparisons]

    def encode(
        self, messages: Sequence[Mapping[str, Any]], first: int = 0, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[Datum, ...]:
        raise AssertionError("scripted games encode no conversations")

    def score(self, by: str, rows: Sequence[Datum], **options: Any) -> list[np.ndarray]:
        """Every sampled token has the log-prob −1."""
        return [np.full(int(row.sampled_T.sum()), -1.0, np.float32) for row in rows]

    def probe(self, by: str) -> str:
        assert by in self.known_judges
        return ""

    def tell(self, sentence: str) -> None:
        self.told.append(sentence)


def search_responder(search: Any, dialect: dialects.Dialect, mode: Mode = "raw", **fields: Any) -> Any:
    """What responds to the turns of an agent that searches and ends with <answer>. fields: of `Agent`."""
    agent = replace(searching.with_searches(Agent("actor", SamplingSection()), "answer"), **fields)
    tools = (searching.search_tool(search, dialect),)
    return tool_responder("agent", agent, tools, run_batches, Joiner(mode, Characters(), dialect))


def play_step(
    game: Game,
    cfg: Config,
    tools: ScriptedTools,
    memory: Memory,
    items: Sequence[Mapping[str, Any]],
    step: int,
) -> tuple[list[Episode], Memory, Metrics]:
    """One step of a game on these rows, regardless of the position in the data stream."""
    tools.given = items
    return game_step(game, cfg, tools, memory, step)


def doc(number: int, title: str, text: str) -> str:
    return f'Doc {number} (Title: "{title}")\n{text}'


def result(*documents: tuple[str, str]) -> str:
    return "\n\n".join(doc(number, *document) for number, document in enumerate(documents, 1))


LONG = {"max_prompt_tokens": 20_000}  # prompts are in characters


def card(*, seed: int = 0, **ssp: Any) -> Config:
    """A small card with exact match as grader; `ssp` goes into its [ssp] table, `judge_table` adds a [judge]."""
    extra = {"judge": ssp.pop("judge_table")} if "judge_table" in ssp else {}
    data = ssp.pop("data", {})
    proposer = LONG | ssp.pop("proposer", {})
    solver = LONG | {"samples": 2} | ssp.pop("solver", {})
    table = {
        "system": "ssp",
        "seed": seed,
        "model": {"checkpoint": "none"},
        "retrieval": {"corpus": "none"},
        "data": {"answers": "none", **data},
        "train": {"steps": 1},
        "ssp": {"grader": "exact-match", "proposer": proposer, "solver": solver, **ssp},
        **extra,
    }
    return parse_config(table, "the test's card")


# ----------------------------------------------------------------------------------------- four capitals on four rivers
ITEMS: list[dict[str, Any]] = [
    {"answers": ["Paris"], "searches": None},
    {"answers": ["Rome", "Roma", "the Eternal City"], "searches": None},
    {"answers": ["Cairo"], "searches": None},
    {"answers": ["Vienna"], "searches": None},
]
RIVERS = ("Seine", "Tiber", "Nile", "Danube")
RESULTS = {
    "Seine": result(("Paris", "Paris lies on the Seine."), ("Seine", "A river of France."), ("Rouen", "A port.")),
    "Tiber": result(("Rome", "Rome lies on the Tiber."), ("Tiber", "A river of Italy.")),
    "Nile": result(("Cairo", "Cairo lies on the Nile."), ("Nile", "A river of Egypt.")),
    "Danube": result(("Vienna", "Vienna lies on the Danube."), ("Danube", "A river with four capitals.")),
}


def question_about(item: int) -> str:
    return f"Which capital lies on the river {RIVERS[item]}?"


def good_proposal(item: int) -> list[str]:
    return [f"<think>a</think> <search>{RIVERS[item]}</search>", f"<question>{question_about(item)}</question>"]


@dataclass
class Plan:
    """Scripted texts. By default all roles play well, except that odd samples of the solver answer London."""

    proposals: dict[str, list[str]] = field(default_factory=dict)  # by prompt name: one text per turn
    sampled: dict[tuple[str, int], list[str]] = field(default_factory=dict)  # the same for one sample of a prompt
    replies: dict[str, str] = field(default_factory=dict)  # verification replies, by question
    solutions: dict[str, list[list[str]]] = field(default_factory=dict)  # by question: turns of each sample

    def __call__(self, ctx: TurnContext) -> str:
        if ctx.role == "proposer":
            name = ctx.name
            item = int(name.split()[1] if name.startswith("slot") else name)
            turns = self.sampled.get((name, ctx.sample)) or self.proposals.get(name) or good_proposal(item)
            return turns[ctx.turn]
        asked = [item for item in range(4) if question_about(item) in ctx.prompt]
        known = [question for question in (*self.replies, *self.solutions) if question in ctx.prompt]
        if ctx.role == "verify":
            right = f"It is written there. Answer: {ITEMS[asked[0]]['answers'][0]}" if asked else "Answer: none"
            return next((self.replies[question] for question in known if question in self.replies), right)
        planned = next((self.solutions[question] for question in known if question in self.solutions), None)
        if planned is not None:
            return planned[ctx.sample][ctx.turn]
        if not asked or ctx.sample % 2:
            return "<answer>London</answer>"
        return [f"<search>{RIVERS[asked[0]]}</search>", f"<answer>{ITEMS[asked[0]]['answers'][0]}</answer>"][ctx.turn]


# Dialects with tags around calls.
TAGGED = [name for name in dialects.names() if name != "llama" and not dialects.load(name).structured]


def opening(dialect: dialects.Dialect) -> str:
    """The opening tag of a search."""
    return f"<{dialect.tag('search')}>"


def closing(dialect: dialects.Dialect) -> str:
    """The closing tag of a search."""
    return dialect.stops("search")[0]


def example(dialect: dialects.Dialect) -> str:
    """What prompts say a search looks like."""
    return dialect.example("search", "query")


def in_dialect(name: str, script: Script) -> Script:
    """The script with its searches rewritten in a dialect."""
    dialect = dialects.load(name)

    def rewritten(ctx: TurnContext) -> str:
        text = script(ctx)
        for query in parsing.spans(text, "search"):
            text = text.replace(f"<search>{query}</search>", searching.written_search(query, dialect))
        return text

    return rewritten


def world(plan: Script | None = None, **changes: Any) -> ScriptedTools:
    return ScriptedTools(plan or Plan(), RESULTS, **changes)


def run_exam(game: Game, cfg: Config, tools: Tools, rows: Sequence[Mapping[str, Any]], **changes: Any) -> list[Any]:
    """Records of an exam, greedy and with short turns unless `changes` overrides it."""
    one = EvalSet(**{"name": "exam", "path": "none", "temperature": 0.0, "max_tokens": 99} | changes)
    ready = ExamSet(cfg, game.exam_of(cfg), one, rows)
    return ready.records(tools, ready.answers(tools))


def plain(episodes: Sequence[Any]) -> list[dict[str, Any]]:
    """Episodes as plain data, for comparisons."""
    return [
        {
            "role": e.role,
            "group": e.group,
            "reward": e.reward,
            "parts": dict(e.parts),
            "trained": e.trained,
            "text": dict(e.text),
            "rows": [(d.ids_T.tolist(), d.sampled_T.tolist(), d.logprobs_T.tolist()) for d in e.datums],
        }
        for e in episodes
    ]


def episodes_of(episodes: Sequence[Any], role: str) -> list[Any]:
    return [episode for episode in episodes if episode.role == role]
