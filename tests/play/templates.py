"""Tokenizers with the chat templates of published models, for tests: bytes of text, and the template's own tokens.

The templates are read from the installed `trl` and from the shared data, never copied.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from scope_jax.models.tokenizers.tokenizer import Tokenizer

DATA = Path(os.environ.get("SCOPE_JAX_DATA", Path(__file__).parents[3] / "shared" / "data")) / "chat_templates"
# The tokens of templates: <|x|>, <｜x｜>, <|x>, <x|>, [X], and a few names.
_TOKEN = re.compile(
    r"<\|[\w\".-]+\|?>|<[\w]+\|>|<｜[^｜<>]+｜>|\[/?[A-Z][A-Z_]+\]|</?s>|<(?:bos|eos|sop|start_of_turn|end_of_turn)>|\[gMASK\]"
)
# Tokens that end turns besides the one that the template writes, as published configurations name them.
_ENDS = ("<|return|>", "<|call|>", "<|tool_response>", "<turn|>", "<|observation|>", "<|eom_id|>")
_WORDS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def paths() -> dict[str, Path]:
    """The templates by name: those of TRL that are not changed for training, and those of the shared data."""
    folder = Path(str(distribution("trl").locate_file("trl/chat_templates")))
    found = [path for path in sorted(folder.glob("*.jinja")) if "_training" not in path.stem]
    return {path.stem: path for path in [*found, *sorted(DATA.glob("*.jinja"))]}


@cache
def published(vocabulary: str, template: str) -> Tokenizer:
    """A vocabulary of the shared data with a chat template of it, by their names; shared by tests, which leave it as it
    is. It takes seconds to read; where any vocabulary will do, `tokenizer_of` gives bytes."""
    return Tokenizer.load(DATA.parent / "tokenizers" / vocabulary, DATA / f"{template}.jinja")


@cache
def tokenizer_of(path: Path) -> Tokenizer:
    """Every byte a token, besides what the template's text has of tokens."""
    text = path.read_text(encoding="utf-8")
    names = list(dict.fromkeys(["<eos>", "<bos>", *_TOKEN.findall(text)]))
    fast = FastTokenizer(
        models.BPE({char: id for id, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(names)
    fast.add_tokens([word for word in _WORDS if word in text])
    with TemporaryDirectory() as name:
        folder = Path(name)
        fast.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", "bos_token": "<bos>"}))
        ends = [fast.token_to_id(end) for end in ("<eos>", *_ENDS) if end in names]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        (folder / "chat_template.jinja").write_text(text)
        return Tokenizer.load(folder)
