"""Tests in separate processes: peak memory, and weights sharded over two processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scope_jax.multihost import signing
from tests.flags import fake_devices

pytestmark = pytest.mark.slow  # two processes of four devices, 20 s

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent
BOUND = 1.3  # of the checkpoint's largest tensor
LAYOUTS = ("fsdp", "fsdp_tensor", "data")
BLOCKS = (4194304, 24576)


def start(script: str, devices: int, *words: object) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": fake_devices(devices),
        signing.KEY: "of the two processes that this test starts",
        "MALLOC_MMAP_THRESHOLD_": "65536",  # glibc returns freed memory to the kernel at once
    }
    command = [sys.executable, str(SCRIPTS / script), *map(str, words)]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def facts(process: subprocess.Popen[str]) -> dict:
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 8])
def test_peak_memory_is_below_a_tensor(tmp_path: Path, devices: int) -> None:
    """A table of 64 MiB and 20 layers in several files, loaded and saved in either dtype (see weights_memory.py)."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the kernel does not let a process reset its own peak (/proc/self/clear_refs)")
    measured = facts(start("weights_memory.py", devices, tmp_path))
    assert measured.pop("files") == 4
    assert measured.pop("values")  # what was read and written is bit-exact
    # Controls for the measurement: an array of one tensor's size, and a reader that stacks on the host.
    assert measured.pop("known") == pytest.approx(1.0, abs=0.05)
    if devices == 1:
        assert measured.pop("stacked") > 1.8
    assert {name: cost for name, cost in measured.items() if cost >= BOUND} == {}
    assert len(measured) == (4 if devices > 1 else 7)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """The results of the two processes."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [start("two_processes.py", 4, port, i, folder) for i in range(2)]
    try:
        return [facts(process) for process in processes]
    finally:
        for process in processes:
            process.kill()


def test_two_processes_of_four_devices(pair: list[dict]) -> None:
    assert [one["devices"] for one in pair] == [[4, 8], [4, 8]]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_process_reads_its_share(pair: list[dict], layout: str, block: int) -> None:
    """Norms are replicated on every device; every other byte of the checkpoint is read once, by one process. With two
    data-parallel halves each half is a full copy, so each process reads everything, once for its four devices.
    """
    for one in pair:
        assert one[f"{layout} {block} right"]
        share = 1 if layout == "data" else 0.5
        whole = one["whole on every device"]
        assert one[f"{layout} {block} read"] == whole + share * (one["total"] - whole)
        assert whole < 0.01 * one["total"]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_export_of_weights_sharded_over_processes_is_one_complete_folder(
    pair: list[dict], layout: str, block: int
) -> None:
    for one in pair:
        assert one[f"{layout} {block} written"]
        assert one[f"{layout} {block} orbax"]
        assert one["files"] == [["config.json", "model.safetensors"]] * (len(LAYOUTS) * len(BLOCKS))
