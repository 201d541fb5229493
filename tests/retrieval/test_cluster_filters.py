"""Corpus filters: words, prose, held-out phrases, near-duplicates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_jax.retrieval.clusters.duplicates import NearDuplicates, shingles
from scope_jax.retrieval.clusters.words import HeldOutPhrases, is_prose, words

PLAIN = " ".join(["The ferry to the island leaves at noon and has room for nine cars and forty people."] * 4)


def test_words_are_lower_case_letters_and_digits() -> None:
    assert words("The “Élan”, 12½ km: naïve_ok!") == ["the", "élan", "12½", "km", "naïve_ok"]


@pytest.mark.parametrize(
    ("text", "prose"),
    [
        (PLAIN, True),
        (" ".join(PLAIN.split()[:49]), False),  # words
        (" ".join(PLAIN.split()[:50]), True),
        (" ".join(["to be"] * 40), False),  # mean length 2
        (" ".join(["theantidisestablishmentarian"] * 60), False),
        (PLAIN + " #" * 8, False),  # 8 signs in 76 words: more than a tenth
        (PLAIN + " #" * 7, True),  # 7 in 75
        (PLAIN + " ..." * 8, False),
        ("\n".join("- " + line for line in [PLAIN] * 10), False),  # bullets on all lines
        ("\n".join("- " + line for line in [PLAIN] * 9) + "\n" + PLAIN, True),  # on nine of ten
        ("\n".join([PLAIN + "…"] * 2 + [PLAIN] * 3), False),  # 40 % of the lines
        (PLAIN + " 1234" * 18, False),  # 68 of 86 with a letter: .79
        (PLAIN + " 1234" * 17, True),  # 68 of 85: .8
        (" ".join(["ferries leave islands daily, nobody waits"] * 10), False),  # no stop word
    ],
)
def test_prose_by_gophers_rules(text: str, prose: bool) -> None:
    assert is_prose(text) is prose


def held_out(*texts: str, length: int = 6, shortest: int = 4) -> HeldOutPhrases:
    phrases = HeldOutPhrases(length, shortest)
    phrases.add(texts)
    return phrases


def test_phrases_of_questions_are_found() -> None:
    phrases = held_out("Which river flows through the old town of Basel?", "Who built the tower?", "Basel")
    assert phrases.skipped == 1  # one word
    assert (
        phrases.find("They say the RIVER flows -- through the old town: Basel.") == "river flows through the old town"
    )
    assert phrases.find("The river flows through the old village.") is None  # five words in a row
    assert phrases.find("who built the tower") == "who built the tower"
    assert phrases.find("who built the") is None and phrases.find("") is None
    assert held_out().find("anything at all in here") is None


def test_a_phrase_that_begins_as_another_is_not_missed() -> None:
    phrases = held_out("a b c d x y", "a b c d")
    assert phrases.find("a b c d z") == "a b c d"
    assert held_out("a b c d x y").find("a b c d x z a b c d x y") == "a b c d x y"


def naive(texts: list[str], text: str, length: int, shortest: int) -> bool:
    padded = " " + " ".join(words(text)) + " "
    found = [words(each) for each in texts]
    grams = [each[i : i + length] for each in found for i in range(max(1, len(each) - length + 1))]
    return any(" " + " ".join(gram) + " " in padded for gram in grams if len(gram) >= shortest)


@given(
    st.lists(st.lists(st.sampled_from("ab"), max_size=7).map(" ".join), max_size=4),
    st.lists(st.sampled_from("ab"), max_size=12).map(" ".join),
)
def test_phrases_are_found_as_by_a_naive_search(texts: list[str], text: str) -> None:
    found = held_out(*texts, length=4, shortest=2).find(text)
    assert (found is not None) == naive(texts, text, 4, 2)
    assert found is None or f" {found} " in f" {text} "


def test_shortest_phrase_is_bounded() -> None:
    with pytest.raises(ValueError, match="1 to 3 words"):
        HeldOutPhrases(3, 4)


def test_shingles() -> None:
    assert shingles("One two, three two", 2) == [b"one two", b"three two", b"two three"]
    assert shingles("a a a a", 2) == [b"a a"]
    assert shingles("one two", 5) == [b"one two"] and shingles("?!", 5) == [b""]


def numbered(first: int, last: int) -> str:
    return " ".join(f"w{number}" for number in range(first, last))


def test_similarity_is_jaccards() -> None:
    """Shingles of one word: numbers 0..299 against 100..399 have 200 of 400 in common."""
    near = NearDuplicates(threshold=0.2, permutations=512, shingle=1)
    one_W, other_W = near.signatures([numbered(0, 300), numbered(100, 400)])
    assert near.add(one_W) == 0 and len(near) == 1
    found = near.nearest(other_W)
    assert found is not None and found[0] == 0
    assert abs(found[1] - 0.5) < 4 * np.sqrt(0.25 / 512)  # four standard errors
    assert near.nearest(one_W) == (0, 1.0)
    assert near.nearest(near.signatures(["nothing of that"])[0]) is None


def test_the_nearest_document_is_returned_and_the_first_of_ties() -> None:
    near = NearDuplicates(threshold=0.5, permutations=128, shingle=1)
    texts = [numbered(0, 95), numbered(0, 100), numbered(0, 100)]
    for signature_W in near.signatures(texts):
        near.add(signature_W)
    assert near.nearest(near.signatures([numbered(0, 100)])[0]) == (1, 1.0)


def test_candidates_below_the_threshold_are_no_duplicates() -> None:
    """LSH alone would drop about one in twenty pairs of similarity .65 at a threshold of .8."""
    near = NearDuplicates(threshold=0.8, permutations=128, shingle=1)
    firsts = range(0, 60_000, 1000)
    for signature_W in near.signatures([numbered(first, first + 100) for first in firsts]):
        near.add(signature_W)
    others_NW = near.signatures([numbered(first + 21, first + 121) for first in firsts])  # 79 of 121 words in common
    assert [near.nearest(signature_W) for signature_W in others_NW] == [None] * 60


def test_signatures_do_not_depend_on_the_other_texts() -> None:
    near = NearDuplicates(threshold=0.8, permutations=64, shingle=3)
    texts = [numbered(0, 30), "", numbered(5, 9)]
    together_NW = near.signatures(texts)
    assert together_NW.shape == (3, 64) and together_NW.dtype == np.uint32
    for text, signature_W in zip(texts, together_NW, strict=True):
        assert np.array_equal(near.signatures([text])[0], signature_W)
    assert near.signatures([]).shape == (0, 64)
