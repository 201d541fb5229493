"""The engine as a JetStream engine, `jetstream.engine.engine_api.Engine` of google-jetstream 0.2.2.

JetStream's orchestrators and servers drive an engine through these methods; each is a thin wrapper around ours.
Sampling parameters and key are carried by the prefix. A dispatch returns up to decode_steps tokens per slot, which
JetStream calls speculations. Members that became abstract on the archived main branch after 0.2.2 are implemented too,
so that the class can be instantiated under either; `prefill` returns what 0.2.2 expects, the prefix alone.

`grpc_server` offers the service of JetStream's stub on `OnlineRollouts`. JetStream's own orchestrator is not used: in
0.2.2 it ends the whole process on a bad prompt, on its own races and when a client cancels it keeps the slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import sys
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import grpc
import jax
import jax.numpy as jnp
import numpy as np

from scope_jax.errors import UserError
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.online import Done, Full, News, OnlineRollouts, Sampled, listener_in
from scope_jax.rollouts.paged_state import PagedState
from scope_jax.rollouts.slots import Placement
from scope_jax.rollouts.texts import TextStream
from scope_jax.rollouts.types import NonFiniteError, Request, RolloutError, SamplingParams, TextCodec


@contextlib.contextmanager
def _import_guard() -> Iterator[None]:
    """Replaces seqio by a placeholder while JetStream is imported (seqio would import TensorFlow for two class names);
    restores the root logger afterwards (JetStream sets it to DEBUG and adds a handler).
    """
    names = ("seqio", "seqio.vocabularies")
    before = {name: sys.modules.get(name) for name in names}
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    for name in names:
        module = types.ModuleType(name)
        vars(module).update(Vocabulary=type("Vocabulary", (), {}), SentencePieceVocabulary=type("Vocabulary", (), {}))
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
        root.setLevel(level)
        root.handlers[:] = handlers


with _import_guard():
    from flax import struct
    from jetstream.core.proto import jetstream_pb2
    from jetstream.core.proto import jetstream_pb2_grpc as proto_grpc
    from jetstream.engine import engine_api, tokenizer_api, tokenizer_pb2


@struct.dataclass
class LoggedTokens(engine_api.ResultTokens):
    """JetStream's result with log-probs: float32 bits in further int32 columns, so that one array goes to the host."""

    logprob_idx: tuple[int, int] = struct.field(pytree_node=False, default=(0, 0))

    def convert_to_numpy(self) -> LoggedTokens:
        """The same result on the host; the base class would drop the log-probs here."""
        return self.replace(data=np.asarray(self.data))  # type: ignore[attr-defined]

    def logprobs(self, slot: int) -> np.ndarray:
        """float32 [speculations]: log-probs of the slot's tokens; meaningless where not valid."""
        first, last = self.logprob_idx
        return np.ascontiguousarray(np.asarray(self.data)[slot, first:last]).view(np.float32)


@dataclass(frozen=True)
class SampledPrefix:
    """A prompt and how to sample from it: one key per sample."""

    prompt: np.ndarray
    params: SamplingParams
    keys: tuple[np.ndarray, ...]


class CountedState(NamedTuple):
    """The engine's state, and how many tokens of each slot are prompt."""

    state: PagedState
    prompt_S: np.ndarray


class JetStreamTokenizer(tokenizer_api.Tokenizer):
    """Our tokenizer under JetStream's interface."""

    def __init__(self, tokenizer: TextCodec, pad_id: int) -> None:
        self._tokenizer = tokenizer
        self._pad_id = pad_id

    def encode(self, s: str, **kwargs: Any) -> tuple[np.ndarray, int]:
        """(ids of plain text, their number); JetStream's padding options are ignored."""
        ids = np.asarray(self._tokenizer.encode(s), np.int32)
        return ids, len(ids)

    def decode(self, token_ids: Any, **kwargs: Any) -> str:
        return self._tokenizer.decode([int(id) for id in token_ids])

    @property
    def pad_id(self) -> int:
        return self._pad_id

    @property
    def eos_id(self) -> int:
        return self._tokenizer.eos_ids[0]

    @property
    def bos_id(self) -> int:
        return -1  # prompts are used as given, nothing is prepended

    @property
    def stop_tokens(self) -> set[int]:
        """End tokens only: the pad id may be a real token."""
        return set(self._tokenizer.eos_ids)


class JetStreamEngine(engine_api.Engine):
    """`engine_api.Engine` on top of ours. params: sampling parameters of requests that have none of their own."""

    def __init__(self, engine: Engine, tokenizer: TextCodec, pad_id: int, params: SamplingParams) -> None:
        self._engine = engine
        self._tokenizer = JetStreamTokenizer(tokenizer, pad_id)
        self._params = params

    def load_params(self, *args: Any, **kwargs: Any) -> Any:
        """The engine's copy of the stacked weights given as the only argument."""
        return self._engine.load_params(*args, **kwargs)

    def init_decode_state(self, *args: Any, **kwargs: Any) -> CountedState:
        return CountedState(self._engine.init_decode_state(), np.zeros(self._engine.config.slots, np.int32))

    def prefill(
        self,
        *,
        params: Any,
        existing_prefix: Any = None,
        padded_tokens: Any,
        true_length: int,
        sampling: SamplingParams | None = None,
        key: np.ndarray | None = None,
        **kwargs: Any,
    ) -> SampledPrefix:
        """A prefix of one prompt, which `generate` computes and whose first token, too, it samples.

        sampling, key: how this request is sampled, an extension of JetStream's interface; the default key is derived
        from the prompt.
        Raises ValueError for an existing_prefix: this engine has no chunked prefill.
        """
        return self.prefill_multisampling(
            params=params,
            existing_prefix=existing_prefix,
            padded_tokens=padded_tokens,
            true_length=true_length,
            sampling=sampling,
            key=key,
            num_samples=1,
        )

    def prefill_multisampling(
        self,
        *,
        params: Any,
        existing_prefix: Any = None,
        padded_tokens: Any,
        true_length: int,
        sampling: SamplingParams | None = None,
        key: np.ndarray | None = None,
        num_samples: int = 1,
        **kwargs: Any,
    ) -> SampledPrefix:
        """Like prefill, for num_samples samples of one prompt, which bulk_insert places."""
        if existing_prefix is not None:
            raise ValueError("existing_prefix is not supported: this engine prefills whole prompts.")
        prompt = np.asarray(padded_tokens)[:true_length]
        own = hashlib.blake2b(prompt.astype(np.int32).tobytes(), digest_size=8).digest()
        key = np.frombuffer(own, "<u4") if key is None else np.asarray(key, np.uint32)
        keys = tuple(key ^ np.asarray([0, sample], np.uint32) for sample in range(num_samples))
        return SampledPrefix(self._engine.checked(prompt), sampling or self._params, keys)

    def insert(
        self, prefix: SampledPrefix, decode_state: CountedState, slot: int, request_id: Any = None
    ) -> CountedState:
        """Places the prompt in a slot, whatever was there. Consumes decode_state, keeps prefix."""
        return self.bulk_insert(prefix, decode_state, [slot])

    def bulk_insert(self, prefix: SampledPrefix, decode_state: CountedState, slots: Sequence[int]) -> CountedState:
        """Places sample i of the prompt in slots[i]."""
        length = len(prefix.prompt)
        limit = min(length + prefix.params.max_tokens, self._engine.config.max_length)
        pairs = zip(slots, prefix.keys, strict=True)
        placements = [Placement(slot, prefix.prompt, limit, prefix.params, key) for slot, key in pairs]
        state = self._engine.release(self._engine.pause(decode_state.state, slots), slots)
        state = self._engine.insert(state, placements)
        prompt_S = decode_state.prompt_S.copy()
        prompt_S[list(slots)] = length
        return CountedState(state, prompt_S)

    def generate(
        self, params: Any, decode_state: CountedState, sampler: Any = None
    ) -> tuple[CountedState, LoggedTokens]:
        """What has been inserted is computed, then one dispatch: [slots, tokens | valid | tokens generated so far |
        log-prob bits]. Consumes decode_state."""
        state, _ = self._engine.advance(params, decode_state.state)
        decoding = [slot for slot, live in enumerate(state.live) if live]
        state, result = self._engine.generate(params, state)
        result = self._engine.read(state, result, decoding)
        steps = result.tokens_NS.shape[0]
        valid = (np.arange(steps) < result.counts_S[:, None]).astype(np.int32)
        length = (np.asarray(state.length, np.int32) + 1 - decode_state.prompt_S)[:, None]
        bits = np.ascontiguousarray(result.logprobs_NS.T).view(np.int32)
        data = np.concatenate([result.tokens_NS.T, valid, length, bits], axis=1)
        tokens = LoggedTokens(
            data=jnp.asarray(data),
            tokens_idx=(0, steps),
            valid_idx=(steps, 2 * steps),
            length_idx=(2 * steps, 2 * steps + 1),
            samples_per_slot=1,
            logprob_idx=(2 * steps + 1, 3 * steps + 1),
        )
        return CountedState(state, decode_state.prompt_S), tokens

    def get_prefix_destination_sharding(self) -> Any:
        return None  # a prefix is in host memory

    def get_tokenizer(self) -> Any:
        """Empty: `build_tokenizer` needs no file."""
        return tokenizer_pb2.TokenizerParameters()  # pyright: ignore[reportAttributeAccessIssue]: created at run time

    def build_tokenizer(self, metadata: Any) -> JetStreamTokenizer:
        return self._tokenizer

    @property
    def max_concurrent_decodes(self) -> int:
        return self._engine.config.slots

    @property
    def samples_per_slot(self) -> int:
        return 1

    @property
    def max_prefill_length(self) -> int:
        return self._engine.config.max_length - 1

    @property
    def mesh(self) -> jax.sharding.Mesh:
        return self._engine.mesh

    @property
    def colocated_cpus(self) -> None:
        return None

    @property
    def use_chunked_prefill(self) -> bool:
        return False

    @property
    def prefill_chunk_size(self) -> int:
        return self.max_prefill_length


# A connection whose client does not answer within 10 s, when asked every 30 s, is closed.
STALLED = [("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000)]
Messages = Any
proto: Any = jetstream_pb2  # protobuf makes the classes at run time


class Orchestrator(proto_grpc.OrchestratorServicer):
    """JetStream's service: greedy decoding of one prompt, given as text or as token ids.

    max_tokens: most tokens of a reply. ends: strings that end a reply as an end token does. key: what "authorization"
    of a call's metadata must hold, after "Bearer "; None: anyone may call. encode: ids of a text; raises ValueError for
    one that is refused. apart(bytes, work): runs work for a request of that size off the event loop; raises Full if too
    many wait. A bad request gets INVALID_ARGUMENT, one too many RESOURCE_EXHAUSTED; a cancelled one frees its slot.
    """

    def __init__(
        self,
        rollouts: OnlineRollouts,
        *,
        max_tokens: int,
        ends: tuple[str, ...],
        key: str | None,
        encode: Callable[[str], list[int]],
        apart: Callable[[int, Callable[[], Request]], Awaitable[Request]],
    ) -> None:
        self._rollouts = rollouts
        self._encode = encode
        self._apart = apart
        self._ends = ends
        self._max_tokens = max_tokens
        self._key = key

    async def HealthCheck(self, request: Messages, context: grpc.aio.ServicerContext) -> Messages:
        return proto.HealthCheckResponse(is_live=self._rollouts.failure is None)

    async def Decode(self, request: Messages, context: grpc.aio.ServicerContext) -> AsyncIterator[Messages]:
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        if self._key is not None and not hmac.compare_digest(f"Bearer {self._key}".encode(), str(given).encode()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "The API key is missing or wrong.")
        loop, news = asyncio.get_running_loop(), asyncio.Queue[News]()
        try:
            own = await self._apart(request.ByteSize(), partial(self._request, request))
            (ticket,) = self._rollouts.submit([own], [listener_in(loop, news.put_nowait)])
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        except Full as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            raise
        except RolloutError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise
        text = TextStream(self._rollouts.tokenizer, own.params.stop_ids, own.params.ends)
        try:
            while not isinstance(one := await news.get(), Done):
                if isinstance(one, Sampled):
                    ids = text.kept(one.ids)
                    yield _samples(text.feed(ids), ids)
            if one.error is not None:
                again = not isinstance(one.error, NonFiniteError)
                code = grpc.StatusCode.UNAVAILABLE if again else grpc.StatusCode.INTERNAL
                await context.abort(code, str(one.error))
            if rest := text.finish():
                yield _samples(rest, ())
        finally:
            ticket.cancel()

    def _request(self, request: Messages) -> Request:
        """Raises ValueError for what cannot be decoded."""
        if request.session_cache:
            raise UserError("session_cache is not supported; leave it empty.")
        kind = request.WhichOneof("content")
        if kind == "text_content":
            ids = self._encode(request.text_content.text)
        elif kind == "token_content":
            ids = request.token_content.token_ids
        else:
            raise UserError("The request has no content; give text_content or token_content.")
        vocabulary, room = self._rollouts.engine.model.vocab_size, self._rollouts.engine.config.max_length
        if len(ids) >= room:
            raise UserError(f"The prompt has {len(ids)} tokens; this server takes {room - 1}.")
        if not ids or not all(0 <= id < vocabulary for id in ids):
            raise UserError(f"A prompt has at least one token id, each from 0 to {vocabulary - 1}.")
        if not 1 <= request.max_tokens <= self._max_tokens:
            raise UserError(f"max_tokens is {request.max_tokens}; this server takes 1 to {self._max_tokens}.")
        if len(ids) + request.max_tokens > room:
            raise UserError(f"{len(ids)} tokens and {request.max_tokens} more; together this server takes {room}.")
        params = SamplingParams(
            temperature=0.0,
            top_k=0,
            top_p=1.0,
            max_tokens=request.max_tokens,
            stop=(),
            stop_ids=tuple(self._rollouts.tokenizer.eos_ids),
            tempered_logprobs=False,
            ends=self._ends,
        )
        return Request(list(ids), params, None, None, max_turns=1, respond=None)


def _samples(text: str, ids: Sequence[int]) -> Messages:
    content = proto.DecodeResponse.StreamContent
    sample = content.Sample(text=text, token_ids=list(ids))
    return proto.DecodeResponse(stream_content=content(samples=[sample]))


def grpc_server(orchestrator: Orchestrator, host: str, port: int, max_body: int) -> tuple[grpc.aio.Server, int]:
    """(the server, not started, its port). Raises OSError if the port is taken."""
    options = [("grpc.max_receive_message_length", max_body), ("grpc.so_reuseport", 0), *STALLED]
    server = grpc.aio.server(options=options)
    proto_grpc.add_OrchestratorServicer_to_server(orchestrator, server)
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError:
        bound = 0
    if not bound:
        raise OSError(f"port {port} of {host} cannot be listened on; is another server running there?")
    return server, bound
