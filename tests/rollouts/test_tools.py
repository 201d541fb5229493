"""Calls from many threads are merged into few, every caller gets its own answers, and the right thread calls."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from scope_jax.rollouts.tools import BatchedTool
from scope_jax.rollouts.types import RolloutError
from tests.rollouts.world import ByteTokenizer, LocalRollouts, bits, request

ASKED = [[f"q{i}", f"q{i + 1}"] for i in range(8)]


class Shout:
    """Answers in capitals; remembers the batches and the threads that called."""

    def __init__(self):
        self.batches, self.threads = [], set()

    def __call__(self, texts):
        self.batches.append(list(texts))
        self.threads.add(threading.current_thread())
        return [text.upper() for text in texts]


def test_calls_that_wait_for_the_loop_are_one_batch_without_repetitions_in_its_thread():
    shout, waits = Shout(), threading.Semaphore(0)
    tool = BatchedTool(shout, own_thread=False)
    with tool.served(waits.release), ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(tool, texts) for texts in ASKED]
        for _ in ASKED:
            waits.acquire()
        assert tool.callers == 8 and not shout.batches
        assert (tool.serve(), tool.callers, tool.serve()) == (8, 0, 0)
        assert [answer.result() for answer in answers] == [[text.upper() for text in texts] for texts in ASKED]
    assert len(shout.batches) == 1 and sorted(shout.batches[0]) == sorted({text for texts in ASKED for text in texts})
    assert shout.threads == {threading.current_thread()}
    assert (tool.batches, tool.texts) == (1, 9)


def test_a_tool_with_its_own_thread_needs_no_loop():
    shout = Shout()
    tool = BatchedTool(shout, own_thread=True)
    with ThreadPoolExecutor(8, thread_name_prefix="caller") as pool:
        assert list(pool.map(tool, ASKED * 20)) == [[text.upper() for text in texts] for texts in ASKED * 20]
    assert tool.serve() == 0 and len(shout.batches) < 80
    (thread,) = shout.threads
    assert thread is not threading.current_thread() and not thread.name.startswith("caller")


def test_the_maker_is_answered_at_once():
    for own_thread in (False, True):
        shout = Shout()
        assert BatchedTool(shout, own_thread=own_thread)(["x", "y", "x"]) == ["X", "Y", "X"]
        assert shout.batches == [["x", "y"]] and shout.threads == {threading.current_thread()}
        assert BatchedTool(shout, own_thread=own_thread)([]) == [] and len(shout.batches) == 1


@pytest.mark.parametrize("own_thread", [False, True])
def test_an_error_reaches_every_caller(own_thread):
    def broken(texts):
        raise ConnectionError("gone")

    waits = threading.Semaphore(0)
    tool = BatchedTool(broken, own_thread=own_thread)
    with tool.served(waits.release), ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(tool, [text]) for text in "abc"]
        for _ in answers:
            waits.acquire()
        tool.serve()
        for answer in answers:
            with pytest.raises(ConnectionError, match="gone"):
                answer.result()


def test_every_text_needs_an_answer():
    with pytest.raises(ValueError, match="1 answers to 2 texts"):
        BatchedTool(lambda texts: texts[:-1], own_thread=False)(["x", "y"])


def test_no_thread_but_the_loops_calls_even_after_the_run():
    shout, waits = Shout(), threading.Semaphore(0)
    tool = BatchedTool(shout, own_thread=False)
    with ThreadPoolExecutor(2) as pool:
        with tool.served(waits.release):
            answer = pool.submit(tool, ["x"])
            waits.acquire()
        with pytest.raises(RolloutError, match="ended before the tool answered"):
            answer.result()
        with pytest.raises(RolloutError, match="after the run"):
            pool.submit(tool, ["x"]).result()
    assert not shout.batches and tool.callers == 0


# ------------------------------------------------------------------------------------------------------------- driver
def searching(search, count):
    """Episodes of three turns; each of the first two is answered with what `search` finds for its text."""

    def respond(turns):
        return search([turns[-1].text])[0] if len(turns) < 4 else None

    return [
        request(f"question {i}", key=i, stop_ids=(), max_tokens=6 + i % 3, max_turns=3, respond=respond)
        for i in range(count)
    ]


@pytest.mark.parametrize("own_thread", [False, True])
def test_episodes_that_wait_are_answered_together(engine, params, rollouts, own_thread):
    plain = rollouts.run(searching(Shout(), 16))
    shout = Shout()
    tool = BatchedTool(shout, own_thread=own_thread)
    driver = LocalRollouts(engine, ByteTokenizer(), seed=0, threads=16, ahead=False, tool=tool)
    driver.load_params(params)
    assert [bits(c) for c in driver.run(searching(tool, 16))] == [bits(c) for c in plain]
    assert tool.texts == 32 and tool.batches < 32
    assert (threading.current_thread() in shout.threads) is not own_thread and len(shout.threads) == 1


def test_a_search_that_fails_ends_the_run_and_no_responder_waits_on(engine, params):
    def broken(texts):
        raise ConnectionError("The search server is down; start it.")

    tool = BatchedTool(broken, own_thread=False)
    waiting = []

    def search(texts):
        waiting.append(threading.current_thread())
        return tool(texts)

    driver = LocalRollouts(engine, ByteTokenizer(), seed=0, threads=16, ahead=False, tool=tool)
    driver.load_params(params)
    with pytest.raises(ConnectionError, match="is down; start it"):
        driver.run(searching(search, 16))
    for thread in waiting:
        thread.join(10)
    assert not any(thread.is_alive() for thread in waiting)
