"""SCORE for golden transcripts: two queries, and scripted rubrics, reports and assessments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scope_jax.config import Config
from scope_jax.games import parse_config
from tests.games.harness import ScriptedTools, TurnContext, result

QUERIES = [{"question": "Why did Aarau grow?"}, {"question": "Why did Bern grow?"}]
RESULTS = {"Aarau": result(("Aarau", "Aarau lies on the Aare.")), "Bern": result(("Bern", "Bern lies on the Aare."))}


def card(*, seed: int = 0, **score: Any) -> Config:
    """A small card: two queries of two reports, three dimensions; tables of [score] are merged with these."""
    train = {"steps": 2, "batch_size": 2} | score.pop("train_table", {})
    solver = {"samples": 2, "max_prompt_tokens": 20_000} | score.pop("solver", {})
    evaluator = {"max_prompt_tokens": 20_000} | score.pop("evaluator", {})
    harness = {"k": 3, "every": 1} | score.pop("harness", {})
    table = {
        "system": "score",
        "seed": seed,
        "model": {"checkpoint": "none", "dialect": "observation"},
        "retrieval": {"corpus": "none"},
        "data": {"queries": "none"},
        "train": train,
        "score": {"solver": solver, "evaluator": evaluator, "harness": harness} | score,
    }
    return parse_config(table, "the test's card")


def rubric(*others: tuple[str, str], base: str = "factuality") -> str:
    """A reply of the rubric call."""
    dims = "".join(f'<dim name="{name}" weight="{weight}"/>\n' for name, weight in others)
    return f'<think>hm</think>\n<dimensions>\n<dim name="{base}"/>\n{dims}</dimensions>'


def assessment(number: int, scores: dict[str, Any], sections: Sequence[str] = ("verification", "gap_analysis")) -> str:
    """The evaluator's assessment of one report."""
    parts = "".join(f"<{name}>said</{name}>" for name in sections)
    cited = '<citations><citation source="Aarau" verdict="supported"/></citations>'
    given = "".join(f'<score dim="{name}" value="{value}" reason="a > b"/>' for name, value in scores.items())
    return f'<report id="{number}">{parts}{cited}<scores>{given}</scores></report>'


def evaluations(*reports: str) -> str:
    return f"<report_evaluations>{''.join(reports)}</report_evaluations>"


def report(text: str) -> str:
    return f"<think>done</think><answer>All about it.\n\n## Conclusion\n{text}\n\n## Sources\nAarau</answer>"


DEFAULT = rubric(("insight", "0.5"), ("coherence", "0.25"))


@dataclass
class Plan:
    """Scripted texts. By default the rubric is DEFAULT; both reports of a query have the same conclusion, after a
    search; the evaluator searches once and gives 8 points for the base and 4 and 2 for the others."""

    rubrics: dict[str, str] = field(default_factory=dict)  # by prompt name
    reports: dict[tuple[str, int], list[str]] = field(
        default_factory=dict
    )  # by prompt name and sample, one text per turn
    scoring: dict[str, list[str]] = field(default_factory=dict)  # by prompt name

    def __call__(self, ctx: TurnContext) -> str:
        if ctx.role == "rubric":
            return self.rubrics.get(ctx.name, DEFAULT)
        if ctx.role == "solver":
            town = "Aarau" if "Aarau" in ctx.prompt else "Bern"
            usual = [f"<think>a</think><search>{town}</search>", report(f"{town} grew by the river.")]
            return self.reports.get((ctx.name, ctx.sample), usual)[ctx.turn]
        usual = ["<search>Aarau</search>", evaluations(assessment(1, {"factuality": 8, "insight": 4, "coherence": 2}))]
        return self.scoring.get(ctx.name, usual)[ctx.turn]


def world(plan: Any = None, **changes: Any) -> ScriptedTools:
    return ScriptedTools(
        plan or Plan(), RESULTS, **{"data": QUERIES, "dialect": "observation", "known_judges": ("harness",)} | changes
    )
