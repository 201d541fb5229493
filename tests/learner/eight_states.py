"""One update of a model with states, with rows divided over devices, against one device, in float64, on 8 fake CPU
devices (test_context.py starts it); prints one JSON object."""

import json
import os

from tests.flags import fake_devices

os.environ["XLA_FLAGS"] = fake_devices(8)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)
jnp.float32 = jnp.float64  # the models compute norms, scores and sums in float32; here in float64, as all else

from tests.learner.eight_context import STATES, of_model  # noqa: E402

if __name__ == "__main__":
    print(json.dumps(of_model("states", STATES, (1, 2, 2, 2))))
