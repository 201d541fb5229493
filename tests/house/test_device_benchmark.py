"""The benchmark of one accelerator: what its stages run, and the table of what they found."""

import json
import sys
from pathlib import Path

import jax

from benchmarks import device
from benchmarks.device import CHECKS, ROOT, STAGES, command, table
from scope_jax.models.decoder import backends as kernels
from scope_jax.selftest import programs


def test_the_table_of_the_figures_in_the_docs() -> None:
    found = json.loads((ROOT / "benchmarks" / "baselines" / "device-h200.json").read_text())
    lines = table(found).splitlines()
    assert lines[2].startswith("| rates | 668 TFLOP/s, 3,032 GB/s, NVIDIA H200, JAX 0.11.2 |")
    assert "| decode Qwen3-0.6B 64 | 2.84 ms | 23.49 ms |" in lines
    assert "| update Qwen3-0.6B 8 | 0.145 s, 13.6 GiB | 0.254 s, 24.2 GiB |" in lines
    found = json.loads((ROOT / "benchmarks" / "baselines" / "device-h100.json").read_text())
    assert "| shared Qwen3-0.6B 2048 | 0.119 s, 12.9 GiB | 0.505 s, 11.0 GiB |" in table(found).splitlines()


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
