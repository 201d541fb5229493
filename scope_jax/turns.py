"""How the turns of a conversation are joined: what a policy reads between two of its turns, as tokens.

A responder of a game answers a turn with text. Three conventions make tokens of it (`model.turns` of a card):

    raw           the text, with line breaks around it, goes on where the turn ended; no message ends (SSP, Search-R1)
    chat          the template closes the policy's message, the text is a message of its own, a new one of the policy's
                  begins; all thinking stays visible (SCOPE with Qwen2.5 and OLMo-3)
    chat-trimmed  the whole conversation is rendered anew, without the thinking of earlier turns, as Qwen3 is used; the
                  next turn follows this new prompt and is a training row of its own (SCOPE App. E)

Raw and chat keep one sequence of tokens, exactly those that were sampled. In chat-trimmed turns the template renders
the text of earlier turns again, and their ids may differ from the sampled ones; they are prompt there, never trained,
and the row in which they were sampled keeps them as they were.

What documents say was neutralised before it comes here. Beyond that, no tag of ours in an observation becomes a token
of its own (Qwen3's vocabulary has some), except the one around the results. Only where results come in a user's message
and everything is rendered anew does this second guard not stand, since there the prompt is a user's message too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from models.chat import HistoryRewritten
from rollouts.types import Continuation, Reply, Restart, Turn
from scope_jax import parsing
from scope_jax.dialects import Dialect

Mode = Literal["raw", "chat", "chat-trimmed"]
SHORT = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "!"})


@runtime_checkable
class ChatCodec(Protocol):
    """What joining asks of a tokenizer."""

    @property
    def eos_ids(self) -> Sequence[int]: ...

    def encode(self, text: str, forbid: Collection[str] = ()) -> list[int]: ...

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        forbid: Collection[str] = (),
        trusted: Collection[str] = (),
        **template_options: Any,
    ) -> list[int]: ...

    def continuation(
        self,
        messages_before: Sequence[Mapping[str, Any]],
        observation: Mapping[str, Any],
        *,
        forbid: Collection[str] = (),
        trusted: Collection[str] = (),
        **template_options: Any,
    ) -> list[int]: ...

    def decode(self, ids: Any) -> str: ...


@dataclass(frozen=True)
class Cut:
    """An answer to the beginning of a turn: what the turn says from character `end` of its text on is dropped.

    A token in which the beginning ends stays whole. An end token that alone comes behind it stays, too, where messages
    have ends.
    """

    end: int
    text: str


Respond = Callable[[tuple[Turn, ...]], str | Cut | None]


def raw(text: str) -> str:
    """An observation as it stands in a raw stream of tokens."""
    return f"\n{text}\n\n"


@dataclass(frozen=True)
class Joiner:
    """Turns of one model: mode, template and dialect. options: variables of the template.

    Raises ValueError if the template leaves out messages of the dialect's role, or in chat turns does not go on from
    what was said.
    """

    mode: Mode
    tokenizer: ChatCodec
    dialect: Dialect
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode == "raw":
            return
        message = self.dialect.message(self.dialect.observation(["probe"]))
        try:
            ids = self.glue(message) if self.mode == "chat" else self._rendered([*SHORT, message])
        except HistoryRewritten:
            raise ValueError(
                'With model.turns = "chat" the chat template and its options rewrite what was said before, so that '
                'sampled tokens would not stay as they are; choose model.turns = "chat-trimmed", which renders every '
                "turn anew."
            ) from None
        if "probe" not in self.tokenizer.decode(ids):
            raise ValueError(
                f"The chat template leaves out messages of role {message['role']!r}, in which the dialect gives search "
                'results; choose another model.dialect, or model.turns = "raw".'
            )

    def responder(self, respond: Respond, prompt: str) -> Callable[[tuple[Turn, ...]], Reply]:
        """The responder of a `Request` that began with one user message, `prompt`, from a game's."""

        def reply(turns: tuple[Turn, ...]) -> Reply:
            answer = respond(turns)
            if answer is None:
                return None
            text, kept = (answer, None) if isinstance(answer, str) else (answer.text, self._kept(turns[-1], answer.end))
            if kept is not None:
                turns = (*turns[:-1], turns[-1].first(kept, self.tokenizer.decode))
            if self.mode == "raw":
                return Continuation(self.tokenizer.encode(raw(text), self._forbidden), raw(text), kept)
            if self.mode == "chat":
                return Continuation(self._after(turns[-1], self.dialect.message(text)), text, kept)
            return Restart(self._anew(prompt, turns, text), text, kept)

        return reply

    def _kept(self, turn: Turn, end: int) -> int | None:
        """How many tokens of a turn hold the first `end` characters of its text; None if nothing has to be dropped."""
        ids, head = turn.ids.tolist(), turn.text[:end]
        enough = bisect_left(
            range(1, len(ids)), True, key=lambda count: self.tokenizer.decode(ids[:count]).startswith(head)
        )
        count = enough + 1
        ended = turn.finish == "eos" and self.mode != "raw"
        return None if count == len(ids) - ended else count

    def glue(self, message: Mapping[str, str]) -> list[int]:
        """Ids from the end of the policy's message up to the beginning of its next, with `message` in between.

        Taken from a short conversation, for they are the same after every turn, whatever a policy may say in it.
        """
        return self.tokenizer.continuation(
            SHORT, message, forbid=self._forbidden, trusted=("assistant",), **self.options
        )

    def _after(self, turn: Turn, message: Mapping[str, str]) -> list[int]:
        """The glue after a turn; where the policy has ended it with an end token of its own, that one stands.

        Llama 3.1 has several, and ends a call with another one than an answer.
        """
        ids = self.glue(message)
        return ids[1:] if turn.finish == "eos" and ids[0] in self.tokenizer.eos_ids else ids

    def _anew(self, prompt: str, turns: Sequence[Turn], text: str) -> list[int]:
        """The prompt of the next turn: the conversation so far without thinking, and `text` as its last message."""
        messages: list[Mapping[str, str]] = [{"role": "user", "content": prompt}]
        for turn in turns:
            if turn.kind == "sampled":
                messages.append({"role": "assistant", "content": parsing.without_thought(turn.text)})
            else:
                messages.append(self.dialect.message(turn.text))
        return self._rendered([*messages, self.dialect.message(text)])

    def _rendered(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        trusted = ("assistant", "user")  # a prompt may show what a search looks like
        return self.tokenizer.encode_chat(messages, forbid=self._forbidden, trusted=trusted, **self.options)

    @property
    def _forbidden(self) -> list[str]:
        """Tags that an observation's text must not hold as tokens."""
        names = sorted({*parsing.FOREIGN, *self.dialect.tags} - {self.dialect.results.tag})
        return [tag for name in names for tag in (f"<{name}>", f"</{name}>")]
