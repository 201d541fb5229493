"""SPICE, killed while drawing attempts, resumes and ends with the bits of an uninterrupted run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train import runs, spice_card

pytestmark = pytest.mark.slow

# This Atlas base writes no JSON: every attempt gets the penalty, all rounds are drawn, and with no baseline they train.
SETS = ('spice.loss.advantage="none"',)


def test_a_run_killed_while_it_draws_ends_with_the_same_bits(tmp_path: Path) -> None:
    card = str(spice_card.written(tmp_path))
    whole, run = tmp_path / "whole", tmp_path / "run"
    runs.finish(runs.command(card, whole, SETS))
    metrics = runs.lines(whole, "metrics.jsonl")
    assert [line["challenger/attempts"] for line in metrics] == [5.0, 5.0, 5.0]  # rounds of 2, 2 and 1
    assert all(line["challenger+reasoner/grad_norm"] > 0 for line in metrics)
    first, last = runs.arrays(whole, 1), runs.arrays(whole, 3)
    assert any((first[name] != last[name]).any() for name in first if "params" in name)

    runs.kill_when(runs.command(card, run, SETS), lambda: 1 in runs.saved(run))
    assert runs.lines(run, "metrics.jsonl")[-1]["step"] == runs.saved(run)[-1] < 3  # within the next step
    runs.finish(runs.command(card, run, SETS))
    runs.same(whole, run)
    assert runs.memory(run, 3)["game"] == {"drawn": 9}
