"""Long work says now and then what goes on, and stops saying so when it is over."""

from __future__ import annotations

import io
import re
import threading
import time

import jax
from rich.console import Console

from scope_jax.report.progress import Progress, in_words
from scope_jax.run.activity import Activity
from scope_jax.run.programs import programs


def lines(out: io.StringIO, count: int) -> list[str]:
    """What was printed, once there are so many lines."""
    deadline = time.monotonic() + 20
    while len(out.getvalue().splitlines()) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return out.getvalue().splitlines()


def test_no_long_silence() -> None:
    """At first the last line with its time, then what is followed; nothing after the end."""
    out = io.StringIO()
    with Progress(Console(file=out, width=200), silence=0.05) as progress:
        progress.say("loading a model")
        assert lines(out, 2)[:2] == ["loading a model", "loading a model: 0 s"]
        progress.follow(lambda: "step 1/8: updating, 12 s")
        seen = len(out.getvalue().splitlines())
        assert lines(out, seen + 2)[-1] == "step 1/8: updating, 12 s"
    count = len(out.getvalue().splitlines())
    time.sleep(0.2)
    assert len(out.getvalue().splitlines()) == count


def test_work_that_is_told_about_is_not_told_about_twice() -> None:
    out = io.StringIO()
    with Progress(Console(file=out), silence=60) as progress:
        progress.say("a")
        time.sleep(0.1)
    assert out.getvalue() == "a\n"


def test_a_terminal_shows_what_goes_on_below_its_bars() -> None:
    out = io.StringIO()
    with Progress(Console(file=out, force_terminal=True, width=120)) as progress:
        progress.follow(lambda: "step 1/8: updating, 12 s")
        progress.part("passages", 3, 4)
        time.sleep(0.3)
    assert "step 1/8: updating, 12 s" in out.getvalue() and "3/4" in out.getvalue()


def test_time_left() -> None:
    """The median of the latest steps, so that compilation in the first one does not count for long."""
    out = io.StringIO()
    with Progress(Console(file=out, width=200)) as progress:
        clock = [100.0, 10.0, 10.0]
        for done, seconds in enumerate(clock, start=1):
            progress._clock = time.monotonic() - seconds
            progress.step(done, 4 if done < 3 else 3, {"eval/held_out/accuracy": 0.25})
    said = out.getvalue().splitlines()
    assert said[0].endswith("100.0 s, about 5 min left") and said[1].endswith("10.0 s, about 2 min left")
    assert said[2].endswith(" 10.0 s")
    assert [in_words(seconds) for seconds in (40, 720, 12600)] == ["40 s", "12 min", "3.5 h"]


def test_what_a_run_does() -> None:
    activity = Activity()
    assert activity.text() == ""
    activity.place = "step 3/8"
    with activity("playing"):
        with activity("sampling solver"):
            assert activity.text(lambda: (41, 128, 160)) == (
                "step 3/8: sampling solver, 41 of 128 replies in 160 decoding steps, 0 s"
            )
        assert activity.text() == "step 3/8: playing, 0 s"
        other = activity("searching for 2 queries")  # by another thread, which ends later
        with activity("sampling solver"):
            other.__enter__()
        assert activity.text() == "step 3/8: searching for 2 queries, 0 s"
        other.__exit__(None, None, None)
        assert activity.text() == "step 3/8: playing, 0 s"
    assert activity.text() == ""


def test_a_program_that_is_compiled_is_counted_among_those_of_its_purpose() -> None:
    """On a line of its own, while it goes on, by JAX's own events: number, most, seconds; a function of no purpose is
    counted among all."""
    counter, activity, seen, over = programs(), Activity(), set(), threading.Event()

    def sampled_by_a_test(x: jax.Array) -> jax.Array:
        return jax.numpy.sort(x) + jax.numpy.fft.fft(x).real

    def other_of_a_test(x: jax.Array) -> jax.Array:
        return jax.numpy.sort(x) * jax.numpy.fft.fft(x).imag

    def watch() -> None:
        while not over.is_set():
            seen.add(re.sub(r"\d+ s\b", "… s", activity.text()))

    counter.need("a test", {"sampled_by_a_test": 1})
    counter.need("a test", {"sampled_by_a_test": 2, "never_called": 1})
    with activity("sampling solver"):
        thread = threading.Thread(target=watch)
        thread.start()
        program = jax.jit(sampled_by_a_test)
        for size in range(7, 10):
            program(jax.numpy.ones(size)).block_until_ready()
        before = counter.asked
        jax.jit(other_of_a_test)(jax.numpy.ones(7)).block_until_ready()
        over.set()
        thread.join()
    for number in (1, 2, 3):
        assert f"sampling solver, compiling program {number} of at most 4 for a test: … s, … s" in seen
    assert any(f"sampling solver, compiling program {number}: … s, … s" in seen for number in range(before, before + 9))
    assert counter.text() == ""
