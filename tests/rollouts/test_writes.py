"""Writes of the engine's programs are scatters of unique rows, which XLA need not sort to be deterministic."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models.kernels.writes import put
from scope_jax.plan.hardware import ABSENT, cuda_compiler
from tests.rollouts import world
from tests.rollouts.test_pages import conversations
from tests.rollouts.world import mixed

SCATTER = re.compile(r'"stablehlo\.scatter".*')


def programs(engine: Any) -> dict[str, list[str]]:
    """By the name of a jitted program, its scatters, collected as the engine runs."""
    found: dict[str, list[str]] = {}

    def recorded(name: str, program: Any) -> Any:
        def run(*arguments: Any) -> Any:
            if name not in found:
                found[name] = SCATTER.findall(program.lower(*arguments).as_text())
            return program(*arguments)

        return run

    owner = engine.jitted
    for name, program in list(vars(owner).items()):
        if hasattr(program, "lower"):
            setattr(owner, name, recorded(name, program))
    return found


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, {"append", "generate", "start", "resume"}),
        (replace(world.ENGINE, pages=9), {"append", "generate", "copy", "write", "start", "resume"}),
        pytest.param(replace(world.ENGINE, cascade=4), {"append", "generate", "start"}, marks=pytest.mark.slow),
        pytest.param(replace(world.ENGINE, draft_tokens=3), {"append", "generate", "start"}, marks=pytest.mark.slow),
    ],
    ids=["a page for each slot", "few pages", "cascade", "drafts"],
)
def test_every_scatter_names_unique_rows(params, config, expected):
    engine = world.new_engine() if config is None else world.new_engine(config, columns=False)
    found = programs(engine)
    world.make_rollouts(engine, params).run([*mixed(12), *conversations()])
    assert expected <= {name for name, scatters in found.items() if scatters}
    for scatters in found.values():
        assert all("unique_indices = true" in scatter for scatter in scatters)


def test_rows_past_the_end_write_nothing_however_many_there_are():
    rng = np.random.default_rng(0)
    for _ in range(50):
        old = rng.normal(size=(9, 3)).astype(np.float32)
        rows = np.concatenate([rng.permutation(9)[: rng.integers(9)], np.full(rng.integers(5), 9)]).astype(np.int32)
        new = rng.normal(size=(len(rows), 3)).astype(np.float32)
        wanted = old.copy()
        wanted[rows[rows < 9]] = new[rows < 9]
        assert np.array_equal(jax.jit(put)(jnp.asarray(old), rows, new), wanted)


@pytest.mark.slow
@pytest.mark.skipif(
    not cuda_compiler(), reason="needs jax[cuda12] or jax[cuda13] to compile for GPUs that are not there"
)
def test_compiled_for_an_h100_nothing_is_sorted():
    flag = "--xla_gpu_exclude_nondeterministic_ops=true"
    env = {**os.environ, **ABSENT, "PYTHONPATH": os.pathsep.join(sys.path), "XLA_FLAGS": flag}
    script = str(Path(__file__).with_name("h100_sorts.py"))
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    sorts = json.loads(done.stdout.splitlines()[-1])
    assert len(sorts) == 6 and not any(sorts.values()), sorts
