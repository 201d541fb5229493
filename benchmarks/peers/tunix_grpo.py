"""Tunix: its Sampler, and its GRPOLearner on an RLCluster.

Runs in an environment of its own. The learner's loop runs in a thread and takes one step for each batch of prompts that
it is given.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.generate.sampler import CacheConfig, Sampler  # pyright: ignore[reportMissingImports]  # peer's environment
from tunix.models.qwen3 import model as qwen3  # pyright: ignore[reportMissingImports]
from tunix.models.qwen3 import params as qwen3_params  # pyright: ignore[reportMissingImports]
from tunix.rl import rl_cluster  # pyright: ignore[reportMissingImports]
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner, TrainExample  # pyright: ignore[reportMissingImports]
from tunix.rl.rollout.base_rollout import RolloutConfig  # pyright: ignore[reportMissingImports]

from benchmarks.peers import cases
from benchmarks.peers.worker import Cannot, Work

NO_ID = -1  # Tunix takes ids equal to the end or padding id for them; none is


class Codec(cases.Numbers):
    """Numbers with the methods that Tunix asks of a tokenizer."""

    def bos_id(self) -> int:
        return 0  # adds none

    def eos_id(self) -> int:
        return NO_ID

    def pad_id(self) -> int:
        return NO_ID

    def dedup_bos_ids(self, ids: list[int]) -> list[int]:
        return ids


def rewards(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """A reward function as GRPOLearner calls it."""
    return [cases.reward(cases.Numbers().encode(text)) for text in completions]


class Batches:
    """The learner's data: a batch of prompts for each call of `step`, which returns when the learner wants the next."""

    def __init__(self, prompts: list[str]) -> None:
        self._prompts = np.array(prompts)
        self._orders: queue.Queue[None] = queue.Queue()
        self._ends: queue.Queue[BaseException | None] = queue.Queue()

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        while True:
            self._orders.get()
            yield {"prompts": self._prompts}
            self._ends.put(None)

    def start(self, learner: Any) -> None:
        """Runs the learner's loop in a thread."""

        def train() -> None:
            try:
                learner.train(self)
            except BaseException as error:  # noqa: BLE001  raised again by `step`
                self._ends.put(error)

        threading.Thread(target=train, daemon=True).start()

    def step(self) -> None:
        """One step of the learner; raises what its loop raised."""
        self._orders.put(None)
        if (error := self._ends.get()) is not None:
            raise error


def model_of(folder: str, known: dict[str, Any], mesh: jax.sharding.Mesh) -> Any:
    """Tunix's Qwen3 with the folder's weights, by its own loader. known: config.json."""
    config = qwen3.ModelConfig(
        num_layers=known["num_hidden_layers"],
        vocab_size=known["vocab_size"],
        embed_dim=known["hidden_size"],
        hidden_dim=known["intermediate_size"],
        num_heads=known["num_attention_heads"],
        head_dim=known["head_dim"],
        num_kv_heads=known["num_key_value_heads"],
        rope_theta=known["rope_theta"],
        norm_eps=known["rms_norm_eps"],
        use_tied_embedding=known["tie_word_embeddings"],
    )
    return qwen3_params.create_model_from_safe_tensors(folder, config, mesh, jnp.float32)


class Participant:
    """See benchmarks.peers.worker."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))

    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("google-tunix", "jax", "jaxlib", "flax", "optax")}

    def logprob(self) -> float:
        ids = jnp.asarray(cases.rows()[0])
        return float(jnp.mean(self._reference(self._cluster(), ids)))

    def prepare(self, case: str, variant: str) -> Work:
        if case in cases.GENERATION:
            return self._generate(case)
        if case == "real_update":
            raise Cannot("it is measured with its Qwen3, and the real model's shape is Llama's.")
        if case == "step":
            return self._step()
        return self._update(case)

    def _model(self) -> Any:
        return model_of(os.path.join(self._folder, "small"), cases.CONFIG, self._mesh)

    def _generate(self, case: str) -> Work:
        """Batches of `rows` in the given order, each until its longest completion ends."""
        plan, model, codec = cases.generation(case), self._model(), Codec()
        config = CacheConfig(
            cases.PROMPT + cases.ANSWER, model.config.num_layers, model.config.num_kv_heads, model.config.head_dim
        )
        sampler = Sampler(model, codec, config)
        batches = [([codec.decode(ids) for ids in prompts], longest) for prompts, longest in plan.batches()]

        def run() -> int:
            with self._mesh:
                for prompts, longest in batches:
                    result = sampler(
                        prompts,
                        max_generation_steps=longest,
                        max_prompt_length=cases.PROMPT,
                        temperature=1.0,
                        top_p=1.0,
                        eos_tokens=[NO_ID],
                        seed=0,
                    )
                    if any(len(ids) != longest for ids in result.tokens):
                        raise RuntimeError("The sampler did not sample as many tokens as were asked for.")
            return plan.tokens

        return run

    def _cluster(self, case: str = "step") -> Any:
        """Actor, reference and rollouts on one device; the actor's weights are the sampler's: nothing to publish."""
        role = rl_cluster.Role
        optimizer = optax.chain(
            optax.clip_by_global_norm(cases.MAX_GRAD_NORM),
            optax.adamw(cases.LEARNING_RATE, weight_decay=cases.WEIGHT_DECAY),
        )
        return rl_cluster.RLCluster(
            actor=self._model(),
            reference=self._model(),
            tokenizer=Codec(),
            cluster_config=rl_cluster.ClusterConfig(
                role_to_mesh={role.ACTOR: self._mesh, role.REFERENCE: self._mesh, role.ROLLOUT: self._mesh},
                rollout_engine="vanilla",
                offload_to_cpu=False,
                training_config=rl_cluster.RLTrainingConfig(
                    actor_optimizer=optimizer, eval_every_n_steps=1_000_000, max_steps=1_000_000
                ),
                rollout_config=RolloutConfig(
                    max_tokens_to_generate=cases.lengths(case)[1],
                    max_prompt_length=cases.lengths(case)[0],
                    kv_cache_size=sum(cases.lengths(case)),
                    temperature=1.0,
                    top_p=1.0,
                    top_k=None,
                    eos_tokens=[NO_ID],
                ),
            ),
        )

    def _learner(self, cluster: Any) -> Any:
        config = GRPOConfig(num_generations=cases.SAMPLES, num_iterations=1, beta=cases.KL_COEF, epsilon=cases.CLIP_LOW)
        return GRPOLearner(rl_cluster=cluster, algo_config=config, reward_fns=rewards)

    def _reference(self, cluster: Any, ids_BT: Any, prompt: int = cases.PROMPT) -> Any:
        prompt_ids, completion_ids = ids_BT[:, :prompt], ids_BT[:, prompt:]
        return cluster.get_ref_per_token_logps(prompt_ids, completion_ids, pad_id=NO_ID, eos_id=NO_ID)

    def _update(self, case: str) -> Work:
        """The learner's parts of a step on given completions: reference (and old) log-probs, the actor's update."""
        cluster, old, prompt = self._cluster(case), case == "update_old", cases.lengths(case)[0]
        self._learner(cluster)  # gives the actor its loss
        ids_BT, advantages_B = (jnp.asarray(array) for array in cases.rows(case))
        prompt_ids, completion_ids = ids_BT[:, :prompt], ids_BT[:, prompt:]

        def run() -> int:
            example = TrainExample(
                prompt_ids=prompt_ids,
                prompt_mask=jnp.ones(prompt_ids.shape, bool),
                completion_ids=completion_ids,
                completion_mask=jnp.ones(completion_ids.shape, bool),
                advantages=advantages_B,
                ref_per_token_logps=self._reference(cluster, ids_BT, prompt),
                old_per_token_logps=cluster.get_old_per_token_logps(prompt_ids, completion_ids) if old else None,
            )
            cluster.update_actor([example], None)
            jax.block_until_ready(jax.tree.leaves(nnx.state(cluster.actor_trainer.model)))
            return completion_ids.size

        return run

    def _step(self) -> Work:
        """Steps of the learner's own loop."""
        plan, cluster = cases.generation("step"), self._cluster()
        batches = Batches([Codec().decode(ids) for ids in plan.prompts_PT])
        batches.start(self._learner(cluster))

        def run() -> int:
            batches.step()
            jax.block_until_ready(jax.tree.leaves(nnx.state(cluster.actor_trainer.model)))
            return plan.tokens

        return run
