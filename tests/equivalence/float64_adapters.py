"""Low-rank adapters against PEFT in float64, for test_adapters.py; prints one JSON object: the largest differences of a
case's logits, gradients and factors after ten steps of AdamW.

python -m tests.equivalence.float64_adapters CASE
"""

import json
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)
jnp.float32 = jnp.float64  # the models compute norms, scores and sums in float32; here in float64, as all else

import numpy as np  # noqa: E402
import torch  # noqa: E402

from scope_jax.models.decoder import adapter as adapters  # noqa: E402
from tests.equivalence import test_adapters as adapted  # noqa: E402
from tests.equivalence.test_families import our_logits, torch_logits  # noqa: E402


def in_float64(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64) if x.dtype == np.float32 else x, tree)


def relative(cfg, ours, theirs) -> float:
    """The largest difference of a factor, relative to its largest value."""
    mine = adapted.by_name(cfg, ours)
    assert set(mine) == set(theirs)
    return max(float(np.abs(mine[name] - wanted).max() / np.abs(wanted).max()) for name, wanted in theirs.items())


def differences(name: str, folder: Path) -> dict[str, float]:
    model, cfg, base, adapter, factors, *_ = adapted.written(name, folder / "base", folder / "adapter")
    model, base, factors = model.double(), in_float64(base), in_float64(factors)
    model.config._experts_implementation = "eager"  # a grouped product has no kernel in float64
    with patch.object(torch, "float32", torch.float64), patch.object(torch.Tensor, "float", torch.Tensor.double):
        return compared(model, cfg, base, adapter, factors)


def compared(model, cfg, base, adapter, factors) -> dict[str, float]:
    ids_BT = adapted.random_ids()
    theirs = torch_logits(model, ids_BT)
    unmerged = np.asarray(our_logits(cfg, adapters.combined(cfg, base, factors, adapter.scale), ids_BT))
    merged = np.asarray(our_logits(cfg, adapters.merge(cfg, base, factors, adapter.scale, jnp.float64), ids_BT))
    found = {
        "logits": float(np.abs(unmerged - theirs).max()),
        "merged": float(np.abs(merged - unmerged).max()),
        "without": float(np.abs(np.asarray(our_logits(cfg, base, ids_BT)) - theirs).max()),
    }
    learner = adapted.learner_of(cfg, adapter)
    state, batches = learner.init_state(factors).replace(ref_params=base), adapted.batches_of(learner, ids_BT)
    before = adapted.factors_of(model)
    for step, gradients in enumerate(adapted.torch_steps(model, ids_BT)):
        state, _ = learner.update(state, batches, adapted.CARD)
        if step == 0:  # Adam's first moment is a tenth of the gradient
            found["gradients"] = relative(cfg, jax.tree.map(lambda mu: mu / 0.1, state.opt_state[0].mu), gradients)
    after = adapted.factors_of(model)
    found["steps"] = relative(cfg, state.params, after)
    found["moved"] = max(float(np.abs(after[name] - before[name]).max()) for name in before)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(differences(sys.argv[1], Path(folder))))
