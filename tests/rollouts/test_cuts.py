"""Replies that keep only the beginning of a turn: dropped tokens leave no trace in rows, cache or random numbers."""

import numpy as np
import pytest

from scope_jax.rollouts.scripted import ScriptedRollouts
from scope_jax.rollouts.types import Continuation, Restart, RolloutError
from tests.rollouts.world import ENGINE, ByteTokenizer, bits, request, trainer_logprobs

SEEN = list(b" seen. ")


def keeping(count, ids=SEEN, turns=1):
    """A responder that keeps `count` tokens of each of the first turns, and ends the episode after them."""

    def respond(said):
        written = sum(turn.kind == "sampled" for turn in said)
        return Continuation(ids, "seen", kept=count) if written <= turns else None

    return respond


def episodes(count, **changes):
    """Requests whose turns end at their length limit; each keeps a different part of them."""
    return [
        request(f"question {i}", key=i, stop_ids=(), max_tokens=24, max_turns=4, respond=keeping(3 + i, turns=2))
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def free(rollouts):
    """What the policy samples for the same prompts without a responder."""
    return rollouts.run([request(f"question {i}", key=i, stop_ids=(), max_tokens=24) for i in range(12)])


@pytest.fixture(scope="module")
def played(rollouts):
    return rollouts.run(episodes(12))


def test_the_row_continues_right_after_the_kept_tokens(played, free):
    for i, (completion, alone) in enumerate(zip(played, free, strict=True)):
        kept = 3 + i
        first, observation, second, again, last = completion.turns
        assert first.ids.tolist() == alone.ids_T[:kept].tolist() and first.finish == second.finish == "cut"
        assert first.logprobs.tobytes() == alone.logprobs_T[:kept].tobytes()
        assert first.text == ByteTokenizer().decode(alone.ids_T[:kept])
        assert observation.ids.tolist() == again.ids.tolist() == SEEN and len(second.ids) == kept
        assert (len(last.ids), last.finish, completion.finish_reason) == (24, "length", "length")
        (row,) = completion.rows
        assert row.ids_T.tolist() == [*first.ids, *SEEN, *second.ids, *SEEN, *last.ids]
        assert row.sampled_T.tolist() == [True] * kept + [False] * 7 + [True] * kept + [False] * 7 + [True] * 24
        assert completion.text == first.text + "seen" + second.text + "seen" + last.text


def test_logprobs_of_kept_tokens_are_the_learners(params, played):
    for completion in played:
        sampled = completion.sampled_T
        expected = trainer_logprobs(params, completion)[sampled]
        np.testing.assert_allclose(completion.logprobs_T[sampled], expected, atol=1e-5, rtol=0)


def test_alone_in_four_and_in_twelve(rollouts, played):
    asked = episodes(12)
    four = [c for first in range(0, 12, 4) for c in rollouts.run(asked[first : first + 4])]
    alone = [rollouts.run([one])[0] for one in asked]
    assert [bits(c) for c in four] == [bits(c) for c in alone] == [bits(c) for c in played]


def test_a_cut_turn_is_as_good_as_one_that_ended_there(rollouts):
    """Greedy: the same bits as an episode whose turn ended at the kept token because of a stop string."""
    greedy = {"temperature": 0.0, "max_turns": 2, "stop_ids": ()}
    said = rollouts.run([request("question", max_tokens=40, **greedy)])[0].ids_T.tolist()
    end = next(
        n for n in range(3, 30) if max(said[n - 2 : n]) < 128 and bytes(said[:n]).count(bytes(said[n - 2 : n])) == 1
    )
    stop = bytes(said[end - 2 : end]).decode()
    stopped, cut = rollouts.run(
        [
            request(
                "question", max_tokens=40, stop=(stop,), respond=lambda turns: Continuation(SEEN, "seen"), **greedy
            ),
            request("question", max_tokens=40, respond=keeping(end), **greedy),
        ]
    )
    assert cut.ids_T[:end].tolist() == stopped.turns[0].ids.tolist()
    together = min(len(cut.ids_T), len(stopped.ids_T))
    assert together > end + len(SEEN)
    assert cut.ids_T[:together].tolist() == stopped.ids_T[:together].tolist()
    assert cut.logprobs_T[:together].tobytes() == stopped.logprobs_T[:together].tobytes()


def test_no_random_number_is_used_twice(rollouts, free):
    """Positions of dropped tokens are sampled again with new random numbers; without drops they stay the same."""

    def of(kept):
        one = request("question 0", key=0, stop_ids=(), max_tokens=24, max_turns=2, respond=keeping(kept, ids=[]))
        return rollouts.run([one])[0].ids_T.tolist()

    said = free[0].ids_T.tolist()
    assert of(4)[:4] == said[:4] and of(4)[4:24] != said[4:]
    longer = rollouts.run([request("question 0", key=0, stop_ids=(), max_tokens=48)])[0]
    assert of(24) == longer.ids_T.tolist()  # nothing was dropped: the same tokens as one longer turn


def test_dropping_tokens_makes_room_in_a_full_context(rollouts, params):
    one = request([5] * 100, stop_ids=(), max_tokens=500, max_turns=2, respond=keeping(8))
    (completion,) = rollouts.run([one])
    assert [turn.finish for turn in completion.turns] == ["cut", None, "overflow"]
    assert 100 + len(completion.ids_T) == ENGINE.max_length
    sampled, expected = completion.sampled_T, trainer_logprobs(params, completion)
    np.testing.assert_allclose(completion.logprobs_T[sampled], expected[sampled], atol=1e-5, rtol=0)


def test_what_follows_may_be_a_new_prompt(rollouts, params, free):
    def respond(turns):
        return Restart(list(b"anew"), "new", kept=5)

    one = request("question 0", key=0, stop_ids=(), max_tokens=24, max_turns=2, respond=respond)
    first, second = rollouts.run([one])[0].rows
    assert first.ids_T.tolist() == free[0].ids_T[:5].tolist()
    assert bytes(second.prompt_ids.tolist()) == b"anew" and len(second.ids_T) == 5
    np.testing.assert_allclose(second.logprobs_T, trainer_logprobs(params, second), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("turns", "ids", "reason"), [(1, SEEN, "turns"), (2, [65] * ENGINE.max_length, "overflow")])
def test_the_rest_is_dropped_whatever_follows(rollouts, free, turns, ids, reason):
    one = request("question 0", key=0, stop_ids=(), max_tokens=24, max_turns=turns, respond=keeping(5, ids=ids))
    (completion,) = rollouts.run([one])
    assert completion.finish_reason == reason and len(completion.turns) == 1
    assert completion.ids_T.tolist() == free[0].ids_T[:5].tolist() and completion.turns[0].finish == "cut"


@pytest.mark.parametrize("kept", [0, -1, 25])
def test_tokens_that_were_not_sampled_cannot_be_kept(rollouts, kept):
    one = request("question 0", key=0, stop_ids=(), max_tokens=24, max_turns=2, respond=keeping(kept))
    with pytest.raises(RolloutError, match=f"responder of request 0 keeps {kept} tokens of a turn that has 24"):
        rollouts.run([one])


def test_scripted_rollouts_drop_tokens_too():
    written = ["I look. <search>a</search> It says", "done"]
    script = ScriptedRollouts(lambda prompt, turns: written[len(turns) // 2], ByteTokenizer(), max_length=99)
    (completion,) = script.run([request("Where?", max_turns=3, max_tokens=90, respond=keeping(26))])
    assert [turn.text for turn in completion.turns] == ["I look. <search>a</search>", "seen", "done"]
