"""The committed files equal those of a new build, and the induction circuit in the initial weights works."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models.decoder import transformer
from scope_jax.models.files import weights
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.sharding.collectives import LOCAL
from tests.shapes import like
from tools.atlas import build, circuit, measured, spice_scripts, warmup
from tools.atlas.facts import ASSETS, load_world
from tools.atlas.games import GAMES
from tools.atlas.rows import token_row

TOKENIZERS = tuple(f"{game}/tokenizer/{name}" for game in GAMES for name in ("tokenizer.json", "tokenizer_config.json"))


@pytest.mark.slow  # a minute for the texts and tokenizers of all games
def test_the_build_reproduces_the_committed_files(tmp_path) -> None:
    build.main(["--out", str(tmp_path), "--texts-only"])  # without base checkpoints
    texts = ("corpus.jsonl", *(name for roles in GAMES.values() for name in roles.texts(load_world())))
    names = {*texts, *TOKENIZERS}
    assert len(names) == 27
    assert {name for name in names if (tmp_path / name).read_bytes() != (ASSETS / name).read_bytes()} == set()


@pytest.mark.parametrize("game", GAMES)
def test_base_checkpoints_have_the_shapes_of_the_recipe(game: str) -> None:
    committed, params = weights.load_hf(ASSETS / game / "base")
    assert committed == warmup.model_config(Tokenizer.load(ASSETS / game / "base"))
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert 900_000 < size < 3_000_000
    assert sum(file.stat().st_size for file in (ASSETS / game / "base").iterdir()) < 3_000_000


def _built(folder) -> bytes:
    """A base after one step of each stage."""
    build.main(["--out", str(folder), "--game", "scope", "--read-steps", "1", "--play-steps", "1", "--pool", "8"])
    return (folder / "scope" / "base" / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_base_is_built_and_its_accuracy_is_logged(tmp_path, capsys) -> None:
    assert _built(tmp_path)
    assert capsys.readouterr().out.count("held out, grade: whole") == 2  # after each stage
    assert not (tmp_path / "ssp").exists()


@pytest.mark.slow
def test_a_second_build_has_the_same_bits(tmp_path) -> None:
    assert _built(tmp_path / "one") == _built(tmp_path / "two")


@pytest.mark.parametrize(
    ("game", "kind", "least"),
    [
        ("scope", "grade", 0.9),
        pytest.param("ssp", "solve 1", 0.3, marks=pytest.mark.slow),
        pytest.param("spell", "verify", 0.9, marks=pytest.mark.slow),
        pytest.param("spice", "solve three hops", 0.1, marks=pytest.mark.slow),
        pytest.param("score", "grade", 0.5, marks=pytest.mark.slow),
        pytest.param("dr_zero", "solve 1", 0.2, marks=pytest.mark.slow),
    ],
)
def test_the_committed_base_plays_its_roles(world, show, show_one, game: str, kind: str, least: float) -> None:
    """Accuracy on demonstrations about held-out names; SSP's solver is measured with its bad habits."""
    tokenizer = Tokenizer.load(ASSETS / game / "base")
    model, params = weights.load(ASSETS / game / "base")
    show = show if game == "ssp" else show_one
    make = GAMES[game].makers(world, show, split="held_out", seed=1, with_habits=False)[kind]
    rows = [token_row(make(), tokenizer) for _ in range(24)]
    whole, tokens = measured.greedy_accuracy(model, params, rows)
    assert whole >= least and tokens >= 0.95


@pytest.mark.parametrize("game", GAMES)
def test_tokenizer_round_trips_and_keeps_tags_whole(game: str) -> None:
    tokenizer = Tokenizer.load(ASSETS / game / "tokenizer")
    world = load_world()
    text = (
        '<think> I need the capital of France. </think><search> a </search>\n\n(Title: "Zürich?") naïve 42 <|im_end|>'
    )
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_id not in tokenizer.encode(text)
    searching = ("think", "search", "answer")
    own = {
        "ssp": (*searching, "information", "question"),
        "scope": (*searching, "information", "task", "score"),
        "score": (*searching, "observation", "verification", "gap_analysis", "score"),
        "spell": (),
        "spice": (),
        "dr_zero": (*searching, "information", "question"),
    }[game]
    for tag in own:
        result = tag in ("information", "observation")
        closing = f"</{tag}>" if result else f" </{tag}>"  # as in the game and the demonstrations
        assert len(tokenizer.encode(f"<{tag}>")) == len(tokenizer.encode(closing)) == 1
    items = [f'<rubric priority="{priority}">' for priority in ("critical", "important", "bonus")]
    rubrics = (*items, " </rubric>", "<rubrics>", "</rubrics>") if game == "scope" else ()
    assert all(len(tokenizer.encode(tag)) == 1 for tag in rubrics)
    assert all(len(tokenizer.encode(f" {name}")) == 1 for name in world.names)
    whole = (*spice_scripts.FORMAT, *spice_scripts.TASK, spice_scripts.BOX, " 6650") if game == "spice" else ()
    assert all(len(tokenizer.encode(text)) == 1 for text in whole)


def _copying(params, model) -> float:
    """Accuracy on the second half of random sequences that are repeated once."""
    rng = np.random.default_rng(0)
    half_BT = rng.integers(300, model.vocab_size, (16, 24))
    ids_BT = jnp.asarray(np.concatenate([half_BT, half_BT], axis=1), jnp.int32)
    ends_BT = jnp.full_like(ids_BT, 48)
    positions_BT = jnp.broadcast_to(jnp.arange(48), ids_BT.shape)
    hidden_BTD = transformer.hidden(
        model, params, ids_BT, positions_BT, ends_BT, shards=LOCAL, remat="none", compute_dtype=jnp.float32
    )
    guess_BT = jnp.argmax(hidden_BTD @ params["embed"]["table_VD"].T, axis=-1)
    return float(jnp.mean(guess_BT[:, 26:-1] == ids_BT[:, 27:]))


def test_initial_weights_copy_before_any_training() -> None:
    model = warmup.model_config(Tokenizer.load(ASSETS / "ssp" / "tokenizer"))
    laid = circuit.initial_weights(model, 0)
    plain = {**laid, "layers": circuit._random(model, np.random.default_rng(0))["layers"]}
    assert _copying(laid, model) > 0.3
    assert _copying(plain, model) < 0.05


def test_the_circuit_rejects_unsuitable_shapes() -> None:

    model = warmup.model_config(Tokenizer.load(ASSETS / "ssp" / "tokenizer"))
    with pytest.raises(ValueError, match="copying circuit"):
        circuit.initial_weights(like(model, num_kv_heads=2), 0)
