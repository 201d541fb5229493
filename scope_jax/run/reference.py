"""The frozen reference of a run, which its checkpoints share: it is written once, beside them.

<run>/checkpoints/reference-<step>/   arrays (orbax) and seal.json; step: of the first checkpoint that names it
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PREFIX = "reference-"


def apart(states: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the states without their references, the references by the state that has one)."""
    references = {name: state.ref_params for name, state in states.items() if has_one(state)}
    return {n: state.replace(ref_params=None) if n in references else state for n, state in states.items()}, references


def together(states: Mapping[str, Any], references: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `apart`."""
    return {n: state.replace(ref_params=references[n]) if n in references else state for n, state in states.items()}


def has_one(state: Any) -> bool:
    """Whether a state, or a part of one, has a reference of its own."""
    return getattr(state, "ref_params", None) is not None


def named_by(checkpoint: Path) -> str | None:
    """The folder of the reference beside a checkpoint, None if it has none or holds it itself, as those of scope-jax
    0.1.0 do. Of a damaged checkpoint the answer means nothing."""
    try:
        found = json.loads((checkpoint / "meta" / "metadata").read_text(encoding="utf-8")).get("reference")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) and re.fullmatch(f"{PREFIX}[0-9]{{1,12}}", found) else None
