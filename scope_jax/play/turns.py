"""How turns of a conversation are joined: the tokens between two turns of a policy.

A game's responder responds to a turn with text. There are three ways to turn it into tokens (`model.turns` of a card):

    raw           the text, surrounded by line breaks, continues where the turn ended; no message ends (SSP, Search-R1)
    chat          the template ends the policy's message, the text is a separate message, and a new message of the
                  policy begins; all thinking stays visible (SCOPE with Qwen2.5 and OLMo-3)
    chat-trimmed  the whole conversation is rendered anew, without the thinking of earlier turns, as Qwen3 is used; the
                  next turn follows this new prompt and is a separate training row (SCOPE App. E)

Raw and chat keep one sequence of tokens, exactly those that were sampled. In chat-trimmed turns the template renders
the text of earlier turns again, and their ids may differ from the sampled ones; they are prompt there, never trained,
and the row in which they were sampled keeps the sampled ids.

Documents are neutralised before they reach this module. In addition, none of our tags in an observation becomes a
special or single token (Qwen3's vocabulary has some), except the one around the results. This second safeguard does not
apply where results come in a user message and everything is rendered anew, since the prompt is a user message too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from models.chat import HistoryRewritten
from rollouts.types import Continuation, Reply, Restart, Turn
from scope_jax.text import parsing
from scope_jax.text.dialects import Dialect
from scope_jax.text.messages import Messages

Mode = Literal["raw", "chat", "chat-trimmed"]
SHORT = Messages("?")
ANSWER = {"role": "assistant", "content": "!"}


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
        tools: Sequence[Mapping[str, Any]] | None = None,
        forbid: Collection[str] = (),
        trusted: Collection[str] = (),
        **template_options: Any,
    ) -> list[int]: ...

    def continuation(
        self,
        messages_before: Sequence[Mapping[str, Any]],
        observation: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
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
    """Prompts and turns of one model: mode, template and dialect. options: variables of the template.

    Raises ValueError if the template does not declare the dialect's tool, leaves out messages of the dialect's role, or
    in chat turns does not go on from what was said.
    """

    mode: Mode
    tokenizer: ChatCodec
    dialect: Dialect
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dialect.tools:
            self._check_tools()
        if self.mode != "raw":
            self._check_results()

    def _check_tools(self) -> None:
        """Raises ValueError unless a prompt with the dialect's tool tells the model of its calls."""
        remedy = "choose the model.dialect of the model's family, or a dialect file without [tool]."
        try:
            ids = self.prompt(replace(SHORT, tools=self.dialect.tools))
        except ValueError as error:
            raise ValueError(f"{str(error).rstrip('.')} when the search is declared as a tool; {remedy}") from None
        if ids == self.prompt(SHORT):
            raise ValueError(f"The chat template leaves out the search that model.dialect declares as a tool; {remedy}")
        if self.dialect.open not in self.tokenizer.decode(ids):
            raise ValueError(
                f"The chat template declares tools but does not mention {self.dialect.open}, which model.dialect uses "
                f"for calls; {remedy}"
            )

    def _check_results(self) -> None:
        """Raises ValueError unless what answers a turn comes behind it, and in full."""
        message = self.dialect.message(self.dialect.observation(["probe"]))
        messages = replace(SHORT, tools=self.dialect.tools)
        try:
            chat = self.mode == "chat"
            ids = self.glue(messages, message) if chat else self._rendered(messages, [ANSWER, message])
        except HistoryRewritten:
            raise ValueError(
                'With model.turns = "chat" the chat template and its options rewrite earlier turns, so that '
                'sampled tokens would change; choose model.turns = "chat-trimmed", which renders every '
                "turn anew."
            ) from None
        if "probe" not in self.tokenizer.decode(ids):
            raise ValueError(
                f"The chat template leaves out messages of role {message['role']!r}, which the dialect uses for search "
                'results; choose another model.dialect, or model.turns = "raw".'
            )

    def check_system(self, file: Path) -> None:
        """Raises ValueError if the template does not render a system message, which `file` gives."""
        try:
            shown = "probe" in self.tokenizer.decode(self.prompt(replace(SHORT, system="probe")))
        except ValueError:
            shown = False
        if not shown:
            raise ValueError(
                f"The chat template does not support system messages, but {file} exists; remove it and put its "
                "text into the user prompt, or set another model.chat_template."
            )

    def prompt(self, messages: Messages) -> list[int]:
        """Ids of a prompt, up to where the policy's first turn begins. Raises ValueError if the template refuses it."""
        return self._rendered(messages, [])

    def responder(self, respond: Respond, messages: Messages) -> Callable[[tuple[Turn, ...]], Reply]:
        """The responder of a `Request` that began with `messages`, from a game's."""

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
                return Continuation(self._after(messages, turns[-1], self.dialect.message(text)), text, kept)
            return Restart(self._anew(messages, turns, text), text, kept)

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

    def glue(self, messages: Messages, message: Mapping[str, str]) -> list[int]:
        """Ids from the end of the policy's message up to the beginning of its next, with `message` in between.

        Taken from a short conversation under the same system message and tools, for they are the same after every turn,
        whatever user and policy may say in it.
        """
        return self.tokenizer.continuation(
            [*replace(messages, user=SHORT.user).conversation(), ANSWER],
            message,
            tools=messages.declared(),
            forbid=self._forbidden,
            trusted=("assistant", "system"),
            **self.options,
        )

    def _after(self, messages: Messages, turn: Turn, message: Mapping[str, str]) -> list[int]:
        """The glue after a turn; where the policy has ended it with an end token of its own, that one stands.

        Llama 3.1 has several, and ends a call with another one than an answer.
        """
        ids = self.glue(messages, message)
        return ids[1:] if turn.finish == "eos" and ids[0] in self.tokenizer.eos_ids else ids

    def _anew(self, messages: Messages, turns: Sequence[Turn], text: str) -> list[int]:
        """The prompt of the next turn: the conversation so far without thinking, and `text` as its last message."""
        later: list[Mapping[str, str]] = []
        for turn in turns:
            if turn.kind == "sampled":
                later.append({"role": "assistant", "content": parsing.without_thought(turn.text)})
            else:
                later.append(self.dialect.message(turn.text))
        return self._rendered(messages, [*later, self.dialect.message(text)])

    def _rendered(self, messages: Messages, later: Sequence[Mapping[str, str]]) -> list[int]:
        return self.tokenizer.encode_chat(
            [*messages.conversation(), *later],
            tools=messages.declared(),
            forbid=self._forbidden,
            trusted=("assistant", "system", "user"),  # a prompt may show what a search looks like
            **self.options,
        )

    @property
    def _forbidden(self) -> list[str]:
        """Tags that an observation's text must not hold as tokens."""
        names = sorted({*parsing.FOREIGN, *self.dialect.tags} - {self.dialect.results.tag})
        return [tag for name in names for tag in (f"<{name}>", f"</{name}>")]
