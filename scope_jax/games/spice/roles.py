"""SPICE's roles: the challenger writes tasks from documents (§2.2), the reasoner solves them without (§2.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from scope_jax.config import Config
from scope_jax.config.tables import GenerationSection
from scope_jax.data.keys import rng
from scope_jax.games.spice import messages, rules
from scope_jax.games.spice.options import options
from scope_jax.games.spice.state import MULTIPLE_CHOICE, Answers, Attempt, Segment, Stage, StageReply
from scope_jax.play.documents import document_of, segments
from scope_jax.play.game import ACTOR
from scope_jax.play.math_answers import Comparison, Verdict
from scope_jax.play.prompting import shown
from scope_jax.play.tools import BASE, Agent, Rollout, Tools
from scope_jax.rollouts.types import Completion
from scope_jax.text import parsing

OUTSIDE = "challenger"  # name of the external challenger among the external models of a run


def challenger_learns(cfg: Config) -> bool:
    """True if the challenger's episodes are trained."""
    return options(cfg).train in ("both", "challenger")


def challenger_policy(cfg: Config) -> str:
    """The model that plays the challenger: actor, base or external model."""
    if options(cfg).challenger.endpoint is not None:
        return OUTSIDE
    return BASE if options(cfg).challenger.model == "base" else ACTOR


def _agent(cfg: Config, card: GenerationSection, policy: str) -> Agent:
    """A policy in single turns, with the limits of a role's table."""
    return Agent(policy, card.sampling, max_prompt_tokens=card.max_prompt_tokens, tempered=options(cfg).loss.tempered)


# ---------------------------------------------------------------------------------------------------------- challenger
def draw_documents(cfg: Config, tools: Tools, first: int) -> list[Segment]:
    """d ~ D: one segment, drawn uniformly, of each of the next documents from position `first` of the stream.

    Without a corpus, the same number of empty ones.
    """
    count = cfg.train.batch_size
    if not options(cfg).corpus:
        return [Segment(index, "", "") for index in range(count)]
    documents = []
    for index, row in enumerate(tools.rows(first, count)):
        key, text = document_of(row)
        parts = segments(shown(cfg, text), options(cfg).document_tokens, tools.tokens)
        part = int(rng("spice segment", cfg.seed, first + index).integers(len(parts)))
        documents.append(Segment(index, key, parts[part]))
    return documents


def write_tasks(cfg: Config, tools: Tools, documents: Sequence[Segment]) -> list[list[Attempt]]:
    """{(qᵢ, aᵢ*)}: attempts at each document, sampled in rounds until enough are valid or there are N (§3.1).

    Every round has twice as many attempts at a document as the one before. The attempts of a document are numbered
    consecutively, and the number seeds their sampling, so that they do not depend on how many rounds other documents
    take. A document whose first prompt is too long gets one round: all others would fail in the same way.
    """
    attempts: list[list[Attempt]] = [[] for _ in documents]
    first = 0
    for count in _round_sizes(cfg):
        unfinished = [document for document in documents if _worth_a_round(cfg, attempts[document.index])]
        if not unfinished:
            break
        if first:
            before = [attempts[document.index] for document in unfinished]
            tools.tell(_before_a_round(cfg, before, len(documents), count))
        for attempt in _round(cfg, tools, unfinished, first, count):
            attempts[attempt.document.index].append(attempt)
        first += count
    return attempts


def _round_sizes(cfg: Config) -> list[int]:
    """Attempts at a document in each round, together N: `attempts_per_round`, twice as many, …

    A challenger that is not trained starts with one: of its attempts, only a valid one for the reasoner is used.
    """
    sizes, left = [], options(cfg).max_attempts
    size = options(cfg).attempts_per_round if challenger_learns(cfg) else 1
    while left:
        sizes.append(min(size, left))
        left, size = left - sizes[-1], 2 * size
    return sizes


def _worth_a_round(cfg: Config, attempts: Sequence[Attempt]) -> bool:
    unreadable = any(attempt.reason == "prompt_too_long" and len(attempt.replies) == 1 for attempt in attempts)
    wanted = options(cfg).valid_wanted if challenger_learns(cfg) else 1
    return not unreadable and sum(attempt.valid for attempt in attempts) < wanted


def _before_a_round(cfg: Config, groups: Sequence[Sequence[Attempt]], documents: int, count: int) -> str:
    """What the user is told before another round: how many attempts so far count, and why the others do not."""
    attempts = [attempt for group in groups for attempt in group]
    reasons = Counter(attempt.reason for attempt in attempts if attempt.reason).most_common(2)
    why = ", ".join(f"{number / len(attempts):.0%} {reason}" for reason, number in reasons)
    return (
        f"{len(groups)} of {documents} documents lack valid tasks after {len(groups[0])} of at most "
        f"{options(cfg).max_attempts} attempts each: {sum(attempt.valid for attempt in attempts)} of {len(attempts)} "
        f"are valid ({why or 'none is rejected'}); {count} more at each."
    )


def _round(cfg: Config, tools: Tools, documents: Sequence[Segment], first: int, count: int) -> list[Attempt]:
    """Attempts `first` … `first + count` at each document."""
    attempts = _choose_formats(cfg, tools, documents, first, count)
    rollouts = {
        attempt.key: Rollout(
            f"{attempt.document.index} task {attempt.number}",
            messages.for_task(cfg, attempt.document, attempt.kind),
        )
        for attempt in attempts
        if attempt.kind
    }
    groups = _replies(cfg, tools, "task", list(rollouts.values()), 1)
    replies = {key: reply for key, (reply,) in zip(rollouts, groups, strict=True)}
    return [_with_task(cfg, tools, attempt, replies[attempt.key]) if attempt.kind else attempt for attempt in attempts]


def _choose_formats(cfg: Config, tools: Tools, documents: Sequence[Segment], first: int, count: int) -> list[Attempt]:
    """The first stage of a round; skipped if the only format offered is multiple choice, which has no answer types."""
    numbers = range(first, first + count)
    if options(cfg).formats == "multiple-choice":
        return [Attempt(document, n, (), None, "", MULTIPLE_CHOICE) for document in documents for n in numbers]
    rollouts = [Rollout(f"{each.index} format {first}", messages.for_format(cfg, each)) for each in documents]
    attempts = []
    for document, group in zip(documents, _replies(cfg, tools, "format", rollouts, count), strict=True):
        for number, reply in zip(numbers, group, strict=True):
            kind, reason = "", _missing(reply)
            if not reason:
                kind, reason = rules.format_of(cfg, reply.text)
            attempts.append(Attempt(document, number, (reply,), None, reason, kind))
    return attempts


def _with_task(cfg: Config, tools: Tools, attempt: Attempt, reply: StageReply) -> Attempt:
    """The attempt after its second stage: with a task that the reasoner can be asked, or a reason."""
    task, reason = None, _missing(reply)
    if not reason:
        task, reason = rules.task_of(reply.text, attempt.kind, options(cfg).max_answer_words)
    if task is not None and not _fits_the_reasoner(cfg, tools, task.question):
        task, reason = None, "question_too_long"
    return replace(attempt, replies=(*attempt.replies, reply), task=task, reason=reason)


def _missing(reply: StageReply) -> str:
    """Why there is no reply, "" if there is one."""
    if reply.refused:
        return "refused"
    return "prompt_too_long" if reply.completion is not None and not reply.completion.turns else ""


def _fits_the_reasoner(cfg: Config, tools: Tools, question: str) -> bool:
    tokens = tools.prompt_tokens(messages.for_reasoner(cfg, question))
    return tokens <= options(cfg).reasoner.max_prompt_tokens and tokens < cfg.rollout.max_length


def _replies(
    cfg: Config, tools: Tools, stage: Stage, rollouts: Sequence[Rollout], samples: int
) -> list[list[StageReply]]:
    """`samples` replies to each prompt, by a policy or the external challenger."""
    card = options(cfg).challenger
    if not rollouts:
        return []
    if card.endpoint is None:
        groups = tools.play("challenger", rollouts, _agent(cfg, card, challenger_policy(cfg)), samples)
        return [
            [StageReply(stage, rollout.messages, each.content, each) for each in group]
            for rollout, group in zip(rollouts, groups, strict=True)
        ]
    prompts = [rollout.messages for rollout in rollouts for _ in range(samples)]
    replies = tools.judge(
        [prompt.text for prompt in prompts],
        by=OUTSIDE,
        temperature=card.sampling.temperature,
        max_tokens=card.sampling.max_tokens,
    )
    parsed = [
        # A reply that was cut holds no task, though some object within it may be closed.
        StageReply(stage, prompt, "" if reply.cut else parsing.without_thinking(reply.text), None, bool(reply.refused))
        for prompt, reply in zip(prompts, replies, strict=True)
    ]
    return [parsed[first : first + samples] for first in range(0, len(parsed), samples)]


def keep(cfg: Config, attempts: Sequence[Sequence[Attempt]], step: int) -> list[list[Attempt]]:
    """T_C of each document: G of its attempts in their valid:invalid ratio."""
    return [
        rules.subsample(group, options(cfg).challenger.samples, rng("spice attempts", cfg.seed, step, index))
        for index, group in enumerate(attempts)
    ]


def select(cfg: Config, kept: Sequence[Sequence[Attempt]], step: int) -> list[Attempt]:
    """One valid attempt per document that has any, drawn uniformly: the task the reasoner is trained on."""
    chosen = []
    for index, attempts in enumerate(kept):
        valid = [attempt for attempt in attempts if attempt.valid]
        if valid:
            chosen.append(valid[int(rng("spice task", cfg.seed, step, index).integers(len(valid)))])
    return chosen


# ------------------------------------------------------------------------------------------------------------ reasoner
def solve(cfg: Config, tools: Tools, attempts: Sequence[Attempt], again: bool = False) -> list[Answers]:
    """{âₖ} ~ π(q), k = 1 … K, for each valid attempt; not yet graded. again: new answers to a task answered before."""
    card = options(cfg).reasoner
    tasks = [(attempt, attempt.task) for attempt in attempts if attempt.task is not None]
    rollouts = [
        Rollout(
            f"{attempt.document.index}.{attempt.number}{' again' if again else ''}",
            messages.for_reasoner(cfg, task.question),
        )
        for attempt, task in tasks
    ]
    groups = tools.play("reasoner", rollouts, _agent(cfg, card, ACTOR), card.samples)
    return [
        Answers(attempt, task, rollout.name, rollout.messages, tuple(group), tuple(map(prediction_of, group)))
        for (attempt, task), rollout, group in zip(tasks, rollouts, groups, strict=True)
    ]


def prediction_of(completion: Completion) -> str | None:
    r"""Content of the last `\boxed{…}` outside of thinking; None if missing or empty."""
    return parsing.boxed(completion.content)


def grade(cfg: Config, tools: Tools, answers: Sequence[Answers]) -> tuple[list[Answers], list[Verdict]]:
    """1[âₖ = a*] of every answer (§2.5), and the verdicts of the comparisons that this needed.

    A comparison that ended without a verdict counts as wrong.
    """
    pairs = dict.fromkeys((group.task, prediction) for group in answers for prediction in group.predictions)
    compared = [pair for pair in pairs if rules.needs_mathematics(*pair)]
    comparisons = [Comparison(prediction or "", (task.answer,)) for task, prediction in compared]
    verdicts = tools.compare_math(comparisons, options(cfg).math_seconds) if comparisons else []
    by_pair = dict(zip(compared, verdicts, strict=True))
    graded = []
    for group in answers:
        task = group.task
        correct = (rules.right(task, said, by_pair.get((task, said))) for said in group.predictions)
        graded.append(replace(group, correct=tuple(correct)))
    return graded, verdicts
