"""The gradient of one batch equals that of TRL's and of Tunix' loss, as `benchmarks.curves.gradients` recorded them.

TRL 1.16.0: GRPOTrainer._compute_loss. Tunix 0.1.7: the policy loss `grpo` of tunix.rl.algo_core. Same weights,
completions and old log-probs; many ratios are clipped.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks.curves import gradients
from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner.learner import Learner
from scope_jax.learner.types import Datum, Episode
from scope_jax.models.files.weights import load_hf, save_hf
from scope_jax.sharding.mesh import MeshConfig, make_mesh

RECORDED = json.loads((Path(__file__).parent / "peers.json").read_text(encoding="utf-8"))
# Adam's first step is g/(|g| + eps) for a gradient g: at a rate and an eps of 1 the weights move by g/(|g| + 1). With
# decays of a half, 1 − decay is exact in float32.
OPTIMIZER = OptimizerSection(
    learning_rate=1,
    warmup_steps=1,
    beta1=0.5,
    beta2=0.5,
    eps=1,
    weight_decay=0,
    max_grad_norm=1e9,
    max_param_rms=1e9,
)


def episodes() -> list[Episode]:
    rows = gradients.batch()
    prompt, found = gradients.PROMPT, []
    for row, length in enumerate(gradients.LENGTHS):
        ids = np.concatenate([rows["prompt_ids"][row], rows["completion_ids"][row, :length]])
        old = np.concatenate([np.zeros(prompt, np.float32), rows["old_per_token_logps"][row, :length]])
        datum = Datum(ids, np.arange(len(ids)) >= prompt, old)
        found.append(Episode("solver", "actor", str(row), (datum,), 0.0, advantage=float(rows["advantages"][row])))
    return found


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """By case: loss, and norm and product of the gradient, which is what a step with OPTIMIZER moved."""
    folder = tmp_path_factory.mktemp("models")
    weights = gradients.save_model(folder / "policy", 0)
    gradients.save_model(folder / "reference", 1)
    (cfg, params), (_, reference) = (load_hf(folder / name) for name in ("policy", "reference"))
    section = LearnerSection(buckets=(16,), packing=False, micro_batch_rows=0, remat="none")
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    learner = Learner(cfg, mesh, OPTIMIZER, section, param_dtype=jnp.float32, compute_dtype=jnp.float32)
    found = {}
    for case in gradients.CASES:
        kl = {"kl": "none"} if case == "clip" else {"kl": case, "kl_coef": gradients.KL_COEF}
        clip = {"clip_low": gradients.CLIP, "clip_high": gradients.CLIP, "dual_clip": 0.0}
        card = LossCard.model_validate({"old_logprobs": "rollout", "aggregation": "sequence-mean", **clip, **kl})
        state = learner.init_state(jax.tree.map(jnp.copy, params)).replace(ref_params=reference)
        state, metrics = learner.update(state, learner.pack(episodes(), card), card)
        assert 0.2 < metrics["clip_fraction"] < 0.8
        save_hf(folder / case, cfg, state.params, jnp.float32, None)
        moved = load_file(folder / case / "model.safetensors")
        steps = {name: before.astype(np.float64) - moved[name] for name, before in weights.items()}
        gradient = {name: step / (1 - np.abs(step)) for name, step in steps.items()}
        found[case] = gradients.measured(metrics["loss"], gradient, weights)
    return found


@pytest.mark.slow  # tests/equivalence/test_learner.py has such a loss and its gradient, against torch
@pytest.mark.parametrize(
    ("peer", "case"), [(peer, case) for peer, recorded in RECORDED.items() for case in recorded["cases"]]
)
def test_loss_and_gradient_are_those_of_a_peer(ours, peer, case):
    theirs = RECORDED[peer]["cases"][case]
    assert theirs.keys() == ours[case].keys() and len(theirs) == 1 + 13
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[case][name], value, rtol=5e-6, atol=2e-6, err_msg=name)


def test_trl_corrects_its_kl_by_default_and_tunix_does_not():
    """The gradients of `k3` and `k3-plain` differ: equal settings need one of the two in all systems."""
    plain, corrected = (RECORDED["trl"]["cases"][case]["model.embed_tokens.weight"] for case in ("k3-plain", "k3"))
    assert abs(plain[0] - corrected[0]) > 0.01 * plain[0]
