"""`Rollouts` on this process's engine: its weights, and one decode loop for each call of `run` or `interact`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from scope_jax.rollouts.drafter import Drafter
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.episodes import ActiveEpisode
from scope_jax.rollouts.interactions import ActiveInteraction, Driver
from scope_jax.rollouts.keys import key_data
from scope_jax.rollouts.loop import DecodeLoop
from scope_jax.rollouts.slots import stop_row
from scope_jax.rollouts.tools import BatchedTool
from scope_jax.rollouts.types import Completion, Request, RolloutError, TextCodec


class LocalRollouts:
    """`Rollouts` on this process's engine.

    A completion depends on the weights and its request alone: not on the other requests, their order, the slot or the
    time a responder took. Requests without a key get one from (seed, number of the call, index in the call).

    threads: number of responders that run concurrently. ahead: a dispatch is launched before the tokens of the one
    before are read. tool: the tool that responders call, if they call one; it is served before every dispatch.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: TextCodec,
        *,
        seed: int,
        threads: int,
        ahead: bool,
        tool: BatchedTool[Any] | None = None,
    ) -> None:
        self.engine = engine
        self._tokenizer = tokenizer
        self._seed = seed
        self.threads = threads
        self.ahead = ahead
        self.tool = tool
        self.drafter = Drafter(shares=True) if engine.config.draft_tokens else None
        self._calls = 0
        self._loop: DecodeLoop | None = None  # of the call under way; it holds weights and cache
        self._dispatches = 0  # that the latest call has read, once it is over
        self._over: list[Callable[[], bool]] = []  # of what the call under way decodes
        self._whole: Engine | None = None  # without quantised matrices, once it was asked for
        self._params: Any = None
        self._state: Any = None  # between calls, if the engine keeps prompts for later calls

    @property
    def progress(self) -> tuple[int, int]:
        """(calls of `run`, dispatches that the latest one has read): changes as long as episodes are being decoded."""
        loop = self._loop  # set and removed by another thread
        return self._calls, self._dispatches if loop is None else loop.dispatches

    @property
    def counts(self) -> tuple[int, int]:
        """(those that are over, all) of the episodes or interactions of the call under way; (0, 0) between calls."""
        over = [*self._over]  # changed by another thread
        return sum(is_over() for is_over in over), len(over)

    @property
    def steps(self) -> int:
        """Decoding steps that the call under way has read; 0 between calls."""
        loop = self._loop
        return 0 if loop is None else loop.steps

    @property
    def slots(self) -> int:
        """How many episodes decode at a time."""
        return self.engine.config.slots

    @property
    def params(self) -> Any:
        """The weights that requests are sampled with, in the engine's own form; None if there are none."""
        return self._params

    def load_params(self, params: Any) -> None:
        """Copies stacked weights; the source may be donated afterwards."""
        self._params = self._state = None  # frees the old copy before the new one is made
        self._params = self.engine.load_params(params)

    def take_params(self, params: Any) -> Any:
        """Converts stacked weights, which are freed, into the engine's own form."""
        return self.engine.take_params(params)

    def use(self, taken: Any) -> None:
        """Samples with weights from `take_params` from now on; None frees the current ones."""
        self._params, self._state = taken, None

    def load_adapter(self, policy: str, factors: Any) -> None:
        """Copies a policy's factors beside the weights, which must be there; the source may be donated afterwards."""
        if self._params is None:
            raise RolloutError("The engine has no weights; call load_params before load_adapter.")
        self._state = None  # prompts of the policy were computed with its earlier factors
        self._params = self.engine.load_adapter(self._params, policy, factors)

    @contextmanager
    def unquantized(self) -> Iterator[bool]:
        """In this block the engine keeps whole matrices and a whole cache. Gives whether its matrices otherwise are
        not: then weights are to be loaded anew at both ends."""
        narrow = self.engine
        if not narrow.config.in_8_bits:
            yield False
            return
        if self._whole is None:
            self._whole = narrow.unquantized()
        anew = narrow.config.quantized
        self.use(None if anew else self._params)
        self.engine = self._whole
        try:
            yield anew
        finally:
            self.use(None if anew else self._params)
            self.engine = narrow

    def clear(self) -> None:
        """Frees the cache, with the prompts kept for later calls; weights stay."""
        self._state = None

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """Runs every request; completions are in the order of the requests.

        Raises RolloutError if no weights were loaded or a responder fails, ValueError for an invalid request, and
        NonFiniteError if the model computes NaN or infinity for one.
        """
        keyed = [
            request if request.key is not None else replace(request, key=key_data(self._seed, self._calls, place))
            for place, request in enumerate(requests)
        ]
        episodes: list[ActiveEpisode] = []

        def submit(loop: DecodeLoop) -> None:
            episodes.extend(self.episode(request, place) for place, request in enumerate(keyed))
            self._over += [lambda e=e: e.finish_reason is not None for e in episodes]
            loop.submit(episodes)

        self._decode(submit)
        return [episode.completion() for episode in episodes]

    def interaction(self, driver: Driver) -> ActiveInteraction:
        """A rollout whose rows the driver asks for."""
        return ActiveInteraction(driver, self.episode)

    def episode(self, request: Request, number: int) -> ActiveEpisode:
        """The host side of a request. Raises ValueError for a request that the engine does not take."""
        stop_row(request.params)
        self.engine.number(request.policy)
        return ActiveEpisode(request, number, self._tokenizer, self.engine.config.max_length)

    def interact(
        self,
        interactions: Sequence[ActiveInteraction],
        weights: str,
        more: Iterator[Sequence[ActiveInteraction]] | None = None,
    ) -> None:
        """Plays interactions until each is over or waits for other weights. weights: the name of those in use. more:
        further ones, which are taken as slots have nothing to do.

        Raises as `run` does, and what drivers raise.
        """

        def add(loop: DecodeLoop, part: Sequence[ActiveInteraction]) -> None:
            self._over += [lambda i=i: i.over for i in part]
            loop.interact(part)

        def begin(loop: DecodeLoop) -> None:
            add(loop, interactions)
            if more is not None:
                loop.follow(add(loop, part) for part in more)

        self._decode(begin, weights)

    def _decode(self, begin: Callable[[DecodeLoop], None], weights: str = "") -> None:
        """Runs one decode loop, to which `begin` gives its work, to its end."""
        if self._params is None:
            raise RolloutError("The engine has no weights; call load_params before run.")
        self._calls += 1
        state, self._state = self._state, None  # lost if an error comes in between
        state = self.engine.init_decode_state() if state is None else state
        loop = self._loop = DecodeLoop(
            *(self.engine, self._params, state, self.threads, self.tool, self.ahead),
            weights=weights,
            drafter=self.drafter,
        )
        try:
            begin(loop)
            with loop.responders.running():
                while loop.busy:
                    for _, error in loop.round():
                        raise error
        finally:
            self._loop, self._dispatches, self._over = None, loop.dispatches, []
            if self.drafter is not None:
                self.drafter.clear()
        self._state = loop.state
