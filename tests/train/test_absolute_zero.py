"""Absolute Zero on Atlas: killed runs end with the same bits, two processes have the same rows, adapters run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.train import runs

SMALL = (
    *("train.steps=2", "train.save_every=1", "train.keep=4", "train.batch_size=3", "evaluate.sets=[]"),
    *("rollout.slots=8", "absolute_zero.seeds=4", "absolute_zero.estimates=2", "absolute_zero.references=1"),
)
CARD = "configs/absolute_zero/atlas.toml"
pytestmark = pytest.mark.slow


def spec(run: Path, card: str = CARD, processes: int = 1, **more: Any) -> dict[str, Any]:
    overrides = [part for override in SMALL for part in ("--set", override)]
    arguments = ["train", str(runs.ROOT / card), "--run", str(run), *overrides]
    return {"processes": processes, "devices": 1, "arguments": arguments, "log": f"{run}.log", **more}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("absolute-zero")
    assert runs.several(folder, spec(folder / "whole")) == [[0]], (folder / "whole.log.0").read_text()
    return folder / "whole"


def test_a_run_keeps_its_buffers(whole: Path) -> None:
    text = json.dumps(runs.memory(whole, 2))
    assert all(f'"{task}"' in text for task in ("deduction", "abduction", "induction")) and "def f" in text
    episodes = runs.lines(whole, "episodes.jsonl")
    assert len(episodes) == 2 * 6 * 3 and {one["role"].split("_")[0] for one in episodes} == {"propose", "solve"}


def test_killed_runs_end_with_the_same_bits(whole: Path, tmp_path: Path) -> None:
    """Killed during the seeding, during the first step and during the second, after a recorded line."""
    names = [tmp_path / f"killed-{lines}" for lines in (1, 3, 6)]
    kills = [spec(run, kill=lines) for run, lines in zip(names, (1, 3, 6), strict=True)]
    assert runs.several(tmp_path, *kills) == [[-9]] * 3
    assert runs.several(tmp_path, *map(spec, names)) == [[0]] * 3
    for run in names:
        runs.same(whole, run)


def test_two_processes_have_the_same_rows(whole: Path, tmp_path: Path) -> None:
    assert runs.several(tmp_path, spec(tmp_path / "both", processes=2)) == [[0, 0]]
    one, both = (runs.lines(run, "episodes.jsonl") for run in (whole, tmp_path / "both"))
    first = [[row for row in rows if row["step"] == 1] for rows in (one, both)]
    assert first[0] == first[1] and len(one) == len(both)


def test_adapters_run(tmp_path: Path) -> None:
    run = tmp_path / "adapters"
    assert runs.several(tmp_path, spec(run, "configs/absolute_zero/adapters/atlas.toml")) == [[0]]
    sizes = [array.size for name, array in runs.arrays(run, 2).items() if name.startswith("actor/params")]
    assert runs.saved(run) == [1, 2] and sizes and max(sizes) <= 4 * 16 * 384  # layers, rank, the widest matrix
