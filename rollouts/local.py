"""The offline driver: runs requests on an engine, refilling slots as they become free.

Each round of the loop places waiting episodes in free slots, appends the observations that have arrived, runs one
decode dispatch and distributes its tokens. Responders run in threads meanwhile. An episode that restarts frees its slot
and waits at the head of the queue for its new prompt to be prefilled. When a paged cache is full, the episode placed
last moves to host memory and returns, unchanged, when there is room.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from rollouts.engine import Engine
from rollouts.episodes import Episode
from rollouts.keys import key_data
from rollouts.paged import Aside, PagedEngine
from rollouts.pages import OutOfPages
from rollouts.scheduler import Queue
from rollouts.slots import Extension, Placement, stop_row
from rollouts.tools import BatchedTool
from rollouts.types import Completion, Request, RolloutError, TextCodec

REFILL = 8  # while episodes wait, a dispatch ends once slots / REFILL of its slots have finished
SETTLE = 0.01  # seconds, at most, that responders get to call a tool or to reply before the next dispatch


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
    number of responders that run concurrently. tool: the tool that responders call, if they call one; it is served
    before every dispatch.
    """

    def __init__(
        self,
        engine: Engine | PagedEngine,
        tokenizer: TextCodec,
        *,
        seed: int,
        threads: int,
        tool: BatchedTool[Any] | None = None,
    ) -> None:
        self.engine = engine
        self._tokenizer = tokenizer
        self._seed = seed
        self._threads = threads
        self._tool = tool
        self._calls = 0
        self._params: Any = None
        self._state: Any = None  # between calls, if the engine keeps prompts for later calls

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
        state, self._state = self._state, None  # lost if an error comes in between
        state = self.engine.init_decode_state() if state is None else state
        state = _Round(self.engine, self._params, state, episodes, keys, self._threads, self._tool).play()
        self._state = state if self.engine.keeps_prompts else None
        return [episode.completion() for episode in episodes]


@dataclass(frozen=True)
class _Asleep:
    """An episode in host memory that decodes on, or first reads an observation, as soon as there is room."""

    episode: Episode
    aside: Aside
    answered: bool


class _Round:
    """One call of `run`: which episode is in which slot, and which ones wait for their responder or for memory."""

    def __init__(
        self,
        engine: Engine | PagedEngine,
        params: Any,
        state: Any,
        episodes: Sequence[Episode],
        keys: Sequence[np.ndarray],
        threads: int,
        tool: BatchedTool[Any] | None,
    ) -> None:
        self._engine: Any = engine
        self._params = params
        self._state = state
        self._keys = keys
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="responder")
        self._tool = tool
        self._news = threading.Event()  # set when a responder has replied or called the tool
        config = engine.config
        waiting = [episode for episode in episodes if episode.finish_reason is None]
        self._queue = Queue(waiting, lambda ps: engine.prefill(params, ps), config.bucket, config.prefill_batch)
        self._free = list(range(config.slots))[::-1]
        self._live: dict[int, Episode] = {}
        self._asked: dict[Future[object], tuple[int | None, Episode]] = {}  # no slot: the episode is in host memory
        self._aside: dict[int, Aside] = {}  # of episodes that wait for their responder in host memory, by index
        self._asleep: deque[_Asleep] = deque()
        self._since: dict[int, int] = {}  # by slot, the number of its placement
        self._placed = 0

    def play(self) -> Any:
        """Runs until every episode has its finish_reason; the engine's state afterwards."""
        try:
            with nullcontext() if self._tool is None else self._tool.served(self._news.set):
                while self._queue or self._live or self._asked or self._asleep:
                    self._wake()
                    self._place()
                    self._answer(block=not self._live)
                    if self._live:
                        self._decode()
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)  # after an error, do not wait for running responders
        return self._state

    # ---------------------------------------------------------------------------------------------------- placing
    def _place(self) -> None:
        """Starts waiting episodes while there are slots and memory, after those that were set aside."""
        if self._asleep or not self._free:
            return
        prompts = self._queue.next_prompts(len(self._free))
        count = self._engine.room(self._state, list(zip(prompts, reversed(self._free), strict=False)))
        for prefix, pairs in self._queue.take(count):
            placements = []
            for row, episode in pairs:
                slot = self._seat(episode)
                self._live[slot] = episode
                placements.append(self._placement(slot, row, episode))
            self._state = self._engine.insert(self._state, prefix, placements)

    def _seat(self, episode: Episode) -> int:
        slot = self._free.pop()
        self._placed += 1
        self._since[slot] = self._placed
        return slot

    def _placement(self, slot: int, row: int, episode: Episode) -> Placement:
        asks = episode.request.respond is not None
        return Placement(slot, row, episode.limit, episode.request.params, self._key(episode), may_be_cut=asks)

    def _key(self, episode: Episode) -> np.ndarray:
        return stretch_key(self._keys[episode.index], episode.stretch)

    def _end(self, slot: int) -> None:
        """The slot is free."""
        self._state = self._engine.release(self._state, [slot])
        self._free.append(slot)

    # ---------------------------------------------------------------------------------------------------- replies
    def _answer(self, block: bool) -> None:
        """Handles the replies that have arrived; with `block`, waits for one unless a slot was freed meanwhile."""
        if not self._asked:
            return
        extensions = []
        for future in sorted(self._replies(block), key=lambda f: self._asked[f][1].index):
            slot, episode = self._asked.pop(future)
            aside = self._aside.pop(episode.index, None)
            outcome = episode.observe(future)
            if outcome == "goes on":
                if aside is not None:
                    self._asleep.append(_Asleep(episode, aside, answered=True))
                else:
                    assert slot is not None
                    extensions.append((slot, episode))
                continue
            if slot is not None:
                self._end(slot)
            if outcome == "starts anew":
                self._queue.add(episode)
        self._extend(extensions)

    def _replies(self, block: bool) -> list[Future[object]]:
        """The replies that have arrived; with `block`, at least one.

        Responders that have just begun get a moment to call the tool, so that their calls are answered together, and
        another one to reply, so that their episodes take part in the next dispatch.
        """
        until = time.monotonic() + SETTLE
        while True:
            self._news.clear()
            done = [future for future in self._asked if future.done()]
            calling = 0 if self._tool is None else self._tool.callers
            at_work = min(len(self._asked) - len(done), self._threads) - calling
            left = until - time.monotonic()
            if at_work > 0 and left > 0:
                self._news.wait(left)
            elif self._tool is not None and self._tool.serve():
                until = time.monotonic() + SETTLE
            elif done or not block:
                return done
            else:
                self._news.wait()

    def _extend(self, asked: Sequence[tuple[int, Episode]]) -> None:
        by_bucket: dict[int, list[tuple[int, Episode]]] = {}
        for slot, episode in asked:
            bucket = self._engine.config.bucket(len(episode.appended[1]))
            by_bucket.setdefault(bucket, []).append((slot, episode))
        batch = self._engine.config.prefill_batch
        for members in by_bucket.values():
            for first in range(0, len(members), batch):
                part = members[first : first + batch]
                try:
                    self._append(part)
                except OutOfPages:
                    for slot, episode in part:
                        self._append_or_set_aside(slot, episode)

    def _append(self, part: Sequence[tuple[int, Episode]]) -> None:
        extensions = [Extension(s, *episode.appended, episode.limit, self._key(episode)) for s, episode in part]
        self._state = self._engine.extend(self._params, self._state, extensions)
        self._live |= dict(part)

    def _append_or_set_aside(self, slot: int, episode: Episode) -> None:
        """Appends the observation, for which others are set aside; without others, the episode itself."""
        while True:
            try:
                return self._append([(slot, episode)])
            except OutOfPages as error:
                if not self._set_aside(error.shard):
                    self._asleep.append(_Asleep(episode, self._engine.set_aside(self._state, slot), answered=True))
                    self._free.append(slot)
                    return

    def _ask(self, slot: int, episode: Episode) -> None:
        future = self._pool.submit(episode.ask)
        self._asked[future] = (slot, episode)
        future.add_done_callback(lambda _: self._news.set())

    # ------------------------------------------------------------------------------------------------- out of memory
    def _set_aside(self, shard: int) -> bool:
        """Moves the episode that was placed last on a shard to host memory; False if there is none.

        Which one it is changes no token, only when it goes on.
        """
        waiting = {slot: future for future, (slot, _) in self._asked.items() if slot is not None}
        here = [slot for slot in (*self._live, *waiting) if slot // self._engine.slots == shard]
        if not here:
            return False
        slot = max(here, key=lambda slot: self._since[slot])
        if slot in self._live:
            self._state = self._engine.pause(self._state, [slot])
            episode = self._live.pop(slot)
            self._asleep.append(_Asleep(episode, self._engine.set_aside(self._state, slot), answered=False))
        else:
            episode = self._asked[waiting[slot]][1]
            self._asked[waiting[slot]] = (None, episode)
            self._aside[episode.index] = self._engine.set_aside(self._state, slot)
        self._free.append(slot)
        return True

    def _wake(self) -> None:
        """Returns episodes from host memory, in the order in which they were set aside, while there is room."""
        while self._asleep and self._free:
            one = self._asleep[0]
            more = len(one.episode.appended[1]) if one.answered else 0
            if not self._engine.fits(self._state, one.aside, more, self._free[-1]):
                return
            self._asleep.popleft()
            slot = self._seat(one.episode)
            placement = self._placement(slot, 0, one.episode)
            self._state = self._engine.bring_back(
                self._state, one.aside, slot, one.episode.last_id, placement, live=not one.answered
            )
            if one.answered:
                self._append_or_set_aside(slot, one.episode)
            else:
                self._live[slot] = one.episode

    # ---------------------------------------------------------------------------------------------------- decoding
    def _decode(self) -> None:
        """Runs one dispatch and processes each slot's tokens."""
        patience = max(1, self._engine.config.slots // REFILL) if self._queue or self._asleep else None
        while True:
            longest = max(episode.length for episode in self._live.values()) - 1
            try:
                self._state, result = self._engine.generate(self._params, self._state, longest, patience)
                break
            except OutOfPages as error:
                self._set_aside(error.shard)
        tokens_NS, logprobs_NS, counts_S, live_S = jax.device_get(result)
        paused, ended = [], []
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
                self._ask(slot, episode)
            else:
                episode.end()
                ended.append(slot)
        if paused:
            self._state = self._engine.pause(self._state, paused)
        for slot in ended:
            self._end(slot)
