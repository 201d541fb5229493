"""What each setting would free on a device, and a setting of the card that fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from scope_jax.errors import is_users
from scope_jax.games import load_card
from scope_jax.learner.batching import rows_per_shard
from scope_jax.models.decoder.kinds import kv_heads, undivided
from scope_jax.models.decoder.transformer import Remat
from scope_jax.plan.engines import floored
from scope_jax.plan.hardware import GIB
from scope_jax.plan.planning import Needs, Planner, figures, gib

Change = str  # KEY=VALUE, as --set takes it
ADAPTER = "model.adapter.rank=16"


def room_for_pages(planner: Planner, needs: Needs) -> float | None:
    """Bytes of cache that fit beside everything else wherever there is one; None if not even one episode does."""
    cached = [peak.total for phase, peak in needs.peaks.items() if "cache" in needs.held.parts(phase)]
    room = planner.limit - (max(cached) - needs.held.cache)
    return room if room >= needs.engine.budget.least_bytes else None


def budget(planner: Planner, needs: Needs) -> Change | None:
    """The largest rollout.cache_gib that fits, to three digits, and at most what all slots need."""
    room = room_for_pages(planner, needs)
    if room is None:
        return None
    return f"rollout.cache_gib={floored(min(room, needs.held.cache)):.6g}"


def _learn_knobs(needs: Needs) -> list[Change]:
    """Settings that make the programs of an update smaller, as far as the card does not have them."""
    section, shards = needs.learner.section, needs.learner.row_shards
    found = []
    if rows_per_shard(section, shards) > 1:
        found.append(f"learner.micro_batch_rows={shards}")
    if needs.learner.mesh.shape["tensor"] > 1 and not section.sequence_parallel:
        found.append("learner.sequence_parallel=true")
    if section.remat != "full":
        found.append("learner.remat=full")
    return found


def _tensors(needs: Needs) -> Iterator[int]:
    """Larger tensor groups that divide model and devices."""
    model, count = needs.learner.model, needs.learner.mesh.size
    for size in (2, 4, 8):
        if count % size == 0 and undivided(model, size) is None and size > needs.learner.mesh.shape["tensor"]:
            yield size


def _contexts(needs: Needs) -> Iterator[list[Change]]:
    """Rows divided over more devices, one row at a time in each group, where model, devices and buckets allow it."""
    mesh, buckets = needs.learner.mesh, needs.cfg.learner.buckets
    tensor = mesh.shape["tensor"]
    shared, groups = kv_heads(needs.learner.model, tensor), mesh.size // tensor
    for size in (2, 4, 8):
        fits = groups % size == shared % size == 0 and all(bucket % (2 * size) == 0 for bucket in buckets)
        if fits and size > needs.learner.context:
            yield [f"mesh.context={size}", f"learner.micro_batch_rows={groups // size}"]


def _tried(planner: Planner, card: Path, sets: Sequence[Change]) -> Needs | None:
    """The needs of the card with these settings; None if they contradict each other."""
    try:
        return planner.needs(load_card(card, sets))
    except ValueError as error:
        if not is_users(error):
            raise
        return None


def freed(planner: Planner, card: Path, sets: Sequence[Change], needs: Needs) -> list[dict[str, Any]]:
    """By how much each setting alone lowers the phase that needs most, largest first. "compiled": the card was compiled
    with it; "arithmetic": from exact shapes, temporaries being the same."""
    phase, found = needs.peak.phase, []

    def add(change: Change, bytes_freed: float, how: str) -> None:
        if bytes_freed > 0:
            found.append({"set": change, "frees_gib": gib(bytes_freed), "how": how})

    held = needs.held
    if phase in ("publish", "generate", "save") and (change := budget(planner, needs)):
        add(change, held.cache - float(change.partition("=")[2]) * GIB, "arithmetic")
    if not held.offload and not held.adapters:
        sampling = 0.0 if held.apart else held.idle
        others = (held.policies - 1) * held.state
        add("train.offload=true", sampling if phase in ("generate", "rate") else others, "arithmetic")
    if needs.cfg.model.param_dtype == "float32" and not held.adapters:
        half = sum(size for name, size in held.parts(phase).items() if name in ("master weights", "moments")) / 2
        add('model.param_dtype="bfloat16"', half, "arithmetic; lowers the precision of updates")
    for change in _learn_knobs(needs) if phase == "learn" else []:
        if (other := _tried(planner, card, [*sets, change])) is not None:
            how = "compiled" if planner.on.compiles else "arithmetic"
            add(change, needs.peaks[phase].total - other.peaks[phase].total, how)
    return sorted(found, key=lambda row: -row["frees_gib"])


def remat_policies(planner: Planner, card: Path, sets: Sequence[Change]) -> list[dict[str, Any]]:
    """Each `learner.remat`: the memory that the card then needs in an update and whether it fits; where programs are
    compiled also the estimated seconds of one micro-batch. The fastest is the first: by estimate, else that which
    computes least again."""
    found = []
    for remat in reversed(get_args(Remat)):
        tried = planner.needs(load_card(card, [*sets, f"learner.remat={remat}"]))
        peak = tried.peaks["learn"].total
        row = {"remat": remat, "peak_gib": gib(peak), "fits": peak <= planner.limit}
        found.append(row | {key: value for key, value in figures(planner, tried).items() if key == "seconds"})
    return sorted(found, key=lambda row: row.get("seconds", 0.0))


def setting_that_fits(planner: Planner, card: Path, sets: Sequence[Change], needs: Needs) -> list[Change] | None:
    """The first of a few settings with which the card fits: fewer rows at a time, offload, tensor groups, rows divided
    over several devices, at last an adapter instead of whole weights, and always the largest budget of the cache that
    then fits. Each is planned like the card itself."""
    starts: list[list[Change]] = [[]]
    starts += [] if needs.held.offload or needs.held.adapters else [["train.offload=true"]]
    starts += [[f"mesh.tensor={size}", *more] for size in _tensors(needs) for more in starts[:2]]
    if needs.peaks["learn"].total > planner.limit:
        starts += [[*divided, *more] for divided in _contexts(needs) for more in starts[:2]]
    starts += [] if needs.held.adapters else [[ADAPTER]]
    for start in starts:
        changes = [*start]
        tried = _tried(planner, card, [*sets, *changes]) if start else needs
        if tried is None:
            continue
        if tried.peaks["learn"].total > planner.limit and (knobs := _learn_knobs(tried)):
            changes += knobs
            tried = _tried(planner, card, [*sets, *changes])
        if tried is None or any(tried.peaks[phase].total > planner.limit for phase in ("learn", "publish")):
            continue
        if tried.peak.total > planner.limit:
            if (change := budget(planner, tried)) is None:
                continue
            changes.append(change)
            tried = _tried(planner, card, [*sets, *changes])
        if tried is not None and tried.peak.total <= planner.limit:
            return changes
    return None
