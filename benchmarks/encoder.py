"""Embedding throughput of a random BERT, ours against torch in the same run; prints one JSON line.

    python benchmarks/encoder.py --corpus passages.jsonl --passages 512

Both get the same weights (the default is the shape of MiniLM-L6, 10.6 million parameters in its layers), the same
WordPiece vocabulary, trained here on the corpus, and the same passages; both batch passages of similar length, and the
times include tokenizing and mean pooling, but not our compilation. The two are timed alternately, `--repeats` times
each, and the best time is reported, in wall-clock seconds and in CPU seconds of all threads.
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

import jax
import numpy as np
from safetensors.numpy import save_file
from tokenizers.implementations import BertWordPieceTokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))

from scope_jax.data.corpus import load_corpus
from scope_jax.models.encoders import bert
from scope_jax.models.encoders.texts import TextEncoder
from scope_jax.sharding.spec import init_params, path_name

MAX_TOKENS = 256


def main() -> None:
    args = _arguments()
    corpus = load_corpus(args.corpus)
    texts = ["passage: " + d.contents for d in corpus.documents(0, min(args.passages, len(corpus)))]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _write(folder, texts, args)
        encoder = TextEncoder.load(folder, max_tokens=MAX_TOKENS, rows=args.rows)
        tokens = sum(map(len, encoder.tokenizer(texts)))
        ways: dict[str, Callable[[], np.ndarray]] = {"ours": lambda: encoder(texts)}
        if not args.no_torch:
            ways["torch"] = _torch(folder, texts, args.rows)
        vectors = {name: way() for name, way in ways.items()}  # warm-up: ours compiles here
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(args.repeats):
            for name, way in ways.items():
                times[name].append(_timed(way))
    best = {name: (min(wall for wall, _ in runs), min(cpu for _, cpu in runs)) for name, runs in times.items()}
    result: dict[str, Any] = {
        "device": jax.devices()[0].device_kind,
        "shape": {"layers": args.layers, "width": args.width, "heads": args.heads, "ffn": args.ffn},
        "passages": len(texts),
        "tokens": tokens,
        "rows": args.rows,
        "passages_per_second": {name: round(len(texts) / wall, 1) for name, (wall, _) in best.items()},
        "passages_per_cpu_second": {name: round(len(texts) / cpu, 1) for name, (_, cpu) in best.items()},
    }
    if "torch" in vectors:
        result["largest_difference"] = float(np.abs(vectors["ours"] - vectors["torch"]).max())
    print(json.dumps(result))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Embedding throughput against torch; prints one JSON line.")
    parser.add_argument("--corpus", required=True, help="JSONL or Parquet file, or a hub name")
    parser.add_argument("--passages", type=int, default=512)
    parser.add_argument("--rows", type=int, default=64, help="passages per compiled program and per torch batch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--ffn", type=int, default=1536)
    parser.add_argument("--no-torch", action="store_true", help="time only our encoder")
    return parser.parse_args()


def _write(folder: Path, texts: list[str], args: argparse.Namespace) -> None:
    """Writes a Hugging Face folder with random weights and a vocabulary trained on the texts."""
    trained = BertWordPieceTokenizer()
    trained.train_from_iterator(iter(texts), vocab_size=30522, show_progress=False)
    trained.save_model(str(folder))
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": 30522,
        "hidden_size": args.width,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
        "intermediate_size": args.ffn,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    params = jax.jit(lambda: init_params(bert.declare(bert.from_hf(config)), jax.random.key(0)))()
    tensors: dict[str, np.ndarray] = {}
    for path, weight in jax.tree_util.tree_leaves_with_path(params):
        tensor = bert.hf_tensor(path_name(path))
        values = np.asarray(weight)
        for index in np.ndindex(values.shape[: tensor.leading]):
            part = values[index].T if tensor.transposed else values[index]
            tensors[tensor.at(index)] = np.ascontiguousarray(part)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _torch(folder: Path, texts: list[str], rows: int) -> Callable[[], np.ndarray]:
    """The same work in transformers: sorted by length, padded to the longest of a batch, SDPA kernel."""
    import torch
    import transformers

    model = transformers.BertModel.from_pretrained(
        folder, add_pooling_layer=False, attn_implementation="sdpa", trust_remote_code=False
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)

    def embed() -> np.ndarray:
        ids = tokenizer(texts, truncation=True, max_length=MAX_TOKENS).input_ids
        order = np.argsort([len(row) for row in ids], kind="stable")
        out = np.empty((len(texts), model.config.hidden_size), np.float32)
        with torch.inference_mode():
            for first in range(0, len(order), rows):
                group = order[first : first + rows]
                batch = tokenizer.pad({"input_ids": [ids[i] for i in group]}, return_tensors="pt")
                hidden = model(**batch).last_hidden_state
                mask = batch["attention_mask"][..., None]
                mean = (hidden * mask).sum(1) / mask.sum(1)
                out[group] = torch.nn.functional.normalize(mean, dim=1).numpy()
        return out

    return embed


def _timed(work: Callable[[], Any]) -> tuple[float, float]:
    """(wall-clock seconds, CPU seconds)."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main()
