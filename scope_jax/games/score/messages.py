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
from scope_jax.text.messages import Messages

NUDGE = "nudge_assessment"
ROLES = ("rubric", "rubric_query", "solver", "scoring")
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
    values: dict[str, object] = {
        "dimensions": describe(cfg, harness.dimension_pool),
        "base": harness.base,
        "k": limits.k,
        "others": limits.k - 1,
        "weight_min": f"{limits.weight_min:g}",
        "weight_max": f"{limits.weight_max:g}",
        "must_include": _listed(limits.must_include[1:]),
        "required": _listed(constraints.required),
        "avoided": _listed(constraints.avoided),
        "hints": _listed(constraints.hints),
        "notes": shown(cfg, harness.notes) or "none",
    }
    required = ("dimensions", "base", "others", "weight_min", "weight_max")
    if query is None:
        return prompting.for_role(options(cfg).prompts, "rubric", values, required)
    return prompting.for_role(
        options(cfg).prompts, "rubric_query", {**values, "query": shown(cfg, query)}, (*required, "query")
    )


def for_solver(cfg: Config, query: str, rubric: Rubric) -> Messages:
    """The solver's prompt: search, and write a report on a query under a rubric."""
    values = {"query": shown(cfg, query), "rubric": rubric_text(cfg, rubric)}
    return prompting.for_searcher(cfg, options(cfg).prompts, "solver", values, ("query", "rubric"))


def for_scoring(cfg: Config, harness: Harness, query: str, rubric: Rubric, reports: Sequence[str]) -> Messages:
    """The scoring prompt: search, and assess reports under a rubric as the harness requires."""
    process = harness.process_constraints
    demands = {
        "verification": process.require_verification,
        "gap_analysis": process.require_gap_analysis,
        "citations": process.citation_cross_check,
    }
    texts = [f'<report id="{number}">\n{shown(cfg, text)}\n</report>' for number, text in enumerate(reports, 1)]
    values = {
        "query": shown(cfg, query),
        "rubric": rubric_text(cfg, rubric),
        "reports": "\n\n".join(texts),
        "names": _listed(rubric.dimensions),
        "base": rubric.base,
        "max_score": options(cfg).max_score,
        "sections": _listed([name for name, wanted in demands.items() if wanted]),
        "min_searches": rules.required_searches(harness, options(cfg).min_depth),
        "verdicts": ", ".join(rules.VERDICTS),
        "notes": shown(cfg, harness.notes) or "none",
    }
    required = ("query", "rubric", "reports", "max_score")
    return prompting.for_searcher(cfg, options(cfg).prompts, "scoring", values, required)


def nudge(cfg: Config) -> str:
    """What follows the scoring prompt when no valid assessment came of it; the built-in text if the folder has none."""
    folder = options(cfg).prompts
    if not (Path(folder) / f"{NUDGE}.txt").exists():
        folder = prompts_of("score")
    return prompting.filled(folder, NUDGE, {})


def for_harness(cfg: Config, before: Harness, records: Sequence[Statistics]) -> str:
    """The prompt for the next harness, from the statistics since the last refresh (Listing 3)."""
    values = {
        "statistics": json.dumps(list(records), indent=1),
        "harness": json.dumps(before.plain(), indent=1),
        "default": json.dumps(default(cfg).plain(), indent=1),
        "pool": describe(cfg, options(cfg).pool),
        "max_tool_calls": options(cfg).evaluator.max_turns - 1,
    }
    return prompting.filled(options(cfg).prompts, "harness", values, ("statistics", "harness"))


def check_prompts(cfg: Config) -> None:
    """Fills in every prompt that the card's game uses, with sample values; raises PromptError."""
    harness, rubric = default(cfg), Rubric(options(cfg).harness.must_include[0], {})
    if options(cfg).rubric != "fixed":
        for_rubric(cfg, harness, Constraints(), "" if options(cfg).rubric_scope == "query" else None)
    for_solver(cfg, "", rubric)
    for_scoring(cfg, harness, "", rubric, ())
    nudge(cfg)
    if options(cfg).harness.driver == "endpoint":
        for_harness(cfg, harness, ())
