"""Documents cut into segments by whole words and tokens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scope_jax.play.documents import GAP, cut, document_of, segments, without_middle


def words(text: str) -> int:
    """A tokenizer with one token for each word."""
    return len(text.split())


def test_a_document_is_shown_with_its_title():
    assert document_of({"id": "7", "title": "T", "text": " a\nb "}) == ("7", "(Title: T)\na\nb")
    assert document_of({"id": "x", "title": "", "text": "a"}) == ("x", "a")


def test_a_document_is_cut_at_whole_words():
    text = "one two  three\nfour"
    assert cut(text, 100, len) == text
    assert cut(text, 14, len) == "one two  three"
    assert cut(text, 13, len) == "one two"
    assert cut(text, 3, len) == "one"
    assert cut(text, 2, len) == ""
    for limit in range(len(text) + 1):
        assert len(cut(text, limit, len)) <= limit


def test_a_script_without_spaces_is_cut_at_any_character():
    text = "(Title: 水)\n" + "水" * 300
    assert cut(text, 200, len) == text[:200]
    assert cut("水" * 300, 7, len) == "水" * 7
    assert cut("a" * 100 + " b", 99, len) == ""  # a long word is not split


def test_segments_follow_each_other():
    text = " one two  three\nfour five "
    assert segments(text, 100, len) == ["one two  three\nfour five"]
    assert segments(text, 14, len) == ["one two  three", "four five"]
    assert segments(text, 13, len) == ["one two", "three\nfour", "five"]
    assert segments(text, 2, words) == ["one two", "three\nfour", "five"]
    assert segments(text, 5, words) == ["one two  three\nfour five"]
    assert segments("", 3, len) == [""]


def test_a_segment_may_have_many_characters_for_each_token():
    text = " ".join(["w" * 40] * 6)
    assert segments(text, 2, words) == [f"{'w' * 40} {'w' * 40}"] * 3


def test_a_word_that_does_not_fit_is_cut_at_any_character():
    assert segments("a abcdefg b", 3, len) == ["a", "abc", "def", "g b"]
    assert segments("水" * 7, 3, len) == ["水水水", "水水水", "水"]
    assert segments("ab", 1, lambda text: 2 * len(text)) == ["a", "b"]  # no character fits


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab \n水"), max_size=120), st.integers(1, 30))
def test_nothing_but_space_is_lost_and_every_segment_fits(text: str, limit: int):
    parts = segments(text, limit, len)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(len(part) <= limit and part == part.strip() for part in parts)
    assert all(parts) or parts == [""]


def test_cutting_takes_linear_time():
    def measured(size: int) -> int:
        seen = 0

        def tokens(text: str) -> int:
            nonlocal seen
            seen += len(text)
            return len(text) // 4

        segments("some words of a document " * (size // 25), 1000, tokens)
        return seen

    assert measured(2_000_000) < 2.1 * measured(1_000_000)


def test_a_long_text_loses_its_middle():
    text = "one two three four five six seven"
    assert without_middle(text, len(text), len) == text
    assert (
        without_middle(text, 20, len) == f"one two{GAP}six seven"
    )  # 17 characters besides the gap, 8 of them before it
    assert without_middle(text, 4, words) == f"one{GAP}six seven"
    assert without_middle(text, 4, len) == ""
    assert without_middle("水" * 400, 23, len) == "水" * 10 + GAP + "水" * 10  # a script without spaces


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab \n水"), max_size=120), st.integers(6, 40))
def test_what_is_left_fits_and_comes_from_both_ends(text: str, limit: int):
    found = without_middle(text, limit, len)
    assert len(found) <= limit
    head, gap, tail = found.partition(GAP)
    assert found == text or (gap and text.startswith(head) and text.rstrip().endswith(tail.rstrip()))
