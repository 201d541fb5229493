"""Which weights `eval` and `replay` load, and which are sampled when the base model is the judge."""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from scope_jax.cli import app
from scope_jax.config import Config
from scope_jax.evaluation import evaluations
from scope_jax.evaluation import weights as stored
from scope_jax.evaluation.evaluate import card_sets, evaluation
from scope_jax.games import load_card
from scope_jax.models.files import weights
from scope_jax.play.tools import BASE
from scope_jax.rollouts import weights as engine_weights
from scope_jax.rollouts.engine import Engine
from scope_jax.run.assemble import assemble, assemble_learner
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.run.convert import convert
from scope_jax.run.files import EVALUATIONS, read_records
from scope_jax.run.folder import RunFolder
from scope_jax.run.sampler import Sampler, with_one_reference
from scope_jax.run.world import World
from tests.shallow import shallow

ASSETS = Path("assets/atlas")
CARD = Path("configs/scope/atlas.toml")
SSP = Path("configs/ssp/atlas.toml")
SETS = (
    'evaluate.sets=[{name="held_out", path="assets/atlas/tasks_held_out.jsonl", limit=2}]',
    "evaluate.temperature=0.0",
    "rollout.slots=8",
    # one program of each kind
    "retrieval.dim=32",
)


def digest(tree: Any) -> str:
    """A hash of the bits of some weights, independent of their order."""
    leaves = sorted(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))
    return hashlib.sha256(b"".join(leaves)).hexdigest()


def command(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def base() -> Path:
    """The base of SCOPE here."""
    return shallow("scope")


def settings_of(game: str, *more: str) -> tuple[str, ...]:
    return (*SETS, f"model.checkpoint={shallow(game)}", *more)


def played(*words: object) -> dict[str, Any]:
    """The results of a command on the small exam."""
    sets = [word for override in settings_of("scope") for word in ("--set", override)]
    result = command(*words, *sets, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout.splitlines()[-1])


def refused(*words: object) -> str:
    result = command(*words)
    assert result.exit_code == 2, (result.output, result.exception)
    (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("scope-jax: ")]
    return sentence


def write_run(folder: Path, cfg: Config, shift: float) -> None:
    """A run with one checkpoint, whose policies differ slightly from the base and from each other."""
    log = RunFolder(folder, cfg)
    trainer = assemble(cfg, folder)
    states, memory, _ = trainer.start(None)
    for place, name in enumerate(states, 1):
        moved = jax.tree.map(lambda w, by=place * shift: w * (1 + by), states[name].params)
        states[name] = states[name].replace(params=moved)
    checkpoints = Checkpoints(folder / "checkpoints", cfg)
    checkpoints.save(1, with_one_reference(states), memory)
    checkpoints.wait()
    log.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of SCOPE and their exports: one, two; one/hf and two-hf, with a folder for each policy."""
    place = tmp_path_factory.mktemp("runs")
    cfg = load_card(CARD, settings_of("scope"))
    for name, shift in (("one", 1e-3), ("two", 2e-3)):
        write_run(place / name, cfg, shift)
    convert(place / "one", place / "one" / "hf", "hf")
    convert(place / "two", place / "two-hf", "hf")
    return place


@pytest.fixture
def sampled_weights(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Digests of the weights in the engine at each time a policy was sampled, by policy."""
    found: dict[str, list[str]] = {}
    speak = Sampler.use

    def noted(self: Sampler, policy: str) -> None:
        speak(self, policy)
        found.setdefault(policy, []).append(digest(self.rollouts._params))  # type: ignore[attr-defined]

    monkeypatch.setattr(Sampler, "use", noted)
    return found


def in_engine(folder: Path) -> str:
    """Digest of a model folder's weights as the engine holds them."""
    cfg, params = weights.load(folder)
    layers = params.pop("layers")
    return digest([params, [jax.tree.map(lambda w, i=i: w[i], layers) for i in range(cfg.num_layers)]])


# -------------------------------------------------------------------------------------------------- which model judges
@pytest.mark.parametrize("export", ["two-hf/solver", pytest.param("one/hf/solver", marks=pytest.mark.slow)])
def test_exports_of_two_runs_are_graded_by_the_same_base(
    runs: Path, sampled_weights: dict[str, list[str]], export: str
) -> None:
    results = played("eval", runs / export, "--card", CARD)
    assert results["step"] is None and results["base"] == str(base())
    assert sampled_weights == {BASE: sampled_weights[BASE], "solver": [in_engine(runs / export)]}
    assert set(sampled_weights[BASE]) == {in_engine(base())}


@pytest.mark.slow
def test_an_export_is_graded_by_the_base_that_is_named(runs: Path, sampled_weights: dict[str, list[str]]) -> None:
    other = runs / "two-hf" / "challenger"
    results = played("eval", runs / "two-hf" / "solver", "--card", CARD, "--base", other)
    assert results["base"] == str(other) and set(sampled_weights[BASE]) == {in_engine(other)}


def test_a_run_and_its_export_give_the_same_exam(runs: Path, sampled_weights: dict[str, list[str]]) -> None:
    """An export inside the run's folder works too, also through the folder with one export for each policy."""
    first = played("eval", runs / "one")
    assert first["step"] == 1 and first["metrics"]["eval/held_out/judge_requests"] > 0
    results = played("eval", runs / "one/hf")
    assert results["metrics"] == first["metrics"] and results["base"] == first["base"] and results["step"] is None
    assert {name: len(set(found)) for name, found in sampled_weights.items()} == {"solver": 1, BASE: 1}
    head, *kept = evaluations.newest(runs / "one")  # the answers of the second evaluation of step 1
    assert {f"eval/held_out/{name}": value for name, value in head["metrics"].items()} == first["metrics"]
    assert kept and len(list(read_records(runs / "one" / EVALUATIONS))) % (1 + len(kept)) == 0
    assert all(line["record"]["text"]["turns"] and line["step"] == 1 for line in kept)


@pytest.mark.slow
def test_a_checkpoint_gives_the_same_exam_as_its_run(runs: Path) -> None:
    first, results = (played("eval", runs / target) for target in ("two", "two/checkpoints/1"))
    assert results["metrics"] == first["metrics"] and results["base"] == first["base"] and results["step"] == 1
    newest, records = [*evaluations.newest(runs / "two")], [*read_records(runs / "two" / EVALUATIONS)]
    assert len(records) >= 2 * len(newest) and len(records) % len(newest) == 0


@pytest.mark.slow
def test_replay_takes_exports_and_one_base(runs: Path, sampled_weights: dict[str, list[str]]) -> None:
    results = played("replay", runs / "one", runs / "two-hf")
    assert results["base"] == str(base())
    assert sampled_weights.pop("solver") == [in_engine(runs / "one/hf/solver"), in_engine(runs / "two-hf/solver")]
    assert set(sampled_weights.pop(BASE)) == {in_engine(base())}
    assert played("replay", runs / "one/hf", runs / "two")["metrics"] == results["metrics"]


def test_a_missing_base_or_one_of_another_model_is_an_error(runs: Path, tmp_path: Path) -> None:
    target, gone = runs / "two-hf" / "solver", tmp_path / "gone"
    said = refused("eval", target, "--card", CARD, "--set", f"model.checkpoint={gone}")
    assert f"the base model judges the answers, but {gone} is not a model folder" in said and "--base" in said
    assert "not a model folder" in refused("replay", target, target, "--card", CARD, "--base", gone)
    said = refused("eval", target, "--card", "configs/ssp/atlas.toml", "--base", base())
    assert "no base model judges" in said
    wide = shutil.copytree(base(), tmp_path / "wide")
    config = json.loads((wide / "config.json").read_text())
    (wide / "config.json").write_text(json.dumps(config | {"rope_theta": 5.0, "rope_parameters": {"rope_theta": 5.0}}))
    assert "differ in their config.json" in refused("eval", target, "--card", CARD, "--base", wide)
    other = shutil.copytree(base(), tmp_path / "other")
    (other / "chat_template.jinja").write_text("> {{ messages[0].content }} <")
    assert "differ in tokenizer or chat template" in refused("eval", target, "--card", CARD, "--base", other)


def test_non_finite_weights_are_neither_evaluated_nor_exported(tmp_path: Path) -> None:
    """Such a checkpoint is made by hand, as a run that diverges ends before it saves."""
    write_run(tmp_path / "bad", load_card(CARD, settings_of("scope")), float("nan"))
    text = refused("eval", tmp_path / "bad")
    assert "bad/checkpoints/1 cannot be used: " in text and "holds values that are NaN or infinite" in text
    text = refused("export", tmp_path / "bad", tmp_path / "hf")
    assert "nothing was written: model.embed_tokens.weight holds values that are NaN" in text
    assert not list((tmp_path / "hf").iterdir())


def test_a_checkpoint_of_another_game_or_model(runs: Path, tmp_path: Path) -> None:
    said = refused("eval", runs / "one", "--card", "configs/ssp/atlas.toml")
    assert "has no actor.params" in said and "another game or model" in said


# ------------------------------------------------------------------------------------------------------ memory
def targets_of(world: World) -> Any:
    return stored.abstract_weights(world.cfg, world.model, world.mesh)


def described(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.sharding), tree)


@pytest.mark.parametrize(
    "dtypes", [("bfloat16", "float32"), pytest.param(("float32", "bfloat16"), marks=pytest.mark.slow)], ids=str
)
def test_exams_use_the_weights_that_the_run_samples_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtypes: tuple[str, str]
) -> None:
    """A checkpoint and an export loaded for an exam have the same bits as the state published during training."""
    read: list[Any] = []
    take = Engine.take_params
    monkeypatch.setattr(
        Engine, "take_params", lambda self, params: read.append(described(params)) or take(self, params)
    )
    compute, param = dtypes
    exam = 'evaluate.sets=[{name="held_out", path="assets/atlas/questions_held_out.jsonl", limit=2}]'
    settings = settings_of("ssp", exam, f"model.compute_dtype={compute}", f"model.param_dtype={param}")
    cfg = load_card(SSP, settings)
    write_run(tmp_path / "run", cfg, 1e-3)
    convert(tmp_path / "run", tmp_path / "hf", "hf")
    trainer = assemble(cfg, tmp_path / "run")
    resumed = Checkpoints(tmp_path / "run" / "checkpoints", cfg).resume(trainer.targets(), pytest.fail)
    trainer.world.sampler.publish(trainer.start(resumed)[0])
    trainer.world.sampler.use("actor")
    published = trainer.world.local.params
    for target in (tmp_path / "run", tmp_path / "hf"):
        with evaluation([target], SSP, None, settings, card_sets, print) as ready:
            world, taken = ready.world, stored.engine_weights(ready.world, ready.model)
        assert read.pop() == described(targets_of(world))
        assert jax.tree.structure(taken) == jax.tree.structure(published)
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(taken)} == {compute}
        assert digest(taken) == digest(published)


EIGHT = {  # Qwen3-8B
    "vocab_size": 151936,
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "tie_word_embeddings": False,
    "max_position_embeddings": 40960,
}


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """What `eval` assembles for a folder of 8.2 billion weights, without weight files, where there is room for them."""
    monkeypatch.setattr("scope_jax.run.host_memory.available", lambda: 64 * 2**30)
    folder = shutil.copytree(ASSETS / "ssp" / "base", tmp_path / "eight")
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | EIGHT))
    exam = 'evaluate.sets=[{name="held_out", path="assets/atlas/questions_held_out.jsonl", limit=2}]'
    settings = (exam, *SETS[1:], "model.compute_dtype=bfloat16")
    with evaluation([folder], SSP, None, settings, card_sets, print) as ready:
        yield ready.world


def sizes_of(world: World) -> tuple[int, int]:
    """(bytes of the weights as `engine_weights` loads them, bytes of the engine's state)."""
    state = engine_of(world).abstract_state()
    return tuple(
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) for tree in (targets_of(world), state)
    )  # type: ignore[return-value]


def engine_of(world: World) -> Engine:
    return world.sampler.rollouts.engine  # type: ignore[attr-defined]


def test_eight_billion_weights_are_read_once_in_the_engines_dtype(tmp_path: Path, request) -> None:
    gc.collect()
    before = sum(array.nbytes for array in jax.live_arrays())
    world = request.getfixturevalue("eight")
    assert sum(array.nbytes for array in jax.live_arrays()) - before < 2**20  # nothing is allocated before loading
    targets, (weights_bytes, cache) = targets_of(world), sizes_of(world)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(targets)} == {"bfloat16"}
    assert weights_bytes == 2 * (8_190_735_360 + 2 * 128 * 4096)  # parameters of Qwen3-8B, padding of both tables
    assert cache == pytest.approx(8 * 512 * 36 * 2 * 8 * 128 * 2, rel=1e-4)  # slots × tokens × layers × K, V × heads
    trainer = assemble_learner(world.cfg, world.model).abstract_state(reference=True)
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(trainer))
    assert state == pytest.approx(7 * weights_bytes)  # float32 weights and two moments, and the reference in bfloat16


@pytest.mark.slow  # compiling 36 layers takes a minute or two
def test_the_decode_program_of_eight_billion_weights_needs_weights_and_cache(eight: World) -> None:
    """By the compiler's own figures; the arguments are the weights, the state, a page of each slot, and one number."""
    (decode,) = (program for program in engine_of(eight).programs() if program.kind == "decode")
    figures = decode.lower().compile().memory_analysis()
    assert figures is not None
    assert figures.argument_size_in_bytes == sum(sizes_of(eight)) + 4 * 8 + 4
    assert figures.alias_size_in_bytes == sizes_of(eight)[1]  # the state is donated


@pytest.mark.slow
@pytest.mark.parametrize("target", ["one", "two-hf/solver"])
def test_an_exam_needs_memory_for_weights_judge_and_cache(
    runs: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Live bytes are within 1.1 × (weights + judge + cache) at every dispatch; on loading, one weight exists twice."""
    seen: dict[str, list[int]] = {"loading": [], "playing": []}
    engines: list[Engine] = []
    generate, reshard = Engine.generate, engine_weights.reshard

    def live() -> int:
        return sum(array.nbytes for array in jax.live_arrays()) - before

    def playing(self: Engine, *args: Any) -> Any:
        engines.append(self)
        result = generate(self, *args)
        seen["playing"].append(live())
        return result

    def loading(*args: Any) -> Any:
        copy = reshard(*args)
        seen["loading"].append(live())
        return copy

    monkeypatch.setattr(Engine, "generate", playing)
    monkeypatch.setattr(engine_weights, "reshard", loading)
    gc.collect()
    before = 0
    before = live()
    played("eval", runs / target, "--card", CARD)
    state = engines[0].abstract_state()
    cache = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(weights.load(base())[1])]
    assert max(seen["playing"]) <= 1.1 * (2 * sum(sizes) + cache)
    assert max(seen["loading"]) <= 1.02 * (2 * sum(sizes) + max(sizes))
    assert len(seen["loading"]) == 2 * len(sizes) and len(seen["playing"]) >= 4
