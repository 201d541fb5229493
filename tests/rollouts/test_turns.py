"""Multi-turn episodes on the engine: stop strings, observations in a live slot, threads, limits, failures."""

import threading
import time

import numpy as np
import pytest

from scope_jax.rollouts.types import RolloutError
from tests.rollouts.world import ENGINE, bits, make_rollouts, request, trainer_logprobs


@pytest.fixture(scope="module")
def free(rollouts):
    """What the policy samples for some prompts when nothing stops it."""
    return rollouts.run([request(f"question {i}", key=i, max_tokens=40, stop_ids=()) for i in range(6)])


def text_at(completion, first, last):
    """The bytes of some tokens as a stop string; None if they are not valid text."""
    raw = bytes(completion.ids_T[first:last].tolist()) if max(completion.ids_T[first:last]) < 256 else b"\xff"
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def stops_of(free, reach):
    """(request number, tokens up to the end of a stop string, the string) for what was said."""
    found = []
    for i, completion in enumerate(free):
        for first in range(3, 30):
            text = text_at(completion, first, first + reach)
            raw = bytes(min(id, 255) for id in completion.ids_T.tolist())
            if text and raw.index(text.encode()) == first:
                found.append((i, first + reach, text))
                break
    return found


def test_a_stop_string_ends_at_the_token_that_completes_it(rollouts, free):
    cases = stops_of(free, 2)
    assert len(cases) >= 4
    asked = [request(f"question {i}", key=i, max_tokens=40, stop_ids=(), stop=("no such", s)) for i, _, s in cases]
    for (i, end, stop), completion in zip(cases, rollouts.run(asked), strict=True):
        assert completion.finish_reason == "stop"
        assert completion.ids_T.tolist() == free[i].ids_T[:end].tolist()
        assert completion.logprobs_T.tobytes() == free[i].logprobs_T[:end].tobytes()
        assert completion.turns[0].text.endswith(stop)


def test_a_string_that_ends_a_turn_ends_at_the_token_that_completes_it(rollouts, free):
    cases = stops_of(free, 2)
    asked = [request(f"question {i}", key=i, max_tokens=40, stop_ids=(), ends=(s,)) for i, _, s in cases]
    for (i, end, stop), completion in zip(cases, rollouts.run(asked), strict=True):
        assert completion.finish_reason == "eos" and stop not in completion.text
        assert completion.ids_T.tolist() == free[i].ids_T[:end].tolist()
        assert completion.logprobs_T.tobytes() == free[i].logprobs_T[:end].tobytes()


def conversation(free, observation, max_turns=4):
    """Requests whose first turn ends at a stop string and is answered; later turns run to max_tokens."""
    asked = []
    for i, _, stop in stops_of(free, 2):

        def respond(turns, i=i):
            time.sleep(0.002 * i)
            return observation(len(turns))

        asked.append(
            request(
                f"question {i}", key=i, max_tokens=40, stop_ids=(), stop=(stop,), max_turns=max_turns, respond=respond
            )
        )
    return asked


def test_observations_go_where_the_turn_ended(rollouts, params, free):
    said = "observed " * 4
    completions = rollouts.run(conversation(free, lambda turns: said if turns == 1 else None))
    for completion, (i, end, _) in zip(completions, stops_of(free, 2), strict=True):
        first, observation, second = completion.turns[:3]
        assert first.ids.tolist() == free[i].ids_T[:end].tolist()
        assert (observation.kind, observation.text, observation.finish) == ("observation", said, None)
        assert observation.ids.tolist() == list(said.encode())
        assert second.kind == "sampled" and len(second.ids) > 0
        flags = [False] * 0 + [True] * end + [False] * len(said) + [True] * len(second.ids)
        assert completion.sampled_T.tolist() == flags
        assert completion.ids_T.tolist() == [*first.ids, *observation.ids, *second.ids]
        assert not completion.logprobs_T[~completion.sampled_T].any()
        expected = trainer_logprobs(params, completion)
        np.testing.assert_allclose(
            completion.logprobs_T[completion.sampled_T], expected[completion.sampled_T], atol=1e-5, rtol=0
        )


def test_conversations_are_identical_alone_and_together(rollouts, free):
    asked = conversation(free, lambda turns: "x" * (7 * turns) if turns < 4 else None)
    crowd = [request(f"someone {i}", key=50 + i, max_tokens=10 * i + 5) for i in range(9)]
    together = rollouts.run([*crowd[:4], *asked, *crowd[4:]])[4 : 4 + len(asked)]
    alone = [rollouts.run([one])[0] for one in asked]
    assert [bits(c) for c in together] == [bits(c) for c in alone]
    assert any(len(c.turns) > 1 for c in alone)


def test_an_empty_observation_continues_the_turn(rollouts, params, free):
    i, end, stop = stops_of(free, 2)[0]
    go_on = request(
        f"question {i}", key=i, max_tokens=40, stop_ids=(), stop=(stop,), max_turns=2, respond=lambda turns: ""
    )
    completion = rollouts.run([go_on])[0]
    assert [turn.kind for turn in completion.turns] == ["sampled", "observation", "sampled"]
    # A token's key depends on its position alone: the continuation is the same as without the stop.
    assert completion.ids_T[:40].tolist() == free[i].ids_T[: len(completion.ids_T)][:40].tolist()
    assert len(completion.ids_T) > end


def test_the_turn_limit_ends_an_episode(rollouts, free):
    i, end, stop = stops_of(free, 2)[0]
    asked = []

    def respond(turns):
        asked.append(len(turns))
        return "more"

    one = request(f"question {i}", key=i, max_tokens=40, stop_ids=(), stop=(stop,), max_turns=1, respond=respond)
    completion = rollouts.run([one])[0]
    assert completion.finish_reason == "turns" and asked == [1]
    assert [turn.kind for turn in completion.turns] == ["sampled"]
    assert len(completion.ids_T) == end


def test_a_responder_sees_that_a_turn_was_cut_by_its_limit(rollouts):
    def respond(turns):
        return "go on" if [turn.finish for turn in turns] == ["length"] else None

    one = request("question", max_tokens=5, stop_ids=(), max_turns=3, respond=respond)
    completion = rollouts.run([one])[0]
    assert [turn.finish for turn in completion.turns] == ["length", None, "length"]
    assert completion.finish_reason == "length" and len(completion.ids_T) == 5 + len("go on") + 5


def test_an_observation_that_does_not_fit(rollouts, free):
    completion = rollouts.run(conversation(free, lambda turns: "y" * ENGINE.max_length)[:1])[0]
    assert completion.finish_reason == "overflow"
    assert [turn.kind for turn in completion.turns] == ["sampled"]


def test_the_context_is_used_to_its_last_token(rollouts, params):
    prompt = list(range(1, 91))
    full, too_long = rollouts.run(
        [request(prompt, max_tokens=500, stop_ids=()), request([5] * ENGINE.max_length, max_tokens=5)]
    )
    assert full.finish_reason == "overflow" and len(prompt) + len(full.ids_T) == ENGINE.max_length
    np.testing.assert_allclose(full.logprobs_T, trainer_logprobs(params, full), atol=1e-5, rtol=0)
    assert too_long.finish_reason == "overflow" and len(too_long.ids_T) == 0 and too_long.turns == ()
    last = rollouts.run([request([5] * (ENGINE.max_length - 1), max_tokens=5)])[0]
    assert len(last.ids_T) == 1


def test_other_slots_decode_while_a_responder_runs(engine, params, free, monkeypatch):
    rollouts = make_rollouts(engine, params)
    dispatched, thinking = threading.Event(), threading.Event()
    generate = engine.generate

    def watched(*args):
        result = generate(*args)
        if thinking.is_set():
            dispatched.set()
        return result

    monkeypatch.setattr(engine, "generate", watched)

    def respond(turns):
        thinking.set()
        return "went on" if dispatched.wait(30) else None

    i, _, stop = stops_of(free, 2)[0]
    slow = request(f"question {i}", key=i, max_tokens=40, stop_ids=(), stop=(stop,), max_turns=2, respond=respond)
    other = request("another", key=9, max_tokens=100, stop_ids=())
    completion = rollouts.run([slow, other])[0]
    assert [turn.text for turn in completion.turns[1:2]] == ["went on"]


def test_a_failing_responder_is_one_clear_error(rollouts, free):
    def fails(turns):
        raise ConnectionError("the search server is gone")

    i, _, stop = stops_of(free, 2)[0]
    bad = request(f"question {i}", key=i, max_tokens=40, stop_ids=(), stop=(stop,), max_turns=2, respond=fails)
    crowd = [request(f"someone {n}", key=n, max_tokens=30) for n in range(12)]
    with pytest.raises(ConnectionError, match="search server is gone") as caught:
        rollouts.run([*crowd, bad])
    assert caught.value.__notes__ == ["raised by the responder of request 12 after turn 1"]
    assert len(rollouts.run(crowd)) == 12  # the engine still works

    def strange(turns):
        return 7

    odd = request(f"question {i}", key=i, max_tokens=40, stop_ids=(), stop=(stop,), max_turns=2, respond=strange)
    with pytest.raises(RolloutError, match="returned int"):
        rollouts.run([odd])
