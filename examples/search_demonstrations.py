"""Writes demonstrations of Search Self-play from questions with answers: one search, then what was asked for.

    python search_demonstrations.py CARD QUESTIONS OUT

CARD is a card of SSP with a corpus and `model.turns = "chat"`; prompts, dialect and search are the card's. OUT gets
conversations for `scope-jax sft`. Where a search for the question finds an answer, a solver searches for the question
and answers it. Where a search for that answer finds one of the same passages, a proposer searches for the answer and
asks the question, and a reader answers it from what the proposer read, mixed with passages of others.
See docs/ssp.md#a-small-model-of-your-own.
"""

import json
import sys
from pathlib import Path

from scope_jax.data.keys import drawn, rng
from scope_jax.data.rows import read
from scope_jax.games import load_card
from scope_jax.games.ssp import messages, rules
from scope_jax.games.ssp.state import Slot
from scope_jax.grading.words import contains
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play import searching
from scope_jax.run.indexing import lookup_of, search_of
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.text import dialects

OTHERS = 8  # episodes whose passages may be mixed into what a reader reads


def search_of_card(cfg, folder):
    """The card's search. folder: of an index that the card does not place."""
    lookup = lookup_of(cfg, folder, make_mesh(MeshConfig(1, 1, 1)), None, None)
    return search_of(cfg, Tokenizer.load(cfg.model.tokenizer or cfg.model.checkpoint), lookup)


def demonstrations(cfg, search, rows):
    """The conversations of rows with `question` and `answers`, each a list of messages."""
    asked = search.results([row["question"] for row in rows])
    known = [(row["question"], answer_in(row, result.text), result) for row, result in zip(rows, asked, strict=True)]
    known = [(question, answer, result) for question, answer, result in known if answer is not None]
    solved = [solver(cfg, *each) for each in known]

    back = search.results([answer for _, answer, _ in known])
    pairs = list(zip(known, back, strict=True))
    trails = [(question, answer, result) for (question, answer, first), result in pairs if common(first, result)]
    trails = [trail for trail in trails if not rules.reveals(trail[0], [trail[1]])]
    asks = [proposer(cfg, *trail) for trail in trails]
    return solved + asks + readers(cfg, trails)


def answer_in(row, text):
    """The first of the row's answers that stands in a text; None if none does."""
    return next((answer for answer in row["answers"] if contains(text, answer)), None)


def common(one, other):
    """Whether two results have a passage in common."""
    return bool({hit.document.id for hit in one.hits} & {hit.document.id for hit in other.hits})


def solver(cfg, question, answer, result):
    """Searches for the question, and answers it."""
    start = messages.for_solver(cfg, question).conversation()
    return [*start, *searched(cfg, question, result), said(f"<answer> {answer} </answer>")]


def proposer(cfg, question, answer, result):
    """Searches for the answer, and asks the question."""
    start = messages.for_proposer(cfg, Slot(0, 0, (answer,), 1), 0).conversation()
    return [*start, *searched(cfg, answer, result), said(f"<question> {question} </question>")]


def readers(cfg, trails):
    """A reader's answer to each proposer's question."""
    read_by = [rules.units([result.text], "document") for _, _, result in trails]
    conversations = []
    for place, (question, answer, _) in enumerate(trails):
        generator = rng("demonstrations", cfg.seed, place)
        others = drawn([units for number, units in enumerate(read_by) if number != place], OTHERS, generator)
        texts = [text for units in others for text in units]
        mixed = rules.mix(read_by[place], texts, cfg.ssp.noise_documents, generator)
        prompt = messages.for_verification(cfg, question, rules.render(mixed, "document"))
        conversations.append([{"role": "user", "content": prompt}, said(f"Answer: {answer}")])
    return conversations


def searched(cfg, query, result):
    """A turn that searches, and the messages with what it found."""
    dialect = dialects.load(cfg.model.dialect)
    observation = dialect.observation([result.text])
    return [said(searching.written_search(query, dialect)), *dialect.messages(observation)]


def said(text):
    """A turn of the policy."""
    return {"role": "assistant", "content": text}


def main(card, questions, out):
    """Writes the file, and says how many conversations it has."""
    cfg = load_card(card)
    rows = [row for _, row in read(questions)]
    conversations = demonstrations(cfg, search_of_card(cfg, Path(out).parent), rows)
    lines = [json.dumps({"messages": conversation}, ensure_ascii=False) + "\n" for conversation in conversations]
    Path(out).write_text("".join(lines), encoding="utf-8")
    print(f"{len(conversations)} conversations of {len(rows)} questions in {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
