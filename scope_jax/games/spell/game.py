"""SPELL as a `Game`: its roles, Algorithm 1, the memory between steps, the exam of its responder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from scope_jax.config import Config
from scope_jax.data.sources import Source
from scope_jax.errors import UserError
from scope_jax.games.spell import messages, roles, rules, state
from scope_jax.games.spell.options import SpellSection, check, options
from scope_jax.games.spell.roles import QUESTIONER, RESPONDER, VERIFIER, card_roles
from scope_jax.games.spell.state import (
    AnswerGroup,
    History,
    QuestionDraft,
    QuestionerContext,
    ResponderAnswer,
    Selection,
    SolvableQuestion,
    SpellOutcome,
)
from scope_jax.grading.rewards import mean, means, shares
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play import exams
from scope_jax.play.chains import Waiting
from scope_jax.play.exams import Exam
from scope_jax.play.game import GRADIENT, Game, Panel
from scope_jax.play.roles import one_update_per_policy
from scope_jax.play.step import Memory, Played, Step


def play(step: Step[SpellSection]) -> Played:
    """One step of Algorithm 1 up to the update: episodes of all roles, and what the next memory depends on.

    In the mode "given-questions" it draws those instead, and rewards are those of the rule (App. C.4). Pure: all
    randomness is derived from the seed and the position in the stream, or the step. Raises UserError if no cluster of
    the step suits a task of the card, or none fits into the responder's prompt.
    """
    card = step.card
    # l.1: the training loop initialised the policy from the base model, and reads `source`
    # l.2, l.3: the run began with an empty history memory
    # l.4: a step is one call; only the position in the stream and the history are carried over
    position = step.memory["position"]
    solvable: list[SolvableQuestion] = []
    # l.5: the batches; B^ver is in the groups of B^res
    drafts: list[QuestionDraft] = []
    groups: list[AnswerGroup] = []
    rounds = 0
    # l.6: in rounds, until the step is full or the card's maximum is reached
    while rounds < card.max_rounds and count_mixed(groups) < card.groups:
        if rounds:
            step.tell(_before_a_round(card, rounds, drafts, groups))
        if card.mode == "given-questions":
            groups += given_round(step, position)
        else:
            # l.7 to l.19: clusters, questions, answers, verifications, rewards
            history = state.push(card, step.memory["history"], solvable)
            fresh = question_round(step, position, history)
            # l.20, l.21: the next round remembers the solvable questions of this one
            solvable += state.solvable_questions(card, fresh)
            # l.22 to l.24: all samples are kept, and chosen from below
            drafts += fresh
            groups += [draft.group for draft in fresh if draft.group is not None]
        position += card.clusters_per_round
        rounds += 1
    clusters = rounds * card.clusters_per_round
    if card.mode == "self-play":
        _check_drafts(card, drafts, clusters)
    # l.25: role-specific dynamic sampling
    selection = rules.choose(step, drafts, groups)
    # l.26: the training loop trains on these episodes in one update
    return Played(
        episodes(step, drafts, groups, selection),
        outcome=SpellOutcome(clusters, tuple(solvable)),
        metrics=measure(card, drafts, groups, selection) | measure_rounds(card, rounds, drafts, groups),
    )


def question_round(step: Step[SpellSection], position: int, history: History) -> list[QuestionDraft]:
    """Plays each cluster of a round from `position` onwards once; all of them see the history before it."""
    clusters = step.rows(position, step.card.clusters_per_round)
    # l.7, l.8, l.9: a cluster, its task, some of its documents, and the history
    contexts = roles.draw_contexts(step, history, clusters, position)
    # l.10 to l.19: what is asked about each cluster, beside the others
    speakers = [name for name in (QUESTIONER, RESPONDER, VERIFIER) if name in step.roles]
    return step.map(speakers, play_cluster, contexts)


def play_cluster(step: Step[SpellSection], context: QuestionerContext) -> Waiting[QuestionDraft]:
    """A question about a cluster, with its answers and their verifications."""
    # l.10: the question
    draft = yield from roles.ask(step, context)
    # l.11 to l.14: mark it if it can be answered without documents
    draft = yield from roles.filter_grounded(step, draft)
    if not draft.reason:
        # l.15: G answers, from all documents of the cluster
        draft = yield from roles.respond(step, draft)
    if draft.group is not None:
        # l.16, l.17: G verifications of each
        group = yield from roles.verify(step, draft.group)
        # l.18, l.19: the rewards
        draft = replace(draft, group=roles.reward_answers(step.card, group))
    return replace(draft, reward=roles.reward_question(step.card, draft))


def given_round(step: Step[SpellSection], position: int) -> list[AnswerGroup]:
    """The responder answers the given questions of a round, if their texts fit into its prompt."""
    rows = step.rows(position, step.card.clusters_per_round)
    readings = [roles.given_question(step.cfg, row, index) for index, row in enumerate(rows, position)]
    return [group for group in step.map((RESPONDER,), roles.answer, readings) if group is not None]


def count_mixed(groups: Sequence[AnswerGroup]) -> int:
    """The number of questions with correct and wrong answers, which count for the step's N."""
    return sum(group.mixed for group in groups)


def remember(cfg: Config, memory: Memory, outcome: SpellOutcome, number: int) -> tuple[Memory, Metrics]:
    """l.7, l.21: the position in the stream after the clusters of the step, and the history with the solvable
    questions."""
    return {
        "position": memory["position"] + outcome.clusters,
        "history": state.push(options(cfg), memory["history"], outcome.solvable),
    }, {}


def _before_a_round(
    card: SpellSection, rounds: int, drafts: Sequence[QuestionDraft], groups: Sequence[AnswerGroup]
) -> str:
    """What the user is told before another round: how many clusters so far count, and why the others do not."""
    mixed = count_mixed(groups)
    reasons = Counter(draft.reason for draft in drafts if draft.reason)
    why = [f"{number} {reason}" for reason, number in reasons.most_common(2)]
    if alike := len(groups) - mixed:
        why.append(f"{alike} answered alike, all rightly or all wrongly")
    return (
        f"round {rounds} of at most {card.max_rounds}: of {rounds * card.clusters_per_round} clusters "
        f"{mixed} count, {card.groups} are wanted"
        + (f" ({', '.join(why)})" if why else "")
        + f"; {card.clusters_per_round} more are drawn."
    )


def _check_drafts(card: SpellSection, drafts: Sequence[QuestionDraft], clusters: int) -> None:
    """Raises UserError if the step's clusters gave the questioner, or the responder, nothing to read."""
    if not drafts:
        raise UserError(
            f"none of the {clusters} clusters drawn in this step is for a task with a share in spell.tasks; "
            "give their tasks a share, or set the tasks of their families in spell.families."
        )
    if all(draft.reason == "documents_too_long" for draft in drafts):
        raise UserError(
            f"the documents of none of the {len(drafts)} clusters drawn in this step fit into "
            f"spell.responder.max_prompt_tokens = {card.responder.max_prompt_tokens}; build clusters with "
            "fewer clusters.max_tokens, or raise it."
        )


# ------------------------------------------------------------------------------------------------------------ episodes
def episodes(
    step: Step[SpellSection],
    drafts: Sequence[QuestionDraft],
    groups: Sequence[AnswerGroup],
    selection: Selection,
) -> list[Episode]:
    """One episode per question of the questioner, followed by those of its answers, or only the latter in the mode
    "given-questions"; then one per verification that was chosen.

    The chosen episodes of a trained role are trained. All verifications of an answer are recorded with it.
    """
    played = []
    for draft in drafts:
        played.append(_question(step, draft, selection))
        if draft.group is not None:
            played += _answers(step, draft.group, selection)
    if step.card.mode == "given-questions":
        for group in groups:
            played += _answers(step, group, selection)
    for group in groups:
        for answer in group.answers:
            if answer.name in selection.verifier:
                played += _verifications(step, answer)
    return played


def _question(step: Step[SpellSection], draft: QuestionDraft, selection: Selection) -> Episode:
    context = draft.context
    question = draft.question
    return draft.sample.episode(
        draft.reward,
        parts={} if draft.group is None else {"success": draft.group.mean},
        text={
            "cluster": context.cluster["id"],
            "task": context.task,
            "documents": [document["id"] for document in context.documents],
            "remembered": len(context.history),
            "question": None if question is None else question.whole,
            "answer": None if question is None else question.answer,
            "rejected": draft.reason,
            "without_documents": draft.blind,
            "place": context.position,
        },
        group=f"{QUESTIONER}/{context.task}",
        trained=QUESTIONER in step.card.train and context.position in selection.questioner,
        judgements=draft.judgements,
    )


def _answers(step: Step[SpellSection], group: AnswerGroup, selection: Selection) -> list[Episode]:
    """Only the first answer of a group records the prompt, which holds all documents."""
    reading = group.reading
    return [
        answer.sample.episode(
            answer.reward,
            parts={"rule": float(answer.rule), "vote": float(answer.vote)},
            text={
                "question": reading.question.whole,
                "answer": reading.question.answer,
                "prediction": answer.conclusion,
                "verdicts": [each.verdict for each in answer.verifications],
                "place": reading.position,
            },
            trained=RESPONDER in step.card.train and reading.position in selection.responder,
            judgements=(*answer.judgements, *(each.judgement for each in answer.verifications)),
            shows_prompt=answer.number == 0,
        )
        for answer in group.answers
    ]


def _verifications(step: Step[SpellSection], answer: ResponderAnswer) -> list[Episode]:
    return [
        verification.sample.episode(
            verification.reward,
            parts={"malformed": float(verification.verdict is None)},
            text={
                "verdict": verification.verdict,
                "vote": answer.vote,
                "rule": answer.rule,
                "place": answer.reading.position,
            },
            trained=VERIFIER in step.card.train,
        )
        for verification in answer.verifications
    ]


# ------------------------------------------------------------------------------------------------------------- metrics
def measure(
    card: SpellSection, drafts: Sequence[QuestionDraft], groups: Sequence[AnswerGroup], selection: Selection
) -> dict[str, float | None]:
    """What episodes and samples do not tell; a mean over no values is left out. `difficulty/<task>` is 1 − pass@1 of
    its questions. The verifier's values are about all verifications, not only those that were chosen."""
    played = [draft for draft in drafts if draft.reason not in rules.UNPLAYED]
    answers = [answer for group in groups for answer in group.answers]
    verified = [answer for answer in answers if answer.verifications]
    verifications = [verification for answer in verified for verification in answer.verifications]
    values = {
        "questioner/valid": [float(draft.reason not in rules.MALFORMED) for draft in played],
        "questioner/documents": [float(len(draft.context.documents)) for draft in drafts],
        "questioner/remembered": [float(len(draft.context.history)) for draft in drafts],
        "responder/concluded": [float(answer.conclusion is not None) for answer in answers],
        "verifier/yes": [float(answer.vote) for answer in verified],
        "verifier/disagreement": [float(answer.vote != answer.rule) for answer in verified],
        "verifier/conflicting": [float(answer.conflicting) for answer in verified],
        "verifier/malformed": [float(verification.verdict is None) for verification in verifications],
    }
    for task in messages.TASKS:
        values[f"difficulty/{task}"] = [1.0 - group.mean for group in groups if group.reading.task == task]
    return {
        **means(values),
        **shares("solvable/", [group.reading.task for group in groups if group.mixed], messages.TASKS),
        "questioner/reward": mean([draft.reward for draft in played]) if played else None,
        "verifier/groups": float(len(selection.verifier)),
        "groups/mixed": float(count_mixed(groups)),
        "groups/kept": float(len(selection.responder)),
        "groups/full": float(len(selection.responder) == card.groups),
        "questions/trained": float(len(selection.questioner)) if drafts else None,
    }


def measure_rounds(
    card: SpellSection, rounds: int, drafts: Sequence[QuestionDraft], groups: Sequence[AnswerGroup]
) -> dict[str, float]:
    """How much was drawn: rounds, questions, and of given questions the share of those that were too long."""
    if card.mode == "self-play":
        return {"groups/rounds": float(rounds), "questions/asked": float(len(drafts))}
    questions = rounds * card.clusters_per_round
    return {
        "groups/rounds": float(rounds),
        "questions/asked": float(questions),
        "responder/rejected_documents_too_long": 1.0 - len(groups) / questions,
    }


# ---------------------------------------------------------------------------------------------------------------- game
def exam(cfg: Config) -> Exam:
    """Rows with a long context, whose middle is cut out if the prompt is too long; `exams.document_accuracy`."""
    accuracy, by_task = exams.document_accuracy(cfg)
    return Exam(
        role=roles.responder_role(cfg),
        prompt=lambda row, tokens: messages.for_exam(cfg, row, tokens, options(cfg).exam_prompt_tokens),
        read=roles.exam_conclusion,
        measures=("accuracy",),
        accuracy=accuracy,
        by_task=by_task,
        kind="readings",
        prompts=options(cfg).prompts,
        prompt_tokens=options(cfg).exam_prompt_tokens,
        within=lambda limit: lambda row, tokens: messages.for_exam(cfg, row, tokens, limit),
    )


def source(cfg: Config) -> Source:
    """Clusters of documents, or given questions in the mode "given-questions"."""
    if options(cfg).mode == "given-questions":
        return Source(cfg.data.questions or "", "readings", cfg.data)
    assert cfg.data.clusters is not None  # Config has checked it
    return Source(cfg.data.clusters, "clusters", cfg.data)


def adopt(cfg: Config, memory: Memory, before: Config) -> Memory:
    """The memory, without its history if the card has other clusters, which may have the same ids."""
    return memory if cfg.data.clusters == before.data.clusters else {**memory, "history": {}}


GAME = Game(
    name="spell",
    options=SpellSection,
    source=source,
    roles=card_roles,
    play=play,
    remember=remember,
    start=lambda cfg: {"position": 0, "history": {}},  # a cluster's entry is created with its first question
    arrange=one_update_per_policy,
    exam=exam,
    check=check,
    adopt=adopt,
    data=("clusters", "questions"),
    batch=("spell.groups",),
    panels=(
        Panel("Held-out accuracy", ("/accuracy", "/numeric"), True, of_exams=True),
        Panel("Mean reward", ("questioner/reward", "responder/reward"), False),
        Panel("Valid questions, answers with a conclusion", ("questioner/valid", "responder/concluded"), True),
        Panel(
            "Difficulty (1 - share of right answers)", ("difficulty/qa", "difficulty/math", "difficulty/choice"), True
        ),
        Panel("Verifier: yes, disagreement with the rule", ("verifier/yes", "verifier/disagreement"), True),
        GRADIENT,
    ),
)
