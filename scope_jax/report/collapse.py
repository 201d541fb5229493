"""How far the signs of collapse moved during a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scope_jax.report.panels import Panel, series


@dataclass(frozen=True)
class Sign:
    """A metric's mean over the first and over the last `steps` steps that have it. share: values in 0..1."""

    name: str
    steps: int
    first: float
    last: float
    share: bool


def signs(lines: Sequence[dict[str, Any]], panels: Sequence[Panel]) -> list[Sign]:
    """A row for each metric of the panels; means over a tenth of the steps, at least one."""
    found = []
    for panel in panels:
        for label, (_, values) in sorted(series(lines, panel).items()):
            window = max(1, len(values) // 10)
            first, last = float(np.mean(values[:window])), float(np.mean(values[-window:]))
            found.append(Sign(f"{panel.title}: {label}", window, first, last, panel.share))
    return found
