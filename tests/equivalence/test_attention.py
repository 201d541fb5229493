"""Windows, packed rows and common prompts against transformers' mask functions, values against torch's attention."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import masking_utils

from scope_jax.models.kernels.attention import make_attend
from scope_jax.models.kernels.masks import visible_mask
from tests.rows import ends

T, HEADS, KV_HEADS, HEAD_DIM = 40, 4, 2, 8
SEGMENTS_BT = np.asarray([[1] * 25 + [2] * 15, [3] * 33 + [0] * 7], np.int32)
ENDS_BT = jnp.asarray(ends(SEGMENTS_BT))
POSITIONS_BT = jnp.asarray([[*range(25), *range(15)], [*range(33), *range(7)]])


def their_mask(window):
    """[B, T, T] from transformers: its causal or sliding-window rule and its rule for packed sequences."""
    rule = masking_utils.sliding_window_causal_mask_function(window) if window else masking_utils.causal_mask_function
    packed = masking_utils.packed_sequence_mask_function(torch.from_numpy(SEGMENTS_BT))
    rule = masking_utils.and_masks(rule, packed)
    places = [torch.arange(n).reshape(shape) for n, shape in ((2, (2, 1, 1)), (T, (1, T, 1)), (T, (1, 1, T)))]
    return rule(places[0], 0, places[1], places[2])


@pytest.mark.parametrize("window", [None, 1, 7, 40])
def test_a_window_is_transformers_sliding_window(window):
    ours = np.asarray(visible_mask(ENDS_BT, POSITIONS_BT, window))
    np.testing.assert_array_equal(ours, their_mask(window).numpy())


@pytest.mark.parametrize("backend", ["reference", "dot_product"])
@pytest.mark.parametrize("window", [None, 7])
def test_values_are_torchs(backend, window):
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, T, n, HEAD_DIM)).astype(np.float32) for n in (HEADS, KV_HEADS, KV_HEADS))
    ours = make_attend(backend, ENDS_BT, POSITIONS_BT, window)(*map(jnp.asarray, (q, k, v)))
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(x).transpose(1, 2) for x in (q, k, v)),
        attn_mask=their_mask(window)[:, None],
        enable_gqa=True,
    )
    np.testing.assert_allclose(ours, theirs.transpose(1, 2).numpy(), atol=1e-6)
