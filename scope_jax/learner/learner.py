"""The learner: takes episodes and a loss card, returns updated weights and metrics. Independent of roles and papers.

    learner = Learner(model_cfg, mesh, cfg.optimizer, cfg.learner, param_dtype=jnp.float32, compute_dtype=jnp.bfloat16)
    state = learner.init_state(params)                      # copies; reference=False if no card needs it
    batches = learner.pack(episodes, card)                  # one per mini-batch; advantages already assigned
    state, metrics = learner.update(state, batches, card)   # scores, then a step per mini-batch; donates

Supervised training is the same with LossCard(objective="supervised") and episodes whose datums mark the target tokens
as sampled (behaviour log-probs 0, no advantage, any reward):

    row = Datum(ids_T, sampled_T, np.zeros(len(ids_T), np.float32))
    episode = Episode(role="sft", policy="actor", group="17", datums=(row,), reward=0.0)

With LossCard(objective="dpo") each group has two trained episodes, of which the one with the higher reward is chosen.

Every program is one `jax.shard_map` over the mesh (data, fsdp, context, tensor): a device computes its rows, or its
tokens of them, gathers the sharded weights layer by layer, and updates its shard of weights and moments. A single
device uses the same path with sizes of 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.errors import UserError
from scope_jax.learner import batching, losses
from scope_jax.learner.batching import Batch
from scope_jax.learner.layout import Layout
from scope_jax.learner.logprobs import token_logprobs_and_entropy
from scope_jax.learner.state import TrainState, advance, check_sound, global_norm
from scope_jax.learner.types import Episode, Metrics
from scope_jax.models import attention, context, transformer
from scope_jax.models.adapter import Adapter
from scope_jax.models.config import ModelConfig
from scope_jax.sharding.collectives import COMPILER_OPTIONS, Shards
from scope_jax.sharding.mesh import ROWS, TOKENS, row_shards

# Metrics that are summed over mini-batches; those ending in _max take the maximum.
ADDED = ("tokens", "sequences", "idle_sequences", "skipped")
# The names of what `Learner.update` measures: of every loss; some; DPO's.
METRICS = (
    *("loss", "tokens", "sequences", "idle_sequences", "grad_norm", "param_rms", "learning_rate", "skipped"),
    *("surprisal", "entropy"),
    *("policy_loss", "clip_fraction", "dual_clip_fraction", "ratio_mean", "ratio_max"),
    *("mismatch_mean", "mismatch_max", "rollout_weight_mean", "rollout_cap_fraction"),
    *("kl_k1", "kl_k2", "kl_k3", "kl_k2_plain", "kl_k3_plain"),
    *("implicit_accuracy", "implicit_margin", "implicit_chosen"),
)


class Scores(NamedTuple):
    """Log-probs of the trained positions in the batch's layout, 0 in empty slots; None if not requested.

    old: at the start of the update; ref: of the reference; now: just before the step, for losses of whole sequences.
    """

    old_MN: Float[Array, "M N"] | None
    ref_MN: Float[Array, "M N"] | None
    now_MN: Float[Array, "M N"] | None = None


def _micro(tree: Any, number: Any) -> Any:
    """Micro-batch `number` of every array with the leading axis M."""
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, number, keepdims=False) if x.ndim else x, tree)


def _combined(measured: Sequence[dict[str, Any]]) -> Metrics:
    """Metrics of one update from those of its mini-batches that have them: by name their sum, maximum, last value or
    mean."""
    metrics = {}
    for name in dict.fromkeys(name for one in measured for name in one):
        values = [float(one[name]) for one in measured if name in one]
        if name in ("learning_rate", "param_rms"):
            metrics[name] = values[-1]
        elif name.endswith("_max"):
            metrics[name] = max(values)
        else:
            metrics[name] = sum(values) / (1 if name in ADDED else len(values))
    return metrics


class Learner(Layout):
    """Compiled programs for one model on one mesh.

    param_dtype: dtype of weights and moments. compute_dtype: dtype of the forward pass; log-probs, losses and sums of
    gradients are always float32. adapter: the policies are low-rank adapters over one frozen base, the ref_params of
    their states, which is their reference, too. Raises ValueError if the mesh does not divide the model or a bucket, or
    if its devices do not support the section's attention.
    """

    def __init__(
        self,
        model: ModelConfig,
        mesh: Mesh,
        optimizer: OptimizerSection,
        section: LearnerSection,
        *,
        param_dtype: Any,
        compute_dtype: Any,
        adapter: Adapter | None = None,
        unstacked: bool = False,
    ) -> None:
        super().__init__(
            model,
            mesh,
            optimizer,
            param_dtype=param_dtype,
            compute_dtype=compute_dtype,
            adapter=adapter,
            unstacked=unstacked,
        )
        self.section = section
        self.attention = attention.resolve(section.attention, mesh.devices.flat[0].platform, self.compute_dtype)
        self.row_shards, self.context = row_shards(mesh), mesh.shape["context"]
        self.shards = Shards.of(mesh, section.sequence_parallel)
        kv_heads = model.num_kv_heads // mesh.shape["tensor"]
        self.context_attention: context.How = context.resolve(section.context_attention, kv_heads, self.context)
        for bucket in section.buckets:
            context.token_order(bucket, self.context)
            if self.shards.sequence and bucket // self.context % mesh.shape["tensor"]:
                raise UserError(
                    f"learner.buckets has {bucket}, whose tokens mesh.tensor = {mesh.shape['tensor']} does not divide; "
                    "choose multiples or turn learner.sequence_parallel off."
                )
        options = COMPILER_OPTIONS.get(mesh.devices.flat[0].platform) if mesh.size > 1 else None
        self._score = jax.jit(self._score_program, static_argnames=("policy", "reference"), compiler_options=options)
        self._step = jax.jit(
            self._step_program, static_argnames=("card",), donate_argnames=("state",), compiler_options=options
        )
        self._rest = jax.jit(
            self._rest_program, static_argnames=("card",), donate_argnames=("state",), compiler_options=options
        )

    # ------------------------------------------------------------------------------------------------------- batch
    def pack(self, episodes: Sequence[Episode], card: LossCard) -> list[Batch]:
        """One batch on the devices for each of the card's mini-batches; groups stay together.

        Before the split into mini-batches, episodes that are not trained or have no sampled token are left out, except
        for padding, which counts in its mini-batch's divisor; [] if nothing is left to train. Trained episodes without
        a term in the loss (`batching.has_term`) count there, too, and have no row; a mini-batch of nothing else is an
        empty batch, as its step is one of the update's. Under "dpo" only pairs are left, without padding. Raises
        ValueError as `batching.pack` and `batching.pairs` do, and for an episode without an advantage under a policy
        objective.
        """
        if card.objective == "dpo":
            episodes = batching.pairs(episodes)
        for episode in batching.trainable(episodes):
            if card.objective == "policy" and episode.advantage is None:
                raise ValueError(
                    f"An episode of role {episode.role!r}, group {episode.group!r}, has no advantage; "
                    "call advantages.assign before packing."
                )
        parts = batching.mini_batches(episodes, card.mini_batches)
        shards = (self.row_shards, card.tempered, self.context, card)
        return [self.place(batching.pack(part, self.section, *shards)) for part in parts]

    def place(self, batch: Batch) -> Batch:
        """Moves a packed batch to the devices, with rows divided over data × fsdp and their tokens over context; of
        several processes, which all have the same batch, each moves the part of its own devices."""
        shardings = jax.tree.map(partial(NamedSharding, self.mesh), self._batch_specs(batch))
        if not self.mesh.is_multi_process:
            return jax.device_put(batch, shardings)
        return jax.tree.map(
            lambda x, sharding: jax.make_array_from_callback(x.shape, sharding, lambda place: np.asarray(x[place])),
            batch,
            shardings,
        )

    @staticmethod
    def _batch_specs(batch: Any) -> Any:
        by_dims = {3: PartitionSpec(None, ROWS, "context"), 2: PartitionSpec(None, TOKENS)}  # MBT and MN
        return jax.tree.map(lambda x: by_dims.get(x.ndim, PartitionSpec()), batch)

    # ----------------------------------------------------------------------------------------------------- forward
    def _logprobs(
        self, params: Any, micro: Batch, remat: Any, entropy_slope: bool = False
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Log-probs and entropies of one micro-batch's trained positions, the only ones projected to the vocabulary."""
        hidden_BTD = transformer.hidden(
            self.model,
            params,
            micro.ids_MBT,
            micro.positions_MBT,
            micro.segments_MBT,
            shards=self.shards,
            remat=remat,
            compute_dtype=self.compute_dtype,
            attention=self.attention,
            context_attention=self.context_attention,
        )
        hidden_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])[micro.index_MN]
        table_VD = transformer.output_table(self.model, params, self.shards, self.compute_dtype)
        return token_logprobs_and_entropy(
            hidden_ND,
            table_VD,
            micro.targets_MN,
            micro.temperature_MN,
            self.section.logprob_chunk,
            self.shards,
            self.model.vocab_size if self.model.table_rows > self.model.vocab_size else None,
            entropy_slope=entropy_slope,
        )

    def _over_micro_batches(self, batch: Batch, body: Callable[[Any, Any], Any], carry: Any) -> Any:
        """body(number, carry) for each real micro-batch; padded ones are skipped."""
        if batch.ids_MBT.shape[0] == 1:
            return body(0, carry)
        return lax.fori_loop(0, batch.micro_batches, body, carry)

    def _score_program(self, params: Any, ref_params: Any, batch: Batch, *, policy: bool, reference: bool) -> Scores:
        def local(params: Any, ref_params: Any, batch: Batch) -> list[jax.Array]:
            wanted = [self.whole(params, ref_params)] if policy else []
            wanted += [ref_params] if reference else []

            def body(number: Any, out: list[jax.Array]) -> list[jax.Array]:
                micro = _micro(batch, number)
                logps = [jnp.where(micro.mask_MN, self._logprobs(tree, micro, "none")[0], 0.0) for tree in wanted]
                return [lax.dynamic_update_index_in_dim(o, logp, number, 0) for o, logp in zip(out, logps, strict=True)]

            empty = [jnp.zeros(batch.index_MN.shape, jnp.float32) for _ in wanted]
            return self._over_micro_batches(batch, body, empty)

        params = params if policy else None  # what is not asked for is no argument of the program
        specs = self.specs if policy else None
        ref_specs = None if ref_params is None else self.reference_specs
        scored = jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(specs, ref_specs, self._batch_specs(batch)),
            out_specs=[PartitionSpec(None, TOKENS)] * (policy + reference),
            check_vma=False,
        )(params, ref_params, batch)
        return Scores(scored[0] if policy else None, scored[-1] if reference else None)

    def score(self, state: TrainState, batch: Batch, *, policy: bool = True, reference: bool = True) -> Scores:
        """Log-probs of the trained positions under the current weights and under the reference, in one program; none
        of an empty batch.

        Raises ValueError if the reference is requested and the state has none.
        """
        if reference and state.ref_params is None:
            raise ValueError(
                "The loss card compares with the reference but the state has no reference weights; "
                'call init_state with reference=True, or set kl = "none" if the card has a KL term.'
            )
        if batch.empty:
            return Scores(None, None)
        ref_params = state.ref_params if reference or self.adapter else None
        return self._score(state.params, ref_params, batch, policy=policy, reference=reference)

    # ------------------------------------------------------------------------------------------------------ update
    def _tokens(self, batch: Batch, scores: Scores) -> losses.Tokens:
        return losses.Tokens(
            batch.mask_MN,
            batch.first_MN,
            batch.sequence_MN,
            batch.length_MN,
            batch.advantage_MN,
            batch.behaviour_MN,
            batch.weight_MN,
            scores.old_MN,
            scores.ref_MN,
        )

    def _sequences(self, batch: Batch, scores: Scores, card: LossCard) -> losses.Sequences | None:
        """Sums over whole sequences for the loss, from all micro-batches and devices. None if the card needs none, or
        if they depend on current log-probs that are not given (a single micro-batch computes them itself)."""
        if not losses.by_sequence(card):
            return None
        moving = losses.sequences_move(card, scores.old_MN is not None)
        if moving and scores.now_MN is None:
            return None
        # Sums that do not depend on log π may be computed with any values.
        logp_MN = scores.now_MN if scores.now_MN is not None else batch.behaviour_MN
        tokens = jax.tree.map(jnp.ravel, self._tokens(batch, scores))
        local = losses.sequence_sums(logp_MN.ravel(), tokens, card, batch.sequences)
        return jax.tree.map(self.shards.sum_rows, local)

    def _gradient(self, params: Any, base: Any, batch: Batch, scores: Scores, card: LossCard) -> tuple[Any, Any]:
        """(Σ gradients of the numerators of this device's rows, Σ metrics), over all micro-batches. base: the frozen
        weights, of which params are an adapter; otherwise None."""
        known = self._sequences(batch, scores, card)

        def numerator(params: Any, micro: Batch, scored: Scores) -> tuple[jax.Array, Any]:
            weights = self.whole(params, base)
            logp_N, entropy_N = self._logprobs(weights, micro, self.section.remat, card.entropy_coef > 0)
            tokens, sequences = self._tokens(micro, scored), known
            if sequences is None and losses.by_sequence(card):
                local = losses.sequence_sums(logp_N, tokens, card, batch.sequences)
                sequences = jax.tree.map(self.shards.sum_rows, local)
            parts = losses.loss_parts(logp_N, tokens, card, entropy_N=entropy_N, sequences=sequences)
            return parts.numerator, (parts.sums, parts.per_token, parts.maxima)

        def one(number: Any) -> tuple[Any, Any]:
            grads, metrics = jax.grad(numerator, has_aux=True)(params, _micro(batch, number), _micro(scores, number))
            return jax.tree.map(lambda grad: grad.astype(jnp.float32), grads), metrics

        def body(number: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            (grads, metrics), (new_grads, new_metrics) = carry, one(number)
            sums, per_token, maxima = (jax.tree.map(jnp.add, a, b) for a, b in zip(metrics, new_metrics, strict=True))
            maxima = jax.tree.map(jnp.maximum, metrics[2], new_metrics[2])
            return jax.tree.map(jnp.add, grads, new_grads), (sums, per_token, maxima)

        if batch.ids_MBT.shape[0] == 1:
            return one(0)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(one, 0))
        return self._over_micro_batches(batch, body, zeros)

    def _step_program(
        self, state: TrainState, base: Any, batch: Batch, scores: Scores, *, card: LossCard
    ) -> tuple[TrainState, Any]:
        def local(
            state: TrainState, base: Any, batch: Batch, scores: Scores
        ) -> tuple[TrainState, dict[str, jax.Array]]:
            tokens = self._tokens(batch, scores)
            counts = {
                "tokens": jnp.sum(tokens.mask_N, dtype=jnp.float32),
                "sequences": jnp.sum(tokens.first_N, dtype=jnp.float32),
            }
            counts = jax.tree.map(self.shards.sum_rows, counts)
            computed = counts["tokens"]  # the others have no term and no log-prob
            denominator = losses.denominator(
                card, computed + batch.padding_tokens, counts["sequences"] + batch.padding_sequences
            )
            grads, (sums, per_token, maxima) = self._gradient(state.params, base, batch, scores, card)
            grads = self.shards.sum_gradients(grads, self.specs)
            grads = jax.tree.map(lambda grad: grad / denominator, grads)
            norm = global_norm(grads, self.specs)
            state, rate, taken = advance(state, grads, norm, self.optimizer)
            metrics = {name: self.shards.sum_rows(value) / denominator for name, value in sums.items()}
            metrics |= {name: self.shards.sum_rows(value) / computed for name, value in per_token.items()}
            metrics |= {name: self._largest(value) for name, value in maxima.items()}
            metrics |= self._trained(batch, **counts) | self._moved(state, norm, rate, taken)
            return state, metrics

        state_specs, base_specs = self.state_specs(reference=False), None if base is None else self.reference_specs
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(state_specs, base_specs, self._batch_specs(batch), self._batch_specs(scores)),
            out_specs=(state_specs, PartitionSpec()),
            check_vma=False,
        )(state, base, batch, scores)

    @staticmethod
    def _trained(batch: Batch, tokens: Any, sequences: Any) -> dict[str, jax.Array]:
        """What is trained: the given tokens and sequences in rows, and those without a term."""
        idle = batch.idle_sequences
        return {"tokens": tokens + batch.idle_tokens, "sequences": sequences + idle, "idle_sequences": idle}

    def _moved(self, state: TrainState, norm: Any, rate: Any, taken: Any) -> dict[str, jax.Array]:
        """Metrics of an optimiser step."""
        rms = global_norm(state.params, self.specs) / math.sqrt(self.param_count)
        return {"grad_norm": norm, "param_rms": rms, "learning_rate": rate, "skipped": 1.0 - taken}

    def _rest_program(self, state: TrainState, batch: Batch, *, card: LossCard) -> tuple[TrainState, Any]:
        """The optimiser step of an empty batch: moments decay, and the weights move by them and by their own decay."""

        def local(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
            zero = jnp.zeros((), jnp.float32)
            grads = jax.tree.map(lambda weight: jnp.zeros(weight.shape, jnp.float32), state.params)
            state, rate, taken = advance(state, grads, zero, self.optimizer)
            metrics = dict.fromkeys(losses.summed_names(card), zero) | self._trained(batch, zero, zero)
            return state, metrics | self._moved(state, zero, rate, taken)

        specs = self.state_specs(reference=False)
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(specs, self._batch_specs(batch)),
            out_specs=(specs, PartitionSpec()),
            check_vma=False,
        )(state, batch)

    def _largest(self, value: jax.Array) -> jax.Array:
        return lax.pmax(value, self.shards.rows) if self.shards.rows else value

    def step(
        self, state: TrainState, batch: Batch, scores: Scores, card: LossCard
    ) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
        """One optimiser step at the learning rate of update `state.step`, which `update` increments; metrics stay on
        the device. The weights and moments of `state` are donated.

        Without scores.old_MN, π_old is the current policy, r = 1: correct for the first step after sampling. If a
        sequence's ratio is needed before the gradients of its tokens and may span several micro-batches, the current
        log-probs are scored first (scores.now_MN). For an empty batch the model is not run: its terms are 0, and so is
        its gradient.
        """
        trained = state.replace(ref_params=None)
        if batch.empty:
            moved, metrics = self._rest(state=trained, batch=batch, card=card)
            return moved.replace(ref_params=state.ref_params), metrics
        if losses.sequences_move(card, scores.old_MN is not None) and batch.ids_MBT.shape[0] > 1:
            scores = scores._replace(now_MN=self.score(state, batch, reference=False).old_MN)
        base = state.ref_params if self.adapter else None
        moved, metrics = self._step(state=trained, base=base, batch=batch, scores=scores, card=card)
        return moved.replace(ref_params=state.ref_params), metrics

    def update(self, state: TrainState, batches: Sequence[Batch], card: LossCard) -> tuple[TrainState, Metrics]:
        """One update: scores old and reference log-probs of all mini-batches, then takes an optimiser step for each.
        Donates state.

        Metrics: loss, policy_loss and kl_<estimator> by the card's aggregation; means over the tokens of the episodes
        that have a term in the loss, left out if none has one: entropy (of the whole distribution, nats), surprisal
        (−log π of the sampled token), clip_fraction, dual_clip_fraction, ratio_mean, mismatch_mean, and with a
        rollout_cap rollout_weight_mean and rollout_cap_fraction; over the same tokens ratio_max and mismatch_max
        (|learner − behaviour| log-probs, before the update's first step if old log-probs are scored); tokens,
        sequences, idle_sequences (those of them without a term), grad_norm (before clipping), param_rms (of the updated
        weights), learning_rate, skipped. A supervised card has loss and the metrics from tokens on; a DPO card also
        entropy, surprisal, and over pairs implicit_accuracy, implicit_margin and implicit_chosen. Raises ValueError if
        there is no batch, or if the card needs a reference that the state lacks; DivergedError if training has diverged
        (`check_sound`).
        """
        if not batches:
            raise ValueError("There is nothing to train on: the update has no batch.")
        policy = card.objective == "policy"
        # With one mini-batch the weights do not change between scoring and the step: π_old is the policy itself.
        score_old = policy and card.old_logprobs == "learner" and len(batches) > 1
        score_ref = card.needs_reference
        scores = [Scores(None, None)] * len(batches)
        if score_old or score_ref:
            scores = [self.score(state, batch, policy=score_old, reference=score_ref) for batch in batches]
        measured = []
        for batch, scored in zip(batches, scores, strict=True):
            state, metrics = self.step(state, batch, scored, card)
            measured.append(metrics)
        measured, skipped = jax.device_get((measured, state.skipped))
        metrics = _combined(measured)
        check_sound(self.optimizer, metrics["param_rms"], int(skipped))
        return state.replace(step=state.step + 1), metrics
