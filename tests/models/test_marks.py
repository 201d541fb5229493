"""The tokens of templates and ends: a teacher must have the same; what a folder says of sampling survives a copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scope_jax.config import EndpointSection
from scope_jax.errors import UserError
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.run.teacher_client import TeacherClient
from tests.play.byte_tokenizer import FAMILIES, tokenizer_in
from tests.train.test_scoring import Endpoint

RENAMED = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>"]


def other(
    folder: Path, names: dict[str, str] | None = None, special: bool = True, extra: list[str] | None = None
) -> Tokenizer:
    """The tokenizer in a folder with other names at the same ids, and tokens that the template does not use."""
    table: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text())
    for token in table["added_tokens"]:
        if token["content"] in (names or {}):
            token |= {"content": (names or {})[token["content"]], "special": special}
    last = max(token["id"] for token in table["added_tokens"])
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    table["added_tokens"] += [
        {"id": last + number, "content": name, "special": True, **flags} for number, name in enumerate(extra or [], 1)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(table))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    renamed = {role: (names or {}).get(name, name) for role, name in config.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(renamed))
    return Tokenizer.load(folder)


@pytest.mark.parametrize("name", RENAMED)
@pytest.mark.parametrize("special", [True, False])
def test_a_token_of_the_template_that_is_another_one_there_is_a_difference(
    tmp_path: Path, name: str, special: bool
) -> None:
    ours = tokenizer_in(tmp_path, "qwen3_5")
    id = ours.encode_marked(name)[0]
    theirs = other(tmp_path, {name: "<｜Assistant｜>"}, special)
    assert ours.difference(theirs) == f"{name!r} is {id} here and no token there, where {id} is '<｜Assistant｜>'"


def test_a_mark_that_a_template_puts_together_is_one(tmp_path: Path) -> None:
    tokenizer_in(tmp_path, "qwen3_5")
    template = "{% for m in messages %}<|im_{{ 'start' }}|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    assert "<|im_start|>" in Tokenizer.load(tmp_path).marks


def test_tokens_that_no_template_uses_may_differ(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        tokenizer_in(tmp_path / name, "qwen3_5")
    ours = other(tmp_path / "ours", extra=["<|reserved_0|>"])
    theirs = other(tmp_path / "theirs", extra=["<|fim|>", "<|pad|>"])
    assert ours.difference(theirs) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokenizer_is_no_different_from_itself(tmp_path: Path, family: str) -> None:
    ours = tokenizer_in(tmp_path, family)
    assert ours.difference(Tokenizer.load(tmp_path)) is None
    assert set(FAMILIES[family][0][: FAMILIES[family][1]]) <= set(ours.marks)


@pytest.mark.parametrize("hides", [True, False])
def test_an_endpoint_is_asked_for_the_tokens_of_the_template(tmp_path: Path, hides: bool) -> None:
    tokenizer = tokenizer_in(tmp_path, "qwen3_5")

    def probe(shown: Any) -> None:
        with Endpoint(shown) as endpoint:
            url = endpoint.sets.split('"')[1]
            TeacherClient("far", EndpointSection(url=url, model="m", retries=0), tokenizer, None).probe()
            assert set(tokenizer.marks.values()) <= set(endpoint.asked[0]["prompt"])

    def text(id: int) -> str:
        return "" if hides and id in tokenizer.special_ids else tokenizer.decode([id])

    probe(text)
    end = tokenizer.eos_id
    with pytest.raises(UserError, match=rf"token {end} is '<｜Assistant｜>' there and '<\|im_end\|>' here"):
        probe(lambda id: "<｜Assistant｜>" if id == end else text(id))


def test_what_a_folder_says_of_sampling_is_saved_with_the_ends(tmp_path: Path) -> None:
    tokenizer_in(tmp_path, "qwen3_5")
    sampling = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | sampling))
    loaded = Tokenizer.load(tmp_path)
    loaded.save(tmp_path / "copy")
    saved = json.loads((tmp_path / "copy" / "generation_config.json").read_text())
    assert saved.items() >= sampling.items() and saved["eos_token_id"] == list(loaded.eos_ids)
    model = tmp_path / "model"
    model.mkdir()
    (model / "generation_config.json").write_text('{"temperature": 0.6}')
    Tokenizer.load(tmp_path, model=model).save(tmp_path / "other")  # the model's own file decides
    assert json.loads((tmp_path / "other" / "generation_config.json").read_text())["temperature"] == 0.6
