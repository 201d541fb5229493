"""The benchmark of one accelerator: what its stages run, and the table of what they found."""

import json
import sys
from pathlib import Path

from benchmarks.device import ROOT, STAGES, command, table


def test_the_table_of_the_figures_in_the_docs() -> None:
    found = json.loads((ROOT / "benchmarks" / "baselines" / "device-h200.json").read_text())
    lines = table(found).splitlines()
    assert lines[2].startswith("| rates | 668 TFLOP/s, 3,032 GB/s, NVIDIA H200, JAX 0.11.2 |")
    assert "| decode Qwen3-0.6B 64 | 2.84 ms | 23.49 ms |" in lines
    assert "| update Qwen3-0.6B 8 | 0.145 s, 13.6 GiB | 0.254 s, 24.2 GiB |" in lines


def test_a_stage_that_failed_says_why() -> None:
    assert "| demo | not done within 240 s |  |" in table({"demo": {"error": "not done within 240 s"}})


def test_what_the_stages_run() -> None:
    """Ours by this interpreter, torch's by the one that is given; a model's first layers by their number."""
    commands = {name: command(name, Path("out"), "peer/python") for name in STAGES}
    assert all((words[0] == "peer/python") == name.startswith("torch ") for name, words in commands.items())
    assert all(words[0] in (sys.executable, "peer/python") for words in commands.values())
    assert commands["update Qwen3-8B/8 4"][-6:] == ["--rows", "4", "--length", "1024", "--layers", "8"]
    assert {name.removeprefix("torch ") for name in STAGES if name.startswith("torch ")} <= set(STAGES)
