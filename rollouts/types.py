"""The types of generation: Request (what to sample), Turn (what was sampled), Completion (the result)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from scope_jax.errors import UserError
from scope_jax.rollouts.thoughts import THOUGHT, Marks, blanked, thoughts


class RolloutError(RuntimeError):
    """An episode that failed: one sentence with the request and the reason."""


class NonFiniteError(RolloutError, UserError):
    """The model computed NaN or infinity for an episode: one sentence with the program and the token."""


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of a request are sampled."""

    temperature: float
    """0: greedy."""
    top_k: int
    """Tokens of a distribution that are drawn from; 0: all. It comes before top_p."""
    top_p: float
    """Mass of the most probable tokens that are drawn from; 1: all."""
    max_tokens: int
    """Most sampled tokens of one turn."""
    stop: tuple[str, ...]
    """Strings that end a turn with the token that completes them."""
    stop_ids: tuple[int, ...]
    """Ids that end a turn and are kept in it; the tokenizer's end tokens belong here."""
    tempered_logprobs: bool
    """Report log softmax(logits / temperature) instead of log softmax(logits); neither is renormalised after top_k or
    top_p."""
    thought: Marks | None = None
    """The opening and closing mark of thinking, if turns may contain any; a turn starts inside thinking if its prompt
    ends with the opening mark."""
    tags_in_thinking: bool = False
    """Stop strings also count inside thinking."""
    ends: tuple[str, ...] = ()
    """Strings that end a turn as an end token does, also inside thinking; their tokens are kept, but the turn's text
    ends before them."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"SamplingParams.temperature is {self.temperature}; it must be 0 (greedy) or more.")
        if self.top_k < 0:
            raise ValueError(f"SamplingParams.top_k is {self.top_k}; it must be 0 (off) or more.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"SamplingParams.top_p is {self.top_p}; it must lie in (0, 1], 1 is off.")
        if self.max_tokens < 1:
            raise ValueError(f"SamplingParams.max_tokens is {self.max_tokens}; a turn has at least one token.")
        if "" in self.stop:
            raise ValueError("SamplingParams.stop holds an empty string, which would stop everywhere; remove it.")
        if "" in self.ends:
            raise ValueError("SamplingParams.ends holds an empty string, which would stop everywhere; remove it.")
        if self.thought is not None and "" in self.thought:
            raise ValueError("SamplingParams.thought has an empty mark; give both, or None.")


@dataclass(frozen=True)
class Turn:
    """A piece of an episode after the prompt: tokens of the policy, or of an observation."""

    kind: Literal["sampled", "observation"]
    ids: np.ndarray
    """int32"""
    logprobs: np.ndarray
    """float32, 0 in observations."""
    text: str
    """The decoded ids without the stop id, or up to a string of `ends`; for observations a readable form. It lacks the
    mark of a thought that the prompt opened, which `written` has."""
    finish: str | None
    """How a sampled turn ended. "stop": a stop string or stop id, "eos": an end token or a string of `ends`, "length":
    max_tokens or max_response_tokens, "overflow": the engine's length, "cut": the responder kept only its beginning.
    None for observations."""
    restarts: bool = False
    """An observation that replaces the context by a new prompt; `ids` is that whole prompt."""
    opened: bool = False
    """The turn started inside thinking."""
    thought: Marks | None = None
    """Marks of thinking to leave out of `content`; None: nothing is left out."""
    entropies: np.ndarray | None = None
    """float32, nats, of the distribution that each log-prob is of; None: not measured."""
    versions: np.ndarray | None = None
    """int32: of each token, how many updates the weights had that sampled it; None: not counted."""

    @property
    def content(self) -> str:
        """The text with thinking replaced by spaces; every other character keeps its position."""
        return blanked(self.text, thoughts(self.text, self.thought, self.opened)) if self.thought else self.text

    @property
    def written(self) -> str:
        """The text with its thinking, which begins with the opening mark, also where the prompt has written that."""
        return (self.thought or THOUGHT)[0] + self.text if self.opened else self.text

    def first(self, count: int, decode: Callable[[list[int]], str]) -> Turn:
        """A sampled turn cut after its first `count` tokens, with the text of those tokens."""
        ids = self.ids[:count]
        kept = {
            name: None if values is None else values[:count]
            for name, values in (("entropies", self.entropies), ("versions", self.versions))
        }
        return replace(self, ids=ids, logprobs=self.logprobs[:count], text=decode(ids.tolist()), finish="cut", **kept)


@dataclass(frozen=True)
class Continuation:
    """A response to a turn as ids, which may include special tokens of a chat template; they are appended."""

    ids: Sequence[int] | np.ndarray
    text: str
    """A readable form."""
    kept: int | None = None
    """How many of the turn's tokens are kept; the others are dropped from the episode. None: all are kept."""


@dataclass(frozen=True)
class Restart:
    """A response to a turn as a whole new prompt: the next turn follows it, without the earlier context."""

    prompt_ids: Sequence[int] | np.ndarray
    text: str
    """The new information, in readable form."""
    kept: int | None = None
    """As in `Continuation`."""


Reply = str | Continuation | Restart | None
Responder = Callable[[tuple[Turn, ...]], Reply]


@dataclass(frozen=True)
class Request:
    """One episode to sample."""

    prompt_ids: Sequence[int] | np.ndarray
    params: SamplingParams
    key: np.ndarray | None
    """uint32[2], raw threefry key data; None: the driver derives one, `LocalRollouts` from its seed, the number of the
    call and the request's index in it."""
    group: str | None
    """Requests of one group have the same prompt and share one prefill."""
    max_turns: int
    """Most sampled turns."""
    respond: Callable[..., Reply] | None
    """The responder. Called in another thread with all turns so far, the last of which may have ended in any way, it
    returns an observation, as text that is encoded and appended, as a `Continuation` or as a `Restart`, or None to end
    the episode. Without a responder the episode has one turn."""
    max_prompt_tokens: int | None = None
    """No turn is sampled after a longer prompt."""
    max_response_tokens: int | None = None
    """How much longer than the first prompt a row may be: without restarts, the number of tokens after the prompt,
    sampled or observed. None: limited by the engine's length only."""
    policy: str | None = None
    """Whose adapter samples, of an engine with adapters; None: the weights themselves."""
    weights: str = ""
    """In an interaction: the name of the weights that sample; the row waits until they are loaded."""
    picks: bool = False
    """Its rows say which experts were picked, of an engine that keeps them."""
    calls: Callable[[], Sequence[ToolResult]] = tuple
    """Called when the episode is over: the calls of tools in its turns."""
    name: tuple[Any, ...] = ()
    """Of its row in a step, plain values: role, rollout, sample and agent."""


@dataclass(frozen=True)
class ToolResult:
    """A call of a tool in an episode, and what the policy read of it."""

    turn: int
    """The number, from 0, of the agent's sampled turn with the call; -1: the rollout itself called the tool."""
    agent: str
    """Who called."""
    tool: str
    """Name of the tool, as called."""
    arguments: Any
    """The arguments as JSON data; None if the call was malformed."""
    text: str
    """What the policy read."""
    status: Literal["ok", "error", "timeout", "malformed"]
    """"error": the tool failed; "malformed": nothing was run."""
    seconds: float = 0.0
    """How long the call took; 0 if its result was recorded by an earlier process, or shared."""


@dataclass(frozen=True)
class Row:
    """A part of an episode that is one token sequence in the engine: a prompt and everything after it."""

    prompt_ids: np.ndarray
    ids_T: np.ndarray
    """int32, the tokens after the prompt, in order."""
    sampled_T: np.ndarray
    """bool, True where the policy sampled the token."""
    logprobs_T: np.ndarray
    """float32, behaviour log-probs, 0 where not sampled."""
    entropies_T: np.ndarray | None = None
    """float32, nats, of the distributions that the log-probs are of, 0 where not sampled; None: not measured."""
    picked_TLk: np.ndarray | None = None
    """The experts that the routers picked of all tokens, those of the prompt first, in the layers with experts, uint8
    or of more than 256 experts uint16; 0 of tokens that were not computed, as the last one. None: not kept."""
    versions_T: np.ndarray | None = None
    """int32: how many updates the weights had that sampled the token, 0 where not sampled. None: not counted."""


@dataclass(frozen=True)
class Completion:
    """One episode as the engine saw it: token in, token out."""

    rows: tuple[Row, ...]
    """One, and one more for each `Restart`; every sampled token is in exactly one of them."""
    turns: tuple[Turn, ...]
    finish_reason: str
    """The last sampled turn's finish, or "turns" if max_turns ended the episode, "overflow" if a prompt, an observation
    or the turn did not fit (if the first prompt: there are no turns), "length" if an observation did not fit into
    max_response_tokens."""
    calls: tuple[ToolResult, ...] = ()
    """The calls of tools in its turns, in order."""

    @property
    def text(self) -> str:
        """All that was written, observations too, and thoughts with the mark that the prompt opened (`Turn.written`):
        what a verdict on the form reads."""
        return "".join(turn.written for turn in self.turns)

    @property
    def content(self) -> str:
        """What was sampled without thinking, which is replaced by spaces: what an answer is read from. "" if the prompt
        was too long to be sampled."""
        return "".join(turn.content for turn in self.turns if turn.kind == "sampled")

    @property
    def prompt_ids(self) -> np.ndarray:
        """The prompt of the first row."""
        return self.rows[0].prompt_ids

    @property
    def ids_T(self) -> np.ndarray:
        """int32: the tokens after the prompts, row by row; the prompts of later rows are not included."""
        return np.concatenate([row.ids_T for row in self.rows])

    @property
    def sampled_T(self) -> np.ndarray:
        """bool, for `ids_T`."""
        return np.concatenate([row.sampled_T for row in self.rows])

    @property
    def logprobs_T(self) -> np.ndarray:
        """float32, for `ids_T`."""
        return np.concatenate([row.logprobs_T for row in self.rows])


@runtime_checkable
class TextCodec(Protocol):
    """What generation needs from a tokenizer."""

    @property
    def eos_ids(self) -> Sequence[int]: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Any) -> str: ...

    def token_bytes(self, id: int) -> bytes: ...


@runtime_checkable
class Rollouts(Protocol):
    """The weights that an engine samples with; implemented by `LocalRollouts` and `ScriptedRollouts`."""

    def load_params(self, params: Any) -> None:
        """Copies stacked weights and samples with them from now on."""
        ...

    @property
    def params(self) -> Any:
        """The weights that requests are sampled with, in the form that `use` takes; None if there are none."""
        ...

    def take_params(self, params: Any) -> Any:
        """Converts stacked weights, which are donated, into the form that `use` takes."""
        ...

    def use(self, taken: Any) -> None:
        """Samples with weights from `take_params` from now on, without a copy; None: no weights."""
        ...

    def load_adapter(self, policy: str, factors: Any) -> None:
        """Copies a policy's factors beside the weights; requests that name it are sampled with them from now on."""
        ...

    def unquantized(self) -> AbstractContextManager[bool]:
        """In this block whole weights sample. Gives whether they otherwise do not: then they are to be loaded anew at
        both ends."""
        ...

    def clear(self) -> None:
        """Frees the cache; weights stay."""
        ...
