"""The private names of JAX that we use exist in the JAX that is installed, and do what we need."""

import jax
import pytest

from scope_jax.sharding import runtime
from scope_jax.sharding.distributed import CLUSTERS
from tests.train.several import free_port


def test_service_and_client():
    """The client reads what it set; an address that is none of this host raises."""
    address = f"localhost:{free_port()}"
    service = runtime.service(address, 1, 10)
    with pytest.raises(RuntimeError):
        runtime.service("192.0.2.1:1", 1, 10)  # of documentation only
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
