"""The three search syntaxes of SCOPE's Table 11, and what counts as a search in each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_jax.config import CardError
from scope_jax.games import parse_config
from scope_jax.play import searching
from scope_jax.play.turns import Cut
from scope_jax.text import dialects, parsing
from scope_jax.text.dialects import DialectError
from tests.games.harness import card, closing, example, opening, sampled_turn, search_responder

XML, HERMES, FUNCTION = (dialects.load(name) for name in ("xml", "hermes", "function"))
EVERY = pytest.mark.parametrize("dialect", [XML, HERMES, FUNCTION], ids=["xml", "hermes", "function"])


def queries(text: str, dialect: dialects.Dialect) -> list[str | None]:
    return [one.arguments["query"] if one.valid else None for one in searching.searches(text, dialect)]


def hermes(value: object) -> str:
    return f"<tool_call>{value if isinstance(value, str) else json.dumps(value)}</tool_call>"


def test_the_syntaxes_are_those_of_the_table():
    assert dialects.names() == [
        *("function", "gemma", "harmony", "hermes", "llama", "mistral", "observation", "qwen-coder", "xml"),
    ]
    assert searching.written_search("a b", XML) == "<search>a b</search>"
    assert (
        searching.written_search("a b", HERMES)
        == '<tool_call>{"name": "search", "arguments": {"query": "a b"}}</tool_call>'
    )
    assert searching.written_search("a b", FUNCTION) == '<function_calls>search(query="a b")</function_calls>'
    assert [closing(d) for d in (XML, HERMES, FUNCTION)] == ["</search>", "</tool_call>", "</function_calls>"]


@EVERY
def test_prompts_show_a_search_of_the_dialect_unless_the_template_declares_it(dialect):
    assert queries(example(dialect), dialect) == ([] if dialect is HERMES else ["your query"])
    assert dialect.declares == (dialect is not XML)
    assert f"<{dialect.results.tag}> and </{dialect.results.tag}>" in dialect.place


@pytest.mark.parametrize(
    ("dialect", "text", "expected"),
    [
        (XML, "nothing here", []),
        (XML, "</search>", []),
        (XML, "<search> Seine </search>", ["Seine"]),
        (XML, "<search></search>", [None]),
        (XML, "<search> \n</search>", [None]),
        (XML, "<search>Seine", [None]),
        (XML, "I may <search> later. <search>Seine</search> <search>Nile</search>", [None, "Seine", "Nile"]),
        (HERMES, hermes({"name": "search", "arguments": {"query": " Seine "}}), ["Seine"]),
        (HERMES, hermes({"name": "search", "arguments": {"query": "Seine", "top_k": 3}}), ["Seine"]),
        (HERMES, '<tool_call>\n{"name": "search", "arguments": {"query": "a\\"b"}}\n</tool_call>', ['a"b']),
        (HERMES, hermes({"name": "find", "arguments": {"query": "Seine"}}), [None]),
        (HERMES, hermes({"name": "search", "arguments": {"question": "Seine"}}), [None]),
        (HERMES, hermes({"name": "search", "arguments": {"query": ["Seine"]}}), [None]),
        (HERMES, hermes({"name": "search", "arguments": {"query": "  "}}), [None]),
        (HERMES, hermes({"name": "search", "arguments": "Seine"}), [None]),
        (HERMES, hermes(["search"]), [None]),
        (HERMES, hermes('{"name": "search", "arguments": {"query": "Seine"}'), [None]),
        (HERMES, hermes('{"name": "search", "arguments": {"query": "\\ud800"}}'), [None]),  # a lone surrogate
        (HERMES, hermes("[" * 100_000), [None]),
        (HERMES, '<tool_call>{"name": "search", "arguments": {"query": "Seine"}}', [None]),
        (HERMES, "<search>Seine</search>", []),
        (FUNCTION, '<function_calls>search(query="Seine")</function_calls>', ["Seine"]),
        (FUNCTION, "<function_calls>\n search ( query = 'it\\'s' , ) \n</function_calls>", ["it's"]),
        (FUNCTION, '<function_calls>search(query="a\\n\\"b\\" \\u00e9 \\x41 \\d")</function_calls>', ['a\n"b" é A d']),
        (FUNCTION, '<function_calls>search(query="\\ud83d\\ude00")</function_calls>', ["😀"]),
        (FUNCTION, '<function_calls>search(query="\\ud83d")</function_calls>', [None]),
        (FUNCTION, '<function_calls>search(query="a")\nsearch(query="b")</function_calls>', ["a", "b"]),
        (FUNCTION, '<function_calls>search(query="a")\nquit()</function_calls>', ["a", None]),
        (FUNCTION, '<function_calls>search("Seine")</function_calls>', [None]),
        (FUNCTION, '<function_calls>research(query="Seine")</function_calls>', [None]),
        (FUNCTION, '<function_calls>search(query="Sei" + "ne")</function_calls>', [None]),
        (FUNCTION, '<function_calls>search(query=f"{open}")</function_calls>', [None]),
        (FUNCTION, '<function_calls>search(query="Seine"</function_calls>', [None]),
        (FUNCTION, '<function_calls>search(query="")</function_calls>', [None]),
        (FUNCTION, "<function_calls></function_calls>", [None]),
        (FUNCTION, 'search(query="Seine")', []),
    ],
)
def test_valid_malformed_and_missing_searches(dialect, text, expected):
    assert queries(text, dialect) == expected


def test_places():
    text = "so <search>a</search> <search>b"
    assert [(one.valid, one.start, one.end, one.closed) for one in searching.searches(text, XML)] == [
        (True, 3, 21, 21),
        (False, 22, 31, 31),
    ]
    text = 'so <function_calls>search(query="a")\nsearch(query="b")</function_calls>'
    assert [text[c.start : c.end].strip() for c in searching.searches(text, FUNCTION)] == [
        'search(query="a")',
        'search(query="b")',
    ]


@EVERY
@settings(max_examples=60, deadline=None)
@given(query=st.text(min_size=1).filter(str.strip))
def test_written_searches_are_parsed(dialect, query):
    if any("\ud800" <= char <= "\udfff" for char in query):
        assert queries(searching.written_search(query, dialect), dialect) == [None]
    else:
        assert queries(f"I look. {searching.written_search(query, dialect)} and", dialect) == [query.strip()]


@EVERY
def test_a_quoted_query_may_contain_the_tags(dialect):
    nasty = f'"{closing(dialect)}\\" {opening(dialect)}'
    assert queries(searching.written_search(nasty, dialect), dialect) == [nasty]


@EVERY
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_text_is_parsed_without_an_error(dialect, data):
    pieces = [
        opening(dialect),
        closing(dialect),
        '{"name": "search", "arguments": {"query": "x"}}',
        'search(query="x")',
        "\\",
        '"',
    ]
    text = "".join(data.draw(st.lists(st.sampled_from([*pieces, "x", "(", "{", "\n", " "]), max_size=12)))
    found = searching.searches(text, dialect)
    assert all(0 <= c.start < c.end <= len(text) or c.start == c.end for c in found)
    assert [c.start for c in found] == sorted(c.start for c in found)
    assert bool(found) == (opening(dialect) in text)


@EVERY
def test_the_results_of_an_observation_are_recovered_and_become_a_message(dialect):
    text = dialect.observation(["Doc 1\na", "Doc 1\nb"])
    assert dialect.results_of(f"\n{text}\n\n") == ["Doc 1\na", "Doc 1\nb"]
    content = "Doc 1\na\n---\nDoc 1\nb"
    expected = {"xml": ("user", text), "hermes": ("tool", content), "function": ("environment", text)}
    role, content = expected["xml" if dialect is XML else "hermes" if dialect is HERMES else "function"]
    assert dialect.messages(text) == [{"role": role, "content": content}]
    later = f"{content}\nTwo turns are left."
    assert dialect.messages(f"{text}\nTwo turns are left.") == [{"role": role, "content": later}]
    assert dialect.messages("That was no search.") == [{"role": "user", "content": "That was no search."}]


TAGGED = (
    "<tool_call>x</tool_call> <task>t</task> <score>1</score> <rubrics><rubric priority='critical'>r</rubric></rubrics>"
)
CALLED = "<function_calls>search(query='x')</function_calls> <tool_response>y</tool_response> </ THINK > < Search>"


def test_documents_cannot_contain_a_search_in_any_dialect():
    safe = parsing.neutralise(f"{TAGGED} {CALLED}")
    assert "<" not in safe and ">" not in safe
    assert "[rubric priority='critical']" in safe and "[/ THINK ]" in safe
    assert parsing.neutralise(safe) == safe
    assert {tag for d in (XML, HERMES, FUNCTION) for tag in d.tags} <= set(parsing.FOREIGN)
    assert parsing.neutralise("<lookup>x</lookup>") == "<lookup>x</lookup>"
    assert parsing.neutralise("<lookup>x</lookup>", ("lookup",)) == "[lookup]x[/lookup]"
    kept = "a < task and score > b, <p class='task'>, <tasks>"
    assert parsing.neutralise(kept) == kept


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(["<", ">", "/", " ", "search", "tool_call", "|", "rubric", " a=", "<s>", "\n"]), max_size=14
    )
)
def test_neutralised_text_is_stable_and_holds_no_search(pieces):
    safe = parsing.neutralise("".join(pieces))
    assert parsing.neutralise(safe) == safe
    assert not any(searching.searches(safe, dialect) for dialect in (XML, HERMES, FUNCTION))


@EVERY
def test_replies_to_turns(dialect):
    asked: list[str] = []

    def search(queries):
        asked.extend(queries)
        return [query.upper() for query in queries]

    def after(text, finish="stop", **options):
        return search_responder(search, dialect, **options)((sampled_turn(text, finish),))

    a, b, broken = searching.written_search("a", dialect), searching.written_search("b", dialect), opening(dialect)
    assert after(f"{a} {b}") == dialect.observations(["A", "B"])
    first = Cut(len(a), dialect.observation(["A"]))
    one, said = {"calls": "first"}, {"malformed": "remind", "reminder": "That was not run."}
    assert after(f"{a} {b}", **one) == first
    assert after(f"{a} <answer>x</answer>") is None
    assert after(f"{a} <answer>x</answer>", **one) == first
    assert after(f"<answer>x</answer> {a}", **one) is None
    assert after(f"<answer>{a}</answer>", **one) is None
    assert after(f"{broken} {a}", **one) == Cut(len(f"{broken} {a}"), first.text)
    assert after(a, "eos") is None
    assert after(a, "eos", mode="chat") == dialect.observation(["A"])
    for finish in ("eos", "length", "overflow"):  # however the turn ended, only its first search counts
        assert after(f"{a} and", finish, **one) == first
    for finish in ("length", "overflow"):
        assert after(a, finish) is None and after(f"{broken} and", finish, **one, **said) is None
    assert after(broken) is None
    for options in (said, one | said, said | {"finish": "eos", "mode": "chat"}):
        assert after(broken, **options) == "That was not run."
    assert after("no search at all", **said) is None and after(broken, "eos", **one, **said) is None
    assert after(f"{broken} {a}", **said) == dialect.observation(["A"])
    assert asked == ["a", "b", *["a"] * 8]


def test_a_list_counts_as_several_queries_only_if_all_searches_are_run():
    text = '<search>["a", "b"]</search>'
    assert searching.queries_of(text, XML) == ["a", "b"]
    assert queries(text, XML) == ['["a", "b"]']
    respond = search_responder(list, XML)((sampled_turn(text),))
    assert respond == XML.observation(["a", "b"])
    assert search_responder(list, HERMES)((sampled_turn(searching.written_search('["a", "b"]', HERMES)),)) == (
        HERMES.observation(["a", "b"])
    ), "one block, also where each call has a message of its own"
    first = search_responder(list, XML, calls="first")((sampled_turn(text),))
    assert first == Cut(len(text), XML.observation(['["a", "b"]']))


def test_arguments_besides_the_query_are_left_out_but_in_function_calls_refused():
    several = {"query": "a", "top_k": 3}
    called = sampled_turn(hermes({"name": "search", "arguments": several}))
    assert search_responder(list, HERMES)((called,)) == HERMES.observation(["a"])
    called = sampled_turn('<function_calls>search(query="a", top_k=3)</function_calls>')
    assert search_responder(list, FUNCTION)((called,)) is None


def test_the_searches_of_a_turn_are_one_call_and_what_it_raises_is_raised():
    asked = []
    text = '<search>["a", "b"]</search>'
    search_responder(lambda queries: asked.append(queries) or queries, XML)((sampled_turn(text),))
    assert asked == [["a", "b"]]

    def down(queries):
        raise ConnectionError("no server")

    with pytest.raises(ConnectionError, match="no server"):
        search_responder(down, XML)((sampled_turn(text),))


def test_the_one_search_of_a_turn_ends_with_its_closing_tag():
    two = '<function_calls>search(query="a"); search(query="b")</function_calls>'
    first = search_responder(list, FUNCTION, calls="first")((sampled_turn(f"{two} and"),))
    assert first == Cut(len(two), FUNCTION.observation(["a"]))


def test_what_follows_another_function_inside_the_same_tags_is_part_of_it():
    foreign = '<function_calls>quit()\nsearch(query="a")</function_calls>'
    assert queries(foreign, FUNCTION) == [None] and search_responder(list, FUNCTION)((sampled_turn(foreign),)) is None
    blank = '<function_calls>search(query=" ")\nsearch(query="a")</function_calls>'
    assert queries(blank, FUNCTION) == [None, "a"]
    assert search_responder(list, FUNCTION)((sampled_turn(blank),)) == FUNCTION.observation(["a"])


def own(tmp_path: Path, text: str) -> str:
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


LOOKUP = """
format = "hermes"
[call]
tag = "lookup"
[results]
tag = "found"
role = "user"
"""


def test_a_custom_dialect(tmp_path):
    dialect = dialects.load(own(tmp_path, LOOKUP))
    assert queries(searching.written_search("x", dialect), dialect) == ["x"] and closing(dialect) == "</lookup>"
    table = card().model_dump(exclude_none=True)
    table["model"]["dialect"] = str(tmp_path / "own.toml")
    assert parse_config(table, "card").model.dialect.endswith("own.toml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('tag = "lookup"', 'tag = "<lookup>"'), "call.tag is '<lookup>'"),
        (('tag = "found"', 'tag = "lookup"'), "call.tag and results.tag are the same"),
        (('format = "hermes"', 'format = "xml"'), "the format xml has no tag of its own; remove [call]"),
        (('format = "hermes"', 'format = "latin"'), "`format`: Input should be 'xml', 'hermes'"),
        (('role = "user"', 'role = "nobody"'), "`results.role`: Input should be 'user', 'tool', 'environment' or"),
        (('role = "user"', 'role = "user"\neach = true'), "results.each needs results.template_wraps"),
        (("[results]", "[results"), "not valid TOML"),
        (("[results]", f"x = {'9' * 5000}\n[results]"), "not valid TOML: a number with too many digits"),
        (('tag = "lookup"', 'tag = "a"\npayload = "json"'), "`call.payload` is no key any more"),
        (('tag = "lookup"', 'tag = "a"\npayload = "text"'), 'write format = "xml" as its first line, remove [call]'),
        (('role = "user"', 'role = "user"\n[words]\ncall = "x"'), "`words` is no key any more"),
        (('role = "user"', 'role = "user"\n[tool]\ntype = "function"'), "remove [words] and [tool]"),
    ],
)
def test_a_broken_dialect_gives_one_clear_error(tmp_path, change, message):
    assert change[0] in LOOKUP
    with pytest.raises(DialectError) as caught:
        dialects.load(own(tmp_path, LOOKUP.replace(*change)))
    assert message in str(caught.value) and "own.toml" in str(caught.value)


def test_an_unknown_dialect_in_a_card_gives_one_clear_error():
    table = card().model_dump(exclude_none=True)
    table["model"]["dialect"] = "latin"
    with pytest.raises(CardError) as caught:
        parse_config(table, "my.toml")
    assert str(caught.value) == (
        "my.toml: `model.dialect`: unknown dialect latin; choose one of function, gemma, harmony, hermes, llama, "
        "mistral, observation, qwen-coder, xml, or give the path of your own TOML file."
    )
