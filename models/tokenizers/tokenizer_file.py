"""What a tokenizer's files claim, before a library builds it: sizes, ids, names and texts that grow.

The libraries believe their files: an id of 2^31 is a table of as many rows when the tokenizer is written, a normaliser
that doubles spaces 64 times fills the memory at the first text, and an added token with an id that is not free gets
another one without a word.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as FastTokenizer

from scope_jax.models.fields import MOST_DEEP, WeightsError, cut, no_pointer, read_object, shallow

MOST_BYTES = 2**26  # of a tokenizer's file; the largest published ones have about 35 MB
MOST_OBJECTS, MOST_VALUES = 2**20, 2**21  # lists and objects, and values, of a tokenizer.json
MOST_TOKENS = 2**20  # of a vocabulary, and lines of a vocabulary's text file
HOLES = 2**16  # ids without a token that a vocabulary may have beside as many as it has tokens
MOST_PARTS = 256  # of a pipeline
MOST_NAME, MOST_NAMES = 256, 2**20  # characters of an added token, and of all special ones
MOST_PIECE, MOST_PIECES = 1024, 2**23  # characters of a piece of a Unigram or SentencePiece model, and of all
MOST_GROWTH = 1024  # characters that a normaliser may make of one
MOST_PATTERN, MOST_TABLE = 2**16, 2**21  # characters of a regular expression, and of a table of normal forms
VOCABULARIES = ("vocab.txt", "merges.txt", "*.model", "*.spm", "*.tiktoken", "*.vocab")


def read_bytes(path: Path) -> bytes:
    """A vocabulary's file. Raises WeightsError if it is larger than any is, or a pointer."""
    if (size := path.stat().st_size) > MOST_BYTES:
        raise WeightsError(f"{path} has {size} bytes, but at most {MOST_BYTES} are read; copy the file again.")
    data = path.read_bytes()
    no_pointer(path, data)
    return data


def check(path: Path) -> None:
    """Raises WeightsError if a tokenizer.json claims what no tokenizer has. What is not JSON, or not a tokenizer's, is
    left to the library."""
    data = read_bytes(path)
    if data.count(b"[") + data.count(b"{") > MOST_OBJECTS or data.count(b",") > MOST_VALUES:
        raise WeightsError(f"{path} has more than {MOST_VALUES} values, or {MOST_OBJECTS} lists; copy the file again.")
    try:
        contents = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WeightsError(
            f"{path} is not a readable tokenizer, as it is not JSON ({cut(str(error), 100)}); copy it again."
        ) from None
    del data
    if not isinstance(contents, dict) or not shallow(contents):
        raise WeightsError(
            f"{path} is not a readable tokenizer: not an object, or nested more than {MOST_DEEP} levels deep; "
            "copy it again."
        )
    model = contents.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        check_ids(path, vocabulary)
    elif isinstance(vocabulary, list):
        check_pieces(path, (str(entry[0]) for entry in vocabulary if isinstance(entry, list) and entry))
    _check_prefix(path, model)
    for token in _objects(contents.get("added_tokens")):
        check_name(path, token.get("content"))
    for place in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        _check_parts(path, place, list(parts(contents.get(place))))


def check_assigned(path: Path, fast: FastTokenizer) -> None:
    """Raises WeightsError if an added token of a tokenizer.json does not have the id there that the library gave it."""
    for token in _objects(json.loads(path.read_bytes()).get("added_tokens")):
        content, id = token["content"], token["id"]
        if fast.token_to_id(content) != id:
            raise WeightsError(
                f"{path} gives {shown_name(content)} the id {id}, which is not free, or not the next one (the library "
                f"makes it {fast.token_to_id(content)}); save the tokenizer again."
            )


def check_ids(path: Path, vocabulary: Mapping[str, Any]) -> None:
    """Raises WeightsError if ids are far above the number of tokens, or shared. Values that are no numbers are left to
    the library."""
    if len(vocabulary) > MOST_TOKENS:
        raise WeightsError(f"{path} has {len(vocabulary)} tokens; up to {MOST_TOKENS} are supported.")
    ids = [id for id in vocabulary.values() if type(id) is int]
    if ids and (max(ids) >= 2 * len(vocabulary) + HOLES or min(ids) < 0):
        raise WeightsError(
            f"{path} gives a token the id {max(ids) if min(ids) >= 0 else min(ids)}, but has {len(vocabulary)} tokens; "
            "copy the file again."
        )
    if len(set(ids)) < len(ids):
        raise WeightsError(f"{path} gives two tokens the same id; copy the file again.")


def check_name(path: Path | str, content: Any) -> None:
    """Raises WeightsError for an added token that is empty, or longer than any is."""
    if isinstance(content, str) and not 0 < len(content) <= MOST_NAME:
        raise WeightsError(
            f"{path}: the added token {shown_name(content)} has {len(content)} characters; 1 to {MOST_NAME} are "
            "supported, remove it."
        )


def check_names(folder: Path, names: Collection[str]) -> None:
    """Raises WeightsError for so many special tokens that looking for them in a text takes long."""
    if sum(map(len, names)) > MOST_NAMES:
        raise WeightsError(
            f"{folder} names {len(names)} special tokens with more than {MOST_NAMES} characters; remove those that the "
            "model does not use."
        )


def check_pieces(path: Path, pieces: Iterator[str]) -> None:
    """Raises WeightsError for pieces of a Unigram or SentencePiece model longer than any are."""
    total = 0
    for piece in pieces:
        total += len(piece)
        if len(piece) > MOST_PIECE or total > MOST_PIECES:
            raise WeightsError(
                f"{path} has a piece of {len(piece)} characters, or {total} in all; up to {MOST_PIECE} and "
                f"{MOST_PIECES} are supported, copy the file again."
            )


def check_table(path: Path, table: bytes) -> None:
    """Raises WeightsError unless SentencePiece's table of normal forms (a double array, then texts) stays within
    itself: the library follows it without looking, and panics at its end.
    """
    size, texts = int.from_bytes(table[:4], "little"), np.frombuffer(table, np.uint8)
    good = 0 < size <= len(table) - 4 and size % 4 == 0
    if good:
        units, texts = np.frombuffer(table, np.uint32, size // 4, 4).astype(np.int64), texts[4 + size :]
        leaf = units >> 31 == 1
        offsets = (units >> 10) << ((units & 512) >> 6)  # of the children, whose places differ in the last 8 bits
        good = bool(((np.arange(len(units)) ^ offsets | 255)[~leaf] < len(units)).all())
        values = units[leaf] & 0x7FFF_FFFF
        good = good and bool((values < len(texts)).all()) and not bool((texts[values] >> 6 == 2).any())
    if not good:
        raise WeightsError(f"{path} has a damaged table of normal forms (precompiled_charsmap); copy the file again.")


def check_folder(folder: Path) -> None:
    """Raises WeightsError if a vocabulary file beside tokenizer.json, or instead of it, claims what none has."""
    for path in sorted({file for pattern in VOCABULARIES for file in folder.glob(pattern)}):
        data = read_bytes(path) if path.is_file() else b""
        if path.suffix == ".txt" and (lines := data.count(b"\n")) > MOST_TOKENS:
            raise WeightsError(f"{path} has {lines} lines; up to {MOST_TOKENS} are supported.")
    if (path := folder / "vocab.json").is_file():
        check_ids(path, read_object(path))


def shown_name(content: str) -> str:
    """A token's name for a message."""
    return cut(repr(content[:MOST_NAME]), 80)


def parts(component: Any) -> Iterator[dict[str, Any]]:
    """A serialized normalizer, pre-tokenizer or decoder, and all its nested components."""
    if isinstance(component, dict):
        yield component
        for key in ("normalizers", "pretokenizers", "decoders", "processors"):
            inner = component.get(key, ())
            for part in inner if isinstance(inner, list) else ():
                yield from parts(part)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _check_prefix(path: Path, model: Any) -> None:
    """Raises WeightsError if a merge's second word lacks the prefix of a BPE model, which the library cuts off."""
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    merges = model.get("merges") if prefix else None
    for merge in merges if isinstance(merges, list) else ():
        word = (
            merge.rsplit(" ", 1)[-1]
            if isinstance(merge, str)
            else merge[-1]
            if isinstance(merge, list) and merge
            else ""
        )
        if not str(word).startswith(str(prefix)):
            raise WeightsError(
                f"{path}: the merge {cut(str(merge))} lacks continuing_subword_prefix, {cut(str(prefix))}; copy the "
                "file again."
            )


def _check_parts(path: Path, place: str, components: list[dict[str, Any]]) -> None:
    """Raises WeightsError for a pipeline of very many parts, or one that makes a very long text of a short one."""
    growth = 1
    for part in components:
        content, pattern = part.get("content", part.get("prepend", "")), part.get("pattern")
        pattern = pattern if isinstance(pattern, dict) else {}
        old, regex, table = pattern.get("String"), pattern.get("Regex"), part.get("precompiled_charsmap")
        if isinstance(content, str) and part.get("type") in ("Replace", "Prepend"):
            growth *= max(1, -(-len(content) // len(old)) if isinstance(old, str) and old else 1 + len(content))
        wrong = ""
        if len(components) > MOST_PARTS:
            wrong = f"has {len(components)} parts, more than {MOST_PARTS}"
        elif growth > MOST_GROWTH:
            wrong = f"can make a text more than {MOST_GROWTH} times as long"
        elif (isinstance(regex, str) and len(regex) > MOST_PATTERN) or (
            isinstance(table, str) and len(table) > MOST_TABLE
        ):
            wrong = "holds a pattern or a table longer than any is"
        if wrong:
            raise WeightsError(f"{path}: the {place} {wrong}; copy the file again.")
        if isinstance(table, str) and part.get("type") == "Precompiled":
            try:
                decoded = base64.b64decode(table, validate=True)
            except ValueError:
                decoded = b""
            check_table(path, decoded)
