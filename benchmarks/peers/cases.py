"""What is measured, the same for every participant: the model, prompts and lengths, the loss, FLOPs.

    fixed       16 prompts of 64 tokens, 128 sampled tokens each
    ragged      64 such prompts, at most 16 at a time, 16 to 128 sampled tokens, 48 on average
    group       4 prompts, 16 samples of 128 tokens each
    update      reference log-probs of 16 rows of 64 + 128 tokens, then loss, gradients, clipping and AdamW
    update_old  the same after scoring the old log-probs
    shared_512  `update` of 8 answers of 64 tokens to one prompt of 512
    shared_2048 `update` of 8 answers of 128 tokens to one prompt of 2,048
    step        4 prompts, 4 samples of 128 tokens each, a reward, then the update
    real_update `update` of 8 rows of 192 + 64 tokens by a model of a real one's shape, SmolLM2-135M

Imports numpy only: peers read this file in environments that have neither our packages' dependencies nor each other's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# config.json of the model, in Hugging Face's terms; weights are float32, and there is no end token.
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 4096,
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,  # Qwen3's; Tunix 0.1.7 has no other
    "tie_word_embeddings": True,
    "attention_bias": False,
    "max_position_embeddings": 4096,
}
REAL: dict[str, Any] = {  # of SmolLM2-135M
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "intermediate_size": 1536,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "max_position_embeddings": 8192,
}
REAL_LENGTHS, REAL_ROWS = (192, 64), 8  # tokens of a prompt and of an answer; rows
VOCABULARY: int = CONFIG["vocab_size"]
PROMPT, ANSWER = 64, 128  # tokens
ROWS = 16  # rows of a batch: of `generate` and its like, of an update, and our slots (64 in `group`)
SAMPLES = 4  # completions of a prompt in `step`
GENERATION = ("fixed", "ragged", "group")
SHARED = {"shared_512": (512, 64), "shared_2048": (2048, 128)}  # tokens of the prompt, and of each answer
SHARING = 8  # answers to the prompt
TRAINING = ("update", "update_old", *SHARED, "step", "real_update")
CASES = GENERATION + TRAINING
MATMUL = 1536  # rows and columns of the matrices whose product is the measure of the machine
MATMUL_FLOPS = 2.0 * MATMUL**3

# GRPO with a k3 estimate of the KL, and AdamW.
KL_COEF, CLIP_LOW, CLIP_HIGH = 0.01, 0.2, 0.285
LEARNING_RATE, WEIGHT_DECAY, MAX_GRAD_NORM = 1e-6, 0.01, 1.0


@dataclass(frozen=True)
class Generation:
    """Prompts [P, 64], the number of completions of each prompt, the tokens of each completion, and rows at a time."""

    prompts_PT: np.ndarray
    samples: int
    lengths: tuple[int, ...]
    rows: int

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return sum(self.lengths)

    def batches(self) -> list[tuple[np.ndarray, int]]:
        """(prompts of `rows` completions, tokens of the longest), for samplers that run a batch to its longest."""
        prompts = np.repeat(self.prompts_PT, self.samples, axis=0)
        starts = range(0, len(prompts), self.rows)
        return [(prompts[at : at + self.rows], max(self.lengths[at : at + self.rows])) for at in starts]


def generation(case: str) -> Generation:
    """The plan of a case that samples: one of GENERATION, or `step`."""
    rng = np.random.default_rng(0)
    count, samples = {"fixed": (16, 1), "ragged": (64, 1), "group": (4, 16), "step": (ROWS // SAMPLES, SAMPLES)}[case]
    prompts_PT = rng.integers(0, VOCABULARY, (count, PROMPT))
    rows = 64 if case == "group" else ROWS
    if case != "ragged":
        return Generation(prompts_PT, samples, (ANSWER,) * (count * samples), rows)
    shares = rng.beta(1.0, 2.5, count)  # many short ones, a few long ones
    lengths = np.clip(np.round(16 + shares / shares.mean() * 32), 16, ANSWER).astype(int)
    return Generation(prompts_PT, samples, tuple(lengths.tolist()), rows)


def shape(case: str) -> tuple[str, dict[str, Any]]:
    """(folder, config.json) of the case's model."""
    return ("real", REAL) if case == "real_update" else ("small", CONFIG)


def lengths(case: str) -> tuple[int, int]:
    """Tokens of a prompt, and of an answer."""
    return REAL_LENGTHS if case == "real_update" else SHARED.get(case, (PROMPT, ANSWER))


def rows(case: str = "update", count: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """(token ids [B, prompt + answer], advantages [B]) of an update; of the cases in SHARED 8 rows of one prompt."""
    rng = np.random.default_rng(0)
    if case == "real_update":
        ids_BT = rng.integers(0, REAL["vocab_size"], (REAL_ROWS, sum(REAL_LENGTHS)))
        return ids_BT.astype(np.int32), rng.normal(size=REAL_ROWS)
    if case in SHARED:
        prompt, answer = SHARED[case]
        prompt_BT = np.repeat(rng.integers(0, VOCABULARY, (1, prompt)), SHARING, axis=0)
        ids_BT = np.concatenate([prompt_BT, rng.integers(0, VOCABULARY, (SHARING, answer))], axis=1)
        return ids_BT.astype(np.int32), rng.normal(size=SHARING)
    ids, advantages = [], []
    for _ in range(count):
        ids.append(rng.integers(0, VOCABULARY, PROMPT + ANSWER).astype(np.int32))
        advantages.append(float(rng.normal()))
    return np.stack(ids), np.array(advantages)


def reward(ids: Sequence[int]) -> float:
    """The share of even ids."""
    return float(np.mean(np.asarray(ids) % 2 == 0))


def tokens(case: str) -> int:
    """Sampled or trained tokens of a case."""
    if case in SHARED:
        return SHARING * SHARED[case][1]
    if case == "real_update":
        return REAL_ROWS * REAL_LENGTHS[1]
    return ROWS * ANSWER if case in TRAINING else generation(case).tokens


def forward_flops(
    tokens: int, projected: int, length: int, attention: float, config: Mapping[str, Any] = CONFIG
) -> tuple[float, float]:
    """(layers, head) of one forward pass, 2 · m · n · k per matmul.

    projected: positions whose logits are computed. attention: share of the [length, length] products that counts.
    """
    heads = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    weights = config["hidden_size"] * (2 * heads + 2 * kv + 3 * config["intermediate_size"])
    layers = config["num_hidden_layers"] * tokens * (2 * weights + 4 * length * heads * attention)
    return layers, 2.0 * projected * config["hidden_size"] * config["vocab_size"]


def useful_flops(case: str) -> float:
    """What the case's algorithm needs, whoever runs it.

    Sampling: one forward pass per sampled token, without attention and prefill. An update: one forward pass for each
    scoring, three for the gradient, with the causal half of attention and logits of the trained positions; a prompt
    is computed once.
    """
    sampling = sum(forward_flops(tokens(case), tokens(case), 0, 0.0))
    if case in GENERATION:
        return sampling
    if case in SHARED:
        prompt, answer = SHARED[case]
        alone = forward_flops(prompt, 0, prompt, 0.5)[0]
        both = forward_flops(prompt + answer, answer, prompt + answer, 0.5)
        return 4 * (alone + SHARING * (sum(both) - alone))
    if case == "real_update":
        length = sum(REAL_LENGTHS)
        return 4 * sum(forward_flops(REAL_ROWS * length, tokens(case), length, 0.5, REAL))
    passes = {"update": 4, "update_old": 5, "step": 4}[case]
    update = passes * sum(forward_flops(ROWS * (PROMPT + ANSWER), ROWS * ANSWER, PROMPT + ANSWER, 0.5))
    return update + (sampling if case == "step" else 0.0)


class Numbers:
    """A codec for a model whose tokens are not text: ids separated by spaces. No id ends a completion."""

    eos_ids = ()

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Any) -> str:
        return " ".join(str(int(id)) for id in ids)

    def token_bytes(self, id: int) -> bytes:
        return b""
