"""Tools in the chat formats of single families: prompts, calls, results, thinking, through templates that have them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_jax.errors import UserError
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.tool_calls import SEARCH
from scope_jax.play.turns import Joiner
from scope_jax.rollouts.types import Continuation, Restart, Turn
from scope_jax.text import dialects, parsing
from scope_jax.text.messages import Messages
from tests.play.byte_tokenizer import python, tokenizer_in

SCHEMAS = (SEARCH, python.schema)
MESSAGES = Messages("How long is the Danube?", "Be brief.", SCHEMAS)
Load = Callable[..., Tokenizer]


@pytest.fixture(scope="module")
def load(tmp_path_factory) -> Load:
    return cache(lambda family, template=None: tokenizer_in(tmp_path_factory.mktemp(family), family, template))


def turn_of(tokenizer: Tokenizer, text: str, joiner: Joiner, end: str = "") -> Turn:
    """A sampled turn; end: the end token behind it, "" if it was stopped."""
    ids = np.asarray(tokenizer.encode_marked(text + end), np.int32)
    finish = "eos" if end else "stop"
    return Turn("sampled", ids, np.zeros(len(ids), np.float32), text, finish, thought=joiner.thought)


def after(joiner: Joiner, turn: Turn, *results: str, messages: Messages = MESSAGES) -> Any:
    return joiner.responder(lambda turns: joiner.observations([[one] for one in results]), messages)((turn,))


# ---------------------------------------------------------------------------------------------------------------- Gemma
SEARCHED = '<|tool_call>call:search{query:<|"|>Danube<|"|>}<tool_call|>'
RUN = '<|tool_call>call:python{code:<|"|>1\n<|"|>,seconds:3}<tool_call|>'
RESULT = '<|tool_response>response:search{value:<|"|>2,850 km<|"|>}<tool_response|>'
GEMMA_THOUGHT = "<|channel>thought\nNot <|tool_call>, but a search.<channel|>"


def test_gemma_4_declares_the_tools_and_thinks_in_a_channel(load: Load):
    tokenizer = load("gemma4")
    assert [end.name for end in tokenizer.ends] == ["<eos>", "<turn|>", "<|tool_response>"]
    joiner = Joiner("chat", tokenizer, dialects.load("gemma"), {"enable_thinking": True}, SCHEMAS)
    prompt = tokenizer.decode(joiner.prompt(MESSAGES))
    assert prompt.startswith("<bos><|turn>system\n<|think|>\nBe brief.<|tool>declaration:search{")
    assert prompt.endswith("<|turn>user\nHow long is the Danube?<turn|>\n<|turn>model\n")
    assert joiner.thought == parsing.CHANNEL
    quick = Joiner("chat", tokenizer, dialects.load("gemma"), {}, SCHEMAS)
    assert tokenizer.decode(quick.prompt(MESSAGES)).endswith("<|channel>thought\n<channel|>")
    assert quick.thought == parsing.CHANNEL
    turn = turn_of(tokenizer, GEMMA_THOUGHT + SEARCHED, joiner)
    assert turn.content.strip() == SEARCHED and len(turn.content) == len(turn.text)
    assert parsing.opens_with_thought(turn.text) and parsing.without_thought(turn.text) == SEARCHED


@pytest.mark.parametrize("options", [{}, {"enable_thinking": True}], ids=["quick", "thinking"])
def test_gemma_4_goes_on_behind_the_results_in_the_same_message(load: Load, options: dict[str, Any]):
    tokenizer = load("gemma4")
    joiner = Joiner("chat", tokenizer, dialects.load("gemma"), options, SCHEMAS)
    turn = turn_of(tokenizer, GEMMA_THOUGHT + SEARCHED, joiner, "<|tool_response>")
    reply = after(joiner, turn, "2,850 km")
    assert isinstance(reply, Continuation) and reply.kept is None
    assert "<|tool_response>" + tokenizer.decode(reply.ids) == RESULT
    two = turn_of(tokenizer, SEARCHED + RUN, joiner, "<|tool_response>")
    other = '<|tool_response>response:python{value:<|"|>error: <turn|><|"|>}<tool_response|>'
    reply = after(joiner, two, "2,850 km", "error: <turn|>")
    assert "<|tool_response>" + tokenizer.decode(reply.ids) == RESULT + other
    marks = [tokenizer.decode([id]) for id in reply.ids if id in tokenizer.special_ids]
    assert "<turn|>" not in marks, "the one in the result is text"
    stopped = after(joiner, turn_of(tokenizer, SEARCHED, joiner), "2,850 km")
    assert tokenizer.decode(stopped.ids) == RESULT
    ended = after(joiner, turn_of(tokenizer, SEARCHED, joiner, "<turn|>"), "2,850 km")
    assert tokenizer.decode(ended.ids) == RESULT
    call = {"id": "1", "function": {"name": "search", "arguments": {"query": "Danube"}}}
    said = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2,850 km"},
    ]
    whole = tokenizer.encode_chat([*MESSAGES.conversation(), *said], tools=SCHEMAS, **options)
    prompt = tokenizer.encode_chat(MESSAGES.conversation(), tools=SCHEMAS, **options)
    thought = len(tokenizer.encode_marked("<|channel>thought\n<channel|>")) if not options else 0
    assert whole == [*prompt[: len(prompt) - thought], *tokenizer.encode_marked(SEARCHED), *stopped.ids]


def test_gemma_4_without_earlier_thinking(load: Load):
    tokenizer = load("gemma4")
    joiner = Joiner("chat-trimmed", tokenizer, dialects.load("gemma"), {"enable_thinking": True}, SCHEMAS)
    reply = after(joiner, turn_of(tokenizer, GEMMA_THOUGHT + SEARCHED, joiner, "<|tool_response>"), "2,850 km")
    assert isinstance(reply, Restart)
    assert tokenizer.decode(reply.prompt_ids).endswith(f"<|turn>model\n{SEARCHED}{RESULT}")
    calls = [id for id in reply.prompt_ids if tokenizer.decode([id]) == "<|tool_call>"]
    assert len(calls) == 1, "the call is the template's"
    broken = turn_of(tokenizer, "<|tool_call>call:search{query:Danube}<tool_call|>", joiner, "<|tool_response>")
    reply = after(joiner, broken, "error: no value")
    assert "call:search{query:Danube}<tool_call|><|tool_response>response:search{value:" in tokenizer.decode(
        reply.prompt_ids
    )
    asked = joiner.responder(lambda turns: "In km?", MESSAGES)((turn_of(tokenizer, "It is long.", joiner, "<turn|>"),))
    assert isinstance(asked, Restart)
    assert tokenizer.decode(asked.prompt_ids).endswith(
        "<|turn>model\nIt is long.<turn|>\n<|turn>user\nIn km?<turn|>\n<|turn>model\n"
    )


def test_a_template_whose_results_are_messages_of_their_own_is_refused(tmp_path: Path):
    """As Gemma 4's first ones, which know results only as a part of the call's message."""
    tokenizer = tokenizer_in(tmp_path, "gemma4")
    own = (tmp_path / "chat_template.jinja").read_text(encoding="utf-8")
    text = own.replace("if message.role != 'tool'", "").replace("other.role == 'tool'", "false")
    tokenizer._hf.chat_template = text
    with pytest.raises(UserError, match=r"does not show results behind the call.*set model\.chat_template to a newer"):
        Joiner("chat", tokenizer, dialects.load("gemma"), {}, SCHEMAS)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<|tool_call>call:search{query:Danube}<tool_call|>", '"Danube" is no value; text stands between quotes'),
        ('<|tool_call>call:search{query:<|"|>Danube}<tool_call|>', "a quote is not closed"),
        ("<|tool_call>search()<tool_call|>", "call:name{argument:value} is needed"),
        ('<|tool_call>call:search{query:<|"|>a<|"|>,query:1}<tool_call|>', "twice"),
        ('<|tool_call>call:search{query:<|"|>a<|"|>}', "is not closed"),
        ("<|tool_call>call:search{" + "a:[" * 40 + "]" * 40 + "}<tool_call|>", "nested deeper"),
    ],
)
def test_malformed_calls_of_gemma_4_say_why(text: str, error: str):
    (call,) = dialects.load("gemma").read(text, SCHEMAS)
    assert error in call.error


def test_gemma_4s_values():
    text = '<|tool_call>call:f{a:<|"|>x: {1}, "q"<|"|>,b:[1,-2.5e3,true,None],c:{d:{}},"e f":"\\u00e9"}<tool_call|>'
    (call,) = dialects.load("gemma").read(text, ())
    assert call.arguments == {"a": 'x: {1}, "q"', "b": [1, -2500.0, True, None], "c": {"d": {}}, "e f": "é"}


def test_gemma_3_has_no_role_for_tools(load: Load):
    """Tools are described in the system message, results are the user's."""
    tokenizer = load("gemma3")
    joiner = Joiner("chat", tokenizer, dialects.load("xml"), {}, SCHEMAS)
    prompt = tokenizer.decode(joiner.prompt(MESSAGES))
    assert prompt.startswith("<bos><start_of_turn>user\nBe brief.\n\nYou may call these functions")
    reply = after(joiner, turn_of(tokenizer, "<search>Danube</search>", joiner, "<end_of_turn>"), "2,850 km")
    shown = "\n<start_of_turn>user\n<information>\n2,850 km\n</information><end_of_turn>\n<start_of_turn>model\n"
    assert isinstance(reply, Continuation) and tokenizer.decode(reply.ids) == shown
    with pytest.raises(UserError, match=r"leaves out the tools that model\.dialect declares"):
        Joiner("chat", tokenizer, dialects.load("hermes"), {}, SCHEMAS)


# -------------------------------------------------------------------------------------------------------------- Mistral
@pytest.mark.parametrize("mode", ["chat", "chat-trimmed"])
@pytest.mark.parametrize("template", ["mistral", "mistral_v3"])
def test_mistrals_calls_and_results(load: Load, template: str, mode: Any):
    tokenizer = load("mistral", template)
    messages = Messages("How long is the Danube?", None if template == "mistral_v3" else "Be brief.", SCHEMAS)
    joiner = Joiner(mode, tokenizer, dialects.load("mistral"), {}, SCHEMAS)
    prompt = tokenizer.decode(joiner.prompt(messages))
    assert prompt.endswith("How long is the Danube?[/INST]") and "[AVAILABLE_TOOLS]" in prompt
    calls = [{"name": "search", "arguments": {"query": "Danube"}}, {"name": "python", "arguments": {"code": "1"}}]
    if template == "mistral":
        said = '[TOOL_CALLS]search[ARGS]{"query": "Danube"}[TOOL_CALLS]python[ARGS]{"code": "1"}'
        results = "[TOOL_RESULTS]2,850 km[/TOOL_RESULTS][TOOL_RESULTS]1[/TOOL_RESULTS]"
        rendered = said
    else:
        said = '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "Danube"}, "id": "a"}, '
        said += '{"name": "python", "arguments": {"code": "1"}, "id": "b"}]'
        results = "".join(
            f'[TOOL_RESULTS] {{"content": {one}, "call_id": "call0000{place}"}}[/TOOL_RESULTS]'
            for place, one in enumerate(("2,850 km", "1"))
        )
        rendered = said.replace('"a"', '"call00000"').replace('"b"', '"call00001"')
    found = dialects.load("mistral").read(said, SCHEMAS)
    assert [(one.name, one.arguments) for one in found] == [(one["name"], one["arguments"]) for one in calls]
    reply = after(joiner, turn_of(tokenizer, said, joiner, "</s>"), "2,850 km", "1", messages=messages)
    if mode == "chat":
        assert isinstance(reply, Continuation) and tokenizer.decode(reply.ids) == results
    else:
        assert isinstance(reply, Restart)
        text = tokenizer.decode(reply.prompt_ids)
        assert text.replace(", ", ",").endswith(f"{rendered}</s>{results}".replace(", ", ","))
        assert sum(tokenizer.decode([id]) == "[TOOL_CALLS]" for id in reply.prompt_ids) == rendered.count(
            "[TOOL_CALLS]"
        )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('[TOOL_CALLS]search[ARGS]{"query": "a"', "the call of search cannot be read: it is not JSON"),
        ("[TOOL_CALLS] []", "the list of calls is empty"),
        ('[TOOL_CALLS] [{"name": "search"}]', '"arguments" must be an object'),
        ("[TOOL_CALLS] [1]", 'an object with "name" and "arguments" is needed'),
        ("[TOOL_CALLS]", "a name, [ARGS] and a JSON object are needed"),
    ],
)
def test_malformed_calls_of_mistral_say_why(text: str, error: str):
    (call,) = dialects.load("mistral").read(text, SCHEMAS)
    assert error in call.error


def test_mistrals_calls_with_identifiers():
    text = 'So [TOOL_CALLS]search[CALL_ID]abc123def[ARGS]{"query": "a"}'
    (call,) = dialects.load("mistral").read(text, SCHEMAS)
    assert call.arguments == {"query": "a"} and text[call.start : call.end] == text[3:]


# ------------------------------------------------------------------------------------------------------------- Qwen 3.5
CODED = "<tool_call>\n<function=search>\n<parameter=query>\nDanube\n</parameter>\n</function>\n</tool_call>"
QWEN_RESULT = (
    "\n<|im_start|>user\n<tool_response>\n2,850 km\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n"
)


def test_qwen_3_5_keeps_its_thinking_between_calls(load: Load):
    """The prompt opens the thinking, and the template keeps that since the last question."""
    tokenizer = load("qwen3_5")
    joiner = Joiner("chat", tokenizer, dialects.load("qwen-coder"), {}, SCHEMAS)
    prompt = joiner.prompt(MESSAGES)
    assert tokenizer.decode(prompt).endswith("<|im_start|>assistant\n<think>\n")
    said = f"I search.\n</think>\n\n{CODED}"
    turn = turn_of(tokenizer, said, joiner, "<|im_end|>")
    reply = after(joiner, turn, "2,850 km")
    assert isinstance(reply, Continuation) and tokenizer.decode(reply.ids) == QWEN_RESULT
    conversation = [
        *MESSAGES.conversation(),
        {"role": "assistant", "content": said},
        {"role": "tool", "content": "2,850 km"},
    ]
    assert [*prompt, *turn.ids.tolist(), *reply.ids] == tokenizer.encode_chat(
        conversation, tools=SCHEMAS, trusted=("assistant", "system", "user")
    )
    quick = Joiner("chat", tokenizer, dialects.load("qwen-coder"), {"enable_thinking": False}, SCHEMAS)
    reply = after(quick, turn_of(tokenizer, CODED, quick, "<|im_end|>"), "2,850 km")
    assert tokenizer.decode(reply.ids) == QWEN_RESULT + "\n</think>\n\n"


def test_qwen_3_5_leaves_out_thinking_once_a_new_question_comes(load: Load):
    with pytest.raises(UserError, match=r'choose model\.turns = "chat-trimmed"'):
        Joiner("chat", load("qwen3_5"), dialects.load("xml"), {}, SCHEMAS)
    tokenizer = load("qwen3_5")
    joiner = Joiner("chat-trimmed", tokenizer, dialects.load("qwen-coder"), {}, SCHEMAS)
    reply = after(joiner, turn_of(tokenizer, f"I search.\n</think>\n\n{CODED}", joiner, "<|im_end|>"), "2,850 km")
    assert tokenizer.decode(reply.prompt_ids).endswith(f"<think>\n\n</think>\n\n{CODED}<|im_end|>{QWEN_RESULT}")


# -------------------------------------------------------------------------------------------------------------- SmolLM3
@pytest.mark.parametrize("thinks", [True, False])
def test_smollm3_calls_as_hermes_does(load: Load, thinks: bool):
    tokenizer = load("smollm3")
    joiner = Joiner("chat", tokenizer, dialects.load("hermes"), {"enable_thinking": thinks}, SCHEMAS)
    call = joiner.dialect.write(
        joiner.dialect.read('<tool_call>{"name": "search", "arguments": {"query": "a"}}</tool_call>', SCHEMAS)[0],
        SCHEMAS,
    )
    reply = after(joiner, turn_of(tokenizer, call, joiner, "<|im_end|>"), "2,850 km")
    opened = "" if thinks else "<think>\n\n</think>\n"
    shown = f"\n<|im_start|>user\n2,850 km<|im_end|>\n<|im_start|>assistant\n{opened}"
    assert isinstance(reply, Continuation) and tokenizer.decode(reply.ids) == shown


def test_the_dialect_that_a_template_seems_to_have_is_named(load: Load):
    with pytest.raises(UserError, match=r"does not mention <tool_call>.* its own seems to be gemma: choose"):
        Joiner("chat", load("gemma4"), dialects.load("hermes"), {}, SCHEMAS)
