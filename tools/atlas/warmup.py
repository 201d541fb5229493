"""The warm-up of an Atlas base checkpoint: two supervised stages with the project's own learner.

Stage "read" shows every role of a game played well in worlds whose names are permuted in every row: facts can only be
read, not memorised. Stage "play" continues, half on such worlds and half on the true facts of training entities, with
the bad habits that self-play is meant to unlearn. The roles, and the number of rows of each, are set by the game's
module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner.learner import Learner
from scope_jax.learner.types import Datum
from scope_jax.models.decoder.config import Attention, Dense, Layer, ModelConfig
from scope_jax.models.kernels.rope import Rope
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tools.atlas import circuit, measured
from tools.atlas.facts import World
from tools.atlas.games import Roles
from tools.atlas.rows import Makers, Show, exchanged, name_ids, pool, supervised

CARD = LossCard(objective="supervised", kl="none", aggregation="token-mean", mini_batches=1)
LEARNER = LearnerSection(buckets=(256, 384, 512), packing=True, micro_batch_rows=8, remat="none", logprob_chunk=512)
POOL = 2000  # token rows kept ready for each kind of demonstration
Log = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """Steps, learning rate and log settings; everything else is fixed above and in the game's module."""

    read_steps: int
    play_steps: int
    seed: int = 0
    rate: float = 1e-3
    pool: int = POOL
    measured: int = 48  # demonstrations of each kind on which the logged accuracies are measured
    log_every: int = 20


def model_config(tokenizer: Tokenizer) -> ModelConfig:
    """Qwen3's architecture with 4 layers of width 128; the vocabulary is padded to a multiple of 16."""
    return ModelConfig(
        architecture="qwen3",
        vocab_size=-(-tokenizer.vocab_size // 16) * 16,
        width=128,
        layers=(Layer(Attention(4, 4, 32, Rope(1e6), qk_norm="head"), Dense(384)),) * 4,
        norm_eps=1e-6,
        tie_embeddings=True,
        max_positions=1024,
    )


def _train(
    model: ModelConfig, params: Any, draw: Callable[[], list[Datum]], steps: int, recipe: Recipe, log: Log, name: str
) -> Any:
    """Weights after `steps` supervised updates on freshly drawn rows."""
    optimizer = OptimizerSection(
        learning_rate=recipe.rate,
        warmup_steps=20,
        beta2=0.98,
        weight_decay=0.01,
        schedule="cosine",
        total_steps=max(steps, 21),
    )
    learner = Learner(
        model, make_mesh(MeshConfig(1, 1, 1)), optimizer, LEARNER, param_dtype=jnp.float32, compute_dtype=jnp.float32
    )
    state = learner.init_state(params, reference=False)
    for step in range(1, steps + 1):
        state, metrics = learner.update(state, learner.pack(supervised(draw()), CARD), CARD)
        if step % recipe.log_every == 0 or step == steps:
            log(f"{name} {step}/{steps}: loss {metrics['loss']:.4f}")
    return state.params


def warm_up(
    roles: Roles, world: World, show: Show, tokenizer: Tokenizer, recipe: Recipe, log: Log
) -> tuple[ModelConfig, Any]:
    """(config, float32 weights) of a game's base checkpoint, deterministic for the same machine and versions.

    After each stage the log shows how much of the held-out demonstrations of good play the weights reproduce.
    """
    rng = np.random.default_rng(recipe.seed)
    model = model_config(tokenizer)
    names_N = name_ids(world, tokenizer)

    def pools(makers: Makers, count: int = recipe.pool) -> dict[str, list[Datum]]:
        return {kind: pool(make, count, tokenizer) for kind, make in makers.items()}

    def drawn(
        source: Mapping[str, list[Datum]], counts: Mapping[str, int], exchange: Callable[[int], bool]
    ) -> list[Datum]:
        rows = [
            source[name][int(rng.integers(len(source[name])))] for name, count in counts.items() for _ in range(count)
        ]
        return [
            exchanged(row, names_N, tokenizer.vocab_size, rng) if exchange(i) else row for i, row in enumerate(rows)
        ]

    def tell(params: Any) -> None:
        for kind, rows in examined.items():
            whole, tokens = measured.greedy_accuracy(model, params, rows)
            log(f"held out, {kind}: whole {whole:.2f}, tokens {tokens:.3f}")

    held_out = roles.makers(world, show, split="held_out", seed=recipe.seed, with_habits=False)
    examined = pools(held_out, recipe.measured)
    reading = pools(roles.makers(world, show, split="all", seed=recipe.seed, with_habits=False))
    params = circuit.initial_weights(model, recipe.seed)
    read = lambda: drawn(reading, roles.READ_ROWS, lambda i: True)  # noqa: E731
    params = _train(model, params, read, recipe.read_steps, recipe, log, "read")
    tell(params)
    playing = pools(roles.makers(world, show, split="train", seed=recipe.seed, with_habits=True))
    play = lambda: drawn(playing, roles.PLAY_ROWS, lambda i: i % 2 == 0)  # noqa: E731
    params = _train(model, params, play, recipe.play_steps, recipe, log, "play")
    tell(params)
    return model, params
