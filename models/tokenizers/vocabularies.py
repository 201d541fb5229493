"""Loads tokenizer folders of every supported kind as a fast tokenizer plus the bytes of each of its ids.

Byte-level BPE (Qwen, OLMo, GPT-2) is read from tokenizer.json or vocab.json and merges.txt; Llama 3's `tokenizer.model`
(tiktoken ranks) and SentencePiece's `tokenizer.model` are converted to fast tokenizers; WordPiece comes from vocab.txt.

SentencePiece writes a space as U+2581 and inserts one before every text; text that continues an episode gets none. Ids
are those of the vocabulary's library, with two exceptions: U+2581 in a text is encoded as its three bytes, and around
user-defined symbols dummy spaces are inserted as in transformers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import DecodeError
from tokenizers import AddedToken, Regex, decoders, models, normalizers
from tokenizers import Tokenizer as FastTokenizer

from scope_jax.errors import UserError
from scope_jax.models.fields import WeightsError, cut, read_object, within
from scope_jax.models.tokenizers import specials, tokenizer_file
from scope_jax.models.tokenizers.tokenizer_file import parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Built = TypeVar("Built")

SPACE = "\u2581"  # how SentencePiece writes a space
OBJECTS = (
    "config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)  # transformers' files
KINDS = ("BPE", "Unigram", "WordPiece")
# A tokenizer is exact if it preserves this text: case, accents, width, ligatures, white space, any byte.
PROBE = "  Aé ﬁＡ½  日本\t\r\n🙂\u0000\u200d \u00a0#\ue000 "

# Llama 3's ranks file holds no special tokens. Names and order as from Llama 3.1 on: 256 ids from 128000.
LLAMA3_RANKS = 128_000
LLAMA3_NAMED = (
    *("begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1"),
    *("finetune_right_pad_id", "reserved_special_token_2", "start_header_id", "end_header_id"),
    *("eom_id", "eot_id", "python_tag"),
)
LLAMA3_SPECIAL = tuple(f"<|{name}|>" for name in LLAMA3_NAMED) + tuple(
    f"<|reserved_special_token_{i}|>" for i in range(3, 248)
)
LLAMA3_ENDS = ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")

# End token of bare vocabularies, which do not name one.
USUAL_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "[SEP]")
USUAL_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def read(folder: Path) -> tuple[PreTrainedTokenizerFast, tuple[int, ...]]:
    """The fast tokenizer of a folder, and ids that end a turn besides its eos_token and what configurations name.

    Raises ValueError with one sentence if the folder holds no supported tokenizer.
    """
    model = folder / "tokenizer.model"
    bare = not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json", "tokenizer_config.json"))
    for path in (folder / name for name in OBJECTS):
        if path.is_file():
            read_object(path)
    ends: tuple[int, ...] = ()
    if model.is_file() and not (folder / "tokenizer.json").is_file():
        with model.open("rb") as file:
            first = file.readline(tokenizer_file.MOST_PIECE)
        ranks = re.match(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n", first) is not None
        hf = _built(folder, lambda: _llama3(model) if ranks else _sentencepiece(model))
        if ranks:
            ends = tuple(LLAMA3_RANKS + LLAMA3_SPECIAL.index(name) for name in LLAMA3_ENDS)
    elif bare and (folder / "vocab.txt").is_file():
        tokenizer_file.check_folder(folder)
        from transformers import BertTokenizer  # transformers looks at all of its models for the first one

        hf = _built(folder, lambda: BertTokenizer(vocab=str(folder / "vocab.txt")))
    else:
        hf = of_folder(folder)
    kind = type(hf.backend_tokenizer.model).__name__
    if kind not in KINDS:
        raise UserError(f"{folder} has a tokenizer of type {kind}; supported are BPE, Unigram and WordPiece.")
    if hf.eos_token is None:
        special = {token.content for token in hf.added_tokens_decoder.values() if token.special}
        hf.eos_token = next((name for name in USUAL_ENDS if name in special), None)
    return hf, ends


def of_folder(folder: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a folder with tokenizer.json, which then is the whole pipeline, whatever class or option
    another file names; or with a class's own vocabulary files. Raises ValueError with one sentence if there is none.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        if os.path.lexists(file):  # a pipe would be waited for
            raise UserError(f"{file} is neither a file nor a link to one; copy it again.")
        return _by_class(folder)
    tokenizer_file.check(file)
    fast = _built(folder, lambda: FastTokenizer.from_file(str(file)))
    fast.no_truncation()  # how its writer cut and filled rows has no part in ids
    fast.no_padding()
    tokenizer_file.check_assigned(file, fast)
    hf = specials.wrap(fast, folder, specials.class_roles(folder), whole=True)
    _built(folder, lambda: hf.backend_tokenizer.encode(PROBE))
    return hf


def _built(folder: Path, build: Callable[[], Built]) -> Built:
    """What a library makes of files. Raises ValueError with one sentence for any error of its own; ours are kept."""
    try:
        return build()
    except BaseException as error:
        if isinstance(error, WeightsError) or not (isinstance(error, Exception) or _is_panic(error)):
            raise
        raise UserError(f"{folder} has no readable tokenizer ({_first_line(error)}).") from None


def _is_panic(error: BaseException) -> bool:
    """True for a panic of a library in Rust, which its bindings derive from BaseException."""
    return type(error).__name__ == "PanicException"


def _by_class(folder: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer that transformers makes of vocabulary files that do not say how text is divided: the class
    that tokenizer_config.json or config.json names decides.
    """
    if (folder / "vocab.json").is_file() and specials.class_of(folder) is None:
        raise UserError(
            f"{folder} has no readable tokenizer (vocab.json and merges.txt do not say how text is divided, and no "
            "tokenizer class is named; add tokenizer.json, or tokenizer_class in tokenizer_config.json)."
        )
    _check_named(folder)
    tokenizer_file.check_folder(folder)
    specials.check_classes(folder)  # imports transformers' own table of classes, and torch where that is installed
    for model in (file for pattern in ("*.model", "*.spm") for file in sorted(folder.glob(pattern))):
        with suppress(DecodeError):  # of another kind
            _pieces(model)
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # it imports torch where that is installed: seconds

    hf = _built(
        folder,
        lambda: AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, fix_mistral_regex=False
        ),
    )
    if not isinstance(hf, PreTrainedTokenizerFast):
        raise UserError(f"{folder} has no fast tokenizer; it needs a tokenizer.json or a vocab.txt.")
    tokenizer_file.check_ids(folder, hf.backend_tokenizer.get_vocab())
    _built(folder, lambda: hf.backend_tokenizer.encode(PROBE))
    return hf


def _check_named(folder: Path) -> None:
    """Raises WeightsError if tokenizer_config.json has a class open files outside the folder. Published ones often say
    where a file was when it was written; that does not matter if the folder has one of that name."""
    path = folder / "tokenizer_config.json"
    for key, value in read_object(path).items() if path.is_file() else ():
        inline = key in ("vocab", "merges")
        named = isinstance(value, str) and (inline or key.endswith("_file"))
        if named and (inline or not (folder / Path(value).name).is_file()):
            within(folder, value, path)


def _first_line(error: BaseException) -> str:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "instantiate the backend tokenizer" in reason:  # transformers' list of what it looks for is cut off here
        return "it needs tokenizer.json, or vocab.json and merges.txt, or tokenizer.model"
    return cut(reason, 200)


def _llama3(model: Path) -> PreTrainedTokenizerFast:
    """Llama 3's tokenizer from its tiktoken ranks, with the special tokens of Llama 3.1."""
    from transformers.convert_slow_tokenizer import TikTokenConverter

    lines = tokenizer_file.read_bytes(model).splitlines()
    tokenizer_file.check_pieces(model, (line.decode("latin-1") for line in lines))
    if len(lines) != LLAMA3_RANKS:
        raise WeightsError(
            f"{model} has {len(lines)} tiktoken ranks; only Llama 3's {LLAMA3_RANKS} are supported, for any other "
            "vocabulary provide a tokenizer.json."
        )
    tokenizer_file.check_ids(model, {str(i): int(line.rsplit(b" ", 1)[-1]) for i, line in enumerate(lines)})
    fast = TikTokenConverter(vocab_file=str(model)).converted()
    fast.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in LLAMA3_SPECIAL])
    roles = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "pad_token": "<|finetune_right_pad_id|>"}
    return specials.wrap(fast, model.parent, roles, whole=False)


def _pieces(model: Path) -> Any:
    """A SentencePiece model as stored. Raises DecodeError for other files, WeightsError for pieces longer than any."""
    from transformers.convert_slow_tokenizer import SentencePieceExtractor

    tokenizer_file.read_bytes(model)
    proto: Any = SentencePieceExtractor(str(model)).proto
    tokenizer_file.check_pieces(model, (piece.piece for piece in proto.pieces))
    if table := proto.normalizer_spec.precompiled_charsmap:
        tokenizer_file.check_table(model, table)
    return proto


def _sentencepiece(model: Path) -> PreTrainedTokenizerFast:
    """A SentencePiece model (BPE or unigram) as a fast tokenizer with the same ids as the sentencepiece library."""
    from transformers.convert_slow_tokenizer import SpmConverter, generate_merges

    try:
        proto = _pieces(model)
    except DecodeError:
        raise WeightsError(f"{model} is neither a SentencePiece model nor a list of tiktoken ranks.") from None
    scored = [(piece.piece, piece.score) for piece in proto.pieces]
    if proto.trainer_spec.model_type == 1:
        fast = SpmConverter.build_tokenizer_from_spm_proto(proto, scored)
    elif proto.trainer_spec.model_type == 2:
        ids = {piece: id for id, (piece, _) in enumerate(scored)}
        fast = SpmConverter.build_tokenizer_from_spm_proto(proto, ids, generate_merges(ids, scored))
    else:
        raise WeightsError(f"{model} is a word or character SentencePiece model; supported are BPE and unigram.")
    assert fast is not None
    spec = proto.normalizer_spec
    steps: list[Any] = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    steps += [normalizers.Prepend(SPACE)] if spec.add_dummy_prefix else []
    fast.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    shown = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    fast.decoder = decoders.Sequence(shown + ([decoders.Strip(" ", 1, 0)] if spec.add_dummy_prefix else []))
    # Types of pieces: 2 unknown, 3 control, 4 defined by the user.
    fast.add_tokens(
        [AddedToken(p.piece, normalized=False, special=p.type != 4) for p in proto.pieces if p.type in (2, 3, 4)]
    )
    special = {piece.piece for piece in proto.pieces if piece.type in (2, 3)}
    roles = {role: name for role, name in USUAL_ROLES.items() if name in special}
    return specials.wrap(fast, model.parent, roles, whole=False)


# ------------------------------------------------------------------------------------------------------------- bytes
BYTE_NAME = "<0x{:02X}>"  # SentencePiece's name of a byte, for characters that have no piece of their own
BYTE_NAMES = tuple(BYTE_NAME.format(byte) for byte in range(256))


def _state(component: Any) -> Any:
    """A component as serialized in tokenizer.json (reading the whole file takes seconds)."""
    return None if component is None else json.loads(component.__getstate__())


def _byte_of_char() -> dict[str, int]:
    """The byte of each character in byte-level vocabularies (GPT-2), which write a byte as itself if it is printable
    and as a character from U+0100 on otherwise.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return table | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def falls_back_to_bytes(fast: FastTokenizer) -> bool:
    """True if the vocabulary writes spaces as U+2581 and characters it lacks as bytes (SentencePiece)."""
    kinds = {part["type"] for part in parts(_state(fast.decoder))}
    return "ByteFallback" in kinds and all(fast.token_to_id(name) is not None for name in BYTE_NAMES)


def unknown_id(fast: FastTokenizer) -> int | None:
    """The id that the vocabulary itself gives to what it lacks; None if it names no such token."""
    model = fast.model
    named = model.unk_token if isinstance(model, (models.BPE, models.WordPiece)) else None
    return None if named is None else fast.token_to_id(named)


def byte_table(fast: FastTokenizer) -> dict[int, bytes] | None:
    """The bytes of every id; None for a vocabulary that cannot represent all bytes (WordPiece, no byte fallback)."""
    pieces = fast.get_vocab(with_added_tokens=False)
    added = {id: token.content.encode() for id, token in fast.get_added_tokens_decoder().items()}
    if falls_back_to_bytes(fast):
        table = {id: piece.replace(SPACE, " ").encode() for piece, id in pieces.items()}
        table |= {pieces[name]: bytes([byte]) for byte, name in enumerate(BYTE_NAMES)}
    elif "ByteLevel" in {part["type"] for part in parts(_state(fast.decoder))}:
        byte_of = _byte_of_char()
        # A trained vocabulary also holds its special tokens, whose names are written as they are.
        pieces = {piece: id for piece, id in pieces.items() if id not in added}
        if not all(char in byte_of for piece in pieces for char in piece):
            return None
        table = {id: bytes(byte_of[char] for char in piece) for piece, id in pieces.items()}
    else:
        return None
    return table | added


# ------------------------------------------------------------------------------------------------- the dummy prefix
def prefix_rule(fast: FastTokenizer) -> str:
    """Where the library adds its dummy space: "never", "first" (before a text) or "always" (also after every special
    token).
    """
    steps = [*parts(_state(fast.normalizer)), *parts(_state(fast.pre_tokenizer))]
    rules = {step["prepend_scheme"] for step in steps if step["type"] == "Metaspace"}
    if any(step["type"] == "Prepend" or step.get("add_prefix_space") for step in steps):
        rules.add("always")
    return next((rule for rule in ("always", "first") if rule in rules), "never")


def without_prefix(fast: FastTokenizer) -> FastTokenizer:
    """A copy that adds no space before a text."""
    serialized = json.loads(fast.to_str())
    for part in parts(serialized["pre_tokenizer"]):
        if part["type"] == "Metaspace":
            part["prepend_scheme"] = "never"
        elif "add_prefix_space" in part:
            part["add_prefix_space"] = False
    normalizer = serialized["normalizer"]
    for part in parts(normalizer):
        if part["type"] == "Sequence":
            part["normalizers"] = [step for step in part["normalizers"] if step["type"] != "Prepend"]
    if normalizer and normalizer["type"] == "Prepend":
        serialized["normalizer"] = None
    return FastTokenizer.from_str(json.dumps(serialized))
