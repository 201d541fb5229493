"""The questioner: writes a question and its answer from some of a cluster's documents (section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scope_jax.config import Config
from scope_jax.games.spell import instructions, responder, rules
from scope_jax.games.spell.conversation import agent
from scope_jax.games.spell.options import options
from scope_jax.games.spell.records import Asked, Group, Order
from scope_jax.play.searching import reply_text
from scope_jax.play.tools import Rollout, Tools
from scope_jax.rollouts.types import Completion, Row

_NONE = np.zeros(0, np.int32)
NOT_ASKED = Completion((Row(_NONE, _NONE, _NONE.astype(bool), _NONE.astype(np.float32)),), (), "overflow", "")


def ask(cfg: Config, tools: Tools, orders: Sequence[Order]) -> list[Asked]:
    """(q, a) ~ π^que(· | X^que) for each order, with a reason if it is malformed or its prompt was too long.

    No question is asked about a cluster whose documents alone exceed the responder's prompt.
    """
    conversations = [instructions.for_questioner(cfg, order) for order in orders]
    fit = [responder.fits(cfg, tools, order) for order in orders]
    rollouts = [
        Rollout(f"{order.place}", messages)
        for messages, order, fitting in zip(conversations, orders, fit, strict=True)
        if fitting
    ]
    replies = iter(tools.play("questioner", rollouts, agent(cfg, options(cfg).questioner)))
    found = []
    for order, messages, fitting in zip(orders, conversations, fit, strict=True):
        (completion,) = next(replies) if fitting else (NOT_ASKED,)
        question, reason = None, "prompt_too_long" if fitting else "documents_too_long"
        if completion.turns:
            limit = options(cfg).max_answer_tokens
            question, reason = rules.question_of(reply_text(completion), order.task, tools.tokens, limit)
        found.append(Asked(order, messages, completion, question, reason))
    return found


def reward(cfg: Config, asked: Sequence[Asked], groups: Sequence[Group]) -> list[Asked]:
    """The questions with r^que (Eq. (7)), by the success rate of their answers; 0 for a question without answers."""
    success = {group.place: group.mean for group in groups}
    return [replace(one, reward=_reward(cfg, one, success.get(one.order.place))) for one in asked]


def _reward(cfg: Config, asked: Asked, success: float | None) -> float:
    if asked.reason in rules.MALFORMED:
        return options(cfg).malformed_reward
    if asked.reason == rules.UNGROUNDED:
        return options(cfg).ungrounded_reward
    if success is None:
        return 0.0
    card = options(cfg)
    return rules.questioner_reward(card.questioner_reward, success, card.target, card.width)
