"""SCOPE's challenger: drafts, quality gates and rubrics (section 3.1, stage 1; App. G)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scope_jax.config import Config, SamplingSection
from scope_jax.games.scope import conversation, instructions, judging, rules
from scope_jax.games.scope.options import options
from scope_jax.games.scope.records import Draft, Order
from scope_jax.learner.types import Judgement, Metrics
from scope_jax.play.asking import Replies
from scope_jax.play.tools import Agent, Rollout, Tools
from scope_jax.text.messages import Messages

POLICY = "challenger"


@dataclass
class Tally:
    """Counts of judge requests and of replies that could not be parsed in a step, by job."""

    counts: Metrics

    def add(self, job: str, replies: Replies) -> None:
        """Adds the counts of one call."""
        for name in ("asked", "retried", "malformed", "refused"):
            key = f"judge/{job}/{name}"
            self.counts[key] = self.counts.get(key, 0.0) + getattr(replies, name)


def propose(cfg: Config, tools: Tools, orders: Sequence[Order], samples: int, sampling: SamplingSection) -> list[Draft]:
    """(o^C, q) ~ Rollout(C, d): `samples` episodes for each order, with task extracted and format scored."""
    conversations = [instructions.for_challenger(cfg, order) for order in orders]
    rollouts = [_rollout(cfg, tools, order, messages) for order, messages in zip(orders, conversations, strict=True)]
    agent = Agent.of_role(options(cfg).challenger, POLICY, sampling, stop=conversation.stops(cfg, "task"))
    groups = tools.play("challenger", rollouts, agent, samples)
    drafts: list[Draft] = []
    for order, messages, completions in zip(orders, conversations, groups, strict=True):
        for sample, completion in enumerate(completions):
            turns = conversation.parse_turns(cfg, completion, "task")
            task = rules.task_of(turns, options(cfg).challenger_reward.require_question)
            form = rules.challenger_format(options(cfg).challenger_reward, turns, order.searches)
            rejected = "" if task is not None else "no_task"
            drafts.append(Draft(order, sample, messages, completion, turns, form, task, rejected))
    return drafts


def _rollout(cfg: Config, tools: Tools, order: Order, messages: Messages) -> Rollout:
    """The rollout of an order; with dynamic turns, its responder depends on the expected number of searches."""
    respond = conversation.responder(cfg, tools.search, "task", order.searches if options(cfg).dynamic_turns else None)
    return Rollout(f"{order.index}", messages, respond)


def pass_gates(cfg: Config, tools: Tools, drafts: Sequence[Draft], tally: Tally) -> list[Draft]:
    """QG(q, d): the drafts with the verdict of each gate. Both must be 1; a gate without a verdict counts as failed."""
    if not options(cfg).quality_gates:
        return list(drafts)
    open_drafts = [(place, draft) for place, draft in enumerate(drafts) if not draft.rejected]
    questions = [
        instructions.for_gate(cfg, gate, draft.task or "", draft.order.document)
        for _, draft in open_drafts
        for gate in instructions.GATES
    ]
    replies = judging.scores(cfg, tools, "gates", questions)
    tally.add("gates", replies)
    checked = list(drafts)
    for number, (place, draft) in enumerate(open_drafts):
        replied = slice(len(instructions.GATES) * number, len(instructions.GATES) * (number + 1))
        verdicts = dict(zip(instructions.GATES, replies.read[replied], strict=True))
        rejected = next((gate for gate in instructions.GATES if not verdicts[gate]), "")
        judged = tuple(
            Judgement("gates", gate, given, verdicts[gate])
            for gate, given in zip(instructions.GATES, replies.given[replied], strict=True)
        )
        checked[place] = replace(draft, gates=verdicts, rejected=rejected, judgements=(*draft.judgements, *judged))
    return checked


def write_rubrics(cfg: Config, tools: Tools, drafts: Sequence[Draft], tally: Tally) -> list[Draft]:
    """𝒢 ~ J(· | q, d): the drafts with rubrics, written from the source document and what the challenger read."""
    open_drafts = [(place, draft) for place, draft in enumerate(drafts) if not draft.rejected]
    questions = [
        instructions.for_rubric_writer(
            cfg, draft.task or "", [draft.order.document, *conversation.evidence(cfg, draft.completion)]
        )
        for _, draft in open_drafts
    ]
    replies = judging.rubrics(cfg, tools, questions)
    tally.add("rubric_writer", replies)
    checked = list(drafts)
    for (place, draft), rubric, given in zip(open_drafts, replies.read, replies.given, strict=True):
        judged = Judgement("rubric_writer", "", given, len(rubric) if rubric else None)
        checked[place] = replace(
            draft,
            rubric=rubric or (),
            rejected="" if rubric else "no_rubrics",
            judgements=(*draft.judgements, judged),
        )
    return checked


def reward(cfg: Config, draft: Draft, solver_mean: float | None) -> tuple[float, dict[str, float]]:
    """(R_C, its parts) of a draft (Eq. (4)). solver_mean: ḡ of its task, or None if it has no score."""
    card = options(cfg).challenger_reward
    failed = draft.rejected in ("no_task", "no_rubrics")
    format_score = 0.0 if failed and card.failure_zeroes_format else draft.format.score
    difficulty = 0.0 if solver_mean is None else rules.difficulty_reward(solver_mean, card.target)
    passed = draft.rejected not in instructions.GATES
    total = rules.challenger_reward(card, format_score, passed, difficulty)
    parts = {
        "format": format_score,
        "think": draft.format.think,
        "tool": draft.format.tool,
        "structure": draft.format.result,
        "difficulty": difficulty if passed else 0.0,
    }
    return total, parts | ({} if solver_mean is None else {"solver_mean": solver_mean})
