"""SPICE as a `Game`: its roles, Algorithm 1, the memory between steps, the exam of its reasoner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scope_jax.config import Config
from scope_jax.data.sources import Source
from scope_jax.games.spice import messages, roles, rules
from scope_jax.games.spice.options import SpiceSection, check, options
from scope_jax.games.spice.roles import CHALLENGER, REASONER, card_roles
from scope_jax.games.spice.state import (
    MULTIPLE_CHOICE,
    Answers,
    ChallengerAttempt,
    DocumentPlayed,
    Segment,
    StageReply,
)
from scope_jax.grading.rewards import means, shares
from scope_jax.learner.types import Datum, Episode, Metrics, transcript
from scope_jax.play.chains import Waiting
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACCURACY, GRADIENT, Game, Panel
from scope_jax.play.roles import one_update_per_policy
from scope_jax.play.step import Memory, Played, Step
from scope_jax.text.parsing import shorten

ESTIMATE = "estimate"  # label of episodes whose answers only measure a task; lengths are of all answers of the reasoner
PROMPT_SHOWN = 2_000  # characters of a prompt with a document, as recorded in episodes.jsonl


def play(step: Step[SpiceSection]) -> Played:
    """One iteration of Algorithm 1 up to the update: episodes of both roles.

    Pure: all randomness is derived from (seed, step, position in the batch).
    """
    # l.1: the training loop has read the data named by `source`
    # l.2, l.3: an iteration is one call, and begins with the challenger
    # l.4, l.5: the next documents of the stream, one segment of each
    documents = roles.draw_documents(step)
    # l.6 to l.9, l.15 to l.17: tasks and answers about each document, beside those about others
    speakers = [name for name in (CHALLENGER, REASONER) if step.roles[name].external is None]
    played = step.map(speakers, play_document, documents)
    attempts = [one.attempts for one in played]
    roles.tell_of_rounds(step, attempts)
    # l.9: correct or wrong
    answers = roles.grade(step, [group for one in played for group in one.answers])
    # l.10 to l.14: Eq. (1)
    of_challenger = challenger_episodes(step, [one.kept for one in played], answers)
    # l.15, l.17: the reasoner learns from answers to T_R, new ones or those of l.9; the others are estimates
    if answers_are_new(step.card):
        learned = roles.grade(step, [group for one in played for group in one.again])
        estimates = answers
    else:
        keys = {attempt.key for one in played for attempt in one.chosen}
        learned = [group for group in answers if group.attempt.key in keys]
        estimates = [group for group in answers if group.attempt.key not in keys]
    # l.18 to l.20: correct or wrong
    of_reasoner = reasoner_episodes(learned, trained=step.roles[REASONER].learns)
    of_reasoner += reasoner_episodes(estimates, trained=False, label=ESTIMATE)
    # l.21 to l.30: the training loop trains on these episodes, until all iterations are done
    return Played(of_challenger + of_reasoner, metrics=measure(step, attempts, of_challenger, learned))


def play_document(step: Step[SpiceSection], document: Segment) -> Waiting[DocumentPlayed]:
    """What is sampled about one document."""
    # l.6: until it has enough valid tasks, or N attempts
    attempts = yield from roles.write_tasks(step, document)
    # l.7: T_C, G of the attempts
    kept = roles.keep(step, document, attempts)
    valid = [attempt for attempt in kept if attempt.valid]
    # l.16, drawn here already: T_R, one valid attempt
    chosen = roles.select(step, document, valid)
    # l.8, l.9: K answers to each valid attempt; if the challenger is not trained, only to that of T_R
    answers = yield from roles.solve(step, valid if step.roles[CHALLENGER].learns else chosen)
    # l.17: new answers to T_R
    again = (yield from roles.solve(step, chosen, again=True)) if answers_are_new(step.card) else []
    return DocumentPlayed(attempts, kept, chosen, answers, again)


def remember(cfg: Config, memory: Memory, outcome: None, number: int) -> tuple[Memory, Metrics]:
    """The position in the stream of documents (l.5)."""
    return {"drawn": memory["drawn"] + cfg.train.batch_size}, {}


def answers_are_new(card: SpiceSection) -> bool:
    """True if the reasoner learns from new answers (l.17), not from those that measured its task.

    Only if both are trained: an untrained challenger's tasks were answered for the reasoner alone, and an untrained
    reasoner learns from none.
    """
    return card.reasoner_rollouts == "fresh" and card.train == "both"


def challenger_episodes(
    step: Step[SpiceSection], kept: Sequence[Sequence[ChallengerAttempt]], answers: Sequence[Answers]
) -> list[Episode]:
    """One episode per attempt of T_C: r_C by the pass rate of its task, ρ if it is invalid (Eq. (1)).

    A valid attempt whose task was not answered has no episode; this occurs only if the challenger is not trained.
    """
    rates = {group.attempt.key: group.pass_rate for group in answers}
    return [
        _attempt(step, attempt, rates.get(attempt.key))
        for attempts in kept
        for attempt in attempts
        if not attempt.valid or attempt.key in rates
    ]


def _attempt(step: Step[SpiceSection], attempt: ChallengerAttempt, rate: float | None) -> Episode:
    """An attempt with one datum for each trained stage that the policy has sampled."""
    card, role = step.card, step.roles[CHALLENGER]
    reward = card.invalid_reward
    parts = {"valid": float(attempt.valid)}
    if rate is not None:
        reward = rules.reward(card.challenger_reward, rate, card.reward_width)
        parts["pass_rate"] = rate
    stages = ("format", "task") if card.train_stages == "both" else (card.train_stages,)
    samples = [reply.sample for reply in attempt.replies if reply.stage in stages and reply.sample is not None]
    task = attempt.task
    return Episode(
        role=CHALLENGER,
        policy=role.agent.policy if role.external is None else role.name,
        group=f"{CHALLENGER}/{attempt.document.index}",
        datums=tuple(datum for sample in samples for datum in Datum.from_completion(sample)),
        reward=reward,
        parts=parts,
        trained=role.learns,
        temperature=card.challenger.sampling.temperature,
        finish=samples[-1].finish_reason if samples else "",
        text={
            "prompt": shorten(attempt.replies[0].prompt.text, PROMPT_SHOWN),
            "turns": [turn for reply in attempt.replies for turn in _turns(reply, reply is attempt.replies[0])],
            "document": attempt.document.key,
            "attempt": attempt.number,
            "kind": task.kind if task else None,
            "question": task.question if task else None,
            "answer": task.answer if task else None,
            "rejected": attempt.reason,
        },
    )


def _turns(reply: StageReply, first: bool) -> list[dict[str, Any]]:
    """The turns of a stage for the episode record; the second stage's prompt precedes it as an observation."""
    prompt = [] if first else [{"kind": "observation", "text": shorten(reply.prompt.text, PROMPT_SHOWN)}]
    if reply.sample is None:
        return [*prompt, {"kind": "sampled", "text": reply.text}]
    return prompt + transcript(reply.sample)


def reasoner_episodes(groups: Sequence[Answers], trained: bool, label: str = "") -> list[Episode]:
    """One episode per answer: r_R = 1[â = a*]."""
    return [
        answer.sample.episode(
            float(answer.correct),
            parts={"correct": float(answer.correct), "answered": float(answer.prediction is not None)},
            text={
                "kind": group.task.kind,
                "answer": group.task.answer,
                "prediction": answer.prediction,
                "document": group.attempt.document.key,
                "attempt": group.attempt.number,
            },
            trained=trained,
            label=label,
        )
        for group in groups
        for answer in group.answers
    ]


def measure(
    step: Step[SpiceSection],
    attempts: Sequence[Sequence[ChallengerAttempt]],
    of_challenger: Sequence[Episode],
    learned: Sequence[Answers],
) -> Metrics:
    """What samples and episodes do not tell; a mean over no values is left out.

    attempts: all, by document, of which `of_challenger` has those of T_C. learned: the answers to T_R.
    """
    every = [attempt for group in attempts for attempt in group]
    rates = [episode.parts["pass_rate"] for episode in of_challenger if "pass_rate" in episode.parts]
    values: dict[str, list[float]] = {
        "challenger/valid": [float(attempt.valid) for attempt in every],
        "challenger/attempts": [float(len(group)) for group in attempts],
        "challenger/documents": [float(any(attempt.valid for attempt in group)) for group in attempts],
        # also of attempts without a row that is trained, or by an external model
        "challenger/reward": [episode.reward for episode in of_challenger],
        "challenger/pass_rate": rates,
        "reasoner/no_spread": [float(group.pass_rate in (0.0, 1.0)) for group in learned],
    }
    kinds = [attempt.task.kind for attempt in every if attempt.task is not None]
    for kind in (MULTIPLE_CHOICE, *step.card.answer_types):
        values[f"kinds/{kind.replace('-', '_')}"] = [float(other == kind) for other in kinds]
    rejected = [attempt.reason for attempt in every]
    return means(values) | shares("challenger/rejected_", rejected, rules.REASONS)


def exam(cfg: Config) -> Exam:
    """Questions answered as by the reasoner; correct if the text matches or the answer is mathematically equal."""
    return Exam(
        role=roles.reasoner_role(cfg),
        prompt=lambda row, tokens: messages.for_reasoner(cfg, row["question"]),
        read=roles.prediction_of,
        measures=("accuracy",),
        accuracy=("same-text", "math"),
    )


def source(cfg: Config) -> Source | None:
    """Documents; None if tasks are written without a corpus."""
    if not options(cfg).corpus:
        return None
    assert cfg.data.documents is not None  # Config has checked it
    return Source(cfg.data.documents, "documents", cfg.data)


GAME = Game(
    name="spice",
    options=SpiceSection,
    roles=card_roles,
    play=play,
    remember=remember,
    start=lambda cfg: {"drawn": 0},
    ahead=lambda cfg, memory, steps: {"drawn": memory["drawn"] + steps * cfg.train.batch_size},
    arrange=one_update_per_policy,
    exam=exam,
    source=source,
    check=check,
    data=("documents",),
    panels=(
        ACCURACY,
        Panel("Pass rate of tasks", ("challenger/pass_rate", "reasoner/reward"), True),
        Panel("Challenger's reward", ("challenger/reward",), False),
        Panel("Valid attempts, documents with a task", ("challenger/valid", "challenger/documents"), True),
        Panel("Attempts at a document", ("challenger/attempts",), False),
        GRADIENT,
    ),
)
