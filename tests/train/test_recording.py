"""What tools answer is recorded before anyone sees it: a killed run goes on with the same answers, and so do others.

The game of these tests (user_game/duel.py) has two players in turns and a clock, which never shows a time twice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from scope_jax.cli import app
from scope_jax.run.files import CALLS, TOOL_CALLS, LineWriter, read_records
from tests.train.runs import several as run
from tests.user_game import test_user_game


def cli(*words: str) -> Result:
    return CliRunner().invoke(app, words)


DUEL = Path(test_user_game.__file__).with_name("duel.py")
OPTIONS = """[duel]
games = 4
samples = 2
loss = { advantage = "group-mean", kl = "none", aggregation = "token-mean" }
"""
SMALL = ("train.steps=2", "train.save_every=1", "evaluate.sets=[]", "rollout.slots=4")
TWO = ('duel.policies=["first","second"]',)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("duel")
    test_user_game.prepare(folder)
    head = test_user_game.CARD.split("[coordination]")[0].format(game=DUEL, folder=folder)
    (folder / "card.toml").write_text(head + OPTIONS)
    return folder


def spec(folder: Path, name: str, *sets: str, processes: int = 1, **more: Any) -> dict[str, Any]:
    overrides = [part for override in (*SMALL, *sets) for part in ("--set", override)]
    arguments = ["train", str(folder / "card.toml"), "--run", str(folder / name), *overrides]
    return {"processes": processes, "devices": 1, "arguments": arguments, "log": str(folder / f"{name}.log"), **more}


def log(folder: Path, name: str) -> str:
    return (folder / f"{name}.log.0").read_text()


def record(run: Path) -> list[dict[str, Any]]:
    return [*read_records(run / TOOL_CALLS)]


def lines(run: Path) -> list[dict[str, Any]]:
    """The lines that are not in the compressed file yet."""
    return [line for path in (run / CALLS).glob("*.jsonl") for line in read_records(path)]


def place(line: dict[str, Any]) -> str:
    """What a line answers, and how."""
    return json.dumps({name: value for name, value in line.items() if name != "seconds"}, sort_keys=True)


def outcome(folder: Path, name: str) -> list[Any]:
    """Episodes and metrics without times."""
    episodes, metrics = (list(read_records(folder / name / f"{kind}.jsonl")) for kind in ("episodes", "metrics"))
    kept = ("step", "games/length", "games/coin", "first/loss", "second/loss", "first+second/loss")
    return [episodes, [{key: line[key] for key in kept if key in line} for line in metrics]]


def kill_and_resume(folder: Path, name: str, kills: list[tuple[int, int]], *sets: str) -> None:
    """Runs killed after so many recorded lines, resumed by so many processes, are what their records say."""
    specs, names = [], []
    for number, processes in kills:
        names.append(f"{name}-{number}-{processes}")
        specs += [spec(folder, names[-1], *sets, kill=number)]
    codes = run(folder, *specs)
    assert codes == [[-9]] * len(specs), [log(folder, each) for each in names]
    before = {each: [place(line) for line in (record(folder / each) + lines(folder / each))] for each in names}
    for (number, _), each in zip(kills, names, strict=True):
        assert len(before[each]) >= number
    resumed = [
        spec(folder, each, *sets, processes=processes) for each, (_, processes) in zip(names, kills, strict=True)
    ]
    assert all(set(code) == {0} for code in run(folder, *resumed)), [log(folder, each) for each in names]
    for each in names:
        assert set(before[each]) <= {place(line) for line in record(folder / each)}
        assert lines(folder / each) == []
    again = [spec(folder, f"{each}-again", *sets, record=record(folder / each)) for each in names]
    assert run(folder, *again) == [[0]] * len(names)
    for each in names:
        assert outcome(folder, each) == outcome(folder, f"{each}-again")


def test_killed_runs_go_on_with_what_was_recorded(folder: Path) -> None:
    kill_and_resume(folder, "one", [(7, 2), (24, 1)])
    seen = [line["text"] for line in record(folder / "one-7-2") if "tool" in line]
    assert len(set(seen)) == len(seen) >= 16  # no time was shown twice
    assert any(line.get("name") == "once coin" for line in record(folder / "one-7-2"))


@pytest.mark.slow
def test_two_processes_and_two_policies_agree(folder: Path) -> None:
    """Each process sees another time, but all episodes are the same on both, and those of a run of one process."""
    assert run(folder, spec(folder, "both", *TWO, processes=2)) == [[0, 0]], log(folder, "both")
    assert run(folder, spec(folder, "both-again", *TWO, record=record(folder / "both"))) == [[0]]
    assert outcome(folder, "both") == outcome(folder, "both-again")
    episodes = outcome(folder, "both")[0]
    assert {episode["role"] for episode in episodes} == {"first", "second"}
    assert all(turn["kind"] == "sampled" for turn in episodes[0]["text"]["turns"][:1])


def test_a_step_is_played_again_with_its_tools_off(folder: Path) -> None:
    assert run(folder, spec(folder, "seen", *TWO)) == [[0]], log(folder, "seen")
    result = cli("replay", str(folder / "seen"), "--step", "2")
    assert result.exit_code == 0 and "all the same" in result.stdout, result.output
    episodes = folder / "seen" / "episodes.jsonl"
    first, *others = read_records(episodes)
    episodes.unlink()
    LineWriter(episodes).add([first | {"reward": 1 - first["reward"]}, *others])
    result = cli("replay", str(folder / "seen"), "--step", "1", "--json")
    assert result.exit_code == 1 and json.loads(result.stdout)["different"] == [0]
    LineWriter(folder / "seen" / TOOL_CALLS).cut(1)
    for step, sentence in (("2", "is not in the record"), ("3", "has no episodes of step 3")):
        result = cli("replay", str(folder / "seen"), "--step", step)
        assert result.exit_code == 2 and sentence in " ".join(result.stderr.split()), result.output


@pytest.mark.slow  # about fifty runs
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_at_every_recorded_line(folder: Path, processes: int) -> None:
    assert run(folder, spec(folder, f"whole-{processes}")) == [[0]]
    count = sum(line["step"] == 1 for line in record(folder / f"whole-{processes}"))
    kill_and_resume(folder, f"every-{processes}", [(number, processes) for number in range(1, count + 1)])
