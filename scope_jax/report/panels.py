"""The charts that the reports of all games have, and the metrics that a chart shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scope_jax.games import GAMES
from scope_jax.play.game import ACCURACY, GRADIENT, REWARD, Panel
from scope_jax.run.metrics import PANELS

GENERAL = (ACCURACY, REWARD, GRADIENT)
IDENTICAL = "/identical_pairs"
# A reward for agreement is highest where all answers are identical, so both are in one chart.
COLLAPSE = (
    Panel("Identical answers, agreement", (IDENTICAL, "/consistency"), True),
    Panel("Length of an answer", ("/mean_length",), False),
    Panel("Entropy of a token", ("/entropy",), False),
)

LEARNING = (
    Panel("Loss", ("/loss",), False),
    Panel(
        "KL divergence from the reference",
        tuple(f"/kl_{name}" for name in ("k1", "k2", "k3", "k2_plain", "k3_plain")),
        False,
    ),
    Panel("Entropy of a token", ("/entropy",), False),
)

SPEED = (
    Panel("Seconds of a phase", ("time/play", "time/learn", "time/wait", "time/evaluate", "time/checkpoint"), False),
    Panel("Tokens per second", ("perf/generated_tokens_per_second", "perf/trained_tokens_per_second"), False),
)

FARTHEST = 1e100  # values of a curve: with larger ones the sums and the scales of a picture overflow


def panels_of(run: Path, system: str) -> Sequence[Panel]:
    """The panels of a run's game; of one in a file those that the run has recorded."""
    if system in GAMES:
        return GAMES[system].panels
    file = run / PANELS
    if not file.is_file():
        return GENERAL
    return [Panel(**{**panel, "names": tuple(panel["names"])}) for panel in json.loads(file.read_text("utf-8"))]


def collapse_panels(lines: Sequence[dict[str, Any]]) -> tuple[Panel, ...]:
    """The panels with signs of collapse, for a run of a game that measures them (`play.collapse`); else none."""
    measured = any(name.endswith(IDENTICAL) for line in lines for name in line)
    return COLLAPSE if measured else ()


def _short(name: str, panel: Panel) -> str | None:
    """The label of a metric in the panel's legend; None if it is not in the panel."""
    if name.startswith("eval/") != panel.of_exams:
        return None
    if not any(name.endswith(wanted) if wanted.startswith("/") else name == wanted for wanted in panel.names):
        return None
    alike = len({wanted.rpartition("/")[2] for wanted in panel.names}) == 1
    label = name.removeprefix("eval/")
    return label.rpartition("/")[0] if alike else label


def series(lines: Sequence[dict[str, Any]], panel: Panel) -> dict[str, tuple[list[int], list[float]]]:
    """(steps, values) of each metric in the panel, by its label; missing values are left out, and those beyond what
    can be drawn are at its limit."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for line in lines:
        for name, value in line.items():
            short = _short(name, panel)
            if short is None or value is None:
                continue
            steps, values = found.setdefault(short, ([], []))
            steps.append(line["step"])
            values.append(min(max(value, -FARTHEST), FARTHEST))
    return found
