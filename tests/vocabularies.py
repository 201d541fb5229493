"""Tokenizers of published models, each read once by a worker."""

from functools import cache
from pathlib import Path

from scope_jax.models.tokenizers.tokenizer import Tokenizer


@cache
def vocabulary(folder: Path) -> Tokenizer:
    """The tokenizer of a folder. Tests share it: each writes the template that it needs into `_hf.chat_template`."""
    return Tokenizer.load(folder)
