"""Long work says now and then what goes on, and stops saying so when it is over."""

from __future__ import annotations

import io
import re
import threading
import time

import jax
import pytest
from rich.console import Console

from scope_jax.games import load_card
from scope_jax.report.progress import Progress, StepTimes, headline, in_words
from scope_jax.run.activity import Activity
from scope_jax.run.programs import programs
from scope_jax.train import exams_left


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


def test_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of steps and exams to come, each as long as the latest of its kind without compilation. By hand, of steps of
    10 s and exams of 4 s: the first step compiled for 90 s, the exam before it for 30 s."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    out = io.StringIO()
    progress = Progress(Console(file=out, width=200))
    progress.begin(5.0)
    clock[0] += 34.0
    progress.scores({"eval/held_out/accuracy": 0.25, "time/evaluate": 34.0}, 35.0)
    for done, seconds, exam, exams, compiled in ((1, 102, 0, 2, 125), (2, 10, 0, 2, 125), (3, 17, 6, 1, 125)):
        clock[0] += seconds
        measured = {"time/evaluate": float(exam)} if exam else {}
        progress.step(done, 4, {"solver/reward": 0.5} | measured, exams, compiled)
    clock[0] += 17.0
    progress.step(4, 4, {"solver/reward": 0.5, "time/evaluate": 6.0}, 0, 125.0)
    assert out.getvalue().splitlines() == [
        "evaluated  eval/held_out/accuracy 0.250  34.0 s",
        "step 1/4  solver/reward 0.500  102.0 s, 90.0 s of it compiling, about 44 s left",  # 3 · 12 + 2 · 4
        "step 2/4  solver/reward 0.500  10.0 s, about 28 s left",  # 2 · 10 + 2 · 4
        "step 3/4  solver/reward 0.500  11.0 s, evaluated in 6.0 s, about 16 s left",  # 10.5 + 6
        "step 4/4  solver/reward 0.500  11.0 s, evaluated in 6.0 s",
    ]
    assert [in_words(seconds) for seconds in (40, 720, 12600)] == ["40 s", "12 min", "3.5 h"]


def test_exams_of_unknown_length_are_counted() -> None:
    pace = StepTimes()
    pace.step(30.0)
    assert pace.left(2, 0) == "60 s" and pace.left(2, 1) == "60 s and an exam" and pace.left(2, 3) == "60 s and 3 exams"
    pace.exam(20.0)
    assert pace.left(1, 2) == "70 s"


@pytest.mark.parametrize(("every", "left"), [(0, [1, 1, 1, 1, 1, 1, 1, 0]), (3, [3, 3, 3, 2, 2, 2, 1, 0])])
def test_exams_to_come_are_those_of_the_card_and_the_last(every: int, left: list[int]) -> None:
    cfg = load_card("configs/sft/atlas.toml", [f"evaluate.every={every}"])
    assert [exams_left(cfg, done, 7) for done in range(8)] == left
    assert exams_left(load_card("configs/sft/atlas.toml", ["evaluate.every=3"]), 0, 6) == 2
    assert (
        exams_left(cfg, 1, None) == 0
        and exams_left(load_card("configs/sft/atlas.toml", ["evaluate.sets=[]"]), 1, 7) == 0
    )


def test_a_line_shows_what_a_run_learns_from() -> None:
    assert headline({"sft/loss": 2.5, "sft/grad_norm": 1.0}) == "sft/loss 2.500"
    pairs = {"dpo/loss": 0.69, "dpo/implicit_accuracy": 0.5, "dpo/implicit_margin": -0.004, "dpo/implicit_chosen": 1.0}
    assert headline(pairs) == "dpo/loss 0.690  dpo/implicit_accuracy 0.500  dpo/implicit_margin -0.004"
    taught = {"student/searches": 1.0, "student/loss": 1.0, "student/policy_loss": 0.0, "student/teacher_k2": 1.234e-4}
    assert headline(taught) == "student/searches 1.000  student/teacher_k2 0.00012"
    assert headline({"solver/reward": 0.0, "solver/loss": 1e-9, "solver/policy_loss": 1e-9}) == "solver/reward 0.000"


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
