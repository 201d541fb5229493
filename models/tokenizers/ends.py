"""Where the replies of a model end: the tokens that its chat template, its configuration and its tokenizer say.

A model is trained to end a reply with the token that its chat template writes after an assistant's message. The
configuration need not name it: folders of base models often have the template of the chat model (ChatML, whose messages
end with <|im_end|>) and an eos_token that ends documents (<|endoftext|>), and sampling then runs to its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scope_jax.errors import UserError
from scope_jax.models.fields import MOST, cut, read_object
from scope_jax.models.tokenizers.chat import ChatTemplate, Stretch

TEMPLATE, TOKENIZER = "the chat template", "the tokenizer"
MOST_ENDS = 256
GENERATION, CONFIG = "generation_config.json", "config.json"


@dataclass(frozen=True)
class EndToken:
    """A token that ends a reply: id, name, and who says so."""

    id: int
    name: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class TemplateEnd:
    """What a chat template writes after an assistant's message: `text`, and the token in it that ends the reply, None
    if it writes none."""

    text: str
    id: int | None


def declared(folders: Iterable[Path], added: Collection[int]) -> list[tuple[str, tuple[int, ...]]]:
    """The end tokens that the generation_config.json and config.json of these folders name.

    As in transformers, config.json counts where no generation_config.json names one. Of its ids only those of added
    tokens count: a configuration is often written with a default that means something else to the vocabulary, and a
    reply must not end at a word. Raises ValueError for values that are no token ids.
    """
    once = list(dict.fromkeys(folders))
    found = [(GENERATION, ids) for folder in once if (ids := _named(folder / GENERATION))]
    if not found:
        named = [tuple(id for id in _named(folder / CONFIG) if id in added) for folder in once]
        found = [(CONFIG, ids) for ids in named if ids]
    return found


def generation_config(folders: Iterable[Path]) -> dict[str, Any]:
    """The generation_config.json of the last of these folders that has one; empty without one."""
    files = [path for folder in folders if (path := folder / GENERATION).is_file()]
    return dict(read_object(files[-1])) if files else {}


def _named(path: Path) -> tuple[int, ...]:
    """`eos_token_id` of a file, one or several; none if the file or the key is missing."""
    named = read_object(path).get("eos_token_id") if path.is_file() else None
    ends = tuple(named) if isinstance(named, list) else () if named is None else (named,)
    if len(ends) > MOST_ENDS or not all(type(end) is int and 0 <= end <= MOST for end in ends):
        value = named if not isinstance(named, list) else named[:20]
        raise UserError(
            f"{path}: eos_token_id is {cut(repr(value))}; it must be a token id or a list of them, up to {MOST_ENDS}."
        )
    return ends


def of_template(chat: ChatTemplate, special: Mapping[str, int], others: Mapping[str, int]) -> TemplateEnd | None:
    """The end of an assistant's message; None without a template, or if it renders no such message.

    special: ids of special tokens by name. others: those of added tokens that are not special, of which only one right
    after the message counts. A template that writes nothing after the last message ends one with the token that begins
    the next, as GLM-4 does.
    """
    last, between = chat.reply_ends()
    for stretches, anywhere in ((last, True), (between, False)):
        if stretches and (id := _first_token(stretches, special, others, anywhere)) is not None:
            return TemplateEnd("".join(stretch.text for stretch in stretches), id)
    known = last or between
    return None if known is None else TemplateEnd("".join(stretch.text for stretch in known), None)


def _first_token(
    stretches: Sequence[Stretch], special: Mapping[str, int], others: Mapping[str, int], anywhere: bool
) -> int | None:
    """The id of the first special token (anywhere: text may precede it), or of another added token at the start."""
    for stretch in stretches:
        if stretch.marker:
            return special[stretch.text]
        start = stretch.text.lstrip()
        for name in sorted(others, key=len, reverse=True):
            if start.startswith(name):
                return others[name]
        if start and not anywhere:
            return None
    return None


def established(named: Iterable[tuple[str, Iterable[int]]], name_of: Callable[[int], str]) -> tuple[EndToken, ...]:
    """The end tokens in the order in which they are first named. named: ids by source."""
    sources: dict[int, list[str]] = {}
    for source, ids in named:
        for id in ids:
            sources.setdefault(id, [])
            if source not in sources[id]:
                sources[id].append(source)
    return tuple(EndToken(id, name_of(id), tuple(found)) for id, found in sources.items())
