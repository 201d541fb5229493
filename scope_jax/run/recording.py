"""What tools, graders and other services have answered in the steps of a run: recorded before anyone sees it.

A resumed run plays the interrupted step from its beginning: tokens come out as before, and whatever is not a function
of the seed comes from the record. Lines are written as answers come, by each process into its own file:

    <run>/calls/<process>.jsonl     of steps that are not complete, or without a checkpoint
    <run>/tool_calls.jsonl.gz       of complete steps

    {"step": 3, "role": "solver", "rollout": "5", "sample": 0, "agent": "solver", "number": 2, "turn": 1,
     "tool": "python", "arguments": {"code": "print(1)"}, "text": "1", "status": "ok", "seconds": 0.02}
    {"step": 3, "name": "math", "item": ["0.5", ["1/2"]], "time": 0, "value": "equal"}

The first kind is a call of a tool; calls of pure tools are not recorded, and searches only where a server answers them.
The second is an answer that one process has computed for all: a verdict, a judge's reply, a result of `Tools.each` and
`Tools.once`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scope_jax.errors import UserError
from scope_jax.multihost import distributed
from scope_jax.rollouts.types import ToolResult
from scope_jax.run.files import CALLS, TOOL_CALLS, LineWriter, read_records
from scope_jax.run.lines import Extent, Extents
from scope_jax.run.processes import divided, together, writes
from scope_jax.text.plain_data import whole_texts
from scope_jax.web.exchange import whole

Line = dict[str, Any]


class Recording:
    """The record of a run; without a folder nothing is recorded or known. All processes call it alike, but for
    `calls`."""

    def __init__(self, tell: Callable[[str], None] = lambda sentence: None) -> None:
        self.step = 0  # that answers without a step of their own belong to, see `begin`
        self.closed = False  # nothing but the record answers
        self._tell = tell
        self._file: LineWriter | None = None  # of this process
        self._complete: LineWriter | None = None
        self._lock = threading.Lock()
        self._new: list[Line] = []  # of this process, of steps that are not complete
        self._calls: dict[tuple[Any, ...], list[Line]] = {}  # of earlier processes, by step, role, rollout, sample
        self._answers: dict[int, dict[tuple[str, str, int], Any]] = {}  # by step, of (name, item, time) what is known
        self._times: dict[tuple[int, str, str], int] = {}
        self._differed = False

    # ----------------------------------------------------------------------------------------------- files of the run
    def open(self, run: Path, done: int, extents: Extents | None = None, other: Path | None = None) -> None:
        """From now on everything is recorded in `run`, a run with `done` steps; what was recorded after them stands.

        extents: of the run's files at its checkpoint, if they are known. other: a run whose answers stand, too, where
        this one has none. Raises DamagedFile.
        """
        own = LineWriter(run / CALLS / f"{distributed.index()}.jsonl")
        first = done + 1 if done else 0

        def known() -> list[Line]:
            return [*([] if other is None else _lines(other, first)), *_lines(run, first)]

        lines = _unique(line for part in together(known) for line in part)
        self._take(lines)
        mine = lines if writes() else []
        together(lambda: own.restart(mine) if writes() else None)  # process 0 keeps all, before others forget theirs
        if not writes():
            own.restart([])
        self._complete = LineWriter(run / TOOL_CALLS)
        if writes():
            for path in (run / CALLS).glob("*.jsonl"):
                if path.stem.isdecimal() and int(path.stem) >= distributed.count():
                    path.unlink()
            pair = (extents or {}).get(TOOL_CALLS)
            if said := self._complete.cut(done or None, None if pair is None else Extent(*pair)):
                self._tell(said)
        self._file = own
        self._new = mine
        self.begin(done)

    def extents(self) -> dict[str, list[int]]:
        """How far the file of complete steps goes, as `folder.RunFolder.extents`."""
        return {TOOL_CALLS: self._complete.extent.plain()} if self._complete is not None and writes() else {}

    def replay(self, run: Path, step: int) -> None:
        """Answers the calls of a step from the record of a run alone."""
        lines = [line for line in _lines(run, step) if line["step"] == step]
        self._take(lines)
        self.closed = True

    def close(self) -> None:
        """Ends recording; what is asked later is not recorded."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def begin(self, step: int) -> None:
        """The following answers are those of this step; 0: of the initial evaluation."""
        self.step = step

    def complete(self, step: int) -> None:
        """The steps up to this one are complete: their lines go into the compressed file."""
        if self._file is None or self._complete is None:
            return
        lines = [line for part in together(lambda: [one for one in self._new if one["step"] <= step]) for line in part]
        if writes():
            by_step: dict[int, list[Line]] = {}
            for line in lines:
                by_step.setdefault(line["step"], []).append(line)
            for number in sorted(by_step):
                self._complete.add(sorted(by_step[number], key=_order))
        together(lambda: None)  # the lines are there before any process forgets its own
        with self._lock:
            self._new = [line for line in self._new if line["step"] > step]
            self._file.restart(self._new)
            for known in [number for number in self._answers if number < step]:
                del self._answers[known]
            for place in [place for place in self._times if place[0] < step]:
                del self._times[place]
            for key in [key for key in self._calls if key[0] <= step]:
                del self._calls[key]

    def _take(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if "tool" in line:
                key = line["step"], line["role"], line["rollout"], line["sample"]
                self._calls.setdefault(key, []).append(line)
            else:
                known = self._answers.setdefault(line["step"], {})
                known[line["name"], _key(line["item"]), line["time"]] = line["value"]

    def write(self, lines: Sequence[Line]) -> None:
        """Records lines; returns when a killed process would not lose them. In any thread."""
        if self._file is None or not lines:
            return
        with self._lock:
            self._new += lines
            self._file.add(lines)

    # ----------------------------------------------------------------------------------------------------- what is kept
    def calls(self, step: int | None, role: str, rollout: str, sample: int) -> RolloutRecord:
        """The record of the calls in one sample of a rollout, of the process that plays it. step: see `answers`."""
        step = self.step if step is None else step
        return RolloutRecord(self, {"step": step, "role": role, "rollout": rollout, "sample": sample})

    def recorded(self, where: Line) -> list[Line]:
        """What an earlier process recorded of a sample of a rollout."""
        return self._calls.get(tuple(where.values()), [])

    def answers(
        self,
        step: int | None,
        name: str,
        items: Sequence[Any],
        work: Callable[[list[Any]], Sequence[Any]],
        costs: Callable[[Any], float] = lambda item: 1.0,
        *,
        again: bool = False,
    ) -> list[Any]:
        """`work` of the items, each by one process for all, recorded before it is returned; plain data as JSON has it.

        step: None: that of `begin`. again: an item that was asked before in the step is asked once more; otherwise
        equal items of a step have one answer.
        """
        step = self.step if step is None else step
        with self._lock:
            known = self._answers.setdefault(step, {})
            keys = [(name, _key(item), self._time(step, name, item) if again else 0) for item in items]
        new = {key: item for key, item in zip(keys, items, strict=True) if key not in known}
        if new and self.closed:
            raise UserError(
                f"the record has no answer of {name!r} to {next(iter(new))[1][:200]}; it cannot be replayed."
            )
        values = divided(work, [*new.values()], [costs(item) for item in new.values()], name) if new else []
        values = [whole_texts(value) for value in values]
        if writes():
            self.write(
                [
                    {"step": step, "name": name, "item": item, "time": key[2], "value": value}
                    for (key, item), value in zip(new.items(), values, strict=True)
                ]
            )
        given = known | dict(zip(new, values, strict=True))
        if self._file is not None or not again:
            with self._lock:
                self._answers[step] = given
        return [given[key] for key in keys]

    def _time(self, step: int, name: str, item: Any) -> int:
        """How often the item has been asked in the step before."""
        place = step, name, _key(item)
        self._times[place] = self._times.get(place, -1) + 1
        return self._times[place]

    def differs(self, where: str) -> None:
        if self.closed:
            raise UserError(f"{where} is not in the record, or is another one there, so the step cannot be replayed.")
        if not self._differed:
            self._differed = True
            self._tell(f"{where} is not the recorded one: the rest of its rollout is played anew")


class RolloutRecord:
    """See `play.tool_execution.Record`."""

    def __init__(self, recording: Recording, where: Line) -> None:
        self._recording, self._where = recording, where
        self.closed = recording.closed

    def earlier(self, agent: str) -> list[Mapping[str, Any]]:
        return [line for line in self._recording.recorded(self._where) if line["agent"] == agent]

    def write(self, agent: str, number: int, result: ToolResult) -> None:
        self._recording.write([self._where | {"agent": agent, "number": number} | asdict(result)])

    def differs(self, agent: str, number: int) -> None:
        where = ", ".join(f"{name} {value!r}" for name, value in self._where.items())
        self._recording.differs(f"call {number} of {agent or 'the rollout'!r} ({where})")


def _key(item: Any) -> str:
    return whole(json.dumps(item, sort_keys=True, ensure_ascii=False))


def _order(line: Line) -> tuple[Any, ...]:
    return tuple(str(line.get(name, "")) for name in ("role", "rollout", "sample", "agent")) + (
        line.get("number", 0),
        line.get("name", ""),
    )


def _unique(lines: Iterable[Line]) -> list[Line]:
    """Without repetitions: processes that share a folder read the same files. The last line of a call stands."""
    by_place: dict[str, Line] = {}
    for line in lines:
        by_place[_key({name: value for name, value in line.items() if name in PLACE})] = line
    return list(by_place.values())


PLACE = ("step", "role", "rollout", "sample", "agent", "number", "name", "item", "time")


def _lines(run: Path, first: int) -> list[Line]:
    """The recorded lines of the steps from `first` on, in this process's view of a run's folder."""
    paths = (run / TOOL_CALLS, *sorted((run / CALLS).glob("*.jsonl")))
    return [line for path in paths for line in read_records(path) if line["step"] >= first]
