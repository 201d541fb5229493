"""Text from tokens as they arrive, by hand."""

from __future__ import annotations

from scope_jax.rollouts.texts import TextStream
from tests.rollouts.world import EOS, ByteTokenizer


def fed(text: str, stops: tuple[str, ...] = (), pieces: int = 1) -> list[str]:
    stream = TextStream(ByteTokenizer(), (EOS,), stops)
    ids = [*text.encode(), EOS]
    told = [stream.feed(ids[place : place + pieces]) for place in range(0, len(ids), pieces)]
    return [*told, stream.finish()]


def test_characters_come_whole_and_end_tokens_are_no_text() -> None:
    assert fed("aé日") == ["a", "", "é", "", "", "日", "", ""]
    assert fed("é"[:1] + "\udcff".encode(errors="replace").decode()) == ["", "é", "?", "", ""]
    half = TextStream(ByteTokenizer(), (EOS,), ())
    assert (half.feed([0xE6]), half.feed([0x97]), half.finish()) == ("", "", "\ufffd")


def test_nothing_is_told_from_a_stop_string_on() -> None:
    for pieces in (1, 2, 3, 50):
        assert "".join(fed("one STOP two", ("STOP",), pieces)) == "one "
        assert "".join(fed("one STO two", ("STOP",), pieces)) == "one STO two"
        assert "".join(fed("ababac", ("abac", "zz"), pieces)) == "ab"
        assert "".join(fed("xyz", ("yz", "y"), pieces)) == "x"
    assert fed("aST", ("STOP",)) == ["a", "", "", "", "ST"]
