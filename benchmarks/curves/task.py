"""What all three systems are given: the model, the sums, the grader, the settings of GRPO.

Imports numpy only: TRL and Tunix read this file in environments of their own.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

# config.json of the model in Hugging Face's terms; one token for each byte, and two special ones.
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 258,
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,  # Qwen3's; Tunix 0.1.7 has no other
    "tie_word_embeddings": True,
    "attention_bias": False,
    "max_position_embeddings": 64,
}
END, PAD = "<|end|>", "<|pad|>"
PROMPT, ANSWER = 6, 3  # tokens: "37+85=" and "122"
FOLDER = Path("runs/curves")  # base, data and runs, as the cards name them
PROMPTS, SAMPLES = 16, 8  # sums of a step, answers to each
TAUGHT, EXAM = 4000, 256  # sums in the supervised rows of the base, and of the exam
CARD: dict[str, Any] = tomllib.loads((Path(__file__).parent / "card.toml").read_text(encoding="utf-8"))
STEPS: int = CARD["train"]["steps"]
EVERY: int = CARD["evaluate"]["every"]
OPTIMIZER, LOSS = CARD["optimizer"], CARD["sums"]["loss"]
Row = dict[str, Any]


def sums(seed: int = 0) -> tuple[list[Row], list[Row], list[Row]]:
    """(taught, trained, held out): disjoint sums of two numbers below 100, with their answers of three digits.

    Those that are trained on come in the order of the steps, PROMPTS for each.
    """
    every = np.random.default_rng(seed).permutation(10_000)
    ends = np.cumsum([TAUGHT, STEPS * PROMPTS, EXAM])
    rows = [
        {"place": place, "question": f"{a:02}+{b:02}=", "answers": [f"{a + b:03}"]}
        for place, (a, b) in enumerate(divmod(int(number), 100) for number in every[: ends[-1]])
    ]
    return rows[: ends[0]], rows[ends[0] : ends[1]], rows[ends[1] :]


def right(row: Mapping[str, Any], text: str) -> float:
    """The reward, and what the exam counts: 1 for the three digits of the answer, else 0."""
    return float(text in row["answers"])


def write(path: Path, rows: Iterable[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Record:
    """The curve of one run, as its rewards and exams are graded."""

    def __init__(self) -> None:
        self.trained, self.held_out = read(FOLDER / "trained.jsonl"), read(FOLDER / "held_out.jsonl")
        self._by_question = {row["question"]: row for row in self.trained}
        self.curve: dict[str, list[float]] = {"reward": [], "short": [], "exam": []}

    def rewards(self, prompts: Iterable[str], texts: list[str]) -> list[float]:
        """Rewards of the completions of a step."""
        rewards = [right(self._by_question[str(prompt)], text) for prompt, text in zip(prompts, texts, strict=True)]
        self.curve["reward"].append(float(np.mean(rewards)))
        self.curve["short"].append(float(np.mean([len(text) < ANSWER for text in texts])))
        return rewards

    def exam(self, greedy: Callable[[list[str]], list[str]]) -> None:
        """Grades the greedy answers to all held-out sums."""
        texts = greedy([row["question"] for row in self.held_out])
        pairs = zip(self.held_out, texts, strict=True)
        self.curve["exam"].append(float(np.mean([right(row, text) for row, text in pairs])))
