"""RAG verification (§3.2, §4.4): can the question be answered from the proposer's search results mixed with noise?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scope_jax.config import Config
from scope_jax.data.keys import rng
from scope_jax.games.ssp import instructions, materials
from scope_jax.games.ssp.options import options
from scope_jax.games.ssp.records import Proposal
from scope_jax.learner.types import Judgement, Reply
from scope_jax.play import grading, searching
from scope_jax.play.game import ACTOR
from scope_jax.play.tools import Agent, Rollout, Tools, single_turn
from scope_jax.text import dialects, parsing
from scope_jax.text.messages import Messages


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
    answers = {place: _answer(reply, options(cfg).verify == "judge") for place, reply in replies.items()}
    cases = [
        grading.Case(fresh[place].question or "", prediction, fresh[place].slot.golds)
        for place, prediction in answers.items()
    ]
    grades = grading.grade(options(cfg).grader, options(cfg).prompts, tools.judge, cases)
    graded = dict(zip(answers, zip(grades.correct, grades.judgements, strict=True), strict=True))
    checked = []
    for place, proposal in enumerate(fresh):
        if place in graded:
            right, judgements = graded[place]
            reply, answer = replies[place], answers[place]
            proposal = replace(
                proposal,
                reason="" if right else "verify_no_answer" if answer is None else "verify_wrong",
                reply=reply.text,
                judgements=(Judgement("verifier", "", (reply,), answer), *judgements),
            )
        elif place in prompts:
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
    read = [materials.units(searching.results_read(proposal.completion, dialect), unit) for proposal in all_proposals]
    prompts = {}
    for place, proposal in enumerate(fresh):
        if proposal.reason:
            continue
        index = proposal.slot.index
        others = [text for p, texts in zip(all_proposals, read, strict=True) if p.slot.index != index for text in texts]
        generator = rng("ssp noise", cfg.seed, step, index, proposal.attempt)
        mixed = materials.mix(read[place], others, options(cfg).noise_documents, generator)
        prompts[place] = instructions.for_verification(cfg, proposal.question or "", materials.render(mixed, unit))
    return prompts


def _replies(cfg: Config, tools: Tools, prompts: Mapping[int, str], fresh: Sequence[Proposal]) -> dict[int, Reply]:
    """Reply to each prompt, by the policy or by the external judge; prompts too long for the policy are left out."""
    if not prompts:
        return {}
    if options(cfg).verify == "judge":
        return dict(zip(prompts, tools.judge(list(prompts.values())), strict=True))
    limit = min(cfg.rollout.max_length - options(cfg).verify_max_tokens, options(cfg).solver.max_prompt_tokens)
    fitting = {
        place: Rollout(f"{fresh[place].slot.index} attempt {fresh[place].attempt}", messages)
        for place, messages in zip(prompts, map(Messages, prompts.values()), strict=True)
        if tools.prompt_tokens(messages) <= limit
    }
    agent = Agent(ACTOR, single_turn(options(cfg).verify_temperature, options(cfg).verify_max_tokens))
    groups = tools.play("verify", list(fitting.values()), agent)
    return {
        place: Reply(searching.written(group[0]), cut=searching.cut_off(group[0]))
        for place, group in zip(fitting, groups, strict=True)
    }
