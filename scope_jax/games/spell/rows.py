"""The results of a step of SPELL: episodes for the learner, metrics."""

from __future__ import annotations

from collections.abc import Sequence

from scope_jax.config import Config
from scope_jax.games.spell import rules
from scope_jax.games.spell.instructions import TASKS
from scope_jax.games.spell.options import options
from scope_jax.games.spell.questioner import NOT_ASKED
from scope_jax.games.spell.records import Asked, Group
from scope_jax.games.spell.sampling import Chosen, judgment_rewards
from scope_jax.learner.types import Datum, Episode, Metrics, transcript
from scope_jax.play import grading, searching
from scope_jax.play.game import ACTOR
from scope_jax.play.rewards import mean, shares


def episodes(cfg: Config, asked: Sequence[Asked], groups: Sequence[Group], chosen: Chosen) -> list[Episode]:
    """One episode per question of the questioner and per answer, and per judgment that was chosen for the verifier.

    `trained` is True for the chosen episodes of a trained role. All judgments of an answer are recorded with it.
    """
    by_place = {group.place: group for group in groups}
    by_question = {one.order.place: one for one in asked}
    made = []
    for place in sorted({*by_place, *by_question}):
        group = by_place.get(place)
        if place in by_question:
            learns = place in chosen.questioner and "questioner" in options(cfg).train
            made.append(_question(cfg, by_question[place], group, learns))
        if group is not None:
            learns = place in chosen.responder and "responder" in options(cfg).train
            made += [_answer(cfg, group, number, learns) for number in range(len(group.responses))]
    learns = "verifier" in options(cfg).train
    for place, number in sorted(chosen.verifier):
        made += _judgments(cfg, by_place[place], number, learns)
    return made


def _question(cfg: Config, asked: Asked, group: Group | None, trained: bool) -> Episode:
    order, question = asked.order, asked.question
    return Episode(
        role="questioner",
        policy=ACTOR,
        group=f"questioner/{order.task}",
        datums=Datum.from_completion(asked.completion),
        reward=asked.reward,
        parts={} if group is None else {"success": group.mean},
        trained=trained,
        temperature=options(cfg).questioner.sampling.temperature,
        text={
            "prompt": asked.prompt.text,
            "turns": transcript(asked.completion),
            "cluster": order.cluster["id"],
            "task": order.task,
            "documents": [document["id"] for document in order.documents],
            "remembered": len(order.history),
            "question": None if question is None else question.whole,
            "answer": None if question is None else question.answer,
            "rejected": asked.reason,
            "without_documents": asked.blind,
            "place": order.place,
        },
        judgements=asked.judged,
    )


def _answer(cfg: Config, group: Group, number: int, trained: bool) -> Episode:
    """Only the first answer of a group records the prompt, which holds all documents."""
    response = group.responses[number]
    return Episode(
        role="responder",
        policy=ACTOR,
        group=f"responder/{group.place}",
        datums=Datum.from_completion(response.completion),
        reward=response.reward,
        parts={"rule": float(response.rule), "vote": float(response.vote)},
        trained=trained,
        temperature=options(cfg).responder.sampling.temperature,
        text={
            **({"prompt": group.prompt.text} if number == 0 else {}),
            "turns": transcript(response.completion),
            "question": group.question.whole,
            "answer": group.question.answer,
            "prediction": response.answer,
            "verdicts": [judged.verdict for judged in response.judgments],
            "place": group.place,
        },
        judgements=(*response.judged, *(judged.judgement for judged in response.judgments)),
    )


def _judgments(cfg: Config, group: Group, number: int, trained: bool) -> list[Episode]:
    response = group.responses[number]
    assert response.prompt is not None  # it was judged
    return [
        Episode(
            role="verifier",
            policy=ACTOR,
            group=f"verifier/{group.place} answer {number}",
            datums=Datum.from_completion(judged.completion),
            reward=reward,
            parts={"malformed": float(judged.verdict is None)},
            trained=trained,
            temperature=options(cfg).verifier.sampling.temperature,
            text={
                "prompt": response.prompt.text,
                "turns": transcript(judged.completion),
                "verdict": judged.verdict,
                "vote": response.vote,
                "rule": response.rule,
                "place": group.place,
            },
        )
        for judged, reward in zip(response.judgments, judgment_rewards(cfg, response), strict=True)
    ]


# -------------------------------------------------------------------------------------------------------------- metrics
def measure(
    cfg: Config,
    asked: Sequence[Asked],
    groups: Sequence[Group],
    chosen: Chosen,
    grades: Sequence[grading.Grades],
) -> Metrics:
    """The step's metrics; a mean over no values is left out. `difficulty/<task>` is 1 − pass@1 of its questions.

    grades: those of every call of the rule, whose requests are counted if an external judge takes its place.
    """
    responses = [response for group in groups for response in group.responses]
    judged = [response for response in responses if response.judgments]
    judgments = [j for response in judged for j in response.judgments]
    played = [one for one in asked if one.reason not in rules.UNPLAYED]
    mixed = [group for group in groups if group.mixed]
    values: dict[str, list[float]] = {
        "questioner/reward": [one.reward for one in played],
        "questioner/valid": [float(one.reason not in rules.MALFORMED) for one in played],
        "questioner/documents": [float(len(one.order.documents)) for one in asked],
        "questioner/remembered": [float(len(one.order.history)) for one in asked],
        "responder/reward": [response.reward for response in responses],
        "responder/rule": [float(response.rule) for response in responses],
        "responder/concluded": [float(response.answer is not None) for response in responses],
        "verifier/yes": [float(response.vote) for response in judged],
        "verifier/disagreement": [float(response.vote != response.rule) for response in judged],
        "verifier/conflicting": [float(rules.spread(judgment_rewards(cfg, response))) for response in judged],
        "verifier/malformed": [float(j.verdict is None) for j in judgments],
        **{f"difficulty/{task}": [1.0 - group.mean for group in groups if group.task == task] for task in TASKS},
        **searching.lengths("questioner", [one.completion for one in asked if one.completion is not NOT_ASKED]),
        **searching.lengths("responder", [response.completion for response in responses]),
        **searching.lengths("verifier", [j.completion for j in judgments]),
    }
    rejected = [one.reason for one in asked]
    found = shares("rejected/", rejected, rules.REASONS)
    if asked:
        found |= {"questions/asked": float(len(asked)), "questions/trained": float(len(chosen.questioner))}
    solvable = [group.task for group in mixed]
    counts = {
        "groups/mixed": float(len(mixed)),
        "groups/kept": float(len(chosen.responder)),
        "groups/full": float(len(chosen.responder) == options(cfg).groups),
        "verifier/groups": float(len(chosen.verifier)),
        **({f"solvable/{task}": solvable.count(task) / len(solvable) for task in TASKS} if solvable else {}),
    }
    requests = grading.counts(grades) if options(cfg).rule == "judge" else {}
    return {name: mean(numbers) for name, numbers in values.items() if numbers} | found | counts | requests
