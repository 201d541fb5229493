"""Errors of exams over rows and seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.real_model.bootstrap import estimate, table
from scope_jax.errors import UserError
from scope_jax.run.files import EXAMS, LineWriter


def test_the_error_is_that_of_rows_and_seeds() -> None:
    """Scores r + s of independent rows and seeds: the variance of the mean is that of r / rows + that of s / seeds."""
    rng = np.random.default_rng(1)
    rows, seeds = rng.normal(size=400), rng.normal(scale=0.2, size=8)
    found = estimate(seeds[:, None] + rows)
    wanted = np.sqrt(rows.var() / 400 + seeds.var() / 8)
    assert found.mean == pytest.approx(rows.mean() + seeds.mean())
    assert found.error == pytest.approx(wanted, rel=0.05)
    assert found.low == pytest.approx(found.mean - 1.96 * wanted, abs=0.01)
    assert found.high == pytest.approx(found.mean + 1.96 * wanted, abs=0.01)
    assert estimate(seeds[:, None] + rows) == found


def test_the_difficulty_of_rows_cancels_in_a_difference() -> None:
    before = np.random.default_rng(2).normal(size=(3, 100))
    found = estimate(before + 0.25 - before)
    assert found.mean == pytest.approx(0.25) and found.error == pytest.approx(0, abs=1e-12)


def written(run: Path, *exams: tuple[int, list[float]], of: str = "0a") -> Path:
    run.mkdir()
    lines = [
        {"step": step, "set": "exam", "question": place, "of": of, "measures": {"accuracy": score}}
        for step, scores in exams
        for place, score in enumerate(scores)
    ]
    LineWriter(run / EXAMS).add(lines)
    return run


def test_the_first_and_the_last_exam_of_each_run(tmp_path: Path) -> None:
    one = written(tmp_path / "one", (0, [0.0, 1.0]), (5, [1.0, 1.0]), (10, [0.5, 1.0]))
    two = written(tmp_path / "two", (0, [0.0, 0.0]), (10, [0.0, 0.25]))
    assert table([one, two], "exam", "accuracy", 0).tolist() == [[0.0, 1.0], [0.0, 0.0]]
    assert table([one, two], "exam", "accuracy", -1).tolist() == [[0.5, 1.0], [0.0, 0.25]]
    with pytest.raises(UserError, match="no exam 'exam' with the measure 'f1'"):
        table([one], "exam", "f1", 0)
    other = written(tmp_path / "other", (0, [0.0, 1.0]), of="0b")
    with pytest.raises(UserError, match="other was asked other questions in 'exam' than"):
        table([one, other], "exam", "accuracy", 0)
