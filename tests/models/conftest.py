from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.transformer import declare
from scope_jax.models.kernels.rope import Rope
from scope_jax.sharding.spec import init_params
from tests.shapes import uniform

SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tiny() -> ModelConfig:
    """Two layers, two query heads for each kv head, head_dim that is not width / heads, untied."""
    return uniform(
        architecture="qwen3",
        vocab_size=64,
        num_layers=2,
        width=32,
        num_heads=4,
        num_kv_heads=2,
        head_dim=12,
        ffn_width=48,
        rope=Rope(10000.0),
        norm_eps=1e-6,
        tie_embeddings=False,
        qk_norm="head",
        qkv_bias=True,
        output_bias=True,
        max_positions=128,
    )


@pytest.fixture(scope="session")
def params(tiny):
    params = jax.jit(lambda: init_params(declare(tiny), jax.random.key(0)))()
    # Biases and norms start at 0 and 1: other values reveal mistakes.
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: x + 0.1 * rng.normal(size=x.shape).astype(np.float32), params)


def write_byte_level(folder: Path, pad: str | None = "<|pad|>", template: str | None = TEMPLATE) -> Path:
    """A folder with a tokenizer of 256 bytes, one merge and three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)} | {"th": 256}
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=[("t", "h")]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(SPECIAL)
    fast.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    hf = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|im_end|>", pad_token=pad)
    hf.chat_template = template
    hf.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def byte_level() -> Callable[..., Path]:
    """write_byte_level, which writes a tokenizer into a folder."""
    return write_byte_level
