"""The names of the metrics that a step of a built-in game may have, so that a rule on one can be checked at the start.

A step has those for which it has a value: a mean of nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from scope_jax.config import Config
from scope_jax.systems.scope import records as scope_records
from scope_jax.systems.score import rules as score_rules
from scope_jax.systems.spell import rules as spell_rules
from scope_jax.systems.spice import records as spice_records
from scope_jax.systems.ssp import rules as ssp_rules

LENGTHS = "response_tokens response_length cut_off prompt_too_long"  # of `play.searching.lengths`
JUDGE = ("asked", "retried", "malformed", "refused")


def _of(families: Mapping[str, str | Iterable[str]]) -> Iterator[str]:
    """`family/name` for the names of each family, in one string or several."""
    for family, names in families.items():
        for name in names.split() if isinstance(names, str) else names:
            yield f"{family}/{name}"


def _ssp(cfg: Config) -> Iterator[str]:
    yield from _of(
        {
            "solver": f"reward format searches {LENGTHS}",
            "proposer": f"reward valid episodes searches {LENGTHS}",
            "slots": "fresh replay dummy",
            "pool": "size",
            "verify": "passed",
            "judge": JUDGE,
            "rejected": ssp_rules.REASONS,
        }
    )


def _scope(cfg: Config) -> Iterator[str]:
    solved = (
        "reward rubric format think tool answer length search task_score answered answer_tokens ungraded "
        f"verdicts_missing searches {LENGTHS}"
    )
    drafts = f"valid rubrics_parsed rubric_items reward format difficulty solver_mean structure think tool {LENGTHS}"
    drafted = [
        *_of(
            {"challenger": f"{drafts} searches", "gates": "passed entity relevance", "rejected": scope_records.REASONS}
        ),
        *_of({"challenger/valid": cfg.scope.task_types}),
    ]
    yield from drafted
    yield from _of({"creation": [*drafted, *_of({"solver": solved})], "solver": solved, "estimate": solved})
    yield from ("iteration", "iteration/task_score", "tasks/kept", "tasks/yield")
    yield from _of({f"judge/{job}": JUDGE for job in ("gates", "rubric_writer", "grader")})


def _spice(cfg: Config) -> Iterator[str]:
    yield from _of(
        {
            "challenger": f"reward valid attempts documents pass_rate {LENGTHS}",
            "reasoner": f"reward answered no_spread {LENGTHS}",
            "kinds": ["multiple_choice", *cfg.spice.answer_types],
            "math": "given_up unreadable",
            "rejected": spice_records.REASONS,
        }
    )


def _spell(cfg: Config) -> Iterator[str]:
    yield from _of(
        {
            "questioner": f"reward valid documents remembered {LENGTHS}",
            "responder": f"reward rule concluded {LENGTHS}",
            "verifier": f"yes disagreement conflicting malformed groups {LENGTHS}",
            "difficulty": "qa math choice",
            "solvable": "qa math choice",
            "questions": "asked trained",
            "groups": "mixed kept full rounds",
            "judge": JUDGE,
            "rejected": spell_rules.REASONS,
        }
    )


def _score(cfg: Config) -> Iterator[str]:
    yield from _of(
        {
            "solver": "reward base_score dimension_score score_spread assessed report identical_pairs mean_length "
            f"searches {LENGTHS}",
            "evaluator": f"depth consistency valid citations_supported {LENGTHS}",
            "scoring": f"nudged searches {LENGTHS}",
            "harness": "dimensions min_tool_calls since refreshed invalid",
            "rejected": [*score_rules.REPORT_REASONS, *(f"rubric_{reason}" for reason in score_rules.RUBRIC_REASONS)],
        }
    )


PLAYED: Mapping[str, Callable[[Config], Iterator[str]]] = {
    "ssp": _ssp,
    "scope": _scope,
    "spice": _spice,
    "spell": _spell,
    "score": _score,
}


def metric_names(cfg: Config) -> frozenset[str] | None:
    """The names of the metrics that a step of the card's game may have; None for a game in a file."""
    return frozenset(PLAYED[cfg.system](cfg)) if cfg.system in PLAYED else None
