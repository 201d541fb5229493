"""The charts of a run's report, by game, and the metrics that each shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scope_jax.config import Config


@dataclass(frozen=True)
class Panel:
    """One chart of the metrics with these names; a name that begins with a slash is a suffix. share: values in 0..1.

    of_exams: matches evaluation metrics only; otherwise training metrics only. log: logarithmic scale.
    """

    title: str
    names: tuple[str, ...]
    share: bool
    of_exams: bool = False
    log: bool = False


PANELS: dict[str, tuple[Panel, ...]] = {  # by game; the first panel shows the measure of its exams
    "ssp": (
        Panel("Held-out accuracy", ("/accuracy",), True, of_exams=True),
        Panel("Mean reward", ("/reward",), False),
        Panel("Valid questions", ("/valid",), True),
        Panel("Searches per episode", ("/searches",), False),
        Panel("Gradient norm before the clip", ("/grad_norm",), False, log=True),
    ),
    "scope": (
        Panel("Held-out rubric score", ("/score", "/exact"), True, of_exams=True),
        Panel(
            "Mean rubric score of tasks",
            ("estimate/task_score", "creation/solver/task_score", "solver/task_score"),
            True,
        ),
        Panel("Mean reward", ("challenger/reward", "solver/reward"), False),
        Panel("Searches per rollout", ("challenger/searches", "solver/searches"), False),
        Panel("Drafts: gates passed, accepted, kept", ("gates/passed", "challenger/valid", "tasks/yield"), True),
        Panel("Tokens of an answer", ("estimate/answer_tokens", "solver/answer_tokens"), False),
        Panel("Gradient norm before the clip", ("challenger/grad_norm", "solver/grad_norm"), False, log=True),
    ),
    "spice": (
        Panel("Held-out accuracy", ("/accuracy",), True, of_exams=True),
        Panel("Pass rate of tasks", ("challenger/pass_rate", "reasoner/reward"), True),
        Panel("Challenger's reward", ("challenger/reward",), False),
        Panel("Valid attempts, documents with a task", ("challenger/valid", "challenger/documents"), True),
        Panel("Attempts at a document", ("challenger/attempts",), False),
        Panel("Gradient norm before the clip", ("/grad_norm",), False, log=True),
    ),
    "spell": (
        Panel("Held-out accuracy", ("/accuracy", "/numeric"), True, of_exams=True),
        Panel("Mean reward", ("questioner/reward", "responder/reward"), False),
        Panel("Valid questions, answers with a conclusion", ("questioner/valid", "responder/concluded"), True),
        Panel(
            "Difficulty (1 - share of right answers)", ("difficulty/qa", "difficulty/math", "difficulty/choice"), True
        ),
        Panel("Verifier: yes, disagreement with the rule", ("verifier/yes", "verifier/disagreement"), True),
        Panel("Gradient norm before the clip", ("/grad_norm",), False, log=True),
    ),
    "score": (
        Panel("Held-out rubric score", ("/score", "/exact"), True, of_exams=True),
        Panel("Mean reward of reports", ("solver/reward",), False),
        Panel("Scores of reports", ("solver/base_score", "solver/dimension_score"), True),
        Panel("Reports, assessments, valid rubrics", ("solver/report", "solver/assessed", "evaluator/valid"), True),
        Panel("Searches per episode", ("/searches",), False),
        Panel("Gradient norm before the clip", ("/grad_norm",), False, log=True),
    ),
}

OWN_GAME = (  # for a game defined in a file
    Panel("Held-out accuracy", ("/accuracy",), True, of_exams=True),
    Panel("Mean reward", ("/reward",), False),
    Panel("Gradient norm before the clip", ("/grad_norm",), False, log=True),
)
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


def panels_of(cfg: Config) -> tuple[Panel, ...]:
    """The panels for a run with this card."""
    return PANELS.get(cfg.system, OWN_GAME)


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
