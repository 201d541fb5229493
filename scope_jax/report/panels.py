"""The charts that the reports of all games have, and the metrics that a chart shows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scope_jax.games import GAMES
from scope_jax.play.collapse import REJECTED
from scope_jax.play.game import ACCURACY, GRADIENT, REWARD, Panel
from scope_jax.run.files import read_json
from scope_jax.run.folder import PANELS
from scope_jax.run.signs import FARTHEST

GENERAL = (ACCURACY, REWARD, GRADIENT)
ESTIMATORS = ("k1", "k2", "k3", "k2_plain", "k3_plain")  # of a KL divergence
SHOWN = 6  # reasons for rejections in a chart, those with the largest shares
FAULTS = ("cut_off", "identical_pairs")  # signs that are not drawn, as those for rejections, where all values are 0
WORDS = {  # in legends; of other names the underscores are left out
    "time/play": "playing",
    "time/learn": "learning",
    "time/wait": "waiting",
    "time/evaluate": "evaluating",
    "time/checkpoint": "writing checkpoints",
    "perf/generated_tokens_per_second": "generated",
    "perf/trained_tokens_per_second": "trained",
    **{f"{kind}_{name}": f"{name.replace('_', ', ')}" for kind in ("kl", "teacher") for name in ESTIMATORS},
    "consistency": "agreement",
    "implicit_accuracy": "pairs ranked as given",
    "mismatch_kl": "KL",
    "mismatch_bias": "sign",
    "staleness_mean": "mean",
    "staleness_max": "most",
}

LEARNING = (
    Panel("Loss", ("/loss",), False),
    Panel("KL divergence from the reference", tuple(f"/kl_{name}" for name in ESTIMATORS), False),
    Panel("KL divergence from the teacher", tuple(f"/teacher_{name}" for name in ESTIMATORS), False),
    Panel("Entropy of a token", ("/entropy",), False),
)

SPEED = (
    Panel("Seconds of a phase", ("time/play", "time/learn", "time/wait", "time/evaluate", "time/checkpoint"), False),
    Panel("Tokens per second", ("perf/generated_tokens_per_second", "perf/trained_tokens_per_second"), False),
)


def speed_panels(lines: Sequence[Mapping[str, Any]]) -> tuple[Panel, ...]:
    """`SPEED` without what never took time: a run on given answers generates nothing."""
    measured = {name for line in lines for name, value in line.items() if value}
    return tuple(replace(panel, names=tuple(name for name in panel.names if name in measured)) for panel in SPEED)


def panels_of(run: Path, system: str) -> Sequence[Panel]:
    """The panels of a run's game; of one in a file those that the run has recorded."""
    if system in GAMES:
        return GAMES[system].panels
    file = run / PANELS
    if not file.is_file():
        return GENERAL
    recorded = read_json(file, "remove it: the report then has the charts that all games have")
    panels = recorded["panels"] if isinstance(recorded, dict) else recorded  # a list in earlier versions
    return [Panel(**{**panel, "names": tuple(panel["names"])}) for panel in panels]


def stale_panels(lines: Sequence[dict[str, Any]]) -> tuple[Panel, ...]:
    """Of steps that overlap: how many steps the weights lacked that sampled a token, and the distance of sampler and
    trainer by that."""
    names = dict.fromkeys(name for line in lines for name in line)
    lacked = tuple(name for name in names if name.endswith(("/staleness_mean", "/staleness_max")))
    distances = tuple(name for name in names if "/mismatch_kl@stale" in name)
    panels = (
        Panel("Steps that the weights lacked when they sampled", lacked, False),
        Panel("KL of sampler and trainer by the steps lacked", distances, False, log=True),
    )
    return tuple(panel for panel in panels if panel.names)


def depth_panels(lines: Sequence[dict[str, Any]]) -> tuple[Panel, ...]:
    """The distance of sampler and trainer by role and tokens of context, 1,024, 2,048 and so on by powers of two."""
    names = dict.fromkeys(name for line in lines for name in line if re.search("/mismatch_.*@[0-9]+k$", name))
    depths = {name: int(name.rpartition("@")[2].removesuffix("k")) for name in names}
    if max(depths.values(), default=1) == 1:
        return ()  # the metrics of all tokens say the same
    shown = sorted((name for name, depth in depths.items() if depth & (depth - 1) == 0), key=lambda name: depths[name])
    panels = (("KL of sampler and trainer by context (others allow 2e-4, experts 2e-3)", "kl"), ("Its sign", "bias"))
    return tuple(
        Panel(title, tuple(name for name in shown if f"_{kind}@" in name), False, log=kind == "kl")
        for title, kind in panels
    )


def collapse_panels(lines: Sequence[dict[str, Any]]) -> tuple[Panel, ...]:
    """The panels with signs of collapse of the roles that were sampled (`play.collapse`); without one, none."""
    names = dict.fromkeys(name for line in lines for name in line if not name.startswith("eval/"))
    roles = [name.removesuffix("/trained") for name in names if name.endswith("/trained")]

    def measured(*signs: str) -> tuple[str, ...]:
        there = [name for role in roles for sign in signs if (name := f"{role}/{sign}") in names]
        return tuple(name for name in there if not never(lines, name))

    starts = tuple(f"{role}/{REJECTED}" for role in roles)
    totals = {name: sum(_drawn(line.get(name)) for line in lines) for name in names if name.startswith(starts)}
    reasons = sorted((name for name in totals if totals[name] > 0), key=lambda name: -totals[name])[:SHOWN]
    agreement = tuple(name for name in names if name.endswith("/consistency"))
    # A reward for agreement is highest where all replies are identical, so both are in one chart.
    panels = (
        Panel("Tokens of a reply", measured("response_tokens"), False),
        Panel("Replies that a limit cut", measured("cut_off"), True),
        Panel("Identical replies, agreement", (*measured("identical_pairs"), *agreement), True),
        Panel("Valid episodes, trained episodes", measured("valid", "trained"), True),
        Panel("Why others were rejected", tuple(reasons), True, zero=True),
    )
    return tuple(panel for panel in panels if series(lines, panel)) if roles else ()


def never(lines: Sequence[Mapping[str, Any]], name: str) -> bool:
    """True if the sign `name` is the share of a fault that no step has: all its values are 0."""
    fault = name.endswith(FAULTS) or name.rpartition("/")[2].startswith(REJECTED)
    return fault and not any(line.get(name) for line in lines)


def once(lines: Sequence[Mapping[str, Any]], panels: Sequence[Panel], before: Sequence[Panel] = ()) -> list[Panel]:
    """The panels without the metrics that an earlier one of them, or of `before`, shows; those that are left with none
    are left out."""
    names = dict.fromkeys(name for line in lines for name in line)
    drawn = {name for panel in before for name in names if _short(name, panel) is not None}
    found = []
    for panel in panels:
        own = [name for name in names if _short(name, panel) is not None]
        new = tuple(name for name in own if name not in drawn)
        if new:
            found.append(panel if len(new) == len(own) else replace(panel, names=new))
        drawn.update(new)
    return found


def words(label: str) -> str:
    """The label of a curve for people: `held_out/f1` is "held out: f1"."""
    if label in WORDS:
        return WORDS[label]
    return ": ".join(_word(part) for part in label.split("/"))


def _word(part: str) -> str:
    name, at, depth = part.partition("@")
    own = WORDS.get(name) or name.replace("_", " ").replace("+", " + ")
    return f"{own} at {depth}" if at else own


def _drawn(value: float | None) -> float:
    """A value as far as it can be drawn; 0 without one."""
    return float(min(max(value or 0.0, -FARTHEST), FARTHEST))


def _short(name: str, panel: Panel) -> str | None:
    """The label of a metric in the panel's legend; None if it is not in the panel."""
    if name.startswith("eval/") != panel.of_exams:
        return None
    if not any(name.endswith(wanted) if wanted.startswith("/") else name == wanted for wanted in panel.names):
        return None
    alike = len({wanted.rpartition("/")[2] for wanted in panel.names}) == 1
    label = name.removeprefix("eval/").replace(f"/{REJECTED}", "/")
    return label.rpartition("/")[0] if alike and label not in WORDS else label


Series = tuple[list[int], list[float]]  # steps and values


def series(lines: Sequence[Mapping[str, Any]], panel: Panel, ending: str = "") -> dict[str, Series]:
    """(steps, values) of each metric in the panel, by its label; missing values are left out, or 0 if the panel says
    so, and those beyond what can be drawn are at its limit. ending: "_se" for the standard errors of the metrics."""
    found: dict[str, Series] = {}
    labels = {name: label for line in lines for name in line if (label := _short(name, panel)) is not None}
    for line in lines:
        for name, label in labels.items():
            value = line.get(f"{name}{ending}")
            if value is None and (not panel.zero or f"{name.rpartition('/')[0]}/trained" not in line):
                continue
            steps, values = found.setdefault(label, ([], []))
            steps.append(line["step"])
            values.append(_drawn(value))
    return found


def with_errors(
    lines: Sequence[Mapping[str, Any]], panel: Panel
) -> dict[str, tuple[list[int], list[float], list[float]]]:
    """The `series` of the panel with the standard error of each value, NaN for a value without one."""
    errors = {label: dict(zip(*each, strict=True)) for label, each in series(lines, panel, "_se").items()}
    return {
        label: (steps, values, [errors.get(label, {}).get(step, math.nan) for step in steps])
        for label, (steps, values) in series(lines, panel).items()
    }
