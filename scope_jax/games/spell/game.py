"""SPELL as a `Game`: its roles, Algorithm 1, the memory between steps, the exam of its responder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scope_jax.config import Config
from scope_jax.data.sources import Source
from scope_jax.errors import UserError
from scope_jax.games.spell import messages, roles, rules, state
from scope_jax.games.spell.options import SpellSection, check, options
from scope_jax.games.spell.roles import QUESTIONER, RESPONDER, VERIFIER, card_roles
from scope_jax.games.spell.state import AnswerGroup, History, QuestionDraft, Round, Selection, SpellOutcome
from scope_jax.grading.rewards import mean, means, shares
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play import exams
from scope_jax.play.exams import Exam
from scope_jax.play.game import GRADIENT, Game, Panel
from scope_jax.play.roles import one_update_per_policy
from scope_jax.play.step import Memory, Played, Step


def play(step: Step[SpellSection]) -> Played:
    """One step of Algorithm 1 up to the update: episodes of all roles, and what the next memory depends on.

    In the mode "rlvr" it draws given questions instead, and rewards are those of the rule (App. C.4). Pure: all
    randomness is derived from the seed and the position in the stream, or the step. Raises UserError if no cluster of
    the step suits a task of the card, or none fits into the responder's prompt.
    """
    card = step.card
    draw = given_round if card.mode == "rlvr" else question_round
    # l.1: the training loop initialised the policy from the base model, and reads `source`
    # l.2, l.3: the run began with an empty history memory
    # l.4, l.5: a step is one call; only the position in the stream and the history are carried over
    position = step.memory["position"]
    history = step.memory["history"]
    rounds: list[Round] = []
    # l.6: in rounds, until the step is full or the card's maximum is reached
    while len(rounds) < card.max_rounds and mixed(rounds) < card.groups:
        if rounds:
            step.tell(_before_a_round(card, rounds))
        # l.7 to l.19: clusters, questions, answers, judgments, rewards
        rounds.append(draw(step, position, history))
        # l.20, l.21: the next round remembers the solvable questions of this one
        history = state.push(card, history, rounds[-1].solvable)
        position += card.clusters_per_round
    # l.22 to l.24: everything is kept for the role-specific sampling
    proposals = [proposal for each in rounds for proposal in each.proposals]
    groups = [group for each in rounds for group in each.groups]
    solvable = [question for each in rounds for question in each.solvable]
    drawn = position - step.memory["position"]
    if card.mode == "self-play":
        _check_proposals(card, proposals, drawn)
    # l.25: role-specific dynamic sampling
    selection = rules.choose(step, proposals, groups)
    # l.26: the training loop trains on these episodes in one update
    return Played(
        episodes(step, proposals, groups, selection),
        outcome=SpellOutcome(drawn, tuple(solvable)),
        metrics=measure(step, proposals, groups, selection) | measure_draws(card, rounds, drawn),
    )


def question_round(step: Step[SpellSection], position: int, history: History) -> Round:
    """Plays each cluster of a round from `position` onwards once; all of them see the history before it."""
    card = step.card
    clusters = step.rows(position, card.clusters_per_round)
    # l.7, l.8: a cluster, its task and some of its documents
    orders = roles.draw_orders(step, history, clusters, position)
    # l.9, l.10: questions written from these documents and the history
    proposals = roles.ask(step, orders)
    # l.11 to l.14: mark those that can be answered without documents
    proposals = roles.filter_grounded(step, proposals)
    # l.15: G answers to each of the others, from all documents of the cluster
    groups = roles.respond(step, proposals)
    proposals = roles.reject_unread(proposals, groups)
    # l.16, l.17: G judgments of each answer
    groups = roles.verify(step, groups)
    # l.18, l.19: the questioner's rewards; those of answers are known, those of judgments follow from the votes
    proposals = roles.reward(card, proposals, groups)
    # l.20, l.21: the solvable questions, for the history
    order_of = {order.position: order for order in orders}
    solvable = [
        state.solvable(card, order_of[group.position], group.question)
        for group in groups
        if state.accepts(card, group.mean)
    ]
    return Round(proposals, groups, solvable)


def given_round(step: Step[SpellSection], position: int, history: History) -> Round:
    """The responder answers the given questions of a round, if their texts fit into its prompt."""
    rows = step.rows(position, step.card.clusters_per_round)
    readings = [roles.given_question(step.cfg, row, index) for index, row in enumerate(rows, position)]
    return Round((), roles.answer(step, readings), ())


def mixed(rounds: Sequence[Round]) -> int:
    """The number of questions so far with correct and wrong answers, which count for the step's N."""
    return sum(group.mixed for each in rounds for group in each.groups)


def remember(cfg: Config, memory: Memory, outcome: SpellOutcome, number: int) -> tuple[Memory, Metrics]:
    """l.7, l.21: the position in the stream after the clusters drawn, and the history with the solvable questions."""
    return {
        "position": memory["position"] + outcome.clusters,
        "history": state.push(options(cfg), memory["history"], outcome.solvable),
    }, {}


def _before_a_round(card: SpellSection, rounds: Sequence[Round]) -> str:
    """What the user is told before another round: how many clusters so far count, and why the others do not."""
    reasons = Counter(proposal.reason for each in rounds for proposal in each.proposals if proposal.reason)
    why = [f"{number} {reason}" for reason, number in reasons.most_common(2)]
    if alike := sum(not group.mixed for each in rounds for group in each.groups):
        why.append(f"{alike} answered alike, all rightly or all wrongly")
    return (
        f"round {len(rounds)} of at most {card.max_rounds}: of {len(rounds) * card.clusters_per_round} clusters "
        f"{mixed(rounds)} count, {card.groups} are wanted"
        + (f" ({', '.join(why)})" if why else "")
        + f"; {card.clusters_per_round} more are drawn."
    )


def _check_proposals(card: SpellSection, proposals: Sequence[QuestionDraft], clusters: int) -> None:
    """Raises UserError if the step's clusters gave the questioner, or the responder, nothing to read."""
    if not proposals:
        raise UserError(
            f"none of the {clusters} clusters drawn in this step is for a task with a share in spell.tasks; "
            "give their tasks a share, or set the tasks of their families in spell.families."
        )
    if all(proposal.reason == "documents_too_long" for proposal in proposals):
        raise UserError(
            f"the documents of none of the {len(proposals)} clusters drawn in this step fit into "
            f"spell.responder.max_prompt_tokens = {card.responder.max_prompt_tokens}; build clusters with "
            "fewer clusters.max_tokens, or raise it."
        )


# ------------------------------------------------------------------------------------------------------------ episodes
def episodes(
    step: Step[SpellSection],
    proposals: Sequence[QuestionDraft],
    groups: Sequence[AnswerGroup],
    selection: Selection,
) -> list[Episode]:
    """One episode per question of the questioner and per answer, and per judgment that was chosen for the verifier.

    The chosen episodes of a trained role are trained. All judgments of an answer are recorded with it.
    """
    train = step.card.train
    answered = {group.position: group for group in groups}
    asked = {proposal.order.position: proposal for proposal in proposals}
    played = []
    for position in sorted({*answered, *asked}):
        group = answered.get(position)
        if position in asked:
            learns = position in selection.questioner and QUESTIONER in train
            played.append(_question(asked[position], group, learns))
        if group is not None:
            learns = position in selection.responder and RESPONDER in train
            played += [_answer(group, number, learns) for number in range(len(group.responses))]
    for position, number in sorted(selection.verifier):
        played += _judgments(step.card, answered[position], number, VERIFIER in train)
    return played


def _question(proposal: QuestionDraft, group: AnswerGroup | None, trained: bool) -> Episode:
    order = proposal.order
    question = proposal.question
    return proposal.sample.episode(
        proposal.reward,
        parts={} if group is None else {"success": group.mean},
        text={
            "cluster": order.cluster["id"],
            "task": order.task,
            "documents": [document["id"] for document in order.documents],
            "remembered": len(order.history),
            "question": None if question is None else question.whole,
            "answer": None if question is None else question.answer,
            "rejected": proposal.reason,
            "without_documents": proposal.blind,
            "place": order.position,
        },
        group=f"{QUESTIONER}/{order.task}",
        trained=trained,
        judgements=proposal.judgements,
    )


def _answer(group: AnswerGroup, number: int, trained: bool) -> Episode:
    """Only the first answer of a group records the prompt, which holds all documents."""
    response = group.responses[number]
    return response.sample.episode(
        response.reward,
        parts={"rule": float(response.rule), "vote": float(response.vote)},
        text={
            "question": group.question.whole,
            "answer": group.question.answer,
            "prediction": response.answer,
            "verdicts": [each.verdict for each in response.verifications],
            "place": group.position,
        },
        trained=trained,
        judgements=(*response.judgements, *(each.judgement for each in response.verifications)),
        shows_prompt=number == 0,
    )


def _judgments(card: SpellSection, group: AnswerGroup, number: int, trained: bool) -> list[Episode]:
    response = group.responses[number]
    return [
        judgment.sample.episode(
            reward,
            parts={"malformed": float(judgment.verdict is None)},
            text={
                "verdict": judgment.verdict,
                "vote": response.vote,
                "rule": response.rule,
                "place": group.position,
            },
            trained=trained,
        )
        for judgment, reward in zip(response.verifications, rules.judgment_rewards(card, response), strict=True)
    ]


# ------------------------------------------------------------------------------------------------------------- metrics
def measure(
    step: Step[SpellSection],
    proposals: Sequence[QuestionDraft],
    groups: Sequence[AnswerGroup],
    selection: Selection,
) -> dict[str, float | None]:
    """What episodes and samples do not tell; a mean over no values is left out. `difficulty/<task>` is 1 − pass@1 of
    its questions. The verifier's values are about all judgments, not only those that were chosen."""
    card = step.card
    asked = [proposal for proposal in proposals if proposal.reason not in rules.UNPLAYED]
    responses = [response for group in groups for response in group.responses]
    judged = [response for response in responses if response.verifications]
    judgments = [judgment for response in judged for judgment in response.verifications]
    values = {
        "questioner/valid": [float(proposal.reason not in rules.MALFORMED) for proposal in asked],
        "questioner/documents": [float(len(proposal.order.documents)) for proposal in proposals],
        "questioner/remembered": [float(len(proposal.order.history)) for proposal in proposals],
        "responder/concluded": [float(response.answer is not None) for response in responses],
        "verifier/yes": [float(response.vote) for response in judged],
        "verifier/disagreement": [float(response.vote != response.rule) for response in judged],
        "verifier/conflicting": [float(rules.spread(rules.judgment_rewards(card, response))) for response in judged],
        "verifier/malformed": [float(judgment.verdict is None) for judgment in judgments],
    }
    for task in messages.TASKS:
        values[f"difficulty/{task}"] = [1.0 - group.mean for group in groups if group.task == task]
    return {
        **means(values),
        **shares("solvable/", [group.task for group in groups if group.mixed], messages.TASKS),
        "questioner/reward": mean([proposal.reward for proposal in asked]) if asked else None,
        "verifier/groups": float(len(selection.verifier)),
        "groups/mixed": float(sum(group.mixed for group in groups)),
        "groups/kept": float(len(selection.responder)),
        "groups/full": float(len(selection.responder) == card.groups),
        "questions/trained": float(len(selection.questioner)) if proposals else None,
    }


def measure_draws(card: SpellSection, rounds: Sequence[Round], drawn: int) -> dict[str, float]:
    """How much was drawn: rounds, questions, and in the mode "rlvr" the share of those that were too long."""
    counted = {"groups/rounds": float(len(rounds))}
    if card.mode == "rlvr":
        answered = sum(len(each.groups) for each in rounds)
        return counted | {
            "questions/asked": float(drawn),
            "responder/rejected_documents_too_long": 1.0 - answered / drawn,
        }
    return counted | {"questions/asked": float(sum(len(each.proposals) for each in rounds))}


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
    """Clusters of documents, or given questions in the mode "rlvr"."""
    if options(cfg).mode == "rlvr":
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
    batch="spell.groups",
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
