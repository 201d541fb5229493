"""The files a run writes: its config, one line of metrics per step, one line per episode.

    <run>/config.toml   the resolved card; a run folder is tied to it
    <run>/inputs.json   checksums of the files that it reads, see `inputs`
    <run>/metrics.jsonl {"step": 3, "solver/reward": 0.4, ...}
    <run>/episodes.jsonl {"step": 3, "role": "solver", "reward": 1.0, "text": {...}, ...}
    <run>/judgements.jsonl.gz  judge replies about the episodes, see `judgements`
    <run>/tokens.jsonl.gz      their tokens with log-probs, if asked for, see `tokens`
    <run>/exams.jsonl.gz       measures of every exam question, see `answers`

The lines of a step are on disk before its checkpoint, and `RunLog.rewind` removes lines after the checkpoint from which
a run resumes: after any kill, the files end up the same as without it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomlkit

from scope_jax.config import Config, base
from scope_jax.errors import UserError, writing
from scope_jax.games import GAMES, find, load_card
from scope_jax.learner.types import Episode, Metrics
from scope_jax.models.seal import SEAL
from scope_jax.run import answers, judgements, tokens
from scope_jax.run import records as run_records
from scope_jax.run.processes import by_one, writes
from scope_jax.run.trackers import Trackers
from scope_jax.sharding.files import is_partial, replaced

# Keys that may differ between two processes of one run: they control duration and frequency, not what is computed.
FREE = (
    "train.steps",
    "train.watch",
    "train.save_every",
    "train.keep",
    "train.keep_iterations",
    "train.compilation_cache",
    "train.stall_timeout",
    "train.stall_action",
    "train.stop_grace",
    "train.spool",
    "evaluate.every",
    "sandbox.isolation",
    "sandbox.endpoint",
    "sandbox.workers",
    "sandbox.retries",
    "sandbox.retry_delay",
    "log",
    "launch",
    "serve",
)
PANELS = "panels.json"  # the charts of a game in a file, which a report does not import
# The address of an external model or search server and the request settings may differ, too, but not the model.
PLACES = ("judge", "retrieval", "endpoint")  # tables with these names, at any level
ASKING = ("url", "api_key_env", "timeout", "retries", "retry_delay", "concurrency")


class RunError(UserError):
    """A run folder cannot be used; the message is one sentence with the folder and the remedy."""


# ----------------------------------------------------------------------------------------------------------- config
def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested tables by their keys joined with dots; an empty table is a value."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _movable(cfg: Config, relative: Callable[[Path], bool]) -> dict[str, Any]:
    """The config as plain data that stays true when `base.HOME` is moved: without prompts of games that are the
    defaults, and with those paths inside it relative to it for which `relative` holds."""

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: moved(item) for key, item in value.items()}
        if isinstance(value, list):
            return [moved(item) for item in value]
        inside = isinstance(value, str) and value.startswith(f"{base.HOME}/") and relative(Path(value))
        return value.removeprefix(f"{base.HOME}/") if inside else value

    table = moved(cfg.model_dump(mode="json"))
    options = getattr(cfg, cfg.game_table)
    if "prompts" in type(options).model_fields and not options.changed("prompts"):
        del table[cfg.game_table]["prompts"]
    return table


def _tied(cfg: Config) -> dict[str, Any]:
    """The keys of the config that must not change within a run, with their values."""
    flat = flattened(_movable(cfg, lambda path: True))
    return {key: value for key, value in flat.items() if not is_free(cfg, key)}


def is_free(cfg: Config, key: str) -> bool:
    """True for a key of a card that may differ between two processes of one run."""
    repeats = find(cfg.system).iterations is not None  # their number ends a run, and may be raised
    free = (*FREE, *((f"{cfg.game_table}.iterations",) if repeats else ()))
    *_, table, name = ("", *key.split("."))
    asking = table in PLACES and name in ASKING
    return asking or any(key == name or key.startswith(name + ".") for name in free)


def fingerprint(cfg: Config) -> str:
    """16 hex digits that are equal for two configs if and only if one may continue the other's run."""
    return hashlib.sha256(json.dumps(_tied(cfg), sort_keys=True).encode()).hexdigest()[:16]


def differing(a: Config, b: Config) -> list[str]:
    """Keys whose values prevent `b` from continuing a run of `a`."""
    left, right = _tied(a), _tied(b)
    return sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key))


def _with_values(value: Any) -> Any:
    """The value without the keys that have none, which TOML cannot say."""
    if isinstance(value, Mapping):
        return {key: _with_values(item) for key, item in value.items() if item is not None}
    return [_with_values(item) for item in value] if isinstance(value, list) else value


def as_toml(table: Mapping[str, Any]) -> str:
    """Plain data as a card; keys without a value are left out."""
    return tomlkit.dumps(_with_values(table))


def to_toml(cfg: Config) -> str:
    """The config as a card that may be read with another checkout."""
    return as_toml(_movable(cfg, Path.exists))


# -------------------------------------------------------------------------------------------------------------- log
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


Parsed = Callable[[bytes, str], dict[str, Any]]  # (line, where it is) -> its record


def _whole(path: Path, parsed: Parsed = run_records.parsed) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """(line, its record) of each line, up to the first incomplete one."""
    with path.open("rb") as file:
        for place, line in run_records.lines(file, path):
            if not line.endswith(b"\n"):
                return
            yield line, parsed(line, place)


def records(path: Path, parsed: Parsed = run_records.parsed) -> Iterator[dict[str, Any]]:
    """The records of a metrics or episodes file, none if there is no file yet; an incomplete last line is ignored.

    parsed: makes the record of a line, of one of the functions of `run.records`. Raises UserError for a damaged line.
    """
    if path.is_file():
        for _, record in _whole(path, parsed):
            yield record


def read_lines(path: Path, parsed: Parsed = run_records.parsed) -> list[dict[str, Any]]:
    """All `records` of a file."""
    return list(records(path, parsed))


def torn(run: Path) -> list[str]:
    """One sentence for each file of the run that ends with an incomplete line."""
    found = []
    for path in (run / "metrics.jsonl", run / "episodes.jsonl"):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":
                    found.append(f"{path} ends with an incomplete line, as after a kill; the line is ignored.")
    return found


def record_of(step: int, episode: Episode) -> dict[str, Any]:
    return {
        "step": step,
        "role": episode.role,
        "policy": episode.policy,
        "group": episode.group,
        "reward": episode.reward,
        "parts": episode.parts,
        "advantage": episode.advantage,
        **({"credit": credit} if (credit := episode.credit) else {}),
        "trained": episode.trained,
        "tokens": sum(len(datum.ids_T) for datum in episode.datums),
        "sampled": sum(int(datum.sampled_T.sum()) for datum in episode.datums),
        "text": episode.text,
    }


def begun(run: Path) -> bool:
    """True if the run has written metrics, episodes or a checkpoint."""
    files = [run / name for name in ("metrics.jsonl", "episodes.jsonl")]
    return any(path.is_file() and path.stat().st_size for path in files) or any((run / "checkpoints").glob("*"))


class RunLog:
    """Writes the log files of one run folder, which one run at a time may use; of several processes, the first does.

    Raises RunError if the folder is not a run, or belongs to a run with another config or to a running process. A run
    that has written only its config has not begun: another run may use its folder.
    """

    def __init__(self, run: Path, cfg: Config) -> None:
        self.run = run
        self._metrics = run / "metrics.jsonl"
        self._episodes = run / "episodes.jsonl"
        self._judgements = run / judgements.NAME
        self._tokens = run / tokens.NAME
        self._exams = run / answers.NAME
        self.token_bytes: tokens.TokenBytes | None = None  # None: tokens are not recorded
        self._sizes: dict[Path, int] = {}  # of the files as this process left them
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
            if keys := differing(before, cfg):
                raise RunError(
                    f"the run in {run} was started with different values of {', '.join(keys)}; "
                    "use the same values or another run folder."
                )
        with replaced(config) as partial:
            partial.write_text(to_toml(cfg), encoding="utf-8")
        if cfg.system not in GAMES:
            with replaced(run / PANELS) as partial:
                partial.write_text(json.dumps([asdict(panel) for panel in find(cfg.system).panels]), encoding="utf-8")

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
            last = max((line["step"] for line in read_lines(self._metrics)), default=done)
            if last > done + 2 * self._save_every:
                raise RunError(
                    f"the run in {self.run} has metrics up to step {last} but no checkpoint; put its checkpoints back, "
                    "or remove the folder to start anew."
                )

        by_one(check)

    def rewind(self, step: int | None) -> str:
        """Removes all lines after `step`, and an incomplete last line; None, when a run restarts: all lines.

        Trackers start with the lines that are left. Returns a sentence if the metrics of `step` are not among them, ""
        otherwise.
        """
        return by_one(lambda: self._rewind(step))

    def _rewind(self, step: int | None) -> str:
        for path in (self._metrics, self._episodes):
            if path.is_file():
                _cut(path, step)
        for path in (self._judgements, self._tokens, self._exams):
            if path.is_file():
                run_records.cut_steps(path, step)
        files = (self._metrics, self._episodes, self._judgements, self._tokens, self._exams)
        self._sizes = {path: _size(path) for path in files}
        left = read_lines(self._metrics)
        if self._trackers is not None:
            self._trackers.start(left)
        if step is None or any(line["step"] == step for line in left):
            return ""
        return f"{self._metrics} has no line of step {step}; the run goes on without the lines that are gone"

    @contextmanager
    def _adding(self, path: Path) -> Iterator[Path]:
        """A file that is added to. Raises RunError if it is not as this process left it."""
        if self._sizes.get(path) not in (None, size := _size(path)):
            raise RunError(
                f"{path} was removed or changed while the run wrote it ({self._sizes[path]} bytes, now {size}); put it "
                "back, then run the same command again, which otherwise goes on without the lines that are gone."
            )
        yield path
        self._sizes[path] = _size(path)

    def metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Appends the metrics of one step; returns when they are on disk."""
        if not writes():
            return
        line = _plain({"step": step, **metrics})
        with self._adding(self._metrics) as path:
            _append(path, [line])
        if self._trackers is not None:
            self._trackers.log(line)

    def episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """Appends one line per episode of a step, and judgements and tokens of it; returns when they are on disk."""
        if not writes():
            return
        with self._adding(self._judgements) as path:
            judgements.append(path, step, episodes)
        if self.token_bytes is not None:
            with self._adding(self._tokens) as path:
                tokens.append(path, step, episodes, self.token_bytes)
        with self._adding(self._episodes) as path:
            _append(path, [record_of(step, episode) for episode in episodes])

    def exams(self, step: int, records: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Appends the measures of an evaluation's questions, by name of the set; returns when they are on disk."""
        if writes():
            with self._adding(self._exams) as path:
                answers.append(path, step, records)

    def evaluated(self, step: int) -> bool:
        """True if an evaluation after this step was recorded."""
        return by_one(lambda: any(_scores(line) for line in read_lines(self._metrics) if line["step"] == step))

    def before_after(self) -> dict[str, Metrics]:
        """{"before", "after"}: the evaluation metrics (eval/...) of the first and the last step that has any."""
        return by_one(self._before_after)

    def _before_after(self) -> dict[str, Metrics]:
        scores = [score for line in read_lines(self._metrics) if (score := _scores(line))]
        return {"before": scores[0] if scores else {}, "after": scores[-1] if scores else {}}


def _scores(line: Mapping[str, Any]) -> Metrics:
    return {key: value for key, value in line.items() if key.startswith("eval/")}


def _append(path: Path, records: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(_plain(record), ensure_ascii=False) + "\n" for record in records)
    with writing(path), path.open("ab") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _cut(path: Path, step: int | None) -> None:
    """Truncates at the first line that is after `step` or incomplete; steps never decrease within a file."""
    end = 0
    if step is not None:
        for line, record in _whole(path):
            if record["step"] > step:
                break
            end += len(line)
    with path.open("rb+") as file:
        file.truncate(end)
        os.fsync(file.fileno())
