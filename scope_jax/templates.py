"""Prompt files: text with `{variables}`, filled in one pass, so that braces in the filled-in text survive."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_VARIABLE = re.compile(r"\{(\w+)\}")


class PromptError(ValueError):
    """A prompt file that cannot be used: the message is one sentence with file and remedy."""


def load(folder: str | Path, name: str, *, known: Sequence[str], required: Sequence[str]) -> str:
    """Text of `folder/name.txt`, stripped; `PromptError` unless its variables are known and the required ones there."""
    path = Path(folder) / f"{name}.txt"
    if not path.is_file():
        raise PromptError(
            f"{path}: no such prompt file; write it, or point the card's `prompts` to a folder that has it."
        )
    text = path.read_text(encoding="utf-8").strip()
    used = set(_VARIABLE.findall(text))
    if unknown := sorted(used - set(known)):
        raise PromptError(f"{path}: unknown variable {{{unknown[0]}}}; this prompt may use {_listed(known)}.")
    if missing := sorted(set(required) - used):
        raise PromptError(f"{path}: the variable {{{missing[0]}}} is missing; this prompt needs {_listed(required)}.")
    return text


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def variables(text: str) -> set[str]:
    """Names of the variables a template uses."""
    return set(_VARIABLE.findall(text))


def fill(text: str, values: Mapping[str, object]) -> str:
    """`text` with each `{name}` of `values` replaced; what is filled in is not searched again, other braces stay."""
    return _VARIABLE.sub(lambda match: str(values[match[1]]) if match[1] in values else match[0], text)
