"""The offline driver: runs requests on an engine, refilling slots as they become free.

Each round of the loop places waiting episodes in free slots, appends the observations that have arrived, runs one
decode dispatch and distributes its tokens. Responders run in threads meanwhile. An episode that restarts frees its slot
and waits at the head of the queue for its new prompt to be prefilled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import jax
import numpy as np

from rollouts.engine import Engine, Extension, Placement, stop_row
from rollouts.episodes import Episode
from rollouts.keys import key_data
from rollouts.scheduler import Queue
from rollouts.types import Completion, Request, RolloutError, TextCodec

REFILL = 8  # while episodes wait, a dispatch ends once slots / REFILL of its slots have finished


def stretch_key(key: np.ndarray, stretch: int) -> np.ndarray:
    """uint32[2] key data of a stretch of an episode: the request's own key for the first, a derived one for later ones.

    A token's random numbers follow from the key and the token's position in its row. Positions start over after a
    restart and are reused where tokens were dropped: with the same key the policy would draw the same numbers twice.
    """
    if not stretch:
        return key
    return key_data(key.tolist(), stretch)


class LocalRollouts:
    """`Rollouts` on this process's engine.

    A completion depends on the weights and its request alone: not on the other requests, their order, the slot or the
    time a responder took. Requests without a key get one from (seed, number of the call, index in the call). threads:
    number of responders that run concurrently.
    """

    def __init__(self, engine: Engine, tokenizer: TextCodec, *, seed: int, threads: int) -> None:
        self.engine = engine
        self._tokenizer = tokenizer
        self._seed = seed
        self._threads = threads
        self._calls = 0
        self._params: Any = None

    def load_params(self, params: Any) -> None:
        """Copies stacked weights; the source may be donated afterwards."""
        self._params = None  # frees the old copy before the new one is made
        self._params = self.engine.load_params(params)

    def take_params(self, params: Any) -> Any:
        """Converts stacked weights, which are freed, into the engine's own form."""
        return self.engine.take_params(params)

    def use(self, taken: Any) -> None:
        """Samples with weights from `take_params` from now on; None frees the current ones."""
        self._params = taken

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """Runs every request; completions are in the order of the requests.

        Raises RolloutError if no weights were loaded or a responder fails, ValueError for an invalid request.
        """
        if self._params is None:
            raise RolloutError("The engine has no weights; call load_params before run.")
        call, self._calls = self._calls, self._calls + 1
        limit = self.engine.config.max_length
        episodes = [Episode(request, i, self._tokenizer, limit) for i, request in enumerate(requests)]
        for request in requests:
            stop_row(request.params)
        keys = [key_data(self._seed, call, i) if r.key is None else r.key for i, r in enumerate(requests)]
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="responder")
        try:
            _Round(self.engine, self._params, episodes, keys, pool).play()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after an error, do not wait for running responders
        return [episode.completion() for episode in episodes]


class _Round:
    """One call of `run`: which episode is in which slot, and which ones wait for their responder."""

    def __init__(
        self,
        engine: Engine,
        params: Any,
        episodes: Sequence[Episode],
        keys: Sequence[np.ndarray],
        pool: ThreadPoolExecutor,
    ) -> None:
        self._engine = engine
        self._params = params
        self._keys = keys
        self._pool = pool
        config = engine.config
        waiting = [episode for episode in episodes if episode.finish_reason is None]
        self._queue = Queue(waiting, lambda ps: engine.prefill(params, ps), config.bucket, config.prefill_batch)
        self._state = engine.init_decode_state()
        self._free = list(range(config.slots))[::-1]
        self._live: dict[int, Episode] = {}
        self._asked: dict[Future[object], tuple[int, Episode]] = {}

    def play(self) -> None:
        """Runs until every episode has its finish_reason."""
        while self._queue or self._live or self._asked:
            self._place()
            self._answer(block=not self._live)
            if self._live:
                self._decode()

    def _place(self) -> None:
        for prefix, pairs in self._queue.take(len(self._free)):
            placements = []
            for row, episode in pairs:
                slot = self._free.pop()
                self._live[slot] = episode
                placements.append(Placement(slot, row, episode.limit, episode.request.params, self._key(episode)))
            self._state = self._engine.insert(self._state, prefix, placements)

    def _key(self, episode: Episode) -> np.ndarray:
        return stretch_key(self._keys[episode.index], episode.stretch)

    def _answer(self, block: bool) -> None:
        """Handles the replies that have arrived; with `block`, waits for one unless a slot was freed meanwhile."""
        if not self._asked:
            return
        done, _ = wait(self._asked, timeout=None if block else 0, return_when=FIRST_COMPLETED)
        extensions = []
        for future in sorted(done, key=lambda f: self._asked[f][0]):
            slot, episode = self._asked.pop(future)
            outcome = episode.observe(future)
            if outcome == "goes on":
                self._live[slot] = episode
                extensions.append(Extension(slot, *episode.appended, episode.limit, self._key(episode)))
            else:
                self._free.append(slot)
                if outcome == "starts anew":
                    self._queue.add(episode)
        self._extend(extensions)

    def _extend(self, extensions: Iterable[Extension]) -> None:
        by_bucket: dict[int, list[Extension]] = {}
        for extension in extensions:
            by_bucket.setdefault(self._engine.config.bucket(len(extension.ids)), []).append(extension)
        batch = self._engine.config.prefill_batch
        for members in by_bucket.values():
            for first in range(0, len(members), batch):
                part = members[first : first + batch]
                self._state = self._engine.extend(self._params, self._state, part)

    def _decode(self) -> None:
        """Runs one dispatch and processes each slot's tokens."""
        longest = max(episode.length for episode in self._live.values()) - 1
        patience = max(1, self._engine.config.slots // REFILL) if self._queue else None
        self._state, result = self._engine.generate(self._params, self._state, longest, patience)
        tokens_NS, logprobs_NS, counts_S, live_S = jax.device_get(result)
        paused = []
        for slot, episode in list(self._live.items()):
            count = counts_S[slot]
            finish = None
            for token, logprob in zip(
                tokens_NS[:count, slot].tolist(), logprobs_NS[:count, slot].tolist(), strict=True
            ):
                finish = episode.take(token, logprob)
                if finish is not None:
                    break  # tokens sampled after a stop string are discarded
            if finish is None:
                assert live_S[slot], "the device ended a turn that the host is continuing"
                continue
            del self._live[slot]
            if live_S[slot]:
                paused.append(slot)
            if episode.asks:
                self._asked[self._pool.submit(episode.ask)] = (slot, episode)
            else:
                episode.end()
                self._free.append(slot)
        if paused:
            self._state = self._engine.pause(self._state, paused)
