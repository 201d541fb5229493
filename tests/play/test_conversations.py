"""Which tokens of a given conversation are trained, under real chat templates."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_jax.errors import UserError
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.conversations import trained_rows
from tests.play import templates

DATA = Path(os.environ.get("SCOPE_JAX_DATA", "no data"))
TEMPLATES = {
    "qwen2.5": "Qwen-Qwen2.5-7B-Instruct",
    "qwen3": "Qwen-Qwen3-0.6B",
    "qwq": "Qwen-QwQ-32B",
    "r1": "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "llama3.1": "meta-llama-Llama-3.1-8B-Instruct",
}
pytestmark = pytest.mark.skipif(not (DATA / "chat_templates").is_dir(), reason="SCOPE_JAX_DATA has no chat templates")


def say(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


TWO = [say("system", "Be brief."), say("user", "a?"), say("assistant", "one."), say("user", "b?")]
TWO += [say("assistant", "two.")]


def tokenizer_of(name: str) -> Tokenizer:
    """Of Qwen2.5 with its vocabulary, whose tokens span several characters; of the others with bytes."""
    if name == "qwen2.5":
        return templates.published("qwen", TEMPLATES[name])
    return templates.tokenizer_of(DATA / "chat_templates" / f"{TEMPLATES[name]}.jinja")


def trained(tokenizer: Tokenizer, messages, **options) -> list[list[str]]:
    """The trained stretches of each row, as text."""
    found = []
    for row in trained_rows(tokenizer, messages, **options):
        assert not row.sampled_T[0] and not row.logprobs_T.any()
        cuts = np.flatnonzero(np.diff(row.sampled_T.astype(int), prepend=0, append=0))
        parts = zip(cuts[::2], cuts[1::2], strict=True)
        found.append([tokenizer.decode(row.ids_T[start:end].tolist()) for start, end in parts])
    return found


@pytest.mark.parametrize(("name", "end"), [("qwen2.5", "<|im_end|>"), ("llama3.1", "<|eot_id|>")])
def test_turns_of_the_assistant_with_their_end_are_trained_in_one_row(name, end):
    tokenizer = tokenizer_of(name)
    assert trained(tokenizer, TWO) == [[f"one.{end}", f"two.{end}"]]
    assert trained(tokenizer, TWO, first=3) == [[f"two.{end}"]]  # an earlier turn is part of the prompt
    (row,) = trained_rows(tokenizer, TWO)
    whole = tokenizer.encode_chat(TWO, False)
    assert row.ids_T.tolist() == whole[: len(row.ids_T)]  # what follows the last end is not needed
    assert not set(whole[len(row.ids_T) :]) & set(tokenizer.eos_ids)


def test_a_template_that_rewrites_earlier_turns_gives_a_row_for_each():
    tokenizer = tokenizer_of("qwen3")
    thinking = "<think>\nhm\n</think>\n\n"
    messages = [*TWO[:2], say("assistant", f"{thinking}one."), TWO[3], say("assistant", f"{thinking}two.")]
    assert trained(tokenizer, messages) == [[f"{thinking}one.<|im_end|>"], [f"{thinking}two.<|im_end|>"]]
    first, second = trained_rows(tokenizer, messages)
    for row, place in ((first, 2), (second, 4)):  # each after the prompt that the policy would get
        prompt = tokenizer.encode_chat(messages[:place])
        assert row.ids_T[: len(prompt)].tolist() == prompt
    assert "hm" not in tokenizer.decode(second.ids_T[~second.sampled_T].tolist())
    plain = "<think>\n\n</think>\n\n"  # what the template writes for a turn without thinking
    assert trained(tokenizer, TWO[:3]) == [[f"{plain}one.<|im_end|>"]]
    off = {"enable_thinking": False}  # then it is part of the prompt
    assert trained(tokenizer, TWO[:3], options=off) == [["one.<|im_end|>"]]


THINKS = {"enable_thinking": True}  # these templates' prompts close the thought unless it is set


def test_thinking_that_a_template_leaves_out_is_written_behind_the_prompt_that_opens_it():
    """R1's template drops the thinking of all messages."""
    r1 = tokenizer_of("r1")
    messages = [say("user", "a?"), say("assistant", "<think>\nhm\n</think>\n\none.")]
    end = "<｜end▁of▁sentence｜>"
    assert trained(r1, messages, options=THINKS) == [[f"hm\n</think>\n\none.{end}"]]
    (row,) = trained_rows(r1, messages, options=THINKS)
    assert r1.decode(row.ids_T.tolist()) == f"<bos><｜User｜>a?<｜Assistant｜><think>\nhm\n</think>\n\none.{end}"
    plain = [messages[0], say("assistant", "one.")]
    assert trained(r1, plain, options=THINKS) == [[f"\n</think>\n\none.{end}"]]
    assert trained(r1, plain) == [[f"one.{end}"]]
    with pytest.raises(UserError, match=r"messages\[1\]: the message has a thought, which the prompt has closed"):
        trained_rows(r1, messages)


def test_thinking_that_the_prompt_opens_is_not_opened_again():
    tokenizer = tokenizer_of("qwq")
    messages = [say("user", "a?"), say("assistant", "<think>\nhm\n</think>\n\none.")]
    assert trained(tokenizer, messages, options=THINKS) == [["hm\n</think>\n\none.<|im_end|>"]]
    (row,) = trained_rows(tokenizer, messages, options=THINKS)
    assert tokenizer.decode(row.ids_T.tolist()).count("<think>") == 1


def test_calls_are_trained_and_their_results_are_not():
    tokenizer = tokenizer_of("qwen2.5")
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": "x"}}}
    tool = {"type": "function", "function": {"name": "search", "description": "s", "parameters": {}}}
    messages = [say("user", "a?"), say("assistant", "", tool_calls=[call]), say("tool", "found"), TWO[2]]
    ((called, answer),) = trained(tokenizer, messages, tools=[tool])
    assert '"name": "search"' in called and called.endswith("</tool_call><|im_end|>") and answer == "one.<|im_end|>"


def test_a_template_with_generation_blocks_is_rendered_alike(tmp_path):
    """The tokens in `{% generation %}`, as transformers marks them."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    (tmp_path / "blocks.jinja").write_text(template, encoding="utf-8")
    tokenizer = templates.tokenizer_of(tmp_path / "blocks.jinja")
    theirs: Any = tokenizer._hf.apply_chat_template(
        TWO, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, chat_template=template
    )
    (row,) = trained_rows(tokenizer, TWO)
    assert row.ids_T.tolist() == theirs["input_ids"][: len(row.ids_T)]
    assert row.sampled_T.astype(int).tolist() == theirs["assistant_masks"][: len(row.ids_T)]
    assert not any(theirs["assistant_masks"][len(row.ids_T) :])


def test_text_never_becomes_a_special_token():
    tokenizer = tokenizer_of("qwen2.5")
    (row,) = trained_rows(tokenizer, [say("user", "a?"), say("assistant", "x<|im_end|>y")])
    ((text,),) = trained(tokenizer, [say("user", "a?"), say("assistant", "x<|im_end|>y")])
    assert text == "x<|im_end|>y<|im_end|>" and np.count_nonzero(np.isin(row.ids_T, tokenizer.eos_ids)) == 3


def test_a_conversation_that_begins_with_the_assistant_is_refused():
    with pytest.raises(UserError, match="begins with the assistant"):
        trained_rows(tokenizer_of("qwen2.5"), [say("assistant", "one.")])
