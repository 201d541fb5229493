"""The experts that an engine's routers pick: those of a forward pass over the whole row, whatever a request is batched
with, whichever part of it was in the cache, wherever a turn was cut."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models.decoder import transformer
from scope_jax.models.decoder.moe import keeping, picked_dtype
from scope_jax.models.decoder.paging import PAGE
from scope_jax.models.kernels.attention import make_attend
from scope_jax.rollouts.budget import page_bytes
from scope_jax.rollouts.slots import Placement
from scope_jax.rollouts.types import Continuation, Restart
from scope_jax.sharding.collectives import LOCAL
from tests.rollouts.world import CFG, bits, make_engine, make_paged, make_params, make_rollouts, new_engine, request
from tests.rollouts.world import ENGINE as PLAIN
from tests.shapes import like

MOE = like(CFG, architecture="qwen3_moe", num_experts=6, experts_per_token=2, norm_topk_prob=True)
ENGINE = replace(PLAIN, picks=True)
KEPT, SEEN = 5, list(b" seen. ")


@pytest.fixture(scope="module")
def params():
    return make_params(MOE)


@pytest.fixture(scope="module", params=["dense", pytest.param("paged", marks=pytest.mark.slow)])
def engine(request):
    return make_engine(ENGINE, MOE) if request.param == "dense" else make_paged(ENGINE, MOE)


def asked(count: int, tokens: int = 9) -> list:
    """Two turns of which the first is cut, an observation, then a new prompt; every other first prompt is longer than a
    page, and those that are equal are of one group."""

    def respond(said):
        turns = sum(turn.kind == "sampled" for turn in said)
        return (
            Continuation(SEEN, "seen", kept=KEPT) if turns == 1 else Restart(list(b"again"), "") if turns == 2 else None
        )

    plain = {"stop_ids": (), "max_tokens": tokens, "max_turns": 3, "respond": respond}
    requests = [request("question " * (8 if i % 2 else 1), key=i, group=str(i % 2), **plain) for i in range(count)]
    return [replace(one, picks=True) for one in requests]


@jax.jit
def forward(params, ids_BT):
    positions_BT, kept = jnp.arange(ids_BT.shape[1])[None], []
    attend = make_attend("reference", jnp.full_like(ids_BT, ids_BT.shape[1]), positions_BT, None)
    x_BTD = transformer.embed(MOE, params, ids_BT, LOCAL)
    for w, layer in zip(transformer.unstack_layers(MOE, params)["layers"], MOE.layers, strict=True):
        x_BTD = transformer.block(MOE, layer, w, x_BTD, positions_BT, attend, LOCAL, router=keeping(kept))
    return jnp.stack(kept, axis=1)


def of_forward(params, ids) -> np.ndarray:
    """What the routers of the training model's layers pick of a whole row, [tokens, L, k]."""
    padded = np.zeros((1, ENGINE.max_length), np.int32)
    padded[0, : len(ids)] = ids
    return np.asarray(forward(params, padded))[: len(ids)]


def picks(completions) -> list[np.ndarray]:
    return [row.picked_TLk for completion in completions for row in completion.rows]


def same(ours, others) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(picks(ours), picks(others), strict=True))


def test_they_are_those_of_a_forward_pass(engine, params):
    """Of prompts, sampled tokens, an observation and a new prompt; the last token of a row has none."""
    rollouts = make_rollouts(engine, params)
    together = rollouts.run(asked(4))
    for completion in together[:2]:
        assert len(completion.rows) == 2
        for row in completion.rows:
            ids, found = np.concatenate([row.prompt_ids, row.ids_T]), row.picked_TLk
            assert found is not None and found.shape == (len(ids), 2, 2) and found.dtype == np.uint8
            assert np.array_equal(found[:-1], of_forward(params, ids)[:-1]) and not found[-1].any()
    assert len({one.tobytes() for one in picks(together)}) == len(picks(together))
    assert same(together, [rollouts.run([one])[0] for one in asked(4)])  # with pages: prompts from the cache


@pytest.mark.slow
def test_dense_and_paged_set_aside_and_ahead(params):
    """A cache that is too small for all, and dispatches that are launched before others are read: the same picks."""
    dense = make_rollouts(make_engine(ENGINE, MOE), params).run(asked(12, tokens=60))
    few = new_engine(replace(ENGINE, pages=7), MOE, columns=False)
    moved = []
    set_aside = few.set_aside
    few.set_aside = lambda state, slot: moved.append(slot) or set_aside(state, slot)
    for ahead in (False, True):
        paged = make_rollouts(few, params, ahead=ahead).run(asked(12, tokens=60))
        assert same(dense, paged)
    assert moved
    plain = make_rollouts(make_paged(cfg=MOE), params).run(asked(12, tokens=60))
    assert list(map(bits, plain)) == list(map(bits, paged)) and picks(plain) == [None] * 24


def test_a_prompt_of_one_token_is_set_aside(params):
    """Before its first token is sampled the cache has none of its tokens, and so no picks."""
    engine = make_paged(ENGINE, MOE)
    weights, one, key = engine.load_params(params), request("x"), np.zeros(2, np.uint32)
    placement = Placement(0, one.prompt_ids, 160, one.params, key)
    state = engine.init_decode_state()
    state = engine.insert(state, [placement])
    state, left = engine.advance(weights, state)
    assert not left and state.length[0] == 0
    aside = engine.set_aside(engine.pause(state, [0]), 0)
    assert aside.length == 0 and aside.picks is not None
    assert aside.picks.shape == (0, 2, 2) and aside.picks.dtype == np.uint8


def test_only_requests_that_ask_have_them(engine, params):
    (one,) = make_rollouts(engine, params).run([replace(asked(1)[0], picks=False)])
    assert picks([one]) == [None, None]


def test_memory_of_pages():
    """Two layers of two picks, one byte each."""
    assert page_bytes(MOE, jnp.float32, 1, True)[0] - page_bytes(MOE, jnp.float32, 1)[0] == PAGE * 4
    assert [picked_dtype(count).itemsize for count in (2, 256, 257, 512)] == [1, 1, 2, 2]


@pytest.mark.slow
def test_meshes_give_the_picks_of_one_device():
    """Experts over all devices, whose tokens are routed where they are; layers that a tensor group does not divide."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, str(Path(__file__).with_name("eight_picks.py"))]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    one, *others = json.loads(done.stdout.splitlines()[-1]).values()
    assert len(others) == 3 and all(other == one for other in others)
