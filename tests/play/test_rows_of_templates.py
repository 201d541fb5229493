"""What is trained of random conversations under the chat templates of published models.

Every text is a mark of its own. Each stretch that is trained has every mark of its message once and no mark of another
one, ends with an end token, and stands behind the ids that a rollout's prompt has with that history.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from scope_jax.data.schemas import SCHEMAS
from scope_jax.errors import UserError
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.conversations import trained_rows
from tests.play.random_conversations import FORMS, TOOLS, conversation, sharegpt
from tests.play.templates import paths, tokenizer_of

TEMPLATES = paths()
# What these templates do not show: rows with it are refused. all: their contents are lists with images. answers:
# thoughts before an answer, but not those before a call.
REFUSED = {
    **dict.fromkeys(("idefics3", "llava_next", "smolvlm"), "all"),
    **dict.fromkeys(("cohere", "cohere2", "gemma3", "llama3", "phi3", "phi3_5", "qwen2_5_vl"), "thoughts tools"),
    **dict.fromkeys(("deepseek_r1_distill", "deepseekv3"), "tools"),
    "gemma": "thoughts tools system",
    "lfm2": "thoughts calls",
    "lfm2_v2": "thoughts",
    **dict.fromkeys(("gemma4", "gemma4_v3", "gemma4_v4"), "answers"),
    "gemma4_v2": "thoughts",
    "gptoss": "parallel",
    **dict.fromkeys(("llama3_1", "llama3_2"), "thoughts parallel"),
    **dict.fromkeys(("qwen2_5", "qwen3_instruct_2507", "qwen3_vl"), "thoughts"),
    "qwen3_5_nothink": "thoughts",  # its prompts close them
    "Qwen-Qwen2.5-7B-Instruct": "thoughts",
    "Qwen-QwQ-32B": "thoughts",  # its prompts close them unless enable_thinking is set
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "thoughts tools",
    "meta-llama-Llama-3.1-8B-Instruct": "thoughts parallel",
    "meta-llama-Llama-3.2-3B-Instruct": "thoughts parallel",
}
KINDS = [
    {"thoughts": thoughts, "calls": calls, "system": system}
    for thoughts in (False, True)
    for calls in (0, 1, 2)
    for system in (False, True)
]


def marks(value: object) -> Counter[str]:
    return Counter(re.findall(r"zq\d+x", str(value)))


def check(tokenizer: Tokenizer, messages: list[dict], tools: list[dict] | None) -> None:
    """Asserts what this module says of the rows of a conversation."""
    trained = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for row in trained_rows(tokenizer, messages, tools=tools):
        edges = np.flatnonzero(np.diff(row.sampled_T.astype(int), prepend=0, append=0))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            place = trained.pop(0)
            said = row.ids_T[start:end].tolist()
            assert marks(tokenizer.decode(said)) == marks(messages[place])
            assert said[-1] in tokenizer.eos_ids
            assert row.ids_T[:start].tolist() == tokenizer.encode_chat(messages[:place], True, tools=tools)
    assert not trained


def refused(name: str, messages: list[dict], tools: list[dict] | None) -> bool:
    thoughtful = [message for message in messages if "reasoning_content" in message]
    parts = {
        "all": True,
        "system": messages[0]["role"] == "system",
        "thoughts": bool(thoughtful),
        "answers": any("tool_calls" not in message for message in thoughtful),
        "tools": tools is not None,
        "calls": any("tool_calls" in message for message in messages),
        "parallel": any(len(message.get("tool_calls", ())) > 1 for message in messages),
    }
    return any(parts[part] for part in REFUSED.get(name, "").split())


def tried(name: str, seeds: int) -> int:
    """How many rows of how many were trained; the others were refused, as `REFUSED` says."""
    tokenizer = tokenizer_of(TEMPLATES[name])
    count = 0
    for kind, options in enumerate(KINDS):
        for seed in range(seeds):
            messages = conversation(np.random.default_rng((kind, seed)), **options)
            tools = TOOLS if options["calls"] else None
            if refused(name, messages, tools):
                with pytest.raises(UserError) as error:
                    trained_rows(tokenizer, messages, tools=tools)
                assert "messages[" in str(error.value)
            else:
                check(tokenizer, messages, tools)
                count += 1
    return count


# Versions and sizes of a family, whose templates are alike, are tried by `make slow`.
ALIKE = [name for name in TEMPLATES if re.search(r"_v\d$|_vl$|_\d$|_super$|_ultra$|-3B-|think$|_2507$", name)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else []) for name in TEMPLATES]
)
def test_each_mark_is_trained_once_behind_its_prompt(name: str) -> None:
    count = tried(name, 1)
    assert count or REFUSED.get(name) == "all"


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_each_mark_is_trained_once_behind_its_prompt_in_many_conversations(name: str) -> None:
    count = tried(name, 20)
    assert count or REFUSED.get(name) == "all"


@pytest.mark.parametrize("form", FORMS)
def test_forms_are_one_conversation(form: str) -> None:
    for kind, options in enumerate(KINDS):
        for seed in range(10):
            messages = conversation(np.random.default_rng((kind, seed)), **options)
            tools = TOOLS if options["calls"] else None
            row = SCHEMAS["conversations"]({**FORMS[form](messages), "tools": tools}, "f:1", {})
            assert row == {"messages": messages, "first": 0, "tools": tools}


def test_sharegpt_has_calls_and_results_as_roles() -> None:
    for seed in range(20):
        messages = conversation(np.random.default_rng(seed), thoughts=False, calls=2, system=True)
        row = SCHEMAS["conversations"](sharegpt(messages), "f:1", {})
        assert row["messages"] == messages
