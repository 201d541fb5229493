"""The ids of a training row are exactly those that the engine read and sampled, in every turn mode.

The real engine's operations are recorded: what it prefilled, what was appended, which token it sampled in which slot.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner import batching
from scope_jax.learner.learner import Learner
from scope_jax.learner.types import Datum, Episode
from scope_jax.play.turns import Cut, Joiner, Mode
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.types import Completion, Request
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.text import dialects
from scope_jax.text.messages import Messages
from tests.rollouts.world import CFG, ENGINE, EOS, ByteTokenizer, make_engine, make_params, sampling

ROLES = {"user": 257, "assistant": 258, "tool": 259, "environment": 259, "ipython": 259}
# Not those of which a call is a whole message, or needs special tokens.
DIALECTS = [name for name in dialects.names() if name != "llama" and not dialects.load(name).structured]
EXPLAINED = '<tool_call> <function_calls> <function= "parameters"'  # the calls of every dialect
MODES: tuple[Mode, ...] = ("raw", "chat", "chat-trimmed")
MAX_TOKENS = 12  # of a turn


class ByteChat(ByteTokenizer):
    """Bytes with a chat template: a special token for each role, the content, the end token."""

    def encode(self, text: str, forbid: Collection[str] = ()) -> list[int]:
        return super().encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return super().decode(id for id in ids if id != EOS)

    def encode_chat(self, messages, add_generation_prompt: bool = True, tools: Any = None, **options: Any) -> list[int]:
        declared = self.encode(f"{EXPLAINED} {json.dumps(tools)}") if tools else []
        ids = [i for m in messages for i in (ROLES[m["role"]], *self.encode(m["content"]), EOS)]
        return [*declared, *ids, ROLES["assistant"]] if add_generation_prompt else ids

    def continuation(self, messages_before, observation, **options: Any) -> list[int]:
        return [EOS, *self.encode_chat(observation)]


@dataclass
class Sequence:
    """The contents of one slot from one insertion to the next."""

    ids: list[int]
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sampled, self.logprobs = [False] * len(self.ids), [0.0] * len(self.ids)

    def add(self, ids: list[int], sampled: bool, logprobs: list[float]) -> None:
        self.ids += ids
        self.sampled += [sampled] * len(ids)
        self.logprobs += logprobs

    def holds(self, datum: Datum, dropped: int) -> bool:
        """True if the datum equals this sequence, up to one dispatch and `dropped` sampled tokens at its end."""
        count = len(datum.ids_T)
        rest = self.sampled[count:]
        return (
            self.ids[:count] == datum.ids_T.tolist()
            and self.sampled[:count] == datum.sampled_T.tolist()
            and np.asarray(self.logprobs[:count], np.float32).tobytes() == datum.logprobs_T.tobytes()
            and all(rest)
            and len(rest) < ENGINE.decode_steps + dropped
        )


class RecordingEngine(Engine):
    """Records the operations of the engine that it wraps."""

    def __init__(self, engine: Engine) -> None:
        vars(self).update(vars(engine))
        self.sequences: list[Sequence] = []
        self._slots: dict[int, Sequence] = {}

    def insert(self, state: Any, placements: Any) -> Any:
        for placement in placements:
            self._slots[placement.slot] = Sequence([int(id) for id in placement.prompt])
            self.sequences.append(self._slots[placement.slot])
        return super().insert(state, placements)

    def extend(self, state: Any, extensions: Any) -> Any:
        for extension in extensions:
            sequence = self._slots[extension.slot]
            kept = extension.length + 1  # the first id of an extension is the last that was sampled
            assert sequence.ids[extension.length] == extension.ids[0]
            for values in (sequence.ids, sequence.sampled, sequence.logprobs):
                del values[kept:]
            sequence.add(list(extension.ids[1:]), False, [0.0] * (len(extension.ids) - 1))
        return super().extend(state, extensions)

    def generate(self, params: Any, state: Any, *limits: Any) -> Any:
        state, result = super().generate(params, state, *limits)
        read = jax.device_get(result)
        for slot, count in enumerate(read.counts_S.tolist()):
            if count:
                tokens, logprobs = read.tokens_NS[:count, slot], read.logprobs_NS[:count, slot]
                self._slots[slot].add(tokens.tolist(), True, logprobs.tolist())
        return state, result


@pytest.fixture(scope="module")
def params():
    return make_params()


@pytest.fixture(scope="module")
def engine():
    return make_engine()


@dataclass(frozen=True)
class Plan:
    """The random choices for an episode."""

    prompt: str
    mode: Mode
    dialect: str
    turns: int
    stops: str
    results: tuple[str, ...]  # search results, one per turn; then the episode ends
    nudged: int  # the turn that gets a message instead of results
    key: int
    end: int | None = None  # characters of a turn that are kept, the others are dropped

    def request(self) -> Request:
        dialect = dialects.load(self.dialect)

        def respond(turns) -> str | Cut | None:
            number = sum(turn.kind == "sampled" for turn in turns) - 1
            if number >= len(self.results):
                return None
            text = "Search once more." if number == self.nudged else dialect.observation([self.results[number]])
            return text if self.end is None else Cut(self.end, text)

        joiner = Joiner(self.mode, ByteChat(), dialect)
        ids = (
            list(self.prompt.encode())
            if self.mode == "raw"
            else ByteChat().encode_chat([{"role": "user", "content": self.prompt}])
        )
        return Request(
            prompt_ids=ids,
            params=sampling(stop=tuple(self.stops), max_tokens=MAX_TOKENS),
            key=np.asarray([3, self.key], np.uint32),
            group=None,
            max_turns=self.turns,
            respond=joiner.responder(respond, Messages(self.prompt)),
        )


text = st.text(st.characters(codec="utf-8", exclude_characters="<>"), max_size=8)
plans = st.builds(
    Plan,
    prompt=text.map("Q{}".format),
    mode=st.sampled_from(MODES),
    dialect=st.sampled_from(DIALECTS),
    turns=st.integers(1, 5),
    stops=st.sampled_from(["", "abcdefghijklmnopqrstuvwxyz", "".join(map(chr, range(128)))]),
    results=st.lists(text, max_size=5).map(tuple),
    nudged=st.integers(0, 9),
    key=st.integers(0, 2**31),
    end=st.none() | st.integers(1, MAX_TOKENS),
)


def play(engine: Any, params: Any, asked: list[Plan]) -> tuple[list[Completion], list[Sequence]]:
    watched: Any = RecordingEngine(engine)
    rollouts = LocalRollouts(watched, ByteChat(), seed=0, threads=4, ahead=False)
    rollouts.load_params(params)
    return rollouts.run([plan.request() for plan in asked]), watched.sequences


SLOW = [HealthCheck.too_slow]  # an engine step is slow


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=SLOW)
@given(asked=st.lists(plans, min_size=1, max_size=12))
def test_a_row_is_what_the_engine_read_and_sampled(engine, params, asked):
    completions, sequences = play(engine, params, asked)
    datums = [
        (datum, 0 if plan.end is None else MAX_TOKENS)
        for plan, completion in zip(asked, completions, strict=True)
        for datum in Datum.from_completion(completion)
    ]
    assert len(datums) == len(sequences)
    unmatched = list(sequences)
    for datum, dropped in datums:
        match = next((sequence for sequence in unmatched if sequence.holds(datum, dropped)), None)
        assert match is not None, "no slot of the engine held this row"
        unmatched = [sequence for sequence in unmatched if sequence is not match]
    for plan, completion in zip(asked, completions, strict=True):
        sampled = [turn for turn in completion.turns if turn.kind == "sampled"]
        assert len(completion.rows) == (len(completion.turns) - len(sampled) + 1 if plan.mode == "chat-trimmed" else 1)
        trained = [id for row in completion.rows for id in row.ids_T[row.sampled_T].tolist()]
        assert trained == [id for turn in sampled for id in turn.ids.tolist()]  # each sampled token once


@pytest.fixture(scope="module")
def many(engine, params) -> list[Completion]:
    """Episodes of every mode and dialect, all with several turns."""
    asked = [
        Plan(f"Q{i}", mode, name, 4, "".join(map(chr, range(40, 128))), ("one", "two", "three"), i, i, end)
        for mode in MODES
        for name in DIALECTS
        for i, end in enumerate((None, 1, 2))
    ]
    return play(engine, params, asked)[0]


def test_learner_and_engine_logprobs_agree(params, many):
    """Within 1e-4 in float32, over every sampled token of episodes with one row and with several."""
    assert {len(completion.rows) for completion in many} == {1, 4}  # every turn of chat-trimmed ones is a row
    assert sum(turn.finish == "cut" for completion in many for turn in completion.turns) > 9  # parts were dropped
    section = LearnerSection(buckets=(ENGINE.max_length,), packing=True, micro_batch_rows=4, logprob_chunk=64)
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    learner = Learner(CFG, mesh, OptimizerSection(), section, param_dtype=jnp.float32, compute_dtype=jnp.float32)
    episodes = [
        Episode("solver", "actor", "g", Datum.from_completion(completion), 0.0, advantage=1.0) for completion in many
    ]
    (batch,) = learner.pack(episodes, LossCard(kl="none"))
    scores = learner.score(learner.init_state(params, reference=False), batch, reference=False)
    assert scores.old_MN is not None
    engine_N = np.concatenate([d.logprobs_T[d.sampled_T] for e in episodes for d in e.datums])
    np.testing.assert_allclose(batching.unpack(batch, scores.old_MN), engine_N, atol=1e-4, rtol=0)
    assert int(jax.device_get(batch.first_MN).sum()) == len(many) and len(engine_N) > 200
