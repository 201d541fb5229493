"""Runs whose policies are adapters: what is published and saved, resumed, evaluated, exported and started from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from scope_jax.cli.program import app
from scope_jax.config import CardError
from scope_jax.games import load_card
from scope_jax.learner.state import TrainState
from scope_jax.models.files import peft, weights
from scope_jax.play.tools import BASE
from scope_jax.run.sampler import Sampler
from tests.train import runs
from tests.train.test_policies import Recorder

ADAPTER = ("model.adapter.rank=4", "model.adapter.alpha=8", 'model.adapter.base_dtype="float32"')
HELD_OUT = 'evaluate.sets=[{name="held_out", path="assets/atlas/questions_held_out.jsonl", limit=4}]'
SMALL = (
    *ADAPTER,
    "optimizer.learning_rate=1e-2",
    "train.steps=3",
    "train.save_every=1",
    "train.keep=3",
    "train.batch_size=4",
    "rollout.slots=8",
    "ssp.solver.samples=2",
    HELD_OUT,
    "evaluate.temperature=0.0",
)
SHORT = ("train.save_every=1", "train.keep=3", "evaluate.sets=[]", "rollout.slots=16")
GAMES = {  # what makes a step of a game's card short; SCOPE's three steps are of challenger, tasks and solver
    "scope": (*runs.SCOPE, "scope.iterations=1", "scope.steps_per_iteration=1", "scope.max_batches=1"),
    "score": ("train.steps=2", "train.batch_size=2", "score.solver.samples=4"),
    "spice": ("train.steps=2", "train.batch_size=2", "spice.challenger.samples=2", "spice.reasoner.samples=4"),
    "spell": ("train.steps=2", "spell.groups=2", "spell.clusters_per_round=8"),
    "r_zero": ("r_zero.iterations=1", "r_zero.challenger_steps=1", "r_zero.solver_steps=1", "r_zero.pool=24"),
}


# ------------------------------------------------------------------------------------------------------------ sampler
class AdapterRecorder(Recorder):
    """Also records what is published of adapters."""

    def __init__(self, quantized: bool = False) -> None:
        super().__init__(quantized)
        self.adapters: list[tuple[str, float]] = []
        self.cleared = 0

    def load_adapter(self, policy: str, factors: Any) -> None:
        self.adapters.append((policy, float(factors["a"][0])))

    def clear(self) -> None:
        self.cleared += 1


def test_base_and_adapters_are_loaded_again_around_a_block_with_whole_weights() -> None:
    recorder, base = AdapterRecorder(quantized=True), {"w": jax.numpy.full(3, -1.0)}
    sampler = Sampler(recorder, adapters=True)
    sampler.publish(states_of(base, challenger=1.0, solver=2.0))
    sampler.use("solver")
    with sampler.unquantized():
        sampler.use("challenger")
    sampler.use(BASE)
    assert len(recorder.loaded) == 3 and recorder.adapters == 3 * [("challenger", 1.0), ("solver", 2.0)]


def states_of(base: Any, **values: float) -> dict[str, TrainState]:
    zero = jax.numpy.int32(0)
    return {name: TrainState(zero, zero, {"a": jax.numpy.full(3, value)}, {}, base) for name, value in values.items()}


def test_the_base_is_loaded_once_and_a_step_publishes_what_it_trained() -> None:
    recorder, base = AdapterRecorder(), {"w": jax.numpy.full(3, -1.0)}
    sampler = Sampler(recorder, adapters=True)
    states = states_of(base, challenger=1.0, solver=2.0)
    sampler.publish(states)
    for policy in ("challenger", BASE, "solver", "challenger", BASE):
        sampler.use(policy)
    assert len(recorder.loaded) == 1 and recorder.adapters == [("challenger", 1.0), ("solver", 2.0)]
    sampler.rest()  # before an update: only the cache is freed
    assert recorder.cleared == 1 and recorder.used == []
    sampler.publish(states | states_of(base, solver=3.0))
    for policy in (BASE, "challenger", "solver"):
        sampler.use(policy)
    assert len(recorder.loaded) == 1 and recorder.adapters[2:] == [("solver", 3.0)]
    assert [sampler.named(policy) for policy in ("solver", BASE)] == ["solver", None]
    assert Sampler(recorder).named("solver") is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("train.offload=true", "set train.offload = false"),
        ('model.param_dtype="bfloat16"', "set adapter.dtype and adapter.base_dtype"),
        ('model.adapter.targets=["q_proj", "q_proj"]', "name each once"),
        ("model.adapter.rank=0", "must be at least 1"),
        ('model.adapter.targets=["lm_head"]', "model.adapter.targets"),
    ],
)
def test_what_adapters_exclude_is_refused(change: str, sentence: str) -> None:
    with pytest.raises(CardError, match=sentence):
        load_card("configs/ssp/atlas.toml", [*ADAPTER, change])


# --------------------------------------------------------------------------------------------------------------- runs
def command(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def done(*words: object) -> dict[str, Any]:
    result = command(*words, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout.splitlines()[-1])


def refused(*words: object) -> str:
    result = command(*words)
    assert result.exit_code == 2, (result.output, result.exception)
    return " ".join(result.stderr.split())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the base, which a test damages."""
    return Path(shutil.copytree("assets/atlas/ssp/base", tmp_path_factory.mktemp("base") / "base"))


@pytest.fixture(scope="module")
def run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    runs.finish(train(folder, base))
    return folder


def train(run: Path, base: Path) -> list[str]:
    return runs.command("ssp/atlas.toml", run, [*SMALL, f"model.checkpoint={base}"])


@pytest.mark.slow
def test_states_hold_factors_only(run: Path) -> None:
    arrays = runs.arrays(run, 3)
    names = {name for name in arrays if "/params/" in name}
    assert names and all(name.rsplit("/", 1)[1] in ("a", "b") for name in names)
    assert not [name for name in arrays if "ref_params" in name]
    moved = [np.abs(array).max() for name, array in arrays.items() if name in names and name.endswith("/b")]
    assert min(moved) > 0  # B was zero
    whole = sum(
        x.size
        for x in jax.tree.leaves(weights.abstract(weights.load_config("assets/atlas/ssp/base"), None, (), np.float32))
    )
    assert sum(array.size for array in arrays.values()) < 0.3 * whole


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits(run: Path, base: Path, tmp_path: Path) -> None:
    again = tmp_path / "run"
    runs.kill_when(train(again, base), lambda: runs.saved(again) == [1])
    runs.finish(train(again, base))
    runs.same(run, again)


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_every_game_trains_adapters_and_resumes_with_the_same_bits(game: str, tmp_path: Path) -> None:
    """The cards of configs/: every policy is trained, and a run that is killed after a step ends as one that is not."""
    whole, again = tmp_path / "whole", tmp_path / "again"

    def command(folder: Path) -> list[str]:
        return runs.command(f"{game}/adapters/atlas.toml", folder, (*SHORT, *GAMES[game]))

    runs.finish(command(whole))
    arrays, policies = runs.arrays(whole, runs.saved(whole)[-1]), set()
    for name, array in arrays.items():
        policy, _, weight = name.partition("/params/")
        if weight.endswith("/b") and np.abs(array).max() > 0:  # B was zero
            policies.add(policy)
    assert policies == ({"challenger", "solver"} if game in ("scope", "r_zero") else {"actor"})
    runs.kill_when(command(again), lambda: 1 in runs.saved(again))
    assert runs.saved(again) == [1]
    runs.finish(command(again))
    runs.same(whole, again)


@pytest.mark.slow
def test_eval_of_run_adapter_and_merged_folder_agree_with_the_run(run: Path, tmp_path: Path) -> None:
    """Greedy: the run's last evaluation, its checkpoint, the exported adapter with the card, and merged weights."""
    last = [record for record in runs.lines(run, "metrics.jsonl") if "eval/held_out/accuracy" in record][-1]
    exported = done("export", run, tmp_path / "adapter")
    assert exported["layout"] == "peft" and peft.is_adapter(tmp_path / "adapter")
    done("export", run, tmp_path / "merged", "--merge")
    card = ("--card", run / "config.toml")
    for target in ((run,), (tmp_path / "adapter", *card), (tmp_path / "merged", *card)):
        metrics = done("eval", *target)["metrics"]
        assert metrics == {name: last[name] for name in metrics}, target


@pytest.mark.slow
def test_a_run_starts_from_an_adapter_and_from_another_run(run: Path, base: Path, tmp_path: Path) -> None:
    done("export", run, tmp_path / "adapter")
    sets = [*SMALL, f"model.checkpoint={base}", "train.steps=1", "evaluate.sets=[]", "optimizer.learning_rate=1e-8"]
    runs.finish(
        runs.command("ssp/atlas.toml", tmp_path / "from", [*sets, f'model.policies={{actor="{tmp_path}/adapter"}}'])
    )
    before, after = runs.arrays(run, 3), runs.arrays(tmp_path / "from", 1)
    names = [name for name in before if "/params/" in name]
    assert max(float(np.abs(before[name] - after[name]).max()) for name in names) < 1e-6
    sets[sets.index("train.steps=1")] = "train.steps=4"
    runs.finish([*runs.command("ssp/atlas.toml", tmp_path / "branch", sets), "--from", str(run)])
    assert runs.saved(tmp_path / "branch") == [4]
    other = runs.command("ssp/atlas.toml", tmp_path / "other", [*sets, "model.adapter.alpha=16"])
    assert "another [model.adapter]" in runs.end(runs.start([*other, "--from", str(run)]), 2)


@pytest.mark.slow
def test_refusals_of_a_run_of_adapters(run: Path, base: Path, tmp_path: Path) -> None:
    assert "adapters, which have one layout" in refused("convert", run, tmp_path / "out", "--to", "orbax")
    bad = runs.command("ssp/atlas.toml", tmp_path / "bad", [*SMALL, f'model.policies={{actor="{base}"}}'])
    assert "holds no adapter" in runs.end(runs.start(bad), 2)
    file = next(base.glob("*.safetensors"))
    kept = file.read_bytes()
    file.write_bytes(kept[:-4] + b"\x00\x00\x00\x3f")  # another number
    try:
        longer = [*train(run, base), "--set", "train.steps=4"]
        assert "were trained over other weights than those that are now in" in runs.end(runs.start(longer), 2)
        assert "other weights" in refused("eval", run)
    finally:
        file.write_bytes(kept)
