"""SPICE as a `Game`: Algorithm 1, the learner's update, episodes, metrics, the exam of its reasoner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scope_jax.config import Config, JudgeSection
from scope_jax.data.sources import Source
from scope_jax.games.spice import messages, roles, rules
from scope_jax.games.spice.options import SpiceSection, check, options
from scope_jax.games.spice.state import MULTIPLE_CHOICE, Answers, Attempt, StageReply
from scope_jax.learner.types import Datum, Episode, Metrics, RoleShare, Update, transcript
from scope_jax.play import metric_names, searching
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACCURACY, ACTOR, GRADIENT, Game, Memory, Panel
from scope_jax.play.math_answers import Verdict
from scope_jax.play.rewards import means, parts_of, shares
from scope_jax.play.tools import Tools
from scope_jax.text import templates
from scope_jax.text.parsing import shorten


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One iteration of Algorithm 1 up to the update: episodes of both roles, the memory after it, metrics.

    Pure: all randomness is derived from (seed, step, position in the batch), and `memory` is not modified.
    """
    # l.1: the training loop has read the data named by `source`
    # l.2, l.3: an iteration is one call, and begins with the challenger
    # l.4, l.5: the next documents of the stream, one segment of each
    documents = roles.draw_documents(cfg, tools, memory["drawn"])
    # l.6: until a document has enough valid tasks, or N attempts
    attempts = roles.write_tasks(cfg, tools, documents)
    # l.7: G attempts per document
    kept = roles.keep(cfg, attempts, step)
    # l.8: the valid ones; if the challenger is not trained, only those for the reasoner's update (l.16)
    chosen = roles.select(cfg, kept, step)
    valid = [attempt for group in kept for attempt in group if attempt.valid]
    posed = valid if roles.challenger_learns(cfg) else chosen
    # l.9: K answers to each, graded
    answers, verdicts = roles.grade(cfg, tools, roles.solve(cfg, tools, posed))
    # l.10 to l.14: Eq. (1)
    written = challenger_episodes(cfg, kept, {group.attempt.key: group.pass_rate for group in answers})
    # l.15 to l.17: the reasoner's phase; the answers of l.9 to one valid task per document, or new ones
    learned, late_verdicts = answers_to_learn(cfg, tools, chosen, answers)
    # l.18 to l.20: correct or wrong
    names = {group.name for group in learned}
    others = [group for group in answers if group.name not in names]
    solved = reasoner_episodes(cfg, learned, options(cfg).train != "challenger")
    # l.21 to l.28: the training loop calls `updates` and trains on these episodes
    played = [*written, *solved, *reasoner_episodes(cfg, others, trained=False)]
    # l.29: the position in the stream of documents
    after = {"drawn": memory["drawn"] + cfg.train.batch_size}
    # l.30: the training loop calls `finished`
    return played, after, measure(cfg, attempts, [*written, *solved], answers, learned, [*verdicts, *late_verdicts])


def answers_to_learn(
    cfg: Config, tools: Tools, chosen: Sequence[Attempt], answers: Sequence[Answers]
) -> tuple[list[Answers], list[Verdict]]:
    """(the answers to T_R of each document, the verdicts that grading new ones needed): earlier answers, or new ones.

    Only if both are trained can new ones be used (l.17): an untrained challenger's tasks were answered for the reasoner
    alone, and an untrained reasoner learns from none.
    """
    if options(cfg).reasoner_rollouts == "fresh" and options(cfg).train == "both":
        return roles.grade(cfg, tools, roles.solve(cfg, tools, chosen, again=True))
    keys = {attempt.key for attempt in chosen}
    return [group for group in answers if group.attempt.key in keys], []


def updates(cfg: Config) -> tuple[Update, ...]:
    """Algorithm 1 l.21 to l.28: one update of the actor by the trained roles; advantages are within groups."""
    weights = {"challenger": options(cfg).challenger_weight, "reasoner": 1.0}
    trained = weights if options(cfg).train == "both" else (options(cfg).train,)
    return (Update(ACTOR, options(cfg).loss, tuple(RoleShare(role, weight=weights[role]) for role in trained)),)


PROMPT_SHOWN = 2_000  # characters of a prompt with a document, as recorded in episodes.jsonl


def challenger_episodes(
    cfg: Config, kept: Sequence[Sequence[Attempt]], rates: Mapping[tuple[int, int], float]
) -> list[Episode]:
    """One episode per attempt of T_C: r_C by the pass rate of its task, ρ if it is invalid (Eq. (1)).

    A valid attempt whose task was not answered has no episode; this occurs only if the challenger is not trained.
    """
    return [
        _attempt(cfg, attempt, rates.get(attempt.key))
        for attempts in kept
        for attempt in attempts
        if not attempt.valid or attempt.key in rates
    ]


def _attempt(cfg: Config, attempt: Attempt, rate: float | None) -> Episode:
    """An attempt with one datum for each trained stage that the policy has sampled."""
    card = options(cfg)
    reward = card.invalid_reward if rate is None else rules.reward(card.challenger_reward, rate, card.reward_width)
    stages = ("format", "task") if card.train_stages == "both" else (card.train_stages,)
    sampled = [reply.completion for reply in attempt.replies if reply.stage in stages and reply.completion is not None]
    task = attempt.task
    return Episode(
        role="challenger",
        policy=roles.challenger_policy(cfg),
        group=f"challenger/{attempt.document.index}",
        datums=tuple(datum for completion in sampled for datum in Datum.from_completion(completion)),
        reward=reward,
        parts={"valid": float(attempt.valid)} | ({} if rate is None else {"pass_rate": rate}),
        trained=roles.challenger_learns(cfg),
        temperature=card.challenger.sampling.temperature,
        finish=sampled[-1].finish_reason if sampled else "",
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


def _turns(reply: StageReply, first: bool) -> list[dict[str, str]]:
    """The turns of a stage for the episode record; the second stage's prompt precedes it as an observation."""
    prompt = [] if first else [{"kind": "observation", "text": shorten(reply.prompt.text, PROMPT_SHOWN)}]
    if reply.completion is None:
        return [*prompt, {"kind": "sampled", "text": reply.text}]
    return prompt + transcript(reply.completion)


def reasoner_episodes(cfg: Config, answers: Sequence[Answers], trained: bool) -> list[Episode]:
    """One episode per answer: r_R = 1[â = a*]."""
    return [
        Episode.from_completion(
            completion,
            group.prompt,
            {
                "kind": group.task.kind,
                "answer": group.task.answer,
                "prediction": prediction,
                "document": group.attempt.document.key,
                "attempt": group.attempt.number,
            },
            role="reasoner",
            policy=ACTOR,
            group=f"reasoner/{group.name}",
            reward=float(right),
            parts={"correct": float(right), "answered": float(prediction is not None)},
            trained=trained,
            temperature=options(cfg).reasoner.sampling.temperature,
        )
        for group in answers
        for completion, prediction, right in zip(group.completions, group.predictions, group.correct, strict=True)
    ]


def measure(
    cfg: Config,
    attempts: Sequence[Sequence[Attempt]],
    played: Sequence[Episode],
    answers: Sequence[Answers],
    learned: Sequence[Answers],
    verdicts: Sequence[Verdict],
) -> Metrics:
    """The step's metrics; a mean over no values is left out.

    attempts: all, by document. played: the challenger's episodes, and those answers that the reasoner is trained on.
    answers: to the tasks of T_C. learned: to T_R.
    """
    written = [attempt for group in attempts for attempt in group]
    sampled = [reply.completion for each in written for reply in each.replies if reply.completion is not None]
    groups = {group.name: group for group in (*answers, *learned)}.values()
    values: dict[str, list[float]] = {
        "challenger/valid": [float(attempt.valid) for attempt in written],
        "challenger/attempts": [float(len(group)) for group in attempts],
        "challenger/documents": [float(any(attempt.valid for attempt in group)) for group in attempts],
        **parts_of("challenger", played, "pass_rate"),
        **parts_of("reasoner", played, "answered"),
        "reasoner/no_spread": [float(group.pass_rate in (0.0, 1.0)) for group in learned],
        **searching.lengths("challenger", sampled),
        **searching.lengths("reasoner", [completion for group in groups for completion in group.completions]),
    }
    kinds = [attempt.task.kind for attempt in written if attempt.task is not None]
    for kind in (MULTIPLE_CHOICE, *options(cfg).answer_types):
        values[f"kinds/{kind.replace('-', '_')}"] = [float(other == kind) for other in kinds]
    unread = {"math/given_up": verdicts.count("timeout"), "math/unreadable": verdicts.count("unreadable")}
    rejected = [attempt.reason for attempt in written]
    return (
        means(values)
        | shares("challenger/rejected_", rejected, rules.REASONS)
        | {k: float(n) for k, n in unread.items()}
    )


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    usual = f"reward {metric_names.LENGTHS}"
    yield from metric_names.of(
        {
            "challenger": f"{usual} valid attempts documents pass_rate {metric_names.rejections(rules.REASONS)}",
            "reasoner": f"{usual} answered no_spread",
            "kinds": ["multiple_choice", *options(cfg).answer_types],
            "math": "given_up unreadable",
        }
    )


def exam(cfg: Config) -> Exam:
    """Questions answered as by the reasoner; correct if the text matches or the answer is mathematically equal."""
    return Exam(
        policy=ACTOR,
        prompt=lambda row, tokens: messages.for_reasoner(cfg, row["question"]),
        read=roles.prediction_of,
        measures=("accuracy",),
        accuracy=("same-text", "math"),
    )


def uses_base(cfg: Config) -> bool:
    """True if the base model is the challenger."""
    return options(cfg).challenger.model == "base" and options(cfg).challenger.endpoint is None


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """The external model used as the challenger, if the card has one."""
    card = options(cfg).challenger
    if card.endpoint is None:
        return {}
    sampling = {"temperature": card.sampling.temperature, "max_tokens": card.sampling.max_tokens}
    return {roles.OUTSIDE: JudgeSection(**card.endpoint.model_dump(), **sampling)}


def source(cfg: Config) -> Source | None:
    """Documents; None if tasks are written without a corpus."""
    if not options(cfg).corpus:
        return None
    assert cfg.data.documents is not None  # Config has checked it
    return Source(cfg.data.documents, "documents", cfg.data)


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """System message files of both roles."""
    return templates.system_files(options(cfg).prompts, messages.ROLES)


GAME = Game(
    name="spice",
    options=SpiceSection,
    source=source,
    play=play,
    updates=updates,
    exam=exam,
    check=check,
    uses_base=uses_base,
    judges=judges,
    system_messages=system_messages,
    check_prompts=messages.check_prompts,
    start=lambda cfg: {"drawn": 0},
    data=("documents",),
    panels=(
        ACCURACY,
        Panel("Pass rate of tasks", ("challenger/pass_rate", "reasoner/reward"), True),
        Panel("Challenger's reward", ("challenger/reward",), False),
        Panel("Valid attempts, documents with a task", ("challenger/valid", "challenger/documents"), True),
        Panel("Attempts at a document", ("challenger/attempts",), False),
        GRADIENT,
    ),
    metrics=metrics,
)
