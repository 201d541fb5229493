"""Our sketch of a Mistral template beside Mistral's own tokenizer."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.conversations import trained_rows
from tests.play.byte_tokenizer import tokenizer_in
from tests.play.random_conversations import conversation

pytest.importorskip("mistral_common")

from mistral_common.protocol.instruct.messages import AssistantMessage, ToolMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer


def theirs(messages: list[dict[str, Any]]) -> ChatCompletionRequest:
    """The conversation for mistral_common."""
    shown: list[Any] = []
    for message in messages:
        match message["role"]:
            case "user":
                shown.append(UserMessage(content=message["content"]))
            case "tool":
                shown.append(
                    ToolMessage(content=message["content"], tool_call_id=message["tool_call_id"], name=message["name"])
                )
            case _:
                calls = [
                    ToolCall(
                        id=call["id"],
                        function=FunctionCall(
                            name=call["function"]["name"], arguments=json.dumps(call["function"]["arguments"])
                        ),
                    )
                    for call in message.get("tool_calls", ())
                ]
                shown.append(AssistantMessage(content=message["content"] or None, tool_calls=calls or None))
    return ChatCompletionRequest(messages=shown)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_in(tmp_path_factory.mktemp("mistral"), "mistral", "mistral_v3")


@pytest.fixture(scope="module")
def mistral() -> MistralTokenizer:
    return MistralTokenizer.v3(is_tekken=True)


@pytest.mark.parametrize("seed", range(10))
def test_calls_of_the_third_tokenizer_are_written_as_by_mistral(
    tokenizer: Tokenizer, mistral: MistralTokenizer, seed: int
) -> None:
    """The sampled stretches of rows with our sketch; white space is the vocabulary's."""
    messages = conversation(np.random.default_rng(seed), thoughts=False, calls=2, system=False)
    (row,) = trained_rows(tokenizer, messages)
    edges = np.flatnonzero(np.diff(row.sampled_T.astype(int), prepend=0, append=0))
    stretches = [
        tokenizer.decode(row.ids_T[start:end].tolist()) for start, end in zip(edges[::2], edges[1::2], strict=True)
    ]
    ids = mistral.encode_chat_completion(theirs([*messages, {"role": "user", "content": "?"}])).tokens
    squeezed = "".join(mistral.decode(ids, special_token_policy=SpecialTokenPolicy.KEEP).split())
    place = 0
    for stretch in stretches:
        place = squeezed.index("".join(stretch.split()), place) + 1
    assert squeezed.count("</s>") == len(stretches)
