"""Whoever reaches the coordinator's port without the run's key can neither take part in the run nor run anything."""

from __future__ import annotations

import json
import os
import pickle
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from scope_jax.multihost import distributed, signing
from scope_jax.multihost.distributed import Place
from scope_jax.multihost.watch import BEAT

ROOT = Path(__file__).parents[2]
KEY = "0123456789abcdef0123456789abcdef"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Runs:
    """Makes a folder when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = str(place)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.place,)


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    all_of_them: list[subprocess.Popen[str]] = []
    yield all_of_them
    for process in all_of_them:
        process.kill()
        process.communicate()


def started(script: str, *words: str, folder: Path = ROOT, **variables: str) -> subprocess.Popen[str]:
    own = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **variables}
    return subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name(script)), *words],
        env={name: value for name, value in os.environ.items() if name != signing.KEY} | own,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def joining(number: int, port: int, key: str, folder: Path, *words: str) -> subprocess.Popen[str]:
    place = {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(number)}
    return started("joining.py", *words, folder=folder, **place, **{signing.KEY: key})


def stranger(port: int, texts: dict[str, str], data: dict[str, str]) -> subprocess.Popen[str]:
    return started("stranger.py", str(port), json.dumps(texts), json.dumps(data))


def tell(processes: Sequence[subprocess.Popen[str]], lines: str) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(lines)
        process.stdin.flush()


def listening(port: int) -> set[str]:
    """The addresses at which something listens on the port."""
    found = set()
    for table, width in (("tcp", 8), ("tcp6", 32)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            address, number = line.split()[1].split(":")
            if int(number, 16) == port and line.split()[3] == "0A":
                found.add(address[:width])
    return found


LOOPBACK = {"0100007F", "0" * 16 + "FFFF00000100007F", "0" * 24 + "01000000"}  # 127.0.0.1 and ::1 in /proc/net


@pytest.mark.parametrize(("key", "said"), [(None, "is not set"), (KEY[:-1], "has 31 characters")])
def test_several_processes_without_a_key_are_refused(key: str | None, said: str, monkeypatch) -> None:
    monkeypatch.delenv(signing.KEY, raising=False)
    if key is not None:
        monkeypatch.setenv(signing.KEY, key)
    with pytest.raises(ValueError, match=f"SCOPE_JAX_RUN_KEY {said}"):
        distributed.start(Place(f"localhost:{free_port()}", 0, 2))
    assert distributed.count() == 1


def test_a_message_has_one_text_one_place_and_one_key() -> None:
    message = signing.signed("out of memory", "watch/over/1", b"key")
    assert signing.verified(message, "watch/over/1", b"key") == "out of memory"
    for place, key in (("watch/over/2", b"key"), ("watch/over/1", b"other"), ("watch/over/1", b"")):
        assert signing.verified(message, place, key) is None
    for other in ("", "out of memory", message + "!", message.replace("of", "on"), "é" + message, " " + message):
        assert signing.verified(other, "watch/over/1", b"key") is None
    assert signing.signed("b", "a ", b"key") != signing.signed(" b", "a", b"key")


def test_with_another_key_no_process_starts(tmp_path: Path, processes) -> None:
    port = free_port()
    processes += [joining(number, port, key, tmp_path) for number, key in enumerate((KEY, KEY[::-1]))]
    for number, process in enumerate(processes):
        output, said = process.communicate(timeout=120)
        assert process.returncode == 2 and not output, said
        (sentence,) = [line for line in said.splitlines() if line.startswith("scope-jax:")]
        assert f"process {1 - number} says does not bear the key" in sentence and "Traceback" not in said


def test_a_stranger_in_the_place_of_a_process_runs_nothing(tmp_path: Path, processes) -> None:
    """It connects as process 1, and puts a pickle that makes a folder wherever process 1 would put something."""
    port = free_port()
    processes.append(joining(0, port, KEY, tmp_path))
    payload = pickle.dumps(Runs(tmp_path / "ran"))
    heads = {"size": str(len(payload)), "head": f"{len(payload)} {signing.checksum(payload)}"}
    texts = {f"gather/{kind}/{number}/1": head for kind, head in heads.items() for number in range(3)}
    data = {f"gather/data/{number}/1": payload.hex() for number in range(3)}
    processes.append(stranger(port, texts, data))
    output, said = processes[0].communicate(timeout=120)
    assert processes[0].returncode == 2 and not output
    assert "process 1 says does not bear the key" in said and "Traceback" not in said
    assert not (tmp_path / "ran").exists()


def test_texts_of_strangers_neither_end_a_run_nor_are_shown(tmp_path: Path, processes) -> None:
    """The coordinator listens at its own address only, and nothing of the current folder is imported."""
    (tmp_path / "jax.py").write_text("raise SystemExit('of the folder')")
    port = free_port()
    processes += [joining(number, port, KEY, tmp_path) for number in range(2)]
    assert [process.stdout.readline() for process in processes] == ["joined\n"] * 2
    assert listening(port) and listening(port) <= LOOPBACK
    keys = ("watch/over/1", "watch/over/0", "watch/over/x", "watch/alive/x/beat")
    tell(processes[1:], json.dumps(dict.fromkeys(keys, "\x1b[2Jwas stopped by me")) + "\n")
    time.sleep(3 * BEAT)
    assert [process.poll() for process in processes] == [None, None]
    tell(processes[:1], "{}\n")
    tell(processes, "\n")
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [output for output, _ in outputs] == ["[0, 1]\n"] * 2
    assert not any("stopped by me" in said for _, said in outputs)


def test_where_the_coordinator_listens(monkeypatch) -> None:
    """A name that its host has for itself only would be found by no other."""
    known = {"node0": ["10.0.0.5"], "debian": ["127.0.1.1"], "localhost": ["127.0.0.1", "::1"]}

    def resolved(host: str, port: Any) -> list[Any]:
        if host not in known and not re.fullmatch(r"[\d.]+|[\da-f:]+", host):
            raise OSError("unknown")
        return [(None, None, None, "", (each, 0)) for each in known.get(host, [host])]

    monkeypatch.setattr(distributed.socket, "getaddrinfo", resolved)
    for address in ("node0:12", "localhost:12", "127.0.0.1:12", "[::1]:12", "10.0.0.5:12", "unknown:12"):
        assert distributed._listening(Place(address, 0, 2)) == address
    assert distributed._listening(Place("debian:12", 0, 2, bind="10.0.0.5")) == "10.0.0.5:12"
    assert distributed._listening(Place("debian:12", 0, 2, bind="10.0.0.5:13")) == "10.0.0.5:13"
    assert distributed._listening(Place("debian:12", 0, 2, bind="[fd00::5]:13")) == "[fd00::5]:13"
    with pytest.raises(ValueError, match=r"host debian is 127\.0\.1\.1 on itself.*set JAX_COORDINATOR_BIND_ADDRESS"):
        distributed._listening(Place("debian:12", 0, 2))


@pytest.mark.parametrize("address", ["0.0.0.0:12", "[::]:12", "0:0:0:0:0:0:0:0:12"])
def test_an_address_that_is_no_host_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="give host:port"):
        distributed.check(Place(address, 0, 2))


@pytest.mark.parametrize("number", [0, 1])
def test_a_process_whom_nobody_joins_says_so(processes, number: int, tmp_path: Path) -> None:
    processes.append(joining(number, port := free_port(), KEY, tmp_path, "2"))
    _, said = processes[0].communicate()
    assert f"scope-jax: Process {number} of 2 did not find all others at localhost:{port} within 2 s; start" in said
    assert "stack trace" not in said and "Traceback" not in said
    assert processes[0].returncode == 2
