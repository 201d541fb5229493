"""Sizes of what is served follow the memory that there is; what does not fit is refused before it is allocated."""

from __future__ import annotations

import pytest

from scope_jax.config import load_served
from scope_jax.errors import UserError
from scope_jax.models.files.weights import load_config
from scope_jax.run import host_memory
from scope_jax.run.engines import engine_for
from scope_jax.run.meshes import all_generate, own_mesh
from scope_jax.run.sizes import (
    COMPILER,
    SHARE,
    check_fits,
    engine_process_bytes,
    fitted,
    free_sizes,
    needed_bytes,
    told,
)
from scope_jax.serving.assemble import served
from tests.serving.world import BASE

BOTH = ("slots", "max_length")


@pytest.fixture
def card():
    return all_generate(load_served(BASE, 1024, []))


def with_room(monkeypatch: pytest.MonkeyPatch, card, size: float) -> None:
    """The machine has room for so many bytes of weights and cache beside a process that is as large as it becomes."""
    engine = engine_for(card, load_config(BASE), own_mesh(card))
    monkeypatch.setattr(host_memory, "resident", lambda: int(engine_process_bytes(engine) + COMPILER) + 1)
    monkeypatch.setattr(host_memory, "available", lambda: int(size / SHARE * engine.mesh.devices.size) + 1024)


def bytes_of(card, **sizes: int) -> int:
    rollout = card.rollout.model_copy(update=sizes)
    return sum(
        needed_bytes(engine_for(card.model_copy(update={"rollout": rollout}), load_config(BASE), own_mesh(card)))
    )


def sizes_that_fit(card, free: tuple[str, ...] = BOTH) -> tuple[int, int]:
    rollout = fitted(card, load_config(BASE), own_mesh(card), free).rollout
    return rollout.slots, rollout.max_length


def test_slots_then_length_follow_the_memory(monkeypatch, card):
    with_room(monkeypatch, card, bytes_of(card))
    assert sizes_that_fit(card) == (64, 1024)
    with_room(monkeypatch, card, bytes_of(card) - 2**20)
    assert sizes_that_fit(card) == (32, 1024)
    with_room(monkeypatch, card, bytes_of(card, slots=1, max_length=512))
    assert sizes_that_fit(card) == (1, 512)


def test_memory_for_the_process_is_left(monkeypatch, card):
    with_room(monkeypatch, card, bytes_of(card))
    monkeypatch.setattr(host_memory, "resident", lambda: 0)
    assert sizes_that_fit(card)[0] < 64


def test_sizes_that_are_given_stay_or_are_refused(monkeypatch, card):
    with_room(monkeypatch, card, bytes_of(card, slots=64, max_length=512))
    assert sizes_that_fit(card, ("max_length",)) == (64, 512)
    with pytest.raises(
        UserError, match=r"rollout\.slots = 64, of rollout\.max_length = 1024 tokens\), but .* are free"
    ):
        sizes_that_fit(card, ())
    with_room(monkeypatch, card, 0)
    with pytest.raises(UserError, match=r"rollout\.slots = 1, of rollout\.max_length = 512 tokens"):
        sizes_that_fit(card)
    with pytest.raises(UserError, match="lower one of the two"):
        check_fits(engine_for(card, load_config(BASE), own_mesh(card)))


def test_a_cpu_computes_in_float32_where_that_has_room(monkeypatch, card):
    def found(size: float) -> tuple[str, int, int]:
        with_room(monkeypatch, card, size)
        fits = fitted(card, load_config(BASE), own_mesh(card), free_sizes((), card=False))
        return fits.model.compute_dtype, fits.rollout.slots, fits.rollout.max_length

    assert found(2 * bytes_of(card)) == ("float32", 64, 1024)
    assert found(bytes_of(card)) == ("float32", 16, 1024)  # weights and 32 slots take more
    assert found(bytes_of(card, slots=1, max_length=512)) == ("bfloat16", 1, 512)
    assert free_sizes(["model.compute_dtype=bfloat16", "rollout.slots=2"], card=False) == {"max_length"}
    assert free_sizes(["rollout={}"], card=True) == set()


def test_what_may_fit_is_not_refused(monkeypatch, card):
    """Weights and cache fit exactly; whether the programs do as well is not certain."""
    engine = engine_for(card, load_config(BASE), own_mesh(card))
    with_room(monkeypatch, card, bytes_of(card) * SHARE)
    assert sizes_that_fit(card, ()) == (64, 1024)
    monkeypatch.setattr(host_memory, "available", lambda: sum(needed_bytes(engine)) * engine.mesh.devices.size - 1)
    with pytest.raises(UserError, match="lower one of the two"):
        sizes_that_fit(card, ())
    monkeypatch.setattr(host_memory, "total", lambda: 0)  # of a system that does not say
    assert sizes_that_fit(card) == (64, 1024) and told(engine).endswith("= 1024 tokens)")


def test_a_chat_has_one_conversation():
    said: list[str] = []
    options = {"policy": None, "search": False, "name": None, "grace": 0.0}
    with served(BASE, None, [], tell=said.append, chats=True, **options) as model:
        assert model.rollouts.engine.config.slots == 1
    assert any("rollout.slots = 1, of rollout.max_length" in line for line in said)
    with served(
        BASE, None, [" rollout.slots = 2", "rollout.max_length=256"], tell=said.append, chats=True, **options
    ) as model:
        assert (model.rollouts.engine.config.slots, model.rollouts.engine.config.max_length) == (2, 256)
