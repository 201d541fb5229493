"""SPICE's roles: the challenger writes tasks from documents (§2.2), the reasoner solves them without (§2.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from scope_jax.config import AskSection, Config
from scope_jax.config.tables import GenerationSection
from scope_jax.games.spice import messages, rules
from scope_jax.games.spice.options import SpiceSection, options
from scope_jax.games.spice.state import (
    MULTIPLE_CHOICE,
    Answers,
    ChallengerAttempt,
    ReasonerAnswer,
    Segment,
    Stage,
    StageReply,
)
from scope_jax.grading.math_answers import Comparison
from scope_jax.learner.types import Reply
from scope_jax.play.chains import Waiting
from scope_jax.play.documents import document_of, segments
from scope_jax.play.game import ACTOR
from scope_jax.play.prompting import shown
from scope_jax.play.roles import Role, judge_role
from scope_jax.play.rollouts import Agent, Rollout
from scope_jax.play.step import Step
from scope_jax.play.tools import BASE
from scope_jax.rollouts.types import Completion
from scope_jax.text import parsing

CHALLENGER, REASONER = "challenger", "reasoner"


def card_roles(cfg: Config) -> tuple[Role, ...]:
    """Challenger and reasoner."""
    return challenger_role(cfg), reasoner_role(cfg)


def challenger_role(cfg: Config) -> Role:
    """It writes tasks from documents: the actor, the base, or an external model."""
    card = options(cfg)
    table, prompts = "spice.challenger", messages.of_challenger(card)
    if card.challenger.endpoint is not None:
        sampling = card.challenger.sampling
        endpoint = AskSection(
            temperature=sampling.temperature, max_tokens=sampling.max_tokens, endpoint=card.challenger.endpoint
        )
        return judge_role(CHALLENGER, table, endpoint, prompts)
    return Role(
        CHALLENGER,
        _agent(card, card.challenger, BASE if card.challenger.model == "base" else ACTOR),
        loss=card.loss if card.train in ("both", CHALLENGER) else None,
        weight=card.challenger_weight,
        prompts=prompts,
        table=table,
    )


def reasoner_role(cfg: Config) -> Role:
    """It solves them without the documents."""
    card = options(cfg)
    return Role(
        REASONER,
        _agent(card, card.reasoner, ACTOR),
        loss=card.loss if card.train in ("both", REASONER) else None,
        prompts=(messages.REASONER,),
        table="spice.reasoner",
    )


def _agent(card: SpiceSection, limits: GenerationSection, policy: str) -> Agent:
    """A policy in single turns, with the limits of a role's table."""
    return Agent(policy, limits.sampling, max_prompt_tokens=limits.max_prompt_tokens, tempered=card.loss.tempered)


# ---------------------------------------------------------------------------------------------------------- challenger
def draw_documents(step: Step[SpiceSection]) -> list[Segment]:
    """d ~ D: one segment, drawn uniformly, of each of the next documents of the stream.

    Without a corpus, the same number of empty ones.
    """
    first, count = step.memory["drawn"], step.cfg.train.batch_size
    if not step.card.corpus:
        return [Segment(index, "", "") for index in range(count)]
    documents = []
    for index, row in enumerate(step.rows(first, count)):
        key, text = document_of(row)
        parts = segments(shown(step.cfg, text), step.card.document_tokens, step.tools.tokens)
        part = int(step.rng("spice segment", first + index).integers(len(parts)))
        documents.append(Segment(index, key, parts[part]))
    return documents


def write_tasks(step: Step[SpiceSection], document: Segment) -> Waiting[list[ChallengerAttempt]]:
    """{(qᵢ, aᵢ*)}: attempts at a document, sampled in rounds until enough are valid or there are N (§3.1).

    Every round has twice as many attempts as the one before. The attempts are numbered consecutively, and the number
    seeds their sampling. A document whose first prompt is too long gets one round: all others would fail in the same
    way.
    """
    attempts: list[ChallengerAttempt] = []
    for count in _round_sizes(step):
        if _worth_a_round(step, attempts):
            attempts += yield from _round(step, document, range(len(attempts), len(attempts) + count))
    return attempts


def _round_sizes(step: Step[SpiceSection]) -> list[int]:
    """Attempts at a document in each round, together N: `attempts_per_round`, twice as many, …

    A challenger that is not trained starts with one: of its attempts, only a valid one for the reasoner is used.
    """
    sizes: list[int] = []
    size = step.card.attempts_per_round if step.roles[CHALLENGER].learns else 1
    while sum(sizes) < step.card.max_attempts:
        sizes.append(min(size, step.card.max_attempts - sum(sizes)))
        size *= 2
    return sizes


def _worth_a_round(step: Step[SpiceSection], attempts: Sequence[ChallengerAttempt]) -> bool:
    unreadable = any(attempt.reason == "prompt_too_long" and len(attempt.replies) == 1 for attempt in attempts)
    wanted = step.card.valid_wanted if step.roles[CHALLENGER].learns else 1
    return not unreadable and sum(attempt.valid for attempt in attempts) < wanted


def tell_of_rounds(step: Step[SpiceSection], groups: Sequence[Sequence[ChallengerAttempt]]) -> None:
    """Tells the user how many documents took more than one round, and why attempts at them do not count."""
    first = _round_sizes(step)[0]
    longer = [group for group in groups if len(group) > first]
    if not longer:
        return
    attempts = [attempt for group in longer for attempt in group]
    reasons = Counter(attempt.reason for attempt in attempts if attempt.reason).most_common(2)
    why = ", ".join(f"{number / len(attempts):.0%} {reason}" for reason, number in reasons)
    step.tell(
        f"{len(longer)} of {len(groups)} documents lacked valid tasks after {first} attempts each and took "
        f"{len(attempts) / len(longer):.1f} of at most {step.card.max_attempts}: "
        f"{sum(attempt.valid for attempt in attempts)} of {len(attempts)} are valid ({why or 'none is rejected'})."
    )


def _round(step: Step[SpiceSection], document: Segment, numbers: range) -> Waiting[list[ChallengerAttempt]]:
    """The attempts of these numbers at a document."""
    attempts = yield from _choose_formats(step, document, numbers)
    rollouts = {
        attempt.key: Rollout(
            f"{attempt.document.index} task {attempt.number}",
            messages.for_task(step.cfg, attempt.document, attempt.kind),
        )
        for attempt in attempts
        if attempt.kind
    }
    groups = yield from _replies(step, "task", list(rollouts.values()), 1)
    replies = {key: reply for key, (reply,) in zip(rollouts, groups, strict=True)}
    return [_with_task(step, attempt, replies[attempt.key]) if attempt.kind else attempt for attempt in attempts]


def _choose_formats(step: Step[SpiceSection], document: Segment, numbers: range) -> Waiting[list[ChallengerAttempt]]:
    """The first stage of a round; skipped if the only format offered is multiple choice, which has no answer types."""
    if step.card.formats == "multiple-choice":
        return [ChallengerAttempt(document, number, kind=MULTIPLE_CHOICE) for number in numbers]
    rollout = Rollout(f"{document.index} format {numbers[0]}", messages.for_format(step.cfg, document))
    (replies,) = yield from _replies(step, "format", [rollout], len(numbers))
    attempts = []
    for number, reply in zip(numbers, replies, strict=True):
        missing = _missing(reply)
        kind, reason = ("", missing) if missing else rules.format_of(step.card, reply.text)
        attempts.append(ChallengerAttempt(document, number, (reply,), kind=kind, reason=reason))
    return attempts


def _with_task(step: Step[SpiceSection], attempt: ChallengerAttempt, reply: StageReply) -> ChallengerAttempt:
    """The attempt after its second stage: with a task that the reasoner can be asked, or a reason."""
    attempt = replace(attempt, replies=(*attempt.replies, reply))
    if missing := _missing(reply):
        return replace(attempt, reason=missing)
    task, reason = rules.task_of(reply.text, attempt.kind, step.card.max_answer_words)
    if task is not None and not _fits_the_reasoner(step, task.question):
        return replace(attempt, reason="question_too_long")
    return replace(attempt, task=task, reason=reason)


def _missing(reply: StageReply) -> str:
    """Why there is no reply, "" if there is one."""
    if reply.refused:
        return "refused"
    return "prompt_too_long" if reply.sample is not None and not reply.sample.turns else ""


def _fits_the_reasoner(step: Step[SpiceSection], question: str) -> bool:
    tokens = step.tools.prompt_tokens(messages.for_reasoner(step.cfg, question))
    return tokens <= step.card.reasoner.max_prompt_tokens and tokens < step.cfg.rollout.max_length


def _replies(
    step: Step[SpiceSection], stage: Stage, rollouts: Sequence[Rollout], samples: int
) -> Waiting[list[list[StageReply]]]:
    """`samples` replies to each prompt, by a policy, or by the external challenger, who is asked about all documents
    together."""
    model = step.roles[CHALLENGER].external
    if model is None:
        groups = yield from step.sample(CHALLENGER, rollouts, samples=samples)
        return [
            [StageReply(stage, rollout.messages, sample.content, sample) for sample in group]
            for rollout, group in zip(rollouts, groups, strict=True)
        ]

    def ask(prompts: list[str]) -> list[Reply]:
        return step.tools.judge(prompts, by=CHALLENGER, temperature=model.temperature, max_tokens=model.max_tokens)

    prompts = [rollout.messages for rollout in rollouts for _ in range(samples)]
    replies = yield from step.gather(stage, ask, [prompt.text for prompt in prompts])
    parsed = [
        # A reply that was cut holds no task, though some object within it may be closed.
        StageReply(stage, prompt, "" if reply.cut else parsing.without_thinking(reply.text), None, bool(reply.refused))
        for prompt, reply in zip(prompts, replies, strict=True)
    ]
    return [parsed[first : first + samples] for first in range(0, len(parsed), samples)]


def keep(step: Step[SpiceSection], document: Segment, attempts: Sequence[ChallengerAttempt]) -> list[ChallengerAttempt]:
    """T_C of a document: G of its attempts in their valid:invalid ratio."""
    generator = step.rng("spice attempts", step.number, document.index)
    return rules.subsample(attempts, step.card.challenger.samples, generator)


def select(step: Step[SpiceSection], document: Segment, valid: Sequence[ChallengerAttempt]) -> list[ChallengerAttempt]:
    """One of a document's valid attempts, if it has any, drawn uniformly: the task the reasoner is trained on."""
    if not valid:
        return []
    return [valid[int(step.rng("spice task", step.number, document.index).integers(len(valid)))]]


# ------------------------------------------------------------------------------------------------------------ reasoner
def solve(
    step: Step[SpiceSection], attempts: Sequence[ChallengerAttempt], again: bool = False
) -> Waiting[list[Answers]]:
    """{âₖ} ~ π(q), k = 1 … K, for each valid attempt; not yet graded. again: new answers to a task answered before."""
    tasks = [(attempt, attempt.task) for attempt in attempts if attempt.task is not None]
    rollouts = [
        Rollout(
            f"{attempt.document.index}.{attempt.number}{' again' if again else ''}",
            messages.for_reasoner(step.cfg, task.question),
        )
        for attempt, task in tasks
    ]
    groups = yield from step.sample(REASONER, rollouts, samples=step.card.reasoner.samples)
    return [
        Answers(attempt, task, tuple(ReasonerAnswer(sample, prediction_of(sample)) for sample in group))
        for (attempt, task), group in zip(tasks, groups, strict=True)
    ]


def prediction_of(completion: Completion) -> str | None:
    r"""Content of the last `\boxed{…}` outside of thinking; None if missing or empty."""
    return parsing.boxed(completion.content)


def grade(step: Step[SpiceSection], groups: Sequence[Answers]) -> list[Answers]:
    """1[âₖ = a*] of every answer (§2.5). A comparison that ended without a verdict counts as wrong."""
    pairs = dict.fromkeys((group.task, answer.prediction) for group in groups for answer in group.answers)
    compared = [pair for pair in pairs if rules.needs_mathematics(*pair)]
    comparisons = [Comparison(prediction or "", (task.answer,)) for task, prediction in compared]
    verdicts = dict(zip(compared, step.compare_math(comparisons, step.card.math_seconds), strict=True))
    graded = []
    for group in groups:
        task = group.task
        answers = [
            replace(answer, correct=rules.right(task, answer.prediction, verdicts.get((task, answer.prediction))))
            for answer in group.answers
        ]
        graded.append(replace(group, answers=tuple(answers)))
    return graded
