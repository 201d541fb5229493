"""A second start of a card compiles nothing; the run's own measurements and its trace are there."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from scope_jax.run.files import read_records
from scope_jax.run.performance import NAMES, PHASES
from tests.train import runs

SMALL = (
    "train.steps=2",
    "train.save_every=1",
    "train.batch_size=4",
    "ssp.solver.samples=2",
    "rollout.slots=8",
    "learner.buckets=[1024]",
    "evaluate.sets=[]",
)
OTHER_CACHE = ("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE")  # variables that would win over the card


def result(run: Path, cache: Path, *more: str) -> dict[str, object]:
    """The results of training in a process of its own that has only this cache."""
    command = [*runs.command("ssp/atlas.toml", run, [*SMALL, f"train.compilation_cache={cache}"]), "--json", *more]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OTHER_CACHE)}
    done = subprocess.run(
        command, cwd=runs.ROOT, env=environment, capture_output=True, text=True, timeout=runs.LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.slow
def test_a_second_start_compiles_nothing(tmp_path: Path) -> None:
    first, cache = tmp_path / "first", tmp_path / "cache"
    assert result(first, cache, "--profile", "2")["programs_compiled"] > 10  # type: ignore[operator]
    assert list((first / "profile").rglob("*.xplane.pb"))
    second = tmp_path / "second"
    assert result(second, cache)["programs_compiled"] == 0
    runs.same(first, second)  # a loaded program gives the same bits, and a trace changes none

    lines = list(read_records(second / "metrics.jsonl"))
    assert all(line["perf/programs_compiled"] == 0 for line in lines)
    assert lines[0]["perf/programs_loaded"] > 10
    unmeasured = {"perf/mfu", "perf/hfu", "perf/device_memory_peak_gib"}  # of a CPU
    unmeasured |= {"perf/drafted_tokens", "perf/accepted_tokens", "perf/tokens_per_draft"}  # without drafts
    for line in lines:
        assert {*NAMES} - unmeasured <= set(line) and not unmeasured & set(line)
        assert line["perf/generated_tokens_per_second"] > 0 and line["perf/trained_tokens_per_second"] > 0
        assert line["perf/search_queries"] >= line["perf/search_calls"] > 0 and line["time/search_wait"] > 0
        own = {name for name in line if name.startswith(("time/", "perf/"))}
        assert own <= {*NAMES, *(f"time/{phase}" for phase in PHASES)}
    assert 0 <= lines[0]["time/checkpoint"] < lines[1]["time/checkpoint"]  # before the first step there is none
    assert os.listdir(cache)
