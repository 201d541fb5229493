"""The verifier: G judgments of each answer against the reference, and their majority vote (section 4.1, Eq. (4))."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scope_jax.config import Config
from scope_jax.games.spell import instructions, rules
from scope_jax.games.spell.conversation import agent
from scope_jax.games.spell.options import options
from scope_jax.games.spell.records import Group, Judged
from scope_jax.play.searching import reply_text
from scope_jax.play.tools import Rollout, Tools


def verify(cfg: Config, tools: Tools, groups: Sequence[Group]) -> list[Group]:
    """The groups with {v_ij} ~ π^ver(· | q, y_i, a) and v_i on every answer that has a conclusion (Alg. 1 l.16, l.17).

    An answer without a conclusion is not verified: the rule alone decides. A prompt that is too long has no judgments.
    """
    if not options(cfg).verify:
        return list(groups)
    conversations = {
        (g, i): instructions.for_verifier(cfg, group.question, response.answer, group.question.answer)
        for g, group in enumerate(groups)
        for i, response in enumerate(group.responses)
        if response.answer is not None
    }
    card = options(cfg).verifier
    rollouts = [Rollout(f"{groups[g].place} answer {i}", messages) for (g, i), messages in conversations.items()]
    replies = dict(zip(conversations, tools.play("verifier", rollouts, agent(cfg, card), card.samples), strict=True))
    verified = []
    for g, group in enumerate(groups):
        responses = list(group.responses)
        for i, response in enumerate(responses):
            if (g, i) in conversations:
                sampled = [c for c in replies[g, i] if c.turns]
                judgments = tuple(Judged(c, rules.verdict_of(reply_text(c))) for c in sampled)
                decided = rules.vote([j.verdict for j in judgments], options(cfg).vote)
                responses[i] = replace(response, prompt=conversations[g, i], judgments=judgments, vote=decided)
        verified.append(replace(group, responses=tuple(responses)))
    return verified
