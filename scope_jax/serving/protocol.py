"""Requests in OpenAI's protocol: which fields are understood, and which are refused because the engine cannot do them.

A field that is accepted has its effect, or a value that asks for nothing (`neutral`); everything else is an `ApiError`
with one sentence and the field's name, as clients of OpenAI's API expect it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    model_validator,
)
from typing_extensions import TypeAliasType

from scope_jax.serving import neutral
from scope_jax.text.openai import FunctionTool, Message, StreamOptions, without_nulls
from scope_jax.web.guard import Refusal, parsed_json

Kind = Literal["invalid_request_error", "authentication_error", "rate_limit_error", "server_error"]


class ApiError(Exception):
    """A request that is not answered: HTTP status, one sentence, the field that is to blame, and OpenAI's code."""

    def __init__(
        self,
        sentence: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: Kind = "invalid_request_error",
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.body = {"error": {"message": sentence, "type": kind, "param": param, "code": code}}


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


MESSAGES = 4096  # of a conversation
FUNCTIONS = 128  # of a request, as in OpenAI's
VALUES = 1 << 20  # of a body, unless the server's limits need fewer
# Of a wrong list, one error and not one of every element. (A plain alias could not be part of a union: no hash.)
Texts = TypeAliasType("Texts", Annotated[list[str], FailFast()])
Ids = TypeAliasType("Ids", Annotated[list[int], FailFast()])
Prompts = TypeAliasType("Prompts", Annotated[list[Ids], FailFast()])


Nothing = Literal[0] | None


class Body(BaseModel):
    """Fields of both kinds of requests. None is the same as a field that is left out."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    model: str
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1)  # vLLM's; −1 and 0 are off
    n: int | None = Field(default=None, ge=1, le=1024)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    stop: Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]] | None, BeforeValidator(_listed)] = Field(
        default=None, max_length=16
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    best_of: int | None = None

    @model_validator(mode="after")
    def _none_is_ranked(self) -> Body:
        if self.best_of not in (None, 1, self.n):
            raise ApiError(f"`best_of`: {REFUSED['best_of']}.", param="best_of")
        return self


class ChatBody(Body):
    messages: Annotated[list[Message], FailFast()] = Field(min_length=1, max_length=MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: Nothing = None
    web_search_options: dict[str, Any] | None = Field(default=None, max_length=0)
    chat_template_kwargs: dict[str, bool | int | str] | None = Field(default=None, max_length=32)
    tools: Annotated[list[FunctionTool], FailFast()] = Field(default=[], max_length=FUNCTIONS)
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _all_say_something(self) -> ChatBody:
        for number, message in enumerate(self.messages):
            said = message.tool_calls or message.reasoning_content or message.reasoning
            if "content" not in message.model_fields_set and not said:
                raise ApiError(f"`messages.{number}.content`: {CONTENT}.", param="messages")
        return self


class CompletionBody(Body):
    prompt: str | Texts | Ids | Prompts
    logprobs: Nothing = None
    # llama.cpp's name: whether names of special tokens in a text prompt are those tokens; None: such a text is refused
    parse_special: bool | None = None


# Why a value of a field of ours is refused; of other fields see `neutral`.
REFUSED = {
    "top_logprobs": "the engine gives the log-prob of the sampled token only; leave it out or give 0",
    "logprobs": "the engine gives the log-prob of the sampled token only; give true for chat, 0 for completions",
    "best_of": "samples are not ranked; leave it out or give n",
    "web_search_options": "options of the search are set by the server; give an empty object",
    "tool_choice": 'a call cannot be demanded of the model; give "auto" or "none"',
}

CONTENT = "a message's content is text, or a list of parts of type text"
SHOWN = 80  # characters of a name in a sentence

Parsed = TypeVar("Parsed", bound=Body)


def parsed(kind: type[Parsed], body: bytes, values: int = VALUES) -> Parsed:
    """The request of a body of at most `values` values. Raises ApiError for what is no JSON, has unknown fields or
    values that are refused."""
    try:
        table = parsed_json(body, values)
    except Refusal as refusal:
        raise ApiError(str(refusal)) from None
    if not isinstance(table, dict):
        raise ApiError("The request body must be a JSON object.")
    try:
        return kind.model_validate(neutral.without(without_nulls(table), kind.model_fields))
    except Refusal as refusal:
        raise ApiError(str(refusal)) from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        loc = [part[:SHOWN] if isinstance(part, str) else part for part in first["loc"]]
        name = str(loc[0]) if loc else "the body"
        param = name if name == "prompt" else ".".join(map(str, loc[:3]))
        reason = REFUSED.get(name, first["msg"].removeprefix("Value error, "))
        if first["type"] == "extra_forbidden" and len(loc) == 1:
            reason = neutral.reason(name) or "is not a field of this request"
        if "content" in loc:
            reason = CONTENT
        elif name == "chat_template_kwargs":
            reason = "variables of the chat template are an object of true, false, whole numbers and text"
        elif name == "prompt":
            reason = "a prompt is text or token ids, one or a list of several"
        raise ApiError(f"`{param}`: {reason}.", param=name) from None
