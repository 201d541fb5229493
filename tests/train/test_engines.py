"""Which engine a card gets."""

import jax
import jax.numpy as jnp
import pytest

from scope_jax.config.base import CardError
from scope_jax.errors import UserError
from scope_jax.games import load_card
from scope_jax.models.decoder.backends import attention_over_pages
from scope_jax.models.decoder.pages import Loop
from scope_jax.models.decoder.paging import SHARED, Paging
from scope_jax.rollouts.budget import page_bytes
from scope_jax.run import engines
from scope_jax.run.config_file import differing, to_toml
from scope_jax.run.engines import engine_for
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.text.toml import with_sum
from tests.rollouts.world import CFG
from tests.shapes import like

SMALL = ("rollout.max_length=160", "rollout.slots=8")


def engine_of(*sets: str, model=CFG):
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    return engine_for(load_card("configs/ssp/atlas.toml", [*SMALL, *sets]), model, mesh)


def test_on_a_cpu_each_slot_has_a_page_unless_there_is_a_budget_or_the_loop():
    plain = engine_of()
    assert plain.paging == Paging(192, by_slot=True) and plain.pages == (8 + 1,)
    assert plain.config.prefill_tokens == 128 and engine_of("rollout.prefill_tokens=64").config.prefill_tokens == 64
    # Two layers, two kv heads of 8, float32: 2 · 2 · 2 · 8 · 64 · 4 bytes.
    assert page_bytes(CFG, jnp.float32, 1) == (16384,)
    budget = engine_of(f"rollout.cache_gib={20.5 * 16384 / 2**30}")
    assert budget.paging == SHARED and budget.pages == (20,)
    asked = engine_of('rollout.attention="loop"')
    assert asked.paging == SHARED and asked.pages == (8 * (3 + 1) + 1,)


def test_a_budget_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="one episode of rollout"):
        engine_of(f"rollout.cache_gib={3 * 16384 / 2**30}")


@pytest.mark.parametrize("key", ["prefill_buckets=[64]", "prefill_batch=4", 'cache="dense"'])
def test_keys_of_before_are_refused_in_a_sentence(key):
    with pytest.raises(CardError, match=rf"`rollout\.{key.partition('=')[0]}` is a key no more: .*; remove it"):
        engine_of(f"rollout.{key}")


def test_the_card_that_a_run_has_written_may_have_keys_of_before(tmp_path):
    """It lists every key, whether somebody has set it or not."""
    card = "configs/ssp/atlas.toml"
    text = to_toml(load_card(card))
    assert "prefill_tokens" in text
    written = text.replace("[rollout]\n", '[rollout]\nprefill_buckets = [64]\nprefill_batch = 4\ncache = "dense"\n')
    assert written != text
    (tmp_path / "config.toml").write_text(with_sum(written))
    assert differing(load_card(tmp_path / "config.toml"), load_card(card)) == []
    (tmp_path / "config.toml").write_text(written)  # somebody's card of that name
    with pytest.raises(CardError, match="is a key no more"):
        load_card(tmp_path / "config.toml")


def test_groups_attend_together_over_pages_that_they_share():
    asked = engine_of("rollout.cascade=4")
    assert asked.config.cascade == 4 and asked.paging == SHARED
    with pytest.raises(CardError, match="cascade is 1, but one slot attends alone"):
        engine_of("rollout.cascade=1")


def test_a_card_may_do_without_the_kernel_for_pages(monkeypatch):
    asked = []
    monkeypatch.setattr(engines, "attention_over_pages", lambda platform, *_: asked.append(platform) or Loop())
    engine_of("rollout.cache_gib=0.01")
    engine_of('rollout.attention="loop"')
    assert asked == ["cpu", "any"]
    assert type(attention_over_pages("any", 128)) is Loop and type(attention_over_pages("gpu", 128)) is not Loop


def test_the_engine_can_have_a_mesh_of_its_own():
    assert engine_of("rollout.mesh.fsdp=1", "mesh.fsdp=-1").mesh.size == 1
    with pytest.raises(ValueError, match=r"^rollout\.mesh data=1, fsdp=1, tensor=2 needs 2 devices but there are 1;"):
        engine_of("rollout.mesh.fsdp=1", "rollout.mesh.tensor=2")
    with pytest.raises(CardError, match=r"rollout.*mesh\.context is 2, but only an update"):
        engine_of("rollout.mesh.context=2")
    with pytest.raises(CardError, match=r"slots is 8, .* rollout\.mesh\.data x rollout\.mesh\.fsdp = 3; choose"):
        engine_of("rollout.mesh.fsdp=3")


def test_picked_experts_are_kept_where_they_can_be_replayed():
    on, moe = "learner.router_replay=true", {"num_experts": 4, "experts_per_token": 2}
    assert engine_of(on, model=like(CFG, **moe)).config.picks and not engine_of(model=like(CFG, **moe)).config.picks
    for changes, reason in (
        ({}, "has no experts"),
        (moe | {"experts_per_token": 1}, "has one expert for each token"),
        (moe | {"layer_windows": (8, 8)}, "has no layer that sees all tokens"),
    ):
        with pytest.raises(
            UserError, match=f"^learner.router_replay is on, but the model in .* {reason}.*; turn it off"
        ):
            engine_of(on, model=like(CFG, **changes))
