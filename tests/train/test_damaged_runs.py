"""Damage to any file of a run: a resume has the same bits or says so, a report and a replay show the same or say so."""

from __future__ import annotations

import json
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
from scope_jax.games import load_card, parse_config
from scope_jax.learner.types import Datum, Episode, Judgement, Reply
from scope_jax.rollouts.types import ToolResult
from scope_jax.run.assemble import assemble
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.run.files import CALLS, METRICS, read_records
from scope_jax.run.folder import RunFolder
from scope_jax.run.inputs import Inputs
from scope_jax.run.recording import Recording
from tests.house.test_checkpoint import WANTED, state, targets
from tests.train import damage, runs

PLACES = 16
MORE = 60
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
    """So many places, drawn by a seed: the checkpoints are as often damaged as any one file beside them."""
    rng, drawn, files = random.Random(seed), [], damage.files_of(killed)
    above = sorted({path.parts[0] for path in files})
    while len(drawn) < count:
        first = rng.choice(above)
        path, kind = rng.choice([path for path in files if path.parts[0] == first]), rng.choice(damage.KINDS)
        content = damage.damaged(killed / path, kind, rng)
        if content is not None:
            drawn.append((path, kind, content))
    return drawn


def verdict(killed: Path, place: Place, whole: damage.Reading, after: damage.Reading) -> str:
    """What came of damage; a sentence that does not name the file is a verdict of its own."""
    path, came = place[0], after.verdict(whole)
    if came == "sentence" and not damage.names(path, after):
        return f"sentence about another file: {after.said}"
    if came in ("sentence", "same") or ".jsonl" not in path.name:
        return came
    pairs = [(after.contents[name], whole.contents[name]) for name in came.split(", ")]
    lines = [list(read_records(folder / path)) for folder in (killed.with_name("run"), killed)]
    short = [isinstance(left, list) and left == every[: len(left)] for left, every in (*pairs, lines)]
    return "end missing" if all(short[:-1]) or short[-1] else came


# The end of a file that only the file knows: lines after the newest checkpoint, which a resume cuts, and those of
# calls, which it asks again.
GOOD = {"sentence", "same", "end missing"}


@pytest.mark.parametrize("count", [PLACES, pytest.param(MORE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", ["resume", "report", "replay"])
def test_damage_is_said_or_changes_nothing(command: str, count: int, killed: tuple[Config, Path]) -> None:
    cfg, folder = killed
    read = readers(cfg, targets(WANTED), 3)[command]
    whole, drawn = trial(folder, None, read), places(folder, count, SEED)
    found = [(str(place[0]), place[1], verdict(folder, place, whole, trial(folder, place, read))) for place in drawn]
    wrong = [place for place in found if place[2] not in GOOD]
    assert not wrong, wrong
    assert Counter(came for *_, came in found)["sentence"] >= count // 8


# ------------------------------------------------------------------------------------------------------ runs of games
SHORT = ("train.steps=4", "train.save_every=2", "train.stall_timeout=3600", "log.tokens=true", "evaluate.every=1")
GAMES = {
    "ssp": ("train.batch_size=4",),
    "score": ("train.batch_size=3",),
    "absolute_zero": ("train.batch_size=4", "absolute_zero.seeds=4", "sandbox.workers=1"),
}
MANY = 200


def exam(game: str) -> str:
    """One small set of the game's card."""
    (first, *_) = load_card(runs.ROOT / "configs" / game / "atlas.toml").evaluate.sets
    limited = first.model_copy(update={"limit": 4, "samples": 1})
    values = {key: value for key, value in limited.model_dump(mode="json").items() if value not in (None, {}, [])}
    return f"evaluate.sets=[{{{', '.join(f'{key}={json.dumps(value)}' for key, value in values.items())}}}]"


def interrupted(run: Path) -> bool:
    """True in the step after the second one, once its checkpoint is there and something is recorded of the step."""
    if not (run / "checkpoints" / "2" / "seal.json").is_file():
        return False
    recorded = run / CALLS / "0.jsonl"
    after = recorded.is_file() and recorded.read_bytes().count(b'{"step": 3') >= 2
    return after or max((line["step"] for line in read_records(run / METRICS)), default=0) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_damage_to_a_run_of_a_game(game: str, tmp_path: Path) -> None:
    """Nearly all of it without playing: a resume that starts from the same state ends with the same bits."""
    run, killed, whole = tmp_path / "run", tmp_path / "killed", tmp_path / "whole"
    overrides = (*SHORT, *GAMES[game], exam(game))
    command = runs.command(f"{game}/atlas.toml", run, overrides)
    runs.kill_when(command, lambda: interrupted(run))
    run.rename(killed)
    shutil.copytree(killed, run)
    runs.finish(command)
    run.rename(whole)
    cfg = load_card(runs.ROOT / "configs" / game / "atlas.toml", overrides)
    wanted = assemble(cfg, tmp_path / "assembled", services=False).targets()
    drawn, played = places(killed, MANY, SEED), []
    for name, read in readers(cfg, wanted, 2).items():
        undamaged, came = trial(killed, None, read), Counter()
        for place in drawn:
            after = trial(killed, place, read)
            result = verdict(killed, place, undamaged, after)
            assert result in GOOD, (name, place[:2], result)
            came[place[0].parts[0], place[1], result] += 1
            if name == "resume" and (result == "end missing" or (result == "same" and len(played) < 2)):
                played.append((place, result))
        print(f"{game} {name}: {json.dumps([[*key, count] for key, count in sorted(came.items())])}")
    for place, result in played:  # in earnest
        trial(killed, place, lambda run: undamaged)
        runs.finish(command)
        print(f"{game} played again after {place[1]} in {place[0]}: {result}")
        runs.same(whole, run)
