"""The decode loop: which episode is in which slot, and which ones wait for a responder or for memory.

Each round of the loop places waiting episodes in free slots, appends the observations that have arrived, computes the
tokens of both, launches a dispatch and reads one. Responders run in threads meanwhile. With `ahead`, the dispatch that
is read is the one launched in the round before: the device always has another one to go on with while the host handles
tokens. Rows stop at stop ids and limits by themselves; whatever the host decides (stop strings, placements,
observations) takes effect one dispatch later, and tokens that were sampled in between are discarded.

An episode that restarts frees its slot and waits at the head of the queue for its new prompt to be prefilled; so does a
row of an interaction that goes on after another agent has spoken. When the pages are used up, the episode placed last
moves to host memory and returns, unchanged, when there is room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, cast

from scope_jax.rollouts.drafter import Drafter
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.episodes import ActiveEpisode, Outcome
from scope_jax.rollouts.interactions import ActiveInteraction, Interactions, Move
from scope_jax.rollouts.pages import OutOfPages
from scope_jax.rollouts.schedule import RowName, Schedule
from scope_jax.rollouts.scheduler import Queue
from scope_jax.rollouts.slots import Extension, Placement, Result
from scope_jax.rollouts.tools import BatchedTool, Responders
from scope_jax.rollouts.types import NonFiniteError
from scope_jax.rollouts.verification import Drafts

REFILL = 8  # while episodes wait, a dispatch ends once slots / REFILL of its slots have finished
WAIT = 0.02  # seconds, at most, that a round rests: what wakes it may come while it looks at replies


def row_of(episode: ActiveEpisode) -> RowName:
    """The name of the row that an episode is in."""
    return (*episode.name, episode.restarts)


@dataclass(frozen=True)
class _Suspended:
    """An episode in host memory that decodes on, or first reads an observation, as soon as there is room."""

    episode: ActiveEpisode
    aside: Any
    answered: bool


@dataclass(frozen=True)
class _Asked:
    """What a thread has been asked: a responder for its reply to an episode, or an interaction for its next moves. In
    the second case the episode is the row that goes on in its slot if it is asked again, or None."""

    slot: int | None
    """None: the episode is in host memory, or there is none."""
    episode: ActiveEpisode | None
    interaction: ActiveInteraction | None = None

    @property
    def order(self) -> int:
        """Its place among replies that arrive together."""
        return 0 if self.episode is None else self.episode.index


@dataclass(frozen=True)
class _Dispatch:
    """A dispatch that was launched and not read."""

    result: Result
    turns: dict[int, int]
    """By slot, the number of the turn that it samples."""
    drafts: Drafts
    """By slot, the tokens that were drafted for it."""


class DecodeLoop:
    """Episodes on an engine, round by round: those of one call of `LocalRollouts.run`, or of `OnlineRollouts` as they
    come. One thread runs it, inside `responders.running()`, and no other launches a program on the engine's devices.

    state: the engine's, consumed; `self.state` is the current one. threads, tool, ahead: see `LocalRollouts`. prefills:
    most dispatches per round that compute prompts and observations while slots decode (None: all there are, which is
    the most tokens per second, while the slots that decode wait). weights: the name of `params`; rows of interactions
    that want others wait, and are not the loop's to decode. schedule: of rows under names, where the weights may change
    (`swap`) while rows are under way; their tokens have the `version` of the weights then. drafter: proposes tokens, of
    an engine that verifies drafts; None: there are none.
    """

    def __init__(
        self,
        engine: Engine,
        params: Any,
        state: Any,
        threads: int,
        tool: BatchedTool[Any] | None,
        ahead: bool,
        prefills: int | None = None,
        weights: str = "",
        schedule: Schedule | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self._engine = engine
        self._drafter = drafter
        self.params = params
        self.state = state
        self.responders = Responders(threads, tool)
        config = engine.config
        self._schedule = schedule
        self._held: list[ActiveEpisode] = []  # rows that wait for newer weights, as the schedule has it
        self.version = 0
        self._queue = Queue()
        self._more: list[tuple[int, Iterator[None]]] = []  # see `follow`
        self._prefills = prefills
        self._free = list(range(config.slots))[::-1]
        self._filling: dict[int, ActiveEpisode] = {}  # by slot: its tokens are not all in the cache yet
        self._live: dict[int, ActiveEpisode] = {}
        self._asked: dict[Future[object], _Asked] = {}
        self._interactions = Interactions(weights, self._most_under_way)
        self._aside: dict[int, Any] = {}  # of episodes that wait for their responder in host memory, by index
        self._suspended: deque[_Suspended] = deque()
        self._failed: list[tuple[ActiveEpisode, NonFiniteError]] = []  # in this round
        self._since: dict[int, int] = {}  # by slot, the number of its placement
        self._picked: list[ActiveEpisode] = []  # whose picks have yet to be fetched
        self._placed = 0
        self._turn: dict[int, int] = {}  # by slot, the number of its turn
        self._turns = 0
        self._flight: deque[_Dispatch] = deque()  # oldest first
        self._ahead = int(ahead)  # dispatches in flight while the host handles tokens
        self.dispatches = 0  # that were read
        self.steps = 0  # of these, at most

    def submit(self, episodes: Sequence[ActiveEpisode]) -> None:
        """Puts episodes whose requests have keys at the end of the queue, each group together. Raises ValueError if a
        group's prompts or policies differ."""
        self._enqueue([episode for episode in episodes if episode.finish_reason is None])

    def interact(self, interactions: Sequence[ActiveInteraction]) -> None:
        """Puts interactions at the end of the queue: those to be started, and rows that wait for the loop's weights."""
        self._enqueue(self._interactions.add(interactions))

    def follow(self, more: Iterator[None], order: int = 0) -> None:
        """Gets further work whenever slots have nothing to do: each step of `more` submits a part of it, or adds
        interactions. The loop is busy until it ends. order: of several, those of lower numbers go first."""
        self._more.append((order, more))
        self._more.sort(key=lambda pair: pair[0])

    def round(self) -> list[tuple[ActiveEpisode, NonFiniteError]]:
        """Places, answers, computes, launches and reads once; an episode that is over has its finish_reason then.

        Returns the episodes that cannot go on, which are dropped. An error of a responder is raised. If nothing decodes
        and nothing can be placed, the round ends with news of a responder, or after a moment.
        """
        self._failed = []
        self._start()
        while self._more and self._hungry:
            if next(self._more[0][1], "over") == "over":
                self._more.pop(0)
            self._start()
        self._resume()
        self._place()
        before = len(self._free), len(self._suspended)
        self._answer()
        self._advance(self._prefills)
        self._launch()
        while len(self._flight) > self._ahead:
            self._read()
        if not self._live:
            self._flight.clear()  # only tokens that will be discarded
            if self.busy and not self._filling and before == (len(self._free), len(self._suspended)):
                self.responders.rest(WAIT)  # what waits has no slot or no memory until a responder replies
        return self._failed

    @property
    def busy(self) -> bool:
        """Whether an episode is under way or waits."""
        under_way = self._queue or self._filling or self._live or self._asked or self._suspended
        return bool(under_way or self._interactions or self._more)

    @property
    def _hungry(self) -> bool:
        """Whether slots have nothing to do, or the schedule says who has which."""
        return self._most_under_way is None or (
            self._queue.count < len(self._free) and self._interactions.room and not self._suspended
        )

    @property
    def weights(self) -> str:
        """The name of the weights; rows of interactions that want others wait, and are not the loop's to decode."""
        return self._interactions.weights

    @weights.setter
    def weights(self, name: str) -> None:
        self._interactions.weights = name

    @property
    def _most_under_way(self) -> int | None:
        """Interactions that may be under way; None: the schedule says which."""
        free = self._schedule is None or self._schedule.free(self.version)
        return self._engine.config.slots if free else None

    @property
    def used(self) -> int:
        """Slots that are in use."""
        return self._engine.config.slots - len(self._free)

    def compile(self, *, extends: bool, moves: bool) -> None:
        """Compiles the engine's programs while the loop is not busy. extends, moves: see `Engine.compile`."""
        self.state = self._engine.compile(self.params, self.state, extends=extends, moves=moves)

    def drop(self, episode: ActiveEpisode) -> None:
        """Takes an episode out of the queue, its slot, its responder's hands or host memory, wherever it is."""
        self._queue.remove(episode)
        self._held = [one for one in self._held if one is not episode]
        self._suspended = deque(one for one in self._suspended if one.episode is not episode)
        for slot in [slot for slot, other in self._filling.items() if other is episode]:
            del self._filling[slot]
            self._end(slot)
        for slot in [slot for slot, other in self._live.items() if other is episode]:
            del self._live[slot]
            self.state = self._engine.pause(self.state, [slot])
            self._end(slot)
        for future in [future for future, asked in self._asked.items() if asked.episode is episode]:
            slot = self._asked.pop(future).slot
            future.cancel()
            self._aside.pop(episode.index, None)
            if slot is not None:
                self._end(slot)
        if not self._live:
            self._flight.clear()  # as in `round`

    # ---------------------------------------------------------------------------------------------------- placing
    def _place(self) -> None:
        """Starts waiting episodes while there are slots and memory, after those that were set aside."""
        if self._suspended or not self._free:
            return
        prompts = self._queue.next_prompts(len(self._free))
        count = self._engine.room(self.state, list(zip(prompts, reversed(self._free), strict=False)))
        placements = []
        for episode in self._queue.take(count):
            slot = self._seat(episode)
            self._filling[slot] = episode
            self._note(episode)
            placements.append(self._placement(slot, episode))
        if self._schedule is not None:
            self._schedule.flush()
        self.state = self._engine.insert(self.state, placements)

    def _enqueue(self, episodes: Sequence[ActiveEpisode], *, first: bool = False) -> None:
        """Lets episodes wait for a slot, behind the others or before them; those that are to be computed with newer
        weights wait for these."""
        due, held = [], []
        for episode in episodes:
            if not self._given(episode):
                (due if self._due(episode) else held).append(episode)
        self._held += held
        (self._queue.add if first else self._queue.append)(due)

    def _given(self, episode: ActiveEpisode) -> bool:
        """Lets an episode take the tokens of its next turn that are known already; whether they end the turn, so that
        nothing is to be computed."""
        if not episode.given:
            return False
        finish = None
        for token, logprob, entropy, version in episode.given.popleft():
            finish = episode.take(token, logprob, entropy, version)
        if finish is None:
            episode.resume()
            return False
        if episode.asks:
            self._ask(None, episode)
        elif episode.interaction is not None:
            extensions = self._turn_over(None, episode)
            assert not extensions, "no slot is held"
        else:
            episode.end()
        return True

    def _due(self, episode: ActiveEpisode) -> bool:
        schedule = self._schedule
        return schedule is None or schedule.due(row_of(episode), len(episode.prompt), self.version)

    def _note(self, episode: ActiveEpisode) -> None:
        """The row's cache is computed."""
        episode.computed = len(episode.prompt)
        if self._schedule is not None:
            self._schedule.computed(row_of(episode), len(episode.prompt), self.version)

    def _limit(self, episode: ActiveEpisode) -> int:
        """The row length at which the slot stops: where the turn must end, or where newer weights took over."""
        border = None if self._schedule is None else self._schedule.border(row_of(episode), episode.length)
        return episode.limit if border is None else min(episode.limit, border)

    def _advance(self, most: int | None) -> None:
        """Computes prompts and observations with at most `most` dispatches, but goes on until a slot decodes."""
        while self._filling:
            self.state, left = self._engine.advance(self.params, self.state, most)
            for slot in self._filling.keys() - set(left):
                self._begin(slot, self._filling.pop(slot))
            if self._live:
                return

    def _seat(self, episode: ActiveEpisode) -> int:
        slot = self._free.pop()
        self._placed += 1
        self._since[slot] = self._placed
        return slot

    def _begin(self, slot: int, episode: ActiveEpisode) -> None:
        """A turn of the episode begins in the slot, or goes on there."""
        self._live[slot] = episode
        self._turns += 1
        self._turn[slot] = self._turns

    def _placement(self, slot: int, episode: ActiveEpisode) -> Placement:
        asks = episode.request.respond is not None
        number = self._engine.number(episode.request.policy)
        params = episode.request.params
        limit = self._limit(episode)
        return Placement(slot, episode.prompt, limit, params, episode.key, asks, number, episode.grouped)

    def _keep_picks(self, slot: int | None, aside: Any, episode: ActiveEpisode, row: int) -> None:
        """Before a row leaves its slot or host memory, its picks are read; they are fetched after the next dispatch."""
        if slot is None and aside is None:  # it has left its slot already
            return
        if self._engine.config.picks and episode.request.picks:
            episode.keep_picks(row, aside.picks if slot is None else self._engine.picks(self.state, slot))
            self._picked.append(episode)

    def _end(self, slot: int) -> None:
        """The slot is free."""
        self.state = self._engine.release(self.state, [slot])
        self._free.append(slot)

    # ---------------------------------------------------------------------------------------------------- replies
    def _answer(self) -> None:
        """Handles the replies that have arrived."""
        if not self._asked:
            return
        extensions: list[tuple[int, ActiveEpisode]] = []
        replied = self.responders.replied(self._asked)
        for future in sorted(replied, key=lambda f: self._asked[f].order):
            asked = self._asked.pop(future)
            if asked.interaction is not None:
                moves = cast(Mapping[str, Move], future.result())
                extensions += self._move(asked.interaction, moves, asked.slot, asked.episode)
                continue
            episode, slot = asked.episode, asked.slot
            assert episode is not None
            reply = episode.reply_of(future)
            if reply is None and episode.interaction is not None:
                extensions += self._turn_over(slot, episode)
                continue
            extensions += self._continue(slot, episode, episode.observe(reply))
        self._extend(extensions)

    def _continue(self, slot: int | None, episode: ActiveEpisode, outcome: Outcome) -> list[tuple[int, ActiveEpisode]]:
        """Lets an episode with a slot, or in host memory, continue as `outcome` says; returns it if its observation is
        to be appended in its slot."""
        aside = self._aside.pop(episode.index, None)
        anew = outcome == "goes on" and self._anew(episode, slot is None and aside is None)
        if outcome == "goes on" and not anew:
            if slot is not None:
                return [(slot, episode)]
            self._suspended.append(_Suspended(episode, aside, answered=True))
            return []
        self._keep_picks(slot, aside, episode, episode.restarts - (outcome == "starts anew"))
        if slot is not None:
            self._end(slot)
        if anew:
            episode.resume()
        if anew or outcome == "starts anew":
            self._enqueue([episode], first=True)
        elif episode.interaction is not None:
            return self._turn_over(None, episode)
        return []

    # ------------------------------------------------------------------------------------------------ interactions
    def _start(self) -> None:
        """Starts interactions. First turns of one group share a prefill where no thread has to be waited for."""
        for interaction in self._interactions.start():
            self._advance_interaction(interaction, None, None)
        rows: list[ActiveEpisode] = []
        for interaction in self._interactions.start_immediate():
            _, placed, again = self._interactions.step(interaction, interaction.advance(), None)
            rows += placed
            if again:
                self._advance_interaction(interaction, None, None)
        self._enqueue(rows)

    def _advance_interaction(
        self, interaction: ActiveInteraction, slot: int | None, episode: ActiveEpisode | None
    ) -> list[tuple[int, ActiveEpisode]]:
        """Asks the driver for its moves: at once, see `_move` for what is returned, or in a thread."""
        if interaction.immediate:
            return self._move(interaction, interaction.advance(), slot, episode)
        self._asked[self.responders.ask(interaction.advance)] = _Asked(slot, episode, interaction)
        return []

    def _turn_over(self, slot: int | None, episode: ActiveEpisode) -> list[tuple[int, ActiveEpisode]]:
        """An agent has ended its turn. The last of those that were asked together lets the rollout go on; one that was
        asked alone keeps its slot meanwhile. Returns as `_move`."""
        interaction: ActiveInteraction = episode.interaction
        interaction.answered(episode)
        keeps = interaction.alone and (slot is not None or episode.index in self._aside)
        if not keeps:
            aside = self._aside.pop(episode.index, None)
            self._keep_picks(slot, aside, episode, episode.restarts)
            if slot is not None:
                self._end(slot)
        if not interaction.complete:
            return []
        return self._advance_interaction(interaction, slot if keeps else None, episode if keeps else None)

    def _move(
        self,
        interaction: ActiveInteraction,
        moves: Mapping[str, Move],
        slot: int | None,
        episode: ActiveEpisode | None,
    ) -> list[tuple[int, ActiveEpisode]]:
        """Lets an interaction go on with its driver's moves; returns observations that are to be appended in slots.
        slot, episode: see `_Asked`."""
        kept, placed, again = self._interactions.step(interaction, moves, episode)
        extensions: list[tuple[int, ActiveEpisode]] = []
        if episode is not None and kept != "over":
            extensions = self._continue(slot, episode, kept)
        elif episode is not None:
            aside = self._aside.pop(episode.index, None)
            self._keep_picks(slot, aside, episode, episode.restarts)
            if slot is not None:
                self._end(slot)
        self._enqueue([row for row in placed if row.begun], first=True)
        self._enqueue([row for row in placed if not row.begun])  # others have waited longer
        if again:
            extensions += self._advance_interaction(interaction, None, None)
        return extensions

    def _extend(self, asked: Sequence[tuple[int, ActiveEpisode]]) -> None:
        if not asked:
            return
        try:
            self._append(asked)
        except OutOfPages:
            for slot, episode in asked:
                self._append_or_set_aside(slot, episode)

    def _anew(self, episode: ActiveEpisode, lost: bool) -> bool:
        """Whether a row that goes on is computed from its tokens: its cache is gone (`lost`), a turn was cut before
        what was computed as one piece, or newer weights took over here."""
        if lost or episode.appended[0] < episode.computed - 1:
            return True
        border = None if self._schedule is None else self._schedule.border(row_of(episode), episode.computed)
        return border == episode.length

    def _append(self, part: Sequence[tuple[int, ActiveEpisode]]) -> None:
        extensions = [Extension(s, *episode.appended, self._limit(episode), episode.key) for s, episode in part]
        self.state = self._engine.extend(self.state, extensions)
        self._filling |= dict(part)

    def _append_or_set_aside(self, slot: int, episode: ActiveEpisode) -> None:
        """Appends the observation, for which others are set aside; without others, the episode itself."""
        while True:
            try:
                return self._append([(slot, episode)])
            except OutOfPages as error:
                if not self._settle() and not self._set_aside(error.shard):
                    self._suspended.append(_Suspended(episode, self._engine.set_aside(self.state, slot), answered=True))
                    self._free.append(slot)
                    return

    def _ask(self, slot: int | None, episode: ActiveEpisode) -> None:
        self._asked[self.responders.ask(episode.ask)] = _Asked(slot, episode)

    # ------------------------------------------------------------------------------------------------- out of memory
    def _settle(self) -> bool:
        """Reads a dispatch, or computes all prompts and observations: the pages reserved for more than they turn out to
        need are free again. False if there is nothing of the kind."""
        if self._flight:
            self._read()
        elif self._filling:
            self._advance(None)
        else:
            return False
        return True

    def _set_aside(self, shard: int) -> bool:
        """Moves the episode that was placed last on a shard to host memory; False if there is none.

        Nothing is in flight, so the length of every slot is known. Which episode it is changes no token, only when it
        goes on.
        """
        waiting = {asked.slot: future for future, asked in self._asked.items() if asked.slot is not None}
        here = [slot for slot in (*self._live, *waiting) if slot // self._engine.slots == shard]
        if not here:
            return False
        slot = max(here, key=lambda slot: self._since[slot])
        if slot in self._live:
            self.state = self._engine.pause(self.state, [slot])
            episode = self._live.pop(slot)
            self._suspended.append(_Suspended(episode, self._engine.set_aside(self.state, slot), answered=False))
        else:
            asked = self._asked[waiting[slot]]
            episode = asked.episode
            assert episode is not None
            self._asked[waiting[slot]] = replace(asked, slot=None)
            self._aside[episode.index] = self._engine.set_aside(self.state, slot)
        self._free.append(slot)
        return True

    def _resume(self) -> None:
        """Returns episodes from host memory, in the order in which they were set aside, while there is room."""
        while self._suspended and self._free:
            one = self._suspended[0]
            kept, appended = one.episode.appended if one.answered else (one.aside.length, [])
            if not self._engine.fits(self.state, one.aside, kept, len(appended), self._free[-1]):
                return
            self._suspended.popleft()
            slot = self._seat(one.episode)
            placement = self._placement(slot, one.episode)
            self.state = self._engine.bring_back(
                self.state, one.aside, slot, one.episode.last_id, placement, live=not one.answered
            )
            if one.answered:
                self._append_or_set_aside(slot, one.episode)
            else:
                self._begin(slot, one.episode)

    # ------------------------------------------------------------------------------------------------- new weights
    def land(self) -> None:
        """Makes tokens of everything under way: no slot is in use, and what has tokens waits to be computed from them;
        a row that waits for its responder is computed together with the reply. Picks are read before."""
        while self._flight:
            self._read()
        rows = {**self._live, **self._filling}
        if self._live:
            self.state = self._engine.pause(self.state, [*self._live])
        self._live, self._filling = {}, {}
        for future, asked in self._asked.items():
            if asked.episode is not None:
                aside = self._aside.pop(asked.episode.index, None)
                self._keep_picks(asked.slot, aside, asked.episode, asked.episode.restarts)
                if asked.slot is not None:
                    self._end(asked.slot)
                    self._asked[future] = replace(asked, slot=None)
        suspended, self._suspended = self._suspended, deque()
        for one in suspended:
            self._keep_picks(None, one.aside, one.episode, one.episode.restarts)
        for slot in sorted(rows, key=lambda slot: self._since[slot], reverse=True):
            self._leave(slot, rows[slot])
        for one in suspended:
            one.episode.resume()
        self._enqueue([one.episode for one in suspended])
        while self._picked:
            self._picked.pop().fetch_picks()

    def swap(self, params: Any, version: int) -> None:
        """Goes on with newer weights after `land`, from an empty cache: what waited for them may be computed. version:
        how many updates they have had."""
        assert not self.used, "land() comes first"
        if self._schedule is not None:
            self._schedule.swapped(version)
        self.params, self.version = params, version
        if self._drafter is not None:
            self._drafter.clear()
        self._interactions.most = self._most_under_way
        self.state = self._engine.init_decode_state()
        held, self._held = self._held, []
        self._enqueue(held, first=True)

    def _leave(self, slot: int, episode: ActiveEpisode) -> None:
        """A row leaves its slot, to be computed from its tokens."""
        self._keep_picks(slot, None, episode, episode.restarts)
        self._end(slot)
        episode.resume()
        self._enqueue([episode], first=True)

    # ---------------------------------------------------------------------------------------------------- decoding
    def _launch(self) -> None:
        """Launches a dispatch for the slots that decode as far as the host knows.

        Pages are reserved for everything in flight. If there are too few, what is in flight is read first.
        """
        config = self._engine.config
        waits = self._queue or self._suspended or self._more
        patience = max(1, config.slots // REFILL) if waits else None
        drafts = self._drafts()
        while self._live:
            try:
                self.state, result = self._engine.generate(self.params, self.state, patience, drafts)
            except OutOfPages as error:
                if not self._settle():
                    self._set_aside(error.shard)
                drafts = self._drafts()
            else:
                self._flight.append(_Dispatch(result, {slot: self._turn[slot] for slot in self._live}, drafts))
                return

    def _drafts(self) -> Drafts:
        """Drafts for the next dispatch, if there are rows for them: everything in flight is read first. As a dispatch
        with drafts has one step, and the host waits for it, they are used if half of the slots have one."""
        if self._drafter is None or not self._engine.draft_room(self.state):
            return {}
        while self._flight:
            self._read()
        room = self._engine.draft_room(self.state)
        drafts = {slot: self._drafter.draft(self._live[slot], most) for slot, most in room.items()}
        drafts = self._engine.trimmed(self.state, {slot: ids for slot, ids in drafts.items() if ids})
        return drafts if 2 * len(drafts) >= len(self._live) else {}

    def _read(self) -> None:
        """Waits for the oldest dispatch and distributes its tokens to the turns that still go on."""
        dispatch = self._flight.popleft()
        self.dispatches += 1
        self.steps += 1 if dispatch.drafts else self._engine.config.decode_steps
        slots = [slot for slot, turn in dispatch.turns.items() if slot in self._live and self._turn[slot] == turn]
        result = self._engine.read(self.state, dispatch.result, slots)
        while self._picked:
            self._picked.pop().fetch_picks()
        paused, ended, turned = [], [], []
        for slot in slots:
            episode, finish = self._live[slot], None
            if self._drafter is not None and slot in dispatch.drafts:
                self._drafter.verified(len(dispatch.drafts[slot]), int(result.counts_S[slot]) - 1)
            try:
                for token, logprob, entropy in result.sampled(slot):
                    finish = episode.take(token, logprob, entropy, None if self._schedule is None else self.version)
                    if finish is not None:
                        break  # tokens sampled after a stop string are discarded
            except NonFiniteError as error:
                self.drop(episode)
                self._failed.append((episode, error))
                continue
            if finish is None and result.live_S[slot]:
                continue
            del self._live[slot]
            if finish is None:
                assert episode.length == self._limit(episode), "the device ended a turn that the host is continuing"
                self._leave(slot, episode)
                continue
            if self._drafter is not None:
                self._drafter.turn_over(episode)
            if result.live_S[slot]:
                paused.append(slot)
            if episode.asks:
                self._ask(slot, episode)
            elif episode.interaction is not None:
                turned.append((slot, episode))
            else:
                episode.end()
                ended.append((slot, episode))
        if paused:
            self.state = self._engine.pause(self.state, paused)
        for slot, episode in ended:
            self._keep_picks(slot, None, episode, episode.restarts)
            self._end(slot)
        self._extend([extension for place in turned for extension in self._turn_over(*place)])
