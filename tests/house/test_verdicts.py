"""Verdicts on mathematical answers are decided once in a run, and recorded before a game sees them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scope_jax.play.math_answers import Comparison, MathAnswers
from scope_jax.run import records
from scope_jax.run.world import VERDICTS, Verdicts

ONE, TWO, THREE = (Comparison(text, ("1",)) for text in ("1.0", "2", "3"))


class Counting(MathAnswers):
    """Answers with one verdict, and keeps what it was asked."""

    def __init__(self, verdict: str) -> None:
        super().__init__()
        self.verdict, self.asked = verdict, []

    def verdicts(self, comparisons: Sequence[Comparison], seconds: float = 5.0) -> list:
        self.asked += comparisons
        return [self.verdict for _ in comparisons]


def test_a_resumed_run_gets_the_recorded_verdicts(tmp_path: Path) -> None:
    first = Counting("timeout")
    verdicts = Verdicts(first)
    verdicts.record(tmp_path, 0)
    verdicts.begin(1)
    assert verdicts.compare([ONE, TWO, ONE], 5.0) == ["timeout"] * 3
    verdicts.begin(2)
    verdicts.compare([ONE], 5.0)
    assert first.asked == [ONE, TWO, ONE]  # once a step
    with (tmp_path / VERDICTS).open("ab") as file:
        file.write(b"\x1f\x8b\x08")  # as after a kill

    second = Counting("equal")
    resumed = Verdicts(second)
    resumed.record(tmp_path, 1)  # the checkpoint is that of step 1
    resumed.begin(2)
    assert resumed.compare([ONE, THREE], 5.0) == ["timeout", "equal"] and second.asked == [THREE]
    lines = [(line["step"], line["prediction"], line["verdict"]) for line in records.read_steps(tmp_path / VERDICTS)]
    assert lines == [(1, "1.0", "timeout"), (1, "2", "timeout"), (2, "1.0", "timeout"), (2, "3", "equal")]


def test_without_a_run_nothing_is_written() -> None:
    verdicts = Verdicts(Counting("equal"))
    assert verdicts.compare([ONE], 5.0) == ["equal"] and verdicts.compare([], 5.0) == []
