"""A tokenizer with the marks of gpt-oss's format, and a template of ours in it."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from scope_jax.models.tokenizer import Tokenizer

MARKS = ("<|return|>", "<|call|>", "<|end|>", "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>")


def tokenizer_in(folder: Path) -> Tokenizer:
    """Bytes and the format's special tokens; a call ends a turn, as gpt-oss's generation_config.json says."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE({char: place for place, char in enumerate(characters)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([*MARKS])
    fast.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|return|>"}))
    ends = [fast.token_to_id(name) for name in MARKS[:2]]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return Tokenizer.load(folder, Path(__file__).with_name("harmony.jinja"))
