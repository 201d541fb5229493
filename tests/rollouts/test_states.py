"""Engines over a model most of whose layers have a state instead of keys and values: the same bits whatever a request
is batched with, where a turn is cut, and whether it was set aside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from scope_jax.models.decoder.adapter import Adapter, combined, declare_factors
from scope_jax.models.decoder.config import Attention, Delta, Dense, Layer
from scope_jax.models.decoder.paging import PAGE
from scope_jax.models.kernels.rope import Rope
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.pages import Snapshots
from scope_jax.rollouts.slots import Placement
from scope_jax.rollouts.types import Continuation
from scope_jax.sharding.spec import init_params
from tests.rollouts.world import CFG, bits, make_engine, make_paged, make_params, make_rollouts, mixed, request
from tests.rollouts.world import trainer_logprobs as learner_logprobs

MIXERS = (Delta(2, 4, 8, 6, 4, 1e-6), Attention(4, 2, 8, Rope(1e4, share=0.5), qk_norm="head", gate=True))
HYBRID = replace(CFG, layers=tuple(Layer(mixer, Dense(48)) for mixer in MIXERS), norm_offset=1.0)
SEEN = list(b" seen. ")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def params():
    return make_params(HYBRID)


@pytest.fixture(scope="module", params=["dense", pytest.param("paged", marks=pytest.mark.slow)])
def engine(request):
    return make_engine(cfg=HYBRID) if request.param == "dense" else make_paged(cfg=HYBRID)


def cut(kept: int, turns: int = 1, seen=SEEN):
    """Keeps the first tokens of each turn and says something."""

    def respond(said):
        return Continuation(seen, "seen", kept=kept) if sum(t.kind == "sampled" for t in said) <= turns else None

    return respond


def conversations(count: int, seen=SEEN) -> list:
    """Two turns that are cut after different tokens, then a last one; every other prompt is longer than a page."""
    return [
        request(
            f"question {i} " * (8 if i % 2 else 1),
            key=i,
            stop_ids=(),
            max_tokens=20,
            max_turns=4,
            respond=cut(1 + i, turns=2, seen=seen),
        )
        for i in range(count)
    ]


def assert_the_learners(params, completions) -> None:
    for completion in completions:
        sampled = completion.sampled_T
        expected = learner_logprobs(params, completion, cfg=HYBRID)
        np.testing.assert_allclose(completion.logprobs_T[sampled], expected[sampled], atol=1e-4, rtol=0)


def test_turns_that_are_cut_alone_and_together(engine, params):
    """Cut after every token of a turn; log-probs are those of the learner's forward pass over the whole row."""
    rollouts = make_rollouts(engine, params)
    together = rollouts.run(conversations(12))
    assert len({bits(one) for one in together}) == 12
    assert_the_learners(params, together)
    alone = [rollouts.run([one])[0] for one in conversations(12)[::3]]
    assert [bits(one) for one in alone] == [bits(one) for one in together[::3]]


@pytest.mark.slow
def test_slots_in_any_order(engine, params):
    """More requests than slots, so that slots are used again; of other dispatches the same bits."""
    rollouts = make_rollouts(engine, params)
    together = rollouts.run(mixed(20))
    order = np.random.default_rng(0).permutation(20)
    assert [bits(one) for one in rollouts.run([mixed(20)[i] for i in order])] == [bits(together[i]) for i in order]
    other = Engine(HYBRID, replace(engine.config, decode_steps=7), engine.mesh, engine.how)
    again = make_rollouts(other, params)
    assert [bits(one) for one in again.run(mixed(20))] == [bits(one) for one in together]
    assert [bits(one) for one in again.run(conversations(8))] == [bits(one) for one in rollouts.run(conversations(8))]


@pytest.mark.slow
def test_groups_share_the_whole_pages_of_their_prompt(params):
    """The state after them is kept; what is behind them is computed for each."""
    prompt = "a prompt of more than two pages " * 5
    group = [request(prompt, key=i, group="g", max_tokens=12) for i in range(8)]
    rollouts = make_rollouts(make_paged(cfg=HYBRID, max_length=256), params)
    shared = rollouts.run(group)
    assert rollouts._state.prompt_tokens == 8 * (len(prompt) - 1)
    assert rollouts._state.computed_tokens == 2 * PAGE + 8 * (len(prompt) - 1 - 2 * PAGE)
    fresh = make_rollouts(make_paged(cfg=HYBRID, max_length=256), params)
    alone = []
    for one in group[::4]:
        fresh.clear()
        alone += fresh.run([one])
    assert [bits(one) for one in alone] == [bits(one) for one in shared[::4]]


@pytest.mark.slow
def test_set_aside_and_back(params, monkeypatch):
    """With few pages episodes wait in host memory, their states with them."""
    plenty = make_rollouts(make_paged(cfg=HYBRID, max_length=256), params).run(conversations(12, SEEN * 8))
    aside, set_aside = [], Engine.set_aside

    def counted(self, state, slot):
        aside.append(slot)
        return set_aside(self, state, slot)

    monkeypatch.setattr(Engine, "set_aside", counted)
    few = make_rollouts(make_paged(cfg=HYBRID, max_length=256, pages=8), params)
    assert [bits(one) for one in few.run(conversations(12, SEEN * 8))] == [bits(one) for one in plenty]
    assert aside and few._state.pools[0].used == 0 and not any(few._state.begun)


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("shared",)], ids=["states", "shared"])
def test_eight_devices_give_the_episodes_of_one(words):
    """Slots and their snapshots over data and fsdp, heads over tensor."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.rollouts.eight_states", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    one, *others = json.loads(done.stdout.splitlines()[-1]).values()
    for other in others:
        assert other["ids"] == one["ids"]
        for ours, theirs in zip(other["logprobs"], one["logprobs"], strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["olmo_hybrid", "qwen3_5_text"])
def test_an_adapter_of_both_kinds_of_layers(params, architecture):
    """In Qwen3.5's files queries, keys and values are one module, whose A they share."""
    adapter, hybrid = Adapter(2, 4.0, ("all-linear",)), replace(HYBRID, architecture=architecture)
    factors = init_params(declare_factors(hybrid, adapter), jax.random.key(0))
    factors = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(1), x.shape), factors)
    assert set(factors["layers"]["0"]) == {
        *("q_D_Kh", "k_D_Kh", "v_D_He", "z_D_He", "beta_DH", "decay_DH", "o_He_D"),
        *("gate_DF", "up_DF", "down_FD"),
    }
    both = {name for name, own in factors["layers"]["0"].items() if "a" in own}
    assert ("k_D_Kh" in both) == (architecture == "olmo_hybrid") and "q_D_Kh" in both
    rollouts = make_rollouts(make_paged(cfg=hybrid, adapter=adapter, policies=("a",)), params)
    rollouts.load_adapter("a", factors)
    asked = [replace(one, policy=policy) for policy in ("a", None) for one in conversations(3)]
    said = rollouts.run(asked)
    assert_the_learners(combined(hybrid, params, factors, adapter.scale), said[:3])
    assert_the_learners(params, said[3:])


@pytest.mark.slow
def test_slots_that_do_not_decode_keep_their_states(params):
    """After a dispatch in which no slot is live, what is kept is what was there, bit for bit."""
    engine = make_engine(cfg=HYBRID)
    weights = engine.load_params(params)
    how, key = request("x").params, np.zeros(2, np.uint32)
    state = engine.insert(engine.init_decode_state(), [Placement(3, np.arange(20), 100, how, key)])
    state, _ = engine.advance(weights, state)
    state, _ = engine.generate(weights, state)
    state = engine.pause(state, [3])
    before = jax.device_get(state.device.cache.kept)
    state, _ = engine.generate(weights, state)
    after = jax.device_get(state.device.cache.kept)
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert np.abs(before[0].state_BHhe[3]).max() > 0 and not np.any(before[0].state_BHhe[:3])


@pytest.mark.slow
def test_groups_with_a_page_for_each_slot_compute_their_prompt_once(params):
    """Keys are copied, and the state after the prompt is kept."""
    prompt = "a prompt of more than a block of columns " * 2
    group = [request(prompt, key=i, group="g", max_tokens=12) for i in range(12)]
    rollouts = make_rollouts(make_engine(cfg=HYBRID), params)
    shared = rollouts.run(group)
    assert rollouts._state.computed_tokens == len(prompt) - 1
    assert [bits(one) for one in make_rollouts(make_engine(cfg=HYBRID), params).run(group[7:8])] == [bits(shared[7])]


def test_the_least_recently_used_snapshot_goes():
    states = Snapshots(4, 3)
    one, two = states.enter(11), states.enter(12)
    assert one is not None and two is not None
    assert {one, two} < {4, 5, 6} and states.enter(11) is None and states.find(11) == one
    turn = states.take()
    assert sorted((one, two, turn)) == [4, 5, 6] and set(states.known) == {11, 12}
    states.hold(one)  # a turn that begins there
    assert states.enter(13) == two and set(states.known) == {11, 13}
    states.drop(turn)
    assert states.take() == turn and states.enter(14) == two and set(states.known) == {11, 14}
