"""SCORE as a `Game`: its roles, Algorithm 1, the memory between steps, the exam of its solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scope_jax.config import Config
from scope_jax.games.score import messages, meta_harness, roles, rules, state
from scope_jax.games.score.meta_harness import Harness, Refresh
from scope_jax.games.score.options import ScoreSection, check, options
from scope_jax.games.score.roles import EVALUATOR, HARNESS, SCORING, SOLVER, card_roles
from scope_jax.games.score.state import (
    Constraints,
    Query,
    QueryPlayed,
    Report,
    Rubric,
    RubricDraft,
    RubricUse,
    ScoreOutcome,
    Statistics,
)
from scope_jax.grading.rewards import means
from scope_jax.learner.types import Episode, Judgement, Metrics, transcript
from scope_jax.play import searching
from scope_jax.play.chains import Waiting
from scope_jax.play.collapse import identical_pairs
from scope_jax.play.exams import Exam
from scope_jax.play.game import GRADIENT, Game, Panel, Starter
from scope_jax.play.settings import SettingChange, SettingRecord
from scope_jax.play.step import Memory, Played, Step


def play(step: Step[ScoreSection]) -> Played:
    """One step of Algorithm 1 without the updates: the episodes of both roles, and what the next memory depends on.

    Deterministic, except for the replies of an external model that writes harnesses.
    """
    size = step.cfg.train.batch_size
    # l.1, l.2: the loop trains the policies of `card_roles` on the rows of `data.queries`
    # l.3, l.4: `start` returned the first memory; whether the model that writes harnesses can be reached
    probe = roles.probe(step)
    # l.5: the loop keeps the baseline, as the evaluator's loss card says
    # l.6: each call is one step
    # l.7, l.8, l.9: the harness of this step; the scheduler's constraints, among the dimensions that it admits
    harness = meta_harness.in_force(step.cfg, step.memory)
    constraints = state.get_constraints(step.card.scheduler, step.memory["scheduler"], harness)
    # l.10, l.11: the batch of queries
    rows = step.rows(step.number * size, size)
    # l.12, l.13: one rubric for the batch; or one for each query, with its reports
    drafts: list[RubricDraft] = []
    rubric = roles.fixed_rubric(step.cfg) if step.card.rubric == "fixed" else None
    if rubric is None and step.card.rubric_scope == "step":
        drafts = step.map(
            (EVALUATOR,),
            lambda step, places: roles.sample_rubric(step, harness, constraints, places),
            [tuple(range(len(rows)))],
        )
        rubric = drafts[0].rubric
    # l.14 to l.24: reports and assessments, of each query beside the others
    played = step.map(
        (*((EVALUATOR,) if rubric is None else ()), SOLVER, SCORING),
        lambda step, place: play_query(step, harness, constraints, place, rows[place]["question"], rubric),
        range(len(rows)),
    )
    drafts += [one.draft for one in played if one.draft is not None]
    reports = [report for one in played for report in one.reports]
    # l.25, l.26, l.27, l.28, l.29, l.30: the loop makes the solver's update, in one group per query
    episodes = solver_episodes(step, reports)
    # l.31, Algorithm 2 l.4, l.5, l.6, l.7, l.8: consistency of the conclusions, the evaluator's rewards
    conclusions = [[report.conclusion for report in group] for group in state.by_query(reports)]
    consistency = rules.consistency(conclusions, step.card.idf)
    drafts = state.with_consistency(drafts, consistency)
    # l.32: the evaluator's episodes, for its update on the parameters after the solver's
    episodes += evaluator_episodes(step, drafts)
    # l.33, l.34: which dimensions were used, and how consistent the reports were, for the scheduler
    uses = [RubricUse(draft.rubric.dimensions, draft.consistency) for draft in drafts]
    # l.35, l.36, l.37: every M steps a new harness, from the statistics since the last refresh
    statistics = state.step_statistics(step.card, step.number, drafts, reports, consistency)
    refresh = None
    if meta_harness.due(step.card.harness, step.number):
        refresh = roles.refresh(step, harness, [*step.memory["statistics"], statistics])
    # l.38, l.39, l.40, l.41: `remember` makes the memory for the next step
    outcome = ScoreOutcome(tuple(uses), statistics, probe, refresh)
    return Played(
        episodes,
        outcome=outcome,
        metrics=measure(step, harness, statistics, reports),
        settings=harness_records(step, outcome.refreshes),
    )


def play_query(
    step: Step[ScoreSection],
    harness: Harness,
    constraints: Constraints,
    place: int,
    question: str,
    rubric: Rubric | None,
) -> Waiting[QueryPlayed]:
    """The reports on a query with their assessments. rubric: None: the query gets one of its own."""
    draft = None
    if rubric is None:
        # l.13: its rubric
        draft = yield from roles.sample_rubric(step, harness, constraints, (place,), question)
        rubric = draft.rubric
    # l.14, l.15, l.16, l.17, l.18: K reports
    reports = yield from roles.write_reports(step, Query(place, question, rubric))
    # l.19, l.20, l.21, l.22, l.23, l.24: assessments with the evaluator's own searches, and the solver's rewards
    reports = yield from roles.assess(step, harness, reports)
    return QueryPlayed(draft, reports)


def remember(cfg: Config, memory: Memory, outcome: ScoreOutcome, number: int) -> tuple[Memory, Metrics]:
    """l.34, l.36, l.37: the scheduler's counts, the harness, and the statistics since the last refresh, of at most M
    steps, if the card's driver reads them."""
    card = options(cfg)
    harness_memory = memory["harness"]
    for refresh in outcome.refreshes:
        harness_memory = meta_harness.after(card.harness, harness_memory, refresh)
    statistics = []
    if outcome.refresh is None and card.harness.driver in ("rules", "endpoint"):
        statistics = [*memory["statistics"], outcome.statistics][-card.harness.every :]
    after = {
        "scheduler": state.update_stats(card.scheduler, memory["scheduler"], outcome.uses),
        "harness": harness_memory,
        "statistics": statistics,
    }
    return after, {
        "harness/refreshed": float(harness_memory["refreshed"]),
        "harness/invalid": float(harness_memory["invalid"]),
    }


# ------------------------------------------------------------------------------------------------------------ episodes
def solver_episodes(step: Step[ScoreSection], reports: Sequence[Report]) -> list[Episode]:
    """An episode for each report, with reward R_s; the reports of a query form a group."""
    trained = trained_reports(step.card, reports) if SOLVER in step.card.train else set()
    episodes = []
    for report in reports:
        assessment = report.assessment
        parts = {"assessed": float(assessment is not None), "depth": float(report.depth)}
        if assessment is not None:
            parts |= {f"score_{name}": value for name, value in assessment.scores.items()}
        citations = None if assessment is None else assessment.citations
        episode = report.sample.episode(
            report.reward,
            parts=parts,
            text={
                "question": report.query.question,
                "prediction": report.text,
                "conclusion": report.conclusion,
                "rubric": report.query.rubric.plain(),
                "rejected": report.reason,
                "citations": None if citations is None else dict(citations),
                "assessment": None if report.scoring is None else transcript(report.scoring),
            },
            trained=report.index in trained,
        )
        episodes.append(episode)
    return episodes


def trained_reports(card: ScoreSection, reports: Sequence[Report]) -> set[int]:
    """The indices of the reports that are trained: those with a reward, unless it is the only one of its query, which
    has nothing to be compared with. For DPO only the best and the worst of a query, the first ones if tied; none if all
    are equal."""
    chosen: set[int] = set()
    for group in state.by_query(reports):
        rewarded = [report for report in group if report.sample.turns and state.has_reward(card, report)]
        if len(rewarded) < 2:
            continue
        if card.solver.loss.objective == "dpo":
            best = max(rewarded, key=lambda report: report.reward)
            worst = min(rewarded, key=lambda report: report.reward)
            rewarded = [best, worst] if best.reward > worst.reward else []
        chosen |= {report.index for report in rewarded}
    return chosen


def evaluator_episodes(step: Step[ScoreSection], drafts: Sequence[RubricDraft]) -> list[Episode]:
    """An episode for each rubric call, with reward R_e.

    Between updates (U > 1) episodes have no tokens to train on: their rewards only move the baseline b_t (Algorithm 2
    l.11).
    """
    learns = EVALUATOR in step.card.train
    between = learns and (step.number + 1) % step.card.update_every != 0
    return [
        draft.sample.episode(
            draft.reward,
            parts={"valid": float(not draft.reason)},
            text={"rubric": draft.rubric.plain(), "rejected": draft.reason},
            trained=learns and bool(draft.sample.turns),
            datums=() if between else None,
        )
        for draft in drafts
    ]


def harness_records(step: Step[ScoreSection], refreshes: Sequence[Refresh]) -> list[SettingRecord]:
    """The harness in force in the step, and each attempt to replace it with its outcome, for the report."""
    card = step.card.harness
    harness_memory: Mapping[str, Any] = step.memory["harness"]
    records = [SettingRecord(HARNESS, harness_memory["value"], by=harness_memory["by"], since=harness_memory["since"])]
    for refresh in refreshes:
        harness_memory = meta_harness.after(card, harness_memory, refresh)
        judgements = ()
        if refresh.reply is not None:
            judgements = (Judgement(HARNESS, "refresh", (refresh.reply,), not refresh.problem),)
        attempt = SettingChange(refresh.at, refresh.problem, judgements)
        records.append(SettingRecord(HARNESS, harness_memory["value"], card.driver, harness_memory["since"], attempt))
    return records


# ------------------------------------------------------------------------------------------------------------- metrics
def measure(
    step: Step[ScoreSection], harness: Harness, statistics: Statistics, reports: Sequence[Report]
) -> dict[str, float | None]:
    """What episodes and samples do not tell: the statistics of the step, the harness in force, and the evaluator's
    rollouts about reports that count."""
    texts = [[report.text for report in group if report.text is not None] for group in state.by_query(reports)]
    # by rollout, as several reports may share one
    scorings = {report.scoring.rollout: report.scoring for report in reports if report.scoring is not None}
    nudged = {report.scoring.rollout: report.nudged for report in reports if report.scoring is not None}
    values = {
        "solver/report": [float(report.text is not None) for report in reports],
        "solver/identical_pairs": [
            identical_pairs(group) for group in texts if len(group) > 1
        ],  # whatever was searched
        "scoring/nudged": [float(twice) for twice in nudged.values()],
        "scoring/searches": [float(roles.searches_run(step.cfg, sample)) for sample in scorings.values()],
    }
    return {
        **means(values | searching.lengths(SCORING, list(scorings.values()))),
        "solver/reward": statistics["reward"],  # of those that have one
        "solver/base_score": statistics["base_score"],
        "solver/dimension_score": statistics["dimension_score"],
        "solver/score_spread": statistics["spread"],
        "evaluator/depth": statistics["depth"],
        "evaluator/consistency": statistics["consistency"],
        "evaluator/citations_supported": statistics["citations_supported"],
        "harness/dimensions": float(harness.dimension_constraints.k),
        "harness/min_tool_calls": float(harness.process_constraints.min_number_of_tool_call),
        "harness/since": float(step.memory["harness"]["since"]),
    }


# ---------------------------------------------------------------------------------------------------------------- game
def exam(cfg: Config) -> Exam:
    """Queries with rubrics, reported on under the card's fixed rubric, graded as `evaluate.grader` says."""
    rubric = roles.fixed_rubric(cfg)
    return Exam(
        role=roles.solver_role(cfg),
        prompt=lambda row, tokens: messages.for_solver(cfg, row["question"], rubric),
        read=roles.report_of,
        measures=("rubric", "exact"),
    )


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


def ahead(cfg: Config, memory: Memory, steps: int) -> Memory:
    """The memory, in which the scheduler has counted the steps between; their rubrics are not known yet."""
    scheduler = memory["scheduler"]
    return {**memory, "scheduler": {**scheduler, "step": scheduler["step"] + steps}}


GAME = Game(
    name="score",
    options=ScoreSection,
    roles=card_roles,
    play=play,
    remember=remember,
    start=start,
    ahead=ahead,
    exam=exam,
    check=check,
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
)
