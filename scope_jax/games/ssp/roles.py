"""SSP's roles: the proposer writes questions (§3.1), the policy verifies them (§3.2), the solver answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scope_jax.config import Config
from scope_jax.data.keys import drawn, rng
from scope_jax.games.ssp import messages, rules
from scope_jax.games.ssp.options import options
from scope_jax.games.ssp.state import Entry, Problem, Proposal, Slot, Solved
from scope_jax.learner.types import Judgement, Reply
from scope_jax.play import grading, searching
from scope_jax.play.game import ACTOR
from scope_jax.play.tools import Agent, Rollout, Tools, single_turn
from scope_jax.rollouts.types import Completion
from scope_jax.text import dialects, parsing
from scope_jax.text.messages import Messages


def open_slots(cfg: Config, rows: Sequence[Mapping[str, Any]], step: int) -> list[Slot]:
    """`proposer.samples` slots per row, with the number of searches a question should need: the row's, or random."""
    slots: list[Slot] = []
    for item, row in enumerate(rows):
        generator = rng("ssp searches", cfg.seed, step, item)
        count = int(generator.integers(cfg.data.min_searches, cfg.data.max_searches, endpoint=True))
        searches = count if row["searches"] is None else row["searches"]
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
        name = f"{slot.item}" if attempt == 0 else f"slot {slot.index} attempt {attempt}"
        rollouts.append(Rollout(name, messages.for_proposer(cfg, slot, step)))
    groups = tools.play("proposer", rollouts, Agent.of_role(card, ACTOR, **searching.until("question")), samples)
    completions = [completion for group in groups for completion in group]
    proposals = []
    for i, (slot, completion) in enumerate(zip(slots, completions, strict=True)):
        question, reason = rules.apply(cfg, completion, slot.golds)
        if not reason and _exceeds_the_solver(cfg, tools, question or ""):
            reason = "too_long"
        proposals.append(Proposal(slot, attempt, rollouts[i // samples].messages, completion, question, reason))
    return proposals


def _exceeds_the_solver(cfg: Config, tools: Tools, question: str) -> bool:
    """True if the solver's prompt with a question would not be sampled, for which the proposer would earn 1."""
    tokens = tools.prompt_tokens(messages.for_solver(cfg, question))
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


def verify(
    cfg: Config, tools: Tools, fresh: Sequence[Proposal], earlier: Sequence[Proposal], step: int
) -> tuple[list[Proposal], grading.Grades]:
    """`fresh`, with a reason on proposals whose answer σ ~ π(· | q, O(τ) ∪ noise) is not a*; and the judge's counts.

    The noise comes from the step's episodes for other slots, including those of `earlier` attempts.
    """
    if options(cfg).verify == "off":
        return list(fresh), grading.Grades([], [])
    prompts = _prompts(cfg, fresh, earlier, step)
    replies = _replies(cfg, tools, prompts, fresh)
    answers = {i: _answer(reply, options(cfg).verify == "judge") for i, reply in replies.items()}
    cases = [
        grading.Case(fresh[i].question or "", prediction, fresh[i].slot.golds) for i, prediction in answers.items()
    ]
    grades = grading.grade(options(cfg).grader, options(cfg).prompts, tools.judge, cases)
    graded = dict(zip(answers, zip(grades.correct, grades.judgements, strict=True), strict=True))
    checked = []
    for i, proposal in enumerate(fresh):
        if i in graded:
            right, judgements = graded[i]
            reply, answer = replies[i], answers[i]
            proposal = replace(
                proposal,
                reason="" if right else "verify_no_answer" if answer is None else "verify_wrong",
                reply=reply.text,
                judgements=(Judgement("verifier", "", (reply,), answer), *judgements),
            )
        elif i in prompts:
            proposal = replace(proposal, reason="materials_too_long")
        checked.append(proposal)
    return checked, grades


def _answer(reply: Reply, outside: bool) -> str | None:
    """The text after the last `Answer:`. Of a reply that was cut only finished lines count; outside: by an endpoint,
    which does not say whether its prompt opened a thought, so that without a closing mark all of it may be one."""
    text = parsing.without_thinking(reply.text, opened=outside and bool(reply.cut))
    return parsing.labelled_answer(parsing.finished_lines(text) if reply.cut else text)


def _prompts(cfg: Config, fresh: Sequence[Proposal], earlier: Sequence[Proposal], step: int) -> dict[int, str]:
    """Verification prompt of each proposal that passed the rules, by its index in `fresh`."""
    unit = options(cfg).noise_unit
    all_proposals = [*fresh, *earlier]
    dialect = dialects.load(cfg.model.dialect)
    read = [rules.units(searching.results_read(proposal.completion, dialect), unit) for proposal in all_proposals]
    prompts = {}
    for i, proposal in enumerate(fresh):
        if proposal.reason:
            continue
        index = proposal.slot.index
        others = [text for p, texts in zip(all_proposals, read, strict=True) if p.slot.index != index for text in texts]
        generator = rng("ssp noise", cfg.seed, step, index, proposal.attempt)
        mixed = rules.mix(read[i], others, options(cfg).noise_documents, generator)
        prompts[i] = messages.for_verification(cfg, proposal.question or "", rules.render(mixed, unit))
    return prompts


def _replies(cfg: Config, tools: Tools, prompts: Mapping[int, str], fresh: Sequence[Proposal]) -> dict[int, Reply]:
    """Reply to each prompt, by the policy or by the external judge; prompts too long for the policy are left out."""
    if not prompts:
        return {}
    if options(cfg).verify == "judge":
        return dict(zip(prompts, tools.judge(list(prompts.values())), strict=True))
    limit = min(cfg.rollout.max_length - options(cfg).verify_max_tokens, options(cfg).solver.max_prompt_tokens)
    fitting = {
        i: Rollout(f"{fresh[i].slot.index} attempt {fresh[i].attempt}", prompt)
        for i, prompt in zip(prompts, map(Messages, prompts.values()), strict=True)
        if tools.prompt_tokens(prompt) <= limit
    }
    agent = Agent(ACTOR, single_turn(options(cfg).verify_temperature, options(cfg).verify_max_tokens))
    groups = tools.play("verify", list(fitting.values()), agent)
    return {i: Reply(group[0].text, cut=searching.cut_off(group[0])) for i, group in zip(fitting, groups, strict=True)}


DUMMY = "There is no question this time; reply with the word none."


def fill_slots(cfg: Config, proposals: Sequence[Proposal], earlier: Sequence[Entry], step: int) -> list[Problem]:
    """A problem for each slot: its own valid question, else one from the pool, else the dummy (App. B.1)."""
    last = sorted({p.slot.index: p for p in proposals}.items())
    empty = [index for index, proposal in last if proposal.reason]
    replays = options(cfg).fill in ("replay", "replay-reset")
    entries = drawn(earlier, len(empty), rng("ssp replay", cfg.seed, step)) if replays else []
    replayed = dict(zip(empty, entries, strict=False))
    problems = []
    for index, proposal in last:
        if not proposal.reason:
            problems.append(Problem(index, proposal.question or "", proposal.slot.golds, "fresh"))
        elif index in replayed:
            problems.append(Problem(index, replayed[index]["question"], tuple(replayed[index]["answers"]), "replay"))
        elif options(cfg).dummy == "rollout":
            problems.append(Problem(index, DUMMY, (), "dummy"))
    return problems


def solve(cfg: Config, tools: Tools, problems: Sequence[Problem]) -> list[Solved]:
    """ρʲ ~ π(· | x_solve, q), j = 1…n, for each problem; not yet graded."""
    card, dialect = options(cfg).solver, dialects.load(cfg.model.dialect)
    rollouts = [Rollout(f"{p.slot}", messages.for_solver(cfg, p.question)) for p in problems]
    groups = tools.play("solver", rollouts, Agent.of_role(card, ACTOR, **searching.until("answer")), card.samples)
    solved = []
    for problem, rollout, group in zip(problems, rollouts, groups, strict=True):
        predictions = tuple(prediction_of(completion) for completion in group)
        formed = tuple(searching.keeps_format(c, dialect, "answer", options(cfg).format) for c in group)
        ungraded = (False,) * len(group), ((),) * len(group)
        solved.append(Solved(problem, rollout.messages, tuple(group), predictions, formed, *ungraded))
    return solved


def prediction_of(completion: Completion) -> str | None:
    """A(ρ): content of the last `<answer>`; None if missing or empty."""
    return parsing.last(searching.contents(completion), "answer") or None


def grade_solver(cfg: Config, tools: Tools, solved: Sequence[Solved]) -> tuple[list[Solved], grading.Grades]:
    """r(A(ρʲ), a*) for every attempt; dummies, and attempts that violate the format, are not graded."""
    cases = [
        grading.Case(group.problem.question, prediction if formed else None, group.problem.golds)
        for group in solved
        if group.problem.origin != "dummy"
        for prediction, formed in zip(group.predictions, group.formed, strict=True)
    ]
    grades = grading.grade(options(cfg).grader, options(cfg).prompts, tools.judge, cases)
    results = iter(zip(grades.correct, grades.judgements, strict=True))
    graded = []
    for group in solved:
        if group.problem.origin != "dummy":
            correct, judgements = zip(*(next(results) for _ in group.completions), strict=True)
            group = replace(group, correct=correct, judgements=judgements)
        graded.append(group)
    return graded, grades
