"""The warm-up of Atlas's base checkpoint: two supervised stages through the project's own learner.

Stage "read" plays every role well in worlds whose names are exchanged anew in every row: facts can only be read.
Stage "play" goes on, half on such worlds and half on the true world of the train entities, with the bad habits that
self-play is there to unlearn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from models.config import ModelConfig
from models.rope import Rope
from models.tokenizer import Tokenizer
from scope_jax.atlas import circuit
from scope_jax.atlas.demonstrations import Habits, Library, exchanged, name_ids, pool, supervised
from scope_jax.atlas.facts import World
from scope_jax.atlas.report_demonstrations import Newsroom, ReportHabits, makers
from scope_jax.atlas.scripts import Show
from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner.learner import Learner
from scope_jax.learner.types import Datum
from sharding.mesh import MeshConfig, make_mesh

CARD = LossCard(objective="supervised", kl="none", aggregation="token-mean", mini_batches=1)
LEARNER = LearnerSection(buckets=(256, 384, 512), packing=True, micro_batch_rows=8, remat="none", logprob_chunk=512)
HABITS = Habits(
    sure=frozenset({"capital", "continent", "country"}), guess_sure=0.8, guess=0.25, half_way=0.4, unread=0.15
)
REPORT_HABITS = ReportHabits(
    sure=frozenset({"long_form_qa", "summarization"}),
    guess_sure=0.7,
    guess=0.25,
    half_way=0.35,
    short=0.3,
    ramble=0.2,
    vague=0.15,
    unread=0.15,
    drift=0.2,
)
Rows = dict[str, int]  # demonstrations of each kind in one step: SSP's roles and SCOPE's
_READ_SSP: Rows = {"solve 1": 4, "solve 2": 7, "propose 1": 4, "propose 2": 6, "read 1": 2, "read 2": 5}
_READ_SCOPE: Rows = {"challenge": 5, "report": 8, "gate entity": 2, "gate relevance": 14, "rubric": 6, "grade": 20}
_PLAY_SSP: Rows = {"solve 1": 12, "solve 2": 12, "propose 1": 3, "propose 2": 4, "read 1": 1, "read 2": 2}
_PLAY_SCOPE: Rows = {"challenge": 6, "report": 14, "gate entity": 1, "gate relevance": 6, "rubric": 4, "grade": 10}
READ_ROWS: Rows = _READ_SSP | _READ_SCOPE
PLAY_ROWS: Rows = _PLAY_SSP | _PLAY_SCOPE
Log = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """How long and how fast; everything else is fixed above."""

    seed: int
    read_steps: int
    read_rate: float
    play_steps: int
    play_rate: float
    pool: int  # token rows kept ready for each kind of demonstration
    log_every: int


RECIPE = Recipe(seed=0, read_steps=400, read_rate=1e-3, play_steps=120, play_rate=1e-3, pool=1200, log_every=25)


def model_config(tokenizer: Tokenizer) -> ModelConfig:
    """Qwen3's architecture with 4 layers of width 128; the vocabulary is filled up to a multiple of 16."""
    return ModelConfig(
        architecture="qwen3",
        vocab_size=-(-tokenizer.vocab_size // 16) * 16,
        num_layers=4,
        width=128,
        num_heads=4,
        num_kv_heads=4,
        head_dim=32,
        ffn_width=384,
        rope=Rope(1e6),
        norm_eps=1e-6,
        tie_embeddings=True,
        qk_norm="head",
        qkv_bias=False,
        output_bias=False,
        max_positions=1024,
    )


@dataclass(frozen=True)
class Shown:
    """The search tool of each game: its cards give a query a different number of documents."""

    ssp: Show
    scope: Show


def pools(
    library: Library, room: Newsroom, tokenizer: Tokenizer, count: int, with_habits: bool
) -> dict[str, list[Datum]]:
    """`count` token rows of every kind of demonstration; with_habits: bad ones among them."""
    habits = HABITS if with_habits else None
    draw = {
        "solve 1": lambda: library.solve(1, habits),
        "solve 2": lambda: library.solve(2, habits),
        "propose 1": lambda: library.propose(1, habits),
        "propose 2": lambda: library.propose(2, habits),
        "read 1": lambda: library.read(1),
        "read 2": lambda: library.read(2),
        **makers(room, REPORT_HABITS if with_habits else None),
    }
    return {name: pool(draw[name], count, tokenizer) for name in draw}


def _train(
    model: ModelConfig,
    params: Any,
    draw: Callable[[], list[Datum]],
    steps: int,
    rate: float,
    recipe: Recipe,
    log: Log,
    name: str,
) -> Any:
    """Weights after `steps` supervised updates on freshly drawn rows."""
    optimizer = OptimizerSection(
        learning_rate=rate,
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


def warm_up(world: World, shown: Shown, tokenizer: Tokenizer, recipe: Recipe, log: Log) -> tuple[ModelConfig, Any]:
    """(config, float32 weights) of the base checkpoint; the same on every run of the same machine and versions."""
    rng = np.random.default_rng(recipe.seed)
    model = model_config(tokenizer)
    names_N = name_ids(world, tokenizer)
    everyone = Library(world, shown.ssp, train_only=False, seed=recipe.seed)
    everything = Newsroom(world, shown.scope, train_only=False, seed=recipe.seed)
    trained = Library(world, shown.ssp, train_only=True, seed=recipe.seed)
    trained_on = Newsroom(world, shown.scope, train_only=True, seed=recipe.seed)

    def drawn(source: dict[str, list[Datum]], counts: Rows, exchange: Callable[[int], bool]) -> list[Datum]:
        rows = [
            source[name][int(rng.integers(len(source[name])))] for name, count in counts.items() for _ in range(count)
        ]
        return [
            exchanged(row, names_N, tokenizer.vocab_size, rng) if exchange(i) else row for i, row in enumerate(rows)
        ]

    log(f"{len(everyone.singles)} facts, {len(everyone.pairs)} chains, {len(everything.things)} things; drawing")
    reading = pools(everyone, everything, tokenizer, recipe.pool, with_habits=False)
    params = circuit.initial_weights(model, recipe.seed)
    params = _train(
        model,
        params,
        lambda: drawn(reading, READ_ROWS, lambda i: True),
        recipe.read_steps,
        recipe.read_rate,
        recipe,
        log,
        "read",
    )
    playing = pools(trained, trained_on, tokenizer, recipe.pool, with_habits=True)
    params = _train(
        model,
        params,
        lambda: drawn(playing, PLAY_ROWS, lambda i: i % 2 == 0),
        recipe.play_steps,
        recipe.play_rate,
        recipe,
        log,
        "play",
    )
    return model, params
