"""Attention of a group over the pages that it begins with, for several slots at once."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models.decoder.paged_gpu import Triton
from scope_jax.models.decoder.pages import Loop, Ragged
from scope_jax.models.decoder.paging import PAGE, Where
from scope_jax.models.kernels.cascade import Tiles, tile_count, tiles_of
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.types import Request, Restart
from tests.rollouts.test_columns import MIXED
from tests.rollouts.world import CFG, ENGINE, bits, make_paged, make_params, make_rollouts, request
from tests.rollouts.world import trainer_logprobs as learner_logprobs
from tests.shapes import like

LANES = 4


def test_tiles_hold_rows_that_begin_with_the_same_pages():
    """Two lanes. Rows 0, 2 and 5 share two pages, row 3 shares one of them only, row 1 is in no group."""
    table = np.asarray([[[7, 8, 1]], [[7, 8, 2]], [[7, 8, 3]], [[7, 9, 4]], [[5, 6, 0]], [[7, 8, 6]]])
    tiles = tiles_of(table, [2, 0, 2, 1, 0, 2], lanes=2)
    assert tiles.rows_TG.tolist() == [[0, 2], [5, 6], [3, 6], [6, 6], [6, 6], [6, 6]]
    assert tiles.pages_T.tolist() == [2, 2, 1, 0, 0, 0]
    assert tiles.pages_R.tolist() == [2, 0, 2, 1, 0, 2]
    # Equal pages in one group of layers and others in the other: not the same beginning.
    both = np.asarray([[[1, 2], [3, 4]], [[1, 2], [3, 5]]])
    assert tiles_of(both, [2, 2], lanes=2).rows_TG.tolist() == [[0, 2], [1, 2]]
    assert (tile_count(64, 16), tile_count(6, 4), tile_count(3, 16)) == (64, 6, 3)


@pytest.mark.parametrize("how", [Loop(), Triton(interpret=True)], ids=["loop", "triton"])
def test_rows_of_a_tile_attend_as_if_alone(how):
    """Seven rows: three and two that share three pages or one, one alone in its tile, one in none; six tiles of two."""
    kv_heads, heads, head_dim, rows = 2, 4, 128, 7
    fill = np.random.default_rng(0)
    pages = how.empty(40, kv_heads, head_dim, jnp.float32)
    k, v = (jnp.asarray(fill.normal(size=(40 * PAGE, kv_heads, head_dim)), jnp.float32) for _ in range(2))
    at = np.arange(40 * PAGE)
    pages = how.write(pages, k, v, jnp.asarray(at // PAGE), jnp.asarray(at % PAGE))
    table = np.arange(1, 36).reshape(rows, 5).astype(np.int32)
    begins = [3, 1, 3, 0, 1, 3, 2]
    for row, same in ((2, 0), (5, 0), (4, 1)):
        table[row, : begins[row]] = table[same, : begins[row]]
    starts = jnp.asarray([192, 300, 200, 10, 64, 319, 130], jnp.int32)
    alone = Where(jnp.asarray(table), starts, jnp.ones(rows, jnp.int32))
    tiles = Tiles(*map(jnp.asarray, tiles_of(table[:, None], begins, lanes=2)))
    q = jnp.asarray(fill.normal(size=(rows, 1, heads, head_dim)), jnp.float32)
    sinks = jnp.asarray([-30.0, 0.5, 2.0, 9.0])
    attend = jax.jit(lambda where: how.attend(pages, q, where, None, sinks))
    expected, found = attend(alone), attend(alone._replace(tiles=tiles))
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)
    # The shared pages are read through the tile's first row: the other row.s table is not looked at.
    hidden = table.copy()
    hidden[2, :3] = 39
    np.testing.assert_array_equal(attend(alone._replace(table=jnp.asarray(hidden), tiles=tiles)), found)


# -------------------------------------------------------------------------------------------------------------- engine
def groups() -> list[Request]:
    """Five groups of 1 to 4 conversations, whose prompts fill one or two pages, and two requests that have no group.

    Prompts of the same text in different groups; replies; new prompts that begin like the first or not at all.
    """

    def respond(turns: Any) -> Any:
        sampled = [turn for turn in turns if turn.kind == "sampled"]
        if len(sampled) == 1:
            return " seen"
        prompt = bytes(range(100, 200)) if len(sampled[0].ids) % 2 else bytes(range(40))
        return Restart(list(prompt + b" and then"), "anew") if len(sampled) == 2 else None

    requests = []
    for number, (first, tokens, size) in enumerate([(0, 135, 4), (100, 131, 3), (0, 135, 2), (7, 66, 1), (100, 65, 4)]):
        prompt = list(bytes(byte % 256 for byte in range(first, first + tokens)))
        for member in range(size):
            key = 10 * number + member
            one = request(prompt, key=key, group=f"group {number}", max_tokens=4 + member, max_turns=3, respond=respond)
            requests.append(one)
    loners = [request(list(range(70)), key=90), request(list(range(135)), key=91)]
    return [*requests[:5], loners[0], *requests[5:], loners[1]]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return make_paged(cascade=LANES)


@pytest.fixture(scope="module")
def together(engine, params):
    return make_rollouts(engine, params).run(groups())


def test_a_completion_does_not_depend_on_who_shares_its_tile(engine, params, together, monkeypatch):
    tiles: list[Tiles] = []
    monkeypatch.setattr(
        "scope_jax.rollouts.paged_state.tiles_of", lambda *given: tiles.append(tiles_of(*given)) or tiles[-1]
    )
    expected, rollouts = [bits(c) for c in together], make_rollouts(engine, params)
    assert [bits(rollouts.run([r])[0]) for r in groups()] == expected
    assert max(np.count_nonzero(t.pages_T) for t in tiles) == 1
    tiles.clear()
    order = np.random.default_rng(0).permutation(len(expected))
    shuffled = rollouts.run([groups()[i] for i in order])
    assert [bits(c) for c in shuffled] == [expected[i] for i in order]
    full = [(t.rows_TG[t.pages_T > 0] < ENGINE.slots).sum(axis=1) for t in tiles]
    assert max(map(max, filter(len, full))) == LANES and max(map(len, full)) > 2


def test_a_completion_does_not_depend_on_memory(engine, params, monkeypatch):
    """Set aside, an episode comes back to pages that it shares with nobody."""
    prompts = [list(range(first, first + 66)) for first in (0, 50, 90)]

    def respond(turns: Any) -> str | None:
        return " observed .........." if len(turns) < 5 else None

    asked = [
        request(prompts[i % 3], key=i, group=f"{i % 3}", max_tokens=15, stop_ids=(), max_turns=3, respond=respond)
        for i in range(24)
    ]
    expected = make_rollouts(engine, params).run(asked)
    aside: list[int] = []
    set_aside = Engine.set_aside
    monkeypatch.setattr(
        Engine, "set_aside", lambda self, state, slot: aside.append(slot) or set_aside(self, state, slot)
    )
    few = make_rollouts(make_paged(cascade=LANES, pages=9), params)
    assert [bits(c) for c in few.run(asked)] == [bits(c) for c in expected] and aside


def test_tokens_are_those_of_slots_that_attend_alone(params, together):
    """Two other engines: one without tiles, and one with tiles of another size."""
    for lanes in (0, 3):
        other = make_rollouts(make_paged(cascade=lanes), params).run(groups())
        for one, same in zip(other, together, strict=True):
            assert np.array_equal(one.ids_T, same.ids_T)
            np.testing.assert_allclose(one.logprobs_T, same.logprobs_T, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "cfg", [pytest.param(CFG, id="plain"), pytest.param(MIXED, id="mixed", marks=pytest.mark.slow)]
)
def test_logprobs_are_the_learners(cfg):
    """Also of a model some of whose layers have windows: their slots attend alone."""
    params = make_params(cfg)
    rollouts = make_rollouts(make_paged(cfg=cfg, cascade=LANES), params)
    prompt = list(range(135))
    asked = [request(prompt, key=key, group="one", max_tokens=20, stop_ids=()) for key in range(6)]
    for completion in rollouts.run(asked):
        expected = learner_logprobs(params, completion, cfg=cfg)
        np.testing.assert_allclose(completion.logprobs_T, expected, atol=1e-4, rtol=0)


def test_what_cannot_is_refused():
    cascade = replace(ENGINE, cascade=LANES)
    with pytest.raises(ValueError, match=r"^rollout\.cascade is 4, but JAX's kernel for TPUs .* sums; set it to 0\.$"):
        Engine(CFG, cascade, make_paged().mesh, Ragged())
    with pytest.raises(ValueError, match=r"^rollout\.cascade is 4, but every layer has a window; set it to 0\.$"):
        Engine(like(MIXED, layer_windows=(20, 20)), cascade, make_paged().mesh)
