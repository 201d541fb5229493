"""Runs of Tunix' GRPOLearner: `PYTHON -m benchmarks.curves.tunix_run new-keys|same-key SEED …` prints each curve.

Tunix 0.1.7's own rollouts draw with the key of RolloutConfig.seed, None being PRNGKey(0), in every step anew: all steps
have the same random numbers. With `new-keys` the seed is set before each step; `same-key` leaves it at the run's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from tokenizers import Tokenizer
from tunix.rl import rl_cluster  # pyright: ignore[reportMissingImports]  # in the peer's environment
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner  # pyright: ignore[reportMissingImports]
from tunix.rl.rollout.base_rollout import RolloutConfig  # pyright: ignore[reportMissingImports]

from benchmarks.curves import task
from benchmarks.peers.tunix_grpo import model_of


class Codec:
    """The folder's tokenizer with the methods that Tunix asks for."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def decode(self, ids: Any) -> str:
        return self._tokenizer.decode([int(id) for id in ids])

    def bos_id(self) -> int:
        return 0  # adds none

    def eos_id(self) -> int:
        return self._tokenizer.token_to_id(task.END)

    def pad_id(self) -> int:
        return self._tokenizer.token_to_id(task.PAD)

    def dedup_bos_ids(self, ids: list[int]) -> list[int]:
        return ids


def mesh() -> Any:
    return jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))


def model(folder: Path, known: dict[str, Any] = task.CONFIG) -> Any:
    return model_of(str(folder), known, mesh())


def rollout(**changes: Any) -> RolloutConfig:
    """Sampling as in card.toml."""
    settings: dict[str, Any] = {
        "max_tokens_to_generate": task.ANSWER,
        "max_prompt_length": task.PROMPT,
        "kv_cache_size": task.PROMPT + task.ANSWER,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": None,
    }
    return RolloutConfig(**settings | changes)


def cluster(folder: Path, seed: int, steps: int, **training: Any) -> Any:
    """Actor and rollouts on one device, sharing their weights; the card's optimiser. training: of RLTrainingConfig."""
    role, ours = rl_cluster.Role, task.OPTIMIZER
    optimizer = optax.chain(
        optax.clip_by_global_norm(ours["max_grad_norm"]),
        optax.adamw(
            ours["learning_rate"], ours["beta1"], ours["beta2"], ours["eps"], weight_decay=ours["weight_decay"]
        ),
    )
    return rl_cluster.RLCluster(
        actor=model(folder),
        reference=None,
        tokenizer=Codec(folder),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys((role.ACTOR, role.REFERENCE, role.ROLLOUT), mesh()),
            rollout_engine="vanilla",
            offload_to_cpu=False,
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optimizer, eval_every_n_steps=1_000_000, max_steps=steps, **training
            ),
            rollout_config=rollout(seed=seed),
        ),
    )


def settings(**changes: Any) -> GRPOConfig:
    """The loss of card.toml under Tunix' names; its upper clip is the lower one's."""
    given: dict[str, Any] = {
        "num_generations": task.SAMPLES,
        "num_iterations": 1,
        "beta": 0.0,
        "epsilon": task.LOSS["clip_low"],
        "advantage_estimator": "drgrpo",
        "loss_agg_mode": "sequence-mean-token-mean",
    }
    return GRPOConfig(**given | changes)


class Steps:
    """The learner's data: the prompts of each step. Between two steps it may take an exam."""

    def __init__(self, record: task.Record, cluster: Any, seed: int, same_key: bool) -> None:
        self._record, self._cluster, self._seed, self._same_key = record, cluster, seed, same_key

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for step in range(task.STEPS + 1):
            if step % task.EVERY == 0:
                self._record.exam(self._greedy)
            if step == task.STEPS:
                return
            if not self._same_key:
                self._cluster.cluster_config.rollout_config.seed = 1000 * self._seed + step
            rows = self._record.trained[step * task.PROMPTS : (step + 1) * task.PROMPTS]
            yield {"prompts": np.array([row["question"] for row in rows])}

    def _greedy(self, prompts: list[str]) -> list[str]:
        return self._cluster.rollout.generate(prompts, rollout(top_p=None)).text


def main(seed: int, same_key: bool) -> None:
    record = task.Record()
    parts = cluster(
        task.FOLDER / "base", seed, task.STEPS + 1
    )  # it asks for one step more, and so comes to the last exam
    learner = GRPOLearner(
        rl_cluster=parts,
        algo_config=settings(),
        reward_fns=lambda prompts, completions, **_: record.rewards(prompts, completions),
    )
    learner.train(Steps(record, parts, seed, same_key))
    versions = {name: version(name) for name in ("google-tunix", "jax", "flax", "optax")}
    print(json.dumps(record.curve | {"versions": versions}), flush=True)


if __name__ == "__main__":
    for seed in map(int, sys.argv[2:]):
        main(seed, sys.argv[1] == "same-key")
