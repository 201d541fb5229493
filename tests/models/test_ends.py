"""Where replies end: template, configurations and tokenizer, over layouts as published models have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

from scope_jax.models.tokenizers.tokenizer import Tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
)
OLMO = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% if not loop.last %}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
)
PHI3 = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
GLM4 = "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}"
    "{% if m.role == 'assistant' and loop.last %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}"
)
THINKING = (  # drops the thought of earlier turns, opens one in the prompt
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
PLAIN = "{% for m in messages %}{{ m.role | capitalize }}: {{ m.content }}\n{% endfor %}"
STRICT = "{{ raise_exception('no') if messages | length > 1 else messages[0].content }}"
NAMED = [{"name": "tool_use", "template": CHATML}, {"name": "rag", "template": CHATML}]


def folder(
    place: Path,
    special: list[str],
    template: Any,
    eos: str | None,
    generation: Any = None,
    config: Any = None,
    ordinary: tuple[str, ...] = (),
    bos: str | None = None,
) -> Path:
    """A tokenizer of bytes (ids 0 … 255) and then `special`, in order, and further added tokens, `ordinary`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(special)
    fast.add_tokens([AddedToken(name, special=False, normalized=False) for name in ordinary])
    hf = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token=eos, bos_token=bos)
    hf.chat_template = template
    hf.save_pretrained(place)
    for name, value in (("generation_config.json", generation), ("config.json", config)):
        if value is not None:
            (place / name).write_text(json.dumps(value))
    return place


TEMPLATE, TOKENIZER, GENERATION, CONFIG = (
    "the chat template",
    "the tokenizer",
    "generation_config.json",
    "config.json",
)
ENDOFTEXT = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # 256, 257, 258


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        # ChatML where the tokenizer ends documents: Qwen2.5's base models
        ({"special": ENDOFTEXT, "template": CHATML, "eos": "<|endoftext|>"}, {"<|endoftext|>", "<|im_end|>"}),
        (
            {"special": ENDOFTEXT, "template": CHATML, "eos": "<|endoftext|>", "generation": {"eos_token_id": 256}},
            {"<|endoftext|>", "<|im_end|>"},
        ),
        ({"special": ENDOFTEXT, "template": CHATML, "eos": "<|im_end|>"}, {"<|im_end|>"}),
        (
            {"special": ENDOFTEXT, "template": CHATML, "eos": "<|im_end|>", "generation": {"eos_token_id": [258, 256]}},
            {"<|im_end|>", "<|endoftext|>"},
        ),
        ({"special": ENDOFTEXT, "template": THINKING, "eos": "<|endoftext|>"}, {"<|endoftext|>", "<|im_end|>"}),
        # <|im_end|> added by a fine-tune that did not mark it as special
        (
            {"special": ["<|endoftext|>"], "ordinary": ("<|im_start|>", "<|im_end|>"), "template": CHATML}
            | {"eos": "<|endoftext|>"},
            {"<|endoftext|>", "<|im_end|>"},
        ),
        # Llama 3: the base's end of text, and a list in generation_config.json
        (
            {
                "special": [
                    "<|begin_of_text|>",
                    "<|end_of_text|>",
                    "<|start_header_id|>",
                    "<|end_header_id|>",
                    "<|eot_id|>",
                ]
            }
            | {"template": LLAMA3, "eos": "<|end_of_text|>", "bos": "<|begin_of_text|>"},
            {"<|end_of_text|>", "<|eot_id|>"},
        ),
        # OLMo, Mistral: the end of the sequence ends a message
        (
            {"special": ["<|endoftext|>"], "template": OLMO, "eos": "<|endoftext|>", "bos": "<|endoftext|>"},
            {"<|endoftext|>"},
        ),
        ({"special": ["<s>", "</s>", "[INST]", "[/INST]"], "template": MISTRAL, "eos": "</s>", "bos": "<s>"}, {"</s>"}),
        (
            {"special": ["<eos>", "<start_of_turn>", "<end_of_turn>"], "template": GEMMA, "eos": "<eos>"},
            {"<eos>", "<end_of_turn>"},
        ),
        (
            {"special": ["<|endoftext|>", "<|user|>", "<|end|>"], "template": PHI3, "eos": "<|endoftext|>"},
            {"<|endoftext|>", "<|end|>"},
        ),
        # nothing follows the last message: the next one's beginning ends it
        (
            {"special": ["<|endoftext|>", "[gMASK]", "<sop>", "<|user|>"], "template": GLM4, "eos": "<|endoftext|>"},
            {"<|endoftext|>", "<|user|>"},
        ),
        # an earlier message ends otherwise than a reply
        (
            {"special": ["<|endoftext|>", "<|start|>", "<|message|>", "<|end|>", "<|return|>"], "template": HARMONY}
            | {"eos": "<|endoftext|>"},
            {"<|endoftext|>", "<|return|>"},
        ),
        # config.json counts where generation_config.json names nothing, and then only added tokens
        (
            {"special": ENDOFTEXT, "template": None, "eos": "<|endoftext|>", "config": {"eos_token_id": 258}},
            {"<|endoftext|>", "<|im_end|>"},
        ),
        (
            {"special": ENDOFTEXT, "template": None, "eos": "<|endoftext|>", "config": {"eos_token_id": [258, 2]}}
            | {"generation": {"temperature": 1.0}},
            {"<|endoftext|>", "<|im_end|>"},
        ),
        (
            {"special": ENDOFTEXT, "template": None, "eos": "<|im_end|>", "config": {"eos_token_id": 256}}
            | {"generation": {"eos_token_id": 258}},
            {"<|im_end|>"},
        ),
        (
            {"special": ENDOFTEXT, "template": None, "eos": "<|endoftext|>", "config": {"eos_token_id": 2}},
            {"<|endoftext|>"},
        ),
        (
            {"special": ENDOFTEXT, "template": None, "eos": "<|endoftext|>", "config": {"eos_token_id": None}},
            {"<|endoftext|>"},
        ),
        # no eos_token, but others name one
        ({"special": ["<a>", "<z>"], "template": None, "eos": None, "generation": {"eos_token_id": 257}}, {"<z>"}),
        ({"special": ["<|im_start|>", "<|im_end|>"], "template": CHATML, "eos": None}, {"<|im_end|>"}),
        # no end in the template
        ({"special": ["</s>"], "template": PLAIN, "eos": "</s>"}, {"</s>"}),
        ({"special": ["</s>"], "template": STRICT, "eos": "</s>"}, {"</s>"}),
        ({"special": ["</s>"], "template": "{{ oh no", "eos": "</s>"}, {"</s>"}),
        ({"special": ENDOFTEXT, "template": NAMED, "eos": "<|endoftext|>"}, {"<|endoftext|>"}),
    ],
)
def test_every_token_that_ends_a_reply_is_found_and_no_other(
    layout: dict[str, Any], expected: set[str], tmp_path: Path
):
    tokenizer = Tokenizer.load(folder(tmp_path, **layout))
    assert {end.name for end in tokenizer.ends} == expected
    assert [end.id for end in tokenizer.ends] == list(tokenizer.eos_ids)
    assert [tokenizer.decode([id]) for id in tokenizer.eos_ids] == [end.name for end in tokenizer.ends]
    tokenizer.save(tmp_path / "saved")
    assert set(Tokenizer.load(tmp_path / "saved").eos_ids) == set(tokenizer.eos_ids)


def test_who_names_an_end_is_known(tmp_path: Path):
    made = folder(tmp_path, ENDOFTEXT, CHATML, "<|endoftext|>", {"eos_token_id": [256, 258]}, {"eos_token_id": 258})
    assert [(end.name, end.sources) for end in Tokenizer.load(made).ends] == [
        ("<|endoftext|>", (TOKENIZER, GENERATION)),
        ("<|im_end|>", (GENERATION, TEMPLATE)),
    ]
    (made / "generation_config.json").unlink()
    assert [(end.name, end.sources) for end in Tokenizer.load(made).ends] == [
        ("<|endoftext|>", (TOKENIZER,)),
        ("<|im_end|>", (CONFIG, TEMPLATE)),
    ]


def test_a_model_beside_its_tokenizer_names_ends_too(tmp_path: Path):
    made = folder(tmp_path / "tokenizer", ENDOFTEXT, None, "<|endoftext|>")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "generation_config.json").write_text('{"eos_token_id": [258]}')
    assert Tokenizer.load(made).eos_ids == (256,)
    assert Tokenizer.load(made, model=tmp_path / "model").eos_ids == (256, 258)
    (tmp_path / "model" / "generation_config.json").write_text('{"eos_token_id": "x"}')
    with pytest.raises(ValueError, match="eos_token_id is 'x'; it must be a token id or a list of them"):
        Tokenizer.load(made, model=tmp_path / "model")


def test_what_a_template_without_an_end_token_writes_is_known(tmp_path: Path):
    found = Tokenizer.load(folder(tmp_path / "plain", ["</s>"], PLAIN, "</s>")).template_end
    assert found is not None and (found.text, found.id) == ("\n", None)
    other = Tokenizer.load(folder(tmp_path / "other", ["</s>"], CHATML, "</s>")).template_end
    assert other is not None and (other.text, other.id) == ("<|im_end|>\n", None)
    assert Tokenizer.load(folder(tmp_path / "strict", ["</s>"], STRICT, "</s>")).template_end is None


REAL = [
    ("qwen", "Qwen-Qwen2.5-7B-Instruct", "<|im_end|>"),
    pytest.param("llama3", "meta-llama-Llama-3.1-8B-Instruct", "<|eot_id|>", marks=pytest.mark.slow),
    pytest.param("qwen", "Qwen-Qwen3-0.6B", "<|im_end|>", marks=pytest.mark.slow),
    pytest.param("qwen", "Qwen-QwQ-32B", "<|im_end|>", marks=pytest.mark.slow),
    pytest.param("llama3", "meta-llama-Llama-3.2-3B-Instruct", "<|eot_id|>", marks=pytest.mark.slow),
    pytest.param("olmo2_dolma2", "Qwen-Qwen3-0.6B", "<|im_end|>", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("vocabulary", "template", "name"), REAL)
def test_the_ends_of_real_templates(shared_data: Path, vocabulary: str, template: str, name: str):
    path = shared_data / "chat_templates" / f"{template}.jinja"
    tokenizer = Tokenizer.load(shared_data / "tokenizers" / vocabulary, path)
    end = tokenizer.template_end
    assert end is not None and end.id is not None
    assert tokenizer.decode([end.id]) == name and end.id in tokenizer.eos_ids


def test_qwens_base_layout(shared_data: Path, tmp_path: Path):
    """Qwen2.5's base models: the tokenizer and generation_config.json name <|endoftext|>, the template is ChatML."""
    source = shared_data / "tokenizers" / "qwen"
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).symlink_to(source / name)
    config = json.loads((source / "tokenizer_config.json").read_text()) | {"eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 151643, "max_new_tokens": 2048}')
    assert set(Tokenizer.load(tmp_path).eos_ids) == {151643, 151645}


def test_a_template_of_another_model_ends_with_no_token(shared_data: Path):
    path = shared_data / "chat_templates" / "meta-llama-Llama-3.1-8B-Instruct.jinja"
    tokenizer = Tokenizer.load(shared_data / "tokenizers" / "qwen", path)
    assert tokenizer.template_end is not None and tokenizer.template_end.id is None
