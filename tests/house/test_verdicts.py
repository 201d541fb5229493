"""What one process has computed for all is decided once in a run, and recorded before a game sees it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scope_jax.errors import UserError
from scope_jax.run.files import CALLS, TOOL_CALLS, read_records
from scope_jax.run.recording import Recording

ONE, TWO, THREE = ["1.0", ["1"]], ["2", ["1"]], ["3", ["1"]]


class Counting:
    """Answers with one verdict, and keeps what it was asked."""

    def __init__(self, verdict: str) -> None:
        self.verdict, self.asked = verdict, []

    def __call__(self, items: Sequence[Any]) -> list[str]:
        self.asked += items
        return [self.verdict for _ in items]


def lines(run: Path) -> list[tuple[int, Any, Any]]:
    paths = (run / TOOL_CALLS, *(run / CALLS).glob("*.jsonl"))
    return [(line["step"], line["item"], line["value"]) for path in paths for line in read_records(path)]


def test_a_resumed_run_gets_the_recorded_verdicts(tmp_path: Path) -> None:
    first = Counting("timeout")
    recording = Recording()
    recording.open(tmp_path, 0)
    recording.begin(1)
    assert recording.answers(None, "math", [ONE, TWO, ONE], first) == ["timeout"] * 3
    recording.complete(1)
    recording.begin(2)
    recording.answers(None, "math", [ONE], first)
    assert first.asked == [ONE, TWO, ONE]  # once a step
    with (tmp_path / CALLS / "0.jsonl").open("a") as file:
        file.write('{"step": 2, "name": "ma')  # as after a kill

    second = Counting("equal")
    resumed = Recording()
    resumed.open(tmp_path, 1)  # the checkpoint is that of step 1
    resumed.begin(2)
    assert resumed.answers(None, "math", [ONE, THREE], second) == ["timeout", "equal"] and second.asked == [THREE]
    resumed.complete(2)
    assert lines(tmp_path) == [
        (1, ONE, "timeout"),
        (1, TWO, "timeout"),
        (2, ONE, "timeout"),
        (2, THREE, "equal"),
    ]


def test_a_step_whose_checkpoint_is_lost_gets_its_answers_again(tmp_path: Path) -> None:
    recording = Recording()
    recording.open(tmp_path, 0)
    for step in (1, 2):
        recording.begin(step)
        recording.answers(None, "math", [[step]], Counting(f"at {step}"))
        recording.complete(step)
    for done in (1, 0):
        resumed, asked = Recording(), Counting("new")
        resumed.open(tmp_path, done)
        steps = range(done + 1, 3)
        assert [resumed.answers(step, "math", [[step]], asked) for step in steps] == [[f"at {step}"] for step in steps]
        assert asked.asked == []
        resumed.complete(2)
        assert [line[0] for line in lines(tmp_path)] == [1, 2]


def test_what_is_asked_again_is_answered_again_and_in_a_resumed_run_alike(tmp_path: Path) -> None:
    replies = iter(range(10))

    def reply(items: Sequence[Any]) -> list[int]:
        return [next(replies) for _ in items]

    recording = Recording()
    recording.open(tmp_path, 0)
    told = [recording.answers(1, "judge", ["a", "b", "a"], reply, again=True) for _ in range(2)]
    assert told == [[0, 1, 2], [3, 4, 5]]
    resumed = Recording()
    resumed.open(tmp_path, 0)
    assert [resumed.answers(1, "judge", ["a", "b", "a"], reply, again=True) for _ in range(2)] == told
    assert resumed.answers(1, "judge", ["a"], reply, again=True) == [6]


def test_a_record_that_is_closed_takes_no_more(tmp_path: Path) -> None:
    recording = Recording()
    recording.open(tmp_path, 0)
    recording.answers(1, "math", [ONE], Counting("equal"))
    recording.close()
    assert recording.answers(1, "math", [TWO], Counting("equal")) == ["equal"] and len(lines(tmp_path)) == 1


def test_without_a_run_nothing_is_written() -> None:
    recording, ask = Recording(), Counting("equal")
    assert recording.answers(1, "math", [ONE], ask) == ["equal"] and recording.answers(1, "math", [], ask) == []
    recording.complete(1)


def test_a_replay_asks_nobody(tmp_path: Path) -> None:
    recording = Recording()
    recording.open(tmp_path, 0)
    recording.answers(1, "math", [ONE], Counting("equal"))
    recording.complete(1)
    replayed = Recording()
    replayed.replay(tmp_path, 1)
    assert replayed.answers(1, "math", [ONE], Counting("other")) == ["equal"]
    with pytest.raises(UserError, match="the record has no answer of 'math'"):
        replayed.answers(1, "math", [TWO], Counting("other"))
