"""The folder of a run, and what it holds.

config.toml    the resolved card; the folder is tied to it, see `config_file`
inputs.json    checksums of the files that the run reads, see `inputs`
panels.json    the charts of a game in a file, which a report does not import
plan.json      what the card's plan said of this machine, for the report
*.jsonl, …     what the steps were, see `files`
checkpoints/   what the run goes on from, see `checkpoint`
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scope_jax.config import Config
from scope_jax.files import is_partial, replaced
from scope_jax.games import GAMES, find, load_card
from scope_jax.learner.types import Episode, Metrics
from scope_jax.models.files.seal import SEAL
from scope_jax.run.config_file import differences, fingerprint, to_toml
from scope_jax.run.files import (
    EPISODES,
    EXAMS,
    FILES,
    JUDGEMENTS,
    METRICS,
    TIMELINE,
    TOKENS,
    LineWriter,
    RunError,
    read_records,
    write_json,
)
from scope_jax.run.lines import Extent, Extents, Record, read
from scope_jax.run.processes import by_one, writes
from scope_jax.run.records import TokenBytes, episode_record, judgement_records, question_records, token_records
from scope_jax.run.trackers import Trackers
from scope_jax.text.toml import with_sum

PANELS = "panels.json"


def missing(run: Path) -> list[str]:
    """One sentence for each file of the run whose end is missing: it ends with an incomplete line, or had more lines at
    the newest checkpoint. Raises DamagedFile."""
    sentences = []
    step, extents = _newest_extents(run)
    for name in FILES:
        path = run / name
        if path.is_file():
            lines = sum(1 for _ in read(path, FILES[name].remedy))
            if name in extents and lines < extents[name][0]:
                sentences.append(
                    f"{path} has {lines} lines, but had {extents[name][0]} at the checkpoint of step {step}: others "
                    "are gone, or the run goes on from an earlier one."
                )
    for path in (run / METRICS, run / EPISODES):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":
                    sentences.append(f"{path} ends with an incomplete line, as after a kill; the line is ignored.")
    return sentences


def _newest_extents(run: Path) -> tuple[int, Extents]:
    """(step, extents) that the newest checkpoint has recorded; (0, {}) if it has not, or is damaged."""
    by_step = {path.parent.name.partition("-")[0]: path.parent for path in run.glob(f"checkpoints/*/{SEAL}")}
    step = max((int(step) for step in by_step if step.isdecimal()), default=0)
    try:
        return step, json.loads((by_step[str(step)] / "meta" / "metadata").read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0, {}


def begun(run: Path) -> bool:
    """True if the run has written metrics, episodes or a checkpoint."""
    files = [run / name for name in (METRICS, EPISODES)]
    return any(path.is_file() and path.stat().st_size for path in files) or any((run / "checkpoints").glob("*"))


class RunFolder:
    """Writes the files of one run folder, which one run at a time may use; of several processes, the first does.

    Raises RunError if the folder is not a run, or belongs to a run with another config or to a running process. A run
    that has written only its config has not begun: another run may use its folder.
    """

    def __init__(self, run: Path, cfg: Config) -> None:
        self.run = run
        self._writers = {name: LineWriter(run / name) for name, kind in FILES.items() if kind.cut}
        self.token_bytes: TokenBytes | None = None  # None: tokens are not recorded
        self._trackers: Trackers | None = None  # only in the process that writes
        self._close = lambda: None
        self._save_every = cfg.train.save_every  # the larger one of this process and of the one before
        by_one(lambda: self._open(cfg))

    def _open(self, cfg: Config) -> None:
        run, config = self.run, self.run / "config.toml"
        self._trackers = Trackers(run, cfg, fingerprint(cfg))
        if run.exists() and not run.is_dir():
            raise RunError(f"the run folder {run} is a file; give a folder with --run.")
        if (
            run.is_dir()
            and not config.is_file()
            and not any((run / "checkpoints").glob(f"*/{SEAL}"))  # which know the config that they belong to
            and any(path.name not in (".lock", ".token") and not is_partial(path) for path in run.iterdir())
        ):
            raise RunError(
                f"the folder {run} is not empty and is not a run (no config.toml); give another folder with --run."
            )
        run.mkdir(parents=True, exist_ok=True)
        self._lock()
        if config.is_file() and begun(run):
            before = load_card(config)
            in_files = all(card.system.endswith(".py") for card in (before, cfg))  # which may be moved
            if before.system != cfg.system and not in_files:
                raise RunError(
                    f"the run in {run} is of the game {before.system!r}, and the card's system is {cfg.system!r}; give "
                    "another folder with --run."
                )
            self._save_every = max(self._save_every, before.train.save_every)
            if different := differences(before, cfg):
                branch = (
                    f" that starts from its state: --run OTHER --from {run}"
                    if any((run / "checkpoints").glob(f"*/{SEAL}"))
                    else ""
                )
                raise RunError(
                    f"the run in {run} was started with different values of {different}; "
                    f"use the same values, or another run folder{branch}."
                )
        with replaced(config) as partial:
            partial.write_text(with_sum(to_toml(cfg)), encoding="utf-8")
        if cfg.system not in GAMES:
            with replaced(run / PANELS) as partial:
                write_json(partial, {"panels": [asdict(panel) for panel in find(cfg.system).panels]})

    def _lock(self) -> None:
        handle = os.open(self.run / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        self._close = weakref.finalize(self, os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close()
            raise RunError(f"another process is using {self.run}; wait for it or use another run folder.") from None

    def close(self) -> None:
        """Finishes the trackers and unlocks the folder, which also happens when the process ends."""
        if self._trackers is not None:
            self._trackers.close()
        self._close()

    def check_begun(self, done: int) -> None:
        """Raises RunError if a run that starts after step `done`, as it has no checkpoint, has been so far that one was
        complete: while the next is played one may still be written, but not after that."""

        def check() -> None:
            last = max((line["step"] for line in self._lines()), default=done)
            if last > done + 2 * self._save_every:
                raise RunError(
                    f"the run in {self.run} has metrics up to step {last} but no checkpoint; put its checkpoints back, "
                    "or remove the folder to start anew."
                )

        by_one(check)

    def rewind(self, step: int | None, extents: Extents | None = None) -> list[str]:
        """Removes all lines after `step`, and an incomplete last line; None, when a run restarts: all lines.

        extents: of the files at the checkpoint of this step, if they are known. Trackers start with the lines that are
        left. Returns a sentence for each file that lacks lines, and one if the lines of the run have no check sums.
        Raises DamagedFile for a line that would stay, but is not as it was written.
        """
        return by_one(lambda: self._rewind(step, extents or {}))

    def _rewind(self, step: int | None, extents: Extents) -> list[str]:
        known = {name: Extent(*extents[name]) for name in self._writers if name in extents}
        said = [writer.cut(step, known.get(name)) for name, writer in self._writers.items()]
        left = list(read_records(self.run / METRICS))
        if self._trackers is not None:
            self._trackers.start(left)
        if not extents and step is not None and all(line["step"] != step for line in left):
            said.append(
                f"{self.run / METRICS} has no line of step {step}; the run goes on without the lines that are gone"
            )
        if left and not self._writers[METRICS].has_sums:
            said.append(
                f"the files of {self.run} have no check sums, as an earlier version began them: damage to their lines "
                "so far may go unnoticed; the lines from now on have sums"
            )
        return list(filter(None, said))

    def extents(self) -> dict[str, list[int]]:
        """How far the files go, [lines, sum of the last], by name; {} in a process that does not write."""
        return {name: writer.extent.plain() for name, writer in self._writers.items()} if writes() else {}

    def metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Appends the metrics of one step; returns when they are on disk."""
        if not writes():
            return
        line = _plain({"step": step, **metrics})
        self._writers[METRICS].add([line])
        if self._trackers is not None:
            self._trackers.log(line)

    def episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """Appends one line per episode of a step, and judgements and tokens of it; returns when they are on disk."""
        if not writes():
            return
        self._writers[JUDGEMENTS].add(judgement_records(step, episodes))
        if self.token_bytes is not None:
            self._writers[TOKENS].add(token_records(step, episodes, self.token_bytes))
        self._writers[EPISODES].add(_plain(episode_record(step, episode)) for episode in episodes)

    def timeline(self, step: int, kind: str, began: float, ended: float) -> None:
        """Appends when something of a step began and ended (`files.BAR`), in seconds since the epoch."""
        if writes():
            self._writers[TIMELINE].add([{"step": step, "kind": kind, "began": began, "ended": ended}])

    def exams(self, step: int, records: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Appends the measures of an evaluation's questions, by name of the set; returns when they are on disk."""
        if writes():
            self._writers[EXAMS].add(question_records(step, records))

    def evaluated(self, step: int) -> bool:
        """True if an evaluation after this step was recorded."""
        return by_one(lambda: any(_scores(line) for line in self._lines() if line["step"] == step))

    def before_after(self) -> dict[str, Metrics]:
        """{"before", "after"}: the evaluation metrics (eval/...) of the first and the last step that has any."""
        return by_one(self._before_after)

    def _before_after(self) -> dict[str, Metrics]:
        scores = [score for line in self._lines() if (score := _scores(line))]
        return {"before": scores[0] if scores else {}, "after": scores[-1] if scores else {}}

    def _lines(self) -> Iterator[Record]:
        return read_records(self.run / METRICS)


def _scores(line: Mapping[str, Any]) -> Metrics:
    return {key: value for key, value in line.items() if key.startswith("eval/")}


def _plain(value: Any) -> Any:
    """JSON data: numpy and jax scalars become numbers, non-finite numbers become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    number = value.item() if hasattr(value, "item") else value
    return None if isinstance(number, float) and not math.isfinite(number) else number
