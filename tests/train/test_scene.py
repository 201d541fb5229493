"""Scenes with tools are the same bits alone and among others, whatever the slots, the cache, delays and processes.

The game (scene.py) has a search that also tells the time, which is recorded by the first run for all the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train import runs
from tests.train.test_recording import log, record, run
from tests.train.test_recording import spec as spec_of

pytestmark = pytest.mark.slow

DELAY = "scene.delay=0.05"
SMALL = ("train.steps=1", "evaluate.sets=[]")
ALONE = 7
BORDERS = 2  # of 64 played scenes: where log-probs differ by rounding, a draw may fall on the other side of a border


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scene")
    text = (runs.ROOT / "examples" / "distillation.toml").read_text().split("[distillation]")[0]
    head, rest = text.split("[teachers.teacher]")
    card = head.replace("examples/distillation.py", "tests/train/scene.py") + rest[rest.index("[rollout]") :]
    (folder / "card.toml").write_text(card + "[scene]\n")
    return folder


def spec(folder: Path, name: str, attention: str, slots: int, *sets: str, **more: Any) -> dict[str, Any]:
    rollout = (f"rollout.attention={attention}", f"rollout.slots={slots}", *SMALL)
    return spec_of(folder, name, *rollout, *sets, **more)


def episodes(folder: Path, name: str) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The texts of a run's episodes by scene, agent and sample."""
    texts: dict[tuple[str, str, int], dict[str, Any]] = {}
    for episode in runs.lines(folder / name, "episodes.jsonl"):
        place = episode["text"]["at"], episode["role"]
        texts[*place, sum(known[:2] == place for known in texts)] = episode["text"]
    return texts


@pytest.fixture(scope="module")
def first(folder: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    assert run(folder, spec(folder, "first", "auto", 64)) == [[0]], log(folder, "first")
    return episodes(folder, "first")


@pytest.mark.parametrize("slots", [2, 64])
@pytest.mark.parametrize("attention", ["auto", "loop"])
def test_a_scene_is_the_same_alone_and_among_31_others(
    folder: Path, first: dict[tuple[str, str, int], dict[str, Any]], attention: str, slots: int
) -> None:
    assert len(first) == 128
    assert sum(text["calls"] > 0 for text in first.values()) > 30
    cases = {
        "all": {},
        "late": {"sets": [DELAY]},
        "alone": {"sets": [f"scene.first={ALONE}", "scene.scenes=1"]},
        "two": {"sets": [DELAY, f"rollout.slots={2 * slots}"], "processes": 2},  # each has half of the slots
    }
    told, specs = record(folder / "first"), []
    for case, more in cases.items():
        sets, name = more.pop("sets", []), f"{case}-{attention}-{slots}"
        specs.append(spec(folder, name, attention, slots, *sets, record=told, **more))
    assert run(folder, *specs) == [[0], [0], [0], [0, 0]]
    whole, late, alone, two = (episodes(folder, f"{case}-{attention}-{slots}") for case in cases)
    assert len({at[::2] for at, text in first.items() if whole[at]["tokens"] != text["tokens"]}) <= BORDERS
    assert late == two == whole
    assert alone == {at: text for at, text in whole.items() if at[0] == f"{ALONE}"}
    assert len(alone) == 4
