"""The sizes of a new card: as many slots, as long rows and as large micro-batches as fit, by the plan's arithmetic."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.plan import page
from scope_jax.plan.hardware import Hardware, hardware
from scope_jax.plan.planning import Needs, Planner, figures, gib

SLOTS, ROWS, LENGTH = "rollout.slots", "learner.micro_batch_rows", "rollout.max_length"
FEW, SHORTEST = 8, 1024  # slots below which rows are made shorter first; tokens that games have room in
DEFAULTS = "slots, row length and micro-batches are the defaults"


def sizes_here(cfg: Config, model: ModelConfig, chosen: Collection[str]) -> tuple[Config, str]:
    """(the card with sizes that fit this machine, of those that may be chosen (SLOTS, ROWS, LENGTH); a sentence about
    them). The card itself where the memory of this machine is not known, or where no sizes fit."""
    try:
        return sizes_that_fit(cfg, model, hardware(None, compiled=False), chosen)
    except UserError as error:
        return cfg, f"{DEFAULTS}: {error}"


def sizes_that_fit(cfg: Config, model: ModelConfig, on: Hardware, chosen: Collection[str]) -> tuple[Config, str]:
    """As `sizes_here`, on this hardware. Raises UserError if mesh and slots of the card do not fit each other."""
    planner = Planner(model, on)
    tried, needs = cfg, planner.needs(cfg)
    while needs.peak.total > planner.limit:
        if (smaller := _smaller(planner, tried, needs, chosen)) is None:
            least = f"{gib(needs.peak.total)} GiB in the phase {needs.peak.phase!r}"
            adapter = "" if needs.held.adapters else "; an adapter (--set model.adapter.rank=16) needs less"
            there = f"{gib(planner.limit)} of {on.name}'s memory"
            return (
                cfg,
                f"{DEFAULTS}, for a larger machine: the smallest need at least {least}, and have {there}{adapter}",
            )
        tried, needs = smaller, planner.needs(smaller)
    return tried, page.taken(figures(planner, needs))


def _smaller(planner: Planner, cfg: Config, needs: Needs, chosen: Collection[str]) -> Config | None:
    """The card with the next smaller size: half the slots where there is no room for their cache, half the rows of a
    micro-batch where there is none for an update; if they are few, half the length; None if all are least."""
    over = [phase for phase, peak in needs.peaks.items() if peak.total > planner.limit]
    crowded = SLOTS in chosen and any("cache" in needs.held.parts(phase) for phase in over)
    slots, shards = cfg.rollout.slots // 2, needs.engine.row_shards
    fewer = _with_rollout(cfg, slots=slots // shards * shards)
    if crowded and slots >= max(FEW, shards):
        return fewer
    rows, least = needs.learner.section.micro_batch_rows, needs.learner.row_shards
    assert rows != "auto"  # the learner has a number
    if ROWS in chosen and "learn" in over and rows // 2 >= least:
        return _with_learner(cfg, micro_batch_rows=rows // 2 // least * least)
    if LENGTH in chosen and (length := cfg.rollout.max_length // 2) >= SHORTEST:
        return _with_learner(_with_rollout(cfg, max_length=length), buckets=(length,))
    return fewer if crowded and slots >= shards else None


def _with_rollout(cfg: Config, **values: Any) -> Config:
    return cfg.model_copy(update={"rollout": cfg.rollout.model_copy(update=values)})


def _with_learner(cfg: Config, **values: Any) -> Config:
    return cfg.model_copy(update={"learner": cfg.learner.model_copy(update=values)})
