"""SSP's roles: the proposer writes questions (§3.1), the policy verifies them (§3.2), the solver answers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scope_jax.config import Config
from scope_jax.data.keys import drawn
from scope_jax.games.ssp import messages, rules, state
from scope_jax.games.ssp.options import SSPSection, options
from scope_jax.games.ssp.state import Problem, ProblemAttempt, Proposal, QuestionVerification, Slot
from scope_jax.grading.rewards import mean
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


def max_proposals(card: SSPSection) -> int:
    """Maximum number of proposals per slot; more than one only with dynamic resampling (App. B.1)."""
    return 1 + card.max_resamples if card.fill == "resample" else 1


def propose(step: Step[SSPSection], slots: Sequence[Slot], attempt: int) -> list[Proposal]:
    """τ ~ π(· | x_propose, a*): one proposer episode per slot, with its question Q(τ)."""
    # in the first attempt the slots of a row share a prompt
    samples = step.card.proposer.samples if attempt == 0 else 1
    rollouts = []
    for slot in slots[::samples]:
        name = f"{slot.item}" if attempt == 0 else f"slot {slot.index} attempt {attempt}"
        rollouts.append(Rollout(name, messages.for_proposer(step.cfg, slot, step.number)))
    groups = step.play(PROPOSER, rollouts, samples=samples)
    flat = [sample for group in groups for sample in group]
    return [
        Proposal(slot, attempt, sample, rules.question_of(sample)) for slot, sample in zip(slots, flat, strict=True)
    ]


def apply_rules(step: Step[SSPSection], proposals: Sequence[Proposal]) -> list[Proposal]:
    """The proposals, with the first rule that each breaks as its reason."""
    checked = []
    for proposal in proposals:
        reason = rules.first_broken_rule(step.cfg, proposal.sample, proposal.question, proposal.slot.golds)
        if not reason and _exceeds_the_solver(step, proposal.question or ""):
            reason = "too_long"
        checked.append(replace(proposal, reason=reason))
    return checked


def _exceeds_the_solver(step: Step[SSPSection], question: str) -> bool:
    """True if the solver's prompt with a question would not be sampled, for which the proposer would earn 1."""
    tokens = step.tools.prompt_tokens(messages.for_solver(step.cfg, question))
    return tokens > step.card.solver.max_prompt_tokens or tokens >= step.cfg.rollout.max_length


def is_last(card: SSPSection, proposal: Proposal) -> bool:
    """True for the last proposal of its slot: it is valid, or the slot gets no other."""
    return not proposal.reason or proposal.attempt + 1 == max_proposals(card)


def last_of_slots(card: SSPSection, proposals: Sequence[Proposal]) -> list[Proposal]:
    """The last proposal of each slot, in the order of the slots."""
    return sorted((each for each in proposals if is_last(card, each)), key=lambda each: each.slot.index)


def reward_proposer(
    card: SSPSection, proposals: Sequence[Proposal], attempts: Sequence[ProblemAttempt]
) -> list[Proposal]:
    """The proposals with their rewards: Eq. (7) for a valid question, otherwise `invalid_reward`, even if the slot was
    filled."""
    by_slot: dict[int, list[float]] = {}
    for attempt in attempts:
        by_slot.setdefault(attempt.problem.slot, []).append(attempt.reward)
    rewarded = []
    for proposal in proposals:
        if proposal.reason:
            rewarded.append(replace(proposal, reward=card.invalid_reward))
        else:
            solver_mean = mean(by_slot[proposal.slot.index])
            reward = rules.proposer_reward(card, solver_mean)
            rewarded.append(replace(proposal, solver_mean=solver_mean, reward=reward))
    return rewarded


# -------------------------------------------------------------------------------------------------------- verification
def verify(step: Step[SSPSection], fresh: Sequence[Proposal], earlier: Sequence[Proposal]) -> list[Proposal]:
    """`fresh`, with a reason on proposals whose answer σ ~ π(· | q, O(τ) ∪ noise) is not a*.

    The noise comes from the step's episodes for other slots, including those of `earlier` attempts.
    """
    if step.card.verify == "off":
        return list(fresh)
    verifications = _answer_all(step, _verifications(step, fresh, earlier))
    cases = [
        judging.Case(each.proposal.question or "", each.answer, each.proposal.slot.golds) for each in verifications
    ]
    grades = step.grade(step.card.grader, cases)
    by_slot = {
        verification.proposal.slot.index: _verified(verification, correct, judgements)
        for verification, correct, judgements in zip(verifications, grades.correct, grades.judgements, strict=True)
    }
    return [by_slot.get(proposal.slot.index, proposal) for proposal in fresh]


def _verifications(
    step: Step[SSPSection], fresh: Sequence[Proposal], earlier: Sequence[Proposal]
) -> list[QuestionVerification]:
    """A verification, not yet answered, of each question that breaks no rule."""
    unit = step.card.noise_unit
    dialect = dialects.load(step.cfg.model.dialect)
    read = [
        (proposal, rules.units(searching.results_read(proposal.sample, dialect), unit))
        for proposal in (*fresh, *earlier)
    ]
    verifications = []
    for proposal, texts in read[: len(fresh)]:
        if proposal.reason:
            continue
        index = proposal.slot.index
        others = [text for other, others_texts in read if other.slot.index != index for text in others_texts]
        generator = step.rng("ssp noise", step.number, index, proposal.attempt)
        materials = rules.mix(texts, others, step.card.noise_documents, generator)
        prompt = messages.for_verification(step.cfg, proposal.question or "", rules.render(materials, unit))
        verifications.append(QuestionVerification(proposal, prompt))
    return verifications


def _answer_all(step: Step[SSPSection], verifications: Sequence[QuestionVerification]) -> list[QuestionVerification]:
    """The verifications with the replies of the policy or of the external judge; those whose prompts are too long for
    the policy have none, and come last."""
    if not verifications:
        return []
    card = step.card
    if card.verify == "judge":
        replies = step.tools.judge([each.prompt for each in verifications])
        return [
            replace(each, reply=reply, answer=_answer(reply, outside=True))
            for each, reply in zip(verifications, replies, strict=True)
        ]
    limit = min(step.cfg.rollout.max_length - card.verify_max_tokens, card.solver.max_prompt_tokens)
    fitting: list[QuestionVerification] = []
    too_long: list[QuestionVerification] = []
    for each in verifications:
        (fitting if step.tools.prompt_tokens(Messages(each.prompt)) <= limit else too_long).append(each)
    rollouts = [
        Rollout(f"{each.proposal.slot.index} attempt {each.proposal.attempt}", Messages(each.prompt))
        for each in fitting
    ]
    answered = []
    for each, (sample,) in zip(fitting, step.play(VERIFIER, rollouts), strict=True):
        reply = Reply(sample.text, cut=searching.cut_off(sample))
        answered.append(replace(each, reply=reply, answer=_answer(reply, outside=False)))
    return [*answered, *too_long]


def _answer(reply: Reply, outside: bool) -> str | None:
    """A(σ): the text after the last `Answer:`. Of a reply that was cut only finished lines count; outside: by an
    endpoint, which does not say whether its prompt opened a thought, so that without a closing mark all of it may be
    one."""
    text = parsing.without_thinking(reply.text, opened=outside and bool(reply.cut))
    return parsing.labelled_answer(parsing.finished_lines(text) if reply.cut else text)


def _verified(verification: QuestionVerification, correct: bool, judgements: tuple[Judgement, ...]) -> Proposal:
    """The proposal after its verification, with a reason unless the answer is correct."""
    reply = verification.reply
    if reply is None:
        return replace(verification.proposal, reason="materials_too_long")
    reason = ""
    if not correct:
        reason = "verify_no_answer" if verification.answer is None else "verify_wrong"
    given = Judgement("verifier", "", (reply,), verification.answer)
    return replace(verification.proposal, reason=reason, reply=reply.text, judgements=(given, *judgements))


# -------------------------------------------------------------------------------------------------------------- solver
DUMMY = "There is no question this time; reply with the word none."


def fill_slots(step: Step[SSPSection], proposals: Sequence[Proposal]) -> list[Problem]:
    """A problem for each slot: its own valid question, else one from the pool, else the dummy (App. B.1)."""
    last = last_of_slots(step.card, proposals)
    empty = [proposal.slot.index for proposal in last if proposal.reason]
    entries = []
    if state.replays(step.card):
        entries = drawn(step.memory["pool"], len(empty), step.rng("ssp replay", step.number))
    replays = dict(zip(empty, entries, strict=False))
    problems = []
    for proposal in last:
        index = proposal.slot.index
        if not proposal.reason:
            problems.append(Problem(index, proposal.question or "", proposal.slot.golds, "fresh"))
        elif index in replays:
            problems.append(Problem(index, replays[index]["question"], tuple(replays[index]["answers"]), "replay"))
        elif step.card.dummy == "rollout":
            problems.append(Problem(index, DUMMY, (), "dummy"))
    return problems


def solve(step: Step[SSPSection], problems: Sequence[Problem]) -> list[ProblemAttempt]:
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
    groups = step.play(SOLVER, rollouts, samples=step.card.solver.samples)
    return [
        ProblemAttempt(
            problem,
            sample,
            prediction=prediction_of(sample),
            keeps_format=searching.keeps_format(sample, dialect, "answer", step.card.format),
        )
        for problem, group in zip(problems, groups, strict=True)
        for sample in group
    ]


def prediction_of(completion: Completion) -> str | None:
    """A(ρ): content of the last `<answer>`; None if missing or empty."""
    return parsing.last(searching.contents(completion), "answer") or None


def grade_solver(step: Step[SSPSection], attempts: Sequence[ProblemAttempt]) -> list[ProblemAttempt]:
    """The attempts with r_solve = r(A(ρʲ), a*); 0 for dummies and attempts that violate the format, which nobody
    grades."""
    cases = []
    for attempt in attempts:
        problem = attempt.problem
        counts = attempt.keeps_format and problem.origin != "dummy"
        cases.append(judging.Case(problem.question, attempt.prediction if counts else None, problem.golds))
    grades = step.grade(step.card.grader, cases)
    return [
        replace(attempt, reward=float(correct), judgements=judgements)
        for attempt, correct, judgements in zip(attempts, grades.correct, grades.judgements, strict=True)
    ]
