"""Log-probs of given tokens under other weights than those that sampled them: of a policy, of the base, of a teacher.

The forward pass is the learner's (`learner.programs`), on the devices and with the weights of this process's engine, so
that it costs no further copy of them; several processes divide the rows. A teacher's weights wait in host memory, and
come to the devices while the engine's are away. One row at a time is computed on each row shard of the mesh, in a shape
that follows from its own length and number of sampled tokens: its bits do not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding

from scope_jax.config import Config, LearnerSection
from scope_jax.errors import UserError
from scope_jax.learner import batching
from scope_jax.learner.layout import Layout
from scope_jax.learner.programs import LearnerPrograms, batch_specs
from scope_jax.learner.types import Datum, Episode
from scope_jax.models.decoder import stacks
from scope_jax.models.decoder.adapter import Adapter, declare_factors
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.lowrank import LowRank
from scope_jax.models.files import weights
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.tools import BASE
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.weights import without_adapters
from scope_jax.run.adapters import DTYPES, adapter_of
from scope_jax.run.processes import divided
from scope_jax.run.sampler import ACCELERATOR, HOST, Sampler, moved
from scope_jax.run.teacher_client import TeacherClient
from scope_jax.sharding.mesh import row_shards
from scope_jax.sharding.program import AbstractProgram, placed
from scope_jax.sharding.rules import TRAIN

Forward = Callable[[batching.Batch], jax.Array]  # log-probs [M, N] of a batch


class Scoring:
    """Rates rows under every model that the run has.

    model: of the policies. mesh: this process's engine's. tell: gets what the user should know of an endpoint.
    """

    def __init__(
        self,
        cfg: Config,
        model: ModelConfig,
        mesh: Mesh,
        tokenizer: Tokenizer,
        sampler: Sampler,
        local: LocalRollouts,
        tell: Callable[[str], None] | None,
    ) -> None:
        self._cfg, self._model, self._mesh, self._tokenizer = cfg, model, mesh, tokenizer
        self._sampler, self._local = sampler, local
        self._clients = {
            name: TeacherClient(name, endpoint, tokenizer, tell)
            for name, teacher in cfg.teachers.items()
            if (endpoint := teacher.endpoint) is not None
        }
        self._programs: dict[str, LearnerPrograms] = {}  # of the teachers, and of all policies under BASE
        self._held: dict[str, Any] = {}  # by teacher, its weights in host memory

    def score(self, by: str, rows: Sequence[Datum], temperature: float = 1.0) -> list[np.ndarray]:
        """As `Tools.score`."""
        longest = max(self._cfg.learner.buckets)
        for row in rows:
            if len(row.ids_T) > longest:
                raise UserError(
                    f"a row that {by} is to rate has {len(row.ids_T)} tokens, more than the largest of learner.buckets,"
                    f" {longest}; add a larger bucket, or shorten what is rated."
                )
            if row.sampled_T.any() and row.sampled_T[0]:
                raise ValueError("the first token of a row is marked as sampled, but no token precedes it.")
        costs = [float(len(row.ids_T)) for row in rows]
        if (client := self._clients.get(by)) is not None:
            if temperature != 1.0:
                raise UserError(
                    f"the teacher {by} is an endpoint, which gives log-probs at temperature 1, but the game asks for "
                    f"{temperature:g}; sample at 1, or give the teacher's weights as checkpoint."
                )
            return divided(client.score, rows, costs)
        forward = self._teacher(by) if by in self._cfg.teachers else self._policy(by)
        return divided(partial(self._rated, forward, temperature), rows, costs)

    def _policy(self, policy: str) -> Forward:
        """The forward pass with the engine's weights of a policy, or of the base."""
        self._sampler.use(policy)
        self._local.clear()
        cfg, params = self._cfg, self._local.params
        base, named = without_adapters(params), self._sampler.named(policy)
        adapter = adapter_of(cfg.model.adapter)
        if BASE not in self._programs:
            self._programs[BASE] = programs_for(self._cfg, self._model, self._mesh, adapter=adapter, unstacked=True)
        score = self._programs[BASE].score
        if named is None or adapter is None:
            return lambda batch: score(None, base, batch, policy=False, reference=True).ref_MN
        number = self._local.engine.number(named)
        factors = _factors(params["layers"], number, model=self._model, adapter=adapter)
        return lambda batch: score(factors, base, batch, policy=True, reference=False).old_MN

    def _teacher(self, name: str) -> Forward:
        """The forward pass of a teacher, whose weights are on the devices as long as it is referred to."""
        folder = self._cfg.teachers[name].checkpoint
        assert folder is not None
        if self._cfg.rollout.devices is None:
            self._sampler.rest()
        else:
            self._local.clear()  # a step may be played ahead, whose weights cannot be loaded again
        if name not in self._held:
            model, params = weights.load(folder, self._mesh, TRAIN, DTYPES[self._cfg.model.compute_dtype])
            self._programs[name], self._held[name] = programs_for(self._cfg, model, self._mesh), moved(params, HOST)
        params, score = moved(self._held[name], ACCELERATOR), self._programs[name].score
        return lambda batch: score(None, params, batch, policy=False, reference=True).ref_MN

    def _rated(self, forward: Forward, temperature: float, rows: Sequence[Datum]) -> list[np.ndarray]:
        """Log-probs of the sampled tokens of each row, which is computed in a shape of its own."""
        section, shards = self._cfg.learner, row_shards(self._mesh)
        alike: dict[tuple[int, int], list[int]] = {}
        for place, row in enumerate(rows):
            if count := int(np.count_nonzero(row.sampled_T)):
                bucket = min(bucket for bucket in section.buckets if bucket >= len(row.ids_T))
                alike.setdefault((bucket, batching.slots_for(count, batching.chunk_of(section))), []).append(place)
        found = [np.zeros(0, np.float32) for _ in rows]
        for (bucket, _), places in alike.items():
            single = _row_by_row(section, bucket, shards)
            most = batching.FEW_MICRO_BATCHES * shards
            for first in range(0, len(places), most):
                chosen = places[first : first + most]
                episodes = [_episode(rows[place], temperature) for place in chosen]
                batch = batching.pack(episodes, single, shards)
                placed = jax.device_put(batch, jax.tree.map(partial(NamedSharding, self._mesh), batch_specs(batch)))
                values = batching.unpack(batch, forward(placed))
                counts = [int(np.count_nonzero(rows[place].sampled_T)) for place in chosen]
                for place, part in zip(chosen, np.split(values, np.cumsum(counts)[:-1]), strict=True):
                    found[place] = part
        return found


def programs_for(cfg: Config, model: ModelConfig, mesh: Mesh, **options: Any) -> LearnerPrograms:
    """The learner's programs for rating rows under weights in the dtype of computation. options: of `Layout`."""
    dtype = DTYPES[cfg.model.compute_dtype]
    options = {"adapter": None, "param_dtype": dtype, "compute_dtype": dtype} | options
    return LearnerPrograms(Layout(model, mesh, cfg.optimizer, **options), cfg.learner)


def teacher_program(cfg: Config, name: str, model: ModelConfig, mesh: Mesh, bucket: int) -> AbstractProgram:
    """What a teacher with this model executes for rows of a bucket, all of whose tokens were sampled. mesh: the
    engine's."""
    programs, shards = programs_for(cfg, model, mesh), row_shards(mesh)
    params = programs.layout.abstract_state(reference=True).ref_params
    batch = batching.abstract(_row_by_row(cfg.learner, bucket, shards), shards, bucket, bucket - 1, 2)
    return AbstractProgram(
        name=f"teacher {name} @{bucket}",
        kind="teacher",
        function=programs.score,
        arguments=(None, params, placed(batch, jax.tree.map(partial(NamedSharding, mesh), batch_specs(batch)))),
        options={"policy": False, "reference": True},
        resident=(params,),
        bucket=bucket,
    )


def _row_by_row(section: LearnerSection, bucket: int, shards: int) -> LearnerSection:
    """The section for batches of one bucket with a row on each shard."""
    return section.model_copy(update={"buckets": (bucket,), "packing": False, "micro_batch_rows": shards})


def _episode(row: Datum, temperature: float) -> Episode:
    plain = Datum(row.ids_T, row.sampled_T, row.logprobs_T)
    return Episode("score", "", "", (plain,), 0.0, temperature=temperature)


@partial(jax.jit, static_argnames=("model", "adapter"))
def _factors(layers: Any, number: Any, *, model: ModelConfig, adapter: Adapter) -> Any:
    """The factors of one of the engine's adapters, stacked as the learner has them."""

    def part(w: LowRank, side: str) -> jax.Array:
        factor, axis = (w.a, -1) if side == "a" else (w.b, -2)
        return lax.dynamic_slice_in_dim(factor, number * adapter.rank, adapter.rank, axis)

    declared = stacks.each(model, declare_factors(model, adapter)["layers"], lambda param, _: param)
    own = [
        {name: {side: part(layer[name], side) for side in sides} for name, sides in one.items()}
        for layer, one in zip(layers, declared, strict=True)
    ]
    return {"layers": stacks.together(model, own, lambda *each: jnp.stack(each))}
