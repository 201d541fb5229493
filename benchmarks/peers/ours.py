"""Our engine and learner; also the machine's matmul rate, and the writer of the weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from benchmarks.peers import cases
from benchmarks.peers.worker import Cannot, Work
from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner import advantages
from scope_jax.learner.batching import unpack
from scope_jax.learner.learner import Learner
from scope_jax.learner.types import Datum, Episode
from scope_jax.models.decoder import transformer
from scope_jax.models.decoder.columns import Columns
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.files import weights
from scope_jax.models.files.families import from_hf
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.rollouts.types import Completion, Request, SamplingParams
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.spec import init_params

MODEL = from_hf(cases.CONFIG)
CARD = LossCard(
    kl="k3",
    kl_coef=cases.KL_COEF,
    aggregation="sequence-mean",
    clip_low=cases.CLIP_LOW,
    clip_high=cases.CLIP_HIGH,
)
OPTIMIZER = OptimizerSection(
    learning_rate=cases.LEARNING_RATE,
    warmup_steps=1,
    weight_decay=cases.WEIGHT_DECAY,
    max_grad_norm=cases.MAX_GRAD_NORM,
)


def section(case: str) -> LearnerSection:
    """What a card without a word on it has, for rows of the one length that occurs or, of a prompt with its answers, of
    all of them."""
    prompt, answer = cases.lengths(case)
    wide = (prompt + cases.SHARING * answer,) if case in cases.SHARED else ()
    return LearnerSection(buckets=(prompt + answer, *wide))


def one_device() -> Mesh:
    return make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])


def model_of(case: str) -> ModelConfig:
    """The case's model."""
    return from_hf(cases.shape(case)[1])


def random_params(model: ModelConfig = MODEL) -> Any:
    """The weights that every participant starts from."""
    return init_params(transformer.declare(model), jax.random.key(0))


def rollouts_for(case: str, params: Any) -> LocalRollouts:
    """The engine with these weights and as many slots as the case has rows at a time."""
    plan = cases.generation(case)
    config = EngineConfig(
        slots=plan.rows,
        max_length=cases.PROMPT + cases.ANSWER,
        decode_steps=16,
        compute_dtype=jnp.float32,
        prefill_tokens=128,
    )
    engine = Engine(MODEL, config, one_device(), Columns(config.max_length))
    rollouts = LocalRollouts(engine, cases.Numbers(), seed=0, threads=1, ahead=False)
    rollouts.load_params(params)
    return rollouts


def requests(case: str) -> list[Request]:
    """One request for each completion; those of one prompt are a group."""
    plan = cases.generation(case)
    return [
        Request(
            prompt_ids=plan.prompts_PT[place // plan.samples],
            params=SamplingParams(1.0, 0, 1.0, length, (), (), False),
            key=np.array([place, 7], np.uint32),
            group=str(place // plan.samples),
            max_turns=1,
            respond=None,
        )
        for place, length in enumerate(plan.lengths)
    ]


def generate(case: str, params: Any) -> Work:
    """A generation case, prefill and all transfers included; log-probs of the sampled tokens are computed, too."""
    rollouts, asked = rollouts_for(case, params), requests(case)
    return lambda: sum(len(completion.ids_T) for completion in rollouts.run(asked))


def learner_for(section: LearnerSection, model: ModelConfig = MODEL) -> Learner:
    return Learner(model, one_device(), OPTIMIZER, section, param_dtype=jnp.float32, compute_dtype=jnp.float32)


def episodes(case: str = "update", count: int = cases.ROWS) -> list[Episode]:
    """The rows of an update, with the behaviour log-probs of a nearly uniform model."""
    ids_BT, advantages_B = cases.rows(case, count)
    sampled_T = np.arange(ids_BT.shape[1]) >= cases.lengths(case)[0]
    logprobs_T = np.where(sampled_T, -8.3, 0).astype(np.float32)
    return [
        Episode("solver", "actor", str(row // 4), (Datum(ids_T, sampled_T, logprobs_T),), 0.0, advantage=float(number))
        for row, (ids_T, number) in enumerate(zip(ids_BT, advantages_B, strict=True))
    ]


def update(params: Any, case: str) -> Work:
    """Packing, reference (and old) log-probs, and the optimiser step, metrics on the host."""
    learner, rows, old = learner_for(section(case), model_of(case)), episodes(case), case == "update_old"
    state = learner.init_state(params)

    def run() -> int:
        nonlocal state
        (batch,) = learner.pack(rows, CARD)
        scores = learner.score(state, batch, policy=old)
        state, metrics = learner.step(state, batch, scores, CARD)
        jax.block_until_ready(state)
        return int(jax.device_get(metrics)["tokens"])

    return run


def rated(completions: Sequence[Completion], samples: int) -> list[Episode]:
    """Completions as episodes with rewards and advantages."""
    made = [
        Episode(
            "solver",
            "actor",
            str(place // samples),
            Datum.from_completion(completion),
            cases.reward(completion.ids_T.tolist()),
        )
        for place, completion in enumerate(completions)
    ]
    return advantages.assign(made, CARD)[0]


def step(params: Any) -> Work:
    """What the training loop does in a step: rollouts, rewards, advantages, update, publishing."""
    rollouts, learner = rollouts_for("step", params), learner_for(section("step"))
    asked, samples = requests("step"), cases.generation("step").samples
    state, number = learner.init_state(params), 0

    def run() -> int:
        nonlocal state, number
        number += 1
        mine = [replace(request, key=np.array([place, number], np.uint32)) for place, request in enumerate(asked)]
        completions = rollouts.run(mine)
        state, metrics = learner.update(state, learner.pack(rated(completions, samples), CARD), CARD)
        rollouts.load_params(state.params)
        jax.block_until_ready(state)
        return int(metrics["tokens"])

    return run


def matmul() -> Work:
    """Ten float32 matrix products, each of cases.MATMUL_FLOPS."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(cases.MATMUL, cases.MATMUL)), jnp.float32)
    product: Callable[[jax.Array], jax.Array] = jax.jit(lambda a: a @ a)

    def run() -> int:
        for _ in range(10):
            product(x).block_until_ready()
        return 10

    return run


class Participant:
    """See benchmarks.peers.worker."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._params = self._weights("update")

    def _weights(self, case: str) -> Any:
        return weights.load_hf(str(self._folder / cases.shape(case)[0]))[1]

    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("scope-jax", "jax", "jaxlib", "numpy")}

    def logprob(self) -> float:
        learner = learner_for(section("update"))
        (batch,) = learner.pack(episodes(), CARD)
        scores = learner.score(learner.init_state(self._params), batch, policy=False)
        assert scores.ref_MN is not None
        return float(np.mean(unpack(batch, scores.ref_MN)))

    def prepare(self, case: str, variant: str) -> Work:
        if case == "matmul":
            return matmul()
        if case in cases.GENERATION:
            return generate(case, self._params)
        if case == "step":
            return step(self._params)
        if case in cases.TRAINING:
            return update(self._weights(case), case)
        raise Cannot(f"there is no case {case}")


def main(folder: str, *measured: str) -> None:
    """Writes the weights of the cases that are measured, and those by which participants are compared."""
    for name, config in dict(map(cases.shape, ("update", *measured))).items():
        model = from_hf(config)
        weights.save_hf(str(Path(folder, name)), model, random_params(model), jnp.float32, None)


if __name__ == "__main__":
    main(*sys.argv[1:])
