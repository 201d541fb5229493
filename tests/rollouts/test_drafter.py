"""Drafts are what followed the same tokens before."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from scope_jax.rollouts import drafter
from scope_jax.rollouts.drafter import LONGEST, Drafter, Text, continuation
from scope_jax.rollouts.episodes import ActiveEpisode
from scope_jax.rollouts.types import Continuation, Restart
from tests.rollouts.world import ByteTokenizer, request


def text(words: str) -> Text:
    found = Text()
    found.add(words.encode())
    return found


def drafted(texts: list[str], end: str, most: int = 4) -> str:
    return bytes(continuation([text(one) for one in texts], end.encode(), most)).decode()


def test_the_longest_end_wins_then_the_first_text_then_the_latest_place():
    assert drafted(["the cat sat; a bat ran; a rat "], "at") == " "
    assert drafted(["xab1 yab2"], "zab") == "2"
    assert drafted(["xab1 yab2"], "xab") == "1 ya"
    assert drafted(["ab1", "ab2"], "ab") == "1"
    assert drafted(["ab1", "xab2"], "xab") == "2"
    assert drafted(["ab1"], "b") == "" == drafted(["ab1"], "ba") == drafted([], "ab")


def test_the_end_of_a_text_itself_has_nothing_behind_it():
    assert drafted(["abXab"], "ab") == "Xab" and drafted(["Xab"], "Xab") == ""


def test_ends_are_as_long_as_those_that_are_looked_for():
    long = "0123456789"
    assert text(long + "A").find(long.encode()) == (LONGEST, 10)
    assert text("0123456789").find(b"01") == (2, 2)


def test_it_is_what_a_search_finds():
    """Against a search through all places, on random texts of three letters."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        ids = rng.integers(0, 3, 60).tolist()
        own, end = Text(), rng.integers(0, 3, 9).tolist()
        own.add(ids)
        best = (0, 0)
        for after in range(1, len(ids)):
            same = 0
            while same < min(LONGEST, after) and ids[after - 1 - same] == end[-1 - same]:
                same += 1
            best = max(best, (same, after)) if same >= 2 else best
        assert own.find(end) == best


def row(prompt: str, group: str | None = None, respond: Any = None) -> ActiveEpisode:
    return ActiveEpisode(request(prompt, group=group, max_turns=5, respond=respond), 0, ByteTokenizer(), 999)


def say(one: ActiveEpisode, words: str) -> None:
    for id in words.encode():
        one.take(id, 0.0)


def next_of(own: Drafter, one: ActiveEpisode, most: int = 5) -> str:
    return bytes(own.draft(one, most)).decode()


def test_a_row_its_group_and_its_role():
    own = Drafter(shares=True)
    one, other, third = row("A question. "), row("Mine? ", "g"), row("Mine? ", "g")
    say(one, "In the beginning. In the")
    assert next_of(own, one) == " begi"
    say(one, "n")
    assert next_of(own, one) == ""
    say(other, "zz is zeta.")
    other.close("stop")
    own.turn_over(other)
    say(third, "so zz")
    assert next_of(own, third) == " is z"
    say(one, " zz")
    assert next_of(own, one) == " is z"
    third.close("stop")
    own.turn_over(third)
    group, role = own._texts.values()
    assert bytes(group.ids.tolist()) == b"Mine? zz is zeta.so zz" == bytes(role.ids.tolist())
    assert next_of(Drafter(shares=False), one) == ""
    own.clear()
    assert next_of(own, one) == ""


def test_turns_are_shared_once_and_new_prompts_are_read():
    own, one = Drafter(shares=True), row("Begin. ", respond=lambda turns: None)
    say(one, "first words")
    one.close("stop")
    own.turn_over(one)
    assert one.observe(Continuation(list(b" seen "), "seen", kept=5)) == "goes on"
    say(one, "fir")
    assert next_of(own, one) == "st se"  # of the row as it is
    one.close("stop")
    own.turn_over(one)
    assert one.observe(Restart(list(b"prompt two, pro"), "")) == "starts anew"
    assert next_of(own, one) == "mpt t"
    (shared,) = own._texts.values()
    assert bytes(shared.ids.tolist()) == b"Begin. first words seen fir"


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(drafter, "MOST", 110)
    own = Drafter(shares=True)
    for number in range(30):
        one = row("?", group=f"{number % 4}")
        say(one, "0123456789"[:10])
        one.close("stop")
        own.turn_over(one)
        assert sum(len(each.ids) for each in own._texts.values()) == own._kept <= 110
    del one
    gc.collect()
    assert not len(own._rows)
