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

What runs on the devices is in `learner.programs`, what a state consists of in `learner.layout`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner import batching, losses, splitting
from scope_jax.learner.batching import Batch
from scope_jax.learner.fitting import Room
from scope_jax.learner.layout import Layout
from scope_jax.learner.programs import LearnerPrograms, Scores, batch_specs
from scope_jax.learner.state import TrainState, check_sound
from scope_jax.learner.types import Episode, Metrics, Update
from scope_jax.models.decoder.adapter import Adapter
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.moe import picked_dtype
from scope_jax.models.kernels.packed import Packing
from scope_jax.sharding.mesh import row_shards
from scope_jax.sharding.program import AbstractProgram, name_of, placed

# Metrics that are summed over mini-batches; those ending in _max take the maximum.
ADDED = ("tokens", "sequences", "idle_sequences", "shared_tokens", "skipped")
# The names of what `Learner.update` measures: of every loss; some; DPO's.
METRICS = (
    *("loss", "tokens", "sequences", "idle_sequences", "grad_norm", "param_rms", "learning_rate", "skipped"),
    *("surprisal", "entropy", "row_padding", "slot_padding", "shared_tokens"),
    *("policy_loss", "clip_fraction", "dual_clip_fraction", "ratio_mean", "ratio_max"),
    *("mismatch_mean", "mismatch_max", "mismatch_bias", "mismatch_kl"),
    *("rollout_weight_mean", "rollout_cap_fraction", "rollout_masked_fraction"),
    *("kl_k1", "kl_k2", "kl_k3", "kl_k2_plain", "kl_k3_plain"),
    *("teacher_k1", "teacher_k2", "teacher_k3"),
    *("implicit_accuracy", "implicit_margin", "implicit_chosen"),
)


def scored(card: LossCard, batches: int) -> tuple[bool, bool]:
    """(old, reference): which log-probs an update of so many mini-batches scores before its steps.

    With one mini-batch the weights do not change between scoring and the step: π_old is the policy itself.
    """
    old = card.objective == "policy" and card.old_logprobs == "learner" and batches > 1
    return old, card.needs_reference


def _scores_now(card: LossCard, old: bool, batch: Batch) -> bool:
    """Whether a step scores the current log-probs first. old: those at the start of the update are given."""
    return losses.sequences_move(card, old) and batch.ids_MBT.shape[0] > 1


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
        elif "@" in name:  # a sum over the tokens of a role at a depth
            tokens = sum(float(one[re.sub("_[a-z]+@", "_tokens@", name)]) for one in measured if name in one)
            if tokens and "_tokens@" not in name:
                metrics[name] = sum(values) / tokens
        else:
            metrics[name] = sum(values) / (1 if name in ADDED else len(values))
    return metrics


class Learner:
    """Compiled programs for one model on one mesh.

    param_dtype: dtype of weights and moments. compute_dtype: dtype of the forward pass; log-probs, losses and sums of
    gradients are always float32. adapter: the policies are low-rank adapters over one frozen base, the ref_params of
    their states, which is their reference, too. room: what a device has for an update, for `fitting.fitted`; None: not
    known. Raises UserError if the mesh does not divide the model or a bucket, or
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
        room: Room | None = None,
    ) -> None:
        self.layout = Layout(
            model,
            mesh,
            optimizer,
            param_dtype=param_dtype,
            compute_dtype=compute_dtype,
            adapter=adapter,
            unstacked=unstacked,
        )
        self.jitted = LearnerPrograms(self.layout, section, room)
        self.model, self.mesh, self.optimizer, self.adapter = model, mesh, optimizer, adapter
        self.section = self.jitted.section
        self.attention, self.context_attention = self.jitted.attention, self.jitted.context_attention
        self.shards, self.row_shards, self.context = self.jitted.shards, row_shards(mesh), mesh.shape["context"]
        self._called: set[Any] = set()  # the programs of updates so far

    # ------------------------------------------------------------------------------------------------------- state
    def init_state(self, params: Any, reference: bool = True) -> TrainState:
        """State before the first update, see `Layout.init_state`."""
        return self.layout.init_state(params, reference)

    def abstract_state(self, reference: bool) -> TrainState:
        """Shape, dtype and sharding of every array of the state, for restoring a checkpoint."""
        return self.layout.abstract_state(reference)

    # ------------------------------------------------------------------------------------------------------- batch
    def pack(self, episodes: Sequence[Episode], card: LossCard) -> list[Batch]:
        """One batch on the devices for each of the card's mini-batches; groups stay together.

        Before the split into mini-batches, episodes that are not trained or have no sampled token are left out, except
        for padding, which counts in its mini-batch's divisor; [] if nothing is left to train. Trained episodes without
        a term in the loss (`splitting.has_term`) count there, too, and have no row; a mini-batch of nothing else is an
        empty batch, as its step is one of the update's. Under "dpo" only pairs are left, without padding. Raises
        ValueError as `batching.pack` and `splitting.pairs` do, and for an episode without an advantage under a policy
        objective.
        """
        if card.objective == "dpo":
            episodes = splitting.pairs(episodes)
        for episode in splitting.trainable(episodes):
            if card.objective == "policy" and episode.advantage is None:
                raise ValueError(
                    f"An episode of role {episode.role!r}, group {episode.group!r}, has no advantage; "
                    "call advantages.assign before packing."
                )
        parts = splitting.mini_batches(episodes, card.mini_batches)
        rows = (self.row_shards, card.tempered, self.context, card, self.jitted.work, batching.roles_of(episodes))
        return [self.place(batching.pack(part, self.section, *rows, packed=self.jitted.packed)) for part in parts]

    def place(self, batch: Batch) -> Batch:
        """Moves a packed batch to the devices, with rows divided over data × fsdp and their tokens over context; of
        several processes, which all have the same batch, each moves the part of its own devices."""
        shardings = jax.tree.map(partial(NamedSharding, self.mesh), batch_specs(batch))
        if not self.mesh.is_multi_process:
            return jax.device_put(batch, shardings)
        return jax.tree.map(
            lambda x, sharding: jax.make_array_from_callback(x.shape, sharding, lambda place: np.asarray(x[place])),
            batch,
            shardings,
        )

    def abstract_batch(self, bucket: int, sampled: int | None = None, micro_batches: int = 2) -> Batch:
        """Shapes and shardings of full rows of one bucket. sampled: trained tokens of a row; None: all but the first.
        micro_batches: with more than one, gradients are accumulated."""
        trained, packing = bucket - 1 if sampled is None else sampled, Packing(1, 0) if self.jitted.packed else None
        batch = batching.abstract(self.section, self.row_shards, bucket, trained, micro_batches, self.context, packing)
        if self.section.router_replay:
            shape = *batch.ids_MBT.shape, *self.model.picks
            picked = jax.ShapeDtypeStruct(shape, picked_dtype(self.model.num_experts))
            batch = batch.replace(picked_MBTLk=picked)
        return placed(batch, jax.tree.map(partial(NamedSharding, self.mesh), batch_specs(batch)))

    # ------------------------------------------------------------------------------------------------------ update
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
        return self.jitted.score(state.params, ref_params, batch, policy=policy, reference=reference)

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
            moved, metrics = self.jitted.rest(state=trained, batch=batch, card=card)
            return moved.replace(ref_params=state.ref_params), metrics
        if _scores_now(card, scores.old_MN is not None, batch):
            scores = scores._replace(now_MN=self.score(state, batch, reference=False).old_MN)
        base = state.ref_params if self.adapter else None
        moved, metrics = self.jitted.step(state=trained, base=base, batch=batch, scores=scores, card=card)
        return moved.replace(ref_params=state.ref_params), metrics

    def update(self, state: TrainState, batches: Sequence[Batch], card: LossCard) -> tuple[TrainState, Metrics]:
        """One update: scores old and reference log-probs of all mini-batches, then takes an optimiser step for each.
        Donates state.

        Metrics: loss, policy_loss, kl_<estimator> and teacher_<estimator> by the card's aggregation; means over the
        tokens of the episodes that have a term in the loss, left out if none has one: entropy (of the whole
        distribution, nats), surprisal (−log π of the sampled token), clip_fraction, dual_clip_fraction, ratio_mean,
        mismatch_mean (|learner − behaviour| log-probs, before the update's first step if old log-probs are scored),
        mismatch_bias (the same, signed), mismatch_kl (KL of the behaviour from the learner), and with a rollout_cap or
        rollout_mask rollout_weight_mean, rollout_cap_fraction and rollout_masked_fraction; mismatch_bias and _kl also
        of each role by depth, as "<role>/mismatch_kl@2k" of tokens at places 1,024 to 2,047; over the same tokens
        ratio_max and mismatch_max; tokens, sequences, idle_sequences (those of them without a term), grad_norm (before
        clipping), param_rms (of the updated weights), learning_rate, skipped; row_padding and slot_padding (shares of
        the computed rows and of their slots that are empty) and shared_tokens (of what several datums begin with:
        tokens that were not computed again), left out without rows. A supervised card has loss and the metrics from
        tokens on; a DPO card also entropy, surprisal, and over pairs implicit_accuracy, implicit_margin
        and implicit_chosen. Raises ValueError if there is no batch, or if the card needs a reference that the state
        lacks; DivergedError if training has diverged (`check_sound`).
        """
        if not batches:
            raise ValueError("There is nothing to train on: the update has no batch.")
        old, reference = scored(card, len(batches))
        scores = [Scores(None, None)] * len(batches)
        if old or reference:
            scores = [self.score(state, batch, policy=old, reference=reference) for batch in batches]
        measured = []
        for batch, known in zip(batches, scores, strict=True):
            state, metrics = self.step(state, batch, known, card)
            measured.append(metrics)
        measured, skipped = jax.device_get((measured, state.skipped))
        metrics = _combined(measured)
        check_sound(self.optimizer, metrics["param_rms"], int(skipped))
        return state.replace(step=state.step + 1), metrics

    def new_programs(self, batches: Sequence[Batch], card: LossCard) -> dict[str, int]:
        """How many programs an update with these batches calls that no update before it has called, by the name of
        their function."""
        old, reference = scored(card, len(batches))
        called: set[Any] = set()
        for batch in batches:
            leaves, structure = jax.tree.flatten(batch)
            shape = structure, *((leaf.shape, leaf.dtype) for leaf in leaves)
            if batch.empty:
                called.add((self.jitted.rest, shape, card))
                continue
            asked = {(old, reference)} if old or reference else set()
            now = _scores_now(card, old, batch)
            asked |= {(True, False)} if now else set()
            called |= {(self.jitted.score, shape, each) for each in asked}
            called.add((self.jitted.step, shape, (card, old, reference, now)))
        new, self._called = called - self._called, self._called | called
        return dict(Counter(name_of(program) for program, *_ in new))

    # ------------------------------------------------------------------------------------------------------- plans
    def step_program(self, card: LossCard, batch: Batch, name: str = "update") -> AbstractProgram:
        """One optimiser step on an abstract batch."""
        old, reference = scored(card, card.mini_batches)
        asked = old, reference, _scores_now(card, old, batch)
        scores = Scores(*(batch.behaviour_MN if wanted else None for wanted in asked))
        state = self.abstract_state(reference=self.adapter is not None)
        trained, base = state.replace(ref_params=None), state.ref_params
        bucket = batch.ids_MBT.shape[-1]
        batch = batch.replace(teacher_MN=None if card.teacher == "none" else batch.behaviour_MN)
        return AbstractProgram(
            name=f"{name} @{bucket}",
            kind="step",
            function=self.jitted.step,
            arguments=(),
            options={"state": trained, "base": base, "batch": batch, "scores": scores, "card": card},
            resident=(state.params, state.opt_state, base),
            bucket=bucket,
        )

    def score_program(self, batch: Batch, *, policy: bool, reference: bool) -> AbstractProgram:
        """Log-probs of an abstract batch under the policy, the reference, or both."""
        state = self.abstract_state(reference or self.adapter is not None)
        bucket = batch.ids_MBT.shape[-1]
        name = " and ".join(name for name, wanted in (("old", policy), ("reference", reference)) if wanted)
        return AbstractProgram(
            name=f"score {name} @{bucket}",
            kind="score",
            function=self.jitted.score,
            arguments=(state.params, state.ref_params, batch),
            options={"policy": policy, "reference": reference},
            resident=(state.params if policy else None, state.ref_params),
            bucket=bucket,
            passes=policy + reference,
        )

    def programs(self, updates: Sequence[Update], buckets: Sequence[int]) -> list[AbstractProgram]:
        """Every distinct step and scoring program of the updates, over full rows of each of these buckets."""
        found: dict[Any, AbstractProgram] = {}
        for bucket in buckets:
            batch = self.abstract_batch(bucket)
            for update in updates:
                card, (old, reference) = update.card, scored(update.card, update.card.mini_batches)
                found.setdefault((bucket, card), self.step_program(card, batch, f"update {update.name}"))
                asked = [(old, reference)] if old or reference else []
                asked += [(True, False)] if losses.sequences_move(card, old) else []
                for policy, ref in asked:
                    program = self.score_program(batch, policy=policy, reference=ref)
                    found.setdefault(program.name, program)
        return list(found.values())
