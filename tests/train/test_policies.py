"""Several policies in one run: which weights are sampled, where states are kept, one shared reference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from scope_jax.games import load_card
from scope_jax.learner.state import TrainState
from scope_jax.learner.types import Datum, Episode
from scope_jax.models.files import weights
from scope_jax.play.tools import BASE
from scope_jax.rollouts.types import Completion
from scope_jax.run.assemble import Trainer, assemble
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.run.sampler import (
    ACCELERATOR,
    HOST,
    Sampler,
    in_memory,
    moved,
    with_one_reference,
    with_shared_reference,
)
from scope_jax.train import learn
from tests.shallow import shallow

SCOPE = ("evaluate.sets=[]", "rollout.slots=8")
SMALL = ("train.batch_size=4", "rollout.slots=8", "evaluate.sets=[]", "learner.micro_batch_rows=4")


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return assemble(
        load_card("configs/ssp/atlas.toml", [*SMALL, f"model.checkpoint={shallow('ssp')}"]),
        tmp_path_factory.mktemp("run"),
    )


def kinds(tree: Any) -> set[str]:
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree)}


def same(a: Any, b: Any) -> bool:
    return jax.tree.all(jax.tree.map(lambda x, y: bool(np.array_equal(np.asarray(x), np.asarray(y))), a, b))


class Recorder:
    """An engine that records the weights it gets."""

    def __init__(self, quantized: bool = False) -> None:
        self.loaded: list[Any] = []
        self.used: list[Any] = []
        self.quantized = quantized

    def load_params(self, params: Any) -> None:
        self.loaded.append(params)

    @property
    def params(self) -> Any:
        return jax.tree.map(lambda x: 2 * x, self.loaded[-1:])  # another form of them

    def take_params(self, params: Any) -> Any:
        return params

    def use(self, taken: Any) -> None:
        self.used.append(taken)

    def load_adapter(self, policy: str, factors: Any) -> None:
        raise AssertionError("these policies are whole weights")

    @contextmanager
    def unquantized(self) -> Iterator[bool]:
        yield self.quantized

    def clear(self) -> None:
        raise AssertionError("the cache of whole weights is freed with them")

    def run(self, requests: Any) -> list[Completion]:
        return []


@pytest.mark.parametrize(("quantized", "values"), [(False, [1.0]), (True, [1.0, 1.0, 1.0])])
def test_whole_weights_are_loaded_for_a_block_where_the_engine_does_not_have_them(
    quantized: bool, values: list[float]
) -> None:
    recorder = Recorder(quantized)
    sampler = Sampler(recorder)
    sampler.publish(states_of(1.0, 2.0))
    sampler.use("challenger")
    with sampler.unquantized():
        sampler.use("challenger")
    sampler.use("challenger")
    assert [float(params["w"][0]) for params in recorder.loaded] == values


def states_of(*values: float) -> dict[str, TrainState]:
    names = ("challenger", "solver")
    reference = {"w": jax.numpy.full(3, -1.0)}
    return {
        name: TrainState(jax.numpy.int32(0), jax.numpy.int32(0), {"w": jax.numpy.full(3, value)}, {}, reference)
        for name, value in zip(names, values, strict=True)
    }


def test_the_engine_gets_the_weights_of_the_sampled_policy() -> None:
    recorder = Recorder()
    sampler = Sampler(recorder)
    sampler.publish(states_of(1.0, 2.0))
    for policy in ("solver", "solver", BASE, "challenger"):
        sampler.use(policy)
    assert [float(params["w"][0]) for params in recorder.loaded] == [2.0, -1.0, 1.0]  # nothing is loaded twice
    sampler.publish(states_of(3.0, 4.0))
    sampler.use("challenger")
    assert float(recorder.loaded[-1]["w"][0]) == 3.0  # new weights under an old name
    with pytest.raises(ValueError, match=r"'judge'.*challenger, solver, base"):
        sampler.use("judge")


def test_weights_of_several_policies_are_held_while_their_states_are_updated() -> None:
    """Each is copied to host memory once, those that an update has changed again."""
    recorder = Recorder()
    sampler = Sampler(recorder)
    states = states_of(1.0, 2.0)
    sampler.publish(states)
    sampler.hold(("challenger", "solver", BASE))
    assert [float(params["w"][0]) for params in recorder.loaded] == [1.0, 2.0, -1.0]
    states["challenger"].params["w"].delete()  # as an update does
    for policy in ("solver", BASE, "challenger"):
        sampler.use(policy)
    placed = [params for params in recorder.used if params is not None]
    assert [float(params["w"][0]) for (params,) in placed] == [4.0, -2.0, 2.0] and kinds(placed) == {ACCELERATOR}
    assert recorder.used[::2] == [None] * 3  # freed before
    updated = states_of(3.0, 0.0)["challenger"]
    after = {"challenger": updated.replace(ref_params=states["solver"].ref_params), "solver": states["solver"]}
    sampler.publish(after)
    sampler.hold(("challenger", "solver", BASE))
    assert [float(params["w"][0]) for params in recorder.loaded[3:]] == [3.0]
    sampler.use("solver")
    assert float(recorder.used[-1][0]["w"][0]) == 4.0


def test_the_only_policy_is_held_in_the_engine() -> None:
    recorder = Recorder()
    sampler = Sampler(recorder)
    sampler.publish(states_of(1.0, 2.0))
    sampler.hold(("solver",))
    sampler.use("solver")
    assert len(recorder.loaded) == 1 and recorder.used == []
    with pytest.raises(ValueError, match=r"'base'; the run has solver\."):
        sampler.use(BASE)  # its buffers may be gone


def test_placed_weights_are_used_without_loading() -> None:
    recorder = Recorder()
    sampler = Sampler(recorder)
    sampler.load({"solver": "its weights", BASE: "the base's"})
    for policy in ("solver", BASE, BASE, "solver"):
        sampler.use(policy)
    assert recorder.used == [None, "its weights", "the base's", "its weights"] and recorder.loaded == []
    with pytest.raises(ValueError, match="'challenger'"):
        sampler.use("challenger")


def test_an_offloaded_policy_samples_on_the_accelerator() -> None:
    recorder = Recorder()
    sampler = Sampler(recorder)
    sampler.publish({name: moved(state, HOST) for name, state in states_of(1.0, 2.0).items()})
    sampler.use("solver")
    assert kinds(recorder.loaded[0]) == {ACCELERATOR}


def test_moving_a_state_changes_no_bit() -> None:
    state = states_of(0.1, 0.2)["solver"]
    away = moved(state, HOST)
    assert kinds(away) == {HOST} and same(away, state)
    assert kinds(moved(away, ACCELERATOR)) == {ACCELERATOR}
    again = moved(state, ACCELERATOR)
    assert again.params["w"] is state.params["w"]  # what is there already is not copied


def test_a_checkpoint_holds_the_reference_once(trainer: Trainer, tmp_path: Path) -> None:
    """Two policies written and read: the states come back, into host memory if asked, with one shared reference."""
    params = trainer.learner.init_state(trainer.start(None)[0]["actor"].params, reference=False).params
    first = trainer.learner.init_state(params, reference=True)
    second = trainer.learner.init_state(jax.tree.map(lambda w: w + 1, params), reference=False)
    states = with_shared_reference({"challenger": first, "solver": second})
    assert states["solver"].ref_params is first.ref_params
    checkpoints = Checkpoints(tmp_path, trainer.world.cfg)
    checkpoints.save(1, with_one_reference(states), {"stage": "tasks"})
    checkpoints.wait()
    saved_bytes = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert saved_bytes < 7.5 * weights  # 2 × (weights and two moments) + 1 reference; not 8
    abstract = in_memory(trainer.learner.abstract_state(True), HOST)
    found = checkpoints.resume(with_one_reference({"challenger": abstract, "solver": abstract}), lambda text: None)
    assert found is not None
    back = with_shared_reference(found.states)
    assert kinds(back) == {HOST}
    assert same(back, states)


def test_policies_may_start_from_other_checkpoints_with_the_base_as_reference(tmp_path: Path) -> None:
    other = tmp_path / "other"
    base, params = weights.load("assets/atlas/scope/base")
    weights.save_hf(other, base, jax.tree.map(lambda w: w + 1, params), jax.numpy.float32, None)
    sets = [*SCOPE, f"model.policies.solver={other}"]
    trainer = assemble(load_card("configs/scope/atlas.toml", sets), tmp_path / "run")
    states = trainer.start(None)[0]
    assert same(states["challenger"].params, params)
    assert same(states["solver"].params, jax.tree.map(lambda w: w + 1, params))
    assert states["challenger"].ref_params is states["solver"].ref_params and same(states["solver"].ref_params, params)


@pytest.mark.parametrize(
    ("name", "layers", "sentence"),
    [
        ("judge", 0, "model.policies names 'judge', but the card trains challenger, solver; correct it."),
        ("solver", 1, "differs from the base in assets/atlas/scope/base in num_layers"),
    ],
)
def test_an_unsuitable_initial_checkpoint_gives_one_clear_error(
    tmp_path: Path, name: str, layers: int, sentence: str
) -> None:
    config = json.loads(Path("assets/atlas/scope/base/config.json").read_text())
    config["num_hidden_layers"] += layers
    (tmp_path / "config.json").write_text(json.dumps(config))
    cfg = load_card("configs/scope/atlas.toml", [*SCOPE, f"model.policies.{name}={tmp_path}"])
    with pytest.raises(ValueError, match="model") as caught:
        assemble(cfg, tmp_path / "run")
    assert sentence in str(caught.value) and not (tmp_path / "run").exists()


def test_offloading_changes_no_bit(trainer: Trainer) -> None:
    """One update of the actor, its state on the accelerator all the time or in host memory before and after."""
    rng = np.random.default_rng(0)
    sampled = np.arange(40) >= 20
    made = []
    for sample in range(4):
        ids = rng.integers(0, trainer.world.model.vocab_size, 40).astype(np.int32)
        datum = Datum(ids, sampled, np.where(sampled, -7.0, 0.0).astype(np.float32))
        made.append(Episode("solver", "actor", "one", (datum,), float(sample)))
    after = {}
    for offload in (False, True):
        cfg = trainer.world.cfg
        cfg = cfg.model_copy(update={"train": cfg.train.model_copy(update={"offload": offload})})
        other = replace(trainer, world=replace(trainer.world, cfg=cfg))
        states, _, _ = other.start(None)
        assert kinds(states["actor"]) == {HOST if offload else ACCELERATOR}
        after[offload], _, _, metrics = learn(other, states, list(made), {})
        assert metrics["solver/grad_norm"] > 0
    assert kinds(after[True]["actor"]) == {HOST}
    assert same(after[True]["actor"], after[False]["actor"])
