"""Rows of gpt-oss read by OpenAI's own parser.

openai-harmony wants the vocabulary o200k_base, a file of 3.6 MB that it would download: these tests are skipped unless
the folder TIKTOKEN_ENCODINGS_BASE has it, or litellm is installed, which has a copy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import openai_harmony as harmony
import pytest

from scope_jax.play.conversations import trained_rows
from tests.play.random_conversations import TOOLS, conversation
from tests.play.templates import paths, tokenizer_of

O200K = "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790"  # litellm's copy


@pytest.fixture(scope="module")
def encoding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[harmony.HarmonyEncoding]:
    """The vocabulary of gpt-oss."""
    with pytest.MonkeyPatch.context() as patch:
        if "TIKTOKEN_ENCODINGS_BASE" not in os.environ:
            try:
                copy = Path(str(distribution("litellm").locate_file(O200K)))
            except PackageNotFoundError:
                pytest.skip("no vocabulary: set TIKTOKEN_ENCODINGS_BASE to a folder with o200k_base.tiktoken")
            folder = tmp_path_factory.mktemp("vocabularies")
            (folder / "o200k_base.tiktoken").write_bytes(copy.read_bytes())
            patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(folder))
        yield harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


def wanted(message: dict[str, Any]) -> list[tuple[str, str | None, str]]:
    """(channel, recipient, text) of the messages that the assistant's message is in harmony."""
    parts: list[tuple[str, str | None, str]] = []
    if "reasoning_content" in message:
        parts.append(("analysis", None, message["reasoning_content"]))
    for call in message.get("tool_calls", ()):
        arguments = json.dumps(call["function"]["arguments"])
        parts.append(("commentary", f"functions.{call['function']['name']}", arguments))
    if "tool_calls" not in message:
        parts.append(("final", None, message["content"]))
    return parts


@pytest.mark.parametrize("seed", range(20))
def test_what_is_trained_of_gpt_oss_is_what_its_own_parser_reads(encoding: harmony.HarmonyEncoding, seed: int) -> None:
    tokenizer = tokenizer_of(paths()["gptoss"])
    messages = conversation(np.random.default_rng(seed), thoughts=True, calls=1, system=seed % 2 == 0)
    said = [message for message in messages if message["role"] == "assistant"]
    for row in trained_rows(tokenizer, messages, tools=TOOLS):
        edges = np.flatnonzero(np.diff(row.sampled_T.astype(int), prepend=0, append=0))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            text = tokenizer.decode(row.ids_T[start:end].tolist())
            ids = encoding.encode(text, allowed_special="all")
            read = encoding.parse_messages_from_completion_tokens(ids, harmony.Role.ASSISTANT)
            found = [
                (one.channel, one.recipient, "".join(part.to_dict()["text"] for part in one.content)) for one in read
            ]
            assert found == wanted(said.pop(0))
    assert not said


@pytest.mark.parametrize("seed", range(10))
def test_answers_of_gpt_oss_are_rendered_as_by_openai(encoding: harmony.HarmonyEncoding, seed: int) -> None:
    """The last message with its thought, and the end that only a sampled reply has."""
    tokenizer = tokenizer_of(paths()["gptoss"])
    messages = conversation(np.random.default_rng(seed), thoughts=True, calls=0, system=False)
    theirs = [harmony.Message.from_role_and_content(harmony.Role.USER, "?")]
    for channel, _, text in wanted(messages[-1]):
        message = harmony.Message.from_role_and_content(harmony.Role.ASSISTANT, text)
        theirs.append(message.with_channel(channel))
    config = harmony.RenderConversationConfig(auto_drop_analysis=False)
    rendered = encoding.render_conversation_for_training(harmony.Conversation.from_messages(theirs), config)
    whole = encoding.decode_utf8(rendered)
    row = trained_rows(tokenizer, messages)[-1]
    last = np.flatnonzero(np.diff(row.sampled_T.astype(int), prepend=0))[-1]
    assert "<|start|>assistant" + tokenizer.decode(row.ids_T[last:].tolist()) == whole.split("?<|end|>")[1]
