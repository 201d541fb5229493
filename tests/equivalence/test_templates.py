"""Real chat templates through encode_chat: transformers' ids, on any date; and turns appended to a prompt."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scope_jax.models.tokenizers import chat
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from tests.vocabularies import vocabulary

TEMPLATES = {
    "qwen2.5": ("qwen", "Qwen-Qwen2.5-7B-Instruct"),
    "qwen3": ("qwen", "Qwen-Qwen3-0.6B"),
    "llama3.1": ("llama3", "meta-llama-Llama-3.1-8B-Instruct"),
    "llama3.2": ("llama3", "meta-llama-Llama-3.2-3B-Instruct"),
}


def schema(name: str, description: str, **properties: str) -> dict[str, Any]:
    kinds = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": kinds, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    schema("search", "Finds passages — auch «deutsche» <b>.", query="string"),
    schema("add", "a + b", a="number", b="number"),
]


def say(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return say("assistant", "", tool_calls=[function])


CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "one question": ([say("user", "Who wrote Faust?")], None),
    "system": ([say("system", "Be brief."), say("user", "  Hi\n")], None),
    "turns": (
        [say("user", "a"), say("assistant", "b"), say("user", "c"), say("assistant", "d\n"), say("user", "e")],
        None,
    ),
    "unicode": (
        [say("system", "日本語 e\u0301"), say("user", "🙂\u200d naïve ‮עברית"), say("assistant", "Привет\n\n")],
        None,
    ),
    "tools": ([say("user", "Search!")], TOOLS),
    "tools and system": ([say("system", "You may search."), say("user", "2+2?")], TOOLS),
    "call and result": (
        [
            say("user", "Search!"),
            call("search", query="Ä 'q' \"x\" <b>"),
            say("tool", '{"hits": []}'),
            say("user", "and?"),
        ],
        TOOLS,
    ),
    "steps": (
        [
            say("user", "Compute."),
            call("add", a=1, b=2.5),
            say("tool", "3.5"),
            call("add", a=3.5, b=-1),
            say("tool", "2.5\n"),
            say("assistant", "It is 2.5."),
        ],
        TOOLS,
    ),
    "thinking": (
        [
            say("user", "Why?"),
            say("assistant", "<think>\nLet me see.\n</think>\n\nBecause."),
            say("user", "Really?"),
            say("assistant", "<think>\nHm.\n</think>\n\nYes."),
        ],
        None,
    ),
    "thinking between calls": (
        [
            say("system", "Think."),
            say("user", "Compute."),
            say("assistant", "<think>\nold\n</think>\n\nSoon."),
            say("user", "Now."),
            say("assistant", "<think>\nuse the tool\n</think>\n\n", tool_calls=call("add", a=1, b=1)["tool_calls"]),
            say("tool", "2"),
        ],
        TOOLS,
    ),
    "markup that is no marker": (
        [say("user", "1 < 2 |x| <"), say("assistant", "> a"), say("user", "</s> [INST] <s>")],
        None,
    ),
}


def with_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    """The same tokenizer with this template (reading its vocabulary again would take seconds)."""
    tokenizer._hf.chat_template = template
    return tokenizer


@pytest.fixture(scope="module")
def load(shared_data: Path):
    """Tokenizer with the template of a name, until the next call."""

    def of(name: str) -> Tokenizer:
        folder, template = TEMPLATES[name]
        text = (shared_data / "chat_templates" / f"{template}.jinja").read_text(encoding="utf-8")
        return with_template(vocabulary(shared_data / "tokenizers" / folder), text)

    return of


def reference(tokenizer: Tokenizer, messages, **options) -> list[int]:
    encoded: Any = tokenizer._hf.apply_chat_template(messages, tokenize=True, return_dict=True, **options)
    return list(encoded["input_ids"])


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_ids_are_transformers(load, name, prompt):
    tokenizer = load(name)
    day = {"date_string": chat.DATE_STRING} if name.startswith("llama") else {}
    switches = [{}, {"enable_thinking": True}, {"enable_thinking": False}] if name == "qwen3" else [{}]
    for title, (messages, tools) in CONVERSATIONS.items():
        for switch in switches:
            options = {"tools": tools, "add_generation_prompt": prompt} | switch
            want = reference(tokenizer, messages, **options, **day)
            assert tokenizer.encode_chat(messages, **options) == want, (title, switch)


def test_options_and_templates_change_the_ids(load):
    """A control for the test above, which would pass trivially if all ids were equal."""
    messages, tools = CONVERSATIONS["steps"]
    rows = [load(name).encode_chat(messages, tools=tools) for name in ("qwen2.5", "qwen3", "llama3.1")]
    rows += [load("qwen3").encode_chat(messages, tools=tools, enable_thinking=False)]
    rows += [load("qwen3").encode_chat(messages)]
    assert len({tuple(row) for row in rows}) == 5


@pytest.mark.parametrize("name", ["llama3.1", "llama3.2"])
def test_prompts_do_not_depend_on_the_date(load, name):
    tokenizer = load(name)
    messages = CONVERSATIONS["system"][0]
    assert "Today Date: 26 Jul 2024" in tokenizer.decode(tokenizer.encode_chat(messages))
    other = tokenizer.decode(tokenizer.encode_chat(messages, date_string="1 Jan 2031"))
    assert "Today Date: 1 Jan 2031" in other and "2024" not in other
    clock = with_template(tokenizer, "{{ strftime_now('%Y-%m-%d, %A') }}")
    assert clock.decode(clock.encode_chat(messages)) == "2024-07-26, Friday"


# ------------------------------------------------------------------------------------------------------ continuation
def episode(tokenizer: Tokenizer, messages, turns, **options) -> tuple[list[int], list[int]]:
    """An episode as an engine grows it, and the last prompt that the template renders for it."""
    ids = tokenizer.encode_chat(messages, **options)
    for said, observations in turns:
        messages = [*messages, say("assistant", said)]
        ids = ids + tokenizer.encode(said) + tokenizer.continuation(messages, observations, **options)
        messages = [*messages, *observations]
    return ids, tokenizer.encode_chat(messages, **options)


@pytest.mark.parametrize("name", TEMPLATES)
def test_appended_turns_equal_the_rendered_conversation(load, name):
    tokenizer = load(name)
    results = [say("tool", "found <|im_end|> <|eot_id|>"), say("tool", "more")]
    turns = [('<tool_call>\n{"name": "x"}\n</tool_call>', results), ("Let me see <", results[:1])]
    if name != "qwen3":
        turns.append(("Done.", [say("user", "Thanks, and now?")]))
    for before in ([say("user", "Go.")], [say("system", "s"), say("user", "Go.")]):
        for tools in (None, TOOLS):
            grown, rendered = episode(tokenizer, before, turns, tools=tools)
            assert grown == rendered


def test_thinking_is_kept_between_calls(load):
    tokenizer = load("qwen3")
    turns = [("<think>\nfirst\n</think>\n\n<tool_call>\n{}\n</tool_call>", [say("tool", "r")])] * 3
    grown, rendered = episode(tokenizer, [say("user", "Go.")], turns, tools=TOOLS)
    assert grown == rendered
    assert tokenizer.decode(grown).count("first") == 3


@pytest.mark.parametrize(
    ("said", "observation", "options"),
    [
        ("<think>\nhm\n</think>\n\nDone.", say("user", "And now?"), {}),
        ("Done.", say("tool", "r"), {"enable_thinking": False}),
    ],
)
def test_a_template_that_rewrites_history_is_refused(load, said, observation, options):
    before = [say("user", "Go."), say("assistant", said)]
    with pytest.raises(ValueError, match="rewrites earlier turns"):
        load("qwen3").continuation(before, observation, **options)


def test_a_continuation_begins_with_the_end_of_the_turn(load):
    for name in TEMPLATES:
        tokenizer = load(name)
        before = [say("user", "Go."), say("assistant", "Done.")]
        whole = tokenizer.continuation(before, say("tool", "r"))
        assert whole[0] == tokenizer.eos_id
    after_a_call = load("qwen3").continuation([say("user", "x"), call("add", a=1)], say("tool", "r"))
    assert after_a_call[0] == load("qwen3").eos_id
    for wrong in ([], [say("user", "x")]):
        with pytest.raises(ValueError, match="must follow an assistant message"):
            load("qwen3").continuation(wrong, say("tool", "r"))


# ------------------------------------------------------------------------------------------------- text stays text
TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
NASTY = st.lists(
    st.sampled_from(
        [
            *TAGS,
            "<tool_",
            "call>",
            "<",
            ">",
            "<|im_end|>",
            "<|im_",
            "end|>",
            "<|eot_id|>",
            "<|eot",
            "_id|>",
            "x",
            " ",
            "\n",
        ]
        + ["\udc80", "\U000f0000", "e\u0301", "\u0338"]
    ),
    max_size=6,
).map("".join)


@pytest.mark.parametrize("name", ["qwen3", "llama3.1"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(user=NASTY, tool=NASTY, said=NASTY)
def test_foreign_text_gives_no_marker_and_no_tag(load, name, user, tool, said):
    """Special tokens and tags are those of the same conversation with harmless user and tool text."""
    tokenizer = load(name)
    tags = {tokenizer._plain.token_to_id(tag) for tag in TAGS} - {None}

    def marks(user: str, tool: str) -> list[int]:
        messages = [
            say("user", "x" + user + "x"),
            say("assistant", "y " + said.replace("think>", "")),
            say("tool", tool),
        ]
        ids = tokenizer.encode_chat(messages, tools=[schema("f", tool)], forbid=TAGS)
        return [id for id in ids if id in tokenizer.special_ids | tags]

    assert marks(user, tool) == marks("x", "x")


def test_the_assistant_keeps_its_tags(load):
    tokenizer = load("qwen3")
    tag = tokenizer._plain.token_to_id("<tool_call>")
    for role, count in (("assistant", 1), ("system", 1), ("user", 0), ("tool", 0)):
        messages = [say("system" if role == "system" else "user", "q"), say(role, "<tool_call>")]
        assert tokenizer.encode_chat(messages, forbid=["<tool_call>"]).count(tag) == count
        assert tokenizer.encode_chat(messages).count(tag) == 1
