"""What a call of `Tools.generate` asks the engine for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scope_jax.config import CardError
from scope_jax.games import load_card
from scope_jax.play.tools import Agent, Rollout, single_turn
from scope_jax.rollouts.scripted import ScriptedRollouts
from scope_jax.run.world import StepTools
from scope_jax.text.messages import Messages
from tests.games.harness import Characters


def test_prompts_of_equal_ids_share_a_prefill_and_no_random_numbers():
    asked: list[Any] = []
    counted: list[Any] = []
    script = ScriptedRollouts(lambda prompt, turns: "x", Characters(), max_length=9)
    engine = SimpleNamespace(run=lambda requests: asked.extend(requests) or script.run(requests))
    world: Any = SimpleNamespace(
        cfg=SimpleNamespace(seed=0, model=SimpleNamespace(tags_in_thinking=False, stop=("User:",))),
        tokenizer=SimpleNamespace(eos_ids=(3,)),
        sampler=SimpleNamespace(use=lambda policy: engine, named=lambda policy: None, count=counted.extend),
    )
    ids = {"a": (1, 2), "b": (1, 3), "c": (1, 2)}
    rollouts = [Rollout(name, Messages(name), prompt_ids=given) for name, given in ids.items()]
    tools: Any = SimpleNamespace(world=world, step=0, _shorter=lambda limit, used: limit)
    StepTools.play(tools, "writer", rollouts, Agent("actor", single_turn(1.0, 4)), 2)
    assert len(counted) == 6
    assert [request.group for request in asked] == ["a", "a", "b", "b", "a", "a"]
    assert len({tuple(request.key.tolist()) for request in asked}) == 6
    assert {request.params.ends for request in asked} == {("User:",)}


def test_a_reply_that_a_string_ends_cannot_be_continued_by_a_template():
    with pytest.raises(CardError, match='turns = "chat" cannot continue; remove stop'):
        load_card("configs/score/qwen2.5-7b.toml", ['model.stop=["User:"]'])
