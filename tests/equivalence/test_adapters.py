"""Low-rank adapters against PEFT: logits, gradients, ten AdamW steps, merged weights, folders both ways.

Of two families in float32, with tolerances of 1e-5, absolute for logits (the largest are 3 to 5), relative to the
largest value of a factor for gradients and for factors after ten steps. Of all in float64, where rounding hides
nothing, with a third of that: what is left are constants that one side has in float32, such as frequencies of
positions. AdamW has eps = 1e-3 on both sides: with 1e-8 a gradient that is nearly zero would make a step as large as
any other. rsLoRA has half the alpha, so that every family has a scale of 1.5.
"""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner.learner import Learner
from scope_jax.learner.types import Datum, Episode
from scope_jax.models.decoder import adapter as adapters
from scope_jax.models.decoder.adapter import Adapter
from scope_jax.models.files import peft as ours_in_peft
from scope_jax.models.files.weights import load_hf
from scope_jax.run.convert import convert
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.spec import path_name
from tests.equivalence.test_families import (
    CASES,
    our_logits,
    params_of,
    published,
    tolerance_of,
    torch_logits,
    torch_model,
)
from tests.train.test_adapter_targets import write_run

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
from safetensors.torch import save_file  # noqa: E402

transformers = pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]
RANK, ALPHA, ROWS, LENGTH, STEPS = 4, 6.0, 4, 24, 10
QUICK = ("llama_llama3", "qwen3_moe")
# Adapters of attention and of experts.
of_experts = pytest.mark.parametrize("case", ["qwen3_moe"], indirect=True, scope="module")
MODULES = [
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "g_proj", "a_proj", "b_proj"),
    *("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"),
    *("per_layer_input_gate", "per_layer_projection"),
]
OPTIMIZER = OptimizerSection(learning_rate=1e-2, warmup_steps=1, eps=1e-3, weight_decay=0.1, max_grad_norm=1e9)
CARD = LossCard(objective="supervised", aggregation="token-mean")


class Experts(torch.nn.ModuleList):
    """The experts of a layer as one linear module per matrix, as in files and in transformers up to 4, so that PEFT
    adapts each of them; transformers 5 stacks them in two parameters."""

    def __init__(self, stacked):
        super().__init__()
        for gate_up, down in zip(stacked.gate_up_proj, stacked.down_proj, strict=True):
            expert = torch.nn.Module()
            gate, up = gate_up.detach().chunk(2)
            for name, weight in (("gate_proj", gate), ("up_proj", up), ("down_proj", down.detach())):
                linear = torch.nn.Linear(*reversed(weight.shape), bias=False)
                linear.weight = torch.nn.Parameter(weight.clone())
                expert.add_module(name, linear)
            self.append(expert)

    def forward(self, x, picked, weights):
        out = torch.zeros_like(x)
        for number, e in enumerate(self):
            token, place = torch.where(picked == number)
            hidden = torch.nn.functional.silu(e.gate_proj(x[token])) * e.up_proj(x[token])
            out.index_add_(0, token, e.down_proj(hidden) * weights[token, place, None])
        return out


def with_linear_experts(model):
    """Of a family whose files have each expert's matrices; others' experts are not adapted."""
    if model.config.model_type == "qwen3_moe":
        for layer in model.model.layers:
            layer.mlp.experts = Experts(layer.mlp.experts)
    model.config.model_type = "of linear experts"  # PEFT would adapt transformers' stacked ones instead
    return model


@pytest.fixture(scope="module", params=params_of(QUICK))
def case(request, tmp_path_factory):
    return written(request.param, tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("adapter"))


def written(name, base_folder, folder):
    """(PEFT's model with random factors, our config, base, adapter and factors, the folders of base and adapter)."""
    model = torch_model(name)
    model.save_pretrained(base_folder)
    if name == "olmo_hybrid":
        save_file(published(model, model.state_dict()), base_folder / "model.safetensors", {"format": "pt"})
    cfg, base = load_hf(base_folder)
    rslora = name == "olmo3"
    alpha = ALPHA / math.sqrt(RANK) if rslora else ALPHA
    config = peft.LoraConfig(r=RANK, lora_alpha=alpha, target_modules=MODULES, use_rslora=rslora, task_type="CAUSAL_LM")
    model = peft.get_peft_model(with_linear_experts(model), config)
    with torch.no_grad():
        for place, weight in model.named_parameters():
            if ".lora_B." in place:
                weight.add_(0.1 * torch.randn(weight.shape))
    model.save_pretrained(folder)
    targets = ("all-linear", "experts") if "qwen3_moe" in name else ("all-linear",)
    adapter = Adapter(RANK, alpha, targets, rslora, base_dtype=jnp.float32)
    return model, cfg, base, adapter, ours_in_peft.load(folder, cfg, adapter), base_folder, folder


@pytest.fixture(scope="module")
def ids_BT():
    return random_ids()


def random_ids():
    return np.random.default_rng(0).integers(0, 96, (ROWS, LENGTH)).astype(np.int32)


def learner_of(cfg, adapter) -> Learner:
    section = LearnerSection(buckets=(LENGTH,), micro_batch_rows=2, logprob_chunk=16)
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    kinds = {"param_dtype": jnp.float32, "compute_dtype": jnp.float32}
    return Learner(cfg, mesh, OPTIMIZER, section, **kinds, adapter=adapter)


def by_name(cfg, factors) -> dict[str, np.ndarray]:
    """Our factors by the names of PEFT's parameters, in their layout."""
    found: dict[str, list[np.ndarray]] = {}
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(factors))
    for path, leaf in sorted(leaves, key=lambda one: (ours_in_peft._tensor_of(cfg, path_name(one[0])).rows or (0,))[0]):
        for place, name in ours_in_peft._tensor_names(cfg, path_name(path), leaf.shape).items():
            found.setdefault(name.replace(".weight", ".default.weight"), []).append(leaf[place].T)
    # Weights that are rows of one module follow one another as their rows do: queries, keys, values.
    return {name: np.concatenate(parts) for name, parts in found.items()}


def assert_equal_factors(cfg, ours, theirs) -> None:
    mine = by_name(cfg, ours)
    assert set(mine) == set(theirs)
    for name, wanted in theirs.items():
        assert np.abs(mine[name] - wanted).max() <= tolerance_of(cfg) * np.abs(wanted).max(), name


def batches_of(learner, ids_BT):
    """Rows whose tokens are all sampled but the first, as one batch."""
    sampled = np.arange(LENGTH) > 0
    rows = [Datum(ids, sampled, np.zeros(LENGTH, np.float32)) for ids in ids_BT]
    return learner.pack([Episode("sft", "actor", str(i), (row,), 0.0) for i, row in enumerate(rows)], CARD)


def torch_steps(model, ids_BT):
    """The gradients of the loss, by name, before each of ten steps of torch's AdamW."""
    weights = {name: w for name, w in model.named_parameters() if w.requires_grad}
    optimizer = torch.optim.AdamW(
        weights.values(), OPTIMIZER.learning_rate, eps=OPTIMIZER.eps, weight_decay=OPTIMIZER.weight_decay
    )
    ids = torch.tensor(ids_BT.astype(np.int64))
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        yield {name: w.grad.numpy().copy() for name, w in weights.items()}
        optimizer.step()


def factors_of(model):
    return {name: w.detach().numpy().copy() for name, w in model.named_parameters() if w.requires_grad}


@of_experts
def test_logits_unmerged_and_merged(case, ids_BT):
    model, cfg, base, adapter, factors, *_ = case
    theirs = torch_logits(model, ids_BT)
    unmerged = np.asarray(our_logits(cfg, adapters.combined(cfg, base, factors, adapter.scale), ids_BT))
    merged = np.asarray(our_logits(cfg, adapters.merge(cfg, base, factors, adapter.scale, jnp.float32), ids_BT))
    plain = np.asarray(our_logits(cfg, base, ids_BT))
    assert np.abs(unmerged - theirs).max() <= tolerance_of(cfg)
    assert np.abs(merged - unmerged).max() <= tolerance_of(cfg)
    assert np.abs(plain - theirs).max() > 0.1  # the adapter makes a difference


@of_experts
def test_gradients_and_ten_steps(case, ids_BT):
    """The learner on packed rows, with the base frozen, against torch's AdamW on PEFT's parameters."""
    shared, cfg, base, adapter, factors, *_ = case
    model = copy.deepcopy(shared)  # other tests have it, whatever comes of this one
    learner = learner_of(cfg, adapter)
    state, batches = learner.init_state(factors).replace(ref_params=base), batches_of(learner, ids_BT)
    before = factors_of(model)
    for step, gradients in enumerate(torch_steps(model, ids_BT)):
        state, _ = learner.update(state, batches, CARD)
        if step == 0:  # Adam's first moment is a tenth of the gradient
            assert_equal_factors(cfg, jax.tree.map(lambda mu: mu / 0.1, state.opt_state[0].mu), gradients)
    after = factors_of(model)
    assert_equal_factors(cfg, state.params, after)
    assert max(float(np.abs(after[name] - before[name]).max()) for name in after) > 0.02


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_family_in_float64(name):
    command = [sys.executable, "-m", "tests.equivalence.float64_adapters", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    # With vectors of each layer, one rounding of the base changes torch's own factors by up to 6e-3 in ten steps.
    for what in ("logits", "gradients", *(() if name.startswith("gemma4_e") else ("steps",))):
        assert found[what] <= 3e-6, found
    assert found["merged"] <= 1e-12 and found["without"] > 0.1 and found["moved"] > 0.02, found


def test_an_exported_adapter_loads_in_peft(case, ids_BT, tmp_path):
    """Over transformers' own model: PEFT converts the factors of single experts to its stacked ones."""
    model, cfg, _, adapter, factors, base_folder, _ = case
    ours_in_peft.save(tmp_path / "out", cfg, adapter, factors, str(base_folder))
    fresh = type(model.base_model.model).from_pretrained(base_folder, attn_implementation="eager").eval()
    again = peft.PeftModel.from_pretrained(fresh, tmp_path / "out").eval()
    assert np.abs(torch_logits(again, ids_BT) - torch_logits(model, ids_BT)).max() <= tolerance_of(cfg)


def test_reference_and_policy_are_scored_in_one_program(case, ids_BT):
    """The reference is the base without factors: no second set of buffers."""
    _, cfg, base, adapter, factors, *_ = case
    if cfg.num_experts:
        pytest.skip("the same for dense models, which compile faster")
    learner = learner_of(cfg, adapter)
    state = learner.init_state(factors).replace(ref_params=base)
    sampled = np.arange(LENGTH) > 0
    row = Datum(ids_BT[0], sampled, np.zeros(LENGTH, np.float32))
    (batch,) = learner.pack([Episode("solver", "actor", "g", (row,), 0.0, advantage=1.0)], LossCard())
    scores = learner.score(state, batch)
    at = np.asarray(batch.mask_MN)
    for ours, tree in ((scores.old_MN, adapters.combined(cfg, base, factors, adapter.scale)), (scores.ref_MN, base)):
        logp = jax.nn.log_softmax(our_logits(cfg, tree, ids_BT[:1]))[0, :-1]
        wanted = np.take_along_axis(np.asarray(logp), ids_BT[0, 1:, None], axis=-1)[:, 0]
        np.testing.assert_allclose(np.asarray(ours)[at], wanted, atol=2e-5)
    assert np.abs(np.asarray(scores.old_MN) - np.asarray(scores.ref_MN))[at].max() > 0.01


@pytest.mark.slow
def test_both_exports_of_a_run_load_in_transformers(ids_BT, tmp_path):
    """Each policy: `export --merge` as a whole model, and `export` with PEFT over the base, give the same logits, in
    float64, as those of Atlas's bases are larger than those of the families above."""
    write_run(tmp_path / "run", seed=0)
    convert(tmp_path / "run", tmp_path / "adapters", "hf")
    convert(tmp_path / "run", tmp_path / "merged", "hf", merge=True)

    def model(folder):
        return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")

    base = "assets/atlas/scope/base"
    plain = torch_logits(model(base).double().eval(), ids_BT)
    for policy in ("challenger", "solver"):
        merged = torch_logits(model(tmp_path / "merged" / policy).double().eval(), ids_BT)
        adapted = peft.PeftModel.from_pretrained(model(base), tmp_path / "adapters" / policy).double().eval()
        assert np.abs(merged - torch_logits(adapted, ids_BT)).max() <= 1e-5
        assert np.abs(merged - plain).max() > 0.1
