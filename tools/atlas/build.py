"""Builds all of Atlas: corpus, answers, question and task sets, and a tokenizer and a base checkpoint for each game.

    python -m tools.atlas.build --out assets/atlas

The tables of facts and the prompts are the source; everything else in the folder is built from them with fixed seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from scope_jax.data.corpus import Corpus, load_corpus
from scope_jax.files import replaced
from scope_jax.games import load_card
from scope_jax.models.files.weights import save_hf
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.retrieval.embed import HashedLexical
from scope_jax.retrieval.exact import ExactIndex
from scope_jax.retrieval.search import LocalRetriever, SearchTool
from scope_jax.text.parsing import neutralise
from tools.atlas import corpus, vocabulary, warmup
from tools.atlas.facts import ASSETS, World, load_world
from tools.atlas.games import GAMES, Roles
from tools.atlas.rows import Show

SAMPLE_SCRIPTS = 150  # of each kind, for the tokenizer's word list


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """JSON lines, whole or not at all."""
    with replaced(path) as new:
        new.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def write_texts(world: World, out: Path) -> None:
    """The corpus, and the files of every game: documents, answers, questions, tasks, …"""
    files: dict[str, Sequence[dict[str, Any]]] = {"corpus.jsonl": corpus.documents(world)}
    for roles in GAMES.values():
        files.update(roles.texts(world))
    for name, rows in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        write_rows(out / name, rows)


def search_tool(passages: Corpus, world: World, roles: Roles) -> Show:
    """The search of a game's card over the corpus: a query in, the text that a policy reads out.

    What demonstrations look up, phrases of facts and names, is searched at once and kept. Where the card has no
    retrieval, nothing is found.
    """
    game = roles.CARD.parent.name
    retrieval = load_card(roles.CARD, [f"{game}.prompts={ASSETS / 'prompts' / game}"]).retrieval
    if retrieval is None:
        return lambda query: ""
    embedder = HashedLexical.fit(passages, retrieval.dim)
    vectors_NE = embedder.passages([document.contents for document in passages.documents(0, len(passages))])
    tool = SearchTool(
        LocalRetriever(ExactIndex(vectors_NE, mesh=None, axes=()), passages, embedder),
        top_k=retrieval.top_k,
        max_tokens=500,
        truncate=lambda text, budget: text,  # an Atlas result has about 120 tokens
        neutralise=neutralise,
        cache_size=4096,
    )
    tool([fact.phrase for fact in world.facts] + list(world.names))
    return lambda query: tool([query])[0]


def write_tokenizer(roles: Roles, world: World, show: Show, out: Path) -> Tokenizer:
    """A game's tokenizer folder, trained on the corpus and on a sample of every role's episodes."""
    makers = roles.makers(world, show, split="all", seed=1, with_habits=True)
    scripts = [make() for make in makers.values() for _ in range(SAMPLE_SCRIPTS)]
    texts = [row["text"] for row in corpus.documents(world)]
    texts += [script.message for script in scripts]
    texts += [text for script in scripts for text, _ in script.parts]
    texts += ["user\n", "assistant\n", *roles.EXTRA_TEXTS] * vocabulary.WORD_COUNT
    vocabulary.save_tokenizer(vocabulary.train_tokenizer(texts, world.names, roles.PIECES), out / "tokenizer")
    return Tokenizer.load(out / "tokenizer")


def build(out: Path, games: Mapping[str, warmup.Recipe], texts_only: bool = False) -> None:
    """The world's texts, and for each game its tokenizer and its base checkpoint: bfloat16 in Hugging Face layout.

    texts_only: no base checkpoints.
    """
    began = time.monotonic()

    def log(line: str) -> None:
        print(f"[{time.monotonic() - began:6.0f} s] {line}", flush=True)

    world = load_world()
    write_texts(world, out)
    log(f"{len(world.names)} documents, {len(world.facts)} facts, {len(world.held_out)} names held out")
    passages = load_corpus(out / "corpus.jsonl")
    for game, recipe in games.items():
        roles = GAMES[game]
        show = search_tool(passages, world, roles)
        tokenizer = write_tokenizer(roles, world, show, out / game)
        log(f"{game}: a tokenizer of {tokenizer.vocab_size} tokens")
        if texts_only:
            continue
        model, params = warmup.warm_up(roles, world, show, tokenizer, recipe, log)
        save_hf(out / game / "base", model, params, jnp.bfloat16, tokenizer)
        log(f"{game}: base checkpoint in {out / game / 'base'}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.atlas.build", description="Build the Atlas world.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write into, e.g. assets/atlas")
    parser.add_argument("--game", choices=list(GAMES), action="append", help="whose base; may be repeated; all without")
    parser.add_argument("--read-steps", type=int, help="steps of stage 'read' instead of the game's own")
    parser.add_argument("--play-steps", type=int, help="steps of stage 'play' instead of the game's own")
    parser.add_argument("--pool", type=int, default=warmup.POOL, help="demonstrations kept ready of each kind")
    parser.add_argument("--texts-only", action="store_true", help="write texts and tokenizers, no base checkpoint")
    given = parser.parse_args(arguments)
    recipes = {}
    for game in given.game or GAMES:
        own_read, own_play = GAMES[game].STEPS
        read = own_read if given.read_steps is None else given.read_steps
        play = own_play if given.play_steps is None else given.play_steps
        recipes[game] = warmup.Recipe(read, play, pool=given.pool)
    build(given.out, recipes, given.texts_only)


if __name__ == "__main__":
    main()
