"""One episode, built token by token: where its turns end, and what it returns. Independent of the engine."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal

import numpy as np

from scope_jax.rollouts.keys import stretch_key
from scope_jax.rollouts.thoughts import StopStrings
from scope_jax.rollouts.types import (
    Completion,
    Continuation,
    NonFiniteError,
    Request,
    Restart,
    RolloutError,
    Row,
    TextCodec,
    Turn,
)

Outcome = Literal["over", "goes on", "starts anew"]
SampledTokens = list[tuple[int, float, float | None, int | None]]  # id, log-prob, entropy, version of the weights
_LOOK_BACK = 64  # tokens at the end of a prompt searched for the opening mark of thinking


class ActiveEpisode:
    """The host side of one request: prompt, turns so far and the turn that is being sampled.

    max_length: most tokens of one row in the engine. prompt: of the current row. stretch: counts the stretches of
    sampled tokens; a new one begins with each restart and wherever tokens were dropped.
    """

    def __init__(self, request: Request, index: int, tokenizer: TextCodec, max_length: int) -> None:
        self.request = request
        self.index = index  # of the request in the call
        self.prompt = np.asarray(request.prompt_ids, np.int32)
        if self.prompt.ndim != 1 or not len(self.prompt):
            raise ValueError(f"Request {index} has no prompt; give at least one token id.")
        for name in ("max_turns", "max_prompt_tokens", "max_response_tokens"):
            limit = vars(request)[name]
            if limit is not None and limit < 1:
                raise ValueError(f"Request {index} has {name}={limit}; it must be at least 1.")
        self.stretch = 0
        self.turns: list[Turn] = []
        self.interaction: Any = None  # the `ActiveInteraction` that it is a row of
        self.order = 0  # among those that wait for a slot, lower numbers come first
        self.name: tuple[Any, ...] = ()  # of it in a schedule (`rollouts.schedule`); (): it is in none
        self.given: deque[SampledTokens] = deque()  # of the turns that it had in an earlier process
        self.history: list[SampledTokens] = []  # of its turns, as they were before they were cut; kept with a name
        self.computed = 0  # tokens of the row when its cache was last computed from them
        self.finish_reason: str | None = "overflow" if self._too_long(max_length) else None
        self._tokenizer = tokenizer
        self._room, self._full = _room(request, len(self.prompt), max_length)
        self._first_prompt = self.prompt
        self._before = len(self.prompt)  # length of the row before the current turn
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._entropies: list[float] = []  # empty if they are not measured
        self._versions: list[int] = []  # empty if they are not counted
        self._picks: dict[int, list[_Picks]] = {}  # by row, see `keep_picks`
        self._begin_turn(self.prompt)

    def _too_long(self, max_length: int) -> bool:
        limit = self.request.max_prompt_tokens
        return len(self.prompt) >= max_length or (limit is not None and len(self.prompt) > limit)

    @property
    def grouped(self) -> int:
        """Tokens in the cache that the current row begins with and that its whole group begins with; 0 without one."""
        if self.request.group is None:
            return 0
        size = min(len(self.prompt) - 1, len(self._first_prompt))
        differ = np.flatnonzero(self.prompt[:size] != self._first_prompt[:size])
        return int(differ[0]) if len(differ) else size

    @property
    def begun(self) -> bool:
        """Whether anything was sampled: its prompt is not, or no longer, that of its group."""
        return bool(self.turns or self._ids)

    @property
    def key(self) -> np.ndarray:
        """uint32[2]: the key of the stretch that is sampled next; the request has one."""
        assert self.request.key is not None
        return stretch_key(self.request.key, self.stretch)

    @property
    def length(self) -> int:
        """Length of the current row so far, prompt included."""
        return self._before + len(self._ids)

    @property
    def ids(self) -> np.ndarray:
        """int32, the tokens of the current row so far, prompt included."""
        start = max((place for place, turn in enumerate(self.turns) if turn.restarts), default=-1)
        head = self._first_prompt if start < 0 else self.turns[start].ids
        ids = [turn.ids for turn in self.turns[start + 1 :]]
        return np.concatenate([head, *ids, np.asarray(self._ids, np.int32)]).astype(np.int32)

    @property
    def last_id(self) -> int:
        """The last token of the current row so far."""
        ids = self._ids or (self.turns[-1].ids if self.turns else self.prompt)
        return int(ids[-1])

    @property
    def sampling(self) -> tuple[list[int], list[float]]:
        """Ids and log-probs of the turn that is being sampled, so far."""
        return self._ids, self._logprobs

    @property
    def tokens(self) -> SampledTokens:
        """Those of the turn that is being sampled, so far."""
        missing = [None] * len(self._ids)
        return [*zip(self._ids, self._logprobs, self._entropies or missing, self._versions or missing, strict=True)]

    @property
    def limit(self) -> int:
        """The row length at which a turn that starts now must end."""
        return min(self._before + self.request.params.max_tokens, self._room)

    def take(self, token: int, logprob: float, entropy: float | None = None, version: int | None = None) -> str | None:
        """Adds a sampled token; returns the finish reason if it ends the turn, else None. entropy: of its distribution,
        if measured. version: of the weights, if counted. Raises NonFiniteError, without adding it, if its log-prob is
        not finite: then NaN or +inf was among the logits, or nothing but -inf."""
        params = self.request.params
        if not math.isfinite(logprob):
            raise NonFiniteError(
                f"the decode program gave no finite logits for token {self.length} of an episode; the "
                "weights, or the numbers that follow from them, are not finite: check the weights, or set "
                'model.compute_dtype = "float32".'
            )
        self._ids.append(token)
        self._logprobs.append(logprob)
        if entropy is not None:
            self._entropies.append(entropy)
        if version is not None:
            self._versions.append(version)
        finish = None
        if token in params.stop_ids:
            finish = "eos" if token in self._tokenizer.eos_ids else "stop"
        elif params.stop and self._stops.completed_by(self._tokenizer.token_bytes(token)):
            finish = "stop"
        elif params.ends and self._ends.completed_by(self._tokenizer.token_bytes(token)):
            finish, self._ended_by_text = "eos", True
        elif len(self._ids) >= params.max_tokens:
            finish = "length"
        elif self.length >= self._room:
            finish = self._full
        if finish is not None:
            self.close(finish)
        return finish

    def _begin_turn(self, read: np.ndarray) -> None:
        """Prepares for a turn that follows the ids `read`."""
        params = self.request.params
        end = "" if params.thought is None else self._tokenizer.decode(read[-_LOOK_BACK:].tolist()).rstrip()
        self._opened = params.thought is not None and end.endswith(params.thought[0])
        self._left_out = None if params.tags_in_thinking else params.thought
        self._stops = StopStrings(params.stop, self._left_out, self._opened)
        self._ends, self._ended_by_text = StopStrings(params.ends, None, False), False

    def close(self, finish: str) -> None:
        """Ends the turn that is being sampled."""
        ids, params = self._ids, self.request.params
        if self._ended_by_text:
            text = self._tokenizer.decode(ids)
            text = text[: min((place for place in map(text.find, params.ends) if place >= 0), default=len(text))]
        else:
            text = self._tokenizer.decode(ids[:-1] if finish == "eos" or ids[-1] in params.stop_ids else ids)
        arrays = np.asarray(ids, np.int32), np.asarray(self._logprobs, np.float32)
        if self.name:
            self.history.append(self.tokens)
        entropies = np.asarray(self._entropies, np.float32) if self._entropies else None
        versions = np.asarray(self._versions, np.int32) if self._versions else None
        self._add(
            Turn(
                "sampled",
                *arrays,
                text,
                finish,
                opened=self._opened,
                thought=self._left_out,
                entropies=entropies,
                versions=versions,
            )
        )

    def _add(self, turn: Turn) -> None:
        self.turns.append(turn)
        self._before += len(turn.ids)
        self._ids, self._logprobs, self._entropies, self._versions = [], [], [], []

    @property
    def asks(self) -> bool:
        """True if there is a responder for the turn that just ended."""
        return self.request.respond is not None

    def ask(self) -> object:
        """The responder's reply to the turns so far; `observe` checks its type."""
        assert self.request.respond is not None
        return self.request.respond(tuple(self.turns))

    def end(self) -> None:
        """Ends the episode with the reason of its last turn."""
        self.finish_reason = self.turns[-1].finish

    def reply_of(self, answer: Future[object]) -> object:
        """The responder's reply; its exception is raised here, with a note that names the request."""
        if (error := answer.exception()) is not None:
            error.add_note(f"raised by the responder of request {self.index} after turn {len(self.turns)}")
            raise error
        return answer.result()

    def observe(self, reply: object) -> Outcome:
        """Adds a reply to the last turn as an observation, and returns how the episode continues.

        Tokens of the turn that the reply does not keep are dropped in every case. The episode "goes on" with
        `appended`, or "starts anew" from the new `prompt`. Raises RolloutError for a reply of another type, or one that
        keeps more tokens than the turn has.
        """
        if reply is None:
            self.end()
            return "over"
        if isinstance(reply, Continuation | Restart) and reply.kept is not None:
            self._keep(reply.kept)
        if sum(turn.kind == "sampled" for turn in self.turns) >= self.request.max_turns:
            self.finish_reason = "turns"
            return "over"
        if isinstance(reply, Restart):
            return self._restart(reply)
        if isinstance(reply, Continuation):
            ids, text = np.asarray(reply.ids, np.int32).reshape(-1), reply.text
        elif isinstance(reply, str):
            ids, text = np.asarray(self._tokenizer.encode(reply), np.int32), reply
        else:
            raise RolloutError(
                f"The responder of request {self.index} returned {type(reply).__name__}; it must return text, a "
                "Continuation, a Restart or None."
            )
        if self.length + len(ids) >= self._room:
            self.finish_reason = self._full
            return "over"
        self._add(Turn("observation", ids, np.zeros(len(ids), np.float32), text, None))
        self._begin_turn(ids)
        return "goes on"

    def _keep(self, count: int) -> None:
        """Drops the last turn's tokens after the first `count`."""
        turn = self.turns[-1]
        if not 1 <= count <= len(turn.ids):
            raise RolloutError(
                f"The responder of request {self.index} keeps {count} tokens of a turn that has {len(turn.ids)}."
            )
        if count < len(turn.ids):
            self.turns[-1] = turn.first(count, self._tokenizer.decode)
            self._before -= len(turn.ids) - count
            self.stretch += 1
            for kept in self._picks.get(self.restarts, []):
                kept.length = None if kept.length is None else min(kept.length, self._before)

    @property
    def appended(self) -> tuple[int, list[int]]:
        """After a reply: (length of the row before the turn's last token, that token and the observation)."""
        turn, observation = self.turns[-2:]
        ids = [int(turn.ids[-1]), *observation.ids.tolist()]
        return self.length - len(ids), ids

    @property
    def exhausted(self) -> bool:
        """Whether no further turn can be sampled."""
        turns = sum(turn.kind == "sampled" for turn in self.turns)
        return self.finish_reason is not None or turns >= self.request.max_turns or self.length >= self._room

    @property
    def restarts(self) -> int:
        """Rows before the current one."""
        return sum(turn.restarts for turn in self.turns)

    def keep_picks(self, row: int, picks: Callable[[], np.ndarray] | np.ndarray) -> None:
        """Takes what `Engine.picks` has of a row, which may go on; `fetch_picks` waits for it. What is computed anew
        afterwards counts for the tokens behind those that it has now: a sampled token keeps what was picked when it was
        sampled."""
        length = self.length if row == self.restarts else None
        self._picks.setdefault(row, []).append(_Picks(length, picks))

    def fetch_picks(self) -> None:
        for kept in self._picks.values():
            for one in kept:
                one.fetch()

    def resume(self) -> None:
        """Makes all of the current row the prompt that is computed next, as the row has left its slot, also in the
        middle of a turn. Its tokens stay what they are, and so do the keys of those to come."""
        self.prompt = self.ids

    def _restart(self, reply: Restart) -> Outcome:
        prompt = np.asarray(reply.prompt_ids, np.int32).reshape(-1)
        if not len(prompt):
            raise RolloutError(f"The responder of request {self.index} returned a Restart without a prompt.")
        if len(prompt) >= self._room:
            self.finish_reason = self._full
            return "over"
        self.turns.append(Turn("observation", prompt, np.zeros(len(prompt), np.float32), reply.text, None, True))
        self.prompt, self.stretch, self._before = prompt, self.stretch + 1, len(prompt)
        self._begin_turn(prompt)
        return "starts anew"

    def completion(self) -> Completion:
        """The episode as it is now, once it is over."""
        assert self.finish_reason is not None
        self.fetch_picks()
        return self._completion(self.finish_reason, self._picks)

    def so_far(self) -> Completion:
        """The episode if it ends with its last turn, without picks, which only the thread of the engine fetches."""
        finish = self.finish_reason or self.turns[-1].finish
        assert finish is not None, "it waits for a turn"
        return self._completion(finish, {})

    def _completion(self, finish: str, picks: dict[int, list[_Picks]]) -> Completion:
        rows, prompt, parts = [], self._first_prompt, []
        for turn in self.turns:
            if turn.restarts:
                rows.append(_row(prompt, parts, picks.get(len(rows), [])))
                prompt, parts = turn.ids, []
            else:
                parts.append(turn)
        rows.append(_row(prompt, parts, picks.get(len(rows), [])))
        return Completion(
            rows=tuple(rows),
            turns=tuple(self.turns),
            finish_reason=finish,
            calls=tuple(self.request.calls()),
        )


def _room(request: Request, prompt: int, max_length: int) -> tuple[int, str]:
    """(most tokens of a row after a first prompt of this length, finish reason of an episode that reaches them)."""
    response = request.max_response_tokens
    if response is None or prompt + response >= max_length:
        return max_length, "overflow"
    return prompt + response, "length"


def _row(prompt: np.ndarray, turns: list[Turn], picks: list[_Picks]) -> Row:
    ids, flags, logprobs = np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, np.float32)
    length = len(prompt) + sum(len(turn.ids) for turn in turns)
    return Row(
        prompt_ids=prompt,
        ids_T=np.concatenate([ids, *(turn.ids for turn in turns)]),
        sampled_T=np.concatenate([flags, *(np.full(len(turn.ids), turn.kind == "sampled") for turn in turns)]),
        logprobs_T=np.concatenate([logprobs, *(turn.logprobs for turn in turns)]),
        entropies_T=_measured(turns, [turn.entropies for turn in turns], np.float32),
        picked_TLk=_padded(picks, length) if picks else None,
        versions_T=_measured(turns, [turn.versions for turn in turns], np.int32),
    )


def _measured(turns: list[Turn], values: list[np.ndarray | None], dtype: Any) -> np.ndarray | None:
    """The values of all tokens, 0 of turns that have none; None if no turn has any."""
    if all(each is None for each in values):
        return None
    pairs = zip(turns, values, strict=True)
    return np.concatenate([np.zeros(len(turn.ids), dtype) if each is None else each for turn, each in pairs])


class _Picks:
    """What `Engine.picks` had of a row when that left its slot. length: tokens of the row then, the last of which was
    not computed yet; None: they were all of the row."""

    def __init__(self, length: int | None, picks: Callable[[], np.ndarray] | np.ndarray) -> None:
        self.length = length
        self._picks = picks

    def fetch(self) -> np.ndarray:
        """[tokens, L, k], once they are there."""
        if callable(self._picks):
            self._picks = self._picks()
        return self._picks


def _padded(kept: list[_Picks], tokens: int) -> np.ndarray:
    """The picks of a row of so many tokens, each as they were when the token was first computed; of the last one there
    are none, as it is computed or not by chance."""
    parts: list[np.ndarray] = []
    known = 0
    for one in kept:
        last = tokens - 1 if one is kept[-1] or one.length is None else min(one.length, tokens) - 1
        picks = one.fetch()[known : max(known, last)]
        parts.append(picks)
        known += len(picks)
    return np.concatenate([*parts, np.zeros((tokens - known, *parts[0].shape[1:]), parts[0].dtype)])
