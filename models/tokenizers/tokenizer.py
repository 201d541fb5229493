"""Text to ids and back; text never becomes a special token.

The markers of a chat template are special tokens. Text from people, documents and models may contain the same
characters; here they are encoded as ordinary characters. "Special" tokens are those that the tokenizer itself marks as
such; added tokens without that mark (Qwen3's <think> and <tool_call>) are ordinary vocabulary, which text may use
unless the caller forbids it (`forbid`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as FastTokenizer

from scope_jax.errors import UserError
from scope_jax.models.fields import read_object
from scope_jax.models.tokenizers import ends, rendering, replies, vocabularies
from scope_jax.models.tokenizers.chat import ChatTemplate, Stretch, occurrences, without_surrogates
from scope_jax.models.tokenizers.ends import EndToken, TemplateEnd
from scope_jax.models.tokenizers.specials import template_file
from scope_jax.models.tokenizers.vocabularies import BYTE_NAMES, PROBE, SPACE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TRUSTED = ("assistant", "system")  # roles whose messages may use forbidden names as tokens
# The class that a saved folder names: transformers 4 and 5 know it, and read tokenizer.json as it is.
SAVED_CLASS = "PreTrainedTokenizerFast"
_ASKED = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}, {"role": "user", "content": "?"})
_PROBES = (_ASKED, ({"role": "system", "content": "?"}, *_ASKED))
LONG = 4096  # characters of a text that is encoded without holding Python's lock
COMPOSED = 4  # most characters that NFC makes one


class Tokenizer:
    """A fast tokenizer with its chat template.

    eos_id, bos_id (None if the vocabulary has none), pad_id (the end token if there is no padding token); ends: the
    tokens that end a turn, with who names them, and eos_ids, their ids, of which eos_id is the first; template_end:
    what the chat template writes after an assistant's message, None if it is not known; special_ids: every id that
    plain text never encodes to; vocab_size: all ids are below it; exact: True if the bytes of a text (after
    `normalise`) are its tokens' bytes joined.
    """

    def __init__(self, hf: PreTrainedTokenizerFast, eos_ids: Sequence[int], folders: Iterable[str | Path] = ()) -> None:
        """eos_ids: end tokens of the vocabulary besides hf's. folders: whose configurations name further ones."""
        starts = hf.bos_token_id if hf.bos_token_id is not None else hf.cls_token_id
        self._hf = hf
        # Own copies: these switches are state of the tokenizer object, and several threads encode.
        self._first = FastTokenizer.from_str(hf.backend_tokenizer.to_str())
        self._prefix = vocabularies.prefix_rule(self._first)
        self._plain = self._first if self._prefix == "never" else vocabularies.without_prefix(self._first)
        for fast in (self._first, self._plain):
            fast.encode_special_tokens = True
            fast.no_truncation()
            fast.no_padding()
        added = self._plain.get_added_tokens_decoder()
        special = {token.content: token for token in added.values() if token.special}
        self._special = {token.content: id for id, token in added.items() if token.special}
        self._bytes = vocabularies.byte_table(self._plain)
        longest = max(map(len, (*(self._bytes or {}).values(), *special)), default=1)
        self._longest = longest if self._plain.normalizer is None else COMPOSED * longest  # characters of a token
        self._spaced = vocabularies.falls_back_to_bytes(self._plain)
        # Vocabularies other than byte-level ones hold special tokens and bytes under names that a text may contain.
        self._always = (*special, *BYTE_NAMES) if self._spaced else tuple(special) if self._bytes is None else ()
        self._bans: dict[tuple[str, ...], _Ban] = {}
        self.bos_id: int | None = starts if isinstance(starts, int) else None
        vocabulary = self._plain.get_vocab()
        self.vocab_size: int = max(vocabulary.values()) + 1
        self._space_ids = [vocabulary[BYTE_NAMES[byte]] for byte in SPACE.encode()] if self._spaced else []
        # A vocabulary without byte fallback maps characters it lacks to its unknown token.
        unknown: list[Any] = [hf.unk_token_id, vocabularies.unknown_id(self._plain)] if self._bytes is None else []
        self.special_ids: frozenset[int] = frozenset(self._special.values()).difference(unknown)
        self._chat = ChatTemplate(hf, special)
        folders = [Path(folder) for folder in folders]
        self._generation = ends.generation_config(folders)
        self.ends, self.template_end = self._ends(eos_ids, folders)
        if not self.ends:
            raise UserError("The tokenizer names no eos_token; set one in tokenizer_config.json.")
        self.eos_ids: tuple[int, ...] = tuple(end.id for end in self.ends)
        self.eos_id: int = self.eos_ids[0]
        self.pad_id: int = hf.pad_token_id if isinstance(hf.pad_token_id, int) else self.eos_id
        self.exact: bool = self._bytes is not None and self._spell(self.encode(PROBE)) == PROBE.encode()

    def _ends(self, eos_ids: Sequence[int], folders: Sequence[Path]) -> tuple[tuple[EndToken, ...], TemplateEnd | None]:
        """The tokens that end a reply, and what the template writes after one; see `models.tokenizers.ends`."""
        added = {id: token.content for id, token in self._plain.get_added_tokens_decoder().items()}
        others = {name: id for id, name in added.items() if name not in self._special}
        template = ends.of_template(self._chat, self._special, others)
        own = [] if self._hf.eos_token_id is None else [self._hf.eos_token_id]
        named = [
            (ends.TOKENIZER, [*own, *eos_ids]),
            *ends.declared(folders, added),
            (ends.TEMPLATE, [] if template is None or template.id is None else [template.id]),
        ]
        return ends.established(named, lambda id: added.get(id, f"token {id}")), template

    @staticmethod
    def load(
        folder: str | Path,
        chat_template: str | Path | None = None,
        *,
        model: str | Path | None = None,
        exact: bool = True,
    ) -> Tokenizer:
        """The tokenizer of a folder: tokenizer.json; vocab.json with merges.txt; `tokenizer.model` of SentencePiece or
        of Llama 3 (tiktoken); BERT's vocab.txt; with tokenizer_config.json where there is one.

        chat_template: Jinja text or a file with it, instead of the folder's own. End tokens are those of the tokenizer,
        of generation_config.json or else config.json, here and in the folder `model`, and of the chat template
        (`models.tokenizers.ends`). Nothing is downloaded. Raises FileNotFoundError if the folder or the
        template file is missing, ValueError if the folder holds no supported tokenizer, or one that does not preserve
        texts exactly (BERT's lower-cases): text encoders load these with exact=False.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise FileNotFoundError(f"Tokenizer folder {folder} does not exist; give a folder with a tokenizer.json.")
        hf, eos_ids = vocabularies.read(folder)
        if chat_template is not None:
            hf.chat_template = _template_text(chat_template)
        if hf.chat_template is not None:
            rendering.start()
        tokenizer = Tokenizer(hf, eos_ids, [folder] if model is None else [folder, model])
        if exact and not tokenizer.exact:
            raise UserError(
                f"The tokenizer in {folder} does not preserve the bytes of a text, so it works for text encoders only, "
                "not for a policy."
            )
        return tokenizer

    @property
    def has_template(self) -> bool:
        """False for a tokenizer without a chat template."""
        return self._hf.chat_template is not None

    @cached_property
    def marks(self) -> Mapping[str, int]:
        """The added tokens that prompts and replies have: those that the chat template names, and the ends."""
        template = str(self._hf.chat_template or "")
        added = self._plain.get_added_tokens_decoder()
        marks = {token.content: id for id, token in added.items() if token.content in template}
        for messages in _PROBES:  # a template may put a name together
            with suppress(ValueError):
                ids = self.encode_chat(messages) if self.has_template else []
                marks |= {added[id].content: id for id in ids if id in added}
        return marks | {added[id].content: id for id in (*self.eos_ids, self.bos_id) if id in added}

    def difference(self, other: Tokenizer) -> str | None:
        """Some token that the other vocabulary has under another id, or not at all; None if every one is the same.
        Special tokens that neither the chat template nor the ends use may differ."""
        ours, theirs = self._plain.get_vocab(), other._plain.get_vocab()
        unused = self._special.keys() - self.marks.keys()
        differing = [name for name, id in ours.items() if theirs.get(name, -1) != id and name not in unused]
        if not differing:
            return None
        name = min(differing, key=lambda name: ours[name])
        taken = next((word for word, id in theirs.items() if id == ours[name]), None)
        there = f"{theirs.get(name, 'no token')} there"
        return f"{name[:40]!r} is {ours[name]} here and {there}" + (
            f", where {ours[name]} is {taken[:40]!r}" if taken else ""
        )

    def save(self, folder: str | Path) -> None:
        """Writes the tokenizer's files, its chat template and generation_config.json: end and padding tokens, and what
        the base's file says of sampling."""
        self._hf.save_pretrained(folder)
        path = Path(folder) / "tokenizer_config.json"
        config = {**read_object(path), "tokenizer_class": SAVED_CLASS}
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        ids = {"bos_token_id": self.bos_id, "eos_token_id": list(self.eos_ids), "pad_token_id": self.pad_id}
        known = {name: value for name, value in ids.items() if value is not None}
        text = json.dumps(self._generation | known, indent=2, ensure_ascii=False)
        (Path(folder) / "generation_config.json").write_text(text + "\n", encoding="utf-8")

    def encode(self, text: str, forbid: Collection[str] = (), *, start: bool = False) -> list[int]:
        """Ids of plain text: nothing is added, and no id is one of special_ids, whatever the text contains.

        forbid: further names to be encoded as characters, such as "<tool_call>" in a document: the text is split after
        the first character of each occurrence and the pieces are encoded separately, so that no token spans the name.
        start: encode the text as the beginning of a document, with the dummy space that a SentencePiece vocabulary
        adds there; it appears as a space in the decoded text (where libraries differ, transformers is followed:
        `models.tokenizers.vocabularies`). Without it the text continues earlier text and nothing is inserted. Lone
        surrogates become U+FFFD. Raises ValueError for a forbidden name of fewer than two characters.
        """
        ban = self._ban(forbid)
        pieces = self._pieces(without_surrogates(text), ban)
        ids: list[int] = []
        for i, piece in enumerate(pieces):
            ids += self._encode_piece(piece, ban, self._first if start and i == 0 else self._plain)
        return ids

    def special_names(self, text: str) -> list[str]:
        """The names of special tokens that `text` holds, in order."""
        return [stretch.text for stretch in self._chat.marked(without_surrogates(text)) if stretch.marker]

    def least_tokens(self, text: str) -> int:
        """So many tokens, at least, has `text`, found without encoding it, which takes seconds for a text far beyond a
        model's length: by the longest token, and one for every name of a special token. 0 if the tokenizer is not
        exact."""
        if not self.exact:
            return 0
        names = sum(map(text.count, self._special)) if any(name[0] in text for name in self._special) else 0
        return max(-(-len(text) // self._longest), names)

    def encode_marked(self, text: str) -> list[int]:
        """Ids of a text that a chat template rendered: names of special tokens are those tokens; nothing is added."""
        return self._join(self._chat.marked(without_surrogates(text)), start=True)

    def normalise(self, text: str) -> str:
        """The text that `decode(encode(text))` returns: composed (NFC) if the tokenizer normalises so (Qwen), without
        lone surrogates, and otherwise unchanged. For exact tokenizers.
        """
        text = without_surrogates(text)
        normalizer = self._plain.normalizer
        if normalizer is None or not text:
            return text
        if not self._spaced:
            return normalizer.normalize_str(text)
        return SPACE.join(normalizer.normalize_str(part).replace(SPACE, " ") for part in text.split(SPACE))

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of ids; bytes that are not valid UTF-8 (such as half a character) become U+FFFD."""
        kept = [int(id) for id in ids if not (skip_special and id in self.special_ids)]
        if not self.exact:
            return self._first.decode(kept, skip_special_tokens=False)
        return self._spell(kept).decode("utf-8", errors="replace")

    def token_bytes(self, id: int) -> bytes:
        """The bytes that one id adds to a text, to find stop strings as tokens arrive: a text's bytes are its tokens'
        bytes joined. Empty for ids beyond the vocabulary, which a padded embedding table has. Raises ValueError for a
        tokenizer that is not exact.
        """
        if not self.exact:
            raise UserError(
                "This tokenizer does not preserve the bytes of a text, so it cannot be used for generation."
            )
        return self._spell([int(id)])

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        forbid: Collection[str] = (),
        trusted: Collection[str] = TRUSTED,
        **template_options: Any,
    ) -> list[int]:
        """Ids of a conversation under the chat template: its markers are special tokens, message content never is.

        messages: {"role", "content", ...}. tools: JSON schemas of functions. forbid: names encoded as characters, as in
        `encode`, in tools and in messages of all roles not in `trusted`; in the template's own text they are tokens.
        template_options are variables of the template (such as enable_thinking). Templates that use the current date
        get chat.DATE_STRING unless date_string is among the options, so that ids never depend on the clock.

        If no message contains the name of a special token or a forbidden name, the ids equal those of transformers'
        apply_chat_template. Raises ValueError if there is no chat template or it rejects the conversation.
        """
        self._ban(forbid)
        stretches = self._chat.conversation(messages, tools, add_generation_prompt, forbid, trusted, template_options)
        return self._join(stretches, start=True)

    def reply(
        self,
        before: Sequence[Mapping[str, Any]],
        message: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        forbid: Collection[str] = (),
        trusted: Collection[str] = TRUSTED,
        **template_options: Any,
    ) -> tuple[list[int], list[int]]:
        """(prompt, reply): the ids of the prompt after `before`, encode_chat's, and what the policy writes after it if
        it says the assistant's `message`, up to the token that ends the turn.

        The reply is encoded by itself, as it is sampled. Arguments as in encode_chat. Raises replies.NotShown, a
        ValueError, unless the reply has the whole message, and the prompt all tools and messages of other roles;
        ValueError if the template rejects the conversation.
        """
        self._ban(forbid)
        given = replies.given_reply(self._chat, before, message, tools, forbid, trusted, template_options)
        ids, said = self._join(given.reply, start=False), self._join(given.said, start=False)
        ends = [place for place, id in enumerate(ids) if id in self.eos_ids]
        inside = sum(id in self.eos_ids for id in said)
        if len(ends) > inside:
            reply = ids[: ends[inside] + 1]
        else:
            reply = [*ids, self._end_before(given.following())]
        return self._join(given.prompt, start=True), reply

    def _end_before(self, following: Sequence[Stretch]) -> int:
        """The id of the token that ends a turn behind which the template writes none itself: the one with which it goes
        on, if that is an end token (GLM), or else the template's."""
        first = self._join(following[:1], start=False)[:1]
        if first and first[0] in self.eos_ids:
            return first[0]
        usual = None if self.template_end is None else self.template_end.id
        return self.eos_id if usual is None else usual

    def continuation(
        self,
        messages_before: Sequence[Mapping[str, Any]],
        observation: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        forbid: Collection[str] = (),
        trusted: Collection[str] = TRUSTED,
        **template_options: Any,
    ) -> list[int]:
        """Ids between an assistant's finished turn and its next one: end of turn, observation, generation prompt.

        messages_before ends with the assistant's message: its content is the whole text of the turn (tool calls as
        generated, not as "tool_calls"), without the end token. observation: the message or messages that answer it. For
        templates that only append:
            encode_chat(before[:-1]) + sampled ids + continuation(before, observation)
        equals encode_chat([*before, observation]) if the sampled ids are encode's ids of the content; any other ids
        that decode to the content may be used as well. The first id returned ends the turn.

        The other arguments are those of encode_chat, and must be the same throughout an episode. Raises
        chat.HistoryRewritten, a ValueError, if the template rewrites earlier turns (Qwen3 drops the thinking before
        earlier questions, and the empty thinking block that enable_thinking=False adds to the prompt): the caller then
        encodes the whole conversation as a new prompt. White space at the edges of the content may be trimmed by the
        template (Llama 3); that counts as appending.
        """
        self._ban(forbid)
        later = [observation] if isinstance(observation, Mapping) else list(observation)
        stretches = self._chat.continuation(messages_before, later, tools, forbid, trusted, template_options)
        return self._join(stretches, start=False)

    def _join(self, stretches: Sequence[Stretch], start: bool) -> list[int]:
        ids: list[int] = []
        plain = self._ban(())
        for i, stretch in enumerate(stretches):
            if stretch.marker:
                ids.append(self._special[stretch.text])
                continue
            prefixed = self._prefix == "always" if i > 0 else start
            for j, piece in enumerate(self._pieces(stretch.text, plain, stretch.cuts)):
                ids += self._encode_piece(piece, plain, self._first if prefixed and j == 0 else self._plain)
        return ids

    def _ban(self, forbid: Collection[str]) -> _Ban:
        key = tuple(sorted(set(forbid)))
        if key not in self._bans:
            if short := [name for name in key if len(name) < 2]:
                raise ValueError(f"The forbidden name {short[0]!r} has fewer than two characters; it cannot be cut.")
            ids = {id for name in key if (id := self._plain.token_to_id(name)) is not None}
            names = [*self._always, *key]
            self._bans[key] = _Ban(occurrences(names), frozenset(name[0] for name in names), self.special_ids | ids)
        return self._bans[key]

    def _pieces(self, text: str, ban: _Ban, cuts: Iterable[int] = ()) -> list[str]:
        """The text in pieces to be encoded separately: cut inside forbidden names; SPACE by itself where it is text."""
        at = set(cuts)
        if any(char in text for char in ban.firsts):
            at.update(match.start() + 1 for match in ban.cut.finditer(text))
        if self._spaced and SPACE in text:
            at.update(i + side for i, char in enumerate(text) if char == SPACE for side in (0, 1))
        ends = [*sorted(at - {0, len(text)}), len(text)]
        return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]

    def _encode_piece(self, piece: str, ban: _Ban, fast: FastTokenizer) -> list[int]:
        if self._spaced and piece == SPACE:
            return self._space_ids
        ids: list[int] = []
        while True:
            if len(piece) > LONG:  # the same ids, and other threads go on meanwhile
                (quick,) = fast.encode_batch_fast([piece], add_special_tokens=False)
                if ban.ids.isdisjoint(found := quick.ids):
                    return ids + found
            encoding = fast.encode(piece, add_special_tokens=False)
            if ban.ids.isdisjoint(encoding.ids):
                return ids + encoding.ids
            # A forbidden name created by normalisation: cut there, in the text as given.
            at = next(span[0] for id, span in zip(encoding.ids, encoding.offsets, strict=True) if id in ban.ids)
            head = fast.encode(piece[: at + 1], add_special_tokens=False).ids
            if not ban.ids.isdisjoint(head):
                raise ValueError(f"{piece[at]!r} is by itself a forbidden token; remove it from the text.")
            ids, piece, fast = ids + head, piece[at + 1 :], self._plain

    def _spell(self, ids: Iterable[int]) -> bytes:
        assert self._bytes is not None
        return b"".join(self._bytes.get(id, b"") for id in ids)


@dataclass(frozen=True)
class _Ban:
    """Where texts are cut, the first characters of the forbidden names, and the ids that must not occur."""

    cut: re.Pattern[str]
    firsts: frozenset[str]
    ids: frozenset[int]


def _template_text(source: str | Path) -> str:
    """Jinja text as given, or the contents of a file (a single line without Jinja syntax is taken as a file name)."""
    if isinstance(source, str) and ("{" in source or "\n" in source):
        return source
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(
            f"Chat template {path} does not exist; give a .jinja file, or none for the tokenizer's own."
        )
    return template_file(path)
