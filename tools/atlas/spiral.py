"""The small world of SPIRAL: positions for its exams, a tokenizer, and a base that has the format of all three games.

    python -m tools.atlas.spiral --out assets/atlas/spiral

The base learns from games in which both players draw legal actions, and has bad habits (`HABITS`). Everything is built
with fixed seeds, in about a minute on two CPU cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from scope_jax.config import LearnerSection, OptimizerSection
from scope_jax.games import load_card
from scope_jax.games.spiral.kuhn_poker import DEALS
from scope_jax.games.spiral.messages import for_player
from scope_jax.games.spiral.options import options
from scope_jax.games.spiral.rules import GAMES
from scope_jax.games.spiral.tictactoe import CELLS
from scope_jax.learner.learner import Learner
from scope_jax.models.files.weights import save_hf
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tools.atlas import circuit
from tools.atlas.build import write_rows
from tools.atlas.facts import ASSETS
from tools.atlas.rows import Script, pick, supervised, token_row
from tools.atlas.vocabulary import save_tokenizer, train_tokenizer
from tools.atlas.warmup import CARD as LOSS
from tools.atlas.warmup import model_config

CARD = ASSETS.parents[1] / "configs" / "spiral" / "atlas.toml"
GAMES_SHOWN, LAYERS, STEPS, ROWS = 1200, 2, 300, 32  # games for the demonstrations; of the model; of its training
HABITS = {"taken": 0.2, "no box": 0.05}  # shares of turns: any cell or action, be it legal or not; the action alone
ANYTHING = {
    "tictactoe": tuple(CELLS),
    "kuhn_poker": ("check", "bet", "call", "fold"),
    "negotiation": ("accept", "deny", "pass"),
}


def games(count: int, rng: np.random.Generator) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Game, deal and actions of finished games in which legal actions are drawn, each game in turn."""
    card = options(load_card(CARD))
    for number in range(count):
        name = [*GAMES][number % len(GAMES)]
        deal = {"kuhn_poker": [pick(DEALS, rng)], "negotiation": [*card.negotiation]}.get(name)
        moves: tuple[str, ...] = ()
        while (now := GAMES[name](deal, moves)).lead is None:
            moves = (*moves, pick(now.legal, rng))
        yield name, deal, moves


def demonstrations(count: int, rng: np.random.Generator) -> Iterator[Script]:
    """Every turn of so many games, with the habits."""
    cfg = load_card(CARD)
    for name, deal, moves in games(count, rng):
        for turn, move in enumerate(moves):
            said = pick(ANYTHING[name], rng) if rng.random() < HABITS["taken"] else move
            text = said if rng.random() < HABITS["no box"] else f"\\boxed{{{said}}}"
            yield Script("player", for_player(cfg, name, deal, moves[:turn]).user, ((text, True),), ends=True)


def positions() -> dict[str, list[dict[str, Any]]]:
    """The rows of each exam."""
    openings: list[list[str]] = [[], *([cell] for cell in CELLS)]
    board = [{"game": "tictactoe", "deal": None, "moves": moves} for moves in openings]
    hands = [{"game": "kuhn_poker", "deal": [cards], "moves": []} for cards in DEALS]
    hands += [{"game": "kuhn_poker", "deal": [cards], "moves": [move]} for cards in DEALS for move in ("check", "bet")]
    deal = [*options(load_card(CARD)).negotiation]
    offers = ["pass", "offer: 1 wood -> 1 gold", "offer: 1 wood -> 2 gold", "offer: 2 gold -> 1 wood"]
    trade = [{"game": "negotiation", "deal": deal, "moves": moves} for moves in ([], *([offer] for offer in offers))]

    def against(opponent: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"opponent": opponent, **row} for row in rows]

    return {
        "tictactoe_random": against("random", board),
        "tictactoe_optimal": against("optimal", board),
        "kuhn_random": against("random", hands),
        "kuhn_worst_case": against("worst-case", [hands[0], hands[len(DEALS)]]),  # one for each seat
        "negotiation_random": against("random", trade),
    }


def build(out: Path, seed: int = 0) -> None:
    """Writes positions, tokenizer and base; deterministic for the same machine and versions."""
    rng = np.random.default_rng(seed)
    for name, rows in positions().items():
        out.mkdir(parents=True, exist_ok=True)
        write_rows(out / f"{name}.jsonl", rows)
    scripts = [*demonstrations(GAMES_SHOWN, rng)]
    texts = [text for script in scripts for text in (script.message, *(text for text, _ in script.parts))]
    pieces = (r"\\boxed\{", "->", r"\p{N}")
    save_tokenizer(train_tokenizer([*texts, "user\n", "assistant\n"] * 2, [], pieces), out / "tokenizer")
    tokenizer = Tokenizer.load(out / "tokenizer")
    model = model_config(tokenizer)
    model = replace(model, layers=(model.layers * LAYERS)[:LAYERS])
    shown = [token_row(script, tokenizer) for script in scripts]

    optimizer = OptimizerSection(
        learning_rate=2e-3, warmup_steps=10, beta2=0.98, weight_decay=0.01, schedule="cosine", total_steps=STEPS
    )
    section = LearnerSection(buckets=(256,), micro_batch_rows=8, remat="none", logprob_chunk=512)
    types = {"param_dtype": jnp.float32, "compute_dtype": jnp.float32}
    learner = Learner(model, make_mesh(MeshConfig(1, 1, 1)), optimizer, section, **types)
    state = learner.init_state(circuit.initial_weights(model, seed), reference=False)
    for step in range(1, STEPS + 1):
        drawn = [shown[int(place)] for place in rng.integers(len(shown), size=ROWS)]
        state, metrics = learner.update(state, learner.pack(supervised(drawn), LOSS), LOSS)
        if step % 20 == 0:
            print(f"{step}/{STEPS}: loss {metrics['loss']:.4f}", flush=True)
    save_hf(out / "base", model, state.params, jnp.bfloat16, tokenizer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.atlas.spiral", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    build(parser.parse_args().out)
