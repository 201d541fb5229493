"""Search Self-play (SSP): one policy proposes search questions for known answers and solves them.

Algorithm 1 of the paper and where each of its lines happens:

| line | in our words | where |
|---|---|---|
| 1 | for each step that changes the parameters | one call of `play` by the loop |
| 2 | a batch of known answers | `open_slots` |
| 3 | the proposer searches, then writes one question for each answer | `propose` |
| 4 | keep what passes the rules and can be answered from the proposer's own material | `verify` |
| 5 | for each question kept | `fill_slots` |
| 6 | the solver searches for the answer, n times | `solve` |
| 7 | solver's reward: 1 if the answer is right | `grade_solver` |
| 8 | proposer's reward: 1 minus the solver's mean | `reward_proposer` |
| 9 | end for | `episodes` |
| 10 | update with the solver's episodes, by GRPO | `updates`, done by the loop |
| 11 | update with the proposer's episodes, by REINFORCE | `updates`, done by the loop |
| 12 | end for | `next_memory` |

See docs/ssp.md for a description, and docs/fidelity.md for what the paper leaves open or its code does differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollouts.types import Completion
from scope_jax.config import Config, Grader, JudgeSection, Measure, RoleSection
from scope_jax.data.keys import rng
from scope_jax.data.sources import Source
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import grading, rewards, searching
from scope_jax.play.exams import Exam
from scope_jax.play.searching import Search
from scope_jax.play.system import Memory
from scope_jax.play.tools import Prompt, Tools
from scope_jax.play.turns import Respond
from scope_jax.systems.ssp import instructions, pool, rules
from scope_jax.systems.ssp.records import Problem, Proposal, Slot, Solved
from scope_jax.systems.ssp.rows import POLICY, episodes, measure
from scope_jax.systems.ssp.verification import verify
from scope_jax.text import dialects, parsing, templates

DUMMY = "There is no question this time; reply with the word none."


def policies(cfg: Config) -> tuple[str, ...]:
    """One actor plays every role."""
    return (POLICY,)


def uses_base(cfg: Config) -> bool:
    """The actor verifies its own questions."""
    return False


def searches(cfg: Config) -> bool:
    """Proposer and solver do."""
    return True


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """The outside grader and verifier, if the card has one."""
    return {} if cfg.judge is None else {"judge": cfg.judge}


def source(cfg: Config) -> Source:
    """Ground-truth answers."""
    assert cfg.data.answers is not None  # Config sees to it
    return Source(cfg.data.answers, "answers", cfg.data)


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """Of the roles that search."""
    return templates.system_files(cfg.ssp.prompts, instructions.SEARCHING)


def start(cfg: Config) -> Memory:
    """An empty pool of questions."""
    return {"pool": []}


def finished(cfg: Config, memory: Memory, step: int) -> bool:
    """SSP goes on for as many steps as the card says."""
    return False


def total_steps(cfg: Config) -> int | None:
    return cfg.train.steps


def iterations(cfg: Config, memory: Memory) -> int:
    """SSP is one run of steps."""
    return 0


def adopt(cfg: Config, memory: Memory, before: Config) -> Memory:
    """The pool is good under any card."""
    return memory


def updates(cfg: Config) -> tuple[Update, ...]:
    """Algorithm 1 l.10 and l.11 in the card's order; a role that does not learn has no update."""
    cards = {"solver": cfg.ssp.solver, "proposer": cfg.ssp.proposer}
    return tuple(
        Update(POLICY, cards[role].loss, (RoleShare(role),))
        for role in cfg.ssp.update_order
        if cfg.ssp.train in ("both", role)
    )


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step of Algorithm 1 up to the updates: episodes of both roles, the memory after it, metrics.

    Pure: every choice is drawn from (seed, step, place in the batch), and `memory` is not changed.
    """
    tallies: list[grading.Grades] = []
    # l.1: a step is one call
    # l.2: the batch of answers, one slot for each question to be written
    rows = tools.rows(step * cfg.train.batch_size, cfg.train.batch_size)
    slots = open_slots(cfg, rows, step)
    proposals: list[Proposal] = []
    failed = slots
    for attempt in range(attempts(cfg)):
        # l.3: a question for each answer (for those that failed so far, when resampling)
        fresh = propose(cfg, tools, failed, step, attempt)
        # l.4: the rules were applied as it was read; now verify it
        fresh, grades = verify(cfg, tools, fresh, proposals, step)
        tallies.append(grades)
        proposals += fresh
        failed = [proposal.slot for proposal in fresh if proposal.reason]
        if not failed:
            break
    # l.5: the questions kept; slots without one are filled
    problems = fill_slots(cfg, proposals, memory["pool"], step)
    # l.6: n attempts at each
    solved = solve(cfg, tools, problems)
    # l.7: right or wrong
    solved, grades = grade_solver(cfg, tools, solved)
    tallies.append(grades)
    # l.8: the proposer gains what the solver lost
    gains = reward_proposer(cfg, slots, proposals, solved)
    # l.9: rows of both roles
    trained = episodes(cfg, step, solved, proposals, gains)
    # l.10, l.11: the loop asks `updates` and does them with these rows
    # l.12: what the next step needs to know
    after = next_memory(cfg, memory, solved, step)
    metrics = measure(cfg, len(slots), solved, proposals, gains, len(after["pool"]))
    asked = {
        "judge/asked": sum(g.judged for g in tallies),
        "judge/unparsed": sum(g.unparsed for g in tallies),
        "judge/refused": sum(g.refused for g in tallies),
    }
    return trained, after, metrics | {name: float(count) for name, count in asked.items()}


def open_slots(cfg: Config, rows: Sequence[Mapping[str, Any]], step: int) -> list[Slot]:
    """`proposer.samples` slots for each row, with the number of searches a question shall need: the row's, or drawn."""
    slots: list[Slot] = []
    for item, row in enumerate(rows):
        draw = rng("ssp searches", cfg.seed, step, item)
        drawn = int(draw.integers(cfg.data.min_searches, cfg.data.max_searches, endpoint=True))
        searches = drawn if row["searches"] is None else row["searches"]
        golds = tuple(row["answers"])
        slots += [Slot(len(slots) + sample, item, golds, searches) for sample in range(cfg.ssp.proposer.samples)]
    return slots


def attempts(cfg: Config) -> int:
    """How often a slot may be proposed for; more than once only with dynamic resampling (App. B.1)."""
    return 1 + cfg.ssp.max_resamples if cfg.ssp.fill == "resample" else 1


def stops(cfg: Config, final: str) -> tuple[str, ...]:
    """Strings that end a turn of an episode with searches that ends in `<final>`."""
    return (dialects.load(cfg.model.dialect).close, f"</{final}>")


def responder(cfg: Config, search: Search, final: str) -> Respond:
    """What answers a turn of such an episode."""
    ends = cfg.model.turns == "raw"
    return searching.responder(search, dialects.load(cfg.model.dialect), (final,), end_token_ends=ends)


def converse(
    cfg: Config, tools: Tools, role: str, card: RoleSection, final: str, prompts: Sequence[Prompt], samples: int
) -> list[list[Completion]]:
    """Episodes with searches that end in `<final>`, sampled as the role's card says."""
    return tools.generate(
        role,
        prompts,
        samples,
        policy=POLICY,
        temperature=card.sampling.temperature,
        max_tokens=card.sampling.max_tokens,
        top_k=card.sampling.top_k,
        top_p=card.sampling.top_p,
        stop=stops(cfg, final),
        max_turns=card.max_turns,
        max_prompt_tokens=card.max_prompt_tokens,
        max_response_tokens=card.sampling.max_response_tokens,
        respond=responder(cfg, tools.search, final),
        tempered=card.loss.tempered,
    )


def propose(cfg: Config, tools: Tools, slots: Sequence[Slot], step: int, attempt: int) -> list[Proposal]:
    """τ ~ π(· | x_propose, a*): one proposer episode for each slot, its question Q(τ) and the first rule it breaks."""
    card = cfg.ssp.proposer
    samples = card.samples if attempt == 0 else 1  # at first the slots of a row are samples of one prompt
    prompts = []
    for slot in slots[::samples]:
        messages = instructions.for_proposer(cfg, slot, step)
        name = f"{slot.item}" if attempt == 0 else f"slot {slot.index} attempt {attempt}"
        prompts.append(Prompt(tools.encode_prompt(messages), name, messages))
    groups = converse(cfg, tools, "proposer", card, "question", prompts, samples)
    completions = [completion for group in groups for completion in group]
    proposals = []
    for place, (slot, completion) in enumerate(zip(slots, completions, strict=True)):
        question, reason = rules.apply(cfg, completion, slot.golds)
        proposals.append(Proposal(slot, attempt, prompts[place // samples].messages, completion, question, reason))
    return proposals


def fill_slots(cfg: Config, proposals: Sequence[Proposal], earlier: Sequence[pool.Entry], step: int) -> list[Problem]:
    """A problem for each slot: its own valid question, else one of the pool, else the dummy (App. B.1)."""
    last = sorted({p.slot.index: p for p in proposals}.items())
    empty = [index for index, proposal in last if proposal.reason]
    replays = cfg.ssp.fill in ("replay", "replay-reset")
    drawn = pool.draw(earlier, len(empty), rng("ssp replay", cfg.seed, step)) if replays else []
    old = dict(zip(empty, drawn, strict=False))
    problems = []
    for index, proposal in last:
        if not proposal.reason:
            problems.append(Problem(index, proposal.question or "", proposal.slot.golds, "fresh"))
        elif index in old:
            problems.append(Problem(index, old[index]["question"], tuple(old[index]["answers"]), "replay"))
        elif cfg.ssp.dummy == "rollout":
            problems.append(Problem(index, DUMMY, (), "dummy"))
    return problems


def solve(cfg: Config, tools: Tools, problems: Sequence[Problem]) -> list[Solved]:
    """ρʲ ~ π(· | x_solve, q), j = 1…n, for each problem; not yet graded."""
    card, dialect = cfg.ssp.solver, dialects.load(cfg.model.dialect)
    asked = [instructions.for_solver(cfg, problem.question) for problem in problems]
    prompts = [Prompt(tools.encode_prompt(said), f"{p.slot}", said) for p, said in zip(problems, asked, strict=True)]
    groups = converse(cfg, tools, "solver", card, "answer", prompts, card.samples) if prompts else []
    solved = []
    for problem, messages, group in zip(problems, asked, groups, strict=True):
        predictions = tuple(prediction_of(completion) for completion in group)
        formed = tuple(searching.keeps_format(c, dialect, "answer", cfg.ssp.format) for c in group)
        solved.append(
            Solved(problem, messages, tuple(group), predictions, formed, (False,) * len(group), ((),) * len(group))
        )
    return solved


def prediction_of(completion: Completion) -> str | None:
    """A(ρ): content of the last `<answer>`; None without one or when it is empty."""
    return parsing.last(searching.said(completion), "answer") or None


def grade_solver(cfg: Config, tools: Tools, solved: Sequence[Solved]) -> tuple[list[Solved], grading.Grades]:
    """r(A(ρʲ), a*) for every attempt; the dummy has no right answer, what is out of format is not graded."""
    cases = [
        grading.Case(group.problem.question, prediction if formed else None, group.problem.golds)
        for group in solved
        if group.problem.origin != "dummy"
        for prediction, formed in zip(group.predictions, group.formed, strict=True)
    ]
    grades = grading.grade(cfg.ssp.grader, cfg.ssp.prompts, tools.judge, cases)
    given = iter(zip(grades.correct, grades.judgements, strict=True))
    graded = []
    for group in solved:
        if group.problem.origin != "dummy":
            correct, judgements = zip(*(next(given) for _ in group.completions), strict=True)
            group = replace(group, correct=correct, judgements=judgements)
        graded.append(group)
    return graded, grades


def reward_proposer(
    cfg: Config, slots: Sequence[Slot], proposals: Sequence[Proposal], solved: Sequence[Solved]
) -> dict[int, float]:
    """Reward by slot: Eq. (7) for a valid question, `invalid_reward` for any other, whatever filled its slot."""
    gains = {slot.index: cfg.ssp.invalid_reward for slot in slots}
    for group in solved:
        if group.problem.origin != "fresh":
            continue
        if cfg.ssp.proposer_reward == "intermediate":
            gain = rewards.intermediate(group.rewards, cfg.ssp.intermediate_left, cfg.ssp.intermediate_right)
        else:
            gain = rewards.one_minus_mean(group.rewards)
        gains[group.problem.slot] = gain
    return gains


def next_memory(cfg: Config, memory: Memory, solved: Sequence[Solved], step: int) -> Memory:
    """The pool with this step's valid questions, or emptied at the end of a period (App. B.1)."""
    if cfg.ssp.fill not in ("replay", "replay-reset"):
        return memory
    kept = ("fresh", "replay") if cfg.ssp.replay_keep_reused else ("fresh",)
    new = [
        pool.entry(group.problem.question, group.problem.golds, step, rewards.mean(group.rewards))
        for group in solved
        if group.problem.origin in kept
    ]
    period = cfg.ssp.replay_reset_every if cfg.ssp.fill == "replay-reset" else None
    return {"pool": pool.after_step(memory["pool"], new, step, period)}


def exam(cfg: Config) -> Exam:
    """Questions answered as in training; graded so too, except that the format counts for nothing beyond `<answer>`."""
    dialect = dialects.load(cfg.model.dialect)
    rules: dict[Grader, tuple[Measure, ...]] = {
        "exact-match": ("exact-match",),
        "judge": ("judge",),
        "exact-match-then-judge": ("exact-match", "judge"),
    }
    return Exam(
        policy=POLICY,
        prompt=lambda row, tokens: instructions.for_solver(cfg, row["question"]),
        read=prediction_of,
        measures=("accuracy",),
        accuracy=rules[cfg.ssp.grader],
        stop=stops(cfg, "answer"),
        max_turns=cfg.ssp.solver.max_turns,
        respond=lambda search: responder(cfg, search, "answer"),
        searches=lambda completion: len(searching.queries_run(completion, dialect)),
        prompts=cfg.ssp.prompts,
    )
