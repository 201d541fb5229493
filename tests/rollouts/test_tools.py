"""Calls from many threads are merged into few, and every caller gets its own answers."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollouts.tools import BatchedTool, ToolTimeout


def tool(function, **changes):
    plain = {"max_batch": 64, "wait": 0.2, "timeout": 20.0, "retries": 0, "retry_on": (ConnectionError,)}
    return BatchedTool(function, **(plain | changes))


def shout(batches):
    def function(texts):
        batches.append(list(texts))
        return [text.upper() for text in texts]

    return function


def test_concurrent_calls_are_one_batch_without_repetitions():
    batches = []
    asked = [[f"q{i}", f"q{i + 1}"] for i in range(8)]
    batched = tool(shout(batches), max_batch=16, wait=5.0)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(batched, asked))
    batched.close()
    assert answers == [[text.upper() for text in texts] for texts in asked]
    assert len(batches) == 1 and sorted(batches[0]) == sorted({text for texts in asked for text in texts})


def test_a_batch_has_a_largest_size():
    batches = []
    batched = tool(shout(batches), max_batch=3, wait=0.05)
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda i: batched([f"a{i}", f"b{i}"]), range(10)))
    assert answers == [[f"A{i}", f"B{i}"] for i in range(10)]
    assert all(len(batch) <= 3 for batch in batches)
    assert batched(["one", "two", "three", "four", "five"]) == ["ONE", "TWO", "THREE", "FOUR", "FIVE"]
    batched.close()


def test_retries_and_errors():
    calls = []

    def flaky(texts):
        calls.append(len(texts))
        if len(calls) < 3:
            raise ConnectionError("gone")
        return texts

    patient = tool(flaky, wait=0.0, retries=2)
    assert patient(["x"]) == ["x"] and calls == [1, 1, 1]
    patient.close()
    calls.clear()
    hasty = tool(flaky, wait=0.0, retries=1)
    with pytest.raises(ConnectionError, match="gone"):
        hasty(["x"])
    hasty.close()

    def wrong(texts):
        raise KeyError("not to be tried again")

    calls.clear()
    broken = tool(wrong, wait=0.0, retries=5)
    with pytest.raises(KeyError):
        broken(["x"])
    broken.close()


def test_every_text_needs_an_answer():
    short = tool(lambda texts: texts[:-1], wait=0.0)
    with pytest.raises(ValueError, match="1 answers to 2 texts"):
        short(["x", "y"])
    assert short([]) == []
    short.close()


def test_a_slow_tool_times_out():
    release = threading.Event()

    def slow(texts):
        release.wait(20)
        return texts

    stuck = tool(slow, wait=0.0, timeout=0.05)
    with pytest.raises(ToolTimeout, match=r"0\.05 seconds"):
        stuck(["x"])
    release.set()
    stuck.close()
