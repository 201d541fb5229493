"""Whether a change of the models' code changes the programs of families that it should leave alone.

    python -m benchmarks.same_programs > after.txt      # the same in a checkout of the code before, then diff

For six tiny models that cover families, windows, biases and experts it prints the first digits of a hash of the
StableHLO text of seven programs: the gradient with remat none, full and dots, and a token and 32 tokens over pages
of slots and over shared ones. Equal texts compile to equal instructions: the same bits in the same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from scope_jax.models.decoder import transformer
from scope_jax.models.decoder.columns import Columns
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.pages import Loop, feed, init_pages
from scope_jax.models.decoder.paging import Implementation, Where, layer_groups
from scope_jax.models.files.families import from_hf
from scope_jax.sharding.collectives import LOCAL

ROWS, TOKENS = 2, 64
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "sliding_window": 8,
    "rope_theta": 1e4,
    "rms_norm_eps": 1e-6,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "attention_bias": True},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 12},
    "qwen3 windows": {"model_type": "qwen3", "head_dim": 8, "use_sliding_window": True, "max_window_layers": 1},
    "qwen3_moe": {"model_type": "qwen3_moe", "head_dim": 8, **EXPERTS},
    "olmo3": {"model_type": "olmo3", "rope_scaling": YARN},
}


def lowered(function: Callable[..., Any], *arguments: Any) -> str:
    text = jax.jit(function).lower(*arguments).as_text()
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def integers(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def programs(cfg: ModelConfig) -> Iterator[str]:
    params = jax.tree.map(lambda param: jax.ShapeDtypeStruct(param.shape, jnp.float32), transformer.declare(cfg))
    ids_BT, lengths_B = integers(ROWS, TOKENS), integers(ROWS)

    def loss(remat: transformer.Remat, params: Any, *rows: Any) -> Any:
        made = {"shards": LOCAL, "remat": remat, "compute_dtype": jnp.bfloat16}
        return jnp.sum(transformer.hidden(cfg, params, *rows, **made).astype(jnp.float32))

    for remat in ("none", "full", "dots"):
        yield lowered(jax.grad(partial(loss, remat)), params, ids_BT, ids_BT, ids_BT)
    layers = jax.eval_shape(partial(transformer.unstack_layers, cfg), params)
    for how, count, columns in ((Columns(128), ROWS, 1), (Loop(), 9, 4)):
        pages = jax.eval_shape(partial(init_pages, cfg, how, count, jnp.float32))
        where = Where(integers(ROWS, len(layer_groups(cfg, how.paging)), columns), lengths_B, lengths_B)

        def fed(layers: Any, pages: Any, ids_RQ: Any, where: Where, how: Implementation = how) -> Any:
            return feed(cfg, how, layers, pages, ids_RQ, where, LOCAL)

        for queries in (1, 32):
            yield lowered(fed, layers, pages, integers(ROWS, queries), where)


def main() -> None:
    for name, more in CASES.items():
        print(name, *programs(from_hf(SIZES | more)), flush=True)


if __name__ == "__main__":
    main()
