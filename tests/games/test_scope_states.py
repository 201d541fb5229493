"""The base's weights are held once, also after many updates of the policies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.config.training import TrainSection
from scope_jax.games import GAMES
from scope_jax.learner.state import TrainState
from scope_jax.learner.types import Datum, Episode
from scope_jax.run.assemble import Trainer
from scope_jax.run.sampler import ACCELERATOR, HOST, moved, with_shared_reference
from scope_jax.run.world import World
from scope_jax.train import learn
from tests.games.scope_world import card


def place_of(tree: Any) -> set[str]:
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree)}


def episode(role: str, reward: float) -> Episode:
    datum = Datum(np.arange(2, dtype=np.int32), np.array([False, True]), np.zeros(2, np.float32))
    return Episode(role, role, "one", (datum,), reward)


@pytest.mark.parametrize("offload", [False, True])
def test_the_base_is_held_once_after_both_policies_learned(offload: bool):
    place, seen = HOST if offload else ACCELERATOR, []

    def update(state: TrainState, batches: Any, loss: Any) -> tuple[TrainState, dict[str, float]]:
        seen.append((place_of(state), float(state.ref_params["w"][0])))
        return state.replace(params=jax.tree.map(lambda w: w + 1, state.params)), {}

    first = TrainState(jnp.int32(0), jnp.int32(0), {"w": jnp.zeros(3)}, {"m": jnp.zeros(3)}, {"w": jnp.full(3, 7.0)})
    second = TrainState(jnp.int32(0), jnp.int32(0), {"w": jnp.zeros(3)}, {"m": jnp.zeros(3)}, None)
    states = with_shared_reference({"challenger": moved(first, place), "solver": moved(second, place)})
    base = states["challenger"].ref_params
    learner = SimpleNamespace(
        pack=lambda episodes, *_: [episodes] if episodes else [], update=update, new_programs=lambda *_: {}
    )
    cfg = card()
    world, trainer = object.__new__(World), object.__new__(Trainer)  # only the attributes below are used
    offloading = cfg.model_copy(update={"train": TrainSection(offload=offload)})
    for name, part in {"game": GAMES["scope"], "cfg": offloading}.items():
        object.__setattr__(world, name, part)
    for name, part in {"world": world, "learner": learner}.items():
        object.__setattr__(trainer, name, part)
    for role in ("challenger", "solver", "challenger"):
        states, _, _, _ = learn(trainer, states, [episode(role, 0.0), episode(role, 1.0)], {})
    assert [float(states[name].params["w"][0]) for name in ("challenger", "solver")] == [2.0, 1.0]
    assert seen == [({ACCELERATOR}, 7.0)] * 3  # on the accelerator during an update
    assert all(state.ref_params["w"] is base["w"] for state in states.values())
    assert all(place_of(state) == {place} for state in states.values())
