"""Long work says now and then that it goes on, and stops saying so when it is over."""

from __future__ import annotations

import time

from scope_jax.run.performance import heartbeat


def test_a_long_block_is_not_silent() -> None:
    said: list[str] = []
    with heartbeat(said.append, "step 3", lambda: f"{len(said)} dispatches", every=0.05):
        deadline = time.monotonic() + 20
        while len(said) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    count = len(said)
    assert said[0].startswith("step 3: ") and said[0].endswith(" s, 0 dispatches")
    assert said[1].endswith(" s, 1 dispatches")
    time.sleep(0.15)
    assert len(said) == count


def test_a_short_block_says_nothing() -> None:
    said: list[str] = []
    with heartbeat(said.append, "step 3", lambda: "", every=60):
        pass
    assert said == []
