"""Every family against transformers (float32, eager): logits and each layer's hidden states, gradients, decoding
with the cache, greedy text from the engine, folders written by one side and read by the other.

Tolerances: 1e-5 absolute for logits, the largest of which are 3 to 5; relative to the largest value compared, 1e-5 for
hidden states and all other values, 2e-5 for gradients. With a Gated DeltaNet ten times as much, in Gemma 4 with biases
or vectors of each layer three times (`tolerance_of`).
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.peers.cases import Numbers
from scope_jax.models.decoder import transformer
from scope_jax.models.decoder.columns import Columns
from scope_jax.models.decoder.config import Delta
from scope_jax.models.decoder.delta import over_rows
from scope_jax.models.decoder.hf import FUSED, HfTensor, hf_tensor
from scope_jax.models.decoder.kinds import FROZEN
from scope_jax.models.decoder.pages import Loop, feed, init_pages, init_states
from scope_jax.models.decoder.paging import Stateful, Where, layer_groups
from scope_jax.models.files.weights import load_hf, save_hf
from scope_jax.models.kernels.attention import make_attend
from scope_jax.models.kernels.packed import Packing
from scope_jax.models.kernels.rope import frequencies
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.rollouts.types import Request, SamplingParams
from scope_jax.sharding.collectives import LOCAL
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.spec import path_name
from tests.models.cudnn_in_xla import in_place_of_cudnn
from tests.rows import ends, laid_out

torch = pytest.importorskip("torch")
from safetensors.torch import save_file  # noqa: E402

transformers = pytest.importorskip("transformers")

VOCAB, ROWS, LENGTH, GREEDY = 96, 4, 72, 64
PROMPTS = (3, 9, 17, 24, 32, 40)
WINDOW = 8  # rows and generated texts are much longer

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
# Queries grow at positions 16, 32, …, so that every row has some of both.
MINISTRAL = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 16.0,
    "original_max_position_embeddings": 16,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,  # one of four wavelengths is between the bounds
    "original_max_position_embeddings": 64,
}
SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA4 = {
    "head_dim": 8,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 0,
    "tie_word_embeddings": True,
    "final_logit_softcapping": 3.0,
}
# As E2B and E4B: vectors of each layer, and layers that attend to the keys of earlier ones.
GEMMA4_E = GEMMA4 | {
    "num_hidden_layers": 5,
    "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL],
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 24,
    "vocab_size_per_layer_input": VOCAB,
}
# Two key heads that serve two heads each, and attention whose heads turn by a quarter.
LINEAR: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rms_norm_eps": 1e-4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
}
# Name of the case -> (class of transformers, what its config adds to SIZES).
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama_llama3": ("Llama", {"rope_scaling": LLAMA3}),
    "llama_linear_biased": (
        "Llama",
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2_yarn": ("Qwen2", {"rope_scaling": YARN | {"truncate": False, "beta_fast": 16}}),
    "qwen3_tied": ("Qwen3", {"tie_word_embeddings": True, "head_dim": 12, "rope_theta": 1e6}),
    "qwen3_biased": (
        "Qwen3",
        {"num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 8, "attention_bias": True},
    ),
    "qwen3_window": (
        "Qwen3",
        {"head_dim": 8, "num_hidden_layers": 3, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "head_dim": 8,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
        },
    ),
    "qwen3_moe_unnormed": (
        "Qwen3Moe",
        {
            "head_dim": 8,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 16,
            "use_sliding_window": True,
        },
    ),
    "olmo3": (
        "Olmo3",
        {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "rope_scaling": YARN},
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4, "sliding_window": None}),
    "smollm3_window": ("SmolLM3", {"no_rope_layers": [1, 0], "use_sliding_window": True}),
    "ministral3": ("Ministral3", {"head_dim": 12, "sliding_window": None, "rope_parameters": MINISTRAL}),
    "mistral": ("Mistral", {"head_dim": 12}),
    "gemma3": (
        "Gemma3Text",
        {
            "num_hidden_layers": 4,
            "layer_types": [SLIDING, SLIDING, FULL, SLIDING],
            "head_dim": 12,
            "query_pre_attn_scalar": 10,
            "tie_word_embeddings": True,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        },
    ),
    "gemma4": (
        "Gemma4Text",
        GEMMA4 | {"num_hidden_layers": 3, "layer_types": [SLIDING, SLIDING, FULL], "attention_k_eq_v": True},
    ),
    "gemma4_e2b": ("Gemma4Text", GEMMA4_E | {"use_double_wide_mlp": True, "attention_k_eq_v": True}),
    "gemma4_e4b": (
        "Gemma4Text",
        GEMMA4_E | {"num_hidden_layers": 6, "layer_types": [SLIDING, FULL, *[SLIDING] * 3, FULL]},
    ),
    "gemma4_shared": (
        "Gemma4UnifiedText",
        {k: v for k, v in GEMMA4_E.items() if "per_layer_input" not in k} | {"attention_bias": True},
    ),
    "gemma4_moe": (
        "Gemma4Text",
        GEMMA4
        | {
            "layer_types": [SLIDING, FULL],
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
        },
    ),
    "gemma4_values": ("Gemma4Text", GEMMA4 | {"layer_types": [SLIDING, FULL], "attention_bias": True}),
    "gemma4_unified": (
        "Gemma4UnifiedText",
        {k: v for k, v in GEMMA4.items() if k != "hidden_size_per_layer_input"} | {"attention_k_eq_v": True},
    ),
    "gemma3_capped": ("Gemma3Text", {"head_dim": 8, "final_logit_softcapping": 3.0, "attention_bias": True}),
    "mistral_full": ("Mistral", {"sliding_window": None, "rope_theta": 1e6}),
    "qwen3_5": ("Qwen3_5Text", LINEAR),
    "qwen3_5_moe": (
        "Qwen3_5MoeText",
        LINEAR
        | {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "gpt_oss": (
        "GptOss",
        {
            "head_dim": 8,
            "intermediate_size": 24,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "rope_parameters": YARN | {"truncate": False, "rope_theta": 1.5e5},
        },
    ),
    "olmo_hybrid": (
        "OlmoHybrid",
        {
            "num_hidden_layers": 4,
            "num_key_value_heads": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": None},
        },
    ),
}
# Each family has a case in the quick suite; these compile as long and cover little that their family's does not.
SLOW = (
    "llama_linear_biased",
    "qwen2",
    "qwen3_tied",
    "qwen3_window",
    "qwen3_moe_unnormed",
    "mistral_full",
    "smollm3_window",
    "gemma3",
    "qwen3_5_moe",
    "olmo_hybrid",
    "gemma3_capped",
    "gemma4",
    "gemma4_e4b",
    "gemma4_shared",
    "gemma4_moe",
    "gemma4_values",
    "gemma4_unified",
)
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "sliding_window": WINDOW,
    "tie_word_embeddings": False,
    "initializer_range": 0.15,  # logits up to 4: greedy choices with clear winners, and attention that is not flat
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}


# Ends of names of weights that begin as 1 or 0.
PERTURBED = (
    "norm.weight",
    "norm_1.weight",
    "norm_2.weight",
    "bias",
    "layer_scalar",
    ".scale",
    "per_expert_scale",
    "A_log",
)


def torch_model(case: str, **given: Any) -> Any:
    """A random model whose norms and biases are not 1 and 0, so that errors in them are detected. given: other figures
    of its config."""
    name, extra = CASES[case][0], CASES[case][1] | given
    windowless = ("Llama", "Qwen3_5Text", "Qwen3_5MoeText", "OlmoHybrid")
    sizes = {k: v for k, v in SIZES.items() if k != "sliding_window" or name not in windowless}
    config = getattr(transformers, f"{name}Config")(**(sizes | extra), attn_implementation="eager")
    torch.manual_seed(0)
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config).eval()
    routers = torch.Generator().manual_seed(1)  # with which no two experts are tied
    with torch.no_grad():
        for weight_name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if weight_name.endswith(PERTURBED):
                weight.add_(0.1 * torch.randn(weight.shape))
            elif weight_name.endswith("sinks"):
                weight.add_(torch.randn(weight.shape))  # some as large as the scores
            elif weight_name.endswith("router.proj.weight"):  # which reads what has a root mean square of 1 / √D
                weight.mul_(4)
            elif "Qwen3_5Moe" in name and weight_name.endswith("mlp.gate.weight"):
                weight.copy_(0.2 * torch.randn(weight.shape, generator=routers))  # their class begins with zeros
    return model


def published(model, tensors) -> dict[str, Any]:
    """OLMo-Hybrid's tensors, or their gradients, under their names in published files. transformers reads those, but
    writes names of other norms, and three equal parts of the convolution, which queries, keys and values are not."""
    found, config = {}, model.config
    for name, weight in tensors.items():
        linear = name.startswith("model.layers.") and config.layer_types[int(name.split(".")[2])] == "linear_attention"
        if linear and name.endswith("conv1d.weight"):
            keys = config.linear_num_key_heads * config.linear_key_head_dim
            for part, rows in zip("qkv", weight.split([keys, keys, len(weight) - 2 * keys]), strict=True):
                found[name.replace("conv1d", f"{part}_conv1d")] = rows.contiguous()
            continue
        if linear:
            name = name.replace("input_layernorm", "attention_layer_norm")
            name = name.replace("post_attention_layernorm", "feedforward_layer_norm")
        found[name] = weight
    return found


QUICK = [case for case in CASES if case not in SLOW]


def params_of(quick) -> list:
    """All cases, of which the others are slow."""
    return [pytest.param(case, marks=() if case in quick else pytest.mark.slow) for case in CASES]


def only(*quick):
    """For a test in which other cases have nothing that these have not: no kind of layer, cache or file."""
    return pytest.mark.parametrize("pair", params_of(quick), indirect=True, scope="module")


@pytest.fixture(scope="module", params=params_of(QUICK))
def pair(request, tmp_path_factory):
    """(torch model, our config, our weights, the folder transformers wrote)."""
    model = torch_model(request.param)
    folder = tmp_path_factory.mktemp("hf")
    model.save_pretrained(folder)
    if request.param == "olmo_hybrid":
        save_file(published(model, model.state_dict()), folder / "model.safetensors", {"format": "pt"})
    cfg, params = load_hf(folder)
    return model, cfg, params, folder


@pytest.fixture(scope="module")
def ids_BT():
    return np.random.default_rng(0).integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)


@partial(jax.jit, static_argnums=0)
def packed_hidden(cfg, params, ids_BT, positions_BT, ends_BT):
    arrays = (ids_BT, positions_BT, ends_BT)
    return transformer.hidden(cfg, params, *arrays, shards=LOCAL, remat="none", compute_dtype=jnp.float32)


def our_hidden(cfg, params, ids_BT):
    positions_BT = jnp.broadcast_to(jnp.arange(ids_BT.shape[1]), ids_BT.shape)
    return packed_hidden(cfg, params, ids_BT, positions_BT, jnp.full_like(ids_BT, ids_BT.shape[1]))


def our_logits(cfg, params, ids_BT):
    return logits(cfg, params, our_hidden(cfg, params, ids_BT))


def logits(cfg, params, hidden_BTD):
    flat = hidden_BTD.reshape(-1, cfg.width), transformer.output_table(cfg, params), cfg.final_softcap
    return transformer.logits_of(*flat).reshape(*hidden_BTD.shape[:2], -1)


@partial(jax.jit, static_argnums=(0, 1))
def one_layer(cfg, layer, w, x_BTD, positions_BT, input_BTp, known):
    """(the layer's result, its keys and values). known: those that it reads of another layer."""
    numbers = jnp.full_like(positions_BT, positions_BT.shape[1]), positions_BT
    if isinstance(layer.mixer, Delta):
        return transformer.block(cfg, layer, w, x_BTD, positions_BT, over_rows(numbers[0]), LOCAL), None
    over, own = make_attend("reference", *numbers, layer.mixer.window), []

    def attend(q_BTHh, k_BTKh, v_BTKh, *sinks):
        own[:] = (k_BTKh, v_BTKh) if known is None else known
        return over(q_BTHh, *own, *sinks)

    return transformer.block(cfg, layer, w, x_BTD, positions_BT, attend, LOCAL, input_BTp=input_BTp), own


def our_layers(cfg, params, ids_BT):
    """Hidden states before the first layer and after each, the last one after the final norm, as in transformers."""
    positions_BT = jnp.broadcast_to(jnp.arange(ids_BT.shape[1]), ids_BT.shape)
    states, keys = [transformer.embed(cfg, params, ids_BT, LOCAL)], []
    inputs = transformer.layer_inputs(cfg, params, ids_BT, states[0], LOCAL)
    layers = zip(transformer.unstack_layers(cfg, params)["layers"], cfg.layers, inputs, strict=True)
    for w, layer, input_BTp in layers:
        source = getattr(layer.mixer, "source", None)
        known = None if source is None else keys[source]
        state, own = one_layer(cfg, layer, w, states[-1], positions_BT, input_BTp, known)
        states.append(state)
        keys.append(own)
    return [*states[:-1], transformer.final_norm(cfg, params, states[-1])]


def torch_logits(model, ids_BT) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(np.asarray(ids_BT, np.int64))).logits.numpy()


def tolerance_of(cfg) -> float:
    """Of a Gated DeltaNet ten times the others': a head whose query and keys are nearly orthogonal gives a small
    result, whose norm enlarges the rounding. (Both sides' logits are 5e-5 off float64's, gradients up to 1.5e-4.) Of
    Gemma 4 with biases or vectors of each layer three times: its scores are not scaled. (Ours are 7e-6 off float64's,
    theirs 1.5e-5; with vectors 1.1e-5 and 9e-6.)"""
    mixers = [cfg.layers[number].mixer for number in cfg.attention_layers]
    rounded = cfg.layers[0].inputs or any(mixer.scale == 1.0 and mixer.qkv_bias for mixer in mixers)
    return (3e-5 if rounded else 1e-5) if len(cfg.attention_layers) == cfg.num_layers else 1e-4


def assert_close(ours, theirs, tolerance: float = 1e-5) -> None:
    assert np.abs(np.asarray(ours) - theirs).max() <= tolerance * np.abs(theirs).max()


def assert_no_tie_between_experts(cfg, router_logits) -> None:
    """Results are comparable only where rounding (at most 1e-6 of a probability) cannot change the routing."""
    assert len(router_logits) == cfg.num_layers
    for logits in router_logits:
        probs = logits.softmax(-1).sort(descending=True).values
        picked = cfg.layers[0].experts.picked
        gap = probs[:, picked - 1] - probs[:, picked]
        assert gap.min() > 1e-5


def test_logits_and_every_layer(pair, ids_BT):
    model, cfg, params, _ = pair
    asked = {"output_hidden_states": True} | ({"output_router_logits": True} if cfg.num_experts else {})
    with torch.no_grad():
        out = model(torch.tensor(ids_BT.astype(np.int64)), **asked)
    if cfg.num_experts:
        assert_no_tie_between_experts(cfg, out.router_logits)
    assert np.abs(out.logits.numpy()).max() > 2
    assert np.abs(np.asarray(our_logits(cfg, params, ids_BT)) - out.logits.numpy()).max() <= tolerance_of(cfg)
    ours = our_layers(cfg, params, jnp.asarray(ids_BT))
    assert len(ours) == len(out.hidden_states) == cfg.num_layers + 1
    for mine, theirs in zip(ours, out.hidden_states, strict=True):
        assert_close(mine, theirs.numpy(), tolerance_of(cfg))


def test_rotary_frequencies(pair):
    """To within two float32 roundings, and the attention factor exactly, for both kinds of layers."""
    model, cfg, _, _ = pair
    rotary = model.model.rotary_emb
    nested = cfg.architecture.startswith(("olmo3", "gemma"))
    for mixer in {cfg.layers[number].attention for number in cfg.attention_layers}:
        if mixer.rope is None:
            continue
        rope, prefix = mixer.rope, ("sliding" if mixer.window else "full") + "_attention_" if nested else ""
        theirs = getattr(rotary, f"{prefix}inv_freq").numpy()
        np.testing.assert_allclose(frequencies(rope, mixer.head_dim), theirs, rtol=2.4e-7)
        assert rope.attention_factor == getattr(rotary, f"{prefix}attention_scaling")


def torch_gradients(model, ids_BT) -> dict[str, np.ndarray]:
    """Of the mean negative log-likelihood, by the names of the tensors in files."""
    ids = torch.tensor(ids_BT.astype(np.int64))
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    gradients: dict[str, np.ndarray] = {}
    fused = (*FUSED, "gemma4_text", "gpt_oss")
    given = {name: weight.grad for name, weight in model.named_parameters()}
    given = published(model, given) if model.config.model_type == "olmo_hybrid" else given
    for name, weight in given.items():
        grad = weight.numpy()
        if not name.startswith("model.layers.") or ".experts." not in name or model.config.model_type in fused:
            gradients[name] = grad
            continue
        # In memory the experts of a layer are stacked, gate and up in one tensor; in files every expert has its own.
        layer, kind = name.split(".experts.")
        parts = {"gate_proj": 0, "up_proj": 1} if kind == "gate_up_proj" else {"down_proj": 0}
        for expert, whole in enumerate(grad):
            for part, place in parts.items():
                gradients[f"{layer}.experts.{expert}.{part}.weight"] = np.split(whole, len(parts))[place]
    return gradients


def part_of(tensor: HfTensor, whole: np.ndarray, index: tuple[int, ...], ours: Any) -> np.ndarray:
    """The part of a tensor of the file that is one of our weights."""
    whole = whole[index[-1]] if tensor.fused else whole
    whole = whole[:, 0] if tensor.column else whole
    whole = whole[..., tensor.turns[0] :: tensor.turns[1]]
    if tensor.rows is None:
        return whole
    rows = ours.shape[-1 if tensor.transposed else tensor.leading]
    return whole[tensor.rows[0] : tensor.rows[0] + rows]


@only("qwen3_5", "gemma4_e2b", "gpt_oss")
def test_gradients(pair, ids_BT):
    """For every weight, by the names that export uses."""
    model, cfg, params, _ = pair
    ours = gradients(partial(our_logits, cfg), params, ids_BT)
    assert_gradients(cfg, ours, torch_gradients(model, ids_BT))


def gradients(logits, params, ids_BT):
    """Of the mean negative log-likelihood. logits(params, ids_BT) -> [B, T, V]."""

    def loss(p):
        logp = jax.nn.log_softmax(logits(p, ids_BT)[:, :-1])
        return -jnp.mean(jnp.take_along_axis(logp, ids_BT[:, 1:, None], axis=-1))

    return jax.jit(jax.grad(loss))(params)


def assert_gradients(cfg, ours, expected) -> None:
    """expected: by the names of the tensors in files, of which there must be no others."""
    compared = set()
    for path, grad in jax.tree_util.tree_leaves_with_path(ours):
        tensor = hf_tensor(cfg, path_name(path))
        if path_name(path).rpartition(".")[2] in FROZEN:
            assert not np.any(grad)
            continue
        for index in np.ndindex(grad.shape[: tensor.leading]):
            theirs = part_of(tensor, expected[tensor.at(index)], index, grad)
            theirs = theirs.T if tensor.transposed else theirs
            # A key bias shifts all scores of a query equally: its gradient is zero up to rounding, on both sides.
            scale = max(np.abs(theirs).max(), 1e-3)
            error = np.abs(np.asarray(grad[index]) - theirs).max()
            assert error <= 2 * tolerance_of(cfg) * scale, tensor.at(index)
            compared.add(tensor.at(index))
    assert compared == set(expected)


def test_packed_rows_equal_transformers_rows(pair, ids_BT):
    """Three texts in one packed row, two of them longer than the window: the logits of each text alone."""
    model, cfg, params, _ = pair
    lengths, padding = [5, 30, 33], 4
    row = np.concatenate([ids_BT[i, :n] for i, n in enumerate(lengths)] + [np.zeros(padding, int)])
    behind = ends(np.repeat([1, 2, 3, 0], [*lengths, padding]))
    positions = np.concatenate([np.arange(n) for n in [*lengths, padding]])
    arrays = (jnp.asarray(np.tile(x, (ROWS, 1)), jnp.int32) for x in (row, positions, behind))
    hidden = packed_hidden(cfg, params, *arrays)
    packed = np.asarray(logits(cfg, params, hidden))[0]
    start = 0
    for i, n in enumerate(lengths):
        assert_close(packed[start : start + n], torch_logits(model, ids_BT[i : i + 1, :n])[0], tolerance_of(cfg))
        start += n


@partial(jax.jit, static_argnums=(0, 1, 2))
def hidden_and_gradients(cfg, backend, packing, params, ids_BT, ends_BT, positions_BT, real_BT):
    """Of the tokens that are no padding."""
    how = {"attention": backend, "packing": packing, "remat": "attention", "compute_dtype": jnp.float32}

    def hidden(params):
        out_BTD = transformer.hidden(cfg, params, ids_BT, positions_BT, ends_BT, shards=LOCAL, **how)
        return jnp.where(real_BT[..., None], out_BTD, 0)

    out_BTD, pull = jax.vjp(hidden, params)
    return out_BTD, pull(jnp.sin(jnp.arange(out_BTD.size, dtype=jnp.float32)).reshape(out_BTD.shape))


@only()
@pytest.mark.parametrize("kind", ["single", "several", "forked"])
def test_rows_of_every_kind_in_kernels_without_a_mask(pair, kind, ids_BT, monkeypatch):
    """Hidden states and gradients are the reference's, the kernels being those of `cudnn_in_xla`. A state is of one
    text, so that models with some have no rows whose texts part."""
    in_place_of_cudnn(monkeypatch)
    _, cfg, params, _ = pair
    rows, packing = {
        "single": ([[(LENGTH, [])], [(50, [])]], Packing(1, 0)),
        "several": ([[(30, []), (2, []), (25, [])], [(LENGTH, [])]], Packing(4, 0)),
        "forked": ([[(20, [(9, [(7, []), (5, [])]), (16, [])])], [(12, [(9, []), (8, [])]), (30, [])]], Packing(16, 2)),
    }[kind]
    if kind == "forked" and len(cfg.attention_layers) < cfg.num_layers:
        pytest.skip("a state is of one text")
    laid = [laid_out(texts, LENGTH) for texts in rows]
    ends_BT, positions_BT = (jnp.stack(x) for x in zip(*laid, strict=True))
    real_BT = (positions_BT > 0) | (ends_BT > jnp.arange(LENGTH) + 1)
    arrays = (params, ids_BT[:2], ends_BT, positions_BT, real_BT)
    ours, wanted = (hidden_and_gradients(cfg, how, packing, *arrays) for how in ("cudnn", "reference"))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
        if np.abs(other).max():
            assert_close(one, other, tolerance_of(cfg))


@only("ministral3", "qwen3_5", "gemma4_e2b", "gpt_oss")
def test_prefill_and_decode_steps_equal_the_full_forward_pass(pair, ids_BT):
    """Rows of different lengths, prefilled, extended and decoded, across a block boundary of the cache."""
    _, cfg, params, _ = pair
    expected = np.asarray(our_hidden(cfg, params, ids_BT))
    layers = transformer.unstack_layers(cfg, params)
    how, slots = Columns(128), jnp.arange(ROWS, dtype=jnp.int32)[:, None, None]
    table = jnp.tile(slots, (1, len(layer_groups(cfg, how.paging)), 1))
    add = jax.jit(lambda cache, ids, *where: feed(cfg, how, layers, cache, ids, Where(table, *where), LOCAL))
    cache = init_pages(cfg, how, ROWS, jnp.float32)
    if states := init_states(cfg, ROWS, jnp.float32):
        cache = Stateful(cache, states)
    first, lengths, rows = np.asarray([1, 5, 20, 40]), np.asarray([2, 30, 50, 63]), np.arange(ROWS)
    _, cache = add(cache, ids_BT[:, :48], np.zeros(ROWS, np.int32), first)
    rest = np.stack([np.roll(row, -start)[:48] for row, start in zip(ids_BT, first, strict=True)])
    _, cache = add(cache, rest, first, lengths - first)
    for at in (lengths, lengths + 1, lengths + 2):
        out, cache = add(cache, ids_BT[rows, at][:, None], at, np.ones(ROWS, np.int32))
        assert_close(out[:, 0], expected[rows, at], tolerance_of(cfg))


@only("gemma4_e2b")  # tests/rollouts has the engine over states, windows and experts
@pytest.mark.parametrize("how", [Columns(128), pytest.param(Loop(), marks=pytest.mark.slow)], ids=["columns", "pages"])
def test_greedy_text_of_the_engine(pair, how):
    """64 tokens after prompts of different lengths; alone and in a batch, bit for bit."""
    model, cfg, params, _ = pair
    config = EngineConfig(slots=4, max_length=128, decode_steps=8, compute_dtype=jnp.float32, prefill_tokens=64)
    engine = Engine(cfg, config, make_mesh(MeshConfig(1, 1, 1)), how)
    rollouts = LocalRollouts(engine, Numbers(), seed=0, threads=1, ahead=False)
    rollouts.load_params(params)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCAB, length).tolist() for length in PROMPTS]
    greedy = SamplingParams(0.0, 0, 1.0, GREEDY, (), (), False)
    requests = [Request(prompt, greedy, None, None, 1, None) for prompt in prompts]
    completions = rollouts.run(requests)
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = torch.tensor([prompt])
        seen = torch.ones_like(ids)  # otherwise `generate` takes prompt tokens equal to the pad id for padding
        with torch.no_grad():
            theirs = model.generate(ids, attention_mask=seen, max_new_tokens=GREEDY, do_sample=False, pad_token_id=0)
        assert completion.ids_T.tolist() == theirs[0, len(prompt) :].tolist()
        logp_TV = torch.tensor(torch_logits(model, theirs[:, :-1])[0, len(prompt) - 1 :]).log_softmax(-1)
        their_logp_T = logp_TV.gather(1, theirs[0, len(prompt) :, None])[:, 0].numpy()
        assert np.abs(completion.logprobs_T - their_logp_T).max() <= 2 * tolerance_of(cfg)
    assert len(np.unique(np.concatenate([c.ids_T for c in completions]))) > 10  # not one repeated token
    alone = rollouts.run(requests[2:3])[0]
    assert alone.ids_T.tobytes() == completions[2].ids_T.tobytes()
    assert alone.logprobs_T.tobytes() == completions[2].logprobs_T.tobytes()


def test_exported_folder_reloads_in_transformers(pair, ids_BT, tmp_path):
    model, cfg, params, folder = pair
    save_hf(tmp_path / "out", cfg, params, jnp.float32, None)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    assert type(again) is type(model) and again.dtype == torch.float32
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    assert np.array_equal(torch_logits(again, ids_BT), torch_logits(model, ids_BT))
    ours, theirs = (json.loads((place / "config.json").read_text()) for place in (tmp_path / "out", folder))
    said = set(ours) & set(theirs) - {"initializer_range", "rope_parameters", "use_sliding_window", "intermediate_size"}
    assert {k: ours[k] for k in said} == {k: theirs[k] for k in said}
    assert load_hf(tmp_path / "out")[0] == cfg


@only("llama_llama3", "qwen3_moe", "gpt_oss")
def test_bfloat16_folder_from_transformers(pair, tmp_path):
    model, cfg, params, _ = pair
    half = type(model)(model.config).to(torch.bfloat16)
    half.load_state_dict({k: v.to(torch.bfloat16) for k, v in model.state_dict().items()})
    half.save_pretrained(tmp_path / "half")
    if cfg.architecture == "olmo_hybrid":
        save_file(published(half, half.state_dict()), tmp_path / "half/model.safetensors", {"format": "pt"})
    loaded_cfg, loaded = load_hf(tmp_path / "half", dtype=jnp.bfloat16)
    assert loaded_cfg == cfg
    same = jax.tree.map(lambda x, y: bool(jnp.array_equal(x, y.astype(jnp.bfloat16))), loaded, params)
    assert jax.tree.all(same)
    save_hf(tmp_path / "back", cfg, loaded, jnp.bfloat16, None)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype="auto")
    assert again.dtype == torch.bfloat16
    assert all(torch.equal(w, again.state_dict()[n]) for n, w in half.state_dict().items())
