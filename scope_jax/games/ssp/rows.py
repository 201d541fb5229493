"""The results of a step of SSP: episodes for the learner, metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scope_jax.config import Config
from scope_jax.games.ssp.options import options
from scope_jax.games.ssp.records import Proposal, Solved
from scope_jax.games.ssp.rules import REASONS
from scope_jax.learner.types import Datum, Episode, Metrics
from scope_jax.play import searching
from scope_jax.play.game import ACTOR
from scope_jax.play.rewards import mean, means, shares


def episodes(
    cfg: Config, step: int, solved: Sequence[Solved], proposals: Sequence[Proposal], rewards: Mapping[int, float]
) -> list[Episode]:
    """All episodes of both roles; `trained` is False for a role that is not trained and for replaced proposals.

    rewards: the proposer's reward by slot. Only the last proposal of a slot counts, since it replaced the earlier ones.
    A dummy pads the solver's batch: it has no gradient (App. B.1), but counts in the B of Eq. (4).
    """
    solver_learns = options(cfg).train in ("both", "solver") and step >= options(cfg).proposer_warmup_steps
    proposer_learns = options(cfg).train in ("both", "proposer")
    last = {proposal.slot.index: proposal for proposal in proposals}
    solver_means = {group.problem.slot: mean(group.rewards) for group in solved}
    made = [
        replace(_solver(group, j, solver_learns), temperature=options(cfg).solver.sampling.temperature)
        for group in solved
        for j in range(len(group.completions))
    ]
    for proposal in proposals:
        index = proposal.slot.index
        counts = last[index] is proposal
        reward = rewards[index] if counts else options(cfg).invalid_reward
        episode = _proposer(proposal, reward, solver_means.get(index), proposer_learns and counts)
        made.append(replace(episode, temperature=options(cfg).proposer.sampling.temperature))
    return made


def _solver(group: Solved, j: int, learns: bool) -> Episode:
    problem, completion = group.problem, group.completions[j]
    dummy = problem.origin == "dummy"
    return Episode(
        role="solver",
        policy=ACTOR,
        group=f"solver/{problem.slot}",
        datums=Datum.from_completion(completion),
        reward=group.rewards[j],
        parts={"correct": float(group.correct[j]), "format": float(group.formed[j])},
        trained=learns and not dummy,
        padding=learns and dummy,
        text={
            "prompt": group.prompt.text,
            "turns": searching.transcript(completion),
            "question": problem.question,
            "answer": problem.golds[0] if problem.golds else None,
            "prediction": group.predictions[j],
            "slot": problem.slot,
            "origin": problem.origin,
        },
        judgements=group.judgements[j],
    )


def _proposer(proposal: Proposal, reward: float, solver_mean: float | None, trained: bool) -> Episode:
    valid = not proposal.reason
    parts = {"valid": float(valid)}
    if valid and solver_mean is not None:
        parts["solver_mean"] = solver_mean
    return Episode(
        role="proposer",
        policy=ACTOR,
        group=f"proposer/{proposal.slot.item}",
        datums=Datum.from_completion(proposal.completion),
        reward=reward,
        parts=parts,
        trained=trained,
        text={
            "prompt": proposal.prompt.text,
            "turns": searching.transcript(proposal.completion),
            "question": proposal.question,
            "answer": proposal.slot.golds[0],
            "searches_asked": proposal.slot.searches,
            "rejected": proposal.reason,
            "verification": proposal.reply,
            "slot": proposal.slot.index,
            "attempt": proposal.attempt,
        },
        judgements=proposal.judgements,
    )


def measure(
    cfg: Config,
    slots: int,
    solved: Sequence[Solved],
    proposals: Sequence[Proposal],
    rewards: Mapping[int, float],
    pool_size: int,
) -> Metrics:
    """The step's metrics; a mean over no values (without a valid question, for example) is left out."""
    real = [group for group in solved if group.problem.origin != "dummy"]
    verdicts = [p.reason for p in proposals if not p.reason or p.reason.startswith("verify_")]
    values: dict[str, list[float]] = {
        "solver/reward": [reward for group in real for reward in group.rewards],
        "solver/format": [float(formed) for group in real for formed in group.formed],
        "proposer/reward": list(rewards.values()),
        "proposer/valid": [float(not proposal.reason) for proposal in proposals],
        "verify/passed": [float(not reason) for reason in verdicts],
    }
    sampled = {
        "solver": [completion for group in real for completion in group.completions],
        "proposer": [proposal.completion for proposal in proposals],
    }
    for role, completions in sampled.items():
        searches = [searching.searches_run(cfg, completion) for completion in completions]
        values |= searching.episode_stats(role, completions, searches)
    origins = [group.problem.origin for group in solved]
    counts = {
        "slots/fresh": origins.count("fresh") / slots,
        "slots/replay": origins.count("replay") / slots,
        "slots/dummy": 1 - (origins.count("fresh") + origins.count("replay")) / slots,
        "proposer/episodes": float(len(proposals)),
        "pool/size": float(pool_size),
    }
    rejected = [proposal.reason for proposal in proposals]
    return means(values) | counts | shares("rejected/", rejected, REASONS)
