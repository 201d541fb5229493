"""Damage to any file of a run: a resume has the same bits or says so, a report and a replay show the same or say so."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_jax.config import Config
from scope_jax.evaluation import evaluations
from scope_jax.games import parse_config
from scope_jax.learner.types import Datum, Episode, Judgement, Reply
from scope_jax.rollouts.types import ToolResult
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.run.files import CALLS
from scope_jax.run.folder import RunFolder
from scope_jax.run.inputs import Inputs
from scope_jax.run.recording import Recording
from tests.house.test_checkpoint import WANTED, state, targets
from tests.train import damage

PLACES = 40
SEED = 20_261_128
DATUM = Datum(np.arange(3), np.array([False, True, True]), np.zeros(3, np.float32))
ASKED = Judgement("grader", "a river", (Reply("yes"),), True)


def played(folder: RunFolder, recording: Recording, step: int) -> None:
    """A step, of which everything is written but a checkpoint."""
    recording.begin(step)
    recording.answers(None, "math", [f"{step}", f"{step + 1}"], lambda items: [f"{item}9" for item in items])
    recording.calls(step, "solver", "5", 0).write("solver", 0, ToolResult(0, "solver", "web", {"q": step}, "9", "ok"))
    text = {"prompt": "Play.", "turns": [{"kind": "sampled", "text": "Tarn"}], "rejected": ""}
    judged = [
        Episode("solver", "actor", group, (DATUM,), 1.0, {"format": 1.0}, judgements=(ASKED,), text=text)
        for group in "ab"
    ]
    folder.episodes(step, judged)
    folder.exams(step, {"held": [{"question": "Which?", "measures": {"accuracy": 0.5}}] * 2})
    folder.metrics(step, {"solver/reward": 0.5 + step, "time/play": 1.25})


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path]:
    """(the card, the folder of a run that was killed in step 6, with checkpoints of steps 2 and 4)."""
    place = tmp_path_factory.mktemp("killed")
    (place / "answers.jsonl").write_text('{"answer": "Rome"}\n')
    table = {
        "system": "ssp",
        "model": {"checkpoint": "base"},
        "retrieval": {"corpus": "corpus.jsonl"},
        "data": {"answers": str(place / "answers.jsonl")},
        "train": {"steps": 9},
        "log": {"tokens": True},
        "ssp": {"grader": "exact-match"},
    }
    cfg, run = parse_config(table, "test card"), place / "run"
    folder, recording = RunFolder(run, cfg), Recording()
    folder.token_bytes = lambda id: b"x"
    folder.rewind(None)
    recording.open(run, 0)
    folder.metrics(0, {"eval/held/accuracy": 0.25})
    Inputs(run, cfg, cfg).check(False, lambda sentence: None)
    checkpoints = Checkpoints(run / "checkpoints", cfg, extents=lambda: folder.extents() | recording.extents())
    for step in (1, 2, 3, 4, 5):
        played(folder, recording, step)
        recording.complete(step)
        if step % 2 == 0:
            checkpoints.save(step, {"actor": state(step), "other": state(step + 10)}, {"game": {"taken": step}})
            checkpoints.wait()
        record = {"question": "Which?", "measures": {"accuracy": 0.5}, "text": {"turns": []}}
        evaluations.keep(run, step, "held", [record], {"eval/held/accuracy": 0.5})
    recording.begin(6)
    recording.answers(None, "math", ["6", "7", "8"], lambda items: [f"{item}9" for item in items])
    recording.close()
    folder.close()
    return cfg, run.rename(place / "killed")


Place = tuple[Path, str, bytes]  # a file, a kind of damage, and the content of the file after it
Read = Callable[[Path], damage.Reading]


def trial(killed: Path, place: Place | None, read: Read) -> damage.Reading:
    """What is read of a copy of the folder, after damage."""
    run = killed.with_name("run")
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(killed, run)
    if place is not None:
        path, _, content = place
        (run / path).write_bytes(content)
    return read(run)


def readers(cfg: Config, wanted: Mapping[str, Any], replay: int) -> dict[str, Read]:
    return {
        "resume": lambda run: damage.resumed(cfg, run, wanted),
        "report": damage.reported,
        "replay": lambda run: damage.replayed(run, replay),
    }


def places(killed: Path, count: int, seed: int) -> list[Place]:
    """So many places, drawn by a seed: each file as often as any other."""
    rng, drawn, files = random.Random(seed), [], damage.files_of(killed)
    while len(drawn) < count:
        path, kind = rng.choice(files), rng.choice(damage.KINDS)
        content = damage.damaged(killed / path, kind, rng)
        if content is not None:
            drawn.append((path, kind, content))
    return drawn


def verdict(path: Path, whole: damage.Reading, after: damage.Reading) -> str:
    """What came of damage to a file; a sentence that does not name it is a verdict of its own."""
    came = after.verdict(whole)
    if came == "sentence" and not damage.names(path, after):
        return f"sentence about another file: {after.said}"
    if came not in ("sentence", "same"):
        pairs = [(after.contents[name], whole.contents[name]) for name in came.split(", ")]
        if all(isinstance(left, list) and left == every[: len(left)] for left, every in pairs):
            return "end missing"
    return came


# The end of a file that nothing but the file itself knows: lines after the newest checkpoint, which a resume cuts, and of
# calls, which it asks again.
GOOD = {"sentence", "same", "end missing"}


@pytest.mark.parametrize("command", ["resume", "report", "replay"])
def test_damage_is_said_or_changes_nothing(command: str, killed: tuple[Config, Path]) -> None:
    cfg, folder = killed
    read = readers(cfg, targets(WANTED), 3)[command]
    whole, drawn = trial(folder, None, read), places(folder, PLACES, SEED)
    found = [(str(place[0]), place[1], verdict(place[0], whole, trial(folder, place, read))) for place in drawn]
    wrong = [place for place in found if place[2] not in GOOD]
    assert not wrong, wrong
    assert Counter(came for *_, came in found)["sentence"] >= PLACES // 8
