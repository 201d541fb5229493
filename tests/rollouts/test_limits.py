"""Limits on prompts and on everything after them: sampled tokens and observations count alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scope_jax.rollouts.scripted import ScriptedRollouts
from scope_jax.rollouts.types import Completion, Continuation, Request, Restart
from tests.rollouts.world import ENGINE, ByteTokenizer, bits, request

SAID = "ask? and more"  # a turn ends at its fifth character


def play(one: Request, max_length: int = 400) -> Completion:
    (completion,) = ScriptedRollouts(lambda prompt, turns: SAID, ByteTokenizer(), max_length=max_length).run([one])
    return completion


def asking(answer, **limits: int) -> Request:
    """Turns of four tokens, each answered."""
    return replace(request("prompt", stop=("?",), max_tokens=99, max_turns=9, respond=lambda turns: answer), **limits)


@pytest.mark.parametrize(("limit", "left", "turns"), [(4, 4, 1), (13, 4, 1), (14, 14, 3), (15, 15, 3), (17, 17, 3)])
def test_the_response_limit_counts_sampled_tokens_and_observations_of_all_turns(limit, left, turns):
    """4 sampled, 9 read, 4 sampled: a turn that no longer fits is cut; an observation without room is omitted."""
    completion = play(asking("nine char", max_response_tokens=limit))
    assert (completion.finish_reason, len(completion.turns)) == ("length", turns)
    assert completion.text == "ask?nine charask?"[:left] and len(completion.ids_T) == left


def test_the_smaller_of_two_limits_ends_the_episode_and_is_its_finish_reason():
    prompt = len("prompt")
    for answer in ("nine char", Continuation([65] * 9, "nine char")):
        assert play(asking(answer, max_response_tokens=99), max_length=prompt + 14).finish_reason == "overflow"
        assert play(asking(answer, max_response_tokens=14), max_length=prompt + 14).finish_reason == "overflow"
        assert play(asking(answer, max_response_tokens=14), max_length=prompt + 15).finish_reason == "length"
    one = replace(request("prompt", max_tokens=3), max_response_tokens=5)
    assert (play(one).finish_reason, play(one).text) == ("length", "ask")  # the turn's limit, the smaller one


@pytest.mark.parametrize(("tokens", "turns"), [(15, 2), (16, 1)])
def test_after_a_restart_a_row_may_exceed_the_first_prompt_by_the_limit(tokens, turns):
    """The first prompt's six tokens plus ten: after a new prompt of fifteen, one token is left."""
    once = request("prompt", stop=("?",), max_tokens=99, max_turns=9)
    anew = Restart([65] * tokens, "new")
    completion = play(replace(once, respond=lambda said: anew if len(said) == 1 else None, max_response_tokens=10))
    assert completion.finish_reason == "length"
    assert [turn.text for turn in completion.turns if turn.kind == "sampled"] == ["ask?", "a"][:turns]


def test_a_longer_prompt_is_not_sampled():
    fits = play(replace(request("prompt"), max_prompt_tokens=6))
    assert len(fits.turns) == 1
    not_played = play(replace(request("prompt"), max_prompt_tokens=5))
    assert (not_played.finish_reason, not_played.turns, len(not_played.ids_T)) == ("overflow", (), 0)
    assert not_played.prompt_ids.tolist() == list(b"prompt")


@pytest.mark.parametrize("name", ["max_prompt_tokens", "max_response_tokens"])
def test_a_limit_is_at_least_one(name):
    with pytest.raises(ValueError, match=f"Request 0 has {name}=0; it must be at least 1"):
        play(replace(request("prompt"), **{name: 0}))


def test_the_engine_keeps_the_same_limits(rollouts):
    """A limited episode equals, bit for bit, the beginning of the unlimited one; others decode as before."""
    free = [request(f"question {i}", key=i, max_tokens=40, stop_ids=()) for i in range(4)]
    whole = rollouts.run(free)
    cut = rollouts.run([replace(one, max_response_tokens=7 + i) for i, one in enumerate(free)])
    for i, (long, short) in enumerate(zip(whole, cut, strict=True)):
        assert short.finish_reason == "length" and len(short.ids_T) == 7 + i
        assert short.ids_T.tolist() == long.ids_T[: 7 + i].tolist()
        assert short.logprobs_T.tobytes() == long.logprobs_T[: 7 + i].tobytes()
    two = [replace(one, max_turns=3, respond=lambda turns: "y" * 20, max_response_tokens=70) for one in free]
    answered = rollouts.run(two)
    assert [(len(c.ids_T), c.finish_reason, len(c.turns)) for c in answered] == [(70, "length", 3)] * 4
    assert [c.turns[0].ids.tolist() for c in answered] == [c.ids_T.tolist() for c in whole]
    refused, played = rollouts.run([replace(free[0], max_prompt_tokens=3), free[1]])
    assert refused.turns == () and bits(played) == bits(whole[1])
    assert ENGINE.max_length > 70 + len("question 0")
