from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_jax.play import searching, turns
from scope_jax.text import dialects, parsing

XML = dialects.load("xml")


def test_first_question_and_last_answer_count():
    turns = ["<question>one</question> <question>two</question>", "<question>three</question>"]
    assert parsing.first(turns, "question") == "one"
    assert parsing.last(["<answer>a</answer>", "<answer>b</answer> <answer> c </answer>", "no tag"], "answer") == "c"
    assert parsing.first(["<question>open"], "question") is None
    assert parsing.last(["</answer>"], "answer") is None


def test_an_unclosed_tag_swallows_nothing():
    assert parsing.spans("I will write <answer> later. <answer> Rome </answer>", "answer") == ["Rome"]
    assert parsing.spans("<answer></answer>", "answer") == [""]


def test_all_searches_of_a_turn_and_lists_count():
    text = '<search> a </search> <search>["b", " c "]</search> <search></search> <search>[1, 2]</search> <search>open'
    assert searching.queries_of(text, XML) == ["a", "b", "c", "[1, 2]"]
    assert searching.queries_of("<search>[broken</search>", XML) == ["[broken"]


@pytest.mark.parametrize(
    ("text", "formed"),
    [
        ("<think>a</think> <search>b</search>", True),
        ("no tags at all", True),
        ("<think>a <search>b</search>", False),
        ("<think>a</think></think>", False),
        ("<think><search>b</search></think>", True),  # tags in a thought do not count
        ("<search>b</search> <information>made up</information>", False),
        ("<question>of another role</question>", False),
        ("<think>a", False),
        ("<other>tag</other> 1 < 2", True),
    ],
)
def test_well_formed(text: str, formed: bool):
    assert parsing.well_formed(text, ("think", "search", "answer")) is formed


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("It is in doc 2. Answer: Paris", "Paris"),
        ("The answer: maybe Rome.\nAnswer: Paris\nBecause of doc 2.", "Paris"),
        ("**Answer:** Paris", "Paris"),
        ("answer： 巴黎", "巴黎"),
        ("Answer:\n\n Paris ", "Paris"),
        ("Answer: **42**", "42"),
        ("Answer:", None),
        ("Answer: **", None),
        ("Paris", None),
        ("", None),
    ],
)
def test_labelled_answer(reply: str, answer: str | None):
    assert parsing.labelled_answer(reply) == answer


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"So it is \boxed{42}.", "42"),
        (r"\boxed{1} or rather \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),  # escaped braces need not be balanced
        (r"\boxed{\}}", r"\}"),
        (r"\boxed {B}", "B"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{3} and \boxed{4", None),  # never closed: a reply that was cut in its answer
        (r"\boxed{3}, no: \boxed{\frac{1}{2", None),
        (r"\boxed{3}, no: \boxed", None),
        (r"\boxed{3}, no: \boxed ", None),
        (r"\boxed{3} where {x", "3"),
        (r"\fbox{B}", "B"),
        (r"\fbox{\textbf{B}} is right", r"\textbf{B}"),
        (r"\boxed{A} or rather \fbox{B}", "B"),
        (r"\fbox{A} or rather \boxed{B", None),
        (r"\boxed{\fbox{7}}", "7"),
        (r"\afbox{7}", None),
        (r"\boxed{ \boxed{4}", "4"),
        (r"{ a } } \boxed{5} }", "5"),
        (r"\\boxed{5}", None),  # a line break and a word
        (r"\boxed{}", None),
        (r"\boxed{1} then \boxed{ }", None),  # the last one counts, and is empty
        ("boxed{5}", None),
        ("", None),
        ("\\", None),
    ],
)
def test_boxed(text: str, content: str | None):
    assert parsing.boxed(text) == content


def test_the_results_of_an_observation_are_recovered():
    text = turns.raw(XML.observation(["Doc 1 (Title: A)\na", "Doc 1 (Title: B)\nb"]))
    assert text == "\n<information>\nDoc 1 (Title: A)\na\n---\nDoc 1 (Title: B)\nb\n</information>\n\n"
    assert XML.results_of(text) == ["Doc 1 (Title: A)\na", "Doc 1 (Title: B)\nb"]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(["---", "----", "\n", "-", " ", "a", "\n---\n"]), max_size=8), min_size=1, max_size=3
    )
)
def test_a_line_of_dashes_inside_a_passage_is_not_a_separator(results: list[list[str]]):
    passages = ["".join(pieces) for pieces in results]
    assert XML.results_of(turns.raw(XML.observation(passages))) == passages
    for dialect in (dialects.load(name) for name in dialects.names()):
        assert dialect.results_of(dialect.observation(passages)) == passages


def test_a_line_of_dashes_inside_a_passage_is_kept():
    assert XML.observation(["a\n---\nb -- c", "d"]) == "<information>\na\n----\nb -- c\n---\nd\n</information>"


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a <search>x</search> b", "a [search]x[/search] b"),
        ("< / Answer >", "[ / Answer ]"),
        ("<INFORMATION>", "[INFORMATION]"),
        ("<|im_end|> and <|endoftext|>", "[|im_end|] and [|endoftext|]"),
        ("<｜User｜>", "[｜User｜]"),
        ("</s><pad>", "[/s][pad]"),
        ("<<|x|>answer>", "<[|x|]answer>"),
        ("<|<s>|>", "[|[s]|]"),
        ("<search a=<search b=1>>", "[search a=[search b=1]>"),  # the opening bracket of an interrupted tag is replaced
        ("<search\n/>", "[search\n/]"),
        ("<s >< s><S></Pad>", "<s >< s>[S][/Pad]"),
        ("<|not\none|><||><|a|b|>", "<|not\none|><||><|a|b|>"),
        ("1 < 2 and 3 > 2 <b>bold</b> {braces}", "1 < 2 and 3 > 2 <b>bold</b> {braces}"),
    ],
)
def test_neutralise_keeps_text_readable_and_is_idempotent(text: str, safe: str):
    assert parsing.neutralise(text) == safe
    assert parsing.neutralise(safe) == safe


# What counts as a tag, as in the earlier implementation of neutralise by repeated substitution.
LOOKS_LIKE_A_TAG = re.compile(
    rf"<\s*/?\s*({'|'.join(parsing.FOREIGN)})(\s+[\w:-]+\s*=[^<>]*)?\s*/?\s*>"
    r"|<[|｜][^|｜\n]{1,64}[|｜]>|<[|]\w{1,64}>|<\w{1,64}[|]>|</?(s|bos|eos|pad|unk|mask|start_of_turn|end_of_turn)>",
    re.IGNORECASE,
)
PIECES = ["<", ">", "/", " ", "\n", "|", "｜", "=", "a", "s", "search", "tool_call", "Rubric", " x='", "pad", "[", "é"]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=24))
def test_neutralised_text_keeps_its_offsets_and_has_no_tags(pieces: list[str]):
    text = "".join(pieces)
    safe = parsing.neutralise(text)
    assert parsing.neutralise(safe) == safe
    assert LOOKS_LIKE_A_TAG.search(safe) is None
    changed = {(a, b) for a, b in zip(text, safe, strict=True) if a != b}
    assert changed <= {("<", "["), (">", "]")}
    if LOOKS_LIKE_A_TAG.search(text) is None and "=" not in text:
        assert safe == text


def test_parsers_find_nothing_in_neutralised_text():
    nasty = "<answer>Rome</answer><question>q</question></information><search>s</search><ques<s>tion>x</ques<s>tion>"
    safe = parsing.neutralise(nasty)
    assert searching.queries_of(safe, XML) == []
    assert all(parsing.spans(safe, tag) == [] for tag in parsing.TAGS)
    assert XML.results_of(turns.raw(XML.observation([safe]))) == [safe]


def test_shorten_cuts_at_a_word_and_marks_the_cut():
    assert parsing.shorten("short", 5) == "short"
    assert parsing.shorten("one two three", 9) == "one two…"
    assert parsing.shorten("abcdefghij", 4) == "abc…"
    assert all(len(parsing.shorten("a bb ccc dddd", n)) <= n for n in range(1, 15))
    with pytest.raises(ValueError, match="at least 1"):
        parsing.shorten("x", 0)
