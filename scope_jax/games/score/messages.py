"""The prompts of SCORE's roles (App. H). Text from outside is neutralised before it enters a prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from scope_jax.config import Config
from scope_jax.config.base import prompts_of
from scope_jax.games.score import rules
from scope_jax.games.score.meta_harness import Harness, default
from scope_jax.games.score.options import options
from scope_jax.games.score.state import Constraints, Rubric, Statistics
from scope_jax.play import prompting
from scope_jax.play.prompting import Prompt
from scope_jax.text.messages import Messages

_RUBRIC_REQUIRED = ("dimensions", "base", "others", "weight_min", "weight_max")
_RUBRIC_VARIABLES = (*_RUBRIC_REQUIRED, "k", "must_include", "required", "avoided", "hints", "notes")
RUBRIC = Prompt("rubric", _RUBRIC_VARIABLES, _RUBRIC_REQUIRED)
RUBRIC_QUERY = Prompt("rubric_query", (*_RUBRIC_VARIABLES, "query"), (*_RUBRIC_REQUIRED, "query"))
SOLVER = Prompt("solver", ("query", "rubric"), searches=True)
_SCORING_REQUIRED = ("query", "rubric", "reports", "max_score")
SCORING = Prompt(
    "scoring",
    (*_SCORING_REQUIRED, "names", "base", "sections", "min_searches", "verdicts", "notes"),
    _SCORING_REQUIRED,
    searches=True,
)
NUDGE = Prompt("nudge_assessment", system=False)
HARNESS = Prompt(
    "harness",
    ("statistics", "harness", "default", "pool", "max_tool_calls"),
    ("statistics", "harness"),
    system=False,
)
# Tags in the prompts and replies of this game, in addition to those of all games.
OWN_TAGS = (
    *("query", "notes", "dimensions", "dim", "report", "reports", "report_evaluations"),
    *("verification", "gap_analysis", "citations", "citation"),
)


def shown(cfg: Config, text: str) -> str:
    """`text` with every tag that has a meaning put into square brackets."""
    return prompting.shown(cfg, text, OWN_TAGS)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def describe(cfg: Config, names: Sequence[str]) -> str:
    """Dimensions with the card's descriptions, one per line."""
    return "\n".join(f"- {name}: {shown(cfg, options(cfg).dimensions[name])}" for name in names)


def rubric_text(cfg: Config, rubric: Rubric) -> str:
    """A rubric as it stands in the prompts of solver and evaluator."""
    lines = [f"- {rubric.base} (base): {shown(cfg, options(cfg).dimensions[rubric.base])}"]
    for name, weight in rubric.weights.items():
        lines.append(f"- {name} (weight {weight:g}): {shown(cfg, options(cfg).dimensions[name])}")
    return "\n".join(lines)


def for_rubric(cfg: Config, harness: Harness, constraints: Constraints, query: str | None) -> Messages:
    """The rubric prompt: choose dimensions and weights for the whole batch (query: None) or for one query."""
    limits = harness.dimension_constraints
    return (RUBRIC if query is None else RUBRIC_QUERY).messages(
        cfg,
        query=shown(cfg, query or ""),
        dimensions=describe(cfg, harness.dimension_pool),
        base=harness.base,
        k=limits.k,
        others=limits.k - 1,
        weight_min=f"{limits.weight_min:g}",
        weight_max=f"{limits.weight_max:g}",
        must_include=_listed(limits.must_include[1:]),
        required=_listed(constraints.required),
        avoided=_listed(constraints.avoided),
        hints=_listed(constraints.hints),
        notes=shown(cfg, harness.notes) or "none",
    )


def for_solver(cfg: Config, query: str, rubric: Rubric) -> Messages:
    """The solver's prompt: search, and write a report on a query under a rubric."""
    return SOLVER.messages(cfg, query=shown(cfg, query), rubric=rubric_text(cfg, rubric))


def for_scoring(cfg: Config, harness: Harness, query: str, rubric: Rubric, reports: Sequence[str]) -> Messages:
    """The scoring prompt: search, and assess reports under a rubric as the harness requires."""
    process = harness.process_constraints
    demands = {
        "verification": process.require_verification,
        "gap_analysis": process.require_gap_analysis,
        "citations": process.citation_cross_check,
    }
    texts = [f'<report id="{number}">\n{shown(cfg, text)}\n</report>' for number, text in enumerate(reports, 1)]
    return SCORING.messages(
        cfg,
        query=shown(cfg, query),
        rubric=rubric_text(cfg, rubric),
        reports="\n\n".join(texts),
        names=_listed(rubric.dimensions),
        base=rubric.base,
        max_score=options(cfg).max_score,
        sections=_listed([name for name, wanted in demands.items() if wanted]),
        min_searches=rules.required_searches(harness, options(cfg).min_depth),
        verdicts=", ".join(rules.VERDICTS),
        notes=shown(cfg, harness.notes) or "none",
    )


def has_nudge(cfg: Config) -> bool:
    """True if the card's folder has a nudge of its own."""
    return (Path(options(cfg).prompts) / f"{NUDGE.name}.txt").exists()


def nudge(cfg: Config) -> str:
    """What follows the scoring prompt when no valid assessment came of it; the built-in text if the folder has none."""
    return NUDGE.text(cfg) if has_nudge(cfg) else prompting.filled(prompts_of("score"), NUDGE.name, {})


def for_harness(cfg: Config, before: Harness, records: Sequence[Statistics]) -> str:
    """The prompt for the next harness, from the statistics since the last refresh (Listing 3)."""
    return HARNESS.text(
        cfg,
        statistics=json.dumps(list(records), indent=1),
        harness=json.dumps(before.plain(), indent=1),
        default=json.dumps(default(cfg).plain(), indent=1),
        pool=describe(cfg, options(cfg).pool),
        max_tool_calls=options(cfg).evaluator.max_turns - 1,
    )
