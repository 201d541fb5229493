"""Times and recall of the retrieval package on a corpus with questions; prints one JSON line.

    python benchmarks/retrieval.py --corpus passages.jsonl --questions nq.jsonl hotpotqa.jsonl --dim 2048

Question files hold one JSON object per line with `question` and `evidence_ids` (ids in the corpus). Recall of ScaNN is
the share of the exact index's top 3 that are in its own top 3; evidence recall is the share of a question's evidence
passages in the top 3 or 5. Times are wall-clock seconds and CPU seconds of all threads; on a shared machine the latter
are more reliable.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from scope_jax.data.corpus import Corpus, load_corpus
from scope_jax.retrieval.build import build_index, open_index
from scope_jax.retrieval.embed import HashedLexical
from scope_jax.retrieval.index import Index
from scope_jax.retrieval.scann import ScannConfig

CHUNK = 4096  # passages
BATCH = 64  # queries of one timed search
Questions = list[tuple[str, list[int]]]  # (question, rows of its evidence)


def main() -> None:
    args = _arguments()
    scann = ScannConfig(
        num_leaves=args.num_leaves,
        leaves_to_search=args.leaves_to_search,
        dimensions_per_block=args.dimensions_per_block,
        reorder=args.reorder,
        brute_force_below=0,
    )
    corpus, load = _timed(lambda: load_corpus(args.corpus))
    embedder, fit = _timed(lambda: HashedLexical.fit(corpus, args.dim))
    questions = {Path(file).stem: _questions(file, corpus) for file in args.questions}
    texts = _mixed(questions, args.limit)
    steps = {"load_corpus": load, "fit_encoder": fit}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "index"

        def build(kind: Any) -> None:
            build_index(corpus, embedder, folder, kind=kind, scann=scann, chunk=CHUNK)

        _, steps["embed_and_write"] = _timed(lambda: build("exact"))
        (exact, _, _), steps["open_exact"] = _timed(lambda: open_index(folder, kind="exact"))
        _, steps["build_scann"] = _timed(lambda: build("scann"))
        (approximate, _, _), steps["open_scann"] = _timed(lambda: open_index(folder, kind="scann"))
        queries_QE, steps["embed_queries"] = _timed(lambda: embedder.queries(texts))
        want_Qk, steps["search_exact"] = _search(exact, queries_QE)
        got_Qk, steps["search_scann"] = _search(approximate, queries_QE)
    shared = [len({*want} & {*got}) / len(want) for want, got in zip(want_Qk.tolist(), got_Qk.tolist(), strict=True)]
    result = {
        "passages": len(corpus),
        "dim": args.dim,
        "queries": len(texts),
        "wall_seconds": {name: round(wall, 2) for name, (wall, _) in steps.items()},
        "cpu_seconds": {name: round(cpu, 2) for name, (_, cpu) in steps.items()},
        "scann": vars(scann),
        "scann_recall@3": round(float(np.mean(shared)), 4),
        "evidence_recall": {name: _evidence_recall(rows, embedder, exact) for name, rows in questions.items()},
    }
    print(json.dumps(result))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures times and recall of retrieval; prints one JSON line.")
    parser.add_argument("--corpus", required=True, help="JSONL or Parquet file, or a hub name")
    parser.add_argument("--questions", required=True, nargs="+", help="JSONL files with question and evidence_ids")
    parser.add_argument("--limit", type=int, default=500, help="questions in the comparison of the two indices")
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--num-leaves", type=int, default=200)
    parser.add_argument("--leaves-to-search", type=int, default=160)
    parser.add_argument("--dimensions-per-block", type=int, default=4)
    parser.add_argument("--reorder", type=int, default=100)
    return parser.parse_args()


def _questions(file: str, corpus: Corpus) -> Questions:
    """The questions of the file whose evidence is in the corpus."""
    ids = [document.id for batch in corpus.batches(CHUNK) for document in batch]
    row_of = {name: row for row, name in enumerate(ids)}
    with open(file, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    pairs = [(r["question"], [row_of[i] for i in r.get("evidence_ids", []) if i in row_of]) for r in rows]
    kept = [(question, evidence) for question, evidence in pairs if evidence]
    if not kept:
        sys.exit(f"{file} holds no question with evidence in the corpus; choose another file.")
    return kept


def _mixed(questions: dict[str, Questions], limit: int) -> list[str]:
    """`limit` questions, equally many from each file if there are enough."""
    share = -(-limit // len(questions))
    return [question for rows in questions.values() for question, _ in rows[:share]][:limit]


def _search(index: Index, queries_QE: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """(rows of the top 3, seconds for all queries in batches), after compilation and warm-up."""
    blocks = [queries_QE[start : start + BATCH] for start in range(0, len(queries_QE), BATCH)]
    for block_QE in blocks[:1] + blocks[-1:]:
        index.search(block_QE, 3)
    found, seconds = _timed(lambda: [index.search(block_QE, 3)[1] for block_QE in blocks])
    return np.concatenate(found), seconds


def _evidence_recall(rows: Questions, embedder: HashedLexical, index: Index) -> dict[str, float]:
    _, found_Qk = index.search(embedder.queries([question for question, _ in rows]), 5)
    pairs = [(evidence, found) for (_, evidence), found in zip(rows, found_Qk.tolist(), strict=True)]
    shares = {k: [len({*evidence} & {*found[:k]}) / len(evidence) for evidence, found in pairs] for k in (3, 5)}
    return {f"@{k}": round(float(np.mean(values)), 3) for k, values in shares.items()}


def _timed(work: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    """(result, (wall-clock seconds, CPU seconds))."""
    wall, cpu = time.perf_counter(), time.process_time()
    done = work()
    return done, (time.perf_counter() - wall, time.process_time() - cpu)


if __name__ == "__main__":
    main()
