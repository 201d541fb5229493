"""Harmony, the format of gpt-oss: channels, calls, and conversations through a template that has them."""

from __future__ import annotations

import numpy as np
import pytest

from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.searching import queries_of, written_search
from scope_jax.play.tool_calls import SEARCH
from scope_jax.play.turns import Joiner
from scope_jax.rollouts.types import Continuation, Restart, Turn
from scope_jax.serving.functions import Functions, ReplyReader
from scope_jax.text import dialects, parsing
from scope_jax.text.dialects import Call, harmony
from scope_jax.text.messages import Messages
from tests.play.byte_tokenizer import python, tokenizer_in

DIALECT = dialects.load("harmony")
THOUGHT = "<|channel|>analysis<|message|>Not <|call|>, but a search.<|end|><|start|>assistant"
CALLED = '<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": "Danube"}'
ANSWERED = "<|channel|>final<|message|>It is long."


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return tokenizer_in(tmp_path_factory.mktemp("harmony"), "harmony")


def test_the_messages_of_a_turn():
    one, two = harmony.messages(THOUGHT + CALLED)
    assert (one.channel, one.recipient) == ("analysis", "") and (two.channel, two.recipient) == (
        "commentary",
        "functions.search",
    )
    assert (THOUGHT + CALLED)[two.start : two.end] == f"<|start|>assistant{CALLED}"
    before = ' to=functions.search<|channel|>commentary json<|message|>{"query": "a"}<|call|>'
    assert harmony.calls(before) == [Call("search", {"query": "a"})]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (CALLED, ["Danube"]),
        (CALLED + "<|call|>", ["Danube"]),
        (f"{THOUGHT}{CALLED}", ["Danube"]),
        (ANSWERED, []),
        (f"{THOUGHT}{ANSWERED}<|return|>", []),
        ('<|channel|>analysis<|message|>commentary to=functions.search {"query": "a"}', []),
        (CALLED[:-1], []),  # malformed
        ("<|channel|>commentary to=functions.search", []),
        ("", []),
    ],
)
def test_searches(text, found):
    assert queries_of(parsing.without_thinking(text), DIALECT) == found


def test_malformed_calls_say_why():
    (call,) = DIALECT.read(CALLED[:-1], [SEARCH])
    assert call.error.startswith("error: the call of search cannot be read: it is not JSON")
    (call,) = DIALECT.read(CALLED.replace('{"query": "Danube"}', "[1]"), [SEARCH])
    assert call.error.endswith("a JSON object with its arguments is needed")


def test_written_calls_are_read_and_hold_no_mark():
    nasty = "<|call|> <|end|>\n\"'"
    text = written_search(nasty, DIALECT)
    assert text.count("<|call|>") == 1 and queries_of(text, DIALECT) == [nasty]


def test_thinking_is_the_channel_analysis(tokenizer):
    joiner = Joiner("chat", tokenizer, DIALECT)
    assert joiner.thought == parsing.ANALYSIS
    turn = turn_of(tokenizer, THOUGHT + CALLED + "<|call|>", joiner)
    assert turn.content.lstrip() == f"<|start|>assistant{CALLED}" and len(turn.content) == len(turn.text)
    assert parsing.opens_with_thought(THOUGHT + ANSWERED) and not parsing.opens_with_thought(ANSWERED)


def test_what_a_user_reads():
    said = "<|channel|>commentary<|message|>I search.<|end|><|start|>assistant"
    assert harmony.shown(THOUGHT + said + CALLED) == "I search."
    assert harmony.shown(THOUGHT + ANSWERED) == "It is long."
    assert harmony.shown("no marks") == "no marks" and harmony.shown(CALLED) == ""
    whole = THOUGHT + said + THOUGHT + ANSWERED + " a < b <|return|>"
    reader, seen = ReplyReader(None, parsing.ANALYSIS, False, True), ""
    for char in whole:
        seen += reader.feed(char)
        assert harmony.shown(whole).startswith(seen)
    assert seen + reader.finish()[0] == "I search.\nIt is long. a < b "


def test_calls_of_a_clients_functions():
    functions = Functions((python.schema,), (python,), DIALECT, False)
    reader, called = (
        ReplyReader(functions, parsing.ANALYSIS, False, True),
        CALLED.replace("search", "python").replace("query", "code"),
    )
    assert reader.feed(THOUGHT + called) == "" and reader.finish() == ("", [Call("python", {"code": "Danube"})])
    reader = ReplyReader(functions, parsing.ANALYSIS, False, True)
    assert reader.feed(THOUGHT + CALLED) == "" and reader.finish() == ("", []), "it has no such function"


def test_a_call_in_a_thought_that_never_ends_is_none_for_clients_as_in_training():
    functions = Functions((python.schema,), (python,), DIALECT, False)
    text = "<|channel|>analysis<|message|>Perhaps<|start|>assistant" + CALLED.replace("search", "python")
    reader = ReplyReader(functions, parsing.ANALYSIS, False, True)
    assert (reader.feed(text), reader.finish()) == ("", ("", []))
    (call,) = DIALECT.read(text, [python.schema])
    assert call.valid, "without the thought it is one"


def turn_of(tokenizer: Tokenizer, text: str, joiner: Joiner) -> Turn:
    """A sampled turn of this text, whose last mark is its end token."""
    ids = np.asarray(tokenizer.encode_marked(text), np.int32)
    shown = text.removesuffix("<|call|>").removesuffix("<|return|>")
    return Turn("sampled", ids, np.zeros(len(ids), np.float32), shown, "eos", thought=joiner.thought)


def test_a_result_follows_its_call(tokenizer):
    """The tokens in between are the template's, and the sampled ones stay."""
    joiner = Joiner("chat", tokenizer, DIALECT, tools=(SEARCH, python.schema))
    messages = Messages("How long is the Danube?", "Be brief.", (SEARCH, python.schema))
    prompt = tokenizer.decode(joiner.prompt(messages))
    assert prompt.endswith("How long is the Danube?<|end|><|start|>assistant")
    assert all(word in prompt for word in ("type search", "type python", "What to look for.", '"integer"', "Be brief."))
    turn = turn_of(tokenizer, THOUGHT + CALLED + "<|call|>", joiner)
    reply = joiner.responder(lambda turns: joiner.observations([["2,850 km <|end|>"]]), messages)((turn,))
    assert isinstance(reply, Continuation) and reply.kept is None
    result = '<|start|>functions.search to=assistant<|channel|>commentary<|message|>"2,850 km <|end|>"<|end|>'
    assert tokenizer.decode(reply.ids) == f"{result}<|start|>assistant"
    marks = [id for id in reply.ids if id in tokenizer.special_ids]
    assert len(marks) == 5  # the one in the result is text
    call = {"function": {"name": "search", "arguments": {"query": "Danube"}}}
    said = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "2,850 km <|end|>"}]
    whole = tokenizer.encode_chat([*messages.conversation(), *said], tools=[SEARCH, python.schema])
    assert whole[-len(reply.ids) :] == list(reply.ids)


def test_a_question_follows_an_answer(tokenizer):
    joiner, messages = Joiner("chat", tokenizer, DIALECT), Messages("How long is the Danube?")
    turn = turn_of(tokenizer, THOUGHT + ANSWERED + "<|return|>", joiner)
    reply = joiner.responder(lambda turns: "In km?", messages)((turn,))
    assert isinstance(reply, Continuation)
    assert tokenizer.decode(reply.ids) == "<|start|>user<|message|>In km?<|end|><|start|>assistant"


def test_conversations_without_earlier_thinking(tokenizer):
    joiner = Joiner("chat-trimmed", tokenizer, DIALECT, tools=(SEARCH,))
    messages = Messages("How long is the Danube?", tools=(SEARCH,))
    turn = turn_of(tokenizer, THOUGHT + CALLED + "<|call|>", joiner)
    reply = joiner.responder(lambda turns: joiner.observations([["2,850 km"]]), messages)((turn,))
    assert isinstance(reply, Restart)
    text = tokenizer.decode(reply.prompt_ids)
    assert text.startswith(tokenizer.decode(joiner.prompt(messages)).removesuffix("<|start|>assistant"))
    call = '<|start|>assistant to=functions.search<|channel|>commentary json<|message|>{"query": "Danube"}<|call|>'
    result = '<|start|>functions.search to=assistant<|channel|>commentary<|message|>"2,850 km"<|end|>'
    assert text.endswith(f"<|end|>{call}{result}<|start|>assistant") and "Not <|call|>" not in text
    broken = turn_of(tokenizer, CALLED[:-1] + "<|call|>", joiner)
    reply = joiner.responder(lambda turns: joiner.observations([["error: not JSON"]]), messages)((broken,))
    assert isinstance(reply, Restart) and "error: not JSON" in tokenizer.decode(reply.prompt_ids)


def test_other_formats_on_such_a_template(tokenizer):
    """The games' prompts describe XML tags; their thinking is the channel's all the same."""
    joiner = Joiner("chat", tokenizer, dialects.load("xml"))
    messages = Messages("How long is the Danube?")
    turn = turn_of(tokenizer, THOUGHT + "<|channel|>final<|message|><search>Danube</search><|return|>", joiner)
    reply = joiner.responder(lambda turns: joiner.observations([["2,850 km"]]), messages)((turn,))
    assert isinstance(reply, Continuation) and joiner.thought == parsing.ANALYSIS
    assert tokenizer.decode(reply.ids).startswith("<|start|>user<|message|><information>")


def test_the_ends_of_a_reply(tokenizer):
    assert [end.name for end in tokenizer.ends] == ["<|return|>", "<|call|>"]
