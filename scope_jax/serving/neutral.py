"""Fields of OpenAI's, vLLM's and SGLang's requests that the engine has no use for, and the values that ask for nothing.

Clients write their defaults out (NeMo-RL top_k = −1 and repetition_penalty = 1, others tool_choice = "none"). A field
with a value that changes nothing is left out of a request; any other value is refused with the field's name.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

# Of sampling: the values with which it is off.
SAMPLING: Mapping[str, Sequence[Any]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "early_stopping": (False,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "stop_regex": ("", []),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "logits_processors": ([],),
    "custom_logit_processor": ("",),
    "custom_params": ({},),
    "thinking_token_budget": (-1,),
}
# Of prompt and reply: the values that say what is done anyway. Replies are the model's whole text as one string,
# without end tokens and stop strings.
FORM: Mapping[str, Sequence[Any]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "echo": (False,),
    "suffix": ("",),
    "prompt_logprobs": (False,),
    "documents": ([],),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "mm_processor_kwargs": ({},),
    "guided_json": (),
    "guided_regex": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "structured_outputs": ({},),
    "json_schema": ("",),
    "regex": ("",),
    "ebnf": ("",),
    "truncate_prompt_tokens": (),
    "include_stop_str_in_output": (False,),
    "no_stop_trim": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),  # there are none in a reply
    "include_reasoning": (True,),
    "separate_reasoning": (False,),
    "stream_reasoning": (True, False),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "return_cached_tokens_details": (False,),
    "kv_transfer_params": ({},),
    "vllm_xargs": ({},),
    "session_params": ({},),
    "lora_path": ("",),
    "priority": (0,),
    "reasoning_effort": (),
    "prediction": (),
    "audio": (),
    "chat_template": ("",),
}
# Names of a request or its sender, which no reply depends on: any text.
NAMES = (
    *("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "request_id", "rid", "cache_salt"),
    "extra_key",
)

REASONS = {
    "tools": "only chats have functions of the client",
    "tool_choice": "only chats have functions of the client; leave it out or give none",
    "functions": "give the functions as tools",
    "function_call": "give the functions as tools, with tool_choice; leave it out or give none",
    "presence_penalty": "the engine samples without penalties; leave it out or give 0",
    "frequency_penalty": "the engine samples without penalties; leave it out or give 0",
    "repetition_penalty": "the engine samples without penalties; leave it out or give 1",
    "logit_bias": "the engine samples without biases; leave it out",
    "metadata": "replies are not stored; leave it out",
    "echo": "prompts are not echoed; leave it out",
    "suffix": "the model continues a text, it does not fill one in; leave it out",
    "response_format": 'replies are free text; leave it out or give {"type": "text"}',
    "store": "replies are not stored; leave it out or give false",
    "add_special_tokens": "nothing is put before a prompt; write the tokens into it, with parse_special = true",
    "chat_template": "the server's template is used; leave it out, chat_template_kwargs sets its variables",
    "reasoning_effort": "leave it out; chat_template_kwargs sets what the chat template knows, such as enable_thinking",
}


def without(table: Mapping[str, Any], known: Container[str] = ()) -> dict[str, Any]:
    """A request without its fields that ask for nothing. known: those that this kind of request has."""
    return {name: value for name, value in table.items() if name in known or not asks_for_nothing(name, value)}


def asks_for_nothing(name: str, value: Any) -> bool:
    """True for a value with which a field changes nothing. 1 and 1.0 are the same number, true is none."""
    if name in NAMES:
        return isinstance(value, str)
    if name == "metadata":
        return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())
    if name == "logit_bias":
        return isinstance(value, dict) and all(type(one) in (int, float) and one == 0 for one in value.values())
    known = SAMPLING.get(name, FORM.get(name, ()))
    return any(isinstance(value, bool) == isinstance(one, bool) and value == one for one in known)


def reason(name: str) -> str | None:
    """Why a field, or a value of it, is refused; None if it is not a field of these protocols."""
    if name in REASONS:
        return REASONS[name]
    if name in NAMES:
        return "must be text"
    if name not in SAMPLING and name not in FORM:
        return None
    shown = " or ".join(
        f"{one!r}".lower() if isinstance(one, bool) else f"{one!r}" for one in {**SAMPLING, **FORM}[name]
    )
    return f"is not supported; leave it out{f' or give {shown}' if shown else ''}"
