"""SPELL as a `Game`: Algorithm 1, the learner's update, episodes, metrics, the exam of its responder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from scope_jax.config import Config, JudgeSection
from scope_jax.data.sources import Source
from scope_jax.errors import UserError
from scope_jax.games.spell import messages, roles, rules
from scope_jax.games.spell.options import SpellSection, check, options
from scope_jax.games.spell.state import AnswerGroup, History, QuestionDraft, Round, Selection, accepts, push
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import exams, grading, metric_names, searching
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACTOR, GRADIENT, Game, Memory, Panel
from scope_jax.play.rewards import means, parts_of, shares
from scope_jax.play.tools import Tools
from scope_jax.text import templates


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step of Algorithm 1 up to the update: episodes of all roles, the memory after it, metrics.

    In the mode "rlvr" it draws given questions instead, and rewards are those of the rule (App. C.4). Pure: all
    randomness is derived from the seed and the position in the stream, or the step, and `memory` is not modified.
    Raises UserError if no cluster of the step suits a task of the card, or none fits into the responder's prompt.
    """
    card = options(cfg)
    draw = given_round if card.mode == "rlvr" else question_round
    # l.1: the training loop initialised the policy from the base model, and reads `source`
    # l.2, l.3: the run began with the memory returned by `start`
    # l.4, l.5: a step is one call; only the position in the stream and the history are carried over
    position, history = memory["position"], memory["history"]
    rounds: list[Round] = []
    groups: list[AnswerGroup] = []
    # l.6: in rounds, until the step is full or the card's maximum is reached
    while len(rounds) < card.max_rounds and sum(group.mixed for group in groups) < card.groups:
        if rounds:
            tools.tell(_before_a_round(cfg, rounds, groups))
        rounds.append(draw(cfg, tools, position, history))
        groups, history = groups + rounds[-1].groups, rounds[-1].history
        position += card.clusters_per_round
    drawn = position - memory["position"]
    proposals = [proposal for each in rounds for proposal in each.proposals]
    if card.mode == "self-play":
        _check_proposals(cfg, proposals, drawn)
    # l.25: role-specific dynamic sampling
    selection = rules.choose(cfg, proposals, groups, step)
    played = episodes(cfg, proposals, groups, selection)
    # l.26: the training loop calls `updates` and trains on these episodes
    grades = [calls for each in rounds for calls in each.grades]
    values = measure(cfg, played, proposals, groups, selection, grades) | {"groups/rounds": float(len(rounds))}
    if card.mode == "rlvr":
        values |= {"questions/asked": float(drawn), "responder/rejected_documents_too_long": 1.0 - len(groups) / drawn}
    # l.27: the training loop calls `finished`
    return played, {"position": position, "history": history}, values


def question_round(cfg: Config, tools: Tools, position: int, history: History) -> Round:
    """Plays each cluster of a round from `position` onwards once; all of them see the history before it."""
    clusters = tools.rows(position, options(cfg).clusters_per_round)
    # l.7, l.8: a cluster, its task and some of its documents
    orders = roles.draw_orders(cfg, history, clusters, position)
    # l.9, l.10: questions written from these documents and the history
    proposals = roles.ask(cfg, tools, orders)
    # l.11 to l.13: mark those that can be answered without documents
    proposals, blind = roles.filter_grounded(cfg, tools, proposals)
    # l.14, l.15: G answers to each of the others, from all documents of the cluster
    groups, proposals, informed = roles.respond(cfg, tools, proposals)
    # l.16, l.17: G judgments of each answer
    groups = roles.verify(cfg, tools, groups)
    # l.18, l.19: the questioner's rewards; those of answers and judgments are already known
    proposals = roles.reward(cfg, proposals, groups)
    # l.20, l.21: add solvable questions to the history
    after, by_position = dict(history), {order.position: order for order in orders}
    for group in groups:
        if accepts(cfg, group.mean):
            push(cfg, after, by_position[group.position], group.question)
    # l.22 to l.24: keep everything for the role-specific sampling
    return Round(proposals, groups, [blind, informed], after)


def given_round(cfg: Config, tools: Tools, position: int, history: History) -> Round:
    """The responder answers the given questions of a round, if their texts fit into its prompt."""
    rows = tools.rows(position, options(cfg).clusters_per_round)
    readings = [roles.given_question(cfg, row, index) for index, row in enumerate(rows, position)]
    groups, grades = roles.answer(cfg, tools, readings)
    return Round([], groups, [grades], history)


def _before_a_round(cfg: Config, rounds: Sequence[Round], groups: Sequence[AnswerGroup]) -> str:
    """What the user is told before another round: how many clusters so far count, and why the others do not."""
    drawn, proposals = len(rounds) * options(cfg).clusters_per_round, [one for each in rounds for one in each.proposals]
    why = Counter(proposal.reason for proposal in proposals if proposal.reason).most_common(2)
    reasons = [f"{number} {reason}" for reason, number in why]
    if alike := sum(not group.mixed for group in groups):
        reasons.append(f"{alike} answered alike, all rightly or all wrongly")
    return (
        f"round {len(rounds)} of at most {options(cfg).max_rounds}: of {drawn} clusters "
        f"{sum(group.mixed for group in groups)} count, {options(cfg).groups} are wanted"
        + (f" ({', '.join(reasons)})" if reasons else "")
        + f"; {options(cfg).clusters_per_round} more are drawn."
    )


def _check_proposals(cfg: Config, proposals: Sequence[QuestionDraft], clusters: int) -> None:
    """Raises UserError if the step's clusters gave the questioner, or the responder, nothing to read."""
    if not proposals:
        raise UserError(
            f"none of the {clusters} clusters drawn in this step is for a task with a share in spell.tasks; "
            "give their tasks a share, or set the tasks of their families in spell.families."
        )
    if all(proposal.reason == "documents_too_long" for proposal in proposals):
        raise UserError(
            f"the documents of none of the {len(proposals)} clusters drawn in this step fit into "
            f"spell.responder.max_prompt_tokens = {options(cfg).responder.max_prompt_tokens}; build clusters with "
            "fewer clusters.max_tokens, or raise it."
        )


def updates(cfg: Config) -> tuple[Update, ...]:
    """Alg. 1 l.26: one update of the trained roles; advantages over the batch for the questioner, Eq. (9), and within
    groups for the others, Eq. (8)."""
    overrides = {"questioner": options(cfg).questioner_advantage}
    trained = tuple(RoleShare(role, overrides.get(role)) for role in options(cfg).train)
    return (Update(ACTOR, options(cfg).loss, trained),)


def episodes(
    cfg: Config, proposals: Sequence[QuestionDraft], groups: Sequence[AnswerGroup], selection: Selection
) -> list[Episode]:
    """One episode per question of the questioner and per answer, and per judgment that was chosen for the verifier.

    `trained` is True for the chosen episodes of a trained role. All judgments of an answer are recorded with it.
    """
    trained = options(cfg).train
    answered = {group.position: group for group in groups}
    asked = {proposal.order.position: proposal for proposal in proposals}
    played = []
    for position in sorted({*answered, *asked}):
        group = answered.get(position)
        if position in asked:
            learns = position in selection.questioner and "questioner" in trained
            played.append(_question(cfg, asked[position], group, learns))
        if group is not None:
            learns = position in selection.responder and "responder" in trained
            played += [_answer(cfg, group, number, learns) for number in range(len(group.responses))]
    for position, number in sorted(selection.verifier):
        played += _judgments(cfg, answered[position], number, "verifier" in trained)
    return played


def _question(cfg: Config, proposal: QuestionDraft, group: AnswerGroup | None, trained: bool) -> Episode:
    order, question = proposal.order, proposal.question
    return Episode.from_completion(
        proposal.completion,
        proposal.prompt,
        {
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
        role="questioner",
        policy=ACTOR,
        group=f"questioner/{order.task}",
        reward=proposal.reward,
        parts={} if group is None else {"success": group.mean},
        trained=trained,
        temperature=options(cfg).questioner.sampling.temperature,
        judgements=proposal.judgements,
    )


def _answer(cfg: Config, group: AnswerGroup, number: int, trained: bool) -> Episode:
    """Only the first answer of a group records the prompt, which holds all documents."""
    response = group.responses[number]
    return Episode.from_completion(
        response.completion,
        group.prompt if number == 0 else None,
        {
            "question": group.question.whole,
            "answer": group.question.answer,
            "prediction": response.answer,
            "verdicts": [each.verdict for each in response.verifications],
            "place": group.position,
        },
        role="responder",
        policy=ACTOR,
        group=f"responder/{group.position}",
        reward=response.reward,
        parts={"rule": float(response.rule), "vote": float(response.vote)},
        trained=trained,
        temperature=options(cfg).responder.sampling.temperature,
        judgements=(*response.judgements, *(each.judgement for each in response.verifications)),
    )


def _judgments(cfg: Config, group: AnswerGroup, number: int, trained: bool) -> list[Episode]:
    response = group.responses[number]
    assert response.prompt is not None  # it was judged
    return [
        Episode.from_completion(
            judged.completion,
            response.prompt,
            {
                "verdict": judged.verdict,
                "vote": response.vote,
                "rule": response.rule,
                "place": group.position,
            },
            role="verifier",
            policy=ACTOR,
            group=f"verifier/{group.position} answer {number}",
            reward=reward,
            parts={"malformed": float(judged.verdict is None)},
            trained=trained,
            temperature=options(cfg).verifier.sampling.temperature,
        )
        for judged, reward in zip(response.verifications, rules.judgment_rewards(cfg, response), strict=True)
    ]


def measure(
    cfg: Config,
    played: Sequence[Episode],
    proposals: Sequence[QuestionDraft],
    groups: Sequence[AnswerGroup],
    selection: Selection,
    grades: Sequence[grading.Grades],
) -> Metrics:
    """The step's metrics; a mean over no values is left out. `difficulty/<task>` is 1 − pass@1 of its questions.

    grades: those of every call of the rule, whose requests are counted if an external judge takes its place.
    """
    asked = [proposal for proposal in proposals if proposal.reason not in rules.UNPLAYED]
    responses = [response for group in groups for response in group.responses]
    judged = [response for response in responses if response.verifications]
    judgments = [judgment for response in judged for judgment in response.verifications]
    values: dict[str, list[float]] = {
        "questioner/reward": [proposal.reward for proposal in asked],
        "questioner/valid": [float(proposal.reason not in rules.MALFORMED) for proposal in asked],
        "questioner/documents": [float(len(proposal.order.documents)) for proposal in proposals],
        "questioner/remembered": [float(len(proposal.order.history)) for proposal in proposals],
        **parts_of("responder", played, "rule"),
        "responder/concluded": [float(response.answer is not None) for response in responses],
        "verifier/yes": [float(response.vote) for response in judged],
        "verifier/disagreement": [float(response.vote != response.rule) for response in judged],
        "verifier/conflicting": [float(rules.spread(rules.judgment_rewards(cfg, response))) for response in judged],
        "verifier/malformed": [float(judgment.verdict is None) for judgment in judgments],
        **{f"difficulty/{task}": [1.0 - g.mean for g in groups if g.task == task] for task in messages.TASKS},
        **searching.lengths("questioner", [proposal.completion for proposal in proposals if proposal.sampled]),
        **searching.lengths("responder", [response.completion for response in responses]),
        **searching.lengths("verifier", [judgment.completion for judgment in judgments]),
    }
    rejected = [proposal.reason for proposal in proposals]
    counts = {"questions/asked": float(len(proposals)), "questions/trained": float(len(selection.questioner))}
    solvable = [group.task for group in groups if group.mixed]
    return (
        means(values)
        | shares("questioner/rejected_", rejected, rules.REASONS)
        | (counts if proposals else {})
        | {
            "groups/mixed": float(len(solvable)),
            "groups/kept": float(len(selection.responder)),
            "groups/full": float(len(selection.responder) == options(cfg).groups),
            "verifier/groups": float(len(selection.verifier)),
        }
        | shares("solvable/", solvable, messages.TASKS)
        | (grading.counts(grades) if options(cfg).rule == "judge" else {})
    )


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    usual = f"reward {metric_names.LENGTHS}"
    yield from metric_names.of(
        {
            "questioner": f"{usual} valid documents remembered {metric_names.rejections(rules.REASONS)}",
            "responder": f"{usual} rule concluded rejected_documents_too_long",
            "verifier": f"yes disagreement conflicting malformed groups {metric_names.LENGTHS}",
            "difficulty": "qa math choice",
            "solvable": "qa math choice",
            "questions": "asked trained",
            "groups": "mixed kept full rounds",
            "judge": metric_names.JUDGE,
        }
    )


def exam(cfg: Config) -> Exam:
    """Rows with a long context, whose middle is cut out if the prompt is too long; `exams.document_accuracy`."""
    accuracy, by_task = exams.document_accuracy(cfg)
    return Exam(
        policy=ACTOR,
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


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """The external judge, if the card uses it in place of the rule."""
    return {"judge": cfg.judge} if cfg.judge is not None and options(cfg).rule == "judge" else {}


def source(cfg: Config) -> Source:
    """Clusters of documents, or given questions in the mode "rlvr"."""
    if options(cfg).mode == "rlvr":
        return Source(cfg.data.questions or "", "readings", cfg.data)
    assert cfg.data.clusters is not None  # Config has checked it
    return Source(cfg.data.clusters, "clusters", cfg.data)


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """System message files of the roles that have one."""
    return templates.system_files(options(cfg).prompts, messages.ROLES)


def adopt(cfg: Config, memory: Memory, before: Config) -> Memory:
    """The memory, without its history if the card has other clusters, which may have the same ids."""
    return memory if cfg.data.clusters == before.data.clusters else {**memory, "history": {}}


GAME = Game(
    name="spell",
    options=SpellSection,
    source=source,
    play=play,
    updates=updates,
    exam=exam,
    check=check,
    judges=judges,
    system_messages=system_messages,
    check_prompts=messages.check_prompts,
    start=lambda cfg: {"position": 0, "history": {}},  # a cluster's entry is created with its first question
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
    metrics=metrics,
)
