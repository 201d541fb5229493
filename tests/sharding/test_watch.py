"""A process that was stopped, and goes on, takes no other for gone; one that is silent is gone."""

from __future__ import annotations

import time

import pytest

from scope_jax.multihost import watch


class Store:
    """The coordination service as process 0 sees it. beats: of process 1, which counts up as long as it lives."""

    def __init__(self) -> None:
        self.beats, self.lives = 0, True

    def key_value_set(self, *given: object) -> None:
        """Keeps nothing: process 0 does not read what it says."""

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        self.beats += self.lives
        return [] if folder == watch.OVER else [(f"{watch.ALIVE}1/beat", str(self.beats))]


@pytest.mark.parametrize("stopped", [False, True])
def test_who_is_gone(stopped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store, ahead, real, ends = Store(), [0.0], time.monotonic, list[str]()
    monkeypatch.setattr(watch, "BEAT", 0.05)
    monkeypatch.setattr(watch, "LOST", 0.5)
    monkeypatch.setattr(watch.distributed, "client", lambda: store)
    monkeypatch.setattr(watch.distributed, "index", lambda: 0)
    monkeypatch.setattr(watch.distributed, "count", lambda: 2)
    monkeypatch.setattr(watch.distributed, "put", lambda key, text: None)
    monkeypatch.setattr(watch.distributed, "read", lambda key, message: message or None)
    monkeypatch.setattr(time, "monotonic", lambda: real() + ahead[0])
    watching = watch.PeerWatch(ends.append)
    time.sleep(0.3)
    store.lives = False  # both are stopped, and the other one is slower to go on
    if stopped:
        ahead[0] = 60.0
        time.sleep(0.2)
        store.lives = True
        time.sleep(1.5)
    limit = real() + 60
    while not stopped and not ends and real() < limit:
        time.sleep(0.01)
    watching.leave(None)
    assert ends == ([] if stopped else ["process 1 is gone (no sign of life for 0.5 s)"])
