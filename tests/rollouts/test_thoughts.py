"""Thinking spans and stop strings: none ends a turn inside thinking, even if the prompt opened the span."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_jax.rollouts.episodes import ActiveEpisode
from scope_jax.rollouts.thoughts import StopStrings, blanked, thoughts
from scope_jax.rollouts.types import Continuation, Reply, Restart
from tests.rollouts.world import ByteTokenizer, request

MARKS = ("<t>", "</t>")


@pytest.mark.parametrize(
    ("text", "opened", "written"),
    [
        ("a b", False, "a b"),
        ("<t>a</t> b", False, "         b"),
        ("a <t>b</t> c <t>d", False, "a          c     "),
        ("<t>a <t>b</t> c</t> d", False, "              c</t> d"),  # thoughts are not nested
        ("a</t> b", False, "      b"),  # the first mark is a closing one: the prompt opened the thought
        ("a</t> b <t>c</t> d</t>", False, "      b          d</t>"),
        ("a</t> b", True, "      b"),
        ("a b", True, "   "),
        ("<t>a</t> b", True, "         b"),  # opened once more
        ("", True, ""),
        ("", False, ""),
        ("a <t", False, "a <t"),
    ],
)
def test_text_outside_of_thoughts(text: str, opened: bool, written: str):
    assert blanked(text, thoughts(text, MARKS, opened)) == written


def stopped(text: str, opened: bool, stops: Sequence[str], marks: tuple[str, str] = MARKS) -> int | None:
    """Length of the shortest prefix that ends with a stop string outside of thoughts, by definition."""
    for end in range(1, len(text) + 1):
        head, within, at = text[:end], opened, 0
        while (mark := head.find(marks[within], at)) >= 0:
            within, at = not within, mark + len(marks[within])
        if not within and any(head[at:].endswith(stop) for stop in stops):
            return end
    return None


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.sampled_from(["<t>", "</t>", "</s>", "<", "t", ">", "/", "s", "é"]), max_size=14),
    st.lists(st.integers(1, 5), min_size=1),
    st.booleans(),
)
def test_a_stop_string_counts_outside_of_thoughts_however_it_is_tokenised(pieces, lengths, opened):
    text, stops = "".join(pieces), ("</s>", "st")
    raw, listener, end = text.encode(), StopStrings(stops, MARKS, opened), 0
    for place in range(len(raw)):
        if end >= len(raw):
            break
        end, start = end + lengths[place % len(lengths)], end
        if listener.completed_by(raw[start:end]):
            break
    else:
        start = end = len(raw) + 1
    due = stopped(text, opened, stops)
    if due is None:
        assert end >= len(raw)
    else:
        assert start < len(text[:due].encode()) <= end


def take(episode: ActiveEpisode, text: str) -> str | None:
    """The finish reason of a turn with this text; None if it continues."""
    for byte in text.encode():
        if (finish := episode.take(byte, -1.0)) is not None:
            return finish
    return None


def an_episode(prompt: str, respond: Any = None, **changes: Any) -> ActiveEpisode:
    options: dict[str, Any] = {"stop": ("</s>",), "thought": MARKS, "max_tokens": 60}
    asked = request(prompt, max_turns=3, respond=respond, **(options | changes))
    return ActiveEpisode(asked, 0, ByteTokenizer(), 200)


def test_a_stop_string_in_an_open_thought_does_not_end_the_turn():
    episode = an_episode("question")
    said = "<t>say <s>x</s>, or </s></t> <s>y</s>"
    assert take(episode, said + " and more") == "stop"
    (turn,) = episode.turns
    assert turn.text == said and not turn.opened
    assert turn.content == " " * said.index(" <s>y") + " <s>y</s>"
    assert take(an_episode("question", stop=("</t>",)), "<t>a</t>") is None  # a thinking mark is not a stop string
    assert take(an_episode("question", thought=None), said) == "stop"


@pytest.mark.parametrize("end", ["<t>", "<t>\n", "<t>\n\n "])
def test_a_prompt_may_open_thinking(end: str):
    episode = an_episode(f"question{end}")
    assert take(episode, "say </s></t> <s>y</s>") == "stop"
    assert episode.turns[0].opened and episode.turns[0].content == "             <s>y</s>"
    cut = an_episode(f"question{end}", max_tokens=8)
    assert take(cut, "say </s> it") == "length" and not cut.turns[0].content.strip()
    for other in ("<t>question", "question<t></t>", "question<t>.", "question"):
        assert take(an_episode(other), "say </s>") == "stop"


def answered(episode: ActiveEpisode, reply: Reply) -> str:
    future: Future[object] = Future()
    future.set_result(reply)
    return episode.observe(episode.reply_of(future))


@pytest.mark.parametrize(
    "reply",
    [
        "found<t>\n",
        Continuation(list(b"found<t>\n"), "found"),
        Restart(list(b"question, found<t>\n"), "found"),
    ],
)
def test_an_observation_may_open_thinking(reply: Reply):
    episode = an_episode("question", respond=lambda turns: reply)
    assert take(episode, "a</s>") == "stop" and not episode.turns[0].opened
    answered(episode, reply)
    assert take(episode, "b</s> </t>c</s>") == "stop"
    assert episode.turns[-1].opened and episode.turns[-1].content == "          c</s>"


def test_tags_in_thinking():
    episode = an_episode("question<t>", tags_in_thinking=True)
    assert take(episode, "say </s></t>") == "stop"
    (turn,) = episode.turns
    assert turn.opened and turn.text == turn.content == "say </s>"


def test_a_mark_without_text_is_refused():
    with pytest.raises(ValueError, match="empty mark"):
        request("question", thought=("<t>", ""))


def test_the_engine_continues_a_thought(rollouts):
    """The marks and the stop string are characters that the policy samples when nothing stops it."""
    free = rollouts.run([request(f"question {i}", key=i, max_tokens=40, stop_ids=()) for i in range(4)])
    for i, completion in enumerate(free):
        ids = completion.ids_T.tolist()
        new = [chr(id) for at, id in enumerate(ids) if id < 128 and ids.index(id) == at]
        begin, stop, end = new[1:4]
        asked = [
            request(f"question {i}", key=i, max_tokens=40, stop_ids=(), stop=(stop,), thought=thought)
            for thought in (None, (begin, end))
        ]
        plain, thinking = rollouts.run(asked)
        assert plain.ids_T.tolist() == ids[: ids.index(ord(stop)) + 1]
        text = "".join(map(chr, ids))
        assert thinking.ids_T.tolist() == ids[: stopped(text, False, (stop,), (begin, end))]
        assert len(thinking.ids_T) > len(plain.ids_T) and stop not in thinking.turns[0].content[:-1]
