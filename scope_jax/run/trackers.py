"""Experiment trackers that get a run's metrics beside metrics.jsonl: TensorBoard, Weights & Biases, trackio.

metrics.jsonl decides. When a process starts or resumes, a tracker gets the lines up to the resumed step before those of
new steps, as follows, so that no step is there twice and none is missing:

    tensorboard      event files in <run>/tensorboard, written anew from metrics.jsonl
    wandb, offline   <run>/wandb, written anew from metrics.jsonl; `wandb sync` uploads it
    wandb, online    the same W&B run is continued; steps that it has are not sent again. Another config in the same
                     folder is another W&B run
    trackio          the local database (TRACKIO_DIR); the run in it is written anew from metrics.jsonl

The libraries are optional; each is imported only if the card asks for it.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from scope_jax.config import Config
from scope_jax.errors import UserError

PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "trackio": "trackio"}
Line = Mapping[str, Any]  # a line of metrics.jsonl


class Tracker(Protocol):
    """Receives every line of metrics.jsonl in order."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def library(name: str) -> Any:
    """The module behind a tracker; raises UserError if it is not installed."""
    try:
        if name == "tensorboard":
            import tensorboardX as module
        elif name == "wandb":
            import wandb as module  # pyright: ignore[reportMissingImports]
        else:
            import trackio as module  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise UserError(
            f'log.trackers names "{name}", but the Python package {error.name} is not installed; '
            f"run pip install {PACKAGES[name]}, or remove it from log.trackers."
        ) from None
    return module


def numbers(line: Line) -> dict[str, float]:
    """The metrics of a line that have a finite value."""
    return {
        name: float(value)
        for name, value in line.items()
        if name != "step" and isinstance(value, (int, float)) and math.isfinite(value)
    }


class Trackers:
    """The trackers of a card. fingerprint: of its config, see `metrics`. Raises UserError if a library is missing."""

    def __init__(self, run: Path, cfg: Config, fingerprint: str) -> None:
        self._run, self._cfg, self._fingerprint = run, cfg, fingerprint
        self._modules = {name: library(name) for name in cfg.log.trackers}
        self._open: list[Tracker] = []

    def start(self, lines: Sequence[Line]) -> None:
        """Opens the trackers of a run that so far has these lines of metrics."""
        for name, module in self._modules.items():
            tracker = OPEN[name](module, self._run, self._cfg, self._fingerprint)
            self._open.append(tracker)
            for line in lines:
                tracker.log(line["step"], numbers(line))

    def log(self, line: Line) -> None:
        """Passes on one line of metrics.jsonl."""
        for tracker in self._open:
            tracker.log(line["step"], numbers(line))

    def close(self) -> None:
        """Finishes the files."""
        while self._open:
            self._open.pop().close()


def title(run: Path, cfg: Config) -> str:
    """The run's name in a tracker."""
    return cfg.log.name or run.resolve().name


def identity(run: Path) -> str:
    """A name for the run folder that every process derives alike."""
    return hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:12]


class TensorBoard:
    """Scalars in event files."""

    def __init__(self, module: Any, run: Path, cfg: Config, fingerprint: str) -> None:
        folder = run / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        self._writer = module.SummaryWriter(str(folder), flush_secs=30)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, in files or on its server."""

    def __init__(self, module: Any, run: Path, cfg: Config, fingerprint: str) -> None:
        online = cfg.log.wandb_mode == "online"
        if not online:
            shutil.rmtree(run / "wandb", ignore_errors=True)
        self._run = module.init(
            project=cfg.log.project,
            name=title(run, cfg),
            id=f"{identity(run)}-{fingerprint}",  # steps of another run in this folder are not those of this one
            dir=str(run),
            config=cfg.model_dump(mode="json"),
            mode=cfg.log.wandb_mode,
            resume="allow" if online else None,
            settings=module.Settings(silent=True, console="off"),
        )
        self._next = self._run.step if online else 0  # W&B has the steps before

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step >= self._next:
            self._run.log(dict(metrics), step=step, commit=True)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """A run in trackio's local database; its config names the run folder, which tells it from others of its name."""

    def __init__(self, module: Any, run: Path, cfg: Config, fingerprint: str) -> None:
        try:
            known = list(module.Api().runs(cfg.log.project))
        except ValueError:  # there is no such project yet
            known = []
        for one in known:
            if (one.config or {}).get("run_folder") == identity(run):
                one.delete()
        self._run = module.init(
            project=cfg.log.project,
            name=title(run, cfg),
            config=cfg.model_dump(mode="json") | {"run_folder": identity(run)},
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


OPEN: Mapping[str, Callable[[Any, Path, Config, str], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
}
