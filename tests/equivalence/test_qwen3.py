"""Qwen3 against transformers: logits, gradients, greedy continuation, folders that each side reads from the other."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import transformer
from models.weights import load_hf, save_hf
from sharding.collectives import LOCAL

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ROWS, LENGTH, GREEDY = 8, 24, 64

CASES = {
    "tied": {"tie_word_embeddings": True, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12},
    "untied_biased": {
        "tie_word_embeddings": False,
        "num_attention_heads": 6,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "attention_bias": True,
    },
}


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    """(torch model, our config, our weights, the folder transformers wrote)."""
    config = transformers.Qwen3Config(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=56,
        num_hidden_layers=2,
        max_position_embeddings=256,
        rope_theta=1_000_000.0,
        initializer_range=0.2,  # logits of order ten: greedy choices with clear winners, and attention that is not flat
        attn_implementation="eager",
        **CASES[request.param],
    )
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                weight.add_(0.1 * torch.randn(weight.shape))
    folder = tmp_path_factory.mktemp("hf")
    model.save_pretrained(folder)
    cfg, params = load_hf(folder)
    return model, cfg, params, folder


@pytest.fixture(scope="module")
def ids_BT():
    return np.random.default_rng(0).integers(0, 96, (ROWS, LENGTH))


@partial(jax.jit, static_argnums=0)
def our_logits(cfg, params, ids_BT):
    positions_BT = jnp.broadcast_to(jnp.arange(ids_BT.shape[1]), ids_BT.shape)
    hidden_BTD = transformer.hidden(
        cfg,
        params,
        ids_BT,
        positions_BT,
        jnp.ones_like(ids_BT),
        shards=LOCAL,
        remat="full",
        compute_dtype=jnp.float32,
    )
    return hidden_BTD @ transformer.output_table(cfg, params).T


def torch_logits(model, ids_BT) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(np.asarray(ids_BT))).logits.numpy()


def test_logits(pair, ids_BT):
    model, cfg, params, _ = pair
    expected = torch_logits(model, ids_BT)
    assert np.abs(expected).max() > 1
    assert np.abs(our_logits(cfg, params, ids_BT) - expected).max() <= 1e-5 * np.abs(expected).max()


def test_gradients(pair, ids_BT):
    """Of the mean negative log-likelihood, for every weight, through the same names that export uses."""
    from models.hf import hf_tensor
    from sharding.spec import path_name

    model, cfg, params, _ = pair
    ids = torch.tensor(ids_BT)
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    expected = {name: weight.grad.numpy() for name, weight in model.named_parameters()}

    def loss(p):
        logp = jax.nn.log_softmax(our_logits(cfg, p, ids_BT)[:, :-1])
        return -jnp.mean(jnp.take_along_axis(logp, ids_BT[:, 1:, None], axis=-1))

    compared = 0
    for path, grad in jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(params)):
        tensor = hf_tensor(cfg, path_name(path))
        for i in range(cfg.num_layers if "{i}" in tensor.name else 1):
            ours = np.asarray(grad[i] if "{i}" in tensor.name else grad)
            theirs = expected[tensor.name.format(i=i)]
            theirs = theirs.T if tensor.transposed else theirs
            # A key bias moves every score of a query alike: its gradient is zero up to rounding, on both sides.
            scale = max(np.abs(theirs).max(), 1e-3)
            assert np.abs(ours - theirs).max() <= 2e-5 * scale, (tensor.name, i)
            compared += 1
    assert compared == len(expected)


def test_packed_rows_are_transformers_rows(pair, ids_BT):
    """Three texts in one packed row give each text's own logits."""
    model, cfg, params, _ = pair
    lengths = [5, 9, 8]
    row = np.concatenate([ids_BT[i, :n] for i, n in enumerate(lengths)] + [np.zeros(2, int)])[None]
    segments = np.repeat([1, 2, 3, 0], [*lengths, 2])[None]
    positions = np.concatenate([np.arange(n) for n in [*lengths, 2]])[None]
    arrays = (jnp.asarray(x) for x in (row, positions, segments))
    hidden = transformer.hidden(cfg, params, *arrays, shards=LOCAL, remat="none", compute_dtype=jnp.float32)
    logits = np.asarray(hidden @ transformer.output_table(cfg, params).T)[0]
    start = 0
    for i, n in enumerate(lengths):
        expected = torch_logits(model, ids_BT[i : i + 1, :n])[0]
        assert np.abs(logits[start : start + n] - expected).max() <= 1e-5 * np.abs(expected).max()
        start += n


def test_greedy_continuation(pair):
    """64 tokens after 8 prompts, each step a whole forward pass (the engine's cached one is tested with the engine)."""
    model, cfg, params, _ = pair
    prompts = np.random.default_rng(1).integers(0, 96, (8, 8))
    out = model.generate(
        torch.tensor(prompts),
        attention_mask=torch.ones(8, 8),
        max_new_tokens=GREEDY,
        do_sample=False,
        eos_token_id=None,
    )
    ids = np.zeros((8, 8 + GREEDY), np.int64)
    ids[:, :8] = prompts
    for t in range(8, 8 + GREEDY):  # what stands after t does not matter: attention is causal
        ids[:, t] = np.asarray(our_logits(cfg, params, ids)[:, t - 1].argmax(-1))
    assert np.array_equal(ids, out.numpy())
    assert len(np.unique(ids[:, 8:])) > 10  # no trivial loop


def test_exported_folder_reloads_in_transformers(pair, ids_BT, tmp_path):
    model, cfg, params, folder = pair
    save_hf(tmp_path / "out", cfg, params, jnp.float32, None)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    assert isinstance(again, transformers.Qwen3ForCausalLM)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    assert again.dtype == torch.float32
    expected = torch_logits(model, ids_BT)
    assert np.array_equal(torch_logits(again, ids_BT), expected)
    ours, theirs = (json.loads((place / "config.json").read_text()) for place in (tmp_path / "out", folder))
    assert {k: theirs[k] for k in ours if k in theirs} == {k: ours[k] for k in ours if k in theirs} | {
        "initializer_range": 0.2
    }


def test_bfloat16_folder_from_transformers(pair, tmp_path):
    model, cfg, params, _ = pair
    half = transformers.Qwen3ForCausalLM(model.config).to(torch.bfloat16)
    half.load_state_dict({k: v.to(torch.bfloat16) for k, v in model.state_dict().items()})
    half.save_pretrained(tmp_path / "half")
    loaded_cfg, loaded = load_hf(tmp_path / "half", dtype=jnp.bfloat16)
    assert loaded_cfg == cfg
    same = jax.tree.map(lambda x, y: bool(jnp.array_equal(x, y.astype(jnp.bfloat16))), loaded, params)
    assert jax.tree.all(same)
    save_hf(tmp_path / "back", cfg, loaded, jnp.bfloat16, None)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype="auto")
    assert again.dtype == torch.bfloat16
    assert all(torch.equal(w, again.state_dict()[n]) for n, w in half.state_dict().items())
