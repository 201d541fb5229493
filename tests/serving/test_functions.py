"""Functions of the client, asked by OpenAI's client: prompts, calls, streams, earlier calls, and what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import httpx
import httpx2
import openai
import pydantic
import pytest

from scope_jax.models.tokenizers.chat import DATE_STRING
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.serving.assemble import Served
from scope_jax.serving.functions import ReplyReader, functions_of
from scope_jax.serving.generating import chat_job
from scope_jax.serving.protocol import ApiError, ChatBody, parsed
from scope_jax.text import dialects
from scope_jax.text.dialects import Call
from tests.play import templates
from tests.play.byte_tokenizer import tokenizer_in
from tests.play.freezing_schemas import CASES
from tests.serving.scripted import scripted
from tests.serving.world import BASE, JSON, serving

EQUIVALENCE = Path(__file__).parents[1] / "equivalence"
PYTHON = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Runs a program.",
        "parameters": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "In Python 3.", "pattern": "(a+)+$"},
                "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            },
            "required": ["code"],
        },
    },
}
ADD = {
    "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}, "type": "object"}},
    "type": "function",
}
TOOLS = [PYTHON, ADD]
CALLS = [Call("python", {"code": "print('é <|im_end|>')\n", "limit": 2}), Call("add", {"a": 1})]
FORMS = {  # by name: template, dialect; hermes has Qwen's vocabulary, the others bytes
    "hermes": ("Qwen-Qwen2.5-7B-Instruct.jinja", "hermes"),
    "qwen3": ("Qwen-Qwen3-0.6B.jinja", "hermes"),
    "qwen-coder": (EQUIVALENCE / "qwen3_coder.jinja", "qwen-coder"),
    "llama": ("meta-llama-Llama-3.1-8B-Instruct.jinja", "llama"),
    "function": (EQUIVALENCE.parent / "games" / "olmo3.jinja", "function"),
    "xml": ("Qwen-Qwen2.5-7B-Instruct.jinja", "xml"),
}
Make = Callable[..., Served]


@pytest.fixture(scope="module")
def make(model: Served, shared_data: Path) -> Make:
    """A served model of a form, with given replies."""

    def of(form: str, says: Any = lambda prompt: "", **options: Any) -> Served:
        template, dialect = FORMS[form]
        if form == "hermes":
            tokenizer = templates.published("qwen", "Qwen-Qwen2.5-7B-Instruct")
        else:
            tokenizer = templates.tokenizer_of(shared_data / "chat_templates" / template)
        return scripted(model, tokenizer, dialect, says, **options)

    return of


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def ask(**more: Any) -> ChatBody:
    return parsed(ChatBody, json.dumps({"model": "atlas", "messages": [user("2 + 2?")], **more}).encode())


def said(*calls: Call, content: str | None = None) -> list[dict[str, Any]]:
    """A message of the assistant with calls, and their results, the last one first."""
    ids = [f"call_{place}" for place in range(len(calls))]
    shown = [
        {"id": id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))}}
        for id, call in zip(ids, calls, strict=True)
    ]
    results = [{"role": "tool", "tool_call_id": id, "content": f"result of {id} <tool_call>"} for id in ids]
    return [{"role": "assistant", "content": content, "tool_calls": shown}, *results[::-1]]


def client(url: str) -> Any:
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, http_client=httpx2.Client(trust_env=False))


# -------------------------------------------------------------------------------------------------------------- prompts
@pytest.mark.parametrize("form", [form for form in FORMS if form != "xml"])
def test_the_prompt_is_transformers_own(make: Make, form: str) -> None:
    model = make(form)
    (ids,) = chat_job(model, ask(tools=TOOLS)).prompts
    given: dict[str, Any] = {"add_generation_prompt": True, "return_dict": False, "date_string": DATE_STRING}
    hf: Any = model.tokenizer._hf
    assert list(ids) == hf.apply_chat_template([user("2 + 2?")], tools=TOOLS, **given)
    (none,) = chat_job(model, ask(tools=TOOLS, tool_choice="none")).prompts
    assert list(none) == hf.apply_chat_template([user("2 + 2?")], **given)


@pytest.mark.parametrize("form", FORMS)
def test_earlier_calls_are_written_in_the_dialect_and_read_back(make: Make, form: str) -> None:
    model, dialect = make(form), dialects.load(FORMS[form][1])
    calls = CALLS[:1] if form == "llama" else CALLS
    (ids,) = chat_job(model, ask(messages=[user("2 + 2?"), *said(*calls)], tools=TOOLS)).prompts
    text = model.tokenizer.decode(ids)
    (before,) = chat_job(model, ask(tools=TOOLS)).prompts
    assert text.startswith(model.tokenizer.decode(before))
    reply = text[len(model.tokenizer.decode(before)) :]
    if form == "llama":
        reply = reply.partition("<|eot_id|>")[0]
    assert dialect.read(reply.partition("result of")[0], TOOLS) == calls
    places = [text.index(f"result of call_{place}") for place in range(len(calls))]
    assert places == sorted(places)  # in the order of the calls, not in that of the messages
    assert [id for id in ids if id in model.tokenizer.special_ids] == [  # none is the client's
        id
        for id in model.tokenizer.encode_marked(text.replace("é <|im_end|>", "é"))
        if id in model.tokenizer.special_ids
    ]


@pytest.mark.parametrize("form", ["hermes", "qwen3"])
def test_earlier_calls_are_as_transformers_renders_them(make: Make, form: str) -> None:
    model = make(form)
    earlier = said(*CALLS[1:], content="I add.")
    (ids,) = chat_job(model, ask(messages=[user("2 + 2?"), *earlier], tools=TOOLS)).prompts
    function = {"name": "add", "arguments": {"a": 1}}
    assistant = {"role": "assistant", "content": "I add.", "tool_calls": [{"type": "function", "function": function}]}
    hf: Any = model.tokenizer._hf
    expected = hf.apply_chat_template(
        [user("2 + 2?"), assistant, {"role": "tool", "content": "result of call_0 <tool_call>"}],
        tools=TOOLS,
        add_generation_prompt=True,
        tokenize=False,
    )
    assert model.tokenizer.decode(ids) == expected
    tag = hf.convert_tokens_to_ids("<tool_call>")
    assert list(ids).count(tag) == model.tokenizer.encode_marked(expected).count(tag) - 1  # the result's is characters


def test_atlas_gets_the_functions_in_its_system_message(model: Served) -> None:
    model = scripted(model, model.tokenizer, "xml", lambda prompt: "")
    (ids,) = chat_job(model, ask(messages=[{"role": "system", "content": "Be brief."}, user("x")], tools=[ADD])).prompts
    text = model.tokenizer.decode(ids)
    assert "Be brief.\n\nYou may call these functions" in text and json.dumps(ADD) in text and '<add>{"a": …}' in text


# ---------------------------------------------------------------------------------------------------------------- calls
def written(form: str, *calls: Call) -> str:
    dialect = dialects.load(FORMS[form][1])
    return "\n".join(dialect.write(call, TOOLS) for call in calls)


def replies(form: str) -> dict[str, tuple[str, str | None, list[Call], str]]:
    """By name: what the model writes, and the content, calls and end of the reply."""
    two = CALLS[:1] if form == "llama" else CALLS
    ask_two, plain = written(form, *two), "No <b> call < here.  \n"
    cases = {
        "calls": (ask_two, None, two, "tool_calls"),
        "none": (plain, plain, [], "stop"),
        "unknown": (written(form, Call("run", {})), written(form, Call("run", {})), [], "stop"),
        "cut off": (ask_two + "\nand…", "and", two, "length"),
    }
    if form == "llama":
        broken = '{"name": "add", "parameters": {"a": 1}'
        return {**cases, "cut off": (broken + "…", broken, [], "length"), "malformed": (broken, broken, [], "stop")}
    thought = f"<think>{ask_two}</think>\n\n"
    torn = written(form, CALLS[0])[:-3]
    return cases | {
        "text before": (f"I run it.\n\n{ask_two}", "I run it.", two, "tool_calls"),
        "text around": (f"One.\n{ask_two}\nTwo.\n", "One.\nTwo.", two, "tool_calls"),
        "in a thought": (thought + "So be it.", thought + "So be it.", [], "stop"),
        "after a thought": (thought + ask_two, thought.rstrip(), two, "tool_calls"),
        "torn": (f"Well: {torn}…", f"Well: {torn}", [], "length"),
    }


@pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=[] if form in ("hermes", "qwen-coder", "llama") else pytest.mark.slow) for form in FORMS],
)
def test_calls_of_a_reply_whole_and_streamed(make: Make, form: str) -> None:
    cases = replies(form)
    if form == "xml":  # tags of functions that there are not are text
        cases.pop("unknown")
    for pace in (1, 50):
        model = make(form, lambda prompt: cases[prompt.split("case: ")[1].split("!")[0]][0], pace=pace)
        with serving(model) as told, client(told["http"]) as talk:
            for name, (_, content, calls, finish) in cases.items():
                chat = {"model": "atlas", "messages": [user(f"case: {name}!")], "tools": TOOLS}
                whole = talk.chat.completions.create(**chat).choices[0]
                found = [
                    Call(one.function.name, json.loads(one.function.arguments))
                    for one in whole.message.tool_calls or ()
                ]
                assert (whole.message.content, found, whole.finish_reason) == (content, calls, finish), (form, name)
                assert all(one.type == "function" for one in whole.message.tool_calls or ())
                assert len({one.id for one in whole.message.tool_calls or ()}) == len(calls)
                assert streamed(talk, chat) == (content, calls, finish)


def streamed(talk: Any, chat: dict[str, Any]) -> tuple[str | None, list[Call], str | None]:
    """Content, calls and end of a streamed reply."""
    content, calls, finish = None, dict[int, list[str]](), None
    for chunk in talk.chat.completions.create(**chat, stream=True):
        delta, finish = chunk.choices[0].delta, chunk.choices[0].finish_reason
        if delta.content is not None:
            content = (content or "") + delta.content
        for one in delta.tool_calls or ():
            if one.id is not None:  # the first of a call
                assert one.index == len(calls) and one.type == "function"
                calls[one.index] = [one.function.name, ""]
            calls[one.index][1] += one.function.arguments
    return content, [Call(name, json.loads(arguments)) for name, arguments in calls.values()], finish


def test_one_call_at_most_if_the_client_wants_it_so(make: Make) -> None:
    model = make("hermes", lambda prompt: "First." + written("hermes", *CALLS) + "Rest.")
    job = chat_job(model, ask(tools=TOOLS, parallel_tool_calls=False))
    assert job.params.stop == ("</tool_call>",) and job.stops == ()
    with serving(model) as told, client(told["http"]) as talk:
        chat = {"model": "atlas", "messages": [user("x")], "tools": TOOLS, "parallel_tool_calls": False}
        reply = talk.chat.completions.create(**chat).choices[0]
    assert [call.function.name for call in reply.message.tool_calls] == ["python"]
    assert reply.message.content == "First." and reply.finish_reason == "tool_calls"


def test_strict_functions_are_called_with_arguments_of_their_schema_only(make: Make) -> None:
    wrong = written("hermes", Call("add", {"a": "1"}))
    for strict, calls in ((True, 0), (False, 1)):
        tools = [{"type": "function", "function": {**ADD["function"], "strict": strict}}]
        functions = functions_of(make("hermes"), ask(tools=tools))
        assert functions is not None
        content, found = read(functions, wrong, 5)
        assert len(found) == calls and content == ("" if calls else wrong)


def read(functions: Any, text: str, pace: int) -> tuple[str, list[Call]]:
    reader = ReplyReader(functions, ("<think>", "</think>"), False, False)
    shown = "".join(reader.feed(text[place : place + pace]) for place in range(0, len(text), pace))
    rest, calls = reader.finish()
    return shown + rest, calls


@pytest.mark.parametrize("form", FORMS)
def test_a_reply_is_the_same_however_it_arrives(make: Make, form: str) -> None:
    """Calls, torn calls, tags and thoughts in any order, in pieces of any length."""
    draw = Random(form)
    functions = functions_of(make(form), ask(tools=TOOLS))
    assert functions is not None
    whole = written(form, *CALLS[:1])
    parts = [
        whole,
        whole[:-2],
        whole[3:],
        "<think>",
        "</think>",
        "<",
        "text ",
        "\n",
        "{",
        "<tool_call>",
        "</add>",
        "<add>",
    ]
    for _ in range(60):
        text = "".join(draw.choices(parts, k=draw.randint(1, 7)))
        results = [read(functions, text, pace) for pace in (1, 4, len(text))]
        assert all(result == results[0] for result in results), text
        content, calls = results[0]
        assert calls or content == text


def test_a_conversation_goes_round_with_openais_client(make: Make) -> None:
    """What the server answers is sent back as the client has it."""

    def says(prompt: str) -> str:
        if "the sum" in prompt:
            return "It is 3."
        return "<think>\nhm\n</think>\n\nI add." + written("qwen3", Call("add", {"a": 1}), Call("add", {"a": 2}))

    model = make("qwen3", says)
    with serving(model) as told, client(told["http"]) as talk:
        chat: dict[str, Any] = {"model": "atlas", "messages": [user("1 + 2?")]}
        plain = {**chat, "tools": [ADD]}
        parsing = {**chat, "tools": [openai.pydantic_function_tool(_Sum, name="add")]}
        with talk.chat.completions.stream(**plain) as stream:
            given = stream.get_final_completion()
        asked = [talk.chat.completions.create(**plain), talk.chat.completions.parse(**parsing), given]
        for reply in (one.choices[0].message for one in asked):
            results = [{"role": "tool", "tool_call_id": call.id, "content": "the sum"} for call in reply.tool_calls]
            for sent in (reply, reply.model_dump(), reply.model_dump(exclude_none=True)):
                again = {**plain, "messages": [*chat["messages"], sent, *results]}
                answer = talk.chat.completions.create(**again).choices[0]
                assert answer.message.content == "It is 3." and answer.finish_reason == "stop"
    prompt = model.tokenizer.decode(model.rollouts.prompts[-1])  # type: ignore[attr-defined]
    assert prompt.count("<tool_response>\nthe sum\n</tool_response>") == 2


class _Sum(pydantic.BaseModel):
    a: int


# ------------------------------------------------------------------------------------------------------------- refusals
def named(name: str, **function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": name, **function}}]}


@pytest.mark.parametrize(
    ("change", "param", "sentence"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "`tools.0.function`: Field required."),
        ({"tools": [{"type": "custom", "function": {"name": "f"}}]}, "tools", "'function'"),
        (named("a b"), "tools", "needs a name of at most 64 letters"),
        (named("f", parameters={"type": "array"}), "tools", "must be a JSON schema of type object"),
        (named("f", parameters={"properties": {"a": {"type": "text"}}}), "tools", "not a JSON schema ('text'"),
        (named("f", parameters={"$ref": "https://x/y"}), "tools", "refer to 'https://x/y'"),
        ({"tools": [ADD, ADD]}, "tools", "two functions of the name add"),
        ({"tools": [ADD] * 129}, "tools", "at most 128"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice", "a call cannot be demanded"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice", "demanded"),
        ({"tools": TOOLS, "web_search_options": {}}, "web_search_options", "together with tools"),
        ({"functions": [ADD["function"]]}, "functions", "give the functions as tools"),
        ({"messages": [user("x"), *said(CALLS[1])[:1]]}, "messages", "'call_0' has no result"),
        ({"messages": [user("x"), said(CALLS[1])[1]]}, "messages", "answers one of the calls of"),
        ({"messages": [user("x"), *said(CALLS[1]), said(CALLS[1])[1]]}, "messages", "answers one of the calls"),
        ({"messages": [user("x"), {"role": "assistant", "content": None}]}, "messages", "content is text"),
        ({"messages": [{**said(CALLS[1])[0], "role": "user"}]}, "messages", "calls are the assistant's"),
    ],
)
def test_what_cannot_be_done_is_said(make: Make, change: Any, param: str, sentence: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat_job(make("hermes"), ask(**change))
    error = caught.value.body["error"]
    assert caught.value.status == 400 and error["param"] == param and sentence in error["message"], error
    assert "\n" not in error["message"]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_of_earlier_replies_are_the_templates(make: Make, name: str) -> None:
    """Qwen3's template shows those after the last question; with the thought of a call, the model goes on from it."""
    earlier = said(CALLS[1], content="")
    earlier[0][name] = "add them"
    model = make("qwen3")
    (ids,) = chat_job(model, ask(messages=[user("2 + 2?"), *earlier], tools=TOOLS)).prompts
    assert "<think>\nadd them\n</think>\n\n<tool_call>" in model.tokenizer.decode(ids)
    (ids,) = chat_job(
        model, ask(messages=[user("a"), {"role": "assistant", "content": "b", name: "c"}, user("d")])
    ).prompts
    assert "<think>" not in model.tokenizer.decode(ids)
    with pytest.raises(ApiError, match="thoughts and calls are the assistant's"):
        chat_job(model, ask(messages=[{**user("a"), name: "c"}]))


@pytest.mark.parametrize("arguments", ["[1]", "{", "1", '{"a": NaN}', "[" * 5000])
def test_earlier_arguments_are_a_json_object(make: Make, arguments: str) -> None:
    earlier = said(CALLS[1])
    earlier[0]["tool_calls"][0]["function"]["arguments"] = arguments
    with pytest.raises(ApiError, match="the arguments are no JSON object"):
        chat_job(make("hermes"), ask(messages=[user("x"), *earlier]))


def test_a_template_without_room_for_functions_is_refused_at_the_request(model: Served) -> None:
    yes = scripted(model, Tokenizer.load(BASE), "hermes", lambda prompt: "yes")
    with serving(yes) as told, client(told["http"]) as talk:
        body = {"model": "atlas", "messages": [user("x")], "tools": TOOLS}
        reply = httpx.post(f"{told['http']}/chat/completions", json=body, trust_env=False)
        assert reply.status_code == 400 and "leaves out the tools" in reply.json()["error"]["message"]
        assert talk.chat.completions.create(model="atlas", messages=[user("x")]).choices[0]


EVIL = [None, 0, -1, 1e300, "", "\x00", "<|im_end|>", [], {}, [[]], {"$ref": "#"}, {"a": None}, "x" * 5000, True]
LOOPS = {
    "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}] * 2}, "b": {"anyOf": [{"$ref": "#/$defs/a"}] * 2}},
    "properties": {
        "a": {"type": "object", "additionalProperties": {"items": {"$ref": "#/$defs/a"}}}
    },  # too deep to be tried
}


def test_bodies_changed_at_random_get_an_answer(make: Make) -> None:
    """No status of 500 and above, and every refusal is one sentence."""
    draw, statuses = Random(3), []
    for form in ("hermes", "qwen-coder", "xml"):
        model = make(form, lambda prompt, form=form: written(form, *CALLS))
        with serving(model) as told, httpx.Client(trust_env=False) as http:
            whole = {
                "model": "atlas",
                "messages": [user("x"), *said(*CALLS, content="y"), user("z")],
                "tools": [PYTHON, named("loop", parameters=LOOPS, strict=True)["tools"][0], ADD],
                "tool_choice": "auto",
                "parallel_tool_calls": True,
            }
            for _ in range(20):
                body = json.loads(json.dumps(whole))
                for _ in range(draw.randint(1, 2)):
                    change(body, draw)
                reply = http.post(f"{told['http']}/chat/completions", content=json.dumps(body), headers=JSON)
                statuses.append(reply.status_code)
                assert reply.status_code < 500, body
                if reply.status_code != 200:
                    message = reply.json()["error"]["message"]
                    assert message.endswith(".") and "\n" not in message and len(message) < 600, message
    assert {200, 400} <= set(statuses)


def change(body: Any, draw: Random) -> None:
    """One value, at any depth, becomes another."""
    here = body
    while True:
        keys = [*here] if isinstance(here, dict) else [*range(len(here))]
        key = draw.choice(keys)
        if not isinstance(here[key], dict | list) or not here[key] or draw.random() < 0.2:
            here[key] = deepcopy(draw.choice(EVIL))
            return
        here = here[key]


def test_schemas_without_an_end_are_not_followed(make: Make) -> None:
    for form in ("qwen-coder", "hermes"):
        functions = functions_of(make(form), ask(**named("loop", parameters=LOOPS, strict=True)))
        assert functions is not None
        tool = functions.schemas
        text = dialects.load(FORMS[form][1]).write(Call("loop", {"a": {"b": [1]}}), tool)
        assert read(functions, text, 9) == (text, [])


# -------------------------------------------------------------------------------------------------------------- harmony
def test_a_conversation_in_channels(model: Served, tmp_path: Path) -> None:
    """gpt-oss's format: the client gets a call, then the answer alone; its thinking is in neither."""
    tokenizer = tokenizer_in(tmp_path, "harmony")
    thought = "<|channel|>analysis<|message|>A sum.<|end|><|start|>assistant"
    call = '<|channel|>commentary to=functions.python <|constrain|>json<|message|>{"code": "2 + 2"}'

    def says(prompt: str) -> str:
        return thought + ("<|channel|>final<|message|>It is 4." if "functions.python to=assistant" in prompt else call)

    harmony = scripted(model, tokenizer, "harmony", says)
    as_marks = SimpleNamespace(decode=tokenizer.decode, encode=tokenizer.encode_marked, eos_id=tokenizer.eos_id)
    vars(harmony.rollouts)["_tokenizer"] = as_marks
    with serving(harmony) as told:
        chat: Any = client(told["http"]).chat.completions
        given: dict[str, Any] = {"model": "atlas", "messages": [user("2 + 2?")], "tools": [PYTHON]}
        (choice,) = chat.create(**given).choices
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        (called,) = choice.message.tool_calls
        assert (called.function.name, json.loads(called.function.arguments)) == ("python", {"code": "2 + 2"})
        result = {"role": "tool", "tool_call_id": called.id, "content": "4 <|end|>"}
        given["messages"] += [choice.message.model_dump(exclude_none=True), result]
        (choice,) = chat.create(**given).choices
        assert (choice.finish_reason, choice.message.content) == ("stop", "It is 4.")
        pieces = [one.choices[0].delta.content or "" for one in chat.create(**given, stream=True)]
        assert "".join(pieces) == "It is 4."
    text = tokenizer.decode(harmony.rollouts.prompts[-1])  # type: ignore[attr-defined]
    called_in = '<|start|>assistant to=functions.python<|channel|>commentary json<|message|>{"code": "2 + 2"}<|call|>'
    shown = '<|start|>functions.python to=assistant<|channel|>commentary<|message|>"4 <|end|>"<|end|>'
    assert text.endswith(f"{called_in}{shown}<|start|>assistant")


# ---------------------------------------------------------------------------------------------------- schemas of others
@pytest.mark.parametrize(
    "name",
    [
        *("required with objects", "$ref to itself"),
        *(pytest.param(f"{kind} doubled by $ref", marks=pytest.mark.slow) for kind in ("anyOf", "oneOf")),
    ],
)
def test_a_schema_that_freezes_others_is_a_bad_request(make: Make, name: str) -> None:
    parameters, _ = CASES[name]
    with pytest.raises(ApiError) as told:
        functions_of(make("hermes"), ask(**named("f", parameters=parameters)))
    assert told.value.status == 400 and "The tool f" in str(told.value)


@pytest.mark.parametrize("dialect", [5, [], {}, True])
def test_a_dialect_of_schemas_that_is_no_address_is_a_bad_request(make: Make, dialect: Any) -> None:
    with pytest.raises(ApiError, match=r"dialect, \$schema, that is not an address"):
        functions_of(make("hermes"), ask(**named("f", parameters={"type": "object", "$schema": dialect})))


@pytest.mark.parametrize("place", ["check", "fault"])
def test_health_is_answered_while_schemas_are_compared(make: Make, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of a request's schemas, and of a reply's calls, waits until /health has been answered."""
    reached, answered = threading.Event(), threading.Event()

    def waiting(*_: Any) -> None:
        reached.set()
        assert answered.wait(60)

    strict = deepcopy(ADD)
    strict["function"]["strict"] = True
    model = make("hermes", lambda prompt: written("hermes", Call("add", {"a": 1})))
    body = {"model": "atlas", "messages": [user("1 + 1?")], "tools": [strict]}
    with serving(model) as told, httpx.Client(trust_env=False) as http, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(f"scope_jax.text.schemas.{place}", waiting)
        reply = pool.submit(httpx.post, f"{told['http']}/chat/completions", json=body, trust_env=False, timeout=60)
        assert reached.wait(60)
        assert http.get(told["http"].removesuffix("/v1") + "/health").json() == {"status": "ok"}
        answered.set()
        (choice,) = reply.result().json()["choices"]
        assert choice["finish_reason"] == "tool_calls"
