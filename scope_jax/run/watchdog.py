"""A thread that notices when training hangs: it names the process and the phase, and writes down all stacks."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Literal

import jax

from scope_jax.run.phases import Phases

Action = Literal["report", "exit"]
EXIT_CODE = 124  # of a process that the watchdog ends, as that of timeout(1)


class Watchdog:
    """Watches a training loop until it is stopped.

    phases: those of the loop. progress: any value that changes as long as the running phase gets on. limit: seconds
    without a change after which a phase counts as hanging. action: "report" says so once and goes on; "exit" also ends
    the process with EXIT_CODE, from which the run resumes as from any kill. run: the folder for the stacks.
    """

    def __init__(
        self, phases: Phases, progress: Callable[[], Hashable], limit: float, action: Action, run: Path
    ) -> None:
        self._phases, self._progress, self._limit, self._action, self._run = phases, progress, limit, action, run
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        seen, idle, reported = None, 0.0, False
        pause = min(self._limit / 4, 5.0)
        while not self._over.wait(pause):
            running = self._phases.running
            now = (running, self._progress())
            if running is None or now != seen:
                seen, idle, reported = now, 0.0, False
                continue
            idle += pause  # not by the clock, which goes on while the process is stopped
            if not reported and idle > self._limit:
                reported = True
                self._report(running.name, running.step, idle)

    def _report(self, phase: str, step: int, seconds: float) -> None:
        number = jax.process_index()
        stacks = self._run / f"stacks-{number}.txt"
        try:
            with stacks.open("a", encoding="utf-8") as file:
                file.write(f"step {step}, phase {phase}, {seconds:.0f} seconds without progress\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
            where = f"in {stacks}"
        except OSError as error:  # a full disk may be why nothing goes on
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
            where = f"above, as {stacks} cannot be written ({error.strerror})"
        ends = "; the process ends, and the same command resumes the run" if self._action == "exit" else ""
        sentence = (
            f"scope-jax: process {number} of {jax.process_count()} on {socket.gethostname()} has made no progress for "
            f"{seconds:.0f} seconds in the phase {phase} of step {step}; its stacks are {where}{ends}."
        )
        print(sentence, file=sys.stderr, flush=True)
        if self._action == "exit":
            os._exit(EXIT_CODE)
