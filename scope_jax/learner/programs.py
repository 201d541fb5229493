"""The learner's compiled programs: log-probs of a batch, and an optimiser step.

Each is one `jax.shard_map` over the mesh (data, fsdp, context, tensor): a device computes its rows, or its tokens of
them, gathers the sharded weights layer by layer, and updates its shard of weights and moments. A single device uses the
same path with sizes of 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from scope_jax.config import LearnerSection, LossCard
from scope_jax.errors import UserError
from scope_jax.learner import losses
from scope_jax.learner.batching import STALEST, Batch, chunk_of
from scope_jax.learner.fitting import Room, fitted
from scope_jax.learner.layout import Layout
from scope_jax.learner.logprobs import token_logprobs_and_entropy
from scope_jax.learner.prefixes import RowWork
from scope_jax.learner.state import TrainState, advance, global_norm
from scope_jax.models.decoder import context, delta, kinds, transformer
from scope_jax.models.decoder.config import Delta, ModelConfig
from scope_jax.models.decoder.sums import rows_of
from scope_jax.models.kernels import attention
from scope_jax.sharding.collectives import Shards, compiler_options
from scope_jax.sharding.mesh import ROWS, TOKENS


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


def batch_specs(batch: Any) -> Any:
    """PartitionSpec of every array of a batch or of its scores: rows over data × fsdp, their tokens over context."""
    tokens = PartitionSpec(None, ROWS, "context")
    by_dims = {5: tokens, 3: tokens, 2: PartitionSpec(None, TOKENS)}  # MBTLk, MBT and MN
    return jax.tree.map(lambda x: by_dims.get(x.ndim, PartitionSpec()), batch)


def context_attention(section: LearnerSection, model: ModelConfig, tensor: int, devices: int) -> context.How:
    """How attention crosses the `devices` of a context group, in tensor groups of this size. Raises UserError if these
    do not divide the model's heads, or the tokens of a bucket."""
    states = [layer.mixer for layer in model.layers if isinstance(layer.mixer, Delta)]
    for mixer in states[:1]:
        delta.check_context(mixer.num_key_heads, tensor, devices)
    for bucket in section.buckets:
        context.token_order(bucket, devices)
        if section.sequence_parallel and tensor > 1 and bucket // devices % tensor:
            raise UserError(
                f"learner.buckets has {bucket}, whose tokens mesh.tensor = {tensor} does not divide; "
                "choose multiples or turn learner.sequence_parallel off."
            )
    return context.resolve(section.context_attention, kinds.kv_heads(model, tensor), devices)


class LearnerPrograms:
    """`score`, `step` and `rest`, jitted: log-probs, an optimiser step, and that of an empty batch. room: for `fitted`.
    Raises UserError as `context_attention` does, or if the devices do not support the section's attention."""

    def __init__(self, layout: Layout, section: LearnerSection, room: Room | None = None) -> None:
        model, mesh = layout.model, layout.mesh
        platform = mesh.devices.flat[0].platform
        section = fitted(section, layout, room)
        self.layout, self.section, self.model, self.mesh = layout, section, model, mesh
        self.attention = attention.resolve(section.attention, platform, layout.compute_dtype)
        self.shards = Shards.of(mesh, section.sequence_parallel)
        tensor, divided = mesh.shape["tensor"], mesh.shape["context"]
        self.context_attention: context.How = context_attention(section, model, tensor, divided)
        states = any(isinstance(layer.mixer, Delta) for layer in model.layers)
        whole = divided == 1 or self.context_attention == "ulysses"  # kernels have whole rows
        self.packed = self.attention == "cudnn" and whole
        sparse = (self.attention == "splash" and whole) or (self.packed and not any(model.windows))
        # A state is of one text: where texts part, each would need one of its own.
        shares = section.share_prefixes == "auto" and not states
        self.work = RowWork(model, sparse) if shares else None
        options = compiler_options(mesh)
        if platform == "cpu" and layout.unstacked and section.remat != "none":
            # Otherwise XLA begins to compute all unrolled layers again at once, and keeps what they need.
            options = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
        self.score = jax.jit(self._score, static_argnames=("policy", "reference"), compiler_options=options)
        self.step = jax.jit(self._step, static_argnames=("card",), donate_argnames=("state",), compiler_options=options)
        self.rest = jax.jit(self._rest, static_argnames=("card",), donate_argnames=("state",), compiler_options=options)

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
            micro.ends_MBT,
            shards=self.shards,
            remat=remat,
            compute_dtype=self.layout.compute_dtype,
            attention=self.attention,
            context_attention=self.context_attention,
            picked_BTLk=micro.picked_MBTLk,
            packing=micro.packing,
        )
        hidden_ND = rows_of(hidden_BTD.reshape(-1, hidden_BTD.shape[-1]), micro.index_MN)
        table_VD = transformer.output_table(self.model, params, self.shards, self.layout.compute_dtype)
        return token_logprobs_and_entropy(
            hidden_ND,
            table_VD,
            micro.targets_MN,
            micro.temperature_MN,
            chunk_of(self.section),
            self.shards,
            self.model.vocab_size if self.model.table_rows > self.model.vocab_size else None,
            self.model.final_softcap,
            entropy_slope=entropy_slope,
        )

    def _cast(self, params: Any) -> Any:
        """The weights with those of the layers in the dtype of computation, once for all micro-batches: their gradients
        have it anyway. Weights that are gathered stay, as their gradients are summed in float32, and so do tables that
        are used twice."""
        if self.layout.adapter is not None or self.shards.fsdp:
            return params
        return {**params, "layers": jax.tree.map(lambda w: w.astype(self.layout.compute_dtype), params["layers"])}

    def _over_micro_batches(self, batch: Batch, body: Callable[[Any, Any], Any], carry: Any) -> Any:
        """body(number, carry) for each real micro-batch; padded ones are skipped."""
        if batch.ids_MBT.shape[0] == 1:
            return body(0, carry)
        return lax.fori_loop(0, batch.micro_batches, body, carry)

    def _score(self, params: Any, ref_params: Any, batch: Batch, *, policy: bool, reference: bool) -> Scores:
        def local(params: Any, ref_params: Any, batch: Batch) -> list[jax.Array]:
            wanted = [(self.layout.whole(self._cast(params), ref_params), batch)] if policy else []
            # The policy's engine has not picked for the reference.
            wanted += [(ref_params, batch.replace(picked_MBTLk=None))] if reference else []

            def body(number: Any, out: list[jax.Array]) -> list[jax.Array]:
                micros = [(tree, _micro(batch, number)) for tree, batch in wanted]
                logps = [
                    jnp.where(micro.mask_MN, self._logprobs(tree, micro, "none")[0], 0.0) for tree, micro in micros
                ]
                return [lax.dynamic_update_index_in_dim(o, logp, number, 0) for o, logp in zip(out, logps, strict=True)]

            empty = [jnp.zeros(batch.index_MN.shape, jnp.float32) for _ in wanted]
            return self._over_micro_batches(batch, body, empty)

        params = params if policy else None  # what is not asked for is no argument of the program
        specs = self.layout.specs if policy else None
        ref_specs = None if ref_params is None else self.layout.reference_specs
        scored = jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(specs, ref_specs, batch_specs(batch)),
            out_specs=[PartitionSpec(None, TOKENS)] * (policy + reference),
            check_vma=False,
        )(params, ref_params, batch)
        return Scores(scored[0] if policy else None, scored[-1] if reference else None)

    # ------------------------------------------------------------------------------------------------------ update
    def _tokens(self, batch: Batch, scores: Scores) -> losses.LossInputs:
        return losses.LossInputs(
            batch.mask_MN,
            batch.first_MN,
            batch.sequence_MN,
            batch.length_MN,
            batch.advantage_MN,
            batch.behaviour_MN,
            batch.weight_MN,
            scores.old_MN,
            scores.ref_MN,
            batch.teacher_MN,
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
        known, params = self._sequences(batch, scores, card), self._cast(params)

        def numerator(params: Any, micro: Batch, scored: Scores) -> tuple[jax.Array, Any]:
            weights = self.layout.whole(params, base)
            logp_N, entropy_N = self._logprobs(weights, micro, self.section.remat, card.entropy_coef > 0)
            tokens, sequences = self._tokens(micro, scored), known
            if sequences is None and losses.by_sequence(card):
                local = losses.sequence_sums(logp_N, tokens, card, batch.sequences)
                sequences = jax.tree.map(self.shards.sum_rows, local)
            parts = losses.loss_parts(logp_N, tokens, card, entropy_N=entropy_N, sequences=sequences)
            return parts.numerator, (parts.sums, parts.per_token, _by_place(logp_N, tokens, micro, card), parts.maxima)

        def one(number: Any) -> tuple[Any, Any]:
            grads, metrics = jax.grad(numerator, has_aux=True)(params, _micro(batch, number), _micro(scores, number))
            return jax.tree.map(lambda grad: grad.astype(jnp.float32), grads), metrics

        def body(number: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            (grads, (*sums, maxima)), (new_grads, (*new_sums, new_maxima)) = carry, one(number)
            sums, maxima = jax.tree.map(jnp.add, sums, new_sums), jax.tree.map(jnp.maximum, maxima, new_maxima)
            return jax.tree.map(jnp.add, grads, new_grads), (*sums, maxima)

        if batch.ids_MBT.shape[0] == 1:
            return one(0)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(one, 0))
        return self._over_micro_batches(batch, body, zeros)

    def _step(
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
            grads, (sums, per_token, by_place, maxima) = self._gradient(state.params, base, batch, scores, card)
            grads = self.shards.sum_gradients(grads, self.layout.specs)
            grads = jax.tree.map(lambda grad: grad / denominator, grads)
            norm = global_norm(grads, self.layout.specs)
            state, rate, taken = advance(state, grads, norm, self.layout.optimizer)
            metrics = {name: self.shards.sum_rows(value) / denominator for name, value in sums.items()}
            metrics |= {name: self.shards.sum_rows(value) / computed for name, value in per_token.items()}
            metrics |= {name: self.shards.sum_rows(value) for name, value in by_place.items()}
            metrics |= {name: self._largest(value) for name, value in maxima.items()}
            metrics |= self._trained(batch, **counts) | self._moved(state, norm, rate, taken)
            return state, metrics | self._padding(batch, computed)

        state_specs = self.layout.state_specs(reference=False)
        base_specs = None if base is None else self.layout.reference_specs
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(state_specs, base_specs, batch_specs(batch), batch_specs(scores)),
            out_specs=(state_specs, PartitionSpec()),
            check_vma=False,
        )(state, base, batch, scores)

    @staticmethod
    def _trained(batch: Batch, tokens: Any, sequences: Any) -> dict[str, jax.Array]:
        """What is trained: the given tokens and sequences in rows, and those without a term."""
        idle = batch.idle_sequences
        return {"tokens": tokens + batch.idle_tokens, "sequences": sequences + idle, "idle_sequences": idle}

    def _padding(self, batch: Batch, trained: Any) -> dict[str, jax.Array]:
        """Shares of the computed rows' tokens, and of their slots, that are padding; and the tokens not computed again.
        trained: slots that are none."""
        sizes = (math.prod(x.shape[1:]) for x in (batch.ids_MBT, batch.mask_MN))  # of this device, in a micro-batch
        tokens, slots = (self.shards.sum_rows(batch.micro_batches * jnp.float32(size)) for size in sizes)
        return {
            "row_padding": 1.0 - batch.row_tokens / tokens,
            "slot_padding": 1.0 - trained / slots,
            "shared_tokens": batch.shared_tokens,
        }

    def _moved(self, state: TrainState, norm: Any, rate: Any, taken: Any) -> dict[str, jax.Array]:
        """Metrics of an optimiser step."""
        rms = global_norm(state.params, self.layout.specs) / math.sqrt(self.layout.param_count)
        return {"grad_norm": norm, "param_rms": rms, "learning_rate": rate, "skipped": 1.0 - taken}

    def _rest(self, state: TrainState, batch: Batch, *, card: LossCard) -> tuple[TrainState, Any]:
        """The optimiser step of an empty batch: moments decay, and the weights move by them and by their own decay."""

        def local(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
            zero = jnp.zeros((), jnp.float32)
            grads = jax.tree.map(lambda weight: jnp.zeros(weight.shape, jnp.float32), state.params)
            state, rate, taken = advance(state, grads, zero, self.layout.optimizer)
            metrics = dict.fromkeys(losses.summed_names(card), zero) | self._trained(batch, zero, zero)
            return state, metrics | self._moved(state, zero, rate, taken)

        specs = self.layout.state_specs(reference=False)
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(specs, batch_specs(batch)),
            out_specs=(specs, PartitionSpec()),
            check_vma=False,
        )(state, batch)

    def _largest(self, value: jax.Array) -> jax.Array:
        return lax.pmax(value, self.shards.rows) if self.shards.rows else value


def _by_place(
    logp_N: Float[Array, " N"], tokens: losses.LossInputs, micro: Batch, card: LossCard
) -> dict[str, Float[Array, ""]]:
    """Tokens, and sums of `losses.mismatch`, of each role at each depth and, where steps overlap, at each staleness;
    only of policies."""
    if card.objective != "policy":
        return {}
    signed_N, kl_N = losses.mismatch(logp_N, tokens, card)
    places = {}
    for number, (role, depth) in enumerate(itertools.product(micro.roles, range(micro.depths))):
        places[role, f"{depth + 1}k"] = micro.cell_MN == number
    if micro.stale_MN is not None:
        for (number, role), stale in itertools.product(enumerate(micro.roles), range(STALEST + 1)):
            of_role_N = micro.cell_MN // micro.depths == number
            places[role, f"stale{stale}"] = of_role_N & (micro.stale_MN == stale)
    sums = {}
    for (role, place), here_N in places.items():
        for name, value_N in (("tokens", jnp.ones_like(signed_N)), ("bias", signed_N), ("kl", kl_N)):
            sums[f"{role}/mismatch_{name}@{place}"] = jnp.sum(jnp.where(tokens.mask_N & here_N, value_N, 0.0))
    return sums
