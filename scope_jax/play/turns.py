"""How turns of a conversation are joined: the tokens between two turns of a policy.

What responds to a turn is text, such as the results of its calls. There are three ways to turn it into tokens
(`model.turns` of a card):

    raw           the text, surrounded by line breaks, continues where the turn ended; no message ends (SSP, Search-R1)
    chat          the template ends the policy's message, the text is a separate message, and a new message of the
                  policy begins; all thinking stays visible (SCOPE with Qwen2.5 and OLMo-3)
    chat-trimmed  the whole conversation is re-rendered without the thinking of earlier turns, as Qwen3 is used; the
                  next turn follows this new prompt and is a separate training row (SCOPE App. E)

Raw and chat keep one token sequence with exactly the sampled tokens. In chat-trimmed mode the template re-renders the
text of earlier turns, whose ids may differ from the sampled ones; there they are prompt tokens and never trained, and
the row in which they were sampled keeps the sampled ids.

Documents are neutralised before they reach this module. In addition, none of our tags in an observation is encoded as a
special or single token (Qwen3's vocabulary has some), except the one around the results. This second safeguard does not
apply if results are in a user message and the conversation is re-rendered, since the prompt is a user message too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from scope_jax.errors import UserError
from scope_jax.models.tokenizers.chat import HistoryRewritten
from scope_jax.play.tool_calls import SEARCH, SEARCH_NAME
from scope_jax.play.tool_probes import marked_tools, retyped_tools
from scope_jax.rollouts.types import Continuation, Reply, Restart, Turn
from scope_jax.text import dialects, parsing
from scope_jax.text.calls import call_id, message_of
from scope_jax.text.dialects import Call, Dialect
from scope_jax.text.messages import Messages
from scope_jax.text.schemas import Schema, accepts, arguments_of, function_of, only_text, parameters_of

Mode = Literal["raw", "chat", "chat-trimmed"]
SHORT = Messages("?")
ANSWER = {"role": "assistant", "content": "!"}
THINKING_ANSWER = {"role": "assistant", "content": f".\n{parsing.THOUGHT[1]}\n\n!"}  # after a prompt that opened it
UNKNOWN = "unknown"  # the function of a call that does not say it
# Roles that may use forbidden names: a prompt shows what a search looks like.
PROMPT_TRUSTED = ("assistant", "system", "user")
LOOK_BACK = 16  # tokens of a prompt's end that show how a turn begins
_SAMPLE = "a <b> 'c' \"d\"\n"  # an argument of the calls that are written and read as a check


@runtime_checkable
class ChatCodec(Protocol):
    """The tokenizer methods that joining needs."""

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
        observation: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        forbid: Collection[str] = (),
        trusted: Collection[str] = (),
        **template_options: Any,
    ) -> list[int]: ...

    def decode(self, ids: Any) -> str: ...


@dataclass(frozen=True)
class Cut:
    """A response to a prefix of a turn: the turn's text from character `end` on is dropped.

    The token that contains the end of the prefix is kept whole. In the chat modes, an end token that directly follows
    it is also kept.
    """

    end: int
    text: str


Respond = Callable[[tuple[Turn, ...]], str | Cut | None]


def _sample(name: str, parameters: Schema) -> Any:
    """A value for an argument of `parameters`, text where it may be text: the first of these that its schema takes."""
    argument = arguments_of(parameters)[name]
    named = [*argument.get("enum", ()), *([argument["const"]] if "const" in argument else ())]
    samples = [_SAMPLE, [_SAMPLE], {"key": _SAMPLE}, 1, True, None, *named]
    usual = _SAMPLE if only_text(argument) else [_SAMPLE]
    return next((one for one in samples if accepts(one, name, parameters)), usual)


def raw(text: str) -> str:
    """An observation as encoded in raw mode."""
    return f"\n{text}\n\n"


@dataclass(frozen=True)
class Joiner:
    """Encodes the prompts and turns of one model by mode, template and dialect. options: variables of the template.
    tools: the JSON schemas of all tools that a prompt may declare.

    Raises UserError if the dialect does not read a call that it wrote, or if the template does not show the tools in
    full, explains other calls, leaves out messages of the dialect's role, or in chat mode rewrites earlier turns.
    """

    mode: Mode
    tokenizer: ChatCodec
    dialect: Dialect
    options: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Schema, ...] = (SEARCH,)

    def __post_init__(self) -> None:
        if self.mode == "raw" and (self.dialect.structured or not self.dialect.stops("")):
            raise UserError(
                f'With model.turns = "raw" nothing can follow a turn that ended its message, as calls do in the format '
                f'{self.dialect.format}; choose model.turns = "chat", or another model.dialect.'
            )
        for tool in self.tools:
            self._check_call(tool)
        if self.tools and (self.dialect.declares or self.tools != (SEARCH,)):  # the games' prompts describe the search
            self._check_tools()
        if self.mode != "raw":
            self._check_results()

    def _check_call(self, tool: Schema) -> None:
        """Raises UserError unless the dialect recovers a call of a tool from what it writes."""
        name = function_of(tool)["name"]
        parameters = parameters_of([tool])[name]
        reserved = {*parsing.FOREIGN, *self.dialect.tags} - {SEARCH_NAME}
        if self.dialect.tag(name) == name and name in reserved:
            raise UserError(
                f"The dialect writes a call of {name} as <{name}>, a tag with another meaning; rename the tool."
            )
        arguments = {key: _sample(key, parameters) for key in arguments_of(parameters)}
        call = Call(name, arguments)
        written = self.dialect.write(call, [tool])
        if self.dialect.read(written, [tool]) != [call]:
            raise UserError(
                f"model.dialect cannot express calls of {name}: it does not read what it writes, {written!r}."
            )

    def _check_tools(self) -> None:
        """Raises UserError unless prompts show the tools' schemas in full, and the template the dialect's calls."""
        remedy = "choose the model.dialect of the model's family, or one whose prompts describe the tools, such as xml."
        subject = "the search" if self.tools == (SEARCH,) else "the tools"
        marked, marks = marked_tools(self.tools)
        try:
            plain, ids, shown = (self.prompt(replace(SHORT, tools=tools)) for tools in ((), self.tools, marked))
            retyped = [self.prompt(replace(SHORT, tools=tools)) for tools in retyped_tools(self.tools)]
        except ValueError as error:
            raise UserError(f"{str(error).rstrip('.')} when {subject} is declared as a tool; {remedy}") from None
        if ids == plain:
            raise UserError(f"The chat template leaves out {subject} that model.dialect declares as a tool; {remedy}")
        if self.dialect.explained not in (shown_ids := self.tokenizer.decode(ids)):
            fitting = [name for name in dialects.names() if dialects.load(name).declared_in(shown_ids)]
            raise UserError(
                f"The chat template declares tools but does not mention {self.dialect.explained}, which model.dialect "
                f"uses for calls; {f'its own seems to be {fitting[0]}: ' if len(fitting) == 1 else ''}{remedy}"
            )
        text = self.tokenizer.decode(shown)
        left_out = [what for mark, what in marks.items() if mark not in text]
        if ids in retyped:
            left_out.append("the types of arguments")
        if left_out:
            raise UserError(f"The chat template declares tools but leaves out {left_out[0]}; {remedy}")

    def _check_results(self) -> None:
        """Raises UserError unless the template renders the response to a turn after it, and in full."""
        messages = replace(SHORT, tools=self.tools if self.dialect.declares else ())
        one = self._results(self.dialect.observation(["probe"]))
        try:
            ids = self._after_answer(messages, one)
        except HistoryRewritten:
            raise UserError(
                'With model.turns = "chat" the chat template and its options rewrite earlier turns, so that '
                'sampled tokens would change; choose model.turns = "chat-trimmed", which re-renders '
                "the conversation in every turn."
            ) from None
        text = self.tokenizer.decode(ids)
        if self.dialect.result_mark not in text:
            raise UserError(
                f"The chat template does not show results behind the call that they answer, as the format "
                f"{self.dialect.format} has them; set model.chat_template to a newer one of the model."
            )
        if "probe" not in text:
            raise UserError(
                f"The chat template leaves out messages of role {one[0]['role']!r}, which the dialect uses for search "
                'results; choose another model.dialect, or model.turns = "raw".'
            )

    @cached_property
    def thought(self) -> tuple[str, str]:
        """The marks of thinking."""
        return parsing.marks_of(self.tokenizer.decode(self.prompt(SHORT)[-LOOK_BACK:]))

    def check_system(self, file: Path) -> None:
        """Raises ValueError if the template does not render a system message, which `file` gives."""
        try:
            shown = "probe" in self.tokenizer.decode(self.prompt(replace(SHORT, system="probe")))
        except ValueError:
            shown = False
        if not shown:
            raise UserError(
                f"The chat template does not support system messages, but {file} exists; remove it and put its "
                "text into the user prompt, or set another model.chat_template."
            )

    @cached_property
    def each(self) -> bool:
        """True if each result of a turn is a message of its own: the dialect has it so, and the template shows all."""
        if self.mode == "raw" or not self.dialect.results.each:
            return self.dialect.results.each
        messages = replace(SHORT, tools=self.tools if self.dialect.declares else ())
        two = self._results(self.dialect.observations(["probe-one", "probe-two"]))
        try:
            text = self.tokenizer.decode(self._after_answer(messages, two))
        except ValueError:
            return False
        return "probe-one" in text and "probe-two" in text

    def observations(self, results: Sequence[Sequence[str]]) -> str:
        """The text after the calls of a turn, with the results of each in order: several if it stands for several."""
        if self.each:
            return "\n".join(map(self.dialect.observation, results))
        return self.dialect.observation([text for call in results for text in call])

    def prompt(self, messages: Messages) -> list[int]:
        """Ids of a prompt, up to the start of the policy's first turn. Raises ValueError if the template rejects it."""
        return self._rendered(messages, [])

    def _described(self, messages: Messages) -> Messages:
        """The messages with their tools in the system message, if the template does not declare them."""
        if not messages.tools or self.dialect.declares:
            return messages
        system = "\n\n".join(filter(None, [messages.system, self.dialect.described(messages.tools)]))
        return replace(messages, system=system, tools=())

    def declared(
        self, conversation: Sequence[Mapping[str, Any]], tools: Sequence[Schema] | None
    ) -> tuple[list[Mapping[str, Any]], list[Schema] | None]:
        """A given conversation as prompts show it, and the tools for the chat template: in a system message, which may
        be another one at its beginning, if the template does not declare them."""
        if not tools or self.dialect.declares:
            return [*conversation], None if tools is None else [*tools]
        own = bool(conversation) and conversation[0]["role"] == "system"
        system = self._described(Messages("", conversation[0]["content"] if own else None, tuple(tools))).system
        return [{"role": "system", "content": system}, *conversation[own:]], None

    def template_declares(self, tools: Sequence[Schema]) -> bool:
        """Whether the chat template shows tools, whatever the dialect."""
        marked, _ = marked_tools(tools)
        try:
            text = self.tokenizer.decode(self.tokenizer.encode_chat(SHORT.conversation(), tools=marked, **self.options))
        except ValueError:
            return False
        return all(function_of(tool)["name"] in text for tool in marked)

    def responder(self, respond: Respond, messages: Messages) -> Callable[[tuple[Turn, ...]], Reply]:
        """Converts what responds to turns to the responder of a `Request` whose prompt is `messages`."""

        def reply(turns: tuple[Turn, ...]) -> Reply:
            response = respond(turns)
            if response is None:
                return None
            if isinstance(response, str):
                text, kept = response, None
            else:
                text, kept = response.text, self._kept(turns[-1], response.end)
            if kept is None and self.mode == "chat" and not self._closed(messages, turns[-1], text):
                kept = self._covering(turns[-1], len(turns[-1].text))
            if kept is not None:
                turns = (*turns[:-1], turns[-1].first(kept, self.tokenizer.decode))
            if self.mode == "raw":
                return Continuation(self.tokenizer.encode(raw(text), self.forbidden), raw(text), kept)
            if self.mode == "chat":
                return Continuation(self._after(messages, turns[-1], self._answering(turns[-1], text)), text, kept)
            return Restart(self._rerendered(messages, turns, text), text, kept)

        return reply

    def _kept(self, turn: Turn, end: int) -> int | None:
        """How many tokens of a turn cover the first `end` characters of its text; None if nothing has to be dropped."""
        count = self._covering(turn, end)
        ended = turn.finish == "eos" and self.mode != "raw"
        return None if count == len(turn.ids) - ended else count

    def _covering(self, turn: Turn, end: int) -> int:
        """The least number of tokens of a turn whose text has its first `end` characters."""
        ids, head = turn.ids.tolist(), turn.text[:end]
        index = bisect_left(
            range(1, len(ids)), True, key=lambda count: self.tokenizer.decode(ids[:count]).startswith(head)
        )
        return index + 1

    def _closed(self, messages: Messages, turn: Turn, text: str) -> bool:
        """False if a turn ended with a string (`model.stop`) that is not the template's end of a message."""
        if turn.finish != "eos" or int(turn.ids[-1]) in self.tokenizer.eos_ids:
            return True
        string = turn.ids[self._covering(turn, len(turn.text)) :].tolist()
        return string == list(self.glue(messages, self._answering(turn, text))[:1])

    def _after_answer(self, messages: Messages, later: Sequence[Mapping[str, Any]]) -> list[int]:
        """What a policy reads after a short answer: the glue, or in chat-trimmed mode the whole conversation."""
        if self.mode == "chat":
            return self.glue(messages, later)
        return self._rendered(messages, [self._answer(later), *later])

    @cached_property
    def _opened(self) -> bool:
        """True if a prompt opens the thinking of the next turn."""
        return self.tokenizer.decode(self.prompt(SHORT)[-LOOK_BACK:]).rstrip().endswith(parsing.THOUGHT[0])

    def _answer(self, later: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """A short message of the policy before these: an answer, or where templates show a result only after a call,
        the calls that they answer."""
        names = [str(one["name"]) for one in later if "tool_call_id" in one]
        if names:
            return message_of([(name, {}) for name in names])
        return THINKING_ANSWER if self._opened else ANSWER

    def _results(self, text: str, names: Sequence[str] = ()) -> list[Mapping[str, Any]]:
        """`Dialect.messages` of a response, results with the call that each answers where templates want it. names: of
        the functions that were called, in order; the last of them are answered."""
        found: list[Mapping[str, Any]] = [*self.dialect.messages(text)]
        if not self.dialect.structured or found[0]["role"] != self.dialect.results.role:
            return found
        named = [*names][-len(found) :] or [function_of((*self.tools, SEARCH)[0])["name"]]
        named += named[-1:] * (len(found) - len(named))
        return [
            {**one, "name": name or UNKNOWN, "tool_call_id": call_id(place)}
            for place, (one, name) in enumerate(zip(found, named, strict=True))
        ]

    def _answering(self, turn: Turn, text: str) -> list[Mapping[str, Any]]:
        """`_results` of the response to a turn."""
        calls = self.dialect.read(turn.content, self.tools) if self.dialect.structured else []
        return self._results(text, [call.name for call in calls])

    def _spoken(self, turn: Turn, later: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """A turn of the policy as a message for the chat template, without its thinking. later: what answers it."""
        answered = any("tool_call_id" in one for one in later)
        found = self.dialect.read(turn.content, self.tools) if answered else []
        said, calls = self.dialect.spoken(turn.text, turn.content, found)
        if not calls:
            return {"role": "assistant", "content": said}
        return message_of([(name or UNKNOWN, arguments) for name, arguments in calls], said)

    def glue(self, messages: Messages, between: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids from the end of the policy's message up to the start of its next one, with the messages in between.

        Taken from a short conversation with the same system message and tools, since these ids do not depend on what
        user and policy wrote.
        """
        messages = self._described(messages)
        ids = self.tokenizer.continuation(
            [*replace(messages, user=SHORT.user).conversation(), self._answer(between)],
            between,
            tools=messages.declared(),
            forbid=self.forbidden,
            trusted=("assistant", "system"),
            **self.options,
        )
        # Where results stand right behind a call, the first token behind its arguments is its own.
        return ids[1:] if self.dialect.result_mark and "tool_call_id" in between[0] else ids

    def _after(self, messages: Messages, turn: Turn, between: Sequence[Mapping[str, Any]]) -> list[int]:
        """The glue after a turn; an end token sampled by the policy is kept in place of the template's.

        Llama 3.1 has several end tokens, and ends a call with a different one than an answer. The template's may be
        none of the tokenizer's, as in Qwen's base models; then a turn ends with it by `model.stop`. Gemma 4 ends a call
        with the token that begins its result, so that no other can take its place.
        """
        ids = self.glue(messages, between)
        # gpt-oss ends a reply with another token than its template ends earlier messages with.
        known = ids[0] in self.tokenizer.eos_ids or self.thought == parsing.ANALYSIS
        known = known and not self.dialect.result_mark
        ended = turn.finish == "eos" and (known or ids[0] == int(turn.ids[-1]))
        return ids[1:] if ended else ids

    def _rerendered(self, messages: Messages, turns: Sequence[Turn], text: str) -> list[int]:
        """The prompt of the next turn: the conversation so far without thinking, with `text` as its last message."""
        later: list[Mapping[str, Any]] = []
        responses = [*(turn.text for turn in turns if turn.kind != "sampled"), text]
        for turn, response in zip((turn for turn in turns if turn.kind == "sampled"), responses, strict=True):
            between = self._answering(turn, response)
            later += [self._spoken(turn, between), *between]
        return self._rendered(messages, later)

    def _rendered(self, messages: Messages, later: Sequence[Mapping[str, Any]]) -> list[int]:
        messages = self._described(messages)
        return self.tokenizer.encode_chat(
            [*messages.conversation(), *later],
            tools=messages.declared(),
            forbid=self.forbidden,
            trusted=PROMPT_TRUSTED,
            **self.options,
        )

    @property
    def forbidden(self) -> list[str]:
        """Tags that must not be encoded as tokens in an observation's text."""
        named = [name for name in parameters_of(self.tools) if self.dialect.tag(name) == name]
        names = sorted({*parsing.FOREIGN, *self.dialect.tags, *named} - {self.dialect.results.tag})
        return [tag for name in names for tag in (f"<{name}>", f"</{name}>")]
