"""Prompt files: text with `{variables}`, filled in one pass, so that braces in the inserted values are kept.

`<role>.txt` is the user message of a role. `<role>.system.txt` next to it, with the same variables, is its
system message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scope_jax.errors import UserError
from scope_jax.text.messages import Messages

_VARIABLE = re.compile(r"\{(\w+)\}")


class PromptError(UserError):
    """A prompt file cannot be used; the message is one sentence with file and remedy."""


_held: dict[Path, dict[str, bytes]] = {}  # by folder, the files that `hold` has read


def hold(folder: str | Path) -> None:
    """From now on this process has the prompt files of a folder as they are now, whoever edits or removes them."""
    _held[Path(folder)] = {file.name: file.read_bytes() for file in Path(folder).glob("*.txt") if file.is_file()}


def _content(path: Path) -> bytes | None:
    """What a prompt file holds; None if there is none."""
    if (files := _held.get(path.parent)) is not None:
        return files.get(path.name)
    return path.read_bytes() if path.is_file() else None


def load(folder: str | Path, name: str, *, known: Sequence[str], required: Sequence[str]) -> str:
    """Text of `folder/name.txt`, stripped; `PromptError` for an unknown variable or if a required one is missing."""
    path = Path(folder) / f"{name}.txt"
    content = _content(path)
    if content is None:
        raise PromptError(
            f"{path}: the prompt file does not exist; create it, or set `prompts` in the card to a folder that has it."
        )
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").strip()
    except UnicodeDecodeError as error:
        raise PromptError(f"{path}: is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8.") from None
    if not text:
        raise PromptError(f"{path}: is empty; write the prompt, or remove the file.")
    used = set(_VARIABLE.findall(text))
    if unknown := sorted(used - set(known)):
        raise PromptError(f"{path}: unknown variable {{{unknown[0]}}}; this prompt may use {_listed(known)}.")
    if missing := sorted(set(required) - used):
        raise PromptError(f"{path}: the variable {{{missing[0]}}} is missing; this prompt needs {_listed(required)}.")
    if broken := _half_braced(text, known):
        raise PromptError(
            f"{path}: {broken!r} is not a variable; write it as {{name}}, with both braces and no spaces."
        )
    return text


def _half_braced(text: str, known: Sequence[str]) -> str:
    """The first known name with a space inside its braces or with only one brace; "" if there is none."""
    if not known:
        return ""
    names = "|".join(map(re.escape, known))
    spaced = re.search(rf"\{{(?: +(?:{names}) *|(?:{names}) +)\}}", text)
    unpaired = re.search(rf"\{{ *(?:{names})\b|\b(?:{names})\}}", re.sub(r"\{[^{}\n]*\}", " ", text))
    found = spaced or unpaired
    return found[0] if found else ""


def load_messages(
    folder: str | Path,
    role: str,
    *,
    known: Sequence[str],
    required: Sequence[str],
    tools: Sequence[Mapping[str, Any]] | None,
) -> Messages:
    """The templates of a role's messages; required variables must be in the user message. Raises as `load` does."""
    user = load(folder, role, known=known, required=required)
    system = [load(folder, file.stem, known=known, required=()) for file in system_files(folder, [role])]
    return Messages(user, system[0] if system else None, None if tools is None else tuple(tools))


def system_files(folder: str | Path, roles: Sequence[str]) -> tuple[Path, ...]:
    """The existing system message files of these roles."""
    return tuple(file for role in roles if _content(file := Path(folder) / f"{role}.system.txt") is not None)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def variables(text: str) -> set[str]:
    """Names of the variables a template uses."""
    return set(_VARIABLE.findall(text))


def fill(text: str, values: Mapping[str, object]) -> str:
    """`text` with each `{name}` of `values` replaced; inserted values are not searched again, other braces are kept."""
    return _VARIABLE.sub(lambda match: str(values[match[1]]) if match[1] in values else match[0], text)


def fill_messages(messages: Messages, values: Mapping[str, object]) -> Messages:
    """`fill` applied to all messages."""
    system = None if messages.system is None else fill(messages.system, values)
    return replace(messages, user=fill(messages.user, values), system=system)
