"""Replies to a turn other than text: ids that are appended, and new prompts from which an episode restarts."""

import numpy as np
import pytest

from scope_jax.rollouts.keys import stretch_key
from scope_jax.rollouts.scripted import ScriptedRollouts
from scope_jax.rollouts.types import Continuation, Request, Restart, RolloutError
from tests.rollouts.world import ENGINE, EOS, ByteTokenizer, bits, make_rollouts, request, trainer_logprobs


def every_turn(answer, turns=3, **options):
    """A request whose turns end with any small letter or the end token, and are answered by `answer(turns)`."""
    stops = {"stop": tuple(map(chr, range(97, 123))), "max_tokens": 30}
    return {"max_turns": turns, "respond": answer} | stops | options


def restart(turns):
    return Restart(list(f"turn {len(turns)}: {turns[-1].ids[0]}".encode()), f"<{len(turns)}>")


def episodes(count):
    return [request(f"question {i}", key=i, **every_turn(restart, turns=2 + i % 3)) for i in range(count)]


@pytest.fixture(scope="module")
def played(rollouts):
    return rollouts.run(episodes(32))


def test_each_restart_is_a_row_of_its_own(played):
    lengths = {len(completion.rows) for completion in played}
    assert lengths >= {2, 3, 4}
    for i, completion in enumerate(played):
        sampled = [turn for turn in completion.turns if turn.kind == "sampled"]
        restarts = [turn for turn in completion.turns if turn.kind == "observation"]
        assert len(completion.rows) == len(sampled) == len(restarts) + 1
        assert all(turn.restarts and turn.finish is None and not turn.logprobs.any() for turn in restarts)
        assert bytes(completion.prompt_ids.tolist()) == f"question {i}".encode()
        for row, turn in zip(completion.rows, sampled, strict=True):
            assert row.ids_T.tolist() == turn.ids.tolist() and row.sampled_T.all()
            assert row.logprobs_T.tobytes() == turn.logprobs.tobytes()
        for number, (row, turn) in enumerate(zip(completion.rows[1:], restarts, strict=True)):
            said = sampled[number].ids[0]
            assert bytes(row.prompt_ids.tolist()) == f"turn {2 * number + 1}: {said}".encode()
            assert row.prompt_ids.tolist() == turn.ids.tolist() and turn.text == f"<{2 * number + 1}>"
        assert completion.ids_T.tolist() == [id for turn in sampled for id in turn.ids]
        assert completion.finish_reason in ("turns", "length")


def test_logprobs_of_all_rows_are_the_learners(params, played):
    for completion in played[:4]:
        for row in completion.rows:
            np.testing.assert_allclose(row.logprobs_T, trainer_logprobs(params, row), atol=1e-5, rtol=0)


def test_alone_in_eight_and_in_thirty_two(rollouts, played):
    asked = episodes(32)
    eight = [c for first in range(0, 32, 8) for c in rollouts.run(asked[first : first + 8])]
    alone = [rollouts.run([one])[0] for one in asked]
    for other in (eight, alone):
        assert [bits(c) for c in other] == [bits(c) for c in played]
        assert [[row.prompt_ids.tolist() for row in c.rows] for c in other] == [
            [row.prompt_ids.tolist() for row in c.rows] for c in played
        ]


def test_a_restart_does_not_reuse_random_numbers(rollouts):
    """The same prompt at the same positions: with the same key the policy would sample the same tokens again."""
    prompt = list(b"question")
    again = every_turn(lambda turns: Restart(prompt, ""), turns=5, stop=tuple(map(chr, range(128))))
    completion = rollouts.run([request(prompt, **again)])[0]
    fresh = rollouts.run([request(prompt, max_tokens=1, stop_ids=())])[0]
    said = [row.ids_T[0] for row in completion.rows]
    assert completion.ids_T[0] == fresh.ids_T[0]  # the first row has the request's own key
    assert len(said) >= 3 and len(set(said)) > 1


def test_stretch_keys():
    key = np.asarray([7, 1], np.uint32)
    keys = {tuple(stretch_key(np.asarray(k, np.uint32), n).tolist()) for k in ([7, 1], [7, 2]) for n in range(50)}
    assert stretch_key(key, 0) is key and len(keys) == 100
    assert stretch_key(key, 1).dtype == np.uint32 and stretch_key(key, 1).shape == (2,)


def test_a_prompt_that_does_not_fit_ends_the_episode(rollouts):
    def of(length):
        return rollouts.run([request("question", **every_turn(lambda turns: Restart([65] * length, "new"), turns=2))])[
            0
        ]

    full = of(ENGINE.max_length)
    assert full.finish_reason == "overflow" and len(full.rows) == 1 and len(full.turns) == 1
    last = of(ENGINE.max_length - 1)
    assert len(last.rows) == 2 and len(last.rows[1].ids_T) == 1


def test_appended_ids_continue_the_same_row(params, rollouts):
    glue = [EOS, 257, 10, 258]
    respond = lambda turns: Continuation(glue, "what it says") if len(turns) == 1 else None  # noqa: E731
    completion = rollouts.run([request("question", **every_turn(respond))])[0]
    first, observation, second = completion.turns
    (row,) = completion.rows
    assert observation.text == "what it says" and observation.ids.tolist() == glue and not observation.restarts
    assert row.ids_T.tolist() == [*first.ids, *glue, *second.ids]
    assert row.sampled_T.tolist() == [True] * len(first.ids) + [False] * 4 + [True] * len(second.ids)
    expected = trainer_logprobs(params, row)
    np.testing.assert_allclose(row.logprobs_T[row.sampled_T], expected[row.sampled_T], atol=1e-5, rtol=0)


def test_more_restarts_than_slots_and_shared_prompts(engine, params):
    """Waiting groups, restarted episodes and prefilled prompts share the queue."""
    asked = [
        request("the same" if i < 20 else f"other {i}", key=i, group="same" if i < 20 else None, **every_turn(restart))
        for i in range(40)
    ]
    together = make_rollouts(engine, params).run(asked)
    alone = [make_rollouts(engine, params).run([one])[0] for one in asked[::7]]
    assert [bits(c) for c in together[::7]] == [bits(c) for c in alone]


def test_invalid_replies_of_a_responder_are_errors(rollouts):
    with pytest.raises(RolloutError, match=r"responder of request 0 returned a Restart without a prompt"):
        rollouts.run([request("question", **every_turn(lambda turns: Restart([], "")))])
    with pytest.raises(RolloutError, match=r"returned int; it must return text, a Continuation, a Restart or None"):
        rollouts.run([request("question", **every_turn(lambda turns: 7))])


def test_a_script_sees_the_new_prompt():
    seen = []

    def script(prompt, turns):
        seen.append(prompt)
        return f"said {len(seen)}"

    respond = lambda turns: Restart(list(b"anew"), "anew") if len(turns) == 1 else None  # noqa: E731
    asked: Request = request("first", max_tokens=20, max_turns=3, respond=respond)
    (completion,) = ScriptedRollouts(script, ByteTokenizer(), max_length=99).run([asked])
    assert seen == ["first", "anew"]
    assert [bytes(row.prompt_ids.tolist()) for row in completion.rows] == [b"first", b"anew"]
    assert [turn.text for turn in completion.turns] == ["said 1", "anew", "said 2"]
    assert [row.ids_T[-1] for row in completion.rows] == [EOS, EOS]
