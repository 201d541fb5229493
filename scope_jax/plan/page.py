"""A plan as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]


def verdict(found: Figures) -> str:
    """One sentence: whether the card fits, what is missing, and what would fit."""
    where = f"{found['card']} on {found['on']} ({found['devices']} x {found['chip']})"
    there = "available" if found["chip"] == "cpu" else "per device"
    room = f"{found['hbm_gib']} GiB {there} less {found['reserve_gib']} in reserve"
    least = "" if found["compiled"] else "at least "
    needed = f"{least}{found['peak_gib']} GiB in the phase {found['phase']!r}"
    if found["fits"]:
        return f"{where} fits: it needs {needed}, of {room}."
    return f"{where} does not fit: it needs {needed}, {found['shortfall_gib']} GiB more than {room}; {_remedy(found)}."


def _remedy(found: Figures) -> str:
    if not found.get("setting"):
        return "no setting that was tried fits; take more devices"
    remedy = "it fits with " + " ".join(f"--set {change}" for change in found["setting"])
    if any(change.startswith("model.adapter.") for change in found["setting"]):
        remedy += ", which trains an adapter and not all weights"
    return remedy


def impossible(found: Figures) -> str | None:
    """One sentence if a device has less memory than what is certain to be on it; None if it may be enough."""
    if found["least_gib"] <= found["hbm_gib"]:
        return None
    if found["least_phase"] == "generate":
        what, key = "weights, states and cache", "lower rollout.slots or rollout.max_length"
    else:
        what, key = "weights, states and gradients", "train an adapter (--set model.adapter.rank=16)"
    return (
        f"{found['card']} cannot run on {found['on']}: {what} alone take {found['least_gib']} GiB of a device "
        f"({_sizes(found)}), and it has {found['hbm_gib']} GiB; "
        f"{_remedy(found) if found.get('setting') else f'{key}, or take more devices'}."
    )


def taken(found: Figures) -> str:
    """What a run takes, in a sentence."""
    return (
        f"memory of a device: about {found['peak_gib']} GiB at most, in the phase {found['phase']!r}, of "
        f"{found['hbm_gib']} GiB ({_sizes(found)})"
    )


def _sizes(found: Figures) -> str:
    slots = f"rollout.slots = {found['slots']}, of {found['max_length']} tokens"
    rows = {0: "all rows", 1: "one row"}.get(found["rows"], f"{found['rows']} rows")
    return f"{slots}; micro-batches of {rows}, of up to {found['row_tokens']} tokens"


def shortage(found: Figures) -> str | None:
    """One sentence if the devices, or this machine, lack memory that the card needs; None if they have it."""
    if not found["fits"]:
        return verdict(found)
    if not found.get("host_fits", True):
        return (
            f"{found['card']} needs at least {found['host_needed_gib']} GiB of this machine's memory beside its "
            f"devices', of which {found['host_available_gib']} GiB are available; end other processes, or take "
            "a larger machine."
        )
    return None


def lines(found: Figures) -> Iterator[str]:
    """The whole plan."""
    yield verdict(found)
    if found["fits"] and (short := shortage(found)):
        yield short
    yield f"model                {found['model']} ({found['shape_from']}), mesh {_mesh(found['mesh'])}"
    yield "figures              " + (
        f"compiled for {found['on']}, nothing executed; GiB per device"
        if found["compiled"]
        else "by arithmetic, compiled: false (nothing was compiled); temporaries are rough estimates; GiB per device"
    )
    yield from _phases(found["phases"])
    if found["host_gib"]:
        yield f"host memory          {found['host_gib']} GiB for each device"
    if "host_fits" in found:
        yield f"of this machine      {found['host_needed_gib']} GiB, of {found['host_available_gib']} available"
    yield f"micro-batch          {found['rows']} rows of {found['row_tokens']} tokens, learner.remat = {found['kept']}"
    yield (
        f"cache                {found['full_rows']} episodes of {found['max_length']} tokens at a time, in "
        f"{found['slots']} slots; shorter ones take less"
    )
    if found["compiled"]:
        yield from _programs(found)
    yield from _estimates(found)
    yield from _remat(found.get("remat", []))
    yield from _overlaps(found.get("overlaps", []))
    for row in found.get("knobs", ()):
        yield f"would free           {row['frees_gib']:8.2f} GiB  --set {row['set']}  ({row['how']})"
    for note in found["notes"]:
        yield f"note                 {note}"


def _estimates(found: Figures) -> Iterator[str]:
    """Times; none for a chip whose figures are not known."""
    if "mfu" in found:
        shares = f"MFU {found['mfu']:.2f}, HFU {found['hfu']:.2f}"
        yield f"estimate             {found['seconds']:.2f} s per micro-batch, {shares}"
    decode = found["decode"]
    if "milliseconds" in decode:
        yield (
            f"estimate             {decode['tokens_per_second']:,.0f} tokens/s: {decode['milliseconds']:.1f} ms for a "
            f"token of {decode['slots']:.0f} slots of {decode['length']:,.0f} tokens each (at least "
            f"{decode['roofline_milliseconds']:.1f})"
        )
    fastest = found["engine_meshes"][0]["tokens_per_second"] if found["engine_meshes"] else 0
    for row in found["engine_meshes"]:
        mark = "  <- the fastest" if row["tokens_per_second"] == fastest else ""
        how = "this card" if row["card"] else " ".join(f"--set '{change}'" for change in row["set"])
        yield (
            f"engine mesh          tensor {row['tensor']}, fsdp {row['fsdp']}: {row['tokens_per_second']:,} tokens/s "
            f"in {row['slots']:.0f} slots, cache {row['cache_gib']} GiB  ({how}){mark}"
        )


def _remat(rows: Sequence[Figures]) -> Iterator[str]:
    chosen = next((row["remat"] for row in rows if row["fits"]), None)
    for row in rows:
        estimate = f", {row['seconds']:.2f} s per micro-batch (estimate)" if "seconds" in row else ""
        fits = "fits" if row["fits"] else "does not fit"
        mark = "  <- the fastest that fits" if row["remat"] == chosen else ""
        yield f"learner.remat={row['remat']:<9} {row['peak_gib']:8.2f} GiB in an update, {fits}{estimate}{mark}"


def _overlaps(rows: Sequence[Figures]) -> Iterator[str]:
    for row in rows:
        where = "shared devices" if row["engine_devices"] is None else f"{row['engine_devices']} devices generate"
        yield (
            f"{row['mode']:<20} {row['seconds']:8.1f} s a step (at least {row['bound']:.1f}), {row['tokens']:,.0f} "
            f"tokens/s, engine idle {row['idle']:.0%}, recomputing {row['recomputed']:.0%}, staleness "
            f"{row['staleness']:.2f}  ({where})"
        )


def _mesh(shape: Mapping[str, int]) -> str:
    return ", ".join(
        f"{axis} {size}" for axis, size in shape.items() if size > 1 or axis not in ("fsdp_inner", "context")
    )


def _phases(phases: Mapping[str, Any]) -> Iterator[str]:
    names = list(dict.fromkeys(name for phase in phases.values() for name in phase["parts_gib"]))
    yield f"{'':<21}" + "".join(f"{phase:>10}" for phase in phases)
    for name in names:
        yield f"{name:<21}" + "".join(f"{phase['parts_gib'].get(name, 0):>10.2f}" for phase in phases.values())
    yield f"{'peak':<21}" + "".join(f"{phase['total_gib']:>10.2f}" for phase in phases.values())


def _programs(found: Figures) -> Iterator[str]:
    for one in found["programs"]:
        outcome = "refused by the compiler" if one["refused"] else f"temporaries {one['temporaries_gib']:.2f}"
        yield f"{one['name'][:34]:<34} peak {one['peak_gib']:8.2f}, {outcome}, compiled in {one['seconds']:.0f} s"
    if "flops" in found:
        scored = found.get("executed_of_theory_with_scoring")
        yield (
            f"one micro-batch      {found['flops']:.3g} FLOPs executed per device, of them "
            f"{found['kernel_flops']:.3g} in kernels by arithmetic; in theory "
            f"{found['theory_flops']:.3g} (6 N D and attention): {found['executed_of_theory']:.2f} times"
            + ("" if scored is None else f", {scored:.2f} with scoring")
        )
    closed = found.get("closed_form", {})
    for kind, moved in found["collectives"].items():
        stated = f" ({closed[kind]} by the closed form)" if kind in closed else ""
        yield (
            f"  {kind:<18} {moved['count']:>6}{stated} of together {moved['gib']:.2f} GiB, "
            f"the largest {moved['largest_mib']:.1f} MiB"
        )
    if found["unknown_loops"]:
        names = ", ".join(found["unknown_loops"])
        yield f"                     loops over micro-batches, or tokens, count once in {names}"
    yield f"seconds to compile   {found['seconds_to_compile']}"
