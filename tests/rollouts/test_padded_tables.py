"""No token is drawn from the padding of a table, and no log-prob counts it, whatever these rows hold."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from tests.rollouts.world import CFG, make_engine, make_paged, make_params, make_rollouts, request, trainer_logprobs

LARGE = replace(CFG, vocab_size=16_500)  # 16,896 rows


@pytest.mark.parametrize("make", [pytest.param(make_engine, marks=pytest.mark.slow), make_paged])
def test_tokens_and_log_probs_leave_padding_out(make):
    params = make_params(LARGE)
    huge_D = jnp.where(jnp.arange(LARGE.width) % 2, 100.0, -100.0)
    padded = {**params, "head": {"table_VD": params["head"]["table_VD"].at[16_500:].set(huge_D)}}
    requests = [request(b"padding", key, temperature=heat) for key, heat in enumerate((1.0, 1.0, 0.0))]
    for completion in make_rollouts(make(cfg=LARGE), padded).run(requests):
        assert completion.ids_T.max() < 16_500
        real = {**params, "head": {"table_VD": params["head"]["table_VD"][:16_500]}}
        expected = trainer_logprobs(real, completion, cfg=LARGE)
        np.testing.assert_allclose(completion.logprobs_T, expected, atol=1e-4)
