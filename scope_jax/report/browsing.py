"""All episodes of a run as data for the episode browser of its page (templates/browser.js).

An index has a few values of every episode, such as role and reward; chunks hold the episodes themselves with their
judgements and tokens. Both are JSON, compressed and in base64: whatever an episode says, they contain no markup and no
script. The browser unpacks a chunk when one of its episodes is shown or searched. Chunks are part of the page up to
`MOST_INSIDE` characters in total; those of a larger run are files beside it, `report/episodes/<stamp>-<number>.js`,
because a page that is opened from disk may load scripts but not other files.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scope_jax.evaluation import evaluations
from scope_jax.files import replaced
from scope_jax.run.files import EPISODES, EVALUATIONS, JUDGEMENTS, TOKENS, read_records

Record = dict[str, Any]
MOST_INSIDE = 8 << 20  # characters of packed chunks within the page
CHUNK = 1 << 19  # characters of an unpacked chunk, at least one episode
CALL = "deliver("  # the beginning of a file with a chunk


def stamp(run: Path) -> str:
    """A name that changes when a run's episodes do; files of the same run with the same sizes have the same bytes."""
    names = (EPISODES, JUDGEMENTS, TOKENS, EVALUATIONS)
    return "-".join(f"{(run / name).stat().st_size if (run / name).is_file() else 0:x}" for name in names)


def joined(run: Path, records: Iterable[Record]) -> Iterator[Record]:
    """The records of episodes.jsonl with "place" (index in the step), "judgements" and "rows" (of tokens)."""
    asked, spelled = _Beside(read_records(run / JUDGEMENTS)), _Beside(read_records(run / TOKENS))
    step, place = None, 0
    for record in records:
        step, place = record["step"], place + 1 if record["step"] == step else 0
        rows = [row for line in spelled.of(step, place) for row in line["rows"]]
        yield {**record, "place": place, "judgements": list(asked.of(step, place)), "rows": rows}


def answered(run: Path) -> tuple[list[Record], Iterator[Record]]:
    """(metrics of the sets answered by `scope-jax eval`, their answers in the form of `joined`).

    An answer's role is "exam NAME", its group the question, and its reward the value of its first measure.
    """
    return [line for line in evaluations.newest(run) if "metrics" in line], (
        {
            "step": line["step"],
            "role": f"exam {line['set']}",
            "group": str(line["place"]),
            "reward": next(iter(line["record"]["measures"].values()), None),
            "parts": line["record"]["measures"],
            "advantage": None,
            "trained": False,
            "sampled": 0,
            "tokens": 0,
            "text": _told(line["record"]),
            "judgements": [],
            "rows": [],
        }
        for line in evaluations.newest(run)
        if "record" in line
    )


def _told(record: Record) -> Record:
    """The fields of an answer, with the conversation of its "text" beside them."""
    own = {name: value for name, value in record.items() if name not in ("measures", "counts", "text", "sample")}
    return own | record["text"]


class _Beside:
    """The lines about episodes that are asked for in order; lines about others are skipped."""

    def __init__(self, lines: Iterator[Record]) -> None:
        self._lines, self._next = lines, next(lines, None)

    def of(self, step: int, place: int) -> Iterator[Record]:
        while self._next is not None and (about := (self._next["step"], self._next["episode"])) <= (step, place):
            if about == (step, place):
                yield self._next
            self._next = next(self._lines, None)


@dataclass
class Episodes:
    """Packs the episodes of a run while its records pass. folder: the report's; stamp: names the files in it."""

    folder: Path
    stamp: str
    chunks: list[str] = field(default_factory=list)  # packed, within the page; [] if they are files
    in_files: bool = False
    _open: list[str] = field(default_factory=list)  # episodes of the chunk that is being filled, as JSON
    _inside: int = 0  # characters of `chunks`
    _starts: list[int] = field(default_factory=list)  # number of the first episode of each chunk
    _columns: dict[str, list[Any]] = field(default_factory=dict)
    _codes: dict[str, dict[str, int]] = field(default_factory=lambda: {"role": {}, "group": {}, "reason": {"": 0}})

    def __len__(self) -> int:
        return len(self._columns.get("step", ()))

    def collect(self, records: Iterable[Record]) -> Iterator[Record]:
        """All records, as `joined` gives them, unchanged."""
        room = CHUNK
        for record in records:
            told = {"text": record["text"], "parts": record["parts"], "sampled": record["sampled"]}
            told |= {"all": record["tokens"], "judgements": record["judgements"], "tokens": record["rows"]}
            episode = json.dumps({name: value for name, value in told.items() if value != []})
            if self._open and len(episode) > room:
                self._close()
                room = CHUNK
            self._list(record)
            self._open.append(episode)
            room -= len(episode)
            yield record
        if self._open:
            self._close()

    def index(self) -> str:
        """The packed index of all episodes."""
        names = {"roles": "role", "groups": "group", "reasons": "reason"}
        tables = {plural: list(self._codes[name]) for plural, name in names.items()}
        return _packed(json.dumps({"starts": self._starts, **tables, **self._columns}, separators=(",", ":")))

    def remove_old(self) -> None:
        """Removes the files of earlier reports; call it when no page refers to them any more. Others that somebody has
        in such a folder stay."""
        for path in (self.folder / "episodes").glob("*.js"):
            if self.in_files and path.name.startswith(f"{self.stamp}-"):
                continue
            with suppress(FileNotFoundError), path.open("rb") as file:  # another process may be removing them
                if file.read(len(CALL)) == CALL.encode():
                    path.unlink()

    def _list(self, record: Record) -> None:
        """Adds an episode to the index."""
        reason = record["text"].get("rejected")
        named = {"role": record["role"], "group": record["group"], "reason": reason if isinstance(reason, str) else ""}
        values = {
            "step": record["step"],
            "reward": _rounded(record["reward"]),
            "advantage": _rounded(record["advantage"]),
            "trained": int(record["trained"]),
            "sampled": record["sampled"],
        }
        values |= {name: codes.setdefault(named[name], len(codes)) for name, codes in self._codes.items()}
        for name, value in values.items():
            self._columns.setdefault(name, []).append(value)

    def _close(self) -> None:
        """Packs the chunk that was filled; from `MOST_INSIDE` on, all chunks are files."""
        number = len(self._starts)
        self._starts.append(len(self) - len(self._open))
        packed, self._open = _packed(f"[{','.join(self._open)}]"), []
        self._inside += len(packed)
        if self.in_files:
            self._write(number, packed)
            return
        self.chunks.append(packed)
        if self._inside > MOST_INSIDE:
            for inside, held in enumerate(self.chunks):
                self._write(inside, held)
            self.chunks, self.in_files = [], True

    def _write(self, number: int, packed: str) -> None:
        with replaced(self.folder / "episodes" / f"{self.stamp}-{number}.js") as partial:
            partial.write_text(f'{CALL}{number}, "{packed}");\n', encoding="ascii")


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
