"""The results of a step of SCOPE: episodes for the learner, metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scope_jax.config import Config, SamplingSection
from scope_jax.games.scope import challenger, instructions, rules, solver
from scope_jax.games.scope.options import options
from scope_jax.games.scope.records import REASONS, Attempt, Draft, Solved
from scope_jax.learner.types import Datum, Episode, Metrics, transcript
from scope_jax.play import searching
from scope_jax.play.rewards import means, shares


def of_challenger(
    cfg: Config,
    drafts: Sequence[Draft],
    solver_means: Mapping[int, float | None],
    sampling: SamplingSection,
    trained: bool,
) -> list[Episode]:
    """One episode per draft. solver_means: ḡ by the draft's index, for drafts whose task the solver attempted."""
    made = [_draft(cfg, draft, place, solver_means.get(place), trained) for place, draft in enumerate(drafts)]
    return [replace(episode, temperature=sampling.temperature) for episode in made]


def _draft(cfg: Config, draft: Draft, place: int, solver_mean: float | None, trained: bool) -> Episode:
    total, parts = challenger.reward(cfg, draft, solver_mean)
    gates = {f"gate_{gate}": float(bool(verdict)) for gate, verdict in draft.gates.items()}
    return Episode(
        role="challenger",
        policy=challenger.POLICY,
        group=f"challenger/{draft.order.index}",
        datums=Datum.from_completion(draft.completion),
        reward=total,
        parts=parts | gates,
        trained=trained,
        text={
            "prompt": draft.prompt.text,
            "turns": transcript(draft.completion),
            "document": draft.order.key,
            "task_type": draft.order.kind,
            "searches_asked": draft.order.searches,
            "task": draft.task,
            "rejected": draft.rejected,
            "rubric": [criterion.plain() for criterion in draft.rubric],
            "draft": place,
        },
        judgements=draft.judgements,
    )


def of_solver(cfg: Config, solved: Sequence[Solved], sampling: SamplingSection, trained: bool) -> list[Episode]:
    """One episode per attempt. Attempts without a score are not trained on (see `solver.reward`).

    Neither is an attempt that is the only one of its group with a score: there is nothing to compare it with.
    """
    made = []
    for group in solved:
        rewarded = [solver.reward(cfg, attempt) for attempt in group.attempts]
        alone = len(rewarded) > 1 and sum(usable for *_, usable in rewarded) == 1
        for attempt, (total, parts, usable) in zip(group.attempts, rewarded, strict=True):
            made.append(
                Episode(
                    role="solver",
                    policy=solver.POLICY,
                    group=f"solver/{group.problem.name}",
                    datums=Datum.from_completion(attempt.completion),
                    reward=total,
                    parts=parts,
                    trained=trained and usable and not alone,
                    temperature=sampling.temperature,
                    text={
                        "prompt": group.prompt.text,
                        "turns": transcript(attempt.completion),
                        "task": group.problem.question,
                        "answer": attempt.answer,
                        "answer_tokens": attempt.tokens,
                        "rubric": [criterion.plain() for criterion in group.problem.rubric],
                        "verdicts": list(attempt.verdicts),
                    },
                    judgements=attempt.judgements,
                )
            )
    return made


# ------------------------------------------------------------------------------------------------------------- metrics
def measure_drafts(cfg: Config, drafts: Sequence[Draft], episodes: Sequence[Episode]) -> Metrics:
    """The challenger's metrics of a step; a mean over no values is left out."""
    gated = [draft for draft in drafts if draft.gates]
    written = [draft for draft in drafts if draft.rubric or draft.rejected == "no_rubrics"]
    values: dict[str, list[float]] = {
        "challenger/valid": [float(not draft.rejected) for draft in drafts],
        "challenger/rubrics_parsed": [float(bool(draft.rubric)) for draft in written],
        "challenger/rubric_items": [float(len(draft.rubric)) for draft in written if draft.rubric],
        "gates/passed": [float(all(draft.gates.values())) for draft in gated],
        **_rewards("challenger", episodes),
        **_episode_stats("challenger", drafts),
    }
    for gate in instructions.GATES:
        values[f"gates/{gate}"] = [float(bool(draft.gates[gate])) for draft in gated]
    for kind in options(cfg).task_types:
        values[f"challenger/valid/{kind}"] = [float(not d.rejected) for d in drafts if d.order.kind == kind]
    rejected = [draft.rejected for draft in drafts]
    return means(values) | shares("rejected/", rejected, REASONS)


def measure_solved(cfg: Config, solved: Sequence[Solved], episodes: Sequence[Episode], role: str) -> Metrics:
    """The solver's metrics of a step, prefixed with `role`; a mean over no values is left out."""
    attempts = [attempt for group in solved for attempt in group.attempts]
    verdicts = [verdict for attempt in attempts for verdict in attempt.verdicts]
    task_scores = [solver.mean_score(cfg, group) for group in solved]
    values: dict[str, list[float]] = {
        f"{role}/task_score": [value for value in task_scores if value is not None],
        f"{role}/answered": [float(attempt.answer is not None) for attempt in attempts],
        f"{role}/answer_tokens": [float(attempt.tokens) for attempt in attempts if attempt.answer is not None],
        f"{role}/ungraded": [float(attempt.score is None) for attempt in attempts],
        f"{role}/verdicts_missing": [float(verdict is None) for verdict in verdicts],
        **_rewards(role, episodes),
        **_episode_stats(role, attempts),
    }
    return means(values)


def _rewards(role: str, episodes: Sequence[Episode]) -> dict[str, list[float]]:
    names = dict.fromkeys(name for episode in episodes for name in episode.parts if not name.startswith("gate_"))
    parts = {f"{role}/{name}": [e.parts[name] for e in episodes if name in e.parts] for name in names}
    return {f"{role}/reward": [episode.reward for episode in episodes]} | parts


def _episode_stats(role: str, sampled: Sequence[Draft | Attempt]) -> dict[str, list[float]]:
    return searching.episode_stats(
        role, [one.completion for one in sampled], [rules.searches_run(one.turns) for one in sampled]
    )
