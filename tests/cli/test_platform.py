"""An installed libtpu (for ahead-of-time compilation) prints nothing on a machine without a TPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from scope_jax.cli import program
from scope_jax.plan.planning import RESERVE

ROOT = Path(__file__).parents[2]
SCRIPT = "from scope_jax.cli import quiet_libtpu; quiet_libtpu(); import jax; print(jax.devices()[0].platform)"


@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
@pytest.mark.slow
def test_libtpu_is_quiet_without_a_tpu():
    env = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS" and not k.startswith("TPU_")}
    env["PYTHONPATH"] = str(ROOT)
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    if done.stdout.strip() != "tpu":
        assert "TPU" not in done.stderr and "learning/" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("given", "share"), [({}, program.MEMORY), *(({name: "0.5"}, None) for name in program.MEMORY_VARIABLES[1:])]
)
def test_a_gpu_is_taken_as_far_as_plans_count_on(monkeypatch: pytest.MonkeyPatch, given: dict, share: str | None):
    monkeypatch.setattr(os, "environ", dict(given))
    program.take_memory()
    assert os.environ.get("XLA_CLIENT_MEM_FRACTION") == share
    assert float(program.MEMORY) == 1 - RESERVE


@pytest.mark.parametrize("name", ["JAX_ENABLE_X64", pytest.param("JAX_NUM_CPU_DEVICES", marks=pytest.mark.slow)])
def test_a_variable_that_jax_cannot_read_is_one_sentence(name: str):
    words = [sys.executable, "-m", "scope_jax", "selftest", "--only", "nothing"]
    done = subprocess.run(
        words, env={**os.environ, name: "many"}, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "scope-jax: JAX cannot use one of the variables" in done.stderr and name in done.stderr
