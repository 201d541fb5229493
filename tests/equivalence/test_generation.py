"""Greedy generation of the engine against transformers: the same tokens, prompt after prompt."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from models.weights import load_hf
from rollouts.engine import Engine, EngineConfig
from rollouts.local import LocalRollouts
from rollouts.types import Request, SamplingParams
from sharding.mesh import MeshConfig, make_mesh

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = 64
LENGTHS = (3, 9, 16, 17, 24, 31, 32, 40)


class Numbers:
    """A codec for tokens that are no text."""

    eos_ids = ()

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Any) -> str:
        return " ".join(str(int(id)) for id in ids)

    def token_bytes(self, id: int) -> bytes:
        return b""


@pytest.mark.parametrize("tied", [True, False])
def test_greedy_tokens_are_those_of_transformers(tmp_path, tied: bool) -> None:
    config = transformers.Qwen3Config(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=56,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        max_position_embeddings=256,
        initializer_range=0.2,  # logits of order ten: greedy choices with clear winners
        tie_word_embeddings=tied,
        eos_token_id=None,
        bos_token_id=None,
    )
    torch.manual_seed(1)
    model = transformers.Qwen3ForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    cfg, params = load_hf(tmp_path)
    engine_config = EngineConfig(
        slots=4, max_length=128, prefill_buckets=(16, 32), prefill_batch=2, decode_steps=8, compute_dtype=jnp.float32
    )
    rollouts = LocalRollouts(Engine(cfg, engine_config, make_mesh(MeshConfig(1, 1, 1))), Numbers(), seed=0, threads=1)
    rollouts.load_params(params)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 96, length).tolist() for length in LENGTHS]
    greedy = SamplingParams(0.0, 0, 1.0, TOKENS, (), (), False)
    completions = rollouts.run([Request(prompt, greedy, None, None, 1, None) for prompt in prompts])
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = torch.tensor([prompt])
        seen = torch.ones_like(ids)  # else generate takes prompt tokens that equal the pad id for padding
        with torch.no_grad():
            theirs = model.generate(ids, attention_mask=seen, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
        assert completion.ids_T.tolist() == theirs[0, len(prompt) :].tolist()
