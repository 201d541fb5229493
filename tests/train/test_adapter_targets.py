"""Commands on a run of adapters, on its exported adapter alone, and on merged weights: the same answers from each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.games import load_card
from scope_jax.run.adapters import base_digest
from scope_jax.run.assemble import assemble
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.run.folder import RunFolder
from tests.evaluation.test_weights import SETS
from tests.serving.test_api import user
from tests.serving.test_commands import process

CARD = Path("configs/scope/atlas.toml")
ADAPTER = ("model.adapter.rank=4", "model.adapter.alpha=8", 'model.adapter.base_dtype="float32"')
SMALL = [word for one in SETS for word in ("--set", one)]
SERVED = ("--set", "model.compute_dtype=float32", "--set", "rollout.slots=4", "--set", "rollout.max_length=320")

pytestmark = pytest.mark.slow  # several engines are compiled


def write_run(folder: Path, seed: int) -> None:
    """A run with one checkpoint, whose adapters are random."""
    cfg = load_card(CARD, (*SETS, *ADAPTER))
    log, rng = RunFolder(folder, cfg), np.random.default_rng(seed)
    trainer = assemble(cfg, folder)
    states, memory, _ = trainer.start(None)
    for name, state in states.items():
        noise = jax.tree.map(lambda w: w + 0.05 * rng.normal(size=w.shape).astype(np.float32), state.params)
        states[name] = state.replace(params=noise)
    checkpoints = Checkpoints(folder / "checkpoints", cfg, base=base_digest(cfg))
    checkpoints.save(1, trainer.saved(states), memory)
    checkpoints.wait()
    log.close()


def done(*words: object, stdin: str | None = None) -> Any:
    result = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def results(*words: object) -> dict[str, Any]:
    return json.loads(done(*words, "--json").stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of SCOPE, one and two; one's adapters, and its merged weights, with a folder for each policy."""
    place = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate(("one", "two")):
        write_run(place / name, seed)
    done("export", place / "one", place / "adapters")
    done("export", place / "one", place / "merged", "--merge", "--dtype", "float32")
    return place


def test_exams_of_run_adapter_and_merged_weights_agree(runs: Path) -> None:
    """Adapter and judge, which is the base without it, are in one engine; merged weights and judge take turns."""
    base = results("eval", "assets/atlas/scope/base", "--card", CARD, *SMALL)["metrics"]
    whole = results("eval", runs / "merged", "--card", CARD, *SMALL)
    assert whole["metrics"] != base
    for target in ("one", "one/checkpoints/1", "adapters", "adapters/solver"):
        card = () if target.startswith("one") else ("--card", CARD)
        found = results("eval", runs / target, *card, *SMALL)
        assert found["metrics"] == whole["metrics"] and found["base"] == whole["base"], target


def test_a_benchmark_on_an_adapter_alone(runs: Path, tmp_path: Path) -> None:
    """Without a card, over the base that the adapter names or another folder."""
    rows = [{"question": f"What is the capital of {name}?", "answers": ["x"]} for name in ("Norway", "Peru")]
    (tmp_path / "nq.jsonl").write_text("\n".join(map(json.dumps, rows)))
    exam = ("--exam", "nq", "--data", tmp_path, *SERVED, "--set", "evaluate.max_response_tokens=12")
    said = []
    for target in ("adapters/solver", "merged/solver", "adapters/challenger"):
        records = tmp_path / f"{len(said)}.jsonl"
        assert results("eval", runs / target, *exam, "--records", records)["metrics"]["eval/nq/questions"] == 2
        said.append([json.loads(line)["text"]["turns"] for line in records.read_text().splitlines()])
    assert all(said[0]) and said[0] == said[1] != said[2]
    elsewhere = tmp_path / "adapter"
    elsewhere.mkdir()
    for file in (runs / "adapters" / "solver").iterdir():
        (elsewhere / file.name).write_bytes(file.read_bytes())
    config = json.loads((elsewhere / "adapter_config.json").read_text())
    (elsewhere / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "its/hub-name"}))
    refused = CliRunner().invoke(app, ["eval", str(elsewhere), *map(str, exam)])
    assert refused.exit_code == 2 and "--set model.checkpoint=FOLDER" in " ".join(refused.stderr.split())
    base = ("--set", "model.checkpoint=assets/atlas/scope/base")
    assert results("eval", elsewhere, *exam, *base)["metrics"]["eval/nq/questions"] == 2


def test_replay_of_adapters(runs: Path) -> None:
    """Searches of one run, answers of the other; an exported adapter is as good as its run."""
    first = results("replay", runs / "one", runs / "two", *SMALL)
    assert results("replay", runs / "adapters", runs / "two", "--card", CARD, *SMALL)["metrics"] == first["metrics"]
    mixed = CliRunner().invoke(app, ["replay", str(runs / "one"), str(runs / "merged"), *SMALL])
    assert mixed.exit_code == 2 and "not adapters of one kind" in " ".join(mixed.stderr.split())


def test_an_adapter_is_served_and_talks(runs: Path) -> None:
    """Over HTTP and in the terminal, the text of the merged weights; a run's policy by name."""
    said = {}
    targets = {
        "adapter": (runs / "adapters" / "solver",),
        "merged": (runs / "merged" / "solver",),
        "run": (runs / "one", "--policy", "solver"),
        "other": (runs / "adapters" / "challenger",),
    }
    body = {"model": "m", "messages": user("Say something."), "max_tokens": 16, "temperature": 0, "logprobs": True}
    for name, words in targets.items():
        with process("serve", *map(str, words), "--port", "0", "--name", "m", *SERVED) as (_, url):
            reply = httpx.post(f"{url}/chat/completions", json=body, timeout=120, trust_env=False)
            assert reply.status_code == 200, reply.text
            said[name] = reply.json()["choices"][0]
    texts = {name: choice["message"]["content"] for name, choice in said.items()}
    assert texts["adapter"] == texts["merged"] == texts["run"] != texts["other"]
    probs = {name: [one["logprob"] for one in choice["logprobs"]["content"]] for name, choice in said.items()}
    assert probs["adapter"] == probs["run"]
    np.testing.assert_allclose(probs["adapter"], probs["merged"], atol=1e-4)
    talked = done(
        *("chat", runs / "adapters" / "solver", "--temperature", 0, "--max-tokens", 16, *SERVED),
        stdin="Say something.\n/quit\n",
    )
    assert texts["adapter"].strip() in talked.stdout
