"""Dr. Zero's roles: the proposer writes questions with answers about passages, the solver answers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scope_jax.config import Config
from scope_jax.games.dr_zero import messages, rules
from scope_jax.games.dr_zero.options import DrZeroSection, options
from scope_jax.games.dr_zero.state import PairProposal, Passage, QuestionPair, SolverAttempt
from scope_jax.grading.rewards import exact_match
from scope_jax.play import documents, searching
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent
from scope_jax.play.samples import Sample
from scope_jax.play.step import Step
from scope_jax.text import dialects

PROPOSER, SOLVER = "proposer", "solver"


def card_roles(cfg: Config) -> tuple[Role, ...]:
    """Proposer and solver, each with a policy of its own."""
    return proposer_role(cfg), solver_role(cfg)


def proposer_role(cfg: Config) -> Role:
    """It reads a passage, searches, and writes a question with its answer."""
    card = options(cfg).proposer
    return Role(
        PROPOSER,
        searching.with_searches(Agent.of_role(card, PROPOSER), "answer"),
        loss=card.loss,
        prompts=(messages.PROPOSER,),
        table="dr_zero.proposer",
    )


def solver_role(cfg: Config) -> Role:
    """It gets a question alone, searches, and answers it."""
    card = options(cfg).solver
    return Role(
        SOLVER,
        searching.with_searches(Agent.of_role(card, SOLVER), "answer"),
        loss=card.loss,
        prompts=(messages.SOLVER,),
        table="dr_zero.solver",
    )


# ------------------------------------------------------------------------------------------------------------ proposer
def draw_passages(step: Step[DrZeroSection], first: int, count: int) -> list[Passage]:
    """The passages from position `first` of the stream on, each with a number of hops by its position."""
    card = step.card
    shares = np.asarray(card.hops) / sum(card.hops)
    passages = []
    for place, row in enumerate(step.rows(first, count), start=first):
        hops = 1 + int(step.rng("dr_zero hops", place).choice(len(shares), p=shares))
        key, text = documents.document_of(row)
        passages.append(Passage(key, documents.cut(text, card.document_tokens, step.tools.tokens), hops))
    return passages


def propose(
    step: Step[DrZeroSection], passages: Sequence[Passage], *, samples: int, label: str = ""
) -> list[list[PairProposal]]:
    """`samples` proposals for each passage, not yet attempted. label: of their metrics."""
    prompts = [messages.for_proposer(step.cfg, passage) for passage in passages]
    groups = step.play(PROPOSER, prompts, samples=samples, label=label)
    return [
        [_proposal(step, passage, sample) for sample in group] for passage, group in zip(passages, groups, strict=True)
    ]


def _proposal(step: Step[DrZeroSection], passage: Passage, sample: Sample) -> PairProposal:
    written = rules.pair_of(sample, passage)
    score = rules.format_of(sample, passage, written, dialects.load(step.cfg.model.dialect))
    pair = replace(written, question=" ".join(written.question.split()[: step.card.question_words]))
    return PairProposal(sample, pair, score, searching.searches_run(step.cfg, sample))


# -------------------------------------------------------------------------------------------------------------- solver
def attempt(step: Step[DrZeroSection], proposals: Sequence[PairProposal], *, label: str) -> list[PairProposal]:
    """The proposals, those of a format score above 0 with n attempts. label: of the attempts' metrics."""
    well_formed = [place for place, proposal in enumerate(proposals) if proposal.format.total]
    pairs = [proposals[place].pair for place in well_formed]
    groups = answer(step, pairs, samples=step.card.attempts, whole=True, label=label)
    attempts = dict(zip(well_formed, groups, strict=True))
    return [replace(proposal, attempts=tuple(attempts.get(place, ()))) for place, proposal in enumerate(proposals)]


def answer(
    step: Step[DrZeroSection], pairs: Sequence[QuestionPair], *, samples: int, whole: bool = False, label: str = ""
) -> list[list[SolverAttempt]]:
    """`samples` attempts at each pair's question. whole: one without an answer tag answers with its whole last turn.
    label: of their metrics."""
    prompts = [messages.for_solver(step.cfg, pair.question) for pair in pairs]
    groups = step.play(SOLVER, prompts, samples=samples, label=label)
    return [
        [_attempt(step, pair, sample, whole) for sample in group] for pair, group in zip(pairs, groups, strict=True)
    ]


def _attempt(step: Step[DrZeroSection], pair: QuestionPair, sample: Sample, whole: bool) -> SolverAttempt:
    prediction = rules.answer_of(sample, whole=whole)
    right = prediction is not None and exact_match(prediction, [pair.answer])
    return SolverAttempt(pair, sample, prediction, right, searching.searches_run(step.cfg, sample))
