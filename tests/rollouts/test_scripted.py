"""Scripted episodes follow the engine's rules for the ends of turns and for replies."""

import pytest

from scope_jax.rollouts.scripted import ScriptedRollouts
from scope_jax.rollouts.types import Rollouts
from tests.rollouts.world import EOS, ByteTokenizer, request


def play(script, *requests, max_length=400):
    return ScriptedRollouts(script, ByteTokenizer(), max_length=max_length).run(requests)


def test_a_golden_transcript():
    def script(prompt, turns):
        assert prompt == "Where is it?"
        return ["I ask <search>it</search> and wait", "<answer>here</answer>"][len(turns) // 2]

    def respond(turns):
        return f"({len(turns)})" if turns[-1].text.endswith("</search>") else None

    stops = ("</search>", "</answer>")
    completion = play(script, request("Where is it?", stop=stops, max_tokens=99, max_turns=5, respond=respond))[0]
    said = ["I ask <search>it</search>", "(1)", "<answer>here</answer>"]
    assert [turn.text for turn in completion.turns] == said
    assert [turn.kind for turn in completion.turns] == ["sampled", "observation", "sampled"]
    assert [turn.finish for turn in completion.turns] == ["stop", None, "stop"]
    assert completion.finish_reason == "stop" and completion.text == "".join(said)
    assert completion.ids_T.tolist() == list("".join(said).encode())
    assert completion.sampled_T.tolist() == [True] * len(said[0]) + [False] * 3 + [True] * len(said[2])
    assert not completion.logprobs_T.any()


def test_finish_reasons():
    eos, cut, over, long = play(
        lambda prompt, turns: {"a": "Done.", "b": "too long", "c": "x" * 50, "d": "?"}[prompt[0]],
        request("a", max_tokens=9),
        request("b", max_tokens=3),
        request("c" * 380, max_tokens=99),
        request("d" * 400, max_tokens=9),
    )
    assert (eos.finish_reason, eos.text, eos.ids_T[-1]) == ("eos", "Done.", EOS)
    assert (cut.finish_reason, cut.text) == ("length", "too")
    assert (over.finish_reason, len(over.ids_T)) == ("overflow", 20)
    assert (long.finish_reason, len(long.ids_T)) == ("overflow", 0)


def test_an_end_token_that_the_request_does_not_list():
    completion = play(lambda prompt, turns: "Done.", request("a", stop_ids=()))[0]
    assert (completion.finish_reason, completion.text, completion.ids_T[-1]) == ("eos", "Done.", EOS)


def test_a_string_that_ends_a_turn_is_left_out_of_its_text_but_not_of_its_tokens():
    """As vLLM's stop: the text ends before the string, wherever it occurs, and what the policy sampled is kept."""
    said = "<think>Hm</think> It is 5.\nUser: and"
    cut, tag, thinking, whole = play(
        lambda prompt, turns: {"a": said, "b": "<a>5</a> User:", "c": "<think>so\nUser: x", "d": "A User"}[prompt[0]],
        request("a", ends=("\nUser:", "User:"), max_tokens=99),
        request("b", ends=("User:",), stop=("</a>",), max_tokens=99),
        request("c", ends=("User:",), thought=("<think>", "</think>"), max_tokens=99),
        request("d", ends=("User:",), max_tokens=99),
    )
    assert (cut.finish_reason, cut.text) == ("eos", "<think>Hm</think> It is 5.")
    assert cut.ids_T.tolist() == list(said.removesuffix(" and").encode()) and cut.sampled_T.all()
    assert (tag.finish_reason, tag.text) == ("stop", "<a>5</a>")
    assert (thinking.finish_reason, thinking.text, thinking.turns[0].content.strip()) == ("eos", "<think>so\n", "")
    assert (whole.finish_reason, whole.text, whole.ids_T[-1]) == ("eos", "A User", EOS)


def test_turn_limits_apply_and_exceptions_propagate():
    written = request("a", max_turns=2, respond=lambda turns: "again")
    completion = play(lambda prompt, turns: "word", written)[0]
    assert completion.finish_reason == "turns"
    assert [turn.text for turn in completion.turns] == ["word", "again", "word"]

    def fails(turns):
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        play(lambda prompt, turns: "word", request("a", max_turns=2, respond=fails))


def test_it_implements_the_protocol():
    rollouts = ScriptedRollouts(lambda prompt, turns: "", ByteTokenizer(), max_length=9)
    rollouts.load_params({})
    assert isinstance(rollouts, Rollouts)
    assert rollouts.run([]) == []
