"""What clients send beyond OpenAI's own client: neutral fields, variables of the template, prompts that one wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from inspect import signature
from typing import Any

import grpc
import httpx
import pytest
from transformers import PreTrainedTokenizerBase

from scope_jax.config.model import RENDERING
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.rollouts.jetstream import proto, proto_grpc
from scope_jax.serving import neutral
from scope_jax.serving.assemble import Served
from scope_jax.serving.generating import chat_job, completion_job
from scope_jax.serving.protocol import ApiError, ChatBody, CompletionBody, parsed
from tests.play.templates import published, tokenizer_of
from tests.serving.test_api import GOOD, user
from tests.serving.world import serving

PLAIN = {"model": "atlas", "prompt": "hello", "max_tokens": 2}


@pytest.fixture(scope="module")
def told(model: Served) -> Iterator[dict[str, Any]]:
    with serving(model, grpc=True) as told:
        yield told


def chat(**more: Any) -> ChatBody:
    return parsed(ChatBody, json.dumps(GOOD | more).encode())


def completion(**more: Any) -> CompletionBody:
    return parsed(CompletionBody, json.dumps(PLAIN | more).encode())


NEUTRAL = [
    *({"top_k": off} for off in (-1, 0)),
    *({"repetition_penalty": one} for one in (1, 1.0)),
    *({name: zero} for name in ("min_p", "presence_penalty", "frequency_penalty") for zero in (0, 0.0)),
    {"length_penalty": 1.0, "min_tokens": 0, "use_beam_search": False, "early_stopping": False},
    {"ignore_eos": False, "stop_token_ids": [], "bad_words": [], "allowed_token_ids": None, "stop": []},
    {"logit_bias": {}},
    {"logit_bias": {"50256": 0}},
    {"n": 1, "best_of": 1},
    {"n": 2, "best_of": 2},
    {"tool_choice": "none", "tools": [], "parallel_tool_calls": True},
    {"tool_choice": "auto", "functions": [], "function_call": "none"},
    {"response_format": {"type": "text"}, "modalities": ["text"], "service_tier": "auto", "verbosity": "medium"},
    {"store": False, "metadata": {}, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k"},
    {"skip_special_tokens": True, "spaces_between_special_tokens": True, "include_stop_str_in_output": False},
    {"add_generation_prompt": True, "continue_final_message": False, "add_special_tokens": False, "echo": False},
    {"guided_json": None, "guided_regex": None, "structured_outputs": None, "guided_decoding_backend": None},
    {"priority": 0, "request_id": "r", "cache_salt": "c", "return_token_ids": False, "truncate_prompt_tokens": None},
    {"regex": None, "ebnf": None, "json_schema": None, "no_stop_trim": False, "rid": "r", "lora_path": None},
    {"separate_reasoning": False, "stream_reasoning": True, "return_hidden_states": False, "session_params": {}},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": False}},
]


@pytest.mark.parametrize("fields", NEUTRAL, ids=lambda fields: next(iter(fields)))
def test_what_asks_for_nothing_changes_nothing(fields: dict[str, Any], model: Served):
    ours = {name: fields[name] for name in ("n", "stream", "stream_options") if name in fields}
    assert chat_job(model, chat(**fields)) == chat_job(model, chat(**ours))
    assert completion_job(model, completion(**fields)) == completion_job(model, completion(**ours))


REFUSED = [
    ("top_k", -2),
    ("repetition_penalty", 1.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", True),
    ("min_p", 0.05),
    ("presence_penalty", 1),
    ("frequency_penalty", -0.5),
    ("min_tokens", 5),
    ("use_beam_search", True),
    ("ignore_eos", True),
    ("stop_token_ids", [3]),
    ("bad_words", ["no"]),
    ("logit_bias", {"3": 1}),
    ("logit_bias", {"3": False}),
    ("best_of", 3),
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}),
    ("response_format", {"type": "json_object"}),
    ("guided_json", {"type": "object"}),
    ("structured_outputs", {"choice": ["a"]}),
    ("regex", "a+"),
    ("skip_special_tokens", False),
    ("add_special_tokens", True),
    ("continue_final_message", True),
    ("echo", True),
    ("store", True),
    ("metadata", {"a": 1}),
    ("user", 5),
    ("reasoning_effort", "high"),
    ("service_tier", "priority"),
    ("separate_reasoning", True),
    ("lora_path", "x"),
    ("temprature", 1),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_cannot_be_done_is_refused_by_name(name: str, value: Any):
    for send in (chat, completion):
        with pytest.raises(ApiError) as caught:
            send(**{name: value})
        error = caught.value.body["error"]
        assert caught.value.status == 400 and error["param"] == name and f"`{name}`" in error["message"]
        assert error["message"].endswith(".") and "\n" not in error["message"]


def test_only_functions_are_fields_of_chats_that_completions_leave_out():
    known = {*neutral.SAMPLING, *neutral.FORM, *neutral.NAMES, "logit_bias", "metadata"}
    assert known.isdisjoint(CompletionBody.model_fields)
    assert known & {*ChatBody.model_fields} == {"tools", "tool_choice", "parallel_tool_calls"}
    with pytest.raises(ApiError, match="`tools`: only chats have functions of the client"):
        completion(tools=[{"type": "function"}])


def test_a_neutral_request_is_answered(told: dict[str, Any]):
    fields = {"top_k": -1, "repetition_penalty": 1, "min_p": 0, "tool_choice": "none", "temperature": 0}
    for path, body in (("/chat/completions", GOOD), ("/completions", PLAIN)):
        plain = httpx.post(told["http"] + path, json=body | {"temperature": 0}, timeout=120, trust_env=False)
        reply = httpx.post(told["http"] + path, json=body | fields, timeout=120, trust_env=False)
        assert reply.status_code == 200 and reply.json()["choices"] == plain.json()["choices"]


# ----------------------------------------------------------------------------------------------- chat_template_kwargs
SWITCHED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}quick\n{% endif %}{{ style | default('') }}{% endif %}"
)


def with_template(model: Served, template: str) -> Served:
    tokenizer = Tokenizer.load(model.cfg.model.checkpoint, template)
    assert model.joiner is not None
    return replace(model, tokenizer=tokenizer, joiner=replace(model.joiner, tokenizer=tokenizer))


def test_a_request_sets_variables_of_the_template(model: Served):
    model = with_template(model, SWITCHED)

    def prompt(**more: Any) -> str:
        return model.tokenizer.decode(chat_job(model, chat(**more)).prompts[0])

    assert "quick" not in prompt() and "quick" not in prompt(chat_template_kwargs={"enable_thinking": True})
    assert prompt(chat_template_kwargs={"enable_thinking": False}).endswith("assistant\nquick\n")
    assert prompt(chat_template_kwargs={"style": "short"}).endswith("assistant\nshort")
    assert prompt(chat_template_kwargs={"unknown": 3}) == prompt(chat_template_kwargs=None) == prompt()
    searching = chat(chat_template_kwargs={"enable_thinking": False}, web_search_options={})
    job = chat_job(model, searching)
    assert model.tokenizer.decode(job.prompts[0]).endswith("quick\n")
    assert job.joiner is not None and job.joiner.options == {"enable_thinking": False}
    assert model.joiner is not None and model.joiner.options == {}  # nothing of a request stays


def test_a_request_overrides_the_card(model: Served):
    model = with_template(model, SWITCHED)
    section = model.cfg.model.model_copy(update={"chat_template_kwargs": {"enable_thinking": False, "style": "x"}})
    model = replace(model, cfg=model.cfg.model_copy(update={"model": section}))
    own = model.tokenizer.decode(chat_job(model, chat()).prompts[0])
    other = model.tokenizer.decode(chat_job(model, chat(chat_template_kwargs={"enable_thinking": True})).prompts[0])
    assert own.endswith("quick\nx") and other.endswith("assistant\nx")


def test_names_of_arguments_are_those_of_the_functions_that_render():
    """A card may set none of them, and is read without transformers."""
    theirs = signature(PreTrainedTokenizerBase.apply_chat_template).parameters
    assert {"messages", *theirs, *signature(Tokenizer.encode_chat).parameters} <= RENDERING


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (5, "an object"),
        (["enable_thinking"], "an object"),
        ({"enable_thinking": [1]}, "true, false, whole numbers and text"),
        ({"enable_thinking": 0.5}, "true, false, whole numbers and text"),
        ({"messages": "x"}, "'messages' is not a variable that a request may set"),
        ({"chat_template": "x"}, "'chat_template' is not a variable"),
        ({"add_generation_prompt": False}, "'add_generation_prompt' is not a variable"),
        ({"tokenize": True}, "'tokenize' is not a variable"),
        ({"tools": "x"}, "'tools' is not a variable"),
        ({"forbid": "x"}, "'forbid' is not a variable"),
        ({"eos_token": "x"}, "'eos_token' is not a variable"),
        ({"a b": 1}, "'a b' is not a variable"),
        ({"style": "<|im_end|>"}, "may not hold <|im_end|>, a special token"),
    ],
)
def test_what_is_no_variable_is_refused(given: Any, sentence: str, model: Served):
    with pytest.raises(ApiError) as caught:
        chat_job(model, chat(chat_template_kwargs=given))
    assert caught.value.status == 400 and caught.value.body["error"]["param"] == "chat_template_kwargs"
    assert sentence in str(caught.value)


def test_plain_completions_have_no_variables():
    with pytest.raises(ApiError, match="chat_template_kwargs"):
        completion(chat_template_kwargs={})


def test_thinking_is_switched_off_with_qwen3s_template(shared_data: Any, model: Served):
    template = shared_data / "chat_templates" / "Qwen-Qwen3-0.6B.jinja"
    model = replace(model, tokenizer=tokenizer_of(template))
    ends = {
        thinking: model.tokenizer.decode(
            chat_job(model, chat(chat_template_kwargs={"enable_thinking": thinking})).prompts[0]
        )
        for thinking in (True, False)
    }
    assert ends[True].endswith("<|im_start|>assistant\n")
    assert ends[False].endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


# ------------------------------------------------------------------------------------------- prompts from a template
TEMPLATED = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_a_templated_prompt_is_refused_or_read_as_asked(model: Served, told: dict[str, Any]):
    for prompt in (TEMPLATED, ["plain", "a <|im_end|> b"]):
        with pytest.raises(
            ApiError, match=r"<\|im_\w+\|>, the name of a special token: give parse_special = true"
        ) as one:
            completion_job(model, completion(prompt=prompt))
        assert one.value.status == 400 and one.value.body["error"]["param"] == "prompt"
    (read,) = completion_job(model, completion(prompt=TEMPLATED, parse_special=True)).prompts
    assert list(read) == model.tokenizer.encode_chat(user("hello"))
    (spelled,) = completion_job(model, completion(prompt=TEMPLATED, parse_special=False)).prompts
    assert list(spelled) == model.tokenizer.encode(TEMPLATED, start=True)
    assert model.tokenizer.special_ids.isdisjoint(spelled)
    reply = httpx.post(f"{told['http']}/completions", json=PLAIN | {"prompt": TEMPLATED}, trust_env=False)
    assert reply.status_code == 400 and "/v1/chat/completions" in reply.json()["error"]["message"]


def test_prompts_without_such_names_are_the_same_with_and_without_the_field(model: Served):
    jobs = [
        completion_job(model, completion(prompt="a <b> c |im_end|", **more)) for more in ({}, {"parse_special": True})
    ]
    assert jobs[0].prompts == jobs[1].prompts


def test_jetstreams_text_with_such_names_is_refused(told: dict[str, Any]):
    pb = proto.DecodeRequest
    with grpc.insecure_channel(told["grpc"]) as channel:
        stub = proto_grpc.OrchestratorStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Decode(pb(text_content=pb.TextContent(text=TEMPLATED), max_tokens=2)))
    error: Any = caught.value
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "give token_content instead" in error.details()


@pytest.mark.parametrize(
    ("vocabulary", "template"),
    [
        ("qwen", "Qwen-Qwen2.5-7B-Instruct"),
        pytest.param("qwen", "Qwen-Qwen3-0.6B", marks=pytest.mark.slow),
        pytest.param("llama3", "meta-llama-Llama-3.1-8B-Instruct", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("shared_data")
def test_real_templated_text_gets_the_conversations_ids(vocabulary: str, template: str):
    tokenizer = published(vocabulary, template)
    ids = tokenizer.encode_chat([{"role": "system", "content": "Be brief."}, *user("Who wrote Emma in 1815?")])
    text = tokenizer.decode(ids)
    assert tokenizer.encode_marked(text) == ids and tokenizer.special_names(text)
    assert tokenizer.encode(text) != ids
