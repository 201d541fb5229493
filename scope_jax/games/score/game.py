"""SCORE as a `Game`: Algorithm 1, the learner's updates, episodes, metrics, the exam of its solver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scope_jax.config import Config, JudgeSection
from scope_jax.games.score import messages, meta_harness, roles, rules, state
from scope_jax.games.score.meta_harness import Harness
from scope_jax.games.score.options import ScoreSection, check, options
from scope_jax.games.score.state import Refresh, Report, Review, RubricDraft, Statistics
from scope_jax.learner.types import Episode, Judgement, Metrics, RoleShare, Update, transcript
from scope_jax.play import metric_names, searching, settings
from scope_jax.play.collapse import identical_pairs
from scope_jax.play.exams import Exam
from scope_jax.play.game import GRADIENT, Game, Memory, Panel, Starter
from scope_jax.play.rewards import means, shares
from scope_jax.play.tools import BASE, Tools
from scope_jax.retrieval.rows import Row
from scope_jax.rollouts.types import Completion
from scope_jax.text import templates


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step of Algorithm 1 without the updates: the episodes of both roles, the memory after it, metrics.

    Deterministic, except for the replies of an external model that writes harnesses. `memory` is not modified.
    """
    # l.1, l.2: the loop trains `policies` on the rows of `source`
    # l.3, l.4: `start` returned the first memory
    # l.5: the loop keeps the baseline, as the loss cards in `updates` say
    # l.6: each call is one step
    # l.7, l.8, l.9: the harness of this step; the scheduler's constraints, among the dimensions that it admits
    harness = meta_harness.in_force(cfg, memory)
    constraints = state.get_constraints(cfg, memory["scheduler"], harness)
    refreshes = roles.probe(cfg, tools, memory["harness"], step)
    # l.10, l.11: the batch of queries
    queries = tools.rows(step * cfg.train.batch_size, cfg.train.batch_size)
    # l.12, l.13: one rubric for the batch, or one for each query
    drafts, rubrics = roles.sample_rubrics(cfg, tools, harness, constraints, queries)
    # l.14, l.15, l.16, l.17, l.18: K reports on each query
    reports = roles.write_reports(cfg, tools, queries, rubrics)
    # l.19, l.20, l.21, l.22, l.23, l.24: assessments with the evaluator's own searches
    reports, reviews = roles.assess(cfg, tools, harness, queries, reports)
    # l.25, l.26: the solver's episodes, in one group per query
    episodes = solver_episodes(cfg, queries, reports, reviews)
    # l.27, l.28, l.29, l.30: the loop makes the first of `updates` with these episodes
    # l.31: consistency of the conclusions
    groups = [[report.conclusion for report in group] for group in state.by_query(reports)]
    consistency = rules.consistency(groups, options(cfg).idf)
    # l.32: the evaluator's episodes, for the second of `updates`
    episodes += evaluator_episodes(cfg, drafts, consistency, step)
    # l.33, l.34: which dimensions were used, and how consistent the reports were
    uses = [(draft.rubric, draft.agreement(consistency)) for draft in drafts]
    scheduler = state.update_stats(cfg, memory["scheduler"], uses)
    # l.35: every M steps
    due = meta_harness.due(cfg, step)
    # l.36: statistics since the last refresh
    statistics = state.step_statistics(cfg, step, drafts, reports, consistency)
    records = [*memory["statistics"], statistics]
    # l.37: a new harness
    latest = refreshes[-1].state if refreshes else memory["harness"]
    if due:
        refreshes.append(roles.refresh(cfg, tools, latest, records, step))
        latest, records = refreshes[-1].state, []
    # l.38, l.39, l.40, l.41: the memory for the next step, with the statistics of at most M steps
    after = {"scheduler": scheduler, "harness": latest, "statistics": records[-options(cfg).harness.every :]}
    episodes += harness_episodes(cfg, memory["harness"], refreshes)
    metrics = measure(cfg, statistics, drafts, reports, reviews)
    return episodes, after, metrics | measure_harness(harness, memory["harness"], after["harness"])


def updates(cfg: Config) -> tuple[Update, ...]:
    """l.30, l.32: the solver's update, then the evaluator's on the parameters after it."""
    card = options(cfg)
    solver, evaluator = (roles.policy_of(cfg, role) for role in ("solver", "evaluator"))
    by_role = {
        "solver": Update(solver, card.solver.loss, (RoleShare("solver"),)),
        "evaluator": Update(evaluator, card.evaluator.loss, (RoleShare("evaluator", weight=card.evaluator_scale),)),
    }
    return tuple(update for role, update in by_role.items() if role in card.train)


# ------------------------------------------------------------------------------------------------------------ episodes
def solver_episodes(
    cfg: Config, queries: Sequence[Row], reports: Sequence[Report], reviews: Sequence[Review]
) -> list[Episode]:
    """An episode for each report, with reward R_s; the reports of a query form a group."""
    review_of = {index: review for review in reviews for index in review.reports}
    episodes = []
    for index, report in enumerate(reports):
        assessment, review = report.assessment, review_of.get(index)
        scores = {} if assessment is None else {f"score_{name}": value for name, value in assessment.scores.items()}
        citations = None if assessment is None else assessment.citations
        episode = Episode.from_completion(
            report.completion,
            report.prompt,
            {
                "question": queries[report.query]["question"],
                "prediction": report.text,
                "conclusion": report.conclusion,
                "rubric": report.rubric.plain(),
                "rejected": report.reason,
                "citations": None if citations is None else dict(citations),
                "assessment": None if review is None else transcript(review.completion),
            },
            role="solver",
            policy=roles.policy_of(cfg, "solver"),
            group=f"solver/{report.query}",
            reward=report.reward,
            parts={"assessed": float(assessment is not None), "depth": float(report.depth)} | scores,
            trained="solver" in options(cfg).train and bool(report.completion.turns) and state.has_reward(cfg, report),
            temperature=options(cfg).solver.sampling.temperature,
        )
        episodes.append(episode)
    return _comparable(episodes, options(cfg).solver.loss.objective == "dpo")


def _comparable(episodes: Sequence[Episode], pairs: bool) -> list[Episode]:
    """The episodes; the only trained one of a group is not trained, as it has nothing to be compared with.

    pairs: of each group only the best and the worst are trained, the first ones if tied; none if all are equal.
    """
    groups: dict[str, list[int]] = {}
    for index, episode in enumerate(episodes):
        if episode.trained:
            groups.setdefault(episode.group, []).append(index)
    chosen: set[int] = set()
    for indices in groups.values():
        if pairs:
            best = max(indices, key=lambda index: episodes[index].reward)
            worst = min(indices, key=lambda index: episodes[index].reward)
            indices = [best, worst] if episodes[best].reward > episodes[worst].reward else []
        if len(indices) > 1:
            chosen |= set(indices)
    return [replace(episode, trained=index in chosen) for index, episode in enumerate(episodes)]


def evaluator_episodes(
    cfg: Config, drafts: Sequence[RubricDraft], consistency: Sequence[float], step: int
) -> list[Episode]:
    """An episode for each rubric call, with reward R_e: the mean C_i of its queries, 0 for a malformed rubric.

    Between updates (U > 1) episodes have no tokens to train on: their rewards only move the baseline b_t (Algorithm 2
    l.11).
    """
    learns = "evaluator" in options(cfg).train
    episodes = []
    for draft in drafts:
        episode = Episode.from_completion(
            draft.completion,
            draft.prompt,
            {"rubric": draft.rubric.plain(), "rejected": draft.reason},
            role="evaluator",
            policy=roles.policy_of(cfg, "evaluator"),
            group=f"evaluator/{draft.queries[0]}",
            reward=0.0 if draft.reason else draft.agreement(consistency),
            parts={"valid": float(not draft.reason)},
            trained=learns and bool(draft.completion.turns),
            temperature=options(cfg).evaluator.sampling.temperature,
        )
        updated = (step + 1) % options(cfg).update_every == 0
        episodes.append(episode if updated or not learns else replace(episode, datums=()))
    return episodes


def harness_episodes(cfg: Config, before: Mapping[str, Any], refreshes: Sequence[Refresh]) -> list[Episode]:
    """The harness in force in the step, and each attempt to replace it with its outcome, for the report."""
    episodes = [settings.record(roles.MODEL, before["value"], by=before["by"], since=before["since"])]
    for refresh in refreshes:
        valid, reply = not refresh.problem, refresh.reply
        judgements = () if reply is None else (Judgement(roles.MODEL, "refresh", (reply,), valid),)
        attempt = settings.SettingChange(refresh.at, refresh.problem, judgements)
        value, driver = refresh.state["value"], options(cfg).harness.driver
        episodes.append(settings.record(roles.MODEL, value, by=driver, since=refresh.state["since"], attempt=attempt))
    return episodes


# ------------------------------------------------------------------------------------------------------------- metrics
STATISTICS = {  # the metrics that are statistics of a step, with their names among these
    "solver/reward": "reward",
    "solver/base_score": "base_score",
    "solver/dimension_score": "dimension_score",
    "solver/score_spread": "spread",
    "solver/assessed": "assessed",
    "evaluator/depth": "depth",
    "evaluator/consistency": "consistency",
    "evaluator/valid": "valid_rubrics",
    "evaluator/citations_supported": "citations_supported",
}


def measure(
    cfg: Config,
    statistics: Statistics,
    drafts: Sequence[RubricDraft],
    reports: Sequence[Report],
    reviews: Sequence[Review],
) -> Metrics:
    """The metrics of a step; a mean of no values is left out."""
    texts = [[report.text for report in group if report.text is not None] for group in state.by_query(reports)]
    values: dict[str, list[float]] = {
        "solver/report": [float(report.text is not None) for report in reports],
        "solver/identical_pairs": [identical_pairs(own) for own in texts if len(own) > 1],  # whatever was searched
        **_search_stats(cfg, "solver", [report.completion for report in reports]),
        "scoring/nudged": [float(review.nudged) for review in reviews],
        **_search_stats(cfg, "scoring", [review.completion for review in reviews]),
        **searching.lengths("evaluator", [draft.completion for draft in drafts]),
    }
    return (
        means(values)
        | {metric: statistics[name] for metric, name in STATISTICS.items() if statistics[name] is not None}
        | shares("solver/rejected_", [report.reason for report in reports], rules.REPORT_REASONS)
        | shares("evaluator/rejected_", [draft.reason for draft in drafts], rules.RUBRIC_REASONS)
    )


def _search_stats(cfg: Config, role: str, completions: Sequence[Completion]) -> dict[str, list[float]]:
    searches = [roles.searches_run(cfg, completion) for completion in completions]
    return searching.episode_stats(role, completions, searches)


def measure_harness(harness: Harness, before: Mapping[str, Any], after: Mapping[str, Any]) -> Metrics:
    """The harness in force in the step, and how often it was and could not be refreshed up to the end of the step."""
    return {
        "harness/dimensions": float(harness.dimension_constraints.k),
        "harness/min_tool_calls": float(harness.process_constraints.min_number_of_tool_call),
        "harness/since": float(before["since"]),
        "harness/refreshed": float(after["refreshed"]),
        "harness/invalid": float(after["invalid"]),
    }


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    usual = metric_names.LENGTHS
    yield from STATISTICS
    yield from metric_names.of(
        {
            "solver": f"report identical_pairs searches {usual} {metric_names.rejections(rules.REPORT_REASONS)}",
            "evaluator": f"{usual} {metric_names.rejections(rules.RUBRIC_REASONS)}",
            "scoring": f"nudged searches {usual}",
            "harness": "dimensions min_tool_calls since refreshed invalid",
        }
    )


# ---------------------------------------------------------------------------------------------------------------- game
def exam(cfg: Config) -> Exam:
    """Queries with rubrics, reported on under the card's fixed rubric, graded as `evaluate.grader` says."""
    rubric = roles.fixed_rubric(cfg)
    return Exam(
        policy=roles.policy_of(cfg, "solver"),
        prompt=lambda row, tokens: messages.for_solver(cfg, row["question"], rubric),
        read=roles.report_of,
        measures=("rubric", "exact"),
        max_turns=options(cfg).solver.max_turns,
        searches=lambda completion: roles.searches_run(cfg, completion),
        **searching.until(roles.REPORT),
    )


def policies(cfg: Config) -> tuple[str, ...]:
    """The shared actor, or one policy for each trained role."""
    return tuple(dict.fromkeys(roles.policy_of(cfg, role) for role in options(cfg).train))


def uses_base(cfg: Config) -> bool:
    """True if one of two separate policies is not trained: the base plays its role."""
    return BASE in (roles.policy_of(cfg, "solver"), roles.policy_of(cfg, "evaluator"))


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """The external model that writes harnesses, if the card's driver is "endpoint"."""
    card = options(cfg).harness
    return {roles.MODEL: card.endpoint} if card.driver == "endpoint" and card.endpoint is not None else {}


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """System message files of the roles that have one."""
    return templates.system_files(options(cfg).prompts, messages.ROLES)


def start(cfg: Config) -> Memory:
    """No statistics, and the card's harness. Raises CardError for an invalid harness, or an invalid file of them."""
    card = options(cfg).harness
    if card.driver == "replay" and card.file is not None:
        meta_harness.load_replay(card.file)
    scheduler = {"step": 0, "mean": None, "dimensions": {}}
    return {"scheduler": scheduler, "harness": meta_harness.initial_state(cfg), "statistics": []}


def adopt(cfg: Config, memory: Memory, before: Config) -> Memory:
    """The memory of the other run; its harness is replaced by this card's if it is of the other card, or not valid
    here."""
    return {**memory, "harness": meta_harness.adopt(cfg, memory["harness"], memory["scheduler"]["step"])}


GAME = Game(
    name="score",
    options=ScoreSection,
    play=play,
    updates=updates,
    exam=exam,
    check=check,
    policies=policies,
    uses_base=uses_base,
    searches=True,
    judges=judges,
    system_messages=system_messages,
    check_prompts=messages.check_prompts,
    start=start,
    adopt=adopt,
    data=("queries",),
    starter=Starter(conversations={"": ("observation", "chat")}),
    panels=(
        Panel("Held-out rubric score", ("/score", "/exact"), True, of_exams=True),
        Panel("Mean reward of reports", ("solver/reward",), False),
        Panel("Scores of reports", ("solver/base_score", "solver/dimension_score"), True),
        Panel("Reports, assessments, valid rubrics", ("solver/report", "solver/assessed", "evaluator/valid"), True),
        Panel("Searches per episode", ("/searches",), False),
        GRADIENT,
    ),
    metrics=metrics,
)
