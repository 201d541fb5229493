"""SPICE, killed between two rounds of attempts, resumes and ends with the bits of an uninterrupted run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train import runs, spice_card

pytestmark = pytest.mark.slow

# This Atlas base writes no JSON: any text is a choice of format, a task or a right answer, or not, by a number computed
# from its bytes. If SPICE_WAITS_AT is set, the process waits in the step that begins at this position of the stream,
# before the second round of attempts at a document, while others go on, until it is killed.
GAME = """
import os, time, zlib
from pathlib import Path
from scope_jax.games import spice
from scope_jax.games.spice import roles, rules
from scope_jax.games.spice.state import ReasonerTask

def share(text):
    return zlib.crc32(text.encode()) % 100

rules.format_of = lambda card, reply: ("integer", "") if share(reply) < 60 else ("", "no_object")
rules.task_of = lambda reply, kind, words: (
    (ReasonerTask("integer", reply[:20] or "?", "7"), "") if share(reply) < 60 else (None, "no_object")
)
roles.prediction_of = lambda completion: "".join(turn.text for turn in completion.turns)
rules.right = lambda task, prediction, equal: share(prediction) < 50

draw = roles._round

def _round(step, document, numbers):
    if numbers[0] == 2 and step.memory["drawn"] == int(os.environ.get("SPICE_WAITS_AT", "-1")):
        Path(os.environ["SPICE_WAITS_THERE"]).touch()
        time.sleep(600)
    return draw(step, document, numbers)

roles._round = _round
GAME = spice.GAME
"""
SETS = ('spice.loss.advantage="none"',)  # with no baseline every attempt trains


def test_a_run_killed_while_it_draws_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card, game = spice_card.written(tmp_path), tmp_path / "game.py"
    game.write_text(GAME)
    card.write_text(card.read_text().replace('system = "spice"', f'system = "{game}"'))
    whole, run, there = tmp_path / "whole", tmp_path / "run", tmp_path / "there"
    runs.finish(runs.command(str(card), whole, SETS))
    metrics = runs.lines(whole, "metrics.jsonl")
    attempts = [line["challenger/attempts"] for line in metrics]  # rounds of 2, 2 and 1, until one is valid
    assert len(attempts) == 3 and any(2.0 < mean < 5.0 for mean in attempts)
    assert all(line["challenger/documents"] > 0 for line in metrics)
    assert all(line["challenger+reasoner/grad_norm"] > 0 for line in metrics)
    first, last = runs.arrays(whole, 1), runs.arrays(whole, 3)
    assert any((first[name] != last[name]).any() for name in first if "params" in name)

    monkeypatch.setenv("SPICE_WAITS_AT", "3")  # the second step, as each has three documents
    monkeypatch.setenv("SPICE_WAITS_THERE", str(there))
    runs.kill_when(runs.command(str(card), run, SETS), there.exists)
    assert runs.saved(run) == [1] and runs.memory(run, 1)["game"] == {"drawn": 3}
    monkeypatch.delenv("SPICE_WAITS_AT")
    runs.finish(runs.command(str(card), run, SETS))
    runs.same(whole, run)
    assert runs.memory(run, 3)["game"] == {"drawn": 9}
