"""The benchmark of one accelerator: what its stages run, and the table of what they found."""

import functools
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from benchmarks import device
from benchmarks.calibration import device as calibration
from benchmarks.device import CHECKS, ROOT, STAGES, command, table
from scope_jax.models.decoder import backends as kernels
from scope_jax.selftest import programs


def test_the_table_of_the_figures_in_the_docs() -> None:
    found = json.loads((ROOT / "benchmarks" / "baselines" / "device-h200.json").read_text())
    lines = table(found).splitlines()
    assert lines[2].startswith("| rates | 668 TFLOP/s, 3,032 GB/s read and written, NVIDIA H200, JAX 0.11.2 |")
    assert "| decode Qwen3-0.6B 64 | 2.84 ms | 23.49 ms |" in lines
    assert "| update Qwen3-0.6B 8 | 0.145 s, 13.6 GiB, MFU 22%, HFU 30% | 0.254 s, 24.2 GiB, MFU 13% |" in lines
    found = json.loads((ROOT / "benchmarks" / "baselines" / "device-h100.json").read_text())
    shares = "| shared Qwen3-0.6B 2048 | 0.119 s, 12.9 GiB, MFU 10%, HFU 14% | 0.505 s, 11.0 GiB, MFU 2% |"
    assert shares in table(found).splitlines()


def test_the_work_of_an_update_is_that_of_its_rows_and_of_a_shared_prompt_once() -> None:
    """Of Qwen3-0.6B, by hand: 440 million weights of layers and 156 million of the output table."""
    one = {"model": "Qwen3-0.6B", "layers": None, "length": 1024, "rows": 8, "remat": "full", "rank": 0, "prompt": 0}
    layer = 1024 * (2 * 2048 + 2 * 1024 + 3 * 3072)
    attention = 8 * 28 * (1024 * 1025 / 2) * 4 * 2048
    needed, executed = device.update_flops(one)
    assert needed == 6 * 28 * layer * 8192 + 3 * attention + 6 * 1024 * 151936 * 8 * 1023
    assert executed == 8 * 28 * layer * 8192 + attention / 2 * 9 + 8 * 1024 * 151936 * 8 * 1023
    prompt = one | {"length": 2176, "prompt": 2048}
    pairs = 2048 * 2049 / 2 + 8 * (2176 * 2177 - 2048 * 2049) / 2
    table_rows = 6 * 1024 * 151936 * 8 * 128
    assert device.update_flops(prompt)[0] == 6 * 28 * layer * (2048 + 8 * 128) + 12 * 28 * pairs * 2048 + table_rows
    assert device.update_flops(one | {"layers": 7})[0] == 6 * 7 * layer * 8192 + 3 * attention / 4 + needed - (
        6 * 28 * layer * 8192 + 3 * attention
    )


def test_memory_is_read_once_in_each_pass() -> None:
    """The bytes of one pass are those that the compiler counts, and a pass of the loop is one over the matrix."""
    x, y = jnp.ones((64, 4096), jnp.bfloat16), jnp.zeros(64)
    analysis = jax.jit(calibration.read_once).lower(x, y).compile().cost_analysis()
    assert analysis is not None
    counted = analysis["bytes accessed"]
    assert counted == pytest.approx(calibration.bytes_of_read_often(64, 4096) / calibration.PASSES, rel=0.01)
    halved = calibration.read_once(x, y) / 2
    assert jnp.array_equal(jnp.full(64, 0.5), halved)
    last = functools.reduce(lambda y, _: calibration.read_once(x, y), range(calibration.PASSES), y)
    assert jnp.array_equal(calibration.read_often(x), last)


def test_a_stage_that_failed_says_why() -> None:
    assert "| demo | not done within 240 s |  |" in table({"demo": {"error": "not done within 240 s"}})


def test_what_the_stages_run() -> None:
    """Ours by this interpreter, torch's by the one that is given; a model's first layers by their number."""
    commands = {name: command(name, Path("out"), "peer/python") for name in STAGES}
    assert all((words[0] == "peer/python") == name.startswith("torch ") for name, words in commands.items())
    assert all(words[0] in (sys.executable, "peer/python") for words in commands.values())
    assert commands["update Qwen3-8B/8 4"][-6:] == ["--rows", "4", "--length", "1024", "--layers", "8"]
    assert commands["shared Qwen3-0.6B 2048"][-6:] == ["--prompt", "2048", "--length", "2176", "--rows", "8"]
    assert {name.removeprefix("torch ") for name in STAGES if name.startswith("torch ")} <= set(STAGES)


def test_the_processes_of_the_self_test_have_all_checks_of_a_gpu_between_them() -> None:
    """The others need several devices or a TPU."""
    names = [check.name for check in (*kernels.checks("gpu"), *programs.checks(jax.devices()[:1]))]
    left = [name for name in names if not any(part in name for part in CHECKS)]
    assert left == ["norm and rotation of decoding rows", "update, several devices"]


def test_a_stage_is_the_last_line_of_its_process_and_those_of_the_self_test_together(monkeypatch, tmp_path) -> None:
    """Of one that takes too long there is where it was; of one that fails the end of its log."""
    said = 'import sys, time; print("checking"); print(\'{"checks": [{"status": "%s"}]}\' % sys.argv[1])'
    monkeypatch.setattr(device, "command", lambda name, *_: [sys.executable, "-c", said, name.split()[-1]])
    found = device.outcome("selftest", tmp_path, "")
    assert [check["status"] for check in found["checks"]] == list(CHECKS) and "error" not in found

    monkeypatch.setattr(device, "command", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setitem(device.STAGES, "demo", 1)
    assert device.outcome("demo", tmp_path, "")["error"] == "not done within 1 s"
    assert 'File "<string>", line 1' in (tmp_path / "demo.log").read_text()

    monkeypatch.setattr(device, "command", lambda *_: [sys.executable, "-c", "raise SystemExit('no GPU')"])
    assert device.outcome("rates", tmp_path, "")["error"] == "no GPU"
