"""SSP's roles: the proposer writes questions (§3.1), the policy verifies them (§3.2), the solver answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scope_jax.config import Config
from scope_jax.data.keys import drawn
from scope_jax.games.ssp import messages, rules, state
from scope_jax.games.ssp.options import SSPSection, options
from scope_jax.games.ssp.state import Problem, Proposal, Slot, Solved
from scope_jax.learner.types import Judgement, Reply
from scope_jax.play import judging, searching
from scope_jax.play.game import ACTOR
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent, Rollout
from scope_jax.play.step import Step
from scope_jax.play.tools import single_turn
from scope_jax.rollouts.types import Completion
from scope_jax.text import dialects, parsing
from scope_jax.text.messages import Messages

PROPOSER, SOLVER, VERIFIER, JUDGE = "proposer", "solver", "verify", "judge"


def card_roles(cfg: Config) -> tuple[Role, ...]:
    """Solver and proposer, in the order of their updates, who verifies, and the judge of a card that has one."""
    card = options(cfg)
    players = {SOLVER: solver_role(cfg), PROPOSER: proposer_role(cfg)}
    others = []
    if card.verify == "policy":
        agent = Agent(ACTOR, single_turn(card.verify_temperature, card.verify_max_tokens))
        others.append(Role(VERIFIER, agent, prompts=(messages.VERIFICATION,)))
    if cfg.judge is not None and (card.grader != "exact-match" or card.verify == "judge"):
        grades = (judging.JUDGE,) if card.grader != "exact-match" else ()
        verifies = (messages.VERIFICATION,) if card.verify == "judge" else ()
        others.append(Role(JUDGE, cfg.judge, prompts=(*grades, *verifies), table="judge"))
    return (*(players[name] for name in card.update_order), *others)


def solver_role(cfg: Config) -> Role:
    """It answers questions with searches."""
    card = options(cfg)
    return Role(
        SOLVER,
        searching.with_searches(Agent.of_role(card.solver, ACTOR), "answer"),
        loss=card.solver.loss if card.train in ("both", SOLVER) else None,
        prompts=(messages.SOLVER,),
        table="ssp.solver",
    )


def proposer_role(cfg: Config) -> Role:
    """It searches, and writes a question for a given answer."""
    card = options(cfg)
    return Role(
        PROPOSER,
        searching.with_searches(Agent.of_role(card.proposer, ACTOR), "question"),
        loss=card.proposer.loss if card.train in ("both", PROPOSER) else None,
        prompts=(messages.PROPOSER,),
        table="ssp.proposer",
        rejections=rules.REASONS,
    )


# ------------------------------------------------------------------------------------------------------------ proposer
def open_slots(step: Step[SSPSection]) -> list[Slot]:
    """`proposer.samples` slots for each of the step's answers, with the number of searches a question should need: the
    row's, or random."""
    data, size = step.cfg.data, step.cfg.train.batch_size
    slots: list[Slot] = []
    for item, row in enumerate(step.rows(step.number * size, size)):
        count = int(step.rng("ssp searches", step.number, item).integers(data.min_searches, data.max_searches + 1))
        searches = count if row["searches"] is None else row["searches"]
        golds = tuple(row["answers"])
        slots += [Slot(len(slots) + sample, item, golds, searches) for sample in range(step.card.proposer.samples)]
    return slots


def attempts(card: SSPSection) -> int:
    """Maximum number of proposals per slot; more than one only with dynamic resampling (App. B.1)."""
    return 1 + card.max_resamples if card.fill == "resample" else 1


def propose(step: Step[SSPSection], slots: Sequence[Slot], attempt: int) -> list[Proposal]:
    """τ ~ π(· | x_propose, a*): one proposer episode per slot, with its question Q(τ) and the first rule it breaks."""
    # in the first attempt the slots of a row share a prompt
    samples = step.card.proposer.samples if attempt == 0 else 1
    rollouts = []
    for slot in slots[::samples]:
        name = f"{slot.item}" if attempt == 0 else f"slot {slot.index} attempt {attempt}"
        rollouts.append(Rollout(name, messages.for_proposer(step.cfg, slot, step.number)))
    groups = step.play(PROPOSER, rollouts, samples=samples)
    proposals = []
    for slot, sample in zip(slots, (sample for group in groups for sample in group), strict=True):
        question, reason = rules.apply(step.cfg, sample, slot.golds)
        if not reason and _exceeds_the_solver(step, question or ""):
            reason = "too_long"
        proposals.append(Proposal(slot, attempt, sample, question, reason))
    return proposals


def _exceeds_the_solver(step: Step[SSPSection], question: str) -> bool:
    """True if the solver's prompt with a question would not be sampled, for which the proposer would earn 1."""
    tokens = step.tools.prompt_tokens(messages.for_solver(step.cfg, question))
    return tokens > step.card.solver.max_prompt_tokens or tokens >= step.cfg.rollout.max_length


def reward_proposer(card: SSPSection, slots: Sequence[Slot], solved: Sequence[Solved]) -> dict[int, float]:
    """Reward by slot: Eq. (7) for a valid question, otherwise `invalid_reward`, even if the slot was filled."""
    by_slot = {slot.index: card.invalid_reward for slot in slots}
    for group in solved:
        if group.problem.origin != "fresh":
            continue
        if card.proposer_reward == "intermediate":
            reward = rules.intermediate(group.rewards, card.intermediate_left, card.intermediate_right)
        else:
            reward = rules.one_minus_mean(group.rewards)
        by_slot[group.problem.slot] = reward
    return by_slot


def verify(step: Step[SSPSection], fresh: Sequence[Proposal], earlier: Sequence[Proposal]) -> list[Proposal]:
    """`fresh`, with a reason on proposals whose answer σ ~ π(· | q, O(τ) ∪ noise) is not a*.

    The noise comes from the step's episodes for other slots, including those of `earlier` attempts.
    """
    if step.card.verify == "off":
        return list(fresh)
    prompts = _prompts(step, fresh, earlier)
    replies = _replies(step, prompts, fresh)
    answers = {i: _answer(reply, step.card.verify == "judge") for i, reply in replies.items()}
    cases = [
        judging.Case(fresh[i].question or "", prediction, fresh[i].slot.golds) for i, prediction in answers.items()
    ]
    grades = step.grade(step.card.grader, cases)
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
    return checked


def _answer(reply: Reply, outside: bool) -> str | None:
    """The text after the last `Answer:`. Of a reply that was cut only finished lines count; outside: by an endpoint,
    which does not say whether its prompt opened a thought, so that without a closing mark all of it may be one."""
    text = parsing.without_thinking(reply.text, opened=outside and bool(reply.cut))
    return parsing.labelled_answer(parsing.finished_lines(text) if reply.cut else text)


def _prompts(step: Step[SSPSection], fresh: Sequence[Proposal], earlier: Sequence[Proposal]) -> dict[int, str]:
    """Verification prompt of each proposal that passed the rules, by its index in `fresh`."""
    unit = step.card.noise_unit
    all_proposals = [*fresh, *earlier]
    dialect = dialects.load(step.cfg.model.dialect)
    read = [rules.units(searching.results_read(proposal.sample, dialect), unit) for proposal in all_proposals]
    prompts = {}
    for i, proposal in enumerate(fresh):
        if proposal.reason:
            continue
        index = proposal.slot.index
        others = [text for p, texts in zip(all_proposals, read, strict=True) if p.slot.index != index for text in texts]
        generator = step.rng("ssp noise", step.number, index, proposal.attempt)
        mixed = rules.mix(read[i], others, step.card.noise_documents, generator)
        prompts[i] = messages.for_verification(step.cfg, proposal.question or "", rules.render(mixed, unit))
    return prompts


def _replies(step: Step[SSPSection], prompts: Mapping[int, str], fresh: Sequence[Proposal]) -> dict[int, Reply]:
    """Reply to each prompt, by the policy or by the external judge; prompts too long for the policy are left out."""
    if not prompts:
        return {}
    card = step.card
    if card.verify == "judge":
        return dict(zip(prompts, step.tools.judge(list(prompts.values())), strict=True))
    limit = min(step.cfg.rollout.max_length - card.verify_max_tokens, card.solver.max_prompt_tokens)
    fitting = {
        i: Rollout(f"{fresh[i].slot.index} attempt {fresh[i].attempt}", prompt)
        for i, prompt in zip(prompts, map(Messages, prompts.values()), strict=True)
        if step.tools.prompt_tokens(prompt) <= limit
    }
    groups = step.play(VERIFIER, list(fitting.values()))
    return {i: Reply(reply.text, cut=searching.cut_off(reply)) for i, (reply,) in zip(fitting, groups, strict=True)}


DUMMY = "There is no question this time; reply with the word none."


def fill_slots(step: Step[SSPSection], proposals: Sequence[Proposal]) -> list[Problem]:
    """A problem for each slot: its own valid question, else one from the pool, else the dummy (App. B.1)."""
    last = sorted({p.slot.index: p for p in proposals}.items())
    empty = [index for index, proposal in last if proposal.reason]
    entries = []
    if state.replays(step.card):
        entries = drawn(step.memory["pool"], len(empty), step.rng("ssp replay", step.number))
    replayed = dict(zip(empty, entries, strict=False))
    problems = []
    for index, proposal in last:
        if not proposal.reason:
            problems.append(Problem(index, proposal.question or "", proposal.slot.golds, "fresh"))
        elif index in replayed:
            problems.append(Problem(index, replayed[index]["question"], tuple(replayed[index]["answers"]), "replay"))
        elif step.card.dummy == "rollout":
            problems.append(Problem(index, DUMMY, (), "dummy"))
    return problems


# -------------------------------------------------------------------------------------------------------------- solver
def solve(step: Step[SSPSection], problems: Sequence[Problem]) -> list[Solved]:
    """ρʲ ~ π(· | x_solve, q), j = 1…n, for each problem; not yet graded. Dummies have metrics of their own."""
    dialect = dialects.load(step.cfg.model.dialect)
    rollouts = [
        Rollout(
            f"{problem.slot}",
            messages.for_solver(step.cfg, problem.question),
            label="dummy" if problem.origin == "dummy" else "",
        )
        for problem in problems
    ]
    solved = []
    for problem, group in zip(problems, step.play(SOLVER, rollouts, samples=step.card.solver.samples), strict=True):
        one = Solved(
            problem=problem,
            samples=tuple(group),
            predictions=tuple(prediction_of(sample) for sample in group),
            formed=tuple(searching.keeps_format(each, dialect, "answer", step.card.format) for each in group),
            correct=(False,) * len(group),
            judgements=((),) * len(group),
        )
        solved.append(one)
    return solved


def prediction_of(completion: Completion) -> str | None:
    """A(ρ): content of the last `<answer>`; None if missing or empty."""
    return parsing.last(searching.contents(completion), "answer") or None


def grade_solver(step: Step[SSPSection], solved: Sequence[Solved]) -> list[Solved]:
    """r(A(ρʲ), a*) for every attempt; dummies, and attempts that violate the format, are not graded."""
    cases = {
        (group.problem.slot, j): judging.Case(
            group.problem.question, prediction if formed else None, group.problem.golds
        )
        for group in solved
        if group.problem.origin != "dummy"
        for j, (prediction, formed) in enumerate(zip(group.predictions, group.formed, strict=True))
    }
    grades = step.grade(step.card.grader, list(cases.values()))
    correct = dict(zip(cases, grades.correct, strict=True))
    judgements = dict(zip(cases, grades.judgements, strict=True))
    graded = []
    for group in solved:
        if group.problem.origin != "dummy":
            places = [(group.problem.slot, j) for j in range(len(group.samples))]
            group = replace(
                group,
                correct=tuple(correct[place] for place in places),
                judgements=tuple(judgements[place] for place in places),
            )
        graded.append(group)
    return graded
