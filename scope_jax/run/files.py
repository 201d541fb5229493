"""The files of lines that a run has: what a line holds, how a file is read, added to, and cut back on a resume.

    metrics.jsonl          {"step": 3, "solver/reward": 0.4, …}: one line per step
    episodes.jsonl         {"step": 3, "role": "solver", "reward": 1.0, "text": {…}, …}: one per episode, see `records`
    judgements.jsonl.gz    judge replies about the episodes
    tokens.jsonl.gz        their tokens with log-probs, if asked for
    exams.jsonl.gz         measures of every exam question during training
    evaluations.jsonl.gz   what `scope-jax eval` got from checkpoints of the run, see `evaluation.evaluations`
    tool_calls.jsonl.gz    what tools, graders and other services answered in complete steps, see `recording`
    calls/<process>.jsonl  the same of steps that are not complete, or without a checkpoint
    schedule/<process>.jsonl   of a run whose steps overlap: when caches were computed, see `schedule_file`
    timeline.jsonl         of such a run: when steps were played and learned, in seconds since the epoch

The lines of a step are on disk before its checkpoint, which knows how far each file goes, and lines after it are
removed when a run resumes from it: after any kill, the files end up the same as without it. See `lines` for the format.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from scope_jax.errors import UserError, writing
from scope_jax.files import replaced
from scope_jax.run.lines import (
    LAST_STEP,
    DamagedFile,
    Extent,
    Record,
    compressed,
    is_count,
    parsed,
    read,
    step_of,
    summed,
)

METRICS, EPISODES = "metrics.jsonl", "episodes.jsonl"
JUDGEMENTS, TOKENS, EXAMS = "judgements.jsonl.gz", "tokens.jsonl.gz", "exams.jsonl.gz"
EVALUATIONS, TOOL_CALLS, CALLS = "evaluations.jsonl.gz", "tool_calls.jsonl.gz", "calls"
SCHEDULE, TIMELINE = "schedule", "timeline.jsonl"
Fields = Mapping[str, tuple[str, Callable[[Any], bool]]]  # by name: what the value must be, in words and as a test


class RunError(UserError):
    """A run folder cannot be used; the message is one sentence with the folder and the remedy."""


# --------------------------------------------------------------------------------------------------------------- fields
def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and abs(value) < math.inf and abs(value) <= 1.7e308)


def _is_values(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) or _is_number(each) for each in value.values())


def _is_measures(value: Any) -> bool:
    numbers = value.values() if isinstance(value, dict) else [None]
    return all(isinstance(number, int | float) and abs(number) <= 1e100 for number in numbers)


def _is_listed(value: Any, *names: str) -> bool:
    """True for a list of objects in which these names have texts."""
    items = value if isinstance(value, list) else [None]
    return all(isinstance(item, dict) and all(isinstance(item.get(name), str) for name in names) for item in items)


def _is_told(value: Any) -> bool:
    """True for what an episode may say about itself."""
    if not isinstance(value, dict) or not _is_listed(value.get("turns", []), "kind", "text"):
        return False
    if "setting" not in value:
        return True
    at = value.get("at", value.get("since"))
    return isinstance(value["setting"], str) and isinstance(value.get("by"), str) and "value" in value and is_count(at)


def _is_answer(value: Any) -> bool:
    """True for an answer to a question of an exam."""
    return isinstance(value, dict) and _is_measures(value.get("measures")) and _is_told(value.get("text"))


TEXT = ("a text", lambda value: isinstance(value, str))
COUNT = ("a whole number", is_count)
NUMBER = ("a number or null", _is_number)
LIST = ("a list", lambda value: isinstance(value, list))
MEASURES = ("an object of numbers up to 1e100", _is_measures)  # their squares are summed
EPISODE: Fields = {
    "role": TEXT,
    "group": TEXT,
    "reward": NUMBER,
    "parts": ("an object of numbers and texts", _is_values),
    "advantage": NUMBER,
    "trained": ("true or false", lambda value: isinstance(value, bool)),
    "tokens": COUNT,
    "sampled": COUNT,
    "text": ("an object with the turns of an episode", _is_told),
}
JUDGEMENT: Fields = {
    "episode": COUNT,
    "job": TEXT,
    "about": TEXT,
    "replies": ("a list of replies", lambda value: _is_listed(value, "text", "refused")),
    "read": ("there", lambda value: True),
}
SET: Fields = {"set": TEXT, "taken": TEXT}
ANSWER: Fields = {"place": COUNT, "record": ("an object with measures and the text of an episode", _is_answer)}


THERE = ("there", lambda value: True)
CALL: Fields = {
    "role": TEXT,
    "rollout": TEXT,
    "sample": COUNT,
    "agent": TEXT,
    "number": COUNT,
    "turn": THERE,
    "tool": TEXT,
    "arguments": THERE,
    "text": TEXT,
    "status": TEXT,
}
BAR: Fields = {
    "kind": ("play, update, exam or swap", lambda value: value in ("play", "update", "exam", "swap")),
    "began": NUMBER,
    "ended": NUMBER,
}
SWAP: Fields = {"swap": ("true", lambda value: value is True)}
PAIR: Fields = {
    "play": COUNT,
    "role": TEXT,
    "rollout": TEXT,
    "sample": COUNT,
    "agent": TEXT,
    "row": COUNT,
    "tokens": COUNT,
}
GIVEN: Fields = {"name": TEXT, "item": THERE, "time": COUNT, "value": THERE}


def _of_call(record: Record) -> Fields:
    return CALL if "tool" in record else GIVEN


# ---------------------------------------------------------------------------------------------------------------- table
@dataclass(frozen=True)
class FileKind:
    """What is known of a file of a run. It is compressed if its name ends in .gz."""

    fields: Callable[[Record], Fields]
    """Of a record: what it must have."""
    cut: bool
    """Whether lines of steps after the checkpoint are removed when the run resumes."""
    remedy: str
    """What to do if it is damaged, as a clause."""


KEPT = "put the file back, or remove this line and those after it: the run goes on without them"
SHOWN = "put the file back, or move it away: only reports read it"
ASKED = "put the file back, or remove this line and those after it: what they answered is asked again"
SCHEDULED = "put the file back, or remove this line and those after it: what they say is decided anew"
REPLAYED = "put the file back, or move it away: the run goes on, but these steps cannot be replayed"
FILES = {
    METRICS: FileKind(lambda record: dict.fromkeys(record, NUMBER), True, KEPT),
    EPISODES: FileKind(lambda record: EPISODE, True, KEPT),
    JUDGEMENTS: FileKind(lambda record: JUDGEMENT, True, SHOWN),
    TOKENS: FileKind(lambda record: {"episode": COUNT, "rows": LIST}, True, SHOWN),
    EXAMS: FileKind(lambda record: {"set": TEXT, "question": COUNT, "of": TEXT, "measures": MEASURES}, True, SHOWN),
    EVALUATIONS: FileKind(
        lambda record: {**SET, **({"metrics": MEASURES} if "metrics" in record else ANSWER)}, False, SHOWN
    ),
    TOOL_CALLS: FileKind(_of_call, False, REPLAYED),  # cut by the recording, which takes these lines over
    CALLS: FileKind(_of_call, False, ASKED),
    TIMELINE: FileKind(lambda record: BAR, True, SHOWN),
    # Not cut: a resume repeats what was after its checkpoint.
    SCHEDULE: FileKind(lambda record: SWAP if "swap" in record else PAIR, False, SCHEDULED),
}


def kind_of(path: Path) -> FileKind:
    """The kind of a file of a run."""
    return FILES[path.name if path.name in FILES else path.parent.name]


def read_records(path: Path) -> Iterator[Record]:
    """The records of a file of a run in order, none if there is no file; an incomplete end is ignored.

    Raises DamagedFile for a line that is not as it was written, or lacks a field.
    """
    kind = kind_of(path)
    for line in read(path, kind.remedy):
        record = parsed(line, kind.remedy)
        for name, (words, fits) in kind.fields(record).items():
            if name not in record or not fits(record[name]):
                raise DamagedFile(f"{line.place} has no {name[:100]} that is {words}; {kind.remedy}.")
        yield record


# -------------------------------------------------------------------------------------------------------------- writing
class LineWriter:
    """Adds lines to a file of a run."""

    def __init__(self, path: Path) -> None:
        self.path, self._kind = path, kind_of(path)
        self._extent: Extent | None = None  # None: not known yet
        self._size = 0  # bytes of the file as this process left it
        self.has_sums = True  # whether its last line has one, if it had any when it was last cut
        self._held: BinaryIO | None = None

    @property
    def extent(self) -> Extent:
        """How far the file goes. What is incomplete at its end is removed before that is known."""
        if self._extent is None:
            self.cut(LAST_STEP)
        assert self._extent is not None
        return self._extent

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds the records of a step, or some of them; returns when they are on disk. Writes nothing if there are none.

        Raises RunError if the file is not as this process left it.
        """
        text, extent = summed(records, self.extent)
        if not text:
            return
        if self._held is not None:
            with writing(self.path):
                self._held.write(text)
                self._held.flush()
            self._extent = extent
            return
        if self._size != (size := _size(self.path)):
            raise RunError(
                f"{self.path} was removed or changed while the run wrote it ({self._size} bytes, now {size}); put it "
                "back, then run the same command again, which otherwise goes on without the lines that are gone."
            )
        with writing(self.path), self.path.open("ab") as file:
            file.write(compressed(text) if self.path.suffix == ".gz" else text)
            file.flush()
            os.fsync(file.fileno())
        self._extent, self._size = extent, _size(self.path)

    def cut(self, step: int | None, expected: Extent | None = None) -> str:
        """Removes the lines after `step`, and an incomplete end; None: all lines. expected: how far the file went at
        the checkpoint of this step, None if that is not known.

        Returns a sentence if it does not go so far, "" otherwise. Raises DamagedFile for a line that would stay, but is
        not as it was written.
        """
        kept, end, last, self.has_sums = Extent(), 0, None, True
        try:
            for line in read(self.path, self._kind.remedy) if step is not None else ():
                last = step_of(line, self._kind.remedy)
                if step is None or last > step:
                    break
                if expected is not None and line.extent.lines == expected.lines and line.extent != expected:
                    raise DamagedFile(
                        f"{line.place} is not the one that the checkpoint of step {step} was written after; "
                        f"{self._kind.remedy}."
                    )
                if line.end is not None:
                    kept, end, self.has_sums = line.extent, line.end, line.summed
        except DamagedFile:
            if last != step if expected is None else kept.lines < expected.lines:
                raise  # otherwise all lines of the checkpoint are whole
        short = expected is not None and kept.lines < expected.lines
        if short and self.path.suffix == ".gz" and end != _size(self.path):
            raise DamagedFile(
                f"line {kept.lines + 1} of {self.path}, or one of the same step, is damaged: it breaks off before the "
                f"checkpoint of step {step}; {self._kind.remedy}."
            )
        if self.path.is_file() and end != _size(self.path):
            with self.path.open("rb+") as file:
                file.truncate(end)
                os.fsync(file.fileno())
        self._extent, self._size = kept, end
        if not short or expected is None:
            return ""
        return (
            f"{self.path} has {kept.lines} lines, but had {expected.lines} at the checkpoint of step {step}; the run "
            "goes on without the lines that are gone"
        )

    def restart(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Gives the file these lines instead of its own, and keeps it open: what is added later survives the process
        as soon as `add` returns, but is not waited for until it is on the disk."""
        text, extent = summed(records, Extent())
        self.close()
        with replaced(self.path) as partial:
            partial.write_bytes(text)
        self._held, self._extent = self.path.open("ab"), extent

    def close(self) -> None:
        """Closes a file that was kept open."""
        if self._held is not None:
            self._held.close()
            self._held = None


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


# ----------------------------------------------------------------------------------------------------- files as a whole
def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """Writes plain data with a check sum, the key "sum"."""
    text = json.dumps({**table, "sum": _sum_of(table)}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path, remedy: str) -> Any:
    """The plain data of a file, without its check sum; of earlier versions it has none.

    Raises DamagedFile if it is not as it was written, FileNotFoundError if it is not there.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        recorded = table.pop("sum", None) if isinstance(table, dict) else None
        whole = recorded is None or recorded == _sum_of(table)
    except (ValueError, RecursionError):
        whole, table = False, None
    if not whole:
        raise DamagedFile(f"{path} is damaged; {remedy}.")
    return table


def _sum_of(table: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(table).encode()):08x}"
