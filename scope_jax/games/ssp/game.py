"""SSP as a `Game`: Algorithm 1, the learner's updates, episodes, metrics, the exam of its solver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scope_jax.config import Config, GradingRule, JudgeSection, Measure
from scope_jax.games.ssp import messages, roles, rules, state
from scope_jax.games.ssp.options import SSPSection, check, options
from scope_jax.games.ssp.state import Proposal, Solved
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import grading, metric_names, searching
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACCURACY, ACTOR, GRADIENT, REWARD, Game, Memory, Panel, Starter
from scope_jax.play.rewards import mean, means, parts_of, shares
from scope_jax.play.tools import Tools
from scope_jax.text import templates


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step of Algorithm 1 up to the updates: episodes of both roles, the memory after it, metrics.

    Pure: all randomness is derived from (seed, step, position in the batch), and `memory` is not modified.
    """
    tallies: list[grading.Grades] = []
    # l.1: a step is one call
    # l.2: the batch of answers, with one slot per question to be written
    rows = tools.rows(step * cfg.train.batch_size, cfg.train.batch_size)
    slots = roles.open_slots(cfg, rows, step)
    proposals: list[Proposal] = []
    failed = slots
    for attempt in range(roles.attempts(cfg)):
        # l.3: a question for each answer (when resampling, for each slot that has failed so far)
        fresh = roles.propose(cfg, tools, failed, step, attempt)
        # l.4: `propose` has applied the rules; now verify the questions
        fresh, grades = roles.verify(cfg, tools, fresh, proposals, step)
        tallies.append(grades)
        proposals += fresh
        failed = [proposal.slot for proposal in fresh if proposal.reason]
        if not failed:
            break
    # l.5: the valid questions; slots without one are filled from the pool or with dummies
    problems = roles.fill_slots(cfg, proposals, memory["pool"], step)
    # l.6: n attempts at each
    solved = roles.solve(cfg, tools, problems)
    # l.7: correct or wrong
    solved, grades = roles.grade_solver(cfg, tools, solved)
    tallies.append(grades)
    # l.8: the proposer's rewards
    rewards = roles.reward_proposer(cfg, slots, proposals, solved)
    # l.9: episodes of both roles
    played = episodes(cfg, step, solved, proposals, rewards)
    # l.10, l.11: the training loop calls `updates` and trains on these episodes
    # l.12: the memory for the next step
    after = state.next_memory(cfg, memory, solved, step)
    metrics = measure(cfg, played, len(slots), solved, proposals, rewards, len(after["pool"]))
    return played, after, metrics | grading.counts(tallies)


def updates(cfg: Config) -> tuple[Update, ...]:
    """Algorithm 1 l.10 and l.11 in the card's order; a role that is not trained has no update."""
    cards = {"solver": options(cfg).solver, "proposer": options(cfg).proposer}
    return tuple(
        Update(ACTOR, cards[role].loss, (RoleShare(role),))
        for role in options(cfg).update_order
        if options(cfg).train in ("both", role)
    )


def episodes(
    cfg: Config, step: int, solved: Sequence[Solved], proposals: Sequence[Proposal], rewards: Mapping[int, float]
) -> list[Episode]:
    """All episodes of both roles; `trained` is False for a role that is not trained and for replaced proposals.

    rewards: the proposer's reward by slot. Only the last proposal of a slot counts, since it replaced the earlier ones.
    A dummy pads the solver's batch: it has no gradient (App. B.1), but counts in the B of Eq. (4).
    """
    card = options(cfg)
    solver_learns = card.train in ("both", "solver") and step >= card.proposer_warmup_steps
    proposer_learns = card.train in ("both", "proposer")
    last = {proposal.slot.index: proposal for proposal in proposals}
    success = {group.problem.slot: mean(group.rewards) for group in solved}
    played = [
        _attempt(group, j, solver_learns, card.solver.sampling.temperature)
        for group in solved
        for j in range(len(group.completions))
    ]
    for proposal in proposals:
        index = proposal.slot.index
        counts = last[index] is proposal
        valid = not proposal.reason
        episode = Episode.from_completion(
            proposal.completion,
            proposal.prompt,
            {
                "question": proposal.question,
                "answer": proposal.slot.golds[0],
                "searches_asked": proposal.slot.searches,
                "rejected": proposal.reason,
                "verification": proposal.reply,
                "slot": index,
                "attempt": proposal.attempt,
            },
            role="proposer",
            policy=ACTOR,
            group=f"proposer/{proposal.slot.item}",
            reward=rewards[index] if counts else card.invalid_reward,
            parts={"valid": float(valid)} | ({"solver_mean": success[index]} if valid and index in success else {}),
            trained=proposer_learns and counts,
            temperature=card.proposer.sampling.temperature,
            judgements=proposal.judgements,
        )
        played.append(episode)
    return played


def _attempt(group: Solved, j: int, learns: bool, temperature: float) -> Episode:
    """The solver's j-th attempt at a problem."""
    problem = group.problem
    dummy = problem.origin == "dummy"
    return Episode.from_completion(
        group.completions[j],
        group.prompt,
        {
            "question": problem.question,
            "answer": problem.golds[0] if problem.golds else None,
            "prediction": group.predictions[j],
            "slot": problem.slot,
            "origin": problem.origin,
        },
        role="solver",
        policy=ACTOR,
        group=f"solver/{problem.slot}",
        reward=group.rewards[j],
        parts={"correct": float(group.correct[j]), "format": float(group.formed[j])},
        trained=learns and not dummy,
        padding=learns and dummy,
        temperature=temperature,
        judgements=group.judgements[j],
    )


def measure(
    cfg: Config,
    played: Sequence[Episode],
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
        **parts_of("solver", [episode for episode in played if episode.text.get("origin") != "dummy"], "format"),
        **parts_of("proposer", played, "valid"),
        "proposer/reward": list(rewards.values()),  # one for a slot, however many proposals it took
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
    return means(values) | counts | shares("proposer/rejected_", rejected, rules.REASONS)


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    rejections = metric_names.rejections(rules.REASONS)
    yield from metric_names.of(
        {
            "solver": f"reward format searches {metric_names.LENGTHS}",
            "proposer": f"reward valid episodes searches {metric_names.LENGTHS} {rejections}",
            "slots": "fresh replay dummy",
            "pool": "size",
            "verify": "passed",
            "judge": metric_names.JUDGE,
        }
    )


def exam(cfg: Config) -> Exam:
    """Questions answered and graded as in training, except that the only format requirement is an `<answer>`."""
    rules: dict[GradingRule, tuple[Measure, ...]] = {
        "exact-match": ("exact-match",),
        "judge": ("judge",),
        "exact-match-then-judge": ("exact-match", "judge"),
    }
    return Exam(
        policy=ACTOR,
        prompt=lambda row, tokens: messages.for_solver(cfg, row["question"]),
        read=roles.prediction_of,
        measures=("accuracy",),
        accuracy=rules[options(cfg).grader],
        max_turns=options(cfg).solver.max_turns,
        searches=lambda completion: searching.searches_run(cfg, completion),
        prompts=options(cfg).prompts,
        **searching.until("answer"),
    )


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """The external model, if the card uses it as grader or verifier."""
    used = options(cfg).grader != "exact-match" or options(cfg).verify == "judge"
    return {"judge": cfg.judge} if cfg.judge is not None and used else {}


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """System message files of the roles that search."""
    return templates.system_files(options(cfg).prompts, messages.SEARCHING)


GAME = Game(
    name="ssp",
    options=SSPSection,
    play=play,
    updates=updates,
    exam=exam,
    check=check,
    searches=True,
    judges=judges,
    system_messages=system_messages,
    check_prompts=messages.check_prompts,
    start=lambda cfg: {"pool": []},
    data=("answers", "min_searches", "max_searches"),
    starter=Starter(options={"grader": "exact-match", "verify": "policy"}),  # no external judge
    panels=(
        ACCURACY,
        REWARD,
        Panel("Valid questions", ("/valid",), True),
        Panel("Searches per episode", ("/searches",), False),
        GRADIENT,
    ),
    metrics=metrics,
)
