"""The command runs, and the recorded table has rows of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scope_jax.games import load_card
from scope_jax.text import parsing
from tests.torture import games, hostile, lives, table, texts
from tests.torture.__main__ import main, parsed, rows
from tests.torture.table import Tried
from tests.train import runs

RECORD = runs.ROOT / "tests" / "torture" / "outcomes.json"


def test_every_row_of_the_table_is_one_of_the_command() -> None:
    found = table.rows(RECORD)
    assert found and found.keys() <= {name for name, _ in rows(parsed([]))}
    assert all(list(rows(parsed(["--only", name]))) for name in found)


def test_a_row_replaces_the_one_of_its_name_and_no_other(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    for attack, tries, outcome in (("a", 1, "x"), ("b", 2000, "y"), ("a", 3, "z")):
        table.put(record, attack, Tried(tries, outcome))
    assert list(table.rows(record).items()) == [("a", Tried(3, "z")), ("b", Tried(2000, "y"))]


@pytest.mark.parametrize("game", games.SETS)
def test_the_small_runs_are_valid_and_their_documents_hold_everything_hostile(game: str, tmp_path: Path) -> None:
    overrides = games.sets(game, *hostile.hostile_files(game, tmp_path))
    cfg = load_card(runs.ROOT / "configs" / games.card(game), overrides)
    assert cfg.system == game and cfg.train.save_every == 1
    text = "".join(file.read_text(encoding="utf-8") for file in tmp_path.iterdir())
    assert [piece for piece in hostile.PIECES if json.dumps(piece, ensure_ascii=False)[1:-1] not in text] == []


def test_what_is_reserved_is_neutralised() -> None:
    assert len(hostile.RESERVED) > 40
    assert all(parsing.neutralise(f"a {piece} b") != f"a {piece} b" for piece in hostile.RESERVED)


@pytest.mark.parametrize(
    ("said", "checkpoints", "recorded", "moment"),
    [
        ("loading x", (), 0, "starting"),
        ("the first step compiles its programs", ("1",), 1, "in the first step of a life"),
        ("the first step compiles its programs\nstep 1: 30 s, 4 dispatches", (), 0, "in the first step of a life"),
        ("the first step compiles its programs\nstep 1/4  reward", ("1",), 1, "in a later step"),
        ("the first step compiles\nstep 1/4  r", ("1",), 2, "between a step's metrics and its checkpoint"),
        ("the first step compiles\nstep 1/4  r", ("1", "2.orbax-tmp-1"), 2, "writing a checkpoint"),
    ],
)
def test_the_moment_of_a_kill(
    said: str, checkpoints: tuple[str, ...], recorded: int, moment: str, tmp_path: Path
) -> None:
    for name in checkpoints:
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    lines = [json.dumps({"step": step + 1}) + "\n" for step in range(recorded)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    assert lives.moment(tmp_path, said) == moment


def test_a_text_that_breaks_a_parser_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, said = texts.parsed(5, 3, 1, 60.0, Path())
    assert tries == 3 and said.startswith("through ") and "numbers 5 to 7 of seed 1" in said
    assert texts.text_of(6, 1) == texts.text_of(6, 1) != texts.text_of(7, 1)
    lengths = sorted(len(texts.text_of(number, 1)) for number in range(4000))
    assert 50 <= lengths[2000] <= 500 and 1_000 <= lengths[3900] <= 4_000 < lengths[-1]

    def broken(text: str) -> None:
        raise KeyError("no")

    monkeypatch.setitem(texts.checks.PARSERS, "spans", (broken, ()))
    with pytest.raises(KeyError) as caught:
        texts.parsed(6, 1, 1, 60.0, Path())
    assert caught.value.__notes__ == [f"text 6 of seed 1: {texts.text_of(6, 1)!r}"]


@pytest.mark.slow
def test_the_command_kills_and_writes_its_row(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    main(["--game", "ssp", "--kills", "2", "--out", str(record)])
    (found,) = table.rows(record).values()
    assert found.tries == 2 and "undisturbed" in found.outcome
