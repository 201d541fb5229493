"""Tokenizers of single bytes with the marks of a model family, templates of ours in its format, and a tool to call."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.tool_calls import tool

HERE = Path(__file__).parent
# By family: special tokens, of which the first so many end turns, as the published generation_config.json says; added
# tokens that are not special.
FAMILIES: dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]] = {
    "harmony": (
        ("<|return|>", "<|call|>", "<|end|>", "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"),
        2,
        (),
    ),
    "gemma4": (
        (
            *("<eos>", "<turn|>", "<|tool_response>", "<bos>", "<|turn>", "<tool_response|>", "<|tool_call>"),
            *("<tool_call|>", '<|"|>', "<|tool>", "<tool|>", "<|channel>", "<channel|>", "<|think|>"),
        ),
        3,
        (),
    ),
    "gemma3": (("<eos>", "<end_of_turn>", "<bos>", "<start_of_turn>"), 2, ()),
    "mistral": (
        (
            *("</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL_RESULTS]"),
            *("[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        ),
        1,
        (),
    ),
    "qwen3_5": (
        ("<|im_end|>", "<|endoftext|>", "<|im_start|>"),
        2,
        ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    ),
    "smollm3": (("<|im_end|>", "<|im_start|>"), 1, ("<think>", "</think>")),
}


@tool
def python(code: str, seconds: int = 10) -> str:
    """Runs a program.

    Args:
        code: In Python 3.
        seconds: After this time it is ended.
    """
    return code


def tokenizer_in(folder: Path, family: str, template: str | None = None) -> Tokenizer:
    """Bytes and the family's marks, with the template of its name, or another one beside it."""
    (folder / "chat_template.jinja").write_text((HERE / f"{template or family}.jinja").read_text(encoding="utf-8"))
    marks, ends, others = FAMILIES[family]
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE({char: place for place, char in enumerate(characters)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([*marks])
    fast.add_tokens([*others])
    fast.save(str(folder / "tokenizer.json"))
    begins = [mark for mark in marks if mark in ("<bos>", "<s>")]
    roles = {"eos_token": marks[0]} | ({"bos_token": begins[0]} if begins else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    named = [fast.token_to_id(name) for name in marks[:ends]]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    return Tokenizer.load(folder)
