"""Text to ids and back, with text that can never speak in the template's voice.

A chat template's markers are special tokens. Text from people, documents and models may contain the same characters;
here they stay characters. "Special" is what the tokenizer itself marks so: words it adds without that mark (Qwen3's
<think> and <tool_call>) are ordinary vocabulary that text may use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

# Characters that stand for the first character of a special token's name while a template is rendered.
PRIVATE_USE = range(0xF0000, 0xFFFFE)


def _byte_of_char() -> dict[str, int]:
    """Byte-level vocabularies (GPT-2) write each byte as a printable character: itself where it is one, else from
    U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return table | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _uses_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, Mapping):
        return False
    return decoder.get("type") == "ByteLevel" or any(_uses_byte_level(part) for part in decoder.get("decoders", ()))


class Tokenizer:
    """A byte-level fast tokenizer with its chat template.

    eos_id, bos_id (None if the vocabulary has none), pad_id (the end token if there is no padding token); eos_ids:
    every id that ends a turn; special_ids: every id plain text can never give; vocab_size: the ids are below it.
    """

    def __init__(self, hf: PreTrainedTokenizerFast, eos_ids: Sequence[int]) -> None:
        ends, starts, pads = hf.eos_token_id, hf.bos_token_id, hf.pad_token_id
        if not isinstance(ends, int):
            raise ValueError("The tokenizer names no eos_token; set one in tokenizer_config.json.")
        self._hf = hf
        serialized = hf.backend_tokenizer.to_str()
        if not _uses_byte_level(json.loads(serialized)["decoder"]):
            raise ValueError(
                "The tokenizer is not byte-level; only byte-level tokenizers (Qwen, Llama 3, OLMo) are supported."
            )
        # Own copy: this switch is state of the tokenizer object, and ids are made in several threads.
        self._plain = FastTokenizer.from_str(serialized)
        self._plain.encode_special_tokens = True
        self._plain.no_truncation()
        self._plain.no_padding()
        added = self._plain.get_added_tokens_decoder()
        self._special = {token.content: id for id, token in added.items() if token.special}
        names = sorted(self._special, key=len, reverse=True)
        self._marker = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        byte_of = _byte_of_char()
        vocabulary = self._plain.get_vocab(with_added_tokens=False)
        self._bytes = {id: bytes(byte_of[char] for char in piece) for piece, id in vocabulary.items()}
        self._bytes |= {id: token.content.encode() for id, token in added.items()}
        self.eos_id: int = ends
        self.bos_id: int | None = starts if isinstance(starts, int) else None
        self.pad_id: int = pads if isinstance(pads, int) else ends
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys([self.eos_id, *eos_ids]))
        self.special_ids: frozenset[int] = frozenset(self._special.values())
        self.vocab_size: int = max(self._bytes) + 1

    @staticmethod
    def load(folder: str | Path, chat_template: str | Path | None = None) -> Tokenizer:
        """The tokenizer of a folder (tokenizer.json, or vocab.json and merges.txt, with tokenizer_config.json).

        chat_template: Jinja text or a file with it, instead of the folder's own. Further end tokens are taken from
        generation_config.json if there is one. Nothing is downloaded. Raises FileNotFoundError if the folder or the
        template file is missing, ValueError if no fast byte-level tokenizer can be made of it.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise FileNotFoundError(f"Tokenizer folder {folder} does not exist; give a folder with a tokenizer.json.")
        try:
            hf = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"{folder} holds no tokenizer that can be read ({reason}).") from None
        if not isinstance(hf, PreTrainedTokenizerFast):
            raise ValueError(f"{folder} holds no fast tokenizer; it needs a tokenizer.json.")
        if chat_template is not None:
            hf.chat_template = _template_text(chat_template)
        return Tokenizer(hf, _eos_ids(folder / "generation_config.json"))

    def save(self, folder: str | Path) -> None:
        """Writes the tokenizer's files, its chat template and generation_config.json (which tokens end and fill)."""
        self._hf.save_pretrained(folder)
        ids = {"bos_token_id": self.bos_id, "eos_token_id": list(self.eos_ids), "pad_token_id": self.pad_id}
        known = {name: value for name, value in ids.items() if value is not None}
        (Path(folder) / "generation_config.json").write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: nothing added, and never one of special_ids, whatever the text says."""
        return self._plain.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of ids; bytes that are no UTF-8 (a character cut in two) become U+FFFD."""
        kept = (id for id in ids if not (skip_special and id in self.special_ids))
        return b"".join(self.token_bytes(id) for id in kept).decode("utf-8", errors="replace")

    def token_bytes(self, id: int) -> bytes:
        """The bytes one id adds to a text, so that a stop string can be found as tokens arrive: a text's bytes are its
        tokens' bytes joined. Empty for the ids by which a model's table exceeds the vocabulary.
        """
        return self._bytes.get(int(id), b"")

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **template_options: Any
    ) -> list[int]:
        """Ids of a conversation under the chat template: markers are special tokens, what messages say never is.

        messages: {"role", "content", ...}. template_options are variables of the template (such as enable_thinking).
        Where no message contains a special token's name the ids are those of transformers' apply_chat_template. Raises
        ValueError if the tokenizer has no chat template.

        Inside every string of a message but its role, the names of special tokens (and a beginning or an end of one at
        the string's edges, which the template might complete) are disguised with private-use characters, so that each
        marker in the rendered text is the template's; between markers the text is put right and encoded as plain text.
        """
        if self._hf.chat_template is None:
            raise ValueError(
                "The tokenizer has no chat template; give one to Tokenizer.load or put it into its folder."
            )
        disguise = _Disguise(self._special, messages)
        hidden = [{k: value if k == "role" else disguise.hide(value) for k, value in m.items()} for m in messages]
        rendered = self._hf.apply_chat_template(
            hidden, tokenize=False, add_generation_prompt=add_generation_prompt, **template_options
        )
        assert isinstance(rendered, str)  # because of tokenize=False
        ids: list[int] = []
        position = 0
        for marker in self._marker.finditer(rendered):
            ids += self.encode(disguise.reveal(rendered[position : marker.start()]))
            ids.append(self._special[marker.group()])
            position = marker.end()
        return ids + self.encode(disguise.reveal(rendered[position:]))


class _Disguise:
    """Replaces single characters of special tokens' names in messages by private-use characters, and back."""

    def __init__(self, special: Iterable[str], messages: Sequence[Mapping[str, Any]]) -> None:
        self._special = sorted(special, key=len, reverse=True)
        edges = sorted({char for name in self._special for char in (name[0], name[-1])})
        used = set(json.dumps([dict(m) for m in messages], ensure_ascii=False, default=str))
        free = (chr(code) for code in PRIVATE_USE if chr(code) not in used)
        self._mask = dict(zip(edges, free, strict=False))
        self._unmask = {ord(mask): char for char, mask in self._mask.items()}

    def hide(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._hide_text(value)
        if isinstance(value, Mapping):
            return {self.hide(key) if isinstance(key, str) else key: self.hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in value]
        return value

    def reveal(self, text: str) -> str:
        return text.translate(self._unmask)

    def _hide_text(self, text: str) -> str:
        for name in self._special:
            text = text.replace(name, self._mask[name[0]] + name[1:])
        body = text.strip()
        start = len(text) - len(text.lstrip())
        end = start + len(body)
        heads = {name[:n] for name in self._special for n in range(1, len(name))}
        tails = {name[-n:] for name in self._special for n in range(1, len(name))}
        tail = max((t for t in heads if body.endswith(t)), key=len, default="")
        if tail:
            at = end - len(tail)
            text = text[:at] + self._mask[text[at]] + text[at + 1 :]
        head = max((h for h in tails if body.startswith(h)), key=len, default="")
        if head and text[start + len(head) - 1] in self._mask:
            at = start + len(head) - 1
            text = text[:at] + self._mask[text[at]] + text[at + 1 :]
        return text


def _template_text(source: str | Path) -> str:
    """Jinja text as given, or the contents of a named file (one line without Jinja marks is a file's name)."""
    if isinstance(source, str) and ("{" in source or "\n" in source):
        return source
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"Chat template {path} does not exist.")
    return path.read_text(encoding="utf-8")


def _eos_ids(path: Path) -> tuple[int, ...]:
    """The end tokens a generation_config.json names (one or several); none if there is no such file."""
    if not path.is_file():
        return ()
    try:
        named = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}).") from None
    return tuple(named) if isinstance(named, list) else () if named is None else (named,)
