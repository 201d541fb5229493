"""R-Zero's roles: the challenger writes questions, the solver votes on them and answers those that were kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from scope_jax.config import Config, SamplingSection
from scope_jax.data.keys import drawn
from scope_jax.games.r_zero import messages
from scope_jax.games.r_zero.options import RZeroSection, options
from scope_jax.games.r_zero.state import CHALLENGER, SOLVER, ChallengerReply, Item, SolverAnswer
from scope_jax.grading.repetition import cluster_shares
from scope_jax.play import searching
from scope_jax.play.game import ACTOR
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent
from scope_jax.play.samples import Sample
from scope_jax.play.step import Step
from scope_jax.play.votes import equal, majorities
from scope_jax.rollouts.types import Completion
from scope_jax.text import parsing

VOTER = "voter"  # key of the solver's votes


def card_roles(cfg: Config) -> tuple[Role, ...]:
    """Challenger and solver; a step trains one of them, or in the phase of the pool none."""
    return challenger_role(cfg), solver_role(cfg)


def challenger_role(cfg: Config) -> Role:
    """It writes questions."""
    card = options(cfg)
    return Role(
        CHALLENGER,
        Agent.of_role(card.challenger, policy(cfg, CHALLENGER)),
        loss=card.challenger.loss,
        prompts=(messages.CHALLENGER,),
        table="r_zero.challenger",
    )


def solver_role(cfg: Config) -> Role:
    """It answers questions."""
    card = options(cfg)
    return Role(
        SOLVER,
        Agent.of_role(card.solver, policy(cfg, SOLVER)),
        loss=card.solver.loss,
        prompts=(messages.SOLVER,),
        table="r_zero.solver",
    )


def policy(cfg: Config, role: str) -> str:
    """The policy that plays a role."""
    return ACTOR if options(cfg).policies == "shared" else role


# ---------------------------------------------------------------------------------------------------------- challenger
def ask(
    step: Step[RZeroSection],
    prompts: int,
    *,
    samples: int = 1,
    sampling: SamplingSection | None = None,
    label: str = "",
) -> list[ChallengerReply]:
    """x ~ the challenger: `samples` replies to each of equal prompts, with their questions; not yet voted on.

    sampling and label: as in `Step.play`.
    """
    message = messages.for_challenger(step.cfg)
    groups = step.play(CHALLENGER, [message] * prompts, samples=samples, sampling=sampling, label=label)
    return [ChallengerReply(sample, _question_of(step, sample)) for group in groups for sample in group]


def _question_of(step: Step[RZeroSection], sample: Sample) -> str:
    """The last `<question>` of a reply; "" without one, or if the solver's prompt does not hold it."""
    question = parsing.last(searching.contents(sample), "question")
    if not question:
        return ""
    limit = min(step.card.solver.max_prompt_tokens, step.cfg.rollout.max_length - 1)
    return question if step.tools.prompt_tokens(messages.for_solver(step.cfg, question)) <= limit else ""


def cluster(step: Step[RZeroSection], replies: Sequence[ChallengerReply]) -> list[ChallengerReply]:
    """The replies with their repetition: the share of them that is in the cluster of each."""
    questions = [reply.question for reply in replies]
    shares = step.tools.once("clusters", lambda: cluster_shares(questions, step.card.repetition_distance))
    return [replace(reply, repetition=share) for reply, share in zip(replies, shares, strict=True)]


# -------------------------------------------------------------------------------------------------------------- solver
def vote(step: Step[RZeroSection], replies: Sequence[ChallengerReply], samples: int) -> list[ChallengerReply]:
    """The replies with the solver's votes: what most of them agree on is the label, and their share is p."""
    places = [place for place, reply in enumerate(replies) if reply.question]
    prompts = [messages.for_solver(step.cfg, replies[place].question) for place in places]
    groups = step.play(SOLVER, prompts, samples=samples, sampling=step.card.vote_sampling, key=VOTER)
    votes = [tuple(answer_of(sample) for sample in group) for group in groups]
    labels = majorities(votes, partial(equal, step), step.card.unanswered_agree)
    voted_on = list(replies)
    for place, answers, (label, share) in zip(places, votes, labels, strict=True):
        voted_on[place] = replace(replies[place], votes=answers, label=label, share=share)
    return voted_on


def next_items(step: Step[RZeroSection]) -> list[Item]:
    """The next kept questions, each once before any comes again; every epoch has an order of its own."""
    items = step.memory["items"]
    size = min(step.card.solver_batch, len(items))
    first = step.memory["place"] * size
    order: list[Item] = []
    for epoch in range((first + size - 1) // len(items) + 1):
        order += drawn(items, len(items), step.rng("r_zero kept", step.memory["iteration"], epoch))
    return order[first : first + size]


def answer(step: Step[RZeroSection], items: Sequence[Item]) -> list[SolverAnswer]:
    """`solver.samples` answers to each question, and whether they are its label."""
    prompts = [messages.for_solver(step.cfg, item["question"]) for item in items]
    groups = step.play(SOLVER, prompts, samples=step.card.solver.samples)
    answers = [
        SolverAnswer(item, sample, answer_of(sample))
        for item, group in zip(items, groups, strict=True)
        for sample in group
    ]
    agree = equal(step, [(one.text, one.item["label"]) for one in answers])
    return [replace(one, agrees=agrees) for one, agrees in zip(answers, agree, strict=True)]


def answer_of(completion: Completion) -> str | None:
    """The content of the last box of an answer; None if there is none."""
    return parsing.boxed(completion.content)
