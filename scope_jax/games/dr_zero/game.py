"""Dr. Zero as a `Game`: the three phases of an iteration, their episodes, the memory, the exam of its solver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scope_jax.config import Config
from scope_jax.games.dr_zero import messages, roles, rules
from scope_jax.games.dr_zero.options import DrZeroSection, options
from scope_jax.games.dr_zero.roles import PROPOSER, SOLVER, card_roles
from scope_jax.games.dr_zero.state import PairProposal, PhasePosition, QuestionPair, SolverAttempt
from scope_jax.grading.rewards import means
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACCURACY, GRADIENT, REWARD, Game, Panel
from scope_jax.play.step import Memory, Played, Step

ATTEMPTS, DATA = "attempts", "data"  # before the names of metrics of the first two phases


def play(step: Step[DrZeroSection]) -> Played:
    """One step of the current phase: its episodes, and the pairs that it has written.

    Pure: all randomness is derived from the seed and the place in the run.
    """
    position = PhasePosition.of(step.memory)
    phase = {"proposer": train_proposer, "data": write_pairs, "solver": train_solver}[position.phase]
    played = phase(step, position)
    return replace(played, metrics={**played.metrics, "iteration": float(position.iteration)})


def train_proposer(step: Step[DrZeroSection], position: PhasePosition) -> Played:
    """The first phase: the proposer learns on the next passages."""
    card = step.card
    size = step.cfg.train.batch_size
    steps_before = (position.iteration - 1) * card.steps + position.place
    passages = roles.draw_passages(step, steps_before * size, size)
    # 1. a pair for each passage
    groups = roles.propose(step, passages, samples=card.proposer.samples)
    proposals = [proposal for group in groups for proposal in group]
    # 2. the frozen solver's attempts at the well-formed ones
    proposals = roles.attempt(step, proposals, label=ATTEMPTS)
    attempts = attempts_of(proposals)
    # 3. the reward; proposals with as many hops are compared with each other (HRPO)
    episodes = [proposer_episode(card, proposal, samples=card.proposer.samples, trained=True) for proposal in proposals]
    episodes += [solver_episode(attempt, trained=False) for attempt in attempts]
    of_proposals = hop_shares(PROPOSER, [proposal.pair for proposal in proposals])
    of_attempts = hop_shares(ATTEMPTS, [attempt.pair for attempt in attempts])
    return Played(episodes, outcome=[], metrics=of_proposals | of_attempts)


def write_pairs(step: Step[DrZeroSection], position: PhasePosition) -> Played:
    """The second phase: the new proposer writes pairs for the solver, from the iteration's own passages."""
    card = step.card
    size = step.cfg.train.batch_size
    first = position.place * size
    count = min(size, card.partition - first)
    passages = roles.draw_passages(step, (position.iteration - 1) * card.partition + first, count)
    # 4. several proposals for each passage, of which the first with the best format counts
    groups = roles.propose(step, passages, samples=card.samples, label=DATA)
    best = [max(group, key=lambda proposal: proposal.format.total) for group in groups]
    # with a window these are attempted, and kept if they are neither too easy nor too hard
    if card.window is not None:
        best = roles.attempt(step, best, label=f"{DATA}_{ATTEMPTS}")
    kept = [proposal.pair for proposal in best if rules.keeps(card.window, proposal.solved)]
    if first + count == card.partition and not (position.pairs or kept):
        step.tell(f"iteration {position.iteration}: no pair is kept (dr_zero.window); the solver is not trained.")
    # recorded, not trained: all proposals, with the reward that they have without attempts
    episodes = [
        proposer_episode(card, proposal, samples=card.samples, trained=False) for group in groups for proposal in group
    ]
    episodes += [solver_episode(attempt, trained=False) for attempt in attempts_of(best)]
    metrics = measure_best(card, best) | {f"{DATA}/kept": len(kept) / count}
    return Played(episodes, outcome=[pair.plain for pair in kept], metrics=metrics)


def train_solver(step: Step[DrZeroSection], position: PhasePosition) -> Played:
    """The third phase: the solver learns on the iteration's pairs."""
    size = step.cfg.train.batch_size
    first = position.place * size
    # 5. a group of attempts at each of the next pairs (GRPO)
    groups = roles.answer(step, position.pairs[first : first + size], samples=step.card.solver.samples)
    attempts = [attempt for group in groups for attempt in group]
    episodes = [solver_episode(attempt, trained=True) for attempt in attempts]
    return Played(episodes, outcome=[], metrics=hop_shares(SOLVER, [attempt.pair for attempt in attempts]))


def remember(cfg: Config, memory: Memory, outcome: list[dict[str, Any]], number: int) -> tuple[Memory, Metrics]:
    """The place after a step that has written these pairs."""
    new = [QuestionPair.of(row) for row in outcome]
    return PhasePosition.of(memory).after(options(cfg), cfg.train.batch_size, new).memory, {}


# ------------------------------------------------------------------------------------------------ episodes and metrics
def attempts_of(proposals: Sequence[PairProposal]) -> list[SolverAttempt]:
    return [attempt for proposal in proposals for attempt in proposal.attempts]


def proposer_episode(card: DrZeroSection, proposal: PairProposal, *, samples: int, trained: bool) -> Episode:
    """The episode of a proposal, one of so many for its prompt: with one it is compared with those of as many hops
    (HRPO), else with those of the prompt (GRPO)."""
    reward, parts = rules.proposer_reward(card, proposal)
    return proposal.sample.episode(
        reward,
        parts=parts,
        text=proposal.pair.plain,
        group=f"{PROPOSER}/{proposal.pair.hops} hops" if samples == 1 else "",
        trained=trained,
    )


def solver_episode(attempt: SolverAttempt, *, trained: bool) -> Episode:
    """The episode of an attempt, with reward 1 for the answer of its pair, else 0."""
    return attempt.sample.episode(
        float(attempt.right),
        parts={"searches": float(attempt.searches)},
        text={**attempt.pair.plain, "prediction": attempt.prediction},
        trained=trained,
    )


def measure_best(card: DrZeroSection, best: Sequence[PairProposal]) -> Metrics:
    """What the second phase tells of the best proposal for each passage; its episodes are of all proposals."""
    values: dict[str, list[float]] = {}
    for proposal in best:
        reward, parts = rules.proposer_reward(card, proposal)
        for name, value in {"reward": reward, **parts}.items():
            values.setdefault(f"{DATA}/{name}", []).append(value)
    return means(values) | hop_shares(DATA, [proposal.pair for proposal in best])


def hop_shares(label: str, pairs: Sequence[QuestionPair]) -> Metrics:
    """The share of pairs with each number of hops."""
    counts = Counter(pair.hops for pair in pairs)
    return {f"{label}/hops_{hops}": count / len(pairs) for hops, count in sorted(counts.items())}


def exam(cfg: Config) -> Exam:
    """Questions answered as in training."""
    return Exam(
        role=roles.solver_role(cfg),
        prompt=lambda row, tokens: messages.for_solver(cfg, row["question"]),
        read=rules.answer_of,
        measures=("accuracy",),
    )


GAME = Game(
    name="dr_zero",
    options=DrZeroSection,
    roles=card_roles,
    play=play,
    remember=remember,
    start=lambda cfg: PhasePosition(1).memory,
    exam=exam,
    data=("documents",),
    iterations=lambda cfg, memory: memory["iteration"] - 1,
    waits=lambda cfg, memory: memory["place"] == 0,  # a phase samples what the one before has trained
    panels=(ACCURACY, REWARD, Panel("Proposals", ("proposer/format", "proposer/difficulty"), True), GRADIENT),
    title="Dr. Zero",
)
