"""Runs training processes, several at a time, each pinned to its own cores; finished runs are not repeated.

    <out>/<card>/seed-<n>/        the run folder
    <out>/<card>/seed-<n>.log     output of the process
    <out>/<card>/seed-<n>.done    written on success: the card it was trained with, the commit of the code

A killed process resumes from its last checkpoint when the same command is given again, as `scope-jax train` does. Cores
are pinned on Linux only; on other systems the processes share all cores.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scope_jax.errors import UserError
from scope_jax.games import load_card
from scope_jax.run.config_file import to_toml

TRAIN = (sys.executable, "-m", "scope_jax", "train")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
PAUSE = 0.2  # seconds between two polls of the processes


@dataclass(frozen=True)
class Job:
    """One card with one seed, and the folder of its run."""

    card: Path
    seed: int
    run: Path
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For messages: "ssp/atlas seed 2"."""
        return f"{card_name(self.card)} seed {self.seed}"

    @property
    def log(self) -> Path:
        """Output of the process, over all its starts."""
        return self.run.with_suffix(".log")

    @property
    def mark(self) -> Path:
        """The file that exists once the run has succeeded."""
        return self.run.with_suffix(".done")

    @property
    def sets(self) -> tuple[str, ...]:
        """The overrides of this run's card."""
        return (*self.overrides, f"seed={self.seed}")


def card_name(card: Path) -> str:
    """The card's path without `configs/` and `.toml`."""
    parts = card.with_suffix("").parts
    return "/".join(parts[parts.index("configs") + 1 :]) if "configs" in parts else card.stem


def jobs(cards: Sequence[Path], seeds: Sequence[int], out: Path, overrides: Sequence[str] = ()) -> list[Job]:
    """Every card with the first seed, then with the second, and so on: an interrupted series has complete pairs.

    Raises UserError for two cards of one name, and CardError for a card that cannot be used.
    """
    names = [card_name(card) for card in cards]
    seeds = list(dict.fromkeys(seeds))
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"two cards have the name {min(twice)}; give each card once, or rename one.")
    made = [
        Job(card, seed, out / name / f"seed-{seed}", tuple(overrides))
        for seed in seeds
        for card, name in zip(cards, names, strict=True)
    ]
    for job in made:
        load_card(job.card, job.sets)
    return made


def settled(job: Job) -> str:
    """16 hex digits of a hash of the whole card as this job resolves it."""
    return hashlib.sha256(to_toml(load_card(job.card, job.sets)).encode()).hexdigest()[:16]


def done(job: Job) -> bool:
    """True if the run has succeeded with the card as it is now."""
    return job.mark.is_file() and json.loads(job.mark.read_text(encoding="utf-8"))["card"] == settled(job)


def commit_of(job: Job) -> str:
    """The commit of the code that finished a run; "unknown" outside a checkout."""
    return json.loads(job.mark.read_text(encoding="utf-8"))["commit"]


def shares(cores: Sequence[int], workers: int) -> list[tuple[int, ...]]:
    """The cores in equal shares, one per worker; the remainder is unused. Raises UserError if there are too few."""
    if not 1 <= workers <= len(cores):
        raise UserError(f"{workers} workers are more than the {len(cores)} cores; use --workers 1 to {len(cores)}.")
    size = len(cores) // workers
    return [tuple(cores[worker * size : (worker + 1) * size]) for worker in range(workers)]


def run_all(
    waiting: Sequence[Job], workers: int, say: Callable[[str], None], train: Sequence[str] = TRAIN
) -> dict[Job, str]:
    """Runs all unfinished jobs, at most `workers` at a time; returns the reason of each failure by job.

    A failing job does not stop the others. A signal that ends this process is forwarded to the running jobs, and their
    exit is awaited.
    """
    places = deque(shares(_cores(), workers))
    queue, failed = deque(waiting), {}
    busy: dict[subprocess.Popen[bytes], tuple[Job, tuple[int, ...], str]] = {}
    try:
        while queue or busy:
            while queue and places:
                job = queue.popleft()
                if done(job):
                    say(f"{job.name}: done before")
                    continue
                cores = places.popleft()
                busy[_start(job, cores, train)] = (job, cores, _commit())
                say(f"{job.name}: started on {len(cores)} core(s), log {job.log}")
            for process in [process for process in busy if process.poll() is not None]:
                job, cores, commit = busy.pop(process)
                places.append(cores)
                if reason := _ended(job, process.returncode, commit):
                    failed[job] = reason
                say(f"{job.name}: {reason or 'done'}")
            if busy:
                time.sleep(PAUSE)
    finally:
        _stop(list(busy))
    return failed


def _cores() -> list[int]:
    pinned = hasattr(os, "sched_getaffinity")
    return sorted(os.sched_getaffinity(0)) if pinned else list(range(os.cpu_count() or 1))


def _start(job: Job, cores: Sequence[int], train: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts the job's process, pinned to these cores from its first thread on, in a session of its own, so that Ctrl-C
    at the terminal reaches it once, through this process."""
    job.run.parent.mkdir(parents=True, exist_ok=True)
    job.mark.unlink(missing_ok=True)
    sets = [part for override in job.sets for part in ("--set", override)]
    own = dict.fromkeys(THREADS, str(len(cores))) | {"TOKENIZERS_PARALLELISM": "false"}
    compiled = {"JAX_COMPILATION_CACHE_DIR": str(Path(".cache/jax").resolve())}  # shared by all runs
    before = _bind(cores)
    try:
        with job.log.open("ab") as log:
            return subprocess.Popen(
                [*train, str(job.card), "--run", str(job.run), *sets],
                env=compiled | dict(os.environ) | own,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    finally:
        _bind(before)


def _bind(cores: Sequence[int]) -> Sequence[int]:
    """Pins this thread, and what it starts, to these cores; returns the cores it was pinned to before."""
    before = _cores()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    return before


def _ended(job: Job, code: int, commit: str) -> str | None:
    """Marks a run that succeeded and returns None; returns the reason otherwise."""
    if code == 0:
        partial = job.mark.with_suffix(".partial")
        partial.write_text(json.dumps({"card": settled(job), "commit": commit}), encoding="utf-8")
        os.replace(partial, job.mark)
        return None
    lines = job.log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
    return f"failed with exit code {code}: {last.removeprefix('scope-jax: ')}"


def _commit() -> str:
    """The commit of the checkout in the current folder, with "-dirty" appended if files differ from it; documents, into
    which tables are written, may."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)

    commit = git("rev-parse", "--short", "HEAD").stdout.strip()
    if not commit:
        return "unknown"
    return commit if git("diff", "--quiet", "HEAD", "--", ":/", ":!/docs").returncode == 0 else f"{commit}-dirty"


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Sends SIGTERM, on which a run finishes the checkpoint that is being written."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()
