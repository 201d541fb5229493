"""Builds all of Atlas: corpus, answers, question sets, tokenizer, base checkpoint.

    python -m scope_jax.atlas.build --out assets/atlas

The files of facts and the prompts are the source; everything else in the folder is made here, from fixed seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from models.tokenizer import Tokenizer
from models.weights import save_hf
from retrieval.corpus import Corpus, load_corpus
from retrieval.embed import HashedLexical
from retrieval.exact import ExactIndex
from retrieval.search import LocalRetriever, SearchTool
from scope_jax.atlas import corpus, questions, tasks, vocabulary, warmup
from scope_jax.atlas.demonstrations import Library
from scope_jax.atlas.facts import World, load_world
from scope_jax.atlas.report_demonstrations import Newsroom, makers
from scope_jax.atlas.report_scripts import card
from scope_jax.atlas.scripts import Show
from scope_jax.atlas.warmup import Shown
from scope_jax.text.parsing import neutralise

TOP_K, EMBED_DIM = 2, 2048  # of the search tool, as in configs/ssp/atlas.toml
SAMPLE_SCRIPTS = 150  # of each kind, for the tokenizer's word list
NUDGES = ("nudge_score", "nudge_rubrics", "search_not_run")  # texts of SCOPE that no demonstration shows


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """JSON lines, whole or not at all."""
    new = path.with_name(f".{path.name}.new")
    new.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    os.replace(new, path)


def write_texts(world: World, out: Path) -> None:
    """corpus.jsonl, answers.jsonl, documents.jsonl, questions_*.jsonl and tasks_*.jsonl."""
    out.mkdir(parents=True, exist_ok=True)
    write_rows(out / "corpus.jsonl", corpus.documents(world))
    write_rows(out / "answers.jsonl", questions.answer_set(world))
    for name, rows in questions.question_sets(world).items():
        write_rows(out / f"questions_{name}.jsonl", rows)
    write_rows(out / "documents.jsonl", tasks.source_documents(world))
    for name, rows in tasks.task_sets(world).items():
        write_rows(out / f"tasks_{name}.jsonl", rows)


def search_tool(passages: Corpus, world: World, top_k: int = TOP_K) -> Show:
    """The project's search tool over the corpus: a query in, the text a policy reads out, `top_k` documents of it.

    What demonstrations look up, phrases of facts and names, is searched at once and kept.
    """
    embedder = HashedLexical.fit(passages, EMBED_DIM)
    vectors_NE = embedder.passages([document.contents for document in passages.documents(0, len(passages))])
    tool = SearchTool(
        LocalRetriever(ExactIndex(vectors_NE, mesh=None, axes=()), passages, embedder),
        top_k=top_k,
        max_tokens=500,
        truncate=lambda text, budget: text,  # an Atlas result has about 120 tokens
        neutralise=neutralise,
        cache_size=4096,
    )
    tool([fact.phrase for fact in world.facts] + list(world.names))
    return lambda query: tool([query])[0]


def shown(passages: Corpus, world: World) -> Shown:
    """The search tool as each game's card has it."""
    retrieval = card().retrieval
    assert retrieval is not None
    return Shown(search_tool(passages, world), search_tool(passages, world, retrieval.top_k))


def write_tokenizer(world: World, found: Shown, out: Path) -> Tokenizer:
    """The tokenizer's folder, trained on the corpus and on a sample of every role's episodes."""
    library = Library(world, found.ssp, train_only=False, seed=1)
    roles = (library.solve, library.propose, library.read)
    scripts = [make(count) for make in roles for count in (1, 2) for _ in range(SAMPLE_SCRIPTS)]
    room = Newsroom(world, found.scope, train_only=False, seed=1)
    for make in makers(room, warmup.REPORT_HABITS).values():
        scripts += [make() for _ in range(SAMPLE_SCRIPTS)]
    texts = [row["text"] for row in corpus.documents(world)]
    texts += [script.message for script in scripts]
    texts += [text for script in scripts for text, _ in script.parts]
    texts += ["user\n", "assistant\n"] * vocabulary.WORD_COUNT
    texts += [(tasks.PROMPTS / f"{name}.txt").read_text(encoding="utf-8") for name in NUDGES] * vocabulary.WORD_COUNT
    texts += [" I know this. I know one. "] * vocabulary.WORD_COUNT
    vocabulary.save_tokenizer(vocabulary.train_tokenizer(texts, world.names), out / "tokenizer")
    return Tokenizer.load(out / "tokenizer")


def build(out: Path, recipe: warmup.Recipe, texts_only: bool = False) -> None:
    """Everything, into `out`; its base checkpoint is bfloat16 in Hugging Face layout. texts_only: all but that."""
    began = time.monotonic()

    def log(line: str) -> None:
        print(f"[{time.monotonic() - began:6.0f} s] {line}", flush=True)

    world = load_world()
    write_texts(world, out)
    log(f"{len(world.names)} documents, {len(world.facts)} facts, {len(world.held_out)} names held out")
    found = shown(load_corpus(out / "corpus.jsonl"), world)
    tokenizer = write_tokenizer(world, found, out)
    log(f"tokenizer: {tokenizer.vocab_size} tokens")
    if texts_only:
        return
    model, params = warmup.warm_up(world, found, tokenizer, recipe, log)
    save_hf(out / "base", model, params, jnp.bfloat16, tokenizer)
    log(f"base checkpoint in {out / 'base'}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scope_jax.atlas.build", description="Build the Atlas world.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write into, e.g. assets/atlas")
    parser.add_argument("--read-steps", type=int, default=warmup.RECIPE.read_steps, help="steps of stage 'read'")
    parser.add_argument("--play-steps", type=int, default=warmup.RECIPE.play_steps, help="steps of stage 'play'")
    parser.add_argument("--pool", type=int, default=warmup.RECIPE.pool, help="demonstrations kept ready of each kind")
    parser.add_argument("--texts-only", action="store_true", help="write texts and tokenizer, and leave base/ as it is")
    given = parser.parse_args(arguments)
    recipe = replace(warmup.RECIPE, read_steps=given.read_steps, play_steps=given.play_steps, pool=given.pool)
    build(given.out, recipe, given.texts_only)


if __name__ == "__main__":
    main()
