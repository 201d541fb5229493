"""Pages: what belongs to whom, and an engine over them that gives the same tokens whatever the memory."""

import dataclasses
import threading
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models.decoder import transformer
from scope_jax.models.decoder.paged_gpu import Triton
from scope_jax.models.decoder.pages import Loop, Ragged, RaggedByHead, feed, init_pages
from scope_jax.models.decoder.paging import PAGE, SHARED, Where, layer_groups
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.loop import DecodeLoop
from scope_jax.rollouts.pages import CHUNK, CachedPrompt, OutOfPages, Pool
from scope_jax.rollouts.slots import Extension, Placement
from scope_jax.rollouts.types import Continuation, Restart
from scope_jax.sharding.collectives import LOCAL
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.rollouts.test_columns import MIXED
from tests.rollouts.world import CFG, ENGINE, bits, make_paged, make_params, make_rollouts, mixed, request
from tests.rollouts.world import trainer_logprobs as learner_logprobs
from tests.shapes import like


# ---------------------------------------------------------------------------------------------------------------- pool
def prompt(count: int, first: int = 0) -> np.ndarray:
    """`count` tokens to be computed, and the last one, which is not."""
    return np.asarray([*range(first, first + count), 9999], np.int32)


def place(pool: Pool, tokens: np.ndarray) -> CachedPrompt:
    """What `find` finds of a prompt, with new pages, which are entered, for the rest."""
    ids = tokens[:-1]
    found = pool.find(ids)
    columns, serial = [*found.table.T], found.serial
    for part in SHARED.parts(ids)[len(columns) :]:
        columns.append(np.asarray(pool.take(len(pool.windows)), np.int32))
        serial = pool.enter(serial, part, columns[-1].tolist())
    return CachedPrompt(np.stack(columns, axis=1), found.computed, serial)


def drop(pool: Pool, found: CachedPrompt) -> None:
    pool.drop(found.table[found.table > 0].tolist())


def test_equal_beginnings_share_whole_pages():
    pool = Pool(0, 20)
    one = place(pool, prompt(2 * PAGE + 5))
    assert one.table.shape == (1, 3) and one.computed == 0 and len(set(one.table[0])) == 3
    same = place(pool, prompt(2 * PAGE + 5))
    assert np.array_equal(same.table, one.table) and same.computed == 2 * PAGE + 5
    longer = place(pool, prompt(3 * PAGE))  # its third page begins like the others' last, but is full
    assert np.array_equal(longer.table[:, :2], one.table[:, :2]) and longer.computed == 2 * PAGE
    assert longer.table[0, 2] != one.table[0, 2]
    other = place(pool, prompt(PAGE, first=1))
    assert not set(other.table[0]) & {*one.table[0], *longer.table[0]} and other.computed == 0


def test_pages_of_ended_rows_stay_until_they_are_needed_and_the_oldest_go_first():
    pool = Pool(0, 6)  # five pages, page 0 belongs to nobody
    rows = [place(pool, prompt(PAGE, first=1000 * number)) for number in range(3)]
    for row in rows:
        drop(pool, row)
    assert pool.available() == 5 and pool.used == 0
    again = place(pool, prompt(PAGE))  # the first prompt is used again, so the second is now the oldest
    assert again.computed == PAGE and np.array_equal(again.table, rows[0].table)
    pool.take(3)  # two are free, one has to go
    assert place(pool, prompt(PAGE, first=2000)).computed == PAGE
    assert pool.find(prompt(PAGE, first=1000)[:-1]).computed == 0
    with pytest.raises(OutOfPages):
        pool.take(1)


def test_too_few_pages_change_nothing():
    pool = Pool(3, 5)
    held = place(pool, prompt(PAGE))
    before = pool.available()
    with pytest.raises(OutOfPages) as error:
        pool.take(4)
    assert error.value.shard == 3 and pool.available() == before
    drop(pool, held)
    assert len(pool.take(4)) == 4


def test_a_page_whose_beginning_is_gone_is_not_found():
    pool = Pool(0, 5)
    drop(pool, place(pool, prompt(2 * PAGE)))
    pool.drop(pool.take(3))  # two were free, so the first page of the prompt is gone and the second is not
    assert place(pool, prompt(2 * PAGE)).computed == 0


def test_of_a_window_only_the_pages_before_the_next_token_are_needed():
    """Two groups of layers, one sees everything, the other 100 tokens: at position 4 · 64 those from 157 on."""
    pool = Pool(0, 20, (None, 100))
    one = place(pool, prompt(4 * PAGE))
    full, sliding = one.table.tolist()
    pool.pass_by(sliding[:2])
    pool.drop([*full, *sliding[2:]])
    assert pool.used == 0 and pool.available() == 19
    longer = pool.find(prompt(6 * PAGE)[:-1])
    assert longer.computed == 4 * PAGE and longer.table.tolist() == [full, [0, 0, *sliding[2:]]]
    assert pool.used == 6
    drop(pool, longer)
    kept = pool.take(13)  # eleven were free: the two pages that the window has passed went first
    assert set(sliding[:2]) <= set(kept)
    assert pool.find(prompt(6 * PAGE)[:-1]).computed == 4 * PAGE
    assert pool.find(prompt(3 * PAGE)[:-1]).computed == 0  # its last 100 tokens begin in the second page
    assert pool.used == 13 + 6


# --------------------------------------------------------------------------------------------------------------- model
@pytest.mark.slow  # the quick suite has these layers in pages in test_windows.py and, with experts, on eight devices
@pytest.mark.parametrize("cfg", [CFG, MIXED], ids=["plain", "mixed"])
def test_prompts_and_steps_equal_the_training_forward(cfg):
    """Rows in scattered pages, in blocks of 32 tokens, then token by token; windows, experts, norms after layers."""
    params, rng = make_params(cfg), np.random.default_rng(2)
    ids, lengths = rng.integers(0, 256, (3, 160)).astype(np.int32), [3, 64, 150]
    forward = partial(transformer.hidden, cfg, shards=LOCAL, remat="none", compute_dtype=jnp.float32)
    hidden = jax.jit(forward)(params, ids, np.broadcast_to(np.arange(160), ids.shape), np.full_like(ids, 160))
    how, weights = Loop(), transformer.unstack_layers(cfg, params)
    groups = len(layer_groups(cfg))
    pages = init_pages(cfg, how, 1 + 11 * groups, jnp.float32)
    one = np.asarray([[7, 2, 5], [1, 9, 3], [4, 11, 6]], np.int32)
    table = np.stack([one + 11 * group for group in range(groups)], axis=1)
    run = jax.jit(lambda pages, ids, where: feed(cfg, how, weights, pages, ids, where, LOCAL))
    blocks = [(row, first) for row in range(3) for first in range(0, lengths[row], 32)]
    counts = np.asarray([min(32, lengths[row] - first) for row, first in blocks], np.int32)
    chunk = np.stack([np.resize(ids[row, first : first + 32], 32) for row, first in blocks])
    where = Where(table[[row for row, _ in blocks]], np.asarray([first for _, first in blocks], np.int32), counts)
    _, pages = run(pages, chunk, where)
    for step in range(3):
        at = np.asarray(lengths, np.int32) + step
        out, pages = run(pages, ids[np.arange(3), at][:, None], Where(table, at, np.ones(3, np.int32)))
        np.testing.assert_allclose(out[:, 0], np.asarray(hidden)[np.arange(3), at], atol=2e-5, rtol=0)


@pytest.mark.slow  # tests/selftest compares the GPU's kernel in the quick suite
@pytest.mark.parametrize(("window", "queries"), [(None, 1), (100, 8)])
def test_kernels_give_the_numbers_of_the_loop(window, queries, monkeypatch):
    """Rows of several lengths in scattered pages. JAX's own reference stands in for its TPU kernel, which does not run
    in interpret mode; the GPU's kernel does."""
    from jax.experimental.pallas.ops.tpu import ragged_paged_attention as package

    def reference(*arrays, num_kv_pages_per_block, num_queries_per_block, **options):
        assert num_kv_pages_per_block >= 1 and 1 <= num_queries_per_block <= 32
        return package.ref_ragged_paged_attention(*arrays, **options)

    monkeypatch.setattr(package, "ragged_paged_attention", reference)
    kv_heads, heads, head_dim = 2, 4, 128
    starts = np.asarray([0, 63, 64, 190], np.int32)
    table = np.random.default_rng(0).permutation(np.arange(1, 17)).reshape(4, 4).astype(np.int32)
    seen = table.copy()
    if window is not None:
        for row, start in zip(seen, starts.tolist(), strict=True):
            row[: max(0, start - window + 1) // PAGE] = 0  # given back
    where = Where(jnp.asarray(seen)[:, None], jnp.asarray(starts), jnp.full(4, queries, jnp.int32))
    where = where.seen(0, window, queries)
    q = jnp.asarray(np.random.default_rng(2).normal(size=(4, queries, heads, head_dim)), jnp.float32)
    outs, with_sinks, sinks = [], [], jnp.asarray([-30.0, 0.5, 2.0, 9.0])
    fill, counts = np.random.default_rng(1), (starts + queries).tolist()
    k_rows, v_rows = zip(*(fill.normal(size=(2, count, kv_heads, head_dim)) for count in counts), strict=True)
    k, v = (jnp.asarray(np.concatenate(rows), jnp.float32) for rows in (k_rows, v_rows))
    page = np.concatenate([table[row][np.arange(count) // PAGE] for row, count in enumerate(counts)])
    column = np.concatenate([np.arange(count) % PAGE for count in counts])
    for how in (Loop(), Ragged(), RaggedByHead(), Triton(interpret=True)):
        pages: Any = jax.tree.map(lambda x: x + 1e6, how.empty(17, kv_heads, head_dim, jnp.float32))
        pages = how.write(pages, k, v, jnp.asarray(page), jnp.asarray(column))
        attend = how.attend if isinstance(how, Ragged) else jax.jit(how.attend, static_argnums=3)  # a loop over rows
        outs.append(np.asarray(attend(pages, q, where, window)))
        if isinstance(how, Loop):
            with_sinks.append(np.asarray(attend(pages, q, where, window, sinks)))
    for out in outs[1:]:
        np.testing.assert_allclose(out, outs[0], atol=2e-5, rtol=0)
    # The first query of the first row sees itself and its head's sink; the first head's sink is nothing beside scores.
    k_Kh = k_rows[0][0]
    scores_H = np.einsum("Hh,Hh->H", q[0, 0], np.repeat(k_Kh, heads // kv_heads, axis=0)) / head_dim**0.5
    for out in with_sinks:
        np.testing.assert_allclose(out[0, 0], outs[0][0, 0] / (1 + np.exp(sinks - scores_H))[:, None], atol=2e-5)
        np.testing.assert_allclose(out[:, :, 0], outs[0][:, :, 0], atol=2e-5)
        np.testing.assert_allclose(out, with_sinks[0], atol=2e-5)


# -------------------------------------------------------------------------------------------------------------- engine
@pytest.fixture(scope="module")
def paged():
    return make_paged()


@pytest.fixture(scope="module")
def together(paged, params):
    return make_rollouts(paged, params).run(mixed(32))


def test_alone_and_in_any_order(paged, params, together):
    requests, rollouts = mixed(32), make_rollouts(paged, params)
    assert [bits(rollouts.run([r])[0]) for r in requests] == [bits(c) for c in together]
    order = np.random.default_rng(0).permutation(32)
    shuffled = rollouts.run([requests[i] for i in order])
    assert [bits(c) for c in shuffled] == [bits(together[i]) for i in order]


def test_dispatches_of_another_length(params, together):
    other = make_rollouts(make_paged(decode_steps=7), params)
    assert [bits(c) for c in other.run(mixed(32))] == [bits(c) for c in together]


def test_logprobs_are_the_learners(params, together):
    for request_, completion in zip(mixed(32), together, strict=True):
        how = request_.params
        temperature = how.temperature if how.tempered_logprobs and how.temperature else 1.0
        expected = learner_logprobs(params, completion, temperature)
        np.testing.assert_allclose(completion.logprobs_T, expected, atol=1e-5, rtol=0)


def test_the_gpu_kernel_gives_the_tokens_of_the_loop(paged, params):
    """In Pallas's interpreter: prompts in chunks, some with a shared beginning, and tokens one by one."""
    kernel = Engine(CFG, paged.config, paged.mesh, Triton(interpret=True))
    wanted, found = (make_rollouts(engine, params).run(mixed(4)) for engine in (paged, kernel))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours.ids_T, theirs.ids_T)
        np.testing.assert_allclose(ours.logprobs_T, theirs.logprobs_T, atol=1e-5, rtol=0)


def conversations() -> list:
    """Episodes with observations, restarts and turns that are cut."""

    def respond(turns):
        sampled = [turn for turn in turns if turn.kind == "sampled"]
        if len(sampled) == 2:
            return Restart(list(b"start anew " + bytes(range(60))), "anew")
        return f" observed {len(sampled)} {'.' * 40}" if len(sampled) < 4 else None

    return [
        request(f"prompt {i % 4} " * 4, key=i, max_tokens=25, max_turns=4, stop_ids=(), respond=respond)
        for i in range(12)
    ]


def test_with_few_pages_the_same_tokens_later(paged, params, together, monkeypatch):
    aside = []
    set_aside = Engine.set_aside

    def counted(self, state, slot):
        aside.append(slot)
        return set_aside(self, state, slot)

    monkeypatch.setattr(Engine, "set_aside", counted)
    plenty = make_rollouts(paged, params).run(conversations())
    assert not aside
    few = make_rollouts(make_paged(pages=9), params)
    assert [bits(c) for c in few.run(mixed(32))] == [bits(c) for c in together]
    assert [bits(c) for c in few.run(conversations())] == [bits(c) for c in plenty]
    assert len(aside) > 5
    assert few._state.pools[0].used == 0 and few._state.pools[0].available() == 8


def test_a_row_that_was_cut_can_be_set_aside(params):
    """An observation that does not fit after a turn was cut behind a page's end: the row moves with what it keeps."""
    engine = make_paged(pages=6)  # five that can be had: all are used after a dispatch
    weights, how, key = engine.load_params(params), request("x").params, np.zeros(2, np.uint32)
    state = engine.init_decode_state()
    first, second = np.arange(62), np.arange(100, 228)
    state = engine.insert(state, [Placement(0, first, 160, how, key), Placement(1, second, 160, how, key)])
    state, left = engine.advance(weights, state)
    assert not left
    state, result = engine.generate(weights, state)
    engine.read(state, result, [0, 1])
    assert state.length[0] == 65 and state.columns[0] == 2
    state = engine.pause(state, [0])
    with pytest.raises(OutOfPages):
        engine.extend(state, [Extension(0, 63, [1] * 97, 160, key)])
    aside = engine.set_aside(state, 0)
    assert aside.length == 63
    state = engine.bring_back(state, aside, 2, 1, Placement(2, first, 160, how, key), live=False)
    assert state.length[2] == 63 and state.columns[2] == 1


def test_a_reply_that_drops_most_of_a_turn_returns_from_host_memory(params, monkeypatch):
    """The turn was set aside while its responder was at work. What the reply keeps and adds fits, what the turn had and
    the reply adds would not."""
    asked, moved = threading.Event(), threading.Event()
    set_aside, fits, refused = Engine.set_aside, Engine.fits, []

    def noted(self, state, slot):
        moved.set()
        return set_aside(self, state, slot)

    def counted(self, *arguments):
        refused.append(not fits(self, *arguments))
        assert sum(refused) < 1000, "the episode never returns"
        return not refused[-1]

    def first(turns):
        if len(turns) > 1:
            return None
        assert asked.wait(60)
        return "." * 60

    def second(turns):
        if len(turns) > 1:
            return None
        asked.set()
        assert moved.wait(60)
        return Continuation([5] * 180, "seen", kept=1)

    long = {"max_turns": 2, "stop_ids": ()}
    requests = [
        request("abc", key=1, respond=first, max_tokens=110, **long),
        request("def", key=2, respond=second, max_tokens=170, **long),
    ]
    plenty = make_rollouts(make_paged(max_length=192), params)
    moved.set()
    expected = [bits(one) for one in plenty.run(requests)]
    asked.clear()
    moved.clear()
    monkeypatch.setattr(Engine, "set_aside", noted)
    monkeypatch.setattr(Engine, "fits", counted)
    few = make_rollouts(make_paged(max_length=192, pages=6), params)
    assert [bits(one) for one in few.run(requests)] == expected
    assert any(refused)


@pytest.mark.parametrize("pages", [None, pytest.param(12, marks=pytest.mark.slow)])
def test_prompts_in_pieces_between_tokens(params, pages, monkeypatch):
    """One dispatch of prompts or observations, 32 tokens, at a time: the same tokens, and slots that decode never wait
    for two, unless memory is short."""
    whole = make_rollouts(make_paged(prefill_tokens=CHUNK), params)
    expected = [bits(c) for requests in (mixed(32), conversations()) for c in whole.run(requests)]
    engine = make_paged(pages=pages, prefill_tokens=CHUNK)
    launched: list[tuple[str, bool]] = []  # what, and whether slots were decoding

    def recorded(name: str, program: Any) -> Any:
        def run(*arguments: Any) -> Any:
            assert rollouts._loop is not None
            launched.append((name, bool(rollouts._loop._live)))
            return program(*arguments)

        return run

    monkeypatch.setattr(engine.jitted, "append", recorded("prompts", engine.jitted.append))
    monkeypatch.setattr(engine.jitted, "generate", recorded("tokens", engine.jitted.generate))

    class OneAtATime(DecodeLoop):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options, prefills=1)

    monkeypatch.setattr("scope_jax.rollouts.local.DecodeLoop", OneAtATime)
    rollouts = make_rollouts(engine, params)
    assert [bits(c) for requests in (mixed(32), conversations()) for c in rollouts.run(requests)] == expected
    pairs = list(pairwise(launched))
    assert sum(one[0] == "prompts" and other[0] == "tokens" for one, other in pairs) > 20
    if pages is None:
        assert not any(one[0] == "prompts" and other == ("prompts", True) for one, other in pairs)
    assert rollouts._state.pools[0].used == 0 and not any(rollouts._state.unfinished)


def test_a_prompt_that_is_given_up_leaves_only_whole_pages(params):
    engine = make_paged(prefill_tokens=CHUNK)
    weights, how, key = engine.load_params(params), request("x").params, np.zeros(2, np.uint32)
    long = np.arange(PAGE + CHUNK + 20)

    def placed(state, slot):
        return engine.insert(state, [Placement(slot, long, 160, how, key)])

    state, left = engine.advance(weights, placed(engine.init_decode_state(), 0), 3)
    assert left == [0] and not state.live[0]
    state = engine.release(state, [0])
    assert state.pools[0].used == 0 and not any(state.unfinished)
    before = state.computed_tokens
    state, left = engine.advance(weights, placed(state, 1))
    assert not left and state.live[1]
    assert state.computed_tokens - before == len(long) - 1 - PAGE  # of the second page, a half was there
    state, result = engine.generate(weights, state)
    fresh, _ = engine.advance(weights, placed(engine.init_decode_state(), 1))
    fresh, expected = engine.generate(weights, fresh)
    assert list(engine.read(state, result, [1]).sampled(1)) == list(engine.read(fresh, expected, [1]).sampled(1))


def test_prompts_are_computed_once_until_the_weights_change(paged, params):
    rollouts = make_rollouts(paged, params)
    head = list(range(100))
    rollouts.run([request([*head, 1, 2, 3], key=i) for i in range(4)])
    state = rollouts._state
    assert (state.prompt_tokens, state.computed_tokens) == (4 * 102, 102)
    first = rollouts.run([request([*head, 7, 8], key=9)])  # the first page is shared, the rest differs
    assert state.computed_tokens == 102 + 101 - PAGE
    fresh = make_rollouts(paged, params).run([request([*head, 7, 8], key=9)])
    assert bits(first[0]) == bits(fresh[0])
    rollouts.load_params(jax.tree.map(lambda x: x * 1.1, params))
    assert rollouts._state is None
    assert bits(rollouts.run([request([*head, 7, 8], key=9)])[0]) != bits(fresh[0])


def test_what_can_never_fit_is_refused():
    with pytest.raises(ValueError, match=r"has 4 pages of 64 tokens, but one episode of .* needs 6"):
        make_paged(pages=4)


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        (
            {"slots": 256, "max_length": 2**17},
            r"slots = 256 .* 131072 tokens: the page tables of 256 rows take 2.00 MiB",
        ),
        ({"slots": 128, "max_length": 2**17 - 600}, "slots = 128"),  # in tiles of 8 rows and 128 columns
        ({"slots": 2, "max_length": 2**24}, "slots = 2"),
        ({"prefill_tokens": 2**15, "max_length": 2**15}, "prefill_tokens = 32768"),
        ({"slots": 120, "max_length": 2**17}, None),
    ],
)
def test_page_tables_beyond_the_scalar_memory_of_a_tpu_are_refused(changes, setting):
    long = dataclasses.replace(CFG, max_positions=2**24)

    def engine(how, cfg=long):
        config = dataclasses.replace(ENGINE, **changes)
        return Engine(cfg, config, make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1]), how)

    engine(Loop())
    if setting is None:
        engine(Ragged())
    else:
        with pytest.raises(ValueError, match=rf"rollout\.{setting}"):
            engine(Ragged())
    near = like(long, layer_windows=(4096,) * CFG.num_layers)
    engine(Ragged(), near)  # the kernel gets the columns of the window alone


def test_page_tables_for_each_head_take_more_scalar_memory():
    long = dataclasses.replace(CFG, max_positions=2**17)
    config = dataclasses.replace(ENGINE, slots=64, max_length=2**17)
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    Engine(long, config, mesh, Ragged())
    with pytest.raises(ValueError, match=r"rollout\.slots = 64 .* 1\.00 MiB"):
        Engine(long, config, mesh, RaggedByHead())  # two kv heads


@pytest.mark.slow
def test_pages_follow_the_tokens(params):
    """64 requests of 200 to 4,000 tokens: at most 1.3 times the pages that their tokens fill, and with a third of them
    the same tokens."""
    cfg = dataclasses.replace(CFG, max_positions=8192)
    config = dataclasses.replace(ENGINE, slots=64, max_length=4160, prefill_tokens=2048)
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    rng = np.random.default_rng(0)
    requests = [
        request(rng.integers(0, 256, int(rng.integers(200, 4000))).tolist(), key=i, max_tokens=24, stop_ids=())
        for i in range(64)
    ]
    most = []

    class Watched(Engine):
        def read(self, state, result, slots):
            result = super().read(state, result, slots)
            tokens = sum(state.length)
            most.append((state.pools[0].used, SHARED.count(tokens), sum(state.live)))
            return result

    whole = make_rollouts(Watched(cfg, config, mesh), params).run(requests)
    used, least, _ = max(most)
    assert used <= 1.3 * least, (used, least)
    third = dataclasses.replace(config, pages=used // 3)
    assert [bits(c) for c in make_rollouts(Engine(cfg, third, mesh), params).run(requests)] == [bits(c) for c in whole]
