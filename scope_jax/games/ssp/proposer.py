"""SSP's proposer: slots, questions for known answers, rewards (§3.1, §3.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scope_jax.config import Config
from scope_jax.data.keys import rng
from scope_jax.games.ssp import instructions, rules
from scope_jax.games.ssp.options import options
from scope_jax.games.ssp.records import Proposal, Slot, Solved
from scope_jax.play import searching
from scope_jax.play.game import ACTOR
from scope_jax.play.tools import Rollout, Tools


def open_slots(cfg: Config, rows: Sequence[Mapping[str, Any]], step: int) -> list[Slot]:
    """`proposer.samples` slots per row, with the number of searches a question should need: the row's, or random."""
    slots: list[Slot] = []
    for item, row in enumerate(rows):
        generator = rng("ssp searches", cfg.seed, step, item)
        drawn = int(generator.integers(cfg.data.min_searches, cfg.data.max_searches, endpoint=True))
        searches = drawn if row["searches"] is None else row["searches"]
        golds = tuple(row["answers"])
        slots += [Slot(len(slots) + sample, item, golds, searches) for sample in range(options(cfg).proposer.samples)]
    return slots


def attempts(cfg: Config) -> int:
    """Maximum number of proposals per slot; more than one only with dynamic resampling (App. B.1)."""
    return 1 + options(cfg).max_resamples if options(cfg).fill == "resample" else 1


def propose(cfg: Config, tools: Tools, slots: Sequence[Slot], step: int, attempt: int) -> list[Proposal]:
    """τ ~ π(· | x_propose, a*): one proposer episode per slot, with its question Q(τ) and the first rule it breaks."""
    card = options(cfg).proposer
    samples = card.samples if attempt == 0 else 1  # in the first attempt the slots of a row share a prompt
    rollouts = []
    for slot in slots[::samples]:
        messages = instructions.for_proposer(cfg, slot, step)
        name = f"{slot.item}" if attempt == 0 else f"slot {slot.index} attempt {attempt}"
        rollouts.append(Rollout(name, messages))
    groups = tools.play("proposer", rollouts, searching.agent(cfg, tools, card, ACTOR, "question"), samples)
    completions = [completion for group in groups for completion in group]
    proposals = []
    for place, (slot, completion) in enumerate(zip(slots, completions, strict=True)):
        question, reason = rules.apply(cfg, completion, slot.golds)
        if not reason and _exceeds_the_solver(cfg, tools, question or ""):
            reason = "too_long"
        proposals.append(Proposal(slot, attempt, rollouts[place // samples].messages, completion, question, reason))
    return proposals


def _exceeds_the_solver(cfg: Config, tools: Tools, question: str) -> bool:
    """True if the solver's prompt with a question would not be sampled, for which the proposer would earn 1."""
    tokens = tools.prompt_tokens(instructions.for_solver(cfg, question))
    return tokens > options(cfg).solver.max_prompt_tokens or tokens >= cfg.rollout.max_length


def reward_proposer(
    cfg: Config, slots: Sequence[Slot], proposals: Sequence[Proposal], solved: Sequence[Solved]
) -> dict[int, float]:
    """Reward by slot: Eq. (7) for a valid question, otherwise `invalid_reward`, even if the slot was filled."""
    by_slot = {slot.index: options(cfg).invalid_reward for slot in slots}
    for group in solved:
        if group.problem.origin != "fresh":
            continue
        if options(cfg).proposer_reward == "intermediate":
            reward = rules.intermediate(group.rewards, options(cfg).intermediate_left, options(cfg).intermediate_right)
        else:
            reward = rules.one_minus_mean(group.rewards)
        by_slot[group.problem.slot] = reward
    return by_slot
