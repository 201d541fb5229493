"""How a process finds its place among others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from scope_jax.multihost import distributed, payloads
from scope_jax.multihost.distributed import Place, detect

SLURM = {
    "SLURM_JOB_ID": "4096",
    "SLURM_STEP_NODELIST": "node[003-004]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_NODES": "2",
}
PLAIN = {"JAX_COORDINATOR_ADDRESS": "host0:1234", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch):
    for name in (*SLURM, *PLAIN, "SLURM_STEP_TASKS_PER_NODE", "JAX_LOCAL_DEVICE_IDS", "JAX_COORDINATOR_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost")  # as `quiet_libtpu` sets them

    def put(variables: dict[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


def test_without_variables_there_is_one_process(environment) -> None:
    assert detect() is None
    environment(SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"})
    assert detect() is None


def test_plain_addresses_go_first(environment) -> None:
    environment(SLURM | PLAIN)
    assert detect() == Place("host0:1234", 3, 4)
    environment({"JAX_LOCAL_DEVICE_IDS": "2,3"})
    assert detect() == Place("host0:1234", 3, 4, (2, 3))


def test_a_slurm_task_has_its_node_or_one_device(environment) -> None:
    environment(SLURM)
    port = 4096 % 4096 + 65535 - 4095
    assert detect() == Place(f"node003:{port}", 1, 2, (0,))
    environment({"SLURM_STEP_TASKS_PER_NODE": "1(x2)"})
    assert detect() == Place(f"node003:{port}", 1, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"JAX_PROCESS_ID": ""}, "JAX_PROCESS_ID is not set; set all of them"),
        ({"JAX_PROCESS_ID": "4"}, r"process 4 of 4; processes are numbered from 0 to 3\."),
        ({"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES is 'two'; set it to a whole number"),
        ({"JAX_COORDINATOR_ADDRESS": "host0"}, "give host:port"),
        ({"JAX_LOCAL_DEVICE_IDS": "0;1"}, "as in 0,1,2,3"),
    ],
)
def test_incomplete_or_wrong_variables_are_refused(environment, change: dict[str, str], message: str) -> None:
    environment(PLAIN | change)
    with pytest.raises(ValueError, match=message):
        detect()


def test_one_process_exchanges_with_itself() -> None:
    assert (distributed.index(), distributed.count()) == (0, 1)
    assert distributed.gather(b"alone") == [b"alone"]


@pytest.mark.parametrize(("processes", "size"), [(2, 50_000_000), (3, 30_000_000), (20, 3_000_000), (600, 100_000)])
def test_what_is_gathered_at_a_time_takes_one_limit_however_many_processes_there_are(
    monkeypatch: pytest.MonkeyPatch, processes: int, size: int
) -> None:
    parts = [bytes([number % 251]) * (size - 7 * number) for number in range(processes)]
    sizes, done, held = [len(part) for part in parts], 0, []

    def allgather(own: np.ndarray) -> Iterator[np.ndarray]:
        nonlocal done
        first, done = done, done + len(own)
        held.append((processes + 1) * len(own))  # the rows of all, and this process's own
        assert own.tobytes().rstrip(b"\0") == parts[1][first:done]
        for part in parts:
            yield np.frombuffer(part[first:done].ljust(len(own), b"\0"), np.uint8)

    monkeypatch.setattr(payloads, "_rows", lambda own, count: list(allgather(own)))
    assert payloads.through_devices(parts[1], sizes) == parts
    assert max(held) <= payloads.PIECES and len(held) > 1
