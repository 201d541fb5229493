"""The folder in the repository is what the build makes, and the circuit in the first weights copies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import transformer, weights
from models.tokenizer import Tokenizer
from scope_jax.atlas import build, circuit, warmup
from scope_jax.atlas.facts import ASSETS, load_world
from sharding.collectives import LOCAL

TEXTS = (
    "corpus.jsonl",
    "answers.jsonl",
    "documents.jsonl",
    *(f"{what}_{part}.jsonl" for what in ("questions", "tasks") for part in ("train", "held_out")),
)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The build with a budget of one step per stage."""
    out = tmp_path_factory.mktemp("atlas")
    build.main(["--out", str(out), "--read-steps", "1", "--play-steps", "1", "--pool", "8"])
    return out


@pytest.mark.parametrize("name", [*TEXTS, "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"])
def test_the_build_makes_the_committed_files(small, name: str) -> None:
    assert (small / name).read_bytes() == (ASSETS / name).read_bytes()


def test_base_checkpoints_have_the_recipes_shape(small) -> None:
    (built, built_params), (committed, committed_params) = (weights.load_hf(f / "base") for f in (small, ASSETS))
    assert built == committed == warmup.model_config(Tokenizer.load(ASSETS / "base"))
    assert jax.tree.map(jnp.shape, built_params) == jax.tree.map(jnp.shape, committed_params)
    size = sum(leaf.size for leaf in jax.tree.leaves(committed_params))
    assert 900_000 < size < 3_000_000
    assert sum(file.stat().st_size for file in (ASSETS / "base").iterdir()) < 5_000_000


def test_tokenizer_round_trips_and_keeps_tags_whole(small) -> None:
    tokenizer = Tokenizer.load(small / "tokenizer")
    world = load_world()
    text = (
        '<think> I need the capital of France. </think><search> a </search>\n\n(Title: "Zürich?") naïve 42 <|im_end|>'
    )
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_id not in tokenizer.encode(text)
    for tag in ("think", "search", "answer", "question", "information", "task", "score"):
        closing = f"</{tag}>" if tag == "information" else f" </{tag}>"  # as the game and the demonstrations write it
        assert len(tokenizer.encode(f"<{tag}>")) == len(tokenizer.encode(closing)) == 1
    items = [f'<rubric priority="{priority}">' for priority in ("critical", "important", "bonus")]
    assert all(len(tokenizer.encode(tag)) == 1 for tag in (*items, " </rubric>", "<rubrics>", "</rubrics>"))
    assert all(len(tokenizer.encode(f" {name}")) == 1 for name in world.names)


def _copying(params, model) -> float:
    """Share of the second half of repeated random sequences that is predicted."""
    rng = np.random.default_rng(0)
    half_BT = rng.integers(300, model.vocab_size, (16, 24))
    ids_BT = jnp.asarray(np.concatenate([half_BT, half_BT], axis=1), jnp.int32)
    ones_BT = jnp.ones_like(ids_BT)
    positions_BT = jnp.broadcast_to(jnp.arange(48), ids_BT.shape)
    hidden_BTD = transformer.hidden(
        model, params, ids_BT, positions_BT, ones_BT, shards=LOCAL, remat="none", compute_dtype=jnp.float32
    )
    guess_BT = jnp.argmax(hidden_BTD @ params["embed"]["table_VD"].T, axis=-1)
    return float(jnp.mean(guess_BT[:, 26:-1] == ids_BT[:, 27:]))


def test_first_weights_copy_before_any_training() -> None:
    model = warmup.model_config(Tokenizer.load(ASSETS / "tokenizer"))
    laid = circuit.initial_weights(model, 0)
    plain = {**laid, "layers": circuit._random(model, np.random.default_rng(0))["layers"]}
    assert _copying(laid, model) > 0.3
    assert _copying(plain, model) < 0.05


def test_circuit_refuses_shapes_it_does_not_fit() -> None:
    from dataclasses import replace

    model = warmup.model_config(Tokenizer.load(ASSETS / "tokenizer"))
    with pytest.raises(ValueError, match="copying circuit"):
        circuit.initial_weights(replace(model, num_kv_heads=2), 0)
