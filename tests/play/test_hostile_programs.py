"""Hostile programs (hostile_programs.txt) in a sandbox, several at a time: none gets out, none hangs, others go on."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scope_jax.config import SandboxSection
from scope_jax.environments.sandbox import Sandbox
from scope_jax.errors import UserError
from scope_jax.play.tool_calls import ToolError

PROGRAMS = Path(__file__).with_name("hostile_programs.txt").read_text(encoding="utf-8")
PRELUDE = PROGRAMS.split("=== prelude\n")[1].split("\n===")[0]


def programs(kind: str) -> dict[str, tuple[str, str]]:
    """Name: (what is expected, code)."""
    parts = re.findall(rf"^=== {kind} \| (.*?) \| ?(.*)\n((?:(?!===).*\n)*)", PROGRAMS, re.MULTILINE)
    return {name: (expected, code.strip("\n")) for name, expected, code in parts}


REFUSED, KILLED, HARMLESS = programs("refused"), programs("killed"), programs("harmless")
SHORT, LONG = 2.0, 20.0  # seconds: of programs that must be killed, and of those that end, on a busy machine


def descendants(pid: int) -> set[int]:
    """Processes that this one has started, and theirs; without those that have ended and wait to be noticed."""
    parents: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found, new = set(), [pid]
    while new:
        new = [child for one in new for child in parents.get(one, ())]
        found |= set(new)
    return found


class World:
    """What the programs are after, and what became of them."""

    def __init__(self, folder: Path) -> None:
        self.secret = folder / "secret.txt"
        self.secret.write_text("the canary sings")
        self.victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0{self.victim.pid}")
        self.abstract.listen()
        self.visits: list[object] = []
        threading.Thread(target=self._listen, daemon=True).start()
        self.outcomes: dict[str, tuple[str, float]] = {}
        self.left: list[set[int]] = []
        self.hidden = folder

    def _listen(self) -> None:
        while True:
            try:
                self.visits.append(self.listening.accept())
            except OSError:
                return

    def written(self, code: str) -> str:
        places = {"port": self.listening.getsockname()[1], "secret": self.secret, "run": self.secret.parent}
        for name, value in (places | {"pid": os.getpid(), "victim": self.victim.pid}).items():
            code = code.replace(f"{{{name}}}", str(value))
        return code

    def close(self) -> None:
        self.victim.kill()
        self.victim.communicate()
        self.listening.close()
        self.abstract.close()


def played(sandbox: Sandbox, code: str) -> tuple[str, float]:
    began = time.monotonic()
    try:
        text = sandbox.run(code)
    except ToolError as error:
        text = f"error: {error}"
    return text, time.monotonic() - began


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("run"))
    short = Sandbox(SandboxSection(seconds=SHORT, workers=4, tmp_mib=64), [world.hidden])
    long = Sandbox(SandboxSection(seconds=LONG, workers=4, tmp_mib=64), [world.hidden])
    try:
        try:
            short.start()
        except UserError as error:
            pytest.skip(str(error))
        long.start()
        jobs = {name: (short if "no result" in why else long, code) for name, (why, code) in KILLED.items()}
        jobs |= {name: (long, world.written(f"{PRELUDE}\n{code}")) for name, (_, code) in REFUSED.items()}
        jobs |= {name: (long, code) for name, (_, code) in HARMLESS.items()}
        with ThreadPoolExecutor(4) as pool:
            done = pool.map(lambda job: played(*job), jobs.values())
        world.outcomes = dict(zip(jobs, done, strict=True))
        world.outcomes["after"] = played(short, "6 * 7")
        world.left = [descendants(one.pid) for one in (short, long)]
        yield world
    finally:
        short.close()
        long.close()
        world.close()


def test_there_are_sixty_programs_and_more() -> None:
    assert len(REFUSED) + len(KILLED) + len(HARMLESS) > 130
    assert len(REFUSED | KILLED | HARMLESS) == len(REFUSED) + len(KILLED) + len(HARMLESS)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_program_tries_is_refused(world: World, name: str) -> None:
    text, _ = world.outcomes[name]
    lines = text.splitlines()
    assert lines and all(line.startswith("REFUSED") for line in lines), text


@pytest.mark.parametrize("name", KILLED)
def test_a_program_without_an_end_is_killed(world: World, name: str) -> None:
    text, seconds = world.outcomes[name]
    reasons = tuple(f"error: {reason}" for reason in KILLED[name][0].split(", "))
    assert text.startswith(reasons), text[:500]
    assert seconds < LONG + 10  # of a busy machine


@pytest.mark.parametrize("name", HARMLESS)
def test_a_program_ends_with_its_output(world: World, name: str) -> None:
    text, _ = world.outcomes[name]
    assert HARMLESS[name][0] in text and not text.startswith("error:"), text[:500]


def test_nothing_is_left_and_nothing_was_touched(world: World) -> None:
    assert world.outcomes["after"][0] == "42"
    assert [len(left) for left in world.left] == [1, 1]  # the process that forks workers
    assert world.visits == [] and world.victim.poll() is None
    assert world.secret.read_text() == "the canary sings" and list(world.hidden.iterdir()) == [world.secret]
