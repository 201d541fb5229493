"""The base that all three systems start from: random weights, a tokenizer of bytes, a few hundred supervised steps.

It is taught a bad habit: every other answer repeats the first number instead of adding the second.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.curves import task
from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner.learner import Learner
from scope_jax.learner.types import Datum
from scope_jax.models.decoder import transformer
from scope_jax.models.files.families import from_hf
from scope_jax.models.files.weights import save_hf
from scope_jax.models.tokenizers.tokenizer import Tokenizer as Codec
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.spec import init_params
from tools.atlas.rows import supervised

STEPS, ROWS, RATE = 500, 128, 3e-3
LOSS = LossCard(objective="supervised", kl="none", aggregation="token-mean")
LEARNER = LearnerSection(buckets=(16,), packing=False, micro_batch_rows=0, remat="none")
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"  # a prompt is the bare text


def save_tokenizer(folder: Path) -> Codec:
    """tokenizer.json and tokenizer_config.json of a vocabulary of 256 bytes and two special tokens."""
    every = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: id for id, byte in enumerate(every)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([task.END, task.PAD])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"eos_token": task.END, "pad_token": task.PAD, "chat_template": TEMPLATE}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | named
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return Codec.load(folder)


def build(steps: int = STEPS) -> None:
    """Writes trained.jsonl, held_out.jsonl and the folder `base` into task.FOLDER."""
    taught, trained, held_out = task.sums()
    codec = save_tokenizer(task.FOLDER / "tokenizer")
    task.write(task.FOLDER / "trained.jsonl", trained)
    task.write(task.FOLDER / "held_out.jsonl", held_out)
    model, rng = from_hf(task.CONFIG), np.random.default_rng(0)
    optimizer = OptimizerSection(
        learning_rate=RATE, warmup_steps=20, weight_decay=0.0, schedule="cosine", total_steps=steps
    )
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    learner = Learner(model, mesh, optimizer, LEARNER, param_dtype=jnp.float32, compute_dtype=jnp.float32)
    state = learner.init_state(init_params(transformer.declare(model), jax.random.key(0)), reference=False)
    answers = [(row["question"], answer) for row in taught for answer in (row["answers"][0], "0" + row["question"][:2])]
    ids = [codec.encode(question + answer) + [codec.eos_id] for question, answer in answers]
    sampled_T = np.arange(len(ids[0])) >= task.PROMPT
    rows = [Datum(np.array(ids_T, np.int32), sampled_T, np.zeros(len(ids_T), np.float32)) for ids_T in ids]
    for step in range(steps):
        drawn = [rows[place] for place in rng.integers(0, len(rows), ROWS)]
        state, metrics = learner.update(state, learner.pack(supervised(drawn), LOSS), LOSS)
        if step % 50 == 49:
            print(f"supervised step {step + 1}: loss {metrics['loss']:.3f}", file=sys.stderr, flush=True)
    save_hf(task.FOLDER / "base", model, state.params, jnp.float32, task.FOLDER / "tokenizer")
