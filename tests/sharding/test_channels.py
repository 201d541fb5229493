"""Threads that gather beside the owners of the devices: three processes, each a thread with an owner beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest

from scope_jax.multihost import channels, distributed, payloads
from scope_jax.multihost.channels import Channels

PROCESSES = 3
LIMIT = 30.0  # seconds, which only a hang reaches


class Store:
    """A coordination service in this process."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._changed = threading.Condition()

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        with self._changed:
            assert allow_overwrite or key not in self.values
            self.values[key] = value
            self._changed.notify_all()

    key_value_set_bytes = key_value_set

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.values, LIMIT), key
            return self.values[key]

    def key_value_try_get_bytes(self, key: str) -> bytes:
        return self.values[key]

    def key_value_delete(self, key: str) -> None:
        with self._changed:
            self.values.pop(key, None)

    def key_value_dir_get(self, place: str) -> list[tuple[str, str]]:
        with self._changed:
            return [(key, value) for key, value in self.values.items() if key.startswith(f"{place}/")]


class Processes:
    """Three processes, whose devices exchange in the order in which they were asked, as collectives do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = Store()
        self._here = threading.local()
        self._barrier = threading.Barrier(PROCESSES, timeout=LIMIT)
        self._parts = [b""] * PROCESSES
        self.exchanged: list[bytes] = []  # by the devices, of process 0
        place = distributed.Place("localhost:1", 0, PROCESSES)
        monkeypatch.setattr(distributed, "client", lambda: self.store)
        monkeypatch.setattr(distributed, "_place", Here(place, self._here))
        monkeypatch.setattr(distributed, "index", lambda: self._here.index)
        monkeypatch.setattr(distributed, "count", lambda: PROCESSES)
        monkeypatch.setattr(distributed, "_key", b"key of this run")
        monkeypatch.setattr(payloads, "through_devices", self._exchange)

    def _exchange(self, payload: bytes, sizes: list[int]) -> list[bytes]:
        self._parts[self._here.index] = payload
        self._barrier.wait()
        parts = list(self._parts)
        assert [len(part) for part in parts] == sizes  # all exchange the same
        self._barrier.wait()
        if self._here.index == 0:
            self.exchanged.append(payload)
        return parts

    def all(self, work: Callable[[int], Any]) -> list[Any]:
        """What `work` returns in each; raises what it raises."""

        def one(index: int) -> Any:
            self._here.index = index
            return work(index)

        with ThreadPoolExecutor(PROCESSES) as pool:
            return list(pool.map(one, range(PROCESSES)))

    def thread(self, index: int, work: Callable[[], Any]) -> threading.Thread:
        """A further thread of a process."""

        def begun() -> None:
            self._here.index = index
            work()

        thread = threading.Thread(target=copy_context().run, args=(begun,))
        thread.start()
        return thread


class Here:
    """A `Place` whose index is that of the thread's process."""

    def __init__(self, place: distributed.Place, here: threading.local) -> None:
        self.count, self._here = place.count, here

    @property
    def index(self) -> int:
        return self._here.index


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(monkeypatch)


def test_one_process_proceeds_when_it_is_ready() -> None:
    alone = Channels()
    assert not alone.proceed(None, 0) and not alone.proceed(1, 2) and alone.proceed(2, 2)
    with alone.channel("play 1"):
        assert distributed.gather(b"alone") == [b"alone"]


def test_channels_gather_each_in_its_order_small_and_large(three: Processes) -> None:
    """Two threads of each process, of which each gathers small and large payloads while the other does, too; threads
    come in another order in each process."""
    large = payloads.SMALL + 1
    order = {0: ("a", "b"), 1: ("b", "a"), 2: ("a", "b")}
    results: dict[tuple[int, str], list[list[bytes]]] = {}

    def play(index: int, shared: Channels, name: str) -> None:
        with shared.channel(name):
            letter = f"{name}{index}".encode()
            results[index, name] = [
                distributed.gather(letter * size) for size in (1, large, 2, large if index == 1 else 3, 0)
            ]

    def process(index: int) -> None:
        shared = Channels()
        threads = [three.thread(index, lambda n=name: play(index, shared, n)) for name in order[index]]
        ready = lambda: 5 if not any(thread.is_alive() for thread in threads) else None  # noqa: E731
        while not shared.proceed(ready(), 5 * PROCESSES):
            pass
        assert not any(thread.is_alive() for thread in threads)

    three.all(process)
    for name in "ab":
        letters = [f"{name}{index}".encode() for index in range(PROCESSES)]
        sizes = [(1, 1, 1), (large, large, large), (2, 2, 2), (3, large, 3), (0, 0, 0)]
        expected = [[letter * size for letter, size in zip(letters, those, strict=True)] for those in sizes]
        assert all(results[index, name] == expected for index in range(PROCESSES))
    assert len(three.exchanged) == 4


def test_all_come_to_the_end_with_numbers_that_add_up(three: Processes) -> None:
    """Several times; a number may grow until the sum is there, and keys of what is over are forgotten."""
    last = threading.Event()

    def process(index: int) -> int:
        shared, calls = Channels(), 0
        for _ in range(4):
            while not shared.proceed(index if index < 2 else None, 8):
                calls += 1
                if index == 2 and calls > 3:
                    break
            if index == 2:
                while not shared.proceed(min(calls, 7), 8):
                    calls += 1
        last.set()
        return calls

    assert three.all(process)[2] >= 7
    assert len([key for key in three.store.values if key.startswith("channels/")]) <= 2 * (1 + PROCESSES)


@pytest.mark.parametrize(
    ("come", "sentence"),
    [
        ((0, 2), "process 1 has not come to the end of the step within 0 minutes"),
        ((0, 1, 2), "all processes have come to the end of the step, but 0 minutes later not all rows"),
    ],
)
def test_who_does_not_come_is_named(
    three: Processes, monkeypatch: pytest.MonkeyPatch, come: tuple[int, ...], sentence: str
) -> None:
    ready = threading.Barrier(len(come), lambda: monkeypatch.setattr(channels, "LATE", 0.0), timeout=LIMIT)

    def process(index: int) -> str:
        shared = Channels()
        if index not in come:
            return ""
        assert not shared.proceed(1, 5)
        ready.wait()  # all have said so, and no time is left
        with pytest.raises(ConnectionError) as raised:
            shared.proceed(1, 5)
        return str(raised.value)

    said = three.all(process)
    assert all(said[index].startswith(sentence) for index in come)


def test_words_of_a_stranger_are_refused(three: Processes) -> None:
    three.store.values[f"{channels._READY}/0/1"] = "5"
    three._here.index = 0
    with pytest.raises(ConnectionError, match="What process 1 says does not bear the key of this run"):
        Channels().proceed(0, 0)
