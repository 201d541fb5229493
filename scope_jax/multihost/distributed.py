"""Joins this process to the others of a run on several hosts, and exchanges bytes with them.

    place = detect()                # from the environment; None for a run of one process
    start(place)
    parts = gather(payload)         # the payloads of all processes, each of which has the run's key

Everything here also works in a run of one process, where nothing is sent and no device is used.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scope_jax.errors import UserError
from scope_jax.multihost import payloads, signing

PLAIN = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
DEVICES = "JAX_LOCAL_DEVICE_IDS"
BIND = "JAX_COORDINATOR_BIND_ADDRESS"
CLUSTERS = ("gketpu", "gcetpu", "slurm")  # of those that JAX detects
JOIN = 300  # seconds until all processes have to be there
HEARTBEAT = 600  # seconds without a sign of life after which JAX itself ends a process, with a C++ stack trace
# (`multihost.watch` is quicker, and does not count the time in which a process was stopped, as JAX does)
POLL = 500  # milliseconds after which a wait for another process lets Python handle signals


@dataclass(frozen=True)
class Place:
    """The place of this process among those of its run.

    coordinator: "host:port" of process 0. devices: the ids of this host's devices that the process uses, None for all.
    bind: where process 0 listens, "host" or "host:port"; None: at the coordinator's address.
    """

    coordinator: str
    index: int
    count: int
    devices: tuple[int, ...] | None = None
    bind: str | None = None


_place = Place("", 0, 1)
_key = b""  # of the run
_service: subprocess.Popen[str] | None = None


def index() -> int:
    """The number of this process, from 0."""
    return _place.index


def count() -> int:
    """The number of processes of the run."""
    return _place.count


# ------------------------------------------------------------------------------------------------------------ joining
def detect() -> Place | None:
    """The place that the environment gives this process; None if it is the only one.

    From plain addresses (the variables PLAIN, which go before everything else), a SLURM step with several tasks, or a
    TPU pod. Raises ValueError if only some of the variables are given, or if one is not a number.
    """
    given = {name: os.environ.get(name, "") for name in PLAIN}
    if any(given.values()):
        if missing := [name for name, value in given.items() if not value]:
            raise UserError(
                f"{', '.join(PLAIN)} describe a run of several processes together, but {', '.join(missing)} is not "
                "set; set all of them, or none for a run of one process."
            )
        place = Place(given[PLAIN[0]], _number(PLAIN[2]), _number(PLAIN[1]), _device_ids(), _bind())
    else:
        found = _detected()
        if found is None:
            return None
        place = found
    check(place)
    return place if place.count > 1 else None


def check(place: Place) -> None:
    """Raises ValueError for an address that is not one of a host, with a port, or an index that is not below the number
    of processes."""
    if not re.fullmatch(r".+:\d+", place.coordinator) or _is_any(_host(place.coordinator)):
        raise UserError(
            f"The coordinator's address is {place.coordinator!r}; give host:port, the host of process 0 and a port "
            "that is free there."
        )
    if not 0 <= place.index < place.count:
        raise UserError(
            f"This is process {place.index} of {place.count}; processes are numbered from 0 to {place.count - 1}."
        )


def _host(address: str) -> str:
    """The host of "host:port", without the brackets of IPv6."""
    return address.rpartition(":")[0].strip("[]")


def _is_any(host: str) -> bool:
    """True for 0.0.0.0 and ::, which are all addresses of a host."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _number(name: str) -> int:
    value = os.environ[name]
    if not value.isdecimal():
        raise UserError(f"{name} is {value!r}; set it to a whole number.")
    return int(value)


def _device_ids() -> tuple[int, ...] | None:
    listed = os.environ.get(DEVICES, "")
    if not listed:
        return None
    if not re.fullmatch(r"\d+(,\d+)*", listed):
        raise UserError(f"{DEVICES} is {listed!r}; list the numbers of this process's devices, as in 0,1,2,3.")
    return tuple(map(int, listed.split(",")))


def _bind() -> str | None:
    return os.environ.get(BIND) or None


def _detected() -> Place | None:
    """The place in a SLURM step or TPU pod, by JAX's own detection, which has no public form without its start."""
    from scope_jax.multihost import runtime  # imports JAX

    kinds = [kind for kind in runtime.clusters() if kind.name in CLUSTERS and kind.is_env_present()]
    if not kinds or kinds[0].get_process_count() < 2:
        return None
    kind = kinds[0]
    devices = _device_ids()
    # Several SLURM tasks on a node have one device each, as JAX does it; a single one has them all.
    alone = re.fullmatch(r"1(\(x\d+\))?", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if kind.name == "slurm" and devices is None and not alone:
        devices = (int(os.environ["SLURM_LOCALID"]),)
    address = kind.get_coordinator_address(JOIN, os.environ.get("JAX_COORDINATOR_PORT"))
    return Place(address, kind.get_process_id(), kind.get_process_count(), devices, _bind())


def start(place: Place) -> None:
    """Joins the run, before any device is used; a second call does nothing. Process 0 starts the coordination service.

    Raises ValueError if the place is none, the run has no key, or the port cannot be opened, and ConnectionError if not
    all processes are there after JOIN seconds, or one has another key.
    """
    global _place, _key
    check(place)
    key = signing.run_key()
    import jax

    from scope_jax.multihost import runtime

    joined = runtime.state()
    if joined.client is not None:
        return
    if place.index == 0:
        _serve(place)
    if place.devices is not None:
        chosen = ",".join(map(str, place.devices))
        jax.config.update("jax_cuda_visible_devices", chosen)
        jax.config.update("jax_rocm_visible_devices", chosen)
    # As jax.distributed.initialize does it, but for the service, and without its own handler of SIGTERM.
    joined.coordinator_address = place.coordinator
    joined.process_id, joined.num_processes = place.index, place.count
    client = runtime.client(place.coordinator, place.index, JOIN, HEARTBEAT)
    try:
        client.connect()
    except RuntimeError:  # jaxlib has written why to stderr; its own text here is about a cast
        raise ConnectionError(
            f"Process {place.index} of {place.count} did not find all others at {place.coordinator} within {JOIN} s; "
            "start them all, with the same address."
        ) from None
    joined.client, _place, _key = client, place, key
    gather(b"")  # every process has the key


def _serve(place: Place) -> None:
    """Starts `scope_jax.multihost.coordinator`; returns when its port is open."""
    global _service
    address = _listening(place)
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    _service = subprocess.Popen(
        # -P: not with what lies in the current folder
        [sys.executable, "-P", "-m", "scope_jax.multihost.coordinator", address, str(place.count), str(HEARTBEAT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for the run's processes
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu", signing.KEY: ""},
    )
    assert _service.stdout is not None
    line = _service.stdout.readline().strip()
    if line != "ready":
        raise UserError(
            f"The coordinator's address {address} cannot be opened ({line or 'the service ended'}); choose another "
            f"port, or set {BIND} to an address of this host."
        )


def _listening(place: Place) -> str:
    """Where process 0 listens, host:port: at one address, as whoever reaches the service can end the run.

    Raises ValueError for a name that only this host can reach by the address it has here, as Debian sets up hosts.
    """
    host, port = _host(place.coordinator), place.coordinator.rpartition(":")[2]
    if place.bind is not None:
        return place.bind if re.fullmatch(r"[^:]+:\d+|\[.+\]:\d+", place.bind) else f"{place.bind}:{port}"
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        found = set()  # gRPC will say so
    if found and host not in {"localhost", *found} and all(ipaddress.ip_address(each).is_loopback for each in found):
        raise UserError(
            f"The coordinator's host {host} is {', '.join(sorted(map(str, found)))} on itself, where no other host can "
            f"reach it; set {BIND} to its address in the network, or give localhost if all processes are here."
        )
    return place.coordinator


def stop() -> None:
    """Leaves the run, at its end; all processes have come to it. Nothing in a run of one process."""
    global _place
    if _place.count == 1:
        return
    from scope_jax.multihost import runtime

    runtime.state().shutdown()
    _place = Place("", 0, 1)
    if _service is not None:
        assert _service.stdin is not None
        _service.stdin.write("finished")
        _service.stdin.close()


# ----------------------------------------------------------------------------------------------------------- exchange
def client() -> Any:
    """The client of the coordination service, a store of keys and values that all processes see."""
    from scope_jax.multihost import runtime

    assert runtime.state().client is not None, "start() comes first"
    return runtime.state().client


@dataclass(eq=False)
class Channel:
    """A sequence of `gather` in one thread of each process."""

    name: str
    """What its keys begin with."""
    large: Callable[[bytes, list[int]], list[bytes]]
    """Exchanges large payloads, as `payloads.through_devices`."""
    rounds: int = 0
    """How often it has gathered."""


CHANNEL: ContextVar[Channel | None] = ContextVar("channel", default=None)  # of this thread; see `multihost.channels`
_main = Channel("", payloads.through_devices)  # of the thread that owns the devices


def gather(payload: bytes) -> list[bytes]:
    """The payloads of all processes, by index. All must call this equally often in each channel; it waits for the last
    one.

    The wait is on the host, and signals are handled in it. Small payloads go through the coordination service, larger
    ones through the devices' network, at which all processes then arrive together (see `payloads.exchange_through`).
    """
    if _place.count == 1:
        return [payload]
    channel, store = CHANNEL.get() or _main, client()
    this = f"{channel.name}{channel.rounds}"
    before = f"{channel.name}{channel.rounds - 1}" if channel.rounds else None
    channel.rounds += 1
    if len(payload) <= payloads.SMALL:
        store.key_value_set_bytes(f"gather/data/{this}/{_place.index}", payload)
    put(f"gather/head/{this}/{_place.index}", _head(payload))
    heads = [_checked(f"gather/head/{this}/{number}", number) for number in range(_place.count)]
    if before is not None:  # everyone has come to this round, so has read all of the one before
        for kind in ("head", "data"):
            store.key_value_delete(f"gather/{kind}/{before}/{_place.index}")
    sizes = [int(head.partition(" ")[0]) for head in heads]
    if max(sizes) > payloads.SMALL:
        parts = channel.large(payload, sizes)
    else:
        parts = [
            store.key_value_try_get_bytes(f"gather/data/{this}/{number}") if size else b""
            for number, size in enumerate(sizes)
        ]
    for number, (part, head) in enumerate(zip(parts, heads, strict=True)):
        if _head(part) != head:
            raise stranger(number)
    return parts


def put(key: str, text: str) -> None:
    """Tells all processes `text` under a key of the coordination service."""
    client().key_value_set(key, signing.signed(text, key, _key), True)


def read(key: str, message: str) -> str | None:
    """What a process of the run `put` under this key; None if it was somebody else."""
    return signing.verified(message, key, _key)


def number(counter: str) -> int:
    """1 for the process that asks first of all, then 2, and so on, by the counter of this name; `forget` ends it."""
    return client().key_value_increment(f"number/{counter}", 1)


def forget(counter: str) -> None:
    """Frees a counter that no process will ask for again."""
    client().key_value_delete(f"number/{counter}")


def _head(payload: bytes) -> str:
    return f"{len(payload)} {signing.checksum(payload)}"


def _checked(key: str, number: int) -> str:
    """What process `number` puts under this key, as soon as it has."""
    text = read(key, _awaited(key))
    if text is None:
        raise stranger(number)
    return text


def stranger(number: int) -> ConnectionError:
    """What to raise for a message of a process that does not have the run's key."""
    return ConnectionError(
        f"What process {number} says does not bear the key of this run; give all processes the same {signing.KEY}, and "
        "see that nobody else reaches the coordinator's port."
    )


def _awaited(key: str) -> str:
    from jax.errors import JaxRuntimeError

    while True:
        try:
            return client().blocking_key_value_get(key, POLL)
        except JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
