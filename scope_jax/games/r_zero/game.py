"""R-Zero as a `Game`: the phases of an iteration, the memory between steps, the exam of its solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from scope_jax.config import Config
from scope_jax.games.r_zero import messages, roles, rules, state
from scope_jax.games.r_zero.options import RZeroSection, check, options
from scope_jax.games.r_zero.roles import card_roles, policy
from scope_jax.games.r_zero.state import CHALLENGER, POOL, ChallengerReply, Item, SolverAnswer
from scope_jax.grading.rewards import means, shares
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACCURACY, GRADIENT, REWARD, Game, Panel
from scope_jax.play.step import Memory, Played, Step
from scope_jax.play.votes import equal

BINS = ("0.2", "0.4", "0.6", "0.8", "1.0")  # of p, upper bounds


def play(step: Step[RZeroSection]) -> Played:
    """One step of the phase that the memory is in.

    Pure: all randomness is derived from the seed, the step, and for the solver's batches from their place in the run.
    """
    if step.memory["phase"] == CHALLENGER:
        played = train_challenger(step)
    elif step.memory["phase"] == POOL:
        played = write_pool(step)
    else:
        played = train_solver(step)
    return replace(played, metrics={**played.metrics, "iteration": float(step.memory["iteration"])})


def train_challenger(step: Step[RZeroSection]) -> Played:
    """Section 3.2: the challenger is trained against the frozen solver."""
    card = step.card
    # questions, in groups
    replies = roles.ask(step, card.challenger_batch, samples=card.challenger.samples)
    # m answers of the solver to each; their majority is the label, its share is p
    replies = roles.vote(step, replies, card.votes)
    # the repetition penalty: the share of the batch in a question's cluster
    replies = roles.cluster(step, replies)
    # max(0, 1 − 2 |p − ½| − penalty)
    episodes = challenger_episodes(step, replies)
    repetition = {"challenger/repetition": [reply.repetition for reply in replies]}
    return Played(episodes, metrics=question_metrics(step, replies) | means(repetition))


def write_pool(step: Step[RZeroSection]) -> Played:
    """Section 3.3: the frozen challenger writes questions; those of which the solver is unsure are kept, with their
    labels."""
    card = step.card
    # N questions
    replies = roles.ask(step, card.pool, sampling=card.pool_sampling, label=POOL)
    # m answers of the solver to each
    replies = roles.vote(step, replies, card.pool_votes)
    # |p − ½| ≤ δ
    kept = rules.keep(card, replies)
    if not kept:
        iteration = step.memory["iteration"]
        step.tell(f"iteration {iteration}: no question is kept (r_zero.window); the solver is not trained.")
    # recorded, not trained
    episodes = challenger_episodes(step, replies)
    sizes = {"pool/kept": float(len(kept)), "pool/yield": len(kept) / card.pool}
    return Played(episodes, outcome=kept, metrics=question_metrics(step, replies) | sizes)


def train_solver(step: Step[RZeroSection]) -> Played:
    """Section 3.4: the solver is trained on the kept questions."""
    items = roles.next_items(step)
    # answers in groups; 1 for the label
    answers = roles.answer(step, items)
    known = [(answer.text, answer.item["question"]) for answer in answers if rules.has_value(answer.item["question"])]
    right = {"solver/right": [float(each) for each in equal(step, known)]}
    return Played(solver_episodes(step, answers), metrics=means(right))


def remember(cfg: Config, memory: Memory, outcome: list[Item] | None, number: int) -> tuple[Memory, Metrics]:
    """The place after the step, with the kept questions until the solver's phase ends."""
    items = memory["items"] if outcome is None else outcome
    after = state.at_next_step(options(cfg), memory | {"place": memory["place"] + 1, "items": items})
    return after, {"skipped": float(after["skipped"])}


def challenger_episodes(step: Step[RZeroSection], replies: Sequence[ChallengerReply]) -> list[Episode]:
    """An episode for each reply, trained in the challenger's own phase."""
    episodes = []
    for reply in replies:
        voted = {"label": reply.label, "answers": list(reply.votes)} if reply.question else {}
        episode = reply.sample.episode(
            rules.challenger_reward(reply.share, reply.repetition, step.card),
            text={"question": reply.question or None, "share": reply.share, **voted},
            trained=step.memory["phase"] == CHALLENGER,
        )
        episodes.append(episode)
    return episodes


def solver_episodes(step: Step[RZeroSection], answers: Sequence[SolverAnswer]) -> list[Episode]:
    """An episode for each answer."""
    return [
        answer.sample.episode(
            rules.solver_reward(answer.agrees, answer.sample.text, step.card.format_weight),
            parts={"agrees": float(answer.agrees)},
            text={"question": answer.item["question"], "label": answer.item["label"], "prediction": answer.text},
        )
        for answer in answers
    ]


def question_metrics(step: Step[RZeroSection], replies: Sequence[ChallengerReply]) -> Metrics:
    """What episodes do not tell of the questions of a phase: how many are valid and distinct, the votes on them, and
    how often a label is the value of a question that has one."""
    phase = step.memory["phase"]
    valid = [reply for reply in replies if reply.question]
    agreement = [reply.share for reply in valid if reply.share is not None]
    right = equal(step, [(reply.label, reply.question) for reply in valid if rules.has_value(reply.question)])
    values = {
        f"{phase}/valid": [float(bool(reply.question)) for reply in replies],
        f"{phase}/unique": [len({reply.question for reply in valid}) / len(valid)] if valid else [],
        f"{phase}/answered": [float(vote is not None) for reply in valid for vote in reply.votes],
        f"{phase}/agreement": agreement,
        f"{phase}/label_right": [float(each) for each in right],
    }
    bins = [BINS[max(ceil(round(share * 5, 6)), 1) - 1] for share in agreement]
    return means(values) | shares(f"{phase}/agreement_", bins, BINS)


def new_reference(cfg: Config, memory: Memory) -> str | None:
    """The policy whose phase begins, if its weights are the reference of the KL term there."""
    if options(cfg).reference != "phase" or memory["place"] > 0 or memory["phase"] == POOL:
        return None
    return policy(cfg, memory["phase"])


def exam(cfg: Config) -> Exam:
    """Questions answered as in training."""
    return Exam(
        role=roles.solver_role(cfg),
        prompt=lambda row, tokens: messages.for_solver(cfg, row["question"]),
        read=roles.answer_of,
        measures=("accuracy",),
        accuracy=("same-text", "math"),
    )


GAME = Game(
    name="r_zero",
    title="R-Zero",
    options=RZeroSection,
    roles=card_roles,
    play=play,
    remember=remember,
    start=lambda cfg: state.start(options(cfg)),
    exam=exam,
    check=check,
    iterations=lambda cfg, memory: memory["iteration"] - 1,
    waits=lambda cfg, memory: memory["place"] == 0,  # a phase samples what the one before has trained
    new_reference=new_reference,
    batch=("r_zero.challenger_batch", "r_zero.solver_batch"),
    panels=(
        ACCURACY,
        Panel("Questions: valid, distinct, kept, right labels", ("/valid", "/unique", "/yield", "/label_right"), True),
        Panel("Share of the majority", ("/agreement",), True),
        REWARD,
        GRADIENT,
    ),
)
