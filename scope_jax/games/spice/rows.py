"""The results of a step of SPICE: episodes for the learner, metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scope_jax.config import Config
from scope_jax.games.spice import challenger, rules
from scope_jax.games.spice.options import options
from scope_jax.games.spice.records import MULTIPLE_CHOICE, REASONS, Attempt, StageReply, Tried
from scope_jax.learner.types import Datum, Episode, Metrics, transcript
from scope_jax.play import searching
from scope_jax.play.game import ACTOR
from scope_jax.play.rewards import means, shares
from scope_jax.text.parsing import shorten

SHOWN = 2_000  # characters of a prompt with a document, as recorded in episodes.jsonl
Key = tuple[int, int]  # index of the document, number of the attempt


def key_of(attempt: Attempt) -> Key:
    return attempt.document.place, attempt.number


def of_challenger(cfg: Config, kept: Sequence[Sequence[Attempt]], rates: Mapping[Key, float]) -> list[Episode]:
    """One episode per attempt of T_C: r_C by the pass rate of its task, ρ if it is invalid (Eq. (1)).

    A valid attempt whose task was not answered has no episode; this occurs only if the challenger is not trained.
    """
    made = []
    for attempt in (one for attempts in kept for one in attempts):
        rate = rates.get(key_of(attempt))
        if attempt.valid and rate is None:
            continue
        reward = options(cfg).invalid_reward
        if rate is not None:
            reward = rules.reward(options(cfg).challenger_reward, rate, options(cfg).reward_width)
        made.append(_attempt(cfg, attempt, reward, rate))
    return made


def _attempt(cfg: Config, attempt: Attempt, reward: float, rate: float | None) -> Episode:
    stages = ("format", "task") if options(cfg).train_stages == "both" else (options(cfg).train_stages,)
    sampled = [reply.completion for reply in attempt.replies if reply.stage in stages and reply.completion is not None]
    return Episode(
        role="challenger",
        policy=challenger.policy_of(cfg),
        group=f"challenger/{attempt.document.place}",
        datums=tuple(datum for completion in sampled for datum in Datum.from_completion(completion)),
        reward=reward,
        parts={"valid": float(attempt.valid)} | ({} if rate is None else {"pass_rate": rate}),
        trained=challenger.learns(cfg),
        temperature=options(cfg).challenger.sampling.temperature,
        text={
            "prompt": shorten(attempt.replies[0].prompt.text, SHOWN),
            "turns": [turn for reply in attempt.replies for turn in _turns(reply, reply is attempt.replies[0])],
            "document": attempt.document.key,
            "attempt": attempt.number,
            "kind": attempt.task.kind if attempt.task else None,
            "question": attempt.task.question if attempt.task else None,
            "answer": attempt.task.answer if attempt.task else None,
            "rejected": attempt.reason,
        },
    )


def _turns(reply: StageReply, first: bool) -> list[dict[str, str]]:
    """The turns of a stage for the episode record; the second stage's prompt precedes it as an observation."""
    prompt = [] if first else [{"kind": "observation", "text": shorten(reply.prompt.text, SHOWN)}]
    if reply.completion is None:
        return [*prompt, {"kind": "sampled", "text": reply.text}]
    return prompt + transcript(reply.completion)


def of_reasoner(cfg: Config, tried: Sequence[Tried], trained: bool) -> list[Episode]:
    """One episode per answer: r_R = 1[â = a*]."""
    made = []
    for group in tried:
        for completion, prediction, right in zip(group.completions, group.predictions, group.correct, strict=True):
            made.append(
                Episode(
                    role="reasoner",
                    policy=ACTOR,
                    group=f"reasoner/{group.name}",
                    datums=Datum.from_completion(completion),
                    reward=float(right),
                    parts={"correct": float(right), "answered": float(prediction is not None)},
                    trained=trained,
                    temperature=options(cfg).reasoner.sampling.temperature,
                    text={
                        "prompt": group.prompt.text,
                        "turns": transcript(completion),
                        "kind": group.task.kind,
                        "answer": group.task.answer,
                        "prediction": prediction,
                        "document": group.attempt.document.key,
                        "attempt": group.attempt.number,
                    },
                )
            )
    return made


# ------------------------------------------------------------------------------------------------------------- metrics
def measure(
    cfg: Config,
    made: Sequence[Sequence[Attempt]],
    posed: Sequence[Episode],
    tried: Sequence[Tried],
    learned: Sequence[Tried],
) -> Metrics:
    """The step's metrics; a mean over no values is left out.

    made: all attempts by document; posed: the challenger's episodes; tried: the tasks of T_C with their answers;
    learned: the tasks the reasoner is trained on.
    """
    attempts = [one for group in made for one in group]
    sampled = [reply.completion for one in attempts for reply in one.replies if reply.completion is not None]
    groups = {group.name: group for group in (*tried, *learned)}.values()
    answers = [completion for group in groups for completion in group.completions]
    values: dict[str, list[float]] = {
        "challenger/valid": [float(one.valid) for one in attempts],
        "challenger/attempts": [float(len(group)) for group in made],
        "challenger/documents": [float(any(one.valid for one in group)) for group in made],
        "challenger/reward": [episode.reward for episode in posed],
        "challenger/pass_rate": [group.pass_rate for group in tried],
        "reasoner/reward": [float(right) for group in learned for right in group.correct],
        "reasoner/answered": [float(prediction is not None) for group in learned for prediction in group.predictions],
        "reasoner/no_spread": [float(group.pass_rate in (0.0, 1.0)) for group in learned],
        **searching.lengths("challenger", sampled),
        **searching.lengths("reasoner", answers),
    }
    kinds = [one.task.kind for one in attempts if one.task is not None]
    for kind in (MULTIPLE_CHOICE, *options(cfg).answer_types):
        values[f"kinds/{kind.replace('-', '_')}"] = [float(other == kind) for other in kinds]
    reasons = [one.reason for one in attempts]
    return means(values) | shares("rejected/", reasons, REASONS)
