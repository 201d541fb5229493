"""The private names of JAX that we use exist in the JAX that is installed, and do what we need."""

import jax
import jax.numpy as jnp
import pytest

from scope_jax.multihost import runtime
from scope_jax.multihost.distributed import CLUSTERS
from tests.train.several import free_port


def test_service_and_client():
    """The client reads what it set."""
    address = f"localhost:{free_port()}"
    service = runtime.service(address, 1, 10)
    client = runtime.client(address, 0, 10, 10)
    client.connect()
    client.key_value_set_bytes("a", b"\0b")
    assert client.blocking_key_value_get_bytes("a", 1000) == b"\0b"
    client.shutdown()
    service.shutdown()


def test_state():
    """What jax.distributed reads before it starts devices, and what we set."""
    state = runtime.state()
    assert state.client is None and state.process_id == 0 == jax.process_index()
    assert {"coordinator_address", "num_processes"} <= set(vars(state)) | set(vars(type(state)))
    assert callable(state.shutdown)


def test_clusters():
    kinds = {kind.name: kind for kind in runtime.clusters()}
    assert set(CLUSTERS) <= set(kinds)
    for name in CLUSTERS:
        asked = ("is_env_present", "get_process_count", "get_process_id", "get_coordinator_address")
        assert all(callable(getattr(kinds[name], one)) for one in asked) and not kinds[name].is_env_present()


def test_cudnn_is_asked_about_gpus_that_are_not_here(monkeypatch):
    """Heads of 256 are cuDNN's from Hopper on."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91002)

    def attention(q):
        return jax.nn.dot_product_attention(q, q, q, implementation="cudnn")

    q = jax.ShapeDtypeStruct((1, 64, 2, 256), jnp.bfloat16)
    with runtime.gpus_of((9, 0)):
        traced = jax.jit(attention).trace(q)
    assert "cudnn" in traced.lower(lowering_platforms=("cuda",)).as_text()
    with runtime.gpus_of((8, 0)), pytest.raises(NotImplementedError, match="128"):
        jax.jit(lambda q: attention(q)).trace(q)
