"""A participant's process, as the orchestrator sees it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scope_jax.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
# Every participant decides itself how many threads it uses, and sees no packages but its environment's and this folder.
DROPPED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "XLA_FLAGS", "PYTHONPATH", "VIRTUAL_ENV")
ADDED = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "WANDB_MODE": "disabled",
}


# Every library's own way to leave out the instructions of AVX-512, so that a newer machine stands in for an older one.
AVX2 = {
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


def environment(avx2: bool = False) -> dict[str, str]:
    """Environment variables of a participant; avx2: without the instructions of AVX-512."""
    inherited = {name: value for name, value in os.environ.items() if name not in DROPPED}
    return inherited | ADDED | (AVX2 if avx2 else {})


class Client:
    """One long-lived process that speaks the protocol of benchmarks.peers.worker.

    Raises UserError, with the last lines of the process's log, if it cannot be started, ends, or reports an error.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, avx2: bool = False) -> None:
        self.name, self._log = name, log
        try:
            with log.open("wb") as errors:
                self._process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=environment(avx2),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    encoding="utf-8",
                )
        except OSError as error:
            raise UserError(f"{name}: {command[0]} cannot be started ({error.strerror}).") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Sends an order and waits for the reply."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended, and may have said why
            self._process.stdin.write(json.dumps({"do": do} | order) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise UserError(f"{self.name} ended while it was asked to {do}; the end of its log:\n{self._tail()}")
        reply = json.loads(line)
        if "error" in reply:
            raise UserError(f"{self.name} could not {do}: {reply['error']}; the end of its log:\n{self._tail()}")
        return reply

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
