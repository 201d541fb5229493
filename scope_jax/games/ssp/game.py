"""SSP as a `Game`: its roles, Algorithm 1, the memory between steps, the exam of its solver."""

from __future__ import annotations

from collections.abc import Sequence

from scope_jax.config import Config, GradingRule, Measure
from scope_jax.games.ssp import messages, roles, state
from scope_jax.games.ssp.options import SSPSection, check, options
from scope_jax.games.ssp.roles import PROPOSER, SOLVER, card_roles
from scope_jax.games.ssp.state import Entry, Problem, ProblemAttempt, Proposal
from scope_jax.grading.rewards import mean, means
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACCURACY, GRADIENT, REWARD, Game, Panel, Starter
from scope_jax.play.step import Memory, Played, Step


def play(step: Step[SSPSection]) -> Played:
    """One step of Algorithm 1 up to the updates: episodes of both roles, and the questions that the pool may reuse.

    Pure: all randomness is derived from (seed, step, position in the batch).
    """
    # l.1: a step is one call
    # l.2: the batch of answers, with one slot per question to be written
    slots = roles.open_slots(step)
    proposals: list[Proposal] = []
    failed = slots
    for attempt in range(roles.max_proposals(step.card)):
        # l.3: a question for each answer (when resampling, for each slot that has failed so far)
        fresh = roles.propose(step, failed, attempt)
        # l.4: the format rules and the RAG constraint
        fresh = roles.apply_rules(step, fresh)
        fresh = roles.verify(step, fresh, proposals)
        proposals += fresh
        failed = [proposal.slot for proposal in fresh if proposal.reason]
        if not failed:
            break
    # l.5: the valid questions; slots without one are filled from the pool or with dummies
    problems = roles.fill_slots(step, proposals)
    # l.6: n attempts at each
    attempts = roles.solve(step, problems)
    # l.7: the solver's rewards
    attempts = roles.grade_solver(step, attempts)
    # l.8: the proposer's rewards
    proposals = roles.reward_proposer(step.card, proposals, attempts)
    # l.10, l.11: the training loop trains on these episodes, in the order of the roles
    episodes = solver_episodes(step, attempts) + proposer_episodes(step, proposals)
    # App. B.1: the questions for the pool
    entries = state.new_entries(step.card, problems)
    return Played(episodes, outcome=entries, metrics=measure(step.card, proposals, problems))


def remember(cfg: Config, memory: Memory, outcome: list[Entry], number: int) -> tuple[Memory, Metrics]:
    """The pool with the step's valid questions, or emptied at the end of a period (App. B.1)."""
    pool = state.after_step(options(cfg), memory["pool"], outcome, number)
    return {"pool": pool}, {"pool/size": float(len(pool))}


def solver_episodes(step: Step[SSPSection], attempts: Sequence[ProblemAttempt]) -> list[Episode]:
    """An episode for each attempt, with reward r_solve.

    A dummy pads the solver's batch: it has no gradient (App. B.1), but counts in the B of Eq. (4).
    """
    learns = step.roles[SOLVER].learns and step.number >= step.card.proposer_warmup_steps
    episodes = []
    for attempt in attempts:
        problem = attempt.problem
        dummy = problem.origin == "dummy"
        episode = attempt.sample.episode(
            attempt.reward,
            parts={"correct": attempt.reward, "format": float(attempt.keeps_format)},
            text={
                "question": problem.question,
                "answer": problem.golds[0] if problem.golds else None,
                "prediction": attempt.prediction,
                "slot": problem.slot,
                "origin": problem.origin,
            },
            trained=learns and not dummy,
            padding=learns and dummy,
            judgements=attempt.judgements,
        )
        episodes.append(episode)
    return episodes


def proposer_episodes(step: Step[SSPSection], proposals: Sequence[Proposal]) -> list[Episode]:
    """An episode for each proposal. Only the last one of a slot is trained, since it replaced the earlier ones."""
    episodes = []
    for proposal in proposals:
        slot = proposal.slot
        parts = {"valid": float(not proposal.reason)}
        if proposal.solver_mean is not None:
            parts["solver_mean"] = proposal.solver_mean
        episode = proposal.sample.episode(
            proposal.reward,
            parts=parts,
            text={
                "question": proposal.question,
                "answer": slot.golds[0],
                "searches_asked": slot.searches,
                "rejected": proposal.reason,
                "verification": proposal.reply,
                "slot": slot.index,
                "attempt": proposal.attempt,
            },
            group=f"{PROPOSER}/{slot.item}",
            trained=step.roles[PROPOSER].learns and roles.is_last(step.card, proposal),
            judgements=proposal.judgements,
        )
        episodes.append(episode)
    return episodes


def measure(card: SSPSection, proposals: Sequence[Proposal], problems: Sequence[Problem]) -> Metrics:
    """What episodes and samples do not tell: what fills the slots, and the proposer's reward for a slot, however many
    proposals it took."""
    verdicts = [p.reason for p in proposals if not p.reason or p.reason.startswith("verify_")]
    last = roles.last_of_slots(card, proposals)
    origins = [problem.origin for problem in problems]
    fresh, replayed = origins.count("fresh"), origins.count("replay")
    return means({"verify/passed": [float(not reason) for reason in verdicts]}) | {
        "proposer/reward": mean([proposal.reward for proposal in last]),
        "proposer/episodes": float(len(proposals)),
        "slots/fresh": fresh / len(last),
        "slots/replay": replayed / len(last),
        "slots/dummy": 1 - (fresh + replayed) / len(last),
    }


def exam(cfg: Config) -> Exam:
    """Questions answered and graded as in training, except that the only format requirement is an `<answer>`."""
    accuracy: dict[GradingRule, tuple[Measure, ...]] = {
        "exact-match": ("exact-match",),
        "judge": ("judge",),
        "exact-match-then-judge": ("exact-match", "judge"),
    }
    return Exam(
        role=roles.solver_role(cfg),
        prompt=lambda row, tokens: messages.for_solver(cfg, row["question"]),
        read=roles.prediction_of,
        measures=("accuracy",),
        accuracy=accuracy[options(cfg).grader],
        prompts=options(cfg).prompts,
    )


GAME = Game(
    name="ssp",
    options=SSPSection,
    roles=card_roles,
    play=play,
    remember=remember,
    start=lambda cfg: {"pool": []},
    ahead=lambda cfg, memory, steps: memory,  # earlier questions may be reused some steps later
    exam=exam,
    check=check,
    data=("answers", "min_searches", "max_searches"),
    starter=Starter(options={"grader": "exact-match", "verify": "policy"}),  # no external judge
    panels=(
        ACCURACY,
        REWARD,
        Panel("Valid questions", ("/valid",), True),
        Panel("Searches per episode", ("/searches",), False),
        GRADIENT,
    ),
)
