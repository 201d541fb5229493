"""Chat templates, applied so that the content of messages can never become a template marker.

In every string of a message except its role, and in tools, the names of special tokens (and prefixes or suffixes of one
at the edges of the string, which the template might complete) are masked with private-use characters while the
template is rendered. Every marker in the rendered text is then the template's own; afterwards the text is unmasked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from scope_jax.errors import UserError
from scope_jax.models.fields import cut
from scope_jax.models.tokenizers import rendering
from scope_jax.models.tokenizers.message_forms import MessageForm, form_of, thought_and_answer

if TYPE_CHECKING:  # games need the error of this module, and transformers imports for a second
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

# Replace characters of special tokens' names while a template is rendered.
PRIVATE_USE = (*range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))
HANGUL = range(0xAC00, 0xD7A4)
# The date given to templates that use one: the default of Llama 3.1's own template.
DATE_STRING = "26 Jul 2024"
_DATE = datetime(2024, 7, 26)
# transformers gives templates access to the clock through a function; this macro shadows it.
_STILL_CLOCK = (
    "{%- macro strftime_now(format) -%}{{- format"
    + "".join(f" | replace('%{code}', '{_DATE.strftime('%' + code)}')" for code in (*"aAbBdHIjmMpSyY", "-d", "-m"))
    + " -}}{%- endmacro -%}"
)

MESSAGE = "<|message|>"  # ends the header of a message in the format of gpt-oss
_THOUGHT = re.compile(r".*</think>\s*", re.DOTALL)  # thinking, which some templates open in their prompts

_SURROGATES = re.compile("[\ud800-\udfff]")


class HistoryRewritten(ValueError):
    """The chat template rewrites earlier turns, so the conversation cannot be continued from the sampled ids."""


def without_surrogates(text: str) -> str:
    """`text` with lone surrogates, which UTF-8 cannot encode, replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def occurrences(names: Iterable[str]) -> re.Pattern[str]:
    """A pattern that matches every occurrence of a name, overlapping ones included: group 1 of an empty match."""
    longest_first = sorted(names, key=len, reverse=True)
    if not longest_first:
        return re.compile(r"(?!)")
    first = re.escape("".join({name[0] for name in longest_first}))  # checked first, since there are many names
    return re.compile(rf"(?=[{first}])(?=({'|'.join(map(re.escape, longest_first))}))")


@dataclass(frozen=True)
class Stretch:
    """A special token of the template (`marker`), or text to be encoded in pieces that end at `cuts`."""

    text: str
    marker: bool
    cuts: tuple[int, ...] = ()


class ChatTemplate:
    """A tokenizer's chat template, rendered to a list of `Stretch`. special: the special tokens by name."""

    def __init__(self, hf: PreTrainedTokenizerFast, special: Mapping[str, AddedToken]) -> None:
        self._hf = hf
        self._special = tuple(special)
        # A token may be declared to absorb adjacent white space.
        names = (
            r"\s*" * token.lstrip + re.escape(name) + r"\s*" * token.rstrip
            for name, token in sorted(special.items(), key=lambda item: len(item[0]), reverse=True)
        )
        self._marker = re.compile("|".join(names) or r"(?!)")
        self._forms: dict[str, MessageForm] = {}

    def conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        forbid: Collection[str],
        trusted: Collection[str],
        options: Mapping[str, Any],
    ) -> list[Stretch]:
        """The whole conversation; arguments as in Tokenizer.encode_chat."""
        masked = MaskedChat(self, messages, tools, forbid, trusted, options)
        return self.split(masked.render(masked.messages, add_generation_prompt), masked)

    def continuation(
        self,
        before: Sequence[Mapping[str, Any]],
        observations: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        forbid: Collection[str],
        trusted: Collection[str],
        options: Mapping[str, Any],
    ) -> list[Stretch]:
        """What follows the content of the assistant's message that ends `before`; see Tokenizer.continuation."""
        last = before[-1] if before else {}
        if last.get("role") != "assistant" or not isinstance(last.get("content"), str):
            raise ValueError("A continuation must follow an assistant message with text content.")
        masked = MaskedChat(self, [*before, *observations], tools, forbid, trusted, options)
        here = len(before) - 1
        earlier, answer, later = masked.messages[:here], masked.messages[here], masked.messages[here + 1 :]
        blank = masked.masker.spare
        if last.get("tool_calls"):
            return self._after_call(masked, here, blank)
        prompt = masked.render(earlier, True)
        full = masked.render([*earlier, answer, *later], True)
        said = answer["content"]
        thought = thinking[0] if (thinking := _THOUGHT.match(said)) else ""
        shown = masked.render([*earlier, {**answer, "content": thought + blank}, *later], True)
        head, found, tail = shown.partition(blank)
        content = full[len(prompt) : len(full) - len(tail)]
        # What the policy writes itself: its thought, or a header such as the channel of gpt-oss's messages.
        header = head[len(prompt) :]
        appended = head.startswith(prompt) and (header == thought or header.endswith(MESSAGE)) and full.startswith(head)
        kept = found and full.endswith(tail) and blank not in tail
        if not appended or not kept or content[len(header) :].strip() != said[len(thought) :].strip():
            raise HistoryRewritten(
                "The chat template rewrites earlier turns; encode the whole conversation again instead of "
                "continuing it."
            )
        return self.split(tail, masked)

    def _after_call(self, masked: MaskedChat, here: int, blank: str) -> list[Stretch]:
        """What follows the assistant's message number `here`, whose last call ends it: from the next token of the
        template on."""
        *before, call = masked.messages[here]["tool_calls"]
        marked = {**call, "function": {**call["function"], "arguments": {blank: 0}}}
        said = {**masked.messages[here], "tool_calls": [*before, marked]}
        text = masked.render([*masked.messages[:here], said, *masked.messages[here + 1 :]], True)
        _, found, tail = text.partition(blank)
        stretches = self.split(tail, masked)
        first = next((place for place, stretch in enumerate(stretches) if stretch.marker), None)
        if not found or blank in tail or first is None:
            raise HistoryRewritten("The chat template does not show the arguments of a call, or no end of it.")
        return stretches[first:]

    def reply_ends(self) -> tuple[list[Stretch] | None, list[Stretch] | None]:
        """What follows the content of an assistant's message that is the last one, and of one before a user's.

        None where the template has no such message, or rejects the conversation. Raises rendering.TemplateLimit.
        """
        ask = {"role": "user", "content": "?"}
        try:
            masked = MaskedChat(self, [ask], None, (), (), {})
        except ValueError:  # no template, or several and none of them for plain conversations
            return None, None
        blank = masked.masker.spare

        def after(later: Sequence[Mapping[str, Any]]) -> list[Stretch] | None:
            try:
                text = masked.render([ask, {"role": "assistant", "content": blank}, *later], False)
            except rendering.TemplateLimit:
                raise
            except ValueError:
                return None
            _, found, tail = text.rpartition(blank)
            return self.split(tail, masked) if found else None

        return after([]), after([ask])

    def marked(self, text: str) -> list[Stretch]:
        """A text as a template may have rendered it: every name of a special token is the token."""
        return self._stretches(text, lambda piece: Stretch(piece, False))

    def split(self, rendered: str, masked: MaskedChat) -> list[Stretch]:
        """The stretches of a text that `masked` rendered."""
        return self._stretches(rendered, masked.plain)

    def _stretches(self, text: str, plain: Callable[[str], Stretch]) -> list[Stretch]:
        stretches: list[Stretch] = []
        position = 0
        for marker in self._marker.finditer(text):
            stretches.append(plain(text[position : marker.start()]))
            stretches.append(Stretch(marker.group().strip(), True))
            position = marker.end()
        stretches.append(plain(text[position:]))
        return [stretch for stretch in stretches if stretch.text]


class MaskedChat:
    """Masked messages and tools, in the form that the template takes, and how they are rendered.

    messages, tools: as they are rendered.
    """

    def __init__(
        self,
        chat: ChatTemplate,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        forbid: Collection[str],
        trusted: Collection[str],
        options: Mapping[str, Any],
    ) -> None:
        self._hf = chat._hf
        if self._hf.chat_template is None:
            raise UserError(
                "the tokenizer has no chat template; set model.chat_template to a .jinja file, or use a model with one."
            )
        named = self._hf.chat_template
        if isinstance(named, dict) and "default" not in named and (tools is None or "tool_use" not in named):
            raise UserError(
                f"the tokenizer has chat templates named {', '.join(map(cut, sorted(named)))}, none of them 'default'; "
                "set model.chat_template to a .jinja file with the one to use."
            )
        special = chat._special
        self._template = self._hf.get_chat_template(None, None if tools is None else [dict(tool) for tool in tools])
        self._options: dict[str, Any] = dict(options)
        # A prompt must not depend on the current date.
        if "date_string" in self._template:
            self._options = {"date_string": DATE_STRING} | self._options
        if "strftime_now" in self._template:
            self._template = _STILL_CLOCK + self._template
        if any(message.get("role") == "assistant" and _has_forms(message) for message in messages):
            form = self._form(chat._forms)
            messages = [form.adapted(message) for message in messages]
        everything = [self._template, dict(options), [dict(message) for message in messages], list(tools or ())]
        payload = json.dumps(everything, ensure_ascii=False, default=str)
        self.masker = masker = _Masker([*special, *forbid], payload)
        self._forbidden = occurrences(forbid)
        untrusted_names, trusted_names = _names((*special, *sorted(forbid))), _names(special)
        self.messages = [
            {
                key: value
                if key == "role"
                else masker.mask(value, trusted_names if message.get("role") in trusted else untrusted_names)
                for key, value in message.items()
            }
            for message in messages
        ]
        self.tools = None if tools is None else [masker.mask(tool, untrusted_names) for tool in tools]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """tools: instead of the conversation's."""
        variables = {**self._hf.special_tokens_map, **self._options}  # as apply_chat_template
        declared = self.tools if tools is None else tools
        return rendering.render(self._template, messages, declared, add_generation_prompt, variables)

    def _form(self, known: dict[str, MessageForm]) -> MessageForm:
        """The form of the template with these options. known: the forms found so far."""
        key = json.dumps([self._template, self._options], default=str)
        if key not in known:
            variables = {**self._hf.special_tokens_map, **self._options}
            known[key] = form_of(lambda messages: rendering.render(self._template, messages, None, False, variables))
        return known[key]

    def plain(self, text: str) -> Stretch:
        """Rendered text, unmasked; a forbidden name of which any character was masked is cut in two."""
        text, masked_at = self.masker.unmask(text)
        cuts = tuple(
            match.start() + 1
            for match in self._forbidden.finditer(text)
            if any(at in masked_at for at in range(match.start(), match.end(1)))
        )
        return Stretch(text, False, cuts)


def _has_forms(message: Mapping[str, Any]) -> bool:
    """Whether a message holds what templates take in several forms."""
    return bool(message.get("tool_calls")) or thought_and_answer(message)[0] is not None


class _Names:
    """Names to be masked, longest first, with their proper prefixes and suffixes."""

    def __init__(self, names: Iterable[str]) -> None:
        self.whole = sorted(set(names), key=len, reverse=True)
        self.longest = max(map(len, self.whole), default=0)
        self.heads = {name[:n] for name in self.whole for n in range(1, len(name))}
        self.tails = {name[-n:] for name in self.whole for n in range(1, len(name))}


_names = lru_cache(maxsize=64)(_Names)  # Llama 3 has 256 names


class _Masker:
    """Replaces single characters of names by private-use characters that `payload` lacks, and back.

    spare: one more such character. visible: one that Python shows as it is, also inside of lists, and `payload` lacks.
    """

    def __init__(self, names: Iterable[str], payload: str) -> None:
        edges = sorted({char for name in names for char in (name[0], name[-1])})
        used = set(payload)
        free = [chr(code) for code in PRIVATE_USE[: len(used) + len(edges) + 1] if chr(code) not in used]
        if len(free) <= len(edges):
            raise UserError("The messages use up all private-use characters; remove them from the text.")
        self.spare = free[len(edges)]
        self.visible = next((chr(code) for code in HANGUL if chr(code) not in used), self.spare)
        self._mask = dict(zip(edges, free, strict=False))
        self._unmask = {mask: char for char, mask in self._mask.items()}
        self._masks = re.compile(f"[{''.join(self._unmask)}]" if edges else r"(?!)")

    def mask(self, value: Any, names: _Names) -> Any:
        if isinstance(value, str):
            return self._mask_text(without_surrogates(value), names)
        if isinstance(value, Mapping):
            return {
                self.mask(key, names) if isinstance(key, str) else key: self.mask(item, names)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.mask(item, names) for item in value]
        return value

    def unmask(self, text: str) -> tuple[str, frozenset[int]]:
        """The unmasked text, and the positions that were masked."""
        masked_at = frozenset(match.start() for match in self._masks.finditer(text))
        return self._masks.sub(lambda match: self._unmask[match.group()], text), masked_at

    def _mask_text(self, text: str, names: _Names) -> str:
        for name in names.whole:
            text = text.replace(name, self._mask[name[0]] + name[1:])
        body = text.strip()
        start = len(text) - len(text.lstrip())
        end = start + len(body)
        lengths = range(min(names.longest, len(body)), 0, -1)
        tail = next((n for n in lengths if body[-n:] in names.heads), 0)
        if tail:
            text = self._mask_char(text, end - tail)
        head = next((n for n in lengths if body[:n] in names.tails), 0)
        if head:
            text = self._mask_char(text, start + head - 1)
        return text

    def _mask_char(self, text: str, at: int) -> str:
        return text[:at] + self._mask.get(text[at], text[at]) + text[at + 1 :]
