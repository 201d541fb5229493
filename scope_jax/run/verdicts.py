"""The file with the verdicts on a run's mathematical answers: <run>/verdicts.jsonl.gz.

    {"step": 3, "prediction": "0.5", "golds": ["\\frac{1}{2}"], "verdict": "equal"}

One line per comparison, written before the game sees the verdict. Whether a comparison times out can depend on the
machine, so each is decided once: by one process for all of them, and by the first process of a run for those that
resume it. See `members` for the file format.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scope_jax.play.math_answers import Comparison, MathAnswers, Verdict
from scope_jax.run import members
from scope_jax.run.processes import by_one, divided, writes

NAME = "verdicts.jsonl.gz"


class Verdicts:
    """Compares mathematical answers for all processes of a run, and records the verdicts of a run that trains."""

    def __init__(self, answers: MathAnswers) -> None:
        self._answers = answers
        self._path: Path | None = None
        self._step = 0
        self._decided: dict[Comparison, Verdict] = {}  # of this step
        self._later: dict[int, dict[Comparison, Verdict]] = {}  # of steps that an earlier process did not complete

    def record(self, run: Path, done: int) -> None:
        """From now on verdicts are recorded in `run`, a run with `done` steps, and those recorded after them stand."""
        self._path = run / NAME
        self._later = by_one(lambda: _after(run / NAME, done))
        self.begin(done)

    def begin(self, step: int) -> None:
        """The following comparisons are those of this step; 0: of the initial evaluation."""
        self._step, self._decided = step, self._later.pop(step, {})

    def compare(self, comparisons: Sequence[Comparison], seconds: float) -> list[Verdict]:
        """The verdict of each comparison, in order; all processes call this alike."""
        new = [each for each in dict.fromkeys(comparisons) if each not in self._decided]
        found = divided(lambda part: self._answers.verdicts(part, seconds), new, [1.0] * len(new))
        if self._path is not None and writes():
            members.append(self._path, map(self._line, new, found))
        self._decided |= zip(new, found, strict=True)
        return [self._decided[comparison] for comparison in comparisons]

    def _line(self, comparison: Comparison, verdict: Verdict) -> dict[str, object]:
        return {"step": self._step, **comparison._asdict(), "verdict": verdict}


def _after(path: Path, done: int) -> dict[int, dict[Comparison, Verdict]]:
    """The recorded verdicts of the steps after `done`, by step. An incomplete end, as after a kill, is removed."""
    if path.is_file():
        members.mend(path)
    found: dict[int, dict[Comparison, Verdict]] = {}
    for line in members.read(path):
        if line["step"] >= done:
            comparison = Comparison(line["prediction"], tuple(line["golds"]))
            found.setdefault(line["step"], {})[comparison] = line["verdict"]
    return found
