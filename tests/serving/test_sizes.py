"""Sizes of what is served follow the memory that there is; what does not fit is refused before it is allocated."""

from __future__ import annotations

import pytest

from scope_jax.config import load_served
from scope_jax.errors import UserError
from scope_jax.models.files.weights import load_config
from scope_jax.plan.memory import generating_bytes
from scope_jax.run import host_memory
from scope_jax.run.engines import engine_for
from scope_jax.run.meshes import all_generate, own_mesh
from scope_jax.serving.assemble import served
from scope_jax.serving.sizes import SHARE, check_fits, fitted, needed_bytes
from tests.serving.world import BASE

BOTH = ("slots", "max_length")


@pytest.fixture
def card():
    return all_generate(load_served(BASE, 1024, []))


def with_room(monkeypatch: pytest.MonkeyPatch, card, size: float) -> None:
    """The machine has room for so many bytes of weights and cache."""
    engine = engine_for(card, load_config(BASE), own_mesh(card))
    free = size / SHARE * engine.mesh.devices.size + generating_bytes(engine)
    monkeypatch.setattr(host_memory, "free", lambda: int(free) + 1024)


def bytes_of(card, **sizes: int) -> int:
    rollout = card.rollout.model_copy(update=sizes)
    return sum(
        needed_bytes(engine_for(card.model_copy(update={"rollout": rollout}), load_config(BASE), own_mesh(card)))
    )


def sizes_that_fit(card, free: tuple[str, ...] = BOTH) -> tuple[int, int, list[str]]:
    told: list[str] = []
    rollout = fitted(card, load_config(BASE), own_mesh(card), free, told.append).rollout
    return rollout.slots, rollout.max_length, told


def test_slots_then_length_follow_the_memory(monkeypatch, card):
    with_room(monkeypatch, card, bytes_of(card))
    assert sizes_that_fit(card) == (64, 1024, [])
    with_room(monkeypatch, card, bytes_of(card) - 2**20)
    slots, length, (told,) = sizes_that_fit(card)
    assert (slots, length) == (32, 1024) and "rollout.slots = 32, of rollout.max_length = 1024 tokens" in told
    with_room(monkeypatch, card, bytes_of(card, slots=1, max_length=512))
    assert sizes_that_fit(card)[:2] == (1, 512)


def test_sizes_that_are_given_stay_or_are_refused(monkeypatch, card):
    with_room(monkeypatch, card, bytes_of(card, slots=64, max_length=512))
    assert sizes_that_fit(card, ("max_length",))[:2] == (64, 512)
    with pytest.raises(
        UserError, match=r"rollout\.slots = 64, of rollout\.max_length = 1024 tokens\), but there is room for"
    ):
        sizes_that_fit(card, ())
    with_room(monkeypatch, card, 0)
    with pytest.raises(UserError, match=r"rollout\.slots = 1, of rollout\.max_length = 512 tokens"):
        sizes_that_fit(card)
    with pytest.raises(UserError, match="lower one of the two"):
        check_fits(engine_for(card, load_config(BASE), own_mesh(card)))


def test_a_chat_has_one_conversation():
    told: list[str] = []
    options = {"policy": None, "search": False, "name": None, "grace": 0.0}
    with served(BASE, None, [], tell=told.append, chats=True, **options) as model:
        assert model.rollouts.engine.config.slots == 1
    with served(
        BASE, None, [" rollout.slots = 2", "rollout.max_length=256"], tell=told.append, chats=True, **options
    ) as model:
        assert (model.rollouts.engine.config.slots, model.rollouts.engine.config.max_length) == (2, 256)
