"""Plans of cards with figures that must not get worse."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from scope_jax.plan.hardware import ABSENT

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu to compile for TPUs that are not there")
def test_search_self_play_on_eight_chips_is_planned_as_well_as_before():
    """MFU .46, 1.33 times the FLOPs of theory; nothing is executed."""
    card, index = "configs/ssp/qwen2.5-7b.toml", "21015324x768"
    command = [sys.executable, "-m", "scope_jax", "plan", card, "--on", "v5p:2x2x2", "--index", index, "--json"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **ABSENT}, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["fits"] and found["compiled"]
    assert found["mfu"] >= 0.46 and found["peak_gib"] <= 54.9 and found["executed_of_theory"] <= 1.335
    assert {kind: found["collectives"][kind]["count"] for kind in found["closed_form"]} == found["closed_form"]
    assert found["collectives"]["all-reduce"]["largest_mib"] <= 1
